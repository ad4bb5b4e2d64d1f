"""The LMDB driver: the contract, growth, one file a process, damaged files, several processes, the client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import lmdb
import pyarrow as pa
import pytest

import alpheus
from alpheus_journal.errors import (
    AlreadyExists,
    Corrupt,
    Exhausted,
    InvalidInput,
    NotEmpty,
    NotFound,
    Unavailable,
)
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary
from alpheus_journal.storage import Storage, open_storage
from alpheus_journal.storage.lmdb import LmdbStorage
from alpheus_journal.storage.posix import file_system_kind
from alpheus_journal.testing import Lake, StorageContract, listed, raises

SIZE_MAX = 1 << 22


class TestLmdbContract(StorageContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / f"lake {number}%" for number in itertools.count())

    async def make(self) -> Storage:
        return await open_lmdb(next(self.folders))


async def open_lmdb(path: Path, *, create: bool = True) -> LmdbStorage:
    return await asyncio.to_thread(LmdbStorage, str(path), create)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[LmdbStorage]:
    storage = await open_lmdb(tmp_path / "lake")
    yield storage
    await storage.close()


# -- transactions and keys


async def test_a_publish_is_all_or_nothing(storage: LmdbStorage) -> None:
    await storage.publish({"node/a": b"a"}, "vn/0", b"root")
    await raises(AlreadyExists, storage.publish({"node/b": b"b", "node/a": b"x"}, "vn/0", b"other"))
    assert set(await listed(storage, "")) == {"node/a", "vn/0"}
    assert await storage.read("node/a", size_max=SIZE_MAX) == b"a"


async def test_long_paths(storage: LmdbStorage) -> None:
    """Paths around the longest key are stored whole, or as their beginning with a hash. They are listed in full, and
    found by any prefix."""
    names = [f"def/table/{letter * count}" for letter in "ab" for count in (490, 500, 501, 502, 600, 3000)]
    names += ["def/table/" + "a" * 600 + tail for tail in ("x", "/y", "é")]
    for name in names:
        await storage.create(name, name.encode())
        await raises(AlreadyExists, storage.create(name, b""))
    assert await storage.read_many(names, size_max=SIZE_MAX) == {name: name.encode() for name in names}
    for prefix in ("", "def/", "def/table/" + "a" * 499, "def/table/" + "a" * 600, "def/table/" + "b" * 3000):
        found = await listed(storage, prefix)
        assert set(found) == {name for name in names if name.startswith(prefix)}
        assert all(info.size == len(path.encode()) for path, info in found.items())
    await storage.delete(names[5])
    assert names[5] not in await listed(storage, "")
    await raises(InvalidInput, storage.put("x" * 5000, b""))
    await raises(NotFound, storage.read("x" * 5000, size_max=1))


async def test_data_files_are_plain_files(storage: LmdbStorage, tmp_path: Path) -> None:
    path = "data/t/x/w/part 0.parquet"
    await storage.put(path, b"rows")
    assert storage.uri(path) == f"file://{tmp_path}/lake/data/t/x/w/part%200.parquet"
    assert (tmp_path / "lake" / path).read_bytes() == b"rows"
    (tmp_path / "lake" / "data/t/x/w/spark.parquet").write_bytes(b"from outside")
    await storage.make_durable(["data/t/x/w/spark.parquet"])
    assert await storage.read("data/t/x/w/spark.parquet", size_max=SIZE_MAX) == b"from outside"
    await raises(NotFound, storage.make_durable(["data/t/x/w/none"]))
    await raises(NotFound, storage.make_durable(["manifest/none"]))
    await raises(InvalidInput, _call(lambda: storage.uri("vn/0")), kind="storage_unreachable")
    await storage.publish({path + "2": b"2", "node/a": b"a"}, "vn/0", b"root")
    for prefix, expected in (("d", 3), ("data", 3), ("data/t/x", 3), ("data/t/x/w/p", 2), ("n", 1), ("", 5)):
        assert len(await listed(storage, prefix)) == expected, prefix
    await storage.delete(path)
    assert await storage.stat(path) is None
    await storage.create("data", b"no folder of ours")
    assert await storage.read("data", size_max=SIZE_MAX) == b"no folder of ours"


async def _call(call: Callable[[], object]) -> object:
    return call()


async def test_time_of_writing(tmp_path: Path) -> None:
    storage = await asyncio.to_thread(LmdbStorage, str(tmp_path / "lake"), True, clock=lambda: 1234)
    await storage.put("a", b"x")
    info = await storage.stat("a")
    assert info is not None
    assert info.modified_at_millis == 1234
    await storage.close()


# -- the map


async def test_the_map_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpheus_journal.storage.lmdb_environment.MAP_SIZE_BYTES_MIN", 1 << 20)
    storage = await open_lmdb(tmp_path / "lake")
    files = {f"node/{number}": bytes([number]) * 200_000 for number in range(40)}

    async def write(path: str) -> None:
        await storage.put(path, files[path])
        assert await storage.read(path, size_max=SIZE_MAX) == files[path]

    await asyncio.gather(*(write(path) for path in files))
    assert await storage.read_many(list(files), size_max=SIZE_MAX) == files
    # Another process made the map larger: this process adopts the size when it reads or writes.
    for script in ("vn/0", "vn/1"):
        run(WRITE_ONE, str(tmp_path / "lake"), script, str(20 << 20))
        if script == "vn/0":
            assert len(await storage.read(script, size_max=64 << 20)) == 20 << 20
        else:
            await storage.put("vn/2", b"x")
            await raises(AlreadyExists, storage.create(script, b""))
    await storage.close()


async def test_a_map_that_may_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpheus_journal.storage.lmdb_environment.MAP_SIZE_BYTES_MIN", 1 << 20)
    monkeypatch.setattr("alpheus_journal.storage.lmdb_environment.MAP_SIZE_BYTES_MAX", 2 << 20)
    storage = await open_lmdb(tmp_path / "lake")
    await raises(Exhausted, storage.publish({"node/a": bytes(4 << 20)}, "vn/0", b""), kind="no_space")
    assert await listed(storage, "") == {}
    await storage.publish({"node/a": b"a"}, "vn/0", b"")
    await storage.close()


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """EFBIG stands for a full disk: no part is applied, reads continue, later writes work."""
    assert run(FULL, str(tmp_path / "lake")) == "Exhausted no_space\nvn/0\nroot\nvn/0 vn/1\n"


FULL = """
import asyncio, resource, sys
from alpheus_journal.errors import AlpheusError
from alpheus_journal.storage.lmdb import LmdbStorage

async def main(path):
    store = await asyncio.to_thread(LmdbStorage, path, True)
    await store.create("vn/0", b"root")
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        await store.publish({f"node/{n}": bytes(100_000) for n in range(30)}, "vn/1", b"root")
    except AlpheusError as error:
        print(type(error).__name__, error.kind)
    print(*sorted([info.path async for info in store.list("")]))
    print((await store.read("vn/0", size_max=100)).decode())
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await store.create("vn/1", b"root")
    print(*sorted([info.path async for info in store.list("")]))
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


PUBLISHER = """
import asyncio, sys
from alpheus_journal.errors import AlpheusError
from alpheus_journal.storage.lmdb import LmdbStorage

async def main(path, first):
    store = await asyncio.to_thread(LmdbStorage, path, True)
    for number in range(first, first + 4):
        try:
            await store.publish({f"node/{number}": bytes(20_000)}, f"vn/{number}", b"root")
            print("ok")
        except AlpheusError as error:
            print(type(error).__name__, error.kind)
    try:
        print(*sorted([info.path async for info in store.list("vn/")]))
    except AlpheusError as error:
        print(type(error).__name__, error.hint)
    await store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(
    ("call", "error", "number", "expected", "reading"),
    [
        # The sync of the second transaction; the write of its meta page; the allocation for the first.
        ("fdatasync", "EIO", 2, ["ok", "OutcomeUnknown reply_lost"] + ["Unavailable storage_read_only"] * 2, "vn/0"),
        ("pwrite64", "EIO", 2, ["ok", "OutcomeUnknown reply_lost"] + ["Unavailable storage_read_only"] * 2,
         "Unavailable check the disk, then restart the process"),
        ("fallocate", "ENOSPC", 1, ["Exhausted no_space", "ok", "ok", "ok"], "vn/1 vn/2 vn/3"),
    ],
)  # fmt: skip
async def test_a_disk_that_fails(
    tmp_path: Path, call: str, error: str, number: int, expected: list[str], reading: str
) -> None:
    await (await open_lmdb(tmp_path / "lake")).close()
    trace = ("strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}",
             "-e", f"inject={call}:error={error}:when={number}")  # fmt: skip
    lines = run(PUBLISHER, str(tmp_path / "lake"), "0", strace=trace).splitlines()
    assert lines == [*expected, reading]
    # A new process finds the acknowledged writes, and works.
    *done, found = run(PUBLISHER, str(tmp_path / "lake"), "100").splitlines()
    assert done == ["ok"] * 4
    acknowledged = {f"vn/{place}" for place, line in enumerate(expected) if line == "ok"}
    unknown = {f"vn/{place}" for place, line in enumerate(expected) if line.startswith("OutcomeUnknown")}
    assert (
        acknowledged
        <= set(found.split()) - {f"vn/{100 + place}" for place in range(4)}
        <= acknowledged | unknown
    )


# -- opening


async def test_opening(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (tmp_path / "catalog" / "vn").mkdir(parents=True)
    for path, create, expected, kind in (
        ("missing", False, NotFound, "no_catalog"),
        ("empty", False, NotFound, "no_catalog"),
        ("file", False, InvalidInput, "bad_url"),
        ("file", True, InvalidInput, "bad_url"),
        ("catalog", True, NotEmpty, "directory_not_empty"),
        ("catalog", False, NotFound, "no_catalog"),
        ("nul\0", True, InvalidInput, "bad_url"),
    ):
        await raises(expected, open_lmdb(tmp_path / path, create=create), kind=kind)
    for url in ("lmdb://host/x", "lmdb:///x?a=1", "lmdb:///x#y", "lmdb://"):
        await raises(InvalidInput, asyncio.to_thread(open_storage, url, create=True), kind="bad_url")
    assert list((tmp_path / "empty").iterdir()) == []
    store = await open_lmdb(tmp_path / "new" / "d%ep")
    assert store.url == f"lmdb://{tmp_path}/new/d%25ep"
    again = await asyncio.to_thread(open_storage, store.url)
    assert again.url == store.url
    await store.close()
    await again.close()
    await raises(Unavailable, again.read("x", size_max=1), kind="shutting_down")


async def test_damaged_files(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    (lake / "data.mdb").write_bytes(b"no database" * 5000)
    error = await raises(Corrupt, open_lmdb(lake))
    assert str(lake / "data.mdb") in str(error)
    (lake / "data.mdb").unlink()
    store = await open_lmdb(lake)
    await store.put("node/a", bytes(3 << 20))
    await store.close()
    whole = (lake / "data.mdb").read_bytes()
    # A file that lost most of its bytes is refused. A file that lost its last pages reads as damaged content, and the
    # process survives.
    (lake / "data.mdb").write_bytes(whole[:9000])
    error = await raises(Corrupt, open_lmdb(lake, create=False))
    assert "was cut" in str(error)
    (lake / "data.mdb").write_bytes(whole)
    with lmdb.open(str(lake)) as environment:
        pages = environment.info()["last_pgno"] + 1
    (lake / "data.mdb").write_bytes(whole[: (pages - 5) * 4096])
    store = await open_lmdb(lake, create=False)
    with contextlib.suppress(Corrupt):
        await store.read("node/a", size_max=SIZE_MAX)
    await store.close()


async def test_a_foreign_database(tmp_path: Path) -> None:
    """Keys and values that no store wrote give errors, not crashes."""
    run(
        "import lmdb, sys\n"
        "env = lmdb.open(sys.argv[1])\n"
        "with env.begin(write=True) as t:\n"
        "    t.put(b'vn/0', b'x'); t.put(b'b\\0c', b'12345678\\xff\\xff'); t.put(b'\\xff', b'\\0' * 10)\n",
        str(tmp_path / "lake"),
    )
    store = await open_lmdb(tmp_path / "lake")
    await raises(Corrupt, store.read("vn/0", size_max=SIZE_MAX))
    await raises(Corrupt, store.stat("vn/0"))
    await raises(Corrupt, listed(store, ""))
    await store.put("vn/1", b"1")
    assert await store.read("vn/1", size_max=SIZE_MAX) == b"1"
    await store.close()


async def test_network_file_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = tmp_path / "mountinfo"
    line = "36 35 {} / {} rw,noatime master:1 - {} server:/x rw\n"
    mounts.write_text(line.format("0:1", "/other", "ext4") + line.format(number, tmp_path, "nfs4"))

    async def kind(table: Path) -> str:
        return await asyncio.to_thread(file_system_kind, str(tmp_path), str(table))

    assert await kind(mounts) == "nfs4"
    assert await kind(tmp_path / "none") == ""
    assert await kind(Path("/proc/self/mountinfo")) != "nfs4"
    monkeypatch.setattr("alpheus_journal.storage.lmdb_environment.file_system_kind", lambda path: "nfs4")
    error = await raises(InvalidInput, open_lmdb(tmp_path / "lake"), kind="storage_unsuitable")
    assert "nfs4" in str(error)


async def test_a_directory_that_was_replaced(storage: LmdbStorage, tmp_path: Path) -> None:
    await storage.create("vn/0", b"root")
    (tmp_path / "lake").rename(tmp_path / "moved")
    for _ in range(2):
        error = await raises(Unavailable, storage.create("vn/1", b"root"))
        assert error.hint
        (tmp_path / "lake").mkdir(exist_ok=True)
    assert list((tmp_path / "lake").iterdir()) == []
    assert await storage.read("vn/0", size_max=SIZE_MAX) == b"root"
    # The new database is another catalog, also while the old one is open.
    fresh = await open_lmdb(tmp_path / "lake")
    assert await listed(fresh, "") == {}
    await fresh.create("vn/0", b"fresh")
    await fresh.close()
    assert await storage.read("vn/0", size_max=SIZE_MAX) == b"root"


# -- processes


def run(script: str, *arguments: str, strace: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [*strace, sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WRITE_ONE = """
import asyncio, sys
from alpheus_journal.storage.lmdb import LmdbStorage

async def main(path, name, size):
    store = await asyncio.to_thread(LmdbStorage, path)
    await store.create(name, bytes(int(size)))
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""

RACER = """
import asyncio, sys
from alpheus_journal.errors import AlreadyExists
from alpheus_journal.storage.lmdb import LmdbStorage

async def main(path, who, slots):
    store = await asyncio.to_thread(LmdbStorage, path, True)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(slots):
        try:
            await store.publish({f"node/{number}-{who}": b"node"}, f"vn/{number}", (who * 4000).encode())
        except AlreadyExists:
            continue
        print(number, flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def test_processes_race_for_slots(tmp_path: Path) -> None:
    slots = 100
    racers = {who: spawn(RACER, str(tmp_path / "lake"), who, str(slots)) for who in "abcd"}
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
            finish(process)
    assert sorted(won) == list(range(slots))
    storage = await open_lmdb(tmp_path / "lake", create=False)
    assert set(await listed(storage, "vn/")) == {f"vn/{number}" for number in won}
    assert set(await listed(storage, "node/")) == {f"node/{number}-{who}" for number, who in won.items()}
    for number, who in won.items():
        assert await storage.read(f"vn/{number}", size_max=SIZE_MAX) == (who * 4000).encode()
    await storage.close()


def spawn(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


WRITER = """
import asyncio, sys
from alpheus_journal.storage.lmdb import LmdbStorage

async def main(path, number):
    store = await asyncio.to_thread(LmdbStorage, path, True)
    while True:
        data = f"{number:08}".encode() * 5000
        await store.publish({f"node/{number}": data}, f"vn/{number}", data)
        print(number, flush=True)
        number += 1

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def test_killed_writers_lose_nothing_acknowledged(
    tmp_path: Path, lane_count: Callable[[int, int], int]
) -> None:
    """A reader stays open meanwhile. LMDB's locks that a killed writer held are free for the next writer."""
    acknowledged: list[int] = []
    kills = lane_count(4, 60)
    reader = await open_lmdb(tmp_path / "lake")
    for kill in range(kills):
        process = spawn(WRITER, str(tmp_path / "lake"), str(acknowledged[-1] + 1000 if acknowledged else 0))
        try:
            assert process.stdout is not None
            for _ in range(3 + 5 * (kill % 7)):
                acknowledged.append(int(process.stdout.readline()))
            assert await reader.exists(f"vn/{acknowledged[-1]}")
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read()
            acknowledged += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        finally:
            finish(process)
    slots = {int(path.removeprefix("vn/")) for path in await listed(reader, "vn/")}
    assert set(acknowledged) <= slots
    assert len(slots) - len(acknowledged) <= kills, "at most one unacknowledged slot a kill"
    for number in slots:
        whole = b"%08d" % number * 5000
        both = await reader.read_many([f"vn/{number}", f"node/{number}"], size_max=SIZE_MAX)
        assert set(both.values()) == {whole}
    await reader.create("vn/after", b"")
    await reader.close()


FORKED = """
import asyncio, os, sys
from alpheus_journal.errors import AlpheusError
from alpheus_journal.storage.lmdb import LmdbStorage

async def child(store, path):
    try:
        await store.read("vn/0", size_max=9)
    except AlpheusError as error:
        print("child", type(error).__name__, error.kind, flush=True)
    own = await asyncio.to_thread(LmdbStorage, path)
    await own.create("vn/1", b"child")
    print("child", (await own.read("vn/0", size_max=9)).decode(), flush=True)
    await own.close()

store = LmdbStorage(sys.argv[1], True)
asyncio.run(store.create("vn/0", b"parent"))
pid = os.fork()
if pid == 0:
    asyncio.run(child(store, sys.argv[1]))
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
async def parent():
    await store.create("vn/2", b"parent")
    print("parent", *sorted([info.path async for info in store.list("")]))
    await store.close()
asyncio.run(parent())
"""


def test_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    assert run(FORKED, str(tmp_path / "lake")) == (
        "child Unavailable shutting_down\nchild parent\nparent vn/0 vn/1 vn/2\n"
    )


# -- a whole catalog

COMMITTER = """
import asyncio, sys
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.journal import Journal
from alpheus_journal.storage import open_storage
from alpheus_journal.clock import RandomIdentities, SystemClock

async def main(url, who, count):
    journal = await Journal.open(await asyncio.to_thread(open_storage, url))
    identities = RandomIdentities(SystemClock())
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        operation = CreateNamespace(name=f"{who}{number}", namespace_id=identities.uuid4())
        await journal.commit(Transaction(
            id=identities.uuid7(), begin_version=journal.head.version, operations=(operation,)))
    await journal.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def test_two_journals_in_two_processes(tmp_path: Path) -> None:
    storage = await open_lmdb(tmp_path / "lake")
    journal = await Journal.create(storage, order=5)
    writers = [spawn(COMMITTER, storage.url, who, "15") for who in "ab"]
    try:
        for process in writers:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in writers:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in writers:
            process.communicate(timeout=60)
            assert process.returncode == 0
    finally:
        for process in writers:
            finish(process)
    assert (await journal.refresh()).version == 30
    (summary,) = [item async for item in journal.check()]
    assert isinstance(summary, CheckSummary)
    assert summary.versions == 31
    await journal.close()


async def test_tombstones_over_versions(tmp_path: Path) -> None:
    lake = Lake(await open_lmdb(tmp_path / "lake"))
    journal = await lake.create(order=3)
    for number in range(6):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await lake.expire(below=3)
    (summary,) = [item async for item in journal.check()]
    assert isinstance(summary, CheckSummary)
    assert summary.findings == 0
    await journal.close()


def test_rows_through_the_client(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/lake"
    command = [sys.executable, "-m", "alpheus"]
    done = subprocess.run([*command, "create", url], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with alpheus.connect(url) as catalog:
        catalog.create_namespace("sales")
        catalog.create_table("sales.orders", pa.schema({"id": pa.int64(), "item": pa.string()}))
        catalog.append("sales.orders", [{"id": 1, "item": "a"}, {"id": 2, "item": "b"}])
        catalog.append("sales.orders", [{"id": 3, "item": "c"}])
        assert catalog.read("sales.orders").num_rows == 3
    with alpheus.connect(url) as catalog:
        assert catalog.read("sales.orders").to_pydict()["id"] == [1, 2, 3]
    assert sorted(path.name for path in (tmp_path / "lake").iterdir()) == [
        ".staging", "data", "data.mdb", "lock.mdb"
    ]  # fmt: skip
    assert len(list((tmp_path / "lake" / "data").rglob("*.parquet"))) == 2
    with alpheus.connect(url) as catalog:
        assert not catalog.admin.check().findings


async def test_a_catalog_inside_one_of_lmdb(tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    await (
        await Journal.create(await asyncio.to_thread(open_storage, f"lmdb://{outer}", create=True))
    ).close()
    for scheme in ("lmdb", "file"):
        inner = await asyncio.to_thread(open_storage, f"{scheme}://{outer}/data/{scheme}", create=True)
        error = await raises(InvalidInput, Journal.create(inner), kind="nested_catalog")
        assert f"lmdb://{outer}" in error.message
        await inner.close()
    beside = await asyncio.to_thread(open_storage, f"lmdb://{tmp_path}/beside", create=True)
    await (await Journal.create(beside)).close()
