"""How do a table's rows become DataFrames, and DataFrames rows of a table?

    lake           a Spark session, a catalog and its storage: what the rest needs
    reader         tables of one version as DataFrames and temporary views
    scan           rows of the files that `alpheus.rows.plan` chose, read by Spark's Parquet reader
    transaction    the verbs with DataFrames, which commit together
    row_changes    delete, update, overwrite some rows; compact
    assignments    what an update sets
    merge          merge by key

`alpheus.spark.files` reads and writes the files themselves.
"""
