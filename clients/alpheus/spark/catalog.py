"""`SparkCatalog`: the tables of a catalog as DataFrames, pinned when read, committed when written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, TypeVar, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

import alpheus
from alpheus.catalog import Catalog, Snapshot, Transaction
from alpheus.models import Commit, Table
from alpheus.session import Name, When, parse_name, refuse_unsupported
from alpheus.spark import files
from alpheus.spark.java import use_java
from alpheus.spark.schemas import columns_of, quoted, schema_of_frame
from alpheus_journal.columns import schema_of_columns, strip_field_ids
from alpheus_journal.errors import AlreadyExists, Conflict, InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.objects import TableDef
from alpheus_journal.storage import Storage

T = TypeVar("T")

ATTEMPTS_MAX = 1000


def session(name: str = "alpheus", cores: int = 2, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session in this process, for trying out and for small pipelines, with a Java that works.

    A task that fails (a Python worker that dies) is tried three times more, which Spark's plain local mode
    does not do. A session that is up already is returned as it is.
    """
    use_java()
    builder = (
        SparkSession.builder.master(f"local[{cores},4]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.session.timeZone", "UTC")
    )
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class SparkCatalog:
    """The native tables of a catalog, read and written by Spark.

    `catalog`: a Catalog, or the URL of one, which `close` then closes. Sets what the session needs
    (`files.SETTINGS`) and checks at each read and write that it still holds. InvalidInput
    (`storage_unreachable`) when Spark cannot reach the data, as with `memory://`.

    A DataFrame is pinned: it names the files of one version, and stays as it is whatever is committed later.
    This release takes no leases and removes no data, so a version stays readable.
    """

    def __init__(self, spark: SparkSession, catalog: Catalog | str) -> None:
        if isinstance(catalog, str) and catalog.startswith("memory:"):
            raise _unreachable(catalog)
        self.spark = spark
        self._owned = isinstance(catalog, str)
        self.catalog = alpheus.connect(catalog) if isinstance(catalog, str) else catalog
        try:
            self.storage: Storage = self.catalog.storage()
            if self.storage.url.startswith("memory:"):
                raise _unreachable(self.storage.url)
            files.hadoop_path(self.storage, "data", glob=False)
            files.set_up(spark)
        except BaseException:
            self.close()
            raise
        self.lists = files.FileLists(self.storage)

    def __repr__(self) -> str:
        return f"<SparkCatalog {self.catalog.url}>"

    def close(self) -> None:
        """Close the catalog if it was opened here. Idempotent."""
        if self._owned:
            self.catalog.close()

    def is_up(self) -> bool:
        """Whether Spark still answers: its JVM lives and its context was not stopped."""
        try:
            return not self.spark.sparkContext._jsc.sc().isStopped()
        except Exception:  # of many kinds: the context is gone, or nobody is at the other end
            return False

    # -- reading

    def read(
        self, name: Name, at: When = None, where: str | None = None, columns: Sequence[str] | None = None
    ) -> DataFrame:
        """The rows of a native table at one version (the head when this is called).

        Spark's Parquet reader over the catalog's file list: filters and columns of later steps reach it.
        """
        refuse_unsupported(where=where)
        table = (self.catalog if at is None else self.catalog.at(at)).load_table(name)
        return self.frame(table.definition, columns)

    def at(self, when: When = None, branch: str | None = None) -> PinnedReader:
        """A reader of one version, for as many tables as needed."""
        return PinnedReader(self, self.catalog.at(when, branch))

    def temp_view(self, name: Name, as_: str | None = None, at: When = None) -> str:
        """Make the rows at one version a temporary view, named `as_` or as the table without its namespace.

        An existing view of that name is replaced. Returns the name. The view stays at that version.
        """
        view = as_ or parse_name(Kind.TABLE, name).name
        self.read(name, at).createOrReplaceTempView(quoted(view))
        return view

    def frame(self, table: TableDef, columns: Sequence[str] | None = None) -> DataFrame:
        """The rows of a table as `table` defines it."""
        if not table.native:
            raise InvalidInput(
                "an Iceberg table is read through Iceberg",
                kind="not_native",
                hint=f"its metadata: {table.iceberg_metadata_location}",
            )
        files.check_session(self.spark)
        found = self.lists.of(table.id, table.segments)
        df = files.scan(self.spark, self.storage, table.columns, found)
        if columns is None:
            return df
        names = {column.name for column in table.columns}
        for column in columns:
            if column not in names:
                raise InvalidInput(
                    f"the table has no column {column!r}", hint=f"it has {', '.join(names)[:500]}"
                )
        return df.select(*[quoted(column) for column in columns])

    # -- writing

    def create_table(
        self,
        name: Name,
        df_or_schema: DataFrame | t.StructType | str,
        properties: Mapping[str, str] | None = None,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        exist_ok: bool = False,
    ) -> Commit:
        """A native table of a Spark schema (DDL text too), or of a DataFrame: created and filled in one commit.
        Of a DataFrame's columns those that cannot be NULL become NOT NULL, but for lists, maps and structs.

        AlreadyExists unless `exist_ok`, which leaves an existing table as it is and writes no data.
        """

        def step(tx: SparkTransaction) -> None:
            tx.create_table(name, df_or_schema, properties, partition_by, sort_by, exist_ok)

        try:
            return self._single(step)
        except (AlreadyExists, Conflict) as error:
            if not (exist_ok and (isinstance(error, AlreadyExists) or error.kind == "already_exists_now")):
                raise
        return self._nothing()

    def append(self, name: Name, df: DataFrame) -> Commit:
        """Add the rows of `df`. Without rows nothing is committed: see `Commit`."""
        return self._single(lambda tx: tx.append(name, df))

    def overwrite(
        self, name: Name, df: DataFrame, where: str | None = None, partitions: Any = None
    ) -> Commit:
        """Replace all rows by those of `df`, which may be none."""
        return self._single(lambda tx: tx.overwrite(name, df, where, partitions))

    def transaction(
        self,
        isolation: str = "snapshot",
        message: str = "",
        properties: Mapping[str, str] | None = None,
        branch: str = "main",
        key: str | None = None,
        writer: tuple[str, int] | None = None,
        id: str | None = None,
    ) -> SparkTransaction:
        """`with lake.transaction() as tx:` — all verbs on `tx` commit together on a clean exit. Arguments as of
        `alpheus.Catalog.transaction`."""
        return SparkTransaction(
            self, self.catalog.transaction(isolation, message, properties, branch, key, writer, id)
        )

    def resume(self, id: str) -> SparkTransaction:
        """A transaction that `save` put aside, by Spark or not; see `alpheus.Catalog.resume`."""
        return SparkTransaction(self, self.catalog.resume(id))

    def retry(
        self,
        fn: Callable[[SparkTransaction], T],
        attempts: int = 5,
        isolation: str = "snapshot",
        message: str = "",
        properties: Mapping[str, str] | None = None,
        branch: str = "main",
        key: str | None = None,
        writer: tuple[str, int] | None = None,
    ) -> T:
        """Run `fn(tx)` in a transaction, again from scratch after a retryable Conflict. Returns what `fn`
        returned in the run that committed; raises the Conflict of the last attempt."""

        def attempt(tx: Transaction) -> T:
            return fn(SparkTransaction(self, tx))

        return self.catalog.retry(attempt, attempts, isolation, message, properties, branch, key, writer)

    def _single(self, step: Callable[[SparkTransaction], None]) -> Commit:
        with self.transaction() as tx:
            step(tx)
        return tx.result or self._nothing()

    def _nothing(self) -> Commit:
        now = self.catalog.at(None).info
        return Commit(version=now.version, transaction_id="", created_at=now.created_at)


class PinnedReader:
    """The catalog at one version: two reads of it never see two versions. Holds no lease in this release."""

    def __init__(self, lake: SparkCatalog, snapshot: Snapshot) -> None:
        self._lake = lake
        self._snapshot = snapshot
        self._views: list[str] = []
        self._closed = False

    def __enter__(self) -> PinnedReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def version(self) -> int:
        return self._snapshot.version

    def read(self, name: Name, where: str | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        """As `SparkCatalog.read`, at this version."""
        refuse_unsupported(where=where)
        return self._lake.frame(self._load([name])[0].definition, columns)

    def temp_views(self, pattern: str) -> list[str]:
        """A temporary view of each native table whose full name matches ("sales.*", `*` and `?` only), named
        as the table without its namespace. Returns the names. Dropped by `close`.

        InvalidInput, and nothing is made, when two tables would share a name.
        """
        namespace, dot, table = pattern.rpartition(".")
        if not dot:
            raise InvalidInput(f"{pattern!r} has no namespace", kind="bad_name", hint='for example "sales.*"')
        self._check_open()
        names = [
            (found.namespace, found.name)
            for space in self._snapshot.list_namespaces()
            if fnmatchcase(space.name, _plain_brackets(namespace))
            for found in self._snapshot.list_tables(space.name)
            if fnmatchcase(found.name, _plain_brackets(table))
        ]
        tables: dict[str, Table] = {}
        for found in self._load(names):
            if found.format != "native":
                continue
            other = tables.setdefault(found.name.lower(), found)
            if other is not found:
                raise InvalidInput(
                    f"{other.full_name} and {found.full_name} would be one view",
                    kind="bad_name",
                    hint="name one namespace, or use read",
                )
        for found in tables.values():
            self._lake.frame(found.definition).createOrReplaceTempView(quoted(found.name))
            self._views.append(found.name)
        return [found.name for found in tables.values()]

    def close(self) -> None:
        """Drop the views; further reads are refused, DataFrames taken before stay good. Idempotent."""
        self._closed = True
        while self._views:
            self._lake.spark.catalog.dropTempView(self._views.pop())

    def _load(self, names: Sequence[Name]) -> list[Table]:
        self._check_open()
        return self._snapshot.load_tables(names)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput(f"the reader of version {self.version} was closed", hint="make a new one")


class SparkTransaction:
    """Operations that commit together when the block ends without an exception; see `alpheus.Transaction`.

    Each write runs its DataFrame at once and leaves its files in this transaction's own folders; the commit
    makes them visible. Reads see what was written before them.
    """

    def __init__(self, lake: SparkCatalog, tx: Transaction) -> None:
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
        """The version that reads come from and that the commit is checked against."""
        return self._tx.version

    @property
    def result(self) -> Commit | None:
        return self._tx.result

    @property
    def catalog(self) -> Transaction:
        """The same transaction, for the verbs that need no Spark."""
        return self._tx

    def save(self) -> str:
        """Put it aside for `resume`, in any process; see `alpheus.Transaction.save`."""
        return self._tx.save()

    def read(self, name: Name, where: str | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        """As `SparkCatalog.read`, at `version`, with what this transaction wrote."""
        refuse_unsupported(where=where)
        return self._lake.frame(self._tx.load_table(name).definition, columns)

    def create_table(
        self,
        name: Name,
        df_or_schema: DataFrame | t.StructType | str,
        properties: Mapping[str, str] | None = None,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """See `SparkCatalog.create_table`."""
        refuse_unsupported(partition_by=partition_by, sort_by=sort_by)
        if exist_ok and self._tx.table_exists(name):
            return
        self._tx.create_table(name, _arrow_schema(df_or_schema), properties)
        if isinstance(df_or_schema, DataFrame):
            self.append(name, df_or_schema)

    def append(self, name: Name, df: DataFrame) -> None:
        """Add the rows of `df`; without rows nothing happens."""
        definition = self._tx.load_table(name).definition
        staged = self.stage(definition, df)
        if staged.segments:
            self._tx.append_segments(name, staged.segments, definition.id)

    def overwrite(self, name: Name, df: DataFrame, where: str | None = None, partitions: Any = None) -> None:
        """Replace all rows by those of `df`, which may be none."""
        refuse_unsupported(where=where, partitions=partitions)
        definition = self._tx.load_table(name).definition
        self._tx.overwrite_segments(name, self.stage(definition, df).segments, definition.id)

    def stage(self, table: TableDef, df: DataFrame) -> files.Staged:
        """Run `df` into files of this transaction for the table, without an operation that names them."""
        if not isinstance(df, DataFrame):
            raise InvalidInput(f"a DataFrame is needed, not {type(df).__name__}", kind="bad_data")
        if not table.native:
            raise InvalidInput("an Iceberg table is written through Iceberg", kind="not_native")
        return files.stage(df, self._lake.storage, self._lake.lists, table, transaction_id=self.id)


def _arrow_schema(df_or_schema: DataFrame | t.StructType | str) -> pa.Schema:
    if isinstance(df_or_schema, DataFrame):
        schema = schema_of_frame(df_or_schema)
    elif isinstance(df_or_schema, str):
        schema = cast(t.StructType, t.StructType.fromDDL(df_or_schema))
    else:
        schema = df_or_schema
    if not isinstance(schema, t.StructType):
        raise InvalidInput(
            f"{type(df_or_schema).__name__} is no schema",
            kind="bad_schema",
            hint="pass a DataFrame, a StructType, or DDL text such as 'id BIGINT NOT NULL, name STRING'",
        )
    return strip_field_ids(schema_of_columns(columns_of(schema)))


def _plain_brackets(pattern: str) -> str:
    return pattern.replace("[", "[[]")


def _unreachable(url: str) -> InvalidInput:
    return InvalidInput(
        f"the catalog {url} lives in the memory of one process, which Spark's cannot reach",
        kind="storage_unreachable",
        hint="use a catalog on storage, for example file:///lake",
    )
