"""Exceptions that stop a run, the number of a job's attempts, and the text that is recorded of an error."""

from __future__ import annotations

import traceback

import msgspec

from alpheus_journal.errors import (
    AlpheusError,
    Exhausted,
    OutcomeUnknown,
    Unavailable,
)

ERROR_TEXT_MAX = 4000


class Stopped(Exception):
    """`serve` was asked to stop while it waited."""


class LeaseHeld(Exception):
    """Another process holds the job's lease."""


class JobFailed(Exception):
    """The job's function raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Tries(msgspec.Struct):
    """The tries of one job's work. The next try starts no earlier than `not_before`, in monotonic seconds. `retry_in`
    is the number of seconds after which the job is looked at again, even if nothing changes."""

    failures: int = 0
    conflicts: int = 0
    outages: int = 0
    not_before: float = 0.0
    retry_in: float | None = None

    @property
    def attempt(self) -> int:
        return 1 + self.failures + self.conflicts


def is_passing(error: BaseException) -> bool:
    """Return whether the error means that the catalog is unavailable or busy, so that the job is not at fault."""
    if isinstance(error, Exhausted):
        return error.retry_after is not None
    return isinstance(error, OutcomeUnknown) or (
        isinstance(error, Unavailable) and error.kind != "storage_read_only"
    )


def error_text(error: BaseException) -> str:
    """Return the text that is recorded of an error: its class and message, and where the job raised it."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    if frames and not isinstance(error, AlpheusError):
        text += f" [{frames[-1].name}, line {frames[-1].lineno}]"
    return text.encode(errors="replace").decode()[:ERROR_TEXT_MAX]
