"""Native tables: schemas, data files, and the manifest segments that list them (FORMAT.md, "Native tables").

Pure: bytes and values. A table's column is a `Column`; its Arrow type follows from it and back, and its id is
the Parquet field id. A segment is one Arrow file with one row a data file; `decode_segment` is a gate for
hostile bytes, as `alpheus_journal.node` is for nodes.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, Expired, InvalidInput
from alpheus_journal.node import _Malformed, _rows_claimed
from alpheus_journal.objects import Column, Segment, TableDef, walk_columns

FIELD_ID = b"PARQUET:field_id"
"""Key of Arrow field metadata under which pyarrow reads and writes Parquet field ids."""
SEGMENT_FILES_MAX = 1 << 20
BOUND_CODE_POINTS_MAX = 64
"""Longer text bounds are cut (bytes for binary): the lower is a prefix, the upper the next value above it."""

_COLUMN_DEPTH_MAX = 32
_DECIMAL_PRECISION_MAX = 38

# --- schemas ---------------------------------------------------------------------------------------


def _bad_schema(path: str, reason: str, hint: str = "") -> InvalidInput:
    return InvalidInput(f"column {path!r} {reason}", kind="bad_schema", hint=hint)


def columns_of_schema(schema: pa.Schema, *, first_id: int = 1) -> tuple[Column, ...]:
    """The columns of a new native table, ids from `first_id` up, depth first (parent before children).

    All text types become VARCHAR, all lists LIST, dictionaries their value type; timestamps of seconds,
    milliseconds and microseconds become TIMESTAMP6 (with a zone TIMESTAMPTZ6, stored as UTC), which is what
    every Spark reads. Raises InvalidInput (`bad_schema`) naming the column for a type that Spark cannot read
    or that would lose values, for no columns at all, and for names that are empty, hold control characters
    or differ from a sibling's in case only.
    """
    ids = itertools.count(first_id)
    columns = tuple(_column(field, field.name, ids, 1) for field in schema)
    _check_names(columns, "")
    return columns


def _check_names(columns: Sequence[Column], path: str) -> None:
    if not columns and not path:
        raise InvalidInput("a table needs at least one column", kind="bad_schema")
    if not columns:
        raise _bad_schema(path, "has no fields")
    seen: dict[str, str] = {}
    for column in columns:
        where = f"{path}.{column.name}" if path else column.name
        if not column.name:
            raise _bad_schema(where, "has an empty name")
        if any(ord(c) < 0x20 or ord(c) == 0x7F or 0xD800 <= ord(c) < 0xE000 for c in column.name):
            raise _bad_schema(where, "has a control character or lone surrogate in its name")
        if len(column.name.encode()) > fmt.NAME_SIZE_BYTES_MAX:
            raise _bad_schema(where[:80], f"has a name of more than {fmt.NAME_SIZE_BYTES_MAX} bytes")
        other = seen.get(column.name.lower())
        if other == column.name:
            raise _bad_schema(where, "is there twice")
        if other is not None:
            raise _bad_schema(
                where, f"differs from {other!r} in case only", "Spark takes them for one column"
            )
        seen[column.name.lower()] = column.name


def _column(field: pa.Field, path: str, ids: Iterator[int], depth: int) -> Column:
    if depth > _COLUMN_DEPTH_MAX:
        raise _bad_schema(path[:200], f"is nested more than {_COLUMN_DEPTH_MAX} levels deep")
    number, kind, deeper = next(ids), _plain(field.type), depth + 1

    def child(inner: pa.Field, name: str, nullable: bool) -> Column:
        return _column(pa.field(name, inner.type, nullable), f"{path}.{name}", ids, deeper)

    def column(type_name: str, **rest: Any) -> Column:
        return Column(id=number, name=field.name, type=type_name, nullable=field.nullable, **rest)

    if pa.types.is_struct(kind):
        inner = [kind.field(index) for index in range(kind.num_fields)]
        fields = tuple(child(f, f.name, f.nullable) for f in inner)
        _check_names(fields, path)
        return column("STRUCT", fields=fields)
    if _is_list(kind):
        return column("LIST", element=child(kind.value_field, "element", kind.value_field.nullable))
    if pa.types.is_map(kind):
        key = child(kind.key_field, "key", False)
        return column("MAP", key=key, value=child(kind.item_field, "value", kind.item_field.nullable))
    type_name, properties = _leaf_type(kind, path)
    return column(type_name, properties=properties)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values, whatever the encoding."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Of variable length."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


_SIMPLE: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "INT2": pa.int16(),
    "INT4": pa.int32(),
    "INT8": pa.int64(),
    "FLOAT4": pa.float32(),
    "FLOAT8": pa.float64(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP6": pa.timestamp("us"),
    "TIMESTAMPTZ6": pa.timestamp("us", "UTC"),
}
_SIMPLE_NAMES = {kind: name for name, kind in _SIMPLE.items()}


def _leaf_type(kind: pa.DataType, path: str) -> tuple[str, dict[str, str]]:
    if kind in _SIMPLE_NAMES:
        return _SIMPLE_NAMES[kind], {}
    if is_text(kind):
        return "VARCHAR", {}
    if is_bytes(kind):
        return "BINARY", {}
    if pa.types.is_decimal(kind):
        if kind.precision > _DECIMAL_PRECISION_MAX or not 0 <= kind.scale <= kind.precision:
            raise _bad_schema(
                path, f"has type {kind}", "decimals have up to 38 digits, 0 to all of them after the point"
            )
        return "DECIMAL", {"precision": str(kind.precision), "scale": str(kind.scale)}
    if pa.types.is_fixed_size_binary(kind):
        if kind.byte_width < 1:
            raise _bad_schema(path, f"has type {kind}", "a fixed length is at least one byte")
        return "FIXED", {"length": str(kind.byte_width)}
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return ("TIMESTAMP6" if kind.tz is None else "TIMESTAMPTZ6"), {}
    raise _bad_schema(path, f"has type {kind}, which no native table can hold", _refusal_hint(kind))


def _refusal_hint(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "Spark has microseconds: cast it to timestamp('us')"
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return "Spark cannot read it: cast it to an integer or text"
    if pa.types.is_int8(kind):
        return "the smallest integer is int16: cast it"
    if pa.types.is_unsigned_integer(kind):
        return "integers are signed: cast it to the next wider signed type, uint64 to decimal128(20, 0)"
    if pa.types.is_float16(kind):
        return "cast it to float32"
    if pa.types.is_date64(kind):
        return "cast it to date32"
    if pa.types.is_null(kind):
        return "it has no type: name one in the schema"
    return "cast it to a type that Spark has"


def schema_of_columns(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema of a native table; every field, nested ones too, has its id as `FIELD_ID` metadata.

    Raises InvalidInput (`bad_schema`) naming the column for anything that no native table can hold: the check
    of columns that come from elsewhere.
    """
    _check_names(columns, "")
    return pa.schema([_field(column, column.name, 1) for column in columns])


def _field(column: Column, path: str, depth: int) -> pa.Field:
    if depth > _COLUMN_DEPTH_MAX:
        raise _bad_schema(path[:200], f"is nested more than {_COLUMN_DEPTH_MAX} levels deep")

    def child(inner: Column) -> pa.Field:
        return _field(inner, f"{path}.{inner.name}", depth + 1)

    kind: pa.DataType
    if column.type == "STRUCT":
        _check_names(column.fields, path)
        kind = pa.struct([child(inner) for inner in column.fields])
    elif column.type == "LIST" and column.element is not None:
        kind = pa.list_(child(column.element).with_name("element"))
    elif column.type == "MAP" and column.key is not None and column.value is not None:
        key = child(column.key).with_name("key").with_nullable(False)
        kind = pa.map_(key, child(column.value).with_name("value"))
    else:
        kind = _leaf_arrow_type(column, path)
    return pa.field(column.name, kind, column.nullable, metadata={FIELD_ID: str(column.id)})


def _leaf_arrow_type(column: Column, path: str) -> pa.DataType:
    if column.children():
        raise _bad_schema(path, f"of type {column.type} has nested columns that do not fit it")
    if column.type in _SIMPLE:
        return _SIMPLE[column.type]
    if column.type == "DECIMAL":
        precision = _number(column, "precision", path, 1, _DECIMAL_PRECISION_MAX)
        return pa.decimal128(precision, _number(column, "scale", path, 0, precision))
    if column.type == "FIXED":
        return pa.binary(_number(column, "length", path, 1, (1 << 31) - 1))
    raise _bad_schema(path, f"has type {column.type}, which this release cannot store in a native table")


def _number(column: Column, name: str, path: str, low: int, high: int) -> int:
    text = column.properties.get(name, "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
    if not low <= number <= high:
        raise _bad_schema(path, f"of type {column.type} needs the property {name!r}, {low} to {high}")
    return number


def strip_field_ids(schema: pa.Schema) -> pa.Schema:
    """`schema` without the ids, nested fields too: what users see. Other metadata stays."""
    return pa.schema([_stripped(field) for field in schema], metadata=schema.metadata)


def _stripped(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_stripped(kind.field(index)) for index in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        kind = pa.list_(_stripped(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_stripped(kind.value_field))
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(_stripped(kind.value_field), kind.list_size)
    elif pa.types.is_map(kind):
        kind = pa.map_(_stripped(kind.key_field), _stripped(kind.item_field))
    rest = {key: value for key, value in (field.metadata or {}).items() if key != FIELD_ID}
    return pa.field(field.name, kind, field.nullable, metadata=rest or None)


def field_id(field: pa.Field) -> int | None:
    """The Parquet field id that an Arrow field carries; None when it has none that is a positive int32."""
    text = (field.metadata or {}).get(FIELD_ID, b"")
    if not text.isdigit() or len(text) > 10:
        return None
    number = int(text)
    return number if 0 < number < 1 << 31 else None


# --- bounds ----------------------------------------------------------------------------------------

_INTEGER_BOUNDS = frozenset({"INT2", "INT4", "INT8", "DATE", "TIMESTAMP6", "TIMESTAMPTZ6"})
_EIGHT_BYTES = frozenset({"INT8", "TIMESTAMP6", "TIMESTAMPTZ6"})
# A type may have been widened since the file came in, so the narrower sizes stay valid.
_BOUND_SIZES: dict[str, tuple[int, ...]] = {
    "BOOLEAN": (1,), "INT2": (4,), "INT4": (4,), "INT8": (4, 8), "FLOAT4": (4,), "FLOAT8": (4, 8),
    "DATE": (4,), "TIMESTAMP6": (8,), "TIMESTAMPTZ6": (8,), "DECIMAL": tuple(range(1, 17)),
}  # fmt: skip

Bound = bool | int | float | str | bytes | Decimal


def encode_bound(column: Column, value: bool | int | float | str | bytes) -> bytes:
    """Iceberg's single-value binary serialization (its specification, appendix D).

    `value`: days for DATE, microseconds since the epoch for timestamps, the unscaled integer for DECIMAL.
    """
    if column.type == "BOOLEAN":
        return b"\x01" if value else b"\x00"
    if column.type in _INTEGER_BOUNDS:
        return struct.pack("<q" if column.type in _EIGHT_BYTES else "<i", value)
    if column.type in ("FLOAT4", "FLOAT8"):
        return struct.pack("<f" if column.type == "FLOAT4" else "<d", value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    number = int(value)
    return number.to_bytes(((number if number >= 0 else ~number).bit_length() + 8) // 8, "big", signed=True)


def decode_bound(column: Column, data: bytes) -> Bound:
    """The value of a stored bound, in the units of `encode_bound` but a Decimal for DECIMAL.

    Raises ValueError when `data` is no bound of a column of this type.
    """
    sizes = _BOUND_SIZES.get(column.type)
    if sizes is not None and len(data) not in sizes:
        raise ValueError(f"a bound of {len(data)} bytes is none of type {column.type}")
    if column.type == "BOOLEAN":
        return data != b"\x00"
    if column.type in _INTEGER_BOUNDS:
        return int.from_bytes(data, "little", signed=True)
    if column.type in ("FLOAT4", "FLOAT8"):
        number: float = struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
        if number != number:
            raise ValueError("a bound is NaN")
        return number
    if column.type == "DECIMAL":
        scale = _number(column, "scale", column.name, 0, _DECIMAL_PRECISION_MAX)
        unscaled = int.from_bytes(data, "big", signed=True)
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
    if column.type == "VARCHAR":
        return data.decode()
    if column.type in ("BINARY", "FIXED"):
        return data
    raise ValueError(f"columns of type {column.type} have no bounds")


def _text_upper(text: str) -> str | None:
    """The text itself, or when it is cut the smallest text above all that begins as it does."""
    if len(text) <= BOUND_CODE_POINTS_MAX:
        return text
    prefix = text[:BOUND_CODE_POINTS_MAX]
    return fmt.after_prefix(prefix) if prefix.strip("\U0010ffff") else None


def _bytes_upper(value: bytes) -> bytes | None:
    if len(value) <= BOUND_CODE_POINTS_MAX:
        return value
    prefix = value[:BOUND_CODE_POINTS_MAX].rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None


# --- data files ------------------------------------------------------------------------------------


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """One data file of a native table, and what is known of its values.

    The dicts go by field id of leaf columns. A key in `value_counts` says that the file holds that column;
    the others have keys of those only, a missing key says "not known". Bounds are in `encode_bound`'s form
    and may be wider than the values. No value lies outside them except NaN, of which `nan_counts` tells: who
    orders NaN above all numbers, as Spark does, may trust an upper bound only where that count is 0.
    """

    path: str  # data/<table id>/<transaction id>/<write id>/<name>.parquet
    format: str = "parquet"
    row_count: int
    size_bytes: int
    schema_id: int | None = None  # None only before it is in a segment: takes the segment's
    column_sizes: dict[int, int] = {}  # bytes on storage
    value_counts: dict[int, int] = {}  # NULL and NaN included; below lists, entries
    null_counts: dict[int, int] = {}  # below lists and structs, also where a parent is NULL or empty
    nan_counts: dict[int, int] = {}
    lower_bounds: dict[int, bytes] = {}
    upper_bounds: dict[int, bytes] = {}
    split_offsets: tuple[int, ...] = ()  # where row groups begin, ascending
    sequence: int | None = None  # at which its rows came in; None: the segment's
    partition: dict[int, bytes | None] = {}  # reserved: by column id, in `encode_bound`'s form
    sort_order_id: int | None = None  # reserved
    added_version: int | None = None  # reserved: the version that added it, where a merge keeps it


_STATISTICS = pa.struct(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("value_count", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64()),
        pa.field("null_count", pa.int64()),
        pa.field("nan_count", pa.int64()),
        pa.field("lower", pa.binary()),
        pa.field("upper", pa.binary()),
    ]
)
_PARTITION = pa.struct([pa.field("id", pa.int32(), nullable=False), pa.field("value", pa.binary())])
SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("path", pa.utf8(), nullable=False),
        pa.field("format", pa.utf8(), nullable=False),
        pa.field("row_count", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("schema_id", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64()),
        pa.field("columns", pa.list_(pa.field("element", _STATISTICS, nullable=False)), nullable=False),
        pa.field("split_offsets", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False),
        pa.field("partition", pa.list_(pa.field("element", _PARTITION, nullable=False)), nullable=False),
        pa.field("sort_order_id", pa.int32()),
        pa.field("added_version", pa.int64()),
        pa.field("name_map", pa.utf8()),
    ]
)
"""Of a segment file; see `encode_segment`."""

_REVISION = b"alpheus.manifest"
_TABLE = b"alpheus.table_id"


def _flaw(file: DataFile, table_id: str) -> str:
    """Why `file` can be in no segment of the table, or empty."""
    try:
        owner = fmt.parse_data_path(file.path)[0]
    except Corrupt as error:
        return error.message
    if owner != table_id:
        return f"it belongs to table {owner}"
    if file.format != "parquet":
        return f"it has the format {file.format[:80]!r}"
    if file.row_count < 0 or file.size_bytes <= 0 or (file.schema_id or 0) < 0:
        return "its row count, size or schema id is impossible"
    if any(number is not None and number < 0 for number in (file.sequence, file.added_version)):
        return "its sequence or version is negative"
    for what, group in (("column", file.value_counts), ("partition", file.partition)):
        if any(not 0 < number < 1 << 31 for number in group):
            return f"a {what} id is no positive int32"
    for name in ("column_sizes", "null_counts", "nan_counts", "lower_bounds", "upper_bounds"):
        strange = getattr(file, name).keys() - file.value_counts.keys()
        if strange:
            return f"{name} has the column id {min(strange)}, of which there is no value count"
    for counts in (file.column_sizes, file.value_counts, file.null_counts, file.nan_counts):
        if any(count < 0 for count in counts.values()):
            return "a count is negative"
    for number, count in file.value_counts.items():
        if file.null_counts.get(number, 0) + file.nan_counts.get(number, 0) > count:
            return f"column id {number} has more NULLs and NaNs than values"
    offsets = (-1, *file.split_offsets, file.size_bytes)
    if file.split_offsets and any(a >= b for a, b in itertools.pairwise(offsets)):
        return "its split offsets do not ascend inside the file"
    return ""


def encode_segment(files: Sequence[DataFile], *, table_id: str, schema_id: int) -> bytes:
    """The bytes of a manifest segment: one Arrow IPC file, one record batch, no compression, a row a file.

    Columns, in this order (`SEGMENT_SCHEMA`): `path`, `format` utf8; `row_count`, `size_bytes` (bytes),
    `schema_id` int64; `sequence` int64 or null; `columns`, a list ascending by id of (`id` int32,
    `value_count` int64, then each or null `size_bytes`, `null_count`, `nan_count` int64, `lower`, `upper`
    binary); `split_offsets`, a list of int64 byte positions; and reserved ones: `partition`, a list of (`id`
    int32, `value` binary or null), `sort_order_id` int32, `added_version` int64, `name_map` utf8, null in
    this revision. Schema metadata: `alpheus.manifest` = `1` and `alpheus.table_id`.

    `schema_id` is that of files that name none. Equal values give equal bytes. Raises InvalidInput:
    `bad_data` naming a file that no segment of this table can list, `too_large` above the format's limit.
    """
    if not files:
        raise InvalidInput("a manifest segment lists at least one file", kind="bad_data")
    if len(files) > SEGMENT_FILES_MAX:
        raise InvalidInput(
            f"{len(files)} files in one manifest segment, {SEGMENT_FILES_MAX} at most", kind="too_large"
        )
    seen: set[str] = set()
    for file in files:
        flaw = _flaw(file, table_id) or ("it is listed twice" if file.path in seen else "")
        if flaw:
            raise _bad_file(file.path, flaw)
        seen.add(file.path)
    schema = SEGMENT_SCHEMA.with_metadata({_REVISION: b"1", _TABLE: table_id.encode()})
    arrays = [
        pa.array([file.path for file in files], pa.utf8()),
        pa.array([file.format for file in files], pa.utf8()),
        pa.array([file.row_count for file in files], pa.int64()),
        pa.array([file.size_bytes for file in files], pa.int64()),
        pa.array([schema_id if f.schema_id is None else f.schema_id for f in files], pa.int64()),
        pa.array([file.sequence for file in files], pa.int64()),
        _statistics_array(files),
        pa.array([list(file.split_offsets) for file in files], schema.field("split_offsets").type),
        pa.array(
            [[{"id": key, "value": file.partition[key]} for key in sorted(file.partition)] for file in files],
            schema.field("partition").type,
        ),
        pa.array([file.sort_order_id for file in files], pa.int32()),
        pa.array([file.added_version for file in files], pa.int64()),
        pa.nulls(len(files), pa.utf8()),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    if len(data) > fmt.MANIFEST_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"a manifest segment of {len(data)} bytes, {fmt.MANIFEST_SIZE_BYTES_MAX} at most",
            kind="too_large",
            hint="write larger files, or fewer in one operation",
        )
    return data


def _statistics_array(files: Sequence[DataFile]) -> pa.Array:
    offsets = [0]
    rows: list[tuple[DataFile, int]] = []
    for file in files:
        rows += [(file, number) for number in sorted(file.value_counts)]
        offsets.append(len(rows))
    children = [
        pa.array([number for _, number in rows], pa.int32()),
        pa.array([file.value_counts[number] for file, number in rows], pa.int64()),
        pa.array([file.column_sizes.get(number) for file, number in rows], pa.int64()),
        pa.array([file.null_counts.get(number) for file, number in rows], pa.int64()),
        pa.array([file.nan_counts.get(number) for file, number in rows], pa.int64()),
        pa.array([file.lower_bounds.get(number) for file, number in rows], pa.binary()),
        pa.array([file.upper_bounds.get(number) for file, number in rows], pa.binary()),
    ]
    structs = pa.StructArray.from_arrays(children, fields=list(_STATISTICS))
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), structs, type=SEGMENT_SCHEMA.field("columns").type
    )


class _Bad(Exception):
    """The reason why bytes are no segment; `decode_segment` turns it into Corrupt with the path."""


def decode_segment(data: bytes, path: str, *, table_id: str) -> tuple[DataFile, ...]:
    """The files that a segment of the table lists, in stored order; `path` names it in errors only.

    Every promise of `DataFile` holds afterwards, all files belong to the table, none is there twice. Whether
    the table has the column ids is `check_segment`'s question. Raises Corrupt (`corrupt_manifest`) for
    anything else, before more memory than a small multiple of the file is taken.
    """
    try:
        return _files(_batch(data, table_id), table_id)
    except (_Bad, _Malformed) as error:
        raise Corrupt(f"manifest segment {path}: {error}", kind="corrupt_manifest", path=path) from error


def _batch(data: bytes, table_id: str) -> pa.RecordBatch:
    """The record batch, after every check that bytes need before a value may be touched, in the order of
    FORMAT.md, "Untrusted input"."""
    if len(data) > fmt.MANIFEST_SIZE_BYTES_MAX:
        raise _Bad(f"{len(data)} bytes, {fmt.MANIFEST_SIZE_BYTES_MAX} at most")
    try:
        rows = _rows_claimed(data)
    except struct.error:
        raise _Bad("an offset leads outside the file") from None
    # A row takes five numbers of 8 bytes and five offsets of 4 at least.
    if not 0 < rows <= min(SEGMENT_FILES_MAX, len(data) // 60):
        raise _Bad(f"claims {rows} files, which it cannot list")
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        if not reader.schema.equals(SEGMENT_SCHEMA):
            raise _Bad("the columns are not those of a segment")
        metadata = reader.schema.metadata or {}
        if metadata.get(_REVISION) != b"1" or metadata.get(_TABLE) != table_id.encode():
            raise _Bad(f"it is no segment of revision 1 of table {table_id}")
        batch = reader.get_batch(0)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, EOFError) as error:
        raise _Bad(f"no valid Arrow file: {str(error)[:200]}") from error
    if batch.num_rows != rows:
        raise _Bad("the header contradicts itself")
    for field, array in zip(SEGMENT_SCHEMA, batch.columns, strict=True):
        _refuse_nulls(array, field)
    return batch


def _refuse_nulls(array: pa.Array, field: pa.Field) -> None:
    """Arrow does not hold a file to its own "not null"."""
    if not field.nullable and array.null_count:
        raise _Bad(f"{field.name} holds a null")
    if pa.types.is_list(field.type):
        _refuse_nulls(array.flatten(), field.type.value_field)
    elif pa.types.is_struct(field.type):
        for index in range(field.type.num_fields):
            _refuse_nulls(array.field(index), field.type.field(index))


def _lists(array: pa.Array) -> Iterator[slice]:
    """Where each list lies in `array.flatten()`."""
    start = 0
    for length in array.value_lengths().to_pylist():
        yield slice(start, start + length)
        start += length


def _files(batch: pa.RecordBatch, table_id: str) -> tuple[DataFile, ...]:
    if batch.column("name_map").null_count != batch.num_rows:
        raise _Bad("it has a name map, which this release does not know; a newer one may read it")
    plain = {
        name: batch.column(name).to_pylist()
        for name in ("path", "format", "row_count", "size_bytes", "schema_id", "sequence",
                     "sort_order_id", "added_version")
    }  # fmt: skip
    offsets = batch.column("split_offsets").flatten().to_pylist()
    statistics = [
        batch.column("columns").flatten().field(index).to_pylist() for index in range(_STATISTICS.num_fields)
    ]
    partitions = [batch.column("partition").flatten().field(index).to_pylist() for index in range(2)]
    files: list[DataFile] = []
    seen: set[str] = set()
    for row, (of_columns, of_offsets, of_partition) in enumerate(
        zip(
            _lists(batch.column("columns")),
            _lists(batch.column("split_offsets")),
            _lists(batch.column("partition")),
            strict=True,
        )
    ):
        ids, values, *optional = (column[of_columns] for column in statistics)
        sizes, nulls, nans, lowers, uppers = (_known(ids, column) for column in optional)
        keys = partitions[0][of_partition]
        if any(a >= b for group in (ids, keys) for a, b in itertools.pairwise(group)):
            raise _Bad(f"file {row}: column ids do not ascend")
        file = DataFile(
            **{name: column[row] for name, column in plain.items()},
            column_sizes=sizes,
            value_counts=dict(zip(ids, values, strict=True)),
            null_counts=nulls,
            nan_counts=nans,
            lower_bounds=lowers,
            upper_bounds=uppers,
            split_offsets=tuple(offsets[of_offsets]),
            partition=dict(zip(keys, partitions[1][of_partition], strict=True)),
        )
        flaw = _flaw(file, table_id) or ("it is listed twice" if file.path in seen else "")
        if flaw:
            raise _Bad(f"file {file.path[:200]!r}: {flaw}")
        seen.add(file.path)
        files.append(file)
    return tuple(files)


def _known(ids: list[int], values: list[Any]) -> dict[int, Any]:
    return {number: value for number, value in zip(ids, values, strict=True) if value is not None}


def segment_of(
    files: Sequence[DataFile], *, path: str, table_id: str, schema_id: int
) -> tuple[bytes, Segment]:
    """The bytes to put at `path` (`format.manifest_path`), and the reference that an operation carries."""
    data = encode_segment(files, table_id=table_id, schema_id=schema_id)
    return data, Segment(
        path=fmt.check_manifest_pointer(path, table_id),
        file_count=len(files),
        row_count=sum(file.row_count for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        sha256=hashlib.sha256(data).digest(),
        segment_size_bytes=len(data),
    )


def _bad_file(path: str, reason: str, hint: str = "") -> InvalidInput:
    return InvalidInput(f"data file {path[:300]}: {reason}", kind="bad_data", path=path[:300], hint=hint)


# --- what a Parquet footer says --------------------------------------------------------------------


_MICROSECONDS = "write with spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS"


class _Leaf(msgspec.Struct, frozen=True):
    """One leaf column of a file: the table's column, its dotted name there, the file's type of it."""

    column: Column
    path: str
    kind: pa.DataType


def data_file_of_footer(
    path: str,
    size_bytes: int,
    metadata: pq.FileMetaData,
    columns: tuple[Column, ...],
    *,
    schema_id: int | None = None,
    nan_counts: Mapping[int, int] | None = None,
) -> DataFile:
    """What the footer of the Parquet file at `path` says of it, for a table of these columns.

    Top-level columns and struct fields go by field id; list elements and map keys and values by place, since
    Spark gives them none. `nan_counts`: exact counts, from who saw the values (footers have none).

    Raises InvalidInput (`bad_data`) naming file and column for a file that some reader would misread: field
    ids missing, unknown or doubled, a type that cannot be read as the table's, a required column that is
    missing or that may hold NULLs, a name that Spark skips, column chunks in other files.
    """
    try:
        fmt.parse_data_path(path)
    except Corrupt as error:
        raise _bad_file(path, "Spark would not read it under this name", error.hint) from None
    try:
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _bad_file(path, f"its schema cannot be read: {str(error)[:200]}") from None
    for index in range(metadata.num_columns):
        leaf = metadata.schema.column(index)
        if leaf.physical_type == "INT96":
            raise _bad_file(path, f"column {leaf.path!r} has timestamps of type INT96", _MICROSECONDS)
    optional: list[tuple[Column, str]] = []
    leaves = list(_struct_leaves(path, list(schema), columns, "", optional))
    if len(leaves) != metadata.num_columns:
        raise _bad_file(path, f"its schema has {metadata.num_columns} leaf columns, {len(leaves)} are known")
    file = _harvest(path, size_bytes, metadata, leaves, schema_id, dict(nan_counts or {}))
    missing = _missing_required(columns, file.value_counts, "")
    if missing:
        raise _bad_file(path, f"it lacks the required column {missing!r}")
    for column, where in optional:
        # A leaf without NULLs proves that none of its parents is NULL.
        if all(file.null_counts.get(leaf.id) != 0 for leaf in walk_columns([column])):
            count = file.null_counts.get(column.id)
            raise _bad_file(
                path,
                f"column {where!r} is required, but "
                + (f"holds {count} NULLs" if count else "the file does not rule out NULLs in it"),
                "declare it NOT NULL in what writes the file, or remove the NULLs",
            )
    return file


def _struct_leaves(
    path: str, fields: list[pa.Field], columns: Sequence[Column], prefix: str,
    optional: list[tuple[Column, str]],
) -> Iterator[_Leaf]:  # fmt: skip
    by_id = {column.id: column for column in columns}
    for field in fields:
        where, number = prefix + field.name, field_id(field)
        if number is None:
            raise _bad_file(
                path,
                f"column {where!r} has no field id",
                "write it through the catalog, or with the ids of the table's schema as field ids",
            )
        if number not in by_id:
            raise _bad_file(
                path, f"column {where!r} has field id {number}, which the table lacks there or has twice"
            )
        yield from _leaves(path, field, by_id.pop(number), where, optional)


def _leaves(
    path: str, field: pa.Field, column: Column, where: str, optional: list[tuple[Column, str]]
) -> Iterator[_Leaf]:
    kind = _plain(field.type)
    if not column.nullable and field.nullable:
        optional.append((column, where))

    def below(inner: pa.Field, child: Column, name: str) -> Iterator[_Leaf]:
        number = field_id(inner)
        if number is not None and number != child.id:
            raise _bad_file(path, f"column {where}.{name} has field id {number}, the table {child.id}")
        return _leaves(path, inner, child, f"{where}.{name}", optional)

    if column.type == "STRUCT" and pa.types.is_struct(kind):
        inner = [kind.field(index) for index in range(kind.num_fields)]
        yield from _struct_leaves(path, inner, column.fields, where + ".", optional)
    elif column.type == "LIST" and _is_list(kind) and column.element is not None:
        yield from below(kind.value_field, column.element, "element")
    elif column.type == "MAP" and pa.types.is_map(kind) and column.key and column.value:
        yield from below(kind.key_field, column.key, "key")
        yield from below(kind.item_field, column.value, "value")
    elif _readable(kind, column):
        yield _Leaf(column, where, kind)
    else:
        nanos = pa.types.is_timestamp(kind) and kind.unit == "ns"
        hint = _MICROSECONDS if nanos else "cast the column to the table's type"
        raise _bad_file(path, f"column {where!r} has type {kind}, which does not read as {column.type}", hint)


def _readable(kind: pa.DataType, column: Column) -> bool:
    """Whether every reader takes a file's leaf type for the table's: the same, or widened without loss."""
    types = pa.types
    match column.type:
        case "INT2" | "INT4" | "INT8":
            width = {"INT2": 16, "INT4": 32, "INT8": 64}[column.type]
            return bool(types.is_signed_integer(kind) and kind.bit_width <= width)
        case "FLOAT8":
            return bool(types.is_float32(kind) or types.is_float64(kind))
        case "DECIMAL":
            want = _leaf_arrow_type(column, column.name)
            return bool(
                types.is_decimal(kind) and kind.scale == want.scale and kind.precision <= want.precision
            )
        case "VARCHAR":
            return is_text(kind)
        case "BINARY":
            return is_bytes(kind)
        case "TIMESTAMP6" | "TIMESTAMPTZ6":
            zoned = column.type == "TIMESTAMPTZ6"
            return bool(types.is_timestamp(kind) and (kind.tz is not None) == zoned and kind.unit != "ns")
        case "STRUCT" | "LIST" | "MAP":
            return False
    return bool(kind == _leaf_arrow_type(column, column.name))


def _harvest(
    path: str, size_bytes: int, metadata: pq.FileMetaData, leaves: Sequence[_Leaf],
    schema_id: int | None, nan_counts: dict[int, int],
) -> DataFile:  # fmt: skip
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    if sum(group.num_rows for group in groups) != metadata.num_rows:
        raise _bad_file(path, "its row groups do not add up to its rows")
    sizes, values, nulls = {}, {}, {}
    lowers: dict[int, bytes] = {}
    uppers: dict[int, bytes] = {}
    starts: set[int] = set()
    for index, leaf in enumerate(leaves):
        chunks = [group.column(index) for group in groups]
        if any(chunk.file_path for chunk in chunks):
            raise _bad_file(path, f"column {leaf.path!r} lies in another file")
        number = leaf.column.id
        sizes[number] = sum(chunk.total_compressed_size for chunk in chunks)
        values[number] = sum(chunk.num_values for chunk in chunks)
        counts = [_null_count(chunk) for chunk in chunks]
        if None not in counts:
            nulls[number] = sum(count or 0 for count in counts)
        lower, upper = _bounds(leaf, chunks)
        if lower is not None:
            lowers[number] = lower
        if upper is not None:
            uppers[number] = upper
        if index == 0:
            starts = {_chunk_start(chunk) for chunk in chunks}
    file = DataFile(
        path=path,
        row_count=metadata.num_rows,
        size_bytes=size_bytes,
        schema_id=schema_id,
        column_sizes=sizes,
        value_counts=values,
        null_counts=nulls,
        nan_counts={
            leaf.column.id: nan_counts[leaf.column.id] for leaf in leaves if leaf.column.id in nan_counts
        },
        lower_bounds=lowers,
        upper_bounds=uppers,
        split_offsets=tuple(sorted(starts)),
    )
    flaw = _flaw(file, fmt.parse_data_path(path)[0])
    if flaw:
        raise _bad_file(path, flaw)
    return file


def _null_count(chunk: pq.ColumnChunkMetaData) -> int | None:
    found = chunk.statistics
    if chunk.num_values == 0:
        return 0
    return found.null_count if found is not None and found.has_null_count else None


def _chunk_start(chunk: pq.ColumnChunkMetaData) -> int:
    data: int = chunk.data_page_offset
    dictionary: int | None = chunk.dictionary_page_offset
    return data if dictionary is None else min(data, dictionary)


def _bounds(leaf: _Leaf, chunks: Iterable[pq.ColumnChunkMetaData]) -> tuple[bytes | None, bytes | None]:
    """Lower and upper bound over all row groups; None where one that holds values has no usable minimum."""
    read = _raw_reader(leaf)
    lows, highs = [], []
    for chunk in chunks:
        found = chunk.statistics
        if _null_count(chunk) == chunk.num_values:
            continue
        if found is None or not found.has_min_max:
            return None, None
        try:
            low, high = read(found.min_raw), read(found.max_raw)
        except (ValueError, TypeError, pa.ArrowException):
            return None, None  # for example cut in the middle of a character
        if low != low or high != high:
            return None, None
        lows.append(low)
        highs.append(high)
    if not lows:
        return None, None
    low, high = min(lows), max(highs)
    column = leaf.column
    if column.type in ("FLOAT4", "FLOAT8"):
        # Zeros of both signs are equal to Parquet's order, so a bound covers both.
        low, high = (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
    if isinstance(low, str):
        upper = _text_upper(high)
        low, high = low[:BOUND_CODE_POINTS_MAX], upper
    elif isinstance(low, bytes):
        low, high = low[:BOUND_CODE_POINTS_MAX], _bytes_upper(high)
    try:
        return encode_bound(column, low), None if high is None else encode_bound(column, high)
    except struct.error:
        return None, None  # outside the type: no statistics of such values


def _raw_reader(leaf: _Leaf) -> Callable[[Any], Any]:
    """From a footer's physical minimum to what `encode_bound` takes."""
    if leaf.column.type == "DECIMAL":
        return lambda raw: raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)
    if leaf.column.type == "VARCHAR":
        return lambda raw: raw.decode()
    if pa.types.is_timestamp(leaf.kind):
        factor = {"s": 1_000_000, "ms": 1_000, "us": 1}[leaf.kind.unit]
        return lambda raw: raw * factor
    return lambda raw: raw


def _missing_required(columns: Iterable[Column], present: Mapping[int, object], prefix: str) -> str:
    """Dotted name of a required column of which no leaf is present though its parent is, or empty."""
    for column in columns:
        where = prefix + column.name
        if not any(leaf.id in present for leaf in walk_columns([column]) if not leaf.children()):
            if not column.nullable:
                return where
        elif column.children():
            missing = _missing_required(column.children(), present, where + ".")
            if missing:
                return missing
    return ""


# --- what a commit checks --------------------------------------------------------------------------


def _leaf_columns(columns: Iterable[Column], repeated: bool = False) -> Iterator[tuple[Column, bool]]:
    """Leaf columns, and whether they lie below a list or map."""
    for column in columns:
        if column.children():
            yield from _leaf_columns(column.children(), repeated or column.type in ("LIST", "MAP"))
        else:
            yield column, repeated


def check_segment(
    files: Sequence[DataFile], segment: Segment, table: TableDef, *, transaction_id: str
) -> None:
    """What a commit demands of a decoded segment before anything of it is visible: every file lies in the
    transaction's own folder of this table and fits its columns, and `segment` tells the truth in its sums.

    The age of the transaction's id and the fences that it crossed are the committer's to judge (FORMAT.md,
    "What a commit may newly reference").

    Raises InvalidInput (`bad_data`) naming file and column, Expired (`upload_expired`) for a file that
    another transaction wrote: nothing keeps that from being collected.
    """
    counted = (len(files), sum(f.row_count for f in files), sum(f.size_bytes for f in files))
    claimed = (segment.file_count, segment.row_count, segment.size_bytes)
    if counted != claimed:
        raise InvalidInput(
            f"manifest segment {segment.path} claims (files, rows, bytes) {claimed},"
            f" its files add up to {counted}",
            kind="bad_data",
            path=segment.path,
        )
    leaves = {column.id: (column, repeated) for column, repeated in _leaf_columns(table.columns)}
    for file in files:
        flaw = _flaw(file, table.id)
        if flaw:
            raise _bad_file(file.path, flaw)
        owner = fmt.parse_data_path(file.path)[1]
        if owner != transaction_id:
            raise Expired(
                f"data file {file.path} was written by transaction {owner}, not by {transaction_id}",
                kind="upload_expired",
                path=file.path,
                hint="write the rows again in the transaction that commits them",
            )
        _check_file(file, table, leaves)


def _check_file(file: DataFile, table: TableDef, leaves: Mapping[int, tuple[Column, bool]]) -> None:
    if (file.schema_id or 0) > table.schema_id:
        raise _bad_file(file.path, f"it has schema {file.schema_id}, the table is at {table.schema_id}")
    if file.sequence is not None or file.added_version is not None:
        raise _bad_file(file.path, "a new file has no sequence or version of its own")
    if file.partition or file.sort_order_id is not None:
        raise _bad_file(file.path, "it claims a partition or sort order, the table has none")
    for number, count in file.value_counts.items():
        if number not in leaves:
            raise _bad_file(file.path, f"it has the column id {number}, which the table lacks")
        column, repeated = leaves[number]
        if not repeated and count != file.row_count:
            raise _bad_file(file.path, f"column {column.name!r} has {count} values in {file.row_count} rows")
        for bound in (file.lower_bounds.get(number), file.upper_bounds.get(number)):
            _check_bound(file.path, column, bound)
    missing = _missing_required(table.columns, file.value_counts, "")
    if missing:
        raise _bad_file(file.path, f"it lacks the required column {missing!r}")
    for column in table.columns:
        nulls = file.null_counts.get(column.id, 0)
        if not column.nullable and nulls:
            raise _bad_file(file.path, f"column {column.name!r} is required, but holds {nulls} NULLs")


def _check_bound(path: str, column: Column, bound: bytes | None) -> None:
    if bound is None:
        return
    sizes = _BOUND_SIZES.get(column.type)
    if sizes is not None and len(bound) in sizes and not column.type.startswith("FLOAT"):
        return
    try:
        decode_bound(column, bound)
    except ValueError as error:
        raise _bad_file(path, f"column {column.name!r}: {error}") from None
