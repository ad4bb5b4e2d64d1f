"""Data of callers, Python rows or Arrow data of any kind, as batches with a table's columns."""

from __future__ import annotations

import datetime as dt
import math
import numbers
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from alpheus.rows.arrow.cast import Caster, CastError, column_error, fields_of, not_plain_error
from alpheus.rows.arrow.empty_arrays import mend_empty
from alpheus.rows.arrow.layouts import FAILURES, plain_size
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column, walk_columns
from alpheus_journal.model.type_names import type_text
from alpheus_journal.tables.columns import (
    decode_default,
    is_list,
    plain_type,
    python_value,
)

SLICE_ROWS_MAX = 1 << 16

# --- rows of Python values -------------------------------------------------------------------------


def check_value(value: Any, column: Column, path: str) -> None:
    """Refuse a Python value that Arrow would silently convert to the type, or refuse without naming the column. Raises
    CastError."""
    if value is None or (column.type in _TEMPORAL and _is_nat(value)):
        if not column.nullable:
            raise column_error(path, f"is required, but holds {value}")
        return
    match column.type:
        case "STRUCT":
            fits = isinstance(value, Mapping)
            if fits:
                _check_row(value, column.fields, path + ".")
        case "LIST":
            fits = isinstance(value, Sequence) and not isinstance(value, str | bytes)
            if fits and column.element is not None:
                for item in value:
                    check_value(item, column.element, f"{path}.element")
        case "MAP":
            pairs = value.items() if isinstance(value, Mapping) else value
            fits = isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes)
            if fits and column.key is not None and column.value is not None:
                for pair in pairs:
                    if not isinstance(pair, tuple) or len(pair) != 2:
                        raise column_error(
                            path, f"of type {type_text(column)} cannot hold a {type(pair).__name__} as a pair"
                        )
                    check_value(pair[0], column.key, f"{path}.key")
                    check_value(pair[1], column.value, f"{path}.value")
        case _:
            fits = _LEAF_CHECKS[column.type](value)
    if not fits and value is _pandas_na():
        check_value(None, column, path)
    elif not fits:
        is_nan = isinstance(value, float) and math.isnan(value)
        raise column_error(
            path,
            f"of type {type_text(column)} cannot hold {str(value)[:80]!r} ({type(value).__name__})",
            _WANTED.get(column.type, "give NULL as None, or as pandas.NA" if is_nan else ""),
        )


_WANTED = {
    "DATE": "give a datetime.date",
    "TIMESTAMP6": "give a datetime.datetime without a zone, of microseconds",
    "TIMESTAMPTZ6": "give a datetime.datetime of microseconds with a zone, as tzinfo=datetime.timezone.utc",
    "DECIMAL": "give a decimal.Decimal or an int",
}
"""By type: the Python value to give, where a caller may expect another one."""
_TEMPORAL = ("DATE", "TIMESTAMP6", "TIMESTAMPTZ6")


def _is_nat(value: Any) -> bool:
    """Return whether the value is pandas' NaT, a datetime that does not equal itself. NaT means NULL."""
    return isinstance(value, dt.datetime) and value != value


def _pandas_na() -> Any:
    """pandas.NA, the missing value of any type, which means NULL. Returns None where pandas is not imported, because
    then no caller holds pandas.NA."""
    return getattr(sys.modules.get("pandas"), "NA", None)


def without_missing(values: Iterable[Any], column: Column) -> list[Any]:
    """Checked values of a column, with None in place of pandas' NaT and NA. Arrow would make a date of NaT, or fail."""
    na = _pandas_na()
    found = list(values) if na is None else [None if value is na else value for value in values]
    if column.type in _TEMPORAL:
        return [None if value != value else value for value in found]
    if not column.children():
        return found
    return [None if value is None else _value_without_missing(value, column) for value in found]


def _value_without_missing(value: Any, column: Column) -> Any:
    if column.type == "LIST" and column.element is not None:
        return without_missing(value, column.element)
    if column.type == "MAP" and column.key is not None and column.value is not None:
        keys, items = (
            zip(*(value.items() if isinstance(value, Mapping) else value), strict=True) if value else ((), ())
        )
        return list(zip(without_missing(keys, column.key), without_missing(items, column.value), strict=True))
    return {field.name: without_missing([value.get(field.name)], field)[0] for field in column.fields}


def _is_datetime(value: Any, *, zoned: bool) -> bool:
    """Return whether the value is a datetime with or without a zone, as `zoned` says, and without the nanoseconds that
    pandas has and Arrow would drop."""
    return (
        isinstance(value, dt.datetime)
        and (value.utcoffset() is not None) == zoned
        and not getattr(value, "nanosecond", 0)
    )


def _boolean(value: Any) -> bool:
    is_of_numpy = getattr(getattr(value, "dtype", None), "kind", "") == "b"
    return isinstance(value, bool) or is_of_numpy


def _integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


_FLOAT4_MAX = 3.4028234663852886e38
_LEAF_CHECKS: dict[str, Callable[[Any], bool]] = {
    "BOOLEAN": _boolean,
    "INT2": _integer,
    "INT4": _integer,
    "INT8": _integer,
    "FLOAT4": lambda value: _real(value) and (not math.isfinite(value) or abs(value) <= _FLOAT4_MAX),
    "FLOAT8": lambda value: _real(value),
    "DECIMAL": lambda value: isinstance(value, Decimal) or _integer(value),
    "VARCHAR": lambda value: isinstance(value, str),
    "BINARY": lambda value: isinstance(value, bytes | bytearray | memoryview),
    "FIXED": lambda value: isinstance(value, bytes | bytearray | memoryview),
    "DATE": lambda value: isinstance(value, dt.date) and not isinstance(value, dt.datetime),
    "TIMESTAMP6": lambda value: _is_datetime(value, zoned=False),
    "TIMESTAMPTZ6": lambda value: _is_datetime(value, zoned=True),
}


def _check_row(row: Mapping[Any, Any], columns: Sequence[Column], prefix: str) -> None:
    names = {column.name for column in columns}
    for name in row:
        if name not in names:
            raise column_error(
                f"{prefix}{name}", "is not in the table", f"it has {', '.join(sorted(names))[:500]}"
            )
    for column in columns:
        if column.write_default is None or column.name in row:
            check_value(row.get(column.name), column, prefix + column.name)


def _with_defaults(
    row: Mapping[Any, Any], columns: Sequence[Column], defaults: Mapping[int, Any]
) -> dict[str, Any]:
    """A checked row with defaults for the columns that it leaves out. `defaults` maps column ids to values."""
    values = {}
    for column in columns:
        value = row[column.name] if column.name in row else defaults.get(column.id)
        if column.fields and isinstance(value, Mapping):
            value = _with_defaults(value, column.fields, defaults)
        values[column.name] = value
    return values


def _batch_of_rows(
    rows: Sequence[Any], start: int, columns: Sequence[Column], schema: pa.Schema
) -> pa.RecordBatch:
    for number, row in enumerate(rows, start):
        if not isinstance(row, Mapping):
            raise CastError(f"row {number} is a {type(row).__name__}, not a dict")
        try:
            _check_row(row, columns, "")
        except CastError as error:
            raise CastError(f"row {number}: {error}", error.hint) from None
    defaults = {
        column.id: python_value(column, decode_default(column, column.write_default))
        for column in walk_columns(columns)
        if column.write_default is not None
    }
    if defaults:
        rows = [_with_defaults(row, columns, defaults) for row in rows]
    arrays = []
    for column, field in zip(columns, schema, strict=True):
        values = without_missing((row.get(column.name) for row in rows), column)
        try:
            arrays.append(pa.array(values, field.type))
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise column_error(
                column.name, f"holds a value that {type_text(column)} cannot hold: {str(error)[:200]}"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- data of any kind -------------------------------------------------------------------------------


def cast_data(
    data: Any, columns: Sequence[Column], size_max: int, *, by_id: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield `data` with the table's types, in pieces of about `size_max` bytes. Raises CastError, InvalidInput."""
    caster = Caster(columns, by_id=by_id)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        if not isinstance(data, list | tuple):
            data = list(data)  # some sequences cannot be sliced
        for start in range(0, len(data), SLICE_ROWS_MAX):
            rows = data[start : start + SLICE_ROWS_MAX]
            yield from _pieces(_batch_of_rows(rows, start, columns, caster.schema), size_max)
        return
    schema, batches = arrow_of(data)
    # Data without rows is refused, too, when its columns are not those of the table.
    caster.cast(_without_rows(schema))
    for batch in batches:
        for piece in _pieces(batch, size_max):
            fit = caster.cast(piece)
            try:
                fit.validate(full=True)
            except pa.ArrowException as error:
                raise CastError(f"the Arrow data is not valid: {str(error)[:300]}") from None
            yield fit


def _without_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows, of the types after decoding, because Arrow cannot make empty arrays of some encodings, such
    as dates in dictionaries."""
    fields, arrays = [], []
    for given in schema:
        try:
            field = given.with_type(_decoded_type(given.type))
            arrays.append(pa.array([], field.type))
        except pa.ArrowNotImplementedError:  # for example a union
            raise column_error(given.name, f"has type {given.type}, which tables do not support") from None
        except FAILURES as error:
            raise not_plain_error(given, error) from None
        fields.append(field)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _decoded_type(kind: pa.DataType) -> pa.DataType:
    kind = plain_type(kind)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_decoded_type(field.type)) for field in fields_of(kind)])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_decoded_type(key.type)), item.with_type(_decoded_type(item.type)))
    if is_list(kind):
        return pa.list_(kind.value_field.with_type(_decoded_type(kind.value_type)))
    return kind


def arrow_of(data: Any) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """The schema and batches of Arrow data, or of data that converts to Arrow. Raises CastError, and InvalidInput for a
    value that is not data."""
    if isinstance(data, pa.RecordBatch):
        return data.schema, [data]
    if isinstance(data, pa.Table):
        return data.schema, data.to_batches()
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, _read_once(data)
    # A caller with a value of these types has imported their modules. Importing them here would slow other callers.
    pandas, dataset = sys.modules.get("pandas"), sys.modules.get("pyarrow.dataset")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        try:
            table = pa.Table.from_pandas(data, preserve_index=False)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise CastError(
                f"the pandas DataFrame cannot be converted to Arrow: {str(error)[:300]}"
            ) from None
        return table.schema.remove_metadata(), table.to_batches()
    if dataset is not None and isinstance(data, dataset.Dataset):
        return data.schema, data.to_batches()
    try:
        if hasattr(data, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(data)
            return reader.schema, reader
        if hasattr(data, "__arrow_c_array__"):
            batch = pa.record_batch(data)
            return batch.schema, [batch]
    except (pa.ArrowException, TypeError, ValueError) as error:  # for example for one column without a name
        raise CastError(
            f"{type(data).__name__} cannot be read as an Arrow table: {str(error)[:300]}",
            'name the columns, as in pyarrow.table({"name": values})',
        ) from None
    raise InvalidInput(
        f"{type(data).__name__} is not data that can be written",
        hint="compute it first, with .collect()"
        if hasattr(data, "collect")
        else "give a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, a pandas or polars DataFrame,"
        " or a list of dicts",
    )


_read: weakref.WeakSet[pa.RecordBatchReader] = weakref.WeakSet()
"""Readers that have given rows."""


def _read_once(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the reader's batches. Refuse a reader that has given rows before: a retried transaction would get no rows
    from it, and lose them. Raises CastError."""
    if reader in _read:
        raise CastError(
            "the RecordBatchReader was read before, and it gives its rows only once",
            "make a new reader for each attempt, inside the retried function; or give a Table",
        )
    for batch in reader:
        if batch.num_rows:
            _read.add(reader)
        yield batch


def _pieces(batch: pa.RecordBatch, size_max: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of at most `size_max` bytes, or of one row."""
    batch = mend_empty(batch)
    rows = min(SLICE_ROWS_MAX, batch.num_rows)
    size = batch.nbytes
    if size:
        rows = min(rows, batch.num_rows * size_max // size)
    rows = max(1, rows)
    for start in range(0, batch.num_rows, rows):
        yield from _halves(batch.slice(start, rows), size_max)


def _halves(batch: pa.RecordBatch, size_max: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of at most `size_max` bytes, or of one row, measured in plain layout; see `layouts`."""
    try:
        is_small = batch.num_rows <= 1 or sum(map(plain_size, batch.columns)) <= size_max
    except FAILURES:
        is_small = True  # the cast raises an error that names the column
    if is_small:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _halves(batch.slice(0, half), size_max)
    yield from _halves(batch.slice(half), size_max)
