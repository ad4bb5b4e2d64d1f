"""Maintenance: what it writes and when, what it logs and counts, and that it blocks nothing."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from alpheus_daemon import maintenance as maintenance_module
from alpheus_daemon.config import Config, read_config
from alpheus_daemon.main import open_journal, running
from alpheus_daemon.maintenance import Maintenance
from alpheus_daemon.telemetry import logs as telemetry
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import Corrupt, InvalidInput, Unavailable
from alpheus_journal.journal import Journal
from alpheus_journal.log.index_runs import FOLDER, last_version
from alpheus_journal.model.operations import Operation, Transaction, UpdateCatalog
from alpheus_journal.replay.loader import CheckpointInfo
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, listed, raises


class Store(MemoryStorage):
    """A store whose checkpoint folder can fail or never answer."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.hangs = False

    async def put(self, path: str, data: bytes) -> None:
        if path.startswith(FOLDER):
            if self.is_away:
                raise Unavailable(f"{path} cannot be written now")
            if self.hangs:
                await asyncio.Event().wait()
        await super().put(path, data)


class Watch:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Lock:
    """A catalog and the maintenance of one daemon on it."""

    def __init__(self, lake: Lake, journal: Journal, **settings: float) -> None:
        self.lake = lake
        self.journal = journal
        self.watch = Watch()
        self.maintenance = self.of(journal, **settings)

    def of(self, journal: Journal, **settings: float) -> Maintenance:
        bounds: dict[str, Any] = {
            "checkpoint_versions": 100,
            "checkpoint_minutes": 15,
            "drift_check_seconds": 0,
        }
        return Maintenance(journal, **bounds | settings, monotonic=self.watch, randomness=random.Random(0))

    @classmethod
    async def make(cls, **settings: float) -> Lock:
        lake = Lake(Store())
        journal = await lake.create()
        await journal.load_state()
        return cls(lake, journal, **settings)

    async def commit(self, count: int = 1) -> None:
        for _ in range(count):
            operation: Operation = UpdateCatalog(set={"k": "v"})
            await self.lake.commit(self.journal, operation)

    async def stored(self) -> Counter[str]:
        paths = await listed(self.lake.storage, FOLDER)
        return Counter("run" if last_version(path) is not None else "checkpoint" for path in paths)


@pytest.fixture
async def lock() -> Lock:
    return await Lock.make()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the log as dicts."""
    # A logger keeps the configuration of its first use, perhaps in another test.
    monkeypatch.setattr(maintenance_module, "log", telemetry.logger())
    telemetry.set_level("info")  # the level of the whole process, which another test may have raised
    with structlog.testing.capture_logs() as entries:
        yield entries


Told = list[MutableMapping[str, Any]]


def events(told: Told) -> list[str]:
    return [entry["event"] for entry in told if entry["event"] != "drift_check"]


async def test_it_writes_after_so_many_versions(lock: Lock, told: Told) -> None:
    step = lock.maintenance.step
    await step()
    await lock.commit(80)
    await step()
    assert await lock.stored() == {}
    await lock.commit(40)
    await step()
    assert await lock.stored() == {"checkpoint": 1, "run": 1}
    assert events(told) == ["checkpoint_written", "index_run_written"]
    assert told[0]["version"] == told[1]["version"] == 120
    assert {"objects_count", "size_bytes", "deleted_count", "took_ms"} <= told[0].keys()
    assert {"written_count", "runs_count", "entries_count", "took_ms"} <= told[1].keys()
    await step()
    await lock.commit(80)
    await step()
    assert len(told) == 2
    jobs = {job.name: (job.done_count, job.last_version, job.last_error) for job in lock.maintenance.jobs}
    assert jobs == {
        "checkpoint": (1, 120, ""), "index_run": (1, 120, ""), "drift_check": (0, 0, ""), "comparison": (0, 0, ""),
        "tags": (0, 0, ""), "expiry": (0, 0, ""), "collection": (0, 0, ""), "healing": (0, 0, ""),
    }  # fmt: skip


async def test_it_writes_after_so_long_if_there_was_a_commit(lock: Lock, told: Told) -> None:
    step = lock.maintenance.step
    lock.watch.seconds += 3600
    await step()
    assert await lock.stored() == {}, "nothing changed"
    await lock.commit()
    await step()
    assert await lock.stored() == {"checkpoint": 1, "run": 1}
    await lock.commit()
    lock.watch.seconds += 700
    await step()
    assert len(told) == 2
    lock.watch.seconds += 300
    await step()
    assert len(told) == 4


async def test_it_keeps_what_settings_say(lock: Lock) -> None:
    lock.journal.replay.checkpoints_kept = 2
    lock.maintenance.configure(checkpoint_versions=5, checkpoint_minutes=15, drift_check_seconds=0)
    for _ in range(8):
        await lock.commit(6)
        await lock.maintenance.step()
    stored = await lock.stored()
    assert stored["checkpoint"] == 2
    assert 1 <= stored["run"] <= 4
    assert lock.journal.index.stored_version == 48


async def test_many_ids_are_stored_however_few_their_versions(lock: Lock, told: Told) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance_module, "INDEX_ENTRIES_MAX", 20)
        await lock.commit(19)
        await lock.maintenance.step()
        assert events(told) == []
        await lock.commit()
        await lock.maintenance.step()
        assert events(told) == ["index_run_written"]
        assert lock.journal.index.memory_entries_count == 0


async def test_daemons_do_not_write_at_the_same_time(lock: Lock) -> None:
    due: set[int] = set()
    for seed in range(20):
        maintenance = Maintenance(
            lock.journal,
            checkpoint_versions=100,
            checkpoint_minutes=15,
            drift_check_seconds=0,
            monotonic=lock.watch,
            randomness=random.Random(seed),
        )
        due.add(next(n for n in range(200) if maintenance.checkpoints.has_seen(n, 100)))
    assert len(due) > 5
    assert due <= set(range(90, 112))


async def test_a_failure_is_told_once_counted_and_tried_later(lock: Lock, told: Told) -> None:
    store = lock.lake.storage
    assert isinstance(store, Store)
    store.is_away = True
    await lock.commit(120)
    attempts = []
    for _ in range(400):
        before = lock.maintenance.checkpoints.failures_count
        await lock.maintenance.step()
        if lock.maintenance.checkpoints.failures_count > before:
            attempts.append(lock.watch.seconds)
        lock.watch.seconds += 10
    waits = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert waits[0] <= 20
    assert sorted(waits[:6]) == waits[:6]
    assert 800 <= waits[-1] <= 1010
    assert events(told) == ["checkpoint_failed", "index_run_failed"]
    assert {entry["log_level"] for entry in told} == {"warning"}
    assert told[0]["kind"] == "storage_unavailable"
    assert "cannot be written" in lock.maintenance.checkpoints.last_error
    store.is_away = False
    lock.watch.seconds += 1000
    await lock.maintenance.step()
    assert sorted(events(told)[2:]) == sorted(
        ["checkpoint_written", "checkpoint_works_again", "index_run_written", "index_run_works_again"]
    )
    assert lock.maintenance.checkpoints.last_error == ""
    assert await lock.stored() == {"checkpoint": 1, "run": 1}


async def test_a_bug_in_it_harms_nobody(lock: Lock, told: Told) -> None:
    called = asyncio.Event()

    class Broken(Journal):
        async def write_index(self) -> int:
            called.set()
            raise ZeroDivisionError

    lock.journal.__class__ = Broken
    await lock.commit(120)
    task = asyncio.ensure_future(lock.maintenance.run())
    await called.wait()
    await asyncio.sleep(0)
    assert lock.maintenance.index_runs.failures_count == 1
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    (entry,) = [entry for entry in told if entry["event"] == "index_run_failed"]
    assert isinstance(entry["exc_info"], ZeroDivisionError)


async def test_what_was_scanned_is_stored_after_the_start(told: Told) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance_module, "OBJECTS_MIN", 3)
        patch.setattr(maintenance_module, "START_VERSIONS_MIN", 5)
        lock = await Lock.make()
        for name in "abcd":
            await lock.lake.commit(lock.journal, lock.lake.namespace(name))
        await lock.commit(3)
        again = await lock.lake.open()
        await again.load_state()
        await lock.of(again).step()
        assert await lock.stored() == {"checkpoint": 1, "run": 1}
        # The next daemon starts from them and has nothing to write.
        third = await lock.lake.open()
        await third.load_state()
        del told[:]
        await lock.of(third).step()
        assert events(told) == []
        assert third.replay.counts.loads_from_checkpoint == 1
        assert third.index.runs_count == 1


async def test_the_end_writes_what_is_worth_it(told: Told) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance_module, "STOP_VERSIONS_MIN", 10)
        lock = await Lock.make()
        await lock.commit(10)
        await lock.maintenance.finish(5.0)
        assert await lock.stored() == {}
        await lock.commit()
        await lock.maintenance.finish(5.0)
        assert await lock.stored() == {"checkpoint": 1, "run": 1}
        # A few versions that changed a tenth of the objects.
        for name in "abcd":
            await lock.lake.commit(lock.journal, lock.lake.namespace(name))
        del told[:]
        await lock.maintenance.finish(5.0)
        assert events(told) == [], "a catalog of so few is scanned as fast"
        patch.setattr(maintenance_module, "OBJECTS_MIN", 4)
        await lock.maintenance.finish(5.0)
        assert events(told) == ["checkpoint_written"]


async def test_the_end_waits_for_nothing(told: Told) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance_module, "STOP_VERSIONS_MIN", 10)
        lock = await Lock.make()
        store = lock.lake.storage
        assert isinstance(store, Store)
        await lock.commit(20)
        store.hangs = True
        await lock.maintenance.finish(0.01)
        assert "checkpoint_abandoned_at_stop" in events(told)
        assert "index_run_left_at_stop" in events(told)
        store.hangs = False
        lock.maintenance.checkpoints.last_seconds = 60
        del told[:]
        await lock.maintenance.finish(5.0)
        assert events(told) == ["checkpoint_left_at_stop", "index_run_written"]
        await lock.commit(20)
        del told[:]
        await lock.maintenance.finish(0)
        assert events(told) == ["checkpoint_left_at_stop", "index_run_left_at_stop"]


async def test_drift_is_told_and_mended(told: Told) -> None:
    lock = await Lock.make(drift_check_seconds=60)
    for name in "ab":
        await lock.lake.commit(lock.journal, lock.lake.namespace(name))
    maintenance = lock.maintenance
    await maintenance.step()
    assert maintenance.drift_checks.done_count == 0
    for _ in range(3):
        lock.watch.seconds += 70
        await maintenance.step()
    assert (maintenance.drift_checks.done_count, maintenance.drifts_count) == (3, 0)
    # The state loses an object; the index loses a version.
    state = lock.journal.state
    assert state is not None
    other = await lock.lake.open()
    await other.load_state()
    assert other.state is not None
    lock.journal.follower.state = await _without_last(lock.lake)
    lock.journal.follower.state.version = state.version
    lock.watch.seconds += 70
    await maintenance.step()
    assert maintenance.drifts_count == 1
    assert "state_drift" in events(told)
    drift = await lock.journal.check_symbols()
    assert drift.differences == 0


async def test_a_sole_writer_that_is_not_alone_is_told_so_by_the_drift_check() -> None:
    lock = await Lock.make(drift_check_seconds=60)
    lock.journal.sole_writer = True
    other = await lock.lake.open()
    await lock.lake.commit(other, lock.lake.namespace("a"))
    assert (await lock.journal.latest()).version == 0  # it does not probe
    lock.watch.seconds += 70
    await lock.maintenance.step()
    assert (lock.journal.head.version, lock.journal.follower.foreign_count) == (1, 1)


async def test_memory_that_was_left_is_mended_at_the_next_step(told: Told) -> None:
    """Invalidated memory is rebuilt without regular checks too, and its checkpoint is not kept."""
    lock = await Lock.make()
    await lock.commit(120)
    await lock.maintenance.step()
    assert await lock.stored() == {"checkpoint": 1, "run": 1}
    lock.journal.replay.invalidate("something else")
    assert lock.journal.state is None
    await lock.maintenance.step()
    assert lock.journal.state is not None
    assert (await lock.stored())["checkpoint"] == 0
    assert lock.maintenance.drifts_count == 1
    (entry,) = [entry for entry in told if entry["event"] == "state_drift"]
    assert entry["what"] == "something else"
    await lock.maintenance.step()
    assert events(told).count("state_drift") == 1


async def test_memory_is_mended_whatever_becomes_of_the_checks(told: Told) -> None:
    lock = await Lock.make(drift_check_seconds=60)

    class Broken(Journal):
        async def look_for_others(self) -> None:
            raise Unavailable("no look is possible")

    lock.journal.__class__ = Broken
    lock.journal.replay.invalidate("something else")
    lock.watch.seconds += 70
    await lock.maintenance.step()
    assert lock.maintenance.drift_checks.failures_count == 1
    assert lock.journal.state is not None
    assert not lock.journal.replay.needs_rebuild
    lock.journal.replay.invalidate("again, before the checks are tried again")
    await lock.maintenance.step()
    assert lock.journal.state is not None
    assert lock.maintenance.healings.done_count == 2


async def test_a_state_that_was_lost_is_loaded_later_and_told(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage fails, and versions expire before a daemon has read them."""
    lock = await Lock.make()
    other = await lock.lake.open()
    for name in "abcdef":
        await lock.lake.commit(other, lock.lake.namespace(name))
    await lock.lake.expire(below=6)
    scan = lock.journal.replay._from_tree
    is_away = True

    async def fails(*args: Any) -> Any:
        if is_away:
            raise Unavailable("the tree cannot be read now")
        return await scan(*args)

    monkeypatch.setattr(lock.journal.replay, "_from_tree", fails)
    assert (await lock.journal.refresh()).version == 6
    for _ in range(3):
        await lock.maintenance.step()
        lock.watch.seconds += 1
    assert lock.journal.state is None
    assert lock.maintenance.healings.failures_count == 1, "it waits between its attempts"
    assert events(told) == ["state_lost", "healing_failed"]
    assert "the tree cannot be read now" in told[0]["why"]
    is_away = False
    lock.watch.seconds += 20
    await lock.maintenance.step()
    assert lock.journal.state is not None
    assert len(lock.journal.state) == 6
    assert events(told) == ["state_lost", "healing_failed", "state_lost", "healing_works_again"]
    assert lock.maintenance.drifts_count == 0


async def test_after_a_reload_the_state_is_stored_again() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance_module, "OBJECTS_MIN", 2)
        lock = await Lock.make()
        for name in "abc":
            await lock.lake.commit(lock.journal, lock.lake.namespace(name))
        before = await lock.journal.checkpoint()
        await lock.journal.reload_symbols()
        assert await lock.stored() == {}
        await lock.maintenance.step()
        (path,) = await listed(lock.lake.storage, FOLDER)
        assert path != before.path


async def _without_last(lake: Lake) -> Any:
    """Return the state before the newest version."""
    journal = await lake.open()
    follower = journal.follower
    follower.head = follower._head_of(await follower.log.read(follower.head.version - 1))
    return await journal.load_state()


async def test_an_index_that_lies_is_found(told: Told) -> None:
    lock = await Lock.make(drift_check_seconds=60)
    await lock.commit(30)
    index = lock.journal.index
    assert index._fresh.first == 1
    index._fresh._entries.clear()
    for _ in range(10):
        await lock.commit()
        lock.watch.seconds += 70
        await lock.maintenance.step()
    assert "index_drift" in events(told)
    assert lock.maintenance.drifts_count == 1
    (first,) = [e async for e in lock.journal.log(after=0, until=1)]
    outcome = await lock.journal.outcome(first.transaction.id)
    assert outcome.commit is not None


async def test_runs_that_cannot_be_used_are_told_once(lock: Lock, told: Told) -> None:
    await lock.commit(120)
    await lock.maintenance.step()
    (path,) = [path for path in await listed(lock.lake.storage, FOLDER) if last_version(path)]
    await lock.lake.storage.put(path, b"nothing")
    other = await lock.lake.open()
    await other.load_state()
    maintenance = lock.of(other)
    del told[:]
    for _ in range(2):
        await other.write_index()
        await lock.lake.storage.put(path, b"nothing")
    assert events(told) == ["index_run_refused"]
    assert told[0]["path"] == path
    assert told[0]["kind"] == "corrupt_index"
    assert maintenance.index_runs.failures_count == 0


async def test_a_daemon_maintains_its_catalog(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance_module, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(maintenance_module, "STOP_VERSIONS_MIN", 1)
    storage = MemoryStorage.named("maintained")
    try:
        config = Config(
            url="memory://maintained", listen="127.0.0.1:0", create=True, checkpoint_versions=10,
            drift_check_seconds=0.001,
        )  # fmt: skip
        journal = await open_journal(config)
        indexed, stored = asyncio.Event(), asyncio.Event()

        class Telling(Journal):
            async def write_index(self) -> int:
                count = await super().write_index()
                if count:
                    indexed.set()
                return count

            async def checkpoint(self, *, verify: bool = False) -> CheckpointInfo:
                info = await super().checkpoint(verify=verify)
                stored.set()
                return info

        journal.__class__ = Telling
        identities = RandomIdentities()

        async def commit(count: int) -> None:
            for _ in range(count):
                operations = (UpdateCatalog(set={"k": "v"}),)
                await journal.commit(
                    Transaction(id=identities.uuid7(), begin_version=0, operations=operations)
                )

        async with running(config, journal):
            await commit(12)
            await indexed.wait()
            await stored.wait()
            first = len(await listed(storage, FOLDER))
            await commit(3)
        assert first == 2
        assert events(told).count("checkpoint_written") == 2
        assert journal.index.stored_version == 15
        await journal.close()
    finally:
        MemoryStorage.forget("maintained")


def test_a_cache_folder_that_is_not_there(tmp_path: Path) -> None:
    flags = {"url": "memory://x", "cache_dir": str(tmp_path)}
    assert read_config(flags, {}).cache_dir == str(tmp_path)
    with pytest.raises(InvalidInput, match=r"--cache-dir: .* is not a folder"):
        read_config(flags | {"cache_dir": str(tmp_path / "none")}, {})


async def test_a_replaced_history_is_not_stored_over(lock: Lock, told: Told) -> None:
    await lock.commit(120)
    lock.journal.follower._replaced = ("replaced", 120)
    await lock.maintenance.step()
    assert events(told) == ["checkpoint_failed", "index_run_failed"]
    assert {(entry["kind"], entry["log_level"]) for entry in told} == {("history_replaced", "error")}
    assert await lock.stored() == {}
    await raises(Corrupt, lock.journal.write_index(), kind="history_replaced")
