"""Write rows of a native table, without Spark: Arrow data becomes Parquet files, by partition and in sort order.

A commit makes the segment that `write_rows` returns visible. Until then nothing refers to the files. Files that no
commit ever names are left to collection (FORMAT.md, "Native tables").
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from alpheus.rows.cast import CastError
from alpheus.rows.file_reader import check_table
from alpheus.rows.input_data import cast_data
from alpheus.rows.partition_sort import BUFFER_SIZE_BYTES_MAX, PartitionRun, partition_and_sort
from alpheus.rows.repeating import data_file_name, segment_id
from alpheus_journal import format as fmt
from alpheus_journal.clock import Identities
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column, Segment, TableDef
from alpheus_journal.storage import Storage
from alpheus_journal.tables.columns import schema_of_columns
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import segment_of
from alpheus_journal.tables.parquet_footer import data_file_of_footer

FILE_SIZE_TARGET = 128 << 20

_ROW_GROUP_ROWS_MAX = 1 << 20
_ROW_GROUP_SIZE_BYTES_MAX = 32 << 20
"""Size in Arrow memory, before encoding."""
_COMPRESSION = "zstd"
PIECE_SIZE_BYTES_MAX = _ROW_GROUP_SIZE_BYTES_MAX // 4
"""Size of a batch to write. A row group takes several batches."""


class _Encoded(msgspec.Struct, frozen=True):
    data: bytes
    metadata: pq.FileMetaData
    nan_counts: dict[int, int]


class _FileWriter:
    """Encodes batches with the table's columns as Parquet files in memory. Blocks, so it runs in a thread."""

    def __init__(self, table: TableDef, footer: Mapping[str, str], file_size_target: int) -> None:
        self._columns = table.columns
        self._schema = schema_of_columns(table.columns)
        self._dictionary_columns = _dictionary_columns(self._schema)
        self._footer = dict(footer)
        self._target = file_size_target
        self.group_size_max = min(_ROW_GROUP_SIZE_BYTES_MAX, file_size_target)

    def next_file(self, batches: Iterator[pa.RecordBatch]) -> _Encoded | None:
        """Encode the next file, of at least the target size; the last file takes the rest. Return None at the end."""
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
    """Parquet paths of the leaves that are written with a dictionary: all leaves outside lists and maps.

    For a leaf inside a list or map, Spark's vectorized reader looks up NULLs in the dictionary, too. It fails where all
    values are NULL and the dictionary is empty (ArrayIndexOutOfBoundsException in ParquetDictionary, seen in 4.3).
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


def bad_data(error: CastError) -> InvalidInput:
    return InvalidInput(str(error), kind="bad_data", hint=error.hint)


async def write_files(
    storage: Storage,
    table: TableDef,
    batches: Iterator[pa.RecordBatch],
    *,
    transaction_id: str,
    identities: Identities,
    file_size_target: int = FILE_SIZE_TARGET,
    buffer_size_max: int = BUFFER_SIZE_BYTES_MAX,
    catalog_id: str = "",
) -> list[DataFile]:
    """Write batches that have the table's columns as data files. Nothing refers to the files yet.

    Each file belongs to one partition of the table and is in the table's sort order. A file ends at the first row group
    with which it reaches `file_size_target` bytes. The footers carry catalog, table, transaction and schema id as
    key-value metadata `alpheus.*`. Encoding and the iteration over `batches` run in a thread. Memory holds a row group,
    two copies of an encoded file, and for tables with partitions or a sort order up to twice `buffer_size_max` of
    waiting rows.

    Raises InvalidInput (`bad_data`) when a batch does not fit the table. Files written before are then left to
    collection, as they are when the call is cancelled.
    """
    if file_size_target < 1:
        raise InvalidInput(f"file_size_target={file_size_target} is not positive")
    footer = {
        "alpheus.catalog_id": catalog_id,
        "alpheus.table_id": table.id,
        "alpheus.transaction_id": transaction_id,
        "alpheus.schema_id": str(table.schema_id),
    }
    writer = _FileWriter(table, {key: value for key, value in footer.items() if value}, file_size_target)
    folder = fmt.data_folder(table.id, transaction_id, identities.uuid4())
    runs = partition_and_sort(table, batches, buffer_size_max)
    files: list[DataFile] = []
    current: PartitionRun | None = None

    def next_file() -> tuple[PartitionRun, _Encoded] | None:
        nonlocal current
        while True:
            if current is None and (current := next(runs, None)) is None:
                return None
            encoded = writer.next_file(current.batches)
            if encoded is not None:
                return current, encoded
            current = None

    while True:
        try:
            found = await asyncio.to_thread(next_file)
        except CastError as error:
            raise bad_data(error) from None
        if found is None:
            return files
        run, encoded = found
        path = folder + data_file_name(identities, len(files), encoded.data)
        files.append(_data_file(table, run, encoded, path))
        await storage.put(path, encoded.data)


def _data_file(table: TableDef, run: PartitionRun, encoded: _Encoded, path: str) -> DataFile:
    """The manifest entry of an encoded file."""
    file = data_file_of_footer(
        path,
        len(encoded.data),
        encoded.metadata,
        table.columns,
        schema_id=table.schema_id,
        nan_counts=encoded.nan_counts,
    )
    if run.partition or run.is_sorted:
        return msgspec.structs.replace(
            file, partition=run.partition, sort_order_id=1 if run.is_sorted else None
        )
    return file


class WrittenRows(msgspec.Struct, frozen=True, kw_only=True):
    """The segments that a write stored, for `AppendFiles` or `OverwriteFiles`. A write without rows stores none."""

    segments: tuple[Segment, ...]
    rows: int


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
    """Write `data` as Parquet files of the table, and list them in one segment. Nothing is visible yet.

    `data` is a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, an object with `__arrow_c_stream__`, a pandas
    DataFrame, or a sequence of dicts. Columns are matched by exact name, in any order. A missing column takes its
    default, or NULL. `write_files` says how the files are written.

    Raises InvalidInput (`bad_data`), which names the column, for unknown, missing or doubled columns, for types of
    another family, for values that would lose something, and for NULL in a required column. Files written before are
    then left to collection, as they are when the call is cancelled.
    """
    check_table(table)
    files = await write_files(
        storage,
        table,
        cast_data(data, table.columns, min(PIECE_SIZE_BYTES_MAX, max(1, file_size_target // 4))),
        transaction_id=transaction_id,
        identities=identities,
        file_size_target=file_size_target,
        catalog_id=catalog_id,
    )
    if not files:
        return WrittenRows(segments=(), rows=0)
    path = fmt.manifest_path(table.id, segment_id(identities, files))
    content, segment = segment_of(files, path=path, table_id=table.id, schema_id=table.schema_id)
    await storage.put(path, content)
    return WrittenRows(segments=(segment,), rows=segment.row_count)
