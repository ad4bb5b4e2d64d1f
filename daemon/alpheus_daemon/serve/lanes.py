"""Work on large requests outside the event loop: in threads, one request at a time, so that small ones wait briefly.

Each computing thread takes a turn before the event loop gets one. So there are at most two threads, one for small
requests and one for large ones.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from alpheus_journal.clock import retrieve_error

_P = ParamSpec("_P")
_T = TypeVar("_T")

SMALL_SIZE_BYTES = 256 << 10
"""The largest request in the lane of small ones: some 20 ms of work."""
OLDEST_EVERY = 4
"""One of this many turns goes to the request that has waited longest, so that large requests get turns, too."""


class Lane:
    """Gives turns one at a time: to the smallest waiting request, and every fourth time to the oldest."""

    def __init__(self) -> None:
        self._is_taken = False
        self._turns = itertools.count(1)
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[int, asyncio.Future[None]]] = {}  # sizes and turns, oldest first

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    async def enter(self, size_bytes: int) -> None:
        """Wait for a turn. The turn lasts until `leave`."""
        if not self._is_taken:
            self._is_taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = next(self._numbers)
        self._waiting[number] = (size_bytes, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is None:  # the turn was given already
                self.leave()
            raise

    def leave(self) -> None:
        """Pass the turn on."""
        if not self._waiting:
            self._is_taken = False
            return
        waiting = self._waiting
        if next(self._turns) % OLDEST_EVERY:
            number = min(waiting, key=lambda number: (waiting[number][0], number))
        else:
            number = next(iter(waiting))
        turn = waiting.pop(number)[1]
        if not turn.done():
            turn.set_result(None)


async def run_in_lane(size_bytes: int, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run pure work on a request of `size_bytes` in a thread.

    A caller that is cancelled stops waiting, but the turn lasts as long as the thread works.
    """
    loop = asyncio.get_running_loop()
    small, large = lanes_of(loop)
    lane = small if size_bytes <= SMALL_SIZE_BYTES else large
    await lane.enter(size_bytes)
    working = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    working.add_done_callback(lambda _: lane.leave())
    working.add_done_callback(retrieve_error)
    try:
        return await asyncio.shield(working)
    finally:
        del working  # otherwise an error and this future would hold each other


def lanes_of(loop: asyncio.AbstractEventLoop) -> tuple[Lane, Lane]:
    """Return the loop's lanes for small and for large requests."""
    lanes = _lanes.get(loop)
    if lanes is None:
        lanes = _lanes[loop] = (Lane(), Lane())
    return lanes


_lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Lane, Lane]] = WeakKeyDictionary()
