"""The Python data source "alpheus": tables, their changes and the catalog's events as frames and streams, and a sink
that writes each batch exactly once.

    spark.readStream.format("alpheus").option("catalog", url).option("table", "sales.orders").load()
    df.writeStream.format("alpheus").option("catalog", url).option("table", "mart.daily") \\
      .option("checkpointLocation", path).start()

Options, in any case. An option that would have no effect is refused.

* `catalog`: a URL. Without it, ALPHEUS_CATALOG of the driver's process.
* `storage`: where the data files are, if that differs from what the daemon says. Executors need access to the storage,
  and for `feed=events` to the catalog.
* `table`: "namespace.name". Or name the table in `load(...)`, `save(...)` or `start(...)`.
* `feed`: "rows" (appended rows), "changes" (rows with `_change_type`, `_commit_version`, `_commit_timestamp` and
  `_transaction_id`), or "events" (of the catalog, without a table).
* For reading once: `at` (rows), also spelled `versionAsOf`, or `timestampAsOf` with a time zone in the text or in the
  option `timeZone`; `after` and `until` (changes and events).
* For streams: `start` ("snapshot", "now", or the version, tag or time after which the stream begins), or
  `startingVersion` (the first version that is delivered, as elsewhere in Spark). A stream of events takes `after` as
  well as `start`.
* For streams: `maxFilesPerTrigger`, `maxVersionsPerTrigger`; `onDelete` and `onExpired`, see `SparkCatalog.stream`;
  `outageSeconds`, how long an outage may last before it ends the query.
* For events: `namespaces`, `names`, `kinds`, `actions`, see `Catalog.events`; several values are separated by commas.

PySpark 4.1 runs AvailableNow as one batch and does not announce it. So with 4.1 the first batch after each start takes
everything, whatever the limits. And AvailableNow that finds an unfinished batch does only that batch, unless
`spark.sql.streaming.triggerAvailableNowWrapper.enabled` is set.

`INSERT INTO` and `INSERT OVERWRITE` into a view `USING alpheus` do what `df.write` does in that mode: one commit on the
head. Into a view of an older version they are refused. Statements that would register a table in Spark's own catalog
(`saveAsTable`, `CREATE TABLE`) are refused where Spark announces them. It does not for `toTable`, nor for a
`CREATE TABLE` that lists its columns.

Python workers read and write the rows, with each file as a whole in memory: all columns, whatever the query needs, at
1.6 to 25 times the CPU of Spark's own Parquet reader. `SparkCatalog.read` and `SparkCatalog.changes` use that reader,
so a stream over a large table is best read with them within `foreachBatch`. A declared schema (`.schema("id BIGINT")`)
reads only its columns. There is no filter pushdown: Spark shares one list of files between all frames derived from
one, so pruning by the filter of one frame would take rows from another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema

from alpheus.catalog import Catalog, starts_of
from alpheus.feed.change_sets import ChangeReader
from alpheus.feed.former_names import find_moved
from alpheus.feed.log import follow
from alpheus.feed.stream_position import StreamPosition, StreamTerms, position_of
from alpheus.feed.table_range import open_whole, range_of
from alpheus.feed.table_stream import Slice, TableStream, check_present_name
from alpheus.models import Table
from alpheus.rows.manifest_files import FileLists
from alpheus.session.arguments import When
from alpheus.spark.streams.event_source import EVENT_SCHEMA, EventReader, EventStreamReader
from alpheus.spark.streams.layout import IN_UTC, Layout, feed_schema, parts_of, read_part
from alpheus.spark.streams.offsets import OffsetReader
from alpheus.spark.streams.options import (
    ON_DELETE,
    ON_EXPIRED,
    Feed,
    Options,
    Pinned,
    check_use,
    count_of,
    one_of,
    options_of,
)
from alpheus.spark.streams.sink import BatchWriter, StreamWriter, check_fits, leave_lease
from alpheus.spark.tables.reader import open_version
from alpheus.spark.workers.check import Travelling
from alpheus.sync.portal import run
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import Expired, InvalidInput, NotFound
from alpheus_journal.model.answers import parse_token

NAME = "alpheus"


class AlpheusSource(Travelling, DataSource):
    """See the module. Spark makes one source per frame, and passes copies of it to whatever reads the frame."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = options_of(options)
        self._given = dict(options)
        self._pinned: Pinned | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> t.StructType | str:
        """Return the table's schema when the frame is made. A frame that is read once stays at that version."""
        if self._options.feed == "events":
            return EVENT_SCHEMA
        return feed_schema(self._pin().table, self._options.feed)

    def reader(self, schema: t.StructType) -> DataSourceReader:
        check_use(self._given, "read", self._options.feed)
        if self._options.feed == "events":
            return EventReader(self._options, schema)
        check_present_name(self._pin().table, self._options.table)
        return TableReader(self._options, self._pin(), schema)

    def streamReader(self, schema: t.StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        check_use(self._given, "stream", self._options.feed)
        if self._options.feed == "events":
            return EventStreamReader(self._options, schema)
        return TableStreamReader(self._options, self._pin(), schema)

    def writer(self, schema: t.StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BatchWriter(self._options, self._pin_for_writing(schema, is_leased=True), overwrite)

    def streamWriter(self, schema: t.StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        # Spark makes more writers than it uses, and a batch is short: a lease of each would be left behind.
        return StreamWriter(self._options, self._pin_for_writing(schema, is_leased=False), overwrite)

    def _pin(self) -> Pinned:
        """Return the table that the frame reads, without its files: readers look these up."""
        if self._pinned is None:
            last = self._options.until if self._options.feed == "changes" else self._options.at
            self._pinned = _pin_table(self._options, last, is_followed=last is None)
        return self._pinned

    def _pin_for_writing(self, schema: t.StructType, *, is_leased: bool) -> Pinned:
        """Return the table at the head, so that a long stream writes to its present columns. `schema` is the
        frame's. `is_leased`: a lease keeps the files of the write."""
        if self._options.feed != "rows":
            raise InvalidInput(
                f"feed={self._options.feed} is for reading", hint="leave out feed when writing"
            )
        check_use(self._given, "write", "rows")
        own_schema = to_arrow_schema(schema, **IN_UTC)

        def check(table: Table) -> None:
            check_fits(own_schema, table.columns)

        return _pin_table(self._options, None, check=check, is_leased=is_leased)


def _pin_table(
    options: Options,
    at: str | None,
    *,
    is_followed: bool = False,
    check: Callable[[Table], None] | None = None,
    is_leased: bool = False,
) -> Pinned:
    """Look up a table and the storage, once a frame. `is_followed`: see `_find_table`. `check` raises what speaks
    against the table. `is_leased`: take a lease that keeps the files of the transaction."""
    with options.connect() as catalog:
        table = _find_table(catalog, options.table, at, is_followed=is_followed)
        if check is not None:
            check(table)
        transaction_id = RandomIdentities().uuid7()
        lease_path = leave_lease(catalog, transaction_id) if is_leased else ""
        info = catalog.info()
        return Pinned(
            table=_without_segments(table),
            storage=catalog.storage().url,
            catalog_id=info.catalog_id,
            checksums=info.format_revision >= 2,
            transaction_id=transaction_id,
            lease_path=lease_path,
        )


def _find_table(catalog: Catalog, name: str, at: str | None, *, is_followed: bool) -> Table:
    """Return a table. With `is_followed`, a table that was renamed is found by its former name.

    A stream that resumes from a checkpoint may use a former name. Only later does Spark say whether the frame is a
    stream, and whether it resumes.
    """
    try:
        table = catalog.at(at).load_table(name)
    except NotFound:
        found = find_moved(catalog, name) if is_followed else None
        if found is None:
            raise
        table = found
    if table.format != "native":
        raise InvalidInput(
            f"table {table.full_name} is an Iceberg table",
            kind="not_native",
            hint="read and write it through Iceberg",
        )
    return table


def check_stream(catalog: Catalog, name: str, feed: Feed, start: When, **rest: object) -> None:
    """Raise InvalidInput or NotFound for a stream that could not begin.

    Spark itself would find most errors only when the query starts, in another process, and report all of them alike.
    `rest` is `on_delete`, `on_expired`, `max_files` and `max_versions`; None means not given. An expired `start` and a
    former name of the table are accepted: both are right for a query that resumes from a checkpoint.
    """
    given = {key: str(value) for key, value in rest.items() if value is not None}
    one_of(given, "on_delete", ON_DELETE)
    one_of(given, "on_expired", ON_EXPIRED)
    for limit in ("max_files", "max_versions"):
        count_of(given, limit)
    try:
        if start != "snapshot":
            check_start(catalog, start)
    except InvalidInput as error:
        error.hint = 'give "snapshot", "now", a version, or a time with a zone such as 2026-03-01T12:00:00Z'
        raise
    feed_schema(_find_table(catalog, name, None, is_followed=True), feed)


def check_start(catalog: Catalog, start: When) -> None:
    """Raise InvalidInput or NotFound unless `start` is "now" or a version that exists or has expired. A tag of chosen
    objects names none."""
    if start is not None and start != "now":
        with contextlib.suppress(Expired):
            open_whole(catalog, start)


def version_of(catalog: Catalog, token: str) -> int:
    """Return the version in an event's token. Raises InvalidInput (`bad_token`) for a token of another catalog or
    another history."""
    version = parse_token(token)[1]
    with contextlib.suppress(Expired), catalog.events(after=token, until=version) as none:
        next(none, None)
    return version


def _without_segments(table: Table) -> Table:
    """Return the table without the parts that grow with its rows: it is sent with every task."""
    definition = msgspec.structs.replace(table.definition, segments=(), writer_marks={})
    return msgspec.structs.replace(table, definition=definition)


class TableReader(Travelling, DataSourceReader):
    """Reads rows or changes of a table once."""

    def __init__(self, options: Options, pinned: Pinned, schema: t.StructType) -> None:
        self._options = options
        self._table = pinned.table
        self._storage_url = pinned.storage
        self._layout = Layout(pinned.table, options.feed, schema)

    def partitions(self) -> Sequence[InputPartition]:
        with self._options.connect() as catalog:
            storage = catalog.storage()
            reader = ChangeReader(
                storage, FileLists(storage, run), self._table.id, lambda: starts_of(catalog)
            )
            if self._options.feed == "changes":
                asked = range_of(catalog, self._options.table, self._options.after, self._table.version)
                steps = follow(catalog, asked.start_trail(), asked.after, asked.until)
                sets = [found for _, changes in steps for change in changes for found in reader.read(change)]
            else:
                at = open_version(catalog, self._table.version, self._options.at)
                table = at.load_table((self._table.namespace, self._table.name))
                sets = reader.read_snapshot(table.definition, at.version, at.info.created_at)
        return parts_of(Slice(each, 0, len(each.files)) for each in sets)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(partition, self._storage_url, self._table.definition, self._layout)


class TableStreamReader(OffsetReader):
    """Streams rows or changes of a table as they are committed."""

    def __init__(self, options: Options, pinned: Pinned, schema: t.StructType) -> None:
        self._options = options
        self._table = pinned.table
        self._storage_url = pinned.storage
        self._layout = Layout(pinned.table, options.feed, schema)
        self._opened: tuple[Catalog, TableStream] | None = None

    def _stream(self) -> TableStream:
        if self._opened is None:
            options = self._options
            terms = StreamTerms(
                table=options.table,
                start=options.start,
                on_delete=options.on_delete,
                on_expired=options.on_expired,
                changes=options.feed == "changes",
                outage_seconds=options.outage_seconds,
            )
            catalog = options.connect()
            stream = TableStream(
                catalog,
                terms,
                self._table,
                self._layout.columns,
                is_whole=self._layout.is_whole,
            )
            self._opened = catalog, stream
        return self._opened[1]

    def _latest(
        self, start: StreamPosition, max_files: int | None, max_versions: int | None
    ) -> StreamPosition:
        return self._stream().latest(start, max_files, max_versions)

    def _head(self) -> StreamPosition:
        return self._stream().head()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stream().pin_head()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return parts_of(self._stream().plan(position_of(start), position_of(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(partition, self._storage_url, self._table.definition, self._layout)

    def stop(self) -> None:
        if self._opened is not None:
            catalog, stream = self._opened
            self._opened = None
            stream.close()
            catalog.close()
