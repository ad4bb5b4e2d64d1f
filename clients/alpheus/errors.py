"""What the client raises: the one exception tree (see `alpheus_journal.errors` for who raises what)."""

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
