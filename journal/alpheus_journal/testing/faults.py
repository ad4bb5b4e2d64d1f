"""Stores that fail or yield to other tasks on demand."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from alpheus_journal.clock import Clock
from alpheus_journal.errors import (
    AlpheusError,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.storage import ObjectInfo, Storage, file_not_there, slot_taken
from alpheus_journal.testing.simulation.ids import FakeClock

_T = TypeVar("_T")


class Fault(enum.Enum):
    """A fault of one call. `FITTING` says which faults fit which method."""

    FAIL_BEFORE = "fail_before"
    """Raises Unavailable, without applying the call."""
    APPLIED_BUT_LOST = "applied_but_lost"
    """Applies the call, then raises OutcomeUnknown: the reply was lost. A refusal by the store is lost, too."""
    NOT_APPLIED_BUT_UNKNOWN = "not_applied_but_unknown"
    """Raises OutcomeUnknown, and never applies the call."""
    APPLIED_LATE = "applied_late"
    """Raises OutcomeUnknown. `release` applies the call, or a later call does right before itself (`late_after`)."""
    DUPLICATE_APPLY = "duplicate_apply"
    """Delivers the call twice; the caller gets the second reply. So a `create` that won gets AlreadyExists."""
    ANSWERED_409 = "answered_409"
    """Raises OutcomeUnknown without applying the call: the store received two concurrent conditional writes and took
    neither. A driver cannot tell whether the path is taken."""
    ANSWERED_412 = "answered_412"
    """Raises AlreadyExists without applying the call or looking at the path: the answer to an earlier delivery, or an
    error of the store. Only a read shows what is at the path."""
    ANSWERED_503 = "answered_503"
    """Raises OutcomeUnknown for a write that is not applied (a 5xx proves nothing), and Unavailable for a read."""
    SLOW = "slow"
    """Applies the call after `slow_seconds` of the store's clock."""
    TRUNCATED = "truncated"
    """Returns half of the file as if it were the whole. A driver must never let this pass."""
    CUT_LISTING = "cut_listing"
    """Returns half of the listing, then raises Unavailable."""
    STALE_404 = "stale_404"
    """Reports an existing file as absent: a cached answer. The self-test at the start refuses such a store."""


WRITES = frozenset({"create", "put", "delete"})

_WRITE_FAULTS = frozenset(
    {
        Fault.FAIL_BEFORE, Fault.APPLIED_BUT_LOST, Fault.NOT_APPLIED_BUT_UNKNOWN, Fault.APPLIED_LATE,
        Fault.DUPLICATE_APPLY, Fault.ANSWERED_409, Fault.ANSWERED_503, Fault.SLOW,
    }
)  # fmt: skip
_READ_FAULTS = frozenset({Fault.FAIL_BEFORE, Fault.ANSWERED_503, Fault.SLOW})
FITTING: Mapping[str, frozenset[Fault]] = {
    "create": _WRITE_FAULTS | {Fault.ANSWERED_412},
    "put": _WRITE_FAULTS,
    "delete": _WRITE_FAULTS,
    "read": _READ_FAULTS | {Fault.TRUNCATED, Fault.STALE_404},
    "stat": _READ_FAULTS | {Fault.STALE_404},
    "list": _READ_FAULTS | {Fault.CUT_LISTING},
}

LAWFUL = tuple(fault for fault in Fault if fault not in (Fault.TRUNCATED, Fault.STALE_404))
"""The faults that a lawful store and its network may cause."""


class Call(msgspec.Struct, frozen=True):
    """One call as the store receives it.

    `method` is read, stat, list, create, put or delete. `number` counts all calls from 0.
    """

    method: str
    path: str
    number: int


class Record(msgspec.Struct, frozen=True):
    """A line of the log: a call and its fault, if any."""

    call: Call
    fault: Fault | None


Plan = Callable[[Call], Fault | None]


def no_faults(call: Call) -> Fault | None:
    return None


def scripted(faults: Mapping[int, Fault]) -> Plan:
    """Return a plan with faults by the number of the call."""
    return lambda call: faults.get(call.number)


def seeded(seed: int, rate: float, *, faults: Collection[Fault] = LAWFUL, reads: bool = True) -> Plan:
    """Return a plan by which each call fails with probability `rate`, by one of the `faults` that fit the call.

    The same seed and the same calls in the same order give the same faults.
    """
    generator = random.Random(seed)
    choices = {
        method: sorted(fitting.intersection(faults), key=lambda fault: fault.value)
        for method, fitting in FITTING.items()
    }

    def plan(call: Call) -> Fault | None:
        # Drawn for every call, so that an additional call does not shift the faults of the others.
        strikes, choice = generator.random() < rate, generator.random()
        fits = choices[call.method] if reads or call.method in WRITES else []
        return fits[int(choice * len(fits))] if strikes and fits else None

    return plan


class FaultyStorage(Storage):
    """A store in front of `inner` whose calls fail as `plan` says. `log` has all calls.

    `put_many` counts as a `put` for each file, `delete_many` as `delete`s, `read_many` as `read`s, `stat_many` as
    `stat`s, and `publish` as `put_many` and `create`. Each of these calls can fail; `prove`, `enclosing` and
    `make_durable` cannot. A late write waits for `release()` or, with `late_after`, for the call whose number is that
    much higher. A slow call waits `slow_seconds` by `clock`. `close` leaves late writes unapplied and closes `inner`.
    """

    def __init__(
        self,
        inner: Storage,
        plan: Plan = no_faults,
        *,
        late_after: int | None = None,
        clock: Clock | None = None,
        slow_seconds: float = 5.0,
    ) -> None:
        self.inner = inner
        self.url = inner.url
        self.plan = plan
        self.log: list[Record] = []
        self._late_after = late_after
        self._clock = clock or FakeClock()
        self._slow_seconds = slow_seconds
        self._late: list[tuple[Call, Callable[[], Awaitable[None]]]] = []

    @property
    def late(self) -> tuple[Call, ...]:
        """The late writes that are not applied yet."""
        return tuple(call for call, _ in self._late)

    async def release(self, count: int | None = None) -> None:
        """Apply the first `count` late writes, by default all. The store may refuse them by now."""
        for _ in range(len(self._late) if count is None else min(count, len(self._late))):
            _, write = self._late.pop(0)
            with contextlib.suppress(AlpheusError):
                await write()

    async def read(self, path: str, *, size_max: int) -> bytes:
        fault = await self._fault_of_read("read", path)
        if fault is Fault.STALE_404:
            raise file_not_there(path, self.url)
        data = await self.inner.read(path, size_max=size_max)
        return data[: len(data) // 2] if fault is Fault.TRUNCATED else data

    async def stat(self, path: str) -> ObjectInfo | None:
        fault = await self._fault_of_read("stat", path)
        return None if fault is Fault.STALE_404 else await self.inner.stat(path)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        fault = await self._fault_of_read("list", prefix)
        if fault is Fault.CUT_LISTING:
            found = [info async for info in self.inner.list(prefix)]
            for info in found[: len(found) // 2]:
                yield info
            raise Unavailable(f"injected: the listing of {prefix!r} broke off", path=prefix)
        async for info in self.inner.list(prefix):
            yield info

    async def create(self, path: str, data: bytes) -> None:
        await self._apply_write("create", path, lambda: self.inner.create(path, data))

    async def put(self, path: str, data: bytes) -> None:
        await self._apply_write("put", path, lambda: self.inner.put(path, data))

    async def delete(self, path: str) -> None:
        await self._apply_write("delete", path, lambda: self.inner.delete(path))

    def uri(self, path: str) -> str:
        return self.inner.uri(path)

    async def make_durable(self, paths: Sequence[str]) -> None:
        await self.inner.make_durable(paths)

    @property
    def clock_offset_millis(self) -> int | None:
        return self.inner.clock_offset_millis

    async def enclosing(self, paths: Sequence[str]) -> str:
        return await self.inner.enclosing(paths)

    async def prove(self) -> None:
        await self.inner.prove()

    async def close(self) -> None:
        await self.inner.close()

    async def _begin(self, method: str, path: str) -> tuple[Call, Fault | None]:
        call = Call(method, path, len(self.log))
        fault = self.plan(call)
        self.log.append(Record(call, fault))
        if self._late_after is not None:
            due = sum(1 for late, _ in self._late if late.number + self._late_after <= call.number)
            await self.release(due)
        if fault is not None and fault not in FITTING[method]:
            raise AssertionError(f"{fault} does not fit {call}")
        if fault is Fault.SLOW:
            await self._clock.sleep(self._slow_seconds)
        return call, fault

    async def _fault_of_read(self, method: str, path: str) -> Fault | None:
        """Return the fault of a read, which the caller has to act on."""
        call, fault = await self._begin(method, path)
        if fault in (Fault.FAIL_BEFORE, Fault.ANSWERED_503):
            raise Unavailable(f"injected: {call}", path=path)
        return fault

    async def _apply_write(self, method: str, path: str, write: Callable[[], Awaitable[None]]) -> None:
        call, fault = await self._begin(method, path)
        unknown = OutcomeUnknown(f"injected: {call}", path=path)
        match fault:
            case None | Fault.SLOW:
                await write()
            case Fault.FAIL_BEFORE:
                raise Unavailable(f"injected: {call}", path=path)
            case Fault.APPLIED_BUT_LOST:
                with contextlib.suppress(AlpheusError):
                    await write()
                raise unknown
            case Fault.NOT_APPLIED_BUT_UNKNOWN | Fault.ANSWERED_409 | Fault.ANSWERED_503:
                raise unknown
            case Fault.ANSWERED_412:
                raise slot_taken(path)
            case Fault.APPLIED_LATE:
                self._late.append((call, write))
                raise unknown
            case Fault.DUPLICATE_APPLY:
                with contextlib.suppress(AlpheusError):
                    await write()
                await write()


class InterleavedStorage(Storage):
    """A store in front of `inner` that yields to other tasks before and after each call.

    The seed decides how often. On one event loop the same seed gives the same run.
    """

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

    async def make_durable(self, paths: Sequence[str]) -> None:
        await self._call(lambda: self.inner.make_durable(paths))

    @property
    def clock_offset_millis(self) -> int | None:
        return self.inner.clock_offset_millis

    async def enclosing(self, paths: Sequence[str]) -> str:
        return await self._call(lambda: self.inner.enclosing(paths))

    async def prove(self) -> None:
        await self._call(self.inner.prove)

    async def close(self) -> None:
        await self.inner.close()
