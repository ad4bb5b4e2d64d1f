"""What the data source is asked for, and what of it is refused before Spark does anything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import types as t

import alpheus
from alpheus.errors import Expired, InvalidInput, NotFound
from alpheus.spark.options import options_of
from alpheus.spark.source import Layout, check_start, check_stream, feed_schema

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
        ({"catalog": "file:///x"}, "table is missing"),
        ({"catalog": "file:///x", "table": "s.t", "feed": "events"}, "does not go with"),
        ({"catalog": "file:///x", "table": "s.t", "feed": "rowz"}, "none of rows"),
        ({"catalog": "file:///x", "table": "s.t", "maxFiles": "3"}, "no option 'maxfiles'"),
        ({"catalog": "file:///x", "table": "s.t", "maxFilesPerTrigger": "0"}, "no positive number"),
        ({"catalog": "file:///x", "table": "s.t", "start": "now", "startingVersion": "3"}, "twice"),
        ({"catalog": "file:///x", "table": "s.t", "outageSeconds": "soon"}, "no number of seconds"),
    ],
)
def test_options_that_are_refused(given: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALPHEUS_CATALOG", raising=False)
    with pytest.raises(InvalidInput, match=says):
        options_of(given)


def test_options_as_elsewhere_in_spark() -> None:
    told = options_of({"CATALOG": "file:///x", "Table": "s.t", "startingVersion": "7", "path": "ignored"})
    assert (told.start, told.feed, told.max_files) == (6, "rows", None)


def test_columns_that_are_not_as_declared(catalog: alpheus.Catalog) -> None:
    table = catalog.load_table("s.t")
    for field in (t.StructField("x", t.LongType()), t.StructField("id", t.StringType())):
        with pytest.raises(InvalidInput, match="column"):
            Layout(table, "rows", t.StructType([field]))
    catalog.update_table("s.t", add_columns={"_Change_Type": pa.string()})
    with pytest.raises(InvalidInput, match="name of the change feed"):
        feed_schema(catalog.load_table("s.t"), "changes")


def asked(catalog: alpheus.Catalog, **given: Any) -> None:
    """What `SparkCatalog.stream` asks before Spark hears of it."""
    told = {"name": "s.t", "feed": "rows", "start": "snapshot"} | given
    check_stream(catalog, told.pop("name"), told.pop("feed"), told.pop("start"), **told)


def test_streams_that_are_refused_before_they_begin(catalog: alpheus.Catalog) -> None:
    for given, kind, says in [
        ({"name": "s.zz"}, NotFound, "no table s.zz"),
        ({"on_delete": "x"}, InvalidInput, "on_delete='x' is none of fail, skip"),
        ({"on_expired": "skip"}, InvalidInput, "on_expired='skip' is none of fail, snapshot"),
        ({"max_files": 0}, InvalidInput, "max_files='0' is no positive"),
        ({"max_versions": True}, InvalidInput, "max_versions='True' is no positive"),
        ({"start": "bogus"}, InvalidInput, '\'bogus\' is no version.*"snapshot", "now"'),
        ({"start": -1}, InvalidInput, "-1 is outside"),
        ({"start": 9999}, NotFound, "no version 9999; the newest is 2"),
        ({"start": "2001-01-01T00:00:00Z"}, NotFound, "no version is as old"),
    ]:
        with pytest.raises(kind, match=says):
            asked(catalog, **given)
    with pytest.raises(NotFound, match="no version 9999"):
        check_start(catalog, 9999)  # of events
    catalog.create_table("s.fed", pa.schema([("_commit_version", pa.int64())]))
    asked(catalog, name="s.fed")
    with pytest.raises(InvalidInput, match="name of the change feed"):
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
