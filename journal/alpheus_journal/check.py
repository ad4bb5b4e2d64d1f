"""Verify every invariant of a stored catalog: the slot chain, the trees, the actions, what they point at.

Double entry: the structural diff of two versions (what changed) must equal what the recorded actions say (why),
and executing the recorded operations again must give the very definitions that are stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, NotFound
from alpheus_journal.execute.dropped_counters import actions_down
from alpheus_journal.execute.execute import execute_giving_way, tables_written
from alpheus_journal.execute.prefetch import Source, fetch, footprint
from alpheus_journal.execute.workspace import ExecutionContext, Unfetched, Workspace, definition_of
from alpheus_journal.format import Key, Kind, NodePath, ObjectName
from alpheus_journal.log.index_runs import fingerprint, id_term
from alpheus_journal.log.leases import leases_in
from alpheus_journal.log.root_rows import strange_rows
from alpheus_journal.log.times import counts_anew
from alpheus_journal.log.versions import Root, check_follows
from alpheus_journal.model.answers import CheckSummary, Finding, StoredObject
from alpheus_journal.model.definition_messages import decode_definition, encode_definition
from alpheus_journal.model.definitions import Segment, TableDef
from alpheus_journal.model.operation_messages import action_type, operations_digest
from alpheus_journal.model.operations import (
    Action,
    AppendFiles,
    ChangeRows,
    CreateCatalog,
    Operation,
    OverwriteFiles,
    RecordedTransaction,
)
from alpheus_journal.replay import evidence
from alpheus_journal.replay.evidence import Clues
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.opening import open_for_check
from alpheus_journal.replay.state import change_type
from alpheus_journal.replay.verification import misleading
from alpheus_journal.storage import Storage
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import SEGMENT_SCHEMA, is_content_of
from alpheus_journal.tables.manifest_merge import Content
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import EMPTY, UTF16_ORDER, Node, NodeFile, decode_node
from alpheus_journal.tree.reader import KeyChange, Reader, Snapshot


async def check_storage(
    storage: Storage, *, after: int | None = None
) -> AsyncIterator[Finding | CheckSummary]:
    """As `check_catalog`, of what lies under a prefix though it may not open: what keeps it from opening is told first.
    Raises NotFound (`no_catalog`), Unavailable."""
    follower, problems = await open_for_check(storage)
    if follower is not None:
        async for item in _Check(follower, problems).run(after):
            yield item
        return
    for error in problems:
        yield Finding(kind=error.kind, message=error.message, path=error.path, version=error.version or 0)
    yield CheckSummary(versions=0, nodes=0, definitions=0, manifests=0, findings=len(problems))


def check_catalog(follower: Follower, *, after: int | None = None) -> AsyncIterator[Finding | CheckSummary]:
    """Findings as they are met, the summary last. `after`: only versions above it (exclusive).

    Lists the slots; reads every kept root, every node that differs between versions, every definition that
    actions name, that other software brought and that the head holds, every manifest segment that these bring,
    the size of every data file, and every lease. Changes nothing.

    What another writer may do and this software does not (more or fewer keys in a node than the order asks for,
    deleted keys, no padding) is no finding. Two things are, though nothing is lost by them: `utf16_order`, and
    `foreign_write`, a version of other software above one of ours.
    """
    return _Check(follower).run(after)


class _Ids:
    """The ids of all transactions that were looked at, in 12 bytes each."""

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._versions = array("I")

    def add(self, transaction_id: str, version: int) -> None:
        self._hashes.append(fingerprint(id_term(transaction_id)))
        self._versions.append(version)

    def repeated(self) -> list[int]:
        """Versions whose transactions have the id of one before them, ascending."""
        hashes = pa.Array.from_buffers(pa.uint64(), len(self._hashes), [None, pa.py_buffer(self._hashes)])
        versions = pa.Array.from_buffers(pa.uint32(), len(hashes), [None, pa.py_buffer(self._versions)])
        seen = pa.table({"id": hashes, "version": versions})
        seen = seen.sort_by([("id", "ascending"), ("version", "ascending")]).combine_chunks()
        again = pc.equal(seen["id"].slice(1), seen["id"].slice(0, max(len(seen) - 1, 0)))
        return sorted(set(seen["version"].slice(1).filter(again).to_pylist()))


def _sorted(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """The files of stamped segments in order of their paths."""
    plain = [batch.replace_schema_metadata(None) for batch in batches]
    return pa.Table.from_batches(plain, schema=SEGMENT_SCHEMA).sort_by("path").combine_chunks()


class _Replay:
    """What the operations of one version are executed on again: the version before it, and on top what the actions
    before them left. It is the `footprint.History` of that version."""

    def __init__(self, follower: Follower, reader: Reader, root: Root, previous: Root | None) -> None:
        self._follower = follower
        self._reader = reader
        self.version = root.version - 1
        self.source = Snapshot(
            reader,
            self.version,
            previous.node if previous is not None else EMPTY,
            previous.catalog_def if previous is not None else "",
        )
        self.base = Workspace()
        self.running = self.base.fork()
        self.unreadable: set[ObjectName] = set()
        self.drops = Counter(
            action.name.namespace for transaction in root.transactions for action in transaction.actions
        )

    async def at(self, version: int) -> Source:
        root = await self._follower.root(version)
        return Snapshot(self._reader, version, root.node, root.catalog_def)

    async def changed_since(
        self, version: int, kinds: frozenset[Kind]
    ) -> AsyncIterator[tuple[ObjectName, StoredObject]]:
        root = await self._follower.root(version)
        before = Snapshot(self._reader, version, root.node, root.catalog_def)
        async for found in self.source.created_or_changed_since(before, kinds):
            yield found

    def actions_since(self, version: int) -> AsyncIterator[Action]:
        return actions_down(self._follower.told, range(self.version, version, -1))

    async def stored(self, paths: Mapping[str, Kind]) -> Mapping[str, StoredObject]:
        return await self._reader.stored(paths)


class _Check:
    """`problems`: why the catalog would not be opened."""

    def __init__(self, follower: Follower, problems: Sequence[AlpheusError] = ()) -> None:
        self._follower = follower
        self._problems = problems
        # Caches of its own: what this process remembers says nothing about what is stored.
        self._reader = Reader(
            follower.reader.storage,
            follower.reader.keys,
            node_size_max=follower.reader.node_size_max,
            on_node=self._look,
        )
        self._foreign_nodes: set[NodePath] = set()
        self._utf16_nodes: set[NodePath] = set()
        self._own_below = False
        self._segments: set[str] = set()
        self._brought: set[str] = set()  # segments that were looked at with the action that brought them
        self._files: set[str] = set()  # data files that were looked for
        self._nodes: set[NodePath] = set()
        self._ids = _Ids()
        self._definitions: set[str] = set()
        self._manifests = 0
        self._versions = 0
        self._lowest = 0  # of the versions that are read
        self._findings = 0

    def _finding(self, error: AlpheusError, version: int, path: str = "") -> Finding:
        self._findings += 1
        return Finding(
            kind=error.kind,
            message=error.message,
            path=error.path or path,
            version=error.version if error.version is not None else version,
        )

    def _broken(self, kind: str, message: str, path: str, version: int) -> Finding:
        self._findings += 1
        return Finding(kind=kind, message=message, path=path, version=version)

    def _look(self, path: NodePath, file: NodeFile) -> None:
        if file.looks_foreign(self._follower.definition.order):
            self._foreign_nodes.add(path)
        if UTF16_ORDER in file.defects:
            self._utf16_nodes.add(path)

    async def run(self, after: int | None) -> AsyncIterator[Finding | CheckSummary]:
        for problem in self._problems:
            yield self._finding(problem, problem.version or 0)
        clues = await evidence.clues_of(self._follower.log)  # before the head is looked for
        head = self._follower.head.version
        try:
            head = (await self._follower.refresh()).version
        except AlpheusError as error:
            head = self._follower.head.version
            yield self._finding(error, head + 1, self._follower.log.path(head + 1))
            async for finding in self._above(head + 2):
                yield finding
        oldest = await self._follower.oldest()
        self._lowest = first = oldest if after is None else max(oldest, after + 1)
        previous: Root | None = None
        self._own_below = oldest > 0  # only this software writes tombstones
        if oldest < first <= head:
            try:
                previous = await self._follower.root(first - 1)
                self._own_below |= not (await self._follower.root(oldest)).is_foreign
            except AlpheusError as error:
                yield self._finding(error, first - 1, self._follower.log.path(first - 1))
        for version in range(first, head + 1):
            self._versions += 1
            try:
                root = await self._follower.root(version)
            except AlpheusError as error:
                if self._follower.log.gave_up(version) is None:
                    yield self._finding(error, version, self._follower.log.path(version))
                previous = None
                continue
            if (
                self._follower.log.gave_up(version - 1) is not None
                and self._follower.log.gave_up(version) is None
            ):
                previous = None  # it was not made on that one, or nobody knows
            try:
                async for finding in self._version(root, previous):
                    yield finding
            except AlpheusError as error:
                yield self._finding(error, version, root.path)
            previous = root
            for transaction in root.transactions if self._follower.log.gave_up(version) is None else ():
                self._ids.add(transaction.id, version)
        if previous is not None:
            async for finding in self._contents(previous):
                yield finding
        for version in self._ids.repeated():
            yield self._broken(
                "id_reused",
                f"a transaction of version {version} has the id of an earlier one: what it did was perhaps done twice",
                self._follower.log.path(version),
                version,
            )
        async for finding in self._slots(head):
            yield finding
        async for finding in self._lost(head, clues):
            yield finding
        async for finding in self._leases(head):
            yield finding
        async for path, version, what in misleading(self._follower):
            yield self._broken(
                "checkpoint_differs",
                f"this checkpoint is whole, and says something else than the tree of version {version}: {what}",
                path,
                version,
            )
        yield CheckSummary(
            versions=self._versions,
            nodes=len(self._nodes),
            definitions=len(self._definitions),
            manifests=self._manifests,
            findings=self._findings,
            given_up=tuple((one.first, one.last) for one in self._follower.log.given_up),
        )

    async def _above(self, first: int) -> AsyncIterator[Finding]:
        """The damaged versions from one on, above the newest that can be followed."""
        log = self._follower.log
        for version in range(first, await log.head(first - 1) + 1):
            self._versions += 1
            try:
                await log.read(version)
            except AlpheusError as error:
                yield self._finding(error, version, log.path(version))

    async def _rows(self, root: Root) -> AsyncIterator[Finding]:
        """What reading a root of ours does not look at, where no checksum of its rows did: a bit of it may have
        flipped."""
        if root.is_foreign or root.has_checksum:
            return
        path = root.path
        data = await self._reader.storage.read(path, size_max=self._reader.node_size_max)
        file = decode_node(data, path, root=True, size_max=self._reader.node_size_max)
        for problem in strange_rows(file, root, self._reader.keys):
            yield self._broken("corrupt_node", f"version {root.version} {problem}", path, root.version)

    async def _broken_link(self, root: Root, previous: Root | None) -> AlpheusError | None:
        """Why the version was not made on the one below it, which may be a tombstone; None: it was, as far as it says
        and as that one can be read."""
        if not root.version or not root.previous_commit_id or self._follower.log.gave_up(root.version - 1):
            return None
        try:
            below = previous.commit_id if previous else await self._follower.log.commit_id(root.version - 1)
        except (Corrupt, NotFound):
            return None  # found with that version
        try:
            check_follows(root, below)
        except Corrupt as error:
            return error
        return None

    async def _slots(self, head: int) -> AsyncIterator[Finding]:
        """No slot lies above a free one: else a deleted slot passes for the end of history, and is written again."""
        log, above, listed = self._follower.log, set[int](), bytearray((head >> 3) + 1)
        async with contextlib.aclosing(log.storage.list("vn/")) as entries:  # type: ignore[type-var]
            async for entry in entries:
                if entry.path in (fmt.LATEST_HINT, fmt.OLDEST_HINT):
                    continue
                try:
                    version, digits = fmt.parse_version_file(entry.path)
                except Corrupt as error:
                    yield self._finding(error, head, entry.path)
                    continue
                if digits == log.digits and version > head:
                    above.add(version)
                elif digits == log.digits:
                    listed[version >> 3] |= 1 << (version & 7)
        for version in evidence.unlisted(listed, head):
            if version >= self._lowest or log.gave_up(version) is not None:
                continue  # those after it were read
            if not await log.exists(version):
                yield self._hole(version, version, head)
        free = head + 1
        for version in sorted(above):
            # Asked after the listing, which may miss what was written meanwhile.
            if version > free and not await log.exists(free):
                yield self._hole(free, version - 1, max(above))
            free = version + 1

    def _hole(self, first: int, last: int, top: int) -> Finding:
        what = f"version {first} is" if first == last else f"versions {first} to {last} are"
        return self._broken(
            "corrupt_history",
            f"version {top} is there and {what} not: somebody deleted them, or the storage was put back",
            self._follower.log.path(first),
            first,
        )

    async def _lost(self, head: int, clues: Clues) -> AsyncIterator[Finding]:
        """Nothing tells of a version above the head."""
        log = self._follower.log
        around = {version for version in clues.around(head) if version > head}
        free = around - await evidence.taken_of(log, around)
        files = [(path, version) for path, version in clues.named.items() if version in free]
        for lost in await evidence.lost_of(log, self._follower.catalog_id, files):
            yield self._broken(
                "head_missing",
                f"{lost.known_from} knows version {lost.version} as {lost.commit_id}, which is not there;"
                f" the newest is {head}",
                lost.known_from,
                lost.version,
            )
        if clues.hint is not None and clues.hint in free:
            yield self._broken(
                "head_missing",
                f"{fmt.LATEST_HINT} names version {clues.hint}, which is not there; the newest is {head}",
                fmt.LATEST_HINT,
                clues.hint,
            )

    async def _leases(self, head: int) -> AsyncIterator[Finding]:
        """Every lease can be read, and is of a version of this history: else it keeps a collector from deleting
        anything, or keeps what nobody knows."""
        async with contextlib.aclosing(leases_in(self._follower.log.storage)) as leases:  # type: ignore[type-var]
            async for found in leases:
                if found.lease is None:
                    assert found.damage is not None
                    yield self._finding(found.damage, head, found.path)
                    continue
                copy = found.lease.copy
                try:
                    commit_id = await self._follower.log.commit_id(copy.version)
                except NotFound:
                    commit_id = "not there"
                except Corrupt:
                    continue  # of the version, and found with it
                if commit_id != copy.commit_id:
                    yield self._broken(
                        "corrupt_history",
                        f"the lease {found.path} is on version {copy.version} as {copy.commit_id}, which is"
                        f" {commit_id}: the storage was put back to an older state",
                        found.path,
                        copy.version,
                    )

    async def _version(self, root: Root, previous: Root | None) -> AsyncIterator[Finding]:
        """One version: its tree, and what its actions say against what differs."""
        if previous is not None:
            self._own_below |= not previous.is_foreign

        def is_foreign(path: NodePath) -> bool:
            return path in self._foreign_nodes if path else root.is_foreign

        seen = len(self._utf16_nodes)
        steps = tree.verify(root.node, order=self._follower.definition.order, is_foreign=is_foreign)
        for problem in await tree.run_async(steps, self._load):
            yield self._broken("corrupt_tree", problem, root.path, root.version)
        if UTF16_ORDER in root.defects or len(self._utf16_nodes) > seen:
            yield self._broken(
                "utf16_order",
                f"version {root.version} has keys in UTF-16 order, as the Java SDK writes them and cannot look them up;"
                " here they are read, and put in order by the next commit that touches them",
                root.path,
                root.version,
            )
        async for finding in self._rows(root):
            yield finding
        link = await self._broken_link(root, previous)
        if link is not None:
            yield self._finding(link, root.version)
        if link is not None or (previous is None and root.version):
            return  # the version before is gone, or another: nothing to compare with
        before = previous.node if previous is not None else EMPTY
        catalog_before = previous.catalog_def if previous is not None else ""
        if (
            previous is not None
            and root.created_at_millis < previous.created_at_millis
            and not root.is_foreign
            and not counts_anew(root.transactions)
        ):
            yield self._broken(
                "corrupt_history", "created before the version below it", root.path, root.version
            )
        changes = await tree.run_async(tree.diff(before, root.node), self._load)
        if root.is_foreign:
            async for finding in self._foreign_write(root, previous, changes):
                yield finding
            return  # no actions to compare with
        recorded: dict[Key, tuple[str | None, str | None]] = {}
        catalog = catalog_before
        for transaction in root.transactions:
            for action in transaction.actions:
                for effect in action.effects:
                    if effect.name.kind is Kind.CATALOG:
                        catalog = effect.path_after or catalog
                        continue
                    key = await self._key(before, root.node, effect.name)
                    first, last = recorded.get(key, (effect.path_before or None,) * 2)
                    if (effect.path_before or None) != last:
                        yield self._broken(
                            "corrupt_history",
                            f"{action.type} on {effect.name} found {effect.path_before}, the action before left {last}",
                            root.path,
                            root.version,
                        )
                    recorded[key] = (first, effect.path_after or None)
        expected = {key: pair for key, pair in recorded.items() if pair[0] != pair[1]}
        actual = {key: (a, b) for key, a, b in changes}
        for key in sorted(expected.keys() | actual.keys()):
            if expected.get(key) != actual.get(key):
                yield self._broken(
                    "corrupt_history",
                    f"{self._reader.keys.parse(key)}: the actions say {expected.get(key)},"
                    f" the trees differ by {actual.get(key)}",
                    root.path,
                    root.version,
                )
        if catalog != root.catalog_def:
            yield self._broken(
                "corrupt_history",
                f"the actions leave the catalog definition at {catalog}, the root names {root.catalog_def}",
                root.path,
                root.version,
            )
        replay = _Replay(self._follower, self._reader, root, previous)
        for transaction in root.transactions:
            operations = [action.operation for action in transaction.actions]
            known = [operation for operation in operations if operation is not None]
            if len(known) == len(operations) and operations_digest(known) != transaction.operations_digest:
                yield self._broken(
                    "corrupt_action",
                    f"the actions of transaction {transaction.id} are not the operations of its digest",
                    root.path,
                    root.version,
                )
            async for finding in self._replay(root, transaction, replay):
                yield finding

    async def _foreign_write(
        self, root: Root, previous: Root | None, changes: Sequence[KeyChange]
    ) -> AsyncIterator[Finding]:
        """What other software did to a catalog that this software has written: it is read, and must be known of, for
        it can lose what others commit at the same time."""
        for key, _, path in changes:
            if path is None:
                continue
            try:
                name = self._reader.keys.parse(key)
                await self._stored(path, name.kind)
            except AlpheusError as error:
                yield self._finding(error, root.version, path)
        if previous is None or not self._own_below:
            return
        named = [
            f"{self._reader.keys.parse(key)} {change_type(before, after)}"
            for key, before, after in changes[:5]
        ]
        if root.catalog_def != previous.catalog_def:
            named.insert(0, "the catalog definition updated")
        count = len(changes) - 5
        yield self._broken(
            "foreign_write",
            f"version {root.version} was written by other software, without actions:"
            f" {', '.join(named) or 'nothing changed'}{f' and {count} more' if count > 0 else ''}",
            root.path,
            root.version,
        )

    async def _key(self, before: Node, after: Node, name: ObjectName) -> Key:
        """Of a name under both paddings the one that a commit on `before` finds."""
        if name.full_name.isascii():
            return self._reader.keys.key(name)
        for root in (before, after):
            found = await self._reader.find(root, [name])
            if name in found:
                return found[name][0]
        return self._reader.keys.key(name)

    async def _load(self, paths: list[NodePath]) -> dict[NodePath, Node]:
        self._nodes.update(paths)
        return dict(await self._reader.load_nodes(paths))

    async def _stored(self, path: str, kind: Kind) -> StoredObject | None:
        if not path:
            return None
        self._definitions.add(path)
        data = await self._reader.definitions({path: kind})
        return StoredObject(path, data[path])

    async def _replay(
        self, root: Root, transaction: RecordedTransaction, replay: _Replay
    ) -> AsyncIterator[Finding]:
        """Execute each recorded operation on what it found; the result must be the stored bytes of every object."""
        operations = [action.operation for action in transaction.actions if action.operation is not None]
        numbers = itertools.count()
        context = ExecutionContext(
            msgspec.structs.replace(self._reader.keys, takes_unseen=True),
            transaction.id,
            lambda: f"00000000-0000-0000-0000-{next(numbers):012x}",
            writes=tables_written(operations),
            writer=transaction.writer,
            version=root.version,
            merges=False,  # which does not change what a table holds
        )
        for action in transaction.actions:
            await asyncio.sleep(0)  # what comes from caches waits for nothing, and others have work to do
            operation = action.operation
            try:
                before, after = await self._effects(action)
            except AlpheusError as error:
                yield self._finding(error, root.version, root.path)
                replay.unreadable.update(effect.name for effect in action.effects)
                continue
            if operation is None:
                # A root of a later revision is refused, so every operation of ours is known here.
                yield self._broken(
                    "corrupt_action",
                    f"{root.path} records {action.type} on {action.name} without a known operation",
                    root.path,
                    root.version,
                )
                continue
            if (action.type, action.name) != (action_type(operation), operation.target):
                yield self._broken(
                    "corrupt_action",
                    f"{root.path} records {action.type} on {action.name} for an operation on {operation.target}",
                    root.path,
                    root.version,
                )
                continue
            if isinstance(operation, CreateCatalog):
                stored = after.get(fmt.CATALOG)
                if stored is not None:
                    async for finding in self._first(root, operation, stored):
                        yield finding
                continue
            for name, stored in before.items():
                replay.running.set(name, stored)
            try:
                async for finding in self._execute_again(root, action, operation, context, replay, after):
                    yield finding
            except AlpheusError as error:
                # Of an expired version nothing is known that could be compared.
                if not (isinstance(error, Expired) and error.kind == "version_expired"):
                    yield self._finding(error, root.version, action.path_before or root.path)
            for name, stored in after.items():
                replay.running.set(name, stored)

    async def _effects(
        self, action: Action
    ) -> tuple[dict[ObjectName, StoredObject | None], dict[ObjectName, StoredObject | None]]:
        """What an action says to have found and left, by object. Raises Corrupt for what it left and is damaged; what
        it found may be, which is told of whatever left it."""
        paths = {
            path: effect.name.kind
            for effect in action.effects
            for path in (effect.path_before, effect.path_after)
            if path
        }
        self._definitions.update(paths)
        data = await self._reader.stored(paths)

        def stored(path: str) -> StoredObject | None:
            return data[path] if path else None

        for effect in action.effects:
            error = data[effect.path_after].error() if effect.path_after else None
            if error is not None:
                raise error
        before = {effect.name: stored(effect.path_before) for effect in action.effects}
        return before, {effect.name: stored(effect.path_after) for effect in action.effects}

    async def _execute_again(
        self,
        root: Root,
        action: Action,
        operation: Operation,
        context: ExecutionContext,
        replay: _Replay,
        after: dict[ObjectName, StoredObject | None],
    ) -> AsyncIterator[Finding]:
        segments = await fetch(
            replay.base,
            [operation],
            replay.source,
            replay,
            self._reader.keys,
            top=replay.running,
            drops=replay.drops,
        )
        needs = footprint(operation, replay.running)
        if replay.unreadable & {*needs.names, *needs.related}:
            return  # found already
        if isinstance(operation, AppendFiles | OverwriteFiles | ChangeRows):
            removed = operation.removed if isinstance(operation, ChangeRows) else ()
            for segment in segments:
                self._brought.add(segment.path)
                content = await self._segment(segment, operation.table_id, action.name, of_table=False)
                replay.base.fetched_segment(segment.path, content)
                if segment not in removed:
                    async for finding in self._data_files(content.files, action.name, root.version):
                        yield finding
        while True:
            fork = replay.running.fork()
            try:
                executed = await execute_giving_way(fork, operation, context)
                break
            except Unfetched as needed:
                for table_id, segment in needed.segments:
                    content = await self._segment(segment, table_id, action.name)
                    replay.base.fetched_segment(segment.path, content)
        same = executed.action.operation == operation
        same &= {effect.name for effect in executed.action.effects} == after.keys()
        if not same:
            yield self._broken(
                "corrupt_history",
                f"replaying {action.type} on {action.name} changes other objects, or gives other ids, than recorded",
                root.path,
                root.version,
            )
            return
        for effect in action.effects:
            result, stored = fork.get(effect.name), after[effect.name]
            given = result.definition if result is not None else None
            kept = result is not None and result.path not in executed.uploads
            differs = result is not None and stored is not None and not kept and given != stored.definition
            if differs:
                try:
                    if await self._holds_the_same(effect.name, fork, result, stored):
                        continue
                except AlpheusError as error:  # of a segment; or it is the definition that names it wrongly
                    yield self._finding(error, root.version, effect.path_after)
            if given != (stored.definition if stored else None) or (kept and result != stored):
                yield self._broken(
                    "corrupt_history",
                    f"replaying {action.type} on {effect.name}, {effect.path_before or 'absent before'}, does not give"
                    f" {effect.path_after or 'its removal'}",
                    effect.path_after or root.path,
                    root.version,
                )

    async def _holds_the_same(
        self, name: ObjectName, space: Workspace, given: StoredObject | None, stored: StoredObject | None
    ) -> bool:
        """Whether two definitions of a table differ in nothing but which segments list its files: those that a commit
        makes have names and bytes of their own. Raises Corrupt when one cannot be read or is not what they say."""
        assert given is not None
        assert stored is not None
        ours, theirs = definition_of(name, given), definition_of(name, stored)
        if not (isinstance(ours, TableDef) and isinstance(theirs, TableDef)):
            return False
        if msgspec.structs.replace(ours, segments=theirs.segments) != theirs:
            return False
        if encode_definition(theirs) != stored.definition:
            return False  # it is damaged where it changes nothing
        both = set(ours.segments) & set(theirs.segments)
        mine = []
        for segment in ours.segments:
            if segment not in both:
                try:
                    (content,) = space.contents([segment], ours.id)
                except Unfetched:
                    content = await self._segment(segment, ours.id, name)
                mine.append(content.stamped(segment))
        others = [
            (await self._segment(segment, theirs.id, name)).stamped(segment)
            for segment in theirs.segments
            if segment not in both
        ]
        return bool(_sorted(mine).equals(_sorted(others)))

    async def _contents(self, root: Root) -> AsyncIterator[Finding]:
        """At the newest version: every definition, every manifest segment, every data file."""
        snapshot = Snapshot(self._reader, root.version, root.node, root.catalog_def)
        try:
            catalog = await self._stored(root.catalog_def, Kind.CATALOG)
            assert catalog is not None
            decode_definition(Kind.CATALOG, catalog.definition, catalog.path)
        except AlpheusError as error:
            yield self._finding(error, root.version, root.catalog_def)
        try:
            entries = await snapshot.entries()
        except AlpheusError as error:
            yield self._finding(error, root.version, root.path)
            return
        for key, path in entries:
            await asyncio.sleep(0)
            try:
                name = self._reader.keys.parse(key)
                stored = await self._stored(path, name.kind)
                assert stored is not None
                if name.kind in (Kind.NAMESPACE, Kind.TABLE, Kind.VIEW, Kind.PIPELINE, Kind.SUBSCRIPTION):
                    definition = decode_definition(name.kind, stored.definition, path)
                    if isinstance(definition, TableDef) and definition.native:
                        async for finding in self._table(definition, name, root.version):
                            yield finding
            except AlpheusError as error:
                yield self._finding(error, root.version, path)

    async def _table(self, table: TableDef, name: ObjectName, version: int) -> AsyncIterator[Finding]:
        for segment in table.segments:
            if segment.path in self._brought:
                continue
            try:
                files = (await self._segment(segment, table.id, name)).files
            except AlpheusError as error:
                yield self._finding(error, version, segment.path)
                continue
            async for finding in self._data_files(files, name, version):
                yield finding

    async def _segment(
        self, segment: Segment, table_id: str, name: ObjectName, *, of_table: bool = True
    ) -> Content:
        """What a manifest segment lists. Raises Corrupt when it is not there or not what `segment` says."""

        def corrupt(reason: str) -> Corrupt:
            return Corrupt(
                f"manifest segment {segment.path} of {name} {reason}",
                kind="corrupt_manifest",
                path=segment.path,
            )

        self._manifests += segment.path not in self._segments
        self._segments.add(segment.path)
        fmt.check_manifest_pointer(segment.path, table_id)
        try:
            data = await self._reader.storage.read(segment.path, size_max=fmt.MANIFEST_SIZE_BYTES_MAX)
        except NotFound:
            raise corrupt("is not there") from None
        if not is_content_of(segment, data):
            raise corrupt("has not the size and SHA-256 that the catalog records")
        content = Content.checked(data, segment.path, table_id)
        files = content.files
        told = segment.file_count, segment.row_count, segment.size_bytes
        if told != (len(files), sum(f.row_count for f in files), sum(f.size_bytes for f in files)):
            raise corrupt("does not add up")
        if of_table:
            found = pc.min_max(content.sequences(segment)).as_py()
            if (found["min"], found["max"]) != (segment.lowest_sequence, segment.sequence):
                raise corrupt(f"has sequences {found['min']} to {found['max']}")
        return content

    async def _data_files(
        self, files: tuple[DataFile, ...], name: ObjectName, version: int
    ) -> AsyncIterator[Finding]:
        for file in files:
            if file.path in self._files:
                continue
            self._files.add(file.path)
            info = await self._reader.storage.stat(file.path)
            if info is None or info.size != file.size_bytes:
                found = "is not there" if info is None else f"has {info.size} bytes, not {file.size_bytes}"
                yield self._broken(
                    "corrupt_manifest", f"data file {file.path} of {name} {found}", file.path, version
                )

    async def _first(
        self, root: Root, operation: CreateCatalog, stored: StoredObject
    ) -> AsyncIterator[Finding]:
        """Version 0: the stored catalog definition is what the action records, to the byte."""
        if encode_definition(operation.definition) != stored.definition:
            yield self._broken(
                "corrupt_definition",
                f"{stored.path} is not the catalog definition that {root.path} recorded",
                stored.path,
                root.version,
            )
