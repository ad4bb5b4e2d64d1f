"""A history in memory for tests of the hub and the poller. Tests decide when versions are added."""

from __future__ import annotations

import asyncio

import msgspec

from alpheus_journal.errors import (
    Expired,
    InvalidInput,
)
from alpheus_journal.format import table_name
from alpheus_journal.model.answers import Change, Event, make_token, parse_token


class Head(msgspec.Struct, frozen=True):
    version: int
    token: str


def token(version: int) -> str:
    return make_token("cat", version, f"c{version}")


class Source:
    """A log in memory. Version n changes one table, of namespace `even` or `odd`.

    `turns`: how often the reading of an event yields to other tasks, as storage does.
    """

    def __init__(self, version: int = 0) -> None:
        self.head = Head(version, token(version))
        self.oldest = 0
        self.turns = 0
        self.hidden = 0  # versions of other writers that a refresh finds
        self.reads: list[int] = []
        self.probes = 0
        self.broken: Exception | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.definition = b"d"

    def commit(self, count: int = 1) -> None:
        version = self.head.version + count
        self.head = Head(version, token(version))
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def refresh(self) -> Head:
        self.probes += 1
        if self.broken is not None:
            raise self.broken
        if self.hidden:
            count, self.hidden = self.hidden, 0
            self.commit(count)
        return self.head

    def check_history(self) -> None:
        return

    async def wait_beyond(self, version: int) -> None:
        while self.head.version <= version:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def event(self, version: int, *, details: bool = False) -> Event:
        assert 0 <= version <= self.head.version, "an event beyond the head was asked for"
        self.reads.append(version)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if version < self.oldest:
            raise Expired(f"version {version} is gone", oldest=self.oldest)
        change = Change(
            name=table_name("odd" if version % 2 else "even", "t"),
            type="updated",
            path_before="a",
            path_after="b",
            definition_after=self.definition if details else None,
        )
        return Event(
            version=version,
            created_at_millis=version,
            token=token(version),
            transactions=(),
            changes=(change,),
        )

    async def verify_after(self, after: int | str | None) -> int:
        if after is None:
            return self.oldest - 1
        version = parse_token(after)[1] if isinstance(after, str) else after
        if version > self.head.version:
            raise InvalidInput(f"version {version} is above the head", kind="future_version")
        return version
