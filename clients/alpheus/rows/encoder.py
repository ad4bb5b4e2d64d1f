"""Encode record batches as Parquet files. Spark's workers run this module, too, so it imports pyarrow and the standard
library alone.

Each file belongs to its caller's schema: a field's id is the metadata `PARQUET:field_id`, in nested fields as well.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FILE_SIZE_TARGET = 128 << 20
ROW_GROUP_ROWS_MAX = 1 << 20
ROW_GROUP_SIZE_BYTES_MAX = 32 << 20
"""Size in Arrow memory, before encoding."""
PIECE_SIZE_BYTES_MAX = ROW_GROUP_SIZE_BYTES_MAX // 4
"""Size of a batch to encode, in Arrow memory. A row group takes several batches."""
_BATCH_ROWS = 1024
"""The default of pyarrow."""
_FIELD_ID = b"PARQUET:field_id"
_TAIL_SIZE_BYTES = 8


class Encoded(NamedTuple):
    """A file that was encoded.

    - `metadata`: its footer. `nan_counts`: the number of NaN by field id of the columns of floats.
    - `crc32`: the CRC-32 of all its bytes. `footer_crc32`: that of the stored footer and the bytes after the footer.
    """

    metadata: pq.FileMetaData
    nan_counts: dict[int, int]
    crc32: int
    footer_crc32: int


def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in slices of at most `PIECE_SIZE_BYTES_MAX` bytes, or of one row. An encoder takes whole
    batches, so that its row groups are as large as their last batch allows."""
    for batch in batches:
        yield from _cut(batch)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= 1 or batch.nbytes <= PIECE_SIZE_BYTES_MAX:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _cut(batch.slice(0, half))
    yield from _cut(batch.slice(half))


class FileEncoder:
    """Encodes batches of one schema. Blocks, so the library runs it in a thread.

    Memory holds the rows of one row group, and what Parquet buffers of one column. A row group ends with the batch by
    which it reaches its size, so callers `cut` batches of any size before.

    `footer` is key-value metadata of every file. `codec` is a name that pyarrow knows.
    """

    def __init__(
        self, schema: pa.Schema, footer: Mapping[str, str], *, file_size_target: int, codec: str = "zstd"
    ) -> None:
        self._schema = schema
        self._dictionary_columns = dictionary_columns(schema)
        self._footer = dict(footer)
        self._codec = codec
        self._target = file_size_target
        self.group_size_max = min(ROW_GROUP_SIZE_BYTES_MAX, file_size_target)

    def next_file(self, batches: Iterator[pa.RecordBatch], sink: Any) -> Encoded | None:
        """Encode the next file into `sink`, a pyarrow stream that is open and stays open.

        The file ends at the first row group with which it reaches the target size, or with the last batch. Return None,
        and write nothing, when no row is left.
        """
        group = self._next_group(batches)
        if group is None:
            return None
        nans: dict[int, int] = {}
        summed = _Summed(sink)
        with pq.ParquetWriter(
            summed,
            self._schema,
            compression=self._codec,
            store_schema=False,
            use_dictionary=self._dictionary_columns,
            write_batch_size=_rows_at_once(group),
            write_page_index=True,
            write_page_checksum=True,
        ) as writer:
            while group is not None:
                writer.write_table(group, row_group_size=group.num_rows)
                for batch in group.to_batches():
                    for array, field in zip(batch.columns, self._schema, strict=True):
                        _count_nans(array, field, nans)
                group = self._next_group(batches) if summed.size < self._target else None
            writer.add_key_value_metadata(self._footer)
            summed.keep_end()
        return Encoded(writer.writer.metadata, nans, summed.crc32, summed.footer_crc32())

    def _next_group(self, batches: Iterator[pa.RecordBatch]) -> pa.Table | None:
        pending: list[pa.RecordBatch] = []
        rows = size = 0
        while rows < ROW_GROUP_ROWS_MAX and size < self.group_size_max:
            batch = next(batches, None)
            if batch is None:
                break
            if batch.num_rows:
                pending.append(batch)
                rows += batch.num_rows
                size += batch.nbytes
        return pa.Table.from_batches(pending) if pending else None


class _Summed:
    """Passes the bytes of a file on to a stream, and sums them up as they were encoded: before any disk or network.

    A metadata file of the same footer has other bytes, so the checksum of the footer comes from here, too.
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._end: list[bytes] | None = None
        self.size = 0
        self.crc32 = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._sink.write(data)
        self.size += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        if self._end is not None:
            self._end.append(bytes(data))
        return len(data)

    def keep_end(self) -> None:
        """Keep what is written from now on, which must have the footer."""
        self._end = []

    def footer_crc32(self) -> int:
        end = b"".join(self._end or ())
        size = int.from_bytes(end[-_TAIL_SIZE_BYTES:-4], "little") + _TAIL_SIZE_BYTES
        assert size <= len(end), "a footer was written before its file ended"
        return zlib.crc32(end[-size:])

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _rows_at_once(group: pa.Table) -> int:
    """Return how many values Parquet's encoder takes before it compares its page and its dictionary with their limits,
    1 MiB each. The usual number of large cells would make a dictionary of a whole row group."""
    cell = max((column.nbytes for column in group.columns), default=0) // group.num_rows
    return int(max(1, min(_BATCH_ROWS, (1 << 20) // max(1, cell))))


def dictionary_columns(schema: pa.Schema) -> list[str]:
    """Return the Parquet paths of the leaves that are written with a dictionary: all leaves outside lists and maps.

    For a leaf inside a list or map, Spark's vectorized reader looks up NULLs in the dictionary, too. It fails where all
    values are NULL and the dictionary is empty (ArrayIndexOutOfBoundsException in ParquetDictionary, seen in 4.3).
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, store_schema=False):
        pass
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    columns = [leaves.column(index) for index in range(len(leaves))]
    return [column.path for column in columns if not column.max_repetition_level]


def _count_nans(array: pa.Array, field: pa.Field, counts: dict[int, int]) -> None:
    """Add the NaN of an array to `counts`, by field id."""
    kind = field.type
    if pa.types.is_floating(kind):
        number = int(field.metadata[_FIELD_ID])
        counts[number] = counts.get(number, 0) + (pc.sum(pc.is_nan(array)).as_py() or 0)
    elif not kind.num_fields:
        return
    elif pa.types.is_struct(kind):
        for place, child in enumerate(array.flatten()):
            _count_nans(child, kind.field(place), counts)
    elif pa.types.is_map(kind):
        present = array.drop_null()
        if len(present):
            start, end = present.offsets[0].as_py(), present.offsets[-1].as_py()
            _count_nans(present.keys.slice(start, end - start), kind.key_field, counts)
            _count_nans(present.items.slice(start, end - start), kind.item_field, counts)
    else:
        _count_nans(array.flatten(), kind.value_field, counts)
