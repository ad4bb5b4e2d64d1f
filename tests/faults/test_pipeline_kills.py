"""A real pipeline is killed again and again, and its outputs are as if each input version was processed once.

The processes are real: the daemon, the Spark driver (`kills_driver.py`) and its Python workers, and the S3 server where
the catalog is stored in a bucket. Meanwhile a loader commits input versions.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from alpheus_test_servers import S3Server

import alpheus
from alpheus.demo import data
from alpheus.errors import NotFound
from alpheus.sync.portal import run
from alpheus_journal.storage import Storage

PATIENCE_SECONDS = 300
INT = pa.int64()
FLIGHTS_AT_ONCE = 100
AHEAD_MAX = 20
"""The most loads that wait for the pipeline, so that a slow machine does not fall behind without bound."""
SCHEMAS = {
    "ops.flights": [("id", INT), ("carrier", pa.string()), ("dep_delay", INT)],
    "ops.weather": [("id", INT)],
    "mart.named": [("id", INT), ("carrier", pa.string()), ("name", pa.string()), ("dep_delay", INT)],
    "mart.weather_log": [("id", INT), ("change", pa.string()), ("at", INT)],
    "mart.totals": [("name", pa.string()), ("flights", INT), ("minutes", INT)],
    "mart.runs": [("id", INT)],
}


class Daemon:
    """A daemon that can be killed and restarted at the same address."""

    def __init__(self, storage: str, folder: Path) -> None:
        self._storage = storage
        self._port_file = folder / "port"
        self._log = (folder / "daemon.log").open("wb")
        self._listen = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        self._port_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "alpheus_daemon", self._storage),
                *("--listen", self._listen, "--port-file", str(self._port_file)),
            ],
            stderr=self._log,
        )
        until(self._port_file.exists, lambda: self.process.poll() is None)
        self._listen = self._port_file.read_text().strip()

    @property
    def url(self) -> str:
        return f"grpc://{self._listen}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self._log.close()


class Driver:
    def __init__(self, url: str, folder: Path) -> None:
        self._arguments = [
            sys.executable,
            str(Path(__file__).parent / "drivers" / "kills_driver.py"),
            url,
            str(folder),
        ]
        self._folder = folder
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        with (self._folder / "driver.out").open("ab") as out, (self._folder / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(self._arguments, stdout=out, stderr=log)

    def lives(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def results(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self._folder / "driver.out").read_text().splitlines()]


def until(condition: Callable[[], bool], alive: Callable[[], bool] = lambda: True) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert alive(), "a process ended by itself"
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)  # most conditions ask the daemon, which has better to do


class Loader:
    """Commits flights of 2013 without end. Some transactions also change the weather."""

    def __init__(self, catalog: alpheus.Catalog, pause_seconds: float) -> None:
        self._catalog = catalog
        self._pause = pause_seconds
        self._flights = data.read("flights").select(["carrier", "dep_delay"])
        self._stop = threading.Event()
        self._error: list[BaseException] = []
        self.commits = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._pause):
                done = self._catalog.load_table("mart.runs").row_count // FLIGHTS_AT_ONCE
                if self.commits - done < AHEAD_MAX:
                    self._load(self.commits)
                    self.commits += 1
        except BaseException as error:
            self._error.append(error)

    def _load(self, number: int) -> None:
        begin = number * FLIGHTS_AT_ONCE
        chunk = self._flights.slice(begin % (self._flights.num_rows - FLIGHTS_AT_ONCE), FLIGHTS_AT_ONCE)
        ids = pa.array(range(begin, begin + FLIGHTS_AT_ONCE), INT)
        with self._catalog.transaction(message=f"load {number}") as tx:
            tx.append("ops.flights", chunk.add_column(0, "id", ids))
            write = tx.overwrite if number % 5 == 4 else tx.append
            write("ops.weather", pa.table({"id": pa.array([number], INT)}))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._error == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


KILLS_SMALL, KILLS_FULL = 1, 50
PARTS = [f"{place}{number}" for place in ("part", "s3-part") for number in range(4)]
"""The parts of the full runs: 200 kills over a disk, and 200 over S3. Each part has its own catalog and can run alone:
`-k part2`, `-k s3-part2`."""


NAMES = (
    "worker of totals", "daemon at work", "driver, totals staged", "daemon before the commit of named",
    "driver, named committed", "driver at any moment", "worker of named", "driver, named staged",
    "daemon before the commit of totals", "driver, totals committed", "S3 server",
)  # fmt: skip
"""The kinds of kills, in the order in which a part does each of them once."""


@pytest.fixture(params=PARTS)
def part(request: pytest.FixtureRequest, lane_count: Callable[[int, int], int]) -> str:
    if request.param != "part0" and not lane_count(0, 1):
        pytest.skip("make slow LANE=pipeline_kills")
    return str(request.param)


@pytest.fixture
def server(part: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3Server | None:
    """The S3 server that stores the catalog; None for a disk."""
    if not part.startswith("s3"):
        return None
    jars = request.getfixturevalue("hadoop_aws_jars")
    monkeypatch.setenv("ALPHEUS_TEST_JARS", ",".join(map(str, jars)))
    found = request.getfixturevalue("crash_s3")
    assert isinstance(found, S3Server)
    return found


@pytest.fixture
def daemon(server: S3Server | None, folder: Path) -> Iterator[Daemon]:
    url = f"file://{folder}/lake" if server is None else server.url()
    alpheus.create(url).close()
    daemon = Daemon(url, folder)
    yield daemon
    daemon.close()


@pytest.fixture
def catalog(daemon: Daemon) -> Iterator[alpheus.Catalog]:
    with alpheus.connect(daemon.url, timeout=60) as catalog:
        for namespace in ("ops", "ref", "mart"):
            catalog.create_namespace(namespace)
        for name, fields in SCHEMAS.items():
            catalog.create_table(name, pa.schema(fields))
        catalog.create_table("ref.airlines", data.read("airlines"))
        yield catalog


def positions(catalog: alpheus.Catalog) -> dict[str, int]:
    """Return the last version that each of the two jobs has read, or nothing before both have run."""
    try:
        jobs = catalog.load_pipeline("kills").jobs
    except NotFound:
        return {}
    assert all(job.state == "running" for job in jobs.values()), jobs
    return {name: job.pinned_version for name, job in jobs.items()} if len(jobs) == 2 else {}


def weather_history(catalog: alpheus.Catalog) -> list[tuple[int, str, int]]:
    """Return the expected change feed of the weather, computed from the versions: (id, change, version)."""
    history: list[tuple[int, str, int]] = []
    before: list[int] = []
    for event in catalog.events(names=["ops.weather"]):
        rows = catalog.read("ops.weather", at=event.version)["id"].to_pylist()
        types = {
            action.type for t in event.transactions for action in t.actions if action.name == "ops.weather"
        }
        if "TABLE_OVERWRITE" in types:
            history += [(row, "delete", event.version) for row in before]
            before = []
        history += [(row, "insert", event.version) for row in rows if row not in before]
        before = rows
    return history


Row = tuple[Any, ...]


class Growing:
    """The rows of an append-only table, version after version. Each file is read once."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._seen: set[str] = set()

    def since(self, now: alpheus.Snapshot) -> list[Row]:
        """Return the rows added since the last call, and check that no row has gone."""
        files = now.scan(self._name).files
        paths = {each.file.path for each in files}
        assert all(each.is_whole for each in files)
        assert self._seen <= paths, "rows that were there are not any more"
        columns = [name for name, _ in SCHEMAS[self._name]]
        found: list[Row] = []
        for path in sorted(paths - self._seen):
            stored = run(self._storage.read(path, size_max=1 << 30))
            read = pq.read_table(pa.BufferReader(stored), columns=columns)
            found += zip(*(column.to_pylist() for column in read.columns), strict=True)
        self._seen = paths
        return found


class Owed:
    """Rows that must still appear in a table, or that appeared too early."""

    def __init__(self) -> None:
        self._balance: Counter[Row] = Counter()

    def settled(self, expected: Iterable[Row], found: Iterable[Row]) -> bool:
        self._balance.update(expected)
        self._balance.subtract(found)
        self._balance = Counter({row: count for row, count in self._balance.items() if count})
        return not self._balance


def check_versions(catalog: alpheus.Catalog, weather: list[tuple[int, str, int]]) -> int:
    """Check at every version, row by row, that the outputs of each stage follow from the inputs at its position.
    Return the number of versions."""
    airlines = catalog.read("ref.airlines").to_pylist()
    upper = {row["carrier"]: row["name"].upper() for row in airlines}
    lake = catalog.storage()
    flights, named, runs = (Growing(lake, name) for name in ("ops.flights", "mart.named", "mart.runs"))
    log, worked_in = Growing(lake, "mart.weather_log"), Growing(lake, "mart.named")
    named_owed, log_owed, runs_owed = Owed(), Owed(), Owed()
    sums: dict[str, list[int]] = {}
    told = looked = 0
    for event in catalog.events(names=["mart.*"]):
        now = catalog.at(event.version)
        try:
            jobs = now.load_pipeline("kills").jobs
        except NotFound:
            continue
        first = catalog.at(jobs["named"].pinned_version)
        expected = [
            (id, carrier, upper[carrier], delay)
            for id, carrier, delay in flights.since(first)
            if carrier in upper
        ]
        assert named_owed.settled(expected, named.since(now)), event.version
        known = [change for change in weather if change[2] <= first.version]
        assert log_owed.settled(known[told:], log.since(now)), event.version
        told = len(known)
        came = worked_in.since(catalog.at(jobs["totals"].pinned_version)) if "totals" in jobs else []
        assert runs_owed.settled([(row[0],) for row in came], runs.since(now)), event.version
        for _, _, name, delay in came:
            of = sums.setdefault(name, [0, 0])
            of[0] += 1
            of[1] += delay or 0
        totals = now.read("mart.totals").to_pylist()
        assert {row["name"]: [row["flights"], row["minutes"]] for row in totals} == sums, event.version
        assert len(totals) == len(sums), event.version
        looked += 1
    return looked


def test_whatever_is_killed_each_version_is_worked_in_once(
    daemon: Daemon,
    catalog: alpheus.Catalog,
    server: S3Server | None,
    folder: Path,
    lane_count: Callable[[int, int], int],
) -> None:
    seed = int(os.environ.get("ALPHEUS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"ALPHEUS_SEED={seed}")
    moments = random.Random(seed)
    driver = Driver(daemon.url, folder)
    loader: Loader | None = None

    def caught_up() -> None:
        flights = catalog.load_table("ops.flights").row_count
        until(lambda: catalog.load_table("mart.runs").row_count >= flights, driver.lives)
        positions(catalog)  # nothing is parked

    def give(order: str, text: str = "") -> Path:
        (folder / "new-order").write_text(text)
        return (folder / "new-order").rename(folder / order)

    def kill_driver_by(order: str) -> None:
        given = give(order)
        until(lambda: not given.exists() and not driver.lives())
        assert driver.process.wait() == -9
        driver.start()

    def kill_driver_at_a_random_moment() -> None:
        commits = loader.commits if loader else 0
        until(lambda: loader is not None and loader.commits > commits, driver.lives)
        time.sleep(moments.uniform(0, 1.0))
        driver.kill()
        driver.start()

    def kill_a_worker_of(stage: str) -> None:
        given = give(f"kill-worker-{stage}")
        until(lambda: not given.exists(), driver.lives)

    def kill_the_daemon_while_it_works() -> None:
        time.sleep(moments.uniform(0, 0.5))
        daemon.kill()
        daemon.start()

    def kill_the_daemon_before_a_commit_of(stage: str) -> None:
        give(f"kill-daemon-{stage}", str(daemon.process.pid))
        until(lambda: daemon.process.poll() is not None, driver.lives)
        daemon.start()

    def kill_the_server_while_it_stores() -> None:
        assert server is not None
        time.sleep(moments.uniform(0, 1.0))
        server.kill()
        time.sleep(moments.uniform(0, 0.5))
        server.start()

    # A short run has the first one, and test_demo kills a driver and the daemon. Each part of the full run has all.
    kinds: list[Callable[[], object]] = [
        lambda: kill_a_worker_of("totals"),
        kill_the_daemon_while_it_works,
        lambda: kill_driver_by("kill-staged-totals"),
        lambda: kill_the_daemon_before_a_commit_of("named"),
        lambda: kill_driver_by("kill-committed-named"),
        kill_driver_at_a_random_moment,
        lambda: kill_a_worker_of("named"),
        lambda: kill_driver_by("kill-staged-named"),
        lambda: kill_the_daemon_before_a_commit_of("totals"),
        lambda: kill_driver_by("kill-committed-totals"),
    ]
    if server is not None:
        kinds.append(kill_the_server_while_it_stores)
    kills = lane_count(KILLS_SMALL, KILLS_FULL)
    done: Counter[str] = Counter()
    try:
        until(lambda: len(positions(catalog)) == 2, driver.lives)
        loader = Loader(catalog, lane_count(2, 1))
        caught_up()
        for number in range(kills):
            place = number if number < len(kinds) else moments.randrange(len(kinds))
            kinds[place]()
            done[NAMES[place]] += 1
            if number < len(kinds) or moments.random() < 0.5:
                caught_up()  # else the next kill meets the rest of the last one
            else:
                until(lambda: daemon.process.poll() is None, driver.lives)
        caught_up()
        loader.stop()
        caught_up()
        driver.process.terminate()
        assert driver.process.wait() == 0, "SIGTERM ends it in order"
    finally:
        if driver.lives():
            driver.kill()
        if loader is not None:
            loader.stop()

    flights = catalog.read("ops.flights")
    assert sorted(flights["id"].to_pylist()) == list(range(loader.commits * FLIGHTS_AT_ONCE))
    airlines = catalog.read("ref.airlines")
    upper = airlines.set_column(1, "name", pc.utf8_upper(airlines["name"]))
    expected = flights.join(upper, "carrier").select(["id", "carrier", "name", "dep_delay"])
    found = catalog.read("mart.named")
    assert data.canonical(found).equals(data.canonical(expected.cast(found.schema)))
    assert sorted(catalog.read("mart.runs")["id"].to_pylist()) == sorted(expected["id"].to_pylist())
    sums = expected.group_by("name").aggregate([([], "count_all"), ("dep_delay", "sum")])
    sums = sums.rename_columns(["name", "flights", "minutes"])
    sums = sums.set_column(2, "minutes", pc.fill_null(sums["minutes"], 0))
    totals = catalog.read("mart.totals")
    assert data.canonical(totals).equals(data.canonical(sums.cast(totals.schema)))
    weather = weather_history(catalog)
    log = catalog.read("mart.weather_log").to_pylist()
    assert Counter((row["id"], row["change"], row["at"]) for row in log) == Counter(weather)
    looked = check_versions(catalog, weather)
    report = catalog.admin.check()
    assert report.findings == ()
    waited = sorted(r["waited_ms"] for r in driver.results() if isinstance(r["waited_ms"], float))
    print(dict(done))
    print(
        f"{kills} kills, {driver.starts} drivers, {loader.commits} loads, {len(waited)} runs, {looked} versions looked"
        f" at, p50 from commit to call {waited[len(waited) // 2]:.0f} ms"
    )
