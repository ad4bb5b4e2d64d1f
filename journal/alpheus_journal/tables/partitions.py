"""Partition specs and sort orders of native tables: rules, texts, and values of rows and files (FORMAT.md, "Partitions
and sort orders"). Pure.

A partition's value is the transform's result in the form of `encode_bound`, or None for NULL. The result is the
column's value for IDENTITY, and int32 days, months or years since 1970-01-01 (UTC) for DAY, MONTH and YEAR.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column, PartitionField, SortField
from alpheus_journal.model.type_names import type_text
from alpheus_journal.tables.columns import (
    BOUND_CODE_POINTS_MAX,
    Bound,
    bytes_upper,
    decode_bound,
    encode_bound,
    leaf_arrow_type,
    text_upper,
    unscaled,
)
from alpheus_journal.tables.data_file import DataFile

TRANSFORMS = ("IDENTITY", "DAY", "MONTH", "YEAR")

_OF_TIME = ("DATE", "TIMESTAMP6", "TIMESTAMPTZ6")
_DAY_MICROS = 86_400_000_000
_INT4 = Column(id=0, name="", type="INT4")
_PLAIN_NAME = re.compile(r"\w+")
_PARTITION_TEXT = re.compile(r"(identity|day|month|year)\s*\((.*)\)", re.IGNORECASE | re.DOTALL)
_SORT_TEXT = re.compile(r"(.*?)(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?", re.IGNORECASE | re.DOTALL)


def _schema_error(reason: str, hint: str = "") -> InvalidInput:
    return InvalidInput(reason, kind="bad_schema", hint=hint)


# --- rules -----------------------------------------------------------------------------------------


def check_partition_spec(spec: Sequence[PartitionField], columns: Sequence[Column]) -> None:
    """Refuse a partition spec that the columns do not allow. Raises InvalidInput (`bad_schema`) naming the column.

    Every key must be a top-level leaf column, only once, of a type that the transform takes.
    """
    by_id = _check_keys(spec, columns, "partition")
    for field in spec:
        column = by_id[field.column_id]
        if field.transform not in TRANSFORMS:
            raise _schema_error(
                f"column {column.name!r}: there is no partition transform {field.transform[:80]!r}"
            )
        if field.transform == "IDENTITY" and column.type in ("FLOAT4", "FLOAT8"):
            raise _schema_error(
                f"column {column.name!r} of type {type_text(column)} cannot be a partition key",
                "partition by another column: a float has too many values, and NaN and -0.0 have no fixed place",
            )
        if field.transform != "IDENTITY" and column.type not in _OF_TIME:
            raise _schema_error(
                f"column {column.name!r} of type {type_text(column)} has no {field.transform.lower()}",
                "partition by its value: only dates and timestamps have a day, month and year",
            )


def check_sort_order(order: Sequence[SortField], columns: Sequence[Column]) -> None:
    """Refuse a sort order that the columns do not allow; see `check_partition_spec`. Any leaf type can be sorted by."""
    _check_keys(order, columns, "sort")


def _check_keys(
    fields: Sequence[PartitionField] | Sequence[SortField], columns: Sequence[Column], what: str
) -> dict[int, Column]:
    if len(fields) > fmt.KEYS_COUNT_MAX:
        raise _schema_error(f"{len(fields)} {what} keys, at most {fmt.KEYS_COUNT_MAX} are allowed")
    by_id = {column.id: column for column in columns}
    seen: set[int] = set()
    for field in fields:
        column = by_id.get(field.column_id)
        if column is None:
            raise _schema_error(f"the {what} key {field.column_id} is the id of no top-level column")
        if column.children():
            raise _schema_error(
                f"column {column.name!r} of type {type_text(column)} cannot be a {what} key",
                "choose a top-level column of a simple type",
            )
        if column.id in seen:
            raise _schema_error(f"column {column.name!r} is a {what} key twice")
        seen.add(column.id)
    return by_id


# --- text ------------------------------------------------------------------------------------------


def parse_partition_by(texts: Sequence[str], columns: Sequence[Column]) -> tuple[PartitionField, ...]:
    """Parse texts such as `country`, `day(ts)`, "month(`odd name`)". Raises the errors of `check_partition_spec`."""
    spec = []
    for text in _check_texts(texts, "partition_by"):
        match = _PARTITION_TEXT.fullmatch(text.strip())
        transform, name = (match[1].upper(), match[2]) if match else ("IDENTITY", text)
        spec.append(PartitionField(_find_column(name, columns, text, _PARTITION_HINT).id, transform))
    check_partition_spec(spec, columns)
    return tuple(spec)


def parse_sort_by(texts: Sequence[str], columns: Sequence[Column]) -> tuple[SortField, ...]:
    """Parse texts such as `id`, `ts desc`, `ts desc nulls last`.

    Without a word on NULLs they come first in ascending and last in descending order, as in Spark. Raises the errors of
    `check_sort_order`.
    """
    order = []
    for text in _check_texts(texts, "sort_by"):
        match = _SORT_TEXT.fullmatch(text.strip())
        assert match is not None, "every text matches"
        descending = (match[2] or "").lower() == "desc"
        nulls_last = match[3].lower() == "last" if match[3] else descending
        column = _find_column(match[1], columns, text, _SORT_HINT)
        order.append(SortField(column.id, descending, nulls_last))
    check_sort_order(order, columns)
    return tuple(order)


def _check_texts(texts: Sequence[str], what: str) -> Sequence[str]:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise InvalidInput(
            f"{what} is not a list of texts",
            kind="bad_argument",
            hint='give a list such as ["country", "day(ts)"]',
        )
    return texts


_PARTITION_HINT = 'name a column, or identity, day, month or year of one, as in "day(ts)"'
_SORT_HINT = 'name a column, then asc or desc, then nulls first or last, as in "ts desc nulls last"'
_MORE_THAN_A_NAME = re.compile(r"[\s(]")


def _find_column(name: str, columns: Sequence[Column], text: str, form: str) -> Column:
    """Return the column of a name. `form` says what a text may be, and joins the hint for more than a name."""
    name = name.strip()
    if len(name) > 1 and name[0] == name[-1] == "`":
        name = name[1:-1].replace("``", "`")
    for column in columns:
        if column.name == name:
            return column
    like = next((column.name for column in columns if column.name.lower() == name.lower()), "")
    hint = f"it is called {like!r}" if like else f"there are {', '.join(c.name for c in columns)[:500]}"
    if not like and _MORE_THAN_A_NAME.search(name):
        hint = f"{form}; {hint}"
    raise _schema_error(f"{text[:200]!r}: there is no top-level column {name[:200]!r}", hint)


def _name(column: Column) -> str:
    if _PLAIN_NAME.fullmatch(column.name):
        return column.name
    return "`" + column.name.replace("`", "``") + "`"


def partition_text(field: PartitionField, columns: Sequence[Column]) -> str:
    """Return a key as `parse_partition_by` reads it, such as `country` or `day(ts)`. `columns` has the key's column."""
    name = _name(_column_of(field.column_id, columns))
    return name if field.transform == "IDENTITY" else f"{field.transform.lower()}({name})"


def sort_text(field: SortField, columns: Sequence[Column]) -> str:
    """Return a key as `parse_sort_by` reads it, such as `id`, `ts desc` or `ts desc nulls first`."""
    text = _name(_column_of(field.column_id, columns)) + (" desc" if field.descending else "")
    if field.nulls_last != field.descending:
        text += f" nulls {'last' if field.nulls_last else 'first'}"
    return text


def _column_of(number: int, columns: Sequence[Column]) -> Column:
    return next(column for column in columns if column.id == number)


def describe(
    spec: Sequence[PartitionField], columns: Sequence[Column], partition: Mapping[int, bytes | None]
) -> str:
    """Describe a partition: `country=DE/day(ts)=2026-03-01`. NULL is `NULL`; texts and bytes are cut to 64.

    Raises ValueError for a value that does not have its key's type.
    """
    parts = []
    for field in spec:
        value = value_text(field, _column_of(field.column_id, columns), partition[field.column_id])
        parts.append(f"{partition_text(field, columns)}={value}")
    return "/".join(parts)


def value_text(field: PartitionField, column: Column, value: bytes | None) -> str:
    """Describe one value of a partition; see `describe`."""
    if value is None:
        return "NULL"
    found = decode_value(field, column, value)
    if field.transform == "YEAR":
        return f"{1970 + int(found):04}"
    if field.transform == "MONTH":
        years, month = divmod(int(found), 12)
        return f"{1970 + years:04}-{month + 1:02}"
    if field.transform == "DAY" or column.type == "DATE":
        return _day_text(int(found))
    if column.type in _OF_TIME:
        days, micros = divmod(int(found), _DAY_MICROS)
        clock = (datetime(1970, 1, 1) + timedelta(microseconds=micros)).time().isoformat()
        return f"{_day_text(days)}T{clock}" + ("Z" if column.type == "TIMESTAMPTZ6" else "")
    if isinstance(found, bytes):
        return found[:BOUND_CODE_POINTS_MAX].hex()
    if isinstance(found, bool):
        return "true" if found else "false"
    return str(found)[:BOUND_CODE_POINTS_MAX]


def _day_text(days: int) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        return f"day {days}"


# --- values ----------------------------------------------------------------------------------------


def result_column(field: PartitionField, column: Column) -> Column:
    """Return the column of the transform's result, for encoding and decoding the key's values."""
    return column if field.transform == "IDENTITY" else _INT4


def result_type(field: PartitionField, column: Column) -> pa.DataType:
    """Return the Arrow type of the key's values in `partition_arrays`."""
    return leaf_arrow_type(result_column(field, column), column.name)


def decode_value(field: PartitionField, column: Column, data: bytes) -> Bound:
    """Decode a stored partition value, in the units of `decode_bound`. Raises ValueError."""
    return decode_bound(result_column(field, column), data)


def apply_transform(field: PartitionField, column: Column, value: Bound) -> Bound:
    """Return the key's value for a column's value, both in the units of `decode_bound`."""
    if field.transform == "IDENTITY":
        return value
    assert isinstance(value, int)
    days = value if column.type == "DATE" else value // _DAY_MICROS
    if field.transform == "DAY":
        return days
    months = _months(days)
    return months if field.transform == "MONTH" else months // 12


def value_of(field: PartitionField, column: Column, value: Bound | None) -> bytes | None:
    """Return the stored partition value for a column's value in the units of `decode_bound`; None for NULL."""
    if value is None:
        return None
    return _encode_value(field, column, apply_transform(field, column, value))


def _encode_value(field: PartitionField, column: Column, result: Bound) -> bytes:
    return encode_bound(result_column(field, column), unscaled(column, result))


def _months(days: int) -> int:
    """Return the months from 1970-01 to a day's month, in the proleptic Gregorian calendar.

    Also works for days that Python's `date` does not have.
    """
    era, day = divmod(days + _DAYS_TO_1970, _ERA_DAYS)  # an era is 400 years from a 1st of March
    year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    month = (5 * (day - (365 * year + year // 4 - year // 100)) + 2) // 153  # 0: March
    return (era * 400 + year - 1970) * 12 + month + 2


_ERA_DAYS = 146_097
_DAYS_TO_1970 = 719_468  # since 0000-03-01
_ERAS_SHIFT = 14_700  # makes the days of any int32 positive, where Arrow's division rounds like Python's


def partition_arrays(
    spec: Sequence[PartitionField], columns: Sequence[Column], batch: pa.RecordBatch
) -> list[pa.Array]:
    """Return the keys' values of each row: one array of `result_type` for each key of `spec`, NULL where the column is.

    `batch` has the table's columns, typed as they are, in the order of `columns`.
    """
    place = {column.id: index for index, column in enumerate(columns)}
    return [
        _transform_array(field, columns[place[field.column_id]], batch.column(place[field.column_id]))
        for field in spec
    ]


def _transform_array(field: PartitionField, column: Column, array: pa.Array) -> pa.Array:
    if field.transform == "IDENTITY":
        return array
    if column.type == "DATE":
        days = array.cast(pa.int32()).cast(pa.int64())
    else:
        days = _floor(array.cast(pa.int64()), _DAY_MICROS)
    if field.transform == "DAY":
        return days.cast(pa.int32())
    months = _months_array(days)
    return (months if field.transform == "MONTH" else _floor(months, 12)).cast(pa.int32())


def _floor(array: pa.Array, divisor: int) -> pa.Array:
    """Divide and round down. Arrow's division rounds to zero."""
    quotient = pc.divide(array, divisor)
    below = pc.less(pc.subtract(array, pc.multiply(quotient, divisor)), 0)
    return pc.subtract(quotient, below.cast(pa.int64()))


def _months_array(days: pa.Array) -> pa.Array:
    """Return the months of days; see `_months`."""

    def over(array: pa.Array, divisor: int) -> pa.Array:
        return pc.divide(array, divisor)

    shifted = pc.add(days, _DAYS_TO_1970 + _ERAS_SHIFT * _ERA_DAYS)
    era = over(shifted, _ERA_DAYS)
    day = pc.subtract(shifted, pc.multiply(era, _ERA_DAYS))
    year = over(
        pc.subtract(pc.add(pc.subtract(day, over(day, 1460)), over(day, 36524)), over(day, 146_096)), 365
    )
    first = pc.subtract(pc.add(pc.multiply(year, 365), over(year, 4)), over(year, 100))
    month = over(pc.add(pc.multiply(pc.subtract(day, first), 5), 2), 153)
    years = pc.add(pc.multiply(pc.subtract(era, _ERAS_SHIFT), 400), pc.subtract(year, 1970))
    return pc.add(pc.multiply(years, 12), pc.add(month, 2))


# --- files -----------------------------------------------------------------------------------------


def flaw_of_partition(spec: Sequence[PartitionField], columns: Sequence[Column], file: DataFile) -> str:
    """Return why a data file cannot be in the partition that it names, or "" when it can.

    The partition must have the keys of the spec. The file's bounds, NULLs and missing columns must fit the partition.
    """
    if file.partition.keys() != {field.column_id for field in spec}:
        have = ", ".join(map(str, sorted(file.partition))) or "none"
        want = ", ".join(str(field.column_id) for field in spec) or "none"
        return f"its partition has the column ids {have}, but the table's partitions have {want}"
    for field in spec:
        column = _column_of(field.column_id, columns)
        value = file.partition[column.id]
        try:
            if value is not None and value != _encode_value(
                field, column, decode_value(field, column, value)
            ):
                raise ValueError("its value is not in the stored form of such values")
            find_flaw = _flaw_of_values if column.id in file.value_counts else _flaw_of_absent
            flaw = find_flaw(field, column, value, file)
        except ValueError as error:
            flaw = str(error)
        if flaw:
            return f"partition {partition_text(field, columns)}: {flaw}"
    return ""


def _flaw_of_absent(field: PartitionField, column: Column, value: bytes | None, file: DataFile) -> str:
    """Return the flaw of a file without the column, whose rows all have the initial default."""
    default = column.initial_default
    all_have = None if default is None else value_of(field, column, decode_bound(column, default))
    if value == all_have or not file.row_count:
        return ""
    return f"the file lacks the column, so its rows have {value_text(field, column, all_have)}"


def _flaw_of_values(field: PartitionField, column: Column, value: bytes | None, file: DataFile) -> str:
    nulls = file.null_counts.get(column.id)
    lower, upper = file.lower_bounds.get(column.id), file.upper_bounds.get(column.id)
    if value is None:
        if lower is not None or upper is not None or (nulls is not None and nulls != file.row_count):
            return "its value is NULL, but the file holds values"
        return ""
    if nulls:
        return f"its value is {value_text(field, column, value)}, but the file holds {nulls} NULLs"
    found = decode_value(field, column, value)
    for bound, widest in ((lower, _lowest), (upper, _highest)):
        if bound is None:
            continue
        own = decode_bound(column, bound)
        if apply_transform(field, column, own) != found and own != widest(found):
            return f"its value is {value_text(field, column, value)}, but the file's bounds are outside of it"
    return ""


def _lowest(value: Bound) -> Bound | None:
    """Return the lower bound of a file that only has `value`. A cut bound is not the value itself."""
    return value[:BOUND_CODE_POINTS_MAX] if isinstance(value, str | bytes) else value


def _highest(value: Bound) -> Bound | None:
    cut: Callable[..., Bound | None] = text_upper if isinstance(value, str) else bytes_upper
    return cut(value) if isinstance(value, str | bytes) else value
