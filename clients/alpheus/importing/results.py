"""The progress and the result of an import."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

Format = Literal["parquet", "delta", "iceberg"]


class ImportProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of an import, including what an earlier attempt copied. Totals are those of the source."""

    transaction_id: str
    files: int
    files_total: int
    rows: int
    rows_total: int
    size_bytes: int
    size_bytes_total: int


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an import: the commit, and what was copied.

    * `duplicate`: the import was committed before, under its id or its key.
    * `rows`: the number of rows of the source, all of which were copied.
    * `resumed_files`: the number of source files that an earlier attempt had copied.

    Counts are 0 for a duplicate whose version is no longer kept.
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
