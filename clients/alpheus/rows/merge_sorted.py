"""Read rows in a table's sort order by merging its sorted files, without sorting all rows.

The merge opens a file when it reaches the lowest value that the file's statistics allow. So files of different ranges,
as compaction leaves them, are read one after the other. Unsorted files are sorted in pieces first. Rows that do not fit
into memory wait on disk, in the folder for temporary files (`TMPDIR`), and are merged from there. The temporary files
have no names: nothing of them remains, however a read or its process ends, and a forked process does not remove them.

Each step of the merge sorts, by Arrow, the rows that are certain to precede all others: those up to the lowest one
among the last known rows of the files.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import itertools
import os
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from alpheus.rows.file_reader import FileReader, corrupt
from alpheus.rows.partition_sort import PLACE, Order, OrderedRow, compare_keys, lowest_key
from alpheus.rows.plan import Plan
from alpheus_journal.errors import AlpheusError, Corrupt, Exhausted, InvalidInput, Unavailable
from alpheus_journal.model.definitions import Column

MEMORY_BYTES_MAX = 256 << 20
"""Limit for waiting data: stored files, their batches, the buffers of their readers, and sorted rows. The merge
measures them after each batch that it reads. Above the limit the largest parts go to disk, until the others are within
it.

Data in work comes on top: one stored file; its current batch and the one before, each of up to 65,536 rows of any
width, and twice where rows are left out; three quarters of the limit for rows that are being sorted or returned. Of
each part that waits on disk, memory holds a piece of `PIECE_BYTES_MAX`, or one larger row."""
SMALL_FILE_BYTES_MAX = 1 << 20
"""Smaller files are sorted together, although each is sorted, because the cost of a merge grows with the number of its
parts."""
RUNS_MAX = 64
"""The number of parts that are merged at a time. More parts are first merged into one."""
PIECE_BYTES_MAX = 1 << 20
"""Size of a piece on disk. When all parts of a merge are on disk, their pieces take a quarter of the memory."""
BATCH_ROWS_MAX = 1 << 16

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)
_PLACES_IN_FILE = 1 << 20

MergeInput: TypeAlias = int | pa.RecordBatch
"""The number of the plan's file that is needed next, or rows."""


class _Reading:
    """The memory of a file that is being read, without the rows that it gave."""

    def __init__(self, size: int, is_whole: bool) -> None:
        self._size = size
        self._is_whole = is_whole
        self.held = 0
        """Bytes that the reader holds; see `FileReader.rows`."""

    def held_with(self, rows: int) -> int:
        """The memory together with `rows` bytes of rows. These are the reader's own rows where it leaves none out."""
        return self._size + (max(self.held, rows) if self._is_whole else self.held + rows)


class _SortedRun:
    """Sorted rows, read one batch at a time. Its share of memory limits the rows of a batch that are at hand."""

    def __init__(
        self,
        order: Order,
        batches: Iterator[pa.RecordBatch],
        *,
        level: int = 0,
        reading: _Reading | None = None,
        is_on_disk: bool = False,
    ) -> None:
        self._order = order
        self._batches = batches
        self._reading = reading
        self._batch: pa.RecordBatch | None = None
        self._start = self._end = self._size = 0  # of the rows at hand
        self.level = level
        """The number of times that its rows were merged already."""
        self.is_on_disk = is_on_disk
        self.held = 0
        """Bytes in memory. Batches count whole, also where only their last rows are left."""
        self.last: OrderedRow = ()
        """The last row at hand."""

    @property
    def is_used_up(self) -> bool:
        """Whether the next rows take another read."""
        return self._batch is None or self._start == self._batch.num_rows

    def fill(self, share: int) -> bool:
        """Make rows available, `share` bytes of them or one row. Return False at the end."""
        while self.is_used_up:
            self._batch = None  # freed before the next is read
            self._start = self._end = 0
            self._batch = next(self._batches, None)
            if self._batch is None:
                self.held = 0
                return False
            size = self._batch.get_total_buffer_size()
            self.held = size if self._reading is None else self._reading.held_with(size)
        assert self._batch is not None
        if self._start == self._end or self._size > share:
            rows = self._batch.slice(self._start)
            count = _count_within(rows, share)
            self._size = rows.slice(0, count).nbytes
            self._end = self._start + count
            self.last = self._order.row(self._batch, self._end - 1)
        return True

    def take(self, bound: OrderedRow) -> pa.RecordBatch:
        """Take the rows up to `bound`."""
        assert self._batch is not None
        rows = self._batch.slice(self._start, self._end - self._start)
        if self._order.compare(self.last, bound) > 0:
            rows = rows.slice(0, self._order.count_up_to(rows, bound))
        self._start += rows.num_rows
        return rows

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield all remaining rows. The run holds none of them any more."""
        rest = [] if self._batch is None else [self._batch.slice(self._start)]
        self._batch = None
        while rest:
            yield rest.pop()
        yield from self._batches

    def continue_from_disk(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Continue with the rows that `rest` gave, from disk."""
        self._batches = batches
        self._batch = self._reading = None
        self.is_on_disk = True


def _count_within(rows: pa.RecordBatch, size: int) -> int:
    """The number of first rows that fit into `size` bytes, at least one."""
    low: int = 1
    high: int = rows.num_rows
    if rows.nbytes <= size:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if rows.slice(0, middle).nbytes <= size:
            low = middle
        else:
            high = middle - 1
    return low


def _cut(rows: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Cut rows into parts of at most `size` bytes, or of one row."""
    start = 0
    while start < rows.num_rows:
        part = rows.slice(start)
        part = part.slice(0, _count_within(part, size))
        start += part.num_rows
        yield part


class _DiskFile:
    """Batches on disk, in a file without a name. Reads go by offset, and writes are unbuffered, so that a forked
    process, which shares the file, does not disturb its parent. Raises OSError when the folder fails."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="alpheus-merge-", buffering=0)  # noqa: SIM115
        self._places: list[tuple[int, int]] = []
        self.size = 0

    def write(self, rows: pa.RecordBatch) -> None:
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
            writer.write_batch(rows)
        data = memoryview(sink.getvalue())
        self._places.append((self.size, len(data)))
        self.size += len(data)
        while data:
            data = data[self._file.write(data) :]

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield all written batches, then delete the file."""
        for place, size in self._places:
            data = os.pread(self._file.fileno(), size, place)
            if len(data) != size:
                raise OSError(errno.EIO, "a temporary file became shorter after it was written")
            yield pa.ipc.open_stream(data).read_next_batch()
        self.close()

    def close(self) -> None:
        self._file.close()


def _disk_error(error: OSError, written: int) -> AlpheusError:
    reason = error.strerror or str(error)
    try:
        folder = tempfile.gettempdir()
    except OSError:  # no folder can be used, as `reason` says
        folder = "the folder for temporary files"
    if error.errno in _NO_ROOM:
        return Exhausted(
            f"sorting needs more space than {folder} has: {reason}, {written:,} bytes were written",
            kind="no_space",
            hint="set TMPDIR to a larger folder, read fewer columns or rows, or compact the table first",
        )
    what = f"rows that wait to be sorted cannot be stored in {folder}: {reason}"
    if error.errno in _NO_FOLDER:
        return InvalidInput(
            what, kind="bad_configuration", hint="set TMPDIR to an existing folder that can be written"
        )
    return Unavailable(what, hint="check that folder, or set TMPDIR to another one")


class _Stopped(Exception):
    """Ends the steps after `Merge.stop`. Never leaves `Merge`."""


class Merge:
    """The rows that a plan selects, in the sort order of its table, equal rows in the order of the files. Blocks, so it
    runs in a thread, one step at a time.

    `steps` yields the number of a file that it needs, and is sent the file's bytes; or it yields rows, with the columns
    of `columns`. `memory_max`: see `MEMORY_BYTES_MAX`. Raises

    - Corrupt (`corrupt_manifest`), which names the file, for a file that is not in the order that it claims;
    - Exhausted (`no_space`) when the folder for temporary files is full;
    - InvalidInput (`bad_configuration`) when this folder does not exist or cannot be written;
    - Unavailable when the folder fails otherwise.
    """

    def __init__(
        self,
        plan: Plan,
        columns: Sequence[Column],
        *,
        memory_max: int = MEMORY_BYTES_MAX,
        small_max: int = SMALL_FILE_BYTES_MAX,
        runs_max: int = RUNS_MAX,
        piece_max: int = PIECE_BYTES_MAX,
    ) -> None:
        self._plan = plan
        self.order = Order(plan.table)
        wanted = {column.id for column in columns}
        added = [column for column in self.order.keys if column.id not in wanted]
        self._reader = FileReader(plan, [*columns, *added])
        places = {column.id: index for index, column in enumerate(self._reader.columns)}
        self._key_places = [places[column.id] for column in self.order.keys]
        self._columns_count = len(columns)
        self._memory_max = memory_max
        self._small_max = small_max
        self._runs_max = runs_max
        self._piece_max = piece_max
        self._runs: list[_SortedRun] = []
        self._merging: list[_SortedRun] = []  # runs that are being merged into one
        self._gathered: list[pa.RecordBatch] = []  # batches to sort together
        self._gathered_bytes = 0
        self._files: list[_DiskFile] = []
        self._is_stopped = False
        self._last: OrderedRow | None = None
        self.spilled_bytes = 0
        """Bytes written to disk."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self._reader.schema.field(index) for index in range(self._columns_count)])

    @property
    def held(self) -> int:
        """Bytes of rows that wait in memory."""
        return self._gathered_bytes + sum(run.held for run in itertools.chain(self._runs, self._merging))

    def stop(self) -> None:
        """Make the running step end soon, as the last one. May be called from any thread."""
        self._is_stopped = True

    def steps(self) -> Generator[MergeInput, bytes, None]:
        try:
            yield from self._merge_files()
        except _Stopped:
            return
        except OSError as error:  # only temporary files raise it here
            raise _disk_error(error, self.spilled_bytes) from error
        finally:
            for waiting in (self._runs, self._merging, self._gathered):
                waiting.clear()
            while self._files:
                self._files.pop().close()

    def _merge_files(self) -> Generator[MergeInput, bytes, None]:
        field, column = self.order.fields[0], self.order.keys[0]
        lows = [lowest_key(field, column, planned) for planned in self._plan.files]

        def in_order(one: int, other: int) -> int:
            mine, its = lows[one], lows[other]
            if mine is None or its is None:
                return (mine is not None) - (its is not None)
            return compare_keys(field, mine[0], its[0])

        waiting = sorted(range(len(lows)), key=functools.cmp_to_key(in_order))
        waiting.reverse()  # the next file is the last item

        def is_due(number: int, bound: OrderedRow | None) -> bool:
            low = lows[number]
            return bound is None or low is None or compare_keys(field, low[0], bound[0]) <= 0

        while True:
            self._fill(self._runs)
            bound = self._bound(self._runs)
            due = []
            while waiting and is_due(waiting[-1], bound):
                due.append(waiting.pop())
                if bound is None:  # then all files that may begin as low as the first are due
                    low = lows[due[0]]
                    bound = None if low is None else (low[0],)
                    if bound is None and waiting and lows[waiting[-1]] is not None:
                        break
            if due:
                yield from self._open(sorted(due))
                continue
            if bound is None:
                return
            yield from self._emit(bound)

    def _bound(self, runs: Iterable[_SortedRun]) -> OrderedRow | None:
        """The row up to which all rows are at hand."""
        lasts = [run.last for run in runs]
        return min(lasts, key=functools.cmp_to_key(self.order.compare)) if lasts else None

    def _emit(self, bound: OrderedRow) -> Iterator[pa.RecordBatch]:
        for rows in self._take(self._runs, bound):
            first, last = self.order.row(rows, 0), self.order.row(rows, rows.num_rows - 1)
            if self._last is not None and self.order.compare(first, self._last) < 0:
                raise self._disorder(first[-1] // _PLACES_IN_FILE)
            self._last = last
            yield pa.RecordBatch.from_arrays(rows.columns[: self._columns_count], schema=self.schema)

    def _take(self, runs: Sequence[_SortedRun], bound: OrderedRow) -> Iterator[pa.RecordBatch]:
        parts = [part for part in (run.take(bound) for run in runs) if part.num_rows]
        if len(parts) == 1:
            yield parts[0]
        elif parts:
            rows = self.order.sort(pa.Table.from_batches(parts))
            yield from rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS_MAX)

    # -- opening files

    def _open(self, numbers: Sequence[int]) -> Generator[int, bytes, None]:
        """Make runs of files. Small files, and files that are not sorted, are sorted together."""
        for number in numbers:
            planned = self._plan.files[number]
            data = yield number
            reading = _Reading(len(data), planned.is_whole)
            rows = self._rows(number, data, reading)
            del data  # the reader holds it
            if planned.file.sort_order_id == 1 and planned.file.size_bytes > self._small_max:
                checked = map(functools.partial(self._check_sorted, number), rows)
                self._add(_SortedRun(self.order, checked, reading=reading))
                del rows, checked
                continue
            for batch in rows:
                size = batch.get_total_buffer_size()  # counts what a slice keeps alive
                if self._gathered_bytes + size > self._memory_max // 4:
                    self._add_gathered()
                self._gathered.append(batch)
                self._gathered_bytes += size
                del batch
                if self._gathered_bytes > self._memory_max // 4:
                    self._add_gathered()
                self._make_room(self._runs)
            del rows
        self._add_gathered()

    def _rows(self, number: int, data: bytes, reading: _Reading) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, with the sort keys behind the columns, and the place of each row behind the keys.
        Yielded rows are not kept."""

        def report_held(held: int) -> None:
            reading.held = held

        batches = self._reader.rows(data, self._plan.files[number], report_held)
        cut = functools.partial(_cut, size=self._share(1))
        parts = itertools.chain.from_iterable(map(cut, batches))
        return map(self._with_keys, parts, itertools.count(number * _PLACES_IN_FILE))

    def _with_keys(self, rows: pa.RecordBatch, place: int) -> pa.RecordBatch:
        self._check_stopped()
        keys = [rows.column(index) for index in self._key_places]
        return pa.RecordBatch.from_arrays(  # the places keep the parts of one file in order
            [*rows.columns, *keys, pa.repeat(place, rows.num_rows)],
            names=[*rows.schema.names, *(f"{PLACE}{n}" for n in range(len(keys))), PLACE],
        )

    def _check_sorted(self, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Refuse a batch that is not sorted. `_emit` checks that it follows the batch before."""
        if not self.order.is_sorted(rows):
            raise self._disorder(number)
        return rows

    def _disorder(self, number: int) -> Corrupt:
        path = self._plan.files[number].file.path
        return corrupt(path, "its rows are not in the order that the file claims, or exceed its bounds")

    def _add_gathered(self) -> None:
        if self._gathered:
            rows = self.order.sort(pa.Table.from_batches(self._gathered)).combine_chunks()
            self._gathered.clear()
            self._gathered_bytes = 0
            self._add(_SortedRun(self.order, iter(rows.to_batches(max_chunksize=BATCH_ROWS_MAX))))

    def _add(self, run: _SortedRun) -> None:
        if not run.fill(self._share(1)):
            return
        self._runs.append(run)
        if self.held > self._memory_max:
            self._move_to_disk(run)
        level = run.level
        while len(same := [other for other in self._runs if other.level == level]) > self._runs_max:
            self._runs = [other for other in self._runs if other.level != level]
            self._merging = same
            level += 1
            merged = self._write_to_disk(self._merge_runs(self._merging))
            self._runs.append(_SortedRun(self.order, merged, level=level, is_on_disk=True))

    def _merge_runs(self, runs: list[_SortedRun]) -> Iterator[pa.RecordBatch]:
        while True:
            self._fill(runs)
            bound = self._bound(runs)
            if bound is None:
                return
            yield from self._take(runs, bound)

    # -- what does not fit into memory

    def _share(self, count: int) -> int:
        """Bytes of rows that each of `count` runs may have at hand, so that all of them can be sorted together."""
        return max(self._memory_max // (4 * count), self._piece_max)

    def _fill(self, runs: list[_SortedRun]) -> None:
        """Make rows available in all runs, and remove runs that are at their end."""
        for run in tuple(runs):
            is_read = run.is_used_up
            if not run.fill(self._share(len(runs))):
                runs.remove(run)
            elif is_read:
                self._make_room(runs)

    def _make_room(self, runs: Sequence[_SortedRun]) -> None:
        """Move runs to disk, the largest first, while more bytes wait in memory than the limit allows."""
        while self.held > self._memory_max:
            in_memory = [run for run in runs if not run.is_on_disk and run.held]
            if not in_memory:
                return
            self._move_to_disk(max(in_memory, key=lambda run: run.held))

    def _move_to_disk(self, run: _SortedRun) -> None:
        run.continue_from_disk(self._write_to_disk(run.rest()))
        run.fill(self._share(len(self._runs) + len(self._merging)))

    def _write_to_disk(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        file = _DiskFile()
        self._files.append(file)
        for batch in batches:
            for part in _cut(batch, self._piece_max):
                self._check_stopped()
                file.write(part)
                del part
            del batch  # freed before the next is read
        self.spilled_bytes += file.size
        return file.read()

    def _check_stopped(self) -> None:
        if self._is_stopped:
            raise _Stopped


class ThreadedMerge:
    """Runs each step of a merge in a thread. `close` may be called from any thread, also while a step runs."""

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._steps = merge.steps()
        self._turn = threading.Lock()
        self._is_closed = False

    async def advance(self, data: bytes | None) -> MergeInput | None:
        """Run the next step; return None after the last one. When cancelled, wait until the thread has left the
        step."""
        step = asyncio.get_running_loop().run_in_executor(None, self._advance, data)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            self._merge.stop()
            await asyncio.wait([step])
            raise

    def _advance(self, data: bytes | None) -> MergeInput | None:
        try:
            with self._turn:
                if self._is_closed:
                    return None
                return next(self._steps) if data is None else self._steps.send(data)
        except StopIteration:
            return None
        finally:
            if self._is_closed:  # closed meanwhile, by a caller that could not wait
                self.close()

    def close(self) -> None:
        self._is_closed = True
        self._merge.stop()
        if self._turn.acquire(blocking=False):
            try:
                self._steps.close()
            finally:
                self._turn.release()
