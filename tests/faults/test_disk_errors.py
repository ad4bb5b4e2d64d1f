"""Disks that fail, fill up or vanish, under the local driver and a whole journal.

The tests use a file system that fails on demand, and the real one where that needs no privilege.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

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
from alpheus_journal.model.answers import CheckSummary, Committed
from alpheus_journal.storage.local import AT_ONCE_MIN, LocalStorage
from alpheus_journal.storage.posix import kernel_version
from alpheus_journal.testing import FakeFileSystem, Lake, Syscall, listed, raises

LAKE = "/srv/lake"
SIZE_MAX = 1 << 20


def open_store(system: FakeFileSystem, *, create: bool = True) -> LocalStorage:
    return LocalStorage(LAKE, create=create, system=system, threads=0)


class Nth:
    """Fails the `number`th call from now that `matches`. With `all_on` it fails all later ones too."""

    def __init__(
        self,
        system: FakeFileSystem,
        error: int,
        number: int,
        matches: Callable[[Syscall], bool] = lambda _: True,
        *,
        all_on: bool = False,
    ) -> None:
        self.hit = False
        self._count = 0
        self._error, self._number, self._matches, self._all_on = error, number, matches, all_on
        self._system = system
        system.fail = self

    def __call__(self, call: Syscall) -> int | None:
        if not self._matches(call):
            return None
        self._count += 1
        if self._count - 1 == self._number or (self._all_on and self._count > self._number):
            self.hit = True
            return self._error
        return None

    def over(self) -> None:
        self._system.fail = lambda _: None


class Rig:
    """A catalog with nodes below its root, its writer, and the answer of every transaction."""

    def __init__(self) -> None:
        self.system = FakeFileSystem()
        self.lake = Lake(open_store(self.system))
        self.answers: dict[str, Committed | AlpheusError] = {}
        self.count = 0

    @classmethod
    async def make(cls) -> Rig:
        self = cls()
        self.journal = await self.lake.create(order=3)
        for _ in range(4):
            await self.commit()
        for _ in range(9):
            await asyncio.sleep(0)  # let the hint be written, so that faults hit later calls
        return self

    async def restart(self) -> None:
        """Start another process on the same files."""
        self.lake.storage = open_store(self.system, create=False)
        self.journal = await self.lake.open()

    async def commit(self) -> Committed | AlpheusError:
        self.count += 1
        transaction = self.lake.transaction(self.journal, self.lake.namespace(f"n{self.count}"))
        answer: Committed | AlpheusError
        try:
            answer = await self.journal.commit(transaction, timeout_seconds=5)
        except AlpheusError as error:
            answer = error
        self.answers[transaction.id] = answer
        return answer

    async def reads_go_on(self) -> None:
        names = [self.lake.namespace(f"n{number}").target for number in range(1, 5)]
        loaded = await self.journal.load(self.journal.head.version, names)
        assert all(stored is not None for stored in loaded.objects)

    async def verify(self, system: FakeFileSystem | None = None) -> None:
        """Check that acknowledged transactions are in the log at their versions, and refused ones are not."""
        journal = await Lake(open_store(system or self.system, create=False), seed=5).open()
        logged = {entry.transaction.id: entry.version async for entry in journal.log()}
        for transaction_id, answer in self.answers.items():
            if isinstance(answer, Committed):
                assert logged[transaction_id] == answer.version
            elif not isinstance(answer, OutcomeUnknown):
                assert transaction_id not in logged, answer
        assert [item async for item in journal.check() if not isinstance(item, CheckSummary)] == []

    async def verify_after_a_power_cut(self) -> None:
        for survivor in list(self.system.survivors()):
            await self.verify(FakeFileSystem.of(survivor))


# --- faults of single calls, a whole journal on top ------------------------------------------------


@pytest.mark.parametrize("what", ["files", "folders", "all files at once"])
async def test_eio_of_any_fsync(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed fsync gives OutcomeUnknown if the slot may exist, else a refusal. Afterwards nothing is written, reads
    continue, and a restart finds a sound, working catalog."""
    if what == "all files at once":
        monkeypatch.setattr("alpheus_journal.storage.local.AT_ONCE_MIN", 1)
    number = unknown = 0
    while True:
        rig = await Rig.make()
        system = rig.system
        start = len(system.calls)
        nth = Nth(
            system,
            errno.EIO,
            number,
            lambda call: is_sync(system, call, of_folders=what == "folders"),  # noqa: B023
        )
        answer = await rig.commit()
        if not nth.hit:
            break
        linked = any(call.name == "link" for call in system.calls[start:])
        assert isinstance(answer, OutcomeUnknown if linked else Unavailable), answer
        unknown += linked
        nth.over()
        start = len(system.calls)
        refused = await rig.commit()
        assert isinstance(refused, Unavailable)
        assert refused.kind == "storage_read_only"
        assert "restart" in refused.hint
        changing = ("write", "fsync", "syncfs", "link", "rename", "unlink", "mkdir")
        assert not [call for call in system.calls[start:] if call.name in changing]
        await rig.reads_go_on()
        await rig.verify_after_a_power_cut()
        await rig.restart()
        assert isinstance(await rig.commit(), Committed)
        await rig.verify()
        number += 1
    assert number >= 2
    assert unknown == (1 if what == "folders" else 0), "only the fsync of the slots' folder leaves doubt"


def is_sync(system: FakeFileSystem, call: Syscall, *, of_folders: bool) -> bool:
    if call.name == "syncfs":
        return not of_folders
    return call.name == "fsync" and system.is_folder(call.path) == of_folders


def needs_space(system: FakeFileSystem, call: Syscall) -> bool:
    match call.name:
        case "open":
            return "/.staging/staged" in call.path
        case "fsync":
            return not system.is_folder(call.path)
    return call.name in ("write", "mkdir", "link", "rename", "syncfs")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("all_on", [False, True])
@pytest.mark.parametrize("at_once_min", [99, 1])
async def test_no_space_at_any_call(
    number: int, all_on: bool, at_once_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC (bytes or inodes): nothing is applied, reads continue, and writes work when there is space, without a
    restart."""
    monkeypatch.setattr("alpheus_journal.storage.local.AT_ONCE_MIN", at_once_min)
    position = 0
    while True:
        rig = await Rig.make()
        nth = Nth(rig.system, number, position, partial(needs_space, rig.system), all_on=all_on)
        answer = await rig.commit()
        if not nth.hit:
            break
        assert isinstance(answer, Exhausted), f"call {position}: {answer!r}"
        assert answer.kind == "no_space"
        assert answer.hint
        if all_on:
            assert isinstance(await rig.commit(), Exhausted)
        await rig.reads_go_on()
        head = await rig.journal.refresh()
        assert head.version == 4
        nth.over()
        assert isinstance(await rig.commit(), Committed), f"after call {position}"
        assert not await staged(rig)
        await rig.verify()
        await rig.verify_after_a_power_cut()
        position += 1
    assert position >= 10


async def staged(rig: Rig) -> list[str]:
    prefix = f"{LAKE}/.staging/"
    return [path for survivor in rig.system.survivors() for path, _ in survivor if path.startswith(prefix)]


ANY = {
    errno.EIO: (Unavailable, OutcomeUnknown),
    errno.EACCES: (Denied, Unavailable, OutcomeUnknown),
    errno.EROFS: (Unavailable, OutcomeUnknown),
    errno.EMFILE: (Unavailable, OutcomeUnknown),
    errno.ENFILE: (Unavailable, OutcomeUnknown),
    errno.ENOMEM: (Unavailable, OutcomeUnknown),
    errno.ESTALE: (Unavailable, OutcomeUnknown),
    errno.EXDEV: (InvalidInput, Unavailable, OutcomeUnknown),
    errno.ELOOP: (Corrupt, Unavailable, OutcomeUnknown),
}


async def fail_any_call(number: int, stride: int, *refusals: type[AlpheusError]) -> tuple[int, int, Rig]:
    """Fail every `stride`th call of a commit, each in a new catalog. The commit must succeed or get one of `refusals`.

    Then reads must continue, the answers must stay true, and a restart must work. Return the position after the last
    call, the number of refusals, and the catalog whose commit no fault hit.
    """
    position = failed = 0
    while True:
        rig = await Rig.make()
        nth = Nth(rig.system, number, position, lambda call: call.name != "stat_prefix")
        answer = await rig.commit()
        if not nth.hit:
            return position, failed, rig
        assert isinstance(answer, (Committed, *refusals)), f"call {position}: {answer!r}"
        failed += isinstance(answer, AlpheusError)
        nth.over()
        await rig.reads_go_on()
        await rig.commit()
        await rig.verify()
        await rig.verify_after_a_power_cut()
        await rig.restart()
        assert isinstance(await rig.commit(), Committed)
        await rig.verify()
        position += stride


@pytest.mark.parametrize("number", ANY, ids=lambda number: errno.errorcode[number])
async def test_any_fault_of_any_call(number: int, lane_count: Callable[[int, int], int]) -> None:
    """Any failing call gives a definite answer that stays true, or OutcomeUnknown, and a restart works."""
    position, failed, _ = await fail_any_call(number, lane_count(5, 1), *ANY[number])
    assert position > 30
    assert failed > lane_count(2, 5)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENOSYS])
async def test_a_fault_of_any_call_that_syncs_all_at_once(
    number: int, monkeypatch: pytest.MonkeyPatch, lane_count: Callable[[int, int], int]
) -> None:
    monkeypatch.setattr("alpheus_journal.storage.local.AT_ONCE_MIN", 1)
    position, _, rig = await fail_any_call(number, lane_count(4, 1), AlpheusError)
    assert position > 20
    assert "syncfs" in [call.name for call in rig.system.calls]


async def test_too_many_open_files_says_so() -> None:
    system = FakeFileSystem()
    store = open_store(system)
    await store.create("vn/0", b"root")
    for number, limit in ((errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max")):
        system.fail = lambda call, number=number: number if call.name == "open" else None  # type: ignore[misc]
        for attempt in (store.read("vn/0", size_max=9), store.create("vn/1", b"")):
            error = await raises(Unavailable, attempt, kind="storage_unavailable")
            assert limit in error.hint
    system.fail = lambda _: None
    await store.create("vn/1", b"")
    assert system.descriptors == 1


async def test_no_descriptor_is_left_by_any_fault() -> None:
    position = 0
    while True:
        system = FakeFileSystem()
        store = open_store(system)
        await store.put_many({"node/a": b"", "vn/0": b""})
        nth = Nth(system, errno.EIO, position)
        for attempt in (store.publish({"node/b": b"x", "def/ns/c": b""}, "vn/1", b"root"),
                        store.read_many(["vn/0", "node/a"], size_max=9), listed(store, "")):  # fmt: skip
            try:
                await attempt
            except AlpheusError:
                assert nth.hit
        assert system.descriptors == 1
        if not nth.hit:
            break
        position += 1


# --- directories that go away ----------------------------------------------------------------------


async def test_a_prefix_that_goes_away() -> None:
    """The folder of a running process is removed, moved or replaced: each call says so, and nothing new is written."""

    def remove(system: FakeFileSystem) -> None:
        system.remove(LAKE)

    def move(system: FakeFileSystem) -> None:
        system.move(LAKE, "/srv/other")

    def replace(system: FakeFileSystem) -> None:
        system.move(LAKE, "/srv/other")
        system.make_folder(LAKE)

    def replace_by_symlink(system: FakeFileSystem) -> None:
        system.move(LAKE, "/srv/other")
        system.make_folder("/srv/decoy")
        system.make_symlink(LAKE, "/srv/decoy")

    def remove_slots(system: FakeFileSystem) -> None:
        system.remove(f"{LAKE}/vn")

    for step in (remove, move, replace, replace_by_symlink, remove_slots):
        rig = await Rig.make()
        step(rig.system)
        before = sorted(path for path, _ in next(iter(rig.system.survivors())))
        answer = await rig.commit()
        assert isinstance(answer, Unavailable), f"{step.__name__}: {answer!r}"
        assert "since this process opened it" in answer.message
        assert answer.hint
        for attempt in (rig.lake.storage.put("vn/latest", b"9"), rig.lake.storage.create("vn/9", b""),
                        rig.lake.storage.delete("vn/latest"), rig.lake.storage.stat("vn/999"),
                        rig.journal.refresh()):  # fmt: skip
            await raises(Unavailable, attempt, kind="storage_unavailable")
        assert sorted(path for path, _ in next(iter(rig.system.survivors()))) == before, step.__name__
    assert before


async def test_a_prefix_that_comes_back() -> None:
    rig = await Rig.make()
    rig.system.move(LAKE, "/srv/other")
    assert isinstance(await rig.commit(), Unavailable)
    rig.system.move("/srv/other", LAKE)
    assert isinstance(await rig.commit(), Committed)
    await rig.verify()


async def test_a_folder_that_becomes_a_symbolic_link() -> None:
    rig = await Rig.make()
    rig.system.make_folder("/srv/elsewhere")
    for folder in ("node", "vn"):
        rig.system.move(f"{LAKE}/{folder}", f"/srv/kept-{folder}")
        rig.system.make_symlink(f"{LAKE}/{folder}", "/srv/elsewhere")
        answer = await rig.commit()
        assert isinstance(answer, Corrupt), answer
        assert "symbolic link" in answer.message
        rig.system.remove(f"{LAKE}/{folder}")
        rig.system.move(f"/srv/kept-{folder}", f"{LAKE}/{folder}")
        assert isinstance(await rig.commit(), Committed)
    assert rig.system.is_folder("/srv/elsewhere")
    await rig.verify()


async def test_staging_and_folders_on_other_devices() -> None:
    system = FakeFileSystem()
    system.make_folder(f"{LAKE}/.staging")
    system.mount(f"{LAKE}/.staging")
    error = await raises(InvalidInput, open_store(system).create("vn/0", b""), kind="storage_unsuitable")
    assert ".staging" in error.message
    system = FakeFileSystem()
    system.make_folder(f"{LAKE}/vn")
    system.mount(f"{LAKE}/vn")
    store = open_store(system)
    await raises(InvalidInput, store.create("vn/0", b""), kind="storage_unsuitable")
    assert await listed(store, "") == {}
    system = FakeFileSystem()
    system.fail = lambda call: errno.EOPNOTSUPP if call.name == "link" else None
    await raises(InvalidInput, open_store(system).create("vn/0", b""), kind="storage_unsuitable")


# --- the real file system --------------------------------------------------------------------------


async def test_a_real_directory_that_goes_away(tmp_path: Path) -> None:
    store = await asyncio.to_thread(LocalStorage, str(tmp_path / "lake"), True)
    await store.create("vn/0", b"root")
    (tmp_path / "lake").rename(tmp_path / "moved")
    await raises(Unavailable, store.create("vn/1", b"root"), kind="storage_unavailable")
    assert not (tmp_path / "lake").exists()
    (tmp_path / "lake").mkdir()
    await raises(Unavailable, store.create("vn/1", b"root"), kind="storage_unavailable")
    await raises(Unavailable, store.stat("vn/1"), kind="storage_unavailable")
    assert list((tmp_path / "lake").iterdir()) == []
    assert await store.read("vn/0", size_max=SIZE_MAX) == b"root"
    (tmp_path / "lake").rmdir()
    (tmp_path / "moved").rename(tmp_path / "lake")
    await store.create("vn/1", b"root")
    shutil.rmtree(tmp_path / "lake")
    for attempt in (store.create("vn/2", b""), store.read("vn/0", size_max=SIZE_MAX), store.stat("vn/0")):
        await raises(Unavailable, attempt, kind="storage_unavailable")
    assert list(tmp_path.iterdir()) == []
    await store.close()


COMMITS = """
import asyncio, resource, sys
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.errors import AlpheusError
from alpheus_journal.journal import Journal
from alpheus_journal.storage import open_storage
from alpheus_journal.clock import RandomIdentities, SystemClock

async def main(path, step, limit):
    identities = RandomIdentities(SystemClock())
    try:
        journal = await Journal.open(await asyncio.to_thread(open_storage, path))
    except AlpheusError as error:
        print(type(error).__name__, error.kind)
        return
    for number in range(4):
        if number == 1 and limit:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        if number == 2 and limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        name = CreateNamespace(name=f"{step}{number}", namespace_id=identities.uuid4())
        try:
            done = await journal.commit(Transaction(
                id=identities.uuid7(), begin_version=journal.head.version, operations=(name,)), timeout_seconds=1)
            print("committed", done.version)
        except AlpheusError as error:
            print(type(error).__name__, error.kind)
        assert (await journal.load(0, [])).version == 0
    await journal.storage.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def commits(path: Path, step: str, *, limit: int = 0, strace: tuple[str, ...] = ()) -> list[str]:
    done = subprocess.run(
        [*strace, sys.executable, "-c", COMMITS, str(path), step, str(limit)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


async def make_catalog(path: Path) -> None:
    lake = Lake(await asyncio.to_thread(LocalStorage, str(path), True))
    lake.clock.millis = 0
    await (await lake.create(order=3)).close()


async def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """EFBIG: the kernel itself refuses in the middle of a write."""
    await make_catalog(tmp_path / "lake")
    assert commits(tmp_path / "lake", "a", limit=1000) == [
        "committed 1", "Exhausted no_space", "committed 2", "committed 3"
    ]  # fmt: skip
    assert list((tmp_path / "lake" / ".staging").iterdir()) == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_eio_of_a_real_fsync(tmp_path: Path, lane_count: Callable[[int, int], int]) -> None:
    """strace replaces the kernel's answer in every thread of the process, and a restart works."""
    await make_catalog(tmp_path / "lake")
    version = failed = 0
    # The first calls make versions durable before they are shown.
    for number in range(3, 24, lane_count(14, 2)):
        trace = ("strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=fsync",
                 "-e", f"inject=fsync:error=EIO:when={number}")  # fmt: skip
        lines = commits(tmp_path / "lake", f"s{number}n", strace=trace)
        done = [line for line in lines if line.startswith("committed")]
        refused = lines[len(done) :]
        failed += bool(refused)
        assert not refused or refused[0].split()[0] in ("Unavailable", "OutcomeUnknown"), lines
        assert all(line == "Unavailable storage_read_only" for line in refused[1:]), lines
        after = [line for line in commits(tmp_path / "lake", f"r{number}n") if line.startswith("committed")]
        assert len(after) == 4, "a new process writes"
        assert int(after[0].split()[1]) - version - len(done) in (1, 2), "only the unknown one may be there"
        version = int(after[-1].split()[1])
    assert failed >= 2


# Run in a separate mount namespace, on a file system that is really full, out of inodes, or mounted read-only.
MOUNTED = """
import asyncio, contextlib, os, subprocess, sys
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.errors import AlpheusError
from alpheus_journal.format import namespace_name
from alpheus_journal.journal import Journal
from alpheus_journal.storage import open_storage
from alpheus_journal.clock import RandomIdentities, SystemClock

identities = RandomIdentities(SystemClock())

async def commit(journal, name):
    operation = CreateNamespace(name=name, namespace_id=identities.uuid4())
    try:
        done = await journal.commit(Transaction(
            id=identities.uuid7(), begin_version=journal.head.version, operations=(operation,)), timeout_seconds=1)
        print(name, "committed", done.version)
    except AlpheusError as error:
        done = None
        print(name, type(error).__name__, error.kind)
    assert (await journal.load(0, [])).version == 0
    return done is not None

def fill(folder):
    with contextlib.suppress(OSError), open(f"{folder}/filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))

def use_up_inodes(folder):
    os.mkdir(f"{folder}/many")
    with contextlib.suppress(OSError):
        for number in range(100_000):
            open(f"{folder}/many/{number}", "x").close()

async def main(scheme, folder):
    url = f"{scheme}://{folder}/lake"
    journal = await Journal.create(await asyncio.to_thread(open_storage, url, create=True))
    await commit(journal, "a")
    await asyncio.to_thread(fill, folder)
    refused = 0
    for number in range(1000):  # LMDB has a mebibyte in hand
        refused += not await commit(journal, f"full{number}")
        if refused == 2:
            break
    os.unlink(f"{folder}/filler")
    await commit(journal, "b")
    if scheme == "file":
        await asyncio.to_thread(use_up_inodes, folder)
        await commit(journal, "inodes")
        subprocess.run(["rm", "-r", f"{folder}/many"], check=True)
        await commit(journal, "c")
    await journal.close()
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    journal = await Journal.open(await asyncio.to_thread(open_storage, url))
    assert (await journal.load(journal.head.version, [namespace_name("b")])).objects[0] is not None
    await commit(journal, "reading")
    await journal.close()

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""
UNSHARE = ("unshare", "--map-root-user", "--mount")
MOUNT = "mount -t tmpfs -o size=2560k,nr_inodes=200 none "


@cache
def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", MOUNT + "/mnt"], capture_output=True, timeout=60, check=False
    )
    return done.returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no mount namespace for this user")
@pytest.mark.parametrize("scheme", ["file", "lmdb"])
async def test_a_real_file_system_that_is_full_or_read_only(tmp_path: Path, scheme: str) -> None:
    shell = MOUNT + '"$1" && exec "$2" -c "$3" "$4" "$1"'
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", shell, "sh", str(tmp_path), sys.executable, MOUNTED, scheme],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    full = [line.split(maxsplit=1)[1] for line in lines if line.startswith("full")]
    fitted = len(full) - 2
    assert full == [f"committed {number}" for number in range(2, 2 + fitted)] + ["Exhausted no_space"] * 2
    assert (fitted > 0) == (scheme == "lmdb")
    others = [line for line in lines if not line.startswith("full")]
    if scheme == "file":
        assert others == [
            "a committed 1", "b committed 2", "inodes Exhausted no_space", "c committed 3",
            "reading Unavailable storage_read_only",
        ]  # fmt: skip
    else:
        assert others == [
            "a committed 1", f"b committed {2 + fitted}", "reading Unavailable storage_read_only"
        ]  # fmt: skip


# In a separate mount namespace: an ext4 that is shut down without writing anything more, as xfstests simulate a power
# cut.
CUT_OFF = """
import asyncio, fcntl, os, sys
from alpheus_journal.storage.local import AT_ONCE_MIN, LocalStorage
from alpheus_journal.storage.posix import Syscalls

class Counting(Syscalls):
    whole = 0

    def syncfs(self, fd):
        self.whole += 1
        if safe:
            super().syncfs(fd)

    def unwritten_bytes(self):
        return 0

    def fsync(self, fd, path):
        if safe or not path.startswith(("node/", "vn/")):
            super().fsync(fd, path)

async def main(folder):
    system = Counting()
    store = await asyncio.to_thread(LocalStorage, f"{folder}/lake", True, system=system)
    assert system.has_syncfs(store._directory.fd)
    for version in range(3):
        files = {f"node/{version}-{number}": b"%d" % number * 900 for number in range(AT_ONCE_MIN)}
        await store.publish(files, f"vn/{version}", b"root")
    assert system.whole == 4
    folder = os.open(folder, os.O_RDONLY)
    fcntl.ioctl(folder, 0x8004587D, (2).to_bytes(4, sys.byteorder))  # shut down, the journal is not written
    os._exit(0)

safe = sys.argv[2] == "safe"
asyncio.run(main(sys.argv[1]))
"""
LOOP = "truncate -s 64M disk && mkfs.ext4 -q -F disk && mkdir -p mounted && mount -o loop disk mounted"


@cache
def can_mount_ext4(folder: Path) -> bool:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or shutil.which("unshare") is None:
        return False
    shell = ["unshare", "--mount", "sh", "-c", LOOP]
    return subprocess.run(shell, cwd=folder, capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("how", ["safe", "unsafe"])
def test_a_real_ext4_that_is_cut_off(tmp_path: Path, how: str) -> None:
    """A power cut after one `syncfs` loses nothing. Without the syncs it does, although the files have their names."""
    if kernel_version(os.uname().release) < (5, 17) or not can_mount_ext4(tmp_path):
        pytest.skip("no ext4 can be mounted here, or its syncfs is not used")
    shell = (
        f'{LOOP} && "$1" -c "$2" mounted "$3" && umount mounted && mount -o loop disk mounted'
        " && find mounted -type f -path 'mounted/lake/*/*' ! -path '*/.staging/*' -printf '%P %s\\n'"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", shell, "sh", sys.executable, CUT_OFF, how], cwd=tmp_path,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = {f"lake/vn/{version} 4" for version in range(3)} | {
        f"lake/node/{version}-{number} {900 * len(str(number))}"
        for version in range(3)
        for number in range(AT_ONCE_MIN)
    }
    found = set(done.stdout.splitlines())
    assert (found == expected) == (how == "safe"), found ^ expected


@pytest.mark.skipif(not can_mount(), reason="no mount namespace for this user")
async def test_real_folders_on_another_file_system(tmp_path: Path) -> None:
    """If `.staging` is another mount, the first write says so."""
    script = (
        "import asyncio, sys\n"
        "from alpheus_journal.errors import InvalidInput\n"
        "from alpheus_journal.storage.local import LocalStorage\n"
        "store = LocalStorage(sys.argv[1])\n"
        "try: asyncio.run(store.create('vn/0', b''))\n"
        "except InvalidInput as error: print(error.kind)\n"
    )
    (tmp_path / ".staging").mkdir()
    shell = MOUNT + '"$1/.staging" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", shell, "sh", str(tmp_path), sys.executable, script],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == "storage_unsuitable\n", done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".staging"]


PRIVILEGES = """
import asyncio, os, sys
from alpheus_journal.errors import AlpheusError
from alpheus_journal.storage.local import LocalStorage

async def main(path):
    store = await asyncio.to_thread(LocalStorage, path, True)
    await store.create("vn/0", b"root")
    os.setuid(65534)
    for call in (store.create("vn/1", b""), store.put("vn/latest", b"1"), store.delete("vn/0")):
        try:
            await call
        except AlpheusError as error:
            print(type(error).__name__, error.hint)
    print((await store.read("vn/0", size_max=9)).decode())
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up privileges")
async def test_privileges_given_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRIVILEGES, str(tmp_path / "lake")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["Denied give user id 65534 access"] * 3 + ["root"], done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may everything")
async def test_permission_lost(tmp_path: Path) -> None:
    store = await asyncio.to_thread(LocalStorage, str(tmp_path / "lake"), True)
    await store.create("vn/0", b"root")
    (tmp_path / "lake" / ".staging").chmod(0o500)
    await raises(Denied, store.create("vn/1", b"root"))
    assert await store.read("vn/0", size_max=SIZE_MAX) == b"root"
    (tmp_path / "lake" / ".staging").chmod(0o700)
    await store.create("vn/1", b"root")
    (tmp_path / "lake").chmod(0o000)
    await raises(Denied, store.read("vn/0", size_max=SIZE_MAX))
    (tmp_path / "lake").chmod(0o700)
    await store.close()


def test_a_missing_prefix_is_not_made() -> None:
    system = FakeFileSystem()
    with pytest.raises(NotFound):
        open_store(system, create=False)
    assert list(system.survivors()) == [()]
