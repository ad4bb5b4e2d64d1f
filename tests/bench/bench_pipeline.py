"""How long after a commit a pipeline's job is called, and how long until its outputs are committed.

    make bench BENCH=pipeline

A daemon of its own process; a Spark driver that serves a pipeline of one job; a thread that appends one row, waits
until that row is worked in, and appends the next. The clock starts at the version's time, which the daemon takes
before it writes the version.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import alpheus
from alpheus.pipeline import Pipeline, RunResult, appends
from alpheus.spark import SparkCatalog, session

ROUNDS = 40
WARM_UP = 5

mart = Pipeline("bench")


@mart.job(inputs={"events": appends("ops.events")}, outputs=["mart.copy"])
def copy(run: Any) -> None:
    run.append("mart.copy", run.read("events"))


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(url: str) -> list[RunResult]:
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

    with alpheus.connect(url) as catalog:
        schema = pa.schema([("n", pa.int64())])
        for name in ("ops.events", "mart.copy"):
            catalog.create_namespace(name.split(".")[0])
            catalog.create_table(name, schema)
        lake = SparkCatalog(session("bench"), catalog)
        loader = threading.Thread(target=load)
        loader.start()
        mart.serve(lake, on_result=on_result, stop=stop)
        loader.join()
        assert catalog.read("mart.copy").num_rows == ROUNDS + WARM_UP
    return results[-ROUNDS:]


def main() -> int:
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; daemon, Spark and loader share them")
    with tempfile.TemporaryDirectory() as directory:
        port_file = Path(directory) / "port"
        command = [sys.executable, "-m", "alpheus", "serve", (Path(directory) / "lake").as_uri(), "--create"]
        with (Path(directory) / "daemon.log").open("wb") as log:
            daemon = subprocess.Popen(
                [*command, "--listen", "127.0.0.1:0", "--port-file", str(port_file)], stdout=log, stderr=log
            )
        try:
            while not port_file.exists():
                if daemon.poll() is not None:
                    raise SystemExit((Path(directory) / "daemon.log").read_text())
                time.sleep(0.02)
            results = measure(f"grpc://{port_file.read_text().strip()}")
        finally:
            daemon.terminate()
            daemon.wait()
    waited = [result.waited_ms for result in results if result.waited_ms is not None]
    ran = [
        (result.finished_at - result.called_at).total_seconds() * 1000
        for result in results
        if result.finished_at is not None and result.called_at is not None
    ]
    for what, values in (("commit -> job called   ", waited), ("job called -> committed", ran)):
        print(f"{what}   p50 {percentile(values, 0.5):6.0f} ms   p95 {percentile(values, 0.95):6.0f} ms")
    print(f"{len(results)} rounds; the line: commit -> job called p50 300 ms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
