"""Options of jobs, and operations on pipelines besides running them, on a lake without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from plain_lake import PlainLake, PlainRun, arrow, catalog, copying, runner_of, states, stored

import alpheus
from alpheus.errors import Conflict, Expired, NotFound, Unavailable
from alpheus.feed import log
from alpheus.pipeline import Pipeline, RunResult, appends, changes, failures, runner, table
from alpheus.pipeline.lease import Leases
from alpheus.pipeline.work import Idle, Planner
from alpheus.sync.portal import run as in_loop
from alpheus_journal import format as fmt

__all__ = ["catalog"]

Row = tuple[int, int]

# --- where an input begins -------------------------------------------------------------------------


def test_an_input_begins_where_it_was_declared_to(catalog: alpheus.Catalog) -> None:
    catalog.append("sales.orders", arrow([(1, 1)]))
    after_one = catalog.append("sales.orders", arrow([(2, 1)])).version - 1
    moment = catalog.at(after_one).info.created_at
    made_later = catalog.version()
    catalog.create_table("sales.late", arrow([(7, 1)]))
    seen: dict[str, list[Row]] = {}
    pipeline = Pipeline("mart", lease=0)

    @pipeline.job(
        inputs={
            "now": changes("sales.orders", start="now"),
            "version": appends("sales.orders", start=after_one),
            "text": changes("sales.orders", start=str(after_one)),
            "time": changes("sales.orders", start=moment),
            "late": appends("sales.late", start=made_later),
            "all": appends("sales.orders"),
        },
        outputs=[],
    )
    def look(run: Any) -> None:
        seen.update({key: run.rows(key) for key in run._job.inputs})

    [result] = runner_of(PlainLake(catalog), pipeline).run()
    two = [(2, 1)]
    assert seen.pop("time") in (two, [(1, 1), (2, 1)])  # two versions may have the same millisecond
    assert seen == {"now": [], "version": two, "text": two, "late": [(7, 1)], "all": [(1, 1), (2, 1)]}
    position = catalog.load_pipeline("mart").jobs["look"].inputs
    assert {each.version for each in position.values()} == {result.pinned}
    catalog.append("sales.orders", arrow([(3, 1)]))
    assert states(runner_of(PlainLake(catalog), pipeline).run()) == ["committed"]
    assert [seen[key] for key in ("now", "version", "time", "late")] == [[(3, 1)], [(3, 1)], [(3, 1)], []]
    assert states(runner_of(PlainLake(catalog), pipeline).run(full_refresh=True)) == ["committed"]
    assert (seen["now"], seen["version"]) == ([], [(2, 1), (3, 1)]), "as if for the first time"


def test_a_beginning_that_is_not_there_parks_the_job(catalog: alpheus.Catalog) -> None:
    pipeline = copying(orders=changes("sales.orders", start=10_000))
    [result] = runner_of(PlainLake(catalog), pipeline).run()
    assert (result.state, "10000" in result.error) == ("parked", True), result


# --- how often, how much ---------------------------------------------------------------------------


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def periodic(**arguments: Any) -> tuple[Pipeline, list[int]]:
    pipeline = Pipeline("mart", retries=0, lease=0)
    calls: list[int] = []

    @pipeline.job(name="daily", outputs=[], **({"inputs": {"orders": changes("sales.orders")}} | arguments))
    def daily(run: Any) -> None:
        calls.append(run.version)

    return pipeline, calls


def test_a_job_with_a_period_waits_for_it_and_for_work(catalog: alpheus.Catalog) -> None:
    clock = Clock()
    pipeline, calls = periodic(every="1h")
    driver = runner_of(PlainLake(catalog), pipeline, now=clock)
    assert states(driver.run()) == ["committed"], "the first at once"
    catalog.append("sales.orders", arrow([(1, 1)]))
    clock.pass_(3599)
    [result] = driver.run()
    assert (result.state, result.error) == (
        "nothing",
        "is called every 1:00:00, next at 2026-01-01 01:00:00 UTC",
    )
    clock.pass_(1)
    assert states(driver.run()) == ["committed"]
    clock.pass_(7200)
    assert states(driver.run()) == ["nothing"], "no work"
    catalog.append("sales.orders", arrow([(2, 1)]))
    assert states(driver.run()) == ["committed"]
    assert states(driver.run(full_refresh=True)) == ["committed"], "that waits for nothing"
    assert len(calls) == 4
    assert catalog.load_pipeline("mart").jobs["daily"].called_at == clock.now
    clock.pass_(-3599)
    catalog.append("sales.orders", arrow([(3, 1)]))
    [result] = driver.run()
    assert "next at 2026-01-01 03:00:01" in result.error, (
        "another's clock makes none wait longer than a period"
    )
    clock.pass_(-500_000)
    assert states(driver.run()) == ["committed"], "nor each time anew, when it was days ahead"
    catalog.append("sales.orders", arrow([(4, 1)]))
    [result] = driver.run()
    assert "next at 2025-12-26 08:06:41" in result.error


def test_a_job_with_nothing_but_a_period_runs_each_period(catalog: alpheus.Catalog) -> None:
    clock = Clock()
    pipeline, calls = periodic(every=60, inputs={"orders": table("sales.orders")})
    driver = runner_of(PlainLake(catalog), pipeline, now=clock)
    for expected in ("committed", "nothing", "committed"):
        assert states(driver.run()) == [expected]
        clock.pass_(30)
    assert len(calls) == 2


def test_a_period_begins_with_the_call_however_long_that_takes(catalog: alpheus.Catalog) -> None:
    clock = Clock()
    pipeline = Pipeline("mart", retries=0, lease=0)
    waits: list[float] = []

    @pipeline.job(inputs={"orders": table("sales.orders")}, outputs=[], every=60)
    def slow(run: Any) -> None:
        clock.pass_(45)

    driver = runner_of(PlainLake(catalog), pipeline, now=clock)
    for expected in ("committed", "nothing"):
        tries = failures.Tries()
        result = driver._step(pipeline.jobs["slow"], tries, False)
        assert result is not None
        assert result.state == expected
        waits.append(tries.retry_in or 0)
    assert waits == [15, 15]


def test_serving_calls_a_job_each_period(catalog: alpheus.Catalog) -> None:
    stop = threading.Event()
    pipeline, _ = periodic(every=0.05, inputs={"orders": table("sales.orders")})
    results: list[RunResult] = []

    def on_result(result: RunResult) -> None:
        results.append(result)
        if len(results) == 4:
            stop.set()

    runner.Runner(PlainLake(catalog), pipeline).serve(on_result=on_result, stop=stop)
    assert states(results) == ["committed"] * 4
    times = [result.called_at for result in results if result.called_at]
    assert all(later - earlier >= timedelta(seconds=0.05) for earlier, later in pairwise(times))


def test_a_parked_job_that_is_resumed_keeps_the_time_of_its_last_call(catalog: alpheus.Catalog) -> None:
    clock = Clock()
    pipeline = Pipeline("mart", retries=0, lease=0)
    broken = [False]

    @pipeline.job(inputs={"orders": changes("sales.orders")}, outputs=[], every=100)
    def daily(run: Any) -> None:
        if broken[0]:
            raise ValueError("the moon is wrong")

    driver = runner_of(PlainLake(catalog), pipeline, now=clock)
    driver.run()
    called = clock.now
    catalog.append("sales.orders", arrow([(1, 1)]))
    clock.pass_(100)
    broken[0] = True
    assert states(driver.run()) == ["parked"]
    clock.pass_(1)
    pipeline.resume(catalog, "daily")
    assert catalog.load_pipeline("mart").jobs["daily"].called_at == called
    broken[0] = False
    assert states(driver.run()) == ["committed"]


def sliced(seen: list[tuple[int, dict[str, list[Row]]]], **arguments: Any) -> Pipeline:
    pipeline = Pipeline("mart", retries=0, lease=0)
    declared = {
        "inputs": {
            "orders": changes("sales.orders"),
            "lines": appends("sales.lines"),
            "copy": table("mart.copy"),
            "log": table("mart.log"),
        },
        "outputs": ["mart.log"],
        "max_versions": 2,
    }

    @pipeline.job(name="daily", **(declared | arguments))
    def daily(run: Any) -> None:
        rows = {key: run.rows(key) for key in ("orders", "lines")}
        rows |= {key: run.all(key) for key in ("copy", "log")}
        seen.append((run.version, rows))
        run.put("mart.log", [(-run.version, 1)])

    return pipeline


def test_a_run_works_in_so_many_versions_at_most(catalog: alpheus.Catalog) -> None:
    seen: list[tuple[int, dict[str, list[Row]]]] = []
    pipeline = sliced(seen)
    driver = runner_of(PlainLake(catalog), pipeline)
    driver.run()
    versions = []
    for number in range(5):
        with catalog.transaction() as tx:
            tx.append("sales.orders" if number % 2 else "sales.lines", arrow([(number, 1)]))
            tx.append("mart.copy", arrow([(number, 1)]))
        versions.append(catalog.version())
        catalog.create_namespace(f"n{number}")  # a version of no input
    results = [driver.run()[0] for _ in range(4)]
    assert states(results) == ["committed", "committed", "committed", "nothing"]
    assert [result.more for result in results] == [True, True, False, False]
    head_at_last = results[1].version
    assert [result.pinned for result in results[:3]] == [versions[1], versions[3], head_at_last]
    slices = [(rows["orders"], rows["lines"], len(rows["copy"])) for _, rows in seen[1:]]
    assert slices == [
        ([(1, 1)], [(0, 1)], 2),
        ([(3, 1)], [(2, 1)], 4),
        ([], [(4, 1)], 5),
    ], "other inputs are those of the same version"
    # A run reads its own output as it is now: three runs see what all runs before them wrote.
    assert [len(rows["log"]) for _, rows in seen] == [0, 1, 2, 3]
    assert [result.input_version for result in results[:3]] == [versions[1], versions[3], versions[4]]


def test_a_run_of_all_goes_on_to_where_each_has_something(catalog: alpheus.Catalog) -> None:
    seen: list[tuple[int, dict[str, list[Row]]]] = []
    driver = runner_of(PlainLake(catalog), sliced(seen, when="all", max_versions=1))
    driver.run()
    for number in range(3):
        catalog.append("sales.orders", arrow([(number, 1)]))
    assert states(driver.run()) == ["nothing"]
    catalog.append("sales.lines", arrow([(9, 1)]))
    pinned = catalog.version()
    catalog.append("sales.orders", arrow([(3, 1)]))
    [result] = driver.run()
    assert (result.state, result.pinned, result.more) == ("committed", pinned, True)
    assert seen[-1][1]["orders"] == [(0, 1), (1, 1), (2, 1)]
    assert states(driver.run()) == ["nothing"], "it waits for the other"


def test_an_older_version_is_read_under_the_names_of_then(catalog: alpheus.Catalog) -> None:
    seen: list[tuple[int, dict[str, list[Row]]]] = []
    driver = runner_of(PlainLake(catalog), sliced(seen, max_versions=1))
    driver.run()
    catalog.append("sales.orders", arrow([(1, 1)]))
    catalog.rename_table("sales.orders", "sales.renamed")
    catalog.append("sales.renamed", arrow([(2, 1)]))
    assert [driver.run()[0].more for _ in range(2)] == [True, False]
    assert [rows["orders"] for _, rows in seen[1:]] == [[(1, 1)], [(2, 1)]]


def test_no_run_reads_back_behind_the_one_before(catalog: alpheus.Catalog) -> None:
    """No run reads behind the version of the run before, though a new input may begin far back."""
    lake = PlainLake(catalog)
    for number in range(4):
        catalog.append("sales.lines", arrow([(number, 1)]))
    catalog.append("sales.orders", arrow([(1, 1)]))
    begin = catalog.version() - 5
    [first] = runner_of(lake, copying()).run()
    seen: list[tuple[int, dict[str, list[Row]]]] = []
    more = sliced(
        seen,
        max_versions=1,
        inputs={
            "orders": changes("sales.orders"),
            "lines": appends("sales.lines", start=begin),
            "copy": table("mart.copy"),
            "log": table("mart.log"),
        },
    )
    catalog.append("sales.lines", arrow([(4, 1)]))
    catalog.append("sales.lines", arrow([(5, 1)]))
    [result] = runner_of(lake, more).run()
    assert (result.pinned, result.more) == (first.pinned, True)
    assert seen[-1][1]["lines"] == [(number, 1) for number in range(4)]
    assert states(runner_of(lake, more).run()) == ["committed"]
    assert seen[-1][1]["lines"] == [(4, 1)]


def test_serving_works_off_what_a_slice_left(catalog: alpheus.Catalog) -> None:
    stop = threading.Event()
    seen: list[tuple[int, dict[str, list[Row]]]] = []
    pipeline = sliced(seen, max_versions=1)
    lake = PlainLake(catalog)
    runner_of(lake, pipeline).run()
    for number in range(3):
        catalog.append("sales.orders", arrow([(number, 1)]))
    results: list[RunResult] = []

    def on_result(result: RunResult) -> None:
        results.append(result)
        if not result.more:
            stop.set()

    runner.Runner(lake, pipeline).serve(on_result=on_result, stop=stop)
    assert [result.more for result in results] == [True, True, False]


# --- inputs that move meanwhile --------------------------------------------------------------------


def test_a_serializable_job_runs_again_when_an_input_advanced(catalog: alpheus.Catalog) -> None:
    pipeline = Pipeline("mart", retries=0, lease=0)
    disturbances = [
        lambda: catalog.append("sales.lines", arrow([(1, 1)])),  # a table input counts
        lambda: catalog.append("sales.orders", arrow([(2, 1)])),
        # These changes do not count: positions of others, appends to an output, other tables.
        lambda: (catalog.append("mart.log", arrow([(-1, 1)])), catalog.append("mart.copy", arrow([(3, 1)]))),
    ]
    attempts: list[int] = []

    @pipeline.job(inputs={"orders": changes("sales.orders")}, outputs=["mart.total"])
    def other(run: Any) -> None:
        run.put("mart.total", run.all("orders"), replace=True)

    @pipeline.job(
        inputs={"orders": changes("sales.orders"), "lines": table("sales.lines")},
        outputs=["mart.log"],
        serializable=True,
    )
    def strict(run: Any) -> None:
        run.put("mart.log", run.rows("orders"))
        attempts.append(run.attempt)
        disturbances[run.attempt - 1]()
        if run.attempt == 3:
            runner_of(lake, pipeline, jobs=["other"]).run()

    lake = PlainLake(catalog)
    results = runner_of(lake, pipeline).run()
    assert (states(results), attempts) == (["committed", "committed"], [1, 2, 3])
    assert stored(catalog, "mart.log") == [(-1, 1), (2, 1)]
    entry = next(iter(catalog.log(name="mart.log")))
    assert entry.transaction.isolation == "serializable"


@pytest.mark.parametrize("then", ["fail", "full"])
def test_what_happens_when_history_is_gone(
    catalog: alpheus.Catalog, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    pipeline = Pipeline("mart", retries=5, on_expired=then, lease=0)
    fulls: list[bool] = []

    @pipeline.job(inputs={"orders": changes("sales.orders")}, outputs=["mart.log"])
    def daily(run: Any) -> None:
        fulls.append(run.is_full)
        run.put("mart.log", run.rows("orders"))

    lake = PlainLake(catalog)
    catalog.append("sales.orders", arrow([(1, 1)]))
    runner_of(lake, pipeline).run()
    catalog.overwrite("sales.orders", arrow([(2, 1)]))
    oldest = catalog.version()
    events = log.stored_events

    def gone(session: Any, **arguments: Any) -> Any:
        if arguments["after"] < oldest:
            raise Expired(f"version {arguments['after']} is gone", oldest=oldest)
        return events(session, **arguments)

    monkeypatch.setattr(log, "stored_events", gone)
    assert [(status.lag_versions, status.lag_seconds) for status in pipeline.status(catalog)] == [
        (None, None)
    ]
    [result] = runner_of(lake, pipeline).run()
    if then == "fail":
        assert (result.state, 'on_expired="full"' in result.error) == ("parked", True)
        assert stored(catalog, "mart.log") == [(1, 1)]
        return
    assert (result.state, fulls) == ("committed", [True, True])
    assert stored(catalog, "mart.log") == [(2, 1)]
    catalog.append("mart.log", arrow([(-1, 1)]))
    catalog.append("sales.orders", arrow([(3, 1)]))
    oldest = catalog.version()
    [result] = runner_of(lake, pipeline).run()
    assert (result.state, result.attempts, "holds rows that the job did not write" in result.error) == (
        "parked",
        1,
        True,
    )


def test_a_renamed_input_is_followed_and_another_of_its_name_is_not(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    catalog.append("sales.orders", arrow([(1, 1)]))
    driver = runner_of(lake, copying())
    driver.run()
    catalog.append("sales.orders", arrow([(2, 1)]))
    catalog.rename_table("sales.orders", "sales.moved")
    catalog.append("sales.moved", arrow([(3, 1)]))
    catalog.create_table("sales.orders", arrow([(99, 1)]))
    assert states(driver.run()) == ["committed"]
    catalog.append("sales.moved", arrow([(4, 1)]))
    catalog.append("sales.orders", arrow([(100, 1)]))
    for each in (driver, runner_of(lake, copying())):
        each.run()
        catalog.append("sales.moved", arrow([(5 + (each is not driver), 1)]))
    catalog.rename_table("sales.moved", "sales.again")
    assert states(driver.run()) == ["committed"]
    assert stored(catalog, "mart.log") == [(number, 1) for number in range(1, 7)]
    catalog.drop_table("sales.again")
    [result] = driver.run()
    assert (result.state, "is another table, of id" in result.error) == ("parked", True)


def test_serving_follows_an_input_to_its_new_name(catalog: alpheus.Catalog) -> None:
    stop = threading.Event()
    lake = PlainLake(catalog)
    results: list[RunResult] = []
    steps = iter(
        [
            lambda: catalog.rename_table("sales.orders", "sales.moved"),
            lambda: catalog.append("sales.moved", arrow([(1, 1)])),
            lambda: catalog.append("sales.moved", arrow([(2, 1)])),
            stop.set,
        ]
    )

    def on_result(result: RunResult) -> None:
        results.append(result)
        next(steps)()
        if len(results) == 1:
            next(steps)()

    runner.Runner(lake, copying()).serve(on_result=on_result, stop=stop)
    assert states(results) == ["committed"] * 3
    assert stored(catalog, "mart.log") == [(1, 1), (2, 1)]


def test_serving_is_woken_by_nothing_but_an_undrop_under_another_name(
    catalog: alpheus.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = PlainLake(catalog)
    catalog.append("sales.orders", arrow([(1, 1)]))
    runner_of(lake, copying()).run()
    catalog.append("sales.orders", arrow([(2, 1)]))
    catalog.drop_table("sales.orders")
    stop = threading.Event()
    results: list[RunResult] = []
    find_work = Planner.find_work

    def work(self: Planner, *arguments: Any) -> Any:
        found = find_work(self, *arguments)
        if isinstance(found, Idle) and found.reason:
            catalog.undrop("sales.orders", as_name="sales.back")
        return found

    def on_result(result: RunResult) -> None:
        results.append(result)
        stop.set()

    monkeypatch.setattr(Planner, "find_work", work)
    late = threading.Timer(60, stop.set)  # stops the runner if the test fails
    late.start()
    runner.Runner(lake, copying()).serve(on_result=on_result, stop=stop)
    late.cancel()
    assert states(results) == ["committed"]
    assert stored(catalog, "mart.log") == [(1, 1), (2, 1)]


# --- what is recorded, and taken back --------------------------------------------------------------


def test_a_run_says_what_it_read(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    pipeline = copying(lines=appends("sales.lines"), copy=table("mart.copy"))
    [first] = runner_of(lake, pipeline).run()
    catalog.append("sales.orders", arrow([(1, 1)]))
    [second] = runner_of(lake, pipeline).run()
    found = [
        entry.transaction.properties for entry in catalog.log() if entry.transaction.message == "mart.daily"
    ]
    whose = {"alpheus.pipeline": "mart", "alpheus.job": "daily"}
    assert found == [
        whose
        | {
            "alpheus.input.orders": f"sales.orders@{first.pinned}..{second.pinned}",
            "alpheus.input.lines": f"sales.lines@{first.pinned}..{second.pinned}",
            "alpheus.input.copy": f"mart.copy@{second.pinned}",
        },
        whose
        | {
            "alpheus.input.orders": f"sales.orders@{first.pinned}",
            "alpheus.input.lines": f"sales.lines@{first.pinned}",
            "alpheus.input.copy": f"mart.copy@{first.pinned}",
        },
    ]


def test_nothing_but_declared_outputs_commits(catalog: alpheus.Catalog) -> None:
    head = catalog.version()
    [result] = runner_of(
        PlainLake(catalog), copying(lambda run: run._tx.append("mart.total", arrow([(1, 1)])))
    ).run()
    assert (result.state, "AppendFiles on table mart.total" in result.error) == ("parked", True), result.error
    assert stored(catalog, "mart.total") == []
    assert catalog.version() == head + 1, "nothing but that it is parked"


def chained() -> Pipeline:
    """Declare two stages. The second stage reads the rows that the first stage appends."""
    pipeline = Pipeline("mart", retries=0, lease=0)

    @pipeline.job(inputs={"orders": changes("sales.orders")}, outputs=["mart.log", "mart.total"])
    def first(run: Any) -> None:
        run.put("mart.log", run.rows("orders"))
        run.put("mart.total", run.all("orders"), replace=True)

    @pipeline.job(inputs={"log": appends("mart.log")}, outputs=["mart.copy"])
    def second(run: Any) -> None:
        run.put("mart.copy", run.rows("log"))

    return pipeline


def test_a_rewind_takes_outputs_and_positions_back_in_one_commit(catalog: alpheus.Catalog) -> None:
    lake, pipeline = PlainLake(catalog), chained()
    outputs = ("mart.log", "mart.total", "mart.copy")
    driver = runner_of(lake, pipeline)
    driver.run()
    catalog.append("sales.orders", arrow([(1, 1)]))
    driver.run()
    good = catalog.version()
    then = {name: stored(catalog, name) for name in outputs}
    jobs = catalog.load_pipeline("mart").jobs
    catalog.append("sales.orders", arrow([(2, 1)]))
    driver.run()
    catalog.append("sales.orders", arrow([(3, 1)]))
    runner_of(lake, pipeline, jobs=["first"]).run()  # the second stage has not seen this row
    commit = pipeline.rewind(catalog, good)
    assert commit is not None
    assert commit.version == catalog.version()
    assert {name: stored(catalog, name) for name in outputs} == then
    now = catalog.load_pipeline("mart").jobs
    assert {name: (job.pinned_version, job.inputs, job.called_at) for name, job in now.items()} == {
        name: (job.pinned_version, job.inputs, job.called_at) for name, job in jobs.items()
    }
    [entry] = catalog.log(after=commit.version - 1)
    assert entry.transaction.properties == {"alpheus.pipeline": "mart", "alpheus.rewind": str(good)}
    assert pipeline.rewind(catalog, good) is None, "they are there"
    assert catalog.version() == commit.version

    # The second stage gets rows that are appended again once, and never gets rows that were taken back.
    assert states(driver.run()) == ["committed", "committed"]
    for _ in range(2):
        assert stored(catalog, "mart.log") == stored(catalog, "mart.copy") == [(1, 1), (2, 1), (3, 1)]
        assert states(driver.run(full_refresh=True)) == ["committed", "committed"], (
            "a rewind is no foreign write"
        )


def test_a_rewind_brings_back_what_a_run_only_hid(catalog: alpheus.Catalog) -> None:
    """A rewind brings back rows that a run only hid. The files are the same, and only a delete predicate differs."""
    pipeline = Pipeline("mart", retries=0, lease=0)

    @pipeline.job(inputs={"orders": changes("sales.orders")}, outputs=["mart.log"])
    def daily(run: Any) -> None:
        fresh = run.rows("orders")
        if fresh == [(9, 1)]:
            run._tx.delete("mart.log", "id < 3")
        else:
            run.put("mart.log", fresh)

    driver = runner_of(PlainLake(catalog), pipeline)
    catalog.append("sales.orders", arrow([(1, 1), (3, 1)]))
    driver.run()
    good = catalog.version()
    before = catalog.load_table("mart.log").definition
    catalog.append("sales.orders", arrow([(9, 1)]))
    assert states(driver.run()) == ["committed"]
    hidden = catalog.load_table("mart.log").definition
    assert (hidden.segments, len(hidden.delete_predicates)) == (before.segments, 1)
    assert stored(catalog, "mart.log") == [(3, 1)]
    assert pipeline.rewind(catalog, good) is not None
    assert stored(catalog, "mart.log") == [(1, 1), (3, 1)]
    assert pipeline.rewind(catalog, good) is None


def test_a_rewind_to_before_the_first_run_begins_anew(catalog: alpheus.Catalog) -> None:
    lake, pipeline = PlainLake(catalog), chained()
    begin = catalog.version()
    catalog.append("sales.orders", arrow([(1, 1)]))
    for _ in range(2):
        assert states(runner_of(lake, pipeline).run()) == ["committed", "committed"]
        assert stored(catalog, "mart.copy") == [(1, 1)]
        assert pipeline.rewind(catalog, begin) is not None
        assert stored(catalog, "mart.copy") == []
        assert pipeline.rewind(catalog, begin) is None
    assert [status.state for status in pipeline.status(catalog)] == ["new", "new"]


def test_a_rewind_over_what_others_wrote_is_refused(catalog: alpheus.Catalog) -> None:
    lake, pipeline = PlainLake(catalog), chained()
    driver = runner_of(lake, pipeline)
    driver.run()
    good = catalog.version()
    catalog.append("sales.orders", arrow([(1, 1)]))
    driver.run()
    head = catalog.version()
    catalog.append("mart.log", arrow([(-1, 1)]))
    with pytest.raises(Conflict, match="others changed outputs") as caught:
        pipeline.rewind(catalog, good)
    assert not caught.value.retryable
    assert f"mart.log in version {head + 1} (TABLE_INSERT" in caught.value.message
    assert pipeline.rewind(catalog, good, jobs="second") is not None, "whose output nobody touched"
    assert stored(catalog, "mart.copy") == []
    with pytest.raises(NotFound, match="has no job 'third'"):
        pipeline.rewind(catalog, good, jobs=["third"])
    with pytest.raises(NotFound):
        Pipeline("other").rewind(catalog, good)


def test_jobs_that_share_an_output_are_rewound_together(catalog: alpheus.Catalog) -> None:
    pipeline = Pipeline("mart", retries=0, lease=0)
    for name in ("one", "two"):

        @pipeline.job(name=name, inputs={"orders": changes("sales.orders")}, outputs=["mart.log"])
        def both(run: Any) -> None:
            run.put("mart.log", run.rows("orders"))

    driver = runner_of(PlainLake(catalog), pipeline)
    driver.run()
    good = catalog.version()
    catalog.append("sales.orders", arrow([(1, 1)]))
    driver.run()
    with pytest.raises(Conflict, match="others changed outputs"):
        pipeline.rewind(catalog, good, jobs=["one"])
    assert pipeline.rewind(catalog, good) is not None
    with pytest.raises(Conflict, match="others changed outputs"):
        pipeline.rewind(catalog, good - 1, jobs=["one"])  # the last rewind was of both jobs


def test_a_rewind_during_a_run_drops_the_run(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    versions: list[int] = []

    def late(run: PlainRun) -> None:
        if len(versions) == 1 and run.attempt == 1 and not run.is_full:
            versions.append(run.version)
            assert pipeline.rewind(catalog, versions[0]) is not None

    pipeline = copying(late)
    runner_of(lake, pipeline).run()
    versions.append(catalog.version())
    catalog.append("sales.orders", arrow([(1, 1)]))
    assert states(runner_of(lake, copying()).run()) == ["committed"]
    catalog.append("sales.orders", arrow([(2, 1)]))
    assert states(runner_of(lake, pipeline).run()) == ["committed"]
    assert stored(catalog, "mart.log") == [(1, 1), (2, 1)]


# --- leases ----------------------------------------------------------------------------------------


def test_who_finds_the_job_taken_waits_and_finds_it_done(catalog: alpheus.Catalog) -> None:
    lake = PlainLake(catalog)
    calls: list[str] = []
    entered, let_go = threading.Event(), threading.Event()

    def leased(name: str) -> Pipeline:
        pipeline = Pipeline("mart", retries=0, lease=5)

        @pipeline.job(name="daily", inputs={"orders": changes("sales.orders")}, outputs=["mart.log"])
        def daily(run: Any) -> None:
            calls.append(name)
            entered.set()
            let_go.wait()
            run.put("mart.log", run.rows("orders"))

        return pipeline

    looks: list[float] = []

    def looking(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            let_go.set()
            worker.join()

    worker = threading.Thread(target=lambda: runner.Runner(lake, leased("first")).run(), daemon=True)
    worker.start()
    entered.wait()
    now = [0.0]
    results = runner.Runner(lake, leased("second"), monotonic=lambda: now[0], sleep=looking).run()
    assert (states(results), calls) == (["nothing"], ["first"])
    assert looks == [runner.LEASE_LOOK_SECONDS] * 3
    assert list_of(lake.storage, "run/") == [], "nothing stays behind"


def take(leases: Leases, job: str) -> Any:
    async def do_nothing() -> None: ...

    return leases.take(job, beside=do_nothing)


def test_a_lease_whose_holder_fell_silent_is_over(catalog: alpheus.Catalog) -> None:
    storage, now = catalog.storage(), [0.0]

    def leases(holder: str, machine: str = "") -> Leases:
        made = Leases(storage, "mart", 5, monotonic=lambda: now[0], holder=holder)
        if machine:
            made._heartbeat = msgspec.structs.replace(made._heartbeat, machine=machine)
        return made

    dead, other = leases("dead", "elsewhere"), leases("other")
    lost = take(dead, "daily")
    assert lost is not None
    assert take(other, "weekly") is not None, "another job"
    assert take(other, "daily") is None
    now[0] = 4.9
    assert take(other, "daily") is None
    now[0] = 5.0
    taken = take(other, "daily")
    assert taken is not None
    assert take(leases("third", "elsewhere"), "daily") is None
    taken.end()
    taken.end()
    assert take(leases("third", "elsewhere"), "daily") is not None


def test_a_lease_of_a_process_that_is_gone_from_this_machine_is_over(catalog: alpheus.Catalog) -> None:
    storage = catalog.storage()
    gone = Leases(storage, "mart", 5, holder="gone")
    gone._heartbeat = msgspec.structs.replace(gone._heartbeat, started="some boot 17")
    assert take(gone, "daily") is not None
    assert take(Leases(storage, "mart", 5), "daily") is not None
    here = Leases(storage, "mart", 5)
    assert take(here, "daily") is None
    assert take(here, "daily") is None, "this one lives"
    assert take(Leases(storage, "mart", 0), "daily") is not None, "no lease, no question"


@pytest.mark.parametrize("bytes_", [b"", b"{", b"{}", b"x" * 5000])
def test_bytes_that_are_no_lease_grow_old(catalog: alpheus.Catalog, bytes_: bytes) -> None:
    storage, now = catalog.storage(), [0.0]
    in_loop(storage.put(fmt.run_lease_path("mart", "daily"), bytes_))
    leases = Leases(storage, "mart", 5, monotonic=lambda: now[0])
    assert take(leases, "daily") is None
    now[0] = 5.0
    assert take(leases, "daily") is not None


def test_work_beside_a_lease_is_done_by_the_holder_alone(catalog: alpheus.Catalog) -> None:
    storage, done = catalog.storage(), []

    def beside(name: str, error: str = "") -> Callable[[], Coroutine[Any, Any, None]]:
        async def work() -> None:
            done.append(name)
            if error:
                raise Unavailable(error)

        return work

    first, second = Leases(storage, "mart", 5, holder="first"), Leases(storage, "mart", 5, holder="second")
    with pytest.raises(Unavailable, match="no lease of the transaction"):
        first.take("daily", beside("failed", "no lease of the transaction"))
    assert list_of(storage, "run/") == [], "the lease ended"
    lease = first.take("daily", beside("first"))
    assert lease is not None
    assert second.take("daily", beside("second")) is None
    assert done == ["failed", "first"]
    lease.end()


def list_of(storage: Any, prefix: str) -> list[str]:
    async def listed() -> list[str]:
        return [info.path async for info in storage.list(prefix)]

    return in_loop(listed())
