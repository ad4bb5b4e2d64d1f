"""A model of the catalog, and what a test of the journal begins with."""

from __future__ import annotations

import asyncio
import random

from alpheus_journal import format as fmt
from alpheus_journal.access import Access, At, Committed
from alpheus_journal.actions import (
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
)
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.log import Log
from alpheus_journal.manifest import DataFile, segment_of
from alpheus_journal.node import encode_tombstone
from alpheus_journal.objects import Column, PipelineDef, Segment, TableDef, decode_definition
from alpheus_journal.storage import Storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.system import Identities
from alpheus_journal.testing.determinism import FakeClock, SeededIdentities

Model = dict[str, object]
"""What a catalog holds, as plain values: `str(object name)` -> properties; of a table also its id and segment
paths, of a pipeline the last transaction of each job. See `apply_to_model`."""


def apply_to_model(model: Model, operation: Operation, transaction_id: str) -> None:
    """What an operation means, said a second time without any code of the journal. Raises AssertionError
    when it is not possible as the model stands."""
    name = str(operation.target)
    match operation:
        case CreateCatalog() | UpdateCatalog():
            properties = dict(model.get(name, {}))  # type: ignore[call-overload]
            if isinstance(operation, CreateCatalog):
                assert name not in model, "created twice"
                model[name] = dict(operation.definition.properties)
            else:
                model[name] = _model_properties(properties, operation)
        case CreateNamespace():
            assert name not in model, f"{name} is there"
            model[name] = dict(operation.properties)
        case UpdateNamespace():
            model[name] = _model_properties(model[name], operation)
        case DropNamespace():
            inside = [other for other in model if other.startswith(f"table {operation.name}.")]
            assert not inside, f"{name} holds {inside}"
            del model[name]
        case CreateTable():
            assert f"namespace {operation.namespace}" in model, f"no namespace of {name}"
            assert name not in model, f"{name} is there"
            model[name] = (dict(operation.properties), operation.table_id, ())
        case UpdateTable():
            properties, table_id, segments = _model_table(model, name)
            model[name] = (_model_properties(properties, operation), table_id, segments)
        case DropTable():
            del model[name]
        case AppendFiles() | OverwriteFiles():
            properties, table_id, segments = _model_table(model, name)
            assert table_id == operation.table_id, f"files of another {name}"
            kept = segments if isinstance(operation, AppendFiles) else ()
            model[name] = (properties, table_id, (*kept, *(s.path for s in operation.segments)))
        case AdvancePipeline():
            jobs = dict(model.get(name, {}))  # type: ignore[call-overload]
            assert jobs.get(operation.job, "") == operation.expected_transaction_id, f"{name} has moved"
            model[name] = jobs | {operation.job: transaction_id}
        case CancelTransaction():
            pass


def _model_table(model: Model, name: str) -> tuple[dict[str, str], str, tuple[str, ...]]:
    return model[name]  # type: ignore[return-value]


def _model_properties(
    properties: object, operation: UpdateCatalog | UpdateNamespace | UpdateTable
) -> dict[str, str]:
    assert isinstance(properties, dict)
    return {key: value for key, value in properties.items() if key not in operation.unset} | operation.set


async def model_of(access: Access, at: At = None) -> Model:
    """The same view of a stored catalog, read through its public calls."""
    version = (await access.resolve(at)).version
    names: list[ObjectName] = [fmt.CATALOG]
    for kind in (Kind.NAMESPACE, Kind.PIPELINE):
        page = await access.list(version, kind)
        assert not page.more
        names += [
            ObjectName(kind, n) if kind is Kind.NAMESPACE else ObjectName(kind, "", n) for n in page.names
        ]
    for namespace in [name.namespace for name in names if name.kind is Kind.NAMESPACE]:
        page = await access.list(version, Kind.TABLE, namespace=namespace)
        assert not page.more
        names += [fmt.table_name(namespace, table) for table in page.names]
    model: Model = {}
    for name, stored in zip(names, (await access.load(version, names)).objects, strict=True):
        assert stored is not None, f"{name} is listed and not there"
        definition = decode_definition(name.kind, stored.definition, stored.path)
        match definition:
            case TableDef():
                segments = tuple(segment.path for segment in definition.segments)
                model[str(name)] = (definition.properties, definition.id, segments)
            case PipelineDef():
                model[str(name)] = {job: value.last_transaction_id for job, value in definition.jobs.items()}
            case _:
                model[str(name)] = definition.properties
    return model


def random_operation(rng: random.Random, model: Model, identities: Identities) -> Operation:
    """An operation over few names, likely but not certain to be possible in `model`; without data files."""
    properties = {rng.choice("pqr"): str(rng.randrange(9))}
    kind = rng.choice(("catalog", "namespace", "namespace", "table", "table", "table", "pipeline"))
    namespace, table = rng.choice(("a", "b", "ü-é")), rng.choice(("x", "y", "名𝄞"))
    unset = tuple(key for key in "pqr" if key not in properties and rng.random() < 0.2)
    if kind == "catalog":
        return UpdateCatalog(set=properties, unset=unset)
    if kind == "pipeline":
        name, job = rng.choice("mn"), rng.choice("jk")
        jobs = model.get(f"pipeline {name}", {})
        assert isinstance(jobs, dict)
        expected = jobs.get(job, "") if rng.random() < 0.9 else identities.uuid7()
        return AdvancePipeline(name=name, job=job, expected_transaction_id=expected, pinned_version=0)
    if kind == "namespace":
        if f"namespace {namespace}" not in model or rng.random() < 0.1:
            return CreateNamespace(name=namespace, namespace_id=identities.uuid4(), properties=properties)
        if rng.random() < 0.5:
            return DropNamespace(name=namespace)
        return UpdateNamespace(name=namespace, set=properties, unset=unset)
    if f"table {namespace}.{table}" not in model or rng.random() < 0.1:
        return CreateTable(
            namespace=namespace,
            name=table,
            table_id=identities.uuid4(),
            columns=(Column(id=1, name="c", type="INT8"),),
            properties=properties,
        )
    if rng.random() < 0.5:
        return DropTable(namespace=namespace, name=table)
    return UpdateTable(namespace=namespace, name=table, set=properties, unset=unset)


async def put_rows(
    storage: Storage, identities: Identities, *, table_id: str, transaction_id: str, row_count: int = 1
) -> Segment:
    """Store a data file (which is no Parquet: the journal never opens one) and its manifest segment."""
    write = identities.uuid4()
    path = fmt.data_folder(table_id, transaction_id, write) + "part-0.parquet"
    content = b"rows" * row_count
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
        for version in range(below):
            tombstone = encode_tombstone(
                commit_id=await log.commit_id(version),
                expired_at_millis=self.clock.millis,
                version=version,
            )
            await self.storage.put(log.path(version), tombstone)
