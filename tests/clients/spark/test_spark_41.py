"""The stream source as PySpark 4.1 calls it, without Spark.

PySpark 4.1 calls in another order than later releases, so that tests on those would miss errors. `make spark41` runs
the tests of Spark on a real PySpark 4.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

import alpheus
from alpheus.errors import Expired, NotFound
from alpheus.feed import log, stream
from alpheus.spark.streams.source import AlpheusSource

SCHEMA = pa.schema([("id", pa.int64())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


Way = Literal["running", "once", "wrapped"]


class Spark41:
    """Calls a stream as PySpark 4.1 does, in its order.

    A query that resumes from a checkpoint first asks for what is between that position and itself. Every query then
    asks for the latest position. Only then does a new query ask where it begins. AvailableNow runs one batch ("once").
    Where spark.sql.streaming.triggerAvailableNowWrapper.enabled is set ("wrapped"), it asks for the latest position
    before anything else, and runs up to that position.
    """

    def __init__(self, **options: str) -> None:
        self._options = options
        self._offsets: list[dict[str, Any]] = []
        self._is_undone = False

    def lose_commit(self) -> None:
        """Leave the last batch written down but not done, so that it comes again.

        With one batch a run, it comes alone.
        """
        self._is_undone = True

    def run(self, way: Way = "running", meanwhile: Callable[[], object] = str) -> list[list[Any]]:
        """Run the query.

        Return the ids of rows or the names of events of each batch. `meanwhile` runs once, after the first batch.
        """
        source = AlpheusSource(self._options)
        schema = source.schema()
        assert isinstance(schema, StructType)
        reader = source.streamReader(schema)
        batches = []
        try:
            fetched = reader.latestOffset() if way == "wrapped" else None
            if self._offsets:
                assert list(reader.partitions(self._offsets[-1], self._offsets[-1])) == []
            if self._is_undone:
                start = self._offsets[-2] if len(self._offsets) > 1 else reader.initialOffset()
                batches.append(self._batch(reader, start, self._offsets[-1]))
                self._is_undone = False
            while way != "once" or not batches:
                end = reader.latestOffset()
                end = end if fetched is None else fetched
                if self._offsets and end == self._offsets[-1]:
                    break
                start = self._offsets[-1] if self._offsets else reader.initialOffset()
                self._offsets.append(end)
                batches.append(self._batch(reader, start, end))
                if len(batches) == 1:
                    meanwhile()
            return batches
        finally:
            reader.stop()

    def _batch(self, reader: DataSourceStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        return [row for part in reader.partitions(start, end) for row in self._read(reader, part)]

    def _read(self, reader: DataSourceStreamReader, part: Any) -> Iterator[Any]:
        for found in reader.read(part):
            if isinstance(found, pa.RecordBatch):
                yield from found["id"].to_pylist()
            else:
                yield found[6]


@pytest.fixture(autouse=True)
def hold_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a source that has nothing new answer soon: nobody commits while it waits here."""
    wait = stream._Watch.wait
    monkeypatch.setattr(stream._Watch, "wait", lambda watch, seconds: wait(watch, seconds / 25))


@pytest.mark.parametrize("way", get_args(Way))
@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"table": "s.t"}, [1, 2, 3]),
        ({"table": "s.t", "start": "now"}, []),
        ({"table": "s.t", "startingVersion": "4"}, [2, 3]),
        ({"table": "s.t", "start": "5"}, []),
        ({"table": "s.t", "maxFilesPerTrigger": "1"}, [1, 2, 3]),
    ],
)
def test_pyspark_4_1_loses_and_doubles_no_rows(
    tmp_path: Path, options: dict[str, str], first: list[int], way: Way
) -> None:
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        for number in range(1, 4):
            catalog.append("s.t", rows(number))
        query = Spark41(catalog=url, **options)
        assert query.run(way) == [first]
        assert query.run(way) == []
        for number in range(4, 7):
            catalog.append("s.t", rows(number))
        assert query.run(way) == [[4, 5, 6]]
        assert query.run(way) == []


def test_pyspark_4_1_has_limits_from_the_second_batch_on(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/lake"
    numbers = itertools.count(1)
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)

        def three_more() -> None:
            for _ in range(3):
                catalog.append("s.t", rows(next(numbers)))

        query = Spark41(catalog=url, table="s.t", maxFilesPerTrigger="2")
        three_more()
        assert query.run(meanwhile=three_more) == [[1, 2, 3], [4, 5], [6]]
        three_more()
        assert query.run(meanwhile=three_more) == [[7, 8, 9], [10, 11], [12]]
        three_more()
        assert query.run("once", three_more) == [[13, 14, 15]]
        three_more()
        assert query.run("wrapped", three_more) == [[16, 17, 18, 19, 20, 21]]


@pytest.mark.parametrize("way", get_args(Way))
def test_pyspark_4_1_goes_on_after_a_batch_that_came_again(tmp_path: Path, way: Way) -> None:
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        catalog.append("s.t", rows(1))
        query = Spark41(catalog=url, table="s.t", maxFilesPerTrigger="1")
        assert query.run(way) == [[1]]
        catalog.append("s.t", rows(2))
        assert query.run(way) == [[2]]
        query.lose_commit()
        catalog.append("s.t", rows(3))
        catalog.append("s.t", rows(4))
        assert query.run(way) == ([[2]] if way == "once" else [[2], [3, 4]])
        assert query.run(way) == ([[3, 4]] if way == "once" else [])


@pytest.mark.parametrize("way", get_args(Way))
def test_pyspark_4_1_begins_anew_where_history_is_gone(
    tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark 4.1 restarts where history is gone.

    It asks for the head without saying where the batch begins, so that only `partitions` can find out.
    """
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        catalog.append("s.t", rows(1))
        queries = {
            kind: Spark41(catalog=url, table="s.t", onExpired=kind, outageSeconds="1")
            for kind in ("fail", "snapshot")
        }
        for query in queries.values():
            assert query.run(way) == [[1]]
        catalog.append("s.t", rows(2))
        oldest = catalog.version()
        catalog.append("s.t", rows(3))
        at, events = alpheus.Catalog.at, log.stored_events

        def check(version: Any) -> None:
            if isinstance(version, int) and version < oldest:
                raise Expired(f"version {version} is not kept", oldest=oldest)

        def kept_at(self: alpheus.Catalog, when: Any, *args: Any, **options: Any) -> Any:
            check(when)
            return at(self, when, *args, **options)

        def kept_events(session: Any, **options: Any) -> Any:
            check(options["after"])
            return events(session, **options)

        monkeypatch.setattr(alpheus.Catalog, "at", kept_at)
        monkeypatch.setattr(log, "stored_events", kept_events)
        with pytest.raises(Expired, match="not kept"):
            queries["fail"].run(way)
        assert queries["snapshot"].run(way) == [[1, 2, 3]]
        queries["snapshot"].lose_commit()
        catalog.append("s.t", rows(4))
        assert queries["snapshot"].run(way) == ([[1, 2, 3]] if way == "once" else [[1, 2, 3], [4]])


def test_pyspark_4_1_goes_on_to_the_head_where_the_table_is_idle(tmp_path: Path) -> None:
    """PySpark 4.1 moves to the head although the table is idle. Otherwise the version of its position would expire."""
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        catalog.append("s.t", rows(1))
        query = Spark41(catalog=url, table="s.t")
        assert query.run("once") == [[1]]
        catalog.create_namespace("u")
        assert query.run("once") == [[]]
        assert query.run("once") == []


@pytest.mark.parametrize("way", get_args(Way))
@pytest.mark.parametrize(
    ("options", "first"), [({}, ["", "s", "s.t"]), ({"after": "1"}, ["s.t"]), ({"start": "now"}, [])]
)
def test_pyspark_4_1_loses_and_doubles_no_events(
    tmp_path: Path, options: dict[str, str], first: list[str], way: Way
) -> None:
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        query = Spark41(catalog=url, feed="events", **options)
        assert query.run(way) == [first]
        catalog.create_namespace("u")
        assert query.run(way) == [["u"]]
        assert query.run(way) == []


def test_no_position_is_given_while_the_table_is_away(tmp_path: Path) -> None:
    """No position is given while the table is away.

    One frame is started again and again. When the table is back, its rows do not come a second time.
    """
    url = f"file://{tmp_path}/lake"

    def run(source: AlpheusSource, start: dict[str, Any] | None) -> tuple[dict[str, Any], list[int]]:
        schema = source.schema()
        assert isinstance(schema, StructType)
        reader = source.streamReader(schema)
        try:
            end = reader.latestOffset()
            begin = reader.initialOffset() if start is None else start
            told = [batch for part in reader.partitions(begin, end) for batch in reader.read(part)]
            return end, sorted(row for batch in told for row in batch["id"].to_pylist())
        finally:
            reader.stop()

    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        catalog.append("s.t", rows(1, 2))
        source = AlpheusSource({"catalog": url, "table": "s.t"})
        end, told = run(source, None)
        assert told == [1, 2]
        catalog.drop_table("s.t")
        with pytest.raises(NotFound):
            run(source, end)
        catalog.undrop("s.t")
        catalog.append("s.t", rows(3))
        assert run(source, end)[1] == [3]
