"""Predicates on rows of native tables (FORMAT.md, "Predicates").

Pure values, typed by field id, with SQL's three-valued logic. On each row a predicate is TRUE, FALSE or NULL. It
selects the rows where it is TRUE. Values have the column's type: bool, int, float, str, bytes, Decimal, days since
1970-01-01 for DATE, microseconds since the epoch for TIMESTAMP6 and TIMESTAMPTZ6. NaN equals itself and is greater than
every number. -0.0 equals 0.0. Text is ordered by the bytes of its UTF-8.

Other packages import these names from `alpheus_journal.predicate`.
"""

from __future__ import annotations

import math
import numbers
import struct
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, cast, get_args

import msgspec

from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.type_names import type_text
from alpheus_journal.tables.columns import decode_bound, encode_bound, leaf_arrow_type

PREDICATE_SIZE_BYTES_MAX = 64 << 10
PREDICATE_NODES_MAX = 10_000
"""The most terms and values of IN, counted together."""
PREDICATE_DEPTH_MAX = 32

NAN = math.nan
"""The only NaN of predicates. Every NaN that is read or given becomes this object, so equal predicates are equal."""

Value = bool | int | float | str | bytes | Decimal
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "<=>"]


class Compare(msgspec.Struct, frozen=True, gc=False):
    """A comparison with a value, which is never NULL. `<=>` is equality that is FALSE instead of NULL on NULL.

    Use `compare` to make a comparison with any value.
    """

    column: Column
    op: Operator
    value: Value


class In(msgspec.Struct, frozen=True, gc=False):
    """Equality with one of `values`, which ascend. Without any value it is FALSE, like an empty OR.

    `with_null` says that NULL is among the values: no match is then NULL instead of FALSE. Use `one_of` to make one
    from any values.
    """

    column: Column
    values: tuple[Value, ...]
    with_null: bool = False


class IsNull(msgspec.Struct, frozen=True, gc=False):
    column: Column


class StartsWith(msgspec.Struct, frozen=True, gc=False):
    """A test for a prefix of a VARCHAR column."""

    column: Column
    prefix: str


class And(msgspec.Struct, frozen=True, gc=False):
    """True when all terms are. TRUE without terms."""

    terms: tuple[Predicate, ...]


class Or(msgspec.Struct, frozen=True, gc=False):
    """True when one term is. FALSE without terms."""

    terms: tuple[Predicate, ...]


class Not(msgspec.Struct, frozen=True, gc=False):
    term: Predicate


class Constant(msgspec.Struct, frozen=True, gc=False):
    value: bool | None


Predicate = Compare | In | IsNull | StartsWith | And | Or | Not | Constant
Leaf = Compare | In | IsNull | StartsWith

TRUE, FALSE, NULL = Constant(True), Constant(False), Constant(None)

Path = str | tuple[str, ...]
"""A column's name, or the names from the outermost struct to the field."""

INTEGER_RANGES = {
    "INT2": (-(1 << 15), (1 << 15) - 1),
    "INT4": (-(1 << 31), (1 << 31) - 1),
    "INT8": (-(1 << 63), (1 << 63) - 1),
    "DATE": (-(1 << 31), (1 << 31) - 1),
    "TIMESTAMP6": (-(1 << 63), (1 << 63) - 1),
    "TIMESTAMPTZ6": (-(1 << 63), (1 << 63) - 1),
}
FLOATS = frozenset({"FLOAT4", "FLOAT8"})
TIMESTAMPS = frozenset({"TIMESTAMP6", "TIMESTAMPTZ6"})
_TYPE_PROPERTIES = ("precision", "scale", "length")
_EPOCH = datetime(1970, 1, 1)


def bad_predicate(message: str, hint: str = "") -> InvalidInput:
    return InvalidInput(message, kind="bad_predicate", hint=hint)


# --- columns ---------------------------------------------------------------------------------------


def reference(column: Column) -> Column:
    """Return the part of a column that a predicate keeps: id, name, type and initial default.

    Raises InvalidInput (`bad_predicate`) for a column that is not a leaf.
    """
    if column.children() or column.type in ("STRUCT", "LIST", "MAP"):
        raise bad_predicate(
            f"column {column.name!r} is of type {type_text(column)}: no predicate can name it",
            "name a field of a struct as column.field"
            if column.type == "STRUCT"
            else "use another column: predicates cannot name elements of lists and maps",
        )
    properties = {key: column.properties[key] for key in _TYPE_PROPERTIES if key in column.properties}
    return Column(
        id=column.id,
        name=column.name,
        type=column.type,
        properties=properties,
        initial_default=column.initial_default,
    )


def leaf_paths(columns: Iterable[Column], above: tuple[str, ...] = ()) -> dict[int, tuple[str, ...]]:
    """Return the columns that a predicate may name, by id: leaves at the top and in structs, not in lists and maps."""
    paths: dict[int, tuple[str, ...]] = {}
    for column in columns:
        if column.type == "STRUCT":
            paths.update(leaf_paths(column.fields, (*above, column.name)))
        elif not column.children():
            paths[column.id] = (*above, column.name)
    return paths


def _leaves(columns: Iterable[Column]) -> Iterator[Column]:
    for column in columns:
        if column.type == "STRUCT":
            yield from _leaves(column.fields)
        elif not column.children():
            yield column


def columns_of(predicate: Predicate) -> tuple[Column, ...]:
    """Return the columns that a predicate names, each once, ascending by id."""
    found: dict[int, Column] = {}
    for term in walk(predicate):
        if isinstance(term, Leaf):
            found[term.column.id] = term.column
    return tuple(found[number] for number in sorted(found))


def walk(predicate: Predicate) -> Iterator[Predicate]:
    """Yield the predicate itself, and then all its terms in order."""
    stack: list[Predicate] = [predicate]
    while stack:
        term = stack.pop()
        yield term
        if isinstance(term, And | Or):
            stack.extend(reversed(term.terms))
        elif isinstance(term, Not):
            stack.append(term.term)


def rebind(predicate: Predicate, columns: Iterable[Column]) -> Predicate:
    """Return the same predicate with the present names and types of columns, which are the same or wider.

    `columns` may be nested. A column that is not among them stays as it is.
    """
    return _rebound(predicate, {column.id: reference(column) for column in _leaves(columns)})


def _rebound(predicate: Predicate, today: Mapping[int, Column]) -> Predicate:
    if isinstance(predicate, And | Or):
        return type(predicate)(tuple(_rebound(term, today) for term in predicate.terms))
    if isinstance(predicate, Not):
        return Not(_rebound(predicate.term, today))
    if isinstance(predicate, Constant):
        return predicate
    column = today.get(predicate.column.id, predicate.column)
    return msgspec.structs.replace(predicate, column=column)


# --- making predicates of any value ----------------------------------------------------------------


def all_of(*terms: Predicate) -> Predicate:
    """Return the AND of terms: a single term itself, or TRUE for no terms."""
    return terms[0] if len(terms) == 1 else And(terms) if terms else TRUE


def any_of(*terms: Predicate) -> Predicate:
    """Return the OR of terms: a single term itself, or FALSE for no terms."""
    return terms[0] if len(terms) == 1 else Or(terms) if terms else FALSE


def _unless_null(column: Column, value: bool) -> Predicate:
    """Return a predicate that is `value` where the column is not NULL, and NULL where it is."""
    return Or((Not(IsNull(column)), NULL)) if value else And((IsNull(column), NULL))


class _Place(msgspec.Struct, frozen=True):
    """The place of a value among the values of a column.

    `below` and `above` are the nearest values that the column can hold, both equal to the value itself when the column
    can hold it. None means that there is no value on that side.
    """

    below: Value | None
    above: Value | None

    @property
    def exact(self) -> bool:
        return (self.below is not None and self.below == self.above) or self.below is NAN


_MIRRORED: dict[str, Operator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def mirrored(op: Operator) -> Operator:
    """Return the operator with its sides exchanged."""
    return _MIRRORED.get(op, op)


def compare(column: Column, op: Operator, value: object) -> Predicate:
    """Compare a column with a value, which the column need not be able to hold. The result is exact.

    For example, `int < 1.5` becomes `int <= 1`. A value out of range gives a constant that is NULL where the column is.
    The value None is NULL.

    `value` is a bool; an int, float or Decimal for numbers (rounded to the nearest double for FLOAT4 and FLOAT8, as
    Spark does); a str; bytes; a date or days for DATE; a datetime (with a zone for TIMESTAMPTZ6, without one for
    TIMESTAMP6) or microseconds for timestamps. Raises InvalidInput (`bad_predicate`) for any other value.
    """
    column = reference(column)
    if value is None:
        return IsNull(column) if op == "<=>" else NULL
    place = _place(column, value)
    if place.exact:
        assert place.below is not None
        return Compare(column, op, place.below)
    if op == "<=>":
        return FALSE
    if op in ("=", "!="):
        return _unless_null(column, op == "!=")
    if op in ("<", "<="):
        return _unless_null(column, False) if place.below is None else _at_most(column, place)
    if place.above is None:
        return _unless_null(column, False)
    return _unless_null(column, True) if place.below is None else Compare(column, ">=", place.above)


def _at_most(column: Column, place: _Place) -> Predicate:
    assert place.below is not None
    return _unless_null(column, True) if place.above is None else Compare(column, "<=", place.below)


def one_of(column: Column, values: Iterable[object], *, with_null: bool = False) -> Predicate:
    """Return `column IN (values)`, as exactly as `compare`. None among the values is NULL."""
    column = reference(column)
    found: dict[Value, None] = {}
    other = False
    for value in values:
        if value is None:
            with_null = True
            continue
        place = _place(column, value)
        if place.exact:
            assert place.below is not None
            found[place.below] = None
        else:
            other = True
    if not found and not with_null:
        return _unless_null(column, False) if other else In(column, ())
    return In(column, ascending(found), with_null)


def ascending(values: Iterable[Value]) -> tuple[Value, ...]:
    """Return values of one column in its order, each once, with NaN last."""
    numbers: dict[Value, None] = {}
    nan = False
    for value in values:
        if value != value:
            nan = True
        else:
            numbers[value] = None
    ordered = sorted(cast(Any, numbers))  # texts by code points, which is the order of their UTF-8
    return (*ordered, NAN) if nan else tuple(ordered)


def starts_with(column: Column, prefix: str) -> Predicate:
    column = reference(column)
    if column.type != "VARCHAR":
        raise bad_predicate(
            f"column {column.name!r} is of type {type_text(column)}: only text starts with text"
        )
    _check_value(column, prefix)
    return StartsWith(column, prefix)


def _place(column: Column, value: object) -> _Place:
    if column.type in ("INT2", "INT4", "INT8", "DECIMAL", "FLOAT4", "FLOAT8"):
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            value = int(value)  # a numpy integer
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            return _place_number(column, value)
    elif column.type in TIMESTAMPS or column.type == "DATE":
        count = _count(column, value)
        if isinstance(count, int) and not isinstance(count, bool):
            low, high = INTEGER_RANGES[column.type]
            below, above = min(count, high), max(count, low)
            return _Place(below if count >= low else None, above if count <= high else None)
    elif column.type in ("BOOLEAN", "VARCHAR", "BINARY", "FIXED"):
        wanted = {"BOOLEAN": bool, "VARCHAR": str}.get(column.type, bytes)
        if isinstance(value, wanted):
            _check_value(column, value)
            return _Place(cast(Value, value), cast(Value, value))
    raise bad_predicate(
        f"column {column.name!r} of type {type_text(column)} cannot be compared with {str(value)[:80]!r}"
        f" ({type(value).__name__})",
        "give a value of the column's type",
    )


def _count(column: Column, value: object) -> object:
    """Return the days or microseconds of a date or datetime, and any other value as it is."""
    if isinstance(value, datetime):
        if column.type == "DATE":
            raise bad_predicate(f"column {column.name!r} is a date, not a point in time", "give a date")
        if getattr(value, "nanosecond", 0):  # a pandas timestamp
            raise bad_predicate(f"column {column.name!r} has microseconds, but {value} has nanoseconds")
        zone = value.utcoffset()
        if (zone is not None) != (column.type == "TIMESTAMPTZ6"):
            needs = "a" if zone is None else "no"
            raise bad_predicate(
                f"column {column.name!r} of type {type_text(column)} takes a time with {needs} zone"
            )
        return (value.replace(tzinfo=None) - (zone or timedelta()) - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        days = value.toordinal() - _EPOCH.toordinal()
        return days if column.type == "DATE" else days * 86_400_000_000
    return value


def _place_number(column: Column, value: int | float | Decimal) -> _Place:
    finite = (
        value.is_finite() if isinstance(value, Decimal) else isinstance(value, int) or math.isfinite(value)
    )
    if column.type in FLOATS:
        return _place_float(column, value, finite)
    if not finite:  # greater or less than every number of the column; NaN is greater
        low, high = _range(column)
        return _Place(None, low) if value == value and value < 0 else _Place(high, None)
    scale = int(column.properties["scale"]) if column.type == "DECIMAL" else 0
    if isinstance(value, Decimal):
        digits = value.adjusted()
        if len(value.as_tuple().digits) > 1000:
            raise bad_predicate(f"a number with more than 1000 digits for column {column.name!r}")
        if (
            value and not -200 < digits < 200
        ):  # far out of range, or next to zero: the exact digits do not matter
            value = Decimal((value.as_tuple().sign, (1,), 200 if digits > 0 else -200))
    exact = Fraction(value) * 10**scale
    below, above = math.floor(exact), math.ceil(exact)
    low, high = (_unscaled(bound, scale) for bound in _range(column))
    return _Place(
        None if below < low else _scaled(column, min(below, high), scale),
        None if above > high else _scaled(column, max(above, low), scale),
    )


def _range(column: Column) -> tuple[int | Decimal, int | Decimal]:
    if column.type != "DECIMAL":
        return INTEGER_RANGES[column.type]
    scale = int(column.properties["scale"])
    digits = (9,) * int(column.properties["precision"])
    return Decimal((1, digits, -scale)), Decimal((0, digits, -scale))


def _unscaled(value: int | Decimal, scale: int) -> int:
    return int(Fraction(value) * 10**scale)


def _scaled(column: Column, number: int, scale: int) -> int | Decimal:
    return _decimal(number, scale) if column.type == "DECIMAL" else number


def _decimal(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _place_float(column: Column, value: int | float | Decimal, finite: bool) -> _Place:
    if value != value:
        return _Place(NAN, NAN)
    try:
        number = float(value) + 0.0  # -0.0 becomes 0.0
    except OverflowError:
        number = math.inf
    if math.isinf(number) and finite:
        raise bad_predicate(f"a number for column {column.name!r} is outside the range of doubles")
    if column.type == "FLOAT8":
        return _Place(number, number)
    return _Place(_single(number, -math.inf), _single(number, math.inf))


def _single(number: float, towards: float) -> float:
    """Return `number` if it is a float of 32 bits, else the nearest such float in the direction `towards`."""
    try:
        near: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        near = math.copysign(_SINGLE_MAX, number)
    if near == number or (near > number) == (towards > number):
        return near + 0.0
    bits = struct.unpack("<i", struct.pack("<f", near))[0]
    if near == 0.0:  # next to it: the smallest number on the side of `towards`
        bits = 1 if towards > 0 else 1 - (1 << 31)
    else:
        bits += 1 if (towards > 0) == (near > 0) else -1
    stepped: float = struct.unpack("<f", struct.pack("<i", bits))[0]
    return stepped + 0.0


_SINGLE_MAX = 3.4028234663852886e38


# --- checks of every predicate ---------------------------------------------------------------------


def flaw_of_value(column: Column, value: object) -> str:
    """Return why the column cannot hold `value`, or "" when it can."""
    if column.type in INTEGER_RANGES:
        low, high = INTEGER_RANGES[column.type]
        fits = type(value) is int and low <= value <= high
    elif column.type in FLOATS:
        fits = type(value) is float
        if fits and column.type == "FLOAT4" and math.isfinite(value):  # type: ignore[arg-type]
            fits = _single(value, math.inf) == value  # type: ignore[arg-type]
    elif column.type == "DECIMAL":
        fits = type(value) is Decimal and value.is_finite() and -50 < value.adjusted() < 50
        fits = fits and _place_number(column, value).exact  # type: ignore[arg-type]
    elif column.type == "VARCHAR":
        fits = type(value) is str and not any("\ud800" <= c <= "\udfff" for c in value)
    elif column.type == "BOOLEAN":
        fits = type(value) is bool
    else:
        fits = column.type in ("BINARY", "FIXED") and type(value) is bytes
    return (
        "" if fits else f"column {column.name!r} of type {type_text(column)} cannot hold {str(value)[:80]!r}"
    )


def _check_value(column: Column, value: object) -> None:
    flaw = flaw_of_value(column, value)
    if flaw:
        raise bad_predicate(flaw)


def check(predicate: Predicate) -> None:
    """Refuse a predicate that cannot be stored. Raises InvalidInput (`bad_predicate`).

    Refuses too many terms or levels, a column that is not a leaf or is named in two forms, and a value that its column
    cannot hold. Predicates made by `compare` and the other functions pass, unless they are too large.
    """
    columns: dict[int, Column] = {}
    nodes = 0
    stack: list[tuple[Predicate, int]] = [(predicate, 1)]
    while stack:
        term, depth = stack.pop()
        nodes += 1 + (len(term.values) if isinstance(term, In) else 0)
        if depth > PREDICATE_DEPTH_MAX:
            raise bad_predicate(f"a predicate is nested more than {PREDICATE_DEPTH_MAX} levels deep")
        if nodes > PREDICATE_NODES_MAX:
            raise bad_predicate(f"a predicate has more than {PREDICATE_NODES_MAX} terms and values")
        if isinstance(term, And | Or):
            stack.extend((inner, depth + 1) for inner in term.terms)
        elif isinstance(term, Not):
            stack.append((term.term, depth + 1))
        elif isinstance(term, Leaf):
            column = reference(term.column)
            if column.id not in columns:
                check_column(column)
            if columns.setdefault(column.id, column) != column:
                raise bad_predicate(
                    f"column id {column.id} is in a predicate in two forms", "rebind the predicate's parts"
                )
            _check_leaf(term)


def check_column(column: Column) -> None:
    if not 0 < column.id < 1 << 31 or not column.name:
        raise bad_predicate(f"column {column.name!r} has the id {column.id}, which is not a field id")
    try:
        leaf_arrow_type(column, column.name)
    except InvalidInput as error:
        raise bad_predicate(error.message) from None
    if column.initial_default is not None:
        value = decode_value(column, column.initial_default)
        if (
            column.type == "FIXED"
            and isinstance(value, bytes)
            and len(value) != int(column.properties["length"])
        ):
            raise bad_predicate(f"column {column.name!r} has a default of {len(value)} bytes")


def _check_leaf(term: Leaf) -> None:
    if isinstance(term, Compare):
        if term.op not in get_args(Operator):
            raise bad_predicate(f"there is no operator {str(term.op)[:20]!r}")
        _check_value(term.column, term.value)
    elif isinstance(term, In):
        for value in term.values:
            _check_value(term.column, value)
        if term.values != ascending(term.values):
            raise bad_predicate(
                f"the values of IN for column {term.column.name!r} do not ascend", "make the term by one_of"
            )
    elif isinstance(term, StartsWith):
        if term.column.type != "VARCHAR":
            raise bad_predicate(
                f"column {term.column.name!r} is of type {type_text(term.column)}, which has no prefix"
            )
        _check_value(term.column, term.prefix)


def encode_value(column: Column, value: Value) -> bytes:
    """Encode a value in the form of bounds. NaN, which no bound can be, is its IEEE number."""
    if isinstance(value, Decimal):
        value = _unscaled(value, int(column.properties["scale"]))
    elif isinstance(value, float):
        value += 0.0
    return encode_bound(column, value)


def decode_value(column: Column, data: bytes) -> Value:
    """Decode a value of a column. Raises InvalidInput (`bad_predicate`) when `data` is no such value."""
    try:
        if column.type in FLOATS and len(data) in (4, 8):
            number: float = struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
            value: Value = NAN if number != number else number + 0.0
        else:
            value = decode_bound(column, data)
    except (ValueError, KeyError) as error:
        raise bad_predicate(f"column {column.name!r}: {str(error)[:200]}") from None
    _check_value(column, value)
    return value
