"""An LMDB file as one process has it open: transactions, a map that grows, one environment for each file, and
errors."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import lmdb

from alpheus_journal.errors import (
    AlpheusError,
    Corrupt,
    Denied,
    Exhausted,
    InvalidInput,
    NotEmpty,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.storage.posix import (
    LMDB_FILES,
    NETWORK_FILE_SYSTEMS,
    NO_SPACE,
    STAGING_FOLDER,
    Directory,
    Syscalls,
    file_system_kind,
)

_T = TypeVar("_T")

MAP_SIZE_BYTES_MIN = 1 << 30
"""Address space, not disk space: the file is only as large as its content."""
MAP_SIZE_BYTES_MAX = 1 << 44
READERS_MAX = 512
GAP_PAGES_MAX = 64

_PAGES_AROUND_VALUE = 8  # the end of its last page, and copies of the pages that lead to it
_PAGES_AROUND_TRANSACTION = 64  # LMDB's list of free pages
_ROOM_STEP = 1 << 20
_NO_ALLOCATION = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_FILE = LMDB_FILES[0]
_OWN_NAMES = frozenset({*LMDB_FILES, STAGING_FOLDER, "data"})


class Environment:
    """An open LMDB file. A process opens it once, and all its stores on that file share the environment."""

    _open: ClassVar[dict[tuple[int, int], Environment]] = {}
    _registry: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: str, url: str) -> None:
        self._path = path
        self._url = url
        self._stores = 0
        self._broken = ""
        self._anchored = False
        self._writing = threading.Lock()
        self._gate = threading.Condition()
        self._inside = 0
        self._resizing = False
        self.is_readonly = False
        self._environment = self._open_file()
        self._page = self._environment.stat()["psize"]
        try:
            self._check_whole()
            self._environment.reader_check()
        except BaseException:
            self._environment.close()
            raise
        self._identity = _inode(os.path.join(path, _FILE))

    # -- one a process

    @classmethod
    def take(cls, path: str, url: str, *, create: bool) -> Environment:
        file = os.path.join(path, _FILE)
        with cls._registry:
            _check_local(path, url)
            if not create and not os.path.exists(file):
                raise NotFound(
                    f"there is no {file}",
                    kind="no_catalog",
                    hint="create the catalog first, or check the URL",
                )
            found = cls._open.get(_inode(file))
            if found is None:
                found = cls(path, url)
                cls._open[found._identity] = found
            found._stores += 1
            return found

    def drop(self) -> None:
        with self._registry:
            self._stores -= 1
            if self._stores == 0 and self._open.get(self._identity) is self:
                del self._open[self._identity]
                self._environment.close()

    @classmethod
    def close_after_fork(cls) -> None:
        # Close before the child opens a file again, because closing later would drop the locks of the new one. LMDB
        # keeps what belongs to the parent, except open transactions. With one open, the environment stays open, and
        # this process cannot open the file again.
        for environment in cls._open.values():
            if not environment._inside:
                environment._environment.close()
        cls._open = {}
        cls._registry = threading.Lock()

    def _open_file(self) -> Any:
        try:
            return self._try_open(readonly=False)
        except lmdb.Error as error:
            if error.code not in (errno.EACCES, errno.EROFS):
                raise self._open_error(error) from error
        try:
            self.is_readonly = True
            return self._try_open(readonly=True)
        except lmdb.Error as error:
            raise self._open_error(error) from error

    def _try_open(self, *, readonly: bool) -> Any:
        return lmdb.open(
            self._path,
            map_size=MAP_SIZE_BYTES_MIN,
            max_readers=READERS_MAX,
            readonly=readonly,
            mode=0o777,
        )

    def _open_error(self, error: lmdb.Error) -> AlpheusError:
        file = os.path.join(self._path, _FILE)
        if isinstance(error, lmdb.InvalidError | lmdb.VersionMismatchError | lmdb.CorruptedError):
            return Corrupt(
                f"{file} is not an LMDB file that this version can read: {error}",
                kind="corrupt_history",
                hint="restore the file from a copy",
                path=_FILE,
            )
        if error.code in (errno.EACCES, errno.EPERM):
            return Denied(
                f"this process may not open {file}",
                hint="allow this process to read it and to write lock.mdb; reading needs both",
            )
        if error.code in NO_SPACE:
            return Exhausted(f"cannot open {file}: {error}", kind="no_space", hint="free space or inodes")
        return Unavailable(f"cannot open {file}: {error}")

    def _check_whole(self) -> None:
        """Raise Corrupt for a file that was cut, because reading a page behind its end kills the process by SIGBUS.

        LMDB itself leaves out some last pages that a transaction allocated and freed, so a gap of up to GAP_PAGES_MAX
        pages is filled with zeros. An entry that points to such a page is found damaged.
        """
        needed = (self._environment.info()["last_pgno"] + 1) * self._page
        file = os.path.join(self._path, _FILE)
        size = os.stat(file).st_size
        if size + GAP_PAGES_MAX * self._page < needed:
            raise Corrupt(
                f"{file} was cut: it has {size} bytes, {needed} are in use",
                kind="corrupt_history",
                hint="restore the file from a copy",
                path=_FILE,
            )
        if not self.is_readonly:
            try:
                self._extend(needed)
            except OSError as error:
                raise Unavailable(f"cannot open {file}: {error.strerror}") from error

    def _extend(self, size: int) -> None:
        """Extend the file to at least `size` bytes. A file that another process has extended further is not
        shortened."""
        file = os.path.join(self._path, _FILE)
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.fstat(fd).st_size
            if found < size:
                os.posix_fallocate(fd, found, size - found)
        except OSError as error:
            if error.errno not in _NO_ALLOCATION:
                raise
        finally:
            os.close(fd)

    # -- transactions

    def read(self, job: Callable[[Any], _T], path: str) -> _T:
        """Run `job` in a read transaction. The values are buffers, valid only inside the transaction."""
        while True:
            try:
                with self._hold_map(), self._environment.begin(buffers=True) as transaction:
                    return job(transaction)
            except lmdb.MapResizedError:
                self._resize(0)
            except lmdb.ReadersFullError as error:
                if not self._environment.reader_check():
                    raise Unavailable(
                        f"{self._url} has {READERS_MAX} readers already",
                        hint="stop some of the processes that read it",
                        path=path,
                    ) from error
            except lmdb.Error as error:
                raise self._read_error(error, path) from error

    def write(self, job: Callable[[Any], object], path: str, sizes: Iterable[int] = ()) -> None:
        """Run `job` in a write transaction, which is applied whole and durable, or not at all. `job` may run again in
        another transaction.

        `sizes` are the sizes of the values that `job` puts, in bytes. Disk space for them is allocated before, because
        LMDB reports a disk that fills up during the transaction as an I/O error.
        """
        room = (
            sum(size + _PAGES_AROUND_VALUE * self._page for size in sizes)
            + _PAGES_AROUND_TRANSACTION * self._page
        )
        with self._writing:
            self._check_writable(path)
            while True:
                size = self._environment.info()["map_size"]
                try:
                    with self._hold_map():
                        self._write_once(job, path, room)
                    return
                except lmdb.MapResizedError:
                    self._resize(0)
                except lmdb.MapFullError as error:
                    if size * 2 > MAP_SIZE_BYTES_MAX:
                        raise Exhausted(f"{self._url} is full", kind="no_space", path=path) from error
                    self._environment.reader_check()  # a killed reader keeps old pages in use
                    self._resize(size * 2)
                except lmdb.Error as error:
                    raise self._write_error(error, path) from error

    def _write_once(self, job: Callable[[Any], object], path: str, room: int) -> None:
        transaction = self._environment.begin(write=True)
        try:
            used = (self._environment.info()["last_pgno"] + 1) * self._page
            self._extend(-(-(used + room) // _ROOM_STEP) * _ROOM_STEP)
            job(transaction)
        except OSError as error:
            transaction.abort()
            reason = f"cannot write {path} in {self._url}: {error.strerror}"
            if error.errno not in NO_SPACE:
                raise Unavailable(reason, path=path) from error
            hint = "free space, or raise the limit on file size (ulimit -f)"
            raise Exhausted(reason, kind="no_space", hint=hint, path=path) from error
        except BaseException:
            transaction.abort()
            raise
        try:
            transaction.commit()
        except lmdb.MapFullError:
            raise  # before anything was written
        except lmdb.Error as error:
            self._broken = str(error)
            raise OutcomeUnknown(
                f"{path} in {self._url} may or may not be stored: {error}", path=path
            ) from error

    def _check_writable(self, path: str) -> None:
        if self._broken:
            raise Unavailable(
                f"{self._url} refuses further writes from this process: {self._broken}",
                kind="storage_read_only",
                hint="check the disk, then restart the process",
                path=path,
            )
        if self.is_readonly:
            raise Unavailable(
                f"{self._url} could only be opened for reading", kind="storage_read_only", path=path
            )
        if _inode(os.path.join(self._path, _FILE)) != self._identity:
            raise Unavailable(
                f"{self._path} was removed, moved or replaced since this process opened it",
                hint="put the directory back, or restart the process",
                path=path,
            )
        if not self._anchored:
            self._anchor(path)

    def _anchor(self, path: str) -> None:
        """Sync the directory entries that lead to the file; LMDB syncs only the file."""
        directory = Directory(self._path, self._url, Syscalls(), create=False)
        try:
            directory.fsync_folder(directory.fd, "")
            directory.anchor()
        except OSError as error:
            self._broken = directory.broken
            raise directory.write_error(error, path) from error
        finally:
            os.close(directory.fd)
        self._anchored = True

    @contextlib.contextmanager
    def _hold_map(self) -> Iterator[None]:
        """Keep the map in its place inside the block."""
        with self._gate:
            self._gate.wait_for(lambda: not self._resizing)
            self._inside += 1
        try:
            yield
        finally:
            with self._gate:
                self._inside -= 1
                self._gate.notify_all()

    def _resize(self, size: int) -> None:
        """Grow the map to `size` bytes. 0 means the size that another process gave the file."""
        with self._gate:
            self._gate.wait_for(lambda: not self._resizing)
            self._resizing = True
            try:
                self._gate.wait_for(lambda: self._inside == 0)
                self._environment.set_mapsize(size)
            except lmdb.Error as error:
                raise Exhausted(
                    f"{self._url} cannot grow its map to {size} bytes: {error}",
                    kind="no_space",
                    hint="raise the limit on address space (ulimit -v)",
                ) from error
            finally:
                self._resizing = False
                self._gate.notify_all()

    def _read_error(self, error: lmdb.Error, path: str) -> AlpheusError:
        if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError):
            return Corrupt(
                f"the LMDB file of {self._url} is damaged: {error}",
                kind="corrupt_history",
                hint="restore the file from a copy",
                path=path,
            )
        # LMDB gives up an environment whose meta page could not be written; reads fail too.
        hint = "check the disk, then restart the process" if isinstance(error, lmdb.PanicError) else ""
        return Unavailable(f"cannot read {path} in {self._url}: {error}", hint=hint, path=path)

    def _write_error(self, error: lmdb.Error, path: str) -> AlpheusError:
        reason = f"cannot write {path} in {self._url}: {error}"
        if isinstance(error, lmdb.TxnFullError):
            return InvalidInput(
                reason, kind="too_large", hint="split the write into several transactions", path=path
            )
        if isinstance(error, lmdb.PanicError):
            self._broken = self._broken or str(error)
            return Unavailable(reason, kind="storage_read_only", hint="restart the process", path=path)
        if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError):
            return self._read_error(error, path)
        return Unavailable(reason, path=path)


os.register_at_fork(after_in_child=Environment.close_after_fork)


def _inode(file: str) -> tuple[int, int]:
    """Return device and inode of a file, or (0, 0) for a missing file."""
    try:
        info = os.stat(file)
    except OSError:
        return (0, 0)
    return (info.st_dev, info.st_ino)


def check_own(path: str, url: str) -> None:
    """Raise NotEmpty for a directory that holds other files and no LMDB file."""
    names = set(os.listdir(path))
    if _FILE not in names and not names <= _OWN_NAMES:
        other = min(names - _OWN_NAMES)
        raise NotEmpty(
            f"{url} is not an LMDB catalog and not empty: it holds {other}",
            kind="directory_not_empty",
            hint="choose an empty or new directory",
        )


def _check_local(path: str, url: str) -> None:
    kind = file_system_kind(path)
    if kind in NETWORK_FILE_SYSTEMS:
        raise InvalidInput(
            f"{url} is on a network file system ({kind}), where LMDB's locks and map do not work",
            kind="storage_unsuitable",
            hint="use a local disk, or a file:// URL on that file system",
        )
