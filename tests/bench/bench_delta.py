"""Appends, merges, reads of old versions and an end-to-end stream, beside delta-spark on the same PySpark.

    make bench BENCH=delta                            about six minutes
    make bench BENCH=delta ARGS="--s3"                appends and merges on S3, with 20 ms a request, and the requests
    make bench BENCH=delta ARGS="--small"             a short run, to see that it works

Two Spark drivers with `local[2]` run as separate processes in the environment of .ci/delta: one with this project's
client and its daemon, one with delta-spark. Both get the same rows and the same commands in turns, and one waits while
the other works. CPU is that of a driver, its JVM and its daemon. The durability of an acknowledged commit differs:
Alpheus syncs every file and folder, and Delta Lake on a local disk syncs nothing. On S3 both have what the store gives;
Delta Lake has its usual log store there, which is safe for one driver only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from peers import alpheus_daemon
from spark_cost import Meter, load, machine, percentile

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "faults" / "drivers")]

import alpheus_test_servers as servers  # noqa: E402
from store_proxy import StoreProxy  # noqa: E402

import alpheus  # noqa: E402
from alpheus.spark import packages  # noqa: E402
from alpheus_journal.testing.proxy import Forward  # noqa: E402

LATENCY_SECONDS = 0.02
PYSPARK = "4.2.0"
"""The PySpark of .ci/delta."""
PLACE = ROOT / ".cache" / "delta"
PACKAGES = [str(ROOT / part) for part in ("protos", "journal", "daemon", "clients")]

ALPHEUS, DELTA, VECTORS = "Alpheus", "Delta", "Delta, deletion vectors"
APPENDED_ROWS, APPENDS_A_TURN = 1_000, 10
TABLE_ROWS, TABLE_FILES, MERGED_SHARE = 2_000_000, 16, 100
STREAMED, STREAM_WARM_UP = 40, 10


class Driver:
    """A driver process that gets one command after the other."""

    def __init__(
        self,
        system: str,
        place: str,
        directory: Path,
        jars: str,
        endpoint: str,
        served_by: psutil.Process | None,
    ) -> None:
        directory.mkdir(parents=True)
        command = [str(PLACE / "bin" / "python"), str(HERE / "peer_spark.py")]
        command += [system, place, str(directory), jars, endpoint][: 5 if endpoint else 4]
        environment = {
            key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "VIRTUAL_ENV")
        }
        environment |= {"PYTHONPATH": os.pathsep.join(PACKAGES), "PYSPARK_PYTHON": command[0]}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        own = psutil.Process(self._process.pid)
        self.meter = Meter(own, *([served_by] if served_by is not None else []))

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a driver ended with status {self._process.wait()}, asked to {do} {arguments}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Spent(NamedTuple):
    """The result of one arm: seconds of each operation, and mean CPU seconds of one operation."""

    seconds: list[float]
    cpu: float


class Arm:
    """One of the compared systems, and its measurements."""

    def __init__(self, driver: Driver, suffix: str = "") -> None:
        self._driver, self._suffix = driver, suffix
        self._spent: list[tuple[list[float], float]] = []

    def ask(self, do: str, name: str, **arguments: Any) -> dict[str, Any]:
        return self._driver.ask(do, name=name + self._suffix, **arguments)

    def measure(self, do: str, name: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        cost = self._driver.meter.measure(lambda: answer.update(self.ask(do, name, **arguments)))
        self._spent.append((answer["seconds"], cost.cpu))
        return answer

    def taken(self) -> Spent:
        """Return the measurements since the last call."""
        seconds = [each for some, _ in self._spent for each in some]
        cpu = sum(cpu for _, cpu in self._spent) / len(seconds)
        self._spent = []
        return Spent(seconds, cpu)


def report(what: str, arms: dict[str, Arm]) -> None:
    """Print a line for each arm, with the ratio of Alpheus to it."""
    spent = {name: arm.taken() for name, arm in arms.items()}
    ours = spent[ALPHEUS]
    for name, found in spent.items():
        p50, p95 = percentile(found.seconds, 0.5), percentile(found.seconds, 0.95)
        ratios = ""
        if name != ALPHEUS:
            ratios = (
                f"   Alpheus : it = {percentile(ours.seconds, 0.5) / p50:5.2f}x"
                f"  (best to best {min(ours.seconds) / min(found.seconds):5.2f}x), CPU {ours.cpu / found.cpu:5.2f}x"
            )
        print(
            f"{what + ', ' + name:52} p50 {p50 * 1e3:6.0f} ms  p95 {p95 * 1e3:6.0f} ms  best"
            f" {min(found.seconds) * 1e3:6.0f} ms  CPU {found.cpu * 1e3:6.0f} ms{ratios}",
            flush=True,
        )


def appends(arms: dict[str, Arm], rounds: int, small: bool) -> None:
    for arm in arms.values():
        arm.ask("create", "appended", rows=APPENDED_ROWS, files=1)
        arm.ask("append", "appended", rows=APPENDED_ROWS, count=2 if small else 20)
    for _ in range(rounds):
        for arm in arms.values():
            arm.measure("append", "appended", rows=APPENDED_ROWS, count=2 if small else APPENDS_A_TURN)
    report(f"append of {APPENDED_ROWS:,} rows", arms)


def merges(arms: dict[str, Arm], rounds: int, small: bool) -> None:
    """Measure merges that each change every hundredth row, so that every file changes. Then read the table before
    and after the merges."""
    rows = TABLE_ROWS // (100 if small else 1)
    before = {}
    for name, arm in arms.items():
        arm.ask("create", "merged", rows=rows, files=TABLE_FILES)
        before[name] = arm.ask("version", "merged")["version"]
        arm.ask("create", "warm", rows=rows // 10, files=TABLE_FILES)
        for number in range(3):
            arm.ask("merge", "warm", rows=rows // 10, every=MERGED_SHARE, number=number)
    for number in range(rounds):
        for arm in arms.values():
            arm.measure("merge", "merged", rows=rows, every=MERGED_SHARE, number=number)
    report(f"merge of 1 % of {rows:,} rows", arms)
    for what, versions in (
        (f"read of the version before {rounds} merges", before),
        (f"read of the head after {rounds} merges", dict.fromkeys(arms)),
    ):
        sums: dict[str, Any] = {}
        for turn in range(rounds + 2):
            for name, arm in arms.items():
                measure = arm.measure if turn >= 2 else arm.ask
                answer = measure("total", "merged", version=versions[name])
                sums[name] = answer["rows"], [round(each, 3) for each in answer["sums"]]
        if len({str(each) for each in sums.values()}) != 1:
            raise SystemExit(f"{what}: the answers differ: {sums}")
        report(what, arms)


def streams(arms: dict[str, Arm], small: bool) -> None:
    for arm in arms.values():
        for name in ("source", "target"):
            arm.ask("create", name, rows=1, files=1)
        arm.measure(
            "stream",
            "source",
            target="target",
            count=3 if small else STREAMED,
            warm_up=1 if small else STREAM_WARM_UP,
        )
    report("a row written -> visible downstream", arms)


class Store:
    """Where the tables are: local folders, or one bucket behind a proxy that delays and counts requests."""

    def __init__(self, directory: Path, proxy: StoreProxy | None = None, bucket: str = "") -> None:
        self.proxy = proxy
        self.endpoint = proxy.endpoint if proxy else ""
        self.catalog = f"s3://{bucket}/lake?endpoint_url={self.endpoint}" if proxy else ""
        self.tables = f"s3a://{bucket}/delta" if proxy else str(directory / "delta" / "tables")

    def show_requests(self, what: str, arms: dict[str, Arm], operate: Callable[[Arm], object]) -> None:
        """Print how many requests one operation makes in each arm, by kind."""
        if self.proxy is None:
            return
        for name, arm in arms.items():
            self.slow()
            operate(arm)
            counts = Counter[str]()
            for (verb, _place), count in self.proxy.count_kinds().items():
                counts[verb] += count
            made = ", ".join(f"{verb} {count}" for verb, count in sorted(counts.items()))
            print(f"    requests of {what}, {name}: {sum(counts.values())}: {made}", flush=True)

    def slow(self) -> None:
        if self.proxy is not None:
            self.proxy.clear()
            self.proxy.always(lambda _: True, Forward(latency=LATENCY_SECONDS))


@contextlib.contextmanager
def open_store(directory: Path, on_s3: bool) -> Iterator[Store]:
    if not on_s3:
        yield Store(directory)
        return
    os.environ.update(servers.ENVIRONMENT)
    if failure := servers.install():
        sys.exit(f"{servers.NOT_INSTALLED}: {failure}")
    server = servers.S3Server(servers.default_kind(), directory / "s3")
    try:
        with StoreProxy(server.port) as proxy:
            store = Store(directory, proxy, server.bucket)
            store.slow()
            yield store
    finally:
        server.stop()


def _hadoop_jars() -> list[Path]:
    """Return the jars with which the PySpark of .ci/delta reads and writes s3a://."""
    wanted = packages(PYSPARK)
    jars = [servers.HADOOP_AWS / wanted.hadoop_version / jar.name for jar in wanted.jars]
    if not all(jar.is_file() for jar in jars):
        sys.exit(servers.NO_JARS)
    return jars


@contextlib.contextmanager
def drivers(directory: Path, store: Store) -> Iterator[dict[str, Driver]]:
    jars = _hadoop_jars() if store.proxy else []
    delta_jars = [*jars, *sorted((PLACE / "jars").glob("*.jar"))]
    with contextlib.ExitStack() as stack:
        if store.catalog:
            alpheus.create(store.catalog).close()
        daemon = stack.enter_context(alpheus_daemon(directory / "alpheus", url=store.catalog))
        ours = Driver(
            "alpheus", daemon.address, directory / "ours", ",".join(map(str, jars)), "", daemon.process
        )
        stack.callback(ours.close)
        theirs = Driver(
            "delta", store.tables, directory / "delta", ",".join(map(str, delta_jars)), store.endpoint, None
        )
        stack.callback(theirs.close)
        yield {ALPHEUS: ours, DELTA: theirs}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default="append,merge,stream", help="parts, with commas between")
    parser.add_argument("--s3", action="store_true", help="on S3, without the part stream")
    parser.add_argument("--directory", help="where the tables lie; a temporary directory by default")
    options = parser.parse_args()
    if not list(PLACE.glob("jars/*.jar")):
        print("DELTA IS LEFT OUT: it is not here; run .ci/delta")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # every driver ends with this process
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as name,
        open_store(Path(name), options.s3) as store,
        drivers(Path(name), store) as started,
    ):
        version = {driver.ask("about")["pyspark"] for driver in started.values()}
        print(f"{machine()}, PySpark {', '.join(version)}, local[2]; daemon and drivers share them; {load()}")
        if options.s3:
            print(f"on S3, {LATENCY_SECONDS * 1000:.0f} ms a request")
        else:
            print("an acknowledged commit: Alpheus synced every file and folder, Delta nothing")
        plain = {ALPHEUS: Arm(started[ALPHEUS]), DELTA: Arm(started[DELTA])}
        parts: Sequence[str] = options.only.split(",")
        if "append" in parts:
            appends(plain, options.rounds, options.small)
            store.show_requests(
                "an append", plain, lambda arm: arm.ask("append", "appended", rows=APPENDED_ROWS, count=1)
            )
        if "merge" in parts:
            merges({**plain, VECTORS: Arm(started[DELTA], "_vectors")}, options.rounds, options.small)
        if "stream" in parts and not options.s3:  # the arrival of Delta's rows is seen in a local folder
            streams(plain, options.small)
        print(load())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
