"""What an execution reads and what it leaves: objects in layers, the changes of one operation, and the checks that all
operations share.

Pure. A `Workspace` holds what was fetched beforehand (`alpheus_journal.execute.prefetch`); executing an operation
collects `Changes` and applies them to it at once, or raises and leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, AlreadyExists, Corrupt, InvalidInput, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definition_messages import decode_definition, encode_definition
from alpheus_journal.model.definitions import Definition, Reference, Segment, TableDef, ViewDef
from alpheus_journal.model.operation_messages import action_type
from alpheus_journal.model.operations import Action, Effect, Operation, Writer
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest_merge import Content, Made
from alpheus_journal.tree.reader import SizedCache

TEXT_SIZE_BYTES_MAX = 64 << 10
PROPERTIES_SIZE_BYTES_MAX = 256 << 10
RECENT_SIZE_BYTES_MAX = 32 << 20
RECENT_DEFINITION_SIZE_BYTES_MAX = 16 << 10
DECODED_SIZE_FACTOR = 40
"""A byte of a message can take so many in memory."""

D = TypeVar("D", bound=Definition)

# --- objects, in layers ----------------------------------------------------------------------------


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Of a table: they never go back, though it is restored or comes back."""

    next_column_id: int
    sequence: int
    schema_id: int

    @staticmethod
    def of(table: TableDef) -> Counters:
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


class Unfetched(Exception):
    """An execution needs the contents of manifest segments, each of a table by its id. Whoever executes fetches them
    (`fetched_segment`), and executes that operation again; the workspace is as it was."""

    def __init__(self, segments: Sequence[tuple[str, Segment]]) -> None:
        super().__init__(f"{len(segments)} manifest segments")
        self.segments = segments


Recent = SizedCache[tuple[bytes, Definition]]
"""Definitions that were written lately, with their bytes, by path: whoever changes an object again need not decode
them. Of what is decoded, frozen values only."""


def recent_definitions() -> Recent:
    return SizedCache(RECENT_SIZE_BYTES_MAX)


class Workspace:
    """Objects as they stand at one version, and after what was executed on top.

    Only what was fetched can be read. A fork sees its parent and keeps its own changes until `absorb`.
    """

    def __init__(self, parent: Workspace | None = None, *, recent: Recent | None = None) -> None:
        self._parent = parent
        self._recent: Recent | None = parent._recent if parent is not None else recent
        self._objects: dict[ObjectName, StoredObject | None] = {}
        self._inside: dict[str, set[ObjectName]] = {}  # of those the tables and views, by namespace
        self._children: dict[str, frozenset[ObjectName]] = {}
        self._segments: dict[str, Content | AlpheusError] = {}
        self._past: dict[tuple[int, ObjectName], StoredObject | None] = {}
        self._past_children: dict[tuple[int, str], tuple[ObjectName, ...]] = {}
        self._counters: dict[tuple[int, str], Counters] = {}
        self._ended: list[tuple[ObjectName, StoredObject]] = []
        self._decoded: dict[str, tuple[bytes, Definition]] = parent._decoded if parent is not None else {}

    def definition(self, name: ObjectName, stored: StoredObject) -> Definition:
        """As `definition_of`, decoded once, and not at all where it is known what was written."""
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

    def readable(self, name: ObjectName, stored: StoredObject) -> Definition | None:
        """As the function `readable`, decoded once."""
        try:
            return self.definition(name, stored)
        except Corrupt:
            return None

    def wrote(self, stored: StoredObject, definition: Definition) -> None:
        """The bytes are `definition`, encoded."""
        size = len(stored.definition)
        if self._recent is not None and size <= RECENT_DEFINITION_SIZE_BYTES_MAX:
            self._recent.set(stored.path, (stored.definition, definition), size * DECODED_SIZE_FACTOR)

    # -- what was fetched

    def fetched(self, name: ObjectName, stored: StoredObject | None) -> None:
        self._put(name, stored)

    def objects(self) -> Iterable[tuple[ObjectName, StoredObject | None]]:
        """What was fetched into this one, as it was found."""
        return self._objects.items()

    def _put(self, name: ObjectName, stored: StoredObject | None) -> None:
        self._objects[name] = stored
        if name.kind in (Kind.TABLE, Kind.VIEW):
            self._inside.setdefault(name.namespace, set()).add(name)

    def fetched_children(self, namespace: str, children: Iterable[ObjectName]) -> None:
        """Some objects that live in the namespace: all, or at least one more than operations drop."""
        self._children[namespace] = self._children.get(namespace, frozenset()) | frozenset(children)

    def fetched_segment(self, path: str, content: Content | AlpheusError) -> None:
        """`content`: an error where the segment cannot be read, which is raised for whoever needs it."""
        self._segments[path] = content

    def fetched_past(self, version: int, name: ObjectName, stored: StoredObject | None) -> None:
        """An object as it stood at an earlier version."""
        self._past[version, name] = stored

    def fetched_past_children(self, version: int, namespace: str, children: Iterable[ObjectName]) -> None:
        self._past_children[version, namespace] = tuple(children)

    def fetched_counters(self, version: int, table_id: str, counters: Counters) -> None:
        """How far those of a table that lived at `version` had got when it was dropped last."""
        self._counters[version, table_id] = counters

    # -- what is known

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
        """The files of a segment that an operation brings."""
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
        """What segments of a table list. Raises Unfetched when some were not fetched, and what reading one raised."""
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
        """Whether it was to be fetched, and could not be read."""
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
        """None when they are not known, or the table was not dropped up to here."""
        for layer in self._layers():
            if (version, table_id) in layer._counters:
                return layer._counters[version, table_id]
        return None

    def tables_known(self) -> dict[str, Counters]:
        """By id, the highest counters of every table that lives, lived below the changes, or ended by them; without
        the damaged."""
        found: dict[str, Counters] = {}
        for layer in self._layers():
            for name, stored in [*layer._objects.items(), *layer._ended]:
                if name.kind is Kind.TABLE and stored is not None:
                    try:
                        definition = self.definition(name, stored)
                    except (Corrupt, InvalidInput):
                        continue  # of some other table: whoever needs it is told
                    assert isinstance(definition, TableDef)
                    found[definition.id] = Counters.of(definition).max(found.get(definition.id))
        return found

    def changed(self) -> Mapping[ObjectName, StoredObject | None]:
        """Of a fork: what it set. Of a base: everything fetched."""
        return self._objects

    def known(self) -> dict[ObjectName, StoredObject]:
        """Everything that is known to live, as it stands now."""
        seen: dict[ObjectName, StoredObject | None] = {}
        for layer in self._layers():
            for name, stored in layer._objects.items():
                seen.setdefault(name, stored)
        return {name: stored for name, stored in seen.items() if stored is not None}

    def children(self, namespace: str) -> set[ObjectName]:
        """The objects known to live in a namespace now: `fetched_children` and what was executed since."""
        alive: set[ObjectName] = set()
        for layer in reversed(list(self._layers())):
            alive |= layer._children.get(namespace, frozenset())
            for name in layer._inside.get(namespace, ()):
                (alive.discard if layer._objects[name] is None else alive.add)(name)
        return alive

    # -- changing

    def set(self, name: ObjectName, stored: StoredObject | None) -> None:
        if stored is None and name.kind is Kind.TABLE:
            before = self.get(name) if self.has(name) else None
            if before is not None:
                self._ended.append((name, before))
        self._put(name, stored)

    def fork(self) -> Workspace:
        return Workspace(self)

    def absorb(self, fork: Workspace) -> None:
        """Take over what a fork changed."""
        for name, stored in fork._objects.items():
            self._put(name, stored)
        self._ended += fork._ended
        if fork._segments:
            self._segments.update(fork._segments)


# --- executing one operation -----------------------------------------------------------------------


class Executed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one operation did. `uploads`: definition path to bytes. `action.operation` has every id assigned."""

    action: Action
    uploads: dict[str, bytes] = {}
    rows_added: int = 0
    rows_removed: int = 0
    made: tuple[Made, ...] = ()  # manifest segments; their bytes are among the uploads


ASIDE_SIZE_BYTES_MIN = 256 << 10
"""Of manifest segments: looking at more takes some milliseconds and is done in a thread."""


class Aside(NamedTuple):
    """Work of an execution that touches nothing which others may change meanwhile. `size_bytes`: about what it looks
    at, of manifest segments; with much of it the work belongs into a thread."""

    work: Callable[[], Any]
    size_bytes: int


Steps = Generator[Aside | None, Any, Executed]
"""An execution that may take long: where it yields, others may have their turn; for work it is sent the result. Nothing
shows before it returns."""


class Spent:
    """What a transaction has cost so far."""

    __slots__ = ("made_size_bytes",)

    def __init__(self) -> None:
        self.made_size_bytes = 0  # of manifest segments that were made of others


class Context(Protocol):
    """What an execution needs besides the workspace."""

    @property
    def keys(self) -> fmt.Keys: ...

    @property
    def transaction_id(self) -> str: ...

    @property
    def writes(self) -> frozenset[str]:
        """Ids of the tables for which the transaction brings files."""
        ...

    @property
    def writer(self) -> Writer | None:
        """The idempotent writer that the tables with new rows remember."""
        ...

    @property
    def version(self) -> int:
        """In which the transaction will be."""
        ...

    @property
    def begin_version(self) -> int:
        """At which the transaction began: by what the workspace has of it (`has_past`) its claims are judged. -1: they
        are not."""
        ...

    @property
    def spent(self) -> Spent: ...

    @property
    def is_trial(self) -> bool:
        """What only a commit can look up is taken for granted: that data files are as manifest segments say."""
        ...

    @property
    def merges(self) -> bool:
        """Small manifest segments of a table that rows are added to are made one."""
        ...

    @property
    def brought(self) -> dict[str, set[str]]:
        """By table id, the paths of the segments and data files that earlier operations of the transaction added."""
        ...

    def uuid4(self) -> str: ...


class ExecutionContext(msgspec.Struct, frozen=True):
    keys: fmt.Keys
    transaction_id: str
    uuid4: Callable[[], str]
    writes: frozenset[str] = frozenset()
    writer: Writer | None = None
    version: int = 0
    is_trial: bool = False
    merges: bool = True
    brought: dict[str, set[str]] = msgspec.field(default_factory=dict)
    begin_version: int = -1
    spent: Spent = msgspec.field(default_factory=Spent)


class Changes:
    """What one operation does to objects. Nothing shows in the workspace before `finish`."""

    def __init__(self, workspace: Workspace, operation: Operation, context: Context) -> None:
        self.workspace = workspace
        self.operation = operation
        self.context = context
        self.rows_added = 0
        self.rows_removed = 0
        self._after: dict[ObjectName, StoredObject | None] = {}
        self._uploads: dict[str, bytes] = {}
        self._made: tuple[Made, ...] = ()

    def make(self, made: Sequence[Made]) -> None:
        """Manifest segments, whose content the workspace then has."""
        self._made += tuple(made)
        for one in made:
            self._uploads[one.segment.path] = one.data

    def put(self, name: ObjectName, definition: Definition) -> None:
        """The object gets this definition, in a file of its own. Raises InvalidInput (`too_large`)."""
        path = fmt.definition_path(name, self.context.uuid4())
        stored = StoredObject(path, encode_definition(definition))
        self.place(name, stored)
        self._uploads[path] = stored.definition
        self.workspace.wrote(stored, definition)

    def place(self, name: ObjectName, stored: StoredObject | None) -> None:
        """The object is what lies at a definition's path already; None: it is gone."""
        earlier = self._after.get(name)
        if earlier is not None:
            self._uploads.pop(earlier.path, None)
        self._after[name] = stored

    def get(self, name: ObjectName) -> StoredObject | None:
        """An object as it stands after the changes so far."""
        return self._after[name] if name in self._after else self.workspace.get(name)

    def finish(self, operation: Operation | None = None) -> Executed:
        """Apply all to the workspace. `operation`: as it is recorded, where ids were assigned."""
        operation = operation or self.operation
        effects: list[Effect] = []
        for name, stored in self._after.items():
            before = self.workspace.get(name)
            effects.append(
                Effect(
                    name=name,
                    path_before=before.path if before else "",
                    path_after=stored.path if stored else "",
                )
            )
        for name, stored in self._after.items():
            self.workspace.set(name, stored)
        for made in self._made:
            self.workspace.fetched_segment(made.segment.path, made.content)
        target = operation.target
        path_before = path_after = ""
        also: list[Effect] = []
        for effect in effects:
            if effect.name == target:
                path_before, path_after = effect.path_before, effect.path_after
            else:
                also.append(effect)
        also.sort(key=lambda effect: self.context.keys.key(effect.name))
        return Executed(
            action=Action(
                type=action_type(operation),
                name=target,
                operation=operation,
                path_before=path_before,
                path_after=path_after,
                also=tuple(also),
            ),
            uploads=self._uploads,
            rows_added=self.rows_added,
            rows_removed=self.rows_removed,
            made=self._made,
        )


def simple_change(
    workspace: Workspace, operation: Operation, context: Context, after: Definition | None
) -> Executed:
    """The operation gives its target this definition, and does nothing else. None: the target is gone."""
    changes = Changes(workspace, operation, context)
    if after is None:
        changes.place(operation.target, None)
    else:
        changes.put(operation.target, after)
    return changes.finish()


# --- looking things up -----------------------------------------------------------------------------

_NOT_THERE = {
    Kind.NAMESPACE: "no_namespace",
    Kind.TABLE: "no_table",
    Kind.VIEW: "no_view",
    Kind.SUBSCRIPTION: "no_subscription",
}


def no_namespace(name: ObjectName) -> NotFound:
    return NotFound(f"there is no {name}", kind="no_namespace", hint="list the namespaces to see the names")


def not_there(name: ObjectName, reason: str = "", hint: str = "") -> NotFound:
    """`reason` follows the name in the message."""
    return NotFound(
        f"there is no {name}{reason}",
        kind=_NOT_THERE.get(name.kind, "no_object"),
        hint=hint or f"list the {name.kind.label}s to see the names",
    )


def require(workspace: Workspace | Changes, name: ObjectName) -> StoredObject:
    stored = workspace.get(name)
    if stored is None:
        raise not_there(name)
    return stored


def definition_of(name: ObjectName, stored: StoredObject) -> Definition:
    """Raises Corrupt, InvalidInput (`newer_format`)."""
    error = stored.error()
    if error is not None:
        raise error
    return decode_definition(name.kind, stored.definition, stored.path)


def typed(name: ObjectName, stored: StoredObject, kind: type[D], workspace: Workspace | None = None) -> D:
    """The definition of an object whose kind has definitions of that class. `workspace`: may know it."""
    definition = definition_of(name, stored) if workspace is None else workspace.definition(name, stored)
    assert isinstance(definition, kind)
    return definition


def readable(name: ObjectName, stored: StoredObject) -> Definition | None:
    """None for a definition that is damaged: what it said is lost, and its object can be dropped. Raises InvalidInput
    (`newer_format`) for one that newer software reads."""
    try:
        return definition_of(name, stored)
    except Corrupt:
        return None


def other_kind(name: ObjectName) -> ObjectName:
    """The view of a table's name, or the table of a view's: they share one space of names."""
    kind = Kind.VIEW if name.kind is Kind.TABLE else Kind.TABLE
    return ObjectName(kind, name.namespace, name.name)


def require_vacant(workspace: Workspace | Changes, name: ObjectName, hint: str = "") -> None:
    """No table and no view has the name of a new one. Raises AlreadyExists."""
    if workspace.get(name) is not None:
        kind = "table_exists" if name.kind is Kind.TABLE else "view_exists"
        raise AlreadyExists(f"there is a {name} already", kind=kind, hint=hint)
    other = other_kind(name)
    if workspace.get(other) is not None:
        raise AlreadyExists(f"there is a {other} of that name", kind="object_exists", hint=hint)


def objects_of(reference: Reference) -> tuple[ObjectName, ObjectName]:
    """What a reference may name: a table, or a view."""
    return (
        ObjectName(Kind.TABLE, reference.namespace, reference.name),
        ObjectName(Kind.VIEW, reference.namespace, reference.name),
    )


def reference_to(name: ObjectName) -> Reference:
    return Reference(name.namespace, name.name)


def bound_views(
    workspace: Workspace | Changes, name: ObjectName, definition: Definition, *, apart_from: str = ""
) -> list[ObjectName]:
    """The views that keep a table or view as it is, in order; without those of the namespace `apart_from`. A view that
    is gone, or that no longer binds to it, binds nothing, whatever the list says: another writer may have dropped it.
    Raises Corrupt for a damaged one, of which this is not known."""
    binding = []
    for reference in definition.bound_views if isinstance(definition, TableDef | ViewDef) else ():
        view = objects_of(reference)[1]
        if apart_from and view.namespace == apart_from:
            continue
        stored = workspace.get(view)
        if stored is None:
            continue
        found = typed(view, stored, ViewDef)
        if found.schema_binding and reference_to(name) in found.references:
            binding.append(view)
    return sorted(binding)


def refuse_bound(what: str, name: ObjectName, views: Sequence[ObjectName]) -> None:
    """Raises InvalidInput (`object_bound`) when there are such views. `what`: "drop", "rename"."""
    if views:
        others = f" and {len(views) - 1} more" if len(views) > 1 else ""
        raise InvalidInput(
            f"cannot {what} {name}: {views[0]}{others} is bound to its schema",
            kind="object_bound",
            hint="drop that view first, or replace it without schema binding",
        )


def rows_between(before: TableDef | None, after: TableDef | None) -> tuple[int, int]:
    """Rows that came and rows that went, told by manifest segments: of each so many at most, since a segment may list
    anew what another listed, and rows may be deleted that are in the files still."""
    old = {segment.path: segment.row_count for segment in before.segments} if before else {}
    new = {segment.path: segment.row_count for segment in after.segments} if after else {}
    added = sum(count for path, count in new.items() if path not in old)
    return added, sum(count for path, count in old.items() if path not in new)


# --- checks that many operations share -------------------------------------------------------------


def check_text(text: str, what: str, size_max: int = TEXT_SIZE_BYTES_MAX) -> None:
    """Raises InvalidInput for a lone surrogate or more than `size_max` bytes."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} holds a lone surrogate") from None
    if size > size_max:
        raise InvalidInput(f"{what} takes {size} bytes, {size_max} at most", kind="too_large")


def check_properties(properties: Mapping[str, str], what: str) -> None:
    """Raises InvalidInput for an empty key, text that is none, or too much of it."""
    if not properties:
        return
    total = 0
    for key, value in properties.items():
        if not key:
            raise InvalidInput(f"{what}: an empty key")
        size = _size(key, value)
        if size > TEXT_SIZE_BYTES_MAX:
            check_text(key, f"{what}: a key")
            check_text(value, f"{what}: the value of {key[:80]!r}")
        total += size
    if total > PROPERTIES_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"{what} take {total} bytes, {PROPERTIES_SIZE_BYTES_MAX} at most", kind="too_large"
        )


def _size(key: str, value: str) -> int:
    """Bytes of both; of no text more than any may have."""
    try:
        return len(key.encode()) + len(value.encode())
    except UnicodeEncodeError:
        return TEXT_SIZE_BYTES_MAX + 1


def edited(
    properties: Mapping[str, str], set_: Mapping[str, str], unset: Sequence[str], what: str
) -> dict[str, str]:
    """The properties with some set and some removed. Raises InvalidInput for a key in both."""
    gone = set(unset)
    both = sorted(gone & set_.keys())
    if both:
        raise InvalidInput(f"{what}: {both[0]!r} is both set and unset")
    for key in unset:
        check_text(key, f"{what}: a key")
    kept = {key: value for key, value in properties.items() if key not in gone} | dict(set_)
    check_properties(kept, what)
    return kept


def refuse_nothing(changes_anything: bool, what: str) -> None:
    if not changes_anything:
        raise InvalidInput(f"{what}: nothing to set or unset")
