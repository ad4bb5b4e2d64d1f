"""Turn a group of transactions into one version: judge, stage, upload, publish, answer (FORMAT.md, "Committing").

`Committer.commit_group` tells the whole commit from top to bottom. Each step has its module:

    judge      judge.py, executor.py   decide which transactions make the version, and answer the others
    stage      stage.py                encode the version
    upload     here                    store the files that the root names, unless the store takes them with the root
    publish    publish.py              send the root; settle a root whose reply was lost
    answer     here                    answer each member of the version

A process has one committer for a catalog. Each transaction is judged on what the transactions before it left. So the
version equals their serial execution, and a failing transaction harms no other one. After a lost slot the group is
judged again on the version that won. Every answer rests on durable versions alone.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from alpheus_journal import failpoints
from alpheus_journal.clock import Clock, Identities
from alpheus_journal.commit.base import Base
from alpheus_journal.commit.contention import Contention
from alpheus_journal.commit.executor import Executor
from alpheus_journal.commit.idempotency import Retries
from alpheus_journal.commit.judge import Decided, Judge, Judged
from alpheus_journal.commit.manifest_cache import SegmentReader
from alpheus_journal.commit.publish import InFlight, Publisher, PublishOutcome, history_replaced_error
from alpheus_journal.commit.stage import Stager
from alpheus_journal.commit.staged import Member, Staged
from alpheus_journal.errors import AlpheusError, InvalidInput, OutcomeUnknown
from alpheus_journal.log.times import is_ahead, tell_ahead
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.operations import Transaction
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.state import Head
from alpheus_journal.storage import files_not_stored

Answer = Committed | AlpheusError | None
"""Committed, or an error that rests on durable versions. None means not judged: the transaction must come first in the
next group."""


class Observer:
    """Receives timings and counts of commits. This class ignores them; a subclass counts."""

    def now(self) -> float:
        """Return the seconds of the clock that measures durations."""
        return 0.0

    def on_duration(self, stage: str, seconds: float) -> None:
        """`stage` took `seconds`: execute, encode, upload, turn or root of a group; queue or total of a member."""

    def on_group(self, members_count: int, root_size_bytes: int) -> None:
        """A version was published."""

    def on_time_ahead(self, where: str, version: int, ahead_millis: int) -> None:
        """A version is staged on head `version` of the store `where`, whose time is ahead of the clock by
        `ahead_millis`."""
        tell_ahead(where, version, ahead_millis)

    def on_events(self, what: str, count: int = 1) -> None:
        """`what` happened `count` times: lost_slot, staged_ahead or dropped_ahead to a group; requeued, conflict or
        unknown to members."""


class Prepared(NamedTuple):
    """A judged group. `staged` is the version of its members, or None when there is no version to publish."""

    staged: Staged | None
    decided: Decided


class Committer:
    """Commits groups. At most two calls of `commit_group` run at once: the second one prepares while the first one
    publishes."""

    def __init__(self, follower: Follower, clock: Clock, identities: Identities) -> None:
        self.observer = Observer()
        self.retries = Retries(follower)
        self.may_repair = False
        """Allow REPAIR transactions, even where the state of the catalog forbids every other write."""
        self._follower = follower
        self._clock = clock
        self._storage = follower.log.storage
        self._contention = Contention(identities, is_one_request=self._storage.publishes_at_once)
        segments = SegmentReader(self._storage, follower.data_roots)
        self._judge = Judge(
            follower, clock, identities, Executor(follower, clock, identities, segments), self.retries
        )
        self._stager = Stager(follower, clock, identities)
        self._publisher = Publisher(follower, clock, identities, segments, self._contention)
        self._is_preparing = False
        self._previewing = asyncio.Lock()

    @property
    def is_settled(self) -> bool:
        """False while a root of this process may or may not be in its slot. The next group settles that first."""
        return self._publisher.is_settled

    async def commit_group(
        self,
        transactions: Sequence[Transaction],
        *,
        deadline_seconds: float | None = None,
        on_publish: Callable[[], None] | None = None,
        since: float | None = None,
        sole_writer: bool = False,
    ) -> list[Answer]:
        """Publish at most one version. Return one `Answer` for each transaction, in order.

        A refusal means that the transaction is in no version of any process. It rests on a head that was the newest
        one at `since` or later.

        - `deadline_seconds` bounds only the settling of an unknown outcome. After the deadline the members concerned
          get OutcomeUnknown, and the next call resumes settling before it does anything else. A cancelled call leaves
          the same state.
        - `on_publish` is called just before the root is sent. From then on one more call may be made before this one
          returns. That call stages its version on top of this one, and publishes it once this one has won. Otherwise
          it judges none of its transactions.
        - `since` is a time of the event loop; None means now.
        - `sole_writer` promises that no other process writes: no newer head is looked for, and the version does not
          wait for the turns of other processes.
        """
        since = asyncio.get_running_loop().time() if since is None else since
        if sole_writer:
            since = -math.inf
        assert not self._is_preparing, "one group at a time is validated and executed"
        before = self._publisher.in_flight
        if before is None and not self._publisher.is_settled:
            try:
                await self._publisher.settle(self._deadline(deadline_seconds))
            except OutcomeUnknown as error:
                # Nothing of this group was sent, but one of its ids may be in the unsettled root.
                ids = self._publisher.doubted_ids
                return [_unknown_error(t.id, error) if t.id in ids else None for t in transactions]
        if not transactions:
            return []
        self._is_preparing = True
        try:
            if before is None:
                staged, decided = await self._prepare(transactions, since)
            else:
                staged, decided = await self._prepare_ahead(before, transactions, since)
        finally:
            self._is_preparing = False
        if staged is not None:
            published = await self._publish(staged, deadline_seconds, on_publish, sole_writer)
            decided = decided | published
        return [decided.get(index) for index in range(len(transactions))]

    def stop_yielding(self) -> None:
        """End the wait for the turns of other processes, now and from now on, because this process is about to end."""
        self._contention.stop_yielding()

    async def preview(self, transaction: Transaction, head: Head) -> tuple[dict[str, bytes], bytes]:
        """Return the files and the root of the version that the transaction alone would make after `head`.

        Nothing is written. Raises what the commit would raise at that version. Previews run one at a time, so that
        many of them do not keep other users of the event loop waiting.
        """
        async with self._previewing:
            judged = await self._judge.execute_alone(Base(self._follower, head), transaction)
            staged = await self._stager.encode(judged, self._clock.now_millis())
            return staged.files, staged.root

    # --- judge, stage, upload

    async def _prepare(self, transactions: Sequence[Transaction], since: float) -> Prepared:
        """Judge, stage and upload a version on top of the head."""
        was_replayed = self._follower.state is not None
        judged = None
        try:
            if not self.may_repair:
                await self._follower.check_writable()
            if max(t.begin_version for t in transactions) > self._follower.head.version:
                await self._follower.refresh()
            judged = await self._judge_on(Base(self._follower, self._follower.head), transactions)
            staged = await self._stage(judged)
            if await self._is_outdated(judged, since):
                judged = await self._judge_on(Base(self._follower, self._follower.head), transactions)
                staged = await self._stage(judged)
        except AlpheusError as error:
            if was_replayed and error.kind == "state_drift":
                return Prepared(None, {})  # the next attempt judges by the tree instead of memory
            return Prepared(None, self._refuse_all(transactions, judged, error))
        if staged is None:
            return Prepared(None, judged.decided)
        try:
            return Prepared(await self._upload(staged), judged.decided)
        except AlpheusError as error:
            return Prepared(None, judged.decided | _refuse(staged, error))

    async def _prepare_ahead(
        self, before: InFlight, transactions: Sequence[Transaction], since: float
    ) -> Prepared:
        """Judge, stage and upload a version on top of the version `before`, which is being sent.

        Returns when the fate of `before` is known. The result is empty unless `before` has won, is the newest version,
        and is not in doubt.
        """
        base = Base(self._follower, before.staged.head, before.staged)
        staged, judged = None, None
        try:
            judged = await self._judge_on(base, transactions)
            staged = None if before.is_lost else await self._stage(judged)
            await failpoints.reached("commit.ahead_staged")
            if staged is not None and not before.is_lost:
                staged = await self._upload(staged)
        except AlpheusError:
            judged = None  # the next attempt meets the same error on a durable version
        await failpoints.reached("commit.ahead_ready")
        self.observer.on_events("staged_ahead")
        if await asyncio.shield(before.won) and judged is not None and await self._may_follow(judged, since):
            await failpoints.reached("commit.ahead_won")
            return Prepared(staged, judged.decided)
        await failpoints.reached("commit.ahead_dropped")
        self.observer.on_events("dropped_ahead")
        return Prepared(None, {})

    async def _may_follow(self, judged: Judged, since: float) -> bool:
        """Return whether the version that has just won is the newest one and not in doubt."""
        try:
            await self._is_outdated(judged, since)
        except AlpheusError:
            return False
        return judged.base.is_current and (self.may_repair or not self._follower.is_in_doubt)

    async def _judge_on(self, base: Base, transactions: Sequence[Transaction]) -> Judged:
        started = self.observer.now()
        judged = await self._judge.judge(base, transactions, may_repair=self.may_repair)
        self.observer.on_duration("execute", self.observer.now() - started)
        return judged

    async def _stage(self, judged: Judged) -> Staged | None:
        """Encode the next version. Return None when no member is left: a transaction too large for a version of its own
        is refused."""
        if not judged.members:
            return None
        head, started = judged.base.head, self.observer.now()
        try:
            staged = await self._stager.stage(judged)
        except InvalidInput as error:
            if error.kind != "too_large":
                raise
            judged.decided[judged.members[0].index] = error
            staged = None
        self.observer.on_duration("encode", self.observer.now() - started)
        now = self._clock.now_millis()
        if staged is not None and is_ahead(head.created_at_millis, now):
            self.observer.on_time_ahead(self._storage.url, head.version, head.created_at_millis - now)
        return staged

    async def _is_outdated(self, judged: Judged, since: float) -> bool:
        """Return whether transactions were refused and the head is newer than the version that they were judged on."""
        if not any(isinstance(answer, AlpheusError) for answer in judged.decided.values()):
            return False
        if not self._follower.is_fresh_since(since):
            await self._follower.refresh()
        return not judged.base.is_current

    async def _upload(self, staged: Staged) -> Staged:
        """Store the files that the root names, unless the store takes them together with the root."""
        await failpoints.reached("commit.staged")
        await self._storage.prove()
        if self._storage.publishes_at_once or not staged.files:
            return staged
        started = self.observer.now()
        try:
            await self._storage.put_many(staged.files)
        except OutcomeUnknown as error:
            raise files_not_stored(staged.slot, error) from error
        self.observer.on_duration("upload", self.observer.now() - started)
        return msgspec.structs.replace(staged, files={})

    def _refuse_all(
        self, transactions: Sequence[Transaction], judged: Judged | None, error: AlpheusError
    ) -> Decided:
        """Answer a group whose judging or staging failed as a whole, because storage is unreachable or a tree damaged.

        Nothing of the group was applied now. A transaction that an earlier version contains still hears Committed.
        """
        decided: Decided = {}
        for index, transaction in enumerate(transactions):
            known = judged.decided.get(index) if judged is not None else None
            if isinstance(known, Committed):
                decided[index] = known
            elif transaction.id in self._publisher.doubted_ids and error.kind == "history_replaced":
                decided[index] = _unknown_error(transaction.id, history_replaced_error(error))
            else:
                decided[index] = copy.copy(error)
        return decided

    # --- publish, answer

    async def _publish(
        self,
        staged: Staged,
        deadline_seconds: float | None,
        on_publish: Callable[[], None] | None,
        sole_writer: bool,
    ) -> Decided:
        """Wait for this process's turn, send the root, and return the answers of the version's members."""
        try:
            if not sole_writer and not await self._wait_for_turn(staged):
                self.observer.on_events("lost_slot")
                return {}
        except AlpheusError as error:
            return _refuse(staged, error)
        deadline = self._deadline(deadline_seconds)  # of settling alone, not of the wait
        started = self.observer.now()
        outcome = await self._publisher.publish(staged, deadline, on_publish)
        if outcome.is_won:
            self.observer.on_duration("root", self.observer.now() - started)
            self.observer.on_group(len(staged.members), len(staged.root))
        elif isinstance(outcome.error, OutcomeUnknown):
            self.observer.on_events("unknown", len(staged.members))
        elif outcome.error is None:
            self.observer.on_events("lost_slot")
        return _answer(staged, outcome)

    async def _wait_for_turn(self, staged: Staged) -> bool:
        """Wait for this process's turn. Return False when the head has moved; no member gets an answer then.

        Raises Corrupt (`history_replaced`) when the store was restored to an older state.
        """
        waited = await self._contention.wait(self._follower.foreign_count)
        self.observer.on_duration("turn", waited)
        if not waited:
            return True
        self._follower.check_history()
        return self._follower.head.commit_id == staged.parent_commit_id

    def _deadline(self, seconds: float | None) -> int | None:
        """Return the time `seconds` from now, in milliseconds."""
        return None if seconds is None else self._clock.now_millis() + int(seconds * 1000)


def _answer(staged: Staged, outcome: PublishOutcome) -> Decided:
    """Return the answers of a version's members, or none when another version took the slot."""
    if outcome.is_won:
        return {member.index: _answer_of(staged, member) for member in staged.members}
    if isinstance(outcome.error, OutcomeUnknown):
        return {member.index: _unknown_error(member.recorded.id, outcome.error) for member in staged.members}
    return {} if outcome.error is None else _refuse(staged, outcome.error)


def _answer_of(staged: Staged, member: Member) -> Committed:
    return Committed(
        version=staged.head.version,
        transaction_id=member.recorded.id,
        created_at_millis=staged.head.created_at_millis,
        token=staged.head.token,
        rows_added=member.rows_added,
        rows_removed=member.rows_removed,
        files_added=member.files_added,
    )


def _unknown_error(transaction_id: str, error: AlpheusError) -> OutcomeUnknown:
    return OutcomeUnknown(
        error.message, transaction_id=transaction_id, kind=error.kind, hint=error.hint, version=error.version
    )


def _refuse(staged: Staged, error: AlpheusError) -> Decided:
    return {member.index: copy.copy(error) for member in staged.members}
