"""Frames of Spark under a lease: what is held, how long, and what is read once versions expire."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from spark_marks import SPARK_MARKS

import alpheus
from alpheus import Unleased
from alpheus.errors import Denied, Expired, Unavailable
from alpheus.spark import SparkCatalog
from alpheus.spark.catalog import HELD_VERSIONS_MAX
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.testing import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


pytestmark = SPARK_MARKS


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[SparkCatalog]:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("a")
        catalog.create_table("a.t", pa.table({"id": [1, 2, 3]}))  # version 2
        catalog.delete("a.t", "id = 2", mode="rewrite")  # 3
        with_lake = SparkCatalog(spark, catalog)
        yield with_lake
        with_lake.close()


def folder_of(lake: SparkCatalog) -> Path:
    return Path(lake.storage.url.removeprefix("file://"))


def held(lake: SparkCatalog) -> list[int]:
    return [one.version for one in lake.catalog.admin.leases()]


def ids(df: DataFrame) -> list[int]:
    return sorted(row.id for row in df.collect())


def expire(lake: SparkCatalog, below: int) -> None:
    asyncio.run(Lake(LocalStorage(str(folder_of(lake)))).expire(below=below))


def test_frames_and_readers_are_leased(lake: SparkCatalog) -> None:
    with lake.at(2) as reader:
        assert reader.is_leased
        assert held(lake) == [2]
        before = reader.read("a.t")
        lake.catalog.create_namespace("b")
        now = lake.read("a.t")
        lake.temp_view("a.t", as_="t_now")
        assert held(lake) == [2, 4]
        expire(lake, below=4)
        assert ids(before) == ids(reader.read("a.t")) == [1, 2, 3]
        assert reader.temp_views("a.*") == ["t"]
        assert ids(now) == [1, 3]
        assert not reader.has_lost_lease()
        with pytest.raises(Expired, match="version 2 has expired"):
            lake.read("a.t", at=2)
    assert held(lake) == [4]
    lake.close()
    assert held(lake) == []


def test_a_reader_that_lost_its_lease(lake: SparkCatalog) -> None:
    """A reader that lost its lease is refused with an error that says so, and not with damage of the catalog."""
    with lake.at(2) as reader:
        expire(lake, below=3)
        for pattern in ("lease/*", "def/table/*"):  # a collector deletes these
            for path in folder_of(lake).glob(pattern):
                path.unlink()
        with pytest.raises(Expired, match="the lease on version 2 ran out"):
            reader.read("a.t")
        assert reader.has_lost_lease()
        with pytest.raises(Expired, match="the lease on version 2 ran out"):
            reader.temp_views("a.*")


def test_only_the_last_versions_are_held(lake: SparkCatalog) -> None:
    for number in range(HELD_VERSIONS_MAX + 2):
        lake.catalog.create_namespace(f"n{number}")
        lake._hold(4 + number)
    lake._hold(6)
    last = 4 + HELD_VERSIONS_MAX + 1
    assert held(lake) == list(range(last - HELD_VERSIONS_MAX + 1, last + 1))
    lake.catalog.create_namespace("last")
    lake._hold(last + 1)
    assert 6 in held(lake), "it was asked for again since"
    assert len(held(lake)) == HELD_VERSIONS_MAX


def test_a_version_that_cannot_be_held_again(lake: SparkCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that cannot be replaced stays. It is given up with the lake, or when it can be replaced."""
    lake._hold(2)
    lake._hold(3)
    lost = lake._held[2, None]

    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("not now")

    for is_lost in (lambda: True, lambda: refuse()):
        with monkeypatch.context() as changed:
            changed.setattr(lost, "has_lost_lease", is_lost)
            changed.setattr(lake.catalog, "at", refuse)
            with pytest.raises(Unavailable, match="not now"):
                lake._hold(2)
        assert lake._held[2, None] is lost
    with monkeypatch.context() as changed:
        changed.setattr(lost, "has_lost_lease", lambda: True)
        lake._hold(2)
    assert lake._held[2, None] is not lost
    assert not lost.is_leased
    assert held(lake) == [2, 3]
    assert list(lake._held) == [(3, None), (2, None)]
    lake.close()
    assert held(lake) == []


def test_where_the_store_cannot_be_written(
    lake: SparkCatalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def put(self: LocalStorage, path: str, data: bytes) -> None:
        raise Denied("no right to write")

    monkeypatch.setattr(LocalStorage, "put", put)
    with pytest.warns(Unleased, match="no right to write"):
        assert ids(lake.read("a.t")) == [1, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with lake.at(2) as reader:
            assert not reader.is_leased
        assert ids(lake.read("a.t")) == [1, 3]
        with SparkCatalog(spark, lake.catalog, lease=False).at() as reader:
            assert not reader.is_leased
    strict = SparkCatalog(spark, lake.catalog, lease=True)
    with pytest.raises(Denied):
        strict.read("a.t")
    with pytest.raises(Denied):
        strict.at()
    with strict.at(lease=False) as reader:
        assert not reader.is_leased
