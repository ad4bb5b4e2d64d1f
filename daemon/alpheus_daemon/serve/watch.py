"""Fan-out: every subscriber is a cursor over the shared log, and no subscriber waits for another.

A subscriber is *current* when its next event comes from the ring of encoded events, which all subscribers share. It is
*catching up* when its next event comes from the journal, and so from storage. Its own transport pulls it along, and
only the message that is being sent is held for it. So a slow subscriber costs bounded memory, and delays neither a
commit nor another subscriber. Events that piled up meanwhile come in few messages. Subscribers of one filter at one
position get the same bytes. The service cuts off a subscriber that does not take a message in time, with a resume
token. Progress marks travel in the same stream as events, in order.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec

from alpheus_daemon.telemetry.logs import logger
from alpheus_journal import failpoints
from alpheus_journal.errors import AlpheusError, Corrupt, Exhausted, InvalidInput, Unavailable
from alpheus_journal.model.answers import Event
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.wire import messages as wire
from alpheus_journal.wire.messages import EventsQuery
from alpheus_pb.v1 import service_pb2 as pb

log = logger()

_ENTRY_OVERHEAD_BYTES = 400
"""The memory that an entry of the ring takes besides its frame: key, token, dictionary slot."""


class HeadView(Protocol):
    """The newest version that this process knows."""

    @property
    def version(self) -> int: ...

    @property
    def token(self) -> str: ...


class EventSource(Protocol):
    """The part of the journal that the hub needs."""

    @property
    def head(self) -> HeadView: ...

    async def refresh(self) -> HeadView: ...

    async def wait_beyond(self, version: int) -> None: ...

    async def event(self, version: int, *, details: bool = False) -> Event: ...

    async def verify_after(self, after: int | str | None) -> int: ...

    def check_history(self) -> None: ...


class Delivery(msgspec.Struct, frozen=True):
    """One message for any subscriber of one filter at the message's start.

    It holds a serialized EventsResponse, the position of the stream after it, and its number of events.
    """

    message: bytes
    version: int
    token: str
    events_count: int = 0


class Counts(msgspec.Struct):
    """Counts since the start."""

    messages: int = 0
    events: int = 0
    coalesced_events: int = 0  # events that came in a message with others
    coalesced_messages: int = 0
    shared_messages: int = 0  # messages that had been made for another subscriber
    cut_off: int = 0
    encoded: int = 0


class _Entry(msgspec.Struct, frozen=True):
    """A version as one kind of subscriber sees it: the framed event (empty if there is no match) and the token."""

    frame: bytes
    token: str


class _Kind:
    """All subscribers with the same view: one filter, with or without definitions."""

    def __init__(self, details: bool, filter: EventFilter) -> None:
        self.details = details
        self.filter = filter
        self.subscribers_count = 0
        self.messages: OrderedDict[int, Delivery] = OrderedDict()
        """The messages made last, by the version after which each begins."""


class _Stream:
    """One subscriber: the version that it has reached."""

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor


_RingKey = tuple[int, _Kind]

MESSAGES_KEPT = 8
"""The messages kept for each kind of subscriber, to be shared by subscribers at nearly the same position."""
MESSAGE_KEPT_BYTES_MAX = 64 << 10
WOKEN_AT_ONCE = 32
MADE_AT_ONCE = 8
"""The events encoded before other tasks get a turn."""


class Hub:
    """All event streams of a daemon.

    There are at most `subscribers_max` streams. A message holds at most `batch_count_max` events and `batch_bytes_max`
    bytes (a single event may be larger), and passes over at most `scan_count_max` versions that do not match. The
    encoded events of all streams take `ring_bytes_max`. Idle streams send their position every `heartbeat_seconds`.
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
        self._streams: set[_Stream] = set()
        self._kinds: dict[tuple[bool, EventFilter], _Kind] = {}
        # Events that match as a whole are made once for all filters.
        self._whole = {details: _Kind(details, EventFilter()) for details in (False, True)}
        self._ring: OrderedDict[_RingKey, _Entry] = OrderedDict()
        self._ring_bytes = 0
        # For entries that are being made: the lock, and the number of tasks that hold or await it.
        self._making: dict[_RingKey, tuple[asyncio.Lock, int]] = {}
        # Idle streams, with the time of the next heartbeat of each: in order, as all wait equally long.
        self._waiting: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self.counts = Counts()

    # --- numbers

    @property
    def subscribers_count(self) -> int:
        return len(self._streams)

    @property
    def current_count(self) -> int:
        """The subscribers that have all events, or get them with their next message."""
        near = self._journal.head.version - self._batch_count_max
        return sum(stream.cursor >= near for stream in self._streams)

    @property
    def catching_up_count(self) -> int:
        return self.subscribers_count - self.current_count

    @property
    def lag_versions_max(self) -> int:
        """The lag of the subscriber that is farthest behind."""
        head = self._journal.head.version
        return max((head - stream.cursor for stream in self._streams), default=0)

    @property
    def ring_bytes(self) -> int:
        return self._ring_bytes

    def configure(
        self,
        *,
        subscribers_max: int,
        batch_count_max: int,
        batch_bytes_max: int,
        scan_count_max: int,
        ring_bytes_max: int,
        heartbeat_seconds: float,
    ) -> None:
        """Change the bounds, from the next message of each stream on. Existing streams stay."""
        self._subscribers_max = subscribers_max
        self._batch_count_max = batch_count_max
        self._batch_bytes_max = batch_bytes_max
        self._scan_count_max = scan_count_max
        self._ring_bytes_max = ring_bytes_max
        self._heartbeat_seconds = heartbeat_seconds
        self._trim()

    def look_for_others(self) -> None:
        """Look for versions of other writers from now on, as this daemon is not the sole writer."""
        self._sole_writer = False

    # --- waking

    async def run(self) -> None:
        """Wake idle streams for each new version, until cancelled."""
        seen = self._journal.head.version
        while True:
            await self._journal.wait_beyond(seen)
            seen = self._journal.head.version
            await self._wake()

    def close(self) -> None:
        """End every stream with Unavailable (`shutting_down`), and refuse new streams in the same way."""
        self._closing = True
        while self._waiting:
            self._wake_first()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _wake(self) -> None:
        """Wake all waiting streams, some at a time.

        A thousand messages take tens of milliseconds, and commits and reads get turns in between.
        """
        for number in range(1, len(self._waiting) + 1):
            if not self._waiting:
                return
            self._wake_first()
            if number % WOKEN_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _wake_first(self) -> None:
        waiter = next(iter(self._waiting))
        del self._waiting[waiter]
        if not waiter.done():
            waiter.set_result(None)

    def _wait(self) -> asyncio.Future[None]:
        """Return a future that is done at a new version, at close, or when the heartbeat is due.

        The caller takes it out of `_waiting` afterwards.
        """
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        until = self._waiting[waiter] = loop.time() + self._heartbeat_seconds
        if self._timer is None:
            self._timer = loop.call_at(until, self._beat)
        return waiter

    def _beat(self) -> None:
        """Wake the streams whose heartbeat is due. All streams share one timer."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._waiting:
            until = next(iter(self._waiting.values()))
            if until > now:
                self._timer = loop.call_at(until, self._beat)
                return
            self._wake_first()

    # --- streams

    async def stream(self, query: EventsQuery) -> AsyncGenerator[Delivery, None]:
        """Yield the messages of one subscriber. Each message is made after the one before was taken.

        A stream that begins at the head sends its position immediately. Before the first message, raises as
        `Access.events`. Later, raises Expired when history was collected faster than it was read, InvalidInput
        (`too_large`) for an event that no message can hold, and Unavailable (`shutting_down`).
        """
        self._check_count()
        key = (query.details, query.filter)
        whole = self._whole[query.details]
        kind = whole if query.filter.is_empty else self._kinds.setdefault(key, _Kind(*key))
        stream = _Stream(self._journal.head.version)
        kind.subscribers_count += 1
        self._streams.add(stream)
        try:
            cursor, end = await self._begin(query)
            stream.cursor = cursor
            token = ""
            if cursor == self._journal.head.version:
                token = self._journal.head.token
                await failpoints.reached("watch.progress")
                yield self._count(_delivery([], cursor, token))
            # A thousand of these loops run at every commit, where each layer of generators would cost time.
            while end is None or cursor < end:
                last = self._journal.head.version
                if end is not None and end < last:
                    last = end
                if cursor < last and not self._closing:
                    delivery = kind.messages.get(cursor)
                    if delivery is None or not self._is_whole(delivery, last):
                        delivery = await self._message(kind, cursor, last)
                    else:
                        self.counts.shared_messages += 1
                    stream.cursor = cursor = delivery.version
                    token = delivery.token
                    await failpoints.reached("watch.send" if delivery.events_count else "watch.progress")
                    yield self._count(delivery)
                    continue
                if not self._closing:
                    waiter = self._wait()
                    try:
                        await waiter
                    finally:
                        self._waiting.pop(waiter, None)
                    self._journal.check_history()
                if self._closing:
                    raise _shutting_down(cursor)
                if self._journal.head.version <= cursor:
                    await failpoints.reached("watch.progress")
                    yield self._count(_delivery([], cursor, token))
        finally:
            self._streams.discard(stream)
            kind.subscribers_count -= 1
            if not kind.subscribers_count and self._kinds.get(key) is kind:
                del self._kinds[key]

    def _check_count(self) -> None:
        if len(self._streams) >= self._subscribers_max:
            raise Exhausted(
                f"{len(self._streams)} subscribers are connected already",
                kind="too_many_subscribers",
                retry_after=5.0,
                hint="subscribe at another daemon of this catalog, or raise --subscribers-max",
            )

    async def _begin(self, query: EventsQuery) -> tuple[int, int | None]:
        """Return the version after which a stream begins, and its last version or None."""
        cursor = await self._journal.verify_after(query.after)
        end = query.until
        if not query.follow and (end is None or end > self._journal.head.version):
            # Such a stream ends at the current head, even if `until` is above the head.
            head = self._journal.head if self._sole_writer else await self._journal.refresh()
            end = head.version if end is None else min(end, head.version)
        return cursor, end

    def _is_whole(self, made: Delivery, last: int) -> bool:
        """Return whether an earlier message equals the one that would be made now, up to `last`."""
        return made.version == last or (made.version < last and made.events_count >= self._batch_count_max)

    def _count(self, delivery: Delivery) -> Delivery:
        counts = self.counts
        counts.messages += 1
        counts.events += delivery.events_count
        if delivery.events_count > 1:
            counts.coalesced_messages += 1
            counts.coalesced_events += delivery.events_count
        return delivery

    async def _message(self, kind: _Kind, cursor: int, last: int) -> Delivery:
        """Make the message after `cursor`, at most up to `last` and at least one version long.

        The message is kept for other subscribers at the same position.
        """
        frames, version, token = await self._gather(kind, cursor, last)
        made = kind.messages.get(cursor)
        if made is not None and made.version == version:  # another stream made it while this one waited
            self.counts.shared_messages += 1
            return made
        delivery = _delivery(frames, version, token)
        if kind.subscribers_count > 1 and len(delivery.message) <= MESSAGE_KEPT_BYTES_MAX:
            kind.messages[cursor] = delivery
            if len(kind.messages) > MESSAGES_KEPT:
                kind.messages.popitem(last=False)
        return delivery

    async def _gather(self, kind: _Kind, cursor: int, last: int) -> tuple[list[bytes], int, str]:
        """Return the frames, the version reached, and its token."""
        frames: list[bytes] = []
        size_bytes, token, stop = 0, "", min(last, cursor + self._scan_count_max)
        while cursor < stop and len(frames) < self._batch_count_max:
            try:
                entry = await self._entry(cursor + 1, kind)
            except AlpheusError:
                if not token:
                    raise
                break  # deliver the events before it first; the next attempt fails again or succeeds
            if frames and size_bytes + len(entry.frame) > self._batch_bytes_max:
                break
            cursor, token = cursor + 1, entry.token
            if entry.frame:
                frames.append(entry.frame)
                size_bytes += len(entry.frame)
        return frames, cursor, token

    # --- the ring

    async def _entry(self, version: int, kind: _Kind, event: Event | None = None) -> _Entry:
        """Return a version's entry for one kind of subscriber, from the ring or made once for all that wait for it.

        `event` saves reading the event again.
        """
        key = (version, kind)
        entry = self._ring.get(key)
        if entry is not None:
            return entry
        lock, users = self._making.get(key) or (asyncio.Lock(), 0)
        self._making[key] = (lock, users + 1)
        try:
            async with lock:
                entry = self._ring.get(key)
                if entry is None:
                    entry = await self._make(version, kind, event)
                    self._keep(key, entry)
                return entry
        finally:
            _, users = self._making[key]
            if users == 1:
                del self._making[key]
            else:
                self._making[key] = (lock, users - 1)

    async def _make(self, version: int, kind: _Kind, event: Event | None) -> _Entry:
        if event is None:
            await failpoints.reached("watch.demoted")
            event = await self._journal.event(version, details=kind.details)
        whole = self._whole[kind.details]
        selected = kind.filter.select(event)
        if selected is None:
            return _Entry(b"", event.token)
        if kind is not whole and len(selected.changes) == len(event.changes):
            return await self._entry(version, whole, event)
        self.counts.encoded += 1
        if self.counts.encoded % MADE_AT_ONCE == 0:
            await asyncio.sleep(0)
        return _encode(selected)

    def _keep(self, key: _RingKey, entry: _Entry) -> None:
        size_bytes = len(entry.frame) + _ENTRY_OVERHEAD_BYTES
        if size_bytes > self._ring_bytes_max:
            return
        self._ring[key] = entry
        self._ring_bytes += size_bytes
        self._trim()

    def _trim(self) -> None:
        while self._ring_bytes > self._ring_bytes_max:
            _, oldest = self._ring.popitem(last=False)
            self._ring_bytes -= len(oldest.frame) + _ENTRY_OVERHEAD_BYTES


def _shutting_down(cursor: int) -> Unavailable:
    return Unavailable(
        f"the daemon is shutting down; the stream got to version {cursor}",
        kind="shutting_down",
        hint="resume after this version at another daemon, or at this one when it is back",
    )


def _encode(event: Event) -> _Entry:
    # Serialized messages of one type concatenate, so an event framed as its own response joins with others.
    frame = pb.EventsResponse(events=[wire.encode_event(event)]).SerializeToString()
    if len(frame) > wire.REPLY_BYTES_MAX - 4096:
        raise InvalidInput(
            f"the event of version {event.version} takes {len(frame)} bytes,"
            f" {wire.REPLY_BYTES_MAX - 4096} at most",
            kind="too_large",
            version=event.version,
            hint="subscribe without details, or to fewer names",
        )
    return _Entry(frame, event.token)


def _delivery(frames: list[bytes], version: int, token: str) -> Delivery:
    progress = pb.EventsResponse(progress_version=version, progress_token=token).SerializeToString()
    return Delivery(b"".join([*frames, progress]), version, token, len(frames))


class Poller:
    """Looks for other writers' versions: often while versions arrive, seldom otherwise. One poller serves all."""

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

    def configure(self, *, interval_min_seconds: float, interval_max_seconds: float) -> None:
        """Change the intervals, after the current wait."""
        self._interval_min_seconds = interval_min_seconds
        self._interval_max_seconds = interval_max_seconds

    async def run(self) -> None:
        """Probe until cancelled. Storage that fails is still probed, at the longest interval."""
        interval = self._interval_min_seconds
        while True:
            interval = await self.step(interval)
            # Daemons that started together must not probe together.
            await asyncio.sleep(interval * self._random.uniform(0.8, 1.2))

    async def step(self, interval: float) -> float:
        """Probe once, and return the seconds to wait before the next probe. `interval` was the last wait."""
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
            # A bug. The daemon continues, because reads and commits probe for themselves.
            log.exception("poll_failed")
            return self._interval_max_seconds
        if self._failing:
            log.info("poll_works_again", version=head.version)
        self._failing = False
        if head.version > before:
            return self._interval_min_seconds
        return min(interval * 1.5, self._interval_max_seconds)
