"""Uploads in parts that nobody will end (FORMAT.md, "Open uploads").

An upload waits in a `FoundFiles` under its path and id. So what keeps the files that a writer has uploaded keeps its
open uploads by the same code. What cannot be listed or aborted is told, and never stops the collection of files.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.collect.candidates import FoundFiles, strangers_at
from alpheus_journal.errors import (
    AlpheusError,
    Denied,
    Exhausted,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.log.leases import segments_kept_since
from alpheus_journal.model.answers import UploadTotals
from alpheus_journal.storage import OpenUpload, Storage, each_of, split_items
from alpheus_journal.urls import redact_url

ABORTED_AT_ONCE = 200
"""Uploads between two looks at the head. S3 aborts each of them by a request."""
REQUESTS_AT_ONCE = 32
LISTED_AT_ONCE = 200
SKIPPED_MAX = 20
"""The number of texts that say why uploads were skipped. A catalog may have a thousand data roots."""
NO_UPLOAD_ID = "0" * 32
"""No upload has this id."""
_BETWEEN = "\t"
"""Stands between path and id. No path has it, and no driver lists an id with it."""


class OpenUploads:
    """The open uploads of one collection, by data root; the prefix is the empty root."""

    def __init__(self) -> None:
        self._found: dict[str, FoundFiles] = {}
        self._young = self._kept = self._aborted = 0
        self._skipped: list[str] = []

    def __bool__(self) -> bool:
        return any(map(len, self._found.values()))

    async def find(
        self,
        root: str,
        storage: Storage,
        folders: Iterable[str],
        cutoff_millis: int,
        tables: set[str] | None = None,
    ) -> None:
        """Add the uploads below folders that were initiated before the cutoff. At a data root only those of known
        tables count. Raises Exhausted (`no_space`)."""
        found = self._found[root] = FoundFiles()
        seen = 0
        try:
            for folder in folders:
                async with contextlib.aclosing(storage.list_uploads(folder)) as uploads:  # type: ignore[type-var]
                    async for upload in uploads:
                        seen += 1
                        if seen % LISTED_AT_ONCE == 0:
                            await found.settle()
                            await asyncio.sleep(0)
                        self._add(found, upload, cutoff_millis, tables)
        except (Denied, InvalidInput, NotFound, Unavailable) as error:
            self._skip(storage, "not all looked at", error)
        await found.seal()

    def _add(
        self, found: FoundFiles, upload: OpenUpload, cutoff_millis: int, tables: set[str] | None
    ) -> None:
        kind = fmt.kind_of_upload(upload.path)
        if not kind or (tables is not None and upload.path.split("/", 2)[1] not in tables):
            return
        if upload.initiated_at_millis is None or upload.initiated_at_millis >= cutoff_millis:
            self._young += 1
        else:
            found.add(f"{upload.path}{_BETWEEN}{upload.upload_id}", 0, kind, upload.initiated_at_millis)

    def _skip(self, storage: Storage, what: str, error: AlpheusError) -> None:
        because = f"{error.message}; {error.hint}" if error.hint else error.message
        if len(self._skipped) >= SKIPPED_MAX:
            return
        place = redact_url(storage.url).partition("?")[0]
        self._skipped.append(f"open uploads at {place} were {what}: {because}")

    async def keep_transactions(self, transaction_ids: Iterable[str]) -> None:
        """Take out what transactions may be uploading (see `Candidates.keep_uploads`)."""
        ids = set(transaction_ids)
        if not ids:
            return
        made_at = min(map(segments_kept_since, ids))
        for files in self._found.values():
            self._kept += (await files.keep_uploads(ids, made_at)).files

    async def keep_elsewhere(self, places: Mapping[str, set[str]]) -> None:
        """Take out the data files of tables that have another place (see `Candidates.keep_elsewhere`)."""
        for root, files in self._found.items():
            if files and (strangers := strangers_at(root, places)):
                await files.keep_tables(strangers)

    async def may_abort(self, storage_of: Callable[[str], Storage]) -> bool:
        """Return whether some of the uploads that are left may be aborted. If none may, remember why.

        An abort with an id that no upload has changes nothing, and a store looks at the permission first. Other errors
        tell nothing of the permission.
        """
        refusals: dict[str, tuple[Storage, Denied]] = {}
        for root, files in self._found.items():
            storage = storage_of(root)
            async for path in _first_of_each_kind(files):
                try:
                    await storage.abort_upload(OpenUpload(path, NO_UPLOAD_ID, None))
                except Denied as error:
                    refusals[root] = storage, error
                except (Exhausted, InvalidInput, NotFound, OutcomeUnknown, Unavailable):
                    return True
                else:
                    return True
        for storage, refusal in refusals.values():
            self._skip(storage, "not all aborted", refusal)
        return False

    async def abort(
        self, storage_of: Callable[[str], Storage], check_head: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Abort what is left. Yield after each batch. `check_head` raises where the store was put back."""
        for root, files in self._found.items():
            storage = storage_of(root)
            async for batch in _batches(files):
                await check_head()
                await failpoints.reached("collect.aborting")
                before = self._aborted
                failure = await self._abort_batch(storage, batch)
                yield
                if failure is not None and self._aborted == before:
                    break  # the others would fail, too

    async def _abort_batch(self, storage: Storage, batch: list[OpenUpload]) -> AlpheusError | None:
        """Abort some uploads, and return the first failure. One upload that cannot be aborted does not stop others."""
        failures: list[AlpheusError] = []

        async def abort(upload: OpenUpload) -> None:
            try:
                await storage.abort_upload(upload)
                self._aborted += 1
            except (Denied, InvalidInput, NotFound) as error:
                failures.append(error)

        try:
            await each_of(batch, abort, REQUESTS_AT_ONCE)
        except (Exhausted, Unavailable, OutcomeUnknown) as error:
            failures.append(error)
        if failures:
            self._skip(storage, "not all aborted", failures[0])
        return failures[0] if failures else None

    def count(self) -> UploadTotals:
        return UploadTotals(
            abandoned=sum(map(len, self._found.values())),
            aborted=self._aborted,
            kept=self._kept,
            young=self._young,
            skipped=tuple(dict.fromkeys(self._skipped)),
        )

    def close(self) -> None:
        """Remove the temporary files."""
        for files in self._found.values():
            files.close()


async def _first_of_each_kind(files: FoundFiles) -> AsyncIterator[str]:
    """Yield the path of one upload that is left of each kind. A policy may tell folders apart."""
    for kind in fmt.UPLOADED_KINDS:
        async with contextlib.aclosing(files.left_of(kind)) as parts:  # type: ignore[type-var]
            async for part in parts:
                yield part[0][0].partition(_BETWEEN)[0]
                break


async def _batches(files: FoundFiles) -> AsyncIterator[list[OpenUpload]]:
    """Yield the uploads that are left, ABORTED_AT_ONCE at a time."""
    for kind in fmt.UPLOADED_KINDS:
        async for part in files.left_of(kind):
            for batch in split_items(part, ABORTED_AT_ONCE):
                names = [name.split(_BETWEEN) for name, _ in batch]
                yield [OpenUpload(path, upload_id, None) for path, upload_id in names]
