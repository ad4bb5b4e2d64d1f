"""Tables whose data files lie at a data root, through Spark: verbs, feeds, the data source and the sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alpheus_test_servers import S3Server
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.errors import AlpheusError
from alpheus.spark import SparkCatalog
from alpheus.sync.portal import run
from alpheus_journal.storage import open_storage
from alpheus_journal.testing import listed

pytestmark = SPARK_MARKS

COLUMNS = "id BIGINT, text STRING"


@pytest.fixture(params=["disk", "s3"])
def places(
    request: pytest.FixtureRequest, tmp_path: Path, lane_count: Callable[[int, int], int]
) -> tuple[str, str]:
    """Return the URL of a new catalog, and that of an empty place beside it."""
    if request.param == "disk":
        if not lane_count(0, 1):
            pytest.skip("over a disk: make slow LANE=data_roots")
        (tmp_path / "team").mkdir()
        return f"file://{tmp_path}/lake", f"file://{tmp_path}/team"
    request.getfixturevalue("hadoop_aws_jars")
    server: S3Server = request.getfixturevalue("s3_server")
    whole = server.url()
    return whole, f"{whole.partition('?')[0]}-team"


@pytest.fixture
def lake(places: tuple[str, str], spark: SparkSession) -> Iterator[SparkCatalog]:
    with alpheus.create(places[0]) as catalog:
        catalog.create_namespace("a", data_root=places[1])
        lake = SparkCatalog(spark, catalog)
        yield lake
        lake.close()


def ids(lake: SparkCatalog, name: str = "a.t") -> list[int]:
    """Return the ids that Spark reads, after a check that the library reads the same rows."""
    found = sorted(row["id"] for row in lake.read(name).collect())
    assert found == sorted(lake.catalog.read(name)["id"].to_pylist())
    return found


def files_below(url: str) -> list[str]:
    storage = open_storage(url)
    found = [path for path in run(listed(storage, "")) if path.endswith(".parquet")]
    run(storage.close())
    return found


def test_each_verb_over_a_data_root(
    lake: SparkCatalog, places: tuple[str, str], tmp_path: Path, lane_count: Callable[[int, int], int]
) -> None:
    """A short run has no stream, and no verb that takes the way of another one to the data root: verbs that change
    rows store files as append does."""
    spark = lake.spark
    has_all = bool(lane_count(0, 1))

    def frame(*values: int) -> object:
        return spark.createDataFrame([(value, str(value)) for value in values], COLUMNS)

    lake.create_table("a.t", frame(1, 2, 3))
    begin = lake.catalog.version()
    lake.append("a.t", frame(4, 5))
    lake.delete("a.t", "id = 1")
    if has_all:
        lake.update("a.t", {"text": "'x'"}, "id = 2", mode="rewrite")
        lake.merge("a.t", frame(5, 6), on="id")
        assert ids(lake) == [2, 3, 4, 5, 6]
        assert lake.read("a.t", where="id = 2").collect()[0]["text"] == "x"
    else:
        lake.append("a.t", frame(6))
    changes = lake.changes("a.t", begin, lake.catalog.version())
    assert changes.where("_change_type = 'insert'").count() >= 3
    if has_all:
        lake.compact("a.t")
        assert ids(lake) == [2, 3, 4, 5, 6]
    assert sorted(row["id"] for row in lake.at(begin).read("a.t").collect()) == [1, 2, 3]
    source = spark.read.format("alpheus").options(**lake.source_options()).option("table", "a.t").load()
    assert sorted(row["id"] for row in source.collect()) == [2, 3, 4, 5, 6]
    if has_all:
        lake.create_table("a.copy", COLUMNS)
        query = lake.write_stream("a.copy", lake.stream("a.t"), f"{tmp_path}/c", {"availableNow": True})
        query.awaitTermination()
        assert ids(lake, "a.copy") == [2, 3, 4, 5, 6]
    sink = frame(7).write.format("alpheus").options(**lake.source_options())  # type: ignore[attr-defined]
    sink.option("table", "a.t").mode("append").save()
    assert ids(lake) == [2, 3, 4, 5, 6, 7]
    options = places[0].partition("?")[2]
    assert files_below(places[1] + (f"?{options}" if options else ""))
    assert files_below(places[0]) == []
    assert lake.catalog.admin.check(footers=True).ok


def test_a_lost_file_at_a_data_root_is_named(lake: SparkCatalog, places: tuple[str, str]) -> None:
    lake.create_table("a.t", lake.spark.createDataFrame([(1, "x")], COLUMNS))
    (path,) = lake.catalog.system("files")["path"].to_pylist()
    run(lake.store_of(lake.catalog.load_table("a.t").definition).delete(path))
    # On S3 nobody looks for the file before the query runs.
    with pytest.raises((AlpheusError, PySparkException, Py4JJavaError)) as caught:
        lake.read("a.t").collect()
    assert path in str(caught.value)
