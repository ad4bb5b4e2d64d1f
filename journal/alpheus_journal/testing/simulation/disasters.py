"""Disasters of a simulated world: kills, pauses, wrong clocks, wrong hints, storms, and old versions that expire."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Protocol

from alpheus_journal import format as fmt
from alpheus_journal.log.versions import Log
from alpheus_journal.storage import Storage
from alpheus_journal.testing.simulation.clients import Node
from alpheus_journal.testing.simulation.loop import Audit, SimulatedClock, SimulatedLoop
from alpheus_journal.tree.node import encode_tombstone

DAY_MILLIS = 86_400_000


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

    def start(self, node: Node) -> None: ...


class Tormentor:
    """Strikes a world with `count` disasters, one after the other. After a storm `fault_rate` holds again."""

    def __init__(self, world: Victim, *, count: int, fault_rate: float) -> None:
        self._world = world
        self._count = count
        self._fault_rate = fault_rate
        self.kills = 0

    async def run(self) -> None:
        world = self._world
        for _ in range(self._count):
            await asyncio.sleep(world.rng.random() * 3)
            node = world.rng.choice(world.nodes)
            match world.rng.choices(range(6), weights=(30, 15, 20, 25, 10, 40))[0]:
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
                    await self._expire()

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

    async def _expire(self) -> None:
        """Expire old versions, the lowest first, while others read and write. The head stays."""
        world = self._world
        log = await Log.open(world.memory)
        catalog_id = (await log.newest()).catalog_id
        below = len(world.audit.slots) - 1 - world.rng.choice((0, 1, 3, 10))
        for version in range(world.audit.expired, below):
            tombstone = encode_tombstone(
                commit_id=await log.commit_id(version),
                catalog_id=catalog_id,
                expired_at_millis=world.clock.now_millis(),
                version=version,
            )
            world.loop.note(f"expire {version}")
            await world.audit.expire(log.path(version), tombstone)
            if world.rng.random() < 0.3:
                await asyncio.sleep(world.rng.random() * 0.2)
        if world.rng.random() < 0.7:  # otherwise the collector was killed before
            await world.memory.put(fmt.OLDEST_HINT, str(world.audit.expired).encode())

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
