"""`SparkTransaction`: the verbs with DataFrames, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from alpheus.catalog import Transaction, core_of
from alpheus.models import Commit
from alpheus.session.arguments import Name, parse_name
from alpheus.spark.files import writes
from alpheus.spark.files.schemas import check_texts, columns_of, schema_of_frame
from alpheus.spark.tables import merge as merging
from alpheus.spark.tables import row_changes as changes
from alpheus.spark.tables.assignments import spark_reason
from alpheus.spark.tables.lake import Lake, name_missing_files
from alpheus.spark.tables.scan import Where
from alpheus.sync.portal import run
from alpheus.transactions.append_files import FilePath
from alpheus.transactions.compaction import CompactionPlan
from alpheus.transactions.merge import Matched, Unmatched
from alpheus.transactions.row_changes import Mode
from alpheus.transactions.transaction import _columns_read as columns_read
from alpheus.where.conditions import as_predicate
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.model.operations import Read
from alpheus_journal.tables.columns import schema_of_columns, strip_field_ids


class SparkTransaction:
    """Operations that commit together when the block ends without an exception; see `alpheus.Transaction`.

    Each write runs its DataFrame immediately and stores its files in this transaction's own folders. The commit makes
    them visible. Reads see earlier writes of the transaction.
    """

    def __init__(self, lake: Lake, tx: Transaction) -> None:
        self._lake = lake
        self._tx = tx

    def __enter__(self) -> SparkTransaction:
        self._tx.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tx.__exit__(kind, error, traceback)

    @property
    def id(self) -> str:
        return self._tx.id

    @property
    def version(self) -> int:
        """The version that reads see and that the commit is checked against."""
        return self._tx.version

    @property
    def result(self) -> Commit | None:
        return self._tx.result

    @property
    def catalog(self) -> Transaction:
        """The same transaction, for the verbs that need no Spark."""
        return self._tx

    def save(self) -> str:
        """Save the transaction for `resume`, in any process; see `alpheus.Transaction.save`."""
        return self._tx.save()

    def read(self, name: Name, where: Where | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        """Return what `SparkCatalog.read` does, at `version`, with this transaction's own writes."""
        table = self._tx.load_table(name).definition
        predicate = as_predicate(where, table.columns)
        with self._name_missing_files(name):
            df = self._lake.frame(table, columns, predicate, self._made)
        read = columns_read(table, predicate, columns)
        core_of(self._tx).keep(Read(type="TABLE_SELECT", name=parse_name(Kind.TABLE, name), columns=read))
        return df

    def _name_missing_files(self, name: Name) -> AbstractContextManager[None]:
        """See `lake.name_missing_files`. `name` is the table of the verb."""
        return name_missing_files(self._lake, lambda: self._tx.load_table(name))

    def _made(self, path: str) -> bytes | None:
        return core_of(self._tx).overlay.segment(path)

    def create_table(
        self,
        name: Name,
        df_or_schema: DataFrame | t.StructType | str,
        properties: Mapping[str, str] | None = None,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        exist_ok: bool = False,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """See `SparkCatalog.create_table`."""
        if exist_ok and self._tx.table_exists(name):
            return
        schema = _arrow_schema(df_or_schema)
        self._tx.create_table(name, schema, properties, partition_by, sort_by, defaults=defaults)
        if isinstance(df_or_schema, DataFrame):
            self.append(name, df_or_schema)

    def append(self, name: Name, df: DataFrame) -> None:
        """Add the rows of `df`. Without rows nothing is recorded."""
        definition = self._tx.load_table(name).definition
        staged = self.stage(definition, df)
        if staged.segments:
            self._tx.append_segments(name, staged.segments, definition.id)

    def overwrite(
        self, name: Name, df: DataFrame, where: Where | None = None, partitions: Any = None
    ) -> None:
        """See `SparkCatalog.overwrite`."""
        if where is not None or partitions is not None:
            writes.check_frame(df)
            with self._name_missing_files(name):
                changes.overwrite(self._rows(name), df, where, partitions)
            return
        definition = self._tx.load_table(name).definition
        self._tx.overwrite_segments(name, self.stage(definition, df).segments, definition.id)

    def delete(self, name: Name, where: Where, mode: Mode = "predicate") -> None:
        """See `SparkCatalog.delete`."""
        with self._name_missing_files(name):
            changes.delete(self._rows(name), where, mode)

    def update(self, name: Name, set: Mapping[str, Any], where: Where, mode: Mode | None = None) -> None:
        """See `SparkCatalog.update`."""
        with self._name_missing_files(name):
            changes.update(self._rows(name), set, where, mode)

    def merge(
        self,
        name: Name,
        df: DataFrame,
        on: str | Sequence[str],
        matched: Matched = "update",
        unmatched: Unmatched = "insert",
        mode: Mode | None = None,
    ) -> None:
        """See `SparkCatalog.merge`."""
        writes.check_frame(df)
        with self._name_missing_files(name):
            merging.merge(self._rows(name), df, on, matched, unmatched, mode)

    def append_files(self, name: Name, paths: FilePath | Sequence[FilePath]) -> None:
        """See `alpheus.Catalog.append_files`."""
        self._tx.append_files(name, paths)

    def compact(self, name: Name, target_size: int | None = None, dry_run: bool = False) -> CompactionPlan:
        """Compact the table, and return what was done, or would be; see `SparkCatalog.compact`."""
        rows = self._rows(name)
        plan, bins = changes.plan_compaction(rows, target_size)
        if not dry_run:
            with self._name_missing_files(name):
                changes.compact(rows, bins, plan.target_size_bytes)
        return plan

    def _rows(self, name: Name) -> changes.Rows:
        return changes.Rows(self._lake, self._tx, name)

    def stage(self, table: TableDef, df: DataFrame) -> writes.Staged:
        """Run `df` into files of this transaction for the table, and return them without recording an operation."""
        writes.check_frame(df)
        if not table.native:
            raise InvalidInput(
                "the table is an Iceberg table", kind="not_native", hint="write it through Iceberg"
            )
        with name_missing_files(self._lake):  # `df` may read any table of the catalog
            run(core_of(self._tx).hold_lease())
            ready = check_texts(df, table.columns)
            lake = self._lake
            return writes.stage(
                ready,
                lake.store_of(table),
                lake.lists,
                table,
                owner=changes.owner_of(self._tx),
            )


def _arrow_schema(df_or_schema: DataFrame | t.StructType | str) -> pa.Schema:
    if isinstance(df_or_schema, DataFrame):
        schema = schema_of_frame(df_or_schema)
    elif isinstance(df_or_schema, str):
        try:
            schema = cast(t.StructType, t.StructType.fromDDL(df_or_schema))
        except PySparkException as error:
            raise InvalidInput(
                f"{df_or_schema[:200]!r} is not a schema: {spark_reason(error)}",
                kind="bad_schema",
                hint="write it as in 'id BIGINT NOT NULL, name STRING'",
            ) from error
    else:
        schema = df_or_schema
    if not isinstance(schema, t.StructType):
        raise InvalidInput(
            f"{type(df_or_schema).__module__}.{type(df_or_schema).__name__} is not a schema".removeprefix(
                "builtins."
            ),
            kind="bad_schema",
            hint="pass a DataFrame, a StructType, or DDL text such as 'id BIGINT NOT NULL, name STRING'",
        )
    return strip_field_ids(schema_of_columns(columns_of(schema)))
