"""Group commit: one task owns the head, and takes all waiting transactions into the next version.

`alpheus_daemon.serve` describes the whole. There is no timer: while one group is being stored, the next one gathers. A
member is *queued* until its group is sealed, then *in flight*. A queued member has had no effect yet, so it can be
withdrawn. A member in flight continues whether or not a caller still waits for the answer. Members whose judgement
would rest on unpublished work come back unjudged, and are first in their line again.

The module is long because queue, tickets and groups share the life of a member.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from alpheus_daemon.serve.deadlines import Deadlines
from alpheus_daemon.telemetry.logs import logger
from alpheus_journal import failpoints
from alpheus_journal.commit.committer import Observer
from alpheus_journal.commit.idempotency import difference
from alpheus_journal.errors import (
    AlpheusError,
    Conflict,
    Exhausted,
    InvalidInput,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.model.answers import Committed, Outcome
from alpheus_journal.model.operations import Transaction

Answer = Committed | AlpheusError | None

log = logger()

IDS_LOGGED = 10
DOUBTFUL_MAX = 10_000
"""The remembered ids with unknown outcomes. No caller may hear that such a transaction was not applied."""


class GroupCommitter(Protocol):
    """The part of the journal that the writer needs."""

    async def commit_group(
        self,
        transactions: Sequence[Transaction],
        *,
        deadline_seconds: float | None = None,
        on_publish: Callable[[], None] | None = None,
    ) -> Sequence[Answer]:
        """Return one answer for each member, in order. None means that the member was not judged, and has to come first
        in the next group. After `on_publish` was called, the next group may be passed in."""
        ...


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the writer.

    A group takes `group_count_max` members and `group_bytes_max` bytes of requests (a single member may be larger). The
    queue holds `queue_count_max` members and `queue_bytes_max` bytes. `timeout_seconds` bounds the wait in the queue,
    after which a member is not applied, and the storing, after which its outcome is unknown. While one group is in
    flight, the next is sealed when `ahead_count_min` members wait (0 means never), or when the first has waited
    `ahead_age_seconds`.
    """

    group_count_max: int
    group_bytes_max: int
    queue_count_max: int
    queue_bytes_max: int
    timeout_seconds: float
    ahead_count_min: int = 64
    ahead_age_seconds: float = 0.01


class _Member:
    """One transaction, queued or in flight, with the tickets of all callers that wait for its answer."""

    __slots__ = (
        "admitted",
        "answered",
        "deadline",
        "number",
        "sealed",
        "size_bytes",
        "source",
        "tickets",
        "timeout_seconds",
        "transaction",
    )

    def __init__(
        self,
        transaction: Transaction,
        size_bytes: int,
        source: str,
        number: int,
        admitted: float,
        timeout_seconds: float,
    ) -> None:
        self.transaction = transaction
        self.size_bytes = size_bytes
        self.source = source
        self.number = number
        """The position in the order of arrival."""
        self.admitted = admitted  # monotonic seconds
        self.timeout_seconds = timeout_seconds
        self.deadline = admitted + timeout_seconds  # bounds only the wait in the queue
        self.answered = False
        self.sealed = False
        self.tickets: list[Ticket] = []  # of the callers that wait

    def succeed(self, committed: Committed) -> None:
        self.answered = True
        for ticket in self.tickets:
            if not ticket.answer.done():
                ticket.answer.set_result(committed)

    def fail(self, error: AlpheusError) -> None:
        self.answered = True
        for ticket in self.tickets:
            if not ticket.answer.done():
                ticket.answer.set_exception(error)
                ticket.answer.exception()  # the holder of the ticket need not read the answer


class _Queue:
    """The waiting members: one line for each source. Sources are served in turn, and each line by arrival."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, OrderedDict[int, _Member]] = OrderedDict()
        self.count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[_Member]:
        for line in self._lines.values():
            yield from line.values()

    def add(self, member: _Member) -> None:
        self._lines.setdefault(member.source, OrderedDict())[member.number] = member
        self.count += 1
        self.size_bytes += member.size_bytes

    def put_back(self, members: Sequence[_Member]) -> None:
        """Return members that were taken, in order, to their lines. These lines go first."""
        returned: dict[str, list[_Member]] = {}
        for member in members:
            returned.setdefault(member.source, []).append(member)
        for source in reversed(returned):
            waiting = self._lines.get(source, OrderedDict()).values()
            merged = sorted([*returned[source], *waiting], key=lambda member: member.number)
            self._lines[source] = OrderedDict((member.number, member) for member in merged)
            self._lines.move_to_end(source, last=False)
        self.count += len(members)
        self.size_bytes += sum(member.size_bytes for member in members)

    def remove(self, member: _Member) -> None:
        line = self._lines[member.source]
        del line[member.number]
        if not line:
            del self._lines[member.source]
        self.count -= 1
        self.size_bytes -= member.size_bytes

    def take(self, count_max: int, bytes_max: int) -> list[_Member]:
        """Take the next members within the bounds, at least one. A member that does not fit is first the next time."""
        taken: list[_Member] = []
        size_bytes = 0
        while self._lines and len(taken) < count_max:
            source, line = next(iter(self._lines.items()))
            member = next(iter(line.values()))
            if taken and size_bytes + member.size_bytes > bytes_max:
                break
            del line[member.number]
            if line:
                self._lines.move_to_end(source)
            else:
                del self._lines[source]
            size_bytes += member.size_bytes
            taken.append(member)
        self.count -= len(taken)
        self.size_bytes -= size_bytes
        return taken

    def first_admitted(self) -> float:
        """Return the arrival time of the first member of the next line."""
        return next(iter(next(iter(self._lines.values())).values())).admitted


class Ticket:
    """A caller's claim to the answer of a queued transaction. The caller leaves each ticket exactly once."""

    __slots__ = ("_member", "_writer", "answer")

    def __init__(self, writer: Writer, member: _Member) -> None:
        self._writer = writer
        self._member = member
        self.answer: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        """The answer for this caller alone. Cancelling it does not affect other callers of the same transaction."""
        member.tickets.append(self)

    @property
    def transaction_id(self) -> str:
        return self._member.transaction.id

    def expire(self) -> None:
        """End the wait because the time is over. A transaction that is still queued is not applied."""
        member = self._member
        if not member.sealed and not member.answered:
            self._writer.withdraw(member)
            member.fail(
                self._writer.unless_doubtful(too_late_error(member), transaction_id=self.transaction_id)
            )

    def leave(self) -> None:
        """End this caller's wait. If no other caller waits, a transaction that is still queued is not applied."""
        member = self._member
        member.tickets.remove(self)
        if not member.tickets and not member.sealed and not member.answered:
            self._writer.withdraw(member)


class Writer:
    """The queue and the one task (`run`) that empties it.

    `observer` receives queue times and the number of members that come back unjudged.
    """

    def __init__(
        self,
        journal: GroupCommitter,
        *,
        group_count_max: int,
        group_bytes_max: int,
        queue_count_max: int,
        queue_bytes_max: int,
        timeout_seconds: float,
        ahead_count_min: int = 64,
        ahead_age_seconds: float = 0.01,
        monotonic: Callable[[], float] = time.monotonic,
        observer: Observer | None = None,
    ) -> None:
        self._journal = journal
        self.limits = Limits(
            group_count_max=group_count_max,
            group_bytes_max=group_bytes_max,
            queue_count_max=queue_count_max,
            queue_bytes_max=queue_bytes_max,
            timeout_seconds=timeout_seconds,
            ahead_count_min=ahead_count_min,
            ahead_age_seconds=ahead_age_seconds,
        )
        self.observer = observer or Observer()
        self._monotonic = monotonic
        # Every member without an answer, queued or in flight, by id.
        self._members: dict[str, _Member] = {}
        self._queue = _Queue()
        self._numbers = itertools.count()
        self._deadlines = Deadlines()
        self._changed = asyncio.Event()
        self._closing = False
        self._group_seconds = 0.0
        # Ids whose outcome was answered as unknown, with no final answer since, the oldest first.
        self._doubtful: OrderedDict[str, None] = OrderedDict()
        self._groups_count = 0  # groups that are sealed and not answered
        self._preparing: list[_Member] | None = None  # the last of these groups, until it is published

    @property
    def queue_count(self) -> int:
        """The transactions that wait for a group."""
        return len(self._queue)

    @property
    def queue_bytes(self) -> int:
        return self._queue.size_bytes

    @property
    def in_flight_count(self) -> int:
        """The transactions in the groups that are being stored."""
        return len(self._members) - len(self._queue)

    @property
    def groups_count(self) -> int:
        """The groups that are being stored: one, and perhaps one that is staged ahead."""
        return self._groups_count

    def configure(self, **bounds: Any) -> None:
        """Change the `Limits` from now on."""
        self.limits = msgspec.structs.replace(self.limits, **bounds)
        self._changed.set()

    # --- callers

    async def submit(self, transaction: Transaction, *, size_bytes: int = 0, source: str = "") -> Committed:
        """Commit a transaction in one of the next groups. Sources are served in turn.

        A call with an id that is already queued or in flight shares its answer. A call that is cancelled while queued
        withdraws the transaction, unless another call waits for the same id.

        Raises the errors of the journal, and these when the transaction was not applied: Exhausted (`queue_full`),
        Unavailable (`shutting_down`, or `storage_unavailable` after the timeout in the queue). OutcomeUnknown takes
        their place when an earlier send of the transaction is not settled. Raises InvalidInput (`id_reused`) when the
        id is already used with other operations or by another principal.
        """
        ticket = self.enqueue(transaction, size_bytes=size_bytes, source=source)
        self._deadlines.add(ticket, self.limits.timeout_seconds)
        try:
            return await ticket.answer
        finally:
            self._deadlines.discard(ticket)
            ticket.leave()

    def enqueue(
        self,
        transaction: Transaction,
        *,
        size_bytes: int = 0,
        source: str = "",
        timeout_seconds: float | None = None,
    ) -> Ticket:
        """Queue a transaction as `submit` does, without waiting. The caller expires the ticket after
        `timeout_seconds`."""
        member = self._members.get(transaction.id)
        if member is None:
            member = self._admit(transaction, size_bytes, source, timeout_seconds)
        else:
            _check_same(member.transaction, transaction)
        return Ticket(self, member)

    def _admit(
        self, transaction: Transaction, size_bytes: int, source: str, timeout_seconds: float | None
    ) -> _Member:
        if self._closing:
            raise self.unless_doubtful(_shutting_down(transaction.id), transaction_id=transaction.id)
        limits = self.limits
        if len(self._queue) >= limits.queue_count_max or (
            self.queue_bytes + size_bytes > limits.queue_bytes_max and self._queue
        ):
            groups = 1 + len(self._queue) // limits.group_count_max
            full = Exhausted(
                f"{len(self._queue)} transactions wait already ({self.queue_bytes} bytes);"
                f" transaction {transaction.id} was not applied",
                kind="queue_full",
                retry_after=round(min(max(groups * self._group_seconds, 0.05), 10.0), 3),
                hint="send the same transaction again later, or gather more operations in one transaction",
            )
            raise self.unless_doubtful(full, transaction_id=transaction.id)
        timeout = min(timeout_seconds or limits.timeout_seconds, limits.timeout_seconds)
        member = _Member(transaction, size_bytes, source, next(self._numbers), self._monotonic(), timeout)
        self._members[transaction.id] = member
        self._queue.add(member)
        if len(self._queue) in (1, self._ahead_count):  # other lengths change nothing for `_patience`
            self._changed.set()
        return member

    def unless_doubtful(self, refused: AlpheusError, *, transaction_id: str) -> AlpheusError:
        """Return the refusal, which says that the transaction was not applied.

        Returns OutcomeUnknown instead when an earlier send of the id may have been applied and is not settled.
        """
        if transaction_id not in self._doubtful:
            return refused
        return _unknown_outcome(
            transaction_id, "an earlier send may have been stored, and the storage does not answer"
        )

    def _doubt(self, transaction_id: str) -> None:
        self._doubtful[transaction_id] = None
        if len(self._doubtful) > DOUBTFUL_MAX:
            self._doubtful.popitem(last=False)

    def withdraw(self, member: _Member) -> None:
        """Remove a queued member, which will not be applied."""
        assert not member.sealed
        self._queue.remove(member)
        del self._members[member.transaction.id]
        self._changed.set()  # the first member of another line may have waited longer

    # --- the one task

    def close(self) -> None:
        """Refuse all waiting and new transactions as not applied. `run` returns after the groups in flight."""
        self._closing = True
        self._changed.set()

    async def run(self) -> None:
        """Store group after group until `close`. After a cancellation the groups in flight have unknown outcomes."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while await self._may_seal():
                    tasks.create_task(self._store(self._seal()))
        finally:
            self._closing = True
            refused, self._queue = self._queue, _Queue()
            for member in refused:
                self._answer(member, _shutting_down(member.transaction.id))

    async def _may_seal(self) -> bool:
        """Wait until it is time to seal the next group. Return False after `close`."""
        while not self._closing:
            patience = self._patience()
            if patience is not None and patience <= 0:
                return True
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._changed.wait()
        return False

    @property
    def _ahead_count(self) -> int:
        """The number of waiting members at which the next group is sealed while one is in flight. 0 means never."""
        return min(self.limits.ahead_count_min, self.limits.group_count_max)

    def _patience(self) -> float | None:
        """Return the seconds until the next group is to be sealed, or None if that takes a change of state."""
        if not self._queue or self._preparing is not None or self._groups_count > 1:
            return None
        if not self._groups_count:
            return 0.0
        if not self._ahead_count:
            return None
        if len(self._queue) >= self._ahead_count:
            return 0.0
        return self._queue.first_admitted() + self.limits.ahead_age_seconds - self._monotonic()

    def _seal(self) -> list[_Member]:
        """Seal the next group: the first members of the queue within the bounds, at least one."""
        group = self._queue.take(self.limits.group_count_max, self.limits.group_bytes_max)
        now = self._monotonic()
        for member in group:
            member.sealed = True
            self.observer.on_duration("queue", now - member.admitted)
        self._groups_count += 1
        self._preparing = group
        return group

    def _end_preparing(self, group: list[_Member]) -> None:
        if self._preparing is group:
            self._preparing = None
            self._changed.set()

    async def _store(self, group: list[_Member]) -> None:
        started = self._monotonic()
        was_ahead = self._groups_count > 1
        again: list[_Member] = []
        try:
            answers = await self._commit_group(group)
            self._group_seconds = self._monotonic() - started
            for member, answer in zip(group, answers, strict=True):
                if answer is None:
                    again.append(member)
                else:
                    self._answer(member, answer)
            self._requeue(again)  # the next attempt is its own task, so that other tasks run before
        finally:
            self._groups_count -= 1
            self._end_preparing(group)
            self._changed.set()
        log.debug(
            "group_stored",
            members_count=len(group),
            transaction_ids=_ids(group),
            again_count=len(again),
            queue_count=len(self._queue),
            was_ahead=was_ahead,
            took_ms=round(self._group_seconds * 1000, 3),
        )

    async def _commit_group(self, group: list[_Member]) -> Sequence[Answer]:
        try:
            await failpoints.reached("writer.sealed")
            answers = await self._journal.commit_group(
                [member.transaction for member in group],
                deadline_seconds=self.limits.timeout_seconds,
                on_publish=partial(self._end_preparing, group),
            )
            await failpoints.reached("writer.stored")
            if len(answers) != len(group):
                raise AssertionError(f"{len(answers)} answers for {len(group)} members")
        except asyncio.CancelledError:
            self._lose(group, "the daemon was stopped while storing it")
            raise
        except Exception:
            # A bug, here or below. The outcome of this group is unknown, but later groups are not affected.
            log.exception("commit_group_failed", members_count=len(group), transaction_ids=_ids(group))
            return [
                _unknown_outcome(member.transaction.id, "the daemon failed while storing it")
                for member in group
            ]
        return answers

    def _requeue(self, members: list[_Member]) -> None:
        """Put unjudged members first into the next group, in order.

        Members whose callers left, or whose time is over, end here, as nothing of them was published.
        """
        self.observer.on_events("requeued", len(members))
        kept = []
        for member in members:
            if not member.tickets:
                del self._members[member.transaction.id]
            elif self._monotonic() >= member.deadline:
                self._answer(member, too_late_error(member))
            else:
                member.sealed = False
                kept.append(member)
        self._queue.put_back(kept)

    def _lose(self, group: list[_Member], reason: str) -> None:
        for member in group:
            self._answer(member, _unknown_outcome(member.transaction.id, reason))

    def _answer(self, member: _Member, answer: Committed | AlpheusError) -> None:
        failpoints.hit("writer.ack")
        transaction_id = member.transaction.id
        if isinstance(answer, Committed):
            self._doubtful.pop(transaction_id, None)
        elif isinstance(answer, OutcomeUnknown):
            self._doubt(transaction_id)
        elif (
            isinstance(answer, Unavailable | Exhausted) or answer.kind == "history_replaced"
        ):  # of this send alone
            answer = self.unless_doubtful(answer, transaction_id=transaction_id)
        else:
            self._doubtful.pop(transaction_id, None)
        self._members.pop(transaction_id, None)
        self.observer.on_duration("total", self._monotonic() - member.admitted)
        if isinstance(answer, AlpheusError):
            if isinstance(answer, Conflict):
                self.observer.on_events("conflict")
            member.fail(answer)
        else:
            member.succeed(answer)


def _ids(group: Sequence[_Member]) -> list[str]:
    """Return the ids of the first members, for the log. A whole group may have thousands."""
    return [member.transaction.id for member in group[:IDS_LOGGED]]


def too_late_error(member: _Member) -> Unavailable:
    return Unavailable(
        f"transaction {member.transaction.id} waited {member.timeout_seconds:g} s in the queue;"
        " it was not applied",
        hint="try again later; the storage may be slow",
    )


def _unknown_outcome(transaction_id: str, reason: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the outcome of transaction {transaction_id} is unknown: {reason}",
        transaction_id=transaction_id,
        hint="send the same transaction again, or ask for its outcome",
    )


class Settling(Protocol):
    """The part of the journal that settling an outcome needs."""

    async def settle(
        self,
        transaction_id: str,
        *,
        since: int | None,
        commit: Callable[[Transaction], Awaitable[Committed]],
    ) -> Outcome:
        """Return the final outcome. A cancellation that is needed for it goes through `commit`."""
        ...


async def settle(journal: Settling, writer: Writer, outcome_id: str, since: int | None) -> Outcome:
    """Return the final outcome of `outcome_id`; see `Access.outcome`.

    The journal would commit the cancellation by itself. In a daemon all commits go through the writer, so the
    cancellation comes after the transaction itself if that is queued.
    """
    return await journal.settle(outcome_id, since=since, commit=writer.submit)


def _check_same(first: Transaction, second: Transaction) -> None:
    """Check that the second request for an id repeats the first. Raises InvalidInput (`id_reused`)."""
    other = difference(first, second)
    if other:
        raise InvalidInput(
            f"transaction id {first.id} is in use {other}",
            kind="id_reused",
            hint="make a new id for every transaction",
        )


def _shutting_down(transaction_id: str) -> Unavailable:
    return Unavailable(
        f"the daemon is shutting down; transaction {transaction_id} was not applied",
        kind="shutting_down",
        hint="send the same transaction to another daemon, or to this one when it is back",
    )
