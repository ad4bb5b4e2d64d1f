"""Writes of Spark: a frame becomes finished files in a transaction's own folder, and one manifest segment lists them.

Tasks write the files themselves (`task_writer`), each under a name that no other attempt has, and report them. The
segment lists what `collect` returns, and nothing else: no code lists a folder, renames a file or reads a footer again.
`collect` takes one result of each partition, however often Spark repeats or speculates an attempt. No other action may
run the frame of tasks: a `count`, `take` or cache behind the tasks would run some of them twice, or in part.

A frame that fits in one file but comes from many tasks is brought together first (`_is_scattered`). The answer of the
commit counts the files.

The rows of a partitioned table are distributed by a digest of their partition, a column that is not stored. Each task
sorts its rows by the digest, so one file is open at a time.
"""

from __future__ import annotations

import functools
import json
import re
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from alpheus.rows import encoder
from alpheus.rows.arrow import empty_arrays
from alpheus.rows.encoder import FILE_SIZE_TARGET
from alpheus.rows.file_writer import footer_of
from alpheus.rows.manifest_files import FileLists
from alpheus.spark.files import batches, task_writer
from alpheus.spark.files.file_scan import check_session
from alpheus.spark.files.locations import is_connect, task_place
from alpheus.spark.files.probe import probe_once
from alpheus.spark.files.schemas import NOT_UTF8, fit_frame, order_of, partition_key
from alpheus.spark.files.task_writer import RequiredNull, Task
from alpheus.sync.portal import run
from alpheus_journal import format as fmt
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column, PartitionField, Segment, TableDef
from alpheus_journal.storage import Storage
from alpheus_journal.tables.columns import decode_bound, encode_bound, schema_of_columns
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import decode_segment, segment_of
from alpheus_journal.tables.parquet_footer import data_file_of_footer
from alpheus_journal.tables.partitions import apply_transform, value_of

CODEC_SETTING = "spark.sql.parquet.compression.codec"
_CODECS = {"none": "none", "uncompressed": "none", "lz4raw": "lz4", "lz4_raw": "lz4"}
"""Names of codecs that differ in Spark and pyarrow."""

SCATTERED_TASKS_MIN = 4

for _module in (encoder, empty_arrays, task_writer):
    # Workers need nothing of ours: the code of tasks travels with each job.
    cloudpickle.register_pickle_by_value(_module)  # type: ignore[no-untyped-call]


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The transaction whose files a write makes, and its catalog. Footers tell both. `checksums` says whether the files
    are listed with their checksums (`Session.lists_checksums`)."""

    transaction_id: str
    catalog_id: str
    checksums: bool


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What a write stored: durable, and not visible yet. Without rows there is no segment."""

    segments: tuple[Segment, ...]
    rows: int
    files: tuple[DataFile, ...] = ()


def check_frame(df: object) -> None:
    """Raise InvalidInput (`bad_data`) unless `df` is a DataFrame of Spark."""
    if isinstance(df, DataFrame):
        return
    kind = type(df)
    package = kind.__module__.partition(".")[0]
    hint = "convert it with spark.createDataFrame(...)"
    if package in ("builtins", "pandas", "polars", "pyarrow"):
        hint += ", or write it without Spark, by the same verb of lake.catalog"
    raise InvalidInput(
        f"{package + '.' if package != 'builtins' else ''}{kind.__name__} is not a DataFrame of Spark",
        kind="bad_data",
        hint=hint,
    )


def stage(
    df: DataFrame,
    storage: Storage,
    lists: FileLists,
    table: TableDef,
    *,
    owner: Owner,
) -> Staged:
    """Run `df` once, and store its rows as durable files of the table, listed in one segment. Each file holds rows of
    one partition, in the table's order.

    Raises InvalidInput (`bad_data`) before anything runs when the frame does not fit the table (`schemas.fit_frame`),
    and while the tasks run when a required column holds NULL, nested columns included. Files of a failed write are left
    to garbage collection.
    """
    check_session(df.sparkSession)
    ready = fit_frame(df, table.columns)
    found = write(ready, storage, table, table.columns, owner=owner)
    return list_in_segment(storage, lists, table, found)


def write(
    ready: DataFrame,
    storage: Storage,
    table: TableDef,
    columns: tuple[Column, ...],
    *,
    owner: Owner,
    is_arranged: bool = True,
    by: str = "",
    file_size_target: int = FILE_SIZE_TARGET,
) -> list[DataFile]:
    """Run a frame that has exactly `columns` (`schemas.fit_frame`) into files of a transaction, not yet durable.

    - `is_arranged`: each file holds rows of one partition, in the table's order.
    - `by`: one more column of the frame, which is not written. Each file holds the rows of one of its values, which
      must be in one partition.
    - `file_size_target`: bytes. A file ends at the row group with which it reaches this size.
    """
    spark = ready.sparkSession
    probe_once(spark, storage)
    folder = fmt.data_folder(table.id, owner.transaction_id, RandomIdentities().uuid4())
    key = ""
    order = order_of(table.sort_order, columns) if is_arranged else []
    if by:
        ready = ready.repartition(f.col(by))
        key = by
    elif is_arranged and table.partition_spec:
        key = free_name("alpheus_partition", columns)
        # Spark's adaptive execution brings the rows of a partition together, in pieces of a good size.
        ready = ready.withColumn(key, partition_key(table.partition_spec, columns)).hint("rebalance", key)
    elif is_arranged and _is_scattered(ready, file_size_target):
        ready = ready.hint("rebalance")
    if key or order:
        ready = ready.sortWithinPartitions(*([f.col(key).asc()] if key else []), *order)
    codec = _choose_codec(spark)
    place, filesystem, profile = task_place(storage, folder)
    task = Task(
        folder=place,
        filesystem=filesystem,
        profile=profile,
        schema=schema_of_columns(columns).serialize().to_pybytes(),
        footer=footer_of(table, owner.transaction_id, owner.catalog_id),
        codec=codec,
        file_size_target=file_size_target,
        has_key=bool(key),
        first_columns=_inexact_keys(table, columns) if is_arranged else (),
    )
    reports = _run_tasks(ready, task, table.id)
    files = [
        (_data_file(table, columns, folder, report, checksums=owner.checksums), report) for report in reports
    ]
    if not is_arranged:
        return [file for file, _ in files]
    return [
        msgspec.structs.replace(
            file,
            partition=_partition_of(table.partition_spec, columns, file, report),
            sort_order_id=1 if order else None,
        )
        for file, report in files
    ]


def _is_scattered(ready: DataFrame, file_size_target: int) -> bool:
    """Return whether the rows fit in one file, but come from many tasks, which would write a small file each.

    Only frames whose size Spark knows beforehand, and that have no shuffle, are scattered. To bring rows together costs
    a shuffle, about 0.1 s of CPU for a small frame; to look costs the plan of the frame, and runs nothing.
    """
    if (
        is_connect(spark := ready.sparkSession)
        or spark.sparkContext.defaultParallelism <= SCATTERED_TASKS_MIN
    ):
        return False
    if spark.conf.get("spark.sql.adaptive.enabled") != "true":
        return False  # Spark would scatter the rows over `spark.sql.shuffle.partitions` tasks
    execution = ready._jdf.queryExecution()
    if execution.optimizedPlan().stats().sizeInBytes() > file_size_target:
        return False
    if execution.executedPlan().getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        return False  # Spark brings the rows of a shuffle together by itself, and counting its tasks would run it
    return int(execution.toRdd().getNumPartitions()) > SCATTERED_TASKS_MIN


def _choose_codec(spark: SparkSession) -> str:
    """Return pyarrow's name of the codec that the session is set to."""
    asked = spark.conf.get(CODEC_SETTING, None) or "snappy"
    codec = _CODECS.get(asked.lower(), asked.lower())
    if codec not in ("none", "snappy", "zstd", "gzip", "brotli", "lz4"):
        raise InvalidInput(
            f"the Spark session has {CODEC_SETTING}={asked[:80]}, which Alpheus does not write",
            kind="bad_configuration",
            hint="use snappy, zstd, gzip, brotli, lz4_raw or none",
        )
    return codec


_REQUIRED_NULL = re.compile(rf"\b{RequiredNull.__name__}: (column [^\n]*)")


_tables_with_large_rows: set[str] = set()
"""The ids of tables to which this process has written large rows."""


def _run_tasks(ready: DataFrame, task: Task, table_id: str) -> list[Any]:
    """Run a frame, and return the rows of `task_writer.RESULT`. A frame that turns out to have large rows is run again
    in small batches."""
    # PySpark looks for the columns by their names, and does not find a name with a dot or a backquote.
    ready = ready.toDF(*(f"c{place}" for place in range(len(ready.columns))))
    size = None if table_id in _tables_with_large_rows else batches.row_size(ready.schema)
    if size is not None:
        try:
            return _collect(batches.refuse_large_rows(ready, size), task, by_bytes=False)
        except PySparkException as error:
            if batches.LARGE_ROW not in str(error):
                raise
            _tables_with_large_rows.add(table_id)
    return _collect(ready, task, by_bytes=True)


def _collect(ready: DataFrame, task: Task, *, by_bytes: bool) -> list[Any]:
    try:
        with batches.limit_batches(ready.sparkSession, by_bytes=by_bytes):
            found = ready.mapInArrow(functools.partial(task_writer.write_rows, task), task_writer.RESULT)
            return found.collect()
    except PySparkException as error:
        told = str(error)
        if wrong := _REQUIRED_NULL.search(told):
            message, hint = wrong[1], "give the column a value in every row, with coalesce or a filter"
        elif wrong := NOT_UTF8.search(told):
            message, hint = wrong[0], "use make_valid_utf8(text) to mark invalid places"
            hint += ", or decode(bytes, 'ISO-8859-1') for another encoding"
        else:
            raise
        raise InvalidInput(message, kind="bad_data", hint=hint) from error


def list_in_segment(storage: Storage, lists: FileLists, table: TableDef, found: Sequence[DataFile]) -> Staged:
    """Make files durable, and list them in a segment."""
    if not found:
        return Staged(segments=(), rows=0)
    run(storage.make_durable([file.path for file in found]))
    segment = put_segment(storage, lists, table, found)
    return Staged(segments=(segment,), rows=segment.row_count, files=tuple(found))


def put_segment(storage: Storage, lists: FileLists, table: TableDef, found: Sequence[DataFile]) -> Segment:
    """Store and return a manifest segment that lists these files."""
    path = fmt.manifest_path(table.id, RandomIdentities().uuid7())
    content, segment = segment_of(found, path=path, table_id=table.id, schema_id=table.schema_id)
    run(storage.put(path, content))
    lists.keep(path, decode_segment(content, path, table_id=table.id))
    return segment


def free_name(name: str, columns: Sequence[Column]) -> str:
    """Return `name`, extended until no column has it."""
    while any(column.name.lower() == name for column in columns):
        name += "_"
    return name


# --- what tasks report -----------------------------------------------------------------------------


def _data_file(
    table: TableDef, columns: tuple[Column, ...], folder: str, report: Any, *, checksums: bool
) -> DataFile:
    """Return the manifest entry of a file that a task reports."""
    metadata = pq.read_metadata(pa.BufferReader(zlib.decompress(report["footer"])))
    nans = {int(number): count for number, count in json.loads(report["nans"]).items()}
    file = data_file_of_footer(
        folder + report["path"],
        report["size"],
        metadata,
        columns,
        schema_id=table.schema_id,
        nan_counts=nans,
    )
    if not checksums:
        return file
    return msgspec.structs.replace(file, crc32=report["crc32"], footer_crc32=report["footer_crc32"])


def _inexact_keys(table: TableDef, columns: Sequence[Column]) -> tuple[int, ...]:
    """Return the places of partition columns whose value a footer may not tell: bounds of texts and bytes are cut."""
    keys = {field.column_id for field in table.partition_spec}
    return tuple(
        place
        for place, column in enumerate(columns)
        if column.id in keys and column.type in ("VARCHAR", "BINARY")
    )


def _partition_of(
    spec: Sequence[PartitionField], columns: Sequence[Column], file: DataFile, report: Any
) -> dict[int, bytes | None]:
    """Return the value of each partition key in a file. The file has one value of each."""
    by_id = {column.id: column for column in columns}
    return {field.column_id: _partition_value(field, by_id[field.column_id], file, report) for field in spec}


def _partition_value(field: PartitionField, column: Column, file: DataFile, report: Any) -> bytes | None:
    if file.null_counts.get(column.id) == file.row_count:
        return None
    low, high = file.lower_bounds.get(column.id), file.upper_bounds.get(column.id)
    if low is not None and high is not None:
        first, last = decode_bound(column, low), decode_bound(column, high)
        if apply_transform(field, column, first) == apply_transform(field, column, last):
            return value_of(field, column, first)
    with pa.ipc.open_stream(report["first"]) as reader:
        rows = reader.read_next_batch()
    value = rows.column(column.name)[0].as_py()
    assert isinstance(value, str | bytes), "only texts and bytes can lack exact bounds"
    return encode_bound(column, value)
