"""The synchronous client: `connect`, `create`, `Catalog`.

A thin front over `alpheus.aio`: one event loop in one background thread of the process does the work, and each
call waits for its result. `python -m alpheus.sync` writes the verbs that only forward;
tests/clients/test_public_surface.py holds both fronts to the same methods, signatures and docstrings. The module is
long because much of it is generated, and because snapshots and transactions make and name their catalog.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from alpheus import aio
from alpheus.callables import check_plain, refuse_unrun
from alpheus.closing import Closing
from alpheus.display import Cells, Facts, Shown
from alpheus.events.events import After
from alpheus.importing.results import Format, Imported, ImportProgress
from alpheus.models import (
    Change,
    Checkpoint,
    CheckReport,
    Collection,
    Commit,
    Dropped,
    Event,
    Expiry,
    Info,
    Lease,
    LogEntry,
    Outcome,
    SavedTransaction,
    Table,
    Upgraded,
    VersionInfo,
)
from alpheus.rows.scan import Where
from alpheus.session.arguments import TXN_TTL_DEFAULT, AnyName, Name, NamespaceText, Span, When
from alpheus.session.snapshot import check_rows as check_rows_at
from alpheus.session.snapshot import reference_of, snapshot_facts
from alpheus.session.table_starts import starts_at_head
from alpheus.sync.portal import Iteration, run
from alpheus.sync.reads import SyncReads
from alpheus.sync.replica import Replica
from alpheus.sync.scan import Scan, SyncPinnedReads
from alpheus.sync.subscription import Subscription, Subscriptions
from alpheus.sync.symbols import Symbols
from alpheus.sync.tags import Tags
from alpheus.sync.writes import SyncWrites
from alpheus.transactions.core import TransactionCore
from alpheus.transactions.transaction import AsyncTransaction
from alpheus_journal import format as fmt
from alpheus_journal.errors import Conflict, InvalidInput
from alpheus_journal.model.answers import Pinned
from alpheus_journal.model.definitions import InputPosition, JobDeclaration, Segment
from alpheus_journal.model.operations import Operation
from alpheus_journal.storage import Storage
from alpheus_journal.urls import redact_url

T = TypeVar("T")
R = TypeVar("R")


# --- snapshot, transaction, catalog ----------------------------------------------------------------


class Snapshot(Shown, SyncPinnedReads, Closing):
    """The catalog at one version. It can be read for as long as the version is kept or, with a lease, for as long as
    the lease is held. A context manager that gives the lease up. A lease belongs to the process that took it."""

    def __init__(self, catalog: Catalog, core: aio.AsyncSnapshot) -> None:
        self._catalog = catalog
        self._at = core.info
        self._reference = reference_of(core)
        self._leased = core if core.is_leased else None
        self._pid = os.getpid()

    def close(self) -> None:
        """Give the lease up, if the snapshot has one; the snapshot continues without a lease. Idempotent."""
        if self._leased is not None and self._pid == os.getpid():
            run(self._leased.close())

    def _title(self) -> str:
        return f"{self.version} of {redact_url(self._catalog.url)}"

    def _facts(self) -> Facts:
        return snapshot_facts(self._at, self.is_leased)

    @property
    def version(self) -> int:
        return self._at.version

    @property
    def info(self) -> VersionInfo:
        """The time of the version, and the token from which events after the version can be followed."""
        return self._at

    @property
    def is_chosen(self) -> bool:
        """Whether the snapshot is of a tag of chosen objects, and shows these alone."""
        return isinstance(self._reference, Pinned) and self._reference.is_chosen

    @property
    def is_leased(self) -> bool:
        """Whether the snapshot has a lease. A lease that has run out counts."""
        return self._leased is not None and self._pid == os.getpid() and self._leased.is_leased

    def has_lost_lease(self) -> bool:
        """Return True when the snapshot's lease has run out. Asks the storage where the lease was not renewed in
        time."""
        return self.is_leased and run(self._reads().has_lost_lease())

    def _reads(self) -> aio.AsyncSnapshot:
        if self._leased is not None and self._pid == os.getpid():
            return self._leased
        return aio.snapshot_of(self._catalog._core(), self._at, self._reference)


class Transaction(Shown, SyncPinnedReads, SyncWrites[None]):
    """Operations that commit together when the block ends without an exception.

    Reads come from `version`, which is pinned when the block begins, with the transaction's own writes on top. `id` is
    fixed then, too; the transaction's data files are stored in a folder of this name. After the block `result` is the
    Commit, or None when there was nothing to commit. An exception abandons the transaction; files written for it are
    left to collection.
    """

    def __init__(self, core: AsyncTransaction) -> None:
        self._tx = core
        self._pid = os.getpid()

    def _title(self) -> str:
        return self._tx._title()

    def _facts(self) -> Facts:
        return self._tx._facts()

    def _cells(self) -> Cells:
        return self._tx._cells()

    def __enter__(self) -> Transaction:
        run(self._core().__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abandon()
        else:
            run(self._core().__aexit__(None, None, None))

    @property
    def id(self) -> str:
        return self._tx.id

    @property
    def result(self) -> Commit | None:
        return self._tx.result

    def abandon(self) -> None:
        """End the transaction without a commit. Idempotent."""
        self._tx.abandon()

    def _core(self) -> AsyncTransaction:
        if self._pid != os.getpid():
            raise InvalidInput(
                f"transaction {self._tx.id} belongs to the process that began it",
                hint="begin one in this process",
            )
        return self._tx

    def _reads(self) -> AsyncTransaction:
        return self._core()

    def _writes(self) -> AsyncTransaction:
        return self._core()

    # -- generated from AsyncTransaction by `python -m alpheus.sync`

    @property
    def version(self) -> int:
        """The version that reads come from, and against which the commit is checked."""
        return self._tx.version

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations that a commit would record now."""
        return self._tx.operations

    def add_properties(self, properties: Mapping[str, str]) -> None:
        """Add properties to the transaction, such as facts that are known only after it began. A key that exists
        already gets the new value."""
        self._core().add_properties(properties)

    def commit(self) -> Commit | None:
        """Commit and end the transaction, as a clean exit of the block does. Raises what `Access.commit` raises."""
        return run(self._core().commit())

    def save(self) -> str:
        """End the transaction in this process, and save it on storage for `resume(id)` in any process. Returns its id.

        A saved transaction lasts for the catalog's `txn_ttl` from its begin. A process that resumed it may save
        it again; the last save wins. The first process that commits or discards it decides its outcome.
        """
        return run(self._core().save())

    def append_segments(self, name: Name, segments: Sequence[Segment], table_id: str | None = None) -> None:
        """Add rows that are stored already, given as manifest segments of this transaction's own files.

        `table_id` is the table for which the files were written; by default the table that has the name now.
        """
        run(self._core().append_segments(name, segments, table_id))

    def overwrite_segments(
        self, name: Name, segments: Sequence[Segment], table_id: str | None = None
    ) -> None:
        """Replace all rows by those of manifest segments. An empty sequence leaves the table without rows."""
        run(self._core().overwrite_segments(name, segments, table_id))

    def advance_pipeline(
        self,
        name: str,
        job: str,
        expected_transaction_id: str,
        pinned_version: int,
        inputs: Mapping[str, InputPosition] | None = None,
        state: str = "running",
        error: str = "",
        params: Mapping[str, str] | None = None,
        called_at_millis: int = 0,
        declaration: JobDeclaration | None = None,
        former_job: str = "",
        expected_pipeline_id: str | None = None,
    ) -> None:
        """Move a job's position. Raises Conflict (`position_moved`) unless the job's last transaction and the
        pipeline's id are the expected ones.

        - `expected_transaction_id`: "" means that the job never ran.
        - `expected_pipeline_id`: "" means that the pipeline has no entry yet; None accepts any entry.
        - `declaration`: the tables with which the job is declared; None keeps the recorded ones.
        - `former_job`: the job's former name, whose position becomes this job's. Raises NotFound (`no_job`) when no
          job has the former name, and InvalidInput when both jobs exist.
        """
        run(
            self._core().advance_pipeline(
                name,
                job,
                expected_transaction_id,
                pinned_version,
                inputs,
                state,
                error,
                params,
                called_at_millis,
                declaration,
                former_job,
                expected_pipeline_id,
            )
        )

    def rename_pipeline(self, name: str, new_name: str) -> None:
        """Give a pipeline another name. Its positions and its id stay. Raises NotFound, and AlreadyExists
        (`pipeline_exists`)."""
        run(self._core().rename_pipeline(name, new_name))


class Admin:
    """Administration of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @property
    def subscriptions(self) -> Subscriptions:
        """Durable subscriptions: `list`, `load`, `create`, `delete`, `reset`."""
        return Subscriptions(lambda: self._catalog._core().admin.subscriptions)

    @property
    def symbols(self) -> Symbols:
        """The list of all live objects' names: `list`, `reload`, `check`, `compact`."""
        return Symbols(lambda: self._catalog._core().admin.symbols)

    # -- generated from AsyncAdmin by `python -m alpheus.sync`

    def checkpoint(self, verify: bool = False) -> Checkpoint:
        """Store what a daemon holds in memory, so that its next start maps a file instead of reading the tree. With
        `verify`, compare the memory with the tree first, however large the tree is."""
        return run(self._catalog._core().admin.checkpoint(verify))

    def check(self, after: int | None = None, footers: bool = False, values: bool = False) -> CheckReport:
        """Verify every invariant of the stored catalog. With `after`, check only versions above it.

        By default the check of a data file covers only its existence and size.

        - `footers`: also read the Parquet footer of each data file of the head, and compare it with the manifest: rows,
          columns, NULLs and bounds.
        - `values`: also read the whole files. This finds damaged pages: by checksums where the writer stored them, as
          this library and Spark do, otherwise only if a page cannot be decoded. It also finds wrong counts of NULLs and
          NaNs and wrong bounds. Of values in lists and maps it only checks that they can be read.

        Neither finds a file that was replaced by another with the same size, footer and statistics. This client reads
        the files itself, with a daemon or without, and raises InvalidInput (`storage_unreachable`) when it cannot.
        """
        return run(self._catalog._core().admin.check(after, footers, values))

    def upgrade(self, dry_run: bool = False) -> Upgraded:
        """Take the catalog to the newest revision of its format that this program knows.

        From the commit on, programs of earlier releases refuse the catalog, to read and to write, with the error
        `newer_format`: upgrade them first. No stored file is rewritten, and no catalog goes back. Repeating the call is
        safe. Through a daemon, the daemon must know the revision, too. With `dry_run` nothing is committed.

        The same commit gives the version before it a tag, `before-revision-2`. Delete the tag when nobody needs to look
        back. Raises AlreadyExists (`tag_exists`) where a tag of that name is another's.
        """
        return run(self._catalog._core().admin.upgrade(dry_run))

    def expire(
        self, older_than: Span = "7d", keep: int = 100, pipeline_hold: Span = "30d", dry_run: bool = False
    ) -> Expiry:
        """Let old versions expire, the lowest first. They can no longer be read by their number or time, and their
        events leave the log. Their files stay until `collect` deletes them.

        - `older_than`: only versions that were replaced by a newer one before this time expire.
        - `keep`: the newest versions never expire, whatever their age. The head never expires.
        - `pipeline_hold`: a job of a pipeline holds back versions that it has not read, but not for longer than this.
        - `dry_run`: change nothing, and return what would happen.

        Versions that a durable subscription in use or a saved transaction needs stay, too. So do versions that a table
        keeps for longer: by its properties `history.expire.max-snapshot-age-ms` and
        `history.expire.min-snapshots-to-keep`, or else by those of its namespace. A tag or a lease keeps its own
        version readable after the version has expired. Time spans are texts such as "7d" or "12h", timedeltas, or
        seconds. Repeating the call is safe. Raises InvalidInput (`bad_argument`; `upgrade_needed` in a catalog of
        revision 1), Corrupt where a subscription, pipeline, namespace or table that may need versions cannot be read
        (no version expires then), and Exhausted (`already_running`) while the daemon expires or collects for somebody
        else.
        """
        return run(self._catalog._core().admin.expire(older_than, keep, pipeline_hold, dry_run))

    def collect(
        self, minimum_age: Span = "72h", dry_run: bool = False, allow_short: bool = False
    ) -> Collection:
        """Delete files that nothing needs: no kept version, tag, lease, or saved transaction. These are files of
        expired versions, and files of writes that failed. Data files of tables whose own rules of history are short go
        before the versions that list them; see `Collection.earlier`.

        - `minimum_age`: younger files stay, and files of writes that hold a lease. It must be longer than the longest
          write without a lease takes, from its first uploaded file to its commit: a write that takes longer is refused
          (`upload_expired`) and must run again.
        - `dry_run`: delete nothing, and return what would happen.
        - `allow_short`: allow a minimum age below an hour. New transactions with new files are then refused for two
          minutes after the collection, so use it only when nobody writes.

        Repeating the call is safe. Raises InvalidInput (`bad_argument`; `minimum_age_short`; `upgrade_needed` in a
        catalog of revision 1), Corrupt where a file that may need others cannot be read (nothing is deleted then), and
        Exhausted (`already_running`) while the daemon expires or collects for somebody else.
        """
        return run(self._catalog._core().admin.collect(minimum_age, dry_run, allow_short))

    def leases(self) -> list[Lease]:
        """Return the leases of readers, by version, including expired and damaged ones."""
        return run(self._catalog._core().admin.leases())


class Catalog(Shown, SyncReads, SyncWrites[Commit], Closing):
    """One catalog. Reads see its head; every writing verb is a transaction of its own.

    A context manager; several threads may use it. The client retries a call that raises `Unavailable` within the
    timeout of `connect`; all attempts of a commit carry the same transaction id. In a forked child a catalog on
    storage opens its storage again at the first call. A catalog of a daemon raises InvalidInput in a forked child,
    because gRPC does not survive a fork.
    """

    def __init__(
        self, core: aio.AsyncCatalog, again: Callable[[], Coroutine[Any, Any, aio.AsyncCatalog]]
    ) -> None:
        self._catalog = core
        self._again = again
        self._pid = os.getpid()
        self._url = core.url
        self._inherited: list[aio.AsyncCatalog] = []  # those of parent processes; never used, never freed
        self._reopening = threading.Lock()
        self.admin = Admin(self)
        self.tags = Tags(lambda: self._core().tags)

    def _title(self) -> str:
        return redact_url(self._url)

    def _facts(self) -> Facts:
        return self._catalog._facts()

    @property
    def url(self) -> str:
        """The URL that opens this catalog again, also in another process."""
        return self._url

    def close(self) -> None:
        """Release connections. Idempotent; later calls of other methods raise InvalidInput."""
        if self._pid == os.getpid():
            run(self._catalog.close())

    def retry(
        self,
        fn: Callable[[Transaction], T],
        attempts: int = 5,
        isolation: str | None = None,
        message: str = "",
        properties: Mapping[str, str] | None = None,
        branch: str = "main",
        key: str | None = None,
        writer: tuple[str, int] | None = None,
    ) -> T:
        """Run `fn(tx)` in a transaction, again from scratch after a retryable Conflict.

        Returns what `fn` returned in the run that committed; raises the Conflict of the last attempt. `fn` must make a
        RecordBatchReader that it writes itself, because a reader gives its rows only once. Raises InvalidInput for an
        async `fn` of a synchronous catalog, and for a plain `fn` of an asynchronous catalog.
        """
        aio.check_attempts(attempts)
        check_plain("the function of retry", fn)
        for left in range(attempts - 1, -1, -1):
            try:
                with self.transaction(isolation, message, properties, branch, key, writer) as tx:
                    returned = fn(tx)
                    refuse_unrun("the function of retry", returned)
                    return returned
            except Conflict as conflict:
                if not conflict.retryable or not left:
                    raise
        raise AssertionError("an attempt ends or raises")

    def subscribe(
        self,
        name: str,
        namespaces: str | Iterable[str] | None = None,
        names: Name | Iterable[Name] | None = None,
        kinds: str | Iterable[str] | None = None,
        actions: str | Iterable[str] | None = None,
        details: bool | None = None,
        after: After = None,
        lease: float | None = None,
    ) -> Subscription:
        """Consume a durable subscription: a context manager and an iterator with `.acknowledge(event)`. Each event
        arrives at least once. One consumer is active at a time; the others stand by.

        A subscription that does not exist is created, with the filter (see `events`), `details`, and `lease`: after
        this number of seconds (30 by default) another consumer replaces a silent one. Where the subscription exists, an
        argument that differs from its setting raises InvalidInput, which names the setting; an argument that is left
        out accepts the setting. `after` is where a created subscription begins: None means with all kept versions,
        "latest" with the versions from now on.
        """
        core = self._core()
        return Subscription(
            lambda: core.subscribe(name, namespaces, names, kinds, actions, details, after, lease)
        )

    def _core(self) -> aio.AsyncCatalog:
        if self._pid != os.getpid():
            with self._reopening:
                if self._pid != os.getpid():
                    before = self._catalog
                    self._inherited.append(before)
                    self._catalog = run(self._again())
                    aio.session_of(self._catalog).note(aio.session_of(before).token)
                    self._pid = os.getpid()
        return self._catalog

    def _reads(self) -> aio.AsyncCatalog:
        return self._core()

    def _writes(self) -> aio.AsyncCatalog:
        return self._core()

    # -- generated from AsyncCatalog by `python -m alpheus.sync`

    def storage(self) -> Storage:
        """Return the storage where this client reads and writes data files.

        Raises InvalidInput (`storage_unreachable`) when this client cannot reach it."""
        return run(self._core().storage())

    def info(self) -> Info:
        """Return which catalog this is, where it is stored, and which versions it has."""
        return run(self._core().info())

    def version(self) -> int:
        """Return the head: the newest version. It includes every commit that was acknowledged before the call, unless
        `connect` allows a staleness."""
        return run(self._core().version())

    def properties(self, at: When = None) -> dict[str, str]:
        """Return the catalog's own properties at a version, tag or time; None means now. Raises what `at` raises."""
        return run(self._core().properties(at))

    def at(self, when: When, branch: str | None = None, lease: bool | float | None = False) -> Snapshot:
        """Return a snapshot of the catalog at a version, tag or time. The version is pinned, so all reads of the
        snapshot agree. Raises NotFound (`no_version`) above the head, NotFound (`no_tag`), and Expired below the oldest
        kept version. A tag is read for as long as it exists, also when its version has expired.

        `lease` keeps the files of the version from collection, even when the version expires meanwhile. It is a file
        on storage that this client renews in the background until the snapshot or this catalog is closed:

        - True means a lease of 600 seconds; a number means that many seconds, 1 to 86,400. A process that stood still
          for longer loses the lease, and its reads raise Expired (`lease_expired`).
        - Where the storage cannot be written, the call is refused.
        - None takes a lease where the storage can be written. Elsewhere the snapshot has no lease, and the call warns
          (`alpheus.Unleased`).
        """
        return Snapshot(self, run(self._core().at(when, branch, lease)))

    def read(
        self,
        name: Name,
        at: When = None,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return the rows of a native table as one Arrow table; its `.to_pandas()` gives a DataFrame.

        - `where`: a condition as text in the SQL subset, or a predicate.
        - `columns`: names, in the wanted order.
        - `limit`: the largest number of rows to return. Which rows these are is not defined; no more files are read
          than the limit needs.
        """
        return run(self._core().read(name, at, where, columns, limit))

    def scan(
        self,
        name: Name,
        at: When = None,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Scan:
        """Plan to read the same rows as `read`, without reading them yet. The scan gives the rows whole or batch by
        batch, counts them, or shows which files are pruned, and why."""
        return Scan(run(self._core().scan(name, at, where, columns, limit)))

    def import_table(
        self,
        name: Name,
        path: str | os.PathLike[str],
        format: Format = "parquet",
        version: int | str | None = None,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        append: bool = False,
        partition_types: Mapping[str, pa.DataType] | None = None,
        message: str = "",
        properties: Mapping[str, str] | None = None,
        key: str | None = None,
        resume: str | None = None,
        on_begin: Callable[[str], object] | None = None,
        on_progress: Callable[[ImportProgress], object] | None = None,
    ) -> Imported:
        """Copy a table of another system into a new native table, or with `append` into an existing one, in one commit.

        `path` is a local path, or a URL that pyarrow opens (`s3://bucket/path?endpoint_url=...&region=...`). Formats:

        - "parquet": a folder, a file or a pattern. Partition folders (`key=value/`) become columns of the types in
          `partition_types`; without a type, int32 where all values fit, otherwise text. Files are united by column
          names, with the wider type where types differ.
        - "delta" (extra `delta`): a table's folder, at `version`.
        - "iceberg" (extra `iceberg`): a metadata file, or a table's folder; `version` is a snapshot id, branch or tag.

        Deleted rows are not copied. A source that needs a feature which the import cannot read is refused.
        `partition_by` and `sort_by` are those of `create_table`; by default the table gets the source's partition
        keys, where native tables have such keys. A type that native tables lack becomes the next wider type.
        Nanoseconds become microseconds where this loses nothing. Times of day and durations are refused (`bad_schema`).

        `on_begin` receives the id of the import, a saved transaction. After a crash the same call with `resume` copies
        the remaining rows, unless the source changed (`source_changed`) or the catalog's `txn_ttl` has passed
        (`transaction_expired`), or a collection took copied files (`upload_expired`): the import's lease keeps them
        for about 20 minutes after the process ended. An import that cannot succeed is discarded, but not after
        Expired, which says how to go on. An import whose `key` has committed returns that commit (`duplicate`).

        All rows pass through this process and are counted against the source's own numbers. The commit's properties
        (`alpheus.import.*`) name the source. `on_progress` is called as rows are copied. Callbacks run in other
        threads; an exception of a callback ends the import.
        """
        return run(
            self._core().import_table(
                name,
                path,
                format,
                version,
                partition_by,
                sort_by,
                append,
                partition_types,
                message,
                properties,
                key,
                resume,
                on_begin,
                on_progress,
            )
        )

    def system(
        self, name: str, at: When = None, names: str | Iterable[str] | None = None, after: int | None = None
    ) -> pa.Table:
        """Return a system table: what the catalog records about itself, at a version, as an Arrow table. `name`:

        - "log" (transactions) and "changes": up to that version, and above `after`;
        - "objects", "files" (with the bounds of their columns), "pipelines" (one row a job), "subscriptions", "tags".

        `names` limits the rows to those of the named objects. It holds full names, in which `*` stands for any text
        and `?` for any character.
        """
        return run(self._core().system(name, at, names, after))

    def transaction(
        self,
        isolation: str | None = None,
        message: str = "",
        properties: Mapping[str, str] | None = None,
        branch: str = "main",
        key: str | None = None,
        writer: tuple[str, int] | None = None,
        id: str | None = None,
    ) -> Transaction:
        """Return a transaction for a `with` block. All its verbs commit together when the block exits cleanly.

        `isolation` is "snapshot" or "serializable"; None means the catalog's default, which is set at its creation.
        `id` is a version 7 uuid that the caller chose; by default the transaction gets a fresh one. With an id of the
        caller's, another process can ask for the outcome, and a block that runs again writes once: where the id has
        committed, the block sees the version at which it began the first time, and `result` is the recorded commit
        (`duplicate`). A block that asks for something else under the id is refused (`id_reused`). The block raises
        Expired where the version that may hold the id has expired.
        """
        return Transaction(self._core().transaction(isolation, message, properties, branch, key, writer, id))

    def replica(
        self, namespaces: str | Iterable[str] | None = None, staleness: float | None = None
    ) -> Replica:
        """Open a copy of the catalog in this process that follows the log. A read of the replica takes microseconds,
        and sees one known version. Close the replica after use; closing the catalog closes it, too.

        - `namespaces` limits the copy to these namespaces and their objects. Reads of other namespaces raise
          InvalidInput (`not_replicated`).
        - `staleness` is a number of seconds. Reads raise Unavailable (`replica_behind`) while the replica may lag
          behind by more. None means that reads never raise it; `lag` says how far behind the replica may be.
        """
        return Replica(run(self._core().replica(namespaces, staleness)))

    def events(
        self,
        after: After = None,
        until: int | None = None,
        follow: bool = False,
        namespaces: str | Iterable[str] | None = None,
        names: Name | Iterable[Name] | None = None,
        kinds: str | Iterable[str] | None = None,
        branch: str = "main",
        details: bool = False,
        actions: str | Iterable[str] | None = None,
    ) -> Iteration[Event]:
        """Iterate over versions as they were committed: in order, without a gap, each once. With `follow` the iteration
        waits for further versions and never ends.

        - `after` (exclusive) is a version, an `Event.token`, or None for all kept versions; `until` is inclusive.
          Raises Expired when history between them has expired.
        - `names` may be patterns ("sales.*").
        - `actions` are names of recorded actions ("TABLE_INSERT"). An event matches when one of these actions is on an
          object that the other filters match.
        """
        return Iteration(
            self._core().events(after, until, follow, namespaces, names, kinds, branch, details, actions)
        )

    def log(
        self, name: AnyName | None = None, after: int | None = None, until: int | None = None
    ) -> Iteration[LogEntry]:
        """Iterate over recorded transactions, newest first. `name` limits them to those that acted on this table
        ("namespace.name") or namespace (without a dot, or as a 1-tuple)."""
        return Iteration(self._core().log(name, after, until))

    def outcome(self, transaction_id: str, since: int | None = None, settle: bool = False) -> Outcome:
        """Return what became of a transaction id. `since` is its begin version, which bounds the search. With `settle`
        the call commits a cancellation of the id unless the id has committed; only then the answer is final."""
        return run(self._core().outcome(transaction_id, since, settle))

    def diff(self, a: When, b: When = None, details: bool = False) -> Iteration[Change]:
        """Iterate over the objects that differ between two versions, tags or times, in key order. The cost grows with
        the difference. `a` may be the newer one. With `details` a change has the definitions before and after."""
        return Iteration(self._core().diff(a, b, details))

    def list_dropped(self, namespace: NamespaceText | None = None, limit: int | None = None) -> list[Dropped]:
        """Return namespaces, tables and views that were dropped and do not exist now, the last dropped first, as far
        back as history is kept. `namespace` limits the list to this namespace and its objects. Reads one root a
        version until `limit` drops are found."""
        return run(self._core().list_dropped(namespace, limit))

    def resume(self, id: str) -> Transaction:
        """Return a transaction that some process saved with `save`, for a `with` block; see `transaction`.

        The block raises NotFound (`no_transaction`) when no saved transaction has the id, and Expired after its time.
        """
        return Transaction(self._core().resume(id))

    def list_saved(self) -> list[SavedTransaction]:
        """Return transactions that were saved, and neither committed nor discarded, oldest first."""
        return run(self._core().list_saved())

    def discard(self, id: str) -> Outcome:
        """Make sure that a saved transaction never commits, and remove its file. The outcome is "cancelled", or
        "committed" when the transaction had committed.

        The outcome is "unknown" when another writer of the format saved the transaction: only that writer decides
        whether it commits.
        """
        return run(self._core().discard(id))


def async_of(catalog: Catalog) -> aio.AsyncCatalog:
    """The asynchronous catalog below this one, for the rooms above. A forked child has its own."""
    return catalog._core()


def starts_of(catalog: Catalog) -> Mapping[str, int]:
    """The starts of tables at the head, by table id: older versions may lack the tables' data files."""
    return run(starts_at_head(aio.session_of(catalog._core())))


def check_rows(snapshot: Snapshot, tables: Iterable[Table]) -> None:
    """Check that the data files of tables are kept at a snapshot's version. Raises Expired (`files_expired`)."""
    run(check_rows_at(snapshot._reads(), tables))


def core_of(transaction: Transaction) -> TransactionCore:
    """The inside of a transaction, for the rooms above. InvalidInput in a forked child."""
    return transaction._core().core


def connect(
    url: str | None = None,
    *,
    create: bool = False,
    token: str | None = None,
    tls: object = None,
    timeout: float = 30,
    storage: str | Storage | None = None,
    staleness: float | None = None,
) -> Catalog:
    """Open the catalog behind a URL: `grpc://host:port` and `unix:///path.sock` are daemons, any other URL is storage.

    - `url`: by default the environment variable `ALPHEUS_CATALOG`.
    - `create` makes a catalog on storage that has none; a daemon always has one.
    - `timeout`: the number of seconds for which a call is retried while the catalog is unavailable.
    - `storage`: where data files are stored, when this is not the storage that the daemon names.
    - `staleness`: the number of seconds by which the head of a read may lag behind; within it, reads continue while
      the storage cannot be reached. None means that a read misses no acknowledged commit.

    Whatever the staleness, a reader never goes back behind a version that it has seen or committed. Raises NotFound
    (`no_catalog`), Unavailable after the timeout, and InvalidInput for a URL that names nothing.
    """
    core = run(
        aio.connect(
            url, create=create, token=token, tls=tls, timeout=timeout, storage=storage, staleness=staleness
        )
    )
    return Catalog(core, lambda: aio.connect(core.url, timeout=timeout, storage=storage, staleness=staleness))


def create(
    url: str | None = None,
    order: int = fmt.ORDER_DEFAULT,
    version_digits: int = 32,
    properties: Mapping[str, str] | None = None,
    format_revision: int = fmt.FORMAT_REVISION,
    *,
    namespace_name_bytes: int = fmt.NAME_SIZE_BYTES_DEFAULT,
    table_name_bytes: int = fmt.NAME_SIZE_BYTES_DEFAULT,
    view_name_bytes: int = fmt.NAME_SIZE_BYTES_DEFAULT,
    txn_ttl: Span = TXN_TTL_DEFAULT,
    isolation: str = "snapshot",
) -> Catalog:
    """Create a catalog on storage. Raises AlreadyExists (`catalog_exists`) when the storage has one.

    - `order`: the number of entries of a tree node.
    - `version_digits`: 64 for the dialect that the format's Java reader understands.
    - `format_revision`: programs of an earlier release can use the catalog if the revision is one that they know
      (`alpheus upgrade` raises the revision later).
    - `namespace_name_bytes`, `table_name_bytes`, `view_name_bytes`: the longest names in UTF-8, 1 to 1,024 bytes. Each
      key of the tree is padded to these lengths.
    - `txn_ttl`: how long a saved transaction lasts from its begin, one minute to ten years.
    - `isolation`: of transactions that name none, "snapshot" or "serializable".

    All but the properties and the revision stay as they are for ever.
    """
    core = run(
        aio.create(
            url,
            order,
            version_digits,
            properties,
            format_revision,
            namespace_name_bytes=namespace_name_bytes,
            table_name_bytes=table_name_bytes,
            view_name_bytes=view_name_bytes,
            txn_ttl=txn_ttl,
            isolation=isolation,
        )
    )
    return Catalog(core, lambda: aio.connect(core.url))
