"""How do a table's rows become DataFrames, and DataFrames rows of a table?

    lake           a Spark session, a catalog and its storage: what the rest needs
    reader         tables of one version as DataFrames and temporary views
    scan           rows of a table's files, planned on the driver, read by Spark's Parquet reader
    files          scans of exact file lists; writes into a transaction's own folder
    column_names   the names that columns have inside files
    schemas        Spark's types and a table's columns
    transaction    the verbs with DataFrames, which commit together
    row_changes    delete, update, overwrite some rows; compact
    assignments    what an update sets
    merge          merge by key

**Reads.** Spark's own Parquet reader gets the file list of one version; fields are matched by id. Nothing is pruned
in `pushFilters`: Spark keeps one list of partitions a relation, and pruning there gives wrong answers on shared
frames.

**Writes.** Spark writes Parquet into the transaction's own folder, the driver reads the footers, and one commit makes
the files visible.

**No bare relation leaves `files.scan`.** Spark takes a view over a single path for a table, and `INSERT OVERWRITE`
deletes that path. A projection above the relation, which the optimizer removes, makes the analyzer refuse. Rejected:
file modes (they do not stop a delete); a file system class in Hadoop's settings (there is none without a JAR, and it
would govern the user's own files). Writes by path can only be noticed: plans on local disks `stat` the files that
they name (11 µs a file). On object stores a key is not a folder, and the answer that brings a file says its size.
"""
