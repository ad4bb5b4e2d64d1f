"""The pipeline process: maintains three marts from the new rows of `ops.flights`.

    python -m alpheus.demo.pipeline URL [--crash-at MONTH --crash-mark FILE]

It prints one JSON line per call of a job, which the demonstration reads. With --crash-at the job kills its own process
once, after its outputs are staged and before they are committed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import alpheus
from alpheus.pipeline import Pipeline, appends, table

mart = Pipeline("delays")

MEASURES = """count(*) AS flights,
    sum(CASE WHEN coalesce(dep_delay, 0) > 15 THEN 1L ELSE 0L END) AS late,
    sum(CASE WHEN dep_time IS NULL THEN 1L ELSE 0L END) AS cancelled,
    sum(coalesce(dep_delay, 0)) AS delay_minutes"""

CRASH: dict[str, Any] = {"month": 0, "mark": None}


def _print_call(run: Any, job: str) -> None:
    line = {"job": job, "pinned": run.version, "at_millis": time.time_ns() // 1_000_000}
    print(json.dumps(line), flush=True)


@mart.job(
    inputs={
        "flights": appends("ops.flights"),
        "weather": table("ops.weather", trigger=False),
        "airlines": table("ref.airlines", trigger=False),
    },
    outputs=["mart.carrier_delays", "mart.weather_delays"],
)
def monthly(run: Any) -> None:
    """Append the sums of the new rows, by carrier and by weather."""
    _print_call(run, "monthly")
    for name in ("flights", "weather", "airlines"):
        run.read(name).createOrReplaceTempView(name)
    run.append(
        "mart.carrier_delays",
        run.spark.sql(
            f"""SELECT year, month, carrier, name, {MEASURES}
                FROM flights LEFT JOIN airlines USING (carrier) GROUP BY year, month, carrier, name"""
        ),
    )
    run.append(
        "mart.weather_delays",
        run.spark.sql(
            f"""SELECT f.year, f.month, f.origin,
                    CASE WHEN w.precip > 0 THEN 'wet' WHEN w.precip IS NULL THEN 'unknown' ELSE 'dry' END AS sky,
                    {MEASURES}
                FROM flights f LEFT JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
                GROUP BY 1, 2, 3, 4"""
        ),
    )
    _crash_once(run)


@mart.job(inputs={"flights": appends("ops.flights")}, outputs=["mart.year_to_date"])
def year_to_date(run: Any) -> None:
    """Overwrite the sums of the whole year so far."""
    _print_call(run, "year_to_date")
    run.whole("flights").createOrReplaceTempView("all_flights")
    run.overwrite(
        "mart.year_to_date",
        run.spark.sql(f"SELECT year, origin, {MEASURES} FROM all_flights GROUP BY year, origin"),
    )


def _crash_once(run: Any) -> None:
    mark: Path | None = CRASH["mark"]
    if mark is None or mark.exists():
        return
    (newest,) = run.spark.sql("SELECT max(month) FROM flights").first()
    if newest is not None and newest >= CRASH["month"]:
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m alpheus.demo.pipeline", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--crash-at", type=int, default=0)
    parser.add_argument("--crash-mark", type=Path)
    options = parser.parse_args(arguments)
    CRASH.update(month=options.crash_at, mark=options.crash_mark)
    from alpheus.spark import SparkCatalog, session

    spark = session("alpheus demo", settings={"spark.driver.memory": "1g"})
    spark.range(1).count()  # the first Spark job is slow; later ones find Spark warmed up
    print(json.dumps({"ready": True}), flush=True)
    with alpheus.connect(options.url, timeout=60) as catalog:
        mart.serve(SparkCatalog(spark, catalog))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
