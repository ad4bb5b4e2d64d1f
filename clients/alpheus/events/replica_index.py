"""The objects of one version in memory, for a replica: by name, and as names in key order. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from alpheus_journal import format as fmt
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definitions import Definition


class Entry:
    """An object, and its decoded definition once a reader has asked for it."""

    __slots__ = ("definition", "stored")

    def __init__(self, stored: StoredObject) -> None:
        self.stored = stored
        self.definition: Definition | None = None


class Contents:
    """The objects of one version, and their names in key order. Not thread-safe: callers hold a lock."""

    def __init__(self, keys: fmt.Keys) -> None:
        self._keys = keys
        self.objects: dict[ObjectName, Entry] = {}
        self._names: dict[tuple[Kind, str], set[str]] = {}
        self._sorted: dict[
            tuple[Kind, str], list[str]
        ] = {}  # sort keys in order, for listings already asked for

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
        """Return the path of the object's definition, or "" when the object does not exist."""
        entry = self.objects.get(name)
        return entry.stored.path if entry is not None else ""

    def names(self, kind: Kind, namespace: str, prefix: str, limit: int, after: str) -> list[str]:
        """Return names that begin with `prefix` and sort above `after`, in key order. At most `limit`; 0 means all."""
        place = (kind, namespace if kind in (Kind.TABLE, Kind.VIEW) else "")
        order = self._sorted.get(place)
        if order is None:
            order = sorted(map(self._sort_key, self._names.get(place, ())))
            if order:  # an empty listing is not kept: its namespace may be dropped
                self._sorted[place] = order
        start = bisect_left(order, prefix)
        end = bisect_left(order, fmt.after_prefix(prefix)) if prefix else len(order)
        if after:
            start = max(start, bisect_right(order, self._sort_key(after)))
        if limit:
            end = min(end, start + limit)
        return [text.rstrip(" ") for text in order[start:end]]

    def _sort_key(self, name: str) -> str:
        """Return the name as its key sorts, padded with spaces. Padding only matters where names may contain characters
        below the space."""
        return name if self._keys.version_digits == 32 else name.ljust(fmt.NAME_SIZE_BYTES_MAX)


def _listing_of(name: ObjectName) -> tuple[tuple[Kind, str], str]:
    """Return ((kind, namespace), text): the listing that a name belongs to, and the text that it has there. The
    namespace is "" except for tables and views."""
    if name.kind is Kind.NAMESPACE:
        return (name.kind, ""), name.namespace
    return (name.kind, name.namespace), name.name
