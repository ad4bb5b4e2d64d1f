"""Large files that are read through a memory map: where they lie, or from a copy without a name.

A map outlives its file's name and the open file, so nothing has to be removed or closed later.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


def open_plain(local: str) -> IO[bytes]:
    """A file of a store on this machine, to be read. OSError for a link too, and at once for a pipe or a socket."""
    return open(local, "rb", opener=_no_links)


def _no_links(local: str, flags: int) -> int:
    return os.open(local, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


@contextmanager
def nameless_copy(data: bytes, cache_dir: str) -> Iterator[IO[bytes]]:
    """A file of `data` in `cache_dir` (empty: the system's folder for temporary files). OSError when it cannot be."""
    with tempfile.TemporaryFile(dir=cache_dir or None) as file:
        file.write(data)
        file.flush()
        yield file


def mapped(file: IO[bytes]) -> mmap.mmap:
    """All of a file that is not empty, to be read."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
