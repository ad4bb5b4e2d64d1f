"""The asynchronous client: `connect`, `create`, `AsyncCatalog`.

`alpheus.Catalog` offers the same without `await`. A call means the same against a daemon and against storage.
The module is long because AsyncCatalog has one short method for each verb that needs no room of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

import msgspec
import pyarrow as pa

from alpheus.admin.admin import AsyncAdmin
from alpheus.admin.system_tables import system_table
from alpheus.admin.tags import AsyncTags
from alpheus.closing import AsyncClosing
from alpheus.display import Facts, Shown
from alpheus.events.consumer import AsyncSubscription
from alpheus.events.events import (
    After,
    diff,
    events,
    filter_of,
    list_saved,
    log,
    parse_after,
    parse_bound,
    parse_log_name,
    stream_dropped,
)
from alpheus.events.replica import AsyncReplica, open_replica
from alpheus.events.subscriptions import terms_of as subscription_terms
from alpheus.importing.results import Format, Imported, ImportProgress
from alpheus.model_conversions import info_of, outcome_of, version_info_of
from alpheus.models import (
    Change,
    Commit,
    Dropped,
    Event,
    Info,
    LogEntry,
    Outcome,
    SavedTransaction,
    VersionInfo,
)
from alpheus.rows.scan import AsyncScan, Where
from alpheus.session.arguments import (
    TXN_TTL_DEFAULT,
    AnyName,
    Name,
    NamespaceText,
    Span,
    When,
    check_isolation,
    check_limit,
    namespace_text,
    parse_name,
    parse_when,
    refuse_unsupported,
    span_millis,
    staleness_millis,
    texts,
)
from alpheus.session.connections import (
    DAEMON_SCHEMES,
    catalog_url,
    daemon_session,
    direct_session,
    journal_session,
    scheme_of,
)
from alpheus.session.leases import Leasing
from alpheus.session.pinned_reads import scan_table
from alpheus.session.reads import Reads
from alpheus.session.retry import RetryPolicy
from alpheus.session.session import Session
from alpheus.session.snapshot import AsyncSnapshot, reference_of
from alpheus.transactions.steps import Step
from alpheus.transactions.terms import TransactionTerms, terms_of
from alpheus.transactions.transaction import AsyncTransaction, commit_single
from alpheus.transactions.verbs import Writes
from alpheus_journal import format as fmt
from alpheus_journal.clock import claimed_principal
from alpheus_journal.errors import Conflict, InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import At, Loaded, Page
from alpheus_journal.model.answers import Tag as TagName
from alpheus_journal.storage import Storage, open_storage
from alpheus_journal.urls import redact_url

T = TypeVar("T")

__all__ = [
    "AsyncAdmin",
    "AsyncCatalog",
    "AsyncReplica",
    "AsyncScan",
    "AsyncSnapshot",
    "AsyncTransaction",
    "connect",
    "create",
]
ATTEMPTS_MAX = 1000


class AsyncCatalog(Shown, Reads, Writes[Commit], AsyncClosing):
    """One catalog. Reads see its head; every writing verb is a transaction of its own.

    An asynchronous context manager. The client retries a call that raises `Unavailable` within the timeout of
    `connect`; all attempts of a commit carry the same transaction id.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._leasing = Leasing(session)
        self.admin = AsyncAdmin(session)
        self.tags = AsyncTags(session)

    def _title(self) -> str:
        return redact_url(self.url)

    def _facts(self) -> Facts:
        # Only facts that the client has in memory: showing a catalog takes no time, and never fails.
        seen = self._session.seen_version
        return [
            ("newest version seen", seen if seen >= 0 else "none yet"),
            ("state", "closed" if self._session.is_closed else ""),
        ]

    @property
    def url(self) -> str:
        """The URL that opens this catalog again, also in another process."""
        return self._session.url

    async def close(self) -> None:
        """Release connections. Idempotent; later calls of other methods raise InvalidInput."""
        await self._session.close()

    async def storage(self) -> Storage:
        """Return the storage where this client reads and writes data files.

        Raises InvalidInput (`storage_unreachable`) when this client cannot reach it."""
        return await self._session.storage()

    # -- versions

    async def info(self) -> Info:
        """Return which catalog this is, where it is stored, and which versions it has."""
        return info_of(await self._session.info(), self.url)

    async def version(self) -> int:
        """Return the head: the newest version. It includes every commit that was acknowledged before the call, unless
        `connect` allows a staleness."""
        return (await self._session.resolve(self._session.recent)).version

    async def properties(self, at: When = None) -> dict[str, str]:
        """Return the catalog's own properties at a version, tag or time; None means now. Raises what `at` raises."""
        if at is None:
            return await super().properties()
        return await (await self.at(at)).properties()

    async def at(
        self, when: When, branch: str | None = None, lease: bool | float | None = False
    ) -> AsyncSnapshot:
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
        refuse_unsupported(branch=branch)
        at = parse_when(when)
        info = await self._session.resolve(self._session.recent if at is None else at)
        held = await self._leasing.take(info, lease, at if isinstance(at, TagName) else None)
        return AsyncSnapshot(self._session, version_info_of(info), held, info.reference)

    # -- rows

    async def read(
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
        return await (await self.scan(name, at, where, columns, limit)).to_arrow()

    async def scan(
        self,
        name: Name,
        at: When = None,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> AsyncScan:
        """Plan to read the same rows as `read`, without reading them yet. The scan gives the rows whole or batch by
        batch, counts them, or shows which files are pruned, and why."""
        if at is None:
            key = parse_name(Kind.TABLE, name)
            version, table = await self._table_at(key)
            return await scan_table(self._session, key, table, version, where, columns, limit)
        return await (await self.at(at)).scan(name, where, columns, limit)

    async def import_table(
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
        from alpheus.importing.copy import import_table  # few programs need it

        return await import_table(
            self._session,
            parse_name(Kind.TABLE, name),
            path,
            format,
            version=version,
            partition_by=partition_by,
            sort_by=sort_by,
            append=append,
            partition_types=partition_types,
            message=message,
            properties=properties,
            key=key,
            resume=resume,
            on_begin=on_begin,
            on_progress=on_progress,
        )

    # -- about itself

    async def system(
        self,
        name: str,
        at: When = None,
        names: str | Iterable[str] | None = None,
        after: int | None = None,
    ) -> pa.Table:
        """Return a system table: what the catalog records about itself, at a version, as an Arrow table. `name`:

        - "log" (transactions) and "changes": up to that version, and above `after`;
        - "objects", "files" (with the bounds of their columns), "pipelines" (one row a job), "subscriptions", "tags".

        `names` limits the rows to those of the named objects. It holds full names, in which `*` stands for any text
        and `?` for any character.
        """
        snapshot = await self.at(at)
        head = snapshot.version if at is None else await self.version()
        return await system_table(
            self._session,
            name,
            at=reference_of(snapshot),
            version=snapshot.version,
            is_head=snapshot.version == head,
            names=names,
            after=after,
        )

    # -- together

    def transaction(
        self,
        isolation: str | None = None,
        message: str = "",
        properties: Mapping[str, str] | None = None,
        branch: str = "main",
        key: str | None = None,
        writer: tuple[str, int] | None = None,
        id: str | None = None,
    ) -> AsyncTransaction:
        """Return a transaction for a `with` block. All its verbs commit together when the block exits cleanly.

        `isolation` is "snapshot" or "serializable"; None means the catalog's default, which is set at its creation.
        `id` is a version 7 uuid that the caller chose; by default the transaction gets a fresh one. With an id of the
        caller's, another process can ask for the outcome, and a block that runs again writes once: where the id has
        committed, the block sees the version at which it began the first time, and `result` is the recorded commit
        (`duplicate`). A block that asks for something else under the id is refused (`id_reused`). The block raises
        Expired where the version that may hold the id has expired.
        """
        self._session.check_open()
        terms = terms_of(isolation, message, properties, branch, key, writer, id)
        return AsyncTransaction(self._session, terms)

    async def retry(
        self,
        fn: Callable[[AsyncTransaction], Awaitable[T]],
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
        check_attempts(attempts)
        for left in range(attempts - 1, -1, -1):
            try:
                async with self.transaction(isolation, message, properties, branch, key, writer) as tx:
                    work = fn(tx)
                    if not isinstance(work, Awaitable):
                        raise InvalidInput(
                            f"retry needs an async function; its function returned {type(work).__name__}",
                            hint='define the function with "async def"',
                        )
                    return await work
            except Conflict as conflict:
                if not conflict.retryable or not left:
                    raise
        raise AssertionError("an attempt ends or raises")

    async def replica(
        self, namespaces: str | Iterable[str] | None = None, staleness: float | None = None
    ) -> AsyncReplica:
        """Open a copy of the catalog in this process that follows the log. A read of the replica takes microseconds,
        and sees one known version. Close the replica after use; closing the catalog closes it, too.

        - `namespaces` limits the copy to these namespaces and their objects. Reads of other namespaces raise
          InvalidInput (`not_replicated`).
        - `staleness` is a number of seconds. Reads raise Unavailable (`replica_behind`) while the replica may lag
          behind by more. None means that reads never raise it; `lag` says how far behind the replica may be.
        """
        return await open_replica(self._session, namespaces, staleness)

    # -- the log

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
    ) -> AsyncIterator[Event]:
        """Iterate over versions as they were committed: in order, without a gap, each once. With `follow` the iteration
        waits for further versions and never ends.

        - `after` (exclusive) is a version, an `Event.token`, or None for all kept versions; `until` is inclusive.
          Raises Expired when history between them has expired.
        - `names` may be patterns ("sales.*").
        - `actions` are names of recorded actions ("TABLE_INSERT"). An event matches when one of these actions is on an
          object that the other filters match.
        """
        refuse_unsupported(branch=branch)
        return events(
            self._session,
            after=parse_after(after),
            until=parse_bound("until", until),
            follow=follow,
            filter=filter_of(namespaces, names, kinds, actions),
            details=details,
        )

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
    ) -> AsyncSubscription:
        """Consume a durable subscription: a context manager and an iterator with `.acknowledge(event)`. Each event
        arrives at least once. One consumer is active at a time; the others stand by.

        A subscription that does not exist is created, with the filter (see `events`), `details`, and `lease`: after
        this number of seconds (30 by default) another consumer replaces a silent one. Where the subscription exists, an
        argument that differs from its setting raises InvalidInput, which names the setting; an argument that is left
        out accepts the setting. `after` is where a created subscription begins: None means with all kept versions,
        "latest" with the versions from now on.
        """
        self._session.check_open()
        terms = subscription_terms(namespaces, names, kinds, actions, details, after, lease)
        return AsyncSubscription(self._session, name, terms)

    def log(
        self,
        name: AnyName | None = None,
        after: int | None = None,
        until: int | None = None,
    ) -> AsyncIterator[LogEntry]:
        """Iterate over recorded transactions, newest first. `name` limits them to those that acted on this table
        ("namespace.name") or namespace (without a dot, or as a 1-tuple)."""
        return log(
            self._session,
            name=parse_log_name(name),
            after=parse_bound("after", after),
            until=parse_bound("until", until),
        )

    async def outcome(self, transaction_id: str, since: int | None = None, settle: bool = False) -> Outcome:
        """Return what became of a transaction id. `since` is its begin version, which bounds the search. With `settle`
        the call commits a cancellation of the id unless the id has committed; only then the answer is final."""
        id = _any_id(transaction_id)
        return outcome_of(await self._session.outcome(id, since=parse_bound("since", since), settle=settle))

    # -- the past

    def diff(self, a: When, b: When = None, details: bool = False) -> AsyncIterator[Change]:
        """Iterate over the objects that differ between two versions, tags or times, in key order. The cost grows with
        the difference. `a` may be the newer one. With `details` a change has the definitions before and after."""
        return diff(self._session, parse_when(a), parse_when(b), details=bool(details))

    async def list_dropped(
        self, namespace: NamespaceText | None = None, limit: int | None = None
    ) -> list[Dropped]:
        """Return namespaces, tables and views that were dropped and do not exist now, the last dropped first, as far
        back as history is kept. `namespace` limits the list to this namespace and its objects. Reads one root a
        version until `limit` drops are found."""
        check_limit(limit)
        found: list[Dropped] = []
        wanted = None if namespace is None else namespace_text(namespace)
        async with aclosing(stream_dropped(self._session, wanted)) as stream:
            async for one in stream:
                found.append(one)
                if len(found) == limit:
                    break
        return found

    # -- saved transactions

    def resume(self, id: str) -> AsyncTransaction:
        """Return a transaction that some process saved with `save`, for a `with` block; see `transaction`.

        The block raises NotFound (`no_transaction`) when no saved transaction has the id, and Expired after its time.
        """
        self._session.check_open()
        return AsyncTransaction(self._session, TransactionTerms(id=_any_id(id), saved=True))

    async def list_saved(self) -> list[SavedTransaction]:
        """Return transactions that were saved, and neither committed nor discarded, oldest first."""
        return await list_saved(self._session)

    async def discard(self, id: str) -> Outcome:
        """Make sure that a saved transaction never commits, and remove its file. The outcome is "cancelled", or
        "committed" when the transaction had committed.

        The outcome is "unknown" when another writer of the format saved the transaction: only that writer decides
        whether it commits.
        """
        return outcome_of(await self._session.discard_transaction(_any_id(id)))

    # -- inside

    async def _objects(self, names: list[ObjectName]) -> Loaded:
        return await self._session.load(self._session.recent, names)

    async def _page(
        self, version: int | None, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str
    ) -> Page:
        return await self._session.page(
            self._session.recent if version is None else version,
            kind,
            namespace=namespace,
            prefix=prefix,
            limit=limit,
            after=after,
        )

    async def _write(self, step: Step, *, blind: bool, tolerant: bool) -> Commit:
        return await commit_single(self._session, step, blind=blind, tolerant=tolerant)


def _any_id(id: object) -> str:
    """A transaction id that a user gave. Ids of other writers are uuids of any version."""
    if not isinstance(id, str) or not fmt.is_uuid(id):
        raise InvalidInput(f"{str(id)[:80]!r} is not a transaction id", hint="give a uuid in lower case")
    return id


def check_attempts(attempts: int) -> None:
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= ATTEMPTS_MAX:
        raise InvalidInput(
            f"attempts={attempts!r} is out of range", hint=f"give a number from 1 to {ATTEMPTS_MAX}"
        )


# --- for the rooms above ---------------------------------------------------------------------------


def session_of(catalog: AsyncCatalog) -> Session:
    """The session that carries a catalog's calls."""
    return catalog._session


def snapshot_of(catalog: AsyncCatalog, at: VersionInfo, reference: At = None) -> AsyncSnapshot:
    """A snapshot without a lease, of a version that was resolved before."""
    return AsyncSnapshot(catalog._session, at, reference=reference)


def transaction_of_own(
    catalog: AsyncCatalog, id: str | None, writer: tuple[str, int] | None
) -> AsyncTransaction:
    """A transaction as `AsyncCatalog.transaction` returns, with an id that was made for it a moment ago, perhaps in
    another process. No commit with this id was ever sent, so the begin does not search the log for it."""
    terms = terms_of("snapshot", "", None, "main", None, writer, id)
    return AsyncTransaction(catalog._session, msgspec.structs.replace(terms, is_fresh=True))


# --- connecting ------------------------------------------------------------------------------------


async def connect(
    url: str | None = None,
    *,
    create: bool = False,
    token: str | None = None,
    tls: object = None,
    timeout: float = 30,  # noqa: ASYNC109 - it bounds the later calls, too
    storage: str | Storage | None = None,
    staleness: float | None = None,
) -> AsyncCatalog:
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
    refuse_unsupported(token=token, tls=tls)
    staleness_millis(staleness)
    retry_policy = RetryPolicy(timeout)
    url = catalog_url(url)
    if scheme_of(url) == "grpcs":
        raise InvalidInput(
            f"{redact_url(url)!r} asks for TLS, which this release does not support",
            kind="not_supported",
            hint="use grpc:// on a trusted network, or unix://",
        )
    if scheme_of(url) in DAEMON_SCHEMES:
        return AsyncCatalog(await daemon_session(url, retry_policy, storage, staleness))
    if storage is not None:
        raise InvalidInput(
            f"storage={redact_url(storage)} was given, but {redact_url(url)} is storage itself",
            hint="leave storage out, or pass the URL of a daemon",
        )
    return AsyncCatalog(await journal_session(url, retry_policy, create=create, staleness=staleness))


async def create(
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
) -> AsyncCatalog:
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
    url = catalog_url(url)
    if scheme_of(url) in (*DAEMON_SCHEMES, "grpcs"):
        raise InvalidInput(
            f"{redact_url(url)!r} is a daemon, but a catalog is created on storage",
            kind="bad_url",
            hint="give the URL of a storage, for example file:///lake",
        )
    store = await asyncio.to_thread(open_storage, url, create=True)
    try:
        journal = await Journal.create(
            store,
            order=order,
            version_digits=version_digits,
            properties=texts("properties", properties),
            format_revision=format_revision,
            name_size_max={
                Kind.NAMESPACE: namespace_name_bytes,
                Kind.TABLE: table_name_bytes,
                Kind.VIEW: view_name_bytes,
            },
            txn_ttl_millis=span_millis("txn_ttl", txn_ttl),
            serializable_default=check_isolation(isolation) == "serializable",
            principal=claimed_principal(),
        )
    except BaseException:
        await store.close()
        raise
    return AsyncCatalog(direct_session(journal, url, RetryPolicy(30)))
