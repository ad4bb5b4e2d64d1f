"""Changing columns: ids for life, types that only widen, refusals, and the new ids that a rebase assigns."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal.errors import AlpheusError, Conflict, InvalidInput, NotFound
from alpheus_journal.execute.rules.schema import (
    WIDER,
    change_columns,
    check_columns,
    check_structure,
    only_adds,
    widen_column,
)
from alpheus_journal.format import Kind, table_name
from alpheus_journal.journal import Journal
from alpheus_journal.model.definition_messages import decode_column, decode_definition, encode_column
from alpheus_journal.model.definitions import Column, Reference, Segment, TableDef, walk_columns
from alpheus_journal.model.operations import (
    AddColumn,
    AppendFiles,
    CreateTable,
    CreateView,
    DropView,
    RenameObject,
    Transaction,
    UpdateTable,
)
from alpheus_journal.tables.columns import (
    decode_default,
    default_scalar,
    encode_default,
    leaf_arrow_type,
    python_value,
)
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import check_segment
from alpheus_journal.testing import Lake, put_rows, raises

ID = "01890a5d-ac96-474b-8cce-b302099a8057"


def column(id: int, name: str, type: str = "INT8", **rest: Any) -> Column:
    return Column(id=id, name=name, type=type, **rest)


ONE = (1).to_bytes(8, "little")


def both(data: bytes) -> dict[str, bytes]:
    """Return both defaults of a new column, with the same value."""
    return {"initial_default": data, "write_default": data}


COLUMNS = (
    column(1, "id", nullable=False),
    column(2, "s", "STRUCT", fields=(column(3, "a", "INT4"), column(4, "b.c", "VARCHAR"))),
    column(5, "l", "LIST", element=column(6, "element", "STRUCT", fields=(column(7, "x", "FLOAT4"),))),
    column(
        8,
        "m",
        "MAP",
        key=column(9, "key", "STRUCT", nullable=False, fields=(column(10, "k", "INT4"),)),
        value=column(11, "value", "STRUCT", fields=(column(12, "v", "INT2"),)),
    ),
    column(13, "s.a", "DATE"),
    column(14, "price", "DECIMAL", properties={"precision": "9", "scale": "2", "comment": "net"}),
)
TABLE = TableDef(id=ID, columns=COLUMNS, next_column_id=15)
ROWS = Segment(
    path="manifest/x", file_count=1, row_count=3, size_bytes=1, sha256=b"", segment_size_bytes=1, sequence=1
)
FULL = TableDef(id=ID, columns=COLUMNS, next_column_id=15, segments=(ROWS,), sequence=1)


def changed(table: TableDef = FULL, *, ids_are_used: bool = False, **changes: Any) -> tuple[Column, ...]:
    operation = UpdateTable(namespace="n", name="t", **changes)
    return change_columns(table, operation, "table n.t", ids_are_used=ids_are_used).columns


def named(columns: tuple[Column, ...]) -> dict[int, Column]:
    return {column.id: column for column in walk_columns(columns)}


def new(name: str, type: str = "INT8", parent: str = "", id: int = 0, **rest: Any) -> AddColumn:
    return AddColumn(column=column(id, name, type, **rest), parent=parent)


def test_columns_keep_their_ids() -> None:
    after = changed(
        drop_columns=["id", "s.b.c"],
        rename_columns={"l.element.x": "y", "m": "prices", "m.key.k": "kk"},
        retype_columns={"m.value.v": column(0, "")},
        nullable_columns={"m.value.v": True, "s": True},
    )
    by_id = named(after)
    assert by_id.keys() == named(COLUMNS).keys() - {1, 4}
    assert (by_id[7].name, by_id[8].name, by_id[10].name) == ("y", "prices", "kk")
    assert (by_id[12].type, by_id[12].name) == ("INT8", "v")
    assert by_id[13].name == "s.a"


def test_a_top_level_name_counts_before_a_path() -> None:
    after = named(changed(rename_columns={"s.a": "day"}))
    assert (after[13].name, after[3].name) == ("day", "a")
    ambiguous = TableDef(
        id=ID,
        next_column_id=9,
        columns=(
            column(1, "a", "STRUCT", fields=(column(2, "b.c"),)),
            column(3, "a.b", "STRUCT", fields=(column(4, "c"),)),
        ),
    )
    with pytest.raises(InvalidInput, match="two columns"):
        changed(ambiguous, rename_columns={"a.b.c": "d"})


def test_new_columns_take_ids_from_the_counter_depth_first() -> None:
    operation = UpdateTable(
        namespace="n",
        name="t",
        add_columns=(
            new("z", "STRUCT", fields=(column(0, "p"), column(0, "q", "LIST", element=column(0, "element")))),
            new("b", parent="s"),
            new("y2", parent="l"),
            new("v2", parent="m"),
        ),
    )
    result = change_columns(FULL, operation, "table n.t", ids_are_used=False)
    again = UpdateTable(namespace="n", name="t", add_columns=result.add_columns)
    assert change_columns(FULL, again, "table n.t", ids_are_used=True) == result
    by_id = named(result.columns)
    assert [by_id[n].name for n in range(15, 22)] == ["z", "p", "q", "element", "b", "y2", "v2"]
    assert result.next_column_id == 22
    assert [field.name for field in by_id[2].fields] == ["a", "b.c", "b"]
    assert [field.name for field in by_id[6].fields] == ["x", "y2"]
    assert [field.name for field in by_id[11].fields] == ["v", "v2"]
    assert [c.name for c in result.columns][-1] == "z"


def test_ids_that_were_given_already() -> None:
    assert named(changed(add_columns=[new("n", id=15)], ids_are_used=True))[15].name == "n"
    assert named(changed(add_columns=[new("n", id=7)]))[15].name == "n"
    assert named(changed(add_columns=[new("n")], ids_are_used=True))[15].name == "n"
    with pytest.raises(Conflict) as caught:
        changed(add_columns=[new("n", id=16)], ids_are_used=True)
    assert (caught.value.kind, caught.value.retryable) == ("column_ids_moved", True)


REFUSED: list[tuple[dict[str, Any], str, type[AlpheusError]]] = [
    ({"drop_columns": ["none"]}, "no column 'none'", NotFound),
    ({"drop_columns": ["s.none"]}, "no column", NotFound),
    ({"drop_columns": ["id", "id"]}, "two ways", InvalidInput),
    ({"drop_columns": ["id"], "rename_columns": {"id": "x"}}, "two ways", InvalidInput),
    ({"drop_columns": ["id"], "nullable_columns": {"id": True}}, "two ways", InvalidInput),
    ({"drop_columns": ["s"], "rename_columns": {"s.b.c": "x"}}, "is dropped", InvalidInput),
    ({"drop_columns": ["s"], "add_columns": [new("x", parent="s")]}, "is dropped", InvalidInput),
    ({"drop_columns": ["l.element"]}, "drop the list", InvalidInput),
    ({"drop_columns": ["l.element.x"]}, "last column", InvalidInput),
    ({"drop_columns": ["id", "s", "l", "m", "s.a", "price"]}, "last column", InvalidInput),
    ({"drop_columns": ["m.key.k"]}, "key of a map", InvalidInput),
    ({"retype_columns": {"m.key.k": column(0, "")}}, "key of a map", InvalidInput),
    ({"nullable_columns": {"m.key": True}}, "key of a map", InvalidInput),
    ({"nullable_columns": {"m.key.k": True}}, "key of a map", InvalidInput),
    ({"add_columns": [new("x", parent="m.key")]}, "key of a map", InvalidInput),
    ({"add_columns": [new("x", parent="id")]}, "not a struct", InvalidInput),
    ({"add_columns": [new("ID")]}, "same name", InvalidInput),
    ({"add_columns": [new("x"), new("X")]}, "same name", InvalidInput),
    ({"add_columns": [new("A", parent="s")]}, "same name", InvalidInput),
    ({"add_columns": [new("")]}, "empty", InvalidInput),
    ({"add_columns": [new("x", "TIME3")]}, "TIME3", InvalidInput),
    ({"add_columns": [new("x", nullable=False)]}, "has rows", InvalidInput),
    ({"add_columns": [new("x", nullable=False, parent="s")]}, "has rows", InvalidInput),
    ({"nullable_columns": {"price": False}}, "has rows", InvalidInput),
    ({"rename_columns": {"id": "S"}}, "same name", InvalidInput),
    ({"rename_columns": {"l.element": "x"}}, "no name of its own", InvalidInput),
    ({"rename_columns": {"id": "a\nb"}}, "control", InvalidInput),
    ({"column_order": ["id"]}, "each of its 6 columns once", InvalidInput),
    ({"column_order": ["id", "id", "s", "l", "m", "price"]}, "s.a", InvalidInput),
    ({"retype_columns": {"s": column(0, "", "INT8")}}, "cannot change", InvalidInput),
    ({"retype_columns": {"id": column(0, "", "INT4")}}, "int64 to int32", InvalidInput),
    ({"defaults": {"none": ONE}}, "no column 'none'", NotFound),
    ({"defaults": {"ID": ONE}}, "no column 'ID'", NotFound),
    ({"defaults": {"id": None}}, "'id' of table n.t is required: its default cannot be NULL", InvalidInput),
    ({"defaults": {"s": ONE}}, "'s' of type struct<a:int32,b.c:string> cannot have a default", InvalidInput),
    ({"defaults": {"s.a": ONE}}, "'s.a' of type date", InvalidInput),
    ({"defaults": {"l.element.x": b"\0\0\0\0"}}, "'l.element.x' lies in a list or map", InvalidInput),
    ({"defaults": {"m.value.v": b"\1\0\0\0"}}, "'m.value.v' lies in a list or map", InvalidInput),
    ({"defaults": {"price": b"\x7f\xff\xff\xff"}}, "'price' of type decimal", InvalidInput),
    ({"defaults": {"id": ONE}, "drop_columns": ["id"]}, "two ways", InvalidInput),
    ({"defaults": {"m.value.v": ONE}, "retype_columns": {"m.value.v": column(0, "")}}, "two ways", InvalidInput),
    ({"defaults": {"s.b.c": b"x"}, "drop_columns": ["s"]}, "is dropped", InvalidInput),
    ({"add_columns": [new("x", initial_default=ONE)]}, "'x' has different defaults", InvalidInput),
    ({"add_columns": [new("x", write_default=ONE)]}, "'x' has different defaults", InvalidInput),
    ({"add_columns": [new("x", "INT4", **both(ONE))]}, "'x' of type int32", InvalidInput),
    ({"add_columns": [new("y", parent="l", **both(ONE))]}, "'l.element.y' lies in a list", InvalidInput),
    ({"add_columns": [new("x", "VARCHAR", **both(b"x" * 1025))]}, "'x' has a default of 1025 bytes", InvalidInput),
    ({"add_columns": [new("x", "VARCHAR", **both(b"\xff"))]}, "'x' of type string", InvalidInput),
    ({"add_columns": [new("x", "FLOAT8", **both(struct.pack("<d", math.nan)))]}, "NaN", InvalidInput),
    ({"add_columns": [new("x", "INT2", **both(b"\0\0\1\0"))]}, "out of range", InvalidInput),
    ({"add_columns": [new("x", "DATE", **both(b"\xff\xff\xff\x7f"))]}, "years 1 to 9999", InvalidInput),
    ({"add_columns": [new("x", "FIXED", properties={"length": "2"}, **both(b"abc"))]}, "3 bytes", InvalidInput),
    ({"add_columns": [new("x", "VARCHAR", properties={"length": "2"}, **both(b"abc"))]}, "at most 2", InvalidInput),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "reason", "error"), REFUSED, ids=str)
def test_refused_changes(changes: dict[str, Any], reason: str, error: type[AlpheusError]) -> None:
    with pytest.raises(error) as caught:
        changed(**changes)
    assert reason in str(caught.value)
    assert "n.t" in str(caught.value) or caught.value.kind == "bad_schema"


def test_while_a_table_is_empty_more_is_possible() -> None:
    after = named(
        changed(
            TABLE,
            nullable_columns={"price": False, "s.b.c": False},
            add_columns=[new("r", nullable=False)],
        )
    )
    assert not any(after[id].nullable for id in (14, 4, 15))


def test_names_may_be_exchanged_and_reordered_at_once() -> None:
    after = changed(
        rename_columns={"id": "price", "price": "id"},
        add_columns=[new("z")],
        column_order=["z", "id", "price", "m", "l", "s", "s.a"],
    )
    assert [(c.id, c.name) for c in after[:3]] == [(15, "z"), (14, "id"), (1, "price")]


def test_the_hand_of_ids_ends() -> None:
    with pytest.raises(InvalidInput, match="column ids"):
        changed(TableDef(id=ID, columns=COLUMNS, next_column_id=(1 << 31) - 2), add_columns=[new("x")])


# --- types -----------------------------------------------------------------------------------------

TYPES = ["BOOLEAN", "INT2", "INT4", "INT8", "FLOAT4", "FLOAT8", "VARCHAR", "BINARY", "DATE", "TIMESTAMP6",
         "TIMESTAMPTZ6", "DECIMAL", "FIXED"]  # fmt: skip
sizes = st.dictionaries(st.sampled_from(["precision", "scale", "length"]), st.integers(0, 12).map(str))


@given(st.sampled_from(TYPES), sizes, st.sampled_from(TYPES), sizes)
def test_types_only_widen(
    old: str, old_sizes: dict[str, str], new_type: str, new_sizes: dict[str, str]
) -> None:
    before = column(1, "c", old, properties=old_sizes | {"comment": "x"})
    refusal: InvalidInput | None = None
    try:
        after = widen_column(before, column(0, "", new_type, properties=new_sizes), "'c'")
    except InvalidInput as error:
        refusal = error
    if refusal is not None:
        assert (refusal.kind, "wider" in refusal.hint) == ("bad_schema", True)
        return
    assert (after.id, after.name, after.properties.get("comment")) == (1, "c", "x")
    if old != new_type:
        assert new_type in WIDER[old]
    elif old_sizes != new_sizes:
        assert old in ("DECIMAL", "VARCHAR")
        if old == "DECIMAL":
            assert old_sizes.get("scale") == new_sizes.get("scale")
            assert int(old_sizes["precision"]) < int(new_sizes["precision"])
        elif "length" in new_sizes:
            assert int(old_sizes["length"]) < int(new_sizes["length"])


@given(st.permutations(list(COLUMNS)), st.integers(0, 5))
def test_whoever_reads_by_name_finds_what_was_there(order: list[Column], dropped: int) -> None:
    assert only_adds(COLUMNS, order)
    assert only_adds(COLUMNS[:dropped], order)
    assert not only_adds(order, [c for c in order if c != COLUMNS[dropped]])
    assert only_adds(COLUMNS, changed(add_columns=[new("x9", parent="l"), new("y", parent="m"), new("z")]))
    assert not only_adds(COLUMNS, changed(retype_columns={"l.element.x": column(0, "", "FLOAT8")}))
    assert not only_adds(COLUMNS, changed(rename_columns={"m.value.v": "w"}))


def test_structure_is_checked_without_regard_to_types() -> None:
    check_structure((column(3, "t", "TIME9"),))
    with pytest.raises(InvalidInput):
        check_structure(())


# --- in a catalog ----------------------------------------------------------------------------------


async def lake_with_table() -> tuple[Lake, Journal, CreateTable]:
    lake = Lake()
    journal = await lake.create()
    table = lake.table("a", "t")
    await lake.commit(journal, lake.namespace("a"), table)
    return lake, journal, table


async def load(journal: Journal, namespace: str = "a", name: str = "t") -> TableDef:
    (stored,) = (await journal.load(None, [table_name(namespace, name)])).objects
    assert stored is not None
    definition = decode_definition(Kind.TABLE, stored.definition, stored.path)
    assert isinstance(definition, TableDef)
    return definition


async def test_each_change_is_a_schema_of_its_own() -> None:
    lake, journal, _ = await lake_with_table()
    await lake.commit(journal, UpdateTable(namespace="a", name="t", set={"p": "1"}))
    assert (await load(journal)).schema_id == 0
    await lake.commit(journal, UpdateTable(namespace="a", name="t", add_columns=(new("d"),), set={"p": "2"}))
    table = await load(journal)
    assert (table.schema_id, table.next_column_id, table.properties) == (1, 3, {"p": "2"})
    await lake.commit(journal, UpdateTable(namespace="a", name="t", drop_columns=("d",)))
    await lake.commit(journal, UpdateTable(namespace="a", name="t", add_columns=(new("d"),)))
    table = await load(journal)
    assert (table.schema_id, table.next_column_id, table.columns[-1].id) == (3, 4, 3), "an id came twice"
    (entry,) = [
        entry async for entry in journal.log(until=journal.head.version, after=journal.head.version - 1)
    ]
    (action,) = entry.transaction.actions
    assert isinstance(action.operation, UpdateTable)
    assert action.operation.add_columns[0].column.id == 3, (
        "the recorded operation has the ids that were given"
    )


async def test_two_writers_add_columns() -> None:
    """The later writer's columns get new ids. A writer that has already used its ids must start again."""
    lake, journal, table = await lake_with_table()
    await lake.commit(journal, UpdateTable(namespace="a", name="t", add_columns=(new("d"),)))
    first = lake.transaction(
        journal, UpdateTable(namespace="a", name="t", add_columns=(new("e", id=3),)), begin=1
    )
    await journal.commit(first)
    assert [c.id for c in (await load(journal)).columns] == [1, 2, 3]
    assert (await journal.commit(first)).duplicate
    id = lake.identities.uuid7()
    segment = await put_rows(lake.storage, lake.identities, table_id=table.table_id, transaction_id=id)
    late = Transaction(
        id=id,
        begin_version=journal.head.version,
        operations=(
            UpdateTable(namespace="a", name="t", add_columns=(new("f", id=3),)),
            AppendFiles(namespace="a", name="t", table_id=table.table_id, segments=(segment,)),
        ),
    )
    error = await raises(Conflict, journal.commit(late), kind="column_ids_moved")
    assert error.retryable


async def test_ids_follow_a_table_that_is_renamed_on_the_way() -> None:
    lake, journal, table = await lake_with_table()
    id = lake.identities.uuid7()
    segment = await put_rows(lake.storage, lake.identities, table_id=table.table_id, transaction_id=id)
    operations = (
        UpdateTable(namespace="a", name="t", add_columns=(new("f", id=9),)),
        RenameObject(kind=Kind.TABLE, namespace="a", name="t", new_namespace="a", new_name="u"),
        AppendFiles(namespace="a", name="u", table_id=table.table_id, segments=(segment,)),
    )
    await raises(
        Conflict,
        journal.commit(Transaction(id=id, begin_version=1, operations=operations)),
        kind="column_ids_moved",
    )


def test_defaults_of_columns() -> None:
    after = named(
        changed(
            defaults={"id": ONE, "s.b.c": b"", "price": b"\x7f\xff"},
            rename_columns={"id": "key"},
            nullable_columns={"s.b.c": True},
            add_columns=[
                new("x", nullable=False, **both(ONE)),
                new("y", "STRUCT", fields=(column(0, "z", "BOOLEAN", **both(b"\1")),)),
                new("w", "DATE", parent="s", nullable=False, **both(b"\0" * 4)),
            ],
        )
    )
    assert (after[1].name, after[1].write_default, after[1].initial_default) == ("key", ONE, None)
    assert (after[4].write_default, after[14].write_default) == (b"", b"\x7f\xff")
    assert [after[n].initial_default for n in (15, 16, 17, 18)] == [ONE, None, b"\1", b"\0" * 4]
    table = TableDef(id=ID, columns=(column(1, "c", "INT2", **both(b"\1\0\0\0")),), next_column_id=2)
    (wide,) = changed(table, retype_columns={"c": column(0, "", "INT8")})
    assert (wide.initial_default, wide.type) == (b"\1\0\0\0", "INT8")
    assert decode_default(wide, b"\1\0\0\0") == 1
    (without,) = changed(table, defaults={"c": None})
    assert (without.initial_default, without.write_default) == (b"\1\0\0\0", None)
    (required,) = changed(table, nullable_columns={"c": False}, defaults={"c": b"\2\0\0\0"})
    assert (required.nullable, required.write_default) == (False, b"\2\0\0\0")


def test_a_new_table_has_no_rows_from_before() -> None:
    assert check_columns([column(1, "c", write_default=ONE)]) == 1
    with pytest.raises(InvalidInput, match="initial default"):
        check_columns([column(1, "c", **both(ONE))])
    with pytest.raises(InvalidInput, match=r"'l\.element' lies in a list"):
        check_columns([column(1, "l", "LIST", element=column(2, "element", write_default=ONE))])


VALUES: list[tuple[Column, Any, Any]] = [
    (column(1, "c", "BOOLEAN"), True, True),
    (column(1, "c", "INT2"), -32768, -32768),
    (column(1, "c", "INT8"), 2**63 - 1, 2**63 - 1),
    (column(1, "c", "FLOAT4"), 1.5, 1.5),
    (column(1, "c", "FLOAT8"), -math.inf, -math.inf),
    (column(1, "c", "FLOAT8"), 3, 3.0),
    (
        column(1, "c", "DECIMAL", properties={"precision": "4", "scale": "2"}),
        Decimal("-1.5"),
        Decimal("-1.50"),
    ),
    (column(1, "c", "DECIMAL", properties={"precision": "4", "scale": "2"}), 99, Decimal("99.00")),
    (column(1, "c", "VARCHAR"), "é", "é"),
    (column(1, "c", "BINARY"), b"", b""),
    (column(1, "c", "FIXED", properties={"length": "1"}), b"x", b"x"),
    (column(1, "c", "DATE"), dt.date(1, 1, 1), dt.date(1, 1, 1)),
    (column(1, "c", "TIMESTAMP6"), dt.datetime.max, dt.datetime.max),
    (
        column(1, "c", "TIMESTAMPTZ6"),
        dt.datetime(2026, 3, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        dt.datetime(2026, 2, 28, 23, tzinfo=dt.UTC),
    ),
]


@pytest.mark.parametrize(("of", "value", "found"), VALUES, ids=str)
def test_a_default_goes_and_comes(of: Column, value: Any, found: Any) -> None:
    data = encode_default(of, value, "c")
    assert python_value(of, decode_default(of, data)) == found
    scalar = default_scalar(of, data)
    assert scalar.type == leaf_arrow_type(of, "c")
    assert scalar.as_py() == found
    message = encode_column(msgspec.structs.replace(of, initial_default=data, write_default=data))
    again = decode_column(type(message).FromString(message.SerializeToString()))
    assert (again.initial_default, again.write_default) == (data, data)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("BOOLEAN", 1), ("INT2", 32768), ("INT4", True), ("INT8", 1 << 63), ("INT8", 1.0), ("FLOAT8", math.nan),
        ("FLOAT4", 1e39), ("FLOAT4", "1"), ("VARCHAR", b"x"), ("VARCHAR", "\ud800"), ("VARCHAR", "x" * 1025),
        ("BINARY", "x"), ("DATE", dt.datetime(2026, 1, 1)), ("DATE", "2026-01-01"), ("TIMESTAMP6", dt.date(2026, 1, 1)),
        ("TIMESTAMP6", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)), ("TIMESTAMPTZ6", dt.datetime(2026, 1, 1)),
        ("DECIMAL", Decimal("0.001")), ("DECIMAL", Decimal("NaN")), ("DECIMAL", 100), ("DECIMAL", 1.5),
        ("DECIMAL", Decimal("1e400")), ("FIXED", b"xy"), ("STRUCT", {"a": 1}), ("INT8", None),
        ("TIMESTAMPTZ6", dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1)))),
    ],
)  # fmt: skip
def test_a_default_of_another_kind_is_refused(kind: str, value: Any) -> None:
    properties = {"DECIMAL": {"precision": "4", "scale": "2"}, "FIXED": {"length": "1"}}.get(kind, {})
    fields = (column(2, "a"),) if kind == "STRUCT" else ()
    with pytest.raises(InvalidInput, match=r"'the\.path'") as caught:
        encode_default(column(1, "c", kind, properties=properties, fields=fields), value, "the.path")
    assert caught.value.kind == "bad_schema"


async def test_defaults_of_two_writers() -> None:
    """Defaults of one column conflict. Defaults of two columns do not conflict, nor do defaults and appended rows."""
    lake, journal, table = await lake_with_table()
    await lake.commit(journal, UpdateTable(namespace="a", name="t", add_columns=(new("d"), new("e"))))
    begin = journal.head.version

    def change(**changes: Any) -> Transaction:
        return lake.transaction(journal, UpdateTable(namespace="a", name="t", **changes), begin=begin)

    id = lake.identities.uuid7()
    segment = await put_rows(lake.storage, lake.identities, table_id=table.table_id, transaction_id=id)
    append = AppendFiles(namespace="a", name="t", table_id=table.table_id, segments=(segment,))
    await journal.commit(change(defaults={"d": ONE}))
    await journal.commit(change(defaults={"e": ONE}, column_order=("e", "d", "c")))
    await journal.commit(Transaction(id=id, begin_version=begin, operations=(append,)))
    for rival in (
        {"defaults": {"d": None}},
        {"rename_columns": {"d": "x"}},
        {"drop_columns": ("d",)},
        {"retype_columns": {"d": column(0, "", "INT8")}},
    ):
        error = await raises(Conflict, journal.commit(change(**rival)))
        assert (error.kind, error.retryable) == ("object_changed", True)
    assert [c.write_default for c in (await load(journal)).columns] == [ONE, ONE, None]


async def test_a_required_column_with_a_default_joins_a_table_with_rows() -> None:
    """Files of a writer that did not know of the column are appended too."""
    lake, journal, table = await lake_with_table()
    id, late = lake.identities.uuid7(), lake.identities.uuid7()
    begin = journal.head.version
    for transaction_id in (id, late):
        if transaction_id == late:
            operation = UpdateTable(
                namespace="a", name="t", add_columns=(new("d", nullable=False, **both(ONE)),)
            )
            await lake.commit(journal, operation)
        segment = await put_rows(
            lake.storage, lake.identities, table_id=table.table_id, transaction_id=transaction_id
        )
        append = AppendFiles(namespace="a", name="t", table_id=table.table_id, segments=(segment,))
        await journal.commit(Transaction(id=transaction_id, begin_version=begin, operations=(append,)))
    found = await load(journal)
    assert (len(found.segments), found.columns[-1].initial_default) == (2, ONE)


async def test_a_bound_view_does_not_mind_a_default() -> None:
    lake, journal, _ = await lake_with_table()
    view = CreateView(
        namespace="a", name="v", view_id=ID, sql="select c from a.t", dialect="spark",
        references=(Reference("a", "t"),), schema_binding=True,
    )  # fmt: skip
    begin = journal.head.version
    operation = UpdateTable(namespace="a", name="t", defaults={"c": ONE[:8]})
    changes = [lake.transaction(journal, each, begin=begin) for each in (view, operation)]
    for change in changes:
        await journal.commit(change)
    await lake.commit(journal, UpdateTable(namespace="a", name="t", defaults={"c": None}))


async def test_a_bound_table_only_grows() -> None:
    lake, journal, _ = await lake_with_table()
    view = CreateView(
        namespace="a", name="v", view_id=ID, sql="select c from a.t", dialect="spark",
        references=(Reference("a", "t"),), schema_binding=True,
    )  # fmt: skip
    await lake.commit(journal, view)
    await lake.commit(journal, UpdateTable(namespace="a", name="t", add_columns=(new("d"),), set={"k": "v"}))
    refused: list[dict[str, Any]] = [
        {"drop_columns": ("d",)},
        {"rename_columns": {"d": "e"}},
        {"nullable_columns": {"c": True}},
        {"column_order": ("d", "c")},
        {"retype_columns": {"c": column(0, "", "INT8")}},
    ]
    for changes in refused:
        operation = UpdateTable(namespace="a", name="t", **changes)
        error = await raises(InvalidInput, lake.commit(journal, operation), kind="object_bound")
        assert "view a.v" in error.message
    await lake.commit(
        journal, DropView(namespace="a", name="v"), UpdateTable(namespace="a", name="t", drop_columns=("d",))
    )


# --- files of an older schema ----------------------------------------------------------------------


def data_file(**counts: int) -> DataFile:
    ids = {int(name[1:]): count for name, count in counts.items()}
    path = f"data/{ID}/{ID}/{ID}/p.parquet"
    return DataFile(path=path, row_count=2, size_bytes=4, schema_id=0, value_counts=ids)


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"_1": 2, "_2": 2}, ""),
        ({"_1": 2}, ""),  # lacks a later column: reads NULL
        ({"_1": 2, "_2": 2, "_6": 2}, "column id 6"),
        ({"_2": 2}, "required column 'id'"),
        ({"_1": 2, "_3": 2}, "column id 3"),  # has a column that was dropped since
    ],
)
def test_files_written_under_an_older_schema(counts: dict[str, int], reason: str) -> None:
    table = TableDef(
        id=ID,
        columns=(
            column(1, "id", nullable=False),
            column(2, "later"),
            column(4, "state", nullable=False, **both(ONE)),
        ),
        next_column_id=7,
        schema_id=5,
    )
    segment = Segment(path="x", file_count=1, row_count=2, size_bytes=4, sha256=b"", segment_size_bytes=1)
    try:
        check_segment([data_file(**counts)], segment, table, transaction_id=ID)
        told = ""
    except InvalidInput as error:
        told = error.message
    assert reason in told
    assert bool(reason) == bool(told)
