"""Every live object of one version, part by part: the start of a copy of the catalog.

While the version is the head of a catalog in memory, each part is sliced from memory. When the catalog has moved on,
the rest comes from the version's own tree, and unchanged definitions from memory. So nothing is copied or held back for
a slow reader. A reader costs its current part and a position.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator

from alpheus_journal import format as fmt
from alpheus_journal.format import Key, Kind
from alpheus_journal.model.answers import LiveObject, StoredObject
from alpheus_journal.replay.state import State
from alpheus_journal.tree.reader import Snapshot

PART_OBJECTS_MAX = 500
PART_BYTES_MAX = 1 << 20
"""The size of the definitions in one part. A single definition may be larger."""

_LAST = Key(chr(0x10FFFF))


class LiveReading:
    """One reading of a version. `state` returns the catalog in memory at its current version, or None."""

    def __init__(
        self, snapshot: Snapshot, state: Callable[[], State | None], namespaces: frozenset[str]
    ) -> None:
        self._snapshot = snapshot
        self._state = state
        self._namespaces = namespaces
        self._keys = snapshot.reader.keys

    async def parts(self) -> AsyncGenerator[tuple[LiveObject, ...], None]:
        """Yield the parts, none of which is empty.

        Raises Corrupt for a damaged node. A damaged definition is an object with damage.
        """
        if not self._namespaces:
            (catalog,) = await self._snapshot.load([fmt.CATALOG])
            assert catalog is not None
            yield (LiveObject(fmt.CATALOG, catalog),)
        for low, high in self._ranges():
            while True:
                found = await self._load_some(low, high)
                for part in _split_parts(self._select(found)):
                    yield part
                if len(found) < PART_OBJECTS_MAX:
                    break
                low = Key(found[-1][0] + "\0")

    def _ranges(self) -> Iterator[tuple[Key, Key]]:
        if not self._namespaces:
            yield Key(""), _LAST
            return
        for kind in (Kind.NAMESPACE, Kind.TABLE, Kind.VIEW):
            for namespace in sorted(self._namespaces):
                if kind is Kind.NAMESPACE:
                    name = fmt.namespace_name(namespace)
                    for key in sorted({self._keys.key(name), self._keys.other_padding().key(name)}):
                        yield key, Key(key + "\0")
                else:
                    yield from self._keys.ranges(kind, namespace)

    async def _load_some(self, low: Key, high: Key) -> list[tuple[Key, StoredObject]]:
        state = self._state()
        if state is not None and state.version == self._snapshot.version:
            return state.part(low, high, PART_OBJECTS_MAX)
        rows = await self._snapshot.rows(low, high, PART_OBJECTS_MAX)
        state = self._state()
        known: dict[Key, StoredObject] = {}
        missing: dict[str, Kind] = {}
        names = {key: self._keys.parse(key) for key, _ in rows}
        for key, path in rows:
            held = state.get(names[key]) if state is not None else None
            if held is not None and held.path == path:
                known[key] = held
            else:
                missing[path] = names[key].kind
        read = await self._snapshot.reader.stored(missing) if missing else {}
        return [(key, known[key] if key in known else read[path]) for key, path in rows]

    def _select(self, found: list[tuple[Key, StoredObject]]) -> Iterator[LiveObject]:
        for key, stored in found:
            name = self._keys.parse(key)
            # Between the keys of a namespace outside ASCII there may be keys of a longer namespace's objects.
            if not self._namespaces or name.namespace in self._namespaces:
                yield LiveObject(name, stored)


def _split_parts(objects: Iterator[LiveObject]) -> Iterator[tuple[LiveObject, ...]]:
    part: list[LiveObject] = []
    size = 0
    for live in objects:
        if part and size + len(live.stored.definition) > PART_BYTES_MAX:
            yield tuple(part)
            part, size = [], 0
        part.append(live)
        size += len(live.stored.definition)
    if part:
        yield tuple(part)
