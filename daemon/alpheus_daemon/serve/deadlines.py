"""Deadlines, each kind on one timer: of reads that may be given up, of queued transactions, of writes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import Protocol

TICK_SECONDS = 0.02
"""The most that an item expires late. Items that expire shortly after each other are handled together."""


class Expiring(Protocol):
    def expire(self) -> None:
        """End the item, whose time is over. Must not raise."""
        ...


class Deadlines:
    """Expires items that are still held when their time is over, with one timer for all.

    Nearly all items end long before that, and a timer for each would cost more than the item's own work.
    """

    def __init__(self) -> None:
        self._items: dict[Expiring, float] = {}  # with their ends, by the loop's time
        self._timer: asyncio.TimerHandle | None = None
        self._fires = math.inf

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Expiring, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        self._items[item] = until
        if until < self._fires:
            self._arm(until)

    def discard(self, item: Expiring) -> None:
        self._items.pop(item, None)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires = when
        self._timer = asyncio.get_running_loop().call_at(when, self._sweep)

    def _sweep(self) -> None:
        self._timer, self._fires = None, math.inf
        now = asyncio.get_running_loop().time()
        try:
            for item in [item for item, until in self._items.items() if until <= now]:
                if self._items.pop(item, None) is not None:
                    item.expire()
        finally:
            if self._items:
                self._arm(max(min(self._items.values()), now + TICK_SECONDS))


class WriteDeadlines:
    """Ends waits that take too long with TimeoutError, as `asyncio.timeout` does, but with one timer for all.

    A timer for each message cost a tenth of sending it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waits: dict[_Wait, float] = {}  # with their ends, in order, as all wait equally long
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        return self._seconds

    def configure(self, seconds: float) -> None:
        """Change the time limit. It also applies to the waits that are running."""
        self._seconds = seconds
        latest = asyncio.get_running_loop().time() + self._seconds
        for wait, until in self._waits.items():
            self._waits[wait] = min(until, latest)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._arm()

    async def within(self, what: Awaitable[None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        wait = _Wait(task)
        self._waits[wait] = asyncio.get_running_loop().time() + self._seconds
        if self._timer is None:
            self._arm()
        try:
            await what
        except asyncio.CancelledError as error:
            if wait.is_over and task.uncancel() <= wait.cancelling:
                raise TimeoutError from error
            raise
        finally:
            del self._waits[wait]

    def _arm(self) -> None:
        if self._waits:
            first = next(iter(self._waits.values()))
            self._timer = asyncio.get_running_loop().call_at(first, self._end)

    def _end(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for wait, until in self._waits.items():
            if wait.is_over:
                continue
            if until > now:
                self._timer = asyncio.get_running_loop().call_at(until, self._end)
                return
            wait.is_over = True
            wait.task.cancel()


class _Wait:
    __slots__ = ("cancelling", "is_over", "task")

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self.cancelling = task.cancelling()
        self.is_over = False
