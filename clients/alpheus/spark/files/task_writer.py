"""Write the rows of a Spark task as finished Parquet files. Workers run this module: it imports pyarrow and nothing of
ours but `alpheus.rows.encoder` and `alpheus.rows.arrow.empty_arrays`, and the three travel with the job by value
(`writes`).

A task encodes a file whole, stores the file under a name that no other attempt has, and only then reports the file in a
row of `RESULT`. So a task that is killed, repeated or run twice by speculation leaves files that nobody reports, and no
attempt touches the file of another. The driver lists what was reported, and nothing else.

A task needs memory for one row group and one part of an upload, whatever the size of a file. An encoded file waits on a
local disk until it is complete, and is uploaded then. To encode straight into an upload would save the disk, but
pyarrow has no way to abandon an upload: `close`, the end of a `with` block and the collection of a dropped stream all
complete it (arrow #40502, open in pyarrow 26). An error in the middle of the rows would store a truncated object.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from alpheus.rows.arrow.empty_arrays import mend_empty
from alpheus.rows.encoder import PIECE_SIZE_BYTES_MAX, Encoded, FileEncoder, cut

RESULT = (
    "path STRING, size BIGINT, footer BINARY, nans STRING, first BINARY, crc32 BIGINT, footer_crc32 BIGINT"
)
"""The report of one file.

- `path`: below the task's folder. `size`: in bytes.
- `footer`: the file's footer, as a Parquet metadata file, compressed by zlib. The driver collects all of them. Its
  bytes are not those that the file has, so its checksum is not that of the file's footer.
- `nans`: the number of NaN by field id, as JSON.
- `first`: the values of `Task.first_columns` in the file's first row, as an Arrow stream; empty without columns.
- `crc32`, `footer_crc32`: see `Encoded`.
"""

_RESULT_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("footer", pa.binary()),
        ("nans", pa.string()),
        ("first", pa.binary()),
        ("crc32", pa.int64()),
        ("footer_crc32", pa.int64()),
    ]
)


PART_SIZE_BYTES = 10 << 20
"""Size of a part of an upload: pyarrow's own size, so that pyarrow copies no part. A smaller file stays in memory."""


class StoreError(Exception):
    """A task could not store a file. The driver knows this error by its name (`store_errors`)."""


class RequiredNull(Exception):
    """A required column holds NULL. The driver knows this error by its name (`writes`)."""

    def __init__(self, path: str) -> None:
        super().__init__(f"column {path!r} is required, but holds NULL")


class Task(NamedTuple):
    """The inputs of each task of a write. Values are plain, so that any worker can unpickle them.

    - `folder`: where files go, ending in a slash: a local path, or bucket and key.
    - `filesystem`: arguments of `pyarrow.fs.S3FileSystem`; None writes to local disks.
    - `profile`: the AWS profile whose credentials the worker takes; empty for its default chain.
    - `schema`: the Arrow schema of the files, with field ids, as an IPC message. A field is NOT NULL where the table's
      column is required. The columns of a task's rows have the same places.
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
    """Store the rows of one task, and yield a row of `RESULT` for each file.

    Raises StoreError, and RequiredNull with the path of the column. Files that were reported before remain.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    encoder = FileEncoder(schema, task.footer, file_size_target=task.file_size_target, codec=task.codec)
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        # `spark.executor.pyspark.memory` limits addresses. pyarrow's usual pool reserves far more than it uses, and a
        # worker that is idle already has more than 300 MB of them.
        pa.set_memory_pool(pa.system_memory_pool())
        encoder.group_size_max = min(encoder.group_size_max, PIECE_SIZE_BYTES_MAX)
    store = open_store(task.filesystem, task.profile)
    pieces = cut(map(mend_empty, batches))
    for rows in _runs_of(pieces, len(schema)) if task.has_key else [pieces]:
        fitted = _Fitted(rows, schema, task.first_columns)
        while (file := _write_file(task, store, encoder, fitted)) is not None:
            yield file


class _Fitted:
    """Batches with exactly the columns of a schema. Keeps the first row of what the file that is written next has."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, places: tuple[int, ...]) -> None:
        self._batches = batches
        self._schema = schema
        self._places = list(places)
        self._checked = [not field.nullable or _has_required(field) for field in schema]
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

        Spark sends times in the session's zone. No value changes. Raises RequiredNull.
        """
        schema = self._schema
        assert len(batch.columns) - len(schema) in (0, 1), (
            "a frame has the columns of its files, and maybe a key"
        )
        arrays = []
        for field, array, is_checked in zip(schema, batch.columns, self._checked, strict=False):
            found = array if array.type == field.type else array.cast(_as_nullable(field.type))
            arrays.append(_require(found, field, field.name) if is_checked else found)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as_nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type with every field in it nullable, because a cast refuses to lose nullability."""
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_field).with_nullable(False), _nullable(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_field))
    return kind


def _nullable(field: pa.Field) -> pa.Field:
    return field.with_type(_as_nullable(field.type)).with_nullable(True)


def _has_required(field: pa.Field) -> bool:
    """Return whether a field inside this one is NOT NULL."""
    inner = [field.type.field(place) for place in range(field.type.num_fields)]
    if pa.types.is_map(field.type):
        inner = [field.type.item_field]  # a key is never NULL
    return any(not child.nullable or _has_required(child) for child in inner)


def _require(array: pa.Array, field: pa.Field, path: str, parent: pa.Array | None = None) -> pa.Array:
    """Return the array with the type of the field. Its NOT NULL fields have no NULL, even where the struct around them
    is NULL.

    Spark sends NULL for each field of a struct that is NULL. The file's writer refuses that in a NOT NULL field,
    although no reader can see it. `parent` is the struct around the array. Raises RequiredNull.
    """
    kind = field.type
    if not field.nullable and array.null_count and _is_seen(array.is_null(), parent):
        raise RequiredNull(path)
    mask = array.is_null() if field.nullable and array.null_count else None
    if pa.types.is_struct(kind):
        children = [
            _require(array.field(place), kind.field(place), f"{path}.{kind.field(place).name}", array)
            for place in range(kind.num_fields)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    validity, *others = array.buffers()[: 2 if pa.types.is_nested(kind) else None]
    buffers = [validity if field.nullable else None, *others]
    inner = []
    if pa.types.is_map(kind):
        items = _require(array.items, kind.item_field, f"{path}.value")
        inner = [pa.StructArray.from_arrays([array.keys, items], fields=[kind.key_field, kind.item_field])]
    elif pa.types.is_list(kind):
        inner = [_require(array.values, kind.value_field, f"{path}.element")]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=inner)


def _is_seen(nulls: pa.Array, parent: pa.Array | None) -> bool:
    """Return whether a NULL is in a struct that is not NULL itself."""
    return parent is None or bool(pc.any(pc.and_(nulls, parent.is_valid())).as_py())


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
    """Encode and store the next file, and return its row of `RESULT`; None when no row is left. An error leaves no
    file."""
    path = task.folder + (name := f"{uuid.uuid4()}.parquet")
    if store is None:
        encoded, size = _write_locally(path, encoder, rows)
    else:
        with _Spool() as spool:
            with pa.PythonFile(spool, "w") as sink:
                encoded = encoder.next_file(rows, sink)
            if encoded is not None:
                put_file(store, path, spool.parts())
            size = spool.size
    return None if encoded is None else _report(name, size, encoded, rows)


def _write_locally(path: str, encoder: FileEncoder, rows: _Fitted) -> tuple[Encoded | None, int]:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    encoded = None
    try:
        with pa.OSFile(path, "wb") as sink:
            encoded = encoder.next_file(rows, sink)
            return encoded, sink.tell()
    finally:
        if encoded is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


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
        encoded.crc32,
        encoded.footer_crc32,
    ]
    return pa.RecordBatch.from_pylist(
        [dict(zip(_RESULT_SCHEMA.names, values, strict=True))], schema=_RESULT_SCHEMA
    )


class _Spool:
    """An encoded file that waits for its upload. A file of more than one part is on a local disk, in a file without a
    name, which ends with the process."""

    def __init__(self) -> None:
        self._file: IO[bytes] = io.BytesIO()
        self._is_on_disk = False
        self.size = 0
        self.closed = False

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: Any) -> int:
        try:
            if not self._is_on_disk and self.size + len(data) > PART_SIZE_BYTES:
                self._move_to_disk()
            self._file.write(data)
        except OSError as error:
            raise StoreError(f"the file waits on a local disk: {type(error).__name__}: {error}") from error
        self.size += len(data)
        return len(data)

    def _move_to_disk(self) -> None:
        found = _open_scratch()
        self._file.seek(0)
        found.write(self._file.read())
        self._file = found
        self._is_on_disk = True

    def parts(self) -> Iterator[bytes]:
        self._file.seek(0)
        while part := self._file.read(PART_SIZE_BYTES):
            yield part

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _open_scratch() -> IO[bytes]:
    """Open a file without a name, in one of Spark's folders on local disks (`spark.local.dir`), or else where Python
    has its temporary files."""
    folders = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if folder]
    random.shuffle(folders)
    for folder in folders:
        try:
            return tempfile.TemporaryFile(dir=folder)
        except OSError:
            continue
    return tempfile.TemporaryFile()


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


def put_file(store: Any, path: str, parts: Iterable[bytes]) -> None:
    """Store a complete file. Raises StoreError.

    Where a request fails, pyarrow may complete the upload with the parts before. No task reports the name of such an
    object.
    """
    try:
        with store.open_output_stream(path) as stream:
            for part in parts:
                stream.write(part)
    except OSError as error:
        raise StoreError(f"{type(error).__name__}: {error}") from error
