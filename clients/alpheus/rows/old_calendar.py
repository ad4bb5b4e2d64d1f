"""Parquet files whose old days and times are of another calendar than their format says.

Spark 2, and later ones in their LEGACY mode, write days before 1582-10-15 by the Julian calendar, and times before 1900
by local times of cities. Footers tell, and Spark turns such values back when it reads them; other readers take them for
what they would be by the format, some days off.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pyarrow.parquet as pq

from alpheus_journal.errors import InvalidInput

_SPARK_VERSION = b"org.apache.spark.version"
_LEGACY = b"org.apache.spark.legacyDateTime"
_OLD_SPARK = re.compile(rb"[012]\.")
_FIRST_DAY = dt.date(1582, 10, 15)
_FIRST_TIME = dt.datetime(1900, 1, 2)  # Spark's own bound is the first day of 1900 in any zone


def refuse_old_calendar(metadata: pq.FileMetaData, path: str) -> None:
    """InvalidInput (`bad_data`) naming a column whose values may be of the other calendar, as far as statistics tell.
    Timestamps of type INT96, which have none, are taken."""
    told = metadata.metadata or {}
    if _LEGACY not in told and not _OLD_SPARK.match(told.get(_SPARK_VERSION, b"")):
        return
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            kind = metadata.schema.column(place).logical_type.type
            if kind in ("DATE", "TIMESTAMP") and _may_be_old(kind, column):
                raise InvalidInput(
                    f"{path[:300]}: column {column.path_in_schema} may hold days before 1582 or times before 1900 as"
                    " Spark 2 wrote them, by another calendar",
                    kind="bad_data",
                    hint="read the file by Spark, and append the frame: that knows what they mean",
                )


def _may_be_old(kind: str, column: pq.ColumnChunkMetaData) -> bool:
    found = column.statistics
    if found is None:
        return bool(column.num_values)
    if found.has_min_max:
        try:
            return _is_old(kind, found.min)
        except (ValueError, OverflowError):  # no day that Python has
            return True
    return not found.has_null_count or found.null_count < column.num_values


def _is_old(kind: str, low: Any) -> bool:
    if kind == "DATE":
        return not isinstance(low, dt.date) or low < _FIRST_DAY
    return not isinstance(low, dt.datetime) or low.replace(tzinfo=None) < _FIRST_TIME
