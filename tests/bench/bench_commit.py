"""How fast a commit is: alone beside its own writes and fsyncs done bare, and with many clients through gRPC.

    make bench BENCH=commit

Lone: one transaction that creates a table, a version of its own, on local disk, interleaved with the bare peer:
the same number of files of the same sizes written, synced, renamed or linked, their folders synced.
Many: CLIENTS tasks in one process, each with its own table, over one daemon; a transaction sets one property.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from alpheus.aio import connect
from alpheus_journal.actions import CreateNamespace, CreateTable, Transaction
from alpheus_journal.journal import Journal
from alpheus_journal.objects import Column
from alpheus_journal.storage import open_storage
from alpheus_journal.system import RandomIdentities

ROUNDS = 300
CLIENTS = (1, 16, 64, 256)
SECONDS = 5.0


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def bare_commit(root: Path, number: int, sizes: list[tuple[str, int]]) -> float:
    """Write, sync and put into place files of these sizes; the last is linked as the slot. Seconds."""
    started = time.perf_counter()
    folders = set()
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


async def many(address: str, clients: int) -> None:
    catalogs = [await connect(f"grpc://{address}", timeout=60) for _ in range(min(clients, 8))]
    async with catalogs[0].transaction() as tx:
        await tx.create_namespace(f"c{clients}")
        for index in range(clients):
            await tx.create_table(f"c{clients}.t{index:04}", pa.schema([("n", pa.int64())]))
    first = await catalogs[0].version()
    latencies: list[float] = []
    end = time.perf_counter() + SECONDS

    async def client(index: int) -> None:
        catalog = catalogs[index % len(catalogs)]
        number = 0
        while time.perf_counter() < end:
            started = time.perf_counter()
            await catalog.update_table(f"c{clients}.t{index:04}", set={"n": str(number)})
            latencies.append(time.perf_counter() - started)
            number += 1

    started = time.perf_counter()
    await asyncio.gather(*(client(index) for index in range(clients)))
    elapsed = time.perf_counter() - started
    versions = await catalogs[0].version() - first
    for catalog in catalogs:
        await catalog.close()
    print(
        f"{clients:4} clients   {len(latencies) / elapsed:7.0f} transactions/s   {versions / elapsed:6.0f} versions/s"
        f"   p50 {percentile(latencies, 0.5) * 1e3:6.1f} ms   p99 {percentile(latencies, 0.99) * 1e3:6.1f} ms"
    )


async def through_grpc(directory: Path) -> None:
    port_file = directory / "port"
    command = [sys.executable, "-m", "alpheus", "serve", (directory / "served").as_uri(), "--create"]
    command += ["--listen", "127.0.0.1:0", "--port-file", str(port_file)]
    with (directory / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while not port_file.exists():
            if daemon.poll() is not None:
                raise SystemExit((directory / "daemon.log").read_text())
            await asyncio.sleep(0.02)
        for clients in CLIENTS:
            await many(port_file.read_text().strip(), clients)
    finally:
        daemon.terminate()
        daemon.wait()


def main() -> int:
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; client and daemon share them; fsync on")
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(lone(Path(directory)))
        asyncio.run(through_grpc(Path(directory)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
