"""The asynchronous client: `connect`, `create`, `AsyncCatalog`.

`alpheus.Catalog` is the same without `await`. The calls mean the same against a daemon and against storage.
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
    AnyName,
    Name,
    NamespaceText,
    When,
    check_limit,
    namespace_text,
    parse_name,
    parse_when,
    refuse_unsupported,
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
from alpheus.session.retry import Patience
from alpheus.session.session import Session
from alpheus.session.snapshot import AsyncSnapshot
from alpheus.transactions.steps import Step
from alpheus.transactions.terms import Terms, terms_of
from alpheus.transactions.transaction import AsyncTransaction, single
from alpheus.transactions.verbs import Writes
from alpheus_journal import format as fmt
from alpheus_journal.clock import claimed_principal
from alpheus_journal.errors import Conflict, InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Loaded, Page
from alpheus_journal.storage import Storage, open_storage
from alpheus_journal.urls import shown

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

    An asynchronous context manager. `Unavailable` is tried again within the timeout of `connect`, commits
    under one id.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._leasing = Leasing(session)
        self.admin = AsyncAdmin(session)

    def _title(self) -> str:
        return shown(self.url)

    def _facts(self) -> Facts:
        # Only what is known already: a look at a catalog takes no time, and never fails.
        seen = self._session.seen_version
        return [
            ("newest version seen", seen if seen >= 0 else "none yet"),
            ("state", "closed" if self._session.is_closed else ""),
        ]

    @property
    def url(self) -> str:
        """The URL that opens this catalog again, in another process too."""
        return self._session.url

    async def close(self) -> None:
        """Release connections. Idempotent; calls after it raise InvalidInput."""
        await self._session.close()

    async def storage(self) -> Storage:
        """Where this client reads and writes data files. InvalidInput (`storage_unreachable`) when it cannot."""
        return await self._session.storage()

    # -- versions

    async def info(self) -> Info:
        return info_of(await self._session.info(), self.url)

    async def version(self) -> int:
        """The head: no commit that was acknowledged before the call is missed, unless `connect` allows a staleness."""
        return (await self._session.resolve(self._session.recent)).version

    async def properties(self, at: When = None) -> dict[str, str]:
        """The catalog's own properties, at a version or time; None: now. Errors: `at`."""
        if at is None:
            return await super().properties()
        return await (await self.at(at)).properties()

    async def at(
        self, when: When, branch: str | None = None, lease: bool | float | None = False
    ) -> AsyncSnapshot:
        """The catalog as it stood: pinned, so that all reads of it agree. NotFound (`no_version`) above the
        head, Expired below the oldest kept version.

        `lease`: True (600 seconds), or seconds, 1 to 86,400: it can be read until `close`, or until this catalog is
        closed, even when the version expires meanwhile; a lease on storage, renewed in the background, keeps its files
        from collection. A reader that stood still for so long raises Expired (`lease_expired`). Where the storage
        cannot be written it is refused; None: then it has no lease, and warns of it (`alpheus.Unleased`).
        """
        refuse_unsupported(branch=branch)
        at = parse_when(when)
        info = await self._session.resolve(self._session.recent if at is None else at)
        held = await self._leasing.take(info.version, lease)
        return AsyncSnapshot(self._session, version_info_of(info), held)

    # -- rows

    async def read(
        self,
        name: Name,
        at: When = None,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """The rows of a native table, as one Arrow table; `.to_pandas()` of it is a DataFrame. `where`: text in the SQL
        subset, or a predicate; `columns`: names, in the order wanted. `limit`: so many rows at most, which ones is not
        defined; no more files are read than that takes."""
        return await (await self.scan(name, at, where, columns, limit)).to_arrow()

    async def scan(
        self,
        name: Name,
        at: When = None,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> AsyncScan:
        """The same rows, planned and not read yet: to take them whole or batch by batch, to count them, or to see which
        files are pruned, and why."""
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
        """Copy a table from elsewhere into a new native one, or with `append` into one that is there, in one commit.

        `path`: a path of this machine or a URL that pyarrow opens (`s3://bucket/path?endpoint_url=...&region=...`).
        "parquet": a folder, a file or a pattern; partition folders (`key=value/`) become columns, int32 where all
        values are such numbers, otherwise text, or of `partition_types`; files are united by column names, with the
        wider type where types differ. "delta" (extra `delta`): a table's folder, at `version`. "iceberg" (extra
        `iceberg`): a metadata file, or a table's folder with its newest one; `version` is a snapshot id, a branch or
        a tag. Deleted rows stay away; what a source needs that is not read (column mapping, equality deletes, ...) is
        refused by name. `partition_by`, `sort_by`: as of `create_table`; left out, the source's own partition keys,
        where native tables have such. Types that these lack become the next wider one, nanoseconds microseconds where
        nothing is lost by it; times of day, durations are refused (`bad_schema`).

        It is a saved transaction, whose id `on_begin` is told before anything is copied. After a crash or an outage
        the same call with `resume` copies what is left; the source must be the same (`source_changed`). It can for
        the catalog's `txn_ttl_millis` from its begin (`transaction_expired`), and should be done in half of that:
        data that no version refers to may be collected from then on, and the commit be refused (`upload_expired`). An
        import that cannot succeed is discarded. `key`: one that has committed is not done again, its commit is told
        (`duplicate`). `on_progress` is called as rows go; both callbacks in other threads, and what they raise ends
        the import.

        All rows go through this process, a few row groups and files at a time. They are counted against the source's
        own numbers before the commit, whose properties (`alpheus.import.*`) tell the source.
        """
        from alpheus.importing.copy import import_table  # few need it

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
        """What the catalog says about itself, at a version, as an Arrow table: `log` (transactions) and `changes`, up
        to that version and above `after`; `objects`, `files` (with the bounds of their columns), `pipelines` (a row
        a job), `subscriptions`. `names`: only what concerns those objects, by full name, `*` and `?` for any text.
        """
        snapshot = await self.at(at)
        head = snapshot.version if at is None else await self.version()
        return await system_table(
            self._session,
            name,
            version=snapshot.version,
            is_head=snapshot.version == head,
            names=names,
            after=after,
        )

    # -- together

    def transaction(
        self,
        isolation: str = "snapshot",
        message: str = "",
        properties: Mapping[str, str] | None = None,
        branch: str = "main",
        key: str | None = None,
        writer: tuple[str, int] | None = None,
        id: str | None = None,
    ) -> AsyncTransaction:
        """For a `with` block: all verbs on the transaction that it gives commit together on a clean exit.

        `id`: a version 7 uuid of the caller's own, so that another process can ask for its outcome, and so that a block
        that runs again writes once: where the id has committed, the block sees the version at which it began then, and
        `result` is the recorded commit (`duplicate`). A block that asks for something else under the id is refused
        (`id_reused`); Expired where the version that may hold it is gone. A fresh one without it.
        """
        self._session.check_open()
        terms = terms_of(isolation, message, properties, branch, key, writer, id)
        return AsyncTransaction(self._session, terms)

    async def retry(
        self,
        fn: Callable[[AsyncTransaction], Awaitable[T]],
        attempts: int = 5,
        isolation: str = "snapshot",
        message: str = "",
        properties: Mapping[str, str] | None = None,
        branch: str = "main",
        key: str | None = None,
        writer: tuple[str, int] | None = None,
    ) -> T:
        """Run `fn(tx)` in a transaction, again from scratch after a retryable Conflict. Returns what `fn`
        returned in the run that committed; raises the Conflict of the last attempt. A RecordBatchReader that it
        writes, which gives its rows once, is made inside of `fn`. InvalidInput for an `fn` that is async where the
        catalog is not, or plain where it is."""
        checked_attempts(attempts)
        for left in range(attempts - 1, -1, -1):
            try:
                async with self.transaction(isolation, message, properties, branch, key, writer) as tx:
                    work = fn(tx)
                    if not isinstance(work, Awaitable):
                        raise InvalidInput("what is to be tried is not async, so that it cannot be awaited")
                    return await work
            except Conflict as conflict:
                if not conflict.retryable or not left:
                    raise
        raise AssertionError("an attempt ends or raises")

    async def replica(
        self, namespaces: str | Iterable[str] | None = None, staleness: float | None = None
    ) -> AsyncReplica:
        """A copy of the catalog in this process that follows the log: reads in microseconds, of one known version.

        `namespaces`: a copy of only those and what is in them; asked for others it raises InvalidInput
        (`not_replicated`). `staleness`: seconds; reads raise Unavailable (`replica_behind`) while it may lag behind
        more; None: they never do, and `lag` tells. Close it; with the catalog it is closed, too.
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
        """Versions as they were committed: in order, no gap, none twice. With `follow` it goes on for ever.

        `after` (exclusive): a version, an `Event.token`, or None for all that is kept; `until` is inclusive.
        Expired when history between is gone. `names` may be patterns ("sales.*"); `actions` are names of recorded
        actions ("TABLE_INSERT"), of which an event has to have one on an object that matches the rest.
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
        comes at least once; one consumer is active at a time, others stand by.

        It is created when there is none: with the filter (as of `events`), `details`, and `lease`, the seconds after
        which a silent consumer is replaced (30). Where there is one, InvalidInput names what differs from what is
        given; what is left out is taken as it is. `after`: where it begins when it is created, None: with all that is
        kept, "latest": with what comes from now on.
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
        """Recorded transactions, newest first. `name`: only those that acted on that table
        ("namespace.name"), or namespace (no dot, or a 1-tuple)."""
        return log(
            self._session,
            name=parse_log_name(name),
            after=parse_bound("after", after),
            until=parse_bound("until", until),
        )

    async def outcome(self, transaction_id: str, since: int | None = None, settle: bool = False) -> Outcome:
        """What became of a transaction id. `since`: its begin version, which bounds the search. `settle`
        commits a cancellation of the id if it is not there; only then the answer is final."""
        id = _any_id(transaction_id)
        return outcome_of(await self._session.outcome(id, since=parse_bound("since", since), settle=settle))

    # -- the past

    def diff(self, a: When, b: When = None, details: bool = False) -> AsyncIterator[Change]:
        """What differs between two versions (or times), in key order; the cost follows the difference. `a` may be the
        newer one. `details`: definitions before and after."""
        return diff(self._session, parse_when(a), parse_when(b), details=bool(details))

    async def list_dropped(
        self, namespace: NamespaceText | None = None, limit: int | None = None
    ) -> list[Dropped]:
        """Namespaces, tables and views that were dropped and are not there now, the last dropped first, as far back as
        history is kept. `namespace`: itself and what was in it. Reads one root a version, until `limit` are found."""
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
        """A transaction that `save` put aside, in whichever process: for a `with` block, as `transaction` gives.

        NotFound (`no_transaction`) when there is none of the id, Expired after its time.
        """
        self._session.check_open()
        return AsyncTransaction(self._session, Terms(id=_any_id(id), saved=True))

    async def list_saved(self) -> list[SavedTransaction]:
        """Transactions that were saved and neither committed nor discarded, oldest first."""
        return await list_saved(self._session)

    async def discard(self, id: str) -> Outcome:
        """A saved transaction shall never commit: "cancelled", or "committed" when it had. Its file is removed.

        "unknown" of one that another writer of the format saved: whether that commits it is not ours to say.
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
        return await single(self._session, step, blind=blind, tolerant=tolerant)


def _any_id(id: object) -> str:
    """A transaction id that a user gave; other writers' are of any version of uuid."""
    if not isinstance(id, str) or not fmt.is_uuid(id):
        raise InvalidInput(f"{str(id)[:80]!r} is no transaction id", hint="a lower case uuid")
    return id


def checked_attempts(attempts: int) -> int:
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= ATTEMPTS_MAX:
        raise InvalidInput(f"attempts={attempts!r}: 1 to {ATTEMPTS_MAX}")
    return attempts


# --- for the rooms above ---------------------------------------------------------------------------


def session_of(catalog: AsyncCatalog) -> Session:
    """What a catalog's calls go through."""
    return catalog._session


def snapshot_of(catalog: AsyncCatalog, at: VersionInfo) -> AsyncSnapshot:
    """A snapshot of a version that was resolved before, without a lease."""
    return AsyncSnapshot(catalog._session, at)


def transaction_of_own(
    catalog: AsyncCatalog, id: str | None, writer: tuple[str, int] | None
) -> AsyncTransaction:
    """A transaction with an id that was made for it a moment ago, perhaps in another process, and was never sent:
    nobody looks for it. Else as `AsyncCatalog.transaction` gives."""
    terms = terms_of("snapshot", "", None, "main", None, writer, id)
    return AsyncTransaction(catalog._session, msgspec.structs.replace(terms, is_fresh=True))


# --- connecting ------------------------------------------------------------------------------------


async def connect(
    url: str | None = None,
    *,
    create: bool = False,
    token: str | None = None,
    tls: object = None,
    timeout: float = 30,  # noqa: ASYNC109 - it bounds the calls to come, not this one
    storage: str | Storage | None = None,
    staleness: float | None = None,
) -> AsyncCatalog:
    """The catalog behind a URL: `grpc://host:port` and `unix:///path.sock` are daemons, the rest is storage.

    `url` left out: `ALPHEUS_CATALOG`. `create` makes a catalog on storage that has none; a daemon always has
    one. `timeout`: seconds that a call is tried again while the catalog is unavailable. `storage`: where data
    files go, when it is not what the daemon says. `staleness`: seconds that the head of a read may lag behind, and
    reads go on while the storage cannot be reached; None: no acknowledged commit is missed. Either way a reader never
    goes back behind what it has seen or committed. Raises NotFound (`no_catalog`), Unavailable after the timeout,
    InvalidInput for a URL that names nothing.
    """
    refuse_unsupported(token=token, tls=tls)
    staleness_millis(staleness)
    patience = Patience(timeout)
    url = catalog_url(url)
    if scheme_of(url) == "grpcs":
        raise InvalidInput(
            f"{shown(url)!r}: this release connects without TLS only",
            kind="not_supported",
            hint="use grpc:// on a trusted network, or unix://",
        )
    if scheme_of(url) in DAEMON_SCHEMES:
        return AsyncCatalog(await daemon_session(url, patience, storage, staleness))
    if storage is not None:
        raise InvalidInput(
            f"storage={shown(storage)}: {shown(url)} is storage itself",
            hint="leave storage out, or pass the URL of a daemon",
        )
    return AsyncCatalog(await journal_session(url, patience, create=create, staleness=staleness))


async def create(
    url: str | None = None,
    order: int = fmt.ORDER_DEFAULT,
    version_digits: int = 32,
    properties: Mapping[str, str] | None = None,
) -> AsyncCatalog:
    """A new catalog on storage. AlreadyExists (`catalog_exists`) when there is one."""
    url = catalog_url(url)
    if scheme_of(url) in (*DAEMON_SCHEMES, "grpcs"):
        raise InvalidInput(
            f"{shown(url)!r} is a daemon; a catalog is created on storage",
            kind="bad_url",
            hint="for example file:///lake",
        )
    store = await asyncio.to_thread(open_storage, url, create=True)
    try:
        journal = await Journal.create(
            store,
            order=order,
            version_digits=version_digits,
            properties=texts("properties", properties),
            principal=claimed_principal(),
        )
    except BaseException:
        await store.close()
        raise
    return AsyncCatalog(direct_session(journal, url, Patience(30)))
