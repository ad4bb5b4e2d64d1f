"""Try, in a task, what the tasks of reads and writes need. Workers run this module: it imports pyarrow and nothing of
ours but `task_writer`, and both travel with the job by value (`probe`).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from alpheus.spark.files.task_writer import open_store, put_file

RESULT = (
    "host STRING, process BIGINT, python STRING, pyarrow STRING, alpheus STRING, millis BIGINT, file STRING,"
    " step STRING, error STRING"
)
"""The columns of the result of one task.

- `host`, `process`: the machine, and the process whose children are the Python workers of one executor.
- `alpheus`: the version that the worker could import; empty when it is not installed there.
- `millis`: the worker's clock.
- `file`: the name of the file that the task stored; empty when it stored none.
- `step`: what failed: "open", "read" or "write"; empty when all went well. `error`: how.
"""

_ERROR_SIZE_MAX = 2000

TOKEN_FILE = "driver"
"""The name of the file that the driver stored."""


class Probe(NamedTuple):
    """Where the driver stored `token`, in a folder as tasks name it; see `task_writer.Task`."""

    folder: str
    filesystem: Mapping[str, Any] | None
    profile: str
    token: bytes


def try_store(probe: Probe, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the driver's file, store one more, and yield a row of `RESULT`. An error of the store is told in the row."""
    for _ in batches:
        pass
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "process": os.getppid(),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "alpheus": _version_of("alpheus"),
        "millis": int(time.time() * 1000),
        "file": "",
        "step": "open",
        "error": "",
    }
    try:
        store = open_store(probe.filesystem, probe.profile)
        found["step"] = "read"
        if _read(store, probe.folder + TOKEN_FILE) != probe.token:
            raise ValueError("the file does not hold what the driver stored")
        found["step"] = "write"
        name = f"task-{uuid.uuid4()}"
        if store is None:
            with open(probe.folder + name, "wb") as sink:
                sink.write(probe.token)
        else:
            put_file(store, probe.folder + name, [probe.token])
        found |= {"file": name, "step": ""}
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:_ERROR_SIZE_MAX]
    schema = pa.schema(
        [(name, pa.int64() if isinstance(value, int) else pa.string()) for name, value in found.items()]
    )
    yield pa.RecordBatch.from_pylist([found], schema=schema)


def _read(store: Any, path: str) -> bytes:
    if store is None:
        with open(path, "rb") as source:
            return source.read()
    with store.open_input_file(path) as source:
        return bytes(source.read())


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
