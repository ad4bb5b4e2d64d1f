"""Rows in a table's sort order, without sorting the whole: its sorted files are merged as they are read.

Files are opened when the merge comes to the lowest value that their statistics allow, so that files of different
ranges, as compaction leaves them, are read one after the other. What is not sorted is sorted in pieces first. What does
not fit into memory waits in files of a temporary folder (`TMPDIR`), and is merged from there.

The merge itself is Arrow's sort of so many rows as are certain to come before all others: up to the lowest of the last
rows that are known of any file.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import tempfile
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from alpheus.arranging import sort_indices
from alpheus.file_reader import FileReader, corrupt, read_data_file
from alpheus.plan import Plan, PlannedFile
from alpheus.scan import AsyncScan
from alpheus_journal.columns import decode_bound
from alpheus_journal.errors import Corrupt, Exhausted, InvalidInput
from alpheus_journal.objects import Column, SortField, TableDef
from alpheus_journal.predicate import FLOATS

MEMORY_BYTES_MAX = 256 << 20
"""Files as they are stored and rows that wait for others, together, or one file when it is larger. What is being sorted
or handed on takes as much again."""
SMALL_FILE_BYTES_MAX = 1 << 20
"""Smaller files are sorted together though each is sorted: what a merge costs goes by the number of its parts."""
RUNS_MAX = 64
"""Parts that are merged at once; more become one before."""
BATCH_ROWS_MAX = 1 << 16
SPILLED_BATCH_BYTES_MAX = 1 << 20

_PLACE = "alpheus_place"
_PLACES_IN_FILE = 1 << 20

Step: TypeAlias = int | pa.RecordBatch
"""Which of the plan's files is needed next, or rows."""


class _Nan:
    """Above all numbers."""


_NAN = _Nan()
_Row = tuple[Any, ...]
"""The sort keys of a row: None for NULL, `_NAN`, dates and times as numbers."""


class Order:
    """How rows compare. The last key is where a row came from, so that no two are equal."""

    def __init__(self, table: TableDef) -> None:
        if not table.sort_order:
            raise InvalidInput(
                "the table has no sort order",
                hint="create_table(..., sort_by=[...]) gives it one; else sort what was read",
            )
        by_id = {column.id: column for column in table.columns}
        self.keys = tuple(by_id[field.column_id] for field in table.sort_order)
        place = Column(id=0, name=_PLACE, type="INT8", nullable=False)
        self.columns = (*self.keys, place)
        self.fields = (*table.sort_order, SortField(column_id=0, descending=False, nulls_last=True))
        self._ascending = pa.array([], pa.uint64())

    def row(self, rows: pa.RecordBatch, number: int) -> _Row:
        """Of rows whose last columns are those of `columns`."""
        first = rows.num_columns - len(self.columns)
        return tuple(
            _cell(column, rows.column(first + index)[number]) for index, column in enumerate(self.columns)
        )

    def compare(self, one: _Row, other: _Row) -> int:
        for field, mine, its in zip(self.fields, one, other, strict=True):
            found = _compared(field, mine, its)
            if found:
                return found
        return 0

    def count_up_to(self, rows: pa.RecordBatch, bound: _Row) -> int:
        """How many of sorted rows come before a row or are it."""
        low, high = 0, rows.num_rows
        while low < high:
            middle = (low + high) // 2
            if self.compare(self.row(rows, middle), bound) <= 0:
                low = middle + 1
            else:
                high = middle
        return low

    def sorted(self, rows: pa.Table) -> pa.Table:
        return rows.take(self._places(rows))

    def is_sorted(self, rows: pa.RecordBatch) -> bool:
        if rows.num_rows > len(self._ascending):
            self._ascending = pa.array(range(rows.num_rows), pa.uint64())
        places = self._places(pa.Table.from_batches([rows]))
        return bool(places.equals(self._ascending.slice(0, rows.num_rows)))

    def _places(self, rows: pa.Table) -> pa.Array:
        first = rows.num_columns - len(self.columns)
        keys = rows.select(range(first, rows.num_columns)).rename_columns(
            [str(number) for number in range(len(self.columns))]
        )
        return sort_indices(self.fields, self.columns, keys)


def _cell(column: Column, scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    if pa.types.is_temporal(scalar.type):
        return scalar.value
    value = scalar.as_py()
    return _NAN if column.type in FLOATS and value != value else value


def _compared(field: SortField, one: Any, other: Any) -> int:
    if one is None or other is None:
        if one is other:
            return 0
        return 1 if (one is None) == field.nulls_last else -1
    if one is _NAN or other is _NAN:
        one, other = one is _NAN, other is _NAN
    found: int = (one > other) - (one < other)
    return -found if field.descending else found


def _lowest(field: SortField, column: Column, planned: PlannedFile) -> tuple[Any] | None:
    """A value of the first sort key that no row of a file comes before; None: it may have any."""
    file = planned.file
    if column.id not in file.value_counts:
        return None
    if not field.nulls_last and file.null_counts.get(column.id) != 0:
        return None
    if field.descending and column.type in FLOATS and file.nan_counts.get(column.id) != 0:
        return None
    bounds = file.upper_bounds if field.descending else file.lower_bounds
    try:
        return (decode_bound(column, bounds[column.id]),)
    except (KeyError, ValueError):
        return None


class _Run:
    """Sorted rows, a batch at a time."""

    def __init__(self, order: Order, batches: Iterator[pa.RecordBatch], size: int, level: int = 0) -> None:
        self._order = order
        self._batches = batches
        self.size = size
        """In memory, but for the batch that it stands on."""
        self.level = level
        """How often its rows were merged already."""
        self.rows: pa.RecordBatch | None = None
        self.last: _Row = ()
        """Of `rows`."""

    def fill(self) -> bool:
        """Whether it has rows at hand, which are read when it has not."""
        while self.rows is None or not self.rows.num_rows:
            self.rows = next(self._batches, None)
            if self.rows is None:
                return False
            if self.rows.num_rows:
                self.last = self._order.row(self.rows, self.rows.num_rows - 1)
        return True

    def take(self, bound: _Row) -> pa.RecordBatch:
        """Its rows up to `bound`."""
        assert self.rows is not None
        count = self.rows.num_rows
        if self._order.compare(self.last, bound) > 0:
            count = self._order.count_up_to(self.rows, bound)
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return taken

    @property
    def held(self) -> int:
        return self.size + (0 if self.rows is None else self.rows.nbytes)

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self.rows is not None and self.rows.num_rows:
            yield self.rows
        yield from self._batches


class Merge:
    """The rows that a plan means, in the order of its table; equal ones in the order of the files. Blocks: for a
    thread, one at a time.

    `steps` asks for a file by its number, and is sent its bytes; else it gives rows, with the columns of `columns`.
    Raises Corrupt (`corrupt_manifest`) naming a file that is not in the order that it claims, and Exhausted
    (`no_space`) when the temporary folder is full.
    """

    def __init__(
        self,
        plan: Plan,
        columns: Sequence[Column],
        *,
        memory_max: int = MEMORY_BYTES_MAX,
        small_max: int = SMALL_FILE_BYTES_MAX,
        runs_max: int = RUNS_MAX,
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
        self._runs: list[_Run] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files_count = 0
        self._last: _Row | None = None
        self.spilled_bytes = 0
        """Written to the temporary folder."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self._reader.schema.field(index) for index in range(self._columns_count)])

    def steps(self) -> Generator[Step, bytes, None]:
        try:
            yield from self._merged()
        except OSError as error:
            if error.errno != errno.ENOSPC and "No space left" not in str(error):
                raise
            raise Exhausted(
                f"sorting needs more room than {tempfile.gettempdir()} has: {self.spilled_bytes:,} bytes were written",
                kind="no_space",
                hint="set TMPDIR to a larger place, ask for fewer columns or rows, or compact the table first",
            ) from None
        finally:
            self._runs.clear()
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

    def _merged(self) -> Generator[Step, bytes, None]:
        field, column = self.order.fields[0], self.order.keys[0]
        lows = [_lowest(field, column, planned) for planned in self._plan.files]

        def in_order(one: int, other: int) -> int:
            mine, its = lows[one], lows[other]
            if mine is None or its is None:
                return (mine is not None) - (its is not None)
            return _compared(field, mine[0], its[0])

        waiting = sorted(range(len(lows)), key=functools.cmp_to_key(in_order))
        waiting.reverse()  # the next one last

        def is_due(number: int, bound: _Row | None) -> bool:
            low = lows[number]
            return bound is None or low is None or _compared(field, low[0], bound[0]) <= 0

        while True:
            self._runs = [run for run in self._runs if run.fill()]
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

    def _bound(self, runs: Iterable[_Run]) -> _Row | None:
        """All rows up to it are at hand."""
        lasts = [run.last for run in runs]
        return min(lasts, key=functools.cmp_to_key(self.order.compare)) if lasts else None

    def _emit(self, bound: _Row) -> Iterator[pa.RecordBatch]:
        for rows in self._taken(self._runs, bound):
            first, last = self.order.row(rows, 0), self.order.row(rows, rows.num_rows - 1)
            if self._last is not None and self.order.compare(first, self._last) < 0:
                raise self._disorder(first[-1] // _PLACES_IN_FILE)
            self._last = last
            yield pa.RecordBatch.from_arrays(rows.columns[: self._columns_count], schema=self.schema)

    def _taken(self, runs: Sequence[_Run], bound: _Row) -> Iterator[pa.RecordBatch]:
        parts = [part for part in (run.take(bound) for run in runs) if part.num_rows]
        if len(parts) == 1:
            yield parts[0]
        elif parts:
            rows = self.order.sorted(pa.Table.from_batches(parts))
            yield from rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS_MAX)

    # -- opening files

    def _open(self, numbers: Sequence[int]) -> Generator[int, bytes, None]:
        """Runs of files; of small ones, and of those that are not sorted, together."""
        gathered: list[pa.RecordBatch] = []
        size = 0
        for number in numbers:
            planned = self._plan.files[number]
            data = yield number
            rows = self._rows(number, data)
            if planned.file.sort_order_id == 1 and planned.file.size_bytes > self._small_max:
                self._add(_Run(self.order, self._checked(number, rows), len(data)))
                continue
            for batch in rows:
                gathered.append(batch)
                size += batch.nbytes
                if size > self._memory_max // 4:
                    self._add_sorted(gathered)
                    gathered, size = [], 0
        self._add_sorted(gathered)

    def _rows(self, number: int, data: bytes) -> Iterator[pa.RecordBatch]:
        """With the sort keys behind the columns, and then where each row came from."""
        place = number * _PLACES_IN_FILE
        for rows in self._reader.rows(data, self._plan.files[number]):
            keys = [rows.column(index) for index in self._key_places]
            yield pa.RecordBatch.from_arrays(
                [*rows.columns, *keys, pa.repeat(place, rows.num_rows)],
                names=[*rows.schema.names, *(f"{_PLACE}{n}" for n in range(len(keys))), _PLACE],
            )
            place += 1  # batches of one file do not mix

    def _checked(self, number: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each batch is sorted; whether they follow each other is seen where they are handed on."""
        for rows in batches:
            if not self.order.is_sorted(rows):
                raise self._disorder(number)
            yield rows

    def _disorder(self, number: int) -> Corrupt:
        path = self._plan.files[number].file.path
        return corrupt(path, "its rows are not in the order that it claims, or beyond its bounds")

    def _add_sorted(self, gathered: Sequence[pa.RecordBatch]) -> None:
        if gathered:
            rows = self.order.sorted(pa.Table.from_batches(gathered)).combine_chunks()
            self._add(_Run(self.order, iter(rows.to_batches(max_chunksize=BATCH_ROWS_MAX)), rows.nbytes))

    def _add(self, run: _Run) -> None:
        if not run.fill():
            return
        if sum(other.held for other in (run, *self._runs)) > self._memory_max:
            run = self._spilled(run.rest(), run.level)
        self._runs.append(run)
        level = run.level
        while len(same := [other for other in self._runs if other.level == level]) > self._runs_max:
            self._runs = [other for other in self._runs if other.level != level]
            self._runs.append(self._spilled(self._merged_runs(same), level + 1))
            level += 1

    def _merged_runs(self, runs: list[_Run]) -> Iterator[pa.RecordBatch]:
        while runs := [run for run in runs if run.fill()]:
            bound = self._bound(runs)
            assert bound is not None
            yield from self._taken(runs, bound)

    # -- what does not fit into memory

    def _spilled(self, batches: Iterator[pa.RecordBatch], level: int) -> _Run:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="alpheus-merge-")
        path = Path(self._folder.name, f"{self._files_count}.arrows")
        self._files_count += 1
        with contextlib.ExitStack() as open_files:
            writer: pa.ipc.RecordBatchStreamWriter | None = None
            for batch in batches:
                if writer is None:
                    sink = open_files.enter_context(pa.OSFile(str(path), "wb"))
                    options = pa.ipc.IpcWriteOptions(compression="lz4")
                    writer = open_files.enter_context(pa.ipc.new_stream(sink, batch.schema, options=options))
                rows = max(1, batch.num_rows * SPILLED_BATCH_BYTES_MAX // max(batch.nbytes, 1))
                for start in range(0, batch.num_rows, rows):
                    writer.write_batch(batch.slice(start, rows))
        if writer is None:
            return _Run(self.order, iter(()), 0, level)
        self.spilled_bytes += path.stat().st_size
        return _Run(self.order, _read_back(path), 0, level)


def _read_back(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
        yield from reader
    path.unlink()  # read to its end


class OrderedScan(AsyncScan):
    """A scan whose rows come in the table's sort order; equal ones in the order of the files.

    NULLs and NaN where the order has them; text by its bytes. InvalidInput for a table without a sort order.
    """

    def __init__(self, scan: AsyncScan) -> None:
        super().__init__(scan._storage, scan.plan, scan._reader.columns, scan.version, scan._listed)
        Order(scan.plan.table)

    def ordered(self) -> OrderedScan:
        return self

    async def to_arrow(self) -> pa.Table:
        """All rows in memory, in order."""
        return pa.Table.from_batches([batch async for batch in self.to_batches()], schema=self.schema)

    async def to_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows in order, batch by batch. In memory are what `MEMORY_BYTES_MAX` says and one batch; the rest of what
        has to be known before the first rows are certain waits in the temporary folder."""
        steps = Merge(self.plan, self._reader.columns).steps()

        def advance(data: bytes | None) -> Step | None:
            try:
                return next(steps) if data is None else steps.send(data)
            except StopIteration:
                return None

        try:
            step = await asyncio.to_thread(advance, None)
            while step is not None:
                data = None
                if isinstance(step, int):
                    data = await read_data_file(self._storage, self.plan.files[step].file, self._listed)
                else:
                    yield step
                step = await asyncio.to_thread(advance, data)
        finally:
            with contextlib.suppress(
                ValueError
            ):  # cancelled in a step: the thread ends it, and then it is let go
                steps.close()
