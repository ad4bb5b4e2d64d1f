"""`where` texts: the SQL subset of WHERE.md, read into predicates, and predicates written for engines.

Reading takes sqlglot, which is imported at the first text. What is outside the subset is refused, never guessed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.type_names import type_text
from alpheus_journal.predicate import (
    FALSE,
    NAN,
    NULL,
    TRUE,
    And,
    Compare,
    Constant,
    In,
    Leaf,
    Not,
    Operator,
    Or,
    Path,
    Predicate,
    StartsWith,
    Value,
    check,
    columns_of,
    compare,
    leaf_paths,
    mirrored,
    one_of,
    rebind,
    reference,
    starts_with,
)
from alpheus_journal.predicate.sql import SqlWriter, civil, days_of, timestamp_text
from alpheus_journal.predicate.terms import FLOATS, PREDICATE_DEPTH_MAX, TIMESTAMPS

WHERE_SIZE_MAX = 64 << 10
"""Characters of a `where` text."""

_NESTING_MAX = 4 * PREDICATE_DEPTH_MAX
_NUMBER_SIZE_MAX = 400
_KNOWN_SHOWN_MAX = 20
_DAY = 86_400_000_000


def as_predicate(where: str | Predicate | None, columns: Sequence[Column]) -> Predicate | None:
    """A text parsed, a predicate with today's names and types, None as it is.

    Raises InvalidInput (`bad_predicate`), also for a predicate with columns that are not there, and for what is none,
    as an expression of pyarrow or a column of Spark.
    """
    if where is None:
        return None
    if isinstance(where, str):
        return parse(where, columns)
    _check_terms(where)
    known = leaf_paths(columns)
    for column in columns_of(where):
        if column.id not in known:
            raise _bad(f"there is no column {column.name!r} (id {column.id})", _known(known.values()))
    predicate = rebind(where, columns)
    check(predicate)
    return predicate


def _check_terms(where: object) -> None:
    """Raises for what is no predicate, or has something in it that is none."""
    stack = [where]
    while stack:
        term = stack.pop()
        if isinstance(term, And | Or) and isinstance(term.terms, tuple | list):
            stack.extend(term.terms)
        elif isinstance(term, Not):
            stack.append(term.term)
        elif not isinstance(term, Constant) and not (
            isinstance(term, Leaf) and isinstance(term.column, Column)
        ):
            flaw = "is neither text nor a predicate"
            if term is not where:
                flaw = f"has something of type {type(term).__name__} in it, which is no predicate"
            raise _bad(
                f"where={str(where)[:80]!r} ({type(where).__name__}) {flaw}",
                "pass the condition as text, as in \"country = 'DE' AND n > 3\"",
            )


def parse(text: str, columns: Sequence[Column]) -> Predicate:
    """The predicate that the text says of a table with these columns.

    Raises InvalidInput (`bad_predicate`) naming the place, for what is outside the subset, for columns that are not
    there, for values that are not of the column's type.
    """
    if len(text) > WHERE_SIZE_MAX:
        raise _bad(f"a where text of {len(text)} characters, {WHERE_SIZE_MAX} at most")
    tree = _tree(text)
    try:
        predicate = _Reader(columns).predicate(tree)
    except RecursionError:
        raise _bad("the where text is nested too deep") from None
    check(predicate)
    return predicate


def _bad(message: str, hint: str = "") -> InvalidInput:
    return InvalidInput(message, kind="bad_predicate", hint=hint)


def _known(paths: Any) -> str:
    names = [".".join(path) for path in paths]
    shown = ", ".join(names[:_KNOWN_SHOWN_MAX])
    return f"known are {shown}{' and more' if len(names) > _KNOWN_SHOWN_MAX else ''}"


# --- text to tree ----------------------------------------------------------------------------------


@functools.cache
def _dialect() -> Any:
    """Spark's, with double quotes for names and no backslash escapes, which engines take differently."""
    from sqlglot.dialects.spark import Spark

    class Where(Spark):
        class Tokenizer(Spark.Tokenizer):
            IDENTIFIERS = ["`", '"']  # noqa: RUF012 - sqlglot's way
            QUOTES = ["'"]  # noqa: RUF012
            STRING_ESCAPES = ["'"]  # noqa: RUF012

    return Where()


def _tree(text: str) -> Any:
    """sqlglot's tree of one condition."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    dialect = _dialect()
    try:
        tokens = dialect.tokenize(text)
        if not tokens:
            raise _bad("the where text is empty", "leave it out to mean all rows")
        _check_nesting(tokens)
        trees = dialect.parser().parse_into(exp.Condition, tokens, text)
    except InvalidInput:
        raise
    except SqlglotError as error:
        hint = "write AND" if "&&" in text else "text stands between single quotes, one inside is doubled"
        if "&&" not in text and text.count("'") % 2 == 0:
            hint = "see WHERE.md"
        raise _bad(f"the where text is no condition: {_reason(error)}", hint) from None
    except RecursionError:
        raise _bad("the where text is nested too deep") from None
    except Exception as error:  # a flaw of the parser on a strange text
        raise _bad(f"the where text cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
    if len(trees) != 1 or trees[0] is None:
        raise _bad("the where text is not one condition")
    return trees[0]


def _reason(error: Exception) -> str:
    for found in getattr(error, "errors", None) or ():
        if found.get("description"):
            near = f" near {found['highlight'][:40]!r}" if found.get("highlight") else ""
            line, column = found.get("line"), found.get("col")
            what = re.sub(r" for <class .*", "", found["description"]).rstrip(".")
            return f"{what}{near}" + (f" (line {line}, column {column})" if line else "")
    return str(error).splitlines()[0][:200] if str(error) else "it ends too early"


def _check_nesting(tokens: Sequence[Any]) -> None:
    depth = run = 0
    for token in tokens:
        if token.text in ("(", "[", "{"):
            depth += 1
        elif token.text in (")", "]", "}"):
            depth -= 1
        run = (
            run + 1 if token.text.upper() in ("NOT", "!", "-", "+", "~", "CASE", "WHEN", "(", "[", "{") else 0
        )
        if depth > _NESTING_MAX or run > _NESTING_MAX:
            raise _bad(f"the where text is nested more than {_NESTING_MAX} levels deep at line {token.line}")


# --- tree to predicate -----------------------------------------------------------------------------

_COMPARISONS: dict[str, Operator] = {
    "EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">=", "NullSafeEQ": "<=>",
}  # fmt: skip
_INTEGER_CASTS = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}
_REALS = {
    "nan": NAN,
    "infinity": float("inf"),
    "-infinity": float("-inf"),
    "inf": float("inf"),
    "-inf": float("-inf"),
}
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,6})?", re.ASCII)
_DATE = re.compile(r"([+-]?\d{4,7})-(\d{1,2})-(\d{1,2})", re.ASCII)
_TIME = re.compile(
    r"(?P<date>[^ T]+)(?:[ T](?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,6}))?)?"
    r" ?(?P<zone>Z|UTC|[+-]\d{2}(?::?\d{2})?)?)?",
    re.ASCII | re.IGNORECASE,
)
_ZONE_TYPES = {
    "TIMESTAMPTZ": None,
    "TIMESTAMP": None,
    "TIMESTAMPLTZ": "TIMESTAMPTZ6",
    "TIMESTAMPNTZ": "TIMESTAMP6",
}


def _kind(node: Any) -> str:
    return type(node).__name__


class _Reader:
    def __init__(self, columns: Sequence[Column]) -> None:
        self._paths = leaf_paths(columns)
        self._columns = {tuple(p.lower() for p in path): column for path, column in _all_columns(columns, ())}

    def predicate(self, node: Any) -> Predicate:
        kind = _kind(node)
        if kind in ("And", "Or"):
            terms = tuple(self.predicate(inner) for inner in _chain(node))
            return And(terms) if kind == "And" else Or(terms)
        if kind in ("Paren", "Not"):
            self._only(node, "this")
            inner = self.predicate(node.this)
            return Not(inner) if kind == "Not" else inner
        if kind == "Boolean":
            return TRUE if node.this else FALSE
        if kind == "Null":
            return NULL
        if kind in _COMPARISONS or kind == "NullSafeNEQ":
            self._only(node, "this", "expression")
            term = self._comparison(node, _COMPARISONS.get(kind, "<=>"))
            return Not(term) if kind == "NullSafeNEQ" else term
        read: Callable[[Any], Predicate] | None = {
            "Between": self._between, "In": self._in, "Is": self._is, "Like": self._like,
            "StartsWith": self._starts_with, "Column": self._boolean, "Dot": self._boolean,
        }.get(kind)  # fmt: skip
        if read is None:
            raise self._refused(node)
        return read(node)

    def _only(self, node: Any, *names: str) -> None:
        """Refuses what another part of the node would change in its meaning."""
        if any(value not in (None, False, []) for name, value in node.args.items() if name not in names):
            raise self._refused(node)

    def _refused(self, node: Any) -> InvalidInput:
        hint = _INSTEAD.get(_kind(node), "see WHERE.md")
        return _bad(f"{_shown(node)} is not in the subset of SQL for where{_place(node)}", hint)

    def _is_column(self, node: Any) -> bool:
        while _kind(node) == "Paren":
            node = node.this
        return _kind(node) in ("Column", "Dot")

    def _comparison(self, node: Any, op: Operator) -> Predicate:
        left, right = node.this, node.expression
        if not self._is_column(left):
            left, right, op = right, left, mirrored(op)
        if not self._is_column(left) or self._is_column(right):
            raise _bad(
                f"{_shown(node)} does not compare a column with a value{_place(node)}",
                self._way_out(node.this, node.expression),
            )
        column = self._column(left)
        return self._made(right, compare, column, op, self._value(right, column))

    def _way_out(self, left: Any, right: Any) -> str:
        """What somebody may have meant who compares two columns, or none."""
        for node, other in ((right, left), (left, right)):
            name = _plain_name(node)
            if not name or ((name.lower(),) in self._columns and not _quoted_twice(node)):
                continue
            beside = self._columns.get((_plain_name(other).lower(),))
            if beside is None or _quoted_twice(node) or beside.type in _WRITTEN_AS_TEXT:
                return f"text stands between single quotes: {_quoted(name)}"
            if name.lower() in _REALS:
                return f"write CAST('{name}' AS DOUBLE)"
            return f"there is no column {name!r}: {_known(self._paths.values())}"
        if any(_kind(node) == "DPipe" for node in (left, right)):
            return _INSTEAD["DPipe"]
        if not self._is_column(left) and not self._is_column(right):
            return "a column stands alone on one side, without functions and arithmetic: see WHERE.md"
        return "one column is not compared with another: see WHERE.md"

    def _made(self, node: Any, make: Callable[..., Predicate], *args: Any) -> Predicate:
        try:
            return make(*args)
        except InvalidInput as error:
            error.message += _place(node)
            raise

    def _between(self, node: Any) -> Predicate:
        self._only(node, "this", "low", "high")
        column = self._column(node.this)
        low = self._made(node, compare, column, ">=", self._value(node.args["low"], column))
        return And((low, self._made(node, compare, column, "<=", self._value(node.args["high"], column))))

    def _in(self, node: Any) -> Predicate:
        self._only(node, "this", "expressions")
        column = self._column(node.this)
        if not node.expressions:
            raise _bad(f"IN has no values{_place(node)}")
        return self._made(node, one_of, column, [self._value(inner, column) for inner in node.expressions])

    def _is(self, node: Any) -> Predicate:
        self._only(node, "this", "expression")
        if _kind(node.expression) != "Null":
            error = self._refused(node)
            error.hint = "IS goes with NULL alone, with a value write ="
            raise error
        return compare(self._column(node.this), "<=>", None)

    def _like(self, node: Any) -> Predicate:
        self._only(node, "this", "expression", "negate")
        column = self._column(node.this)
        pattern = self._text(node.expression)
        if pattern[-1:] != "%" or any(c in "%_\\" for c in pattern[:-1]):
            raise _bad(
                f"LIKE takes a prefix and one % after it{_place(node)}",
                "for the text itself write =, for a prefix with %, _ or a backslash startswith(column, 'prefix')",
            )
        term = self._made(node, starts_with, column, pattern[:-1])
        return Not(term) if node.args.get("negate") else term

    def _starts_with(self, node: Any) -> Predicate:
        self._only(node, "this", "expression")
        return self._made(node, starts_with, self._column(node.this), self._text(node.expression))

    def _boolean(self, node: Any) -> Predicate:
        column = self._column(node)
        if column.type != "BOOLEAN":
            raise _bad(
                f"column {_shown(node)} of type {type_text(column)} alone is no condition{_place(node)}"
            )
        return compare(column, "=", True)

    # --- columns

    def _column(self, node: Any) -> Column:
        while _kind(node) == "Paren":
            node = node.this
        path = self._path(node)
        column = self._columns.get(tuple(part.lower() for part in path))
        if column is None:
            hint = "text stands between single quotes; " if _quoted_twice(node) else ""
            if len(path) > 1 and (path[-1].lower(),) in self._columns:
                hint = f"columns are named without their table: {path[-1]}; "
            raise _bad(
                f"there is no column {'.'.join(path)!r}{_place(node)}", hint + _known(self._paths.values())
            )
        if column.id not in self._paths and column.type not in ("STRUCT", "LIST", "MAP"):
            raise _bad(f"column {'.'.join(path)!r} lies in a list or map: no predicate can name it")
        return reference(column)

    def _path(self, node: Any) -> tuple[str, ...]:
        if _kind(node) == "Identifier":
            return (str(node.this),)
        if _kind(node) == "Dot":
            self._only(node, "this", "expression")
            return (*self._path(node.this), *self._path(node.expression))
        if _kind(node) != "Column":
            raise self._refused(node)
        self._only(node, "this", "table", "db", "catalog")
        parts = [node.args.get(name) for name in ("catalog", "db", "table", "this")]
        return tuple(name for part in parts if part is not None for name in self._path(part))

    # --- values

    def _text(self, node: Any) -> str:
        kind = _kind(node)
        if kind == "RawString":
            return str(node.this)
        if kind == "Literal" and node.is_string:
            if "\\" in node.this:
                raise _bad(
                    f"a text with a backslash{_place(node)}",
                    "engines differ in what it means: write r'...', which takes it as it is",
                )
            return str(node.this)
        if kind in ("Cast", "TryCast") and _kind(node.this) == "HexString" and _target(node) == "TEXT":
            try:
                return bytes.fromhex(node.this.this).decode()
            except ValueError:
                raise _bad(f"{_shown(node)} is no text{_place(node)}") from None
        name = _plain_name(node)
        hint = "text stands between single quotes" + (f": {_quoted(name)}" if name else "")
        raise _bad(f"{_shown(node)} is no text{_place(node)}", _PARAMETERS if _is_parameter(node) else hint)

    def _value(self, node: Any, column: Column) -> object:
        """As `compare` takes it. It does not say how dates come, so those are counts here."""
        kind = _kind(node)
        if kind == "Paren":
            return self._value(node.this, column)
        if kind == "Null":
            return None
        if kind == "Boolean":
            return bool(node.this)
        if kind == "HexString" and column.type in ("BINARY", "FIXED"):
            try:
                return bytes.fromhex(node.this)
            except ValueError:
                raise _bad(f"{_shown(node)} has half a byte{_place(node)}") from None
        if column.type == "VARCHAR":
            return self._text(node)
        if column.type == "DATE" or column.type in TIMESTAMPS:
            return self._time(node, column)
        if kind in ("Literal", "Neg", "Cast", "TryCast") and column.type not in (
            "BOOLEAN",
            "BINARY",
            "FIXED",
        ):
            return self._number(node, column)
        literals = {"BINARY": "write X'...'", "FIXED": "write X'...'", "BOOLEAN": "write TRUE or FALSE"}
        hint = _INSTEAD.get(kind, "") if kind != "Literal" else ""
        hint = hint or literals.get(column.type, "")
        raise _bad(
            f"{_shown(node)} is no value of column {column.name!r} of type {type_text(column)}{_place(node)}",
            hint,
        )

    def _number(self, node: Any, column: Column) -> int | float | Decimal:
        kind = _kind(node)
        if kind == "Paren":
            return self._number(node.this, column)
        if kind == "Neg":
            number = self._number(node.this, column)
            return number.copy_negate() if isinstance(number, Decimal) else -number  # minus would round
        if kind in ("Cast", "TryCast"):
            return self._cast_number(node, column)
        if kind == "Literal" and not node.is_string and len(node.this) <= _NUMBER_SIZE_MAX:
            if node.this.isascii() and node.this.isdigit():
                return int(node.this)
            if _NUMBER.fullmatch(node.this):
                return Decimal(node.this)
        hint = ""
        if kind == "Literal" and node.is_string:
            hint = "a number stands without quotes"
            if node.this.lower() in _REALS:
                hint = f"write CAST('{node.this}' AS DOUBLE)"
        raise _bad(f"{_shown(node)} is no number for column {column.name!r}{_place(node)}", hint)

    def _cast_number(self, node: Any, column: Column) -> int | float | Decimal:
        """Numbers with a type, `5L` or `CAST('NaN' AS DOUBLE)`, when the type changes nothing about them."""
        self._only(node, "this", "to", "_type")
        inner, target = node.this, _target(node)
        if _kind(inner) == "Literal" and inner.is_string:
            real = _REALS.get(inner.this.lower())
            if target in ("DOUBLE", "FLOAT") and real is not None:
                return real
            if target != "DECIMAL" or not _NUMBER.fullmatch(inner.this) or len(inner.this) > _NUMBER_SIZE_MAX:
                raise self._refused(node)
            number: int | float | Decimal = Decimal(inner.this)
        else:
            number = self._number(inner, column)
        if target == "DOUBLE":
            return self._finite(float(number), node)
        bits = _INTEGER_CASTS.get(target)
        if bits is not None and isinstance(number, int) and -(1 << bits) <= number < 1 << bits:
            return number
        if target == "DECIMAL" and isinstance(number, int | Decimal):
            digits = [
                int(p.name) for p in node.args["to"].expressions if p.name.isdigit() and len(p.name) < 4
            ]
            scale = digits[1] if len(digits) > 1 else 0
            decimal = Decimal(number)
            if digits and _fits(decimal, digits[0], scale):
                return decimal
        raise _bad(
            f"{_shown(node)} would change the number{_place(node)}",
            "write it plainly: it is compared exactly",
        )

    def _finite(self, number: float, node: Any) -> float:
        if number in (float("inf"), float("-inf")):
            raise _bad(f"{_shown(node)} is outside the range of doubles{_place(node)}")
        return number

    def _time(self, node: Any, column: Column) -> int:
        kind, wanted = _kind(node), column.type
        target = ""
        if kind in ("Cast", "TryCast"):
            self._only(node, "this", "to", "_type")
            node, target = node.this, _target(node)
            known = target == "DATE" or (wanted != "DATE" and target in _ZONE_TYPES)
            if not known or _ZONE_TYPES.get(target) not in (None, wanted):
                raise _bad(
                    f"a {target} is no value of column {column.name!r} of type {type_text(column)}{_place(node)}"
                )
        if not (_kind(node) == "Literal" and node.is_string):
            raise _bad(
                f"{_shown(node)} is no value of column {column.name!r} of type {type_text(column)}{_place(node)}",
                "write DATE '2026-03-01'" if wanted == "DATE" else "write TIMESTAMP '2026-03-01 12:00:00'",
            )
        text = str(node.this).strip()
        try:
            if wanted == "DATE":
                return _days(text)
            return _days(text) * _DAY if target == "DATE" else _micros(text, wanted == "TIMESTAMPTZ6")
        except ValueError as error:
            raise _bad(
                f"{text[:80]!r} {error}{_place(node)}",
                f"for column {column.name!r} of type {type_text(column)}",
            ) from None


def _all_columns(
    columns: Sequence[Column], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Column]]:
    for column in columns:
        yield (*above, column.name), column
        yield from _all_columns(column.children(), (*above, column.name))


def _chain(node: Any) -> Iterator[Any]:
    """The terms of an AND or OR without parentheses between them, in order."""
    kind, stack = type(node), [node]
    while stack:
        inner = stack.pop()
        if type(inner) is kind:
            stack += [inner.expression, inner.this]
        else:
            yield inner


def _target(node: Any) -> str:
    """The type of a cast."""
    name = getattr(node.args["to"], "this", None)
    return str(getattr(name, "name", name))


def _fits(number: Decimal, precision: int, scale: int) -> bool:
    """Whether DECIMAL(precision, scale) holds it."""
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        return False
    significant = "".join(map(str, digits)).rstrip("0").lstrip("0")
    trailing = len("".join(map(str, digits))) - len("".join(map(str, digits)).rstrip("0"))
    exponent += trailing
    return not significant or (-exponent <= scale and len(significant) + exponent <= precision - scale)


_WRITTEN_AS_TEXT = frozenset({"VARCHAR", "DATE", *TIMESTAMPS})
_PARAMETERS = "where takes no parameters: write the value itself"
_INSTEAD = {
    "DPipe": "write OR",
    "ILike": "LIKE 'prefix%' is there, which tells upper from lower case",
    "Literal": "TRUE means all rows, FALSE none",
    "Placeholder": _PARAMETERS,
    "Parameter": _PARAMETERS,
}
"""By kind of a node that is refused."""


def _is_parameter(node: Any) -> bool:
    return _kind(node) in ("Placeholder", "Parameter")


def _plain_name(node: Any) -> str:
    """What a column is called that has no path; else empty."""
    while _kind(node) == "Paren":
        node = node.this
    if _kind(node) != "Column" or node.args.get("table") is not None:
        return ""
    return str(getattr(node.this, "this", ""))


def _quoted(text: str) -> str:
    return "'" + text[:80].replace("'", "''") + "'"


def _quoted_twice(node: Any) -> bool:
    return bool(getattr(node.find(_identifier()), "quoted", False))


@functools.cache
def _identifier() -> Any:
    from sqlglot import exp

    return exp.Identifier


def _place(node: Any) -> str:
    """Where it stands, when sqlglot tells it of a name inside."""
    name = None
    while node is not None and name is None:
        name, node = node.find(_identifier()), node.parent
    meta = name.meta if name is not None else {}
    if "start" not in meta:
        return ""
    return f" at line {meta['line']}, column {meta['col'] - (meta['end'] - meta['start'])}"


def _shown(node: Any) -> str:
    try:
        return repr(node.sql(dialect=_dialect()))[:120]
    except (RecursionError, Exception):
        return f"a {_kind(node)}"


def _days(text: str) -> int:
    """Raises ValueError for what is no date."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError("is no date as 2026-03-01")
    year, month, day = (int(part) for part in match.groups())
    if not (1 <= month <= 12 and 1 <= day <= 31) or civil(days_of(year, month, day)) != (year, month, day):
        raise ValueError("is no day of the calendar")
    return days_of(year, month, day)


def _micros(text: str, zoned: bool) -> int:
    """Raises ValueError for what is no point in time, for a zone where there is none."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(
            "is no time as 2026-03-01 12:00:00.123456, with Z or +01:00 where the column has a zone"
        )
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("is no time of the day")
    zone = (match["zone"] or "").upper()
    if zone and not zoned:
        raise ValueError("has a zone, which the column has not")
    offset = 0
    if zone not in ("", "Z", "UTC"):
        hours, minutes = int(zone[1:3]), int(zone[3:].strip(":") or 0)
        if hours > 18 or minutes > 59:
            raise ValueError("has no zone between -18:00 and +18:00")
        offset = (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)
    seconds = (hour * 60 + minute - offset) * 60 + second
    return _days(match["date"]) * _DAY + seconds * 1_000_000 + int((match["fraction"] or "").ljust(6, "0"))


# --- predicates for engines ------------------------------------------------------------------------


def spark_sql(predicate: Predicate, names: Mapping[int, Path]) -> str:
    """A condition that Spark evaluates as `alpheus_journal.predicate` does. `names`: see `leaf_paths`."""
    return _SparkWriter(names).write(predicate)


def duckdb_sql(predicate: Predicate, names: Mapping[int, Path]) -> str:
    """A condition that DuckDB evaluates as `alpheus_journal.predicate` does. Raises InvalidInput (`not_supported`)
    for dates and times before the first that DuckDB has."""
    return _DuckDbWriter(names).write(predicate)


class _EngineWriter(SqlWriter):
    """Literals have the column's type. What is said of floats keeps engines from skipping NaN by minimum and maximum
    of a file, which leave it out, and from telling -0.0 from 0.0 there."""

    _null = "CAST(NULL AS BOOLEAN)"

    def write(self, term: Predicate) -> str:
        if isinstance(term, Constant) and term.value is None:
            return self._null
        return super().write(term)

    def comparison(self, term: Compare) -> str:
        if term.column.type in FLOATS and isinstance(term.value, float):
            return self._real_comparison(term.column, term.op, term.value)
        return super().comparison(term)

    def _real_comparison(self, column: Column, op: str, value: float) -> str:
        name = self.name(column)
        if op == "<=>":
            return f"coalesce({self._real_comparison(column, '=', value)}, FALSE)"
        nan = self.is_nan(name)
        if value != value:
            outcome = {
                "=": nan, ">=": nan, "!=": f"NOT {nan}", "<": f"NOT {nan}", "<=": "TRUE", ">": "FALSE",
            }[op]  # fmt: skip
            return f"CASE WHEN {name} IS NULL THEN {self._null} ELSE {outcome} END"
        # Of the two zeros the one that lies outside.
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
            return self._null
        if term.column.type not in FLOATS:
            return super().membership(term, word)
        name = self.name(term.column)
        reals = [value for value in term.values if isinstance(value, float)]
        numbers = [self.real(term.column, value) for value in reals if value == value and value != 0.0]
        parts = [f"({name} IN ({', '.join(numbers)}) AND NOT {self.is_nan(name)})"] if numbers else []
        for value in (0.0, NAN):
            if any(real == value or (real != real and value != value) for real in reals):
                parts.append(self._real_comparison(term.column, "=", value))
        if term.with_null:
            parts.append(self._null)
        return f"{'NOT ' if word == 'NOT IN' else ''}({' OR '.join(parts)})"

    def _real_name(self, value: float) -> str:
        return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")


class _SparkWriter(_EngineWriter):
    _suffixes = {"INT2": "S", "INT4": "", "INT8": "L"}  # noqa: RUF012 - never changed

    def text(self, value: str) -> str:
        # Escapes and variables depend on the session's settings.
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
        """Whether a value lies outside the years 1 to 9999: handing it to the Parquet reader, Spark overflows."""
        limits = {"DATE": (_DAY_MIN, _DAY_MAX), "TIMESTAMPTZ6": (_DAY_MIN * _DAY, _DAY_MAX * _DAY)}.get(
            column.type
        )
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
            return f"CAST('{self._real_name(value)}' AS {kind})"
        return f"CAST('{value!r}' AS {kind})"

    def decimal(self, column: Column, value: Decimal) -> str:
        return f"CAST('{value:f}' AS DECIMAL({column.properties['precision']}, {column.properties['scale']}))"

    def timestamp(self, column: Column, micros: int) -> str:
        if column.type == "TIMESTAMPTZ6":
            return f"TIMESTAMP_LTZ '{timestamp_text(micros)}Z'"
        return f"TIMESTAMP_NTZ '{timestamp_text(micros)}'"


class _DuckDbWriter(_EngineWriter):
    _types = {"INT2": "SMALLINT", "INT4": "INTEGER", "INT8": "BIGINT", "FLOAT4": "FLOAT", "FLOAT8": "DOUBLE"}  # noqa: RUF012

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def name(self, column: Column) -> str:
        path = self._names.get(column.id, column.name)
        if isinstance(path, str):
            return self.quoted(path)
        first, *rest = map(self.quoted, path)
        return ".".join([f"({first})" if rest else first, *rest])  # a table may have the struct's name

    def comparison(self, term: Compare) -> str:
        if term.op == "<=>" and term.column.type not in FLOATS:
            return f"{self.name(term.column)} IS NOT DISTINCT FROM {self.literal(term.column, term.value)}"
        return super().comparison(term)

    def is_nan(self, name: str) -> str:
        return f"(NOT (isfinite({name}) OR isinf({name})))"  # for isnan it skips files by minimum and maximum

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
        return f"CAST('{repr(value) if finite else self._real_name(value)}' AS {self._types[column.type]})"

    def decimal(self, column: Column, value: Decimal) -> str:
        return f"CAST('{value:f}' AS DECIMAL({column.properties['precision']}, {column.properties['scale']}))"

    def date(self, days: int) -> str:
        # The last numbers on both sides are its infinities, and one is below.
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
        if micros < _DUCKDB_MICROS_MIN:
            raise self._too_early("timestamp")
        return f"make_timestamp{'tz' if zoned else ''}({micros})"

    def _too_early(self, what: str) -> InvalidInput:
        return InvalidInput(
            f"DuckDB has no {what} so early", kind="not_supported", hint="compare with a later one"
        )


_DAY_MIN, _DAY_MAX = days_of(1, 1, 1), days_of(9999, 12, 31)
_DUCKDB_MICROS_MIN = -9_223_372_022_400_000_000
