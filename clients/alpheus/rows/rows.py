"""Rows of native tables written without Spark: Arrow in, Parquet files and one manifest segment out.

What a commit makes visible is the segment that `write_rows` returns; until then nothing refers to the files, and
files that no commit ever names are left to collection (FORMAT.md, "Native tables").
"""

from __future__ import annotations

from typing import Any

import msgspec

from alpheus.rows.cast import fitted
from alpheus.rows.file_reader import check_table
from alpheus.rows.file_writer import FILE_SIZE_TARGET, PIECE_SIZE_BYTES_MAX, write_files
from alpheus.rows.repeating import segment_id
from alpheus_journal import format as fmt
from alpheus_journal.clock import Identities
from alpheus_journal.model.definitions import Segment, TableDef
from alpheus_journal.storage import Storage
from alpheus_journal.tables.manifest import segment_of


class WrittenRows(msgspec.Struct, frozen=True, kw_only=True):
    """What a write left on storage, for `AppendFiles` or `OverwriteFiles`; no segment when there were no rows."""

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
    """Write `data` as Parquet files of the table and list them in one segment; nothing is visible yet.

    `data`: a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, anything with `__arrow_c_stream__`, a
    pandas DataFrame, or a sequence of dicts. Columns go by exact name, in any order; missing ones take their
    default, or NULL. How they are written: `file_writer.write_files`.

    Raises InvalidInput: `bad_data` naming the column for unknown, missing or doubled columns, for types of
    another family, values that would lose something, NULL in a required column. Files written before are
    then left to collection, as they are when this is cancelled.
    """
    check_table(table)
    files = await write_files(
        storage,
        table,
        fitted(data, table.columns, min(PIECE_SIZE_BYTES_MAX, max(1, file_size_target // 4))),
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
