"""Clients of a simulated process that commit and follow, subscribers, and the processes themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from alpheus_journal.errors import AlpheusError, Expired, Unavailable
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed, Event, Outcome
from alpheus_journal.model.operations import Transaction
from alpheus_journal.testing.simulation.leaseholders import Leaseholders
from alpheus_journal.testing.simulation.loop import Process, SimulatedClock, SimulatedLoop
from alpheus_journal.testing.simulation.verdict import Essence, essence

PATIENCE_SECONDS = 5.0


class Front(Protocol):
    """The way in which the clients of one process commit."""

    async def commit(self, transactions: Sequence[Transaction]) -> list[Committed | AlpheusError]:
        """Return one answer for each transaction. The transactions may or may not share a version."""
        ...

    async def settle(self, transaction_id: str, since: int) -> Outcome: ...

    def events(self, after: int | str) -> AsyncGenerator[Event, None]:
        """Follow the log without end."""
        ...


MakeFront = Callable[[Journal, SimulatedLoop], Front]


class LibraryFront:
    """Commits each transaction as its own version."""

    def __init__(self, journal: Journal, loop: SimulatedLoop) -> None:
        self._journal = journal

    async def commit(self, transactions: Sequence[Transaction]) -> list[Committed | AlpheusError]:
        return [await self._one(transaction) for transaction in transactions]

    async def _one(self, transaction: Transaction) -> Committed | AlpheusError:
        try:
            return await self._journal.commit(transaction, timeout_seconds=PATIENCE_SECONDS)
        except AlpheusError as error:
            return error

    async def settle(self, transaction_id: str, since: int) -> Outcome:
        return await self._journal.outcome(transaction_id, since=since, settle=True)

    def events(self, after: int | str) -> AsyncGenerator[Event, None]:
        return _events(self._journal, after)


class GroupFront:
    """Passes groups directly to `commit_group`. Members that were not judged come first in the next group."""

    ATTEMPTS_MAX = 30

    def __init__(self, journal: Journal, loop: SimulatedLoop) -> None:
        self._journal = journal
        self._lock = asyncio.Lock()

    async def commit(self, transactions: Sequence[Transaction]) -> list[Committed | AlpheusError]:
        answers: dict[str, Committed | AlpheusError] = {}
        rest = list(transactions)
        async with self._lock:
            for _ in range(self.ATTEMPTS_MAX):
                got = await self._journal.commit_group(rest, deadline_seconds=PATIENCE_SECONDS)
                for transaction, answer in zip(rest, got, strict=True):
                    if answer is not None:
                        answers[transaction.id] = answer
                rest = [transaction for transaction in rest if transaction.id not in answers]
                if not rest:
                    break
        for transaction in rest:
            answers[transaction.id] = Unavailable(f"{transaction.id} was not judged")
        return [answers[transaction.id] for transaction in transactions]

    async def settle(self, transaction_id: str, since: int) -> Outcome:
        async with self._lock:
            return await self._journal.outcome(transaction_id, since=since, settle=True)

    def events(self, after: int | str) -> AsyncGenerator[Event, None]:
        return _events(self._journal, after)


async def _events(journal: Journal, after: int | str) -> AsyncGenerator[Event, None]:
    async for event in journal.events(after=after, follow=True):
        if isinstance(event, Event):
            yield event


class Subscriber:
    """Follows the log through any process, and resumes with its token after each break.

    If the next event has expired, the subscriber resumes behind the gap.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[Essence] = []
        self.skipped: set[int] = set()
        self.position = -1
        self.after: int | str = -1

    def take(self, event: Event) -> None:
        assert event.version == self.position + 1, f"{self.name} got {event.version} after {self.position}"
        self.seen.append(essence(event))
        self.position, self.after = event.version, event.token

    def skip(self, error: Expired, expired: int) -> None:
        """Skip expired events. Versions below `expired` are expired; an event needs its version and the one before."""
        assert self.position < expired, f"{self.name} wants {self.position + 1}, {expired} is kept: {error!r}"
        assert error.oldest is not None, f"{error!r} does not say where to resume"
        assert self.position < error.oldest <= expired, (
            f"{self.name} at {self.position}, {expired}: {error!r}"
        )
        self.skipped.update(range(self.position + 1, error.oldest + 1))
        self.position = self.after = error.oldest


class Node:
    """One process at the moment: its journal, its front, its clients."""

    def __init__(self, name: str, number: int, clock: SimulatedClock) -> None:
        self.name = name
        self.number = number
        self.clock = clock
        self.process = Process(name)
        self.subscriber = Subscriber(f"subscriber of {name}")
        self.journal: Journal | None = None
        self.front: Front | None = None
        self.leaseholders: Leaseholders | None = None
        self.steps_left: dict[str, int] = {}
        self.stepping: set[str] = set()
        """The clients of the living process that are in a step."""
        self.is_reader = False
