"""Checks of a command's output, for tests of the command line."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result


def ok(result: Result) -> str:
    """Check that a command succeeded, and return its standard output."""
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(result: Result, status: int = 1) -> str:
    """Check that a command failed and printed nothing, and return its standard error."""
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    return result.stderr


def answer(result: Result) -> Any:
    """Check that a command succeeded and printed one JSON document only, and return the document."""
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)
