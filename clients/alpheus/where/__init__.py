"""What does a condition on rows say? WHERE.md describes the texts.

    conditions   texts into predicates
    syntax       a text into sqlglot's tree of one condition
    times        dates and times into the counts that columns store
    engine_sql   predicates into an engine's SQL

A text outside the subset is refused by name, never guessed. A predicate means the same in Arrow, in Spark and in
`check`: three-valued logic, NaN greater than every number, proleptic Gregorian days.
"""
