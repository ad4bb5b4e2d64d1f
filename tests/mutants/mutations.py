"""Small faults that can be put into a module, like a programmer's slips and misunderstandings.

A mutation replaces one span of the source by another text. Everything else stays the same, with comments and line
numbers. Changes that no test could notice are left out: docstrings, annotations, log lines, failpoints, texts and hints
of errors, assertions, and code outside functions.
"""

from __future__ import annotations

import ast
import copy
import difflib
import random
from collections.abc import Iterator
from typing import Any

import msgspec

SILENT_CALLS = ("log", "logger", "failpoints", "warnings")
"""Objects whose calls change nothing that a caller sees."""
TEXTS = {"message", "hint", "name", "help", "reason"}
"""Keyword arguments that are texts for the user."""
UNSWAPPED = {
    "cast", "isinstance", "issubclass", "getattr", "setattr", "hasattr", "range", "print", "zip", "min", "max",
}  # fmt: skip
"""Calls that fail immediately, or mean the same, when their arguments are swapped."""

_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OTHER: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutation(msgspec.Struct, frozen=True):
    """The change `what` at `line`: bytes [start, end) of the source become `text`."""

    what: str
    line: int
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()

    def key(self, source: str) -> str:
        """Return the change and the line's text without the line number. The key stays the same while the line does."""
        line = source.splitlines()[self.line - 1].strip()
        old = " ".join(source.encode()[self.start : self.end].decode().split())
        return f"{line} | {self.what} | {old} -> {self.text}"

    def diff(self, source: str, path: str) -> str:
        return "".join(
            difflib.unified_diff(
                source.splitlines(keepends=True),
                self.applied(source).splitlines(keepends=True),
                path,
                path,
                n=2,
            )
        )


def mutations_of(source: str) -> list[Mutation]:
    """Return all mutations of a module, in order of places. A few of them give no valid program."""
    finder = _Finder(source)
    finder.look(ast.parse(source), is_in_function=False)
    found = {(mutation.start, mutation.end, mutation.text): mutation for mutation in finder.found}
    return [found[key] for key in sorted(found)]


def is_program(mutation: Mutation, source: str) -> bool:
    """Return whether the mutated source is a valid program."""
    try:
        ast.parse(mutation.applied(source))
    except SyntaxError:
        return False
    return True


def sampled(source: str, count: int, seed: str) -> list[Mutation]:
    """Return `count` mutations of a module, without repeats. Each line is equally likely, and a seed always gives
    the same ones."""
    rng = random.Random(seed)
    by_line: dict[int, list[Mutation]] = {}
    for mutation in mutations_of(source):
        by_line.setdefault(mutation.line, []).append(mutation)
    lines = sorted(by_line)
    rng.shuffle(lines)
    chosen: list[Mutation] = []
    for line in lines:
        if len(chosen) == count:
            break
        of_line = by_line[line]
        rng.shuffle(of_line)
        chosen += [mutation for mutation in of_line if is_program(mutation, source)][:1]
    return chosen


class _Finder:
    def __init__(self, source: str) -> None:
        self.found: list[Mutation] = []
        self._source = source.encode()
        self._starts = [0]
        for line in self._source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def look(self, node: ast.AST, *, is_in_function: bool) -> None:
        """Look at `node` and its children."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._at_function(node)
            for inner in node.body:
                self.look(inner, is_in_function=True)
            return
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    self.look(inner, is_in_function=False)
            return
        if is_in_function:
            if isinstance(
                node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom | ast.Global
            ) or _is_silent(node):
                return
            self._at(node)
        for inner in _inside(node):
            self.look(inner, is_in_function=is_in_function)

    def _put(self, what: str, node: Any, text: str) -> None:
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        self.found.append(Mutation(what, node.lineno, start, end, text))

    def _changed(self, what: str, node: ast.expr, **fields: Any) -> None:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        self._put(what, node, ast.unparse(other))

    def _at_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        is_procedure = isinstance(node.returns, ast.Constant) and node.returns.value is None
        body = node.body[1:] if _is_docstring(node.body[0]) else node.body
        if is_procedure and len(body) > 1 and not isinstance(body[0], ast.Return):
            self._put("return early", body[0], "return")

    def _at(self, node: ast.AST) -> None:
        match node:
            case ast.Compare(ops=[op]) if type(op) in _FLIPPED:
                self._changed("comparison flipped", node, ops=[_FLIPPED[type(op)]()])
            case ast.BoolOp(op=op, values=values):
                other = ast.Or() if isinstance(op, ast.And) else ast.And()
                self._put("and, or", node, f"({ast.unparse(ast.BoolOp(other, values))})")
                for number in range(len(values)):
                    rest = [value for place, value in enumerate(values) if place != number]
                    text = ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(op, rest))
                    self._put("condition dropped", node, f"({text})")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._put("not dropped", node, f"({ast.unparse(operand)})")
            case ast.BinOp(op=op) if type(op) in _OTHER and not _is_text(node):
                self._changed("operator", node, op=_OTHER[type(op)]())
            case ast.Constant(value=bool(value)):
                self._put("boolean", node, str(not value))
            case ast.Constant(value=int(value)) if -1 <= value <= 3:
                self._put("off by one", node, str(value + 1))
            case ast.IfExp(test=test) | ast.If(test=test) | ast.While(test=test):
                if not isinstance(test, ast.Constant | ast.Compare) and not _is_not(test):
                    self._put("condition negated", test, f"(not ({ast.unparse(test)}))")
            case ast.Call(func=ast.Name(id=name)) if name in _EXTREMES:
                self._put("other extreme", node.func, _EXTREMES[name])
            case ast.ExceptHandler(type=ast.Tuple(elts=elements) as caught) if len(elements) > 1:
                for number in range(len(elements)):
                    rest = [element for place, element in enumerate(elements) if place != number]
                    self._put("error not caught", caught, ast.unparse(ast.Tuple(rest, ast.Load())))
            case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
                self._put("nothing returned", value, "None")
            case ast.Continue():
                self._put("left, not gone on", node, "break")
            case ast.Break():
                self._put("gone on, not left", node, "continue")
        if isinstance(node, ast.Call) and _is_swappable(node):
            self._changed("arguments swapped", node, args=[node.args[1], node.args[0], *node.args[2:]])
        if _is_droppable(node):
            self._put("statement dropped", node, "pass")


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of `node` that may be changed."""
    match node:
        case ast.Raise():
            return  # only the error's text; the raise itself is a statement
        case ast.AnnAssign(value=value):
            yield from [value] if value is not None else []
        case ast.Call(func=func, args=args, keywords=keywords):
            yield func
            yield from args
            yield from (keyword.value for keyword in keywords if keyword.arg not in TEXTS)
        case ast.Subscript(value=value, slice=index):
            yield value
            if not isinstance(value, ast.Name) or value.id[:1].islower():  # not a type with arguments
                yield index
        case _:
            yield from ast.iter_child_nodes(node)


def _is_swappable(node: ast.Call) -> bool:
    if _called(node) in UNSWAPPED or any(isinstance(argument, ast.Starred) for argument in node.args):
        return False
    return len(node.args) >= 2 and ast.dump(node.args[0]) != ast.dump(node.args[1])


def _is_droppable(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=value):
            return not isinstance(value, ast.Constant | ast.Yield)
        case ast.Assign(targets=[target, *_]):
            return isinstance(target, ast.Attribute | ast.Subscript)
    return isinstance(node, ast.AugAssign | ast.Delete | ast.Raise)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Await):
        node = node.value if isinstance(node, ast.Attribute | ast.Await) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def _is_silent(node: ast.AST) -> bool:
    """Return whether no caller can notice the statement."""
    return isinstance(node, ast.Expr) and (_is_docstring(node) or _root(node.value) in SILENT_CALLS)


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
