"""Processes that expire and collect are killed at each of their failpoints while another process writes.

Nothing live is lost: all that is reached can be read after each kill. The next upkeep finishes the work, and leaves no
file that nothing reaches. Rows 18, 19 and 28 of FAULTS.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from collection_driver import MINIMUM_AGE_MILLIS, keep_up

from alpheus_journal import failpoints
from alpheus_journal.errors import Conflict, Expired
from alpheus_journal.failpoints import POINTS
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.log import leases
from alpheus_journal.model.answers import CheckSummary
from alpheus_journal.model.operations import (
    AppendFiles,
    CreateTable,
    CreateTag,
    DropTag,
    OverwriteFiles,
    RestoreTable,
    Transaction,
)
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.testing import Lake, put_rows
from alpheus_journal.testing.models.reachable import Reachable

DRIVER = Path(__file__).parent / "drivers" / "collection_driver.py"
KILLED_AT = [
    name
    for name in POINTS
    if name.startswith(("expiry.", "collect."))
    and name != "collect.aborting"  # a local disk has no open uploads
]


class Writer:
    """Appends, overwrites, restores and tags without a pause, over a local disk."""

    def __init__(self, lake: Lake, journal: Journal, table: CreateTable, seed: int) -> None:
        self._lake = lake
        self._journal = journal
        self._table = table
        self._rng = random.Random(seed)
        self.commits = 0

    async def run(self) -> None:
        while True:
            with contextlib.suppress(Expired, Conflict):
                await self._step()
                self.commits += 1
            await asyncio.sleep(0)

    async def _step(self) -> None:
        journal, table = self._journal, self._table
        await journal.refresh()
        match self._rng.choices(range(4), weights=(6, 3, 2, 2))[0]:
            case 0 | 1 as choice:
                transaction = self._lake.transaction(journal)
                segment = await put_rows(
                    self._lake.storage,
                    self._lake.identities,
                    table_id=table.table_id,
                    transaction_id=transaction.id,
                )
                kind = OverwriteFiles if choice else AppendFiles
                operation = kind(namespace="a", name="t", table_id=table.table_id, segments=(segment,))
                await journal.commit(
                    Transaction(
                        id=transaction.id, begin_version=transaction.begin_version, operations=(operation,)
                    )
                )
            case 2:
                version = max(2, journal.head.version - self._rng.randrange(4))
                await self._lake.commit(journal, RestoreTable(namespace="a", name="t", version=version))
            case 3:
                await self._move_tag()

    async def _move_tag(self) -> None:
        journal = self._journal
        name = self._rng.choice("gh")
        names = (await journal.list(None, Kind.TAG)).names
        if name in names:
            await self._lake.commit(journal, DropTag(name=name))
            return
        pin = await journal.create_pin(max(0, journal.head.version - self._rng.randrange(3)))
        await self._lake.commit(
            journal,
            CreateTag(
                name=name,
                tag_id=self._lake.identities.uuid4(),
                **pin.tag_fields,
            ),
        )


async def verify(folder: Path, *, is_over: bool = False) -> None:
    """Check that all that is reached is there; where nobody works any more, also that nothing else is."""
    storage = await asyncio.to_thread(LocalStorage, str(folder))
    journal = await Journal.open(storage)
    findings = [item async for item in journal.check() if not isinstance(item, CheckSummary)]
    assert findings == []
    if is_over:
        reached = await Reachable(storage, journal.keys).find()
        left = {
            info.path async for info in storage.list("") if not info.path.startswith(("vn/", "checkpoint/"))
        }
        assert left == reached, (sorted(left - reached), sorted(reached - left))
    await journal.close()


async def kill_upkeep(folder: Path, point: str, rounds: int) -> int:
    """Run upkeep in a process that is killed at a point. Return its exit status."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(DRIVER),
        str(folder),
        str(rounds),
        env=os.environ | {failpoints.VARIABLE: f"{point.replace('@', '=kill@')}"},
        stderr=subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode in (0, -9), errors.decode()
    return process.returncode or 0


async def test_upkeep_is_killed_while_others_write(
    tmp_path: Path, lane_count: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "ID_AHEAD_MILLIS_MAX", 0)  # ids and files have one clock here
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    rounds = lane_count(0, 100)
    print(f"seed {seed}, {rounds} more kills")
    folder = tmp_path / "lake"
    storage = await asyncio.to_thread(LocalStorage, str(folder), create=True)
    lake = Lake(storage, seed)
    journal = await Journal.create(storage)
    lake.clock, lake.identities = journal._clock, journal._identities  # type: ignore[assignment]
    await lake.commit(journal, lake.namespace("a"))
    table = lake.table("a", "t")
    await lake.commit(journal, table)
    writer = Writer(lake, journal, table, seed)
    points = [f"{name}@1" for name in KILLED_AT]
    points += [f"{rng.choice(KILLED_AT)}@{rng.randint(1, 30)}" for _ in range(rounds)]
    statuses = []
    writing = asyncio.create_task(writer.run())
    for point in points:
        statuses.append(await kill_upkeep(folder, point, 10))
        assert not writing.done(), writing.exception()
        await verify(folder)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert statuses[: len(KILLED_AT)].count(-9) == len(KILLED_AT), list(zip(points, statuses, strict=True))
    assert statuses.count(-9) > len(points) // 2
    assert writer.commits > len(points)
    await asyncio.sleep(MINIMUM_AGE_MILLIS / 1000)
    for _ in range(2):
        await keep_up(journal)
    await verify(folder, is_over=True)
    await journal.close()
