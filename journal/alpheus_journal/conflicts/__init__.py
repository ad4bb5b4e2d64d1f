"""Does a transaction conflict with what was committed since it began? Pure.

    facets    what operations and reads have at stake, and what committed actions touched
    rules     which pairs collide; `RULES` is the table
    text      conflicts in words
    rivals    with whom a conflict is that execution found

The test behind every rule: if this transaction ran after the committed one, would it still do what its author asked,
given what it read? (FORMAT.md, "Conflicts")
"""
