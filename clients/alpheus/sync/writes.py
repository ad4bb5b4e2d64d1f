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
        """Change the catalog's own properties."""
        return run(self._writes().update_catalog(set, unset))

    def create_namespace(
        self,
        name: NamespaceText,
        properties: Mapping[str, str] | None = None,
        data_root: str | None = None,
        exist_ok: bool = False,
    ) -> R:
        """AlreadyExists unless `exist_ok`, which leaves an existing one as it is."""
        return run(self._writes().create_namespace(name, properties, data_root, exist_ok))

    def update_namespace(
        self, name: NamespaceText, set: Mapping[str, str] | None = None, unset: Sequence[str] | None = None
    ) -> R:
        """Change properties."""
        return run(self._writes().update_namespace(name, set, unset))

    def drop_namespace(self, name: NamespaceText, cascade: bool = False) -> R:
        """NotEmpty while tables or views live in it; with `cascade` they go with it, all or none."""
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
        """A native table of an Arrow schema, or of data: created and filled in one commit.

        `partition_by`: keys of its partitions, as in ["country", "day(ts)"]; `sort_by`: the order of rows in its files,
        as in ["id", "ts desc nulls last"]. Both are for its life. `defaults`: as of `update_table`.
        AlreadyExists unless `exist_ok`, which leaves an existing table as it is and writes no data.
        """
        return run(
            self._writes().create_table(
                name, schema_or_data, properties, partition_by, sort_by, exist_ok, defaults
            )
        )

    def register_table(
        self, name: Name, metadata_location: str, properties: Mapping[str, str] | None = None
    ) -> R:
        """A table whose rows and columns are in Iceberg metadata: the catalog holds the pointer to its newest
        metadata file."""
        return run(self._writes().register_table(name, metadata_location, properties))

    def commit_iceberg(self, name: Name, metadata_location: str, expected: str) -> R:
        """Move a registered table from its metadata file `expected` to another. Conflict (`metadata_moved`) when it
        points elsewhere by now."""
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
        """Change properties and columns, in one step.

        `add_columns`: a pyarrow schema, a field, a list of fields, or a mapping of paths to types or fields. Fields of
        structs are named by path ("address.zip"; "element", "key" and "value" below lists and maps); all paths are
        those before the call. Types only widen. `column_order` names every top-level column, as it is called
        afterwards. `defaults`: paths to values that inserts give from now on where they leave the column out (None:
        NULL); rows from before a column that is added in the same call have it, too. Rows written before stay as they
        are and are read in the new shape.
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
        """Under another name, perhaps in another namespace; it stays the same table, and pipelines follow it."""
        return run(self._writes().rename_table(name, new_name))

    def rename_view(self, name: Name, new_name: Name) -> R:
        """As `rename_table`."""
        return run(self._writes().rename_view(name, new_name))

    def restore_table(self, name: Name, at: When) -> R:
        """Columns, rows and properties as they were at a version or time; id and name stay. Nothing is copied."""
        return run(self._writes().restore_table(name, at))

    def undrop(
        self, name: AnyName, at: When = None, as_name: AnyName | None = None, kind: str | None = None
    ) -> R:
        """A dropped table or view ("namespace.name") again, or a namespace (no dot, or a 1-tuple) with what was in it.

        As it was at `at`; without it, when it was last there. `as_name`: another name for it. `kind` ("namespace",
        "table", "view") settles which is meant; without it, whichever was dropped last. NotFound when no kept version
        tells of its drop, AlreadyExists when the name is taken.
        """
        return run(self._writes().undrop(name, at, as_name, kind))

    def drop_table(self, name: Name, purge: bool = False) -> R:
        """`purge` records that its data need not be kept for restoring it."""
        return run(self._writes().drop_table(name, purge))

    def append(self, name: Name, data: Any) -> R:
        """Add rows: Arrow data, a pandas DataFrame, or a list of dicts; columns go by name. No rows: nothing
        happens. InvalidInput (`bad_data`) names the column that does not fit."""
        return run(self._writes().append(name, data))

    def overwrite(self, name: Name, data: Any, where: Where | None = None, partitions: Any = None) -> R:
        """Replace all rows by those of `data`, as `append` takes them; there may be none.

        With `where`, or with `partitions` (a list of dicts of partition keys, an Arrow table of them, without rows for
        none, or a mapping of keys to lists), only those rows; data outside of them is refused as `bad_data`. Files of
        nothing else go whole; of others a predicate hides the rows.
        """
        return run(self._writes().overwrite(name, data, where, partitions))

    def delete(self, name: Name, where: Where, mode: Mode = "predicate") -> R:
        """Remove the rows for which `where` (text in the SQL subset, or a predicate) is TRUE; where there are none,
        nothing happens. `mode`: "predicate" hides them in their files, "rewrite" writes those files anew."""
        return run(self._writes().delete(name, where, mode))

    def update(self, name: Name, set: Mapping[str, Any], where: Where, mode: Mode | None = None) -> R:
        """Give columns other values in the rows for which `where` is TRUE ("true": all).

        `set`: columns to values, or to pyarrow compute expressions of the columns as they were
        (`pyarrow.compute.field("n") + 1`). `mode`: "predicate" hides the old rows and adds the new, "rewrite" writes
        their files anew; left out, whichever is cheaper: from a fifth of the rows of the files on, the second.
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

        `data`: as of `append`; held in memory. Columns that it lacks keep their values in rows that are updated, and
        take their default in rows that are inserted. `on`: the columns of the key. NULL equals nothing: a row of `data`
        without a key is inserted. InvalidInput (`bad_data`) names a key that is in `data` twice. `mode`: as of
        `update`.
        """
        return run(self._writes().merge(name, data, on, matched, unmatched, mode))

    def append_files(self, name: Name, paths: FilePath | Sequence[FilePath]) -> R:
        """Add the rows of Parquet files that are there already. All or none; columns go by name, as of `append`.

        `paths`: absolute paths or URLs without credentials; the files are copied, as they are if they have the table's
        field ids and it has no partitions, otherwise written anew. A path below the catalog's storage is of a file that
        this transaction wrote for the table itself (`data/<table id>/<transaction id>/...`): taken as it is.
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
        """Write small files together anew, files with deleted rows without them, and files that are not in the table's
        order in it. Readers see the same rows; appends and deletes by others do not conflict.

        `target_size`: bytes of a file, 128 MiB by default. `dry_run`: nothing is written, and what would be is returned
        (`.explain()`). Nothing to do: nothing happens.
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
        """A view: SQL text in a dialect, which the catalog keeps and does not read.

        `references`: tables and views that the text names. With `schema_binding` these must be there, and cannot be
        dropped, renamed, or lose or change columns as long as the view is there. `schema`: of its result.
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
        """Everything of a view but its id, properties included. NotFound (`no_view`) when it is not there."""
        return run(
            self._writes().replace_view(
                name, sql, dialect, references, schema_binding, schema, default_namespace, properties
            )
        )

    def drop_view(self, name: Name) -> R:
        return run(self._writes().drop_view(name))
