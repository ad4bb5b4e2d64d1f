"""The cost of expiry and collection, by the number of versions.

    make bench BENCH=upkeep
    make bench BENCH=upkeep ARGS="--versions 1000"

Each version appends one data file to one of 20 tables on a local disk; each fiftieth replaces a table's rows. Then the
newest tenth is kept, and the rest expires and is collected. The control, in the same run, only removes as many files of
the same sizes with `os.unlink`, and lists them with `os.scandir`: what any collector has to pay. CPU time is of this
process with its threads; memory is the growth of the process while it collects.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import tempfile
import time
from pathlib import Path

from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Collection, Expiry
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.model.operations import AppendFiles, OverwriteFiles, Transaction
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.testing import Lake, put_rows

TABLES = 20
REPLACED_EVERY = 50


class Cost:
    """Wall and CPU seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def __str__(self) -> str:
        return f"{time.perf_counter() - self._wall:8.2f} s {time.process_time() - self._cpu:8.2f} s CPU"

    @property
    def cpu(self) -> float:
        return time.process_time() - self._cpu


async def fill(journal: Journal, lake: Lake, versions: int) -> None:
    await lake.commit(journal, lake.namespace("a"))
    tables = [lake.table("a", f"t{number}") for number in range(TABLES)]
    await lake.commit(journal, *tables)
    for number in range(versions):
        table = tables[number % TABLES]
        transaction = lake.transaction(journal)
        segment = await put_rows(
            lake.storage, lake.identities, table_id=table.table_id, transaction_id=transaction.id
        )
        kind = OverwriteFiles if number % REPLACED_EVERY == REPLACED_EVERY - 1 else AppendFiles
        operation = kind(namespace="a", name=table.name, table_id=table.table_id, segments=(segment,))
        await journal.commit(
            Transaction(id=transaction.id, begin_version=transaction.begin_version, operations=(operation,))
        )


async def expire(journal: Journal, keep: int) -> Expiry:
    return [step async for step in journal.expire(ExpiryRules(keep_versions=keep, older_than_millis=0))][-1]


async def collect(journal: Journal, *, dry_run: bool = False) -> Collection:
    return [step async for step in journal.collect(minimum_age_millis=0, dry_run=dry_run)][-1]


def run_control(folder: Path, files: int, size: int) -> Cost:
    """Remove files that nothing else looks at."""
    for number in range(files):
        place = folder / f"{number % 100:02}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}").write_bytes(b"x" * size)
    cost = Cost()
    for place in list(os.scandir(folder)):
        for entry in list(os.scandir(place.path)):
            entry.stat()
            os.unlink(entry.path)
    return cost


def memory_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


async def measure(place: Path, versions: int) -> None:
    storage = await asyncio.to_thread(LocalStorage, str(place / "lake"), create=True)
    lake = Lake(storage)
    journal = await Journal.create(storage)
    lake.clock, lake.identities = journal._clock, journal._identities  # type: ignore[assignment]
    await fill(journal, lake, versions)
    print(f"{versions} versions, {memory_mib()} MiB")
    cost = Cost()
    plan = await collect(journal, dry_run=True)
    kept = sum(totals.files for totals in plan.kept_by.values())
    print(f"{'marking all':<28} {cost}  {kept} files reached, {memory_mib()} MiB")
    cost = Cost()
    expiry = await expire(journal, versions // 10)
    print(f"{'expiry':<28} {cost}  {expiry.expired} versions")
    cost = Cost()
    done = await collect(journal)
    spent = cost.cpu
    print(f"{'collection':<28} {cost}  {done.deleted_count} files, {memory_mib()} MiB")
    size = sum(totals.size_bytes for totals in done.deleted.values()) // max(done.deleted_count, 1)
    control = await asyncio.to_thread(run_control, place / "control", done.deleted_count, size)
    control_cpu = control.cpu
    print(f"{'control: list and unlink':<28} {control}")
    print(f"collection / control: {spent / max(control_cpu, 0.001):.1f} times the CPU")
    await journal.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=5_000)
    versions: int = parser.parse_args().versions
    with tempfile.TemporaryDirectory(prefix="alpheus-bench-") as place:
        asyncio.run(measure(Path(place), versions))


if __name__ == "__main__":
    main()
