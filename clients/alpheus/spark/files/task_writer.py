"""Write the rows of a Spark task as finished Parquet files. Workers run this module: it imports pyarrow and nothing of
ours but `alpheus.rows.encoder`, and both travel with the job by value (`writes`).

A task encodes a file whole, stores the file under a name that no other attempt has, and only then reports the file in a
row of `RESULT`. So a task that is killed, repeated or run twice by speculation leaves files that nobody reports, and no
attempt touches the file of another. The driver lists what was reported, and nothing else.
"""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from alpheus.rows.encoder import Encoded, FileEncoder

RESULT = "path STRING, size BIGINT, footer BINARY, nans STRING, first BINARY"
"""The report of one file.

- `path`: below the task's folder. `size`: in bytes.
- `footer`: the file's footer, as a Parquet metadata file, compressed by zlib. The driver collects all of them.
- `nans`: the number of NaN by field id, as JSON.
- `first`: the values of `Task.first_columns` in the file's first row, as an Arrow stream; empty without columns.
"""

_RESULT_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("footer", pa.binary()),
        ("nans", pa.string()),
        ("first", pa.binary()),
    ]
)


class StoreError(Exception):
    """A task could not store a file. The driver knows this error by its name (`store_errors`)."""


class Task(NamedTuple):
    """The inputs of each task of a write. Values are plain, so that any worker can unpickle them.

    - `folder`: where files go, ending in a slash: a local path, or bucket and key.
    - `filesystem`: arguments of `pyarrow.fs.S3FileSystem`; None writes to local disks.
    - `profile`: the AWS profile whose credentials the worker takes; empty for its default chain.
    - `schema`: the Arrow schema of the files, with field ids, as an IPC message. The columns of a task's rows have the
      same places.
    - `has_key`: the rows have one more column, the key, which is not written. Each file has rows of one value of it,
      and equal values come together.
    - `first_columns`: places of the columns whose first values are reported.
    """

    folder: str
    filesystem: Mapping[str, Any] | None
    profile: str
    schema: bytes
    footer: Mapping[str, str]
    codec: str
    file_size_target: int
    has_key: bool
    first_columns: tuple[int, ...]


def write_rows(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Store the rows of one task, and yield a row of `RESULT` for each file."""
    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    encoder = FileEncoder(schema, task.footer, file_size_target=task.file_size_target, codec=task.codec)
    store = open_store(task.filesystem, task.profile)
    for rows in _runs_of(batches, len(schema)) if task.has_key else [batches]:
        fitted = _Fitted(rows, schema, task.first_columns)
        while (file := _write_file(task, store, encoder, fitted)) is not None:
            yield file


class _Fitted:
    """Batches with exactly the columns of a schema. Keeps the first row of what the file that is written next has."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, places: tuple[int, ...]) -> None:
        self._batches = batches
        self._schema = schema
        self._places = list(places)
        self._required = [_has_required(field) for field in schema]
        self.first: pa.RecordBatch | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = self._fit(next(self._batches))
        if self.first is None and batch.num_rows:
            self.first = batch.slice(0, 1).select(self._places)
        return batch

    def _fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch's first columns, with the names and types of the schema.

        Spark sends times in the session's zone. No value changes.
        """
        schema = self._schema
        assert len(batch.columns) - len(schema) in (0, 1), (
            "a frame has the columns of its files, and maybe a key"
        )
        arrays = []
        for field, array, has_required in zip(schema, batch.columns, self._required, strict=False):
            found = array if array.type == field.type else array.cast(field.type)
            arrays.append(_fill_parents(found, field) if has_required else found)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _has_required(field: pa.Field) -> bool:
    """Return whether a field inside this one is NOT NULL."""
    inner = [field.type.field(place) for place in range(field.type.num_fields)]
    if pa.types.is_map(field.type):
        inner = [field.type.item_field]  # a key is never NULL
    return any(not child.nullable or _has_required(child) for child in inner)


def _fill_parents(array: pa.Array, field: pa.Field) -> pa.Array:
    """Return the array so that NOT NULL fields have no NULL where the struct around them is NULL.

    Spark calls a field NOT NULL, and sends NULL for it where its struct is NULL. The file's writer refuses that.
    """
    kind = field.type
    if pa.types.is_struct(kind):
        children = []
        for place in range(kind.num_fields):
            inner = kind.field(place)
            child = _fill_parents(array.field(place), inner)
            children.append(
                child if inner.nullable or not child.null_count else _drop_nulls(child, array, inner)
            )
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        items = _fill_parents(array.items, kind.item_field)
        entries = pa.StructArray.from_arrays([array.keys, items], fields=[kind.key_field, kind.item_field])
        return _rebuild(array, kind, entries)
    if pa.types.is_list(kind):
        return _rebuild(array, kind, _fill_parents(array.values, kind.value_field))
    return array


def _rebuild(array: pa.Array, kind: pa.DataType, child: pa.Array, *, is_null_free: bool = False) -> pa.Array:
    """Return a list or map with other entries at the same places."""
    validity, offsets = array.buffers()[:2]
    buffers = [None if is_null_free else validity, offsets]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=[child])


def _drop_nulls(array: pa.Array, parent: pa.Array, field: pa.Field) -> pa.Array:
    """Return the array with some value where its parent is NULL. Raises ValueError for a NULL in another place."""
    if pc.any(pc.and_(parent.is_valid(), array.is_null())).as_py():
        raise ValueError(f"column {field.name!r} is required, but holds NULLs")
    kind = field.type
    if pa.types.is_struct(kind):
        children = [array.field(place) for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays(
            [array.keys, array.items], fields=[kind.key_field, kind.item_field]
        )
        return _rebuild(array, kind, entries, is_null_free=True)
    if pa.types.is_list(kind):
        return _rebuild(array, kind, array.values, is_null_free=True)
    return pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1:]], offset=array.offset)


def _runs_of(batches: Iterator[pa.RecordBatch], key: int) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the rows of each value of the key column as one iterator, which the caller must use up first."""
    pieces = _pieces_of(batches, key)
    piece = next(pieces, None)

    def rows_of(value: Any) -> Iterator[pa.RecordBatch]:
        nonlocal piece
        while piece is not None and piece[0] == value:
            yield piece[1]
            piece = next(pieces, None)

    while piece is not None:
        yield rows_of(piece[0])


def _pieces_of(batches: Iterator[pa.RecordBatch], key: int) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """Cut batches where the value of the key column changes."""
    for batch in batches:
        if not batch.num_rows:
            continue
        ends = pc.run_end_encode(batch.column(key))
        start = 0
        for end, value in zip(ends.run_ends.to_pylist(), ends.values.to_pylist(), strict=True):
            yield value, batch.slice(start, end - start)
            start = end


def _write_file(task: Task, store: Any, encoder: FileEncoder, rows: _Fitted) -> pa.RecordBatch | None:
    """Encode and store the next file, and return its row of `RESULT`; None when no row is left."""
    name = f"{uuid.uuid4()}.parquet"
    if store is None:
        os.makedirs(task.folder, exist_ok=True)
        with pa.OSFile(task.folder + name, "wb") as sink:
            encoded = encoder.next_file(rows, sink)
            size = sink.tell()
        if encoded is None:
            os.unlink(task.folder + name)
    else:
        chunks = _Chunks()
        with pa.PythonFile(chunks, "w") as sink:
            encoded = encoder.next_file(rows, sink)
        size = chunks.size
        if encoded is not None:
            put_file(store, task.folder + name, chunks.parts)
    return None if encoded is None else _report(name, size, encoded, rows)


def _report(name: str, size: int, encoded: Encoded, rows: _Fitted) -> pa.RecordBatch:
    footer = pa.BufferOutputStream()
    encoded.metadata.write_metadata_file(footer)
    first = pa.BufferOutputStream()
    assert rows.first is not None, "a file has rows"
    if rows.first.num_columns:
        with pa.ipc.new_stream(first, rows.first.schema) as stream:
            stream.write_batch(rows.first)
    rows.first = None
    values: list[Any] = [
        name,
        size,
        zlib.compress(footer.getvalue().to_pybytes(), 1),
        json.dumps(encoded.nan_counts),
        first.getvalue().to_pybytes(),
    ]
    return pa.RecordBatch.from_pylist(
        [dict(zip(_RESULT_SCHEMA.names, values, strict=True))], schema=_RESULT_SCHEMA
    )


class _Chunks:
    """A file in memory that never copies what it has, as a growing buffer would."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        part = bytes(data)
        self.parts.append(part)
        self.size += len(part)
        return len(part)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def open_store(filesystem: Mapping[str, Any] | None, profile: str) -> Any:
    """Return the store that the arguments name (`Task`); None for local disks."""
    if filesystem is None:
        return None
    before = os.environ.get("AWS_PROFILE")
    if profile:
        if "AWS_ACCESS_KEY_ID" in os.environ:
            raise ValueError(
                f"the catalog's URL names the profile {profile}, but the worker's environment has"
                " AWS_ACCESS_KEY_ID, which would be used instead: unset it on the workers, or leave the profile out of"
                " the URL"
            )
        os.environ["AWS_PROFILE"] = profile  # pyarrow has no argument for it
    try:
        return _open_s3({**filesystem, "tls_ca_file_path": os.environ.get("AWS_CA_BUNDLE")})
    finally:
        if profile:
            os.environ.pop("AWS_PROFILE")
            if before is not None:
                os.environ["AWS_PROFILE"] = before


def _open_s3(arguments: dict[str, Any]) -> Any:
    """Return an S3FileSystem. Older releases of pyarrow lack two arguments; a private authority needs one of them."""
    from pyarrow.fs import S3FileSystem

    if arguments["tls_ca_file_path"] is None:
        del arguments["tls_ca_file_path"]
    for optional in ("allow_delayed_open", "tls_ca_file_path"):
        try:
            return S3FileSystem(**arguments)
        except TypeError:
            arguments.pop(optional, None)  # without the first, a small file takes three requests
            if optional == "tls_ca_file_path" and os.environ.get("AWS_CA_BUNDLE"):
                raise ValueError(
                    f"AWS_CA_BUNDLE is set, which pyarrow {pa.__version__} does not take"
                ) from None
    return S3FileSystem(**arguments)


def put_file(store: Any, path: str, parts: list[bytes]) -> None:
    """Store a whole file. Raises StoreError.

    pyarrow completes an upload even where a write raises (arrow #40502). The file is then cut short, and no task
    reports its name.
    """
    try:
        with store.open_output_stream(path) as stream:
            for part in parts:
                stream.write(part)
    except OSError as error:
        raise StoreError(f"{type(error).__name__}: {error}") from error
