"""A file system in memory that knows the possible states after a power cut.

It keeps the view of programs apart from the disk, and guarantees exactly what POSIX guarantees:

- the content of a file is on the disk after fsync of that file. Before, any of its pages may be on the disk, the first
  one torn, or the length may be right and the content zeros;
- an entry (a new file or folder, a link, a rename, an unlink) is on the disk after fsync of its folder. Before, it may
  be there or not, independently of other entries, of the other end of the rename, and of the content;
- syncfs does both for all files and folders;
- an fsync that failed leaves all this in doubt for good: a later fsync reports success and writes nothing. A syncfs
  that failed does the same for all files and folders.

`survivors` enumerates every state that a power cut could leave now. Additional guarantees of one file system (ext4
flushes new entries with the file, and renames in order) are not given.

The module is long because system calls and the states after a power cut share one model of the disk.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator

import msgspec

from alpheus_journal.storage.posix import Entries, Entry, Syscalls

PAGE = 4096
PAGES_MIXED_MAX = 3
"""Up to this many changed pages survive in any subset. Of more, the first or the last ones survive, or one alone."""
SURVIVORS_MAX = 20_000
_DEVICE = 7
# EROFS and similar errors change nothing; after a fault of the disk the state is unknown.
_IN_DOUBT = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT})

Survivor = tuple[tuple[str, bytes | None], ...]
"""The state after a power cut: absolute paths in order, with the content of files and None for folders."""


class Syscall(msgspec.Struct, frozen=True):
    """One call: its name, its absolute path, and the number of calls before."""

    name: str
    path: str
    number: int


class _File:
    def __init__(self, number: int, device: int, data: bytes = b"") -> None:
        self.number = number
        self.device = device
        self.path = ""
        self.data = data
        self.on_disk = [data]
        """The possible contents on the disk at the last fsync. One content, unless an fsync failed."""
        self.doubtful = False
        self.modified_at_nanos = 0

    def contents(self) -> list[bytes]:
        found = dict.fromkeys(self.on_disk)
        for old in self.on_disk:
            found |= dict.fromkeys(_mixtures(old, self.data))
        return list(found)

    def sync(self, *, failed: bool) -> None:
        if failed or self.doubtful:
            self.on_disk = self.contents()
            self.doubtful = True
        else:
            self.on_disk = [self.data]


class _Folder:
    def __init__(self, number: int, device: int, path: str) -> None:
        self.number = number
        self.device = device
        self.path = path
        self.removed = False
        self.entries: dict[str, _Node] = {}
        self.history: dict[str, list[_Node | None]] = {}
        """Every value of each name that changed since the last fsync. The value on the disk is first."""
        self.doubtful: dict[str, list[_Node | None]] = {}
        self.modified_at_nanos = 0

    def change(self, name: str, node: _Node | None) -> None:
        self.history.setdefault(name, [self.entries.get(name)]).append(node)
        if node is None:
            del self.entries[name]
        else:
            self.entries[name] = node

    def sync(self, *, failed: bool) -> None:
        if failed:
            for name, values in self.history.items():
                self.doubtful.setdefault(name, []).extend(values)
        self.history.clear()

    def names(self) -> list[str]:
        return sorted(self.entries.keys() | self.history.keys() | self.doubtful.keys())

    def options(self, name: str) -> list[_Node | None]:
        values = [*self.doubtful.get(name, ()), *self.history.get(name, ()), self.entries.get(name)]
        return list({id(value): value for value in values}.values())


class _Link:
    """A symbolic link."""

    def __init__(self, number: int, target: str) -> None:
        self.number = number
        self.device = _DEVICE
        self.target = target
        self.modified_at_nanos = 0


_Node = _File | _Folder | _Link


class _Open:
    """An open file, folder or temporary file behind a descriptor."""

    def __init__(self, node: _File | _Folder) -> None:
        self.node = node
        self.position = 0


class _Entry:
    def __init__(self, name: str, node: _Node) -> None:
        self.name = name
        self._node = node

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return isinstance(self._node, _Folder)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return isinstance(self._node, _File)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return _stat(self._node)


class _Entries:
    def __init__(self, entries: list[Entry]) -> None:
        self._entries = iter(entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def __iter__(self) -> Entries:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def close(self) -> None:
        self._entries = iter(())


class FakeFileSystem(Syscalls):
    """The file system of one machine. Pass it as `system` to stores with `threads=0`, one store for each process.

    * `fail` returns the errno with which a call is to fail without an effect. An fsync that fails leaves doubt (see
      the module).
    * `after` runs after every call that succeeded. It may read and call anything but itself.
    * `calls` is the trace.
    * A power cut leaves files in folders named `scratch` unchanged. Otherwise there would be too many states that no
      reader can distinguish, because no store reads its staged files.
    * `unwritten` is the result of `unwritten_bytes`.
    """

    def __init__(self, *, scratch: str = ".staging") -> None:
        self.fail: Callable[[Syscall], int | None] = lambda _: None
        self.after: Callable[[Syscall], None] = lambda _: None
        self.calls: list[Syscall] = []
        self.unwritten: int | None = 0
        self.changes = 0
        """Grows with every call that may change the states after a power cut."""
        self._scratch = scratch
        self._numbers = 1
        self._now = 1_700_000_000_000_000_000
        self._fds: dict[int, _Open] = {}
        self._root = _Folder(1, _DEVICE, "/")

    @classmethod
    def of(cls, survivor: Survivor) -> FakeFileSystem:
        """Return the file system of a machine that boots after a power cut."""
        system = cls()
        # Above all earlier numbers, so that no staging name is used twice.
        system._numbers = 1 + max((_staged_number(path) for path, _ in survivor), default=0)
        for path, data in survivor:
            folder, name = system._parent(path)
            if data is None:
                folder.entries[name] = _Folder(system._number(), folder.device, path)
            else:
                folder.entries[name] = file = _File(system._number(), folder.device, data)
                file.path, file.modified_at_nanos = path, system._tick()
        return system

    # -- changes by tests

    def make_folder(self, path: str) -> None:
        """Make a folder and its parents, as another program would. Nothing is synced."""
        if path != "/" and self._find(path) is None:
            self.make_folder(os.path.dirname(path))
            folder, name = self._parent(path)
            folder.change(name, _Folder(self._number(), folder.device, path))
            self.changes += 1

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file and its parents, as another program would. Nothing is synced."""
        self.make_folder(os.path.dirname(path))
        folder, name = self._parent(path)
        file = _File(self._number(), folder.device)
        file.path, file.data, file.modified_at_nanos = path, data, self._tick()
        folder.change(name, file)
        self.changes += 1

    def read_file(self, path: str) -> bytes | None:
        """Return the content that programs see, or None for no such file."""
        node = self._find(path)
        return node.data if isinstance(node, _File) else None

    def is_folder(self, path: str) -> bool:
        return isinstance(self._find(path), _Folder)

    def make_symlink(self, path: str, target: str) -> None:
        folder, name = self._parent(path)
        folder.change(name, _Link(self._number(), target))

    def remove(self, path: str) -> None:
        """Remove a path with everything below, as `rm -rf`. Open files stay open."""
        folder, name = self._parent(path)
        self._mark_removed(folder.entries[name])
        folder.change(name, None)

    def _mark_removed(self, node: _Node) -> None:
        if isinstance(node, _Folder):
            node.removed = True
            for child in list(node.entries.items()):
                self._mark_removed(child[1])
                node.change(child[0], None)

    def move(self, path: str, to: str) -> None:
        folder, name = self._parent(path)
        target, new_name = self._parent(to)
        node = folder.entries[name]
        folder.change(name, None)
        target.change(new_name, node)

    def mount(self, path: str) -> None:
        """Mount another file system at a folder."""
        node = self._find(path)
        assert isinstance(node, _Folder)
        node.device = _DEVICE + 1

    def settle(self) -> None:
        """Write everything to the disk, as a `sync` that succeeds."""
        nodes: list[_Node] = [self._root]
        while nodes:
            node = nodes.pop()
            if isinstance(node, _Folder):
                node.history.clear()
                node.doubtful.clear()
                nodes += node.entries.values()
            elif isinstance(node, _File):
                node.on_disk, node.doubtful = [node.data], False
        self.changes += 1

    @property
    def descriptors(self) -> int:
        return len(self._fds)

    # -- the power cut

    def survivors(self) -> Iterator[Survivor]:
        """Yield every state that a power cut could leave now, each once. AssertionError above SURVIVORS_MAX."""
        seen: set[Survivor] = set()
        names = [(self._root, name) for name in self._root.names()]
        for state in self._expand(names, {}, {}):
            survivor = tuple(sorted(state.items()))
            if survivor not in seen:
                seen.add(survivor)
                assert len(seen) <= SURVIVORS_MAX, "too many states to look at each: make the step smaller"
                yield survivor

    def _expand(
        self,
        todo: list[tuple[_Folder, str]],
        state: dict[str, bytes | None],
        chosen: dict[_File, bytes],
    ) -> Iterator[dict[str, bytes | None]]:
        """Yield `state` with one choice for each entry to do, and for everything below.

        A file has one content for all its names, which is in `chosen`.
        """
        todo = list(todo)
        while todo:
            folder, name = todo.pop()
            path = f"{folder.path.rstrip('/')}/{name}"
            options = folder.options(name)
            if self._is_scratch(folder):
                options = [folder.entries.get(name)]
            choices: list[tuple[_Node | None, bytes]] = []
            for node in options:
                if isinstance(node, _File):
                    if self._is_scratch(folder):
                        contents = [node.data]
                    else:
                        contents = [chosen[node]] if node in chosen else node.contents()
                    choices += [(node, content) for content in contents]
                elif not isinstance(node, _Link):
                    choices.append((node, b""))
            for node, content in choices[1:]:
                branch, below, known = dict(state), list(todo), dict(chosen)
                self._choose(path, node, content, folder, below, branch, known)
                yield from self._expand(below, branch, known)
            if choices:
                self._choose(path, *choices[0], folder, todo, state, chosen)
        yield state

    def _choose(
        self,
        path: str,
        node: _Node | None,
        content: bytes,
        folder: _Folder,
        todo: list[tuple[_Folder, str]],
        state: dict[str, bytes | None],
        chosen: dict[_File, bytes],
    ) -> None:
        if isinstance(node, _Folder):
            state[path] = None
            todo += [(node, name) for name in node.names()]
        elif isinstance(node, _File):
            state[path] = content
            if not self._is_scratch(folder):
                chosen[node] = content

    def _is_scratch(self, folder: _Folder) -> bool:
        return bool(self._scratch) and folder.path.endswith("/" + self._scratch)

    # -- system calls

    def open(self, name: str, flags: int, directory: int | None) -> int:
        folder, name = self._place(name, directory)
        path = f"{folder.path.rstrip('/')}/{name}" if name else folder.path
        call = self._begin("open", path)
        node: _Node | None = folder.entries.get(name) if name else folder
        if flags & os.O_CREAT:
            if node is not None:
                raise _error(errno.EEXIST)
            if folder.removed:
                raise _error(errno.ENOENT)
            node = _File(self._number(), folder.device)
            node.path, node.modified_at_nanos = path, self._tick()
            folder.change(name, node)
            self.changes += 1
        if isinstance(node, _Link) and not flags & os.O_NOFOLLOW:
            node = self._find(node.target)
        if node is None:
            raise _error(errno.ENOENT)
        if isinstance(node, _Link):
            raise _error(errno.ENOTDIR if flags & os.O_DIRECTORY else errno.ELOOP)
        if flags & os.O_DIRECTORY and not isinstance(node, _Folder):
            raise _error(errno.ENOTDIR)
        fd = max(self._fds, default=99) + 1
        self._fds[fd] = _Open(node)
        self.after(call)
        return fd

    def close(self, fd: int) -> None:
        if fd not in self._fds:
            raise _error(errno.EBADF)
        del self._fds[fd]

    def read(self, fd: int, size: int) -> bytes:
        file = self._file(fd)
        call = self._begin("read", file.path)
        start = self._fds[fd].position
        data = file.data[start : start + size]
        self._fds[fd].position += len(data)
        self.after(call)
        return data

    def read_at(self, fd: int, size: int, start: int) -> bytes:
        file = self._file(fd)
        call = self._begin("read", file.path)
        self.after(call)
        return file.data[start : start + size]

    def write(self, fd: int, data: memoryview, path: str) -> int:
        file = self._file(fd)
        call = self._begin("write", self._subject(fd, path))
        start = self._fds[fd].position
        file.data = file.data[:start].ljust(start, b"\0") + bytes(data) + file.data[start + len(data) :]
        file.modified_at_nanos = self._tick()
        self._fds[fd].position += len(data)
        self.changes += 1
        self.after(call)
        return len(data)

    def fsync(self, fd: int, path: str) -> None:
        node = self._fds[fd].node
        try:
            call = self._begin("fsync", self._subject(fd, path))
        except OSError as error:
            if error.errno in _IN_DOUBT:
                node.sync(failed=True)
                self.changes += 1
            raise
        node.sync(failed=False)
        self.changes += 1
        self.after(call)

    def syncfs(self, fd: int) -> None:
        try:
            call = self._begin("syncfs", self._fds[fd].node.path)
        except OSError as error:
            if error.errno in _IN_DOUBT:
                self._sync_all(failed=True)
            raise
        self._sync_all(failed=False)
        self.after(call)

    def has_syncfs(self, fd: int) -> bool:
        return True

    def keeps_order(self, fd: int) -> bool:
        return False

    def unwritten_bytes(self) -> int | None:
        return self.unwritten

    def start_writeback(self, fd: int) -> None:
        return

    def file_system_kind(self, fd: int) -> str:
        return "ext4"

    def fstat(self, fd: int) -> os.stat_result:
        node = self._fds[fd].node
        self._begin("fstat", node.path)
        return _stat(node)

    def stat(self, name: str, directory: int) -> os.stat_result:
        folder = self._folder(directory)
        call = self._begin("stat", f"{folder.path}/{name}")
        if name not in folder.entries:
            raise _error(errno.ENAMETOOLONG if len(os.fsencode(name)) > 255 else errno.ENOENT)
        found = _stat(folder.entries[name])
        self.after(call)
        return found

    def stat_prefix(self, path: str) -> os.stat_result:
        self._begin("stat_prefix", path)
        node = self._find(path)
        if isinstance(node, _Link):
            node = self._find(node.target)
        if node is None:
            raise _error(errno.ENOENT)
        return _stat(node)

    def real_path(self, path: str) -> str:
        node = self._find(path)
        return node.target if isinstance(node, _Link) else path

    def mkdir(self, name: str, directory: int | None) -> None:
        folder, name = self._place(name, directory)
        path = f"{folder.path.rstrip('/')}/{name}"
        call = self._begin("mkdir", path)
        if folder.removed:
            raise _error(errno.ENOENT)
        if not name or name in folder.entries:
            raise _error(errno.EEXIST)
        made = _Folder(self._number(), folder.device, path)
        made.modified_at_nanos = self._tick()
        folder.change(name, made)
        self.changes += 1
        self.after(call)

    def link(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        folder, target = self._folder(source_directory), self._folder(directory)
        call = self._begin("link", f"{target.path}/{name}")
        node = folder.entries.get(source)
        if name in target.entries:
            raise _error(errno.EEXIST)
        self._check_move(node, target)
        target.change(name, node)
        self.changes += 1
        self.after(call)

    def rename(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        folder, target = self._folder(source_directory), self._folder(directory)
        call = self._begin("rename", f"{target.path}/{name}")
        node = folder.entries.get(source)
        self._check_move(node, target)
        if isinstance(target.entries.get(name), _Folder):
            raise _error(errno.EISDIR)
        folder.change(source, None)
        target.change(name, node)
        self.changes += 1
        self.after(call)

    def _check_move(self, node: _Node | None, target: _Folder) -> None:
        if node is None or target.removed:
            raise _error(errno.ENOENT)
        if node.device != target.device:
            raise _error(errno.EXDEV)

    def unlink(self, name: str, directory: int) -> None:
        folder = self._folder(directory)
        call = self._begin("unlink", f"{folder.path}/{name}")
        if name not in folder.entries:
            raise _error(errno.ENOENT)
        if isinstance(folder.entries[name], _Folder):
            raise _error(errno.EISDIR)
        folder.change(name, None)
        self.changes += 1
        self.after(call)

    def scandir(self, directory: int) -> Entries:
        folder = self._folder(directory)
        self._begin("scandir", folder.path)
        return _Entries([_Entry(name, node) for name, node in sorted(folder.entries.items())])

    def staging_name(self) -> str:
        return f"staged-{self._number()}"

    # -- inside

    def _sync_all(self, *, failed: bool) -> None:
        nodes: list[_Node] = [self._root, *(opened.node for opened in self._fds.values())]
        while nodes:
            node = nodes.pop()
            if not isinstance(node, _Link):
                node.sync(failed=failed)
            if isinstance(node, _Folder):
                nodes += node.entries.values()
        self.changes += 1

    def _begin(self, name: str, path: str) -> Syscall:
        call = Syscall(name, path, len(self.calls))
        self.calls.append(call)
        number = self.fail(call)
        if number is not None:
            raise _error(number)
        return call

    def _subject(self, fd: int, path: str) -> str:
        """Return the path for the trace. The destination of a file says more than the name that it is staged under."""
        node = self._fds[fd].node
        if isinstance(node, _File) and self._scratch and f"/{self._scratch}/" in node.path:
            return f"{node.path.partition(f'/{self._scratch}/')[0]}/{path}"
        return node.path

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _tick(self) -> int:
        self._now += 1_000_000
        return self._now

    def _file(self, fd: int) -> _File:
        node = self._fds[fd].node
        if not isinstance(node, _File):
            raise _error(errno.EISDIR)
        return node

    def _folder(self, fd: int) -> _Folder:
        node = self._fds[fd].node
        if not isinstance(node, _Folder):
            raise _error(errno.ENOTDIR)
        return node

    def _place(self, name: str, directory: int | None) -> tuple[_Folder, str]:
        if directory is not None:
            if len(os.fsencode(name)) > 255:
                raise _error(errno.ENAMETOOLONG)
            return self._folder(directory), name
        return (self._root, "") if name == "/" else self._parent(name)

    def _parent(self, path: str) -> tuple[_Folder, str]:
        parent, _, name = path.rpartition("/")
        node = self._find(parent or "/")
        if isinstance(node, _Link):
            node = self._find(node.target)
        if node is None:
            raise _error(errno.ENOENT)
        if not isinstance(node, _Folder):
            raise _error(errno.ENOTDIR)
        return node, name

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for name in path.strip("/").split("/") if path != "/" else ():
            if not isinstance(node, _Folder):
                return None
            node = node.entries.get(name)
        return node


def _mixtures(old: bytes, new: bytes) -> Iterator[bytes]:
    """Yield the contents that the disk may hold between two contents: mixtures of their pages."""
    if old == new:
        return
    pages = range((max(len(old), len(new)) + PAGE - 1) // PAGE)
    changed = [p for p in pages if old[p * PAGE : (p + 1) * PAGE] != new[p * PAGE : (p + 1) * PAGE]]
    if len(changed) <= PAGES_MIXED_MAX:
        subsets = [
            [page for bit, page in enumerate(changed) if mask >> bit & 1] for mask in range(1 << len(changed))
        ]
    else:
        subsets = [changed[:1], changed[:-1], changed[1:], changed, *([page] for page in changed[1:])]
    for subset in subsets:
        size = max([len(old), *(min((page + 1) * PAGE, len(new)) for page in subset)])
        mixed = bytearray(old.ljust(size, b"\0"))
        for page in subset:
            part = new[page * PAGE : (page + 1) * PAGE]
            mixed[page * PAGE : page * PAGE + len(part)] = part
        yield bytes(mixed)
    yield new
    first = changed[0] * PAGE
    torn = first + max(1, len(new[first : first + PAGE]) // 2)
    yield new[:torn] + old[torn:]
    yield old.ljust(len(new), b"\0")


def _stat(node: _Node) -> os.stat_result:
    mode, size = stat.S_IFDIR | 0o755, 0
    if isinstance(node, _File):
        mode, size = stat.S_IFREG | 0o644, len(node.data)
    elif isinstance(node, _Link):
        mode = stat.S_IFLNK | 0o777
    seconds = node.modified_at_nanos // 1_000_000_000
    return os.stat_result(
        (mode, node.number, node.device, 1, 0, 0, size, seconds, seconds, seconds),
        {"st_mtime_ns": node.modified_at_nanos, "st_mtime": node.modified_at_nanos / 1e9},
    )


def _staged_number(path: str) -> int:
    name = path.rpartition("/")[2].removesuffix("-link")
    return int(name.removeprefix("staged-")) if name.startswith("staged-") else 0


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
