"""Predicates as SQL text (FORMAT.md, "Predicates"): the canonical form, which clients parse back to an equal predicate.

`SqlWriter` is the base of the forms that engines run.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from alpheus_journal.model.definitions import Column
from alpheus_journal.predicate.terms import (
    TIMESTAMPS,
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Not,
    Or,
    Path,
    Predicate,
    StartsWith,
    Value,
)

_DAY = 86_400_000_000
"""Microseconds."""


def text(predicate: Predicate, names: Mapping[int, Path] | None = None) -> str:
    """Return canonical SQL. `names` are names of columns (`leaf_paths`); the default is those in the predicate."""
    return SqlWriter(names).write(predicate)


def civil(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a day since 1970-01-01, in the proleptic Gregorian calendar, for any year.

    The algorithm is from H. Hinnant, "chrono-compatible low-level date algorithms".
    """
    days += 719_468
    era, day_of_era = divmod(days, 146_097)
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1


def days_of(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a date, which must exist. The inverse of `civil`."""
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def date_text(days: int) -> str:
    """Return a date in ISO form. Years outside of 0000 to 9999 have a sign."""
    year, month, day = civil(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def timestamp_text(micros: int) -> str:
    """Return a time in ISO form, with a blank, six digits after the second, and no zone."""
    days, rest = divmod(micros, _DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    minutes, second = divmod(seconds, 60)
    return f"{date_text(days)} {minutes // 60:02}:{minutes % 60:02}:{second:02}.{fraction:06}"


class SqlWriter:
    """Writes predicates as SQL. Inner terms are in parentheses, and names are always quoted."""

    def __init__(self, names: Mapping[int, Path] | None = None) -> None:
        self._names = names or {}

    def write(self, term: Predicate) -> str:
        match term:
            case And(terms) | Or(terms):
                whole = isinstance(term, And)
                if len(terms) < 2:
                    return self.write(terms[0]) if terms else str(whole).upper()
                return (" AND " if whole else " OR ").join(map(self._atom, terms))
            case Not(IsNull(column)):
                return f"{self.name(column)} IS NOT NULL"
            case Not(In() as inner) if inner.values or inner.with_null:
                return self.membership(inner, "NOT IN")
            case Not(inner):
                return f"NOT ({self.write(inner)})"
            case Constant(value):
                return "NULL" if value is None else str(value).upper()
            case IsNull(column):
                return f"{self.name(column)} IS NULL"
            case StartsWith():
                return self.prefix(term)
            case In():
                return self.membership(term, "IN") if term.values or term.with_null else "FALSE"
            case Compare():
                return self.comparison(term)

    def _atom(self, term: Predicate) -> str:
        written = self.write(term)
        plain = not isinstance(term, And | Or | Not) or (
            isinstance(term, Not) and isinstance(term.term, IsNull | In)
        )
        return written if plain else f"({written})"

    def name(self, column: Column) -> str:
        path = self._names.get(column.id, column.name)
        return ".".join(self.quoted(part) for part in ((path,) if isinstance(path, str) else path))

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def comparison(self, term: Compare) -> str:
        return f"{self.name(term.column)} {term.op} {self.literal(term.column, term.value)}"

    def membership(self, term: In, word: str) -> str:
        values = [self.literal(term.column, value) for value in term.values]
        return (
            f"{self.name(term.column)} {word} ({', '.join([*values, 'NULL'] if term.with_null else values)})"
        )

    def prefix(self, term: StartsWith) -> str:
        if any(c in "%_" for c in term.prefix) or not plain_text(term.prefix):
            return f"startswith({self.name(term.column)}, {self.text(term.prefix)})"
        return f"{self.name(term.column)} LIKE {self.text(term.prefix + '%')}"

    def literal(self, column: Column, value: Value) -> str:
        kind: Any = value
        if isinstance(value, bool):
            return str(value).upper()
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes):
            return f"X'{value.hex().upper()}'"
        if isinstance(value, float):
            return self.real(column, value)
        if isinstance(value, Decimal):
            return self.decimal(column, value)
        if column.type == "DATE":
            return self.date(kind)
        return self.timestamp(column, kind) if column.type in TIMESTAMPS else self.integer(column, kind)

    def text(self, value: str) -> str:
        if plain_text(value):
            return "'" + value.replace("'", "''") + "'"
        return f"CAST(X'{value.encode().hex().upper()}' AS STRING)"

    def integer(self, column: Column, value: int) -> str:
        return str(value)

    def real(self, column: Column, value: float) -> str:
        if value != value or value in (float("inf"), float("-inf")):
            name = "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
            return f"CAST('{name}' AS DOUBLE)"
        return repr(value)

    def decimal(self, column: Column, value: Decimal) -> str:
        return format(value, "f")

    def date(self, days: int) -> str:
        return f"DATE '{date_text(days)}'"

    def timestamp(self, column: Column, micros: int) -> str:
        if column.type == "TIMESTAMPTZ6":
            return f"TIMESTAMP '{timestamp_text(micros)}Z'"
        return f"TIMESTAMP_NTZ '{timestamp_text(micros)}'"


def plain_text(value: str) -> bool:
    """Return whether the text can be written between quotes, with its quotes doubled."""
    return value.isprintable() and "\\" not in value
