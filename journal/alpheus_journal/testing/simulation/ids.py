"""A clock and identities that do not depend on the outside world."""

from __future__ import annotations

import asyncio
import random
import uuid

from alpheus_journal.clock import Clock, make_uuid7


class FakeClock:
    """A clock that moves only when a task sleeps, and then immediately. `millis` may be set. Counts sleeps."""

    def __init__(self, millis: int = 1_800_000_000_000) -> None:
        self.millis = millis
        self.sleeps = 0

    def now_millis(self) -> int:
        return self.millis

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.millis += int(seconds * 1000)
        await asyncio.sleep(0)


class SeededIdentities:
    """Identities that a seed determines."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._random = random.Random(seed)
        self._clock = clock

    def uuid4(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def uuid7(self) -> str:
        return make_uuid7(self._clock.now_millis(), self._random.getrandbits(74))
