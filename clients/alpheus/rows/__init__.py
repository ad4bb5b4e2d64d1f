"""How do rows get into data files and out of them? Nothing here knows a transaction.

    plan             which data files a read opens, and what is left to do with the rows of each; pure
    scan             a planned read: Arrow, pandas or polars, whole or batch by batch
    file_reader      reads the rows of data files, as a plan says
    manifest_files   the files of manifest segments, remembered
    merge_sorted     rows in a table's sort order, merged from sorted files
    file_writer      Arrow batches into Parquet files of a table
    encoder          Arrow batches into the bytes of Parquet files; Spark's workers run it, too
    partition_sort   rows ordered by partition and sort key
    arrow/           data of callers and of files, fitted to a table's columns
    foreign_file     a Parquet file that another system wrote
    repeating        ids and names that are the same when the same work is done again

**Fields are matched by id**, never by name or place: a column may be renamed, dropped and added again under its name,
and files of every schema id remain readable.

**A planned file** is read only where it can hold a wanted row. Partition values, bounds of columns and delete
predicates decide this in `plan`; inside a file, Parquet's row groups are skipped likewise. Bounds of floats count
only where the writer counted NaN. Arrow, Spark and `explain` go by one plan.
"""
