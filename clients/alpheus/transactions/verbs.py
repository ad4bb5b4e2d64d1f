"""The writing verbs: `Writes` turns the arguments of each verb into a step of a transaction."""

from __future__ import annotations

import abc
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

import pyarrow as pa

from alpheus.rows.arrow.cast import CastError
from alpheus.rows.arrow.input_data import arrow_of
from alpheus.rows.file_writer import bad_data
from alpheus.rows.scan import Where
from alpheus.session.arguments import (
    AnyName,
    Name,
    NamespaceText,
    When,
    any_name,
    namespace_text,
    parse_name,
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
    """The writing verbs. Each returns R: a Commit for a single call, None inside a transaction."""

    @abc.abstractmethod
    async def _write(self, step: Step, *, blind: bool, tolerant: bool) -> R:
        """Do `step` in a transaction. A `blind` step reads nothing, because the commit checks everything. A `tolerant`
        step accepts that the object exists already."""

    async def update_catalog(
        self, set: Mapping[str, str] | None = None, unset: Sequence[str] | None = None
    ) -> R:
        """Change the catalog's own properties: assign the keys of `set`, and remove the keys of `unset`."""
        operation = UpdateCatalog(set=texts("set", set), unset=words("unset", unset))
        return await self._write(Step(operation), blind=True, tolerant=False)

    async def create_namespace(
        self,
        name: NamespaceText,
        properties: Mapping[str, str] | None = None,
        data_root: str | None = None,
        exist_ok: bool = False,
    ) -> R:
        """Create a namespace. Raises AlreadyExists when the namespace exists; with `exist_ok` the call leaves an
        existing namespace as it is.

        `data_root` is the URL of a place for the data files of the tables that will be created in the namespace, so
        that rules of a bucket can follow a team. The place is in the same kind of store as the catalog, lies apart from
        the catalog and from all other roots, and never changes. A local folder must exist. The options of the catalog's
        URL hold for it. Whoever writes such tables needs rights on it. Raises InvalidInput (`bad_data_root`), and
        `upgrade_needed` for a catalog in revision 1 of the format.
        """
        step = CreateNamespaceStep(namespace_text(name), texts("properties", properties), exist_ok, data_root)
        return await self._write(step, blind=not exist_ok, tolerant=exist_ok)

    async def update_namespace(
        self, name: NamespaceText, set: Mapping[str, str] | None = None, unset: Sequence[str] | None = None
    ) -> R:
        """Change a namespace's properties: assign the keys of `set`, and remove the keys of `unset`."""
        operation = UpdateNamespace(
            name=namespace_text(name), set=texts("set", set), unset=words("unset", unset)
        )
        return await self._write(Step(operation), blind=True, tolerant=False)

    async def drop_namespace(self, name: NamespaceText, cascade: bool = False) -> R:
        """Drop a namespace. Raises NotEmpty while the namespace holds tables or views; with `cascade` they are dropped,
        too, all or none."""
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
        """Create a native table from an Arrow schema, or from data, which the same commit writes into the table.

        - `partition_by`: the keys of the partitions, as in ["country", "day(ts)"].
        - `sort_by`: the order of rows in files, as in ["id", "ts desc nulls last"]. Like the partition keys, it never
          changes.
        - `defaults`: see `update_table`.

        Raises AlreadyExists when the table exists; with `exist_ok` the call leaves an existing table as it is and
        writes no data.
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
        """Register an Iceberg table. Its rows and columns stay in Iceberg metadata; the catalog holds the pointer to
        the newest metadata file."""
        table = parse_name(Kind.TABLE, name)
        step = RegisterTableStep(table, metadata_location, texts("properties", properties))
        return await self._write(step, blind=True, tolerant=False)

    async def commit_iceberg(self, name: Name, metadata_location: str, expected: str) -> R:
        """Move a registered table from the metadata file `expected` to the one at `metadata_location`. Raises Conflict
        (`metadata_moved`) when the table points to a third file now."""
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
        """Change properties and columns, in one step. Rows that were written before stay as they are; reads give them
        the new columns.

        Fields of structs are named by path ("address.zip"; "element", "key" and "value" below lists and maps). All
        paths are those before the call.

        - `add_columns`: a pyarrow schema, a field, a list of fields, or a mapping of paths to types or fields.
        - `retype_columns`: paths to types. A type can only become wider.
        - `column_order`: every top-level column, by its name after the call.
        - `defaults`: paths to values for inserts that leave the column out from now on; None means NULL. A default of a
          column that the same call adds applies to existing rows, too.
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
        """Give a table another name, perhaps in another namespace. It stays the same table, and pipelines follow it."""
        return await self._rename(Kind.TABLE, name, new_name)

    async def rename_view(self, name: Name, new_name: Name) -> R:
        """Give a view another name, perhaps in another namespace. It stays the same view."""
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
        """Give a table the columns, rows and properties that it had at a version, tag or time. The table keeps its id
        and name; no data is copied."""
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
        """Bring back a dropped table or view ("namespace.name"), or a dropped namespace (without a dot, or as a
        1-tuple) with all its objects.

        - `at`: the version, tag or time whose state comes back; by default the last version before the drop.
        - `as_name`: another name for the object.
        - `kind` ("namespace", "table", "view"): which object is meant; by default the one that was dropped last.

        Raises NotFound when no kept version records the drop, and AlreadyExists when the name is taken.
        """
        step = UndropStep(any_name(name), at, any_name(name if as_name is None else as_name), kind)
        return await self._write(step, blind=True, tolerant=False)

    async def drop_table(self, name: Name, purge: bool = False) -> R:
        """Drop a table. With `purge` the commit records that the table's data need not be kept for an undrop."""
        table = parse_name(Kind.TABLE, name)
        operation = DropTable(namespace=table.namespace, name=table.name, purge=purge)
        return await self._write(Step(operation), blind=True, tolerant=False)

    async def append(self, name: Name, data: Any) -> R:
        """Add rows: Arrow data, a pandas DataFrame, or a list of dicts. Columns are matched by name. Data without rows
        changes nothing. Raises InvalidInput (`bad_data`), which names the column that does not fit."""
        step = RowsStep(parse_name(Kind.TABLE, name), data, replace=False)
        return await self._write(step, blind=False, tolerant=False)

    async def overwrite(self, name: Name, data: Any, where: Where | None = None, partitions: Any = None) -> R:
        """Replace all rows of a table by those of `data`, which may have none. `append` says what `data` may be.

        With `where` or `partitions`, only the rows that it selects are replaced, and data outside of it is refused
        (`bad_data`). `partitions` is a list of dicts of partition keys, a mapping of keys to lists, or an Arrow table
        of keys; an Arrow table without rows selects no partition. A file whose rows are all replaced is removed; in
        other files a delete predicate hides the replaced rows.
        """
        table = parse_name(Kind.TABLE, name)
        step: Step = RowsStep(table, data, replace=True)
        if where is not None or partitions is not None:
            step = OverwriteStep(table, data, where, partitions)
        return await self._write(step, blind=False, tolerant=False)

    async def delete(self, name: Name, where: Where, mode: Mode = "predicate") -> R:
        """Remove the rows for which `where` (text in the SQL subset, or a predicate) is TRUE. Without such rows the
        call changes nothing. The `mode` "predicate" hides the rows in their files; "rewrite" writes those files again
        without them."""
        step = DeleteStep(parse_name(Kind.TABLE, name), where, mode)
        return await self._write(step, blind=False, tolerant=False)

    async def update(self, name: Name, set: Mapping[str, Any], where: Where, mode: Mode | None = None) -> R:
        """Assign new values to columns in the rows for which `where` is TRUE; `where="true"` means all rows.

        - `set`: columns to values, or to pyarrow compute expressions of the old values
          (`pyarrow.compute.field("n") + 1`).
        - `mode`: "predicate" hides the old rows and adds the new ones; "rewrite" writes the files of the rows again.
          By default the cheaper mode is taken: "rewrite" from a fifth of the rows of these files on.
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

        - `data`: see `append`; it is held in memory. A column that `data` lacks keeps its value in updated rows, and
          takes its default in inserted rows.
        - `on`: the columns of the key. NULL equals nothing, so a row of `data` whose key has a NULL is inserted.
        - `mode`: see `update`.

        Raises InvalidInput (`bad_data`), which names the key, when a key occurs twice in `data`.
        """
        step = MergeStep(parse_name(Kind.TABLE, name), data, words("on", on), matched, unmatched, mode)
        return await self._write(step, blind=False, tolerant=False)

    async def append_files(self, name: Name, paths: FilePath | Sequence[FilePath]) -> R:
        """Add the rows of existing Parquet files, all or none. Columns are matched by name, as in `append`.

        `paths` are absolute paths, or URLs without credentials. A file is copied unchanged when it has the table's
        field ids and the table has no partitions; otherwise its rows are written to new files. A relative path names a
        file on the catalog's storage that this transaction wrote for the table
        (`data/<table id>/<transaction id>/...`); the table takes such a file without a copy.
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
        """Rewrite a table's files: join small files, leave out deleted rows, and sort files that are not in the table's
        order. Readers see the same rows. Appends and deletes of other transactions do not conflict with a compaction.

        `target_size` is the size of a file in bytes, 128 MiB by default. With `dry_run` the call writes nothing and
        returns the plan (see its `explain`). A call that finds nothing to do changes nothing.
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
        """Create a view: SQL text in a dialect. The catalog keeps the text and does not parse it.

        - `references`: the tables and views that the text names. With `schema_binding` they must exist, and while the
          view exists they cannot be dropped or renamed, nor lose or change columns.
        - `schema`: the schema of the view's result.
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
        """Replace everything of a view but its id; the properties are replaced, too. Raises NotFound (`no_view`) when
        the view does not exist."""
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
        """Drop a view. Raises NotFound (`no_view`) when it does not exist."""
        view = parse_name(Kind.VIEW, name)
        return await self._write(
            Step(DropView(namespace=view.namespace, name=view.name)), blind=True, tolerant=False
        )


def _schema_and_data(value: Any) -> tuple[pa.Schema, Any]:
    """The schema of a new table, and its first rows or None. Raises InvalidInput (`bad_schema`)."""
    if isinstance(value, pa.Schema):
        return value, None
    if isinstance(getattr(value, "schema", None), pa.Schema):
        return value.schema, value  # a Table, RecordBatch, RecordBatchReader, Dataset
    pandas = sys.modules.get("pandas")  # a caller with a DataFrame has imported pandas
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
                f"{type(value).__name__} is not a schema: {str(error)[:300]}", kind="bad_schema"
            ) from None
    raise InvalidInput(
        f"{type(value).__name__} is neither a schema nor data with one",
        kind="bad_schema",
        hint="pass a pyarrow Schema, or data such as pyarrow.table({...})",
    )
