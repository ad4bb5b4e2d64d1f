"""Group commit: what is grouped, which members fail alone, and the state after a cancellation or a shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from alpheus_daemon.serve import writer as writer_module
from alpheus_daemon.serve.writer import Writer
from alpheus_journal.commit.committer import Observer
from alpheus_journal.errors import (
    AlpheusError,
    Conflict,
    Exhausted,
    InvalidInput,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.operations import CreateNamespace, Transaction

Answer = Committed | AlpheusError | None
Judge = Callable[[Transaction], Answer]


def transaction(
    number: int, *, name: str = "ns", principal: str = "", claimed: str = "", key: str = ""
) -> Transaction:
    """Return a transaction. `principal` is authenticated; `claimed` is not."""
    return Transaction(
        id=f"01920000-0000-7000-8000-{number:012d}",
        begin_version=0,
        principal=principal or claimed,
        principal_authenticated=bool(principal),
        key=key,
        operations=(CreateNamespace(name=name, namespace_id="x"),),
    )


def number_of(item: Transaction) -> int:
    return int(item.id[-12:])


class Committer:
    """A journal that stores nothing. It holds each group until the test releases it, then judges each member."""

    def __init__(self) -> None:
        self.version = 0
        self.groups: list[list[int]] = []
        self.judge: Judge | None = None
        self.broken: BaseException | None = None
        self.answers_short = False
        self.deadlines: list[float | None] = []
        self.running = 0
        self.entered = asyncio.Semaphore(0)
        self.gate = asyncio.Semaphore(0)

    async def commit_group(
        self,
        transactions: Sequence[Transaction],
        *,
        deadline_seconds: float | None = None,
        on_publish: Callable[[], None] | None = None,
    ) -> list[Answer]:
        assert self.running == 0, "two groups at a time"
        self.running += 1
        try:
            self.groups.append([number_of(item) for item in transactions])
            self.deadlines.append(deadline_seconds)
            self.entered.release()
            await self.gate.acquire()
            if self.broken is not None:
                broken, self.broken = self.broken, None
                raise broken
            if self.answers_short:
                self.answers_short = False
                return []
            self.version += 1
            return [self._judge(item) for item in transactions]
        finally:
            self.running -= 1

    def _judge(self, item: Transaction) -> Answer:
        if self.judge is not None:
            answer = self.judge(item)
            if not isinstance(answer, Committed):
                return answer
        return self.committed(item)

    def committed(self, item: Transaction) -> Committed:
        return Committed(version=self.version, transaction_id=item.id, created_at_millis=0, token="t")

    def open_for_good(self) -> None:
        for _ in range(1000):
            self.gate.release()


class Rig:
    def __init__(self, committer: Committer, writer: Writer, running: asyncio.Task[None]) -> None:
        self.committer = committer
        self.writer = writer
        self.running = running
        self.now = 0.0

    def send(self, number: int, **kwargs: str) -> asyncio.Task[Committed]:
        return asyncio.create_task(self.writer.submit(transaction(number, **kwargs), size_bytes=100))

    def send_from(self, source: str, number: int) -> asyncio.Task[Committed]:
        return asyncio.create_task(self.writer.submit(transaction(number), size_bytes=100, source=source))

    async def block(self) -> asyncio.Task[Committed]:
        """Send a group of one member that stays in flight, so that everything sent later waits."""
        task = self.send(0)
        await self.committer.entered.acquire()
        return task

    async def settle(self, *tasks: asyncio.Task[Committed]) -> list[Committed | BaseException]:
        self.committer.open_for_good()
        return await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def rig(
    *,
    group_count_max: int = 100,
    group_bytes_max: int = 10_000,
    queue_count_max: int = 50,
    queue_bytes_max: int = 100_000,
    timeout_seconds: float = 60.0,
) -> AsyncIterator[Rig]:
    committer = Committer()
    made: list[Rig] = []
    writer = Writer(
        committer,
        group_count_max=group_count_max,
        group_bytes_max=group_bytes_max,
        queue_count_max=queue_count_max,
        queue_bytes_max=queue_bytes_max,
        timeout_seconds=timeout_seconds,
        monotonic=lambda: made[0].now if made else 0.0,
    )
    running = asyncio.create_task(writer.run())
    made.append(Rig(committer, writer, running))
    yield made[0]
    writer.close()
    committer.open_for_good()
    await asyncio.wait([running])
    assert writer.queue_count == 0
    assert writer.queue_bytes == 0
    assert writer.in_flight_count == 0


async def turns(count: int = 5) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_all_that_waits_goes_into_the_next_group_in_order() -> None:
    async with rig() as r:
        first = await r.block()
        tasks = [r.send(n) for n in (1, 2, 3)]
        await turns()
        assert (r.writer.queue_count, r.writer.in_flight_count) == (3, 1)
        answers = await r.settle(first, *tasks)
        assert r.committer.groups == [[0], [1, 2, 3]]
        assert [a.version for a in answers if isinstance(a, Committed)] == [1, 2, 2, 2]
        assert r.committer.deadlines == [60.0, 60.0]


async def test_groups_are_bounded_by_count_and_bytes() -> None:
    async with rig(group_count_max=3) as r:
        tasks = [await r.block(), *(r.send(n) for n in range(1, 8))]
        await turns()
        await r.settle(*tasks)
        assert r.committer.groups == [[0], [1, 2, 3], [4, 5, 6], [7]]
    async with rig(group_bytes_max=250) as r:
        tasks = [await r.block(), *(r.send(n) for n in range(1, 4))]
        big = asyncio.create_task(r.writer.submit(transaction(9), size_bytes=9_000))
        await turns()
        await r.settle(*tasks, big)
        assert r.committer.groups == [[0], [1, 2], [3], [9]], "one member may pass the bound, alone"


async def test_a_failing_member_fails_alone() -> None:
    async with rig() as r:
        refusal = Conflict("mine against theirs", transaction_id="x")
        r.committer.judge = lambda t: refusal if number_of(t) == 2 else r.committer.committed(t)
        tasks = [await r.block(), *(r.send(n) for n in (1, 2, 3))]
        await turns()
        answers = await r.settle(*tasks)
        assert answers[2] is refusal
        assert [type(a) for a in answers] == [Committed, Committed, Conflict, Committed]


async def test_unjudged_members_go_first_into_the_next_group_in_their_order() -> None:
    async with rig(group_count_max=3) as r:
        judged: set[int] = set()

        def judge(item: Transaction) -> Answer:
            number = number_of(item)
            if number in (1, 3) and number not in judged:
                judged.add(number)
                return None
            return r.committer.committed(item)

        r.committer.judge = judge
        tasks = [await r.block(), *(r.send(n) for n in (1, 2, 3, 4, 5))]
        await turns()
        answers = await r.settle(*tasks)
        assert r.committer.groups == [[0], [1, 2, 3], [1, 3, 4], [5]]
        assert all(isinstance(a, Committed) for a in answers)


async def test_a_member_that_loses_again_and_again_stays_first() -> None:
    """A member that could not be judged is placed before all later members, however often that happens."""
    async with rig(group_count_max=2) as r:
        losses = {2: 3, 4: 1}

        def judge(item: Transaction) -> Answer:
            number = number_of(item)
            if losses.get(number, 0):
                losses[number] -= 1
                return None
            return r.committer.committed(item)

        r.committer.judge = judge
        tasks = [await r.block(), *(r.send(n) for n in (1, 2, 3, 4, 5, 6))]
        await turns()
        answers = await r.settle(*tasks)
        assert r.committer.groups == [[0], [1, 2], [2, 3], [2, 4], [2, 4], [5, 6]]
        assert all(isinstance(a, Committed) for a in answers)


async def test_unjudged_members_whose_time_is_over_are_not_applied() -> None:
    async with rig(timeout_seconds=60.0) as r:

        def judge(item: Transaction) -> Answer:
            if number_of(item) == 1:
                r.now = 61.0
                return None
            return r.committer.committed(item)

        r.committer.judge = judge
        tasks = [await r.block(), r.send(1)]
        await turns()
        answers = await r.settle(*tasks)
        assert isinstance(answers[1], Unavailable)
        assert "not applied" in answers[1].message
        assert r.committer.groups == [[0], [1]]


@pytest.mark.parametrize(
    ("asked", "waited", "is_late"),
    [(None, 59.9, False), (None, 60.0, True), (5.0, 4.9, False), (5.0, 5.0, True), (600.0, 60.0, True)],
)
async def test_what_comes_back_ends_at_its_own_time(
    asked: float | None, waited: float, is_late: bool
) -> None:
    """A member expires after the shorter of its caller's timeout and the daemon's timeout."""
    async with rig(timeout_seconds=60.0) as r:
        judged: list[int] = []

        def judge(item: Transaction) -> Answer:
            judged.append(number_of(item))
            if judged.count(1) == 1 and number_of(item) == 1:
                r.now = waited
                return None
            return r.committer.committed(item)

        r.committer.judge = judge
        first = await r.block()
        ticket = r.writer.enqueue(transaction(1), timeout_seconds=asked)
        await r.settle(first)
        await asyncio.wait([ticket.answer])
        error = ticket.answer.exception()
        if is_late:
            assert isinstance(error, Unavailable)
            assert error.kind == "storage_unavailable"
            assert f"waited {min(asked or 60.0, 60.0):g} s in the queue; it was not applied" in error.message
        else:
            assert error is None
        assert judged == ([0, 1] if is_late else [0, 1, 1])
        ticket.leave()


async def test_other_bounds_hold_at_once() -> None:
    async with rig() as r:
        first = await r.block()
        r.writer.configure(group_count_max=2, queue_count_max=3, timeout_seconds=7.0)
        assert r.writer.limits.group_bytes_max == 10_000, "what is not named stays"
        tasks = [r.send(number) for number in (1, 2, 3)]
        await turns()
        with pytest.raises(Exhausted):
            await r.send(4)
        await r.settle(first, *tasks)
        assert r.committer.groups == [[0], [1, 2], [3]]
        assert r.committer.deadlines == [60.0, 7.0, 7.0]


async def test_a_group_that_nobody_was_answered_of_lets_others_run_before_it_comes_again() -> None:
    """A journal that returns a hundred times without judging any member does not block others."""
    async with rig() as r:
        left, turns_between = 100, [0]

        def judge(item: Transaction) -> Answer:
            nonlocal left
            left -= 1
            turns_between.append(0)
            return None if left > 0 else r.committer.committed(item)

        async def count() -> None:
            while True:
                turns_between[-1] += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        r.committer.judge = judge
        await r.settle(r.send(1))
        counting.cancel()
        assert len(r.committer.groups) == 100
        assert min(turns_between[1:-1]) >= 1


async def test_cancelled_before_the_seal_is_withdrawn() -> None:
    async with rig() as r:
        first = await r.block()
        one, two = r.send(1), r.send(2)
        await turns()
        one.cancel()
        await turns()
        assert (r.writer.queue_count, r.writer.queue_bytes) == (1, 100)
        await r.settle(first, two)
        assert r.committer.groups == [[0], [2]]
        again = await r.settle(r.send(1))
        assert isinstance(again[0], Committed), "the id is free for another attempt"


async def test_cancelled_after_the_seal_commits_all_the_same() -> None:
    async with rig() as r:
        first = await r.block()
        first.cancel()
        await turns()
        assert first.cancelled()
        same = r.send(0)
        await turns()
        answers = await r.settle(same)
        assert r.committer.groups == [[0]]
        assert isinstance(answers[0], Committed)
        assert answers[0].version == 1


async def test_an_unjudged_member_without_a_caller_is_dropped() -> None:
    async with rig() as r:
        r.committer.judge = lambda t: None if number_of(t) == 0 else r.committer.committed(t)
        first = await r.block()
        first.cancel()
        other = r.send(1)
        await turns()
        await r.settle(other)
        assert r.committer.groups == [[0], [1]]


async def test_nobody_is_waited_for_who_was_answered_refused_or_left() -> None:
    """The writer drops the deadline of an answered, refused or cancelled caller immediately."""
    async with rig(timeout_seconds=3600.0) as r:
        r.committer.judge = lambda t: (
            Conflict("mine", transaction_id="x") if number_of(t) == 2 else r.committer.committed(t)
        )
        tasks = [await r.block(), *(r.send(number) for number in (1, 2, 3, 3))]
        await turns()
        assert len(r.writer._deadlines) == 5
        tasks[-1].cancel()
        await turns()
        assert len(r.writer._deadlines) == 4
        await r.settle(*tasks)
        assert len(r.writer._deadlines) == 0


@pytest.mark.parametrize("in_flight", [False, True])
async def test_the_same_id_shares_the_answer(in_flight: bool) -> None:
    async with rig() as r:
        first = await r.block()
        number = 0 if in_flight else 1
        one, two = r.send(number), r.send(number)
        await turns()
        one.cancel()
        await turns()
        answers = await r.settle(first, two)
        assert [n for group in r.committer.groups for n in group].count(number) == 1
        assert isinstance(answers[1], Committed)


@pytest.mark.parametrize("other", [{"name": "other"}, {"principal": "somebody"}, {"key": "k"}])
async def test_an_id_with_other_content_is_refused(other: dict[str, str]) -> None:
    async with rig() as r:
        first = await r.block()
        with pytest.raises(InvalidInput) as caught:
            await r.send(0, **other)
        assert caught.value.kind == "id_reused"
        assert isinstance((await r.settle(first))[0], Committed)


async def test_a_host_that_names_itself_otherwise_shares_the_answer() -> None:
    async with rig() as r:
        first, again = await r.block(), r.send(0, claimed="pod-2")
        await turns()
        assert all(isinstance(answer, Committed) for answer in await r.settle(first, again))
        assert r.committer.groups == [[0]]


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    async with rig(queue_count_max=2) as r:
        tasks = [await r.block(), r.send(1), r.send(2)]
        await turns()
        with pytest.raises(Exhausted) as caught:
            await r.send(3)
        assert caught.value.kind == "queue_full"
        assert caught.value.retry_after is not None
        assert caught.value.retry_after > 0
        await r.settle(*tasks)
        assert r.committer.groups == [[0], [1, 2]]
    async with rig(queue_bytes_max=200) as r:
        tasks = [await r.block(), r.send(1), r.send(2)]  # the maximum of bytes
        await turns()
        assert r.writer.queue_bytes == 200
        with pytest.raises(Exhausted):
            await r.send(3)
        await r.settle(*tasks)


@pytest.mark.parametrize(
    ("group_seconds", "retry_after"), [(0.25, 0.75), (0.0, 0.05), (0.01, 0.05), (3.0, 9.0), (60.0, 10.0)]
)
async def test_a_full_queue_is_to_be_tried_again_when_its_groups_are_stored(
    group_seconds: float, retry_after: float
) -> None:
    """The retry delay covers two queued groups and one in flight, each as long as the last group, within bounds."""
    async with rig(group_count_max=2, queue_count_max=4) as r:
        r.now = 1000.0
        first = await r.block()
        r.now += group_seconds
        r.committer.gate.release()
        await first
        tasks = [await r.block(), *(r.send(number) for number in (1, 2, 3, 4))]
        await turns()
        with pytest.raises(Exhausted) as caught:
            await r.send(5)
        assert caught.value.retry_after == retry_after
        await r.settle(*tasks)


async def test_too_long_in_the_queue_is_not_applied() -> None:
    async with rig(timeout_seconds=0.001) as r:
        first = await r.block()
        with pytest.raises(Unavailable) as caught:
            await r.send(1)
        assert caught.value.kind == "storage_unavailable"
        assert r.writer.queue_count == 0
        answers = await r.settle(first)
        assert isinstance(answers[0], Committed), "what is in flight has no such bound"
        assert r.committer.groups == [[0]]


async def test_shutdown_finishes_the_group_in_flight_and_refuses_the_rest() -> None:
    async with rig() as r:
        tasks = [await r.block(), r.send(1), r.send(2)]
        await turns()
        r.writer.close()
        with pytest.raises(Unavailable):
            await r.send(3)
        answers = await r.settle(*tasks)
        assert isinstance(answers[0], Committed)
        for answer in answers[1:]:
            assert isinstance(answer, Unavailable)
            assert answer.kind == "shutting_down"
            assert "not applied" in answer.message
        assert r.committer.groups == [[0]]
        await r.running


async def test_shutdown_while_idle_ends_at_once() -> None:
    async with rig() as r:
        await turns()
        r.writer.close()
        await r.running


async def test_cancelling_the_writer_leaves_the_group_in_flight_unknown() -> None:
    async with rig() as r:
        tasks = [await r.block(), r.send(1)]
        await turns()
        r.running.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[0], OutcomeUnknown)
        assert answers[0].transaction_id == transaction(0).id
        assert isinstance(answers[1], Unavailable)
        assert r.running.cancelled()


@pytest.mark.parametrize("short", [False, True])
async def test_a_bug_below_costs_its_group_only(short: bool) -> None:
    async with rig() as r:
        if short:
            r.committer.answers_short = True
        else:
            r.committer.broken = RuntimeError("a bug")
        tasks = [await r.block(), r.send(1)]
        await turns()
        answers = await r.settle(*tasks)
        assert isinstance(answers[0], OutcomeUnknown)
        assert answers[0].transaction_id == transaction(0).id
        assert isinstance(answers[1], Committed)


async def test_an_unsettled_transaction_that_is_sent_again_is_never_called_not_applied() -> None:
    async with rig(queue_count_max=2, timeout_seconds=60.0) as r:
        unsettled = True

        def judge(item: Transaction) -> Answer:
            if not unsettled:
                return r.committer.committed(item)
            return OutcomeUnknown("lost", transaction_id=item.id) if number_of(item) in (0, 5) else None

        r.committer.judge = judge
        first = await r.block()
        r.committer.gate.release()
        with pytest.raises(OutcomeUnknown):
            await first
        others = [r.send(1)]
        await r.committer.entered.acquire()
        # the queue is full
        others += [r.send(2), r.send(3)]
        await turns()
        with pytest.raises(OutcomeUnknown, match="earlier send") as caught:
            await r.send(0)
        assert caught.value.transaction_id == transaction(0).id
        with pytest.raises(Exhausted):
            await r.send(4)
        # a group without a result for it leaves it in doubt; its time in the queue ends
        others[2].cancel()
        await turns()
        again = r.send(0)
        await turns()
        next(m for m in r.writer._queue if number_of(m.transaction) == 0).tickets[0].expire()
        with pytest.raises(OutcomeUnknown, match="earlier send"):
            await again
        r.committer.gate.release()
        await r.committer.entered.acquire()
        again = r.send(0)
        await turns()
        next(m for m in r.writer._queue if number_of(m.transaction) == 0).tickets[0].expire()
        with pytest.raises(OutcomeUnknown, match="earlier send"):
            await again
        # answers to others say nothing about it: their versions may be built on its root
        unsettled = False
        r.committer.gate.release()
        assert isinstance(await others[0], Committed)
        task = r.send(6)
        await r.committer.entered.acquire()
        late = r.send(0)
        await turns()
        r.writer.close()
        r.committer.open_for_good()
        await task
        with pytest.raises(OutcomeUnknown, match="earlier send"):
            await late


async def test_the_answer_to_an_unsettled_transaction_ends_the_doubt() -> None:
    async with rig(queue_count_max=1) as r:
        answers: list[Answer] = [
            OutcomeUnknown("lost", transaction_id=transaction(0).id),
            Unavailable("away: nothing was applied"),
            Conflict("mine against theirs", transaction_id=transaction(0).id),
        ]
        r.committer.judge = lambda item: answers.pop(0) if answers else r.committer.committed(item)
        r.committer.gate.release()
        with pytest.raises(OutcomeUnknown, match="lost"):
            await r.send(0)
        r.committer.gate.release()
        with pytest.raises(OutcomeUnknown, match="earlier send"):  # only the second send failed
            await r.send(0)
        r.committer.gate.release()
        with pytest.raises(Conflict):
            await r.send(0)
        others = [r.send(1)]
        for _ in range(4):
            await r.committer.entered.acquire()
        others.append(r.send(2))
        await turns()
        with pytest.raises(Exhausted, match="not applied"):
            await r.send(0)
        await r.settle(*others)


@pytest.mark.parametrize(
    "refusal", [Unavailable("away"), Exhausted("the disk is full", kind="no_space")], ids=lambda e: e.kind
)
async def test_a_send_that_meets_a_full_or_absent_storage_says_nothing_of_the_one_before(
    refusal: AlpheusError,
) -> None:
    async with rig() as r:
        answers: list[Answer] = [OutcomeUnknown("lost", transaction_id=transaction(0).id), refusal, refusal]
        r.committer.judge = lambda item: answers.pop(0) if answers else r.committer.committed(item)
        r.committer.open_for_good()
        with pytest.raises(OutcomeUnknown, match="lost"):
            await r.send(0)
        with pytest.raises(OutcomeUnknown, match="earlier send") as caught:
            await r.send(0)
        assert caught.value.transaction_id == transaction(0).id
        with pytest.raises(type(refusal)):  # of an id that is not in doubt
            await r.send(1)
        assert isinstance(await r.send(0), Committed)


async def test_what_a_stopped_writer_lost_is_never_called_not_applied() -> None:
    async with rig() as r:
        first = await r.block()
        r.running.cancel()
        with pytest.raises(OutcomeUnknown):
            await first
        with pytest.raises(OutcomeUnknown, match="earlier send"):
            await r.send(0)
        with pytest.raises(Unavailable, match="not applied"):
            await r.send(1)


async def test_only_the_latest_doubts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a fixed number of doubts is remembered, and older doubts are forgotten."""
    monkeypatch.setattr(writer_module, "DOUBTFUL_MAX", 2)
    async with rig() as r:
        r.committer.judge = lambda item: OutcomeUnknown("lost", transaction_id=item.id)
        for number in (1, 2, 3):
            await r.settle(r.send(number))
        r.writer.close()
        with pytest.raises(Unavailable, match="was not applied"):
            await r.send(1)
        for number in (2, 3):
            with pytest.raises(OutcomeUnknown, match="earlier send"):
                await r.send(number)


class Counting(Observer):
    def __init__(self) -> None:
        self.durations: list[tuple[str, float]] = []
        self.events: list[tuple[str, int]] = []

    def on_duration(self, stage: str, seconds: float) -> None:
        self.durations.append((stage, seconds))

    def on_events(self, what: str, count: int = 1) -> None:
        if count:
            self.events.append((what, count))


async def test_what_members_wait_and_what_becomes_of_them_is_counted() -> None:
    async with rig() as r:
        counting = r.writer.observer = Counting()
        lost = {2, 3}

        def judge(item: Transaction) -> Answer:
            number = number_of(item)
            r.now += 1.0
            if number in lost:
                lost.remove(number)
                return None
            return Conflict("mine", transaction_id=item.id) if number == 1 else r.committer.committed(item)

        r.committer.judge = judge
        first = await r.block()
        assert counting.durations == [("queue", 0.0)]
        r.now = 5.0
        tasks = [r.send(number) for number in (1, 2, 3)]
        await turns()
        r.now = 7.0
        await r.settle(first, *tasks)
        assert counting.durations[1:] == [
            ("total", 8.0),
            *[("queue", 3.0)] * 3,
            ("total", 6.0),
            *[("queue", 6.0)] * 2,
            *[("total", 8.0)] * 2,
        ]
        assert counting.events == [("conflict", 1), ("requeued", 2)]


# --- sources in turn


async def test_a_flood_does_not_push_others_beyond_their_turn() -> None:
    """The second source's two transactions are in the first groups of another source's forty, not behind them."""
    async with rig(group_count_max=4) as r:
        first = await r.block()
        flood = [r.send_from("flood", number) for number in range(1, 41)]
        await turns()
        late = [r.send_from("late", number) for number in (50, 51)]
        other = [r.send_from("other", 60)]
        await turns()
        await r.settle(first, *flood, *late, *other)
        assert r.committer.groups[1] == [1, 50, 60, 2]
        assert r.committer.groups[2] == [51, 3, 4, 5]
        rest = [number for group in r.committer.groups[3:] for number in group]
        assert rest == list(range(6, 41)), "within a source by arrival"


async def test_a_large_member_does_not_starve_behind_small_ones() -> None:
    async with rig(group_bytes_max=300) as r:
        first = await r.block()
        small = [r.send_from("small", number) for number in range(1, 9)]
        large = asyncio.create_task(r.writer.submit(transaction(90), size_bytes=5_000, source="large"))
        await turns()
        await r.settle(first, *small, large)
        assert r.committer.groups == [[0], [1], [90], [2, 3, 4], [5, 6, 7], [8]], "alone, when its turn came"


async def test_members_that_come_back_are_first_in_their_line_only() -> None:
    async with rig(group_count_max=4) as r:
        losses = dict.fromkeys((1, 2), 2)

        def judge(item: Transaction) -> Answer:
            number = number_of(item)
            if losses.get(number):
                losses[number] -= 1
                return None
            return r.committer.committed(item)

        r.committer.judge = judge
        tasks = [await r.block()]
        tasks += [r.send_from("a", number) for number in (1, 2, 3)]
        tasks += [r.send_from("b", number) for number in (11, 12, 13, 14)]
        await turns()
        await r.settle(*tasks)
        assert r.committer.groups == [[0], [1, 11, 2, 12], [1, 13, 2, 14], [1, 2, 3]]


@pytest.mark.parametrize("others_wait", [False, True])
async def test_what_comes_back_keeps_its_order_and_its_bytes(others_wait: bool) -> None:
    """Sources of a returned group are served first, in that group's order, each source by arrival. Their bytes count
    against the queue's bound again."""
    async with rig(group_count_max=3, queue_bytes_max=700) as r:
        losses = {1, 11, 21}

        def judge(item: Transaction) -> Answer:
            number = number_of(item)
            if number not in losses:
                return r.committer.committed(item)
            losses.remove(number)
            return None

        r.committer.judge = judge
        tasks = [await r.block()]
        tasks += [r.send_from(source, number) for source, number in (("a", 1), ("b", 11), ("c", 21))]
        await turns()
        r.committer.gate.release()
        await r.committer.entered.acquire()
        assert r.committer.groups == [[0], [1, 11, 21]]
        assert (r.writer.queue_count, r.writer.queue_bytes) == (0, 0)
        if others_wait:
            tasks += [
                r.send_from(source, number) for source, number in (("d", 31), ("b", 12), ("a", 2), ("d", 32))
            ]
            await turns()
            assert r.writer.queue_bytes == 400
        seen: list[tuple[int, int]] = []
        seal = r.writer._seal

        def watched() -> Any:
            seen.append((r.writer.queue_count, r.writer.queue_bytes))
            return seal()

        r.writer._seal = watched  # type: ignore[method-assign]
        await r.settle(*tasks)
        count = 7 if others_wait else 3
        assert seen[0] == (count, 100 * count)
        rest = [[31, 2, 12], [32]] if others_wait else []
        assert r.committer.groups[2:] == [[1, 11, 21], *rest]


async def test_what_came_back_weighs_in_the_queue() -> None:
    async with rig(queue_bytes_max=250) as r:
        lost = {0}

        def judge(item: Transaction) -> Answer:
            if number_of(item) not in lost:
                return r.committer.committed(item)
            lost.clear()
            refused.append(r.send(5))
            return None

        refused: list[asyncio.Task[Committed]] = []
        r.committer.judge = judge
        tasks = [await r.block(), r.send(1), r.send(2)]
        await turns()
        assert r.writer.queue_bytes == 200
        answers = await r.settle(*tasks)
        assert all(isinstance(answer, Committed) for answer in answers)
        with pytest.raises(Exhausted, match="300 bytes"):
            await refused[0]


# --- one group ahead


class Pipeline(Committer):
    """Reports that a group is being stored, then holds it. A second group waits for the first."""

    def __init__(self) -> None:
        super().__init__()
        self.verdicts: asyncio.Queue[bool] = asyncio.Queue()
        self._turn = asyncio.Lock()
        self.is_lost = False

    async def commit_group(
        self,
        transactions: Sequence[Transaction],
        *,
        deadline_seconds: float | None = None,
        on_publish: Callable[[], None] | None = None,
    ) -> list[Answer]:
        assert self.running < 2, "one group ahead"
        self.running += 1
        was_ahead = self.running > 1
        try:
            self.groups.append([number_of(item) for item in transactions])
            self.entered.release()
            async with self._turn:
                if was_ahead and self.is_lost:
                    return [None] * len(transactions)
                self.is_lost = False
                assert on_publish is not None
                on_publish()
                if not await self.verdicts.get():
                    self.is_lost = True
                    return [None] * len(transactions)
                self.version += 1
                return [self.committed(item) for item in transactions]
        finally:
            self.running -= 1


@asynccontextmanager
async def pipeline(**bounds: float) -> AsyncIterator[Rig]:
    committer = Pipeline()
    made: list[Rig] = []
    writer = Writer(
        committer,
        group_count_max=3,
        group_bytes_max=10_000,
        queue_count_max=50,
        queue_bytes_max=100_000,
        timeout_seconds=60.0,
        monotonic=lambda: made[0].now if made else 0.0,
        **bounds,  # type: ignore[arg-type]
    )
    running = asyncio.create_task(writer.run())
    made.append(Rig(committer, writer, running))
    yield made[0]
    writer.close()
    await asyncio.wait([running])
    assert (writer.queue_count, writer.in_flight_count, writer.groups_count) == (0, 0, 0)


async def test_the_next_group_is_sealed_while_one_is_on_its_way() -> None:
    async with pipeline(ahead_count_min=2) as r:
        assert isinstance(r.committer, Pipeline)
        first = await r.block()
        one = r.send(1)
        await turns()
        assert r.committer.groups == [[0]], "too few to go ahead"
        two, three = r.send(2), r.send(3)
        await turns(20)
        assert r.committer.groups == [[0], [1, 2]] or r.committer.groups == [[0], [1, 2, 3]]
        four, five = r.send(4), r.send(5)
        await turns(20)
        assert len(r.committer.groups) == 2, "one ahead, no more"
        for _ in range(4):
            r.committer.verdicts.put_nowait(True)
        answers = await asyncio.gather(first, one, two, three, four, five)
        versions = [answer.version for answer in answers]
        assert versions == sorted(versions)
        assert [n for group in r.committer.groups for n in group] == [0, 1, 2, 3, 4, 5]


async def test_groups_that_are_lost_together_come_back_in_order() -> None:
    async with pipeline(ahead_count_min=1) as r:
        assert isinstance(r.committer, Pipeline)
        tasks = [r.send(0), r.send(1), r.send(2)]
        await r.committer.entered.acquire()
        await turns()
        tasks += [r.send(3), r.send(4)]
        await turns(20)
        assert r.committer.groups == [[0, 1, 2], [3, 4]]
        tasks.append(r.send(5))
        for verdict in (False, True, True):
            r.committer.verdicts.put_nowait(verdict)
        await asyncio.gather(*tasks)
        assert r.committer.groups[2:] == [[0, 1, 2], [3, 4, 5]]


async def test_what_has_waited_long_enough_goes_ahead_alone() -> None:
    async with pipeline(ahead_count_min=50, ahead_age_seconds=0.001) as r:
        assert isinstance(r.committer, Pipeline)
        first, one = await r.block(), r.send(1)
        await turns()
        assert r.committer.groups == [[0]]
        r.now = 1.0
        r.writer.configure()  # reads the clock again
        await r.committer.entered.acquire()
        assert r.committer.groups == [[0], [1]]
        r.committer.verdicts.put_nowait(True)
        r.committer.verdicts.put_nowait(True)
        await asyncio.gather(first, one)


async def test_shutdown_finishes_both_groups_in_flight() -> None:
    async with pipeline(ahead_count_min=1) as r:
        assert isinstance(r.committer, Pipeline)
        first, one = await r.block(), r.send(1)
        await r.committer.entered.acquire()
        queued = r.send(2)
        await turns()
        r.writer.close()
        r.committer.verdicts.put_nowait(True)
        r.committer.verdicts.put_nowait(True)
        assert [(await first).version, (await one).version] == [1, 2]
        with pytest.raises(Unavailable):
            await queued


async def test_cancelling_the_writer_leaves_both_groups_unknown() -> None:
    async with pipeline(ahead_count_min=1) as r:
        first, one = await r.block(), r.send(1)
        await r.committer.entered.acquire()
        r.running.cancel()
        answers = await asyncio.gather(first, one, return_exceptions=True)
        assert [type(answer) for answer in answers] == [OutcomeUnknown, OutcomeUnknown]
