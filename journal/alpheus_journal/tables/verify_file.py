"""Compare a manifest entry with its data file, by the file's footer or by its values (FORMAT.md, "Native tables").

Pure: footers and batches are read by the caller, and differences are returned as text. Readers plan by the entry. The
entry may say less than the file, and its bounds may be wider, so bounds are compared by containment. Its numbers of
rows, values and NULLs must be exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from alpheus_journal.model.definitions import Column, TableDef, walk_columns
from alpheus_journal.model.type_names import type_text
from alpheus_journal.tables.columns import (
    Bound,
    decode_bound,
    encode_bound,
    field_id,
    is_list,
    plain_type,
    unscaled,
)
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.parquet_footer import Leaf, chunk_start, null_count_of, raw_reader, reads_as
from alpheus_journal.tables.partitions import flaw_of_partition

_CUT_SIZE_BYTES = 64
"""The size at which other writers cut texts in their statistics. They then raise a cut maximum."""


class _Found(msgspec.Struct, frozen=True):
    """A leaf column of a file.

    - `number` is None where neither the file nor the table has an id for the column.
    - `column` is the table's column, or None where the table has none, has dropped it, or has another type.
    - `is_repeated` is True below a list or map.
    """

    number: int | None
    path: str
    kind: pa.DataType
    column: Column | None
    is_repeated: bool

    @property
    def label(self) -> str:
        return f"column {self.path!r}" + ("" if self.number is None else f" (id {self.number})")


def footer_differences(
    file: DataFile, size_bytes: int, metadata: pq.FileMetaData, table: TableDef
) -> list[str]:
    """Return the differences between the entry and the footer of a data file, or an empty list.

    Compares the rows, the ids and types of columns, the values, NULLs and bytes of each column, the starts of row
    groups and the partition. No minimum or maximum of the footer may be outside of the entry's bounds. Of columns that
    the table has dropped only counts are compared. NaNs, and statistics that the writer left out, are not compared.
    """
    problems: list[str] = []
    if size_bytes != file.size_bytes:
        problems.append(f"has {size_bytes} bytes, not {file.size_bytes}")
    if metadata.num_rows != file.row_count:
        problems.append(f"has {metadata.num_rows} rows, not {file.row_count}")
    try:
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, ValueError, TypeError) as error:
        return [*problems, f"has a schema that cannot be read: {str(error)[:200]}"]
    misfits: list[str] = []
    leaves = list(_leaves_of(list(schema), table.columns, "", False, misfits))
    problems += misfits or _find_strays(leaves, table)
    if len(leaves) != metadata.num_columns:
        return [*problems, f"has {metadata.num_columns} leaf columns, of which {len(leaves)} are known"]
    problems += _find_missing(file, leaves)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    if sum(group.num_rows for group in groups) != metadata.num_rows:
        problems.append("has row groups that do not add up to its rows")
    nulls: dict[int, int] = {}
    bounds: dict[int, tuple[Bound, Bound]] = {}
    for place, leaf in enumerate(leaves):
        chunks = [group.column(place) for group in groups]
        if place == 0 and file.split_offsets:
            starts = tuple(sorted({chunk_start(chunk) for chunk in chunks}))
            if starts != file.split_offsets:
                problems.append(f"has row groups at {starts[:5]}, not at {file.split_offsets[:5]}")
        if leaf.number is None or leaf.number not in file.value_counts:
            continue
        counts = [null_count_of(chunk) for chunk in chunks]
        if None not in counts:
            nulls[leaf.number] = sum(count or 0 for count in counts)
        for what, counted, claims in (
            ("values", sum(chunk.num_values for chunk in chunks), file.value_counts),
            ("NULLs", nulls.get(leaf.number), file.null_counts),
            ("bytes", sum(chunk.total_compressed_size for chunk in chunks), file.column_sizes),
        ):
            problems += _compare_count(leaf, what, counted, claims)
        found = _bounds_of(leaf, chunks)
        if found is not None:
            bounds[leaf.number] = found
            problems += _find_outside(file, leaf, *found, is_cut=True)
    if file.partition.keys() == {field.column_id for field in table.partition_spec}:
        flaw = _flaw_of_partition(file, leaves, nulls, bounds, table)
        if flaw:
            problems.append(f"is not in the partition of its entry: {flaw}")
    return problems


def value_differences(file: DataFile, batches: Iterable[pa.RecordBatch], table: TableDef) -> list[str]:
    """Return the differences between the entry and the values of a data file.

    Compares the rows, and the NULLs, NaNs and bounds of leaf columns outside of lists and maps. Raises the error of
    reading the batches.
    """
    problems: list[str] = []
    rows = 0
    seen: dict[int, _Seen] = {}
    for batch in batches:
        batch.validate(full=True)
        rows += batch.num_rows
        leaves = _leaves_of(list(batch.schema), table.columns, "", False, [])
        for leaf, array in zip(leaves, _leaf_arrays(batch), strict=True):
            if leaf.number in file.value_counts and not leaf.is_repeated and array is not None:
                seen.setdefault(leaf.number, _Seen(leaf)).add(array)
    if rows != file.row_count:
        problems.append(f"has {rows} rows, not {file.row_count}")
    for one in seen.values():
        problems += _compare_count(one.leaf, "NULLs", one.nulls, file.null_counts)
        problems += _compare_count(one.leaf, "NaNs", one.nans, file.nan_counts)
        if one.low is not None and one.high is not None:
            problems += _find_outside(file, one.leaf, one.low, one.high, is_cut=False)
    return problems


# --- columns ---------------------------------------------------------------------------------------


def _leaves_of(
    fields: list[pa.Field], columns: Sequence[Column], prefix: str, is_repeated: bool, problems: list[str]
) -> Iterator[_Found]:
    """Yield the leaves of a file's schema or of a struct, in order."""
    by_id = {column.id: column for column in columns}
    seen: set[int] = set()
    for field in fields:
        path, number = prefix + field.name, field_id(field)
        if number is None:
            problems.append(f"has column {path!r} without a field id")
        elif number in seen:
            problems.append(f"has the field id {number} of column {path!r} twice")
        else:
            seen.add(number)
        column = None if number is None else by_id.get(number)
        yield from _leaves(field, number, column, path, is_repeated, problems)


def _leaves(
    field: pa.Field,
    number: int | None,
    column: Column | None,
    path: str,
    is_repeated: bool,
    problems: list[str],
) -> Iterator[_Found]:
    kind = plain_type(field.type)
    want = None if column is None else column.type
    if pa.types.is_struct(kind) and want in (None, "STRUCT"):
        inner = [kind.field(index) for index in range(kind.num_fields)]
        yield from _leaves_of(inner, column.fields if column else (), path + ".", is_repeated, problems)
    elif is_list(kind) and want in (None, "LIST"):
        yield from _below(kind.value_field, column and column.element, path + ".element", problems)
    elif pa.types.is_map(kind) and want in (None, "MAP"):
        yield from _below(kind.key_field, column and column.key, path + ".key", problems)
        yield from _below(kind.item_field, column and column.value, path + ".value", problems)
    elif not kind.num_fields:
        if column is not None and not reads_as(kind, column):
            problems.append(
                f"has column {path!r} (id {number}) of type {kind}, which does not read as {type_text(column)}"
            )
            column = None
        yield _Found(number, path, kind, column, is_repeated)
    else:
        claimed = None if column is None else type_text(column)
        problems.append(f"has column {path!r} (id {number}) of type {kind}, not {claimed}")
        yield from _leaves(field, number, None, path, is_repeated, problems)


def _below(field: pa.Field, column: Column | None, path: str, problems: list[str]) -> Iterator[_Found]:
    """Yield the leaves inside a list or map. The writer may have given the inner field no id."""
    number = field_id(field)
    if column is not None:
        if number not in (None, column.id):
            problems.append(f"has {path!r} with field id {number}, the table {column.id}")
        number = column.id
    return _leaves(field, number, column, path, True, problems)


def _find_strays(leaves: Sequence[_Found], table: TableDef) -> Iterator[str]:
    """Yield columns of the table that the file has in another struct, list or map, where no reader looks for them."""
    ids = {column.id for column in walk_columns(table.columns)}
    for leaf in leaves:
        if leaf.column is None and leaf.number in ids:
            yield f"has {leaf.label} in another column than the table"


def _find_missing(file: DataFile, leaves: Sequence[_Found]) -> Iterator[str]:
    for leaf in leaves:
        if leaf.number is not None and leaf.number not in file.value_counts:
            yield f"has {leaf.label}, which its entry does not name"
    absent = sorted(file.value_counts.keys() - {leaf.number for leaf in leaves})
    nameless = sum(leaf.number is None for leaf in leaves)  # in lists and maps that the table has dropped
    if len(absent) > nameless:
        yield f"lacks the column ids {', '.join(map(str, absent[:10]))}, which its entry names"


def _compare_count(leaf: _Found, what: str, counted: int | None, claims: Mapping[int, int]) -> Iterator[str]:
    assert leaf.number is not None
    if counted is not None and claims.get(leaf.number, counted) != counted:
        yield f"has {counted} {what} in {leaf.label}, not {claims[leaf.number]}"


# --- bounds ----------------------------------------------------------------------------------------


def _bounds_of(leaf: _Found, chunks: Sequence[pq.ColumnChunkMetaData]) -> tuple[Bound, Bound] | None:
    """Return the least minimum and the greatest maximum of the footer, or None when it has none that is understood."""
    if leaf.column is None:
        return None
    read = raw_reader(Leaf(leaf.column, leaf.path, leaf.kind))
    lows: list[Any] = []
    highs: list[Any] = []
    for chunk in chunks:
        found = chunk.statistics
        if found is None or not found.has_min_max or null_count_of(chunk) == chunk.num_values:
            continue
        try:
            low, high = read(found.min_raw), read(found.max_raw)
        except (ValueError, TypeError, pa.ArrowException):
            continue
        if low == low and high == high:
            lows.append(low)
            highs.append(high)
    if not lows:
        return None
    return _scaled(leaf.column, min(lows)), _scaled(leaf.column, max(highs))


def _scaled(column: Column, value: Any) -> Bound:
    """Return a footer's value in the units of `decode_bound`."""
    return decode_bound(column, encode_bound(column, value)) if column.type == "DECIMAL" else value


def _find_outside(file: DataFile, leaf: _Found, low: Any, high: Any, *, is_cut: bool) -> Iterator[str]:
    """Report values outside of the entry's bounds. `is_cut` says that the writer of the footer may have cut texts."""
    assert leaf.number is not None
    if leaf.column is None:
        return
    lower, upper = file.lower_bounds.get(leaf.number), file.upper_bounds.get(leaf.number)
    try:
        least: Any = None if lower is None else decode_bound(leaf.column, lower)
        greatest: Any = None if upper is None else decode_bound(leaf.column, upper)
    except ValueError as error:
        yield f"has an entry that cannot be understood: {leaf.label}: {error}"
        return
    if least is not None and low < least and not (is_cut and _is_cut(low) and least.startswith(low)):
        yield f"has {_format_value(low)} in {leaf.label}, below the bound {_format_value(least)}"
    if greatest is not None and (high[:-1] if is_cut and _is_cut(high) else high) > greatest:
        yield f"has {_format_value(high)} in {leaf.label}, above the bound {_format_value(greatest)}"


def _is_cut(value: Any) -> bool:
    if isinstance(value, str):
        value = value.encode()
    return isinstance(value, bytes) and len(value) >= _CUT_SIZE_BYTES


def _format_value(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


def _flaw_of_partition(
    file: DataFile,
    leaves: Sequence[_Found],
    nulls: dict[int, int],
    bounds: dict[int, tuple[Bound, Bound]],
    table: TableDef,
) -> str:
    columns = {leaf.number: leaf.column for leaf in leaves if leaf.column is not None}
    keys = {field.column_id for field in table.partition_spec}
    lowers: dict[int, bytes] = {}
    uppers: dict[int, bytes] = {}
    for number in keys & bounds.keys():
        column = columns[number]
        low, high = bounds[number]
        if not (_is_cut(low) or _is_cut(high)):
            lowers[number] = encode_bound(column, unscaled(column, low))
            uppers[number] = encode_bound(column, unscaled(column, high))
    by_footer = msgspec.structs.replace(
        file, null_counts={**file.null_counts, **nulls}, lower_bounds=lowers, upper_bounds=uppers
    )
    return flaw_of_partition(table.partition_spec, table.columns, by_footer)


# --- values ----------------------------------------------------------------------------------------


class _Seen:
    """The NULLs, NaNs and extremes of a column, over all batches."""

    __slots__ = ("high", "leaf", "low", "nans", "nulls")

    def __init__(self, leaf: _Found) -> None:
        self.leaf = leaf
        self.nulls = 0
        self.nans = 0
        self.low: Any = None
        self.high: Any = None

    def add(self, array: pa.Array) -> None:
        self.nulls += array.null_count
        kind = array.type
        if pa.types.is_floating(kind):
            nan = pc.is_nan(array)
            self.nans += pc.sum(nan).as_py() or 0
            array = array.filter(pc.invert(nan).fill_null(False))
        elif pa.types.is_timestamp(kind):
            array = array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        elif pa.types.is_date(kind):
            array = array.cast(pa.int32())
        if self.leaf.column is None or array.null_count == len(array):
            return
        found = pc.min_max(array).as_py()
        low, high = found["min"], found["max"]
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


def _leaf_arrays(batch: pa.RecordBatch) -> Iterator[pa.Array | None]:
    for array in batch.columns:
        yield from _leaf_arrays_of(array)


def _leaf_arrays_of(array: pa.Array) -> Iterator[pa.Array | None]:
    """Yield the arrays of leaves in the order of `_leaves_of`, and None for a leaf in a list or map."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type) or pa.types.is_run_end_encoded(array.type):
        array = array.cast(plain_type(array.type))
    if pa.types.is_struct(array.type):
        for index in range(array.type.num_fields):
            yield from _leaf_arrays_of(pc.struct_field(array, [index]))
    elif array.type.num_fields:
        for _ in _leaves(pa.field("", array.type), None, None, "", True, []):
            yield None
    else:
        yield array
