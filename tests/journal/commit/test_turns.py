"""Several processes commit to one catalog at full rate in virtual time: none starves, and a single process loses
little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from alpheus_journal.commit.contention import Contention
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.operations import Transaction, UpdateCatalog
from alpheus_journal.replay.follower import OWN_PATIENCE_SECONDS
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing.latency import LatencyStorage
from alpheus_journal.testing.simulation.ids import SeededIdentities
from alpheus_journal.testing.simulation.loop import SimulatedClock, SimulatedLoop

SECONDS = 60.0


class Fleet:
    """Processes whose stores take a given number of seconds a request, within a tenth."""

    def __init__(self, seed: int, requests: list[float]) -> None:
        self.loop = SimulatedLoop(seed)
        self.clock = SimulatedClock(self.loop)
        self.identities = SeededIdentities(seed, self.clock)
        self.requests = requests
        self.journals: list[Journal] = []
        self.versions = [0] * len(requests)
        self.slowest = [0.0] * len(requests)

    async def open(self) -> None:
        shared = MemoryStorage()
        await Journal.create(shared, clock=self.clock, identities=self.identities)
        for seconds in self.requests:

            async def pass_by(_: float, seconds: float = seconds) -> None:
                await asyncio.sleep(seconds * self.loop.random.uniform(0.9, 1.1))

            storage = LatencyStorage(shared, seconds, sleep=pass_by)
            self.journals.append(await Journal.open(storage, clock=self.clock, identities=self.identities))

    def transaction(self, journal: Journal, key: str) -> Transaction:
        operations = (UpdateCatalog(set={key: self.identities.uuid4()}),)
        return Transaction(
            id=self.identities.uuid7(), begin_version=journal.head.version, operations=operations
        )

    async def write(self, index: int, pause: float = 0.0) -> None:
        journal = self.journals[index]
        while self.loop.time() < SECONDS:
            began = self.loop.time()
            await journal.commit(self.transaction(journal, f"k{index}"), timeout_seconds=SECONDS)
            self.versions[index] += 1
            self.slowest[index] = max(self.slowest[index], self.loop.time() - began)
            await asyncio.sleep(pause)

    def run(self, pauses: list[float]) -> None:
        async def main() -> None:
            await self.open()
            async with asyncio.TaskGroup() as tasks:
                for index, pause in enumerate(pauses):
                    tasks.create_task(self.write(index, pause))

        self.loop.run(main())


def _one(*, is_one_request: bool) -> tuple[SimulatedLoop, Contention]:
    loop = SimulatedLoop(1)
    return loop, Contention(SeededIdentities(1, SimulatedClock(loop)), is_one_request=is_one_request)


@pytest.mark.parametrize("processes", [2, 4])
def test_all_at_full_rate_have_their_share(processes: int, lane_count: Callable[[int, int], int]) -> None:
    if processes == 4 and not lane_count(0, 1):
        pytest.skip("make slow LANE=full_rate")
    for seed in range(lane_count(1, 20)):
        fleet = Fleet(seed, [0.02] * processes)
        fleet.run([0.0] * processes)
        fair = sum(fleet.versions) / processes
        assert min(fleet.versions) >= fair / 4, f"seed {seed}: {fleet.versions}"
        assert sum(fleet.versions) >= SECONDS / 0.02 / 10, (
            f"seed {seed}: they wait for each other: {fleet.versions}"
        )


def test_who_commits_now_and_then_gets_in(lane_count: Callable[[int, int], int]) -> None:
    for seed in range(lane_count(1, 20)):
        fleet = Fleet(seed, [0.02, 0.02])
        fleet.run([0.0, 5.0])
        assert fleet.versions[1] >= 4, f"seed {seed}: {fleet.versions}, {fleet.slowest}"


def test_who_is_farther_away_gets_in(lane_count: Callable[[int, int], int]) -> None:
    for seed in range(lane_count(1, 20)):
        fleet = Fleet(seed, [0.02, 0.04])
        fleet.run([0.0, 0.0])
        assert fleet.versions[1] >= 10, f"seed {seed}: {fleet.versions}"


def test_one_alone_loses_little() -> None:
    fleet = Fleet(1, [0.02])
    fleet.run([0.0])
    # three requests: a probe of the head, the files, the root
    assert fleet.versions[0] >= 0.85 * SECONDS / 0.06


def test_a_gap_counts_as_waiting() -> None:
    loop, contention = _one(is_one_request=False)

    async def main() -> None:
        for _ in range(100):
            assert await contention.wait(0) == 0.0
            await asyncio.sleep(0.02)
            contention.record_published(0.02, 0)
            await asyncio.sleep(0.3)
        waits = []
        for _ in range(400):
            waits.append(await contention.wait(0))
            await asyncio.sleep(0.02)
            contention.record_published(0.02, 0)
        assert 1 <= sum(1 for wait in waits if wait) <= 2, "once in a run of some seconds"
        assert 0.2 <= max(waits) <= 5
        assert await contention.wait(1) >= 0.0
        for _ in range(8):
            await asyncio.sleep(0.02)
            contention.record_published(0.02, 1)
        assert contention._delay(loop.time(), 1) <= 0, "the other one has not been seen for eight versions"

    loop.run(main())


def test_who_is_told_to_hurry_waits_no_more() -> None:
    loop, contention = _one(is_one_request=False)

    async def main() -> None:
        for _ in range(8):
            await asyncio.sleep(0.2)
            contention.record_published(0.2, 1)
        contention.record_published(0.2, 2)  # one of the last eight versions is from another process
        began = loop.time()
        waiting = asyncio.ensure_future(contention.wait(2))
        await asyncio.sleep(0.001)
        assert not waiting.done()
        contention.stop_yielding()
        assert await waiting > 0
        assert loop.time() - began < 0.002
        assert await contention.wait(2) == 0.0

    loop.run(main())


def test_one_slow_root_is_soon_forgotten() -> None:
    loop, contention = _one(is_one_request=True)

    async def main() -> None:
        contention.record_published(30.0, 0)
        for _ in range(4):
            contention.record_published(0.02, 0)
        contention.record_published(30.0, 0)
        contention.record_published(None, 0)
        assert contention._publish_seconds < 0.05

    loop.run(main())


def test_a_reader_is_not_held_up_by_a_root_that_hangs() -> None:
    """Another process took the slot while our root is still being sent to it."""
    fleet = Fleet(1, [0.02, 0.02])

    async def main() -> None:
        await fleet.open()
        ours, theirs = fleet.journals
        for number in range(3):
            await theirs.commit(fleet.transaction(theirs, f"b{number}"))
        follower, storage = ours.follower, ours.storage
        exists, publish = follower.log.exists, storage.publish_looking
        sent = asyncio.Event()

        async def hang(files: Mapping[str, bytes], slot: str, root: bytes, looks: Sequence[str] = ()) -> Any:
            sent.set()
            await asyncio.sleep(20)
            return await publish(files, slot, root, looks)

        async def held(version: int) -> bool:
            if version == 2 and not sent.is_set():
                await sent.wait()
            return await exists(version)

        async def commit() -> None:
            await follower.wait_beyond(0)
            request = fleet.transaction(ours, "a")
            answers = await ours.commit_group([request], deadline_seconds=30)
            if answers == [None]:
                answers = await ours.commit_group([request], deadline_seconds=30)
            assert isinstance(answers[0], Committed)

        storage.publish_looking, follower.log.exists = hang, held  # type: ignore[method-assign]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(commit())
            began = fleet.loop.time()
            await ours.refresh()
            assert fleet.loop.time() - began < 2 * OWN_PATIENCE_SECONDS
            assert ours.head.version == 3
        assert (await theirs.refresh()).version == 4

    fleet.loop.run(main())


def test_a_follower_that_keeps_pace_asks_for_little() -> None:
    fleet = Fleet(1, [0.02, 0.02])

    async def main() -> None:
        await fleet.open()
        reader = fleet.journals[1]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fleet.write(0))
            while fleet.loop.time() < SECONDS:
                await reader.refresh()
                await asyncio.sleep(0.05)
        storage = reader.storage
        assert isinstance(storage, LatencyStorage)
        assert reader.head.version > 100
        assert storage.requests["read"] < 3 * reader.head.version

    fleet.loop.run(main())
