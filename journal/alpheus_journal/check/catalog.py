"""Check every invariant of a stored catalog: the slots, the trees, the actions, and the files that they name.

The check is a double entry: the structural diff of two versions (what changed) must equal the effects of the recorded
actions (why), and executing the recorded operations again must give the stored definitions.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import AsyncIterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from alpheus_journal.check.contents import ContentCheck
from alpheus_journal.check.execution import Execution, ExecutionCheck
from alpheus_journal.check.findings import Findings
from alpheus_journal.check.history import HistoryCheck
from alpheus_journal.check.trees import TreeCheck
from alpheus_journal.errors import AlpheusError
from alpheus_journal.format import Key, Kind
from alpheus_journal.log.index_runs import fingerprint, id_term
from alpheus_journal.log.times import resets_times
from alpheus_journal.log.versions import Root
from alpheus_journal.model.answers import CheckSummary, Finding
from alpheus_journal.model.definitions import CatalogDef
from alpheus_journal.model.operation_messages import operations_digest
from alpheus_journal.model.operations import Repair
from alpheus_journal.replay import evidence
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.opening import open_for_check
from alpheus_journal.replay.state import change_type
from alpheus_journal.replay.verification import find_misleading_checkpoints
from alpheus_journal.storage import Storage
from alpheus_journal.tree.node import EMPTY
from alpheus_journal.tree.reader import KeyChange


async def check_storage(
    storage: Storage, *, after: int | None = None
) -> AsyncIterator[Finding | CheckSummary]:
    """Check a catalog that may not open; see `check_catalog`. The problems that prevent opening come first.

    Raises NotFound (`no_catalog`) and Unavailable.
    """
    follower, problems = await open_for_check(storage)
    if follower is not None:
        async for item in _Check(follower, problems).run(after):
            yield item
        return
    for error in problems:
        yield Finding(kind=error.kind, message=error.message, path=error.path, version=error.version or 0)
    yield CheckSummary(versions=0, nodes=0, definitions=0, manifests=0, findings=len(problems))


def check_catalog(follower: Follower, *, after: int | None = None) -> AsyncIterator[Finding | CheckSummary]:
    """Yield findings as they occur, and the summary last. Checks only versions above `after` (exclusive).

    Lists the slots. Reads every kept root, every node that differs between versions, every definition that actions
    name, that other software wrote or that the head has, every manifest segment of these, the size of every data file,
    and every lease. Changes nothing.

    Deviations that other writers are allowed are not findings: more or fewer keys in a node than the order asks for,
    deleted keys, no padding. Two kinds are findings although nothing is lost: `utf16_order`, and `foreign_write` for a
    version of other software above one of ours.
    """
    return _Check(follower).run(after)


class _Ids:
    """The ids of all checked transactions, in 12 bytes each."""

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._versions = array("I")

    def add(self, transaction_id: str, version: int) -> None:
        self._hashes.append(fingerprint(id_term(transaction_id)))
        self._versions.append(version)

    def repeated(self) -> list[int]:
        """Return the versions with a transaction that has the id of an earlier one, ascending."""
        hashes = pa.Array.from_buffers(pa.uint64(), len(self._hashes), [None, pa.py_buffer(self._hashes)])
        versions = pa.Array.from_buffers(pa.uint32(), len(hashes), [None, pa.py_buffer(self._versions)])
        seen = pa.table({"id": hashes, "version": versions})
        seen = seen.sort_by([("id", "ascending"), ("version", "ascending")]).combine_chunks()
        again = pc.equal(seen["id"].slice(1), seen["id"].slice(0, max(len(seen) - 1, 0)))
        return sorted(set(seen["version"].slice(1).filter(again).to_pylist()))


class _Check:
    """`problems`: why the catalog would not be opened."""

    def __init__(self, follower: Follower, problems: Sequence[AlpheusError] = ()) -> None:
        self._follower = follower
        self._problems = problems
        self._findings = Findings()
        self._history = HistoryCheck(follower, self._findings)
        self._trees = TreeCheck(follower, self._findings)
        self._reader = self._trees.reader
        self._contents = ContentCheck(
            self._reader,
            self._findings,
            follower.data_roots,
            follower.log,
            self._read_catalog,
            self._find_last_loss,
        )
        self._last_loss: int | None = None
        self._executions = ExecutionCheck(self._reader, self._contents, self._findings)
        self._ids = _Ids()
        self._own_below = False  # whether this software wrote a version below the one that is looked at
        self._versions_count = 0
        self._head = 0
        self._lowest = 0  # of the versions that are read

    async def run(self, after: int | None) -> AsyncIterator[Finding | CheckSummary]:
        for problem in self._problems:
            yield self._findings.of_error(problem, problem.version or 0)
        clues = await evidence.read_clues(self._follower.log)  # before the head is looked for
        async for finding in self._find_head():
            yield finding
        async for finding in self._check_versions(after):
            yield finding
        for version in self._ids.repeated():
            yield self._findings.add(
                "id_reused",
                f"a transaction of version {version} has the id of an earlier one: its work may have been done twice",
                self._follower.log.path(version),
                version,
            )
        async for finding in self._history.check_slots(self._head, self._lowest):
            yield finding
        async for finding in self._history.check_lost(self._head, clues):
            yield finding
        async for finding in self._history.check_leases(self._head):
            yield finding
        async for path, version, what in find_misleading_checkpoints(
            self._follower.log, self._follower.reader, self._follower.catalog_id, self._follower.head.version
        ):
            yield self._findings.add(
                "checkpoint_differs",
                f"this checkpoint is whole, but it differs from the tree of version {version}: {what}",
                path,
                version,
            )
        yield CheckSummary(
            versions=self._versions_count,
            nodes=len(self._trees.nodes),
            definitions=len(self._contents.definitions),
            manifests=self._contents.manifests_count,
            findings=self._findings.count,
            given_up=tuple((one.first, one.last) for one in self._follower.log.given_up),
        )

    async def _read_catalog(self) -> CatalogDef:
        """Return the catalog's definition at the newest head that can be read."""
        with contextlib.suppress(AlpheusError):
            await self._follower.refresh()
        head = self._follower.head
        return await self._follower.catalog_definition(head.catalog_def, self._follower.reader)

    async def _find_last_loss(self) -> int:
        """Return the last version that records a repair of a lost head, 0 for none. Starts may have been lost with that
        head. Reads all roots, once."""
        if self._last_loss is None:
            self._last_loss = 0
            for version in range(self._lowest, self._head + 1):
                with contextlib.suppress(AlpheusError):
                    root = await self._follower.root(version)
                    actions = [action for transaction in root.transactions for action in transaction.actions]
                    if any(isinstance(a.operation, Repair) and a.operation.lost for a in actions):
                        self._last_loss = version
        return self._last_loss

    async def _find_head(self) -> AsyncIterator[Finding]:
        """Set the head up to which to check. Where the version above it is damaged, report that and later versions."""
        try:
            self._head = (await self._follower.refresh()).version
        except AlpheusError as error:
            self._head = head = self._follower.head.version
            yield self._findings.of_error(error, head + 1, self._follower.log.path(head + 1))
            log = self._follower.log
            for version in range(head + 2, await log.head(head + 1) + 1):
                self._versions_count += 1
                try:
                    await log.read(version)
                except AlpheusError as damage:
                    yield self._findings.of_error(damage, version, log.path(version))

    async def _check_versions(self, after: int | None) -> AsyncIterator[Finding]:
        """Check each version against the one below it, and then the contents of the newest one."""
        log = self._follower.log
        oldest = await self._follower.oldest()
        self._lowest = first = oldest if after is None else max(oldest, after + 1)
        previous: Root | None = None
        self._own_below = oldest > 0  # only this software writes tombstones
        if oldest < first <= self._head:
            try:
                previous = await self._follower.root(first - 1)
                self._own_below |= not (await self._follower.root(oldest)).is_foreign
            except AlpheusError as error:
                yield self._findings.of_error(error, first - 1, log.path(first - 1))
        for version in range(first, self._head + 1):
            self._versions_count += 1
            try:
                root = await self._follower.root(version)
            except AlpheusError as error:
                if log.given_up_range(version) is None:
                    yield self._findings.of_error(error, version, log.path(version))
                previous = None
                continue
            if log.given_up_range(version - 1) is not None and log.given_up_range(version) is None:
                previous = None  # the version was not made on that one, as far as is known
            try:
                async for finding in self._check_version(root, previous):
                    yield finding
            except AlpheusError as error:
                yield self._findings.of_error(error, version, root.path)
            previous = root
            for transaction in root.transactions if log.given_up_range(version) is None else ():
                self._ids.add(transaction.id, version)
        if previous is not None:
            async for finding in self._contents.check_head(previous):
                yield finding

    async def _check_version(self, root: Root, previous: Root | None) -> AsyncIterator[Finding]:
        """Check one version: its tree, its link, and its actions against the differences."""
        if previous is not None:
            self._own_below |= not previous.is_foreign
        async for finding in self._trees.check(root):
            yield finding
        link = await self._history.broken_link(root, previous)
        if link is not None:
            yield self._findings.of_error(link, root.version)
        if link is not None or (previous is None and root.version):
            return  # the version before has expired or is another one, so there is nothing to compare with
        if (
            previous is not None
            and root.created_at_millis < previous.created_at_millis
            and not root.is_foreign
            and not resets_times(root.transactions)
        ):
            yield self._findings.add(
                "corrupt_history", "its time is before that of the version below it", root.path, root.version
            )
        before = previous.node if previous is not None else EMPTY
        changes = await self._trees.diff(before, root.node)
        if root.is_foreign:
            async for finding in self._check_foreign_write(root, previous, changes):
                yield finding
            return  # no actions to compare with
        async for finding in self._check_actions(root, previous, changes):
            yield finding
        execution = Execution(self._follower, self._reader, root, previous)
        for transaction in root.transactions:
            operations = [action.operation for action in transaction.actions]
            known = [operation for operation in operations if operation is not None]
            if len(known) == len(operations) and operations_digest(known) != transaction.operations_digest:
                yield self._findings.add(
                    "corrupt_action",
                    f"the actions of transaction {transaction.id} do not match its digest",
                    root.path,
                    root.version,
                )
            async for finding in self._executions.check(root, transaction, execution):
                yield finding

    async def _check_actions(
        self, root: Root, previous: Root | None, changes: Sequence[KeyChange]
    ) -> AsyncIterator[Finding]:
        """Compare the recorded effects of the actions with the differences between the trees."""
        before = previous.node if previous is not None else EMPTY
        catalog = previous.catalog_def if previous is not None else ""
        recorded: dict[Key, tuple[str | None, str | None]] = {}
        for transaction in root.transactions:
            for action in transaction.actions:
                for effect in action.effects:
                    if effect.name.kind is Kind.CATALOG:
                        catalog = effect.path_after or catalog
                        continue
                    key = await self._trees.key_of(before, root.node, effect.name)
                    first, last = recorded.get(key, (effect.path_before or None,) * 2)
                    if (effect.path_before or None) != last:
                        yield self._findings.add(
                            "corrupt_history",
                            f"{action.type} on {effect.name} found {effect.path_before}, but the action before left"
                            f" {last}",
                            root.path,
                            root.version,
                        )
                    recorded[key] = (first, effect.path_after or None)
        expected = {key: pair for key, pair in recorded.items() if pair[0] != pair[1]}
        actual = {key: (a, b) for key, a, b in changes}
        for key in sorted(expected.keys() | actual.keys()):
            if expected.get(key) != actual.get(key):
                yield self._findings.add(
                    "corrupt_history",
                    f"{self._reader.keys.parse(key)}: the actions record {expected.get(key)},"
                    f" but the trees differ by {actual.get(key)}",
                    root.path,
                    root.version,
                )
        if catalog != root.catalog_def:
            yield self._findings.add(
                "corrupt_history",
                f"the actions leave the catalog definition at {catalog}, but the root names {root.catalog_def}",
                root.path,
                root.version,
            )

    async def _check_foreign_write(
        self, root: Root, previous: Root | None, changes: Sequence[KeyChange]
    ) -> AsyncIterator[Finding]:
        """Report a version of other software above one of ours, and read the definitions that it wrote.

        Such software can lose commits that other processes make at the same time.
        """
        for key, _, path in changes:
            if path is None:
                continue
            try:
                name = self._reader.keys.parse(key)
                await self._contents.stored(path, name.kind)
            except AlpheusError as error:
                yield self._findings.of_error(error, root.version, path)
        if previous is None or not self._own_below:
            return
        named = [
            f"{self._reader.keys.parse(key)} {change_type(before, after)}"
            for key, before, after in changes[:5]
        ]
        if root.catalog_def != previous.catalog_def:
            named.insert(0, "the catalog definition updated")
        count = len(changes) - 5
        yield self._findings.add(
            "foreign_write",
            f"version {root.version} was written by other software, without actions:"
            f" {', '.join(named) or 'nothing changed'}{f' and {count} more' if count > 0 else ''}",
            root.path,
            root.version,
        )
