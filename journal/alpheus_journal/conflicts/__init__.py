"""Does a transaction conflict with what was committed since it began? Pure.

    facets    what operations and reads have at stake, and what committed actions touched
    rules     which pairs collide, and how a person is told; `RULES` is the table

The test behind every rule: run after the committed transaction, would this one still do what its author asked, having
seen what it saw? (FORMAT.md, "Conflicts")
"""
