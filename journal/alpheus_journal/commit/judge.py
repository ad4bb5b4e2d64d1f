"""Judge a group: decide which of its transactions make the next version, and answer the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from alpheus_journal.clock import Clock, Identities
from alpheus_journal.commit.base import Base
from alpheus_journal.commit.executor import OPERATIONS_AT_ONCE_MAX, Executor
from alpheus_journal.commit.idempotency import Retries, check_retry_keys, marks_of, written_tables
from alpheus_journal.commit.references import References
from alpheus_journal.commit.staged import Capacity, Member
from alpheus_journal.conflicts.facets import check_reads
from alpheus_journal.conflicts.rules import Group, Stakes
from alpheus_journal.data_roots import check_data_root
from alpheus_journal.errors import AlpheusError, Conflict
from alpheus_journal.execute.execute import check_rules_set, check_transaction
from alpheus_journal.execute.prefetch import settled_names_of
from alpheus_journal.format import ObjectName
from alpheus_journal.log.version_bytes import run_aside, written_size_max
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.operations import CreateNamespace, DropNamespace, Transaction
from alpheus_journal.replay.follower import Follower
from alpheus_journal.rooted_storage import DataRoots
from alpheus_journal.workspace.workspace import Workspace

OPERATIONS_CHECKED_AT_ONCE = 4
"""The number of operations checked and compared with the log that counts as one executed operation."""

Decided = dict[int, Committed | AlpheusError]
"""Answers by the transaction's index in its group. A transaction without an answer is not judged yet."""


class Judged(msgspec.Struct):
    """A group, judged on one base."""

    base: Base
    found: Workspace
    """Every object of the base that was looked at."""
    members: list[Member]
    """The transactions that make the next version, in order."""
    decided: Decided
    """The answers of transactions that durable versions answer."""


class Judge:
    """Judges groups for one process and catalog."""

    def __init__(
        self,
        follower: Follower,
        clock: Clock,
        identities: Identities,
        executor: Executor,
        retries: Retries,
    ) -> None:
        self._follower = follower
        self._clock = clock
        self._keys = follower.reader.keys
        self._executor = executor
        self._references = References(follower, identities)
        self._retries = retries

    async def judge(
        self, base: Base, transactions: Sequence[Transaction], *, may_repair: bool = False
    ) -> Judged:
        """Judge each transaction on what `base` and the members before it leave, as if they ran one after the other.

        A failing transaction harms no other one. A transaction that is neither a member nor decided belongs into the
        next group: it does not fit into the version, or its answer depends on a version that is not durable.
        `may_repair` allows a REPAIR.
        """
        durable = self._executor.new_workspace()
        candidates, decided = await self._find_candidates(durable, base, transactions, may_repair)
        running = durable.fork()
        judged = Judged(base, durable, [], decided)
        group = Group()
        ids: set[str] = set()
        keys: set[str] = set()
        capacity = Capacity(self._root_size_max(), base.head.root)
        for index, stakes in candidates:
            transaction = stakes.transaction
            if transaction.id in ids or transaction.key in keys or _was_written(transaction, running):
                continue  # the next group finds the first of the two in the log, if that one commits
            try:
                conflict = group.conflict(stakes, base.version + 1)
                if conflict is not None:
                    raise conflict
                fork, member = await self._executor.execute(durable, running, transaction, index, base)
            except AlpheusError as error:
                # An error may rest on members that are not durable yet.
                refusal = await self._refusal_on(durable, transaction, base) if judged.members else error
                if refusal is not None:
                    decided[index] = refusal
                continue
            if not capacity.admit(member) and judged.members:
                break  # this transaction and all later ones wait for the next group
            judged.members.append(member)
            group.add(member.touches)
            ids.add(transaction.id)
            keys.update([transaction.key] if transaction.key else [])
            running.absorb(fork)
        return judged

    async def execute_alone(self, base: Base, transaction: Transaction) -> Judged:
        """Execute one transaction as the only member of the next version. Raises the errors of its commit."""
        check_reads(transaction, self._keys)
        check_retry_keys(transaction)
        workspace = self._executor.new_workspace()
        await self._executor.fetch(workspace, base, transaction, _count_drops([transaction]))
        _, member = await self._executor.execute(workspace, workspace, transaction, 0, base)
        return Judged(base, workspace, [member], {})

    async def _find_candidates(
        self, durable: Workspace, base: Base, transactions: Sequence[Transaction], may_repair: bool
    ) -> tuple[list[tuple[int, Stakes]], Decided]:
        """Return the transactions that no version up to `base` answers, with their indexes, and the other answers.

        Afterwards `durable` holds everything that the candidates read.
        """
        drops = _count_drops(transactions)
        decided: Decided = {}
        candidates: list[tuple[int, Stakes]] = []
        gathered: dict[int, list[ObjectName]] = {}  # the names that small transactions read, by index
        for index, transaction in enumerate(transactions):
            if not base.can_judge(transaction):
                continue
            try:
                check_transaction(transaction, self._clock.now_millis(), may_repair=may_repair)
                _check_places(transaction, self._follower.data_roots)
                check_reads(transaction, self._keys)
                check_retry_keys(transaction)
                stakes = await run_aside(len(transaction.operations), Stakes, transaction)
                await self._executor.yield_after(
                    1 + len(transaction.operations) // OPERATIONS_CHECKED_AT_ONCE
                )
                if base.may_have_sequence(transaction):
                    answer = await self._retries.answer(stakes, base.head, base.load_durable)
                    # A conflict must wait: the staged version may turn out to hold this transaction's sequence.
                    if answer is not None and not isinstance(answer, Conflict):
                        decided[index] = answer
                    continue
                answer = await self._retries.answer(stakes, base.head, base.load) or base.conflict(stakes)
                if answer is not None:
                    decided[index] = answer
                    continue
                check_rules_set(transaction)
                await self._references.check(transaction, base)
                names = None
                if len(transaction.operations) <= OPERATIONS_AT_ONCE_MAX:
                    names = settled_names_of(transaction.operations, self._keys)
                if names is None:
                    await self._executor.fetch(durable, base, transaction, drops)
                else:
                    gathered[index] = names
                candidates.append((index, stakes))
            except AlpheusError as error:
                decided[index] = error
        try:
            await self._executor.fetch_together(durable, base, gathered.values())
            gathered.clear()
        except AlpheusError:
            pass  # each transaction fetches for itself and finds out whose part could not be read
        for index in gathered:
            try:
                await self._executor.fetch(durable, base, transactions[index], drops)
            except AlpheusError as error:
                decided[index] = error
        return [(index, stakes) for index, stakes in candidates if index not in decided], decided

    async def _refusal_on(
        self, durable: Workspace, transaction: Transaction, base: Base
    ) -> AlpheusError | None:
        """Return the error of a transaction on the durable version alone, or None when it would succeed there."""
        try:
            await self._executor.execute(durable, durable, transaction, 0, base)
        except AlpheusError as error:
            return error
        return None

    def _root_size_max(self) -> int:
        return written_size_max(self._follower.definition.node_file_size_max, self._follower.log.digits)


def _check_places(transaction: Transaction, data_roots: DataRoots) -> None:
    """Refuse a data root that this process cannot reach as it reaches the catalog, or that overlaps the catalog."""
    for operation in transaction.operations:
        if isinstance(operation, CreateNamespace) and operation.data_root:
            data_roots.check_kind(check_data_root(operation.data_root))


def _count_drops(transactions: Sequence[Transaction]) -> Mapping[str, int]:
    """Count the children of each namespace that the transactions can drop. Empty when none drops a namespace."""
    operations = [operation for t in transactions for operation in t.operations]
    if not any(isinstance(operation, DropNamespace) for operation in operations):
        return {}
    return Counter(operation.target.namespace for operation in operations)


def _was_written(transaction: Transaction, workspace: Workspace) -> bool:
    """Return whether a table that the transaction writes already has its writer's sequence."""
    if transaction.writer is None:
        return False
    objects = [workspace.get(name) for name in written_tables(transaction)]
    return any(mark is not None for _, mark in marks_of(transaction, objects))
