"""Read large files through a memory map: in place, or from a temporary copy without a name.

A map outlives the name of its file and the open file, so nothing has to be removed or closed later.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


def open_plain(local: str) -> IO[bytes]:
    """Open a file of a store on this machine for reading. Raises OSError also for a symbolic link, and immediately for
    a pipe or a socket."""
    return open(local, "rb", opener=_no_links)


def _no_links(local: str, flags: int) -> int:
    return os.open(local, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


@contextmanager
def nameless_copy(data: bytes, cache_dir: str) -> Iterator[IO[bytes]]:
    """Write `data` to a temporary file without a name in `cache_dir`. An empty `cache_dir` means the system's folder
    for temporary files. Raises OSError when the file cannot be written."""
    with tempfile.TemporaryFile(dir=cache_dir or None) as file:
        file.write(data)
        file.flush()
        yield file


def map_file(file: IO[bytes]) -> mmap.mmap:
    """Map the whole of a file for reading. The file must not be empty."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
