"""The cost of a tag, by the size of the catalog and by the number of tags: at most two lone commits, and flat.

    make bench BENCH=tags
    make bench BENCH=tags ARGS="--objects 1000000 --tags 10000"

One process makes tags and lone commits in turns, so that both see the same machine: a tag writes a copy of the root
and commits an entry; the control is a commit of one namespace. CPU is of this process.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from large_catalog import LargeCatalog

from alpheus_journal.clock import RandomIdentities
from alpheus_journal.journal import Journal
from alpheus_journal.model.operations import (
    CreateNamespace,
    CreateTag,
    Operation,
    Transaction,
)
from alpheus_journal.storage import open_storage

TAGS_AT_ONCE = 500


class Maker:
    """Commits to one catalog."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._ids = journal, RandomIdentities()

    async def commit(self, *operations: Operation) -> None:
        await self._journal.commit(
            Transaction(id=self._ids.uuid7(), begin_version=self._journal.head.version, operations=operations)
        )

    async def make_namespace(self) -> None:
        await self.commit(CreateNamespace(name=self._ids.uuid4(), namespace_id=self._ids.uuid4()))

    async def make_tag(self) -> None:
        pin = await self._journal.create_pin(self._journal.head.version)
        await self.commit(CreateTag(name=f"t{self._ids.uuid4()}", tag_id=self._ids.uuid4(), **pin.tag_fields))

    async def make_tags(self, count: int) -> None:
        """Make many tags of one pin, in a few commits."""
        pin = await self._journal.create_pin(self._journal.head.version)
        while count > 0:
            names = [self._ids.uuid4() for _ in range(min(count, TAGS_AT_ONCE))]
            await self.commit(
                *(CreateTag(name=f"m{name}", tag_id=self._ids.uuid4(), **pin.tag_fields) for name in names)
            )
            count -= len(names)


async def time_each(works: dict[str, Callable[[], Awaitable[None]]], rounds: int) -> None:
    wall: dict[str, list[float]] = {name: [] for name in works}
    cpu = dict.fromkeys(works, 0.0)
    for number in range(rounds + 3):
        for name, work in works.items():
            began, spent = time.perf_counter(), time.process_time()
            await work()
            if number >= 3:
                wall[name].append(time.perf_counter() - began)
                cpu[name] += time.process_time() - spent
    commit, tag = (statistics.median(wall[name]) * 1e3 for name in ("commit", "tag"))
    commit_cpu, tag_cpu = (cpu[name] / rounds * 1e3 for name in ("commit", "tag"))
    print(
        f"    a commit {commit:6.2f} ms ({commit_cpu:.2f} ms CPU), a tag {tag:6.2f} ms ({tag_cpu:.2f} ms CPU):"
        f" {tag / commit:.2f} lone commits, {tag_cpu / commit_cpu:.2f} in CPU",
        flush=True,
    )


async def measure(url: str, tags: int, rounds: int) -> None:
    journal = await Journal.open(open_storage(url))
    maker = Maker(journal)
    made = 0
    for wanted in (0, tags // 10, tags):
        await maker.make_tags(wanted - made)
        made = wanted
        print(f"  {made} tags")
        await time_each({"commit": maker.make_namespace, "tag": maker.make_tag}, rounds)
    await journal.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--tags", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    for objects in (1_000, options.objects):
        with tempfile.TemporaryDirectory(prefix="alpheus-bench-") as folder:
            catalog = LargeCatalog(Path(folder) / "lake", objects=objects)
            catalog.make()
            catalog.age(2, checkpoint=False)
            print(f"{objects:,} objects")
            uvloop.run(measure(catalog.url, options.tags, options.rounds))


if __name__ == "__main__":
    main()
