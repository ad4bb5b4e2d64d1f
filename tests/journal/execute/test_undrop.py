"""Dropping and restoring: namespaces with their contents, tables restored and undropped, Iceberg pointers."""

from __future__ import annotations

import asyncio

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, AlreadyExists, Conflict, Expired, InvalidInput, NotFound
from alpheus_journal.execute import prefetch as footprint
from alpheus_journal.execute.execute import execute
from alpheus_journal.execute.overlay import Overlay
from alpheus_journal.execute.rules import lifecycle
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed, Finding, StoredObject
from alpheus_journal.model.definition_messages import decode_definition, encode_definition
from alpheus_journal.model.definitions import CatalogDef, Column, NamespaceDef, Reference, TableDef, ViewDef
from alpheus_journal.model.operations import (
    AddColumn,
    AppendFiles,
    CommitIceberg,
    CreateView,
    DropNamespace,
    DropTable,
    DropView,
    Operation,
    OverwriteFiles,
    RegisterTable,
    RenameObject,
    RestoreTable,
    Transaction,
    Undrop,
    UpdateTable,
    Writer,
)
from alpheus_journal.testing import Lake, model_of, put_rows, raises
from alpheus_journal.workspace.context import ExecutionContext
from alpheus_journal.workspace.workspace import Workspace

ID = "01890a5d-ac96-474b-8cce-b302099a8057"


def undrop(
    kind: Kind, namespace: str, name: str, version: int, *, new: tuple[str, str] | None = None
) -> Undrop:
    new_namespace, new_name = new or (namespace, name)
    return Undrop(
        kind=kind,
        namespace=namespace,
        name=name,
        version=version,
        new_namespace=new_namespace,
        new_name=new_name,
    )


def add(name: str) -> AddColumn:
    return AddColumn(column=Column(id=0, name=name, type="INT8"))


def bound_view(name: str, *references: str, namespace: str = "a") -> CreateView:
    return CreateView(
        namespace=namespace, name=name, view_id=ID[:-2] + name.encode().hex()[:2], sql="s", dialect="spark",
        references=tuple(Reference(*r.split(".")) for r in references), schema_binding=True,
    )  # fmt: skip


async def load(
    journal: Journal, name: ObjectName, at: int | None = None
) -> TableDef | ViewDef | NamespaceDef:
    (stored,) = (await journal.load(at, [name])).objects
    assert stored is not None, f"there is no {name}"
    definition = decode_definition(name.kind, stored.definition, stored.path)
    assert isinstance(definition, TableDef | ViewDef | NamespaceDef)
    return definition


async def table_of(journal: Journal, name: str, namespace: str = "a", at: int | None = None) -> TableDef:
    definition = await load(journal, fmt.table_name(namespace, name), at)
    assert isinstance(definition, TableDef)
    return definition


async def write(
    lake: Lake,
    journal: Journal,
    table_id: str,
    name: str,
    rows: int,
    *,
    replace: bool = False,
    sequence: int = 0,
) -> Committed:
    id = lake.identities.uuid7()
    segment = await put_rows(
        lake.storage, lake.identities, table_id=table_id, transaction_id=id, row_count=rows
    )
    kind = OverwriteFiles if replace else AppendFiles
    operation = kind(namespace="a", name=name, table_id=table_id, segments=(segment,))
    return await journal.commit(
        Transaction(
            id=id,
            begin_version=journal.head.version,
            operations=(operation,),
            writer=Writer(name="w", sequence=sequence) if sequence else None,
        )
    )


async def verify(journal: Journal) -> None:
    assert [item async for item in journal.check() if isinstance(item, Finding)] == []


async def told_again(journal: Journal, committed: Committed) -> None:
    """Check that the outcome, computed from the recorded version, counts the same rows."""
    outcome = await journal.outcome(committed.transaction_id)
    assert outcome.commit is not None
    counted = (outcome.commit.rows_added, outcome.commit.rows_removed)
    assert counted == (committed.rows_added, committed.rows_removed)


async def filled() -> tuple[Lake, Journal, str]:
    """Make a.t with 5 rows at version 2, 3 more rows at version 3, and one more column at version 4."""
    lake = Lake()
    journal = await lake.create(order=3)
    table = lake.table("a", "t")
    await lake.commit(journal, lake.namespace("a", p="1"), lake.namespace("b"), table)
    await write(lake, journal, table.table_id, "t", 5)
    await write(lake, journal, table.table_id, "t", 3, sequence=7)
    await lake.commit(journal, UpdateTable(namespace="a", name="t", add_columns=(add("d"),), set={"k": "v"}))
    return lake, journal, table.table_id


# --- restoring -------------------------------------------------------------------------------------


async def test_a_table_as_it_was() -> None:
    lake, journal, table_id = await filled()
    committed = await lake.commit(journal, RestoreTable(namespace="a", name="t", version=2))
    assert (committed.rows_added, committed.rows_removed) == (0, 3)
    await told_again(journal, committed)
    table, then = await table_of(journal, "t"), await table_of(journal, "t", at=2)
    assert (table.columns, table.segments, table.properties) == (then.columns, then.segments, {})
    assert (table.id, table.next_column_id, table.schema_id, table.sequence) == (table_id, 3, 2, 3)
    assert table.writer_marks["w"].sequence == 7, "a stream does not write again what it wrote"
    committed = await lake.commit(journal, RestoreTable(namespace="a", name="t", version=4))
    assert (committed.rows_added, committed.rows_removed) == (3, 0)
    assert (await table_of(journal, "t")).columns == (await table_of(journal, "t", at=4)).columns
    await lake.commit(journal, UpdateTable(namespace="a", name="t", add_columns=(add("e"),)))
    assert (await table_of(journal, "t")).columns[-1].id == 3
    appended = await write(lake, journal, table_id, "t", 1)
    assert appended.rows_added == 1
    assert [s.sequence for s in (await table_of(journal, "t")).segments] == [1, 2, 5]
    await verify(journal)


def test_a_restored_table_continues_from_the_larger_counters() -> None:
    """A writer of an earlier release may have left lower counters than those of the older version."""
    name, keys = fmt.table_name("a", "t"), fmt.Keys()
    column = Column(id=1, name="c", type="INT8")
    now = TableDef(id=ID, columns=(column,), next_column_id=2, sequence=1, schema_id=0)
    then = TableDef(
        id=ID,
        columns=(column, Column(id=2, name="d", type="INT8")),
        next_column_id=3,
        sequence=7,
        schema_id=4,
    )
    space = Workspace()
    space.add_object(fmt.CATALOG, StoredObject("def/catalog", encode_definition(CatalogDef(id=ID))))
    space.add_object(name, StoredObject("def/now", encode_definition(now)))
    space.add_past(2, name, StoredObject("def/then", encode_definition(then)))
    restore = RestoreTable(namespace="a", name="t", version=2)
    execute(space, restore, ExecutionContext(keys, ID, lambda: ID))
    stored = space.get(name)
    assert stored is not None
    after = space.definition(name, stored)
    assert isinstance(after, TableDef)
    assert (after.next_column_id, after.sequence, after.schema_id) == (3, 8, 5)


async def test_what_cannot_be_restored() -> None:
    lake, journal, _ = await filled()
    restored = RestoreTable(namespace="a", name="t", version=0)
    error: AlpheusError = await raises(NotFound, lake.commit(journal, restored), kind="no_table")
    assert "version 0" in error.message
    for version, kind in ((5, "future_version"), (-1, "bad_version")):
        restored = RestoreTable(namespace="a", name="t", version=version)
        await raises(InvalidInput, lake.commit(journal, restored), kind=kind)
    await raises(
        NotFound, lake.commit(journal, RestoreTable(namespace="a", name="u", version=2)), kind="no_table"
    )
    await lake.commit(journal, bound_view("v", "a.t"))
    error = await raises(
        InvalidInput,
        lake.commit(journal, RestoreTable(namespace="a", name="t", version=3)),
        kind="object_bound",
    )
    assert "view a.v" in error.message
    await lake.commit(journal, RestoreTable(namespace="a", name="t", version=4))
    await lake.commit(journal, DropView(namespace="a", name="v"), DropTable(namespace="a", name="t"))
    await lake.commit(journal, lake.table("a", "t"))
    restored = RestoreTable(namespace="a", name="t", version=4)
    error = await raises(InvalidInput, lake.commit(journal, restored), kind="table_replaced")
    assert "undrop" in error.hint


async def test_a_past_that_has_expired() -> None:
    lake, journal, _ = await filled()
    await lake.commit(journal, RestoreTable(namespace="a", name="t", version=2))
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    await lake.commit(journal, undrop(Kind.TABLE, "a", "t", 4))
    await lake.expire(below=4)
    journal = await lake.open()
    for operation in (
        RestoreTable(namespace="a", name="t", version=3),
        undrop(Kind.TABLE, "a", "t", 3, new=("b", "t")),
    ):
        error = await raises(Expired, lake.commit(journal, operation), kind="version_expired")
        assert error.oldest == 4
    await verify(journal)  # this replays the versions that are kept


# --- undropping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [False, True])
async def test_a_dropped_table_comes_back(state: bool) -> None:
    lake, journal, table_id = await filled()
    if state:
        await journal.load_state()
    dropped = await lake.commit(journal, DropTable(namespace="a", name="t"))
    assert dropped.rows_removed == 8
    await told_again(journal, dropped)
    committed = await lake.commit(journal, undrop(Kind.TABLE, "a", "t", 2))
    assert committed.rows_added == 5
    await told_again(journal, committed)
    table, then = await table_of(journal, "t"), await table_of(journal, "t", at=2)
    assert (table.id, table.columns, table.segments) == (table_id, then.columns, then.segments)
    assert (table.next_column_id, table.sequence, table.schema_id) == (3, 2, 1), "counters go on"
    await write(lake, journal, table_id, "t", 1)
    await verify(journal)


async def test_under_another_name() -> None:
    lake, journal, table_id = await filled()
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    await lake.commit(journal, lake.table("a", "t"))
    error = await raises(
        AlreadyExists, lake.commit(journal, undrop(Kind.TABLE, "a", "t", 4)), kind="table_exists"
    )
    assert "another name" in error.hint
    await lake.commit(journal, undrop(Kind.TABLE, "a", "t", 4, new=("b", "back")))
    assert (await table_of(journal, "back", "b")).id == table_id
    again = undrop(Kind.TABLE, "a", "t", 4, new=("b", "twice"))
    error = await raises(AlreadyExists, lake.commit(journal, again), kind="object_exists")
    assert "exists as table b.back" in error.message
    await verify(journal)


async def test_what_was_renamed_does_not_come_back_a_second_time() -> None:
    lake, journal, _ = await filled()
    await lake.commit(journal, lake.table("b", "other"))
    await lake.commit(journal, DropTable(namespace="b", name="other"))
    rename = RenameObject(kind=Kind.TABLE, namespace="a", name="t", new_namespace="b", new_name="other")
    await lake.commit(journal, rename)
    error = await raises(AlreadyExists, lake.commit(journal, undrop(Kind.TABLE, "a", "t", 4)))
    assert "exists as table b.other" in error.message
    await lake.commit(journal, DropNamespace(name="a"))
    await raises(AlreadyExists, lake.commit(journal, undrop(Kind.NAMESPACE, "a", "", 4)))
    # In one transaction the table can move out of the way.
    await lake.commit(
        journal, DropTable(namespace="b", name="other"), undrop(Kind.NAMESPACE, "a", "", 4, new=("c", ""))
    )
    assert (await table_of(journal, "t", "c")).row_count == 8
    await verify(journal)


async def test_a_living_table_is_not_undropped_beside_itself() -> None:
    lake, journal, _ = await filled()
    copy = undrop(Kind.TABLE, "a", "t", 4, new=("a", "copy"))
    error = await raises(AlreadyExists, lake.commit(journal, copy), kind="object_exists")
    assert "exists as table a.t" in error.message
    moved = RenameObject(kind=Kind.TABLE, namespace="a", name="t", new_namespace="a", new_name="u")
    await raises(AlreadyExists, lake.commit(journal, moved, undrop(Kind.TABLE, "a", "t", 4)))


async def test_what_cannot_be_undropped() -> None:
    lake, journal, _ = await filled()
    await lake.commit(journal, DropTable(namespace="a", name="t"), DropNamespace(name="b"))
    refused: list[tuple[Operation, str]] = [
        (undrop(Kind.TABLE, "a", "t", 0), "no_table"),
        (undrop(Kind.VIEW, "a", "t", 2), "no_view"),
        (undrop(Kind.NAMESPACE, "c", "", 2), "no_namespace"),
        (undrop(Kind.NAMESPACE, "a", "", 2), "namespace_exists"),
        (undrop(Kind.NAMESPACE, "b", "x", 2), "bad_argument"),
        (undrop(Kind.PIPELINE, "", "p", 2), "not_supported"),
        (undrop(Kind.TABLE, "a", "t", 99), "future_version"),
        (undrop(Kind.TABLE, "a", "t", -3), "bad_version"),
        (undrop(Kind.TABLE, "a", "t", 4, new=("b", "t")), "no_namespace"),
        (undrop(Kind.TABLE, "a", "t", 4, new=("a", "t%")), "bad_name"),
        (undrop(Kind.TABLE, "a", "", 4), "bad_name"),
    ]
    for operation, kind in refused:
        await raises(AlpheusError, lake.commit(journal, operation), kind=kind)
    assert journal.head.version == 5


async def test_a_namespace_brings_what_it_held() -> None:
    lake, journal, table_id = await filled()
    view, outside = bound_view("v", "a.t", "b.o"), lake.table("b", "o")
    await lake.commit(journal, outside, view, bound_view("w", "a.v"))
    held = journal.head.version
    before = await model_of(journal)
    dropped = await lake.commit(journal, DropNamespace(name="a", cascade=True))
    assert dropped.rows_removed == 8
    await told_again(journal, dropped)
    assert (await table_of(journal, "o", "b")).bound_views == ()
    (entry,) = [e async for e in journal.log(after=journal.head.version - 1)]
    names = [str(effect.name) for effect in entry.transaction.actions[0].effects]
    assert names == ["namespace a", "table a.t", "table b.o", "view a.v", "view a.w"]
    assert [e.version async for e in journal.log(name=fmt.table_name("a", "t"), after=held)] == [held + 1]
    await lake.commit(journal, DropTable(namespace="b", name="o"))
    error: AlpheusError = await raises(
        NotFound, lake.commit(journal, undrop(Kind.NAMESPACE, "a", "", held)), kind="no_object"
    )
    assert "b.o" in error.message
    await lake.commit(journal, undrop(Kind.TABLE, "b", "o", held))
    committed = await lake.commit(journal, undrop(Kind.NAMESPACE, "a", "", held))
    assert committed.rows_added == 8
    await told_again(journal, committed)
    assert await model_of(journal) == before
    assert (await table_of(journal, "t")).id == table_id
    await verify(journal)


async def test_a_view_outside_keeps_a_namespace() -> None:
    lake, journal, _ = await filled()
    await lake.commit(journal, bound_view("v", "a.t", namespace="b"))
    error = await raises(
        InvalidInput, lake.commit(journal, DropNamespace(name="a", cascade=True)), kind="object_bound"
    )
    assert "view b.v" in error.message
    assert "table a.t" in error.message
    drop = DropView(namespace="b", name="v")
    await lake.commit(journal, drop, DropNamespace(name="a", cascade=True), lake.namespace("a"))
    await verify(journal)


async def test_more_children_than_one_operation_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"), *(lake.table("a", f"t{n}") for n in range(6)))
    for module in (lifecycle, footprint):
        monkeypatch.setattr(module, "CHILDREN_MAX", 4)
    cascade = DropNamespace(name="a", cascade=True)
    error = await raises(InvalidInput, lake.commit(journal, cascade), kind="too_large")
    assert "drop some" in error.hint
    first = DropTable(namespace="a", name="t0")
    await raises(InvalidInput, lake.commit(journal, first, cascade), kind="too_large")
    await lake.commit(journal, first)
    await lake.commit(journal, DropTable(namespace="a", name="t1"))
    await lake.commit(journal, cascade)
    error = await raises(
        InvalidInput, lake.commit(journal, undrop(Kind.NAMESPACE, "a", "", 1)), kind="too_large"
    )
    await lake.commit(journal, undrop(Kind.NAMESPACE, "a", "", 3))
    await verify(journal)


async def test_the_action_of_a_large_cascade_lies_in_a_file_of_its_own() -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"), *(lake.table("a", f"t{n}") for n in range(400)))
    await lake.commit(journal, DropNamespace(name="a", cascade=True))
    reader = await lake.open()
    event = await reader.event(2)
    (action,) = event.transactions[0].actions
    assert (len(action.also), len(event.changes)) == (400, 401)
    await lake.commit(journal, undrop(Kind.NAMESPACE, "a", "", 1))
    assert len((await journal.list(None, Kind.TABLE, namespace="a")).names) == 400
    await verify(journal)


async def test_others_have_their_turn_while_a_large_cascade_is_executed() -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"), *(lake.table("a", f"t{n}") for n in range(1_000)))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    before = turns
    await lake.commit(journal, DropNamespace(name="a", cascade=True))
    assert turns - before > 1_000 // footprint.DECODED_AT_ONCE_MAX + 1_000 // lifecycle.CHILDREN_AT_ONCE_MAX
    before = turns
    await lake.commit(journal, undrop(Kind.NAMESPACE, "a", "", 1))
    assert turns - before > 1_000 // footprint.DECODED_AT_ONCE_MAX + 1_000 // lifecycle.CHILDREN_AT_ONCE_MAX
    running.cancel()
    await asyncio.wait([running])
    assert len((await journal.list(None, Kind.TABLE, namespace="a")).names) == 1_000


async def test_wide_operations_are_few() -> None:
    lake = Lake()
    journal = await lake.create()
    cascade = DropNamespace(name="a", cascade=True)
    error = await raises(InvalidInput, lake.commit(journal, *[cascade] * 101), kind="too_large")
    assert error.hint
    await lake.commit(journal, *[lake.namespace("a"), cascade] * 100)
    await verify(journal)


# --- conflicts of concurrent changes ---------------------------------------------------------------


async def test_a_child_made_meanwhile_stops_a_cascade() -> None:
    lake, journal, _ = await filled()
    late = lake.transaction(journal, DropNamespace(name="a", cascade=True))
    await lake.commit(journal, lake.table("a", "new"))
    await raises(Conflict, journal.commit(late))
    assert (await table_of(journal, "new")).id


# --- inside a transaction --------------------------------------------------------------------------


async def test_the_past_inside_a_transaction() -> None:
    lake, journal, table_id = await filled()
    begin = journal.head.version

    async def load_at(version: int, names: list[ObjectName]) -> object:
        return (await journal.load(version, names)).objects

    overlay = Overlay(load_at, journal.list, journal.keys, lake.identities.uuid7(), begin=begin)  # type: ignore[arg-type]
    executed = await overlay.execute(RestoreTable(namespace="a", name="t", version=2))
    assert executed.rows_removed == 3
    await overlay.execute(DropNamespace(name="a", cascade=True))
    await overlay.execute(undrop(Kind.NAMESPACE, "a", "", 4, new=("c", "")))
    (stored,) = await overlay.load([fmt.table_name("c", "t")])
    assert stored is not None
    assert table_id in stored.definition.decode("latin-1")
    assert await overlay.list(Kind.TABLE, "c") == (["t"], False)
    executed = await overlay.execute(UpdateTable(namespace="c", name="t", add_columns=(add("n"),)))
    assert isinstance(executed.action.operation, UpdateTable)
    assert executed.action.operation.add_columns[0].column.id == 3
    for operation, kind in (
        (RestoreTable(namespace="c", name="t", version=9), "future_version"),
        (undrop(Kind.TABLE, "a", "t", 9), "future_version"),
    ):
        await raises(InvalidInput, overlay.execute(operation), kind=kind)


# --- Iceberg ---------------------------------------------------------------------------------------


def register(location: str, name: str = "ice") -> RegisterTable:
    return RegisterTable(namespace="a", name=name, table_id=ID, metadata_location=location)


def move(location: str, expected: str, name: str = "ice") -> CommitIceberg:
    return CommitIceberg(namespace="a", name=name, metadata_location=location, expected=expected)


async def test_iceberg_pointers() -> None:
    lake, journal, _ = await filled()
    one, two, three = (f"s3://bucket/ice/metadata/{n}.json" for n in (1, 2, 3))
    await lake.commit(journal, register(one))
    registered = journal.head.version
    await lake.commit(journal, move(two, one))
    error = await raises(Conflict, lake.commit(journal, move(three, one)), kind="metadata_moved")
    assert error.retryable
    assert one in error.message
    assert two in error.message
    table = await table_of(journal, "ice")
    assert (table.native, table.iceberg_metadata_location, table.iceberg_previous_metadata_location) == (
        False, two, one,
    )  # fmt: skip
    await lake.commit(journal, UpdateTable(namespace="a", name="ice", set={"k": "v"}))
    refused: list[tuple[Operation, str]] = [
        (UpdateTable(namespace="a", name="ice", add_columns=(add("c"),)), "not_native"),
        (AppendFiles(namespace="a", name="ice", table_id=ID, segments=()), "not_native"),
        (move(two, one, "t"), "not_iceberg"),
        (move(two, one, "none"), "no_table"),
        (register(one), "table_exists"),
    ]
    for operation, kind in refused:
        await raises(AlpheusError, lake.commit(journal, operation), kind=kind)
    await lake.commit(journal, RestoreTable(namespace="a", name="ice", version=registered))
    table = await table_of(journal, "ice")
    assert (table.iceberg_metadata_location, table.iceberg_previous_metadata_location) == (one, two)
    assert table.properties == {}
    await lake.commit(journal, DropTable(namespace="a", name="ice"))
    await lake.commit(journal, undrop(Kind.TABLE, "a", "ice", registered, new=("b", "ice")))
    assert (await table_of(journal, "ice", "b")).iceberg_metadata_location == one
    await verify(journal)


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("", "bad_url"), ("metadata.json", "bad_url"), ("s3://b/\n", "bad_url"), (" s3://b/x", "bad_url"),
        ("s3://", "bad_url"), ("x" * 5000, "too_large"), ("s3://b/\ud800", "bad_argument"), ("s3://b/x ", "bad_url"),
    ],
)  # fmt: skip
async def test_locations_that_are_none(location: str, kind: str) -> None:
    lake, journal, _ = await filled()
    await raises(InvalidInput, lake.commit(journal, register(location)), kind=kind)
    for good in ("s3://b/x", "file:///x/y", "/x/y", "gs://b/ü.json", "hdfs://host:9000/x"):
        await lake.commit(journal, register(good), DropTable(namespace="a", name="ice"))
