"""The writing verbs of the synchronous client: each forwards to the asynchronous one."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

import pyarrow as pa

from alpheus.rows.scan import Where
from alpheus.session.arguments import AnyName, Name, NamespaceText, When
from alpheus.sync.portal import run
from alpheus.transactions.append_files import FilePath
from alpheus.transactions.compaction import CompactionPlan
from alpheus.transactions.merge import Matched, Unmatched
from alpheus.transactions.row_changes import Mode
from alpheus.transactions.verbs import Writes

R = TypeVar("R")


class SyncWrites(abc.ABC, Generic[R]):
    """The writing verbs; see `alpheus.transactions.transaction.Writes`."""

    @abc.abstractmethod
    def _writes(self) -> Writes[R]: ...

    # -- generated from Writes by `python -m alpheus.sync`

    def update_catalog(self, set: Mapping[str, str] | None = None, unset: Sequence[str] | None = None) -> R:
        """Change the catalog's own properties: assign the keys of `set`, and remove the keys of `unset`."""
        return run(self._writes().update_catalog(set, unset))

    def create_namespace(
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
        return run(self._writes().create_namespace(name, properties, data_root, exist_ok))

    def update_namespace(
        self, name: NamespaceText, set: Mapping[str, str] | None = None, unset: Sequence[str] | None = None
    ) -> R:
        """Change a namespace's properties: assign the keys of `set`, and remove the keys of `unset`."""
        return run(self._writes().update_namespace(name, set, unset))

    def drop_namespace(self, name: NamespaceText, cascade: bool = False) -> R:
        """Drop a namespace. Raises NotEmpty while the namespace holds tables or views; with `cascade` they are dropped,
        too, all or none."""
        return run(self._writes().drop_namespace(name, cascade))

    def create_table(
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
        return run(
            self._writes().create_table(
                name, schema_or_data, properties, partition_by, sort_by, exist_ok, defaults
            )
        )

    def register_table(
        self, name: Name, metadata_location: str, properties: Mapping[str, str] | None = None
    ) -> R:
        """Register an Iceberg table. Its rows and columns stay in Iceberg metadata; the catalog holds the pointer to
        the newest metadata file."""
        return run(self._writes().register_table(name, metadata_location, properties))

    def commit_iceberg(self, name: Name, metadata_location: str, expected: str) -> R:
        """Move a registered table from the metadata file `expected` to the one at `metadata_location`. Raises Conflict
        (`metadata_moved`) when the table points to a third file now."""
        return run(self._writes().commit_iceberg(name, metadata_location, expected))

    def update_table(
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
        return run(
            self._writes().update_table(
                name,
                set,
                unset,
                add_columns,
                drop_columns,
                rename_columns,
                retype_columns,
                nullable_columns,
                column_order,
                defaults,
            )
        )

    def rename_table(self, name: Name, new_name: Name) -> R:
        """Give a table another name, perhaps in another namespace. It stays the same table, and pipelines follow it."""
        return run(self._writes().rename_table(name, new_name))

    def rename_view(self, name: Name, new_name: Name) -> R:
        """Give a view another name, perhaps in another namespace. It stays the same view."""
        return run(self._writes().rename_view(name, new_name))

    def restore_table(self, name: Name, at: When) -> R:
        """Give a table the columns, rows and properties that it had at a version, tag or time. The table keeps its id
        and name; no data is copied."""
        return run(self._writes().restore_table(name, at))

    def undrop(
        self, name: AnyName, at: When = None, as_name: AnyName | None = None, kind: str | None = None
    ) -> R:
        """Bring back a dropped table or view ("namespace.name"), or a dropped namespace (without a dot, or as a
        1-tuple) with all its objects.

        - `at`: the version, tag or time whose state comes back; by default the last version before the drop.
        - `as_name`: another name for the object.
        - `kind` ("namespace", "table", "view"): which object is meant; by default the one that was dropped last.

        Raises NotFound when no kept version records the drop, and AlreadyExists when the name is taken.
        """
        return run(self._writes().undrop(name, at, as_name, kind))

    def drop_table(self, name: Name, purge: bool = False) -> R:
        """Drop a table. With `purge` the commit records that the table's data need not be kept for an undrop."""
        return run(self._writes().drop_table(name, purge))

    def append(self, name: Name, data: Any) -> R:
        """Add rows: Arrow data, a pandas DataFrame, or a list of dicts. Columns are matched by name. Data without rows
        changes nothing. Raises InvalidInput (`bad_data`), which names the column that does not fit."""
        return run(self._writes().append(name, data))

    def overwrite(self, name: Name, data: Any, where: Where | None = None, partitions: Any = None) -> R:
        """Replace all rows of a table by those of `data`, which may have none. `append` says what `data` may be.

        With `where` or `partitions`, only the rows that it selects are replaced, and data outside of it is refused
        (`bad_data`). `partitions` is a list of dicts of partition keys, a mapping of keys to lists, or an Arrow table
        of keys; an Arrow table without rows selects no partition. A file whose rows are all replaced is removed; in
        other files a delete predicate hides the replaced rows.
        """
        return run(self._writes().overwrite(name, data, where, partitions))

    def delete(self, name: Name, where: Where, mode: Mode = "predicate") -> R:
        """Remove the rows for which `where` (text in the SQL subset, or a predicate) is TRUE. Without such rows the
        call changes nothing. The `mode` "predicate" hides the rows in their files; "rewrite" writes those files again
        without them."""
        return run(self._writes().delete(name, where, mode))

    def update(self, name: Name, set: Mapping[str, Any], where: Where, mode: Mode | None = None) -> R:
        """Assign new values to columns in the rows for which `where` is TRUE; `where="true"` means all rows.

        - `set`: columns to values, or to pyarrow compute expressions of the old values
          (`pyarrow.compute.field("n") + 1`).
        - `mode`: "predicate" hides the old rows and adds the new ones; "rewrite" writes the files of the rows again.
          By default the cheaper mode is taken: "rewrite" from a fifth of the rows of these files on.
        """
        return run(self._writes().update(name, set, where, mode))

    def merge(
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
        return run(self._writes().merge(name, data, on, matched, unmatched, mode))

    def append_files(self, name: Name, paths: FilePath | Sequence[FilePath]) -> R:
        """Add the rows of existing Parquet files, all or none. Columns are matched by name, as in `append`.

        `paths` are absolute paths, or URLs without credentials. A file is copied unchanged when it has the table's
        field ids and the table has no partitions; otherwise its rows are written to new files. A relative path names a
        file on the catalog's storage that this transaction wrote for the table
        (`data/<table id>/<transaction id>/...`); the table takes such a file without a copy.
        """
        return run(self._writes().append_files(name, paths))

    @overload
    def compact(self, name: Name, target_size: int | None = None, dry_run: Literal[False] = False) -> R: ...

    @overload
    def compact(self, name: Name, target_size: int | None, dry_run: Literal[True]) -> CompactionPlan: ...

    @overload
    def compact(
        self, name: Name, target_size: int | None = None, *, dry_run: Literal[True]
    ) -> CompactionPlan: ...

    def compact(
        self, name: Name, target_size: int | None = None, dry_run: bool = False
    ) -> R | CompactionPlan:
        """Rewrite a table's files: join small files, leave out deleted rows, and sort files that are not in the table's
        order. Readers see the same rows. Appends and deletes of other transactions do not conflict with a compaction.

        `target_size` is the size of a file in bytes, 128 MiB by default. With `dry_run` the call writes nothing and
        returns the plan (see its `explain`). A call that finds nothing to do changes nothing.
        """
        verb: Any = self._writes().compact
        returned: R | CompactionPlan = run(verb(name, target_size, dry_run))
        return returned

    def create_view(
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
        return run(
            self._writes().create_view(
                name, sql, dialect, references, schema_binding, schema, default_namespace, properties
            )
        )

    def replace_view(
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
        return run(
            self._writes().replace_view(
                name, sql, dialect, references, schema_binding, schema, default_namespace, properties
            )
        )

    def drop_view(self, name: Name) -> R:
        """Drop a view. Raises NotFound (`no_view`) when it does not exist."""
        return run(self._writes().drop_view(name))
