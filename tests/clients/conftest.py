"""Daemons in their own processes, and catalogs on S3, for tests of the client."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import alpheus_test_servers as servers
import forked_daemon
import pyarrow as pa
import pytest

import alpheus
from alpheus import Catalog

pa.array([])  # pyarrow looks for pandas at its first array, which would block an event loop


class Daemon:
    """A running daemon (`forked_daemon.py`).

    `url` is the address for clients; `storage_url` is the catalog that the daemon serves.
    """

    def __init__(self, storage_url: str, port_file: Path, *flags: str, listen: str = "127.0.0.1:0") -> None:
        self.storage_url = storage_url
        self._log: list[bytes] = []
        self._serving = threading.Event()
        self.process, self._lines = forked_daemon.start(
            [storage_url, "--port-file", str(port_file), "--listen", listen, *flags]
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self._serving.wait()
        if not port_file.exists():
            self._ended()
            raise AssertionError(f"the daemon ended:\n{b''.join(self._log).decode()}")
        self.address = port_file.read_text().strip()
        self.url = self.address if "://" in self.address else f"grpc://{self.address}"

    def _read_log(self) -> None:
        with self._lines as lines:
            for line in lines:
                self._log.append(line)
                if b'"event": "serving"' in line:
                    self._serving.set()
        self._serving.set()

    def stop(self) -> int:
        """Send SIGTERM, and return the exit status."""
        self.process.terminate()
        return self._ended()

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        self.process.join()
        self._reader.join()
        assert self.process.exitcode is not None
        return self.process.exitcode


StartDaemon = Callable[..., Daemon]


@pytest.fixture(scope="session")
def start_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartDaemon]:
    """Yield `start_daemon(storage_url, *flags, listen=...)`. All its daemons end with the session."""
    started: list[Daemon] = []
    numbers = itertools.count()
    folder = tmp_path_factory.mktemp("ports")

    def start(storage_url: str, *flags: str, listen: str = "127.0.0.1:0") -> Daemon:
        daemon = Daemon(storage_url, folder / f"port-{next(numbers)}", *flags, listen=listen)
        started.append(daemon)
        return daemon

    yield start
    for daemon in started:
        if daemon.process.is_alive():
            daemon.kill()


@pytest.fixture(scope="module")
def on_s3(
    shared_s3: Callable[[str], servers.S3Server], hadoop_aws_jars: list[Path]
) -> Iterator[servers.S3Server]:
    """Yield an S3 server that Spark can reach, for the tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        yield servers.reachable(shared_s3(servers.default_kind()), patch)


@pytest.fixture
def lake_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a new catalog: a folder of this machine, and in `make slow LANE=spark_s3` a prefix of an S3
    server, too."""
    server = _find_server(request)
    return f"file://{tmp_path}/lake" if server is None else server.url()


@pytest.fixture(scope="module")
def make_lake_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], str]:
    """Return a function that returns what `lake_url` is, for the catalogs of a module."""
    server = _find_server(request)
    return server.url if server is not None else lambda: f"file://{tmp_path_factory.mktemp('lake')}/lake"


def _find_server(request: pytest.FixtureRequest) -> servers.S3Server | None:
    """Return the S3 server of this case of a fixture, or None for a local disk."""
    return None if getattr(request, "param", "disk") == "disk" else request.getfixturevalue("on_s3")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a module's tests in REMOTE over a daemon in every run, and its other tests so in slow runs only. In slow
    runs, make the catalogs of `lake_url` and `make_lake_url` on a disk and on S3, except those of properties, whose
    values say nothing of places."""
    is_slow = os.environ.get("ALPHEUS_SLOW", "") == "1"
    is_property = getattr(metafunc.function, "is_hypothesis_test", False)
    places = ["disk", pytest.param("spark_s3", marks=pytest.mark.slow)]
    for name, scope in (("lake_url", "function"), ("make_lake_url", "module")):
        if name in metafunc.fixturenames and is_slow and not is_property:
            metafunc.parametrize(name, places, indirect=True, scope=scope)
    remote = getattr(metafunc.module, "REMOTE", None)
    if remote is not None and "catalog" in metafunc.fixturenames:
        ways: list[Any] = ["direct"]
        if metafunc.function.__name__ in remote:
            ways.append("remote")
        elif os.environ.get("ALPHEUS_SLOW", "") == "1":
            ways.append(pytest.param("remote", marks=pytest.mark.slow))
        metafunc.parametrize("catalog", ways, indirect=True, scope="module")


@pytest.fixture(scope="module")
def lake_by(tmp_path_factory: pytest.TempPathFactory, start_daemon: StartDaemon) -> Callable[..., str]:
    """Return `lake_by(way, *flags)`, which returns the URL of a new catalog.

    "direct" is a folder of this machine. "remote" is a daemon with these flags in front of a folder.
    """

    def made(way: str, *flags: str) -> str:
        url = f"file://{tmp_path_factory.mktemp(way)}/lake"
        return start_daemon(url, "--create", *flags).url if way == "remote" else url

    return made


@pytest.fixture(scope="module")
def catalog(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, start_daemon: StartDaemon
) -> Iterator[Catalog]:
    """Yield the one catalog of a module that has REMOTE."""
    url = f"memory://{request.module.__name__}"
    if request.param == "remote":
        url = start_daemon(f"file://{tmp_path_factory.mktemp('remote')}/lake", "--create").url
    with alpheus.connect(url, create=True) as opened:
        yield opened
