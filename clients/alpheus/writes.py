"""The writing verbs, and what each does in a transaction."""

from __future__ import annotations

import abc
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from alpheus.rows import write_rows
from alpheus.session import (
    AnyName,
    Name,
    NamespaceText,
    When,
    any_name,
    namespace_text,
    parse_name,
    parse_when,
    refuse_unsupported,
    several,
    texts,
    words,
)
from alpheus_journal.actions import (
    AddColumn,
    CommitIceberg,
    CreateNamespace,
    CreateTable,
    CreateView,
    DropNamespace,
    DropTable,
    DropView,
    Operation,
    RegisterTable,
    RenameObject,
    ReplaceView,
    RestoreTable,
    Undrop,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.columns import columns_of_schema
from alpheus_journal.errors import InvalidInput, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.objects import Column, Reference, with_ids
from alpheus_journal.system import Identities

if TYPE_CHECKING:
    from alpheus.transaction import AsyncTransaction

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
        name: NamespaceText,
        properties: Mapping[str, str] | None = None,
        data_root: str | None = None,
        exist_ok: bool = False,
    ) -> R:
        """AlreadyExists unless `exist_ok`, which leaves an existing one as it is."""
        refuse_unsupported(data_root=data_root)
        step = CreateNamespaceStep(namespace_text(name), texts("properties", properties), exist_ok)
        return await self._write(step, blind=not exist_ok, tolerant=exist_ok)

    async def update_namespace(
        self, name: NamespaceText, set: Mapping[str, str] | None = None, unset: Sequence[str] | None = None
    ) -> R:
        """Change properties."""
        operation = UpdateNamespace(
            name=namespace_text(name), set=texts("set", set), unset=words("unset", unset)
        )
        return await self._write(Step(operation), blind=True, tolerant=False)

    async def drop_namespace(self, name: NamespaceText, cascade: bool = False) -> R:
        """NotEmpty while tables or views live in it; with `cascade` they go with it, all or none."""
        operation = DropNamespace(name=namespace_text(name), cascade=bool(cascade))
        return await self._write(Step(operation), blind=True, tolerant=False)

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

    async def register_table(
        self, name: Name, metadata_location: str, properties: Mapping[str, str] | None = None
    ) -> R:
        """A table whose rows and columns are in Iceberg metadata: the catalog holds the pointer to its newest
        metadata file."""
        table = parse_name(Kind.TABLE, name)
        step = RegisterTableStep(table, metadata_location, texts("properties", properties))
        return await self._write(step, blind=True, tolerant=False)

    async def commit_iceberg(self, name: Name, metadata_location: str, expected: str) -> R:
        """Move a registered table from its metadata file `expected` to another. Conflict (`metadata_moved`) when it
        points elsewhere by now."""
        table = parse_name(Kind.TABLE, name)
        operation = CommitIceberg(
            namespace=table.namespace, name=table.name, metadata_location=metadata_location, expected=expected
        )
        return await self._write(Step(operation), blind=True, tolerant=False)

    async def update_table(
        self,
        name: Name,
        set: Mapping[str, str] | None = None,
        unset: Sequence[str] | None = None,
        add_columns: Any = None,
        drop_columns: Sequence[str] | None = None,
        rename_columns: Mapping[str, str] | None = None,
        retype_columns: Mapping[str, pa.DataType] | None = None,
        nullable_columns: Mapping[str, bool] | None = None,
        column_order: Sequence[str] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> R:
        """Change properties and columns, in one step.

        `add_columns`: a pyarrow schema, a field, a list of fields, or a mapping of paths to types. Fields of structs
        are named by path ("address.zip"; "element", "key" and "value" below lists and maps); all paths are those
        before the call. Types only widen. `column_order` names every top-level column, as it is called afterwards.
        Rows written before stay as they are and are read in the new shape.
        """
        refuse_unsupported(defaults=defaults)
        table = parse_name(Kind.TABLE, name)
        operation = UpdateTable(
            namespace=table.namespace,
            name=table.name,
            set=texts("set", set),
            unset=words("unset", unset),
            add_columns=added_columns(add_columns),
            drop_columns=words("drop_columns", drop_columns),
            rename_columns=texts("rename_columns", rename_columns),
            retype_columns=retyped_columns(retype_columns),
            nullable_columns=flags("nullable_columns", nullable_columns),
            column_order=words("column_order", column_order),
        )
        return await self._write(Step(operation), blind=not operation.changes_columns, tolerant=False)

    async def rename_table(self, name: Name, new_name: Name) -> R:
        """Under another name, perhaps in another namespace; it stays the same table, and pipelines follow it."""
        return await self._rename(Kind.TABLE, name, new_name)

    async def rename_view(self, name: Name, new_name: Name) -> R:
        """As `rename_table`."""
        return await self._rename(Kind.VIEW, name, new_name)

    async def _rename(self, kind: Kind, name: Name, new_name: Name) -> R:
        old, new = parse_name(kind, name), parse_name(kind, new_name)
        operation = RenameObject(
            kind=kind,
            namespace=old.namespace,
            name=old.name,
            new_namespace=new.namespace,
            new_name=new.name,
        )
        return await self._write(Step(operation), blind=True, tolerant=False)

    async def restore_table(self, name: Name, at: When) -> R:
        """Columns, rows and properties as they were at a version or time; id and name stay. Nothing is copied."""
        return await self._write(
            RestoreTableStep(parse_name(Kind.TABLE, name), at), blind=True, tolerant=False
        )

    async def undrop(
        self,
        name: AnyName,
        at: When = None,
        as_name: AnyName | None = None,
        kind: str | None = None,
    ) -> R:
        """A dropped table or view ("namespace.name") again, or a namespace (no dot, or a 1-tuple) with what was in it.

        As it was at `at`; without it, when it was last there. `as_name`: another name for it. `kind` ("namespace",
        "table", "view") settles which is meant; without it, whichever was dropped last. NotFound when no kept version
        tells of its drop, AlreadyExists when the name is taken.
        """
        step = UndropStep(any_name(name), at, any_name(name if as_name is None else as_name), kind)
        return await self._write(step, blind=True, tolerant=False)

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

    async def create_view(
        self,
        name: Name,
        sql: str,
        dialect: str = "spark",
        references: Iterable[Name] = (),
        schema_binding: bool = False,
        schema: pa.Schema | None = None,
        default_namespace: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> R:
        """A view: SQL text in a dialect, which the catalog keeps and does not read.

        `references`: tables and views that the text names. With `schema_binding` these must be there, and cannot be
        dropped, renamed, or lose or change columns as long as the view is there. `schema`: of its result.
        """
        view = ViewStep(
            parse_name(Kind.VIEW, name),
            sql=sql,
            dialect=dialect,
            references=references,
            schema_binding=schema_binding,
            schema=schema,
            default_namespace=default_namespace,
            properties=properties,
            replace=False,
        )
        return await self._write(view, blind=True, tolerant=False)

    async def replace_view(
        self,
        name: Name,
        sql: str,
        dialect: str = "spark",
        references: Iterable[Name] = (),
        schema_binding: bool = False,
        schema: pa.Schema | None = None,
        default_namespace: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> R:
        """Everything of a view but its id, properties included. NotFound (`no_view`) when it is not there."""
        view = ViewStep(
            parse_name(Kind.VIEW, name),
            sql=sql,
            dialect=dialect,
            references=references,
            schema_binding=schema_binding,
            schema=schema,
            default_namespace=default_namespace,
            properties=properties,
            replace=True,
        )
        return await self._write(view, blind=True, tolerant=False)

    async def drop_view(self, name: Name) -> R:
        view = parse_name(Kind.VIEW, name)
        return await self._write(
            Step(DropView(namespace=view.namespace, name=view.name)), blind=True, tolerant=False
        )


# --- steps: what one verb does in a transaction ----------------------------------------------------


class Step:
    """One verb. `run` applies its operations to a transaction.

    `operation` is all that it applies when it is done blindly. None: it looks at the catalog for what there is to do.
    """

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def operation(self, identities: Identities) -> Operation | None:
        return self._operation

    async def run(self, tx: AsyncTransaction) -> None:
        operation = self.operation(tx._session.identities)
        assert operation is not None, "a step that looks at the catalog has a `run` of its own"
        await tx._apply(operation)


class CreateNamespaceStep(Step):
    def __init__(self, name: str, properties: dict[str, str], exist_ok: bool) -> None:
        self._name = name
        self._properties = properties
        self._exist_ok = exist_ok

    def operation(self, identities: Identities) -> Operation:
        return CreateNamespace(name=self._name, namespace_id=identities.uuid4(), properties=self._properties)

    async def run(self, tx: AsyncTransaction) -> None:
        if self._exist_ok and await tx.namespace_exists(self._name):
            return
        await super().run(tx)


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

    def operation(self, identities: Identities) -> Operation:
        return CreateTable(
            namespace=self._name.namespace,
            name=self._name.name,
            table_id=identities.uuid4(),
            columns=self._columns,
            properties=self._properties,
        )

    async def run(self, tx: AsyncTransaction) -> None:
        name = self._name
        if self._exist_ok and await tx.table_exists((name.namespace, name.name)):
            return
        await super().run(tx)
        if self._data is not None:
            await RowsStep(name, self._data, replace=False).run(tx)


class RowsStep(Step):
    def __init__(self, name: ObjectName, data: Any, *, replace: bool) -> None:
        self._name = name
        self._data = data
        self._replace = replace

    def operation(self, identities: Identities) -> None:
        return None

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
            raise InvalidInput("restore_table needs a version or a time", kind="bad_version")
        self._at = parse_when(at)

    def operation(self, identities: Identities) -> None:
        return None

    async def run(self, tx: AsyncTransaction) -> None:
        version = (await tx._session.resolve(self._at)).version
        await tx._apply(RestoreTable(namespace=self._name.namespace, name=self._name.name, version=version))


class UndropStep(Step):
    def __init__(self, name: ObjectName, at: When, new_name: ObjectName, kind: str | None = None) -> None:
        kinds = (name.kind,) if name.kind is Kind.NAMESPACE else (Kind.TABLE, Kind.VIEW)
        if kind is not None and kind not in ("namespace", "table", "view"):
            raise InvalidInput(f"kind={kind!r}: there is no such kind", hint="namespace, table or view")
        self._kinds = [one for one in kinds if kind in (None, one.label)]
        if not self._kinds:
            raise InvalidInput(
                f"{name.full_name!r} is no name of a {kind}",
                kind="bad_name",
                hint="a namespace is named without a dot, a table or view as namespace.name",
            )
        if (name.kind is Kind.NAMESPACE) != (new_name.kind is Kind.NAMESPACE):
            raise InvalidInput(
                f"{name} cannot come back as {new_name}",
                kind="bad_name",
                hint="a namespace is named without a dot, a table or view as namespace.name",
            )
        self._name = name
        self._at = None if at is None else parse_when(at)
        self._given = at is not None
        self._new_name = new_name

    def operation(self, identities: Identities) -> None:
        return None

    async def run(self, tx: AsyncTransaction) -> None:
        kind, version = await (self._found(tx) if self._given else self._last(tx))
        if version > tx.version:
            raise InvalidInput(
                f"version {version}, at which {self._words()} was there, is newer than {tx.version}, at which"
                f" transaction {tx.id} began",
                kind="future_version",
                hint="bring it back in a transaction that begins now",
            )
        await tx._apply(
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
        """Tables and views share one space of names."""
        return [ObjectName(kind, self._name.namespace, self._name.name) for kind in self._kinds]

    async def _found(self, tx: AsyncTransaction) -> tuple[Kind, int]:
        version = (await tx._session.resolve(self._at)).version
        names = self._candidates()
        loaded = await tx._session.load(version, names)
        for name, stored in zip(names, loaded.objects, strict=True):
            if stored is not None:
                return name.kind, version
        raise NotFound(
            f"there was no {self._words()} at version {version}", kind="no_object", version=version
        )

    async def _last(self, tx: AsyncTransaction) -> tuple[Kind, int]:
        names = self._candidates()
        if tx.operations:  # its own drop comes after all others
            begun, now = await tx._session.load(tx.version, names), await tx._objects(names)
            for name, before, after in zip(names, begun.objects, now.objects, strict=True):
                if before is not None and after is None:
                    return name.kind, tx.version
        drops = [drop for name in names if (drop := await tx._session.last_drop(name)) is not None]
        if not drops:
            raise NotFound(
                f"no kept version tells that a {self._words()} was dropped and not created again",
                kind="no_object",
                hint='list_dropped() (or "alpheus dropped") tells what was; name a version at which it was there',
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
            raise InvalidInput(f"schema={schema!r} is no pyarrow schema", kind="bad_schema")
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


# --- columns as people give them -------------------------------------------------------------------


def added_columns(value: Any) -> tuple[AddColumn, ...]:
    """New columns: a schema, a field, a list of fields (top level, names as they are), or a mapping of paths to types
    whose last dot splits off the parent. InvalidInput (`bad_schema`)."""
    if value is None:
        return ()
    if isinstance(value, pa.Field):
        value = [value]
    if isinstance(value, Mapping):
        return tuple(_added(*_split_path(path), _field_of(path, kind)) for path, kind in value.items())
    if isinstance(value, pa.Schema):
        value = list(value)
    fields = several("add_columns", value)
    for field in fields:
        if not isinstance(field, pa.Field):
            raise InvalidInput(
                f"add_columns: {field!r} is no field",
                kind="bad_schema",
                hint='pass {"name": pyarrow.int64()}, or pyarrow fields',
            )
    return tuple(_added("", field.name, field) for field in fields)


def _split_path(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition(".")
    return parent, name


def _field_of(path: Any, kind: Any) -> pa.Field:
    if not isinstance(path, str) or not path or not isinstance(kind, pa.DataType):
        raise InvalidInput(
            f"add_columns: {path!r}: {kind!r} is no name with a type",
            kind="bad_schema",
            hint='pass {"name": pyarrow.int64()}, or pyarrow fields',
        )
    return pa.field(path, kind)


def _added(parent: str, name: str, field: pa.Field) -> AddColumn:
    column = columns_of_schema(pa.schema([field.with_name(name)]))[0]
    return AddColumn(parent=parent, column=with_ids(column, lambda: 0))


def retyped_columns(value: Mapping[str, pa.DataType] | None) -> dict[str, Column]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(
            f"retype_columns: a mapping of paths to types is needed, not {type(value).__name__}"
        )
    found = {}
    for path, kind in value.items():
        if not isinstance(path, str) or not isinstance(kind, pa.DataType):
            raise InvalidInput(
                f"retype_columns: {path!r}: {kind!r} is no path with a type", kind="bad_schema"
            )
        column = columns_of_schema(pa.schema([pa.field("column", kind)]))[0]
        found[path] = with_ids(column, lambda: 0)
    return found


def flags(what: str, value: Mapping[str, bool] | None) -> dict[str, bool]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(path, str) and isinstance(flag, bool) for path, flag in value.items()
    ):
        raise InvalidInput(f"{what}: a mapping of paths to True or False is needed")
    return dict(value)


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
