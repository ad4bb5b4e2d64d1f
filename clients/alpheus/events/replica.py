"""A copy of the catalog in this process, which follows the log and answers in microseconds.

The replica begins with a snapshot of one version and applies the events after it, each version as a whole. So no read
sees a part of a version or a mix of two. Reads use memory and no network; they see `version`, and `lag` bounds how old
that version is. The reading verbs are those of the catalog, with the same results and errors.

Any thread may read; only the task that follows the log writes. A broken stream is resumed for ever. Where the log in
between has expired, a fresh snapshot replaces the contents in one step. When the history itself was replaced, or the
replica is closed, every read raises that error.
"""

from __future__ import annotations

import asyncio
import copy
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, cast

import msgspec

from alpheus.closing import AsyncClosing
from alpheus.display import Facts, Shown
from alpheus.events.replica_index import Contents, Entry
from alpheus.model_conversions import table_of
from alpheus.models import Table
from alpheus.session.arguments import Name, namespace_text, parse_name, several, staleness_millis, words
from alpheus.session.pinned_reads import PinnedReads
from alpheus.session.reads import decode_stored
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.errors import (
    AlpheusError,
    Corrupt,
    Exhausted,
    Expired,
    InvalidInput,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model import answers
from alpheus_journal.model.answers import Damage, Latest, Loaded, Page, SnapshotPart, StoredObject
from alpheus_journal.model.definitions import Definition, TableDef
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.urls import redact_url
from alpheus_journal.workspace.checks import no_namespace

MEASURE_SECONDS = 1.0
"""Interval at which the replica asks for the head, to measure its lag."""
MEASURE_STALENESS_SECONDS = 0.5
"""The greatest age of that answer, so that a daemon need not read storage for each replica."""
HEADS_MAX = 1000
LOADED_AT_ONCE = 1000


class AsyncReplica(Shown, PinnedReads, AsyncClosing):
    """A copy of the catalog in this process, kept up to date in the background.

    Reads see `version`, which only goes up. They return what the catalog returns at that version, in microseconds. The
    catalog object that made the replica never reads an older version than the replica has. All readers share the
    values, so do not change the dicts in them. A replica is a context manager; otherwise call `close`.
    """

    def __init__(self, session: Session, namespaces: frozenset[str], staleness: float | None) -> None:
        self._session = session
        self._keys = session.keys
        self._namespaces = namespaces
        staleness_millis(staleness)
        self._staleness = staleness
        self._lock = threading.Lock()  # guards the next four attributes, which change together
        self._contents = Contents(self._keys)
        self._version = -1
        self._token = ""
        self._tables: dict[
            Any, Table
        ] = {}  # tables already read at this version, by the name as the reader wrote it
        self._ended: AlpheusError | None = None
        self._error: AlpheusError | None = None  # the stream's error, while it is broken
        self._unmeasured: AlpheusError | None = None  # why the head is not known
        self._failures = 0  # in a row
        self._fresh_at = time.monotonic()
        self._heads: deque[tuple[int, float]] = deque(maxlen=HEADS_MAX)  # heads, and when they were the head
        self._moved: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def _title(self) -> str:
        return f"{self._version} of {redact_url(self._session.url)}"

    def _facts(self) -> Facts:
        return [
            ("version", self._version),
            ("namespaces", sorted(self.namespaces) or "all"),
            ("error", self._error),
        ]

    # -- how far it is

    @property
    def version(self) -> int:
        """The version that reads see."""
        return self._version

    @property
    def namespaces(self) -> frozenset[str]:
        """The namespaces that are copied; empty means all."""
        return self._namespaces

    @property
    def lag(self) -> float:
        """Seconds since the last moment at which `version` was certainly the newest. About one second in normal
        operation, because the replica asks for the head once a second."""
        return max(0.0, time.monotonic() - self._fresh_at)

    @property
    def error(self) -> AlpheusError | None:
        """The reason why the replica does not follow the log now; None while it follows. Unless the replica has ended,
        reads continue with what was copied."""
        return self._ended or self._error or self._unmeasured

    async def wait_for(self, version: int, timeout: float | None = None) -> int:  # noqa: ASYNC109
        """Wait until reads see `version` or a newer one, and return the version that they see.

        Raises Unavailable (`replica_behind`) after `timeout` seconds. Without a timeout, a version that is never
        committed is waited for without end.
        """
        if isinstance(version, bool) or not isinstance(version, int):
            raise InvalidInput(f"{version!r} is not a version", kind="bad_version")
        try:
            async with asyncio.timeout(timeout) as limit:
                while True:
                    moved = self._moved
                    self._check_following()
                    if self._version >= version:
                        return self._version
                    await moved.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            raise Unavailable(
                f"the replica is at version {self._version} and did not reach {version} within {timeout:g} s",
                kind="replica_behind",
                hint=str(self._error or f"check that version {version} is of this catalog, or wait longer"),
            ) from None

    async def close(self) -> None:
        """Stop following. Later reads raise InvalidInput; further calls of `close` do nothing."""
        self._end(InvalidInput("the replica was closed", hint="open another one with catalog.replica()"))
        task, self._task = self._task, None
        self._session.leave(self.close)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- reading

    async def load_table(self, name: Name) -> Table:
        """Return one table. Raises NotFound (`no_table`)."""
        return self._load_table(name)

    async def load_tables(self, names: Iterable[Name]) -> list[Table]:
        """Return many tables, all at one version, in the order of `names`. Raises NotFound, which names the first
        missing table."""
        return self._load_tables(names)

    async def table_exists(self, name: Name) -> bool:
        return self._table_exists(name)

    def _load_table(self, name: Name) -> Table:
        if self._staleness is not None:
            self._check()
        try:
            return self._tables[name]
        except (
            KeyError,
            TypeError,
        ):  # the table was not read at this version yet, or the name is a list: not hashable
            return self._load_uncached_tables([name])[0]

    def _table_exists(self, name: Name) -> bool:
        if self._staleness is None:
            try:
                if name in self._tables:
                    return True
            except TypeError:
                pass  # the name is a list, which is not hashable
        return self._find_entries([parse_name(Kind.TABLE, name)])[2][0] is not None

    def _load_tables(self, names: Iterable[Name]) -> list[Table]:
        if self._staleness is not None:
            self._check()
        wanted = [names] if isinstance(names, str) else several("names", names)
        tables = self._tables  # stays the tables of one version, even if another thread applies the next one
        try:
            return [tables[name] for name in wanted]
        except (KeyError, TypeError):
            return self._load_uncached_tables(wanted)

    def _load_uncached_tables(self, names: Sequence[Name]) -> list[Table]:
        keys = [parse_name(Kind.TABLE, name) for name in names]
        version, tables, entries = self._find_entries(keys)
        found = []
        for name, key, entry in zip(names, keys, entries, strict=True):
            table = table_of(key, cast(TableDef, _decode_entry(key, entry, version)), version)
            found.append(table)
            tables[tuple(name) if isinstance(name, list) else name] = table
        return found

    def _find_entries(self, names: Sequence[ObjectName]) -> tuple[int, dict[Any, Table], list[Entry | None]]:
        """Return (version, its cache of tables, the entries of `names`). Raises for a damaged object, as the catalog
        does."""
        for name in names:
            fmt.check_object_name(name, self._keys)
            self._check_copied(name.namespace, name)
        with self._lock:
            self._check()
            version, tables = self._version, self._tables
            entries = [self._contents.objects.get(name) for name in names]
        for entry in entries:
            error = entry.stored.error() if entry is not None else None
            if error is not None:
                error.version = version
                raise error
        return version, tables, entries

    async def _objects(self, names: list[ObjectName]) -> Loaded:
        version, _, entries = self._find_entries(names)
        return Loaded(version=version, objects=tuple([entry.stored if entry else None for entry in entries]))

    async def _definition(self, name: ObjectName) -> tuple[int, Definition]:
        version, _, (entry,) = self._find_entries([name])
        return version, _decode_entry(name, entry, version)

    async def _page(
        self, version: int | None, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str
    ) -> Page:
        self._session.check_page(kind, namespace, prefix, after)
        for text in (prefix, after):
            if text:
                fmt.check_known_name(text, self._keys, kind)
        parent = fmt.namespace_name(namespace)
        if kind is not Kind.NAMESPACE:
            self._check_copied(namespace, parent)
        with self._lock:
            self._check()
            if kind in (Kind.TABLE, Kind.VIEW) and parent not in self._contents.objects:
                raise no_namespace(parent)
            names = self._contents.names(kind, namespace, prefix, limit, after)
            return Page(version=self._version, names=tuple(names), more=False)

    async def _names_everywhere(
        self, kind: Kind, prefix: str, limit: int | None, after: ObjectName | None
    ) -> tuple[int, list[tuple[str, str]]]:
        # All namespaces under one lock: otherwise a new version could be applied between two of them.
        first, last = (after.namespace, after.name) if after is not None else ("", "")
        if after is not None:
            fmt.check_object_name(after, self._keys)
        self._session.check_page(Kind.NAMESPACE, "", prefix, first)
        if prefix:
            fmt.check_known_name(prefix, self._keys, kind)
        found: list[tuple[str, str]] = []
        with self._lock:
            self._check()
            names, more = self._contents.names, 0 if limit is None else limit
            for space in ([first] if first else []) + names(Kind.NAMESPACE, "", "", 0, first):
                begin = last if space == first else ""
                found += [(space, name) for name in names(kind, space, prefix, more, begin)]
                if limit is not None and len(found) >= limit:
                    break
                more = 0 if limit is None else limit - len(found)
            return self._version, found

    def _check_copied(self, namespace: str, name: ObjectName) -> None:
        if self._namespaces and namespace not in self._namespaces:
            raise InvalidInput(
                f"this replica does not contain {name}: it copies {', '.join(sorted(self._namespaces))[:200]}",
                kind="not_replicated",
                hint="read from the catalog itself, or open a replica that includes the namespace",
            )

    def _check_following(self) -> None:
        if self._ended is not None:
            raise copy.copy(
                self._ended
            )  # many threads may raise it: each needs its own object for its traceback

    def _check(self) -> None:
        """Raise when the replica has ended or lags more than the staleness that is allowed."""
        self._check_following()
        if self._staleness is not None and self.lag > self._staleness:
            raise Unavailable(
                f"the replica is at version {self._version} and may be {self.lag:.1f} s behind;"
                f" {self._staleness:g} s are allowed",
                kind="replica_behind",
                hint=str(self._error or "read from the catalog itself"),
            )

    # -- following the log

    async def _start(self) -> None:
        """Take the first snapshot, then follow the log in the background. Raises what any call of the catalog does."""
        attempts = self._session.retry_policy.start()
        while True:
            self._session.check_open()
            try:
                await self._take_snapshot()
                break
            except AlpheusError as error:
                if not await attempts.wait_to_retry(error):
                    raise
        self._session.join(self.close)
        _replicas.add(self)
        self._task = asyncio.create_task(self._run(), name="alpheus replica")

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                measuring = tasks.create_task(self._measure())
                self._end(await self._follow())
                measuring.cancel()
        except* Exception as group:
            self._end(Unavailable(f"the replica failed: {group.exceptions[0]!r}", kind="replica_behind"))

    async def _follow(self) -> AlpheusError:
        """Apply events until following the log has become useless, and return the error that says why."""
        is_lost, details = False, True
        while True:
            try:
                self._session.check_open()
                if is_lost:
                    await self._take_snapshot()
                    is_lost = False
                await self._receive(details)
                details = True
                continue
            except _Diverged as diverged:
                error: AlpheusError = diverged.error
                is_lost = True
            except AlpheusError as failed:
                error = failed
                if isinstance(error, Expired) or (error.kind == "bad_token" and not is_lost):
                    is_lost = True  # taking a fresh snapshot finds out whether the history was replaced
                elif _is_final(error) and not (details and error.kind == "too_large"):
                    return error
                else:
                    # A damaged definition blocks the event's other definitions, or all of them exceed a message. Ask
                    # for the next event without definitions, and load each by itself.
                    details = not (isinstance(error, Corrupt) or error.kind == "too_large") or not details
            self._error = error
            self._failures += 1
            pause = self._session.retry_policy.pause(self._failures)
            await asyncio.sleep(max(pause, error.retry_after or 0 if isinstance(error, Exhausted) else 0))

    async def _receive(self, details: bool) -> None:
        """Apply events and marks until the stream breaks. Without `details`, apply only the next one."""
        stream = self._session.access.events(
            after=self._token,
            follow=True,
            filter=EventFilter(namespaces=self._namespaces),
            details=details,
        )
        async with aclosing(cast("AsyncGenerator[answers.Event | answers.Progress, None]", stream)) as items:
            async for item in items:
                changes: list[_ObjectChange] = []
                if isinstance(item, answers.Event):
                    changes = await self._collect_changes(item)
                self._apply(item.version, item.token, changes)
                self._error, self._failures = None, 0
                if not details:
                    return
        raise Unavailable("the stream of events ended")

    async def _collect_changes(self, event: answers.Event) -> list[_ObjectChange]:
        """Return what an event changed. Definitions that the event lacks are loaded at its version."""
        lacking = [
            change.name for change in event.changes if change.path_after and change.definition_after is None
        ]
        loaded: dict[ObjectName, StoredObject] = {}
        for start in range(0, len(lacking), LOADED_AT_ONCE):
            loaded |= await self._load_definitions(event.version, lacking[start : start + LOADED_AT_ONCE])
        changes: list[_ObjectChange] = []
        for change in event.changes:
            after: StoredObject | None = None
            if change.definition_after is not None:
                after = StoredObject(change.path_after, change.definition_after)
            elif change.path_after:
                after = loaded[change.name]
            changes.append((change.name, change.path_before, after))
        return changes

    async def _load_definitions(
        self, version: int, names: list[ObjectName]
    ) -> dict[ObjectName, StoredObject]:
        try:
            loaded = await self._session.access.load(version, names)
        except Corrupt as error:
            if error.kind != "corrupt_definition":
                raise
            if len(names) > 1:
                half = len(names) // 2
                return await self._load_definitions(version, names[:half]) | await self._load_definitions(
                    version, names[half:]
                )
            return {names[0]: StoredObject(error.path, b"", Damage(error.kind, error.message, error.hint))}
        found: dict[ObjectName, StoredObject] = {}
        for name, stored in zip(names, loaded.objects, strict=True):
            if stored is None:
                raise _Diverged(f"{name} does not exist at version {version}, which created it")
            found[name] = stored
        return found

    def _apply(self, version: int, token: str, changes: Sequence[_ObjectChange]) -> None:
        """Move to a version: the next one with its changes, or one up to which a mark says that nothing concerns this
        copy. All later reads see it. Raises _Diverged when the changes do not continue this copy."""
        if version < self._version:
            raise _Diverged(f"version {version} came after version {self._version}")
        if changes and not self._namespaces and version != self._version + 1:
            raise _Diverged(f"version {version} came after version {self._version}")
        contents = self._contents
        for name, before, _ in changes:
            if contents.path(name) != before:
                raise _Diverged(
                    f"{name} was {before!r} before version {version}, here {contents.path(name)!r}"
                )
        with self._lock:
            if version != self._version:
                self._tables = {}
            for name, _, after in changes:
                if after is None:
                    contents.remove(name)
                else:
                    contents.set(name, after)
            self._version, self._token = version, token
        self._note_progress()

    async def _take_snapshot(self) -> None:
        """Replace the contents by a snapshot of the head. Raises what `Access.snapshot` does."""
        began = time.monotonic()
        contents = Contents(self._keys)
        newest: SnapshotPart | None = None
        at = Latest(None, self._session.token)
        stream = self._session.access.snapshot(at, namespaces=self._namespaces)
        async with aclosing(cast("AsyncGenerator[SnapshotPart, None]", stream)) as parts:
            async for part in parts:
                newest = part
                for live in part.objects:
                    contents.set(live.name, live.stored)
                await asyncio.sleep(0)  # a snapshot from memory never waits: let other tasks of the loop run
        if newest is None:
            raise Unavailable("the snapshot ended before it began")
        with self._lock:
            self._tables = {}
            self._contents = contents
            self._version, self._token = newest.version, newest.token
        self._heads.append((newest.version, began))
        self._note_progress()

    def _note_progress(self) -> None:
        self._session.note(self._token)
        while self._heads and self._heads[0][0] <= self._version:
            self._fresh_at = max(self._fresh_at, self._heads.popleft()[1])
        self._wake()

    async def _measure(self) -> None:
        """Ask for the head, once every `MEASURE_SECONDS`. When the replica reaches that head, `version` was the newest
        at the moment of the question."""
        while True:
            began = time.monotonic() - MEASURE_STALENESS_SECONDS
            at = Latest(round(MEASURE_STALENESS_SECONDS * 1000), self._session.token)
            try:
                head = await self._session.access.resolve(at)
            except AlpheusError as error:
                self._unmeasured = error
            else:
                self._unmeasured = None
                self._heads.append((head.version, began))
                self._note_progress()
            await asyncio.sleep(MEASURE_SECONDS)

    def _end(self, error: AlpheusError) -> None:
        """Make every later read raise `error`. The first error that ends the replica stays."""
        with self._lock:
            if self._ended is None:
                self._ended = error
                self._tables = {}
                self._contents = Contents(self._keys)
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _detach_after_fork(self) -> None:
        """End the replica in a child process, where no task follows the log."""
        self._lock = threading.Lock()
        self._ended = InvalidInput(
            "the replica belongs to the process that this process was forked from",
            hint="open a replica in this process",
        )
        self._tables = {}
        self._task = None


class DirectReads(msgspec.Struct, frozen=True):
    """The reads of a replica for synchronous code: functions that never wait."""

    load_table: Callable[[Name], Table]
    load_tables: Callable[[Iterable[Name]], list[Table]]
    table_exists: Callable[[Name], bool]
    has_reached: Callable[[int], bool]
    """Return whether reads see the version or a newer one, and the replica has not ended."""


def direct_reads(replica: AsyncReplica) -> DirectReads:
    return DirectReads(
        replica._load_table,
        replica._load_tables,
        replica._table_exists,
        lambda version: replica._version >= version and replica._ended is None,
    )


_ObjectChange = tuple[ObjectName, str, StoredObject | None]
"""(name, path of the definition before or "" for none, object after or None for none)."""


class _Diverged(Exception):
    """The log does not continue this copy: a new snapshot is needed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.error = Unavailable(f"the copy does not agree with the log: {reason}", kind="replica_behind")


def _is_final(error: AlpheusError) -> bool:
    """Return whether no later attempt to follow the log can succeed."""
    if isinstance(error, Corrupt):
        return error.kind == "history_replaced"
    return not isinstance(error, Unavailable | Exhausted | OutcomeUnknown | Expired)


def _decode_entry(name: ObjectName, entry: Entry | None, version: int) -> Definition:
    if entry is None:
        return decode_stored(name, None, version)  # raises NotFound
    if entry.definition is None:
        entry.definition = decode_stored(name, entry.stored, version)
    return entry.definition


_replicas: weakref.WeakSet[AsyncReplica] = weakref.WeakSet()


def _after_fork() -> None:
    for replica in list(_replicas):
        replica._detach_after_fork()


os.register_at_fork(after_in_child=_after_fork)


async def open_replica(
    session: Session, namespaces: str | Iterable[str] | None, staleness: float | None
) -> AsyncReplica:
    """Return a replica that holds the present head, or its part in `namespaces`, and follows the log."""
    wanted = frozenset(namespace_text(name) for name in words("namespaces", namespaces))
    if namespaces is not None and not wanted:
        raise InvalidInput("namespaces is empty", hint="leave it out to copy everything")
    for name in wanted:
        fmt.check_object_name(fmt.namespace_name(name), session.keys)
    replica = AsyncReplica(session, wanted, staleness)
    await replica._start()
    return replica
