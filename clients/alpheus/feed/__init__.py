"""What became of one table, from the log to its rows? No Spark here.

    log                the log as feeds read it; `follow` gives each event to a trail
    trail              one event into row changes
    past               row changes that a later one undid; versions with the same rows
    change_sets        one row change into change sets: rows of files, as predicates over them
    former_names       what a table was called before, and what it is called now
    table_range        the range of versions that a feed is asked for
    stream             what streams share: the head, retries, waiting; streams of events
    stream_position    positions in checkpoints; what a stream is asked for
    table_stream       a table's feed as a stream: where a batch ends, what it contains

**One event's way into a job's rows.**

    1. `log.read_events` yields the event, because it names one of the job's inputs.
    2. `TableTrail.take` (trail) returns what the event did to each input's table, one `RowChange` an action, and keeps
       track of the table's name. A drop, a rename and a compaction change no rows.
    3. `lasting_changes` (past) leaves out changes that a later restore undid. Only an input of appends needs this: for
       it, rows that came and went never existed.
    4. `ChangeReader.read` (change_sets) turns each row change into `ChangeSet`s, with the table's definitions and
       manifests: some rows of some files, all inserted or all deleted.
    5. An engine reads these rows. `spark.streams.frames` hands them to Spark's Parquet reader, for jobs and for
       `SparkCatalog.changes`; `spark.streams.source` hands them to Python workers, for data sources and streams.

The planner of `alpheus.pipeline` does steps 1 and 2 for all inputs of a job together, and keeps the row changes as the
job's work. The run does the rest when the job reads the input. `TableStream` does steps 1, 2 and 4 for one table, and
keeps the change sets of each version until their files are delivered.
"""
