"""Many staged files made durable by one `syncfs` instead of an fsync each.

`syncfs` writes a whole file system, so it stands for the fsyncs of many files where, and only where,

- it is Linux 5.17 or later and the file system is ext4 or XFS (`Syscalls.has_syncfs`);
- little else is waiting to be written, or the caller would wait for what others wrote: at most UNWRITTEN_BYTES_MAX
  on the whole machine, looked up before each use.

An fsync of the last file follows it. That has the disk flush its cache after everything that `syncfs` wrote (ext4
without a journal writes inodes after its own flush) and fails where `syncfs` says "fine" without having written:
on a file system that an error made read-only, on ext4 that was shut down.

What is reported. The kernel keeps the last failure to write for each file system in a counter (`errseq_t`), and each
descriptor remembers how far it has seen; `syncfs` reports a failure that its descriptor has not, once. So the store
asks through one descriptor, that of the prefix, opened before anything was written and kept: no failure between
two calls is missed, nor can other processes take it away (a forked child could, which shares the descriptor; a store is
not for use in one). Calls of one store go one after the other, because a
failure is told to one of them and the others may be those that it hit:

- a failure ends all writes of the process, as that of an fsync does; who waited for its turn is refused, too;
- for lack of space only the files of the call that was told are given up; those that wait take fsyncs, and so does
  everything later. A file's descriptor has a counter of its own for that file, so an fsync tells what is true;
- the counter also tells of failures before the store was opened that nobody asked for. So the first use
  calls `syncfs` before any file is staged, and when that fails, for whatever reason, there are only fsyncs.

`syncfs` tells of files of others as well: a disk that lost those of another program is not written to again.
"""

from __future__ import annotations

import threading

from alpheus_journal.storage.posix import NO_SPACE, Directory

UNWRITTEN_BYTES_MAX = 16 << 20


class GroupSync:
    """`syncfs` for the files of one store, where it can stand for their fsyncs; from any thread."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._system = directory.system
        self._turn = threading.Lock()
        self._usable: bool | None = None
        """None: not yet tried."""

    def ready(self) -> bool:
        """Whether `sync` is worth calling for the files to be staged now; to be asked before the first one is."""
        if self._usable is False or not self._is_little_unwritten():
            return False
        if self._usable is None:
            with self._turn:
                if self._usable is None:
                    self._usable = self._system.has_syncfs(self._directory.fd) and self._try_syncfs()
        return self._usable

    def sync(self, fd: int, path: str) -> bool:
        """All that was written before is durable afterwards, if True; `fd` is the last file, meant for `path`.
        False: nothing was tried, each file needs an fsync. Raises OSError as an fsync of that file does, and
        Unavailable (`storage_read_only`) when the store was broken meanwhile."""
        with self._turn:
            if self._directory.broken:
                raise self._directory.read_only_error(path)
            if not self._usable:
                return False
            try:
                self._directory.syncfs(path)
            except OSError as error:
                self._usable = error.errno not in NO_SPACE and self._usable
                raise
        self._directory.fsync_file(fd, path)
        return True

    def _is_little_unwritten(self) -> bool:
        unwritten = self._system.unwritten_bytes()
        return unwritten is not None and unwritten <= UNWRITTEN_BYTES_MAX

    def _try_syncfs(self) -> bool:
        """Takes what was to be reported so far: none of it is about a file that waits for `sync`."""
        try:
            self._system.syncfs(self._directory.fd)
        except OSError:
            return False
        return True
