"""Transactions: writing verbs, reads that see the own writes, and one commit at the end. `core` holds their state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import msgspec

from alpheus.display import Cells, Facts, Shown, count_text
from alpheus.model_conversions import commit_of
from alpheus.models import Commit, time_of
from alpheus.rows.scan import AsyncScan, Where, predicate_of
from alpheus.session.arguments import Name, parse_name, texts, words
from alpheus.session.pinned_reads import PinnedReads, scan_table
from alpheus.session.session import Session
from alpheus.session.table_starts import expired_files_instead
from alpheus.transactions.core import TransactionCore
from alpheus.transactions.steps import Step
from alpheus.transactions.terms import TransactionTerms
from alpheus.transactions.verbs import Writes
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Corrupt,
    Expired,
    InvalidInput,
    NotEmpty,
    NotFound,
    OutcomeUnknown,
)
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model import answers
from alpheus_journal.model.answers import Loaded, Page
from alpheus_journal.model.definitions import (
    InputPosition,
    JobDeclaration,
    Segment,
    TableDef,
    walk_columns,
)
from alpheus_journal.model.operations import (
    AdvancePipeline,
    Operation,
    Read,
    RenameObject,
)
from alpheus_journal.predicate import Predicate, columns_of

R = TypeVar("R")

TIDY_UP_SECONDS = 5.0


class AsyncTransaction(Shown, PinnedReads, Writes[None]):
    """Operations that commit together when the block ends without an exception.

    Reads come from `version`, which is pinned when the block begins, with the transaction's own writes on top. `id` is
    fixed then, too; the transaction's data files are stored in a folder of this name. After the block `result` is the
    Commit, or None when there was nothing to commit. An exception abandons the transaction; files written for it are
    left to collection.

    When the user gave the id, the begin of the block searches the log for it. If the id has committed, the block runs
    at the version at which it began the first time, so that the same block makes the same operations. Then `result` is
    the recorded commit (`duplicate`), and nothing is written again. A block with other operations is refused
    (`id_reused`).
    """

    def __init__(self, session: Session, terms: TransactionTerms, *, blind: bool = False) -> None:
        self._session = session
        self._is_saved = terms.saved
        self.core = TransactionCore(session, terms, blind=blind)
        """For other rooms of this package; not part of the public surface."""
        self.id = self.core.id
        self.result: Commit | None = None

    def _title(self) -> str:
        core = self.core
        state = f"committed in version {self.result.version}" if self.result is not None else core.state
        return f"{self.id}: {count_text(len(core.operations), 'operation')}, {state}"

    def _facts(self) -> Facts:
        core = self.core
        return [
            ("reads from version", core.version if core.has_begun else "it has not begun"),
            ("message", core.terms.message),
            ("properties", core.terms.properties),
        ]

    def _cells(self) -> Cells:
        rows = [
            (type(each).__name__, each.target.kind.label, each.target.full_name)
            for each in self.core.operations
        ]
        return [("operation", "on", "name"), *rows]

    @property
    def version(self) -> int:
        """The version that reads come from, and against which the commit is checked."""
        return self.core.version

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations that a commit would record now."""
        return tuple(self.core.operations)

    async def __aenter__(self) -> AsyncTransaction:
        core = self.core
        if core.state != "new":
            raise InvalidInput(f"transaction {self.id} was entered before", hint="begin a new transaction")
        saved = await self._session.load_transaction(self.id) if core.terms.saved else None
        begin = await self._session.resolve(saved.transaction.begin_version if saved else None)
        if core.terms.id and not core.terms.is_fresh:
            begin = await self._find_begin(begin)
        await core.begin(begin)
        if saved is not None:
            await core.restore(saved.transaction)
        return self

    async def _find_begin(self, begin: answers.VersionInfo) -> answers.VersionInfo:
        """Return the version at which the id began, if the id has committed, and otherwise `begin`. `begin` was known
        before the search, and the commit searches the versions after it. Raises InvalidInput (`id_cancelled`), and
        Expired where the version that may hold the id has expired.

        The search for a saved transaction begins after its begin version, which expiry keeps. No version up to that one
        can hold the id: the id was made for the transaction then, or was searched for in those versions when the
        transaction began. An id that a user gave for other work may have committed before `begin`, so the search for it
        goes back to the time in the id.
        """
        since = begin.version if self._is_saved else None
        outcome = await self._session.outcome(self.id, since=since, certain=True)
        if outcome.state == "cancelled":
            raise InvalidInput(
                f"transaction {self.id} was cancelled", kind="id_cancelled", hint="use a new id"
            )
        if outcome.commit is None or outcome.commit.version > begin.version:
            return begin
        self.core.repeats = outcome.commit.version
        try:
            return await self._session.resolve(outcome.begin_version)
        except Expired as error:
            raise Expired(
                f"transaction {self.id} has committed in version {self.core.repeats}; it is unknown whether this is the"
                f" same transaction, because version {outcome.begin_version}, at which it began, has expired",
                oldest=error.oldest,
                version=self.core.repeats,
                hint="call outcome(id) to see its commit; use a new id for other work",
            ) from error

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            if self.core.state == "open":
                await self.commit()
        else:
            self.abandon()

    def add_properties(self, properties: Mapping[str, str]) -> None:
        """Add properties to the transaction, such as facts that are known only after it began. A key that exists
        already gets the new value."""
        core = self.core
        core.check_open()
        more = core.terms.properties | texts("properties", properties)
        core.terms = msgspec.structs.replace(core.terms, properties=more)

    async def commit(self) -> Commit | None:
        """Commit and end the transaction, as a clean exit of the block does. Raises what `Access.commit` raises."""
        self.core.check_open()
        self.core.state = "over"
        if not self.core.operations:
            if self.core.repeats is not None:
                raise InvalidInput(
                    f"transaction id {self.id} was used in version {self.core.repeats} for other operations",
                    kind="id_reused",
                    version=self.core.repeats,
                    hint=f"use a new id for other work; version {self.core.repeats} has committed the work of this id",
                )
            await self.core.end_lease(is_over=not self._is_saved)
            return None
        is_over = False
        self.core.hand_over_lease()
        try:
            committed = await self._session.commit(self.core.transaction())
            is_over = True
        except OutcomeUnknown:
            raise
        except AlpheusError as error:
            is_over = not self._is_saved  # else another process may resume it
            if self._is_saved and error.kind == "id_reused":
                error.hint = "use a new id: another process resumed this transaction and committed it first"
            raise
        finally:
            await self.core.end_lease(is_over=is_over)
        self.result = commit_of(committed)
        if self._is_saved:
            # The saved file remains. It cannot be committed a second time, and it expires, so do not wait for long.
            with contextlib.suppress(AlpheusError, TimeoutError):
                async with asyncio.timeout(TIDY_UP_SECONDS):
                    await self._session.access.discard_transaction(self.id)
        return self.result

    async def save(self) -> str:
        """End the transaction in this process, and save it on storage for `resume(id)` in any process. Returns its id.

        A saved transaction lasts for the catalog's `txn_ttl` from its begin. A process that resumed it may save
        it again; the last save wins. The first process that commits or discards it decides its outcome.
        """
        self.core.check_open()
        self.core.hand_over_lease()
        await self._session.save_transaction(self.core.transaction())
        self.core.state = "over"
        await self.core.end_lease(is_over=False)
        return self.id

    def abandon(self) -> None:
        """End the transaction without a commit. Idempotent."""
        self.core.state = "over"
        self.core.operations.clear()
        self.core.abandon_lease()

    async def scan(
        self,
        name: Name,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> AsyncScan:
        key = parse_name(Kind.TABLE, name)
        core = self.core
        begin = core.check_open()
        table = await core.table(key)
        predicate = predicate_of(where, table.columns)
        core.keep(Read(type="TABLE_SELECT", name=key, columns=_columns_read(table, predicate, columns)))
        return await scan_table(
            self._session, key, table, begin.version, predicate, columns, limit, core.overlay.segment
        )

    async def append_segments(
        self, name: Name, segments: Sequence[Segment], table_id: str | None = None
    ) -> None:
        """Add rows that are stored already, given as manifest segments of this transaction's own files.

        `table_id` is the table for which the files were written; by default the table that has the name now.
        """
        await self._add_segments(name, segments, table_id, replace=False)

    async def overwrite_segments(
        self, name: Name, segments: Sequence[Segment], table_id: str | None = None
    ) -> None:
        """Replace all rows by those of manifest segments. An empty sequence leaves the table without rows."""
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
        """Move a job's position. Raises Conflict (`position_moved`) unless the job's last transaction and the
        pipeline's id are the expected ones.

        - `expected_transaction_id`: "" means that the job never ran.
        - `expected_pipeline_id`: "" means that the pipeline has no entry yet; None accepts any entry.
        - `declaration`: the tables with which the job is declared; None keeps the recorded ones.
        - `former_job`: the job's former name, whose position becomes this job's. Raises NotFound (`no_job`) when no
          job has the former name, and InvalidInput when both jobs exist.
        """
        await self.core.apply(
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
        """Give a pipeline another name. Its positions and its id stay. Raises NotFound, and AlreadyExists
        (`pipeline_exists`)."""
        await self.core.apply(
            RenameObject(kind=Kind.PIPELINE, namespace="", name=name, new_namespace="", new_name=new_name)
        )

    # -- inside

    def _note(self, type: str, name: ObjectName, prefix: str = "") -> None:
        self.core.note(type, name, prefix)

    async def _add_segments(
        self, name: Name, segments: Sequence[Segment], table_id: str | None, *, replace: bool
    ) -> None:
        key = parse_name(Kind.TABLE, name)
        table = await self.core.table(key)
        if table_id is not None and table_id != table.id:
            raise InvalidInput(
                f"the files were written for another {key}, with the id {table_id}",
                kind="table_replaced",
                hint="write the files again for the table that has the name now",
            )
        await self.core.apply_segments(key, table, segments, replace=replace)

    async def _write(self, step: Step, *, blind: bool, tolerant: bool) -> None:
        self.core.check_open()
        async with expired_files_instead(self._session, self.version):
            await step.run(self.core)

    async def _objects(self, names: list[ObjectName]) -> Loaded:
        return await self.core.load(names)

    async def _page(
        self, version: int | None, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str
    ) -> Page:
        return await self.core.page(kind, namespace=namespace, prefix=prefix, limit=limit, after=after)


def _columns_read(table: TableDef, where: Predicate | None, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The top-level columns on which a read depends. An empty tuple means all."""
    if columns is None:
        return ()
    asked = {column.id for column in columns_of(where)} if where is not None else set()
    named = [column.name for column in table.columns if asked & {one.id for one in walk_columns([column])}]
    return tuple(dict.fromkeys((*words("columns", columns), *named)))


_JUDGED = (Conflict, NotFound, AlreadyExists, NotEmpty, InvalidInput, Expired, Corrupt)
"""Refusals that rest on the catalog as the refusing process knew it."""


async def commit_single(session: Session, step: Step, *, blind: bool, tolerant: bool) -> Commit:
    """Commit one verb as a transaction of its own.

    A blind verb begins at the head that the session knows, if any, and takes one call. This is never wrong: the verb
    has read nothing, a commit succeeds only at the true head, and an older begin only finds more conflicts. A refusal,
    however, may rest on the older begin, or on a daemon that lags behind others. So the caller does not see such a
    refusal. The refused transaction was not applied and never will be; the verb restarts as another transaction, which
    begins at the head that the catalog reports now.
    """
    if blind and (operation := step.operation(session.identities)) is not None:
        if (known := session.known_head) is not None:
            with contextlib.suppress(*_JUDGED):
                return await session.commit_operation(operation, known)
        return await session.commit_operation(operation, (await session.resolve(None)).version)
    tx = AsyncTransaction(session, TransactionTerms(), blind=blind)
    try:
        async with tx, expired_files_instead(session, tx.version):
            await step.run(tx.core)
    except (AlreadyExists, Conflict) as error:
        if not (tolerant and (isinstance(error, AlreadyExists) or error.kind == "already_exists_now")):
            raise
        begin = await session.resolve(None)
        return Commit(version=begin.version, transaction_id="", created_at=time_of(begin.created_at_millis))
    if tx.result is not None:
        return tx.result
    begin = tx.core.begun
    return Commit(version=begin.version, transaction_id="", created_at=time_of(begin.created_at_millis))
