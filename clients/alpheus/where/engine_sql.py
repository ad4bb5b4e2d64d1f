"""Write predicates as SQL for Spark. The writer for another engine is another subclass of `EngineWriter`.

The writer does not use sqlglot, because a writer that builds expressions of sqlglot 30.30 was longer (183 lines instead
of 136) and slower (1.1 ms instead of 0.05 ms for a random condition). Most lines here are rules for NaN, zeros and far
dates, which sqlglot does not have, and the methods that only write text are 34 lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from alpheus.where.times import DAY_MICROS
from alpheus_journal.model.definitions import Column
from alpheus_journal.predicate import NAN, Compare, Constant, In, Path, Predicate, StartsWith, Value
from alpheus_journal.predicate.sql import SqlWriter, days_of, timestamp_text
from alpheus_journal.predicate.terms import FLOATS

_DAY_MIN, _DAY_MAX = days_of(1, 1, 1), days_of(9999, 12, 31)


def spark_sql(predicate: Predicate, names: Mapping[int, Path]) -> str:
    """The SQL of a condition that Spark evaluates as `alpheus_journal.predicate` does. `names`: see `leaf_paths`."""
    return _SparkWriter(names).write(predicate)


class EngineWriter(SqlWriter):
    """Writes literals with the column's type. The minimum and maximum of a file leave NaN out, and may distinguish -0.0
    and 0.0. So conditions on floats are written such that an engine skips no file by them that holds a match."""

    null = "CAST(NULL AS BOOLEAN)"

    def write(self, term: Predicate) -> str:
        if isinstance(term, Constant) and term.value is None:
            return self.null
        return super().write(term)

    def comparison(self, term: Compare) -> str:
        if term.column.type in FLOATS and isinstance(term.value, float):
            return self.real_comparison(term.column, term.op, term.value)
        return super().comparison(term)

    def real_comparison(self, column: Column, op: str, value: float) -> str:
        name = self.name(column)
        if op == "<=>":
            return f"coalesce({self.real_comparison(column, '=', value)}, FALSE)"
        nan = self.is_nan(name)
        if value != value:
            outcome = {
                "=": nan, ">=": nan, "!=": f"NOT {nan}", "<": f"NOT {nan}", "<=": "TRUE", ">": "FALSE",
            }[op]  # fmt: skip
            return f"CASE WHEN {name} IS NULL THEN {self.null} ELSE {outcome} END"
        # There are two zeros; take the zero outside of the range.
        literal = self.real(column, -0.0 if value == 0.0 and op in ("<", ">=") else value + 0.0)
        core = f"{name} {op} {literal}"
        if value == 0.0 and op in ("=", "!="):
            negative = self.real(column, -0.0)
            core = f"({core} {'OR' if op == '=' else 'AND'} {name} {op} {negative})"
        return f"({core} OR {nan})" if op in ("!=", ">", ">=") else f"({core} AND NOT {nan})"

    def is_nan(self, name: str) -> str:
        return f"isnan({name})"

    def membership(self, term: In, word: str) -> str:
        if not term.values:
            return self.null
        if term.column.type not in FLOATS:
            return super().membership(term, word)
        name = self.name(term.column)
        reals = [value for value in term.values if isinstance(value, float)]
        numbers = [self.real(term.column, value) for value in reals if value == value and value != 0.0]
        parts = [f"({name} IN ({', '.join(numbers)}) AND NOT {self.is_nan(name)})"] if numbers else []
        for value in (0.0, NAN):
            if any(real == value or (real != real and value != value) for real in reals):
                parts.append(self.real_comparison(term.column, "=", value))
        if term.with_null:
            parts.append(self.null)
        return f"{'NOT ' if word == 'NOT IN' else ''}({' OR '.join(parts)})"

    def real_name(self, value: float) -> str:
        return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")


class _SparkWriter(EngineWriter):
    _suffixes = {"INT2": "S", "INT4": "", "INT8": "L"}  # noqa: RUF012 - never changed

    def text(self, value: str) -> str:
        # A text with escapes or variables is written as hex, because their meaning depends on the session's settings.
        if value.isprintable() and not any(c in "'\\$" for c in value):
            return f"'{value}'"
        return f"CAST(X'{value.encode().hex().upper()}' AS STRING)"

    def comparison(self, term: Compare) -> str:
        if self._is_far(term.column, [term.value]):
            return f"{self._counted(term.column)} {term.op} {self._count(term.column, term.value)}"
        return super().comparison(term)

    def membership(self, term: In, word: str) -> str:
        if not self._is_far(term.column, term.values):
            return super().membership(term, word)
        counts = [self._count(term.column, value) for value in term.values]
        nulls = ["NULL"] if term.with_null else []
        return f"{self._counted(term.column)} {word} ({', '.join(counts + nulls)})"

    def _is_far(self, column: Column, values: Sequence[Value]) -> bool:
        """Return whether a value is outside the years 1 to 9999. Spark overflows when it hands such a value to the
        Parquet reader."""
        limits = {
            "DATE": (_DAY_MIN, _DAY_MAX),
            "TIMESTAMPTZ6": (_DAY_MIN * DAY_MICROS, _DAY_MAX * DAY_MICROS),
        }.get(column.type)
        return limits is not None and any(
            isinstance(value, int) and not limits[0] <= value < limits[1] for value in values
        )

    def _counted(self, column: Column) -> str:
        return f"unix_{'date' if column.type == 'DATE' else 'micros'}({self.name(column)})"

    def _count(self, column: Column, value: Any) -> str:
        return f"{value!s}{'' if column.type == 'DATE' else 'L'}"

    def prefix(self, term: StartsWith) -> str:
        return f"startswith({self.name(term.column)}, {self.text(term.prefix)})"

    def integer(self, column: Column, value: int) -> str:
        return f"{value}{self._suffixes[column.type]}"

    def real(self, column: Column, value: float) -> str:
        kind = "FLOAT" if column.type == "FLOAT4" else "DOUBLE"
        if value != value or value in (float("inf"), float("-inf")):
            return f"CAST('{self.real_name(value)}' AS {kind})"
        return f"CAST('{value!r}' AS {kind})"

    def decimal(self, column: Column, value: Decimal) -> str:
        return f"CAST('{value:f}' AS DECIMAL({column.properties['precision']}, {column.properties['scale']}))"

    def timestamp(self, column: Column, micros: int) -> str:
        if column.type == "TIMESTAMPTZ6":
            return f"TIMESTAMP_LTZ '{timestamp_text(micros)}Z'"
        return f"TIMESTAMP_NTZ '{timestamp_text(micros)}'"
