"""Publishing the root of a version when its reply is lost: the questions asked, the time spent, the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from alpheus_journal.commit.publish import SETTLE_DELAY_MAX_SECONDS, SETTLE_DELAY_MIN_SECONDS
from alpheus_journal.errors import AlpheusError, AlreadyExists, Corrupt, OutcomeUnknown, Unavailable
from alpheus_journal.format import ObjectName, namespace_name, table_name
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Committed
from alpheus_journal.model.operations import AppendFiles, Transaction
from alpheus_journal.storage import Storage
from alpheus_journal.tables.manifest_merge import FANOUT
from alpheus_journal.testing import FakeClock, FaultyStorage, Lake, no_faults, put_rows, raises


class Scripted(FaultyStorage):
    """The first roots get these answers, in order: an error, or a call that runs before the root is sent."""

    def __init__(self, lake: Lake, *answers: AlpheusError | Callable[[], Awaitable[object]]) -> None:
        super().__init__(lake.storage, no_faults, clock=lake.clock)
        self.answers = list(answers)
        self.roots: list[tuple[str, bytes]] = []

    async def create(self, path: str, data: bytes) -> None:
        self.roots.append((path, data))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, AlpheusError):
            raise answer
        if answer is not None:
            await answer()
        await super().create(path, data)

    def paths(self, method: str, since: int) -> set[str]:
        """Return the paths that a method was called with after the first `since` calls."""
        return {record.call.path for record in self.log[since:] if record.call.method == method}


def lost() -> OutcomeUnknown:
    return OutcomeUnknown("no reply", kind="reply_lost")


async def made(lake: Lake, count: int = 6) -> Journal:
    """Create a catalog whose root has children. Return the journal that wrote it."""
    other = await lake.create(order=3)
    for number in range(count):
        await lake.commit(other, lake.namespace(f"n{number}"))
    return other


async def opened(lake: Lake, storage: Storage) -> tuple[Journal, FakeClock]:
    """Open a journal with its own clock, which counts only the journal's own sleeps."""
    clock = FakeClock()
    return await Journal.open(storage, clock=clock, identities=lake.identities), clock


async def ids_of(lake: Lake) -> dict[str, int]:
    """Check that the catalog is whole, and return the version of each transaction id."""
    journal = await lake.open()
    (summary,) = [item async for item in journal.check()]
    assert isinstance(summary, CheckSummary)
    return {entry.transaction.id: entry.version async for entry in journal.log()}


def versions(answers: list[Committed | AlpheusError | None]) -> list[object]:
    return [a.version if isinstance(a, Committed) else a.kind if a is not None else None for a in answers]


async def test_a_slot_that_another_writer_takes_while_it_is_settled_is_read_at_once() -> None:
    """The slot is free when the writer looks and taken when it sends again. The writer loses the slot without
    waiting."""
    lake = Lake()
    other = await made(lake)
    theirs = lake.transaction(other, lake.namespace("theirs"))
    storage = Scripted(lake, lost(), lambda: other.commit(theirs))
    journal, clock = await opened(lake, storage)
    mine = lake.transaction(journal, lake.namespace("mine"))
    before = journal.follower.foreign_count
    assert versions(await journal.commit_group([mine], deadline_seconds=60)) == [None]
    assert clock.sleeps == 0
    assert len(storage.roots) == 2
    assert journal.is_settled
    assert journal.head == other.head
    assert journal.follower.foreign_count == before + 1
    assert versions(await journal.commit_group([mine])) == [8]
    assert await ids_of(lake) | {theirs.id: 7, mine.id: 8} == await ids_of(lake)


async def test_a_free_slot_that_is_said_to_be_taken_is_asked_for_with_pauses() -> None:
    lake = Lake()
    await made(lake)
    taken = [AlreadyExists("409", kind="slot_taken") for _ in range(7)]
    storage = Scripted(lake, *taken)
    journal, clock = await opened(lake, storage)
    mine = lake.transaction(journal, lake.namespace("mine"))
    assert versions(await journal.commit_group([mine], deadline_seconds=600)) == [7]
    # The first attempt gets the first answer. A look follows every second attempt after that.
    assert clock.sleeps == 3
    assert len(set(storage.roots)) == 1
    assert len(storage.roots) == 8


async def test_the_slot_is_asked_for_again_later_and_later(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake()
    await made(lake)
    storage = Scripted(lake, *(lost() for _ in range(60)))
    journal, clock = await opened(lake, storage)
    slept: list[float] = []
    sleep = clock.sleep

    async def recorded(seconds: float) -> None:
        slept.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(clock, "sleep", recorded)
    mine = lake.transaction(journal, lake.namespace("mine"))
    began = clock.millis
    (answer,) = await journal.commit_group([mine], deadline_seconds=30)
    assert isinstance(answer, OutcomeUnknown)
    assert (answer.transaction_id, answer.version) == (mine.id, 7)
    assert "it is not known whether version 7 was written: no reply" in answer.message
    assert answer.hint
    assert began + 30_000 <= clock.millis < began + 30_000 + SETTLE_DELAY_MAX_SECONDS * 1000
    bounds = [min(SETTLE_DELAY_MIN_SECONDS * 2**n, SETTLE_DELAY_MAX_SECONDS) for n in range(len(slept))]
    assert all(bound / 2 <= seconds <= bound for bound, seconds in zip(bounds, slept, strict=True))
    shares = [seconds / bound for bound, seconds in zip(bounds, slept, strict=True)]
    assert max(shares) - min(shares) > 0.2, "writers that lost their replies together do not ask together"
    assert len(storage.roots) == len(slept) + 2, "one at first, and one before each pause and the end"
    assert not journal.is_settled
    storage.answers.clear()
    assert versions(await journal.commit_group([mine])) == [7]
    assert journal.is_settled


async def test_no_time_to_settle_is_one_more_attempt() -> None:
    lake = Lake()
    await made(lake)
    storage = Scripted(lake, lost(), lost())
    journal, clock = await opened(lake, storage)
    mine = lake.transaction(journal, lake.namespace("mine"))
    assert versions(await journal.commit_group([mine], deadline_seconds=0)) == ["reply_lost"]
    assert (len(storage.roots), clock.sleeps) == (2, 0)
    # The next group settles the version first, with as little time. After that the group is judged.
    next_one = lake.transaction(journal, lake.namespace("next"))
    assert versions(await journal.commit_group([next_one, mine], deadline_seconds=0)) == [8, 7]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_version_that_landed_without_a_reply_is_the_head(is_known: bool) -> None:
    """This holds when the follower meets the root first, and when the writer learns that the slot holds its own
    root."""
    lake = Lake()
    await made(lake)
    storage = Scripted(lake)
    journal, clock = await opened(lake, storage)

    async def lands() -> None:
        path, data = storage.roots[-1]
        await lake.storage.create(path, data)
        if not is_known:
            raise lost()

    storage.answers.append(lands)
    foreign, accepted = journal.follower.foreign_count, journal.follower.accepted_count
    mine = lake.transaction(journal, lake.namespace("mine"))
    assert versions(await journal.commit_group([mine], deadline_seconds=60)) == [7]
    assert journal.is_settled
    assert journal.head.version == 7
    assert journal.follower.foreign_count == foreign, "it is our own"
    assert journal.follower.accepted_count == accepted + 1
    assert clock.sleeps == 0
    event = journal.follower.known_event(7)
    assert event is not None
    assert [recorded.id for recorded in event.transactions] == [mine.id]
    assert versions(await journal.commit_group([lake.transaction(journal, lake.namespace("x"))])) == [8]


@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_slot_below_the_head_tells_whose_it_is(is_ours: bool) -> None:
    """A writer gets no reply; its own version or another writer's lands, and other writers continue above it."""
    lake = Lake()
    other = await made(lake)
    storage = Scripted(lake)
    journal, clock = await opened(lake, storage)

    async def lands_and_is_followed() -> None:
        path, data = storage.roots[-1]
        if is_ours:
            await lake.storage.create(path, data)
            await other.refresh()
        for name in ("one", "two"):
            await lake.commit(other, lake.namespace(name))
        raise lost()

    storage.answers.append(lands_and_is_followed)
    mine = lake.transaction(journal, lake.namespace("mine"))
    assert versions(await journal.commit_group([mine], deadline_seconds=60)) == [7 if is_ours else None]
    assert journal.is_settled
    assert clock.sleeps == 0
    assert len(storage.roots) == 1, "a slot that is taken is not written to"
    assert journal.head.version == other.head.version == (9 if is_ours else 8)
    assert versions(await journal.commit_group([mine])) == [7 if is_ours else 9]


async def test_a_refused_root_is_settled_and_shared_by_nobody() -> None:
    lake = Lake()
    await made(lake)
    storage = Scripted(lake, Unavailable("away"))
    journal, clock = await opened(lake, storage)
    group = [lake.transaction(journal, lake.namespace(name)) for name in "ab"]
    first, second = await journal.commit_group(group)
    assert isinstance(first, Unavailable)
    assert isinstance(second, Unavailable)
    assert first is not second
    assert journal.is_settled
    assert clock.sleeps == 0
    assert versions(await journal.commit_group(group)) == [7, 7]


async def test_a_way_is_announced_before_the_first_byte_and_once() -> None:
    lake = Lake()
    await made(lake)
    storage = Scripted(lake, lost())
    journal = await lake.open(storage)
    seen: list[int] = []
    mine = lake.transaction(journal, lake.namespace("mine"))
    answers = await journal.commit_group(
        [mine], deadline_seconds=60, on_publish=lambda: seen.append(len(storage.roots))
    )
    assert versions(answers) == [7]
    assert seen == [0]


async def test_what_is_staged_on_a_version_whose_sender_gave_up_is_dropped() -> None:
    """The first caller was cancelled, so the outcome of its root is unknown. The next caller learns that the root was
    not won."""
    lake = Lake()
    await made(lake)
    hanging = asyncio.Event()

    async def hang() -> None:
        hanging.set()
        await asyncio.Event().wait()

    storage = Scripted(lake, hang)
    journal = await lake.open(storage)
    first = lake.transaction(journal, lake.namespace("first"))
    second = lake.transaction(journal, lake.namespace("second"))
    one = asyncio.ensure_future(journal.commit_group([first]))
    await hanging.wait()
    two = asyncio.ensure_future(journal.commit_group([second]))
    await asyncio.sleep(0.01)
    one.cancel()
    assert versions(await two) == [None]
    assert not journal.is_settled
    assert versions(await journal.commit_group([second, first])) == [8, 7]
    assert await ids_of(lake) | {first.id: 7, second.id: 8} == await ids_of(lake)


@pytest.mark.parametrize("reply", ["told", "lost", "landed"])
async def test_what_was_just_written_is_not_read_again(reply: str) -> None:
    """Nodes and definitions of a version that this process wrote stay in memory, however the process learned its
    outcome."""
    lake = Lake()
    await made(lake)
    storage = Scripted(lake)
    journal = await lake.open(storage)

    async def lands() -> None:
        path, data = storage.roots[-1]
        await lake.storage.create(path, data)
        raise lost()

    storage.answers += {"told": [], "lost": [lost()], "landed": [lands]}[reply]
    names = [namespace_name(f"m{number}") for number in range(3)]
    before = len(storage.log)
    await journal.commit_group(
        [lake.transaction(journal, *(lake.namespace(name.namespace) for name in names))], deadline_seconds=60
    )
    written = storage.paths("put", before)
    assert sum(path.startswith("def/") for path in written) == len(names)
    assert sum(path.startswith("node/") for path in written) > 1
    before = len(storage.log)
    assert await found(journal, names) == len(names)
    assert len(await (await journal.follower.snapshot()).entries()) == 9
    assert not storage.paths("read", before) & written


async def found(journal: Journal, names: list[ObjectName]) -> int:
    objects: Mapping[ObjectName, object] = dict(
        zip(names, (await journal.load(None, names)).objects, strict=True)
    )
    return sum(stored is not None for stored in objects.values())


async def test_merged_manifest_segments_are_not_read_again() -> None:
    """A segment that a transaction brings is read once. A segment that the journal made is never read."""
    lake = Lake()
    other = await lake.create()
    create = lake.table("a", "t")
    await lake.commit(other, lake.namespace("a"), create)
    storage = Scripted(lake)
    journal = await lake.open(storage)
    brought: list[str] = []
    for number in range(2 * FANOUT + 3):
        id = lake.identities.uuid7()
        segment = await put_rows(lake.storage, lake.identities, table_id=create.table_id, transaction_id=id)
        brought.append(segment.path)
        append = AppendFiles(namespace="a", name="t", table_id=create.table_id, segments=(segment,))
        await journal.commit(Transaction(id=id, begin_version=1 + number, operations=(append,)))
    (stored,) = (await journal.load(None, [table_name("a", "t")])).objects
    assert stored is not None
    folder = brought[0].rpartition("/")[0]
    reads = [
        record.call.path
        for record in storage.log
        if record.call.method == "read" and record.call.path.startswith(folder)
    ]
    assert reads == brought


async def test_history_that_was_put_back_ends_writing_and_says_where() -> None:
    lake = Lake()
    await made(lake)
    journal = await lake.open()
    await lake.commit(journal, lake.namespace("mine"))
    for version in (6, 7):
        await lake.storage.delete(journal.follower.log.path(version))
    group = [lake.transaction(journal, lake.namespace(name)) for name in "ab"]
    for transaction, answer in zip(group, await journal.commit_group(group), strict=True):
        assert isinstance(answer, OutcomeUnknown)
        assert (answer.kind, answer.version) == ("history_replaced", 8)
        assert answer.transaction_id == transaction.id
        assert answer.message.startswith(
            "this commit, version 8 may be stored, but it was not acknowledged: "
        )
    error = await raises(Corrupt, journal.refresh(), kind="history_replaced")
    assert error.version in (6, 7)
    assert error.path == journal.follower.log.path(error.version or 0)
    assert error.message.startswith(f"version {error.version} was ")
    again = await journal.commit_group([*group, lake.transaction(journal, lake.namespace("c"))])
    assert [type(answer) for answer in again] == [OutcomeUnknown, OutcomeUnknown, Corrupt]


async def test_memory_has_what_was_just_published_as_the_store_has_it() -> None:
    lake = Lake()
    journal = await made(lake)
    await journal.load_state()
    await lake.commit(journal, lake.namespace("mine"))
    found = [
        (await each.load(None, [namespace_name("mine")])).objects for each in (journal, await lake.open())
    ]
    assert found[0] == found[1]
    assert found[0][0] is not None
