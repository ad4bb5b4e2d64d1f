"""A plan of a frame over S3 asks the store for little: requests by kind, for one file and for a hundred thousand.

The files are listed in manifest segments, and no store has them: a plan that looked at a data file would show it.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from alpheus_test_servers import S3Server
from pyspark.sql import DataFrame, SparkSession
from spark_marks import SPARK_MARKS
from store_proxy import StoreProxy

import alpheus
from alpheus.spark import SparkCatalog
from alpheus.sync.portal import run
from alpheus_journal import format as fmt
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.storage import ObjectInfo
from alpheus_journal.tables.columns import encode_bound
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import segment_of

pytestmark = [*SPARK_MARKS, pytest.mark.slow]  # all of them belong to the lane spark_s3

BUCKET = f"plans-{uuid.uuid4().hex[:12]}"
"""Hadoop keeps one way to a bucket, so the proxy has a bucket of its own."""

ROWS = 1000
"""Rows of a file. The ids of files do not overlap."""
FILE_SIZE_BYTES = 1 << 20
SCHEMA = pa.schema(
    [("id", pa.int64()), ("country", pa.string()), ("customer", pa.int64()), ("v", pa.float64())]
)


class Rig(NamedTuple):
    """An empty table `s.t` of a catalog behind the proxy."""

    spark: SparkSession
    store: StoreProxy
    url: str


@pytest.fixture(scope="module")
def store(on_s3: S3Server) -> Iterator[StoreProxy]:
    with on_s3.client() as s3:
        s3.create_bucket(Bucket=BUCKET)
    with StoreProxy(on_s3.port) as store:
        yield store


@pytest.fixture
def rig(store: StoreProxy, spark: SparkSession) -> Rig:
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}?endpoint_url={store.endpoint}&self_test=false"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
    return Rig(spark, store, url)


def list_unstored_files(rig: Rig, *ends: int) -> None:
    """List files in manifest segments of the table, by one commit each: those with the numbers below the first end,
    then those below the next end. They are stored nowhere, so the commits' look at each of them is answered here."""

    async def stat_many(storage: Any, paths: Sequence[str]) -> dict[str, ObjectInfo | None]:
        now = time.time_ns() // 1_000_000
        return {path: ObjectInfo(path, FILE_SIZE_BYTES, now, "") for path in paths}

    with pytest.MonkeyPatch.context() as patch, alpheus.connect(rig.url) as catalog:
        storage, table = catalog.storage(), catalog.load_table("s.t").definition
        patch.setattr(type(storage), "stat_many", stat_many)
        for begin, end in itertools.pairwise((0, *ends)):
            with catalog.transaction() as tx:
                folder = fmt.data_folder(table.id, tx.id, RandomIdentities().uuid4())
                files = [make_entry(table, folder, number) for number in range(begin, end)]
                path = fmt.manifest_path(table.id, RandomIdentities().uuid7())
                content, segment = segment_of(files, path=path, table_id=table.id, schema_id=table.schema_id)
                run(storage.put(path, content))
                tx.append_segments("s.t", [segment])


def make_entry(table: TableDef, folder: str, number: int) -> DataFile:
    counts = {column.id: ROWS for column in table.columns}
    first = number * ROWS
    return DataFile(
        path=f"{folder}part-{number:06d}.parquet",
        row_count=ROWS,
        size_bytes=FILE_SIZE_BYTES,
        value_counts=counts,
        null_counts=dict.fromkeys(counts, 0),
        lower_bounds={1: encode_bound(table.columns[0], first), 2: b"AT"},
        upper_bounds={1: encode_bound(table.columns[0], first + ROWS - 1), 2: b"SE"},
    )


def plan(df: DataFrame) -> int:
    """Plan the frame until Spark knows its tasks, and return the number of its files."""
    execution: Any = df._jdf.queryExecution()
    execution.executedPlan()
    assert execution.toRdd().getNumPartitions() > 0
    return len(df._jdf.inputFiles())  # PySpark's own method makes a call for each file


def ask(rig: Rig, what: str, act: Callable[[], DataFrame], files: int) -> dict[str, int]:
    """Make a frame and plan it. Return the number of requests by kind, after a check that the frame has these files.

    The look whether the head has moved is left out: one request, and on a slow machine another one, which goes by time.
    """
    rig.store.clear()
    started = time.perf_counter()
    found = plan(act())
    took = time.perf_counter() - started
    asked = {f"{kind.verb} {kind.place}": count for kind, count in rig.store.count_kinds().items()}
    print(f"{files} files, {what}: {asked}, {took:.2f} s")
    assert found == files
    return {kind: count for kind, count in asked.items() if not kind.endswith(" vn")}


@pytest.mark.parametrize("files", [1, 100, 10_000, 100_000])
def test_the_requests_of_a_plan(rig: Rig, lane_count: Callable[[int, int], int], files: int) -> None:
    """A plan asks for the definition of a table and for its one segment, which this process has not read, whatever the
    number of files. Nothing is listed, and no data file is asked for. The session has 1 GB of heap."""
    if files > lane_count(100, 100_000):
        pytest.skip("make slow LANE=spark_s3")
    list_unstored_files(rig, files)
    with alpheus.connect(rig.url) as catalog:
        lake = SparkCatalog(rig.spark, catalog, lease=False)
        assert catalog.version() == 3
        first = ask(rig, "first", lambda: lake.read("s.t"), files)
        assert ask(rig, "again", lambda: lake.read("s.t"), files) == {}
        last = f"id = {ROWS * files - 1}"
        assert ask(rig, "by a condition", lambda: lake.read("s.t", where=last), 1) == {}
        lake.close()
    assert first == {"GET def": 1, "GET manifest": 1}


@pytest.mark.usefixtures("only_slow")
def test_each_segment_is_read_once(rig: Rig) -> None:
    """A plan reads the segments that many appends left, each by one request."""
    list_unstored_files(rig, *range(10, 260, 10))
    with alpheus.connect(rig.url) as catalog:
        lake = SparkCatalog(rig.spark, catalog, lease=False)
        segments = len(catalog.load_table("s.t").definition.segments)
        assert 1 < segments < 25, "merged in part"
        assert ask(rig, "first", lambda: lake.read("s.t"), 250) == {"GET manifest": segments}
        list_unstored_files(rig, 250, 260)
        fresh = ask(rig, "after another append", lambda: lake.read("s.t"), 510)
        lake.close()
    assert fresh["GET manifest"] <= 2, "of the segments only those are read that the appends made"
