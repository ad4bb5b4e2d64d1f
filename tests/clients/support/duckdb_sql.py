"""Predicates written as SQL for DuckDB, with which tests judge what a predicate means."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from alpheus.where.engine_sql import EngineWriter
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column
from alpheus_journal.predicate import Compare, Path, Predicate, StartsWith, Value
from alpheus_journal.predicate.terms import FLOATS

_MICROS_MIN = -9_223_372_022_400_000_000


def duckdb_sql(predicate: Predicate, names: Mapping[int, Path]) -> str:
    """Return a condition that DuckDB evaluates as `alpheus_journal.predicate` does.

    Raises InvalidInput (`not_supported`) for dates and times before the first that DuckDB has.
    """
    return DuckDbWriter(names).write(predicate)


class DuckDbWriter(EngineWriter):
    _types = {"INT2": "SMALLINT", "INT4": "INTEGER", "INT8": "BIGINT", "FLOAT4": "FLOAT", "FLOAT8": "DOUBLE"}  # noqa: RUF012

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def name(self, column: Column) -> str:
        path = self._names.get(column.id, column.name)
        if isinstance(path, str):
            return self.quoted(path)
        first, *rest = map(self.quoted, path)
        return ".".join([f"({first})" if rest else first, *rest])  # a table may have the name of the struct

    def comparison(self, term: Compare) -> str:
        if term.op == "<=>" and term.column.type not in FLOATS:
            return f"{self.name(term.column)} IS NOT DISTINCT FROM {self.literal(term.column, term.value)}"
        return super().comparison(term)

    def is_nan(self, name: str) -> str:
        # with isnan, DuckDB skips files by minimum and maximum
        return f"(NOT (isfinite({name}) OR isinf({name})))"

    def prefix(self, term: StartsWith) -> str:
        return f"starts_with({self.name(term.column)}, {self.text(term.prefix)})"

    def text(self, value: str) -> str:
        if value.isprintable():
            return "'" + value.replace("'", "''") + "'"
        return f"decode(from_hex('{value.encode().hex().upper()}'))"

    def literal(self, column: Column, value: Value) -> str:
        if isinstance(value, bytes):
            return f"from_hex('{value.hex().upper()}')"
        return super().literal(column, value)

    def integer(self, column: Column, value: int) -> str:
        return f"CAST({value} AS {self._types[column.type]})"

    def real(self, column: Column, value: float) -> str:
        finite = value == value and value not in (float("inf"), float("-inf"))
        return f"CAST('{repr(value) if finite else self.real_name(value)}' AS {self._types[column.type]})"

    def decimal(self, column: Column, value: Decimal) -> str:
        return f"CAST('{value:f}' AS DECIMAL({column.properties['precision']}, {column.properties['scale']}))"

    def date(self, days: int) -> str:
        # DuckDB's infinities are the last numbers on both sides. One number is below them.
        limit = (1 << 31) - 1
        if abs(days) == limit:
            return f"CAST('{'-' if days < 0 else ''}infinity' AS DATE)"
        if days < -limit:
            raise self._too_early("date")
        return f"(DATE '1970-01-01' + {days})"

    def timestamp(self, column: Column, micros: int) -> str:
        zoned = column.type == "TIMESTAMPTZ6"
        limit = (1 << 63) - 1
        if abs(micros) == limit:
            return f"CAST('{'-' if micros < 0 else ''}infinity' AS TIMESTAMP{'TZ' if zoned else ''})"
        if micros < _MICROS_MIN:
            raise self._too_early("timestamp")
        return f"make_timestamp{'tz' if zoned else ''}({micros})"

    def _too_early(self, what: str) -> InvalidInput:
        return InvalidInput(
            f"DuckDB has no {what} so early", kind="not_supported", hint="compare with a later one"
        )
