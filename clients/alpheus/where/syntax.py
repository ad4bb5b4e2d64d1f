"""Parse a `where` text into sqlglot's tree of one condition, and describe nodes of the tree for errors.

sqlglot is imported at the first text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from alpheus_journal.errors import InvalidInput
from alpheus_journal.predicate.terms import PREDICATE_DEPTH_MAX

_NESTING_MAX = 4 * PREDICATE_DEPTH_MAX


def bad_predicate(message: str, hint: str = "") -> InvalidInput:
    return InvalidInput(message, kind="bad_predicate", hint=hint)


@functools.cache
def _dialect() -> Any:
    """Spark's dialect, with double quotes for names, and without backslash escapes, which differ between engines."""
    from sqlglot.dialects.spark import Spark

    class Where(Spark):
        class Tokenizer(Spark.Tokenizer):
            IDENTIFIERS = ["`", '"']  # noqa: RUF012 - sqlglot's way
            QUOTES = ["'"]  # noqa: RUF012
            STRING_ESCAPES = ["'"]  # noqa: RUF012

    return Where()


def parse_tree(text: str) -> Any:
    """Parse the text into sqlglot's tree of one condition. Raises InvalidInput (`bad_predicate`)."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    dialect = _dialect()
    try:
        tokens = dialect.tokenize(text)
        if not tokens:
            raise bad_predicate("the where text is empty", "leave where out to mean all rows")
        _check_nesting(tokens)
        trees = dialect.parser().parse_into(exp.Condition, tokens, text)
    except InvalidInput:
        raise
    except SqlglotError as error:
        hint = "write AND" if "&&" in text else "write text between single quotes, and double a quote inside"
        if "&&" not in text and text.count("'") % 2 == 0:
            hint = "see WHERE.md"
        raise bad_predicate(f"the where text is not a condition: {_reason(error)}", hint) from None
    except RecursionError:
        raise bad_predicate("the where text is nested too deeply") from None
    except Exception as error:  # a bug of the parser, for an unusual text
        raise bad_predicate(
            f"the where text cannot be read: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    if len(trees) != 1 or trees[0] is None:
        raise bad_predicate("the where text is not one condition")
    return trees[0]


def _reason(error: Exception) -> str:
    for found in getattr(error, "errors", None) or ():
        if found.get("description"):
            near = f" near {found['highlight'][:40]!r}" if found.get("highlight") else ""
            line, column = found.get("line"), found.get("col")
            what = re.sub(r" for <class .*", "", found["description"]).rstrip(".")
            return f"{what}{near}" + (f" (line {line}, column {column})" if line else "")
    return str(error).splitlines()[0][:200] if str(error) else "the text ends too early"


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
            raise bad_predicate(
                f"the where text is nested more than {_NESTING_MAX} levels deep at line {token.line}"
            )


def kind_of(node: Any) -> str:
    """The name of the node's class in sqlglot."""
    return type(node).__name__


@functools.cache
def identifier() -> Any:
    from sqlglot import exp

    return exp.Identifier


def place_of(node: Any) -> str:
    """The place of the node in the text, if sqlglot recorded the place of a name in it; else empty."""
    name = None
    while node is not None and name is None:
        name, node = node.find(identifier()), node.parent
    meta = name.meta if name is not None else {}
    if "start" not in meta:
        return ""
    return f" at line {meta['line']}, column {meta['col'] - (meta['end'] - meta['start'])}"


def text_of(node: Any) -> str:
    try:
        return repr(node.sql(dialect=_dialect()))[:120]
    except (RecursionError, Exception):
        return f"a {kind_of(node)}"
