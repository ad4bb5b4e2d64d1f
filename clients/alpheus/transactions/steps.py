"""Steps: what each writing verb does in a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from alpheus.rows.file_writer import write_rows
from alpheus.session.arguments import Name, When, parse_name, parse_when, several, texts, words
from alpheus.transactions.column_arguments import columns_with_defaults, update_with_defaults
from alpheus.transactions.core import TransactionCore
from alpheus_journal.clock import Identities
from alpheus_journal.data_roots import check_data_root
from alpheus_journal.errors import InvalidInput, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.definitions import Reference
from alpheus_journal.model.operations import (
    CreateNamespace,
    CreateTable,
    CreateView,
    Operation,
    RegisterTable,
    ReplaceView,
    RestoreTable,
    Undrop,
    UpdateTable,
)
from alpheus_journal.tables.columns import columns_of_schema
from alpheus_journal.tables.partitions import parse_partition_by, parse_sort_by


class Step:
    """One writing verb. `run` applies its operations to a transaction.

    `operation` returns the one operation of a step that reads nothing. It returns None for a step that must read the
    catalog to know what to do.
    """

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def operation(self, identities: Identities) -> Operation | None:
        return self._operation

    async def run(self, tx: TransactionCore) -> None:
        operation = self.operation(tx.identities)
        assert operation is not None, "a step that reads the catalog overrides `run`"
        await tx.apply(operation)


class CreateNamespaceStep(Step):
    """Creates a namespace. Tries a data root before the commit: a root that this client cannot write is refused."""

    def __init__(self, name: str, properties: dict[str, str], exist_ok: bool, data_root: str | None) -> None:
        self._name = name
        self._properties = properties
        self._exist_ok = exist_ok
        self._data_root = check_data_root(data_root) if data_root is not None else ""

    def operation(self, identities: Identities) -> Operation | None:
        return None if self._data_root else self._create(identities)

    def _create(self, identities: Identities) -> CreateNamespace:
        return CreateNamespace(
            name=self._name,
            namespace_id=identities.uuid4(),
            properties=self._properties,
            data_root=self._data_root,
        )

    async def run(self, tx: TransactionCore) -> None:
        if self._exist_ok and await tx.namespace_exists(self._name):
            return
        if self._data_root:
            await tx.session.try_data_root(self._data_root)
        await tx.apply(self._create(tx.identities))


class CreateTableStep(Step):
    def __init__(
        self,
        name: ObjectName,
        schema: pa.Schema,
        data: Any,
        properties: dict[str, str],
        exist_ok: bool,
        *,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self._name = name
        columns = columns_of_schema(schema)
        self._partition_spec = parse_partition_by(words("partition_by", partition_by), columns)
        self._sort_order = parse_sort_by(words("sort_by", sort_by), columns)
        self._columns = columns_with_defaults(columns, defaults or {}, str(name))
        self._data = data
        self._properties = properties
        self._exist_ok = exist_ok

    def operation(self, identities: Identities) -> Operation:
        return CreateTable(
            namespace=self._name.namespace,
            name=self._name.name,
            table_id=identities.uuid4(),
            columns=self._columns,
            properties=self._properties,
            partition_spec=self._partition_spec,
            sort_order=self._sort_order,
        )

    async def run(self, tx: TransactionCore) -> None:
        name = self._name
        if self._exist_ok and await tx.table_exists((name.namespace, name.name)):
            return
        await super().run(tx)
        if self._data is not None:
            await RowsStep(name, self._data, replace=False).run(tx)


class DefaultsStep(Step):
    """An update of a table with new defaults. Encoding a default takes its column, so the step reads the table."""

    def __init__(self, operation: UpdateTable, defaults: Mapping[str, Any]) -> None:
        super().__init__(operation)
        self._update = operation
        self._defaults = defaults

    def operation(self, identities: Identities) -> None:
        return None

    async def run(self, tx: TransactionCore) -> None:
        table = await tx.table(self._update.target)
        await tx.apply(update_with_defaults(self._update, self._defaults, table.columns))


class RowsStep(Step):
    def __init__(self, name: ObjectName, data: Any, *, replace: bool) -> None:
        self._name = name
        self._data = data
        self._replace = replace

    def operation(self, identities: Identities) -> None:
        return None

    async def run(self, tx: TransactionCore) -> None:
        table = await tx.table(self._name)
        tx.note_upload()
        written = await write_rows(
            await tx.session.data_storage(table),
            table,
            self._data,
            transaction_id=tx.id,
            identities=tx.identities,
            catalog_id=tx.session.catalog_id,
            checksums=await tx.lists_checksums(),
        )
        await tx.apply_segments(self._name, table, written.segments, replace=self._replace)


class RegisterTableStep(Step):
    def __init__(self, name: ObjectName, metadata_location: str, properties: dict[str, str]) -> None:
        self._name = name
        self._location = metadata_location
        self._properties = properties

    def operation(self, identities: Identities) -> Operation:
        return RegisterTable(
            namespace=self._name.namespace,
            name=self._name.name,
            table_id=identities.uuid4(),
            metadata_location=self._location,
            properties=self._properties,
        )


class RestoreTableStep(Step):
    def __init__(self, name: ObjectName, at: When) -> None:
        self._name = name
        if at is None:
            raise InvalidInput("restore_table needs a version, a tag or a time", kind="bad_version")
        self._at = parse_when(at)

    def operation(self, identities: Identities) -> None:
        return None

    async def run(self, tx: TransactionCore) -> None:
        version = await tx.past_version(self._at, self._name)
        await tx.apply(RestoreTable(namespace=self._name.namespace, name=self._name.name, version=version))


class UndropStep(Step):
    def __init__(self, name: ObjectName, at: When, new_name: ObjectName, kind: str | None = None) -> None:
        kinds = (name.kind,) if name.kind is Kind.NAMESPACE else (Kind.TABLE, Kind.VIEW)
        if kind is not None and kind not in ("namespace", "table", "view"):
            raise InvalidInput(f"kind={kind!r} is not a kind", hint='give "namespace", "table" or "view"')
        self._kinds = [one for one in kinds if kind in (None, one.label)]
        if not self._kinds:
            raise InvalidInput(
                f"{name.full_name!r} is not the name of a {kind}",
                kind="bad_name",
                hint="name a namespace without a dot, and a table or view as namespace.name",
            )
        if (name.kind is Kind.NAMESPACE) != (new_name.kind is Kind.NAMESPACE):
            raise InvalidInput(
                f"{name} cannot come back as {new_name}",
                kind="bad_name",
                hint="name a namespace without a dot, and a table or view as namespace.name",
            )
        self._name = name
        self._at = None if at is None else parse_when(at)
        self._given = at is not None
        self._new_name = new_name

    def operation(self, identities: Identities) -> None:
        return None

    async def run(self, tx: TransactionCore) -> None:
        kind, version = await (self._find_at(tx) if self._given else self._find_last_drop(tx))
        if version > tx.version:
            raise InvalidInput(
                f"version {version}, at which {self._words()} existed, is newer than {tx.version}, at which"
                f" transaction {tx.id} began",
                kind="future_version",
                hint="undrop it in a transaction that begins now",
            )
        await tx.apply(
            Undrop(
                kind=kind,
                namespace=self._name.namespace,
                name=self._name.name,
                version=version,
                new_namespace=self._new_name.namespace,
                new_name=self._new_name.name,
            )
        )

    def _candidates(self) -> list[ObjectName]:
        """The names to look up. Tables and views share one space of names."""
        return [ObjectName(kind, self._name.namespace, self._name.name) for kind in self._kinds]

    async def _find_at(self, tx: TransactionCore) -> tuple[Kind, int]:
        names = self._candidates()
        version = await tx.past_version(self._at, names[0])
        for name, stored in zip(names, await tx.load_past(version, names), strict=True):
            if stored is not None:
                return name.kind, version
        raise NotFound(
            f"{self._words()} did not exist at version {version}", kind="no_object", version=version
        )

    async def _find_last_drop(self, tx: TransactionCore) -> tuple[Kind, int]:
        names = self._candidates()
        if tx.operations:  # the transaction's own drop is newer than all others
            begun, now = await tx.session.load(tx.version, names), await tx.load(names)
            for name, before, after in zip(names, begun.objects, now.objects, strict=True):
                if before is not None and after is None:
                    return name.kind, tx.version
        # A repeated transaction undrops the object that was dropped when it first ran.
        version = tx.version if tx.repeats is not None else None
        drops = [drop for name in names if (drop := await tx.session.last_drop(name, version)) is not None]
        if not drops:
            raise NotFound(
                f"no kept version records that a {self._words()} was dropped and not created again",
                kind="no_object",
                hint='see list_dropped() or "alpheus dropped" for drops, or name a version at which it existed',
            )
        last = max(drops, key=lambda drop: drop.dropped_version)
        return last.name.kind, last.version

    def _words(self) -> str:
        return f"{' or '.join(kind.label for kind in self._kinds)} {self._name.full_name}"


class ViewStep(Step):
    def __init__(
        self,
        name: ObjectName,
        *,
        sql: str,
        dialect: str,
        references: Iterable[Name],
        schema_binding: bool,
        schema: pa.Schema | None,
        default_namespace: str | None,
        properties: Mapping[str, str] | None,
        replace: bool,
    ) -> None:
        for what, text in (
            ("sql", sql),
            ("dialect", dialect),
            ("default_namespace", default_namespace or ""),
        ):
            if not isinstance(text, str):
                raise InvalidInput(f"{what}={text!r} is not text")
        if schema is not None and not isinstance(schema, pa.Schema):
            raise InvalidInput(f"schema={schema!r} is not a pyarrow schema", kind="bad_schema")
        if isinstance(references, str):
            references = (references,)
        named = [parse_name(Kind.TABLE, reference) for reference in several("references", references)]
        self._name = name
        self._replace = replace
        self._fields: dict[str, Any] = {
            "namespace": name.namespace,
            "name": name.name,
            "sql": sql,
            "dialect": dialect,
            "references": tuple(Reference(one.namespace, one.name) for one in dict.fromkeys(named)),
            "schema_binding": bool(schema_binding),
            "columns": columns_of_schema(schema) if schema is not None else (),
            "default_namespace": default_namespace or "",
            "properties": texts("properties", properties),
        }

    def operation(self, identities: Identities) -> Operation:
        if self._replace:
            return ReplaceView(**self._fields)
        return CreateView(view_id=identities.uuid4(), **self._fields)
