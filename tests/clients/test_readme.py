"""The README's programs run, and print what it says that they print."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ROOT, run_alone
from programs import blocks as blocks_of
from programs import section as section_of

README = (ROOT / "README.md").read_text()


def blocks(heading: str) -> list[tuple[str, str]]:
    return blocks_of(section_of(README, heading))


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return (tmp_path / "lake").as_uri()


def typed(commands: str, lake: str) -> tuple[str, dict[str, str]]:
    """What the README has one type into a shell, for another folder and a port that is free; and its environment."""
    first, rest = commands.split("\n", 1)
    assert first == "make setup && . .venv/bin/activate"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    assert "127.0.0.1:7480" in rest, "which is where a daemon listens that is told nothing"
    environment = os.environ | {
        "ALPHEUS_LISTEN": f"127.0.0.1:{port}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    return rest.replace("/tmp/lake", lake).replace("7480", port), environment


def in_a_shell(script: str, environment: dict[str, str], directory: Path) -> str:
    """Its standard output. What it leaves behind is ended."""
    with subprocess.Popen(
        ["sh", "-c", script],
        env=environment,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            printed, errors = shell.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            raise
    assert shell.returncode == 0, printed + errors[-3000:]
    return printed


def test_the_first_programs_print_what_the_readme_says(tmp_path: Path, lake: str) -> None:
    (shell, commands), (_, program), (_, printed) = blocks("A first program")
    assert shell == "sh"
    (tmp_path / "first.py").write_text(program)
    script, environment = typed(commands, str(tmp_path / "lake"))
    script += (
        "echo begin; python first.py || { kill $!; exit 1; }; echo end; kill -TERM $!; wait $! && echo left"
    )
    found = in_a_shell(script, environment, tmp_path)
    shown = re.search(r"begin\n(.*)end\n(.*)", found, re.DOTALL)
    assert shown is not None
    assert shown[1].strip() == printed.strip()
    assert shown[2].endswith("left\n"), "the daemon left in order"
    (_, reading), (_, read) = blocks("Reading")
    # What the next section prints begins here, too.
    other = shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    assert run_alone(tmp_path, "reading.py", reading, other.as_uri()).strip() == read.strip()
    (_, pipeline), (_, shown) = blocks("A first pipeline")
    assert run_alone(tmp_path, "pipeline.py", pipeline, lake).strip() == shown.strip()
    done = subprocess.run(
        [sys.executable, "-m", "alpheus", "--catalog", lake, "pipeline", "show", "totals"],
        capture_output=True,
    )
    assert done.returncode == 0


def test_each_program_is_run_somewhere() -> None:
    """In `make test`, all of them. `make run` is `test_demo`, `make test` is this."""
    sections = re.split(r"\n## ", README)
    fenced = {text.split("\n", 1)[0]: [language for language, _ in blocks_of(text)] for text in sections}
    assert {name: found for name, found in fenced.items() if any(found)} == {
        "A first program": ["sh", "python", ""],
        "Reading": ["python", ""],
        "A first pipeline": ["python", ""],
    }
