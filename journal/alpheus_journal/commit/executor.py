"""Execute one transaction on a workspace: fetch what it reads, run its operations, encode its rows.

The result is a `Member`: the part of the next version that the transaction makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.clock import Clock, Identities
from alpheus_journal.commit.base import Base
from alpheus_journal.commit.manifest_cache import SegmentReader
from alpheus_journal.commit.staged import Member
from alpheus_journal.conflicts.rivals import name_rival
from alpheus_journal.conflicts.rules import Touches
from alpheus_journal.errors import AlpheusError, Conflict, Expired, InvalidInput
from alpheus_journal.execute.execute import context_of, count_files_added, execute_async
from alpheus_journal.execute.prefetch import fetch
from alpheus_journal.execute.rules.rows import find_expected_segments
from alpheus_journal.format import ObjectName
from alpheus_journal.log import leases
from alpheus_journal.log.times import next_time
from alpheus_journal.log.version_bytes import action_rows, run_aside
from alpheus_journal.model.action_rows import ActionRow
from alpheus_journal.model.definitions import Segment
from alpheus_journal.model.operation_messages import (
    encode_operation,
    operation_bytes,
    operation_bytes_of_message,
)
from alpheus_journal.model.operations import (
    ChangeRows,
    Operation,
    RecordedTransaction,
    Transaction,
    UpdateTable,
)
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.state import Head
from alpheus_journal.workspace.context import Context, Executed
from alpheus_journal.workspace.workspace import Unfetched, Workspace, recent_definitions
from alpheus_pb.v1 import actions_pb2

OPERATIONS_AT_ONCE_MAX = 16
"""Operations executed in one turn of the event loop: some milliseconds of work. Encoding a row costs a tenth."""
NAMES_AT_ONCE_MAX = 64
"""Names looked up in one turn, for the small transactions of a group."""
NAMES_AN_OPERATION = 4
"""The number of looked-up names that counts as one executed operation."""
EXECUTED_SIZE_BYTES = 4096
"""The bytes of written definitions that count as one more executed operation."""
EXECUTED_EFFECTS = 8
"""The number of objects changed by one operation that counts as one more executed operation."""


class _Run(msgspec.Struct):
    """The results so far of one transaction's operations."""

    executed: list[Executed] = []
    uploads: dict[str, bytes] = {}
    encoded: list[actions_pb2.Operation | None] = []
    """Each operation's message where the digest needed it. None means that its row is encoded from the action."""
    digest: bytes = b""
    definitions_size: int = 0
    """Bytes of definitions written."""


class Executor:
    """Executes transactions for one process and catalog. All methods belong to one event loop."""

    def __init__(
        self, follower: Follower, clock: Clock, identities: Identities, segments: SegmentReader
    ) -> None:
        self._follower = follower
        self._clock = clock
        self._identities = identities
        self._keys = follower.reader.keys
        self._segments = segments
        self._recent = recent_definitions()
        self._work_done = 0  # operations since the event loop had its last turn

    def new_workspace(self) -> Workspace:
        """Return an empty workspace that shares the definitions decoded recently."""
        return Workspace(recent=self._recent)

    async def yield_after(self, weight: int) -> None:
        """Count work of `weight` operations, and let readers and streams run when enough has been done."""
        self._work_done += weight
        if self._work_done >= OPERATIONS_AT_ONCE_MAX:
            self._work_done = 0
            await asyncio.sleep(0)

    # --- fetch

    async def fetch(
        self, workspace: Workspace, base: Base, transaction: Transaction, drops: Mapping[str, int]
    ) -> None:
        """Bring everything that the transaction's operations read into the workspace.

        `drops` is the number of children of each namespace that the whole group can drop. Raises InvalidInput for
        impossible names, and for manifest segments or data files that differ from what the transaction announces.
        """
        segments = await fetch(workspace, transaction.operations, base, base, self._keys, drops=drops)
        await self._fetch_begun(workspace, base, transaction)
        if segments:
            collected_before = (await base.catalog_definition()).collected_before_millis
            segments_since = 0
            if transaction.lease_path and leases.is_too_old(transaction.id, collected_before):
                # `References` found that the lease keeps the data files, whatever their age, and these segments.
                collected_before, segments_since = 0, leases.segments_kept_since(transaction.id)
            await self._segments.fetch_brought(
                workspace, segments, transaction, collected_before, segments_since
            )
        if len(transaction.operations) > 1:  # read together, not one by one as operations need them
            expected = find_expected_segments(workspace, transaction.operations)
            if expected:
                await self._segments.fetch(workspace, expected, base.staged_segments)

    async def fetch_together(
        self, workspace: Workspace, base: Base, gathered: Iterable[Sequence[ObjectName]]
    ) -> None:
        """Bring everything that several small members read.

        Raises what reading any part of it raises. Each member must then fetch by itself, so that only the members
        concerned fail.
        """
        names = dict.fromkeys(name for names in gathered for name in names)
        missing = [name for name in names if not workspace.has(name)]
        for start in range(0, len(missing), NAMES_AT_ONCE_MAX):
            part = missing[start : start + NAMES_AT_ONCE_MAX]
            for name, stored in zip(part, await base.load(part), strict=True):
                workspace.add_object(name, stored)
            await self.yield_after(len(part) // NAMES_AN_OPERATION)

    async def _fetch_begun(self, workspace: Workspace, base: Base, transaction: Transaction) -> None:
        """Bring the tables whose rows change, as they were when the transaction began.

        Skips versions that have expired. A transaction that undrops tables executes without them (`context_of`).
        """
        begin = transaction.begin_version
        changed = {o.target for o in transaction.operations if isinstance(o, ChangeRows)}
        missing = [name for name in sorted(changed) if not workspace.has_past(begin, name)]
        if not missing:
            return
        with contextlib.suppress(Expired):
            found = await base.tables_at(begin, missing)
            for name, stored in zip(missing, found, strict=True):
                workspace.add_past(begin, name, stored)

    # --- execute

    async def execute(
        self, durable: Workspace, on: Workspace, transaction: Transaction, index: int, base: Base
    ) -> tuple[Workspace, Member]:
        """Execute the transaction on a fork of `on`. Return the fork, and the member with this `index`.

        Segments that execution turns out to need are read into `durable`, below `on`. Raises the error for the client.
        """
        fork = on.fork()

        async def run(operation: Operation, context: Context) -> Executed:
            while True:  # only this operation is executed again, not those before it
                try:
                    return await execute_async(fork, operation, context)
                except Unfetched as needed:
                    await self._segments.fetch(durable, needed.segments, base.staged_segments)
                except Conflict as conflict:
                    await self._name_rival(conflict, operation, transaction, base)
                    raise

        context = context_of(
            transaction,
            self._keys,
            self._identities.uuid4,
            base.head.version + 1,
            revision=base.head.revision,
        )
        done = await self._run_operations(run, transaction, context)
        recorded = self._record(transaction, done, base.head)
        rows = await self._encode_rows(recorded, done)
        return fork, Member(
            index=index,
            recorded=recorded,
            touches=await run_aside(len(recorded.actions), Touches, recorded),
            rows=rows,
            uploads=done.uploads,
            definitions_size=done.definitions_size,
            made_size=context.spent.made_size_bytes,
            rows_added=sum([e.rows_added for e in done.executed]),
            rows_removed=sum([e.rows_removed for e in done.executed]),
            files_added=sum([count_files_added(operation) for operation in transaction.operations]),
            made=[made for e in done.executed for made in e.made],
        )

    async def _run_operations(
        self,
        run: Callable[[Operation, Context], Awaitable[Executed]],
        transaction: Transaction,
        context: Context,
    ) -> _Run:
        done = _Run()
        digest = hashlib.sha256()
        for operation in transaction.operations:
            await self.yield_after(0)
            executed = await run(operation, context)
            # The digest comes after the execution, which has checked that the texts can be encoded.
            if executed.action.operation is operation and not _adds_columns(operation):
                message = encode_operation(operation)
                digest.update(operation_bytes_of_message(message))
                done.encoded.append(message)
            else:  # the digest covers the request, without assigned ids
                digest.update(operation_bytes(operation))
                done.encoded.append(None)
            done.executed.append(executed)
            done.uploads.update(executed.uploads)
            made = sum([len(one.data) for one in executed.made])
            written = sum(map(len, executed.uploads.values())) - made
            self._work_done += (
                1 + written // EXECUTED_SIZE_BYTES + len(executed.action.also) // EXECUTED_EFFECTS
            )
            done.definitions_size += written
            if done.definitions_size > fmt.DEFINITIONS_SIZE_BYTES_MAX:
                raise InvalidInput(
                    f"transaction {transaction.id} writes more than {fmt.DEFINITIONS_SIZE_BYTES_MAX} bytes of"
                    " definitions: each operation writes the whole definition of its object",
                    kind="too_large",
                    hint="use fewer operations for each object, or split the transaction",
                )
        done.digest = digest.digest()
        return done

    def _record(self, transaction: Transaction, done: _Run, head: Head) -> RecordedTransaction:
        return RecordedTransaction(
            id=transaction.id,
            operations_digest=done.digest,
            principal=transaction.principal,
            principal_authenticated=transaction.principal_authenticated,
            message=transaction.message,
            properties=transaction.properties,
            serializable=transaction.serializable,
            branch="",
            begin_version=transaction.begin_version,
            committed_at_millis=next_time(
                head.created_at_millis, self._clock.now_millis(), transaction.operations
            ),
            actions=tuple([e.action for e in done.executed]),
            reads=transaction.reads,
            key=transaction.key,
            writer=transaction.writer,
        )

    async def _encode_rows(self, recorded: RecordedTransaction, done: _Run) -> list[ActionRow]:
        """Return the transaction's rows of the root. Adds files to `done.uploads` for actions too large for a row."""
        rows: list[ActionRow] = []
        for row, files in action_rows(recorded, self._keys, self._identities, done.encoded):
            rows.append(row)
            if files:
                done.uploads.update(files)
            if not len(rows) % (10 * OPERATIONS_AT_ONCE_MAX):
                await asyncio.sleep(0)
        return rows

    async def _name_rival(
        self, conflict: Conflict, operation: Operation, transaction: Transaction, base: Base
    ) -> None:
        """Add the rival to a conflict that was found by executing an operation."""

        async def list_files(table_id: str, segments: Sequence[Segment]) -> set[str]:
            found = self.new_workspace()
            await self._segments.fetch(found, [(table_id, segment) for segment in segments], None)
            return {path for one in found.contents(segments, table_id) for path in one.paths().to_pylist()}

        with contextlib.suppress(AlpheusError):  # the client hears the conflict, even without its rival
            events = base.events_down(transaction.begin_version)
            async with contextlib.aclosing(events):
                await name_rival(conflict, operation, transaction, events, list_files)


def _adds_columns(operation: Operation) -> bool:
    return isinstance(operation, UpdateTable) and bool(operation.add_columns)
