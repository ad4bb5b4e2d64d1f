"""The version that the next one is built on: the durable head, or a version staged on the head.

A staged version is not durable yet, and no reader of the catalog sees it. `Base` reads it as if it were durable: first
its own nodes and definitions, then those of the durable versions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import TypeVar

from alpheus_journal.commit.staged import Staged
from alpheus_journal.conflicts.rules import Group, Stakes
from alpheus_journal.errors import Conflict, Corrupt, Expired, InvalidInput
from alpheus_journal.format import Kind, NodePath, ObjectName
from alpheus_journal.log.pins import read_pin
from alpheus_journal.model.answers import Event, StoredObject
from alpheus_journal.model.definitions import CatalogDef, TableDef
from alpheus_journal.model.operations import Action, Transaction
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.state import Head, event_of
from alpheus_journal.tables.manifest_merge import Content
from alpheus_journal.tags.reader import find_pinned, list_tags, snapshot_of_pin
from alpheus_journal.tree.node import Node
from alpheus_journal.tree.reader import Reader, Snapshot
from alpheus_journal.workspace.dropped_counters import actions_down
from alpheus_journal.workspace.workspace import definition_of

_T = TypeVar("_T")

EVENTS_WALKED_MAX = 1_000
"""Versions whose events are walked to find earlier states of objects; for more versions a tree is read."""

ITEMS_AT_ONCE_MAX = 1_000
"""Items handled in one turn of the event loop: some milliseconds."""

EVENTS_READ_MAX = 32
"""Versions outside memory that are read, one by one, to name the rival of a conflict."""


async def without_blocking(items: Sequence[_T]) -> AsyncIterator[_T]:
    """Yield the items, and let the event loop take a turn now and then."""
    for start in range(0, len(items), ITEMS_AT_ONCE_MAX):
        for item in items[start : start + ITEMS_AT_ONCE_MAX]:
            yield item
        await asyncio.sleep(0)


class _StagedReader(Reader):
    """The reader of the durable versions, with its caches, that also knows the files of a staged version."""

    def __init__(self, durable: Reader, staged: Staged) -> None:
        self.__dict__.update(durable.__dict__)
        self._staged = staged

    async def load_nodes(self, paths: Sequence[NodePath]) -> Mapping[NodePath, Node]:
        own = {path: self._staged.nodes[path] for path in paths if path in self._staged.nodes}
        rest = [path for path in paths if path not in own]
        return own | dict(await super().load_nodes(rest)) if rest else own

    async def definitions(self, paths: Mapping[str, Kind]) -> dict[str, bytes]:
        known = self._staged.definitions
        own = {path: known[path] for path in paths if path in known}
        rest = {path: kind for path, kind in paths.items() if path not in own}
        return own | await super().definitions(rest) if rest else own


class Base:
    """A version to build on: a `prefetch.Source` of its objects, and a `prefetch.History` up to it.

    `staged` is the version itself while it is not durable; None for the durable head.
    """

    def __init__(self, follower: Follower, head: Head, staged: Staged | None = None) -> None:
        self.head = head
        self.staged = staged
        self.version = head.version
        self.reader = follower.reader if staged is None else _StagedReader(follower.reader, staged)
        self._follower = follower
        self._snapshot = Snapshot(self.reader, head.version, head.root, head.catalog_def)
        self.names = self._snapshot.names
        self._moved: set[ObjectName] = set()
        self._event: Event | None = None
        self._rivals = Group()
        self._ids: set[str] = set()  # transaction ids, cancelled and disregarded ids, retry keys
        self._sequences: dict[str, int] = {}  # the highest sequence, by the name of the idempotent writer
        if staged is not None:
            self._event = event_of(staged.record, follower.reader.keys, follower.catalog_id)
            self._moved = {change.name for change in self._event.changes}
            for member in staged.members:
                self._rivals.add(member.touches)
                recorded = member.recorded
                self._ids.update((recorded.id, recorded.cancels, recorded.key, *recorded.disregards))
                if (writer := recorded.writer) is not None:
                    highest = max(writer.sequence, self._sequences.get(writer.name, 0))
                    self._sequences[writer.name] = highest
            self._ids.discard("")

    @property
    def staged_segments(self) -> Mapping[str, Content] | None:
        """The contents of the manifest segments that the staged version made, by path; None for a durable version."""
        return None if self.staged is None else self.staged.made

    @property
    def is_current(self) -> bool:
        """Whether this version is the durable head now."""
        return self._follower.head.commit_id == self.head.commit_id

    def can_judge(self, transaction: Transaction) -> bool:
        """Return whether the transaction can be judged before the staged version is durable.

        It cannot when the staged version has or cancels its id, disregards its lease, or has its retry key, or when it
        began at a version that this process does not know.
        """
        if self.staged is None:
            return True
        known = transaction.begin_version <= self._follower.head.version
        return known and transaction.id not in self._ids and transaction.key not in self._ids

    def may_have_sequence(self, transaction: Transaction) -> bool:
        """Return whether the staged version may have written the writer's sequence. If so, only durable versions
        answer, and the transaction otherwise waits."""
        writer = transaction.writer
        return writer is not None and self._sequences.get(writer.name, -1) >= writer.sequence

    def conflict(self, stakes: Stakes) -> Conflict | None:
        """Return the first conflict with a transaction of the staged version, or None."""
        return self._rivals.conflict(stakes, self.version) if self.staged is not None else None

    async def catalog_definition(self) -> CatalogDef:
        return await self._follower.catalog_definition(self.head.catalog_def, self.reader)

    async def tables_at(self, version: int, names: Sequence[ObjectName]) -> list[StoredObject | None]:
        """Return tables as they stood at an earlier version. Uses the events since then where they are in memory.

        Raises Expired.
        """
        first: dict[ObjectName, str] = {}  # each table's definition before its first change since then
        for number in range(version + 1, self.version + 1):
            own = self._event if number == self.version else None
            event = own or self._follower.known_event(number)
            if event is None or number > version + EVENTS_WALKED_MAX:
                return list(await (await self.at(version, names[0])).load(names))
            for change in event.changes:
                first.setdefault(change.name, change.path_before)
        paths = {path: Kind.TABLE for name in names if (path := first.get(name))}
        before = await self.stored(paths) if paths else {}
        now = [name for name in names if name not in first]
        found = dict(zip(now, await self.load(now), strict=True)) if now else {}
        return [before.get(first[name]) if name in first else found[name] for name in names]

    # --- as a Source

    async def load(self, names: Sequence[ObjectName]) -> Sequence[StoredObject | None]:
        """Return objects from memory where the catalog is replayed, else from the tree."""
        state = self._follower.state
        if state is not None and state.version == self._follower.head.version:
            if self.is_current:
                held = await self._follower.replay.load_certain(state, names)
                return await self._snapshot.load(names) if held is None else held
            if self.staged is not None and self._follower.head.commit_id == self.staged.parent_commit_id:
                held = await self._follower.replay.load_certain(state, names)
                if held is not None:
                    return await self._load_over(held, names)
        return await self._snapshot.load(names)

    async def load_durable(self, names: Sequence[ObjectName]) -> Sequence[StoredObject | None]:
        """Return objects as the newest durable version has them."""
        return await (await self._follower.snapshot()).load(names)

    async def _load_over(
        self, before: Sequence[StoredObject | None], names: Sequence[ObjectName]
    ) -> Sequence[StoredObject | None]:
        """Return the staged version's objects, where `before` has those of the version before it."""
        moved = [name for name in names if name in self._moved]
        if not moved:
            return before
        after = dict(zip(moved, await self._snapshot.load(moved), strict=True))
        return [after.get(name, stored) for name, stored in zip(names, before, strict=True)]

    # --- as a History

    decides_counters = True

    async def at(self, version: int, name: ObjectName) -> Snapshot:
        """Return an older version; where it has expired, as the pin of a tag of this version keeps it."""
        if version == self.version:
            return self._snapshot
        try:
            return await self._follower.snapshot(version)
        except Expired:
            pinned = await find_pinned(self._snapshot, self._follower.log, version, name)
            if pinned is None:
                raise
            return pinned

    async def changed_since(
        self, version: int, kinds: frozenset[Kind], name: ObjectName
    ) -> AsyncIterator[tuple[ObjectName, StoredObject]]:
        before = await self.at(version, name)
        async for found in self._snapshot.created_or_changed_since(before, kinds):
            yield found

    def actions_since(self, version: int) -> AsyncGenerator[Action, None]:
        return actions_down(self._event_at, range(self.version, version, -1))

    async def tagged_since(self, version: int, names: Sequence[ObjectName]) -> AsyncGenerator[TableDef, None]:
        """Yield the tables, under any names, of later versions that tags name, as far as they differ from those at
        `version`. Leaves out what is damaged or was written by newer software."""
        before = await self.at(version, names[0])
        log = self._follower.log
        async for _, tag in list_tags(self._snapshot):
            if tag.version <= version and not tag.is_chosen:
                continue
            with contextlib.suppress(Corrupt, Expired):
                pinned = snapshot_of_pin(self.reader, log, tag.pin_path, await read_pin(log, tag.pin_path))
                async for name, stored in pinned.created_or_changed_since(before, frozenset({Kind.TABLE})):
                    with contextlib.suppress(Corrupt, InvalidInput):
                        definition = definition_of(name, stored)
                        assert isinstance(definition, TableDef)
                        yield definition

    async def events_down(self, after: int) -> AsyncGenerator[Event, None]:
        """Yield the events of the versions above `after`, the newest first.

        Ends early after EVENTS_READ_MAX events that are not in memory.
        """
        walked = 0
        for version in range(self.version, after, -1):
            if self._event is None or version != self.version:
                walked += self._follower.known_event(version) is None
            if walked > EVENTS_READ_MAX:
                return
            yield await self._event_at(version)

    async def _event_at(self, version: int) -> Event:
        if self._event is not None and version == self.version:
            return self._event
        return await self._follower.recorded_event(version)

    async def stored(self, paths: Mapping[str, Kind]) -> Mapping[str, StoredObject]:
        return await self.reader.stored(paths)
