"""The synchronous client: `connect`, `create`, `Catalog`.

A thin front over `alpheus.aio`: one event loop in one background thread of the process does the work, each
call waits for it. tests/clients/test_public_surface.py holds both fronts to the same methods and signatures.
"""

from __future__ import annotations

import abc
import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import pyarrow as pa

from alpheus import aio
from alpheus.events import After
from alpheus.models import (
    CheckReport,
    Commit,
    Event,
    Info,
    LogEntry,
    Namespace,
    NamespaceName,
    Outcome,
    Pipeline,
    PipelineName,
    Table,
    TableName,
    VersionInfo,
    View,
    ViewName,
)
from alpheus.session import Name, Reads, When
from alpheus.transaction import AsyncTransaction, Writes
from alpheus_journal import format as fmt
from alpheus_journal.actions import Operation
from alpheus_journal.errors import Conflict, InvalidInput
from alpheus_journal.objects import InputPosition, Segment
from alpheus_journal.storage import Storage

T = TypeVar("T")
R = TypeVar("R")

# --- the background loop ---------------------------------------------------------------------------


class BackgroundLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="alpheus", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine. An interrupt of the waiting thread (Ctrl-C) cancels it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise AssertionError("the synchronous client was called from its own event loop")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancel what still runs, and end the thread."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._wind_up(), self._loop)
        self._thread.join(timeout=5)

    async def _wind_up(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        self._loop.stop()


_lock = threading.Lock()
_loop: BackgroundLoop | None = None


def background_loop() -> BackgroundLoop:
    """The loop of this process; a forked child gets its own."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = BackgroundLoop()
            atexit.register(_loop.stop)
        return _loop


def _forget_loop() -> None:
    # In a forked child: the thread was not copied, the lock may have been held.
    global _loop, _lock
    if _loop is not None:
        atexit.unregister(_loop.stop)
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_loop)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the asynchronous client to its end, from synchronous code."""
    return background_loop().run(coroutine)


_END: Any = object()


class Iteration(Iterator[T]):
    """A stream read one value at a time: nothing is fetched ahead of what the transport buffers.

    `close` (or the end of a `with` block) frees what it holds at the other end; so does letting go of it.
    """

    def __init__(self, source: AsyncIterator[T]) -> None:
        self._source = source
        # An interrupted `__next__` is still winding up when `close` comes; a generator refuses both at once.
        self._turn = asyncio.Lock()
        self._pid = os.getpid()

    def __iter__(self) -> Iteration[T]:
        return self

    def __next__(self) -> T:
        if self._pid != os.getpid():
            raise InvalidInput("a stream does not live on in a forked process", hint="start it again there")
        value = run(self._anext())
        if value is _END:
            raise StopIteration
        return value

    async def _anext(self) -> T:
        async with self._turn:
            return await anext(self._source, _END)

    def close(self) -> None:
        """Idempotent."""
        if self._pid == os.getpid():
            run(self._aclose())

    async def _aclose(self) -> None:
        async with self._turn:
            await cast(Any, self._source).aclose()

    def __enter__(self) -> Iteration[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


# --- the verbs -------------------------------------------------------------------------------------


class SyncReads(abc.ABC):
    """The reading verbs; see `alpheus.session.Reads`."""

    @abc.abstractmethod
    def _reads(self) -> Reads: ...

    def list_namespaces(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[NamespaceName]:
        """Names in key order that begin with `prefix`, after (exclusive) `after`, at most `limit`."""
        return run(self._reads().list_namespaces(prefix, limit, after))

    def load_namespace(self, name: str) -> Namespace:
        """NotFound (`no_namespace`) when it is not there."""
        return run(self._reads().load_namespace(name))

    def namespace_exists(self, name: str) -> bool:
        return run(self._reads().namespace_exists(name))

    def list_tables(
        self, namespace: str, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[TableName]:
        """As `list_namespaces`, of the tables of one. NotFound (`no_namespace`) when it is not there."""
        return run(self._reads().list_tables(namespace, prefix, limit, after))

    def load_table(self, name: Name) -> Table:
        """NotFound (`no_table`) when it is not there."""
        return run(self._reads().load_table(name))

    def load_tables(self, names: Iterable[Name]) -> list[Table]:
        """Many tables in one round trip, all at one version, in the order of their names. NotFound names
        the first that is not there."""
        return run(self._reads().load_tables(names))

    def table_exists(self, name: Name) -> bool:
        return run(self._reads().table_exists(name))

    def list_views(
        self, namespace: str, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[ViewName]:
        """As `list_tables`."""
        return run(self._reads().list_views(namespace, prefix, limit, after))

    def load_view(self, name: Name) -> View:
        """NotFound (`no_view`) when it is not there."""
        return run(self._reads().load_view(name))

    def view_exists(self, name: Name) -> bool:
        return run(self._reads().view_exists(name))

    def list_pipelines(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[PipelineName]:
        """As `list_namespaces`."""
        return run(self._reads().list_pipelines(prefix, limit, after))

    def load_pipeline(self, name: str) -> Pipeline:
        """The positions of a pipeline's jobs. NotFound (`no_object`) when no job of it ever ran."""
        return run(self._reads().load_pipeline(name))


class SyncWrites(abc.ABC, Generic[R]):
    """The writing verbs; see `alpheus.transaction.Writes`."""

    @abc.abstractmethod
    def _writes(self) -> Writes[R]: ...

    def update_catalog(self, set: Mapping[str, str] | None = None, unset: Sequence[str] | None = None) -> R:
        """Change the catalog's own properties."""
        return run(self._writes().update_catalog(set, unset))

    def create_namespace(
        self,
        name: str,
        properties: Mapping[str, str] | None = None,
        data_root: str | None = None,
        exist_ok: bool = False,
    ) -> R:
        """AlreadyExists unless `exist_ok`, which leaves an existing one as it is."""
        return run(self._writes().create_namespace(name, properties, data_root, exist_ok))

    def update_namespace(
        self, name: str, set: Mapping[str, str] | None = None, unset: Sequence[str] | None = None
    ) -> R:
        """Change properties."""
        return run(self._writes().update_namespace(name, set, unset))

    def drop_namespace(self, name: str, cascade: bool = False) -> R:
        """NotEmpty while tables or views live in it."""
        return run(self._writes().drop_namespace(name, cascade))

    def create_table(
        self,
        name: Name,
        schema_or_data: Any,
        properties: Mapping[str, str] | None = None,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        exist_ok: bool = False,
    ) -> R:
        """A native table of an Arrow schema, or of data: created and filled in one commit.

        AlreadyExists unless `exist_ok`, which leaves an existing table as it is and writes no data.
        """
        return run(
            self._writes().create_table(name, schema_or_data, properties, partition_by, sort_by, exist_ok)
        )

    def update_table(
        self, name: Name, set: Mapping[str, str] | None = None, unset: Sequence[str] | None = None
    ) -> R:
        """Change properties."""
        return run(self._writes().update_table(name, set, unset))

    def drop_table(self, name: Name, purge: bool = False) -> R:
        """`purge` records that its data need not be kept for restoring it."""
        return run(self._writes().drop_table(name, purge))

    def append(self, name: Name, data: Any) -> R:
        """Add rows: Arrow data, a pandas DataFrame, or a list of dicts; columns go by name. No rows: nothing
        happens. InvalidInput (`bad_data`) names the column that does not fit."""
        return run(self._writes().append(name, data))

    def overwrite(self, name: Name, data: Any, where: str | None = None, partitions: Any = None) -> R:
        """Replace all rows by those of `data`, as `append` takes them; there may be none."""
        return run(self._writes().overwrite(name, data, where, partitions))


# --- snapshot, transaction, catalog ----------------------------------------------------------------


class Snapshot(SyncReads):
    """The catalog at one version, for as long as that version is kept."""

    def __init__(self, catalog: Catalog, at: VersionInfo) -> None:
        self._catalog = catalog
        self._at = at

    def __repr__(self) -> str:
        return f"<Snapshot {self.version} of {self._catalog.url}>"

    @property
    def version(self) -> int:
        return self._at.version

    @property
    def info(self) -> VersionInfo:
        """When the version was created, and the token to follow events after it."""
        return self._at

    def read(self, name: Name, where: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a native table at this version."""
        return run(self._reads().read(name, where, columns))

    def _reads(self) -> aio.AsyncSnapshot:
        return self._catalog._core()._snapshot_of(self._at)


class Transaction(SyncReads, SyncWrites[None]):
    """Operations that commit together when the block ends without an exception.

    Reads come from `version`, which is pinned when the block begins, with the own writes on top. `id` is
    fixed then, too: data files lie below it. After the block `result` is the Commit, or None when there was
    nothing to commit. An exception abandons it; files written for it are left to collection.
    """

    def __init__(self, core: AsyncTransaction) -> None:
        self._tx = core
        self._pid = os.getpid()

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
    def version(self) -> int:
        """The version that reads come from and that the commit is checked against."""
        return self._tx.version

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What would be committed now."""
        return self._tx.operations

    @property
    def result(self) -> Commit | None:
        return self._tx.result

    def commit(self) -> Commit | None:
        """End the transaction and commit it: what a clean exit does. Errors: `Access.commit`."""
        return run(self._core().commit())

    def abandon(self) -> None:
        """End the transaction without a commit. Idempotent."""
        self._tx.abandon()

    def read(self, name: Name, where: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a native table, with what this transaction wrote."""
        return run(self._core().read(name, where, columns))

    def append_segments(self, name: Name, segments: Sequence[Segment], table_id: str | None = None) -> None:
        """Add rows that are on storage already: manifest segments of this transaction's own files.

        `table_id`: the table that they were written for; by default the one that has the name now.
        """
        run(self._core().append_segments(name, segments, table_id))

    def overwrite_segments(
        self, name: Name, segments: Sequence[Segment], table_id: str | None = None
    ) -> None:
        """Replace all rows by those of manifest segments, which may be none."""
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
    ) -> None:
        """Move a job's position. Conflict (`position_moved`) unless its last transaction is the expected
        one ("": the job never ran)."""
        run(
            self._core().advance_pipeline(
                name, job, expected_transaction_id, pinned_version, inputs, state, error, params
            )
        )

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


class Admin:
    """Administration of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def check(self, after: int | None = None) -> CheckReport:
        """Verify every invariant of the stored catalog; `after`: only of versions above it."""
        return run(self._catalog._core().admin.check(after))


class Catalog(SyncReads, SyncWrites[Commit]):
    """One catalog. Reads see its head; every writing verb is a transaction of its own.

    A context manager; may be used by several threads. `Unavailable` is tried again within the timeout of
    `connect`, commits under one id. In a forked child it opens its storage again at the first call; one of a
    daemon raises InvalidInput there, because gRPC does not survive a fork.
    """

    def __init__(
        self, core: aio.AsyncCatalog, again: Callable[[], Coroutine[Any, Any, aio.AsyncCatalog]]
    ) -> None:
        self._catalog = core
        self._again = again
        self._pid = os.getpid()
        self._url = core.url
        self._inherited: list[aio.AsyncCatalog] = []  # of parents; never used, never freed
        self._reopening = threading.Lock()
        self.admin = Admin(self)

    def __repr__(self) -> str:
        return f"<Catalog {self.url}>"

    def __enter__(self) -> Catalog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL that opens this catalog again, in another process too."""
        return self._url

    def close(self) -> None:
        """Release connections. Idempotent; calls after it raise InvalidInput."""
        if self._pid == os.getpid():
            run(self._catalog.close())

    def storage(self) -> Storage:
        """Where this client reads and writes data files. InvalidInput (`storage_unreachable`) when it cannot."""
        return run(self._core().storage())

    def info(self) -> Info:
        return run(self._core().info())

    def version(self) -> int:
        """The head: no commit that was acknowledged before the call is missed."""
        return run(self._core().version())

    def at(self, when: When, branch: str | None = None) -> Snapshot:
        """The catalog as it stood: pinned, so that all reads of it agree. NotFound (`no_version`) above the
        head, Expired below the oldest kept version."""
        return Snapshot(self, run(self._core().at(when, branch)).info)

    def read(
        self,
        name: Name,
        at: When = None,
        where: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of a native table."""
        return run(self._core().read(name, at, where, columns))

    def transaction(
        self,
        isolation: str = "snapshot",
        message: str = "",
        properties: Mapping[str, str] | None = None,
        branch: str = "main",
        key: str | None = None,
        writer: tuple[str, int] | None = None,
        id: str | None = None,
    ) -> Transaction:
        """For a `with` block: all verbs on the transaction that it gives commit together on a clean exit.

        `id`: a version 7 uuid of the caller's own, so that another process can ask for its outcome; a fresh
        one without it.
        """
        return Transaction(self._core().transaction(isolation, message, properties, branch, key, writer, id))

    def retry(
        self,
        fn: Callable[[Transaction], T],
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
        aio.checked_attempts(attempts)
        for left in range(attempts - 1, -1, -1):
            try:
                with self.transaction(isolation, message, properties, branch, key, writer) as tx:
                    return fn(tx)
            except Conflict as conflict:
                if not conflict.retryable or not left:
                    raise
        raise AssertionError("an attempt ends or raises")

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
    ) -> Iteration[Event]:
        """Versions as they were committed: in order, no gap, none twice. With `follow` it goes on for ever.

        `after` (exclusive): a version, an `Event.token`, or None for all that is kept; `until` is inclusive.
        Expired when history between is gone.
        """
        return Iteration(self._core().events(after, until, follow, namespaces, names, kinds, branch, details))

    def log(
        self,
        name: str | tuple[str, ...] | None = None,
        after: int | None = None,
        until: int | None = None,
    ) -> Iteration[LogEntry]:
        """Recorded transactions, newest first. `name`: only those that acted on that table
        ("namespace.name"), or namespace (no dot, or a 1-tuple)."""
        return Iteration(self._core().log(name, after, until))

    def outcome(self, transaction_id: str, since: int | None = None, settle: bool = False) -> Outcome:
        """What became of a transaction id. `since`: its begin version, which bounds the search. `settle`
        commits a cancellation of the id if it is not there; only then the answer is final."""
        return run(self._core().outcome(transaction_id, since, settle))

    def _core(self) -> aio.AsyncCatalog:
        if self._pid != os.getpid():
            with self._reopening:
                if self._pid != os.getpid():
                    self._inherited.append(self._catalog)
                    self._catalog = run(self._again())
                    self._pid = os.getpid()
        return self._catalog

    def _reads(self) -> aio.AsyncCatalog:
        return self._core()

    def _writes(self) -> aio.AsyncCatalog:
        return self._core()


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
    """The catalog behind a URL: `grpc://host:port` and `unix:///path.sock` are daemons, the rest is storage.

    `url` left out: `ALPHEUS_CATALOG`. `create` makes a catalog on storage that has none; a daemon always has
    one. `timeout`: seconds that a call is tried again while the catalog is unavailable. `storage`: where data
    files go, when it is not what the daemon says. Raises NotFound (`no_catalog`), Unavailable after the
    timeout, InvalidInput for a URL that names nothing.
    """
    core = run(
        aio.connect(
            url, create=create, token=token, tls=tls, timeout=timeout, storage=storage, staleness=staleness
        )
    )
    return Catalog(core, lambda: aio.connect(core.url, timeout=timeout, storage=storage))


def create(
    url: str | None = None,
    order: int = fmt.ORDER_DEFAULT,
    version_digits: int = 32,
    properties: Mapping[str, str] | None = None,
) -> Catalog:
    """A new catalog on storage. AlreadyExists (`catalog_exists`) when there is one."""
    core = run(aio.create(url, order, version_digits, properties))
    return Catalog(core, lambda: aio.connect(core.url))
