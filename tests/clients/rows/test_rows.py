"""Rows of native tables: written rows can be read back, and rows that do not fit are refused by column name."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus.rows import encoder
from alpheus.rows.file_reader import list_files, load_files
from alpheus.rows.file_writer import WrittenRows, write_rows
from alpheus.rows.scan import scan_of
from alpheus_journal import format as fmt
from alpheus_journal.clock import make_uuid7
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.model.definitions import Column, Segment, TableDef, walk_columns
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.tables.columns import columns_of_schema, decode_bound, schema_of_columns, strip_field_ids
from alpheus_journal.tables.manifest import check_segment, segment_of
from alpheus_journal.tables.parquet_footer import data_file_of_footer
from alpheus_journal.tables.partitions import parse_sort_by

TABLE = "00000000-0000-4000-8000-000000000001"
TRANSACTION = make_uuid7(1_000, 1)


class CountedIdentities:
    def __init__(self) -> None:
        self._count = 0

    def uuid4(self) -> str:
        self._count += 1
        return f"00000000-0000-4000-8000-{self._count:012x}"

    def uuid7(self) -> str:
        self._count += 1
        return make_uuid7(1_000, self._count)


def table_of(schema: pa.Schema) -> TableDef:
    columns = columns_of_schema(schema)
    return TableDef(id=TABLE, columns=columns, next_column_id=len(list(walk_columns(columns))) + 1)


def committed(table: TableDef, *writes: WrittenRows) -> TableDef:
    """Return the table as it is after each write has committed, one sequence each."""
    segments = [
        msgspec.structs.replace(segment, sequence=number)
        for number, written in enumerate(writes, 1)
        for segment in written.segments
    ]
    return msgspec.structs.replace(table, segments=tuple(segments), sequence=len(writes))


async def write(storage: MemoryStorage, table: TableDef, data: Any, **options: Any) -> WrittenRows:
    identities = options.pop("identities", None) or CountedIdentities()
    return await write_rows(
        storage, table, data, transaction_id=TRANSACTION, identities=identities, **options
    )


async def read_rows(
    storage: MemoryStorage, table: TableDef, *, columns: Sequence[str] | None = None, where: Any = None
) -> pa.Table:
    """Return the rows of the table in the order of its files, with the table's schema or only `columns`."""
    scan = scan_of(storage, table, await list_files(storage, table), where=where, columns=columns)
    return await scan.to_arrow()


async def round_trip(table: TableDef, data: Any, **options: Any) -> pa.Table:
    storage = MemoryStorage()
    written = await write(storage, table, data, **options)
    return await read_rows(storage, committed(table, written))


# --- round trips -----------------------------------------------------------------------------------

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BOOLEAN": st.booleans(),
    "INT2": st.integers(-(2**15), 2**15 - 1),
    "INT4": st.integers(-(2**31), 2**31 - 1),
    "INT8": st.integers(-(2**63), 2**63 - 1),
    "FLOAT4": st.floats(width=32),
    "FLOAT8": st.floats(),
    "VARCHAR": st.text(max_size=5),
    "BINARY": st.binary(max_size=5),
    "DATE": st.dates(),
    "TIMESTAMP6": st.datetimes(),
    "TIMESTAMPTZ6": st.datetimes(timezones=st.just(dt.UTC)),
}


def values_of(column: Column) -> st.SearchStrategy[Any]:
    values: st.SearchStrategy[Any]
    if column.type == "STRUCT":
        values = st.fixed_dictionaries({field.name: values_of(field) for field in column.fields})
    elif column.type == "LIST" and column.element is not None:
        values = st.lists(values_of(column.element), max_size=3)
    elif column.type == "MAP" and column.key is not None and column.value is not None:
        values = st.lists(st.tuples(values_of(column.key), values_of(column.value)), max_size=3)
    elif column.type == "DECIMAL":
        scale = int(column.properties["scale"])
        high = 10 ** int(column.properties["precision"]) - 1
        values = st.integers(-high, high).map(
            lambda number: Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))
        )
    elif column.type == "FIXED":
        length = int(column.properties["length"])
        values = st.binary(min_size=length, max_size=length)
    else:
        values = VALUES[column.type]
    return st.none() | values if column.nullable else values


LEAVES = [
    pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(),
    pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(38, 10), pa.decimal128(4, 4), pa.binary(3),
]  # fmt: skip
NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=4)


def fields_of(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    parts = st.tuples(NAMES, kinds, st.booleans())
    named = st.lists(parts, min_size=1, max_size=4, unique_by=lambda part: part[0].lower())
    return named.map(lambda parts: [pa.field(*part) for part in parts])


def deeper(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        fields_of(kinds).map(pa.struct),
        st.tuples(kinds, st.booleans()).map(lambda args: pa.list_(pa.field("element", *args))),
        st.tuples(st.sampled_from(LEAVES), kinds, st.booleans()).map(
            lambda args: pa.map_(args[0], pa.field("value", args[1], args[2]))
        ),
    )


SCHEMAS = fields_of(st.recursive(st.sampled_from(LEAVES), deeper, max_leaves=6)).map(pa.schema)


def plain(value: Any) -> Any:
    """Return a value for comparison: NaN equals NaN, and zeros keep their sign."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@given(SCHEMAS, st.data())
def test_rows_come_back_as_they_were(schema: pa.Schema, data: st.DataObject) -> None:
    table = table_of(schema)
    row = st.fixed_dictionaries({column.name: values_of(column) for column in table.columns})
    rows = data.draw(st.lists(row, max_size=6))
    target = data.draw(st.sampled_from([1, 1 << 27]))

    async def check() -> None:
        read = await round_trip(table, rows, file_size_target=target)
        assert read.schema.equals(schema, check_metadata=True)
        assert plain(read.to_pylist()) == plain(rows)
        again = await round_trip(table, read.slice(1), file_size_target=target)
        assert plain(again.to_pylist()) == plain(rows[1:])

    asyncio.run(check())


ROWS = [{"id": 1, "name": "é", "x": 0.5}, {"id": 2, "name": None, "x": math.nan}, {"id": 3, "name": "z"}]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("x", pa.float64())])
ARROW = pa.Table.from_pylist(ROWS, schema=SCHEMA)


def readers() -> Iterator[tuple[str, Any]]:
    yield "table", ARROW
    yield "batch", ARROW.to_batches()[0]
    yield "reader", ARROW.to_reader()
    yield "dataset", ds.dataset(ARROW)
    yield "dicts", ROWS
    yield "tuple of dicts", tuple(ROWS)
    yield "deque of dicts", deque(ROWS)
    yield "columns turned", ARROW.select(["x", "id", "name"])
    yield "chunks", pa.concat_tables([ARROW.slice(0, 1), ARROW.slice(1)])
    yield "dictionary", ARROW.set_column(1, "name", ARROW["name"].dictionary_encode())
    yield "narrow", ARROW.set_column(0, "id", ARROW["id"].cast(pa.uint8()))
    yield "large", ARROW.set_column(1, "name", ARROW["name"].cast(pa.large_string()))
    yield "view", ARROW.set_column(1, "name", ARROW["name"].cast(pa.string_view()))


@pytest.mark.parametrize(("kind", "data"), list(readers()))
async def test_every_kind_of_data_is_taken(kind: str, data: Any) -> None:
    assert plain((await round_trip(table_of(SCHEMA), data)).to_pylist()) == plain(ARROW.to_pylist())


DAY = dt.date(2026, 3, 1)
IN_RUNS = pa.StructArray.from_arrays([pc.run_end_encode(pa.array([1, 1, None]))], names=["q"])


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (pa.date32(), pa.array([DAY, None, DAY]).dictionary_encode()),
        (pa.timestamp("us"), pa.array([dt.datetime(2026, 3, 1)]).dictionary_encode()),
        (pa.decimal128(4, 2), pa.array([Decimal("1.5")], pa.decimal128(2, 1)).dictionary_encode()),
        (pa.struct([("q", pa.int64())]), IN_RUNS),
        (pa.list_(pa.date32()), pa.ListArray.from_arrays([0, 2], pa.array([DAY, DAY]).dictionary_encode())),
        (
            pa.map_(pa.string(), pa.date32()),
            pa.MapArray.from_arrays([0, 1], ["a"], pa.array([DAY]).dictionary_encode()),
        ),
        (pa.binary(2), pa.array([b"ab", None], pa.binary_view())),
        (pa.binary(2), pa.array([b"ab"], pa.large_binary())),
    ],
    ids=str,
)
async def test_every_encoding_is_taken(kind: pa.DataType, array: pa.Array) -> None:
    read = await round_trip(table_of(pa.schema([("a", kind)])), pa.table({"a": array}))
    assert read["a"].to_pylist() == array.to_pylist()


@pytest.mark.parametrize(
    "data",
    [pa.table({"id": [1]}), pa.table({"id": [1], "st": pa.nulls(1)}), [{"id": 1}], [{"id": 1, "st": None}]],
)
async def test_a_struct_of_required_fields_may_be_null(data: Any) -> None:
    """A struct of required fields may be NULL.

    Where Arrow builds such a struct, the fields are NULL, too, and its Parquet writer refuses them.
    """
    inner = pa.struct([pa.field("q", pa.list_(pa.int64()), nullable=False)])
    outer = pa.struct(
        [pa.field("in", inner, nullable=False), ("more", inner), pa.field("x", pa.date32(), nullable=False)]
    )
    read = await round_trip(table_of(pa.schema([("id", pa.int64()), ("st", outer)])), data)
    assert read.to_pylist() == [{"id": 1, "st": None}]
    pq.write_table(read, pa.BufferOutputStream())  # the result has no NULL fields either


async def test_what_lies_below_null_is_not_looked_at() -> None:
    no_first = pa.array([True, False])
    lists = pa.ListArray.from_arrays([0, 1, 2], pa.array([None, 3]), mask=no_first)
    maps = pa.MapArray.from_arrays([0, 1, 2], ["a", "b"], pa.array([None, 3]), mask=no_first)
    item = pa.field("element", pa.int64(), nullable=False)
    schema = pa.schema([("l", pa.list_(item)), ("m", pa.map_(pa.string(), item.with_name("value")))])
    read = await round_trip(table_of(schema), pa.table({"l": lists, "m": maps}))
    assert read.to_pylist() == [{"l": None, "m": None}, {"l": [3], "m": [("b", 3)]}]


async def test_values_of_numpy_and_pandas_are_taken() -> None:
    table = table_of(pa.schema([("b", pa.bool_()), ("t", pa.timestamp("us"))]))
    read = await round_trip(table, [{"b": np.bool_(True), "t": pd.Timestamp("2026-03-01 00:00:00.000001")}])
    assert read.to_pylist() == [{"b": True, "t": dt.datetime(2026, 3, 1, 0, 0, 0, 1)}]


async def test_a_reader_is_read_once() -> None:
    """A reader is read once. A second read would give no rows, and a retried transaction would lose them."""
    reader, table = ARROW.to_reader(), table_of(SCHEMA)
    with pytest.raises(InvalidInput, match="'x' is not in the table"):
        await round_trip(table_of(SCHEMA.remove(2)), reader)  # no row was taken from the reader
    assert (await round_trip(table, reader)).num_rows == 3
    with pytest.raises(InvalidInput, match="read before") as caught:
        await round_trip(table, reader)
    assert (caught.value.kind, "inside the retried function" in caught.value.hint) == ("bad_data", True)


async def test_what_exports_an_arrow_stream_is_taken() -> None:
    class Exporter:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return ARROW.__arrow_c_stream__(requested_schema)

    assert (await round_trip(table_of(SCHEMA), Exporter())).num_rows == 3


async def test_a_pandas_frame_is_taken_and_its_index_is_not() -> None:
    frame = pd.DataFrame({"id": [1, 2], "name": ["a", None]}, index=["i", "j"])
    read = await round_trip(table_of(SCHEMA), frame)
    assert read.to_pylist() == [{"id": 1, "name": "a", "x": None}, {"id": 2, "name": None, "x": None}]
    times = pd.DataFrame({"t": pd.to_datetime(["2024-01-01T00:00:00.000001"])})
    read = await round_trip(table_of(pa.schema([("t", pa.timestamp("us"))])), times)
    assert read["t"].to_pylist() == [dt.datetime(2024, 1, 1, 0, 0, 0, 1)]


@pytest.mark.parametrize("data", [[], ARROW.slice(0, 0), SCHEMA.empty_table().to_reader()])
async def test_no_rows_no_file_no_segment(data: Any) -> None:
    storage = MemoryStorage()
    assert await write(storage, table_of(SCHEMA), data) == WrittenRows(segments=(), rows=0)
    assert [info async for info in storage.list("")] == []


# --- what is stored --------------------------------------------------------------------------------


async def test_files_are_cut_named_and_signed_and_a_commit_takes_them() -> None:
    storage, table = MemoryStorage(), table_of(SCHEMA)
    written = await write(storage, table, ROWS * 20, file_size_target=1, catalog_id="the catalog")
    assert written.rows == 60
    files = await load_files(storage, committed(table, written))
    assert len(files) == written.segments[0].file_count == 60
    for number, (file, sequence) in enumerate(files):
        assert sequence == 1
        assert fmt.parse_data_path(file.path)[:2] == (TABLE, TRANSACTION)
        assert file.path.endswith(f"/part-{number:05d}.parquet")
        data = await storage.read(file.path, size_max=file.size_bytes)
        assert len(data) == file.size_bytes
        assert pq.read_metadata(pa.BufferReader(data)).metadata == {
            b"alpheus.catalog_id": b"the catalog",
            b"alpheus.table_id": TABLE.encode(),
            b"alpheus.transaction_id": TRANSACTION.encode(),
            b"alpheus.schema_id": b"0",
        }
    check_segment([f for f, _ in files], written.segments[0], table, transaction_id=TRANSACTION)


async def test_a_large_batch_is_cut_into_row_groups_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "ROW_GROUP_ROWS_MAX", 100)
    storage, table = MemoryStorage(), table_of(pa.schema([("n", pa.int64())]))
    data = pa.table({"n": pa.array(range(1000), pa.int64())})
    written = await write(storage, table, data, file_size_target=2000)
    now = committed(table, written)
    files = [file for file, _ in await load_files(storage, now)]
    assert len(files) > 1
    assert all(file.size_bytes >= 2000 for file in files[:-1])
    assert all(file.size_bytes < 8000 for file in files)
    assert (await read_rows(storage, now))["n"].to_pylist() == list(range(1000))


async def test_wide_rows_of_a_sorted_table_are_cut_into_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "ROW_GROUP_SIZE_BYTES_MAX", 1 << 18)
    monkeypatch.setattr(encoder, "PIECE_SIZE_BYTES_MAX", 1 << 16)
    table = table_of(pa.schema([("n", pa.int64()), ("wide", pa.string())]))
    table = msgspec.structs.replace(table, sort_order=parse_sort_by(["n"], table.columns))
    storage, data = MemoryStorage(), [{"n": -n, "wide": "x" * 1024} for n in range(1000)]
    now = committed(table, await write(storage, table, data))
    [(file, _)] = await load_files(storage, now)
    content = await storage.read(file.path, size_max=file.size_bytes)
    assert pq.read_metadata(pa.BufferReader(content)).num_row_groups == 4
    assert (await read_rows(storage, now))["n"].to_pylist() == list(range(-999, 1))


async def test_nans_are_counted_at_every_depth() -> None:
    nan = math.nan
    schema = pa.schema(
        [
            ("x", pa.float32()),
            ("s", pa.struct([("y", pa.float64())])),
            ("l", pa.list_(pa.float64())),
            ("m", pa.map_(pa.float64(), pa.float64())),
        ]
    )
    rows = [
        {"x": nan, "s": {"y": nan}, "l": [nan, 1.0, nan], "m": [(nan, 1.0), (2.0, nan), (3.0, nan)]},
        {"x": 1.0, "s": None, "l": None, "m": None},
        {"x": None, "s": {"y": 2.0}, "l": [], "m": []},
    ]
    storage, table = MemoryStorage(), table_of(schema)
    ((file, _),) = await load_files(storage, committed(table, await write(storage, table, rows)))
    assert file.nan_counts == {1: 1, 3: 1, 5: 2, 7: 1, 8: 2}
    assert decode_bound(table.columns[0], file.upper_bounds[1]) == 1.0


async def test_segments_are_read_in_order_with_their_sequence() -> None:
    storage, table, identities = MemoryStorage(), table_of(SCHEMA), CountedIdentities()
    writes = [await write(storage, table, [{"id": n}], identities=identities) for n in range(20)]
    now = committed(table, *writes)
    assert [sequence for _, sequence in await load_files(storage, now)] == list(range(1, 21))
    assert (await read_rows(storage, now))["id"].to_pylist() == list(range(20))


async def test_a_file_may_carry_a_sequence_of_its_own() -> None:
    storage, table = MemoryStorage(), table_of(SCHEMA)
    ((file, _),) = await load_files(storage, committed(table, await write(storage, table, ROWS)))
    merged = msgspec.structs.replace(file, sequence=7)
    path = fmt.manifest_path(TABLE, make_uuid7(1, 99))
    data, segment = segment_of([merged], path=path, table_id=TABLE, schema_id=0)
    await storage.put(path, data)
    now = msgspec.structs.replace(table, segments=(msgspec.structs.replace(segment, sequence=9),), sequence=9)
    assert [sequence for _, sequence in await load_files(storage, now)] == [7]


# --- refusals of a write ---------------------------------------------------------------------------

WIDE = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False), ("f", pa.float32()), ("g", pa.float64()),
        ("d", pa.decimal128(4, 2)),
        ("s", pa.string()), ("x", pa.binary(2)), ("t", pa.timestamp("us")), ("z", pa.timestamp("us", "UTC")),
        ("day", pa.date32()), ("b", pa.bool_()), ("l", pa.list_(pa.field("element", pa.int32(), nullable=False))),
        ("st", pa.struct([pa.field("q", pa.int32(), nullable=False)])), ("m", pa.map_(pa.string(), pa.int32())),
        ("raw", pa.binary()), ("n", pa.int16()),
        ("v", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))),
        ("w", pa.list_(pa.struct([pa.field("q", pa.int32(), nullable=False)]))),
    ]
)  # fmt: skip


def arrow(name: str, values: list[Any], kind: pa.DataType | None = None) -> pa.Table:
    columns = {} if name == "id" else {"id": pa.array(range(len(values)), pa.int32())}
    return pa.table(columns | {name: pa.array(values, kind)})


UNFIT: list[tuple[Any, str]] = [
    (arrow("unknown", [1]), "'unknown' is not in the table"),
    (arrow("ID", [1]), "'ID' is not in the table"),
    (pa.table({"s": ["a"]}), "'id' is required, but missing"),
    (pa.Table.from_arrays([pa.array([1]), pa.array([1])], names=["id", "id"]), "'id' occurs twice"),
    (arrow("id", [1, None]), "'id' is required, but holds NULL"),
    (arrow("id", [None], pa.null()), "'id' is required, but holds NULL"),
    (arrow("id", [2**31]), "'id' holds a value that int32 cannot hold"),
    (arrow("id", [1.0]), "'id' has type double"),
    (arrow("id", ["1"]), "'id' has type string"),
    (arrow("id", [True]), "'id' has type bool"),
    (arrow("f", [0.1]), "'f' holds values of double"),
    (arrow("f", [1e300]), "'f' holds values of double"),
    (arrow("g", [2**60 + 1]), "'g' holds a value"),
    (arrow("d", [Decimal("1.234")]), "'d' holds a value"),
    (arrow("d", [100]), "'d' holds a value"),
    (arrow("s", [b"a"]), "'s' has type binary"),
    (arrow("raw", ["a"]), "'raw' has type string"),
    (arrow("x", [b"abc"]), "'x' holds values that are not 2 bytes"),
    (arrow("t", [1], pa.timestamp("ns")), "'t' holds a value"),
    (arrow("t", [1], pa.timestamp("us", "UTC")), "'t' has type timestamp.us, tz=UTC"),
    (arrow("z", [1], pa.timestamp("us")), "'z' has type timestamp.us"),
    (arrow("day", [1], pa.timestamp("us")), "'day' has type"),
    (arrow("l", [1]), "'l' has type int64"),
    (arrow("l", [[1, None]]), "'l.element' is required"),
    (arrow("l", [[2**40]]), "'l.element' holds a value"),
    (arrow("st", [{"q": 1}, {"q": None}]), "'st.q' is required"),
    (arrow("st", [{"r": 1}]), "'st.r' is not in the table"),
    (arrow("st", [{}], pa.struct([])), "'st.q' is required, but missing"),
    (arrow("m", [[("a", 1.5)]], pa.map_(pa.string(), pa.float64())), "'m.value' has type"),
    (arrow("v", [[("a", None)]], pa.map_(pa.string(), pa.int32())), "'v.value' is required, but holds NULL"),
    (arrow("w", [[None, {"q": None}]], WIDE.field("w").type), "'w.element.q' is required, but holds NULL"),
    (arrow("n", [], pa.string()), "'n' has type string"),  # also without a row
    (
        pa.table({"s": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array(["a"])])}),
        "'s' has type sparse_union",
    ),
    (pa.chunked_array([[1]]), "ChunkedArray cannot be read as an Arrow table"),
    ([{"id": 1}, {"id": 2, "q": 1}], "row 1: column 'q' is not in the table"),
    ([{"s": "a"}], "row 0: column 'id' is required"),
    ([{"id": None}], "'id' is required"),
    ([{"id": "1"}], "'id' of type int32 cannot hold '1'"),
    ([{"id": True}], "'id' of type int32 cannot hold"),
    ([{"id": 2**31}], "'id' holds a value that int32 cannot hold"),
    ([{"id": 1.5}], "'id' of type int32"),
    ([{"id": 1, "b": 1}], "'b' of type boolean"),
    ([{"id": 1, "f": 1e300}], "'f' of type float"),
    ([{"id": 1, "d": Decimal("1.234")}], "'d' holds a value"),
    ([{"id": 1, "d": 1.5}], "'d' of type decimal"),
    ([{"id": 1, "s": 5}], "'s' of type string"),
    ([{"id": 1, "s": "\ud800"}], "'s' holds a value"),
    ([{"id": 1, "x": b"a"}], "'x' holds a value"),
    ([{"id": 1, "t": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}], "'t' of type timestamp"),
    ([{"id": 1, "z": dt.datetime(2024, 1, 1)}], "'z' of type timestamptz"),
    (
        [{"id": 1, "t": pd.Timestamp("2026-03-01 00:00:00.000000001")}],
        "'t' of type timestamp cannot hold .*001'",
    ),
    ([{"id": 1, "day": dt.datetime(2024, 1, 1)}], "'day' of type date"),
    ([{"id": 1, "l": "ab"}], "'l' of type list"),
    ([{"id": 1, "l": [None]}], "'l.element' is required"),
    ([{"id": 1, "st": {"q": 1, "r": 2}}], "'st.r' is not in the table"),
    ([{"id": 1, "st": {}}], "'st.q' is required"),
    ([{"id": 1, "m": [1]}], "'m' of type map"),
    ([{"id": 1, "m": {None: 1}}], "'m.key' is required"),
    ([{"id": 1, "v": {"a": None}}], "'v.value' is required"),
    ([{"id": 1, "w": [{"q": None}]}], "'w.element.q' is required"),
    ([1], "row 0 is a int"),
    (pd.DataFrame({"id": [1, 2], "s": [1, "a"]}), "pandas DataFrame"),
    (pd.DataFrame({"id": [1, None]}), "'id' has type double"),
]


@pytest.mark.parametrize(("data", "reason"), UNFIT)
async def test_what_does_not_fit_is_refused_with_the_column(data: Any, reason: str) -> None:
    storage = MemoryStorage()
    with pytest.raises(InvalidInput, match=reason) as caught:
        await write(storage, table_of(WIDE), data)
    assert caught.value.kind == "bad_data"
    assert [info async for info in storage.list("")] == []


async def test_invalid_text_in_arrow_data_never_reaches_a_file() -> None:
    buffers = [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    broken = pa.Array.from_buffers(pa.string(), 1, buffers)
    with pytest.raises(InvalidInput, match="not valid"):
        await write(MemoryStorage(), table_of(pa.schema([("s", pa.string())])), pa.table({"s": broken}))


@pytest.mark.parametrize("data", ["text", 5, None, {"id": [1]}])
async def test_what_is_no_data_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput, match="is not data") as caught:
        await write(MemoryStorage(), table_of(SCHEMA), data)
    assert caught.value.kind == "bad_argument"


async def test_tables_that_are_not_ours_are_refused() -> None:
    iceberg = TableDef(id="t", native=False)
    with pytest.raises(InvalidInput) as caught:
        await write(MemoryStorage(), iceberg, [])
    assert caught.value.kind == "not_native"
    with pytest.raises(InvalidInput) as caught:
        await read_rows(MemoryStorage(), iceberg)
    assert caught.value.kind == "not_native"
    with pytest.raises(InvalidInput, match="not positive"):
        await write(MemoryStorage(), table_of(SCHEMA), [], file_size_target=0)


# --- reading ---------------------------------------------------------------------------------------


async def test_columns_are_chosen_by_name_in_the_order_asked() -> None:
    storage, table = MemoryStorage(), table_of(SCHEMA)
    now = committed(table, await write(storage, table, ROWS))
    read = await read_rows(storage, now, columns=["name", "id"])
    assert read.schema == pa.schema([("name", pa.string()), pa.field("id", pa.int64(), nullable=False)])
    assert read.to_pylist()[0] == {"name": "é", "id": 1}


@pytest.mark.parametrize("columns", [["nope", "id"], ["id", "id"], [], "id"])
async def test_columns_that_cannot_be_chosen(columns: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        await read_rows(MemoryStorage(), table_of(SCHEMA), columns=columns)
    assert caught.value.kind == "bad_argument"
    assert "id, name, x" in caught.value.hint
    if columns == ["nope", "id"]:
        assert "['nope']" in caught.value.message


async def test_a_predicate_that_is_none_is_refused_not_ignored() -> None:
    for where in ("id == == 1", "nope = 1", 7):
        with pytest.raises(InvalidInput) as caught:
            await read_rows(MemoryStorage(), table_of(SCHEMA), where=where)
        assert caught.value.kind == "bad_predicate", where


async def test_files_of_older_schemas_read_as_the_tables() -> None:
    old = pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False),
            ("f", pa.float32()),
            ("gone", pa.string()),
            ("d", pa.decimal128(5, 2)),
            ("st", pa.struct([("x", pa.int16()), ("gone", pa.int32())])),
            ("l", pa.list_(pa.struct([("x", pa.int16())]))),
        ]
    )
    storage, table = MemoryStorage(), table_of(old)
    row = {
        "a": 1,
        "f": 0.5,
        "gone": "x",
        "d": Decimal("1.50"),
        "st": {"x": 3, "gone": 4},
        "l": [{"x": 5}, None],
    }
    written = await write(storage, table, [row, {"a": 2}])
    a, f, _, d, struct, numbers = table.columns
    assert numbers.element is not None
    change = msgspec.structs.replace
    wide = change(struct.fields[0], name="wide", type="INT8")
    added = Column(id=90, name="new", type="VARCHAR")
    element = change(numbers.element, fields=(change(numbers.element.fields[0], type="INT4"),))
    columns = (
        added,
        change(f, name="renamed", type="FLOAT8"),
        change(a, name="gone", type="INT8"),  # takes the name of the dropped column
        change(d, properties={"precision": "9", "scale": "2"}),
        change(struct, fields=(change(added, id=91), wide)),
        change(numbers, element=element),
    )
    now = committed(change(table, columns=columns, next_column_id=92, schema_id=1), written)
    read = await read_rows(storage, now)
    assert read.schema == strip_field_ids(schema_of_columns(columns))
    assert read.to_pylist() == [
        {"new": None, "renamed": 0.5, "gone": 1, "d": Decimal("1.50"), "st": {"new": None, "wide": 3},
         "l": [{"x": 5}, None]},
        {"new": None, "renamed": None, "gone": 2, "d": None, "st": None, "l": None},
    ]  # fmt: skip
    assert (await read_rows(storage, now, columns=["new"])).to_pylist() == [{"new": None}] * 2


async def test_a_file_with_nulls_below_a_required_column_is_corrupt() -> None:
    storage, table = MemoryStorage(), table_of(pa.schema([("a", pa.int32())]))
    written = await write(storage, table, [{"a": None}])
    strict = msgspec.structs.replace(table.columns[0], nullable=False)
    now = committed(msgspec.structs.replace(table, columns=(strict,)), written)
    with pytest.raises(Corrupt, match="'a' is required"):
        await read_rows(storage, now)


async def spark_like_file(storage: MemoryStorage, table: TableDef) -> Segment:
    """Store a file as Spark writes it: ids at struct fields only, and everything optional."""

    def ids(number: int) -> dict[str, str]:
        return {"PARQUET:field_id": str(number)}

    element = pa.field("array", pa.struct([pa.field("k", pa.string(), metadata=ids(4))]))
    schema = pa.schema(
        [
            pa.field("tags", pa.list_(element), metadata=ids(2)),
            pa.field("id", pa.int64(), metadata=ids(1)),
        ]
    )
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([[[{"k": "a"}], None], [1, 2]], schema=schema), sink, store_schema=False)
    data = sink.getvalue().to_pybytes()
    path = fmt.data_folder(TABLE, TRANSACTION, TABLE) + "part-00000-x.c000.snappy.parquet"
    file = data_file_of_footer(path, len(data), pq.read_metadata(pa.BufferReader(data)), table.columns)
    manifest_path = fmt.manifest_path(TABLE, make_uuid7(1, 50))
    content, segment = segment_of([file], path=manifest_path, table_id=TABLE, schema_id=0)
    await storage.put_many({path: data, manifest_path: content})
    return segment


async def test_files_as_spark_writes_them_read_by_id_and_place() -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("tags", pa.list_(pa.struct([("k", pa.string())])))]
    )
    storage, table = MemoryStorage(), table_of(schema)
    segment = await spark_like_file(storage, table)
    read = await read_rows(storage, committed(table, WrittenRows(segments=(segment,), rows=2)))
    assert read.to_pylist() == [{"id": 1, "tags": [{"k": "a"}]}, {"id": 2, "tags": None}]


# --- damage ----------------------------------------------------------------------------------------


async def stored_table() -> tuple[MemoryStorage, TableDef, str, str]:
    """Store a table of one file. Return the store, the table, and the paths of its segment and its data file."""
    storage, table = MemoryStorage(), table_of(SCHEMA)
    now = committed(table, await write(storage, table, ROWS))
    ((file, _),) = await load_files(storage, now)
    return storage, now, now.segments[0].path, file.path


async def damaged(storage: MemoryStorage, table: TableDef) -> Corrupt:
    with pytest.raises(Corrupt) as caught:
        await read_rows(storage, table)
    assert caught.value.kind == "corrupt_manifest"
    return caught.value


async def test_a_missing_file_is_named_with_its_segment() -> None:
    storage, table, segment, file = await stored_table()
    await storage.delete(file)
    error = await damaged(storage, table)
    assert error.path == file
    assert segment in error.message
    await storage.delete(segment)
    assert (await damaged(storage, table)).path == segment


async def test_a_changed_segment_is_refused_before_it_is_decoded() -> None:
    storage, table, segment, _ = await stored_table()
    data = await storage.read(segment, size_max=1 << 20)
    for changed in (data[:-1], data + b"\0", data[:100] + bytes([data[100] ^ 1]) + data[101:]):
        await storage.put(segment, changed)
        assert (await damaged(storage, table)).path == segment


async def test_a_segment_that_does_not_add_up_is_refused() -> None:
    storage, table, segment, _ = await stored_table()
    (true,) = table.segments
    for change in ({"row_count": 4}, {"file_count": 2}, {"size_bytes": 1}):
        false = msgspec.structs.replace(true, **change)
        error = await damaged(storage, msgspec.structs.replace(table, segments=(false,)))
        assert (error.path, "totals" in error.message) == (segment, True)


async def test_a_damaged_data_file_is_named() -> None:
    storage, table, _, path = await stored_table()
    data = await storage.read(path, size_max=1 << 20)
    for changed in (data[:-1], data + b"\0", bytes(len(data)), data[:-8] + b"\xff" * 8):
        await storage.put(path, changed)
        assert (await damaged(storage, table)).path == path


async def test_a_mutated_data_file_is_corrupt_or_still_true() -> None:
    storage, table, _, path = await stored_table()
    data = await storage.read(path, size_max=1 << 20)
    refused = 0
    for place in range(0, len(data), 7):
        await storage.put(path, data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            assert plain((await read_rows(storage, table)).to_pylist()) == plain(ARROW.to_pylist()), place
        except Corrupt:
            refused += 1
    assert refused > 10
