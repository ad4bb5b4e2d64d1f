"""What does a native table's definition say of its columns, its files and their rows?

    columns           columns, their Arrow types and Parquet field ids, bounds in statistics
    partitions        partition specs and sort orders
    data_file         one data file, as a manifest names it
    manifest          manifest segments: the Arrow files that list data files
    manifest_merge    segments rewritten: files taken out, small segments merged
    parquet_footer    a data file's entry made from its footer; whether a table can take the file
    parquet_guard     the gate for footers that other programs wrote
    verify_file       whether an entry and its file say the same

All of it is pure: bytes and values in, values out.
"""
