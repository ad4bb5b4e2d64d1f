"""Options of the data source, and which of them are refused before Spark does anything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import types as t

import alpheus
from alpheus.errors import Expired, InvalidInput, NotFound
from alpheus.feed.stream import EventStream
from alpheus.feed.stream_position import EventTerms, StreamPosition, StreamTerms, position_of
from alpheus.feed.table_stream import TableStream
from alpheus.spark.streams.layout import Layout, feed_schema
from alpheus.spark.streams.options import check_use, options_of
from alpheus.spark.streams.source import AlpheusSource, check_start, check_stream, version_of

SCHEMA = pa.schema([pa.field("id", pa.int64())])
_numbers = itertools.count()


@pytest.fixture
def catalog() -> Iterator[alpheus.Catalog]:
    with alpheus.create(f"memory://options-{next(_numbers)}") as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        yield catalog


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"table": "s.t"}, "catalog is missing"),
        ({"catalog": "memory://x", "table": "s.t"}, "memory of one process"),
        ({"catalog": "file:///x"}, r"table is missing.*saveAsTable and toTable.*lake\.create_table"),
        ({"path": "s.t"}, r"catalog is missing.*saveAsTable and toTable.*lake\.create_table"),
        ({"catalog": "file:///x", "table": "s.t", "feed": "events"}, "has no effect with"),
        ({"catalog": "file:///x", "table": "s.t", "feed": "rowz"}, "none of rows"),
        ({"catalog": "file:///x", "table": "s.t", "maxFiles": "3"}, "no option 'maxfiles'"),
        ({"catalog": "file:///x", "table": "s.t", "maxFilesPerTrigger": "0"}, "not a positive number"),
        ({"catalog": "file:///x", "table": "s.t", "start": "now", "startingVersion": "3"}, "both (name|say)"),
        ({"catalog": "file:///x", "table": "s.t", "outageSeconds": "soon"}, "not a number of seconds"),
        ({"catalog": "file:///x", "table": "s.t", "path": "s.other"}, "two tables"),
        ({"catalog": "file:///x", "path": "/lake/s.t"}, "is a location.*load"),
        ({"catalog": "file:///x", "path": "file:s.t"}, "is a location.*load"),
        ({"catalog": "file:///x", "paths": '["s.t","s.u"]'}, "'paths'.*union"),
        ({"catalog": "file:///x", "table": "s.t", "at": "3", "versionAsOf": "3"}, "both (name|say)"),
        (
            {"catalog": "file:///x", "table": "s.t", "versionAsOf": "2026-01-01"},
            "not a version.*timestampAsOf",
        ),
        ({"catalog": "file:///x", "table": "s.t", "timestampAsOf": "3"}, "not a time.*versionAsOf"),
        (
            {"catalog": "file:///x", "table": "s.t", "timestampAsOf": "2026-01-01 00:00:00"},
            r"has no time zone.*'2026-01-01 00:00:00Z' or \+01:00.*timeZone",
        ),
        ({"catalog": "file:///x", "table": "s.t", "timestampAsOf": "2026-01-01"}, "'2026-01-01 00:00:00Z'"),
        (
            {"catalog": "file:///x", "table": "s.t", "timestampAsOf": "2026-01-01 07:30"},
            "'2026-01-01 07:30:00Z'",
        ),
        (
            {"catalog": "file:///x", "table": "s.t", "timestampAsOf": "2026-01-01", "timeZone": "Mars/Base"},
            "timeZone='Mars/Base' is not a time zone",
        ),
        (
            {"catalog": "file:///x", "table": "s.t", "timestampAsOf": "2026-02-30", "timeZone": "UTC"},
            "'2026-02-30' is not a time",
        ),
        ({"catalog": "file:///x", "table": "s.t", "timeZone": "UTC"}, "timeZone has no effect without"),
        ({"catalog": "file:///x", "table": "s.t", "replaceWhere": "id = 1"}, "lake.overwrite.*where="),
        (
            {"catalog": "file:///x", "table": "s.t", "mergeSchema": "true"},
            "catalog.update_table.*add_columns=",
        ),
        ({"catalog": "file:///x", "table": "s.t", "partitionOverwriteMode": "dynamic"}, "partitions="),
        ({"catalog": "file:///x", "table": "s.t", "readChangeFeed": "true"}, "feed=changes"),
        ({"catalog": "file:///x", "table": "s.t", "skipChangeCommits": "true"}, "onDelete=skip"),
        ({"provider": "alpheus", "option.catalog": "file:///x", "catalog": "file:///x"}, "lake.create_table"),
        ({}, "without options.*lake.temp_view"),
    ],
)
def test_options_that_are_refused(given: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALPHEUS_CATALOG", raising=False)
    with pytest.raises(InvalidInput, match=says):
        options_of(given)


def test_options_as_elsewhere_in_spark() -> None:
    told = options_of({"CATALOG": "file:///x", "Table": "s.t", "startingVersion": "7", "path": "s.t"})
    assert (told.start, told.feed, told.max_files) == (6, "rows", None)
    for given, at in (
        ({"versionAsOf": "7"}, "7"),
        ({"timestampAsOf": "2026-03-01T12:00:00Z"}, "2026-03-01T12:00:00Z"),
        ({"timestampAsOf": "2026-03-01 12:00:00", "timeZone": "Asia/Kolkata"}, "2026-03-01T06:30:00+00:00"),
        ({"timestampAsOf": "2026-07-01", "timezone": "Europe/Amsterdam"}, "2026-06-30T22:00:00+00:00"),
        ({"timestampAsOf": "2026-03-29 02:30", "timeZone": "Europe/Amsterdam"}, "2026-03-29T01:30:00+00:00"),
        (
            {"timestampAsOf": "2026-03-01 12:00:00.5", "timeZone": "-01:30"},
            "2026-03-01T13:30:00.500000+00:00",
        ),
        ({"timestampAsOf": "2026-03-01 12:00:00+01:00", "timeZone": "UTC"}, "2026-03-01 12:00:00+01:00"),
    ):
        told = options_of({"catalog": "file:///x", "path": "s.t", **given})
        assert (told.table, told.at) == ("s.t", at)
        check_use({"catalog": "file:///x", "path": "s.t", **given}, "read", "rows")
        for use in ("stream", "write"):
            named = next(key for key in given if key.endswith("AsOf"))
            with pytest.raises(InvalidInput, match=f"the option {named} does nothing"):
                check_use(given, use, "rows")


@pytest.mark.parametrize(
    ("use", "feed", "given", "says"),
    [
        ("read", "rows", {"after": "3"}, r"after does nothing in reading rows once.*feed=changes"),
        ("read", "rows", {"startingVersion": "3"}, "startingversion does nothing .* a stream of feed=rows"),
        ("read", "changes", {"start": "3"}, "start does nothing .* takes after, until"),
        ("read", "changes", {"at": "3"}, "at does nothing"),
        ("stream", "rows", {"at": "3"}, "at does nothing in a stream of rows"),
        ("stream", "changes", {"after": "3"}, "after does nothing in a stream of changes.*startingversion"),
        ("stream", "events", {"maxFilesPerTrigger": "3"}, "maxfilespertrigger does nothing"),
        ("stream", "events", {"after": "3", "start": "now"}, "both say where to begin"),
        ("stream", "rows", {"names": "a.b"}, "names does nothing"),
        ("write", "rows", {"at": "3"}, "at does nothing in writing"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    use: Any, feed: Any, given: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        check_use({"Table": "s.t", "catalog": "file:///x", "feed": feed, "path": "", **given}, use, feed)


def test_the_source_asks_for_what_its_options_are(tmp_path: Path) -> None:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        given = {"catalog": catalog.url, "table": "s.t"}
    fits = {"reader": {"at": "2"}, "streamReader": {"startingVersion": "1", "maxFilesPerTrigger": "1"}}
    for method, own in fits.items():
        for other, options in fits.items():
            source = AlpheusSource(given | options)
            schema = source.schema()
            if other == method:
                assert options is own
                getattr(source, method)(schema)
            else:
                with pytest.raises(InvalidInput, match="does nothing"):
                    getattr(source, method)(schema)
    with pytest.raises(InvalidInput, match="start does nothing in writing"):
        AlpheusSource(given | {"start": "now"}).writer(
            t.StructType([t.StructField("id", t.LongType())]), False
        )


def test_events_go_on_in_their_own_catalog_alone(catalog: alpheus.Catalog) -> None:
    [*_, event] = catalog.events()
    assert version_of(catalog, event.token) == event.version
    with alpheus.create(f"memory://options-{next(_numbers)}") as other:
        for name in "abc":
            other.create_namespace(name)
        with pytest.raises(InvalidInput, match="the token is of catalog"):
            version_of(other, event.token)
        stream, strange = (EventStream(each, EventTerms(), hold_seconds=0.0) for each in (catalog, other))
        end = stream.latest(StreamPosition(), None)
        assert position_of(end.to_offset()) == end
        assert stream.latest(StreamPosition(1), None).version == 2, "one that says nothing of its catalog"
        for ask in (lambda: strange.latest(end, None), lambda: strange.plan(StreamPosition(), end)):
            with pytest.raises(InvalidInput, match=" is catalog "):
                ask()
        assert strange.head() == StreamPosition(3, catalog_id=other.info().catalog_id)
        for each in (stream, strange):
            each.close()


def test_a_version_that_is_delivered_in_part_is_finished_as_it_was_begun(catalog: alpheus.Catalog) -> None:
    """A version that is delivered in part is finished by the kind of stream that began it.

    Another kind counts other files, and would skip some.
    """

    def opened(**given: Any) -> TableStream:
        table = catalog.load_table("s.t")
        return TableStream(
            catalog, StreamTerms(table="s.t", start=2, **given), table, table.columns, hold_seconds=0.0
        )

    def numbers(*ids: int) -> pa.Table:
        return pa.table({"id": pa.array(ids, pa.int64())})

    catalog.append("s.t", numbers(0))
    with catalog.transaction() as tx:
        tx.overwrite("s.t", numbers(1))
        tx.append("s.t", numbers(2))
        tx.append("s.t", numbers(3))
    position = StreamPosition()
    changes = opened(changes=True)
    for _ in range(3):  # the beginning, the first row, and the removed rows of the overwrite
        position = changes.latest(position, 1, None)
    offset = position.to_offset()
    assert (offset["v"], offset["f"], offset["r"]) == (4, 1, "changes")
    rows = opened(on_delete="skip")
    end = StreamPosition(4, 0, position.table_id)
    for ask in (
        lambda: rows.latest(position_of(offset), 1, None),
        lambda: rows.plan(position_of(offset), end),
    ):
        with pytest.raises(
            InvalidInput, match=r"for a stream of changes, which delivered 1 files of version 4"
        ):
            ask()
    assert rows.latest(end, 1, None) == end
    unsaid = position_of({key: value for key, value in offset.items() if key != "r"})
    for start in (position, unsaid):
        assert [each.source.version for each in changes.plan(start, end)] == [4, 4, 4]


def test_columns_that_are_not_as_declared(catalog: alpheus.Catalog) -> None:
    table = catalog.load_table("s.t")
    for field in (t.StructField("x", t.LongType()), t.StructField("id", t.StringType())):
        with pytest.raises(InvalidInput, match="column"):
            Layout(table, "rows", t.StructType([field]))
    catalog.update_table("s.t", add_columns={"_Change_Type": pa.string()})
    with pytest.raises(InvalidInput, match="column of the change feed"):
        feed_schema(catalog.load_table("s.t"), "changes")


def asked(catalog: alpheus.Catalog, **given: Any) -> None:
    """Check what `SparkCatalog.stream` checks before it calls Spark."""
    told = {"name": "s.t", "feed": "rows", "start": "snapshot"} | given
    check_stream(catalog, told.pop("name"), told.pop("feed"), told.pop("start"), **told)


def test_streams_that_are_refused_before_they_begin(catalog: alpheus.Catalog) -> None:
    for given, kind, says in [
        ({"name": "s.zz"}, NotFound, "no table s.zz"),
        ({"on_delete": "x"}, InvalidInput, "on_delete='x' is none of fail, skip"),
        ({"on_expired": "skip"}, InvalidInput, "on_expired='skip' is none of fail, snapshot"),
        ({"max_files": 0}, InvalidInput, "max_files='0' is not a positive"),
        ({"max_versions": True}, InvalidInput, "max_versions='True' is not a positive"),
        ({"start": "bo gus"}, InvalidInput, '\'bo gus\' is neither a version nor.*"snapshot", "now"'),
        ({"start": "bogus"}, NotFound, "no tag bogus"),
        ({"start": -(2**33)}, InvalidInput, f"{-(2**33)} is outside"),
        ({"start": 9999}, NotFound, "no version 9999; the newest is 2"),
        ({"start": "2001-01-01T00:00:00Z"}, NotFound, "no version is as old"),
    ]:
        with pytest.raises(kind, match=says):
            asked(catalog, **given)
    with pytest.raises(NotFound, match="no version 9999"):
        check_start(catalog, 9999)  # for a stream of events
    catalog.create_table("s.fed", pa.schema([("_commit_version", pa.int64())]))
    asked(catalog, name="s.fed")
    with pytest.raises(InvalidInput, match="column of the change feed"):
        asked(catalog, name="s.fed", feed="changes")


def test_streams_that_may_go_on_from_a_checkpoint_are_not_refused(catalog: alpheus.Catalog) -> None:
    for start in ("now", "snapshot", None, 0, "2", catalog.at(2).info.created_at):
        asked(catalog, start=start, on_delete="skip", max_files=None, max_versions=3)
    catalog.rename_table("s.t", "s.u")
    asked(catalog)
    with mock.patch.object(alpheus.Catalog, "load_table", side_effect=AssertionError):
        check_start(catalog, "now")
    at = catalog.at

    def kept(when: Any, *args: Any) -> Any:
        if when == 1:
            raise Expired("version 1 is not kept", oldest=2)
        return at(when, *args)

    with mock.patch.object(catalog, "at", kept):
        asked(catalog, start=1)
