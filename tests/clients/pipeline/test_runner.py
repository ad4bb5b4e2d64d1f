"""The runner of pipelines without Spark processes every change exactly once, whatever happens in between.

Jobs here read and write rows with pyarrow. Everything else is real, over a catalog in memory. The simulation lets its
actors (loaders, rivals, crashes, lost replies, outages, people) act at the moments where another process could.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from plain_lake import (
    SCHEMA,
    PlainLake,
    PlainRun,
    arrow,
    catalog,
    copying,
    fresh_catalog,
    runner_of,
    states,
    stored,
)

import alpheus
from alpheus.errors import AlpheusError, Conflict, InvalidInput, NotFound, OutcomeUnknown, Unavailable
from alpheus.feed import log
from alpheus.feed.trail import TableTrail
from alpheus.pipeline import Pipeline, RunResult, appends, changes, runner, table, work
from alpheus.pipeline.inbox import Inbox
from alpheus_journal.model.definitions import InputPosition
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake

__all__ = ["catalog"]

Row = tuple[int, int]

# --- which versions --------------------------------------------------------------------------------


def test_each_input_goes_on_where_it_was_though_others_stand_elsewhere(catalog: alpheus.Catalog) -> None:
    for number in range(4):
        with catalog.transaction() as tx:
            tx.append("sales.orders", arrow([(number, 1)]))
            tx.append("sales.lines", arrow([(number, 1)]))
    head = catalog.version()
    with catalog.transaction() as tx:
        positions = {
            key: InputPosition(table_id=tx.load_table(name).id, version=version, table=name)
            for key, name, version in (
                ("orders", "sales.orders", head - 1),
                ("lines", "sales.lines", head - 3),
            )
        }
        tx.advance_pipeline("mart", "daily", "", head - 3, positions)
    seen: list[list[Row]] = []
    pipeline = copying(
        lambda run: seen.extend((run.rows("orders"), run.rows("lines"))), lines=appends("sales.lines")
    )
    [result] = runner_of(PlainLake(catalog), pipeline).run()
    assert result.state == "committed"
    assert seen == [[(3, 1)], [(1, 1), (2, 1), (3, 1)]]


def test_an_idle_job_reads_each_version_of_the_log_once(
    catalog: alpheus.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    events = log.stored_events

    def spied(session: Any, **arguments: Any) -> Any:
        asked.append((arguments["after"], arguments["until"]))
        return events(session, **arguments)

    driver = runner_of(PlainLake(catalog), copying())
    [result] = driver.run()
    monkeypatch.setattr(log, "stored_events", spied)
    position = result.pinned
    assert position is not None
    catalog.append("sales.lines", arrow([(1, 1)]))
    first = catalog.version()
    assert states(driver.run()) == states(driver.run()) == ["nothing"]
    catalog.append("sales.lines", arrow([(2, 1)]))
    second = catalog.version()
    assert states(driver.run()) == ["nothing"]
    catalog.append("sales.orders", arrow([(3, 1)]))
    assert states(driver.run()) == ["committed"]
    assert asked == [(position, first), (first, second), (second, second + 1)]
    assert stored(catalog, "mart.log") == [(3, 1)]


def test_an_idle_job_moves_its_position_once_a_day(catalog: alpheus.Catalog) -> None:
    """So the log behind it can expire, and its rows are still worked in once."""
    now = [datetime.now(UTC)]
    rows: list[Row] = []
    pipeline = copying(lambda run: rows.extend(run.rows("orders")))
    driver = runner_of(PlainLake(catalog), pipeline, now=lambda: now[0])
    catalog.append("sales.orders", arrow([(1, 1)]))
    driver.run()
    for number in range(3):
        catalog.append("sales.lines", arrow([(number, 1)]))
    head = catalog.version()
    assert states(driver.run()) == ["nothing"]
    assert catalog.version() == head
    now[0] += timedelta(days=1, hours=1)
    assert states(driver.run()) == states(driver.run()) == ["nothing"]
    assert catalog.version() == head + 1
    (job,) = catalog.load_pipeline("mart").jobs.values()
    assert job.inputs["orders"].version == head
    asyncio.run(Lake(MemoryStorage.named("runner")).expire(below=head))
    fresh = runner_of(PlainLake(catalog), pipeline, now=lambda: now[0])
    assert states(fresh.run()) == ["nothing"]
    catalog.append("sales.orders", arrow([(2, 1)]))
    assert states(fresh.run()) == ["committed"]
    assert rows == [(1, 1), (2, 1)]


def test_a_position_that_others_moved_back_is_believed(catalog: alpheus.Catalog) -> None:
    driver = runner_of(PlainLake(catalog), copying())
    before = catalog.append("sales.orders", arrow([(1, 1)])).version - 1
    driver.run()
    assert states(driver.run()) == ["nothing"]
    with catalog.transaction() as tx:
        last = tx.load_pipeline("mart").jobs["daily"]
        positions = {
            "orders": InputPosition(
                table_id=tx.load_table("sales.orders").id, version=before, table="sales.orders"
            )
        }
        tx.advance_pipeline("mart", "daily", last.last_transaction_id, before, positions)
    assert states(driver.run()) == ["committed"]
    assert stored(catalog, "mart.log") == [(1, 1), (1, 1)]


def test_an_input_that_got_another_name_in_the_job_goes_on(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    catalog.append("sales.orders", arrow([(1, 1)]))
    runner_of(lake, copying()).run()
    catalog.append("sales.orders", arrow([(2, 1)]))
    renamed = Pipeline("mart", retries=0, lease=0)

    @renamed.job(inputs={"fresh": appends("sales.orders")}, outputs=["mart.log"])
    def daily(run: Any) -> None:
        run.put("mart.log", run.rows("fresh"))

    assert states(runner_of(lake, renamed).run()) == ["committed"]
    assert stored(catalog, "mart.log") == [(1, 1), (2, 1)]
    assert states(runner_of(lake, renamed).run()) == ["nothing"]


def test_an_input_that_is_new_to_a_job_is_worked_in_whole(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    catalog.append("sales.lines", arrow([(1, 1)]))
    runner_of(lake, copying()).run()
    seen: list[list[Row]] = []
    more = copying(lambda run: seen.append(run.rows("lines")), lines=appends("sales.lines"))
    runner_of(lake, more).run()
    catalog.append("sales.lines", arrow([(2, 1)]))
    runner_of(lake, more).run()
    assert seen == [[(1, 1)], [(2, 1)]]


def looking(inputs: dict[str, Any], seen: list[dict[str, Any]], **arguments: Any) -> Pipeline:
    """Declare a job that records the table of each input and the rows that it gets."""
    pipeline = Pipeline("mart", retries=0, lease=0)

    @pipeline.job(name="daily", inputs=inputs, outputs=[], **arguments)
    def daily(run: Any) -> None:
        keys = run._job.triggers
        seen.append({key: (run._table(key).id, [id_ for id_, _ in run.rows(key)]) for key in keys})

    return pipeline


def test_positions_go_by_tables_whatever_the_inputs_are_called(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    orders, lines = (catalog.load_table(name).id for name in ("sales.orders", "sales.lines"))
    seen: list[dict[str, Any]] = []
    numbers = iter(range(100))

    def step(**inputs: Any) -> dict[str, Any]:
        for name in ("sales.orders", "sales.lines"):
            catalog.append(name, arrow([(next(numbers), 1)]))
        assert states(runner_of(lake, looking(inputs, seen)).run()) == ["committed"]
        return seen[-1]

    assert step(a=changes("sales.orders"), b=appends("sales.lines")) == {
        "a": (orders, [0]),
        "b": (lines, [1]),
    }
    assert step(a=changes("sales.lines"), b=appends("sales.orders")) == {
        "a": (lines, [3]),
        "b": (orders, [2]),
    }
    assert step(b=changes("sales.lines"), c=appends("sales.orders")) == {
        "b": (lines, [5]),
        "c": (orders, [4]),
    }
    # Inputs whose tables swap names keep their positions and tables, before and after a run has seen the change.
    for old, new in [("orders", "aside"), ("lines", "orders"), ("aside", "lines")]:
        catalog.rename_table(f"sales.{old}", f"sales.{new}")
    for last in ((lines, [6]), (orders, [7])), ((lines, [8]), (orders, [9])):
        assert step(b=changes("sales.lines"), c=appends("sales.orders")) == dict(zip("bc", last, strict=True))


def test_an_input_that_is_declared_with_another_table_is_not_taken_for_a_renamed_one(
    catalog: alpheus.Catalog,
) -> None:
    lake = PlainLake(catalog)
    seen: list[dict[str, Any]] = []
    runner_of(lake, looking({"a": changes("sales.orders")}, seen)).run()
    catalog.append("sales.orders", arrow([(1, 1)]))
    [result] = runner_of(lake, looking({"a": changes("sales.next")}, seen)).run()
    assert (result.state, result.error) == ("nothing", "waits for table sales.next")
    other = catalog.create_table("sales.next", arrow([(2, 1)])) and catalog.load_table("sales.next").id
    [result] = runner_of(lake, looking({"a": changes("sales.next")}, seen)).run()
    assert (result.state, "is now declared as sales.next" in result.error) == ("parked", True)
    runner_of(lake, looking({"a": changes("sales.next")}, seen)).run(full_refresh=True)
    assert seen[1:] == [{"a": (other, [2])}]


@pytest.mark.parametrize("when", ["any", "all"])
def test_an_input_that_is_new_and_begins_now_gets_a_position(catalog: alpheus.Catalog, when: str) -> None:
    """A new input that begins now gets a position.

    Without one it would begin again at each look, and never have rows.
    """
    lake = PlainLake(catalog)
    seen: list[dict[str, Any]] = []
    runner_of(lake, looking({"a": changes("sales.orders")}, seen)).run()
    catalog.append("sales.lines", arrow([(1, 1)]))
    catalog.append("sales.orders", arrow([(1, 1)]))
    inputs = {
        "a": changes("sales.orders") if when == "all" else table("sales.orders"),
        "b": changes("sales.lines", start="now"),
    }
    pipeline = looking(inputs, seen, when=when)
    assert states(runner_of(lake, pipeline).run() + runner_of(lake, pipeline).run()) == [
        "committed",
        "nothing",
    ]
    for name in ("sales.lines", "sales.orders"):
        catalog.append(name, arrow([(2, 1)]))
    assert states(runner_of(lake, pipeline).run()) == ["committed"]
    assert [rows["b"][1] for rows in seen[1:]] == [[], [2]]


def test_a_full_refresh_finds_an_input_that_was_renamed(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    catalog.append("sales.orders", arrow([(1, 1)]))
    runner_of(lake, copying()).run()
    catalog.rename_table("sales.orders", "sales.moved")
    catalog.append("sales.moved", arrow([(2, 1)]))
    assert states(runner_of(lake, copying()).run(full_refresh=True)) == ["committed"]
    assert stored(catalog, "mart.log") == [(1, 1), (2, 1)]
    assert states(runner_of(lake, copying()).run()) == ["nothing"]
    catalog.drop_table("sales.moved")
    [result] = runner_of(lake, copying()).run(full_refresh=True)
    assert (result.state, result.error) == ("nothing", "waits for table sales.orders")


def test_an_input_from_now_on_is_found_though_a_slice_reads_an_older_version(
    catalog: alpheus.Catalog,
) -> None:
    """A new input that begins now is found although a run reads an older version.

    The input's position is after a rename that the version of the run does not have yet.
    """
    lake = PlainLake(catalog)
    begin = catalog.version()
    for number in range(3):
        catalog.append("sales.lines", arrow([(number, 1)]))
    catalog.rename_table("sales.orders", "sales.moved")
    seen: list[dict[str, Any]] = []
    inputs = {"lines": changes("sales.lines", start=begin), "late": changes("sales.moved", start="now")}
    pipeline = looking(inputs, seen, max_versions=1)
    runner_of(lake, pipeline).run()
    catalog.append("sales.moved", arrow([(9, 1)]))
    assert [states(runner_of(lake, pipeline).run()) for _ in range(3)] == [["committed"]] * 3
    assert [(rows["lines"][1], rows["late"][1]) for rows in seen] == [
        ([0], []),
        ([1], []),
        ([2], []),
        ([], [9]),
    ]


def test_two_pipelines_of_one_name_do_not_work_in_each_others_place(catalog: alpheus.Catalog) -> None:
    """Two pipelines of one name do not share positions.

    Each would restart where the other left its position, and add all rows once more.
    """
    lake = PlainLake(catalog)
    seen: list[dict[str, Any]] = []
    runner_of(lake, looking({"orders": changes("sales.orders")}, seen)).run()
    other = looking({"lines": changes("sales.lines")}, seen)
    [result] = runner_of(lake, other).run()
    assert (result.state, "has read sales.orders, and none of" in result.error) == ("parked", True)
    assert states(runner_of(lake, other).run(full_refresh=True)) == ["committed"]
    assert len(seen) == 2


def test_a_job_does_not_feed_itself_however_tables_are_renamed(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    runner_of(lake, copying()).run()
    catalog.append("sales.orders", arrow([(1, 1)]))
    catalog.rename_table("mart.log", "mart.before")
    catalog.rename_table("sales.orders", "mart.log")
    [result] = runner_of(lake, copying()).run()
    assert (result.state, "trigger itself forever" in result.error) == ("parked", True)
    assert stored(catalog, "mart.log") == [(1, 1)]


def test_an_output_that_was_made_anew_is_not_taken_for_the_one_that_was_filled(
    catalog: alpheus.Catalog,
) -> None:
    lake = PlainLake(catalog)

    def sliced() -> Pipeline:
        pipeline = Pipeline("mart", retries=0, lease=0)

        @pipeline.job(
            inputs={"orders": changes("sales.orders", start=begin)}, outputs=["mart.log"], max_versions=1
        )
        def daily(run: Any) -> None:
            run.put("mart.log", run.rows("orders"))

        return pipeline

    begin = catalog.version()
    for number in (1, 2):
        catalog.append("sales.orders", arrow([(number, 1)]))
        runner_of(lake, sliced()).run()
    catalog.rename_table("mart.log", "mart.aside")
    catalog.rename_table("mart.aside", "mart.log")
    catalog.append("sales.orders", arrow([(3, 1)]))
    assert states(runner_of(lake, sliced()).run()) == ["committed"]
    catalog.drop_table("mart.log")
    catalog.create_table("mart.log", SCHEMA)
    catalog.append("sales.orders", arrow([(4, 1)]))
    [result] = runner_of(lake, sliced()).run()
    assert (result.state, "output mart.log is not the table" in result.error) == ("parked", True)
    sliced().resume(catalog, "daily")
    assert states(runner_of(lake, sliced()).run()) == ["parked"]
    empty = catalog.version()
    assert states(runner_of(lake, sliced()).run(full_refresh=True)) == ["committed"]
    assert [states(runner_of(lake, sliced()).run()) for _ in range(4)] == [["committed"]] * 3 + [["nothing"]]
    assert stored(catalog, "mart.log") == [(number, 1) for number in range(1, 5)]
    sliced().rewind(catalog, empty)
    catalog.create_table("mart.filled", arrow([(number, 1) for number in (1, 2, 3)]))
    for old, new in [("log", "away"), ("filled", "log")]:
        catalog.rename_table(f"mart.{old}", f"mart.{new}")
    assert states(runner_of(lake, sliced()).run()) == ["committed"]
    assert stored(catalog, "mart.log") == [(number, 1) for number in range(1, 5)], (
        "others made what was before"
    )


def test_what_is_missing_is_told(catalog: alpheus.Catalog) -> None:
    catalog.create_view("sales.v", "SELECT 1")
    seen: list[dict[str, Any]] = []
    pipeline = looking({"v": changes("sales.v"), "o": changes("sales.orders"), "x": table("sales.x")}, seen)
    assert [status.error for status in pipeline.status(catalog)] == ["waits for table sales.v, sales.x"]
    [result] = runner_of(PlainLake(catalog), pipeline).run()
    assert result.error == "waits for table sales.v, which is a view: a job reads tables"
    with pytest.raises(InvalidInput, match="no jobs to serve"):
        pipeline.serve(PlainLake(catalog), jobs=[])  # type: ignore[arg-type]


# --- what fails ------------------------------------------------------------------------------------


def test_a_function_that_only_looks_called_commits_nothing(catalog: alpheus.Catalog) -> None:
    async def later(run: PlainRun) -> None:
        run.put("mart.log", run.rows("orders"))

    def piecewise(run: PlainRun) -> Any:
        run.put("mart.log", run.rows("orders"))
        yield

    catalog.append("sales.orders", arrow([(1, 1)]))
    for function in (later, piecewise):
        pipeline = Pipeline("mart", retries=0, lease=0)
        declare = pipeline.job(name="daily", inputs={"orders": changes("sales.orders")}, outputs=["mart.log"])
        with pytest.raises(InvalidInput, match="would do nothing"):
            declare(function)  # type: ignore[type-var]
        declare(lambda run, function=function: function(run))
        [result] = runner_of(PlainLake(catalog), pipeline).run()
        assert (result.state, "did nothing" in result.error) == ("parked", True)
        pipeline.resume(catalog, "daily")
    assert states(runner_of(PlainLake(catalog), copying()).run()) == ["committed"]
    assert stored(catalog, "mart.log") == [(1, 1)]


def test_a_job_that_is_parked_again_for_the_same_is_told_again(catalog: alpheus.Catalog) -> None:
    def broken(run: PlainRun) -> None:
        raise ValueError("the moon is wrong")

    stop = threading.Event()
    results: list[RunResult] = []
    pipeline = copying(broken)

    def on_result(result: RunResult) -> None:
        results.append(result)
        if len(results) == 3:
            stop.set()
        else:
            pipeline.resume(catalog, "daily")

    catalog.append("sales.orders", arrow([(1, 1)]))
    late = threading.Timer(20, stop.set)  # stops the runner if the test fails
    late.start()
    runner_of(PlainLake(catalog), pipeline).serve(on_result=on_result, stop=stop)
    late.cancel()
    assert states(results) == ["parked"] * 3


def test_of_two_rivals_the_loser_learns_of_the_position_not_of_the_output(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    rival = copying()
    rounds = runner.CONFLICTS_MAX + 5
    attempts: list[int] = []

    def slow(run: PlainRun) -> None:
        attempts.append(run.attempt)
        if len(attempts) < rounds:
            assert states(runner_of(lake, rival).run()) == ["committed"]
            catalog.append("sales.orders", arrow([(len(attempts), 1)]))

    catalog.append("sales.orders", arrow([(0, 1)]))
    assert states(runner_of(lake, copying(slow)).run()) == ["committed"]
    assert attempts == [1] * rounds, "a lost race is no failed attempt"
    assert stored(catalog, "mart.log") == [(n, 1) for n in range(rounds)]


def test_a_failure_of_work_that_a_rival_has_done_parks_nothing(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)

    def beaten(run: PlainRun) -> None:
        assert states(runner_of(lake, copying()).run()) == ["committed"]
        raise ValueError("the moon is wrong")

    catalog.append("sales.orders", arrow([(1, 1)]))
    pipeline = copying(beaten)
    assert states(runner_of(lake, pipeline).run()) == ["nothing"]
    assert [status.state for status in pipeline.status(catalog)] == ["running"]


def test_a_second_sigterm_abandons_the_call_that_runs(catalog: alpheus.Catalog) -> None:
    def endless(run: PlainRun) -> None:
        run.put("mart.log", run.rows("orders"))
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait()

    catalog.append("sales.orders", arrow([(1, 1)]))
    before = signal.getsignal(signal.SIGTERM), catalog.version()
    with pytest.raises(KeyboardInterrupt):
        runner_of(PlainLake(catalog), copying(endless)).serve()
    assert (signal.getsignal(signal.SIGTERM), catalog.version()) == before


def test_when_spark_has_ended_the_runner_ends_and_parks_nothing(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)

    def gone(run: PlainRun) -> None:
        lake.up = False
        raise ConnectionRefusedError("nobody at the other end")

    catalog.append("sales.orders", arrow([(1, 1)]))
    pipeline = copying(gone)
    with pytest.raises(ConnectionRefusedError) as caught:
        runner_of(lake, pipeline).run()
    assert caught.value.__notes__ == ["Spark has ended in this process: restart the process"]
    assert catalog.list_pipelines() == []
    lake.up = True
    assert states(runner_of(lake, copying()).run()) == ["committed"]


def test_a_full_refresh_sees_rows_of_others_that_came_after_it_looked(catalog: alpheus.Catalog) -> None:
    """A full refresh notices rows that others write after its first check, while earlier jobs run."""
    lake = PlainLake(catalog)
    refreshing = [False]
    pipeline = Pipeline("mart", retries=3, lease=0)

    @pipeline.job(inputs={"orders": changes("sales.orders")}, outputs=["mart.total"])
    def first(run: Any) -> None:
        if refreshing[0]:
            catalog.append("mart.log", arrow([(-1, 1)]))

    @pipeline.job(inputs={"orders": changes("sales.orders")}, outputs=["mart.log"])
    def second(run: Any) -> None:
        run.put("mart.log", run.rows("orders"))

    catalog.append("sales.orders", arrow([(1, 1)]))
    runner_of(lake, pipeline).run()
    refreshing[0] = True
    with pytest.raises(Conflict, match="holds rows that the job did not write"):
        runner_of(lake, pipeline).run(full_refresh=True)
    assert stored(catalog, "mart.log") == [(-1, 1), (1, 1)]
    assert {status.state for status in pipeline.status(catalog)} == {"running"}


def test_restored_and_bound_inputs_are_followed(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    old = catalog.append("sales.orders", arrow([(1, 1), (2, 1)])).version
    runner_of(lake, copying()).run()
    catalog.create_view("sales.v", "SELECT 1", references=["sales.orders"], schema_binding=True)
    catalog.drop_view("sales.v")
    assert states(runner_of(lake, copying()).run()) == ["nothing"]
    catalog.overwrite("sales.orders", arrow([(3, 1)]))
    catalog.restore_table("sales.orders", old)
    assert states(runner_of(lake, copying()).run()) == ["committed"]
    later = [(1, -1), (2, -1), (3, 1), (3, -1), (1, 1), (2, 1)]
    assert stored(catalog, "mart.log") == sorted([(1, 1), (2, 1), *later])


@pytest.mark.parametrize("way", ["renamed", "dropped", "dropped with its namespace", "all at once"])
def test_an_input_that_went_and_came_back_is_no_silent_loss(catalog: alpheus.Catalog, way: str) -> None:
    lake = PlainLake(catalog)
    catalog.append("sales.orders", arrow([(1, 1)]))
    runner_of(lake, copying()).run()
    old = catalog.version()
    match way:
        case "renamed":
            catalog.rename_table("sales.orders", "sales.away")
            catalog.append("sales.away", arrow([(2, 1)]))
            catalog.rename_table("sales.away", "sales.orders")
        case "dropped":
            catalog.drop_table("sales.orders")
            catalog.undrop("sales.orders", at=old)
        case "dropped with its namespace":
            catalog.drop_namespace("sales", cascade=True)
            catalog.undrop("sales", at=old)
        case _:
            with catalog.transaction() as tx:
                tx.append("sales.orders", arrow([(2, 1)]))
                tx.drop_namespace("sales", cascade=True)
                tx.undrop("sales", at=old)
    [result] = runner_of(lake, copying()).run()
    assert (result.state, result.error) == ("committed", "")
    log = Counter(stored(catalog, "mart.log"))
    there = Counter(id_ for id_, change in log.elements() for _ in range(change == 1))
    there.subtract(id_ for id_, change in log.elements() if change == -1)
    assert sorted(there.elements()) == [id_ for id_, _ in stored(catalog, "sales.orders")]


def test_a_table_that_comes_back_under_another_name_loses_no_rows(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    seen: list[list[Row]] = []
    pipeline = copying(
        lambda run: seen.extend((run.rows("orders"), run.rows("lines"))), lines=appends("sales.lines")
    )
    driver = runner_of(lake, pipeline)
    catalog.append("sales.orders", arrow([(1, 1)]))
    driver.run()
    catalog.append("sales.orders", arrow([(2, 1)]))
    catalog.drop_table("sales.orders")
    catalog.append("sales.lines", arrow([(10, 1)]))
    catalog.undrop("sales.orders", as_name="sales.back")
    catalog.append("sales.back", arrow([(3, 1)]))
    seen.clear()
    assert states(driver.run()) == ["committed"]
    assert seen == [[(2, 1), (3, 1)], [(10, 1)]]
    catalog.append("sales.back", arrow([(4, 1)]))
    seen.clear()
    assert states(driver.run()) == ["committed"]
    assert seen == [[(4, 1)], []]


def test_a_table_that_comes_back_as_it_was_under_an_older_name_takes_out_what_it_lost(
    catalog: alpheus.Catalog,
) -> None:
    lake = PlainLake(catalog)
    old = catalog.append("sales.orders", arrow([(1, 1)])).version
    catalog.rename_table("sales.orders", "sales.away")
    catalog.append("sales.away", arrow([(2, 1)]))
    pipeline = Pipeline("mart", retries=0, lease=0)

    @pipeline.job(inputs={"orders": changes("sales.away")}, outputs=["mart.log"])
    def daily(run: Any) -> None:
        run.put("mart.log", run.rows("orders"))

    assert states(runner_of(lake, pipeline).run()) == ["committed"]
    with catalog.transaction() as tx:
        tx.drop_table("sales.away")
        tx.undrop("sales.orders", at=old)
        tx.append("sales.orders", arrow([(3, 1)]))
    [result] = runner_of(lake, pipeline).run()
    assert (result.state, result.error) == ("committed", "")
    assert stored(catalog, "mart.log") == [(1, 1), (2, -1), (2, 1), (3, 1)]


def test_a_way_that_the_log_does_not_tell_parks_the_job(
    catalog: alpheus.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.append("sales.orders", arrow([(1, 1)]))
    driver = runner_of(PlainLake(catalog), copying())
    [result] = driver.run()
    monkeypatch.setattr(TableTrail, "take", lambda self, event: [])
    catalog.rename_table("sales.orders", "sales.away")
    catalog.append("sales.away", arrow([(2, 1)]))
    monkeypatch.setattr(work.Planner, "_find_renamed_input", lambda *_: catalog.load_table("sales.away"))
    [lost] = driver.run()
    assert lost.state == "parked"
    assert "the log up to version" in lost.error
    assert catalog.load_pipeline("mart").jobs["daily"].pinned_version == result.pinned


def test_a_restore_across_a_compaction_takes_back_what_was_appended(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    seen: list[list[Row]] = []
    pipeline = Pipeline("mart", retries=0, lease=0)

    @pipeline.job(inputs={"orders": appends("sales.orders")}, outputs=["mart.log"])
    def daily(run: Any) -> None:
        seen.append(run.rows("orders"))

    catalog.append("sales.orders", arrow([(1, 1)]))
    old = catalog.append("sales.orders", arrow([(2, 1)])).version
    runner_of(lake, pipeline).run()
    catalog.compact("sales.orders")
    catalog.append("sales.orders", arrow([(3, 1)]))
    catalog.restore_table("sales.orders", old)
    catalog.append("sales.orders", arrow([(4, 1)]))
    assert states(runner_of(lake, pipeline).run()) == ["committed"]
    assert seen[1:] == [[(4, 1)]]

    # Restore to a moment before the position, with a compaction in between, and to a moment after the position.
    middle = catalog.append("sales.orders", arrow([(5, 1)])).version
    catalog.compact("sales.orders")
    catalog.append("sales.orders", arrow([(6, 1)]))
    catalog.restore_table("sales.orders", middle)
    assert states(runner_of(lake, pipeline).run()) == ["committed"]
    read = catalog.append("sales.orders", arrow([(7, 1)])).version
    catalog.compact("sales.orders")
    assert states(runner_of(lake, pipeline).run()) == ["committed"]
    catalog.append("sales.orders", arrow([(8, 1)]))
    catalog.restore_table("sales.orders", read)
    assert states(runner_of(lake, pipeline).run()) == ["committed"]
    assert seen[2:] == [[(5, 1)], [(7, 1)], []]

    lost = catalog.restore_table("sales.orders", middle).version
    [result] = runner_of(lake, pipeline).run()
    assert (result.state, f"version {lost} overwrote the table or removed rows" in result.error) == (
        "parked",
        True,
    )


def test_a_rewind_wakes_a_runner_and_a_run_does_not(catalog: alpheus.Catalog) -> None:
    pipeline = copying()
    begin = catalog.version()
    catalog.append("sales.orders", arrow([(1, 1)]))
    before = catalog.version()
    runner_of(PlainLake(catalog), pipeline).run()
    middle = catalog.version()
    pipeline.rewind(catalog, begin)

    def woken(after: int, until: int) -> set[str]:
        inbox = Inbox()
        with log.read_events(catalog, after=after, until=until, kinds=["pipeline"]) as events:
            for event in events:
                inbox.put(event, "mart")
        return inbox.take()[0]

    assert (woken(before, middle), woken(middle, catalog.version())) == (set(), {"mart"})


def test_a_full_refresh_follows_an_output_through_its_names(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    catalog.append("sales.orders", arrow([(1, 1)]))
    runner_of(lake, copying()).run()
    catalog.rename_table("mart.log", "mart.away")
    catalog.rename_table("mart.away", "mart.log")
    assert states(runner_of(lake, copying()).run(full_refresh=True)) == ["committed"]
    with catalog.transaction() as tx:
        tx.rename_table("mart.log", "mart.away")
        tx.append("mart.away", arrow([(-1, 1)]))
        tx.rename_table("mart.away", "mart.log")
    with pytest.raises(Conflict, match="holds rows that the job did not write"):
        runner_of(lake, copying()).run(full_refresh=True)
    catalog.drop_table("mart.log")
    catalog.create_table("mart.log", SCHEMA)  # a new table, which has nothing to do with the old one
    assert states(runner_of(lake, copying()).run(full_refresh=True)) == ["committed"]


# --- whatever happens ------------------------------------------------------------------------------


class Crash(BaseException):
    """The process died."""


class World:
    """Actors that take their steps at the points that a driver passes."""

    def __init__(self, seed: int, catalog: alpheus.Catalog) -> None:
        self.random = random.Random(seed)
        self.catalog = catalog
        self.lake = PlainLake(catalog)
        self.max_versions = (None, 1, 2)[seed % 4 % 3]
        self.pipeline = self._declared()
        self.begin = catalog.version()
        self.next_id = 0
        self.foreign: list[Row] = []
        self.with_foreign = seed % 3 == 0
        self.depth = 0
        self.calm = False
        self.happened: Counter[str] = Counter()

    def _declared(self) -> Pipeline:
        pipeline = Pipeline("mart", retries=1, backoff=1, lease=0)

        @pipeline.job(
            inputs={"orders": changes("sales.orders")},
            outputs=["mart.log", "mart.total"],
            max_versions=self.max_versions,
        )
        def log(run: Any) -> None:
            self.point("job")
            run.put("mart.log", run.rows("orders"))
            self.point("job")
            run.put("mart.total", run.all("orders"), replace=True)
            self.point("job")

        @pipeline.job(
            inputs={"lines": appends("sales.lines"), "orders": table("sales.orders")}, outputs=["mart.lines"]
        )
        def lines(run: Any) -> None:
            run.put("mart.lines", run.rows("lines"))
            self.point("job")

        @pipeline.job(inputs={"lines": appends("mart.lines")}, outputs=["mart.copy"])
        def copy(run: Any) -> None:
            self.point("job")
            run.put("mart.copy", run.rows("lines"))

        return pipeline

    # -- actors

    def new_rows(self) -> pa.Table:
        count = self.random.randint(1, 3)
        self.next_id += count
        return arrow((id_, 1) for id_ in range(self.next_id - count, self.next_id))

    def load(self) -> None:
        with self.catalog.transaction() as tx:
            for name in self.random.choice((["orders"], ["lines"], ["orders", "lines", "orders"])):
                replace = name == "orders" and self.random.random() < 0.3
                (tx.overwrite if replace else tx.append)(f"sales.{name}", self.new_rows())

    def replace_input(self) -> None:
        self.catalog.drop_table("sales.orders")
        if self.random.random() < 0.5:
            self.catalog.create_table("sales.orders", self.new_rows())
        else:
            self.catalog.create_table("sales.orders", SCHEMA)

    def write_foreign(self) -> None:
        row = (-1 - len(self.foreign), 1)
        self.foreign.append(row)
        self.catalog.append("mart.log", arrow([row]))

    def drive(self, *, full: bool = False) -> list[RunResult]:
        """Run one process from its start to its end, however it ends."""
        self.depth += 1
        try:
            return runner_of(self.lake, self.pipeline).run(full_refresh=full)
        except Crash:
            return []
        except Conflict as error:
            if not full or not self.foreign or "rows that the job did not write" not in error.message:
                raise
            return []
        finally:
            self.depth -= 1

    def resume(self) -> None:
        for status in self.pipeline.status(self.catalog):
            if status.state == "parked":
                self.pipeline.resume(self.catalog, status.job)

    def rewind(self) -> None:
        """Let a person take jobs back to some version, or try to."""
        jobs = self.random.choice((None, None, "log", "lines", "copy"))
        try:
            self.pipeline.rewind(self.catalog, self.random.randint(self.begin, self.catalog.version()), jobs)
            self.happened["rewound"] += 1
        except (NotFound, OutcomeUnknown):  # the jobs never ran; the request was lost
            pass
        except Conflict as error:
            # Others wrote, or a job that shares the output or was rewound with the output.
            if "others changed outputs" not in error.message and not error.retryable:
                raise

    # -- points

    def point(self, where: str) -> None:
        if self.calm or self.random.random() < 0.5:
            return
        steps: dict[str, tuple[int, Callable[[], object]]] = {
            "load": (4, self.load),
            "crash": (2, self._crash),
            "outage": (1, self._outage),
        }
        if self.depth < 3:
            steps["rival"] = (3, self.drive)
            steps["refresh"] = (1, lambda: self.drive(full=True))
            steps["resume"] = (1, self.resume)
            steps["rewind"] = (1, self.rewind)
            if self.with_foreign:
                steps["foreign"] = (1, self.write_foreign)
            else:
                steps["replace"] = (1, self.replace_input)
        if where == "job":
            steps["failure"] = (1, self._failure)
        [name] = self.random.choices(list(steps), [weight for weight, _ in steps.values()])
        self.happened[name] += 1
        steps[name][1]()

    def _crash(self) -> None:
        raise Crash

    def _outage(self) -> None:
        raise Unavailable("the store is away")

    def _failure(self) -> None:
        raise ValueError("the moon is wrong")

    def commit(self, original: Callable[[Any], Any], tx: alpheus.Transaction) -> Any:
        """Commit for a driver. The commit may never be sent, be sent and never be applied, or lose its reply."""
        self.point("before commit")
        fate = 1.0 if self.calm else self.random.random()
        if fate < 0.1:
            self.happened["lost before"] += 1
            raise OutcomeUnknown("the request was lost", transaction_id=tx.id)
        result = original(tx)
        if fate < 0.2:
            self.happened["lost after"] += 1
            raise OutcomeUnknown("the reply was lost", transaction_id=tx.id)
        self.point_after_commit()
        return result

    def point_after_commit(self) -> None:
        if not self.calm and self.random.random() < 0.1:
            self.happened["crash after"] += 1
            raise Crash

    # -- the end

    def settle(self) -> None:
        """End all trouble, and process everything that can be processed."""
        self.calm = True
        self.resume()
        if "parked" in self.drive_on():
            # An input was replaced, or an output that a reader of appends reads was refreshed or rewound.
            self.drive(full=True)
        assert self.drive_on() <= {"nothing", "parked"}

    def drive_on(self) -> set[str]:
        """Run until nothing commits, and return the last states."""
        for _ in range(100):
            states = {result.state for result in self.drive()}
            if "committed" not in states:
                return states
        raise AssertionError("it never ends")

    def check(self) -> None:
        parked = {status.job for status in self.pipeline.status(self.catalog) if status.state == "parked"}
        assert not parked or self.foreign, f"nothing stands in the way of {parked}"
        total = stored(self.catalog, "mart.total")
        log = Counter(stored(self.catalog, "mart.log"))
        assert all(log[row] == 1 for row in self.foreign), "rows of others are never lost"
        own = log - Counter(self.foreign)
        assert set(own.values()) <= {1}, "nothing is worked in twice"
        assert {(id_, 1) for id_, change in own if change == 1 and (id_, -1) not in own} == set(total)
        if "log" not in parked:
            assert total == stored(self.catalog, "sales.orders")
        if "lines" not in parked:
            assert stored(self.catalog, "mart.lines") == stored(self.catalog, "sales.lines")
        if "copy" not in parked:
            assert stored(self.catalog, "mart.copy") == stored(self.catalog, "mart.lines")


def test_whatever_happens_each_version_is_worked_in_once(
    monkeypatch: pytest.MonkeyPatch, lane_count: Callable[[int, int], int]
) -> None:
    original = alpheus.Transaction.commit
    world: World | None = None

    def commit(tx: alpheus.Transaction) -> Any:
        ours = any(type(operation).__name__ == "AdvancePipeline" for operation in tx.operations)
        return world.commit(original, tx) if world is not None and ours and world.depth else original(tx)

    monkeypatch.setattr(alpheus.Transaction, "commit", commit)
    happened: Counter[str] = Counter()
    for seed in range(lane_count(3, 1000)):
        with fresh_catalog() as catalog:
            world = World(seed, catalog)
            try:
                for _ in range(world.random.randint(2, 6)):
                    world.load()
                    world.drive()
                world.settle()
                world.check()
            except (AssertionError, AlpheusError, ValueError) as error:
                error.add_note(f"seed {seed}: {dict(world.happened)}")
                raise
        happened += world.happened
        world = None
    assert len(happened) == 14, happened  # every actor acted
