"""The overhead of the catalog in Spark over S3: appends, scans, plans of many files, and the lag of a pipeline's job.

    make bench BENCH=spark_s3                                         everything, about fifteen minutes, 2 GiB of disk
    make bench BENCH=spark_s3 ARGS="--only append --rounds 3"         append, scan, files, small, lag
    make bench BENCH=spark_s3 ARGS="--only append --rows 100000000"    6 GiB of disk a round
    make bench BENCH=spark_s3 ARGS="--small"                          a short run with a hundredth of the rows

A proxy in front of a real S3 server adds 20 ms to each request and counts the requests. Appends and scans are compared
with Spark's own Parquet over S3A in the same session; each round runs every arm once in random order, and ratios are of
medians. CPU is that of the driver, of the JVM and of its Python workers, without the proxy and the server. Both writers
use snappy.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
from peers import alpheus_daemon
from spark_cost import HEADINGS, Meter, compare, load, machine, verdict

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "faults" / "drivers")]

import alpheus_test_servers as servers  # noqa: E402
from store_proxy import StoreProxy  # noqa: E402

import alpheus  # noqa: E402
from alpheus.pipeline import Pipeline, appends  # noqa: E402
from alpheus.spark import SparkCatalog, session  # noqa: E402
from alpheus_journal.testing.proxy import Forward  # noqa: E402

LATENCY_SECONDS = 0.02
APPEND_RATIO_MAX, SCAN_RATIO_MAX, LAG_MILLIS_MAX, FLAT_MAX = 1.3, 1.05, 250, 1.2
ROWS, SCAN_FILES = 1 << 22, 32
FILE_ROWS = 1 << 21
MANY_FILES, SMALL_APPENDS = 10_000, 300
WINDOW = 50
COMMITS = 40
COLUMNS = (
    "id",
    "id % 100003 AS customer",
    "(pmod(hash(id), 1000000) / 100.0D) AS v",
    "elt(1 + pmod(hash(id, 1), 5), 'AT', 'DE', 'FR', 'PL', 'SE') AS country",
    "timestamp_seconds(1700000000 + id) AS at",
)


def rows(spark: Any, count: int, files: int) -> Any:
    return spark.range(0, count, numPartitions=files).selectExpr(*COLUMNS)


class Memory:
    """The memory that a driver takes for its work: the peak of its Python process above the begin, the peak of its JVM,
    and what the JVM's heap still holds after a collection of garbage."""

    def __init__(self, spark: Any) -> None:
        self._jvm = spark._jvm
        self._python = psutil.Process()
        [self._java] = [each for each in self._python.children(recursive=True) if each.name() == "java"]
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._heap = self._collect()
        self._begin = self._peaks = self._read()
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._watcher.join()
        self._held = self._collect() - self._heap

    def __str__(self) -> str:
        python, java = ((peak - begin) >> 20 for peak, begin in zip(self._peaks, self._begin, strict=True))
        return (
            f"the driver's Python +{python} MiB   at most +300; its JVM +{java} MiB to {self._peaks[1] >> 20} MiB,"
            f" of which its heap holds {self._held >> 20:+} MiB afterwards"
        )

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            python, java = self._read()
            self._peaks = max(self._peaks[0], python), max(self._peaks[1], java)

    def _read(self) -> tuple[int, int]:
        return self._python.memory_info().rss, self._java.memory_info().rss

    def _collect(self) -> int:
        """Return the bytes in the JVM's heap after a collection of its garbage."""
        self._jvm.java.lang.System.gc()
        heap = self._jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
        return int(heap.getUsed())


class Bench:
    """A catalog and a folder of plain Parquet in one bucket, both behind the proxy."""

    def __init__(self, store: StoreProxy, server: servers.S3Server, options: argparse.Namespace) -> None:
        self.store = store
        bucket = server.bucket
        self.options = options
        self.scale = 100 if options.small else 1
        self.plain = f"s3a://{bucket}/plain"
        self.url = f"s3://{bucket}/lake?endpoint_url={quote(store.endpoint, safe=':/')}"
        settings = {
            "spark.jars": ",".join(map(str, servers.find_jars())),
            "spark.master": "local[2]",
            "spark.driver.memory": "2g",
        }
        self.spark = session("spark_s3", settings=settings)
        self.spark.sparkContext.setLogLevel("ERROR")
        self.catalog = alpheus.create(self.url)
        self.catalog.create_namespace("s")
        self.lake = SparkCatalog(self.spark, self.catalog)
        self.meter = Meter(spent_beside=store.measure_cpu, outside=[server.process.pid])

    def close(self) -> None:
        self.lake.close()
        self.catalog.close()
        self.spark.stop()

    def slow(self) -> None:
        """Forget the requests, and delay those that come."""
        self.store.clear()
        self.store.always(lambda _: True, Forward(latency=LATENCY_SECONDS))

    def show_requests(self, what: str) -> None:
        counts = Counter[str]()
        for (verb, place), count in self.store.count_kinds().items():
            counts[f"{verb} {place or 'other'}"] += count
        print(
            f"    requests of {what}: " + ", ".join(f"{k} {n}" for k, n in sorted(counts.items())), flush=True
        )

    def compare_appends(self) -> None:
        """An append, to `df.write.parquet` by S3A and to a local disk: with one task a core, and with four times as
        many, because each task in Python costs PySpark some 30 ms of CPU."""
        count = self.options.rows // self.scale
        files = max(2, self.options.rows // FILE_ROWS)
        self.lake.create_table("s.appended", rows(self.spark, 1, 1).schema)
        for number in (files, 4 * files) if self.options.rows == ROWS else (files,):
            self._compare_appends(count, number)

    def _compare_appends(self, count: int, files: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            arms = {
                "df.write.parquet on a local disk": lambda: rows(self.spark, count, files).write.parquet(
                    f"{folder}/{time.monotonic_ns()}"
                ),
                "df.write.parquet by S3A": lambda: rows(self.spark, count, files).write.parquet(
                    f"{self.plain}/{time.monotonic_ns()}"
                ),
                "Alpheus": lambda: self.lake.append("s.appended", rows(self.spark, count, files)),
            }
            self.slow()
            found = compare(
                f"append of {count:,} rows in {files} files",
                arms,
                rounds=self.options.rounds,
                warm_up=1 if count <= ROWS else 0,
                meter=self.meter,
            )
        verdict(
            "to a local disk", found["Alpheus"], found["df.write.parquet on a local disk"], APPEND_RATIO_MAX
        )
        ours, theirs = found["Alpheus"].median.wall, found["df.write.parquet by S3A"].median.wall
        print(f"to S3A: {ours / theirs:.2f}x of the time   below 1x at 200 files and more")
        for name in ("Alpheus", "df.write.parquet by S3A") if count <= ROWS else ():
            self.slow()
            arms[name]()
            self.show_requests(f"an append by {name}")

    def compare_wide_appends(self) -> None:
        """An append of 200 files, by time."""
        files, count = 200 // (10 if self.options.small else 1), 2_000_000 // self.scale
        self.lake.create_table("s.wide", rows(self.spark, 1, 1).schema)
        self.slow()
        found = compare(
            f"append of {count:,} rows in {files} files",
            {
                "df.write.parquet by S3A": lambda: rows(self.spark, count, files).write.parquet(
                    f"{self.plain}/{time.monotonic_ns()}"
                ),
                "Alpheus": lambda: self.lake.append("s.wide", rows(self.spark, count, files)),
            },
            rounds=max(1, self.options.rounds // 2),
            warm_up=0,
            meter=self.meter,
        )
        ours, theirs = found["Alpheus"].median.wall, found["df.write.parquet by S3A"].median.wall
        print(
            f"to S3A: {ours / theirs:.2f}x of the time   at most 1x: {'met' if ours <= theirs else 'MISSED'}"
        )

    def compare_scans(self) -> None:
        """A scan, to `spark.read.parquet` of the same files; both frames are planned before."""
        count = ROWS // self.scale
        self.store.clear()
        self.lake.create_table("s.scanned", rows(self.spark, count, SCAN_FILES))
        frame = self.lake.read("s.scanned")
        plain = self.spark.read.schema(frame.schema).parquet(*self._places("s.scanned"))
        aggregates = {"id": "sum", "v": "max", "country": "max"}
        arms = {
            "spark.read.parquet": lambda: plain.agg(aggregates).collect(),
            "Alpheus": lambda: frame.agg(aggregates).collect(),
        }
        self.slow()
        found = compare(
            f"scan of {count:,} rows in {SCAN_FILES} files",
            arms,
            rounds=self.options.rounds,
            warm_up=1,
            meter=self.meter,
        )
        verdict("to spark.read.parquet", found["Alpheus"], found["spark.read.parquet"], SCAN_RATIO_MAX)
        for name in arms:
            self.slow()
            arms[name]()
            self.show_requests(f"a scan by {name}")

    def _places(self, name: str) -> list[str]:
        table = self.catalog.load_table(name).definition
        files = self.lake.lists.of(table.id, table.segments)
        base = self.url.partition("?")[0].replace("s3://", "s3a://")
        return [f"{base}/{file.path}" for file in files]

    def plan_many_files(self) -> None:
        """One append of many files, and the plan of a frame over them."""
        count = MANY_FILES // self.scale
        self.store.clear()
        self.lake.create_table("s.many", "id BIGINT")
        with Memory(self.spark) as memory:
            started = time.perf_counter()
            done = self.lake.append("s.many", self.spark.range(0, count, numPartitions=count))
            took = time.perf_counter() - started
        print(f"append of {done.files_added:,} files: {took:.0f} s, {memory}")
        self._plan(f"by the lake that wrote the {done.files_added:,} files", self.lake)
        with alpheus.connect(self.url) as fresh, contextlib.closing(SparkCatalog(self.spark, fresh)) as lake:
            fresh.version()
            self._plan("where the head is known and no segment is", lake)
            self._plan("the same again", lake)
        self.slow()
        started = time.perf_counter()
        with alpheus.connect(self.url) as fresh, contextlib.closing(SparkCatalog(self.spark, fresh)) as lake:
            lake.read("s.many")._jdf.queryExecution().executedPlan()
            self.show_requests(f"a plan with its connection, {time.perf_counter() - started:.2f} s")

    def _plan(self, what: str, lake: SparkCatalog) -> None:
        self.slow()
        started = time.perf_counter()
        lake.read("s.many")._jdf.queryExecution().executedPlan()
        self.show_requests(f"a plan {what}, {time.perf_counter() - started:.2f} s")

    def append_often(self) -> None:
        """Many small appends: the last ones take what the first ones took."""
        count = SMALL_APPENDS // (10 if self.options.small else 1)
        window = min(WINDOW, count // 3)
        self.lake.create_table("s.small", "id BIGINT")
        for _ in range(5):
            self.lake.append("s.small", self.spark.range(100))
        walls, requests = [], []
        for _ in range(count):
            self.slow()
            started = time.perf_counter()
            self.lake.append("s.small", self.spark.range(100))
            walls.append(time.perf_counter() - started)
            requests.append(sum(self.store.count_kinds().values()))
        first, last = (statistics.median(part) for part in (walls[:window], walls[-window:]))
        asked = [statistics.median(part) for part in (requests[:window], requests[-window:])]
        print(
            f"{count} appends of 100 rows: first {first * 1000:.0f} ms, last {last * 1000:.0f} ms,"
            f" {last / first:.2f}x   at most {FLAT_MAX}x: {'met' if last <= FLAT_MAX * first else 'MISSED'};"
            f" requests {asked[0]:.0f} and {asked[1]:.0f}"
        )

    def measure_lags(self) -> None:
        """From a commit to the call of a job that waits for it: the job learns of it from a daemon, or looks itself."""
        for name in ("s.source", "s.sink"):
            self.lake.create_table(name, "id BIGINT")
        with (
            tempfile.TemporaryDirectory() as folder,
            alpheus_daemon(Path(folder) / "daemon", url=self.url) as daemon,
            contextlib.closing(SparkCatalog(self.spark, f"grpc://{daemon.address}")) as lake,
        ):
            p50 = self._measure_lag(lake)
        met = "met" if p50 <= LAG_MILLIS_MAX else "MISSED"
        print(f"commit to job, a daemon: p50 of {COMMITS} {p50:.0f} ms   at most {LAG_MILLIS_MAX} ms: {met}")
        print(f"commit to job, no daemon: p50 of {COMMITS} {self._measure_lag(self.lake):.0f} ms")

    def _measure_lag(self, lake: SparkCatalog) -> float:
        """Return the median of the lags, in milliseconds."""
        called: list[float] = []
        pipeline = Pipeline("lag")

        @pipeline.job(inputs={"rows": appends("s.source")}, outputs=["s.sink"])
        def copy(run: Any) -> None:
            called.append(time.time())
            run.append("s.sink", run.read("rows"))

        list(pipeline.run(lake))
        called.clear()
        self.slow()
        stop = threading.Event()
        serving = threading.Thread(target=lambda: pipeline.serve(lake, stop=stop))
        serving.start()
        time.sleep(5)
        lags = []
        with alpheus.connect(lake.catalog.url) as writer:
            for number in range(COMMITS):
                seen = len(called)
                commit = writer.append("s.source", [{"id": number}])
                while len(called) == seen:
                    time.sleep(0.005)
                lags.append(called[-1] - commit.created_at.timestamp())
                time.sleep(1)
        stop.set()
        serving.join()
        return statistics.median(lags) * 1000


@contextlib.contextmanager
def open_bench(options: argparse.Namespace) -> Iterator[Bench]:
    os.environ.update(servers.ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder:
        if failure := servers.install():
            sys.exit(f"{servers.NOT_INSTALLED}: {failure}")
        if not servers.find_jars():
            sys.exit(servers.NO_JARS)
        server = servers.S3Server(servers.default_kind(), Path(folder))
        try:
            with (
                StoreProxy(server.port) as store,
                contextlib.closing(Bench(store, server, options)) as bench,
            ):
                yield bench
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("append", "wide", "scan", "files", "small", "lag"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of an append (default 4,194,304)")
    parser.add_argument("--small", action="store_true", help="a hundredth of the rows and files")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be above 0")
    with open_bench(options) as bench:
        print(f"{machine()}, {load()}; {LATENCY_SECONDS * 1000:.0f} ms a request\n{HEADINGS}")
        parts = {
            "append": bench.compare_appends,
            "wide": bench.compare_wide_appends,
            "scan": bench.compare_scans,
            "files": bench.plan_many_files,
            "small": bench.append_often,
            "lag": bench.measure_lags,
        }
        for name, part in parts.items():
            if options.only in (None, name):
                part()
        print(load())


if __name__ == "__main__":
    main()
