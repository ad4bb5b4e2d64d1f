"""Durable subscriptions: consumers that take turns, and what each of them has acknowledged.

The rules are those of `alpheus_journal.wire.positions`; here is the part that waits, claims, follows the log and gives
signs of life. Events come at least once, and within one turn in order.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from typing import Any, Self, cast

import msgspec

from alpheus.closing import AsyncClosing, Closing
from alpheus.events.events import After, filter_of, marked_events, parse_after
from alpheus.models import Commit, Event, SubscriptionInfo, event_of, subscription_of
from alpheus.session.arguments import Name
from alpheus.session.session import Session
from alpheus.sync.portal import run
from alpheus_journal import access
from alpheus_journal import format as fmt
from alpheus_journal.access import EventFilter, Position
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Exhausted,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.execute.subscriptions import LEASE_MILLIS_MAX, LEASE_MILLIS_MIN, superseded
from alpheus_journal.format import Kind
from alpheus_journal.model.definitions import SubscriptionDef, decode_definition
from alpheus_journal.model.operations import CreateSubscription, DropSubscription
from alpheus_journal.urls import typed
from alpheus_journal.wire import positions as rules

LATEST = "latest"
"""As `after`: only what is committed from now on."""


LEAVE_SECONDS_MAX = 5.0
"""For saying that the turn is over."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer says of its subscription. None: not said."""

    namespaces: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    name_patterns: tuple[str, ...] | None = None
    kinds: tuple[Kind, ...] | None = None
    actions: tuple[str, ...] | None = None
    details: bool | None = None
    lease_millis: int | None = None
    after: int | str | None = None


def terms_of(
    namespaces: str | Iterable[str] | None,
    names: Name | Iterable[Name] | None,
    kinds: str | Iterable[str] | None,
    actions: str | Iterable[str] | None,
    details: bool | None,
    after: After,
    lease: float | None,
) -> Terms:
    """Raises InvalidInput."""
    found = filter_of(namespaces, names, kinds, actions)
    if lease is not None:
        bounds = LEASE_MILLIS_MIN / 1000, LEASE_MILLIS_MAX / 1000
        if (
            isinstance(lease, bool)
            or not isinstance(lease, int | float)
            or not bounds[0] <= lease <= bounds[1]
        ):
            raise InvalidInput(f"lease={lease!r}: {bounds[0]:g} to {bounds[1]:g} seconds")
    if details is not None and not isinstance(details, bool):
        raise InvalidInput(f"details={details!r}: True, False or None")
    return Terms(
        namespaces=None if namespaces is None else tuple(sorted(found.namespaces)),
        names=None if names is None else tuple(sorted(found.names)),
        name_patterns=None if names is None else tuple(sorted(found.name_patterns)),
        kinds=None if kinds is None else tuple(sorted(found.kinds)),
        actions=None if actions is None else tuple(sorted(found.actions)),
        details=details,
        lease_millis=None if lease is None else round(lease * 1000),
        after=after if after == LATEST else parse_after(after),
    )


# --- the entry -------------------------------------------------------------------------------------


async def load_entry(session: Session, name: str) -> tuple[int, SubscriptionDef]:
    """(version, definition) at the head. NotFound (`no_subscription`)."""
    key = fmt.subscription_name(name)
    loaded = await session.load(None, [key])
    stored = loaded.objects[0]
    if stored is None:
        raise _no_subscription(name)
    definition = decode_definition(Kind.SUBSCRIPTION, stored.definition, stored.path)
    return loaded.version, cast(SubscriptionDef, definition)


def _no_subscription(name: str, reason: str = "") -> NotFound:
    return NotFound(
        f"there is no subscription {name}{reason}",
        kind="no_subscription",
        hint=f"`alpheus subscription create {typed(name)}` makes it, and so does catalog.subscribe when there is none",
    )


async def _positions(session: Session, definition: SubscriptionDef) -> tuple[Position | None, ...]:
    """What lies at the places that count, newest epoch first."""

    async def one(path: str) -> Position | None:
        return await session.call("read a position", lambda: session.access.position(path))

    return tuple([await one(path) for path in rules.position_paths(definition)])


async def _begin_of(session: Session, after: int | str | None) -> tuple[int, int, str]:
    """(head, next version, token) where a subscription begins. InvalidInput for what is not there, Expired."""
    info = await session.info()
    if after == LATEST:
        return info.version, info.version + 1, info.token
    if after is None:
        # The event of the oldest kept version is gone, unless it is the first of all.
        return info.version, info.oldest_version + 1 if info.oldest_version else 0, ""
    token = after if isinstance(after, str) else ""
    version = access.parse_token(after)[1] if isinstance(after, str) else after
    stream = session.access.events(after=after, until=max(version, 0))  # verified there
    async with contextlib.aclosing(cast("AsyncGenerator[object, None]", stream)) as items:
        async for _ in items:
            break
    return info.version, version + 1, token


async def create(session: Session, name: str, terms: Terms) -> Commit:
    """AlreadyExists (`subscription_exists`)."""
    head, next_version, token = await _begin_of(session, terms.after)
    fmt.check_object_name(fmt.subscription_name(name), session.keys, creating=True)
    operation = CreateSubscription(
        name=name,
        subscription_id=session.identities.uuid4(),
        lease_millis=terms.lease_millis or rules.LEASE_MILLIS_DEFAULT,
        namespaces=terms.namespaces or (),
        names=terms.names or (),
        name_patterns=terms.name_patterns or (),
        kinds=terms.kinds or (),
        actions=terms.actions or (),
        details=bool(terms.details),
        next_version=next_version,
        token=token,
    )
    return await session.commit_operation(operation, head)


def check_same(name: str, definition: SubscriptionDef, terms: Terms) -> None:
    """InvalidInput that names what differs from what the consumer says."""
    for field in ("namespaces", "names", "name_patterns", "kinds", "actions", "details", "lease_millis"):
        asked, there = getattr(terms, field), getattr(definition, field)
        if asked is None or asked == there:
            continue
        told = [
            [value.label for value in side]
            if field == "kinds"
            else list(side)
            if isinstance(side, tuple)
            else side
            for side in (there, asked)
        ]
        raise InvalidInput(
            f"subscription {name} is there with {field.replace('_', ' ')} {told[0]!r}, asked for was {told[1]!r}",
            hint="ask for the same, leave it out, or use another name",
        )


async def open_entry(session: Session, name: str, terms: Terms) -> SubscriptionDef:
    """The entry; created when there is none. InvalidInput when it is not as `terms` say."""
    while True:
        try:
            _, definition = await load_entry(session, name)
        except NotFound:
            try:
                await create(session, name, terms)
            except AlreadyExists:
                pass
            except Conflict as conflict:
                if conflict.kind != "already_exists_now":
                    raise
            continue
        check_same(name, definition, terms)
        return definition


class AsyncSubscriptions:
    """Durable subscriptions as entries of the catalog. `catalog.subscribe` consumes one."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list(self, prefix: str = "") -> builtins.list[SubscriptionInfo]:
        """All of them whose name begins with `prefix`, in order of names, all at one version."""
        names: list[str] = []
        page = await self._page(None, prefix, "")
        version = page.version
        names += page.names
        while page.more and page.names:
            page = await self._page(version, prefix, page.names[-1])
            names += page.names
        keys = [fmt.subscription_name(name) for name in names]
        found = []
        for key, stored in zip(keys, (await self._session.load(version, keys)).objects, strict=True):
            assert stored is not None
            definition = decode_definition(Kind.SUBSCRIPTION, stored.definition, stored.path)
            found.append(await self._described(key.name, cast(SubscriptionDef, definition), version))
        return found

    async def _page(self, version: int | None, prefix: str, after: str) -> access.Page:
        return await self._session.page(
            version, Kind.SUBSCRIPTION, namespace="", prefix=prefix, limit=0, after=after
        )

    async def load(self, name: str) -> SubscriptionInfo:
        """NotFound (`no_subscription`) when it is not there."""
        version, definition = await load_entry(self._session, name)
        return await self._described(name, definition, version)

    async def _described(self, name: str, definition: SubscriptionDef, version: int) -> SubscriptionInfo:
        found = await _positions(self._session, definition)
        next_version, _ = rules.newest(definition, found)
        if definition.position_path and rules.has_left(definition, found[0]):
            definition = msgspec.structs.replace(definition, holder="")
        return subscription_of(fmt.subscription_name(name), definition, next_version, version)

    async def create(
        self,
        name: str,
        namespaces: str | Iterable[str] | None = None,
        names: Name | Iterable[Name] | None = None,
        kinds: str | Iterable[str] | None = None,
        actions: str | Iterable[str] | None = None,
        details: bool | None = None,
        after: After = None,
        lease: float | None = None,
    ) -> Commit:
        """One that nobody consumes yet; arguments as of `catalog.subscribe`. AlreadyExists (`subscription_exists`)."""
        return await create(
            self._session, name, terms_of(namespaces, names, kinds, actions, details, after, lease)
        )

    async def delete(self, name: str) -> Commit:
        """Its consumers end with NotFound (`no_subscription`)."""
        version, _ = await load_entry(self._session, name)
        return await self._session.commit_operation(DropSubscription(name=name), version)

    async def reset(self, name: str, after: After) -> Commit:
        """Go on after another position, back or forth: the way on when history between has expired, too. Whoever
        consumes it ends, and the next consumer begins there. `after="latest"`: with what comes from now on."""
        wanted = after if after == LATEST else parse_after(after)
        _, next_version, token = await _begin_of(self._session, wanted)
        version, definition = await load_entry(self._session, name)
        return await self._session.commit_operation(
            rules.reset(name, definition, next_version, token), version
        )


# --- a consumer ------------------------------------------------------------------------------------


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
        terms: Terms,
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
        self._stream: AsyncGenerator[access.Event | access.Progress, None] | None = None
        self._next: asyncio.Task[access.Event | access.Progress | None] | None = None  # of the stream
        self._signs: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] | None = None  # done when the turn is lost
        self._failure: AlpheusError | None = None
        self._closed = False
        self._turn = asyncio.Lock()
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
        async with self._turn:
            self._check()
            if self._over is None:
                await self._stand_by()
            while True:
                item = await self._item()
                found = await self._taken(item)
                event = None if found is None else event_of(found)
                # Only now: who is cancelled before finds it again, and what cannot be read is not passed over.
                self._next = None
                if event is not None:
                    return event

    async def wait_active(self) -> None:
        """Stand by until it is this consumer's turn."""
        async with self._turn:
            self._check()
            if self._over is None:
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
                raise _no_subscription(self._name, " any more: one that was created later has its name")
            asked_at = self._monotonic()
            found = await _positions(self._session, definition)
            if self._claimed_path and definition.position_path == self._claimed_path:
                if await self._begin(definition, found):
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

    async def _begin(self, definition: SubscriptionDef, found: tuple[Position | None, ...]) -> bool:
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
        self._over = asyncio.get_running_loop().create_future()
        self._signs = asyncio.create_task(self._give_signs(), name=f"signs of {self._name}")
        return True

    async def _give_signs(self) -> None:
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
                self._lose(error)
                return

    def _lose(self, error: AlpheusError) -> None:
        """The turn is over; the iterator and acknowledgements raise this from now on."""
        if self._failure is None:
            self._failure = error
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

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
                self._lose(error)
                raise
            self._written = position.next_version
            self._written_at = self._monotonic()

    # -- events

    async def _item(self) -> access.Event | access.Progress:
        """The next of the stream. A caller that is cancelled loses none."""
        if self._next is None:
            if self._stream is None:
                self._stream = self._follow()
            self._next = asyncio.create_task(_anext(self._stream))
        assert self._over is not None
        waits: list[asyncio.Future[Any]] = [self._next, self._over]
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
            self._lose(error)
            await self._stop()
            raise
        except AlpheusError as error:
            self._lose(error)
            await self._stop()
            raise
        assert item is not None, "a stream that follows does not end"
        return item

    def _follow(self) -> AsyncGenerator[access.Event | access.Progress, None]:
        assert self._definition is not None
        next_version, token = self._position
        also = frozenset({fmt.subscription_name(self._name)})  # to see another's claim
        return marked_events(
            self._session,
            after=token or (next_version - 1 if next_version else None),
            until=None,
            follow=True,
            filter=msgspec.structs.replace(self._filter, also=also),
            details=self._definition.details,
        )

    async def _taken(self, item: access.Event | access.Progress) -> access.Event | None:
        """The event as its reader gets it; None: a mark, or something else."""
        if not self._reached[0] and item.version:
            await self._check_beginning()
        found = None
        if isinstance(item, access.Event):
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
            self._lose(error)
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
                error = _no_subscription(self._name, " any more: one that was created later has its name")
            elif found.position_path != self._definition.position_path:
                error = superseded(self._name, found, mine=f"consume subscription {self._name}")
        if error is not None:
            self._lose(error)
            await self._stop()
            raise error


async def _anext(
    stream: AsyncGenerator[access.Event | access.Progress, None],
) -> access.Event | access.Progress | None:
    return await anext(stream, None)


# --- the synchronous front -------------------------------------------------------------------------


class Subscription(Iterator[Event], Closing):
    """A consumer of a durable subscription: an iterator of events, and a context manager.

    It stands by until it is its turn; leaving the block gives the turn to the next one. What was delivered and not
    acknowledged comes again to whoever is next. When another consumer took over (this one was silent for the lease),
    iterating and acknowledging raise Conflict (`subscription_claimed`), which names it; NotFound (`no_subscription`)
    when the subscription was deleted; Expired when events that were not acknowledged are gone.
    """

    def __init__(self, make: Callable[[], AsyncSubscription]) -> None:
        async def made() -> AsyncSubscription:
            return make()

        self._inner = run(made())
        self._fetched: Event | None = None  # that may not have got to the caller
        self._pid = os.getpid()

    def _core(self) -> AsyncSubscription:
        if self._pid != os.getpid():
            raise InvalidInput(
                "a consumer does not live on in a forked process", hint="subscribe again there"
            )
        return self._inner

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def holder(self) -> str:
        """How this consumer calls itself when it takes its turn."""
        return self._inner.holder

    @property
    def epoch(self) -> int:
        """Of its turn; 0 while it stands by."""
        return self._inner.epoch

    @property
    def position(self) -> int | None:
        """Every event up to it was acknowledged, as far as this consumer knows; None: none, or not its turn."""
        return self._inner.position

    def __enter__(self) -> Self:
        run(self._core()._open())
        return self

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Event:
        self._core()
        event = run(self._fetch())
        self._fetched = None
        return event

    async def _fetch(self) -> Event:
        """What an interrupted call (Ctrl-C) was about to return comes again: passed over, it would count as done with
        the next acknowledgement."""
        if self._fetched is not None:
            self._inner._check()
            return self._fetched
        event = self._fetched = await anext(self._inner)
        return event

    def wait_active(self) -> None:
        """Stand by until it is this consumer's turn."""
        run(self._core().wait_active())

    def acknowledge(self, event: Event) -> None:
        """This event and all before it are done: they do not come again to whoever is next.

        It is stored when this returns. Conflict (`subscription_claimed`) when it is another's turn: nothing was
        stored, and the event comes again there.
        """
        run(self._core().acknowledge(event))

    def close(self) -> None:
        """Leave: the next consumer goes on at once, behind what was acknowledged. Idempotent."""
        if self._pid == os.getpid():
            run(self._inner.close())


class Subscriptions:
    """Durable subscriptions as entries of the catalog. `catalog.subscribe` consumes one."""

    def __init__(self, core: Callable[[], AsyncSubscriptions]) -> None:
        self._core = core

    def list(self, prefix: str = "") -> builtins.list[SubscriptionInfo]:
        """All of them whose name begins with `prefix`, in order of names, all at one version."""
        return run(self._core().list(prefix))

    def load(self, name: str) -> SubscriptionInfo:
        """NotFound (`no_subscription`) when it is not there."""
        return run(self._core().load(name))

    def create(
        self,
        name: str,
        namespaces: str | Iterable[str] | None = None,
        names: Name | Iterable[Name] | None = None,
        kinds: str | Iterable[str] | None = None,
        actions: str | Iterable[str] | None = None,
        details: bool | None = None,
        after: After = None,
        lease: float | None = None,
    ) -> Commit:
        """One that nobody consumes yet; arguments as of `catalog.subscribe`. AlreadyExists (`subscription_exists`)."""
        return run(self._core().create(name, namespaces, names, kinds, actions, details, after, lease))

    def delete(self, name: str) -> Commit:
        """Its consumers end with NotFound (`no_subscription`)."""
        return run(self._core().delete(name))

    def reset(self, name: str, after: After) -> Commit:
        """Go on after another position, back or forth: the way on when history between has expired, too. Whoever
        consumes it ends, and the next consumer begins there. `after="latest"`: with what comes from now on."""
        return run(self._core().reset(name, after))
