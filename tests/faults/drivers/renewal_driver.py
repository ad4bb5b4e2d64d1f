"""The Spark application that `test_spark_s3_faults` kills while it renews the lease of a write.

    python renewal_driver.py URL FOLDER JARS STEP

The application appends ROWS rows to the table `s.t` of the catalog at URL. Each of its tasks stores its file, makes a
file FOLDER/stored-* then, and waits for the file FOLDER/go. In the first renewal after all files are stored, the
process kills itself at the STEP (`STEPS`). With another STEP the renewal makes FOLDER/go, and the process ends with
status 0.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import alpheus
from alpheus.spark import SparkCatalog, session
from alpheus.spark.files import task_writer
from alpheus.transactions import core
from alpheus_journal.format import LEASE_FOLDER
from alpheus_journal.log.leases import HeldLease
from alpheus_journal.storage.s3 import S3Storage

STEPS = ("begun", "looked", "sending", "stored", "renewed")
"""The moments of the kills.

- `begun`: nothing of the renewal was sent. `looked`: the lease's time is known.
- `sending`: the lease is on its way to the store, or already there without an answer.
- `stored`: the answer came. `renewed`: the renewal is over, and the tasks still run.
"""

ROWS, PARTS = 40, 2
LEASE_SECONDS = 3.0
PATIENCE_SECONDS = 240


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_renewal(step: str, go: Path) -> None:
    """Let the first renewal after all files are stored kill this process at a step, or end the tasks."""
    renew, put, stat = HeldLease.renew, S3Storage.put, S3Storage.stat
    is_renewing = False

    async def faulty_renew(self: HeldLease) -> None:
        nonlocal is_renewing
        if len([*go.parent.glob("stored-*")]) < PARTS:
            await renew(self)
            return
        if step == "begun":
            die()
        is_renewing = True
        await renew(self)
        if step == "renewed":
            die()
        go.touch()

    async def faulty_stat(self: S3Storage, path: str) -> Any:
        found = await stat(self, path)
        if is_renewing and path.startswith(LEASE_FOLDER) and step == "looked":
            die()
        return found

    async def faulty_put(self: S3Storage, path: str, data: bytes) -> None:
        is_renewal = is_renewing and path.startswith(LEASE_FOLDER)
        if is_renewal and step == "sending":
            client = self._client
            attempt = client.attempt

            def attempt_and_die(*arguments: Any) -> Any:
                client.attempt = attempt  # type: ignore[method-assign]
                signal.setitimer(signal.ITIMER_REAL, float(os.environ["TEST_DELAY_SECONDS"]))  # SIGALRM kills
                return attempt(*arguments)

            client.attempt = attempt_and_die  # type: ignore[method-assign]
        await put(self, path, data)
        if is_renewal and step == "stored":
            die()

    HeldLease.renew = faulty_renew  # type: ignore[method-assign]
    S3Storage.stat, S3Storage.put = faulty_stat, faulty_put  # type: ignore[method-assign]


def wait_in_tasks(go: Path) -> None:
    """Let each task wait after it stored its file. Tasks run the function, which travels with them by value."""
    put, awaited, patience = task_writer.put_file, str(go), PATIENCE_SECONDS

    def put_and_wait(store: Any, path: str, parts: Iterable[bytes]) -> None:
        put(store, path, parts)
        name = f"{awaited[: -len('go')]}stored-{os.path.basename(path)}"
        os.close(os.open(name, os.O_CREAT))
        end = time.monotonic() + patience
        while not os.path.exists(awaited) and time.monotonic() < end:
            time.sleep(0.02)

    task_writer.put_file = put_and_wait


def start_spark(jars: str) -> SparkSession:
    options = {"spark.jars": jars, "spark.driver.memory": "600m", "spark.master": "local[2]"}
    spark = session("renewals", settings=options)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    url, place, jars, step = sys.argv[1:]
    go = Path(place) / "go"
    lease_transaction = core.lease_transaction

    async def lease_briefly(*arguments: Any, **options: Any) -> Any:
        return await lease_transaction(*arguments, **options, seconds=LEASE_SECONDS)

    core.lease_transaction = lease_briefly
    wait_in_tasks(go)
    spark = start_spark(jars)
    with alpheus.connect(url) as catalog:
        lake = SparkCatalog(spark, catalog, lease=False)
        frame = spark.range(0, ROWS, numPartitions=PARTS).selectExpr("id", "id % 7 AS k")
        kill_in_renewal(step, go)
        lake.append("s.t", frame)
        lake.close()
    spark.stop()


if __name__ == "__main__":
    main()
