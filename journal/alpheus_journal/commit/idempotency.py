"""The same again: what versions already there say to a transaction before it is executed (FORMAT.md, "Retries").

Three keys make a repetition safe: the transaction's id (a lost reply), `key` (a job that runs again with new
files), `writer` (a stream and its own count). Answers, the first that applies: the id committed; the id was
cancelled; the key committed; the writer's sequence is in the tables; a version since the begin version is gone; a
conflict with one of them.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.clock import uuid7_millis
from alpheus_journal.conflicts.rules import Stakes
from alpheus_journal.errors import AlpheusError, Expired, InvalidInput
from alpheus_journal.execute.execute import definitions_counted, rows_of
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
from alpheus_journal.workspace.checks import typed

KEY_SIZE_BYTES_MAX = 1024
WRITER_NAME_SIZE_BYTES_MAX = 256
WRITER_SEQUENCE_MAX_EXCLUSIVE = 1 << 63

Answer = Committed | AlpheusError | None
Load = Callable[[Sequence[ObjectName]], Awaitable[Sequence[StoredObject | None]]]
"""Objects as they stand at the head."""


def check_retry_keys(transaction: Transaction) -> None:
    """Raises InvalidInput for a key or a writer that cannot be recorded."""
    if transaction.key:
        _check_text(transaction.key, "a retry key", KEY_SIZE_BYTES_MAX)
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
            f"writer {writer.name}: transaction {transaction.id} writes rows of no table, so that nothing would"
            " remember its sequence",
            hint="give a writer to transactions that append or overwrite rows only; use a retry key for others",
        )


def _check_text(text: str, what: str, size_max: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} holds a lone surrogate") from None
    if size > size_max:
        raise InvalidInput(f"{what} takes {size} bytes, {size_max} at most", kind="too_large")


def difference(first: Transaction | RecordedTransaction, second: Transaction) -> str:
    """In what two requests of one id differ, in words that follow "was used"; "" when they are the same request.

    The begin version, message and properties may differ: they do not change what is done.
    """
    digest = (
        first.operations_digest
        if isinstance(first, RecordedTransaction)
        else operations_digest(first.operations)
    )
    if digest != operations_digest(second.operations):
        return "for other operations"
    is_known = first.principal_authenticated or second.principal_authenticated
    if is_known and first.principal != second.principal:  # else it is a claim: a job's host, which changes
        return "by another principal"
    if (first.key, first.writer) != (second.key, second.writer):
        return "with another retry key or writer"
    if (first.serializable, first.reads) != (second.serializable, second.reads):
        return "at another isolation, or having read something else"
    return ""


def written_tables(transaction: Transaction) -> dict[ObjectName, str]:
    """The tables whose rows a transaction writes, with the ids that its files were written for."""
    return {
        operation.target: operation.table_id
        for operation in transaction.operations
        if isinstance(operation, AppendFiles | OverwriteFiles | ChangeRows)
    }


def marks_of(
    transaction: Transaction, objects: Sequence[StoredObject | None]
) -> list[tuple[ObjectName, WriterMark | None]]:
    """What the tables that a transaction writes (`objects`, in their order) remember of its writer."""
    writer = transaction.writer
    assert writer is not None
    marks: list[tuple[ObjectName, WriterMark | None]] = []
    for (name, table_id), stored in zip(written_tables(transaction).items(), objects, strict=True):
        mark = None
        if stored is not None:
            definition = typed(name, stored, TableDef)
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
    """What a search for a transaction's id met: its record with the event of its version, or the version that cancels
    it, or neither. `gap`: the tombstone that cut the search short; None: no version that may hold the id is gone."""

    recorded: RecordedTransaction | None = None
    event: Event | None = None
    cancelled: int | None = None
    gap: Expired | None = None


def perhaps_expired_error(transaction_id: str, gap: Expired) -> Expired:
    """The refusal where an id may have committed in a version that is gone."""
    return Expired(
        f"whether transaction {transaction_id} has committed is not known any more: {gap.message}",
        oldest=gap.oldest,
        version=gap.version,
        hint="read the catalog to see whether its work is there, and use a new id",
    )


def cancelled_outcome(transaction_id: str, gap: Expired | None) -> Outcome:
    """The answer for a transaction that a cancellation keeps from committing from now on."""
    if gap is None:
        return Outcome(state="cancelled")
    raise Expired(
        f"transaction {transaction_id} will not commit any more, but may have: {gap.message}",
        oldest=gap.oldest,
        version=gap.version,
        hint="read the catalog to see whether its work is there",
    )


class Retries:
    """See the module. Reads through the follower; decides nothing that durable versions do not say."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    async def answer(self, stakes: Stakes, head: Head, load: Load) -> Answer:
        """What the log up to `head` says to a transaction; None: nothing, execute it.

        Raises Expired when a version since its begin version is gone, InvalidInput for a begin version above the
        head and for a writer's sequence that some of its tables have and others have not.
        """
        transaction = stakes.transaction
        if transaction.begin_version > head.version:
            raise InvalidInput(
                f"transaction {transaction.id} began at version {transaction.begin_version},"
                f" the newest is {head.version}",
                kind="future_version",
            )
        told = await self._answer_since_begin(stakes)
        if isinstance(told, Committed | InvalidInput):
            return told
        if transaction.id_was_given:
            before = await self._answer_up_to_begin(transaction)
            if isinstance(before, Committed | InvalidInput):
                return before
            told = before or told
        if transaction.key:
            found = await self._follower.of_key(transaction.key)
            if found is not None:
                version, recorded = found
                # A key goes with its version, also where this process remembers it.
                with contextlib.suppress(Expired):
                    return await self.committed(recorded, await self._follower.told(version))
        if transaction.writer is not None:
            committed = await self._answer_from_writer(transaction, load)
            if committed is not None:
                return committed
        if isinstance(told, Expired):
            raise told
        return told

    async def _answer_up_to_begin(
        self, transaction: Transaction
    ) -> Committed | InvalidInput | Expired | None:
        """What versions up to the begin version say to an id that is not fresh."""
        seen = await self.find_id(transaction.id, None, transaction.begin_version)
        if seen.recorded is not None and seen.event is not None:
            return await self._answer_repetition(transaction, seen.recorded, seen.event)
        if seen.cancelled is not None:
            return cancelled_error(transaction.id, seen.cancelled)
        return None if seen.gap is None else perhaps_expired_error(transaction.id, seen.gap)

    async def find_id(self, transaction_id: str, since: int | None, until: int) -> Seen:
        """Search the kept versions of (`since`, `until`] for an id. `since` None: back to the time in the id, all of
        them where it has none.

        Newest first, and on below a cancellation: of the two, what comes first in the log holds. No version from
        before the id was made can hold it, so the search ends there.
        """
        made_at, low = 0, 0 if since is None else since + 1
        if since is None and transaction_id[14] == "7":
            made_at = uuid7_millis(transaction_id) - 2 * fmt.CLOCK_SKEW_MILLIS_MAX
            if any(made_at <= mark.up_to_millis for mark in await self._follower.time_marks()):
                made_at = 0  # times before a mark may be later ones
            low = min(self._follower.known_before(made_at) or 0, until + 1)
        cancelled_in = None
        index, sought = self._follower.index, (id_term(transaction_id), cancel_term(transaction_id))
        found = index.versions(sought, low, until, made_at_millis=made_at)
        async with contextlib.aclosing(found) as versions:
            async for version in versions:
                try:
                    event = await self._follower.told(version)
                except Expired:
                    break
                for recorded in event.transactions:
                    if recorded.id == transaction_id and self._follower.log.gave_up(version) is None:
                        return Seen(recorded=recorded, event=event)
                    if recorded.cancels == transaction_id:
                        cancelled_in = version
                        break
                else:
                    index.collided()
        gap = None if low > until else await self._follower.cut(low, made_at)
        return Seen(cancelled=cancelled_in, gap=gap)

    async def _answer_since_begin(self, stakes: Stakes) -> Answer:
        transaction = stakes.transaction
        if self._follower.head.version - transaction.begin_version > ROOTS_READ_AT_ONCE:
            answer = await self._answer_from_index(transaction)
            if answer is not None:
                return answer
        refusal: AlpheusError | None = None
        versions = self._follower.concerning(stakes)
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
                # The own id may still come, and then it is no conflict.
                refusal = refusal or stakes.conflict_with_event(event)
        return refusal

    async def _answer_from_index(self, transaction: Transaction) -> Committed | InvalidInput | None:
        """What the index knows of the id in versions since the begin version that would have to be read. None is no
        answer: these are read for conflicts, too."""
        low, high = transaction.begin_version + 1, self._follower.window_start - 1
        if high - low < ROOTS_READ_AT_ONCE:
            return None
        sought = (id_term(transaction.id), cancel_term(transaction.id))
        found = self._follower.index.versions(sought, low, high, reads=False)
        async with contextlib.aclosing(found) as versions:
            proposed = [version async for version in versions]
        for version in reversed(proposed):
            with contextlib.suppress(Expired):
                answer = await self._answer_from_event(transaction, await self._follower.told(version))
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
        """Versions, ascending, some of them read at once; those below one that is known to be kept are left out."""
        oldest = start = 0
        while start < len(versions):
            part = versions[start : start + ROOTS_READ_AT_ONCE]
            for event in await self._follower.told_together(part):
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
                hint=f"the same work run again is done, by version {event.version}; use a new id for other work",
            )
        return await self.committed(recorded, event)

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
                f" version {mark.version}), so {writer.sequence} was written there, but not to {other}",
                kind="sequence_reused",
                version=mark.version,
                hint="write the same tables with every sequence, or use a name for each set of tables",
            )
        mark = max((mark for _, mark in written), key=lambda mark: mark.version)
        return await self._answer_from_mark(mark, writer.sequence)

    async def _answer_from_mark(self, mark: WriterMark, sequence: int) -> Committed:
        """The answer of a mark. It outlives the version that it names: of that, time and rows are then not known
        (0)."""
        try:
            event = await self._follower.told(mark.version)
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
                return await self.committed(recorded, event)
        return Committed(
            version=mark.version,
            transaction_id=mark.transaction_id,
            created_at_millis=event.created_at_millis,
            token=event.token,
            duplicate=True,
        )

    async def committed(self, recorded: RecordedTransaction, event: Event) -> Committed:
        """The recorded answer of a transaction of `event`."""
        added = removed = 0
        for action in recorded.actions:
            paths = definitions_counted(action)
            came, went = rows_of(action, await self._follower.reader.stored(paths) if paths else {})
            added, removed = added + came, removed + went
        return Committed(
            version=event.version,
            transaction_id=recorded.id,
            created_at_millis=event.created_at_millis,
            token=event.token,
            duplicate=True,
            rows_added=added,
            rows_removed=removed,
        )
