"""A damaged definition affects only its own object: all others are served, and dropping the damaged object removes the
damage.
"""

from __future__ import annotations

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.execute.overlay import Overlay
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Finding
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import Reference
from alpheus_journal.model.operations import (
    AppendFiles,
    CreateView,
    DropNamespace,
    DropTable,
    DropView,
    Operation,
    RenameObject,
    Transaction,
    UpdateTable,
)
from alpheus_journal.testing import Lake, put_rows, raises
from alpheus_pb.v1 import objects_pb2 as pb

SPACE, TABLE, OTHER = fmt.namespace_name("a"), fmt.table_name("a", "t"), fmt.table_name("a", "u")
VIEW, BOUND = ObjectName(Kind.VIEW, "a", "v"), ObjectName(Kind.VIEW, "a", "w")
HOWS = ("missing", "bytes", "large")


async def lake_with_all() -> tuple[Lake, Journal]:
    """Make namespace a with the tables t (2 rows) and u, a view v bound to t, and a view w bound to v, and namespace b
    with a view that refers to t without a binding."""
    lake = Lake()
    journal = await lake.create(order=3)
    table = lake.table("a", "t")

    def view(namespace: str, name: str, reference: str, binding: bool = True) -> CreateView:
        return CreateView(
            namespace=namespace, name=name, view_id=lake.identities.uuid4(), sql="s", dialect="spark",
            references=(Reference("a", reference),), schema_binding=binding,
        )  # fmt: skip

    await lake.commit(
        journal,
        *(lake.namespace("a"), lake.namespace("b"), table, lake.table("a", "u")),
        *(view("a", "v", "t"), view("a", "w", "v"), view("b", "x", "t", binding=False)),
    )
    id = lake.identities.uuid7()
    segment = await put_rows(
        lake.storage, lake.identities, table_id=table.table_id, transaction_id=id, row_count=2
    )
    rows = AppendFiles(namespace="a", name="t", table_id=table.table_id, segments=(segment,))
    await journal.commit(Transaction(id=id, begin_version=journal.head.version, operations=(rows,)))
    return lake, journal


async def damage(lake: Lake, journal: Journal, name: ObjectName, how: str) -> str:
    (stored,) = (await journal.load(None, [name])).objects
    assert stored is not None
    await lake.storage.delete(stored.path)
    if how != "missing":
        data = b"\xff" if how == "bytes" else b"\0" * (fmt.DEFINITION_SIZE_BYTES_MAX + 1)
        await lake.storage.put(stored.path, data)
    return stored.path


async def opened(lake: Lake, replayed: bool) -> Journal:
    journal = await lake.open()
    if replayed:
        await journal.load_state()
    return journal


async def readable(journal: Journal, name: ObjectName) -> bool:
    (stored,) = (await journal.load(None, [name])).objects
    assert stored is not None
    decode_definition(name.kind, stored.definition, stored.path)
    return True


async def findings(journal: Journal, after: int | None = None) -> set[str]:
    return {item.path async for item in journal.check(after=after) if isinstance(item, Finding)}


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("how", HOWS)
async def test_one_damaged_table(how: str, replayed: bool) -> None:
    lake, journal = await lake_with_all()
    path = await damage(lake, journal, TABLE, how)
    journal = await opened(lake, replayed)
    assert (await journal.list(None, Kind.TABLE, namespace="a")).names == ("t", "u")
    error = await raises(Corrupt, readable(journal, TABLE), kind="corrupt_definition")
    assert error.path == path
    if how != "bytes":
        await raises(Corrupt, journal.load(None, [OTHER, TABLE]), kind="corrupt_definition")
        assert error.version == journal.head.version
    for name in (SPACE, OTHER, VIEW, BOUND):
        assert await readable(journal, name)
    moved = RenameObject(kind=Kind.TABLE, namespace="a", name="t", new_namespace="b", new_name="t")
    for refused in (UpdateTable(namespace="a", name="t", set={"k": "v"}), moved):
        error = await raises(Corrupt, lake.commit(journal, refused), kind="corrupt_definition")
        assert error.path == path
    await lake.commit(journal, UpdateTable(namespace="a", name="u", set={"k": "v"}))
    assert await findings(journal) == {path}
    version = journal.head.version
    # Views bound to the table can be dropped: the table's list of its views is lost.
    await lake.commit(journal, DropView(namespace="a", name="w"), DropView(namespace="a", name="v"))
    dropped = await lake.commit(journal, DropTable(namespace="a", name="t"))
    assert dropped.rows_removed == 0
    outcome = await journal.outcome(dropped.transaction_id)
    assert outcome.commit is not None
    assert outcome.commit.rows_removed == 0
    assert (await journal.list(None, Kind.TABLE, namespace="a")).names == ("u",)
    assert {gone.name async for gone in journal.dropped()} == {TABLE, VIEW, BOUND}
    assert await findings(await lake.open(), after=version) == set(), "what is kept of the past stays damaged"
    await lake.commit(journal, lake.table("a", "t"))
    assert await readable(journal, TABLE)


@pytest.mark.parametrize("how", HOWS)
async def test_one_damaged_view(how: str) -> None:
    lake, journal = await lake_with_all()
    path = await damage(lake, journal, BOUND, how)
    journal = await opened(lake, True)
    error = await raises(Corrupt, lake.commit(journal, DropView(namespace="a", name="v")))
    assert error.path == path, "whether it binds is not known"
    version = journal.head.version
    await lake.commit(journal, DropView(namespace="a", name="w"))
    (view,) = (await journal.load(None, [VIEW])).objects
    assert view is not None
    assert len(pb.ViewDef.FromString(view.definition).bound_views) == 1, "stale, and binds nothing"
    await lake.commit(journal, DropView(namespace="a", name="v"), DropTable(namespace="a", name="t"))
    assert await findings(await lake.open(), after=version) == set()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", [SPACE, TABLE, OTHER, VIEW, BOUND], ids=str)
async def test_a_namespace_with_all_that_it_holds(name: ObjectName, how: str) -> None:
    lake, journal = await lake_with_all()
    path = await damage(lake, journal, name, how)
    for replayed in (False, True):
        journal = await opened(lake, replayed)
        assert (await journal.list(None, Kind.NAMESPACE)).names == ("a", "b")
        assert (await journal.list(None, Kind.VIEW, namespace="a")).names == ("v", "w")
        assert await findings(journal) == {path}
    version = journal.head.version
    dropped = await lake.commit(journal, DropNamespace(name="a", cascade=True))
    assert dropped.rows_removed == (0 if name == TABLE else 2)
    assert (await journal.list(None, Kind.NAMESPACE)).names == ("b",)
    assert await findings(await lake.open(), after=version) == set()


async def test_one_of_newer_software_stays() -> None:
    lake, journal = await lake_with_all()
    (stored,) = (await journal.load(None, [OTHER])).objects
    assert stored is not None
    table = pb.TableDef.FromString(stored.definition)
    table.partition_spec.add(column_id=1, transform=9)  # type: ignore[arg-type]
    table.ClearField("checksum")
    await lake.storage.put(stored.path, table.SerializeToString())
    journal = await opened(lake, True)
    drops: list[Operation] = [DropTable(namespace="a", name="u"), DropNamespace(name="a", cascade=True)]
    for drop in drops:
        await raises(InvalidInput, lake.commit(journal, drop), kind="newer_format")


async def test_a_version_of_another_process_that_adds_a_damaged_one() -> None:
    """A process with the catalog in memory follows such a version."""
    lake, journal = await lake_with_all()
    watching = await opened(lake, True)
    await lake.commit(journal, UpdateTable(namespace="a", name="u", set={"k": "v"}), lake.namespace("c"))
    path = await damage(lake, journal, OTHER, "missing")
    assert (await watching.list(None, Kind.NAMESPACE)).names == ("a", "b", "c")
    assert watching.state is not None
    assert watching.state.version == journal.head.version
    error = await raises(Corrupt, watching.load(None, [OTHER]), kind="corrupt_definition")
    assert error.path == path
    assert await readable(watching, fmt.namespace_name("c"))
    await lake.commit(watching, DropTable(namespace="a", name="u"))


async def test_in_a_transaction_that_reads_its_own_writes() -> None:
    lake, journal = await lake_with_all()
    path = await damage(lake, journal, TABLE, "missing")
    journal = await lake.open()

    async def load(version: int, names: list[ObjectName]) -> tuple[object, ...]:
        return (await journal.load(version, names)).objects

    overlay = Overlay(load, journal.list, journal.keys, lake.identities.uuid7(), begin=journal.head.version)  # type: ignore[arg-type]
    error = await raises(Corrupt, overlay.load([OTHER, TABLE]), kind="corrupt_definition")
    assert error.path == path
    assert await overlay.list(Kind.TABLE, "a") == (["t", "u"], False)
    executed = await overlay.execute(DropTable(namespace="a", name="t"))
    assert executed.rows_removed == 0
    assert await overlay.list(Kind.TABLE, "a") == (["u"], False)
    assert await overlay.load([OTHER, TABLE]) == [(await journal.load(None, [OTHER])).objects[0], None]
