"""Read the rows of a native table's data files, by a plan (`alpheus.rows.plan`).

Columns of files are matched by field id: renamed columns are found, added columns have their default or NULL, and
widened columns are cast. A delete predicate may name a column that the table no longer has; the reader takes this
column from the file.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from alpheus.rows.arrow.cast import Caster, CastError
from alpheus.rows.plan import FileAt, Plan, PlannedFile
from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput, NotFound
from alpheus_journal.model.definitions import Column, Segment, TableDef
from alpheus_journal.predicate import (
    Predicate,
    Verdict,
    absent,
    columns_of,
    judge,
    keep,
)
from alpheus_journal.storage import Storage, each_of
from alpheus_journal.tables.checksums import find_changed_bytes
from alpheus_journal.tables.columns import field_id
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import decode_segment, is_content_of
from alpheus_journal.tables.parquet_footer import row_group_files

PARALLEL_READS_MAX = 8
BATCH_ROWS_MAX = 1 << 16
PAGES_BYTES_MAX = 2 << 20
"""Memory that Arrow keeps for a column while it reads: a dictionary and a page, each of 1 MiB as writers make them."""

SUMMED_SIZE_BYTES_MAX = 1 << 20
"""Size of the largest file that is compared with its checksum without a thread, in 0.2 ms."""

_Operands = dict[int, pa.Array | pa.ChunkedArray]


def corrupt(path: str, reason: str) -> Corrupt:
    return Corrupt(f"{path}: {reason}", kind="corrupt_manifest", path=path)


def check_table(table: TableDef) -> None:
    if not table.native:
        raise InvalidInput(
            f"table {table.id} is an Iceberg table",
            kind="not_native",
            hint="read and write its rows with an Iceberg client",
        )


class ListedFile(msgspec.Struct, frozen=True):
    """A data file of a table, the sequence at which its rows were added, and the manifest segment that lists it."""

    segment: Segment
    file: DataFile
    sequence: int


async def list_files(
    storage: Storage, table: TableDef, unstored: Callable[[str], bytes | None] | None = None
) -> list[ListedFile]:
    """List every data file of the table, in the order of its segments. `unstored` returns by path the bytes of segments
    that are not on storage.

    Segments are read in parallel and verified by size and SHA-256. Raises Corrupt (`corrupt_manifest`), which names a
    segment that is missing or differs, and InvalidInput (`not_native`) for an Iceberg table.
    """
    check_table(table)

    async def files_of(segment: Segment) -> list[ListedFile]:
        data = unstored(segment.path) if unstored is not None else None
        files = await segment_files(storage, table, segment, data)
        return [
            ListedFile(segment, file, segment.sequence if file.sequence is None else file.sequence)
            for file in files
        ]

    listed = await each_of(table.segments, files_of, PARALLEL_READS_MAX)
    return [one for part in listed for one in part]


async def load_files(storage: Storage, table: TableDef) -> list[FileAt]:
    """List every data file of the table with its sequence; see `list_files`."""
    return [(one.file, one.sequence) for one in await list_files(storage, table)]


async def segment_files(
    storage: Storage, table: TableDef, segment: Segment, data: bytes | None = None
) -> tuple[DataFile, ...]:
    """List the files of a segment of the table. `data` holds the segment's bytes when they are not on storage."""
    path = fmt.check_manifest_pointer(segment.path, table.id)
    size_max = min(segment.segment_size_bytes, fmt.MANIFEST_SIZE_BYTES_MAX)
    try:
        content = data if data is not None else await storage.read(path, size_max=size_max)
    except NotFound:
        raise corrupt(path, f"the manifest segment of table {table.id} is missing") from None

    def decode() -> tuple[DataFile, ...]:
        if not is_content_of(segment, content):
            raise corrupt(path, "size or SHA-256 differ from those of the committed manifest segment")
        files = decode_segment(content, path, table_id=table.id)
        counted = (len(files), sum(f.row_count for f in files), sum(f.size_bytes for f in files))
        if counted != (segment.file_count, segment.row_count, segment.size_bytes):
            raise corrupt(path, "the totals of the manifest segment's files differ from the committed ones")
        return files

    return await asyncio.to_thread(decode)


def damaged_file(file: DataFile, reason: str, *, table: str = "", segment: str = "") -> Corrupt:
    """The error for a data file that is not the committed one. `table` is the table's name, and `segment` the path of
    the segment that lists the file, if known."""
    of = f"table {table}: " if table else ""
    lists = f"manifest segment {segment} lists it" if segment else "a manifest segment lists it"
    return Corrupt(
        f"{of}{file.path}: the data file {reason}, {lists}",
        kind="corrupt_manifest",
        path=file.path,
        hint="put the file back from a copy of the storage; alpheus check --values names all damaged files",
    )


def find_wrong_on_disk(storage: Storage, files: Iterable[DataFile]) -> tuple[DataFile, str] | None:
    """Find the first file that is missing, a folder, or not of the committed size, and say which of these.

    Checks only disks of this machine, where another program may put a folder in a file's place, and an engine would
    read the files in this folder as rows. On other storage the reader of a file detects the fault. Blocks; makes one
    `stat` a file.
    """
    root = ""
    for file in files:
        root = root or _root(storage, file.path)
        if not root:
            return None
        reason = _find_fault_on_disk(root + file.path, file)
        if reason:
            return file, reason
    return None


def _root(storage: Storage, path: str) -> str:
    """The folder above the path of a data file, or "" when the file is not on a disk of this machine."""
    try:
        scheme, _, place = storage.uri(path).partition("://")
    except InvalidInput:  # the storage is in memory
        return ""
    # Paths of data files have no escapes, so removing the suffix after decoding is right.
    return unquote(place).removesuffix(path) if scheme == "file" else ""


def _find_fault_on_disk(place: str, file: DataFile) -> str:
    """Return the fault of a file, or "" when the file has no fault or this process cannot check it."""
    try:
        info = os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except OSError:
        return ""  # the read raises a better error
    if stat.S_ISDIR(info.st_mode):
        return f"is a folder now, {file.size_bytes} bytes were committed"
    return "" if info.st_size == file.size_bytes else _size_text(info.st_size, file)


def _size_text(found: int, file: DataFile) -> str:
    return f"has {found} bytes, {file.size_bytes} were committed"


def check_on_disk(
    storage: Storage, files: Iterable[DataFile], listed: Iterable[ListedFile] = (), table: str = ""
) -> None:
    """Raise Corrupt (`corrupt_manifest`) for what `find_wrong_on_disk` finds. The file's segment is looked up in
    `listed`."""
    found = find_wrong_on_disk(storage, files)
    if found is not None:
        raise damaged_file(*found, table=table, segment=_segment_of(found[0], listed))


def _segment_of(file: DataFile, listed: Iterable[ListedFile]) -> str:
    return next((one.segment.path for one in listed if one.file.path == file.path), "")


async def read_data_file(
    storage: Storage, file: DataFile, listed: Sequence[ListedFile] = (), table: str = ""
) -> bytes:
    """Read a data file. Raises Corrupt (`corrupt_manifest`) when it is missing, has another size than was committed, or
    other bytes than its entry's checksum says. The error names the table, and the segment of the file, which is looked
    up in `listed`."""
    try:
        data = await storage.read(file.path, size_max=file.size_bytes)
    except (NotFound, Corrupt) as error:
        await asyncio.to_thread(check_on_disk, storage, [file], listed, table)
        reason = "is missing"
        if isinstance(error, Corrupt):
            reason = f"is not the committed one of {file.size_bytes} bytes ({error.message})"
        raise damaged_file(file, reason, table=table, segment=_segment_of(file, listed)) from None
    if len(data) != file.size_bytes:
        raise damaged_file(file, _size_text(len(data), file), table=table, segment=_segment_of(file, listed))
    if len(data) <= SUMMED_SIZE_BYTES_MAX:
        reason = find_changed_bytes(file, data)
    else:
        reason = await asyncio.to_thread(find_changed_bytes, file, data)
    if reason:
        raise damaged_file(file, reason, table=table, segment=_segment_of(file, listed))
    return data


class _Piece(msgspec.Struct, frozen=True):
    """Rows of a file, with the requested columns. `visible` says which rows are not deleted, and `meant` for which rows
    the plan's `where` is TRUE. None means all."""

    rows: pa.RecordBatch
    visible: pa.Array | None
    meant: pa.Array | None


class FileReader:
    """Reads the files of one plan, with `columns` of its table. Blocks, so it runs in threads; several may use it
    concurrently.

    Batches have `schema`: the schema of the columns, without field ids. `data` comes from `read_data_file`, which has
    compared it with the file's checksum, so pages are compared with theirs only where the entry has none. All methods
    raise Corrupt (`corrupt_manifest`) for bytes that are not the committed file.
    """

    def __init__(self, plan: Plan, columns: Sequence[Column]) -> None:
        self.plan = plan
        self.columns = tuple(columns)
        self._caster = Caster(columns, by_id=True) if columns else None
        self._wanted = frozenset(column.id for column in columns)
        self._above = dict(_parents(plan.table.columns, ()))
        self.schema: pa.Schema = self._caster.schema if self._caster is not None else pa.schema([])

    def rows(
        self, data: bytes, planned: PlannedFile, report_held: Callable[[int], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file that the plan selects. Before each batch, `report_held` receives the number of bytes
        that the reader holds until the next batch, without `data`: all rows of the batch in the file, and pages."""
        for piece in self._pieces(data, planned, self._wanted, is_sought=True, report_held=report_held):
            mask = _both(piece.visible, piece.meant)
            rows = piece.rows if mask is None else piece.rows.filter(mask)
            if rows.num_rows:
                yield self._cast(rows, planned.file)

    def visible(self, data: bytes, planned: PlannedFile) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
        """Yield the rows of a file that are not deleted, and for which of them the plan's `where` is TRUE. None means
        for all."""
        for piece in self._pieces(data, planned, self._wanted, is_sought=False):
            rows, meant = piece.rows, piece.meant
            if piece.visible is not None:
                rows = rows.filter(piece.visible)
                meant = None if meant is None else meant.filter(piece.visible)
            if rows.num_rows:
                yield self._cast(rows, planned.file), meant

    def count(self, data: bytes, planned: PlannedFile) -> tuple[int, int]:
        """Count the rows of a file that are not deleted, and those of them for which the plan's `where` is TRUE."""
        if planned.is_whole:
            return planned.file.row_count, planned.file.row_count
        visible = meant = 0
        for piece in self._pieces(data, planned, frozenset(), is_sought=False):
            visible += _trues(piece.visible, piece.rows.num_rows)
            meant += _trues(_both(piece.visible, piece.meant), piece.rows.num_rows)
        return visible, meant

    def _cast(self, rows: pa.RecordBatch, file: DataFile) -> pa.RecordBatch:
        assert self._caster is not None, "rows without columns are counted, not read"
        try:
            return self._caster.cast(rows)
        except CastError as error:
            raise corrupt(file.path, str(error)) from None

    def _pieces(
        self,
        data: bytes,
        planned: PlannedFile,
        wanted: frozenset[int],
        *,
        is_sought: bool,
        report_held: Callable[[int], None] | None = None,
    ) -> Iterator[_Piece]:
        """Yield the rows of a file. With `is_sought`, row groups without rows that the plan selects are skipped."""
        file = planned.file
        where = self.plan.where if planned.is_filtered else None
        try:
            if len(data) != file.size_bytes:
                raise corrupt(file.path, _size_text(len(data), file))
            parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=file.crc32 is None)
            for rows in (parquet.metadata.num_rows, _rows_in_groups(parquet.metadata)):
                if rows != file.row_count:
                    raise corrupt(file.path, f"the file has {rows} rows, {file.row_count} were committed")
            asked = _named_columns(where, planned.predicates)
            names = self._names(parquet.schema_arrow, wanted, asked)
            pages = 0 if report_held is None else _pages_size(parquet.metadata, names)
            for numbers, predicates, filtered in _row_groups(
                parquet.metadata, file, planned.predicates, where if is_sought else None
            ):
                term = where if filtered else None
                for rows in _batches(parquet, numbers, names):
                    if report_held is not None:
                        report_held(rows.get_total_buffer_size() + pages)
                    operands = self._operands(rows, _named_columns(term, predicates))
                    meant = None if term is None else keep(term, operands, rows.num_rows)
                    yield _Piece(rows, _visible_mask(predicates, operands, rows.num_rows), meant)
        except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
            raise corrupt(file.path, f"not a valid Parquet file: {str(error)[:200]}") from error

    def _names(self, schema: pa.Schema, wanted: frozenset[int], asked: Iterable[Column]) -> list[str]:
        """The names of the columns of a file that are read."""
        ids = {column.id for column in asked}
        tops = wanted | ids | {self._above[number][0] for number in ids if self._above.get(number)}
        return [field.name for field in schema if field_id(field) in tops or ids & set(_ids_below(field))]

    def _operands(self, rows: pa.RecordBatch, columns: Sequence[Column]) -> _Operands:
        """The arrays on which predicates are evaluated: leaves of the file, and defaults for leaves that it lacks."""
        found: _Operands = {}
        if columns:
            for field, array in zip(rows.schema, rows.columns, strict=True):
                _collect(field, array, found)
        return {
            column.id: found[column.id] if column.id in found else self._absent(column, found, rows.num_rows)
            for column in columns
        }

    def _absent(self, column: Column, found: _Operands, length: int) -> pa.Array:
        values = absent(column, length)
        parents = self._above.get(column.id, ())
        if column.initial_default is None or not parents:
            return values
        if parents[-1] not in found:
            return pa.nulls(length, values.type)
        return pc.if_else(found[parents[-1]].is_valid(), values, pa.scalar(None, values.type))


def _parents(columns: Iterable[Column], above: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """For each column outside lists and maps, the structs that contain it, outermost first."""
    for column in columns:
        yield column.id, above
        yield from _parents(column.fields, (*above, column.id))


def _ids_below(field: pa.Field) -> Iterator[int]:
    kind = field.type
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            inner = kind.field(index)
            number = field_id(inner)
            if number is not None:
                yield number
            yield from _ids_below(inner)


def _collect(field: pa.Field, array: pa.Array, found: _Operands) -> None:
    """Collect arrays by field id, of structs and of their fields. A field is NULL where a struct above it is NULL."""
    number = field_id(field)
    if number is not None:
        found[number] = array
    if pa.types.is_struct(field.type):
        for index in range(field.type.num_fields):
            _collect(field.type.field(index), pc.struct_field(array, [index]), found)


def _named_columns(where: Predicate | None, predicates: Sequence[Predicate]) -> tuple[Column, ...]:
    """The columns that predicates name, each once."""
    found: dict[int, Column] = {}
    for predicate in (*predicates, *(() if where is None else (where,))):
        for column in columns_of(predicate):
            found.setdefault(column.id, column)
    return tuple(found.values())


_Groups = tuple[list[int], tuple[Predicate, ...], bool]


def _rows_in_groups(metadata: pq.FileMetaData) -> int:
    """The number of rows in all row groups, which is what a read gives, whatever total the footer claims."""
    return sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))


def _row_groups(
    metadata: pq.FileMetaData,
    file: DataFile,
    predicates: tuple[Predicate, ...],
    sought: Predicate | None,
) -> Iterator[_Groups]:
    """Yield which row groups of a file are read together, which predicates they need, and whether `where` must be
    evaluated. Groups without visible rows, or without rows for which `sought` is TRUE, are left out."""
    count = metadata.num_row_groups
    if count < 2 or not (predicates or sought is not None):
        yield list(range(count)), predicates, True
        return
    last: _Groups | None = None
    for index, group in enumerate(row_group_files(file, metadata, _named_columns(sought, predicates))):
        if not group.row_count:
            continue
        wanted = judge(sought, group) if sought is not None else Verdict.MAYBE
        verdicts = [judge(predicate, group) for predicate in predicates]
        if wanted is Verdict.NEVER or Verdict.ALWAYS in verdicts:
            continue
        left = tuple(
            predicate
            for predicate, verdict in zip(predicates, verdicts, strict=True)
            if verdict is Verdict.MAYBE
        )
        filtered = wanted is Verdict.MAYBE
        if last is not None and (last[1], last[2]) == (left, filtered):
            last[0].append(index)
            continue
        if last is not None:
            yield last
        last = ([index], left, filtered)
    if last is not None:
        yield last


def _pages_size(metadata: pq.FileMetaData, names: Sequence[str]) -> int:
    """An upper estimate of the memory that Arrow keeps for these columns while it reads them."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    found = 0
    for index in range(metadata.num_columns):
        path = metadata.schema.column(index).path
        if any(path == name or path.startswith(name + ".") for name in names):
            largest = max((group.column(index).total_uncompressed_size for group in groups), default=0)
            found += min(largest, PAGES_BYTES_MAX)
    return found


def _batches(parquet: pq.ParquetFile, groups: list[int], names: list[str]) -> Iterator[pa.RecordBatch]:
    expected = sum(parquet.metadata.row_group(number).num_rows for number in groups)
    if not names:  # the file has none of the columns, so a column of NULLs carries the number of rows
        for start in range(0, expected, BATCH_ROWS_MAX):
            rows = min(BATCH_ROWS_MAX, expected - start)
            yield pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["none"])
        return
    found = 0
    for batch in parquet.iter_batches(batch_size=BATCH_ROWS_MAX, row_groups=groups, columns=names):
        batch.validate(full=True)
        found += batch.num_rows
        yield batch
    if found != expected:
        raise ValueError(f"{found} rows were read, {expected} were expected")


def _visible_mask(predicates: Sequence[Predicate], operands: _Operands, length: int) -> pa.Array | None:
    """Return which rows no predicate hides. None means all."""
    visible: pa.Array | None = None
    for predicate in predicates:
        visible = _both(visible, pc.invert(keep(predicate, operands, length)))
    return visible


def _both(one: pa.Array | None, other: pa.Array | None) -> pa.Array | None:
    if one is None or other is None:
        return other if one is None else one
    return pc.and_(one, other)


def _trues(mask: pa.Array | None, length: int) -> int:
    if mask is None:
        return length
    found: int = pc.sum(mask).as_py() or 0
    return found
