"""The daemon as a process: it starts, answers, and ends by every signal without losing what it acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from alpheus_daemon.main import main
from alpheus_journal import wire
from alpheus_journal.access import LogEntry
from alpheus_journal.actions import CreateNamespace, Transaction
from alpheus_journal.errors import AlpheusError, Unavailable
from alpheus_journal.system import RandomIdentities
from alpheus_pb.v1 import service_pb2 as pb
from alpheus_pb.v1 import service_pb2_grpc

IDENTITIES = RandomIdentities()
START_SECONDS_MAX = 30.0

# Of the test's own environment, nothing may configure the daemon.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("ALPHEUS_")}


class Process:
    """A running `python -m alpheus_daemon`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port_file = folder / "port"
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "alpheus_daemon", *arguments, "--port-file", str(self.port_file)],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=ENVIRONMENT,
            )

    def address(self) -> str:
        """Where it answers, once it does."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.port_file.exists():
            assert self.popen.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        return self.port_file.read_text().strip().replace("unix://", "unix:")

    def signal(self, number: signal.Signals) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(START_SECONDS_MAX)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.port_file.unlink()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a daemon on `tmp_path/lake`; whatever still runs at the end is killed."""
    started: list[Process] = []

    def make(*arguments: str, url: str = "") -> Process:
        listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
        process = Process(tmp_path, url or str(tmp_path / "lake"), *listen, *arguments)
        started.append(process)
        return process

    yield make
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.wait()


@asynccontextmanager
async def stub_of(address: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield service_pb2_grpc.CatalogStub(channel)


def transaction() -> Transaction:
    name = "n" + IDENTITIES.uuid4().replace("-", "")
    return Transaction(
        id=IDENTITIES.uuid7(),
        begin_version=0,
        operations=(CreateNamespace(name=name, namespace_id=IDENTITIES.uuid4()),),
    )


async def commit(stub: Any, value: Transaction) -> int:
    """The version. Raises the error that travelled; AioRpcError when there was none (the connection broke)."""
    try:
        return int((await stub.Commit(wire.encode_transaction_request(value))).version)
    except grpc.aio.AioRpcError as error:
        detail = dict(error.trailing_metadata() or ()).get(wire.ERROR_METADATA_KEY)
        if isinstance(detail, bytes):
            raise wire.error_of_detail(detail) from None
        raise


async def log_of(stub: Any) -> list[LogEntry]:
    return [wire.decode_log_entry(message) async for message in stub.Log(pb.LogRequest())]


async def test_from_start_to_sigterm(start: Start, tmp_path: Path) -> None:
    process = start("--create")
    address = process.address()
    async with stub_of(address) as stub:
        assert await commit(stub, transaction()) == 1
        info = wire.decode_info(await stub.GetInfo(pb.GetInfoRequest()))
        assert info.storage_url == f"file://{tmp_path / 'lake'}"
    assert process.signal(signal.SIGTERM) == 0
    assert not process.port_file.exists()
    events = [line["event"] for line in process.lines()]
    assert events == ["starting", "catalog_created", "serving", "shutting_down", "stopped"]
    assert {line["level"] for line in process.lines()} == {"info"}

    process = start()
    async with stub_of(process.address()) as stub:
        assert [entry.version for entry in await log_of(stub)] == [1, 0]
        following = stub.Events(wire.encode_events_request(wire.EventsQuery(follow=True)))
        await following.read()
        assert process.signal(signal.SIGINT) == 0, "an open stream does not hold it up"


class Load:
    """Callers that commit one after the other, until the daemon is gone."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}
        self.refused: list[str] = []
        self.unknown: list[str] = []

    async def run(self, stub: Any) -> None:
        while True:
            value = transaction()
            try:
                self.acknowledged[value.id] = await commit(stub, value)
            except Unavailable as error:
                if error.kind != "shutting_down":
                    raise
                self.refused.append(value.id)
                return
            except (grpc.aio.AioRpcError, AlpheusError):
                self.unknown.append(value.id)
                return

    async def until(self, count: int) -> None:
        while len(self.acknowledged) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def compare(self, entries: list[LogEntry]) -> None:
        """Every acknowledged one is where it was said to be, no refused one is anywhere, none is twice."""
        logged = [entry.transaction.id for entry in entries]
        assert len(set(logged)) == len(logged)
        versions = {entry.transaction.id: entry.version for entry in entries}
        assert {id: versions.get(id) for id in self.acknowledged} == self.acknowledged
        assert not set(self.refused) & set(logged)
        assert len(logged) <= 1 + len(self.acknowledged) + len(self.unknown)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_signals_under_load_lose_nothing_acknowledged(
    start: Start, number: signal.Signals, lane_count: Callable[[int, int], int]
) -> None:
    load = Load()
    for _ in range(lane_count(2, 50)):
        process = start("--create")
        async with stub_of(process.address()) as stub:
            tasks = [asyncio.create_task(load.run(stub)) for _ in range(16)]
            await load.until(len(load.acknowledged) + 50)
            if number is signal.SIGKILL:
                process.kill()
            else:
                assert await asyncio.to_thread(process.signal, number) == 0
            await asyncio.gather(*tasks)
    process = start()
    async with stub_of(process.address()) as stub:
        load.compare(await log_of(stub))
        assert await commit(stub, transaction()) > max(load.acknowledged.values())


async def test_a_socket(start: Start, tmp_path: Path) -> None:
    process = start("--create", "--listen", f"unix://{tmp_path}/s.sock", "--sole-writer")
    address = process.address()
    assert address == f"unix:{tmp_path}/s.sock"
    async with stub_of(address) as stub:
        assert await commit(stub, transaction()) == 1
    assert process.signal(signal.SIGTERM) == 0


def failed(process: Process) -> str:
    """The one line that a person reads."""
    status = process.popen.wait(START_SECONDS_MAX)
    text = process.log.read_text()
    assert status == 1, text
    assert not process.port_file.exists()
    assert "Traceback" not in text
    last = text.splitlines()[-1]
    assert last.startswith("alpheus-daemon: ")
    return last


@pytest.mark.parametrize("there", [False, True])
def test_no_catalog(there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if there:
        (tmp_path / "lake").mkdir()
    assert main([str(tmp_path / "lake"), "--listen", "127.0.0.1:0"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("alpheus-daemon: ")
    assert str(tmp_path / "lake") in last


def test_a_directory_of_something_else(start: Start, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "mine.txt").write_text("precious")
    assert "mine.txt" in failed(start("--create"))
    assert [path.name for path in (tmp_path / "lake").iterdir() if not path.name.startswith(".")] == [
        "mine.txt"
    ]


@pytest.mark.parametrize("url", ["nonsense://x", "grpc://127.0.0.1:1", "file://host/lake"])
def test_a_bad_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([url, "--listen", "127.0.0.1:0"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("alpheus-daemon: ")
    assert url in last


def test_a_taken_port(start: Start, tmp_path: Path) -> None:
    first = start("--create")
    address = first.address()
    second = tmp_path / "second"
    second.mkdir()
    line = failed(Process(second, str(tmp_path / "lake"), "--listen", address))
    assert address in line
    assert "--listen" in line
    assert first.port_file.exists()
