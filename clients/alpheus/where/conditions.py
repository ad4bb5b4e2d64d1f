"""Parse `where` texts, in the SQL subset of WHERE.md, into predicates.

The parser is sqlglot, which is imported at the first text. Expressions outside the subset are refused, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from alpheus.where.syntax import bad_predicate, identifier, kind_of, parse_tree, place_of, text_of
from alpheus.where.times import DAY_MICROS, read_days, read_micros
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.type_names import type_text
from alpheus_journal.predicate import (
    FALSE,
    NAN,
    NULL,
    TRUE,
    And,
    Constant,
    Leaf,
    Not,
    Operator,
    Or,
    Predicate,
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
from alpheus_journal.predicate.terms import TIMESTAMPS

WHERE_SIZE_MAX = 64 << 10
"""The largest number of characters of a `where` text."""
_NUMBER_SIZE_MAX = 400
_KNOWN_SHOWN_MAX = 20


def as_predicate(where: str | Predicate | None, columns: Sequence[Column]) -> Predicate | None:
    """Parse a text, or bring a predicate to the current names and types of the columns. None stays None.

    Raises InvalidInput (`bad_predicate`), also for a predicate with columns that do not exist, and for a value that is
    not a predicate, such as an expression of pyarrow or a column of Spark.
    """
    if where is None:
        return None
    if isinstance(where, str):
        return parse(where, columns)
    _check_terms(where)
    known = leaf_paths(columns)
    for column in columns_of(where):
        if column.id not in known:
            raise bad_predicate(
                f"there is no column {column.name!r} (id {column.id})", _known_text(known.values())
            )
    predicate = rebind(where, columns)
    check(predicate)
    return predicate


def _check_terms(where: object) -> None:
    """Refuse a value that is not a predicate, or contains a part that is not one."""
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
                flaw = f"contains a {type(term).__name__}, which is not a predicate"
            raise bad_predicate(
                f"where={str(where)[:80]!r} ({type(where).__name__}) {flaw}",
                "pass the condition as text, for example \"country = 'DE' AND n > 3\"",
            )


def parse(text: str, columns: Sequence[Column]) -> Predicate:
    """Parse the text into a predicate on a table with these columns.

    Raises InvalidInput (`bad_predicate`), which names the place, for expressions outside the subset, for columns that
    do not exist, and for values that are not of the column's type.
    """
    if len(text) > WHERE_SIZE_MAX:
        raise bad_predicate(
            f"the where text has {len(text)} characters, more than the limit of {WHERE_SIZE_MAX}"
        )
    tree = parse_tree(text)
    try:
        predicate = _Reader(columns).predicate(tree)
    except RecursionError:
        raise bad_predicate("the where text is nested too deeply") from None
    check(predicate)
    return predicate


def _known_text(paths: Any) -> str:
    names = [".".join(path) for path in paths]
    shown = ", ".join(names[:_KNOWN_SHOWN_MAX])
    return f"use the table's columns: {shown}{' and more' if len(names) > _KNOWN_SHOWN_MAX else ''}"


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
_ZONE_TYPES = {
    "TIMESTAMPTZ": None,
    "TIMESTAMP": None,
    "TIMESTAMPLTZ": "TIMESTAMPTZ6",
    "TIMESTAMPNTZ": "TIMESTAMP6",
}


class _Reader:
    def __init__(self, columns: Sequence[Column]) -> None:
        self._paths = leaf_paths(columns)
        self._columns = {tuple(p.lower() for p in path): column for path, column in _all_columns(columns, ())}

    def predicate(self, node: Any) -> Predicate:
        kind = kind_of(node)
        if kind in ("And", "Or"):
            terms = tuple(self.predicate(inner) for inner in _chain(node))
            return And(terms) if kind == "And" else Or(terms)
        if kind in ("Paren", "Not"):
            self._refuse_other_parts(node, "this")
            inner = self.predicate(node.this)
            return Not(inner) if kind == "Not" else inner
        if kind == "Boolean":
            return TRUE if node.this else FALSE
        if kind == "Null":
            return NULL
        if kind in _COMPARISONS or kind == "NullSafeNEQ":
            self._refuse_other_parts(node, "this", "expression")
            term = self._comparison(node, _COMPARISONS.get(kind, "<=>"))
            return Not(term) if kind == "NullSafeNEQ" else term
        read: Callable[[Any], Predicate] | None = {
            "Between": self._between, "In": self._in, "Is": self._is, "Like": self._like,
            "StartsWith": self._starts_with, "Column": self._boolean, "Dot": self._boolean,
        }.get(kind)  # fmt: skip
        if read is None:
            raise self._refusal(node)
        return read(node)

    def _refuse_other_parts(self, node: Any, *names: str) -> None:
        """Refuse a node with parts other than `names`, because another part would change the meaning of the node."""
        if any(value not in (None, False, []) for name, value in node.args.items() if name not in names):
            raise self._refusal(node)

    def _refusal(self, node: Any) -> InvalidInput:
        hint = _INSTEAD.get(kind_of(node), "see WHERE.md")
        return bad_predicate(f"{text_of(node)} is not in the subset of SQL for where{place_of(node)}", hint)

    def _is_column(self, node: Any) -> bool:
        while kind_of(node) == "Paren":
            node = node.this
        return kind_of(node) in ("Column", "Dot")

    def _comparison(self, node: Any, op: Operator) -> Predicate:
        left, right = node.this, node.expression
        if not self._is_column(left):
            left, right, op = right, left, mirrored(op)
        if not self._is_column(left) or self._is_column(right):
            raise bad_predicate(
                f"{text_of(node)} does not compare a column with a value{place_of(node)}",
                self._way_out(node.this, node.expression),
            )
        column = self._column(left)
        return self._make(right, compare, column, op, self._value(right, column))

    def _way_out(self, left: Any, right: Any) -> str:
        """A hint for a comparison of two columns, or of no column: what the caller may have meant."""
        for node, other in ((right, left), (left, right)):
            name = _plain_name(node)
            if not name or ((name.lower(),) in self._columns and not _quoted_twice(node)):
                continue
            beside = self._columns.get((_plain_name(other).lower(),))
            if beside is None or _quoted_twice(node) or beside.type in _WRITTEN_AS_TEXT:
                return f"write text between single quotes: {_quote(name)}"
            if name.lower() in _REALS:
                return f"write CAST('{name}' AS DOUBLE)"
            return f"there is no column {name!r}: {_known_text(self._paths.values())}"
        if any(kind_of(node) == "DPipe" for node in (left, right)):
            return _INSTEAD["DPipe"]
        if not self._is_column(left) and not self._is_column(right):
            return "write a column alone on one side, without functions and arithmetic: see WHERE.md"
        return "compare a column with a value, not with another column: see WHERE.md"

    def _make(self, node: Any, make: Callable[..., Predicate], *args: Any) -> Predicate:
        try:
            return make(*args)
        except InvalidInput as error:
            error.message += place_of(node)
            raise

    def _between(self, node: Any) -> Predicate:
        self._refuse_other_parts(node, "this", "low", "high")
        column = self._column(node.this)
        low = self._make(node, compare, column, ">=", self._value(node.args["low"], column))
        return And((low, self._make(node, compare, column, "<=", self._value(node.args["high"], column))))

    def _in(self, node: Any) -> Predicate:
        self._refuse_other_parts(node, "this", "expressions")
        column = self._column(node.this)
        if not node.expressions:
            raise bad_predicate(f"IN has no values{place_of(node)}")
        return self._make(node, one_of, column, [self._value(inner, column) for inner in node.expressions])

    def _is(self, node: Any) -> Predicate:
        self._refuse_other_parts(node, "this", "expression")
        if kind_of(node.expression) != "Null":
            error = self._refusal(node)
            error.hint = "use IS only with NULL; write = to compare with a value"
            raise error
        return compare(self._column(node.this), "<=>", None)

    def _like(self, node: Any) -> Predicate:
        self._refuse_other_parts(node, "this", "expression", "negate")
        column = self._column(node.this)
        pattern = self._text(node.expression)
        if pattern[-1:] != "%" or any(c in "%_\\" for c in pattern[:-1]):
            raise bad_predicate(
                f"LIKE takes only a prefix with one % after it{place_of(node)}",
                "write = for the text itself, and startswith(column, 'prefix') for a prefix with %, _ or a backslash",
            )
        term = self._make(node, starts_with, column, pattern[:-1])
        return Not(term) if node.args.get("negate") else term

    def _starts_with(self, node: Any) -> Predicate:
        self._refuse_other_parts(node, "this", "expression")
        return self._make(node, starts_with, self._column(node.this), self._text(node.expression))

    def _boolean(self, node: Any) -> Predicate:
        column = self._column(node)
        if column.type != "BOOLEAN":
            raise bad_predicate(
                f"column {text_of(node)} of type {type_text(column)} alone is not a condition{place_of(node)}"
            )
        return compare(column, "=", True)

    # --- columns

    def _column(self, node: Any) -> Column:
        while kind_of(node) == "Paren":
            node = node.this
        path = self._path(node)
        column = self._columns.get(tuple(part.lower() for part in path))
        if column is None:
            hint = "write text between single quotes; " if _quoted_twice(node) else ""
            if len(path) > 1 and (path[-1].lower(),) in self._columns:
                hint = f"name columns without their table: {path[-1]}; "
            raise bad_predicate(
                f"there is no column {'.'.join(path)!r}{place_of(node)}",
                hint + _known_text(self._paths.values()),
            )
        if column.id not in self._paths and column.type not in ("STRUCT", "LIST", "MAP"):
            raise bad_predicate(
                f"column {'.'.join(path)!r} is inside a list or map, so no predicate can name it"
            )
        return reference(column)

    def _path(self, node: Any) -> tuple[str, ...]:
        if kind_of(node) == "Identifier":
            return (str(node.this),)
        if kind_of(node) == "Dot":
            self._refuse_other_parts(node, "this", "expression")
            return (*self._path(node.this), *self._path(node.expression))
        if kind_of(node) != "Column":
            raise self._refusal(node)
        self._refuse_other_parts(node, "this", "table", "db", "catalog")
        parts = [node.args.get(name) for name in ("catalog", "db", "table", "this")]
        return tuple(name for part in parts if part is not None for name in self._path(part))

    # --- values

    def _text(self, node: Any) -> str:
        kind = kind_of(node)
        if kind == "RawString":
            return str(node.this)
        if kind == "Literal" and node.is_string:
            if "\\" in node.this:
                raise bad_predicate(
                    f"there is a text with a backslash{place_of(node)}, which engines read in different ways",
                    "write r'...', in which a backslash is an ordinary character",
                )
            return str(node.this)
        if kind in ("Cast", "TryCast") and kind_of(node.this) == "HexString" and _target(node) == "TEXT":
            try:
                return bytes.fromhex(node.this.this).decode()
            except ValueError:
                raise bad_predicate(f"{text_of(node)} is not a text{place_of(node)}") from None
        name = _plain_name(node)
        hint = "write text between single quotes" + (f": {_quote(name)}" if name else "")
        raise bad_predicate(
            f"{text_of(node)} is not a text{place_of(node)}", _PARAMETERS if _is_parameter(node) else hint
        )

    def _value(self, node: Any, column: Column) -> object:
        """The value in the form that `compare` takes. Dates and times are counts."""
        kind = kind_of(node)
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
                raise bad_predicate(f"{text_of(node)} ends with half a byte{place_of(node)}") from None
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
        raise bad_predicate(
            f"{text_of(node)} is not a value of column {column.name!r} of type {type_text(column)}{place_of(node)}",
            hint,
        )

    def _number(self, node: Any, column: Column) -> int | float | Decimal:
        kind = kind_of(node)
        if kind == "Paren":
            return self._number(node.this, column)
        if kind == "Neg":
            number = self._number(node.this, column)
            return number.copy_negate() if isinstance(number, Decimal) else -number  # minus rounds a Decimal
        if kind in ("Cast", "TryCast"):
            return self._cast_number(node, column)
        if kind == "Literal" and not node.is_string and len(node.this) <= _NUMBER_SIZE_MAX:
            if node.this.isascii() and node.this.isdigit():
                return int(node.this)
            if _NUMBER.fullmatch(node.this):
                return Decimal(node.this)
        hint = ""
        if kind == "Literal" and node.is_string:
            hint = "write a number without quotes"
            if node.this.lower() in _REALS:
                hint = f"write CAST('{node.this}' AS DOUBLE)"
        raise bad_predicate(
            f"{text_of(node)} is not a number for column {column.name!r}{place_of(node)}", hint
        )

    def _cast_number(self, node: Any, column: Column) -> int | float | Decimal:
        """Read a number with a type, such as `5L` or `CAST('NaN' AS DOUBLE)`. A type that changes the number is
        refused."""
        self._refuse_other_parts(node, "this", "to", "_type")
        inner, target = node.this, _target(node)
        if kind_of(inner) == "Literal" and inner.is_string:
            real = _REALS.get(inner.this.lower())
            if target in ("DOUBLE", "FLOAT") and real is not None:
                return real
            if target != "DECIMAL" or not _NUMBER.fullmatch(inner.this) or len(inner.this) > _NUMBER_SIZE_MAX:
                raise self._refusal(node)
            number: int | float | Decimal = Decimal(inner.this)
        else:
            number = self._number(inner, column)
        if target == "DOUBLE":
            return self._check_finite(float(number), node)
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
        raise bad_predicate(
            f"{text_of(node)} would change the number{place_of(node)}",
            "write the number without a cast: it is compared exactly",
        )

    def _check_finite(self, number: float, node: Any) -> float:
        if number in (float("inf"), float("-inf")):
            raise bad_predicate(f"{text_of(node)} is outside the range of doubles{place_of(node)}")
        return number

    def _time(self, node: Any, column: Column) -> int:
        kind, wanted = kind_of(node), column.type
        target = ""
        if kind in ("Cast", "TryCast"):
            self._refuse_other_parts(node, "this", "to", "_type")
            node, target = node.this, _target(node)
            known = target == "DATE" or (wanted != "DATE" and target in _ZONE_TYPES)
            if not known or _ZONE_TYPES.get(target) not in (None, wanted):
                raise bad_predicate(
                    f"a {target} is not a value of column {column.name!r} of type {type_text(column)}{place_of(node)}"
                )
        if not (kind_of(node) == "Literal" and node.is_string):
            raise bad_predicate(
                f"{text_of(node)} is not a value of column {column.name!r} of type {type_text(column)}{place_of(node)}",
                "write DATE '2026-03-01'" if wanted == "DATE" else "write TIMESTAMP '2026-03-01 12:00:00'",
            )
        text = str(node.this).strip()
        try:
            if wanted == "DATE":
                return read_days(text)
            return (
                read_days(text) * DAY_MICROS
                if target == "DATE"
                else read_micros(text, wanted == "TIMESTAMPTZ6")
            )
        except ValueError as error:
            raise bad_predicate(
                f"{text[:80]!r} {error}{place_of(node)}",
                f"give a value for column {column.name!r} of type {type_text(column)}",
            ) from None


def _all_columns(
    columns: Sequence[Column], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Column]]:
    for column in columns:
        yield (*above, column.name), column
        yield from _all_columns(column.children(), (*above, column.name))


def _chain(node: Any) -> Iterator[Any]:
    """Yield the terms of a chain of ANDs or ORs without parentheses, in order."""
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
    """Return whether DECIMAL(precision, scale) can hold the number."""
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        return False
    significant = "".join(map(str, digits)).rstrip("0").lstrip("0")
    trailing = len("".join(map(str, digits))) - len("".join(map(str, digits)).rstrip("0"))
    exponent += trailing
    return not significant or (-exponent <= scale and len(significant) + exponent <= precision - scale)


_WRITTEN_AS_TEXT = frozenset({"VARCHAR", "DATE", *TIMESTAMPS})
_PARAMETERS = "write the value itself: where takes no parameters"
_INSTEAD = {
    "DPipe": "write OR",
    "ILike": "use LIKE 'prefix%', which distinguishes upper and lower case",
    "Literal": "write TRUE for all rows, FALSE for none",
    "Placeholder": _PARAMETERS,
    "Parameter": _PARAMETERS,
}
"""Hints by the kind of a refused node."""


def _is_parameter(node: Any) -> bool:
    return kind_of(node) in ("Placeholder", "Parameter")


def _plain_name(node: Any) -> str:
    """The name of a column without a path; empty for other nodes."""
    while kind_of(node) == "Paren":
        node = node.this
    if kind_of(node) != "Column" or node.args.get("table") is not None:
        return ""
    return str(getattr(node.this, "this", ""))


def _quote(text: str) -> str:
    return "'" + text[:80].replace("'", "''") + "'"


def _quoted_twice(node: Any) -> bool:
    return bool(getattr(node.find(identifier()), "quoted", False))
