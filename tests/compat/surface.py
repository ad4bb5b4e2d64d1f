"""The names that users, scripts and dashboards depend on, gathered from the code as one JSON document.

    python tests/compat/surface.py > tests/compat/surface.json

The document has:

- public names with their parameters, error kinds, exit statuses;
- commands with their flags, settings, options of the data source, environment variables;
- metrics with their labels, log events with their fields;
- messages of the wire and of storage, failpoints, files in deploy/.

Free texts are left out.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("journal/alpheus_journal", "daemon/alpheus_daemon", "clients/alpheus")
PUBLIC = (
    "alpheus",
    "alpheus.aio",
    "alpheus.errors",
    "alpheus.pipeline",
    "alpheus.spark",
    "alpheus_journal.testing",
    "alpheus_journal.storage",
    "alpheus_journal.predicate",
)
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


def surface() -> dict[str, Any]:
    """Return every part of the surface by its name, as JSON values."""
    return {
        "public": {module: public_names(module) for module in PUBLIC},
        "error_kinds": sorted(importlib.import_module("alpheus_journal.errors").KINDS),
        "exit_statuses": exit_statuses(),
        "commands": commands(),
        "settings": table_of_manual("settings", columns=(0, 1, 2, 3)),
        "metrics": table_of_manual("metrics", columns=(0, 1, 2)),
        "log_events": log_events(),
        "messages": messages(),
        "source_options": source_options(),
        "environment": sorted(environment()),
        "failpoints": sorted(failpoints()),
        "deploy": sorted(
            str(path.relative_to(ROOT)) for path in (ROOT / "deploy").rglob("*") if path.is_file()
        ),
    }


def public_names(module: str) -> dict[str, Any]:
    """Return each public name of a module with its parameters, or with its members if it is a class of this project."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [name for name in vars(found) if not name.startswith("_")]
    return {
        name: shape_of(value)
        for name in sorted(names)
        if not inspect.ismodule(value := getattr(found, name)) and is_ours(value)
    }


def is_ours(value: object) -> bool:
    return str(getattr(value, "__module__", "alpheus")).startswith("alpheus")


def shape_of(value: object) -> Any:
    """Return the parameters of a function, the members of a class, or the type of any other value."""
    if isinstance(value, enum.EnumMeta):
        return {name: str(value[name].value) for name in sorted(value.__members__)}
    if isinstance(value, type):
        members = {name: shape_of(member) for name, member in members_of(value) if not name.startswith("_")}
        if issubclass(value, BaseException):
            members = {"of": [base.__name__ for base in value.__mro__ if is_ours(base)][1:], **members}
        return {"call": parameters_of(value), **members}
    return parameters_of(value) if callable(value) else type(value).__name__


def members_of(cls: type) -> Iterator[tuple[str, object]]:
    names = {name for base in cls.__mro__ if base.__module__.startswith("alpheus") for name in vars(base)}
    names |= {name for base in cls.__mro__ if is_ours(base) for name in inspect.get_annotations(base)}
    yield from ((name, inspect.getattr_static(cls, name, "field")) for name in sorted(names))


def parameters_of(value: object) -> str:
    """Return `(name, /, other, *, key=1)`, without types. A default that is no plain value is `...`."""
    if isinstance(value, property):
        return "property"
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return type(value).__name__
    plain = (int, float, str, bool, type(None), tuple)
    parameters = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default=parameter.default
            if parameter.default is inspect.Parameter.empty or isinstance(parameter.default, plain)
            else ...,
        )
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)).replace(
        "Ellipsis", "..."
    )


@cache
def sources() -> tuple[ast.Module, ...]:
    """Return every module of the product, without those that ship for tests."""
    return tuple(
        ast.parse(path.read_bytes())
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "testing" not in path.parts
    )


@cache
def nodes(tree: ast.Module) -> tuple[ast.Call | ast.Constant, ...]:
    """Return all calls and constants of a module: what is looked for here."""
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.Constant))


def exit_statuses() -> dict[str, int]:
    """Return the constants of the module that defines INTERRUPTED."""
    for tree in sources():
        found = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
            and type(node.value.value) is int
        } | dict(statuses_in_tuple(tree))
        if "INTERRUPTED" in found:
            return {name: status for name, status in sorted(found.items()) if not name.startswith("_")}
    raise AssertionError("no module defines exit statuses")


def statuses_in_tuple(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return the statuses of an assignment like `DONE, FAILED = 0, 1`."""
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
        ):
            for name, value in zip(node.targets[0].elts, node.value.elts, strict=True):
                if (
                    isinstance(name, ast.Name)
                    and isinstance(value, ast.Constant)
                    and type(value.value) is int
                ):
                    yield name.id, value.value


def commands() -> dict[str, list[str]]:
    """Return each command of `alpheus` with its arguments, flags and their environment variables."""
    import click

    found: dict[str, list[str]] = {}

    def walk(name: str, command: click.Command) -> None:
        found[name] = sorted(
            " ".join([*parameter.opts, *parameter.secondary_opts, *env_of(parameter)])
            + (" required" if parameter.required else "")
            for parameter in command.params
        )
        for child, other in getattr(command, "commands", {}).items():
            walk(f"{name} {child}", other)

    def env_of(parameter: click.Parameter) -> list[str]:
        given = parameter.envvar
        return [f"${one}" for one in ([given] if isinstance(given, str) else given or [])]

    cli = importlib.import_module("alpheus.cli")
    (top,) = {id(value): value for value in vars(cli).values() if isinstance(value, click.Group)}.values()
    walk("alpheus", top)
    return found


def table_of_manual(name: str, columns: tuple[int, ...]) -> list[str]:
    """Return the rows of a table of the manual. Another test compares the table with the code."""
    text = (ROOT / "deploy" / "OPERATIONS.md").read_text()
    table = re.search(rf"<!-- {name}: [^\n]*\n(\|.*?)\n\n", text, re.DOTALL)
    assert table, name
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table[1].splitlines()[2:]
        if line.startswith("|")
    ]
    return sorted(" | ".join(row[column] for column in columns if column < len(row)) for row in rows)


def log_events() -> dict[str, list[str]]:
    """Return each event named in log calls, with the keys that the calls give to it."""
    found: dict[str, set[str]] = {}
    for tree in sources():
        for node in nodes(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in LOG_METHODS
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and re.fullmatch(r"[a-z]+(_[a-z]+)*", str(node.args[0].value))
            ):
                keys = {keyword.arg or "**" for keyword in node.keywords}
                found.setdefault(str(node.args[0].value), set()).update(keys)
    return {event: sorted(keys) for event, keys in sorted(found.items())}


def messages() -> dict[str, list[str]]:
    """Return the fields of each message, the values of each enum, and the calls of each service."""
    found: dict[str, list[str]] = {}

    def walk(message: Any) -> None:
        found[message.full_name] = [
            f"{field.number} {field.name} {field.type}{' repeated' if field.is_repeated else ''}"
            + (f" {kind.full_name}" if (kind := field.message_type or field.enum_type) else "")
            for field in sorted(message.fields, key=lambda field: field.number)
        ]
        for nested in message.nested_types:
            walk(nested)
        for one in message.enum_types:
            found[one.full_name] = [f"{value.number} {value.name}" for value in one.values]

    for path in sorted((ROOT / "protos" / "alpheus_pb" / "v1").glob("*_pb2.py")):
        file = importlib.import_module(f"alpheus_pb.v1.{path.stem}").DESCRIPTOR
        for message in file.message_types_by_name.values():
            walk(message)
        for one in file.enum_types_by_name.values():
            found[one.full_name] = [f"{value.number} {value.name}" for value in one.values]
        for service in file.services_by_name.values():
            found[service.full_name] = [
                f"{method.name} {method.input_type.full_name} {method.output_type.full_name}"
                for method in service.methods
            ]
    return dict(sorted(found.items()))


def source_options() -> list[str]:
    """Return the options of the data source: the one table of names in the module that has the class `Options`."""
    for tree in sources():
        if any(isinstance(node, ast.ClassDef) and node.name == "Options" for node in tree.body):
            for node in tree.body:
                if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("frozenset({"):
                    return sorted(ast.literal_eval(node.value.args[0]))  # type: ignore[attr-defined]
    raise AssertionError("no module has the options of the data source")


def environment() -> set[str]:
    """Return the environment variables that the product names."""
    return {name for tree in sources() for name in constants_like(tree, r"ALPHEUS_[A-Z0-9_]+")}


def constants_like(tree: ast.Module, pattern: str) -> Iterator[str]:
    for node in nodes(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(pattern, node.value)
        ):
            yield node.value


def failpoints() -> set[str]:
    """Return the names of places where a test may kill a process or let it fail."""
    return {
        str(node.args[0].value)
        for tree in sources()
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "reached"
        and ast.unparse(node.func).endswith("failpoints.reached")
        and isinstance(node.args[0], ast.Constant)
    }


if __name__ == "__main__":
    json.dump(surface(), sys.stdout, indent=1, sort_keys=True)
    print()
