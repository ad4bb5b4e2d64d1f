"""Deadlines for queued work, all on one timer: reads that may be given up, transactions that wait for a group."""

from __future__ import annotations

import asyncio
import math
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
