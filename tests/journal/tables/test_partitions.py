"""Partition specs and sort orders: their rules and text, and the agreement of rows, bounds and partition values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import Kind, data_folder, table_name
from alpheus_journal.model.definition_messages import decode_definition, encode_definition
from alpheus_journal.model.definitions import Column, PartitionField, Segment, SortField, TableDef
from alpheus_journal.model.operations import CreateTable, UpdateTable
from alpheus_journal.tables.columns import columns_of_schema, encode_bound, schema_of_columns, unscaled
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import check_segment
from alpheus_journal.tables.parquet_footer import data_file_of_footer
from alpheus_journal.tables.partitions import (
    check_partition_spec,
    decode_value,
    describe,
    flaw_of_partition,
    parse_partition_by,
    parse_sort_by,
    partition_arrays,
    partition_text,
    result_type,
    sort_text,
    value_of,
)
from alpheus_journal.testing import Lake, raises
from alpheus_pb.v1 import objects_pb2 as pb

ID = "01890a5d-ac96-474b-8cce-b302099a8057"
PATH = data_folder(ID, "01890a5d-ac96-774b-8cce-b302099a8057", ID) + "a.parquet"
EPOCH = dt.datetime(1970, 1, 1)

SCHEMA = pa.schema(
    {
        "flag": pa.bool_(),
        "small": pa.int16(),
        "id": pa.int64(),
        "price": pa.decimal128(38, 2),
        "country": pa.string(),
        "raw": pa.binary(),
        "hash": pa.binary(3),
        "day": pa.date32(),
        "at": pa.timestamp("us"),
        "seen": pa.timestamp("us", "UTC"),
        "ratio": pa.float64(),
        "address": pa.struct({"zip": pa.string()}),
        "odd name, `day`(x) desc": pa.int32(),
    }
)
COLUMNS = columns_of_schema(SCHEMA)
BY_NAME = {column.name: column for column in COLUMNS}

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
LONG = TEXT | st.builds(lambda start, end: start + "\U0010ffff" * 70 + end, TEXT, TEXT)
MICROS = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "small": st.integers(-(1 << 15), (1 << 15) - 1),
    "id": st.integers(-(1 << 63), (1 << 63) - 1),
    "price": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-2")),
    "country": LONG | st.builds(lambda text: text * 70, TEXT),
    "raw": st.binary(max_size=3) | st.builds(lambda end: b"\xff" * 70 + end, st.binary(max_size=2)),
    "hash": st.binary(min_size=3, max_size=3),
    "day": st.integers(-(1 << 31), (1 << 31) - 1),
    "at": MICROS,
    "seen": MICROS,
}  # fmt: skip
KEYS = [
    (name, transform)
    for name in VALUES
    for transform in ("IDENTITY", "DAY", "MONTH", "YEAR")
    if transform == "IDENTITY" or name in ("day", "at", "seen")
]


def array_of(name: str, values: list[Any]) -> pa.Array:
    """Return an Arrow array of values in `decode_bound`'s units."""
    kind = SCHEMA.field(name).type
    if name == "day":
        return pa.array(values, pa.int32()).cast(kind)
    if name in ("at", "seen"):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


# --- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "transform"), KEYS)
@given(data=st.data())
def test_arrays_of_rows_and_single_values_agree(name: str, transform: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[name], max_size=6))
    column = BY_NAME[name]
    field = PartitionField(column.id, transform)
    batch = pa.RecordBatch.from_arrays(
        [array_of(f.name, values) if f.name == name else pa.nulls(len(values), f.type) for f in SCHEMA],
        schema=SCHEMA,
    )
    (array,) = partition_arrays([field], COLUMNS, batch)
    assert array.type == result_type(field, column)
    if transform != "IDENTITY" or name == "day":
        found = array.cast(pa.int32()).to_pylist()
    elif name in ("at", "seen"):
        found = array.cast(pa.int64()).to_pylist()
    else:
        found = array.to_pylist()
    stored = [value_of(field, column, value) for value in values]
    assert found == [None if data is None else decode_value(field, column, data) for data in stored]


@pytest.mark.parametrize("name", ["day", "at", "seen"])
@given(moment=st.datetimes())
def test_days_months_and_years_are_those_of_the_calendar(name: str, moment: dt.datetime) -> None:
    micros = (moment - EPOCH) // dt.timedelta(microseconds=1)
    column = BY_NAME[name]
    value = micros // 86_400_000_000 if name == "day" else micros

    def of(transform: str) -> Any:
        data = value_of(PartitionField(column.id, transform), column, value)
        assert data is not None
        return int.from_bytes(data, "little", signed=True)

    assert of("DAY") == (moment.date() - EPOCH.date()).days
    assert of("MONTH") == (moment.year - 1970) * 12 + moment.month - 1
    assert of("YEAR") == moment.year - 1970


def test_null_is_a_value() -> None:
    field = PartitionField(BY_NAME["day"].id, "DAY")
    assert value_of(field, BY_NAME["day"], None) is None


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("country", "DE", "country=DE"),
        ("country", "x" * 100, "country=" + "x" * 64),
        ("flag", True, "flag=true"),
        ("price", Decimal("-1.50"), "price=-1.50"),
        ("raw", b"\x00\xff", "raw=00ff"),
        ("day", -1, "day=1969-12-31"),
        ("day(day)", 0, "day(day)=1970-01-01"),
        ("month(at)", -1, "month(at)=1969-12"),
        ("year(seen)", 0, "year(seen)=1970"),
        ("at", 1, "at=1970-01-01T00:00:00.000001"),
        ("seen", 0, "seen=1970-01-01T00:00:00Z"),
        ("day", (1 << 31) - 1, "day=day 2147483647"),
        ("country", None, "country=NULL"),
    ],
)
def test_a_partition_as_a_person_reads_it(text: str, value: Any, shown: str) -> None:
    spec = parse_partition_by([text], COLUMNS)
    column = next(c for c in COLUMNS if c.id == spec[0].column_id)
    assert describe(spec, COLUMNS, {column.id: value_of(spec[0], column, value)}) == shown


def test_a_partition_of_two_keys_as_a_person_reads_it() -> None:
    spec = parse_partition_by(["country", "day(at)"], COLUMNS)
    partition = {BY_NAME["country"].id: b"DE", BY_NAME["at"].id: (20513).to_bytes(4, "little")}
    assert describe(spec, COLUMNS, partition) == "country=DE/day(at)=2026-03-01"


# --- text ------------------------------------------------------------------------------------------


@given(
    name=st.sampled_from(sorted(set(BY_NAME) - {"address"})),
    transform=st.sampled_from(["IDENTITY", "DAY", "MONTH", "YEAR"]),
    descending=st.booleans(),
    nulls_last=st.booleans(),
)
def test_what_is_written_is_read(name: str, transform: str, descending: bool, nulls_last: bool) -> None:
    column = BY_NAME[name]
    order = (SortField(column.id, descending, nulls_last),)
    assert parse_sort_by([sort_text(order[0], COLUMNS)], COLUMNS) == order
    spec = (PartitionField(column.id, transform),)
    try:
        check_partition_spec(spec, COLUMNS)
    except InvalidInput:
        return
    assert parse_partition_by([partition_text(spec[0], COLUMNS)], COLUMNS) == spec


def test_how_people_write_it() -> None:
    at, day, country = (BY_NAME[name].id for name in ("at", "day", "country"))
    spec = parse_partition_by([" country ", "Day( at )", "identity(day)"], COLUMNS)
    assert spec == (PartitionField(country), PartitionField(at, "DAY"), PartitionField(day))
    order = parse_sort_by(["day", "at  DESC", "country asc nulls LAST"], COLUMNS)
    assert order == (SortField(day), SortField(at, True, True), SortField(country, False, True))
    assert [sort_text(field, COLUMNS) for field in order] == ["day", "at desc", "country nulls last"]
    assert [partition_text(field, COLUMNS) for field in spec] == ["country", "day(at)", "day"]


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["none"], "no top-level column 'none'"),
        (["Country"], "'Country'"),
        (["address.zip"], "no top-level column"),
        (["address"], "'address' of type struct"),
        (["country", "country"], "'country' is a partition key twice"),
        (["at", "day(at)"], "'at' is a partition key twice"),
        (["ratio"], "'ratio' of type double"),
        (["day(id)"], "'id' of type int64 has no day"),
        (["year(country)"], "'country' of type string has no year"),
        (["hour(at)"], "no top-level column 'hour"),
        ([""], "no top-level column ''"),
        (["day()"], "no top-level column ''"),
    ],
)
def test_keys_that_cannot_be(texts: list[str], says: str) -> None:
    with pytest.raises(InvalidInput, match=says.replace("(", r"\(")) as caught:
        parse_partition_by(texts, COLUMNS)
    assert caught.value.kind == "bad_schema"


def test_what_is_more_than_a_name_is_told_what_may_be() -> None:
    cases: list[tuple[Callable[..., object], str, str]] = [
        (parse_partition_by, "hour(at)", 'identity, day, month or year of one, as in "day(ts)"'),
        (parse_partition_by, "at desc", 'identity, day, month or year of one, as in "day(ts)"'),
        (parse_sort_by, "id foo", "then asc or desc, then nulls first or last"),
        (parse_sort_by, "day(at)", "then asc or desc, then nulls first or last"),
    ]
    for parse, text, form in cases:
        with pytest.raises(InvalidInput) as caught:
            parse([text], COLUMNS)
        assert form in caught.value.hint
        assert "there are flag, small, id" in caught.value.hint
    with pytest.raises(InvalidInput) as caught:
        parse_sort_by(["none"], COLUMNS)
    assert caught.value.hint.startswith("there are flag, small, id")


def test_another_spelling_is_told() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_sort_by(["COUNTRY desc"], COLUMNS)
    assert "'country'" in caught.value.hint


@pytest.mark.parametrize("texts", [["none desc"], ["address"], ["id", "id desc"], ["id descending"]])
def test_orders_that_cannot_be(texts: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_sort_by(texts, COLUMNS)
    assert caught.value.kind == "bad_schema"


def test_too_many_keys() -> None:
    columns = columns_of_schema(pa.schema([(f"c{n}", pa.int32()) for n in range(fmt.KEYS_COUNT_MAX + 1)]))
    assert len(parse_partition_by([c.name for c in columns[1:]], columns)) == fmt.KEYS_COUNT_MAX
    with pytest.raises(InvalidInput, match="at most"):
        parse_partition_by([c.name for c in columns], columns)
    counter = len(columns) + 1
    for spec, order, says in (
        ([PartitionField(c.id) for c in columns], [], "33 partition keys, 32 at most"),
        ([], [SortField(c.id) for c in columns], "33 sort keys, 32 at most"),
    ):
        table = TableDef(
            id=ID,
            columns=columns,
            next_column_id=counter,
            partition_spec=tuple(spec),
            sort_order=tuple(order),
        )
        with pytest.raises(Corrupt, match=says):
            decode_definition(Kind.TABLE, encode_definition(table), "def/t")


def test_keys_of_another_client() -> None:
    """A client's message can hold fields that no text can express."""
    for spec, says in [
        ([PartitionField(99)], "no top-level column"),
        ([PartitionField(1, "BUCKET")], "no partition transform 'BUCKET'"),
    ]:
        with pytest.raises(InvalidInput, match=says):
            check_partition_spec(spec, COLUMNS)


# --- files -----------------------------------------------------------------------------------------


def file_of(name: str, values: list[Any]) -> DataFile:
    """Return the data file of a footer for a file with these values."""
    columns = (BY_NAME[name],)
    table = pa.Table.from_arrays([array_of(name, values)], schema=schema_of_columns(columns))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, store_schema=False)
    buffer = sink.getvalue()
    return data_file_of_footer(PATH, len(buffer), pq.read_metadata(pa.BufferReader(buffer)), columns)


@pytest.mark.parametrize(("name", "transform"), KEYS)
@settings(max_examples=max(5, settings.default.max_examples // 4 if settings.default else 0))
@given(data=st.data())
def test_a_file_belongs_where_its_rows_do(name: str, transform: str, data: st.DataObject) -> None:
    column, field = BY_NAME[name], PartitionField(BY_NAME[name].id, transform)
    values = data.draw(st.lists(st.none() | VALUES[name], min_size=1, max_size=4))
    groups: dict[bytes | None, list[Any]] = {}
    for value in values:
        groups.setdefault(value_of(field, column, value), []).append(value)
    for partition in groups:
        for other, rows in groups.items():
            file = msgspec.structs.replace(file_of(name, rows), partition={column.id: partition})
            flaw = flaw_of_partition([field], COLUMNS, file)
            if partition == other:
                assert not flaw
            elif None in (partition, other) or file.lower_bounds or file.upper_bounds:
                assert flaw or name in ("country", "raw"), "bounds that are cut leave something open"
    mixed = msgspec.structs.replace(file_of(name, values), partition={column.id: next(iter(groups))})
    if len(groups) > 1 and name not in ("country", "raw"):
        assert flaw_of_partition([field], COLUMNS, mixed)


def test_bounds_of_long_text_say_as_much_as_they_can() -> None:
    column = BY_NAME["country"]
    field = PartitionField(column.id)
    a, b, short = "a" * 70, "b" * 70, "a" * 64
    for rows, value, fits in [([a], a, True), ([a], b, False), ([short], a, False), ([a, b], a, False)]:
        file = msgspec.structs.replace(file_of("country", rows), partition={column.id: value.encode()})
        assert (not flaw_of_partition([field], COLUMNS, file)) == fits, (rows, value)


SPEC = (PartitionField(1), PartitionField(2, "DAY"))
TABLE_COLUMNS = (
    Column(id=1, name="c", type="VARCHAR"),
    Column(id=2, name="d", type="DATE", initial_default=(5).to_bytes(4, "little")),
)
DAY_5, DAY_6 = (5).to_bytes(4, "little"), (6).to_bytes(4, "little")
GOOD: dict[str, Any] = {
    "path": PATH,
    "row_count": 2,
    "size_bytes": 100,
    "value_counts": {1: 2, 2: 2},
    "null_counts": {1: 0, 2: 0},
    "lower_bounds": {1: b"x", 2: DAY_5},
    "upper_bounds": {1: b"x", 2: DAY_5},
    "partition": {1: b"x", 2: DAY_5},
}


def commit(**values: Any) -> None:
    file = DataFile(**(GOOD | values))
    table = TableDef(
        id=ID, columns=TABLE_COLUMNS, next_column_id=3, partition_spec=SPEC, sort_order=(SortField(2),)
    )
    segment = Segment(
        path="manifest/x", file_count=1, row_count=2, size_bytes=100, sha256=b"", segment_size_bytes=1
    )
    check_segment([file], segment, table, transaction_id=PATH.split("/")[2])


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"sort_order_id": 1},
        {"sort_order_id": 0},
        {"lower_bounds": {}, "upper_bounds": {}, "null_counts": {}},
        {"value_counts": {1: 2}, "null_counts": {}, "lower_bounds": {}, "upper_bounds": {}},
        {"partition": {1: None, 2: DAY_5}, "null_counts": {1: 2}, "lower_bounds": {}, "upper_bounds": {}},
    ],
)
def test_a_file_that_is_in_its_partition(values: dict[str, Any]) -> None:
    commit(**values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"partition": {}}, "column ids none, but the table's partitions have 1, 2"),
        ({"partition": {1: b"x"}}, "column ids 1, but the table's partitions have 1, 2"),
        ({"partition": {1: b"x", 2: DAY_5, 3: b""}}, "column ids 1, 2, 3"),
        (
            {"partition": {1: b"y", 2: DAY_5}},
            "partition c: its value is y, but the file's bounds are outside",
        ),
        ({"partition": {1: b"x", 2: DAY_6}}, r"partition day\(d\): its value is 1970-01-07"),
        ({"partition": {1: b"x", 2: b"\x05"}}, "a bound of 1 bytes"),
        ({"partition": {1: b"\xff", 2: DAY_5}}, "partition c: "),
        ({"partition": {1: b"x", 2: None}}, "its value is NULL, but the file holds values"),
        ({"null_counts": {1: 1, 2: 0}}, "the file holds 1 NULLs"),
        ({"upper_bounds": {1: b"x", 2: DAY_6}}, "bounds are outside"),
        ({"lower_bounds": {1: b"a", 2: DAY_5}}, "bounds are outside"),
        (
            {
                "partition": {1: b"x", 2: DAY_6},
                "value_counts": {1: 2},
                "null_counts": {},
                "lower_bounds": {},
                "upper_bounds": {},
            },
            "lacks the column, so its rows have 1970-01-06",
        ),
        ({"sort_order_id": 2}, "sort order 2"),
    ],
)
def test_a_file_that_is_not_in_its_partition(values: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        commit(**values)
    assert caught.value.kind == "bad_data"


def test_numbers_have_one_form() -> None:
    """Two forms of one number would make two partitions of one."""
    column = BY_NAME["price"]
    field = PartitionField(column.id)
    padded = b"\x00\x00\x05"
    assert value_of(field, column, Decimal("0.05")) == b"\x05"
    file = msgspec.structs.replace(file_of("price", [Decimal("0.05")]), partition={column.id: padded})
    assert "form" in flaw_of_partition([field], COLUMNS, file)


@given(VALUES["price"])
def test_decimals_go_through_their_unscaled_form(value: Decimal) -> None:
    assert encode_bound(BY_NAME["price"], unscaled(BY_NAME["price"], value)) == value_of(
        PartitionField(BY_NAME["price"].id), BY_NAME["price"], value
    )


# --- definitions and operations --------------------------------------------------------------------

PARTITIONED = TableDef(
    id=ID,
    columns=TABLE_COLUMNS,
    next_column_id=3,
    partition_spec=SPEC,
    sort_order=(SortField(2, True, False), SortField(1, False, True)),
)


def test_a_definition_keeps_spec_order_and_defaults() -> None:
    data = encode_definition(PARTITIONED)
    assert decode_definition(Kind.TABLE, data, "def/t") == PARTITIONED
    assert encode_definition(PARTITIONED) == data


@pytest.mark.parametrize("which", ["partition_spec", "sort_order"])
@pytest.mark.parametrize("number", [1, 99])
def test_a_definition_with_impossible_keys_is_corrupt(which: str, number: int) -> None:
    message = pb.TableDef.FromString(encode_definition(PARTITIONED))
    getattr(message, which).add(column_id=number)
    with pytest.raises(Corrupt, match="partitions or its order"):
        decode_definition(Kind.TABLE, message.SerializeToString(), "def/t")


async def test_keys_are_for_a_tables_life() -> None:
    lake = Lake()
    journal = await lake.create()
    created = CreateTable(
        namespace="a",
        name="t",
        table_id=ID,
        columns=columns_of_schema(pa.schema({"k": pa.int32(), "s": pa.int32(), "v": pa.int32()})),
        partition_spec=(PartitionField(1),),
        sort_order=(SortField(2, True),),
    )
    await lake.commit(journal, lake.namespace("a"), created)

    async def load() -> TableDef:
        (stored,) = (await journal.load(None, [table_name("a", "t")])).objects
        assert stored is not None
        found = decode_definition(Kind.TABLE, stored.definition, stored.path)
        assert isinstance(found, TableDef)
        return found

    table = await load()
    assert (table.partition_spec, table.sort_order) == (created.partition_spec, created.sort_order)
    wide = Column(id=0, name="", type="INT8")
    for changes, says in [
        ({"drop_columns": ("k",)}, "'k' of table a.t is a partition key"),
        ({"drop_columns": ("s",)}, "'s' of table a.t is a sort key"),
        ({"retype_columns": {"k": wide}}, "'k' of table a.t is a partition key"),
    ]:
        operation = UpdateTable(namespace="a", name="t", **changes)  # type: ignore[arg-type]
        error = await raises(InvalidInput, lake.commit(journal, operation), kind="bad_schema")
        assert says in error.message
    await lake.commit(
        journal,
        UpdateTable(namespace="a", name="t", rename_columns={"k": "kk"}, retype_columns={"s": wide}),
    )
    after = await load()
    assert [partition_text(field, after.columns) for field in after.partition_spec] == ["kk"]
    assert [sort_text(field, after.columns) for field in after.sort_order] == ["s desc nulls first"]
    for wrong in (
        {"partition_spec": (PartitionField(9),)},
        {"partition_spec": (PartitionField(1), PartitionField(1))},
        {"sort_order": (SortField(0),)},
    ):
        bad = msgspec.structs.replace(created, name="u", **wrong)
        await raises(InvalidInput, lake.commit(journal, bad), kind="bad_schema")
