"""A table's files as Spark reads them: scans of exact file lists, and the settings that reads and writes need.

Spark's own Parquet reader gets the paths that the catalog lists, never a folder. Spark reads paths as glob patterns and
as URL-encoded text, so they are decoded and escaped. Without globs (`__globPaths__`) Spark would skip a missing file;
with them it fails.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from alpheus.rows.encoder import PIECE_SIZE_BYTES_MAX
from alpheus.rows.file_reader import find_wrong_on_disk
from alpheus.spark.files.column_names import Damaged, read_names, rename_columns
from alpheus.spark.files.file_index import read_listed
from alpheus.spark.files.locations import hadoop_path, is_connect, is_local, spark_path
from alpheus.spark.files.schemas import adapt_scan, spark_schema
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column, walk_columns
from alpheus_journal.predicate import FLOATS, leaf_paths
from alpheus_journal.storage import Storage
from alpheus_journal.tables.columns import decode_bound
from alpheus_journal.tables.data_file import DataFile

REQUIRED_SETTINGS = {
    # Columns are found by id, so that a renamed column is found and none is mistaken for another.
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "false",
    # A struct is NULL exactly where it is NULL, also if the file has none of the fields that a query reads.
    "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "false",
    # A missing or damaged file is an error, not fewer rows.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # Values as other readers read them.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    # Filters reach Parquet unchanged. Java's older classes change days that their calendar leaves out (1582-10-05 to
    # 14), and then rows would be skipped.
    "spark.sql.datetime.java8API.enabled": "true",
    # Names ignore case, as tables refuse two columns that differ only in case.
    "spark.sql.caseSensitive": "false",
}
"""Settings that a session must have when a table is read or written. With others, rows would be silently wrong."""

LISTING_SETTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_PATH_FILTER = "mapreduce.input.pathFilter.class"

SETTINGS = {
    **REQUIRED_SETTINGS,
    # Files that Spark's own writer makes, for `append_files`. Tables do not need these.
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # Above this number of paths Spark lists them in a job of its own, with one task a path.
    LISTING_SETTING: "100000",
    # Batches that Python workers get when tables are written. By default a batch of large rows has 256 MiB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(PIECE_SIZE_BYTES_MAX),
}

_READ_OPTIONS = {
    # Options of the scan stay in force even if the session changes between making and running a frame.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    # Every file is named, so folders mean nothing: Spark must not look for columns in their names.
    "recursiveFileLookup": "true",
}
# --- sessions ----------------------------------------------------------------------------------------


def set_up(spark: SparkSession, storage: Storage) -> None:
    """Give the session the settings that reads and writes of this storage need."""
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    if is_connect(spark) and not is_local(storage):
        # Spark asks the store for each path, so executors do it: the driver would ask for one after another.
        spark.conf.unset(LISTING_SETTING)


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
    place = hadoop_path(storage, found[0], glob=False).removeprefix("file://")
    return found[0] if place in told.replace("\\", "") or place in unquote(told) else ""


def scan(
    spark: SparkSession,
    storage: Storage,
    columns: Sequence[Column],
    files: Iterable[DataFile],
    *,
    schema_id: int | None = None,
    label: str = "",
) -> DataFrame:
    """Return the rows of exactly these files. Nothing is pruned here. When the frame runs, Spark prunes by its own
    filters, but not by floats that may be NaN or zero (`schemas.adapt_scan`).

    - `schema_id`: the schema of `columns`. All files of one schema have the names of its columns, so only a file of
      another schema is asked for its names, by one request for its footer. None asks a file of each schema.
    - `label` names one more column, with the path of each row's file.

    Raises Damaged if a file is missing, is a folder or has another size. If a file changes later, the frame fails when
    it runs, with Spark's errors (`lake.name_missing_files`).

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
    # (columns with a default that the files lack, number of the variant) → (paths and sizes, floats that may be NaN or
    # zero)
    groups: dict[tuple[tuple[int, ...], int], tuple[list[tuple[str, int]], set[int]]] = {}
    variants = [tuple(columns)]  # the columns as files name them
    known: dict[int | None, int] = {} if schema_id is None else {schema_id: 0}  # schema id → variant
    root = ""
    for file in files:
        # Only the root needs escaping and decoding; paths of data files below it do not.
        root = root or spark_path(spark, storage, file.path).removesuffix(file.path)
        if file.schema_id not in known:
            named = read_names(storage, file).of(columns)
            if named not in variants:
                variants.append(named)
            known[file.schema_id] = variants.index(named)
        absent = tuple(number for number in defaulted if number not in file.value_counts)
        paths, unsure = groups.setdefault((absent, known[file.schema_id]), ([], set()))
        paths.append((root + file.path, file.size_bytes))
        unsure.update(one.id for one in floats if one.id not in unsure and _may_hold_nan_or_zero(file, one))
    frames = []
    for (absent, variant), (paths, unsure) in sorted(groups.items()):
        there = spark_schema(variants[variant], nullable=True)
        df = read_files(spark, storage, paths, there)
        selected: list[SparkColumn | str] = [*rename_columns(df, schema)] if variant else ["*"]
        if label:
            # The last five parts of a file's address are its path below the prefix. A column may be named `_metadata`.
            place = df.metadataColumn("_metadata").getField("file_path")
            selected.append(f.substring_index(place, "/", -5).alias(label))
        df = df.select(*selected)
        frames.append(adapt_scan(df, labelled, absent, unsure) if absent or unsure else df)
    if not frames:
        return spark.createDataFrame([], spark_schema(labelled, nullable=True)).select("*")
    return functools.reduce(DataFrame.union, frames)


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


def read_files(
    spark: SparkSession, storage: Storage, files: Sequence[tuple[str, int]], schema: t.StructType
) -> DataFrame:
    """Return the rows of files, given as `spark_path` returns them with sizes in bytes, as a bare relation."""
    if is_local(storage):
        return _parquet(spark.read.options(**_READ_OPTIONS).schema(schema), [path for path, _ in files])
    return read_listed(spark, files, schema, _READ_OPTIONS)


def _parquet(reader: DataFrameReader, paths: Sequence[str]) -> DataFrame:
    """Return `reader.parquet(*paths)`, with one call of the JVM. PySpark makes a call per path, which takes a second
    for 10,000 paths, and several on a busy machine."""
    java = getattr(reader, "_jreader", None)
    if java is None:  # Spark Connect sends all paths in one message
        return reader.parquet(*paths)
    jvm = reader._spark._jvm
    assert jvm is not None, "only a session of Spark Connect has no JVM"
    return reader._df(java.parquet(jvm.java.util.regex.Pattern.compile("\0").split("\0".join(paths))))
