"""Executing operations: a pure function from what stands and what is asked to definitions and actions.

`execute` reads a `Workspace` (objects fetched beforehand, by the `footprint` of the operations) and either
raises what the client is told or returns the new definitions and the action. Rebase is executing again on a
newer workspace; replay checks and a transaction's view of its own writes run the same code.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.access import Page, StoredObject
from alpheus_journal.actions import (
    Action,
    AdvancePipeline,
    AppendFiles,
    CancelTransaction,
    CreateCatalog,
    CreateNamespace,
    CreateTable,
    DropNamespace,
    DropTable,
    Operation,
    OverwriteFiles,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
    action_type,
)
from alpheus_journal.columns import schema_of_columns
from alpheus_journal.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotEmpty,
    NotFound,
)
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.manifest import DataFile, check_segment
from alpheus_journal.objects import (
    CatalogDef,
    Column,
    Definition,
    JobDef,
    NamespaceDef,
    PipelineDef,
    Segment,
    TableDef,
    decode_definition,
    encode_definition,
    walk_columns,
)
from alpheus_journal.system import uuid7_millis

list_ = list  # `Overlay.list` hides the type inside its class

OPERATIONS_MAX = 10_000
TEXT_SIZE_BYTES_MAX = 64 << 10
PROPERTIES_SIZE_BYTES_MAX = 256 << 10
COLUMNS_MAX = 10_000
COLUMN_DEPTH_MAX = 32


class Footprint(msgspec.Struct, frozen=True):
    """What must be fetched before an operation can be executed."""

    names: tuple[ObjectName, ...]
    emptied: tuple[str, ...] = ()  # namespaces of which it matters whether they hold anything
    segments: tuple[Segment, ...] = ()  # whose content is checked


def footprint(operation: Operation) -> Footprint:
    match operation:
        case CreateTable():
            view = ObjectName(Kind.VIEW, operation.namespace, operation.name)
            return Footprint((fmt.namespace_name(operation.namespace), operation.target, view))
        case UpdateTable() | DropTable():
            return Footprint((operation.target,))
        case AppendFiles() | OverwriteFiles():
            return Footprint((operation.target,), segments=operation.segments)
        case DropNamespace():
            return Footprint((operation.target,), emptied=(operation.name,))
        case CancelTransaction() | CreateCatalog():
            return Footprint(())
        case _:
            return Footprint((operation.target,))


class Workspace:
    """Objects as they stand at one version, and after what was executed on top.

    Only what was fetched can be read. A fork sees its parent and keeps its own changes until `absorb`.
    """

    def __init__(self, parent: Workspace | None = None) -> None:
        self._parent = parent
        self._objects: dict[ObjectName, StoredObject | None] = {}
        self._children: dict[str, frozenset[ObjectName]] = {}
        self._segments: dict[str, tuple[DataFile, ...]] = {}

    def fetched(self, name: ObjectName, stored: StoredObject | None) -> None:
        self._objects[name] = stored

    def fetched_children(self, namespace: str, children: Iterable[ObjectName]) -> None:
        """Some objects that live in the namespace: all, or at least one more than operations drop."""
        self._children[namespace] = frozenset(children)

    def fetched_segment(self, path: str, files: tuple[DataFile, ...]) -> None:
        self._segments[path] = files

    def has(self, name: ObjectName) -> bool:
        return name in self._objects or (self._parent is not None and self._parent.has(name))

    def has_children(self, namespace: str) -> bool:
        return namespace in self._children or (
            self._parent is not None and self._parent.has_children(namespace)
        )

    def has_segment(self, path: str) -> bool:
        return path in self._segments or (self._parent is not None and self._parent.has_segment(path))

    def get(self, name: ObjectName) -> StoredObject | None:
        space: Workspace | None = self
        while space is not None:
            if name in space._objects:
                return space._objects[name]
            space = space._parent
        raise AssertionError(f"{name} was not fetched")

    def segment(self, path: str) -> tuple[DataFile, ...]:
        if path in self._segments:
            return self._segments[path]
        if self._parent is None:
            raise AssertionError(f"segment {path} was not fetched")
        return self._parent.segment(path)

    def changed(self) -> Mapping[ObjectName, StoredObject | None]:
        """Of a fork: what it set. Of a base: everything fetched."""
        return self._objects

    def child_of(self, namespace: str) -> ObjectName | None:
        """Any object that lives in a namespace now, or None."""
        layers: list[Workspace] = []
        space: Workspace | None = self
        while space is not None:
            layers.append(space)
            space = space._parent
        alive: set[ObjectName] = set()
        for layer in reversed(layers):
            alive |= layer._children.get(namespace, frozenset())
            for name, stored in layer._objects.items():
                if name.namespace == namespace and name.kind in (Kind.TABLE, Kind.VIEW):
                    (alive.discard if stored is None else alive.add)(name)
        return min(alive) if alive else None

    def set(self, name: ObjectName, stored: StoredObject | None) -> None:
        self._objects[name] = stored

    def fork(self) -> Workspace:
        return Workspace(self)

    def absorb(self, fork: Workspace) -> None:
        """Take over what a fork changed."""
        self._objects.update(fork._objects)


async def children_of(
    namespace: str, wanted: int, list_page: Callable[..., Awaitable[Page]]
) -> list_[ObjectName]:
    """Objects that live in a namespace: all, or of each kind at least `wanted`. `list_page` reads as `Access.list`
    does, without the version."""
    children: list_[ObjectName] = []
    for kind in (Kind.TABLE, Kind.VIEW):
        count, after, more = 0, "", True
        while more and count < wanted:
            page = await list_page(kind, namespace=namespace, prefix="", limit=wanted - count, after=after)
            children.extend(ObjectName(kind, namespace, name) for name in page.names)
            count += len(page.names)
            after, more = (page.names[-1], page.more) if page.names else ("", False)
    return children


def no_namespace(name: ObjectName) -> NotFound:
    return NotFound(f"there is no {name}", kind="no_namespace", hint="list the namespaces to see the names")


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """What one operation did. `uploads`: definition path to bytes."""

    action: Action
    uploads: dict[str, bytes] = {}
    rows_added: int = 0
    rows_removed: int = 0


class Context(Protocol):
    """What an execution needs besides the workspace."""

    @property
    def keys(self) -> fmt.Keys: ...

    @property
    def transaction_id(self) -> str: ...

    def uuid4(self) -> str: ...


class ExecutionContext(msgspec.Struct, frozen=True):
    keys: fmt.Keys
    transaction_id: str
    uuid4: Callable[[], str]


def check_transaction(transaction: Transaction, now_millis: int) -> None:
    """What can be refused without reading the catalog. Raises InvalidInput."""
    if not fmt.is_uuid(transaction.id) or transaction.id[14] != "7":
        raise InvalidInput(f"transaction id {transaction.id[:80]!r} is no version 7 uuid", hint="lower case")
    if uuid7_millis(transaction.id) > now_millis + fmt.CLOCK_SKEW_MILLIS_MAX:
        raise InvalidInput(
            f"transaction {transaction.id} was made more than a minute in the future",
            kind="clock_skew",
            hint="set the clocks of this machine and of the catalog's writers",
        )
    if not transaction.operations:
        raise InvalidInput(f"transaction {transaction.id} holds no operation")
    if len(transaction.operations) > OPERATIONS_MAX:
        raise InvalidInput(
            f"transaction {transaction.id} holds {len(transaction.operations)} operations,"
            f" {OPERATIONS_MAX} at most",
            kind="too_large",
            hint="split it into several transactions",
        )
    if transaction.begin_version < 0:
        raise InvalidInput(f"begin version {transaction.begin_version} is negative", kind="bad_version")
    if transaction.serializable:
        raise InvalidInput(
            "serializable isolation is not supported yet", kind="not_supported", hint="use snapshot isolation"
        )
    for what, text in (("message", transaction.message), ("principal", transaction.principal)):
        check_text(text, what)
    check_properties(transaction.properties, "transaction properties")


def check_text(text: str, what: str) -> None:
    """Raises InvalidInput for a lone surrogate or more than TEXT_SIZE_BYTES_MAX."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} holds a lone surrogate") from None
    if size > TEXT_SIZE_BYTES_MAX:
        raise InvalidInput(f"{what} takes {size} bytes, {TEXT_SIZE_BYTES_MAX} at most", kind="too_large")


def check_properties(properties: Mapping[str, str], what: str) -> None:
    """Raises InvalidInput for an empty key, text that is none, or too much of it."""
    total = 0
    for key, value in properties.items():
        if not key:
            raise InvalidInput(f"{what}: an empty key")
        check_text(key, f"{what}: a key")
        check_text(value, f"{what}: the value of {key[:80]!r}")
        total += len(key.encode()) + len(value.encode())
    if total > PROPERTIES_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"{what} take {total} bytes, {PROPERTIES_SIZE_BYTES_MAX} at most", kind="too_large"
        )


def _edited(
    properties: Mapping[str, str], set_: Mapping[str, str], unset: Sequence[str], what: str
) -> dict[str, str]:
    if not set_ and not unset:
        raise InvalidInput(f"{what}: nothing to set or unset")
    both = sorted(set(set_) & set(unset))
    if both:
        raise InvalidInput(f"{what}: {both[0]!r} is both set and unset")
    for key in unset:
        check_text(key, f"{what}: a key")
    edited = {key: value for key, value in properties.items() if key not in set(unset)} | dict(set_)
    check_properties(edited, what)
    return edited


_TYPE_CHILDREN = {"STRUCT": "fields", "MAP": "key and value", "LIST": "element"}


def check_columns(columns: Sequence[Column]) -> None:
    """The schema of a new native table. Raises InvalidInput (`bad_schema`) naming the column."""

    def refuse(reason: str) -> InvalidInput:
        return InvalidInput(reason, kind="bad_schema")

    if not columns:
        raise refuse("a table needs a column at least")

    def visit(group: Sequence[Column], path: str, depth: int) -> None:
        if depth > COLUMN_DEPTH_MAX:
            raise refuse(f"column {path} is nested more than {COLUMN_DEPTH_MAX} levels deep")
        seen: dict[str, str] = {}
        for column in group:
            where = f"{path}.{column.name}" if path else column.name
            if not column.name or any(ord(c) < 0x20 or ord(c) == 0x7F for c in column.name):
                raise refuse(f"column name {where!r} is empty or holds a control character")
            check_text(column.name, "a column name")
            if column.name.lower() in seen:
                other = seen[column.name.lower()]
                raise refuse(f"columns {other!r} and {column.name!r} are the same name to Spark")
            seen[column.name.lower()] = column.name
            has = {
                "STRUCT": bool(column.fields),
                "MAP": column.key is not None and column.value is not None,
                "LIST": column.element is not None,
            }
            if column.type in has and not has[column.type]:
                raise refuse(
                    f"column {where!r} of type {column.type} lacks its {_TYPE_CHILDREN[column.type]}"
                )
            wanted = {"STRUCT": len(column.fields), "MAP": 2, "LIST": 1}.get(column.type, 0)
            if len(column.children()) != wanted:
                raise refuse(f"column {where!r} of type {column.type} has nested columns that do not fit it")
            check_properties(column.properties, f"properties of column {where!r}")
            visit(column.fields, where, depth + 1)
            visit([c for c in (column.key, column.value, column.element) if c is not None], where, depth + 1)

    visit(columns, "", 1)
    ids = [column.id for column in walk_columns(columns)]
    if len(ids) > COLUMNS_MAX:
        raise refuse(f"{len(ids)} columns, {COLUMNS_MAX} at most")
    if ids != list(range(1, len(ids) + 1)):
        raise refuse("column ids must be 1 and up, depth first")
    schema_of_columns(columns)  # refuses types that no native table can hold


def _require(workspace: Workspace, name: ObjectName) -> StoredObject:
    stored = workspace.get(name)
    if stored is None:
        kind = {Kind.NAMESPACE: "no_namespace", Kind.TABLE: "no_table", Kind.VIEW: "no_view"}.get(
            name.kind, "no_object"
        )
        raise NotFound(f"there is no {name}", kind=kind, hint=f"list the {name.kind.label}s to see the names")
    return stored


def definition_of(name: ObjectName, stored: StoredObject) -> Definition:
    return decode_definition(name.kind, stored.definition, stored.path)


def _table_of(workspace: Workspace, name: ObjectName) -> tuple[StoredObject, TableDef]:
    stored = _require(workspace, name)
    definition = definition_of(name, stored)
    assert isinstance(definition, TableDef)
    return stored, definition


def execute(workspace: Workspace, operation: Operation, context: Context) -> Executed:
    """Execute one operation on `workspace`, which then stands as after it.

    Raises what the client is told (NotFound, AlreadyExists, NotEmpty, InvalidInput, Conflict for a moved
    pipeline position, Expired for uploads of another transaction); the workspace is then unchanged.
    """
    match operation:
        case CreateNamespace():
            return _create_namespace(workspace, operation, context)
        case UpdateNamespace():
            return _update_namespace(workspace, operation, context)
        case DropNamespace():
            return _drop_namespace(workspace, operation, context)
        case CreateTable():
            return _create_table(workspace, operation, context)
        case UpdateTable():
            return _update_table(workspace, operation, context)
        case DropTable():
            stored = _require(workspace, fmt.check_object_name(operation.target, context.keys))
            return _done(workspace, operation, context, stored, None)
        case AppendFiles() | OverwriteFiles():
            return _write_files(workspace, operation, context)
        case UpdateCatalog():
            return _update_catalog(workspace, operation, context)
        case AdvancePipeline():
            return _advance_pipeline(workspace, operation, context)
        case CancelTransaction():
            if not fmt.is_uuid(operation.transaction_id):
                raise InvalidInput(f"transaction id {operation.transaction_id[:80]!r} is no uuid")
            return Executed(action=Action(type=action_type(operation), name=fmt.CATALOG, operation=operation))
        case CreateCatalog():
            raise InvalidInput("a catalog is created once, by version 0", kind="not_supported")


def _done(
    workspace: Workspace,
    operation: Operation,
    context: Context,
    before: StoredObject | None,
    after: Definition | None,
    rows_added: int = 0,
    rows_removed: int = 0,
) -> Executed:
    name = operation.target
    uploads: dict[str, bytes] = {}
    stored: StoredObject | None = None
    if after is not None:
        stored = StoredObject(fmt.definition_path(name, context.uuid4()), encode_definition(after))
        uploads[stored.path] = stored.definition
    workspace.set(name, stored)
    action = Action(
        type=action_type(operation),
        name=name,
        operation=operation,
        path_before=before.path if before else "",
        path_after=stored.path if stored else "",
    )
    return Executed(action=action, uploads=uploads, rows_added=rows_added, rows_removed=rows_removed)


def _update_catalog(workspace: Workspace, operation: UpdateCatalog, context: Context) -> Executed:
    stored = _require(workspace, fmt.CATALOG)
    definition = definition_of(fmt.CATALOG, stored)
    assert isinstance(definition, CatalogDef)
    properties = _edited(definition.properties, operation.set, operation.unset, "catalog properties")
    return _done(
        workspace, operation, context, stored, msgspec.structs.replace(definition, properties=properties)
    )


def _create_namespace(workspace: Workspace, operation: CreateNamespace, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys, creating=True)
    if workspace.get(name) is not None:
        raise AlreadyExists(f"there is a {name} already", kind="namespace_exists")
    if not fmt.is_uuid(operation.namespace_id):
        raise InvalidInput(f"namespace id {operation.namespace_id[:80]!r} is no uuid")
    if operation.data_root:
        raise InvalidInput("a data root of a namespace is not supported yet", kind="not_supported")
    check_properties(operation.properties, f"properties of {name}")
    after = NamespaceDef(id=operation.namespace_id, properties=dict(operation.properties))
    return _done(workspace, operation, context, None, after)


def _update_namespace(workspace: Workspace, operation: UpdateNamespace, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys)
    stored = _require(workspace, name)
    definition = definition_of(name, stored)
    assert isinstance(definition, NamespaceDef)
    properties = _edited(definition.properties, operation.set, operation.unset, f"properties of {name}")
    return _done(
        workspace, operation, context, stored, msgspec.structs.replace(definition, properties=properties)
    )


def _drop_namespace(workspace: Workspace, operation: DropNamespace, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys)
    stored = _require(workspace, name)
    child = workspace.child_of(operation.name)
    if child is not None:
        raise NotEmpty(f"{name} holds {child}", hint="drop what it holds first")
    return _done(workspace, operation, context, stored, None)


def _create_table(workspace: Workspace, operation: CreateTable, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys, creating=True)
    _require(workspace, fmt.namespace_name(operation.namespace))
    if workspace.get(name) is not None:
        raise AlreadyExists(f"there is a {name} already", kind="table_exists")
    view = ObjectName(Kind.VIEW, name.namespace, name.name)
    if workspace.get(view) is not None:
        raise AlreadyExists(f"there is a {view} of that name", kind="object_exists")
    if not fmt.is_uuid(operation.table_id):
        raise InvalidInput(f"table id {operation.table_id[:80]!r} is no uuid")
    check_columns(operation.columns)
    check_properties(operation.properties, f"properties of {name}")
    after = TableDef(
        id=operation.table_id,
        properties=dict(operation.properties),
        columns=operation.columns,
        next_column_id=len(list(walk_columns(operation.columns))) + 1,
    )
    return _done(workspace, operation, context, None, after)


def _update_table(workspace: Workspace, operation: UpdateTable, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys)
    stored, definition = _table_of(workspace, name)
    properties = _edited(definition.properties, operation.set, operation.unset, f"properties of {name}")
    return _done(
        workspace, operation, context, stored, msgspec.structs.replace(definition, properties=properties)
    )


def _write_files(
    workspace: Workspace, operation: AppendFiles | OverwriteFiles, context: Context, *, check: bool = True
) -> Executed:
    """`check` False: without the content of the segments, which then need not be fetched."""
    name = fmt.check_object_name(operation.target, context.keys)
    stored, definition = _table_of(workspace, name)
    if not definition.native:
        raise InvalidInput(
            f"{name} is an Iceberg table: its rows change by Iceberg commits", kind="not_native"
        )
    if operation.table_id != definition.id:
        raise InvalidInput(
            f"the files were written for the {name} of id {operation.table_id or '(none)'}, which is no longer there",
            kind="table_replaced",
            hint="write them again for the table that has the name now",
        )
    if isinstance(operation, AppendFiles) and not operation.segments:
        raise InvalidInput(f"an append to {name} without files")
    paths = [segment.path for segment in operation.segments]
    known = {segment.path for segment in definition.segments}
    if len(set(paths)) != len(paths) or known & set(paths):
        raise InvalidInput(f"a manifest segment of {name} is named twice", kind="bad_data")
    sequence = definition.sequence + 1
    added = []
    for segment in operation.segments:
        if check:
            check_segment(
                workspace.segment(segment.path), segment, definition, transaction_id=context.transaction_id
            )
        added.append(msgspec.structs.replace(segment, sequence=sequence))
    kept = definition.segments if isinstance(operation, AppendFiles) else ()
    after = msgspec.structs.replace(definition, segments=(*kept, *added), sequence=sequence)
    return _done(
        workspace,
        operation,
        context,
        stored,
        after,
        rows_added=sum(segment.row_count for segment in added),
        rows_removed=0 if isinstance(operation, AppendFiles) else definition.row_count,
    )


def _advance_pipeline(workspace: Workspace, operation: AdvancePipeline, context: Context) -> Executed:
    name = operation.target
    stored = workspace.get(name)
    fmt.check_object_name(name, context.keys, creating=stored is None)
    fmt.check_name(operation.job, fmt.EXTENSION_NAME_SIZE_BYTES, "job", creating=True)
    if operation.state not in ("running", "parked"):
        raise InvalidInput(f"a job is running or parked, not {operation.state!r}")
    check_text(operation.error, "the error of a parked job")
    check_text(operation.expected_transaction_id, "the expected transaction id")
    for key, position in operation.inputs.items():
        for text in (key, position.table, position.table_id):
            check_text(text, "an input")
    versions = [operation.pinned_version, *(position.version for position in operation.inputs.values())]
    if not all(0 <= version < fmt.VERSION_MAX_EXCLUSIVE for version in versions):
        raise InvalidInput(
            f"job {operation.name}.{operation.job}: the versions {versions} are not all within 0 to 2^32 - 1",
            kind="bad_version",
        )
    check_properties(operation.params, "job parameters")
    if stored is None:
        # Replaying the action must give the same definition, so the id follows from the transaction.
        identity = uuid.uuid5(uuid.UUID(context.transaction_id), f"pipeline {operation.name}")
        definition = PipelineDef(id=str(identity))
    else:
        decoded = definition_of(name, stored)
        assert isinstance(decoded, PipelineDef)
        definition = decoded
    job = definition.jobs.get(operation.job)
    found = job.last_transaction_id if job else ""
    if found != operation.expected_transaction_id:
        raise Conflict(
            f"job {operation.name}.{operation.job} has moved: its last run is {found or 'none'},"
            f" expected was {operation.expected_transaction_id or 'none'}",
            kind="position_moved",
            mine=f"advance job {operation.name}.{operation.job}",
            theirs=f"transaction {found}",
            transaction_id=found,
            retryable=True,
            hint="read the position again; this run's work may be committed already",
        )
    advanced = JobDef(
        last_transaction_id=context.transaction_id,
        pinned_version=operation.pinned_version,
        inputs=dict(operation.inputs),
        state=operation.state,
        error=operation.error,
        params=dict(operation.params),
    )
    after = msgspec.structs.replace(definition, jobs=definition.jobs | {operation.job: advanced})
    return _done(workspace, operation, context, stored, after)


# --- a transaction's view of its own writes --------------------------------------------------------


class Overlay:
    """A catalog at one version with operations executed on top, for reading inside a transaction.

    `load` and `list` read that version. Contents of manifest segments are not checked here: the commit does.
    """

    def __init__(
        self,
        load: Callable[[list[ObjectName]], Awaitable[Sequence[StoredObject | None]]],
        list: Callable[..., Awaitable[Page]],
        keys: fmt.Keys,
        transaction_id: str,
    ) -> None:
        self._load = load
        self._list = list
        self._base = Workspace()
        self._mine = self._base.fork()
        self._keys = keys
        self._context = ExecutionContext(keys, transaction_id, lambda: str(uuid.uuid4()))

    async def execute(self, operation: Operation) -> Executed:
        """Execute on top. Raises what the commit would raise at this version; then nothing has changed."""
        needs = footprint(operation)
        for name in needs.names:
            fmt.check_object_name(name, self._keys)
        await self._fetch(needs.names)
        for namespace in needs.emptied:
            # Children dropped in this transaction are known; one more than them decides. Fetched again each
            # time: after further drops, more must be known.
            wanted = len([n for n in self._mine.changed() if n.namespace == namespace]) + 1
            found: list_[ObjectName] = []
            if self._base.get(fmt.namespace_name(namespace)) is not None:
                found = await children_of(namespace, wanted, self._list)
            self._base.fetched_children(namespace, found)
        fork = self._mine.fork()
        if isinstance(operation, AppendFiles | OverwriteFiles):
            executed = _write_files(fork, operation, self._context, check=False)
        else:
            executed = execute(fork, operation, self._context)
        self._mine.absorb(fork)
        return executed

    async def load(self, names: Sequence[ObjectName]) -> list_[StoredObject | None]:
        await self._fetch(names)
        return [self._mine.get(name) for name in names]

    async def list(
        self, kind: Kind, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> tuple[list_[str], bool]:
        """Names in key order with own creations and drops; whether there are more."""
        mine = {
            (name.namespace if kind is Kind.NAMESPACE else name.name): stored is not None
            for name, stored in self._mine.changed().items()
            if name.kind is kind and (kind is Kind.NAMESPACE or name.namespace == namespace)
        }
        if limit < 0:
            raise InvalidInput(f"a limit of {limit} is negative")
        if kind in (Kind.TABLE, Kind.VIEW):
            parent = fmt.check_object_name(fmt.namespace_name(namespace), self._keys)
            if (await self.load([parent]))[0] is None:
                raise no_namespace(parent)
        # So many names suffice: of them, at most those dropped in this transaction fall away.
        wanted = limit + len(mine) if limit else 0
        base: list_[str] = []
        more = not self._created_here(fmt.namespace_name(namespace)) or kind is Kind.NAMESPACE
        position = after
        while more and (not wanted or len(base) < wanted):
            page = await self._list(
                kind, namespace=namespace, prefix=prefix, limit=wanted and wanted - len(base), after=position
            )
            base.extend(page.names)
            more = page.more
            position = page.names[-1] if page.names else position
        created = {name for name, lives in mine.items() if lives and name.startswith(prefix) and name > after}
        names = sorted({name for name in base if mine.get(name, True)} | created)
        if more:
            names = [name for name in names if name <= base[-1]]
        return (names[:limit], True) if limit and len(names) > limit else (names, more)

    def _created_here(self, name: ObjectName) -> bool:
        return name in self._mine.changed() and name in self._base.changed() and self._base.get(name) is None

    async def _fetch(self, names: Sequence[ObjectName]) -> None:
        missing = [name for name in names if not self._mine.has(name)]
        if not missing:
            return
        for name, stored in zip(missing, await self._load(missing), strict=True):
            self._base.fetched(name, stored)
