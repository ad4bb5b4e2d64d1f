"""The process that `test_pipeline_kills` kills: a Spark driver that serves a pipeline of two stages.

    python kills_driver.py URL FOLDER

A file in FOLDER orders one kill. Each file exists for each stage, as in `kill-staged-totals`:

- `kill-staged` kills the driver after the stage's outputs are staged.
- `kill-committed` kills the driver right after the stage's commit.
- `kill-worker` kills a Python worker in the middle of its rows.
- `kill-daemon`, which holds a process id, kills the daemon right before the stage's commit.

The driver prints one JSON line for each result.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import alpheus
from alpheus.pipeline import Pipeline, RunResult, appends, changes, table
from alpheus.spark import SparkCatalog, session

FOLDER = Path(sys.argv[2])

mart = Pipeline("kills", retries=0)


def order(name: str) -> str | None:
    """Take an order and return its content, or None. Only one of several concurrent callers gets the order."""
    taken = FOLDER / f"{name}.{os.getpid()}"
    try:
        os.rename(FOLDER / name, taken)
    except FileNotFoundError:
        return None
    return taken.read_text()


def worker_dies(stage: str) -> None:
    if order(f"kill-worker-{stage}") is not None:
        os.kill(os.getpid(), signal.SIGKILL)


def names_through_python(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame.assign(name=frame["name"].str.upper())
        if len(frame):
            worker_dies("named")


def ids_through_python(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame
        if len(frame):
            worker_dies("totals")


def dies_with_all_staged(stage: str) -> None:
    if order(f"kill-staged-{stage}") is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    daemon = order(f"kill-daemon-{stage}")
    if daemon is not None:
        os.kill(int(daemon), signal.SIGKILL)


@mart.job(
    inputs={
        "flights": appends("ops.flights"),
        "weather": changes("ops.weather"),
        "airlines": table("ref.airlines"),
    },
    outputs=["mart.named", "mart.weather_log"],
)
def named(run: Any) -> None:
    """First stage: append each new flight with its airline, and log the weather's changes."""
    fresh = (
        run.read("flights").join(run.read("airlines"), "carrier").select("id", "carrier", "name", "dep_delay")
    )
    columns = "id bigint, carrier string, name string, dep_delay bigint"
    run.append("mart.named", fresh.mapInPandas(names_through_python, columns))
    run.append(
        "mart.weather_log",
        run.read("weather").selectExpr("id", "_change_type AS change", "_commit_version AS at"),
    )
    dies_with_all_staged("named")


@mart.job(inputs={"named": appends("mart.named")}, outputs=["mart.totals", "mart.runs"])
def totals(run: Any) -> None:
    """Second stage: sums over the whole output of the first stage, and the flights that were new in each run."""
    sums = "name", "count(*) AS flights", "coalesce(sum(dep_delay), 0) AS minutes"
    run.whole("named").createOrReplaceTempView("named")
    run.overwrite("mart.totals", run.spark.sql(f"SELECT {', '.join(sums)} FROM named GROUP BY name"))
    run.append("mart.runs", run.read("named").select("id").mapInPandas(ids_through_python, "id bigint"))
    dies_with_all_staged("totals")


def report(result: RunResult) -> None:
    if result.state == "committed" and order(f"kill-committed-{result.job}") is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    print(
        json.dumps(
            {"job": result.job, "state": result.state, "error": result.error, "waited_ms": result.waited_ms}
        )
    )
    sys.stdout.flush()


def main() -> None:
    settings = {"spark.driver.memory": "1g"}
    if jars := os.environ.get("ALPHEUS_TEST_JARS"):
        settings["spark.jars"] = jars
    spark = session("kills", cores=2, settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    with alpheus.connect(sys.argv[1], timeout=10) as catalog:
        mart.serve(SparkCatalog(spark, catalog), on_result=report)


if __name__ == "__main__":
    main()
