"""Rows of native tables without Spark: Arrow in, Parquet and one manifest segment out, and back.

What a commit makes visible is the segment that `write_rows` returns; until then nothing refers to the files, and
files that no commit ever names are left to collection (FORMAT.md, "Native tables").
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import math
import numbers
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from alpheus_journal import format as fmt
from alpheus_journal.columns import (
    field_id,
    is_bytes,
    is_list,
    is_text,
    schema_of_columns,
    strip_field_ids,
)
from alpheus_journal.errors import Corrupt, InvalidInput, NotFound
from alpheus_journal.footer import data_file_of_footer
from alpheus_journal.manifest import DataFile, decode_segment, segment_of
from alpheus_journal.objects import Column, Segment, TableDef
from alpheus_journal.storage import Storage, each_of
from alpheus_journal.system import Identities

FILE_SIZE_TARGET = 128 << 20
PARALLEL_READS_MAX = 8

_SLICE_ROWS_MAX = 1 << 16
_ROW_GROUP_ROWS_MAX = 1 << 20
_ROW_GROUP_SIZE_BYTES_MAX = 32 << 20
"""Of Arrow memory before encoding. One row group and one encoded file are what a write holds in memory."""
_COMPRESSION = "zstd"


class WrittenRows(msgspec.Struct, frozen=True, kw_only=True):
    """What a write left on storage, for `AppendFiles` or `OverwriteFiles`; no segment when there were no rows."""

    segments: tuple[Segment, ...]
    rows: int


# --- fitting data to columns -----------------------------------------------------------------------


class _Unfit(Exception):
    """Why values cannot be those of a table's columns; `hint` as in AlpheusError."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def _unfit(path: str, reason: str, hint: str = "") -> _Unfit:
    return _Unfit(f"column {path!r} {reason}", hint)


class _Fitter:
    """Turns Arrow arrays into arrays of a table's types: by name (data of users) or by field id (data files).

    By name, every field must be one that the table has; by id, fields of dropped columns are passed over. Missing
    nullable columns become NULL. Casts lose nothing or are refused, and stay within a family of types.
    """

    def __init__(self, columns: Sequence[Column], *, by_id: bool) -> None:
        self.columns = columns
        self.schema = strip_field_ids(schema_of_columns(columns))
        self._by_id = by_id

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Raises _Unfit."""
        arrays = self._children(
            list(batch.schema), batch.columns, self.columns, list(self.schema), None, batch.num_rows, ""
        )
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _children(
        self, have: list[pa.Field], arrays: Sequence[pa.Array], columns: Sequence[Column],
        targets: list[pa.Field], parent: pa.Array | None, length: int, prefix: str,
    ) -> list[pa.Array]:  # fmt: skip
        """One array a column, in the order of `columns`. `parent`: the struct that holds them."""
        places: dict[object, int] = {}
        for place, field in enumerate(have):
            key = field_id(field) if self._by_id else field.name
            if key in places:
                raise _unfit(prefix + field.name, "is there twice")
            if key is not None:
                places[key] = place
        if not self._by_id:
            known = {column.name for column in columns}
            for field in have:
                if field.name not in known:
                    raise _unfit(
                        prefix + field.name,
                        "is not in the table",
                        f"it has {', '.join(column.name for column in columns)[:500]}",
                    )
        fitted = []
        for column, target in zip(columns, targets, strict=True):
            where = prefix + column.name
            found = places.get(column.id if self._by_id else column.name)
            if found is None:
                if not column.nullable and length > (parent.null_count if parent is not None else 0):
                    raise _unfit(where, "is required, but missing")
                array = pa.nulls(length, target.type)
            else:
                array = self._array(arrays[found], column, target.type, where)
            fitted.append(_required(array, column, target.type, parent, where))
        return fitted

    def _array(self, array: pa.Array, column: Column, kind: pa.DataType, path: str) -> pa.Array:
        array = _decoded(array)
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), kind)
        if column.type == "STRUCT" and pa.types.is_struct(array.type):
            children = self._children(
                _fields(array.type),
                array.flatten(),
                column.fields,
                _fields(kind),
                array,
                len(array),
                path + ".",
            )
            return pa.StructArray.from_arrays(children, fields=_fields(kind), mask=array.is_null())
        if column.type == "LIST" and is_list(array.type) and column.element is not None:
            values = self._below(array.flatten(), column.element, kind.value_type, f"{path}.element")
            return pa.ListArray.from_arrays(_offsets(array), values, type=kind, mask=array.is_null())
        if column.type == "MAP" and pa.types.is_map(array.type) and column.key and column.value:
            first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
            keys = self._below(
                array.keys.slice(first, last - first), column.key, kind.key_type, f"{path}.key"
            )
            items = self._below(
                array.items.slice(first, last - first), column.value, kind.item_type, f"{path}.value"
            )
            offsets = pc.subtract(array.offsets, array.offsets[0])
            return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=array.is_null())
        if column.children():
            raise _unfit(path, f"has type {array.type}, the table {column.type}")
        return _cast(array, column, kind, path)

    def _below(self, values: pa.Array, column: Column, kind: pa.DataType, path: str) -> pa.Array:
        return _required(self._array(values, column, kind, path), column, kind, None, path)


def _decoded(array: pa.Array) -> pa.Array:
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        else:
            return array


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(index) for index in range(kind.num_fields)]


def _offsets(array: pa.Array) -> pa.Array:
    """Of a list array over `array.flatten()`, which leaves out what lies below NULL lists."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum_checked(lengths)])


def _required(
    array: pa.Array, column: Column, kind: pa.DataType, parent: pa.Array | None, path: str
) -> pa.Array:
    """`array`, when a required column holds no NULL but where its parent is NULL. There, some value takes the
    place: Parquet writers refuse a NULL under NOT NULL even where nobody can see it."""
    if column.nullable or not array.null_count:
        return array
    missing = array.is_null()
    if parent is None or pc.any(pc.and_(missing, parent.is_valid())).as_py():
        raise _unfit(path, "is required, but holds NULL")
    filler = pa.array([_some_value(column)], kind)
    own = pa.array(range(len(array)), pa.int64())
    return pa.concat_arrays([array, filler]).take(pc.if_else(missing, len(array), own))


def _some_value(column: Column) -> object:
    match column.type:
        case "STRUCT":
            return {f.name: None if f.nullable else _some_value(f) for f in column.fields}
        case "LIST" | "MAP":
            return []
        case "VARCHAR":
            return ""
        case "BINARY":
            return b""
        case "FIXED":
            return bytes(int(column.properties["length"]))
        case "BOOLEAN":
            return False
        case "DECIMAL":
            return Decimal(0)
        case "DATE":
            return dt.date(1970, 1, 1)
        case "TIMESTAMP6":
            return dt.datetime(1970, 1, 1)
        case "TIMESTAMPTZ6":
            return dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return 0


def _family(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind):
        return "integer"
    if types.is_floating(kind):
        return "float"
    if types.is_decimal(kind):
        return "decimal"
    if is_text(kind):
        return "text"
    if is_bytes(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    if types.is_date(kind):
        return "date"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp with zone"
    return str(kind)


_ALSO_FROM = {"float": ("integer",), "decimal": ("integer",)}


def _cast(array: pa.Array, column: Column, kind: pa.DataType, path: str) -> pa.Array:
    have, want = _family(array.type), _family(kind)
    if have != want and have not in _ALSO_FROM.get(want, ()):
        hint = "give it a zone, or take it off" if {have, want} <= _ZONES else f"cast it to {kind}"
        raise _unfit(path, f"has type {array.type}, the table {column.type}", hint)
    if array.type == kind:
        return array
    try:
        if want == "decimal" and have == "integer":
            array = array.cast(pa.decimal128(20, 0))
        elif want == "bytes" and pa.types.is_fixed_size_binary(kind) and is_bytes(array.type):
            lengths = pc.binary_length(array)
            if pc.any(pc.not_equal(lengths, kind.byte_width)).as_py():
                raise _unfit(path, f"holds values that are not {kind.byte_width} bytes long")
            array = array.cast(pa.binary())
        result = array.cast(kind)
    except pa.ArrowException as error:
        raise _unfit(path, f"holds a value that {column.type} cannot hold: {str(error)[:200]}") from None
    if want == "float" and have == "float" and array.type.bit_width > kind.bit_width:
        back = result.cast(array.type)
        lost = pc.and_(pc.not_equal(back, array), pc.invert(pc.is_nan(array)))
        if pc.any(lost).as_py():
            raise _unfit(
                path, f"holds values of {array.type} that {column.type} cannot hold", f"cast it to {kind}"
            )
    return result


_ZONES = {"timestamp", "timestamp with zone"}


# --- rows of Python values -------------------------------------------------------------------------


def _check_value(value: Any, column: Column, path: str) -> None:
    """Raises _Unfit for a Python value that Arrow would bend into the type, or refuse without a name."""
    if value is None:
        if not column.nullable:
            raise _unfit(path, "is required, but holds None")
        return
    match column.type:
        case "STRUCT":
            fits = isinstance(value, Mapping)
            if fits:
                _check_row(value, column.fields, path + ".")
        case "LIST":
            fits = isinstance(value, Sequence) and not isinstance(value, str | bytes)
            if fits and column.element is not None:
                for item in value:
                    _check_value(item, column.element, f"{path}.element")
        case "MAP":
            pairs = value.items() if isinstance(value, Mapping) else value
            fits = isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes)
            if fits and column.key is not None and column.value is not None:
                for pair in pairs:
                    if not isinstance(pair, tuple) or len(pair) != 2:
                        raise _unfit(path, f"of type MAP cannot hold {type(pair).__name__} as a pair")
                    _check_value(pair[0], column.key, f"{path}.key")
                    _check_value(pair[1], column.value, f"{path}.value")
        case _:
            fits = _LEAF_CHECKS[column.type](value)
    if not fits:
        raise _unfit(path, f"of type {column.type} cannot hold {str(value)[:80]!r} ({type(value).__name__})")


def _zoned(value: dt.datetime) -> bool:
    return value.utcoffset() is not None


def _integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


_FLOAT4_MAX = 3.4028234663852886e38
_LEAF_CHECKS: dict[str, Callable[[Any], bool]] = {
    "BOOLEAN": lambda value: isinstance(value, bool),
    "INT2": _integer,
    "INT4": _integer,
    "INT8": _integer,
    "FLOAT4": lambda value: _real(value) and (not math.isfinite(value) or abs(value) <= _FLOAT4_MAX),
    "FLOAT8": lambda value: _real(value),
    "DECIMAL": lambda value: isinstance(value, Decimal) or _integer(value),
    "VARCHAR": lambda value: isinstance(value, str),
    "BINARY": lambda value: isinstance(value, bytes | bytearray | memoryview),
    "FIXED": lambda value: isinstance(value, bytes | bytearray | memoryview),
    "DATE": lambda value: isinstance(value, dt.date) and not isinstance(value, dt.datetime),
    "TIMESTAMP6": lambda value: isinstance(value, dt.datetime) and not _zoned(value),
    "TIMESTAMPTZ6": lambda value: isinstance(value, dt.datetime) and _zoned(value),
}


def _check_row(row: Mapping[Any, Any], columns: Sequence[Column], prefix: str) -> None:
    names = {column.name for column in columns}
    for name in row:
        if name not in names:
            raise _unfit(f"{prefix}{name}", "is not in the table", f"it has {', '.join(sorted(names))[:500]}")
    for column in columns:
        _check_value(row.get(column.name), column, prefix + column.name)


def _batch_of_rows(
    rows: Sequence[Any], start: int, columns: Sequence[Column], schema: pa.Schema
) -> pa.RecordBatch:
    for number, row in enumerate(rows, start):
        if not isinstance(row, Mapping):
            raise _Unfit(f"row {number} is a {type(row).__name__}, not a dict")
        try:
            _check_row(row, columns, "")
        except _Unfit as error:
            raise _Unfit(f"row {number}: {error}", error.hint) from None
    arrays = []
    for column, field in zip(columns, schema, strict=True):
        values = [row.get(column.name) for row in rows]
        try:
            arrays.append(pa.array(values, field.type))
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise _unfit(
                column.name, f"holds a value that {column.type} cannot hold: {str(error)[:200]}"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- writing ---------------------------------------------------------------------------------------


def _fitted(data: Any, columns: Sequence[Column], size_max: int) -> Iterator[pa.RecordBatch]:
    """`data` with the table's types, in pieces of about `size_max` bytes. Raises _Unfit, InvalidInput."""
    fitter = _Fitter(columns, by_id=False)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        for start in range(0, len(data), _SLICE_ROWS_MAX):
            rows = data[start : start + _SLICE_ROWS_MAX]
            yield from _pieces(_batch_of_rows(rows, start, columns, fitter.schema), size_max)
        return
    schema, batches = _arrow(data)
    # Also data without rows is refused when it is not the table's.
    fitter.fit(pa.RecordBatch.from_pylist([], schema=schema))
    for batch in batches:
        for piece in _pieces(batch, size_max):
            fitted = fitter.fit(piece)
            try:
                fitted.validate(full=True)
            except pa.ArrowException as error:
                raise _Unfit(f"the Arrow data is not valid: {str(error)[:300]}") from None
            yield fitted


def _arrow(data: Any) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    if isinstance(data, pa.RecordBatch):
        return data.schema, [data]
    if isinstance(data, pa.Table):
        return data.schema, data.to_batches()
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, data
    # Whoever holds a value of these types has imported them; importing them here would cost everybody else.
    pandas, dataset = sys.modules.get("pandas"), sys.modules.get("pyarrow.dataset")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        try:
            table = pa.Table.from_pandas(data, preserve_index=False)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise _Unfit(f"the pandas DataFrame does not become Arrow: {str(error)[:300]}") from None
        return table.schema.remove_metadata(), table.to_batches()
    if dataset is not None and isinstance(data, dataset.Dataset):
        return data.schema, data.to_batches()
    if hasattr(data, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.schema, reader
    raise InvalidInput(
        f"{type(data).__name__} is no data that can be written",
        hint="a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, a pandas DataFrame, a list of dicts",
    )


def _pieces(batch: pa.RecordBatch, size_max: int) -> Iterator[pa.RecordBatch]:
    """Slices of `size_max` bytes at most, as far as rows can be cut."""
    rows = min(_SLICE_ROWS_MAX, batch.num_rows)
    size = batch.nbytes
    if size:
        rows = min(rows, batch.num_rows * size_max // size)
    rows = max(1, rows)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


class _Encoded(msgspec.Struct, frozen=True):
    data: bytes
    metadata: pq.FileMetaData
    nan_counts: dict[int, int]


class _FileWriter:
    """Cuts fitted batches into Parquet files in memory. Blocks: for a thread."""

    def __init__(self, table: TableDef, footer: Mapping[str, str], file_size_target: int) -> None:
        self._columns = table.columns
        self._schema = schema_of_columns(table.columns)
        self._dictionary_columns = _dictionary_columns(self._schema)
        self._footer = dict(footer)
        self._target = file_size_target
        self.group_size_max = min(_ROW_GROUP_SIZE_BYTES_MAX, file_size_target)

    def next_file(self, batches: Iterator[pa.RecordBatch]) -> _Encoded | None:
        """The next file of at least the target size (all that is left in the last one); None at the end."""
        group = self._next_group(batches)
        if group is None:
            return None
        nans: dict[int, int] = {}
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
            sink,
            self._schema,
            compression=_COMPRESSION,
            store_schema=False,
            use_dictionary=self._dictionary_columns,
            write_page_index=True,
            write_page_checksum=True,
        ) as writer:
            while group is not None:
                writer.write_table(group, row_group_size=group.num_rows)
                for batch in group.to_batches():
                    for array, column in zip(batch.columns, self._columns, strict=True):
                        _count_nans(array, column, nans)
                group = self._next_group(batches) if sink.tell() < self._target else None
            writer.add_key_value_metadata(self._footer)
        buffer = sink.getvalue()
        return _Encoded(buffer.to_pybytes(), pq.read_metadata(pa.BufferReader(buffer)), nans)

    def _next_group(self, batches: Iterator[pa.RecordBatch]) -> pa.Table | None:
        pending: list[pa.RecordBatch] = []
        rows = size = 0
        while rows < _ROW_GROUP_ROWS_MAX and size < self.group_size_max:
            batch = next(batches, None)
            if batch is None:
                break
            if batch.num_rows:
                pending.append(batch)
                rows += batch.num_rows
                size += batch.nbytes
        return pa.Table.from_batches(pending) if pending else None


def _dictionary_columns(schema: pa.Schema) -> list[str]:
    """Parquet paths of the leaves that are written with a dictionary: all but those inside lists and maps.

    Spark's vectorized reader looks up the NULLs of such a leaf, too, and fails where all are NULL: then the dictionary
    is empty (ArrayIndexOutOfBoundsException in ParquetDictionary, seen in 4.3).
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, store_schema=False):
        pass
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    columns = [leaves.column(index) for index in range(len(leaves))]
    return [column.path for column in columns if not column.max_repetition_level]


def _count_nans(array: pa.Array, column: Column, counts: dict[int, int]) -> None:
    if column.type in ("FLOAT4", "FLOAT8"):
        found = pc.sum(pc.is_nan(array)).as_py() or 0
        counts[column.id] = counts.get(column.id, 0) + found
    elif column.type == "STRUCT":
        for child, field in zip(array.flatten(), column.fields, strict=True):
            _count_nans(child, field, counts)
    elif column.type == "LIST" and column.element is not None:
        _count_nans(array.flatten(), column.element, counts)
    elif column.type == "MAP" and column.key is not None and column.value is not None:
        present = array.drop_null()
        if len(present):
            start, end = present.offsets[0].as_py(), present.offsets[-1].as_py()
            _count_nans(present.keys.slice(start, end - start), column.key, counts)
            _count_nans(present.items.slice(start, end - start), column.value, counts)


def _check_table(table: TableDef) -> None:
    if not table.native:
        raise InvalidInput(
            f"table {table.id} is an Iceberg table",
            kind="not_native",
            hint="use an Iceberg client for its rows",
        )
    if table.data_root:
        raise InvalidInput(
            f"table {table.id} keeps its data at {table.data_root}, which this release does not do",
            kind="not_supported",
        )


async def write_rows(
    storage: Storage,
    table: TableDef,
    data: Any,
    *,
    transaction_id: str,
    identities: Identities,
    file_size_target: int = FILE_SIZE_TARGET,
    catalog_id: str = "",
) -> WrittenRows:
    """Write `data` as Parquet files of the table and list them in one segment; nothing is visible yet.

    `data`: a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, anything with `__arrow_c_stream__`, a
    pandas DataFrame, or a sequence of dicts. Columns go by exact name, in any order; missing nullable ones
    become NULL. Files are cut at row groups once they reach `file_size_target` bytes. Their footers carry
    catalog, table, transaction and schema id as key-value metadata `alpheus.*`. Encoding runs in a thread;
    about one row group and two copies of one encoded file are held in memory.

    Raises InvalidInput: `bad_data` naming the column for unknown, missing or doubled columns, for types of
    another family, values that would lose something, NULL in a required column. Files written before are
    then left to collection, as they are when this is cancelled.
    """
    _check_table(table)
    if file_size_target < 1:
        raise InvalidInput(f"file_size_target {file_size_target} is not positive")
    footer = {
        "alpheus.catalog_id": catalog_id,
        "alpheus.table_id": table.id,
        "alpheus.transaction_id": transaction_id,
        "alpheus.schema_id": str(table.schema_id),
    }
    writer = _FileWriter(table, {key: value for key, value in footer.items() if value}, file_size_target)
    folder = fmt.data_folder(table.id, transaction_id, identities.uuid4())
    batches = _fitted(data, table.columns, writer.group_size_max // 4)
    files: list[DataFile] = []
    while True:
        try:
            encoded = await asyncio.to_thread(writer.next_file, batches)
        except _Unfit as error:
            raise InvalidInput(str(error), kind="bad_data", hint=error.hint) from None
        if encoded is None:
            break
        path = f"{folder}part-{len(files):05d}.parquet"
        files.append(
            data_file_of_footer(
                path,
                len(encoded.data),
                encoded.metadata,
                table.columns,
                schema_id=table.schema_id,
                nan_counts=encoded.nan_counts,
            )
        )
        await storage.put(path, encoded.data)
    if not files:
        return WrittenRows(segments=(), rows=0)
    path = fmt.manifest_path(table.id, identities.uuid7())
    content, segment = segment_of(files, path=path, table_id=table.id, schema_id=table.schema_id)
    await storage.put(path, content)
    return WrittenRows(segments=(segment,), rows=segment.row_count)


# --- reading ---------------------------------------------------------------------------------------


def _corrupt(path: str, reason: str) -> Corrupt:
    return Corrupt(f"{path}: {reason}", kind="corrupt_manifest", path=path)


async def _segment_files(storage: Storage, table: TableDef, segment: Segment) -> tuple[DataFile, ...]:
    path = fmt.check_manifest_pointer(segment.path, table.id)
    try:
        data = await storage.read(path, size_max=min(segment.segment_size_bytes, fmt.MANIFEST_SIZE_BYTES_MAX))
    except NotFound:
        raise _corrupt(path, f"the manifest segment of table {table.id} is missing") from None

    def decode() -> tuple[DataFile, ...]:
        if len(data) != segment.segment_size_bytes or hashlib.sha256(data).digest() != segment.sha256:
            raise _corrupt(path, "size or SHA-256 are not those of the manifest segment that was committed")
        files = decode_segment(data, path, table_id=table.id)
        counted = (len(files), sum(f.row_count for f in files), sum(f.size_bytes for f in files))
        if counted != (segment.file_count, segment.row_count, segment.size_bytes):
            raise _corrupt(path, "the manifest segment's files do not add up to what was committed")
        return files

    return await asyncio.to_thread(decode)


async def _load(storage: Storage, table: TableDef) -> list[tuple[Segment, DataFile]]:
    _check_table(table)

    async def files_of(segment: Segment) -> tuple[DataFile, ...]:
        return await _segment_files(storage, table, segment)

    loaded = await each_of(table.segments, files_of, PARALLEL_READS_MAX)
    return [(s, file) for s, files in zip(table.segments, loaded, strict=True) for file in files]


async def load_files(storage: Storage, table: TableDef) -> list[tuple[DataFile, int]]:
    """Every data file of the table with its sequence, in the order of the table's segments.

    Segments are read in parallel and verified by size and SHA-256. Raises Corrupt (`corrupt_manifest`) naming
    the segment that is missing or differs.
    """
    return [
        (file, segment.sequence if file.sequence is None else file.sequence)
        for segment, file in await _load(storage, table)
    ]


async def read_rows(
    storage: Storage, table: TableDef, *, columns: Sequence[str] | None = None, where: object = None
) -> pa.Table:
    """The rows of the table as one Arrow table in memory, in the order of its files.

    Columns of files go by field id, so that renamed ones are found, added ones are NULL and widened ones are
    cast. The result has the table's schema without field ids, or of `columns` in the order named.

    Raises InvalidInput (`bad_argument` for columns that are not there, `not_supported` for `where`), Corrupt
    (`corrupt_manifest`) naming a file that is missing, damaged or not the one that was committed.
    """
    if where is not None:
        raise InvalidInput(
            "rows cannot be read by predicate in this release",
            kind="not_supported",
            hint="read the columns and filter the Arrow table",
        )
    wanted = _chosen(table, columns)
    loaded = await _load(storage, table)
    fitter = _Fitter(wanted, by_id=True)

    async def read(item: tuple[Segment, DataFile]) -> list[pa.RecordBatch]:
        segment, file = item
        try:
            data = await storage.read(file.path, size_max=file.size_bytes)
        except NotFound:
            raise _corrupt(
                file.path, f"the data file is missing, manifest segment {segment.path} lists it"
            ) from None
        return await asyncio.to_thread(_decode_file, data, file, fitter)

    batches = [batch for part in await each_of(loaded, read, PARALLEL_READS_MAX) for batch in part]
    return pa.Table.from_batches(batches, schema=fitter.schema)


def _chosen(table: TableDef, names: Sequence[str] | None) -> tuple[Column, ...]:
    if names is None:
        return table.columns
    known = {column.name: column for column in table.columns}
    unknown = [name for name in names if name not in known]
    if isinstance(names, str) or not names or unknown or len(set(names)) != len(names):
        what = f"columns {unknown!r} are not in the table" if unknown else f"{names!r} is no list of columns"
        raise InvalidInput(what, hint=f"it has {', '.join(known)[:500]}; name each once")
    return tuple(known[name] for name in names)


def _decode_file(data: bytes, file: DataFile, fitter: _Fitter) -> list[pa.RecordBatch]:
    if len(data) != file.size_bytes:
        raise _corrupt(file.path, f"{len(data)} bytes, {file.size_bytes} were committed")
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        if parquet.metadata.num_rows != file.row_count:
            raise _corrupt(file.path, f"{parquet.metadata.num_rows} rows, {file.row_count} were committed")
        ids = {column.id for column in fitter.columns}
        names = [field.name for field in parquet.schema_arrow if field_id(field) in ids]
        if not names:
            empty = pa.RecordBatch.from_arrays([pa.nulls(file.row_count)], names=["none"])
            return [fitter.fit(empty)]
        table = parquet.read(columns=names)
        table.validate(full=True)
        if table.num_rows != file.row_count:
            raise _corrupt(file.path, f"{table.num_rows} rows, {file.row_count} were committed")
        return [fitter.fit(batch) for batch in table.to_batches()]
    except _Unfit as error:
        raise _corrupt(file.path, str(error)) from None
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
        raise _corrupt(file.path, f"no valid Parquet file: {str(error)[:200]}") from error
