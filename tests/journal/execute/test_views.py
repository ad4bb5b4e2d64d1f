"""Views: refusals, bindings to tables and to other views, and agreement of both sides of a binding."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Finding
from alpheus_journal.model.definition_messages import decode_definition, encode_definition
from alpheus_journal.model.definitions import VIEW_FORMAT_SUBSTRAIT, Column, Reference, TableDef, ViewDef
from alpheus_journal.model.operations import (
    CreateTable,
    CreateView,
    DropNamespace,
    DropTable,
    DropView,
    Operation,
    RenameObject,
    ReplaceView,
    Undrop,
    UpdateTable,
)
from alpheus_journal.testing import Lake, raises
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import encode_node

ID = "01890a5d-ac96-474b-8cce-b302099a8057"
T, U = Reference("a", "t"), Reference("a", "u")


def create(name: str, *references: Reference, binding: bool = True, **rest: Any) -> CreateView:
    fields: dict[str, Any] = {
        "namespace": "a", "view_id": ID, "sql": "select 1", "dialect": "spark", "references": references,
        "schema_binding": binding,
    }  # fmt: skip
    return CreateView(name=name, **(fields | rest))


def replace(name: str, *references: Reference, binding: bool = True, **rest: Any) -> ReplaceView:
    fields: dict[str, Any] = {
        "namespace": "a", "sql": "select 2", "dialect": "spark", "references": references, "schema_binding": binding,
    }  # fmt: skip
    return ReplaceView(name=name, **(fields | rest))


def rename(kind: Kind, name: str, new: str, new_namespace: str = "a") -> RenameObject:
    return RenameObject(kind=kind, namespace="a", name=name, new_namespace=new_namespace, new_name=new)


def drop(name: str) -> DropView:
    return DropView(namespace="a", name=name)


async def base() -> tuple[Lake, Journal]:
    lake = Lake()
    journal = await lake.create(order=3)
    await lake.commit(
        journal, lake.namespace("a"), lake.namespace("b"), lake.table("a", "t"), lake.table("a", "u")
    )
    return lake, journal


async def bound(journal: Journal, name: str, kind: Kind = Kind.TABLE) -> list[str]:
    definition = await load(journal, ObjectName(kind, "a", name))
    assert isinstance(definition, TableDef | ViewDef)
    return [str(view) for view in definition.bound_views]


async def load(journal: Journal, name: ObjectName) -> object:
    (stored,) = (await journal.load(None, [name])).objects
    assert stored is not None
    return decode_definition(name.kind, stored.definition, stored.path)


async def verify(journal: Journal) -> None:
    assert [item async for item in journal.check() if isinstance(item, Finding)] == []


async def test_a_view_is_stored_as_asked() -> None:
    lake, journal = await base()
    columns = (Column(id=1, name="at", type="TIME9"), Column(id=2, name="n", type="INT8"))
    asked = create(
        "v",
        T,
        T,
        binding=False,
        columns=columns,
        default_namespace="a",
        properties={"p": "q"},
        sql="select\n\t1",
    )
    await lake.commit(journal, asked)
    assert await load(journal, asked.target) == ViewDef(
        id=ID, sql="select\n\t1", dialect="spark", references=(T,), columns=columns, default_namespace="a",
        properties={"p": "q"},
    )  # fmt: skip
    assert await bound(journal, "t") == []
    await lake.commit(journal, replace("v", U, properties={}))
    assert await load(journal, asked.target) == ViewDef(
        id=ID, sql="select 2", dialect="spark", references=(U,), schema_binding=True
    )
    await verify(journal)


NESTED = Column(id=1, name="l", type="LIST", element=Column(id=3, name="element", type="INT8"))
REFUSED: list[tuple[Operation, str]] = [
    (create("v", namespace="none"), "no_namespace"),
    (create("t"), "object_exists"),
    (create("w", view_id="x"), "bad_argument"),
    (create("w/x"), "bad_name"),
    (create("w", sql=" \n"), "bad_argument"),
    (create("w", sql="x" * 300_000), "too_large"),
    (create("w", sql="\ud800"), "bad_argument"),
    (create("w", dialect=""), "bad_argument"),
    (create("w", dialect="a\nb"), "bad_argument"),
    (create("w", dialect="d" * 65), "too_large"),
    (create("w", Reference("", "t")), "bad_name"),
    (create("w", Reference("a", "x" * 2000)), "bad_name"),
    (create("w", Reference("", "t"), binding=False), "bad_name"),
    (create("w", *(Reference("a", f"r{n}") for n in range(1001)), binding=False), "too_large"),
    (create("w", default_namespace=" "), "bad_name"),
    (create("w", properties={"": ""}), "bad_argument"),
    (create("w", columns=(Column(id=2, name="c", type="INT8"),)), "bad_schema"),
    (create("w", columns=(NESTED,)), "bad_schema"),
    (create("w", Reference("a", "w"), binding=False), "bad_argument"),
    (create("w", T, Reference("a", "none")), "no_object"),
    (replace("none"), "no_view"),
    (replace("t"), "no_view"),
    (drop("none"), "no_view"),
    (rename(Kind.VIEW, "none", "w"), "no_view"),
    (rename(Kind.NAMESPACE, "t", "w"), "not_supported"),
    (rename(Kind.TABLE, "t", "t"), "bad_name"),
    (rename(Kind.TABLE, "t", "u"), "table_exists"),
    (rename(Kind.TABLE, "t", "%"), "bad_name"),
    (rename(Kind.TABLE, "t", "t", "none"), "no_namespace"),
]


async def test_refused() -> None:
    lake, journal = await base()
    for operation, kind in REFUSED:
        error = await raises(AlpheusError, lake.commit(journal, operation), kind=kind)
        assert error.message
    assert journal.head.version == 1
    await lake.commit(journal, create("v"))
    table = CreateTable(namespace="a", name="v", table_id=ID, columns=(Column(id=1, name="c", type="INT8"),))
    await raises(AlpheusError, lake.commit(journal, table), kind="object_exists")
    await raises(AlpheusError, lake.commit(journal, create("v")), kind="view_exists")
    await raises(AlpheusError, lake.commit(journal, rename(Kind.TABLE, "t", "v")), kind="object_exists")


async def test_what_a_view_is_bound_to_stays() -> None:
    lake, journal = await base()
    await lake.commit(journal, create("v", T, U), create("w", Reference("a", "v")), create("x", T))
    assert await bound(journal, "t") == ["a.v", "a.x"]
    assert await bound(journal, "v", Kind.VIEW) == ["a.w"]
    columns = (Column(id=1, name="c", type="INT8"),)
    for operation in (
        DropTable(namespace="a", name="t"),
        rename(Kind.TABLE, "t", "t2"),
        rename(Kind.TABLE, "u", "t2", "b"),
        UpdateTable(namespace="a", name="u", nullable_columns={"c": False}),
        drop("v"),
        rename(Kind.VIEW, "v", "v2"),
        replace("v", T, U),
        replace("v", T, U, columns=columns),
    ):
        error = await raises(AlpheusError, lake.commit(journal, operation), kind="object_bound")
        assert "view a." in error.message
        assert error.hint
    await lake.commit(journal, drop("w"), drop("v"), rename(Kind.TABLE, "u", "t2", "b"))
    assert await bound(journal, "t") == ["a.x"]
    await verify(journal)


async def test_bindings_move_with_a_replacement_and_a_rename() -> None:
    lake, journal = await base()
    await lake.commit(journal, create("v", T))
    await lake.commit(journal, replace("v", U))
    assert (await bound(journal, "t"), await bound(journal, "u")) == ([], ["a.v"])
    (before,) = (await journal.load(None, [ObjectName(Kind.VIEW, "a", "v")])).objects
    await lake.commit(journal, rename(Kind.VIEW, "v", "z", "b"))
    assert await bound(journal, "u") == ["b.z"]
    (after,) = (await journal.load(None, [ObjectName(Kind.VIEW, "b", "z")])).objects
    assert after == before, "the definition is the same file"
    (entry,) = [e async for e in journal.log(after=journal.head.version - 1)]
    (action,) = entry.transaction.actions
    assert (action.type, action.path_after) == ("VIEW_RENAME", "")
    assert [str(effect.name) for effect in action.also] == ["table a.u", "view b.z"]
    await lake.commit(journal, ReplaceView(namespace="b", name="z", sql="x", dialect="spark"))
    assert await bound(journal, "u") == []
    await verify(journal)


async def test_a_bound_view_whose_columns_are_known_may_get_more() -> None:
    lake, journal = await base()
    one, two = Column(id=1, name="c", type="INT8"), Column(id=2, name="d", type="INT8")
    await lake.commit(journal, create("v", T, columns=(one,)), create("w", Reference("a", "v")))
    await lake.commit(journal, replace("v", T, columns=(one, two)))
    assert await bound(journal, "v", Kind.VIEW) == ["a.w"], "what is bound to it is kept"
    await raises(AlpheusError, lake.commit(journal, replace("v", T, columns=(one,))), kind="object_bound")
    await raises(AlpheusError, lake.commit(journal, replace("v", T)), kind="object_bound")


async def test_no_view_gets_the_name_that_it_refers_to() -> None:
    lake, journal = await base()
    await lake.commit(journal, create("v", Reference("a", "later"), binding=False))
    error = await raises(AlpheusError, lake.commit(journal, rename(Kind.VIEW, "v", "later")))
    assert "refers to itself" in error.message
    await lake.commit(journal, drop("v"))
    back = Undrop(kind=Kind.VIEW, namespace="a", name="v", version=2, new_namespace="a", new_name="later")
    await raises(AlpheusError, lake.commit(journal, back), kind="bad_argument")


async def test_no_view_is_bound_to_itself_the_long_way() -> None:
    lake, journal = await base()
    v, w = Reference("a", "v"), Reference("a", "w")
    await lake.commit(journal, create("v"), create("w", v), create("x", w))
    error = await raises(
        AlpheusError, lake.commit(journal, replace("v", Reference("a", "x"))), kind="object_bound"
    )
    assert error.hint
    await lake.commit(journal, drop("x"), drop("w"), drop("v"))


async def test_one_transaction_sees_its_own_bindings() -> None:
    lake, journal = await base()
    await lake.commit(
        journal, create("v", T), create("w", Reference("a", "v")), replace("w", U), drop("v"), create("v", U),
        rename(Kind.TABLE, "t", "gone"), drop("w"), drop("v"), DropNamespace(name="a", cascade=True),
    )  # fmt: skip
    await verify(journal)


@pytest.mark.parametrize("digits", [32, 64])
async def test_names_outside_ascii_are_renamed_under_the_key_that_they_have(digits: int) -> None:
    lake = Lake()
    journal = await lake.create(version_digits=digits)
    await lake.commit(journal, lake.namespace("ü"), lake.table("ü", "日本"))
    await lake.commit(
        journal,
        RenameObject(kind=Kind.TABLE, namespace="ü", name="日本", new_namespace="ü", new_name="größe"),
    )
    page = await journal.list(None, Kind.TABLE, namespace="ü")
    assert page.names == ("größe",)
    await journal.load_state()
    await lake.commit(
        journal,
        RenameObject(kind=Kind.TABLE, namespace="ü", name="größe", new_namespace="ü", new_name="日本"),
    )
    assert (await journal.list(None, Kind.TABLE, namespace="ü")).names == ("日本",)
    await verify(journal)


@pytest.mark.parametrize("state", [False, True])
async def test_an_object_of_the_other_padding_is_renamed_and_dropped(state: bool) -> None:
    lake = Lake()
    writer = await lake.create(version_digits=64)
    other = writer.keys.other_padding()
    judge, stager = writer._committer._judge, writer._committer._stager
    judge._keys = judge._executor._keys = stager._keys = other
    await lake.commit(writer, lake.namespace("ü"), lake.table("ü", "日本"), lake.table("ü", "größe"))
    journal = await lake.open()
    if state:
        await journal.load_state()
    rename = RenameObject(kind=Kind.TABLE, namespace="ü", name="日本", new_namespace="ü", new_name="neu-ö")
    await lake.commit(journal, rename)
    assert sorted((await journal.list(None, Kind.TABLE, namespace="ü")).names) == ["größe", "neu-ö"]
    await lake.commit(journal, DropNamespace(name="ü", cascade=True))
    assert (await journal.list(None, Kind.NAMESPACE)).names == ()
    assert await (await journal.follower.snapshot()).entries() == []
    await lake.commit(
        journal,
        Undrop(kind=Kind.NAMESPACE, namespace="ü", version=1, new_namespace="ü", name="", new_name=""),
    )
    assert sorted((await journal.list(None, Kind.TABLE, namespace="ü")).names) == ["größe", "日本"]
    await verify(journal)


@pytest.mark.parametrize("digits", [32, 64])
async def test_a_name_under_both_paddings_is_dropped_twice(digits: int) -> None:
    """Another writer did not find our table, and made a second one. Ours counts; dropping it uncovers the other."""
    lake = Lake()
    journal = await lake.create(order=16, version_digits=digits)
    await lake.commit(journal, lake.namespace("a"), lake.table("a", "ü"))
    name = fmt.table_name("a", "ü")
    theirs = fmt.definition_path(name, lake.identities.uuid4())
    await lake.storage.put(
        theirs, encode_definition(TableDef(id=ID, columns=(Column(id=1, name="c", type="INT8"),)))
    )
    head, log = journal.head, journal.follower.log
    applied = await tree.run_async(
        tree.apply(
            head.root,
            {journal.follower.reader.keys.other_padding().key(name): theirs},
            order=16,
            new_path=lambda: fmt.node_path(lake.identities.uuid4()),
        ),
        journal.follower.reader.load_nodes,
    )
    assert not applied.created
    root = encode_node(
        applied.root, order=16, created_at_millis=head.created_at_millis, size_max=1 << 20, digits=digits,
        system={fmt.ROW_CATALOG_DEF: head.catalog_def, fmt.ROW_PREVIOUS_ROOT: log.path(head.version)},
    )  # fmt: skip
    await lake.storage.put(log.path(head.version + 1), root)
    await journal.refresh()
    paths = []
    for _ in range(2):
        (stored,) = (await journal.load(None, [name])).objects
        assert stored is not None
        paths.append(stored.path)
        await lake.commit(journal, DropTable(namespace="a", name="ü"))
    assert paths[0] != theirs == paths[1]
    assert (await journal.load(None, [name])).objects == (None,)
    found = [item.kind async for item in journal.check() if isinstance(item, Finding)]
    assert found == ["foreign_write"]


# --- definitions of other writers ------------------------------------------------------------------


async def plant(lake: Lake, journal: Journal, name: ObjectName, definition: TableDef | ViewDef) -> None:
    """Overwrite a stored definition, as none of our writers would."""
    (stored,) = (await journal.load(None, [name])).objects
    assert stored is not None
    await lake.storage.put(stored.path, encode_definition(definition))


async def test_what_somebody_else_put_into_a_definition_survives() -> None:
    """Field 999 of a table and of a view survives updates, a binding, a rename and a replacement."""
    strange = b"\xba\x3e\x05hello"
    lake, journal = await base()
    await lake.commit(journal, create("v", binding=False))
    for name in (fmt.table_name("a", "t"), ObjectName(Kind.VIEW, "a", "v")):
        definition = await load(journal, name)
        assert isinstance(definition, TableDef | ViewDef)
        await plant(lake, journal, name, msgspec.structs.replace(definition, unknown=strange))
    journal = await lake.open()
    await lake.commit(
        journal,
        UpdateTable(namespace="a", name="t", set={"k": "v"}),
        replace("v", T),
        rename(Kind.VIEW, "v", "w"),
        create("x", T),
        UpdateTable(namespace="a", name="t", unset=("k",)),
    )
    table, view = (
        await load(journal, fmt.table_name("a", "t")),
        await load(journal, ObjectName(Kind.VIEW, "a", "w")),
    )
    assert isinstance(table, TableDef)
    assert isinstance(view, ViewDef)
    assert table.unknown == view.unknown == strange
    assert [str(v) for v in table.bound_views] == ["a.w", "a.x"]


async def test_a_substrait_view_is_replaced_and_a_stale_binding_binds_nothing() -> None:
    lake, journal = await base()
    await lake.commit(journal, create("v", binding=False))
    name = ObjectName(Kind.VIEW, "a", "v")
    await plant(
        lake, journal, name,
        ViewDef(
            id=ID, view_format=VIEW_FORMAT_SUBSTRAIT, substrait=b"plan", schema_binding=True,
            references=(Reference("", "\n"), T),
        ),
    )  # fmt: skip
    stale = await load(journal, fmt.table_name("a", "u"))
    assert isinstance(stale, TableDef)
    stale = TableDef(
        id=stale.id, columns=stale.columns, next_column_id=2,
        bound_views=(Reference("a", "gone"), Reference("", "\x00"), Reference("a", "v")),
    )  # fmt: skip
    await plant(lake, journal, fmt.table_name("a", "u"), stale)
    journal = await lake.open()
    await lake.commit(journal, DropTable(namespace="a", name="u"))
    await lake.commit(journal, replace("v", T))
    view = await load(journal, name)
    assert isinstance(view, ViewDef)
    assert (view.id, view.is_sql, view.substrait, view.sql) == (ID, True, b"", "select 2")
    assert await bound(journal, "t") == ["a.v"]
