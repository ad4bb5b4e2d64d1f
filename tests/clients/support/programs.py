"""The programs in documents: finding them, running them, and comparing their output with the document."""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

ROOT = Path(__file__).parents[3]


def section(document: str, heading: str) -> str:
    return document.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, text) of each fenced block."""
    return re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)


def run_alone(directory: Path, name: str, program: str, catalog: str) -> str:
    """Run a program in a process of its own, and return its output."""
    path = directory / name
    path.write_text(program)
    environment = os.environ | {"ALPHEUS_CATALOG": catalog}
    done = subprocess.run(
        [sys.executable, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=directory,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


class Program(msgspec.Struct, frozen=True):
    """A block that is run, and the output that the document shows in the next block, which has no language."""

    language: str
    text: str
    printed: str
    line: int  # of the document, where the text begins

    @property
    def file_name(self) -> str:
        """Return the name of a block that is a file, which its first line states (`# mart.py`). Otherwise return ""."""
        found = re.match(r"# (\w+\.py)\n", self.text)
        return found[1] if found else ""


def programs(document: str, heading: str | None = None) -> list[Program]:
    """Return the blocks that are run, in order, of a document or of one of its sections."""
    text = document if heading is None else section(document, heading)
    lines_before = document[: document.index(text)].count("\n")
    found: list[Program] = []
    for match in re.finditer(r"```(\w*)\n(.*?)```", text, re.DOTALL):
        if match[1]:
            line = lines_before + text[: match.start(2)].count("\n") + 1
            found.append(Program(match[1], match[2], "", line))
        else:
            assert found, f"{heading}: a block that says what nothing prints"
            assert not found[-1].printed, f"line {found[-1].line}: prints twice"
            found[-1] = msgspec.structs.replace(found[-1], printed=match[2])
    return found


def differs(program: Program, printed: str) -> str:
    """Return how the printed text differs from the document, or "" if it does not.

    `...` stands for any text. A shell command whose output is not shown may print anything.
    """
    if program.language == "sh" and not program.printed:
        return ""
    checker = doctest.OutputChecker()
    options = doctest.ELLIPSIS | doctest.REPORT_NDIFF
    got, want = (
        "\n".join(line.rstrip() for line in text.rstrip().splitlines()) for text in (printed, program.printed)
    )
    if got == want or (want and checker.check_output(want + "\n", got + "\n", options)):
        return ""
    example = doctest.Example("", want + "\n")
    return f"line {program.line}\n{program.text}\n{checker.output_difference(example, got + os.linesep, options)}"


class Session:
    """A folder, a Python session in this process, and a shell. Both find the catalog by ALPHEUS_CATALOG."""

    def __init__(self, directory: Path, catalog: str, patch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self._files: list[str] = []
        patch.chdir(directory)
        patch.syspath_prepend(str(directory))
        patch.setenv("ALPHEUS_CATALOG", catalog)
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def close(self) -> None:
        """Close what the programs left open, and forget modules that were files of this folder."""
        for name in ("lake", "catalog"):
            if name in self.names:
                self.names[name].close()
        for name in self._files:
            sys.modules.pop(name.removesuffix(".py"), None)

    def run(self, program: Program) -> str:
        """Run a program and return its output. A program that is a file is only written, and prints nothing."""
        if program.file_name:
            (self.directory / program.file_name).write_text(program.text)
            self._files.append(program.file_name)
            return ""
        if program.language == "sh":
            return "".join(self._command(line) for line in program.text.splitlines())
        assert program.language == "python", program.language
        printed = io.StringIO()
        tree = ast.parse(program.text, f"line {program.line}")
        ast.increment_lineno(tree, program.line - 1)
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, "the document", "exec"), self.names)
        return printed.getvalue()

    def _command(self, line: str) -> str:
        command, _, status = line.partition("  # exit status ")
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.directory, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == int(status or 0), f"{line}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


@contextlib.contextmanager
def sitting(directory: Path, catalog: str) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        session = Session(directory, catalog, patch)
        try:
            yield session
        finally:
            session.close()
