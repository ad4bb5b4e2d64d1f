"""Manifest segments: the Arrow files that list a native table's data files (FORMAT.md, "Native tables").

Pure: bytes and values. A segment is one Arrow file with one row a data file; `decode_segment` is a gate for
hostile bytes, as `alpheus_journal.tree.node` is for nodes.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, Expired, InvalidInput
from alpheus_journal.model.definitions import Column, Segment, TableDef
from alpheus_journal.tables.columns import BOUND_SIZES, decode_bound, missing_required
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.partitions import flaw_of_partition
from alpheus_journal.tree.node import Malformed, rows_claimed

SEGMENT_FILES_MAX = 1 << 20
ROWS_MAX = FILE_SIZE_BYTES_MAX = 1 << 48
"""The most rows and bytes of a data file. The same bound on the rows of a table keeps a transaction's sums in int64."""


_STATISTICS = pa.struct(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("value_count", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64()),
        pa.field("null_count", pa.int64()),
        pa.field("nan_count", pa.int64()),
        pa.field("lower", pa.binary()),
        pa.field("upper", pa.binary()),
    ]
)
_PARTITION = pa.struct([pa.field("id", pa.int32(), nullable=False), pa.field("value", pa.binary())])
SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("path", pa.utf8(), nullable=False),
        pa.field("format", pa.utf8(), nullable=False),
        pa.field("row_count", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("schema_id", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64()),
        pa.field("columns", pa.list_(pa.field("element", _STATISTICS, nullable=False)), nullable=False),
        pa.field("split_offsets", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False),
        pa.field("partition", pa.list_(pa.field("element", _PARTITION, nullable=False)), nullable=False),
        pa.field("sort_order_id", pa.int32()),
        pa.field("added_version", pa.int64()),
        pa.field("name_map", pa.utf8()),
        pa.field("crc32", pa.uint32()),
        pa.field("footer_crc32", pa.uint32()),
    ]
)
"""The schema of a segment file; see `encode_segment`."""

_CHECKSUMS = ("crc32", "footer_crc32")
_WITHOUT_CHECKSUMS = pa.schema([field for field in SEGMENT_SCHEMA if field.name not in _CHECKSUMS])
"""The schema of a segment file without any checksum. Revision 1 of the format knows no other."""

_REVISION = b"alpheus.manifest"
_TABLE = b"alpheus.table_id"


def flaw_of(file: DataFile, table_id: str) -> str:
    """Return why `file` can be in no segment of the table, or "" when it can."""
    try:
        owner = fmt.parse_data_path(file.path)[0]
    except Corrupt as error:
        return error.message
    if owner != table_id:
        return f"it belongs to table {owner}"
    if file.format != "parquet":
        return f"it has the format {file.format[:80]!r}"
    if file.row_count < 0 or file.size_bytes <= 0 or (file.schema_id or 0) < 0:
        return "its row count, size or schema id is impossible"
    if file.row_count > ROWS_MAX or file.size_bytes > FILE_SIZE_BYTES_MAX:
        return (
            f"it claims {file.row_count} rows and {file.size_bytes} bytes; at most 2^48 of each are allowed"
        )
    if any(number is not None and number < 0 for number in (file.sequence, file.added_version)):
        return "its sequence or version is negative"
    for what, group in (("column", file.value_counts), ("partition", file.partition)):
        if any(not 0 < number < 1 << 31 for number in group):
            return f"a {what} id is not a positive int32"
    for name in ("column_sizes", "null_counts", "nan_counts", "lower_bounds", "upper_bounds"):
        strange = getattr(file, name).keys() - file.value_counts.keys()
        if strange:
            return f"{name} has the column id {min(strange)}, which has no value count"
    for counts in (file.column_sizes, file.value_counts, file.null_counts, file.nan_counts):
        if any(count < 0 for count in counts.values()):
            return "a count is negative"
    for number, count in file.value_counts.items():
        if file.null_counts.get(number, 0) + file.nan_counts.get(number, 0) > count:
            return f"column id {number} has more NULLs and NaNs than values"
    checksums = (file.crc32, file.footer_crc32)
    if checksums != (None, None) and not all(
        number is not None and 0 <= number < 1 << 32 for number in checksums
    ):
        return "it has one of two checksums, or one that takes more than 32 bits"
    offsets = (-1, *file.split_offsets, file.size_bytes)
    if file.split_offsets and any(a >= b for a, b in itertools.pairwise(offsets)):
        return "its split offsets do not ascend inside the file"
    return ""


def encode_segment(files: Sequence[DataFile], *, table_id: str, schema_id: int) -> bytes:
    """Encode a manifest segment: one Arrow IPC file with one record batch, no compression, and one row for each file.

    Columns, in this order (`SEGMENT_SCHEMA`): `path`, `format` utf8; `row_count`, `size_bytes` (bytes),
    `schema_id` int64; `sequence` int64 or null; `columns`, a list ascending by id of (`id` int32,
    `value_count` int64, then each or null `size_bytes`, `null_count`, `nan_count` int64, `lower`, `upper`
    binary); `split_offsets`, a list of int64 byte positions; `partition`, a list ascending by id of (`id`
    int32, `value` binary or null), empty in tables without partitions; `sort_order_id` int32, null or 0 for none,
    1 for the table's; and reserved ones: `added_version` int64, `name_map` utf8, null in this revision; then, where a
    file has checksums, `crc32`, `footer_crc32` uint32 or null. Schema metadata: `alpheus.manifest` = `1` and
    `alpheus.table_id`.

    `schema_id` is the schema id of files that have none. Equal values give equal bytes. Raises InvalidInput: `bad_data`
    with the name of a file that no segment of this table can list, or `too_large` above the format's limit.
    """
    if not files:
        raise InvalidInput("a manifest segment must list at least one file", kind="bad_data")
    if len(files) > SEGMENT_FILES_MAX:
        raise InvalidInput(
            f"{len(files)} files in one manifest segment; at most {SEGMENT_FILES_MAX} are allowed",
            kind="too_large",
        )
    seen: set[str] = set()
    for file in files:
        flaw = flaw_of(file, table_id) or ("it is listed twice" if file.path in seen else "")
        if flaw:
            raise bad_file(file.path, flaw)
        seen.add(file.path)
    schema = SEGMENT_SCHEMA.with_metadata({_REVISION: b"1", _TABLE: table_id.encode()})
    arrays = [
        pa.array([file.path for file in files], pa.utf8()),
        pa.array([file.format for file in files], pa.utf8()),
        pa.array([file.row_count for file in files], pa.int64()),
        pa.array([file.size_bytes for file in files], pa.int64()),
        pa.array([schema_id if f.schema_id is None else f.schema_id for f in files], pa.int64()),
        pa.array([file.sequence for file in files], pa.int64()),
        _statistics_array(files),
        pa.array([list(file.split_offsets) for file in files], schema.field("split_offsets").type),
        pa.array(
            [[{"id": key, "value": file.partition[key]} for key in sorted(file.partition)] for file in files],
            schema.field("partition").type,
        ),
        pa.array([file.sort_order_id for file in files], pa.int32()),
        pa.array([file.added_version for file in files], pa.int64()),
        pa.nulls(len(files), pa.utf8()),
        *(pa.array([getattr(file, name) for file in files], pa.uint32()) for name in _CHECKSUMS),
    ]
    data = encode_batch(pa.record_batch(arrays, schema=schema), table_id=table_id)
    if len(data) > fmt.MANIFEST_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"a manifest segment of {len(data)} bytes; at most {fmt.MANIFEST_SIZE_BYTES_MAX} are allowed",
            kind="too_large",
            hint="write larger files, or fewer files in one operation",
        )
    return data


def _statistics_array(files: Sequence[DataFile]) -> pa.Array:
    offsets = [0]
    rows: list[tuple[DataFile, int]] = []
    for file in files:
        rows += [(file, number) for number in sorted(file.value_counts)]
        offsets.append(len(rows))
    children = [
        pa.array([number for _, number in rows], pa.int32()),
        pa.array([file.value_counts[number] for file, number in rows], pa.int64()),
        pa.array([file.column_sizes.get(number) for file, number in rows], pa.int64()),
        pa.array([file.null_counts.get(number) for file, number in rows], pa.int64()),
        pa.array([file.nan_counts.get(number) for file, number in rows], pa.int64()),
        pa.array([file.lower_bounds.get(number) for file, number in rows], pa.binary()),
        pa.array([file.upper_bounds.get(number) for file, number in rows], pa.binary()),
    ]
    structs = pa.StructArray.from_arrays(children, fields=list(_STATISTICS))
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), structs, type=SEGMENT_SCHEMA.field("columns").type
    )


class _Bad(Exception):
    """The reason why bytes are not a segment. `decode_segment` turns it into Corrupt with the path."""


def decode_segment(data: bytes, path: str, *, table_id: str) -> tuple[DataFile, ...]:
    """Return the files that a segment of the table lists, in stored order. `path` is used in errors only.

    Every promise of `DataFile` holds afterwards. All files belong to the table, and none is listed twice.
    `check_segment` compares the column ids with the table. Raises Corrupt (`corrupt_manifest`) for other bytes, before
    more memory than a small multiple of the file is used.
    """
    try:
        return _decode_files(_open_batch(data, table_id), table_id)
    except (_Bad, Malformed) as error:
        raise Corrupt(f"manifest segment {path}: {error}", kind="corrupt_manifest", path=path) from error


def open_segment(data: bytes, path: str, *, table_id: str) -> pa.RecordBatch:
    """Return the rows of a segment as an Arrow batch, without checking each row.

    Use this for a segment that was decoded when it was committed, and that has the recorded SHA-256. Raises the errors
    of `decode_segment`.
    """
    try:
        return _open_batch(data, table_id)
    except (_Bad, Malformed) as error:
        raise Corrupt(f"manifest segment {path}: {error}", kind="corrupt_manifest", path=path) from error


def list_paths(data: bytes, path: str, *, table_id: str) -> list[str]:
    """Return the paths of the data files of a segment, without reading its other columns.

    Use this as `open_segment`, which takes three times as long. Raises the errors of `decode_segment`.
    """
    try:
        batch = _open_paths(data, table_id)
    except (_Bad, Malformed) as error:
        raise Corrupt(f"manifest segment {path}: {error}", kind="corrupt_manifest", path=path) from error
    paths: list[str] = batch.column(0).to_pylist()
    return paths


def files_of(batch: pa.RecordBatch, path: str, *, table_id: str) -> tuple[DataFile, ...]:
    """Return the files of an opened segment, or of some of its rows. Raises the errors of `decode_segment`."""
    try:
        return _decode_files(batch, table_id)
    except (_Bad, Malformed) as error:
        raise Corrupt(f"manifest segment {path}: {error}", kind="corrupt_manifest", path=path) from error


def encode_batch(batch: pa.RecordBatch, *, table_id: str) -> bytes:
    """Encode a segment with these rows. The columns of checksums are left out where no row has one."""
    schema = SEGMENT_SCHEMA.with_metadata({_REVISION: b"1", _TABLE: table_id.encode()})
    if all(batch.column(name).null_count == batch.num_rows for name in _CHECKSUMS):
        schema = _WITHOUT_CHECKSUMS.with_metadata(schema.metadata)
        batch = batch.select(schema.names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    data: bytes = sink.getvalue().to_pybytes()
    return data


_PATH_ALONE = pa.ipc.IpcReadOptions(included_fields=[SEGMENT_SCHEMA.get_field_index("path")])


def _open_batch(data: bytes, table_id: str) -> pa.RecordBatch:
    """Return the record batch after every check that must come before a value is read. The batch has `SEGMENT_SCHEMA`,
    also where the file lacks the checksums."""
    batch = _read_batch(data, table_id, None, (SEGMENT_SCHEMA, _WITHOUT_CHECKSUMS))
    for field, array in zip(batch.schema, batch.columns, strict=True):
        _refuse_nulls(array, field)
    if batch.num_columns == len(SEGMENT_SCHEMA):
        return batch
    absent = [pa.nulls(batch.num_rows, pa.uint32())] * len(_CHECKSUMS)
    schema = SEGMENT_SCHEMA.with_metadata(batch.schema.metadata)
    return pa.RecordBatch.from_arrays([*batch.columns, *absent], schema=schema)


def _open_paths(data: bytes, table_id: str) -> pa.RecordBatch:
    """Return the column of paths after every check that must come before its values are read."""
    schema = pa.schema([SEGMENT_SCHEMA.field("path")])
    batch = _read_batch(data, table_id, _PATH_ALONE, (schema,))
    _refuse_nulls(batch.column(0), schema.field(0))
    return batch


def _read_batch(
    data: bytes, table_id: str, options: pa.ipc.IpcReadOptions | None, schemas: Sequence[pa.Schema]
) -> pa.RecordBatch:
    """Read the columns of one of `schemas`. The checks are in the order of FORMAT.md, "Untrusted input"."""
    if len(data) > fmt.MANIFEST_SIZE_BYTES_MAX:
        raise _Bad(f"it has {len(data)} bytes, at most {fmt.MANIFEST_SIZE_BYTES_MAX} are allowed")
    try:
        rows = rows_claimed(data)
    except struct.error:
        raise _Bad("an offset leads outside the file") from None
    # A row takes at least five numbers of 8 bytes and five offsets of 4 bytes.
    if not 0 < rows <= min(SEGMENT_FILES_MAX, len(data) // 60):
        raise _Bad(f"it claims {rows} files, which it cannot list")
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data), options=options)
        metadata = reader.schema.metadata or {}
        if options is None and not any(reader.schema.equals(schema) for schema in schemas):
            raise _Bad("its columns are not those of a segment")
        if metadata.get(_REVISION) != b"1" or metadata.get(_TABLE) != table_id.encode():
            raise _Bad(f"it is not a segment of revision 1 of table {table_id}")
        batch = reader.get_batch(0)
        if not any(batch.schema.equals(schema) for schema in schemas):
            raise _Bad("its columns are not those of a segment")
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, EOFError) as error:
        raise _Bad(f"it is not a valid Arrow file: {str(error)[:200]}") from error
    if batch.num_rows != rows:
        raise _Bad("its header contradicts itself")
    return batch


def _refuse_nulls(array: pa.Array, field: pa.Field) -> None:
    """Refuse NULL in a field that has none. Arrow does not check this itself."""
    if not field.nullable and array.null_count:
        raise _Bad(f"{field.name} holds a null")
    if pa.types.is_list(field.type):
        _refuse_nulls(array.flatten(), field.type.value_field)
    elif pa.types.is_struct(field.type):
        for index in range(field.type.num_fields):
            _refuse_nulls(array.field(index), field.type.field(index))


def _slice_lists(array: pa.Array) -> Iterator[slice]:
    """Yield the place of each list in `array.flatten()`."""
    start = 0
    for length in array.value_lengths().to_pylist():
        yield slice(start, start + length)
        start += length


def _decode_files(batch: pa.RecordBatch, table_id: str) -> tuple[DataFile, ...]:
    if batch.column("name_map").null_count != batch.num_rows:
        raise _Bad("it has a name map, which only newer releases may know")
    plain = {
        name: batch.column(name).to_pylist()
        for name in ("path", "format", "row_count", "size_bytes", "schema_id", "sequence",
                     "sort_order_id", "added_version", *_CHECKSUMS)
    }  # fmt: skip
    offsets = batch.column("split_offsets").flatten().to_pylist()
    statistics = [
        batch.column("columns").flatten().field(index).to_pylist() for index in range(_STATISTICS.num_fields)
    ]
    partitions = [batch.column("partition").flatten().field(index).to_pylist() for index in range(2)]
    files: list[DataFile] = []
    seen: set[str] = set()
    for row, (of_columns, of_offsets, of_partition) in enumerate(
        zip(
            _slice_lists(batch.column("columns")),
            _slice_lists(batch.column("split_offsets")),
            _slice_lists(batch.column("partition")),
            strict=True,
        )
    ):
        ids, values, *optional = (column[of_columns] for column in statistics)
        sizes, nulls, nans, lowers, uppers = (_drop_nulls(ids, column) for column in optional)
        keys = partitions[0][of_partition]
        if any(a >= b for group in (ids, keys) for a, b in itertools.pairwise(group)):
            raise _Bad(f"file {row}: column ids do not ascend")
        file = DataFile(
            **{name: column[row] for name, column in plain.items()},
            column_sizes=sizes,
            value_counts=dict(zip(ids, values, strict=True)),
            null_counts=nulls,
            nan_counts=nans,
            lower_bounds=lowers,
            upper_bounds=uppers,
            split_offsets=tuple(offsets[of_offsets]),
            partition=dict(zip(keys, partitions[1][of_partition], strict=True)),
        )
        flaw = flaw_of(file, table_id) or ("it is listed twice" if file.path in seen else "")
        if flaw:
            raise _Bad(f"file {file.path[:200]!r}: {flaw}")
        seen.add(file.path)
        files.append(file)
    return tuple(files)


def _drop_nulls(ids: list[int], values: list[Any]) -> dict[int, Any]:
    return {number: value for number, value in zip(ids, values, strict=True) if value is not None}


def segment_of(
    files: Sequence[DataFile], *, path: str, table_id: str, schema_id: int
) -> tuple[bytes, Segment]:
    """Return the bytes for `path` (`format.manifest_path`), and the reference that an operation carries."""
    data = encode_segment(files, table_id=table_id, schema_id=schema_id)
    return data, Segment(
        path=fmt.check_manifest_pointer(path, table_id),
        file_count=len(files),
        row_count=sum(file.row_count for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        sha256=hashlib.sha256(data).digest(),
        segment_size_bytes=len(data),
    )


def is_content_of(segment: Segment, data: bytes) -> bool:
    """Return whether these are the bytes that `segment` refers to, by their size and SHA-256."""
    return len(data) == segment.segment_size_bytes and hashlib.sha256(data).digest() == segment.sha256


def bad_file(path: str, reason: str, hint: str = "") -> InvalidInput:
    return InvalidInput(f"data file {path[:300]}: {reason}", kind="bad_data", path=path[:300], hint=hint)


# --- checks of a commit ----------------------------------------------------------------------------


def _leaf_columns(columns: Iterable[Column], repeated: bool = False) -> Iterator[tuple[Column, bool]]:
    """Yield leaf columns, and whether each one is below a list or map."""
    for column in columns:
        if column.children():
            yield from _leaf_columns(column.children(), repeated or column.type in ("LIST", "MAP"))
        else:
            yield column, repeated


def check_segment(
    files: Sequence[DataFile], segment: Segment, table: TableDef, *, transaction_id: str
) -> None:
    """Check a decoded segment for a commit, before any of it is visible.

    Every file must be in the transaction's own folder of this table, and fit the table's columns and the file's
    partition. The totals in `segment` must be true. The committer checks the age of the transaction's id and the fences
    that it crossed (FORMAT.md, "What a commit may newly reference").

    Raises InvalidInput (`bad_data`) naming file and column. Raises Expired (`upload_expired`) for a file that another
    transaction wrote, because nothing keeps that file from being collected.
    """
    counted = (len(files), sum(f.row_count for f in files), sum(f.size_bytes for f in files))
    claimed = (segment.file_count, segment.row_count, segment.size_bytes)
    if counted != claimed:
        raise InvalidInput(
            f"manifest segment {segment.path} claims (files, rows, bytes) {claimed}, but its files have {counted}",
            kind="bad_data",
            path=segment.path,
        )
    leaves = {column.id: (column, repeated) for column, repeated in _leaf_columns(table.columns)}
    keys = [leaves[field.column_id][0] for field in table.partition_spec]
    for file in files:
        flaw = flaw_of(file, table.id)
        if flaw:
            raise bad_file(file.path, flaw)
        owner = fmt.parse_data_path(file.path)[1]
        if owner != transaction_id:
            raise Expired(
                f"data file {file.path} was written by transaction {owner}, not by {transaction_id}",
                kind="upload_expired",
                path=file.path,
                hint="write the rows again in the transaction that commits them",
            )
        if file.partition or keys:
            flaw = flaw_of_partition(table.partition_spec, keys, file)
            if flaw:
                raise bad_file(file.path, flaw)
        _check_file(file, table, leaves)


def _check_file(file: DataFile, table: TableDef, leaves: Mapping[int, tuple[Column, bool]]) -> None:
    if (file.schema_id or 0) > table.schema_id:
        raise bad_file(file.path, f"it has schema {file.schema_id}, but the table is at {table.schema_id}")
    if file.sequence is not None or file.added_version is not None:
        raise bad_file(file.path, "a new file cannot have a sequence or version of its own")
    if file.sort_order_id not in (None, 0) and not (file.sort_order_id == 1 and table.sort_order):
        raise bad_file(file.path, f"it claims the sort order {file.sort_order_id}, which the table lacks")
    for number, count in file.value_counts.items():
        if number not in leaves:
            raise bad_file(file.path, f"it has the column id {number}, which the table lacks")
        column, repeated = leaves[number]
        if not repeated and count != file.row_count:
            raise bad_file(file.path, f"column {column.name!r} has {count} values in {file.row_count} rows")
        for bound in (file.lower_bounds.get(number), file.upper_bounds.get(number)):
            _check_bound(file.path, column, bound)
    missing = missing_required(table.columns, file.value_counts, "")
    if missing:
        raise bad_file(file.path, f"it lacks the required column {missing!r}")
    for column in table.columns:
        nulls = file.null_counts.get(column.id, 0)
        if not column.nullable and nulls:
            raise bad_file(file.path, f"column {column.name!r} is required, but holds {nulls} NULLs")


def _check_bound(path: str, column: Column, bound: bytes | None) -> None:
    if bound is None:
        return
    sizes = BOUND_SIZES.get(column.type)
    if sizes is not None and len(bound) in sizes and not column.type.startswith("FLOAT"):
        return
    try:
        decode_bound(column, bound)
    except ValueError as error:
        raise bad_file(path, f"column {column.name!r}: {error}") from None
