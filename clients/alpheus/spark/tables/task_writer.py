"""Write the rows of a Spark task as finished Parquet files. Workers run this module: it imports pyarrow and nothing of
ours but `alpheus.rows.encoder`, and both travel with the job by value (`files.run_tasks`).

A task encodes a file whole, stores the file under a name that no other attempt has, and only then reports the file in a
row of `RESULT`. So a task that is killed, repeated or run twice by speculation leaves files that nobody reports, and no
attempt touches the file of another. The driver lists what was reported, and nothing else.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from alpheus.rows.encoder import Encoded, FileEncoder

RESULT = "path STRING, size BIGINT, footer BINARY, nans STRING, first BINARY"
"""The report of one file.

- `path`: below the task's folder. `size`: in bytes.
- `footer`: the file's footer, as a Parquet metadata file.
- `nans`: the number of NaN by field id, as JSON.
- `first`: the values of `Task.first_columns` in the file's first row, as an Arrow stream.
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


class Task(NamedTuple):
    """What each task of a write needs. Values are plain, so that any worker can unpickle them.

    - `folder`: where files go, ending in a slash: a local path, or bucket and key.
    - `filesystem`: arguments of `pyarrow.fs.S3FileSystem`; None writes to local disks.
    - `profile`: the AWS profile whose credentials the worker takes; empty for its default chain.
    - `schema`: the Arrow schema of the files, with field ids, as an IPC message.
    - `key`: a column that is not written; each file has rows of one value of it, and equal values come together.
    - `first_columns`: names of the columns whose first values are reported.
    """

    folder: str
    filesystem: Mapping[str, Any] | None
    profile: str
    schema: bytes
    footer: Mapping[str, str]
    codec: str
    file_size_target: int
    key: str
    first_columns: tuple[str, ...]


def write_rows(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Store the rows of one task, and yield a row of `RESULT` for each file."""
    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    encoder = FileEncoder(schema, task.footer, file_size_target=task.file_size_target, codec=task.codec)
    store = _open_store(task)
    for rows in _runs_of(batches, task.key):
        fitted = _Fitted(rows, schema, task.first_columns)
        while (file := _write_file(task, store, encoder, fitted)) is not None:
            yield file


class _Fitted:
    """Batches with exactly the columns of a schema. Keeps the first row of what the file that is written next has."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, names: tuple[str, ...]) -> None:
        self._batches = batches
        self._schema = schema
        self._names = list(names)
        self.first: pa.RecordBatch | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = fit_batch(next(self._batches), self._schema)
        if self.first is None and batch.num_rows:
            self.first = batch.slice(0, 1).select(self._names)
        return batch


def fit_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch's columns, found by name, with the types of the schema.

    Spark sends times in the session's zone. No value changes.
    """
    arrays = []
    for field in schema:
        array = batch.column(field.name)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _runs_of(batches: Iterator[pa.RecordBatch], key: str) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the rows of each value of the key column as one iterator, which the caller must use up first."""
    if not key:
        yield batches
        return
    pieces = _pieces_of(batches, key)
    piece = next(pieces, None)

    def rows_of(value: Any) -> Iterator[pa.RecordBatch]:
        nonlocal piece
        while piece is not None and piece[0] == value:
            yield piece[1]
            piece = next(pieces, None)

    while piece is not None:
        yield rows_of(piece[0])


def _pieces_of(batches: Iterator[pa.RecordBatch], key: str) -> Iterator[tuple[Any, pa.RecordBatch]]:
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
            _put(store, task.folder + name, chunks.parts)
    return None if encoded is None else _report(name, size, encoded, rows)


def _report(name: str, size: int, encoded: Encoded, rows: _Fitted) -> pa.RecordBatch:
    footer = pa.BufferOutputStream()
    encoded.metadata.write_metadata_file(footer)
    first = pa.BufferOutputStream()
    assert rows.first is not None, "a file has rows"
    with pa.ipc.new_stream(first, rows.first.schema) as stream:
        stream.write_batch(rows.first)
    rows.first = None
    values: list[Any] = [
        name, size, footer.getvalue().to_pybytes(), json.dumps(encoded.nan_counts), first.getvalue().to_pybytes(),
    ]  # fmt: skip
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


def _open_store(task: Task) -> Any:
    """Return the store of `folder`; None for local disks."""
    if task.filesystem is None:
        return None
    from pyarrow.fs import S3FileSystem

    before = os.environ.get("AWS_PROFILE")
    if task.profile:
        os.environ["AWS_PROFILE"] = task.profile  # pyarrow has no argument for it
    try:
        return S3FileSystem(**task.filesystem)
    finally:
        if task.profile:
            os.environ.pop("AWS_PROFILE")
            if before is not None:
                os.environ["AWS_PROFILE"] = before


def _put(store: Any, path: str, parts: list[bytes]) -> None:
    """Store a whole file.

    pyarrow completes an upload even where a write raises (arrow #40502). The file is then cut short, and no task
    reports its name.
    """
    with store.open_output_stream(path) as stream:
        for part in parts:
            stream.write(part)
