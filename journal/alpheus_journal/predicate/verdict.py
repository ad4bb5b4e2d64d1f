"""Judge a predicate on all rows of a file by the file's statistics (FORMAT.md, "Predicates")."""

from __future__ import annotations

import bisect
import enum
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column
from alpheus_journal.predicate.sql import SqlWriter, text
from alpheus_journal.predicate.terms import (
    FLOATS,
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
    columns_of,
    decode_value,
    encode_value,
)  # fmt: skip
from alpheus_journal.tables.data_file import DataFile


class Verdict(enum.Enum):
    """The value of a predicate on all rows of a file, as far as known."""

    NEVER = "never"  # TRUE on no row, or the file has no rows
    MAYBE = "maybe"
    ALWAYS = "always"  # TRUE on every row


# The possible outcomes of a term on the rows of a file: a set, as bits.
_T, _F, _N = 1, 2, 4
_ALL = _T | _F | _N
_Judge = Callable[[DataFile], int]


def _pairs(outcome: Callable[[int, int], int]) -> list[list[int]]:
    """Return a table from two sets of outcomes to the set of the outcomes of all pairs."""
    singles = (_T, _F, _N)
    return [
        [_union(outcome(x, y) for x in singles if a & x for y in singles if b & y) for b in range(8)]
        for a in range(8)
    ]


def _union(outcomes: Iterable[int]) -> int:
    result = 0
    for outcome in outcomes:
        result |= outcome
    return result


_AND = _pairs(lambda x, y: _F if _F in (x, y) else _N if _N in (x, y) else _T)
_OR = _pairs(lambda x, y: _T if _T in (x, y) else _N if _N in (x, y) else _F)
_NOT = [(a & _N) | (_F if a & _T else 0) | (_T if a & _F else 0) for a in range(8)]


def judge(predicate: Predicate, file: DataFile) -> Verdict:
    """Return what the file's statistics say of the predicate on its rows. For many files use `judge_of`.

    NEVER and ALWAYS are certain for every row, whatever is unknown and however wide the bounds are.
    """
    return judge_of(predicate)(file)


def judge_of(predicate: Predicate) -> Callable[[DataFile], Verdict]:
    """Return `judge` for one predicate, prepared once for many files."""
    outcomes = _outcomes_of(predicate)

    def verdict(file: DataFile) -> Verdict:
        mask = outcomes(file) if file.row_count else 0
        return Verdict.NEVER if not mask & _T else Verdict.ALWAYS if mask == _T else Verdict.MAYBE

    return verdict


def _outcomes_of(term: Predicate) -> _Judge:
    match term:
        case And(terms) | Or(terms):
            whole = isinstance(term, And)
            table, start, last = (_AND, _T, _F) if whole else (_OR, _F, _T)
            return _combined([_outcomes_of(inner) for inner in terms], table, start, last)
        case Not(inner):
            judged = _outcomes_of(inner)
            return lambda file: _NOT[judged(file)]
        case Constant(value):
            mask = _N if value is None else _T if value else _F
            return lambda file: mask
        case IsNull(column):
            return _of_column(column, _T, lambda lower, upper: _F, _F)
        case StartsWith(column, prefix):
            return _of_column(column, _N, _of_prefix(prefix.encode()), 0)
        case In(column, values, with_null):
            if not values and not with_null:
                return lambda file: _F
            miss = _N if with_null else _F
            nan = _T if any(value != value for value in values) else miss
            return _of_column(column, _N, _of_values(_comparable(column, values), miss), nan)
        case Compare(column, op, value):
            null = _F if op == "<=>" else _N
            return _of_column(column, null, *_of_comparison(column, op, value))


def _combined(parts: Sequence[_Judge], table: list[list[int]], start: int, last: int) -> _Judge:
    def outcomes(file: DataFile) -> int:
        mask = start
        for part in parts:
            mask = table[mask][part(file)]
            if mask == last:
                break
        return mask

    return outcomes


_OfRange = Callable[[Any, Any], int]
"""Takes a lower and an upper bound, inclusive, or None. Returns the outcomes of values between them, without NaN."""


def _of_column(column: Column, null: int, of_range: _OfRange, nan: int) -> _Judge:
    """Return a judge of a column. `null` and `nan` are the outcomes of NULL and NaN. `_bound` compares values."""
    number, floats = column.id, column.type in FLOATS
    bound = _bound(column)
    missing = null
    if column.initial_default is not None:  # still NULL inside a struct that is NULL
        value = decode_value(column, column.initial_default)
        if value != value:
            missing |= nan
        else:
            [default] = _comparable(column, [value])
            missing |= of_range(default, default)

    def outcomes(file: DataFile) -> int:
        count = file.value_counts.get(number)
        if count is None:
            return missing
        if count != file.row_count:  # not a leaf outside of lists
            return null | nan | of_range(None, None)
        nulls = file.null_counts.get(number)
        nans = file.nan_counts.get(number) if floats else 0
        mask = 0 if nulls == 0 else null
        if nans != 0:
            mask |= nan
        if nulls is not None and nans is not None and nulls + nans >= count:
            return mask
        if nulls == count:
            return null
        lower, upper = file.lower_bounds.get(number), file.upper_bounds.get(number)
        return mask | of_range(
            None if lower is None else bound(lower), None if upper is None else bound(upper)
        )

    return outcomes


def _bound(column: Column) -> Callable[[bytes], Any]:
    """Return a function from a stored bound, also of a narrower or wider type, to a value as `_comparable` makes it.

    The function returns None, for "not known", when the bytes are not a bound.
    """
    if column.type in ("VARCHAR", "BINARY", "FIXED"):
        return lambda data: data
    if column.type in FLOATS:
        return _float_bound
    order: Any = "big" if column.type == "DECIMAL" else "little"
    return lambda data: int.from_bytes(data, order, signed=True) if data else None


def _float_bound(data: bytes) -> float | None:
    if len(data) not in (4, 8):
        return None
    number: float = struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
    return None if number != number else number


def _comparable(column: Column, values: Iterable[Value]) -> list[Any]:
    """Return values in a comparable form, ascending and without NaN: text as bytes, decimals as unscaled integers."""
    numbers = [value for value in values if value == value]
    if column.type == "VARCHAR":
        return sorted(value.encode() for value in numbers if isinstance(value, str))
    if column.type == "DECIMAL":
        return sorted(int.from_bytes(encode_value(column, value), "big", signed=True) for value in numbers)
    ordered: Any = numbers
    return sorted(ordered)


def _of_prefix(prefix: bytes) -> _OfRange:
    size = len(prefix)

    def outcomes(lower: bytes | None, upper: bytes | None) -> int:
        low, high = (lower or b"")[:size], None if upper is None else upper[:size]
        if low > prefix or (high is not None and high < prefix):
            return _F
        return _T if low == prefix == high or not size else _T | _F

    return outcomes


def _of_values(values: list[Any], miss: int) -> _OfRange:
    def outcomes(lower: Any, upper: Any) -> int:
        place = 0 if lower is None else bisect.bisect_left(values, lower)
        if place == len(values) or (upper is not None and values[place] > upper):
            return miss
        return _T if lower is not None and lower == upper else _T | miss

    return outcomes


def _of_comparison(column: Column, op: str, value: Value) -> tuple[_OfRange, int]:
    """Return the outcomes of a comparison in a range, and the outcome of NaN."""
    if value != value:  # numbers are below it
        of_numbers = _T if op in ("!=", "<", "<=") else _F
        return lambda lower, upper: of_numbers, _T if op in ("=", "<=>", "<=", ">=") else _F
    [it] = _comparable(column, [value])
    nan = _T if op in ("!=", ">", ">=") else _F
    if op in ("=", "<=>"):
        return _of_values([it], _F), nan
    if op == "!=":
        equal = _of_values([it], _F)
        return lambda lower, upper: _NOT[equal(lower, upper)], nan

    def below(lower: Any, upper: Any) -> int:  # it < value
        mask = _T if lower is None or lower < it else 0
        return mask | (_F if upper is None or upper >= it else 0)

    def at_most(lower: Any, upper: Any) -> int:
        mask = _T if lower is None or lower <= it else 0
        return mask | (_F if upper is None or upper > it else 0)

    if op in ("<", ">="):
        return (below if op == "<" else lambda lower, upper: _NOT[below(lower, upper)]), nan
    return (at_most if op == "<=" else lambda lower, upper: _NOT[at_most(lower, upper)]), nan


def explain(predicate: Predicate, file: DataFile, names: Mapping[int, Path] | None = None) -> str:
    """Explain the verdict on a file: the verdict, the first term that decides it, and the statistics of its columns."""
    if not file.row_count:
        return "never: the file has no rows"
    verdict = judge(predicate, file)
    term = predicate
    while isinstance(term, And | Or) and term.terms:
        # One term can make an AND never true or an OR always true. A MAYBE has a term that is MAYBE.
        decides = verdict is (Verdict.NEVER if isinstance(term, And) else Verdict.ALWAYS)
        if not decides and verdict is not Verdict.MAYBE and len(term.terms) > 1:
            break
        term = next(inner for inner in term.terms if judge(inner, file) is verdict)
    columns = columns_of(term)
    known = [_known(column, file) for column in columns[:_EXPLAINED_MAX]]
    if len(columns) > _EXPLAINED_MAX:
        known.append("and more")
    written = text(term, names)
    if len(written) > _EXPLAINED_SIZE:
        written = written[:_EXPLAINED_SIZE] + "..."
    return "; ".join([f"{verdict.value}: {written}", *known])


_EXPLAINED_MAX = 3
_EXPLAINED_SIZE = 200


def _known(column: Column, file: DataFile) -> str:
    number, name = column.id, column.name
    count, nulls = file.value_counts.get(number), file.null_counts.get(number)
    if count is None:
        if column.initial_default is None:
            return f"the file has no {name}, so it is NULL"
        return f"the file has no {name}, so it is {_literal(column, column.initial_default)}"
    if nulls == count:
        return f"all {count} values of {name} are NULL"
    parts = []
    for what, bounds in (("at least", file.lower_bounds), ("at most", file.upper_bounds)):
        if number in bounds:
            parts.append(f"{what} {_literal(column, bounds[number])}")
    known = f"values of {name} are {' and '.join(parts)}" if parts else f"no bounds of {name} are known"
    known += ", NULLs unknown" if nulls is None else f", {nulls} NULLs" if nulls else ""
    nans = file.nan_counts.get(number) if column.type in FLOATS else 0
    return known + (", NaNs unknown" if nans is None else f", {nans} NaNs" if nans else "")


def _literal(column: Column, data: bytes) -> str:
    try:
        return SqlWriter().literal(column, decode_value(column, data))
    except InvalidInput:  # a bound of a wider type, in a file that is newer than the predicate
        return f"X'{data.hex().upper()}'"
