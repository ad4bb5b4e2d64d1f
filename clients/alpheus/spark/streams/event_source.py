"""Events of the catalog as rows: read once, and as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import types as t
from pyspark.sql.datasource import (
    DataSourceReader,
    InputPartition,
)

from alpheus.catalog import Catalog
from alpheus.feed.stream import EventStream
from alpheus.feed.stream_position import EventTerms, StreamPosition, position_of
from alpheus.models import Event
from alpheus.spark.streams.offsets import OffsetReader
from alpheus.spark.streams.options import Options
from alpheus.spark.workers.check import Travelling
from alpheus_journal.errors import InvalidInput

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


class EventPart(InputPartition):
    """The events of (after, until]. `after` None means all that are kept."""

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
    """Reads events as rows, in a task."""

    def __init__(self, options: Options, schema: t.StructType) -> None:
        self._options = options
        self._names = schema.names
        known = EVENT_SCHEMA.fields
        for field in schema.fields:
            if not any((field.name, field.dataType) == (one.name, one.dataType) for one in known):
                raise InvalidInput(
                    f"events have no column {field.name!r} of type {field.dataType.simpleString()}",
                    kind="bad_schema",
                    hint=f"the columns are {EVENT_SCHEMA.simpleString()}",
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
    """Yield a row for each recorded action, each of its side effects, each recorded read, and each change that no
    action explains."""
    changes = {(change.kind, change.name): change for change in event.changes}
    recorded = set()
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
            effects = [(action.kind, action.name, _change_type_of(before, after), before, after)]
            for also in action.details.get("also", ()):
                change = changes.get((also["kind"], also["name"]))
                paths = (change.path_before, change.path_after) if change is not None else ("", "")
                effects.append((also["kind"], also["name"], also["type"], *paths))
            for kind, name, change_type, path_before, path_after in effects:
                recorded.add((kind, name))
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
        if key not in recorded:
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


def _change_type_of(before: str, after: str) -> str | None:
    if not before and not after:
        return None
    if not before:
        return "created"
    return "updated" if after else "dropped"


class EventReader(Travelling, _Events, DataSourceReader):
    """Reads events once."""

    def partitions(self) -> Sequence[InputPartition]:
        with self._options.connect() as catalog:
            after, until = self._options.after, self._options.until
            last = catalog.at(until).version
            return [EventPart(None if after is None else catalog.at(after).version, last)]


class EventStreamReader(_Events, OffsetReader):
    """Streams events as they happen."""

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
