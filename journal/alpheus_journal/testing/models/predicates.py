"""The meaning of predicates as a second implementation: row by row, in Python. Also random predicates and rows.

For tests of all code that evaluates predicates. Rows are dicts by field id. Their values are those of
`alpheus_journal.predicate`, with None for NULL.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from alpheus_journal.model.definitions import Column
from alpheus_journal.predicate import (
    FLOATS,
    INTEGER_RANGES,
    NAN,
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    Value,
    encode_value,
    one_of,
    starts_with,
)
from alpheus_journal.tables.columns import BOUND_CODE_POINTS_MAX, bytes_upper, leaf_arrow_type, text_upper
from alpheus_journal.tables.data_file import DataFile

Row = Mapping[int, Value | None]
OPERATORS: tuple[Any, ...] = ("=", "!=", "<", "<=", ">", ">=", "<=>")


def a_column(number: int, type_name: str, **properties: object) -> Column:
    return Column(
        id=number, name=f"c{number}", type=type_name, properties={k: str(v) for k, v in properties.items()}
    )


COLUMNS = (
    a_column(1, "BOOLEAN"),
    a_column(2, "INT2"),
    a_column(3, "INT4"),
    a_column(4, "INT8"),
    a_column(5, "FLOAT4"),
    a_column(6, "FLOAT8"),
    a_column(7, "DECIMAL", precision=5, scale=2),
    a_column(8, "DECIMAL", precision=38, scale=10),
    a_column(9, "VARCHAR"),
    a_column(10, "BINARY"),
    a_column(11, "FIXED", length=2),
    a_column(12, "DATE"),
    a_column(13, "TIMESTAMP6"),
    a_column(14, "TIMESTAMPTZ6"),
)
"""One column of each type, and two decimals."""

# --- the meaning -----------------------------------------------------------------------------------


def truth(term: Predicate, row: Row) -> bool | None:
    match term:
        case And(terms) | Or(terms):
            stops = isinstance(term, Or)
            found = [truth(inner, row) for inner in terms]
            return stops if stops in found else None if None in found else not stops
        case Not(inner):
            value = truth(inner, row)
            return None if value is None else not value
        case Constant(constant):
            return constant
        case IsNull(column):
            return row[column.id] is None
        case StartsWith(column, prefix):
            text: Any = row[column.id]
            return None if text is None else text.encode()[: len(prefix.encode())] == prefix.encode()
        case In(column, values, with_null):
            tries: list[Predicate] = [Compare(column, "=", value) for value in values]
            return truth(Or((*tries, Constant(None)) if with_null else tuple(tries)), row)
        case Compare(column, op, value):
            return _compare(op, row[column.id], value)


def _compare(op: str, left: Value | None, right: Value) -> bool | None:
    if left is None:
        return False if op == "<=>" else None
    a, b = _key(left), _key(right)
    outcomes: dict[str, bool] = {
        "=": a == b, "<=>": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b,
    }  # fmt: skip
    return outcomes[op]


def _key(value: Value) -> Any:
    if isinstance(value, int | float | Decimal):
        return (1, 0) if value != value else (0, value)
    return value.encode() if isinstance(value, str) else value


# --- random values ---------------------------------------------------------------------------------

_TEXTS = (
    "",
    "a",
    "ab",
    "aé",
    "ab%",
    "a_b",
    "it's",
    "\\",
    "é",
    "\ud7ff",
    "\ue000",
    "\U0010ffff",
    "a\0b",
    "${a}",
    '"`',
)
_REALS = (
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    5e-324,
    1e300,
    math.inf,
    -math.inf,
    NAN,
    3.4028234663852886e38,
    16777217.0,
)
_LONG = ("k" * 70, "k" * 64 + "l", "k" * 64, "\U0010ffff" * 70)


def random_value(rng: random.Random, column: Column) -> Value:
    """Return a random value, mostly one of a few, so that values coincide. The extremes of the type are among these."""
    if column.type == "BOOLEAN":
        return rng.random() < 0.5
    if column.type in INTEGER_RANGES:
        low, high = INTEGER_RANGES[column.type]
        if rng.random() < 0.15:  # in the 12th century; calendars differ before 1582
            return max(low, min(high, -300_000 * (1 if column.type == "DATE" else 86_400_000_000)))
        return rng.choice(
            (low, low + 1, high - 1, high, -1, 0, 1, 2, 3, rng.randint(-9, 9), rng.randint(low, high))
        )
    if column.type in FLOATS:
        number = rng.choice((*_REALS, rng.uniform(-3, 3), float(rng.randint(-3, 3))))
        return number if column.type == "FLOAT8" or number != number else _single(number)
    if column.type == "DECIMAL":
        scale, limit = int(column.properties["scale"]), 10 ** int(column.properties["precision"]) - 1
        unscaled = rng.choice((0, 1, -1, 10**scale, limit, -limit, rng.randint(-limit, limit)))
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
    if column.type == "VARCHAR":
        return rng.choice((*_TEXTS, *_LONG))
    if column.type == "FIXED":
        return bytes(rng.choice((0, 1, 127, 128, 255)) for _ in range(int(column.properties["length"])))
    return bytes(rng.choice((0, 1, 97, 128, 255)) for _ in range(rng.choice((0, 1, 1, 2, 2, 70))))


def _single(number: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def random_predicate(rng: random.Random, columns: Sequence[Column] = COLUMNS, depth: int = 3) -> Predicate:
    """Return a random predicate that passes `check`."""
    if depth and rng.random() < 0.6:
        kind = rng.randrange(3)
        if kind == 0:
            return Not(random_predicate(rng, columns, depth - 1))
        terms = tuple(random_predicate(rng, columns, depth - 1) for _ in range(rng.choice((2, 2, 3))))
        return And(terms) if kind == 1 else Or(terms)
    column = rng.choice(columns)
    kind = rng.randrange(10)
    if kind == 0:
        return Constant(rng.choice((None, True, False)))
    if kind == 1:
        return IsNull(column)
    if kind == 2:
        values = [random_value(rng, column) for _ in range(rng.randrange(1, 5))]
        return one_of(column, values, with_null=rng.random() < 0.3)
    if kind == 3 and column.type == "VARCHAR":
        return starts_with(column, str(random_value(rng, column))[: rng.randrange(70)])
    value = random_value(rng, column)
    return Compare(
        column, rng.choice(OPERATORS), value + 0.0 if isinstance(value, float) and value == value else value
    )


def random_rows(rng: random.Random, columns: Sequence[Column] = COLUMNS, count: int = 20) -> list[Row]:
    shares = {column.id: rng.choice((0.0, 0.0, 0.2, 1.0)) for column in columns}
    return [
        {c.id: None if rng.random() < shares[c.id] else random_value(rng, c) for c in columns}
        for _ in range(count)
    ]


def array_of(column: Column, rows: Iterable[Row]) -> pa.Array:
    values = [row[column.id] for row in rows]
    kind = leaf_arrow_type(column, column.name)
    if column.type in INTEGER_RANGES and not pa.types.is_integer(kind):
        return pa.array(values, pa.int32() if column.type == "DATE" else pa.int64()).cast(kind)
    return pa.array(values, kind)


def table_of(columns: Sequence[Column], rows: Sequence[Row]) -> pa.Table:
    return pa.table({column.name: array_of(column, rows) for column in columns})


def file_of(rng: random.Random, columns: Sequence[Column], rows: Sequence[Row]) -> DataFile:
    """Return a random, true description of a file with these rows. Parts may be unknown or wider than necessary."""
    columns = [
        column for column in columns if rng.random() < 0.95 or any(row[column.id] is not None for row in rows)
    ]
    known: dict[str, Any] = {
        name: {} for name in ("value_counts", "null_counts", "nan_counts", "lower_bounds", "upper_bounds")
    }
    for column in columns:
        number, values = column.id, [value for row in rows if (value := row[column.id]) is not None]
        numbers = [value for value in values if value == value]
        known["value_counts"][number] = len(rows)
        if rng.random() < 0.8:
            known["null_counts"][number] = len(rows) - len(values)
        if column.type in FLOATS and rng.random() < 0.7:
            known["nan_counts"][number] = len(values) - len(numbers)
        if numbers:
            lower, upper = min(numbers, key=_key), max(numbers, key=_key)
            if rng.random() < 0.9:
                known["lower_bounds"][number] = _encode_bound(column, lower, upper=False)
            stored = _encode_bound(column, upper, upper=True)
            if rng.random() < 0.9 and stored is not None:
                known["upper_bounds"][number] = stored
    return DataFile(path="data/x", row_count=len(rows), size_bytes=1, **known)


def _encode_bound(column: Column, value: Value, *, upper: bool) -> bytes | None:
    if isinstance(value, str):
        cut = text_upper(value) if upper else value[:BOUND_CODE_POINTS_MAX]
        return None if cut is None else cut.encode()
    if isinstance(value, bytes):
        return bytes_upper(value) if upper else value[:BOUND_CODE_POINTS_MAX]
    return encode_value(column, value)
