"""Make a data file's entry from its Parquet footer, and check that a native table can take the file (FORMAT.md, "Native
tables"). Pure: the caller reads the footer."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt
from alpheus_journal.model.definitions import Column, walk_columns
from alpheus_journal.model.type_names import type_text
from alpheus_journal.tables.columns import (
    BOUND_CODE_POINTS_MAX,
    bytes_upper,
    encode_bound,
    field_id,
    is_bytes,
    is_list,
    is_text,
    leaf_arrow_type,
    missing_required,
    plain_type,
    text_upper,
)
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import bad_file, flaw_of

_MICROSECONDS = "write with spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS"


class Leaf(msgspec.Struct, frozen=True):
    """One leaf column of a file: the table's column, its dotted name in the table, and its type in the file."""

    column: Column
    path: str
    kind: pa.DataType


def data_file_of_footer(
    path: str,
    size_bytes: int,
    metadata: pq.FileMetaData,
    columns: tuple[Column, ...],
    *,
    schema_id: int | None = None,
    nan_counts: Mapping[int, int] | None = None,
) -> DataFile:
    """Return the entry of the Parquet file at `path`, from its footer, for a table of these columns.

    Top-level columns and struct fields are found by field id. List elements, map keys and map values are found by
    place, because Spark gives them no ids. `nan_counts` are exact counts by a writer that saw the values; footers have
    none.

    Raises InvalidInput (`bad_data`) naming file and column for a file that some reader would misread: missing, unknown
    or repeated field ids, a type that does not read as the table's, a required column that is missing or may have
    NULLs, a name that Spark skips, or column chunks in other files.
    """
    try:
        fmt.parse_data_path(path)
    except Corrupt as error:
        raise bad_file(path, "Spark would not read it under this name", error.hint) from None
    try:
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise bad_file(path, f"its schema cannot be read: {str(error)[:200]}") from None
    for index in range(metadata.num_columns):
        leaf = metadata.schema.column(index)
        if leaf.physical_type == "INT96":
            raise bad_file(path, f"column {leaf.path!r} has timestamps of type INT96", _MICROSECONDS)
    optional: list[tuple[Column, str]] = []
    leaves = list(_struct_leaves(path, list(schema), columns, "", optional))
    if len(leaves) != metadata.num_columns:
        raise bad_file(
            path, f"its schema has {metadata.num_columns} leaf columns, but only {len(leaves)} are known"
        )
    file = _harvest(path, size_bytes, metadata, leaves, schema_id, dict(nan_counts or {}))
    missing = missing_required(columns, file.value_counts, "")
    if missing:
        raise bad_file(path, f"it lacks the required column {missing!r}")
    for column, where in optional:
        # A leaf without NULLs proves that none of its parents is NULL.
        if all(file.null_counts.get(leaf.id) != 0 for leaf in walk_columns([column])):
            count = file.null_counts.get(column.id)
            raise bad_file(
                path,
                f"column {where!r} is required, but "
                + (f"holds {count} NULLs" if count else "the file does not rule out NULLs in it"),
                "declare the column NOT NULL where the file is written, or remove the NULLs",
            )
    return file


def _struct_leaves(
    path: str, fields: list[pa.Field], columns: Sequence[Column], prefix: str,
    optional: list[tuple[Column, str]],
) -> Iterator[Leaf]:  # fmt: skip
    by_id = {column.id: column for column in columns}
    for field in fields:
        where, number = prefix + field.name, field_id(field)
        if number is None:
            raise bad_file(
                path,
                f"column {where!r} has no field id",
                "write the file through the catalog, or with the ids of the table's schema as field ids",
            )
        if number not in by_id:
            raise bad_file(
                path, f"column {where!r} has field id {number}, which is unknown to the table or repeated"
            )
        yield from _leaves(path, field, by_id.pop(number), where, optional)


def _leaves(
    path: str, field: pa.Field, column: Column, where: str, optional: list[tuple[Column, str]]
) -> Iterator[Leaf]:
    kind = plain_type(field.type)
    if not column.nullable and field.nullable:
        optional.append((column, where))

    def below(inner: pa.Field, child: Column, name: str) -> Iterator[Leaf]:
        number = field_id(inner)
        if number is not None and number != child.id:
            raise bad_file(path, f"column {where}.{name} has field id {number}, but {child.id} in the table")
        return _leaves(path, inner, child, f"{where}.{name}", optional)

    if column.type == "STRUCT" and pa.types.is_struct(kind):
        inner = [kind.field(index) for index in range(kind.num_fields)]
        yield from _struct_leaves(path, inner, column.fields, where + ".", optional)
    elif column.type == "LIST" and is_list(kind) and column.element is not None:
        yield from below(kind.value_field, column.element, "element")
    elif column.type == "MAP" and pa.types.is_map(kind) and column.key and column.value:
        yield from below(kind.key_field, column.key, "key")
        yield from below(kind.item_field, column.value, "value")
    elif reads_as(kind, column):
        yield Leaf(column, where, kind)
    else:
        nanos = pa.types.is_timestamp(kind) and kind.unit == "ns"
        hint = _MICROSECONDS if nanos else "cast the column to the table's type"
        raise bad_file(
            path, f"column {where!r} has type {kind}, which does not read as {type_text(column)}", hint
        )


def reads_as(kind: pa.DataType, column: Column) -> bool:
    """Return whether every reader can read a file's leaf type as the table's: equal, or widened without loss."""
    types = pa.types
    match column.type:
        case "INT2" | "INT4" | "INT8":
            width = {"INT2": 16, "INT4": 32, "INT8": 64}[column.type]
            return bool(types.is_signed_integer(kind) and kind.bit_width <= width)
        case "FLOAT8":
            return bool(types.is_float32(kind) or types.is_float64(kind))
        case "DECIMAL":
            want = leaf_arrow_type(column, column.name)
            return bool(
                types.is_decimal(kind) and kind.scale == want.scale and kind.precision <= want.precision
            )
        case "VARCHAR":
            return is_text(kind)
        case "BINARY":
            return is_bytes(kind)
        case "TIMESTAMP6" | "TIMESTAMPTZ6":
            zoned = column.type == "TIMESTAMPTZ6"
            return bool(types.is_timestamp(kind) and _is_zoned(kind) == zoned and kind.unit != "ns")
        case "STRUCT" | "LIST" | "MAP":
            return False
    return bool(kind == leaf_arrow_type(column, column.name))


def _is_zoned(kind: pa.TimestampType) -> bool | None:
    """Return whether a timestamp type has a zone. None means a zone that is not a text, which no reader knows."""
    try:
        return kind.tz is not None
    except UnicodeDecodeError:
        return None


def _harvest(
    path: str, size_bytes: int, metadata: pq.FileMetaData, leaves: Sequence[Leaf],
    schema_id: int | None, nan_counts: dict[int, int],
) -> DataFile:  # fmt: skip
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    if sum(group.num_rows for group in groups) != metadata.num_rows:
        raise bad_file(path, "its row groups do not add up to its rows")
    sizes, values, nulls = {}, {}, {}
    lowers: dict[int, bytes] = {}
    uppers: dict[int, bytes] = {}
    starts: set[int] = set()
    for index, leaf in enumerate(leaves):
        chunks = [group.column(index) for group in groups]
        if any(chunk.file_path for chunk in chunks):
            raise bad_file(path, f"column {leaf.path!r} is stored in another file")
        number = leaf.column.id
        sizes[number] = sum(chunk.total_compressed_size for chunk in chunks)
        values[number] = sum(chunk.num_values for chunk in chunks)
        counts = [null_count_of(chunk) for chunk in chunks]
        if None not in counts:
            nulls[number] = sum(count or 0 for count in counts)
        lower, upper = _bounds(leaf, chunks)
        if lower is not None:
            lowers[number] = lower
        if upper is not None:
            uppers[number] = upper
        if index == 0:
            starts = {chunk_start(chunk) for chunk in chunks}
    file = DataFile(
        path=path,
        row_count=metadata.num_rows,
        size_bytes=size_bytes,
        schema_id=schema_id,
        column_sizes=sizes,
        value_counts=values,
        null_counts=nulls,
        nan_counts={
            leaf.column.id: nan_counts[leaf.column.id] for leaf in leaves if leaf.column.id in nan_counts
        },
        lower_bounds=lowers,
        upper_bounds=uppers,
        split_offsets=tuple(sorted(starts)),
    )
    flaw = flaw_of(file, fmt.parse_data_path(path)[0])
    if flaw:
        raise bad_file(path, flaw)
    return file


def row_group_files(
    file: DataFile, metadata: pq.FileMetaData, columns: Iterable[Column]
) -> tuple[DataFile, ...]:
    """Return the row groups of a data file, each as an entry of its own, for `predicate.judge`.

    They have the footer's statistics of the leaf `columns`, which are at the top level or in structs.
    """
    wanted = {column.id: column for column in columns}
    found = dict(_leaf_places(list(metadata.schema.to_arrow_schema()), "", itertools.count()))
    leaves = {
        place: Leaf(wanted[number], path, kind)
        for number, (place, path, kind) in found.items()
        if number in wanted
    }
    groups = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        values, nulls = {}, {}
        bounds: list[dict[int, bytes]] = [{}, {}]
        for place, leaf in leaves.items():
            number, chunk = leaf.column.id, group.column(place)
            values[number] = chunk.num_values
            count = null_count_of(chunk)
            if count is not None:
                nulls[number] = count
            if reads_as(leaf.kind, leaf.column):
                for of_side, bound in zip(bounds, _bounds(leaf, [chunk]), strict=True):
                    if bound is not None:
                        of_side[number] = bound
        groups.append(
            DataFile(
                path=file.path,
                row_count=group.num_rows,
                size_bytes=file.size_bytes,
                value_counts=values,
                null_counts=nulls,
                nan_counts={number: 0 for number in values if file.nan_counts.get(number) == 0},
                lower_bounds=bounds[0],
                upper_bounds=bounds[1],
            )
        )
    return tuple(groups)


def _leaf_places(
    fields: Iterable[pa.Field], prefix: str, places: Iterator[int]
) -> Iterator[tuple[int, tuple[int, str, pa.DataType]]]:
    """Yield the leaves outside of lists and maps by field id: the index in the file, the name and the type."""
    for field in fields:
        kind, number = plain_type(field.type), field_id(field)
        path = prefix + field.name
        if pa.types.is_struct(kind):
            inner = [kind.field(index) for index in range(kind.num_fields)]
            yield from _leaf_places(inner, path + ".", places)
        elif kind.num_fields:
            for _ in range(_leaves_count(kind)):
                next(places)
        else:
            place = next(places)
            if number is not None:
                yield number, (place, path, kind)


def _leaves_count(kind: pa.DataType) -> int:
    kind = plain_type(kind)
    if not kind.num_fields:
        return 1
    return sum(_leaves_count(kind.field(index).type) for index in range(kind.num_fields))


def null_count_of(chunk: pq.ColumnChunkMetaData) -> int | None:
    found = chunk.statistics
    if chunk.num_values == 0:
        return 0
    return found.null_count if found is not None and found.has_null_count else None


def chunk_start(chunk: pq.ColumnChunkMetaData) -> int:
    data: int = chunk.data_page_offset
    dictionary: int | None = chunk.dictionary_page_offset
    return data if dictionary is None else min(data, dictionary)


def _bounds(leaf: Leaf, chunks: Iterable[pq.ColumnChunkMetaData]) -> tuple[bytes | None, bytes | None]:
    """Return the lower and upper bound over all row groups; None where a row group with values has no usable bound."""
    read = raw_reader(leaf)
    lows, highs = [], []
    for chunk in chunks:
        found = chunk.statistics
        if null_count_of(chunk) == chunk.num_values:
            continue
        if found is None or not found.has_min_max:
            return None, None
        try:
            low, high = read(found.min_raw), read(found.max_raw)
        except (ValueError, TypeError, pa.ArrowException):
            return None, None  # for example, a text cut in the middle of a character
        if low != low or high != high:
            return None, None
        lows.append(low)
        highs.append(high)
    if not lows:
        return None, None
    low, high = min(lows), max(highs)
    column = leaf.column
    if column.type in ("FLOAT4", "FLOAT8"):
        # Parquet's order takes zeros of both signs for equal, so a bound must cover both.
        low, high = (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
    if isinstance(low, str):
        upper = text_upper(high)
        low, high = low[:BOUND_CODE_POINTS_MAX], upper
    elif isinstance(low, bytes):
        low, high = low[:BOUND_CODE_POINTS_MAX], bytes_upper(high)
    try:
        return encode_bound(column, low), None if high is None else encode_bound(column, high)
    except struct.error:
        return None, None  # out of the type's range, so not the statistics of its values


def raw_reader(leaf: Leaf) -> Callable[[Any], Any]:
    """Return a function from a footer's physical minimum or maximum to a value for `encode_bound`."""
    if leaf.column.type == "DECIMAL":
        return lambda raw: raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)
    if leaf.column.type == "VARCHAR":
        return lambda raw: raw.decode()
    if pa.types.is_timestamp(leaf.kind):
        factor = {"s": 1_000_000, "ms": 1_000, "us": 1}[leaf.kind.unit]
        return lambda raw: raw * factor
    return lambda raw: raw
