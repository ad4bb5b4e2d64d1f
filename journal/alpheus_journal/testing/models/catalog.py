"""A model of the catalog, and a store with a clock and journals for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from alpheus_journal import format as fmt
from alpheus_journal.access import Access
from alpheus_journal.clock import Identities
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import At, Committed
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import (
    Column,
    NamespaceDef,
    PipelineDef,
    Segment,
    SubscriptionDef,
    TableDef,
    TagDef,
    ViewDef,
)
from alpheus_journal.model.operations import (
    AdvancePipeline,
    AppendFiles,
    CancelTransaction,
    ChangeRows,
    ClaimSubscription,
    CommitIceberg,
    CreateCatalog,
    CreateNamespace,
    CreateSubscription,
    CreateTable,
    CreateTag,
    CreateView,
    DropNamespace,
    DropSubscription,
    DropTable,
    DropTag,
    DropView,
    Operation,
    OverwriteFiles,
    RegisterTable,
    RenameObject,
    Repair,
    ReplaceTag,
    ReplaceView,
    RestoreTable,
    Transaction,
    Undrop,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.storage import Storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import segment_of
from alpheus_journal.testing.simulation.ids import FakeClock, SeededIdentities
from alpheus_journal.tree.node import encode_tombstone

Model = dict[str, object]
"""The content of a catalog as plain values, by `str(object name)`; see `apply_to_model`.

The values are: properties for the catalog and namespaces, `ModelTable`, `ModelView`, `ModelSubscription`, `ModelTag`,
and for a pipeline the last transaction of each job. In addition, `id namespace n` has the id of a namespace, and
`bound ns.name` the views bound to an object, if there are any.
"""


class ModelTable(NamedTuple):
    """A table. `rows` are the numbers of data files, rows and bytes, without the segments that list them."""

    properties: dict[str, str]
    id: str
    rows: tuple[int, int, int] = (0, 0, 0)
    columns: tuple[tuple[str, str, bool], ...] = ()  # name, type, nullable; of the top level
    location: str = ""  # of Iceberg metadata


class ModelView(NamedTuple):
    properties: dict[str, str]
    id: str
    sql: str = ""
    references: tuple[str, ...] = ()
    binding: bool = False


class ModelSubscription(NamedTuple):
    id: str
    epoch: int = 0
    holder: str = ""
    position_path: str = ""
    next_version: int = 0


class ModelTag(NamedTuple):
    id: str
    version: int
    pin_path: str
    message: str = ""


Past = Mapping[int, Model]
"""The models of earlier versions."""


def apply_to_model(model: Model, operation: Operation, transaction_id: str, past: Past | None = None) -> None:
    """Apply an operation to a model: a second implementation without any code of the journal.

    Raises AssertionError or KeyError when the operation is impossible; the model is then unchanged. `past` is for
    operations that name an earlier version.
    """
    changed = dict(model)
    _apply(changed, operation, transaction_id, past)
    _bind(changed)
    model.clear()
    model.update(changed)


def _apply(model: Model, operation: Operation, transaction_id: str, past: Past | None) -> None:
    match operation:
        case RestoreTable() | Undrop():
            assert past is not None
            _apply_past(model, operation, past)
        case ReplaceView() | RenameObject():
            _apply_to_any(model, operation)
        case AdvancePipeline():
            _advance(model, operation, transaction_id)
        case CreateSubscription() | ClaimSubscription() | DropSubscription():
            _apply_to_subscription(model, operation)
        case CreateTag() | ReplaceTag() | DropTag():
            _apply_to_tag(model, operation)
        case CancelTransaction() | Repair():
            pass
        case AppendFiles() | OverwriteFiles() | ChangeRows() | CommitIceberg():
            _apply_to_rows(model, operation)
        case _:
            _apply_to_definition(model, operation)


def _apply_to_definition(model: Model, operation: Operation) -> None:
    name = str(operation.target)
    match operation:
        case CreateCatalog():
            assert name not in model, "created twice"
            model[name] = dict(operation.definition.properties)
        case UpdateCatalog():
            model[name] = _edit_properties(dict(model.get(name, {})), operation)  # type: ignore[call-overload]
        case CreateNamespace():
            assert name not in model, f"{name} is there"
            model[name] = dict(operation.properties)
            model[f"id {name}"] = operation.namespace_id
        case UpdateNamespace():
            model[name] = _edit_properties(model[name], operation)
        case DropNamespace():
            _drop_namespace(model, operation)
        case CreateTable() | RegisterTable() | CreateView():
            _check_vacant(model, operation.namespace, operation.name)
            model[name] = _make_object(operation)
        case UpdateTable():
            _update_table(model, name, operation)
        case DropTable() | DropView():
            _check_unbound(model, name)
            del model[name]


def _apply_to_rows(
    model: Model, operation: AppendFiles | OverwriteFiles | ChangeRows | CommitIceberg
) -> None:
    name = str(operation.target)
    table = _table(model, name)
    if isinstance(operation, CommitIceberg):
        assert table.location == operation.expected != "", f"{name} is elsewhere"
        model[name] = table._replace(location=operation.metadata_location)
        return
    assert table.id == operation.table_id, f"files of another {name}"
    assert not table.location, f"{name} is not a native table"
    kept = (0, 0, 0) if isinstance(operation, OverwriteFiles) else table.rows
    if isinstance(operation, ChangeRows):
        kept = _add_sums(kept, operation.removed, -1)
    model[name] = table._replace(rows=_add_sums(kept, operation.segments))


def _apply_past(model: Model, operation: RestoreTable | Undrop, past: Past) -> None:
    if isinstance(operation, Undrop):
        _undrop(model, operation, past[operation.version])
        return
    name = str(operation.target)
    table, then = _table(model, name), _table(past[operation.version], name)
    assert table.id == then.id, f"{name} was another table"
    if not set(table.columns) <= set(then.columns):
        _check_unbound(model, name)
    model[name] = then


def _apply_to_any(model: Model, operation: ReplaceView | RenameObject) -> None:
    name = str(operation.target)
    if isinstance(operation, ReplaceView):
        view = model[name]
        assert isinstance(view, ModelView)
        _check_unbound(model, name)  # the columns of these views are not known
        model[name] = _make_object(operation, id=view.id)
        return
    assert name in model, f"no {name}"
    new_name = str(operation.new_target)
    if operation.kind in (Kind.PIPELINE, Kind.TAG):
        assert new_name not in model, f"{new_name} is there"
    else:
        _check_vacant(model, operation.new_namespace, operation.new_name)
        _check_unbound(model, name)
    model[new_name] = model.pop(name)


def _advance(model: Model, operation: AdvancePipeline, transaction_id: str) -> None:
    name = str(operation.target)
    jobs = dict(model.get(name, {}))  # type: ignore[call-overload]
    expected_id = operation.expected_pipeline_id
    assert expected_id is None or (expected_id == "") == (name not in model), f"{name} is another"
    former = operation.former_job or operation.job
    assert jobs.get(former, "") == operation.expected_transaction_id, f"{name} has moved"
    if operation.former_job:
        assert former in jobs, f"no job {former}"
        assert operation.job not in jobs, f"job {operation.job} is there"
        del jobs[former]
    model[name] = jobs | {operation.job: transaction_id}


def _apply_to_subscription(
    model: Model, operation: CreateSubscription | ClaimSubscription | DropSubscription
) -> None:
    name = str(operation.target)
    match operation:
        case CreateSubscription():
            assert name not in model, f"{name} is there"
            model[name] = ModelSubscription(operation.subscription_id, next_version=operation.next_version)
        case ClaimSubscription():
            found = model[name]
            assert isinstance(found, ModelSubscription)
            expected = (operation.subscription_id, operation.expected_epoch, operation.expected_position_path)
            assert (found.id, found.epoch, found.position_path) == expected, f"{name} is another's"
            model[name] = ModelSubscription(
                found.id,
                found.epoch + 1,
                operation.holder,
                operation.position_path,
                operation.next_version,
            )
        case DropSubscription():
            del model[name]


def _apply_to_tag(model: Model, operation: CreateTag | ReplaceTag | DropTag) -> None:
    name = str(operation.target)
    match operation:
        case CreateTag():
            assert name not in model, f"{name} is there"
            model[name] = ModelTag(operation.tag_id, operation.version, operation.pin_path, operation.message)
        case ReplaceTag():
            found = model[name]
            assert isinstance(found, ModelTag)
            model[name] = ModelTag(found.id, operation.version, operation.pin_path, operation.message)
        case DropTag():
            del model[name]


def _table(model: Model, name: str) -> ModelTable:
    table = model[name]
    assert isinstance(table, ModelTable)
    return table


def _edit_properties(
    properties: object, operation: UpdateCatalog | UpdateNamespace | UpdateTable
) -> dict[str, str]:
    assert isinstance(properties, dict)
    return {key: value for key, value in properties.items() if key not in operation.unset} | operation.set


def _names_inside(model: Model, namespace: str) -> list[str]:
    return [other for other in model if other.startswith((f"table {namespace}.", f"view {namespace}."))]


def _check_vacant(model: Model, namespace: str, name: str) -> None:
    assert f"namespace {namespace}" in model, f"no namespace {namespace}"
    for kind in ("table", "view"):
        assert f"{kind} {namespace}.{name}" not in model, f"{namespace}.{name} is there"


def _check_unbound(model: Model, name: str) -> None:
    assert f"bound {name.split(' ', 1)[1]}" not in model, f"{name} is bound"


def _make_object(
    operation: CreateTable | RegisterTable | CreateView | ReplaceView, id: str = ""
) -> ModelTable | ModelView:
    properties = dict(operation.properties)
    match operation:
        case CreateTable():
            columns = tuple((c.name, c.type, c.nullable) for c in operation.columns)
            return ModelTable(properties, operation.table_id, columns=columns)
        case RegisterTable():
            return ModelTable(properties, operation.table_id, location=operation.metadata_location)
        case CreateView():
            id = operation.view_id
    references = tuple(str(reference) for reference in operation.references)
    return ModelView(properties, id, operation.sql, references, operation.schema_binding)


def _drop_namespace(model: Model, operation: DropNamespace) -> None:
    inside = _names_inside(model, operation.name)
    assert operation.cascade or not inside, f"{operation.name} holds {inside}"
    for name in inside:
        bound = model.get(f"bound {name.split(' ', 1)[1]}", ())
        assert isinstance(bound, tuple)
        assert all(f"view {view}" in inside for view in bound), f"{name} is bound from outside"
        del model[name]
    del model[f"namespace {operation.name}"]
    del model[f"id namespace {operation.name}"]


def _update_table(model: Model, name: str, operation: UpdateTable) -> None:
    """Update a table. Only columns of the top level are modelled."""
    table = _table(model, name)
    columns = {column[0]: column for column in table.columns}
    assert not operation.changes_columns or not table.location, f"{name} is not a native table"
    order = list(columns)
    for old in operation.drop_columns:
        del columns[old]
        order.remove(old)
    for path, to in operation.retype_columns.items():
        assert (columns[path][1], to.type) in (("INT4", "INT8"), ("INT8", "INT8"), ("INT4", "INT4"))
        columns[path] = (path, to.type, columns[path][2])
    for path, nullable in operation.nullable_columns.items():
        assert nullable or not columns[path][2] or not table.rows[1], f"{name} has rows"
        columns[path] = (path, columns[path][1], nullable)
    for old, new in operation.rename_columns.items():
        columns[old] = (new, *columns[old][1:])
    after = [columns[key] for key in order]
    for added in operation.add_columns:
        assert not added.parent
        assert added.column.nullable or not table.rows[1], f"{name} has rows"
        after.append((added.column.name, added.column.type, added.column.nullable))
    names = [column[0] for column in after]
    assert after or table.location
    assert len({n.lower() for n in names}) == len(names)
    if operation.column_order:
        assert sorted(operation.column_order) == sorted(names)
        after.sort(key=lambda column: operation.column_order.index(column[0]))
    if operation.changes_columns and not _only_adds_columns(operation):
        _check_unbound(model, name)
    model[name] = table._replace(
        properties=_edit_properties(table.properties, operation), columns=tuple(after)
    )


def _only_adds_columns(operation: UpdateTable) -> bool:
    return not (
        operation.drop_columns
        or operation.rename_columns
        or operation.retype_columns
        or operation.nullable_columns
        or operation.column_order
    )


def _undrop(model: Model, operation: Undrop, then: Model) -> None:
    source, target = str(operation.source), str(operation.target)
    returning = {target: then[source]}
    if operation.kind is Kind.NAMESPACE:
        assert target not in model, f"{target} is there"
        for name in _names_inside(then, operation.namespace):
            kind, rest = name.split(" ", 1)
            moved = f"{kind} {operation.new_namespace}.{rest[len(operation.namespace) + 1 :]}"
            returning[moved] = then[name]
        returning[f"id {target}"] = then[f"id {source}"]
    else:
        _check_vacant(model, operation.new_namespace, operation.new_name)
    ids = {value.id for value in model.values() if isinstance(value, ModelTable | ModelView)}
    ids |= {str(value) for key, value in model.items() if key.startswith("id ")}
    for name, value in returning.items():
        held = value.id if isinstance(value, ModelTable | ModelView) else value
        assert not (isinstance(held, str) and held in ids), f"{name} lives elsewhere"
    model.update(returning)
    for name, value in returning.items():
        if isinstance(value, ModelView) and value.binding:
            for reference in value.references:
                assert _exists(model, reference), f"{name} is bound to {reference}, which is not there"


def _exists(model: Model, reference: str) -> bool:
    return f"table {reference}" in model or f"view {reference}" in model


def _bind(model: Model) -> None:
    """Record the bindings of views. Raises AssertionError for a binding to a missing object and for a circle."""
    for key in [key for key in model if key.startswith("bound ")]:
        del model[key]
    bound: dict[str, set[str]] = {}
    for key, view in list(model.items()):
        if isinstance(view, ModelView):
            own = key.split(" ", 1)[1]
            assert own not in view.references, f"{key} refers to itself"
            for reference in view.references if view.binding else ():
                assert _exists(model, reference), f"{key} is bound to {reference}, which is not there"
                bound.setdefault(reference, set()).add(own)
    for start in bound:
        above, waiting = set[str](), [start]
        while waiting:
            new = bound.get(waiting.pop(), set()) - above
            above |= new
            waiting += new
        assert start not in above, f"{start} is bound to itself"
    model.update({f"bound {key}": tuple(sorted(views)) for key, views in bound.items()})


def _add_sums(rows: tuple[int, int, int], segments: Sequence[Segment], sign: int = 1) -> tuple[int, int, int]:
    """Add the sums of segments, or subtract them."""
    files, count, size = rows
    for segment in segments:
        files += sign * segment.file_count
        count += sign * segment.row_count
        size += sign * segment.size_bytes
    return files, count, size


async def model_of(access: Access, at: At = None) -> Model:
    """Return the model of a stored catalog, read through its public calls."""
    at = (await access.resolve(at)).reference
    names: list[ObjectName] = [fmt.CATALOG]
    for kind in (Kind.NAMESPACE, Kind.PIPELINE, Kind.SUBSCRIPTION, Kind.TAG):
        page = await access.list(at, kind)
        assert not page.more
        names += [
            ObjectName(kind, n) if kind is Kind.NAMESPACE else ObjectName(kind, "", n) for n in page.names
        ]
    for namespace in [name.namespace for name in names if name.kind is Kind.NAMESPACE]:
        for kind in (Kind.TABLE, Kind.VIEW):
            page = await access.list(at, kind, namespace=namespace)
            assert not page.more
            names += [ObjectName(kind, namespace, inside) for inside in page.names]
    model: Model = {}
    for name, stored in zip(names, (await access.load(at, names)).objects, strict=True):
        assert stored is not None, f"{name} is listed and not there"
        definition = decode_definition(name.kind, stored.definition, stored.path)
        if isinstance(definition, TableDef | ViewDef) and definition.bound_views:
            model[f"bound {name.full_name}"] = tuple(sorted(str(view) for view in definition.bound_views))
        match definition:
            case TableDef():
                model[str(name)] = ModelTable(
                    definition.properties,
                    definition.id,
                    _add_sums((0, 0, 0), definition.segments),
                    tuple((c.name, c.type, c.nullable) for c in definition.columns),
                    definition.iceberg_metadata_location,
                )
            case ViewDef():
                model[str(name)] = ModelView(
                    definition.properties,
                    definition.id,
                    definition.sql,
                    tuple(str(reference) for reference in definition.references),
                    definition.schema_binding,
                )
            case PipelineDef():
                model[str(name)] = {job: value.last_transaction_id for job, value in definition.jobs.items()}
            case SubscriptionDef():
                model[str(name)] = ModelSubscription(
                    definition.id,
                    definition.epoch,
                    definition.holder,
                    definition.position_path,
                    definition.next_version,
                )
            case TagDef():
                model[str(name)] = ModelTag(
                    definition.id, definition.version, definition.pin_path, definition.message
                )
            case NamespaceDef():
                model[str(name)] = definition.properties
                model[f"id {name}"] = definition.id
            case _:
                model[str(name)] = definition.properties
    return model


async def put_rows(
    storage: Storage, identities: Identities, *, table_id: str, transaction_id: str, row_count: int = 1
) -> Segment:
    """Store a data file and its manifest segment.

    The file is not Parquet, because the journal never opens data files. Large random row counts distinguish files by
    their sums, while the file itself stays small.
    """
    write = identities.uuid4()
    path = fmt.data_folder(table_id, transaction_id, write) + "part-0.parquet"
    content = b"rows" * min(row_count, 4)
    file = DataFile(path=path, row_count=row_count, size_bytes=len(content))
    data, segment = await asyncio.to_thread(
        segment_of,
        [file],
        path=fmt.manifest_path(table_id, identities.uuid7()),
        table_id=table_id,
        schema_id=0,
    )
    await storage.put_many({path: content, segment.path: data})
    return segment


class Lake:
    """A store, a fake clock, and journals on the store, for tests of the journal."""

    def __init__(self, storage: Storage | None = None, seed: int = 0) -> None:
        self.storage = storage or MemoryStorage()
        self.clock = FakeClock()
        self.identities = SeededIdentities(seed, self.clock)

    async def create(self, **options: object) -> Journal:
        return await Journal.create(
            self.storage,
            clock=self.clock,
            identities=self.identities,
            **options,  # type: ignore[arg-type]
        )

    async def open(self, storage: Storage | None = None) -> Journal:
        return await Journal.open(storage or self.storage, clock=self.clock, identities=self.identities)

    def transaction(self, journal: Journal, *operations: Operation, begin: int | None = None) -> Transaction:
        begin = journal.head.version if begin is None else begin
        return Transaction(id=self.identities.uuid7(), begin_version=begin, operations=operations)

    async def commit(self, journal: Journal, *operations: Operation) -> Committed:
        return await journal.commit(self.transaction(journal, *operations))

    def namespace(self, name: str, **properties: str) -> CreateNamespace:
        return CreateNamespace(name=name, namespace_id=self.identities.uuid4(), properties=properties)

    def table(self, namespace: str, name: str) -> CreateTable:
        return CreateTable(
            namespace=namespace,
            name=name,
            table_id=self.identities.uuid4(),
            columns=(Column(id=1, name="c", type="INT8"),),
        )

    async def expire(self, *, below: int) -> None:
        """Write tombstones over the versions below `below`."""
        log = await Log.open(self.storage)
        catalog_id = (await log.newest()).catalog_id
        for version in range(below):
            tombstone = encode_tombstone(
                commit_id=await log.commit_id(version),
                catalog_id=catalog_id,
                expired_at_millis=self.clock.millis,
                version=version,
            )
            await self.storage.put(log.path(version), tombstone)
