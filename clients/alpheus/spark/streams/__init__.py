"""How do Spark's own streams and data sources read and write a catalog?

    source          the data source "alpheus": tables, read once and streamed
    event_source    the same for the catalog's events
    offsets         how Spark asks a stream for its offsets, in each release
    layout          the columns of a frame, and the files of a task
    options         the options of the data source
    sink            the data source's own tasks, which write by `alpheus.rows.file_writer`; committed once a batch
    frames          changed rows as DataFrames, read by Spark's own reader

`alpheus.feed` plans what a stream delivers; this room hands it to Spark. Python workers read and write the rows here,
except in `frames`.
"""
