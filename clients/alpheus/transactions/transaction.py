"""Transactions: the writing verbs, reads that see them, and one commit at the end.

A transaction gathers operations on top of a version that it pins when it begins. Each verb is checked at once
against that version and the writes before it (`operations.Overlay`), so that a mistake surfaces where it is
made; what others commit meanwhile is found out by the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import msgspec

from alpheus.display import Cells, Facts, Shown, count_text
from alpheus.models import Commit, commit_of, time_of
from alpheus.rows.file_reader import ListedFile, list_files
from alpheus.rows.repeating import RepeatableIdentities
from alpheus.rows.scan import AsyncScan, Where, predicate_of
from alpheus.session.arguments import Name, parse_name, texts, words
from alpheus.session.pinned_reads import PinnedReads, scan_table
from alpheus.session.session import Session
from alpheus.transactions.steps import Step
from alpheus.transactions.terms import Terms
from alpheus.transactions.verbs import Writes
from alpheus_journal import access
from alpheus_journal import format as fmt
from alpheus_journal.access import Loaded, Page, StoredObject
from alpheus_journal.clock import Identities
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Corrupt,
    Expired,
    InvalidInput,
    NotEmpty,
    NotFound,
)
from alpheus_journal.execute.overlay import Overlay
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.definitions import (
    InputPosition,
    JobDeclaration,
    Segment,
    TableDef,
    decode_definition,
    walk_columns,
)
from alpheus_journal.model.operations import (
    AdvancePipeline,
    AppendFiles,
    Effect,
    Operation,
    OverwriteFiles,
    Read,
    RenameObject,
    Transaction,
    Undrop,
)
from alpheus_journal.predicate import Predicate, columns_of

R = TypeVar("R")

TIDY_UP_SECONDS = 5.0


class AsyncTransaction(Shown, PinnedReads, Writes[None]):
    """Operations that commit together when the block ends without an exception.

    Reads come from `version`, which is pinned when the block begins, with the own writes on top. `id` is
    fixed then, too: data files lie below it. After the block `result` is the Commit, or None when there was
    nothing to commit. An exception abandons it; files written for it are left to collection.

    An id that the user gave is looked for in the log when the block begins. If it has committed, the block runs at the
    version at which it began then, so that the same block asks for the same: `result` is the recorded commit
    (`duplicate`), and nothing is written again. A block that asks for something else is refused (`id_reused`).
    """

    def __init__(self, session: Session, terms: Terms, *, blind: bool = False) -> None:
        self._session = session
        self._terms = terms
        self._blind = blind
        self._state = "new"
        self._begin: access.VersionInfo | None = None
        self._overlay: Overlay | None = None
        self._operations: list[Operation] = []
        self._read: dict[Read, None] = {}  # in order, each once
        self._is_saved = terms.saved
        self._base_sequences: dict[str, int] = {}  # by table id
        self._repeats: int | None = None  # the version that the id has committed in
        self.id = terms.id or session.identities.uuid7()
        self.identities: Identities = session.identities
        """Of what is made in it."""
        if terms.id and not (terms.saved or terms.is_fresh):
            self.identities = RepeatableIdentities(terms.id)
        self.result: Commit | None = None

    def _title(self) -> str:
        state = f"committed in version {self.result.version}" if self.result is not None else self._state
        return f"{self.id}: {count_text(len(self._operations), 'operation')}, {state}"

    def _facts(self) -> Facts:
        return [
            ("reads from version", self._begin.version if self._begin is not None else "it has not begun"),
            ("message", self._terms.message),
            ("properties", self._terms.properties),
        ]

    def _cells(self) -> Cells:
        rows = [
            (type(each).__name__, each.target.kind.label, each.target.full_name) for each in self._operations
        ]
        return [("operation", "on", "name"), *rows]

    @property
    def version(self) -> int:
        """The version that reads come from and that the commit is checked against."""
        return self._began().version

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What would be committed now."""
        return tuple(self._operations)

    async def __aenter__(self) -> AsyncTransaction:
        if self._state != "new":
            raise InvalidInput(f"transaction {self.id} was entered before", hint="make a new one")
        saved = await self._session.load_transaction(self.id) if self._terms.saved else None
        self._begin = await self._session.resolve(saved.transaction.begin_version if saved else None)
        if self._terms.id and not self._terms.is_fresh:
            self._begin = await self._begun_before(self._begin)
        self._overlay = self._new_overlay()
        self._state = "open"
        if saved is not None:
            await self._go_on(saved.transaction)
        return self

    async def _past_version(self, at: access.At) -> int:
        """The version that `at` names. One that counts back does so from where the transaction began: it means the same
        when the transaction is repeated."""
        if isinstance(at, access.Back):
            version = self.version + 1 - at.count
            if version >= 0:
                at = version
        return (await self._session.resolve(at)).version

    async def _begun_before(self, begin: access.VersionInfo) -> access.VersionInfo:
        """The version at which the id began, where it has committed; else `begin`, which was known before the search:
        what comes after that is searched by the commit. Raises InvalidInput (`id_cancelled`), and Expired where the
        version that may hold the id is gone."""
        outcome = await self._session.outcome(self.id, certain=True)
        if outcome.state == "cancelled":
            raise InvalidInput(
                f"transaction {self.id} was cancelled", kind="id_cancelled", hint="use a new id"
            )
        if outcome.commit is None or outcome.commit.version > begin.version:
            return begin
        self._repeats = outcome.commit.version
        try:
            return await self._session.resolve(outcome.begin_version)
        except Expired as error:
            raise Expired(
                f"transaction {self.id} has committed in version {self._repeats}; whether this is the same cannot be"
                f" told, as version {outcome.begin_version}, at which it began, has expired",
                oldest=error.oldest,
                version=self._repeats,
                hint="outcome(id) gives its commit; use a new id for anything else",
            ) from error

    async def _go_on(self, saved: Transaction) -> None:
        """Take up what another process saved."""
        self._terms = msgspec.structs.replace(
            self._terms,
            message=saved.message,
            properties=saved.properties,
            serializable=saved.serializable,
            key=saved.key,
            writer=saved.writer,
        )
        self._read = dict.fromkeys(saved.reads)
        for operation in saved.operations:
            await self._apply(operation)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            if self._state == "open":
                await self.commit()
        else:
            self.abandon()

    def add_properties(self, properties: Mapping[str, str]) -> None:
        """Say more about the transaction, such as what is known only after it began. A key again replaces."""
        self._check_open()
        more = self._terms.properties | texts("properties", properties)
        self._terms = msgspec.structs.replace(self._terms, properties=more)

    def _forget_writer(self) -> None:
        self._terms = msgspec.structs.replace(self._terms, writer=None)

    async def commit(self) -> Commit | None:
        """End the transaction and commit it: what a clean exit does. Errors: `Access.commit`."""
        begin = self._check_open()
        self._state = "over"
        if not self._operations:
            if self._repeats is not None:
                raise InvalidInput(
                    f"transaction id {self.id} was used in version {self._repeats} for other operations",
                    kind="id_reused",
                    version=self._repeats,
                    hint=f"the same work run again is done, by version {self._repeats}; use a new id for other"
                    " work",
                )
            return None
        try:
            committed = await self._session.commit(self._transaction(begin))
        except InvalidInput as error:
            if self._is_saved and error.kind == "id_reused":
                error.hint = "another process went on with it and committed it first"
            raise
        self.result = commit_of(committed)
        if self._is_saved:
            # What is left of it; nobody can commit it a second time, and it expires by itself: no reason to wait long.
            with contextlib.suppress(AlpheusError, TimeoutError):
                async with asyncio.timeout(TIDY_UP_SECONDS):
                    await self._session.access.discard_transaction(self.id)
        return self.result

    async def save(self) -> str:
        """End the transaction here and keep it on storage, for `resume(id)` in any process; returns its id.

        It lasts for the catalog's `txn_ttl_millis` from its begin. Saved again after a `resume`, the last save
        wins. Nobody but the first to commit it, or to discard it, decides what becomes of it.
        """
        begin = self._check_open()
        await self._session.save_transaction(self._transaction(begin))
        self._state = "over"
        return self.id

    def _transaction(self, begin: access.VersionInfo) -> Transaction:
        return Transaction(
            id=self.id,
            begin_version=begin.version,
            operations=tuple(self._operations),
            principal=self._session.principal,
            message=self._terms.message,
            properties=self._terms.properties,
            serializable=self._terms.serializable,
            reads=tuple(self._read) if self._terms.serializable else (),
            key=self._terms.key,
            writer=self._terms.writer,
        )

    def abandon(self) -> None:
        """End the transaction without a commit. Idempotent."""
        self._state = "over"
        self._operations.clear()

    async def scan(
        self,
        name: Name,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> AsyncScan:
        key = parse_name(Kind.TABLE, name)
        begin = self._check_open()
        table = await self._table(key)
        predicate = predicate_of(where, table.columns)
        self._keep(Read(type="TABLE_SELECT", name=key, columns=_columns_read(table, predicate, columns)))
        assert self._overlay is not None
        return await scan_table(
            self._session, key, table, begin.version, predicate, columns, limit, self._overlay.segment
        )

    async def append_segments(
        self, name: Name, segments: Sequence[Segment], table_id: str | None = None
    ) -> None:
        """Add rows that are on storage already: manifest segments of this transaction's own files.

        `table_id`: the table that they were written for; by default the one that has the name now.
        """
        await self._add_segments(name, segments, table_id, replace=False)

    async def overwrite_segments(
        self, name: Name, segments: Sequence[Segment], table_id: str | None = None
    ) -> None:
        """Replace all rows by those of manifest segments, which may be none."""
        await self._add_segments(name, segments, table_id, replace=True)

    async def advance_pipeline(
        self,
        name: str,
        job: str,
        expected_transaction_id: str,
        pinned_version: int,
        inputs: Mapping[str, InputPosition] | None = None,
        state: str = "running",
        error: str = "",
        params: Mapping[str, str] | None = None,
        called_at_millis: int = 0,
        declaration: JobDeclaration | None = None,
        former_job: str = "",
        expected_pipeline_id: str | None = None,
    ) -> None:
        """Move a job's position. Conflict (`position_moved`) unless its last transaction is the expected
        one ("": the job never ran), and the pipeline's entry the expected one ("": none yet; None: any).

        `declaration`: the tables that it is declared with, None: as before. `former_job`: what the job was called; its
        position becomes this one. NotFound (`no_job`) when there is none, InvalidInput when both are there."""
        await self._apply(
            AdvancePipeline(
                name=name,
                job=job,
                expected_transaction_id=expected_transaction_id,
                pinned_version=pinned_version,
                inputs=dict(inputs or {}),
                state=state,
                error=error,
                params=texts("params", params),
                called_at_millis=called_at_millis,
                declaration=declaration,
                former_job=former_job,
                expected_pipeline_id=expected_pipeline_id,
            )
        )

    async def rename_pipeline(self, name: str, new_name: str) -> None:
        """Move the positions of a pipeline under another name; its id stays. NotFound, AlreadyExists
        (`pipeline_exists`)."""
        await self._apply(
            RenameObject(kind=Kind.PIPELINE, namespace="", name=name, new_namespace="", new_name=new_name)
        )

    def _note(self, type: str, name: ObjectName, prefix: str = "") -> None:
        self._keep(Read(type=type, name=name, prefix=prefix))

    def _keep(self, read: Read) -> None:
        if self._terms.serializable:
            self._read[read] = None

    # -- for steps

    async def _apply(self, operation: Operation) -> None:
        """Check an operation on top of the ones before it, then keep it."""
        self._check_open()
        if not self._blind:
            assert self._overlay is not None
            executed = await self._overlay.execute(operation)
            operation = executed.action.operation or operation  # with the ids of new columns
            if isinstance(operation, Undrop):
                await self._note_returned(executed.action.effects)
        self._operations.append(operation)

    async def _note_returned(self, effects: Sequence[Effect]) -> None:
        """The sequences of tables that this transaction brought back."""
        for effect in effects:
            if effect.name.kind is Kind.TABLE and effect.path_after:
                _, definition = await self._definition(effect.name)
                assert isinstance(definition, TableDef)
                self._base_sequences[definition.id] = definition.sequence

    async def _base_sequence(self, name: ObjectName, table: TableDef) -> int:
        """What this transaction saw of a table that it did not write itself: `ChangeRows.base_sequence`."""
        found = self._base_sequences.get(table.id)
        if found is None:
            for operation in reversed(self._operations):
                if isinstance(operation, RenameObject) and operation.new_target == name:
                    name = operation.target
            (stored,) = await self._load_at(self.version, [name])
            begun = decode_definition(name.kind, stored.definition, stored.path) if stored else None
            same = isinstance(begun, TableDef) and begun.id == table.id
            found = begun.sequence if same and isinstance(begun, TableDef) else 0
            self._base_sequences[table.id] = found
        return found

    async def _listed(self, table: TableDef) -> list[ListedFile]:
        """The files of a table as it is with what this transaction wrote."""
        self._check_open()
        assert self._overlay is not None
        return await list_files(await self._session.storage(), table, self._overlay.segment)

    async def _apply_segments(
        self, name: ObjectName, table: TableDef, segments: Sequence[Segment], *, replace: bool
    ) -> None:
        operation: Operation
        if replace:
            operation = OverwriteFiles(
                namespace=name.namespace, name=name.name, table_id=table.id, segments=tuple(segments)
            )
        elif segments:
            operation = AppendFiles(
                namespace=name.namespace, name=name.name, table_id=table.id, segments=tuple(segments)
            )
        else:
            return
        await self._apply(operation)

    # -- inside

    async def _add_segments(
        self, name: Name, segments: Sequence[Segment], table_id: str | None, *, replace: bool
    ) -> None:
        key = parse_name(Kind.TABLE, name)
        table = await self._table(key)
        if table_id is not None and table_id != table.id:
            raise InvalidInput(
                f"the files were written for another {key}, of id {table_id}",
                kind="table_replaced",
                hint="write them again for the table that has the name now",
            )
        await self._apply_segments(key, table, segments, replace=replace)

    async def _write(self, step: Step, *, blind: bool, tolerant: bool) -> None:
        self._check_open()
        await step.run(self)

    async def _objects(self, names: list[ObjectName]) -> Loaded:
        begin = self._check_open()
        assert self._overlay is not None
        for name in names:
            fmt.check_object_name(name, self._session.keys)
        return Loaded(version=begin.version, objects=tuple(await self._overlay.load(names)))

    async def _page(
        self, version: int | None, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str
    ) -> Page:
        begin = self._check_open()
        assert self._overlay is not None
        names, more = await self._overlay.list(
            kind, namespace=namespace, prefix=prefix, limit=limit, after=after
        )
        return Page(version=begin.version, names=tuple(names), more=more)

    def _new_overlay(self) -> Overlay:
        return Overlay(
            self._load_at,
            self._session.page,
            self._session.keys,
            self.id,
            begin=self._began().version,
            read_segments=self._read_segments,
        )

    async def _read_segments(self, segments: Sequence[Segment]) -> Sequence[bytes]:
        size_max = max(segment.segment_size_bytes for segment in segments)
        storage = await self._session.storage()
        contents = await storage.read_many([segment.path for segment in segments], size_max=size_max)
        return [contents[segment.path] for segment in segments]

    async def _load_at(self, version: int, names: list[ObjectName]) -> Sequence[StoredObject | None]:
        return (await self._session.load(version, names)).objects

    def _began(self) -> access.VersionInfo:
        if self._begin is None:
            raise InvalidInput(f"transaction {self.id} has not begun", hint='use it in a "with" block')
        return self._begin

    def _check_open(self) -> access.VersionInfo:
        begin = self._began()
        if self._state != "open":
            raise InvalidInput(f"transaction {self.id} is over", hint="make a new one")
        return begin


def _columns_read(table: TableDef, where: Predicate | None, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The top-level columns that a read depends on; empty: all."""
    if columns is None:
        return ()
    asked = {column.id for column in columns_of(where)} if where is not None else set()
    named = [column.name for column in table.columns if asked & {one.id for one in walk_columns([column])}]
    return tuple(dict.fromkeys((*words("columns", columns), *named)))


_JUDGED = (Conflict, NotFound, AlreadyExists, NotEmpty, InvalidInput, Expired, Corrupt)
"""Refusals that say something about the catalog as the one who refused knew it."""


async def single(session: Session, step: Step, *, blind: bool, tolerant: bool) -> Commit:
    """One verb as a transaction of its own.

    A blind one begins at the head that the session knows, when it knows it, and is one call. That is never wrong:
    it has read nothing, a commit succeeds at the true head alone, and an older begin only finds more conflicts. But a
    refusal may rest on it, or on a daemon that lags behind others. So none is told: what was refused was not
    applied and will not be, and the verb begins again as another transaction, at the head that is asked for now.
    """
    if blind and (operation := step.operation(session.identities)) is not None:
        if (known := session.known_head) is not None:
            with contextlib.suppress(*_JUDGED):
                return await session.commit_operation(operation, known)
        return await session.commit_operation(operation, (await session.resolve(None)).version)
    tx = AsyncTransaction(session, Terms(), blind=blind)
    try:
        async with tx:
            await step.run(tx)
    except (AlreadyExists, Conflict) as error:
        if not (tolerant and (isinstance(error, AlreadyExists) or error.kind == "already_exists_now")):
            raise
        begin = await session.resolve(None)
        return Commit(version=begin.version, transaction_id="", created_at=time_of(begin.created_at_millis))
    if tx.result is not None:
        return tx.result
    begin = tx._began()
    return Commit(version=begin.version, transaction_id="", created_at=time_of(begin.created_at_millis))
