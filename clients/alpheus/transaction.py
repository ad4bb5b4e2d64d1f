"""Transactions: the writing verbs, reads that see them, and one commit at the end.

A transaction gathers operations on top of a version that it pins when it begins. Each verb is checked at once
against that version and the writes before it (`operations.Overlay`), so that a mistake surfaces where it is
made; what others commit meanwhile is found out by the commit.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from alpheus.models import Commit, commit_of, time_of
from alpheus.rows import write_rows
from alpheus.session import (
    Name,
    Reads,
    Session,
    namespace_text,
    parse_name,
    read_table,
    refuse_unsupported,
    texts,
    words,
)
from alpheus_journal import access
from alpheus_journal import format as fmt
from alpheus_journal.access import Loaded, Page, StoredObject
from alpheus_journal.actions import (
    AdvancePipeline,
    AppendFiles,
    CreateNamespace,
    CreateTable,
    DropNamespace,
    DropTable,
    Operation,
    OverwriteFiles,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.columns import columns_of_schema
from alpheus_journal.errors import AlreadyExists, Conflict, InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.objects import Column, InputPosition, Segment, TableDef
from alpheus_journal.operations import Overlay

R = TypeVar("R")


class Writes(abc.ABC, Generic[R]):
    """The writing verbs: R is what each returns, a Commit for single calls, None inside a transaction."""

    @abc.abstractmethod
    async def _write(self, step: Step, *, blind: bool, tolerant: bool) -> R:
        """Do `step` in a transaction. `blind`: it needs no reads, the commit checks all. `tolerant`: that
        the object exists already is no error."""

    async def update_catalog(
        self, set: Mapping[str, str] | None = None, unset: Sequence[str] | None = None
    ) -> R:
        """Change the catalog's own properties."""
        operation = UpdateCatalog(set=texts("set", set), unset=words("unset", unset))
        return await self._write(Step(operation), blind=True, tolerant=False)

    async def create_namespace(
        self,
        name: str,
        properties: Mapping[str, str] | None = None,
        data_root: str | None = None,
        exist_ok: bool = False,
    ) -> R:
        """AlreadyExists unless `exist_ok`, which leaves an existing one as it is."""
        refuse_unsupported(data_root=data_root)
        step = CreateNamespaceStep(namespace_text(name), texts("properties", properties), exist_ok)
        return await self._write(step, blind=not exist_ok, tolerant=exist_ok)

    async def update_namespace(
        self, name: str, set: Mapping[str, str] | None = None, unset: Sequence[str] | None = None
    ) -> R:
        """Change properties."""
        operation = UpdateNamespace(
            name=namespace_text(name), set=texts("set", set), unset=words("unset", unset)
        )
        return await self._write(Step(operation), blind=True, tolerant=False)

    async def drop_namespace(self, name: str, cascade: bool = False) -> R:
        """NotEmpty while tables or views live in it."""
        refuse_unsupported(cascade=cascade)
        return await self._write(Step(DropNamespace(name=namespace_text(name))), blind=True, tolerant=False)

    async def create_table(
        self,
        name: Name,
        schema_or_data: Any,
        properties: Mapping[str, str] | None = None,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        exist_ok: bool = False,
    ) -> R:
        """A native table of an Arrow schema, or of data: created and filled in one commit.

        AlreadyExists unless `exist_ok`, which leaves an existing table as it is and writes no data.
        """
        refuse_unsupported(partition_by=partition_by, sort_by=sort_by)
        schema, data = _schema_and_data(schema_or_data)
        step = CreateTableStep(
            parse_name(Kind.TABLE, name), schema, data, texts("properties", properties), exist_ok
        )
        return await self._write(step, blind=data is None and not exist_ok, tolerant=exist_ok)

    async def update_table(
        self, name: Name, set: Mapping[str, str] | None = None, unset: Sequence[str] | None = None
    ) -> R:
        """Change properties."""
        table = parse_name(Kind.TABLE, name)
        operation = UpdateTable(
            namespace=table.namespace, name=table.name, set=texts("set", set), unset=words("unset", unset)
        )
        return await self._write(Step(operation), blind=True, tolerant=False)

    async def drop_table(self, name: Name, purge: bool = False) -> R:
        """`purge` records that its data need not be kept for restoring it."""
        table = parse_name(Kind.TABLE, name)
        operation = DropTable(namespace=table.namespace, name=table.name, purge=purge)
        return await self._write(Step(operation), blind=True, tolerant=False)

    async def append(self, name: Name, data: Any) -> R:
        """Add rows: Arrow data, a pandas DataFrame, or a list of dicts; columns go by name. No rows: nothing
        happens. InvalidInput (`bad_data`) names the column that does not fit."""
        step = RowsStep(parse_name(Kind.TABLE, name), data, replace=False)
        return await self._write(step, blind=False, tolerant=False)

    async def overwrite(self, name: Name, data: Any, where: str | None = None, partitions: Any = None) -> R:
        """Replace all rows by those of `data`, as `append` takes them; there may be none."""
        refuse_unsupported(where=where, partitions=partitions)
        step = RowsStep(parse_name(Kind.TABLE, name), data, replace=True)
        return await self._write(step, blind=False, tolerant=False)


# --- steps: what one verb does in a transaction ----------------------------------------------------


class Step:
    """One verb. `run` applies its operations to a transaction."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    async def run(self, tx: AsyncTransaction) -> None:
        await tx._apply(self._operation)


class CreateNamespaceStep(Step):
    def __init__(self, name: str, properties: dict[str, str], exist_ok: bool) -> None:
        self._name = name
        self._properties = properties
        self._exist_ok = exist_ok

    async def run(self, tx: AsyncTransaction) -> None:
        if self._exist_ok and await tx.namespace_exists(self._name):
            return
        await tx._apply(
            CreateNamespace(
                name=self._name, namespace_id=tx._session.identities.uuid4(), properties=self._properties
            )
        )


class CreateTableStep(Step):
    def __init__(
        self,
        name: ObjectName,
        schema: pa.Schema,
        data: Any,
        properties: dict[str, str],
        exist_ok: bool,
    ) -> None:
        self._name = name
        self._columns: tuple[Column, ...] = columns_of_schema(schema)
        self._data = data
        self._properties = properties
        self._exist_ok = exist_ok

    async def run(self, tx: AsyncTransaction) -> None:
        name = self._name
        if self._exist_ok and await tx.table_exists((name.namespace, name.name)):
            return
        await tx._apply(
            CreateTable(
                namespace=name.namespace,
                name=name.name,
                table_id=tx._session.identities.uuid4(),
                columns=self._columns,
                properties=self._properties,
            )
        )
        if self._data is not None:
            await RowsStep(name, self._data, replace=False).run(tx)


class RowsStep(Step):
    def __init__(self, name: ObjectName, data: Any, *, replace: bool) -> None:
        self._name = name
        self._data = data
        self._replace = replace

    async def run(self, tx: AsyncTransaction) -> None:
        table = await tx._table(self._name)
        written = await write_rows(
            await tx._session.storage(),
            table,
            self._data,
            transaction_id=tx.id,
            identities=tx._session.identities,
            catalog_id=tx._session.catalog_id,
        )
        await tx._apply_segments(self._name, table, written.segments, replace=self._replace)


def _schema_and_data(value: Any) -> tuple[pa.Schema, Any]:
    """The schema of a new table, and its first rows or None. InvalidInput (`bad_schema`)."""
    if isinstance(value, pa.Schema):
        return value, None
    if isinstance(getattr(value, "schema", None), pa.Schema):
        return value.schema, value  # a Table, RecordBatch, RecordBatchReader, Dataset
    pandas = sys.modules.get("pandas")  # whoever holds a DataFrame has imported it
    if pandas is not None and isinstance(value, pandas.DataFrame):
        value = pa.Table.from_pandas(value, preserve_index=False).replace_schema_metadata(None)
        return value.schema, value
    if hasattr(value, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(value)
        return reader.schema, reader
    raise InvalidInput(
        f"{type(value).__name__} is neither a schema nor data with one",
        kind="bad_schema",
        hint="pass a pyarrow Schema, or data such as pyarrow.table({...})",
    )


# --- the transaction -------------------------------------------------------------------------------


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a transaction says about itself."""

    message: str = ""
    properties: dict[str, str] = {}
    id: str = ""


def terms_of(
    isolation: str,
    message: str,
    properties: Mapping[str, str] | None,
    branch: str,
    key: str | None,
    writer: tuple[str, int] | None,
    id: str | None = None,
) -> Terms:
    """The arguments of `transaction`, checked."""
    refuse_unsupported(isolation=isolation, branch=branch, key=key, writer=writer)
    if not isinstance(message, str):
        raise InvalidInput(f"message={message!r} is not text")
    if id is not None and not (isinstance(id, str) and fmt.is_uuid(id) and id[14] == "7"):
        raise InvalidInput(f"id={id!r} is no version 7 uuid", hint="lower case, with hyphens")
    return Terms(message=message, properties=texts("properties", properties), id=id or "")


class AsyncTransaction(Reads, Writes[None]):
    """Operations that commit together when the block ends without an exception.

    Reads come from `version`, which is pinned when the block begins, with the own writes on top. `id` is
    fixed then, too: data files lie below it. After the block `result` is the Commit, or None when there was
    nothing to commit. An exception abandons it; files written for it are left to collection.
    """

    def __init__(self, session: Session, terms: Terms, *, blind: bool = False) -> None:
        self._session = session
        self._terms = terms
        self._blind = blind
        self._state = "new"
        self._begin: access.VersionInfo | None = None
        self._overlay: Overlay | None = None
        self._operations: list[Operation] = []
        self.id = terms.id or session.identities.uuid7()
        self.result: Commit | None = None

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
        self._begin = await self._session.resolve(None)
        self._overlay = Overlay(self._load_begin, self._list_begin, self._session.keys, self.id)
        self._state = "open"
        return self

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

    async def commit(self) -> Commit | None:
        """End the transaction and commit it: what a clean exit does. Errors: `Access.commit`."""
        begin = self._check_open()
        self._state = "over"
        if not self._operations:
            return None
        committed = await self._session.commit(
            Transaction(
                id=self.id,
                begin_version=begin.version,
                operations=tuple(self._operations),
                principal=self._session.principal,
                message=self._terms.message,
                properties=self._terms.properties,
            )
        )
        self.result = commit_of(committed)
        return self.result

    def abandon(self) -> None:
        """End the transaction without a commit. Idempotent."""
        self._state = "over"
        self._operations.clear()

    async def read(
        self, name: Name, where: str | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of a native table, with what this transaction wrote."""
        table = await self._table(parse_name(Kind.TABLE, name))
        return await read_table(self._session, table, where, columns)

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
    ) -> None:
        """Move a job's position. Conflict (`position_moved`) unless its last transaction is the expected
        one ("": the job never ran)."""
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
            )
        )

    # -- for steps

    async def _apply(self, operation: Operation) -> None:
        """Check an operation on top of the ones before it, then keep it."""
        self._check_open()
        if not self._blind:
            assert self._overlay is not None
            await self._overlay.execute(operation)
        self._operations.append(operation)

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

    async def _load_begin(self, names: list[ObjectName]) -> Sequence[StoredObject | None]:
        loaded = await self._session.load(self._began().version, names)
        return loaded.objects

    async def _list_begin(
        self, kind: Kind, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page:
        return await self._session.page(
            self._began().version, kind, namespace=namespace, prefix=prefix, limit=limit, after=after
        )

    def _began(self) -> access.VersionInfo:
        if self._begin is None:
            raise InvalidInput(f"transaction {self.id} has not begun", hint='use it in a "with" block')
        return self._begin

    def _check_open(self) -> access.VersionInfo:
        begin = self._began()
        if self._state != "open":
            raise InvalidInput(f"transaction {self.id} is over", hint="make a new one")
        return begin


async def single(session: Session, step: Step, *, blind: bool, tolerant: bool) -> Commit:
    """One verb as a transaction of its own."""
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
