"""The data source "alpheus" in real Spark: its reads, its streams, and sinks that write each batch once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.errors import InvalidInput, NotFound
from alpheus.spark import SparkCatalog, SparkTransaction
from alpheus.spark.streams.offsets import limits

pytestmark = SPARK_MARKS

IS_BOUNDED = limits is not None
"""PySpark 4.1 has no limits: AvailableNow takes all that exists in one batch."""

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array([f"n{id}" for id in ids])})


@pytest.fixture
def lake(spark: SparkSession, lake_url: str) -> Iterator[SparkCatalog]:
    with alpheus.create(lake_url.replace("/lake", "/la[k]e *")) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        yield SparkCatalog(spark, catalog)


@pytest.fixture
def retry_policy(lane_count: Callable[[int, int], int]) -> None:
    """Skip tests that start a dozen Python processes, unless `make slow LANE=spark_stream` runs them."""
    if not lane_count(0, 1):
        pytest.skip("make slow LANE=spark_stream")


def source(lake: SparkCatalog, **options: object) -> DataFrame:
    given = {key: str(value) for key, value in options.items()}
    return lake.spark.read.format("alpheus").options(**lake.source_options(), **given).load()


def ids(df: DataFrame) -> list[int]:
    return sorted(row[0] for row in df.select("id").collect())


def test_frames_of_the_source_share_no_filters(
    lake: SparkCatalog, lane_count: Callable[[int, int], int]
) -> None:
    """In a short run two filters and a union, and in a full run joins and views, too."""
    for start in range(0, 40, 10):
        lake.catalog.append("s.t", rows(*range(start, start + 10)))
    df = source(lake, table="s.t")
    lake.catalog.append("s.t", rows(100))
    low, high = df.where("id < 5"), df.where("id >= 35")
    assert (low.count(), df.count(), high.count()) == (5, 40, 5)
    assert low.union(high).count() == 10
    if not lane_count(0, 1):
        return
    assert low.alias("a").join(high.alias("b"), f.expr("a.id + 35 = b.id")).count() == 5
    df.createOrReplaceTempView("shared")
    assert lake.spark.sql("SELECT * FROM shared WHERE id = 5 OR id = 38").count() == 2
    assert lake.spark.catalog.dropTempView("shared")
    assert ids(source(lake, table="s.t", at=3)) == list(range(20))[: 10 * (3 - 2)]
    assert lake.read("s.t").where("id < 5").union(lake.read("s.t").where("id >= 35")).count() == 11


@pytest.mark.usefixtures("retry_policy")
def test_a_table_that_changed_shape_and_one_without_rows(lake: SparkCatalog, spark: SparkSession) -> None:
    nested = """id INT, tags ARRAY<STRING>, attributes MAP<STRING, ARRAY<INT>>, place STRUCT<lat: FLOAT, b: STRING>,
        price DECIMAL(20, 3), raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, flag BOOLEAN, small SMALLINT"""
    values = """SELECT 1 AS id, array('a', NULL) AS tags, map('k', array(1, NULL)) AS attributes,
        named_struct('lat', 1.5F, 'b', 'x') AS place, 12.345BD AS price, X'00ff' AS raw, DATE '1582-10-04' AS day,
        TIMESTAMP '1890-01-02 03:04:05.678901' AS at, TIMESTAMP_NTZ '1890-01-02 03:04:05.678901' AS local,
        true AS flag, 2S AS small UNION ALL SELECT 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL"""
    lake.create_table("s.wide", nested)
    assert source(lake, table="s.wide").collect() == []
    lake.append("s.wide", spark.sql(values))
    lake.catalog.update_table(
        "s.wide",
        rename_columns={"tags": "labels", "place.b": "c"},
        retype_columns={"id": pa.int64(), "place.lat": pa.float64()},
        add_columns={"note": pa.string()},
        drop_columns=["small"],
        column_order=[
            "note",
            "labels",
            "id",
            "attributes",
            "place",
            "price",
            "raw",
            "day",
            "at",
            "local",
            "flag",
        ],
    )
    native = lake.read("s.wide")
    found = source(lake, table="s.wide")
    assert found.dtypes == native.dtypes
    assert sorted(map(str, found.collect())) == sorted(map(str, native.collect()))
    changes = lake.changes("s.wide").drop("_commit_timestamp").where("_change_type = 'insert'")
    assert changes.select(*native.columns).orderBy("id").collect() == native.orderBy("id").collect()
    declared = (
        spark.read.schema("id BIGINT, labels ARRAY<STRING>")
        .format("alpheus")
        .options(**lake.source_options())
    )
    assert declared.option("table", "s.wide").load().where("id = 1").collect() == [(1, ["a", None])]


def test_changes_are_the_same_to_both_readers(lake: SparkCatalog) -> None:
    first = lake.catalog.append("s.t", rows(1, 2))
    lake.catalog.overwrite("s.t", rows(3))
    for n in range(4, 14):
        lake.catalog.append("s.t", rows(n))
    back = lake.catalog.restore_table("s.t", 5)
    lake.catalog.restore_table("s.t", back.version - 1)  # back to the same files
    lake.catalog.restore_table("s.t", 5)
    order = ["_commit_version", "_change_type", "id"]
    native = lake.changes("s.t").orderBy(order)
    assert native.collect() == source(lake, table="s.t", feed="changes").orderBy(order).collect()
    assert native.dtypes == source(lake, table="s.t", feed="changes").dtypes
    [row] = lake.changes("s.t", until=first.version).where("id = 1").collect()
    assert row.asDict() == {
        "id": 1, "name": "n1", "_change_type": "insert", "_commit_version": first.version,
        "_commit_timestamp": row["_commit_timestamp"], "_transaction_id": first.transaction_id,
    }  # fmt: skip
    signs = f.when(f.col("_change_type") == "insert", 1).otherwise(-1)
    alive = lake.changes("s.t").groupBy("id").agg(f.sum(signs).alias("n")).where("n = 1")
    assert ids(alive) == ids(lake.read("s.t"))
    assert ids(
        lake.changes("s.t", after=first.version, until=first.version + 1).where("_change_type = 'delete'")
    ) == [1, 2]
    assert lake.changes("s.t", lake.catalog.version()).count() == 0


class Batches:
    """Records the ids of each batch that `foreachBatch` gets."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, df: DataFrame, _: int) -> None:
        self.seen.append(ids(df))

    def take(self) -> list[list[int]]:
        seen, self.seen = self.seen, []
        return seen


def once(df: DataFrame, fn: Callable[[DataFrame, int], None], checkpoint: str) -> None:
    query = df.writeStream.foreachBatch(fn).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


def test_a_stream_goes_on_from_its_checkpoint(lake: SparkCatalog, tmp_path: Path) -> None:
    batches = Batches()
    for n in range(3):
        lake.catalog.append("s.t", rows(n))
    once(lake.stream("s.t", max_files=2), batches, f"{tmp_path}/c")
    assert batches.take() == ([[0, 1], [2]] if IS_BOUNDED else [[0, 1, 2]])
    lake.catalog.append("s.t", rows(3))
    lake.catalog.rename_table("s.t", "s.u")
    with lake.catalog.transaction() as tx:
        for n in range(4, 7):
            tx.append("s.u", rows(n))
    # The stream is asked for by the table's old name. The checkpoint knows the table by its id.
    once(lake.stream("s.t", max_files=2, changes=False), batches, f"{tmp_path}/c")
    expected = [[3, 4], [5, 6]] if IS_BOUNDED else [[3, 4, 5, 6]]
    assert batches.take() == expected, "one version is cut into several batches"
    [*_, last] = sorted(Path(f"{tmp_path}/c/offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    offset = json.loads(last.read_text().splitlines()[-1])
    assert offset == {"v": lake.catalog.version(), "f": 0, "t": lake.catalog.load_table("s.u").id}


@pytest.mark.usefixtures("retry_policy")
def test_a_running_stream_sees_what_is_committed_and_survives_its_daemon(
    spark: SparkSession, tmp_path: Path, start_daemon: Any
) -> None:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", rows(1))
        catalog.create_table("s.copy", SCHEMA)
    daemon = start_daemon(f"file://{tmp_path}/lake")
    with alpheus.connect(daemon.url) as catalog:
        lake = SparkCatalog(spark, catalog)
        query = lake.write_stream("s.copy", lake.stream("s.t"), f"{tmp_path}/c")

        def copied(count: int) -> list[int]:
            # The call may end with a look from before the append, which found nothing. It raises the query's error.
            while len(found := catalog.read("s.copy")["id"].to_pylist()) < count:
                query.processAllAvailable()
            return sorted(found)

        try:
            assert copied(1) == [1]
            daemon.kill()
            again = start_daemon(f"file://{tmp_path}/lake", listen=daemon.address)
            catalog.append("s.t", rows(2))
            assert copied(2) == [1, 2]
        finally:
            query.stop()
        again.stop()


@pytest.mark.usefixtures("retry_policy")
def test_an_overwrite_ends_a_stream_of_appends(lake: SparkCatalog, tmp_path: Path) -> None:
    lake.catalog.append("s.t", rows(1))
    version = lake.catalog.overwrite("s.t", rows(2)).version
    batches = Batches()
    with pytest.raises(Exception, match=f"version {version} overwrote the table"):
        once(lake.stream("s.t", start=2), batches, f"{tmp_path}/c")
    assert batches.take() == ([[]] if IS_BOUNDED else []), "a batch that says where it begins"
    once(lake.stream("s.t", start=2, on_delete="skip"), batches, f"{tmp_path}/d")
    assert batches.take() == ([[], [1]] if IS_BOUNDED else [[1]])


@pytest.mark.usefixtures("retry_policy")
def test_events_as_a_stream(lake: SparkCatalog, tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []
    columns = ("version", "kind", "name", "change_type", "action_type")
    lake.catalog.append("s.t", rows(1))
    once(
        lake.events(after=1),
        lambda df, _: seen.extend(tuple(row) for row in df.select(*columns).orderBy("version").collect()),
        f"{tmp_path}/c",
    )
    assert seen == [
        (2, "table", "s.t", "created", "TABLE_CREATE"), (3, "table", "s.t", "updated", "TABLE_INSERT"),
    ]  # fmt: skip


def test_streams_and_sinks_are_refused_at_once(
    lake: SparkCatalog, spark: SparkSession, tmp_path: Path
) -> None:
    """Wrong streams and sinks are refused immediately, and not by a query that fails in Spark's words."""
    for given, kind, says in [
        ({"name": "s.zz"}, NotFound, "no table s.zz"),
        ({"on_delete": "x"}, InvalidInput, "on_delete='x' is none of"),
        ({"max_files": 0}, InvalidInput, "max_files='0' is not a positive"),
        ({"start": "bo gus"}, InvalidInput, "'bo gus' is neither a version nor"),
        ({"start": "bogus"}, NotFound, "no tag bogus"),
        ({"start": 9999}, NotFound, "no version 9999"),
    ]:
        with pytest.raises(kind, match=says):
            lake.stream(**({"name": "s.t"} | given))  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="no version 9999"):
        lake.events(after=9999)
    stream = lake.stream("s.t")
    for frame, says in [
        (stream.withColumn("x", f.lit(1)), "'x' is not in the table"),
        (stream.withColumn("id", f.col("name")), "'id' has type string"),
        (lake.read("s.t"), "not a stream"),
        (rows(1), "not a DataFrame of Spark"),
    ]:
        with pytest.raises(InvalidInput, match=says) as caught:
            lake.write_stream("s.t", frame, f"{tmp_path}/c")  # type: ignore[arg-type]
        assert caught.value.kind == "bad_data"
    assert not Path(f"{tmp_path}/c").exists()
    wrong = spark.range(1).selectExpr("id", "1 AS x").write.format("alpheus").mode("append")
    with pytest.raises(Exception, match="column 'x' is not in the table"):
        wrong.options(**lake.source_options()).option("table", "s.t").save()
    plain = spark.readStream.format("alpheus").options(**lake.source_options())
    with pytest.raises(Exception, match=r"there is no table s\.zz"):
        plain.option("table", "s.zz").load()


# --- sinks -----------------------------------------------------------------------------------------


def lost_commit_log(checkpoint: str) -> None:
    """Delete Spark's record of the last batch, as if the query had died after the batch's commit to the catalog."""
    [*_, last] = sorted(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.usefixtures("retry_policy")
def test_a_batch_that_comes_again_is_written_once(lake: SparkCatalog, tmp_path: Path) -> None:
    for name in ("s.plain", "s.own"):
        lake.catalog.create_table(name, SCHEMA)
    lake.catalog.append("s.t", rows(1, 2))

    def run() -> None:
        lake.write_stream(
            "s.own", lake.stream("s.t"), f"{tmp_path}/own", trigger="available_now"
        ).awaitTermination()
        sink = lake.stream("s.t").select(f.col("NAME"), f.col("id")).writeStream.format("alpheus")
        sink = sink.options(**lake.source_options()).option("checkpointLocation", f"{tmp_path}/plain")
        sink.option("table", "s.plain").trigger(availableNow=True).start().awaitTermination()

    run()
    for name in ("own", "plain"):
        lost_commit_log(f"{tmp_path}/{name}")
    run()
    lake.catalog.append("s.t", rows(3))
    run()
    for name in ("s.own", "s.plain"):
        assert sorted(lake.catalog.read(name)["id"].to_pylist()) == [1, 2, 3]
        [mark] = lake.catalog.load_table(name).definition.writer_marks
        assert mark.startswith("spark:")
    assert lake.catalog.admin.check().ok


def test_several_tables_in_one_transaction_a_batch(lake: SparkCatalog, tmp_path: Path) -> None:
    for name in ("s.even", "s.odd", "s.other"):
        lake.catalog.create_table(name, SCHEMA)
    lake.catalog.append("s.t", rows(1, 2, 3))
    given: list[int] = []

    def split(tx: SparkTransaction, batch: DataFrame) -> None:
        if len(given) > 1:  # the program has changed meanwhile
            tx.append("s.other", batch)
            return
        tx.create_table("s.made", "id BIGINT")  # a second call would fail here
        tx.append("s.even", batch.where("id % 2 = 0"))
        tx.append("s.odd", batch.where("id % 2 = 1"))

    write = lake.batch_writer(split)

    def counted(batch: DataFrame, batch_id: int) -> None:
        given.append(batch_id)
        write(batch, batch_id)

    for _ in range(2):
        once(lake.stream("s.t"), counted, f"{tmp_path}/c")
        lost_commit_log(f"{tmp_path}/c")
    assert given.count(0) == 2, "the batch again, and later releases go on to the head without rows"
    assert lake.catalog.load_table("s.even").definition.sequence == 1
    assert sorted(lake.catalog.read("s.odd")["id"].to_pylist()) == [1, 3]
    assert len(lake.catalog.read("s.other")) == 0
    with pytest.raises(InvalidInput, match="does not name its streaming query"):
        lake.batch_writer(split)(lake.read("s.t"), 0)


@pytest.mark.usefixtures("retry_policy")
def test_two_transactions_of_a_batch_need_names(lake: SparkCatalog, tmp_path: Path) -> None:
    for name in ("s.even", "s.odd"):
        lake.catalog.create_table(name, SCHEMA)
    lake.catalog.append("s.t", rows(1, 2, 3))

    def into(name: str, rest: int, own: str = "") -> Callable[[DataFrame, int], None]:
        write = lake.batch_writer(lambda tx, batch: tx.append(name, batch), name=own)
        return lambda batch, batch_id: write(batch.where(f"id % 2 = {rest}"), batch_id)

    def twice(
        even: Callable[[DataFrame, int], None], odd: Callable[[DataFrame, int], None], place: str
    ) -> None:
        def both(batch: DataFrame, batch_id: int) -> None:
            even(batch, batch_id)
            odd(batch, batch_id)

        once(lake.stream("s.t"), both, f"{tmp_path}/{place}")

    with pytest.raises(StreamingQueryException, match="give each batch_writer a name"):
        twice(into("s.even", 0), into("s.odd", 1), "unnamed")
    same = into("s.even", 0, "same")
    with pytest.raises(StreamingQueryException, match="as 'same'"):
        twice(same, same, "same")
    assert len(lake.catalog.read("s.odd")) == 0
    lake.catalog.delete("s.even", "true")
    for _ in range(2):
        twice(into("s.even", 0, "even"), into("s.odd", 1, "odd"), "named")
        lost_commit_log(f"{tmp_path}/named")
    assert [lake.catalog.read(name)["id"].to_pylist() for name in ("s.even", "s.odd")] == [[2], [1, 3]]


@pytest.mark.usefixtures("retry_policy")
def test_whole_results_replace_each_other(lake: SparkCatalog, tmp_path: Path) -> None:
    lake.catalog.create_table("s.counts", pa.schema([pa.field("n", pa.int64())]))
    counted = lake.stream("s.t").groupBy().agg(f.count("*").alias("n"))
    for total in (2, 3):
        lake.catalog.append("s.t", rows(*range(4 - total)))
        lake.write_stream(
            "s.counts", counted, f"{tmp_path}/c", {"availableNow": True}, output_mode="complete"
        ).awaitTermination()
        assert lake.catalog.read("s.counts")["n"].to_pylist() == [total]


@pytest.mark.usefixtures("retry_policy")
def test_the_source_writes_a_frame_in_one_commit(lake: SparkCatalog, spark: SparkSession) -> None:
    frame = spark.range(5, numPartitions=2).selectExpr("id", "cast(id AS STRING) AS name")
    head = lake.catalog.version()
    target = frame.write.format("alpheus").options(**lake.source_options()).option("table", "s.t")
    target.mode("append").save()
    target.mode("overwrite").save()
    assert lake.catalog.version() == head + 2
    assert ids(lake.read("s.t")) == [0, 1, 2, 3, 4]


def test_a_retry_key_answers_a_job_that_runs_again(lake: SparkCatalog, spark: SparkSession) -> None:
    commits = []
    for _ in range(2):
        with lake.transaction(key="nightly/1") as tx:
            tx.append("s.t", spark.range(2).selectExpr("id", "'x' AS name"))
        assert tx.result is not None
        commits.append((tx.result.version, tx.result.duplicate))
    assert commits == [(3, False), (3, True)]
    assert lake.read("s.t").count() == 2


@pytest.mark.usefixtures("retry_policy")
def test_spark_finds_the_source_by_itself(lake: SparkCatalog, spark: SparkSession) -> None:
    """Spark finds the source by the name of its package, in a session in which nothing was registered."""
    import pyspark_alpheus

    other = spark.newSession()
    assert pyspark_alpheus.DefaultSource.name() == "alpheus"
    lake.catalog.append("s.t", rows(7))
    df = other.read.format("alpheus").options(**lake.source_options()).option("table", "s.t").load()
    assert ids(df) == [7]
