"""Combine the columns of several files into one schema: by name, with the wider type where types differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from alpheus_journal.errors import InvalidInput
from alpheus_journal.tables.columns import is_bytes, is_list, is_text, plain_type

_DECIMAL_PRECISION_MAX = 38
_DIGITS = {16: 5, 32: 10, 64: 19}
"""By number of bits: the decimal digits of signed integers."""


class _Differs(Exception):
    """No column can hold values of both types."""


def table_schema(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with types of native tables. All values fit, except those that the cast later refuses.

    8-bit integers become 16-bit integers. Unsigned integers become the next wider signed type, 64-bit ones
    decimal(20, 0). Half floats become floats, 64-bit dates become dates. Timestamps of nanoseconds become timestamps of
    microseconds; a value with more digits is refused when it is read. Other types (times of day, durations, columns
    without a type) stay, and `columns_of_schema` refuses them.
    """
    return pa.schema([pa.field(f.name, _native_type(f.type), f.nullable) for f in schema])


def _native_type(kind: pa.DataType) -> pa.DataType:
    kind = plain_type(kind)
    types = pa.types
    if types.is_struct(kind):
        inner = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([pa.field(f.name, _native_type(f.type), f.nullable) for f in inner])
    if is_list(kind):
        return pa.list_(pa.field("element", _native_type(kind.value_type), kind.value_field.nullable))
    if types.is_map(kind):
        item = pa.field("value", _native_type(kind.item_type), kind.item_field.nullable)
        return pa.map_(pa.field("key", _native_type(kind.key_type), False), item)
    if is_text(kind):
        return pa.string()
    if is_bytes(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_date(kind):
        return pa.date32()
    if types.is_decimal(kind) and kind.precision <= _DECIMAL_PRECISION_MAX and kind.scale >= 0:
        return pa.decimal128(kind.precision, kind.scale)
    return _NATIVE_TYPES.get(kind, kind)


_NATIVE_TYPES: dict[pa.DataType, pa.DataType] = {
    pa.int8(): pa.int16(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}


def union(schemas: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """Combine schemas of `table_schema`, each given with the name of its file, into one.

    Columns keep the order in which they first occur. A column that a file lacks, or declares nullable, is nullable.
    Types widen: integers; floats, also from integers that they hold exactly; decimals, also from integers; fields of
    structs. Raise InvalidInput (`bad_schema`) that names the column and both files.
    """
    first: dict[str, tuple[str, pa.Field]] = {}
    for name, schema in schemas:
        _refuse_doubles(name, schema.names)
        for field in schema:
            if field.name not in first:
                first[field.name] = name, field
                continue
            other, known = first[field.name]
            try:
                merged = _merge_fields(known, field, field.name)
            except _Differs as error:
                raise InvalidInput(
                    f"{error}: {str(other)[:300]} and {str(name)[:300]} cannot be combined",
                    kind="bad_schema",
                    hint="import them into separate tables, or rewrite one of them with the type of the other",
                ) from None
            first[field.name] = other, merged
    present = [set(schema.names) for _, schema in schemas]
    return pa.schema(
        [
            field if all(name in names for names in present) else field.with_nullable(True)
            for name, (_, field) in first.items()
        ]
    )


def _refuse_doubles(name: str, columns: Iterable[str]) -> None:
    seen: set[str] = set()
    for column in columns:
        if column in seen:
            raise InvalidInput(f"{name[:300]}: column {column!r} occurs twice", kind="bad_schema")
        seen.add(column)


def _merge_fields(one: pa.Field, other: pa.Field, path: str) -> pa.Field:
    return pa.field(one.name, _wider_type(one.type, other.type, path), one.nullable or other.nullable)


def _wider_type(one: pa.DataType, other: pa.DataType, path: str) -> pa.DataType:
    """Return the wider of two types that `table_schema` returned. Raise _Differs if no type holds both."""
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_struct(one) and types.is_struct(other):
        return _merge_structs(one, other, path)
    if types.is_list(one) and types.is_list(other):
        return pa.list_(_merge_fields(one.value_field, other.value_field, f"{path}.element"))
    if types.is_map(one) and types.is_map(other):
        key = _merge_fields(one.key_field, other.key_field, f"{path}.key")
        return pa.map_(key, _merge_fields(one.item_field, other.item_field, f"{path}.value"))
    found = _wider_number(one, other) or _wider_number(other, one)
    if found is None:
        raise _Differs(f"column {path!r} is {one} in one file and {other} in another")
    return found


def _merge_structs(one: pa.DataType, other: pa.DataType, path: str) -> pa.DataType:
    sides = [{kind.field(i).name: kind.field(i) for i in range(kind.num_fields)} for kind in (one, other)]
    fields = []
    for name in dict.fromkeys((*sides[0], *sides[1])):
        both = [side[name] for side in sides if name in side]
        fields.append(
            _merge_fields(both[0], both[1], f"{path}.{name}")
            if len(both) == 2
            else both[0].with_nullable(True)
        )
    return pa.struct(fields)


def _wider_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the wider type if `one` is not the wider kind of number. Return None if it is, or if there is none."""
    types = pa.types
    if types.is_integer(one):
        if types.is_integer(other):
            return max(one, other, key=lambda kind: kind.bit_width)
        if types.is_floating(other) and one.bit_width < 64:
            return pa.float32() if one.bit_width == 16 and other.bit_width == 32 else pa.float64()
        if types.is_decimal(other):
            return _decimal(_DIGITS[one.bit_width], 0, other)
    if types.is_floating(one) and types.is_floating(other):
        return pa.float64()
    if types.is_decimal(one) and types.is_decimal(other):
        return _decimal(one.precision - one.scale, one.scale, other)
    return None


def _decimal(digits: int, scale: int, other: pa.DataType) -> pa.DataType | None:
    scale = max(scale, other.scale)
    precision = max(digits, other.precision - other.scale) + scale
    return pa.decimal128(precision, scale) if precision <= _DECIMAL_PRECISION_MAX else None
