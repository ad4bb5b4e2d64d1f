"""What does an operation do to objects? Pure.

    execute            `execute`, and the table `EXECUTE_RULES`, which joins the `RULES` of the modules below
    prefetch           fetches what operations read
    overlay            a transaction's view of its own writes
    catalog            the catalog and namespaces: properties, repairs, cancelled ids
    tables             create, register, change, drop and restore tables
    schema             a table's columns: what a new table may have, and how columns change
    rows               append, overwrite and change rows
    row_changes        one change of rows: its conflicts, the files it removes, the predicates it adds
    views              views, and their binding to the schema of other objects
    lifecycle          drop namespaces, rename, undrop
    pipelines          advance a job
    subscriptions      durable subscriptions

The room `workspace` holds the objects that an execution reads and the changes that it makes. After a lost slot the
operations are executed again on a newer workspace. `check` and a client's transaction run the same code. How much one
operation may look at is bounded (FORMAT.md, "What operations do" and "Limits").
"""
