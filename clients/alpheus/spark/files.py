"""A table's files as Spark sees them: scans of exact file lists, and writes into a transaction's own folder.

Reading: Spark's own Parquet reader gets the paths that the catalog lists, never a folder. It takes paths for
glob patterns and for undecoded text, so they are decoded and escaped. Without globs
(`__globPaths__`) Spark would pass over a file that is missing; with them it fails.

Writing: Spark writes Parquet under names of its own into a folder that nobody else writes to; what its commit
protocol left there is what the job wrote, failed and repeated tasks included. Footers are read here, and only
then does anything name the files.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

import msgspec
from pyspark.sql import DataFrame, SparkSession

from alpheus.spark.schemas import fitted, spark_schema
from alpheus.sync import run
from alpheus_journal import format as fmt
from alpheus_journal.columns import BOUND_CODE_POINTS_MAX
from alpheus_journal.errors import Corrupt, InvalidInput, NotFound
from alpheus_journal.footer import data_file_of_footer
from alpheus_journal.manifest import DataFile, decode_segment, segment_of
from alpheus_journal.objects import Column, Segment, TableDef
from alpheus_journal.parquet import read_footer
from alpheus_journal.storage import ObjectInfo, Storage
from alpheus_journal.system import RandomIdentities

FOOTER_THREADS = 8
SEGMENTS_READ_AT_ONCE = 64
CACHED_FILES_MAX = 200_000

REQUIRED_SETTINGS = {
    # Columns go by id, so that a renamed one is found and none is mistaken for another.
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "false",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    # A missing or damaged file is an error, not fewer rows.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # Values as other readers take them.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # Names go without case, as tables refuse two columns that differ in it only.
    "spark.sql.caseSensitive": "false",
}
"""What a session must be set to when a table is read or written, or rows would be silently wrong."""

SETTINGS = {
    **REQUIRED_SETTINGS,
    # Beyond so many paths Spark lists them by a job of its own, one task a path.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}

_READ_OPTIONS = {
    # Options of the scan outlive a change of the session between making a frame and running it.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
}
_WRITE_OPTIONS = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Of tasks that ran twice one counts, whatever became of the other: only version 1 moves files in at the end.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "parquet.summary.metadata.level": "NONE",
    # Bounds of longer values would make Parquet leave out the counts of NULLs with them.
    "parquet.statistics.truncate.length": str(BOUND_CODE_POINTS_MAX * 4),
}
_LOCAL_WRITE_OPTIONS = {
    # Without it Hadoop writes a hidden checksum file beside each file: twice the files to sync, and after a
    # power cut a torn checksum hides good data.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What a write left on storage, durable and not yet visible. No segment when there were no rows."""

    segments: tuple[Segment, ...]
    rows: int


# --- sessions and paths ----------------------------------------------------------------------------


def set_up(spark: SparkSession) -> None:
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)


def check_session(spark: SparkSession) -> None:
    """InvalidInput (`bad_configuration`) naming a setting that was changed since `set_up`, or a session that
    never was set up."""
    for name, value in REQUIRED_SETTINGS.items():
        found = spark.conf.get(name)
        if found is None or found.lower() != value.lower():
            raise InvalidInput(
                f"the Spark session has {name}={found or '(unset)'}, which would read or write wrong values;"
                f" it must be {value}",
                kind="bad_configuration",
                hint="set it back, or make a SparkCatalog of this session",
            )


_GLOB = frozenset("*?[]{}\\,^")


def hadoop_path(storage: Storage, path: str, *, glob: bool) -> str:
    """The file or folder as Spark takes it: decoded, and with `glob` escaped for its pattern matching."""
    scheme, _, rest = storage.uri(path).partition("://")
    if scheme != "file":
        raise InvalidInput(
            f"the catalog's data lies in {storage.url}, and this release knows Spark's way to file:// only",
            kind="not_supported",
        )
    plain = unquote(rest)
    if glob:
        plain = "".join(f"\\{character}" if character in _GLOB else character for character in plain)
    return f"{scheme}://{plain}"


def _local_path(storage: Storage, path: str) -> str:
    return hadoop_path(storage, path, glob=False).removeprefix("file://")


# --- reading ---------------------------------------------------------------------------------------


class FileLists:
    """Decoded manifest segments by path. Segments never change, so what was read once stays right."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: OrderedDict[str, tuple[DataFile, ...]] = OrderedDict()
        self._files = 0
        self._lock = threading.Lock()

    def of(self, table_id: str, segments: Sequence[Segment]) -> list[DataFile]:
        """All files of the segments, in order. Raises Corrupt (`corrupt_manifest`) naming one that is missing
        or not what was committed."""
        found: dict[str, tuple[DataFile, ...]] = {}
        with self._lock:
            for segment in segments:
                if segment.path in self._known:
                    self._known.move_to_end(segment.path)
                    found[segment.path] = self._known[segment.path]
        unread = [segment for segment in segments if segment.path not in found]
        for start in range(0, len(unread), SEGMENTS_READ_AT_ONCE):
            fresh = self._read(table_id, unread[start : start + SEGMENTS_READ_AT_ONCE])
            found |= fresh
            for path, files in fresh.items():
                self.keep(path, files)
        return [file for segment in segments for file in found[segment.path]]

    def keep(self, path: str, files: tuple[DataFile, ...]) -> None:
        """Remember a segment."""
        with self._lock:
            self._files += len(files) - len(self._known.pop(path, ()))
            self._known[path] = files
            while self._files > CACHED_FILES_MAX and len(self._known) > 1:
                self._files -= len(self._known.popitem(last=False)[1])

    def _read(self, table_id: str, segments: Sequence[Segment]) -> dict[str, tuple[DataFile, ...]]:
        for segment in segments:
            fmt.check_manifest_pointer(segment.path, table_id)
        sizes = [segment.segment_size_bytes for segment in segments]
        limit = min(max(sizes), fmt.MANIFEST_SIZE_BYTES_MAX)
        try:
            contents = run(self._storage.read_many([s.path for s in segments], size_max=limit))
        except NotFound as error:
            raise Corrupt(
                f"a manifest segment of table {table_id} is missing: {error.message}",
                kind="corrupt_manifest",
                path=error.path,
            ) from None
        return {s.path: _decoded(contents[s.path], s, table_id) for s in segments}


def _decoded(data: bytes, segment: Segment, table_id: str) -> tuple[DataFile, ...]:
    if len(data) != segment.segment_size_bytes or hashlib.sha256(data).digest() != segment.sha256:
        raise Corrupt(
            f"manifest segment {segment.path}: size or SHA-256 are not those that were committed",
            kind="corrupt_manifest",
            path=segment.path,
        )
    return decode_segment(data, segment.path, table_id=table_id)


def scan(
    spark: SparkSession, storage: Storage, columns: Sequence[Column], files: Iterable[DataFile]
) -> DataFrame:
    """The rows of exactly these files, no pruning: Spark prunes by its own filters when the frame runs.

    Fails when it is made if a file is missing, and when it runs if one goes missing later.
    """
    schema = spark_schema(columns, nullable=True)
    paths = [hadoop_path(storage, file.path, glob=True) for file in files]
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.options(**_READ_OPTIONS).schema(schema).parquet(*paths)


# --- writing ---------------------------------------------------------------------------------------


def stage(
    df: DataFrame, storage: Storage, lists: FileLists, table: TableDef, *, transaction_id: str
) -> Staged:
    """Run `df` and leave its rows on storage as files of the table, durable, listed in one segment.

    Raises InvalidInput before anything runs when the frame does not fit the table (`schemas.fitted`), and
    after it when a required column holds NULLs. Files of a write that failed are left to collection.
    """
    check_session(df.sparkSession)
    ready = fitted(df, table.columns)
    identities = RandomIdentities()
    folder = fmt.data_folder(table.id, transaction_id, identities.uuid4())
    options = dict(_WRITE_OPTIONS)
    target = hadoop_path(storage, folder.rstrip("/"), glob=False)
    if target.startswith("file:"):
        options |= _LOCAL_WRITE_OPTIONS
    ready.write.options(**options).mode("errorifexists").parquet(target)
    files = _harvest(storage, table, folder)
    if not files:
        return Staged(segments=(), rows=0)
    path = fmt.manifest_path(table.id, identities.uuid7())
    content, segment = segment_of(files, path=path, table_id=table.id, schema_id=table.schema_id)
    run(storage.make_durable([file.path for file in files]))
    run(storage.put(path, content))
    lists.keep(path, decode_segment(content, path, table_id=table.id))
    return Staged(segments=(segment,), rows=segment.row_count)


def _harvest(storage: Storage, table: TableDef, folder: str) -> list[DataFile]:
    """The files of a finished write, from their footers. Spark writes a file without rows for a frame
    without rows; those are removed."""
    found = sorted(run(_listed(storage, folder)), key=lambda info: info.path)
    with ThreadPoolExecutor(FOOTER_THREADS, thread_name_prefix="alpheus-footers") as pool:
        files = list(pool.map(lambda info: _of_footer(storage, table, info), found))
    empty = [file.path for file in files if not file.row_count]
    if empty:
        run(_deleted(storage, empty))
    return [file for file in files if file.row_count]


async def _listed(storage: Storage, folder: str) -> list[ObjectInfo]:
    return [
        info
        async for info in storage.list(folder)
        # Names that Hadoop's tools hide: their own marks and checksums.
        if not info.path.removeprefix(folder).startswith((".", "_"))
    ]


async def _deleted(storage: Storage, paths: Sequence[str]) -> None:
    for path in paths:
        await storage.delete(path)


def _of_footer(storage: Storage, table: TableDef, info: ObjectInfo) -> DataFile:
    with open(_local_path(storage, info.path), "rb") as file:
        metadata = read_footer(file, info.path)
    return data_file_of_footer(info.path, info.size, metadata, table.columns, schema_id=table.schema_id)
