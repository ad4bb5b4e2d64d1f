"""Schemas, bounds, segments and footers of native tables: round trips, refusals, hostile bytes."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, Expired, InvalidInput
from alpheus_journal.model.definitions import Column, Segment, TableDef, walk_columns
from alpheus_journal.tables import columns, manifest
from alpheus_journal.tables.columns import (
    columns_of_schema,
    decode_bound,
    encode_bound,
    schema_of_columns,
    strip_field_ids,
)
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import check_segment, decode_segment, encode_segment, segment_of
from alpheus_journal.tables.manifest_merge import Content, make_segment
from alpheus_journal.tables.parquet_footer import data_file_of_footer

TABLE = "00000000-0000-4000-8000-000000000001"
OTHER_TABLE = "00000000-0000-4000-8000-000000000002"
TRANSACTION = "00000000-0000-7000-8000-000000000003"
OTHER_TRANSACTION = "00000000-0000-7000-8000-000000000004"
WRITE = "00000000-0000-4000-8000-000000000005"
SEGMENT_PATH = fmt.manifest_path(TABLE, "00000000-0000-7000-8000-000000000006")


def data_path(name: str = "part-0.parquet", table: str = TABLE, transaction: str = TRANSACTION) -> str:
    return fmt.data_folder(table, transaction, WRITE) + name


# --- schemas ---------------------------------------------------------------------------------------

LEAVES = [
    pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(1, 0), pa.decimal128(38, 38),
    pa.decimal128(9, 2), pa.binary(1), pa.binary(16),
]  # fmt: skip
NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=6)


def fields_of(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    parts = st.tuples(NAMES, kinds, st.booleans())
    named = st.lists(parts, min_size=1, max_size=4, unique_by=lambda part: part[0].lower())
    return named.map(lambda parts: [pa.field(*part) for part in parts])


def deeper(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    def pair(args: tuple[pa.DataType, pa.DataType, bool]) -> pa.DataType:
        return pa.map_(args[0], pa.field("value", args[1], args[2]))

    return st.one_of(
        fields_of(kinds).map(pa.struct),
        st.tuples(kinds, st.booleans()).map(lambda args: pa.list_(pa.field("element", *args))),
        st.tuples(st.sampled_from(LEAVES), kinds, st.booleans()).map(pair),
    )


SCHEMAS = fields_of(st.recursive(st.sampled_from(LEAVES), deeper, max_leaves=6)).map(pa.schema)


@given(SCHEMAS, st.integers(1, 1000))
def test_a_schema_survives_as_columns_and_in_a_parquet_file(schema: pa.Schema, first_id: int) -> None:
    columns = columns_of_schema(schema, first_id=first_id)
    walked = list(walk_columns(columns))
    assert [column.id for column in walked] == list(range(first_id, first_id + len(walked)))
    with_ids = schema_of_columns(columns)
    assert strip_field_ids(with_ids).equals(schema, check_metadata=True)
    assert columns_of_schema(with_ids, first_id=first_id) == columns
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, with_ids, store_schema=False).close()
    file = data_file_of_footer(
        data_path(), len(sink.getvalue()), pq.read_metadata(pa.BufferReader(sink.getvalue())), columns
    )
    assert set(file.value_counts) == {column.id for column in walked if not column.children()}


@pytest.mark.parametrize(
    ("given_type", "stored"),
    [
        (pa.large_string(), "VARCHAR"), (pa.string_view(), "VARCHAR"), (pa.large_binary(), "BINARY"),
        (pa.timestamp("s"), "TIMESTAMP6"), (pa.timestamp("ms", "Europe/Berlin"), "TIMESTAMPTZ6"),
        (pa.timestamp("ns"), "TIMESTAMP6"), (pa.timestamp("ns", "Asia/Tokyo"), "TIMESTAMPTZ6"),
        (pa.dictionary(pa.int8(), pa.string()), "VARCHAR"), (pa.large_list(pa.int32()), "LIST"),
        (pa.list_(pa.int32(), 3), "LIST"), (pa.decimal256(38, 1), "DECIMAL"), (pa.uuid(), "FIXED"),
    ],
)  # fmt: skip
def test_types_that_become_another(given_type: pa.DataType, stored: str) -> None:
    (column,) = columns_of_schema(pa.schema([("c", given_type)]))
    assert column.type == stored
    schema_of_columns([column])


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (pa.int8(), "int16"), (pa.uint8(), "signed"), (pa.uint64(), "decimal128(20, 0)"), (pa.float16(), "float32"),
        (pa.time32("ms"), "Spark"), (pa.time64("us"), "Spark"), (pa.duration("s"), "Spark"),
        (pa.date64(), "date32"), (pa.null(), "type"), (pa.decimal256(39, 0), "38"), (pa.decimal128(5, -1), "38"),
        (pa.binary(0), "one byte"), (pa.dense_union([pa.field("a", pa.int32())]), "Spark"), (pa.struct([]), ""),
    ],
)  # fmt: skip
def test_a_type_that_no_table_holds_is_refused_with_the_column_and_a_way_out(
    kind: pa.DataType, hint: str
) -> None:
    schema = pa.schema([("outer", pa.struct([("inner", pa.list_(pa.field("element", kind)))]))])
    with pytest.raises(InvalidInput, match=r"'outer\.inner\.element'") as caught:
        columns_of_schema(schema)
    assert caught.value.kind == "bad_schema"
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([], "at least one column"), ([("", pa.int32())], "empty name"), ([("a\nb", pa.int32())], "control"),
        ([("a", pa.int32()), ("A", pa.int32())], "case only"), ([("a", pa.int32()), ("a", pa.int32())], "twice"),
        ([("s", pa.struct([("x", pa.int32()), ("X", pa.int32())]))], r"'s\.X' differs"),
        ([("n" * 1025, pa.int32())], "1024 bytes"), ([("a\x7f", pa.int32())], "control"),
    ],
)  # fmt: skip
def test_names_that_no_table_has(fields: list[tuple[str, pa.DataType]], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        columns_of_schema(pa.schema(fields))
    assert caught.value.kind == "bad_schema"


def test_a_schema_nested_too_deep_is_refused_both_ways() -> None:
    kind, column = pa.int32(), Column(id=1, name="c", type="INT4")
    for _ in range(40):
        kind, column = pa.list_(kind), Column(id=1, name="c", type="LIST", element=column)
    with pytest.raises(InvalidInput, match="levels deep"):
        columns_of_schema(pa.schema([("c", kind)]))
    with pytest.raises(InvalidInput, match="levels deep"):
        schema_of_columns([column])


@pytest.mark.parametrize(
    "column",
    [
        Column(id=1, name="c", type="TIME6"), Column(id=1, name="c", type="TIMESTAMP9"),
        Column(id=1, name="c", type="CHAR"), Column(id=1, name="c", type="DECIMAL"),
        Column(id=1, name="c", type="DECIMAL", properties={"precision": "39", "scale": "0"}),
        Column(id=1, name="c", type="DECIMAL", properties={"precision": "3", "scale": "4"}),
        Column(id=1, name="c", type="FIXED", properties={"length": "-1"}),
        Column(id=1, name="c", type="LIST"), Column(id=1, name="c", type="MAP"), Column(id=1, name="c", type="STRUCT"),
        Column(id=1, name="c", type="INT4", element=Column(id=2, name="element", type="INT4")),
    ],
)  # fmt: skip
def test_columns_from_elsewhere_that_no_table_holds(column: Column) -> None:
    with pytest.raises(InvalidInput, match="'c'") as caught:
        schema_of_columns([column])
    assert caught.value.kind == "bad_schema"


# --- bounds ----------------------------------------------------------------------------------------

# Table values, and Iceberg's bytes for them (its specification, appendix D).
BOUNDS: list[tuple[str, dict[str, str], Any, bytes]] = [
    ("BOOLEAN", {}, True, b"\x01"),
    ("INT2", {}, -2, b"\xfe\xff\xff\xff"),
    ("INT4", {}, 34, b"\x22\x00\x00\x00"),
    ("INT8", {}, 34, b"\x22\x00\x00\x00\x00\x00\x00\x00"),
    ("FLOAT4", {}, -4.5, b"\x00\x00\x90\xc0"),
    ("FLOAT8", {}, 6.0, b"\x00\x00\x00\x00\x00\x00\x18\x40"),
    ("DATE", {}, 17486, b"\x4e\x44\x00\x00"),
    ("TIMESTAMP6", {}, -1, b"\xff" * 8),
    ("VARCHAR", {}, "iceberg", b"iceberg"),
    ("BINARY", {}, b"\x00\xff", b"\x00\xff"),
]


@pytest.mark.parametrize(("kind", "properties", "value", "data"), BOUNDS)
def test_bounds_have_the_bytes_of_iceberg(
    kind: str, properties: dict[str, str], value: Any, data: bytes
) -> None:
    column = Column(id=1, name="c", type=kind, properties=properties)
    assert encode_bound(column, value) == data
    assert decode_bound(column, data) == value


@pytest.mark.parametrize(("number", "data"), [(1420, b"\x05\x8c"), (0, b"\x00"), (-1, b"\xff"), (-128, b"\x80"),
                                              (128, b"\x00\x80"), (-129, b"\xff\x7f")])  # fmt: skip
def test_decimal_bounds_are_the_shortest_twos_complement(number: int, data: bytes) -> None:
    column = Column(id=1, name="c", type="DECIMAL", properties={"precision": "9", "scale": "2"})
    assert encode_bound(column, number) == data
    assert decode_bound(column, data) == Decimal(number).scaleb(-2)


def test_what_is_no_bound_is_refused() -> None:
    cases = [("INT4", b"123"), ("INT4", b"12345678"), ("FLOAT8", b"\x00\x00\xc0\x7f"), ("VARCHAR", b"\xff"),
             ("BOOLEAN", b""), ("STRUCT", b"")]  # fmt: skip
    for kind, data in cases:
        with pytest.raises(ValueError):  # noqa: PT011
            decode_bound(Column(id=1, name="c", type=kind), data)


def footer_of(
    values: list[Any], kind: pa.DataType, *, group: int = 2, required: bool = False, **options: Any
) -> tuple[DataFile, Column]:
    columns = columns_of_schema(pa.schema([pa.field("c", kind, not required)]))
    schema = schema_of_columns(columns)
    sink = pa.BufferOutputStream()
    table = pa.table([pa.array(values, kind)], schema=schema)
    pq.write_table(table, sink, row_group_size=group, **options)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    return data_file_of_footer(data_path(), len(sink.getvalue()), metadata, columns), columns[0]


ORDERED: list[tuple[pa.DataType, st.SearchStrategy[Any], Callable[[Any], Any]]] = [
    (pa.int16(), st.integers(-(2**15), 2**15 - 1), lambda v: v),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1), lambda v: v),
    (pa.float32(), st.floats(width=32), lambda v: v),
    (pa.float64(), st.floats(), lambda v: v),
    (pa.string(), st.text(max_size=100), lambda v: v),
    (pa.string(), st.text("\U0010ffffab\ud7ff", min_size=60, max_size=70), lambda v: v),
    (pa.binary(), st.binary(max_size=100), lambda v: v),
    (pa.binary(), st.lists(st.sampled_from([254, 255]), min_size=60, max_size=70).map(bytes), lambda v: v),
    (pa.binary(70), st.binary(min_size=70, max_size=70), lambda v: v),
    (pa.bool_(), st.booleans(), lambda v: v),
    (pa.decimal128(20, 3), st.decimals(-(10**16), 10**16, places=3), lambda v: v),
    (pa.date32(), st.dates(), lambda v: (v - dt.date(1970, 1, 1)).days),
    (
        pa.timestamp("us"),
        st.datetimes(),
        lambda v: (v - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1),
    ),
]


@pytest.mark.parametrize(("kind", "values", "stored"), ORDERED)
@given(data=st.data())
def test_every_value_lies_within_the_bounds(
    kind: pa.DataType, values: st.SearchStrategy[Any], stored: Callable[[Any], Any], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.none() | values, max_size=7))
    file, column = footer_of(rows, kind)
    assert file.row_count == len(rows)
    assert file.value_counts == {1: len(rows)}
    assert file.null_counts == {1: rows.count(None)}
    present = [stored(v) for v in rows if v is not None and v == v]
    bounds = [side.get(1) for side in (file.lower_bounds, file.upper_bounds)]
    low, high = (None if bound is None else decode_bound(column, bound) for bound in bounds)
    assert low is None or all(low <= value for value in present)
    assert high is None or all(value <= high for value in present)
    if isinstance(high, str | bytes):
        assert len(high) <= 64
    elif present and all(value == value for value in rows):
        assert (low, high) == (min(present), max(present))


def test_a_cut_bound_is_the_next_value_above_the_prefix_or_absent() -> None:
    def uppers(value: str | bytes, kind: pa.DataType) -> object:
        file, column = footer_of([value], kind)
        assert decode_bound(column, file.lower_bounds[1]) == value[:64]
        return decode_bound(column, file.upper_bounds[1]) if file.upper_bounds else None

    assert uppers("é" * 64, pa.string()) == "é" * 64
    assert uppers("é" * 65, pa.string()) == "é" * 63 + "ê"
    assert uppers("a" + "\U0010ffff" * 70, pa.string()) == "b"
    assert uppers("\U0010ffff" * 70, pa.string()) is None
    assert uppers("\ud7ff" * 65, pa.string()) == "\ud7ff" * 63 + "\ue000"
    assert uppers(b"\x01" + b"\xff" * 70, pa.binary()) == b"\x02"
    assert uppers(b"\xff" * 70, pa.binary()) is None


def test_no_bounds_without_usable_statistics() -> None:
    nan = float("nan")
    assert footer_of([nan, nan], pa.float64())[0].lower_bounds == {}
    assert footer_of([1.0, 2.0, nan, nan], pa.float64())[0].upper_bounds == {}
    assert footer_of([1, 2], pa.int32(), write_statistics=False)[0].lower_bounds == {}
    assert footer_of([1, 2], pa.int32(), write_statistics=False)[0].null_counts == {}
    assert footer_of(["x" * 5000], pa.string())[0].upper_bounds == {}  # longer than a footer accepts
    zeros, column = footer_of([0.0, -0.0], pa.float64())
    assert str(decode_bound(column, zeros.lower_bounds[1])) == "-0.0"
    assert str(decode_bound(column, zeros.upper_bounds[1])) == "0.0"


# --- segments --------------------------------------------------------------------------------------

COUNTS = st.integers(0, 2**40)
CHECKSUMS = st.integers(0, 2**32 - 1)


@st.composite
def data_files(draw: st.DrawFn) -> list[DataFile]:
    files = []
    for number in range(draw(st.integers(1, 4))):
        ids = draw(st.lists(st.integers(1, 2**31 - 1), unique=True, max_size=4))
        known = st.lists(st.sampled_from(ids), unique=True) if ids else st.just([])
        checksums = draw(st.just((None, None)) | st.tuples(CHECKSUMS, CHECKSUMS))
        values = {i: draw(COUNTS) for i in ids}
        files.append(
            DataFile(
                path=data_path(f"part-{number}.parquet"),
                row_count=draw(COUNTS),
                size_bytes=2**41,
                schema_id=draw(st.integers(0, 2**32 - 1)),
                value_counts=values,
                column_sizes={i: draw(COUNTS) for i in draw(known)},
                null_counts={i: draw(st.integers(0, values[i])) for i in draw(known)},
                nan_counts=dict.fromkeys(draw(known), 0),
                lower_bounds={i: draw(st.binary(max_size=9)) for i in draw(known)},
                upper_bounds={i: draw(st.binary(max_size=9)) for i in draw(known)},
                split_offsets=tuple(sorted(draw(st.sets(COUNTS, max_size=3)))),
                sequence=draw(st.none() | COUNTS),
                partition=draw(
                    st.dictionaries(st.integers(1, 99), st.none() | st.binary(max_size=4), max_size=2)
                ),
                sort_order_id=draw(st.none() | st.integers(0, 9)),
                added_version=draw(st.none() | COUNTS),
                crc32=checksums[0],
                footer_crc32=checksums[1],
            )
        )
    return files


@given(data_files())
def test_a_segment_gives_its_files_back(files: list[DataFile]) -> None:
    data, segment = segment_of(files, path=SEGMENT_PATH, table_id=TABLE, schema_id=7)
    assert decode_segment(data, SEGMENT_PATH, table_id=TABLE) == tuple(files)
    assert encode_segment(files, table_id=TABLE, schema_id=9) == data
    assert segment == Segment(
        path=SEGMENT_PATH,
        file_count=len(files),
        row_count=sum(file.row_count for file in files),
        size_bytes=2**41 * len(files),
        sha256=hashlib.sha256(data).digest(),
        segment_size_bytes=len(data),
    )


def file_with(**values: Any) -> DataFile:
    plain = DataFile(path=data_path(), row_count=2, size_bytes=100, value_counts={1: 2}, null_counts={1: 0})
    return msgspec.structs.replace(plain, **values)


def test_a_file_without_a_schema_id_takes_the_segments() -> None:
    data = encode_segment([file_with()], table_id=TABLE, schema_id=7)
    assert decode_segment(data, SEGMENT_PATH, table_id=TABLE) == (file_with(schema_id=7),)


FLAWS = [
    ({"path": "data/x.parquet"}, "is not the path"),
    ({"path": data_path("_part.parquet")}, "is not the path"),
    ({"path": data_path(table=OTHER_TABLE)}, "belongs to table"),
    ({"format": "orc"}, "format"),
    ({"row_count": -1}, "impossible"),
    ({"size_bytes": 0}, "impossible"),
    ({"schema_id": -1}, "impossible"),
    ({"sequence": -1}, "negative"),
    ({"value_counts": {1: -2}}, "negative"),
    ({"value_counts": {0: 2}, "null_counts": {}}, "positive int32"),
    ({"null_counts": {1: 3}}, "more NULLs"),
    ({"split_offsets": (5, 5)}, "ascend"),
    ({"split_offsets": (100,)}, "inside the file"),
    ({"partition": {0: None}}, "partition id"),
    ({"crc32": 1}, "one of two checksums"),
    ({"footer_crc32": 1}, "one of two checksums"),
]


@pytest.mark.parametrize(("values", "reason"), FLAWS)
def test_no_segment_lists_a_file_with_a_flaw(
    values: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_with(**values)
    with pytest.raises(InvalidInput, match=reason) as refused:
        encode_segment([file], table_id=TABLE, schema_id=0)
    assert refused.value.kind == "bad_data"
    with monkeypatch.context() as patch:  # the bytes of another, careless writer
        patch.setattr(manifest, "flaw_of", lambda file, table_id: "")
        data = encode_segment([file], table_id=TABLE, schema_id=0)
    with pytest.raises(Corrupt, match=reason) as caught:
        decode_segment(data, SEGMENT_PATH, table_id=TABLE)
    assert (caught.value.kind, caught.value.path) == ("corrupt_manifest", SEGMENT_PATH)


@pytest.mark.parametrize(
    "name", ["column_sizes", "null_counts", "nan_counts", "lower_bounds", "upper_bounds"]
)
def test_nothing_is_said_of_a_column_that_the_file_lacks(name: str) -> None:
    said: dict[int, Any] = {2: b"" if name.endswith("bounds") else 0}
    with pytest.raises(InvalidInput, match=f"{name} has the column id 2"):
        encode_segment([file_with(**{name: said})], table_id=TABLE, schema_id=0)


def test_a_file_is_listed_once_and_a_segment_is_not_empty() -> None:
    with pytest.raises(InvalidInput, match="twice"):
        encode_segment([file_with(), file_with()], table_id=TABLE, schema_id=0)
    with pytest.raises(InvalidInput, match="at least one"):
        encode_segment([], table_id=TABLE, schema_id=0)


def raw_segment(
    change: Callable[[pa.RecordBatch], pa.RecordBatch], *, compression: str | None = None, batches: int = 1
) -> bytes:
    reader = pa.ipc.open_file(encode_segment([file_with()], table_id=TABLE, schema_id=0))
    batch = change(reader.get_batch(0))
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def with_column(batch: pa.RecordBatch, name: str, values: list[Any]) -> pa.RecordBatch:
    index = batch.schema.get_field_index(name)
    arrays = [*batch.columns]
    arrays[index] = pa.array(values, batch.schema.field(name).type)
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def statistics(**values: Any) -> dict[str, Any]:
    return {"id": 1, "value_count": 2, "size_bytes": None, "null_count": None} | values


HOSTILE: list[tuple[str, Callable[[], bytes], str]] = [
    ("empty", lambda: b"", "not an Arrow"),
    ("compressed", lambda: raw_segment(lambda b: b, compression="zstd"), "compressed"),
    ("two batches", lambda: raw_segment(lambda b: b, batches=2), "2 record batches"),
    ("no batch", lambda: raw_segment(lambda b: b, batches=0), "0 record batches"),
    ("no rows", lambda: raw_segment(lambda b: b.slice(0, 0)), "claims 0 files"),
    ("other order", lambda: raw_segment(lambda b: b.select(b.schema.names[::-1])), "not those"),
    ("fewer columns", lambda: raw_segment(lambda b: b.select(b.schema.names[:-1])), "not those"),
    ("revision", lambda: raw_segment(lambda b: b.replace_schema_metadata({"alpheus.manifest": "2"})), "revision 1"),
    ("null path", lambda: raw_segment(lambda b: with_column(b, "path", [None])), "path holds a null"),
    ("null list", lambda: raw_segment(lambda b: with_column(b, "columns", [None])), "columns holds a null"),
    ("null element", lambda: raw_segment(lambda b: with_column(b, "columns", [[None]])), "holds a null"),
    ("null id", lambda: raw_segment(lambda b: with_column(b, "columns", [[statistics(id=None)]])), "id holds a null"),
    ("ids twice", lambda: raw_segment(lambda b: with_column(b, "columns", [[statistics()] * 2])), "not ascend"),
    ("one checksum", lambda: raw_segment(lambda b: b.append_column("crc32", pa.array([1], pa.uint32()))), "not those"),
    ("name map", lambda: raw_segment(lambda b: with_column(b, "name_map", ["{}"])), "name map"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "reason"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE]
)
def test_hostile_segments_are_refused_by_name(make: Callable[[], bytes], reason: str) -> None:
    with pytest.raises(Corrupt, match=reason) as caught:
        decode_segment(make(), SEGMENT_PATH, table_id=TABLE)
    assert (caught.value.kind, caught.value.path) == ("corrupt_manifest", SEGMENT_PATH)


def test_checksums_that_take_more_than_32_bits_are_refused() -> None:
    for number in (-1, 1 << 32):
        with pytest.raises(InvalidInput, match="more than 32 bits"):
            encode_segment([file_with(crc32=number, footer_crc32=0)], table_id=TABLE, schema_id=0)


def test_a_segment_without_checksums_is_that_of_revision_1() -> None:
    """Readers of revision 1 accept twelve columns and no other, so the file has the bytes that it had before."""
    names = (
        "path format row_count size_bytes schema_id sequence columns split_offsets partition sort_order_id"
        " added_version name_map"
    )
    plain, summed = file_with(), file_with(path=data_path("part-1.parquet"), crc32=7, footer_crc32=0)
    data = encode_segment([plain], table_id=TABLE, schema_id=0)
    batch = pa.ipc.open_file(data).get_batch(0)
    assert batch.schema.names == names.split()
    mixed = encode_segment([plain, summed], table_id=TABLE, schema_id=0)
    found = pa.ipc.open_file(mixed).get_batch(0)
    assert found.schema.names == [*names.split(), "crc32", "footer_crc32"]
    assert found.column("crc32").to_pylist() == [None, 7]
    assert found.column("footer_crc32").to_pylist() == [None, 0]
    assert found.slice(0, 1).select(batch.schema.names).equals(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    assert sink.getvalue().to_pybytes() == data


def test_a_rewritten_segment_keeps_the_checksums_of_its_files() -> None:
    files = [file_with(path=data_path(f"part-{n}.parquet")) for n in range(3)]
    files[1] = msgspec.structs.replace(files[1], crc32=5, footer_crc32=6)
    contents = []
    for file in files:
        data = encode_segment([file], table_id=TABLE, schema_id=0)
        contents.append(Content.decode(data, SEGMENT_PATH, TABLE))
    one = Segment(
        path=SEGMENT_PATH, file_count=1, row_count=2, size_bytes=100, sha256=b"", segment_size_bytes=1
    )
    batches = [content.with_sequences(one) for content in contents]
    made = make_segment(batches, SEGMENT_PATH, TABLE, row_count=6, size_bytes=300)
    found = decode_segment(made.data, SEGMENT_PATH, table_id=TABLE)
    assert [(file.crc32, file.footer_crc32) for file in found] == [(None, None), (5, 6), (None, None)]
    rest = make_segment([batches[0], batches[2]], SEGMENT_PATH, TABLE, row_count=4, size_bytes=200)
    assert "crc32" not in pa.ipc.open_file(rest.data).schema.names, "none of its files has one"


def test_a_segment_of_another_table_is_refused() -> None:
    data = encode_segment([file_with()], table_id=TABLE, schema_id=0)
    with pytest.raises(Corrupt, match=OTHER_TABLE):
        decode_segment(data, SEGMENT_PATH, table_id=OTHER_TABLE)


def test_a_segment_above_the_size_limit_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_segment([file_with()], table_id=TABLE, schema_id=0)
    monkeypatch.setattr(fmt, "MANIFEST_SIZE_BYTES_MAX", len(data) - 1)
    with pytest.raises(Corrupt, match="at most"):
        decode_segment(data, SEGMENT_PATH, table_id=TABLE)
    with pytest.raises(InvalidInput, match="at most") as caught:
        encode_segment([file_with()], table_id=TABLE, schema_id=0)
    assert caught.value.kind == "too_large"


def test_mutated_segments_are_corrupt_or_still_true(lane_count: Callable[[int, int], int]) -> None:
    rng = random.Random(20)
    files = [
        file_with(path=data_path(f"part-{n}.parquet"), lower_bounds={1: b"abc"}, split_offsets=(4, 50))
        for n in range(3)
    ]
    whole = encode_segment(files, table_id=TABLE, schema_id=0)
    refused = 0
    for _ in range(lane_count(1_000, 200_000)):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[place] ^= 1 << rng.randrange(8)
                case 1:
                    data[place] = rng.choice([0, 1, 127, 128, 255])
                case 2:
                    data[place : place + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f"])
                case _:
                    del data[place : place + rng.choice([1, 8, 4096])]
            if not data:
                break
        try:
            decoded = decode_segment(bytes(data), SEGMENT_PATH, table_id=TABLE)
        except Corrupt:
            refused += 1
        else:
            encode_segment(decoded, table_id=TABLE, schema_id=0)  # every promise of DataFile holds
    assert refused > 100


# --- footers ---------------------------------------------------------------------------------------

COLUMNS = columns_of_schema(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("tags", pa.list_(pa.struct([pa.field("k", pa.string(), nullable=False)]))),
            pa.field("sizes", pa.map_(pa.string(), pa.int64())),
        ]
    )
)


def ids(number: int) -> dict[bytes, bytes]:
    return {columns.FIELD_ID: str(number).encode()}


def harvest(
    table: pa.Table, *, path: str = "", columns: tuple[Column, ...] = COLUMNS, **options: Any
) -> DataFile:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    return data_file_of_footer(path or data_path(), len(sink.getvalue()), metadata, columns)


def one(name: str, values: list[Any], kind: pa.DataType, number: int, *, nullable: bool = True) -> pa.Table:
    required = pa.field("id", pa.int64(), nullable=False, metadata=ids(1))
    field = pa.field(name, kind, nullable, metadata=ids(number))
    fields = [field] if number == 1 else [required, field]
    arrays = [pa.array(values, kind)]
    if number != 1:
        arrays.insert(0, pa.array(range(len(values)), pa.int64()))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def test_a_footer_as_spark_writes_it_is_taken() -> None:
    # Every column is optional, only struct fields have ids, and lists and maps use other names.
    element = pa.field("array", pa.struct([pa.field("k", pa.string(), metadata=ids(6))]))
    schema = pa.schema(
        [
            pa.field("renamed", pa.int32(), metadata=ids(1)),
            pa.field("tags", pa.list_(element), metadata=ids(4)),
            pa.field("sizes", pa.map_(pa.string(), pa.int32()), metadata=ids(7)),
        ]
    )
    table = pa.table([[1, 2], [[{"k": "a"}], [{"k": "b"}]], [[("a", 1)], None]], schema=schema)
    file = harvest(table, store_schema=False)
    assert file.value_counts == {1: 2, 6: 2, 8: 2, 9: 2}
    assert file.null_counts == {1: 0, 6: 0, 8: 1, 9: 1}
    assert decode_bound(COLUMNS[0], file.lower_bounds[1]) == 1
    assert len(file.lower_bounds[1]) == 8
    assert file.nan_counts == {}
    assert file.split_offsets == (4,)
    assert set(file.column_sizes) == {1, 6, 8, 9}


REFUSED: list[tuple[str, Callable[[], pa.Table], dict[str, Any], str, str]] = [
    ("no ids", lambda: pa.table({"id": pa.array([1], pa.int64())}), {}, "'id' has no field id", "field ids"),
    ("unknown id", lambda: one("x", [1], pa.int32(), 99), {}, "'x' has field id 99", ""),
    ("id twice", lambda: one("x", [1], pa.int64(), 1).append_column(
        pa.field("y", pa.int64(), metadata=ids(1)), [[1]]), {}, "'y' has field id 1", ""),
    ("narrower", lambda: one("name", [b"x"], pa.binary(), 2), {}, "'name' has type binary", "cast"),
    ("int96", lambda: one("at", [1], pa.timestamp("ns", "UTC"), 3),
     {"use_deprecated_int96_timestamps": True}, "'at' has timestamps of type INT96", "outputTimestampType"),
    ("nanoseconds", lambda: one("at", [1], pa.timestamp("ns", "UTC"), 3), {}, "'at' has type", "outputTimestampType"),
    ("no zone", lambda: one("at", [1], pa.timestamp("us"), 3), {}, "'at' has type", "cast"),
    ("required missing", lambda: pa.table([["a"]], schema=pa.schema([pa.field("name", pa.string(), metadata=ids(2))])),
     {}, "lacks the required column 'id'", ""),
    ("required with nulls", lambda: one("id", [1, None], pa.int64(), 1), {}, "'id' is required, but holds 1 NULLs",
     "NOT NULL"),
    ("required unproved", lambda: one("id", [1], pa.int64(), 1), {"write_statistics": False}, "rule out NULLs", ""),
    ("wrong element id", lambda: one("tags", [[]], pa.list_(pa.field("element", pa.struct(
        [pa.field("k", pa.string(), False, metadata=ids(6))]), metadata=ids(9))), 4), {}, "'?tags.element has", ""),
    ("struct field without id", lambda: one("tags", [[]], pa.list_(pa.struct([pa.field("k", pa.string(), False)])), 4),
     {}, "'tags.element.k' has no field id", ""),
    ("list for a map", lambda: one("sizes", [[]], pa.list_(pa.int64()), 7), {}, "'sizes' has type list", ""),
    ("leading underscore", lambda: one("id", [1], pa.int64(), 1), {"path": data_path("_a.parquet")}, "this name", ""),
    ("glob", lambda: one("id", [1], pa.int64(), 1), {"path": data_path("a[1].parquet")}, "this name", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "options", "reason", "hint"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_files_that_some_reader_would_misread_are_refused(
    make: Callable[[], pa.Table], options: dict[str, Any], reason: str, hint: str
) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        harvest(make(), **options)
    assert caught.value.kind == "bad_data"
    assert hint in caught.value.hint
    assert caught.value.path in str(caught.value)


@pytest.mark.parametrize(
    ("stored", "table", "fits"),
    [
        (pa.int16(), pa.int64(), True), (pa.int64(), pa.int32(), False), (pa.uint16(), pa.int32(), False),
        (pa.float32(), pa.float64(), True), (pa.float64(), pa.float32(), False), (pa.int32(), pa.float64(), False),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), True), (pa.decimal128(5, 1), pa.decimal128(9, 2), False),
        (pa.decimal128(9, 2), pa.decimal128(5, 2), False), (pa.timestamp("ms"), pa.timestamp("us"), True),
        (pa.binary(3), pa.binary(3), True), (pa.binary(3), pa.binary(4), False), (pa.string(), pa.binary(), False),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), True), (pa.date32(), pa.date32(), True),
        (pa.int32(), pa.date32(), False), (pa.struct([("a", pa.int32())]), pa.int32(), False),
        (pa.int32(), pa.struct([("a", pa.int32())]), False),
    ],
)  # fmt: skip
def test_only_what_reads_without_loss_passes_for_the_tables_type(
    stored: pa.DataType, table: pa.DataType, fits: bool
) -> None:
    columns = columns_of_schema(pa.schema([("c", table)]))
    field = pa.field("c", stored, metadata=ids(1))
    data = pa.table([pa.nulls(2, stored)], schema=pa.schema([field]))
    if fits:
        assert harvest(data, columns=columns).null_counts == {1: 2}
    else:
        with pytest.raises(InvalidInput, match="does not read as"):
            harvest(data, columns=columns)


def test_bounds_of_narrower_files_are_in_the_tables_unit() -> None:
    columns = columns_of_schema(pa.schema([("c", pa.timestamp("us"))]))
    field = pa.field("c", pa.timestamp("ms"), metadata=ids(1))
    data = pa.table([pa.array([5, 7], pa.timestamp("ms"))], schema=pa.schema([field]))
    file = harvest(data, columns=columns)
    assert decode_bound(columns[0], file.lower_bounds[1]) == 5000
    assert decode_bound(columns[0], file.upper_bounds[1]) == 7000


@pytest.mark.parametrize("as_integer", [True, False])
def test_decimal_bounds_do_not_depend_on_the_physical_type(as_integer: bool) -> None:
    values = [Decimal("-4.50"), Decimal("1.23")]
    file, column = footer_of(values, pa.decimal128(9, 2), store_decimal_as_integer=as_integer)
    assert [decode_bound(column, b) for b in (file.lower_bounds[1], file.upper_bounds[1])] == values


# --- checks of a commit ----------------------------------------------------------------------------

TABLE_DEF = TableDef(id=TABLE, columns=COLUMNS, next_column_id=10, schema_id=3)
GOOD = {"path": data_path(), "row_count": 2, "size_bytes": 100, "schema_id": 3}


def committed(**values: Any) -> DataFile:
    counts = {"value_counts": {1: 2, 6: 5}, "null_counts": {1: 0}, "lower_bounds": {1: b"\0" * 8}}
    return DataFile(**(GOOD | counts | values))


def commit(*files: DataFile, **claims: int) -> None:
    segment = Segment(
        path=SEGMENT_PATH,
        file_count=claims.get("file_count", len(files)),
        row_count=claims.get("row_count", sum(file.row_count for file in files)),
        size_bytes=claims.get("size_bytes", sum(file.size_bytes for file in files)),
        sha256=b"",
        segment_size_bytes=1,
    )
    check_segment(files, segment, TABLE_DEF, transaction_id=TRANSACTION)


def test_a_true_segment_passes() -> None:
    commit(committed(), committed(path=data_path("b.parquet"), value_counts={1: 2}, schema_id=None))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"value_counts": {1: 2, 99: 2}}, "column id 99"),
        ({"value_counts": {1: 2, 4: 2}}, "column id 4"),  # the list itself is not a leaf
        ({"value_counts": {6: 2}, "null_counts": {}, "lower_bounds": {}}, "required column 'id'"),
        ({"value_counts": {1: 1}}, "1 values in 2 rows"),
        ({"null_counts": {1: 1}}, "holds 1 NULLs"),
        ({"lower_bounds": {1: b"123"}}, "a bound of 3 bytes"),
        ({"value_counts": {1: 2, 2: 2}, "upper_bounds": {2: b"\xff"}}, "'name'"),
        ({"sequence": 4}, "sequence"),
        ({"added_version": 4}, "version"),
        ({"partition": {1: b""}}, "partition"),
        ({"sort_order_id": 1}, "sort order"),
        ({"schema_id": 4}, "the table is at 3"),
        ({"path": data_path(table=OTHER_TABLE)}, "belongs to table"),
    ],
)
def test_what_a_commit_refuses(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        commit(committed(**values))
    assert caught.value.kind == "bad_data"


def test_files_of_another_transaction_may_be_collected_at_any_time() -> None:
    with pytest.raises(Expired, match=OTHER_TRANSACTION) as caught:
        commit(committed(path=data_path(transaction=OTHER_TRANSACTION)))
    assert caught.value.kind == "upload_expired"


@pytest.mark.parametrize("claim", ["file_count", "row_count", "size_bytes"])
def test_a_segment_must_tell_the_truth_in_its_sums(claim: str) -> None:
    with pytest.raises(InvalidInput, match="but its files have") as caught:
        commit(committed(), **{claim: 77})
    assert caught.value.kind == "bad_data"


@given(SCHEMAS)
def test_ids_are_stripped_everywhere_and_nothing_else(schema: pa.Schema) -> None:
    noted = pa.schema([f.with_metadata({"note": "kept"}) for f in schema], metadata={"owner": "me"})
    assume(len(schema) > 0)
    assert strip_field_ids(noted).equals(noted, check_metadata=True)
    assert (
        b"PARQUET"
        not in strip_field_ids(schema_of_columns(columns_of_schema(schema))).serialize().to_pybytes()
    )
