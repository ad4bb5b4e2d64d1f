"""Import tables: copy Parquet files, a Delta or an Iceberg table into a native table in one commit.

`sources` defines what a source is; `parquet`, `delta` and `iceberg` implement it and deliver rows and counts. `schemas`
combines the columns of several files into one schema. `copy` copies the rows into the catalog and resumes interrupted
imports; `results` is what it tells of its progress and of its end.
"""
