"""The writing verbs, and what each does in a transaction."""

from __future__ import annotations

import abc
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

import pyarrow as pa

from alpheus.rows.cast import CastError
from alpheus.rows.file_writer import bad_data
from alpheus.rows.input_data import arrow_of
from alpheus.rows.scan import Where
from alpheus.session.arguments import (
    AnyName,
    Name,
    NamespaceText,
    When,
    any_name,
    namespace_text,
    parse_name,
    refuse_unsupported,
    texts,
    words,
)
from alpheus.transactions.append_files import AppendFilesStep, FilePath
from alpheus.transactions.column_arguments import (
    check_defaults,
    check_flags,
    parse_added_columns,
    parse_retyped_columns,
)
from alpheus.transactions.compaction import CompactionPlan, CompactStep
from alpheus.transactions.merge import Matched, Unmatched
from alpheus.transactions.row_changes import Mode
from alpheus.transactions.row_steps import DeleteStep, MergeStep, OverwriteStep, UpdateStep
from alpheus.transactions.steps import (
    CreateNamespaceStep,
    CreateTableStep,
    DefaultsStep,
    RegisterTableStep,
    RestoreTableStep,
    RowsStep,
    Step,
    UndropStep,
    ViewStep,
)
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.model.operations import (
    CommitIceberg,
    DropNamespace,
    DropTable,
    DropView,
    RenameObject,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)

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
        defaults: Mapping[str, Any] | None = None,
    ) -> R:
        """A native table of an Arrow schema, or of data: created and filled in one commit.

        `partition_by`: keys of its partitions, as in ["country", "day(ts)"]; `sort_by`: the order of rows in its files,
        as in ["id", "ts desc nulls last"]. Both are for its life. `defaults`: as of `update_table`.
        AlreadyExists unless `exist_ok`, which leaves an existing table as it is and writes no data.
        """
        schema, data = _schema_and_data(schema_or_data)
        step = CreateTableStep(
            parse_name(Kind.TABLE, name),
            schema,
            data,
            texts("properties", properties),
            exist_ok,
            partition_by=partition_by,
            sort_by=sort_by,
            defaults=check_defaults(defaults),
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

        `add_columns`: a pyarrow schema, a field, a list of fields, or a mapping of paths to types or fields. Fields of
        structs are named by path ("address.zip"; "element", "key" and "value" below lists and maps); all paths are
        those before the call. Types only widen. `column_order` names every top-level column, as it is called
        afterwards. `defaults`: paths to values that inserts give from now on where they leave the column out (None:
        NULL); rows from before a column that is added in the same call have it, too. Rows written before stay as they
        are and are read in the new shape.
        """
        table = parse_name(Kind.TABLE, name)
        operation = UpdateTable(
            namespace=table.namespace,
            name=table.name,
            set=texts("set", set),
            unset=words("unset", unset),
            add_columns=parse_added_columns(add_columns),
            drop_columns=words("drop_columns", drop_columns),
            rename_columns=texts("rename_columns", rename_columns),
            retype_columns=parse_retyped_columns(retype_columns),
            nullable_columns=check_flags("nullable_columns", nullable_columns),
            column_order=words("column_order", column_order),
        )
        step: Step = Step(operation)
        if given := check_defaults(defaults):
            step = DefaultsStep(operation, given)
        return await self._write(step, blind=not (given or operation.changes_columns), tolerant=False)

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

    async def overwrite(self, name: Name, data: Any, where: Where | None = None, partitions: Any = None) -> R:
        """Replace all rows by those of `data`, as `append` takes them; there may be none.

        With `where`, or with `partitions` (a list of dicts of partition keys, an Arrow table of them, without rows for
        none, or a mapping of keys to lists), only those rows; data outside of them is refused as `bad_data`. Files of
        nothing else go whole; of others a predicate hides the rows.
        """
        table = parse_name(Kind.TABLE, name)
        step: Step = RowsStep(table, data, replace=True)
        if where is not None or partitions is not None:
            step = OverwriteStep(table, data, where, partitions)
        return await self._write(step, blind=False, tolerant=False)

    async def delete(self, name: Name, where: Where, mode: Mode = "predicate") -> R:
        """Remove the rows for which `where` (text in the SQL subset, or a predicate) is TRUE; where there are none,
        nothing happens. `mode`: "predicate" hides them in their files, "rewrite" writes those files anew."""
        step = DeleteStep(parse_name(Kind.TABLE, name), where, mode)
        return await self._write(step, blind=False, tolerant=False)

    async def update(self, name: Name, set: Mapping[str, Any], where: Where, mode: Mode | None = None) -> R:
        """Give columns other values in the rows for which `where` is TRUE ("true": all).

        `set`: columns to values, or to pyarrow compute expressions of the columns as they were
        (`pyarrow.compute.field("n") + 1`). `mode`: "predicate" hides the old rows and adds the new, "rewrite" writes
        their files anew; left out, whichever is cheaper: from a fifth of the rows of the files on, the second.
        """
        step = UpdateStep(parse_name(Kind.TABLE, name), set, where, mode)
        return await self._write(step, blind=False, tolerant=False)

    async def merge(
        self,
        name: Name,
        data: Any,
        on: str | Sequence[str],
        matched: Matched = "update",
        unmatched: Unmatched = "insert",
        mode: Mode | None = None,
    ) -> R:
        """Update, delete or leave the rows whose key is in `data`, and insert the rows of `data` whose key is new.

        `data`: as of `append`; held in memory. Columns that it lacks keep their values in rows that are updated, and
        take their default in rows that are inserted. `on`: the columns of the key. NULL equals nothing: a row of `data`
        without a key is inserted. InvalidInput (`bad_data`) names a key that is in `data` twice. `mode`: as of
        `update`.
        """
        step = MergeStep(parse_name(Kind.TABLE, name), data, words("on", on), matched, unmatched, mode)
        return await self._write(step, blind=False, tolerant=False)

    async def append_files(self, name: Name, paths: FilePath | Sequence[FilePath]) -> R:
        """Add the rows of Parquet files that are there already. All or none; columns go by name, as of `append`.

        `paths`: absolute paths or URLs without credentials; the files are copied, as they are if they have the table's
        field ids and it has no partitions, otherwise written anew. A path below the catalog's storage is of a file that
        this transaction wrote for the table itself (`data/<table id>/<transaction id>/...`): taken as it is.
        """
        step = AppendFilesStep(parse_name(Kind.TABLE, name), paths)
        return await self._write(step, blind=False, tolerant=False)

    @overload
    async def compact(
        self, name: Name, target_size: int | None = None, dry_run: Literal[False] = False
    ) -> R: ...

    @overload
    async def compact(
        self, name: Name, target_size: int | None, dry_run: Literal[True]
    ) -> CompactionPlan: ...

    @overload
    async def compact(
        self, name: Name, target_size: int | None = None, *, dry_run: Literal[True]
    ) -> CompactionPlan: ...

    async def compact(
        self, name: Name, target_size: int | None = None, dry_run: bool = False
    ) -> R | CompactionPlan:
        """Write small files together anew, files with deleted rows without them, and files that are not in the table's
        order in it. Readers see the same rows; appends and deletes by others do not conflict.

        `target_size`: bytes of a file, 128 MiB by default. `dry_run`: nothing is written, and what would be is returned
        (`.explain()`). Nothing to do: nothing happens.
        """
        step = CompactStep(parse_name(Kind.TABLE, name), target_size, dry_run)
        result = await self._write(step, blind=False, tolerant=False)
        return step.plan if dry_run else result

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


def _schema_and_data(value: Any) -> tuple[pa.Schema, Any]:
    """The schema of a new table, and its first rows or None. InvalidInput (`bad_schema`)."""
    if isinstance(value, pa.Schema):
        return value, None
    if isinstance(getattr(value, "schema", None), pa.Schema):
        return value.schema, value  # a Table, RecordBatch, RecordBatchReader, Dataset
    pandas = sys.modules.get("pandas")  # whoever holds a DataFrame has imported it
    is_frame = pandas is not None and isinstance(value, pandas.DataFrame)
    if is_frame or hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__"):
        try:
            schema, batches = arrow_of(value)
        except CastError as error:
            raise bad_data(error) from None
        return schema, (
            pa.Table.from_batches(batches, schema=schema)
            if is_frame
            else pa.RecordBatchReader.from_batches(schema, batches)
        )
    if hasattr(value, "__arrow_c_schema__"):
        try:
            return pa.schema(value), None
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidInput(
                f"{type(value).__name__} is no schema: {str(error)[:300]}", kind="bad_schema"
            ) from None
    raise InvalidInput(
        f"{type(value).__name__} is neither a schema nor data with one",
        kind="bad_schema",
        hint="pass a pyarrow Schema, or data such as pyarrow.table({...})",
    )
