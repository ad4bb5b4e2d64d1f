"""Idempotent retries: what earlier versions already answer to a transaction (FORMAT.md, "Retries").

Three keys make a repetition safe:

    id       the transaction's id, for a lost reply
    key      the retry key, for a job that runs again with new files
    writer   an idempotent writer's name and sequence, for a stream with a count of its own

The first answer that applies holds:

    1. the id has committed
    2. the id was cancelled
    3. the key has committed
    4. the tables have the writer's sequence
    5. a version since the begin version has expired
    6. the transaction conflicts with a version since its begin version
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.clock import uuid7_millis
from alpheus_journal.conflicts.rules import Stakes
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput
from alpheus_journal.execute.execute import count_files_added, paths_counted, rows_of
from alpheus_journal.format import ObjectName
from alpheus_journal.log.index_runs import cancel_term, id_term
from alpheus_journal.model.answers import Committed, Event, Outcome, StoredObject, make_token
from alpheus_journal.model.definitions import TableDef, WriterMark
from alpheus_journal.model.operation_messages import operations_digest
from alpheus_journal.model.operations import (
    AppendFiles,
    ChangeRows,
    OverwriteFiles,
    RecordedTransaction,
    Transaction,
)
from alpheus_journal.replay.follower import ROOTS_READ_AT_ONCE, Follower
from alpheus_journal.replay.state import Head
from alpheus_journal.workspace.checks import decode_as

KEY_SIZE_BYTES_MAX = 1024
WRITER_NAME_SIZE_BYTES_MAX = 256
WRITER_SEQUENCE_MAX_EXCLUSIVE = 1 << 63

Answer = Committed | AlpheusError | None
Load = Callable[[Sequence[ObjectName]], Awaitable[Sequence[StoredObject | None]]]
"""Reads objects as they stand at the head."""


def check_retry_keys(transaction: Transaction) -> None:
    """Refuse a retry key or a writer that cannot be recorded. Raises InvalidInput."""
    if transaction.key:
        check_key(transaction.key)
    writer = transaction.writer
    if writer is None:
        return
    if not writer.name:
        raise InvalidInput("an idempotent writer needs a name")
    _check_text(writer.name, "the name of a writer", WRITER_NAME_SIZE_BYTES_MAX)
    if not 0 <= writer.sequence < WRITER_SEQUENCE_MAX_EXCLUSIVE:
        raise InvalidInput(
            f"writer {writer.name}: the sequence {writer.sequence} is not within 0 to 2^63 - 1"
        )
    if not written_tables(transaction):
        raise InvalidInput(
            f"writer {writer.name}: transaction {transaction.id} writes no rows, so no table can record its sequence",
            hint="give a writer only to transactions that write rows; use a retry key for others",
        )


def check_key(key: str) -> None:
    """Refuse an idempotency key that cannot be recorded. Raises InvalidInput."""
    if not key:
        raise InvalidInput("a retry key must not be empty")
    _check_text(key, "a retry key", KEY_SIZE_BYTES_MAX)


def _check_text(text: str, what: str, size_max: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} holds a lone surrogate") from None
    if size > size_max:
        raise InvalidInput(f"{what} takes {size} bytes, at most {size_max} are allowed", kind="too_large")


def difference(first: Transaction | RecordedTransaction, second: Transaction) -> str:
    """Say how two requests with one id differ, in words that follow "was used". Return "" for the same request.

    The begin version, message and properties may differ: they do not change what the transaction does.
    """
    digest = (
        first.operations_digest
        if isinstance(first, RecordedTransaction)
        else operations_digest(first.operations)
    )
    if digest != operations_digest(second.operations):
        return "for other operations"
    is_known = first.principal_authenticated or second.principal_authenticated
    if is_known and first.principal != second.principal:  # an unauthenticated one is a claim that may change
        return "by another principal"
    if (first.key, first.writer) != (second.key, second.writer):
        return "with another retry key or writer"
    if (first.serializable, first.reads) != (second.serializable, second.reads):
        return "with another isolation, or after other reads"
    return ""


def written_tables(transaction: Transaction) -> dict[ObjectName, str]:
    """Return the tables whose rows a transaction writes, with the table ids that its files were written for."""
    return {
        operation.target: operation.table_id
        for operation in transaction.operations
        if isinstance(operation, AppendFiles | OverwriteFiles | ChangeRows)
    }


def marks_of(
    transaction: Transaction, objects: Sequence[StoredObject | None]
) -> list[tuple[ObjectName, WriterMark | None]]:
    """Return each table that the transaction writes, with its writer's mark if that covers the transaction's sequence.

    `objects` are those tables, in the order of `written_tables`.
    """
    writer = transaction.writer
    assert writer is not None
    marks: list[tuple[ObjectName, WriterMark | None]] = []
    for (name, table_id), stored in zip(written_tables(transaction).items(), objects, strict=True):
        mark = None
        if stored is not None:
            definition = decode_as(name, stored, TableDef)
            if definition.id == table_id:
                mark = definition.writer_marks.get(writer.name)
        marks.append((name, mark if mark is not None and mark.sequence >= writer.sequence else None))
    return marks


def cancelled_error(transaction_id: str, version: int) -> InvalidInput:
    return InvalidInput(
        f"transaction {transaction_id} was cancelled in version {version}",
        kind="id_cancelled",
        version=version,
    )


class Seen(msgspec.Struct, frozen=True):
    """The result of a search for a transaction's id: its record and event, or the version that cancels it, or neither.

    `gap` is the tombstone that cut the search short. None means that no version that may hold the id has expired.
    """

    recorded: RecordedTransaction | None = None
    event: Event | None = None
    cancelled: int | None = None
    gap: Expired | None = None


def perhaps_expired_error(transaction_id: str, gap: Expired) -> Expired:
    """Return the error for an id that may have committed in an expired version."""
    return Expired(
        f"it is no longer known whether transaction {transaction_id} has committed: {gap.message}",
        oldest=gap.oldest,
        version=gap.version,
        hint="read the catalog to see whether it has the changes, and use a new id",
    )


def cancelled_outcome(transaction_id: str, gap: Expired | None) -> Outcome:
    """Return the outcome of a transaction that can no longer commit, because it is cancelled.

    Raises Expired when it may have committed before the cancellation, in an expired version.
    """
    if gap is None:
        return Outcome(state="cancelled")
    raise Expired(
        f"transaction {transaction_id} can no longer commit, but it may have committed earlier: {gap.message}",
        oldest=gap.oldest,
        version=gap.version,
        hint="read the catalog to see whether it has the changes",
    )


class Retries:
    """Answers repeated transactions from durable versions, which it reads through the follower."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    async def answer(self, stakes: Stakes, head: Head, load: Load) -> Answer:
        """Return the answer of the log up to `head`, or None when the transaction must be executed.

        Raises Expired when a version since its begin version has expired. Raises InvalidInput for a begin version
        above the head, and for a writer's sequence that only some of the written tables have.
        """
        transaction = stakes.transaction
        if transaction.begin_version > head.version:
            raise InvalidInput(
                f"transaction {transaction.id} began at version {transaction.begin_version},"
                f" the newest is {head.version}",
                kind="future_version",
            )
        answer = await self._answer_since_begin(stakes)
        if isinstance(answer, Committed | InvalidInput):
            return answer
        if transaction.id_was_given:
            before = await self._answer_up_to_begin(transaction)
            if isinstance(before, Committed | InvalidInput):
                return before
            answer = before or answer
        if transaction.key and (found := await self.find_commit_of_key(transaction.key)) is not None:
            return found
        if transaction.writer is not None:
            committed = await self._answer_from_writer(transaction, load)
            if committed is not None:
                return committed
        if isinstance(answer, Expired):
            raise answer
        return answer

    async def _answer_up_to_begin(
        self, transaction: Transaction
    ) -> Committed | InvalidInput | Expired | None:
        """Return the answer of the versions up to the begin version, for an id that the caller chose.

        Such an id may have committed before this begin version, when the same work ran the first time. So the begin
        version is no lower bound of the search. For any other id it is one: the id was made when the transaction began.
        A saved transaction keeps its begin version, and who gave it an id searched these versions at its begin.
        """
        seen = await self.find_id(transaction.id, None, transaction.begin_version)
        if seen.recorded is not None and seen.event is not None:
            return await self._answer_repetition(transaction, seen.recorded, seen.event)
        if seen.cancelled is not None:
            return cancelled_error(transaction.id, seen.cancelled)
        return None if seen.gap is None else perhaps_expired_error(transaction.id, seen.gap)

    async def find_id(self, transaction_id: str, since: int | None, until: int) -> Seen:
        """Search the kept versions in (`since`, `until`] for an id, the newest first.

        When `since` is None the search goes back to the time in the id, or to the oldest version for an id without a
        time: no version from before the id was made can hold it. The search continues below a cancellation, because
        the earlier one of a commit and a cancellation holds.
        """
        made_at, low = 0, 0 if since is None else since + 1
        if since is None and transaction_id[14] == "7":
            made_at = uuid7_millis(transaction_id) - 2 * fmt.CLOCK_SKEW_MILLIS_MAX
            if any(made_at <= mark.up_to_millis for mark in await self._follower.time_marks()):
                made_at = 0  # versions below a mark may have later times
            low = min(self._follower.known_before(made_at) or 0, until + 1)
        cancelled_in = None
        index, sought = self._follower.index, (id_term(transaction_id), cancel_term(transaction_id))
        found = index.versions(sought, low, until, made_at_millis=made_at)
        async with contextlib.aclosing(found) as versions:
            async for version in versions:
                try:
                    event = await self._follower.recorded_event(version)
                except Expired:
                    break
                for recorded in event.transactions:
                    if recorded.id == transaction_id and self._follower.log.given_up_range(version) is None:
                        return Seen(recorded=recorded, event=event)
                    if recorded.cancels == transaction_id:
                        cancelled_in = version
                        break
                else:
                    index.collided()
        gap = None if low > until else await self._follower.find_cut(low, made_at)
        return Seen(cancelled=cancelled_in, gap=gap)

    async def _answer_since_begin(self, stakes: Stakes) -> Answer:
        transaction = stakes.transaction
        if self._follower.head.version - transaction.begin_version > ROOTS_READ_AT_ONCE:
            answer = await self._answer_from_index(transaction)
            if answer is not None:
                return answer
        refusal: AlpheusError | None = None
        versions = self._follower.find_concerning(stakes)
        if not versions:
            return None
        async with contextlib.aclosing(self._read_events(versions)) as events:
            async for event in events:
                if isinstance(event, Expired):
                    refusal = event
                    continue
                answer = await self._answer_from_event(transaction, event)
                if answer is not None:
                    return answer
                # A later version may still hold this transaction's own id, and then this is not a conflict.
                refusal = refusal or stakes.conflict_with_event(event)
        return refusal

    async def _answer_from_index(self, transaction: Transaction) -> Committed | InvalidInput | None:
        """Return the answer of the versions since the begin version that are not in memory, found by the index.

        None decides nothing: the caller reads these versions for conflicts anyway.
        """
        low, high = transaction.begin_version + 1, self._follower.window_start - 1
        if high - low < ROOTS_READ_AT_ONCE:
            return None
        sought = (id_term(transaction.id), cancel_term(transaction.id))
        found = self._follower.index.versions(sought, low, high, reads=False)
        async with contextlib.aclosing(found) as versions:
            proposed = [version async for version in versions]
        for version in reversed(proposed):
            with contextlib.suppress(Expired):
                answer = await self._answer_from_event(
                    transaction, await self._follower.recorded_event(version)
                )
                if answer is not None:
                    return answer
                self._follower.index.collided()
        return None

    async def _answer_from_event(
        self, transaction: Transaction, event: Event
    ) -> Committed | InvalidInput | None:
        for recorded in event.transactions:
            if recorded.id == transaction.id:
                return await self._answer_repetition(transaction, recorded, event)
            if recorded.cancels == transaction.id:
                return cancelled_error(transaction.id, event.version)
        return None

    async def _read_events(self, versions: Sequence[int]) -> AsyncGenerator[Event | Expired, None]:
        """Yield the events of ascending versions, read several at once. Once a version has expired, skip all versions
        below the oldest kept one."""
        oldest = start = 0
        while start < len(versions):
            part = versions[start : start + ROOTS_READ_AT_ONCE]
            for event in await self._follower.recorded_events(part):
                if isinstance(event, Expired):
                    oldest = event.oldest or 0
                yield event
            start = max(start + len(part), bisect_left(versions, oldest))

    async def _answer_repetition(
        self, transaction: Transaction, recorded: RecordedTransaction, event: Event
    ) -> Committed | InvalidInput:
        other = difference(recorded, transaction)
        if other:
            return InvalidInput(
                f"transaction id {transaction.id} was used in version {event.version} {other}",
                kind="id_reused",
                version=event.version,
                hint=f"use a new id for other work; version {event.version} has committed the work of this id",
            )
        return await self.recorded_answer(recorded, event)

    async def _answer_from_writer(self, transaction: Transaction, load: Load) -> Committed | None:
        writer = transaction.writer
        assert writer is not None
        names = [
            fmt.check_object_name(name, self._follower.reader.keys) for name in written_tables(transaction)
        ]
        marks = marks_of(transaction, await load(names))
        written = [(name, mark) for name, mark in marks if mark is not None]
        if not written:
            return None
        if len(written) < len(marks):
            name, mark = written[0]
            other = next(name for name, mark in marks if mark is None)
            raise InvalidInput(
                f"writer {writer.name}: {name} has sequence {mark.sequence} (transaction {mark.transaction_id},"
                f" version {mark.version}), so {writer.sequence} was written to {name}, but not to {other}",
                kind="sequence_reused",
                version=mark.version,
                hint="write the same tables with every sequence, or use one writer name for each set of tables",
            )
        mark = max((mark for _, mark in written), key=lambda mark: mark.version)
        return await self._answer_from_mark(mark, writer.sequence)

    async def _answer_from_mark(self, mark: WriterMark, sequence: int) -> Committed:
        """Return the answer of a writer's mark. The mark outlives its version; time and rows are then unknown (0)."""
        try:
            event = await self._follower.recorded_event(mark.version)
        except Expired:
            commit_id = await self._follower.log.commit_id(mark.version)
            return Committed(
                version=mark.version,
                transaction_id=mark.transaction_id,
                created_at_millis=0,
                token=make_token(self._follower.catalog_id, mark.version, commit_id),
                duplicate=True,
            )
        for recorded in event.transactions:
            if recorded.id == mark.transaction_id and mark.sequence == sequence:
                return await self.recorded_answer(recorded, event)
        return Committed(
            version=mark.version,
            transaction_id=mark.transaction_id,
            created_at_millis=event.created_at_millis,
            token=event.token,
            duplicate=True,
        )

    async def find_commit_of_key(self, key: str) -> Committed | None:
        """Return the recorded answer of the last kept transaction with an idempotency key, up to the known head."""
        found = await self._follower.find_by_key(key)
        if found is not None:
            version, recorded = found
            # A key expires with its version, even while this process remembers the key.
            with contextlib.suppress(Expired):
                event = await self._follower.recorded_event(version)
                try:
                    return await self.recorded_answer(recorded, event)
                except Corrupt:
                    await self._follower.root(
                        version
                    )  # raises Expired where a collection took its definitions
                    raise
        return None

    async def recorded_answer(self, recorded: RecordedTransaction, event: Event) -> Committed:
        """Return the recorded answer of a transaction of `event`."""
        added = removed = files = 0
        for action in recorded.actions:
            paths = paths_counted(action)
            came, went = rows_of(action, await self._follower.reader.stored(paths) if paths else {})
            added, removed = added + came, removed + went
            files += count_files_added(action.operation)
        return Committed(
            version=event.version,
            transaction_id=recorded.id,
            created_at_millis=event.created_at_millis,
            token=event.token,
            duplicate=True,
            rows_added=added,
            rows_removed=removed,
            files_added=files,
        )
