"""Moving in: a native table from Parquet files, a Delta or an Iceberg table, copied in one commit.

`sources`, `parquet`, `delta` and `iceberg` give rows and what there is to know about them, `shapes` one schema;
`transfer` brings them into the catalog and goes on where it was interrupted.
"""
