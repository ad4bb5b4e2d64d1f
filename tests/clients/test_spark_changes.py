"""The row verbs of `SparkCatalog` against a model in plain Python: at head, at old versions, and in the feed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import alpheus
from alpheus.errors import Conflict, InvalidInput
from alpheus.spark import SparkCatalog
from alpheus_journal.actions import ChangeRows

pytestmark = [
    # PySpark's own, at every session and worker.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Row = dict[str, Any]
StartDaemon = Callable[..., Any]
COLUMNS = "id BIGINT, k STRING, n INT"
ROWS: list[Row] = [{"id": i, "k": None if i % 5 == 0 else f"k{i % 3}", "n": i * 10} for i in range(20)]


@pytest.fixture(params=["storage", "daemon"])
def anywhere(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, start_daemon: StartDaemon
) -> Iterator[SparkCatalog]:
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        if request.param == "storage":
            yield SparkCatalog(spark, catalog)
            return
    daemon = start_daemon(url)
    with alpheus.connect(daemon.url, storage=url) as catalog:
        yield SparkCatalog(spark, catalog)
    daemon.stop()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[SparkCatalog]:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("s")
        yield SparkCatalog(spark, catalog)
        assert catalog.admin.check().ok


def frame(lake: SparkCatalog, rows: list[Row], schema: str = COLUMNS) -> DataFrame:
    """In one partition: each write is one file."""
    names = [part.split()[0] for part in schema.split(", ")]
    return lake.spark.createDataFrame(
        [tuple(row.get(name) for name in names) for row in rows], schema
    ).coalesce(1)


def filled(lake: SparkCatalog) -> None:
    lake.create_table("s.t", COLUMNS)
    lake.append("s.t", frame(lake, ROWS[:10]))
    lake.append("s.t", frame(lake, ROWS[10:]))


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
    lake.append(
        "s.m",
        frame(
            lake,
            [{"a": i, "b": "xy"[i % 2], "v": 0} for i in range(6)] + [{"a": None, "b": "x", "v": 0}],
            columns,
        ),
    )

    def content() -> list[tuple[Any, ...]]:
        rows = [tuple(row) for row in lake.read("s.m").collect()]
        return sorted(rows, key=str)

    twice: list[Row] = [{"a": 1, "b": "y", "v": 5}, {"a": 1, "b": "y", "v": 6}]
    with pytest.raises(InvalidInput, match=r"'1'.*is there twice"):
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
    # More keys than a predicate can hold: the files are written anew.
    many = lake.spark.range(3, 3000).selectExpr("id AS a").coalesce(1)
    lake.merge("s.m", many, "a", matched="delete", unmatched="ignore")
    assert content() == sorted([row for row in expected if row[0] is None or row[0] < 3], key=str)
    assert not lake.catalog.load_table("s.m").definition.delete_predicates


def test_a_source_that_is_never_the_same_is_run_once(lake: SparkCatalog) -> None:
    """What is counted, what is written and what the feed tells is of one and the same run."""
    lake.create_table("s.r", "id BIGINT, u STRING")
    lake.append("s.r", lake.spark.range(10).selectExpr("id", "'' AS u").coalesce(1))
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
        ({"need": "1"}, "has type int"), ({}, "says nothing"),
    ):  # fmt: skip
        with pytest.raises(Exception, match=says):
            lake.update("s.u", wrong, "id = 1")
    assert lake.catalog.version() == head


def test_what_others_changed_meanwhile(lake: SparkCatalog) -> None:
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
    lake.retry(step)
    assert seen == [20, 500]
    with lake.transaction() as tx:  # its own rows change, too
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
        lake.append("s.c", frame(lake, rows[part * 7 : part * 7 + 7], columns))
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
