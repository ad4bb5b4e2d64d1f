"""The cost of a commit of one object as the catalog grows, and of a structural diff of its change.

    make bench BENCH=size                       catalogs of 10^3 to 10^6 tables: some minutes, some GiB
    make bench BENCH=size ARGS="--quick"        10^5 at most

The benchmark runs in one process on the memory driver and measures the CPU time of this process, so that no disk and no
other program affects the figure. The cost of a disk depends on the files and bytes, which are printed. Every commit is
its own version, at names all over the catalog, with the state loaded as in a daemon. The plot is written to
tests/bench/commit_cost.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import random
import statistics
import time
from pathlib import Path

from log_plot import log_plot

from alpheus_journal.clock import RandomIdentities
from alpheus_journal.journal import Journal
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.operations import CreateNamespace, CreateTable, Operation, Transaction, UpdateTable
from alpheus_journal.storage.memory import MemoryStorage

HERE = Path(__file__).resolve().parent
COLUMNS = (Column(id=1, name="a", type="INT4"), Column(id=2, name="b", type="VARCHAR"))
FILL = 1_500
"""Tables in each transaction that fills the catalog. More actions do not fit into one version."""
COMMITS = 150
GROWTH_MAX = 3.0
"""The most that a commit at the largest size may cost, relative to the smallest: its tree is a few levels deeper."""


class Catalog:
    """A catalog in memory that knows its contents."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.identities = RandomIdentities()
        self.count = 0

    async def commit(self, *operations: Operation) -> None:
        await self.journal.commit(
            Transaction(
                id=self.identities.uuid7(), begin_version=self.journal.head.version, operations=operations,
                principal="bench",
            )
        )  # fmt: skip

    def creation(self, name: str, place: int) -> CreateTable:
        return CreateTable(
            namespace=f"ns{place // 1000:06}", name=name, table_id=self.identities.uuid4(), columns=COLUMNS
        )

    async def fill(self, count: int) -> None:
        """Create tables up to `count`, 1,000 for each namespace."""
        spaces = range(-(-self.count // 1000), -(-count // 1000))
        if spaces:
            await self.commit(
                *(CreateNamespace(name=f"ns{n:06}", namespace_id=self.identities.uuid4()) for n in spaces)
            )
        while self.count < count:
            places = range(self.count, min(self.count + FILL, count))
            await self.commit(*(self.creation(f"table{place % 1000:04}", place) for place in places))
            self.count = places.stop


async def costs(catalog: Catalog, rng: random.Random) -> dict[str, list[float]]:
    """Return CPU milliseconds of each create, each update, and each diff of an update's two versions."""
    found: dict[str, list[float]] = {"create": [], "update": [], "diff": []}

    async def timed(what: str, operation: Operation) -> None:
        started = time.process_time()
        await catalog.commit(operation)
        found[what].append((time.process_time() - started) * 1e3)

    for number in range(COMMITS):
        place = rng.randrange(catalog.count)
        name = f"table{place % 1000:04}"
        await timed("create", catalog.creation(f"{name}x{number}", place))
        before = catalog.journal.head.version
        await timed(
            "update", UpdateTable(namespace=f"ns{place // 1000:06}", name=name, set={"n": str(number)})
        )
        started = time.process_time()
        changes = [change async for change in catalog.journal.diff(before, before + 1)]
        found["diff"].append((time.process_time() - started) * 1e3)
        assert len(changes) == 1
    return found


async def stored(catalog: Catalog) -> tuple[int, int]:
    """Return the number of files and bytes on the storage."""
    sizes = [info.size async for info in catalog.journal.storage.list("")]
    return len(sizes), sum(sizes)


async def measure(sizes: list[int]) -> dict[str, list[tuple[float, float]]]:
    """Return median CPU milliseconds by operation at each size, and print them when they are measured."""
    lines: dict[str, list[tuple[float, float]]] = {"create": [], "update": [], "diff": []}
    catalog = Catalog(await Journal.create(MemoryStorage()))
    rng = random.Random(5)
    headings = "".join(f"{what + ' ms':>12}" for what in lines)
    print(
        f"{'tables':>10}{'fill us/table':>15}{headings}{'p99 create':>12}{'files':>10}{'KiB':>10}   a commit"
    )
    for size in sizes:
        before, started = catalog.count, time.process_time()
        await catalog.fill(size)
        fill = (time.process_time() - started) / (size - before) * 1e6
        await catalog.journal.load_state()
        gc.collect()
        gc.freeze()
        await costs(catalog, rng)  # warm up
        files, bytes_ = await stored(catalog)
        found = await costs(catalog, rng)
        files_after, bytes_after = await stored(catalog)
        for what, values in found.items():
            lines[what].append((size, statistics.median(values)))
        worst = sorted(found["create"])[int(COMMITS * 0.99)]
        print(
            f"{size:>10,}{fill:>15.0f}" + "".join(f"{points[-1][1]:>12.2f}" for points in lines.values())
            + f"{worst:>12.2f}{(files_after - files) / COMMITS / 2:>10.1f}"
            + f"{(bytes_after - bytes_) / COMMITS / 2048:>10.0f}", flush=True,
        )  # fmt: skip
        gc.unfreeze()
    await catalog.journal.close()
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plot", type=Path, default=HERE / "commit_cost.svg")
    options = parser.parse_args()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    machine = f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"
    sizes = [1_000, 10_000, 100_000] if options.quick else [1_000, 10_000, 100_000, 1_000_000]
    load = os.getloadavg()[0]
    print(f"{machine}; memory driver, CPU time, medians of {COMMITS}; load average {load:.1f}")
    lines = asyncio.run(measure(sizes))
    load_after = os.getloadavg()[0]
    labels = {"create": "create table", "update": "set a property", "diff": "diff of one change"}
    options.plot.write_text(
        log_plot(
            {labels[what]: points for what, points in lines.items()},
            title="What a commit of one object costs, by the size of the catalog",
            subtitle=f"CPU time, memory driver; {machine}; load average {load:.0f} to {load_after:.0f}",
            x_label="tables in the catalog",
            y_label="milliseconds",
        )
    )
    print(f"plot: {options.plot}")
    ok = True
    for what, points in lines.items():
        growth = points[-1][1] / points[0][1]
        ok &= growth <= GROWTH_MAX
        print(
            f"{what}: {growth:.2f} times as much at {points[-1][0]:,.0f} tables as at {points[0][0]:,.0f}"
            f"   at most {GROWTH_MAX:g}: {'met' if growth <= GROWTH_MAX else 'MISSED'}"
        )
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
