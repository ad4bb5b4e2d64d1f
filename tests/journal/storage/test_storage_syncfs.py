"""One `syncfs` for many staged files: its use, its failures, and the fsyncs that replace it."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from alpheus_journal.errors import Exhausted, Unavailable
from alpheus_journal.storage.local import AT_ONCE_MIN, LocalStorage
from alpheus_journal.storage.posix import Syscalls, file_system_kind, kernel_version
from alpheus_journal.storage.syncfs import UNWRITTEN_BYTES_MAX
from alpheus_journal.testing import raises

SIZE_MAX = 1 << 20
FILES = {f"node/{number}": b"x" * number for number in range(AT_ONCE_MIN - 1)}
"""With the slot, a publish has just enough files for `syncfs`."""


class Trace(Syscalls):
    """Record the calls that make files durable, in order. `faults` are the errors of the next `syncfs` calls; None
    means success."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.faults: list[int | None] = []
        self.fds: list[int] = []
        self.known = True
        self.unwritten: int | None = 0

    def fsync(self, fd: int, path: str) -> None:
        self.calls.append(("fsync", path))
        super().fsync(fd, path)

    def write(self, fd: int, data: memoryview, path: str) -> int:
        self.calls.append(("write", path))
        return super().write(fd, data, path)

    def link(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        self.calls.append(("link", path))
        super().link(source, source_directory, name, directory, path)

    def rename(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        self.calls.append(("rename", path))
        super().rename(source, source_directory, name, directory, path)

    def syncfs(self, fd: int) -> None:
        self.calls.append(("syncfs", ""))
        self.fds.append(fd)
        if (number := self.faults.pop(0) if self.faults else None) is not None:
            raise OSError(number, os.strerror(number))
        super().syncfs(fd)

    def has_syncfs(self, fd: int) -> bool:
        return self.known

    def unwritten_bytes(self) -> int | None:
        return self.unwritten

    @property
    def at_once(self) -> int:
        return self.calls.count(("syncfs", ""))

    @property
    def one_by_one(self) -> int:
        """Return how many staged files got their own fsync."""
        return len([path for name, path in self.calls if name == "fsync" and path.rpartition("/")[0]])


@pytest.fixture
def trace() -> Trace:
    return Trace()


@pytest.fixture
async def store(tmp_path: Path, trace: Trace) -> AsyncIterator[LocalStorage]:
    store = await asyncio.to_thread(LocalStorage, str(tmp_path / "lake"), True, system=trace)
    await store.put_many({"node/old": b"", "vn/latest": b"0"})
    trace.calls.clear()
    yield store
    await store.close()


async def publish(store: LocalStorage, version: int) -> None:
    await store.publish({f"{path}-{version}": data for path, data in FILES.items()}, f"vn/{version}", b"root")


async def used(store: LocalStorage, trace: Trace) -> None:
    """Publish once, because the first use tests whether `syncfs` works."""
    await publish(store, 100)
    trace.calls.clear()


async def test_files_then_syncfs_then_names_then_folders(store: LocalStorage, trace: Trace) -> None:
    await used(store, trace)
    await store.publish(FILES, "vn/1", b"root")
    assert trace.calls == [
        *(("write", path) for path in FILES if path != "node/0"),
        ("write", "vn/1"), ("syncfs", ""), ("fsync", "vn/1"),
        *(("rename", path) for path in FILES), ("fsync", "node"), ("link", "vn/1"), ("fsync", "vn"),
    ]  # fmt: skip
    assert await store.read("vn/1", size_max=SIZE_MAX) == b"root"
    assert await store.read_many(FILES, size_max=SIZE_MAX) == FILES


async def test_every_call_asks_through_the_descriptor_that_was_opened_first(
    store: LocalStorage, trace: Trace
) -> None:
    first = store._directory.fd
    for version in range(3):
        await publish(store, version)
    assert trace.fds == [first] * 4, "once to try it, then once a publish"


async def test_few_files_are_fsynced(store: LocalStorage, trace: Trace) -> None:
    await store.publish(dict(list(FILES.items())[1:]), "vn/1", b"root")
    assert (trace.at_once, trace.one_by_one) == (0, AT_ONCE_MIN - 1)


@pytest.mark.parametrize("unwritten", [UNWRITTEN_BYTES_MAX + 1, None])
async def test_fsyncs_while_others_write_much(
    store: LocalStorage, trace: Trace, unwritten: int | None
) -> None:
    trace.unwritten = unwritten
    await publish(store, 1)
    assert (trace.at_once, trace.one_by_one) == (0, AT_ONCE_MIN)
    trace.unwritten = UNWRITTEN_BYTES_MAX
    await publish(store, 2)
    assert (trace.at_once, trace.one_by_one) == (2, AT_ONCE_MIN + 1)


async def test_fsyncs_where_it_is_not_known_to_do(store: LocalStorage, trace: Trace) -> None:
    trace.known = False
    await publish(store, 1)
    await publish(store, 2)
    assert (trace.at_once, trace.one_by_one) == (0, 2 * AT_ONCE_MIN)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EIO, errno.ENOSPC])
async def test_a_first_try_that_fails_is_about_nothing_of_ours(
    store: LocalStorage, trace: Trace, number: int
) -> None:
    """The call is forbidden, or it reports an error of other programs' files."""
    trace.faults = [number]
    await publish(store, 1)
    await publish(store, 2)
    assert (trace.at_once, trace.one_by_one) == (1, 2 * AT_ONCE_MIN)


async def test_a_failure_is_that_of_an_fsync(store: LocalStorage, trace: Trace, tmp_path: Path) -> None:
    await used(store, trace)
    trace.faults = [errno.EIO]
    error = await raises(Unavailable, publish(store, 1), kind="storage_read_only")
    assert error.message == f"cannot write vn/1 in {store.url}: Input/output error"
    assert (trace.at_once, trace.one_by_one) == (1, 0)
    assert not [call for call in trace.calls if call[0] in ("link", "rename")]
    assert list((tmp_path / "lake" / ".staging").iterdir()) == []
    for call in (publish(store, 2), store.put("x", b""), store.delete("vn/latest")):
        error = await raises(Unavailable, call, kind="storage_read_only")
        assert "syncfs for vn/1 failed: Input/output error" in error.message
        assert "restart" in error.hint
    assert trace.at_once == 1, "never repeated"
    assert await store.read("vn/100", size_max=SIZE_MAX) == b"root"


async def test_no_space_is_none_and_then_there_are_fsyncs(
    store: LocalStorage, trace: Trace, tmp_path: Path
) -> None:
    await used(store, trace)
    trace.faults = [errno.ENOSPC]
    await raises(Exhausted, publish(store, 1), kind="no_space")
    assert list((tmp_path / "lake" / ".staging").iterdir()) == []
    assert not await store.exists("vn/1")
    await publish(store, 1)
    assert (trace.at_once, trace.one_by_one) == (1, AT_ONCE_MIN)


class InTurn(Trace):
    """Two writers have staged all files when one of them calls `syncfs`, which fails. The other writer gets every
    chance to call `syncfs` in between, and must not do so."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = 0
        self.all_written = threading.Barrier(2)
        self.other = threading.Event()

    def write(self, fd: int, data: memoryview, path: str) -> int:
        written = super().write(fd, data, path)
        if self.armed and path.startswith("vn/"):
            self.all_written.wait(timeout=60)
        return written

    def syncfs(self, fd: int) -> None:
        number, self.armed = self.armed, 0
        if number:
            self.other.wait(timeout=0.2)
            raise OSError(number, os.strerror(number))
        super().syncfs(fd)
        self.other.set()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_failure_told_to_one_writer_may_be_the_other_ones(tmp_path: Path, number: int) -> None:
    """The system reports a failure once. A writer that waits must not take the next answer for its own."""
    trace = InTurn()
    store = await asyncio.to_thread(LocalStorage, str(tmp_path), True, system=trace)
    await used(store, trace)
    trace.other.clear()
    trace.armed = number
    answers = await asyncio.gather(publish(store, 1), publish(store, 2), return_exceptions=True)
    assert not trace.other.is_set()
    kinds = sorted(type(answer).__name__ for answer in answers)
    if number == errno.EIO:
        assert kinds == ["Unavailable", "Unavailable"]
        assert trace.one_by_one == 0
    else:
        assert kinds == ["Exhausted", "NoneType"]
        assert trace.one_by_one == AT_ONCE_MIN, "those of the other one tell for themselves"
    await store.close()


async def test_many_writers_at_once(tmp_path: Path, trace: Trace) -> None:
    store = await asyncio.to_thread(LocalStorage, str(tmp_path), True, system=trace)
    await asyncio.gather(*(publish(store, version) for version in range(12)))
    assert trace.at_once == 13
    for version in range(12):
        assert await store.read(f"vn/{version}", size_max=SIZE_MAX) == b"root"
    await store.close()


# --- the answers of the system -----------------------------------------------------------------------


def test_kernel_versions() -> None:
    found = [
        kernel_version(release) for release in ("6.18.44-fc", "5.17-rc1", "5.15.0-91-generic", "4.4", "x")
    ]
    assert found == ([(6, 18), (5, 17), (5, 15), (4, 4), (0, 0)] if sys.platform == "linux" else [(0, 0)] * 5)
    assert kernel_version("6.18.44-fc") >= (5, 17) > (5, 15)


@pytest.mark.parametrize(("release", "kind", "expected"), [
    ("6.18.44-fc", "ext4", True), ("5.17.0", "xfs", True), ("5.16.9", "ext4", False), ("6.1", "btrfs", False),
    ("6.1", "overlay", False), ("6.1", "ext3", False), ("6.1", "", False),
])  # fmt: skip
def test_where_it_is_known_to_do(
    monkeypatch: pytest.MonkeyPatch, release: str, kind: str, expected: bool
) -> None:
    uname = os.uname_result(("Linux", "", release, "", ""))
    monkeypatch.setattr("alpheus_journal.storage.posix.os.uname", lambda: uname)
    monkeypatch.setattr("alpheus_journal.storage.posix.file_system_kind", lambda _: kind)
    monkeypatch.setattr("alpheus_journal.storage.posix.sys.platform", "linux")
    assert Syscalls().has_syncfs(0) is expected


def test_not_below_an_fsync_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Replaced(Syscalls):
        def fsync(self, fd: int, path: str) -> None:
            raise AssertionError(path)

    class Both(Replaced):
        def syncfs(self, fd: int) -> None:
            raise AssertionError(fd)

    uname = os.uname_result(("Linux", "", "6.1", "", ""))
    monkeypatch.setattr("alpheus_journal.storage.posix.os.uname", lambda: uname)
    monkeypatch.setattr("alpheus_journal.storage.posix.file_system_kind", lambda _: "ext4")
    monkeypatch.setattr("alpheus_journal.storage.posix.sys.platform", "linux")
    assert not Replaced().has_syncfs(0)
    assert Both().has_syncfs(0)


@pytest.mark.parametrize(("content", "expected"), [
    (b"nr_dirtied 9\nnr_dirty 3\nnr_writeback_temp 9\nnr_writeback 2\nworkingset_nodes 0\n", 5),
    (b"nr_dirty 0\nnr_writeback 0\n", 0), (b"nr_dirty 3\n", None), (b"", None), (None, None),
])  # fmt: skip
def test_unwritten_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, expected: int | None
) -> None:
    if content is not None:
        (tmp_path / "vmstat").write_bytes(content)
    monkeypatch.setattr("alpheus_journal.storage.posix._VMSTAT", str(tmp_path / "vmstat"))
    pages = Syscalls().unwritten_bytes()
    assert pages == (None if expected is None else expected * os.sysconf("SC_PAGESIZE"))


@pytest.mark.skipif(sys.platform != "linux", reason="syncfs is Linux's")
def test_the_calls_of_this_machine(tmp_path: Path) -> None:
    system = Syscalls()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        known = file_system_kind(fd) in ("ext4", "xfs") and kernel_version(os.uname().release) >= (5, 17)
        assert system.has_syncfs(fd) == known
        unwritten = system.unwritten_bytes()
        assert unwritten is None or unwritten >= 0
        system.syncfs(fd)
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        system.syncfs(-1)
    assert file_system_kind("/proc/self") == "proc"


async def test_a_store_on_this_machine(tmp_path: Path) -> None:
    store = await asyncio.to_thread(LocalStorage, str(tmp_path / "lake"), True)
    for version in range(3):
        await publish(store, version)
    assert await store.read("node/3-2", size_max=SIZE_MAX) == b"xxx"
    await store.close()
