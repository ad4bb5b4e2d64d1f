"""The catalog in memory: a fold over versions. Pure: facts in, events out.

    state' = apply(state, record)

A state consists of a `Flat` of some version, which may be a mapped checkpoint, and of the changes since (the overlay).

A `State` made from the entries of version a and the records of versions a+1 ... b equals a scan of the tree at b. Each
application checks the part of this invariant that it can see. So a lost or invented change raises Corrupt immediately,
and does not become a wrong answer later.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt
from alpheus_journal.format import Key, Kind, ObjectName
from alpheus_journal.log.times import resets_times
from alpheus_journal.model.answers import Change, ChangeType, Event, Page, StoredObject, make_token
from alpheus_journal.model.operations import RecordedTransaction
from alpheus_journal.replay.flat import Flat, groups, pack, pack_name, runs, unpack
from alpheus_journal.tree.node import Node
from alpheus_journal.tree.reader import KeyChange, page_of, page_size

OVERLAY_MIN = 10_000
"""An overlay up to this size is never merged for its size alone."""
OVERLAY_SHARE = 8
"""A larger overlay is merged once it exceeds the base's size divided by this."""
ROWS_AT_ONCE = 1024


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The newest version known to this process."""

    version: int
    created_at_millis: int
    commit_id: str
    token: str
    root: Node
    catalog_def: str
    revision: int
    """The revision of the format in which the version is written."""


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One version: the content of its root, and the structural diff to the version before.

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
    """Return the event that subscribers receive for a version."""
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


OverlayChanges = list[tuple[bytes, StoredObject | None]]
"""Packed keys, ascending, with their objects; None stands for a dropped object."""

_UNCHANGED = StoredObject("", b"")
_TABLE = fmt.TYPE_IDS[Kind.TABLE]


class State:
    """Every live object of one version, in memory, with its definition as stored.

    A damaged definition harms its object alone.

    * `entries`: objects that are added to those of `flat` or replace them; None drops an object. They include an
      object for each of the `missing` rows of `flat`.
    * `trusts_checkpoint`: the definitions of `flat` came from a checkpoint, and were not read from their own files.
    """

    def __init__(
        self,
        *,
        keys: fmt.Keys,
        catalog_id: str,
        version: int,
        created_at_millis: int,
        catalog: StoredObject,
        entries: Iterable[tuple[Key, StoredObject | None]] = (),
        flat: Flat | None = None,
        trusts_checkpoint: bool = False,
    ) -> None:
        self.trusts_checkpoint = trusts_checkpoint
        self.keys = keys
        self.catalog_id = catalog_id
        self.version = version
        self.created_at_millis = created_at_millis
        self._catalog = catalog
        overlay: dict[bytes, StoredObject | None] = {pack(key): stored for key, stored in entries}
        if flat is None:
            live = sorted((key, stored) for key, stored in overlay.items() if stored is not None)
            flat = Flat.of(live)
            overlay = {key: stored for key, stored in live if stored.damage}
        self._flat = flat
        self._overlay = overlay
        assert all(flat.keys[row] in self._overlay for row in flat.missing), (
            "every definition is known, or damaged"
        )
        self._order: list[bytes] = sorted(self._overlay)
        self._count = len(flat)
        low, high = (pack(bound) for bound in keys.bounds(Kind.TABLE))
        self._table_count = flat.keys.position(high) - flat.keys.position(low)
        for key, lives in self.presence():
            more = lives - (flat.keys.find(key) >= 0)
            self._count += more
            self._table_count += more * (low <= key < high)

    def __len__(self) -> int:
        return self._count

    @property
    def table_count(self) -> int:
        return self._table_count

    @property
    def flat(self) -> Flat:
        """The base: every object of this version or an earlier one."""
        return self._flat

    @property
    def overlay_count(self) -> int:
        """Objects that differ from the base."""
        return len(self._overlay)

    @property
    def wants_merge(self) -> bool:
        """Whether the overlay is so large that it costs more than a new base would."""
        return len(self._overlay) > max(OVERLAY_MIN, len(self._flat) // OVERLAY_SHARE)

    def copy(self) -> State:
        """Return a copy that keeps this version while this object moves on."""
        other = State.__new__(State)
        other.__dict__.update(self.__dict__)
        other._overlay, other._order = dict(self._overlay), list(self._order)
        return other

    def overlay(self) -> OverlayChanges:
        """Return the changes from the base to this version, as `flat.merged` takes them."""
        return [(key, self._overlay[key]) for key in self._order]

    def rebase(self, flat: Flat, merged: OverlayChanges) -> None:
        """Take a new base in one step.

        The new base is the old one with the changes of `merged`, which was this state's overlay at some time since the
        last such step. Later changes stay in the overlay, and so do damaged objects.
        """
        for key, stored in merged:
            if self._overlay.get(key, _UNCHANGED) is stored and not (stored and stored.damage):
                del self._overlay[key]
        self._order = sorted(self._overlay)
        self._flat = flat

    def presence(self) -> list[tuple[bytes, bool]]:
        """Return the packed keys of the overlay, ascending, each with whether its object exists."""
        return [(key, self._overlay[key] is not None) for key in self._order]

    # --- moving on

    def apply(self, record: VersionRecord, definitions: Mapping[str, StoredObject]) -> Event:
        """Move to the next version. `definitions` holds every definition that the record adds, by path.

        Raises Corrupt, and changes nothing, when the record does not continue this state. The kind is
        `corrupt_history`, or `state_drift` when this state differs from the tree of its version.
        """

        def corrupt(reason: str, kind: str = "corrupt_history") -> Corrupt:
            return Corrupt(f"version {record.version}: {reason}", kind=kind, version=record.version)

        if record.version != self.version + 1:
            raise corrupt(f"it does not follow version {self.version}")
        foreign = record.commit_id.startswith("sha256-")  # foreign writers use their clock as it is
        anew = resets_times(record.transactions)
        if record.created_at_millis < self.created_at_millis and not foreign and not anew:
            raise corrupt("its creation time lies before that of the version below")
        if record.catalog_def_before != self._catalog.path:
            raise corrupt(
                f"the catalog definition was {record.catalog_def_before}, but memory has {self._catalog.path}",
                "state_drift",
            )
        changes = [(pack(key), before, after) for key, before, after in record.changes]
        # A renamed object keeps its definition, whose path is then among those of the removed keys.
        moved: dict[str, StoredObject] = {}
        for (packed, before, _), (key, _, _) in zip(changes, record.changes, strict=True):
            held = self._held(packed)
            if (held.path if held else None) != before:
                raise corrupt(
                    f"{self.keys.parse(key)} was {before}, but memory has {held.path if held else None}",
                    "state_drift",
                )
            if held is not None:
                moved[held.path] = held
        now = [None if after is None else definitions.get(after) or moved[after] for _, _, after in changes]
        event = event_of(record, self.keys, self.catalog_id)
        # From here on nothing fails: a record is applied as a whole or not at all.
        for (packed, before, after), stored, (key, _, _) in zip(changes, now, record.changes, strict=True):
            if packed not in self._overlay:
                insort(self._order, packed)
            self._overlay[packed] = stored
            more = (after is not None) - (before is not None)
            self._count += more
            self._table_count += more * key.startswith(_TABLE)
        if record.catalog_def_after != self._catalog.path:
            self._catalog = definitions[record.catalog_def_after]
        self.version = record.version
        self.created_at_millis = record.created_at_millis  # the time that writers compare with
        return event

    # --- reading

    def _held(self, packed: bytes) -> StoredObject | None:
        stored = self._overlay.get(packed, _UNCHANGED)
        if stored is not _UNCHANGED:
            return stored
        row = self._flat.keys.find(packed)
        return None if row < 0 else self._flat.stored(row)

    def get(self, name: ObjectName) -> StoredObject | None:
        if name.kind is Kind.CATALOG:
            return self._catalog
        stored = self._held(pack_name(self.keys, name))
        if stored is None and not (name.namespace.isascii() and name.name.isascii()):
            stored = self._held(pack(self.keys.other_padding().key(name)))
        return stored

    def load(self, names: Sequence[ObjectName]) -> tuple[StoredObject | None, ...]:
        return tuple([self.get(name) for name in names])

    def from_checkpoint(self, packed: bytes) -> StoredObject | None:
        """Return an object whose definition came from a checkpoint; None if there is none of that kind."""
        if not self.trusts_checkpoint or packed in self._overlay:
            return None
        row = self._flat.keys.find(packed)
        return None if row < 0 else self._flat.stored(row)

    def names_from_checkpoint(self, names: Sequence[ObjectName]) -> list[ObjectName]:
        """Return those of `names` whose definitions came from a checkpoint."""
        if not self.trusts_checkpoint:
            return []
        return [
            name
            for name in names
            if name.kind is not Kind.CATALOG and pack_name(self.keys, name) not in self._overlay
        ]

    def names(
        self, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page:
        """List names, as `Snapshot.names` does."""
        size = page_size(limit)
        parent = namespace if kind in (Kind.TABLE, Kind.VIEW) else ""
        found: list[str] = []
        for low, high in self.keys.ranges(kind, namespace, prefix, after):
            count = len(found) + size
            keys = runs(self._flat.keys, self._order, self._lives, pack(low), pack(high))
            for _, group_namespace, names, _ in groups(self.keys, self._flat.keys, keys, at_once=size + 1):
                if group_namespace == parent:
                    found += names
                if len(found) > count:
                    break
        return page_of(self.version, found, size)

    def _lives(self, packed: bytes) -> bool:
        return self._overlay[packed] is not None

    def part(self, low: Key, high: Key, limit: int) -> list[tuple[Key, StoredObject]]:
        """Return the first `limit` objects of the half-open key range, in key order."""
        rows = islice(self._rows(pack(low), pack(high)), limit)
        return [
            (unpack(packed), self._flat.stored(row) if stored is None else stored)
            for packed, row, stored in rows
        ]

    def between(self, low: Key, high: Key | None) -> list[tuple[Key, str]]:
        """Return the keys of the half-open range with their definition paths, in order. A `high` of None is the end."""
        rows = self._rows(pack(low), None if high is None else pack(high))
        return [
            (unpack(packed), self._flat.path(row) if stored is None else stored.path)
            for packed, row, stored in rows
        ]

    def _rows(self, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, int, StoredObject | None]]:
        """Yield the packed keys of a range, each with its row in the base, or with the object of the overlay."""
        above_all = b"\xff"
        for run in runs(self._flat.keys, self._order, self._lives, low, above_all if high is None else high):
            if isinstance(run, bytes):
                yield run, -1, self._overlay[run]
                continue
            for start in range(run[0], run[1], ROWS_AT_ONCE):
                end = min(start + ROWS_AT_ONCE, run[1])
                for row, packed in enumerate(self._flat.keys.slice(start, end), start):
                    yield packed, row, None

    def entries(self) -> list[tuple[Key, str]]:
        """Return every key with its definition path, in order. Equals a scan of the tree at `version`."""
        return self.between(Key(""), None)
