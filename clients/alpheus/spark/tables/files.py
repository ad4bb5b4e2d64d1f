"""A table's files as Spark sees them: scans of exact file lists, and writes into a transaction's own folder.

**Reading.** Spark's own Parquet reader gets the paths that the catalog lists, never a folder. Spark reads paths as glob
patterns and as URL-encoded text, so they are decoded and escaped. Without globs (`__globPaths__`) Spark would skip a
missing file; with them it fails.

**Writing.** Spark writes Parquet under its own file names into a folder that no other writer uses. The files that its
commit protocol leaves there are the job's result, also after failed and repeated tasks. Their footers are read here,
and only then does anything refer to the files. The rows of a partitioned table are distributed by a digest of their
partition, a column that is not stored. Hive's folder names would not do: they do not distinguish NULL from an empty
text, nor one long text from another.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f

from alpheus.rows.file_reader import damaged_file, find_wrong_on_disk
from alpheus.rows.manifest_files import FileLists
from alpheus.spark.tables.column_names import ColumnNames, read_names, rename_columns
from alpheus.spark.tables.schemas import (
    NOT_UTF8,
    adapt_scan,
    fit_frame,
    order_of,
    partition_key,
    spark_schema,
)
from alpheus.sync.portal import run
from alpheus_journal import format as fmt
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.model.definitions import Column, PartitionField, Segment, TableDef, walk_columns
from alpheus_journal.predicate import FLOATS, leaf_paths
from alpheus_journal.storage import ObjectInfo, Storage
from alpheus_journal.tables.columns import BOUND_CODE_POINTS_MAX, decode_bound, encode_bound
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import decode_segment, segment_of
from alpheus_journal.tables.parquet_footer import data_file_of_footer
from alpheus_journal.tables.parquet_guard import read_footer
from alpheus_journal.tables.partitions import apply_transform, value_of

FOOTER_THREADS = 8

REQUIRED_SETTINGS = {
    # Columns are found by id, so that a renamed column is found and none is mistaken for another.
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "false",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    # A struct is NULL exactly where it is NULL, also if the file has none of the fields that a query reads.
    "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "false",
    # A missing or damaged file is an error, not fewer rows.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # Values as other readers read them.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # Filters reach Parquet unchanged. Java's older classes change days that their calendar leaves out (1582-10-05 to
    # 14), and then rows would be skipped.
    "spark.sql.datetime.java8API.enabled": "true",
    # Names ignore case, as tables refuse two columns that differ only in case.
    "spark.sql.caseSensitive": "false",
}
"""Settings that a session must have when a table is read or written. With others, rows would be silently wrong."""

_PATH_FILTER = "mapreduce.input.pathFilter.class"

SETTINGS = {
    **REQUIRED_SETTINGS,
    # Above this number of paths Spark lists them in a job of its own, with one task a path.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}

_READ_OPTIONS = {
    # Options of the scan stay in force even if the session changes between making and running a frame.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    # Every file is named, so folders mean nothing: Spark must not look for columns in their names.
    "recursiveFileLookup": "true",
}
_WRITE_OPTIONS = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # When a task ran twice only one attempt counts: version 1 of the algorithm alone moves files in at the end.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "parquet.summary.metadata.level": "NONE",
    # Files with other names may be taken for Hadoop's own marker files.
    "mapreduce.output.basename": "part",
    # With bounds of longer values Parquet would leave out the counts of NULLs, too.
    "parquet.statistics.truncate.length": str(BOUND_CODE_POINTS_MAX * 4),
}
_LOCAL_WRITE_OPTIONS = {
    # Other file systems of Hadoop write a hidden checksum file beside each file: twice the files to sync, and after a
    # power cut a torn checksum hides good data.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a write: durable, and not visible yet. Without rows there is no segment."""

    segments: tuple[Segment, ...]
    rows: int
    files: tuple[DataFile, ...] = ()


# --- sessions and paths ----------------------------------------------------------------------------


def set_up(spark: SparkSession) -> None:
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)


def check_session(spark: SparkSession) -> None:
    """Raise InvalidInput (`bad_configuration`) that names a setting which was changed since `set_up`, or was never
    made."""
    for name, value in REQUIRED_SETTINGS.items():
        found = spark.conf.get(name)
        if found is None or found.lower() != value.lower():
            raise InvalidInput(
                f"the Spark session has {name}={found or '(unset)'}, which would read or write wrong values;"
                f" it must be {value}",
                kind="bad_configuration",
                hint="set it back, or make a SparkCatalog with this session",
            )
    found = spark.conf.get(_PATH_FILTER, None)
    context = getattr(spark, "_jsc", None)  # Spark Connect does not expose Hadoop's settings
    if found is None and context is not None:
        found = context.hadoopConfiguration().get(_PATH_FILTER)
    if found is not None:
        raise InvalidInput(
            f"the Spark session has {_PATH_FILTER}={found}, which may leave out files of a table",
            kind="bad_configuration",
            hint="unset it in spark.conf and in Hadoop's configuration; if other code needs it, use another session",
        )


_GLOB = frozenset("*?[]{}\\,^")


def hadoop_path(storage: Storage, path: str, *, glob: bool) -> str:
    """Return the file or folder as Spark takes it: decoded, and with `glob` escaped for Spark's pattern matching."""
    scheme, _, rest = storage.uri(path).partition("://")
    if scheme != "file":
        raise InvalidInput(
            f"the catalog's data is stored in {storage.url}, and this release reads only file:// through Spark",
            kind="not_supported",
        )
    plain = unquote(rest)
    if glob:
        plain = "".join(f"\\{character}" if character in _GLOB else character for character in plain)
    return f"{scheme}://{plain}"


def _local_path(storage: Storage, path: str) -> str:
    return hadoop_path(storage, path, glob=False).removeprefix("file://")


# --- reading ---------------------------------------------------------------------------------------


_NOT_THERE = re.compile(r"\[(?:PATH_NOT_FOUND|FAILED_READ_FILE\.FILE_NOT_EXIST)\]")
_DATA_PATH = re.compile(r"data(?:/[0-9a-f-]{36}){3}/[^/\s]+?\.parquet")


def find_missing(storage: Storage, told: str) -> str:
    """Return the file of this storage that an error of Spark calls missing, or "" if there is none."""
    begin = _NOT_THERE.search(told)
    found = _DATA_PATH.search(told, begin.end()) if begin is not None else None
    if found is None:
        return ""
    # Spark prints the path as a pattern, or as a URL.
    place = _local_path(storage, found[0])
    return found[0] if place in told.replace("\\", "") or place in unquote(told) else ""


def scan(
    spark: SparkSession,
    storage: Storage,
    columns: Sequence[Column],
    files: Iterable[DataFile],
    *,
    label: str = "",
) -> DataFrame:
    """Return the rows of exactly these files. Nothing is pruned here. When the frame runs, Spark prunes by its own
    filters, but not by floats that may be NaN or zero (`schemas.adapt_scan`).

    `label` names one more column, with the path of each row's file. Raises Damaged if a file is missing, is a folder or
    has another size. If a file changes later, the frame fails when it runs, with Spark's errors
    (`lake.name_missing_files`).

    There is a projection above each relation of files. Spark could write to a view of a bare relation: `INSERT
    OVERWRITE` would delete the file. It refuses to write to a projection before it touches anything.
    """
    files = tuple(files)
    check_files(storage, files)
    labelled = [*columns, Column(id=0, name=label, type="VARCHAR")] if label else columns
    defaulted = [column.id for column in walk_columns(columns) if column.initial_default is not None]
    inside = leaf_paths(columns)
    floats = [column for column in walk_columns(columns) if column.type in FLOATS and column.id in inside]
    schema = spark_schema(columns, nullable=True)
    # (columns with a default that the files lack, number of the variant) → (paths, floats that may be NaN or zero)
    groups: dict[tuple[tuple[int, ...], int], tuple[list[str], set[int]]] = {}
    variants = [tuple(columns)]  # the columns as files name them
    known: dict[int | None, int] = {}  # schema id → number of the variant
    root = ""
    for file in files:
        # Only the root needs escaping and decoding; paths of data files below it do not.
        root = root or hadoop_path(storage, file.path, glob=True).removesuffix(file.path)
        if file.schema_id not in known:
            named = _names_in(storage, file).of(columns)
            if named not in variants:
                variants.append(named)
            known[file.schema_id] = variants.index(named)
        absent = tuple(number for number in defaulted if number not in file.value_counts)
        paths, unsure = groups.setdefault((absent, known[file.schema_id]), ([], set()))
        paths.append(root + file.path)
        unsure.update(one.id for one in floats if one.id not in unsure and _may_hold_nan_or_zero(file, one))
    frames = []
    for (absent, variant), (paths, unsure) in sorted(groups.items()):
        there = spark_schema(variants[variant], nullable=True)
        df = _parquet(spark.read.options(**_READ_OPTIONS).schema(there), paths)
        selected: list[SparkColumn | str] = [*rename_columns(df, schema)] if variant else ["*"]
        if label:
            # The last five parts of a file's address are its path below the prefix.
            place = df.metadataColumn("_metadata").getField(
                "file_path"
            )  # `_metadata` may also be a table's column
            selected.append(f.substring_index(place, "/", -5).alias(label))
        df = df.select(*selected)
        frames.append(adapt_scan(df, labelled, absent, unsure) if absent or unsure else df)
    if not frames:
        return spark.createDataFrame([], spark_schema(labelled, nullable=True)).select("*")
    return functools.reduce(DataFrame.union, frames)


class Damaged(Corrupt):
    """A file is not the one that was committed. `lake.name_missing_files` adds which table and segment list it."""

    def __init__(self, file: DataFile, reason: str) -> None:
        told = damaged_file(file, reason)
        super().__init__(told.message, kind=told.kind, path=told.path)
        self.file = file
        self.reason = reason


def check_files(storage: Storage, files: Iterable[DataFile]) -> None:
    """Raise Damaged for the first file that is missing, is a folder, or has another size than was committed."""
    found = find_wrong_on_disk(storage, files)
    if found is not None:
        raise Damaged(*found)


def _may_hold_nan_or_zero(file: DataFile, column: Column) -> bool:
    """Return whether a file may contain NaN or zero among the floats of a column."""
    number = column.id
    low, high = file.lower_bounds.get(number), file.upper_bounds.get(number)
    if number not in file.value_counts:
        return False
    if file.nan_counts.get(number) != 0 or low is None or high is None:
        return file.null_counts.get(number) != file.value_counts[number]
    ends = decode_bound(column, low), decode_bound(column, high)
    return not all(isinstance(end, float) and end > 0 for end in ends) and not all(
        isinstance(end, float) and end < 0 for end in ends
    )


def _names_in(storage: Storage, file: DataFile) -> ColumnNames:
    try:
        return read_names(_local_path(storage, file.path), file.path)
    except FileNotFoundError:
        return ColumnNames()  # Spark will find that the file is missing


def _parquet(reader: DataFrameReader, paths: Sequence[str]) -> DataFrame:
    """Return `reader.parquet(*paths)`, with one call of the JVM. PySpark makes a call per path, which takes a second
    for 10,000 paths, and several on a busy machine."""
    java = getattr(reader, "_jreader", None)
    if java is None:  # Spark Connect sends all paths in one message
        return reader.parquet(*paths)
    jvm = reader._spark._jvm
    assert jvm is not None, "only a session of Spark Connect has no JVM"
    return reader._df(java.parquet(jvm.java.util.regex.Pattern.compile("\0").split("\0".join(paths))))


# --- writing ---------------------------------------------------------------------------------------


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
    df: DataFrame, storage: Storage, lists: FileLists, table: TableDef, *, transaction_id: str
) -> Staged:
    """Run `df` once, and store its rows as durable files of the table, listed in one segment. Each file holds rows of
    one partition, in the table's order.

    Raises InvalidInput before anything runs when the frame does not fit the table (`schemas.fit_frame`), and afterwards
    when a required column contains NULLs. Files of a failed write are left to garbage collection.
    """
    check_session(df.sparkSession)
    found = write(fit_frame(df, table.columns), storage, table, table.columns, transaction_id=transaction_id)
    return list_in_segment(storage, lists, table, found)


def write(
    ready: DataFrame,
    storage: Storage,
    table: TableDef,
    columns: tuple[Column, ...],
    *,
    transaction_id: str,
    is_arranged: bool = True,
    by: str = "",
) -> list[DataFile]:
    """Run a frame that has exactly `columns` (`schemas.fit_frame`) into files of a transaction, not yet durable.

    - `is_arranged`: each file holds rows of one partition, in the table's order.
    - `by`: one more column of the frame, which is not written. Each file holds the rows of one of its values, which
      must
      be in one partition.
    """
    folder = fmt.data_folder(table.id, transaction_id, RandomIdentities().uuid4())
    options = dict(_WRITE_OPTIONS)
    target = hadoop_path(storage, folder.rstrip("/"), glob=False)
    if target.startswith("file:"):
        options |= _LOCAL_WRITE_OPTIONS
    keys = []
    order = order_of(table.sort_order, columns) if is_arranged else []
    if by:
        ready = ready.repartition(f.col(by))
        keys = [by]
    elif is_arranged and table.partition_spec:
        key = free_name("alpheus_partition", columns)
        # Spark's adaptive execution brings the rows of a partition together, in pieces of a good size.
        ready = ready.withColumn(key, partition_key(table.partition_spec, columns)).hint("rebalance", key)
        keys = [key]
    if keys or order:
        ready = ready.sortWithinPartitions(*[f.col(name).asc() for name in keys], *order)
    writer = ready.write.options(**options).mode("error")
    try:
        (writer.partitionBy(*keys) if keys else writer).parquet(target)
    except PySparkException as error:
        wrong = NOT_UTF8.search(str(error))
        if wrong is None:
            raise
        hint = "use make_valid_utf8(text) to mark invalid places, or decode(bytes, 'ISO-8859-1') for another encoding"
        raise InvalidInput(wrong[0], kind="bad_data", hint=hint) from error
    found = _harvest(storage, table, columns, folder)
    if not is_arranged:
        return found
    return [
        msgspec.structs.replace(
            file,
            partition=_partition_of(storage, table.partition_spec, columns, file),
            sort_order_id=1 if order else None,
        )
        for file in found
    ]


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


def _harvest(storage: Storage, table: TableDef, columns: tuple[Column, ...], folder: str) -> list[DataFile]:
    """Return the files of a finished write, from their footers.

    Files in Spark's partition folders are moved out of them. For a frame without rows Spark writes a file without rows;
    such files are deleted.
    """
    found = sorted(run(_list_folder(storage, folder)), key=lambda info: info.path)
    with ThreadPoolExecutor(FOOTER_THREADS, thread_name_prefix="alpheus-footers") as pool:
        flat = list(pool.map(lambda info: _move_out(storage, folder, *info), enumerate(found)))
        files = list(pool.map(lambda info: _read_data_file(storage, table, columns, info), flat))
    moved = [before for before, after in zip(found, flat, strict=True) if before.path != after.path]
    for emptied in {Path(_local_path(storage, info.path)).parent for info in moved}:
        emptied.rmdir()
    empty = [file.path for file in files if not file.row_count]
    if empty:
        delete(storage, empty)
    return [file for file in files if file.row_count]


async def _list_folder(storage: Storage, folder: str) -> list[ObjectInfo]:
    return [
        info
        async for info in storage.list(folder)
        # Hadoop's tools hide such names, those of their own markers and checksums.
        if not info.path.removeprefix(folder).startswith((".", "_"))
    ]


def _move_out(storage: Storage, folder: str, number: int, info: ObjectInfo) -> ObjectInfo:
    """Move a file to where data files are stored: directly below the write's folder. It gets a new name, because names
    repeat in Spark's folders."""
    if "/" not in info.path.removeprefix(folder):
        return info
    path = f"{folder}part-{number:05d}.parquet"
    Path(_local_path(storage, info.path)).rename(_local_path(storage, path))
    return msgspec.structs.replace(info, path=path)


def delete(storage: Storage, paths: Sequence[str]) -> None:
    run(_delete_all(storage, paths))


async def _delete_all(storage: Storage, paths: Sequence[str]) -> None:
    for path in paths:
        await storage.delete(path)


def footer_of(storage: Storage, path: str) -> pq.FileMetaData:
    with open(_local_path(storage, path), "rb") as file:
        return read_footer(file, path)


def _read_data_file(
    storage: Storage, table: TableDef, columns: tuple[Column, ...], info: ObjectInfo
) -> DataFile:
    metadata = footer_of(storage, info.path)
    try:
        return data_file_of_footer(info.path, info.size, metadata, columns, schema_id=table.schema_id)
    except InvalidInput as error:
        reason = error.message.removeprefix(f"data file {info.path[:300]}: ")
        if not reason.startswith("column ") or " is required, but " not in reason:
            raise
        # The error is the frame's: the user never sees the file.
        hint = (
            error.hint
            if "does not rule out" in reason
            else "give the column a value in every row, with coalesce or a filter"
        )
        raise InvalidInput(reason, kind=error.kind, hint=hint) from None


def _partition_of(
    storage: Storage, spec: Sequence[PartitionField], columns: Sequence[Column], file: DataFile
) -> dict[int, bytes | None]:
    """Return the value of each partition key in a file. The file has one value of each."""
    by_id = {column.id: column for column in columns}
    return {field.column_id: _partition_value(storage, field, by_id[field.column_id], file) for field in spec}


def _partition_value(storage: Storage, field: PartitionField, column: Column, file: DataFile) -> bytes | None:
    if file.null_counts.get(column.id) == file.row_count:
        return None
    low, high = file.lower_bounds.get(column.id), file.upper_bounds.get(column.id)
    if low is not None and high is not None:
        first, last = decode_bound(column, low), decode_bound(column, high)
        if apply_transform(field, column, first) == apply_transform(field, column, last):
            return value_of(field, column, first)
    # Bounds of long values are truncated, so read the value from the file.
    with pq.ParquetFile(_local_path(storage, file.path)) as parquet:
        rows = next(parquet.iter_batches(batch_size=1, columns=[column.name]))
    value = rows.column(0)[0].as_py()
    assert value is None or isinstance(value, str | bytes), "only texts and bytes can lack exact bounds"
    return None if value is None else encode_bound(column, value)
