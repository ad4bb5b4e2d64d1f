"""Disasters of a simulated world: kills, pauses, wrong clocks, wrong hints, storms; and upkeep, which makes versions
expire and collects files, and is killed in the middle of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from alpheus_journal import format as fmt
from alpheus_journal.errors import Conflict, Corrupt, Exhausted, Expired, OutcomeUnknown, Unavailable
from alpheus_journal.journal import Journal
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.storage import Storage
from alpheus_journal.testing.models.reachable import Reachable
from alpheus_journal.testing.simulation.clients import Node
from alpheus_journal.testing.simulation.leaseholders import LEASE_MILLIS
from alpheus_journal.testing.simulation.loop import Audit, Process, SimulatedClock, SimulatedLoop

DAY_MILLIS = 86_400_000
COLLECTION_FAILURES_MAX = 5
UPSETS = (Unavailable, OutcomeUnknown, Conflict, Exhausted, Expired)
"""What a process hears when the network or another process is in its way."""


class Victim(Protocol):
    """The parts of a world that disasters strike."""

    rng: random.Random
    loop: SimulatedLoop
    clock: SimulatedClock
    audit: Audit
    fault_rate: float

    @property
    def memory(self) -> Storage: ...

    @property
    def nodes(self) -> Sequence[Node]: ...

    @property
    def keys(self) -> fmt.Keys: ...

    def start(self, node: Node) -> None: ...

    async def open_upkeep(self) -> Journal:
        """Open the catalog over a network of its own."""
        ...


class Tormentor:
    """Strikes a world with `count` disasters, one after the other. After a storm `fault_rate` holds again."""

    def __init__(self, world: Victim, *, count: int, fault_rate: float, collect_weight: int) -> None:
        self._world = world
        self._count = count
        self._fault_rate = fault_rate
        self._collect_weight = collect_weight
        self._upkeeps = 0
        self.kills = 0
        self.collected = 0
        """The files that collections said that they had deleted, counted after each batch."""

    async def run(self) -> None:
        world = self._world
        for _ in range(self._count):
            await asyncio.sleep(world.rng.random() * 3)
            node = world.rng.choice(world.nodes)
            match world.rng.choices(range(7), weights=(30, 15, 20, 25, 10, 40, self._collect_weight))[0]:
                case 0:
                    await self._kill(node)
                case 1:
                    world.loop.pause(node.process, world.rng.random() * world.rng.choice((1, 10, 60)))
                case 2:
                    await self._wrong_clock(node)
                case 3:
                    await self._wrong_hints()
                case 4:
                    world.fault_rate = 0.5
                    await asyncio.sleep(world.rng.random() * 3)
                    world.fault_rate = self._fault_rate
                case 5:
                    await self._upkeep(collects=False)
                case 6:
                    await self._upkeep(collects=True)

    async def _kill(self, node: Node) -> None:
        world = self._world
        if node.process.is_paused:
            return
        self.kills += 1
        world.loop.kill(node.process)
        await asyncio.sleep(world.rng.random() * world.rng.choice((0.01, 1, 10)))
        world.start(node)

    async def _wrong_clock(self, node: Node) -> None:
        world = self._world
        clock = node.clock
        match world.rng.randrange(5):
            case 0:
                clock.offset_millis = world.rng.randrange(
                    -fmt.CLOCK_SKEW_MILLIS_MAX // 2, fmt.CLOCK_SKEW_MILLIS_MAX // 2
                )
            case 1:
                clock.offset_millis = -DAY_MILLIS
            case 2:
                clock.freeze()
            case 3:
                clock.set_right()
            case 4:
                if world.rng.random() < 0.3:
                    # A dead battery. Its commits are a day ahead for good, and all later versions come after them.
                    clock.offset_millis = DAY_MILLIS

    async def _upkeep(self, *, collects: bool) -> None:
        """Let a process expire old versions or collect files while others read and write. It may be killed."""
        world = self._world
        process = Process(f"upkeep {self._upkeeps}")
        self._upkeeps += 1
        task = world.loop.start(process, self._keep_up(self._collect if collects else self._expire))
        await asyncio.wait({task}, timeout=world.rng.choice((1, 3, 60, 60)))
        if not task.done():
            self.kills += 1
            world.loop.kill(process)
        await self._verify_files()

    async def _keep_up(self, work: Callable[[Journal], Awaitable[None]]) -> None:
        """Begin again after each upset, as a daemon does.

        A late copy of a write may bring back the lease of a version whose files are gone. A collection then fails until
        the lease has run out. Where a version or a tag has lost the file, the failure is a fault.
        """
        journal: Journal | None = None
        failures = 0
        while True:
            try:
                journal = journal or await self._world.open_upkeep()
                return await work(journal)
            except UPSETS:
                await asyncio.sleep(0.2)
            except Corrupt:
                await self._verify_files()
                failures += 1
                if failures == COLLECTION_FAILURES_MAX:
                    raise
                await asyncio.sleep(LEASE_MILLIS[-1] / 1000)

    async def _expire(self, journal: Journal) -> None:
        rules = ExpiryRules(
            older_than_millis=0,
            keep_versions=self._world.rng.choice((1, 2, 4, 11)),
            pipeline_hold_millis=0,
        )
        async for step in journal.expire(rules):
            self._world.loop.note(f"expired {step.expired}")

    async def _collect(self, journal: Journal) -> None:
        age = self._world.rng.choice((0, 0, 500, 5_000))
        async for step in journal.collect(minimum_age_millis=age):
            self._world.loop.note(f"collected {step.deleted_count}")
            self.collected += step.deleted_count

    async def _verify_files(self) -> None:
        """Check that no file is missing that the versions and tags in the store reach at this moment. The holders of
        leases check theirs (`leaseholders`): from the store alone it cannot be told whether a lease ran out."""
        world = self._world
        await Reachable(world.memory, world.keys).find(leases=False)

    async def _wrong_hints(self) -> None:
        world = self._world
        path = world.rng.choice((fmt.LATEST_HINT, fmt.OLDEST_HINT))
        garbage = (b"", b"garbage\n", b"-1", b"4294967296", b"9" * 40, "²".encode(), None)
        behind = str(world.rng.randrange(max(len(world.audit.slots), 1))).encode()
        # No head is ever lost here, and no writer would continue below a hint that names a lost head.
        ahead = (b"99999999", b"4294967295") if path == fmt.OLDEST_HINT else ()
        text = world.rng.choice((*garbage, *ahead, behind, behind, b"0"))
        world.loop.note(f"hint {text!r}")
        if text is None:
            await world.memory.delete(path)
        else:
            await world.memory.put(path, text)
