"""A real pipeline is killed again and again; its outputs are as if each input version was worked in once.

Real processes: the daemon, the Spark driver (`kills_driver.py`), its Python workers. A loader commits input
versions all the while.
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
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import alpheus
from alpheus.errors import NotFound

PATIENCE_SECONDS = 120
INT = pa.int64()


class Daemon:
    """A daemon that can be killed and started again at the same address."""

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
        self._arguments = [sys.executable, str(Path(__file__).parent / "kills_driver.py"), url, str(folder)]
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
        time.sleep(0.02)


class Loader:
    """Commits new orders for ever, and changes of the stock with them in the same transaction."""

    def __init__(self, catalog: alpheus.Catalog) -> None:
        self._catalog = catalog
        self._stop = threading.Event()
        self._error: list[BaseException] = []
        self.commits = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.4):
                self._load(self.commits)
                self.commits += 1
        except BaseException as error:
            self._error.append(error)

    def _load(self, number: int) -> None:
        with self._catalog.transaction(message=f"load {number}") as tx:
            tx.append("sales.orders", pa.table({"id": pa.array(range(number * 3, number * 3 + 3), INT)}))
            write = tx.overwrite if number % 5 == 4 else tx.append
            write("sales.stock", pa.table({"id": pa.array([number], INT)}))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._error == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    alpheus.create(f"file://{folder}/lake").close()
    daemon = Daemon(f"file://{folder}/lake", folder)
    yield daemon
    daemon.close()


@pytest.fixture
def catalog(daemon: Daemon) -> Iterator[alpheus.Catalog]:
    with alpheus.connect(daemon.url, timeout=60) as catalog:
        schemas = {
            "sales.orders": ["id"],
            "sales.stock": ["id"],
            "mart.lines": ["id", "value"],
            "mart.totals": ["n", "total"],
            "mart.stock_log": ["id", "change", "at"],
        }
        for namespace in ("sales", "mart"):
            catalog.create_namespace(namespace)
        for name, columns in schemas.items():
            fields = [pa.field(c, pa.string() if c == "change" else INT) for c in columns]
            catalog.create_table(name, pa.schema(fields))
        yield catalog


def positions(catalog: alpheus.Catalog) -> list[int]:
    """The version up to which each of the two jobs has worked; empty before both ran."""
    try:
        jobs = catalog.load_pipeline("kills").jobs
    except NotFound:
        return []
    assert all(job.state == "running" for job in jobs.values()), jobs
    found = [position.version for job in jobs.values() for position in job.inputs.values()]
    return found if len(found) == 2 else []


def stock_history(catalog: alpheus.Catalog) -> Counter[tuple[int, str, int]]:
    """What the change feed of the stock must have been, from its versions themselves."""
    history: Counter[tuple[int, str, int]] = Counter()
    before: list[int] = []
    for event in catalog.events(names=["sales.stock"]):
        rows = catalog.read("sales.stock", at=event.version)["id"].to_pylist()
        types = {
            action.type for t in event.transactions for action in t.actions if action.name == "sales.stock"
        }
        if "TABLE_OVERWRITE" in types:
            history.update((row, "delete", event.version) for row in before)
            before = []
        history.update((row, "insert", event.version) for row in rows if row not in before)
        before = rows
    return history


def test_whatever_is_killed_each_version_is_worked_in_once(
    daemon: Daemon, catalog: alpheus.Catalog, folder: Path, lane_count: Callable[[int, int], int]
) -> None:
    seed = int(os.environ.get("ALPHEUS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"ALPHEUS_SEED={seed}")
    moments = random.Random(seed)
    driver = Driver(daemon.url, folder)
    loader: Loader | None = None

    def caught_up() -> None:
        head = catalog.version()
        until(lambda: min(positions(catalog), default=-1) >= head, driver.lives)

    def give(order: str, text: str = "") -> Path:
        (folder / "new-order").write_text(text)
        return (folder / "new-order").rename(folder / order)

    def kill_driver_by(order: str) -> None:
        given = give(order)
        until(lambda: not given.exists() and not driver.lives())
        assert driver.process.wait() == -9
        driver.start()
        caught_up()

    def kill_driver_at_a_random_moment() -> None:
        commits = loader.commits if loader else 0
        until(lambda: loader is not None and loader.commits > commits, driver.lives)
        time.sleep(moments.uniform(0, 1.0))
        driver.kill()
        driver.start()
        caught_up()

    def kill_a_worker() -> None:
        given = give("kill-worker")
        until(lambda: not given.exists(), driver.lives)
        caught_up()

    def kill_the_daemon_while_it_works() -> None:
        time.sleep(moments.uniform(0, 0.5))
        daemon.kill()
        daemon.start()
        caught_up()

    def kill_the_daemon_before_a_commit() -> None:
        give("kill-daemon", str(daemon.process.pid))
        until(lambda: daemon.process.poll() is not None, driver.lives)
        daemon.start()
        caught_up()

    try:
        until(lambda: len(positions(catalog)) == 2, driver.lives)
        loader = Loader(catalog)
        caught_up()
        for _ in range(lane_count(1, 8)):
            kill_a_worker()
            kill_the_daemon_while_it_works()
            kill_driver_by("kill-staged")
            kill_a_worker()
            kill_the_daemon_before_a_commit()
            kill_driver_by("kill-committed")
            kill_driver_at_a_random_moment()
        loader.stop()
        caught_up()
        driver.process.terminate()
        assert driver.process.wait() == 0, "SIGTERM ends it in order"
    finally:
        if driver.lives():
            driver.kill()
        if loader is not None:
            loader.stop()

    orders = range(loader.commits * 3)
    lines = catalog.read("mart.lines").to_pydict()
    assert sorted(lines["id"]) == list(orders)
    assert all(value == id_ * 10 for id_, value in zip(lines["id"], lines["value"], strict=True))
    assert catalog.read("mart.totals").to_pylist() == [{"n": len(orders), "total": sum(orders)}]
    log = catalog.read("mart.stock_log").to_pylist()
    assert Counter((row["id"], row["change"], row["at"]) for row in log) == stock_history(catalog)
    report = catalog.admin.check()
    assert report.findings == ()
    waited = sorted(r["waited_ms"] for r in driver.results() if isinstance(r["waited_ms"], float))
    print(
        f"{loader.commits} versions, {len(waited)} runs, p50 from commit to call {waited[len(waited) // 2]:.0f} ms"
    )
