"""A store in a directory of a local file system (or a network one that has POSIX semantics and hard links).

How a write becomes durable and visible, in this order (FORMAT.md, "Committing"):

1. the whole file is written under a random name in `.staging/` at the top of the prefix, and fsynced;
2. `create` hard-links it to its path: the file system lets exactly one link win, and what appears is whole.
   `put` renames it there, which replaces an older file in one step;
3. the folder is fsynced, and only then does the call return. A folder's own entry is fsynced into its
   parent before this process puts the first file into it.

Writing in place with `O_EXCL` was rejected: a crash leaves a slot that is taken and torn. `O_TMPFILE` needs
no staging folder and is a little faster, but Python cannot link it without `linkat` through ctypes.

The other side of step 3: a link can be seen before it is durable. So the first read of a slot below `vn/`
fsyncs that folder, once for each slot and process; nobody acts on a version that a power cut can take
back. The hints beside the slots are exempt: they may be wrong anyway.

An fsync that failed says nothing about what is on the disk, and a second one may say "fine" without
having written anything. So it is never repeated: the store refuses every later write of this process
(`storage_read_only`), and when the failing fsync was one of the slots' folder, slots not seen before too.

Nothing follows a symbolic link below the prefix: folders are opened one component after the other, relative
to the descriptor of their parent. The prefix itself is opened once and stays that directory for good.

Files that a killed process left in `.staging/` are removed by the first write of a later one when they are
older than an hour by the file system's own clock. A writer that was stopped for so long finds its file gone
and fails with nothing applied. Empty folders stay: removing one would race with a writer about to use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import itertools
import os
import secrets
import stat
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

from alpheus_journal.errors import (
    AlpheusError,
    Corrupt,
    Denied,
    Exhausted,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.format import LATEST_HINT, OLDEST_HINT
from alpheus_journal.storage import (
    ObjectInfo,
    Storage,
    check_path,
    check_prefix,
    check_size,
    file_not_there,
    files_not_stored,
    is_path,
    slot_taken,
    unreadable,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")

STAGING_FOLDER = ".staging"
STAGING_AGE_SECONDS_MAX = 3600
THREADS = 8
LIST_BATCH = 1000
FOLDERS_OPEN_MAX = 64
STAGED_MAX = 128
SYNC_THREADS = 8
FOLDERS_ANCHORED_MAX = 10_000
SLOTS_SEEN_MAX = 16_384

_SLOTS_FOLDER = "vn"
_HINTS = frozenset({LATEST_HINT, OLDEST_HINT})

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO must not wait for its writer.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_STAGE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMLINK})
_NO_LINKS = frozenset({errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
# Of a link or rename that fails so it is certain that nothing happened.
_NOT_APPLIED = (
    _NO_SPACE
    | _NO_LINKS
    | _ABSENT
    | {errno.EEXIST, errno.EPERM, errno.EACCES, errno.EROFS, errno.ELOOP, errno.EINVAL, errno.ENOMEM}
    | {errno.EISDIR, errno.ENOTEMPTY}
)
# Of an fsync on a file system that is mounted for reading only or keeps no directories to sync.
_CANNOT_SYNC = frozenset({errno.EROFS, errno.EACCES, errno.EBADF, errno.EINVAL})


class _Entries(Protocol):
    """What `os.scandir` returns."""

    def __enter__(self) -> _Entries: ...
    def __exit__(self, *args: object) -> None: ...
    def __iter__(self) -> _Entries: ...
    def __next__(self) -> os.DirEntry[str]: ...
    def close(self) -> None: ...


class Syscalls:
    """Every system call that touches files of the store. Fault injectors override single methods.

    `path` is the path below the prefix that the call is about, the prefix itself being "". Names are one
    component, relative to the descriptor beside them.
    """

    def open(self, name: str, flags: int, directory: int) -> int:
        return os.open(name, flags, 0o666, dir_fd=directory)

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, size: int) -> bytes:
        return os.read(fd, size)

    def write(self, fd: int, data: memoryview, path: str) -> int:
        return os.write(fd, data)

    def fsync(self, fd: int, path: str) -> None:
        os.fsync(fd)

    def start_writeback(self, fd: int) -> None:
        """Tell the kernel to begin writing a file; a mere hint, whose failure the later fsync reports."""
        if _sync_file_range is not None:
            _sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def stat(self, name: str, directory: int) -> os.stat_result:
        """Of the entry itself, a symbolic link included."""
        return os.stat(name, dir_fd=directory, follow_symlinks=False)

    def mkdir(self, name: str, directory: int) -> None:
        os.mkdir(name, dir_fd=directory)

    def link(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        os.link(source, name, src_dir_fd=source_directory, dst_dir_fd=directory, follow_symlinks=False)

    def rename(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        os.rename(source, name, src_dir_fd=source_directory, dst_dir_fd=directory)

    def unlink(self, name: str, directory: int) -> None:
        os.unlink(name, dir_fd=directory)

    def scandir(self, directory: int) -> _Entries:
        return os.scandir(directory)

    def staging_name(self) -> str:
        return f"{os.getpid()}-{secrets.token_hex(8)}"


_SYNC_FILE_RANGE_WRITE = 2


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """glibc's, which Python does not offer. Started for all files of a commit before the first fsync, it
    lets one journal commit of the file system serve them: a quarter less time for 4 files."""
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    function.restype = ctypes.c_int
    found: Callable[[int, int, int, int], int] = function
    return found


_sync_file_range = _find_sync_file_range()


class _Identity(NamedTuple):
    """Which content a path holds: neither link nor rename changes it, replacing the file does."""

    device: int
    inode: int
    modified_at_nanos: int


def _identity(info: os.stat_result) -> _Identity:
    return _Identity(info.st_dev, info.st_ino, info.st_mtime_ns)


class _Staged:
    """A file under its staging name. `pending`: that name is still to be removed."""

    __slots__ = ("fd", "folder", "identity", "name", "path", "pending", "staging_name")

    def __init__(self, path: str, staging_name: str, fd: int) -> None:
        self.path = path
        self.folder, _, self.name = path.rpartition("/")
        self.staging_name = staging_name
        self.fd = fd
        self.pending = True
        self.identity = _Identity(0, 0, 0)


class _Folders:
    """Descriptors of the folders that one job uses; all are closed at its end. One thread only.

    A descriptor is valid until the next `open`, which may close others to stay within bounds; that of the
    staging folder is valid to the end.
    """

    def __init__(self, system: Syscalls, prefix: int) -> None:
        self._system = system
        self._prefix = prefix
        self._open: dict[str, int] = {}

    def __enter__(self) -> _Folders:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_all()

    def open(self, folder: str, *, made: Callable[[str], None] | None = None) -> int:
        """The descriptor of `folder` ("" is the prefix). With `made`, missing folders are made, and it is
        called with each one that was. Raises OSError; Corrupt where a symbolic link is in the way."""
        if not folder:
            return self._prefix
        if folder in self._open:
            return self._open[folder]
        if len(self._open) >= FOLDERS_OPEN_MAX:
            staging = self._open.pop(STAGING_FOLDER, None)
            self._close_all()
            if staging is not None:
                self._open[STAGING_FOLDER] = staging
        fd, path = self._prefix, ""
        for name in folder.split("/"):
            path = f"{path}/{name}" if path else name
            if path not in self._open:
                self._open[path] = self._step(name, fd, path, made)
            fd = self._open[path]
        return fd

    def _step(self, name: str, directory: int, path: str, made: Callable[[str], None] | None) -> int:
        try:
            return self._system.open(name, _FOLDER_FLAGS, directory)
        except FileNotFoundError:
            if made is None:
                raise
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP) and self._is_symlink(name, directory):
                raise _symlink(path) from error
            raise
        with contextlib.suppress(FileExistsError):  # another writer made it just now
            self._system.mkdir(name, directory)
        made(path)
        return self._system.open(name, _FOLDER_FLAGS, directory)

    def _is_symlink(self, name: str, directory: int) -> bool:
        try:
            return stat.S_ISLNK(self._system.stat(name, directory).st_mode)
        except FileNotFoundError:
            return False

    def _close_all(self) -> None:
        for fd in self._open.values():
            self._system.close(fd)
        self._open.clear()


class LocalStorage(Storage):
    """The directory at `path`; with `create` it is made, parents too, where it is missing.

    Opening makes a few blocking system calls and writes nothing else; a directory that is only readable
    can be read. The first write makes `.staging/` and tries hard links there. Raises NotFound (`no_catalog`)
    for a missing directory, InvalidInput (`bad_url`) for one that is no directory, Denied.

    Blocking work runs in up to `threads` threads of the store, one job per method call (`list`: per batch).
    Jobs queue without a limit of their own: each has a caller that waits for it. When that caller is
    cancelled, a job that has begun runs to its end, so the write may or may not have been applied.

    Durability is what fsync promises; on macOS that does not cover the disk's own cache.
    """

    def __init__(
        self, path: str, create: bool = False, *, system: Syscalls | None = None, threads: int = THREADS
    ) -> None:
        if "\0" in path or not path:
            raise InvalidInput(f"{path!r} is no directory", kind="bad_url", hint="for example file:///lake")
        self._path = os.path.abspath(path)
        self.url = "file://" + quote(self._path)
        self._system = system if system is not None else Syscalls()
        self._prefix = _open_prefix(self._path, self.url, create)
        # Also when nobody calls `close`; running jobs hold the store, so none can lose its descriptor.
        self._release = weakref.finalize(self, self._system.close, self._prefix)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="alpheus-storage")
        self._syncers = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="alpheus-sync")
        self._closed = False
        self._lock = threading.Lock()
        self._tested = False
        self._broken = ""
        self._slots_doubtful = False
        self._anchored: set[str] = set()
        self._seen: OrderedDict[str, _Identity] = OrderedDict()

    # -- the interface

    async def read(self, path: str, *, size_max: int) -> bytes:
        check_path(path)
        return (await self._run(self._read_all, [path], size_max))[path]

    async def read_many(self, paths: Iterable[str], *, size_max: int) -> dict[str, bytes]:
        return await self._run(self._read_all, [check_path(path) for path in paths], size_max)

    async def stat(self, path: str) -> ObjectInfo | None:
        return await self._run(self._stat, check_path(path))

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

    async def publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        fresh = {self._own(path): data for path, data in files.items()}
        await self._run(self._publish, fresh, self._own(slot), root)

    async def delete(self, path: str) -> None:
        """As the interface says. Not synced: a power cut may bring the file back."""
        await self._run(self._delete, self._own(path))

    def uri(self, path: str) -> str:
        return f"{self.url.rstrip('/')}/{quote(check_path(path))}"

    async def make_durable(self, paths: Sequence[str]) -> None:
        await self._run(self._sync_all, [self._own(path) for path in paths])

    async def close(self) -> None:
        """Waits for the jobs that run; later calls raise Unavailable."""
        self._closed = True
        for pool in (self._pool, self._syncers):
            await asyncio.get_running_loop().run_in_executor(None, pool.shutdown)
        self._release()

    async def _run(self, job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._closed:
            raise Unavailable(f"{self.url} was closed", kind="shutting_down")
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: job(*args, **kwargs))

    def _own(self, path: str) -> str:
        """A path that may be written."""
        if check_path(path).split("/", 1)[0] == STAGING_FOLDER:
            raise InvalidInput(f"{path!r}: {STAGING_FOLDER} belongs to the driver", kind="bad_argument")
        return path

    # -- reading

    def _folders(self) -> _Folders:
        return _Folders(self._system, self._prefix)

    def _read_all(self, paths: Iterable[str], size_max: int) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        found: dict[str, _Identity] = {}
        with self._folders() as folders:
            for path in paths:
                try:
                    contents[path], found[path] = self._read(folders, path, size_max)
                except OSError as error:
                    raise self._not_read(error, path) from error
            self._expose(folders, found)
        return contents

    def _read(self, folders: _Folders, path: str, size_max: int) -> tuple[bytes, _Identity]:
        folder, _, name = path.rpartition("/")
        fd = self._system.open(name, _READ_FLAGS, folders.open(folder))
        try:
            info = self._system.fstat(fd)
            if stat.S_ISDIR(info.st_mode):
                raise file_not_there(path, self.url)
            if not stat.S_ISREG(info.st_mode):
                raise unreadable(path, "is no regular file")
            check_size(path, info.st_size, size_max)
            chunks, missing = [], info.st_size
            while missing > 0 and (chunk := self._system.read(fd, missing)):
                chunks.append(chunk)
                missing -= len(chunk)
            if missing > 0:
                raise unreadable(path, f"ended {missing} bytes early: something cut it while it was read")
            return chunks[0] if len(chunks) == 1 else b"".join(chunks), _identity(info)
        finally:
            self._system.close(fd)

    def _stat(self, path: str) -> ObjectInfo | None:
        folder, _, name = path.rpartition("/")
        with self._folders() as folders:
            try:
                info = self._system.stat(name, folders.open(folder))
            except OSError as error:
                if error.errno in _ABSENT:
                    return None
                raise self._not_read(error, path) from error
            if stat.S_ISDIR(info.st_mode):
                return None
            if stat.S_ISLNK(info.st_mode):
                raise _symlink(path)
            if not stat.S_ISREG(info.st_mode):
                raise unreadable(path, "is no regular file")
            self._expose(folders, {path: _identity(info)})
        return _info(path, info)

    def _not_read(self, error: OSError, path: str) -> AlpheusError:
        if error.errno in _ABSENT:
            return file_not_there(path, self.url)
        if error.errno == errno.ELOOP:
            return _symlink(path)
        if error.errno == errno.ENXIO:
            return unreadable(path, "is no regular file")
        if error.errno in (errno.EACCES, errno.EPERM):
            return self._denied(path, "read", error)
        return Unavailable(f"cannot read {path} in {self.url}: {error.strerror}", path=path)

    def _expose(self, folders: _Folders, found: Mapping[str, _Identity]) -> None:
        """Make durable what is about to be shown: fsync the slots' folder unless all were seen before."""
        with self._lock:
            fresh = {
                path: identity
                for path, identity in found.items()
                if path.startswith(_SLOTS_FOLDER + "/")
                and path not in _HINTS
                and self._seen.get(path) != identity
            }
        if not fresh:
            return
        path = next(iter(fresh))
        if self._slots_doubtful:
            raise Unavailable(
                f"{path} in {self.url} may not be durable, so it is not shown: {self._broken}",
                kind="storage_read_only",
                hint="check the disk, then restart the process",
                path=path,
            )
        try:
            for folder in ("", _SLOTS_FOLDER):
                if folder or _SLOTS_FOLDER not in self._anchored:
                    self._fsync_folder(folders, folder)
            self._anchored.add(_SLOTS_FOLDER)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise Unavailable(
                    f"cannot make {path} durable before showing it: {error.strerror}",
                    kind="storage_read_only" if self._broken else "",
                    path=path,
                ) from error
        self._remember(fresh)

    def _remember(self, slots: Mapping[str, _Identity]) -> None:
        with self._lock:
            self._seen.update(slots)
            while len(self._seen) > SLOTS_SEEN_MAX:
                self._seen.popitem(last=False)

    def _take(self, walk: Iterator[tuple[ObjectInfo, _Identity]]) -> tuple[ObjectInfo, ...]:
        try:
            batch = tuple(itertools.islice(walk, LIST_BATCH))
        except OSError as error:
            raise self._not_read(error, "a folder") from error
        with self._folders() as folders:
            self._expose(folders, {info.path: identity for info, identity in batch})
        return tuple(info for info, _ in batch)

    def _walk(self, prefix: str) -> Generator[tuple[ObjectInfo, _Identity], None, None]:
        """Depth first, so that the descriptors held are as many as the tree is deep."""
        folder, _, _ = prefix.rpartition("/")
        if folder.split("/", 1)[0] == STAGING_FOLDER:
            return
        with self._folders() as folders:
            try:
                top = folders.open(folder)
            except OSError as error:
                if error.errno in _ABSENT:
                    return
                raise
            levels = [_Level(self._system, top, f"{folder}/" if folder else "", owned=False)]
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
                    # What vanishes between two steps is simply not listed.
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        if entry.is_dir(follow_symlinks=False):
                            fd = self._system.open(entry.name, _FOLDER_FLAGS, level.fd)
                            levels.append(_Level(self._system, fd, path + "/", owned=True))
                        elif entry.is_file(follow_symlinks=False):
                            info = entry.stat(follow_symlinks=False)
                            yield _info(path, info), _identity(info)
            finally:
                for level in levels:
                    level.close()

    # -- writing

    def _put_all(self, files: Mapping[str, bytes]) -> None:
        for part in _parts(files):
            with self._writing(next(iter(part))) as folders, self._staged(folders, part) as staged:
                self._rename_all(folders, staged)

    def _publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        *parts, last = [*_parts(files)] or [{}]
        try:
            for part in parts:
                self._put_all(part)
            with self._writing(slot) as folders, self._staged(folders, {**last, slot: root}) as staged:
                self._rename_all(folders, staged[:-1])
                self._link(folders, staged[-1])
        except OutcomeUnknown as error:
            if error.path == slot:
                raise
            raise files_not_stored(slot, error) from error

    def _delete(self, path: str) -> None:
        if self._broken:
            raise self._read_only(path)
        folder, _, name = path.rpartition("/")
        with self._folders() as folders:
            try:
                self._system.unlink(name, folders.open(folder))
            except OSError as error:
                if error.errno not in _ABSENT | {errno.EISDIR}:
                    raise self._not_written(error, path) from error

    def _sync_all(self, paths: Sequence[str]) -> None:
        """What others wrote: the content first, then the entries that lead to it."""
        if not paths:
            return
        with self._writing(paths[0]) as folders:
            for path in paths:
                self._sync_file(folders, path)
            for folder in sorted({path.rpartition("/")[0] for path in paths}):
                self._make_folder(folders, folder)
                self._fsync_folder(folders, folder)

    def _sync_file(self, folders: _Folders, path: str) -> None:
        folder, _, name = path.rpartition("/")
        try:
            fd = self._system.open(name, _READ_FLAGS, folders.open(folder))
        except OSError as error:
            raise self._not_read(error, path) from error
        try:
            if not stat.S_ISREG(self._system.fstat(fd).st_mode):
                raise unreadable(path, "is no regular file")
            self._system.fsync(fd, path)
        except OSError as error:
            # As in `_fsync_file`: what failed once is never tried again.
            if error.errno not in _NO_SPACE:
                self._broken = f"fsync of {path} failed: {error.strerror}"
            raise
        finally:
            self._system.close(fd)

    @contextlib.contextmanager
    def _writing(self, path: str) -> Iterator[_Folders]:
        """A write of `path`: what fails with OSError inside has not been applied."""
        if self._broken:
            raise self._read_only(path)
        try:
            with self._folders() as folders:
                self._prepare(folders)
                yield folders
        except OSError as error:
            raise self._not_written(error, path) from error

    def _prepare(self, folders: _Folders) -> None:
        """Before this process's first write: try the file system, remove what killed processes left."""
        with self._lock:
            if self._tested:
                return
            staging = folders.open(STAGING_FOLDER, made=lambda _: None)
            if self._system.fstat(staging).st_dev != self._system.fstat(self._prefix).st_dev:
                raise self._unsuitable(f"{STAGING_FOLDER} lies on another file system")
            now = self._try_links(staging)
            self._remove_leftovers(staging, now - STAGING_AGE_SECONDS_MAX)
            self._tested = True

    def _try_links(self, staging: int) -> float:
        """Its time in epoch seconds; refuses a file system that cannot link exclusively or sync folders."""
        name = self._system.staging_name()
        copy = name + "-link"
        self._system.close(self._system.open(name, _STAGE_FLAGS, staging))
        try:
            self._system.link(name, staging, copy, staging, STAGING_FOLDER)
            try:
                self._system.link(name, staging, copy, staging, STAGING_FOLDER)
            except FileExistsError:
                pass
            else:
                raise self._unsuitable("a second hard link to a taken name succeeds")
            self._system.fsync(staging, STAGING_FOLDER)
            return self._system.stat(name, staging).st_mtime
        except OSError as error:
            if error.errno in _NO_LINKS | {errno.EPERM, errno.EMLINK}:
                raise self._unsuitable("it has no hard links") from error
            if error.errno == errno.EINVAL:
                raise self._unsuitable("it cannot sync folders") from error
            raise
        finally:
            for leftover in (name, copy):
                self._discard(leftover, staging)

    def _remove_leftovers(self, staging: int, modified_before: float) -> None:
        with self._system.scandir(staging) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime < modified_before:
                        self._discard(entry.name, staging)

    def _discard(self, name: str, staging: int) -> None:
        # Nothing depends on it: a later process tries again.
        with contextlib.suppress(OSError):
            self._system.unlink(name, staging)

    @contextlib.contextmanager
    def _staged(self, folders: _Folders, files: Mapping[str, bytes]) -> Iterator[tuple[_Staged, ...]]:
        """Every file whole and durable under a staging name, its folder made and durable."""
        for path in files:
            self._make_folder(folders, path.rpartition("/")[0])
        staged: deque[_Staged] = deque()
        try:
            for path, data in files.items():
                name = self._system.staging_name()
                directory = folders.open(STAGING_FOLDER, made=lambda _: None)
                staged.append(_Staged(path, name, self._system.open(name, _STAGE_FLAGS, directory)))
                self._write(staged[-1], data)
            self._fsync_files(staged)
            yield tuple(staged)
        finally:
            for file in staged:
                # Nothing hangs on it: the file is synced by now, or about to be discarded.
                with contextlib.suppress(OSError):
                    self._system.close(file.fd)
                if file.pending:
                    with contextlib.suppress(OSError):
                        self._discard(file.staging_name, folders.open(STAGING_FOLDER))

    def _write(self, file: _Staged, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._system.write(file.fd, rest, file.path) :]
        file.identity = _identity(self._system.fstat(file.fd))
        self._system.start_writeback(file.fd)

    def _make_folder(self, folders: _Folders, folder: str) -> None:
        """Open or make `folder`; the entries that lead to it are durable afterwards."""
        path = ""
        for name in folder.split("/") if folder else ():
            parent, path = path, f"{path}/{name}" if path else name
            try:
                folders.open(path, made=self._anchored.discard)
            except NotADirectoryError as error:
                raise InvalidInput(f"{path} in {self.url} is a file, so no folder", path=path) from error
            if path not in self._anchored:
                self._fsync_folder(folders, parent)
                if len(self._anchored) >= FOLDERS_ANCHORED_MAX:
                    self._anchored.clear()
                self._anchored.add(path)

    def _rename_all(self, folders: _Folders, staged: Sequence[_Staged]) -> None:
        """Put staged files at their paths and make that durable, one fsync a folder."""
        for file in staged:
            source = folders.open(STAGING_FOLDER)
            self._place(self._system.rename, folders, file, source, folders.open(file.folder))
            file.pending = False
        for folder, path in {file.folder: file.path for file in staged}.items():
            self._settle(folders, folder, path)
        self._remember({file.path: file.identity for file in staged if file.folder == _SLOTS_FOLDER})

    def _link(self, folders: _Folders, file: _Staged) -> None:
        """Make a staged file the first and only one at its path."""
        source = folders.open(STAGING_FOLDER)
        self._place(self._system.link, folders, file, source, folders.open(file.folder))
        self._discard(file.staging_name, source)
        file.pending = False
        self._settle(folders, file.folder, file.path)
        if file.folder == _SLOTS_FOLDER:
            self._remember({file.path: file.identity})

    def _place(
        self, call: Callable[[str, int, str, int, str], None], folders: _Folders, file: _Staged, source: int,
        directory: int,
    ) -> None:  # fmt: skip
        try:
            call(file.staging_name, source, file.name, directory, file.path)
        except OSError as error:
            if self._landed(file, directory):
                return
            if error.errno == errno.EEXIST:
                raise slot_taken(file.path) from error
            if error.errno in _NOT_APPLIED:
                raise self._not_written(error, file.path) from error
            raise self._unknown(file.path, error) from error

    def _landed(self, file: _Staged, directory: int) -> bool:
        """Whether our file is there in spite of the error: network file systems repeat a call whose reply
        was lost, and then report what the repetition met."""
        try:
            found = self._system.stat(file.name, directory)
        except OSError:
            return False
        return _identity(found) == file.identity

    def _settle(self, folders: _Folders, folder: str, path: str) -> None:
        try:
            self._fsync_folder(folders, folder)
        except OSError as error:
            raise self._unknown(path, error) from error

    def _fsync_files(self, files: Sequence[_Staged]) -> None:
        """Many at a time: a disk that is asked together flushes its cache once for several."""
        if len(files) <= SYNC_THREADS:
            for file in files:
                self._fsync_file(file)
            return
        jobs = [self._syncers.submit(self._fsync_file, file) for file in files]
        wait(jobs)  # all of them, also when one fails: their descriptors are closed next
        for job in jobs:
            job.result()

    def _fsync_file(self, file: _Staged) -> None:
        try:
            self._system.fsync(file.fd, file.path)
        except OSError as error:
            # Out of space is found out here by some file systems; the file goes, nothing else is in doubt.
            if error.errno not in _NO_SPACE:
                self._broken = f"fsync of {file.path} failed: {error.strerror}"
            raise

    def _fsync_folder(self, folders: _Folders, folder: str) -> None:
        try:
            self._system.fsync(folders.open(folder), folder)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                self._broken = f"fsync of folder {folder or '/'} failed: {error.strerror}"
                self._slots_doubtful = self._slots_doubtful or folder in ("", _SLOTS_FOLDER)
            raise

    # -- errors

    def _not_written(self, error: OSError, path: str) -> AlpheusError:
        reason = f"cannot write {path} in {self.url}: {error.strerror}"
        match error.errno:
            case number if number in _NO_SPACE:
                return Exhausted(reason, kind="no_space", hint="free space or inodes", path=path)
            case number if number in _NO_LINKS:
                return self._unsuitable(f"{path} cannot be linked from {STAGING_FOLDER}: {error.strerror}")
            case errno.EROFS:
                return Unavailable(
                    reason,
                    kind="storage_read_only",
                    hint="the file system is mounted for reading only",
                    path=path,
                )
            case errno.EACCES | errno.EPERM:
                return self._denied(path, "write", error)
            case errno.EISDIR | errno.ENOTEMPTY | errno.ENOTDIR | errno.ENAMETOOLONG:
                return InvalidInput(reason, path=path)
            case errno.ELOOP:
                return _symlink(path)
        return Unavailable(reason, kind="storage_read_only" if self._broken else "", path=path)

    def _denied(self, path: str, what: str, error: OSError) -> Denied:
        return Denied(
            f"this process may not {what} {path} in {self.url}: {error.strerror}",
            hint=f"its user id is {os.geteuid()}",
            path=path,
        )

    def _read_only(self, path: str) -> Unavailable:
        return Unavailable(
            f"{self.url} takes no more writes from this process: {self._broken}",
            kind="storage_read_only",
            hint="check the disk, then restart the process",
            path=path,
        )

    def _unknown(self, path: str, error: OSError) -> OutcomeUnknown:
        return OutcomeUnknown(f"{path} in {self.url} may or may not be stored: {error.strerror}", path=path)

    def _unsuitable(self, reason: str) -> InvalidInput:
        return InvalidInput(
            f"{self.url} cannot hold a catalog: {reason}",
            kind="storage_unsuitable",
            hint="a local file system such as ext4 or XFS, .staging and all folders on the same one",
        )


class _Level:
    """One folder of a walk; `path` ends in a slash, or is empty for the prefix."""

    def __init__(self, system: Syscalls, fd: int, path: str, *, owned: bool) -> None:
        self._system = system
        self._owned = owned
        self.fd = fd
        self.path = path
        try:
            self.entries = system.scandir(fd)
        except BaseException:
            self._close_fd()
            raise

    def close(self) -> None:
        self.entries.close()
        self._close_fd()

    def _close_fd(self) -> None:
        if self._owned:
            self._system.close(self.fd)


def _open_prefix(path: str, url: str, create: bool) -> int:
    """A descriptor of the directory, symbolic links followed this once."""
    hint = "create the catalog there first, or check the URL"
    try:
        if create:
            _make_directories(path)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound(f"there is no directory {path}", kind="no_catalog", hint=hint) from error
    except (NotADirectoryError, FileExistsError) as error:
        raise InvalidInput(
            f"{url}: {path} is a file, or below one, not a directory",
            kind="bad_url",
            hint="a catalog is a directory",
        ) from error
    except PermissionError as error:
        raise Denied(f"this process may not open {path}", hint=f"its user id is {os.geteuid()}") from error
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise Exhausted(f"cannot make {path}: {error.strerror}", kind="no_space") from error
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise InvalidInput(f"cannot open {path}: {error.strerror}", kind="bad_url") from error
        raise Unavailable(f"cannot open {path}: {error.strerror}") from error


def _parts(files: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Few enough files at a time to hold a descriptor of each."""
    items = iter(files.items())
    while part := dict(itertools.islice(items, STAGED_MAX)):
        yield part


def _make_directories(path: str) -> None:
    """Like `os.makedirs`, and each new entry is synced into its parent."""
    missing = deque[str]()
    while not os.path.isdir(path) and path != os.path.dirname(path):
        missing.appendleft(path)
        path = os.path.dirname(path)
    for directory in missing:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory)
        fd = os.open(os.path.dirname(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _symlink(path: str) -> Corrupt:
    return Corrupt(
        f"{path} is a symbolic link; a catalog holds none",
        kind="corrupt_history",
        hint="somebody put it there: remove it, or restore the file",
        path=path,
    )


def _info(path: str, info: os.stat_result) -> ObjectInfo:
    return ObjectInfo(path, info.st_size, info.st_mtime_ns // 1_000_000)
