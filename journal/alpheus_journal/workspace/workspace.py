"""Objects in layers: as they stand at one version, and after the operations that were executed on it.

Pure. A `Workspace` holds what was fetched beforehand (`execute.prefetch`). Executing an operation collects its changes
(`context.Changes`) and applies them all, or raises and leaves the workspace as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from alpheus_journal.errors import AlpheusError, Corrupt, InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import COLUMN_ID_MAX, Definition, Segment, TableDef
from alpheus_journal.model.operations import TableCounters
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest_merge import Content
from alpheus_journal.tree.reader import SizedCache

RECENT_SIZE_BYTES_MAX = 32 << 20
RECENT_DEFINITION_SIZE_BYTES_MAX = 16 << 10
DECODED_SIZE_FACTOR = 40
"""The bytes of memory that a decoded byte of a message can take."""

D = TypeVar("D", bound=Definition)

# --- objects, in layers ----------------------------------------------------------------------------


COUNTERS_GAP = 1_000_000
"""How far the counters of an undropped table jump where it is not known how far they got."""
SEQUENCE_MAX = (1 << 63) - 1
SCHEMA_ID_MAX = (1 << 31) - 1


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """A table's counters. They never decrease, even when the table is restored or undropped."""

    next_column_id: int
    sequence: int
    schema_id: int

    @staticmethod
    def of(table: TableDef | TableCounters) -> Counters:
        return Counters(
            next_column_id=table.next_column_id, sequence=table.sequence, schema_id=table.schema_id
        )

    def max(self, other: Counters | None) -> Counters:
        if other is None:
            return self
        return Counters(
            next_column_id=max(self.next_column_id, other.next_column_id),
            sequence=max(self.sequence, other.sequence),
            schema_id=max(self.schema_id, other.schema_id),
        )

    def record_for(self, table_id: str) -> TableCounters:
        """Return the counters with the id of their table, for a recorded operation."""
        return TableCounters(
            table_id=table_id,
            next_column_id=self.next_column_id,
            sequence=self.sequence,
            schema_id=self.schema_id,
        )

    def after_gap(self) -> Counters:
        """Return the counters after a jump, which ends at the largest value of each counter. No column id is left
        there; such a table gets no new column."""
        return self.max(
            Counters(
                next_column_id=min(self.next_column_id + COUNTERS_GAP, COLUMN_ID_MAX),
                sequence=min(self.sequence + COUNTERS_GAP, SEQUENCE_MAX),
                schema_id=min(self.schema_id + COUNTERS_GAP, SCHEMA_ID_MAX),
            )
        )


class Unfetched(Exception):
    """An execution needs the contents of manifest segments, each given with its table's id.

    The caller must fetch them (`add_segment`) and execute the operation again. The workspace is unchanged.
    """

    def __init__(self, segments: Sequence[tuple[str, Segment]]) -> None:
        super().__init__(f"{len(segments)} manifest segments")
        self.segments = segments


Recent = SizedCache[tuple[bytes, Definition]]
"""Recently written definitions with their bytes, by path, so that the next change of an object need not decode them.
They hold only frozen values."""


def recent_definitions() -> Recent:
    return SizedCache(RECENT_SIZE_BYTES_MAX)


class Workspace:
    """Objects as they stand at one version, and after the operations executed on it.

    Only objects that were fetched can be read. A fork sees its parent, and keeps its own changes until `absorb`.
    """

    def __init__(self, parent: Workspace | None = None, *, recent: Recent | None = None) -> None:
        self._parent = parent
        self._recent: Recent | None = parent._recent if parent is not None else recent
        self._objects: dict[ObjectName, StoredObject | None] = {}
        self._inside: dict[str, set[ObjectName]] = {}  # the tables and views among the objects, by namespace
        self._children: dict[str, frozenset[ObjectName]] = {}
        self._segments: dict[str, Content | AlpheusError] = {}
        self._past: dict[tuple[int, ObjectName], StoredObject | None] = {}
        self._past_children: dict[tuple[int, str], tuple[ObjectName, ...]] = {}
        self._counters: dict[tuple[int, str], Counters] = {}
        self._ended: list[tuple[ObjectName, StoredObject]] = []
        self._decoded: dict[str, tuple[bytes, Definition]] = parent._decoded if parent is not None else {}

    def definition(self, name: ObjectName, stored: StoredObject) -> Definition:
        """Return an object's definition; see `definition_of`. Decodes it once at most, and never after
        `remember_written`."""
        known = self._decoded.get(stored.path)
        if known is not None and known[0] is stored.definition:
            return known[1]
        written = self._recent.get(stored.path) if self._recent is not None else None
        if written is not None and written[0] == stored.definition:
            definition = written[1]
        else:
            definition = definition_of(name, stored)
        self._decoded[stored.path] = (stored.definition, definition)
        return definition

    def decode_readable(self, name: ObjectName, stored: StoredObject) -> Definition | None:
        """Return an object's definition, or None for a damaged one; see the function `decode_readable`."""
        try:
            return self.definition(name, stored)
        except Corrupt:
            return None

    def remember_written(self, stored: StoredObject, definition: Definition) -> None:
        """Remember that the bytes of `stored` encode `definition`."""
        size = len(stored.definition)
        if self._recent is not None and size <= RECENT_DEFINITION_SIZE_BYTES_MAX:
            self._recent.set(stored.path, (stored.definition, definition), size * DECODED_SIZE_FACTOR)

    # -- add what was fetched

    def add_object(self, name: ObjectName, stored: StoredObject | None) -> None:
        self._put(name, stored)

    def objects(self) -> Iterable[tuple[ObjectName, StoredObject | None]]:
        """The objects that were fetched into this workspace, as they were found."""
        return self._objects.items()

    def _put(self, name: ObjectName, stored: StoredObject | None) -> None:
        self._objects[name] = stored
        if name.kind in (Kind.TABLE, Kind.VIEW):
            self._inside.setdefault(name.namespace, set()).add(name)

    def add_children(self, namespace: str, children: Iterable[ObjectName]) -> None:
        """Add objects of a namespace: all of them, or at least one more than the operations drop."""
        self._children[namespace] = self._children.get(namespace, frozenset()) | frozenset(children)

    def add_segment(self, path: str, content: Content | AlpheusError) -> None:
        """Add a segment's content, or the error of reading it, which an execution that needs the segment raises."""
        self._segments[path] = content

    def add_past(self, version: int, name: ObjectName, stored: StoredObject | None) -> None:
        """Add an object as it stood at an earlier version."""
        self._past[version, name] = stored

    def add_past_children(self, version: int, namespace: str, children: Iterable[ObjectName]) -> None:
        self._past_children[version, namespace] = tuple(children)

    def add_counters(self, version: int, table_id: str, counters: Counters) -> None:
        """Add the counters that a table, which existed at `version`, had at its last drop, or higher ones."""
        self._counters[version, table_id] = counters

    # -- look up

    def _layers(self) -> Iterable[Workspace]:
        space: Workspace | None = self
        while space is not None:
            yield space
            space = space._parent

    def has(self, name: ObjectName) -> bool:
        space: Workspace | None = self
        while space is not None:
            if name in space._objects:
                return True
            space = space._parent
        return False

    def has_segment(self, path: str) -> bool:
        return any(path in layer._segments for layer in self._layers())

    def has_past(self, version: int, name: ObjectName) -> bool:
        return any((version, name) in layer._past for layer in self._layers())

    def has_past_children(self, version: int, namespace: str) -> bool:
        return any((version, namespace) in layer._past_children for layer in self._layers())

    def get(self, name: ObjectName) -> StoredObject | None:
        space: Workspace | None = self
        while space is not None:
            if name in space._objects:
                return space._objects[name]
            space = space._parent
        raise AssertionError(f"{name} was not fetched")

    def segment(self, path: str) -> tuple[DataFile, ...]:
        """Return the files of a segment that an operation brings."""
        found = self._content(path)
        assert isinstance(found, Content), f"segment {path} was not fetched"
        return found.files

    def _content(self, path: str) -> Content | AlpheusError | None:
        space: Workspace | None = self
        while space is not None:
            if path in space._segments:
                return space._segments[path]
            space = space._parent
        return None

    def contents(self, segments: Sequence[Segment], table_id: str) -> list[Content]:
        """Return the contents of a table's segments.

        Raises Unfetched when some were not fetched, or the error of reading one of them.
        """
        found = [self._content(segment.path) for segment in segments]
        missing = [(table_id, segment) for segment, one in zip(segments, found, strict=True) if one is None]
        if missing:
            raise Unfetched(missing)
        contents: list[Content] = []
        for one in found:
            if isinstance(one, AlpheusError):
                raise one
            assert one is not None
            contents.append(one)
        return contents

    def is_unreadable(self, segment: Segment) -> bool:
        """Return whether the segment was fetched and could not be read."""
        return isinstance(self._content(segment.path), AlpheusError)

    def past(self, version: int, name: ObjectName) -> StoredObject | None:
        for layer in self._layers():
            if (version, name) in layer._past:
                return layer._past[version, name]
        raise AssertionError(f"{name} at version {version} was not fetched")

    def past_children(self, version: int, namespace: str) -> tuple[ObjectName, ...]:
        for layer in self._layers():
            if (version, namespace) in layer._past_children:
                return layer._past_children[version, namespace]
        raise AssertionError(f"what namespace {namespace} held at version {version} was not fetched")

    def counters(self, version: int, table_id: str) -> Counters | None:
        """Return a dropped table's counters, or None when they are not known or the table has not been dropped."""
        for layer in self._layers():
            if (version, table_id) in layer._counters:
                return layer._counters[version, table_id]
        return None

    def tables_known(self) -> dict[str, Counters]:
        """Return the highest counters by table id, of every table that exists, existed below the changes, or was
        dropped by them. Damaged tables are left out."""
        found: dict[str, Counters] = {}
        for layer in self._layers():
            for name, stored in [*layer._objects.items(), *layer._ended]:
                if name.kind is Kind.TABLE and stored is not None:
                    try:
                        definition = self.definition(name, stored)
                    except (Corrupt, InvalidInput):
                        continue  # an operation that needs this table raises the error
                    assert isinstance(definition, TableDef)
                    found[definition.id] = Counters.of(definition).max(found.get(definition.id))
        return found

    def changed(self) -> Mapping[ObjectName, StoredObject | None]:
        """Return the objects that a fork has set, or that a base has fetched."""
        return self._objects

    def known(self) -> dict[ObjectName, StoredObject]:
        """Return every object that is known to exist, as it stands now."""
        seen: dict[ObjectName, StoredObject | None] = {}
        for layer in self._layers():
            for name, stored in layer._objects.items():
                seen.setdefault(name, stored)
        return {name: stored for name, stored in seen.items() if stored is not None}

    def children(self, namespace: str) -> set[ObjectName]:
        """Return the objects known to exist in a namespace now: those of `add_children`, and the changes since."""
        alive: set[ObjectName] = set()
        for layer in reversed(list(self._layers())):
            alive |= layer._children.get(namespace, frozenset())
            for name in layer._inside.get(namespace, ()):
                (alive.discard if layer._objects[name] is None else alive.add)(name)
        return alive

    # -- change

    def set(self, name: ObjectName, stored: StoredObject | None) -> None:
        if stored is None and name.kind is Kind.TABLE:
            before = self.get(name) if self.has(name) else None
            if before is not None:
                self._ended.append((name, before))
        self._put(name, stored)

    def fork(self) -> Workspace:
        return Workspace(self)

    def absorb(self, fork: Workspace) -> None:
        """Take over the changes of a fork."""
        for name, stored in fork._objects.items():
            self._put(name, stored)
        self._ended += fork._ended
        if fork._segments:
            self._segments.update(fork._segments)


def definition_of(name: ObjectName, stored: StoredObject) -> Definition:
    """Decode an object's definition. Raises Corrupt, or InvalidInput (`newer_format`)."""
    error = stored.error()
    if error is not None:
        raise error
    return decode_definition(name.kind, stored.definition, stored.path)


def decode_readable(name: ObjectName, stored: StoredObject) -> Definition | None:
    """Decode an object's definition, or return None for a damaged one: its content is lost, but the object can still be
    dropped. Raises InvalidInput (`newer_format`) for a definition that only newer software can read."""
    try:
        return definition_of(name, stored)
    except Corrupt:
        return None
