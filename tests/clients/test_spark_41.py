"""The stream source as PySpark 4.1 asks it, without Spark: in another order than later releases, so that no test on one
of those would see it. `make spark41` runs the tests of Spark on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

import alpheus
from alpheus.errors import NotFound
from alpheus.spark.source import AlpheusSource

SCHEMA = pa.schema([("id", pa.int64())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


class Spark41:
    """What PySpark 4.1 asks of a stream, in its order: for the latest position before any other, and for what lies
    between a checkpoint and itself when a query goes on from one, but not by AvailableNow."""

    def __init__(self, **options: str) -> None:
        self._options = options
        self._offsets: list[dict[str, Any]] = []

    def run(self, *, available_now: bool) -> list[list[Any]]:
        """What each batch brought: ids of rows, names of events."""
        source = AlpheusSource(self._options)
        schema = source.schema()
        assert isinstance(schema, StructType)
        reader = source.streamReader(schema)
        batches = []
        try:
            fetched = reader.latestOffset() if available_now else None
            if self._offsets and not available_now:
                assert list(reader.partitions(self._offsets[-1], self._offsets[-1])) == []
            while True:
                end = reader.latestOffset() if fetched is None else fetched
                if self._offsets and end == self._offsets[-1]:
                    return batches
                start = self._offsets[-1] if self._offsets else reader.initialOffset()
                self._offsets.append(end)
                batches.append(
                    [row for part in reader.partitions(start, end) for row in self._read(reader, part)]
                )
        finally:
            reader.stop()

    def _read(self, reader: DataSourceStreamReader, part: Any) -> Iterator[Any]:
        for found in reader.read(part):
            if isinstance(found, pa.RecordBatch):
                yield from found["id"].to_pylist()
            else:
                yield found[6]


@pytest.mark.parametrize("available_now", [True, False])
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
    tmp_path: Path, options: dict[str, str], first: list[int], available_now: bool
) -> None:
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        for number in range(1, 4):
            catalog.append("s.t", rows(number))
        query = Spark41(catalog=url, **options)
        assert query.run(available_now=available_now) == [first]
        assert query.run(available_now=available_now) == []
        for number in range(4, 7):
            catalog.append("s.t", rows(number))
        later = query.run(available_now=available_now)
        is_bounded = "maxFilesPerTrigger" in options and not available_now
        assert later == ([[4], [5], [6]] if is_bounded else [[4, 5, 6]])
        assert query.run(available_now=available_now) == []


@pytest.mark.parametrize("available_now", [True, False])
@pytest.mark.parametrize(
    ("options", "first"), [({}, ["", "s", "s.t"]), ({"after": "1"}, ["s.t"]), ({"start": "now"}, [])]
)
def test_pyspark_4_1_loses_and_doubles_no_events(
    tmp_path: Path, options: dict[str, str], first: list[str], available_now: bool
) -> None:
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        query = Spark41(catalog=url, feed="events", **options)
        assert query.run(available_now=available_now) == [first]
        catalog.create_namespace("u")
        assert query.run(available_now=available_now) == [["u"]]
        assert query.run(available_now=available_now) == []


def test_no_position_is_given_while_the_table_is_away(tmp_path: Path) -> None:
    """One frame is started again and again; when the table is back, its rows are not told a second time."""
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
