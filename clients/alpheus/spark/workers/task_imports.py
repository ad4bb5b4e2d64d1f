"""Try, in a worker, to import what the data source "alpheus" needs there.

Workers run this module. It imports nothing of ours, and travels by value (`check`).
"""

from __future__ import annotations

import importlib
import os
import pickle
import platform
import socket
import sys
from collections.abc import Iterator
from typing import Any

NEEDED = ("alpheus.spark.streams.source", "pyspark_alpheus")
"""The modules that tasks of the data source import. These import everything else that the tasks need."""

RESULT = "host STRING, process BIGINT, python STRING, executable STRING, alpheus STRING, error STRING"
"""The columns of the result of one task.

- `host`, `process`: the machine, and the process whose children are the Python workers of one executor.
- `alpheus`: the version that the worker imported; empty when an import failed. `error` tells how.
"""

_ERROR_SIZE_MAX = 1000


def find_error() -> str:
    """Return the error of the first import that fails; empty when all imports succeed."""
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken installation may raise anything
            return f"{type(error).__name__}: {error}"[:_ERROR_SIZE_MAX]
    return ""


def try_imports(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield a row of `RESULT`."""
    import pyarrow as pa

    for _ in batches:
        pass
    error = find_error()
    found = {
        "host": socket.gethostname(),
        "process": os.getppid(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "alpheus": "" if error else importlib.import_module("alpheus").__version__,
        "error": error,
    }
    schema = pa.schema(
        [(name, pa.int64() if isinstance(value, int) else pa.string()) for name, value in found.items()]
    )
    yield pa.RecordBatch.from_pylist([found], schema=schema)


def load_object(data: bytes, hint: str) -> Any:
    """Return the object that `check.Travelling` pickled, in a worker or in the process that plans for Spark.

    Raises ImportError that names the machine, its Python and the missing module.
    """
    error = find_error()
    if error and _find_python_files():
        error = find_error()
    if error:
        raise ImportError(
            f"the data source needs the package alpheus in Spark's Python workers, and {sys.executable} (Python"
            f" {platform.python_version()}) on {socket.gethostname()} cannot import it: {error}; {hint}"
        )
    kind, state = pickle.loads(data)
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


def _find_python_files() -> bool:
    """Add Spark's Python files to sys.path that Spark looks for in a wrong folder. Return whether there are any.

    The processes in which Spark plans a stream get paths below a folder `streaming_job`, which Spark never makes. The
    files themselves are one folder higher. (Tried with 4.3.)
    """
    found = []
    for path in sys.path:
        folder, name = os.path.split(path)
        higher = os.path.join(os.path.dirname(folder), name)
        if (
            os.path.basename(folder) == "streaming_job"
            and not os.path.exists(path)
            and os.path.isfile(higher)
        ):
            found.append(higher)
    sys.path[1:1] = found
    importlib.invalidate_caches()
    return bool(found)
