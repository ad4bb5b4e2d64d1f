"""Fan-out: every subscriber is a cursor over the shared log, and nobody waits for anybody.

A subscriber is *current* (its next event comes from the ring of encoded events that all share) or *catching
up* (it comes from the journal, thus from storage). It is pulled along by its own transport: nothing is queued
for it but the one message that it is being sent, so that it costs bounded memory however slow it is, and
delays neither a commit nor another subscriber. Who does not take a message in time is cut off by the service,
with a token to go on from. Progress marks travel in the same stream as events, in order.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Protocol

import msgspec

from alpheus_daemon.telemetry import logger
from alpheus_journal import failpoints, wire
from alpheus_journal.access import Event, EventFilter
from alpheus_journal.errors import AlpheusError, Corrupt, Exhausted, InvalidInput, Unavailable
from alpheus_journal.wire import EventsQuery
from alpheus_pb.v1 import service_pb2 as pb

log = logger()

_ENTRY_OVERHEAD_BYTES = 400
"""Of an entry of the ring beside its frame: key, token, dictionary slot."""


class HeadView(Protocol):
    """The newest version that this process knows."""

    @property
    def version(self) -> int: ...

    @property
    def token(self) -> str: ...


class EventSource(Protocol):
    """What the hub needs of the journal."""

    @property
    def head(self) -> HeadView: ...

    async def refresh(self) -> HeadView: ...

    async def wait_beyond(self, version: int) -> None: ...

    async def event(self, version: int, *, details: bool = False) -> Event: ...

    async def verify_after(self, after: int | str | None) -> int: ...

    def check_history(self) -> None: ...


class Delivery(msgspec.Struct, frozen=True):
    """One message for one subscriber: a serialized EventsResponse, and where the stream is after it."""

    message: bytes
    version: int
    token: str


class _Entry(msgspec.Struct, frozen=True):
    """A version as one kind of subscriber sees it: framed event (empty: it does not match) and token."""

    frame: bytes
    token: str


_Key = tuple[int, bool, EventFilter]


class Hub:
    """All event streams of a daemon.

    Bounds: `subscribers_max` streams; a message holds `batch_count_max` events and `batch_bytes_max` bytes
    (one event may be larger), and follows at most `scan_count_max` versions that did not match; encoded
    events of all take `ring_bytes_max`. Idle streams say where they are every `heartbeat_seconds`.
    """

    def __init__(
        self,
        journal: EventSource,
        *,
        subscribers_max: int,
        batch_count_max: int,
        batch_bytes_max: int,
        scan_count_max: int,
        ring_bytes_max: int,
        heartbeat_seconds: float,
        sole_writer: bool = False,
    ) -> None:
        self._journal = journal
        self._subscribers_max = subscribers_max
        self._batch_count_max = batch_count_max
        self._batch_bytes_max = batch_bytes_max
        self._scan_count_max = scan_count_max
        self._ring_bytes_max = ring_bytes_max
        self._heartbeat_seconds = heartbeat_seconds
        self._sole_writer = sole_writer
        self._subscribers_count = 0
        self._ring: OrderedDict[_Key, _Entry] = OrderedDict()
        self._ring_bytes = 0
        # Of the entries being made: the lock, and how many hold or await it.
        self._making: dict[_Key, tuple[asyncio.Lock, int]] = {}
        self._moved = asyncio.Event()
        self._closing = False

    @property
    def subscribers_count(self) -> int:
        return self._subscribers_count

    @property
    def ring_bytes(self) -> int:
        return self._ring_bytes

    # --- waking

    async def run(self) -> None:
        """Wake idle streams for each new version, until cancelled."""
        seen = self._journal.head.version
        while True:
            await self._journal.wait_beyond(seen)
            seen = self._journal.head.version
            self._wake()

    def close(self) -> None:
        """End every stream with Unavailable (`shutting_down`), and refuse new ones so."""
        self._closing = True
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def _idle(self, version: int) -> None:
        """Return when the head is above `version`, at close, or after the heartbeat's time."""
        moved = self._moved
        if self._journal.head.version > version or self._closing:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._heartbeat_seconds):
                await moved.wait()

    # --- streams

    async def stream(self, query: EventsQuery) -> AsyncGenerator[Delivery, None]:
        """The messages of one subscriber; each is made when the one before it was taken.

        A stream that begins at the head says so at once. Raises what `Access.events` raises before the first;
        later Expired when history was collected faster than it was read, InvalidInput (`too_large`) for an
        event that no message can hold, Unavailable (`shutting_down`).
        """
        if self._subscribers_count >= self._subscribers_max:
            raise Exhausted(
                f"{self._subscribers_count} subscribers are connected already",
                kind="too_many_subscribers",
                retry_after=5.0,
                hint="subscribe at another daemon of this catalog, or raise --subscribers-max",
            )
        self._subscribers_count += 1
        try:
            async with aclosing(self._follow(query)) as deliveries:
                async for delivery in deliveries:
                    yield delivery
        finally:
            self._subscribers_count -= 1

    async def _follow(self, query: EventsQuery) -> AsyncGenerator[Delivery, None]:
        cursor = await self._journal.verify_after(query.after)
        end = query.until
        if not query.follow and (end is None or end > self._journal.head.version):
            # It ends at the head of now, also when `until` lies above it.
            head = self._journal.head if self._sole_writer else await self._journal.refresh()
            end = head.version if end is None else min(end, head.version)
        token = ""
        if cursor == self._journal.head.version:
            token = self._journal.head.token
            await failpoints.reached("watch.progress")
            yield _delivery([], cursor, token)
        while end is None or cursor < end:
            if self._closing:
                raise Unavailable(
                    f"the daemon is shutting down; the stream got to version {cursor}",
                    kind="shutting_down",
                    hint="go on after it at another daemon, or at this one when it is back",
                )
            last = self._journal.head.version if end is None else min(end, self._journal.head.version)
            if cursor < last:
                frames, cursor, token = await self._gather(query, cursor, last)
                await failpoints.reached("watch.send" if frames else "watch.progress")
                yield _delivery(frames, cursor, token)
                continue
            await self._idle(cursor)
            self._journal.check_history()
            if self._journal.head.version <= cursor and not self._closing:
                await failpoints.reached("watch.progress")
                yield _delivery([], cursor, token)

    async def _gather(self, query: EventsQuery, cursor: int, last: int) -> tuple[list[bytes], int, str]:
        """(frames, version reached, its token): what comes after `cursor` up to `last`, at least a version."""
        frames: list[bytes] = []
        size_bytes, token, stop = 0, "", min(last, cursor + self._scan_count_max)
        while cursor < stop and len(frames) < self._batch_count_max:
            try:
                entry = await self._entry(cursor + 1, query)
            except AlpheusError:
                if not token:
                    raise
                break  # what comes before it is delivered first; then it fails again, or has recovered
            if frames and size_bytes + len(entry.frame) > self._batch_bytes_max:
                break
            cursor, token = cursor + 1, entry.token
            if entry.frame:
                frames.append(entry.frame)
                size_bytes += len(entry.frame)
        return frames, cursor, token

    # --- the ring

    async def _entry(self, version: int, query: EventsQuery) -> _Entry:
        """A version for subscribers of one filter: from the ring, or made once for all who wait for it."""
        key = (version, query.details, query.filter)
        entry = self._ring.get(key)
        if entry is not None:
            return entry
        lock, users = self._making.get(key) or (asyncio.Lock(), 0)
        self._making[key] = (lock, users + 1)
        try:
            async with lock:
                entry = self._ring.get(key)
                if entry is None:
                    await failpoints.reached("watch.demoted")
                    event = await self._journal.event(version, details=query.details)
                    entry = _encode(event, query.filter)
                    self._keep(key, entry)
                return entry
        finally:
            _, users = self._making[key]
            if users == 1:
                del self._making[key]
            else:
                self._making[key] = (lock, users - 1)

    def _keep(self, key: _Key, entry: _Entry) -> None:
        size_bytes = len(entry.frame) + _ENTRY_OVERHEAD_BYTES
        if size_bytes > self._ring_bytes_max:
            return
        self._ring[key] = entry
        self._ring_bytes += size_bytes
        while self._ring_bytes > self._ring_bytes_max:
            _, oldest = self._ring.popitem(last=False)
            self._ring_bytes -= len(oldest.frame) + _ENTRY_OVERHEAD_BYTES


def _encode(event: Event, filter: EventFilter) -> _Entry:
    selected = filter.select(event)
    if selected is None:
        return _Entry(b"", event.token)
    # Serialized messages of one type concatenate: an event framed as a response of its own joins with others.
    frame = pb.EventsResponse(events=[wire.encode_event(selected)]).SerializeToString()
    if len(frame) > wire.REPLY_BYTES_MAX - 4096:
        raise InvalidInput(
            f"the event of version {event.version} takes {len(frame)} bytes,"
            f" {wire.REPLY_BYTES_MAX - 4096} at most",
            kind="too_large",
            version=event.version,
            hint="ask without details, or for fewer names",
        )
    return _Entry(frame, event.token)


def _delivery(frames: list[bytes], version: int, token: str) -> Delivery:
    progress = pb.EventsResponse(progress_version=version, progress_token=token).SerializeToString()
    return Delivery(b"".join([*frames, progress]), version, token)


class Poller:
    """Looks for other writers' versions: often while they come, seldom while none do. One for all
    subscribers.
    """

    def __init__(
        self,
        journal: EventSource,
        *,
        interval_min_seconds: float,
        interval_max_seconds: float,
        randomness: random.Random | None = None,
    ) -> None:
        self._journal = journal
        self._interval_min_seconds = interval_min_seconds
        self._interval_max_seconds = interval_max_seconds
        self._random = randomness or random.Random()
        self._failing = False

    async def run(self) -> None:
        """Probe until cancelled. Storage that fails is probed on, at the longest interval."""
        interval = self._interval_min_seconds
        while True:
            interval = await self.step(interval)
            # Daemons started together shall not probe together.
            await asyncio.sleep(interval * self._random.uniform(0.8, 1.2))

    async def step(self, interval: float) -> float:
        """One probe; the seconds to wait before the next, `interval` having been the last wait."""
        before = self._journal.head.version
        try:
            head = await self._journal.refresh()
        except AlpheusError as error:
            if not self._failing:
                level = log.error if isinstance(error, Corrupt) else log.warning
                level("poll_failed", kind=error.kind, error=str(error))
            self._failing = True
            return self._interval_max_seconds
        except Exception:
            # A bug; reads and commits look for themselves, so the daemon goes on.
            log.exception("poll_failed")
            return self._interval_max_seconds
        if self._failing:
            log.info("poll_works_again", version=head.version)
        self._failing = False
        if head.version > before:
            return self._interval_min_seconds
        return min(interval * 1.5, self._interval_max_seconds)
