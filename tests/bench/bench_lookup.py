"""The speed of looking up names: batches and single calls through a daemon, and a replica.

    make bench BENCH=lookup
    make bench BENCH=lookup ARGS="--tables 20000 --seconds 2"

The daemon is a separate process. The client sends and takes raw bytes, so that it costs little. The names of each
request are random. Beside the wall clock, which other programs disturb, the table has the daemon's own CPU time. The
controls run in the same rounds: a gRPC handler that only returns as many bytes, and a plain dict in a loop. At the end
a snapshot of every object is read completely, raw and by a replica.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import grpc
import psutil
import uvloop

import alpheus
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Latest
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.operations import CreateNamespace, CreateTable, Transaction
from alpheus_journal.storage import open_storage
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2 as pb

LOAD = "/alpheus.v1.Catalog/Load"
SNAPSHOT = "/alpheus.v1.Catalog/Snapshot"
BATCH = 1_000
NAMESPACES = 100
HOT = 10_000
"""Names that are asked for most. Objects in the processor's caches are found several times faster than others."""
REQUESTS = 200
"""The number of different requests, which are made before the clock starts."""
ROUNDS = 3
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))


def names_of(tables: int) -> list[tuple[str, str]]:
    return [(f"namespace_{number % NAMESPACES:03}", f"table_{number:07}") for number in range(tables)]


async def fill(url: str, tables: int) -> None:
    identities = RandomIdentities()
    columns = tuple(
        Column(id=number + 1, name=f"column_{number}", type=type, nullable=True)
        for number, type in enumerate(["INT8", "VARCHAR", "FLOAT8", "BOOLEAN"])
    )
    journal = await Journal.create(open_storage(url, create=True))
    operations = [
        CreateNamespace(name=f"namespace_{number:03}", namespace_id=identities.uuid4())
        for number in range(NAMESPACES)
    ] + [
        CreateTable(namespace=namespace, name=name, table_id=identities.uuid4(), columns=columns)
        for namespace, name in names_of(tables)
    ]
    for start in range(0, len(operations), 1000):
        part = tuple(operations[start : start + 1000])
        await journal.commit(
            Transaction(id=identities.uuid7(), begin_version=journal.head.version, operations=part)
        )
    await journal.close()


class Server:
    """A serving process and its CPU time."""

    def __init__(self, command: Sequence[str], port_file: Path) -> None:
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while not port_file.exists():
            if self.process.poll() is not None:
                raise SystemExit(f"{command} ended")
            time.sleep(0.02)
        self.address = port_file.read_text().strip()

    @property
    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


async def serve_nothing(port_file: str, size: int) -> None:
    """Serve the control: return `size` bytes for any request."""
    answer = bytes(size)

    async def handle(data: bytes, context: object) -> bytes:
        return answer

    server = grpc.aio.server()
    handlers = {"Load": grpc.unary_unary_rpc_method_handler(handle)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("alpheus.v1.Catalog", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    Path(port_file).write_text(f"127.0.0.1:{port}")
    await server.wait_for_termination()


class Measured(NamedTuple):
    calls: float  # for each second
    cpu_micros: float  # of the server, for each call
    median_millis: float


async def measure(server: Server, requests: Sequence[bytes], callers: int, seconds: float) -> Measured:
    took: list[float] = []
    async with grpc.aio.insecure_channel(server.address, options=OPTIONS) as channel:
        call = channel.unary_unary(LOAD)
        await call(requests[0])
        end = time.perf_counter() + seconds

        async def caller(seed: int) -> None:
            number = seed
            while (started := time.perf_counter()) < end:
                await call(requests[number % len(requests)])
                took.append(time.perf_counter() - started)
                number += 1

        cpu, started = server.cpu_seconds, time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for seed in range(callers):
                tasks.create_task(caller(seed * 7))
        elapsed = time.perf_counter() - started
        cpu = server.cpu_seconds - cpu
    return Measured(len(took) / elapsed, cpu / len(took) * 1e6, statistics.median(took) * 1e3)


def encoded(names: Sequence[tuple[str, str]], at: Latest | None) -> bytes:
    return pb.LoadRequest(
        at=wire.encode_at(at), names=[wire.encode_name(ObjectName(Kind.TABLE, *name)) for name in names]
    ).SerializeToString()


async def warm_up(server: Server, requests: Sequence[bytes]) -> None:
    """Send each request once, so that the daemon has its answers in the cache."""
    async with grpc.aio.insecure_channel(server.address, options=OPTIONS) as channel:
        call = channel.unary_unary(LOAD)
        for request in requests:
            await call(request)


async def answer_size(server: Server, request: bytes) -> int:
    async with grpc.aio.insecure_channel(server.address, options=OPTIONS) as channel:
        return len(await channel.unary_unary(LOAD)(request))


async def calls(daemon: Server, folder: Path, tables: int, seconds: float) -> None:
    names, chance = names_of(tables), random.Random(1)
    chance.shuffle(names)
    for batch, of, kinds in ((BATCH, HOT, (1, 8)), (BATCH, tables, (8,)), (1, HOT, (1, 16, 64))):
        drawn = [chance.sample(names[:of], batch) for _ in range(REQUESTS)]
        fresh, stale = ([encoded(some, at) for some in drawn] for at in (None, Latest(1000)))
        size = await answer_size(daemon, fresh[0])
        port_file = folder / f"nothing-{batch}-{of}"
        nothing = Server([sys.executable, __file__, "--nothing", str(port_file), str(size)], port_file)
        print(
            f"\n{batch} name(s) a call, of {of:,}; {len(fresh[0])} bytes asked, {size} answered;"
            f" medians of {ROUNDS} rounds"
        )
        print(f"{'callers':>8} {'':22} {'calls/s':>9} {'lookups/s':>10} {'ms':>7} {'server CPU us a':>16}")
        print(f"{'':>8} {'':22} {'':>9} {'':>10} {'':>7} {'call':>8} {'lookup':>7}")
        await warm_up(daemon, fresh)
        for callers in kinds:
            subjects = {
                "linearizable": (daemon, fresh),
                "staleness 1 s": (daemon, stale),
                "no-op": (nothing, fresh),
            }
            rounds: dict[str, list[Measured]] = {subject: [] for subject in subjects}
            for _ in range(ROUNDS):
                for subject, (server, requests) in subjects.items():
                    rounds[subject].append(await measure(server, requests, callers, seconds))
            middle = {
                subject: Measured(*(statistics.median(column) for column in zip(*found, strict=True)))
                for subject, found in rounds.items()
            }
            for subject, one in middle.items():
                ratio = one.cpu_micros / middle["no-op"].cpu_micros
                speed = f"{one.calls:>9,.0f} {one.calls * batch:>10,.0f} {one.median_millis:>7.2f}"
                cost = f"{one.cpu_micros:>8,.0f} {one.cpu_micros / batch:>7.2f}"
                print(f"{callers:>8} {subject:22} {speed} {cost}  x{ratio:.2f} of the no-op's CPU")
        nothing.stop()


async def snapshot(daemon: Server) -> None:
    cpu, started, size, messages = daemon.cpu_seconds, time.perf_counter(), 0, 0
    async with grpc.aio.insecure_channel(daemon.address, options=OPTIONS) as channel:
        async for message in channel.unary_stream(SNAPSHOT)(b""):
            size, messages = size + len(message), messages + 1
    elapsed = time.perf_counter() - started
    print(
        f"\nsnapshot, raw: {elapsed:.2f} s, {size / 1e6:.1f} MB in {messages} messages,"
        f" server CPU {daemon.cpu_seconds - cpu:.2f} s"
    )


def replica(address: str, tables: int, seconds: float) -> None:
    names = [f"{namespace}.{name}" for namespace, name in names_of(tables)]
    random.Random(2).shuffle(names)
    with alpheus.connect(f"grpc://{address}") as catalog:
        cpu, started = time.process_time(), time.perf_counter()
        copy = catalog.replica()
        print(
            f"replica, ready after {time.perf_counter() - started:.2f} s (CPU here {time.process_time() - cpu:.2f} s)"
        )
        with copy:
            plain = {name: copy.load_table(name) for name in names}

            def ours() -> None:
                for name in names:
                    copy.load_table(name)

            def bare() -> None:
                for name in names:
                    plain[name]

            def together() -> None:
                for start in range(0, len(names), BATCH):
                    copy.load_tables(names[start : start + BATCH])

            def existing() -> None:
                for name in names:
                    copy.table_exists(name)

            found: dict[str, list[float]] = {}
            subjects: dict[str, Callable[[], None]] = {
                "load_table": ours, "load_tables of 1000": together, "table_exists": existing, "plain dict": bare,
            }  # fmt: skip
            for _ in range(ROUNDS):
                for subject, run in subjects.items():
                    count, cpu = 0, time.process_time()
                    while (used := time.process_time() - cpu) < seconds / 2:
                        run()
                        count += len(names)
                    found.setdefault(subject, []).append(count / used)
            base = statistics.median(found["plain dict"])
            for subject, rates in found.items():
                rate = statistics.median(rates)
                print(
                    f"replica, {subject:20} {rate:>12,.0f} /s of CPU time, {rate / base:.2f} of a plain dict's"
                )
            cpu = time.process_time()
            for name in names:
                copy._core._tables.clear()
                copy.load_table(name)
            used = (time.process_time() - cpu) / len(names)
            print(f"replica, first read of a table at a version: {used * 1e6:.2f} us")


def main() -> None:
    if sys.argv[1:2] == ["--nothing"]:
        uvloop.run(serve_nothing(sys.argv[2], int(sys.argv[3])))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--only", choices=["calls", "replica"], help="one half")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        url = f"file://{folder}/lake"
        started = time.perf_counter()
        asyncio.run(fill(url, options.tables))
        print(
            f"{options.tables:,} tables made in {time.perf_counter() - started:.1f} s; load {os.getloadavg()[0]:.1f}"
        )
        port_file = folder / "port"
        daemon = Server(
            [
                sys.executable,
                "-m",
                "alpheus_daemon",
                url,
                "--listen",
                "127.0.0.1:0",
                "--port-file",
                str(port_file),
            ],
            port_file,
        )
        try:
            if options.only != "replica":
                uvloop.run(calls(daemon, folder, options.tables, options.seconds))
            if options.only != "calls":
                uvloop.run(snapshot(daemon))
                replica(daemon.address, options.tables, options.seconds)
        finally:
            daemon.stop()


if __name__ == "__main__":
    main()
