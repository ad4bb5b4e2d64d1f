"""A directory of a POSIX file system, as the local driver needs it: system calls that tests can replace, folders
opened one component after the other, fsyncs that are never repeated, and errno translated to our errors.

No call follows a symbolic link below the prefix: a folder is opened relative to the descriptor of its parent.
The prefix itself is opened once and stays that directory. When its path leads elsewhere later (the prefix was removed,
moved, or replaced), the store refuses writes, and it does not claim that a file is missing.

The module is long because the wrapper of system calls and the rules about their errors are read together.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol
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
from alpheus_journal.storage.interface import file_not_there, unreadable

FOLDERS_OPEN_MAX = 64
LMDB_FILES = ("data.mdb", "lock.mdb")
STAGING_FOLDER = ".staging"
SLOTS_FOLDER = "vn"

PREFIX_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FOLDER_FLAGS = PREFIX_FLAGS | os.O_NOFOLLOW
# O_NONBLOCK: opening a FIFO must not wait for its writer.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
STAGE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMLINK, errno.EFBIG})
NO_LINKS = frozenset({errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
# A link or rename that fails with one of these was certainly not applied.
NOT_APPLIED = (
    NO_SPACE
    | NO_LINKS
    | ABSENT
    | {errno.EEXIST, errno.EPERM, errno.EACCES, errno.EROFS, errno.ELOOP, errno.EINVAL, errno.ENOMEM}
    | {errno.EISDIR, errno.ENOTEMPTY}
)
# Errors of an fsync on a file system that is mounted read-only or cannot sync directories.
_CANNOT_SYNC = frozenset({errno.EROFS, errno.EACCES, errno.EBADF, errno.EINVAL})
_TOO_MANY_FILES = {
    errno.EMFILE: "raise the limit on open files of this process (ulimit -n)",
    errno.ENFILE: "raise the machine's limit on open files (fs.file-max)",
}


class Entry(Protocol):
    """An entry of a folder's listing, such as `os.DirEntry`."""

    @property
    def name(self) -> str: ...
    def is_dir(self, *, follow_symlinks: bool = True) -> bool: ...
    def is_file(self, *, follow_symlinks: bool = True) -> bool: ...
    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result: ...


class Entries(Protocol):
    """The return type of `os.scandir`."""

    def __enter__(self) -> Entries: ...
    def __exit__(self, *args: object) -> None: ...
    def __iter__(self) -> Entries: ...
    def __next__(self) -> Entry: ...
    def close(self) -> None: ...


class Syscalls:
    """Every system call that touches files of the store. Fault injectors override single methods;
    `alpheus_journal.testing.FakeFileSystem` overrides all of them.

    `path` is the path below the prefix that the call is about; "" is the prefix itself. A name is one component,
    relative to the descriptor in the same call. Where the descriptor is None, the name is an absolute path; this
    happens only for the prefix and the directories above the prefix.
    """

    def open(self, name: str, flags: int, directory: int | None) -> int:
        return os.open(name, flags, 0o666, dir_fd=directory)

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, size: int) -> bytes:
        return os.read(fd, size)

    def read_at(self, fd: int, size: int, start: int) -> bytes:
        return os.pread(fd, size, start)

    def write(self, fd: int, data: memoryview, path: str) -> int:
        return os.write(fd, data)

    def fsync(self, fd: int, path: str) -> None:
        os.fsync(fd)

    def syncfs(self, fd: int) -> None:
        """Make the file system of `fd` durable. Raise the failures since `fd` was opened or last reported failures."""
        if _syncfs is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if _syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def has_syncfs(self, fd: int) -> bool:
        """Return whether a `syncfs` of the file system of `fd`, and one fsync after it, do the same as an fsync of each
        file. Return False in a subclass that replaces `fsync` alone, because the subclass would not see the call."""
        if type(self).fsync is not Syscalls.fsync and type(self).syncfs is Syscalls.syncfs:
            return False
        return kernel_version(os.uname().release) >= _SYNCFS_SINCE and file_system_kind(fd) in _SYNCFS_KINDS

    def keeps_order(self, fd: int) -> bool:
        """Return whether the file system of `fd` makes renames durable in their order: after a power cut, none is there
        without those before it. XFS and a journal of ext4 keep this order (Pillai et al., "All File Systems Are Not
        Created Equal", OSDI 2014); ext4 without a journal, btrfs and network file systems may not."""
        kind = file_system_kind(fd)
        return kind == "xfs" or (kind == "ext4" and _has_ext4_journal(os.fstat(fd).st_dev))

    def unwritten_bytes(self) -> int | None:
        """Return how many bytes written by programs of this machine are not on a disk yet, or None when unknown."""
        try:
            fd = os.open(_VMSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            pages = dict(_UNWRITTEN.findall(os.read(fd, 1 << 16)))
        except OSError:
            return None
        finally:
            os.close(fd)
        return sum(map(int, pages.values())) * os.sysconf("SC_PAGESIZE") if len(pages) == 2 else None

    def start_writeback(self, fd: int) -> None:
        """Ask the kernel to begin writing a file. This is a hint; the later fsync reports any failure."""
        if _sync_file_range is not None:
            _sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def file_system_kind(self, fd: int) -> str:
        """Call the function `file_system_kind`."""
        return file_system_kind(fd)

    def time_nanos(self) -> int:
        """Return the time of this machine's clock, in nanoseconds since the epoch."""
        return time.time_ns()

    def stat(self, name: str, directory: int) -> os.stat_result:
        """Look up the entry itself, without following a symbolic link."""
        return os.stat(name, dir_fd=directory, follow_symlinks=False)

    def stat_prefix(self, path: str) -> os.stat_result:
        """Look up the directory that an absolute path leads to now."""
        return os.stat(path)

    def real_path(self, path: str) -> str:
        """Return the absolute path with symbolic links resolved."""
        return os.path.realpath(path)

    def mkdir(self, name: str, directory: int | None) -> None:
        os.mkdir(name, dir_fd=directory)

    def link(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        os.link(source, name, src_dir_fd=source_directory, dst_dir_fd=directory, follow_symlinks=False)

    def rename(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        os.rename(source, name, src_dir_fd=source_directory, dst_dir_fd=directory)

    def unlink(self, name: str, directory: int) -> None:
        os.unlink(name, dir_fd=directory)

    def scandir(self, directory: int) -> Entries:
        return os.scandir(directory)

    def staging_name(self) -> str:
        return f"{os.getpid()}-{secrets.token_hex(8)}"


_SYNC_FILE_RANGE_WRITE = 2
_SYNCFS_SINCE = (5, 17)
"""Linux 5.8 reports failed writes of data. Linux 5.17 also reports errors of the file system, such as a failed
journal."""
_SYNCFS_KINDS = frozenset({"ext4", "xfs"})
_VMSTAT = (
    "/proc/vmstat"  # /proc/meminfo may be a container's own (lxcfs) and leave out other programs' writes
)
_UNWRITTEN = re.compile(rb"^(nr_dirty|nr_writeback) (\d+)$", re.MULTILINE)
_MOUNTS = "/proc/self/mountinfo"


def _function(name: str, *argument_types: type[ctypes._SimpleCData[int]]) -> Callable[..., int] | None:
    """Return a function of the C library that Python does not offer, or None where the library lacks the function."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        return None
    function.argtypes = argument_types
    function.restype = ctypes.c_int
    found: Callable[..., int] = function
    return found


_sync_file_range = _function("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
"""Called for all files of a commit before the first fsync, `sync_file_range` lets the file system make them durable
with one commit of its journal: 4 files take a quarter less time."""
_syncfs = _function("syncfs", ctypes.c_int)


def kernel_version(release: str) -> tuple[int, int]:
    """Parse the release of `uname -r`. Return (0, 0) where the system is not Linux."""
    found = re.match(r"(\d+)\.(\d+)", release) if sys.platform == "linux" else None
    return (int(found[1]), int(found[2])) if found else (0, 0)


NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "glusterfs", "lustre"}
)


def file_system_kind(path: str | int, mounts: str = _MOUNTS) -> str:
    """Return the kind of file system (`ext4`, `nfs4`...) of a path or a descriptor. Return an empty text when the kind
    is unknown (no Linux, or a volume with a device number of its own)."""
    try:
        device = os.stat(path).st_dev
        with open(mounts) as lines:
            table = [line.split() for line in lines]
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    # id parent major:minor root mount-point options [tags...] - type source options
    kinds = [
        line[line.index("-") + 1] for line in table if len(line) > 6 and "-" in line and line[2] == wanted
    ]
    return kinds[-1] if kinds else ""


def _has_ext4_journal(device: int) -> bool:
    """Return whether the ext4 on a block device has a journal; False when this is unknown."""
    try:
        name = os.path.basename(os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
        with open(f"/sys/fs/ext4/{name}/journal_task") as file:
            return file.read().strip().isdecimal()
    except OSError:
        return False


class Identity(NamedTuple):
    """The identity of the content at a path. A link or a rename keeps the identity; replacing the file changes it."""

    device: int
    inode: int
    modified_at_nanos: int


def identity(info: os.stat_result) -> Identity:
    return Identity(info.st_dev, info.st_ino, info.st_mtime_ns)


class Folders:
    """Descriptors of the folders that one job uses. All are closed at the end of the job. Not thread-safe.

    A descriptor is valid until the next `open`, which may close other descriptors to stay within FOLDERS_OPEN_MAX.
    The descriptor of the staging folder is valid until the end of the job.
    """

    def __init__(self, system: Syscalls, prefix: int) -> None:
        self._system = system
        self._prefix = prefix
        self._open: dict[str, int] = {}

    def __enter__(self) -> Folders:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_all()

    def open(self, folder: str, *, made: Callable[[str], None] | None = None) -> int:
        """Return the descriptor of `folder` ("" is the prefix). When `made` is given, make missing folders and call
        `made` with the path of each. Raises OSError, and Corrupt for a symbolic link on the path."""
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
            return self._system.open(name, FOLDER_FLAGS, directory)
        except FileNotFoundError:
            if made is None:
                raise
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP) and self._is_symlink(name, directory):
                raise symlink(path) from error
            raise
        with contextlib.suppress(FileExistsError):  # another writer has just made the folder
            self._system.mkdir(name, directory)
        made(path)
        return self._system.open(name, FOLDER_FLAGS, directory)

    def _is_symlink(self, name: str, directory: int) -> bool:
        try:
            return stat.S_ISLNK(self._system.stat(name, directory).st_mode)
        except FileNotFoundError:
            return False

    def _close_all(self) -> None:
        for fd in self._open.values():
            self._system.close(fd)
        self._open.clear()


class Level:
    """One folder of a walk. `path` ends with a slash, or is empty for the prefix."""

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


class Directory:
    """The open directory at an absolute `path`. With `create` a missing directory is made, with its parents.

    Raises NotFound (`no_catalog`) for a missing directory, InvalidInput (`bad_url`) when `path` is not a directory,
    and Denied. The owner of this object closes `fd`.

    An fsync that failed says nothing about the content of the disk, and a second fsync may report success without
    having written anything. `broken` describes the first failure; from then on nothing is written or fsynced.
    """

    def __init__(self, path: str, url: str, system: Syscalls, *, create: bool) -> None:
        self.path = path
        self.url = url
        self.system = system
        self.broken = ""
        self.slots_doubtful = False
        """Whether an fsync of the slots' folder failed, so that slots not seen before may not be durable."""
        self.fd = self._open(create)
        self._identity = identity(system.fstat(self.fd))[:2]

    def _open(self, create: bool) -> int:
        """Open the directory. Only here are symbolic links followed."""
        path = self.path
        try:
            try:
                return self.system.open(path, PREFIX_FLAGS, None)
            except FileNotFoundError:
                if not create:
                    raise
            self._make(path)
            return self.system.open(path, PREFIX_FLAGS, None)
        except FileNotFoundError as error:
            raise NotFound(
                f"there is no directory {path}",
                kind="no_catalog",
                hint="create the catalog first, or check the URL",
            ) from error
        except NotADirectoryError as error:
            raise InvalidInput(
                f"{self.url}: {path} is a file, or below a file, and not a directory",
                kind="bad_url",
                hint="give the URL of a directory",
            ) from error
        except PermissionError as error:
            raise Denied(
                f"this process may not open {path}",
                hint=f"give user id {os.geteuid()} access",
            ) from error
        except OSError as error:
            if error.errno in NO_SPACE:
                raise Exhausted(f"cannot make {path}: {error.strerror}", kind="no_space") from error
            if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
                raise InvalidInput(f"cannot open {path}: {error.strerror}", kind="bad_url") from error
            raise Unavailable(f"cannot open {path}: {error.strerror}") from error

    def _make(self, path: str) -> None:
        """Like `os.makedirs`; `anchor` makes the new entries durable."""
        with contextlib.suppress(FileExistsError):
            try:
                self.system.mkdir(path, None)
            except FileNotFoundError:
                if path == os.path.dirname(path):
                    raise
                self._make(os.path.dirname(path))
                self.system.mkdir(path, None)

    def anchor(self) -> None:
        """Make the entries that lead to the prefix durable, whichever process made them. Directories above the prefix
        that this process may not read are skipped."""
        path = self.path
        device = self._identity[0]
        while path != os.path.dirname(path):
            path = os.path.dirname(path)
            try:
                fd = self.system.open(path, PREFIX_FLAGS, None)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EPERM):
                    continue
                raise
            try:
                if self.system.fstat(fd).st_dev != device:
                    return  # a mount point is not an entry of the file system above it
                self._fsync(fd, path, f"fsync of folder {path}")
            except OSError as error:
                if error.errno not in _CANNOT_SYNC:
                    raise
            finally:
                self.system.close(fd)

    def check_in_place(self, path: str) -> None:
        """Raise Unavailable when the prefix was removed, moved or replaced since it was opened."""
        try:
            found = identity(self.system.stat_prefix(self.path))[:2]
        except OSError as error:
            if error.errno not in ABSENT | {errno.ELOOP}:
                return  # the answer is unknown, so the caller's own call decides
            found = None
        if found is None:
            raise self.gone_error(self.path, path)
        if found != self._identity:
            raise Unavailable(
                f"{self.path} was replaced by another directory since this process opened it",
                hint="put the directory back, or restart the process",
                path=path,
            )

    def gone_error(self, what: str, path: str) -> Unavailable:
        return Unavailable(
            f"{what} was removed or moved since this process opened it",
            hint="put the directory back, or restart the process",
            path=path,
        )

    def enclosing(self, paths: Sequence[str]) -> str:
        """See `Storage.enclosing`. A folder that holds LMDB files counts too, because its content is not visible."""
        folder = self.system.real_path(self.path)
        while (parent := os.path.dirname(folder)) != folder:
            folder = parent
            for scheme, files in (*(("file", [path]) for path in paths), ("lmdb", LMDB_FILES)):
                with contextlib.suppress(OSError):  # missing, or not readable for this process
                    for path in files:
                        self.system.stat_prefix(os.path.join(folder, path))
                    return f"{scheme}://{quote(folder)}"
        return ""

    def folders(self) -> Folders:
        return Folders(self.system, self.fd)

    # -- fsync, never twice

    def fsync_file(self, fd: int, path: str) -> None:
        # Some file systems notice only here that space ran out. Only this file is lost, and it is discarded.
        self._fsync(fd, path, f"fsync of {path}", NO_SPACE)

    def fsync_folder(self, fd: int, folder: str) -> None:
        try:
            self._fsync(fd, folder, f"fsync of folder {folder or '/'}", _CANNOT_SYNC)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                self.slots_doubtful = self.slots_doubtful or folder in ("", SLOTS_FOLDER)
            raise

    def syncfs(self, path: str) -> None:
        """Call `syncfs` on the file system of the prefix. `path` is the last staged file, for the error text."""
        try:
            self.system.syncfs(self.fd)
        except OSError as error:
            if error.errno not in NO_SPACE:
                self.broken = f"syncfs for {path} failed: {error.strerror}"
            raise

    def _fsync(self, fd: int, path: str, what: str, harmless: frozenset[int] = _CANNOT_SYNC) -> None:
        try:
            self.system.fsync(fd, path)
        except OSError as error:
            if error.errno not in harmless:
                self.broken = f"{what} failed: {error.strerror}"
            raise

    def cannot_sync(self, error: OSError) -> bool:
        """Return whether an fsync failed because this file system cannot sync, which harms no reader."""
        return error.errno in _CANNOT_SYNC

    # -- the staging folder

    def try_links(self, staging: int) -> float:
        """Test whether the file system can link exclusively and sync folders; raise InvalidInput when it cannot.
        Return the file system's time in epoch seconds."""
        name = self.system.staging_name()
        copy = name + "-link"
        self.system.close(self.system.open(name, STAGE_FLAGS, staging))
        try:
            self.system.link(name, staging, copy, staging, STAGING_FOLDER)
            try:
                self.system.link(name, staging, copy, staging, STAGING_FOLDER)
            except FileExistsError:
                pass
            else:
                raise self.unsuitable("a second hard link to a taken name succeeds")
            self.fsync_folder(staging, STAGING_FOLDER)
            return self.system.stat(name, staging).st_mtime
        except OSError as error:
            if error.errno in NO_LINKS | {errno.EPERM, errno.EMLINK}:
                raise self.unsuitable("it has no hard links") from error
            if error.errno == errno.EINVAL:
                raise self.unsuitable("it cannot sync folders") from error
            raise
        finally:
            for leftover in (name, copy):
                self.discard(leftover, staging)

    def remove_leftovers(self, staging: int, modified_before: float) -> None:
        with self.system.scandir(staging) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime < modified_before:
                        self.discard(entry.name, staging)

    def discard(self, name: str, staging: int) -> None:
        # A failure does not matter: a later process tries again.
        with contextlib.suppress(OSError):
            self.system.unlink(name, staging)

    # -- errors

    def read_error(self, error: OSError, path: str) -> AlpheusError:
        if error.errno in ABSENT:
            return file_not_there(path, self.url)
        if error.errno == errno.ELOOP:
            return symlink(path)
        if error.errno == errno.ENXIO:
            return unreadable(path, "is not a regular file")
        if error.errno in (errno.EACCES, errno.EPERM):
            return self._denied(path, "read", error)
        return Unavailable(
            f"cannot read {path} in {self.url}: {error.strerror}",
            hint=_TOO_MANY_FILES.get(error.errno or 0, ""),
            path=path,
        )

    def write_error(self, error: OSError, path: str) -> AlpheusError:
        reason = f"cannot write {path} in {self.url}: {error.strerror}"
        match error.errno:
            case errno.EFBIG:
                hint = "raise the limit on the size of files (ulimit -f)"
                return Exhausted(reason, kind="no_space", hint=hint, path=path)
            case number if number in NO_SPACE:
                return Exhausted(reason, kind="no_space", hint="free space or inodes", path=path)
            case number if number in NO_LINKS:
                return self.unsuitable(f"{path} cannot be linked from {STAGING_FOLDER}: {error.strerror}")
            case errno.EROFS:
                hint = "mount the file system for writing; it is read-only"
                return Unavailable(reason, kind="storage_read_only", hint=hint, path=path)
            case errno.EACCES | errno.EPERM:
                return self._denied(path, "write", error)
            case errno.EISDIR | errno.ENOTEMPTY | errno.ENOTDIR | errno.ENAMETOOLONG:
                return InvalidInput(reason, path=path)
            case errno.ELOOP:
                return symlink(path)
        return Unavailable(
            reason,
            kind="storage_read_only" if self.broken else "",
            hint=_TOO_MANY_FILES.get(error.errno or 0, ""),
            path=path,
        )

    def _denied(self, path: str, what: str, error: OSError) -> Denied:
        return Denied(
            f"this process may not {what} {path} in {self.url}: {error.strerror}",
            hint=f"give user id {os.geteuid()} access",
            path=path,
        )

    def read_only_error(self, path: str) -> Unavailable:
        return Unavailable(
            f"{self.url} refuses further writes from this process: {self.broken}",
            kind="storage_read_only",
            hint="check the disk, then restart the process",
            path=path,
        )

    def unknown_error(self, path: str, error: OSError) -> OutcomeUnknown:
        return OutcomeUnknown(f"{path} in {self.url} may or may not be stored: {error.strerror}", path=path)

    def unsuitable(self, reason: str) -> InvalidInput:
        return InvalidInput(
            f"{self.url} cannot hold a catalog: {reason}",
            kind="storage_unsuitable",
            hint="use a local file system such as ext4 or XFS, with .staging and all folders on the same one",
        )


def symlink(path: str) -> Corrupt:
    return Corrupt(
        f"{path} is a symbolic link, which a catalog never holds",
        kind="corrupt_history",
        hint="remove the link, or restore the file",
        path=path,
    )
