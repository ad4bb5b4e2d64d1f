"""The files that a listing found and that may be deleted, in little memory.

A file takes 26 bytes of memory, whatever its path, and a manifest segment 42. Its path waits in a temporary file, which
is read again for the files that are left. A mark finds its file by 64 bits of a hash. Where two files have one hash, a
mark keeps both, so a collision can only keep a file that could go. The key of the hash is another one in each process,
so the next collection finds it.
"""

from __future__ import annotations

import asyncio
import tempfile
import weakref
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from alpheus_journal import format as fmt
from alpheus_journal.errors import Exhausted
from alpheus_journal.log.leases import segments_kept_since
from alpheus_journal.model.answers import FileTotals

PATHS_SIZE_BYTES_MAX = 4 << 20
"""Bytes of paths that stay in memory. More of them go to a file in the folder for temporary files."""
READ_SIZE_BYTES = 1 << 20
PATHS_AT_ONCE = 500
SORTED_ASIDE_MIN = 20_000
"""From this number on files are sorted in a thread."""
_KINDS = fmt.UPLOADED_KINDS
_KIND_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
_BITS = (1 << 64) - 1


def _folder_owner(path: str) -> str:
    """Return the id of the transaction in whose folder a data file is."""
    return path.split("/", 3)[2]


def _hash_path(path: str) -> int:
    return hash(path) & _BITS


def strangers_at(root: str, places: Mapping[str, set[str]]) -> set[str]:
    """Return the tables that have another place than a root. `places` are the data roots of tables by their ids."""
    return {table_id for table_id, roots in places.items() if roots - {root}}


class FoundFiles:
    """The files of one place. Add all of them, `seal`, and then take out what stays."""

    def __init__(self) -> None:
        self._paths = bytearray()
        """The last paths, each with a line feed. The earlier ones are in the file, where there is one."""
        self._file: IO[bytes] | None = None
        self._release: Callable[[], object] = lambda: None
        self._kinds = bytearray()
        self._sizes = array("Q")
        self._hashes = array("Q")
        """In the order of adding until `seal`, then ascending."""
        self._order = array("Q")
        """The number of the file that has the hash at the same place."""
        self._is_kept = bytearray()
        self._noted: set[int] = set()
        """The numbers of the files that `note` has counted."""
        self._segments = array("Q")
        self._segment_times = array("Q")
        """The numbers of the manifest segments, and their modification times in epoch milliseconds."""
        self._left = {kind: [0, 0] for kind in _KINDS}  # files and bytes

    def __len__(self) -> int:
        return sum(files for files, _ in self._left.values())

    def add(self, path: str, size: int, kind: str, modified_at_millis: int) -> None:
        """Add a file of a kind (`format.kind_of_file`). Call `settle` after some hundred files."""
        if kind == "manifest":
            self._segments.append(len(self._kinds))
            self._segment_times.append(max(0, modified_at_millis))
        self._kinds.append(_KIND_NUMBERS[kind])
        self._sizes.append(size)
        self._hashes.append(_hash_path(path))
        self._left[kind][0] += 1
        self._left[kind][1] += size
        self._paths += path.encode() + b"\n"

    async def settle(self) -> None:
        """Move paths out of memory if they are many. Raises Exhausted (`no_space`)."""
        if len(self._paths) < PATHS_SIZE_BYTES_MAX:
            return
        try:
            await asyncio.to_thread(self._write, bytes(self._paths))
        except OSError as error:
            raise Exhausted(
                f"cannot write the list of files to the folder for temporary files: {error}",
                kind="no_space",
                hint="free space, or name another folder in TMPDIR: about 150 bytes for each file are needed",
            ) from error
        self._paths = bytearray()

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
            self._release = weakref.finalize(self, self._file.close)
        self._file.write(data)
        self._file.flush()  # a full disk is an error here, and not at a later read

    async def seal(self) -> None:
        """End the adding."""
        self._is_kept = bytearray(len(self._sizes))
        if len(self._sizes) < SORTED_ASIDE_MIN:
            self._sort()
        else:
            await asyncio.to_thread(self._sort)

    def _sort(self) -> None:
        count = len(self._hashes)
        if not count:
            return
        hashes = pa.Array.from_buffers(pa.uint64(), count, [None, pa.py_buffer(self._hashes.tobytes())])
        order = pc.array_sort_indices(hashes)
        self._hashes = array("Q", memoryview(hashes.take(order).buffers()[1])[: 8 * count].tobytes())
        self._order = array("Q", memoryview(order.buffers()[1])[: 8 * count].tobytes())

    def keep(self, paths: Iterable[str]) -> FileTotals:
        """Take out some of the files, and return how many of them were left. Other paths are passed over."""
        files = size = 0
        for path in paths:
            sought = _hash_path(path)
            place = bisect_left(self._hashes, sought)
            while place < len(self._hashes) and self._hashes[place] == sought:
                number = self._order[place]
                if not self._is_kept[number]:
                    self._take_out(number)
                    files, size = files + 1, size + self._sizes[number]
                place += 1
        return FileTotals(files=files, size_bytes=size)

    def note(self, paths: Iterable[str]) -> FileTotals:
        """Return how many of some files are left and were not counted by an earlier call."""
        files = size = 0
        for path in paths:
            sought = _hash_path(path)
            place = bisect_left(self._hashes, sought)
            while place < len(self._hashes) and self._hashes[place] == sought:
                number = self._order[place]
                if not self._is_kept[number] and number not in self._noted:
                    self._noted.add(number)
                    files, size = files + 1, size + self._sizes[number]
                place += 1
        return FileTotals(files=files, size_bytes=size)

    def _take_out(self, number: int) -> None:
        self._is_kept[number] = 1
        totals = self._left[_KINDS[self._kinds[number]]]
        totals[0] -= 1
        totals[1] -= self._sizes[number]

    async def keep_uploads(self, transaction_ids: set[str], since_millis: int) -> FileTotals:
        """Take out the data files in the folders of transactions, and the manifest segments that were modified at a
        time or later. Return how many of them were left."""
        chosen = [
            number
            for number, modified_at_millis in zip(self._segments, self._segment_times, strict=True)
            if modified_at_millis >= since_millis and not self._is_kept[number]
        ]
        async for part in self._each_part("data"):
            chosen += [number for number, path, _ in part if _folder_owner(path) in transaction_ids]
        for number in chosen:
            self._take_out(number)
        return FileTotals(files=len(chosen), size_bytes=sum(self._sizes[number] for number in chosen))

    async def keep_tables(self, table_ids: set[str]) -> None:
        """Take out the data files of some tables."""
        async for part in self._each_part("data"):
            for number, path, _ in part:
                if path.split("/", 2)[1] in table_ids:
                    self._take_out(number)

    async def left_of(self, kind: str) -> AsyncIterator[list[tuple[str, int]]]:
        """Yield path and size of the files of a kind that are left, in parts."""
        if self._left[kind][0]:
            async for part in self._each_part(kind):
                yield [(path, size) for _, path, size in part]

    async def _each_part(self, kind: str) -> AsyncIterator[list[tuple[int, str, int]]]:
        """Yield number, path and size of the files of a kind that are left, from PATHS_AT_ONCE files at a time."""
        wanted, number = _KIND_NUMBERS[kind], 0
        async for lines in self._each_lines():
            for start in range(0, len(lines), PATHS_AT_ONCE):
                part = []
                for line in lines[start : start + PATHS_AT_ONCE]:
                    if self._kinds[number] == wanted and not self._is_kept[number]:
                        part.append((number, line.decode(), self._sizes[number]))
                    number += 1
                if part:
                    yield part
                await asyncio.sleep(0)

    async def _each_lines(self) -> AsyncIterator[list[bytes]]:
        """Yield the paths in the order of adding."""
        rest = b""
        if self._file is not None:
            await asyncio.to_thread(self._file.seek, 0)
            while data := await asyncio.to_thread(self._file.read, READ_SIZE_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                yield lines
        yield bytes(self._paths).split(b"\n")[:-1]

    def count(self) -> dict[str, FileTotals]:
        """Return what is left, by kind."""
        return {
            kind: FileTotals(files=files, size_bytes=size)
            for kind, (files, size) in self._left.items()
            if files
        }

    def close(self) -> None:
        """Remove the temporary file. It goes with this object, too."""
        self._release()


class Candidates:
    """The files that a listing found and that are old enough to delete.

    `keep` takes out what is reached, `keep_uploads` what waits for a commit, and `keep_elsewhere` what belongs to
    another place. `own` are those of the catalog's prefix; `rooted` are data files by data root.
    """

    def __init__(self) -> None:
        self.own = FoundFiles()
        self.rooted: dict[str, FoundFiles] = {}
        self.kept_by: dict[str, FileTotals] = {}

    def __bool__(self) -> bool:
        return any(map(len, (self.own, *self.rooted.values())))

    def keep(self, paths: Iterable[str], by: str, root: str = "") -> None:
        """Take out files that `by` reaches."""
        left = self.rooted.get(root) if root else self.own
        if left is not None:
            self._count_kept(left.keep(paths), by)

    def note(self, paths: Iterable[str], root: str = "") -> FileTotals:
        """Count files that are left; see `FoundFiles.note`."""
        left = self.rooted.get(root) if root else self.own
        return FileTotals() if left is None else left.note(paths)

    async def keep_uploads(self, transaction_ids: Iterable[str], by: str) -> None:
        """Take out what transactions may have uploaded: the data files in their folders, and every manifest segment
        that was written after an id was made, because the name of a segment tells no owner."""
        ids = set(transaction_ids)
        if not ids:
            return
        made_at = min(map(segments_kept_since, ids))
        for files in (self.own, *self.rooted.values()):
            self._count_kept(await files.keep_uploads(ids, made_at), by)

    def _count_kept(self, found: FileTotals, by: str) -> None:
        if found.files:
            before = self.kept_by.get(by, FileTotals())
            self.kept_by[by] = FileTotals(
                files=before.files + found.files, size_bytes=before.size_bytes + found.size_bytes
            )

    async def keep_elsewhere(self, places: Mapping[str, set[str]]) -> None:
        """Take out the data files of tables that have another place than the one where the files were listed. `places`
        are the data roots of tables by their ids; the prefix is the empty root.

        A link, a mount or another name of a bucket may make two places one. Then each of them lists the files of the
        other, and only the place of the table knows what the table reaches.
        """
        for root, left in (("", self.own), *self.rooted.items()):
            if left and (strangers := strangers_at(root, places)):
                await left.keep_tables(strangers)

    def count(self) -> dict[str, FileTotals]:
        """Return what is left, by kind."""
        found: dict[str, FileTotals] = {}
        for files in (self.own, *self.rooted.values()):
            for kind, totals in files.count().items():
                before = found.get(kind, FileTotals())
                found[kind] = FileTotals(
                    files=before.files + totals.files, size_bytes=before.size_bytes + totals.size_bytes
                )
        return dict(sorted(found.items()))

    def close(self) -> None:
        """Remove the temporary files."""
        for files in (self.own, *self.rooted.values()):
            files.close()
