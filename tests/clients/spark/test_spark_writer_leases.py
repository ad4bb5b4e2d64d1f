"""Writes by Spark while collections run in their midst: the files of a write stay until its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.errors import Expired
from alpheus.spark import SparkCatalog
from alpheus.spark.files import writes
from alpheus.transactions.core import TransactionCore
from alpheus_journal.collect import collection
from alpheus_journal.collect.store_time import read_store_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


pytestmark = SPARK_MARKS

LATER_MILLIS = 5_000


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkCatalog]:
    async def read_later(*given: object) -> int:
        return await read_store_time(*given) + LATER_MILLIS  # type: ignore[arg-type]

    monkeypatch.setattr(collection, "read_store_time", read_later)
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("a")
        catalog.create_table("a.t", pa.table({"id": pa.array([1, 2, 3], pa.int64())}))
        with_lake = SparkCatalog(spark, catalog)
        yield with_lake
        with_lake.close()


def collect(lake: SparkCatalog) -> None:
    """Collect by the minimum age 0, with something to collect."""
    folder = Path(lake.storage.url.removeprefix("file://")) / "node"
    folder.mkdir(exist_ok=True)
    (folder / "33f58438-d7c4-4d97-85e2-ec79bb0e1dc5.arrow").write_bytes(b"left by a writer that was killed")
    assert lake.catalog.admin.collect(minimum_age=0, allow_short=True).fence_version is not None


def ids(lake: SparkCatalog) -> list[int]:
    found: list[int] = lake.catalog.read("a.t")["id"].to_pylist()
    assert sorted(row.id for row in lake.read("a.t").collect()) == sorted(found)
    return sorted(found)


def leases_of_writers(lake: SparkCatalog) -> list[str]:
    """Return the transactions that hold leases. Frames that were read hold leases, too."""
    return [one.transaction_id for one in lake.catalog.admin.leases() if one.transaction_id]


def collect_after_tasks(lake: SparkCatalog, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Run a collection after each write of files. Return a list that counts them."""
    run_tasks: Callable[..., Any] = writes._run_tasks
    counted: list[int] = []

    def run_and_collect(ready: DataFrame, *given: Any) -> Any:
        reports = run_tasks(ready, *given)
        collect(lake)
        counted.append(len(reports))
        return reports

    monkeypatch.setattr(writes, "_run_tasks", run_and_collect)
    return counted


def test_writes_pass_collections(lake: SparkCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = lake.spark
    counted = collect_after_tasks(lake, monkeypatch)
    lake.append("a.t", spark.createDataFrame([(4,), (5,)], "id BIGINT"))
    assert ids(lake) == [1, 2, 3, 4, 5]
    lake.merge("a.t", spark.createDataFrame([(5,), (6,)], "id BIGINT"), on="id", mode="rewrite")
    assert ids(lake) == [1, 2, 3, 4, 5, 6]
    lake.delete("a.t", "id = 1", mode="rewrite")
    lake.compact("a.t")
    assert ids(lake) == [2, 3, 4, 5, 6]
    lake.overwrite("a.t", spark.createDataFrame([(7,)], "id BIGINT"))
    assert len(counted) >= 6
    collect(lake)
    assert ids(lake) == [7]
    assert leases_of_writers(lake) == []


def test_a_write_without_a_lease_is_refused(lake: SparkCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_none(self: TransactionCore) -> None:
        return None

    list_in_segment = writes.list_in_segment

    def list_and_collect(*given: Any) -> writes.Staged:
        staged = list_in_segment(*given)
        collect(lake)
        return staged

    monkeypatch.setattr(TransactionCore, "hold_lease", take_none)
    monkeypatch.setattr(writes, "list_in_segment", list_and_collect)
    with pytest.raises(Expired) as refused:
        lake.append("a.t", lake.spark.createDataFrame([(4,)], "id BIGINT"))
    assert refused.value.kind == "upload_expired"
    assert ids(lake) == [1, 2, 3]


def test_sinks_leave_no_lease(lake: SparkCatalog, tmp_path: Path) -> None:
    """Spark makes more writers of a stream than it uses, so these take no lease."""
    lake.spark.createDataFrame([(4,)], "id BIGINT").write.format("alpheus").mode("append").options(
        **lake.source_options()
    ).option("table", "a.t").save()
    assert leases_of_writers(lake) == []
    lake.catalog.create_table("a.u", pa.table({"id": pa.array([], pa.int64())}))
    for last in (4, 5):  # two batches
        sink = lake.stream("a.t").select("id").writeStream.format("alpheus").options(**lake.source_options())
        sink = sink.option("table", "a.u").option("checkpointLocation", f"{tmp_path}/checkpoint")
        sink.trigger(availableNow=True).start().awaitTermination(60)
        assert max(lake.catalog.read("a.u")["id"].to_pylist()) == last
        lake.catalog.append("a.t", pa.table({"id": [5]}))
    assert leases_of_writers(lake) == []
