"""The common part of all streams (the head, retries, waiting for news), and streams of the catalog's events."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from alpheus.catalog import Catalog, async_of
from alpheus.feed.stream_position import EventTerms, StreamPosition
from alpheus.sync.portal import run
from alpheus_journal.errors import Exhausted, InvalidInput, OutcomeUnknown, Unavailable

T = TypeVar("T")

HOLD_SECONDS = 0.25
"""The time for which a stream with nothing new blocks Spark. The other streams of the same query wait for it."""
IDLE_ADVANCE_SECONDS = 600.0
"""After this time without news an empty batch moves the position to the head, so that the position does not expire."""
RETRY_SECONDS_MAX = 5.0

_log = logging.getLogger(__name__)


class Stream:
    """The head, retries and waiting for news. For one thread, whose calls block."""

    def __init__(
        self,
        catalog: Catalog,
        outage_seconds: float,
        hold_seconds: float,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._catalog = catalog
        self._outage_seconds = outage_seconds
        self._hold_seconds = hold_seconds
        self._monotonic = monotonic
        self._sleep = sleep
        self._watch: _Watch | None = None
        self._until: int | None = None
        self._moved_at = monotonic()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def pin_head(self) -> None:
        """End this run at the present head (AvailableNow): later commits are left to the next run."""
        self._until = self._retry(self._catalog.version)

    def _head(self) -> int:
        return self._catalog.version() if self._until is None else self._until

    def _is_idle(self) -> bool:
        """Return whether the position should move to the head although nothing is new."""
        return self._until is not None or self._monotonic() - self._moved_at > IDLE_ADVANCE_SECONDS

    def _wait_for_news(self, start: StreamPosition, attempt: Callable[[], StreamPosition]) -> StreamPosition:
        """Return `attempt()`. When that is no later than `start`, wait for news, and call `attempt` again if any
        come."""
        end = self._retry(attempt)
        if end == start and self._until is None:
            watch = self._retry(lambda: self._ensure_watch(start.version))
            if watch.wait(self._hold_seconds):
                end = self._retry(attempt)
        if end != start:
            self._moved_at = self._monotonic()
        return end

    def _watched_events(self) -> tuple[str, dict[str, Any]]:
        """Return what to wait for: a name for logs, and arguments of `Catalog.events`."""
        raise NotImplementedError

    def _ensure_watch(self, after: int) -> _Watch:
        """Return the running watch. It is started when first needed, and again when the events to wait for change."""
        name, wanted = self._watched_events()
        if self._watch is not None and self._watch.name != name:
            self._watch.close()
            self._watch = None
        if self._watch is None:
            self._watch = _Watch(self._catalog, name, max(after, 0), wanted)
        return self._watch

    def _retry(self, attempt: Callable[[], T]) -> T:
        """Return `attempt()`, and retry for `outage_seconds` while the catalog is unreachable: an exception would end
        the query."""
        deadline = self._monotonic() + self._outage_seconds
        pause = 0.1
        while True:
            try:
                return attempt()
            except (Unavailable, Exhausted, OutcomeUnknown) as error:
                if self._monotonic() + pause > deadline:
                    raise
                _log.warning("the catalog cannot be reached, the stream waits: %s", error)
            self._sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, RETRY_SECONDS_MAX)


class EventStream(Stream):
    """Plans batches of the catalog's events: ranges of versions."""

    def __init__(
        self,
        catalog: Catalog,
        terms: EventTerms,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        super().__init__(catalog, terms.outage_seconds, hold_seconds, monotonic, sleep)
        self._terms = terms
        self._own_id = ""

    def latest(self, start: StreamPosition, max_versions: int | None) -> StreamPosition:
        """Return the end of the next batch, or `start` when no matching event came within a short wait.

        Raises InvalidInput (`bad_token`) for a position in another catalog.
        """
        self._check_own(start)
        return self._wait_for_news(start, lambda: self._find_end(start, max_versions))

    def head(self) -> StreamPosition:
        return self._position_at(self._retry(self._head))

    def _position_at(self, version: int) -> StreamPosition:
        return StreamPosition(version, catalog_id=self._catalog_id())

    def _catalog_id(self) -> str:
        if not self._own_id:
            self._own_id = self._retry(self._catalog.info).catalog_id
        return self._own_id

    def _check_own(self, position: StreamPosition) -> None:
        if position.catalog_id not in ("", self._catalog_id()):
            raise InvalidInput(
                f"the checkpoint is for events of catalog {position.catalog_id}; {self._catalog.url} is catalog"
                f" {self._own_id}",
                kind="bad_token",
                hint="start the query with a checkpoint of its own",
            )

    def _find_end(self, start: StreamPosition, max_versions: int | None) -> StreamPosition:
        head = self._head()
        after = None if start.is_begin else start.version
        if start.is_begin and self._terms.start is not None:
            begin = head if self._terms.start == "now" else self._catalog.at(self._terms.start).version
            return self._position_at(begin)
        if after is not None and after >= head:
            return start
        seen = 0
        with self._catalog.events(after=after, until=head, **self._terms.filter()) as events:
            for event in events:
                seen += 1
                if max_versions is None:
                    break
                if seen == max_versions:
                    return self._position_at(event.version)
        return self._position_at(head) if seen or self._is_idle() else start

    def plan(self, start: StreamPosition, end: StreamPosition) -> tuple[int | None, int] | None:
        """Return the versions of a batch, (after, until]; None means no events. Raises what `latest` does."""
        self._check_own(end)
        if start == end:
            return None
        after: int | None = start.version
        if start.is_begin:
            # `end` is where the stream begins. With PySpark 4.1, which asks for the head first, it is later than that.
            if self._terms.start == "now":
                return None
            after = None if self._terms.start is None else self._catalog.at(self._terms.start).version
        return None if after is not None and after >= end.version else (after, end.version)

    def _watched_events(self) -> tuple[str, dict[str, Any]]:
        return "the catalog", self._terms.filter()


class _Watch:
    """Follows events on the client's loop, only to notice that there are some."""

    def __init__(self, catalog: Catalog, name: str, after: int, wanted: Mapping[str, Any]) -> None:
        self.name = name
        self._catalog = catalog
        self._news = threading.Event()
        self._task = run(_start_task(self._follow(after, wanted)))

    def wait(self, seconds: float) -> bool:
        """Return whether events came since the last wait, or come within `seconds`."""
        found = self._news.wait(seconds)
        self._news.clear()
        return found

    async def _follow(self, after: int, wanted: Mapping[str, Any]) -> None:
        try:
            async for _ in async_of(self._catalog).events(after=after, follow=True, **wanted):
                self._news.set()
        except Exception as error:
            # Either the next scan meets the same error and raises it, or the error does not matter.
            _log.warning("following the events of %s ended: %s", self.name, error)

    def close(self) -> None:
        run(_stop_task(self._task))


async def _start_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(coroutine, name="stream-events")


async def _stop_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
