"""How soon the last of many subscribers has an event, the daemon's cost of a delivery, and the effect of stalled ones.

    make bench BENCH=watch [ARGS="--rounds 3 --seconds 3 --quick"]

The daemon uses a local disk. One other process has the writer and the subscribers, with CONNECTIONS connections for all
that read, so that the figures include the cost of receiving on the same cores.

- Paced: one commit at a time, the next when all subscribers have the event. The time counts from the writer's answer,
  and from its request.
- Back to back: as many commits as WRITERS tasks can make.
- Stalled subscribers have a connection each and read nothing. Rounds with and without them are interleaved in one run.

If etcd is installed (tests/bench/peers.py), its watch is measured the same way.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio
import uvloop
from peers import ETCD, etcd, etcd_watch

from alpheus_journal.clock import RandomIdentities
from alpheus_journal.model.operations import CreateNamespace, Transaction, UpdateNamespace
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2 as pb

CONNECTIONS = 4
WRITERS = 16
METHOD = "/alpheus.v1.Catalog/"
IDENTITIES = RandomIdentities()
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", wire.REPLY_BYTES_MAX),
    ("grpc.http2.bdp_probe", 0),
)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Subscribers:
    """`count` streams that read all messages and call `arrived` with each message."""

    def __init__(self, address: str, count: int, *, stalled: int = 0) -> None:
        self._address = address
        self._count = count
        self._stalled = stalled
        self._channels: list[grpc.aio.Channel] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._calls: list[grpc.aio.UnaryStreamCall[bytes, bytes]] = []
        self.arrived: Callable[[bytes], None] = lambda message: None
        self.waiting = 0

    async def __aenter__(self) -> Subscribers:
        started: list[asyncio.Future[None]] = []
        for index in range(self._count + self._stalled):
            if index < CONNECTIONS or index >= self._count:
                self._channels.append(grpc.aio.insecure_channel(self._address, options=OPTIONS))
            is_stalled = index >= self._count
            channel = self._channels[-1] if is_stalled else self._channels[index % CONNECTIONS]
            call = channel.unary_stream(METHOD + "Events")(self._request(is_stalled))
            self._calls.append(call)
            ready = asyncio.get_running_loop().create_future()
            started.append(ready)
            if is_stalled:
                self._tasks.append(asyncio.create_task(self._begin(call, ready)))
            else:
                self._tasks.append(asyncio.create_task(self._read(call, ready)))
        await asyncio.gather(*started)
        return self

    def _request(self, is_stalled: bool) -> bytes:
        # A stalled subscriber asks for everything, so that its window is full before the measurement starts.
        after = 0 if is_stalled else self.head
        return pb.EventsRequest(after_version=after, follow=True, details=is_stalled).SerializeToString()

    head = 0

    async def _begin(self, call: grpc.aio.UnaryStreamCall[bytes, bytes], ready: asyncio.Future[None]) -> None:
        await call.wait_for_connection()
        ready.set_result(None)

    async def _read(self, call: grpc.aio.UnaryStreamCall[bytes, bytes], ready: asyncio.Future[None]) -> None:
        await call.read()  # the first message marks the head
        ready.set_result(None)
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:
                raise AssertionError("a stream ended")
            self.arrived(message)

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for call in self._calls:
            call.cancel()
        for channel in self._channels:
            await channel.close()


class Bench:
    def __init__(self, address: str, pid: int) -> None:
        self.address = address
        self.pid = pid
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.commits = self.channel.unary_unary(METHOD + "Commit")
        self.version = 0

    async def commit(self, operation: CreateNamespace | UpdateNamespace) -> int:
        transaction = Transaction(
            id=IDENTITIES.uuid7(), begin_version=self.version, operations=(operation,), principal="bench"
        )
        reply = await self.commits(wire.encode_transaction_request(transaction).SerializeToString())
        self.version = max(self.version, pb.CommitResponse.FromString(reply).version)
        return self.version

    async def paced(
        self, count: int, stalled: int, events: int
    ) -> tuple[list[float], list[float], list[float]]:
        """Return the milliseconds of all deliveries, of the last delivery of each event, and of the last since the
        request."""
        Subscribers.head = self.version
        every: list[float] = []
        last: list[float] = []
        asked: list[float] = []
        async with Subscribers(self.address, count, stalled=stalled) as subscribers:
            times: list[float] = []
            complete = asyncio.Event()

            def arrived(message: bytes) -> None:
                times.append(time.perf_counter())
                if len(times) == count:
                    complete.set()

            subscribers.arrived = arrived
            for number in range(events):
                times.clear()
                complete.clear()
                start = time.perf_counter()
                await self.commit(UpdateNamespace(name="n", set={"number": str(number)}))
                durable = time.perf_counter()
                await complete.wait()
                if number >= 3:
                    every += [max(0.0, moment - durable) * 1e3 for moment in times]
                    last.append(max(0.0, times[-1] - durable) * 1e3)
                    asked.append((times[-1] - start) * 1e3)
                await asyncio.sleep(0.01)
        return every, last, asked

    async def back_to_back(self, count: int, seconds: float) -> str:
        Subscribers.head = self.version
        async with Subscribers(self.address, count) as subscribers:
            messages: list[bytes] = []
            subscribers.arrived = messages.append
            first, until = self.version, time.perf_counter() + seconds

            async def write(number: int) -> None:
                while time.perf_counter() < until:
                    await self.commit(UpdateNamespace(name=f"w{number}", set={"t": str(time.time_ns())}))

            gc.collect()
            before, started = cpu_seconds(self.pid), time.perf_counter()
            await asyncio.gather(*(write(number) for number in range(WRITERS)))
            wanted = (self.version - first) * count
            while sum(map(marks, messages[-count:])) < self.version * min(count, len(messages)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            took, cpu = time.perf_counter() - started, cpu_seconds(self.pid) - before
            return (
                f"{wanted / took:9,.0f} events/s to subscribers in {len(messages) / took:7,.0f} messages/s,"
                f" {(self.version - first) / took:5.0f} versions/s,"
                f" daemon CPU {cpu / max(1, len(messages)) * 1e6:5.1f} us a message (commits included)"
            )


def marks(message: bytes) -> int:
    return pb.EventsResponse.FromString(message).progress_version


async def etcd_beside(address: str, pid: int, count: int, events: int, rounds: int) -> None:
    """Measure etcd's watch by the same kind of client, from before the put to the last delivery."""
    lasts = []
    cpu = cpu_seconds(pid)
    for _ in range(rounds):
        found = await etcd_watch(address, watchers=count, events=events, connections=CONNECTIONS)
        lasts.append(found["last_p50"])
    spent = (cpu_seconds(pid) - cpu) / (count * events * rounds) * 1e6
    print(
        f"etcd, {count:5} watchers: last since asked p50 {statistics.median(lasts):6.2f} ms;"
        f" its CPU {spent:5.1f} us a delivery"
    )


async def measure(
    address: str,
    pid: int,
    rounds: int,
    events: int,
    seconds: float,
    quick: bool,
    beside: tuple[str, int] | None,
) -> None:
    bench = Bench(address, pid)
    for name in ("n", *(f"w{number}" for number in range(WRITERS))):
        await bench.commit(CreateNamespace(name=name, namespace_id=IDENTITIES.uuid4()))
    idle = cpu_seconds(pid)
    for count, line in ((1, 0), (100, 10), (1000, 60)):
        lasts: list[float] = []
        alls: list[float] = []
        asks: list[float] = []
        cpu = cpu_seconds(pid)
        deliveries = 0
        for _ in range(rounds):
            every, last, asked = await bench.paced(count, 0, events)
            lasts += last
            alls += every
            asks += asked
            deliveries += (events) * count
        spent = (cpu_seconds(pid) - cpu) / deliveries * 1e6
        print(
            f"paced, {count:5} subscribers: all p50 {statistics.median(alls):6.2f}"
            f" p99 {percentile(alls, 0.99):6.2f} ms;"
            f" last p50 {statistics.median(lasts):6.2f} p99 {percentile(lasts, 0.99):6.2f} ms"
            + (f" (the line: {line})" if line else "")
            + f"; last since asked p50 {statistics.median(asks):6.2f} ms; daemon CPU {spent:5.1f} us a delivery"
        )
        if beside is not None:
            await etcd_beside(*beside, count, events, rounds)
    for count in (1, 100, 1000):
        print(f"back to back, {count:5}: {await bench.back_to_back(count, seconds)}")
    count, stalled = (100, 100) if quick else (900, 100)
    with_them: list[float] = []
    without: list[float] = []
    memory = memory_mib(pid)
    for _ in range(rounds):
        without += (await bench.paced(count, 0, events))[0]
        with_them += (await bench.paced(count, stalled, events))[0]
    a, b = percentile(without, 0.99), percentile(with_them, 0.99)
    print(
        f"{count} subscribers beside {stalled} stalled ones: p50 {statistics.median(without):.2f} ->"
        f" {statistics.median(with_them):.2f} ms, p99 {a:.2f} -> {b:.2f} ms,"
        f" ratio {b / max(a, 0.01):.2f} (the line: 1); daemon's memory {memory:.0f} -> {memory_mib(pid):.0f} MiB"
    )
    print(f"daemon CPU in all {cpu_seconds(pid) - idle:.1f} s")
    await bench.channel.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        command = [sys.executable, "-m", "alpheus_daemon", f"file://{folder}/lake", "--create"]
        command += ["--listen", "127.0.0.1:0", "--port-file", str(port_file), "--log-level", "warning"]
        daemon = subprocess.Popen(command)
        try:
            while not port_file.exists():
                if daemon.poll() is not None:
                    raise SystemExit("the daemon ended")
                time.sleep(0.05)
            address = port_file.read_text().strip()
            with (
                contextlib.ExitStack() as peers,
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                beside = None
                if ETCD.is_file():
                    server = peers.enter_context(etcd(Path(folder) / "etcd"))
                    assert server.process is not None
                    beside = (server.address, server.process.pid)
                else:
                    print("etcd is not here: run .ci/peers")
                runner.run(
                    measure(
                        address, daemon.pid, arguments.rounds, arguments.events, arguments.seconds,
                        arguments.quick, beside,
                    )
                )  # fmt: skip
        finally:
            daemon.terminate()
            daemon.wait()


if __name__ == "__main__":
    main()
