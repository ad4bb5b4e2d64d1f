"""Stores that fail, and stores that give way, on demand."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from alpheus_journal.errors import (
    AlpheusError,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.storage import ObjectInfo, Storage

_T = TypeVar("_T")


class Fault(enum.Enum):
    """What happens to one call. Reads know `FAIL_BEFORE` only."""

    FAIL_BEFORE = "fail_before"
    """Unavailable; nothing was applied."""
    APPLIED_BUT_LOST = "applied_but_lost"
    """Applied, then OutcomeUnknown: the reply was lost. What the store itself refuses is lost as well."""
    NOT_APPLIED_BUT_UNKNOWN = "not_applied_but_unknown"
    """OutcomeUnknown, and never applied."""
    APPLIED_LATE = "applied_late"
    """OutcomeUnknown; applied by `release`, or right before a later call (`late_after`)."""
    DUPLICATE_APPLY = "duplicate_apply"
    """Delivered twice; the caller gets the second reply. So a `create` that won hears AlreadyExists."""


WRITES = frozenset({"create", "put", "delete"})


class Call(msgspec.Struct, frozen=True):
    """One call as the store sees it: `method` is read, stat, list, create, put or delete; `number` counts
    from 0 over all of them."""

    method: str
    path: str
    number: int


class Record(msgspec.Struct, frozen=True):
    """A line of the log: a call and what was done to it."""

    call: Call
    fault: Fault | None


Plan = Callable[[Call], Fault | None]


def no_faults(call: Call) -> Fault | None:
    return None


def scripted(faults: Mapping[int, Fault]) -> Plan:
    """Faults by the number of the call."""
    return lambda call: faults.get(call.number)


def seeded(seed: int, rate: float, *, faults: Collection[Fault] = tuple(Fault), reads: bool = True) -> Plan:
    """Each call fails with probability `rate`, in one of `faults` that fits it; the same seed and the same
    calls in the same order give the same faults."""
    generator = random.Random(seed)
    ordered = sorted(faults, key=lambda fault: fault.value)

    def plan(call: Call) -> Fault | None:
        # Drawn for every call, so that one call more or less does not shift the rest.
        strikes, fault = generator.random() < rate, generator.choice(ordered)
        if not strikes:
            return None
        if call.method in WRITES:
            return fault
        return Fault.FAIL_BEFORE if reads and Fault.FAIL_BEFORE in faults else None

    return plan


class FaultyStorage(Storage):
    """A store in front of `inner` whose calls fail as `plan` says; the log is in `log`.

    `put_many` is a `put` for each file, `read_many` a `read`, and `publish` is `put_many` and `create`: each
    can be hit. A write that is applied late waits for `release()`, or, when `late_after` is given, for the
    call whose number is that much higher. `close` leaves late writes unapplied and closes `inner`.
    """

    def __init__(self, inner: Storage, plan: Plan = no_faults, *, late_after: int | None = None) -> None:
        self.inner = inner
        self.url = inner.url
        self.plan = plan
        self.log: list[Record] = []
        self._late_after = late_after
        self._late: list[tuple[Call, Callable[[], Awaitable[None]]]] = []

    @property
    def late(self) -> tuple[Call, ...]:
        """The writes that are still under way."""
        return tuple(call for call, _ in self._late)

    async def release(self, count: int | None = None) -> None:
        """Apply the first `count` late writes, all by default. What the store refuses by now, it refuses."""
        for _ in range(len(self._late) if count is None else min(count, len(self._late))):
            _, write = self._late.pop(0)
            with contextlib.suppress(AlpheusError):
                await write()

    async def read(self, path: str, *, size_max: int) -> bytes:
        await self._reading("read", path)
        return await self.inner.read(path, size_max=size_max)

    async def stat(self, path: str) -> ObjectInfo | None:
        await self._reading("stat", path)
        return await self.inner.stat(path)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        await self._reading("list", prefix)
        async for info in self.inner.list(prefix):
            yield info

    async def create(self, path: str, data: bytes) -> None:
        await self._writing("create", path, lambda: self.inner.create(path, data))

    async def put(self, path: str, data: bytes) -> None:
        await self._writing("put", path, lambda: self.inner.put(path, data))

    async def delete(self, path: str) -> None:
        await self._writing("delete", path, lambda: self.inner.delete(path))

    def uri(self, path: str) -> str:
        return self.inner.uri(path)

    async def make_durable(self, paths: Sequence[str]) -> None:
        await self.inner.make_durable(paths)

    async def close(self) -> None:
        await self.inner.close()

    async def _begin(self, method: str, path: str) -> tuple[Call, Fault | None]:
        call = Call(method, path, len(self.log))
        fault = self.plan(call)
        self.log.append(Record(call, fault))
        if self._late_after is not None:
            due = sum(1 for late, _ in self._late if late.number + self._late_after <= call.number)
            await self.release(due)
        return call, fault

    async def _reading(self, method: str, path: str) -> None:
        call, fault = await self._begin(method, path)
        if fault is not None:
            if fault is not Fault.FAIL_BEFORE:
                raise AssertionError(f"{fault} does not fit {call}")
            raise Unavailable(f"injected: {call}", path=path)

    async def _writing(self, method: str, path: str, write: Callable[[], Awaitable[None]]) -> None:
        call, fault = await self._begin(method, path)
        unknown = OutcomeUnknown(f"injected: {call}", path=path)
        match fault:
            case None:
                await write()
            case Fault.FAIL_BEFORE:
                raise Unavailable(f"injected: {call}", path=path)
            case Fault.APPLIED_BUT_LOST:
                with contextlib.suppress(AlpheusError):
                    await write()
                raise unknown
            case Fault.NOT_APPLIED_BUT_UNKNOWN:
                raise unknown
            case Fault.APPLIED_LATE:
                self._late.append((call, write))
                raise unknown
            case Fault.DUPLICATE_APPLY:
                with contextlib.suppress(AlpheusError):
                    await write()
                await write()


class InterleavedStorage(Storage):
    """A store in front of `inner` that gives way before and after each call, as often as a seed says: on one event
    loop, other tasks run in between. The same seed gives the same run."""

    def __init__(self, inner: Storage, seed: int, *, pauses_max: int = 3) -> None:
        self.inner = inner
        self.url = inner.url
        self._random = random.Random(seed)
        self._pauses_max = pauses_max

    async def _pause(self) -> None:
        for _ in range(self._random.randint(0, self._pauses_max)):
            await asyncio.sleep(0)

    async def _call(self, call: Callable[[], Awaitable[_T]]) -> _T:
        await self._pause()
        try:
            return await call()
        finally:
            await self._pause()

    async def read(self, path: str, *, size_max: int) -> bytes:
        return await self._call(lambda: self.inner.read(path, size_max=size_max))

    async def stat(self, path: str) -> ObjectInfo | None:
        return await self._call(lambda: self.inner.stat(path))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self.inner.list(prefix):
            await self._pause()
            yield info

    async def create(self, path: str, data: bytes) -> None:
        await self._call(lambda: self.inner.create(path, data))

    async def put(self, path: str, data: bytes) -> None:
        await self._call(lambda: self.inner.put(path, data))

    async def delete(self, path: str) -> None:
        await self._call(lambda: self.inner.delete(path))

    def uri(self, path: str) -> str:
        return self.inner.uri(path)

    async def close(self) -> None:
        await self.inner.close()
