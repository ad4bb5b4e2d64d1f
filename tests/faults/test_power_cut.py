"""Power cuts at every system call of the local driver, on a file system that keeps what POSIX promises and no more.

Each mix of operations runs once. After every system call the test notes all states that a power cut could leave, with
the facts known by then: acknowledged, or shown to a reader. Then a new process starts on each state.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, AlreadyExists, Expired, NotEmpty, NotFound, Unavailable
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import CheckSummary, Committed
from alpheus_journal.model.operations import AppendFiles, Transaction
from alpheus_journal.storage import Storage
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.posix import PREFIX_FLAGS, STAGE_FLAGS
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import segment_of
from alpheus_journal.testing import FakeFileSystem, Lake, StorageContract, Survivor, Syscall
from alpheus_journal.tree.node import encode_tombstone

_T = TypeVar("_T")
LAKE = "/srv/lake"


class Facts(msgspec.Struct, frozen=True):
    """The facts that every survivor must keep: the commit ids that a version may have, and the contents that a file
    may have. None: the file may be absent."""

    slots: tuple[tuple[int, str], ...] = ()
    files: tuple[tuple[str, tuple[bytes | None, ...]], ...] = ()


def now(call: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a coroutine that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as stop:
        value: _T = stop.value
        return value
    raise AssertionError("it waits for something")


class Machine:
    """A file system, the facts known about it, and every state that a power cut could have left so far."""

    def __init__(self, system: FakeFileSystem) -> None:
        self.system = system
        self.system.after = self._after
        self.slots: dict[int, str] = {}
        self.files: dict[str, tuple[bytes | None, ...]] = {}
        self.states: dict[tuple[Survivor, Facts], None] = {}
        self.steps = 0
        self.between: Callable[[Syscall], None] = lambda _: None
        self._inside = False
        self._noted: tuple[int, Facts] | None = None

    def storage(self, *, create: bool = False) -> LocalStorage:
        """Return the store of another process."""
        return LocalStorage(LAKE, create=create, system=self.system, threads=0)

    def knows_version(self, version: int, commit_id: str) -> None:
        assert self.slots.setdefault(version, commit_id) == commit_id, f"version {version} has two roots"
        self.note()

    def knows_file(self, path: str, *contents: bytes | None) -> None:
        self.files[path] = contents
        self.note()

    def _after(self, call: Syscall) -> None:
        if not self._inside:
            self.steps += 1
            self._inside = True
            self.between(call)
            self._inside = False
            self.note()

    def note(self) -> None:
        facts = Facts(tuple(sorted(self.slots.items())), tuple(sorted(self.files.items())))
        if self._noted != (self.system.changes, facts):
            self._noted = (self.system.changes, facts)
            self.states.update(dict.fromkeys((survivor, facts) for survivor in self.system.survivors()))


async def violations(survivor: Survivor, facts: Facts) -> list[str]:
    """Return what is wrong for a process that starts after the power cut."""
    system = FakeFileSystem.of(survivor)
    found = [
        f"{path} holds {data!r:.40}"
        for path, allowed in facts.files
        if (data := system.read_file(f"{LAKE}/{path}")) not in allowed
    ]
    try:
        storage = LocalStorage(LAKE, create=True, system=system, threads=0)
        lake = Lake(storage, seed=99)
        if not facts.slots:
            try:
                journal = await lake.create()
            except AlreadyExists:
                journal = await lake.open()
            except NotEmpty:
                return found  # the rest of a killed creation, which was never acknowledged
        else:
            journal = await lake.open()
        for version, commit_id in facts.slots:
            if await journal.follower.log.commit_id(version) != commit_id:
                found.append(f"version {version} has another root")
        found += [str(item) async for item in journal.check() if not isinstance(item, CheckSummary)]
        kept = [await is_kept(journal.follower.log, version) for version, _ in facts.slots]
        if kept != sorted(kept):
            found.append("the tombstones have a gap")
        before = journal.head.version
        if facts.slots and before < facts.slots[-1][0]:
            found.append(f"version {facts.slots[-1][0]} is lost")
        committed = await lake.commit(journal, lake.namespace("after"))
        if committed.version != before + 1:
            found.append(f"the next commit is version {committed.version} after {before}")
        if await Log(storage, 32).commit_id(committed.version) != journal.head.commit_id:
            found.append("the next commit is not there")
    except AlpheusError as error:
        found.append(f"{type(error).__name__}: {error}")
    return found


async def is_kept(log: Log, version: int) -> bool:
    try:
        await log.read(version)
    except Expired:
        return False
    return True


async def finds(machine: Machine, *expected: str) -> bool:
    """Return whether some state has a violation with one of these texts. The later states are not looked at."""
    machine.system.after = lambda _: None
    for number, (survivor, facts) in enumerate(machine.states, 1):
        for text in await violations(survivor, facts):
            if any(one in text for one in expected):
                print(f"found in survivor {number} of {len(machine.states)}: {text}")
                return True
    return False


async def all_violations(machine: Machine) -> list[str]:
    machine.system.after = lambda _: None  # the writer's hints are still being stored
    return [text for survivor, facts in list(machine.states) for text in await violations(survivor, facts)]


# --- the file system itself ------------------------------------------------------------------------


class TestLocalContractOnTheFake(StorageContract):
    """The driver sees the fake file system as it sees a disk."""

    async def make(self) -> Storage:
        self.system = FakeFileSystem()
        return LocalStorage(LAKE, create=True, system=self.system, threads=0)

    async def reopen(self, storage: Storage) -> Storage | None:
        return LocalStorage(LAKE, system=self.system, threads=0)


def left(system: FakeFileSystem) -> set[str]:
    """Return the survivors as text: names with their contents."""
    return {
        " ".join(f"{path}={data.decode()}" if data is not None else path for path, data in survivor)
        for survivor in system.survivors()
    }


def test_what_a_power_cut_may_leave() -> None:
    system = FakeFileSystem()
    system.make_folder("/a")
    assert left(system) == {"", "/a"}
    root = system.open("/", PREFIX_FLAGS, None)
    system.fsync(root, "/")
    folder = system.open("/a", PREFIX_FLAGS, None)
    assert left(system) == {"/a"}

    # A new file: its entry and its content survive independently.
    file = system.open("f", STAGE_FLAGS, folder)
    system.write(file, memoryview(b"1234"), "f")
    zeros = "\0\0\0\0"
    assert left(system) == {"/a", "/a /a/f=", "/a /a/f=12", "/a /a/f=1234", f"/a /a/f={zeros}"}
    system.fsync(file, "f")
    assert left(system) == {"/a", "/a /a/f=1234"}
    system.fsync(folder, "a")
    assert left(system) == {"/a /a/f=1234"}

    # A link and a rename: each entry exists or not.
    system.link("f", folder, "g", folder, "g")
    assert left(system) == {"/a /a/f=1234", "/a /a/f=1234 /a/g=1234"}
    system.rename("f", folder, "h", root, "h")
    assert left(system) == {
        " ".join(part for part in ("/a", f and "/a/f=1234", g and "/a/g=1234", h and "/h=1234") if part)
        for f in (0, 1) for g in (0, 1) for h in (0, 1)
    }  # fmt: skip
    system.fsync(root, "/")
    assert left(system) == {f"/a{f}{g} /h=1234" for f in ("", " /a/f=1234") for g in ("", " /a/g=1234")}
    system.fsync(folder, "a")
    assert left(system) == {"/a /a/g=1234 /h=1234"}

    # Replacing: the old or the new file, never neither; the new one possibly without its content.
    other = system.open("i", STAGE_FLAGS, root)
    system.write(other, memoryview(b"x"), "i")
    system.rename("i", root, "h", root, "h")
    base = "/a /a/g=1234 /h="
    assert left(system) == {
        base + content + rest
        for content in ("1234", "", "x", "\0") for rest in ("", " /i=", " /i=x", " /i=\0")
        if not (content in ("", "x", "\0") and rest and rest != f" /i={content}")
    }  # fmt: skip


def test_a_failed_fsync_stays_in_doubt() -> None:
    system = FakeFileSystem()
    root = system.open("/", PREFIX_FLAGS, None)
    file = system.open("f", STAGE_FLAGS, root)
    system.write(file, memoryview(b"1"), "f")
    system.fail = lambda call: errno.EIO if call.name == "fsync" else None
    for fd in (file, root):
        with pytest.raises(OSError, match="Input/output"):
            system.fsync(fd, "")
    system.fail = lambda _: None
    system.fsync(file, "f")
    system.fsync(root, "/")
    assert left(system) == {"", "/f=", "/f=1", "/f=\0"}


def test_syncfs_makes_all_durable_or_leaves_all_in_doubt() -> None:
    system = FakeFileSystem()
    root = system.open("/", PREFIX_FLAGS, None)
    for name, data in (("f", b"1"), ("g", b"2")):
        system.write(system.open(name, STAGE_FLAGS, root), memoryview(data), name)
    system.make_folder("/a")
    system.syncfs(root)
    assert left(system) == {"/a /f=1 /g=2"}
    system.write(system.open("h", STAGE_FLAGS, root), memoryview(b"3"), "h")
    system.fail = lambda call: errno.EIO if call.name == "syncfs" else None
    with pytest.raises(OSError, match="Input/output"):
        system.syncfs(root)
    system.fail = lambda _: None
    system.syncfs(root)
    assert left(system) == {"/a /f=1 /g=2" + rest for rest in ("", " /h=", " /h=3", " /h=\0")}


def test_pages_survive_in_any_order() -> None:
    system = FakeFileSystem()
    file = system.open("/f", STAGE_FLAGS, None)
    system.write(file, memoryview(b"a" * 4096 + b"b" * 4096 + b"c"), "f")
    contents = {dict(survivor).get("/f") for survivor in system.survivors()}
    assert contents >= {
        None, b"", b"a" * 2048, b"a" * 4096, b"\0" * 4096 + b"b" * 4096, b"\0" * 8192 + b"c",
        b"a" * 4096 + b"\0" * 4096 + b"c", b"a" * 4096 + b"b" * 4096 + b"c", b"\0" * 8193,
    }  # fmt: skip
    system.fsync(file, "f")
    assert {dict(survivor).get("/f") for survivor in system.survivors()} == {
        None, b"a" * 4096 + b"b" * 4096 + b"c"
    }  # fmt: skip
    big = system.open("/g", STAGE_FLAGS, None)
    system.write(big, memoryview(bytes(range(1, 11)) * 4096), "g")
    assert len(list(system.survivors())) > 12


# --- mixes of operations ---------------------------------------------------------------------------


class Catalog:
    """A catalog on a machine, and the process that writes it. The tree has nodes below its root."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.lake = Lake(machine.storage(create=True))

    @classmethod
    async def make(cls, machine: Machine, *, versions: int = 3) -> Catalog:
        """Make the catalog. Its steps are not noted, because `creating` covers them."""
        machine._inside = True
        self = cls(machine)
        self.journal = await self.lake.create(order=3)
        for number in range(versions):
            await self.lake.commit(self.journal, self.lake.namespace(f"base{number}"))
        machine.system.settle()
        machine._inside = False
        await self.note_all()
        return self

    async def note_all(self) -> None:
        for version in range(self.journal.head.version + 1):
            self.machine.slots[version] = await self.journal.follower.log.commit_id(version)
        self.machine.note()

    def note_head(self) -> None:
        self.machine.knows_version(self.journal.head.version, self.journal.head.commit_id)


async def creating(machine: Machine, rounds: int) -> None:
    catalog = Catalog(machine)
    journal = await catalog.lake.create()
    machine.knows_version(0, journal.head.commit_id)


async def lone_commits(machine: Machine, rounds: int) -> None:
    catalog = await Catalog.make(machine)
    for number in range(rounds):
        await catalog.lake.commit(catalog.journal, catalog.lake.namespace(f"n{number}"))
        catalog.note_head()


async def groups(machine: Machine, rounds: int) -> None:
    """Commit several definitions and nodes in one version."""
    catalog = await Catalog.make(machine, versions=4)
    lake = catalog.lake
    for number in range(rounds):
        members = [
            lake.transaction(catalog.journal, lake.table("base0", f"t{number}{n}"))
            for n in range(2 if rounds < 3 else 3)
        ] + [lake.transaction(catalog.journal, lake.namespace(f"g{number}"))]
        answers = await catalog.journal.commit_group(members)
        assert all(isinstance(answer, Committed) for answer in answers)
        catalog.note_head()


async def hints(machine: Machine, rounds: int) -> None:
    catalog = await Catalog.make(machine)
    storage = machine.storage()
    old: bytes | None = catalog.machine.system.read_file(f"{LAKE}/{fmt.LATEST_HINT}")
    for number in range(rounds * 2):
        new = b"%d" % (number % 4)
        machine.knows_file(fmt.LATEST_HINT, old, new)
        await storage.put(fmt.LATEST_HINT, new)
        machine.knows_file(fmt.LATEST_HINT, new)
        old = new


async def expiring(machine: Machine, rounds: int) -> None:
    catalog = await Catalog.make(machine, versions=2 + rounds)
    storage = machine.storage()
    machine.knows_file(fmt.OLDEST_HINT, None, b"%d" % rounds)
    await storage.put(fmt.OLDEST_HINT, b"%d" % rounds)
    machine.knows_file(fmt.OLDEST_HINT, b"%d" % rounds)
    tombstones = {
        fmt.version_file(version, 32): encode_tombstone(
            commit_id=machine.slots[version],
            catalog_id=catalog.journal.catalog_id,
            expired_at_millis=catalog.lake.clock.millis,
            version=version,
        )
        for version in range(rounds)
    }
    for path, tombstone in tombstones.items():
        machine.knows_file(path, await storage.read(path, size_max=1 << 20), tombstone)
    await storage.put_in_order(tombstones)
    for path, tombstone in tombstones.items():
        machine.knows_file(path, tombstone)


async def expire_three(machine: Machine, rounds: int) -> None:
    await expiring(machine, 3)


async def puts_and_deletes(machine: Machine, rounds: int) -> None:
    await Catalog.make(machine, versions=1)
    storage = machine.storage()
    for number in range(rounds):
        path, data = f"manifest/t{number}/m", b"%d" % number * 3000
        machine.knows_file(path, None, data)
        await storage.put(path, data)
        machine.knows_file(path, data)
        machine.knows_file(path, None, data)  # a deletion may come back
        await storage.delete(path)
        machine.knows_file(path, None, data, b"new")
        await storage.put(path, b"new")
        machine.knows_file(path, b"new")


async def rows(machine: Machine, rounds: int) -> None:
    """Store data files of another program and their manifest segment, and commit the segment."""
    catalog = await Catalog.make(machine, versions=1)
    lake, journal = catalog.lake, catalog.journal
    create = lake.table("base0", "t")
    await lake.commit(journal, create)
    catalog.note_head()
    for number in range(rounds):
        transaction_id = lake.identities.uuid7()
        path = fmt.data_folder(create.table_id, transaction_id, lake.identities.uuid4()) + "part-0.parquet"
        content = b"rows" * (1000 + number)
        machine.system.write_file(f"{LAKE}/{path}", content)
        machine.note()
        await lake.storage.make_durable([path])
        machine.knows_file(path, content)
        data, segment = await asyncio.to_thread(
            segment_of,
            [DataFile(path=path, row_count=1, size_bytes=len(content))],
            path=fmt.manifest_path(create.table_id, lake.identities.uuid7()),
            table_id=create.table_id,
            schema_id=0,
        )
        await lake.storage.put(segment.path, data)
        append = AppendFiles(namespace="base0", name="t", table_id=create.table_id, segments=(segment,))
        await journal.commit(
            Transaction(id=transaction_id, begin_version=journal.head.version, operations=(append,))
        )
        catalog.note_head()
        machine.knows_file(segment.path, data)


async def a_reader(machine: Machine, rounds: int) -> None:
    """Let a process read the head at every step of the writer. The versions that the process sees must stay."""
    catalog = await Catalog.make(machine)
    watch(machine, machine.storage())
    for number in range(rounds):
        await catalog.lake.commit(catalog.journal, catalog.lake.namespace(f"n{number}"))
        catalog.note_head()


def watch(machine: Machine, storage: Storage) -> None:
    log = Log(storage, 32)

    def look(_: Syscall) -> None:
        head = now(log.head(max(machine.slots)))
        machine.slots[head] = now(log.read(head)).commit_id

    machine.between = look


class Captured(Storage):
    """A store in front of `inner` that keeps what it should publish and applies nothing."""

    publishes_at_once = True

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.url = inner.url
        self.published: tuple[Mapping[str, bytes], str, bytes] | None = None

    async def read(self, path: str, *, size_max: int) -> bytes:
        return await self.inner.read(path, size_max=size_max)

    async def stat(self, path: str) -> Any:
        return await self.inner.stat(path)

    def list(self, prefix: str) -> Any:
        return self.inner.list(prefix)

    async def create(self, path: str, data: bytes) -> None:
        raise AssertionError(path)

    async def put(self, path: str, data: bytes) -> None:
        raise AssertionError(path)

    async def publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        self.published = (files, slot, root)
        raise Unavailable("captured")

    async def delete(self, path: str) -> None:
        raise AssertionError(path)

    def uri(self, path: str) -> str:
        return self.inner.uri(path)


async def rivals(machine: Machine, step: int) -> bool:
    """Let another process publish its version after `step` calls of the writer's commit. Return False if the commit
    has fewer calls."""
    catalog = await Catalog.make(machine)
    other_storage = machine.storage()
    captured = Captured(other_storage)
    other_lake = Lake(captured, seed=1)
    other = await other_lake.open()
    with pytest.raises(Unavailable):
        await other_lake.commit(other, other_lake.namespace("theirs"))
    assert captured.published is not None
    files, slot, root = captured.published
    version = catalog.journal.head.version + 1
    start = machine.steps

    def rival(_: Syscall) -> None:
        if machine.steps != start + step:
            return
        # The other process's steps are noted as well.
        machine.between = lambda _: None
        machine._inside = False
        try:
            now(other_storage.publish(files, slot, root))
        except AlreadyExists:
            return
        finally:
            machine._inside = True
        machine.slots[version] = now(Log(other_storage, 32).read(version)).commit_id

    machine.between = rival
    committed = await catalog.lake.commit(catalog.journal, catalog.lake.namespace("mine"))
    won = version in machine.slots
    assert committed.version == version + (1 if won else 0)
    catalog.note_head()
    return machine.steps - start >= step


Mix = Callable[[Machine, int], Awaitable[None]]
MIXES: dict[str, tuple[Mix, int, int]] = {
    "creating": (creating, 1, 1),
    "lone_commits": (lone_commits, 2, 20),
    "groups": (groups, 1, 3),
    "hints": (hints, 2, 20),
    "expiring": (expiring, 3, 15),
    "puts_and_deletes": (puts_and_deletes, 2, 20),
    "rows": (rows, 1, 10),
    "a_reader": (a_reader, 2, 12),
}


@pytest.mark.parametrize("name", MIXES)
async def test_every_power_cut(name: str, lane_count: Callable[[int, int], int]) -> None:
    mix, small, full = MIXES[name]
    machine = Machine(FakeFileSystem())
    await mix(machine, lane_count(small, full))
    print(f"{name}: {machine.steps} system calls, {len(machine.states)} survivors")
    assert await all_violations(machine) == []


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one `syncfs` for all files that are staged together, however few there are."""
    monkeypatch.setattr("alpheus_journal.storage.local.AT_ONCE_MIN", 1)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("name", ["lone_commits", "groups", "hints", "a_reader"])
async def test_every_power_cut_with_one_sync_of_all(name: str, lane_count: Callable[[int, int], int]) -> None:
    mix, small, _ = MIXES[name]
    machine = Machine(FakeFileSystem())
    await mix(machine, lane_count(1 if name == "groups" else 2, small))
    calls = [call.name for call in machine.system.calls]
    assert calls.count("syncfs") > 2
    print(f"{name}: {machine.steps} system calls, {len(machine.states)} survivors")
    assert await all_violations(machine) == []


async def test_every_power_cut_of_two_writers(lane_count: Callable[[int, int], int]) -> None:
    stride = lane_count(13, 1)
    step = survivors = 0
    while True:
        machine = Machine(FakeFileSystem())
        goes_on = await rivals(machine, step)
        survivors += len(machine.states)
        assert await all_violations(machine) == [], f"another writer at step {step}"
        if not goes_on:
            break
        step += stride
    print(f"two writers: {step} places, {survivors} survivors")
    assert step > 18


# --- the test can fail -----------------------------------------------------------------------------


class NoFileSync(FakeFileSystem):
    def fsync(self, fd: int, path: str) -> None:
        if stat.S_ISDIR(self.fstat(fd).st_mode):
            super().fsync(fd, path)


class NoFolderSync(FakeFileSystem):
    def fsync(self, fd: int, path: str) -> None:
        if not stat.S_ISDIR(self.fstat(fd).st_mode):
            super().fsync(fd, path)


class LinkFirst(FakeFileSystem):
    """Syncs the content only after the link."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[tuple[int, str]] = []

    def fsync(self, fd: int, path: str) -> None:
        if not stat.S_ISDIR(self.fstat(fd).st_mode):
            self.due.append((fd, path))
        else:
            super().fsync(fd, path)

    def link(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        super().link(source, source_directory, name, directory, path)
        due, self.due = self.due, []
        for fd, about in due:
            if fd in self._fds:
                super().fsync(fd, about)


class InPlace(FakeFileSystem):
    """Creates the slot exclusively and then writes it in place."""

    def link(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        data = self._folder(source_directory).entries[source].data  # type: ignore[union-attr]
        fd = self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, directory)
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            self.write(fd, memoryview(part), path)
        super().fsync(fd, path)
        self.close(fd)


class NoWay(FakeFileSystem):
    """Does not sync the entries that lead to the prefix."""

    def fsync(self, fd: int, path: str) -> None:
        if path not in ("/", "/srv"):
            super().fsync(fd, path)


class OrderIsKept(FakeFileSystem):
    """Claims that renames become durable in their order."""

    def keeps_order(self, fd: int) -> bool:
        return True


@pytest.mark.parametrize(
    ("system", "mix", "expected"),
    [
        (NoFileSync, lone_commits, "Corrupt"),
        (NoFolderSync, lone_commits, "there is no"),
        (LinkFirst, lone_commits, "Corrupt"),
        (InPlace, lone_commits, "Corrupt"),
        (NoWay, creating, "there is no"),
        (OrderIsKept, expire_three, "the tombstones have a gap"),
    ],
)
async def test_a_driver_that_leaves_out_a_step_is_caught(
    system: type[FakeFileSystem], mix: Mix, expected: str, lane_count: Callable[[int, int], int]
) -> None:
    if lane_count(0, 1):  # a short run has shown it in test_every_power_cut
        machine = Machine(FakeFileSystem())
        await mix(machine, 1)
        assert await all_violations(machine) == []
    machine = Machine(system())
    await mix(machine, 1)
    assert await finds(machine, expected)


class NoSyncOfAll(FakeFileSystem):
    """Omits the one `syncfs` but not the fsync of the last file."""

    def syncfs(self, fd: int) -> None:
        return


class SyncOfAllTooEarly(NoSyncOfAll):
    """Calls syncfs before the last file without its own fsync is written."""

    def write(self, fd: int, data: memoryview, path: str) -> int:
        if not path.startswith("vn/"):
            super(NoSyncOfAll, self).syncfs(fd)
        return super().write(fd, data, path)


class SyncOfAllLast(NoSyncOfAll):
    """Calls syncfs after the files have their names."""

    def link(self, source: str, source_directory: int, name: str, directory: int, path: str) -> None:
        super().link(source, source_directory, name, directory, path)
        super(NoSyncOfAll, self).syncfs(directory)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("system", [NoSyncOfAll, SyncOfAllTooEarly, SyncOfAllLast])
async def test_one_sync_of_all_that_is_left_out_or_misplaced_is_caught(system: type[FakeFileSystem]) -> None:
    machine = Machine(system())
    await lone_commits(machine, 1)
    assert await finds(machine, "corrupt")


async def test_a_reader_that_does_not_sync_is_caught() -> None:
    """A reader that cannot sync shows a version that a power cut takes back, and the test finds it."""
    machine = Machine(FakeFileSystem())
    machine.system.fail = lambda call: (
        errno.EINVAL if machine._inside and call.name == "fsync" and machine.slots else None
    )
    await a_reader(machine, 1)
    assert await finds(machine, "is lost", "there is no version")


def test_a_lost_prefix_is_a_violation() -> None:
    with pytest.raises(NotFound):
        LocalStorage(LAKE, system=FakeFileSystem(), threads=0)
