"""`SparkCatalog`: the tables of a catalog as DataFrames, pinned when read, committed when written."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, overload

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.streaming.query import StreamingQuery

import alpheus
from alpheus.catalog import Catalog, Snapshot, Transaction
from alpheus.importing.results import Format, Imported
from alpheus.models import Commit, Table
from alpheus.pipeline.jobs import Job
from alpheus.pipeline.planner import Work
from alpheus.rows.manifest_files import FileLists
from alpheus.session.arguments import Name, When, parse_name
from alpheus.session.connections import DAEMON_SCHEMES, scheme_of
from alpheus.session.leases import lease_millis
from alpheus.spark.java import use_java
from alpheus.spark.job_run import JobRun
from alpheus.spark.streams import frames
from alpheus.spark.streams.sink import BatchFunction
from alpheus.spark.streams.source import AlpheusSource, check_start, check_stream, version_of
from alpheus.spark.tables import files, scan
from alpheus.spark.tables.lake import Lake, name_missing_files, require_native
from alpheus.spark.tables.reader import PinnedReader
from alpheus.spark.tables.scan import Where
from alpheus.spark.tables.schemas import check_fits, quoted
from alpheus.spark.tables.transaction import SparkTransaction
from alpheus.sync.portal import run
from alpheus.transactions.append_files import FilePath
from alpheus.transactions.compaction import CompactionPlan
from alpheus.transactions.merge import Matched, Unmatched
from alpheus.transactions.row_changes import Mode
from alpheus_journal.errors import AlreadyExists, Conflict, InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.urls import shown

T = TypeVar("T")

ATTEMPTS_MAX = 1000
HELD_VERSIONS_MAX = 16
"""Versions that frames were made of, which a lake leases."""


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


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect, which has no JVM of its own."""
    return getattr(spark, "_jsparkSession", None) is None


def register_source(spark: SparkSession) -> None:
    """Let the session know `format("alpheus")`, which it finds by itself where workers see `pyspark_alpheus`."""
    spark.dataSource.register(AlpheusSource)


class SparkCatalog(Lake):
    """The native tables of a catalog, read and written by Spark.

    `catalog`: a Catalog, or the URL of one, which `close` then closes. Sets what the session needs
    (`files.SETTINGS`) and checks at each read and write that it still holds. InvalidInput
    (`storage_unreachable`) when Spark cannot reach the data, as with `memory://`.

    A DataFrame is pinned: it names the files of one version, and stays as it is whatever is committed later. The last
    16 versions that frames were made of are leased until `close`, so that their files are not collected, though the
    versions may expire; `at` holds one for as long as its reader is open. `lease`: as of `alpheus.Catalog.at`, for all
    of these; None: where the storage can be written, else without, and with one warning. Changes and streams go by the
    log, and have no lease.
    """

    def __init__(
        self, spark: SparkSession, catalog: Catalog | str, lease: bool | float | None = None
    ) -> None:
        lease_millis(lease)  # refused before anything is opened
        self._lease = lease
        self._held: OrderedDict[int, Snapshot] = OrderedDict()
        self._holding = threading.Lock()
        if isinstance(catalog, str) and catalog.startswith("memory:"):
            raise _unreachable(catalog)
        self.spark = spark
        self._owned = isinstance(catalog, str)
        self.catalog = alpheus.connect(catalog) if isinstance(catalog, str) else catalog
        try:
            self.storage = self.catalog.storage()
            if self.storage.url.startswith("memory:"):
                raise _unreachable(self.storage.url)
            files.hadoop_path(self.storage, "data", glob=False)
            files.set_up(spark)
            register_source(spark)
        except BaseException:
            self.close()
            raise
        self.lists = FileLists(self.storage, run)

    def __repr__(self) -> str:
        return f"<SparkCatalog {shown(self.catalog.url)}>"

    def close(self) -> None:
        """Give up the leases of frames, and close the catalog if it was opened here. Idempotent."""
        with self._holding:
            while self._held:
                self._held.popitem()[1].close()
        if self._owned:
            self.catalog.close()

    def is_up(self) -> bool:
        """Whether Spark still answers: its JVM lives and its context was not stopped."""
        try:
            if is_connect(self.spark):
                return bool(self.spark.version)
            return not self.spark.sparkContext._jsc.sc().isStopped()
        except Exception:  # of many kinds: the context is gone, or nobody is at the other end
            return False

    # -- reading

    def read(
        self, name: Name, at: When = None, where: Where | None = None, columns: Sequence[str] | None = None
    ) -> DataFrame:
        """The rows of a native table at one version (the head when this is called) for which `where` is TRUE (None:
        all): text in the SQL subset, or a predicate.

        Spark's Parquet reader over the catalog's file list: filters and columns of later steps reach it. Files are
        pruned by their statistics for `where` alone; `explain` tells which. Rows come in no order, whatever the table's
        is: Spark knows nothing of it, and `orderBy` sorts. `alpheus.Scan.ordered` merges sorted files without Spark.
        """
        table = self._table(name, at)
        self._hold(table.version)
        with name_missing_files(self, lambda: table):
            return self.frame(table.definition, columns, where)

    def explain(self, name: Name, where: Where | None = None, at: When = None) -> str:
        """Which files `read` of the same opens and which it does not, and why: one line a file, after the sums."""
        return scan.plan_of(self.lists, self._table(name, at).definition, where).explain()

    def _table(self, name: Name, at: When) -> Table:
        table = (self.catalog if at is None else self.catalog.at(at)).load_table(name)
        require_native(table.definition)
        return table

    def _hold(self, version: int) -> None:
        """Lease a version that a frame is made of, for as long as it is among the last ones."""
        if self._lease is False:
            return
        with self._holding:
            held = self._held.get(version)
            if held is None or held.has_lost_lease():
                self._held[version] = self.catalog.at(version, lease=self._lease)
                if held is not None:
                    held.close()
            self._held.move_to_end(version)
            while len(self._held) > HELD_VERSIONS_MAX:
                self._held.popitem(last=False)[1].close()

    def at(
        self, when: When = None, branch: str | None = None, lease: bool | float | None = None
    ) -> PinnedReader:
        """A reader of one version, for as many tables as needed; close it. It holds a lease: `lease` as of
        `alpheus.Catalog.at`, None: as this lake's."""
        wanted = self._lease if lease is None else lease
        return PinnedReader(self, self.catalog.at(when, branch, lease=wanted))

    def system(
        self,
        name: str,
        at: When = None,
        names: str | Iterable[str] | None = None,
        after: int | None = None,
    ) -> DataFrame:
        """A system table (`log`, `changes`, `objects`, `files`, `pipelines`, `subscriptions`) at one version; see
        `alpheus.Catalog.system`. Its rows come through the driver."""
        return self.spark.createDataFrame(self.catalog.system(name, at, names, after))

    def temp_view(
        self, name: Name, as_: str | None = None, at: When = None, where: Where | None = None
    ) -> str:
        """Make the rows at one version a temporary view, named `as_` or as the table without its namespace.

        An existing view of that name is replaced. Returns the name. The view stays at that version.
        """
        view = as_ or parse_name(Kind.TABLE, name).name
        self.read(name, at, where).createOrReplaceTempView(quoted(view))
        return view

    # -- what changed

    def changes(self, name: Name, after: When = None, until: When = None) -> DataFrame:
        """What came in and went out in (after, until], with `_change_type` (insert, delete, update_preimage,
        update_postimage), `_commit_version`, `_commit_timestamp` and `_transaction_id`.

        Both are versions or times as `at` takes them; None: from the table's creation, to the head. Nothing is netted;
        rows have the columns of `until`. The table is followed under the names that it had. Expired with the oldest
        version when some of it is not kept, NotFound (`no_version`) above the head, InvalidInput (`table_replaced`)
        when another table had the name, which was dropped in between.
        """
        return frames.changes_between(self, name, after, until)

    def stream(
        self,
        name: Name,
        start: When = "snapshot",
        on_delete: str = "fail",
        changes: bool = False,
        max_files: int | None = None,
        max_versions: int | None = None,
        on_expired: str = "fail",
    ) -> DataFrame:
        """A streaming frame of the rows that are appended to a table, or with `changes` of all that `changes` gives.

        `start`: "snapshot" (all rows, then what comes), "now", or a version or time after which it begins; a query that
        goes on from a checkpoint begins there. What removes rows fails the query, or with `on_delete="skip"` is passed
        over, with the rows that it brought in. `max_files`, `max_versions` bound a batch. When the position of a
        checkpoint is not kept any more the query fails, or with `on_expired="snapshot"` gets all rows again.

        A query fails when the table gets other columns (not only other names), and goes on with them when it is started
        again. It follows the table by its id, whatever it is called: from a checkpoint it goes on under a name that the
        table had, too, as long as none other has it. Compactions are passed over, and so is a restore of the rows that
        it has. Rows are read by Python workers: see `alpheus.spark.streams.source` for what that costs.
        InvalidInput and NotFound are raised here for what would not begin; what comes later ends the query.
        """
        parsed = parse_name(Kind.TABLE, name)
        if "." in parsed.name:
            raise InvalidInput(
                f"{parsed}: a stream finds no table with a dot in its name", kind="not_supported"
            )
        feed: Literal["changes", "rows"] = "changes" if changes else "rows"
        check_stream(
            self.catalog,
            parsed.full_name,
            feed,
            start,
            on_delete=on_delete,
            on_expired=on_expired,
            max_files=max_files,
            max_versions=max_versions,
        )
        options = {
            "table": parsed.full_name,
            "feed": feed,
            "start": start.isoformat() if isinstance(start, datetime) else start,
            "onDelete": on_delete,
            "onExpired": on_expired,
            "maxFilesPerTrigger": max_files,
            "maxVersionsPerTrigger": max_versions,
        }
        return self._source(options)

    def events(self, after: int | str | None = None) -> DataFrame:
        """Changes of the catalog as a streaming frame: version, created_at, transaction_id, principal, message, kind,
        name, change_type (created, updated, dropped), action_type, path_before, path_after.

        One row an action and what it did besides. `after`: a version, an `Event.token`, "now", or None: all that is
        kept.
        """
        if isinstance(after, str) and after != "now" and not after.isdecimal():
            after = version_of(self.catalog, after)
        check_start(self.catalog, after)
        return self._source({"feed": "events", **({"start": after} if after == "now" else {"after": after})})

    def _source(self, options: Mapping[str, object]) -> DataFrame:
        given = {key: str(value) for key, value in options.items() if value is not None}
        return self.spark.readStream.format("alpheus").options(**self.source_options(), **given).load()

    def source_options(self) -> dict[str, str]:
        """Options with which Spark's own `format("alpheus")` finds this catalog."""
        own = {"catalog": self.catalog.url}
        if scheme_of(self.catalog.url) in DAEMON_SCHEMES:
            own["storage"] = self.storage.url
        return own

    def write_stream(
        self,
        name: Name,
        df: DataFrame,
        checkpoint: str,
        trigger: str | Mapping[str, Any] | None = None,
        query_name: str | None = None,
        output_mode: str = "append",
    ) -> StreamingQuery:
        """Start a query that appends the rows of a streaming frame to a table, each batch in one commit and once.

        The table remembers the last batch of each checkpoint: one that comes again after a crash is not written again.
        `trigger`: "available_now", an interval ("10 seconds"), or the arguments of Spark's `trigger`. `output_mode`
        "complete" replaces all rows by each batch. InvalidInput (`bad_data`) naming the column, and nothing is started,
        where the frame has columns or types that the table does not take.
        """
        if output_mode not in ("append", "complete"):
            raise InvalidInput(f"output_mode={output_mode!r} is neither append nor complete")
        files.check_frame(df)
        if not df.isStreaming:
            raise InvalidInput("the data frame is no stream", kind="bad_data", hint="write it by append")
        table = self.catalog.load_table(name)
        check_fits(df.schema, require_native(table.definition).columns)

        def write(tx: SparkTransaction, batch: DataFrame) -> None:
            found = tx.catalog.load_table(name)
            if found.id != table.id:
                raise InvalidInput(
                    f"table {table.full_name} was dropped and made anew; the query writes the one of id {table.id}",
                    kind="table_replaced",
                    hint="start the query again, with a new checkpoint",
                )
            if output_mode == "complete":
                tx.overwrite(name, batch)
            else:
                tx.append(name, batch)

        writer = df.writeStream.outputMode(output_mode).option("checkpointLocation", checkpoint)
        if query_name is not None:
            writer = writer.queryName(query_name)
        if trigger == "available_now":
            writer = writer.trigger(availableNow=True)
        elif isinstance(trigger, str):
            writer = writer.trigger(processingTime=trigger)
        elif trigger is not None:
            writer = writer.trigger(**trigger)
        return writer.foreachBatch(self.batch_writer(write)).start()

    def batch_writer(
        self, fn: Callable[[SparkTransaction, DataFrame], object], attempts: int = 5, name: str = ""
    ) -> Callable[[DataFrame, int], None]:
        """For `foreachBatch`: `fn(tx, batch)` in one transaction a batch, which is committed once whatever comes again.

        Several tables may be written, and read, by `tx`, others in each batch and at each try. `fn` runs again after a
        retryable Conflict, so that a batch that is expensive to compute should be persisted. Batches are known by the
        query's checkpoint and their number: by the transaction's retry key for as long as its version is kept, and for
        ever by the tables whose rows they wrote. One that did nothing leaves nothing to know it by.

        A query that writes its batches by several transactions gives each a `name`, and keeps it: a second one under
        the same name would find the batch committed, and is InvalidInput (`sequence_reused`).
        """
        if is_connect(self.spark):
            raise InvalidInput(
                "Spark Connect runs the function of a batch in another process, which has no transaction of this one",
                kind="not_supported",
                hint='df.writeStream.format("alpheus").options(**lake.source_options()).option("table", name) writes'
                " each batch once; or use a session without Connect",
            )
        return BatchFunction(
            self.catalog, lambda tx, batch: fn(SparkTransaction(self, tx), batch), attempts, name
        )

    # -- pipelines

    def job_run(
        self, job: Job, work: Work, tx: Transaction, *, attempt: int, params: Mapping[str, str]
    ) -> JobRun:
        """What the function of a job is called with, to do `work` in the transaction; see `alpheus.pipeline`."""
        return JobRun(self, job, work, tx, attempt=attempt, params=params)

    # -- writing

    def create_table(
        self,
        name: Name,
        df_or_schema: DataFrame | t.StructType | str,
        properties: Mapping[str, str] | None = None,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        exist_ok: bool = False,
        defaults: Mapping[str, Any] | None = None,
    ) -> Commit:
        """A native table of a Spark schema (DDL text too), or of a DataFrame: created and filled in one commit.
        Of a DataFrame's columns those that cannot be NULL become NOT NULL, but for lists, maps and structs.

        `partition_by`, `sort_by`, `defaults`: as of `alpheus.Catalog.create_table`.
        AlreadyExists unless `exist_ok`, which leaves an existing table as it is and writes no data.
        """

        def step(tx: SparkTransaction) -> None:
            tx.create_table(name, df_or_schema, properties, partition_by, sort_by, exist_ok, defaults)

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
        self, name: Name, df: DataFrame, where: Where | None = None, partitions: Any = None
    ) -> Commit:
        """Replace all rows by those of `df`, which may be none.

        With `where`, or with `partitions` (a DataFrame or a list of dicts of partition keys, or a mapping of keys to
        lists), only those rows; a DataFrame of partitions without rows means none, so that nothing is replaced. Rows of
        `df` outside of them are refused as `bad_data`. Files of nothing else go whole; of others a predicate hides the
        rows, or they are written anew: from a fifth of their rows on.
        """
        return self._single(lambda tx: tx.overwrite(name, df, where, partitions))

    def delete(self, name: Name, where: Where, mode: Mode = "predicate") -> Commit:
        """Remove the rows for which `where` (text in the SQL subset, or a predicate) is TRUE; where there are none,
        nothing happens. `mode`: "predicate" hides them in their files, "rewrite" writes those files anew."""
        return self._single(lambda tx: tx.delete(name, where, mode))

    def update(self, name: Name, set: Mapping[str, Any], where: Where, mode: Mode | None = None) -> Commit:
        """Give columns other values in the rows for which `where` is TRUE ("TRUE": all).

        `set`: columns to expressions in the columns as they were: Spark's SQL as text (`{"n": "n + 1", "state":
        "'paid'"}`), or Spark columns; other Python values are themselves, a datetime without a zone a TIMESTAMP_NTZ.
        Each gives a row its value of that row alone: InvalidInput names the column, before anything is written, where
        there is an aggregate, a window function, a subquery, or what gives several rows or none (`explode`). All are
        computed once a row, so that `rand()` and `uuid()` are in the table, in its changes and for every reader what
        they were then. `mode`:
        "predicate" hides the old rows and adds the new, "rewrite" writes their files anew; left out, whichever is
        cheaper: from a fifth of the rows of the files on, the second.
        """
        return self._single(lambda tx: tx.update(name, set, where, mode))

    def merge(
        self,
        name: Name,
        df: DataFrame,
        on: str | Sequence[str],
        matched: Matched = "update",
        unmatched: Unmatched = "insert",
        mode: Mode | None = None,
    ) -> Commit:
        """Update, delete or leave the rows whose key is in `df`, and insert the rows of `df` whose key is new.

        `df` is run once, into files. Columns that it lacks keep their values in rows that are updated, and take their
        default in rows that are inserted. `on`: the columns of the key. NULL equals nothing: a row of `df` without a
        key is inserted. InvalidInput (`bad_data`) names a key that is in `df` twice. `mode`: as of `update`.
        """
        return self._single(lambda tx: tx.merge(name, df, on, matched, unmatched, mode))

    def import_table(
        self, name: Name, path: str | os.PathLike[str], format: Format = "parquet", **rest: Any
    ) -> Imported:
        """Copy a Parquet folder, a Delta or an Iceberg table, in one commit: `alpheus.Catalog.import_table`, with its
        arguments. Spark has no part in it, all rows go through this process. For a huge source `spark.read` and
        `append` are the way: Spark reads it in parallel, but begins anew where it is interrupted."""
        return self.catalog.import_table(name, path, format, **rest)

    def append_files(self, name: Name, paths: FilePath | Sequence[FilePath]) -> Commit:
        """Add the rows of Parquet files that are there already; see `alpheus.Catalog.append_files`, which does it."""
        return self.catalog.append_files(name, paths)

    @overload
    def compact(
        self, name: Name, target_size: int | None = None, dry_run: Literal[False] = False
    ) -> Commit: ...

    @overload
    def compact(self, name: Name, target_size: int | None, dry_run: Literal[True]) -> CompactionPlan: ...

    @overload
    def compact(
        self, name: Name, target_size: int | None = None, *, dry_run: Literal[True]
    ) -> CompactionPlan: ...

    def compact(
        self, name: Name, target_size: int | None = None, dry_run: bool = False
    ) -> Commit | CompactionPlan:
        """Write small files together anew, files with deleted rows without them, and files that are not in the table's
        order in it. Readers see the same rows; appends and deletes by others do not conflict.

        `target_size`: bytes of a file, 128 MiB by default. `dry_run`: nothing is written, and what would be is returned
        (`.explain()`). Nothing to do: nothing happens. All that is chosen is shuffled once.
        """
        if not dry_run:
            return self._single(lambda tx: tx.compact(name, target_size))
        with self.transaction() as tx:
            return tx.compact(name, target_size, dry_run=True)

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

    def _single(self, step: Callable[[SparkTransaction], object]) -> Commit:
        with self.transaction() as tx:
            step(tx)
        return tx.result or self._nothing()

    def _nothing(self) -> Commit:
        now = self.catalog.at(None).info
        return Commit(version=now.version, transaction_id="", created_at=now.created_at)


def _unreachable(url: str) -> InvalidInput:
    return InvalidInput(
        f"the catalog {shown(url)} lives in the memory of one process, which Spark's cannot reach",
        kind="storage_unreachable",
        hint="use a catalog on storage, for example file:///lake",
    )
