"""The README's programs run, and print what it says that they print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(section: str) -> list[tuple[str, str]]:
    """(language, text) of the fenced blocks of a section."""
    text = README.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)


def run(directory: Path, name: str, program: str, catalog: str) -> str:
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


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return (tmp_path / "lake").as_uri()


def test_the_first_programs_print_what_the_readme_says(tmp_path: Path, lake: str) -> None:
    (shell, _), (_, program), (_, printed) = blocks("A first program")
    assert shell == "sh"
    subprocess.run([sys.executable, "-m", "alpheus", "create", lake], check=True, capture_output=True)
    assert run(tmp_path, "first.py", program, lake).strip() == printed.strip()
    (_, reading), (_, read) = blocks("Reading")
    # What the next section prints begins here, too.
    other = shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    assert run(tmp_path, "reading.py", reading, other.as_uri()).strip() == read.strip()
    (_, pipeline), (_, shown) = blocks("A first pipeline")
    assert run(tmp_path, "pipeline.py", pipeline, lake).strip() == shown.strip()
    done = subprocess.run(
        [sys.executable, "-m", "alpheus", "--catalog", lake, "pipeline", "show", "totals"],
        capture_output=True,
    )
    assert done.returncode == 0
