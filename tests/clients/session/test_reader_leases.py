"""Readers that hold a lease: what they can read, and how they learn that it ran out. Also readers without a lease."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import alpheus
from alpheus import Catalog, Unleased, aio, cli
from alpheus.errors import Corrupt, Denied, Expired, InvalidInput, NotFound, Unavailable
from alpheus.session.leases import Leasing, lease_millis
from alpheus_journal.log import leases
from alpheus_journal.storage import Storage
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.testing import Lake

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def catalog(
    request: pytest.FixtureRequest, tmp_path: Path, start_daemon: Callable[..., Any]
) -> Iterator[Catalog]:
    """Yield a catalog.

    Version 3 has a table of three rows and a view, version 4 has one row less, and others follow.
    """
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url, order=3) as made:
        fill(made)
    is_remote = getattr(request, "param", "direct") == "remote"
    with alpheus.connect(start_daemon(url).url if is_remote else url) as opened:
        yield opened


both_ways = pytest.mark.parametrize("catalog", ["direct", "remote"], indirect=True)


def fill(catalog: Catalog) -> None:
    catalog.create_namespace("a", {"owner": "ann"})  # 1
    catalog.create_table("a.t", ROWS)  # 2
    catalog.create_view("a.v", "select 1")  # 3
    catalog.delete("a.t", "id = 2", mode="rewrite")  # 4
    for number in range(4):
        catalog.create_namespace(f"n{number}")


def storage_of(catalog: Catalog) -> LocalStorage:
    storage = catalog.storage()
    assert isinstance(storage, LocalStorage)
    return storage


def expire(catalog: Catalog, below: int) -> None:
    asyncio.run(Lake(LocalStorage(folder_of(catalog))).expire(below=below))


def folder_of(catalog: Catalog) -> str:
    return storage_of(catalog).url.removeprefix("file://")


def lease_files(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("lease/*.arrow"))


def put_back(path: Path) -> None:
    """Make a lease look as if its holder had last renewed it an hour ago."""
    then = path.stat().st_mtime - 3600
    os.utime(path, (then, then))


def everything(snapshot: alpheus.Snapshot) -> object:
    return (
        [one.name for one in snapshot.list_namespaces()],
        snapshot.load_namespace("a").properties,
        [one.name for one in snapshot.list_tables("a")],
        [one.full_name for one in snapshot.load_tables(["a.t"])],
        snapshot.load_view("a.v").sql,
        snapshot.table_exists("a.none"),
        snapshot.read("a.t").to_pydict(),
        snapshot.scan("a.t", "id > 1").count(),
    )


# --- reading under a lease -------------------------------------------------------------------------


@both_ways
def test_a_reader_goes_on_while_its_version_expires(catalog: Catalog) -> None:
    folder = folder_of(catalog)
    with catalog.at(3, lease=True) as held, catalog.at(3) as bare:
        assert held.is_leased
        assert not bare.is_leased
        scan = held.scan("a.t")
        before = everything(held)
        assert before == everything(bare)
        (lease,) = catalog.admin.leases()
        assert (lease.version, lease.state) == (3, "held")
        assert f"process {os.getpid()}" in lease.holder
        expire(catalog, below=5)
        assert everything(held) == before
        assert everything(held) == before, "again"
        assert scan.to_arrow().to_pydict() == {"id": [1, 2, 3]}
        with pytest.raises(NotFound, match="no namespace b") as missing:
            held.list_tables("b")
        assert missing.value.kind == "no_namespace"
        with pytest.raises(NotFound, match=r"a\.none at version 3"):
            held.load_table("a.none")
        with pytest.raises(Expired, match="version 3 has expired"):
            bare.load_table("a.t")
        with pytest.raises(Expired, match="version 3 has expired"):
            catalog.at(3, lease=True)
        assert not held.has_lost_lease()
    assert lease_files(folder) == []
    assert not held.is_leased
    with pytest.raises(Expired, match="version 3 has expired"):
        held.load_table("a.t")
    assert not catalog.admin.check().findings


def test_closing_the_catalog_gives_its_leases_up(catalog: Catalog) -> None:
    folder = folder_of(catalog)
    readers = [catalog.at(version, lease=60) for version in (3, 4, None)]
    assert len(lease_files(folder)) == 3
    readers[0].close()
    readers[0].close()
    assert len(lease_files(folder)) == 2
    catalog.close()
    assert lease_files(folder) == []
    readers[1].close()


def collect(folder: str, path: Path) -> None:
    """Delete what a collector deletes when a lease is long over: the data files and nodes of an expired version."""
    for pattern in ("data/**/*.parquet", "node/*.arrow", "manifest/**/*.arrow"):
        for file in Path(folder).glob(pattern):
            file.unlink()
    path.unlink()


@both_ways
def test_a_reader_whose_lease_ran_out_is_told_so(catalog: Catalog) -> None:
    """A reader whose lease ran out gets an error that says so.

    It gets no error about damage, though its files are gone.
    """
    folder = folder_of(catalog)
    with catalog.at(3, lease=True) as held:
        scan = held.scan("a.t")
        (path,) = lease_files(folder)
        expire(catalog, below=5)
        collect(folder, path)
        for read in (
            scan.to_arrow,
            lambda: held.read("a.t"),
            held.list_namespaces,
            lambda: held.load_table("a.t"),
            lambda: held.scan("a.t"),
        ):
            with pytest.raises(
                Expired, match="the lease on version 3 ran out: another program removed it"
            ) as lost:
                read()
            assert lost.value.kind == "lease_expired"
            assert "new reader" in lost.value.hint
        assert held.has_lost_lease()
        assert held.is_leased
    assert lease_files(folder) == []


def test_a_damaged_catalog_is_no_lost_lease(catalog: Catalog) -> None:
    folder = folder_of(catalog)
    with catalog.at(3, lease=True) as held:
        scan = held.scan("a.t")
        for file in Path(folder).glob("data/**/*.parquet"):
            file.unlink()
        with pytest.raises(Corrupt, match="is missing"):
            scan.to_arrow()
        assert not held.has_lost_lease()


async def test_a_reader_that_stood_still(tmp_path: Path) -> None:
    """A reader whose clock says that its lease may be over asks the store before it reads anything."""
    now = 0.0
    async with await aio.create(f"file://{tmp_path}/lake") as catalog:
        await catalog.create_namespace("a")
        catalog._leasing = Leasing(catalog._session, monotonic=lambda: now)
        async with await catalog.at(1, lease=60) as held:
            now += 59.0
            assert [one.name for one in await held.list_namespaces()] == ["a"]
            (path,) = lease_files(str(tmp_path / "lake"))
            put_back(path)
            assert not await held.has_lost_lease(), "it was renewed in time as far as anybody knows"
            now += 2.0
            with pytest.raises(Expired, match="ran out"):
                await held.list_namespaces()
            assert await held.has_lost_lease()
        async with await catalog.at(1, lease=60) as held:
            now += 3600.0
            with pytest.raises(Expired, match="it was not renewed for 60 s"):
                await held.load_namespace("a")
        async with await catalog.at(1, lease=60) as held, await catalog.at(1, lease=3600) as other:
            now += 61.0
            assert await held.has_lost_lease()
            assert not await other.has_lost_lease()


class Waiting:
    """Calls of one method of a store wait until the test lets them through.

    Cancelling the caller does not take them back.
    """

    def __init__(self, storage: Storage, method: str) -> None:
        self.arrived = asyncio.Event()
        self.opened = asyncio.Event()
        self.sent: list[asyncio.Task[None]] = []
        real = getattr(storage, method)

        async def send(arguments: tuple[Any, ...]) -> None:
            if arguments[0].startswith("lease/"):
                self.arrived.set()
                await self.opened.wait()
            await real(*arguments)

        async def call(*arguments: Any) -> None:
            self.sent.append(asyncio.create_task(send(arguments)))
            await asyncio.shield(self.sent[-1])

        setattr(storage, method, call)

    async def let_through(self) -> None:
        self.opened.set()
        await asyncio.wait(self.sent)


def renewing() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("renew lease/")]


@pytest.mark.parametrize("how", ["while it is given up", "after that was cancelled"])
async def test_whoever_reads_while_a_lost_lease_is_given_up(tmp_path: Path, how: str) -> None:
    """A read while a lost lease is given up fails with the loss of the lease, and not with damage of the catalog."""
    now = 0.0
    async with await aio.create(f"file://{tmp_path}/lake") as catalog:
        await catalog.create_namespace("a")
        await catalog.create_table("a.t", ROWS)
        catalog._leasing = Leasing(catalog._session, monotonic=lambda: now)
        async with await catalog.at(2, lease=60) as held:
            scan = await held.scan("a.t")
            now += 3600.0
            for file in (tmp_path / "lake" / "data").rglob("*.parquet"):
                file.unlink()
            deleting = Waiting(await catalog.storage(), "delete")
            first = asyncio.create_task(scan.to_arrow())
            await deleting.arrived.wait()
            if how == "after that was cancelled":
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
            try:
                for read in (scan.to_arrow, lambda: held.read("a.t"), held.list_namespaces):
                    with pytest.raises(Expired, match="it was not renewed for 60 s") as lost:
                        await read()
                    assert lost.value.kind == "lease_expired"
                assert await held.has_lost_lease()
            finally:
                await deleting.let_through()
            if how == "while it is given up":
                with pytest.raises(Expired, match="it was not renewed for 60 s"):
                    await first
        assert lease_files(str(tmp_path / "lake")) == []
        assert renewing() == []


@pytest.mark.parametrize("what", ["the reader", "the catalog"])
async def test_nothing_is_written_once_it_is_closed(tmp_path: Path, what: str) -> None:
    """Nothing is written after closing. A renewal that is under way lands before the lease is deleted."""
    async with await aio.create(f"file://{tmp_path}/lake") as catalog:
        held = await catalog.at(0, lease=1)
        writing = Waiting(await catalog.storage(), "put")
        await writing.arrived.wait()
        closing = asyncio.create_task(held.close() if what == "the reader" else catalog.close())
        await asyncio.sleep(0)
        assert not closing.done()
        await writing.let_through()
        await closing
        assert lease_files(str(tmp_path / "lake")) == []
        assert renewing() == []
        assert len(writing.sent) == 1


async def test_a_close_that_was_cancelled_is_done_with_the_catalog(tmp_path: Path) -> None:
    async with await aio.create(f"file://{tmp_path}/lake") as catalog:
        held = await catalog.at(0, lease=60)
        deleting = Waiting(await catalog.storage(), "delete")
        closing = asyncio.create_task(held.close())
        await deleting.arrived.wait()
        deleting.sent[0].cancel()  # the deletion never arrives
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert len(lease_files(str(tmp_path / "lake"))) == 1
        deleting.opened.set()
        await catalog.close()
        assert lease_files(str(tmp_path / "lake")) == []
        assert renewing() == []


async def test_a_closed_catalog_gives_its_leases_up_side_by_side(tmp_path: Path) -> None:
    """A closed catalog gives its leases up concurrently. A failure is reported, and does not keep the other leases."""
    async with await aio.create(f"file://{tmp_path}/lake") as catalog:
        held = [await catalog.at(0, lease=60) for _ in range(3)]
        deleting = Waiting(await catalog.storage(), "delete")
        closing = asyncio.create_task(catalog.close())
        await deleting.arrived.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(deleting.sent) == len(held)
        deleting.sent[0].cancel()
        await deleting.let_through()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert len(lease_files(str(tmp_path / "lake"))) == 1
        assert renewing() == []


async def test_taking_a_lease_that_is_cancelled(tmp_path: Path) -> None:
    """Taking a lease that is cancelled, for example by a timeout, leaves nothing, though its write lands late."""
    async with await aio.create(f"file://{tmp_path}/lake") as catalog:
        writing = Waiting(await catalog.storage(), "put")
        taking = asyncio.create_task(catalog.at(0, lease=60))
        await writing.arrived.wait()
        taking.cancel()
        await asyncio.sleep(0)
        await writing.let_through()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert lease_files(str(tmp_path / "lake")) == []
        assert renewing() == []


async def test_a_catalog_that_is_closed_while_a_lease_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await aio.create(f"file://{tmp_path}/lake") as catalog:
        real = leases.take

        async def take(*arguments: Any, **more: Any) -> leases.HeldLease:
            held = await real(*arguments, **more)
            await catalog.close()
            return held

        monkeypatch.setattr(leases, "take", take)
        with pytest.raises(InvalidInput, match="was closed"):
            await catalog.at(0, lease=60)
        assert renewing() == [], "what is on the storage runs out"


async def test_it_is_renewed_in_the_background(tmp_path: Path) -> None:
    async with await aio.create(f"file://{tmp_path}/lake") as catalog, await catalog.at(0, lease=1):
        (path,) = lease_files(str(tmp_path / "lake"))
        before = path.stat().st_mtime_ns
        while path.stat().st_mtime_ns == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# --- readers without a lease -----------------------------------------------------------------------


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    real = LocalStorage.put

    def refuse(error: Exception) -> None:
        async def put(self: LocalStorage, path: str, data: bytes) -> None:
            if path.startswith("lease/"):
                raise error
            await real(self, path, data)

        monkeypatch.setattr(LocalStorage, "put", put)

    return refuse


@pytest.mark.parametrize(
    "error", [Denied("no right to write"), Unavailable("mounted for reading", kind="storage_read_only")]
)
def test_where_nobody_may_write(
    catalog: Catalog, read_only: Callable[[Exception], None], error: Exception
) -> None:
    """On read-only storage a reader gets one warning and no lease. A reader that must have a lease is refused."""
    read_only(error)
    with pytest.warns(Unleased, match="have no lease: .*(no right|for reading)"):
        reader = catalog.at(3, lease=None)
    assert not reader.is_leased
    assert not reader.has_lost_lease()
    assert reader.read("a.t").num_rows == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not catalog.at(3, lease=None).is_leased
    with pytest.raises(type(error)):
        catalog.at(3, lease=True)
    expire(catalog, below=4)
    with pytest.raises(Expired, match="version 3 has expired"):
        reader.read("a.t")


def test_a_store_that_cannot_be_reached_for_now_is_no_reason_to_go_without(
    tmp_path: Path, read_only: Callable[[Exception], None]
) -> None:
    url = f"file://{tmp_path}/lake"
    alpheus.create(url).close()
    with alpheus.connect(url, timeout=0.2) as catalog:
        read_only(Unavailable("no answer"))
        with pytest.raises(Unavailable, match="no answer"):
            catalog.at(0, lease=None)


def test_where_the_storage_is_out_of_reach(catalog: Catalog) -> None:
    """Where the storage is out of reach, as with a daemon that serves its own memory, a reader gets no lease."""

    async def unreachable() -> Storage:
        raise InvalidInput("it lives in another process", kind="storage_unreachable")

    with alpheus.connect(catalog.url) as other:
        other._core()._session._open_storage = unreachable
        with pytest.raises(InvalidInput, match="another process"):
            other.at(3, lease=True)
        with pytest.warns(Unleased, match="another process"), other.at(3, lease=None) as reader:
            assert reader.load_table("a.t").row_count == 3


@pytest.mark.parametrize("wrong", ["yes", 0, 0.5, 86_401, float("nan"), [1]])
def test_leases_that_cannot_be(catalog: Catalog, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="lease="):
        catalog.at(3, lease=wrong)
    assert lease_files(folder_of(catalog)) == []


def test_how_long_a_lease_lives() -> None:
    assert lease_millis(None) == lease_millis(True) == 600_000
    assert lease_millis(1.5) == 1500
    assert lease_millis(False) == 0


# --- other processes -------------------------------------------------------------------------------

HOLDER = """
import sys
import alpheus
catalog = alpheus.connect(sys.argv[1])
reader = catalog.at(3, lease=float(sys.argv[2]))
print("held", flush=True)
for line in sys.stdin:
    try:
        print("rows", reader.read("a.t").num_rows, flush=True)
    except alpheus.errors.Expired as error:
        print(error.kind, flush=True)
"""


def start_holder(url: str, seconds: float) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert said(holder) == "held"
    return holder


def said(holder: subprocess.Popen[str]) -> str:
    assert holder.stdout is not None
    return holder.stdout.readline().strip()


def ask(holder: subprocess.Popen[str]) -> str:
    assert holder.stdin is not None
    print("read", file=holder.stdin, flush=True)
    return said(holder)


def test_a_holder_that_is_killed_and_one_that_is_paused(tmp_path: Path) -> None:
    """Two processes hold a version that expires: one is killed, and one is paused.

    The lease of the killed process stays, and runs out. The other process is paused for longer than its lease, and
    learns that when it resumes.
    """
    folder = str(tmp_path / "lake")
    with alpheus.create(f"file://{folder}") as catalog:
        fill(catalog)
        killed, paused = (start_holder(catalog.url, seconds) for seconds in (600, 3))
        assert {ask(killed), ask(paused)} == {"rows 3"}
        expire(catalog, below=4)
        assert {ask(killed), ask(paused)} == {"rows 3"}
        killed.kill()
        killed.communicate()
        by_version = [(one.version, one.state) for one in catalog.admin.leases()]
        assert by_version == [(3, "held")] * 2
        answers = {"rows 3"}
        # The reader renews every second. A renewal that was being written at the pause may still be in time.
        while answers == {"rows 3"}:
            paused.send_signal(signal.SIGSTOP)
            for path in lease_files(folder):
                put_back(path)
            assert {one.state for one in catalog.admin.leases()} == {"over"}
            paused.send_signal(signal.SIGCONT)
            answers = {ask(paused)}
        assert answers == {"lease_expired"}
        assert ask(paused) == "lease_expired"
        (left,) = catalog.admin.leases()
        assert (left.state, str(killed.pid) in left.holder) == ("over", True)
        paused.communicate("")
        assert len(lease_files(folder)) == 1, "nobody but a collector removes what a killed reader left"


def test_a_forked_child_has_no_part_in_a_lease(tmp_path: Path) -> None:
    folder = str(tmp_path / "lake")
    script = """
import os, sys, warnings
warnings.simplefilter("ignore")  # of fork and threads
import alpheus
catalog = alpheus.connect(sys.argv[1])
with catalog.at(3, lease=True) as reader:
    child = os.fork()
    if not child:
        assert not reader.is_leased
        assert reader.load_table("a.t").version == 3
        reader.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert reader.is_leased and len(catalog.admin.leases()) == 1
"""
    with alpheus.create(f"file://{folder}") as catalog:
        fill(catalog)
        subprocess.run([sys.executable, "-c", script, catalog.url], check=True)
        assert catalog.admin.leases() == []


# --- looking at them -------------------------------------------------------------------------------


def test_leases_as_they_are_listed(catalog: Catalog) -> None:
    folder = Path(folder_of(catalog))

    def run(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(cli.cli, ["--catalog", f"file://{folder}", *words])
        assert result.exit_code == status, result.output
        return str(result.stdout)

    assert run("lease", "list") == ""
    assert run("--output", "json", "lease", "list") == "[]\n"
    with catalog.at(4, lease=60), catalog.at(3, lease=60):
        torn = folder / "lease" / "00000000-0000-4000-8000-000000000000.arrow"
        torn.write_bytes(b"torn")
        found = catalog.admin.leases()
        assert [(one.version, one.state) for one in found] == [(-1, "damaged"), (3, "held"), (4, "held")]
        assert all((one.runs_out_at - one.renewed_at).total_seconds() == 60 for one in found[1:])
        assert all((one.binds_until - one.renewed_at).total_seconds() == 120 for one in found[1:])
        assert found[0].id == torn.stem
        assert "lease/" in found[0].damage
        lines = [line.split()[:2] for line in run("lease", "list").splitlines()[1:]]
        assert lines == [["?", "damaged"], ["3", "held"], ["4", "held"]]
        listing = json.loads(run("--output", "json", "lease", "list"))
        assert [one["version"] for one in listing] == [-1, 3, 4]
        assert {path.stem for path in lease_files(str(folder))} == {one.id for one in found}
    assert torn.stem in run("--output", "json", "check", status=1)


@both_ways
def test_a_reader_without_a_lease_hears_that_its_version_has_expired(catalog: Catalog) -> None:
    """Not that the catalog is damaged, when its files are gone."""
    catalog.append("a.t", pa.table({"id": [7]}))
    version = catalog.version()
    snapshot = catalog.at(version)
    scan = snapshot.scan("a.t")
    catalog.overwrite("a.t", pa.table({"id": [8]}))
    catalog.create_namespace("z")
    folder = Path(folder_of(catalog))
    for path in folder.glob("data/*/*/*/*.parquet"):
        path.unlink()
    with pytest.raises(Corrupt):  # nothing has expired
        catalog.read("a.t", at=version)
    expire(catalog, below=version + 1)
    with pytest.raises(Expired, match=f"version {version}"):
        scan.to_arrow()
    with pytest.raises(Expired):
        snapshot.read("a.t")
    with pytest.raises(Corrupt):
        catalog.read("a.t")
