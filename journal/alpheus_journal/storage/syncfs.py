"""Make many staged files durable by one `syncfs` instead of one fsync for each file.

`syncfs` writes a whole file system. It replaces the fsyncs of many files only where both conditions hold:

- The kernel is Linux 5.17 or later and the file system is ext4 or XFS (`Syscalls.has_syncfs`).
- Few other bytes wait to be written, because the caller waits for them too: at most UNWRITTEN_BYTES_MAX on the whole
  machine, checked before each use.

An fsync of the last file follows. This fsync makes the disk flush its cache after everything that `syncfs` wrote (ext4
without a journal writes inodes after its own flush). It also fails where `syncfs` reports success without having
written: on a file system that an error made read-only, and on ext4 that was shut down.

How failures are reported. The kernel keeps the last write failure of each file system in a counter (`errseq_t`), and
each descriptor remembers which failures it has reported. `syncfs` reports each failure once for each descriptor. So
the store always calls `syncfs` on one descriptor, that of the prefix, which is opened before the first write and kept.
Then no failure between two calls is missed, and no other process can consume a failure. (A forked child shares the
descriptor and could; a store must not be used in a forked child.) Calls of one store run one after the other, because
one call receives the failure while it may have hit the files of another call:

- A failure ends all writes of the process, as a failed fsync does. Callers that wait for their turn are refused too.
- When space ran out, only the files of the call that received the failure are given up. Waiting and later calls use
  fsyncs. A file's descriptor has a counter for that file alone, so an fsync reports correctly.
- The counter also holds failures from before the store was opened. So the first use calls `syncfs` before any file is
  staged. When that call fails, for whatever reason, the store uses only fsyncs.

`syncfs` also reports failures that hit files of other programs: the store then writes no more to that disk.
"""

from __future__ import annotations

import threading

from alpheus_journal.storage.posix import NO_SPACE, Directory

UNWRITTEN_BYTES_MAX = 16 << 20


class GroupSync:
    """`syncfs` for the files of one store, where it can replace their fsyncs. Any thread may call it."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._system = directory.system
        self._turn = threading.Lock()
        self._usable: bool | None = None
        """None until the first try."""

    def ready(self) -> bool:
        """Return whether `sync` is worth calling for the next files. Call this before the first of them is staged."""
        if self._usable is False or not self._is_little_unwritten():
            return False
        if self._usable is None:
            with self._turn:
                if self._usable is None:
                    self._usable = self._system.has_syncfs(self._directory.fd) and self._try_syncfs()
        return self._usable

    def sync(self, fd: int, path: str) -> bool:
        """Make everything durable that was written before. `fd` is the last file, meant for `path`.

        Return False when nothing was tried and each file needs an fsync. Raises OSError as an fsync of that file does,
        and Unavailable (`storage_read_only`) when another write of the process has failed to sync.
        """
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
        """Consume the failures reported so far, none of which is about a file that waits for `sync`. Return whether
        `syncfs` works."""
        try:
            self._system.syncfs(self._directory.fd)
        except OSError:
            return False
        return True
