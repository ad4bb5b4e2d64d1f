"""Wait for the turns of other processes that commit to the same catalog.

The loser of a slot has to read the version that won, execute again, store its files and send its root. The winner need
not read. So a process that publishes one version right after another wins every slot, and other processes never win
one. No process can see who lost. Therefore each process waits by itself:

- A process that has published without a gap for RUN_SECONDS waits once, for RUN_TURNS times what a loser needs.
- While some of the last RECENT_VERSIONS are of other processes, a process waits before each of its own versions. The
  wait grows with CONTENDED_TURNS and with the process's share of the recent versions; a process without a share does
  not wait.

Both times vary by chance, with no bound except WAIT_SECONDS_MAX, so that processes with slower requests get their turn.

A gap that occurs anyway counts as waiting. Where no other process writes, at most a tenth of the versions is lost, and
few or no transactions: the next version takes those that arrive meanwhile.
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
REQUESTS = 6
"""Requests that a loser makes one after another: its lost root, the look whether a root won, that root, the look for a
later root, its files, and its next root."""
SMOOTHING = 0.2
FIRST_SECONDS_MAX = 0.2
"""Bound on the duration that the first root counts for, because that root may wait for a connection."""


class Contention:
    """The waits of one process on one catalog.

    `is_one_request`: the store takes the files of a version together with its root, and a read costs next to nothing.
    """

    def __init__(self, identities: Identities, *, is_one_request: bool) -> None:
        self._identities = identities
        self._requests = 1 if is_one_request else REQUESTS
        self._publish_seconds = 0.0  # a smoothed recent value
        self._ended = 0.0  # when the last version was published, in the loop's time
        self._run_began = 0.0  # when the present run without a gap began, in the loop's time
        self._foreign_count = 0
        self._stopped = asyncio.Event()
        self._recent: deque[bool] = deque(maxlen=RECENT_VERSIONS)  # True for versions of this process

    def stop_yielding(self) -> None:
        """End the present wait and all later ones."""
        self._stopped.set()

    async def wait(self, foreign_count: int) -> float:
        """Wait before a version is published. Return the seconds that the wait was meant to take.

        `foreign_count` is the number of versions of other processes that this process has seen so far.
        """
        now = asyncio.get_running_loop().time()
        delay = self._delay(now, foreign_count)
        if delay <= 0 or self._stopped.is_set():
            return 0.0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stopped.wait()
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
        """Draw a factor: mostly about 1, now and then several times that, for processes with slower requests."""
        return -math.log((int(self._identities.uuid4()[:8], 16) + 1) / 2**32)

    def record_published(self, seconds: float | None, foreign_count: int) -> None:
        """Record a published version whose root took `seconds`. None means unknown: the reply was lost and settled."""
        self._ended = asyncio.get_running_loop().time()
        self._note(foreign_count)
        self._recent.append(True)
        if seconds is None:
            return
        known = self._publish_seconds or min(seconds, FIRST_SECONDS_MAX)
        if seconds < known:  # a slow past is forgotten soon, and one slow root counts for little
            self._publish_seconds = (known + seconds) / 2
        else:
            self._publish_seconds = known + SMOOTHING * (min(seconds, 2 * known) - known)

    def _note(self, foreign_count: int) -> bool:
        """Note versions of other processes. Return whether some of them are new."""
        new = foreign_count - self._foreign_count
        self._foreign_count = foreign_count
        self._recent.extend([False] * min(new, RECENT_VERSIONS))
        return new > 0
