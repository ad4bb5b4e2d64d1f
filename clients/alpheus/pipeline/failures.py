"""What stops a run, how often a piece of work was tried, and what is kept of an error."""

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
    """`serve` was told to stop while it waited."""


class LeaseHeld(Exception):
    """Another process calls the job."""


class JobFailed(Exception):
    """The job's function raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Tries(msgspec.Struct):
    """What was tried for one piece of work. `not_before`: monotonic seconds. `retry_in`: so many seconds after it is
    done there may be more, whether or not something changes."""

    failures: int = 0
    conflicts: int = 0
    outages: int = 0
    not_before: float = 0.0
    retry_in: float | None = None

    @property
    def attempt(self) -> int:
        return 1 + self.failures + self.conflicts


def is_passing(error: BaseException) -> bool:
    """Whether the catalog is merely away or busy: nothing is wrong with the job."""
    if isinstance(error, Exhausted):
        return error.retry_after is not None
    return isinstance(error, OutcomeUnknown) or (
        isinstance(error, Unavailable) and error.kind != "storage_read_only"
    )


def error_text(error: BaseException) -> str:
    """What is kept of an error: its class and message, and where the job raised it."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    if frames and not isinstance(error, AlpheusError):
        text += f" [{frames[-1].name}, line {frames[-1].lineno}]"
    return text.encode(errors="replace").decode()[:ERROR_TEXT_MAX]
