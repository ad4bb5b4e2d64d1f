"""The start-up self-test: the stores that it accepts and refuses, its words, its callers and its times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from alpheus_test_servers import S3Server

from alpheus_daemon.config import Config
from alpheus_daemon.main import open_journal
from alpheus_journal.clock import RandomIdentities, SystemClock
from alpheus_journal.errors import (
    AlpheusError,
    Denied,
    InvalidInput,
    NotEmpty,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.journal import Journal
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.storage import ObjectInfo, Storage, open_storage
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.storage.suitability import (
    LEFTOVER_AGE_MILLIS_MAX,
    RACERS,
    REQUESTS,
    SCRATCH_FOLDER,
    forget_proofs,
    prove,
    prove_once,
)
from alpheus_journal.testing import (
    Call,
    FakeClock,
    Fault,
    FaultyStorage,
    InterleavedStorage,
    SeededIdentities,
    listed,
    raises,
    seeded,
)


async def open_local(path: str, *, create: bool = False) -> LocalStorage:
    return await asyncio.to_thread(LocalStorage, path, create)


async def try_out(storage: Storage, clock: FakeClock | None = None) -> None:
    clock = clock or FakeClock()
    await prove(storage, SeededIdentities(1, clock), clock)


@pytest.fixture(autouse=True)
def _anew() -> None:
    forget_proofs()


# --- stores that keep the rules


async def test_a_store_that_keeps_the_rules_passes_and_is_left_as_it_was(tmp_path: Path) -> None:
    for storage in (MemoryStorage(), await open_local(str(tmp_path / "lake"), create=True)):
        await storage.put("vn/latest", b"7")
        await try_out(storage)
        assert set(await listed(storage, "")) == {"vn/latest"}
        await storage.close()


@pytest.mark.parametrize("seed", range(10))
async def test_the_order_of_its_requests_does_not_matter(seed: int) -> None:
    inner = MemoryStorage()
    await try_out(InterleavedStorage(inner, seed))
    assert await listed(inner, "") == {}


async def test_its_cost() -> None:
    storage = FaultyStorage(MemoryStorage())
    await try_out(storage)
    assert len(storage.log) == REQUESTS
    assert all(record.call.path.startswith(SCRATCH_FOLDER) for record in storage.log)


@pytest.mark.parametrize("seed", range(20))
async def test_failures_that_pass_are_not_the_store_s_fault(seed: int) -> None:
    """Lost replies and late or repeated deliveries may happen, and none of them makes a store unsuitable."""
    inner = MemoryStorage()
    faults = [Fault.FAIL_BEFORE, Fault.APPLIED_BUT_LOST, Fault.NOT_APPLIED_BUT_UNKNOWN]
    storage = FaultyStorage(inner, seeded(seed, 0.15, faults=faults, reads=False))
    await try_out(storage)
    assert await listed(inner, "") == {}


async def test_a_store_that_is_away_is_not_judged() -> None:
    clock = FakeClock()
    for fault in (Fault.FAIL_BEFORE, Fault.NOT_APPLIED_BUT_UNKNOWN):
        plan = {"create": fault}
        storage = FaultyStorage(MemoryStorage(), lambda call, plan=plan: plan.get(call.method))  # type: ignore[misc]
        await raises(Unavailable, try_out(storage, clock))
    assert clock.sleeps > 0


async def test_leftovers_of_killed_processes_go_after_a_day() -> None:
    now = 1_800_000_000_000
    storage = MemoryStorage(clock=lambda: now)
    await storage.put("selftest/old/race-0", b"")
    now += 1000
    await storage.put("selftest/young/race-0", b"")
    now += LEFTOVER_AGE_MILLIS_MAX
    await try_out(storage)
    assert set(await listed(storage, "")) == {"selftest/young/race-0"}


# --- stores with one fault each


class Odd(Storage):
    """A store in front of memory. A subclass changes one behaviour."""

    def __init__(self) -> None:
        self.inner = MemoryStorage()
        self.url = "memory://odd"

    async def read(self, path: str, *, size_max: int) -> bytes:
        return await self.inner.read(path, size_max=size_max)

    async def stat(self, path: str) -> ObjectInfo | None:
        return await self.inner.stat(path)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self.inner.list(prefix):
            yield info

    async def create(self, path: str, data: bytes) -> None:
        await asyncio.sleep(0)
        await self.inner.create(path, data)

    async def put(self, path: str, data: bytes) -> None:
        await self.inner.put(path, data)

    async def delete(self, path: str) -> None:
        await self.inner.delete(path)

    def uri(self, path: str) -> str:
        return self.inner.uri(path)


class IgnoresTheCondition(Odd):
    async def create(self, path: str, data: bytes) -> None:
        await self.inner.put(path, data)


class ChecksThenWrites(Odd):
    """The condition of `create` holds only for creators that come one after the other."""

    async def create(self, path: str, data: bytes) -> None:
        if await self.inner.exists(path):
            await self.inner.create(path, data)
        await asyncio.sleep(0)
        await self.inner.put(path, data)


class LastRacerWins(Odd):
    """One racer's create succeeds, and another racer's bytes stay."""

    async def create(self, path: str, data: bytes) -> None:
        try:
            await self.inner.create(path, data)
        except AlpheusError:
            if b"offer" in data:
                await self.inner.put(path, data)
            raise


class RefusedCreatesChangeTheFile(Odd):
    async def create(self, path: str, data: bytes) -> None:
        try:
            await self.inner.create(path, data)
        except AlpheusError:
            if b"later" in data:
                await self.inner.put(path, data)
            raise


class TearsCreates(Odd):
    async def create(self, path: str, data: bytes) -> None:
        await self.inner.create(path, data[: len(data) // 2])


class KeepsNothing(Odd):
    async def read(self, path: str, *, size_max: int) -> bytes:
        return await self.inner.read("never/there", size_max=size_max)


class RemembersAbsence(Odd):
    """A client that asked for a missing file gets the same answer for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.absent: set[str] = set()

    async def read(self, path: str, *, size_max: int) -> bytes:
        if path in self.absent or not await self.inner.exists(path):
            self.absent.add(path)
            return await self.inner.read("never/there", size_max=size_max)
        return await self.inner.read(path, size_max=size_max)


class RemembersAbsenceOfStat(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.absent: set[str] = set()

    async def stat(self, path: str) -> ObjectInfo | None:
        info = await self.inner.stat(path)
        if info is None or path in self.absent:
            self.absent.add(path)
            return None
        return info


class ListsLate(Odd):
    """A listing shows the files of one write ago."""

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        entries = [info async for info in self.inner.list(prefix)]
        for info in entries[1:]:
            yield info


class ListsTheDeleted(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.gone: dict[str, ObjectInfo] = {}

    async def delete(self, path: str) -> None:
        info = await self.inner.stat(path)
        if info is not None:
            self.gone[path] = info
        await self.inner.delete(path)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self.inner.list(prefix):
            yield info
        for path, info in self.gone.items():
            if path.startswith(prefix):
                yield info


class LosesDeletes(Odd):
    async def delete(self, path: str) -> None:
        return


class KeepsDeletedNames(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.gone: set[str] = set()

    async def delete(self, path: str) -> None:
        self.gone.add(path)
        await self.inner.delete(path)

    async def create(self, path: str, data: bytes) -> None:
        if path in self.gone:
            await self.inner.put("vn/0", b"")
            await self.inner.create("vn/0", data)
        await self.inner.create(path, data)


class TearsOverwrites(Odd):
    """Half of the new file exists for a moment."""

    async def put(self, path: str, data: bytes) -> None:
        await self.inner.put(path, data[: len(data) // 2])
        await asyncio.sleep(0)
        await self.inner.put(path, data)


class OverwritesLate(Odd):
    """A read returns the version before."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[str, bytes] = {}

    async def put(self, path: str, data: bytes) -> None:
        await self.inner.put(path, self.waiting.get(path, data))
        self.waiting[path] = data


class TruncatesReads(Odd):
    async def read(self, path: str, *, size_max: int) -> bytes:
        return (await self.inner.read(path, size_max=size_max))[:100]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            IgnoresTheCondition,
            f"{RACERS} of {RACERS} racing creators of one file got the answer that they won",
        ),
        (ChecksThenWrites, f"{RACERS} of {RACERS} racing creators of one file got the answer that they won"),
        (LastRacerWins, "the bytes of a creator that was refused"),
        (RefusedCreatesChangeTheFile, "a refused create changed the existing file"),
        (TearsCreates, "mixed bytes"),
        (KeepsNothing, "missing, although one creator got the answer that it won"),
        (RemembersAbsence, "remembers the missing file"),
        (RemembersAbsenceOfStat, "remembers the missing file"),
        (ListsLate, "written files are not listed"),
        (ListsTheDeleted, "a deleted file is still listed"),
        (LosesDeletes, "a deleted file still exists"),
        (KeepsDeletedNames, "the name of a deleted file is still taken"),
        (TearsOverwrites, "neither the old nor the new file"),
        (OverwritesLate, "still has its old bytes"),
        (TruncatesReads, "mixed bytes"),
    ],
)
async def test_one_fault(make: Callable[[], Odd], told: str) -> None:
    storage = make()
    await storage.inner.put("vn/latest", b"7")
    error = await raises(InvalidInput, try_out(storage), kind="storage_unsuitable")
    assert told in str(error)
    assert storage.url in str(error)
    assert "choose a store with conditional writes" in error.hint
    left = set(await listed(storage.inner, "")) - {"vn/0"}
    assert left == {"vn/latest"} or make is LosesDeletes, "it left files behind"


async def test_cleaning_after_a_finding_does_not_hide_it() -> None:
    class LockedToo(IgnoresTheCondition):
        async def delete(self, path: str) -> None:
            raise Denied("no deleting here")

    await raises(InvalidInput, try_out(LockedToo()), kind="storage_unsuitable")


async def test_deletes_that_are_denied() -> None:
    class Locked(Odd):
        async def delete(self, path: str) -> None:
            raise Denied("no deleting here", path=path)

    error = await raises(Denied, prove_once(Locked(), "locked"))
    assert "cannot be written with these credentials: no deleting here" in str(error)
    assert "self_test=false" in error.hint


@pytest.mark.parametrize("seconds", [3600, -3600, 120, -120])
async def test_a_store_with_another_clock(seconds: int) -> None:
    storage = MemoryStorage(clock=lambda: SystemClock().now_millis() + seconds * 1000)
    error = await raises(InvalidInput, prove_once(storage, "off"), kind="clock_skew")
    assert ("behind" if seconds > 0 else "ahead of") in error.message
    assert await listed(storage, "") == {}
    storage._clock = SystemClock().now_millis  # type: ignore[method-assign, assignment]
    await prove_once(storage, "off")


async def test_whole_seconds_are_no_other_clock() -> None:
    clock = FakeClock()
    for off, seen in ((0, 0), (-999, 0), (-1_000, -1), (5_000, 5_000), (-70_000, -69_001)):
        storage = MemoryStorage(clock=lambda off=off: clock.now_millis() + off)  # type: ignore[misc]
        assert await prove(storage, SeededIdentities(1, clock), clock) == seen


# --- callers of the self-test


class Proving(Odd):
    """A driver that proves itself, and counts the proofs."""

    def __init__(self, failure: AlpheusError | None = None) -> None:
        super().__init__()
        self.failure = failure
        self.proofs = 0
        self.created: list[str] = []

    async def prove(self) -> None:
        self.proofs += 1
        if self.failure is not None:
            raise self.failure

    async def create(self, path: str, data: bytes) -> None:
        self.created.append(path)
        await super().create(path, data)


def transaction(journal: Journal, name: str) -> Transaction:
    identities = RandomIdentities()
    return Transaction(
        id=identities.uuid7(),
        begin_version=journal.head.version,
        operations=(CreateNamespace(name=name, namespace_id=identities.uuid4()),),
        principal="test",
    )


async def test_once_a_process_and_store() -> None:
    storage = FaultyStorage(MemoryStorage())
    await prove_once(storage, "here")
    count = len(storage.log)
    await prove_once(storage, "here")
    assert len(storage.log) == count
    await prove_once(storage, "there")
    assert len(storage.log) == 2 * count


async def test_stores_in_front_of_another_pass_it_on() -> None:
    class Far(Proving):
        @property
        def clock_offset_millis(self) -> int | None:
            return 70_000

        async def enclosing(self, paths: Sequence[str]) -> str:
            return "memory://around"

    for wrap in (FaultyStorage, lambda inner: InterleavedStorage(inner, 1)):
        inner = Far(Denied("no"))
        storage = wrap(inner)
        await raises(Denied, storage.prove())
        assert inner.proofs == 1
        assert await storage.enclosing(["vn/0"]) == "memory://around"
        assert storage.clock_offset_millis == 70_000
        inner.failure = None
        await raises(InvalidInput, Journal.create(storage), kind="nested_catalog")


async def test_a_writer_asks_the_store_s_clock() -> None:
    class Clocked(Odd):
        offset: int | None = None
        fresh: int | None = None

        @property
        def clock_offset_millis(self) -> int | None:
            return self.offset

        async def stat(self, path: str) -> ObjectInfo | None:
            self.offset = self.fresh
            return await super().stat(path)

    for wrap in (lambda inner: inner, FaultyStorage):
        storage = Clocked()
        storage.fresh = 60_001
        await raises(InvalidInput, Journal.create(wrap(storage)), kind="clock_skew")
        assert await listed(storage, "") == {}
        storage.fresh = -60_000
        journal = await Journal.create(wrap(storage))
        await journal.load_state()
        for offset, fresh in ((-60_001, -60_001), (90_000, 61_000)):
            storage.offset, storage.fresh = offset, fresh
            before = await listed(storage, "")
            await raises(InvalidInput, journal.commit(transaction(journal, "a")), kind="clock_skew")
            assert await listed(storage, "") == before
            assert journal.is_settled
        storage.offset, storage.fresh = 90_000, None  # an old answer, and a store that gives no new one
        await journal.commit(transaction(journal, "a"))
        storage.offset, storage.fresh = 90_000, 60_000
        await journal.commit(transaction(journal, "b"))
        await journal.close()


async def test_what_failed_is_tried_again() -> None:
    storage = IgnoresTheCondition()
    for _ in range(2):
        await raises(InvalidInput, prove_once(storage, "here"), kind="storage_unsuitable")


async def test_creating_a_catalog_proves_the_store_before_it_writes() -> None:
    storage = Proving(InvalidInput("no", kind="storage_unsuitable"))
    await raises(InvalidInput, Journal.create(storage), kind="storage_unsuitable")
    assert storage.created == []
    assert await listed(storage, "") == {}
    storage = Proving()
    await (await Journal.create(storage)).close()
    assert storage.proofs == 1


async def test_readers_do_not_prove_and_writers_do_before_they_publish() -> None:
    storage = Proving()
    await Journal.create(storage)
    storage.proofs = 0
    storage.created.clear()
    journal = await Journal.open(storage)
    await journal.load_state()
    assert (await journal.info()).version == 0
    assert storage.proofs == 0
    for failure in (InvalidInput("no", kind="storage_unsuitable"), Denied("no"), Unavailable("no")):
        storage.failure = failure
        await raises(type(failure), journal.commit(transaction(journal, "a")), kind=failure.kind)
        assert storage.created == []
        assert journal.is_settled
    storage.failure = None
    await journal.commit(transaction(journal, "a"))
    assert len(storage.created) == 1


async def test_scratch_files_of_another_process_do_not_fill_a_place() -> None:
    """Two processes create the same catalog concurrently. The second process meets the first one's running
    self-test."""
    storage = MemoryStorage()
    await storage.put("selftest/3b7c/race-0", b"")
    journal = await Journal.create(storage)
    assert journal.head.version == 0
    other = MemoryStorage()
    await other.put("selftests/x", b"")
    await raises(NotEmpty, Journal.create(other), kind="directory_not_empty")


async def test_an_unknown_outcome_inside_it_is_not_one_of_the_commit() -> None:
    def plan(call: Call) -> Fault | None:
        return Fault.NOT_APPLIED_BUT_UNKNOWN if call.path.startswith(SCRATCH_FOLDER) else None

    error = await raises(Unavailable, try_out(FaultyStorage(MemoryStorage(), plan)))
    assert not isinstance(error, OutcomeUnknown)


# --- URLs that never reach a driver


@pytest.mark.parametrize(
    "url",
    ["s3://[x/y", "lmdb://[", "s3://bucket/%FF", "gs://bucket/a%80?x=1", "file:///lake/%ff", "/lake/\udcff"],
)
def test_a_url_that_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="is not a catalog URL") as caught:
        open_storage(url)
    assert caught.value.kind == "bad_url"


# --- catalogs inside catalogs, on local disks (object stores: test_storage_object_store.py)


async def test_a_directory_inside_another_catalog(tmp_path: Path) -> None:
    await (await Journal.create(await open_local(str(tmp_path / "x"), create=True))).close()
    for place in ("x/y", "x/data/y/z"):
        storage = await open_local(str(tmp_path / place), create=True)
        error = await raises(InvalidInput, Journal.create(storage), kind="nested_catalog")
        assert str(tmp_path / "x") in str(error)
        await storage.close()
    (tmp_path / "short").symlink_to(tmp_path / "x" / "y")
    storage = await open_local(str(tmp_path / "short"))
    await raises(InvalidInput, Journal.create(storage), kind="nested_catalog")
    await storage.close()
    await (await Journal.create(await open_local(str(tmp_path / "xy"), create=True))).close()


async def test_a_directory_around_another_catalog(tmp_path: Path) -> None:
    await (
        await Journal.create(await open_local(str(tmp_path / "a" / "x"), create=True), version_digits=64)
    ).close()
    storage = await open_local(str(tmp_path))
    error = await raises(InvalidInput, Journal.create(storage), kind="nested_catalog")
    assert "in the folder a/x" in str(error)
    await storage.close()


# --- real servers


@pytest.mark.parametrize("client", ["aiobotocore", "obstore"])
async def test_a_real_server_passes(s3_server: S3Server, client: str) -> None:
    storage = open_storage(s3_server.url(client=client))
    await storage.prove()
    await prove(storage, SeededIdentities(1, FakeClock()), FakeClock())
    assert await listed(storage, "") == {}
    await storage.close()


@pytest.mark.parametrize("client", ["aiobotocore", "obstore"])
async def test_rclone_is_refused(rclone_server: S3Server, client: str) -> None:
    """rclone's S3 server ignores the condition."""
    url = rclone_server.url(client=client)
    storage = open_storage(url)
    error = await raises(InvalidInput, Journal.create(storage), kind="storage_unsuitable")
    assert "racing creators of one file got the answer that they won" in str(error)
    # Not even a delete is final on rclone: a racer's file may return a moment later.
    assert not {path for path in await listed(storage, "") if not path.startswith(SCRATCH_FOLDER)}
    await storage.close()


async def test_a_daemon_refuses_to_start_on_it(rclone_server: S3Server) -> None:
    """The daemon refuses with a catalog and without one."""
    url = rclone_server.url("daemon", client="obstore")
    await raises(InvalidInput, open_journal(Config(url=url, create=True)), kind="storage_unsuitable")
    journal = await Journal.create(
        open_storage(rclone_server.url("daemon", client="obstore", self_test="false"))
    )
    await journal.close()
    await raises(InvalidInput, open_journal(Config(url=url)), kind="storage_unsuitable")
    journal = await Journal.open(open_storage(url))  # a reader needs fewer promises
    assert journal.head.version == 0
    await journal.close()


@pytest.mark.parametrize("client", ["aiobotocore", "obstore"])
async def test_the_self_test_can_be_left_out(rclone_server: S3Server, client: str) -> None:
    """The caller takes the risk: this store loses commits."""
    storage = open_storage(rclone_server.url(client=client, self_test="false"))
    journal = await Journal.create(storage)
    assert "self_test=false" in storage.url
    await journal.close()
