"""The speed of commits: a lone commit beside bare writes and fsyncs, and commits of many clients through gRPC.

    make bench BENCH=commit

- Lone: one transaction that creates a table, in its own version, on local disk. Interleaved with it runs the bare peer,
  which writes, syncs, and renames or links the same number of files of the same sizes, and syncs their folders.
- Many: CLIENTS tasks in one process, each with its own table, over one daemon. A transaction sets one property. The
  store is a local disk, or memory with 20 ms for each request.
- Size: the CPU of a commit by the size of the catalog.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import uvloop

from alpheus.aio import connect
from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.operations import CreateNamespace, CreateTable, Operation, Transaction, UpdateTable
from alpheus_journal.storage import open_storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing.latency import LatencyStorage

ROUNDS = 300
CLIENTS = (1, 64, 256, 1000)
SECONDS = 5.0


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def bare_commit(root: Path, number: int, sizes: list[tuple[str, int]]) -> float:
    """Write files of these sizes, sync them and move them into place; the last is linked as the slot. Return the
    seconds."""
    started = time.perf_counter()
    folders = set[Path]()
    for index, (_, size) in enumerate(sizes):
        staged = root / ".staging" / f"{number}-{index}"
        descriptor = os.open(staged, os.O_CREAT | os.O_WRONLY | os.O_EXCL)
        os.write(descriptor, b"x" * size)
        os.fsync(descriptor)
        os.close(descriptor)
    for index, (folder, _) in enumerate(sizes):
        staged, final = root / ".staging" / f"{number}-{index}", root / folder / f"{number}-{index}"
        if index < len(sizes) - 1:
            os.rename(staged, final)
        else:
            for path in folders:
                _sync_folder(path)
            os.link(staged, final)
            os.unlink(staged)
        folders.add(root / folder)
    _sync_folder(root / sizes[-1][0])
    return time.perf_counter() - started


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


async def lone(directory: Path) -> None:
    storage = open_storage(str(directory / "lone"), create=True)
    journal = await Journal.create(storage)
    identities = RandomIdentities()

    def transaction(operation: CreateNamespace | CreateTable) -> Transaction:
        return Transaction(
            id=identities.uuid7(),
            begin_version=journal.head.version,
            operations=(operation,),
            principal="bench",
        )

    await journal.commit(transaction(CreateNamespace(name="sales", namespace_id=identities.uuid4())))
    bare = directory / "bare"
    for folder in (".staging", "vn", "def", "node"):
        (bare / folder).mkdir(parents=True)
    columns = (Column(id=1, name="a", type="INT8"), Column(id=2, name="b", type="VARCHAR"))
    ours: list[float] = []
    peers: list[float] = []
    for number in range(ROUNDS):
        before = {p for p in (directory / "lone").rglob("*") if p.is_file()} if number % 50 == 0 else set()
        operation = CreateTable(
            namespace="sales", name=f"t{number:05}", table_id=identities.uuid4(), columns=columns
        )
        request = transaction(operation)
        started = time.perf_counter()
        await journal.commit(request)
        ours.append(time.perf_counter() - started)
        if number % 50 == 0:
            made = [p for p in (directory / "lone").rglob("*") if p.is_file() and p not in before]
            sizes = sorted(
                (
                    (p.relative_to(directory / "lone").parts[0], p.stat().st_size)
                    for p in made
                    if p.name != "latest"
                ),
                key=lambda item: item[0] == "vn",
            )
        peers.append(bare_commit(bare, number, sizes))
    await journal.close()
    a, b = statistics.median(ours), statistics.median(peers)
    print(f"lone durable commit   p50 {a * 1e3:6.2f} ms   p99 {percentile(ours, 0.99) * 1e3:6.2f} ms")
    print(f"the same files bare   p50 {b * 1e3:6.2f} ms   p99 {percentile(peers, 0.99) * 1e3:6.2f} ms")
    print(f"ratio {a / b:.2f} (the line: 3)")


class Measured(msgspec.Struct, frozen=True):
    """The result for concurrent single-object transactions through one daemon."""

    clients: int
    transactions: int
    seconds: float
    versions: int
    p50_ms: float
    p99_ms: float
    daemon_cpu_us: float
    """CPU of the daemon's process for each transaction, or 0 if its process id is unknown."""

    @property
    def rate(self) -> float:
        return self.transactions / self.seconds

    def line(self) -> str:
        return (
            f"{self.clients:5} clients  {self.rate:7.0f} transactions/s  {self.versions / self.seconds:6.0f} versions/s"
            f"  p50 {self.p50_ms:7.1f} ms  p99 {self.p99_ms:7.1f} ms  daemon CPU {self.daemon_cpu_us:6.0f} us each"
        )


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process so far, or 0 for pid 0."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure_daemon(
    address: str,
    clients: int,
    *,
    pid: int = 0,
    seconds: float = SECONDS,
    each: int = 0,
    connections: int = 8,
    streamed: bool = True,
) -> Measured:
    """Measure `clients` tasks of this process over `connections`.

    Each task has its own table. It sets one property and waits for the answer, for `seconds`, or `each` times instead.
    `address` is host:port, and `pid` is the daemon's process, for its CPU time. If `streamed` is False, each commit is
    a separate call.
    """
    catalogs = [await connect(f"grpc://{address}", timeout=120) for _ in range(min(clients, connections))]
    namespace = f"c{time.monotonic_ns()}"
    identities = RandomIdentities()
    async with catalogs[0].transaction() as tx:
        await tx.create_namespace(namespace)
    for start in range(0, clients, 500):
        async with catalogs[0].transaction() as tx:
            for index in range(start, min(clients, start + 500)):
                await tx.create_table(f"{namespace}.t{index:04}", pa.schema([("n", pa.int64())]))
    first = await catalogs[0].version()
    latencies: list[float] = []
    for catalog in catalogs:
        access: Any = catalog._session.access
        access._commits._is_supported = streamed
    began, cpu = time.perf_counter(), cpu_seconds(pid)

    async def client(index: int) -> None:
        access = catalogs[index % len(catalogs)]._session.access
        number = 0
        while number < each if each else time.perf_counter() < began + seconds:
            operation = UpdateTable(namespace=namespace, name=f"t{index:04}", set={"n": str(number)})
            request = Transaction(
                id=identities.uuid7(), begin_version=seen[index], operations=(operation,), principal="bench"
            )
            started = time.perf_counter()
            seen[index] = (await access.commit(request)).version
            latencies.append(time.perf_counter() - started)
            number += 1

    seen = [first] * clients
    await asyncio.gather(*(client(index) for index in range(clients)))
    elapsed, cpu = time.perf_counter() - began, cpu_seconds(pid) - cpu
    versions = await catalogs[0].version() - first
    for catalog in catalogs:
        await catalog.close()
    return Measured(
        clients=clients,
        transactions=len(latencies),
        seconds=elapsed,
        versions=versions,
        p50_ms=percentile(latencies, 0.5) * 1e3,
        p99_ms=percentile(latencies, 0.99) * 1e3,
        daemon_cpu_us=cpu / len(latencies) * 1e6,
    )


@contextlib.contextmanager
def daemon(directory: Path, command: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Run a daemon and yield its address and process id. `{port}` in `command` becomes the path of its port file."""
    port_file = directory / f"port{time.monotonic_ns()}"
    words = [sys.executable, *(word.replace("{port}", str(port_file)) for word in command)]
    with (directory / "daemon.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        while not port_file.exists() or not port_file.read_text().strip():
            if process.poll() is not None:
                raise SystemExit((directory / "daemon.log").read_text())
            time.sleep(0.02)
        yield port_file.read_text().strip(), process.pid
    finally:
        process.terminate()
        process.wait()


async def on_disk(directory: Path, streamed: bool, ahead: int) -> None:
    where = (directory / f"served{time.monotonic_ns()}").as_uri()
    command = [
        "-m",
        "alpheus",
        "serve",
        where,
        "--create",
        "--listen",
        "127.0.0.1:0",
        "--port-file",
        "{port}",
    ]
    command += ["--group-ahead-count-min", str(ahead)]
    with daemon(directory, command) as (address, pid):
        for clients in CLIENTS:
            print((await measure_daemon(address, clients, pid=pid, streamed=streamed)).line(), flush=True)


async def on_slow_storage(directory: Path, seconds: float, streamed: bool, ahead: int) -> None:
    """Run a daemon over a store in memory whose requests take `seconds` each."""
    command = [__file__, "--serve-slow", str(seconds), "--ahead", str(ahead), "--port-file", "{port}"]
    with daemon(directory, command) as (address, pid):
        lone = await measure_daemon(address, 1, pid=pid, each=20, streamed=streamed)
        print(lone.line(), f" {lone.p50_ms / seconds / 1e3:.2f} requests' time (the line: 2.5)", flush=True)
        hundred = await measure_daemon(address, 100, pid=pid, each=1, streamed=streamed)
        print(hundred.line(), f" all in {hundred.seconds:.2f} s (the line: 2)", flush=True)
        thousand = await measure_daemon(address, 1000, pid=pid, streamed=streamed)
        print(thousand.line(), " (the line: 1000/s)", flush=True)


async def serve_slow(seconds: float, ahead: int, port_file: str) -> None:
    storage = LatencyStorage(MemoryStorage(), seconds)
    journal = await Journal.create(storage)
    await journal.load_state()
    config = Config(url="memory://slow", listen="127.0.0.1:0", group_ahead_count_min=ahead, sole_writer=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with running(config, journal) as address:
        Path(port_file).write_text(address)
        await stop.wait()


async def by_size(counts: Sequence[int]) -> None:
    """Measure the CPU of one commit in catalogs of these numbers of tables, alone and in a group of 256."""
    identities = RandomIdentities()
    columns = (Column(id=1, name="a", type="INT8"),)
    journal = await Journal.create(MemoryStorage(), node_file_size_max=16 << 20)

    def transaction(*operations: Operation) -> Transaction:
        return Transaction(
            id=identities.uuid7(),
            begin_version=journal.head.version,
            operations=operations,
            principal="bench",
        )

    def create(number: int) -> CreateTable:
        return CreateTable(
            namespace=f"n{number // 10_000:03}",
            name=f"t{number:07}",
            table_id=identities.uuid4(),
            columns=columns,
        )

    made = 0
    for count in counts:
        while made < count:
            step = min(5_000, count - made)
            if not made % 10_000:
                name = f"n{made // 10_000:03}"
                await journal.commit(transaction(CreateNamespace(name=name, namespace_id=identities.uuid4())))
            await journal.commit(transaction(*(create(number) for number in range(made, made + step))))
            made += step
        await journal.load_state()
        figures = []
        for size, rounds in ((1, 100), (256, 6)):
            spent = 0.0
            for _ in range(rounds):
                numbers = random.sample(range(made), size)
                group = [
                    transaction(
                        UpdateTable(
                            namespace=f"n{n // 10_000:03}", name=f"t{n:07}", set={"k": identities.uuid4()}
                        )
                    )
                    for n in numbers
                ]
                started = time.process_time()
                answers = await journal.commit_group(group)
                spent += time.process_time() - started
                assert all(isinstance(answer, Committed) for answer in answers)
            figures.append(spent / size / rounds * 1e6)
        print(
            f"{count:8} tables  alone {figures[0]:7.0f} us  in a group of 256 {figures[1]:7.0f} us each",
            flush=True,
        )
    await journal.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="lone,disk,slow,size", help="which of these to measure")
    parser.add_argument("--slow-seconds", type=float, default=0.02, help="of a request of the slow store")
    parser.add_argument("--size-max", type=int, default=100_000, help="tables of the largest catalog")
    parser.add_argument("--ahead", type=int, default=64, help="group_ahead_count_min of the daemons")
    parser.add_argument("--unary", action="store_true", help="each commit a call of its own")
    parser.add_argument("--serve-slow", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--port-file", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_slow is not None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_slow(options.serve_slow, options.ahead, options.port_file))
        return 0
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; client and daemon share them; fsync on")
    parts = options.parts.split(",")

    async def measure(directory: Path) -> None:
        streamed = not options.unary
        if "lone" in parts:
            await lone(directory)
        if "disk" in parts:
            print("local disk")
            await on_disk(directory, streamed, options.ahead)
        if "slow" in parts:
            print(f"storage with {options.slow_seconds * 1e3:g} ms a request")
            await on_slow_storage(directory, options.slow_seconds, streamed, options.ahead)
        if "size" in parts:
            await by_size([10**n for n in range(3, 7) if 10**n <= options.size_max])

    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(measure(Path(temporary)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
