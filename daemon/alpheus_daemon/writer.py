"""Group commit: one task owns the head, and takes all that waits into the next version.

There is no timer: while one group is being stored the next one gathers. A member is *queued* until its group
is sealed, then *in flight*. While it is queued nothing of it can have happened, so it can be withdrawn; once
it is in flight it goes its way whether or not anybody still waits for the answer. Members whose judgement
would rest on what is not published come back and go first into the next group.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from alpheus_daemon.telemetry import logger
from alpheus_journal import failpoints
from alpheus_journal.access import Committed, Outcome
from alpheus_journal.actions import Transaction
from alpheus_journal.errors import (
    AlpheusError,
    Exhausted,
    InvalidInput,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.retries import difference

Answer = Committed | AlpheusError | None

log = logger()


class GroupCommitter(Protocol):
    """What the writer needs of the journal."""

    async def commit_group(
        self, transactions: Sequence[Transaction], *, deadline_seconds: float | None = None
    ) -> Sequence[Answer]:
        """One answer a member, in order; None: not judged, put it first into the next group."""
        ...


class _Member:
    """One transaction on its way, with all who wait for its answer."""

    __slots__ = ("answer", "deadline", "sealed", "size_bytes", "transaction", "waiters")

    def __init__(self, transaction: Transaction, size_bytes: int, deadline: float) -> None:
        self.transaction = transaction
        self.size_bytes = size_bytes
        self.deadline = deadline  # monotonic seconds; only what is queued is bound by it
        self.answer: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(_retrieve)
        self.sealed = False
        self.waiters = 0

    def succeed(self, committed: Committed) -> None:
        if not self.answer.done():
            self.answer.set_result(committed)

    def fail(self, error: AlpheusError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


def _retrieve(answer: asyncio.Future[Committed]) -> None:
    """An answer that nobody waits for any more is no lost exception."""
    if not answer.cancelled():
        answer.exception()


class Writer:
    """The queue and the one task (`run`) that empties it.

    Bounds: a group takes `group_count_max` members and `group_bytes_max` bytes of requests (one member may be
    larger); `queue_count_max` and `queue_bytes_max` may wait. `timeout_seconds` bounds the wait in the queue,
    after which a member is not applied, and the storing, after which its outcome is unknown.
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
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal = journal
        self._group_count_max = group_count_max
        self._group_bytes_max = group_bytes_max
        self._queue_count_max = queue_count_max
        self._queue_bytes_max = queue_bytes_max
        self._timeout_seconds = timeout_seconds
        self._monotonic = monotonic
        # Queued and in flight by id: every member that has no answer yet.
        self._members: dict[str, _Member] = {}
        # Queued only, in the order of the next groups; bytes is the sum over it.
        self._queue: OrderedDict[str, _Member] = OrderedDict()
        self._queue_bytes = 0
        self._work = asyncio.Event()
        self._closing = False
        self._group_seconds = 0.0

    @property
    def queue_count(self) -> int:
        """Transactions that wait for a group."""
        return len(self._queue)

    @property
    def queue_bytes(self) -> int:
        return self._queue_bytes

    @property
    def in_flight_count(self) -> int:
        """Transactions in the group that is being stored."""
        return len(self._members) - len(self._queue)

    # --- callers

    async def submit(self, transaction: Transaction, *, size_bytes: int = 0) -> Committed:
        """Commit a transaction in one of the next groups.

        Raises what the journal answers; Exhausted (`queue_full`), Unavailable (`shutting_down`, or
        `storage_unavailable` after the timeout in the queue): not applied. Cancelled while queued it is
        withdrawn, unless another call waits for the same id. The same id again while the first is on its way
        shares its answer; with other operations or another principal it is InvalidInput (`id_reused`).
        """
        member = self._members.get(transaction.id)
        if member is None:
            member = self._admit(transaction, size_bytes)
        else:
            _check_same(member.transaction, transaction)
        member.waiters += 1
        try:
            done, _ = await asyncio.wait({member.answer}, timeout=self._timeout_seconds)
            if not done and not member.sealed:
                self._withdraw(member)
                member.fail(self._too_late(member))
            return await asyncio.shield(member.answer)
        finally:
            member.waiters -= 1
            if not member.waiters and not member.sealed and not member.answer.done():
                self._withdraw(member)

    def _admit(self, transaction: Transaction, size_bytes: int) -> _Member:
        if self._closing:
            raise _shutting_down(transaction.id)
        if len(self._queue) >= self._queue_count_max or (
            self._queue_bytes + size_bytes > self._queue_bytes_max and self._queue
        ):
            groups = 1 + len(self._queue) // self._group_count_max
            raise Exhausted(
                f"{len(self._queue)} transactions wait already ({self._queue_bytes} bytes);"
                f" transaction {transaction.id} was not applied",
                kind="queue_full",
                retry_after=round(min(max(groups * self._group_seconds, 0.05), 10.0), 3),
                hint="send the same again later, or gather more operations in one transaction",
            )
        member = _Member(transaction, size_bytes, self._monotonic() + self._timeout_seconds)
        self._members[transaction.id] = member
        self._queue[transaction.id] = member
        self._queue_bytes += size_bytes
        self._work.set()
        return member

    def _withdraw(self, member: _Member) -> None:
        """Forget a queued member; it will not be applied."""
        assert not member.sealed
        del self._queue[member.transaction.id]
        del self._members[member.transaction.id]
        self._queue_bytes -= member.size_bytes

    # --- the one task

    def close(self) -> None:
        """Refuse all that waits or comes, as not applied; `run` returns after the group in flight."""
        self._closing = True
        self._work.set()

    async def run(self) -> None:
        """Store group after group until `close`. Cancelled: the group in flight has an unknown outcome."""
        try:
            while not self._closing:
                await self._work.wait()
                self._work.clear()
                while self._queue and not self._closing:
                    await self._store(self._seal())
        finally:
            self._closing = True
            for member in list(self._queue.values()):
                self._answer(member, _shutting_down(member.transaction.id))
            self._queue.clear()
            self._queue_bytes = 0

    def _seal(self) -> list[_Member]:
        """The next group: the first members of the queue within the bounds, at least one."""
        group: list[_Member] = []
        size_bytes = 0
        while self._queue and len(group) < self._group_count_max:
            member = next(iter(self._queue.values()))
            if group and size_bytes + member.size_bytes > self._group_bytes_max:
                break
            self._queue.popitem(last=False)
            member.sealed = True
            size_bytes += member.size_bytes
            group.append(member)
        self._queue_bytes -= size_bytes
        return group

    async def _store(self, group: list[_Member]) -> None:
        started = self._monotonic()
        answers: Sequence[Answer]
        try:
            await failpoints.reached("writer.sealed")
            answers = await self._journal.commit_group(
                [member.transaction for member in group], deadline_seconds=self._timeout_seconds
            )
            await failpoints.reached("writer.stored")
            if len(answers) != len(group):
                raise AssertionError(f"{len(answers)} answers for {len(group)} members")
        except asyncio.CancelledError:
            self._lose(group, "the daemon was stopped while it was being stored")
            raise
        except Exception:
            # A bug, here or below. What became of the group is not known, but others need not suffer.
            log.exception("commit_group_failed", members_count=len(group))
            self._lose(group, "the daemon failed while it was being stored")
            return
        self._group_seconds = self._monotonic() - started
        again: list[_Member] = []
        for member, answer in zip(group, answers, strict=True):
            if answer is None:
                again.append(member)
            else:
                self._answer(member, answer)
        self._requeue(again)
        if len(again) == len(group):
            await asyncio.sleep(0)  # nobody was answered: let others run before the next attempt
        log.debug(
            "group_stored",
            members_count=len(group),
            again_count=len(again),
            queue_count=len(self._queue),
            took_ms=round(self._group_seconds * 1000, 3),
        )

    def _requeue(self, members: list[_Member]) -> None:
        """Put unjudged members first into the next group, in order. Those whose callers left, or whose time
        is over, end here: nothing of them was published."""
        for member in reversed(members):
            transaction_id = member.transaction.id
            if not member.waiters:
                del self._members[transaction_id]
            elif self._monotonic() >= member.deadline:
                self._answer(member, self._too_late(member))
            else:
                member.sealed = False
                self._queue[transaction_id] = member
                self._queue.move_to_end(transaction_id, last=False)
                self._queue_bytes += member.size_bytes

    def _too_late(self, member: _Member) -> Unavailable:
        return Unavailable(
            f"transaction {member.transaction.id} waited {self._timeout_seconds:g} s for its turn;"
            " it was not applied",
            hint="try the same again later; the storage may be slow",
        )

    def _lose(self, group: list[_Member], reason: str) -> None:
        for member in group:
            transaction_id = member.transaction.id
            self._answer(
                member,
                OutcomeUnknown(
                    f"the outcome of transaction {transaction_id} is unknown: {reason}",
                    transaction_id=transaction_id,
                    hint="send the same again, or ask for its outcome",
                ),
            )

    def _answer(self, member: _Member, answer: Committed | AlpheusError) -> None:
        failpoints.hit("writer.ack")
        with contextlib.suppress(KeyError):
            del self._members[member.transaction.id]
        if isinstance(answer, AlpheusError):
            member.fail(answer)
        else:
            member.succeed(answer)


class Settling(Protocol):
    """What settling an outcome needs of the journal."""

    async def settle(
        self,
        transaction_id: str,
        *,
        since: int | None,
        commit: Callable[[Transaction], Awaitable[Committed]],
    ) -> Outcome:
        """The final outcome; a cancellation that it takes goes through `commit`."""
        ...


async def settle(journal: Settling, writer: Writer, outcome_id: str, since: int | None) -> Outcome:
    """The final outcome of `outcome_id`, as `Access.outcome`. The journal would commit the cancellation by itself;
    in a daemon all commits go through the writer, behind the transaction itself if that waits there."""
    return await journal.settle(outcome_id, since=since, commit=writer.submit)


def _check_same(first: Transaction, second: Transaction) -> None:
    """The second request for an id is the first one again; InvalidInput (`id_reused`) else."""
    other = difference(first, second)
    if other:
        raise InvalidInput(
            f"transaction id {first.id} is on its way {other}",
            kind="id_reused",
            hint="make a new id for every transaction",
        )


def _shutting_down(transaction_id: str) -> Unavailable:
    return Unavailable(
        f"the daemon is shutting down; transaction {transaction_id} was not applied",
        kind="shutting_down",
        hint="send the same to another daemon, or to this one when it is back",
    )
