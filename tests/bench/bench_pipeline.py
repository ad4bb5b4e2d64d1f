"""The lag of a pipeline, from a commit to the call of a job and the commit of its outputs, and of two stages on a
stream.

    make bench BENCH=pipeline                          about two minutes, with the plot
    make bench BENCH=pipeline ARGS="--interval 0.5"    two commits a second

The daemon is a separate process with fsync on. A Spark driver serves the pipeline, and a thread of the driver's process
appends rows.

- One stage: a row is appended when the row before it has been processed.
- Two stages: a row is appended every `--interval` seconds, whatever the pipeline does. The second job has work when the
  first has committed. For `--pause` seconds no process serves the pipeline.

The clock of a commit starts at its version's time, which the daemon takes before it writes the version. The clock stops
when the driver has the answer to the commit of the outputs. The plot in tests/bench/pipeline_lag.svg shows for each
moment how many commits are not yet in the outputs of a stage, and the age of the oldest of them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from peers import alpheus_daemon
from time_plot import time_plot

import alpheus
from alpheus.models import Commit
from alpheus.pipeline import Pipeline, RunResult, appends
from alpheus.spark import SparkCatalog, session

HERE = Path(__file__).resolve().parent
ROUNDS = 40
WARM_UP = 5
BEFORE_SECONDS = 20.0
"""The time before the pause that the plot shows."""
STEP_SECONDS = 0.05
CALLED_MS_MAX = 300

one = Pipeline("one")
two = Pipeline("two")


@one.job(inputs={"events": appends("ops.events")}, outputs=["mart.copy"])
def copy(run: Any) -> None:
    run.append("mart.copy", run.read("events"))


@two.job(inputs={"events": appends("ops.steady")}, outputs=["mart.first"])
def first(run: Any) -> None:
    run.append("mart.first", run.read("events").selectExpr("n", "n * 2 AS m"))


@two.job(inputs={"rows": appends("mart.first")}, outputs=["mart.second"])
def second(run: Any) -> None:
    run.append("mart.second", run.read("rows").selectExpr("n", "n + m AS m"))


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def print_line(what: str, milliseconds: Sequence[float]) -> float:
    p50, p95 = (percentile(milliseconds, share) for share in (0.5, 0.95))
    print(f"{what:42} p50 {p50:6.0f} ms   p95 {p95:6.0f} ms", flush=True)
    return p50


# --- one stage -------------------------------------------------------------------------------------


def one_stage(lake: SparkCatalog, url: str) -> bool:
    results: list[RunResult] = []
    worked = threading.Event()
    stop = threading.Event()

    def on_result(result: RunResult) -> None:
        if result.waited_ms is not None:
            results.append(result)
        worked.set()

    def load() -> None:
        with alpheus.connect(url) as loader:
            for number in range(ROUNDS + WARM_UP):
                worked.wait()
                worked.clear()
                loader.append("ops.events", [{"n": number}])
            worked.wait()
            stop.set()

    loader = threading.Thread(target=load)
    loader.start()
    one.serve(lake, on_result=on_result, stop=stop)
    loader.join()
    assert lake.catalog.read("mart.copy").num_rows == ROUNDS + WARM_UP
    measured = results[-ROUNDS:]
    waited = [result.waited_ms for result in measured if result.waited_ms is not None]
    ran = [
        milliseconds(result.called_at, result.finished_at)
        for result in measured
        if result.called_at is not None and result.finished_at is not None
    ]
    print(f"one stage, {len(measured)} commits one after another")
    called = print_line("  commit -> job called", waited)
    print_line("  job called -> outputs committed", ran)
    return called <= CALLED_MS_MAX


def milliseconds(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds() * 1000


# --- two stages ------------------------------------------------------------------------------------


class Passage(NamedTuple):
    """The times of a commit, in seconds since the first commit: when it was made, and when it was in the outputs of
    each stage."""

    made: float
    first: float
    second: float


def two_stages(
    lake: SparkCatalog, url: str, interval: float, steady: float, pause: float, after: float
) -> tuple[list[Passage], tuple[float, float]]:
    """Return the times of all commits, and the time in which no process served the pipeline."""
    two.run(lake)  # the first runs, with empty tables
    commits: list[Commit] = []
    results: list[RunResult] = []
    moments: list[datetime] = []

    def load() -> None:
        with alpheus.connect(url) as loader:
            began = time.monotonic()
            for number in range(round((steady + pause + after) / interval)):
                time.sleep(max(0.0, began + number * interval - time.monotonic()))
                commits.append(loader.append("ops.steady", [{"n": number}]))

    def serve(until: threading.Event) -> None:
        two.serve(lake, on_result=results.append, stop=until)
        moments.append(datetime.now(tz=commits[0].created_at.tzinfo))

    loader = threading.Thread(target=load)
    loader.start()
    stop = threading.Event()
    timer = threading.Timer(steady, stop.set)
    timer.start()
    serve(stop)
    time.sleep(pause)
    stop = threading.Event()

    def wait() -> None:
        loader.join()
        while any(job.lag_versions for job in two.status(lake)):
            time.sleep(0.2)
        stop.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    resumed = datetime.now(tz=moments[0].tzinfo)
    serve(stop)
    waiter.join()
    assert lake.catalog.read("mart.second").num_rows == len(commits)
    start = commits[0].created_at
    paused = (milliseconds(start, moments[0]) / 1000, milliseconds(start, resumed) / 1000)
    return passages(commits, results), paused


def passages(commits: Sequence[Commit], results: Sequence[RunResult]) -> list[Passage]:
    """Return the times of each commit. A run processes all commits up to the version that it read."""
    start = commits[0].created_at

    def run_over(job: str, version: int) -> RunResult:
        return next(
            result
            for result in results
            if result.job == job and result.state == "committed" and (result.pinned or 0) >= version
        )

    def seconds(moment: datetime | None) -> float:
        assert moment is not None
        return milliseconds(start, moment) / 1000

    found = []
    for commit in commits:
        to_first = run_over("first", commit.version)
        to_second = run_over("second", to_first.version or 0)
        found.append(
            Passage(seconds(commit.created_at), seconds(to_first.finished_at), seconds(to_second.finished_at))
        )
    return found


def lags(
    ways: Sequence[Passage], place: int, start: float, end: float
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return, by seconds since `start`, how many commits are not yet in the outputs of a stage (1, 2), and the age
    of the oldest of them."""
    counts: list[tuple[float, float]] = []
    ages: list[tuple[float, float]] = []
    for step in range(int((end - start) / STEP_SECONDS) + 1):
        moment = start + step * STEP_SECONDS
        waiting = [way.made for way in ways if way.made <= moment < way[place]]
        counts.append((moment - start, len(waiting)))
        ages.append((moment - start, moment - min(waiting) if waiting else 0.0))
    return bends(counts), bends(ages)


def bends(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points without the inner points of level stretches."""
    inner = zip(points, points[1:], points[2:], strict=False)
    return [points[0], *(here for a, here, b in inner if not a[1] == here[1] == b[1]), points[-1]]


def plot(ways: Sequence[Passage], paused: tuple[float, float], interval: float, machine: str) -> str:
    start, end = max(0.0, paused[0] - BEFORE_SECONDS), max(way.made for way in ways) + interval
    stages = {f"{name} stage": lags(ways, place, start, end) for place, name in ((1, "first"), (2, "second"))}
    seconds = "seconds behind"
    return time_plot(
        {
            "commits that wait": {name: counts for name, (counts, _) in stages.items()},
            seconds: {name: ages for name, (_, ages) in stages.items()},
        },
        title="How far a two-stage pipeline is behind",
        subtitle=f"a commit every {interval:g} s; a daemon, a Spark driver and a loader share {machine}",
        x_label="seconds",
        shaded=(paused[0] - start, paused[1] - start, "not served"),
        lowest={seconds: STEP_SECONDS},
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between commits to two stages")
    parser.add_argument(
        "--steady", type=float, default=60.0, help="seconds that two stages are served at first"
    )
    parser.add_argument("--pause", type=float, default=15.0, help="seconds that nobody serves them")
    parser.add_argument("--after", type=float, default=15.0, help="seconds of commits after that")
    parser.add_argument("--plot", type=Path, default=HERE / "pipeline_lag.svg")
    options = parser.parse_args()
    machine = f"{os.cpu_count()} cores, Python {sys.version.split()[0]}"
    print(
        f"{machine}; daemon, Spark and loader share them; load average {os.getloadavg()[0]:.1f}", flush=True
    )
    spark = session("bench")
    with tempfile.TemporaryDirectory() as directory, alpheus_daemon(Path(directory) / "daemon") as daemon:
        url = f"grpc://{daemon.address}"
        with alpheus.connect(url) as catalog:
            for namespace in ("ops", "mart"):
                catalog.create_namespace(namespace)
            for name in ("ops.events", "mart.copy", "ops.steady"):
                catalog.create_table(name, pa.schema([("n", pa.int64())]))
            for name in ("mart.first", "mart.second"):
                catalog.create_table(name, pa.schema([("n", pa.int64()), ("m", pa.int64())]))
            lake = SparkCatalog(spark, catalog)
            ok = one_stage(lake, url)
            ways, paused = two_stages(
                lake, url, options.interval, options.steady, options.pause, options.after
            )
    served = [way for way in ways if WARM_UP * options.interval <= way.made and way.second < paused[0]]
    print(f"two stages, a commit every {options.interval:g} s, {len(served)} of them while it was served")
    print_line("  commit -> outputs of the first stage", [(way.first - way.made) * 1000 for way in served])
    print_line("  commit -> outputs of the second stage", [(way.second - way.made) * 1000 for way in served])
    waited = [way for way in ways if paused[0] <= way.made <= paused[1]]
    worked_in = max(way.second for way in waited) - paused[1]
    print(f"  {len(waited)} commits came while nobody served it for {paused[1] - paused[0]:.0f} s; they were")
    print(f"  in the outputs of both stages {worked_in:.1f} s after it was served again")
    options.plot.write_text(plot(ways, paused, options.interval, machine))
    print(f"line: commit -> job called p50 at most {CALLED_MS_MAX} ms: {'met' if ok else 'MISSED'}")
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
