"""What does an operation do to objects? Pure.

    execute            `execute`, and the table `EXECUTE_RULES`, which joins the `RULES` of the modules of `rules`
    prefetch           fetches what operations read
    overlay            a transaction's view of its own writes
    rules              what each operation does: one module for each kind of object

The room `workspace` holds the objects that an execution reads and the changes that it makes. After a lost slot the
operations are executed again on a newer workspace. `check` and a client's transaction run the same code. How much one
operation may look at is bounded (FORMAT.md, "What operations do" and "Limits").
"""
