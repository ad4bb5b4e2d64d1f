"""Generate the forwarding verbs of the synchronous client from the asynchronous ones, or compare the two.

    python -m alpheus.sync            write the generated part of each class of `FRONTS`
    python -m alpheus.sync --check    exit 1 and name the classes whose part differs

A class of the synchronous client contains a mark. Below the mark are the public verbs and properties of its
asynchronous twin, with their signatures and docstrings, each forwarding to the twin. Verbs that the class defines by
hand above the mark are left out. This needs ruff, and runs only in a checkout.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Front(NamedTuple):
    """A class of the synchronous client, and the asynchronous class that its verbs come from."""

    file: str
    name: str
    twin_file: str
    twin: str
    core: str
    """The expression for the asynchronous twin."""
    values: str = ""
    """The same for properties, which must also work in a forked child. Empty means `core`."""
    run: str = "run"
    omitted: tuple[str, ...] = ()
    """Verbs that are useless in synchronous code, or that a base class already forwards."""


FRONTS = (
    Front("sync/reads.py", "SyncReads", "session/reads.py", "Reads", "self._reads()", run="self._run"),
    Front("sync/writes.py", "SyncWrites", "transactions/verbs.py", "Writes", "self._writes()"),
    Front("sync/scan.py", "Scan", "rows/scan.py", "AsyncScan", "self._scan", omitted=("check_on_disk",)),
    Front("sync/scan.py", "SyncPinnedReads", "session/pinned_reads.py", "PinnedReads", "self._reads()"),
    Front("sync/symbols.py", "Symbols", "admin/symbols.py", "AsyncSymbols", "self._core()"),
    Front(
        "sync/subscription.py", "Subscriptions", "events/subscriptions.py", "AsyncSubscriptions", "self._core()"
    ),
    Front(
        "sync/subscription.py", "Subscription", "events/consumer.py", "AsyncSubscription", "self._core()",
        values="self._inner",
    ),
    Front("sync/tags.py", "Tags", "admin/tags.py", "AsyncTags", "self._core()"),
    Front("sync/replica.py", "Replica", "events/replica.py", "AsyncReplica", "self._core"),
    Front(
        "catalog.py", "Transaction", "transactions/transaction.py", "AsyncTransaction", "self._core()",
        values="self._tx", omitted=("scan",),
    ),
    Front("catalog.py", "Admin", "admin/admin.py", "AsyncAdmin", "self._catalog._core().admin"),
    Front("catalog.py", "Catalog", "aio.py", "AsyncCatalog", "self._core()"),
)  # fmt: skip

RETURNED = {
    "AsyncIterator": "Iteration({})",
    "AsyncReplica": "Replica({})",
    "AsyncScan": "Scan({})",
    "AsyncSnapshot": "Snapshot(self, {})",
    "AsyncTransaction": "Transaction({})",
}
"""Expressions that wrap a value of an asynchronous class for the synchronous client."""

NAMES = {"AsyncIterator": "Iteration"} | {
    name: name.removeprefix("Async") for name in RETURNED if name != "AsyncIterator"
}
"""Classes in annotations, and their synchronous twins."""


def mark_of(front: Front) -> str:
    return f"    # -- generated from {front.twin} by `python -m alpheus.sync`\n"


def forward_verbs(front: Front, twin_source: str, by_hand: set[str]) -> str:
    """Return the twin's verbs that are not defined by hand, in the twin's order, not yet formatted."""
    functions = [
        function
        for function in _class_of(twin_source, front.twin).body
        if isinstance(function, Function)
        and not function.name.startswith("_")
        and function.name not in by_hand
        and function.name not in front.omitted
    ]
    overloaded = {function.name for function in functions if _is_overload(function)}
    return "\n".join(
        _overload(function)
        if _is_overload(function)
        else _forwarding(front, function, twin_source, is_overloaded=function.name in overloaded)
        for function in functions
    )


def _is_overload(function: Function) -> bool:
    return "overload" in _decorators(function)


def _decorators(function: Function) -> list[str]:
    return [ast.unparse(each) for each in function.decorator_list]


def _overload(function: Function) -> str:
    return textwrap.indent(f"{_head(function)}\n    ...\n", "    ")


def _head(function: Function) -> str:
    """Return decorators and signature."""
    signature = f"def {function.name}({ast.unparse(function.args)}) -> {_returned_type(function)}:"
    return "\n".join([*(f"@{each}" for each in _decorators(function)), signature])


def _returned_type(function: Function) -> str:
    returned = "None" if function.returns is None else ast.unparse(function.returns)
    for name, other in NAMES.items():
        returned = re.sub(rf"\b{name}\b", other, returned)
    return returned


def _forwarding(front: Front, function: Function, source: str, *, is_overloaded: bool) -> str:
    """Return one verb or property, indented as in a class."""
    head = textwrap.indent(_head(function), "    ")
    body = _overloaded_body(front, function) if is_overloaded else _body(front, function)
    return "\n".join([head, *_docstring(function, source), *body]) + "\n"


def _docstring(function: Function, source: str) -> list[str]:
    """Return the docstring as it is written; the indentation is the same."""
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return [" " * 8 + (ast.get_source_segment(source, first) or "")]
    return []


def _overloaded_body(front: Front, function: Function) -> list[str]:
    """Return the body of an overloaded verb. No overload fits the call in it, so the verb is typed as Any."""
    return [
        f"        verb: Any = {front.core}.{function.name}",
        f"        returned: {_returned_type(function)} = {front.run}(verb{_pass_on(function.args)})",
        "        return returned",
    ]


def _body(front: Front, function: Function) -> list[str]:
    if "property" in _decorators(function):
        return [f"        return {front.values or front.core}.{function.name}"]
    value = f"{front.core}.{function.name}{_pass_on(function.args)}"
    outer = "None" if function.returns is None else ast.unparse(function.returns).partition("[")[0]
    if isinstance(function, ast.AsyncFunctionDef) and outer != "AsyncIterator":  # a generator is not awaited
        value = f"{front.run}({value})"
    if outer == "None":
        return [f"        {value}"]
    return [f"        return {RETURNED.get(outer, '{}').format(value)}"]


def _pass_on(arguments: ast.arguments) -> str:
    """Return the arguments of a call that passes on all arguments of the verb."""
    passed = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args][1:]]
    if arguments.vararg is not None:
        passed.append(f"*{arguments.vararg.arg}")
    passed += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        passed.append(f"**{arguments.kwarg.arg}")
    return f"({', '.join(passed)})"


def _class_of(source: str, name: str) -> ast.ClassDef:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise SystemExit(f"there is no class {name}")


def regenerate(front: Front, source: str, twin_source: str) -> str:
    """Return the source of the front's file with the generated part of the class replaced, not yet formatted."""
    node = _class_of(source, front.name)
    lines = source.splitlines(keepends=True)
    following = [each.lineno for each in ast.parse(source).body if each.lineno > node.lineno]
    ends = min(following, default=len(lines) + 1) - 1  # a mark at the end of the class is not inside its node
    marked = [number for number in range(node.lineno, ends) if lines[number] == mark_of(front)]
    if len(marked) != 1:
        raise SystemExit(
            f"{front.file}: class {front.name} has {len(marked)} marks {mark_of(front).strip()!r}"
        )
    by_hand = {each.name for each in node.body if isinstance(each, Function) and each.lineno <= marked[0]}
    part = forward_verbs(front, twin_source, by_hand)
    rest = lines[max(node.end_lineno or 0, marked[0] + 1) :]
    return "".join([*lines[: marked[0] + 1], "\n", part, *rest])


def format_source(source: str, path: Path) -> str:
    """Return the source as ruff formats it with the settings of the checkout."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False, cwd=path.parent)
    if done.returncode != 0:
        raise SystemExit(f"ruff cannot format {path}: {done.stderr}")
    return done.stdout


def generate(root: Path = ROOT) -> dict[Path, str]:
    """Return every file with a front, as it should be."""
    sources: dict[Path, str] = {}
    for front in FRONTS:
        path = root / front.file
        source = sources.get(path) or path.read_text()
        sources[path] = regenerate(front, source, (root / front.twin_file).read_text())
    return {path: format_source(source, path) for path, source in sources.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m alpheus.sync",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    files = generate()
    faults = [path for path, source in files.items() if path.read_text() != source]
    if not options.check:
        for path in faults:
            path.write_text(files[path])
        print(f"{len(files)} files, {len(faults)} written")
        return 0
    if faults:
        print(
            "the two clients differ; run `python -m alpheus.sync`:",
            file=sys.stderr,
        )
        print("\n".join(f"  {path.relative_to(ROOT)}" for path in faults), file=sys.stderr)
        return 1
    print(f"the synchronous client agrees ({len(FRONTS)} classes)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
