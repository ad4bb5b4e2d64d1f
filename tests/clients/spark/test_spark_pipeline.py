"""Pipelines on real Spark: what a job gets, what commits, and what failures cause."""

from __future__ import annotations

import datetime as dt
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.errors import Conflict, InvalidInput, NotFound, OutcomeUnknown, Unavailable
from alpheus.feed.change_sets import CHANGE_COLUMNS
from alpheus.pipeline import Pipeline, RunResult, appends, changes, table
from alpheus.pipeline.runner import Runner
from alpheus.spark import SparkCatalog
from alpheus.spark.job_run import JobRun
from alpheus.spark.streams.frames import GROUPS_IN_UNION_MAX

pytestmark = SPARK_MARKS


@pytest.fixture
def lake(spark: SparkSession, lake_url: str) -> Iterator[SparkCatalog]:
    with alpheus.create(lake_url) as catalog:
        for name in ("sales", "mart"):
            catalog.create_namespace(name)
        for name in ("sales.orders", "sales.lines", "mart.daily", "mart.copy"):
            catalog.create_table(name, pa.schema([pa.field("id", pa.int64())]))
        yield SparkCatalog(spark, catalog)
        assert catalog.admin.check().ok


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def ids(df: DataFrame) -> list[int]:
    return sorted(row["id"] for row in df.select("id").collect())


def stored(lake: SparkCatalog, name: str) -> list[int]:
    return sorted(lake.catalog.read(name)["id"].to_pylist())


def mart(**changed: Any) -> Pipeline:
    return Pipeline("mart", **({"retries": 0, "backoff": 0, "lease": 0} | changed))


def states(results: list[RunResult]) -> list[str]:
    return [result.state for result in results]


def recording(
    pipeline: Pipeline, work: Callable[[JobRun], object], name: str = "daily", **changed: Any
) -> list[JobRun]:
    """Declare a job and return the list that will hold its runs."""
    runs: list[JobRun] = []
    arguments: dict[str, Any] = {"inputs": {"orders": appends("sales.orders")}, "outputs": ["mart.daily"]}

    @pipeline.job(name=name, **(arguments | changed))
    def job(run: JobRun) -> None:
        runs.append(run)
        work(run)

    return runs


def copy(run: JobRun) -> None:
    run.append("mart.daily", run.read("orders").select("id"))


def test_each_version_is_worked_in_once(lake: SparkCatalog) -> None:
    pipeline = mart()
    runs = recording(pipeline, copy)
    lake.catalog.append("sales.orders", rows(1, 2))
    [result] = pipeline.run(lake)
    assert (result.state, result.pinned) == ("committed", runs[0].version)
    assert (runs[0].is_full, runs[0].previous, runs[0].attempt) == (True, None, 1)
    assert result.version == runs[0].version + 1

    assert states(pipeline.run(lake)) == ["nothing"]
    lake.catalog.append("sales.orders", rows(3))
    last = lake.catalog.append("sales.orders", rows(4))
    [result] = pipeline.run(lake)
    assert (runs[1].is_full, runs[1].previous) == (False, runs[0].version)
    assert (result.input_version, result.pinned) == (last.version, last.version)
    assert result.waited_ms is not None
    assert result.waited_ms >= 0
    assert stored(lake, "mart.daily") == [1, 2, 3, 4]
    head = lake.catalog.version()
    assert states(pipeline.run(lake)) == ["nothing"]
    assert lake.catalog.version() == head, "no work, no commit"

    job = lake.catalog.load_pipeline("mart").jobs["daily"]
    assert job.last_transaction_id == result.transaction_id
    assert job.inputs["orders"].version == job.pinned_version == last.version


def test_outputs_and_position_are_one_version(lake: SparkCatalog) -> None:
    pipeline = mart()

    def both(run: JobRun) -> None:
        run.append("mart.daily", run.read("orders"))
        run.append("mart.daily", run.read("orders"))
        run.overwrite("mart.copy", run.whole("orders"))

    recording(pipeline, both, outputs=["mart.daily", "mart.copy"])
    for number in (1, 2):
        lake.catalog.append("sales.orders", rows(number))
        [result] = pipeline.run(lake)
        [event] = lake.catalog.events(after=result.pinned, until=result.version)
        [transaction] = event.transactions
        assert {change.name for change in event.changes} == {"mart", "mart.daily", "mart.copy"}
        assert transaction.properties["alpheus.job"] == "daily"
        assert transaction.properties["alpheus.input.orders"].endswith(f"{result.pinned}")
    assert stored(lake, "mart.daily") == [1, 1, 2, 2]
    assert stored(lake, "mart.copy") == [1, 2]


def test_a_run_that_writes_nothing_commits_its_position(lake: SparkCatalog) -> None:
    pipeline = mart()
    runs = recording(pipeline, lambda run: None)
    lake.catalog.append("sales.orders", rows(1))
    assert states(pipeline.run(lake)) == ["committed"]
    assert states(pipeline.run(lake)) == ["nothing"]
    assert len(runs) == 1


def test_changes_deliver_inserts_and_deletes_in_order(lake: SparkCatalog) -> None:
    pipeline = mart()
    seen: list[list[tuple[int, str, int, str | None]]] = []

    def look(run: JobRun) -> None:
        df = run.read("orders")
        assert dict(df.dtypes)["_commit_timestamp"] == "timestamp"
        found = df.select("id", "_change_type", "_commit_version", "_transaction_id").collect()
        seen.append(sorted((*row,) for row in found))

    recording(pipeline, look, inputs={"orders": changes("sales.orders")})
    first = lake.catalog.append("sales.orders", rows(1, 2))
    pipeline.run(lake)
    assert seen.pop() == [(n, "insert", first.version, None) for n in (1, 2)]

    with lake.catalog.transaction() as tx:
        tx.append("sales.orders", rows(3))
        tx.overwrite("sales.orders", rows(4))
    second = tx.result
    third = lake.catalog.append("sales.orders", rows(5))
    fourth = lake.catalog.overwrite("sales.orders", rows())
    assert second is not None
    pipeline.run(lake)
    assert seen.pop() == sorted(
        [
            (3, "insert", second.version, second.transaction_id),
            *[(n, "delete", second.version, second.transaction_id) for n in (1, 2, 3)],
            (4, "insert", second.version, second.transaction_id),
            (5, "insert", third.version, third.transaction_id),
            *[(n, "delete", fourth.version, fourth.transaction_id) for n in (4, 5)],
        ]
    )


def test_many_changes_are_one_scan_with_the_same_rows(lake: SparkCatalog) -> None:
    pipeline = mart()
    seen: list[set[tuple[Any, ...]]] = []

    def look(run: JobRun) -> None:
        df = run.read("orders").withColumn("at", f.unix_millis("_commit_timestamp"))
        found = df.select("id", "_change_type", "_commit_version", "at", "_transaction_id").collect()
        seen.append({(*row,) for row in found})
        assert len(found) == len(seen[-1])

    recording(pipeline, look, inputs={"orders": changes("sales.orders")})
    pipeline.run(lake)
    expected = set()
    alive: list[int] = []

    def label(n: int, change: str, commit: alpheus.Commit) -> tuple[Any, ...]:
        return (n, change, commit.version, round(commit.created_at.timestamp() * 1000), commit.transaction_id)

    for n in range(GROUPS_IN_UNION_MAX + 4):
        if n in (3, 8):
            commit = lake.catalog.overwrite("sales.orders", rows(n))
            expected |= {label(old, "delete", commit) for old in alive}
            alive = [n]
        else:
            commit = lake.catalog.append("sales.orders", rows(n))
            alive.append(n)
        expected.add(label(n, "insert", commit))
    pipeline.run(lake)
    assert seen[-1] == expected


def test_an_overwrite_parks_a_job_that_reads_appends(lake: SparkCatalog) -> None:
    pipeline = mart()
    recording(pipeline, copy)
    lake.catalog.append("sales.orders", rows(1))
    pipeline.run(lake)
    overwritten = lake.catalog.overwrite("sales.orders", rows(2))
    lake.catalog.append("sales.orders", rows(3))
    [result] = pipeline.run(lake)
    assert result.state == "parked"
    assert f"version {overwritten.version} overwrote the table" in result.error
    [status] = pipeline.status(lake)
    assert (status.state, status.lag_versions) == ("parked", 2)
    assert states(pipeline.run(lake)) == ["parked"]
    assert stored(lake, "mart.daily") == [1]

    [result] = pipeline.run(lake, full_refresh=True)
    assert result.state == "committed"
    assert stored(lake, "mart.daily") == [2, 3]
    assert pipeline.status(lake)[0].state == "running"


def test_a_table_input_is_whole_at_the_pin_and_wakes_only_when_asked(lake: SparkCatalog) -> None:
    pipeline = mart()
    seen: list[tuple[list[int], list[int]]] = []

    def look(run: JobRun) -> None:
        lake.catalog.append("sales.lines", rows(99))  # after the run pinned its version
        seen.append((ids(run.read("orders")), ids(run.read("lines"))))

    recording(pipeline, look, inputs={"orders": appends("sales.orders"), "lines": table("sales.lines")})
    lake.catalog.append("sales.orders", rows(1))
    lake.catalog.append("sales.lines", rows(10))
    assert states(pipeline.run(lake)) == ["committed"]
    assert seen == [([1], [10])]
    lake.catalog.append("sales.lines", rows(11))
    assert states(pipeline.run(lake)) == ["nothing"]

    other = Pipeline("other")
    woken = recording(
        other, lambda run: run.read("lines"), inputs={"lines": table("sales.lines", trigger=True)}
    )
    other.run(lake)
    lake.catalog.append("sales.lines", rows(12))
    assert states(other.run(lake)) == ["committed"]
    assert len(woken) == 2


@pytest.mark.parametrize(("when", "expected"), [("any", ["committed"]), ("all", ["nothing"])])
def test_any_or_all_inputs_wake_a_job(when: str, expected: list[str], lake: SparkCatalog) -> None:
    pipeline = mart()
    inputs = {"orders": appends("sales.orders"), "lines": appends("sales.lines")}
    runs = recording(pipeline, lambda run: ids(run.read("lines")), inputs=inputs, when=when)
    pipeline.run(lake)
    lake.catalog.append("sales.orders", rows(1))
    assert states(pipeline.run(lake)) == expected
    lake.catalog.append("sales.lines", rows(2))
    assert states(pipeline.run(lake)) == ["committed"]
    assert runs[-1].previous is not None
    got = {(r.previous, r.version) for r in runs}
    assert len(got) == len(runs)


def test_jobs_see_what_the_ones_before_them_wrote(lake: SparkCatalog) -> None:
    pipeline = mart()
    recording(pipeline, copy)
    recording(
        pipeline,
        lambda run: run.append("mart.copy", run.read("daily")),
        "second",
        inputs={"daily": appends("mart.daily")},
        outputs=["mart.copy"],
    )
    lake.catalog.append("sales.orders", rows(1))
    assert states(pipeline.run(lake)) == ["committed", "committed"]
    assert stored(lake, "mart.copy") == [1]


def test_only_declared_names_are_taken_and_only_during_the_run(lake: SparkCatalog) -> None:
    pipeline = mart()

    def stray(run: JobRun) -> None:
        with pytest.raises(InvalidInput, match=r"did not declare the output mart\.copy") as caught:
            run.append("mart.copy", run.read("orders"))
        assert caught.value.kind == "undeclared_output"
        with pytest.raises(InvalidInput, match="no input 'lines'"):
            run.read("lines")
        assert run.params == {"day": "monday"}
        assert run.spark is lake.spark

    runs = recording(pipeline, stray)
    assert states(pipeline.run(lake, params={"day": "monday"})) == ["committed"]
    assert lake.catalog.load_pipeline("mart").jobs["daily"].params == {"day": "monday"}
    with pytest.raises(InvalidInput, match="is over"):
        runs[0].read("orders")


def test_touched_keys_are_those_of_old_and_new_rows(lake: SparkCatalog) -> None:
    pipeline = mart()
    seen: list[list[list[Any]]] = []

    def look(run: JobRun) -> None:
        found = [
            run.touched("orders", "day"),
            run.touched("lines", ["DAY", "id"]),
            run.touched("whole", ["day"]),
        ]
        seen.append([sorted((tuple(row) for row in df.collect()), key=repr) for df in found])
        with pytest.raises(InvalidInput, match=r"has no column 'week'"):
            run.touched("orders", ["week"])
        with pytest.raises(InvalidInput, match="names no column"):
            run.touched("orders", [])
        with pytest.raises(InvalidInput, match="has trigger=False"):
            run.touched("quiet", "day")

    for name in ("sales.a", "sales.b"):
        lake.catalog.create_table(name, pa.schema([("id", pa.int64()), ("day", pa.string())]))
    inputs = {
        "orders": changes("sales.a"),
        "lines": appends("sales.b"),
        "whole": table("sales.a", trigger=True),
        "quiet": table("sales.a"),
    }
    recording(pipeline, look, inputs=inputs)

    def days(*given: str | None) -> pa.Table:
        return pa.table({"id": pa.array(range(len(given)), pa.int64()), "day": pa.array(given, pa.string())})

    lake.catalog.append("sales.a", days("mon", "mon", "tue"))
    assert states(pipeline.run(lake)) == ["committed"]
    lake.catalog.append("sales.b", days("sat", "sat"))
    lake.catalog.append("sales.a", days(None))
    lake.catalog.overwrite("sales.a", days("wed"))
    assert states(pipeline.run(lake)) == ["committed"]
    assert seen == [
        [[("mon",), ("tue",)], [], [("mon",), ("tue",)]],
        [
            [("mon",), ("tue",), ("wed",), (None,)],
            [("sat", 0), ("sat", 1)],
            [("mon",), ("tue",), ("wed",), (None,)],
        ],
    ]


def test_outputs_are_changed_row_by_row(lake: SparkCatalog) -> None:
    pipeline = mart()

    def change(run: JobRun) -> None:
        for verb in (run.delete, run.update, run.merge):
            with pytest.raises(InvalidInput, match="did not declare the output"):
                verb("mart.copy", None, None)  # type: ignore[arg-type]
        run.merge("mart.daily", run.read("orders"), "id")
        run.delete("mart.daily", "id = 1")
        run.update("mart.daily", {"id": "id * 10"}, "id = 2")
        run.overwrite("mart.daily", run.read("orders").where("id = 3"), where="id = 3")

    recording(pipeline, change)
    for given in ((1, 2, 3), (2, 3, 4)):
        lake.catalog.append("sales.orders", rows(*given))
        [result] = pipeline.run(lake)
        assert (result.state, result.error) == ("committed", "")
    assert stored(lake, "mart.daily") == [3, 4, 20, 20]
    before = pipeline.rewind(lake, lake.catalog.load_pipeline("mart").jobs["daily"].pinned_version)
    assert before is not None
    assert stored(lake, "mart.daily") == [3, 20]


def test_a_slice_reads_the_tables_of_its_version(lake: SparkCatalog) -> None:
    pipeline = mart()
    seen: list[tuple[list[int], list[int]]] = []
    recording(
        pipeline,
        lambda run: seen.append((ids(run.read("orders")), ids(run.read("lines")))),
        inputs={"orders": changes("sales.orders", start="now"), "lines": table("sales.lines")},
        max_versions=1,
    )
    pipeline.run(lake)
    for number in (1, 2):
        with lake.catalog.transaction() as tx:
            tx.append("sales.orders", rows(number))
            tx.append("sales.lines", rows(number * 10))
    assert [pipeline.run(lake)[0].more for _ in range(2)] == [True, False]
    assert seen == [([], []), ([1], [10]), ([2], [10, 20])]


# --- without a catalog -----------------------------------------------------------------------------


def summing() -> Pipeline:
    """Declare a pipeline that sums up each day whose rows changed."""
    pipeline = Pipeline("mart")

    @pipeline.job(
        inputs={
            "orders": changes("sales.orders"),
            "lines": appends("sales.lines"),
            "days": table("ref.days"),
        },
        outputs=["mart.daily", "mart.log"],
    )
    def daily(run: JobRun) -> None:
        run.append("mart.log", run.read("orders"))
        sums = (
            run.whole("orders")
            .join(run.touched("orders", "day"), "day")
            .join(run.read("days"), "day")
            .groupBy("day")
            .agg(f.sum("id").alias("total"))
        )
        if run.is_full:
            run.overwrite("mart.daily", sums.withColumn("run", f.lit(run.params.get("name", ""))))

    return pipeline


def test_a_job_is_tried_on_given_rows(spark: SparkSession) -> None:
    pipeline = summing()
    orders = spark.createDataFrame([(1, "mon"), (2, "mon"), (5, "tue"), (9, "sun")], "id long, day string")
    lines = spark.createDataFrame([], "id long")
    days = spark.createDataFrame([("mon",), ("tue",)], "day string")
    given = {"orders": orders, "lines": lines, "days": days}
    found = pipeline.test(spark, "daily", given, params={"name": "x"})
    assert {tuple(row) for row in found["mart.daily"].collect()} == {("mon", 3, "x"), ("tue", 5, "x")}
    assert found["mart.log"].columns == ["id", "day", *CHANGE_COLUMNS]
    assert {row["_change_type"] for row in found["mart.log"].collect()} == {"insert"}

    typed = orders.withColumn("_change_type", f.lit("delete"))
    log = found["mart.log"].limit(1)
    found = pipeline.test(
        spark, "daily", given | {"orders": typed}, outputs={"mart.log": log}, whole={"orders": orders}
    )
    assert list(found) == ["mart.log"], "no full run"
    assert sorted(row["_change_type"] for row in found["mart.log"].collect()) == ["delete"] * 4 + ["insert"]
    with pytest.raises(InvalidInput, match="do not contain its whole table"):
        pipeline.test(spark, "daily", given | {"orders": typed})


START = [
    (1, "a", dt.date(2026, 3, 1), 10),
    (2, "b", dt.date(2026, 3, 2), 20),
    (3, "a", dt.date(2026, 4, 1), 30),
    (4, "b", None, None),
    (None, None, dt.date(2026, 4, 2), 50),
]
GIVEN = [(2, "b", dt.date(2026, 3, 9), 21), (3, "a", dt.date(2026, 3, 8), None), (9, "a", None, 90)]
ROW_SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("day", pa.date32()), ("n", pa.int32())])

Verb = Callable[[Any, str, DataFrame], object]
ROW_VERBS: dict[str, Verb] = {
    "append": lambda run, out, df: run.append(out, df.selectExpr("n", "CAST(id AS INT) AS ID")),
    "overwrite": lambda run, out, df: run.overwrite(out, df.drop("n")),
    "where": lambda run, out, df: run.overwrite(out, df.where("n > 20"), where="n >= 20"),
    "frame": lambda run, out, df: run.overwrite(
        out, df.where("k = 'a'"), partitions=run.touched("orders", "k").where("k = 'a'")
    ),
    "month": lambda run, out, df: run.overwrite(
        out, df.where("id = 2"), partitions=[{"k": "b", "month(day)": "2026-03"}, {"k": None}]
    ),
    "merge": lambda run, out, df: run.merge(out, df.union(df.selectExpr("NULL", "k", "day", "n")), "id"),
    "some_columns": lambda run, out, df: run.merge(out, df.select("n", "id"), ["id"], mode="rewrite"),
    "two_keys": lambda run, out, df: run.merge(out, df, ["K", "id"], matched="delete", unmatched="ignore"),
    "new_only": lambda run, out, df: run.merge(out, df, "id", matched="ignore"),
    "update": lambda run, out, df: run.update(
        out, {"n": "n + id", "k": f.upper("k"), "day": dt.date(2020, 1, 1)}, "n > 10 OR id = 1"
    ),
    "delete": lambda run, out, df: run.delete(out, "NOT n = 10"),
    "no_keys": lambda run, out, df: run.overwrite(
        out, df.limit(0), partitions=run.touched("orders", "k").where("k = 'x'")
    ),
    "together": lambda run, out, df: (
        run.append(out, df),
        run.delete(out, "id = 3"),
        run.merge(out, df.where("id > 2"), "id"),
    ),
    "twice": lambda run, out, df: run.merge(out, df.union(df), "id"),
    "outside": lambda run, out, df: run.overwrite(out, df.where("id = 2"), where="id = 3"),
    "both": lambda run, out, df: run.overwrite(out, df, where="id = 3", partitions={"k": ["b"]}),
    "unknown": lambda run, out, df: run.update(out, {"m": 1}, "id = 3"),
    "explode": lambda run, out, df: run.update(out, {"n": "explode(array(1, n))"}, "id = 3"),
    "too_large": lambda run, out, df: run.update(out, {"n": "id * 3000000000"}, "id = 3"),
    "no_where": lambda run, out, df: run.delete(out, None),
    "strange": lambda run, out, df: run.append(out, df.withColumn("m", f.lit(1))),
}
REFUSED = list(ROW_VERBS)[list(ROW_VERBS).index("twice") :]
FEW = ["month", "two_keys", "outside", "explode"]
"""A short run tries a few verbs of each kind. `make slow LANE=trial` tries all."""


def test_a_trial_makes_of_rows_what_a_run_makes_of_them(
    lake: SparkCatalog, lane_count: Callable[[int, int], int]
) -> None:
    """A trial makes of rows what a run makes of them. One job has an output for each verb, and is tried and run."""
    chosen = list(ROW_VERBS) if lane_count(0, 1) else FEW
    names = {verb: f"mart.v_{verb}" for verb in chosen}
    pipeline = mart()
    errors: list[dict[str, str]] = []

    @pipeline.job(inputs={"orders": appends("sales.given")}, outputs=list(names.values()))
    def verbs(run: Any) -> None:
        errors.append({})
        for verb, name in names.items():
            try:
                ROW_VERBS[verb](run, name, run.read("orders"))
            except InvalidInput as error:
                errors[-1][verb] = f"{error.kind}: {error}"

    def made(given: list[Any]) -> pa.Table:
        return pa.Table.from_pylist(
            [dict(zip(ROW_SCHEMA.names, row, strict=True)) for row in given], ROW_SCHEMA
        )

    def stored_rows(name: str) -> list[str]:
        return sorted(str(tuple(row.values())) for row in lake.catalog.read(name).to_pylist())

    lake.catalog.create_table("sales.given", made(GIVEN))
    for name in names.values():
        lake.catalog.create_table(name, made(START), partition_by=["k", "month(day)"])
    before = {name: lake.read(name) for name in names.values()}
    tried = pipeline.test(lake.spark, "verbs", {"orders": lake.read("sales.given")}, outputs=before)
    assert states(pipeline.run(lake)) == ["committed"]
    assert errors[0] == errors[1]
    assert list(errors[0]) == [verb for verb in chosen if verb in REFUSED]
    assert list(tried) == [name for verb, name in names.items() if verb not in REFUSED]
    same = [verb for verb, name in names.items() if stored_rows(name) == sorted(map(str, START))]
    assert same == [verb for verb in chosen if verb in REFUSED or verb == "no_keys"]
    for name, df in tried.items():
        assert sorted(str(tuple(row)) for row in df.collect()) == stored_rows(name), name
        assert df.dtypes == before[name].dtypes, name


@pytest.mark.usefixtures("only_slow")
def test_what_nobody_said_of_an_output(spark: SparkSession) -> None:
    """An output without given rows has the columns of the rows that arrive, and is empty in a full run."""
    pipeline = Pipeline("mart")

    def change(run: JobRun) -> None:
        if run.params.get("delete"):
            run.delete("mart.daily", "id = 1")
        run.merge("mart.daily", run.read("orders"), "id")

    recording(pipeline, change)
    given = {"orders": spark.createDataFrame([(1, "x")], "id long, word string")}
    held = {"mart.daily": spark.createDataFrame([(1, "old"), (2, "old")], "id long, word string")}

    def tried(**options: Any) -> list[tuple[Any, ...]]:
        found = pipeline.test(spark, "daily", given, **options)["mart.daily"]
        return sorted(tuple(row) for row in found.collect())

    assert tried() == [(1, "x")]
    assert tried(outputs=held) == [(1, "x"), (2, "old")]
    assert tried(outputs=held, full=True, params={"delete": "yes"}) == [(1, "x")]
    with pytest.raises(InvalidInput, match=r"columns of output mart\.daily are not known"):
        tried(params={"delete": "yes"})


def test_what_a_trial_is_given_is_checked(spark: SparkSession) -> None:
    pipeline = summing()
    df = spark.createDataFrame([], "id long, day string")
    full = {"orders": df, "lines": df, "days": df}
    with pytest.raises(NotFound, match="has no job 'weekly'"):
        pipeline.test(spark, "weekly", full)
    for given, says in (
        ({"orders": df}, "also reads lines, days"),
        (full | {"more": df}, "has no input 'more'"),
        (full | {"days": [1]}, "input 'days' is list, not a DataFrame"),
    ):
        with pytest.raises(InvalidInput, match=says):
            pipeline.test(spark, "daily", given)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="did not declare the output"):
        pipeline.test(spark, "daily", full, outputs={"mart.other": df})

    stray = Pipeline("stray")
    recording(stray, lambda run: run.append("mart.copy", run.read("orders")))
    with pytest.raises(InvalidInput, match=r"did not declare the output mart\.copy"):
        stray.test(spark, "daily", {"orders": df})


# --- failures --------------------------------------------------------------------------------------


def test_a_job_that_raises_is_tried_again_then_parked(lake: SparkCatalog) -> None:
    pipeline = mart(retries=2)
    broken = [True]

    def fragile(run: JobRun) -> None:
        copy(run)
        if broken[0]:
            raise ValueError("the moon is wrong")

    runs = recording(pipeline, fragile)
    other = recording(pipeline, lambda run: None, "second", outputs=["mart.copy"])
    lake.catalog.append("sales.orders", rows(1))
    results = pipeline.run(lake)
    assert states(results) == ["parked", "committed"]
    assert "ValueError: the moon is wrong" in results[0].error
    assert [run.attempt for run in runs] == [1, 2, 3]
    assert len({run.transaction_id for run in runs}) == 3
    assert len(other) == 1
    assert stored(lake, "mart.daily") == []
    [status, _] = pipeline.status(lake)
    assert (status.state, status.position) == ("parked", None)
    assert "the moon is wrong" in status.error
    assert states(pipeline.run(lake)) == ["parked", "nothing"]
    assert len(runs) == 3

    broken.clear()
    broken.append(False)
    pipeline.resume(lake, "daily")
    assert states(pipeline.run(lake)) == ["committed", "nothing"]
    assert (runs[-1].is_full, runs[-1].previous) == (True, None), "it is still the first"
    assert stored(lake, "mart.daily") == [1]


def test_the_pauses_before_another_try_double(lake: SparkCatalog) -> None:
    pipeline = mart(retries=3, backoff=30)

    def failing(run: JobRun) -> None:
        raise ValueError

    recording(pipeline, failing)
    now = [1000.0]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    [result] = Runner(lake, pipeline, monotonic=lambda: now[0], sleep=sleep).run()
    assert (result.state, result.attempts) == ("parked", 4)
    assert pauses == [30, 60, 120]


def test_what_cannot_be_read_again_is_parked_at_once(lake: SparkCatalog) -> None:
    pipeline = mart(retries=5, backoff=1000)
    recording(pipeline, copy)
    lake.catalog.append("sales.orders", rows(1))
    pipeline.run(lake)
    lake.catalog.drop_table("sales.orders")
    [result] = pipeline.run(lake)
    assert (result.state, result.error) == ("nothing", "waits for table sales.orders")
    lake.catalog.create_table("sales.orders", pa.schema([pa.field("id", pa.int64())]))
    lake.catalog.append("sales.orders", rows(7))
    [result] = pipeline.run(lake)
    assert result.state == "parked"
    assert "another table, of id" in result.error
    pipeline.run(lake, full_refresh=True)
    assert stored(lake, "mart.daily") == [7]

    absent = Pipeline("absent")
    recording(absent, copy, outputs=["mart.nothing"])
    [result] = absent.run(lake)
    assert "there is no output table mart.nothing" in result.error


def test_a_conflict_over_an_output_runs_again_at_a_newer_version(lake: SparkCatalog) -> None:
    pipeline = mart()

    def disturbed(run: JobRun) -> None:
        run.overwrite("mart.daily", run.whole("orders"))
        if run.attempt < 3:
            lake.catalog.append("mart.daily", rows(100 + run.attempt))
            lake.catalog.append("sales.orders", rows(10 + run.attempt))

    runs = recording(pipeline, disturbed)
    lake.catalog.append("sales.orders", rows(1))
    [result] = pipeline.run(lake)
    assert result.attempts == 3
    assert runs[0].version < runs[1].version < runs[2].version
    assert stored(lake, "mart.daily") == [1, 11, 12]


def test_an_output_that_others_append_to_is_no_conflict(lake: SparkCatalog) -> None:
    pipeline = mart()
    recording(pipeline, lambda run: (copy(run), lake.catalog.append("mart.daily", rows(100))))
    lake.catalog.append("sales.orders", rows(1))
    [result] = pipeline.run(lake)
    assert (result.state, result.attempts) == ("committed", 1)
    assert stored(lake, "mart.daily") == [1, 100]


def test_tables_that_change_shape_are_read_whole(lake: SparkCatalog, spark: SparkSession) -> None:
    schema = pa.schema([("id", pa.int32()), ("name", pa.string()), ("price", pa.float32())])
    lake.catalog.create_table(
        "sales.things", pa.Table.from_pylist([{"id": 1, "name": "a", "price": 0.5}], schema)
    )
    lake.catalog.update_table(
        "sales.things",
        add_columns={"note": pa.string()},
        rename_columns={"name": "label"},
        retype_columns={"id": pa.int64(), "price": pa.float64()},
        column_order=["label", "id", "note", "price"],
    )
    more = spark.createDataFrame(
        [("b", 1 << 40, "n", 0.25)], "label string, id long, note string, price double"
    )
    lake.append("sales.things", more)
    lake.catalog.update_table("sales.things", drop_columns=["note"])
    lake.catalog.update_table("sales.things", add_columns={"note": pa.int64()})
    found = sorted(tuple(row) for row in lake.read("sales.things").collect())
    assert found == [("a", 1, 0.5, None), ("b", 1 << 40, 0.25, None)]
    assert found == sorted(tuple(row.values()) for row in lake.catalog.read("sales.things").to_pylist())


def test_a_restored_input_is_worked_in(lake: SparkCatalog) -> None:
    pipeline = Pipeline("restored")

    @pipeline.job(inputs={"orders": changes("sales.orders", start="snapshot")}, outputs=["mart.daily"])
    def daily(run: JobRun) -> None:
        run.overwrite("mart.daily", run.whole("orders"))
        seen.append(sorted((row["_change_type"], row["id"]) for row in run.read("orders").collect()))

    seen: list[list[tuple[str, int]]] = []
    lake.catalog.append("sales.orders", rows(1))
    before = lake.catalog.version()
    lake.catalog.append("sales.orders", rows(2))
    pipeline.run(lake)
    lake.catalog.create_view("sales.bound", "SELECT 1", references=["sales.orders"], schema_binding=True)
    lake.catalog.restore_table("sales.orders", before)
    pipeline.run(lake)
    assert seen[1] == [("delete", 2)]
    assert stored(lake, "mart.daily") == [1]


def test_inputs_that_advance_never_conflict(lake: SparkCatalog) -> None:
    pipeline = mart()
    runs = recording(pipeline, lambda run: (copy(run), lake.catalog.append("sales.orders", rows(len(runs)))))
    lake.catalog.append("sales.orders", rows(0))
    for _ in range(3):
        assert states(pipeline.run(lake)) == ["committed"]
    assert [run.attempt for run in runs] == [1, 1, 1]
    assert stored(lake, "mart.daily") == [0, 1, 2]


def test_of_two_runners_one_commits_and_the_other_drops_its_run(lake: SparkCatalog) -> None:
    pipeline = mart()
    rival = mart()
    recording(rival, copy)

    def slow(run: JobRun) -> None:
        if len(runs) == 1:
            assert states(rival.run(lake)) == ["committed"]
        copy(run)

    runs = recording(pipeline, slow)
    lake.catalog.append("sales.orders", rows(1))
    assert states(pipeline.run(lake)) == ["nothing"], "the rival did it"
    assert stored(lake, "mart.daily") == [1]


def test_an_outage_counts_as_no_attempt(lake: SparkCatalog) -> None:
    pipeline = mart(retries=0)

    def away(run: JobRun) -> None:
        if len(runs) < 3:
            raise Unavailable("the store is away")
        copy(run)

    runs = recording(pipeline, away)
    lake.catalog.append("sales.orders", rows(1))
    assert states(pipeline.run(lake)) == ["committed"]
    assert [run.attempt for run in runs] == [1, 1, 1]


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_outcome_is_settled_before_anything_runs_again(
    applied: bool, lake: SparkCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = mart()
    runs = recording(pipeline, copy)
    lake.catalog.append("sales.orders", rows(1))
    commit = alpheus.Transaction.commit
    lost: list[str] = []

    def losing(tx: alpheus.Transaction) -> Any:
        if lost:
            return commit(tx)
        lost.append(tx.id)
        if applied:
            commit(tx)
        raise OutcomeUnknown("the reply was lost", transaction_id=tx.id)

    monkeypatch.setattr(alpheus.Transaction, "commit", losing)
    [result] = pipeline.run(lake)
    assert result.state == "committed"
    assert len(runs) == (1 if applied else 2)
    assert (result.transaction_id == lost[0]) is applied
    assert stored(lake, "mart.daily") == [1]
    if not applied:
        assert lake.catalog.outcome(lost[0]).state == "cancelled"


# --- full refresh ----------------------------------------------------------------------------------


def test_a_full_refresh_begins_anew(lake: SparkCatalog) -> None:
    pipeline = mart()
    runs = recording(pipeline, copy)
    for number in (1, 2):
        lake.catalog.append("sales.orders", rows(number))
        pipeline.run(lake)
    [result] = pipeline.run(lake, full_refresh=True)
    assert result.state == "committed"
    assert (runs[-1].is_full, runs[-1].previous) == (True, None)
    assert stored(lake, "mart.daily") == [1, 2], "emptied and filled again, not doubled"
    lake.catalog.append("sales.orders", rows(3))
    pipeline.run(lake)
    assert stored(lake, "mart.daily") == [1, 2, 3]


def test_a_full_refresh_is_refused_over_rows_of_others(lake: SparkCatalog) -> None:
    pipeline = mart()
    runs = recording(pipeline, copy)
    lake.catalog.append("sales.orders", rows(1))
    pipeline.run(lake)
    foreign = lake.catalog.append("mart.daily", rows(99))
    with pytest.raises(Conflict, match=rf"did not write \(version {foreign.version},"):
        pipeline.run(lake, full_refresh=True)
    assert len(runs) == 1
    assert stored(lake, "mart.daily") == [1, 99]


# --- serving ---------------------------------------------------------------------------------------


class Serving:
    """`pipeline.serve` in a thread. `results` receives the results."""

    def __init__(self, pipeline: Pipeline, lake: SparkCatalog) -> None:
        self.results: queue.SimpleQueue[RunResult] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._error: list[BaseException] = []
        self._thread = threading.Thread(target=self._serve, args=(pipeline, lake))
        self._thread.start()

    def _serve(self, pipeline: Pipeline, lake: SparkCatalog) -> None:
        try:
            pipeline.serve(lake, on_result=self.results.put, stop=self._stop)
        except BaseException as error:
            self._error.append(error)

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._error == []

    def next(self) -> RunResult:
        return self.results.get(timeout=60)


def test_serve_calls_a_job_for_what_is_new(lake: SparkCatalog) -> None:
    pipeline = mart()
    recording(pipeline, copy)
    recording(
        pipeline, lambda run: run.overwrite("mart.copy", run.whole("daily")), "second",
        inputs={"daily": changes("mart.daily")}, outputs=["mart.copy"],
    )  # fmt: skip
    with Serving(pipeline, lake) as serving:
        assert [serving.next().job for _ in range(2)] == ["daily", "second"]
        for number in range(3):
            commit = lake.catalog.append("sales.orders", rows(number))
            result = serving.next()
            assert (result.job, result.input_version) == ("daily", commit.version)
            assert serving.next().job == "second"
    assert stored(lake, "mart.daily") == stored(lake, "mart.copy") == [0, 1, 2]


def test_serve_goes_on_with_other_jobs_and_with_a_job_that_is_resumed(lake: SparkCatalog) -> None:
    pipeline = mart()
    broken = threading.Event()
    broken.set()

    def fragile(run: JobRun) -> None:
        if broken.is_set():
            raise ValueError("not today")
        copy(run)

    recording(pipeline, fragile)
    recording(pipeline, lambda run: None, "second", outputs=["mart.copy"])
    with Serving(pipeline, lake) as serving:
        first = [serving.next() for _ in range(2)]
        assert [(r.job, r.state) for r in first] == [("daily", "parked"), ("second", "committed")]
        lake.catalog.append("sales.orders", rows(1))
        assert serving.next().job == "second", "the parked one is not told of again"
        broken.clear()
        pipeline.resume(lake.catalog, "daily")
        resumed = serving.next()
        assert (resumed.job, resumed.state) == ("daily", "committed")
    assert stored(lake, "mart.daily") == [1]


def test_serve_waits_for_an_input_that_is_not_there_yet(lake: SparkCatalog) -> None:
    pipeline = mart()
    recording(pipeline, copy, inputs={"orders": appends("sales.later"), "products": table("ref.products")})
    with Serving(pipeline, lake) as serving:
        lake.catalog.create_table("sales.later", rows(1))
        lake.catalog.create_namespace("ref")
        lake.catalog.create_table("ref.products", rows(5))
        assert serving.next().state == "committed"
    assert stored(lake, "mart.daily") == [1]


def test_sigterm_ends_serve_after_the_step_that_runs(lake: SparkCatalog) -> None:
    pipeline = mart()

    def interrupted(run: JobRun) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        copy(run)

    recording(pipeline, interrupted)
    lake.catalog.append("sales.orders", rows(1))
    before = signal.getsignal(signal.SIGTERM)
    pipeline.serve(lake)
    assert stored(lake, "mart.daily") == [1]
    assert signal.getsignal(signal.SIGTERM) is before
