"""What tables keep by rules of their own (FORMAT.md, "Rules of namespaces and tables")."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import Key, Kind, ObjectName
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definition_messages import decode_definition, has_checksum
from alpheus_journal.model.definitions import NamespaceDef, TableDef
from alpheus_journal.model.history_rules import HISTORY_PREFIX, HistoryRules, parse_history_rules
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.state import State
from alpheus_journal.tree.reader import Reader, Snapshot

OBJECTS_AT_ONCE = 100
LOOKED_AT_ONCE = 16
"""Other work of the event loop has its turn after so many definitions."""
NODE_CACHE_BYTES = 8 << 20
DEFINITION_CACHE_BYTES = 1 << 20
"""Each definition is read once, so a cache would only take memory."""
_MARK = HISTORY_PREFIX.encode()


async def find_history_rules(follower: Follower) -> dict[ObjectName, HistoryRules]:
    """Return the rules of the tables at the head, by the object that they come from: the table if it has a rule of its
    own, else its namespace.

    Reads the definitions of all namespaces and tables, from memory where the catalog is loaded. Raises Corrupt for a
    definition that cannot be read, and InvalidInput for a value that is no rule.
    """
    state = follower.replay.readable
    view = _View(follower, None if state is None else state.copy())
    namespaces: dict[str, HistoryRules] = {}
    async for name, stored in view.each_concerned(Kind.NAMESPACE):
        rules = _rules_of(name, stored)
        if rules is not None:
            namespaces[name.namespace] = rules
    found: dict[ObjectName, HistoryRules] = {}
    async for name, stored in view.each_concerned(Kind.TABLE, whatever=bool(namespaces)):
        own, inherited = _rules_of(name, stored), namespaces.get(name.namespace)
        if own is not None:
            found[name] = own.or_else(inherited or HistoryRules())
        elif inherited is not None:
            found[ObjectName(Kind.NAMESPACE, name.namespace)] = inherited
    return found


class _View:
    """One version for all that is read, so that no commit beside the search moves a table or a rule past it."""

    def __init__(self, follower: Follower, state: State | None) -> None:
        head, log = follower.head, follower.log
        self._state, self._keys = state, follower.reader.keys
        self._reader = Reader(
            log.storage,
            self._keys,
            node_size_max=log.node_size_max,
            node_cache_bytes=NODE_CACHE_BYTES,
            definition_cache_bytes=DEFINITION_CACHE_BYTES,
        )
        self._snapshot = Snapshot(self._reader, head.version, head.root, head.catalog_def, follower.root)

    async def each_concerned(
        self, kind: Kind, *, whatever: bool = False
    ) -> AsyncIterator[tuple[ObjectName, StoredObject]]:
        """Yield the objects of a kind that may have rules, damaged ones too; all of the kind with `whatever`."""
        low, high = self._keys.bounds(kind)
        more = True
        while more:
            part = await self._read_part(kind, low, high)
            for number, (key, stored) in enumerate(part):
                if number % LOOKED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if whatever or _may_have_rules(stored):
                    yield self._keys.parse(key), stored
            more = len(part) == OBJECTS_AT_ONCE
            if part:
                low = Key(part[-1][0] + "\0")

    async def _read_part(self, kind: Kind, low: Key, high: Key) -> list[tuple[Key, StoredObject]]:
        if self._state is not None:
            return self._state.part(low, high, OBJECTS_AT_ONCE)
        rows = await self._snapshot.rows(low, high, OBJECTS_AT_ONCE)
        read = await self._reader.stored({path: kind for _, path in rows})
        return [(key, read[path]) for key, path in rows]


def _may_have_rules(stored: StoredObject) -> bool:
    """Return False for most objects: whole, and without a rule. Nothing is decoded."""
    return _MARK in stored.definition or not has_checksum(stored.definition)


def _rules_of(name: ObjectName, stored: StoredObject) -> HistoryRules | None:
    """Return the rules in an object's definition, or None where it has none."""
    try:
        if (damage := stored.error()) is not None:
            raise damage
        if not _may_have_rules(stored):
            return None
        definition = decode_definition(name.kind, stored.definition, stored.path)
        assert isinstance(definition, NamespaceDef | TableDef)
        rules = parse_history_rules(definition.properties, str(name))
    except Corrupt as error:
        raise Corrupt(
            f"no version expires, because it is unknown which versions {name} keeps: {error.message}",
            kind=error.kind,
            path=stored.path,
            hint=f"restore {stored.path} from a copy, or drop the {name.kind.label}",
        ) from error
    except InvalidInput as error:
        raise InvalidInput(
            f"no version expires, because it is unknown which versions {name} keeps: {error.message}",
            kind=error.kind,
            hint=error.hint,
        ) from error
    return None if rules == HistoryRules() else rules
