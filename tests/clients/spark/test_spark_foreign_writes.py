"""Every way in which Spark itself may write to the tables of a catalog.

A write through a frame or a view of ours is refused before a byte changes. Damage that is done to files by their paths
is reported by each read that needs those files.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql import functions as f
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.errors import Corrupt
from alpheus.pipeline import Pipeline, appends, changes, table
from alpheus.spark import SparkCatalog

pytestmark = SPARK_MARKS

COLUMNS = "id BIGINT, x STRING"
NEW = "VALUES (9, 'x')"
REFUSED = r"INSERT|INTERNAL_ERROR|VIEW|streaming"


class Lake:
    """Committed tables of every kind, with their bytes by path and their rows by table and version."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder
        self.catalog = alpheus.create(folder.as_uri())
        self.spark = spark
        self.spark_catalog = SparkCatalog(spark, self.catalog)
        self.catalog.create_namespace("s")
        make_tables(self.catalog)
        self.versions: dict[str, list[int]] = {
            name: [version for version in range(3, self.catalog.version() + 1) if self._has(name, version)]
            for name in TABLES
        }
        self.rows = {
            (name, version): self._read(name, version) for name in TABLES for version in self._some(name)
        }
        self.bytes = self.stored()

    def _has(self, name: str, version: int) -> bool:
        return any(found.full_name == f"s.{name}" for found in self.catalog.at(version).list_tables("s"))

    def _some(self, name: str) -> list[int]:
        return sorted({self.versions[name][0], self.versions[name][-1]})

    def _read(self, name: str, version: int) -> list[str]:
        return sorted(str(row) for row in self.catalog.at(version).read(f"s.{name}").to_pylist())

    def stored(self) -> dict[str, str]:
        """Return a digest of every data file, by path."""
        return {
            path.relative_to(self.folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.folder.rglob("*.parquet"))
            if path.is_file()
        }

    def check_bytes(self, what: str) -> None:
        assert self.stored() == self.bytes, f"{what} touched committed files"

    def check_rows(self) -> None:
        """Check the rows with both readers. Spark reads only the tables that all ways were tried with."""
        for (name, version), rows in self.rows.items():
            assert self._read(name, version) == rows, (name, version)
            if name not in ("one", "hidden"):
                continue
            found = self.spark_catalog.read(f"s.{name}", at=version).collect()
            assert sorted(str(row.asDict(recursive=True)) for row in found) == rows, (name, version)

    def close(self) -> None:
        self.spark_catalog.close()
        self.catalog.close()


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array([f"x{n}" for n in ids])})


def make_tables(catalog: alpheus.Catalog) -> None:
    for name in TABLES:
        catalog.create_table(f"s.{name}", rows(1, 2), **({"partition_by": ["id"]} if name == "parts" else {}))
    for number in (3, 4):
        catalog.append("s.many", rows(number))
    catalog.delete("s.empty", "TRUE")
    catalog.delete("s.hidden", "id = 1")
    catalog.update_table("s.columns", add_columns=pa.schema([("n", pa.int64())]), defaults={"n": 7})
    catalog.update_table("s.renamed", rename_columns={"x": "y"})
    catalog.update_table("s.renamed", add_columns=pa.schema([("x", pa.string())]))
    catalog.append("s.overwritten", rows(5))
    catalog.overwrite("s.overwritten", rows(6))


TABLES = ("one", "many", "parts", "empty", "hidden", "columns", "renamed", "overwritten")


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    lake = Lake(spark, tmp_path_factory.mktemp("foreign") / "lake")
    yield lake
    lake.check_rows()
    lake.close()


# --- frames and views ------------------------------------------------------------------------------

Frame = Callable[[Lake, str], DataFrame]


def first(lake: Lake, name: str) -> int:
    return lake.versions[name][0]


def by_pinned_reader(lake: Lake, name: str) -> DataFrame:
    with lake.spark_catalog.at(first(lake, name)) as reader:
        return reader.read(f"s.{name}")


def by_temp_view(lake: Lake, name: str) -> DataFrame:
    return lake.spark.table(lake.spark_catalog.temp_view(f"s.{name}", "foreign_made"))


def by_transaction(lake: Lake, name: str) -> DataFrame:
    with lake.spark_catalog.transaction() as tx:
        return tx.read(f"s.{name}")


def by_source(lake: Lake, name: str) -> DataFrame:
    options = lake.spark_catalog.source_options()
    return (
        lake.spark.read.format("alpheus").options(**options, table=f"s.{name}", at=first(lake, name)).load()
    )


def cached(lake: Lake, name: str) -> DataFrame:
    df = lake.spark_catalog.read(f"s.{name}").cache()
    df.count()
    return df


FRAMES: dict[str, Frame] = {
    "read": lambda lake, name: lake.spark_catalog.read(f"s.{name}"),
    "read at": lambda lake, name: lake.spark_catalog.read(f"s.{name}", at=first(lake, name)),
    "read where": lambda lake, name: lake.spark_catalog.read(f"s.{name}", where="id >= 0"),
    "read columns": lambda lake, name: lake.spark_catalog.read(f"s.{name}", columns=["id"]),
    "at().read": by_pinned_reader,
    "transaction": by_transaction,
    "changes": lambda lake, name: lake.spark_catalog.changes(f"s.{name}"),
    "a view of a view": by_temp_view,
    "alias": lambda lake, name: lake.spark_catalog.read(f"s.{name}").alias("other"),
    "hint": lambda lake, name: lake.spark_catalog.read(f"s.{name}").hint("broadcast"),
    "cached": cached,
    "localCheckpoint": lambda lake, name: lake.spark_catalog.read(f"s.{name}").localCheckpoint(),
    "union": lambda lake, name: (
        lake.spark_catalog.read(f"s.{name}").union(
            lake.spark_catalog.read(f"s.{name}", at=first(lake, name)).toDF(
                *lake.spark_catalog.read(f"s.{name}", at=first(lake, name)).columns
            )
        )
        if name not in ("columns", "renamed")
        else lake.spark_catalog.read(f"s.{name}")
    ),
    "the data source at a version": by_source,
    "system table": lambda lake, name: lake.spark_catalog.system("files"),
}

# --- ways through a view ---------------------------------------------------------------------------

Way = Callable[[SparkSession, str], Any]


def given(spark: SparkSession, view: str) -> DataFrame:
    """Return a frame that fits the view."""
    fields = spark.table(view).schema.fields
    return spark.range(1).select(*[f.lit(None).cast(field.dataType).alias(field.name) for field in fields])


def sql(text: str) -> Way:
    return lambda spark, view: spark.sql(text.replace("{nulls}", nulls(spark, view)).replace("{view}", view))


def nulls(spark: SparkSession, view: str) -> str:
    return ", ".join("NULL" for _ in spark.table(view).columns)


WAYS: dict[str, Way] = {
    "INSERT OVERWRITE": sql("INSERT OVERWRITE {view} VALUES ({nulls})"),
    "INSERT OVERWRITE TABLE SELECT": sql("INSERT OVERWRITE TABLE {view} SELECT {nulls}"),
    "INSERT OVERWRITE of itself": sql("INSERT OVERWRITE {view} SELECT * FROM {view}"),
    "INSERT INTO": sql("INSERT INTO {view} VALUES ({nulls})"),
    "INSERT BY NAME": sql("INSERT OVERWRITE {view} BY NAME SELECT * FROM {view}"),
    "INSERT REPLACE WHERE": sql("INSERT INTO {view} REPLACE WHERE TRUE VALUES ({nulls})"),
    "INSERT of several": sql("FROM (SELECT {nulls}) INSERT OVERWRITE TABLE {view} SELECT *"),
    "WITH": sql("WITH q AS (SELECT {nulls}) INSERT OVERWRITE TABLE {view} SELECT * FROM q"),
    "EXECUTE IMMEDIATE": sql("EXECUTE IMMEDIATE 'INSERT OVERWRITE {view} VALUES ({nulls})'"),
    "insertInto": lambda spark, view: given(spark, view).write.insertInto(view, overwrite=True),
    "insertInto of itself": lambda spark, view: spark.table(view).write.insertInto(view, overwrite=True),
    "insertInto append": lambda spark, view: given(spark, view).write.mode("append").insertInto(view),
    "writeTo append": lambda spark, view: given(spark, view).writeTo(view).append(),
    "writeTo overwrite": lambda spark, view: given(spark, view).writeTo(view).overwrite(f.lit(True)),
    "writeTo replace": lambda spark, view: given(spark, view).writeTo(view).using("parquet").replace(),
    "writeTo overwritePartitions": lambda spark, view: given(spark, view).writeTo(view).overwritePartitions(),
    "TRUNCATE": sql("TRUNCATE TABLE {view}"),
    "LOAD DATA": sql("LOAD DATA LOCAL INPATH '/etc/hostname' OVERWRITE INTO TABLE {view}"),
    "DELETE": sql("DELETE FROM {view} WHERE TRUE"),
    "UPDATE": sql("UPDATE {view} SET id = 1"),
    "MERGE": sql("MERGE INTO {view} USING (SELECT 1 AS k) s ON {view}.id = s.k WHEN MATCHED THEN DELETE"),
    "ADD COLUMNS": sql("ALTER TABLE {view} ADD COLUMNS (q INT)"),
    "SET LOCATION": sql("ALTER TABLE {view} SET LOCATION '/tmp/elsewhere'"),
    "MSCK": sql("MSCK REPAIR TABLE {view}"),
    "ANALYZE": sql("ANALYZE TABLE {view} COMPUTE STATISTICS FOR ALL COLUMNS"),
    "toTable": lambda spark, view: (
        spark.readStream.format("rate")
        .load()
        .writeStream.option("checkpointLocation", "/nowhere")
        .toTable(view)
    ),
}
"""Every view refuses these ways. The exception is ANALYZE, which counts a view that Spark keeps in memory."""


def is_bare(df: DataFrame) -> bool:
    """Return whether Spark would write to the frame: whether it is a relation of files, below nothing but names."""
    plan = df._jdf.queryExecution().analyzed()
    while plan.getClass().getSimpleName() in ("SubqueryAlias", "View"):
        plan = plan.child()
    return plan.getClass().getSimpleName() == "LogicalRelation"


def refused(lake: Lake, df: DataFrame, way: str, what: str) -> None:
    df.createOrReplaceTempView("foreign_view")
    if way == "ANALYZE" and df.storageLevel.useMemory:
        WAYS[way](lake.spark, "foreign_view")
        lake.check_bytes(f"{what}: {way}")
        return
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        WAYS[way](lake.spark, "foreign_view")
    assert "java.io" not in str(caught.value)[:500], f"{what}: {way} got as far as files"
    lake.check_bytes(f"{what}: {way}")


def test_no_way_through_a_view_touches_a_file(lake: Lake, lane_count: Callable[[int, int], int]) -> None:
    """No way through a view touches a file.

    Short runs try each way with the table of one file, and `INSERT OVERWRITE` with every table and frame. Full runs try
    all pairs.
    """
    pairs = [("one", "read", way) for way in WAYS]
    pairs += [(name, "read", "INSERT OVERWRITE") for name in TABLES]
    pairs += [("one", frame, "INSERT OVERWRITE") for frame in FRAMES]
    if lane_count(0, 1):
        pairs = [(name, frame, way) for name in TABLES for frame in FRAMES for way in WAYS]
    frames: dict[tuple[str, str], DataFrame] = {}
    version = lake.catalog.version()
    for name, frame, way in pairs:
        if way in ("UPDATE", "MERGE") and frame == "system table":
            continue
        df = frames.get((name, frame))
        if df is None:
            df = frames[name, frame] = FRAMES[frame](lake, name)
            assert not is_bare(df), (frame, name)
        refused(lake, df, way, f"{frame} of {name}")
    assert lake.catalog.version() == version
    lake.spark.catalog.dropTempView("foreign_view")
    for df in frames.values():
        df.unpersist()


def test_views_of_a_pattern_and_what_runs_get(lake: Lake) -> None:
    with lake.spark_catalog.at(first(lake, "overwritten")) as reader:
        for view in reader.temp_views("s.*"):
            with pytest.raises(Exception, match="UNSUPPORTED_INSERT"):
                lake.spark.sql(f"INSERT OVERWRITE `{view}` {NEW}")
    lake.spark_catalog.read("s.one").createOrReplaceGlobalTempView("foreign_global")
    with pytest.raises(Exception, match="UNSUPPORTED_INSERT"):
        lake.spark.sql(f"INSERT OVERWRITE global_temp.foreign_global {NEW}")
    lake.spark.catalog.dropGlobalTempView("foreign_global")
    lake.check_bytes("views")


def test_jobs_and_batches(spark: SparkSession, tmp_path: Path) -> None:
    """Frames of a job, also in an open transaction, and frames of a stream's batch refuse writes, too."""
    tried: list[str] = []

    def try_on(df: DataFrame, what: str) -> None:
        df.createOrReplaceTempView("foreign_run")
        values = ", ".join("NULL" for _ in df.columns)
        with pytest.raises(Exception, match=REFUSED):
            df.sparkSession.sql(f"INSERT OVERWRITE foreign_run VALUES ({values})")
        tried.append(what)

    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("s")
        for name in ("a", "b", "c", "out", "copy"):
            catalog.create_table(f"s.{name}", rows(1, 2))
        lake = SparkCatalog(spark, catalog)
        pipeline = Pipeline("foreign", retries=0, backoff=0, lease=0)
        inputs = {"a": appends("s.a"), "b": changes("s.b"), "c": table("s.c")}

        @pipeline.job(inputs=inputs, outputs=["s.out"])
        def job(run: Any) -> None:
            for key in inputs:
                try_on(run.read(key), f"read {key}")
                try_on(run.whole(key), f"whole {key}")
            try_on(run.touched("b", "id"), "touched")
            run.append("s.out", run.read("a").select("id", "x"))

        for _ in range(2):
            before = catalog.read("s.a"), catalog.read("s.b"), catalog.read("s.c")
            [result] = pipeline.run(lake)
            assert result.state == "committed", result
            assert (catalog.read("s.a"), catalog.read("s.b"), catalog.read("s.c")) == before
            catalog.append("s.a", rows(3))
            catalog.append("s.b", rows(3))
        with lake.transaction() as tx:
            tx.append("s.copy", spark.createDataFrame([(9, "x")], COLUMNS))
            tx.overwrite("s.out", spark.createDataFrame([(8, "y")], COLUMNS))
            try_on(tx.read("s.out"), "written")

        def batch(df: DataFrame, number: int) -> None:
            try_on(df, "batch")

        query = lake.stream("s.a").writeStream.foreachBatch(batch).trigger(availableNow=True)
        query.option("checkpointLocation", f"{tmp_path}/checkpoint").start().awaitTermination()
        lake.stream("s.a").createOrReplaceTempView("foreign_run")
        with pytest.raises(Exception, match=REFUSED):
            spark.sql(f"INSERT OVERWRITE foreign_run {NEW}")
        spark.catalog.dropTempView("foreign_run")
        assert len(tried) == 2 * 7 + 2
        assert sorted(catalog.read("s.a")["id"].to_pylist()) == [1, 2, 3, 3]
        assert catalog.read("s.out").to_pylist() == [{"id": 8, "x": "y"}]
        assert catalog.admin.check().ok
        lake.close()


# --- ways by path ----------------------------------------------------------------------------------

ByPath = Callable[[SparkSession, Path, DataFrame], Any]
"""Takes a session, a committed file, and a frame that reads the file."""


def external(text: str, *, folder: bool = False) -> ByPath:
    """Return a way that runs a statement on a Spark table over a path of ours."""

    def done(spark: SparkSession, file: Path, df: DataFrame) -> None:
        place = file.parent if folder else file
        spark.sql(f"CREATE TABLE foreign_table({COLUMNS}) USING parquet LOCATION '{place}'")
        try:
            spark.sql(text.replace("{table}", "foreign_table"))
        finally:
            spark.sql("DROP TABLE IF EXISTS foreign_table")

    return done


SPARED: dict[str, ByPath] = {
    "append to the file": lambda spark, file, df: spark.range(2).write.mode("append").parquet(str(file)),
    "append to the folder": lambda spark, file, df: (
        spark.range(2).write.mode("append").parquet(str(file.parent))
    ),
    "save to the file": lambda spark, file, df: df.write.parquet(str(file)),
    "ignore": lambda spark, file, df: df.write.mode("ignore").parquet(str(file)),
    "CREATE and INSERT": external("INSERT INTO {table} VALUES (9, 'x')"),
    "CREATE and INSERT in the folder": external("INSERT INTO {table} VALUES (9, 'x')", folder=True),
    "CREATE and DROP PURGE": external("DROP TABLE {table} PURGE", folder=True),
    "CREATE and TRUNCATE": external("TRUNCATE TABLE {table}", folder=True),
    "CREATE AS SELECT": lambda spark, file, df: spark.sql(
        f"CREATE TABLE foreign_table USING parquet LOCATION '{file.parent}' AS SELECT 1"
    ),
    "INSERT INTO parquet.`path`": lambda spark, file, df: spark.sql(
        f"INSERT OVERWRITE parquet.`{file}` {NEW}"
    ),
}
"""The committed files stay as they are: Spark refuses, or writes other files, which no manifest lists."""

LOST: dict[str, ByPath] = {
    "overwrite the file": lambda spark, file, df: spark.range(3).write.mode("overwrite").parquet(str(file)),
    "overwrite the file, other format": lambda spark, file, df: (
        spark.range(3).write.mode("overwrite").json(str(file))
    ),
    "overwrite what is read": lambda spark, file, df: df.write.mode("overwrite").parquet(df.inputFiles()[0]),
    "overwrite from a checkpoint": lambda spark, file, df: (
        df.localCheckpoint().write.mode("overwrite").parquet(df.inputFiles()[0])
    ),
    "overwrite the folder": lambda spark, file, df: (
        spark.range(3).write.mode("overwrite").parquet(str(file.parent))
    ),
    "CREATE and INSERT OVERWRITE": external("INSERT OVERWRITE {table} VALUES (9, 'x')"),
    "CREATE and INSERT OVERWRITE in the folder": external(
        "INSERT OVERWRITE {table} VALUES (9, 'x')", folder=True
    ),
    "INSERT OVERWRITE DIRECTORY": lambda spark, file, df: spark.sql(
        f"INSERT OVERWRITE DIRECTORY '{file}' USING parquet SELECT 9L AS id, 'x' AS x"
    ),
}
"""A write by path deletes existing files, as `rm` does. No read gives other rows in their place, at any version."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a catalog of one table of one file, which tests copy."""
    folder = tmp_path_factory.mktemp("plain") / "lake"
    with alpheus.create(folder.as_uri()) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", rows(1, 2))
        catalog.append("s.t", rows(3))
    return folder


def the_file(folder: Path) -> Path:
    return min(path for path in folder.rglob("*.parquet") if path.is_file() and "/data/" in path.as_posix())


@pytest.mark.parametrize("way", SPARED)
def test_ways_by_path_that_spare_files(spark: SparkSession, plain: Path, tmp_path: Path, way: str) -> None:
    folder = shutil.copytree(plain, tmp_path / "lake")
    before = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
    with alpheus.connect(folder.as_uri()) as catalog:
        lake = SparkCatalog(spark, catalog)
        versions = range(2, catalog.version() + 1)
        expected = {version: catalog.at(version).read("s.t").to_pylist() for version in versions}
        with contextlib.suppress(PySparkException, Py4JJavaError):  # a refusal is as good
            SPARED[way](spark, the_file(folder), lake.read("s.t"))
        assert {path: path.read_bytes() for path in before} == before
        for version, found in expected.items():
            assert catalog.at(version).read("s.t").to_pylist() == found
            assert sorted(row["id"] for row in lake.read("s.t", at=version).collect()) == [
                row["id"] for row in found
            ]
        lake.close()


@pytest.mark.parametrize("way", LOST)
def test_ways_by_path_that_destroy_are_noticed(
    spark: SparkSession, plain: Path, tmp_path: Path, way: str
) -> None:
    folder = shutil.copytree(plain, tmp_path / "lake")
    file = the_file(folder)
    size = file.stat().st_size
    with alpheus.connect(folder.as_uri()) as catalog:
        lake = SparkCatalog(spark, catalog)
        hurt = [v for v in range(2, catalog.version() + 1) if names(lake, v, file)]
        df = lake.read("s.t", at=hurt[0], where=f"id = {catalog.at(hurt[0]).read('s.t')['id'][0]}")
        with contextlib.suppress(PySparkException, Py4JJavaError):  # the write deletes the file that it reads
            LOST[way](spark, file, df)
        for version in hurt:
            for read in ways_to_read(lake, version):
                with pytest.raises(Corrupt) as caught:
                    read()
                assert (caught.value.kind, caught.value.path) == ("corrupt_manifest", path_of(folder, file))
                reason = (
                    "is missing" if not file.exists() else f"is a folder now, {size} bytes were committed"
                )
                assert caught.value.message.startswith(
                    f"table s.t: {caught.value.path}: the data file {reason}, "
                )
                assert "manifest segment manifest/" in caught.value.message
        lake.close()


def path_of(folder: Path, file: Path) -> str:
    return file.relative_to(folder).as_posix()


def names(lake: SparkCatalog, version: int, file: Path) -> bool:
    try:
        return any(
            file.name in name and file.parent.name in name for name in lake.read("s.t", version).inputFiles()
        )
    except alpheus.errors.NotFound:
        return False


def ways_to_read(lake: SparkCatalog, version: int) -> list[Callable[[], Any]]:
    catalog = lake.catalog
    view = catalog.at(version)
    return [
        lambda: lake.read("s.t", at=version),
        lambda: lake.at(version).read("s.t"),
        lambda: lake.temp_view("s.t", "foreign_late", at=version),
        lambda: lake.at(version).temp_views("s.*"),
        lambda: lake.changes("s.t", until=version),
        lambda: view.read("s.t"),
        lambda: view.scan("s.t"),
        lambda: view.scan("s.t", where="id < 100"),
        lambda: view.scan("s.t").count(),
    ]


def test_another_size_is_told_before_anything_is_read(
    spark: SparkSession, plain: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(plain, tmp_path / "lake")
    file = the_file(folder)
    size = file.stat().st_size
    with alpheus.connect(folder.as_uri()) as catalog:
        lake = SparkCatalog(spark, catalog)
        begun = catalog.scan("s.t")
        for content in (file.read_bytes() + b"more", b"less"):
            file.write_bytes(content)
            for read in (*ways_to_read(lake, catalog.version()), begun.to_arrow):
                with pytest.raises(Corrupt) as caught:
                    read()
                assert caught.value.message.startswith(
                    f"table s.t: {path_of(folder, file)}: the data file has {len(content)} bytes, {size} were"
                    " committed, manifest segment "
                )
        lake.close()


# --- what Spark users type -------------------------------------------------------------------------


@pytest.fixture
def told(spark: SparkSession, plain: Path, tmp_path: Path) -> Iterator[tuple[SparkCatalog, dict[str, str]]]:
    """Yield a lake of its own with the table s.t, and the data source's options for that table."""
    folder = shutil.copytree(plain, tmp_path / "lake")
    with alpheus.connect(folder.as_uri()) as catalog:
        lake = SparkCatalog(spark, catalog)
        yield lake, {**lake.source_options(), "table": "s.t"}
        assert catalog.admin.check().ok
        lake.close()


def ids(lake: SparkCatalog) -> list[int]:
    return sorted(lake.catalog.read("s.t")["id"].to_pylist())


def test_words_of_the_data_source(
    told: tuple[SparkCatalog, dict[str, str]], lane_count: Callable[[int, int], int]
) -> None:
    """Words that users of Spark type work, or are refused with a way out.

    Refusals in tasks take long, because Spark retries the tasks. A short run tries one of them.
    """
    lake, options = told
    spark, head = lake.spark, lake.catalog.version()
    moment = lake.catalog.at(head - 1).info.created_at.isoformat()
    local = lake.catalog.at(head - 1).info.created_at.astimezone(ZoneInfo("Asia/Kolkata"))
    local = local.replace(tzinfo=None).isoformat(" ")
    place = {key: value for key, value in options.items() if key != "table"}

    def read() -> DataFrameReader:
        return spark.read.format("alpheus").options(**place)

    frames = [
        read().load("s.t"),
        read().options(versionAsOf=head - 1).load("s.t"),
        read().options(timestampAsOf=moment).load("s.t"),
        read().options(timestampAsOf=local, timeZone="Asia/Kolkata").load("s.t"),
    ]
    assert [frame.count() for frame in frames] == [3, 2, 2, 2]
    df = spark.createDataFrame([(9, "x")], COLUMNS).coalesce(1)
    df.write.format("alpheus").options(**place).mode("append").save("s.t")
    assert ids(lake) == [1, 2, 3, 9]
    head = lake.catalog.version()

    def writer(mode: str) -> DataFrameWriter:
        return df.write.format("alpheus").options(**options).mode(mode)

    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: writer("append").saveAsTable("foreign_registered"), r"lake\.create_table"),
        (lambda: spark.sql("CREATE TABLE foreign_registered USING alpheus AS SELECT 1"), "lake"),
        (lambda: spark.sql("CREATE TABLE foreign_registered USING alpheus OPTIONS (table 's.t')"), "lake"),
        (lambda: writer("overwrite").option("replaceWhere", "id = 1").save(), r"lake\.overwrite"),
        (lambda: writer("append").option("mergeSchema", True).save(), "update_table"),
        (lambda: writer("append").option("versionAsOf", 2).save(), "versionAsOf does nothing in writing"),
        (
            lambda: (
                df.write.format("alpheus").options(**place).mode("append").saveAsTable("foreign_registered")
            ),
            r"table is missing(?s:.*)lake\.create_table",
        ),
        (lambda: writer("append").partitionBy("id").save(), "partitioning"),
        (lambda: writer("ignore").save(), "Append"),
    ]
    if lane_count(0, 1):
        wrong += [
            (lambda: writer("overwrite").saveAsTable("foreign_registered"), r"lake\.create_table"),
            (lambda: df.writeTo("foreign_registered").using("alpheus").options(**options).create(), "lake"),
        ]
    for attempt, says in wrong[:: lane_count(2, 1)]:
        with pytest.raises((PySparkException, Py4JJavaError), match=says):
            attempt()
        assert not spark.catalog.tableExists("foreign_registered"), says
    assert lake.catalog.version() == head
    # If the columns are listed, Spark does not ask the source, and the registered table is of no use.
    given = ", ".join(f"{key} '{value}'" for key, value in options.items())
    for rest in ("", f" OPTIONS ({given})", " LOCATION 's.t'")[: lane_count(1, 3)]:
        spark.sql(f"CREATE TABLE foreign_registered(id BIGINT, x STRING) USING alpheus{rest}")
        try:
            for statement in (
                "SELECT * FROM foreign_registered",
                "INSERT INTO foreign_registered VALUES (1, 'a')",
            ):
                with pytest.raises(PySparkException, match=r"without options(?s:.*)lake\.temp_view"):
                    spark.sql(statement).collect()
        finally:
            spark.sql("DROP TABLE foreign_registered")
    assert lake.catalog.version() == head


def test_another_thread_writes_once_its_session_is_active(told: tuple[SparkCatalog, dict[str, str]]) -> None:
    """Another thread can write once its session is active, as the guide says.

    Spark looks for Python sources only in the active session of the thread.
    """
    lake, options = told
    df = lake.spark.createDataFrame([(9, "x")], COLUMNS).coalesce(1)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            lake.spark.createDataFrame([], "a INT")
            df.write.format("alpheus").options(**options).mode("append").save()
            lake.append("s.t", df)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert not failures
    assert ids(lake) == [1, 2, 3, 9, 9]


def test_sql_writes_through_a_view_of_the_data_source(told: tuple[SparkCatalog, dict[str, str]]) -> None:
    """Each SQL write through a view of the data source makes one commit, like `df.write`.

    The view stays at its version.
    """
    lake, options = told
    spark = lake.spark
    given = ", ".join(f"{key} '{value}'" for key, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW foreign_source USING alpheus OPTIONS ({given})")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW foreign_old USING alpheus OPTIONS ({given}, versionAsOf '2')"
    )
    head = lake.catalog.version()
    spark.sql("INSERT INTO foreign_source VALUES (7, 'q')")
    assert (ids(lake), lake.catalog.version()) == ([1, 2, 3, 7], head + 1)
    spark.sql("INSERT OVERWRITE foreign_source SELECT id + 10, x FROM foreign_source")
    assert ids(lake) == [11, 12, 13], "of what the view shows"
    assert lake.catalog.version() == head + 2
    refusals = {
        "INSERT INTO foreign_old VALUES (1, 'a')": "versionAsOf does nothing in writing",
        "DELETE FROM foreign_source WHERE id = 11": "does not support deletes",
        "UPDATE foreign_source SET id = 1": "does not support UPDATE",
        "MERGE INTO foreign_source USING (SELECT 1 AS k) s ON id = k WHEN MATCHED THEN DELETE": "MERGE",
        "TRUNCATE TABLE foreign_source": "expects a table",
        "INSERT INTO foreign_source REPLACE WHERE id = 11 VALUES (1, 'a')": "overwrite by filter",
    }
    for statement, says in refusals.items():
        with pytest.raises((PySparkException, Py4JJavaError), match=says):
            spark.sql(statement)
    assert lake.catalog.version() == head + 2
    for view in ("foreign_source", "foreign_old"):
        spark.catalog.dropTempView(view)
