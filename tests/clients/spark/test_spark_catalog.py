"""`SparkCatalog` on real Spark: Spark and pyarrow read what was written, also at pinned versions."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake_folder import folder_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.errors import AlreadyExists, Conflict, Corrupt, Expired, InvalidInput, NotFound
from alpheus.spark import SparkCatalog
from alpheus.sync.portal import run
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.testing import Lake, listed

pytestmark = SPARK_MARKS


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, lake_url: str) -> Iterator[SparkCatalog]:
    with alpheus.create(lake_url) as catalog:
        catalog.create_namespace("sales")
        yield SparkCatalog(spark, catalog)
    assert not list((tmp_path / "lake").rglob("*.crc")), "no checksum files beside the data"


def ids(df: DataFrame) -> list[int]:
    return sorted(row["id"] for row in df.select("id").collect())


NESTED = """id BIGINT NOT NULL, flag BOOLEAN, small SMALLINT, whole INT, ratio FLOAT, exact DOUBLE,
    price DECIMAL(20, 3), name STRING, raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ,
    tags ARRAY<STRING>, parts ARRAY<STRUCT<c: STRING, d: BIGINT>>, attributes MAP<STRING, ARRAY<INT>>,
    place STRUCT<lat: DOUBLE, inner: STRUCT<n: INT>>"""
MOMENT = dt.datetime(1890, 1, 2, 3, 4, 5, 678901)
ROW = {
    "id": 1, "flag": True, "small": 2, "whole": 3, "ratio": 0.5, "exact": 0.25, "price": Decimal("12.345"),
    "name": "Straße", "raw": b"\x00\xff", "day": dt.date(1582, 10, 4), "at": MOMENT.replace(tzinfo=dt.UTC),
    "local": MOMENT, "tags": ["a", None], "parts": [{"c": "x", "d": 7}, None], "attributes": {"k": [1, None]},
    "place": {"lat": 1.5, "inner": {"n": 9}},
}  # fmt: skip
EMPTY_ROW = {key: 2 if key == "id" else None for key in ROW}


def rows_of(df: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in df.orderBy("id").collect()]


def test_all_types_nested_ones_too_between_spark_and_pyarrow(lake: SparkCatalog) -> None:
    """Spark and pyarrow read all types that the other wrote.

    Spark gives list elements and map entries no field ids, and pyarrow does.
    """
    lake.create_table("sales.wide", NESTED)
    schema = lake.spark.createDataFrame([], NESTED).schema
    lake.append("sales.wide", lake.spark.createDataFrame([tuple(ROW.values())], schema))
    lake.catalog.append(
        "sales.wide", pa.Table.from_pylist([EMPTY_ROW], lake.catalog.load_table("sales.wide").schema)
    )
    lake.catalog.append(
        "sales.wide", pa.Table.from_pylist([ROW | {"id": 3}], lake.catalog.load_table("sales.wide").schema)
    )
    expected = [ROW, EMPTY_ROW, ROW | {"id": 3}]
    in_spark = rows_of(lake.read("sales.wide").withColumn("at", f.col("at").cast("string")))
    text = "1890-01-02 03:04:05.678901"
    assert in_spark == [row | {"at": text if row["at"] else None} for row in expected]
    in_arrow = sorted(lake.catalog.read("sales.wide").to_pylist(), key=lambda row: row["id"])
    assert [row | {"attributes": dict(row["attributes"] or ()) or None} for row in in_arrow] == expected
    assert lake.catalog.admin.check().ok


def test_a_dataframe_is_pinned_and_a_write_is_one_version(lake: SparkCatalog, spark: SparkSession) -> None:
    created = lake.create_table("sales.orders", spark.range(3))
    assert created.rows_added == 3
    before = lake.read("sales.orders")
    appended = lake.append("sales.orders", spark.range(3, 5))
    assert (appended.version, appended.rows_added) == (created.version + 1, 2)
    replaced = lake.overwrite("sales.orders", spark.range(10, 11))
    assert (replaced.rows_added, replaced.rows_removed) == (1, 5)
    assert ids(before) == [0, 1, 2]
    assert ids(lake.read("sales.orders", at=appended.version)) == [0, 1, 2, 3, 4]
    assert ids(lake.read("sales.orders")) == [10]
    assert lake.read("sales.orders", columns=["id"]).columns == ["id"]
    with pytest.raises(InvalidInput, match=r"columns \['x'\] are not in the table"):
        lake.read("sales.orders", columns=["x"])


def test_no_rows(lake: SparkCatalog, spark: SparkSession) -> None:
    nobody = spark.range(5).where("id > 9").repartition(3)
    lake.create_table("sales.orders", nobody)
    assert lake.catalog.load_table("sales.orders").file_count == 0
    read = lake.read("sales.orders")
    assert (ids(read), read.columns) == ([], ["id"])
    lake.append("sales.orders", spark.range(2))
    head = lake.catalog.version()
    nothing = lake.append("sales.orders", nobody)
    assert (nothing.version, nothing.transaction_id, nothing.rows_added) == (head, "", 0)
    assert lake.catalog.version() == head
    assert lake.overwrite("sales.orders", nobody).rows_removed == 2
    assert ids(lake.read("sales.orders")) == []
    named = {p for c in [lake.catalog] for p in _data_files(c, "sales.orders")}
    assert named == set()


def _data_files(catalog: alpheus.Catalog, name: str) -> list[str]:
    table = catalog.load_table(name).definition
    from alpheus.rows.manifest_files import FileLists
    from alpheus.sync.portal import run

    return [file.path for file in FileLists(catalog.storage(), run).of(table.id, table.segments)]


def test_columns_go_by_name_and_types_widen(lake: SparkCatalog, spark: SparkSession) -> None:
    lake.create_table(
        "sales.orders",
        "id BIGINT NOT NULL, Price DECIMAL(12,2), note STRING, place STRUCT<a: BIGINT, b: STRING>",
    )
    lake.append(
        "sales.orders",
        spark.sql(
            "SELECT named_struct('B', 'x', 'a', 1) AS place, CAST(3 AS INT) AS PRICE, CAST(1 AS SMALLINT) AS ID"
        ),
    )
    [row] = rows_of(lake.read("sales.orders"))
    assert row == {"id": 1, "Price": Decimal("3.00"), "note": None, "place": {"a": 1, "b": "x"}}


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT 1 AS id, 2 AS stranger", "'stranger' is not in the table"),
        ("SELECT 'x' AS note", "'id' is required, but missing"),
        ("SELECT '1' AS id", "'id' has type string, the table has bigint"),
        ("SELECT 1.5D AS id", "'id' has type double"),
        ("SELECT 1 AS id, 1 AS ID", "'ID' appears twice"),
        ("SELECT 1 AS id, named_struct('a', 'x') AS place", "'place.a' has type string"),
        ("SELECT 1 AS id, named_struct('q', 1) AS place", "'place.q' is not in the table"),
        ("SELECT 1 AS id, CAST(1 AS DECIMAL(13, 2)) AS price", "'price' has type decimal"),
        ("SELECT 1 AS id, current_timestamp() AS local", "'local' has type timestamp,"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_before_anything_runs(
    query: str, says: str, lake: SparkCatalog, spark: SparkSession
) -> None:
    lake.create_table(
        "sales.orders",
        "id BIGINT NOT NULL, note STRING, place STRUCT<a: BIGINT>, price DECIMAL(12,2), local TIMESTAMP_NTZ",
    )
    head = lake.catalog.version()
    with pytest.raises(InvalidInput, match=says):
        lake.append("sales.orders", spark.sql(query))
    assert lake.catalog.version() == head
    assert not run(listed(lake.storage, "data/"))


def test_a_null_in_a_required_column_is_refused(lake: SparkCatalog, spark: SparkSession) -> None:
    lake.create_table("sales.orders", "id BIGINT NOT NULL, note STRING")
    lake.append("sales.orders", spark.createDataFrame([(1, None)], "id BIGINT, note STRING"))
    with pytest.raises(InvalidInput, match="'id' is required, but holds NULL"):
        lake.append("sales.orders", spark.createDataFrame([(None, "x")], "id BIGINT, note STRING"))
    assert ids(lake.read("sales.orders")) == [1]


REQUIRED = pa.schema(
    [
        pa.field("st", pa.struct([pa.field("q", pa.int32(), False)])),
        pa.field("l", pa.list_(pa.field("element", pa.struct([pa.field("q", pa.string(), False)])))),
        pa.field("e", pa.list_(pa.field("element", pa.int32(), False))),
        pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int64(), False))),
    ]
)
NULLS = {
    "st.q": "named_struct('q', CAST(NULL AS INT)) AS st",
    "l.element.q": "array(named_struct('q', 'a'), NULL, named_struct('q', CAST(NULL AS STRING))) AS l",
    "e.element": "array(1, NULL) AS e",
    "m.value": "map('a', 1L, 'b', CAST(NULL AS BIGINT)) AS m",
}


def test_a_null_in_a_required_nested_column_is_refused(
    lake: SparkCatalog, spark: SparkSession, lane_count: Callable[[int, int], int]
) -> None:
    """The error names the path, and nothing is committed. NULL parents and empty lists are accepted from frames that
    allow NULL everywhere. A short run has a list in a struct and a map."""
    lake.catalog.create_table("sales.nested", REQUIRED)
    good = spark.sql(
        "SELECT IF(id > 0, named_struct('q', CAST(id AS INT)), NULL) AS st, IF(id > 1, array(named_struct('q', 'a'),"
        " NULL), array()) AS l, IF(id > 0, array(IF(id > 9, NULL, 1)), NULL) AS e,"
        " IF(id > 0, map('a', IF(id > 9, NULL, 1L)), NULL) AS m FROM range(3)"
    )
    lake.append("sales.nested", good)
    assert sorted(map(str, lake.read("sales.nested").collect())) == sorted(map(str, good.collect()))
    head = lake.catalog.version()
    for path in NULLS if lane_count(0, 1) else ("l.element.q", "m.value"):
        with pytest.raises(InvalidInput) as caught:
            lake.append("sales.nested", spark.sql(f"SELECT {NULLS[path]}"))
        assert caught.value.message == f"column '{path}' is required, but holds NULL"
        assert caught.value.kind == "bad_data"
    assert lake.catalog.version() == head


def test_what_no_table_can_hold_is_named(lake: SparkCatalog, spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match=r"column 'a\.b' has type interval"):
        lake.create_table("sales.orders", "a STRUCT<b: INTERVAL DAY TO SECOND>")
    with pytest.raises(InvalidInput, match="is not a schema"):
        lake.create_table("sales.orders", 3)  # type: ignore[arg-type]
    lake.catalog.create_table(
        "sales.fixed", pa.schema([pa.field("id", pa.int64()), pa.field("key", pa.binary(2))])
    )
    lake.catalog.append(
        "sales.fixed",
        pa.Table.from_pylist(
            [{"id": 1, "key": b"ab"}], pa.schema([("id", pa.int64()), ("key", pa.binary(2))])
        ),
    )
    assert bytes(lake.read("sales.fixed").collect()[0]["key"]) == b"ab"
    with pytest.raises(InvalidInput, match="fixed length, which Spark does not write"):
        lake.append("sales.fixed", spark.range(1))


def test_create_table_twice(lake: SparkCatalog, spark: SparkSession) -> None:
    lake.create_table("sales.orders", spark.range(2), properties={"owner": "me"})
    with pytest.raises(AlreadyExists):
        lake.create_table("sales.orders", spark.range(2))
    head = lake.catalog.version()
    assert lake.create_table("sales.orders", spark.range(9), exist_ok=True).transaction_id == ""
    assert lake.catalog.version() == head
    assert lake.catalog.load_table("sales.orders").properties == {"owner": "me"}
    with pytest.raises(InvalidInput, match="not supported"):
        lake.at(branch="dev")


def test_a_transaction_is_one_version_and_sees_itself(lake: SparkCatalog, spark: SparkSession) -> None:
    lake.create_table("sales.orders", spark.range(2))
    with lake.transaction(message="both") as tx:
        tx.create_table("sales.copy", tx.read("sales.orders"))
        tx.append("sales.orders", spark.range(2, 3))
        assert ids(tx.read("sales.orders")) == [0, 1, 2]
        assert ids(tx.read("sales.copy")) == [0, 1]
        assert ids(lake.read("sales.orders")) == [0, 1]
    assert tx.result is not None
    assert tx.result.version == tx.version + 1
    assert ids(lake.at(tx.result.version).read("sales.orders")) == [0, 1, 2]

    with pytest.raises(InvalidInput), lake.transaction() as tx:  # noqa: PT012 - the block is what is tested
        tx.append("sales.orders", spark.range(7, 8))
        tx.append("sales.orders", spark.range(7, 8).withColumnRenamed("id", "other"))
    assert ids(lake.read("sales.orders")) == [0, 1, 2]


def test_retry_runs_again_after_a_conflict(lake: SparkCatalog, spark: SparkSession) -> None:
    lake.create_table("sales.orders", spark.range(1))
    calls: list[int] = []

    def replace(tx: Any) -> int:
        calls.append(tx.version)
        if len(calls) == 1:
            lake.catalog.append("sales.orders", pa.table({"id": pa.array([5], pa.int64())}))
        rows = tx.read("sales.orders")
        tx.overwrite("sales.orders", rows.selectExpr("id + 1 AS id"))
        return len(calls)

    assert lake.retry(replace) == 2
    assert ids(lake.read("sales.orders")) == [1, 6]
    calls.clear()
    with pytest.raises(Conflict):
        lake.retry(replace, attempts=1)


def test_a_pinned_reader_and_its_views(lake: SparkCatalog, spark: SparkSession) -> None:
    lake.create_table("sales.orders", spark.range(2))
    lake.create_table("sales.odd-name", spark.range(1))
    with lake.at() as reader:
        lake.append("sales.orders", spark.range(2, 4))
        assert ids(reader.read("sales.orders")) == [0, 1]
        assert sorted(reader.temp_views("sales.*")) == ["odd-name", "orders"]
        assert spark.sql("SELECT count(*) AS id FROM orders JOIN `odd-name` USING (id)").first()[0] == 1
        lake.catalog.create_namespace("other")
        lake.create_table("other.orders", spark.range(1))
    with pytest.raises(InvalidInput, match="was closed"):
        reader.read("sales.orders")
    assert not spark.catalog.tableExists("orders")
    with lake.at() as reader, pytest.raises(InvalidInput, match="would both be the view"):
        reader.temp_views("*.orders")
    with pytest.raises(NotFound):
        lake.at().read("sales.nothing")

    assert lake.temp_view("sales.orders") == "orders"
    assert lake.temp_view("sales.orders", as_="früher ` x", at=reader.version - 2) == "früher ` x"
    lake.append("sales.orders", spark.range(9, 10))
    assert ids(spark.table("orders")) == [0, 1, 2, 3], "a view stays at its version"
    assert spark.catalog.dropTempView("orders")
    assert spark.catalog.dropTempView("früher ` x")


@pytest.mark.parametrize("name", ["we ird[1]", "st*ar{a,b}?", "50%20ünï #+=", "_hidden", "back\\slash^"])
def test_a_prefix_of_strange_characters(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """A prefix of strange characters works, although Spark takes paths for patterns and does not decode them."""
    (tmp_path / "we ird1").mkdir()
    with alpheus.create(str(tmp_path / name / "lake")) as catalog:
        catalog.create_namespace("sales")
        lake = SparkCatalog(spark, catalog)
        lake.create_table("sales.orders", spark.range(3))
        lake.append("sales.orders", spark.range(3, 5))
        assert ids(lake.read("sales.orders")) == [0, 1, 2, 3, 4]
        assert catalog.read("sales.orders").num_rows == 5


def test_a_missing_file_is_an_error_and_never_fewer_rows(lake: SparkCatalog, spark: SparkSession) -> None:
    lake.create_table("sales.orders", spark.range(2).coalesce(1))
    lake.append("sales.orders", spark.range(2, 4).coalesce(1))
    frame = lake.read("sales.orders")
    victim = folder_of(lake.storage.url) / _data_files(lake.catalog, "sales.orders")[0]
    data = victim.read_bytes()
    victim.unlink()
    with pytest.raises(Exception, match=r"does not exist|FILE_NOT_EXIST"):
        frame.collect()
    with pytest.raises(Corrupt, match="the data file is missing"):
        lake.read("sales.orders")
    victim.write_bytes(data)
    fresh = SparkCatalog(spark, lake.catalog)
    segment = lake.catalog.load_table("sales.orders").definition.segments[0]
    path = folder_of(lake.storage.url) / segment.path
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\x00")
    with pytest.raises(Corrupt, match="SHA-256"):
        fresh.read("sales.orders")


def test_a_setting_that_was_changed_is_noticed(lake: SparkCatalog, spark: SparkSession) -> None:
    lake.create_table("sales.orders", spark.range(1))
    name = "spark.sql.parquet.fieldId.read.enabled"
    spark.conf.set(name, "false")
    try:
        for call in (lambda: lake.read("sales.orders"), lambda: lake.append("sales.orders", spark.range(1))):
            with pytest.raises(InvalidInput, match=f"{name}=false"):
                call()
    finally:
        spark.conf.set(name, "true")
    other = spark.newSession()
    for write in (lake.append, lambda name, df: lake.merge(name, df, on="id")):
        with pytest.raises(InvalidInput, match="must be true"):
            write("sales.orders", other.range(1))


def test_memory_is_refused_with_a_hint(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match="file:///lake") as caught:
        SparkCatalog(spark, "memory://here")
    assert caught.value.kind == "storage_unreachable"
    with alpheus.create("memory://spark-refuses") as catalog, pytest.raises(InvalidInput, match="memory"):
        SparkCatalog(spark, catalog)


def test_files_are_durable_before_a_commit_names_them(
    lake: SparkCatalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create_table("sales.orders", spark.range(1))
    steps: list[str] = []
    storage, folder = lake.storage, folder_of(lake.storage.url)
    durable, put = storage.make_durable, storage.put

    async def make_durable(paths: Any) -> None:
        steps.extend(f"sync {os.path.basename(path)}" for path in paths)
        await durable(paths)

    async def spied_put(path: str, data: bytes) -> None:
        if not path.startswith("vn/"):  # the hint of the commit before comes at any time
            steps.append(f"put {path.split('/')[0]}")
        await put(path, data)

    monkeypatch.setattr(storage, "make_durable", make_durable)
    monkeypatch.setattr(storage, "put", spied_put)
    with lake.transaction() as tx:
        tx.append("sales.orders", spark.range(10).repartition(2))
        written = [os.path.basename(p) for p in _data_files(lake.catalog, "sales.orders")]
    lease, *steps = steps
    assert lease == "put lease"
    assert [step.split()[0] for step in steps] == ["sync", "sync", "put"]
    named = {os.path.basename(p) for p in _data_files(lake.catalog, "sales.orders")} - set(written)
    assert {step.removeprefix("sync ") for step in steps[:2]} == named
    assert all(pq.read_metadata(folder / p).num_rows for p in _data_files(lake.catalog, "sales.orders"))


def test_tags(lake: SparkCatalog, spark: SparkSession) -> None:
    """A tag stands wherever a version is given, also once its version has expired."""
    lake.create_table("sales.t", spark.range(2))
    tags = lake.catalog.tags
    tags.create("v1", message="first")
    tagged = tags.load("v1").version
    lake.append("sales.t", spark.range(2, 4))
    storage = lake.catalog.storage()
    asyncio.run(Lake(LocalStorage(storage.url.removeprefix("file://"))).expire(below=tagged + 2))
    with pytest.raises(Expired, match=f"tag v1 names version {tagged}"):
        lake.read("sales.t", at=tagged)
    assert ids(lake.read("sales.t", at="v1")) == [0, 1]
    with lake.at("v1") as reader:
        assert ids(reader.read("sales.t")) == [0, 1]
    source = spark.read.format("alpheus").option("catalog", lake.catalog.url).option("at", "v1")
    assert ids(source.load("sales.t")) == [0, 1]
    assert lake.temp_view("sales.t", as_="tagged", at="v1") == "tagged"
    assert spark.sql("SELECT count(*) AS id FROM tagged").first()[0] == 2
    spark.catalog.dropTempView("tagged")
    assert [(row.name, row.message) for row in lake.system("tags").collect()] == [("v1", "first")]
    tags.create("v2")
    changes = lake.changes("sales.t", after=tags.load("v2").version)
    assert changes.count() == 0
    lake.overwrite("sales.t", spark.range(1))
    lake.catalog.restore_table("sales.t", at="v2")
    assert ids(lake.read("sales.t")) == [0, 1, 2, 3]
    with pytest.raises(NotFound, match="no tag v3"):
        lake.at("v3")
    now = lake.catalog.version()
    tags.create("some", only={"sales.t": tags.load("v2").version})
    assert tags.load("some").version == now
    assert ids(lake.read("sales.t", at="some")) == [0, 1, 2, 3]
    lake.overwrite("sales.t", spark.range(1))
    tags.create("other", now, only={"sales.t": -1})
    assert ids(lake.read("sales.t", at="other")) == [0], "two tags of one version hold other rows"
    assert ids(source.option("at", "other").load("sales.t")) == [0]
    assert ids(lake.read("sales.t", at=now)) == [0, 1, 2, 3]


def test_system_tables(lake: SparkCatalog) -> None:
    lake.create_table("sales.t", lake.spark.range(10))
    lake.append("sales.t", lake.spark.range(5))
    log = lake.system("log").where("exists(actions, a -> a.name = 'sales.t')").orderBy("version")
    assert [row.version for row in log.collect()] == [2, 3]
    files = lake.system("files", names="sales.*")
    bounds = files.selectExpr("explode(columns) AS c").selectExpr(
        "min(bigint(c.lower))", "max(bigint(c.upper))"
    )
    assert bounds.first() == (0, 9)
    assert lake.system("objects", at=2).where("kind = 'table'").first().row_count == 10
    for name in ("changes", "pipelines", "subscriptions"):
        assert lake.system(name).schema is not None
    with pytest.raises(NotFound, match="system table"):
        lake.system("none")
