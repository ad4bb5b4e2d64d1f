"""What the synchronous client is made of: its event loop, streams, and the verbs of both kinds."""

from __future__ import annotations

import abc
import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, cast, overload

import pyarrow as pa

from alpheus.closing import Closing
from alpheus.models import Namespace, NamespaceName, Pipeline, PipelineName, Table, TableName, View, ViewName
from alpheus.rows.scan import Where
from alpheus.session.arguments import AnyName, Name, NamespaceText, PipelineText, When
from alpheus.session.reads import Reads
from alpheus.transactions.append_files import FilePath
from alpheus.transactions.compaction import CompactionPlan
from alpheus.transactions.merge import Matched, Unmatched
from alpheus.transactions.row_changes import Mode
from alpheus.transactions.verbs import Writes
from alpheus_journal.errors import InvalidInput

T = TypeVar("T")
R = TypeVar("R")

# --- the background loop ---------------------------------------------------------------------------


class _Call(Generic[T]):
    """One coroutine on the loop. All but the constructor runs in the loop's thread."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    async def run(self) -> T:
        if self._is_cancelled:
            self._coroutine.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._coroutine

    def cancel(self) -> None:
        """Cancel the coroutine, whether it runs or has yet to begin; one that ended stays as it is."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


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
        call = _Call(coroutine)
        try:
            return asyncio.run_coroutine_threadsafe(call.run(), self._loop).result()
        except BaseException:
            # An interrupt may come before the future above has a name, so the call is cancelled, and not the future.
            self._loop.call_soon_threadsafe(call.cancel)
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


_inherited: list[BackgroundLoop] = []


def _forget_loop() -> None:
    # In a forked child: the thread was not copied, the lock may have been held.
    global _loop, _lock
    if _loop is not None:
        atexit.unregister(_loop.stop)
        # Kept: letting go of it would end its tasks and their calls, and gRPC without its threads crashes. A program
        # that is started with a `preexec_fn`, as Spark's JVM is, passes through here, too.
        _inherited.append(_loop)
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_loop)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the asynchronous client to its end, from synchronous code."""
    return background_loop().run(coroutine)


_END: Any = object()


class Iteration(Iterator[T], Closing):
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


# --- the verbs -------------------------------------------------------------------------------------


class SyncReads(abc.ABC):
    """The reading verbs; see `alpheus.session.reads.Reads`."""

    @staticmethod
    def _run(coroutine: Coroutine[Any, Any, T]) -> T:
        return run(coroutine)

    @abc.abstractmethod
    def _reads(self) -> Reads: ...

    def properties(self) -> dict[str, str]:
        """The catalog's own properties."""
        return self._run(self._reads().properties())

    def list_namespaces(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[NamespaceName]:
        """Names in key order that begin with `prefix`, after (exclusive) `after`, at most `limit`."""
        return self._run(self._reads().list_namespaces(prefix, limit, after))

    def load_namespace(self, name: NamespaceText) -> Namespace:
        """NotFound (`no_namespace`) when it is not there."""
        return self._run(self._reads().load_namespace(name))

    def namespace_exists(self, name: NamespaceText) -> bool:
        return self._run(self._reads().namespace_exists(name))

    def list_tables(
        self,
        namespace: NamespaceText | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: str | TableName | None = None,
    ) -> list[TableName]:
        """The tables of a namespace, or of all namespaces (None): names that begin with `prefix`, in key order, at most
        `limit` in all, after (exclusive) `after`: a name, of all namespaces a full one. NotFound (`no_namespace`) when
        the namespace is not there."""
        return self._run(self._reads().list_tables(namespace, prefix, limit, after))

    def load_table(self, name: Name) -> Table:
        """NotFound (`no_table`) when it is not there."""
        return self._run(self._reads().load_table(name))

    def load_tables(self, names: Iterable[Name]) -> list[Table]:
        """Many tables in one round trip, all at one version, in the order of their names. NotFound names
        the first that is not there."""
        return self._run(self._reads().load_tables(names))

    def table_exists(self, name: Name) -> bool:
        return self._run(self._reads().table_exists(name))

    def list_views(
        self,
        namespace: NamespaceText | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: str | ViewName | None = None,
    ) -> list[ViewName]:
        """As `list_tables`."""
        return self._run(self._reads().list_views(namespace, prefix, limit, after))

    def load_view(self, name: Name) -> View:
        """NotFound (`no_view`) when it is not there."""
        return self._run(self._reads().load_view(name))

    def view_exists(self, name: Name) -> bool:
        return self._run(self._reads().view_exists(name))

    def list_pipelines(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[PipelineName]:
        """As `list_namespaces`."""
        return self._run(self._reads().list_pipelines(prefix, limit, after))

    def load_pipeline(self, name: PipelineText) -> Pipeline:
        """The positions of a pipeline's jobs. NotFound (`no_object`) when no job of it ever ran."""
        return self._run(self._reads().load_pipeline(name))


class SyncWrites(abc.ABC, Generic[R]):
    """The writing verbs; see `alpheus.transactions.transaction.Writes`."""

    @abc.abstractmethod
    def _writes(self) -> Writes[R]: ...

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
        self,
        name: AnyName,
        at: When = None,
        as_name: AnyName | None = None,
        kind: str | None = None,
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
        if dry_run:
            return run(self._writes().compact(name, target_size, dry_run=True))
        return run(self._writes().compact(name, target_size))

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
