"""Staging ahead: the next version is built while the root of the one before is being stored. Nothing of the next
version is published or answered before the earlier version is known to be stored."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence

import pytest

from alpheus_daemon.serve.writer import Writer
from alpheus_journal.commit.base import Base
from alpheus_journal.commit.committer import Answer, Committer, Observer, Prepared
from alpheus_journal.commit.judge import Decided, Judged
from alpheus_journal.commit.publish import InFlight
from alpheus_journal.commit.staged import Staged
from alpheus_journal.errors import AlpheusError, Conflict, Corrupt, OutcomeUnknown, Unavailable
from alpheus_journal.format import version_file
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Committed
from alpheus_journal.model.operations import (
    AppendFiles,
    CancelTransaction,
    CreateNamespace,
    DropNamespace,
    Operation,
    Transaction,
    UpdateNamespace,
)
from alpheus_journal.model.operations import Writer as IdempotentWriter
from alpheus_journal.storage import Storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import (
    Called,
    Fault,
    FaultyStorage,
    InterleavedStorage,
    Lake,
    Violation,
    check_linearizable,
    check_witness,
    listed,
    model_of,
    put_rows,
    seeded,
)
from alpheus_journal.testing.latency import LatencyStorage
from alpheus_journal.testing.simulation.history import CatalogState, canonical, catalog_step
from alpheus_journal.testing.simulation.loop import SimulatedLoop


class HeldStorage(FaultyStorage):
    """Holds each root until the test decides its fate."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.roots: asyncio.Queue[asyncio.Future[AlpheusError | None]] = asyncio.Queue()

    async def create(self, path: str, data: bytes) -> None:
        verdict: asyncio.Future[AlpheusError | None] = asyncio.get_running_loop().create_future()
        self.roots.put_nowait(verdict)
        error = await verdict
        if error is not None:
            raise error
        await super().create(path, data)


async def turns(count: int = 300) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


class Rig:
    """A catalog with namespace `a`, a writer whose roots are held, and a second writer of the same catalog."""

    lake: Lake
    storage: HeldStorage
    journal: Journal
    other: Journal

    @classmethod
    async def make(cls, *, replayed: bool = True) -> Rig:
        self = cls()
        self.lake = Lake()
        self.other = await self.lake.create(order=3)
        for name in ("a", "b", "c", "d", "e"):
            await self.lake.commit(self.other, self.lake.namespace(name))
        self.storage = HeldStorage(self.lake.storage)
        self.journal = await self.lake.open(self.storage)
        if replayed:
            await self.journal.load_state()
        return self

    def of(self, *operations: Operation) -> Transaction:
        return self.lake.transaction(self.journal, *operations)

    async def send(
        self, *transactions: Transaction
    ) -> tuple[asyncio.Task[list[Answer]], asyncio.Future[AlpheusError | None]]:
        """Start a group, wait until its root is being stored, and return its call and the future that decides the
        root's fate."""
        task, is_sent = self.ahead(*transactions)
        await asyncio.wait({asyncio.ensure_future(is_sent.wait()), task}, return_when="FIRST_COMPLETED")
        assert is_sent.is_set(), task.result()
        return task, await self.storage.roots.get()

    def ahead(self, *transactions: Transaction) -> tuple[asyncio.Task[list[Answer]], asyncio.Event]:
        is_sent = asyncio.Event()
        call = self.journal.commit_group(transactions, deadline_seconds=0, on_publish=is_sent.set)
        return asyncio.ensure_future(call), is_sent

    async def sound(self) -> list[str]:
        """Check that the catalog is whole, and return the transaction ids of the log in order."""
        journal = await self.lake.open(self.lake.storage)
        found = [item async for item in journal.check()]
        assert isinstance(found[0], CheckSummary), found
        entries = [entry async for entry in journal.log(after=5)]
        return [entry.transaction.id for entry in reversed(entries)]


def told(answers: Sequence[Answer]) -> list[object]:
    return [
        a.version if isinstance(a, Committed) else a.kind if isinstance(a, AlpheusError) else None
        for a in answers
    ]


@pytest.mark.parametrize("replayed", [True, False])
async def test_the_next_version_is_made_while_the_root_before_it_is_on_its_way(replayed: bool) -> None:
    rig = await Rig.make(replayed=replayed)
    first = rig.of(rig.lake.namespace("new"))
    one, decide = await rig.send(first)
    uploaded = len(await listed(rig.lake.storage, "def/"))
    # The second group needs the namespace that the first one creates, which is not durable yet.
    second = rig.of(rig.lake.table("new", "t"), UpdateNamespace(name="a", set={"k": "v"}))
    two, is_sent = rig.ahead(second)
    await turns()
    assert len(await listed(rig.lake.storage, "def/")) == uploaded + 2
    assert not is_sent.is_set()
    assert rig.storage.roots.empty(), "one root at a time"
    assert not one.done()
    decide.set_result(None)
    assert told(await one) == [6]
    await is_sent.wait()
    (await rig.storage.roots.get()).set_result(None)
    assert told(await two) == [7]
    assert await rig.sound() == [first.id, second.id]


async def test_nobody_is_refused_while_another_process_has_newer_versions() -> None:
    """Retries and refusals stay correct while the reply to a root is late and another process commits."""
    rig = await Rig.make()
    replied, create = asyncio.Event(), rig.storage.create

    async def slow(path: str, data: bytes) -> None:
        await create(path, data)
        await replied.wait()

    rig.storage.create = slow  # type: ignore[method-assign]
    one, decide = await rig.send(rig.of(rig.lake.namespace("new")))
    decide.set_result(None)
    await turns()
    await rig.lake.commit(rig.other, rig.lake.namespace("late"))
    retry = rig.of(rig.lake.table("late", "t"))
    assert (await rig.other.commit(retry)).version == 8
    group = [retry, rig.of(DropNamespace(name="nowhere"))]
    two, is_sent = rig.ahead(*group)
    await turns()
    assert not two.done()
    replied.set()
    assert told(await one) == [6]
    assert told(await two) == [None, None]
    assert not is_sent.is_set()
    assert told(await rig.journal.commit_group(group)) == [8, "no_namespace"]


@pytest.mark.parametrize("fate", ["lost", "refused", "unknown"])
async def test_what_is_staged_on_a_version_that_is_not_won_is_dropped(fate: str) -> None:
    rig = await Rig.make()
    first, second = rig.of(rig.lake.namespace("one")), rig.of(rig.lake.namespace("two"))
    refused = rig.of(DropNamespace(name="nowhere"))
    one, decide = await rig.send(first)
    two, is_sent = rig.ahead(second, refused)
    await turns()
    if fate == "lost":
        await rig.lake.commit(rig.other, rig.lake.namespace("theirs"))
        decide.set_result(None)
    else:
        decide.set_result(Unavailable("away") if fate == "refused" else OutcomeUnknown("lost"))
    if fate == "unknown":
        (await rig.storage.roots.get()).set_result(OutcomeUnknown("lost again"))
    expected = {"lost": [None], "refused": ["storage_unavailable"], "unknown": ["reply_lost"]}
    answers = await one
    assert told(answers) == expected[fate]
    assert told(await two) == [None, None], "a refusal may rest on the first, too"
    assert not is_sent.is_set()
    assert rig.storage.roots.empty()
    # The members are judged again, in order, and get versions.
    again = asyncio.ensure_future(rig.journal.commit_group([first, second, refused], deadline_seconds=60))
    while not again.done():
        getter = asyncio.ensure_future(rig.storage.roots.get())
        await asyncio.wait({getter, again}, return_when="FIRST_COMPLETED")
        if getter.done():
            getter.result().set_result(None)
        getter.cancel()
    version = {"lost": 7, "refused": 6, "unknown": 6}[fate]
    if fate == "unknown":  # the first transaction was settled: it is in the log, and the others follow it
        assert told(again.result()) == [6, 7, "no_namespace"]
    else:
        assert told(again.result()) == [version, version, "no_namespace"]
    assert (await rig.sound())[-2:] == [first.id, second.id]


async def test_what_is_staged_when_a_doubt_is_found_is_dropped() -> None:
    rig = await Rig.make()
    one, decide = await rig.send(rig.of(rig.lake.namespace("one")))
    second = rig.of(rig.lake.namespace("two"))
    two, is_sent = rig.ahead(second)
    await turns()
    await rig.lake.storage.delete(version_file(2, 32))
    await rig.journal.follower.look_at_slots()
    decide.set_result(None)
    assert told(await one) == [6], "it was on its way"
    assert told(await two) == [None]
    assert not is_sent.is_set()
    assert told(await rig.journal.commit_group([second])) == ["history_replaced"]
    assert rig.storage.roots.empty()


@pytest.mark.parametrize("is_won", [True, False])
async def test_a_refusal_that_rests_on_a_staged_version_waits_for_it(is_won: bool) -> None:
    rig = await Rig.make()
    one, decide = await rig.send(rig.of(rig.lake.namespace("new"), DropNamespace(name="b")))
    group = [
        rig.of(rig.lake.namespace("new")),
        rig.of(UpdateNamespace(name="b", set={"k": "v"})),
        rig.of(DropNamespace(name="new-too")),
    ]
    two, _ = rig.ahead(*group)
    await turns()
    assert not two.done()
    decide.set_result(None if is_won else Unavailable("away"))
    await one
    expected = ["already_exists_now", "object_gone", "no_namespace"] if is_won else [None, None, None]
    got = told(await two)
    if is_won:
        durable = told(await rig.journal.commit_group(group))
        assert got == durable, "the same as if the first had been durable"
        assert got[2] == expected[2]
        assert None not in got
    else:
        assert got == expected


async def test_ids_and_keys_of_a_staged_version_are_not_judged_before_it() -> None:
    rig = await Rig.make()
    first = Transaction(
        id=rig.lake.identities.uuid7(), begin_version=5, key="job", operations=(rig.lake.namespace("n"),)
    )
    doomed = rig.of(rig.lake.namespace("doomed"))
    cancel = rig.of(CancelTransaction(transaction_id=doomed.id))
    one, decide = await rig.send(first, cancel)
    same_key = Transaction(
        id=rig.lake.identities.uuid7(), begin_version=5, key="job", operations=(rig.lake.namespace("m"),)
    )
    early = rig.lake.transaction(rig.journal, rig.lake.namespace("early"), begin=6)
    group = [first, same_key, doomed, early]
    two, _ = rig.ahead(*group)
    decide.set_result(None)
    assert told(await one) == [6, 6]
    assert told(await two) == [None, None, None, None]
    three = asyncio.ensure_future(rig.journal.commit_group(group))
    (await rig.storage.roots.get()).set_result(None)
    answers = await three
    assert told(answers) == [6, 6, "id_cancelled", 7]
    assert isinstance(answers[1], Committed)
    assert answers[1].transaction_id == first.id


async def test_a_sequence_of_a_staged_version_is_not_judged_before_it() -> None:
    rig = await Rig.make()
    table = rig.lake.table("a", "t")
    await rig.other.commit(rig.lake.transaction(rig.other, table))
    await rig.journal.refresh()

    async def append(sequence: int) -> Transaction:
        id = rig.lake.identities.uuid7()
        segment = await put_rows(
            rig.lake.storage, rig.lake.identities, table_id=table.table_id, transaction_id=id
        )
        operation = AppendFiles(namespace="a", name="t", table_id=table.table_id, segments=(segment,))
        return Transaction(
            id=id,
            begin_version=rig.journal.head.version,
            operations=(operation,),
            writer=IdempotentWriter(name="s", sequence=sequence),
        )

    one, decide = await rig.send(await append(7))
    group = [await append(7), await append(6), await append(8)]
    two, is_sent = rig.ahead(*group)
    await turns()
    decide.set_result(None)
    first = (await one)[0]
    assert isinstance(first, Committed)
    await asyncio.wait({asyncio.ensure_future(is_sent.wait()), two}, return_when="FIRST_COMPLETED")
    if is_sent.is_set():
        (await rig.storage.roots.get()).set_result(None)
    answers = await two
    assert told(answers) == [None, None, first.version + 1], "what rests on the staged version waits for it"
    # A later sequence that is being stored does not make the retry wait again.
    one, decide = await rig.send(await append(9))
    two, _ = rig.ahead(*group[:2])
    await turns()
    decide.set_result(None)
    assert told(await one) == [first.version + 2]
    for answer in await two:
        assert isinstance(answer, Committed)
        assert answer.duplicate
        assert answer.version == first.version + 1


async def test_another_writer_between_the_two() -> None:
    """The first group commits, another writer takes the next slot, and the second group is judged again."""
    rig = await Rig.make()
    one, decide = await rig.send(rig.of(rig.lake.namespace("one")))
    second = rig.of(rig.lake.namespace("two"))
    two, is_sent = rig.ahead(second)
    await turns()
    decide.set_result(None)
    (answer,) = await one
    assert isinstance(answer, Committed)
    await is_sent.wait()
    root = await rig.storage.roots.get()
    await rig.lake.commit(rig.other, rig.lake.namespace("theirs"))
    root.set_result(None)  # the second group's root, whose slot is taken now
    assert told(await two) == [None]
    three = asyncio.ensure_future(rig.journal.commit_group([second]))
    (await rig.storage.roots.get()).set_result(None)
    assert told(await three) == [8]
    await rig.sound()


async def test_a_lone_commit_waits_for_two_requests() -> None:
    """A commit uploads all its files concurrently, then its root. The writer looks up nothing that it already knows."""
    times: list[float] = []

    async def main(loop: SimulatedLoop) -> None:
        lake = Lake(LatencyStorage(MemoryStorage(), 0.02))
        await lake.create(order=3)
        journal = await lake.open()
        await journal.load_state()
        for name in "abcdefgh":
            began = loop.time()
            (answer,) = await journal.commit_group([lake.transaction(journal, lake.namespace(name))])
            assert isinstance(answer, Committed)
            times.append(loop.time() - began)

    loop = SimulatedLoop(1)
    await asyncio.to_thread(lambda: loop.run(main(loop)))
    assert times == pytest.approx([0.04] * 8)


@pytest.mark.parametrize(("ahead_count_min", "rounds"), [(0, 20), (1, 11)])
async def test_ten_groups_take_a_round_each_when_they_are_staged_ahead(
    ahead_count_min: int, rounds: int
) -> None:
    """The store needs two rounds of requests for a version: the files, then the root."""
    times: list[float] = []

    async def main(loop: SimulatedLoop) -> None:
        lake = Lake(LatencyStorage(MemoryStorage(), 0.02))
        await lake.create(order=3)
        journal = await lake.open()
        await journal.load_state()
        writer = Writer(
            journal,
            group_count_max=4,
            group_bytes_max=1 << 20,
            queue_count_max=100,
            queue_bytes_max=1 << 20,
            timeout_seconds=60.0,
            ahead_count_min=ahead_count_min,
            monotonic=loop.time,
        )
        tickets = [
            writer.enqueue(lake.transaction(journal, lake.namespace(f"n{number}"))) for number in range(40)
        ]
        running = asyncio.ensure_future(writer.run())
        began = loop.time()
        answers = [await ticket.answer for ticket in tickets]
        times.append(loop.time() - began)
        assert [answer.version for answer in answers] == [1 + number // 4 for number in range(40)]
        writer.close()
        await running

    loop = SimulatedLoop(1)
    await asyncio.to_thread(lambda: loop.run(main(loop)))
    assert times == pytest.approx([0.02 * rounds])


# --- several writers, whose history is checked


class Counts(Observer):
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def on_events(self, what: str, count: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + count


class Node:
    def __init__(self, journal: Journal, loop: SimulatedLoop, counts: Observer) -> None:
        self.journal = journal
        journal._committer.observer = counts
        self.writer = Writer(
            journal,
            group_count_max=3,
            group_bytes_max=1 << 20,
            queue_count_max=100,
            queue_bytes_max=1 << 20,
            timeout_seconds=5.0,
            ahead_count_min=1,
            monotonic=loop.time,
        )
        loop.create_task(self.writer.run()).add_done_callback(loop.must_succeed)


CLIENTS, NODES = 6, 2


def history_of(
    seed: int, *, rate: float, committer: type[Committer] = Committer, steps: int = 8
) -> dict[str, int]:
    """Run one history in virtual time and return counts of its events. Raise if the history has no serial order."""
    loop = SimulatedLoop(seed)
    counts = Counts()
    loop.run(_run(loop, seed, rate, counts, committer, steps))
    return counts.counts


async def _run(
    loop: SimulatedLoop, seed: int, rate: float, counts: Counts, committer: type[Committer], steps: int
) -> None:
    rng = random.Random(seed)
    memory = MemoryStorage()
    lake = Lake(memory, seed)
    await (await lake.create(order=3)).close()
    faults = [
        FaultyStorage(InterleavedStorage(memory, seed + n), clock=lake.clock, late_after=5)
        for n in range(NODES)
    ]
    nodes = []
    for storage in faults:
        journal = await lake.open(LatencyStorage(storage, 0.02, at_once=4))
        await journal.load_state()
        journal._committer.__class__ = committer
        nodes.append(Node(journal, loop, counts))
    for n, storage in enumerate(faults):
        lawful = [
            Fault.APPLIED_BUT_LOST,
            Fault.NOT_APPLIED_BUT_UNKNOWN,
            Fault.ANSWERED_409,
            Fault.ANSWERED_412,
        ]
        lawful += [Fault.FAIL_BEFORE, Fault.DUPLICATE_APPLY, Fault.APPLIED_LATE]
        storage.plan = seeded(seed * 10 + n, rate, faults=lawful, reads=False)
    calls: dict[str, Called] = {}
    answers: dict[str, Committed | AlpheusError] = {}
    reads: list[Called] = []

    async def client(number: int) -> None:
        node = nodes[number % NODES]
        for _ in range(steps):
            await asyncio.sleep(rng.random() * 0.05)
            if rng.random() < 0.25:
                invoked = loop.time()
                try:
                    version = (await node.journal.resolve(None)).version
                except Unavailable:
                    continue
                returned = loop.time()
                result = canonical(await model_of(node.journal, version))
                reads.append(
                    Called(
                        client=f"c{number}", is_commit=False, argument="model", result=result,
                        invoked=invoked, returned=returned, version=version,
                    )
                )  # fmt: skip
                continue
            name = rng.choice("abcd")
            operation: Operation = rng.choice(
                [
                    CreateNamespace(name=name, namespace_id=lake.identities.uuid4()),
                    UpdateNamespace(name=name, set={rng.choice("xy"): str(rng.random())}),
                    DropNamespace(name=name),
                ]
            )
            transaction = Transaction(
                id=lake.identities.uuid7(),
                begin_version=node.journal.head.version,
                operations=(operation,),
            )
            invoked, returned = loop.time(), math.inf
            try:
                answer: Committed | AlpheusError = await node.writer.submit(
                    transaction, size_bytes=100, source=f"c{number % 3}"
                )
            except AlpheusError as error:
                answer = error
            if isinstance(answer, Committed):
                returned = loop.time()
            answers[transaction.id] = answer
            calls[transaction.id] = Called(
                client=f"c{number}", is_commit=True, argument=(transaction.id, transaction.operations),
                invoked=invoked, returned=returned,
            )  # fmt: skip

    async with asyncio.TaskGroup() as tasks:
        for number in range(CLIENTS):
            tasks.create_task(client(number))
    for storage in faults:
        storage.plan = lambda call: None
        await storage.release()
    for node in nodes:
        await node.journal.commit_group([], deadline_seconds=60)  # settles a transaction
        node.writer.close()
    await _judge(await lake.open(memory), calls, answers, reads)


async def _judge(
    journal: Journal,
    calls: dict[str, Called],
    answers: dict[str, Committed | AlpheusError],
    reads: list[Called],
) -> None:
    found = [item async for item in journal.check()]
    assert isinstance(found[0], CheckSummary), found
    history = list(reads)
    committed: dict[str, int] = {}
    for version in range(1, journal.head.version + 1):
        event = await journal.event(version)
        for place, recorded in enumerate(event.transactions):
            assert recorded.id not in committed
            committed[recorded.id] = version
            call = calls[recorded.id]
            history.append(
                Called(
                    client=call.client, is_commit=True, argument=call.argument, invoked=call.invoked,
                    returned=call.returned, version=version, place=place,
                )
            )  # fmt: skip
    for id, answer in answers.items():
        if isinstance(answer, Committed):
            assert committed.get(id) == answer.version, f"{id} was told {answer.version}: {committed.get(id)}"
        elif not isinstance(answer, OutcomeUnknown):
            assert id not in committed, f"{id} is in {committed[id]} and was refused: {answer!r}"
            assert not isinstance(answer, Corrupt), answer
            if isinstance(answer, Conflict) and answer.transaction_id:
                assert committed.get(answer.transaction_id) == answer.version, f"{id}: {answer!r}"
    first = CatalogState(await model_of(journal, 0))
    end = check_witness(history, catalog_step({}), first)
    assert end.key == canonical(await model_of(journal))
    check_linearizable(history, catalog_step({}), first)


def test_histories_of_writers_that_stage_ahead(lane_count: Callable[[int, int], int]) -> None:
    totals: dict[str, int] = {}
    for seed in range(lane_count(24, 1000)):
        try:
            counts = history_of(seed, rate=(0.0, 0.05, 0.2)[seed % 3])
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        for what, count in counts.items():
            totals[what] = totals.get(what, 0) + count
    print(totals)
    for what in ("staged_ahead", "dropped_ahead", "lost_slot"):
        assert totals.get(what, 0) > 5, totals  # else the run tests nothing of it


class Impatient(Committer):
    """A broken committer: takes the version before for committed as soon as its root is sent."""

    async def _prepare_ahead(
        self, before: InFlight, transactions: Sequence[Transaction], since: float
    ) -> Prepared:
        staged, decided = await super()._prepare_ahead(before, transactions, since)
        if staged is None and not decided:
            for index, transaction in enumerate(transactions):
                decided[index] = Committed(
                    version=before.staged.head.version + 1,
                    transaction_id=transaction.id,
                    created_at_millis=0,
                    token="",
                )
        return Prepared(staged, decided)


class Talkative(Committer):
    """A broken committer: returns refusals that depend on a staged version although that version was lost."""

    _told: Decided

    async def _judge_on(self, base: Base, transactions: Sequence[Transaction]) -> Judged:
        judged = await super()._judge_on(base, transactions)
        if base.staged is not None:
            self._told = judged.decided
        return judged

    async def _prepare_ahead(
        self, before: InFlight, transactions: Sequence[Transaction], since: float
    ) -> Prepared:
        self._told = {}
        staged, _ = await super()._prepare_ahead(before, transactions, since)
        return Prepared(staged, self._told)


class Stubborn(Committer):
    """A broken committer: publishes its staged version in the next slot although the version before was lost."""

    _saved: Staged | None = None

    async def _upload(self, staged: Staged) -> Staged:
        self._saved = await super()._upload(staged)
        return self._saved

    async def _prepare_ahead(
        self, before: InFlight, transactions: Sequence[Transaction], since: float
    ) -> Prepared:
        self._saved = None
        staged, decided = await super()._prepare_ahead(before, transactions, since)
        return Prepared(staged or (self._saved if before.is_lost else None), decided)


@pytest.mark.parametrize("broken", [Impatient, Talkative, Stubborn])
def test_broken_variants_are_found(broken: type[Committer]) -> None:
    for seed in range(60):
        try:
            history_of(seed, rate=0.1, committer=broken)
        except (AssertionError, Violation, AlpheusError, ExceptionGroup) as error:
            print(f"{broken.__name__}: found after {seed + 1} seeds: {error!r}"[:300])
            return
    pytest.fail("not found in 60 seeds")
