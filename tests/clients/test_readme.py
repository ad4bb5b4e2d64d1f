"""The README's programs run, and print what it says that they print."""

from __future__ import annotations

import shutil
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


def test_the_first_programs_print_what_the_readme_says(tmp_path: Path, lake: str) -> None:
    (shell, _), (_, program), (_, printed) = blocks("A first program")
    assert shell == "sh"
    subprocess.run([sys.executable, "-m", "alpheus", "create", lake], check=True, capture_output=True)
    assert run_alone(tmp_path, "first.py", program, lake).strip() == printed.strip()
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
