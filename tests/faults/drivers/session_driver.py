"""The Spark application of `test_spark_s3_sessions`, whose credentials are those of a session that ends.

    python session_driver.py URL FOLDER JARS

The application works on the table `s.t` of the catalog at URL with the credentials of its environment, until the file
FOLDER/ended says that its first credentials have ended. Each of its steps prints a JSON line: `step`, `outcome`
("done", or the class of an error) and `message`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import alpheus
from alpheus.spark import SparkCatalog, session
from alpheus.spark.files import task_writer

ROWS = 40
PATIENCE_SECONDS = 1800
"""The tasks of a write wait for the end of the session at most so long."""


def do_step(step: str, act: Callable[[], Any]) -> None:
    outcome, message = "done", ""
    try:
        message = str(act())
    except alpheus.errors.AlpheusError as error:
        outcome, message = type(error).__name__, f"{error.message} -> {error.hint}"
    except Exception as error:  # an error of Spark or Java has no class of ours
        outcome, message = f"{type(error).__module__}.{type(error).__name__}", str(error)[:2000]
    print(json.dumps({"step": step, "outcome": outcome, "message": message}), flush=True)


def wait_in_tasks(ended: str) -> Callable[[], None]:
    """Let each task wait before it stores its file. Return a function that ends this for later jobs."""
    put, patience = task_writer.put_file, PATIENCE_SECONDS

    def wait_and_put(store: Any, path: str, parts: Iterable[bytes]) -> None:
        end = time.monotonic() + patience
        while not os.path.exists(ended) and time.monotonic() < end:
            time.sleep(0.1)
        put(store, path, parts)

    def stop() -> None:
        task_writer.put_file = put

    task_writer.put_file = wait_and_put
    return stop


def main() -> None:
    url, folder, jars = sys.argv[1:]
    settings = {"spark.jars": jars, "spark.driver.memory": "600m", "spark.master": "local[2,2]"}
    spark = session("sessions", settings=settings)
    spark.sparkContext.setLogLevel("OFF")

    def frame(begin: int) -> Any:
        return spark.range(begin, begin + ROWS, numPartitions=2)

    with alpheus.connect(url) as catalog:
        lake = SparkCatalog(spark, catalog)
        do_step("serve", lake.check_can_serve)
        do_step("append", lambda: lake.append("s.t", frame(0)).version)
        do_step("read", lambda: lake.read("s.t").count())
        stop = wait_in_tasks(f"{folder}/ended")
        do_step("a write over the end", lambda: lake.append("s.t", frame(ROWS)).version)
        stop()
        do_step("a write after the end", lambda: lake.append("s.t", frame(2 * ROWS)).version)
        do_step("a read after the end", lambda: lake.read("s.t").count())
        do_step("a merge after the end", lambda: lake.merge("s.t", frame(2 * ROWS), on="id").version)
        do_step("close", lake.close)
    spark.stop()


if __name__ == "__main__":
    main()
