"""Work on large requests, aside of the event loop: in threads, and in turns, so that smaller ones need not wait long.

Of several threads that compute each has its turn before the event loop has one: so there are two at the most, one for
small requests and one for large ones.
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
"""Of a request that takes its turn among small ones: some 20 ms of work."""
OLDEST_EVERY = 4
"""Turns of which one goes to what has waited longest, so that a large one has its turn, too."""


class Lane:
    """Turns, one at a time: the smallest that waits goes first, and every fourth time the oldest."""

    def __init__(self) -> None:
        self._is_taken = False
        self._turns = itertools.count(1)
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[int, asyncio.Future[None]]] = {}  # oldest first; with their sizes

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    async def enter(self, size_bytes: int) -> None:
        """Wait for a turn, which lasts until `leave`."""
        if not self._is_taken:
            self._is_taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = next(self._numbers)
        self._waiting[number] = (size_bytes, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is None:  # it has the turn already
                self.leave()
            raise

    def leave(self) -> None:
        """Give the turn on."""
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
    """Pure work on a request of `size_bytes`, in a thread. A caller that is cancelled waits no more, and the turn lasts
    as long as the thread works."""
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
        del working  # an error would hold it, and it holds the error


def lanes_of(loop: asyncio.AbstractEventLoop) -> tuple[Lane, Lane]:
    """For small requests and for large ones."""
    lanes = _lanes.get(loop)
    if lanes is None:
        lanes = _lanes[loop] = (Lane(), Lane())
    return lanes


_lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Lane, Lane]] = WeakKeyDictionary()
