"""Rows in a table's sort order, without sorting the whole: its sorted files are merged as they are read.

Files are opened when the merge comes to the lowest value that their statistics allow, so that files of different
ranges, as compaction leaves them, are read one after the other. What is not sorted is sorted in pieces first. What does
not fit into memory waits on disk, in the folder for temporary files (`TMPDIR`), and is merged from there. Those files
have no names: nothing of them stays, however a read or its process ends, and a forked copy of it takes nothing away.

The merge itself is Arrow's sort of so many rows as are certain to come before all others: up to the lowest of the last
rows that are known of any file.
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
"""Of what waits for the rows of others: files as they are stored, what is read of them and what their readers keep, and
rows that were sorted. It is report_held whenever a batch was read; then the largest go to disk, until the others are
within it.

On top comes what is worked on: one file as it is stored; the batch of it that is read and the one before, each of up to
65,536 rows, however wide these are, and twice where rows are left out; three quarters of the limit for what is sorted
or handed on. Of each part that waits on disk a piece of `PIECE_BYTES_MAX` is in memory, or one row that is larger."""
SMALL_FILE_BYTES_MAX = 1 << 20
"""Smaller files are sorted together though each is sorted: what a merge costs goes by the number of its parts."""
RUNS_MAX = 64
"""Parts that are merged at once; more become one before."""
PIECE_BYTES_MAX = 1 << 20
"""With all parts of a merge on disk, their pieces take a quarter of the memory."""
BATCH_ROWS_MAX = 1 << 16

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)
_PLACES_IN_FILE = 1 << 20

MergeInput: TypeAlias = int | pa.RecordBatch
"""Which of the plan's files is needed next, or rows."""


class _Reading:
    """What is in memory of a file that is read, without the rows that it gave."""

    def __init__(self, size: int, is_whole: bool) -> None:
        self._size = size
        self._is_whole = is_whole
        self.held = 0
        """By its reader; see `FileReader.rows`."""

    def held_with(self, rows: int) -> int:
        """With so many bytes of rows, which are the reader's own where it leaves none out."""
        return self._size + (max(self.held, rows) if self._is_whole else self.held + rows)


class _SortedRun:
    """Sorted rows, read a batch at a time. Of a batch, so many rows are at hand as its share of memory allows."""

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
        self._start = self._end = self._size = 0  # of what is at hand
        self.level = level
        """How often its rows were merged already."""
        self.is_on_disk = is_on_disk
        self.held = 0
        """In memory: whole batches, also where only their last rows are left."""
        self.last: OrderedRow = ()
        """Of the rows at hand."""

    @property
    def is_used_up(self) -> bool:
        """There are no rows but by reading on."""
        return self._batch is None or self._start == self._batch.num_rows

    def fill(self, share: int) -> bool:
        """Whether it has rows at hand, which are read when it has not: one, or so many as have `share` bytes."""
        while self.is_used_up:
            self._batch = None  # let go of before the next is read
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
        """Its rows up to `bound`."""
        assert self._batch is not None
        rows = self._batch.slice(self._start, self._end - self._start)
        if self._order.compare(self.last, bound) > 0:
            rows = rows.slice(0, self._order.count_up_to(rows, bound))
        self._start += rows.num_rows
        return rows

    def rest(self) -> Iterator[pa.RecordBatch]:
        """All rows from the next on; it holds none of them any more."""
        rest = [] if self._batch is None else [self._batch.slice(self._start)]
        self._batch = None
        while rest:
            yield rest.pop()
        yield from self._batches

    def continue_from_disk(self, batches: Iterator[pa.RecordBatch]) -> None:
        """With what `rest` gave."""
        self._batches = batches
        self._batch = self._reading = None
        self.is_on_disk = True


def _count_within(rows: pa.RecordBatch, size: int) -> int:
    """How many of the first rows have so many bytes; one at least."""
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
    """In parts of so many bytes, or one row."""
    start = 0
    while start < rows.num_rows:
        part = rows.slice(start)
        part = part.slice(0, _count_within(part, size))
        start += part.num_rows
        yield part


class _DiskFile:
    """Batches on disk, in a file without a name. It is read by places and written without a buffer, so that a forked
    process, which shares it, does not disturb its parent. OSError for what the folder cannot do."""

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
        """All that was written; it is gone after the last."""
        for place, size in self._places:
            data = os.pread(self._file.fileno(), size, place)
            if len(data) != size:
                raise OSError(errno.EIO, "a file that was written is shorter now")
            yield pa.ipc.open_stream(data).read_next_batch()
        self.close()

    def close(self) -> None:
        self._file.close()


def _disk_error(error: OSError, written: int) -> AlpheusError:
    reason = error.strerror or str(error)
    try:
        folder = tempfile.gettempdir()
    except OSError:  # none that can be used, as `reason` says
        folder = "the folder for temporary files"
    if error.errno in _NO_ROOM:
        return Exhausted(
            f"sorting needs more room than {folder} has: {reason}, {written:,} bytes were written",
            kind="no_space",
            hint="set TMPDIR to a larger place, ask for fewer columns or rows, or compact the table first",
        )
    what = f"rows that wait to be sorted cannot be kept in {folder}: {reason}"
    if error.errno in _NO_FOLDER:
        return InvalidInput(
            what, kind="bad_configuration", hint="set TMPDIR to a folder that is there and can be written to"
        )
    return Unavailable(what, hint="see what is wrong there, or set TMPDIR to another folder")


class _Stopped(Exception):
    """By `Merge.stop`; seen by nobody but it."""


class Merge:
    """The rows that a plan means, in the order of its table; equal ones in the order of the files. Blocks: for a
    thread, one at a time.

    `steps` asks for a file by its number, and is sent its bytes; else it gives rows, with the columns of `columns`.
    Raises Corrupt (`corrupt_manifest`) naming a file that is not in the order that it claims; for the folder for
    temporary files Exhausted (`no_space`) when it is full, InvalidInput (`bad_configuration`) when it is not there or
    not to be written to, Unavailable when it fails otherwise. `memory_max`: see `MEMORY_BYTES_MAX`.
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
        self._merging: list[_SortedRun] = []  # those that become one
        self._gathered: list[pa.RecordBatch] = []  # to be sorted together
        self._gathered_bytes = 0
        self._files: list[_DiskFile] = []
        self._is_stopped = False
        self._last: OrderedRow | None = None
        self.spilled_bytes = 0
        """Written to disk."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self._reader.schema.field(index) for index in range(self._columns_count)])

    @property
    def held(self) -> int:
        """What waits in memory, in bytes."""
        return self._gathered_bytes + sum(run.held for run in itertools.chain(self._runs, self._merging))

    def stop(self) -> None:
        """From any thread: a step that is under way ends soon, and is the last."""
        self._is_stopped = True

    def steps(self) -> Generator[MergeInput, bytes, None]:
        try:
            yield from self._merge_files()
        except _Stopped:
            return
        except OSError as error:  # of data files none comes here
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
        waiting.reverse()  # the next one last

        def is_due(number: int, bound: OrderedRow | None) -> bool:
            low = lows[number]
            return bound is None or low is None or compare_keys(field, low[0], bound[0]) <= 0

        while True:
            self._fill(self._runs)
            bound = self._bound(self._runs)
            due = []
            while waiting and is_due(waiting[-1], bound):
                due.append(waiting.pop())
                if bound is None:  # and all that may begin as low as the first
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
        """All rows up to it are at hand."""
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
        """Runs of files; of small ones, and of those that are not sorted, together."""
        for number in numbers:
            planned = self._plan.files[number]
            data = yield number
            reading = _Reading(len(data), planned.is_whole)
            rows = self._rows(number, data, reading)
            del data  # it is the reader's
            if planned.file.sort_order_id == 1 and planned.file.size_bytes > self._small_max:
                checked = map(functools.partial(self._check_sorted, number), rows)
                self._add(_SortedRun(self.order, checked, reading=reading))
                del rows, checked
                continue
            for batch in rows:
                size = batch.get_total_buffer_size()  # of a slice: of what it keeps alive
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
        """With the sort keys behind the columns, and then where each row came from. What is given is not kept."""

        def report_held(held: int) -> None:
            reading.held = held

        batches = self._reader.rows(data, self._plan.files[number], report_held)
        cut = functools.partial(_cut, size=self._share(1))
        parts = itertools.chain.from_iterable(map(cut, batches))
        return map(self._with_keys, parts, itertools.count(number * _PLACES_IN_FILE))

    def _with_keys(self, rows: pa.RecordBatch, place: int) -> pa.RecordBatch:
        self._check_stopped()
        keys = [rows.column(index) for index in self._key_places]
        return pa.RecordBatch.from_arrays(  # parts of one file do not mix: each has its place
            [*rows.columns, *keys, pa.repeat(place, rows.num_rows)],
            names=[*rows.schema.names, *(f"{PLACE}{n}" for n in range(len(keys))), PLACE],
        )

    def _check_sorted(self, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Sorted in itself; whether it follows the one before is seen where both are handed on."""
        if not self.order.is_sorted(rows):
            raise self._disorder(number)
        return rows

    def _disorder(self, number: int) -> Corrupt:
        path = self._plan.files[number].file.path
        return corrupt(path, "its rows are not in the order that it claims, or beyond its bounds")

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
        """Of memory for the rows that one of so many has at hand, so that all together can be sorted."""
        return max(self._memory_max // (4 * count), self._piece_max)

    def _fill(self, runs: list[_SortedRun]) -> None:
        """All have rows at hand; those that are at their end are left out."""
        for run in tuple(runs):
            is_read = run.is_used_up
            if not run.fill(self._share(len(runs))):
                runs.remove(run)
            elif is_read:
                self._make_room(runs)

    def _make_room(self, runs: Sequence[_SortedRun]) -> None:
        """Some of `runs` go to disk, the largest first, while more waits in memory than may."""
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
            del batch  # before the next is read
        self.spilled_bytes += file.size
        return file.read()

    def _check_stopped(self) -> None:
        if self._is_stopped:
            raise _Stopped


class ThreadedMerge:
    """The steps of a merge, each in a thread. `close`: from any thread, also while a step is under way."""

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._steps = merge.steps()
        self._turn = threading.Lock()
        self._is_closed = False

    async def advance(self, data: bytes | None) -> MergeInput | None:
        """The next step; None: there is none. Cancelled, it waits until the thread is out of it."""
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
            if self._is_closed:  # meanwhile, by someone who could not wait
                self.close()

    def close(self) -> None:
        self._is_closed = True
        self._merge.stop()
        if self._turn.acquire(blocking=False):
            try:
                self._steps.close()
            finally:
                self._turn.release()
