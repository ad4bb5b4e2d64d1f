"""A store in a directory of a local file system (or a network one that has POSIX semantics and hard links).

A write becomes durable and visible in this order (FORMAT.md, "Committing"):

1. The whole file is written under a random name in `.staging/` at the top of the prefix, and fsynced. Where
   AT_ONCE_MIN or more files are staged together, one `syncfs` may replace their fsyncs (see `syncfs`).
2. `create` hard-links the staged file to its path. The file system lets exactly one link succeed, and the file appears
   whole. `put` renames the staged file instead, which replaces an older file in one step.
3. The folder is fsynced, and only then does the call return. Before this process puts the first file into a folder, it
   fsyncs the folder's own entry into its parent, and the entries that lead to the prefix.

Writing in place with `O_EXCL` was rejected, because a crash leaves a slot that is filled and torn. `O_TMPFILE` with
`linkat` was measured against staging, interleaved on a busy ext4 (2,000 creates of 20 KB, 700 commits of three
nodes and a root each): 646 against 714 us for a single create, 3,875 against 3,931 us for a commit, a difference
below the noise. It would need ctypes and a mounted /proc, and replacing a file needs a staging name anyway.

A consequence of step 3 is that a link is visible before it is durable. So the first read of a slot below `vn/`
fsyncs that folder, once for each slot and process. No reader therefore acts on a version that a power cut can
undo. The hints beside the slots are exempt, because they may be wrong anyway.

An fsync that failed is never repeated (`posix.Directory`): the store refuses every later write of this process
(`storage_read_only`). When the fsync of the slots' folder failed, the store also refuses to show new slots.

Files that a killed process left in `.staging/` are removed by the first write of a later process when they are
older than an hour by the file system's own clock. A writer that was stopped for an hour finds its file deleted
and fails with nothing applied. Empty folders stay, because removing one would race with a writer about to use it: a
writer of this driver, and each other program, makes a folder and then a file in it, and fails when the folder is gone.
Also, a process syncs the entry of a folder once. It would not sync the entry of a new folder that took the old one's
place, and a power cut could then remove the new folder with acknowledged files.

The module is long because reads and writes share the descriptors, the slots seen so far and the lock of one store.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import stat
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import ParamSpec, TypeVar
from urllib.parse import quote

from alpheus_journal import failpoints
from alpheus_journal.errors import AlpheusError, InvalidInput, OutcomeUnknown, Unavailable
from alpheus_journal.format import LATEST_HINT, OLDEST_HINT
from alpheus_journal.storage.interface import (
    ObjectInfo,
    Storage,
    check_part,
    check_path,
    check_prefix,
    check_size,
    each_of,
    file_not_there,
    files_not_stored,
    is_path,
    slot_taken,
    split_items,
    unreadable,
)
from alpheus_journal.storage.posix import (
    ABSENT,
    FOLDER_FLAGS,
    NETWORK_FILE_SYSTEMS,
    NOT_APPLIED,
    READ_FLAGS,
    SLOTS_FOLDER,
    STAGE_FLAGS,
    STAGING_FOLDER,
    Directory,
    Folders,
    Identity,
    Level,
    Syscalls,
    identity,
    symlink,
)
from alpheus_journal.storage.suitability import refuse_skew
from alpheus_journal.storage.syncfs import GroupSync

_P = ParamSpec("_P")
_T = TypeVar("_T")

STAGING_AGE_SECONDS_MAX = 3600
THREADS = 8
LIST_BATCH = 1000
DELETE_BATCH = 500
DELETE_THREADS = 4
"""The number of a store's threads that one `delete_many` may use. The others serve other callers meanwhile."""
STAGED_MAX = 128
SYNC_THREADS = 8
AT_ONCE_MIN = 12
"""The number of files from which a `syncfs` pays. With 8 files a `publish` took as long as with fsyncs, on ext4 with
and without a journal, and on XFS. With 16 files it took a third less CPU; with 128 files a third to a half less CPU,
and a fifth to two fifths less time."""
FOLDERS_ANCHORED_MAX = 10_000
SLOTS_SEEN_MAX = 16_384

_STAGED_POINTS = {"node": "local.node_staged", "def": "local.definition_staged", "vn": "local.root_staged"}
_HINTS = frozenset({LATEST_HINT, OLDEST_HINT})


class _Staged:
    """A file under its staging name. While `pending` is true, the staging name must still be removed. `written_nanos`
    is the time of this machine's clock before and after the file was written."""

    __slots__ = ("fd", "folder", "identity", "name", "path", "pending", "staging_name", "written_nanos")

    def __init__(self, path: str, staging_name: str, fd: int) -> None:
        self.path = path
        self.folder, _, self.name = path.rpartition("/")
        self.staging_name = staging_name
        self.fd = fd
        self.pending = True
        self.identity = Identity(0, 0, 0)
        self.written_nanos = (0, 0)


class LocalStorage(Storage):
    """The directory at `path`. With `create` a missing directory is made, with its parents.

    Opening makes a few blocking system calls and writes nothing else. A directory without write permission can be
    read. The first write makes `.staging/` and tests hard links there. Raises NotFound (`no_catalog`) for a missing
    directory, InvalidInput (`bad_url`) when `path` is not a directory, and Denied.

    Blocking work runs in up to `threads` threads of the store, one job for each method call (`list`: each batch).
    The queue of jobs has no limit, because a caller waits for each job. When the caller is cancelled, a job that
    has begun runs to its end, so the write may or may not have been applied. With `threads=0` each job runs in the
    calling thread and waits for nothing, for tests with a fake `system`.

    Writes are as durable as fsync makes them. On macOS fsync does not reach the disk's own cache.
    """

    publishes_at_once = True

    def __init__(
        self, path: str, create: bool = False, *, system: Syscalls | None = None, threads: int = THREADS
    ) -> None:
        if "\0" in path or not path:
            raise InvalidInput(
                f"{path!r} is not a directory", kind="bad_url", hint="give a URL such as file:///lake"
            )
        self._path = os.path.abspath(path)
        self.url = "file://" + quote(self._path)
        self._system = system if system is not None else Syscalls()
        self._directory = Directory(self._path, self.url, self._system, create=create)
        self._group_sync = GroupSync(self._directory)
        # Also closes the descriptor when `close` is never called. Running jobs hold the store and so the descriptor.
        self._release = weakref.finalize(self, self._system.close, self._directory.fd)
        self._pool: ThreadPoolExecutor | None = None
        self._syncers: ThreadPoolExecutor | None = None
        if threads:
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="alpheus-storage")
            self._syncers = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="alpheus-sync")
        self._closed = False
        self._lock = threading.Lock()
        self._tested = False
        self._has_clock = False  # whether the file system has a clock of its own
        self._keeps_order: bool | None = None  # None until the first `put_in_order`
        self._anchored: set[str] = set()
        self._seen: OrderedDict[str, Identity] = OrderedDict()

    # -- the interface

    async def read(self, path: str, *, size_max: int) -> bytes:
        check_path(path)
        return (await self._run(self._read_all, [path], size_max))[path]

    async def read_many(self, paths: Iterable[str], *, size_max: int) -> dict[str, bytes]:
        return await self._run(self._read_all, [check_path(path) for path in paths], size_max)

    async def read_part(self, path: str, *, start: int, size: int) -> bytes:
        return await self._run(self._read_part, check_path(path), start, size)

    async def stat(self, path: str) -> ObjectInfo | None:
        return await self._run(self._stat, check_path(path))

    async def stat_many(self, paths: Iterable[str]) -> dict[str, ObjectInfo | None]:
        checked = [check_path(path) for path in paths]
        return await self._run(self._stat_all, checked)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        walk = self._walk(check_prefix(prefix))
        # A cancelled caller may close the walk while a thread is still in it.
        lock = threading.Lock()

        def take() -> tuple[ObjectInfo, ...]:
            with lock:
                return self._take(walk)

        def close() -> None:
            with lock:
                walk.close()

        try:
            while batch := await self._run(take):
                for info in batch:
                    yield info
        finally:
            if self._closed:
                close()
            else:
                await self._run(close)

    async def create(self, path: str, data: bytes) -> None:
        await self._run(self._publish, {}, self._own(path), data)

    async def put(self, path: str, data: bytes) -> None:
        await self._run(self._put_all, {self._own(path): data})

    async def put_many(self, files: Mapping[str, bytes]) -> None:
        await self._run(self._put_all, {self._own(path): data for path, data in files.items()})

    async def put_in_order(self, files: Mapping[str, bytes]) -> None:
        await self._run(self._put_in_order, {self._own(path): data for path, data in files.items()})

    async def publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        fresh = {self._own(path): data for path, data in files.items()}
        await self._run(self._publish, fresh, self._own(slot), root)

    async def publish_looking(
        self, files: Mapping[str, bytes], slot: str, root: bytes, beside: Sequence[str]
    ) -> dict[str, str | None]:
        fresh = {self._own(path): data for path, data in files.items()}
        return await self._run(
            self._publish_looking, fresh, self._own(slot), root, [check_path(path) for path in beside]
        )

    async def delete(self, path: str) -> None:
        """Remove a file without a sync: a power cut may bring the file back."""
        await self._run(self._delete_all, [self._own(path)])

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Remove files without a sync, as `delete` does. One job removes up to DELETE_BATCH files. Folders that become
        empty stay (see the module)."""
        # In order, so that a job opens each folder once.
        batches = split_items(sorted({self._own(path) for path in paths}), DELETE_BATCH)
        if self._pool is None:
            for batch in batches:
                await self._run(self._delete_all, batch)
        else:
            await each_of(batches, lambda batch: self._run(self._delete_all, batch), DELETE_THREADS)

    def uri(self, path: str) -> str:
        return f"{self.url.rstrip('/')}/{quote(check_path(path))}"

    def local_path(self, path: str) -> str | None:
        return f"{self._path}/{check_path(path)}" if type(self._system) is Syscalls else None

    async def make_durable(self, paths: Sequence[str]) -> None:
        await self._run(self._sync_all, [self._own(path) for path in paths])

    async def enclosing(self, paths: Sequence[str]) -> str:
        return await self._run(self._directory.enclosing, [check_path(path) for path in paths])

    async def close(self) -> None:
        """Wait for running jobs and release everything. Later calls raise Unavailable."""
        self._closed = True
        for pool in (self._pool, self._syncers):
            if pool is not None:
                await asyncio.get_running_loop().run_in_executor(None, pool.shutdown)
        self._release()

    async def _run(self, job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._closed:
            raise Unavailable(f"{self.url} was closed", kind="shutting_down")
        if self._pool is None:
            return job(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: job(*args, **kwargs))

    def _own(self, path: str) -> str:
        """Return `path` when callers may write it, else raise InvalidInput."""
        if check_path(path).split("/", 1)[0] == STAGING_FOLDER:
            raise InvalidInput(f"{path!r}: {STAGING_FOLDER} is reserved for the driver", kind="bad_argument")
        return path

    # -- reading

    def _read_all(self, paths: Iterable[str], size_max: int) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        found: dict[str, Identity] = {}
        with self._directory.folders() as folders:
            for path in paths:
                try:
                    contents[path], found[path] = self._read(folders, path, size_max)
                except OSError as error:
                    if error.errno in ABSENT:
                        self._check_in_place(path)
                    raise self._directory.read_error(error, path) from error
            self._expose(folders, found)
        return contents

    def _read(self, folders: Folders, path: str, size_max: int) -> tuple[bytes, Identity]:
        with self._open_file(folders, path) as (fd, info):
            check_size(path, info.st_size, size_max)
            chunks, missing = [], info.st_size
            while missing > 0 and (chunk := self._system.read(fd, missing)):
                chunks.append(chunk)
                missing -= len(chunk)
            if missing > 0:
                raise unreadable(path, f"ended {missing} bytes early: another program cut it during the read")
            return chunks[0] if len(chunks) == 1 else b"".join(chunks), identity(info)

    @contextlib.contextmanager
    def _open_file(self, folders: Folders, path: str) -> Iterator[tuple[int, os.stat_result]]:
        folder, _, name = path.rpartition("/")
        fd = self._system.open(name, READ_FLAGS, folders.open(folder))
        try:
            info = self._system.fstat(fd)
            if stat.S_ISDIR(info.st_mode):
                raise file_not_there(path, self.url)
            if not stat.S_ISREG(info.st_mode):
                raise unreadable(path, "is not a regular file")
            yield fd, info
        finally:
            self._system.close(fd)

    def _read_part(self, path: str, start: int, size: int) -> bytes:
        with self._directory.folders() as folders:
            try:
                with self._open_file(folders, path) as (fd, info):
                    chunks, missing = [], size
                    while missing > 0 and (
                        chunk := self._system.read_at(fd, missing, start + size - missing)
                    ):
                        chunks.append(chunk)
                        missing -= len(chunk)
            except OSError as error:
                if error.errno in ABSENT:
                    self._check_in_place(path)
                raise self._directory.read_error(error, path) from error
            self._expose(folders, {path: identity(info)})
        return check_part(path, b"".join(chunks), size)

    def _stat(self, path: str) -> ObjectInfo | None:
        folder, _, name = path.rpartition("/")
        with self._directory.folders() as folders:
            try:
                info = self._system.stat(name, folders.open(folder))
            except OSError as error:
                if error.errno in ABSENT:
                    self._check_in_place(path)
                    return None
                raise self._directory.read_error(error, path) from error
            if stat.S_ISDIR(info.st_mode):
                return None
            if stat.S_ISLNK(info.st_mode):
                raise symlink(path)
            if not stat.S_ISREG(info.st_mode):
                raise unreadable(path, "is not a regular file")
            self._expose(folders, {path: identity(info)})
        return _info(path, info)

    def _stat_all(self, paths: Sequence[str]) -> dict[str, ObjectInfo | None]:
        # Checked here once for all paths: is the prefix still the directory that was opened?
        self._directory.check_in_place("")
        return {path: self._stat(path) for path in paths}

    def _check_in_place(self, path: str) -> None:
        """Raise Unavailable when the prefix, or the slots' folder that this process used, was removed: a missing slot
        would look like the end of the history, and a write would begin a second history."""
        self._directory.check_in_place(path)
        if SLOTS_FOLDER in self._anchored:
            try:
                self._system.stat(SLOTS_FOLDER, self._directory.fd)
            except FileNotFoundError as error:
                raise self._directory.gone_error(f"{self._path}/{SLOTS_FOLDER}", path) from error
            except OSError:
                return  # the caller's own call meets this error

    def _expose(self, folders: Folders, found: Mapping[str, Identity]) -> None:
        """Make the slots in `found` durable before they are shown: fsync the slots' folder unless all were seen
        before."""
        with self._lock:
            fresh = {
                path: identity
                for path, identity in found.items()
                if path.startswith(SLOTS_FOLDER + "/")
                and path not in _HINTS
                and self._seen.get(path) != identity
            }
        if not fresh:
            return
        path = next(iter(fresh))
        if self._directory.slots_doubtful:
            raise Unavailable(
                f"{path} in {self.url} may not be durable and is not shown: {self._directory.broken}",
                kind="storage_read_only",
                hint="check the disk, then restart the process",
                path=path,
            )
        try:
            for folder in ("", SLOTS_FOLDER):
                if folder or SLOTS_FOLDER not in self._anchored:
                    self._fsync_folder(folders, folder)
            self._anchored.add(SLOTS_FOLDER)
        except OSError as error:
            if not self._directory.cannot_sync(error):
                raise Unavailable(
                    f"cannot make {path} durable before showing it: {error.strerror}",
                    kind="storage_read_only" if self._directory.broken else "",
                    path=path,
                ) from error
        self._remember(fresh)

    def _remember(self, slots: Mapping[str, Identity]) -> None:
        with self._lock:
            self._seen.update(slots)
            while len(self._seen) > SLOTS_SEEN_MAX:
                self._seen.popitem(last=False)

    def _take(self, walk: Iterator[tuple[ObjectInfo, Identity]]) -> tuple[ObjectInfo, ...]:
        try:
            batch = tuple(itertools.islice(walk, LIST_BATCH))
        except OSError as error:
            raise self._directory.read_error(error, "a folder") from error
        with self._directory.folders() as folders:
            self._expose(folders, {info.path: identity for info, identity in batch})
        return tuple(info for info, _ in batch)

    def _walk(self, prefix: str) -> Generator[tuple[ObjectInfo, Identity], None, None]:
        """Walk depth first, so that the number of open descriptors is the depth of the tree."""
        folder, _, _ = prefix.rpartition("/")
        if folder.split("/", 1)[0] == STAGING_FOLDER:
            return
        with self._directory.folders() as folders:
            try:
                top = folders.open(folder)
            except OSError as error:
                if error.errno in ABSENT:
                    self._check_in_place(folder)
                    return
                raise
            levels = [Level(self._system, top, f"{folder}/" if folder else "", owned=False)]
            try:
                while levels:
                    level = levels[-1]
                    entry = next(level.entries, None)
                    if entry is None:
                        levels.pop().close()
                        continue
                    path = level.path + entry.name
                    if not path.startswith(prefix) or not is_path(path) or path == STAGING_FOLDER:
                        continue
                    # A file that is deleted between two steps is not listed.
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        if entry.is_dir(follow_symlinks=False):
                            fd = self._system.open(entry.name, FOLDER_FLAGS, level.fd)
                            levels.append(Level(self._system, fd, path + "/", owned=True))
                        elif entry.is_file(follow_symlinks=False):
                            info = entry.stat(follow_symlinks=False)
                            yield _info(path, info), identity(info)
            finally:
                for level in levels:
                    level.close()

    # -- writing

    def _put_all(self, files: Mapping[str, bytes]) -> None:
        for part in _split_files(files):
            with self._prepare_write(next(iter(part))) as folders, self._stage_files(folders, part) as staged:
                self._rename_all(folders, staged)

    def _put_in_order(self, files: Mapping[str, bytes]) -> None:
        """Put files so that none is visible or durable before an earlier one. They are staged and synced together. A
        file system that may reorder renames makes each rename durable before the next one."""
        if self._keeps_order is None:
            self._keeps_order = self._system.keeps_order(self._directory.fd)
        for part in _split_files(files):
            with self._prepare_write(next(iter(part))) as folders, self._stage_files(folders, part) as staged:
                for group in [staged] if self._keeps_order else [[file] for file in staged]:
                    self._rename_all(folders, group)

    def _publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> Identity:
        *parts, last = [*_split_files(files)] or [{}]
        try:
            for part in parts:
                self._put_all(part)
            with (
                self._prepare_write(slot) as folders,
                self._stage_files(folders, {**last, slot: root}) as staged,
            ):
                self._check_clock(staged[-1])
                self._rename_all(folders, staged[:-1])
                self._link(folders, staged[-1])
                return staged[-1].identity
        except OutcomeUnknown as error:
            if error.path == slot:
                raise
            raise files_not_stored(slot, error) from error

    def _check_clock(self, file: _Staged) -> None:
        """Raise InvalidInput (`clock_skew`) when a network file system's clock is far from this machine's clock. The
        modification time of `file`, which was just written, tells the file system's time. A local disk has no clock of
        its own to compare with."""
        if self._has_clock:
            before, after = file.written_nanos
            modified = file.identity.modified_at_nanos
            # A write may take minutes; any time between its begin and its end agrees.
            offset = min(modified - before, 0) or max(modified - after, 0)
            refuse_skew(self.url, offset // 1_000_000)

    def _publish_looking(
        self, files: Mapping[str, bytes], slot: str, root: bytes, beside: Sequence[str]
    ) -> dict[str, str | None]:
        written = self._publish(files, slot, root)
        try:
            # Folders are opened again, because the folder that holds the slot may have been replaced.
            self._directory.check_in_place(slot)
        except Unavailable as error:
            raise OutcomeUnknown(
                f"{slot} was stored, but {error.message}", path=slot, hint=error.hint
            ) from error
        try:
            found = {
                path: None if (info := self._stat(path)) is None else info.tag for path in (slot, *beside)
            }
        except AlpheusError:
            return {}
        if found[slot] != _tag(written):
            raise OutcomeUnknown(f"{slot} in {self.url} was stored and has disappeared since", path=slot)
        return found

    def _delete_all(self, paths: Sequence[str]) -> None:
        if self._directory.broken:
            raise self._directory.read_only_error(paths[0])
        self._check_in_place(paths[0])
        with self._directory.folders() as folders:
            for path in paths:
                folder, _, name = path.rpartition("/")
                try:
                    self._system.unlink(name, folders.open(folder))
                except OSError as error:
                    if error.errno not in ABSENT | {errno.EISDIR}:
                        raise self._directory.write_error(error, path) from error

    def _sync_all(self, paths: Sequence[str]) -> None:
        """Sync files that other programs wrote: first the content, then the entries that lead to the files."""
        if not paths:
            return
        with self._prepare_write(paths[0]) as folders:
            for path in paths:
                self._sync_file(folders, path)
            for folder in sorted({path.rpartition("/")[0] for path in paths}):
                self._make_folder(folders, folder)
                self._fsync_folder(folders, folder)

    def _sync_file(self, folders: Folders, path: str) -> None:
        folder, _, name = path.rpartition("/")
        try:
            fd = self._system.open(name, READ_FLAGS, folders.open(folder))
        except OSError as error:
            raise self._directory.read_error(error, path) from error
        try:
            if not stat.S_ISREG(self._system.fstat(fd).st_mode):
                raise unreadable(path, "is not a regular file")
            self._directory.fsync_file(fd, path)
        finally:
            self._system.close(fd)

    @contextlib.contextmanager
    def _prepare_write(self, path: str) -> Iterator[Folders]:
        """Check that the store may be written, and give the block open folders. An OSError inside the block means that
        the write of `path` was not applied; it becomes an error of ours."""
        if self._directory.broken:
            raise self._directory.read_only_error(path)
        self._check_in_place(path)
        try:
            with self._directory.folders() as folders:
                self._prepare_once(folders)
                yield folders
        except OSError as error:
            raise self._directory.write_error(error, path) from error

    def _prepare_once(self, folders: Folders) -> None:
        """Before this process's first write, test the file system and remove files that killed processes left."""
        with self._lock:
            if self._tested:
                return
            staging = folders.open(STAGING_FOLDER, made=lambda _: None)
            if self._system.fstat(staging).st_dev != self._system.fstat(self._directory.fd).st_dev:
                raise self._directory.unsuitable(f"{STAGING_FOLDER} is on another file system")
            now = self._directory.try_links(staging)
            self._directory.remove_leftovers(staging, now - STAGING_AGE_SECONDS_MAX)
            self._directory.anchor()
            self._has_clock = self._system.file_system_kind(self._directory.fd) in NETWORK_FILE_SYSTEMS
            self._tested = True

    @contextlib.contextmanager
    def _stage_files(self, folders: Folders, files: Mapping[str, bytes]) -> Iterator[tuple[_Staged, ...]]:
        """Write every file, whole and durable, under a staging name; make its target folder, durable too. On exit,
        remove the staging names that are left."""
        for path in files:
            self._make_folder(folders, path.rpartition("/")[0])
        staged: deque[_Staged] = deque()
        at_once = len(files) >= AT_ONCE_MIN and self._group_sync.ready()
        try:
            for path, data in files.items():
                name = self._system.staging_name()
                directory = folders.open(STAGING_FOLDER, made=lambda _: None)
                staged.append(_Staged(path, name, self._system.open(name, STAGE_FLAGS, directory)))
                self._write(staged[-1], data)
                if not at_once:
                    self._system.start_writeback(staged[-1].fd)
            if not at_once or not self._sync_at_once(staged[-1]):
                self._fsync_files(staged)
            yield tuple(staged)
        finally:
            for file in staged:
                # An error here does not matter: the file is already synced, or will be discarded.
                with contextlib.suppress(OSError):
                    self._system.close(file.fd)
                if file.pending:
                    with contextlib.suppress(OSError):
                        self._directory.discard(file.staging_name, folders.open(STAGING_FOLDER))

    def _write(self, file: _Staged, data: bytes) -> None:
        failpoints.hit("local.write")
        began = self._system.time_nanos()
        rest = memoryview(data)
        while rest:
            rest = rest[self._system.write(file.fd, rest, file.path) :]
        file.identity = identity(self._system.fstat(file.fd))
        file.written_nanos = (began, self._system.time_nanos())
        failpoints.hit(_STAGED_POINTS.get(file.folder.partition("/")[0], ""))

    def _make_folder(self, folders: Folders, folder: str) -> None:
        """Open or make `folder`. Afterwards the entries that lead to `folder` are durable."""
        path = ""
        for name in folder.split("/") if folder else ():
            parent, path = path, f"{path}/{name}" if path else name
            try:
                folders.open(path, made=self._anchored.discard)
            except NotADirectoryError as error:
                raise InvalidInput(f"{path} in {self.url} is a file, not a folder", path=path) from error
            if path not in self._anchored:
                self._fsync_folder(folders, parent)
                if len(self._anchored) >= FOLDERS_ANCHORED_MAX:
                    self._anchored.clear()
                self._anchored.add(path)

    def _rename_all(self, folders: Folders, staged: Sequence[_Staged]) -> None:
        """Move staged files to their paths, and make the moves durable with one fsync for each folder."""
        for file in staged:
            source = folders.open(STAGING_FOLDER)
            self._place(self._system.rename, folders, file, source, folders.open(file.folder))
            file.pending = False
        failpoints.hit("local.renamed")
        for folder, path in {file.folder: file.path for file in staged}.items():
            self._make_entry_durable(folders, folder, path)
        self._remember({file.path: file.identity for file in staged if file.folder == SLOTS_FOLDER})

    def _link(self, folders: Folders, file: _Staged) -> None:
        """Link a staged file to its path, which must be free."""
        source = folders.open(STAGING_FOLDER)
        failpoints.hit("local.link")
        self._place(self._system.link, folders, file, source, folders.open(file.folder))
        failpoints.hit("local.linked")
        self._directory.discard(file.staging_name, source)
        file.pending = False
        self._make_entry_durable(folders, file.folder, file.path)
        if file.folder == SLOTS_FOLDER:
            self._remember({file.path: file.identity})

    def _place(
        self, call: Callable[[str, int, str, int, str], None], folders: Folders, file: _Staged, source: int,
        directory: int,
    ) -> None:  # fmt: skip
        try:
            call(file.staging_name, source, file.name, directory, file.path)
        except OSError as error:
            if self._is_placed(file, directory):
                return
            if error.errno == errno.EEXIST:
                raise slot_taken(file.path) from error
            if error.errno in NOT_APPLIED:
                raise self._directory.write_error(error, file.path) from error
            raise self._directory.unknown_error(file.path, error) from error

    def _is_placed(self, file: _Staged, directory: int) -> bool:
        """Return whether our file is at its path in spite of the error. A network file system repeats a call whose
        reply was lost, and then reports the error of the repetition."""
        try:
            found = self._system.stat(file.name, directory)
        except OSError:
            return False
        return identity(found) == file.identity

    def _make_entry_durable(self, folders: Folders, folder: str, path: str) -> None:
        try:
            self._fsync_folder(folders, folder)
        except OSError as error:
            raise self._directory.unknown_error(path, error) from error

    def _sync_at_once(self, last: _Staged) -> bool:
        failpoints.hit("local.fsync")
        return self._group_sync.sync(last.fd, last.path)

    def _fsync_files(self, files: Sequence[_Staged]) -> None:
        """Fsync several files concurrently, so that the disk flushes its cache once for several of them."""
        if len(files) <= SYNC_THREADS or self._syncers is None:
            for file in files:
                self._fsync_file(file)
            return
        waiting = deque(files)

        def sync_waiting() -> None:
            while True:
                try:
                    file = waiting.popleft()
                except IndexError:
                    return
                self._fsync_file(file)

        # One job for each thread, not for each file: submitting a job costs more than an fsync call.
        jobs = [self._syncers.submit(sync_waiting) for _ in range(SYNC_THREADS)]
        wait(jobs)  # for all, even when one fails: the descriptors of the files are closed next
        for job in jobs:
            job.result()

    def _fsync_file(self, file: _Staged) -> None:
        failpoints.hit("local.fsync")
        self._directory.fsync_file(file.fd, file.path)

    def _fsync_folder(self, folders: Folders, folder: str) -> None:
        failpoints.hit("local.folder_fsync")
        self._directory.fsync_folder(folders.open(folder), folder)


def _split_files(files: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Split files into groups of STAGED_MAX, so that a group's descriptors can all be open."""
    items = iter(files.items())
    while part := dict(itertools.islice(items, STAGED_MAX)):
        yield part


def _info(path: str, info: os.stat_result) -> ObjectInfo:
    return ObjectInfo(path, info.st_size, info.st_mtime_ns // 1_000_000, _tag(identity(info)))


def _tag(identity: Identity) -> str:
    return f"{identity.device}-{identity.inode}-{identity.modified_at_nanos}"
