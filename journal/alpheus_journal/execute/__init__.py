"""What does an operation do to objects? Pure.

    execute            `execute` and the table `EXECUTE_RULES`: by class of operation, what executes it
                       and what it reads, from the `RULES` of the modules below
    workspace          what an execution reads, and the changes that it leaves
    prefetch           what must be fetched before an operation can run
    overlay            a transaction's view of its own writes
    catalog            the catalog and namespaces: properties, repairs, cancelled ids
    tables             create, register, change, drop and restore tables
    schema             a table's columns: what a new table may have, and how columns change
    rows               append, overwrite and change rows
    row_changes        one change of rows: its conflicts, files that go, predicates that come
    views              views, and their binding to the schema of other objects
    lifecycle          drop namespaces, rename, undrop
    dropped_counters   how far the counters of dropped tables got
    pipelines          a job advances
    subscriptions      durable subscriptions

Judging again after a lost slot is executing again on a newer workspace. `check` and a client's transaction run the
same code. How much one operation may look at is bounded (FORMAT.md, "What operations do" and "Limits").
"""
