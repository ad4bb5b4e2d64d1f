"""The cost of a commit that adds one small file, as the table grows.

    make bench BENCH=append_cost                       tables of 10 to 100,000 files: two minutes
    make bench BENCH=append_cost ARGS="--quick"        10,000 at most

The benchmark runs in one process on the memory driver, and measures the CPU time of this process. The bytes of a commit
are those of its manifest segments, definition and tree. Each figure is a mean over ROUNDS appends, including those that
merge segments. A further column has the size of the largest segment, which a commit rewrites when it removes a file
from it. The table is filled with a thousand files for each append.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid

import msgspec

from alpheus_journal.model.definition_messages import encode_definition
from alpheus_journal.model.operations import AppendFiles, Transaction
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing.models.tables import Lakeside, Row

ROUNDS = 60
SIZES = (10, 1_000, 10_000, 100_000)
BULK = 1_000


class Written(MemoryStorage):
    """Counts the bytes that a commit writes, without data files."""

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0

    async def put(self, path: str, data: bytes) -> None:
        if not path.startswith("data/"):
            self.size_bytes += len(data)
        await super().put(path, data)

    async def create(self, path: str, data: bytes) -> None:
        self.size_bytes += len(data)
        await super().create(path, data)


async def append(side: Lakeside, storage: Written, count: int) -> tuple[float, int]:
    """Return CPU milliseconds and bytes of the commit of one append of `count` files."""
    id = side.lake.identities.uuid7()
    one = await side.file(id, [Row(1, "1.0")])
    files = [one]
    if count > 1:
        folder, data = one.path.rpartition("/")[0], await storage.read(one.path, size_max=1 << 20)
        files += [
            msgspec.structs.replace(one, path=f"{folder}/{uuid.UUID(int=number)}.parquet")
            for number in range(1, count)
        ]
        for file in files:
            await storage.put(file.path, data)
    segment = await side.segment(files)
    operation = AppendFiles(namespace="a", name="t", table_id=side.table_id, segments=(segment,))
    storage.size_bytes, started = 0, time.process_time()
    await side.journal.commit(
        Transaction(id=id, begin_version=side.journal.head.version, operations=(operation,))
    )
    return (time.process_time() - started) * 1e3, storage.size_bytes + segment.segment_size_bytes


async def measure(sizes: tuple[int, ...]) -> None:
    storage = Written()
    side = await Lakeside.make(storage)
    filled = 0
    most = (0.0, 0)
    print(
        f"{'files':>8} {'segments':>8} {'definition':>10} {'largest':>10} {'CPU ms':>7} {'most':>7} {'written':>9}"
    )
    for size in sizes:
        while filled < size:
            count = min(BULK, size - filled)
            most = max(most, await append(side, storage, count), key=lambda each: each[1])
            filled += count
        costs = [await append(side, storage, 1) for _ in range(ROUNDS)]
        table = await side.table()
        print(
            f"{size:>8,} {len(table.segments):>8} {len(encode_definition(table)):>8} B"
            f" {max(s.segment_size_bytes for s in table.segments) / 1e3:>7.0f} kB"
            f" {statistics.median(cpu for cpu, _ in costs):>7.2f} {max(cpu for cpu, _ in costs):>7.2f}"
            f" {statistics.mean(written for _, written in costs) / 1e3:>6.1f} kB"
        )
    print(f"the largest commit of {BULK:,} files: {most[1] / 1e6:.1f} MB, {most[0]:.0f} ms of CPU")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="10,000 files at most")
    arguments = parser.parse_args()
    asyncio.run(measure(SIZES[:3] if arguments.quick else SIZES))


if __name__ == "__main__":
    main()
