"""The Python data source "alpheus": feeds of tables and of the catalog as streams, and a sink that writes each batch
once.

    spark.readStream.format("alpheus").option("catalog", url).option("table", "sales.orders").load()
    df.writeStream.format("alpheus").option("catalog", url).option("table", "mart.daily") \\
      .option("checkpointLocation", path).start()

Options, case ignored; one that would do nothing is refused:

* `catalog`: a URL (else ALPHEUS_CATALOG of the driver's process); `storage`: where data files are, when it is not what
  the daemon says. Executors reach the storage, for `feed=events` the catalog.
* `table`: "namespace.name", or what `load(...)`, `save(...)`, `start(...)` name. `feed`: "rows" (what was appended),
  "changes" (rows with `_change_type`, `_commit_version`, `_commit_timestamp`, `_transaction_id`), "events" (of the
  catalog; no table).
* reading once: `at` (rows; also `versionAsOf`, and `timestampAsOf` with a zone in it or the option `timeZone`), `after`
  and `until` (changes, events). A stream of events may say `after` for `start`.
* streams: `start` ("snapshot", "now", a version or time after which it begins), or `startingVersion` (the first version
  that comes, as elsewhere in Spark); `maxFilesPerTrigger`, `maxVersionsPerTrigger`; `onDelete` and `onExpired` as of
  `SparkCatalog.stream`; `outageSeconds`: how long an outage may last before it ends the query.
  PySpark 4.1 runs AvailableNow as one batch and says nothing of it. With it, therefore, the first batch after each
  start takes all there is, whatever the limits; and AvailableNow that finds a batch unfinished does that one alone,
  unless `spark.sql.streaming.triggerAvailableNowWrapper.enabled` is set.
* `namespaces`, `names`, `kinds`, `actions` of events: several with commas, as of `Catalog.events`.

`INSERT INTO` and `INSERT OVERWRITE` into a view `USING alpheus` do what `df.write` does in that mode, one commit on the
head; into a view of an older version they are refused. What would register a table in Spark's own catalog
(`saveAsTable`, `CREATE TABLE`) is refused where Spark tells of it; of `toTable`, and of `CREATE TABLE` that lists its
columns, it does not.

Rows are read and written by Python workers, each file whole in memory: all columns, whatever the query needs, at some
1.6 to 25 times the CPU of Spark's own Parquet reader. `SparkCatalog.read` and `SparkCatalog.changes` are that reader; a
stream over a large table is best read by it within `foreachBatch`. There is no filter pushdown: Spark shares one list
of files between all that is made of a frame, so that pruning by one filter takes rows from another. A declared schema
(`.schema("id BIGINT")`) reads only those columns.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
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

from alpheus.catalog import Catalog
from alpheus.feed.change_sets import CHANGE_COLUMNS, ChangeReader, ChangeSet, check_column_names
from alpheus.feed.former_names import find_moved
from alpheus.feed.log import follow
from alpheus.feed.stream import EventStream
from alpheus.feed.stream_position import EventTerms, StreamPosition, StreamTerms, position_of
from alpheus.feed.table_range import range_of
from alpheus.feed.table_stream import Slice, TableStream, check_present_name
from alpheus.models import Event, Table, time_of
from alpheus.rows.file_reader import FileReader, read_data_file
from alpheus.rows.manifest_files import FileLists
from alpheus.rows.plan import Plan, PlannedFile
from alpheus.session.arguments import When
from alpheus.spark.streams.frames import millis_of
from alpheus.spark.streams.options import (
    NO_LIMIT,
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
from alpheus.spark.streams.sink import BatchWriter, StreamWriter, check_fits
from alpheus.spark.tables.schemas import spark_schema
from alpheus.sync.portal import run
from alpheus.transactions.row_changes import CHANGE_TYPE
from alpheus_journal.errors import Expired, InvalidInput, NotFound
from alpheus_journal.model.answers import parse_token
from alpheus_journal.model.definitions import Column, TableDef
from alpheus_journal.predicate import Predicate
from alpheus_journal.storage import open_storage
from alpheus_journal.tables.data_file import DataFile

try:
    from pyspark.sql.streaming import datasource as limits  # PySpark 4.2 and up
except ImportError:  # 4.1 hands no limits over, and runs AvailableNow as one batch
    limits = None  # type: ignore[assignment]

_IN_UTC: dict[str, Any] = (  # which PySpark 4.1 has always, and takes no word about
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)

SupportsTriggerAvailableNow: type = object if limits is None else limits.SupportsTriggerAvailableNow

NAME = "alpheus"
PARTITION_FILES_MAX = 32
PARTITION_SIZE_BYTES = 64 << 20

EVENT_SCHEMA = t.StructType(
    [
        t.StructField("version", t.LongType()),
        t.StructField("created_at", t.TimestampType()),
        *[
            t.StructField(name, t.StringType())
            for name in (
                "transaction_id", "principal", "message", "kind", "name", "change_type", "action_type", "path_before",
                "path_after",
            )
        ],
    ]
)  # fmt: skip

_CHANGE_FIELDS = [
    t.StructField(CHANGE_COLUMNS[0], t.StringType()),
    t.StructField(CHANGE_COLUMNS[1], t.LongType()),
    t.StructField(CHANGE_COLUMNS[2], t.TimestampType()),
    t.StructField(CHANGE_COLUMNS[3], t.StringType()),
]


# --- the source ------------------------------------------------------------------------------------


class AlpheusSource(DataSource):
    """See the module. Spark makes one where a frame is made, and hands copies of it to all that reads."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = options_of(options)
        self._given = dict(options)
        self._pinned: Pinned | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> t.StructType | str:
        """Of the table where the frame is made; a frame read once stays at that version."""
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
        return BatchWriter(self._options, self._written(schema), overwrite)

    def streamWriter(self, schema: t.StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return StreamWriter(self._options, self._written(schema), overwrite)

    def _pin(self) -> Pinned:
        """The table as the frame reads it, without the files that it had: these are looked up by whom it takes."""
        if self._pinned is None:
            last = self._options.until if self._options.feed == "changes" else self._options.at
            self._pinned = _pinned(self._options, last, is_followed=last is None)
        return self._pinned

    def _written(self, schema: t.StructType) -> Pinned:
        """The table as it is now: a long stream writes what it has become. `schema`: of the frame."""
        if self._options.feed != "rows":
            raise InvalidInput(f"feed={self._options.feed} is for reading")
        check_use(self._given, "write", "rows")
        pinned = _pinned(self._options, None)
        check_fits(to_arrow_schema(schema, **_IN_UTC), pinned.table.columns)
        return pinned


def _pinned(options: Options, at: str | None, *, is_followed: bool = False) -> Pinned:
    """`is_followed`: as of `_found`."""
    with options.connect() as catalog:
        table = _found(catalog, options.table, at, is_followed=is_followed)
        return Pinned(table=_slim(table), storage=catalog.storage().url, catalog_id=catalog.info().catalog_id)


def _found(catalog: Catalog, name: str, at: str | None, *, is_followed: bool) -> Table:
    """`is_followed`: a table that is called otherwise now is found by the name that it had. A stream that goes on from
    a checkpoint may be asked for so; whether it does, and whether it is a stream at all, Spark says later."""
    try:
        table = catalog.at(at).load_table(name)
    except NotFound:
        found = find_moved(catalog, name) if is_followed else None
        if found is None:
            raise
        table = found
    if table.format != "native":
        raise InvalidInput("an Iceberg table is read and written through Iceberg", kind="not_native")
    return table


def check_stream(catalog: Catalog, name: str, feed: Feed, start: When, **rest: object) -> None:
    """Raises InvalidInput and NotFound for a stream that would not begin. Spark asks for it in another process, and has
    one error for all that fails there; most fails only when a query is started.

    `rest`: `on_delete`, `on_expired`, `max_files`, `max_versions`; None is left out. What is wrong only where no
    checkpoint says where to go on is not refused: a version that is not kept any more, a name that the table had.
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
        error.hint = '"snapshot", "now", a version, or a time with a zone such as 2026-03-01T12:00:00Z'
        raise
    feed_schema(_found(catalog, name, None, is_followed=True), feed)


def check_start(catalog: Catalog, start: When) -> None:
    """InvalidInput, NotFound for what is neither "now" nor a version that there is, or was."""
    if start is not None and start != "now":
        with contextlib.suppress(Expired):
            catalog.at(start)


def version_of(catalog: Catalog, token: str) -> int:
    """Which a token of an event names. InvalidInput (`bad_token`) for one of another catalog, or another history."""
    version = parse_token(token)[1]
    with contextlib.suppress(Expired), catalog.events(after=token, until=version) as none:
        next(none, None)
    return version


def _slim(table: Table) -> Table:
    """Without what grows with its rows: it travels with every task."""
    definition = msgspec.structs.replace(table.definition, segments=(), writer_marks={})
    return msgspec.structs.replace(table, definition=definition)


def feed_schema(table: Table, feed: Feed) -> t.StructType:
    schema = spark_schema(table.columns, nullable=True)
    if feed == "rows":
        return schema
    check_column_names(table.definition, "read the rows alone, or rename the column")
    return t.StructType([*schema.fields, *_CHANGE_FIELDS])


class Layout:
    """Which columns a frame has, and batches of files turned into exactly those. May be pickled.

    Raises InvalidInput (`bad_schema`) naming a declared column that is not there, or of another type.
    """

    def __init__(self, table: Table, feed: Feed, declared: t.StructType) -> None:
        self._declared = declared.json()
        whole = {field.name: field for field in feed_schema(table, feed).fields}
        for field in declared.fields:
            have = whole.get(field.name)
            if have is None:
                raise InvalidInput(
                    f"there is no column {field.name!r}",
                    kind="bad_schema",
                    hint=f"there are {', '.join(whole)[:500]}",
                )
            if have.dataType != field.dataType:
                raise InvalidInput(
                    f"column {field.name!r} is declared {field.dataType.simpleString()}, it is"
                    f" {have.dataType.simpleString()}",
                    kind="bad_schema",
                )
        names = {field.name for field in declared.fields}
        # What was required once may be missing in files of another time.
        self.columns = tuple(_loose(column) for column in table.columns if column.name in names)
        self.is_whole = len(self.columns) == len(table.columns)

    @cached_property
    def _arrow(self) -> pa.Schema:
        schema = t.StructType.fromJson(msgspec.json.decode(self._declared))
        return to_arrow_schema(schema, **_IN_UTC)

    def batch(self, rows: pa.RecordBatch, label: _Label | None) -> pa.RecordBatch:
        arrays = []
        for field in self._arrow:
            place = rows.schema.get_field_index(field.name)
            if place < 0 and label is not None and field.name in CHANGE_COLUMNS:
                value = label.values[CHANGE_COLUMNS.index(field.name)]
                array = pa.repeat(pa.scalar(value, field.type), rows.num_rows)
            else:
                array = rows.column(place)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


def _loose(column: Column) -> Column:
    return msgspec.structs.replace(
        column,
        nullable=True,
        fields=tuple(_loose(field) for field in column.fields),
        value=None if column.value is None else _loose(column.value),
        element=None if column.element is None else _loose(column.element),
    )


# --- parts of a table ------------------------------------------------------------------------------


class _Label(msgspec.Struct, frozen=True):
    """Values of the columns of a change."""

    change_type: str | None  # None: the file says it
    version: int
    millis: int
    transaction_id: str | None

    @property
    def values(self) -> tuple[Any, ...]:
        return (self.change_type, self.version, time_of(self.millis), self.transaction_id)


class _Task(msgspec.Struct, frozen=True):
    """A file that a task reads."""

    planned: PlannedFile
    chosen: Predicate | None
    label: _Label


class FilePart(InputPartition):
    """Files that one task reads."""

    def __init__(self, tasks: Sequence[_Task]) -> None:
        super().__init__(None)
        self.tasks = tuple(tasks)


def parts_of(slices: Iterable[Slice]) -> list[InputPartition]:
    """Tasks of about equal work: many small files, or one large one."""
    parts: list[InputPartition] = []
    tasks: list[_Task] = []
    size = 0
    for each in slices:
        for file in each.source.files[each.start : each.stop]:
            if tasks and (size + file.size_bytes > PARTITION_SIZE_BYTES or len(tasks) == PARTITION_FILES_MAX):
                parts.append(FilePart(tasks))
                tasks, size = [], 0
            tasks.append(_task(each.source, file))
            size += file.size_bytes
    if tasks:
        parts.append(FilePart(tasks))
    return parts


def _task(source: ChangeSet, file: DataFile) -> _Task:
    # Names and sizes alone: statistics of many columns would be most of the task.
    slim = DataFile(path=file.path, row_count=file.row_count, size_bytes=file.size_bytes)
    planned = PlannedFile(
        file=slim, sequence=0, predicates=source.hidden, is_filtered=source.chosen is not None
    )
    label = _Label(source.change_type, source.version, millis_of(source.created_at), source.transaction_id)
    return _Task(planned, source.chosen, label)


def read_part(
    part: InputPartition, storage_url: str, table: TableDef, layout: Layout
) -> Iterator[pa.RecordBatch]:
    """In a task. Spark asks for a part of its own when there is none; that has no rows."""
    if not isinstance(part, FilePart):
        return
    storage = open_storage(storage_url)
    try:
        for task in part.tasks:
            columns = layout.columns if task.label.change_type is not None else (*layout.columns, CHANGE_TYPE)
            plan = Plan(table=table, where=task.chosen, files=(), skipped=())
            data = run(read_data_file(storage, task.planned.file))
            for batch in FileReader(plan, columns).rows(data, task.planned):
                yield layout.batch(batch, task.label)
    finally:
        run(storage.close())


class TableReader(DataSourceReader):
    """Rows, or changes, of a table, read once."""

    def __init__(self, options: Options, pinned: Pinned, schema: t.StructType) -> None:
        self._options = options
        self._table = pinned.table
        self._storage_url = pinned.storage
        self._layout = Layout(pinned.table, options.feed, schema)

    def partitions(self) -> Sequence[InputPartition]:
        with self._options.connect() as catalog:
            storage = catalog.storage()
            reader = ChangeReader(storage, FileLists(storage, run), self._table.id)
            if self._options.feed == "changes":
                asked = range_of(catalog, self._options.table, self._options.after, self._table.version)
                steps = follow(catalog, asked.start_trail(), asked.after, asked.until)
                sets = [found for _, changes in steps for change in changes for found in reader.read(change)]
            else:
                at = catalog.at(self._table.version)
                table = at.load_table((self._table.namespace, self._table.name))
                sets = reader.read_snapshot(table.definition, at.version, at.info.created_at)
        return parts_of(Slice(each, 0, len(each.files)) for each in sets)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(partition, self._storage_url, self._table.definition, self._layout)


# --- streams ---------------------------------------------------------------------------------------


class _Offsets(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """What both streams have to do with Spark's own calls."""

    _options: Options
    _last: StreamPosition | None = None

    def _latest(
        self, start: StreamPosition, max_files: int | None, max_versions: int | None
    ) -> StreamPosition:
        raise NotImplementedError

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return StreamPosition().to_offset()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        if self._options.max_files is None and self._options.max_versions is None:
            return limits.ReadAllAvailable()
        return limits.ReadMaxFiles(self._options.max_files or NO_LIMIT)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """PySpark 4.1 gives neither: then a batch begins where the one before ended. The first after a start, new or
        from a checkpoint, has no limits: by AvailableNow, of which 4.1 says nothing, there is no other."""
        begin = self._last if start is None else position_of(start)
        if begin is None:
            self._last = self._head()
        elif limits is not None and isinstance(limit, limits.ReadAllAvailable):
            self._last = self._latest(begin, None, None)
        else:
            files = self._options.max_files if limit is None else limit.max_files
            self._last = self._latest(begin, files, self._options.max_versions)
        return self._last.to_offset()

    def _head(self) -> StreamPosition:
        raise NotImplementedError


class TableStreamReader(_Offsets):
    """Rows, or changes, of a table, as they are committed."""

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


# --- events ----------------------------------------------------------------------------------------


class EventPart(InputPartition):
    """Events of (after, until]; `after` None: all that is kept."""

    def __init__(self, after: int | None, until: int) -> None:
        super().__init__(None)
        self.after = after
        self.until = until


def _event_terms(options: Options) -> EventTerms:
    return EventTerms(
        start=options.after if options.after is not None or options.start == "snapshot" else options.start,
        namespaces=options.namespaces,
        names=options.names,
        kinds=options.kinds,
        actions=options.actions,
        outage_seconds=options.outage_seconds,
    )


class _Events:
    """Rows of events, in a task."""

    def __init__(self, options: Options, schema: t.StructType) -> None:
        self._options = options
        self._names = schema.names
        known = EVENT_SCHEMA.fields
        for field in schema.fields:
            if not any((field.name, field.dataType) == (one.name, one.dataType) for one in known):
                raise InvalidInput(
                    f"events have no column {field.name!r} of type {field.dataType.simpleString()}",
                    kind="bad_schema",
                    hint=EVENT_SCHEMA.simpleString(),
                )

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if not isinstance(partition, EventPart):
            return
        with self._options.connect() as catalog:
            terms = _event_terms(self._options)
            with catalog.events(after=partition.after, until=partition.until, **terms.filter()) as events:
                for event in events:
                    for row in event_rows(event):
                        yield tuple(row[name] for name in self._names)


def event_rows(event: Event) -> Iterator[dict[str, Any]]:
    """One row for each recorded action and what it did besides, for each recorded read, and for each change that no
    action tells of."""
    changes = {(change.kind, change.name): change for change in event.changes}
    told = set()
    base = {"version": event.version, "created_at": event.created_at}
    nobody = {"transaction_id": None, "principal": None, "message": None, "action_type": None}
    for transaction in event.transactions:
        who = base | {
            "transaction_id": transaction.id,
            "principal": transaction.principal,
            "message": transaction.message,
        }
        for action in transaction.actions:
            before, after = action.details.get("path_before", ""), action.details.get("path_after", "")
            effects = [(action.kind, action.name, _type_of(before, after), before, after)]
            for also in action.details.get("also", ()):
                change = changes.get((also["kind"], also["name"]))
                paths = (change.path_before, change.path_after) if change is not None else ("", "")
                effects.append((also["kind"], also["name"], also["type"], *paths))
            for kind, name, change_type, path_before, path_after in effects:
                told.add((kind, name))
                yield who | {
                    "kind": kind,
                    "name": name,
                    "change_type": change_type,
                    "action_type": action.type,
                    "path_before": path_before or None,
                    "path_after": path_after or None,
                }
        for read in transaction.reads:
            yield who | {
                "kind": read.kind,
                "name": read.name,
                "change_type": None,
                "action_type": read.type,
                "path_before": None,
                "path_after": None,
            }
    for key, change in changes.items():
        if key not in told:
            yield (
                base
                | nobody
                | {
                    "kind": change.kind,
                    "name": change.name,
                    "change_type": change.type,
                    "path_before": change.path_before or None,
                    "path_after": change.path_after or None,
                }
            )


def _type_of(before: str, after: str) -> str | None:
    if not before and not after:
        return None
    if not before:
        return "created"
    return "updated" if after else "dropped"


class EventReader(_Events, DataSourceReader):
    """Events, read once."""

    def partitions(self) -> Sequence[InputPartition]:
        with self._options.connect() as catalog:
            after, until = self._options.after, self._options.until
            last = catalog.at(until).version
            return [EventPart(None if after is None else catalog.at(after).version, last)]


class EventStreamReader(_Events, _Offsets):
    """Events as they happen."""

    def __init__(self, options: Options, schema: t.StructType) -> None:
        super().__init__(options, schema)
        self._opened: tuple[Catalog, EventStream] | None = None

    def _stream(self) -> EventStream:
        if self._opened is None:
            catalog = self._options.connect()
            self._opened = catalog, EventStream(catalog, _event_terms(self._options))
        return self._opened[1]

    def _latest(
        self, start: StreamPosition, max_files: int | None, max_versions: int | None
    ) -> StreamPosition:
        return self._stream().latest(start, max_versions)

    def _head(self) -> StreamPosition:
        return self._stream().head()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stream().pin_head()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        span = self._stream().plan(position_of(start), position_of(end))
        return [] if span is None else [EventPart(*span)]

    def stop(self) -> None:
        if self._opened is not None:
            catalog, stream = self._opened
            self._opened = None
            stream.close()
            catalog.close()
