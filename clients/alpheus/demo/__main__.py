"""Run the demonstration. Exit with status 0 only if all comparisons agree at the end."""

from __future__ import annotations

import argparse
import functools
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import alpheus
from alpheus.demo import data
from alpheus.errors import AlpheusError
from alpheus.models import Action, Event

START_SECONDS_MAX = 60.0
FINISH_SECONDS_MAX = 300.0


class Stage:
    """Starts and stops the processes of the demonstration, and prints about them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lake = directory / "lake"
        self.storage_url = self.lake.as_uri()
        self.port = _free_port()
        self.url = f"grpc://127.0.0.1:{self.port}"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.loader: subprocess.Popen[bytes] | None = None
        self.pipeline: subprocess.Popen[str] | None = None
        self.ready = threading.Event()  # the pipeline's process has started Spark
        self.calls: dict[tuple[str, int], int] = {}  # (job, pinned version) -> when it was called, epoch ms
        self.lock = threading.Lock()

    def say(self, text: str) -> None:
        print(text, flush=True)

    def start_daemon(self) -> None:
        port_file = self.directory / "daemon.port"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "alpheus", "serve", self.storage_url]
        command += ["--listen", f"127.0.0.1:{self.port}", "--port-file", str(port_file)]
        with (self.directory / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(command, stderr=log, stdout=log)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not port_file.exists():
            if self.daemon.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the daemon did not start; see {self.directory / 'daemon.log'}")
            time.sleep(0.02)

    def start_pipeline(self, crash_at: int) -> None:
        command = [sys.executable, "-m", "alpheus.demo.pipeline", self.url]
        if crash_at:
            command += ["--crash-at", str(crash_at), "--crash-mark", str(self.directory / "crashed")]
        with (self.directory / "pipeline.log").open("ab") as log:
            self.pipeline = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        threading.Thread(target=self._read_calls, args=(self.pipeline,), daemon=True).start()

    def _read_calls(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                call = json.loads(line)
                if "ready" in call:
                    self.ready.set()
                    continue
                with self.lock:
                    self.calls[(call["job"], call["pinned"])] = call["at_millis"]
            except (ValueError, KeyError):
                continue  # other output of Spark

    def start_loader(self, months: int, pause_seconds: float) -> None:
        command = [sys.executable, "-m", "alpheus.demo.loader", self.url, str(months), str(pause_seconds)]
        with (self.directory / "loader.log").open("ab") as log:
            self.loader = subprocess.Popen(command, stderr=log, stdout=log)

    def called_at(self, job: str, pinned: int) -> int | None:
        """Return when a job was called, in epoch milliseconds. The job prints the call before its commit, but the line
        may still be in the pipe, so wait up to a second."""
        for _ in range(100):
            with self.lock:
                if (job, pinned) in self.calls:
                    return self.calls[(job, pinned)]
            time.sleep(0.01)
        return None

    def stop(self) -> None:
        for process in (self.loader, self.pipeline, self.daemon):
            if process is not None and process.poll() is None:
                process.terminate()
        for process in (self.loader, self.pipeline, self.daemon):
            if process is None:
                continue
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _working_directory(chosen: str | None) -> Iterator[Path]:
    if chosen is not None:
        path = Path(chosen).absolute()
        if path.exists() and any(path.iterdir()):
            raise SystemExit(f"{path} is not empty: choose a new directory")
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    path = Path(tempfile.mkdtemp(prefix="alpheus-demo-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def prepare(stage: Stage) -> None:
    """Create the catalog with its namespaces, the reference tables and the empty tables."""
    flights, weather = data.read("flights"), data.read("weather")
    with alpheus.create(stage.storage_url) as catalog:
        for namespace in ("ops", "ref", "mart"):
            catalog.create_namespace(namespace)
        with catalog.transaction(message="reference data") as tx:
            for name in data.REFERENCES:
                tx.create_table(f"ref.{name}", data.read(name))
        with catalog.transaction(message="empty tables") as tx:
            tx.create_table("ops.flights", flights.schema)
            tx.create_table("ops.weather", weather.schema)
            for name, schema in data.MART_SCHEMAS.items():
                tx.create_table(name, schema)


def _describe(event: Event, loads: dict[int, int], stage: Stage) -> list[str]:
    """Return one line per transaction: version, who, what, latency, pinned, committed. `loads` maps the version of each
    load to its commit time in epoch milliseconds."""
    lines = []
    for transaction in event.transactions:
        tables = ", ".join(
            f"{action.name} {_action_text(action)}"
            for action in transaction.actions
            if action.kind == "table"
        )
        advance = next((a for a in transaction.actions if a.type == "PIPELINE_ADVANCE"), None)
        if advance is None and not tables:
            done = ", ".join(f"{action.type.lower()} {action.name}".strip() for action in transaction.actions)
            lines.append(f"version {event.version:3}  {'upkeep':22} {done}")
            continue
        if advance is None:
            lines.append(f"version {event.version:3}  {'loader':22} {tables}   [{transaction.message}]")
            continue
        job, pinned = str(advance.details["job"]), int(advance.details["pinned_version"])
        at = stage.called_at(job, pinned)
        newest = max((version for version in loads if version <= pinned), default=None)
        waited = (
            "first run" if newest is None or at is None else f"{at - loads[newest]} ms after commit {newest}"
        )
        lines.append(
            f"version {event.version:3}  {'pipeline ' + job:22} {tables}"
            f"   [called {waited}, pinned {pinned}, committed {event.version}]"
        )
    return lines


def _action_text(action: Action) -> str:
    rows = sum(int(segment["row_count"]) for segment in action.details.get("segments", []))
    return {"TABLE_INSERT": f"+{rows:,}", "TABLE_OVERWRITE": f"={rows:,}"}.get(
        action.type, action.type.lower()
    )


class Watch:
    """Prints events as they arrive, and puts them into a queue. Its client survives the death of the daemon."""

    def __init__(self, stage: Stage, after: int) -> None:
        self._stage = stage
        self._after = after
        self.events: queue.Queue[Event] = queue.Queue()
        self.loads: dict[int, int] = {}
        self.failure: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            with alpheus.connect(self._stage.url, timeout=60) as catalog:
                for event in catalog.events(after=self._after, follow=True):
                    if any("month" in transaction.properties for transaction in event.transactions):
                        self.loads[event.version] = int(event.created_at.timestamp() * 1000)
                    for line in _describe(event, self.loads, self._stage):
                        self._stage.say(line)
                    self.events.put(event)
        except BaseException as error:
            self.failure = error


def _load_positions(catalog: alpheus.Catalog) -> dict[str, int]:
    """Return for each job the last version of ops.flights that it has processed. Empty before the first run."""
    names = [pipeline.name for pipeline in catalog.list_pipelines()]
    if "delays" not in names:
        return {}
    return {name: job.inputs["flights"].version for name, job in catalog.load_pipeline("delays").jobs.items()}


def play(stage: Stage, options: argparse.Namespace) -> dict[int, int]:
    """Run the demonstration. Return the version of each month's load."""
    head = _connect_and_version(stage)
    watch = Watch(stage, head)
    crash_at = 0 if options.calm else min(5, options.months)
    stage.start_pipeline(crash_at)
    stage.say("            starting Spark ...")
    while not stage.ready.wait(0.2):
        if stage.pipeline is None or stage.pipeline.poll() is not None:
            raise SystemExit(f"Spark did not start; see {stage.directory / 'pipeline.log'}")
    while not _is_done(stage, head):  # the first runs, over empty tables
        time.sleep(0.1)
    stage.start_loader(options.months, options.pause)
    killed = options.calm
    loads: dict[int, int] = {}
    deadline = time.monotonic() + FINISH_SECONDS_MAX
    while True:
        if time.monotonic() > deadline:
            raise SystemExit("the demonstration did not end in time")
        if watch.failure is not None:
            raise SystemExit(f"the watcher failed: {watch.failure}")
        assert stage.pipeline is not None
        assert stage.loader is not None
        assert stage.daemon is not None
        if stage.pipeline.poll() is not None:
            if stage.pipeline.returncode != -signal.SIGKILL:
                raise SystemExit(f"the pipeline ended; see {stage.directory / 'pipeline.log'}")
            stage.say("            the job killed its process (SIGKILL) after staging; starting it again")
            stage.start_pipeline(crash_at)
        if stage.loader.poll() not in (None, 0):
            raise SystemExit(f"the loader failed; see {stage.directory / 'loader.log'}")
        try:
            event = watch.events.get(timeout=0.2)
        except queue.Empty:
            pass
        else:
            for transaction in event.transactions:
                if "month" in transaction.properties:
                    loads[int(transaction.properties["month"])] = event.version
        if not killed and len(loads) >= min(8, options.months):
            killed = True
            os.kill(stage.daemon.pid, signal.SIGKILL)
            stage.daemon.wait()
            stage.say(f"            the daemon was killed (SIGKILL); starting it again on port {stage.port}")
            stage.start_daemon()
        if len(loads) == options.months and watch.events.empty() and _is_done(stage, loads[options.months]):
            return loads


def _connect_and_version(stage: Stage) -> int:
    with alpheus.connect(stage.url) as catalog:
        return int(catalog.version())


def _is_done(stage: Stage, last_load: int) -> bool:
    try:
        with alpheus.connect(stage.url, timeout=20) as catalog:
            positions = _load_positions(catalog)
    except AlpheusError:
        return False
    return len(positions) == 2 and min(positions.values()) >= last_load


def verify(stage: Stage, months: int, loads: dict[int, int]) -> bool:
    """Recompute the tables with Arrow, read old versions, check every invariant. Print the results."""
    with alpheus.connect(stage.url) as catalog:
        here = catalog.at(catalog.version())
        flights, weather = here.read("ops.flights"), here.read("ops.weather")
        expected = {
            "mart.carrier_delays": data.carrier_delays(flights, here.read("ref.airlines")),
            "mart.weather_delays": data.weather_delays(flights, weather),
            "mart.year_to_date": data.year_to_date(flights),
        }
        verdicts = [_report(f"{flights.num_rows:,} flights loaded", flights.num_rows == _rows_until(months))]
        for name, table in expected.items():
            found = here.read(name)
            same = data.canonical(found.cast(table.schema)).equals(data.canonical(table))
            verdicts.append(_report(f"{name}: {found.num_rows} rows, as recomputed from scratch", same))
        march = min(3, months)
        then = catalog.at(loads[march])
        count = then.read("ops.flights", columns=["month"]).num_rows
        verdicts.append(
            _report(
                f"version {loads[march]} still reads as month {march} left it: {count:,} flights",
                count == _rows_until(march) and then.load_table("ops.flights").row_count == count,
            )
        )
        by_time = next(iter(catalog.events(after=loads[march] - 1, until=loads[march]))).created_at
        verdicts.append(
            _report(
                f"and so does the time {by_time.isoformat()}", catalog.at(by_time).version == loads[march]
            )
        )
    command = [sys.executable, "-m", "alpheus", "--catalog", stage.url, "check"]
    verdicts.append(
        _report("alpheus check", subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0)
    )
    return all(verdicts)


def retire(stage: Stage, loads: dict[int, int]) -> bool:
    """Tag each month, delete every second tag, let old versions expire, and collect their files. Read every tag that is
    left, and print the results."""
    with alpheus.connect(stage.url) as catalog:
        for month, version in loads.items():
            catalog.tags.create(f"month-{month:02}", at=version)
        dropped = sorted(loads)[1::2]
        for month in dropped:
            catalog.tags.delete(f"month-{month:02}")
        catalog.admin.expire(older_than=0, keep=1)
        catalog.admin.collect(minimum_age=0, allow_short=True)
        oldest = catalog.info().oldest_version
        # The jobs may still need the last load, and so hold it back.
        verdicts = [
            _report(
                f"old versions expired up to version {oldest - 1}",
                oldest > max(sorted(loads.values())[:-1], default=0),
            )
        ]
        for month in sorted(set(loads) - set(dropped)):
            count = catalog.at(f"month-{month:02}").read("ops.flights", columns=["month"]).num_rows
            verdicts.append(
                _report(
                    f"tag month-{month:02} still reads as the month left it: {count:,} flights",
                    count == _rows_until(month),
                )
            )
        verdicts.append(_report("alpheus check, once more", not catalog.admin.check().findings))
    return all(verdicts)


@functools.cache
def _read_months() -> Any:
    return data.read("flights")["month"]


def _rows_until(month: int) -> int:
    months = _read_months()
    return int(pc.sum(pc.cast(pc.less_equal(months, month), pa.int64())).as_py())


def _report(text: str, good: bool) -> bool:
    print(f"  {'ok' if good else 'WRONG':6} {text}", flush=True)
    return good


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m alpheus.demo", description=__doc__)
    parser.add_argument(
        "--directory", help="keep all files in this directory (default: a temporary one, which is removed)"
    )
    parser.add_argument("--months", type=int, default=12, choices=range(1, 13), metavar="1..12")
    parser.add_argument("--pause", type=float, default=3.0, help="the seconds between two loads (default 3)")
    parser.add_argument("--calm", action="store_true", help="do not kill any process")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with _working_directory(options.directory) as directory:
        stage = Stage(directory)
        stage.say(f"catalog     {stage.storage_url}")
        prepare(stage)
        stage.start_daemon()
        stage.say(f"daemon      {stage.url}")
        try:
            loads = play(stage, options)
            stage.say("            everything is loaded and worked in; comparing")
            good = verify(stage, options.months, loads)
            stage.say(
                "            tagging each month, deleting half of the tags, expiring and collecting the rest"
            )
            good = retire(stage, loads) and good
        finally:
            stage.stop()
    print(f"{'all agree' if good else 'DIFFERENCES'}, {time.monotonic() - started:.0f} s", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
