"""The process that `test_pipeline_kills` kills: a Spark driver that serves a pipeline.

    python kills_driver.py URL FOLDER

Files in FOLDER tell it to die, each once: `kill-staged` after its outputs are staged, `kill-committed` right after
the commit, `kill-worker` a Python worker in the middle of its rows, `kill-daemon` (holding a process id) the
daemon right before the commit. It prints one JSON line a result.
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
from alpheus.pipeline import Pipeline, RunResult, appends, changes
from alpheus.spark import SparkCatalog, session

FOLDER = Path(sys.argv[2])

mart = Pipeline("kills", retries=0)


def order(name: str) -> str | None:
    """The content of an order that is there, which is then taken away: of several that ask one gets it."""
    taken = FOLDER / f"{name}.{os.getpid()}"
    try:
        os.rename(FOLDER / name, taken)
    except FileNotFoundError:
        return None
    return taken.read_text()


def rows_through_python(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame.assign(value=frame["id"] * 10)
        if len(frame) and order("kill-worker") is not None:
            os.kill(os.getpid(), signal.SIGKILL)


@mart.job(inputs={"orders": appends("sales.orders")}, outputs=["mart.lines", "mart.totals"])
def lines(run: Any) -> None:
    fresh = run.read("orders")
    run.append("mart.lines", fresh.mapInPandas(rows_through_python, "id bigint, value bigint"))
    run.overwrite(
        "mart.totals", run.whole("orders").selectExpr("count(*) AS n", "coalesce(sum(id), 0) AS total")
    )
    if order("kill-staged") is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    daemon = order("kill-daemon")
    if daemon is not None:
        os.kill(int(daemon), signal.SIGKILL)


@mart.job(inputs={"stock": changes("sales.stock")}, outputs=["mart.stock_log"])
def stock(run: Any) -> None:
    run.append(
        "mart.stock_log",
        run.read("stock").selectExpr("id", "_change_type AS change", "_commit_version AS at"),
    )


def report(result: RunResult) -> None:
    if result.state == "committed" and order("kill-committed") is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    print(
        json.dumps(
            {"job": result.job, "state": result.state, "error": result.error, "waited_ms": result.waited_ms}
        )
    )
    sys.stdout.flush()


def main() -> None:
    spark = session("kills", cores=2, settings={"spark.driver.memory": "1g"})
    spark.sparkContext.setLogLevel("ERROR")
    with alpheus.connect(sys.argv[1], timeout=10) as catalog:
        mart.serve(SparkCatalog(spark, catalog), on_result=report)


if __name__ == "__main__":
    main()
