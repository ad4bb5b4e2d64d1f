"""The row verbs of delete, update, and overwrite of some rows."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from alpheus.rows.arrow.cast import Caster, CastError
from alpheus.rows.arrow.input_data import cast_data, check_value, without_missing
from alpheus.rows.file_writer import PIECE_SIZE_BYTES_MAX
from alpheus.transactions.row_changes import RowVerb, is_storable
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column, PartitionField, TableDef
from alpheus_journal.model.operations import ChangeMode
from alpheus_journal.model.type_names import type_text
from alpheus_journal.predicate import (
    FALSE,
    IsNull,
    Predicate,
    all_of,
    any_of,
    columns_of,
    compare,
    keep,
    leaf_arrays,
    one_of,
    text,
)
from alpheus_journal.predicate.sql import days_of
from alpheus_journal.tables.partitions import partition_text


class Delete(RowVerb):
    mode = ChangeMode.DELETE

    def __init__(self, where: Predicate) -> None:
        self.sought = where

    def hits_of(self, rows: pa.RecordBatch, meant: pa.Array | None) -> pa.Array:
        return pa.repeat(pa.scalar(True), rows.num_rows) if meant is None else meant


_SET_VALUES = 'give one value for all rows, or an Arrow expression such as pyarrow.compute.field("n") + 1'


def check_set(set: Any) -> None:
    """Refuse a value that is not a dict of columns and values. Raises InvalidInput (`bad_argument`)."""
    if not isinstance(set, Mapping) or not set:
        flaw = "is not a dict of columns and values" if not isinstance(set, Mapping) else "changes nothing"
        raise InvalidInput(
            f"set={str(set)[:200]!r} {flaw}",
            kind="bad_argument",
            hint='give columns and values, as in {"status": "paid"}',
        )


def _python_value(scalar: pa.Scalar, name: str) -> Any:
    """Convert an Arrow scalar to a Python value. Raises CastError for a value that Python cannot hold (nanoseconds)."""
    try:
        while isinstance(scalar, pa.ExtensionScalar):
            if scalar.value is None:
                return None
            scalar = scalar.value
        if pa.types.is_timestamp(scalar.type) and scalar.type.unit == "ns":
            scalar = scalar.cast(pa.timestamp("us", scalar.type.tz))  # pandas would drop the nanoseconds
        return scalar.as_py()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise CastError(f"set: column {name!r}: {scalar.type} {scalar}: {str(error)[:200]}") from None


class Update(Delete):
    mode = ChangeMode.UPDATE

    def __init__(self, where: Predicate, set: Mapping[str, Any], columns: Sequence[Column]) -> None:
        """Raises CastError, and InvalidInput (`bad_argument`) for a column that does not exist."""
        super().__init__(where)
        check_set(set)
        self._columns = tuple(columns)
        by_name = {column.name: column for column in columns}
        self._values: dict[str, pa.Array] = {}
        self._expressions: dict[str, pc.Expression] = {}
        for name, value in set.items():
            if name not in by_name:
                raise InvalidInput(
                    f"set: column {name!r} is not in the table",
                    kind="bad_argument",
                    hint=f"use the table's columns: {', '.join(by_name)[:500]}; give a struct as a whole",
                )
            if isinstance(value, pa.Scalar):
                value = _python_value(value, name)
            if isinstance(value, pc.Expression):
                self._expressions[name] = value
            else:
                try:
                    self._values[name] = _array_of(value, by_name[name])
                except CastError as error:
                    raise CastError(f"set: {error}", error.hint or _SET_VALUES) from None
        self._casters = {name: Caster([by_name[name]], by_id=False) for name in self._expressions}

    def changed_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        computed = self._compute(rows)
        first = pa.repeat(pa.scalar(0), rows.num_rows)
        arrays = []
        for column, old in zip(self._columns, rows.columns, strict=True):
            if column.name in self._values:
                arrays.append(self._values[column.name].take(first))
            else:
                arrays.append(computed.get(column.name, old))
        return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)

    def _compute(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        if not self._expressions:
            return {}
        try:
            table = _project(rows, self._expressions)
        except _EXPRESSION_ERRORS as error:
            raise self._computation_error(rows, error) from None
        found: dict[str, pa.Array] = {}
        for name in self._expressions:
            chunks = table.column(name).chunks
            array = pa.concat_arrays(chunks) if chunks else pa.nulls(0)
            if len(array) != rows.num_rows:
                raise CastError(f"set: column {name!r} got {len(array)} values for {rows.num_rows} rows")
            batch = pa.RecordBatch.from_arrays([array], names=[name])
            found[name] = self._casters[name].cast(batch).column(0)
        return found

    def _computation_error(self, rows: pa.RecordBatch, error: Exception) -> CastError:
        """The error for expressions that fail. It names the column, which is found by computing each one alone."""
        what = "the expressions"
        for name, expression in self._expressions.items():
            try:
                _project(rows, {name: expression})
            except _EXPRESSION_ERRORS as alone:
                what, error = f"column {name!r}", alone
                break
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = ""
        if "FieldRef" in reason:
            hint = f"use the table's columns: {', '.join(rows.schema.names)[:500]}"
        elif "divide by zero" in reason.lower():
            hint = (
                "exclude rows that divide by 0 with where, or divide by NULL in these rows:"
                " pyarrow.compute.if_else(n == 0, pyarrow.scalar(None, type), n)"
            )
        elif "non-scalar" in reason or "MetaFunction" in reason:
            hint = "use expressions of one row only; compute other values first, and merge them by key"
        elif "precision" in reason.lower() or "decimal" in reason.lower():
            hint = 'write numbers beside a decimal column as decimal.Decimal("1")'
        return CastError(f"set: {what} cannot be computed: {reason[:300]}", hint)


_EXPRESSION_ERRORS = (pa.ArrowException, KeyError, TypeError)


def _project(rows: pa.RecordBatch, expressions: Mapping[str, pc.Expression]) -> pa.Table:
    """Raises `_EXPRESSION_ERRORS`."""
    from pyarrow import acero  # slow to import, and few programs need it

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([rows])))
    options = acero.ProjectNodeOptions(list(expressions.values()), list(expressions))
    project = acero.Declaration("project", options, inputs=[source])
    return project.to_table(use_threads=False).combine_chunks()


def _array_of(value: Any, column: Column) -> pa.Array:
    """Make an array of one value. Raises CastError."""
    check_value(value, column, column.name)
    kind = Caster([column], by_id=False).schema.field(0).type
    try:
        return pa.array(without_missing([value], column), kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise CastError(
            f"column {column.name!r} of type {type_text(column)} cannot hold the value: {str(error)[:200]}"
        ) from None


class Overwrite(Delete):
    """Replaces the rows for which `where` is TRUE by data. Refuses rows of the data for which `where` is not TRUE."""

    mode = ChangeMode.OVERWRITE
    falls_back = True

    def __init__(self, where: Predicate, data: Any, table: TableDef) -> None:
        super().__init__(where)
        self._where = where
        self._data = data
        self._columns = table.columns
        self._is_asked_twice = not is_storable(where, table)
        self._held: list[pa.RecordBatch] | None = None
        """The data, held when files are rewritten: it is then written a second time for feeds, and a reader gives its
        rows only once."""

    def inserted_rows(self) -> Iterator[pa.RecordBatch]:
        if not self._is_asked_twice:
            yield from self._check_inside()
            return
        if self._held is None:
            self._held = list(self._check_inside())
        yield from self._held

    def _check_inside(self) -> Iterator[pa.RecordBatch]:
        asked = [column.id for column in columns_of(self._where)]
        number = 0
        for batch in cast_data(self._data, self._columns, PIECE_SIZE_BYTES_MAX):
            inside = keep(self._where, leaf_arrays(self._columns, batch, asked), batch.num_rows)
            outside = pc.index(inside, False).as_py()
            if outside >= 0:
                raise CastError(
                    f"row {number + outside} is outside of the replaced rows, where {text(self._where)[:300]}",
                    "leave the row out, or append it",
                )
            number += batch.num_rows
            yield batch


# --- partitions ------------------------------------------------------------------------------------


def partitions_predicate(table: TableDef, partitions: Any) -> Predicate:
    """Return a predicate that is TRUE for the rows of some partitions. Raises InvalidInput (`bad_argument`).

    `partitions` is a list of dicts, an Arrow table, or a mapping of key columns to values or lists of values. Keys are
    named as in `partition_by` ("country", "day(ts)"), or by their column alone; some keys of the table may be left
    out. An Arrow table without rows means no partition, because a computation found none. An empty list or dict is
    refused.
    """
    fields = _fields_by_text(table)
    if isinstance(partitions, pa.Table | pa.RecordBatch) and partitions.num_columns:
        for name in partitions.schema.names:
            _find_field(name, fields, table)
        if not partitions.num_rows:
            return FALSE
    rows = _partition_rows(partitions)
    by_id = {column.id: column for column in table.columns}
    terms: list[Predicate] = []
    together: dict[PartitionField, list[Any]] = {}
    for row in rows:
        parts: list[Predicate] = []
        for key, value in row.items():
            field = _find_field(key, fields, table)
            if field.transform == "IDENTITY" and len(row) == 1 and value is not None:
                together.setdefault(field, []).append(value)
                continue
            parts.append(_predicate_of(field, by_id[field.column_id], value, key))
        if parts:
            terms.append(all_of(*parts))
    terms += [one_of(by_id[field.column_id], values) for field, values in together.items()]
    return any_of(*terms)


def _find_field(key: str, fields: Mapping[str, PartitionField], table: TableDef) -> PartitionField:
    field = fields.get(key)
    if field is None:
        known = ", ".join(partition_text(field, table.columns) for field in table.partition_spec)
        raise InvalidInput(
            f"partitions: {key!r} is not a partition key",
            kind="bad_argument",
            hint=f"use the table's keys: {known}" if known else "pass where: the table has no partitions",
        )
    return field


def _partition_rows(partitions: Any) -> list[dict[str, Any]]:
    if isinstance(partitions, pa.Table | pa.RecordBatch):
        partitions = partitions.to_pylist()
    elif isinstance(partitions, Mapping) and partitions:
        partitions = _zip_rows(partitions)
    if (
        not isinstance(partitions, list | tuple)
        or not partitions
        or not all(isinstance(row, Mapping) and row for row in partitions)
    ):
        known = isinstance(partitions, list | tuple | Mapping) and not partitions
        raise InvalidInput(
            f"partitions={str(partitions)[:200]!r} "
            + ("names no partition" if known else "does not name partitions"),
            kind="bad_argument",
            hint="give computed keys as a frame or an Arrow table, which may have no rows"
            if known
            else 'give a list of dicts as [{"country": "DE", "day(ts)": datetime.date(2026, 3, 1)}], an Arrow table, or'
            " one dict of keys and values or lists of values",
        )
    return [dict(row) for row in partitions]


def _zip_rows(partitions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Combine lists of one length: the first values of all keys are one row, the second values the next, and so on."""
    lists: dict[str, list[Any]] = {}
    for key, value in partitions.items():
        if isinstance(value, pa.Array | pa.ChunkedArray):
            lists[key] = value.to_pylist()
        elif isinstance(value, list | tuple | range) or (isinstance(value, Set) and len(partitions) == 1):
            lists[key] = list(value)
        elif isinstance(value, Mapping | Set | Iterator):
            raise InvalidInput(
                f"partitions: {key}={str(value)[:80]!r} is a {type(value).__name__}",
                kind="bad_argument",
                hint="give a value or a list of values; for several keys give lists of one length",
            )
        else:
            lists[key] = [value.as_py() if isinstance(value, pa.Scalar) else value]
    if len({len(values) for values in lists.values()}) > 1:
        lengths = ", ".join(f"{len(values)} of {key}" for key, values in lists.items())
        raise InvalidInput(
            f"partitions: lists of different lengths: {lengths}",
            kind="bad_argument",
            hint="give lists of one length, repeating values where needed, or give a list of dicts",
        )
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _fields_by_text(table: TableDef) -> dict[str, PartitionField]:
    fields: dict[str, PartitionField] = {}
    names = {column.id: column.name for column in table.columns}
    for field in table.partition_spec:
        fields[names[field.column_id]] = field
    for field in table.partition_spec:
        fields[partition_text(field, table.columns)] = field
    return fields


_DAY_MICROS = 86_400_000_000
_TEXTS = {
    "DAY": (re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), "2026-03-01"),
    "MONTH": (re.compile(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?"), "2026-03"),
    "YEAR": (re.compile(r"[0-9]{4}(-[0-9]{2}){0,2}"), "2026"),
}
"""By transform: the texts that name one of its values, and an example. A coarser text would name several values."""


def _predicate_of(field: PartitionField, column: Column, value: Any, key: str) -> Predicate:
    if value is None:
        return IsNull(column)
    if field.transform == "IDENTITY":
        return compare(column, "=", value)
    factor = 1 if column.type == "DATE" else _DAY_MICROS
    low, high = (day * factor for day in _span(field, value, key))
    return all_of(compare(column, ">=", low), compare(column, "<", high))


def _span(field: PartitionField, value: Any, key: str) -> tuple[int, int]:
    """The first day of a day, month or year, and the first day after it, both counted from 1970-01-01. Python may be
    unable to represent the second one."""
    texts, example = _TEXTS[field.transform]
    try:
        if isinstance(value, dt.datetime):
            raise ValueError("it is a point in time")
        if isinstance(value, str):
            if not texts.fullmatch(value):
                raise ValueError(f"it is not written as {example!r}")
            value = dt.date.fromisoformat(value + {4: "-01-01", 7: "-01"}.get(len(value), ""))
        elif isinstance(value, int) and not isinstance(value, bool) and field.transform == "YEAR":
            value = dt.date(value, 1, 1)
        if not isinstance(value, dt.date):
            raise ValueError(f"it is a {type(value).__name__}")
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            f"partitions: {key}={str(value)[:80]!r} is not a {field.transform.lower()}: {error}",
            kind="bad_argument",
            hint=f"give a date, or text such as {example!r}",
        ) from None
    year, month = value.year, value.month
    if field.transform == "DAY":
        day = days_of(year, month, value.day)
        return day, day + 1
    if field.transform == "MONTH":
        return days_of(year, month, 1), days_of(year + month // 12, month % 12 + 1, 1)
    return days_of(year, 1, 1), days_of(year + 1, 1, 1)
