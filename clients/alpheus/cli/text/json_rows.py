"""Convert values in JSON to Arrow data of a table's columns, and back."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from alpheus.errors import InvalidInput
from alpheus.models import Table
from alpheus_journal.model.definitions import Column
from alpheus_journal.tables.columns import decode_default, python_value


def json_value(value: Any) -> Any:
    """Convert a value of a leaf column to JSON. Dates, times, decimals and numbers that are not finite become text;
    bytes become base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date):  # datetimes are dates
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return next(text for text, number in _NOT_FINITE.items() if number == str(value))
    return value


def plain_value(value: Any) -> Any:
    """Convert a value of any column, as `pyarrow.Array.to_pylist` returns it, to JSON. The pairs of a map become
    lists. See `json_value`."""
    if isinstance(value, dict):
        return {name: plain_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    return json_value(value)


_INTEGERS = {pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_FLOAT4_MAX = Decimal("3.4028234663852886e38")
_FLOAT8_MAX = Decimal("1.7976931348623157e308")
_NOT_FINITE = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_FINER_THAN_MICROSECONDS = re.compile(r"[.,]\d{7}")


def rows_of_table(rows: Sequence[Any], table: Table, where: str) -> pa.Table:
    """Convert rows of JSON objects to Arrow data of the table. A missing key takes its column's default. See
    `arrow_rows`."""
    if table.defaults:
        rows = [_fill_defaults(row, table.columns) for row in rows]
    return arrow_rows(rows, table.schema, where)


def _fill_defaults(row: Any, columns: Sequence[Column]) -> Any:
    """Return a row, or a struct in it, with defaults for missing keys."""
    if not isinstance(row, dict):
        return row
    filled = dict(row)
    for column in columns:
        if column.name in filled:
            if column.fields:
                filled[column.name] = _fill_defaults(filled[column.name], column.fields)
        elif column.write_default is not None:
            value = python_value(column, decode_default(column, column.write_default))
            finite = isinstance(value, float) and math.isfinite(value)
            filled[column.name] = Decimal(value) if finite else json_value(value)
    return filled


def arrow_rows(rows: Sequence[Any], schema: pa.Schema, where: str) -> pa.Table:
    """Convert rows that are JSON objects to Arrow data of a native table's schema.

    Dates and times are ISO 8601 text, with a zone for timestamptz and without for timestamp. Decimals are numbers or
    text, bytes are base64, maps are objects or lists of pairs. "NaN", "Infinity" and "-Infinity" are text. A missing
    key is NULL. No value is rounded or truncated: raise InvalidInput (`bad_data`) that names row and column instead.
    """
    values: list[list[Any]] = [[] for _ in schema]
    for index, row in enumerate(rows):
        place = f"{where}.rows[{index}]"
        for column, value in zip(values, _members(row, list(schema), place), strict=True):
            column.append(value)
    arrays = []
    for field, column in zip(schema, values, strict=True):
        try:
            arrays.append(pa.array(column, field.type))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise InvalidInput(f"{where}.rows: column {field.name!r}: {error}", kind="bad_data") from None
    return pa.Table.from_arrays(arrays, schema=schema)


def _members(row: Any, fields: Sequence[pa.Field], where: str) -> list[Any]:
    """Return the values of an object in the order of `fields`."""
    if not isinstance(row, dict):
        raise InvalidInput(f"{where}: an object is needed", kind="bad_data")
    names = {field.name for field in fields}
    for key in row:
        if key not in names:
            raise InvalidInput(
                f"{where}: there is no column {key[:80]!r}",
                kind="bad_data",
                hint=f"columns: {', '.join(field.name for field in fields)[:500]}",
            )
    return [arrow_value(row.get(field.name), field, f"{where}.{field.name}") for field in fields]


def arrow_value(value: Any, field: pa.Field, where: str) -> Any:
    """Convert one value to what pyarrow takes for the field's type."""

    def refuse(wanted: str) -> InvalidInput:
        shown = (
            str(value) if isinstance(value, Decimal) else json.dumps(value, default=str, ensure_ascii=False)
        )
        shown = shown[:80]
        return InvalidInput(f"{where}: {wanted} is needed, not {shown}", kind="bad_data")

    kind = field.type
    if value is None:
        if not field.nullable:
            raise refuse("a value (the column is required)")
        return None
    if pa.types.is_boolean(kind):
        if isinstance(value, bool):
            return value
        raise refuse("true or false")
    if kind in _INTEGERS:
        bits = _INTEGERS[kind]
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and -(1 << bits - 1) <= value < 1 << bits - 1
        ):
            return value
        raise refuse(f"a whole number of {bits} bits")
    if pa.types.is_floating(kind):
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            number = Decimal(value)
            if abs(number) <= (_FLOAT4_MAX if kind == pa.float32() else _FLOAT8_MAX):
                return float(number)
        if isinstance(value, str) and value in _NOT_FINITE:
            return float(_NOT_FINITE[value])
        raise refuse("a number")
    if pa.types.is_decimal(kind):
        if isinstance(value, int | Decimal | str) and not isinstance(value, bool):
            with contextlib.suppress(InvalidOperation):
                exact = Decimal(value)
                if exact.is_finite() and _fits(exact, kind.precision, kind.scale):
                    return exact or Decimal(0)
        raise refuse(f"a number of {kind.precision} digits, {kind.scale} after the point,")
    if pa.types.is_string(kind):
        if isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value):
            return value
        raise refuse("text")
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _bytes(value, kind, refuse("base64 text"), refuse)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _moment(value, kind, refuse)
    return _nested_value(value, kind, where, refuse)


def _moment(value: Any, kind: pa.DataType, refuse: Callable[[str], InvalidInput]) -> date | datetime:
    """Parse a date or a time, according to the type."""
    if pa.types.is_date(kind):
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return date.fromisoformat(value)
        raise refuse('a date such as "2026-03-01"')
    if isinstance(value, str) and not _FINER_THAN_MICROSECONDS.search(value):
        with contextlib.suppress(ValueError):
            moment = datetime.fromisoformat(value)
            if (moment.tzinfo is None) == (kind.tz is None):
                return moment
    example = "2026-03-01T12:00:00" + ("Z" if kind.tz is not None else "")
    raise refuse(f'a time {"with" if kind.tz is not None else "without"} a zone, such as "{example}",')


def _nested_value(value: Any, kind: pa.DataType, where: str, refuse: Any) -> Any:
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return dict(zip([field.name for field in fields], _members(value, fields, where), strict=True))
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise refuse("a list")
        return [arrow_value(item, kind.value_field, f"{where}[{index}]") for index, item in enumerate(value)]
    if pa.types.is_map(kind):
        pairs = list(value.items()) if isinstance(value, dict) else value
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
        ):
            raise refuse("an object, or a list of pairs,")
        return [
            (
                arrow_value(key, kind.key_field, f"{where} key"),
                arrow_value(item, kind.item_field, f"{where}[{key!r}]"),
            )
            for key, item in pairs
        ]
    raise InvalidInput(f"{where}: values of type {kind} cannot be written in JSON", kind="not_supported")


def _bytes(value: Any, kind: pa.DataType, refusal: InvalidInput, refuse: Any) -> bytes:
    if not isinstance(value, str):
        raise refusal
    try:
        found = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise refusal from None
    if pa.types.is_fixed_size_binary(kind) and len(found) != kind.byte_width:
        raise refuse(f"base64 text of {kind.byte_width} bytes")
    return found


def _fits(number: Decimal, precision: int, scale: int) -> bool:
    """Return whether a decimal type can hold the number exactly."""
    if not number:
        return True
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # true for finite numbers
    significant = len(digits)
    while exponent < -scale and digits[significant - 1] == 0:
        exponent += 1
        significant -= 1
    return exponent >= -scale and significant + exponent <= precision - scale
