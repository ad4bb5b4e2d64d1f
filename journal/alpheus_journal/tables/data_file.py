"""One data file of a native table, as a manifest names it."""

from __future__ import annotations

import msgspec


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """One data file of a native table, and what is known of its values.

    The dicts go by field id of leaf columns. A key in `value_counts` says that the file holds that column;
    the others have keys of those only, a missing key says "not known". Bounds are in `encode_bound`'s form
    and may be wider than the values. No value lies outside them except NaN, of which `nan_counts` tells: who
    orders NaN above all numbers, as Spark does, may trust an upper bound only where that count is 0.
    """

    path: str  # data/<table id>/<transaction id>/<write id>/<name>.parquet
    format: str = "parquet"
    row_count: int
    size_bytes: int
    schema_id: int | None = None  # None only before it is in a segment: takes the segment's
    column_sizes: dict[int, int] = {}  # bytes on storage
    value_counts: dict[int, int] = {}  # NULL and NaN included; below lists, entries
    null_counts: dict[int, int] = {}  # below lists and structs, also where a parent is NULL or empty
    nan_counts: dict[int, int] = {}
    lower_bounds: dict[int, bytes] = {}
    upper_bounds: dict[int, bytes] = {}
    split_offsets: tuple[int, ...] = ()  # where row groups begin, ascending
    sequence: int | None = None  # at which its rows came in; None: the segment's
    partition: dict[int, bytes | None] = {}  # by column id: of the table's partition spec (`partitions`)
    sort_order_id: int | None = None  # 1: its rows are in the table's sort order; None, 0: in none
    added_version: int | None = None  # reserved: the version that added it, where a merge keeps it
