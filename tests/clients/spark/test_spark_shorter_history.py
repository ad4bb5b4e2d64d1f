"""Spark is told where a table's rules let data files go before the versions that list them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_marks import SPARK_MARKS

import alpheus
from alpheus import Catalog
from alpheus.errors import Expired
from alpheus.feed.stream_position import StreamPosition, StreamTerms
from alpheus.feed.table_stream import TableStream
from alpheus.spark import SparkCatalog
from alpheus_journal.model.history_rules import MAX_AGE, MIN_VERSIONS

pytestmark = SPARK_MARKS

ROWS = [pa.table({"id": [number]}) for number in range(4)]
OLD, START = 3, 5


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """A catalog whose table `a.t` has other rows at each of the versions 2 to 5."""
    with alpheus.create(f"file://{tmp_path}/lake") as opened:
        opened.create_namespace("a")
        opened.create_table("a.t", ROWS[0], properties={MAX_AGE: "0", MIN_VERSIONS: "1"})
        for rows in ROWS[1:]:
            opened.overwrite("a.t", rows)
        assert opened.version() == START
        yield opened


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.collect())


def test_reads_and_changes_below_the_start_are_refused(spark: Any, catalog: Catalog) -> None:
    with closing(SparkCatalog(spark, catalog)) as lake, lake.at(OLD) as held:
        assert ids(lake.read("a.t", at=OLD)) == [1]
        assert ids(held.read("a.t")) == [1]
    catalog.tags.create("kept", at=OLD)
    (one,) = catalog.admin.collect(0, allow_short=True).earlier
    assert one.start_version == catalog.version() - 1
    catalog.tags.create("late", at=2)
    with closing(SparkCatalog(spark, catalog)) as lake:
        for at in (2, "late"):
            with pytest.raises(Expired) as error:
                lake.read("a.t", at=at)
            assert error.value.kind == "files_expired"
            with lake.at(at) as reader, pytest.raises(Expired):
                reader.read("a.t")
        assert ids(lake.read("a.t", at="kept")) == [1]
        with lake.at("kept") as reader:
            assert ids(reader.read("a.t")) == [1]
        assert ids(lake.read("a.t")) == ids(lake.read("a.t", at=one.start_version)) == [3]
        with pytest.raises(Expired) as error:
            lake.changes("a.t", after=2)
        assert error.value.kind == "files_expired"
        assert ids(lake.changes("a.t", after=one.start_version)) == []
    with closing(SparkCatalog(spark, catalog, lease=False)) as lake, pytest.raises(Expired):
        lake.read("a.t", at=2)


@pytest.mark.parametrize("appends", [False, True])
@pytest.mark.parametrize("start", ["snapshot", "now"])
def test_a_batch_that_was_begun_below_the_start_of_its_table_is_an_error(
    tmp_path: Path, start: str, appends: bool
) -> None:
    """Spark has stored where a batch ends, and dies. The version of the end is kept, but not the table's data files.
    The next batch would go on in the log, and nobody would get the rows of this one."""
    rows = [pa.table({"id": pa.array([number], pa.int64())}) for number in range(5)]
    with alpheus.connect(f"file://{tmp_path}/lake", create=True) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", rows[0].schema, properties={MAX_AGE: "0", MIN_VERSIONS: "1"})
        catalog.append("s.t", rows[0])
        catalog.overwrite("s.t", rows[1])

        def stream() -> TableStream:
            table = catalog.load_table("s.t")
            terms = StreamTerms(table="s.t", start=start, on_expired="snapshot")
            return TableStream(catalog, terms, table, table.columns, hold_seconds=0.0)

        first = stream()
        begin = StreamPosition()
        if start == "now":
            begin = first.latest(begin, None, None)
            catalog.append("s.t", rows[2])
        end = first.latest(begin, None, None)
        assert first.plan(begin, end)
        first.close()
        catalog.create_namespace("another")
        catalog.compact("s.t")
        catalog.overwrite("s.t", rows[3])
        if appends:
            catalog.append("s.t", rows[4])
        catalog.create_namespace("a_third")
        (gone,) = catalog.admin.collect(0, allow_short=True).earlier
        assert gone.start_version > end.version
        again = stream()
        for _ in range(2):
            with pytest.raises(Expired, match="a batch that was begun cannot be repeated") as error:
                again.plan(begin, end)
            assert (error.value.kind, error.value.oldest) == ("files_expired", gone.start_version)
            assert "new checkpoint" in error.value.hint
        again.close()
