"""Write rows of a native table, without Spark: Arrow data becomes Parquet files, by partition and in sort order.

A commit makes the segment that `write_rows` returns visible. Until then nothing refers to the files. Files that no
commit ever names are left to collection (FORMAT.md, "Native tables").
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from alpheus.rows.arrow.cast import CastError
from alpheus.rows.arrow.input_data import cast_data
from alpheus.rows.encoder import FILE_SIZE_TARGET, ROW_GROUP_SIZE_BYTES_MAX, Encoded, FileEncoder, cut
from alpheus.rows.file_reader import check_table
from alpheus.rows.partition_sort import BUFFER_SIZE_BYTES_MAX, PartitionRun, partition_and_sort
from alpheus.rows.repeating import data_file_name, segment_id
from alpheus_journal import format as fmt
from alpheus_journal.clock import Identities
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Segment, TableDef
from alpheus_journal.storage import Storage
from alpheus_journal.tables.columns import schema_of_columns
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import segment_of
from alpheus_journal.tables.parquet_footer import data_file_of_footer

PIECE_SIZE_BYTES_MAX = ROW_GROUP_SIZE_BYTES_MAX // 4
"""Size of a batch to write. A row group takes several batches."""


class _EncodedFile(msgspec.Struct, frozen=True):
    data: bytes
    encoded: Encoded


def _encode_next(encoder: FileEncoder, batches: Iterator[pa.RecordBatch]) -> _EncodedFile | None:
    sink = pa.BufferOutputStream()
    encoded = encoder.next_file(batches, sink)
    return None if encoded is None else _EncodedFile(sink.getvalue().to_pybytes(), encoded)


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
    checksums: bool = False,
) -> list[DataFile]:
    """Write batches that have the table's columns as data files. Nothing refers to the files yet.

    Each file belongs to one partition of the table and is in the table's sort order. A file ends at the first row group
    with which it reaches `file_size_target` bytes. The footers carry catalog, table, transaction and schema id as
    key-value metadata `alpheus.*`. Encoding and the iteration over `batches` run in a thread. Memory holds a row group,
    two copies of an encoded file, and for tables with partitions or a sort order up to twice `buffer_size_max` of
    waiting rows. With `checksums` the entries have the files' checksums, which revision 1 of the format lacks.

    Raises InvalidInput (`bad_data`) when a batch does not fit the table. Files written before are then left to
    collection, as they are when the call is cancelled.
    """
    if file_size_target < 1:
        raise InvalidInput(f"file_size_target={file_size_target} is not positive")
    encoder = FileEncoder(
        schema_of_columns(table.columns),
        footer_of(table, transaction_id, catalog_id),
        file_size_target=file_size_target,
    )
    folder = fmt.data_folder(table.id, transaction_id, identities.uuid4())
    runs = partition_and_sort(table, batches, buffer_size_max)
    files: list[DataFile] = []
    current: tuple[PartitionRun, Iterator[pa.RecordBatch]] | None = None

    def next_file() -> tuple[PartitionRun, _EncodedFile] | None:
        nonlocal current
        while True:
            if current is None:
                run = next(runs, None)
                if run is None:
                    return None
                current = run, cut(run.batches)
            run, rows = current
            file = _encode_next(encoder, rows)
            if file is not None:
                return run, file
            current = None

    while True:
        try:
            found = await asyncio.to_thread(next_file)
        except CastError as error:
            raise bad_data(error) from None
        if found is None:
            return files
        run, file = found
        path = folder + data_file_name(identities, len(files), file.data)
        files.append(_data_file(table, run, file, path, checksums))
        await storage.put(path, file.data)


def _data_file(
    table: TableDef, run: PartitionRun, made: _EncodedFile, path: str, checksums: bool
) -> DataFile:
    """Return the manifest entry of an encoded file."""
    file = data_file_of_footer(
        path,
        len(made.data),
        made.encoded.metadata,
        table.columns,
        schema_id=table.schema_id,
        nan_counts=made.encoded.nan_counts,
    )
    encoded = made.encoded
    return msgspec.structs.replace(
        file,
        partition=run.partition,
        sort_order_id=1 if run.is_sorted else None,
        crc32=encoded.crc32 if checksums else None,
        footer_crc32=encoded.footer_crc32 if checksums else None,
    )


class WrittenRows(msgspec.Struct, frozen=True, kw_only=True):
    """The segments that a write stored, for `AppendFiles` or `OverwriteFiles`. A write without rows stores none."""

    segments: tuple[Segment, ...]
    rows: int


def footer_of(table: TableDef, transaction_id: str, catalog_id: str) -> dict[str, str]:
    """Return the key-value metadata that each file of a write has in its footer: whose file it is."""
    footer = {
        "alpheus.catalog_id": catalog_id,
        "alpheus.table_id": table.id,
        "alpheus.transaction_id": transaction_id,
        "alpheus.schema_id": str(table.schema_id),
    }
    return {key: value for key, value in footer.items() if value}


async def write_rows(
    storage: Storage,
    table: TableDef,
    data: Any,
    *,
    transaction_id: str,
    identities: Identities,
    file_size_target: int = FILE_SIZE_TARGET,
    catalog_id: str = "",
    checksums: bool = False,
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
        checksums=checksums,
    )
    if not files:
        return WrittenRows(segments=(), rows=0)
    path = fmt.manifest_path(table.id, segment_id(identities, files))
    content, segment = segment_of(files, path=path, table_id=table.id, schema_id=table.schema_id)
    await storage.put(path, content)
    return WrittenRows(segments=(segment,), rows=segment.row_count)
