"""What an import tells."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

Format = Literal["parquet", "delta", "iceberg"]


class ImportProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an import is, what an earlier attempt had copied included; totals are the source's own."""

    transaction_id: str
    files: int
    files_total: int
    rows: int
    rows_total: int
    size_bytes: int
    size_bytes_total: int


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an import: the commit, and what was copied into what.

    `duplicate`: it had been committed before, under its id or its key. `rows` are as many as the source has;
    `resumed_files`: source files of these that an earlier attempt had copied. Counts are 0 where a duplicate is of a
    version of which nothing is kept.
    """

    version: int
    transaction_id: str
    created_at: datetime
    duplicate: bool = False
    format: str
    source: str
    source_version: str
    source_files: int
    source_size_bytes: int
    rows: int
    files: int
    size_bytes: int
    resumed_files: int = 0
