"""Columns of native tables: Arrow types, Parquet field ids, typed bounds (FORMAT.md, "Native tables").

A table's column is a `Column`. It determines the Arrow type, and the Arrow type determines it. Its id is the Parquet
field id.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import numbers
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.model.definitions import Column, walk_columns
from alpheus_journal.model.type_names import type_text

FIELD_ID = b"PARQUET:field_id"
"""The key of Arrow field metadata under which pyarrow reads and writes Parquet field ids."""
BOUND_CODE_POINTS_MAX = 64
"""The most code points of a text bound (bytes of a binary bound). A longer lower bound is cut to a prefix, and a longer
upper bound becomes the next value above the prefix."""

_COLUMN_DEPTH_MAX = 32
_DECIMAL_PRECISION_MAX = 38
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Matches control characters and lone surrogates."""

# --- schemas ---------------------------------------------------------------------------------------


def _schema_error(path: str, reason: str, hint: str = "") -> InvalidInput:
    return InvalidInput(f"column {path!r} {reason}", kind="bad_schema", hint=hint)


def columns_of_schema(schema: pa.Schema, *, first_id: int = 1) -> tuple[Column, ...]:
    """Return the columns of a new native table, with ids from `first_id` on, depth first (parents before children).

    All text types become VARCHAR, all lists LIST, and dictionaries their value type. Timestamps of any unit become
    TIMESTAMP6, or TIMESTAMPTZ6 with a zone (stored as UTC), which every Spark reads; writers refuse values with
    nanoseconds. Raises InvalidInput (`bad_schema`) naming the column: for a type that Spark cannot read or that would
    lose values, for an empty schema, and for names that are empty, have control characters, or differ from another
    name only in case.
    """
    ids = itertools.count(first_id)
    columns = tuple(_column(field, field.name, ids, 1) for field in schema)
    _check_names(columns, "")
    return columns


def _check_names(columns: Sequence[Column], path: str) -> None:
    if not columns and not path:
        raise InvalidInput("a table needs at least one column", kind="bad_schema")
    if not columns:
        raise _schema_error(path, "has no fields")
    seen: dict[str, str] = {}
    for column in columns:
        where = f"{path}.{column.name}" if path else column.name
        if not column.name:
            raise _schema_error(where, "has an empty name")
        if _NO_TEXT.search(column.name):
            raise _schema_error(where, "has a control character or lone surrogate in its name")
        if len(column.name.encode()) > fmt.NAME_SIZE_BYTES_MAX:
            raise _schema_error(where[:80], f"has a name of more than {fmt.NAME_SIZE_BYTES_MAX} bytes")
        folded = column.name.lower()
        other = seen.get(folded)
        if other == column.name:
            raise _schema_error(where, "appears twice")
        if other is not None:
            raise _schema_error(
                where,
                f"differs from {other!r} in case only",
                "rename one of them: Spark takes them for one column",
            )
        seen[folded] = column.name


def _column(field: pa.Field, path: str, ids: Iterator[int], depth: int) -> Column:
    if depth > _COLUMN_DEPTH_MAX:
        raise _schema_error(path[:200], f"is nested more than {_COLUMN_DEPTH_MAX} levels deep")
    number, kind, deeper = next(ids), plain_type(field.type), depth + 1

    def child(inner: pa.Field, name: str, nullable: bool) -> Column:
        # Arrow makes no required field of the NULL type. The type is refused by name below.
        inner = pa.field(name, inner.type, nullable or pa.types.is_null(inner.type))
        return _column(inner, f"{path}.{name}", ids, deeper)

    def column(type_name: str, **rest: Any) -> Column:
        return Column(id=number, name=field.name, type=type_name, nullable=field.nullable, **rest)

    if pa.types.is_struct(kind):
        inner = [kind.field(index) for index in range(kind.num_fields)]
        fields = tuple(child(f, f.name, f.nullable) for f in inner)
        _check_names(fields, path)
        return column("STRUCT", fields=fields)
    if is_list(kind):
        return column("LIST", element=child(kind.value_field, "element", kind.value_field.nullable))
    if pa.types.is_map(kind):
        key = child(kind.key_field, "key", False)
        return column("MAP", key=key, value=child(kind.item_field, "value", kind.item_field.nullable))
    type_name, properties = _leaf_type(kind, path)
    return column(type_name, properties=properties)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values, without dictionary, run-end or extension encoding."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def is_list(kind: pa.DataType) -> bool:
    """Return whether the type is a list of any layout."""
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether the type holds bytes of variable length."""
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
            raise _schema_error(
                path, f"has type {kind}", "use up to 38 digits, with 0 to all of them after the point"
            )
        return "DECIMAL", {"precision": str(kind.precision), "scale": str(kind.scale)}
    if pa.types.is_fixed_size_binary(kind):
        if kind.byte_width < 1:
            raise _schema_error(path, f"has type {kind}", "use a fixed length of at least one byte")
        return "FIXED", {"length": str(kind.byte_width)}
    if pa.types.is_timestamp(kind):
        return ("TIMESTAMP6" if kind.tz is None else "TIMESTAMPTZ6"), {}
    raise _schema_error(path, f"has type {kind}, which no native table can hold", _refusal_hint(kind))


def _refusal_hint(kind: pa.DataType) -> str:
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return "cast it to an integer or text: Spark cannot read this type"
    if pa.types.is_int8(kind):
        return "cast it to int16, the smallest integer"
    if pa.types.is_unsigned_integer(kind):
        return "cast it to the next wider signed type, and uint64 to decimal128(20, 0): integers are signed"
    if pa.types.is_float16(kind):
        return "cast it to float32"
    if pa.types.is_date64(kind):
        return "cast it to date32"
    if pa.types.is_null(kind):
        return "name a type in the schema: NULL alone has none"
    return "cast it to a type that Spark has"


def schema_of_columns(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of a native table. Every field, nested ones too, has its id as `FIELD_ID` metadata.

    Also checks columns from other sources: raises InvalidInput (`bad_schema`) naming the column that no native table
    can have.
    """
    _check_names(columns, "")
    return pa.schema([_field(column, column.name, 1) for column in columns])


def check_types(columns: Sequence[Column]) -> None:
    """Raise the same errors as `schema_of_columns`, at a part of its cost."""
    _check_names(columns, "")
    for column in columns:
        if column.type not in _SIMPLE or column.children():
            _field(column, column.name, 1)


def _field(column: Column, path: str, depth: int) -> pa.Field:
    if depth > _COLUMN_DEPTH_MAX:
        raise _schema_error(path[:200], f"is nested more than {_COLUMN_DEPTH_MAX} levels deep")

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
        kind = leaf_arrow_type(column, path)
    return pa.field(column.name, kind, column.nullable, metadata={FIELD_ID: str(column.id)})


def leaf_arrow_type(column: Column, path: str) -> pa.DataType:
    if column.children():
        raise _schema_error(path, f"of type {type_text(column)} has nested columns that do not fit it")
    if column.type in _SIMPLE:
        return _SIMPLE[column.type]
    if column.type == "DECIMAL":
        precision = _number(column, "precision", path, 1, _DECIMAL_PRECISION_MAX)
        return pa.decimal128(precision, _number(column, "scale", path, 0, precision))
    if column.type == "FIXED":
        return pa.binary(_number(column, "length", path, 1, (1 << 31) - 1))
    raise _schema_error(
        path, f"has type {type_text(column)}, which this release cannot store in a native table"
    )


def _number(column: Column, name: str, path: str, low: int, high: int) -> int:
    text = column.properties.get(name, "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
    if not low <= number <= high:
        raise _schema_error(path, f"of type {type_text(column)} needs the property {name!r}, {low} to {high}")
    return number


def strip_field_ids(schema: pa.Schema) -> pa.Schema:
    """Return the schema that users see: without field ids, in nested fields too. Other metadata stays."""
    return pa.schema([_strip(field) for field in schema], metadata=schema.metadata)


def _strip(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_strip(kind.field(index)) for index in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        kind = pa.list_(_strip(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_strip(kind.value_field))
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(_strip(kind.value_field), kind.list_size)
    elif pa.types.is_map(kind):
        kind = pa.map_(_strip(kind.key_field), _strip(kind.item_field))
    rest = {key: value for key, value in (field.metadata or {}).items() if key != FIELD_ID}
    return pa.field(field.name, kind, field.nullable, metadata=rest or None)


def field_id(field: pa.Field) -> int | None:
    """Return the Parquet field id of an Arrow field, or None when the field has no positive int32 as its id."""
    text = (field.metadata or {}).get(FIELD_ID, b"")
    if not text.isdigit() or len(text) > 10:
        return None
    number = int(text)
    return number if 0 < number < 1 << 31 else None


# --- bounds ----------------------------------------------------------------------------------------

_INTEGER_BOUNDS = frozenset({"INT2", "INT4", "INT8", "DATE", "TIMESTAMP6", "TIMESTAMPTZ6"})
_EIGHT_BYTES = frozenset({"INT8", "TIMESTAMP6", "TIMESTAMPTZ6"})
# A type may have been widened since the file was written, so the narrower sizes stay valid.
BOUND_SIZES: dict[str, tuple[int, ...]] = {
    "BOOLEAN": (1,), "INT2": (4,), "INT4": (4,), "INT8": (4, 8), "FLOAT4": (4,), "FLOAT8": (4, 8),
    "DATE": (4,), "TIMESTAMP6": (8,), "TIMESTAMPTZ6": (8,), "DECIMAL": tuple(range(1, 17)),
}  # fmt: skip

Bound = bool | int | float | str | bytes | Decimal


def encode_bound(column: Column, value: bool | int | float | str | bytes) -> bytes:
    """Encode a value by Iceberg's single-value binary serialization (its specification, appendix D).

    `value` is in days for DATE, in microseconds since the epoch for timestamps, and unscaled for DECIMAL.
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
    """Decode a stored bound, in the units of `encode_bound` except for DECIMAL, which gives a Decimal.

    Raises ValueError when `data` is not a bound of a column of this type.
    """
    sizes = BOUND_SIZES.get(column.type)
    if sizes is not None and len(data) not in sizes:
        raise ValueError(f"a bound of {len(data)} bytes does not fit the type {type_text(column)}")
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
    raise ValueError(f"columns of type {type_text(column)} have no bounds")


def unscaled(column: Column, value: Bound) -> bool | int | float | str | bytes:
    """Convert a value of `decode_bound` to one for `encode_bound`.

    Raises ValueError for a decimal with more digits after the point than the column has.
    """
    if not isinstance(value, Decimal):
        return value
    scale = _number(column, "scale", column.name, 0, _DECIMAL_PRECISION_MAX)
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is not a number")
    number, shift = int("".join(map(str, digits)) or "0"), exponent + scale
    if number and shift > _DECIMAL_PRECISION_MAX:
        raise ValueError(f"{value} has more than {_DECIMAL_PRECISION_MAX} digits")
    if shift < 0:
        number, rest = divmod(number, 10 ** min(-shift, len(digits) + 1))
        if rest:
            raise ValueError(f"{value} has more than {scale} digits after the point")
    elif number:
        number *= 10**shift
    return -number if sign else number


def text_upper(text: str) -> str | None:
    """Return an upper bound: the text itself, or, when it is cut, the smallest text above all with the same prefix."""
    if len(text) <= BOUND_CODE_POINTS_MAX:
        return text
    prefix = text[:BOUND_CODE_POINTS_MAX]
    return fmt.after_prefix(prefix) if prefix.strip("\U0010ffff") else None


def bytes_upper(value: bytes) -> bytes | None:
    if len(value) <= BOUND_CODE_POINTS_MAX:
        return value
    prefix = value[:BOUND_CODE_POINTS_MAX].rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None


# --- defaults --------------------------------------------------------------------------------------

DEFAULT_SIZE_BYTES_MAX = 1024

_EPOCH = dt.date(1970, 1, 1).toordinal()
_INTEGERS = ("INT2", "INT4", "INT8")
_DAYS = (dt.date.min.toordinal() - _EPOCH, dt.date.max.toordinal() - _EPOCH)
_MICROS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
"""The microseconds of the years 1 to 9999, which every engine can write as a literal."""


def encode_default(column: Column, value: Any, path: str) -> bytes:
    """Encode a default, a Python value of the column's type. `path` names the column in errors.

    TIMESTAMPTZ6 needs a `datetime` with a zone, DECIMAL an int or a Decimal. Raises InvalidInput (`bad_schema`) for a
    value that the column cannot have, or that is too long for a default.
    """
    plain = None if column.children() else _plain_value(column, value)
    if plain is None:
        what = f"{repr(value)[:80]} ({type(value).__name__})"
        raise _schema_error(path, f"of type {type_text(column)} cannot have the default {what}")
    try:
        data = encode_bound(column, plain)
    except (struct.error, UnicodeEncodeError, OverflowError):
        raise _schema_error(
            path, f"of type {type_text(column)} cannot hold the default {repr(value)[:80]}"
        ) from None
    check_default(column, data, path)
    return data


def _plain_value(column: Column, value: Any) -> bool | int | float | str | bytes | None:
    """Convert a Python value to one for `encode_bound`. Return None for a value of another type."""
    kind = column.type
    if kind == "BOOLEAN":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if kind in _INTEGERS:
        return int(value) if isinstance(value, numbers.Integral) else None
    if kind in ("FLOAT4", "FLOAT8"):
        number = float(value) if isinstance(value, numbers.Real) else math.nan
        return None if math.isnan(number) else number
    if kind == "DECIMAL":
        if not isinstance(value, Decimal | numbers.Integral):
            return None
        try:
            return unscaled(column, Decimal(value) if isinstance(value, Decimal) else Decimal(int(value)))
        except ValueError:
            return None
    if kind == "VARCHAR":
        return value if isinstance(value, str) else None
    if kind in ("BINARY", "FIXED"):
        return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None
    if kind == "DATE":
        plain = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
        return value.toordinal() - _EPOCH if plain else None
    if not isinstance(value, dt.datetime) or (value.utcoffset() is None) == (kind == "TIMESTAMPTZ6"):
        return None
    zone = None if kind == "TIMESTAMP6" else dt.UTC
    return (value - dt.datetime(1970, 1, 1, tzinfo=zone)) // dt.timedelta(microseconds=1)


def check_default(column: Column, data: bytes, path: str) -> None:
    """Refuse a default that the column cannot have. Raises InvalidInput (`bad_schema`)."""
    if column.children():
        raise _schema_error(
            path, f"of type {type_text(column)} cannot have a default", "give its fields defaults instead"
        )
    if len(data) > DEFAULT_SIZE_BYTES_MAX:
        raise _schema_error(
            path, f"has a default of {len(data)} bytes, at most {DEFAULT_SIZE_BYTES_MAX} are allowed"
        )
    flaw = _flaw_of_default(column, data)
    if flaw:
        raise _schema_error(
            path, f"of type {type_text(column)} cannot have the default {data[:40].hex()}: {flaw}"
        )


def _flaw_of_default(column: Column, data: bytes) -> str:
    try:
        value = decode_bound(column, data)
    except (ValueError, InvalidInput) as error:
        return str(error)
    if column.type == "INT2" and not -(1 << 15) <= value < 1 << 15:  # type: ignore[operator]
        return f"{value!r} is out of range"
    for kinds, (low, high) in ((("DATE",), _DAYS), (("TIMESTAMP6", "TIMESTAMPTZ6"), _MICROS)):
        if column.type in kinds and not low <= value <= high:  # type: ignore[operator]
            return "it is outside the years 1 to 9999"
    length = column.properties.get("length", "")
    if isinstance(value, bytes) and column.type == "FIXED" and str(len(value)) != length:
        return f"it has {len(value)} bytes instead of {length}"
    if isinstance(value, str) and length.isascii() and length.isdigit() and len(value) > int(length[:10]):
        return f"it has {len(value)} characters, at most {length} are allowed"
    if isinstance(value, Decimal):
        precision = _number(column, "precision", column.name, 1, _DECIMAL_PRECISION_MAX)
        if len(value.as_tuple().digits) > precision:
            return f"{value} has more than {precision} digits"
    return ""


def decode_default(column: Column, data: bytes) -> Bound:
    """Decode a stored default; see `decode_bound`. Raises Corrupt (`corrupt_definition`)."""
    flaw = _flaw_of_default(column, data)
    if flaw:
        raise Corrupt(f"the default of column {column.name!r}: {flaw}", kind="corrupt_definition")
    return decode_bound(column, data)


def default_scalar(column: Column, data: bytes) -> pa.Scalar:
    """Return a stored default as an Arrow value of the column's type. Raises the error of `decode_default`."""
    value, kind = decode_default(column, data), leaf_arrow_type(column, column.name)
    if column.type in ("DATE", "TIMESTAMP6", "TIMESTAMPTZ6"):
        return pa.scalar(value, pa.int32() if column.type == "DATE" else pa.int64()).cast(kind)
    return pa.scalar(value, kind)


def python_value(column: Column, value: Bound) -> Any:
    """Convert a value of `decode_bound` to Python's types: days and microseconds become dates and datetimes.

    Years outside of 1 to 9999 stay numbers.
    """
    if column.type in ("DATE", "TIMESTAMP6", "TIMESTAMPTZ6"):
        low, high = _DAYS if column.type == "DATE" else _MICROS
        if isinstance(value, int) and low <= value <= high:
            if column.type == "DATE":
                return dt.date.fromordinal(value + _EPOCH)
            zone = None if column.type == "TIMESTAMP6" else dt.UTC
            return dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(microseconds=value)
    return value


def check_defaults(columns: Sequence[Column], prefix: str = "", *, repeated: bool = False) -> None:
    """Refuse defaults that columns cannot have. Raises InvalidInput (`bad_schema`) naming the column.

    `repeated` says that the columns are below a list or map, where no column can have a default.
    """
    for column in columns:
        where = prefix + column.name
        for data in (column.initial_default, column.write_default):
            if data is None:
                continue
            if repeated:
                raise _schema_error(where, "lies in a list or map: it cannot have a default")
            check_default(column, data, where)
        if column.children():
            within = repeated or column.type in ("LIST", "MAP")
            check_defaults(column.children(), where + ".", repeated=within)


def paths_of(columns: Iterable[Column], prefix: str = "") -> Iterator[tuple[str, Column]]:
    """Yield all columns that are not below a list or map, with their paths."""
    for column in columns:
        yield prefix + column.name, column
        yield from paths_of(column.fields, f"{prefix}{column.name}.")


def missing_required(columns: Iterable[Column], present: Mapping[int, object], prefix: str) -> str:
    """Return the dotted name of a required column without a present leaf although its parent is present, or "".

    A column with an initial default may be absent, because its rows then have that default.
    """
    for column in columns:
        where = prefix + column.name
        if not any(leaf.id in present for leaf in walk_columns([column]) if not leaf.children()):
            if not column.nullable and column.initial_default is None:
                return where
        elif column.children():
            missing = missing_required(column.children(), present, where + ".")
            if missing:
                return missing
    return ""
