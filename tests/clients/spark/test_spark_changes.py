"""The row verbs of `SparkCatalog` against a model in plain Python: at head, at old versions, and in the feed."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from lake_folder import folder_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.errors import Conflict, Corrupt, InvalidInput
from alpheus.pipeline import Pipeline, table
from alpheus.pipeline import changes as feed_of
from alpheus.spark import SparkCatalog
from alpheus.spark.files import writes
from alpheus.spark.tables import merge as merging
from alpheus.spark.tables import row_changes as changes
from alpheus_journal.model.operations import ChangeRows
from alpheus_journal.predicate import And

pytestmark = SPARK_MARKS

Row = dict[str, Any]
StartDaemon = Callable[..., Any]
COLUMNS = "id BIGINT, k STRING, n INT"
ROWS: list[Row] = [{"id": i, "k": None if i % 5 == 0 else f"k{i % 3}", "n": i * 10} for i in range(20)]


@pytest.fixture(params=["storage", "daemon"])
def anywhere(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    lake_url: str,
    start_daemon: StartDaemon,
    lane_count: Callable[[int, int], int],
) -> Iterator[SparkCatalog]:
    if request.param == "storage" and not lane_count(0, 1):
        pytest.skip("the other tests are over storage: make slow LANE=spark_changes")
    with alpheus.create(lake_url) as catalog:
        catalog.create_namespace("s")
        if request.param == "storage":
            yield SparkCatalog(spark, catalog)
            return
    daemon = start_daemon(lake_url)
    with alpheus.connect(daemon.url, storage=lake_url) as catalog:
        yield SparkCatalog(spark, catalog)
    daemon.stop()


@pytest.fixture
def lake(spark: SparkSession, lake_url: str) -> Iterator[SparkCatalog]:
    with alpheus.create(lake_url) as catalog:
        catalog.create_namespace("s")
        yield SparkCatalog(spark, catalog)
        assert catalog.admin.check().ok


def test_a_small_frame_of_many_tasks_becomes_one_file(
    lake: SparkCatalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "SCATTERED_TASKS_MIN", 1)
    scattered = spark.range(0, 40, 1, 4)
    lake.create_table("s.scattered", "id BIGINT", sort_by=["id DESC"])
    assert lake.append("s.scattered", scattered).files_added == 1
    assert lake.overwrite("s.scattered", scattered.where("id < 30")).files_added == 1
    assert sorted(row.id for row in lake.read("s.scattered").collect()) == list(range(30))

    unknown = spark.createDataFrame(spark.sparkContext.parallelize([(1,), (2,), (3,)], 3), "id BIGINT")
    assert lake.append("s.scattered", unknown).files_added == 3  # Spark does not know its size
    assert not writes._is_scattered(scattered, 100)  # larger than a file
    assert not writes._is_scattered(scattered.groupBy("id").count(), 1 << 30)
    monkeypatch.setattr(writes, "SCATTERED_TASKS_MIN", 4)
    assert lake.append("s.scattered", scattered).files_added == 4  # not worth a shuffle
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        monkeypatch.setattr(writes, "SCATTERED_TASKS_MIN", 1)
        assert lake.append("s.scattered", scattered).files_added == 4  # a shuffle would scatter them further
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


def frame(lake: SparkCatalog, rows: list[Row], schema: str = COLUMNS) -> DataFrame:
    """Return a frame of one partition, so that each write is one file."""
    names = [part.split()[0] for part in schema.split(", ")]
    return lake.spark.createDataFrame(
        [tuple(row.get(name) for name in names) for row in rows], schema
    ).coalesce(1)


def filled(lake: SparkCatalog) -> None:
    lake.create_table("s.t", COLUMNS)
    lake.catalog.append("s.t", ROWS[:10])
    lake.catalog.append("s.t", ROWS[10:])


def found(df: DataFrame) -> list[Row]:
    return sorted((row.asDict() for row in df.collect()), key=lambda row: (row["id"], str(row)))


def test_each_verb_in_both_modes_over_storage_and_a_daemon(anywhere: SparkCatalog) -> None:
    lake = anywhere
    filled(lake)
    model = list(ROWS)
    history = {lake.catalog.version(): list(model)}

    def same(commit: alpheus.Commit) -> None:
        assert found(lake.read("s.t", at=commit.version)) == sorted(model, key=lambda row: row["id"])
        history[commit.version] = list(model)

    gone = lake.delete("s.t", "k = 'k1' AND n < 50")
    model = [row for row in model if not (row["k"] == "k1" and row["n"] < 50)]
    same(gone)
    assert (gone.rows_added, gone.rows_removed) == (0, len(ROWS) - len(model))

    # A predicate that is NULL hides nothing.
    before = len(model)
    rewritten = lake.delete("s.t", "k <> 'k0' AND n > 150", mode="rewrite")
    model = [row for row in model if not (row["k"] not in (None, "k0") and row["n"] > 150)]
    same(rewritten)
    assert (rewritten.rows_added, rewritten.rows_removed) == (0, before - len(model))

    updated = lake.update(
        "s.t", {"N": "n + length(coalesce(k, ''))", "k": f.lit("new")}, "id = 12", "predicate"
    )
    model = [r | {"n": r["n"] + len(r["k"] or ""), "k": "new"} if r["id"] == 12 else r for r in model]
    same(updated)

    source: list[Row] = [{"id": 1, "n": 1}, {"id": 12, "n": 2}, {"id": 100, "n": 3}, {"id": None, "n": 4}]
    merged = lake.merge("s.t", frame(lake, source, "id BIGINT, n INT"), on="id")
    by_id = {row["id"]: row["n"] for row in source}
    matched = {row["id"] for row in model}
    model = [row | {"n": by_id.get(row["id"], row["n"])} for row in model]
    model += [{"k": None} | row for row in source if row["id"] not in matched]
    read = lake.read("s.t").collect()
    key = lambda row: (row["id"] is None, row["id"])  # noqa: E731
    assert sorted((row.asDict() for row in read), key=key) == sorted(model, key=key)
    assert merged.rows_added == 4

    where = "id BETWEEN 3 AND 12"
    fresh: list[Row] = [{"id": 4, "k": "o", "n": 0}, {"id": 11, "k": "o", "n": 0}]
    lake.overwrite("s.t", frame(lake, fresh), where=where)
    model = [row for row in model if row["id"] is None or not 3 <= row["id"] <= 12] + fresh
    read = lake.read("s.t").collect()
    assert sorted((row.asDict() for row in read), key=key) == sorted(model, key=key)

    for version, rows in history.items():
        assert found(lake.read("s.t", at=version)) == sorted(rows, key=lambda row: row["id"])
    arrow = lake.catalog.read("s.t").to_pylist()
    assert sorted(arrow, key=key) == sorted(model, key=key)
    assert lake.catalog.admin.check().ok


def test_overwrite_of_partitions_and_conditions(lake: SparkCatalog) -> None:
    lake.create_table("s.p", "id BIGINT, k STRING, at TIMESTAMP", partition_by=["k", "day(at)"])
    at = dt.datetime(2026, 3, 1, 23, 59, 59, tzinfo=dt.UTC)
    rows: list[Row] = [
        {"id": i, "k": [None, "", "a/b=%1 é", "x" * 300][i % 4], "at": at + dt.timedelta(seconds=i % 2)}
        for i in range(16)
    ]
    schema = "id BIGINT, k STRING, at TIMESTAMP"
    lake.append("s.p", frame(lake, rows, schema))
    table = lake.catalog.load_table("s.p").definition
    files = lake.lists.of(table.id, table.segments)
    assert len({tuple(sorted(file.partition.items())) for file in files}) == len(files) == 4
    assert found(lake.read("s.p").select("id", "k")) == [{"id": r["id"], "k": r["k"]} for r in rows]

    head = lake.catalog.version()
    for wrong in (
        lambda df: lake.overwrite("s.p", df, partitions=[{"k": ""}]),
        lambda df: lake.overwrite("s.p", df, where="k = ''"),
        lambda df: lake.overwrite("s.p", df, partitions=[{"id": 1}]),
    ):
        with pytest.raises(InvalidInput):
            wrong(frame(lake, [{"id": 99, "k": None, "at": at}], schema))
    assert lake.catalog.version() == head
    keys = lake.spark.createDataFrame([("",), ("",)], "k STRING")
    done = lake.overwrite("s.p", frame(lake, [{"id": 50, "k": "", "at": at}], schema), partitions=keys)
    assert (done.rows_added, done.rows_removed) == (1, 4)
    left = [r["id"] for r in rows if r["k"] != ""]
    assert [r["id"] for r in found(lake.read("s.p"))] == sorted([*left, 50])
    lake.overwrite("s.p", frame(lake, [], schema), partitions={"k": [None], "day(at)": [dt.date(2026, 3, 1)]})
    assert [r["id"] for r in found(lake.read("s.p"))] == sorted([i for i in left if i % 4] + [50])
    assert not lake.catalog.load_table("s.p").definition.delete_predicates


def test_merges(lake: SparkCatalog) -> None:
    columns = "a BIGINT, b STRING, v INT"
    lake.create_table("s.m", columns)
    lake.catalog.append(
        "s.m", [{"a": i, "b": "xy"[i % 2], "v": 0} for i in range(6)] + [{"a": None, "b": "x", "v": 0}]
    )

    def content() -> list[tuple[Any, ...]]:
        rows = [tuple(row) for row in lake.read("s.m").collect()]
        return sorted(rows, key=str)

    twice: list[Row] = [{"a": 1, "b": "y", "v": 5}, {"a": 1, "b": "y", "v": 6}]
    with pytest.raises(InvalidInput, match=r"'1'.*occurs twice"):
        lake.merge("s.m", frame(lake, twice, columns), on=["a", "b"])
    source: list[Row] = [
        {"a": 1, "b": "y", "v": 1},
        {"a": 1, "b": "x", "v": 2},
        {"a": None, "b": "x", "v": 3},
        {"a": 2, "b": "x", "v": 4},
    ]
    head = lake.catalog.version()
    kept = lake.merge("s.m", frame(lake, source, columns), ["a", "b"], matched="ignore", unmatched="ignore")
    assert (kept.version, kept.transaction_id) == (head, "")
    lake.merge("s.m", frame(lake, source, columns), ["A", "b"])
    expected = [(0, "x", 0), (1, "y", 1), (2, "x", 4), (3, "y", 0), (4, "x", 0), (5, "y", 0), (None, "x", 0)]
    expected += [(1, "x", 2), (None, "x", 3)]
    assert content() == sorted(expected, key=str)
    changed = lake.changes("s.m", after=head).select("a", "b", "v", "_change_type").collect()
    assert sorted(map(str, (tuple(row) for row in changed))) == sorted(
        map(
            str,
            [
                (1, "y", 0, "update_preimage"), (1, "y", 1, "update_postimage"), (2, "x", 0, "update_preimage"),
                (2, "x", 4, "update_postimage"), (1, "x", 2, "insert"), (None, "x", 3, "insert"),
            ],
        )
    )  # fmt: skip
    # A predicate cannot hold so many keys, so that the files are rewritten.
    many = lake.spark.range(3, 3000).selectExpr("id AS a").coalesce(1)
    lake.merge("s.m", many, "a", matched="delete", unmatched="ignore")
    assert content() == sorted([row for row in expected if row[0] is None or row[0] < 3], key=str)
    assert not lake.catalog.load_table("s.m").definition.delete_predicates
    with pytest.raises(InvalidInput, match=r"a='9'.*occurs twice"):
        lake.merge("s.m", many.where("a > 5").unionAll(many.where("a = 9")), "a")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("DOUBLE", ["NaN", "-0.0", "1.5", "-Infinity"]),
        ("FLOAT", ["NaN", "0.0", "0.1"]),
        ("DECIMAL(6,2)", ["0.10", "-9999.99", "7"]),
        ("DATE", ["1582-10-04", "1970-01-01", "9999-12-31"]),
        ("TIMESTAMP", ["1582-10-04 23:59:59.999999", "2026-03-29 02:30:00"]),
        ("TIMESTAMP_NTZ", ["0001-01-01 00:00:00", "2026-03-29 02:30:00.000001"]),
        ("BINARY", ["", "a", "\u00e9"]),
        ("BOOLEAN", ["true"]),
        ("SMALLINT", ["-32768", "0"]),
        ("STRING", ["", "a ", "it's", "\u00e9"]),
    ],
)
def test_a_key_of_each_type_matches_as_in_the_library(
    lake: SparkCatalog, kind: str, values: list[str]
) -> None:
    """The rows of one table are merged by Spark, and those of another by the library. One key matches nothing."""
    before = lake.spark.createDataFrame([(value, 0) for value in [*values, None]], "k STRING, v INT")
    source = lake.spark.createDataFrame([(value, 1) for value in [*values[:-1], None]], "k STRING, v INT")
    before, source = (df.select(f.col("k").cast(kind).alias("k"), "v").coalesce(1) for df in (before, source))
    if kind in ("DOUBLE", "FLOAT"):
        source = source.withColumn("k", f.when(f.col("k") != 0, f.col("k")).otherwise(-f.col("k")))
    for name in ("s.spark", "s.library"):
        lake.create_table(name, f"k {kind}, v INT")
        lake.append(name, before)
    head = lake.catalog.version()
    lake.merge("s.spark", source, "k")
    lake.catalog.merge("s.library", source.toArrow(), on=["k"])
    spark_rows, library_rows = (
        sorted(map(str, lake.read(name).collect())) for name in ("s.spark", "s.library")
    )
    assert spark_rows == library_rows
    assert sum("v=1" in row for row in spark_rows) == len(values)
    feeds = [
        sorted(map(str, lake.changes(name, after=head).select("k", "v", "_change_type").collect()))
        for name in ("s.spark", "s.library")
    ]
    assert feeds[0] == feeds[1]


def test_a_source_that_is_never_the_same_is_run_once(
    lake: SparkCatalog, lane_count: Callable[[int, int], int]
) -> None:
    """A source that gives other rows each time runs once: counts, written rows and the feed come from one run.

    A short run has the merge. `test_values_that_are_computed_of_a_row_alone` has an update.
    """
    lake.create_table("s.r", "id BIGINT, u STRING")
    lake.catalog.append("s.r", [{"id": number, "u": ""} for number in range(10)])
    head = lake.catalog.version()
    wild = lake.spark.range(5, 15).where("rand() < 0.7").selectExpr("id", "uuid() AS u").coalesce(1)
    merged = lake.merge("s.r", wild, "id")
    now = {row.id: row.u for row in lake.read("s.r").collect()}
    fed = {
        row.id: row.u
        for row in lake.changes("s.r", after=head).collect()
        if row["_change_type"] in ("insert", "update_postimage")
    }
    assert fed == {key: value for key, value in now.items() if value}
    assert merged.rows_added == len(fed)
    if not lane_count(0, 1):
        return
    lake.update("s.r", {"u": f.expr("uuid()")}, "id < 3", mode="rewrite")
    after = lake.catalog.version()
    images = [
        row
        for row in lake.changes("s.r", after=after - 1).collect()
        if row["_change_type"] == "update_postimage"
    ]
    now = {row.id: row.u for row in lake.read("s.r").collect()}
    assert {row.id: row.u for row in images} == {key: now[key] for key in (0, 1, 2)}


def test_numbers_that_are_set(lake: SparkCatalog) -> None:
    lake.create_table("s.u", "id BIGINT, n SMALLINT, d DECIMAL(6,2), need STRING NOT NULL")
    lake.append(
        "s.u", lake.spark.sql("SELECT 1L AS id, 5S AS n, CAST(1.25 AS DECIMAL(6,2)) AS d, 'x' AS need")
    )
    lake.update("s.u", {"n": "n * 10", "d": "d * 1.1"}, "id = 1")
    [row] = lake.read("s.u").collect()
    assert (row.n, str(row.d)) == (50, "1.38")
    head = lake.catalog.version()
    for wrong, says in (
        ({"n": "n * 100000"}, "CAST_OVERFLOW|overflow"), ({"need": "NULL"}, "NULL"), ({"x": "1"}, "not in the table"),
        ({"need": "1"}, "has type int"), ({}, "sets no column"),
    ):  # fmt: skip
        with pytest.raises(Exception, match=says):
            lake.update("s.u", wrong, "id = 1")
    assert lake.catalog.version() == head


def test_dates_and_times_that_are_set(lake: SparkCatalog) -> None:
    """Dates and times from Python are stored as they are, also before 1582, and never in the zone of the process."""
    lake.create_table("s.t", "id INT, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, days ARRAY<DATE>")
    lake.catalog.append("s.t", [{"id": 1}])
    at = dt.datetime(1582, 10, 10, 1, 2, 3, 4, dt.timezone(dt.timedelta(hours=5, seconds=7)))
    day, local = at.date(), dt.datetime(1, 1, 1)
    lake.update("s.t", {"day": day, "at": at, "local": local, "days": [dt.date(1, 1, 1), None]}, "TRUE")
    assert lake.catalog.read("s.t").to_pylist() == [
        {"id": 1, "day": day, "at": at, "local": local, "days": [dt.date(1, 1, 1), None]}
    ]
    with pytest.raises(InvalidInput, match="'at' has type timestamp_ntz"):
        lake.update("s.t", {"at": dt.datetime(2026, 1, 1)}, "TRUE")


def test_a_column_that_is_called_as_one_of_sparks(lake: SparkCatalog) -> None:
    for name, value in (("text", "a"), ("struct", {"file_path": "data/1/2/3/4.parquet"})):
        rows = [{"id": n, "_metadata": value} for n in range(3)]
        lake.catalog.create_table(f"s.{name}", pa.Table.from_pylist(rows))
        lake.delete(f"s.{name}", "id = 1", mode="rewrite")
        assert lake.catalog.read(f"s.{name}").to_pylist() == [rows[0], rows[2]]


def test_what_others_changed_meanwhile(lake: SparkCatalog, lane_count: Callable[[int, int], int]) -> None:
    """In a short run nothing is retried here: test_every_verb does it."""
    filled(lake)
    tx = lake.transaction()
    with tx:
        tx.update("s.t", {"n": "n + 1"}, "id = 1")
        lake.catalog.delete("s.t", "id = 1")
        with pytest.raises(Conflict) as caught:
            tx.catalog.commit()
    assert (caught.value.kind, caught.value.retryable) == ("rows_changed", True)

    def step(tx: Any) -> None:
        seen.append(tx.read("s.t", where="id = 2").collect()[0].n)
        tx.merge("s.t", frame(lake, [{"id": 2, "n": seen[-1] + 1}], "id BIGINT, n INT"), "id")
        if len(seen) == 1:
            lake.catalog.update("s.t", {"n": 500}, "id = 2")

    seen: list[int] = []
    if lane_count(0, 1):
        lake.retry(step)
        assert seen == [20, 500]
    else:
        lake.catalog.update("s.t", {"n": 501}, "id = 2")
    with lake.transaction() as tx:  # rows of the transaction itself change, too
        tx.append("s.t", frame(lake, [{"id": 100, "k": "k1", "n": 1}]))
        tx.delete("s.t", "n > 30 AND n < 500")
        tx.update("s.t", {"n": "n + 1"}, "id = 100 OR id = 2")
        inside = found(tx.read("s.t"))
    assert inside == found(lake.read("s.t"))
    assert [(row["id"], row["n"]) for row in inside] == [(0, 0), (2, 502), (3, 30), (100, 2)]
    operations = [o for o in tx.catalog.operations if isinstance(o, ChangeRows)]
    assert [operation.mode for operation in operations] == ["delete", "update"]


def test_compaction(lake: SparkCatalog) -> None:
    columns = "id BIGINT, k STRING, n INT"
    lake.create_table("s.c", columns, partition_by=["k"], sort_by=["n desc"])
    rows = [{"id": i, "k": "ab"[i % 2], "n": i * 7 % 10} for i in range(20)]
    for part in range(3):
        lake.catalog.append("s.c", rows[part * 7 : part * 7 + 7])
    lake.catalog.delete("s.c", "id = 3")
    head = lake.catalog.version()
    left = [row for row in rows if row["id"] != 3]
    planned = lake.compact("s.c", dry_run=True)
    assert (planned.compacted_count, lake.catalog.version()) == (6, head)
    done = lake.compact("s.c")
    assert (done.version, done.rows_added, done.rows_removed) == (head + 1, 0, 0)
    assert found(lake.read("s.c")) == left == found(lake.read("s.c", at=head))
    table = lake.catalog.load_table("s.c").definition
    files = lake.lists.of(table.id, table.segments)
    assert sorted((file.row_count, file.sort_order_id) for file in files) == [(9, 1), (10, 1)]
    assert not table.delete_predicates
    assert lake.changes("s.c", after=head).count() == 0
    assert lake.compact("s.c").transaction_id == ""


# --- what an update sets ---------------------------------------------------------------------------

LISTS = "id BIGINT NOT NULL, i INT, l ARRAY<INT>, ts TIMESTAMP, k STRING"


def with_lists(lake: SparkCatalog) -> list[tuple[Any, ...]]:
    """Create a table with a list of three, an empty list and NULL. The third row is in the partition of NULL."""
    at = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    lake.create_table("s.l", LISTS, partition_by=["k"])
    rows = [(1, 10, [1, 2, 3], at, "a"), (2, 20, [], at, "a"), (3, 30, None, None, None)]
    lake.catalog.append("s.l", [dict(zip(("id", "i", "l", "ts", "k"), row, strict=True)) for row in rows])
    return rows


def stored_files(lake: SparkCatalog) -> list[Path]:
    return sorted(folder_of(lake.storage.url).rglob("*.parquet"))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("explode(l)", "a function that gives several rows or none"),
        ("explode_outer(l)", "a function that gives several rows or none"),
        ("stack(2, 1, 2)", "a function that gives several rows or none"),
        ("inline(array(named_struct('a', 1)))", "a function that gives several rows or none"),
        ("posexplode(l)", "UDTF_ALIAS_NUMBER_MISMATCH"),
        ("1 + explode(l)", "UNSUPPORTED_GENERATOR"),
        ("row_number() OVER (ORDER BY id)", "a window function"),
        ("1 + sum(i) OVER ()", "a window function"),
        ("CAST(unix_seconds(window(ts, '1 day').start) AS INT)", "a window of time"),
        ("CAST(sum(i) AS INT)", "an aggregate"),
        ("(SELECT 1)", "a subquery"),
        ("CAST(i IN (SELECT 10) AS INT)", "a subquery"),
        (lambda: f.explode("l"), "a function that gives several rows or none"),
        (lambda: f.max("i"), "an aggregate"),
    ],
)  # fmt: skip
def test_an_update_gives_each_row_one_value_of_its_own(
    tables_of_lists: tuple[SparkCatalog, list[tuple[Any, ...]]], value: Any, says: str
) -> None:
    lake, rows = tables_of_lists
    head, before = lake.catalog.version(), stored_files(lake)
    value = value() if callable(value) else value
    for where in ("TRUE", "id > 100"):  # with and without such rows
        with pytest.raises(InvalidInput, match=r"set: column 'i'.*" + re.escape(says)) as caught:
            lake.update("s.l", {"k": "'x'", "i": value}, where)
        assert caught.value.kind == "bad_argument"
        assert caught.value.hint
    assert (lake.catalog.version(), stored_files(lake)) == (head, before)
    assert found(lake.read("s.l").select("id", "i")) == [{"id": row[0], "i": row[1]} for row in rows]


@pytest.fixture(scope="module")
def tables_of_lists(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SparkCatalog, list[tuple[Any, ...]]]]:
    """Yield a lake with lists, one for many tests that change nothing."""
    with alpheus.create(f"file://{tmp_path_factory.mktemp('lists')}/lake") as catalog:
        catalog.create_namespace("s")
        lake = SparkCatalog(spark, catalog)
        yield lake, with_lists(lake)


def test_an_update_of_the_only_column_is_no_aggregate(lake: SparkCatalog) -> None:
    lake.create_table("s.one", "n BIGINT")
    lake.catalog.append("s.one", [{"n": number} for number in range(3)])
    with pytest.raises(
        InvalidInput, match="column 'n' is not computed from each row alone: it has an aggregate"
    ):
        lake.update("s.one", {"n": "max(n)"}, "TRUE")
    with lake.transaction() as tx, pytest.raises(InvalidInput, match="a subquery"):
        tx.update("s.one", {"n": lake.spark.range(1).groupBy().count().scalar()}, "TRUE")
    assert sorted(row.n for row in lake.read("s.one").collect()) == [0, 1, 2]


def test_values_that_are_computed_of_a_row_alone(lake: SparkCatalog) -> None:
    with_lists(lake)
    lake.spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION twice(x INT) RETURNS INT RETURN x * 2")
    lake.update(
        "s.l", {"i": "twice(i) + aggregate(l, 0, (a, x) -> a + x)", "l": "transform(l, x -> -x)"}, "TRUE"
    )
    assert [tuple(row) for row in lake.read("s.l").select("id", "i", "l").orderBy("id").collect()] == [
        (1, 26, [-1, -2, -3]),
        (2, 40, []),
        (3, None, None),
    ]
    # A random expression is computed once per row: the table, its feed and every reader have the same values.
    head = lake.catalog.version()
    lake.update("s.l", {"i": "CAST(rand() * 1000000000 AS INT)", "k": "uuid()"}, "TRUE", mode="rewrite")
    now = [row.asDict() for row in lake.read("s.l").select("id", "i", "k").orderBy("id").collect()]
    assert len({row["i"] for row in now}) == 3
    images = lake.changes("s.l", after=head).where("_change_type = 'update_postimage'").select("id", "i", "k")
    assert found(images) == now == found(lake.read("s.l").select("id", "i", "k"))


@pytest.mark.parametrize(
    ("value", "kind", "says", "hint"),
    [
        ("paid", "bad_argument", "`paid` cannot be resolved", "put text in single quotes"),
        ("i +", "bad_argument", "Syntax error", "an expression in Spark's SQL"),
        ("", "bad_argument", "empty statement", "an expression in Spark's SQL"),
        ("nosuch(i)", "bad_argument", "`nosuch`", "an expression in Spark's SQL"),
        (object(), "bad_argument", "object is not a value for a column", "a plain Python value"),
        ({"a": 1}, "bad_argument", "Literal for", "a plain Python value"),
        ("i DIV (i - i)", "bad_data", "Division by zero", "divided by zero"),
        ("i + 2147483647", "bad_data", "overflow", "too large"),
        ("CAST(k AS INT)", "bad_data", "cannot be cast", "CASE"),
    ],
)
def test_what_spark_cannot_compute_names_the_column(
    tables_of_lists: tuple[SparkCatalog, list[tuple[Any, ...]]], value: Any, kind: str, says: str, hint: str
) -> None:
    lake, _ = tables_of_lists
    head = lake.catalog.version()
    with pytest.raises(InvalidInput) as caught:
        lake.update("s.l", {"k": "'x'", "i": value}, "TRUE")
    error = caught.value
    assert (error.kind, lake.catalog.version()) == (kind, head)
    assert "'i'" in error.message
    assert says in error.message
    assert hint in error.hint
    assert error.__cause__ is not None


def test_rows_that_are_written_are_counted(
    lake: SparkCatalog, monkeypatch: pytest.MonkeyPatch, lane_count: Callable[[int, int], int]
) -> None:
    """Rows are counted when they are written, whatever earlier checks or Spark did wrong.

    A short run has an update of too many rows and a rewrite of too few.
    """
    wrongs = lane_count(1, 2)
    schema = "id BIGINT, i INT, l ARRAY<INT>"
    lake.create_table("s.n", schema)
    lake.catalog.append("s.n", [{"id": 1, "i": 10, "l": [1, 2]}, {"id": 2, "i": 20, "l": []}])
    head = lake.catalog.version()
    with monkeypatch.context() as patch:
        patch.setattr(changes, "check_assignments", lambda *_: None)
        for where, says in (("id = 1", "1 rows are updated, but 2"), ("id = 2", "1 rows are updated, but 0"))[
            :wrongs
        ]:
            with pytest.raises(InvalidInput, match=says) as caught:
                lake.update("s.n", {"i": "explode(l)"}, where)
            assert caught.value.kind == "bad_data"
    with monkeypatch.context() as patch:
        once = merging._Merge._updated_rows
        patch.setattr(merging._Merge, "_updated_rows", lambda self, hits: once(self, hits).where("id > 1"))
        with pytest.raises(InvalidInput, match="2 rows are updated, but 1"):
            lake.merge("s.n", lake.spark.createDataFrame([(1, 5), (2, 6)], "id BIGINT, i INT"), "id")
    match = changes.where_match
    for broken in (
        lambda df: df.where("id > 2"),  # loses a row that should stay
        lambda df: df,  # brings back a row that should go
    )[:wrongs]:
        with monkeypatch.context() as patch:
            patch.setattr(
                changes,
                "where_match",
                lambda *given, others=broken: msgspec.structs.replace(match(*given), others=others),
            )
            with pytest.raises(Corrupt, match="were rewritten") as lost:
                lake.delete("s.n", "id = 1", mode="rewrite")
        assert lost.value.kind == "corrupt_manifest"
    assert lake.catalog.version() == head


def test_a_null_where_none_may_be(tables_of_lists: tuple[SparkCatalog, list[tuple[Any, ...]]]) -> None:
    lake, _ = tables_of_lists
    head = lake.catalog.version()
    writes: list[Callable[[], object]] = [
        lambda: lake.update("s.l", {"id": "CASE WHEN i > 10 THEN id END"}, "TRUE"),
        lambda: lake.append("s.l", lake.spark.createDataFrame([(None, 1)], "id BIGINT, i INT")),
    ]
    for write in writes:
        with pytest.raises(InvalidInput) as caught:
            write()
        assert caught.value.message == "column 'id' is required, but holds NULL"
        assert (caught.value.kind, "coalesce" in caught.value.hint) == ("bad_data", True)
    assert lake.catalog.version() == head


def test_conditions_are_text_or_predicates(
    tables_of_lists: tuple[SparkCatalog, list[tuple[Any, ...]]],
) -> None:
    lake, _ = tables_of_lists
    head = lake.catalog.version()
    df = lake.read("s.l")
    asks: list[Callable[[Any], object]] = [
        lambda where: lake.read("s.l", where=where),
        lambda where: lake.explain("s.l", where=where),
        lambda where: lake.delete("s.l", where=where),
        lambda where: lake.update("s.l", {"i": "1"}, where=where),
        lambda where: lake.overwrite("s.l", df, where=where),
    ]
    for where in (f.col("id") == 1, True, ["id = 1"], And(("id = 1",))):  # type: ignore[arg-type]
        for ask in asks:
            with pytest.raises(InvalidInput, match=r"a predicate|no predicate") as caught:
                ask(where)
            assert caught.value.kind == "bad_predicate"
            assert "pass the condition as text" in caught.value.hint
    assert lake.catalog.version() == head


def test_arguments_are_those_of_the_library(
    tables_of_lists: tuple[SparkCatalog, list[tuple[Any, ...]]],
) -> None:
    lake, _ = tables_of_lists
    assert lake.read("s.l", columns="id").columns == ["id"]
    for columns in (["id", "id"], ["zz"], [], 5):
        said = []
        for ask in (lake.read, lake.catalog.read):
            with pytest.raises(InvalidInput) as caught:
                ask("s.l", columns=columns)  # type: ignore[arg-type]
            said.append(str(caught.value))
        assert said[0] == said[1]
    assert "it has id, i, l, ts, k" in said[0] or columns == 5
    for given, name in (
        (pa.table({"id": [1]}), "pyarrow.Table"),
        (pa.table({}).to_pandas(), "pandas.DataFrame"),
    ):
        with pytest.raises(InvalidInput, match=f"{name} is not a DataFrame of Spark") as caught:
            lake.append("s.l", given)
        assert "spark.createDataFrame" in caught.value.hint
    with pytest.raises(InvalidInput, match=r"'a FOO' is not a schema: .*FOO") as caught:
        lake.create_table("s.q", "a FOO")
    assert caught.value.kind == "bad_schema"
    with pytest.raises(InvalidInput, match="a SparkCatalog is needed, not a Catalog"):
        Pipeline("p").run(lake.catalog)  # type: ignore[arg-type]


# --- partitions that were computed -----------------------------------------------------------------


def test_no_partition_is_touched(lake: SparkCatalog, lane_count: Callable[[int, int], int]) -> None:
    with_lists(lake)
    head = lake.catalog.version()
    none, row = lake.read("s.l").limit(0), lake.read("s.l").limit(1)
    keys = lake.spark.createDataFrame([], "k STRING")
    lake.overwrite("s.l", none, partitions=keys)
    lake.overwrite("s.l", none, partitions=keys.toArrow())
    for partitions, data, kind in (
        (keys, row, "bad_data"),
        (lake.spark.createDataFrame([], "day DATE"), none, "bad_argument"),
        ([], none, "bad_argument"),
        ({}, none, "bad_argument"),
        ({"k": []}, none, "bad_argument"),
    )[: lane_count(2, 5)]:
        with pytest.raises(InvalidInput) as caught:
            lake.overwrite("s.l", data, partitions=partitions)
        assert caught.value.kind == kind
    assert lake.catalog.version() == head


def test_a_job_replaces_the_partitions_that_were_touched(
    lake: SparkCatalog, lane_count: Callable[[int, int], int]
) -> None:
    """A job replaces the partitions that were touched. It replaces none in a run that another input started.

    A short run has no job that fails.
    """
    lake.create_table("s.orders", "id BIGINT, day STRING, amount BIGINT", partition_by=["day"])
    lake.create_table("s.rates", "id BIGINT")
    lake.create_table("s.daily", "day STRING, total BIGINT", partition_by=["day"])
    pipeline = Pipeline("touched", retries=0)

    @pipeline.job(
        inputs={"orders": feed_of("s.orders"), "rates": table("s.rates", trigger=True)}, outputs=["s.daily"]
    )
    def daily(run: Any) -> None:
        days = run.touched("orders", "day")
        sums = run.whole("orders").join(days, "day").groupBy("day").agg(f.sum("amount").alias("total"))
        run.overwrite("s.daily", sums, partitions=days)
        if run.params:
            run.update("s.daily", {"total": "explode(array(total, total))"}, "TRUE")

    def ran(**params: str) -> Any:
        [result] = pipeline.run(lake, params=params)
        assert params or not result.error, result.error
        return result

    def content() -> list[tuple[str, int]]:
        return sorted((row.day, row.total) for row in lake.read("s.daily").collect())

    lake.catalog.append("s.orders", [{"id": n, "day": f"d{n % 2}", "amount": n} for n in range(4)])
    assert (ran().state, content()) == ("committed", [("d0", 2), ("d1", 4)])
    lake.catalog.append("s.rates", [{"id": 0}])
    begun = lake.catalog.version()
    assert (ran().state, content()) == ("committed", [("d0", 2), ("d1", 4)])
    assert len(list(lake.catalog.log("s.daily"))) == 2, "created and filled"
    assert lake.catalog.version() == begun + 1
    lake.catalog.delete("s.orders", "day = 'd1'")
    lake.catalog.append("s.rates", [{"id": 0}])
    assert (ran().state, content()) == ("committed", [("d0", 2)])
    if not lane_count(0, 1):
        return
    lake.catalog.append("s.rates", [{"id": 0}])
    parked = ran(explode="yes")
    assert (parked.state, "column 'total'" in parked.error, content()) == ("parked", True, [("d0", 2)])
