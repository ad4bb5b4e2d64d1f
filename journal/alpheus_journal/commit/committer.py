"""Committing: stage, publish, settle an unknown outcome, rebase by executing again (FORMAT.md, "Committing").

One committer a process and catalog. A group of transactions becomes one version; each is validated and executed
by itself on what the ones before it left, so the version equals their serial execution and a failing one
harms nobody. Nothing is answered that durable versions do not say.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.access import Committed, StoredObject, make_token
from alpheus_journal.clock import Clock, Identities
from alpheus_journal.commit.answers import again, answer_of, put_back, unknown
from alpheus_journal.commit.base import Base, Member, Room, Staged, in_turns
from alpheus_journal.commit.contention import Turns
from alpheus_journal.commit.idempotency import Retries, check_retry_keys, marks_of, written_tables
from alpheus_journal.commit.manifest_cache import SegmentReader
from alpheus_journal.commit.rivals import name_rival
from alpheus_journal.conflicts.facets import Facet, check_reads
from alpheus_journal.conflicts.rules import Group, Stakes, Touches
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Corrupt,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
)
from alpheus_journal.execute.execute import brings_back, check_transaction, context_of, execute_giving_way
from alpheus_journal.execute.prefetch import fetch, settled_names_of
from alpheus_journal.execute.rows import expected_segments
from alpheus_journal.execute.workspace import Context, Executed, Unfetched, Workspace, recent_definitions
from alpheus_journal.format import Key, Kind, ObjectName
from alpheus_journal.log.times import is_ahead, next_time, tell_ahead
from alpheus_journal.log.version_files import action_rows, aside, encode_root, written_size_max
from alpheus_journal.log.versions import root_rows
from alpheus_journal.model.action_rows import (
    ActionRow,
    digested,
    digested_message,
    encode_operation,
)
from alpheus_journal.model.definitions import Segment
from alpheus_journal.model.operations import (
    ChangeRows,
    DropNamespace,
    Operation,
    RecordedTransaction,
    Transaction,
    UpdateTable,
)
from alpheus_journal.replay.follower import Follower, Head
from alpheus_journal.replay.state import VersionRecord
from alpheus_journal.storage import files_not_stored
from alpheus_journal.storage.suitability import check_clock
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import encode_node
from alpheus_pb.v1 import actions_pb2

SETTLE_DELAY_MIN_SECONDS = 0.05
SETTLE_DELAY_MAX_SECONDS = 2.0
OPERATIONS_AT_ONCE_MAX = 16
"""Executed in one turn of the event loop: some milliseconds of work. Rows are encoded ten times as fast."""
OPERATIONS_CHECKED_AT_ONCE = 4
"""Checked and looked for in the log: so many count as one executed."""
NAMES_AT_ONCE_MAX = 64
"""Looked up in one turn, of those that the small transactions of a group read."""
NAMES_AN_OPERATION = 4
"""So many looked up count as one executed."""
EXECUTED_SIZE_BYTES = 4096
"""So much of definitions written, or so many objects changed at once (`EXECUTED_EFFECTS`), count as an operation."""
EXECUTED_EFFECTS = 8

Answer = Committed | AlpheusError | None
"""Committed; an error that rests on durable versions; or None: not judged, put it first into the next group."""


class Observer:
    """Told what commits cost. This one does nothing; a subclass counts."""

    def now(self) -> float:
        """Seconds by the clock that durations are told in."""
        return 0.0

    def took(self, stage: str, seconds: float) -> None:
        """`stage`: of a group execute, encode, upload, turn, root; of a member queue, total."""

    def grouped(self, members_count: int, root_size_bytes: int) -> None:
        """A version was published."""

    def went_ahead(self, where: str, version: int, ahead_millis: int) -> None:
        """A version is staged on the head of `where`, whose time is by so much in the future of the clock."""
        tell_ahead(where, version, ahead_millis)

    def happened(self, what: str, count: int = 1) -> None:
        """`what`: a group lost_slot, staged_ahead, dropped_ahead; members requeued, conflict, unknown."""


class _InFlight:
    """A version whose root is on its way. `won` ends with whether it became a version."""

    def __init__(self, staged: Staged) -> None:
        self.staged = staged
        self.won: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        if not self.won.done():
            self.won.set_result(False)

    @property
    def is_lost(self) -> bool:
        return self.won.done() and not self.won.result()


class Committer:
    """See the module. One `commit_group` at a time, and one ahead of it (see there)."""

    def __init__(self, follower: Follower, clock: Clock, identities: Identities) -> None:
        self.observer = Observer()
        self._follower = follower
        self._clock = clock
        self._identities = identities
        self._storage = follower.log.storage
        self._keys = follower.reader.keys
        self._unsettled: Staged | None = None
        self._in_flight: _InFlight | None = None
        self._is_preparing = False
        self._previewing = asyncio.Lock()
        self.may_repair = False
        """A REPAIR may be committed, whatever keeps others from writing."""
        self._executed_count = 0
        self._doubted: set[str] = (
            set()
        )  # ids of the version that was stored when the store was found put back
        self._recent = recent_definitions()
        self.retries = Retries(follower)
        self._segments = SegmentReader(follower.log.storage)
        self._turns = Turns(identities, is_one_request=self._storage.publishes_at_once)

    @property
    def is_settled(self) -> bool:
        """False: a root of ours may or may not be in its slot; the next group settles that first."""
        return self._unsettled is None

    async def commit_group(
        self,
        transactions: Sequence[Transaction],
        *,
        deadline_seconds: float | None = None,
        on_its_way: Callable[[], None] | None = None,
        since: float | None = None,
        sole_writer: bool = False,
    ) -> list[Answer]:
        """Publish at most one version. One answer a transaction, in order (see `Answer`).

        `deadline_seconds` bounds only the settling of an unknown outcome: after it the members concerned get
        OutcomeUnknown, and the next call goes on settling before it does anything else. Cancellation leaves
        the same state.

        `on_its_way` is called when the root is about to be sent. From then on one more call may be made before this
        one returns: its version is staged on top of this one, and published once this one is known to be won. Else
        none of its members is judged.

        A refusal means that the transaction is in no version, another process's included: it rests on a head that was
        the newest one at `since` (by the loop's time; None: now) or later. `sole_writer`: there are no others, so
        nothing is looked for and nobody is given way to.
        """
        since = asyncio.get_running_loop().time() if since is None else since
        if sole_writer:
            since = -math.inf
        assert not self._is_preparing, "one group at a time is validated and executed"
        deadline = (
            None if deadline_seconds is None else self._clock.now_millis() + int(deadline_seconds * 1000)
        )
        first = self._in_flight
        if first is None and self._unsettled is not None:
            try:
                await self._settle(deadline)
            except OutcomeUnknown as error:
                # Nothing of this group was sent; but an id of the unsettled root may be among them.
                ids = self._doubted | {member.recorded.id for member in self._staged_members()}
                return [unknown(t.id, error) if t.id in ids else None for t in transactions]
        if not transactions:
            return []
        answers: list[Answer] = [None] * len(transactions)
        self._is_preparing = True
        try:
            if first is None:
                staged = await self._prepare(transactions, answers, since)
            else:
                staged = await self._prepare_ahead(first, transactions, answers, since)
        finally:
            self._is_preparing = False
        if staged is not None and (sole_writer or await self._is_our_turn(staged, answers)):
            if deadline_seconds is not None:  # of settling alone, not of the wait
                deadline = self._clock.now_millis() + int(deadline_seconds * 1000)
            await self._publish(staged, answers, deadline, on_its_way)
        return answers

    def hurry(self) -> None:
        """From now on no version waits for other processes' turns: this one is about to end."""
        self._turns.hurry()

    async def _is_our_turn(self, staged: Staged, answers: list[Answer]) -> bool:
        """Give way to other processes. False: the version cannot be published any more; nobody is judged then."""
        waited = await self._turns.wait(self._follower.foreign_count)
        self.observer.took("turn", waited)
        if not waited:
            return True
        try:
            self._follower.check_history()
        except AlpheusError as error:
            for member in staged.members:
                answers[member.index] = again(error)
            return False
        if self._follower.head.commit_id == staged.on:
            return True
        self.observer.happened("lost_slot")
        return False

    async def _prepare(
        self, transactions: Sequence[Transaction], answers: list[Answer], since: float
    ) -> Staged | None:
        was_replayed = self._follower.state is not None
        try:
            if not self.may_repair:
                await self._follower.check_writable()
            if max(t.begin_version for t in transactions) > self._follower.head.version:
                await self._follower.refresh()
            base = Base(self._follower, self._follower.head)
            staged = await self._staged_on(base, transactions, answers)
            if await self._is_outdated(base, answers, since):
                answers[:] = [None] * len(answers)
                base = Base(self._follower, self._follower.head)
                staged = await self._staged_on(base, transactions, answers)
        except AlpheusError as error:
            if was_replayed and error.kind == "state_drift":
                answers[:] = [None] * len(answers)  # the next attempt is judged by the tree
                return None
            # Reading or staging failed as a whole (storage away, damaged tree): nothing was applied by this request.
            answers[:] = [
                answer
                if isinstance(answer, Committed)
                else unknown(t.id, put_back(error))
                if t.id in self._doubted and error.kind == "history_replaced"
                else again(error)
                for t, answer in zip(transactions, answers, strict=True)
            ]
            return None
        try:
            return None if staged is None else await self._uploaded(staged)
        except AlpheusError as error:
            assert staged is not None
            for member in staged.members:
                answers[member.index] = again(error)
            return None

    async def _is_outdated(self, base: Base, answers: Sequence[Answer], since: float) -> bool:
        """Whether there are refusals, and versions that they do not know of."""
        if not any(isinstance(answer, AlpheusError) for answer in answers):
            return False
        if not self._follower.is_fresh_since(since):
            await self._follower.refresh()
        return not base.is_current

    async def _prepare_ahead(
        self, first: _InFlight, transactions: Sequence[Transaction], answers: list[Answer], since: float
    ) -> Staged | None:
        """As `_prepare`, on top of a version that is on its way; returns when the fate of that is known. Unless it was
        won nobody is judged; unless it is the newest, and above doubt, nobody is refused and nothing is staged."""
        base = Base(self._follower, first.staged.head, first.staged)
        staged = None
        is_prepared = False
        try:
            staged = await self._staged_on(base, transactions, answers, first)
            await failpoints.reached("commit.ahead_staged")
            if staged is not None and not first.is_lost:
                staged = await self._uploaded(staged)
            is_prepared = True
        except AlpheusError:
            pass  # whatever it is, it is found again on durable ground
        await failpoints.reached("commit.ahead_ready")
        self.observer.happened("staged_ahead")
        is_won = await asyncio.shield(first.won)
        if is_won and is_prepared:
            try:
                await self._is_outdated(base, answers, since)
            except AlpheusError:
                is_prepared = False
        if is_won and is_prepared and base.is_current and (self.may_repair or not self._follower.is_in_doubt):
            await failpoints.reached("commit.ahead_won")
            return staged
        await failpoints.reached("commit.ahead_dropped")
        self.observer.happened("dropped_ahead")
        answers[:] = [None] * len(answers)
        return None

    async def _staged_on(
        self,
        base: Base,
        transactions: Sequence[Transaction],
        answers: list[Answer],
        first: _InFlight | None = None,
    ) -> Staged | None:
        """The next version. `first`: given up when that is lost."""
        started = self.observer.now()
        found = Workspace(recent=self._recent)
        members = await self._execute(base, found, transactions, answers)
        executed = self.observer.now()
        self.observer.took("execute", executed - started)
        if not members or (first is not None and first.is_lost):
            return None
        staged = await self._stage(base, found, members, answers)
        self.observer.took("encode", self.observer.now() - executed)
        for member in members:
            answers[member.index] = None
        return staged

    async def _uploaded(self, staged: Staged) -> Staged:
        """What the root will name is durable, where a store takes it in requests of its own."""
        await failpoints.reached("commit.staged")
        await self._storage.prove()
        if self._storage.publishes_at_once or not staged.files:
            return staged
        started = self.observer.now()
        try:
            await self._storage.put_many(staged.files)
        except OutcomeUnknown as error:
            raise files_not_stored(staged.slot, error) from error
        self.observer.took("upload", self.observer.now() - started)
        return msgspec.structs.replace(staged, files={})

    def _staged_members(self) -> tuple[Member, ...]:
        return self._unsettled.members if self._unsettled is not None else ()

    async def preview(self, transaction: Transaction, head: Head) -> tuple[dict[str, bytes], bytes]:
        """What the version after `head` would be if the transaction alone made it: its files, and its root's bytes.
        Nothing is written. Raises what the commit would raise at that version. One at a time: several would each have
        a turn before others who share the loop have one."""
        async with self._previewing:
            base = Base(self._follower, head)
            check_reads(transaction, self._keys)
            check_retry_keys(transaction)
            workspace = Workspace(recent=self._recent)
            drops = _droppable([transaction])
            await self._fetch(workspace, base, transaction, drops)
            _, member = await self._execute_on(workspace, workspace, transaction, 0, base)
            staged = await self._encode(
                base, workspace, [member], next_time(head.created_at_millis, self._clock.now_millis())
            )
            return staged.files, staged.root

    # --- validate and execute

    async def _execute(
        self, base: Base, durable: Workspace, transactions: Sequence[Transaction], answers: list[Answer]
    ) -> list[Member]:
        """Fill in the answers that the versions up to `base` decide; return the members of the next version. `durable`
        gets all that is looked at of `base`."""
        candidates = await self._candidates(durable, base, transactions, answers)
        running = durable.fork()
        members: list[Member] = []
        group = Group()
        ids: set[str] = set()
        keys: set[str] = set()
        room = Room(self._root_size_max(), base.head.root)
        for index, stakes in candidates:
            transaction = stakes.transaction
            if transaction.id in ids or transaction.key in keys or _was_written(transaction, running):
                continue  # the next group finds the first one in the log, if it got there
            try:
                conflict = group.conflict(stakes, base.version + 1)
                if conflict is not None:
                    raise conflict
                fork, member = await self._execute_on(durable, running, transaction, index, base)
                if not room.takes(member) and members:
                    break  # the others are left for the next group
                members.append(member)
                group.add(member.touches)
                ids.add(transaction.id)
                keys.update([transaction.key] if transaction.key else [])
            except AlpheusError as error:
                if members:
                    # It may rest on members that are not durable yet.
                    answers[index] = await self._refusal_on(durable, transaction, base)
                else:
                    answers[index] = error
            else:
                running.absorb(fork)
        return members

    async def _candidates(
        self, durable: Workspace, base: Base, transactions: Sequence[Transaction], answers: list[Answer]
    ) -> list[tuple[int, Stakes]]:
        """Those that nothing up to `base` answers, with their indexes; what they read is in `durable`."""
        drops = _droppable(transactions)
        candidates: list[tuple[int, Stakes]] = []
        gathered: dict[int, list[ObjectName]] = {}  # by index, what small members read
        for index, transaction in enumerate(transactions):
            if not base.can_judge(transaction):
                continue
            try:
                check_transaction(transaction, self._clock.now_millis(), may_repair=self.may_repair)
                check_reads(transaction, self._keys)
                check_retry_keys(transaction)
                stakes = await aside(len(transaction.operations), Stakes, transaction)
                await self._give_way(1 + len(transaction.operations) // OPERATIONS_CHECKED_AT_ONCE)
                if base.may_have_sequence(transaction):
                    told = await self.retries.answer(stakes, base.head, base.load_durable)
                    # That it was written comes before a conflict, and may be known only with the staged version.
                    answers[index] = None if isinstance(told, Conflict) else told
                    continue
                answers[index] = await self.retries.answer(stakes, base.head, base.load) or base.conflict(
                    stakes
                )
                if answers[index] is None:
                    names = None
                    if len(transaction.operations) <= OPERATIONS_AT_ONCE_MAX:
                        names = settled_names_of(transaction.operations, self._keys)
                    if names is None:
                        await self._fetch(durable, base, transaction, drops)
                    else:
                        gathered[index] = names
                    candidates.append((index, stakes))
            except AlpheusError as error:
                answers[index] = error
        if not await self._fetch_together(durable, base, gathered.values()):
            for index in gathered:
                try:
                    await self._fetch(durable, base, transactions[index], drops)
                except AlpheusError as error:
                    answers[index] = error
        return [(index, stakes) for index, stakes in candidates if answers[index] is None]

    async def _fetch_together(
        self, durable: Workspace, base: Base, gathered: Iterable[Sequence[ObjectName]]
    ) -> bool:
        """What several members read; False when some of it could not be had: whose that is, each finds out itself."""
        names = dict.fromkeys(name for names in gathered for name in names)
        missing = [name for name in names if not durable.has(name)]
        try:
            for start in range(0, len(missing), NAMES_AT_ONCE_MAX):
                part = missing[start : start + NAMES_AT_ONCE_MAX]
                for name, stored in zip(part, await base.load(part), strict=True):
                    durable.fetched(name, stored)
                await self._give_way(len(part) // NAMES_AN_OPERATION)
        except AlpheusError:
            return False
        return True

    async def _give_way(self, weight: int) -> None:
        """Work of `weight` was done: now and then readers and streams, who share the loop, get their turn."""
        self._executed_count += weight
        if self._executed_count >= OPERATIONS_AT_ONCE_MAX:
            self._executed_count = 0
            await asyncio.sleep(0)

    async def _refusal_on(
        self, durable: Workspace, transaction: Transaction, base: Base
    ) -> AlpheusError | None:
        """The error of a transaction on the durable version alone; None when it would succeed there."""
        try:
            await self._execute_on(durable, durable, transaction, 0, base)
        except AlpheusError as error:
            return error
        return None

    async def _execute_on(
        self, durable: Workspace, on: Workspace, transaction: Transaction, index: int, base: Base
    ) -> tuple[Workspace, Member]:
        """Execute on a fork of `on`. What turns out to be needed of tables' segments is fetched into `durable`, which
        `on` sees."""
        fork = on.fork()

        async def run(operation: Operation, context: Context) -> Executed:
            while True:  # one operation is executed again, not what came before it
                try:
                    return await execute_giving_way(fork, operation, context)
                except Unfetched as needed:
                    staged = base.staged.made if base.staged is not None else None
                    await self._segments.fetch(durable, needed.segments, staged)
                except Conflict as conflict:
                    await self._name_rival(conflict, operation, transaction, base)
                    raise

        return fork, await self._execute_one(run, transaction, index, base.head)

    async def _name_rival(
        self, conflict: Conflict, operation: Operation, transaction: Transaction, base: Base
    ) -> None:
        """Whom a conflict is with that executing an operation found."""

        async def listed(table_id: str, segments: Sequence[Segment]) -> set[str]:
            found = Workspace(recent=self._recent)
            await self._segments.fetch(found, [(table_id, segment) for segment in segments], None)
            return {path for one in found.contents(segments, table_id) for path in one.paths().to_pylist()}

        with contextlib.suppress(AlpheusError):  # what is told is the conflict
            events = base.events_down(transaction.begin_version)
            async with contextlib.aclosing(events):
                await name_rival(conflict, operation, transaction, events, listed)

    async def _execute_one(
        self,
        run: Callable[[Operation, Context], Awaitable[Executed]],
        transaction: Transaction,
        index: int,
        head: Head,
    ) -> Member:
        context = context_of(transaction, self._keys, self._identities.uuid4, head.version + 1)
        executed: list[Executed] = []
        uploads: dict[str, bytes] = {}
        size = 0
        digest = hashlib.sha256()
        encoded: list[actions_pb2.Operation | None] = []
        for operation in transaction.operations:
            await self._give_way(0)
            done = await run(operation, context)
            # Digested after its text was found to be such.
            if done.action.operation is operation and not _adds_columns(operation):
                message = encode_operation(operation)
                digest.update(digested_message(message))
                encoded.append(message)
            else:  # the digest is over what was asked, without ids that are assigned
                digest.update(digested(operation))
                encoded.append(None)
            executed.append(done)
            uploads.update(done.uploads)
            made = sum([len(one.data) for one in done.made])
            written = sum(map(len, done.uploads.values())) - made
            self._executed_count += (
                1 + written // EXECUTED_SIZE_BYTES + len(done.action.also) // EXECUTED_EFFECTS
            )
            size += written
            if size > fmt.DEFINITIONS_SIZE_BYTES_MAX:
                raise InvalidInput(
                    f"transaction {transaction.id} writes more than {fmt.DEFINITIONS_SIZE_BYTES_MAX} bytes of"
                    " definitions: each operation writes the whole definition of its object",
                    kind="too_large",
                    hint="change one object by few operations, or split the transaction",
                )
        recorded = RecordedTransaction(
            id=transaction.id,
            operations_digest=digest.digest(),
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
            actions=tuple([e.action for e in executed]),
            reads=transaction.reads,
            key=transaction.key,
            writer=transaction.writer,
        )
        rows: list[ActionRow] = []
        for row, files in action_rows(recorded, self._keys, self._identities, encoded):
            rows.append(row)
            if files:
                uploads.update(files)
            if not len(rows) % (10 * OPERATIONS_AT_ONCE_MAX):
                await asyncio.sleep(0)
        return Member(
            index=index,
            recorded=recorded,
            touches=await aside(len(recorded.actions), Touches, recorded),
            rows=rows,
            uploads=uploads,
            definitions_size=size,
            made_size=context.spent.made_size_bytes,
            rows_added=sum([e.rows_added for e in executed]),
            rows_removed=sum([e.rows_removed for e in executed]),
            made=[made for e in executed for made in e.made],
        )

    async def _fetch(
        self, workspace: Workspace, base: Base, transaction: Transaction, drops: Mapping[str, int]
    ) -> None:
        """Everything that the transaction's operations read, into the workspace. `drops`: how many children of
        a namespace the whole group can drop. Raises InvalidInput for names that cannot be and for manifest
        segments or data files that are not as announced."""
        segments = await fetch(workspace, transaction.operations, base, base, self._keys, drops=drops)
        await self._fetch_begun(workspace, base, transaction)
        if segments:
            await self._segments.fetch_brought(workspace, segments, transaction)
        if len(transaction.operations) > 1:  # together, not one by one as each of them asks
            expected = expected_segments(workspace, transaction.operations)
            if expected:
                staged = base.staged.made if base.staged is not None else None
                await self._segments.fetch(workspace, expected, staged)

    async def _fetch_begun(self, workspace: Workspace, base: Base, transaction: Transaction) -> None:
        """The tables in which rows change, as they were when the transaction began, to judge what it says of that. Of a
        version that is gone nothing is known; what the transaction itself brings back goes by other rules."""
        begin = transaction.begin_version
        changed = {o.target for o in transaction.operations if isinstance(o, ChangeRows)}
        missing = [name for name in sorted(changed) if not workspace.has_past(begin, name)]
        if not missing or brings_back(transaction):
            return
        with contextlib.suppress(Expired):
            found = await base.tables_at(begin, missing)
            for name, stored in zip(missing, found, strict=True):
                workspace.fetched_past(begin, name, stored)

    # --- stage and publish

    def _root_size_max(self) -> int:
        return written_size_max(self._follower.definition.node_file_size_max, self._follower.log.digits)

    async def _stage(
        self, base: Base, found: Workspace, members: list[Member], answers: list[Answer]
    ) -> Staged | None:
        """Encode the next version. Members that do not fit are left for the next group; one that does not fit
        alone is refused."""
        head = base.head
        now = self._clock.now_millis()
        await check_clock(self._storage, self._follower.log.path(head.version))
        if is_ahead(head.created_at_millis, now):
            self.observer.went_ahead(self._storage.url, head.version, head.created_at_millis - now)
        while True:
            asked = [
                action.operation
                for member in members
                for action in member.recorded.actions
                if action.operation is not None
            ]
            created_at = next_time(head.created_at_millis, now, asked)
            try:
                return await self._encode(base, found, members, created_at)
            except InvalidInput as error:
                if error.kind != "too_large":
                    raise
                if len(members) == 1:
                    answers[members[0].index] = InvalidInput(
                        f"transaction {members[0].recorded.id} does not fit into one version: {error.message}",
                        kind="too_large",
                        hint="split it into several transactions",
                    )
                    members.clear()
                    return None
                del members[len(members) // 2 :]

    async def _encode(
        self, base: Base, found: Workspace, members: Sequence[Member], created_at: int
    ) -> Staged:
        head, reader, definition = base.head, base.reader, self._follower.definition
        version = head.version + 1
        changes, assumed, catalog_def = await self._key_changes(base, members)
        async for name, stored in in_turns(list(found.objects())):
            if name.kind is Kind.CATALOG or not name.full_name.isascii():
                continue
            # What another writer's definition calls bound may be no name, and then its key another object's.
            if stored is not None or _may_exist(name, self._keys):
                assumed.setdefault(self._keys.key(name), None if stored is None else stored.path)
        before = await tree.run_async(tree.find(head.root, assumed), reader.load_nodes)
        self._check_memory(base, assumed, before)
        applied = await tree.run_async(
            tree.apply(
                head.root,
                changes,
                order=definition.order,
                new_path=lambda: fmt.node_path(self._identities.uuid4()),
            ),
            reader.load_nodes,
        )
        files: dict[str, bytes] = {}
        for member in members:
            files.update(member.uploads)
        definitions = {path: data for path, data in files.items() if path.startswith("def/")}
        external = sum(len(data) for path, data in files.items() if path.startswith("action/"))
        if external > fmt.EXTERNAL_ACTIONS_SIZE_BYTES_MAX:
            raise InvalidInput(
                f"the actions take {external} bytes outside the root,"
                f" {fmt.EXTERNAL_ACTIONS_SIZE_BYTES_MAX} at most",
                kind="too_large",
            )
        log = self._follower.log
        size_max = self._root_size_max()
        for path, node in applied.created.items():
            files[path] = encode_node(
                node,
                order=definition.order,
                created_at_millis=created_at,
                size_max=size_max,
                digits=log.digits,
            )
        commit_id = self._identities.uuid4()
        await asyncio.sleep(0)
        actions = [(key, data) for member in members for key, data in member.rows]
        root = await aside(
            len(actions),
            encode_root,
            applied.root,
            actions,
            order=definition.order,
            created_at_millis=created_at,
            size_max=size_max,
            digits=log.digits,
            system=root_rows(
                version,
                catalog_def=catalog_def,
                catalog_id=self._follower.catalog_id,
                commit_id=commit_id,
                previous=(log.path(head.version), head.commit_id),
            ),
        )
        key_changes = [
            (key, before.get(key), after)
            for key, after in sorted(changes.items())
            if before.get(key) != after
        ]
        return Staged(
            head=Head(
                version=version,
                created_at_millis=created_at,
                commit_id=commit_id,
                token=make_token(self._follower.catalog_id, version, commit_id),
                root=applied.root,
                catalog_def=catalog_def,
            ),
            on=head.commit_id,
            record=VersionRecord(
                version=version,
                commit_id=commit_id,
                created_at_millis=created_at,
                transactions=tuple(member.recorded for member in members),
                changes=tuple(key_changes),
                catalog_def_before=head.catalog_def,
                catalog_def_after=catalog_def,
            ),
            definitions=definitions,
            nodes=applied.created,
            files=files,
            slot=log.path(version),
            root=root,
            members=tuple(members),
            made={made.segment.path: made.content for member in members for made in member.made},
        )

    async def _key_changes(
        self, base: Base, members: Sequence[Member]
    ) -> tuple[dict[Key, str | None], dict[Key, str | None], str]:
        """By key the final definition path and the one that the members found, and the catalog definition's path. Keys
        are as stored: an object that another writer padded otherwise keeps its key."""
        final: dict[ObjectName, str | None] = {}
        first: dict[ObjectName, str | None] = {}
        catalog_def = base.head.catalog_def
        for member in members:
            for action in member.recorded.actions:
                for effect in action.effects:
                    if effect.name.kind is not Kind.CATALOG:
                        final[effect.name] = effect.path_after or None
                        first.setdefault(effect.name, effect.path_before or None)
                    elif effect.path_after:
                        catalog_def = effect.path_after
        foreign = [name for name in final if not name.full_name.isascii()]
        stored = await base.reader.find(base.head.root, foreign) if foreign else {}
        changes: dict[Key, str | None] = {}
        assumed: dict[Key, str | None] = {}
        async for name, path in in_turns(list(final.items())):
            key = stored[name][0] if name in stored else self._keys.key(name)
            changes[key], assumed[key] = path, first[name]
        return changes, assumed, catalog_def

    def _check_memory(self, base: Base, assumed: Mapping[Key, str | None], there: Mapping[Key, str]) -> None:
        """That what the members change, and what else was looked at, is what the tree has. Else nothing may be
        written: it would be in the history for good. Raises Corrupt (`state_drift`), and leaves memory where that was
        the source."""
        for key, path in assumed.items():
            if there.get(key) != path:
                what = f"{self._keys.parse(key)} is {there.get(key)} in the tree of version {base.version},"
                what += f" in memory {path}"
                if self._follower.state is not None:
                    self._follower.replay.distrust(what)
                raise Corrupt(
                    f"nothing was written: {what}",
                    kind="state_drift",
                    version=base.version,
                    hint="run alpheus check, and report it",
                )

    async def _publish(
        self,
        staged: Staged,
        answers: list[Answer],
        deadline: int | None,
        on_its_way: Callable[[], None] | None,
    ) -> None:
        self._in_flight = flight = _InFlight(staged)
        if on_its_way is not None:
            on_its_way()
        started = self.observer.now()
        try:
            if await self._put_root(staged, answers, deadline):
                flight.won.set_result(True)
                self.observer.took("root", self.observer.now() - started)
                self.observer.grouped(len(staged.members), len(staged.root))
        finally:
            self._in_flight = None
            flight.end()

    async def _put_root(self, staged: Staged, answers: list[Answer], deadline: int | None) -> bool:
        """Whether it is a version now, and its members' answers."""
        # Set before the first byte leaves: a cancelled call leaves an unknown outcome, too.
        self._unsettled = staged
        sent = asyncio.get_running_loop().time()
        with self._follower.publishing(staged.head.version, staged.head.commit_id):
            problem = None
            try:
                problem = await self._publish_looking(staged)
            except (AlreadyExists, OutcomeUnknown):
                await failpoints.reached("commit.root_unanswered")
            except AlpheusError as error:
                # The store says that nothing was applied.
                self._unsettled = None
                for member in staged.members:
                    answers[member.index] = again(error)
                return False
            else:
                await failpoints.reached("commit.root_answered")
                if problem is None:
                    self._won(staged, answers)
                    took = asyncio.get_running_loop().time() - sent
                    self._turns.published(took, self._follower.foreign_count)
                    return True
        try:
            self._check_replaced(problem)
            if await self._settle(deadline):
                for member in staged.members:
                    answers[member.index] = answer_of(staged, member)
                self._turns.published(None, self._follower.foreign_count)
                return True
            self.observer.happened("lost_slot")
        except OutcomeUnknown as error:
            self.observer.happened("unknown", len(staged.members))
            for member in staged.members:
                answers[member.index] = unknown(member.recorded.id, error)
        return False

    async def _settle(self, deadline: int | None) -> bool:
        """Find out who holds the slot of the unsettled root: True: we do. Until then nothing else is written.

        The same bytes go to the same slot again: a delayed copy of the first request can only land as this
        very commit. Raises OutcomeUnknown at the deadline and stays unsettled.
        """
        staged = self._unsettled
        assert staged is not None
        delay = SETTLE_DELAY_MIN_SECONDS
        read_at_once = True
        while True:
            failure: AlpheusError
            try:
                if self._follower.head.version < staged.head.version:
                    await self._follower.refresh()
                holder = await self._holder(staged)
                if holder is not None and holder != staged.head.commit_id:
                    self._unsettled = None
                    await failpoints.reached("commit.slot_lost")
                    return False
                if holder is not None:
                    problem = await self._follower.witnesses.look(staged.head.version)
                else:
                    await failpoints.reached("commit.resend")
                    problem = await self._publish_looking(staged)
                if problem is not None:
                    raise problem
                if holder is None:
                    self._won(staged, None)
                self._unsettled = None
                self._remember(staged)
                return True
            except AlreadyExists as error:
                # Taken: read by whom. Still free to a reader (a 409 can race): no reason to spin.
                read_at_once = not read_at_once
                if not read_at_once:
                    continue
                failure = error
            except AlpheusError as error:
                self._check_replaced(error)
                failure = error
            if deadline is not None and self._clock.now_millis() >= deadline:
                raise OutcomeUnknown(
                    f"whether version {staged.head.version} was written is not known: {failure.message}",
                    hint="ask for the outcome by the transaction id, or send the same again",
                    version=staged.head.version,
                )
            # Jitter from the one source of randomness that there is, so that a seed replays it.
            jitter = int(self._identities.uuid4()[:8], 16) / 2**32
            await self._clock.sleep(delay * (0.5 + jitter / 2))
            delay = min(delay * 2, SETTLE_DELAY_MAX_SECONDS)

    async def _publish_looking(self, staged: Staged) -> AlpheusError | None:
        return await self._follower.witnesses.publish(
            staged.files,
            staged.slot,
            staged.root,
            version=staged.head.version,
            commit_id=staged.head.commit_id,
        )

    def _check_replaced(self, error: AlpheusError | None) -> None:
        """OutcomeUnknown, for good, for the members of the unsettled version when the store was found to have been put
        back: its root may stand above a hole, and what becomes of it is not for this process to say. Nothing more is
        written."""
        staged = self._unsettled
        if error is None or error.kind != "history_replaced" or staged is None:
            return
        self._unsettled = None
        self._doubted.update(member.recorded.id for member in staged.members)
        version = staged.head.version if error.version is None else error.version
        self._follower.end_history(error.message, version)
        raise put_back(error, staged.head.version)

    async def _holder(self, staged: Staged) -> str | None:
        """The commit id at the staged version's slot (a tombstone tells it too); None: still free."""
        version = staged.head.version
        if self._follower.head.version == version:
            return self._follower.head.commit_id
        try:
            return await self._follower.log.commit_id(version)
        except NotFound:
            return None

    def _won(self, staged: Staged, answers: list[Answer] | None) -> None:
        self._unsettled = None
        self._remember(staged)
        definitions = {path: StoredObject(path, data) for path, data in staged.definitions.items()}
        facets = set[Facet]().union(*(member.touches.facets for member in staged.members))
        self._follower.accept(staged.head, staged.record, definitions, facets)
        for member in staged.members if answers is not None else ():
            assert answers is not None
            answers[member.index] = answer_of(staged, member)

    def _remember(self, staged: Staged) -> None:
        reader = self._follower.reader
        for path, node in staged.nodes.items():
            reader.remember_node(path, node)
        for definition_path, data in staged.definitions.items():
            reader.remember_definition(definition_path, data)
        for member in staged.members:
            for made in member.made:
                self._segments.remember(made.segment, made.content.batch)


def _may_exist(name: ObjectName, keys: fmt.Keys) -> bool:
    try:
        fmt.check_object_name(name, keys)
    except InvalidInput:
        return False
    return True


def _adds_columns(operation: Operation) -> bool:
    return isinstance(operation, UpdateTable) and bool(operation.add_columns)


def _droppable(transactions: Sequence[Transaction]) -> Mapping[str, int]:
    """How many children of a namespace they can drop; nobody asks unless one drops a namespace."""
    operations = [operation for t in transactions for operation in t.operations]
    if not any(isinstance(operation, DropNamespace) for operation in operations):
        return {}
    return Counter(operation.target.namespace for operation in operations)


def _was_written(transaction: Transaction, workspace: Workspace) -> bool:
    """Whether a table that the transaction writes has its writer's sequence."""
    if transaction.writer is None:
        return False
    objects = [workspace.get(name) for name in written_tables(transaction)]
    return any(mark is not None for _, mark in marks_of(transaction, objects))
