"""Commits on a store that loses replies, delays, repeats and refuses requests.

Each transaction is committed at most once. Its answer is definite, or OutcomeUnknown after the deadline. The writer
sends no second root while one is unsettled.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from alpheus_journal.errors import AlpheusError, AlreadyExists, Conflict, OutcomeUnknown, Unavailable
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Committed
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.storage import Storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import (
    Call,
    FakeClock,
    Fault,
    FaultyStorage,
    InterleavedStorage,
    Plan,
    SeededIdentities,
    no_faults,
    raises,
    seeded,
)
from alpheus_journal.testing.faults import FITTING


class Rig:
    """A catalog of one namespace, a writer on a faulty store, and another writer on the store itself."""

    clock: FakeClock
    identities: SeededIdentities
    inner: MemoryStorage
    storage: FaultyStorage
    writer: Journal
    other: Journal

    @classmethod
    async def make(cls, seed: int = 0, *, late_after: int | None = None) -> Rig:
        self = cls()
        self.clock = FakeClock()
        self.identities = SeededIdentities(seed, self.clock)
        self.inner = MemoryStorage()
        await Journal.create(self.inner, order=3, clock=self.clock, identities=self.identities)
        self.storage = FaultyStorage(self.inner, late_after=late_after)
        self.writer = await self.open(self.storage)
        self.other = await self.open(self.inner)
        for number in range(4):  # the root gets children, so that a commit writes nodes too
            await self.other.commit(self.transaction(f"base{number}"))
        await self.writer.refresh()
        return self

    async def open(self, storage: Storage) -> Journal:
        return await Journal.open(storage, clock=self.clock, identities=self.identities)

    def transaction(self, name: str, begin: int = 0) -> Transaction:
        return Transaction(
            id=self.identities.uuid7(),
            begin_version=begin,
            operations=(CreateNamespace(name=name, namespace_id=self.identities.uuid4()),),
        )

    def fail_next(self, faults: dict[str, list[Fault]]) -> None:
        """Let the next calls of each method meet these faults in order, and later calls none."""
        rest = {method: list(some) for method, some in faults.items()}

        def plan(call: Call) -> Fault | None:
            return rest[call.method].pop(0) if rest.get(call.method) else None

        self.storage.plan = plan

    async def log(self) -> dict[str, int]:
        """Return the version by transaction id from the store itself. Check that ids are unique and the catalog is
        sound."""
        journal = await Journal.open(self.inner)
        entries = [(entry.transaction.id, entry.version) async for entry in journal.log()]
        assert len(dict(entries)) == len(entries), "committed twice"
        (summary,) = [item async for item in journal.check()]
        assert isinstance(summary, CheckSummary)
        return dict(entries)

    def creates(self) -> list[tuple[str, Fault | None]]:
        return [(r.call.path, r.fault) for r in self.storage.log if r.call.method == "create"]


FAULTS = sorted(FITTING["create"], key=lambda fault: fault.value)
AMBIGUOUS = [fault for fault in Fault if fault is not Fault.FAIL_BEFORE]


@pytest.mark.parametrize(
    "faults", [[a] for a in FAULTS] + [list(p) for p in itertools.product(FAULTS, FAULTS)]
)
async def test_one_commit_whose_publish_fails(faults: list[Fault]) -> None:
    rig = await Rig.make(late_after=3)
    rig.fail_next({"create": faults})
    transaction = rig.transaction("new")
    for fault in faults:
        if fault is not Fault.FAIL_BEFORE:
            break
        await raises(Unavailable, rig.writer.commit(transaction))
        assert rig.writer.is_settled
        assert transaction.id not in await rig.log()
    committed = await rig.writer.commit(transaction)
    assert not committed.duplicate
    assert rig.writer.is_settled
    assert (await rig.log())[transaction.id] == committed.version == 5
    assert (await rig.writer.commit(transaction)).duplicate
    await rig.other.commit(rig.transaction("after"))
    await rig.storage.release()
    assert (await rig.log())[transaction.id] == 5


@pytest.mark.parametrize("fault", sorted(FITTING["put"], key=lambda fault: fault.value))
@pytest.mark.parametrize("number", range(4))
async def test_one_upload_fails(fault: Fault, number: int) -> None:
    rig = await Rig.make()
    rig.fail_next({"put": [fault if n == number else None for n in range(4)]})  # type: ignore[misc]
    transaction = rig.transaction("new")
    try:
        await rig.writer.commit(transaction)
    except Unavailable:
        assert fault not in (Fault.DUPLICATE_APPLY, Fault.SLOW)
        assert rig.writer.is_settled
        assert transaction.id not in await rig.log()
    committed = await rig.writer.commit(transaction)
    assert (await rig.log())[transaction.id] == committed.version == 5


@pytest.mark.parametrize("fault", [Fault.APPLIED_LATE, Fault.NOT_APPLIED_BUT_UNKNOWN])
@pytest.mark.parametrize("winner", ["mine", "other"])
async def test_a_late_root_and_another_writer(fault: Fault, winner: str) -> None:
    """The delayed root lands before or after another writer takes the slot, and the writer sees it when it asks
    again."""
    rig = await Rig.make()
    transaction, rival = rig.transaction("new"), rig.transaction("rival")
    steps: list[str] = []

    async def sleep(seconds: float) -> None:
        """Run the rival between the lost reply and the next attempt."""
        rig.clock.millis += int(seconds * 1000)
        if not steps:
            if winner == "mine":
                await rig.storage.release()
            await rig.other.commit(rival)
            await rig.storage.release()
            steps.append("done")

    rig.clock.sleep = sleep  # type: ignore[method-assign]
    # The attempt is unknown, then the lookup of the slot's holder fails once.
    rig.fail_next({"create": [fault], "stat": [Fault.FAIL_BEFORE]})
    stats = 0
    plan = rig.storage.plan

    def later(call: Call) -> Fault | None:
        # The first stat is the refresh of `commit`: only the one after the publish fails.
        nonlocal stats
        if call.method == "stat":
            stats += 1
            if stats < 2:
                return None
        return plan(call)

    rig.storage.plan = later
    committed = await rig.writer.commit(transaction)
    assert steps
    log = await rig.log()
    mine_first = winner == "mine" and fault is Fault.APPLIED_LATE
    assert (log[transaction.id], log[rival.id]) == ((5, 6) if mine_first else (6, 5))
    assert committed.version == log[transaction.id]


async def test_the_same_bytes_go_to_the_same_slot_until_it_is_settled() -> None:
    rig = await Rig.make()
    sent: list[tuple[str, bytes]] = []
    create = rig.inner.create

    async def recording(path: str, data: bytes) -> None:
        sent.append((path, data))
        await create(path, data)

    async def lost(path: str, data: bytes) -> None:
        sent.append((path, data))
        raise OutcomeUnknown("lost", path=path)

    rig.storage.create = lost  # type: ignore[method-assign]
    waiting = rig.transaction("first")
    (answer,) = await rig.writer.commit_group([waiting], deadline_seconds=5)
    assert isinstance(answer, OutcomeUnknown)
    assert answer.transaction_id == waiting.id
    assert answer.hint
    assert not rig.writer.is_settled
    assert rig.clock.sleeps >= 3
    # Nothing else is sent while the root is unsettled, and a request with the same id gets the same answer.
    other = rig.transaction("second")
    answers = await rig.writer.commit_group([other, waiting], deadline_seconds=5)
    assert answers[0] is None
    assert isinstance(answers[1], OutcomeUnknown)
    assert answers[1].transaction_id == waiting.id
    error = await raises(Unavailable, rig.writer.commit(other, timeout_seconds=1))
    assert other.id in str(error)
    assert len(set(sent)) == 1, "other bytes, or another slot"
    assert len(sent) > 5
    rig.storage.create = recording  # type: ignore[method-assign]
    assert (await rig.writer.commit(other)).version == 6
    assert len(set(sent)) == 2
    assert (await rig.writer.commit(waiting)).version == 5
    assert await rig.log() | {waiting.id: 5, other.id: 6} == await rig.log()


async def test_outcome_unknown_only_after_the_deadline() -> None:
    rig = await Rig.make()
    begin = rig.clock.millis
    rig.storage.plan = lambda call: Fault.NOT_APPLIED_BUT_UNKNOWN if call.method == "create" else None
    await raises(OutcomeUnknown, rig.writer.commit(rig.transaction("a"), timeout_seconds=30))
    assert begin + 30_000 <= rig.clock.millis < begin + 33_000


async def test_a_store_that_says_taken_of_a_free_slot_does_not_spin() -> None:
    """A 409 for a free slot makes the writer read, wait and repeat the same request."""
    rig = await Rig.make()

    async def taken(path: str, data: bytes) -> None:
        raise AlreadyExists("409", kind="slot_taken", path=path)

    rig.storage.create = taken  # type: ignore[method-assign]
    await raises(OutcomeUnknown, rig.writer.commit(rig.transaction("a"), timeout_seconds=5))
    assert rig.clock.sleeps < 50
    del rig.storage.create  # type: ignore[method-assign]
    assert (await rig.writer.commit(rig.transaction("b"))).version == 6


@pytest.mark.parametrize("lands", [False, True])
async def test_cancelled_at_any_point(lands: bool) -> None:
    """The next commit settles a commit that was cancelled at any point."""
    outcomes = set()
    for steps in range(40):
        rig = await Rig.make(steps)
        journal = await rig.open(InterleavedStorage(rig.inner, steps, pauses_max=2))
        if not lands:
            # The reply never comes: the cancelled call hangs in the publish.
            real = rig.inner.create
            hanging = asyncio.Event()

            async def hang(path: str, data: bytes, hanging: asyncio.Event = hanging) -> None:
                await hanging.wait()

            rig.inner.create = hang  # type: ignore[method-assign]
        cancelled, after = rig.transaction("cancelled"), rig.transaction("after")
        task = asyncio.ensure_future(journal.commit(cancelled))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        unsettled = not journal.is_settled
        if not lands:
            rig.inner.create = real  # type: ignore[method-assign]
        committed = await journal.commit(after)
        assert journal.is_settled
        log = await rig.log()
        assert log[after.id] == committed.version
        assert (cancelled.id in log) >= unsettled, "the unsettled one was not settled first"
        again = await journal.commit(cancelled)
        assert again.duplicate == (cancelled.id in log)
        assert (await rig.log())[cancelled.id] == again.version
        outcomes.add((unsettled, cancelled.id in log))
    assert (True, True) in outcomes
    assert (False, False) in outcomes


async def test_a_group_shares_the_outcome() -> None:
    for fault in FAULTS:
        rig = await Rig.make(late_after=2)
        rig.fail_next({"create": [fault]})
        group = [rig.transaction(f"n{number}") for number in range(5)]
        answers = await rig.writer.commit_group(group)
        log = await rig.log()
        if fault is Fault.FAIL_BEFORE:
            assert all(isinstance(answer, Unavailable) for answer in answers)
            assert len({id(answer) for answer in answers}) == 5, "each raises its own"
            assert not log.keys() & {t.id for t in group}
        else:
            assert [a.version for a in answers if isinstance(a, Committed)] == [5] * 5
            assert all(log[t.id] == 5 for t in group)


@pytest.mark.parametrize("reads", [False, True])
async def test_storms(reads: bool, lane_count: Callable[[int, int], int]) -> None:
    """Every call of two concurrent writers may fail in any way: commits are exactly once and answers are definite."""
    seen: dict[str, int] = {}
    for seed in range(lane_count(12, 3000)):
        rig = await Rig.make(seed)
        stores, plans = [], []
        for number in range(2):
            storage = FaultyStorage(rig.inner, no_faults, late_after=5 + seed % 20)
            stores.append(storage)
            plan: Plan = seeded(seed * 2 + number, 0.15, reads=reads)
            plans.append(plan)
        writers = [await rig.open(InterleavedStorage(storage, seed + n)) for n, storage in enumerate(stores)]
        for storage, plan in zip(stores, plans, strict=True):
            storage.plan = plan
        answers: dict[str, object] = {}

        async def write(
            journal: Journal, number: int, rig: Rig = rig, answers: dict[str, object] = answers
        ) -> None:
            for step in range(6):
                # Some names collide on purpose.
                transaction = rig.transaction(f"n{step}" if step % 3 == 0 else f"w{number}s{step}", begin=4)
                for _ in range(4):
                    try:
                        answers[transaction.id] = await journal.commit(transaction, timeout_seconds=1)
                    except AlpheusError as error:
                        if isinstance(error, Unavailable) and isinstance(
                            answers.get(transaction.id), OutcomeUnknown
                        ):
                            continue  # about the second request only; it says nothing about the first
                        answers[transaction.id] = error
                        if isinstance(error, OutcomeUnknown | Unavailable):
                            continue
                    break

        await asyncio.gather(*(write(journal, number) for number, journal in enumerate(writers)))
        for storage in stores:
            storage.plan = no_faults
        # The next commit settles whatever is unsettled, before late copies land.
        for number, journal in enumerate(writers):
            await journal.commit(rig.transaction(f"last{number}"))
            assert journal.is_settled
        for storage in stores:
            await storage.release()
        log = await rig.log()
        for id, answer in answers.items():
            seen[type(answer).__name__] = seen.get(type(answer).__name__, 0) + 1
            if isinstance(answer, Committed):
                assert log[id] == answer.version
            elif not isinstance(answer, OutcomeUnknown):
                assert isinstance(answer, AlpheusError)
                assert id not in log, f"answered {answer!r}, and it is there"
    assert seen["Committed"] > 100
    assert seen["Conflict"] > 10
    assert seen.keys() & {"OutcomeUnknown", "Unavailable"}


async def test_a_conflict_found_while_settling_is_answered() -> None:
    rig = await Rig.make()
    mine, theirs = rig.transaction("same"), rig.transaction("same")
    rig.fail_next({"create": [Fault.NOT_APPLIED_BUT_UNKNOWN]})
    refresh = rig.writer.follower.refresh
    calls = 0

    async def late_refresh() -> object:
        nonlocal calls
        calls += 1
        if calls == 2:  # after the lost reply
            await rig.other.commit(theirs)
        return await refresh()

    rig.writer.follower.refresh = late_refresh  # type: ignore[method-assign,assignment]
    error = await raises(Conflict, rig.writer.commit(mine), kind="already_exists_now")
    assert error.transaction_id == theirs.id
    assert not error.retryable
    assert error.version == 5
    log = await rig.log()
    assert theirs.id in log
    assert mine.id not in log
