"""Compares the data files of a catalog's head with their manifest entries: `check(footers=True)`.

The client reads the files itself, with a daemon or without. Memory is bounded, however large the catalog is: a page of
definitions, four small manifest segments or one large segment, and eight footers or two whole files at a time.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext
from typing import Generic, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from alpheus.models import Finding
from alpheus.rows.file_reader import BATCH_ROWS_MAX, check_table
from alpheus.session.reads import decode_stored
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, InvalidInput, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import At
from alpheus_journal.model.definitions import Segment, TableDef
from alpheus_journal.storage import Storage
from alpheus_journal.tables.checksums import find_changed_bytes, find_changed_footer
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import files_of, is_content_of, open_segment
from alpheus_journal.tables.parquet_guard import TAIL_SIZE_BYTES, footer_of_end, footer_size
from alpheus_journal.tables.verify_file import footer_differences, value_differences

TABLES_AT_ONCE = 100
SEGMENTS_AT_ONCE = 4
SMALL_SEGMENT_SIZE_BYTES_MAX = 1 << 20
"""Larger segments are read one at a time."""
ENTRIES_AT_ONCE = 1_000
FOOTERS_AT_ONCE = 8
WHOLE_FILES_AT_ONCE = 2
END_SIZE_BYTES = 64 << 10
"""The part of a file's end that is read first. Most footers are smaller."""
DIFFERENCES_MAX = 10
"""The greatest number of differences that are reported for one file."""

_T = TypeVar("_T")
_UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, OverflowError, struct.error)


class Compared(msgspec.Struct, frozen=True):
    """The differences, in the order of tables and files, and the number of files that were compared."""

    findings: tuple[Finding, ...]
    files: int


async def compare_files(
    session: Session, *, values: bool = False, known: frozenset[str] = frozenset()
) -> Compared:
    """Compare every data file of the head's native tables with its manifest entry: size and Parquet footer, and with
    `values` pages and values, too.

    `known` has paths with an earlier finding. That such a file is missing or has another size is not reported again.
    Raises InvalidInput (`storage_unreachable`) when this process cannot read the data files, and Unavailable.
    """
    storage = await session.storage()
    return await _Comparison(session, storage, values, known).run()


class _Entry(msgspec.Struct, frozen=True):
    """A file to compare, and the table and segment that list it."""

    name: ObjectName
    table: TableDef
    segment: Segment
    file: DataFile


class _Stage(Generic[_T]):
    """A bounded queue, and the tasks that work on its items."""

    def __init__(self, work: Callable[[_T], Awaitable[None]], at_once: int) -> None:
        self._work = work
        self._at_once = at_once
        self._queue: asyncio.Queue[_T | None] = asyncio.Queue(at_once)

    async def put(self, item: _T) -> None:
        await self._queue.put(item)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(self._take())

    async def _take(self) -> None:
        while (item := await self._queue.get()) is not None:
            await self._work(item)

    async def close(self) -> None:
        """End the tasks once they have worked on all queued items."""
        for _ in range(self._at_once):
            await self._queue.put(None)


class _Comparison:
    def __init__(self, session: Session, storage: Storage, values: bool, known: frozenset[str]) -> None:
        self._session = session
        self._storage = storage
        self._values = values
        self._known = known
        self._version = 0
        self._found: list[tuple[str, str, Finding]] = []  # by table and path
        self._files = 0
        self._large = asyncio.Lock()
        self._entries = _Stage(self._compare, WHOLE_FILES_AT_ONCE if values else FOOTERS_AT_ONCE)
        self._segments = _Stage(self._list_files, SEGMENTS_AT_ONCE)

    async def run(self) -> Compared:
        self._version = (await self._session.resolve(None)).version
        try:
            async with asyncio.TaskGroup() as group:
                entries = group.create_task(self._entries.run())
                segments = group.create_task(self._segments.run())
                async for name, table in self._tables():
                    for segment in table.segments:
                        await self._segments.put((name, table, segment))
                await self._segments.close()
                await segments
                await self._entries.close()
                await entries
        except BaseExceptionGroup as failures:
            raise _first_error(failures) from None
        ordered = sorted(self._found, key=lambda one: one[:2])
        return Compared(tuple(finding for _, _, finding in ordered), self._files)

    def _add_finding(self, name: ObjectName, path: str, message: str, kind: str = "corrupt_manifest") -> None:
        finding = Finding(kind=kind, message=message, path=path, version=self._version)
        self._found.append((name.full_name, path, finding))

    def _add_unread(self, name: ObjectName, path: str, error: AlpheusError) -> None:
        """Report an error because of which the files of a table cannot be compared, unless it is known."""
        if path not in self._known:
            kind = "corrupt_manifest" if isinstance(error, NotFound) else error.kind
            self._add_finding(name, path, f"{name}: {error.message}", kind)

    # -- tables, segments and their entries

    async def _tables(self) -> AsyncIterator[tuple[ObjectName, TableDef]]:
        async for namespace in self._session.all_names(self._version, Kind.NAMESPACE):
            page: list[ObjectName] = []
            async for name in self._session.all_names(self._version, Kind.TABLE, namespace):
                page.append(ObjectName(Kind.TABLE, namespace, name))
                if len(page) == TABLES_AT_ONCE:
                    for found in await self._load_tables(page):
                        yield found
                    page = []
            for found in await self._load_tables(page):
                yield found

    async def _load_tables(self, names: list[ObjectName]) -> list[tuple[ObjectName, TableDef]]:
        """Return the native tables among `names`. A damaged definition is reported, and hides no other table."""
        at: At = self._version
        try:
            loaded = await self._session.load(at, names) if names else None
        except Corrupt as error:
            if len(names) > 1:
                return [found for name in names for found in await self._load_tables([name])]
            self._add_unread(names[0], error.path, error)
            return []
        tables = []
        for name, stored in zip(names, loaded.objects if loaded is not None else (), strict=True):
            try:
                table = decode_stored(name, stored, self._version)
                assert isinstance(table, TableDef)
                if table.native:
                    check_table(table)
                    tables.append((name, table))
            except (Corrupt, InvalidInput) as error:
                self._add_unread(name, error.path, error)
        return tables

    async def _list_files(self, one: tuple[ObjectName, TableDef, Segment]) -> None:
        name, table, segment = one
        large = segment.segment_size_bytes > SMALL_SEGMENT_SIZE_BYTES_MAX
        async with self._large if large else nullcontext():
            try:
                batch = await self._open_segment(table, segment)
                for start in range(0, batch.num_rows, ENTRIES_AT_ONCE):
                    part = batch.slice(start, ENTRIES_AT_ONCE)
                    for file in await asyncio.to_thread(files_of, part, segment.path, table_id=table.id):
                        await self._entries.put(_Entry(name, table, segment, file))
            except (Corrupt, NotFound) as error:
                self._add_unread(name, segment.path, error)

    async def _open_segment(self, table: TableDef, segment: Segment) -> pa.RecordBatch:
        path = fmt.check_manifest_pointer(segment.path, table.id)
        size_max = min(segment.segment_size_bytes, fmt.MANIFEST_SIZE_BYTES_MAX)
        data = await self._storage.read(path, size_max=size_max)

        def read() -> pa.RecordBatch:
            if not is_content_of(segment, data):
                raise Corrupt(f"{path} is not the file that the table names", path=path)
            return open_segment(data, path, table_id=table.id)

        return await asyncio.to_thread(read)

    # -- comparing files

    async def _compare(self, entry: _Entry) -> None:
        path = entry.file.path
        self._files += 1
        try:
            info = await (await self._session.data_storage(entry.table)).stat(path)
            if info is None:
                differences = [] if path in self._known else ["is not there"]
            elif info.size != entry.file.size_bytes:
                differences = [] if path in self._known else await self._compare_footer(entry, info.size)
            else:
                differences = await (
                    self._compare_whole(entry) if self._values else self._compare_footer(entry, info.size)
                )
        except (Corrupt, NotFound, InvalidInput) as error:
            differences = [f"cannot be read: {error.message}"]
        for what in _limit_differences(differences):
            self._add_finding(
                entry.name, path, f"data file {path} of {entry.name} (segment {entry.segment.path}) {what}"
            )

    async def _compare_footer(self, entry: _Entry, size: int) -> list[str]:
        path = entry.file.path
        start = max(0, size - END_SIZE_BYTES)
        storage = await self._session.data_storage(entry.table)
        end = await storage.read_part(path, start=start, size=size - start) if size else b""
        length = footer_size(end, size, path) + TAIL_SIZE_BYTES
        if length > len(end):
            end = await storage.read_part(path, start=size - length, size=length)
        return await asyncio.to_thread(_footer_differences, entry, size, end[-length:])

    async def _compare_whole(self, entry: _Entry) -> list[str]:
        storage = await self._session.data_storage(entry.table)
        data = await storage.read(entry.file.path, size_max=entry.file.size_bytes)
        return await asyncio.to_thread(_all_differences, entry, data)


def _footer_differences(entry: _Entry, size: int, end: bytes) -> list[str]:
    try:
        differences = footer_differences(entry.file, size, footer_of_end(end, entry.file.path), entry.table)
    except _UNREADABLE as error:
        return [f"has a footer that cannot be read: {str(error)[:200]}"]
    return differences or _as_list(find_changed_footer(entry.file, end))


def _as_list(difference: str) -> list[str]:
    """The checksum's difference, which is reported only where nothing says more."""
    return [difference] if difference else []


def _all_differences(entry: _Entry, data: bytes) -> list[str]:
    size = len(data)
    length = footer_size(data, size, entry.file.path) + TAIL_SIZE_BYTES
    differences = _footer_differences(entry, size, data[-length:])
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        batches = parquet.iter_batches(batch_size=BATCH_ROWS_MAX)
        differences += value_differences(entry.file, batches, entry.table)
    except _UNREADABLE as error:
        differences.append(f"has pages that cannot be read: {str(error)[:200]}")
    return differences or _as_list(find_changed_bytes(entry.file, data))


def _limit_differences(differences: list[str]) -> Iterator[str]:
    distinct = list(dict.fromkeys(differences))
    yield from distinct[:DIFFERENCES_MAX]
    if len(distinct) > DIFFERENCES_MAX:
        yield f"differs in {len(distinct) - DIFFERENCES_MAX} more ways"


def _first_error(failures: BaseExceptionGroup) -> BaseException:
    """Return the first error inside nested groups."""
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
