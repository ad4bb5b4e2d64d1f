"""Execute the recorded operations of a version again. The result must be the stored bytes of every object."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa

from alpheus_journal import format as fmt
from alpheus_journal.check.contents import ContentCheck
from alpheus_journal.check.findings import Findings
from alpheus_journal.errors import AlpheusError, Expired
from alpheus_journal.execute.execute import execute_async, tables_written
from alpheus_journal.execute.prefetch import fetch, footprint
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.log.versions import Root
from alpheus_journal.model.answers import Finding, StoredObject
from alpheus_journal.model.definition_messages import encode_definition, has_checksum
from alpheus_journal.model.definitions import Segment, TableDef
from alpheus_journal.model.operation_messages import action_type
from alpheus_journal.model.operations import (
    Action,
    AppendFiles,
    ChangeRows,
    CreateCatalog,
    Effect,
    Operation,
    OverwriteFiles,
    RecordedTransaction,
)
from alpheus_journal.replay.follower import Follower
from alpheus_journal.tables.manifest import SEGMENT_SCHEMA
from alpheus_journal.tags.reader import find_pinned
from alpheus_journal.tree.node import EMPTY
from alpheus_journal.tree.reader import Reader, Snapshot
from alpheus_journal.workspace.context import Executed, ExecutionContext
from alpheus_journal.workspace.dropped_counters import actions_down
from alpheus_journal.workspace.workspace import Unfetched, Workspace, definition_of


def _sorted(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return the rows of segments in the order of their paths. Each row must have its sequence."""
    plain = [batch.replace_schema_metadata(None) for batch in batches]
    return pa.Table.from_batches(plain, schema=SEGMENT_SCHEMA).sort_by("path").combine_chunks()


class Execution:
    """The objects that the operations of one version are executed on: the version before it, and on top the results of
    earlier actions. Also the `prefetch.History` of that version."""

    decides_counters = False

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

    async def at(self, version: int, name: ObjectName) -> Snapshot:
        """Return an older version; where it has expired, as the pin of a tag of the version before keeps it."""
        try:
            root = await self._follower.root(version)
        except Expired:
            pinned = await find_pinned(self.source, self._follower.log, version, name)
            if pinned is None:
                raise
            return pinned
        return Snapshot(self._reader, version, root.node, root.catalog_def)

    async def changed_since(
        self, version: int, kinds: frozenset[Kind], name: ObjectName
    ) -> AsyncIterator[tuple[ObjectName, StoredObject]]:
        before = await self.at(version, name)
        async for found in self.source.created_or_changed_since(before, kinds):
            yield found

    async def tagged_since(self, version: int, names: Sequence[ObjectName]) -> AsyncGenerator[TableDef, None]:
        raise AssertionError("recorded counters are not decided again")
        yield

    def actions_since(self, version: int) -> AsyncGenerator[Action, None]:
        return actions_down(self._follower.recorded_event, range(self.version, version, -1))

    async def stored(self, paths: Mapping[str, Kind]) -> Mapping[str, StoredObject]:
        return await self._reader.stored(paths)


class ExecutionCheck:
    def __init__(self, reader: Reader, contents: ContentCheck, findings: Findings) -> None:
        self._reader = reader
        self._contents = contents
        self._findings = findings

    def _context_of(self, root: Root, transaction: RecordedTransaction) -> ExecutionContext:
        """Return the context in which the operations of a recorded transaction are executed again."""
        operations = [action.operation for action in transaction.actions if action.operation is not None]
        numbers = itertools.count()
        return ExecutionContext(
            msgspec.structs.replace(self._reader.keys, takes_unseen=True),
            transaction.id,
            lambda: f"00000000-0000-0000-0000-{next(numbers):012x}",
            writes=tables_written(operations),
            writer=transaction.writer,
            version=root.version,
            principal=transaction.principal,
            merges=False,  # a merge does not change the content of a table
        )

    async def check(
        self, root: Root, transaction: RecordedTransaction, execution: Execution
    ) -> AsyncIterator[Finding]:
        """Execute each recorded operation on the objects that it found, and compare the result with stored bytes."""
        context = self._context_of(root, transaction)
        for action in transaction.actions:
            await asyncio.sleep(0)  # reads from caches never wait, so let the event loop take a turn
            operation = action.operation
            try:
                before, after = await self._effects(action)
            except AlpheusError as error:
                yield self._findings.of_error(error, root.version, root.path)
                execution.unreadable.update(effect.name for effect in action.effects)
                continue
            if operation is None:
                # A root of a later revision is refused, so every operation of ours is known here.
                yield self._findings.add(
                    "corrupt_action",
                    f"{root.path} records {action.type} on {action.name} without a known operation",
                    root.path,
                    root.version,
                )
                continue
            if (action.type, action.name) != (action_type(operation), operation.target):
                yield self._findings.add(
                    "corrupt_action",
                    f"{root.path} records {action.type} on {action.name} for an operation on {operation.target}",
                    root.path,
                    root.version,
                )
                continue
            if isinstance(operation, CreateCatalog):
                stored = after.get(fmt.CATALOG)
                if stored is not None:
                    async for finding in self._check_creation(root, operation, stored):
                        yield finding
                continue
            for name, stored in before.items():
                execution.running.set(name, stored)
            # The version below may be of revision 1, and have definitions without checksums.
            summed = any(one is not None and has_checksum(one.definition) for one in after.values())
            context = msgspec.structs.replace(context, checksums=summed)
            try:
                async for finding in self._execute_again(root, action, operation, context, execution, after):
                    yield finding
            except AlpheusError as error:
                # An expired version leaves nothing to compare.
                if not (isinstance(error, Expired) and error.kind == "version_expired"):
                    yield self._findings.of_error(error, root.version, action.path_before or root.path)
            for name, stored in after.items():
                execution.running.set(name, stored)

    async def _effects(
        self, action: Action
    ) -> tuple[dict[ObjectName, StoredObject | None], dict[ObjectName, StoredObject | None]]:
        """Return the objects that an action found and left, by name.

        Raises Corrupt for a damaged object that it left. An object that it found may be damaged: the action that left
        it reports that.
        """
        paths = {
            path: effect.name.kind
            for effect in action.effects
            for path in (effect.path_before, effect.path_after)
            if path
        }
        self._contents.definitions.update(paths)
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
        execution: Execution,
        after: dict[ObjectName, StoredObject | None],
    ) -> AsyncIterator[Finding]:
        segments = await fetch(
            execution.base,
            [operation],
            execution.source,
            execution,
            self._reader.keys,
            top=execution.running,
            drops=execution.drops,
        )
        needs = footprint(operation, execution.running)
        if execution.unreadable & {*needs.names, *needs.related}:
            return  # reported already
        if isinstance(operation, AppendFiles | OverwriteFiles | ChangeRows):
            async for finding in self._check_segments(root, action, operation, execution, segments):
                yield finding
        fork, executed = await self._execute(action, operation, context, execution)
        same = executed.action.operation == operation
        same &= {effect.name for effect in executed.action.effects} == after.keys()
        if not same:
            yield self._findings.add(
                "corrupt_history",
                f"replaying {action.type} on {action.name} changes other objects or assigns other ids than recorded",
                root.path,
                root.version,
            )
            return
        for effect in action.effects:
            async for finding in self._compare(root, action, effect, fork, executed, after[effect.name]):
                yield finding

    async def _check_segments(
        self,
        root: Root,
        action: Action,
        operation: AppendFiles | OverwriteFiles | ChangeRows,
        execution: Execution,
        segments: Iterable[Segment],
    ) -> AsyncIterator[Finding]:
        """Check the segments that an operation names, and the data files of those that it adds."""
        removed = operation.removed if isinstance(operation, ChangeRows) else ()
        for segment in segments:
            self._contents.brought.add(segment.path)
            content = await self._contents.segment(segment, operation.table_id, action.name, of_table=False)
            execution.base.add_segment(segment.path, content)
            if segment not in removed:
                async for finding in self._contents.check_data_files(
                    content.files, operation.table_id, operation.data_root, action.name, root.version
                ):
                    yield finding
            if self._contents.lacks(operation.table_id, root.version):
                self._contents.brought.discard(segment.path)  # a later version may need the files

    async def _execute(
        self, action: Action, operation: Operation, context: ExecutionContext, execution: Execution
    ) -> tuple[Workspace, Executed]:
        """Execute on a fork of the results of earlier actions. Fetches the segments that turn out to be needed."""
        while True:
            fork = execution.running.fork()
            try:
                return fork, await execute_async(fork, operation, context)
            except Unfetched as needed:
                for table_id, segment in needed.segments:
                    content = await self._contents.segment(segment, table_id, action.name)
                    execution.base.add_segment(segment.path, content)

    async def _compare(
        self,
        root: Root,
        action: Action,
        effect: Effect,
        fork: Workspace,
        executed: Executed,
        stored: StoredObject | None,
    ) -> AsyncIterator[Finding]:
        """Compare one object after the execution with its stored definition."""
        result = fork.get(effect.name)
        given = result.definition if result is not None else None
        kept = result is not None and result.path not in executed.uploads
        if result is not None and stored is not None and not kept and given != stored.definition:
            try:
                if await self._holds_the_same(effect.name, fork, result, stored):
                    return
            except AlpheusError as error:  # a segment is damaged, or the definition names it wrongly
                yield self._findings.of_error(error, root.version, effect.path_after)
        if given != (stored.definition if stored else None) or (kept and result != stored):
            yield self._findings.add(
                "corrupt_history",
                f"replaying {action.type} on {effect.name}, {effect.path_before or 'absent before'}, does not give"
                f" {effect.path_after or 'its removal'}",
                effect.path_after or root.path,
                root.version,
            )

    async def _holds_the_same(
        self, name: ObjectName, space: Workspace, given: StoredObject | None, stored: StoredObject | None
    ) -> bool:
        """Return whether two definitions of a table only differ in the segments that list its files.

        Each commit gives new segments random names, and may cut them differently. Raises Corrupt for a segment that
        cannot be read or differs from its definition.
        """
        assert given is not None
        assert stored is not None
        ours, theirs = definition_of(name, given), definition_of(name, stored)
        if not (isinstance(ours, TableDef) and isinstance(theirs, TableDef)):
            return False
        if msgspec.structs.replace(ours, segments=theirs.segments) != theirs:
            return False
        if encode_definition(theirs, checksum=has_checksum(stored.definition)) != stored.definition:
            return False  # the definition is damaged in a part without meaning
        both = set(ours.segments) & set(theirs.segments)
        mine = []
        for segment in ours.segments:
            if segment not in both:
                try:
                    (content,) = space.contents([segment], ours.id)
                except Unfetched:
                    content = await self._contents.segment(segment, ours.id, name)
                mine.append(content.with_sequences(segment))
        others = [
            (await self._contents.segment(segment, theirs.id, name)).with_sequences(segment)
            for segment in theirs.segments
            if segment not in both
        ]
        return bool(_sorted(mine).equals(_sorted(others)))

    async def _check_creation(
        self, root: Root, operation: CreateCatalog, stored: StoredObject
    ) -> AsyncIterator[Finding]:
        """Check that the stored catalog definition of version 0 has exactly the bytes that the action records."""
        asked = operation.definition
        if encode_definition(asked, checksum=asked.format_revision >= 2) != stored.definition:
            yield self._findings.add(
                "corrupt_definition",
                f"{stored.path} is not the catalog definition that {root.path} recorded",
                stored.path,
                root.version,
            )
