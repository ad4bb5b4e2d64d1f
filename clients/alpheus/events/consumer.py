"""A consumer of a durable subscription: it waits for its turn, claims the subscription, follows the log and writes
signs of life.

Each event is delivered at least once. Within one turn, events are delivered in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Self

import msgspec

from alpheus.closing import AsyncClosing
from alpheus.events.events import events_with_progress
from alpheus.events.subscriptions import (
    SubscriptionTerms,
    load_entry,
    no_subscription,
    open_entry,
    read_positions,
)
from alpheus.model_conversions import event_of
from alpheus.models import Event
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.errors import (
    AlpheusError,
    Conflict,
    Exhausted,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.execute.rules.subscriptions import superseded_error
from alpheus_journal.model import answers
from alpheus_journal.model.answers import Position
from alpheus_journal.model.definitions import SubscriptionDef
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.wire import positions as rules

LEAVE_SECONDS_MAX = 5.0
"""The longest time that `close` tries to release the turn."""


class AsyncSubscription(AsyncClosing):
    """A consumer of a durable subscription: an asynchronous iterator of events, and a context manager.

    The consumer stands by until it is its turn, and leaving the block gives the turn to the next consumer. Events that
    were delivered but not acknowledged are delivered again in the next turn. Iterating and acknowledging raise

    - Conflict (`subscription_claimed`), which names the other consumer, when another consumer took over because this
      one was silent for the lease;
    - NotFound (`no_subscription`) when the subscription was deleted;
    - Expired when events that were not acknowledged have expired.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        terms: SubscriptionTerms,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._session = session
        self._name = name
        self._terms = terms
        self._monotonic = monotonic
        self._sleep = sleep
        self._holder = f"{session.principal[:200]}, process {os.getpid()}, {session.identities.uuid4()[:8]}"
        self._id = ""  # the subscription's id; empty until it is looked up
        self._definition: SubscriptionDef | None = (
            None  # the entry as this consumer claimed it, during its turn
        )
        self._claimed_path = ""  # path of the position that the last claim chose
        self._filter = EventFilter()
        self._stream: AsyncGenerator[answers.Event | answers.Progress, None] | None = None
        self._next: asyncio.Task[answers.Event | answers.Progress | None] | None = (
            None  # reads the stream's next item
        )
        self._sign_task: asyncio.Task[None] | None = None
        self._turn_ended: asyncio.Future[None] | None = (
            None  # done when the turn is lost; None before it begins
        )
        self._failure: AlpheusError | None = None
        self._closed = False
        self._iterating = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._beat = 0
        self._written_at = 0.0
        self._position = (0, "")  # (next version, token) that the next acknowledgement stores
        self._written = 0  # next version that the last acknowledgement stored
        self._delivered = -1  # version of the last event that the reader got
        self._reached = (0, "")  # (next version, token): how far the stream has been read

    @property
    def name(self) -> str:
        return self._name

    @property
    def holder(self) -> str:
        """The name that this consumer writes into the entry when it takes its turn."""
        return self._holder

    @property
    def epoch(self) -> int:
        """The epoch of this consumer's turn; 0 while the consumer stands by."""
        return self._definition.epoch if self._definition else 0

    @property
    def position(self) -> int | None:
        """The version up to which every event was acknowledged, as far as this consumer knows. None means that no event
        was, or that it is not this consumer's turn."""
        return self._position[0] - 1 if self._definition and self._position[0] else None

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    def __aiter__(self) -> AsyncSubscription:
        return self

    async def __anext__(self) -> Event:
        async with self._iterating:
            self._check()
            if self._turn_ended is None:
                await self._stand_by()
            while True:
                item = await self._next_item()
                found = await self._take_item(item)
                event = None if found is None else event_of(found)
                # Forget the item only now: a caller cancelled earlier gets it next time, and an item that cannot be
                # decoded is not skipped.
                self._next = None
                if event is not None:
                    return event

    async def wait_active(self) -> None:
        """Return once it is this consumer's turn."""
        async with self._iterating:
            self._check()
            if self._turn_ended is None:
                await self._stand_by()

    async def acknowledge(self, event: Event) -> None:
        """Store that this event and all before it are done, so that the next consumer does not get them again.

        The acknowledgement is stored when this returns. Raises Conflict (`subscription_claimed`) when it is another
        consumer's turn: nothing was stored, and that consumer gets the event again.
        """
        self._check()
        if not isinstance(event, Event) or event.version > self._delivered:
            raise InvalidInput(f"subscription {self._name} did not deliver {event!r:.80}")
        if event.version + 1 > self._position[0]:
            self._position = (event.version + 1, event.token)
        await self._write(at_least=event.version + 1)

    async def close(self) -> None:
        """Give up the turn. The next consumer continues immediately, behind the last acknowledged event. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._stop()
        if self._definition is not None and self._failure is None:
            with contextlib.suppress(
                AlpheusError, TimeoutError
            ):  # the next consumer then waits for the lease to end
                async with asyncio.timeout(LEAVE_SECONDS_MAX):
                    await self._write(released=True)

    # -- the turn

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise InvalidInput(
                f"the consumer of subscription {self._name} was closed", hint="subscribe again"
            )

    async def _open(self) -> None:
        """Make sure that the subscription exists and has the terms that this consumer asks for."""
        self._check()
        definition = await open_entry(self._session, self._name, self._terms)
        self._id = definition.id

    async def _stand_by(self) -> None:
        """Wait for the turn and take it."""
        if not self._id:
            await self._open()
        watch = rules.StandBy(self._monotonic)
        while True:
            version, definition = await load_entry(self._session, self._name)
            if definition.id != self._id:
                raise no_subscription(self._name, " any more: one that was created later has its name")
            asked_at = self._monotonic()
            found = await read_positions(self._session, definition)
            if self._claimed_path and definition.position_path == self._claimed_path:
                if await self._begin_turn(definition, found):
                    return
                continue
            self._check()
            current = found[0] if definition.position_path else None
            wait = watch.wait_seconds(definition, current, asked_at)
            if wait:
                await self._sleep(wait)
                continue
            path = fmt.position_path(self._session.identities.uuid4())
            mine = rules.claim(self._name, definition, found, holder=self._holder, position_path=path)
            self._claimed_path = path
            with contextlib.suppress(
                Conflict, OutcomeUnknown
            ):  # the next round reads from the entry who has the turn
                await self._session.commit_operation(mine, version)

    async def _begin_turn(self, definition: SubscriptionDef, found: tuple[Position | None, ...]) -> bool:
        """Begin the turn. Return False when another consumer has claimed the subscription meanwhile.

        `found` was read after the claim, so acknowledgements of the previous epoch count up to that moment.
        """
        self._definition = definition
        self._position = self._reached = rules.newest(definition, found)
        self._written = 0
        self._beat = 0
        self._delivered = -1
        try:
            await self._write()  # after a cancellation or a failure here the next call begins the turn again
        except Conflict:
            # The turn never began: stand by again.
            self._definition = self._failure = None
            self._claimed_path = ""
            return False
        if self._closed:  # `close` ran meanwhile, and only this call can give the turn back
            with contextlib.suppress(AlpheusError):
                await self._write(released=True)
            self._check()
        self._filter = rules.filter_of(definition)
        self._turn_ended = asyncio.get_running_loop().create_future()
        self._sign_task = asyncio.create_task(self._send_signs(), name=f"signs of {self._name}")
        return True

    async def _send_signs(self) -> None:
        """Write the position often enough that no other consumer believes this one dead."""
        assert self._definition is not None
        interval = self._definition.lease_millis / 1000 / rules.SIGNS_IN_LEASE
        pause = interval
        while True:
            await self._sleep(pause)
            quiet = self._monotonic() - self._written_at
            if quiet < interval / 2:  # an acknowledgement was a sign
                pause = interval - quiet
                continue
            try:
                await self._write()
                pause = interval
            except (Unavailable, Exhausted, OutcomeUnknown):
                pause = interval / 4  # the reader meets the outage itself when it reads or acknowledges
            except AlpheusError as error:
                self._end_turn(error)
                return

    def _end_turn(self, error: AlpheusError) -> None:
        """End the turn. The iterator and acknowledgements raise `error` from now on."""
        if self._failure is None:
            self._failure = error
        if self._turn_ended is not None and not self._turn_ended.done():
            self._turn_ended.set_result(None)

    async def _stop(self) -> None:
        tasks = [task for task in (self._sign_task, self._next) if task is not None]
        self._sign_task = self._next = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    async def _write(self, *, at_least: int = 0, released: bool = False) -> None:
        """Store how far this epoch is, which is also a sign of life. Do nothing when `at_least` is stored already."""
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            if at_least and self._written >= at_least:
                return
            if self._delivered < self._position[0] < self._reached[0]:
                self._position = (
                    self._reached
                )  # every delivered event is acknowledged: events read past count as done
            assert self._definition is not None
            self._beat += 1
            position = Position(
                subscription_id=self._definition.id,
                epoch=self._definition.epoch,
                beat=self._beat,
                next_version=self._position[0],
                token=self._position[1],
                released=released,
            )
            path = self._definition.position_path
            try:
                await self._session.call(
                    "acknowledge", lambda: self._session.access.acknowledge(self._name, path, position)
                )
            except (Conflict, NotFound) as error:
                self._end_turn(error)
                raise
            self._written = position.next_version
            self._written_at = self._monotonic()

    # -- events

    async def _next_item(self) -> answers.Event | answers.Progress:
        """Return the stream's next item. When the caller is cancelled, the next call returns the same item."""
        if self._next is None:
            if self._stream is None:
                self._stream = self._follow()
            self._next = asyncio.create_task(_anext(self._stream))
        assert self._turn_ended is not None
        waits: list[asyncio.Future[Any]] = [self._next, self._turn_ended]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if self._failure is not None:
            await self._stop()
            raise self._failure
        self._check()  # `close` may have run meanwhile and cancelled the task
        try:
            item = self._next.result()
        except Expired as error:
            error.hint = (
                f"read the catalog at version {error.oldest}, the oldest that is kept, then call"
                f" admin.subscriptions.reset({self._name!r}, after={error.oldest})"
            )
            self._end_turn(error)
            await self._stop()
            raise
        except AlpheusError as error:
            self._end_turn(error)
            await self._stop()
            raise
        assert item is not None, "a stream that follows does not end"
        return item

    def _follow(self) -> AsyncGenerator[answers.Event | answers.Progress, None]:
        assert self._definition is not None
        next_version, token = self._position
        also = frozenset({fmt.subscription_name(self._name)})  # to notice the claim of another consumer
        return events_with_progress(
            self._session,
            after=token or (next_version - 1 if next_version else None),
            until=None,
            follow=True,
            filter=msgspec.structs.replace(self._filter, also=also),
            details=self._definition.details,
        )

    async def _take_item(self, item: answers.Event | answers.Progress) -> answers.Event | None:
        """Return the event that the reader gets, or None when the item is a mark or does not match the filter."""
        if not self._reached[0] and item.version:
            await self._check_beginning()
        found = None
        if isinstance(item, answers.Event):
            own = fmt.subscription_name(self._name)
            if any(change.name == own for change in item.changes):
                await self._check_turn()
            found = self._filter.select(item)
        if found is not None:
            self._delivered = found.version
        self._reached = (item.version + 1, item.token)
        return found

    async def _check_beginning(self) -> None:
        """Raise Expired unless the events from version 0 on are kept, which this subscription begins with.

        Call this after the stream has yielded its first item, so that no event can expire between the two.
        """
        info = await self._session.info()
        if info.oldest_version:
            error = Expired(
                f"subscription {self._name} begins with version 0, which has expired;"
                f" the oldest version that is kept is {info.oldest_version}",
                oldest=info.oldest_version,
                hint=f"call admin.subscriptions.reset({self._name!r}, after={info.oldest_version})",
            )
            self._end_turn(error)
            raise error

    async def _check_turn(self) -> None:
        """Raise, and end the turn, when a change of the entry took the turn from this consumer."""
        assert self._definition is not None
        error: AlpheusError | None = None
        try:
            _, found = await load_entry(self._session, self._name)
        except NotFound as missing:
            error = missing
        else:
            if found.id != self._definition.id:
                error = no_subscription(self._name, " any more: one that was created later has its name")
            elif found.position_path != self._definition.position_path:
                error = superseded_error(self._name, found, mine=f"consume subscription {self._name}")
        if error is not None:
            self._end_turn(error)
            await self._stop()
            raise error


def check_running(consumer: AsyncSubscription) -> None:
    """Raise the error that ended the consumer, if one did."""
    consumer._check()


async def _anext(
    stream: AsyncGenerator[answers.Event | answers.Progress, None],
) -> answers.Event | answers.Progress | None:
    return await anext(stream, None)
