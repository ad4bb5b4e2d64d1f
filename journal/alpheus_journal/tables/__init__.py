"""What are the columns, data files and rows of a native table?

    columns           columns, their Arrow types and Parquet field ids, bounds in statistics
    partitions        partition specs and sort orders
    data_file         one data file, as a manifest lists it
    manifest          manifest segments: the Arrow files that list data files
    manifest_merge    rewrites segments: removes files, merges small segments
    parquet_footer    makes a data file's entry from its footer; checks that a table can take the file
    parquet_guard     the gate for footers that other programs wrote
    checksums         the checksums in an entry: made of a file's bytes, and compared with them
    verify_file       compares an entry with its file

All of it is pure: bytes and values in, values out.
"""
