"""Counts what a version has, where that is cheap: making a tag must not read the whole tree (FORMAT.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import msgspec

from alpheus_journal.errors import Corrupt
from alpheus_journal.format import Kind
from alpheus_journal.model.answers import Event, StoredObject
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.replay.state import State
from alpheus_journal.tree.reader import Reader, Snapshot

LEAVES_MAX = 64
"""The most leaves below a root that are read to count a version that memory does not hold."""
TABLES_READ_MAX = 32
"""The most tables whose definitions are read to count rows: those that one round of requests brings."""
TABLES_IN_MEMORY_MAX = 2_000
"""The most tables whose definitions are decoded from memory to count rows."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one version: entries of the tree, tables among them, and rows in the data files of native tables. None
    where counting would cost too much, or where something is damaged."""

    objects: int | None = None
    tables: int | None = None
    rows: int | None = None


async def count_version(
    snapshot: Snapshot, state: State | None, known_event: Callable[[int], Event | None]
) -> Counts:
    """Count a version: in memory at `state` or a little below it, else in the tree where the tree is small.

    `known_event` gives the events that are in memory.
    """
    found = Counts()
    if state is not None and state.version >= snapshot.version:
        found = _count_in_memory(snapshot.version, state, known_event)
    if found.rows is not None or (found.tables or 0) > TABLES_READ_MAX:
        return found
    with contextlib.suppress(Corrupt):  # whoever reads the damaged node is told
        if await _is_small(snapshot):
            return await count_entries(snapshot.reader, await snapshot.entries())
    return found


async def count_entries(reader: Reader, entries: Sequence[tuple[str, str]]) -> Counts:
    """Count the (key, definition path) pairs of a tree. The rows are counted where they are in few tables."""
    kinds = [reader.keys.parse(key).kind for key, _ in entries]
    tables = [path for kind, (_, path) in zip(kinds, entries, strict=True) if kind is Kind.TABLE]
    rows = None
    if len(tables) <= TABLES_READ_MAX:
        rows = _count_rows(list((await reader.stored(dict.fromkeys(tables, Kind.TABLE))).values()))
    return Counts(objects=len(entries), tables=len(tables), rows=rows)


def _count_in_memory(version: int, state: State, known_event: Callable[[int], Event | None]) -> Counts:
    """Count a version that memory holds, or that only known events separate from memory."""
    objects, tables = len(state), state.table_count
    for later in range(version + 1, state.version + 1):
        event = known_event(later)
        if event is None:
            return Counts()
        for change in event.changes:
            more = bool(change.path_after) - bool(change.path_before)
            if change.name.kind is not Kind.CATALOG:
                objects -= more
            if change.name.kind is Kind.TABLE:
                tables -= more
    rows = None
    if version == state.version and tables <= TABLES_IN_MEMORY_MAX:
        low, high = state.keys.bounds(Kind.TABLE)
        rows = _count_rows([stored for _, stored in state.part(low, high, tables)])
    return Counts(objects=objects, tables=tables, rows=rows)


async def _is_small(snapshot: Snapshot) -> bool:
    """Return whether the tree has at most two levels and few leaves. Reads one leaf at most."""
    children = snapshot.root.children
    if not children:
        return True
    if len(children) > LEAVES_MAX:
        return False
    first = await snapshot.reader.load_nodes(children[:1])
    return not any(node.children for node in first.values())


def _count_rows(tables: Sequence[StoredObject]) -> int | None:
    rows = 0
    for stored in tables:
        if stored.damage is not None:
            return None
        try:
            definition = decode_definition(Kind.TABLE, stored.definition, stored.path)
        except Corrupt:
            return None
        assert isinstance(definition, TableDef)
        rows += definition.row_count if definition.native else 0
    return rows
