"""Operation: supervisors, reload, traces, floods, exhausted descriptors, and a sole writer that is not alone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import generate_latest

from alpheus_daemon.config import RELOADABLE, Config
from alpheus_daemon.instrumented import Outage, TimedStorage
from alpheus_daemon.main import Live, _hub_bounds, _maintenance_bounds, running
from alpheus_daemon.maintenance import Maintenance
from alpheus_daemon.serve.calls import Calls
from alpheus_daemon.serve.watch import Hub, Poller
from alpheus_daemon.telemetry import logs as telemetry
from alpheus_daemon.telemetry.metrics import Metrics
from alpheus_daemon.telemetry.supervision import LAG_WARNING_SECONDS, Notifier, Pulse
from alpheus_daemon.telemetry.tracing import OpenTelemetryTracer, Tracer, open_tracer
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import Exhausted, InvalidInput, NotFound, Unavailable
from alpheus_journal.journal import Journal
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.storage import ObjectInfo, Storage, open_storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing.simulation.loop import SimulatedLoop
from alpheus_journal.wire import errors
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2 as pb
from alpheus_pb.v1 import service_pb2_grpc

IDENTITIES = RandomIdentities()
START_SECONDS_MAX = 30.0
ENVIRONMENT = {
    key: value
    for key, value in os.environ.items()
    if not key.startswith(("ALPHEUS_", "WATCHDOG_")) and key != "NOTIFY_SOCKET"
}

IDLE_PROBES_PER_HOUR = 3600
IDLE_HEAD_CHECKS_PER_HOUR = 660
IDLE_WAKINGS_PER_HOUR_MAX = 60_000
"""Limits for an idle daemon's requests to storage and use of the processor; deploy/OPERATIONS.md states all of them."""


def transaction(name: str = "") -> Transaction:
    operation = CreateNamespace(name=name or "n" + IDENTITIES.uuid4(), namespace_id=IDENTITIES.uuid4())
    return Transaction(id=IDENTITIES.uuid7(), begin_version=0, operations=(operation,), principal="me")


async def commit(stub: Any) -> int:
    asked = transaction()
    reply = await stub.Commit(wire.encode_transaction_request(asked), timeout=20)
    return wire.decode_committed(reply, asked.id).version


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(START_SECONDS_MAX):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def told(error: grpc.aio.AioRpcError) -> Exception:
    detail = dict(error.trailing_metadata() or ()).get(errors.ERROR_METADATA_KEY)
    return errors.error_of_detail(detail) if isinstance(detail, bytes) else error


# --- a daemon as a process -------------------------------------------------------------------------


class Process:
    def __init__(
        self, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, files: int = 0
    ) -> None:
        self.log, self.port_file = folder / "log", folder / "port"
        command = [sys.executable, "-m", "alpheus_daemon", str(folder / "lake"), "--create"]
        command += ["--listen", "127.0.0.1:0", "--port-file", str(self.port_file), *arguments]
        if files:
            command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=log, env={**ENVIRONMENT, **(environment or {})}
            )

    def address(self) -> str:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.port_file.exists():
            assert self.popen.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)
        return self.port_file.read_text().strip()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`th line with that event."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while len(found := [line for line in self.lines() if line["event"] == event]) < count:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)
        return found[count - 1]

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            assert self.popen.wait(15) == 0, self.log.read_text()


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def begin(*arguments: str, **others: Any) -> Process:
        started.append(Process(tmp_path, *arguments, **others))
        return started[-1]

    yield begin
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait()


# --- a daemon in this process ----------------------------------------------------------------------


class Daemon:
    def __init__(self, address: str, journal: Journal, live: Live, metrics: Metrics) -> None:
        self.address = address
        self.journal = journal
        self.live = live
        self._metrics = metrics

    def numbers(self) -> str:
        """Return the text of /metrics without the numbers of the process, which are read from files."""
        self._metrics.sample()
        return generate_latest(self._metrics.registry).decode()

    @asynccontextmanager
    async def stub(self, **options: int) -> AsyncIterator[Any]:
        pairs = [(f"grpc.{key}", value) for key, value in options.items()]
        async with grpc.aio.insecure_channel(self.address, options=pairs) as channel:
            yield service_pb2_grpc.CatalogStub(channel)


@asynccontextmanager
async def daemon_of(
    storage: Storage | None = None, *, tracer: Tracer | None = None, **settings: Any
) -> AsyncIterator[Daemon]:
    storage = storage or MemoryStorage()
    config = Config(url="memory://test", **{"listen": "127.0.0.1:0", "poll_interval_max_ms": 50, **settings})
    try:
        journal = await Journal.open(storage)
    except NotFound:
        journal = await Journal.create(storage)
    await journal.load_state()
    live, metrics = Live(config), Metrics()
    async with running(config, journal, live=live, tracer=tracer, metrics=metrics) as address:
        yield Daemon(address, journal, live, metrics)
    await journal.close()


# --- supervisors -----------------------------------------------------------------------------------


@contextmanager
def notify_socket(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(folder / "notify"))
        listener.settimeout(START_SECONDS_MAX)
        yield listener


def received(listener: socket.socket, key: str) -> dict[str, str]:
    """Return the next datagram that has the key."""
    while True:
        fields = dict(line.split("=", 1) for line in listener.recv(4096).decode().splitlines())
        if key in fields:
            return fields


def test_systemd_is_told_of_start_life_reload_and_stop(start: Start, tmp_path: Path) -> None:
    with notify_socket(tmp_path) as listener:
        process = start(environment={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"})
        assert received(listener, "STATUS")["STATUS"] == "opening the catalog"
        ready = received(listener, "READY")
        assert ready == {"READY": "1", "STATUS": f"serving {process.address()}"}
        for _ in range(3):
            assert received(listener, "WATCHDOG") == {"WATCHDOG": "1"}
        before = time.monotonic_ns() // 1000
        process.popen.send_signal(signal.SIGHUP)
        reloading = received(listener, "RELOADING")
        assert before <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        assert received(listener, "READY")["STATUS"] == "serving; reloaded"
        process.popen.send_signal(signal.SIGTERM)
        assert received(listener, "STOPPING")["STOPPING"] == "1"
        assert process.popen.wait(15) == 0


def test_without_a_supervisor_nothing_is_sent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    telemetry.configure("debug")
    nobody = Notifier({})
    nobody.ready("serving")
    nobody.close()
    assert nobody.watchdog_seconds is None
    other = Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid() + 1)})
    assert other.watchdog_seconds is None, "it is meant for another process"
    assert not capsys.readouterr().err
    gone = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    gone.stopping()
    gone.close()
    assert json.loads(capsys.readouterr().err)["event"] == "notify_failed"


async def test_a_blocked_loop_is_measured_and_sends_no_pings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.configure("info")
    blocked_seconds = LAG_WARNING_SECONDS + 0.2
    lags: list[float] = []
    with notify_socket(tmp_path) as listener:
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"})
        pulse = asyncio.create_task(Pulse(notifier, lags.append).run())
        await until(lambda: len(lags) >= 3)
        listener.setblocking(False)
        with suppress(BlockingIOError):
            while listener.recv(100):
                pass
        time.sleep(blocked_seconds)  # noqa: ASYNC251  (that is what is tested)
        with pytest.raises(BlockingIOError):
            listener.recv(100)  # a watchdog of 0.1 s would have expired by now
        seen = len(lags)
        await until(lambda: len(lags) >= seen + 2)
        assert listener.recv(100) == b"WATCHDOG=1"
        pulse.cancel()
        notifier.close()
    assert max(lags) > LAG_WARNING_SECONDS
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "event_loop_blocked"


# --- reload ----------------------------------------------------------------------------------------


async def test_a_reload_changes_what_can_change(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "alpheus.toml"
    file.write_text("subscribers_max = 1\n")
    process = start("--config", str(file))
    query = wire.encode_events_request(wire.EventsQuery(follow=True))
    async with grpc.aio.insecure_channel(process.address()) as channel:
        stub: Any = service_pb2_grpc.CatalogStub(channel)
        first = stub.Events(query)
        await first.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Events(query).read()
        assert isinstance(told(refused.value), Exhausted)

        file.write_text("subscribers_max = 2\nlog_level = 'debug'\nrequest_bytes_max = 1000000\n")
        process.popen.send_signal(signal.SIGHUP)
        line = await asyncio.to_thread(process.wait_for, "reloaded")
        assert sorted(line["changed"]) == ["log_level", "subscribers_max"]
        assert process.wait_for("restart_needed")["settings"] == ["request_bytes_max"]
        second = stub.Events(query)
        await second.read()
        assert await commit(stub) == 1
        process.wait_for("group_stored")  # a line of level debug

        file.write_text("subscribers_max = 1\ngroup_count = 5\n")
        process.popen.send_signal(signal.SIGHUP)
        line = await asyncio.to_thread(process.wait_for, "reload_refused")
        assert f"{file}, line 2: group_count" in line["error"]
        assert "group_count_max" in line["error"]
        third = stub.Events(query)  # two exist: the limit of two still holds
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await third.read()
        assert "2 subscribers" in str(told(refused.value))
        for call in (first, second):
            call.cancel()
    await asyncio.to_thread(process.end)


def test_a_hangup_before_the_settings_are_read_ends_nothing(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "alpheus.toml"
    os.mkfifo(file)
    process = start("--config", str(file))
    descriptor = os.open(file, os.O_WRONLY)  # waits until the daemon reads its settings
    process.popen.send_signal(signal.SIGHUP)
    os.write(descriptor, b"log_level = 'debug'\n")
    os.close(descriptor)
    assert process.wait_for("serving")["level"] == "info"
    assert process.lines()[0]["event"] == "starting", "a line of level debug"
    process.end()


# --- what a person reads ---------------------------------------------------------------------------


def test_a_person_at_a_terminal_reads_one_line_of_a_start(tmp_path: Path) -> None:
    asyncio.run(Journal.create(open_storage(str(tmp_path / "lake"), create=True)))
    controller, terminal = pty.openpty()
    port_file = tmp_path / "port"
    command = [sys.executable, "-m", "alpheus_daemon", str(tmp_path / "lake")]
    command += ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--port-file", str(port_file)]
    daemon = subprocess.Popen(command, stdout=terminal, stderr=terminal, env=ENVIRONMENT)
    os.close(terminal)
    with open(controller, "rb", buffering=0) as screen:
        first = b""
        while not first.endswith(b"\n"):
            first += screen.read(1)
        address = port_file.read_text().strip()
        daemon.send_signal(signal.SIGTERM)
        rest = b""
        with suppress(OSError):  # a terminal without a process
            while more := screen.read(1000):
                rest += more
    assert daemon.wait(15) == 0
    assert re.fullmatch(
        rf"Alpheus \S+ serves {re.escape((tmp_path / 'lake').as_uri())} at grpc://{re.escape(address)}"
        r" \(metrics http://127\.0\.0\.1:\d+/metrics\)\r\n",
        first.decode(),
    )
    assert rest.decode().splitlines() == ["Shutting down", "Stopped"]


def test_the_format_of_the_log_is_a_setting(start: Start, tmp_path: Path) -> None:
    process = start("--log-format", "text", "--log-level", "debug")
    address = process.address()
    process.end()
    lines = process.log.read_text().splitlines()
    starting, created, serving = lines[:3]
    assert re.fullmatch(rf"\S+Z debug starting pid={process.popen.pid} files_max=\d+ url=/\S+/lake", starting)
    url = (tmp_path / "lake").as_uri()
    assert created == f"There was no catalog at {url}: created one"
    assert serving.endswith(f" serves {url} at grpc://{address}")
    assert lines[-1] == "Stopped"


def test_text_of_others_does_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("info", "text")
    try:
        telemetry.logger().info(
            "said", name="a b\x1b[2J\n\u202e", empty="", count=3, names=["\x9b"], plain="größe"
        )
        try:
            raise ValueError("\x1b]0;mine\x07")
        except ValueError:
            telemetry.logger().exception("failed")
    finally:
        telemetry.configure("info")
    printed = capsys.readouterr().err
    assert all(character.isprintable() or character == "\n" for character in printed)
    first, second, *trace = printed.splitlines()
    assert re.fullmatch(
        r'\S+Z info said name="a b\\u001b\[2J\\n\\u202e" empty="" count=3 names=\["\\x9b"\] plain=größe',
        first,
    )
    assert second.endswith(" error failed")
    assert trace[0].startswith("Traceback")
    assert trace[-1] == r"ValueError: \x1b]0;mine\x07"


def test_a_port_file_that_cannot_be_written_is_said(start: Start, tmp_path: Path) -> None:
    """The last line says so and how to correct it, and the daemon creates nothing."""
    process = start("--port-file", str(tmp_path / "none" / "port"))
    assert process.popen.wait(START_SECONDS_MAX) == 2
    last = process.log.read_text().splitlines()[-1]
    assert last.startswith("alpheus-daemon: --port-file: ")
    assert "in an existing, writable folder" in last
    assert not (tmp_path / "lake").exists()


async def test_every_reloadable_setting_reaches_its_part() -> None:
    """Every setting that SIGHUP promises is read by `running`; a recorder notes which settings it reads."""
    elsewhere = {"log_level", "shutdown_grace_seconds"}  # the logger's; read at the end
    async with daemon_of() as daemon:
        heard: set[str] = set()

        class Recorder:
            def __getattribute__(self, name: str) -> Any:
                heard.add(name)
                return getattr(daemon.live.config, name)

        for apply in daemon.live._followers:
            apply(Recorder())  # type: ignore[arg-type]
        assert heard == RELOADABLE - elsewhere

        cache = daemon.journal.follower.reader.caches["definitions"]
        for name in "abc":
            cache.set(name, name.encode(), 100)
        sizes = {"definition_cache_bytes_max": 250, "node_cache_bytes_max": 7}
        daemon.live.change(msgspec.structs.replace(daemon.live.config, **sizes))
        assert (cache.size_max, daemon.journal.follower.reader.caches["nodes"].size_max) == (250, 7)
        assert (cache.size, cache.get("a"), cache.get("c")) == (200, None, b"c")


# --- the protocol ----------------------------------------------------------------------------------


async def test_reflection_names_the_services() -> None:
    async with daemon_of() as daemon, grpc.aio.insecure_channel(daemon.address) as channel:
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked]))
        answer = await call.read()
        call.cancel()
        names = {service.name for service in answer.list_services_response.service}
        assert {"alpheus.v1.Catalog", "grpc.health.v1.Health"} <= names


async def test_a_method_of_a_newer_release_is_refused_with_a_word() -> None:
    async with daemon_of() as daemon, grpc.aio.insecure_channel(daemon.address) as channel:
        for kind in (channel.unary_unary, channel.unary_stream):
            call = kind("/alpheus.v1.Catalog/Teleport")(b"")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await (call if kind == channel.unary_unary else call.read())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "Teleport" in (caught.value.details() or "")
            assert "upgrade the daemon" in (caught.value.details() or "")


async def test_a_newer_protocol_is_refused_with_a_word() -> None:
    async with daemon_of() as daemon, daemon.stub() as stub:
        answer = await stub.GetInfo(pb.GetInfoRequest())
    wire.decode_info(answer)
    answer.protocol_version += 1
    with pytest.raises(InvalidInput, match=f"protocol {answer.protocol_version}") as caught:
        wire.decode_info(answer)
    assert caught.value.kind == "newer_format"
    assert answer.software_version in str(caught.value)


# --- bounds ----------------------------------------------------------------------------------------


def test_calls_are_bounded_in_number_and_bytes() -> None:
    calls = Calls(count_max=2, bytes_max=100, one_bytes_max=1000)
    with calls.running(1000):
        calls.check(1000)  # a single request may have any size up to the largest
        with calls.running(1), pytest.raises(Exhausted, match="bytes") as by_bytes:
            calls.check(1)
        assert by_bytes.value.retry_after
    assert (calls.count, calls.bytes) == (0, 0)
    with (
        calls.running(1001),
        pytest.raises(InvalidInput, match="1001 bytes when decoded; the limit is 1000") as too_large,
    ):
        calls.check(1001)
    assert too_large.value.kind == "too_large"
    with calls.running(1), calls.running(1), calls.running(1), pytest.raises(Exhausted) as by_count:
        calls.check(1)
    assert by_count.value.kind == "too_many_requests"
    assert by_count.value.retry_after


async def test_too_many_streams_are_refused_and_the_service_lives() -> None:
    async with daemon_of(requests_max=20, requests_bytes_max=65536, request_bytes_max=65536) as daemon:
        query = wire.encode_events_request(wire.EventsQuery(follow=True))
        async with daemon.stub() as flood, daemon.stub() as stub:
            calls = [flood.Events(query) for _ in range(60)]
            answers = await asyncio.gather(*[call.read() for call in calls], return_exceptions=True)
            refused = [told(answer) for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
            assert len(refused) == 40
            for error in refused:
                assert isinstance(error, Exhausted), error
                assert error.kind == "too_many_requests"
                assert error.retry_after
            for call in calls:
                call.cancel()
            await until(lambda: "alpheus_requests_running 0.0" in daemon.numbers())
            assert await commit(stub) == 1


async def test_a_connection_has_so_many_streams_and_others_are_not_held_up() -> None:
    own = {"use_local_subchannel_pool": 1}  # channels to one address share a connection otherwise
    async with (
        daemon_of(connection_streams_max=2) as daemon,
        daemon.stub(**own) as full,
        daemon.stub(**own) as other,
    ):
        assert await commit(full) == 1  # by now the client knows the limit
        query = wire.encode_events_request(wire.EventsQuery(follow=True))
        streams = [full.Events(query) for _ in range(2)]
        for stream in streams:
            await stream.read()
        waiting = asyncio.ensure_future(full.GetInfo(pb.GetInfoRequest(), timeout=20))
        assert await commit(other) == 2
        assert not waiting.done()
        streams[0].cancel()
        assert (await waiting).version == 2
        streams[1].cancel()


async def test_oversized_metadata_is_refused_and_the_service_lives() -> None:
    async with daemon_of() as daemon, daemon.stub(max_metadata_size=1 << 20) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetInfo(pb.GetInfoRequest(), metadata=(("x-large", "x" * 40_000),))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await commit(stub) == 1


async def test_descriptors_run_out_and_come_back(start: Start) -> None:
    """The daemon stops accepting while no descriptor is left, answers open connections, and later recovers fully."""
    process = start(files=128)
    address = process.address()
    host, port = address.split(":")
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        stub: Any = service_pb2_grpc.CatalogStub(channel)
        assert await commit(stub) == 1
        folder = f"/proc/{process.popen.pid}/fd"
        writers = []
        for _ in range(150):
            _, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writers.append(writer)
        await until(lambda: len(os.listdir(folder)) >= 127)
        # A call on an open connection is answered. If the storage needs a descriptor, the answer says so.
        (answer,) = await asyncio.gather(
            stub.Resolve(pb.ResolveRequest(), timeout=20), return_exceptions=True
        )
        if isinstance(answer, grpc.aio.AioRpcError):
            assert isinstance(told(answer), Unavailable)
            assert "Too many open files" in str(told(answer))
        else:
            assert answer.version == 1
        for writer in writers:
            writer.close()
        await asyncio.gather(*[writer.wait_closed() for writer in writers], return_exceptions=True)
        await until(lambda: len(os.listdir(folder)) <= 100)
        assert await commit(stub) == 2
        fresh = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        again: Any = service_pb2_grpc.CatalogStub(fresh)
        await again.GetInfo(pb.GetInfoRequest(), timeout=20, wait_for_ready=True)
    await asyncio.to_thread(process.end)


# --- not alone -------------------------------------------------------------------------------------


async def test_two_sole_writers_notice_and_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("info")
    storage = MemoryStorage()
    async with (
        daemon_of(storage, sole_writer=True) as first,
        daemon_of(storage, sole_writer=True) as second,
        first.stub() as one,
        second.stub() as two,
    ):
        assert await commit(one) == 1
        # The second daemon takes itself for the only writer until it loses a slot.
        assert (await two.Resolve(pb.ResolveRequest())).version == 0
        assert await commit(two) == 2
        # From now on it probes and sees the other's version immediately.
        await until(lambda: not second.journal.sole_writer)
        assert await commit(one) == 3
        assert (await two.Resolve(pb.ResolveRequest())).version == 3
        await until(lambda: not first.journal.sole_writer)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    alarms = [line for line in lines if line["event"] == "not_sole_writer"]
    assert [line["level"] for line in alarms] == ["error", "error"]


async def test_a_lost_reply_is_no_other_writer() -> None:
    """The daemon's own version, found in its slot after a lost reply, raises no alarm."""

    class Deaf(MemoryStorage):
        deaf = False

        async def create(self, path: str, data: bytes) -> None:
            await super().create(path, data)
            if self.deaf and path.startswith("vn/"):
                self.deaf = False
                raise Unavailable("it was stored, but who can know")

    storage = Deaf()
    async with daemon_of(storage, sole_writer=True) as daemon, daemon.stub() as stub:
        assert await commit(stub) == 1
        assert (daemon.journal.follower.accepted_count, daemon.journal.follower.foreign_count) == (1, 0)
        assert daemon.journal.sole_writer


# --- storage ---------------------------------------------------------------------------------------


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("info")
    now = 100.0
    outage = Outage(lambda: now)
    for _ in range(50):
        outage.failed("read", Unavailable("away"))
        outage.worked()  # some requests get through
        now += 0.1
    assert outage.is_on
    now += 1.0
    outage.worked()
    assert not outage.is_on
    outage.worked()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["storage_outage_began", "storage_outage_ended"]
    assert lines[1]["failed_count"] == 50
    assert lines[1]["lasted_seconds"] == pytest.approx(6.0)
    outage.failed("put", Unavailable("fsync failed", kind="storage_read_only"))
    outage.failed("put", Unavailable("fsync failed", kind="storage_read_only"))
    assert not outage.is_on
    (line,) = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (line["event"], line["level"]) == ("storage_read_only", "error")


def test_the_measured_store_passes_on_every_method() -> None:
    """The wrapper passes on all methods that drivers may override. A method added to `Storage` must be added to it."""
    inherited = {
        name for name in vars(Storage) if not name.startswith("_") and name not in vars(TimedStorage)
    }
    assert inherited == {"publishes_at_once"}  # a value, not a method

    class AtOnce(MemoryStorage):
        publishes_at_once = True

    for inner in (MemoryStorage(), AtOnce()):
        outer = TimedStorage(inner, Metrics(), Tracer())
        assert (outer.url, outer.publishes_at_once) == (inner.url, inner.publishes_at_once)


async def test_the_measured_store_counts_and_changes_nothing() -> None:
    metrics = Metrics()
    storage = TimedStorage(MemoryStorage(), metrics, Tracer())
    await storage.create("a/b", b"1")
    assert await storage.read("a/b", size_max=10) == b"1"
    with pytest.raises(NotFound):
        await storage.read("a/c", size_max=10)
    assert [found.path async for found in storage.list("a/")] == ["a/b"]
    text = (await metrics.text()).decode()
    assert 'alpheus_storage_request_seconds_count{operation="create",outcome="ok"} 1.0' in text
    assert 'alpheus_storage_request_seconds_count{operation="read",outcome="NotFound"} 1.0' in text


class Counting(MemoryStorage):
    """Counts the requests that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    async def read(self, path: str, *, size_max: int) -> bytes:
        self.asked["read"] += 1
        return await super().read(path, size_max=size_max)

    async def stat(self, path: str) -> ObjectInfo | None:
        self.asked["stat"] += 1
        return await super().stat(path)

    async def stat_many(self, paths: Sequence[str]) -> dict[str, ObjectInfo | None]:
        self.asked["stat"] += len(paths)
        return await super().stat_many(paths)


def test_an_idle_hour_costs_what_the_manual_says() -> None:
    """In simulated time, an idle daemon asks storage only for versions of other writers."""
    config = Config(url="memory://x")
    storage = Counting()
    loop = SimulatedLoop(seed=1)
    steps = 0

    async def hour() -> None:
        journal = await Journal.create(storage)
        await journal.load_state()
        poller = Poller(
            journal,
            interval_min_seconds=config.poll_interval_min_ms / 1000,
            interval_max_seconds=config.poll_interval_max_ms / 1000,
        )
        maintenance = Maintenance(journal, **_maintenance_bounds(config), monotonic=loop.time)
        pulse = Pulse(Notifier({}), lambda seconds: None)
        hub = Hub(journal, **_hub_bounds(config))
        idle = [asyncio.create_task(part.run()) for part in (poller, maintenance, pulse, hub)]
        await asyncio.sleep(60)  # the polling slows down
        storage.asked.clear()
        nonlocal steps
        steps = loop.steps
        await asyncio.sleep(3600)
        steps = loop.steps - steps
        for task in idle:
            task.cancel()

    loop.run(hour())
    assert 0 < steps <= IDLE_WAKINGS_PER_HOUR_MAX
    assert storage.asked["stat"] == pytest.approx(IDLE_PROBES_PER_HOUR, rel=0.05)
    assert storage.asked["read"] == pytest.approx(IDLE_HEAD_CHECKS_PER_HOUR, rel=0.05)
    assert set(storage.asked) == {"stat", "read"}
    manual = (Path(__file__).parents[2] / "deploy" / "OPERATIONS.md").read_text()
    assert f"{IDLE_PROBES_PER_HOUR:,} probes an hour" in manual
    assert f"{IDLE_WAKINGS_PER_HOUR_MAX:,} wakings of the event loop an hour" in manual
    assert f"{IDLE_HEAD_CHECKS_PER_HOUR} reads of the head's root an hour" in manual


# --- traces ----------------------------------------------------------------------------------------


async def test_a_commit_is_one_trace_below_its_caller() -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    tracer = OpenTelemetryTracer(export.SimpleSpanProcessor(exporter))
    trace_id, parent_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    storage = TimedStorage(MemoryStorage(), Metrics(), tracer)
    async with daemon_of(storage, tracer=tracer) as daemon, daemon.stub() as stub:
        exporter.clear()
        caller = (("traceparent", f"00-{trace_id}-{parent_id}-01"),)
        asked = transaction()
        await stub.Commit(wire.encode_transaction_request(asked), metadata=caller)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Resolve(pb.ResolveRequest(at=pb.VersionRef(version=99)), metadata=caller)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    of_caller = spans["Commit"], spans["Resolve"]
    for span in of_caller:
        assert f"{span.context.trace_id:032x}" == trace_id
        assert f"{span.parent.span_id:016x}" == parent_id
        assert span.attributes["alpheus.request_id"]
    assert spans["Commit"].attributes["alpheus.status"] == "OK"
    assert spans["Resolve"].attributes["alpheus.status"] == "NOT_FOUND"
    assert not spans["Resolve"].status.is_ok
    group = spans["commit_group"]
    assert asked.id in group.attributes["alpheus.transaction_ids"]
    for name in ("commit.execute", "commit.encode", "commit.root"):
        assert spans[name].parent.span_id == group.context.span_id
    below = [span for span in exporter.get_finished_spans() if span.name.startswith("storage.")]
    assert any(span.parent and span.parent.span_id == group.context.span_id for span in below)
    tracer.close()


def test_a_collector_that_is_away_holds_up_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")
    monkeypatch.setattr("alpheus_daemon.telemetry.tracing.CLOSE_SECONDS_MAX", 0.05)
    tracer = open_tracer("http://127.0.0.1:1")
    assert isinstance(tracer, OpenTelemetryTracer)
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")
    for _ in range(5):
        exporter.warning("away")
    assert len(caplog.records) == 1
    begun, gone = threading.Event(), threading.Event()
    shutdown = tracer._provider.shutdown

    def never() -> None:
        begun.set()
        gone.wait()  # as a hanging collector does; only this test ends it

    monkeypatch.setattr(tracer._provider, "shutdown", never)
    tracer.close()  # the test does not end unless this returns
    assert begun.is_set()
    gone.set()
    shutdown()


def test_tracing_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(open_tracer("")) is Tracer
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InvalidInput, match="not installed") as caught:
        open_tracer("http://127.0.0.1:4317")
    assert caught.value.kind == "bad_configuration"
    assert "alpheus[tracing]" in caught.value.hint


# --- logs ------------------------------------------------------------------------------------------


async def test_lines_name_the_request_and_the_transaction(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("debug")
    try:
        async with daemon_of() as daemon, daemon.stub() as stub:
            asked = transaction()
            await stub.Commit(wire.encode_transaction_request(asked))
    finally:
        telemetry.configure("info")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (group,) = [line for line in lines if line["event"] == "group_stored"]
    assert group["transaction_ids"] == [asked.id]
    (request,) = [line for line in lines if line["event"] == "request"]
    assert request["transaction_id"] == asked.id
    assert request["request_id"]
    assert (request["method"], request["status"]) == ("Commit", "OK")


async def test_health_is_there_too() -> None:
    async with daemon_of() as daemon, grpc.aio.insecure_channel(daemon.address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
