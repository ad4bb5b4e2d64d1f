"""The findings that a check reports."""

from __future__ import annotations

from alpheus_journal.errors import AlpheusError
from alpheus_journal.model.answers import Finding


class Findings:
    """Makes findings, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def of_error(self, error: AlpheusError, version: int, path: str = "") -> Finding:
        """`version` and `path` are for an error that names none."""
        return self.add(
            error.kind,
            error.message,
            error.path or path,
            error.version if error.version is not None else version,
        )

    def add(self, kind: str, message: str, path: str, version: int) -> Finding:
        self.count += 1
        return Finding(kind=kind, message=message, path=path, version=version)
