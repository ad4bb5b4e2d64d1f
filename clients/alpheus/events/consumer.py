"""A consumer of a durable subscription: it waits for its turn, claims, follows the log and gives signs of life.

Events come at least once, and within one turn in order.
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
from alpheus_journal.execute.subscriptions import superseded_error
from alpheus_journal.model import answers
from alpheus_journal.model.answers import Position
from alpheus_journal.model.definitions import SubscriptionDef
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.wire import positions as rules

LEAVE_SECONDS_MAX = 5.0
"""For saying that the turn is over."""


class AsyncSubscription(AsyncClosing):
    """A consumer of a durable subscription: an asynchronous iterator of events, and a context manager.

    It stands by until it is its turn; leaving the block gives the turn to the next one. What was delivered and not
    acknowledged comes again to whoever is next. When another consumer took over (this one was silent for the lease),
    iterating and acknowledging raise Conflict (`subscription_claimed`), which names it; NotFound (`no_subscription`)
    when the subscription was deleted; Expired when events that were not acknowledged are gone.
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
        self._id = ""  # of the subscription; empty: not looked up yet
        self._definition: SubscriptionDef | None = None  # of the own turn
        self._claimed_path = ""  # of the position that the last claim drew
        self._filter = EventFilter()
        self._stream: AsyncGenerator[answers.Event | answers.Progress, None] | None = None
        self._next: asyncio.Task[answers.Event | answers.Progress | None] | None = None  # of the stream
        self._signs: asyncio.Task[None] | None = None
        self._turn_ended: asyncio.Future[None] | None = None  # done when the turn is lost
        self._failure: AlpheusError | None = None
        self._closed = False
        self._iterating = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._beat = 0
        self._written_at = 0.0
        self._position = (0, "")  # (next version, token) to be acknowledged
        self._written = 0  # next version that the last acknowledgement said
        self._delivered = -1  # version of the last event that was handed out
        self._reached = (0, "")  # (next version, token): how far the stream has been looked at

    @property
    def name(self) -> str:
        return self._name

    @property
    def holder(self) -> str:
        """How this consumer calls itself when it takes its turn."""
        return self._holder

    @property
    def epoch(self) -> int:
        """Of its turn; 0 while it stands by."""
        return self._definition.epoch if self._definition else 0

    @property
    def position(self) -> int | None:
        """Every event up to it was acknowledged, as far as this consumer knows; None: none, or not its turn."""
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
                # Only now: who is cancelled before finds it again, and what cannot be read is not passed over.
                self._next = None
                if event is not None:
                    return event

    async def wait_active(self) -> None:
        """Stand by until it is this consumer's turn."""
        async with self._iterating:
            self._check()
            if self._turn_ended is None:
                await self._stand_by()

    async def acknowledge(self, event: Event) -> None:
        """This event and all before it are done: they do not come again to whoever is next.

        It is stored when this returns. Conflict (`subscription_claimed`) when it is another's turn: nothing was
        stored, and the event comes again there.
        """
        self._check()
        if not isinstance(event, Event) or event.version > self._delivered:
            raise InvalidInput(f"subscription {self._name} did not deliver {event!r:.80}")
        if event.version + 1 > self._position[0]:
            self._position = (event.version + 1, event.token)
        await self._write(at_least=event.version + 1)

    async def close(self) -> None:
        """Leave: the next consumer goes on at once, behind what was acknowledged. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._stop()
        if self._definition is not None and self._failure is None:
            with contextlib.suppress(AlpheusError, TimeoutError):  # then the lease has to run out
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
        """Make sure that the subscription is there and is the one asked for."""
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
            with contextlib.suppress(Conflict, OutcomeUnknown):  # the entry says who has it
                await self._session.commit_operation(mine, version)

    async def _begin_turn(self, definition: SubscriptionDef, found: tuple[Position | None, ...]) -> bool:
        """It is our turn, unless somebody took it meanwhile. `found` was read after the claim: what the epoch before
        acknowledged until then counts."""
        self._definition = definition
        self._position = self._reached = rules.newest(definition, found)
        self._written = 0
        self._beat = 0
        self._delivered = -1
        try:
            await self._write()  # cancelled or failed here: it begins anew with the next call
        except Conflict:
            # Its turn never began: it stands by again.
            self._definition = self._failure = None
            self._claimed_path = ""
            return False
        if self._closed:  # meanwhile; nobody else would give the turn back
            with contextlib.suppress(AlpheusError):
                await self._write(released=True)
            self._check()
        self._filter = rules.filter_of(definition)
        self._turn_ended = asyncio.get_running_loop().create_future()
        self._signs = asyncio.create_task(self._send_signs(), name=f"signs of {self._name}")
        return True

    async def _send_signs(self) -> None:
        """Write the position so often that nobody takes this consumer for gone."""
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
                pause = interval / 4  # whoever reads events is told in his own time
            except AlpheusError as error:
                self._end_turn(error)
                return

    def _end_turn(self, error: AlpheusError) -> None:
        """The turn is over; the iterator and acknowledgements raise this from now on."""
        if self._failure is None:
            self._failure = error
        if self._turn_ended is not None and not self._turn_ended.done():
            self._turn_ended.set_result(None)

    async def _stop(self) -> None:
        tasks = [task for task in (self._signs, self._next) if task is not None]
        self._signs = self._next = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    async def _write(self, *, at_least: int = 0, released: bool = False) -> None:
        """Store how far this epoch is, and by that a sign of life. Nothing when `at_least` is stored already."""
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            if at_least and self._written >= at_least:
                return
            if self._delivered < self._position[0] < self._reached[0]:
                self._position = self._reached  # nothing is open: what did not match counts as done
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
        """The next of the stream. A caller that is cancelled loses none."""
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
        self._check()  # it may have been closed meanwhile, and what it waited for cancelled
        try:
            item = self._next.result()
        except Expired as error:
            error.hint = (
                f"the oldest version that is kept is {error.oldest}: read the catalog there, then"
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
        also = frozenset({fmt.subscription_name(self._name)})  # to see another's claim
        return events_with_progress(
            self._session,
            after=token or (next_version - 1 if next_version else None),
            until=None,
            follow=True,
            filter=msgspec.structs.replace(self._filter, also=also),
            details=self._definition.details,
        )

    async def _take_item(self, item: answers.Event | answers.Progress) -> answers.Event | None:
        """The event as its reader gets it; None: a mark, or something else."""
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
        """All that was kept was asked for: whether that began with version 0. Asked after the stream was, so that
        nothing can have gone in between."""
        info = await self._session.info()
        if info.oldest_version:
            error = Expired(
                f"subscription {self._name} begins with version 0, which has expired;"
                f" the oldest that is kept is {info.oldest_version}",
                oldest=info.oldest_version,
                hint=f"admin.subscriptions.reset({self._name!r}, after={info.oldest_version})",
            )
            self._end_turn(error)
            raise error

    async def _check_turn(self) -> None:
        """Somebody changed the entry."""
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
    """Raises what ended the consumer, if anything did."""
    consumer._check()


async def _anext(
    stream: AsyncGenerator[answers.Event | answers.Progress, None],
) -> answers.Event | answers.Progress | None:
    return await anext(stream, None)
