"""What happened to one table? Events become changes of rows. Nothing here imports Spark.

    log               events and recorded transactions, with operations as classes
    trail             one table's way through the log, through renames, restores and undrops: `RowChange`s
    change_sets       which rows of which files a `RowChange` added or removed: `ChangeSet`s
    stream            head, patience and waiting, and a stream of the catalog's events
    table_stream      a table's feed in batches
    stream_position   positions of streams, and the arguments of a stream

An event on its way into a batch: `log.read_events` reads it, `trail.Trail.take` says what it did to the table,
`change_sets.ChangeReader.sets` says which rows of which files that were, and `table_stream.TableStream` cuts the
files into batches between two positions. `alpheus.spark.streams` turns a batch into DataFrames; `alpheus.pipeline`
takes the changes of a range of versions at once.
"""
