"""Faults of a store and its network that need no process of their own; FAULTS.md has the row of each test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from alpheus.aio import connect
from alpheus.errors import Corrupt as ClientCorrupt
from alpheus.errors import OutcomeUnknown as ClientUnknown
from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_journal import failpoints
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput, OutcomeUnknown, Unavailable
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Committed
from alpheus_journal.replay import follower
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Call, Fault, FaultyStorage, Lake, listed, model_of, raises
from alpheus_journal.testing.simulation.loop import Audit, LaxStorage


@pytest.fixture
def lake() -> Lake:
    return Lake()


@pytest.fixture
def looking_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every probe verify the head."""
    monkeypatch.setattr(follower, "HEAD_VERIFIED_SECONDS", -1.0)


async def findings(journal: Journal) -> list[object]:
    return [item async for item in journal.check() if not isinstance(item, CheckSummary)]


async def put_back(storage: MemoryStorage, journal: Journal, version: int) -> None:
    """Put the store back to its state at an older version."""
    for path in await listed(storage, "vn/"):
        if path not in {journal.follower.log.path(v) for v in range(version + 1)}:
            await storage.delete(path)


# --- row 6


@pytest.mark.parametrize("fault", [Fault.ANSWERED_503, Fault.FAIL_BEFORE])
@pytest.mark.parametrize("refused", [0, 3, 12, 10_000])
async def test_a_storm_of_refusals(lake: Lake, fault: Fault, refused: int) -> None:
    """During 503 and 429, commits are answered within the deadline, with growing pauses, and succeed as soon as it
    ends."""
    storage = FaultyStorage(lake.storage)
    await lake.create()
    journal = await lake.open(storage)
    left = refused

    def storm(call: object) -> Fault | None:
        nonlocal left
        left -= 1
        return fault if left >= 0 and not started else None

    started = True
    storage.plan = storm
    transaction = lake.transaction(journal, lake.namespace("a"))
    begin, calls = lake.clock.millis, len(storage.log)
    started = False
    try:
        await journal.commit(transaction, timeout_seconds=20)
    except (Unavailable, OutcomeUnknown):
        assert refused
    assert lake.clock.millis - begin < 23_000
    assert len(storage.log) - calls < 120, "it hammers a store that asks for mercy"
    left = 0
    committed = await journal.commit(transaction)
    assert committed.version == 1
    assert await findings(journal) == []


# --- row 20


@pytest.mark.parametrize("expired", [False, True])
async def test_a_writer_paused_over_many_versions(lake: Lake, expired: bool) -> None:
    """A paused root leaves when its slot is taken or a tombstone. It commits on the present head, or its begin has
    expired, and it overwrites nothing."""
    await (await lake.create()).close()
    audit = Audit(lake.storage)
    sleeper, others = await lake.open(audit), await lake.open(audit)
    transaction = lake.transaction(sleeper, lake.namespace("late"), begin=0)
    with failpoints.armed("commit.staged", "pause@1") as point:
        task = asyncio.ensure_future(sleeper.commit(transaction))
        await point.wait_for_hit()
        for number in range(50):
            await lake.commit(others, lake.namespace(f"n{number}"))
        assert not audit.violations
        if expired:
            await lake.expire(below=30)
        point.release()
        if expired:
            await raises(Expired, task)
        else:
            assert (await task).version == 51
    assert list(audit.slots) == [sleeper.follower.log.path(v) for v in range(1, 51 + (not expired))]
    # The journal works again from the head.
    await lake.commit(sleeper, lake.namespace("after"))
    reader = await lake.open()
    assert ("namespace late" in await model_of(reader)) is not expired
    assert await findings(reader) == []


# --- row 36


async def test_a_store_put_back_is_refused(lake: Lake, looking_at_once: None) -> None:
    journal = await lake.create()
    for number in range(8):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    assert isinstance(lake.storage, MemoryStorage)
    await put_back(lake.storage, journal, 5)
    error = await raises(Corrupt, journal.refresh(), kind="history_replaced")
    assert error.version == 8
    assert "version 8" in str(error)
    assert "put back" in str(error)
    # From now on nothing is read as the newest version, and nothing is written.
    before = await listed(lake.storage, "")
    for call in (
        journal.refresh(),
        journal.resolve(None),
        lake.commit(journal, lake.namespace("new")),
        anext(journal.events(after=8, follow=True)),
    ):
        await raises(Corrupt, call, kind="history_replaced")
    (answer,) = await journal.commit_group([lake.transaction(journal, lake.namespace("new"))])
    assert isinstance(answer, Corrupt)
    assert await listed(lake.storage, "") == before
    # A process that opens the store now works on its present content.
    fresh = await lake.open()
    assert (await lake.commit(fresh, lake.namespace("new"))).version == 6
    assert await findings(fresh) == []


async def test_a_store_put_back_and_written_on_is_refused(lake: Lake) -> None:
    """New versions of another history fill the slots above the known head. The journal finds this before it accepts
    the first of them, without waiting for the next verification."""
    journal = await lake.create()
    for number in range(8):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    assert isinstance(lake.storage, MemoryStorage)
    token = journal.head.token
    await put_back(lake.storage, journal, 5)
    other = await lake.open()
    for number in range(6):
        await lake.commit(other, lake.namespace(f"m{number}"))
    assert other.head.version == 11
    await raises(Corrupt, journal.refresh(), kind="history_replaced")
    assert journal.head.version == 8
    # The new history refuses a token of the old one.
    await raises(InvalidInput, anext(other.events(after=token)), kind="bad_token")


async def test_a_token_above_a_store_put_back(lake: Lake) -> None:
    journal = await lake.create()
    for number in range(8):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    assert isinstance(lake.storage, MemoryStorage)
    await put_back(lake.storage, journal, 5)
    fresh = await lake.open()
    error = await raises(InvalidInput, anext(fresh.events(after=journal.head.token)), kind="bad_token")
    assert "replaced" in str(error)


async def test_a_damaged_head_is_no_other_history(lake: Lake, looking_at_once: None) -> None:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    await lake.storage.put(journal.follower.log.path(1), b"damaged")
    assert (await journal.refresh()).version == 1


async def test_a_daemon_on_a_store_put_back(lake: Lake, looking_at_once: None) -> None:
    """Reads, commits and streams end with the same named error. The daemon logs it and stays up."""
    journal = await lake.create()
    for number in range(8):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await journal.load_state()
    assert isinstance(lake.storage, MemoryStorage)
    config = Config(
        url="memory://test", listen="127.0.0.1:0", poll_interval_max_ms=20, subscriber_heartbeat_seconds=0.1
    )
    async with running(config, journal) as address:
        catalog = await connect(f"grpc://{address}", storage=lake.storage)
        stream = catalog.events(after=7, follow=True)
        assert (await anext(stream)).version == 8
        await put_back(lake.storage, journal, 5)
        for call in (anext(stream), catalog.version(), _create(catalog)):
            error = await raises(ClientCorrupt, call)
            assert error.kind == "history_replaced"
        await catalog.close()
    fresh = await Journal.open(lake.storage)
    assert fresh.head.version == 5
    await findings(fresh)


async def test_a_client_of_a_daemon_that_writes_above_a_hole(lake: Lake) -> None:
    """The commit's outcome is unknown and it is not sent again; the next one is refused."""
    journal = await lake.create()
    for number in range(8):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    assert isinstance(lake.storage, MemoryStorage)
    config = Config(url="memory://test", listen="127.0.0.1:0")
    async with running(config, journal) as address:
        catalog = await connect(f"grpc://{address}", storage=lake.storage)
        await catalog.version()
        await put_back(lake.storage, journal, 5)
        error = await raises(ClientUnknown, _create(catalog), kind="history_replaced")
        assert error.transaction_id
        assert "is not there" in error.message
        assert await lake.storage.exists(journal.follower.log.path(9)), "slots are never freed"
        await raises(ClientCorrupt, _create(catalog), kind="history_replaced")
        assert not await lake.storage.exists(journal.follower.log.path(10))
        await catalog.close()


async def _create(catalog: object) -> None:
    async with catalog.transaction() as tx:  # type: ignore[attr-defined]
        await tx.create_namespace("new")


# --- row 37


async def test_a_catalog_deleted_and_made_again(lake: Lake) -> None:
    old = await lake.create()
    await lake.commit(old, lake.namespace("a"))
    token = old.head.token
    for path in await listed(lake.storage, ""):
        await lake.storage.delete(path)
    new = await lake.create()
    for name in "abc":
        await lake.commit(new, lake.namespace(name))
    error = await raises(InvalidInput, anext(new.events(after=token)), kind="bad_token")
    assert old.catalog_id in str(error)
    assert new.catalog_id in str(error)
    # A journal that has the old catalog open does not write into the new one.
    await raises(Corrupt, old.refresh(), kind="history_replaced")
    await raises(AlpheusError, lake.commit(old, lake.namespace("x")), kind="history_replaced")
    assert await findings(new) == []


# --- the instruments themselves


async def test_the_auditor_sees_what_must_never_happen() -> None:
    audit = Audit(LaxStorage(MemoryStorage()))
    await audit.create("vn/0", b"one")
    await audit.create("vn/0", b"two")
    await audit.put("vn/0", b"three")
    await audit.put("node/a.arrow", b"a")
    await audit.put("node/a.arrow", b"a")
    assert len(audit.violations) == 2
    await audit.put("node/a.arrow", b"b")
    await audit.delete("node/a.arrow")
    assert len(audit.violations) == 3
    await audit.delete("vn/0")
    assert len(audit.violations) == 4
    await audit.put("vn/latest", b"1")
    await audit.put("vn/latest", b"2")
    assert len(audit.violations) == 4


async def test_reads_that_fail_or_are_cut(lake: Lake) -> None:
    """A truncated body gives Corrupt, and the reader keeps nothing of it."""
    journal = await lake.create(order=3)
    for name in "abcdefgh":
        await lake.commit(journal, lake.namespace(name))
    whole = await model_of(journal, 5)
    for fault, expected in ((Fault.TRUNCATED, Corrupt), (Fault.FAIL_BEFORE, Unavailable)):
        number, hit = 0, "the first"
        while hit:  # the first, the second, ... read of a new reader
            hit = ""
            reads = itertools.count()

            def plan(
                call: Call,
                fault: Fault = fault,
                number: int = number,
                reads: Iterator[int] = reads,
            ) -> Fault | None:
                nonlocal hit
                if call.method != "read" or next(reads) != number:
                    return None
                hit = call.path
                return fault

            storage = FaultyStorage(lake.storage)
            reader = await lake.open(storage)
            storage.plan = plan
            told: AlpheusError | None = None
            try:
                assert await model_of(reader, 5) == whole
            except AlpheusError as error:
                told = error
            where = f"{fault}, read {number}, {hit}"
            if hit.startswith("def/ns/") and fault is Fault.TRUNCATED:
                # a namespace is verified before it is decoded: a truncated one is read again or reported
                assert told is None or isinstance(told, expected), where
            else:
                assert isinstance(told, expected) == bool(hit), f"{where}: {told!r}"
            storage.plan = lambda call: None
            assert await model_of(reader, 5) == whole
            number += 1
        assert number > 5, "roots, nodes, the catalog's definition, those of objects"


async def test_a_listing_that_breaks_off_is_no_whole_one(lake: Lake) -> None:
    storage = FaultyStorage(lake.storage, lambda call: Fault.CUT_LISTING if call.method == "list" else None)
    for number in range(10):
        await storage.put(f"node/{number}", b"x")
    await raises(Unavailable, listed(storage, "node/"))


async def test_an_absence_that_is_remembered_is_not_lawful(lake: Lake) -> None:
    """The fault that the start-up self-test must find: a created file is not visible afterwards."""
    storage = FaultyStorage(
        lake.storage, lambda call: Fault.STALE_404 if call.method in ("stat", "read") else None
    )
    await storage.create("vn/0", b"x")
    assert not await storage.exists("vn/0")
    await raises(AlpheusError, storage.read("vn/0", size_max=10), kind="no_file")


async def test_a_bug_at_any_point_of_a_commit_leaves_it_settled_or_sent_again(lake: Lake) -> None:
    """After an unexpected error at any point of a commit, the next commit settles it or sends it again."""
    for name in ("commit.staged", "commit.root_answered", "journal.ack", "log.slot_get"):
        world = Lake()
        journal = await world.create()
        transaction = world.transaction(journal, world.namespace("a"))
        if name == "log.slot_get":
            await world.commit(await world.open(), world.namespace("other"))
        with failpoints.armed(name, "raise@1") as point:
            with pytest.raises((failpoints.FailpointError, AlpheusError)):
                await journal.commit(transaction)
            assert point.hits
        answer = await journal.commit(transaction)
        assert isinstance(answer, Committed)
        assert answer.duplicate is (name in ("commit.root_answered", "journal.ack"))
        assert await findings(await world.open()) == []


async def test_a_slow_call_takes_the_time_of_its_clock(lake: Lake) -> None:
    storage = FaultyStorage(lake.storage, lambda call: Fault.SLOW, clock=lake.clock, slow_seconds=7)
    begin = lake.clock.millis
    await storage.create("vn/0", b"x")
    assert await storage.read("vn/0", size_max=1) == b"x"
    assert lake.clock.millis - begin == 14_000
