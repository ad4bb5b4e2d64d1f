"""The objects of one version in memory, for a replica: what is there, and names in key order. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from alpheus_journal import format as fmt
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definitions import Definition


class Entry:
    """An object, and its definition once somebody read it."""

    __slots__ = ("definition", "stored")

    def __init__(self, stored: StoredObject) -> None:
        self.stored = stored
        self.definition: Definition | None = None


class Contents:
    """The objects of one version, and their names in key order. Not safe for several threads by itself."""

    def __init__(self, keys: fmt.Keys) -> None:
        self._keys = keys
        self.objects: dict[ObjectName, Entry] = {}
        self._names: dict[tuple[Kind, str], set[str]] = {}
        self._sorted: dict[tuple[Kind, str], list[str]] = {}  # of those that were listed: as keys sort

    def set(self, name: ObjectName, stored: StoredObject) -> None:
        if name not in self.objects:
            place, last = _listing_of(name)
            self._names.setdefault(place, set()).add(last)
            if place in self._sorted:
                insort(self._sorted[place], self._sort_key(last))
        self.objects[name] = Entry(stored)

    def remove(self, name: ObjectName) -> None:
        del self.objects[name]
        place, last = _listing_of(name)
        names = self._names[place]
        names.remove(last)
        if not names:
            del self._names[place]
            self._sorted.pop(place, None)
        elif place in self._sorted:
            order = self._sorted[place]
            del order[bisect_left(order, self._sort_key(last))]

    def path(self, name: ObjectName) -> str:
        """Of the definition; empty when the object is not there."""
        entry = self.objects.get(name)
        return entry.stored.path if entry is not None else ""

    def names(self, kind: Kind, namespace: str, prefix: str, limit: int, after: str) -> list[str]:
        """Names that begin with `prefix` and lie above `after`, in key order; at most `limit`, 0: all."""
        place = (kind, namespace if kind in (Kind.TABLE, Kind.VIEW) else "")
        order = self._sorted.get(place)
        if order is None:
            order = sorted(map(self._sort_key, self._names.get(place, ())))
            if order:  # what is empty is not remembered: its namespace may go
                self._sorted[place] = order
        start = bisect_left(order, prefix)
        end = bisect_left(order, fmt.after_prefix(prefix)) if prefix else len(order)
        if after:
            start = max(start, bisect_right(order, self._sort_key(after)))
        if limit:
            end = min(end, start + limit)
        return [text.rstrip(" ") for text in order[start:end]]

    def _sort_key(self, name: str) -> str:
        """Keys sort padded with spaces. That only matters where a name may hold a character below the space."""
        return name if self._keys.version_digits == 32 else name.ljust(fmt.NAME_SIZE_BYTES_MAX)


def _listing_of(name: ObjectName) -> tuple[tuple[Kind, str], str]:
    """Where a name is listed: its kind and, of tables and views, namespace; and the text that is listed there."""
    if name.kind is Kind.NAMESPACE:
        return (name.kind, ""), name.namespace
    return (name.kind, name.namespace), name.name
