"""The log as a client reads it: events that resume by themselves, and recorded transactions.

A stream may break at any moment (a daemon restarts, a slow reader is cut off, storage hiccups). It goes on
after the last version that was delivered, so that the reader sees no gap and nothing twice.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import TypeVar, cast

from alpheus.model_conversions import change_of, dropped_of, event_of, log_entry_of, saved_of
from alpheus.models import (
    Change,
    CheckReport,
    Dropped,
    Event,
    Finding,
    LogEntry,
    SavedTransaction,
    TableName,
    ViewName,
)
from alpheus.session.arguments import AnyName, Name, any_name, parse_name, several, words
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.check.catalog import check_storage
from alpheus_journal.errors import AlpheusError, InvalidInput, Unavailable
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model import answers
from alpheus_journal.model.answers import At
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.model.operations import READ_TYPES
from alpheus_journal.storage import open_storage
from alpheus_pb.v1 import actions_pb2

T = TypeVar("T")

After = int | str | None
"""A position in the log: the last version already seen, an `Event.token`, or None: all that is kept."""


def parse_after(after: After) -> int | str | None:
    """A version or a token. InvalidInput (`bad_version`, `bad_token`) for what is neither."""
    if after is None:
        return None
    if isinstance(after, str):
        if after.isascii() and after.removeprefix("-").isdecimal():
            return _check_version("after", int(after))
        answers.parse_token(after)
        return after
    return _check_version("after", after)


def parse_bound(what: str, version: int | None) -> int | None:
    """A version that bounds what is looked at; `what`: the argument's name. InvalidInput (`bad_version`)."""
    return None if version is None else _check_version(what, version)


def _check_version(what: str, version: int) -> int:
    if isinstance(version, bool) or not isinstance(version, int):
        raise InvalidInput(f"{what}={version!r} is no version", kind="bad_version")
    if version < 0:
        raise InvalidInput(
            f"{what}={version}: a bound of the log does not count from the head, as a version to read does",
            kind="bad_version",
            hint="give its number; catalog.at(-2).version tells that of -2",
        )
    if not 0 <= version < fmt.VERSION_MAX_EXCLUSIVE:
        raise InvalidInput(f"{what}={version} is outside 0 to 2^32 - 1", kind="bad_version")
    return version


_WILD = re.compile(r"[*?]")
_ACTIONS = frozenset(actions_pb2.ActionType.keys()) - READ_TYPES - {"TRANSACTION"}


def filter_of(
    namespaces: str | Iterable[str] | None,
    names: Name | Iterable[Name] | None,
    kinds: str | Iterable[str] | None,
    actions: str | Iterable[str] | None = None,
) -> EventFilter:
    """The filter that a user gave. Text with `*` or `?` among the names is a pattern; a tuple never is. InvalidInput
    for a kind or an action that there is not."""
    labels = {kind.label: kind for kind in Kind}
    wanted = words("kinds", kinds)
    for label in wanted:
        if label not in labels:
            raise InvalidInput(
                f"kinds: there is no kind {label!r}", hint=f"one of {', '.join(sorted(labels))}"
            )
    types = [text.upper() for text in words("actions", actions)]
    for type_name in types:
        if type_name not in _ACTIONS:
            raise InvalidInput(
                f"actions: there is no action {type_name[:80]!r}",
                hint=f"one of {', '.join(sorted(_ACTIONS))}",
            )
    if isinstance(names, str | TableName | ViewName):
        names = (names,)
    listed = several("names", () if names is None else names)
    return EventFilter(
        namespaces=frozenset(words("namespaces", namespaces)),
        names=frozenset(_full_name(name) for name in listed if not _is_pattern(name)),
        name_patterns=frozenset(cast(str, name) for name in listed if _is_pattern(name)),
        kinds=frozenset(labels[label] for label in wanted),
        actions=frozenset(types),
    )


def _is_pattern(name: Name) -> bool:
    return isinstance(name, str) and _WILD.search(name) is not None


def _full_name(name: Name) -> str:
    if isinstance(name, TableName | ViewName):
        return name.full_name
    return name if isinstance(name, str) else parse_name(Kind.TABLE, name).full_name


def _as_generator(stream: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """Every `Access` streams with generators; closing one frees what it holds at the other end."""
    return cast("AsyncGenerator[T, None]", stream)


async def events(
    session: Session,
    *,
    after: int | str | None,
    until: int | None,
    follow: bool,
    filter: EventFilter,
    details: bool,
) -> AsyncGenerator[Event, None]:
    """Events for users, in order, no gap, none twice; see `events_with_progress`."""
    stream = stored_events(session, after=after, until=until, follow=follow, filter=filter, details=details)
    async with aclosing(stream):
        async for event in stream:
            yield event_of(event)


async def stored_events(
    session: Session,
    *,
    after: int | str | None,
    until: int | None,
    follow: bool,
    filter: EventFilter,
    details: bool,
) -> AsyncGenerator[answers.Event, None]:
    """The same events with their operations as classes, for our own feeds."""
    stream = events_with_progress(
        session, after=after, until=until, follow=follow, filter=filter, details=details
    )
    async with aclosing(stream):
        async for item in stream:
            if isinstance(item, answers.Event):
                yield item


async def events_with_progress(
    session: Session,
    *,
    after: int | str | None,
    until: int | None,
    follow: bool,
    filter: EventFilter,
    details: bool,
) -> AsyncGenerator[answers.Event | answers.Progress, None]:
    """Events in order, no gap, none twice, and marks of how far the stream is.

    A broken stream is resumed: with `follow` for ever, else while a break lasts no longer than the timeout.
    Expired, InvalidInput and the like end it.
    """
    if until is None and not follow:
        # The end is the head of now, also for a stream that breaks and is resumed later.
        until = (await session.resolve(None)).version
        position = answers.parse_token(after)[1] if isinstance(after, str) else after
        if position is not None and position > until:
            until = None  # `Access.events` knows what is wrong with it
    attempts = session.retry_policy.start()
    attempts.note_progress()
    while True:
        session.check_open()
        stream = session.access.events(
            after=after, until=until, follow=follow, filter=filter, details=details
        )
        try:
            async with aclosing(_as_generator(stream)):
                async for item in stream:
                    after = item.token
                    session.note(item.token)
                    attempts.note_progress()
                    yield item
                    # The reader's own pace is no break of the stream.
                    attempts.note_progress()
            if not follow or until is not None:
                return
            await attempts.wait_to_retry(Unavailable("the stream of events ended"), forever=True)
        except AlpheusError as error:
            if not await attempts.wait_to_retry(error, forever=follow):
                raise


async def _restart_on_break(
    session: Session, start: Callable[[], AsyncIterator[T]]
) -> AsyncGenerator[T, None]:
    """A stream that is started again when it breaks, while a break lasts no longer than the timeout. What `start` gives
    anew comes anew."""
    attempts = session.retry_policy.start()
    while True:
        session.check_open()
        try:
            async with aclosing(_as_generator(start())) as stream:
                async for item in stream:
                    attempts.note_progress()
                    yield item
                    # The reader's own pace is no break of the stream.
                    attempts.note_progress()
            return
        except AlpheusError as error:
            if not await attempts.wait_to_retry(error):
                raise


async def log(
    session: Session, *, name: ObjectName | None, after: int | None, until: int | None
) -> AsyncGenerator[LogEntry, None]:
    """Recorded transactions for users, newest first; see `stored_log`."""
    async with aclosing(stored_log(session, name=name, after=after, until=until)) as entries:
        async for entry in entries:
            yield log_entry_of(entry)


async def stored_log(
    session: Session, *, name: ObjectName | None, after: int | None, until: int | None
) -> AsyncGenerator[answers.LogEntry, None]:
    """Recorded transactions, newest first; a broken stream is resumed while the timeout lasts."""
    delivered: set[str] = set()  # of the version `until`, after a break
    entries = _restart_on_break(session, lambda: session.access.log(name=name, after=after, until=until))
    async with aclosing(entries):
        async for entry in entries:
            if entry.version != until:
                until, delivered = entry.version, set()
            if entry.transaction.id not in delivered:
                delivered.add(entry.transaction.id)
                yield entry


async def stream_dropped(session: Session, namespace: str | None) -> AsyncGenerator[Dropped, None]:
    """Last dropped first, each object once; a break starts it again after what was delivered."""
    known: set[ObjectName] = set()
    items = _restart_on_break(session, lambda: session.access.dropped(namespace=namespace))
    async with aclosing(items):
        async for item in items:
            if item.name not in known:
                known.add(item.name)
                yield dropped_of(item)


async def list_saved(session: Session) -> list[SavedTransaction]:
    """What is saved, oldest first."""

    async def attempt() -> list[SavedTransaction]:
        async with aclosing(_as_generator(session.access.saved_transactions())) as stream:
            return [saved_of(item) async for item in stream]

    found = await session.call("list saved transactions", attempt)
    return sorted(found, key=lambda one: (one.began_at, one.id))


async def diff(session: Session, before: At, after: At, *, details: bool) -> AsyncGenerator[Change, None]:
    """What differs between two versions, fixed when the stream begins; a break starts it again after what was
    delivered."""
    first = (await session.resolve(before)).version
    last = (await session.resolve(after)).version
    seen = delivered = 0

    def start() -> AsyncIterator[answers.Change]:
        nonlocal seen
        seen = 0
        return session.access.diff(first, last, details=details)

    changes = _restart_on_break(session, start)
    async with aclosing(changes):
        async for change in changes:
            seen += 1
            if seen > delivered:
                delivered = seen
                yield change_of(change)


async def check_unopened(url: str, after: int | None) -> CheckReport:
    """Every invariant of what lies under a storage URL, though it may not open."""
    storage = await asyncio.to_thread(open_storage, url)
    try:
        return await _gather_report(check_storage(storage, after=after))
    finally:
        await storage.close()


async def _gather_report(stream: AsyncIterator[answers.Finding | answers.CheckSummary]) -> CheckReport:
    findings: list[Finding] = []
    async with aclosing(_as_generator(stream)) as items:
        async for item in items:
            if isinstance(item, answers.CheckSummary):
                return CheckReport(
                    findings=tuple(findings),
                    versions=item.versions,
                    nodes=item.nodes,
                    definitions=item.definitions,
                    manifests=item.manifests,
                    given_up=item.given_up,
                )
            findings.append(
                Finding(kind=item.kind, message=item.message, path=item.path, version=item.version)
            )
    raise Unavailable("the check ended without a summary")


async def check(session: Session, after: int | None) -> CheckReport:
    """Every invariant, from the beginning again when the stream breaks."""

    async def attempt() -> CheckReport:
        return await _gather_report(session.access.check(after=after))

    attempts = session.retry_policy.start()
    while True:
        session.check_open()
        try:
            return await attempt()
        except AlpheusError as error:
            if not await attempts.wait_to_retry(error):
                raise


def parse_log_name(name: AnyName | None) -> ObjectName | None:
    """What the log is asked for: "namespace.name" a table or view, text without a dot or a 1-tuple a namespace."""
    return None if name is None else any_name(name)
