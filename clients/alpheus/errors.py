"""The exceptions that the client raises; `alpheus_journal.errors` says when each one is raised."""

from __future__ import annotations

from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Corrupt,
    Denied,
    Exhausted,
    Expired,
    InvalidInput,
    NotEmpty,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)

__all__ = [
    "AlpheusError",
    "AlreadyExists",
    "Conflict",
    "Corrupt",
    "Denied",
    "Exhausted",
    "Expired",
    "InvalidInput",
    "NotEmpty",
    "NotFound",
    "OutcomeUnknown",
    "Unavailable",
]
