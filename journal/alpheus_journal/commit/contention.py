"""Giving way to other processes that commit to the same catalog.

Who lost a slot has to read the version that won, execute again, store its files and send its root. Who won need not
read, so a process that publishes one version right after the other wins every slot, and the others never get one.
Nobody can see who lost. So

- a process that published without a gap for RUN_SECONDS waits once, for RUN_TURNS times what a loser needs;
- while some of the last RECENT_VERSIONS are of other processes it waits before each of its own, for CONTENDED_TURNS
  times its share of them: who has none does not wait.

Both times vary by chance without a bound but WAIT_SECONDS_MAX, so that those get in whose requests take longer.

A gap that is there anyway counts as waiting. Where nobody else writes, a tenth of the versions is lost at most, and few
or no transactions: those that come meanwhile are in the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque

from alpheus_journal.clock import Identities

RUN_SECONDS = 4.0
RUN_TURNS = 4.0
RECENT_VERSIONS = 8
CONTENDED_TURNS = 2.0
WAIT_SECONDS_MAX = 5.0
REQUESTS = 5
"""That a loser makes one after the other: the lost one that was under way, reading the root that won, seeing that
there is no later one, storing files, sending the root."""
SMOOTHING = 0.2
FIRST_SECONDS_MAX = 0.2
"""The first root may wait for a connection."""


class Contention:
    """Of one process and catalog. `is_one_request`: the store takes the files of a version together with its root, and
    reading one is nothing beside that."""

    def __init__(self, identities: Identities, *, is_one_request: bool) -> None:
        self._identities = identities
        self._requests = 1 if is_one_request else REQUESTS
        self._publish_seconds = 0.0  # of late
        self._ended = 0.0  # when the last version was published, by the loop's time
        self._run_began = 0.0  # since when there was no gap
        self._foreign_count = 0
        self._hurried = asyncio.Event()
        self._recent: deque[bool] = deque(maxlen=RECENT_VERSIONS)  # whether they are our own

    def stop_yielding(self) -> None:
        """Nothing waits from now on, what waits goes on."""
        self._hurried.set()

    async def wait(self, foreign_count: int) -> float:
        """Before a version is published. `foreign_count`: of versions of other processes that were seen. Returns the
        seconds that it was to wait."""
        now = asyncio.get_running_loop().time()
        delay = self._delay(now, foreign_count)
        if delay <= 0 or self._hurried.is_set():
            return 0.0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._hurried.wait()
        return delay

    def _delay(self, now: float, foreign_count: int) -> float:
        turn = self._publish_seconds * self._requests
        gap = now - self._ended
        if self._note(foreign_count) or gap >= 2 * turn:
            self._run_began = now
        if not all(self._recent):
            share = sum(self._recent) / len(self._recent)
            return min(CONTENDED_TURNS * share * turn * self._chance(), WAIT_SECONDS_MAX) - gap
        if now - self._run_began < max(RUN_SECONDS, 10 * RUN_TURNS * turn):
            return 0.0
        self._run_began = now
        return min((1 + self._chance()) * RUN_TURNS / 2 * turn, WAIT_SECONDS_MAX) - gap

    def _chance(self) -> float:
        """Mostly about 1, now and then several times that, for those whose requests take longer than ours."""
        return -math.log((int(self._identities.uuid4()[:8], 16) + 1) / 2**32)

    def record_published(self, seconds: float | None, foreign_count: int) -> None:
        """A version was published, and its root took so long; None: not known, its outcome had to be asked for."""
        self._ended = asyncio.get_running_loop().time()
        self._note(foreign_count)
        self._recent.append(True)
        if seconds is None:
            return
        known = self._publish_seconds or min(seconds, FIRST_SECONDS_MAX)
        if seconds < known:  # what was slow once is forgotten soon, one slow root does not count for much
            self._publish_seconds = (known + seconds) / 2
        else:
            self._publish_seconds = known + SMOOTHING * (min(seconds, 2 * known) - known)

    def _note(self, foreign_count: int) -> bool:
        """Whether there are versions of others that were not known before."""
        new = foreign_count - self._foreign_count
        self._foreign_count = foreign_count
        self._recent.extend([False] * min(new, RECENT_VERSIONS))
        return new > 0
