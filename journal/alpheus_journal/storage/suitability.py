"""The start-up self-test: does this store keep what `create` and the readers rely on? (FORMAT.md, "Committing")

A store that ignores the condition of a conditional write, or that stands behind a cache, answers every request and
loses commits silently. Before its first write, a process therefore tests the store in a scratch folder,
`selftest/<uuid4>/`, which nothing else uses:

* Of racing creators of one file exactly one wins, and readers get the winner's bytes. A later creator is refused and
  changes nothing.
* A file that was just found missing is found as soon as it is created, by read, stat and list.
* Readers during an overwrite see the old or the new file; later readers see the new file.
* A deleted file is missing for readers and listings, and its name is free.

The test shows faults but cannot exclude them: a store that loses one race in a million passes.
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
"""Older scratch files, left by killed processes, are removed. Ages are measured by the store's own clock."""
REQUESTS = RACES * (RACERS + 5) + OVERWRITES * 4 + 13 + (RACES + 2)
"""Calls to the store in one self-test without failures: writes, reads, listings and clean-up."""

SETTLE_ATTEMPTS_MAX = 8
SETTLE_DELAY_MIN_SECONDS = 0.1
SETTLE_DELAY_MAX_SECONDS = 2.0
_SIZE_MAX = 1 << 20

_proved: set[str] = set()


async def prove_once(storage: Storage, where: str) -> None:
    """Run `prove` and compare the clocks, unless this process has already done both for `where`.

    `where` holds all that decides which store answers: URL and endpoint. Drivers call this function from
    `Storage.prove`. Raises the errors of `prove`, and Denied for a refused write, with a hint what to allow.
    """
    if where in _proved:
        return
    clock = SystemClock()
    try:
        offset = await prove(storage, RandomIdentities(clock), clock)
    except Denied as error:
        raise Denied(
            f"{storage.url} cannot be written with these credentials: {error.message}",
            hint="allow writing and deleting below the prefix, or only read; where deleting is denied on purpose, and"
            " for a daemon that only reads, add self_test=false to the URL",
            path=error.path,
        ) from error
    refuse_skew(storage.url, offset)
    _proved.add(where)


async def check_clock(storage: Storage, path: str) -> None:
    """Raise InvalidInput (`clock_skew`) when the store's clock is so far from ours that nothing may be written.

    Wrong times of versions would mislead time travel and expiry. Before refusing, ask the store once more with a
    `stat` of `path`: the store's last answer may be older than a correction of the clock or a sleep of the machine.
    """
    offset = storage.clock_offset_millis
    if offset is not None and abs(offset) > CLOCK_SKEW_MILLIS_MAX:
        await storage.stat(path)
        refuse_skew(storage.url, storage.clock_offset_millis or 0)


def refuse_skew(url: str, offset_millis: int) -> None:
    """Raise InvalidInput (`clock_skew`) when the store's clock is too far from ours. `offset_millis` is positive when
    the store's clock is ahead."""
    if abs(offset_millis) > CLOCK_SKEW_MILLIS_MAX:
        side = "ahead of" if offset_millis < 0 else "behind"
        raise InvalidInput(
            f"this machine's clock is {abs(offset_millis) // 1000} s {side} that of {url}",
            kind="clock_skew",
            hint=f"set the clock; a writer's clock may be up to {CLOCK_SKEW_MILLIS_MAX // 1000} s off",
        )


def forget_proofs() -> None:
    """Forget which stores were tested, so that each is tested again. For tests."""
    _proved.clear()


async def prove(storage: Storage, identities: Identities, clock: Clock) -> int:
    """Test `storage` in a scratch folder, and remove all scratch files (a killed or cancelled process leaves them).

    Return the store's time minus the time of `clock` in milliseconds. The time of a scratch file bounds the offset; the
    result is the value within the bounds that is nearest to 0. Makes `REQUESTS` calls, at most `RACERS` concurrently.

    Raises InvalidInput (`storage_unsuitable`), which names the store's fault; Unavailable when the store cannot be
    tested now; and Denied and NotFound as the store raises them.
    """
    proof = _Proof(storage, clock, f"{SCRATCH_FOLDER}{identities.uuid4()}/")
    try:
        await proof.run()
    except Exception:
        # The first error counts. A store that failed the test may also fail to delete.
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
        """Makes 5 calls besides the racers' calls."""
        offers = [f"{path} offer {number} ".encode() * 64 for number in range(RACERS)]
        results = await _run_together(self._offer(path, data) for data in offers)
        winners = [data for data, won in zip(offers, results, strict=True) if won]
        unknown = [data for data, won in zip(offers, results, strict=True) if won is None]
        if len(winners) > 1:
            raise self._unsuitable(
                f"{len(winners)} of {RACERS} racing creators of one file got the answer that they won"
            )
        held = await self._read(path)
        if held is None:
            raise self._unsuitable(
                f"a file that {RACERS} creators raced for is missing"
                + (", although one creator got the answer that it won" if winners else "")
            )
        if held not in (winners or unknown):
            raise self._unsuitable(
                "a file that several creators raced for holds"
                + (" the bytes of a creator that was refused" if held in offers else " mixed bytes")
            )
        for data in (b"a later creator", held):
            if await self._offer(path, data):
                raise self._unsuitable("a create replaced an existing file")
            if await self._read(path) != held:
                raise self._unsuitable("a refused create changed the existing file")

    async def _try_appearance(self, path: str) -> None:
        """Makes 7 calls."""
        if await self._read(path) is not None or await self._stat(path) is not None:
            raise self._unsuitable("a file exists that no program wrote")
        data = b"appears" * 100
        before = self._clock.now_millis()
        if await self._offer(path, data) is False:
            raise self._unsuitable("creating a missing file was refused")
        after = self._clock.now_millis()
        await self._check_found(path, data, "created")
        listed = await self._list(SCRATCH_FOLDER)
        missing = sorted(self._written - listed.keys())
        if missing:
            raise self._unsuitable(f"{len(missing)} of {len(self._written)} written files are not listed")
        # The store's own clock, by the time of the file that was just written.
        now = listed[path].modified_at_millis
        low, high = now - after, now + 999 - before  # many a store has whole seconds
        self.clock_offset_millis = max(low, min(high, 0))
        self._leftovers = [
            info.path
            for info in listed.values()
            if info.path not in self._written and info.modified_at_millis < now - LEFTOVER_AGE_MILLIS_MAX
        ]
        if await self._read(path) != data:
            raise self._unsuitable("a file that was read once cannot be read again")

    async def _try_overwrites(self, path: str) -> None:
        """Makes 1 call, and 4 more for each overwrite."""
        versions = [bytes([65 + number]) * (1000 + 500 * number) for number in range(OVERWRITES + 1)]
        await self._put(path, versions[0])
        for old, new in itertools.pairwise(versions):
            _, *seen = await _run_together((self._put(path, new), self._read(path), self._read(path)))
            if any(data not in (old, new) for data in seen):
                raise self._unsuitable("a reader during an overwrite saw neither the old nor the new file")
            if await self._read(path) != new:
                raise self._unsuitable("an overwritten file still has its old bytes")

    async def _try_deletion(self, path: str) -> None:
        """Makes 5 calls."""
        await self._write_until_known(path, lambda: self._storage.delete(path))
        if await self._read(path) is not None or await self._stat(path) is not None:
            raise self._unsuitable("a deleted file still exists")
        if path in await self._list(self._folder):
            raise self._unsuitable("a deleted file is still listed")
        if await self._offer(path, b"again") is False:
            raise self._unsuitable("the name of a deleted file is still taken")

    async def _check_found(self, path: str, data: bytes, what: str) -> None:
        held, info = await self._read(path), await self._stat(path)
        if held is None or info is None:
            raise self._unsuitable(
                f"a file that was {what} is not found: the store or a cache before it remembers the missing file"
            )
        if held != data or info.size != len(data):
            raise self._unsuitable(f"a file that was {what} has other bytes")

    # --- calls of the store

    async def _offer(self, path: str, data: bytes) -> bool | None:
        """Create the file. Return True for success, False for a refusal, and None for a refusal after an earlier
        attempt that may have succeeded."""
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
                raise  # for example a missing bucket
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
        """Repeat `write` until its outcome is known. Raises Unavailable after `SETTLE_ATTEMPTS_MAX` attempts."""
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
            f"{self._storage.url} could not be tested before the first write: {failure.message}", path=path
        ) from failure

    def _unsuitable(self, what: str) -> InvalidInput:
        return InvalidInput(
            f"{self._storage.url} cannot hold a catalog: {what}",
            kind="storage_unsuitable",
            hint="choose a store with conditional writes (Amazon S3, Google Cloud Storage, Azure, MinIO, versitygw)"
            " or a directory, and put no cache before it; this store would lose commits silently",
        )


async def _run_together(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run all calls concurrently and wait for each of them; then raise the first failure, if any."""
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
