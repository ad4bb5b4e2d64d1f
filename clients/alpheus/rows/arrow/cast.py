"""Cast Arrow arrays, of callers and of data files, to the columns of a table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from alpheus.rows.arrow.layouts import FAILURES, list_offsets, plain
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.type_names import type_text
from alpheus_journal.tables.columns import (
    default_scalar,
    field_id,
    is_bytes,
    is_list,
    is_text,
    schema_of_columns,
    strip_field_ids,
)


class CastError(Exception):
    """Says why values do not fit a table's columns. `hint` is the same as in AlpheusError."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def column_error(path: str, reason: str, hint: str = "") -> CastError:
    return CastError(f"column {path!r} {reason}", hint)


class Caster:
    """Casts Arrow arrays to a table's types, matching columns by name (data of callers) or by field id (data files).

    By name, the table must have every field; by id, fields of dropped columns are skipped. A missing column takes its
    default: by name the default of inserts, by id the default of rows older than the column. A nullable column without
    a default becomes NULL. A cast that would lose something is refused, as is a cast to another family of types.
    """

    def __init__(self, columns: Sequence[Column], *, by_id: bool) -> None:
        self.columns = columns
        self.schema = strip_field_ids(schema_of_columns(columns))
        self._by_id = by_id

    def cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the table's columns and types. Raises CastError."""
        given = [_plain(array, field) for array, field in zip(batch.columns, batch.schema, strict=True)]
        arrays = self._children(
            list(batch.schema), given, self.columns, list(self.schema), None, batch.num_rows, ""
        )
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _children(
        self, have: list[pa.Field], arrays: Sequence[pa.Array], columns: Sequence[Column],
        targets: list[pa.Field], parent: pa.Array | None, length: int, prefix: str,
    ) -> list[pa.Array]:  # fmt: skip
        """Return one array for each column, in the order of `columns`. `parent` is the struct that holds them."""
        places: dict[object, int] = {}
        for place, field in enumerate(have):
            key = field_id(field) if self._by_id else field.name
            if key in places:
                raise column_error(prefix + field.name, "occurs twice")
            if key is not None:
                places[key] = place
        if not self._by_id:
            known = {column.name for column in columns}
            for field in have:
                if field.name not in known:
                    raise column_error(
                        prefix + field.name,
                        "is not in the table",
                        f"use the table's columns: {', '.join(column.name for column in columns)[:500]}",
                    )
        fitted = []
        for column, target in zip(columns, targets, strict=True):
            where = prefix + column.name
            found = places.get(column.id if self._by_id else column.name)
            default = column.initial_default if self._by_id else column.write_default
            if found is None and default is not None:
                array = pa.repeat(default_scalar(column, default), length)
            elif found is None:
                if not column.nullable and length > (parent.null_count if parent is not None else 0):
                    raise column_error(where, "is required, but missing")
                array = _nulls(length, target.type)
            else:
                try:
                    array = self._array(arrays[found], column, target.type, where)
                except FAILURES as error:
                    raise column_error(where, f"cannot be cast: {str(error)[:200]}") from None
            fitted.append(_check_required(array, column, target.type, parent, where))
        return fitted

    def _array(self, array: pa.Array, column: Column, kind: pa.DataType, path: str) -> pa.Array:
        if pa.types.is_null(array.type):
            return _nulls(len(array), kind)
        if column.type == "STRUCT" and pa.types.is_struct(array.type):
            children = self._children(
                fields_of(array.type),
                array.flatten(),
                column.fields,
                fields_of(kind),
                array,
                len(array),
                path + ".",
            )
            return pa.StructArray.from_arrays(children, fields=fields_of(kind), mask=array.is_null())
        if column.type == "LIST" and is_list(array.type) and column.element is not None:
            values = self._below(array.flatten(), column.element, kind.value_type, f"{path}.element")
            return pa.ListArray.from_arrays(_offsets(array), values, type=kind, mask=array.is_null())
        if column.type == "MAP" and pa.types.is_map(array.type) and column.key and column.value:
            if array.null_count:  # there may be values below a NULL
                array = array.take(pa.array(range(len(array)), pa.int64()))
            first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
            keys = self._below(
                array.keys.slice(first, last - first), column.key, kind.key_type, f"{path}.key"
            )
            items = self._below(
                array.items.slice(first, last - first), column.value, kind.item_type, f"{path}.value"
            )
            offsets = pc.subtract(array.offsets, array.offsets[0])
            return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=array.is_null())
        if column.children():
            raise column_error(path, f"has type {array.type}, the table {type_text(column)}")
        return _cast(array, column, kind, path)

    def _below(self, values: pa.Array, column: Column, kind: pa.DataType, path: str) -> pa.Array:
        return _check_required(self._array(values, column, kind, path), column, kind, None, path)


def _plain(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return plain(array)
    except FAILURES as error:
        raise not_plain_error(field, error) from None


def not_plain_error(field: pa.Field, error: Exception) -> CastError:
    return column_error(
        field.name,
        f"has type {field.type}, which Arrow cannot take apart: {str(error)[:200]}",
        "cast it to a plain type, such as text or a number",
    )


def fields_of(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(index) for index in range(kind.num_fields)]


def _offsets(array: pa.Array) -> pa.Array:
    """32-bit offsets of a list array. Raises pyarrow.ArrowException for more values than one array can hold."""
    return list_offsets(array).cast(pa.int32())


def _check_required(
    array: pa.Array, column: Column, kind: pa.DataType, parent: pa.Array | None, path: str
) -> pa.Array:
    """Refuse NULL in a required column, except below a NULL parent. There the result has some other value, because
    Parquet writers refuse a NULL in a NOT NULL column even where no reader can see it."""
    if column.nullable or not array.null_count:
        return array
    missing = array.is_null()
    if parent is None or pc.any(pc.and_(missing, parent.is_valid())).as_py():
        raise column_error(path, "is required, but holds NULL")
    filler = pa.array([_some_value(column)], kind)
    own = pa.array(range(len(array)), pa.int64())
    return pa.concat_arrays([array, filler]).take(pc.if_else(missing, len(array), own))


def _nulls(length: int, kind: pa.DataType) -> pa.Array:
    """An array of NULLs. Required fields of structs hold values, as `_check_required` wants; Arrow's own NULL arrays
    hold NULL there."""
    if not pa.types.is_struct(kind):
        return pa.nulls(length, kind)
    return pa.array([None], kind).take(pa.repeat(0, length))


def _some_value(column: Column) -> object:
    match column.type:
        case "STRUCT":
            return {f.name: None if f.nullable else _some_value(f) for f in column.fields}
        case "LIST" | "MAP":
            return []
        case "VARCHAR":
            return ""
        case "BINARY":
            return b""
        case "FIXED":
            return bytes(int(column.properties["length"]))
        case "BOOLEAN":
            return False
        case "DECIMAL":
            return Decimal(0)
        case "DATE":
            return dt.date(1970, 1, 1)
        case "TIMESTAMP6":
            return dt.datetime(1970, 1, 1)
        case "TIMESTAMPTZ6":
            return dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return 0


def _family(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind):
        return "integer"
    if types.is_floating(kind):
        return "float"
    if types.is_decimal(kind):
        return "decimal"
    if is_text(kind):
        return "text"
    if is_bytes(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    if types.is_date(kind):
        return "date"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp with zone"
    return str(kind)


_ALSO_FROM = {"float": ("integer",), "decimal": ("integer",)}


def _cast(array: pa.Array, column: Column, kind: pa.DataType, path: str) -> pa.Array:
    have, want = _family(array.type), _family(kind)
    if have != want and have not in _ALSO_FROM.get(want, ()):
        raise column_error(
            path, f"has type {array.type}, the table {type_text(column)}", _family_hint(have, want, kind)
        )
    if array.type == kind:
        return array
    try:
        if want == "decimal" and have == "integer":
            array = array.cast(pa.decimal128(20, 0))
        elif want == "bytes" and pa.types.is_fixed_size_binary(kind) and is_bytes(array.type):
            lengths = pc.binary_length(array.cast(pa.large_binary()))  # Arrow has no lengths of views
            if pc.any(pc.not_equal(lengths, kind.byte_width)).as_py():
                raise column_error(path, f"holds values that are not {kind.byte_width} bytes long")
            array = array.cast(pa.binary())
        result = array.cast(kind)
    except pa.ArrowException as error:
        hint = ""
        if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
            hint = _NANOSECONDS_HINT
        raise column_error(
            path, f"holds a value that {type_text(column)} cannot hold: {str(error)[:200]}", hint
        ) from None
    if want == "float" and have == "float" and array.type.bit_width > kind.bit_width:
        back = result.cast(array.type)
        lost = pc.and_(pc.not_equal(back, array), pc.invert(pc.is_nan(array)))
        if pc.any(lost).as_py():
            raise column_error(
                path,
                f"holds values of {array.type} that {type_text(column)} cannot hold",
                f"cast it to {kind}",
            )
    return result


_ZONES = {"timestamp", "timestamp with zone"}
_NANOSECONDS_HINT = (
    'round to microseconds: in pandas with frame["name"].dt.floor("us"), in Arrow with'
    ' pyarrow.compute.floor_temporal(column, unit="microsecond")'
)


def _family_hint(have: str, want: str, kind: pa.DataType) -> str:
    if {have, want} <= _ZONES:
        return "add a zone to the times, or remove it"
    if have == "float" and want == "integer":
        # Plain integers of pandas have no NULL: a single NULL makes all values floats.
        return f'cast it to {kind}; in pandas, integers with NULL take frame["name"].astype("Int64")'
    return f"cast it to {kind}"
