"""A cache of decoded manifest segments. Segments never change, so cached ones stay valid."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from typing import Any

from alpheus.rows.plan import FileAt
from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, NotFound
from alpheus_journal.model.definitions import Segment
from alpheus_journal.storage import Storage
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import decode_segment, is_content_of

SEGMENTS_READ_AT_ONCE = 64
CACHED_FILES_MAX = 200_000

Contents = dict[str, bytes]
Wait = Callable[[Coroutine[Any, Any, Contents]], Contents]
"""Runs a coroutine of the storage to its end, from synchronous code."""

Made = Callable[[str], bytes | None]
"""Returns by path the content of a manifest segment that is only in memory (`overlay.Overlay.segment`), or None for a
segment on storage."""


class FileLists:
    """Decoded manifest segments by path, up to `CACHED_FILES_MAX` files."""

    def __init__(self, storage: Storage, wait: Wait) -> None:
        self._storage = storage
        self._wait = wait
        self._known: OrderedDict[str, tuple[DataFile, ...]] = OrderedDict()
        self._files = 0
        self._lock = threading.Lock()

    def with_sequences(
        self, table_id: str, segments: Sequence[Segment], made: Made | None = None
    ) -> list[FileAt]:
        """List all files of the segments, each with the sequence at which its rows were added; see `of`."""
        files = iter(self.of(table_id, segments, made))
        return [
            (file, segment.sequence if file.sequence is None else file.sequence)
            for segment in segments
            for file in islice(files, segment.file_count)
        ]

    def of(self, table_id: str, segments: Sequence[Segment], made: Made | None = None) -> list[DataFile]:
        """List all files of the segments, in order. `made` gives segments that are not on storage. Raises Corrupt
        (`corrupt_manifest`), which names a segment that is missing or not the committed one."""
        found: dict[str, tuple[DataFile, ...]] = {}
        with self._lock:
            for segment in segments:
                if segment.path in self._known:
                    self._known.move_to_end(segment.path)
                    found[segment.path] = self._known[segment.path]
        unread = [segment for segment in segments if segment.path not in found]
        for segment in list(unread) if made is not None else ():
            data = made(segment.path) if made is not None else None
            if data is not None:
                found[segment.path] = _decode(data, segment, table_id)
                unread.remove(segment)
        for start in range(0, len(unread), SEGMENTS_READ_AT_ONCE):
            fresh = self._read(table_id, unread[start : start + SEGMENTS_READ_AT_ONCE])
            found |= fresh
            for path, files in fresh.items():
                self.keep(path, files)
        return [file for segment in segments for file in found[segment.path]]

    def keep(self, path: str, files: tuple[DataFile, ...]) -> None:
        """Cache the files of a segment."""
        with self._lock:
            self._files += len(files) - len(self._known.pop(path, ()))
            self._known[path] = files
            while self._files > CACHED_FILES_MAX and len(self._known) > 1:
                self._files -= len(self._known.popitem(last=False)[1])

    def segment_of(self, path: str) -> str:
        """Return the path of the cached segment that lists a data file, or "" when none does."""
        with self._lock:
            return next(
                (segment for segment, files in self._known.items() if any(f.path == path for f in files)), ""
            )

    def _read(self, table_id: str, segments: Sequence[Segment]) -> dict[str, tuple[DataFile, ...]]:
        for segment in segments:
            fmt.check_manifest_pointer(segment.path, table_id)
        sizes = [segment.segment_size_bytes for segment in segments]
        limit = min(max(sizes), fmt.MANIFEST_SIZE_BYTES_MAX)
        try:
            contents = self._wait(self._storage.read_many([s.path for s in segments], size_max=limit))
        except NotFound as error:
            raise Corrupt(
                f"a manifest segment of table {table_id} is missing: {error.message}",
                kind="corrupt_manifest",
                path=error.path,
            ) from None
        return {s.path: _decode(contents[s.path], s, table_id) for s in segments}


def _decode(data: bytes, segment: Segment, table_id: str) -> tuple[DataFile, ...]:
    if not is_content_of(segment, data):
        raise Corrupt(
            f"manifest segment {segment.path}: size or SHA-256 differ from the committed ones",
            kind="corrupt_manifest",
            path=segment.path,
        )
    return decode_segment(data, segment.path, table_id=table_id)
