"""What tables keep by rules of their own (FORMAT.md, "Rules of namespaces and tables")."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

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
WEIGHT_AT_ONCE = 32 << 10
"""Other work of the event loop has its turn after definitions of so many bytes, which take about ten milliseconds to
decode."""
OTHERS_NAMED = 10
"""The most objects with unknown rules that an error names besides the first."""
OBJECT_WEIGHT = 2 << 10
"""What a definition weighs besides its bytes."""
NODE_CACHE_BYTES = 8 << 20
DEFINITION_CACHE_BYTES = 1 << 20
"""Each definition is read once, so a cache would only take memory."""
_MARK = HISTORY_PREFIX.encode()


async def find_history_rules(follower: Follower) -> dict[ObjectName, HistoryRules]:
    """Return the rules of the tables at the head, by the object that they come from: the table if it has a rule of its
    own, else its namespace.

    Reads the definitions of all namespaces and tables, from memory where the catalog is loaded and memory was compared
    with the tree: what expires does not come back. Raises Corrupt for a definition that cannot be read, and
    InvalidInput for a value that is no rule; the error names all such objects.
    """
    state = follower.replay.verified
    view = _View(follower, None if state is None else state.copy())
    unknown = _Unknown()
    namespaces: dict[str, HistoryRules] = {}
    async for name, stored in view.each_concerned(Kind.NAMESPACE):
        rules = unknown.rules_of(name, stored)
        if rules is not None:
            namespaces[name.namespace] = rules
    found: dict[ObjectName, HistoryRules] = {}
    async for name, stored in view.each_concerned(Kind.TABLE, whatever=bool(namespaces)):
        own, inherited = unknown.rules_of(name, stored), namespaces.get(name.namespace)
        if own is not None:
            found[name] = own.or_else(inherited or HistoryRules())
        elif inherited is not None:
            found[ObjectName(Kind.NAMESPACE, name.namespace)] = inherited
    unknown.check()
    return found


class ShortRules(msgspec.Struct, frozen=True):
    """A native table whose rules say both how long and how many versions it keeps, its namespace's included."""

    name: ObjectName
    table_id: str
    age_millis: int
    keep_versions: int


async def find_short_rules(follower: Follower) -> AsyncIterator[ShortRules]:
    """Yield the tables at the head with both rules, in key order. Passes over definitions that cannot be read, and over
    values that are no rules: those tables keep everything."""
    state = follower.replay.verified
    view = _View(follower, None if state is None else state.copy())
    namespaces: dict[str, HistoryRules] = {}
    async for name, stored in view.each_concerned(Kind.NAMESPACE):
        with contextlib.suppress(Corrupt, InvalidInput):
            namespaces[name.namespace] = _rules_of(name, stored) or HistoryRules()
    async for name, stored in view.each_concerned(Kind.TABLE, whatever=bool(namespaces)):
        inherited = namespaces.get(name.namespace, HistoryRules())
        if not inherited.is_whole and not _may_have_rules(stored):
            continue
        try:
            rules = (_rules_of(name, stored) or HistoryRules()).or_else(inherited)
            if not rules.is_whole:
                continue
            definition = decode_definition(name.kind, stored.definition, stored.path)
        except (Corrupt, InvalidInput):
            continue
        assert isinstance(definition, TableDef)
        if definition.native and rules.age_millis is not None and rules.keep_versions is not None:
            yield ShortRules(name, definition.id, rules.age_millis, rules.keep_versions)


class _Unknown:
    """The objects whose rules cannot be read. One error tells of all, so that nobody mends one after each expiry."""

    def __init__(self) -> None:
        self._first: Corrupt | InvalidInput | None = None
        self._others: list[str] = []
        self._others_count = 0

    def rules_of(self, name: ObjectName, stored: StoredObject) -> HistoryRules | None:
        """Return the rules of an object, as `_rules_of`; None where they cannot be read."""
        try:
            return _rules_of(name, stored)
        except (Corrupt, InvalidInput) as error:
            if self._first is None:
                self._first = error
            else:
                self._others_count += 1
                if len(self._others) < OTHERS_NAMED:
                    self._others.append(str(name)[:200])
            return None

    def check(self) -> None:
        """Raise the error of the first object, with the names of the others."""
        if self._first is None:
            return
        if self._others:
            more = self._others_count - len(self._others)
            self._first.message += f"; nor is it known of {', '.join(self._others)}"
            self._first.message += f" and {more} more" if more else ""
        raise self._first


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
        more, weight = True, 0
        while more:
            part = await self._read_part(kind, low, high)
            for key, stored in part:
                weight += OBJECT_WEIGHT + len(stored.definition)
                if weight >= WEIGHT_AT_ONCE:
                    await asyncio.sleep(0)
                    weight = 0
                if whatever or _may_have_rules(stored):
                    yield self._keys.parse(key), stored
            more = len(part) == OBJECTS_AT_ONCE
            if part:
                low = Key(part[-1][0] + "\0")

    async def _read_part(self, kind: Kind, low: Key, high: Key) -> list[tuple[Key, StoredObject]]:
        if self._state is not None:
            return self._state.part(low, high, OBJECTS_AT_ONCE)
        await self._reader.rule_out_utf16_order(self._snapshot.root, [low])
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
