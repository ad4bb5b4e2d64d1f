"""Rewrite a table's manifest segments: remove files, merge small segments (FORMAT.md, "Native tables").

Pure, and on Arrow batches: the cost follows the bytes, because no file is looked at in Python. Segments merge like the
runs of an LSM tree. So a table of n appends has O(log n) small segments, and each file's entry is written O(log n)
times.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from alpheus_journal import format as fmt
from alpheus_journal.model.definitions import Segment
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import SEGMENT_SCHEMA, encode_batch, files_of, open_segment

FANOUT = 10
"""The number of segments of one tier that are merged into one."""
TIERS = (10, 100, 1_000, 10_000)
"""A tier has the segments of fewer files than its bound. Segments of more files are not merged."""
MERGED_SIZE_BYTES_MAX = 64 << 20
"""The most bytes of segments that are merged into one."""
LAST_TIER_SIZE_BYTES_MAX = 8 << 20
"""The most bytes in the last tier. Removing a file rewrites the whole segment that lists it, so a large segment costs
much, while the merge only saves a few entries of a definition."""

_SEQUENCE = SEGMENT_SCHEMA.get_field_index("sequence")


def int64(number: int) -> pa.Scalar:
    """Return an Arrow scalar. `pa.scalar` would import pandas where it is installed, which blocks for half a second."""
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(struct.pack("<q", number))])[0]


class Content:
    """The content of a manifest segment: its batch, and on demand its files."""

    __slots__ = ("_files", "batch", "path", "table_id")

    def __init__(
        self, batch: pa.RecordBatch, path: str, table_id: str, files: tuple[DataFile, ...] | None = None
    ) -> None:
        self.batch = batch
        self.path = path
        self.table_id = table_id
        self._files = files

    @staticmethod
    def decode(data: bytes, path: str, table_id: str) -> Content:
        """Decode and check untrusted bytes. Raises the errors of `manifest.decode_segment`."""
        batch = open_segment(data, path, table_id=table_id)
        return Content(batch, path, table_id, files_of(batch, path, table_id=table_id))

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All files of the segment. Raises Corrupt (`corrupt_manifest`)."""
        if self._files is None:
            self._files = files_of(self.batch, self.path, table_id=self.table_id)
        return self._files

    def some(self, mask: pa.Array) -> tuple[DataFile, ...]:
        """Return the files that a mask of booleans chooses."""
        return files_of(self.batch.filter(mask), self.path, table_id=self.table_id)

    def first(self, mask: pa.Array) -> DataFile | None:
        """Return the first file that a mask of booleans chooses, or None."""
        chosen = self.batch.take(pc.indices_nonzero(mask).slice(0, 1))
        return next(iter(files_of(chosen, self.path, table_id=self.table_id)), None)

    def paths(self) -> pa.Array:
        return self.batch.column("path")

    def sequences(self, segment: Segment) -> pa.Array:
        """Return the sequence of each file. `segment` is the table's reference to this segment."""
        return pc.fill_null(self.batch.column("sequence"), int64(segment.sequence))

    def with_sequences(self, segment: Segment) -> pa.RecordBatch:
        """Return the rows with the sequence of each file, so that they can be in any segment."""
        return self.batch.set_column(_SEQUENCE, SEGMENT_SCHEMA.field(_SEQUENCE), self.sequences(segment))


class Made:
    """A segment that a commit makes from other segments."""

    __slots__ = ("content", "data", "segment")

    def __init__(self, segment: Segment, data: bytes, content: Content) -> None:
        self.segment = segment
        self.data = data
        self.content = content


ContentsOf = Callable[[Sequence[Segment]], Sequence[Content]]


def make_segment(
    batches: Sequence[pa.RecordBatch], path: str, table_id: str, *, row_count: int, size_bytes: int
) -> Made:
    """Make one segment at `path` with the rows of one or more batches, in order. Each row must have its sequence.

    The caller gives the totals of rows and bytes, because Arrow's sums would wrap.
    """
    plain = [batch.replace_schema_metadata(None) for batch in batches]
    table = pa.Table.from_batches(plain).combine_chunks()
    (batch,) = table.to_batches() if table.num_rows else (plain[0],)
    data = encode_batch(batch, table_id=table_id)
    sequences = pc.min_max(batch.column("sequence")).as_py()
    lowest, highest = sequences["min"], sequences["max"]
    segment = Segment(
        path=fmt.check_manifest_pointer(path, table_id),
        file_count=batch.num_rows,
        row_count=row_count,
        size_bytes=size_bytes,
        sha256=hashlib.sha256(data).digest(),
        segment_size_bytes=len(data),
        sequence=highest,
        min_sequence=lowest if lowest != highest else 0,
    )
    # Opened again, because the batch may keep much larger ones in memory.
    return Made(segment, data, Content(open_segment(data, path, table_id=table_id), path, table_id))


def tier_of(segment: Segment) -> int:
    """Return the tier of a segment, from 0 on. len(TIERS) means that the segment is not merged any more."""
    return bisect_right(TIERS, segment.file_count)


def find_due(segments: Iterable[Segment], tier: int) -> list[Segment]:
    """Return the oldest segments of a tier when they are due to be merged into one, else none."""
    members = [segment for segment in segments if tier_of(segment) == tier]
    if len(members) < FANOUT:
        return []
    oldest = sorted(members, key=lambda segment: (segment.sequence, segment.path))[:FANOUT]
    size_max = LAST_TIER_SIZE_BYTES_MAX if tier == len(TIERS) - 1 else MERGED_SIZE_BYTES_MAX
    return oldest if sum(s.segment_size_bytes for s in oldest) <= size_max else []


def due_size_bytes(segments: Iterable[Segment]) -> int:
    """Return the estimated bytes that `merge_due_segments` rewrites."""
    listed = list(segments)
    return sum(s.segment_size_bytes for tier in range(len(TIERS)) for s in find_due(listed, tier))


def merge_due_segments(
    segments: Sequence[Segment],
    contents_of: ContentsOf,
    table_id: str,
    new_path: Callable[[], str],
    *,
    times: int,
    spared: Callable[[Segment], bool] = lambda segment: False,
) -> tuple[tuple[Segment, ...], list[Made]]:
    """Merge the due segments of each tier, at most `times` in each. Return all segments, and the new ones among them.

    A merged segment takes the place of the first segment that it replaces. Segments for which `spared` returns True
    stay as they are. Raises the errors of `contents_of`.
    """
    made: dict[str, Made] = {}
    kept = list(segments)
    for tier in range(len(TIERS)):
        for _ in range(times):
            oldest = find_due([segment for segment in kept if not spared(segment)], tier)
            if not oldest:
                break
            fetched = iter(contents_of([segment for segment in oldest if segment.path not in made]))
            contents = [made[s.path].content if s.path in made else next(fetched) for s in oldest]
            batches = [content.with_sequences(s) for content, s in zip(contents, oldest, strict=True)]
            one = make_segment(
                batches,
                new_path(),
                table_id,
                row_count=sum(segment.row_count for segment in oldest),
                size_bytes=sum(segment.size_bytes for segment in oldest),
            )
            gone = {segment.path for segment in oldest}
            place = next(index for index, segment in enumerate(kept) if segment.path in gone)
            kept[place] = one.segment
            kept = [segment for segment in kept if segment.path not in gone]
            made = {path: other for path, other in made.items() if path not in gone}
            made[one.segment.path] = one
    return tuple(kept), list(made.values())


class Taken:
    """The outcome of `remove_files`."""

    __slots__ = ("entries", "made", "segments")

    def __init__(
        self, segments: tuple[Segment, ...], made: list[Made], entries: Mapping[str, tuple[int, int, int]]
    ) -> None:
        self.segments = segments
        self.made = made
        self.entries = entries
        """The rows, bytes and sequence of each removed file, by its path."""


def remove_files(
    segments: Sequence[Segment],
    looked_at: Iterable[str],
    paths: pa.Array,
    contents_of: ContentsOf,
    table_id: str,
    new_path: Callable[[], str],
) -> Taken:
    """Remove the files of `paths` from the segments with the paths `looked_at`.

    A segment that lists some of the files is rewritten, or left out when no file remains. Raises the errors of
    `contents_of`.
    """
    look = set(looked_at)
    chosen = [segment for segment in segments if segment.path in look]
    fetched = iter(contents_of(chosen))
    kept: list[Segment] = []
    made: list[Made] = []
    entries: dict[str, tuple[int, int, int]] = {}
    for segment in segments:
        if segment.path not in look:
            kept.append(segment)
            continue
        content = next(fetched)
        hit = pc.is_in(content.paths(), value_set=paths)
        count = pc.sum(hit).as_py()
        if not count:
            kept.append(segment)
            continue
        batch = content.with_sequences(segment)
        gone = batch.filter(hit)
        columns = [gone.column(name).to_pylist() for name in ("path", "row_count", "size_bytes", "sequence")]
        for path, row_count, size_bytes, sequence in zip(*columns, strict=True):
            entries[path] = (row_count, size_bytes, sequence)
        if count < batch.num_rows:
            one = make_segment(
                [batch.filter(pc.invert(hit))],
                new_path(),
                table_id,
                row_count=segment.row_count - sum(columns[1]),
                size_bytes=segment.size_bytes - sum(columns[2]),
            )
            made.append(one)
            kept.append(one.segment)
    return Taken(tuple(kept), made, entries)
