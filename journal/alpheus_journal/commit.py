"""Committing: stage, publish, settle an unknown outcome, rebase by executing again (FORMAT.md, "Committing").

One committer a process and catalog. A group of transactions becomes one version; each is validated and executed
by itself on what the ones before it left, so the version equals their serial execution and a failing one
harms nobody. Nothing is answered that durable versions do not say.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import msgspec

from alpheus_journal import failpoints, tree
from alpheus_journal import format as fmt
from alpheus_journal.access import Committed, StoredObject, make_token
from alpheus_journal.action_rows import (
    ActionRow,
    digested,
    encode_transaction,
    external_row,
    row_value,
)
from alpheus_journal.actions import Action, AppendFiles, OverwriteFiles, RecordedTransaction, Transaction
from alpheus_journal.conflicts import Group, Stakes
from alpheus_journal.counters import actions_down
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Corrupt,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
)
from alpheus_journal.facets import check_reads
from alpheus_journal.follower import Follower, Head
from alpheus_journal.footprint import Source, fetch
from alpheus_journal.format import Key, Kind, NodePath, ObjectName
from alpheus_journal.manifest import DataFile, decode_segment
from alpheus_journal.node import Node, encode_node
from alpheus_journal.objects import Segment
from alpheus_journal.operations import check_transaction, context_of, execute_giving_way
from alpheus_journal.retries import Retries, check_retry_keys, marks_of, written_tables
from alpheus_journal.snapshot import Snapshot
from alpheus_journal.state import VersionRecord
from alpheus_journal.storage.suitability import check_clock
from alpheus_journal.system import Clock, Identities
from alpheus_journal.workspace import Executed, Workspace

SETTLE_DELAY_MIN_SECONDS = 0.05
SETTLE_DELAY_MAX_SECONDS = 2.0
OPERATIONS_AT_ONCE_MAX = 16
"""Executed in one turn of the event loop: some milliseconds of work. Rows are encoded ten times as fast."""
EXECUTED_SIZE_BYTES = 4096
"""So much of definitions written, or so many objects changed at once (`EXECUTED_EFFECTS`), count as an operation."""
EXECUTED_EFFECTS = 8
SEGMENTS_AT_ONCE_MAX = 32
SEGMENTS_AT_ONCE_BYTES_MAX = 16 << 20
"""Manifest segments of a commit that are read at once, at least one, and whose data files are looked for together."""


Answer = Committed | AlpheusError | None
"""Committed; an error that rests on durable versions; or None: not judged, put it first into the next group."""


class _Member(msgspec.Struct):
    """A transaction that is part of a staged version."""

    index: int
    recorded: RecordedTransaction
    rows: list[ActionRow]
    uploads: dict[str, bytes]
    definitions_size: int  # bytes of them
    rows_added: int
    rows_removed: int


class _Staged(msgspec.Struct, frozen=True):
    """A version that is ready to be published, and may be out there already."""

    head: Head
    record: VersionRecord
    definitions: dict[str, bytes]
    nodes: dict[NodePath, Node]
    files: dict[str, bytes]
    slot: str
    root: bytes
    members: tuple[_Member, ...]


class Committer:
    """See the module. One `commit_group` at a time."""

    def __init__(self, follower: Follower, clock: Clock, identities: Identities) -> None:
        self._follower = follower
        self._clock = clock
        self._identities = identities
        self._storage = follower.log.storage
        self._keys = follower.reader.keys
        self._unsettled: _Staged | None = None
        self._executed_count = 0
        self.retries = Retries(follower)

    @property
    def is_settled(self) -> bool:
        """False: a root of ours may or may not be in its slot; the next group settles that first."""
        return self._unsettled is None

    async def commit_group(
        self, transactions: Sequence[Transaction], *, deadline_seconds: float | None = None
    ) -> list[Answer]:
        """Publish at most one version. One answer a transaction, in order (see `Answer`).

        `deadline_seconds` bounds only the settling of an unknown outcome: after it the members concerned get
        OutcomeUnknown, and the next call goes on settling before it does anything else. Cancellation leaves
        the same state.
        """
        deadline = (
            None if deadline_seconds is None else self._clock.now_millis() + int(deadline_seconds * 1000)
        )
        if self._unsettled is not None:
            try:
                await self._settle(deadline)
            except OutcomeUnknown as error:
                # Nothing of this group was sent; but an id of the unsettled root may be among them.
                ids = {member.recorded.id for member in self._staged_members()}
                return [_unknown(t.id, error) if t.id in ids else None for t in transactions]
        if not transactions:
            return []
        answers: list[Answer] = [None] * len(transactions)
        try:
            self._follower.check_history()
            if max(t.begin_version for t in transactions) > self._follower.head.version:
                await self._follower.refresh()
            head = self._follower.head
            members = await self._execute(head, transactions, answers)
            if not members:
                return answers
            staged = await self._stage(head, members, answers)
        except AlpheusError as error:
            # Reading or staging failed as a whole (storage away, damaged tree): nothing was applied.
            return [answer if answer is not None else _again(error) for answer in answers]
        if staged is None:
            return answers
        for member in members:
            answers[member.index] = None
        await self._publish(staged, answers, deadline)
        return answers

    def _staged_members(self) -> tuple[_Member, ...]:
        return self._unsettled.members if self._unsettled is not None else ()

    async def preview(self, transaction: Transaction, head: Head) -> tuple[dict[str, bytes], bytes]:
        """What the version after `head` would be if the transaction alone made it: its files, and its root's bytes.
        Nothing is written. Raises what the commit would raise at that version."""
        snapshot = Snapshot(self._follower.reader, head.version, head.root, head.catalog_def)
        check_reads(transaction, self._keys)
        check_retry_keys(transaction)
        workspace = Workspace()
        drops = Counter(operation.target.namespace for operation in transaction.operations)
        await self._fetch(workspace, snapshot, transaction, drops)
        member = await self._execute_one(workspace.fork(), transaction, 0, head)
        staged = await self._encode(head, [member], max(self._clock.now_millis(), head.created_at_millis))
        return staged.files, staged.root

    # --- validate and execute

    async def _execute(
        self, head: Head, transactions: Sequence[Transaction], answers: list[Answer]
    ) -> list[_Member]:
        """Fill in the answers that durable versions decide; return the members of the next version."""
        snapshot = Snapshot(self._follower.reader, head.version, head.root, head.catalog_def)
        durable = Workspace()
        drops = Counter(operation.target.namespace for t in transactions for operation in t.operations)
        candidates = []

        newest = _Newest(self._follower, snapshot)
        for index, transaction in enumerate(transactions):
            try:
                check_transaction(transaction, self._clock.now_millis())
                check_reads(transaction, self._keys)
                check_retry_keys(transaction)
                stakes = Stakes(transaction)
                if len(transaction.operations) > OPERATIONS_AT_ONCE_MAX:
                    await asyncio.sleep(0)
                answers[index] = await self.retries.answer(stakes, head, newest.load)
                if answers[index] is None:
                    await self._fetch(durable, snapshot, transaction, drops)
                    candidates.append((index, stakes))
            except AlpheusError as error:
                answers[index] = error
        running = durable.fork()
        members: list[_Member] = []
        group = Group()
        ids: set[str] = set()
        keys: set[str] = set()
        size = 0
        for index, stakes in candidates:
            transaction = stakes.transaction
            fork = running.fork()
            if transaction.id in ids or transaction.key in keys or _was_written(transaction, fork):
                continue  # the next group finds the first one in the log, if it got there
            try:
                conflict = group.conflict(stakes, head.version + 1)
                if conflict is not None:
                    raise conflict
                member = await self._execute_one(fork, transaction, index, head)
                size += member.definitions_size
                if members and size > fmt.DEFINITIONS_SIZE_BYTES_MAX:
                    break  # the others are left for the next group
                members.append(member)
                group.add(member.recorded)
                ids.add(transaction.id)
                keys.update([transaction.key] if transaction.key else [])
            except AlpheusError as error:
                if members:
                    # It may rest on members that are not durable yet.
                    answers[index] = await self._refusal_on(durable, transaction, head)
                else:
                    answers[index] = error
            else:
                running.absorb(fork)
        return members

    async def _refusal_on(
        self, durable: Workspace, transaction: Transaction, head: Head
    ) -> AlpheusError | None:
        """The error of a transaction on the durable version alone; None when it would succeed there."""
        try:
            await self._execute_one(durable.fork(), transaction, 0, head)
        except AlpheusError as error:
            return error
        return None

    async def _execute_one(
        self, fork: Workspace, transaction: Transaction, index: int, head: Head
    ) -> _Member:
        context = context_of(transaction, self._keys, self._identities.uuid4, head.version + 1)
        executed: list[Executed] = []
        uploads: dict[str, bytes] = {}
        size = 0
        digest = hashlib.sha256()
        for operation in transaction.operations:
            if self._executed_count >= OPERATIONS_AT_ONCE_MAX:
                self._executed_count = 0
                await asyncio.sleep(0)  # readers and streams share the loop with a large group
            done = await execute_giving_way(fork, operation, context)
            digest.update(digested(operation))  # after its text was found to be such
            executed.append(done)
            uploads.update(done.uploads)
            written = sum(len(data) for data in done.uploads.values())
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
            committed_at_millis=max(self._clock.now_millis(), head.created_at_millis),
            actions=tuple(e.action for e in executed),
            reads=transaction.reads,
            key=transaction.key,
            writer=transaction.writer,
        )
        rows: list[ActionRow] = []
        for row, files in action_rows(recorded, self._keys, self._identities):
            rows.append(row)
            uploads.update(files)
            if not len(rows) % (10 * OPERATIONS_AT_ONCE_MAX):
                await asyncio.sleep(0)
        return _Member(
            index=index,
            recorded=recorded,
            rows=rows,
            uploads=uploads,
            definitions_size=size,
            rows_added=sum(e.rows_added for e in executed),
            rows_removed=sum(e.rows_removed for e in executed),
        )

    async def _fetch(
        self, workspace: Workspace, snapshot: Snapshot, transaction: Transaction, drops: Mapping[str, int]
    ) -> None:
        """Everything that the transaction's operations read, into the workspace. `drops`: how many children of
        a namespace the whole group can drop. Raises InvalidInput for names that cannot be and for manifest
        segments or data files that are not as announced."""
        source, history = _Newest(self._follower, snapshot), _Versions(self._follower, snapshot)
        segments = await fetch(workspace, transaction.operations, source, history, self._keys, drops=drops)
        if segments:
            await self._fetch_segments(workspace, segments, transaction)

    async def _fetch_segments(
        self, workspace: Workspace, segments: Sequence[Segment], transaction: Transaction
    ) -> None:
        """Read the manifest segments that a transaction brings, and look whether their data files are there."""
        tables = {
            segment.path: operation.table_id
            for operation in transaction.operations
            if isinstance(operation, AppendFiles | OverwriteFiles)
            for segment in operation.segments
        }
        for batch in _batches(segments):
            listed = await self._listed_files(batch, tables)
            infos = await self._storage.stat_many([file.path for files in listed for file in files])
            for segment, files in zip(batch, listed, strict=True):
                for file in files:
                    info = infos[file.path]
                    if info is None or info.size != file.size_bytes:
                        raise InvalidInput(
                            f"manifest segment {segment.path} names the data file {file.path}, which is"
                            + (
                                " not there" if info is None else f" {info.size} bytes, not {file.size_bytes}"
                            ),
                            kind="bad_data",
                            path=file.path,
                            hint="write data files before the commit",
                        )
                workspace.fetched_segment(segment.path, files)

    async def _listed_files(
        self, segments: Sequence[Segment], tables: Mapping[str, str]
    ) -> list[tuple[DataFile, ...]]:
        """The data files that each of the segments lists. `tables`: the table's id by the segment's path."""
        try:
            paths = [fmt.check_manifest_pointer(s.path, tables[s.path]) for s in segments]
            size_max = min(max(s.segment_size_bytes for s in segments), fmt.MANIFEST_SIZE_BYTES_MAX)
            contents = await self._storage.read_many(paths, size_max=size_max)
        except (NotFound, Corrupt) as error:
            raise InvalidInput(
                f"manifest segment {error.path}: {error.message}",
                kind="bad_data",
                path=error.path,
                hint="write data files and segments before the commit",
            ) from error
        listed = []
        for segment in segments:
            data = contents[segment.path]
            if hashlib.sha256(data).digest() != segment.sha256 or len(data) != segment.segment_size_bytes:
                raise InvalidInput(
                    f"manifest segment {segment.path} is not the file that was announced",
                    kind="bad_data",
                    path=segment.path,
                )
            try:
                listed.append(decode_segment(data, segment.path, table_id=tables[segment.path]))
            except Corrupt as error:
                raise InvalidInput(error.message, kind="bad_data", path=segment.path) from error
        return listed

    # --- stage and publish

    async def _stage(self, head: Head, members: list[_Member], answers: list[Answer]) -> _Staged | None:
        """Encode the next version. Members that do not fit are left for the next group; one that does not fit
        alone is refused."""
        now = self._clock.now_millis()
        if head.created_at_millis > now + fmt.CLOCK_SKEW_MILLIS_MAX:
            raise InvalidInput(
                f"version {head.version} was created {(head.created_at_millis - now) // 1000} s in the future of"
                " this machine's clock",
                kind="clock_skew",
                hint="set the clock; writing now would freeze time travel",
            )
        await check_clock(self._storage, self._follower.log.path(head.version))
        while True:
            try:
                return await self._encode(head, members, max(now, head.created_at_millis))
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

    async def _encode(self, head: Head, members: Sequence[_Member], created_at: int) -> _Staged:
        reader, definition = self._follower.reader, self._follower.definition
        version = head.version + 1
        changes, catalog_def = await self._key_changes(head, members)
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
        size_max = written_size_max(definition.node_file_size_max, log.digits)
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
        root = encode_node(
            applied.root,
            order=definition.order,
            created_at_millis=created_at,
            size_max=size_max,
            digits=log.digits,
            system={
                fmt.ROW_CATALOG_DEF: catalog_def,
                fmt.ROW_PREVIOUS_ROOT: log.path(head.version),
                fmt.ROW_COMMIT_ID: commit_id,
                fmt.ROW_VERSION: str(version),
                fmt.ROW_FORMAT_REVISION: str(fmt.FORMAT_REVISION),
            },
            actions=[(key, row_value(data)) for member in members for key, data in member.rows],
        )
        before = await tree.run_async(tree.find(head.root, changes), reader.load_nodes)
        key_changes = [
            (key, before.get(key), after)
            for key, after in sorted(changes.items())
            if before.get(key) != after
        ]
        return _Staged(
            head=Head(
                version=version,
                created_at_millis=created_at,
                commit_id=commit_id,
                token=make_token(self._follower.catalog_id, version, commit_id),
                root=applied.root,
                catalog_def=catalog_def,
            ),
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
        )

    async def _key_changes(self, head: Head, members: Sequence[_Member]) -> tuple[dict[Key, str | None], str]:
        """Final definition path by key, and the catalog definition's. Keys are as stored: an object that
        another writer padded otherwise keeps its key."""
        final: dict[ObjectName, str | None] = {}
        catalog_def = head.catalog_def
        for member in members:
            for action in member.recorded.actions:
                for effect in action.effects:
                    if effect.name.kind is not Kind.CATALOG:
                        final[effect.name] = effect.path_after or None
                    elif effect.path_after:
                        catalog_def = effect.path_after
        foreign = [name for name in final if not name.full_name.isascii()]
        stored = await self._follower.reader.find(head.root, foreign) if foreign else {}
        changes: dict[Key, str | None] = {}
        for name, path in final.items():
            changes[stored[name][0] if name in stored else self._keys.key(name)] = path
        return changes, catalog_def

    async def _publish(self, staged: _Staged, answers: list[Answer], deadline: int | None) -> None:
        await failpoints.reached("commit.staged")
        try:
            await self._storage.prove()
        except AlpheusError as error:
            for member in staged.members:
                answers[member.index] = _again(error)
            return
        # Set before the first byte leaves: a cancelled call leaves an unknown outcome, too.
        self._unsettled = staged
        with self._follower.publishing(staged.head.version):
            try:
                await self._storage.publish(staged.files, staged.slot, staged.root)
            except (AlreadyExists, OutcomeUnknown):
                await failpoints.reached("commit.root_unanswered")
            except AlpheusError as error:
                # The store says that nothing was applied.
                self._unsettled = None
                for member in staged.members:
                    answers[member.index] = _again(error)
                return
            else:
                await failpoints.reached("commit.root_answered")
                self._won(staged, answers)
                return
        try:
            if await self._settle(deadline):
                for member in staged.members:
                    answers[member.index] = _answer(staged, member)
        except OutcomeUnknown as error:
            for member in staged.members:
                answers[member.index] = _unknown(member.recorded.id, error)

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
                if holder is not None:
                    self._unsettled = None
                    if holder == staged.head.commit_id:
                        self._remember(staged)
                        return True
                    await failpoints.reached("commit.slot_lost")
                    return False
                await failpoints.reached("commit.resend")
                await self._storage.publish(staged.files, staged.slot, staged.root)
                self._won(staged, None)
                return True
            except AlreadyExists as error:
                # Taken: read by whom. Still free to a reader (a 409 can race): no reason to spin.
                read_at_once = not read_at_once
                if not read_at_once:
                    continue
                failure = error
            except AlpheusError as error:
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

    async def _holder(self, staged: _Staged) -> str | None:
        """The commit id at the staged version's slot (a tombstone tells it too); None: still free."""
        version = staged.head.version
        if self._follower.head.version == version:
            return self._follower.head.commit_id
        try:
            return await self._follower.log.commit_id(version)
        except NotFound:
            return None

    def _won(self, staged: _Staged, answers: list[Answer] | None) -> None:
        self._unsettled = None
        self._remember(staged)
        definitions = {path: StoredObject(path, data) for path, data in staged.definitions.items()}
        self._follower.accept(staged.head, staged.record, definitions)
        for member in staged.members if answers is not None else ():
            assert answers is not None
            answers[member.index] = _answer(staged, member)

    def _remember(self, staged: _Staged) -> None:
        reader = self._follower.reader
        for path, node in staged.nodes.items():
            reader.remember_node(path, node)
        for definition_path, data in staged.definitions.items():
            reader.remember_definition(definition_path, data)


class _Newest:
    """The version that operations are executed on, as `footprint.Source`: from memory where it is replayed."""

    def __init__(self, follower: Follower, snapshot: Snapshot) -> None:
        self._follower = follower
        self._snapshot = snapshot
        self.names = snapshot.names

    async def load(self, names: Sequence[ObjectName]) -> Sequence[StoredObject | None]:
        state = self._follower.state
        if state is not None and state.version == self._snapshot.version:
            return state.load(names)
        return await self._snapshot.load(names)


class _Versions:
    """The versions up to that one, as `footprint.History`."""

    def __init__(self, follower: Follower, snapshot: Snapshot) -> None:
        self._follower = follower
        self._snapshot = snapshot
        self.version = snapshot.version

    async def at(self, version: int) -> Source:
        return self._snapshot if version == self.version else await self._follower.snapshot(version)

    async def changed_since(
        self, version: int, kinds: frozenset[Kind]
    ) -> AsyncIterator[tuple[ObjectName, StoredObject]]:
        before = await self._follower.snapshot(version)
        async for found in self._snapshot.created_or_changed_since(before, kinds):
            yield found

    def actions_since(self, version: int) -> AsyncIterator[Action]:
        return actions_down(self._follower.told, range(self.version, version, -1))

    async def stored(self, paths: Mapping[str, Kind]) -> Mapping[str, StoredObject]:
        return await self._follower.reader.stored(paths)


def _batches(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """In order, by the sizes that are announced: none is read beyond that."""
    batch: list[Segment] = []
    for segment in segments:
        size = sum(s.segment_size_bytes for s in batch) + segment.segment_size_bytes
        if batch and (len(batch) == SEGMENTS_AT_ONCE_MAX or size > SEGMENTS_AT_ONCE_BYTES_MAX):
            yield batch
            batch = []
        batch.append(segment)
    if batch:
        yield batch


def action_rows(
    recorded: RecordedTransaction, keys: fmt.Keys, identities: Identities
) -> Iterator[tuple[ActionRow, dict[str, bytes]]]:
    """A transaction's rows in the root, each with the file of an action that is too large for a row."""
    for key, data in encode_transaction(recorded, keys):
        if len(data) > fmt.ACTION_ROW_SIZE_BYTES_MAX:
            path = fmt.action_path(identities.uuid4())
            yield (key, external_row(path, data)), {path: data}
        else:
            yield (key, data), {}


def written_size_max(node_file_size_max: int, digits: int) -> int:
    """The largest node file that is written: the Java reader's limit counts in its dialect."""
    return min(node_file_size_max, fmt.NODE_FILE_SIZE_BYTES_JAVA) if digits == 64 else node_file_size_max


def _was_written(transaction: Transaction, workspace: Workspace) -> bool:
    """Whether a table that the transaction writes has its writer's sequence."""
    if transaction.writer is None:
        return False
    objects = [workspace.get(name) for name in written_tables(transaction)]
    return any(mark is not None for _, mark in marks_of(transaction, objects))


def _answer(staged: _Staged, member: _Member) -> Committed:
    return Committed(
        version=staged.head.version,
        transaction_id=member.recorded.id,
        created_at_millis=staged.head.created_at_millis,
        token=staged.head.token,
        rows_added=member.rows_added,
        rows_removed=member.rows_removed,
    )


def _unknown(transaction_id: str, error: AlpheusError) -> OutcomeUnknown:
    return OutcomeUnknown(
        error.message, transaction_id=transaction_id, kind=error.kind, hint=error.hint, version=error.version
    )


def _again(error: AlpheusError) -> AlpheusError:
    """A fresh copy of an error that several members get: each raises its own."""
    copy = type(error).__new__(type(error))
    Exception.__init__(copy, error.message)
    copy.__dict__.update(error.__dict__)
    return copy
