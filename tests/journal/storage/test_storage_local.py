"""The local driver: the contract, faults of the file system, hostile directories, several processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import itertools
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Corrupt,
    Denied,
    Exhausted,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.storage import Storage, local, open_storage
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.posix import STAGING_FOLDER, Syscalls
from alpheus_journal.testing import StorageContract, listed, raises

SIZE_MAX = 1 << 20


class TestLocalContract(StorageContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / f"lake {number}%" for number in itertools.count())

    async def make(self) -> Storage:
        return await open_local(next(self.folders))


async def open_local(path: Path, *, create: bool = True, system: Syscalls | None = None) -> LocalStorage:
    return await asyncio.to_thread(LocalStorage, str(path), create, system=system)


class Trace(Syscalls):
    """Record the calls that matter for durability, and raise the errno that `faults` holds for a call.

    A key is `(call, path)`: `("fsync", "vn")`. With `after` the call happens before it fails.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.faults: dict[tuple[str, str], int] = {}
        self.after = False

    def _do(self, key: tuple[str, str], call: Callable[[], None]) -> None:
        self.calls.append(key)
        number = self.faults.get(key)
        if number is None or self.after:
            call()
        if number is not None:
            raise OSError(number, os.strerror(number))

    def fsync(self, fd: int, path: str) -> None:
        self._do(("fsync", path), lambda: super(Trace, self).fsync(fd, path))

    def link(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        self._do(
            ("link", path), lambda: super(Trace, self).link(source, source_directory, name, directory, path)
        )

    def rename(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        self._do(
            ("rename", path),
            lambda: super(Trace, self).rename(source, source_directory, name, directory, path),
        )

    def write(self, fd: int, data: memoryview, path: str) -> int:
        self._do(("write", path), lambda: None)
        # The system may write less than it was given.
        return super().write(fd, data[: max(1, len(data) // 2)], path)

    def mkdir(self, name: str, directory: int) -> None:
        self._do(("mkdir", name), lambda: super(Trace, self).mkdir(name, directory))


@pytest.fixture
def trace() -> Trace:
    return Trace()


@pytest.fixture
async def storage(tmp_path: Path, trace: Trace) -> AsyncIterator[LocalStorage]:
    store = await open_local(tmp_path / "lake", system=trace)
    await store.put("vn/latest", b"0")
    trace.calls.clear()
    yield store
    await store.close()


def staged(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "lake" / STAGING_FOLDER).iterdir())


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# -- the order of a write


async def test_publish_is_durable_step_by_step(storage: LocalStorage, trace: Trace) -> None:
    await storage.publish({"node/a": b"aa", "node/b": b"bb", "def/ns/c": b"cc"}, "vn/1", b"root")
    assert [call for call in trace.calls if call[0] != "write"] == [
        ("mkdir", "node"), ("fsync", ""), ("mkdir", "def"), ("fsync", ""), ("mkdir", "ns"), ("fsync", "def"),
        ("fsync", "node/a"), ("fsync", "node/b"), ("fsync", "def/ns/c"), ("fsync", "vn/1"),
        ("rename", "node/a"), ("rename", "node/b"), ("rename", "def/ns/c"), ("fsync", "node"),
        ("fsync", "def/ns"), ("link", "vn/1"), ("fsync", "vn"),
    ]  # fmt: skip
    last_write = max(i for i, call in enumerate(trace.calls) if call[0] == "write")
    assert last_write < trace.calls.index(("fsync", "node/a"))


async def test_folders_of_others_are_made_durable_once(tmp_path: Path, trace: Trace) -> None:
    (tmp_path / "lake" / "vn").mkdir(parents=True)
    store = await open_local(tmp_path / "lake", system=trace)
    await store.create("vn/0", b"")
    await store.create("vn/1", b"")
    assert trace.calls.count(("fsync", "")) == 1
    assert ("mkdir", "vn") not in trace.calls
    await store.close()


async def test_the_way_to_the_prefix_is_made_durable(tmp_path: Path, trace: Trace) -> None:
    """The store syncs the directories once, whichever process made them. Directories that it may not open are left
    out."""
    (tmp_path / "new" / "deep").mkdir(parents=True)
    store = await open_local(tmp_path / "new" / "deep" / "lake", system=trace)
    await store.stat("vn/0")
    assert [call for call in trace.calls if call[0] == "fsync"] == []
    await store.create("vn/0", b"")
    calls = list(trace.calls)
    for folder in (tmp_path, tmp_path / "new", tmp_path / "new" / "deep"):
        assert calls.index(("fsync", str(folder))) < calls.index(("link", "vn/0"))
    await store.create("vn/1", b"")
    assert [call for call in trace.calls[len(calls) :] if call[1].startswith("/")] == []
    await store.close()


async def test_reader_syncs_a_slot_before_showing_it(
    tmp_path: Path, trace: Trace, storage: LocalStorage
) -> None:
    for slot in ("vn/0", "vn/1", "vn/2"):
        await storage.create(slot, slot.encode())
    trace.calls.clear()
    assert await storage.read("vn/0", size_max=SIZE_MAX) == b"vn/0"
    assert trace.calls == [], "its own slots are durable"

    other_trace = Trace()
    other = await open_local(tmp_path / "lake", create=False, system=other_trace)
    await other.read("vn/0", size_max=SIZE_MAX)
    assert other_trace.calls == [("fsync", ""), ("fsync", "vn")]
    await other.stat("vn/0")
    await other.read("vn/latest", size_max=SIZE_MAX)
    assert await other.stat("vn/9") is None
    assert other_trace.calls[2:] == []
    await other.read_many(["vn/0", "vn/1"], size_max=SIZE_MAX)
    assert other_trace.calls[2:] == [("fsync", "vn")]
    await listed(other, "vn/")
    assert other_trace.calls[3:] == [("fsync", "vn")]
    await listed(other, "vn/")
    await storage.put("vn/1", b"tombstone")
    await other.stat("vn/1")
    assert other_trace.calls[4:] == [("fsync", "vn")], "a replaced slot is new"
    await other.close()


async def test_many_deletions_sync_nothing_and_keep_folders(
    storage: LocalStorage, trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job opens a folder once. An empty folder stays, because a writer may be about to use it."""
    paths = [f"data/t/{folder}/{number}" for number in range(100) for folder in "abc"]
    await storage.put_many(dict.fromkeys(paths, b"x"))
    trace.calls.clear()
    opened: list[str] = []
    open_file = trace.open

    def counted(name: str, flags: int, directory: int | None) -> int:
        opened.append(name)
        return open_file(name, flags, directory)

    monkeypatch.setattr(trace, "open", counted)
    await storage.delete_many(paths)
    assert trace.calls == []
    assert opened == ["data", "t", "a", "b", "c"]
    assert set(await listed(storage, "")) == {"vn/latest"}
    assert all((tmp_path / "lake" / "data" / "t" / folder).is_dir() for folder in "abc")
    before = descriptors()
    await storage.put("data/t/a/new", b"x")
    await storage.delete_many([*paths, "data", "data/t/a", "data/t/a/new/below", "data/u/x"])
    assert set(await listed(storage, "")) == {"vn/latest", "data/t/a/new"}
    assert descriptors() == before
    await raises(InvalidInput, storage.delete_many(["vn/latest", f"{STAGING_FOLDER}/x"]), kind="bad_argument")
    assert await storage.exists("vn/latest")


async def test_a_deletion_of_many_that_fails(storage: LocalStorage, trace: Trace, tmp_path: Path) -> None:
    class NoAccess(Syscalls):
        def unlink(self, name: str, directory: int) -> None:
            if name == "b":
                raise OSError(errno.EACCES, "no")
            super().unlink(name, directory)

    await storage.put_many(dict.fromkeys(["data/t/a", "data/t/b", "data/t/c"], b""))
    other = await open_local(tmp_path / "lake", create=False, system=NoAccess())
    error = await raises(Denied, other.delete_many(["data/t/c", "data/t/b", "data/t/a"]))
    assert error.path == "data/t/b"
    assert set(await listed(other, "data/")) == {"data/t/b", "data/t/c"}
    await other.close()
    await raises(Unavailable, other.delete_many(["data/t/b"]), kind="shutting_down")
    trace.faults = {("fsync", "node/a"): errno.EIO}
    await raises(Unavailable, storage.put("node/a", b""))
    await raises(Unavailable, storage.delete_many(["data/t/b"]), kind="storage_read_only")
    assert await storage.exists("data/t/b")


# -- faults


async def test_no_space(storage: LocalStorage, trace: Trace, tmp_path: Path) -> None:
    for number, key in itertools.product(
        (errno.ENOSPC, errno.EDQUOT),
        (("write", "node/a"), ("write", "vn/1"), ("fsync", "node/a"), ("mkdir", "node"), ("link", "vn/1"),
         ("rename", "node/a")),
    ):  # fmt: skip
        (tmp_path / "lake" / "node").rmdir() if (tmp_path / "lake" / "node").exists() else None
        trace.faults = {key: number}
        error = await raises(Exhausted, storage.publish({"node/a": b"a"}, "vn/1", b"root"), kind="no_space")
        assert error.hint
        assert staged(tmp_path) == []
        assert not (tmp_path / "lake" / "vn" / "1").exists()
        (tmp_path / "lake" / "node" / "a").unlink(missing_ok=True)
    assert await storage.read("vn/latest", size_max=SIZE_MAX) == b"0"
    trace.faults = {}
    await storage.publish({"node/a": b"a"}, "vn/1", b"root")


@pytest.mark.parametrize("path", ["vn/1", "node/a"])
async def test_file_fsync_fails(storage: LocalStorage, trace: Trace, tmp_path: Path, path: str) -> None:
    trace.faults = {("fsync", path): errno.EIO}
    await raises(Unavailable, storage.publish({"node/a": b"a"}, "vn/1", b"root"))
    assert trace.calls.count(("fsync", path)) == 1
    assert staged(tmp_path) == []
    assert set(await listed(storage, "")) == {"vn/latest"}
    trace.faults = {}
    for call in (storage.create("vn/2", b""), storage.put("x", b""), storage.delete("vn/latest")):
        error = await raises(Unavailable, call, kind="storage_read_only")
        assert "restart" in error.hint
    assert await storage.read("vn/latest", size_max=SIZE_MAX) == b"0"


async def test_one_of_many_file_fsyncs_fails(storage: LocalStorage, trace: Trace, tmp_path: Path) -> None:
    files = {f"node/{number}": b"x" for number in range(40)}
    trace.faults = {("fsync", "node/17"): errno.EIO}
    await raises(Unavailable, storage.publish(files, "vn/1", b"root"))
    for path in [*files, "vn/1"]:
        assert trace.calls.count(("fsync", path)) == 1
    assert staged(tmp_path) == []
    assert set(await listed(storage, "")) == {"vn/latest"}


async def test_files_stay_open_until_every_thread_is_done_with_them(
    storage: LocalStorage, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of many files runs out of space while others are synced. The driver waits for these others: the number of a
    closed descriptor may belong to another file, which would be synced instead."""
    files = {f"node/{number}": b"x" for number in range(40)}
    first, others_may_go_on = threading.Lock(), threading.Event()
    sync, close, all_of_them = trace.fsync, trace.close, local.wait

    def full(fd: int, path: str) -> None:
        if path not in files:
            sync(fd, path)
        elif first.acquire(blocking=False):
            raise OSError(errno.ENOSPC, "full")
        else:
            others_may_go_on.wait()
            sync(fd, path)

    def closes(fd: int) -> None:
        close(fd)
        others_may_go_on.set()

    def waits(jobs: Any) -> Any:
        others_may_go_on.set()
        return all_of_them(jobs)

    with monkeypatch.context() as patched:
        patched.setattr(trace, "fsync", full)
        patched.setattr(trace, "close", closes)
        patched.setattr(local, "wait", waits)
        await raises(Exhausted, storage.publish(files, "vn/1", b"root"), kind="no_space")
    assert not await storage.exists("vn/1")
    await storage.publish(files, "vn/1", b"root")  # no part of it is in doubt


async def test_folder_fsync_fails_after_the_link(storage: LocalStorage, trace: Trace, tmp_path: Path) -> None:
    await storage.create("vn/0", b"root 0")
    trace.faults = {("fsync", "vn"): errno.EIO}
    await raises(OutcomeUnknown, storage.create("vn/1", b"root"))
    assert staged(tmp_path) == []
    trace.faults = {}
    # Whether the slot is durable is unknown, so this process does not show it either.
    await raises(Unavailable, storage.read("vn/1", size_max=SIZE_MAX), kind="storage_read_only")
    await raises(Unavailable, storage.stat("vn/1"), kind="storage_read_only")
    await raises(Unavailable, storage.create("vn/1", b"root"), kind="storage_read_only")
    assert await storage.read("vn/0", size_max=SIZE_MAX) == b"root 0"


async def test_folder_fsync_of_files_fails_before_the_slot(storage: LocalStorage, trace: Trace) -> None:
    trace.faults = {("fsync", "node"): errno.EIO}
    await raises(Unavailable, storage.publish({"node/a": b"a"}, "vn/1", b"root"))
    assert ("link", "vn/1") not in trace.calls
    assert not await storage.exists("vn/1")


@pytest.mark.parametrize("folder", ["", "vn"])
async def test_readers_fsync_fails(tmp_path: Path, storage: LocalStorage, folder: str) -> None:
    """The folder of the slots, or the prefix that contains it, cannot be synced. The reader never shows a slot then."""
    await storage.create("vn/0", b"root")
    trace = Trace()
    trace.faults = {("fsync", folder): errno.EIO}
    other = await open_local(tmp_path / "lake", system=trace)
    await raises(Unavailable, other.read("vn/0", size_max=SIZE_MAX))
    trace.faults = {}
    await raises(Unavailable, other.read("vn/0", size_max=SIZE_MAX), kind="storage_read_only")
    await raises(Unavailable, other.create("vn/1", b""), kind="storage_read_only")
    await other.close()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EINVAL, errno.EBADF])
async def test_reading_where_nothing_can_be_synced(
    tmp_path: Path, storage: LocalStorage, number: int
) -> None:
    await storage.create("vn/0", b"root")
    trace = Trace()
    trace.faults = {("fsync", ""): number, ("fsync", "vn"): number}
    other = await open_local(tmp_path / "lake", system=trace)
    assert await other.read("vn/0", size_max=SIZE_MAX) == b"root"
    await other.close()


async def test_link_with_an_unknown_outcome(storage: LocalStorage, trace: Trace, tmp_path: Path) -> None:
    trace.faults = {("link", "vn/1"): errno.EIO}
    await raises(OutcomeUnknown, storage.create("vn/1", b"root"))
    trace.faults = {}
    await storage.create("vn/1", b"root")
    trace.faults = {("rename", "vn/latest"): errno.ETIMEDOUT}
    await raises(OutcomeUnknown, storage.put("vn/latest", b"1"))
    assert staged(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO, errno.ENOENT])
async def test_a_link_that_reports_its_own_success_as_failure(
    storage: LocalStorage, trace: Trace, tmp_path: Path, number: int
) -> None:
    trace.faults, trace.after = {("link", "vn/1"): number}, True
    await storage.create("vn/1", b"root")
    trace.faults = {}
    assert await storage.read("vn/1", size_max=SIZE_MAX) == b"root"
    assert staged(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK])
async def test_no_hard_links(tmp_path: Path, trace: Trace, number: int) -> None:
    store = await open_local(tmp_path / "lake", system=trace)
    trace.faults = {("link", STAGING_FOLDER): number}
    for call in (store.create("vn/0", b""), store.publish({"node/a": b""}, "vn/0", b"")):
        error = await raises(InvalidInput, call, kind="storage_unsuitable")
        assert error.hint
    assert staged(tmp_path) == []
    assert await listed(store, "") == {}
    await store.close()


async def test_a_staging_folder_that_cannot_be_synced(tmp_path: Path, trace: Trace) -> None:
    trace.faults = {("fsync", STAGING_FOLDER): errno.EINVAL}
    store = await open_local(tmp_path / "lake", system=trace)
    error = await raises(InvalidInput, store.put("vn/latest", b"0"), kind="storage_unsuitable")
    assert "it cannot sync folders" in str(error)
    assert trace.calls.count(("fsync", STAGING_FOLDER)) == 1
    assert staged(tmp_path) == []
    await store.close()


async def test_links_that_do_not_exclude(tmp_path: Path) -> None:
    class Overwriting(Syscalls):
        def link(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            super().link(source, source_directory, name, directory, path)

    store = await open_local(tmp_path / "lake", system=Overwriting())
    await raises(InvalidInput, store.create("vn/0", b""), kind="storage_unsuitable")
    await store.close()


async def test_folders_on_another_file_system(storage: LocalStorage, trace: Trace, tmp_path: Path) -> None:
    trace.faults = {("link", "vn/1"): errno.EXDEV}
    await raises(InvalidInput, storage.create("vn/1", b""), kind="storage_unsuitable")
    assert staged(tmp_path) == []


async def test_nothing_is_written_before_the_first_write(tmp_path: Path) -> None:
    (tmp_path / "lake" / "vn").mkdir(parents=True)
    (tmp_path / "lake" / "vn" / "0").write_bytes(b"root")
    (tmp_path / "lake").chmod(0o555)
    store = await open_local(tmp_path / "lake", create=False)
    assert await store.read("vn/0", size_max=SIZE_MAX) == b"root"
    assert set(await listed(store, "")) == {"vn/0"}
    await store.delete("vn/1")
    assert [path.name for path in (tmp_path / "lake").iterdir()] == ["vn"]
    await store.close()


@pytest.mark.parametrize(
    ("number", "expected", "kind"),
    [
        (errno.EACCES, Denied, "denied"),
        (errno.EROFS, Unavailable, "storage_read_only"),
        (errno.EIO, Unavailable, "storage_unavailable"),
        (errno.ENOSPC, Exhausted, "no_space"),
    ],
)
async def test_no_staging_folder(
    tmp_path: Path, trace: Trace, number: int, expected: type[AlpheusError], kind: str
) -> None:
    store = await open_local(tmp_path / "lake", system=trace)
    trace.faults = {("mkdir", STAGING_FOLDER): number}
    await raises(expected, store.create("vn/0", b""), kind=kind)
    trace.faults = {}
    await store.create("vn/0", b"")
    await store.close()


async def test_unreadable_files(tmp_path: Path) -> None:
    class NoAccess(Syscalls):
        number = errno.EACCES

        def open(self, name: str, flags: int, directory: int) -> int:
            if name == "a":
                raise OSError(self.number, os.strerror(self.number))
            return super().open(name, flags, directory)

    system = NoAccess()
    store = await open_local(tmp_path / "lake", system=system)
    await store.create("node/a", b"")
    await raises(Denied, store.read("node/a", size_max=SIZE_MAX))
    system.number = errno.EMFILE
    await raises(Unavailable, store.read("node/a", size_max=SIZE_MAX), kind="storage_unavailable")
    await store.close()


# -- leftovers


async def test_old_leftovers_go_and_young_ones_stay(tmp_path: Path) -> None:
    staging = tmp_path / "lake" / STAGING_FOLDER
    staging.mkdir(parents=True)
    for name, age in (("1-old", 3700), ("2-young", 3500)):
        (staging / name).write_bytes(b"")
        then = staging.stat().st_mtime - age
        os.utime(staging / name, (then, then))
    store = await open_local(tmp_path / "lake")
    assert await listed(store, "") == await listed(store, STAGING_FOLDER + "/") == {}
    assert len(staged(tmp_path)) == 2
    await store.put("node/a", b"")
    assert staged(tmp_path) == ["2-young"]
    for call in (store.create(f"{STAGING_FOLDER}/x", b""), store.delete(f"{STAGING_FOLDER}/2-young")):
        await raises(InvalidInput, call)
    assert staged(tmp_path) == ["2-young"]
    await store.close()


async def test_staging_folder_removed_meanwhile(storage: LocalStorage, tmp_path: Path) -> None:
    (tmp_path / "lake" / STAGING_FOLDER).rmdir()
    await storage.create("vn/1", b"root")
    assert await storage.read("vn/1", size_max=SIZE_MAX) == b"root"


# -- hostile and odd directories


async def test_symbolic_links_are_not_followed(storage: LocalStorage, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    lake = tmp_path / "lake"
    (lake / "node").symlink_to(outside)
    (lake / "vn" / "0").symlink_to(outside / "secret")
    (lake / "data").mkdir()
    (lake / "data" / "t").symlink_to(lake / "vn")
    for path in ("node/secret", "vn/0", "data/t/latest"):
        for call in (storage.read(path, size_max=SIZE_MAX), storage.stat(path)):
            error = await raises(Corrupt, call, kind="corrupt_history")
            assert error.path
            assert path.startswith(error.path)
    for write in (storage.create("node/x", b""), storage.put("node/x", b""), storage.delete("node/secret"),
                  storage.put("data/t/latest", b"")):  # fmt: skip
        await raises(Corrupt, write, kind="corrupt_history")
    await raises(AlreadyExists, storage.create("vn/0", b""))
    await raises(Corrupt, listed(storage, "node/"), kind="corrupt_history")
    assert set(await listed(storage, "")) == {"vn/latest"}
    await storage.put("vn/0", b"replaced")
    assert not (lake / "vn" / "0").is_symlink()
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("secret", b"secret")]


async def test_staging_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / STAGING_FOLDER).symlink_to(tmp_path / "outside")
    store = await open_local(tmp_path / "lake")
    await raises(Corrupt, store.create("vn/0", b""))
    assert list((tmp_path / "outside").iterdir()) == []
    await store.close()


async def test_files_that_are_none(storage: LocalStorage, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lake" / "vn" / "fifo")
    os.mknod(tmp_path / "lake" / "vn" / "socket", stat.S_IFSOCK | 0o600)
    (tmp_path / "lake" / "vn" / "folder").mkdir()
    for path in ("vn/fifo", "vn/socket"):
        error = await raises(Corrupt, storage.read(path, size_max=SIZE_MAX), kind="corrupt_node")
        assert error.path == path
        await raises(Corrupt, storage.stat(path))
    await raises(NotFound, storage.read("vn/folder", size_max=SIZE_MAX))
    await raises(AlreadyExists, storage.create("vn/folder", b""))
    await raises(InvalidInput, storage.put("vn/folder", b""))
    await raises(InvalidInput, storage.create("vn/latest/below", b""))
    await raises(InvalidInput, storage.create("vn/" + "x" * 256, b""))
    await storage.delete("vn/folder")
    assert set(await listed(storage, "")) == {"vn/latest"}
    assert staged(tmp_path) == []


async def test_names_that_no_path_has_are_not_listed(storage: LocalStorage, tmp_path: Path) -> None:
    for name in (b"a\nb", b"\xff", b"back\\slash"):
        os.close(os.open(bytes(tmp_path / "lake" / "vn") + b"/" + name, os.O_CREAT | os.O_WRONLY))
    assert set(await listed(storage, "")) == {"vn/latest"}


async def test_corrupt_kind_follows_the_folder(storage: LocalStorage) -> None:
    for path, kind in (("def/ns/a", "corrupt_definition"), ("action/a", "corrupt_action"),
                       ("manifest/t/a", "corrupt_manifest"), ("vn/0", "corrupt_node")):  # fmt: skip
        await storage.put(path, b"xx")
        await raises(Corrupt, storage.read(path, size_max=1), kind=kind)


async def test_a_file_cut_while_it_is_read(tmp_path: Path) -> None:
    class Cut(Syscalls):
        def read(self, fd: int, size: int) -> bytes:
            return super().read(fd, size)[:1] if size > 1 else b""

    store = await open_local(tmp_path / "lake", system=Cut())
    await store.create("node/a", b"abc")
    await raises(Corrupt, store.read("node/a", size_max=SIZE_MAX))
    await store.close()


# -- opening


async def test_opening(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, expected, kind in (
        ("missing", NotFound, "no_catalog"),
        ("file", InvalidInput, "bad_url"),
        ("file/below", InvalidInput, "bad_url"),
        ("loop", InvalidInput, "bad_url"),
        ("nul\0", InvalidInput, "bad_url"),
    ):
        await raises(expected, open_local(tmp_path / path, create=False), kind=kind)
    for path in ("file", "file/below", "nul\0"):
        await raises(InvalidInput, open_local(tmp_path / path), kind="bad_url")
    store = await open_local(tmp_path / "new" / "deep")
    assert (tmp_path / "new" / "deep").is_dir()
    await store.close()
    again = await asyncio.to_thread(open_storage, str(tmp_path / "new" / "deep"))
    assert again.url == store.url == f"file://{tmp_path}/new/deep"
    assert again.uri("data/a b") == f"file://{tmp_path}/new/deep/data/a%20b"
    await again.close()


async def test_the_prefix_is_pinned(tmp_path: Path) -> None:
    """After the link leads elsewhere, an open store still reads its old directory, but writes no more."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "lake").symlink_to(tmp_path / "one")
    store = await open_local(tmp_path / "lake", create=False)
    await store.create("vn/0", b"root")
    (tmp_path / "lake").unlink()
    (tmp_path / "lake").symlink_to(tmp_path / "two")
    error = await raises(Unavailable, store.create("vn/1", b"root"))
    assert "replaced" in error.message
    assert await store.read("vn/0", size_max=SIZE_MAX) == b"root"
    assert [path.name for path in (tmp_path / "one" / "vn").iterdir()] == ["0"]
    assert list((tmp_path / "two").iterdir()) == []
    (tmp_path / "lake").unlink()
    (tmp_path / "lake").symlink_to(tmp_path / "one")
    await store.create("vn/1", b"root")
    await store.close()


async def test_a_closed_store(tmp_path: Path) -> None:
    store = await open_local(tmp_path / "lake")
    await store.create("vn/0", b"")
    await store.close()
    await raises(Unavailable, store.read("vn/0", size_max=SIZE_MAX), kind="shutting_down")
    await raises(Unavailable, listed(store, ""), kind="shutting_down")


async def test_no_descriptor_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpheus_journal.storage.local.LIST_BATCH", 10)
    await asyncio.to_thread(lambda: None)
    gc.collect()  # files of earlier tests must not be closed in between
    before = descriptors()
    store = await open_local(tmp_path / "lake")
    await store.publish({f"data/t/{number}/w/x": b"x" for number in range(300)}, "vn/0", b"root")
    paths = [f"data/t/{number}/w/x" for number in range(300)]
    assert len(await store.read_many(paths, size_max=SIZE_MAX)) == 300
    assert len(await listed(store, "data/")) == 300
    listing = store.list("")
    await anext(listing)
    await listing.aclose()  # type: ignore[attr-defined]
    for call in (store.create("vn/0", b""), store.read("no", size_max=1), store.read("vn/0", size_max=1)):
        await raises(AlpheusError, call)
    assert descriptors() == before + 1
    await store.close()
    assert descriptors() == before
    dropped = await open_local(tmp_path / "lake")
    await dropped.stat("vn/0")
    del dropped, store, listing, call
    gc.collect()
    assert descriptors() == before


async def test_cancelled_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpheus_journal.storage.local.LIST_BATCH", 2)
    store = await open_local(tmp_path / "lake")
    await store.put_many({f"node/{number}": b"" for number in range(20)})
    before = descriptors()
    for turns in range(6):
        task = asyncio.ensure_future(listed(store, ""))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await store.close()
    assert descriptors() == before - 1


# -- processes

RACER = """
import asyncio, sys
from alpheus_journal.errors import AlreadyExists
from alpheus_journal.storage.local import LocalStorage

async def main(path, who, slots):
    store = LocalStorage(path)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(slots):
        try:
            await store.create(f"vn/{number}", (who * 4000).encode())
        except AlreadyExists:
            continue
        print(number, flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def spawn(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_processes_race_for_slots(tmp_path: Path) -> None:
    slots = 200
    racers = {who: spawn(RACER, str(tmp_path), who, str(slots)) for who in "abcd"}
    won: dict[int, str] = {}
    try:
        for process in racers.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in racers.values():
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for who, process in racers.items():
            output, _ = process.communicate(timeout=60)
            assert process.returncode == 0
            for line in output.splitlines():
                assert int(line) not in won, f"slot {line} has two winners"
                won[int(line)] = who
    finally:
        for process in racers.values():
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
    assert sorted(won) == list(range(slots))
    for number, who in won.items():
        assert (tmp_path / "vn" / str(number)).read_text() == who * 4000
    assert list((tmp_path / STAGING_FOLDER).iterdir()) == []


WRITER = """
import asyncio, sys
from alpheus_journal.storage.local import LocalStorage

async def main(path, number):
    store = LocalStorage(path)
    while True:
        data = f"{number:08}".encode() * 5000
        await store.publish({f"node/{number}": data}, f"vn/{number}", data)
        print(number, flush=True)
        number += 1

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def test_killed_writers_lose_nothing_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    start = 0
    for kill in range(6):
        process = spawn(WRITER, str(tmp_path), str(start))
        assert process.stdout is not None
        assert process.stdin is not None
        for _ in range(7 + 5 * kill):
            acknowledged.append(int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
        # Writes that it acknowledged before it died count as well.
        rest = process.stdout.read()
        process.wait()
        for stream in (process.stdin, process.stdout):
            stream.close()
        acknowledged += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        assert process.returncode == -signal.SIGKILL
        start = acknowledged[-1] + 1000
    slots = {int(path.name): path for path in (tmp_path / "vn").iterdir()}
    assert set(acknowledged) <= set(slots)
    for number, path in slots.items():
        whole = b"%08d" % number * 5000
        assert path.read_bytes() == whole, f"slot {number} is torn"
        assert (tmp_path / "node" / str(number)).read_bytes() == whole, f"slot {number} came before its node"
    assert len(slots) - len(acknowledged) <= 6, "at most one unacknowledged slot a kill"
