"""Manifest segments for a committer: checks those of transactions, and reads those of tables through a cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.log.times import time_text
from alpheus_journal.model.definitions import CatalogDef, Segment
from alpheus_journal.model.operations import (
    AppendFiles,
    ChangeRows,
    CreateNamespace,
    OverwriteFiles,
    Transaction,
)
from alpheus_journal.rooted_storage import DataRoots
from alpheus_journal.storage import ObjectInfo, Storage
from alpheus_journal.tables.manifest import is_content_of, open_segment
from alpheus_journal.tables.manifest_merge import Content
from alpheus_journal.tree.reader import SizedCache
from alpheus_journal.urls import redact_url
from alpheus_journal.workspace.context import OFFLOADED_SIZE_BYTES_MIN
from alpheus_journal.workspace.workspace import Workspace

_T = TypeVar("_T")

SEGMENTS_AT_ONCE_MAX = 32
SEGMENTS_AT_ONCE_BYTES_MAX = 16 << 20
"""Bounds on the manifest segments that are read together, and whose data files are looked for together. One segment is
always allowed."""
CACHE_SIZE_BYTES_MAX = 64 << 20


class SegmentReader:
    """Reads manifest segments for one process and catalog.

    A segment never changes under its path, but a transaction may announce a false one. So the cache compares the
    SHA-256, too.
    """

    def __init__(self, storage: Storage, data_roots: DataRoots) -> None:
        self._storage = storage
        self._data_roots = data_roots
        self.cache: SizedCache[tuple[bytes, pa.RecordBatch]] = SizedCache(CACHE_SIZE_BYTES_MAX)

    def remember(self, segment: Segment, batch: pa.RecordBatch) -> None:
        self.cache.set(segment.path, (segment.sha256, batch), segment.segment_size_bytes)

    # --- segments that a transaction brings

    async def fetch_brought(
        self,
        workspace: Workspace,
        segments: Sequence[Segment],
        transaction: Transaction,
        collected_before_millis: int,
        segments_since_millis: int = 0,
    ) -> None:
        """Read the manifest segments that a transaction brings, and check that the data files that it adds exist.

        Raises InvalidInput (`bad_data`) for a segment or data file that differs from what the transaction announces,
        and Expired (`upload_expired`) for a data file that a collection may delete, and for a segment that the
        transaction's lease does not keep, because it is older than `segments_since_millis`.
        """
        tables: dict[str, str] = {}
        own_roots = {o.data_root for o in transaction.operations if isinstance(o, CreateNamespace)}
        adds: dict[str, str] = {}  # the data root of the files, by the segment that adds them
        for operation in transaction.operations:
            if isinstance(operation, AppendFiles | OverwriteFiles | ChangeRows):
                coming = [*operation.segments]
                if isinstance(operation, ChangeRows):
                    coming += operation.changes
                    tables.update((segment.path, operation.table_id) for segment in operation.removed)
                tables.update((segment.path, operation.table_id) for segment in coming)
                adds.update((segment.path, operation.data_root) for segment in coming)
        for batch in _batches(segments):
            contents = await self._read_brought(batch, tables)
            if segments_since_millis:
                await self._check_kept(batch, segments_since_millis)
            looked_for: dict[str, list[str]] = {}
            for segment, content in zip(batch, contents, strict=True):
                if segment.path in adds:
                    looked_for.setdefault(adds[segment.path], []).extend(file.path for file in content.files)
            infos: dict[str, ObjectInfo | None] = {}
            for root, paths in looked_for.items():
                if root not in own_roots:
                    _check_known(workspace, root)
                infos |= await self._data_roots.of(root).stat_many(paths)
            for segment, content in zip(batch, contents, strict=True):
                for file in content.files if segment.path in adds else ():
                    info = infos[file.path]
                    if info is None or info.size != file.size_bytes:
                        raise InvalidInput(
                            f"manifest segment {segment.path} names the data file {file.path}, which "
                            + (
                                "does not exist"
                                if info is None
                                else f"has {info.size} bytes instead of {file.size_bytes}"
                            ),
                            kind="bad_data",
                            path=file.path,
                            hint="write data files before the commit",
                        )
                    if info.modified_at_millis < collected_before_millis:
                        raise upload_expired(f"the data file {file.path} is too old", collected_before_millis)
                workspace.add_segment(segment.path, content)
                if segment.path in adds:
                    self.remember(segment, content.batch)

    async def _check_kept(self, segments: Sequence[Segment], since_millis: int) -> None:
        for path, info in (await self._storage.stat_many([s.path for s in segments])).items():
            if info is None or info.modified_at_millis < since_millis:
                raise Expired(
                    f"manifest segment {path} was written before {time_text(since_millis)}, although by the time in its"
                    " id the transaction began later; so its lease does not keep the segment from collections",
                    kind="upload_expired",
                    path=path,
                    hint="set the clock of the machine that made the id; then begin a new transaction, and write its"
                    " files again",
                )

    async def _read_brought(self, segments: Sequence[Segment], tables: Mapping[str, str]) -> list[Content]:
        """Return the contents of the segments. `tables` has the table's id by the segment's path."""
        try:
            paths = [fmt.check_manifest_pointer(s.path, tables[s.path]) for s in segments]
            size_max = min(max(s.segment_size_bytes for s in segments), fmt.MANIFEST_SIZE_BYTES_MAX)
            contents = await self._storage.read_many(paths, size_max=size_max)
        except (NotFound, Corrupt) as error:
            raise InvalidInput(
                f"manifest segment {error.path}: {error.message}",
                kind="bad_data",
                path=error.path,
                hint="write data files and segments before the commit",
            ) from error
        listed = []
        for segment in segments:
            data = contents[segment.path]
            if not await _run_off_loop(data, partial(is_content_of, segment)):
                raise InvalidInput(
                    f"manifest segment {segment.path} differs from the file that the transaction announces",
                    kind="bad_data",
                    path=segment.path,
                )
            try:
                listed.append(await _run_off_loop(data, Content.decode, segment.path, tables[segment.path]))
            except Corrupt as error:
                raise InvalidInput(error.message, kind="bad_data", path=segment.path) from error
        return listed

    # --- segments of tables

    async def fetch(
        self,
        workspace: Workspace,
        segments: Sequence[tuple[str, Segment]],
        staged: Mapping[str, Content] | None = None,
    ) -> None:
        """Bring segments of tables into the workspace, each given with its table's id.

        A damaged segment is stored as its error. `staged` has the contents of segments that a staged version made.
        """
        missing: dict[str, tuple[str, Segment]] = {}
        for table_id, segment in segments:
            content = staged.get(segment.path) if staged is not None else None
            if content is None:
                cached = self.cache.get(segment.path)
                if cached is not None and cached[0] == segment.sha256:
                    content = Content(cached[1], segment.path, table_id)
            if content is not None:
                workspace.add_segment(segment.path, content)
            else:
                missing[segment.path] = (table_id, segment)
        for batch in _batches([segment for _, segment in missing.values()]):
            for segment, found in zip(batch, await self._read_all(batch), strict=True):
                table_id = missing[segment.path][0]
                workspace.add_segment(segment.path, await self._open_found(found, segment, table_id))

    async def _read_all(self, segments: Sequence[Segment]) -> list[bytes | AlpheusError]:
        paths = [segment.path for segment in segments]
        size_max = min(max(s.segment_size_bytes for s in segments), fmt.MANIFEST_SIZE_BYTES_MAX)
        try:
            contents = await self._storage.read_many(paths, size_max=size_max)
            return [contents[path] for path in paths]
        except (NotFound, Corrupt) as error:
            if len(paths) == 1:
                return [error]
        return [(await self._read_all([segment]))[0] for segment in segments]

    async def _open_found(
        self, data: bytes | AlpheusError, segment: Segment, table_id: str
    ) -> Content | AlpheusError:
        if isinstance(data, AlpheusError):
            return _damaged_error(segment, data.message)

        def open_batch(data: bytes) -> pa.RecordBatch | None:
            if not is_content_of(segment, data):
                return None
            return open_segment(data, segment.path, table_id=table_id)

        try:
            batch = await _run_off_loop(data, open_batch)
        except Corrupt as error:
            return error
        if batch is None:
            return _damaged_error(segment, "its SHA-256 differs from the one that the catalog records")
        self.remember(segment, batch)
        return Content(batch, segment.path, table_id)


def upload_expired(what: str, collected_before_millis: int) -> Expired:
    """Build the error for files that a collection may delete, or has deleted. `what` is old."""
    return Expired(
        f"{what}: unreferenced files from before {time_text(collected_before_millis)} have been collected",
        kind="upload_expired",
        hint="begin a new transaction, and write its files again; where work takes so long, collect with a longer"
        " minimum age",
    )


def _check_known(workspace: Workspace, root: str) -> None:
    """Refuse a data root that the catalog does not list: a client must not make this process open other places."""
    if not root:
        return
    stored = workspace.get(fmt.CATALOG)
    definition = None if stored is None else workspace.decode_readable(fmt.CATALOG, stored)
    if not isinstance(definition, CatalogDef) or root not in definition.data_roots:
        raise InvalidInput(f"the catalog has no data root {redact_url(root)[:200]}", kind="bad_data")


async def _run_off_loop(data: bytes, work: Callable[..., _T], *args: str) -> _T:
    """Return `work(data, *args)`. Large data is handled in a thread, so that the event loop stays free."""
    if len(data) < OFFLOADED_SIZE_BYTES_MIN:
        return work(data, *args)
    return await asyncio.to_thread(work, data, *args)


def _damaged_error(segment: Segment, reason: str) -> Corrupt:
    return Corrupt(f"manifest segment {segment.path}: {reason}", kind="corrupt_manifest", path=segment.path)


def _batches(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Split segments into batches, in order, by their announced sizes. No file is read beyond its announced size."""
    batch: list[Segment] = []
    for segment in segments:
        size = sum(s.segment_size_bytes for s in batch) + segment.segment_size_bytes
        if batch and (len(batch) == SEGMENTS_AT_ONCE_MAX or size > SEGMENTS_AT_ONCE_BYTES_MAX):
            yield batch
            batch = []
        batch.append(segment)
    if batch:
        yield batch
