"""What the next version is built on: the durable head, or a version that is staged on it and not durable yet.

A staged version is never visible to readers. Here it can be read as if it were there: its nodes and definitions
come first, then what the reader of the durable ones finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import TypeVar

from alpheus_journal.commit.staged import Staged
from alpheus_journal.conflicts.rules import Group, Stakes
from alpheus_journal.errors import Conflict
from alpheus_journal.execute.prefetch import Source
from alpheus_journal.format import Kind, NodePath, ObjectName
from alpheus_journal.model.answers import Event, StoredObject
from alpheus_journal.model.operations import Action, Transaction
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.state import Head, event_of
from alpheus_journal.tables.manifest_merge import Content
from alpheus_journal.tree.node import Node
from alpheus_journal.tree.reader import Reader, Snapshot
from alpheus_journal.workspace.dropped_counters import actions_down

_T = TypeVar("_T")

EVENTS_WALKED_MAX = 1_000
"""Versions of which it is asked what they changed, rather than a tree."""


ITEMS_AT_ONCE_MAX = 1_000
"""Looked at in one turn of the event loop: some milliseconds."""

EVENTS_READ_MAX = 32
"""Versions that are not in memory and are read, one by one, to say whom a conflict is with."""


async def without_blocking(items: Sequence[_T]) -> AsyncIterator[_T]:
    """The items; the event loop has its turns between some of them."""
    for start in range(0, len(items), ITEMS_AT_ONCE_MAX):
        for item in items[start : start + ITEMS_AT_ONCE_MAX]:
            yield item
        await asyncio.sleep(0)


class _StagedReader(Reader):
    """The reader of the durable versions, caches and all, that also knows the files of a staged one."""

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
    """A version to build on: a `footprint.Source` of its objects and a `footprint.History` up to it. `staged`: the
    version itself, when it is not durable yet."""

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
        self._ids: set[str] = set()  # retry keys, too
        self._sequences: dict[str, int] = {}  # the highest, by the name of the idempotent writer
        if staged is not None:
            self._event = event_of(staged.record, follower.reader.keys, follower.catalog_id)
            self._moved = {change.name for change in self._event.changes}
            for member in staged.members:
                self._rivals.add(member.touches)
                recorded = member.recorded
                self._ids.update((recorded.id, recorded.cancels, recorded.key))
                if (writer := recorded.writer) is not None:
                    highest = max(writer.sequence, self._sequences.get(writer.name, 0))
                    self._sequences[writer.name] = highest
            self._ids.discard("")

    @property
    def staged_segments(self) -> Mapping[str, Content] | None:
        """What manifest segments list that the staged version made, by path; None when the version is durable."""
        return None if self.staged is None else self.staged.made

    @property
    def is_current(self) -> bool:
        """Whether this version is the durable head now."""
        return self._follower.head.commit_id == self.head.commit_id

    def can_judge(self, transaction: Transaction) -> bool:
        """Whether what the staged version will say to it is known already: not when it has or cancels the id, or has
        the retry key, nor to one that began at a version which this process does not know."""
        if self.staged is None:
            return True
        known = transaction.begin_version <= self._follower.head.version
        return known and transaction.id not in self._ids and transaction.key not in self._ids

    def may_have_sequence(self, transaction: Transaction) -> bool:
        """Whether the staged version may say that a writer's sequence was written: then only what is durable answers,
        and the rest waits."""
        writer = transaction.writer
        return writer is not None and self._sequences.get(writer.name, -1) >= writer.sequence

    def conflict(self, stakes: Stakes) -> Conflict | None:
        """The first conflict with a transaction of the staged version."""
        return self._rivals.conflict(stakes, self.version) if self.staged is not None else None

    async def tables_at(self, version: int, names: Sequence[ObjectName]) -> list[StoredObject | None]:
        """Tables as they stood at an earlier version: by what the versions since say, where those are in memory. Raises
        Expired."""
        first: dict[ObjectName, str] = {}  # the definition before the first change since
        for number in range(version + 1, self.version + 1):
            own = self._event if number == self.version else None
            event = own or self._follower.known_event(number)
            if event is None or number > version + EVENTS_WALKED_MAX:
                return list(await (await self.at(version)).load(names))
            for change in event.changes:
                first.setdefault(change.name, change.path_before)
        paths = {path: Kind.TABLE for name in names if (path := first.get(name))}
        before = await self.stored(paths) if paths else {}
        now = [name for name in names if name not in first]
        found = dict(zip(now, await self.load(now), strict=True)) if now else {}
        return [before.get(first[name]) if name in first else found[name] for name in names]

    # --- as a Source

    async def load(self, names: Sequence[ObjectName]) -> Sequence[StoredObject | None]:
        """From memory where the catalog is replayed, else from the tree."""
        state = self._follower.state
        if state is not None and state.version == self._follower.head.version:
            if self.is_current:
                held = await self._follower.replay.certain(state, names)
                return await self._snapshot.load(names) if held is None else held
            if self.staged is not None and self._follower.head.commit_id == self.staged.parent_commit_id:
                held = await self._follower.replay.certain(state, names)
                if held is not None:
                    return await self._load_over(held, names)
        return await self._snapshot.load(names)

    async def load_durable(self, names: Sequence[ObjectName]) -> Sequence[StoredObject | None]:
        """As the newest durable version has them."""
        return await (await self._follower.snapshot()).load(names)

    async def _load_over(
        self, before: Sequence[StoredObject | None], names: Sequence[ObjectName]
    ) -> Sequence[StoredObject | None]:
        """`before`: the objects as the version before the staged one has them."""
        moved = [name for name in names if name in self._moved]
        if not moved:
            return before
        after = dict(zip(moved, await self._snapshot.load(moved), strict=True))
        return [after.get(name, stored) for name, stored in zip(names, before, strict=True)]

    # --- as a History

    async def at(self, version: int) -> Source:
        return self._snapshot if version == self.version else await self._follower.snapshot(version)

    async def changed_since(
        self, version: int, kinds: frozenset[Kind]
    ) -> AsyncIterator[tuple[ObjectName, StoredObject]]:
        before = await self._follower.snapshot(version)
        async for found in self._snapshot.created_or_changed_since(before, kinds):
            yield found

    def actions_since(self, version: int) -> AsyncIterator[Action]:
        return actions_down(self._event_at, range(self.version, version, -1))

    async def events_down(self, after: int) -> AsyncGenerator[Event, None]:
        """Of the versions up to this one, the newest first, down to the one after `after`: those in memory, and
        `EVENTS_READ_MAX` below."""
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
        return await self._follower.told(version)

    async def stored(self, paths: Mapping[str, Kind]) -> Mapping[str, StoredObject]:
        return await self.reader.stored(paths)
