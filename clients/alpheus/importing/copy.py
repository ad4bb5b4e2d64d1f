"""Copy a source into a table of the catalog: the rows part by part, then one commit.

An import is a transaction that is saved before the first row is copied (FORMAT.md, "Distributed transactions"). A part
is some files of the source. The files written for a part are stored below the transaction's own data folder. Then a
manifest segment lists them: the mark that the part is done. Its name follows from the transaction and the part; it is
created once and never overwritten, and no table refers to it. A resumed import looks for these marks. It ignores marks
that are damaged, are of other rows, or list missing files, and copies the parts that have no valid mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, get_args

import msgspec
import pyarrow as pa

from alpheus.events.events import log
from alpheus.importing.delta import DeltaSource
from alpheus.importing.iceberg import IcebergSource
from alpheus.importing.parquet import ParquetSource
from alpheus.importing.results import Format, Imported, ImportProgress
from alpheus.importing.sources import Source, SourceFile
from alpheus.model_conversions import commit_of
from alpheus.models import Commit, time_of
from alpheus.rows.arrow.cast import CastError
from alpheus.rows.arrow.input_data import cast_data
from alpheus.rows.file_writer import PIECE_SIZE_BYTES_MAX, write_files
from alpheus.rows.foreign_file import absolute
from alpheus.session.arguments import words
from alpheus.session.session import Session
from alpheus.transactions.row_changes import store_segment
from alpheus.transactions.steps import CreateTableStep
from alpheus.transactions.terms import TransactionTerms, terms_of
from alpheus.transactions.transaction import TIDY_UP_SECONDS, AsyncTransaction
from alpheus_journal import format as fmt
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Corrupt,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.format import ObjectName
from alpheus_journal.model.answers import SavedTransaction
from alpheus_journal.model.definitions import Segment, TableDef
from alpheus_journal.model.operations import CreateTable
from alpheus_journal.storage import Storage, each_of
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import check_segment, decode_segment, segment_of
from alpheus_journal.tables.partitions import parse_partition_by, parse_sort_by

PART_SIZE_BYTES = 256 << 20
"""The size of a part in source files. After an interruption at most one part is copied again; a larger file is a part
by itself."""
PART_FILES_MAX = 1000
_MARKS_MAX = 8
"""The greatest number of damaged marks of one part that are skipped."""
_MARKS_READ_AT_ONCE = 8
_LONG_TRIES_MAX = 5
_PREFIX = "alpheus.import."
_KEPT = (
    "import {id} is still saved: if the table does not have its rows, discard it and import the source again"
)


class _Part(msgspec.Struct, frozen=True):
    """Files of a source that are copied together. `identity` changes when any of the files changes."""

    indexes: range
    identity: str
    rows: int
    size: int


OnBegin = Callable[[str], object]
OnProgress = Callable[[ImportProgress], object]


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `import_table`."""

    name: ObjectName
    path: str
    format: str
    version: str
    partition_by: tuple[str, ...] | None
    sort_by: tuple[str, ...] | None
    append: bool
    partition_types: dict[str, pa.DataType]
    on_begin: OnBegin | None
    on_progress: OnProgress | None

    def source(self, path: str, version: str) -> Source:
        """Open the source at a path. Blocks."""
        if self.format == "parquet":
            if version:
                raise InvalidInput(
                    "version is not for Parquet files, which have no versions", kind="bad_argument"
                )
            return ParquetSource(path, self.partition_types)
        if self.partition_types:
            raise InvalidInput(
                f"partition_types is only for Parquet folders; a {self.format} table records its types",
                kind="bad_argument",
            )
        return DeltaSource(path, version) if self.format == "delta" else IcebergSource(path, version)


async def import_table(
    session: Session,
    name: ObjectName,
    path: str | os.PathLike[str],
    format: str,
    *,
    version: int | str | None,
    partition_by: Sequence[str] | None,
    sort_by: Sequence[str] | None,
    append: bool,
    partition_types: Mapping[str, pa.DataType] | None,
    message: str,
    properties: Mapping[str, str] | None,
    key: str | None,
    resume: str | None,
    on_begin: OnBegin | None,
    on_progress: OnProgress | None,
) -> Imported:
    """See `AsyncCatalog.import_table`."""
    if format not in get_args(Format):
        raise InvalidInput(
            f"format={format!r} is unknown",
            kind="bad_argument",
            hint=f"give one of {', '.join(get_args(Format))}",
        )
    if isinstance(version, bool) or not isinstance(version, int | str | None):
        raise InvalidInput(f"version={version!r} is not a version", kind="bad_version")
    if append and (partition_by is not None or sort_by is not None):
        raise InvalidInput(
            "partition_by and sort_by are for a new table; append adds to an existing table",
            kind="bad_argument",
        )
    request = ImportRequest(
        name=name,
        path=absolute(path),
        format=format,
        version="" if version is None else str(version),
        partition_by=None if partition_by is None else words("partition_by", partition_by),
        sort_by=None if sort_by is None else words("sort_by", sort_by),
        append=bool(append),
        partition_types=dict(partition_types or {}),
        on_begin=on_begin,
        on_progress=on_progress,
    )
    if resume is not None:
        return await _resume(session, request, resume, key)
    terms = terms_of("snapshot", message, properties, "main", key, None)
    if terms.key and (before := await session.find_commit_of_key(terms.key)) is not None:
        return await _load_imported(session, before)
    source = await asyncio.to_thread(request.source, request.path, request.version)
    id = await _begin(session, request, terms, source)
    if on_begin is not None:
        await asyncio.to_thread(on_begin, id)
    return await _Transfer(session, request, source, id).run(resumed=False)


# --- begin and resume -----------------------------------------------------------------------


async def _begin(session: Session, request: ImportRequest, terms: TransactionTerms, source: Source) -> str:
    """Save the import as a transaction and return its id. The transaction creates the table, or is empty with
    `append`."""
    said = {
        "table": request.name.full_name,
        "format": source.format,
        "path": request.path,
        "source": source.location,
        "version": source.version,
        "files": str(len(source.files)),
        "size_bytes": str(sum(file.size for file in source.files)),
        "rows": str(sum(file.rows for file in source.files)),
        "digest": _digest(source),
    }
    properties = terms.properties | {_PREFIX + word: text for word, text in said.items()}
    message = terms.message or f"import {source.format} {source.location}"[:1000]
    terms = msgspec.structs.replace(terms, properties=properties, message=message)
    async with AsyncTransaction(session, terms) as tx:  # an error on the way ends its lease
        if request.append:
            table = await tx.core.table(request.name)
            _check_fit(source, table)
        else:
            by = source.partition_by if request.partition_by is None else request.partition_by
            step = CreateTableStep(
                request.name, source.schema, None, {}, False, partition_by=by, sort_by=request.sort_by
            )
            await step.run(tx.core)
        await tx.core.hold_lease()
        return await tx.save()


def _check_fit(source: Source, table: TableDef) -> None:
    try:
        for _ in cast_data(source.schema.empty_table(), table.columns, PIECE_SIZE_BYTES_MAX):
            pass
    except CastError as error:
        raise InvalidInput(f"{source.location[:300]}: {error}", kind="bad_data", hint=error.hint) from None


async def _resume(session: Session, request: ImportRequest, id: str, key: str | None) -> Imported:
    if not isinstance(id, str) or not fmt.is_uuid(id):
        raise InvalidInput(f"{str(id)[:80]!r} is not a transaction id", hint="give a UUID in lower case")
    try:
        saved = await session.load_transaction(id)
    except NotFound:
        before = await session.outcome(id, since=None, settle=False)
        if before.commit is not None:
            return await _load_imported(session, commit_of(before.commit))
        raise
    said = {
        word.removeprefix(_PREFIX): text
        for word, text in saved.transaction.properties.items()
        if word.startswith(_PREFIX)
    }
    _check_same(request, saved, said, key)
    before = await session.outcome(id, since=saved.transaction.begin_version, settle=False)
    if before.commit is not None:
        await _forget(session, id)
        return await _load_imported(session, commit_of(before.commit))
    source = await asyncio.to_thread(request.source, said["source"], said["version"])
    if _digest(source) != said["digest"]:
        now = (len(source.files), sum(f.size for f in source.files), sum(f.rows for f in source.files))
        then = tuple(said.get(word, "?") for word in ("files", "size_bytes", "rows"))
        raise InvalidInput(
            f"{source.location[:300]} has changed since import {id} began: now {now[0]} files, {now[1]} bytes,"
            f" {now[2]} rows; then {then[0]} files, {then[1]} bytes, {then[2]} rows",
            kind="source_changed",
            hint="discard the import, and import the source as it is now",
        )
    return await _Transfer(session, request, source, id).run(resumed=True)


def _check_same(
    request: ImportRequest, saved: SavedTransaction, said: Mapping[str, str], key: str | None
) -> None:
    """Raise InvalidInput unless the saved transaction is the requested import."""
    id = saved.transaction.id
    if not said.keys() >= {"table", "format", "path", "source", "version", "digest"}:
        raise InvalidInput(
            f"transaction {id} is not an import", kind="bad_argument", hint="continue it with resume(id)"
        )
    creates = [op for op in saved.transaction.operations if isinstance(op, CreateTable)]
    table = creates[0] if creates else None
    given: list[tuple[str, object, object]] = [
        ("name", request.name.full_name, said["table"]),
        ("path", request.path, said["path"]),
        ("format", request.format, said["format"]),
        ("append", request.append, table is None),
    ]
    if key is not None:
        given.append(("key", key, saved.transaction.key))
    if request.version and request.format == "delta":
        given.append(("version", request.version, said["version"]))
    if table is not None and request.partition_by is not None:
        spec = parse_partition_by(request.partition_by, table.columns)
        given.append(("partition_by", spec, table.partition_spec))
    if table is not None and request.sort_by is not None:
        given.append(("sort_by", parse_sort_by(request.sort_by, table.columns), table.sort_order))
    for what, now, then in given:
        if now != then:
            raise InvalidInput(
                f"import {id} began with {what}={str(then)[:300]}, not {str(now)[:300]}",
                kind="bad_argument",
                hint="resume it with the arguments that it began with",
            )


async def _load_imported(session: Session, commit: Commit) -> Imported:
    """Return an earlier commit of the import, with the counts that the log has of it."""
    said: dict[str, str] = {}
    with contextlib.suppress(Expired):
        entries = log(session, name=None, after=commit.version - 1, until=commit.version)
        async with aclosing(entries) as stream:
            async for entry in stream:
                if entry.transaction.id == commit.transaction_id:
                    said = entry.transaction.properties

    def number(word: str) -> int:
        text = said.get(_PREFIX + word, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0

    return Imported(
        version=commit.version,
        transaction_id=commit.transaction_id,
        created_at=commit.created_at,
        duplicate=True,
        format=said.get(_PREFIX + "format", ""),
        source=said.get(_PREFIX + "source", ""),
        source_version=said.get(_PREFIX + "version", ""),
        source_files=number("files"),
        source_size_bytes=number("size_bytes"),
        rows=number("rows"),
        files=number("files_written"),
        size_bytes=number("size_bytes_written"),
    )


async def _forget(session: Session, id: str, lease_path: str = "") -> None:
    """Discard the saved transaction, so that it cannot be resumed, and delete its lease. On failure both expire by
    themselves."""
    with contextlib.suppress(AlpheusError, TimeoutError):
        async with asyncio.timeout(TIDY_UP_SECONDS):
            await session.discard_transaction(id)
            if lease_path:
                await (await session.storage()).delete(lease_path)


def _digest(source: Source) -> str:
    """Return a digest of everything that an import depends on. It changes whenever the source changes."""
    content = hashlib.sha256()
    for part in (source.format, source.location, source.version, str(source.schema)):
        content.update(part.encode() + b"\0")
    for file in source.files:
        content.update(_identity(file))
    return content.hexdigest()


def _identity(file: SourceFile) -> bytes:
    return msgspec.json.encode(file) + b"\n"


# --- copying ---------------------------------------------------------------------------------------


class _Transfer:
    """Runs a saved import, from the source to the commit."""

    def __init__(self, session: Session, request: ImportRequest, source: Source, id: str) -> None:
        self._session = session
        self._request = request
        self._source = source
        self._id = id
        self._parts = list(_divide(source))
        self._size_total = sum(part.size for part in self._parts)
        self._rows_total = sum(part.rows for part in self._parts)
        self._files_done = self._rows_done = self._size_done = 0
        self._lease_path = ""
        self._checksums = False

    async def run(self, *, resumed: bool) -> Imported:
        """Copy the missing parts and commit. An error that shows that the import can never succeed discards the import.
        After any other error it can be resumed. Expired discards nothing: the import may have committed in a version
        that is gone, so the user decides."""
        tx = AsyncTransaction(self._session, TransactionTerms(id=self._id, saved=True))
        try:
            async with tx:
                return await self._run(tx, resumed)
        except (InvalidInput, NotFound, AlreadyExists, Conflict, Corrupt):
            await _forget(self._session, self._id, self._lease_path)
            raise
        except Expired as error:
            error.hint = "; ".join(filter(None, (error.hint, _KEPT.format(id=self._id))))
            raise

    async def _run(self, tx: AsyncTransaction, resumed: bool) -> Imported:
        name = self._request.name
        await tx.core.hold_lease()  # a lease of its own, where that of the saved transaction is gone
        self._lease_path = tx.core.lease.path if tx.core.lease is not None else ""
        table = await tx.core.table(name)
        storage = await self._session.data_storage(table)
        found: Sequence[list[DataFile] | None] = [None] * len(self._parts)
        if resumed:
            marks = await each_of(
                self._parts, lambda part: self._find_mark(storage, table, part), _MARKS_READ_AT_ONCE
            )
            found = [files for files, _ in marks]
        resumed_files = 0
        for part, files in zip(self._parts, found, strict=True):
            if files is not None:
                resumed_files += len(part.indexes)
                self._count(part)
        if resumed_files:
            await self._report_progress()
        written: list[DataFile] = []
        self._checksums = await tx.core.lists_checksums()
        for part, files in zip(self._parts, found, strict=True):
            if files is None:
                files = await self._retry_part(lambda part=part: self._copy_part(storage, table, part))  # type: ignore[misc]
                self._count(part)
                await self._report_progress()
            written += files
        rows, size = sum(file.row_count for file in written), sum(file.size_bytes for file in written)
        if rows != self._rows_total:
            raise InvalidInput(
                f"{self._source.location[:300]} has {self._rows_total} rows, but {rows} were written",
                kind="bad_data",
            )
        segments = await store_segment(tx.core, table, written)
        await tx.core.apply_segments(name, table, segments, replace=False)
        tx.add_properties(
            {
                f"{_PREFIX}files_written": str(len(written)),
                f"{_PREFIX}size_bytes_written": str(size),
            }
        )
        version, created_at, duplicate, id = await self._commit(tx)
        if duplicate and id != self._id:  # another import with the same key committed first
            return await _load_imported(
                self._session, Commit(version=version, transaction_id=id, created_at=created_at)
            )
        return Imported(
            version=version,
            transaction_id=id,
            created_at=created_at,
            duplicate=duplicate,
            format=self._source.format,
            source=self._source.location,
            source_version=self._source.version,
            source_files=len(self._source.files),
            source_size_bytes=self._size_total,
            rows=rows,
            files=len(written),
            size_bytes=size,
            resumed_files=resumed_files,
        )

    async def _commit(self, tx: AsyncTransaction) -> tuple[int, datetime, bool, str]:
        commit = await tx.commit()
        if commit is None:  # no rows were added to an existing table
            await _forget(self._session, self._id, self._lease_path)
            begin = await self._session.resolve(tx.version)
            return begin.version, time_of(begin.created_at_millis), False, ""
        return commit.version, commit.created_at, commit.duplicate, commit.transaction_id

    async def _retry_part(self, copy: Callable[[], Any]) -> list[DataFile]:
        """Copy a part, and try again while its source or the storage is unavailable.

        Retries last as long as those of any call, counted from the first failure. A copy that runs longer than that
        before it fails is tried a few more times.
        """
        retry_policy = self._session.retry_policy
        attempts, long = retry_policy.start(), 0
        while True:
            began = retry_policy.now()
            try:
                files: list[DataFile] = await copy()
                return files
            except (Unavailable, OutcomeUnknown) as error:
                if retry_policy.now() - began >= retry_policy.timeout:
                    long += 1
                    if long >= _LONG_TRIES_MAX:
                        raise
                    attempts.note_progress()
                if not await attempts.wait_to_retry(error):
                    raise

    async def _copy_part(self, storage: Storage, table: TableDef, part: _Part) -> list[DataFile]:
        if not part.rows:
            return []
        files, attempt = await self._find_mark(storage, table, part)
        if (
            files is not None
        ):  # by an attempt whose answer was lost, or by another process that resumed the import
            return files
        files = await write_files(
            storage,
            table,
            self._read_rows(table, part),
            transaction_id=self._id,
            identities=self._session.identities,
            catalog_id=self._session.catalog_id,
            checksums=self._checksums,
        )
        path = self._mark_path(table, part, attempt)
        data, _ = segment_of(files, path=path, table_id=table.id, schema_id=table.schema_id)
        try:
            await storage.create(path, data)
        except AlreadyExists:
            theirs, _ = await self._find_mark(storage, table, part)
            return theirs if theirs is not None else files
        return files

    def _read_rows(self, table: TableDef, part: _Part) -> Iterator[pa.RecordBatch]:
        """Yield the part's rows with the table's types. Runs in a thread."""
        rows_done = 0
        size_done = 0
        for index in part.indexes:
            file = self._source.files[index]
            rows = 0
            try:
                for batch in self._source.batches(index):
                    rows += batch.num_rows
                    yield from cast_data(batch, table.columns, PIECE_SIZE_BYTES_MAX)
                    if self._request.on_progress is not None and rows < file.rows:
                        share = file.size * rows // max(1, file.rows)
                        self._request.on_progress(
                            self._progress(index - part.indexes.start, rows_done + rows, size_done + share)
                        )
            except CastError as error:
                raise CastError(f"{file.name[:300]}: {error}", error.hint) from None
            if rows != file.rows:
                raise InvalidInput(
                    f"{file.name[:300]} delivered {rows} rows, but the source says {file.rows}",
                    kind="bad_data",
                )
            rows_done += rows
            size_done += file.size

    # -- marks

    def _mark_path(self, table: TableDef, part: _Part, attempt: int) -> str:
        name = uuid.uuid5(uuid.UUID(self._id), f"{part.identity}/{attempt}")
        return fmt.manifest_path(table.id, str(name))

    async def _find_mark(
        self, storage: Storage, table: TableDef, part: _Part
    ) -> tuple[list[DataFile] | None, int]:
        """Return (files of a copied part, number of its mark), or (None, number of the mark to write)."""
        if not part.rows:
            return [], 0
        for attempt in range(_MARKS_MAX):
            path = self._mark_path(table, part, attempt)
            try:
                data = await storage.read(path, size_max=fmt.MANIFEST_SIZE_BYTES_MAX)
                files = decode_segment(data, path, table_id=table.id)
            except NotFound:
                return None, attempt
            except Corrupt:
                continue
            if await self._is_whole(storage, table, part, path, files):
                return list(files), attempt
        raise Corrupt(
            f"import {self._id} has {_MARKS_MAX} damaged marks of one part",
            kind="corrupt_manifest",
            path=path,
            hint="discard the import and start again",
        )

    async def _is_whole(
        self, storage: Storage, table: TableDef, part: _Part, path: str, files: Sequence[DataFile]
    ) -> bool:
        """Return whether a mark belongs to this part, and all files that it lists exist."""
        segment = Segment(
            path=path,
            file_count=len(files),
            row_count=part.rows,
            size_bytes=sum(file.size_bytes for file in files),
            sha256=b"",
            segment_size_bytes=0,
        )
        try:
            check_segment(files, segment, table, transaction_id=self._id)
        except (InvalidInput, Expired):
            return False
        there = await storage.stat_many([file.path for file in files])
        sizes = {path: info.size for path, info in there.items() if info is not None}
        return all(sizes.get(file.path) == file.size_bytes for file in files)

    # -- progress

    def _count(self, part: _Part) -> None:
        self._files_done += len(part.indexes)
        self._rows_done += part.rows
        self._size_done += part.size

    def _progress(self, files: int = 0, rows: int = 0, size: int = 0) -> ImportProgress:
        return ImportProgress(
            transaction_id=self._id,
            files=self._files_done + files,
            files_total=len(self._source.files),
            rows=self._rows_done + rows,
            rows_total=self._rows_total,
            size_bytes=self._size_done + size,
            size_bytes_total=self._size_total,
        )

    async def _report_progress(self) -> None:
        if self._request.on_progress is not None:
            await asyncio.to_thread(self._request.on_progress, self._progress())


def _divide(source: Source) -> Iterator[_Part]:
    """Divide all files of a source into parts, in order."""
    start = size = 0
    for index, file in enumerate(source.files):
        size += file.size
        if size >= PART_SIZE_BYTES or index + 1 - start >= PART_FILES_MAX or index + 1 == len(source.files):
            files = source.files[start : index + 1]
            identity = hashlib.sha256(b"".join(map(_identity, files))).hexdigest()
            yield _Part(range(start, index + 1), identity, sum(one.rows for one in files), size)
            start, size = index + 1, 0
