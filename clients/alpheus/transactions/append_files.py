"""`append_files`: add existing Parquet files to a table, without writing their rows again where possible."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from alpheus.rows.arrow.cast import CastError
from alpheus.rows.arrow.input_data import cast_data
from alpheus.rows.file_reader import BATCH_ROWS_MAX
from alpheus.rows.file_writer import PIECE_SIZE_BYTES_MAX, bad_data, write_files
from alpheus.rows.foreign_file import locate, open_parquet, refuse_old_calendar, schema_of
from alpheus.rows.repeating import data_file_name
from alpheus.transactions.core import TransactionCore
from alpheus.transactions.row_changes import store_segment
from alpheus.transactions.steps import Step
from alpheus_journal import format as fmt
from alpheus_journal.clock import Identities
from alpheus_journal.errors import Corrupt, InvalidInput, NotFound
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import Column, TableDef
from alpheus_journal.tables.checksums import with_checksums
from alpheus_journal.tables.columns import field_id, is_list
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import bad_file
from alpheus_journal.tables.parquet_footer import data_file_of_footer
from alpheus_journal.urls import has_scheme, redact_input, redact_text, redact_url

COPIED_SIZE_BYTES_MAX = 512 << 20
"""The rows of a larger file are written again, row group by row group, because a copied file is in memory whole."""


FilePath = str | os.PathLike[str]


def _path_texts(paths: FilePath | Sequence[FilePath]) -> list[str]:
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if not isinstance(paths, Sequence) or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise InvalidInput(
            f"append_files: {redact_input(paths)[:200]} is neither a path nor a list of paths",
            kind="bad_argument",
        )
    return [os.fspath(path) for path in paths]


class AppendFilesStep(Step):
    """See `Writes.append_files`."""

    def __init__(self, name: ObjectName, paths: FilePath | Sequence[FilePath]) -> None:
        paths = _path_texts(paths)
        if not paths:
            raise InvalidInput("append_files needs at least one path", kind="bad_argument")
        if len(set(paths)) != len(paths):
            twice = next(path for path in paths if list(paths).count(path) > 1)
            raise InvalidInput(
                f"append_files: {redact_url(twice)[:300]!r} is given twice", kind="bad_argument"
            )
        self._name = name
        self._paths = tuple(paths)

    def operation(self, identities: Identities) -> None:
        return None

    async def run(self, tx: TransactionCore) -> None:
        table = await tx.table(self._name)
        adopter = _Adopter(tx, table)
        tx.note_upload()
        try:
            for path in self._paths:
                await adopter.take(path)
            files = await adopter.finish()
        except CastError as error:
            raise bad_data(error) from None
        segments = await store_segment(tx, table, files)
        await tx.apply_segments(self._name, table, segments, replace=False)


class _Source(msgspec.Struct, frozen=True):
    """A file outside the catalog's storage."""

    path: str  # as the user gave it
    system: pafs.FileSystem
    place: str
    size: int

    def open(self) -> Any:
        return self.system.open_input_file(self.place)


class _Adopter:
    """Gathers the files of one call: files that are listed as they are, copies, and sources whose rows are written."""

    def __init__(self, tx: TransactionCore, table: TableDef) -> None:
        self._tx = tx
        self._table = table
        self._own_folder = f"data/{table.id}/{tx.id}/"
        self._copies = fmt.data_folder(table.id, tx.id, tx.identities.uuid4())
        self._files: list[DataFile] = []
        self._rest: list[_Source] = []

    async def take(self, path: str) -> None:
        if not has_scheme(path) and not os.path.isabs(path):
            await self._take_stored(path)
            return
        source, metadata = await asyncio.to_thread(_find_source, path)
        if (
            self._table.partition_spec
            or source.size > COPIED_SIZE_BYTES_MAX
            or not self._has_ids_and_names(metadata)
            or _misses_default(metadata.schema.to_arrow_schema(), self._table.columns)
            or not self._can_list(source.size, metadata)
        ):
            self._rest.append(source)
            return
        data = await asyncio.to_thread(_read_bytes, source, metadata)
        copy = self._copies + data_file_name(self._tx.identities, len(self._files), data)
        self._files.append(await self._with_checksums(self._entry_of(copy, len(data), metadata), data))
        await (await self._tx.session.data_storage(self._table)).put(copy, data)

    async def _take_stored(self, path: str) -> None:
        """Take a file in the transaction's own folder, without a copy."""
        if not path.startswith(self._own_folder):
            raise InvalidInput(
                f"{redact_url(path)[:300]!r} is not a file that this transaction wrote for the table;"
                f" such files are below {self._own_folder}",
                kind="bad_argument",
                hint="give an absolute path or a URL to have the file copied",
            )
        storage = await self._tx.session.data_storage(self._table)
        info = await storage.stat(path)
        if info is None:
            raise NotFound(f"there is no file {path}", kind="no_file", path=path)
        data = await storage.read(path, size_max=info.size)
        metadata = await asyncio.to_thread(_read_metadata, pa.BufferReader(data), path)
        if self._table.partition_spec:
            raise InvalidInput(
                f"{path}: a table with partitions does not take files without a copy",
                kind="not_supported",
                hint="append the rows of the file",
            )
        file = self._entry_of(path, info.size, metadata)
        if not self._has_ids_and_names(metadata):
            raise bad_file(
                path,
                "its columns have the table's ids, but other names",
                "use the names of the table's columns",
            )
        self._files.append(await self._with_checksums(file, data))

    async def _with_checksums(self, file: DataFile, data: bytes) -> DataFile:
        """Return the entry with the checksums of the file's bytes, where the catalog's revision has them."""
        if not await self._tx.lists_checksums():
            return file
        return await asyncio.to_thread(with_checksums, file, data)

    async def finish(self) -> list[DataFile]:
        """Return the entries of all files. Raises CastError, which names the file and the column."""
        if self._rest:
            tx = self._tx
            self._files += await write_files(
                await tx.session.data_storage(self._table),
                self._table,
                self._rows(),
                transaction_id=tx.id,
                identities=tx.identities,
                catalog_id=tx.session.catalog_id,
                checksums=await tx.lists_checksums(),
            )
        return self._files

    def _rows(self) -> Iterator[pa.RecordBatch]:
        columns = tuple(map(_as_inserted, self._table.columns))
        for source in self._rest:
            try:
                with source.open() as file, open_parquet(file) as parquet:
                    by_id = self._is_own(parquet.metadata)
                    schema = schema_of(parquet, keep_ids=by_id)
                    batches = (
                        batch.cast(schema) if batch.schema != schema else batch
                        for batch in parquet.iter_batches(batch_size=BATCH_ROWS_MAX)
                    )
                    reader = pa.RecordBatchReader.from_batches(schema, batches)
                    yield from cast_data(reader, columns, PIECE_SIZE_BYTES_MAX, by_id=by_id)
            except CastError as error:
                raise CastError(f"{redact_url(source.path)}: {error}", error.hint) from None
            except (pa.ArrowException, OSError) as error:
                reason = redact_text(str(error))[:300]
                raise CastError(f"{redact_url(source.path)} cannot be read: {reason}") from None

    def _entry_of(self, path: str, size: int, metadata: pq.FileMetaData) -> DataFile:
        return data_file_of_footer(path, size, metadata, self._table.columns, schema_id=self._table.schema_id)

    def _can_list(self, size: int, metadata: pq.FileMetaData) -> bool:
        try:
            self._entry_of(f"{self._copies}part-00000.parquet", size, metadata)
        except InvalidInput:
            return False
        return True

    def _has_ids_and_names(self, metadata: pq.FileMetaData) -> bool:
        """Return whether the file's columns have both the ids and the names of the table's columns. Ids alone are not
        enough: other writers number columns in their own way, and readers look up statistics of files by name."""
        return _same_ids(list(metadata.schema.to_arrow_schema()), self._table.columns, named=True)

    def _is_own(self, metadata: pq.FileMetaData) -> bool:
        """Return whether the file was written for this table. The table's columns may have had other names at that
        time."""
        return (metadata.metadata or {}).get(b"alpheus.table_id") == self._table.id.encode() and _same_ids(
            list(metadata.schema.to_arrow_schema()), self._table.columns, named=False
        )


def _as_inserted(column: Column) -> Column:
    """The column with the default of inserts also for rows of files that lack the column."""
    return msgspec.structs.replace(
        column,
        initial_default=column.write_default,
        fields=tuple(map(_as_inserted, column.fields)),
        element=column.element and _as_inserted(column.element),
        key=column.key and _as_inserted(column.key),
        value=column.value and _as_inserted(column.value),
    )


def _same_ids(fields: Sequence[pa.Field], columns: Sequence[Column], named: bool) -> bool:
    """Return whether each field has the id of one of the columns and, with `named`, also its name."""
    by_id = {column.id: column for column in columns}
    for field in fields:
        column = by_id.get(field_id(field) or 0)
        if column is None or (named and field.name != column.name):
            return False
        if not _same_ids_below(field.type, column, named):
            return False
    return True


def _same_ids_below(kind: pa.DataType, column: Column, named: bool) -> bool:
    """The same for fields below `kind`. Elements, keys and values may lack an id, as in files of Spark, because they
    are matched by place."""
    if pa.types.is_struct(kind):
        return _same_ids([kind.field(index) for index in range(kind.num_fields)], column.fields, named)
    return all(
        field_id(inner) in (None, child.id) and _same_ids_below(inner.type, child, named)
        for inner, child in _inner(kind, column)
    )


def _inner(kind: pa.DataType, column: Column) -> list[tuple[pa.Field, Column]]:
    """The elements of lists, and the keys and values of maps, each with the table's column for it."""
    if is_list(kind) and column.element is not None:
        return [(kind.value_field, column.element)]
    if pa.types.is_map(kind) and column.key is not None and column.value is not None:
        return [(kind.key_field, column.key), (kind.item_field, column.value)]
    return []


def _misses_default(fields: Iterable[pa.Field], columns: Sequence[Column]) -> bool:
    """Return whether a file lacks a column whose default for existing rows differs from its default for inserts."""
    by_id = {field_id(field): field for field in fields}
    return any(
        column.write_default != column.initial_default
        if column.id not in by_id
        else _misses_default_below(by_id[column.id].type, column)
        for column in columns
    )


def _misses_default_below(kind: pa.DataType, column: Column) -> bool:
    if pa.types.is_struct(kind):
        return _misses_default([kind.field(index) for index in range(kind.num_fields)], column.fields)
    return any(_misses_default_below(inner.type, child) for inner, child in _inner(kind, column))


def _find_source(path: str) -> tuple[_Source, pq.FileMetaData]:
    """Find the file, and read its footer. Blocks. Raises NotFound (`no_file`), InvalidInput."""
    place = locate(path)
    printed = redact_url(path)[:300]
    try:
        info = place.system.get_file_info(place.path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(
            f"{printed!r} cannot be opened: {redact_text(str(error))[:200]}",
            kind="bad_argument",
            hint="give an absolute path, file:///path, s3://bucket/path or gs://bucket/path",
        ) from None
    if info.type is pafs.FileType.NotFound:
        raise NotFound(f"there is no file {printed}", kind="no_file")
    if info.type is not pafs.FileType.File:
        raise InvalidInput(
            f"{printed} is not a file", kind="bad_argument", hint="name the Parquet files in it one by one"
        )
    source = _Source(path, place.system, place.path, info.size)
    try:
        with source.open() as file:
            return source, _read_metadata(file, path)
    except OSError as error:
        raise _unreadable(path, error) from None


def _read_metadata(file: Any, path: str) -> pq.FileMetaData:
    try:
        metadata = pq.read_metadata(file)
    except (pa.ArrowException, OSError, Corrupt) as error:
        raise InvalidInput(
            f"{redact_url(path)[:300]} is not a Parquet file: {redact_text(str(error))[:200]}",
            kind="bad_data",
        ) from None
    refuse_old_calendar(metadata, redact_url(path))
    return metadata


def _read_bytes(source: _Source, metadata: pq.FileMetaData) -> bytes:
    """Read the whole file. Blocks. Raises InvalidInput, of kind `source_changed` when the footer has changed."""
    try:
        with source.open() as file:
            data: bytes = file.read()
    except OSError as error:
        raise _unreadable(source.path, error) from None
    if len(data) != source.size or not _read_metadata(pa.BufferReader(data), source.path).equals(metadata):
        raise InvalidInput(
            f"{redact_url(source.path)[:300]} changed while it was read",
            kind="source_changed",
            hint="append the file again when no process writes to it",
        )
    return data


def _unreadable(path: str, error: OSError) -> InvalidInput:
    return InvalidInput(
        f"{redact_url(path)[:300]} cannot be read: {redact_text(str(error))[:300]}", kind="bad_data"
    )
