"""Durable subscriptions as entries of the catalog: what a consumer asks for, and the position that it acknowledged.

`alpheus_journal.wire.positions` has the rules of claims and positions. `consumer` waits, claims and follows the log.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import AsyncGenerator, Iterable
from typing import cast

import msgspec

from alpheus.events.events import After, filter_of, parse_after
from alpheus.model_conversions import subscription_of
from alpheus.models import Commit, SubscriptionInfo
from alpheus.session.arguments import Name
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from alpheus_journal.execute.rules.subscriptions import LEASE_MILLIS_MAX, LEASE_MILLIS_MIN
from alpheus_journal.format import Kind
from alpheus_journal.model import answers
from alpheus_journal.model.answers import Position
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import SubscriptionDef
from alpheus_journal.model.operations import CreateSubscription, DropSubscription
from alpheus_journal.urls import redact_input
from alpheus_journal.wire import positions as rules

LATEST = "latest"
"""The value of `after` for events that are committed from now on."""


class SubscriptionTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a consumer asks for. None means that the consumer leaves the value open."""

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
) -> SubscriptionTerms:
    """Return the arguments of `catalog.subscribe` as checked terms. Raises InvalidInput."""
    found = filter_of(namespaces, names, kinds, actions)
    if lease is not None:
        bounds = LEASE_MILLIS_MIN / 1000, LEASE_MILLIS_MAX / 1000
        if (
            isinstance(lease, bool)
            or not isinstance(lease, int | float)
            or not bounds[0] <= lease <= bounds[1]
        ):
            raise InvalidInput(
                f"lease={lease!r} is not a number of seconds from {bounds[0]:g} to {bounds[1]:g}"
            )
    if details is not None and not isinstance(details, bool):
        raise InvalidInput(f"details={details!r} is not True, False or None")
    return SubscriptionTerms(
        namespaces=None if namespaces is None else tuple(sorted(found.namespaces)),
        names=None if names is None else tuple(sorted(found.names)),
        name_patterns=None if names is None else tuple(sorted(found.name_patterns)),
        kinds=None if kinds is None else tuple(sorted(found.kinds)),
        actions=None if actions is None else tuple(sorted(found.actions)),
        details=details,
        lease_millis=None if lease is None else round(lease * 1000),
        after=after if after == LATEST else parse_after(after),
    )


async def load_entry(session: Session, name: str) -> tuple[int, SubscriptionDef]:
    """Return (version, definition) at the head. Raises NotFound (`no_subscription`)."""
    key = fmt.subscription_name(name)
    loaded = await session.load(None, [key])
    stored = loaded.objects[0]
    if stored is None:
        raise no_subscription(name)
    definition = decode_definition(Kind.SUBSCRIPTION, stored.definition, stored.path)
    return loaded.version, cast(SubscriptionDef, definition)


def no_subscription(name: str, reason: str = "") -> NotFound:
    return NotFound(
        f"there is no subscription {name}{reason}",
        kind="no_subscription",
        hint=f"create it with `alpheus subscription create {redact_input(name)}`, or call catalog.subscribe, which"
        " creates a missing subscription",
    )


async def read_positions(session: Session, definition: SubscriptionDef) -> tuple[Position | None, ...]:
    """Read the positions that count for the subscription, newest epoch first. None stands for one not stored yet."""

    async def one(path: str) -> Position | None:
        return await session.call("read a position", lambda: session.access.position(path))

    return tuple([await one(path) for path in rules.position_paths(definition)])


async def _find_begin(session: Session, after: int | str | None) -> tuple[int, int, str]:
    """Return (head, next version, token) of the place where a subscription begins.

    Raises InvalidInput for a position that does not exist, and Expired for one whose history has expired.
    """
    info = await session.info()
    if after == LATEST:
        return info.version, info.version + 1, info.token
    if after is None:
        # The event that made the oldest kept version has expired, unless that is version 0.
        return info.version, info.oldest_version + 1 if info.oldest_version else 0, ""
    token = after if isinstance(after, str) else ""
    version = answers.parse_token(after)[1] if isinstance(after, str) else after
    stream = session.access.events(after=after, until=max(version, 0))  # verifies `after`
    async with contextlib.aclosing(cast("AsyncGenerator[object, None]", stream)) as items:
        async for _ in items:
            break
    return info.version, version + 1, token


async def create(session: Session, name: str, terms: SubscriptionTerms) -> Commit:
    """Create a subscription. Raises AlreadyExists (`subscription_exists`)."""
    head, next_version, token = await _find_begin(session, terms.after)
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


def check_same(name: str, definition: SubscriptionDef, terms: SubscriptionTerms) -> None:
    """Raise InvalidInput that names the first field in which the entry differs from the consumer's terms."""
    for field in ("namespaces", "names", "name_patterns", "kinds", "actions", "details", "lease_millis"):
        asked, there = getattr(terms, field), getattr(definition, field)
        if asked is None or asked == there:
            continue
        texts = [
            [value.label for value in side]
            if field == "kinds"
            else list(side)
            if isinstance(side, tuple)
            else side
            for side in (there, asked)
        ]
        raise InvalidInput(
            f"subscription {name} exists with {field.replace('_', ' ')} {texts[0]!r}; you asked for {texts[1]!r}",
            hint="give the same value, leave the argument out, or use another subscription name",
        )


async def open_entry(session: Session, name: str, terms: SubscriptionTerms) -> SubscriptionDef:
    """Return the entry; create it when it does not exist. Raises InvalidInput when the entry differs from `terms`."""
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
    """The catalog's durable subscriptions. `catalog.subscribe` consumes one of them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list(self, prefix: str = "") -> builtins.list[SubscriptionInfo]:
        """Return the subscriptions whose name begins with `prefix`, in order of names, all at one version."""
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
            found.append(await self._describe(key.name, cast(SubscriptionDef, definition), version))
        return found

    async def _page(self, version: int | None, prefix: str, after: str) -> answers.Page:
        return await self._session.page(
            version, Kind.SUBSCRIPTION, namespace="", prefix=prefix, limit=0, after=after
        )

    async def load(self, name: str) -> SubscriptionInfo:
        """Return one subscription. Raises NotFound (`no_subscription`)."""
        version, definition = await load_entry(self._session, name)
        return await self._describe(name, definition, version)

    async def _describe(self, name: str, definition: SubscriptionDef, version: int) -> SubscriptionInfo:
        found = await read_positions(self._session, definition)
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
        """Create a subscription without consuming it; the arguments are those of `catalog.subscribe`.

        Raises AlreadyExists (`subscription_exists`).
        """
        return await create(
            self._session, name, terms_of(namespaces, names, kinds, actions, details, after, lease)
        )

    async def delete(self, name: str) -> Commit:
        """Delete a subscription. Its consumers end with NotFound (`no_subscription`)."""
        version, _ = await load_entry(self._session, name)
        return await self._session.commit_operation(DropSubscription(name=name), version)

    async def reset(self, name: str, after: After) -> Commit:
        """Move the subscription to another position, earlier or later.

        This is also how to continue when events between have expired. The present consumer ends, and the next one
        begins at the new position. `after="latest"` means events that are committed from now on.
        """
        wanted = after if after == LATEST else parse_after(after)
        _, next_version, token = await _find_begin(self._session, wanted)
        version, definition = await load_entry(self._session, name)
        return await self._session.commit_operation(
            rules.reset(name, definition, next_version, token), version
        )
