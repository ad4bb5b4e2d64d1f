"""One data file of a native table, as a manifest lists it."""

from __future__ import annotations

import msgspec


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """One data file of a native table, with statistics of its values.

    The dicts have the field ids of leaf columns as keys. A key in `value_counts` says that the file has the column. The
    other dicts only have keys of these columns; a missing key means "not known". Bounds are in the form of
    `encode_bound` and may be wider than the values. No value is outside of them except NaN, which `nan_counts` counts.
    A reader that orders NaN above all numbers, as Spark does, may trust an upper bound only where that count is 0.
    """

    path: str  # data/<table id>/<transaction id>/<write id>/<name>.parquet
    format: str = "parquet"
    row_count: int
    size_bytes: int
    schema_id: int | None = None  # None only before the file is in a segment, whose schema id it then takes
    column_sizes: dict[int, int] = {}  # bytes on storage
    value_counts: dict[int, int] = {}  # includes NULL and NaN; below lists it counts entries
    null_counts: dict[int, int] = {}  # below lists and structs it also counts a NULL or empty parent
    nan_counts: dict[int, int] = {}
    lower_bounds: dict[int, bytes] = {}
    upper_bounds: dict[int, bytes] = {}
    split_offsets: tuple[int, ...] = ()  # where row groups begin, ascending
    sequence: int | None = None  # when its rows were added; None means the segment's sequence
    partition: dict[int, bytes | None] = {}  # values of the partition spec, by column id (`partitions`)
    sort_order_id: int | None = None  # 1 for the table's sort order, None or 0 for no order
    added_version: int | None = None  # reserved for the version that added the file, where a merge keeps it
    crc32: int | None = None  # of all bytes; None where no checksums are known
    footer_crc32: int | None = None  # of the footer and the bytes after it; None where `crc32` is
