"""No counter of a table ever decreases. If a column id were reused, old data files would be read under a wrong
column.
"""

from __future__ import annotations

import random

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Finding
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import Column, TableDef
from alpheus_journal.model.operations import (
    AddColumn,
    AppendFiles,
    DropNamespace,
    DropTable,
    Operation,
    RenameObject,
    RestoreTable,
    Transaction,
    Undrop,
    UpdateTable,
)
from alpheus_journal.testing import Lake, put_rows, raises

Found = tuple[int, int, int]
NAMES = ("x", "y")


async def tables_of(journal: Journal, version: int | None = None) -> dict[str, TableDef]:
    """Return all tables by full name."""
    found: dict[str, TableDef] = {}
    for space in (await journal.list(version, Kind.NAMESPACE)).names:
        names = [
            fmt.table_name(space, n) for n in (await journal.list(version, Kind.TABLE, namespace=space)).names
        ]
        for name, stored in zip(names, (await journal.load(version, names)).objects, strict=True):
            assert stored is not None
            definition = decode_definition(Kind.TABLE, stored.definition, stored.path)
            assert isinstance(definition, TableDef)
            found[name.full_name] = definition
    return found


def counters(table: TableDef) -> Found:
    return table.next_column_id, table.sequence, table.schema_id


def add(name: str) -> AddColumn:
    return AddColumn(column=Column(id=0, name=name, type="INT8"))


def add_to(name: str, column: str) -> UpdateTable:
    return UpdateTable(namespace="a", name=name, add_columns=(add(column),))


def rename(old: str, new: str) -> RenameObject:
    return RenameObject(kind=Kind.TABLE, namespace="a", name=old, new_namespace="a", new_name=new)


def undrop(name: str, version: int, new: str = "") -> Undrop:
    return Undrop(
        kind=Kind.TABLE, namespace="a", name=name, version=version, new_namespace="a", new_name=new or name
    )


async def one_table() -> tuple[Lake, Journal]:
    """Make the table a.t at version 1, with column 1."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"), lake.table("a", "t"))
    return lake, journal


async def verify(journal: Journal) -> None:
    assert [item async for item in journal.check() if isinstance(item, Finding)] == []


DROP_U, CASCADE = DropTable(namespace="a", name="u"), DropNamespace(name="a", cascade=True)
HISTORIES: dict[str, list[tuple[Operation, ...]]] = {
    "renamed, then dropped": [(add_to("t", "b"),), (rename("t", "u"),), (add_to("u", "e"),), (DROP_U,)],
    "dropped, undropped elsewhere, dropped": [
        (DropTable(namespace="a", name="t"),),
        (undrop("t", 1, "u"),),
        (add_to("u", "b"),),
        (add_to("u", "e"),),
        (DropTable(namespace="a", name="u"),),
    ],
    "dropped twice under its name": [
        (add_to("t", "b"),),
        (DropTable(namespace="a", name="t"),),
        (undrop("t", 2),),
        (add_to("t", "e"),),
        (DropTable(namespace="a", name="t"),),
    ],
    "its name taken by another": [
        (add_to("t", "b"),),
        (add_to("t", "e"), rename("t", "u")),
        (rename("u", "v"),),
        (DropTable(namespace="a", name="v"),),
    ],
    "by a cascade": [(add_to("t", "b"),), (add_to("t", "e"),), (rename("t", "u"),), (CASCADE,)],
    "within a transaction": [(add_to("t", "b"), rename("t", "u"), add_to("u", "e"), DROP_U)],
}  # fmt: skip


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("history", HISTORIES)
async def test_the_highest_ever(history: str, replayed: bool) -> None:
    lake, journal = await one_table()
    for operations in HISTORIES[history]:
        await lake.commit(journal, *operations)
    journal = await lake.open()
    if replayed:
        await journal.load_state()
    if (await journal.list(None, Kind.NAMESPACE)).names == ():
        await lake.commit(journal, lake.namespace("a"))
    await lake.commit(journal, undrop("t", 1, "back"))
    table = (await tables_of(journal))["a.back"]
    assert (table.next_column_id, table.schema_id, len(table.columns)) == (4, 2, 1)
    await lake.commit(journal, add_to("back", "n"))
    assert (await tables_of(journal))["a.back"].columns[-1].id == 4
    await verify(await lake.open())


async def test_dropped_and_back_in_one_transaction() -> None:
    lake, journal = await one_table()
    await lake.commit(
        journal, add_to("t", "b"), add_to("t", "e"), DropTable(namespace="a", name="t"), undrop("t", 1)
    )
    table = (await tables_of(journal))["a.t"]
    assert (table.next_column_id, len(table.columns)) == (4, 1)
    await lake.commit(journal, rename("t", "u"), add_to("u", "d"))
    await lake.commit(journal, DropTable(namespace="a", name="u"), undrop("t", 1))
    assert (await tables_of(journal))["a.t"].next_column_id == 5
    await verify(journal)


async def test_the_last_definition_is_damaged() -> None:
    """The counters are computed from the operations on the definition before it."""
    lake, journal = await one_table()
    table_id = (await tables_of(journal))["a.t"].id
    await lake.commit(journal, add_to("t", "b"))
    id = lake.identities.uuid7()
    segment = await put_rows(lake.storage, lake.identities, table_id=table_id, transaction_id=id, row_count=1)
    rows = AppendFiles(namespace="a", name="t", table_id=table_id, segments=(segment,))
    await journal.commit(
        Transaction(id=id, begin_version=journal.head.version, operations=(rows, add_to("t", "e")))
    )
    reached = counters((await tables_of(journal))["a.t"])
    assert reached == (4, 1, 2)
    await lake.commit(journal, rename("t", "u"))
    # The last two definitions are lost.
    lost = [action.path_after for action in (await journal.event(3)).transactions[0].actions]
    for path in lost:
        await lake.storage.delete(path)
    journal = await lake.open()
    await lake.commit(journal, DropTable(namespace="a", name="u"))
    await lake.commit(journal, undrop("t", 2))
    assert counters((await tables_of(journal))["a.t"]) == reached
    version = journal.head.version
    # Where a restored definition is damaged, no record tells the counters.
    (stored,) = (await journal.load(None, [fmt.table_name("a", "t")])).objects
    assert stored is not None
    await lake.storage.delete(stored.path)
    journal = await lake.open()
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    error = await raises(Corrupt, lake.commit(journal, undrop("t", 2)), kind="corrupt_definition")
    assert error.path == stored.path
    assert [f async for f in journal.check(after=version) if isinstance(f, Finding)] == []


def random_operation(rng: random.Random, tables: dict[str, TableDef], head: int, count: int) -> Operation:
    old, new = rng.choice(NAMES), rng.choice(NAMES)
    choice = rng.randrange(7)
    if choice < 2:
        return add_to(old, f"c{count}")
    if choice == 2:
        return rename(old, new)
    if choice == 3:
        return RestoreTable(namespace="a", name=old, version=rng.randrange(1, head + 1))
    if choice < 6 and f"a.{old}" not in tables:
        return undrop(rng.choice(NAMES), rng.randrange(1, head + 1), old)
    return DropTable(namespace="a", name=old)


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_to_a_table(seed: int) -> None:
    """In random histories with several operations a transaction, the counters of each table id only rise, and no two
    columns ever share an id."""
    rng = random.Random(seed)
    lake = Lake(seed=seed)
    journal = await lake.create(order=3)
    await lake.commit(journal, lake.namespace("a"), lake.table("a", "x"), lake.table("a", "y"))
    reached: dict[str, Found] = {}
    names: dict[tuple[str, int], str] = {}
    undropped = 0
    for count in range(400):
        tables = await tables_of(journal)
        for table in tables.values():
            before = reached.get(table.id, (0, 0, 0))
            assert all(now >= then for now, then in zip(counters(table), before, strict=True))
            reached[table.id] = counters(table)
            for column in table.columns:
                assert names.setdefault((table.id, column.id), column.name) == column.name, "given twice"
        operations = [
            random_operation(rng, tables, journal.head.version, count * 10 + n)
            for n in range(rng.randint(1, 3))
        ]
        try:
            await lake.commit(journal, *operations)
        except AlpheusError:
            continue
        undropped += sum(isinstance(operation, Undrop) for operation in operations)
    assert undropped > 4
    await verify(await lake.open())
