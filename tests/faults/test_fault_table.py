"""FAULTS.md names tests: each of them exists, and each row has one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "tests/faults/FAULTS.md").read_text()
NAMED = sorted(set(re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", TABLE)))
ROWS = [line for line in TABLE.splitlines() if re.match(r"\| \d+ \|", line)]
FAULTS_TO_COVER = {*range(1, 54), *range(56, 75)}


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert (ROOT / path).is_file(), f"{path} is named in FAULTS.md and not there"
    assert name in functions_of(path), f"{path} has no {name}"


def test_every_row_names_a_test() -> None:
    assert len(NAMED) > 60
    for row in ROWS:
        assert "::test_" in row, row


def test_every_fault_that_must_be_covered_has_its_row() -> None:
    faults = TABLE.split("## Guarantees")[0]
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", faults, re.MULTILINE)]
    assert numbers == sorted(FAULTS_TO_COVER)
