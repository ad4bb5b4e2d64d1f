"""A daemon is killed or paused while a group is staged ahead, or while upkeep files are written (`upkeep_driver.py`).

Upkeep files are checkpoints, index runs and symbol lists. The catalog keeps one history, each transaction is whole and
committed once, and a half-written file costs only time. Rows 15 to 17, 20 and 22 of FAULTS.md.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kill_points_driver import UPKEEP, Sent
from upkeep_driver import Opening, keeping, template, verify, work

from alpheus_journal import failpoints
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.commit.contention import Contention
from alpheus_journal.failpoints import Armed
from alpheus_journal.journal import Journal
from alpheus_journal.model.operations import Transaction, UpdateCatalog
from alpheus_journal.storage import Storage, open_storage
from alpheus_journal.testing import Lake

DRIVER = Path(__file__).parent / "drivers" / "upkeep_driver.py"
HITS_MAX = 3
ATTEMPTS = 6
"""Attempts for events that occur by chance: another writer takes the slot of a version with a staged successor."""
LONG_TO_REACH = {
    "index.listed",
    "index.written",
    "symbols.compact",
    "commit.ahead_dropped",
    "commit.ahead_won",
}
"""The points where a pause takes five seconds or more. A short run pauses at the others, and kills at all of them."""
COMMITS = 2
"""The commits of each client beside a pause: enough to continue when the pause ends."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder in memory if possible: a kill loses no page of the kernel, and a disk only takes time."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    path = Path(tempfile.mkdtemp(prefix="alpheus-upkeep-", dir=place))
    yield path
    shutil.rmtree(path)


def drive(folder: Path, seed: int, points: list[str]) -> list[dict[str, str]]:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(folder), str(seed), *points],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_killed_in_the_upkeep(folder: Path, lane_count: Callable[[int, int], int]) -> None:
    """Kills at the first hit of each point, and at random hits."""
    seed, rounds = random.randrange(1 << 30), lane_count(0, 300)
    print(f"seed {seed}, {rounds} rounds")
    rng = random.Random(seed)
    points = [f"{name}@1" for name in UPKEEP]
    points += [f"{rng.choice(UPKEEP)}@{rng.randint(1, HITS_MAX)}" for _ in range(rounds)]
    done = killed = 0
    missed = set(UPKEEP)
    for attempt in range(ATTEMPTS):
        results = drive(folder / str(attempt), seed + attempt, points)
        problems = [result for result in results if result["problem"] not in ("", "not reached")]
        assert not problems, problems
        done, killed = done + len(results), killed + sum(not result["problem"] for result in results)
        missed -= {result["point"].partition("@")[0] for result in results if not result["problem"]}
        points = [f"{name}@1" for name in missed]
        if not points:
            break
    print(f"{killed} of {done} were killed, the others never came by so often")
    assert not missed, "points that no round reached"


class Meanwhile:
    """The work of other processes while the daemon stands at a point."""

    def __init__(self, open_one: Opening, armed: Armed) -> None:
        self.open_one = open_one
        self.armed = armed
        self.arrived = False

    def is_under_way(self) -> bool:
        return self.arrived

    async def run(self, versions: int, *, expires: bool) -> None:
        await self.armed.wait_for_hit()
        self.arrived = True
        journal = await Journal.open(await self.open_one())
        keeping(journal).replay.checkpoints_kept = 1  # what the paused daemon relies on is removed
        await journal.load_state()
        identities = RandomIdentities()
        for number in range(versions):
            operation = UpdateCatalog(set={"meanwhile": str(number)})
            await journal.commit(
                Transaction(
                    id=identities.uuid7(), begin_version=journal.head.version, operations=(operation,)
                )
            )
            if number % 2:
                await journal.checkpoint()
                await journal.write_index()
        if expires:
            await Lake(await self.open_one()).expire(below=journal.head.version - 2)
        await journal.close()
        self.armed.release()


@pytest.mark.parametrize("point", UPKEEP)
async def test_paused_in_the_upkeep(
    point: str, folder: Path, lane_count: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the paused work continues, versions are added, hints are written and deleted, and old versions expire."""
    if point in LONG_TO_REACH and not lane_count(0, 1):
        pytest.skip("make slow LANE=paused_in_the_upkeep")
    if point == "commit.ahead_dropped":  # a writer that waits its turn loses slots only by chance

        async def at_once(*_: object) -> float:
            return 0.0

        monkeypatch.setattr(Contention, "wait", at_once)
    rng = random.Random(point)
    first = UPKEEP.index(point)  # so that a small run has each way of `work`
    rounds = lane_count(1, 20)
    if point == "commit.ahead_dropped":
        rounds = 1  # some ways of `work` rarely drop a group that is staged ahead
    for number in range(first, first + rounds):
        lake = folder / f"lake{number}"
        await template(await asyncio.to_thread(open_storage, lake.as_uri(), create=True))

        async def open_one(lake: Path = lake) -> Storage:
            return await asyncio.to_thread(open_storage, lake.as_uri())

        sents: dict[str, Sent] = {}

        def note(sent: Sent, sents: dict[str, Sent] = sents) -> None:
            sents[sent.id] = sent

        expires = number % 3 == 2
        with failpoints.armed(point, f"pause@{1 if number < first + 4 else 2}") as armed:
            meanwhile = Meanwhile(open_one, armed)
            async with asyncio.TaskGroup() as group:
                group.create_task(meanwhile.run(rng.randint(2, 5), expires=expires))
                group.create_task(
                    work(open_one, note, number, commits=COMMITS, is_enough=meanwhile.is_under_way)
                )
        assert meanwhile.arrived
        assert expires or all(sent.version >= 0 for sent in sents.values() if sent.name.startswith("c"))
        await verify(open_one, list(sents.values()), expired=expires)
