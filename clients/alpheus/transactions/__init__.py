"""What can a transaction do?

    transaction        AsyncTransaction: verbs, reads that see them, and one commit at the end
    core               its inside: operations, reads, overlay, begin version
    terms              its arguments
    verbs              every writing verb, for a transaction and for a catalog
    steps              what each verb does: one operation, or several
    row_steps          the steps of verbs that change rows
    row_changes        changing rows: what is read, what is written, the one operation
    update_delete      delete, update, replace some rows
    merge              merge by key
    append_files       existing Parquet files become rows of a table
    compaction         which files to rewrite, and rewriting them
    column_arguments   columns and defaults as people write them

A verb checks its arguments, reads through the transaction's overlay (the begin version with the transaction's own
writes), stores data files, and applies operations to the core. Each operation is executed on the overlay immediately,
so a mistake raises at the verb and later reads see the result. The commit sends operations, reads and the begin
version.
"""
