"""The log as a client reads it: events that resume by themselves, and recorded transactions.

A stream may break at any moment: a daemon restarts, a slow reader is cut off, a request to storage fails. The stream
then resumes after the last version that it delivered, so that the reader sees no gap and no event twice.
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
"""A position in the log: the last version already seen, or an `Event.token`. None means before all that is kept."""


def parse_after(after: After) -> int | str | None:
    """Return the position, checked. Raises InvalidInput (`bad_version`, `bad_token`)."""
    if after is None:
        return None
    if isinstance(after, str):
        if after.isascii() and after.removeprefix("-").isdecimal():
            return _check_version("after", int(after))
        answers.parse_token(after)
        return after
    return _check_version("after", after)


def parse_bound(what: str, version: int | None) -> int | None:
    """Return a version that bounds a read of the log, checked. Raises InvalidInput (`bad_version`).

    `what` is the name of the argument, for the error.
    """
    return None if version is None else _check_version(what, version)


def _check_version(what: str, version: int) -> int:
    if isinstance(version, bool) or not isinstance(version, int):
        raise InvalidInput(f"{what}={version!r} is not a version", kind="bad_version")
    if version < 0:
        raise InvalidInput(
            f"{what}={version}: unlike a version to read, a bound of the log does not count from the head",
            kind="bad_version",
            hint="give the version's number; catalog.at(-2).version returns the number of -2",
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
    """Return the filter for a user's arguments. Raises InvalidInput for an unknown kind or action.

    A text among `names` that contains `*` or `?` is a pattern; a tuple is always a name.
    """
    labels = {kind.label: kind for kind in Kind}
    wanted = words("kinds", kinds)
    for label in wanted:
        if label not in labels:
            raise InvalidInput(
                f"kinds: there is no kind {label!r}", hint=f"use one of {', '.join(sorted(labels))}"
            )
    types = [text.upper() for text in words("actions", actions)]
    for type_name in types:
        if type_name not in _ACTIONS:
            raise InvalidInput(
                f"actions: there is no action {type_name[:80]!r}",
                hint=f"use one of {', '.join(sorted(_ACTIONS))}",
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
    """Return the stream as the generator that it is in every `Access`. Closing it frees what the other end holds."""
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
    """Stream events for users, in order, without a gap or a duplicate; see `events_with_progress`."""
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
    """Stream the same events for our own feeds, with operations as classes."""
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
    """Stream events in order, without a gap or a duplicate, and marks of how far the stream has come.

    A broken stream is resumed: with `follow` for ever, otherwise while a break lasts no longer than the timeout.
    Errors that a retry cannot cure, such as Expired and InvalidInput, end the stream.
    """
    if until is None and not follow:
        # The stream ends at the present head, even if it breaks and is resumed later.
        until = (await session.resolve(None)).version
        position = answers.parse_token(after)[1] if isinstance(after, str) else after
        if position is not None and position > until:
            until = None  # `Access.events` refuses the position and says why
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
                    # Time that the reader spends on an item does not count as a break of the stream.
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
    """Stream what `start()` yields, and call `start` again when its stream breaks.

    The error of a break is raised when the break lasts longer than the timeout. After a restart, items that `start()`
    yields again are delivered again.
    """
    attempts = session.retry_policy.start()
    while True:
        session.check_open()
        try:
            async with aclosing(_as_generator(start())) as stream:
                async for item in stream:
                    attempts.note_progress()
                    yield item
                    # Time that the reader spends on an item does not count as a break of the stream.
                    attempts.note_progress()
            return
        except AlpheusError as error:
            if not await attempts.wait_to_retry(error):
                raise


async def log(
    session: Session, *, name: ObjectName | None, after: int | None, until: int | None
) -> AsyncGenerator[LogEntry, None]:
    """Stream recorded transactions for users, newest first; see `stored_log`."""
    async with aclosing(stored_log(session, name=name, after=after, until=until)) as entries:
        async for entry in entries:
            yield log_entry_of(entry)


async def stored_log(
    session: Session, *, name: ObjectName | None, after: int | None, until: int | None
) -> AsyncGenerator[answers.LogEntry, None]:
    """Stream recorded transactions, newest first. A broken stream is resumed while the timeout lasts."""
    delivered: set[str] = (
        set()
    )  # ids of version `until` that the reader has; after a break that version comes again
    entries = _restart_on_break(session, lambda: session.access.log(name=name, after=after, until=until))
    async with aclosing(entries):
        async for entry in entries:
            if entry.version != until:
                until, delivered = entry.version, set()
            if entry.transaction.id not in delivered:
                delivered.add(entry.transaction.id)
                yield entry


async def stream_dropped(session: Session, namespace: str | None) -> AsyncGenerator[Dropped, None]:
    """Stream dropped objects, each once, the last dropped first. After a break the stream resumes behind the object
    that it delivered last."""
    known: set[ObjectName] = set()
    items = _restart_on_break(session, lambda: session.access.dropped(namespace=namespace))
    async with aclosing(items):
        async for item in items:
            if item.name not in known:
                known.add(item.name)
                yield dropped_of(item)


async def list_saved(session: Session) -> list[SavedTransaction]:
    """Return the saved transactions, oldest first."""

    async def attempt() -> list[SavedTransaction]:
        async with aclosing(_as_generator(session.access.saved_transactions())) as stream:
            return [saved_of(item) async for item in stream]

    found = await session.call("list saved transactions", attempt)
    return sorted(found, key=lambda one: (one.began_at, one.id))


async def diff(session: Session, before: At, after: At, *, details: bool) -> AsyncGenerator[Change, None]:
    """Stream the differences between two versions, which are resolved once, when the stream begins. After a break the
    stream resumes behind the difference that it delivered last."""
    first = (await session.resolve(before)).reference
    last = (await session.resolve(after)).reference
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
    """Verify every invariant of the catalog under a storage URL, even when that catalog cannot be opened."""
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
    """Verify every invariant. When the stream breaks, the check restarts from the beginning."""

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
    """Return the object whose log is wanted. "namespace.name" means a table or view; text without a dot, or a 1-tuple,
    means a namespace."""
    return None if name is None else any_name(name)
