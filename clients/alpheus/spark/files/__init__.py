"""How does Spark read and write exactly the files that a catalog lists?

    file_scan      frames over exact file lists
    file_index     frames over files of an object store, planned without a request to it
    locations      where Spark and its tasks find the files of a storage
    writes         frames into files of a transaction's own folder
    batches        the size of the batches of rows that tasks get
    task_writer    what each task of a write runs; it travels with the job
    scratch        deletes files that nothing refers to
    probe          whether executors and workers reach the data as the driver does, tried before the first write
    task_probe     what each task of a probe runs; it travels with the job
    store_errors   what errors of Spark's jobs tell of the store
    column_names   the names that columns have inside files
    schemas        Spark's types and a table's columns

**Reads.** Spark's own Parquet reader gets the file list of one version; fields are matched by id. Nothing is pruned
in `pushFilters`: Spark keeps one list of partitions a relation, and pruning there gives wrong answers on shared
frames.

**Writes.** Tasks encode files with the library's writer, store them under names that no other attempt has, and report
them with their footers. The driver lists what `collect` returns, and one commit makes the files visible. So local disks
and object stores work alike, without a rename, a listing or a commit protocol of Hadoop.

**No bare relation leaves `file_scan.scan`.** Spark takes a view over a single path for a table, and `INSERT OVERWRITE`
deletes that path. A projection above the relation, which the optimizer removes, makes the analyzer refuse. Rejected:
file modes (they do not stop a delete); a file system class in Hadoop's settings (there is none without a JAR, and it
would govern the user's own files). Writes by path can only be noticed: plans on local disks `stat` the files that
they name (11 µs a file). On object stores a key is not a folder, and the answer that brings a file says its size.
"""
