"""Arrange rows for a table's files, by partition and sorted within each; and compare rows. Pure.

Memory is bounded, whatever the number of partitions: rows wait in buffers, and the largest buffers are written first.
No file is open while rows wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from alpheus.rows.plan import PlannedFile
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column, SortField, TableDef
from alpheus_journal.predicate import FLOATS
from alpheus_journal.tables.columns import decode_bound, encode_bound, unscaled
from alpheus_journal.tables.partitions import partition_arrays, result_column

BUFFER_SIZE_BYTES_MAX = 256 << 20
"""Size, in Arrow memory, of rows that wait for others of their partition, or to be sorted. The rows that are taken
together are copied once, so twice this size may be in memory."""
_SLICE_ROWS_MAX = 1 << 16

Partition = dict[int, bytes | None]
"""The values of a partition; see `DataFile.partition`."""


class PartitionRun(msgspec.Struct, frozen=True):
    """Rows of one partition, in this order, for one file, or for several files where the rows are many."""

    partition: Partition
    is_sorted: bool
    batches: Iterator[pa.RecordBatch]


def partition_and_sort(
    table: TableDef, batches: Iterator[pa.RecordBatch], buffer_size_max: int = BUFFER_SIZE_BYTES_MAX
) -> Iterator[PartitionRun]:
    """Arrange the rows of `batches`, which have the table's columns, in runs. Each run belongs to one partition and is
    in the table's sort order. The caller must use up a run before it asks for the next one."""
    if not table.partition_spec and not table.sort_order:
        yield PartitionRun({}, False, batches)
        return
    buffers = _Buffers(table)
    for batch in batches:
        buffers.add(batch)
        if buffers.size > buffer_size_max:
            yield from buffers.runs(down_to=buffer_size_max // 2)
    yield from buffers.runs(down_to=0)


class _Buffers:
    """Waiting rows by partition, in the order of their arrival."""

    def __init__(self, table: TableDef) -> None:
        self._table = table
        by_id = {column.id: column for column in table.columns}
        self._results = [result_column(field, by_id[field.column_id]) for field in table.partition_spec]
        self._waiting: dict[tuple[bytes | None, ...], list[pa.RecordBatch]] = {}
        self._sizes: dict[tuple[bytes | None, ...], int] = {}
        self.size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        for key, rows in self._by_partition(batch) if batch.num_rows else ():
            size = rows.nbytes
            self._waiting.setdefault(key, []).append(rows)
            self._sizes[key] = self._sizes.get(key, 0) + size
            self.size += size

    def runs(self, down_to: int) -> Iterator[PartitionRun]:
        """Yield the largest partitions until at most `down_to` bytes wait. For 0 yield all, in the order of their
        keys."""
        if not self.size:  # rows may have no bytes
            down_to = 0
        keys = sorted(self._sizes, key=lambda key: -self._sizes[key])
        chosen: list[tuple[bytes | None, ...]] = []
        left = self.size
        for key in keys:
            if down_to and left <= down_to:
                break
            chosen.append(key)
            left -= self._sizes[key]
        for key in sorted(chosen, key=lambda key: tuple((part is not None, part or b"") for part in key)):
            self.size -= self._sizes.pop(key)
            yield self._run(key, self._waiting.pop(key))
        for key, waiting in self._waiting.items():
            # The rows are copied, because slices would keep alive the batches from which they were cut.
            table = pa.Table.from_batches(waiting)
            self._waiting[key] = table.take(pa.array(range(table.num_rows))).combine_chunks().to_batches()

    def _run(self, key: tuple[bytes | None, ...], waiting: list[pa.RecordBatch]) -> PartitionRun:
        spec = self._table.partition_spec
        partition = {field.column_id: value for field, value in zip(spec, key, strict=True)}
        order = self._table.sort_order
        if not order:
            return PartitionRun(partition, False, iter(waiting))
        return PartitionRun(partition, True, sort_batches(order, self._table.columns, waiting))

    def _by_partition(
        self, batch: pa.RecordBatch
    ) -> Iterator[tuple[tuple[bytes | None, ...], pa.RecordBatch]]:
        """Yield the rows of each partition, in their order, as slices of one copy."""
        if not self._results:
            yield (), batch
            return
        values = partition_arrays(self._table.partition_spec, self._table.columns, batch)
        codes = pa.array([0] * batch.num_rows, pa.int64())
        for array in values:
            encoded = array.dictionary_encode(null_encoding="encode")
            codes = pc.add(pc.multiply(codes, len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
            codes = codes.dictionary_encode().indices.cast(pa.int64())
        places = pc.sort_indices(codes)
        rows, codes = batch.take(places), codes.take(places)
        counts = pc.run_end_encode(codes).run_ends.to_pylist()
        start = 0
        for end in counts:
            first = places[start].as_py()
            key = tuple(
                _encode_value(column, array[first])
                for column, array in zip(self._results, values, strict=True)
            )
            yield key, rows.slice(start, end - start)
            start = end


def _encode_value(column: Column, scalar: pa.Scalar) -> bytes | None:
    """Encode a partition value in its stored form (`alpheus_journal.tables.partitions`)."""
    if not scalar.is_valid:
        return None
    if column.type == "DECIMAL":
        return encode_bound(column, unscaled(column, scalar.as_py()))
    if column.type in ("DATE", "TIMESTAMP6", "TIMESTAMPTZ6"):
        return encode_bound(column, scalar.value)
    return encode_bound(column, scalar.as_py())


def sort_batches(
    order: Sequence[SortField], columns: Sequence[Column], batches: Sequence[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Sort all rows; equal rows keep their order. NaN is above all numbers, as in Spark."""
    table = pa.Table.from_batches(batches).combine_chunks()
    places = sort_indices(order, columns, table)
    for start in range(0, table.num_rows, _SLICE_ROWS_MAX):
        yield from table.take(places.slice(start, _SLICE_ROWS_MAX)).combine_chunks().to_batches()


def sort_indices(order: Sequence[SortField], columns: Sequence[Column], table: pa.Table) -> pa.Array:
    """The places of the rows of `table`, which has `columns`, in sort order."""
    place = {column.id: index for index, column in enumerate(columns)}
    keys: dict[str, pa.ChunkedArray] = {}
    directions: list[tuple[str, str]] = []

    def key(array: pa.ChunkedArray, descending: bool) -> None:
        name = str(len(keys))
        keys[name] = array
        directions.append((name, "descending" if descending else "ascending"))

    for field in order:
        column, array = columns[place[field.column_id]], table.column(place[field.column_id])
        if array.null_count:
            key(array.is_null(), not field.nulls_last)
        if column.type in FLOATS:
            # Arrow puts NaN last in both directions. It treats -0.0 and 0.0 as equal.
            key(pc.fill_null(pc.is_nan(array), False), field.descending)
        key(array, field.descending)
    return pc.sort_indices(pa.table(keys), sort_keys=directions)


PLACE = "alpheus_place"


class _Nan:
    """Stands for NaN in an `OrderedRow`, above all numbers."""


_NAN = _Nan()
OrderedRow = tuple[Any, ...]
"""The sort keys of a row: None for NULL, `_NAN` for NaN, dates and times as numbers."""


class Order:
    """Compares rows by a table's sort order. The last key is the place from which a row came, so no two rows are
    equal."""

    def __init__(self, table: TableDef) -> None:
        if not table.sort_order:
            raise InvalidInput(
                "the table has no sort order",
                hint="create tables with create_table(..., sort_by=[...]), or sort the rows after the read",
            )
        by_id = {column.id: column for column in table.columns}
        self.keys = tuple(by_id[field.column_id] for field in table.sort_order)
        place = Column(id=0, name=PLACE, type="INT8", nullable=False)
        self.columns = (*self.keys, place)
        self.fields = (*table.sort_order, SortField(column_id=0, descending=False, nulls_last=True))
        self._ascending = pa.array([], pa.uint64())

    def row(self, rows: pa.RecordBatch, number: int) -> OrderedRow:
        """The keys of one row. The last columns of `rows` must be those of `columns`."""
        first = rows.num_columns - len(self.columns)
        return tuple(
            _cell(column, rows.column(first + index)[number]) for index, column in enumerate(self.columns)
        )

    def compare(self, one: OrderedRow, other: OrderedRow) -> int:
        for field, mine, its in zip(self.fields, one, other, strict=True):
            found = compare_keys(field, mine, its)
            if found:
                return found
        return 0

    def count_up_to(self, rows: pa.RecordBatch, bound: OrderedRow) -> int:
        """The number of sorted rows that are before `bound` or equal to it."""
        low, high = 0, rows.num_rows
        while low < high:
            middle = (low + high) // 2
            if self.compare(self.row(rows, middle), bound) <= 0:
                low = middle + 1
            else:
                high = middle
        return low

    def sort(self, rows: pa.Table) -> pa.Table:
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


def compare_keys(field: SortField, one: Any, other: Any) -> int:
    if one is None or other is None:
        if one is other:
            return 0
        return 1 if (one is None) == field.nulls_last else -1
    if one is _NAN or other is _NAN:
        one, other = one is _NAN, other is _NAN
    found: int = (one > other) - (one < other)
    return -found if field.descending else found


def lowest_key(field: SortField, column: Column, planned: PlannedFile) -> tuple[Any] | None:
    """A value of the first sort key that no row of a file precedes. None means that the file may have any value."""
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
