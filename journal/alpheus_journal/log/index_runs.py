"""Sorted runs of fingerprints: the files of the index of ids and keys (FORMAT.md, "Index of ids and keys").

This module is pure: it turns transactions and bytes into runs. A run proposes the versions that may hold a transaction
id, a cancelled id or a retry key. No other version that the run covers holds it, which is certain.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.model.operations import RecordedTransaction
from alpheus_journal.tree.node import Malformed, rows_claimed

REVISION = 1
ENTRIES_MAX = 1 << 22
"""The most entries of one stored run, 64 MiB. More entries stay in several runs, so that a merge takes at most some
five times as much memory."""
SIZE_BYTES_MAX = 16 * ENTRIES_MAX + (64 << 10)

SCHEMA = pa.schema(
    [pa.field("fingerprint", pa.uint64(), nullable=False), pa.field("version", pa.uint64(), nullable=False)]
)

_REVISION, _CATALOG, _CRC = b"alpheus.index", b"alpheus.catalog_id", b"alpheus.crc32"
_FIRST, _LAST, _COMMIT = b"alpheus.first_version", b"alpheus.last_version", b"alpheus.commit_id"
_DECIMAL = re.compile(rb"0|[1-9][0-9]{0,9}")

Fingerprint = Callable[[str], int]


# --- what is indexed -------------------------------------------------------------------------------


def fingerprint(term: str) -> int:
    """Return a 64-bit hash of a term. Several terms may have the same hash."""
    return int.from_bytes(hashlib.sha256(term.encode()).digest()[:8], "big")


def id_term(transaction_id: str) -> str:
    return f"id:{transaction_id}"


def cancel_term(transaction_id: str) -> str:
    """Return the term under which the cancellation of a transaction is found."""
    return f"cancel:{transaction_id}"


def key_term(key: str) -> str:
    return f"key:{key}"


def terms(transactions: Iterable[RecordedTransaction]) -> Iterator[str]:
    """Yield all terms under which the version with these transactions is found."""
    for recorded in transactions:
        yield id_term(recorded.id)
        if recorded.cancels:
            yield cancel_term(recorded.cancels)
        if recorded.key:
            yield key_term(recorded.key)


# --- runs ------------------------------------------------------------------------------------------


class Run(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Ascending fingerprints, each with a version that holds it: all fingerprints of every version from `first` to
    `last`.

    Both views are of uint64, in memory or mapped. `commit_id` is the one of the version `last`, empty in a run that is
    not stored.
    """

    first: int
    last: int
    fingerprints: memoryview
    versions: memoryview
    commit_id: str = ""

    def __len__(self) -> int:
        return len(self.fingerprints)

    def find(self, sought: int) -> Iterator[int]:
        """Yield the versions of one fingerprint, in no order and perhaps repeatedly."""
        position = bisect_left(self.fingerprints, sought)
        while position < len(self.fingerprints) and self.fingerprints[position] == sought:
            yield self.versions[position]
            position += 1

    def covers(self, other: Run) -> bool:
        return self.first <= other.first and other.last <= self.last


class Gathering:
    """A run that grows by whole versions at either end. Not stored."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.last = first - 1
        self._entries: dict[int, tuple[int, ...]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, sought: int) -> Iterable[int]:
        return self._entries.get(sought, ())

    def add(self, version: int, fingerprints: Iterable[int]) -> None:
        """Add all fingerprints of the next version above or below."""
        if version == self.last + 1:
            self.last = version
        else:
            assert version == self.first - 1, "versions are added without a gap"
            self.first = version
        entries = self._entries
        for number in fingerprints:
            entries[number] = (*entries.get(number, ()), version)
            self._count += 1

    def run(self) -> Run:
        fingerprints, versions = array("Q"), array("Q")
        for number in sorted(self._entries):
            for version in self._entries[number]:
                fingerprints.append(number)
                versions.append(version)
        return Run(
            first=self.first,
            last=self.last,
            fingerprints=memoryview(fingerprints),
            versions=memoryview(versions),
        )


def _uint64(view: memoryview) -> pa.Array:
    # `pa.array` is avoided, because it may import pandas, which reads files.
    return pa.Array.from_buffers(pa.uint64(), len(view), [None, pa.py_buffer(view)])


def _batch(run: Run) -> pa.RecordBatch:
    return pa.record_batch([_uint64(run.fingerprints), _uint64(run.versions)], schema=SCHEMA)


def _run(batch: pa.RecordBatch, first: int, last: int, commit_id: str = "") -> Run:
    views = []
    for column in batch.columns:
        assert column.offset == 0, "of a batch that is whole"
        data = column.buffers()[1]
        view = memoryview(data if data is not None else b"")
        views.append(view.cast("B")[: 8 * batch.num_rows].cast("Q"))
    return Run(first=first, last=last, fingerprints=views[0], versions=views[1], commit_id=commit_id)


def merge_runs(runs: Sequence[Run]) -> Run:
    """Merge runs, which together cover their versions without a gap, into one run."""
    runs = sorted(runs, key=lambda run: run.first)
    first, last = runs[0].first, max(run.last for run in runs)
    reach, overlap = runs[0].last, False
    for run in runs[1:]:
        assert run.first <= reach + 1, "runs are merged without a gap"
        overlap = overlap or run.first <= reach
        reach = max(reach, run.last)
    columns = zip(*(_batch(run).columns for run in runs), strict=True)
    batch = pa.record_batch([pa.concat_arrays(parts) for parts in columns], schema=SCHEMA)
    by = [("fingerprint", "ascending"), ("version", "ascending")]
    batch = batch.take(pc.sort_indices(batch, sort_keys=by))
    if overlap and batch.num_rows > 1:
        differs = [pc.not_equal(column[1:], column[:-1]) for column in batch.columns]
        first_one = pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\x01")])
        batch = batch.filter(pa.concat_arrays([first_one, pc.or_(*differs)]))
    return _run(batch, first, last)


def clip_run(run: Run, low: int, high: int) -> Run:
    """Return the part of a run for [low, high], which the run covers."""
    assert run.first <= low <= high <= run.last, "a part of it"
    batch = _batch(run)
    versions = batch.column("version")
    bounds = _uint64(memoryview(array("Q", (low, high))))
    kept = pc.and_(pc.greater_equal(versions, bounds[0]), pc.less_equal(versions, bounds[1]))
    return _run(batch.filter(kept), low, high)


def older_to_merge(sizes: Sequence[int], size: int) -> int:
    """Return how many of the preceding runs are merged with a new run of `size` entries. `sizes` are their sizes,
    oldest first.

    A run is merged when it has at most twice as many entries as the runs merged so far. So an entry is rewritten only
    into a run at least half as large again as its last one, O(log n) times in all, and the runs that stay double in
    size from new to old.
    """
    count = 0
    for older in reversed(sizes):
        if older > 2 * (size + 1) or older + size > ENTRIES_MAX:
            break
        size += older
        count += 1
    return count


# --- bytes -----------------------------------------------------------------------------------------


def _crc(metadata: Mapping[bytes, bytes], views: Iterable[memoryview]) -> bytes:
    """Compute the CRC of the metadata, then of the fingerprints, then of the versions."""
    said = (_REVISION, _CATALOG, _FIRST, _LAST, _COMMIT)
    crc = zlib.crc32(b"\n".join(metadata.get(name, b"") for name in said))
    for view in views:
        crc = zlib.crc32(view, crc)
    return b"%08x" % crc


def encode_run(run: Run, *, catalog_id: str, commit_id: str) -> bytes:
    """Encode a run as one Arrow IPC file with one record batch and no compression. Equal runs give equal bytes."""
    assert len(run) <= ENTRIES_MAX, "a stored run is bounded"
    metadata = {
        _REVISION: b"%d" % REVISION,
        _CATALOG: catalog_id.encode(),
        _FIRST: b"%d" % run.first,
        _LAST: b"%d" % run.last,
        _COMMIT: commit_id.encode(),
    }
    metadata[_CRC] = _crc(metadata, (run.fingerprints, run.versions))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA.with_metadata(metadata)) as writer:
        writer.write_batch(_batch(run))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_run(data: bytes | memoryview, path: str, *, catalog_id: str) -> Run:
    """Check and decode the bytes of a run. The views of the run point into `data`.

    Raises Corrupt (`corrupt_index`) for bytes that are not a whole run of this catalog, and InvalidInput
    (`newer_format`) for a later revision. The caller must still check that the run belongs to the stored history.
    """
    try:
        return _decode(data, path, catalog_id)
    except Malformed as error:
        raise run_error(path, str(error)) from error
    except struct.error as error:
        raise run_error(path, "an offset leads outside the file") from error


def run_error(path: str, reason: str) -> Corrupt:
    return Corrupt(
        f"index run {path}: {reason}",
        kind="corrupt_index",
        path=path,
        hint="delete the run; it only saves time, and a daemon writes another",
    )


def _decode(data: bytes | memoryview, path: str, catalog_id: str) -> Run:
    if len(data) > SIZE_BYTES_MAX:
        raise Malformed(f"{len(data)} bytes, {SIZE_BYTES_MAX} at most")
    rows = rows_claimed(data)
    if not 0 <= rows <= min(ENTRIES_MAX, len(data) // 16):
        raise Malformed(f"claims {rows} rows, which it cannot hold")
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        metadata: Mapping[bytes, bytes] = reader.schema.metadata or {}
        revision = metadata.get(_REVISION, b"")
        if _DECIMAL.fullmatch(revision) and int(revision) > REVISION:
            raise InvalidInput(
                f"index run {path} has revision {int(revision)}, this release reads {REVISION}",
                kind="newer_format",
                path=path,
            )
        if revision != b"%d" % REVISION or not reader.schema.equals(SCHEMA):
            raise Malformed("it does not have the columns of an index run")
        batch = reader.get_batch(0)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, EOFError) as error:
        raise Malformed(f"it is not a valid Arrow file: {str(error)[:200]}") from error
    if batch.num_rows != rows or any(column.null_count or column.offset for column in batch.columns):
        raise Malformed("the header contradicts itself, or there are nulls")
    return _check_batch(batch, metadata, path, catalog_id)


def _check_batch(batch: pa.RecordBatch, metadata: Mapping[bytes, bytes], path: str, catalog_id: str) -> Run:
    bounds = [metadata.get(name, b"") for name in (_FIRST, _LAST)]
    if not all(_DECIMAL.fullmatch(bound) for bound in bounds):
        raise Malformed("it does not say which versions it covers")
    first, last = (int(bound) for bound in bounds)
    try:
        commit_id = metadata.get(_COMMIT, b"").decode()
    except UnicodeDecodeError:
        raise Malformed("its commit id is not UTF-8") from None
    run = _run(batch, first, last, commit_id)
    if metadata.get(_CRC) != _crc(metadata, (run.fingerprints, run.versions)):
        raise Malformed("the checksum differs")
    if metadata.get(_CATALOG) != catalog_id.encode():
        raise Malformed("it is of another catalog")
    if not first <= last < fmt.VERSION_MAX_EXCLUSIVE or not commit_id or last_version(path) != last:
        raise Malformed("the versions that it claims are impossible")
    if batch.num_rows:
        fingerprints, versions = batch.columns
        extremes = pc.min_max(versions).as_py()
        if extremes["min"] < first or extremes["max"] > last:
            raise Malformed("an entry names a version outside its bounds")
        if not pc.all(pc.less_equal(fingerprints[:-1], fingerprints[1:]), min_count=0).as_py():
            raise Malformed("the fingerprints do not ascend")
    return run


# --- paths -----------------------------------------------------------------------------------------

FOLDER = "checkpoint/"
_PATH = re.compile(
    r"checkpoint/([01]{32}|[01]{64})-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"\.index\.arrow"
)


def run_path(last: int, digits: int, uuid4: str) -> str:
    return f"{FOLDER}{fmt.version_file(last, digits).removeprefix('vn/')}-{uuid4}.index.arrow"


def last_version(path: str) -> int | None:
    """Return the last version in a run's path, or None when the path is not a run's."""
    match = _PATH.fullmatch(path)
    return None if match is None else int(match.group(1)[::-1], 2)


# --- coverage --------------------------------------------------------------------------------------


class Part(msgspec.Struct, frozen=True):
    """A range of versions, both ends included."""

    first: int
    last: int


def gaps(parts: Iterable[Run | Gathering | Part], low: int, high: int) -> list[Part]:
    """Return the ranges of [low, high] that the parts do not cover, ascending."""
    found: list[Part] = []
    position = low
    for part in sorted(parts, key=lambda part: part.first):
        if part.last < position or part.last < part.first:
            continue
        if part.first > high:
            break
        if part.first > position:
            found.append(Part(position, part.first - 1))
        position = part.last + 1
    if position <= high:
        found.append(Part(position, high))
    return found


def superfluous_runs(runs: Mapping[str, Run], oldest: int) -> set[str]:
    """Return the stored runs that are not needed: another run covers the same versions, or all their versions have
    expired.

    Of runs that cover the same versions, the first by path stays. So processes that decide concurrently, even with
    different listings, all keep the runs that no other run covers.
    """
    gone: set[str] = set()
    reach = -1
    for path, run in sorted(runs.items(), key=lambda item: (item[1].first, -item[1].last, item[0])):
        if run.last <= reach or run.last < oldest:
            gone.add(path)
        reach = max(reach, run.last)
    return gone
