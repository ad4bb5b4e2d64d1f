"""Everything that hints, help texts and documents tell users to type exists.

Commands parse, options and methods exist, and types have names that can be read.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from programs import ROOT

import alpheus
from alpheus import cli
from alpheus.cli.text.column_types import parse_type
from alpheus.errors import InvalidInput
from alpheus.pipeline import Pipeline
from alpheus.spark import SparkCatalog
from alpheus.sync.symbols import Symbols
from alpheus_daemon.main import COMMAND as DAEMON
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.type_names import SIMPLE_NAMES, TYPES, type_text

CODE = [
    path
    for folder in (
        "clients/alpheus",
        "clients/pyspark_alpheus",
        "daemon/alpheus_daemon",
        "journal/alpheus_journal",
    )
    for path in sorted((ROOT / folder).rglob("*.py"))
]
DOCUMENTS = [
    path
    for path in sorted(ROOT.rglob("*.md"))
    if not {".venv", ".cache", "node_modules"} & set(path.relative_to(ROOT).parts)
]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module, with their lines. X stands for what is filled in later."""
    tree = parsed(path)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


# A command is between quotes or backquotes, on a line of its own, or at the end of a sentence.
QUOTED = re.compile(r"""(?s)(?P<quote>["'`])alpheus (?P<words>[a-z-](?:(?!(?P=quote)).){0,300})(?P=quote)""")
LINE = re.compile(r"(?m)^[ \t]*(?:\$ )?(?:echo [^|\n]*\| )?alpheus (?P<words>[a-z-].*)$")
LAST = re.compile(r"(?:: |run |hint: )alpheus (?P<words>[a-z-][^\n,;:.)]*)")


NAMES = ("alpheus demo", "alpheus replica")  # names of a Spark session and of a task, and no commands


def commands_in(text: str) -> Iterator[tuple[str, bool]]:
    """Yield commands, and whether other words may follow each command."""
    if text in NAMES or "alpheus " not in text:
        return
    joined = re.sub(r"\\+\n\s*", " ", text)
    seen = set()
    for pattern in (QUOTED, LINE, LAST):
        for found in pattern.finditer(joined):
            words = found["words"].strip().rstrip("\\")
            if words not in seen:
                seen.add(words)
                yield words, pattern is LAST or (pattern is LINE and "\n" not in text)


def complaint(words: str, is_sentence: bool = False) -> str:
    """Return why a command cannot be typed, or "" if it can. Values and arguments are only counted."""
    words = re.sub(r"\[[^\]]*\]|…|\.\.\.", " ", words)  # optional parts
    try:
        parts = [part.rstrip(",;:.") for part in shlex.split(words)] if is_sentence else shlex.split(words)
    except ValueError as error:
        return str(error)
    ends = [at for at, part in enumerate(parts) if re.match(r"[|>&#(]|2>", part)]
    parts = parts[: ends[0]] if ends else parts
    command: click.Command = cli.cli
    given: list[str] = []
    pending = list(parts)
    while pending:
        part = pending.pop(0)
        counted = re.fullmatch(r"-\d+", part) and command.name == "diff"
        if part.startswith("-") and len(part) > 1 and not counted:
            if command.name == "serve":
                return complaint_of_daemon([part, *pending])
            option = next((each for each in command.params if part.partition("=")[0] in each.opts), None)
            if option is None and part in ("-h", "--help", "--version"):
                continue
            if option is None:
                return f"{command.name} has no option {part}"
            if not getattr(option, "is_flag", False) and "=" not in part:
                pending[:1] = []  # an option may be named without its value
        elif isinstance(command, click.Group):
            wanted = part.split("|")  # "list|show": each of them
            missing = [one for one in wanted if one not in command.commands]
            if missing:
                return f"there is no command {missing[0]!r} in {command.name}"
            command = command.commands[wanted[0]]
        else:
            given.append(part)
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    if given == ["URL"] and not any(each.name == "url" or each.nargs < 0 for each in arguments):
        return f"{command.name} takes no URL: alpheus --catalog URL {command.name}"
    if is_sentence or any(each.nargs < 0 for each in arguments):
        return ""
    return (
        f"{command.name} takes {len(arguments)} arguments, not {len(given)}"
        if len(given) > len(arguments)
        else ""
    )


def complaint_of_daemon(parts: list[str]) -> str:
    known = {option for each in DAEMON.params for option in each.opts} | {"--help", "-h", "--help-all"}
    missing = [part for part in parts if part.startswith("--") and part.partition("=")[0] not in known]
    return f"serve has no option {missing[0]}" if missing else ""


def test_a_command_that_is_not_there_is_told() -> None:
    assert complaint("table import sales.orders /data --exist-ok") == "import has no option --exist-ok"
    assert complaint("nope") == "there is no command 'nope' in cli"
    assert complaint("table show a b") == "show takes 1 arguments, not 2"
    assert complaint("serve file:///lake --nope") == "serve has no option --nope"
    assert complaint("log URL") == "log takes no URL: alpheus --catalog URL log"
    assert not complaint("table list|show")
    assert not complaint("events --follow --count 1 > events.jsonl")
    assert list(commands_in('run alpheus check, or "alpheus log NAME"')) == [
        ("log NAME", False),
        ("check", True),
    ]


def test_commands_in_texts_can_be_typed() -> None:
    wrong, count = [], 0
    for path in CODE + DOCUMENTS:
        for line, text in texts_of(path) if path.suffix == ".py" else [(1, path.read_text())]:
            for words, is_sentence in commands_in(text):
                count += 1
                if why := complaint(words, is_sentence):
                    wrong.append(f"{path.relative_to(ROOT)}:{line}: alpheus {words}: {why}")
    assert not wrong
    assert count > 100


def all_commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from all_commands(each)


OPTIONS = {option for each in (*all_commands(cli.cli), DAEMON) for one in each.params for option in one.opts} | {
    "--help", "--help-all", "--version",
}  # fmt: skip


def hints_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts that are given as a hint, with their lines."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "hint":
                    for part in ast.walk(keyword.value):
                        if isinstance(part, ast.Constant) and isinstance(part.value, str):
                            yield part.lineno, part.value


METHODS = {
    name
    for kind in (
        alpheus.Catalog, alpheus.Snapshot, alpheus.Transaction, alpheus.Admin, alpheus.Replica, Symbols, SparkCatalog,
        Pipeline,
    )
    for name, _ in inspect.getmembers(kind)
}  # fmt: skip


def test_options_and_methods_in_hints_are_there() -> None:
    wrong = []
    for path in CODE:
        for line, hint in hints_of(path):
            options = re.findall(r"(?<![\w-])--[a-z][a-z-]+", hint)
            methods = re.findall(r"\b(?:catalog|lake|tx|mart)\.(\w+)\(", hint)
            wrong += [f"{path}:{line}: {one}" for one in options if one not in OPTIONS]
            wrong += [f"{path}:{line}: {one}" for one in methods if one not in METHODS]
    assert not wrong


def test_ways_out_are_those_of_the_command(tmp_path: Path) -> None:
    """A hint names options of the command that failed. An option of another command is no way out."""
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("a")
        for name in ("a.t", "a.u"):
            catalog.create_table(name, pa.schema([("x", pa.int64())]))
            catalog.append(name, [{"x": 1}])
        source = tmp_path / "source"
        source.mkdir()
        pq.write_table(catalog.read("a.t"), source / "part.parquet")
    (tmp_path / "d.json").write_text('{"operations": [{"create_namespace": {"name": "a"}}]}')
    for words, option in (
        (["table", "create", "a.t", "--column", "x:int64"], "--exist-ok"),
        (["table", "import", "a.t", str(source)], "--append"),
        (["table", "register", "a.t", "s3://b/metadata.json"], "choose another name"),
        (["table", "rename", "a.t", "a.u"], "choose another name"),
        (["namespace", "create", "a"], "--exist-ok"),
        (["namespace", "drop", "a"], "--cascade"),
        (["view", "create", "a.t", "--sql", "SELECT 1"], "choose another name"),
        (["apply", str(tmp_path / "d.json")], '"exist_ok": true'),
    ):
        done = CliRunner().invoke(cli.cli, ["--catalog", url, *words])
        assert done.exit_code == 1, done.output
        hint = done.stderr.partition("hint: ")[2]
        assert option in hint, (words, done.stderr)
        for named in re.findall(r"--[a-z-]+", hint):
            command: click.Command = cli.cli
            for word in words[:2]:
                command = command.commands[word]  # type: ignore[attr-defined]
            assert any(named in each.opts for each in command.params), (words, hint)


def test_settings_are_in_the_unit_of_their_name() -> None:
    units = {"seconds": "SECONDS", "minutes": "MINUTES", "ms": "MILLISECONDS", "bytes": "BYTES"}
    for parameter in DAEMON.params:
        if isinstance(parameter, click.Option) and not parameter.is_flag and parameter.metavar != "TEXT":
            words = str(parameter.name).removesuffix("_max").removesuffix("_min").split("_")
            assert parameter.metavar == units.get(words[-1], "N" if parameter.name != "config" else "FILE"), (
                parameter.name
            )


def test_types_that_are_printed_can_be_typed() -> None:
    for stored, names in SIMPLE_NAMES.items():
        column = Column(id=1, name="c", type=stored)
        assert type_text(column) == names[0]
        kinds = {parse_type(name) for name in names}
        assert len(kinds) == 1
    with pytest.raises(InvalidInput) as caught:
        parse_type("INT8")
    assert all(name in caught.value.hint for name in TYPES)


STORED_NAME = re.compile(r"\b(INT2|INT4|INT8|FLOAT4|FLOAT8|VARCHAR|TIMESTAMP6|TIMESTAMPTZ6)\b")


def test_nobody_is_shown_a_stored_name_of_a_type() -> None:
    """Errors, hints and texts for users show no stored name of a type. FORMAT.md defines these names."""
    shown = []
    for path in CODE:
        if "testing" in path.parts or path.name == "demo":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.JoinedStr):
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and STORED_NAME.search(str(part.value)):
                        shown.append(f"{path}:{node.lineno}")
        shown += [f"{path}:{line}" for line, hint in hints_of(path) if STORED_NAME.search(hint)]
    for name in (
        "README.md",
        "clients/GUIDE.md",
        "clients/IMPORT.md",
        "clients/alpheus/WHERE.md",
        "deploy/OPERATIONS.md",
    ):
        for number, text in enumerate((ROOT / name).read_text().splitlines(), 1):
            # Users declare Spark's type with a length, so that this name is allowed.
            if STORED_NAME.search(text.replace("VARCHAR(n)", "")):
                shown.append(f"{name}:{number}")
    assert not shown
