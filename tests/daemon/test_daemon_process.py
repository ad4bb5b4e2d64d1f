"""The daemon as a process: it starts, answers, and on any signal ends without losing an acknowledged commit."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from alpheus.aio import connect
from alpheus_daemon.main import main
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import AlpheusError, Exhausted, Unavailable
from alpheus_journal.model.answers import LogEntry
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.wire import errors
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2 as pb
from alpheus_pb.v1 import service_pb2_grpc

IDENTITIES = RandomIdentities()
START_SECONDS_MAX = 30.0

# No setting of the test's own environment may reach the daemon.
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
        """Wait until the daemon has started and return its address."""
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
    """Start a daemon on `tmp_path/lake`. A daemon that still runs at the end is killed."""
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


def transaction(**properties: str) -> Transaction:
    name = "n" + IDENTITIES.uuid4().replace("-", "")
    return Transaction(
        id=IDENTITIES.uuid7(),
        begin_version=0,
        operations=(CreateNamespace(name=name, namespace_id=IDENTITIES.uuid4(), properties=properties),),
    )


async def commit(stub: Any, value: Transaction) -> int:
    """Commit and return the version. Raise the daemon's error, or AioRpcError if the connection broke."""
    try:
        return int((await stub.Commit(wire.encode_transaction_request(value))).version)
    except grpc.aio.AioRpcError as error:
        detail = dict(error.trailing_metadata() or ()).get(errors.ERROR_METADATA_KEY)
        if isinstance(detail, bytes):
            raise errors.error_of_detail(detail) from None
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
    assert events == ["catalog_created", "serving", "shutting_down", "stopped"]
    assert {line["level"] for line in process.lines()} == {"info"}
    serving = process.lines()[1]
    assert (serving["url"], serving["address"]) == (f"file://{tmp_path / 'lake'}", address)
    assert len(serving) == len(("at", "level", "event", "release", "pid", "url", "address", "version")) + 1, (
        "where it serves metrics is the last; no settings are told"
    )

    process = start()
    async with stub_of(process.address()) as stub:
        assert [entry.version for entry in await log_of(stub)] == [1, 0]
        following = stub.Events(wire.encode_events_request(wire.EventsQuery(follow=True)))
        await following.read()
        assert process.signal(signal.SIGINT) == 0, "an open stream does not hold it up"


class Load:
    """Callers that commit one transaction after the other until the daemon is gone."""

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
        """Check that acknowledged transactions have their versions, refused ones are absent and none is duplicated."""
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
    for _ in range(lane_count(1, 50)):
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


async def test_sigterm_answers_everybody_and_is_held_up_by_nobody(start: Start) -> None:
    process = start("--create", "--shutdown-grace-seconds", "10")
    address = process.address()
    host, port = address.split(":")
    load = Load()
    async with (
        stub_of(address) as stub,
        grpc.aio.insecure_channel(address) as other,
        AsyncExitStack() as peers,
    ):
        health = health_pb2_grpc.HealthStub(other).Watch(health_pb2.HealthCheckRequest())
        await health.read()
        following = stub.Events(wire.encode_events_request(wire.EventsQuery(follow=True)))
        await following.read()
        for sent in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):  # connections that never get further
            _, writer = await asyncio.open_connection(host, int(port))
            peers.callback(writer.close)
            writer.write(sent)
            await writer.drain()
        tasks = [asyncio.create_task(load.run(stub)) for _ in range(32)]
        await load.until(200)
        unread = wire.EventsQuery(after=0, follow=True, details=True)
        slow = await peers.enter_async_context(
            grpc.aio.insecure_channel(address, options=[("grpc.http2.bdp_probe", 0)])
        )
        service_pb2_grpc.CatalogStub(slow).Events(wire.encode_events_request(unread))
        await load.until(400)
        process.popen.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.popen.wait, 9) == 0  # less than the grace period
        await asyncio.gather(*tasks)
    assert load.refused
    process = start()
    async with stub_of(process.address()) as stub:
        entries = await log_of(stub)
    load.compare(entries)
    # A transaction that came too late for an answer was not applied.
    assert not set(load.unknown) & {entry.transaction.id for entry in entries}


async def collect(call: Any, versions: list[int]) -> None:
    async for message in call:
        versions += [event.version for event in message.events]


async def test_subscribers_that_read_nothing(start: Start, lane_count: Callable[[int, int], int]) -> None:
    subscribers, versions = lane_count(4, 20), lane_count(250, 5000)
    limits = ("--subscriber-write-timeout-seconds", "1", "--subscribers-max", str(subscribers + 1))
    process = start("--create", *limits)
    address = process.address()
    resident = psutil.Process(process.popen.pid).memory_info
    query = wire.encode_events_request(wire.EventsQuery(after=0, follow=True, details=True))

    def too_slow() -> int:
        return sum(line.get("kind") == "subscriber_too_slow" for line in process.lines())

    async with stub_of(address) as stub, AsyncExitStack() as peers:
        for _ in range(versions):
            await commit(stub, transaction(p="x" * 1000))
        before = resident().rss
        calls = []
        for _ in range(subscribers):
            channel = grpc.aio.insecure_channel(address, options=[("grpc.http2.bdp_probe", 0)])
            calls.append(service_pb2_grpc.CatalogStub(await peers.enter_async_context(channel)).Events(query))
        async with await connect(f"grpc://{address}") as catalog:
            seen = [event.version async for event in catalog.events(after=0, until=versions)]
            assert seen == list(range(1, versions + 1))
            assert resident().rss - before < 20 << 20
            while too_slow() < subscribers:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            # The places are free again before the new streams are read.
            again = [stub.Events(query) for _ in range(subscribers)]
            for call in again:
                await call.read()
                call.cancel()
            for call in calls[:3]:
                seen = []
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await collect(call, seen)
                assert seen == list(range(1, len(seen) + 1))
                told = errors.error_of_detail(
                    dict(caught.value.trailing_metadata())[errors.ERROR_METADATA_KEY]
                )
                assert isinstance(told, Exhausted)
                rest = [
                    event.version async for event in catalog.events(after=told.resume_token, until=versions)
                ]
                # A message that was cut half-way is sent again in whole.
                assert rest == list(range(rest[0], versions + 1))
                assert rest[0] <= len(seen) + 1, "no gap"


async def test_a_client_that_pauses_is_cut_off_and_misses_nothing(start: Start) -> None:
    process = start("--create", "--subscriber-write-timeout-seconds", "0.2", "--event-batch-count-max", "16")
    address = process.address()
    versions = 200
    async with stub_of(address) as stub, await connect(f"grpc://{address}") as catalog:
        for _ in range(versions):
            await commit(stub, transaction(p="x" * 2000))
        seen = []
        async for event in catalog.events(after=0, follow=True, details=True):
            seen.append(event.version)
            if len(seen) == 1:
                while "subscriber_too_slow" not in process.log.read_text():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            if event.version == versions:
                break
        assert seen == list(range(1, versions + 1))
    assert process.signal(signal.SIGTERM) == 0


async def test_a_socket(start: Start, tmp_path: Path) -> None:
    process = start("--create", "--listen", f"unix://{tmp_path}/s.sock", "--sole-writer")
    address = process.address()
    assert address == f"unix:{tmp_path}/s.sock"
    async with stub_of(address) as stub:
        assert await commit(stub, transaction()) == 1
    assert process.signal(signal.SIGTERM) == 0


def failed(process: Process) -> str:
    """Return the one line that the user reads."""
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


@pytest.mark.parametrize("url", ["nonsense://x", "file://host/lake"])
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
    for other in (second / "log").read_text().splitlines()[:-1]:
        json.loads(other)  # gRPC writes no lines in another format
    assert first.port_file.exists()
