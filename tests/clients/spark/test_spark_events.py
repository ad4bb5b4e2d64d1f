"""Events of the catalog as rows of a data source, without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
import pytest

import alpheus
from alpheus.feed.stream import EventStream
from alpheus.feed.stream_position import EventTerms, StreamPosition
from alpheus.spark.streams.event_source import event_rows

_numbers = itertools.count()


@pytest.fixture
def catalog() -> Iterator[alpheus.Catalog]:
    with alpheus.create(f"memory://events-{next(_numbers)}") as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", pa.schema([pa.field("id", pa.int64())]))
        yield catalog


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def test_events_in_batches(catalog: alpheus.Catalog) -> None:
    stream = EventStream(catalog, EventTerms(), hold_seconds=0.0)
    position = stream.latest(StreamPosition(), 2)
    assert stream.plan(StreamPosition(), position) == (None, 1)
    end = stream.latest(position, 2)
    assert stream.plan(position, end) == (1, 2)
    assert stream.latest(end, 2) == end
    only = EventStream(catalog, EventTerms(start="now", names=("s.t",)), hold_seconds=0.0)
    begin = only.latest(StreamPosition(), None)
    assert (begin.version, only.plan(StreamPosition(), begin)) == (2, None)
    catalog.create_namespace("elsewhere")
    assert only.latest(begin, None) == begin
    catalog.append("s.t", rows(1))
    assert only.plan(begin, only.latest(begin, None)) == (2, 4)


def test_rows_of_events(catalog: alpheus.Catalog) -> None:
    with catalog.transaction(message="why") as tx:
        tx.append("s.t", rows(1))
        tx.rename_table("s.t", "s.u")
    catalog.drop_namespace("s", cascade=True)
    told = [
        tuple(row[key] for key in ("version", "message", "kind", "name", "change_type", "action_type"))
        for event in catalog.events(after=2)
        for row in event_rows(event)
    ]
    assert told == [
        (3, "why", "table", "s.t", "updated", "TABLE_INSERT"),
        (3, "why", "table", "s.t", "dropped", "TABLE_RENAME"),
        (3, "why", "table", "s.u", "created", "TABLE_RENAME"),
        (4, "", "namespace", "s", "dropped", "NAMESPACE_DROP"),
        (4, "", "table", "s.u", "dropped", "NAMESPACE_DROP"),
    ]
