"""What a command of `alpheus` said, as the tests of the command line ask for it."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result


def ok(result: Result) -> str:
    """The standard output of a command that must have succeeded."""
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(result: Result, status: int = 1) -> str:
    """The standard error of a command that must have failed and printed nothing."""
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    return result.stderr


def answer(result: Result) -> Any:
    """The JSON document of a command that must have succeeded, and said nothing else."""
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)
