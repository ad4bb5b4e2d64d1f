"""The catalog in memory: a fold over versions. Pure: facts in, events out.

    state' = apply(state, record)

`State` after applying the records of versions a+1 ... b to the entries of version a equals a scan of the tree
at b; each application checks the half of that it can see, so that a lost or invented change is Corrupt at
once and not a wrong answer later.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.access import Change, ChangeType, Event, Page, StoredObject, make_token
from alpheus_journal.actions import RecordedTransaction
from alpheus_journal.errors import Corrupt
from alpheus_journal.format import Key, Kind, ObjectName
from alpheus_journal.snapshot import KeyChange, names_of, page_of, page_size


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one version: its root's own words, and the structural diff to the version before.

    `catalog_def_before` is empty for version 0.
    """

    version: int
    commit_id: str
    created_at_millis: int
    transactions: tuple[RecordedTransaction, ...]
    changes: tuple[KeyChange, ...]  # keys ascending
    catalog_def_before: str
    catalog_def_after: str


def change_type(before: str | None, after: str | None) -> ChangeType:
    if not before:
        return "created"
    return "updated" if after else "dropped"


def event_of(record: VersionRecord, keys: fmt.Keys, catalog_id: str) -> Event:
    """The event that watchers receive for a version."""
    changes: list[Change] = []
    if record.catalog_def_before != record.catalog_def_after:
        changes.append(
            Change(
                name=fmt.CATALOG,
                type=change_type(record.catalog_def_before, record.catalog_def_after),
                path_before=record.catalog_def_before,
                path_after=record.catalog_def_after,
            )
        )
    for key, before, after in record.changes:
        changes.append(
            Change(
                name=keys.parse(key),
                type=change_type(before, after),
                path_before=before or "",
                path_after=after or "",
            )
        )
    return Event(
        version=record.version,
        created_at_millis=record.created_at_millis,
        token=make_token(catalog_id, record.version, record.commit_id),
        transactions=record.transactions,
        changes=tuple(changes),
    )


class State:
    """Every live object of one version, in memory, with its definition as stored. A damaged definition harms its
    object alone."""

    def __init__(
        self,
        *,
        keys: fmt.Keys,
        catalog_id: str,
        version: int,
        created_at_millis: int,
        catalog: StoredObject,
        entries: Iterable[tuple[Key, StoredObject]],
    ) -> None:
        self.keys = keys
        self.catalog_id = catalog_id
        self.version = version
        self.created_at_millis = created_at_millis
        self._catalog = catalog
        self._objects: dict[Key, StoredObject] = dict(entries)
        self._order: list[Key] = sorted(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def apply(self, record: VersionRecord, definitions: Mapping[str, StoredObject]) -> Event:
        """Move to the next version. `definitions`: every one that the record adds, by path.

        Raises Corrupt (`corrupt_history`) and changes nothing when the record does not continue this state.
        """

        def corrupt(reason: str) -> Corrupt:
            return Corrupt(
                f"version {record.version}: {reason}", kind="corrupt_history", version=record.version
            )

        if record.version != self.version + 1:
            raise corrupt(f"it does not follow version {self.version}")
        foreign = record.commit_id.startswith("sha256-")  # other writers take their clock as it is
        if record.created_at_millis < self.created_at_millis and not foreign:
            raise corrupt("it was created before the version below it")
        if record.catalog_def_before != self._catalog.path:
            raise corrupt(f"its catalog definition was {record.catalog_def_before}, not {self._catalog.path}")
        for key, before, _ in record.changes:
            held = self._objects.get(key)
            if (held.path if held else None) != before:
                raise corrupt(f"{self.keys.parse(key)} was {before}, in memory {held.path if held else None}")
        # A renamed object keeps its definition, which is then among the paths that went.
        moved = {before: self._objects[key] for key, before, _ in record.changes if before is not None}
        for key, before, after in record.changes:
            if after is None:
                del self._objects[key]
                del self._order[bisect_left(self._order, key)]
                continue
            added = definitions.get(after)
            self._objects[key] = moved[after] if added is None else added
            if before is None:
                insort(self._order, key)
        if record.catalog_def_after != self._catalog.path:
            self._catalog = definitions[record.catalog_def_after]
        self.version = record.version
        self.created_at_millis = max(self.created_at_millis, record.created_at_millis)
        return event_of(record, self.keys, self.catalog_id)

    def get(self, name: ObjectName) -> StoredObject | None:
        if name.kind is Kind.CATALOG:
            return self._catalog
        stored = self._objects.get(self.keys.key(name))
        if stored is None and not name.full_name.isascii():
            stored = self._objects.get(self.keys.other_padding().key(name))
        return stored

    def load(self, names: Sequence[ObjectName]) -> tuple[StoredObject | None, ...]:
        return tuple(self.get(name) for name in names)

    def names(
        self, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page:
        """As `Snapshot.names`."""
        size = page_size(limit)
        found: list[str] = []
        for low, high in self.keys.ranges(kind, namespace, prefix, after):
            start, end = bisect_left(self._order, low), bisect_left(self._order, high)
            count = len(found) + size
            while start < end and len(found) <= count:
                step = min(end, start + size + 1)
                found += names_of(self.keys, kind, namespace, self._order[start:step])
                start = step
        return page_of(self.version, found, size)

    def entries(self) -> list[tuple[Key, str]]:
        """Every key with its definition path, in order: equal to a scan of the tree at `version`."""
        return [(key, self._objects[key].path) for key in self._order]
