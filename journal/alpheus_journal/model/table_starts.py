"""Starts of tables: the oldest version whose data files of a table are kept. FORMAT.md: "Starts of tables"."""

from __future__ import annotations

from collections.abc import Mapping

from alpheus_journal.errors import Expired


def find_lacking(starts: Mapping[str, int], version: int) -> dict[str, int]:
    """Return the tables whose data files a version may lack, by their ids, with their starts."""
    return {table_id: start for table_id, start in starts.items() if start > version}


def files_expired(name: str, version: int, start: int) -> Expired:
    """Build the error for the rows of a table at a version below the table's start."""
    return Expired(
        f"the data files of table {name} at version {version} have expired: by the table's rules they are kept from"
        f" version {start} on",
        kind="files_expired",
        version=version,
        oldest=start,
        hint=f"read the table at version {start} or a later one; the rest of version {version} can be read",
    )
