"""A model of the catalog, and what a test of the journal begins with."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

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
    JobDeclaration,
    NamespaceDef,
    PipelineDef,
    Reference,
    Segment,
    SubscriptionDef,
    TableDef,
    ViewDef,
)
from alpheus_journal.model.operations import (
    AddColumn,
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
    CreateView,
    DropNamespace,
    DropSubscription,
    DropTable,
    DropView,
    Operation,
    OverwriteFiles,
    RegisterTable,
    RenameObject,
    Repair,
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
"""What a catalog holds, as plain values: `str(object name)` -> of catalog and namespace the properties, of a table and
a view a `ModelTable`, `ModelView`, of a pipeline the last transaction of each job, of a subscription a
`ModelSubscription`; besides `id namespace n` -> its id,
and `bound ns.name` -> the views bound to it, where there are any. See `apply_to_model`."""


class ModelTable(NamedTuple):
    """`rows`: data files, rows, bytes. Which segments list them is the catalog's own affair."""

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


Past = Mapping[int, Model]
"""What the catalog held at earlier versions."""


def apply_to_model(model: Model, operation: Operation, transaction_id: str, past: Past | None = None) -> None:
    """What an operation means, said a second time without any code of the journal. Raises AssertionError or KeyError
    when it is not possible as the model stands, which is then unchanged. `past`: for operations that name an earlier
    version."""
    changed = dict(model)
    _apply(changed, operation, transaction_id, past)
    _bind(changed)
    model.clear()
    model.update(changed)


def _apply(model: Model, operation: Operation, transaction_id: str, past: Past | None) -> None:
    name = str(operation.target)
    match operation:
        case CreateCatalog():
            assert name not in model, "created twice"
            model[name] = dict(operation.definition.properties)
        case UpdateCatalog():
            model[name] = _edited(dict(model.get(name, {})), operation)  # type: ignore[call-overload]
        case CreateNamespace():
            assert name not in model, f"{name} is there"
            model[name] = dict(operation.properties)
            model[f"id {name}"] = operation.namespace_id
        case UpdateNamespace():
            model[name] = _edited(model[name], operation)
        case DropNamespace():
            _drop_namespace(model, operation)
        case CreateTable() | RegisterTable() | CreateView():
            _vacant(model, operation.namespace, operation.name)
            model[name] = _created(operation)
        case UpdateTable():
            _update_table(model, name, operation)
        case DropTable() | DropView():
            _free(model, name)
            del model[name]
        case AppendFiles() | OverwriteFiles():
            table = _table(model, name)
            assert table.id == operation.table_id, f"files of another {name}"
            assert not table.location, f"{name} is no native table"
            kept = table.rows if isinstance(operation, AppendFiles) else (0, 0, 0)
            model[name] = table._replace(rows=_plus(kept, operation.segments))
        case ChangeRows():
            table = _table(model, name)
            assert table.id == operation.table_id, f"files of another {name}"
            assert not table.location, f"{name} is no native table"
            model[name] = table._replace(
                rows=_plus(_plus(table.rows, operation.removed, -1), operation.segments)
            )
        case CommitIceberg():
            table = _table(model, name)
            assert table.location == operation.expected != "", f"{name} is elsewhere"
            model[name] = table._replace(location=operation.metadata_location)
        case RestoreTable():
            assert past is not None
            table, then = _table(model, name), _table(past[operation.version], name)
            assert table.id == then.id, f"{name} was another table"
            if not set(table.columns) <= set(then.columns):
                _free(model, name)
            model[name] = then
        case ReplaceView():
            view = model[name]
            assert isinstance(view, ModelView)
            _free(model, name)  # the columns of these views are not known
            model[name] = _created(operation, id=view.id)
        case RenameObject():
            assert name in model, f"no {name}"
            if operation.kind is Kind.PIPELINE:
                assert str(operation.new_target) not in model, f"{operation.new_target} is there"
                model[str(operation.new_target)] = model.pop(name)
                return
            _vacant(model, operation.new_namespace, operation.new_name)
            _free(model, name)
            model[str(operation.new_target)] = model.pop(name)
        case Undrop():
            assert past is not None
            _undrop(model, operation, past[operation.version])
        case AdvancePipeline():
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
        case CancelTransaction() | Repair():
            pass


def _table(model: Model, name: str) -> ModelTable:
    table = model[name]
    assert isinstance(table, ModelTable)
    return table


def _edited(properties: object, operation: UpdateCatalog | UpdateNamespace | UpdateTable) -> dict[str, str]:
    assert isinstance(properties, dict)
    return {key: value for key, value in properties.items() if key not in operation.unset} | operation.set


def _inside(model: Model, namespace: str) -> list[str]:
    return [other for other in model if other.startswith((f"table {namespace}.", f"view {namespace}."))]


def _vacant(model: Model, namespace: str, name: str) -> None:
    assert f"namespace {namespace}" in model, f"no namespace {namespace}"
    for kind in ("table", "view"):
        assert f"{kind} {namespace}.{name}" not in model, f"{namespace}.{name} is there"


def _free(model: Model, name: str) -> None:
    assert f"bound {name.split(' ', 1)[1]}" not in model, f"{name} is bound"


def _created(
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
    inside = _inside(model, operation.name)
    assert operation.cascade or not inside, f"{operation.name} holds {inside}"
    for name in inside:
        bound = model.get(f"bound {name.split(' ', 1)[1]}", ())
        assert isinstance(bound, tuple)
        assert all(f"view {view}" in inside for view in bound), f"{name} is bound from outside"
        del model[name]
    del model[f"namespace {operation.name}"]
    del model[f"id namespace {operation.name}"]


def _update_table(model: Model, name: str, operation: UpdateTable) -> None:
    """Of the columns, only those of the top level are understood."""
    table = _table(model, name)
    columns = {column[0]: column for column in table.columns}
    assert not operation.changes_columns or not table.location, f"{name} is no native table"
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
        _free(model, name)
    model[name] = table._replace(properties=_edited(table.properties, operation), columns=tuple(after))


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
        for name in _inside(then, operation.namespace):
            kind, rest = name.split(" ", 1)
            moved = f"{kind} {operation.new_namespace}.{rest[len(operation.namespace) + 1 :]}"
            returning[moved] = then[name]
        returning[f"id {target}"] = then[f"id {source}"]
    else:
        _vacant(model, operation.new_namespace, operation.new_name)
    ids = {value.id for value in model.values() if isinstance(value, ModelTable | ModelView)}
    ids |= {str(value) for key, value in model.items() if key.startswith("id ")}
    for name, value in returning.items():
        held = value.id if isinstance(value, ModelTable | ModelView) else value
        assert not (isinstance(held, str) and held in ids), f"{name} lives elsewhere"
    model.update(returning)
    for name, value in returning.items():
        if isinstance(value, ModelView) and value.binding:
            for reference in value.references:
                assert _named(model, reference), f"{name} is bound to {reference}, which is not there"


def _named(model: Model, reference: str) -> bool:
    return f"table {reference}" in model or f"view {reference}" in model


def _bind(model: Model) -> None:
    """Write down which views are bound to what. Raises AssertionError for a binding that leads nowhere or round."""
    for key in [key for key in model if key.startswith("bound ")]:
        del model[key]
    bound: dict[str, set[str]] = {}
    for key, view in list(model.items()):
        if isinstance(view, ModelView):
            own = key.split(" ", 1)[1]
            assert own not in view.references, f"{key} refers to itself"
            for reference in view.references if view.binding else ():
                assert _named(model, reference), f"{key} is bound to {reference}, which is not there"
                bound.setdefault(reference, set()).add(own)
    for start in bound:
        above, waiting = set[str](), [start]
        while waiting:
            new = bound.get(waiting.pop(), set()) - above
            above |= new
            waiting += new
        assert start not in above, f"{start} is bound to itself"
    model.update({f"bound {key}": tuple(sorted(views)) for key, views in bound.items()})


def _plus(rows: tuple[int, int, int], segments: Sequence[Segment], sign: int = 1) -> tuple[int, int, int]:
    """Sums with those of more segments, or without them."""
    files, count, size = rows
    for segment in segments:
        files += sign * segment.file_count
        count += sign * segment.row_count
        size += sign * segment.size_bytes
    return files, count, size


async def model_of(access: Access, at: At = None) -> Model:
    """The same view of a stored catalog, read through its public calls."""
    version = (await access.resolve(at)).version
    names: list[ObjectName] = [fmt.CATALOG]
    for kind in (Kind.NAMESPACE, Kind.PIPELINE, Kind.SUBSCRIPTION):
        page = await access.list(version, kind)
        assert not page.more
        names += [
            ObjectName(kind, n) if kind is Kind.NAMESPACE else ObjectName(kind, "", n) for n in page.names
        ]
    for namespace in [name.namespace for name in names if name.kind is Kind.NAMESPACE]:
        for kind in (Kind.TABLE, Kind.VIEW):
            page = await access.list(version, kind, namespace=namespace)
            assert not page.more
            names += [ObjectName(kind, namespace, inside) for inside in page.names]
    model: Model = {}
    for name, stored in zip(names, (await access.load(version, names)).objects, strict=True):
        assert stored is not None, f"{name} is listed and not there"
        definition = decode_definition(name.kind, stored.definition, stored.path)
        if isinstance(definition, TableDef | ViewDef) and definition.bound_views:
            model[f"bound {name.full_name}"] = tuple(sorted(str(view) for view in definition.bound_views))
        match definition:
            case TableDef():
                model[str(name)] = ModelTable(
                    definition.properties,
                    definition.id,
                    _plus((0, 0, 0), definition.segments),
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
            case NamespaceDef():
                model[str(name)] = definition.properties
                model[f"id {name}"] = definition.id
            case _:
                model[str(name)] = definition.properties
    return model


_NAMESPACES = ("a", "b", "ü-é")
_NAMES = ("x", "y", "名𝄞")


def random_operation(
    rng: random.Random, model: Model, identities: Identities, past: Past | None = None
) -> Operation:
    """An operation over few names, likely but not certain to be possible in `model`; without data files. Operations
    that name an earlier version come when `past` has some."""
    properties = {rng.choice("pqr"): str(rng.randrange(9))}
    kinds = [
        "catalog",
        "namespace",
        "namespace",
        "table",
        "table",
        "table",
        "view",
        "view",
        "pipeline",
        "rename",
        "subscription",
    ]
    kind = rng.choice(kinds + ["past", "past"] * bool(past))
    namespace, name = rng.choice(_NAMESPACES), rng.choice(_NAMES)
    there = [key.removeprefix("namespace ") for key in model if key.startswith("namespace ")]
    if kind in ("table", "view") and there and rng.random() < 0.9:
        namespace = rng.choice(there)
    unset = tuple(key for key in "pqr" if key not in properties and rng.random() < 0.2)
    if kind == "catalog":
        return UpdateCatalog(set=properties, unset=unset)
    if kind == "pipeline":
        pipeline, job = rng.choice("mn"), rng.choice("jk")
        jobs = model.get(f"pipeline {pipeline}", {})
        assert isinstance(jobs, dict)
        expected = jobs.get(job, "") if rng.random() < 0.9 else identities.uuid7()
        # By itself, so that what else a seed does stays as it was.
        rng = random.Random(f"{pipeline} {job} {expected} {sorted(jobs.items())}")
        if rng.random() < 0.15:
            return RenameObject(
                kind=Kind.PIPELINE,
                namespace="",
                name=pipeline,
                new_namespace="",
                new_name=rng.choice("mn"),
            )
        former = rng.choice("jk") if rng.random() < 0.15 else ""
        if former:
            expected = jobs.get(former, "")
        is_first = rng.random() < 0.2
        return AdvancePipeline(
            name=pipeline,
            job=job,
            expected_transaction_id=expected,
            pinned_version=0,
            former_job=former,
            expected_pipeline_id="" if is_first else None,
            declaration=JobDeclaration(open=rng.random() < 0.5) if rng.random() < 0.3 else None,
        )
    if kind == "subscription":
        return _random_subscription_operation(rng, model, identities)
    if kind == "namespace":
        if f"namespace {namespace}" not in model or rng.random() < 0.1:
            return CreateNamespace(name=namespace, namespace_id=identities.uuid4(), properties=properties)
        if rng.random() < 0.5:
            return DropNamespace(name=namespace, cascade=rng.random() < 0.3)
        return UpdateNamespace(name=namespace, set=properties, unset=unset)
    if kind == "rename":
        of = rng.choice((Kind.TABLE, Kind.TABLE, Kind.VIEW))
        namespace, name = _living(rng, model, of) or (namespace, name)
        return RenameObject(
            kind=of,
            namespace=namespace,
            name=name,
            new_namespace=rng.choice(there or _NAMESPACES),
            new_name=rng.choice(_NAMES),
        )
    if kind == "view":
        return _random_view_operation(rng, model, identities, namespace, name)
    if kind == "past":
        assert past
        return _random_past_operation(rng, model, past, namespace, name)
    return _random_table_operation(rng, model, identities, namespace, name)


def _random_subscription_operation(rng: random.Random, model: Model, identities: Identities) -> Operation:
    name = rng.choice("st")
    found = model.get(f"subscription {name}")
    if found is None or rng.random() < 0.1:
        return CreateSubscription(
            name=name,
            subscription_id=identities.uuid4(),
            lease_millis=1000,
            names=("a.x",),
            kinds=(Kind.TABLE,),
        )
    assert isinstance(found, ModelSubscription)
    if rng.random() < 0.3:
        return DropSubscription(name=name)
    holds = rng.random() < 0.8
    return ClaimSubscription(
        name=name,
        subscription_id=found.id,
        expected_epoch=found.epoch + (rng.random() < 0.1),
        expected_position_path=found.position_path,
        next_version=rng.randrange(9),
        holder="h" if holds else "",
        position_path=fmt.position_path(identities.uuid4()) if holds else "",
        previous_position_path=found.position_path,
    )


def _random_table_operation(
    rng: random.Random, model: Model, identities: Identities, namespace: str, name: str
) -> Operation:
    table = model.get(f"table {namespace}.{name}")
    properties = {rng.choice("pqr"): str(rng.randrange(9))}
    if table is None or rng.random() < 0.1:
        if rng.random() < 0.2:
            return RegisterTable(
                namespace=namespace,
                name=name,
                table_id=identities.uuid4(),
                metadata_location=f"s3://b/{rng.randrange(3)}.json",
            )
        return CreateTable(
            namespace=namespace,
            name=name,
            table_id=identities.uuid4(),
            columns=(Column(id=1, name="c", type=rng.choice(("INT4", "INT8"))),),
            properties=properties,
        )
    assert isinstance(table, ModelTable)
    if rng.random() < 0.4:
        return DropTable(namespace=namespace, name=name)
    if table.location and rng.random() < 0.7:
        expected = table.location if rng.random() < 0.8 else "s3://b/elsewhere.json"
        location = f"s3://b/{rng.randrange(9)}.json"
        return CommitIceberg(namespace=namespace, name=name, metadata_location=location, expected=expected)
    if rng.random() < 0.4:
        unset = tuple(key for key in "pqr" if key not in properties and rng.random() < 0.2)
        return UpdateTable(namespace=namespace, name=name, set=properties, unset=unset)
    return _random_columns(rng, table, namespace, name)


def _random_columns(rng: random.Random, table: ModelTable, namespace: str, name: str) -> UpdateTable:
    def some(rate: float) -> list[str]:
        return [column[0] for column in table.columns if rng.random() < rate]

    names = some(1)
    dropped, renamed, retyped = some(0.2), some(0.2), some(0.2)
    added = [rng.choice("cdefg") for _ in range(rng.choice((0, 1, 1, 2)))]
    order: list[str] = []
    if rng.random() < 0.2:
        order = [name for name in names if name not in dropped and name not in renamed] + added
        rng.shuffle(order)
    clean = [set(renamed) - set(dropped), set(retyped) - set(dropped) - set(renamed)]
    operation = UpdateTable(
        namespace=namespace,
        name=name,
        add_columns=tuple(
            AddColumn(
                column=Column(id=0, name=n, type=rng.choice(("INT4", "INT8")), nullable=rng.random() < 0.9)
            )
            for n in added
        ),
        drop_columns=tuple(dropped),
        rename_columns={old: rng.choice("CDEFG") for old in sorted(clean[0])},
        retype_columns={
            old: Column(id=0, name="", type=rng.choice(("INT4", "INT8"))) for old in sorted(clean[1])
        },
        nullable_columns={old: rng.random() < 0.8 for old in some(0.2) if old not in dropped},
        column_order=tuple(order),
    )
    return operation if operation.changes_columns else msgspec.structs.replace(operation, set={"p": "0"})


def _random_view_operation(
    rng: random.Random, model: Model, identities: Identities, namespace: str, name: str
) -> Operation:
    there = [
        Reference(*key.split(" ", 1)[1].split(".")) for key in model if key.startswith(("table ", "view "))
    ]
    references = tuple({rng.choice(there): 0 for _ in range(rng.randrange(3))}) if there else ()
    if rng.random() < 0.1:
        references = (*references, Reference("a", "nowhere"))
    fields: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "sql": f"select {rng.randrange(9)}",
        "dialect": "spark",
        "references": references,
        "schema_binding": rng.random() < 0.5,
        "properties": {"p": str(rng.randrange(9))},
    }
    if f"view {namespace}.{name}" not in model or rng.random() < 0.1:
        return CreateView(view_id=identities.uuid4(), **fields)
    return DropView(namespace=namespace, name=name) if rng.random() < 0.4 else ReplaceView(**fields)


def _living(rng: random.Random, model: Model, kind: Kind) -> tuple[str, str] | None:
    """Namespace and name of some table or view, most of the time."""
    there = [key.split(" ", 1)[1] for key in model if key.startswith(f"{kind.label} ")]
    if not there or rng.random() < 0.1:
        return None
    namespace, name = rng.choice(there).split(".")
    return namespace, name


def _random_past_operation(
    rng: random.Random, model: Model, past: Past, namespace: str, name: str
) -> Operation:
    version = rng.choice(sorted(past))
    if rng.random() < 0.4:
        namespace, name = _living(rng, model, Kind.TABLE) or (namespace, name)
        return RestoreTable(namespace=namespace, name=name, version=version)
    again = rng.random() < 0.6
    gone = {key: value for key, value in past[version].items() if key not in model or rng.random() < 0.1}
    if rng.random() < 0.4:
        lost = [key.removeprefix("namespace ") for key in gone if key.startswith("namespace ")]
        namespace = rng.choice(lost or [namespace])
        return Undrop(
            kind=Kind.NAMESPACE,
            namespace=namespace,
            version=version,
            new_namespace=namespace if again else rng.choice(_NAMESPACES),
        )
    kind = rng.choice((Kind.TABLE, Kind.VIEW))
    namespace, name = _living(rng, gone, kind) or (namespace, name)
    return Undrop(
        kind=kind,
        namespace=namespace,
        name=name,
        version=version,
        new_namespace=namespace if again else rng.choice(_NAMESPACES),
        new_name=name if again else rng.choice(_NAMES),
    )


async def put_rows(
    storage: Storage, identities: Identities, *, table_id: str, transaction_id: str, row_count: int = 1
) -> Segment:
    """Store a data file (which is no Parquet: the journal never opens one) and its manifest segment. Sums of rows tell
    well apart which files a table has, where their counts are large and random: the file itself stays small."""
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
    """A store, a fake clock, and journals on it: what a test of the journal begins with."""

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
        """Tombstones over the versions under `below`."""
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
