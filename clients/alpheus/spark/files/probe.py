"""Try, before the first write, whether Spark's executors and workers reach a catalog's data as the driver does.

The driver stores a small file below `data/`. Tasks read it and store another, with pyarrow, as later writes will. One
task reads a Parquet file by Spark's own reader. At last the driver looks whether it sees what the tasks stored, and
removes all. So a wrong region, missing rights, missing jars and a folder that the machines do not share are told by
name before work begins, and not in the middle of a job.

pyarrow has no way to name a key of KMS in its requests. Where the catalog's URL names one, the look demands that the
store encrypts what a task stored with the same key as what the driver stored, by the bucket's default encryption.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark import __version__ as spark_version
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from alpheus.spark.files import task_probe
from alpheus.spark.files.file_scan import read_files
from alpheus.spark.files.locations import (
    hadoop_version,
    is_connect,
    is_local,
    s3_url_of,
    spark_path,
    task_place,
)
from alpheus.spark.files.scratch import delete_scratch
from alpheus.spark.files.store_errors import explain, make_error
from alpheus.spark.files.task_probe import TOKEN_FILE, Probe
from alpheus.sync.portal import run
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import AlpheusError, NotFound
from alpheus_journal.format import CLOCK_SKEW_MILLIS_MAX
from alpheus_journal.storage import Storage
from alpheus_journal.urls import redact_url

SCRATCH_FOLDER = "data/selftest/"
TASKS_MAX = 256
ROUNDS = 3
"""Jobs that a full look runs until every executor has answered."""

cloudpickle.register_pickle_by_value(task_probe)  # type: ignore[no-untyped-call]


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """The Python workers of one executor.

    - `host`, `process`: the machine, and the process that starts the workers.
    - `alpheus`: the version that is installed there; empty for none. Only feeds and streams need it.
    - `clock_offset_seconds`: how far the clock is from the driver's at least; 0 when it may be right.
    """

    host: str
    process: int
    python: str
    pyarrow: str
    alpheus: str
    clock_offset_seconds: float

    def __str__(self) -> str:
        text = f"{self.host}, process {self.process}: Python {self.python}, pyarrow {self.pyarrow}"
        text += f", alpheus {self.alpheus or 'not installed (streams need it: alpheus spark package)'}"
        skew = self.clock_offset_seconds
        if abs(skew) * 1000 > CLOCK_SKEW_MILLIS_MAX:
            text += f", clock {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}"
        return text


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Names one thing that does not work. `where`: "driver", "executor" (its JVM), or the host of a worker."""

    where: str
    message: str
    hint: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the result of a look. `executors` is their number, or None if unknown. `took_seconds` counts all jobs."""

    catalog: str
    spark: str
    hadoop: str
    master: str
    python: str
    pyarrow: str
    executors: int | None
    workers: tuple[Worker, ...]
    problems: tuple[Problem, ...]
    took_seconds: float

    def __str__(self) -> str:
        executors = "unknown" if self.executors is None else str(self.executors)
        lines = [
            f"catalog    {self.catalog}",
            f"Spark      {self.spark}, Hadoop {self.hadoop or 'unknown'}, master {self.master or 'unknown'}",
            f"driver     Python {self.python}, pyarrow {self.pyarrow}",
            f"executors  {executors}, {len(self.workers)} answered in {self.took_seconds:.1f} s",
            *(f"  {worker}" for worker in self.workers),
        ]
        for problem in self.problems:
            lines += [f"problem    {problem.where}: {problem.message}", f"  hint: {problem.hint}"]
        missing = (self.executors or 0) - len(self.workers)
        if missing > 0 and not self.problems:
            lines.append(f"{missing} executors did not answer: they were busy, or Spark sent them no task")
        return "\n".join(lines if self.problems or missing > 0 else [*lines, "all is well"])


_passed: set[tuple[str, str]] = set()
"""The applications that passed, with the storages they passed on."""


def probe_once(spark: SparkSession, storage: Storage) -> None:
    """Look once an application and storage. Raises the first problem: the storage's own error, Denied, Unavailable for
    what may pass, or InvalidInput (`bad_configuration`) for everything else.

    Nothing is done where driver and workers are one machine with one disk. With `self_test=false` in the URL nothing is
    done either, unless the URL names a key of KMS.
    """
    if is_local(storage) and not is_connect(spark) and _master_of(spark).startswith("local"):
        return
    if not is_local(storage) and not (url := s3_url_of(storage)).self_test and not url.bucket.kms_key_id:
        return
    key = (application_of(spark), storage.url)
    if key in _passed:
        return
    look = _look_at(spark, storage, rounds=1)
    if look.problems:
        raise look.error() from look.cause
    _passed.add(key)


def probe(spark: SparkSession, storage: Storage, *, rounds: int = ROUNDS) -> Report:
    """Look from the driver, from tasks on executors, and from Spark's own reader. Never raises for what it finds.

    `rounds`: jobs at most. Spark chooses where tasks run, so one job may miss an executor.
    """
    began = time.monotonic()
    look = _look_at(spark, storage, rounds=rounds)
    took = round(time.monotonic() - began, 3)
    return report_of(spark, storage.url, look.problems, workers=look.workers.values(), took_seconds=took)


def _look_at(spark: SparkSession, storage: Storage, *, rounds: int) -> _Look:
    look = _Look(spark, storage)
    try:
        look.run(rounds)
    finally:
        look.clean()
    return look


def report_of(
    spark: SparkSession,
    url: str,
    problems: Iterable[Problem],
    *,
    workers: Iterable[Worker] = (),
    took_seconds: float = 0.0,
) -> Report:
    """Return a report with what the session tells of itself."""
    return Report(
        catalog=redact_url(url),
        spark=spark_version,
        hadoop=hadoop_version(spark),
        master=_master_of(spark),
        python=platform.python_version(),
        pyarrow=pa.__version__,
        executors=_count_executors(spark),
        workers=tuple(workers),
        problems=tuple(problems),
        took_seconds=took_seconds,
    )


class _Look:
    """One look, in a folder of its own."""

    def __init__(self, spark: SparkSession, storage: Storage) -> None:
        self._spark = spark
        self._storage = storage
        self._folder = f"{SCRATCH_FOLDER}{RandomIdentities().uuid4()}/"
        self._token = self._folder.encode()
        self._written: list[str] = []
        self.workers: dict[tuple[str, int], Worker] = {}
        self.problems: list[Problem] = []
        self.cause: Exception | None = None  # of the first problem, where there was an error
        self._kind = ""  # of the first problem

    def error(self) -> AlpheusError:
        """Return the first problem as an error."""
        problem = self.problems[0]
        if isinstance(self.cause, AlpheusError):
            return self.cause
        return make_error(self._kind, f"{problem.where}: {problem.message}", problem.hint)

    def run(self, rounds: int) -> None:
        if not self._try("driver", self._store, TOKEN_FILE, self._token):
            return
        for _ in range(rounds):
            if not self._try("executor", self._ask_workers) or self.problems:
                return
            executors = _count_executors(self._spark)
            if executors is None or len(self.workers) >= executors:
                break
        self._try("executor", self._read_by_spark)

    def _try(self, where: str, act: Any, *arguments: Any) -> bool:
        """Return whether a step succeeded, and tell its error if it failed."""
        try:
            act(*arguments)
        except (AlpheusError, PySparkException, Py4JError) as error:
            if not self.problems:
                self.cause = error
            told = error.message if isinstance(error, AlpheusError) else str(error)
            self._tell(where, told, error.hint if isinstance(error, AlpheusError) else "")
            return False
        return True

    def _tell(self, where: str, told: str, hint: str = "") -> None:
        kind, message, found = explain(told)
        self._kind = self._kind if self.problems else kind
        self.problems.append(Problem(where=where, message=message, hint=hint or found))

    def _store(self, name: str, data: bytes) -> None:
        self._written.append(self._folder + name)
        run(self._storage.create(self._folder + name, data))

    def _ask_workers(self) -> None:
        place, filesystem, profile = task_place(self._storage, self._folder)
        asked = Probe(folder=place, filesystem=filesystem, profile=profile, token=self._token)
        count = count_tasks(self._spark)
        frame = self._spark.range(0, count, 1, count)
        before = time.time()
        rows = frame.mapInArrow(functools.partial(task_probe.try_store, asked), task_probe.RESULT).collect()
        after = time.time()
        self._written.extend(self._folder + row.file for row in rows if row.file)
        for row in rows:
            key = (row.host, row.process)
            if key in self.workers:
                continue
            clock = row.millis / 1000
            self.workers[key] = Worker(
                host=row.host,
                process=row.process,
                python=row.python,
                pyarrow=row.pyarrow,
                alpheus=row.alpheus,
                clock_offset_seconds=round(min(clock - before, 0.0) or max(clock - after, 0.0), 3),
            )
            self._judge(row)

    def _judge(self, row: Any) -> None:
        """Tell what is wrong with one worker. A worker with another clock still writes right rows."""
        if row.step == "read" and is_local(self._storage) and "FileNotFound" in row.error:
            self._tell(
                row.host,
                f"this worker does not see what the driver stored in {redact_url(self._storage.url)}",
                "a file:// catalog needs a disk that the driver and all workers share; or use s3://",
            )
        elif row.step:
            did = {"open": "reach the store", "read": "read what the driver stored", "write": "store a file"}
            self._tell(row.host, f"this worker cannot {did[row.step]}: {row.error}")
        elif not self._is_seen(row.file):
            self._tell(
                row.host,
                f"the driver does not see what this worker stored for {redact_url(self._storage.url)}",
                "let the driver and all workers reach the same bucket or the same disk",
            )
        elif not is_local(self._storage) and s3_url_of(self._storage).bucket.kms_key_id:
            self._judge_encryption(row)

    def _judge_encryption(self, row: Any) -> None:
        """Tell where the store encrypts what a task stored otherwise than what the driver stored."""
        wanted, found = run(
            _read_key_ids(self._storage.url, [self._folder + TOKEN_FILE, self._folder + row.file])
        )
        if not wanted or found != wanted:
            self._tell(
                row.host,
                f"the store encrypts a file of this worker with {found or 'no key of KMS'}, and one of the driver with"
                f" {wanted or 'no key of KMS'}: pyarrow cannot name the key of kms_key_id in its requests",
                "make the key the bucket's default encryption; then Spark's files have the key, too",
            )

    def _is_seen(self, name: str) -> bool:
        try:
            return run(self._storage.read(self._folder + name, size_max=1 << 10)) == self._token
        except NotFound:
            return False

    def _read_by_spark(self) -> None:
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": [1]}), buffer)
        data = buffer.getvalue().to_pybytes()
        self._store("driver.parquet", data)
        schema = t.StructType([t.StructField("id", t.LongType())])
        path = spark_path(self._spark, self._storage, f"{self._folder}driver.parquet")
        frame = read_files(self._spark, self._storage, [(path, len(data))], schema)
        found = [row.id for row in frame.select("*").collect()]
        if found != [1]:
            self._tell("executor", f"Spark read {found} from a file that holds the row 1")

    def clean(self) -> None:
        """Remove what was stored. A store that forbids deleting keeps a few small files, which nothing refers to."""
        delete_scratch(self._storage, self._written)
        if is_local(self._storage):
            with contextlib.suppress(OSError):
                Path(task_place(self._storage, self._folder)[0]).rmdir()


async def _read_key_ids(url: str, paths: Iterable[str]) -> list[str]:
    """Return the key of KMS of each file in a store on S3. The store may be a table's own (`RootedStorage`)."""
    from alpheus_journal.storage.s3 import (
        open_s3,
    )  # from the extra `s3`, which catalogs on local disks do not need

    store = open_s3(url)
    try:
        return [await store.read_key_id(path) for path in paths]
    finally:
        await store.close()


# --- what a session tells ----------------------------------------------------------------------------


def _master_of(spark: SparkSession) -> str:
    return spark.conf.get("spark.master", "") or ""


def application_of(spark: SparkSession) -> str:
    return spark.conf.get("spark.app.id", "") or str(id(spark))


def _count_executors(spark: SparkSession) -> int | None:
    if is_connect(spark):
        return None
    context: Any = spark._jsc
    known = int(context.sc().getExecutorMemoryStatus().size())
    return known if _runs_in_driver(spark) else known - 1  # one is the driver


def count_tasks(spark: SparkSession) -> int:
    """Return how many tasks run at once, within bounds."""
    if _runs_in_driver(spark):
        return 1
    slots = 8 if is_connect(spark) else spark.sparkContext.defaultParallelism
    return max(1, min(slots, TASKS_MAX))


def _runs_in_driver(spark: SparkSession) -> bool:
    """Return whether tasks run in the driver's own process, so that there is one executor."""
    return not is_connect(spark) and re.match(r"local(\[|$)", _master_of(spark)) is not None
