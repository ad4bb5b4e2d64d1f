"""The Spark application whose executors `test_spark_s3_faults` kills: a driver, and workers with an executor each.

    python cluster_driver.py URL FOLDER JARS KILLS SEED PHASE...

The application adds rows to the table `s.t` of the catalog at URL. In each of KILLS rounds it kills executors once in
each PHASE, by SIGKILL. It prints one JSON line a verb: the phase, whether the verb committed or was refused, the rows
that the table must have, the files that were stored and are not listed, and what is wrong. The last line tells the CPU
that all processes took.

The workers of the cluster run in the driver's JVM, one at 127.0.0.1 and one at 127.0.0.2: Spark starts no speculative
attempt on the machine of the first. Without the phase `hanging` there is one worker, with one executor. Tasks and the
driver take their orders from files in FOLDER, each once.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession

import alpheus
from alpheus.errors import AlpheusError
from alpheus.spark import SparkCatalog
from alpheus.spark.files import task_writer, writes
from alpheus.spark.java import use_java
from alpheus.sync.portal import run
from alpheus.transactions import core
from alpheus_journal.log.leases import HeldLease
from alpheus_journal.testing import listed

PHASES = ("hanging", "writing", "result", "committing", "renewing", "folders")
"""The moments of the faults, which are kills but in two phases.

- `hanging`: no kill. An attempt stores its file and hangs, and a speculative attempt stores another.
- `writing`: a task has sent a part of its file.
- `result`: a task has stored its file, and its report is on its way.
- `committing`: the driver has all reports, and no executor is left.
- `renewing`: the driver renews the lease of the write, and its tasks wait for that.
- `folders`: no kill in the verb. A task stores its file, and its executor's folders on local disks are gone.
"""

ROWS, PARTS = 40, 4
PATIENCE_SECONDS = 240
HANG_SECONDS = 200
LEASE_SECONDS = 3.0
"""The lease of a write in the phase `renewing`, so that it is renewed after a second."""


def order(folder: str, name: str) -> str | None:
    """Take an order and return its content, or None. Only one of several concurrent callers gets the order."""
    taken = f"{folder}/{name}.{os.getpid()}"
    try:
        os.rename(f"{folder}/{name}", taken)
    except FileNotFoundError:
        return None
    with open(taken) as file:
        return file.read()


def executor_of(process: int) -> int:
    """Return the parent of the parent of a worker: the executor's JVM, whose child starts the workers."""
    for _ in range(2):
        with open(f"/proc/{process}/stat") as file:
            process = int(file.read().rpartition(")")[2].split()[1])
    return process


def die(delay: float) -> None:
    time.sleep(delay)
    os.kill(executor_of(os.getpid()), signal.SIGKILL)


def faulty_put(folder: str) -> Callable[[Any, str, Iterable[bytes]], None]:
    """Return a `put_file` that takes orders. Tasks run it, so it travels with them by value."""
    put = task_writer.put_file

    def put_file(store: Any, path: str, parts: Iterable[bytes]) -> None:
        if order(folder, "writing") is not None:
            with store.open_output_stream(path) as stream:
                stream.write(next(iter(parts)))
                die(0)
                time.sleep(HANG_SECONDS)
        put(store, path, parts)
        if order(folder, "folders") is not None:
            for place in os.environ["SPARK_LOCAL_DIRS"].split(","):
                shutil.rmtree(place, ignore_errors=True)
        if order(folder, "waiting") is not None:
            end = time.monotonic() + HANG_SECONDS
            while os.path.exists(f"{folder}/renewing") and time.monotonic() < end:
                time.sleep(0.02)
        delay = order(folder, "result")
        if delay is not None:
            threading.Thread(target=die, args=(float(delay),), daemon=True).start()
        if order(folder, "hanging") is not None:
            time.sleep(HANG_SECONDS)

    return put_file


def start_cluster(folder: Path, jars: str, workers: int) -> SparkSession:
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options = os.environ.get("SPARK_SUBMIT_OPTS", "").split()
    settings = {
        "spark.app.name": "kills",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.jars": jars,  # on no class path, with which no JVM could use the class archive
        "spark.executor.extraJavaOptions": " ".join(o for o in options if not o.startswith("-Dspark.")),
        "spark.sql.shuffle.partitions": "2",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxDirectResultSize": "512",  # reports wait in the executor until the driver fetches them
        "spark.master.rest.enabled": "false",
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.minTaskRuntime": "3s",
        "spark.speculation.quantile": "0.5",
    }
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name, value)
    SparkContext._ensure_initialized(conf=conf)
    jvm: Any = SparkContext._jvm
    gateway: Any = SparkContext._gateway
    java_conf = SparkConf(loadDefaults=False, _jvm=jvm)
    for name, value in settings.items():
        java_conf.set(name, value)
    deploy = jvm.org.apache.spark.deploy
    master = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, java_conf._jconf)
    url = f"spark://{master._1().address().hostPort()}"
    urls = gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url
    none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
    for number in range(1, workers + 1):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            f"127.0.0.{number}", 0, 0, 1, 1024, urls, str(folder / "work"), jvm.scala.Some(number),
            java_conf._jconf, none,
        )  # fmt: skip
    builder = SparkSession.builder.master(url)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def find_executors() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in process.cmdline():
                found.append(process)
        except psutil.Error:
            pass
    return found


def kill_executors() -> None:
    for process in find_executors():
        process.kill()


def cpu_seconds() -> float:
    """Return the CPU that this process and all below it took, also those that ended."""
    every = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in every)


class Rounds:
    """The verbs, the model of the rows, and what is wrong."""

    def __init__(
        self, spark: SparkSession, lake: SparkCatalog, folder: Path, seed: int, workers: int
    ) -> None:
        self._spark = spark
        self._workers = workers
        self._lake = lake
        self._folder = folder
        self._chance = random.Random(seed)
        self.expected: set[int] = set()
        self._next = 0

    def ready(self) -> None:
        """Wait until all executors are there."""
        context: Any = self._spark.sparkContext._jsc
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (
            context.sc().getExecutorMemoryStatus().size() <= self._workers
            or len(find_executors()) < self._workers
        ):
            assert time.monotonic() < deadline, "an executor does not come back"
            time.sleep(0.1)

    def give(self, phase: str) -> None:
        if phase == "renewing":
            (self._folder / "waiting").touch()
        (self._folder / "new").write_text(str(self._chance.choice((0, 0, 0.02, 0.1, 0.3))))
        (self._folder / "new").rename(self._folder / phase)

    def frame(self) -> DataFrame:
        return self._spark.range(self._next, self._next + ROWS, numPartitions=PARTS).selectExpr(
            "id", "id % 7 AS k"
        )

    def one(self, phase: str, number: int) -> None:
        self.ready()
        # All verbs of this phase may be refused, and two kinds of them need rows.
        if phase == "folders" and not self.expected:
            self._lake.append("s.t", self.frame())
            self.expected = set(range(self._next, self._next + ROWS))
            self._next += ROWS
        before = self._find_stored()
        new = set(range(self._next, self._next + ROWS))
        df = self.frame()
        after, verb = self.expected | new, "append"
        act: Callable[[], object] = lambda: self._lake.append("s.t", df)  # noqa: E731
        if number % 4 == 3 and self.expected:
            verb, act = "merge", lambda: self._lake.merge("s.t", df, on="id")
        elif number % 4 == 1 and self.expected:
            gone = min(self.expected)
            verb, after = "rewrite", self.expected - {gone}
            act = lambda: self._lake.delete("s.t", f"id = {gone}", mode="rewrite")  # noqa: E731
        self._next += ROWS
        self.give(phase)
        began, told = time.monotonic(), "committed"
        try:
            act()
            self.expected = after
        except AlpheusError as error:
            told = f"refused: {error}"
        took = time.monotonic() - began
        taken = not (self._folder / phase).exists()
        (self._folder / phase).unlink(missing_ok=True)
        (self._folder / "waiting").unlink(missing_ok=True)
        if phase == "folders":  # their folders do not come back
            kill_executors()
        wrong, orphans = self._judge(before if verb == "append" else set())
        line = {
            "phase": phase, "verb": verb, "told": told, "taken": taken, "rows": len(self.expected),
            "orphans": orphans, "wrong": wrong, "seconds": round(took, 1),
        }  # fmt: skip
        print(json.dumps(line), flush=True)

    def _find_stored(self) -> set[str]:
        return set(run(listed(self._lake.storage, "data/")))

    def _judge(self, before: set[str]) -> tuple[list[str], int]:
        wrong = []
        catalog = self._lake.catalog
        if sorted(catalog.read("s.t")["id"].to_pylist()) != sorted(self.expected):
            wrong.append("the table has other rows")
        table = catalog.load_table("s.t").definition
        files = {file.path for file in self._lake.lists.of(table.id, table.segments)}
        stored = self._find_stored()
        if files - stored:
            wrong.append("a listed file is not stored")
        if before - stored:
            wrong.append("a file was deleted")
        if not catalog.admin.check().ok:
            wrong.append("the check of the catalog finds damage")
        return wrong, len(stored - files)


def kill_in_renewals(folder: str) -> None:
    """Let leases of writes be short, and let a renewal take the order to kill executors before it sends anything."""
    lease_transaction, renew = core.lease_transaction, HeldLease.renew

    async def lease_briefly(*arguments: Any, **options: Any) -> Any:
        return await lease_transaction(*arguments, **options, seconds=LEASE_SECONDS)

    async def faulty_renew(self: HeldLease) -> None:
        is_of_writer = bool(self.lease.transaction_id)
        if is_of_writer and not os.path.exists(f"{folder}/waiting") and order(folder, "renewing") is not None:
            kill_executors()
        await renew(self)

    core.lease_transaction = lease_briefly
    HeldLease.renew = faulty_renew  # type: ignore[method-assign]


def main() -> None:
    url, place, jars, kills, seed, *phases = sys.argv[1:]
    folder = Path(place)
    workers = 2 if "hanging" in phases else 1
    spark = start_cluster(folder, jars, workers)
    task_writer.put_file = faulty_put(str(folder))
    list_in_segment = writes.list_in_segment

    def faulty_list(*arguments: Any) -> writes.Staged:
        if order(str(folder), "committing") is not None:
            kill_executors()
        return list_in_segment(*arguments)

    writes.list_in_segment = faulty_list
    if "renewing" in phases:
        kill_in_renewals(str(folder))
    with alpheus.connect(url) as catalog:
        rounds = Rounds(spark, SparkCatalog(spark, catalog, lease=False), folder, int(seed), workers)
        for number in range(int(kills)):
            for phase in phases:
                rounds.one(phase, number)
    print(json.dumps({"cpu_seconds": round(cpu_seconds())}), flush=True)
    os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)  # type: ignore[union-attr]
    kill_executors()


if __name__ == "__main__":
    main()
