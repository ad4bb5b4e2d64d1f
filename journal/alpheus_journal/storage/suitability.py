"""The start-up self-test: does this store do what `create` and the readers rely on? (FORMAT.md, "Committing")

A store that ignores the condition of a conditional write, or sits behind a cache, answers every request and
loses commits in silence. So before its first write a process tries the store in a scratch folder,
`selftest/<uuid4>/`, which nothing else uses:

* racing creators of one file: exactly one wins, and its bytes are what is read; a later creator is refused and
  changes nothing;
* a file that was just looked for in vain is found as soon as it is created, by reading, asking and listing;
* readers beside an overwrite see the old or the new file, readers after it the new one;
* a deleted file is gone for readers and listings, and its name is free.

An experiment shows faults, it proves none away: races that a store loses once in a million pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from alpheus_journal.clock import Clock, Identities, RandomIdentities, SystemClock
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Corrupt,
    Denied,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.format import CLOCK_SKEW_MILLIS_MAX
from alpheus_journal.storage.interface import ObjectInfo, Storage

_T = TypeVar("_T")

SCRATCH_FOLDER = "selftest/"
RACES = 4
RACERS = 16
OVERWRITES = 4
LEFTOVER_AGE_MILLIS_MAX = 24 * 3600 * 1000
"""Scratch files of killed processes are removed when they are older, by the store's own clock."""
REQUESTS = RACES * (RACERS + 5) + OVERWRITES * 4 + 13 + (RACES + 2)
"""Calls of the store that one self-test makes when nothing fails: writes, reads, listings and clean-up."""

SETTLE_ATTEMPTS_MAX = 8
SETTLE_DELAY_MIN_SECONDS = 0.1
SETTLE_DELAY_MAX_SECONDS = 2.0
_SIZE_MAX = 1 << 20

_proved: set[str] = set()


async def prove_once(storage: Storage, where: str) -> None:
    """`prove`, unless this process did it for `where` (all that decides which store answers: URL and endpoint), and
    compare the clocks.

    Drivers call it from `Storage.prove`. Raises as `prove`; a refused write is Denied with what to allow.
    """
    if where in _proved:
        return
    clock = SystemClock()
    try:
        offset = await prove(storage, RandomIdentities(clock), clock)
    except Denied as error:
        raise Denied(
            f"{storage.url} cannot be written with these credentials: {error.message}",
            hint="reading needs no more than they have; to write, allow writing and deleting below the prefix"
            " (self_test=false in the URL leaves the self-test out: where deleting is denied on purpose, and for a"
            " daemon that only reads)",
            path=error.path,
        ) from error
    refuse_skew(storage.url, offset)
    _proved.add(where)


async def check_clock(storage: Storage, path: str) -> None:
    """Raises InvalidInput (`clock_skew`) when the store's clock is so far from ours that nothing may be written: times
    of versions would mislead time travel and expiry. Before it refuses it asks once more, by a look at `path`: what the
    store's last answer told may be from before the clock was set, or the machine slept."""
    offset = storage.clock_offset_millis
    if offset is not None and abs(offset) > CLOCK_SKEW_MILLIS_MAX:
        await storage.stat(path)
        refuse_skew(storage.url, storage.clock_offset_millis or 0)


def refuse_skew(url: str, offset_millis: int) -> None:
    """Raises InvalidInput (`clock_skew`) for a store's clock that is so far ahead of ours (negative: behind it)."""
    if abs(offset_millis) > CLOCK_SKEW_MILLIS_MAX:
        side = "ahead of" if offset_millis < 0 else "behind"
        raise InvalidInput(
            f"this machine's clock is {abs(offset_millis) // 1000} s {side} that of {url}",
            kind="clock_skew",
            hint=f"set the clock; writers may be {CLOCK_SKEW_MILLIS_MAX // 1000} s off",
        )


def forget_proofs() -> None:
    """Let every store be tried again: for tests."""
    _proved.clear()


async def prove(storage: Storage, identities: Identities, clock: Clock) -> int:
    """Try `storage` in a scratch folder, and leave nothing behind (a killed or cancelled process does).

    Returns the store's time less that of `clock` in milliseconds, as the time of a file tells it: of what fits, the
    value nearest to 0. Makes `REQUESTS` calls, at most `RACERS` at a time. Raises InvalidInput (`storage_unsuitable`)
    that names what the store did; Unavailable when it cannot be tried now; Denied, NotFound as the store does.
    """
    proof = _Proof(storage, clock, f"{SCRATCH_FOLDER}{identities.uuid4()}/")
    try:
        await proof.run()
    except Exception:
        # What was found out counts; a store that fails at this may fail at deleting, too.
        with contextlib.suppress(AlpheusError):
            await proof.clean()
        raise
    await proof.clean()
    return proof.clock_offset_millis


class _Proof:
    """One run in its own folder."""

    def __init__(self, storage: Storage, clock: Clock, folder: str) -> None:
        self._storage = storage
        self._clock = clock
        self._folder = folder
        self._written: set[str] = set()
        self._leftovers: list[str] = []
        self.clock_offset_millis = 0

    async def run(self) -> None:
        for number in range(RACES):
            await self._try_race(f"{self._folder}race-{number}")
        await self._try_appearance(f"{self._folder}appearance")
        await self._try_overwrites(f"{self._folder}overwrite")
        await self._try_deletion(f"{self._folder}appearance")

    async def clean(self) -> None:
        for path in [*sorted(self._written), *self._leftovers]:
            await self._write_until_known(path, lambda path=path: self._storage.delete(path))  # type: ignore[misc]

    # --- the experiments

    async def _try_race(self, path: str) -> None:
        """5 calls beside the racers'."""
        offers = [f"{path} offer {number} ".encode() * 64 for number in range(RACERS)]
        results = await _run_together(self._offer(path, data) for data in offers)
        winners = [data for data, won in zip(offers, results, strict=True) if won]
        unknown = [data for data, won in zip(offers, results, strict=True) if won is None]
        if len(winners) > 1:
            raise self._unsuitable(
                f"{len(winners)} of {RACERS} racing creators of one file were told that they won"
            )
        held = await self._read(path)
        if held is None:
            raise self._unsuitable(
                f"a file that {RACERS} creators raced for is not there"
                + (", although one was told that it won" if winners else "")
            )
        if held not in (winners or unknown):
            raise self._unsuitable(
                "a file that several creators raced for holds"
                + (" what a creator wrote that was told it lost" if held in offers else " mixed bytes")
            )
        for data in (b"a later creator", held):
            if await self._offer(path, data):
                raise self._unsuitable("a file was created over one that was there")
            if await self._read(path) != held:
                raise self._unsuitable("a refused create changed the file that was there")

    async def _try_appearance(self, path: str) -> None:
        """7 calls."""
        if await self._read(path) is not None or await self._stat(path) is not None:
            raise self._unsuitable("a file that nobody wrote is there")
        data = b"appears" * 100
        before = self._clock.now_millis()
        if await self._offer(path, data) is False:
            raise self._unsuitable("creating a file that is not there was refused")
        after = self._clock.now_millis()
        await self._check_found(path, data, "created")
        listed = await self._list(SCRATCH_FOLDER)
        missing = sorted(self._written - listed.keys())
        if missing:
            raise self._unsuitable(f"{len(missing)} of {len(self._written)} files written are not listed")
        # The store's own clock: what it says of a file of just now.
        now = listed[path].modified_at_millis
        low, high = now - after, now + 999 - before  # many a store has whole seconds
        self.clock_offset_millis = max(low, min(high, 0))
        self._leftovers = [
            info.path
            for info in listed.values()
            if info.path not in self._written and info.modified_at_millis < now - LEFTOVER_AGE_MILLIS_MAX
        ]
        if await self._read(path) != data:
            raise self._unsuitable("a file that was there is not read again")

    async def _try_overwrites(self, path: str) -> None:
        """1 call, and 4 for each overwrite."""
        versions = [bytes([65 + number]) * (1000 + 500 * number) for number in range(OVERWRITES + 1)]
        await self._put(path, versions[0])
        for old, new in itertools.pairwise(versions):
            _, *seen = await _run_together((self._put(path, new), self._read(path), self._read(path)))
            if any(data not in (old, new) for data in seen):
                raise self._unsuitable("a reader beside an overwrite saw neither the old nor the new file")
            if await self._read(path) != new:
                raise self._unsuitable("an overwritten file still has its old bytes")

    async def _try_deletion(self, path: str) -> None:
        """5 calls."""
        await self._write_until_known(path, lambda: self._storage.delete(path))
        if await self._read(path) is not None or await self._stat(path) is not None:
            raise self._unsuitable("a deleted file is still there")
        if path in await self._list(self._folder):
            raise self._unsuitable("a deleted file is still listed")
        if await self._offer(path, b"again") is False:
            raise self._unsuitable("the name of a deleted file is still taken")

    async def _check_found(self, path: str, data: bytes, what: str) -> None:
        held, info = await self._read(path), await self._stat(path)
        if held is None or info is None:
            raise self._unsuitable(
                f"a file that was {what} is not found: the store or something before it remembers its absence"
            )
        if held != data or info.size != len(data):
            raise self._unsuitable(f"a file that was {what} has other bytes")

    # --- calls of the store

    async def _offer(self, path: str, data: bytes) -> bool | None:
        """Create: True, won; False, refused; None, refused after an attempt that may have won."""
        self._written.add(path)
        doubtful = False

        async def create() -> bool | None:
            nonlocal doubtful
            try:
                await self._storage.create(path, data)
            except AlreadyExists:
                return None if doubtful else False
            except OutcomeUnknown:
                doubtful = True
                raise
            return True

        return await self._write_until_known(path, create)

    async def _put(self, path: str, data: bytes) -> None:
        self._written.add(path)
        await self._write_until_known(path, lambda: self._storage.put(path, data))

    async def _read(self, path: str) -> bytes | None:
        try:
            return await self._storage.read(path, size_max=_SIZE_MAX)
        except NotFound as error:
            if error.kind != "no_file":
                raise  # the bucket, say
            return None
        except Corrupt as error:
            raise self._unsuitable(
                f"a file of a few bytes is larger when it is read: {error.message}"
            ) from error

    async def _stat(self, path: str) -> ObjectInfo | None:
        return await self._storage.stat(path)

    async def _list(self, prefix: str) -> dict[str, ObjectInfo]:
        return {info.path: info async for info in self._storage.list(prefix)}

    async def _write_until_known(self, path: str, write: Callable[[], Awaitable[_T]]) -> _T:
        """A write, again until its outcome is known. Raises Unavailable when that never comes."""
        delay = SETTLE_DELAY_MIN_SECONDS
        for attempt in range(SETTLE_ATTEMPTS_MAX):
            if attempt:
                await self._clock.sleep(delay)
                delay = min(delay * 2, SETTLE_DELAY_MAX_SECONDS)
            try:
                return await write()
            except (OutcomeUnknown, Unavailable) as error:
                failure: AlpheusError = error
        raise Unavailable(
            f"{self._storage.url} could not be tried before the first write: {failure.message}", path=path
        ) from failure

    def _unsuitable(self, what: str) -> InvalidInput:
        return InvalidInput(
            f"{self._storage.url} cannot hold a catalog: {what}",
            kind="storage_unsuitable",
            hint="commits would be lost in silence; choose a store with conditional writes (Amazon S3, Google"
            " Cloud Storage, Azure, MinIO, versitygw) or a directory, and put no cache before it",
        )


async def _run_together(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """All of them at once; when some fail, the first one's error is raised after every other one has ended."""
    values: list[_T] = []
    failures: list[Exception] = []

    async def outcome(call: Coroutine[Any, Any, _T]) -> _T | Exception:
        try:
            return await call
        except Exception as error:  # raised below, not in a group that cancels the others
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(outcome(call)) for call in calls]
    for task in tasks:
        result = task.result()
        if isinstance(result, Exception):
            failures.append(result)
        else:
            values.append(result)
    if failures:
        raise failures[0]
    return values
