"""No counter of a table ever decreases. If a column id were reused, old data files would be read under a wrong
column.
"""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import At, Finding, Tag
from alpheus_journal.model.definition_messages import decode_definition, encode_definition
from alpheus_journal.model.definitions import COLUMN_ID_MAX, Column, TableDef
from alpheus_journal.model.operation_messages import operations_digest
from alpheus_journal.model.operations import (
    AddColumn,
    AppendFiles,
    CreateTag,
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
from alpheus_journal.workspace.workspace import Counters

Found = tuple[int, int, int]
NAMES = ("x", "y")


async def tables_of(journal: Journal, version: At = None) -> dict[str, TableDef]:
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


# --- where the last counters have expired ----------------------------------------------------------


async def tag(lake: Lake, journal: Journal, name: str) -> int:
    """Give the head a tag, and return its version."""
    pin = await journal.create_pin(None)
    new = CreateTag(
        name=name,
        tag_id=lake.identities.uuid4(),
        **pin.tag_fields,
    )
    await lake.commit(journal, new)
    return pin.version


async def drop_and_expire(lake: Lake, journal: Journal, *operations: Operation) -> None:
    await lake.commit(journal, *operations)
    await lake.commit(journal, lake.namespace(f"later{journal.head.version}"))
    await lake.expire(below=journal.head.version)


async def dropped_lake() -> tuple[Lake, Journal, int, int]:
    """Make the table a.t with the tag `one`, change it twice, make the tag `two`, drop the table, and let all versions
    expire. Return the tagged versions, and a journal that has all versions in memory."""
    lake, journal = await one_table()
    one = await tag(lake, journal, "one")
    for column in ("b", "e"):
        await lake.commit(journal, add_to("t", column))
    await lake.commit(journal, RestoreTable(namespace="a", name="t", version=journal.head.version))
    two = await tag(lake, journal, "two")
    await drop_and_expire(lake, journal, DropTable(namespace="a", name="t"))
    return lake, journal, one, two


async def recorded_counters(journal: Journal) -> list[Found]:
    event = await journal.event(journal.head.version)
    operation = event.transactions[0].actions[0].operation
    assert isinstance(operation, Undrop)
    return [(one.next_column_id, one.sequence, one.schema_id) for one in operation.counters]


AFTER_GAP = (1_000_004, 1_000_001, 1_000_002)


async def test_an_undrop_leaves_a_gap_where_the_drop_has_expired() -> None:
    lake, _, one, two = await dropped_lake()
    journal = await lake.open()
    await lake.commit(journal, undrop("t", one))
    assert counters((await tables_of(journal))["a.t"]) == AFTER_GAP
    assert await recorded_counters(journal) == [AFTER_GAP]
    await verify(await lake.open())
    await lake.commit(journal, add_to("t", "n"))
    assert (await tables_of(journal))["a.t"].columns[-1].id == 1_000_004
    await lake.commit(journal, RestoreTable(namespace="a", name="t", version=two))
    assert counters((await tables_of(journal))["a.t"]) == (1_000_005, 1_000_002, 1_000_004)
    await verify(await lake.open())


async def test_a_process_that_has_expired_versions_in_memory_records_what_it_found() -> None:
    lake, journal, one, _ = await dropped_lake()
    await lake.commit(journal, undrop("t", one))
    assert counters((await tables_of(journal))["a.t"]) == (4, 1, 2)
    assert await recorded_counters(journal) == [(4, 1, 2)]
    await verify(await lake.open())


async def test_a_check_compares_recorded_counters_with_the_definition() -> None:
    lake, _, one, _ = await dropped_lake()
    journal = await lake.open()
    await lake.commit(journal, undrop("t", one))
    (stored,) = (await journal.load(None, [fmt.table_name("a", "t")])).objects
    assert stored is not None
    table = (await tables_of(journal))["a.t"]
    wrong = msgspec.structs.replace(table, sequence=table.sequence + 1)
    await lake.storage.put(stored.path, encode_definition(wrong, checksum=True))
    findings = [item async for item in (await lake.open()).check() if isinstance(item, Finding)]
    assert "corrupt_history" in {finding.kind for finding in findings}


async def test_a_namespace_brings_its_tables_with_a_gap() -> None:
    lake, journal = await one_table()
    await lake.commit(journal, lake.table("a", "u"))
    one = await tag(lake, journal, "one")
    await lake.commit(journal, add_to("t", "b"))
    await drop_and_expire(lake, journal, CASCADE)
    journal = await lake.open()
    await lake.commit(journal, Undrop(kind=Kind.NAMESPACE, namespace="a", version=one, new_namespace="a"))
    gap = (1_000_002, 1_000_000, 1_000_000)  # no later tag tells of column b
    assert {name: counters(table) for name, table in (await tables_of(journal)).items()} == {
        "a.t": gap,
        "a.u": gap,
    }
    assert await recorded_counters(journal) == [gap, gap]
    await verify(await lake.open())


async def test_a_later_tag_counts_under_any_name() -> None:
    lake, _, one, _ = await dropped_lake()
    journal = await lake.open()
    await lake.commit(journal, undrop("t", one), rename("t", "u"), add_to("u", "n"))
    await tag(lake, journal, "three")
    await drop_and_expire(lake, journal, DropTable(namespace="a", name="u"))
    await lake.commit(journal := await lake.open(), undrop("t", one))
    assert counters((await tables_of(journal))["a.t"]) == (2_000_005, 2_000_001, 2_000_003)
    await verify(await lake.open())


async def test_of_two_writers_that_undrop_one_succeeds() -> None:
    """The loser of the slot decides again, on what the winner left."""
    lake, known, one, _ = await dropped_lake()
    fresh = await lake.open()
    answers = await asyncio.gather(
        lake.commit(fresh, undrop("t", one)),
        lake.commit(known, undrop("t", one, "other")),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, AlpheusError) for answer in answers) == 1
    (table,) = (await tables_of(await lake.open())).values()
    assert [counters(table)] == await recorded_counters(await lake.open())
    await verify(await lake.open())


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ((1, 0, 0), (4, 1, 2)),
        ((1_000_004, 1, 0), (1_000_004, 1, 2)),
        ((1_000_004, 1_000_001, 1_000_002), AFTER_GAP),
        ((1_000_005, 0, 0), (4, 1, 2)),
    ],
)
async def test_counters_of_a_client_count_up_to_a_gap(given: Found, after: Found) -> None:
    lake, journal, one, _ = await dropped_lake()
    (table,) = (await tables_of(journal, Tag("one"))).values()
    counted = Counters(next_column_id=given[0], sequence=given[1], schema_id=given[2]).record_for(table.id)
    asked = msgspec.structs.replace(undrop("t", one), counters=(counted,))
    committed = await lake.commit(journal, asked)
    assert counters((await tables_of(journal))["a.t"]) == after
    assert await recorded_counters(journal) == [after]
    event = await journal.event(committed.version)
    assert event.transactions[0].operations_digest == operations_digest([undrop("t", one)])
    await verify(await lake.open())


def test_a_gap_ends_at_the_largest_values() -> None:
    high = Counters(next_column_id=COLUMN_ID_MAX - 5, sequence=(1 << 63) - 5, schema_id=(1 << 31) - 5)
    highest = Counters(next_column_id=COLUMN_ID_MAX, sequence=(1 << 63) - 1, schema_id=(1 << 31) - 1)
    assert high.after_gap() == highest == highest.after_gap()


# --- random histories ------------------------------------------------------------------------------


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


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_expires_of_a_table(seed: int) -> None:
    """In random histories with tags, of which everything else expires, the counters of the table are at least those in
    the tags, and no two columns of the head and of the tags share an id."""
    rng = random.Random(seed)
    lake, journal = await one_table()
    tags = {"tag": await tag(lake, journal, "tag")}
    gaps = 0
    for count in range(25):
        choice, at = rng.randrange(8), rng.choice(list(tags.values()))
        operations: list[Operation] = [add_to("t", f"c{count}")]
        if choice == 0:
            tags[f"tag{count}"] = await tag(lake, journal, f"tag{count}")
        elif choice == 1:
            operations = [RestoreTable(namespace="a", name="t", version=at)]
        elif choice in (2, 3):
            await drop_and_expire(lake, journal, DropTable(namespace="a", name="t"))
            journal = await lake.open() if choice == 2 else journal
            operations = [undrop("t", at), *operations]
        elif choice == 4:
            operations = [DropTable(namespace="a", name="t"), undrop("t", at)]
        await lake.commit(journal, *operations)
        now = (await tables_of(journal))["a.t"]
        gaps += now.sequence > 1_000_000 * (gaps + 1)
        names: dict[int, str] = {column.id: column.name for column in now.columns}
        for name in tags:
            then = (await tables_of(journal, Tag(name)))["a.t"]
            assert all(high >= low for high, low in zip(counters(now), counters(then), strict=True))
            for column in then.columns:
                assert names.setdefault(column.id, column.name) == column.name, "given twice"
    assert gaps
    await verify(await lake.open())
