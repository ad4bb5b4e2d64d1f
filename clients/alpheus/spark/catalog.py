"""`SparkCatalog`: the tables of a catalog as DataFrames. Reads are pinned to a version, and writes commit."""

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
from alpheus.catalog import Catalog, Snapshot, Transaction, check_rows
from alpheus.importing.results import Format, Imported
from alpheus.models import Commit, Table
from alpheus.pipeline.jobs import Job
from alpheus.pipeline.work import Work
from alpheus.rows.manifest_files import FileLists
from alpheus.session.arguments import Name, When, parse_name, parse_when
from alpheus.session.connections import DAEMON_SCHEMES, scheme_of
from alpheus.session.leases import lease_millis
from alpheus.spark.files import file_scan, writes
from alpheus.spark.files.locations import is_connect, refuse_static_token, set_up_store
from alpheus.spark.files.probe import Problem, Report, probe, report_of
from alpheus.spark.files.schemas import check_fits, quoted
from alpheus.spark.job_run import JobRun
from alpheus.spark.streams import frames
from alpheus.spark.streams.sink import BatchFunction
from alpheus.spark.streams.source import AlpheusSource, check_start, check_stream, version_of
from alpheus.spark.tables import scan
from alpheus.spark.tables.lake import Lake, name_missing_files, require_native
from alpheus.spark.tables.reader import PinnedReader, open_version
from alpheus.spark.tables.scan import Where
from alpheus.spark.tables.transaction import SparkTransaction
from alpheus.spark.workers.check import check_workers
from alpheus.sync.portal import run
from alpheus.transactions.append_files import FilePath
from alpheus.transactions.compaction import CompactionPlan
from alpheus.transactions.merge import Matched, Unmatched
from alpheus.transactions.row_changes import Mode
from alpheus_journal.errors import AlreadyExists, Conflict, InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.model.answers import Tag
from alpheus_journal.rooted_storage import DataRoots
from alpheus_journal.urls import redact_url

T = TypeVar("T")

ATTEMPTS_MAX = 1000
HELD_VERSIONS_MAX = 16
"""The greatest number of versions that a SparkCatalog leases: the last ones from which frames were made."""


def doctor(spark: SparkSession, catalog: Catalog | str) -> Report:
    """Return what a look at a session and a catalog found: jars, Python, pyarrow, endpoint, credentials, clocks, and
    whether driver and workers see the same data (`alpheus spark doctor`).

    Small files are stored below `data/selftest/` and removed. Raises what opening the catalog raises; what Spark lacks
    is told in the report.
    """
    opened = alpheus.connect(catalog) if isinstance(catalog, str) else catalog
    try:
        lake = SparkCatalog(spark, opened, lease=False)
        return probe(spark, lake.storage)
    except InvalidInput as error:
        return report_of(spark, opened.url, [Problem(where="driver", message=error.message, hint=error.hint)])
    finally:
        if opened is not catalog:
            opened.close()


class SparkCatalog(Lake):
    """The native tables of a catalog, read and written by Spark.

    `catalog` is a Catalog, or the URL of one, which `close` then closes. The session gets the settings that it needs
    (`file_scan.SETTINGS`), and each read and write checks that they are still set. Raises InvalidInput
    (`storage_unreachable`) when Spark cannot reach the data, as with `memory://`.

    A DataFrame is pinned: it refers to the files of one version, and later commits do not change it. The last 16
    versions from which frames were made are leased until `close`, so that their files are not collected, though the
    versions may expire. `at` leases its version as long as the reader is open. `lease` is that of `alpheus.Catalog.at`,
    for all of these. None means to take leases where the storage can be written, and otherwise to do without, with one
    warning. Changes and streams read the log, and have no lease.
    """

    def __init__(
        self, spark: SparkSession, catalog: Catalog | str, lease: bool | float | None = None
    ) -> None:
        lease_millis(lease)  # check the argument before anything is opened
        self._lease = lease
        self._held: OrderedDict[tuple[int, When], Snapshot] = OrderedDict()
        self._holding = threading.Lock()
        if isinstance(catalog, str) and catalog.startswith("memory:"):
            raise _unreachable(catalog)
        self.spark = spark
        self._owned = isinstance(catalog, str)
        self.catalog = alpheus.connect(catalog) if isinstance(catalog, str) else catalog
        try:
            self.storage = self.catalog.storage()
            self.roots = DataRoots(self.storage)
            if self.storage.url.startswith("memory:"):
                raise _unreachable(self.storage.url)
            set_up_store(spark, self.storage)
            file_scan.set_up(spark, self.storage)
            spark.dataSource.register(AlpheusSource)
        except BaseException:
            self.close()
            raise
        self.lists = FileLists(self.storage, run)

    def __repr__(self) -> str:
        return f"<SparkCatalog {redact_url(self.catalog.url)}>"

    def close(self) -> None:
        """Give up the leases of frames, and close the catalog if this object opened it. Idempotent."""
        with self._holding:
            while self._held:
                self._held.popitem()[1].close()
        if hasattr(self, "roots"):  # else the catalog's storage cannot be reached
            run(self.roots.close())
        if self._owned:
            self.catalog.close()

    def is_up(self) -> bool:
        """Return whether Spark still answers: its JVM is alive and its context was not stopped."""
        try:
            if is_connect(self.spark):
                return bool(self.spark.version)
            return not self.spark.sparkContext._jsc.sc().isStopped()
        except Exception:  # errors of many types: the context was stopped, or no server answers
            return False

    def check_can_serve(self) -> None:
        """Raise InvalidInput (`bad_configuration`) where the AWS session token of this process is one that nobody
        renews."""
        refuse_static_token(self.storage, "this pipeline")

    # -- reading

    def read(
        self, name: Name, at: When = None, where: Where | None = None, columns: Sequence[str] | None = None
    ) -> DataFrame:
        """Return the rows of a native table at one version, by default the head at the time of the call.

        `where` is text in the SQL subset, or a predicate, and selects rows for which it is TRUE. Spark's Parquet reader
        reads the files in the catalog's list, and filters and columns of later steps reach it. Only `where` prunes
        files by their statistics; see `explain`. Rows come in no particular order, because Spark does not know the
        table's sort order: use `orderBy`. `alpheus.Scan.ordered` merges sorted files without Spark.
        """
        table = self._table(name, at)
        held = self._hold(table.version, at)
        if held is not None or at is not None:
            check_rows(held or open_version(self.catalog, table.version, at), [table])
        with name_missing_files(self, lambda: table):
            return self.frame(table.definition, columns, where)

    def explain(self, name: Name, where: Where | None = None, at: When = None) -> str:
        """Return which files `read` with the same arguments opens and which it skips, and why: totals, then a line for
        each file."""
        return scan.plan_of(self.lists, self._table(name, at).definition, where).explain()

    def _table(self, name: Name, at: When) -> Table:
        table = (self.catalog if at is None else self.catalog.at(at)).load_table(name)
        require_native(table.definition)
        return table

    def _hold(self, version: int, at: When = None) -> Snapshot | None:
        """Lease the version of `at`, from which a frame is made, while it is among the last `HELD_VERSIONS_MAX`. Return
        the version with its lease; None where no lease is wanted."""
        if self._lease is False:
            return None
        with self._holding:
            # A tag of chosen objects may have tables of other versions, too.
            key = version, at if isinstance(parse_when(at), Tag) else None
            held = self._held.get(key)
            if held is None or held.has_lost_lease():
                self._held[key] = open_version(self.catalog, version, at, lease=self._lease)
                if held is not None:
                    held.close()
            self._held.move_to_end(key)
            while len(self._held) > HELD_VERSIONS_MAX:
                self._held.popitem(last=False)[1].close()
            return self._held[key]

    def at(
        self, when: When = None, branch: str | None = None, lease: bool | float | None = None
    ) -> PinnedReader:
        """Return a reader of one version, for any number of tables; close it. `lease` is that of `alpheus.Catalog.at`;
        None means as for this SparkCatalog."""
        wanted = self._lease if lease is None else lease
        return PinnedReader(self, self.catalog.at(when, branch, lease=wanted))

    def system(
        self,
        name: str,
        at: When = None,
        names: str | Iterable[str] | None = None,
        after: int | None = None,
    ) -> DataFrame:
        """Return a system table (`log`, `changes`, `objects`, `files`, `pipelines`, `subscriptions`, `tags`) at one
        version; see `alpheus.Catalog.system`. Its rows pass through the driver."""
        return self.spark.createDataFrame(self.catalog.system(name, at, names, after))

    def temp_view(
        self, name: Name, as_: str | None = None, at: When = None, where: Where | None = None
    ) -> str:
        """Make a temporary view of the rows at one version, and return its name: `as_`, or the table's name without its
        namespace.

        An existing view of that name is replaced. The view stays at that version.
        """
        view = as_ or parse_name(Kind.TABLE, name).name
        self.read(name, at, where).createOrReplaceTempView(quoted(view))
        return view

    # -- what changed

    def changes(self, name: Name, after: When = None, until: When = None) -> DataFrame:
        """Return the rows that were inserted and deleted in (after, until], with `_change_type` (insert, delete,
        update_preimage, update_postimage), `_commit_version`, `_commit_timestamp` and `_transaction_id`.

        `after` and `until` are versions or times, as in `at`. `after` None means since the table was created, and
        `until` None means the head. Changes are not netted, and rows have the columns at `until`. The table is followed
        under its former names. Raises Expired with the oldest version when some of the changes have expired, NotFound
        (`no_version`) above the head, and InvalidInput (`table_replaced`) when another table, dropped since, had the
        name.
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
        """Return a streaming frame of the rows that are appended to a table. With `changes`, return all changes, with
        the columns of the method `changes`.

        - `start`: "snapshot" (all rows, then appended rows), "now", or the version, tag or time after which the stream
          begins.
          A query that resumes from a checkpoint begins there.
        - `on_delete`: a commit that removes rows fails the query. With "skip" the commit is skipped, together with the
          rows that it added.
        - `max_files`, `max_versions`: limits of a batch.
        - `on_expired`: when the position of a checkpoint has expired, the query fails. With "snapshot" it gets all rows
          again.

        A query fails when the table's columns change in more than their names, and continues with the new columns when
        it is started again. It follows the table by its id. A query that resumes from a checkpoint may even use a
        former name of the table, unless another table has that name now. Compactions are skipped, and so is a restore
        of the same rows. Python workers read the rows; `alpheus.spark.streams.source` says what that costs. Raises
        InvalidInput or NotFound for a stream that could not begin; later errors end the query.
        """
        parsed = parse_name(Kind.TABLE, name)
        if "." in parsed.name:
            raise InvalidInput(
                f"{parsed} has a dot in its name, and streams cannot find such tables", kind="not_supported"
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
        """Return the changes of the catalog as a streaming frame: version, created_at, transaction_id, principal,
        message, kind, name, change_type (created, updated, dropped), action_type, path_before, path_after.

        There is a row for each action, and one for each of its side effects. `after` is a version, an `Event.token` or
        "now"; None means all events that are kept.
        """
        if isinstance(after, str) and after != "now" and not after.isdecimal():
            after = version_of(self.catalog, after)
        check_start(self.catalog, after)
        return self._source({"feed": "events", **({"start": after} if after == "now" else {"after": after})})

    def _source(self, options: Mapping[str, object]) -> DataFrame:
        given = {key: str(value) for key, value in options.items() if value is not None}
        return self.spark.readStream.format("alpheus").options(**self.source_options(), **given).load()

    def source_options(self) -> dict[str, str]:
        """Return the options with which Spark's own `format("alpheus")` finds this catalog.

        The first call in an application runs a small job (`alpheus.spark.workers.check`). Raises InvalidInput
        (`bad_configuration`) that names a worker which cannot import the library.
        """
        check_workers(self.spark)
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
        """Start a query that appends the rows of a streaming frame to a table, each batch exactly once and in one
        commit.

        The table remembers the last batch of each checkpoint, so a batch that is repeated after a crash is not written
        again. `trigger` is "available_now", an interval ("10 seconds"), or the arguments of Spark's `trigger`. With
        `output_mode` "complete" each batch replaces all rows. Raises InvalidInput (`bad_data`) that names a column, and
        starts nothing, if the frame has columns or types that do not fit the table.
        """
        if output_mode not in ("append", "complete"):
            raise InvalidInput(f"output_mode={output_mode!r} is neither append nor complete")
        writes.check_frame(df)
        if not df.isStreaming:
            raise InvalidInput("the data frame is not a stream", kind="bad_data", hint="write it with append")
        table = self.catalog.load_table(name)
        check_fits(df.schema, require_native(table.definition).columns)

        def write(tx: SparkTransaction, batch: DataFrame) -> None:
            found = tx.catalog.load_table(name)
            if found.id != table.id:
                raise InvalidInput(
                    f"table {table.full_name} was dropped and created again; the query writes the one of id {table.id}",
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
        ends = isinstance(trigger, Mapping) and bool(trigger.get("availableNow") or trigger.get("once"))
        if trigger != "available_now" and not ends:
            refuse_static_token(self.storage, "this query")
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
        """Return a function for `foreachBatch` that calls `fn(tx, batch)` in one transaction a batch. Each batch
        commits exactly once, also when Spark repeats it.

        `tx` may read and write several tables, and different ones in each batch and attempt. `fn` runs again after a
        retryable Conflict, so persist a batch that is expensive to compute. A batch is identified by the query's
        checkpoint and its number. The transaction's idempotency key remembers it as long as its version is kept, and
        the tables whose rows it wrote remember it for ever. A batch without effect is not remembered.

        A query that writes its batches in several transactions must give each of them its own `name`, and keep these
        names. A second transaction under the same name raises InvalidInput (`sequence_reused`), because the batch is
        already committed.
        """
        if is_connect(self.spark):
            raise InvalidInput(
                "Spark Connect runs the function of a batch in another process, which cannot use a transaction of this"
                " one",
                kind="not_supported",
                hint='use df.writeStream.format("alpheus").options(**lake.source_options()).option("table", name),'
                " which writes each batch once, or a session without Connect",
            )
        return BatchFunction(
            self.catalog, lambda tx, batch: fn(SparkTransaction(self, tx), batch), attempts, name
        )

    # -- pipelines

    def job_run(
        self, job: Job, work: Work, tx: Transaction, *, attempt: int, params: Mapping[str, str]
    ) -> JobRun:
        """Return the run with which a job's function is called, to do `work` in the transaction; see
        `alpheus.pipeline`."""
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
        """Create a native table with a Spark schema (or DDL text), or with a DataFrame's schema and rows, in one
        commit. Columns that cannot be NULL in a DataFrame become NOT NULL, except lists, maps and structs.

        `partition_by`, `sort_by` and `defaults` are those of `alpheus.Catalog.create_table`. Raises AlreadyExists,
        unless `exist_ok` is set, which leaves an existing table unchanged and writes no data.
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
        """Add the rows of `df`. Without rows nothing is committed; see `Commit`."""
        return self._single(lambda tx: tx.append(name, df))

    def overwrite(
        self, name: Name, df: DataFrame, where: Where | None = None, partitions: Any = None
    ) -> Commit:
        """Replace all rows by those of `df`, which may have none.

        With `where` or `partitions`, replace only those rows. `partitions` is a DataFrame or a list of dicts of
        partition keys, or a mapping of keys to lists; a DataFrame without rows replaces nothing. Rows of `df` outside
        the replaced part are refused as `bad_data`. Files with no other rows are removed. In other files a predicate
        hides the rows, or, from a fifth of their rows on, the files are rewritten.
        """
        return self._single(lambda tx: tx.overwrite(name, df, where, partitions))

    def delete(self, name: Name, where: Where, mode: Mode = "predicate") -> Commit:
        """Remove the rows for which `where` (text in the SQL subset, or a predicate) is TRUE. Without such rows nothing
        is committed. `mode` "predicate" hides the rows in their files, and "rewrite" rewrites these files."""
        return self._single(lambda tx: tx.delete(name, where, mode))

    def update(self, name: Name, set: Mapping[str, Any], where: Where, mode: Mode | None = None) -> Commit:
        """Set columns to other values in the rows for which `where` is TRUE. "TRUE" means all rows.

        - `set` maps columns to expressions over the old values: text in Spark's SQL (`{"n": "n + 1", "state":
          "'paid'"}`), or Spark columns. Other Python values are literals, and a datetime without a zone is a
          TIMESTAMP_NTZ. Each expression uses one row alone. An aggregate, a window function, a subquery, or a function
          that returns several rows or none (`explode`) raises InvalidInput, which names the column, before anything is
          written. Expressions are computed once a row, so `rand()` and `uuid()` have the same value in the table, in
          its changes and for every reader.
        - `mode`: "predicate" hides the old rows and adds the new ones, "rewrite" rewrites their files. By default the
          cheaper one is chosen: "rewrite" from a fifth of the files' rows on.
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

        `df` is run once, into files. Columns that `df` lacks keep their values in updated rows, and get their default
        in inserted rows. `on` names the columns of the key. NULL equals nothing, so a row of `df` without a key is
        inserted. Raises InvalidInput (`bad_data`) that names a key which is in `df` twice. `mode` is that of `update`.
        """
        return self._single(lambda tx: tx.merge(name, df, on, matched, unmatched, mode))

    def import_table(
        self, name: Name, path: str | os.PathLike[str], format: Format = "parquet", **rest: Any
    ) -> Imported:
        """Copy a Parquet folder, a Delta table or an Iceberg table in one commit; see `alpheus.Catalog.import_table`.

        Spark is not involved: all rows pass through this process. For a huge source use `spark.read` and `append`.
        Spark then reads in parallel, but starts again from the beginning when it is interrupted.
        """
        return self.catalog.import_table(name, path, format, **rest)

    def append_files(self, name: Name, paths: FilePath | Sequence[FilePath]) -> Commit:
        """Add the rows of existing Parquet files; see `alpheus.Catalog.append_files`, which this calls."""
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
        """Merge small files, rewrite files with deleted rows without these, and sort files that are not in the table's
        order. Readers see the same rows. Appends and deletes by other writers do not conflict.

        `target_size` is the size of a file in bytes, by default 128 MiB. With `dry_run` nothing is written, and the
        plan is returned (`.explain()`). If there is nothing to do, nothing is committed. All rows of the chosen files
        are shuffled once.
        """
        if not dry_run:
            return self._single(lambda tx: tx.compact(name, target_size))
        with self.transaction() as tx:
            return tx.compact(name, target_size, dry_run=True)

    def transaction(
        self,
        isolation: str | None = None,
        message: str = "",
        properties: Mapping[str, str] | None = None,
        branch: str = "main",
        key: str | None = None,
        writer: tuple[str, int] | None = None,
        id: str | None = None,
    ) -> SparkTransaction:
        """Begin a transaction: after `with lake.transaction() as tx:` all verbs on `tx` commit together when the block
        ends without an exception. The arguments are those of `alpheus.Catalog.transaction`."""
        return SparkTransaction(
            self, self.catalog.transaction(isolation, message, properties, branch, key, writer, id)
        )

    def resume(self, id: str) -> SparkTransaction:
        """Return a saved transaction, whether it was saved with Spark or not; see `alpheus.Catalog.resume`."""
        return SparkTransaction(self, self.catalog.resume(id))

    def retry(
        self,
        fn: Callable[[SparkTransaction], T],
        attempts: int = 5,
        isolation: str | None = None,
        message: str = "",
        properties: Mapping[str, str] | None = None,
        branch: str = "main",
        key: str | None = None,
        writer: tuple[str, int] | None = None,
    ) -> T:
        """Run `fn(tx)` in a transaction, and run it again in a new one after a retryable Conflict. Returns what `fn`
        returned in the attempt that committed. Raises the Conflict of the last attempt."""

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
        f"the catalog {redact_url(url)} is in the memory of one process, which Spark's processes cannot reach",
        kind="storage_unreachable",
        hint="use a catalog on storage, for example file:///lake",
    )
