"""The writing half of the data source "alpheus": tasks write files, and the driver commits them together."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from alpheus.aio import session_of, transaction_of_own
from alpheus.callables import refuse_unrun
from alpheus.catalog import Catalog, Transaction, async_of, core_of
from alpheus.rows.arrow.cast import Caster, CastError
from alpheus.rows.file_writer import bad_data, write_rows
from alpheus.session.leases import lease_transaction
from alpheus.spark.streams.options import Options, Pinned, refused_table
from alpheus.spark.workers.check import Travelling
from alpheus.sync.portal import run
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import AlpheusError, InvalidInput
from alpheus_journal.model.definitions import Column, Segment
from alpheus_journal.model.operations import AppendFiles, ChangeRows, OverwriteFiles
from alpheus_journal.rooted_storage import DataRoots
from alpheus_journal.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
"""Spark's local property with the id of a streaming query. The id belongs to the query's checkpoint."""


RUN = "spark.jobGroup.id"
"""Spark's local property with the group of a thread's jobs. Each start of a streaming query has a new group."""


def writer_name(query_id: str) -> str:
    """Return the name under which tables remember the batches of a query."""
    return f"spark:{query_id}"


def write_once(
    catalog: Catalog, query_id: str, batch_id: int, fn: Callable[[Transaction], object], attempts: int
) -> None:
    """Run `fn(tx)` in the one transaction of a batch, and retry after a retryable Conflict. Once an attempt has
    committed the batch, further calls do nothing and do not call `fn`.

    The tables that a batch writes may differ between attempts, so the writer's marks in tables are not enough: a later
    attempt may write none of the tables that remember the first. So the transaction has an idempotency key, too, which
    identifies the batch for as long as its version is kept. The key is looked up

    - before `fn` runs, because `fn` could meet its own effect (a table that it created or renamed) and fail;
    - after a failure, because an attempt whose answer was lost may have been committed meanwhile.

    An attempt that is committed even later makes the commit of this one a duplicate, which the commit itself reports.
    """
    writer = writer_name(query_id)
    key = f"{writer}/{batch_id}"
    is_written = False

    def was_written() -> bool:
        commit = run(session_of(async_of(catalog)).find_commit_of_key(key))
        if commit is not None:
            _log.info("batch %d of query %s was written by version %d", batch_id, query_id, commit.version)
        return commit is not None

    def attempt(tx: Transaction) -> None:
        nonlocal is_written
        is_written = False
        refuse_unrun("the function of a batch", fn(tx))
        if not any(isinstance(one, AppendFiles | OverwriteFiles | ChangeRows) for one in tx.operations):
            core_of(tx).forget_writer()  # no rows were written, so no table would remember the batch
        is_written = True

    if was_written():
        return
    try:
        catalog.retry(attempt, attempts, key=key, writer=(writer, batch_id))
    except Exception as error:
        if is_written and isinstance(error, InvalidInput) and error.kind == "sequence_reused":
            # Some table of this attempt remembers the batch, or a later one: the batch was committed.
            _log.info("batch %d of query %s was written before: %s", batch_id, query_id, error)
            return
        try:
            if was_written():
                return
        except AlpheusError as unknown:
            _log.warning(
                "whether batch %d of query %s was written is unknown: %s", batch_id, query_id, unknown
            )
        raise


class BatchFunction:
    """The result of `SparkCatalog.batch_writer`. It calls `fn` in one transaction a batch, once per query and name.

    Anything else that a query writes for the same batch under the same name counts as a duplicate, and its rows would
    be silently lost. Within one run of a query this is detected and refused: only a retry with the same frame is a
    duplicate. After a restart it cannot be distinguished from a repeated batch, which it usually is.
    """

    _last: ClassVar[dict[tuple[str, str], tuple[tuple[object, ...], BatchFunction, DataFrame]]] = {}
    """By (catalog, writer): the last write's run and batch, function and frame. Only for this process; it grows with
    the number of queries that are started in the process."""

    def __init__(
        self, catalog: Catalog, fn: Callable[[Transaction, DataFrame], object], attempts: int, name: str
    ) -> None:
        self._catalog = catalog
        self._fn = fn
        self._attempts = attempts
        self._name = name

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        context = batch.sparkSession.sparkContext
        query = context.getLocalProperty(QUERY_ID)
        if not query:
            raise InvalidInput(
                "the batch does not name its streaming query",
                hint="use batch_writer with writeStream.foreachBatch",
            )
        writer = f"{query}:{self._name}" if self._name else query
        # A run of a query has its own session and job group, unless the program itself sets the frame or the group.
        of_batch = (context.getLocalProperty(RUN), batch.sparkSession._jsparkSession.hashCode(), batch_id)
        last = self._last.get((self._catalog.url, writer))
        if last is not None and last[0] == of_batch and not (last[1] is self and last[2] is batch):
            raise InvalidInput(
                f"this query has already written batch {batch_id}{f' as {self._name!r}' if self._name else ''}: "
                "these rows would count as the same rows again, and be lost",
                kind="sequence_reused",
                hint="write everything in one transaction, or give each batch_writer a name of its own",
            )
        write_once(self._catalog, writer, batch_id, lambda tx: self._fn(tx, batch), self._attempts)
        self._last[self._catalog.url, writer] = of_batch, self, batch


class Written(WriterCommitMessage):
    """The files that a task wrote to storage."""

    def __init__(
        self, segments: tuple[Segment, ...], transaction_id: str, table_id: str, query_id: str
    ) -> None:
        self.segments = segments
        self.transaction_id = transaction_id
        self.table_id = table_id
        self.query_id = query_id


LEASE_SECONDS = 12 * 3600
"""The duration of the lease of a write by `df.write`. No process lasts as long as the write, so none renews the
lease."""


def leave_lease(catalog: Catalog, transaction_id: str) -> str:
    """Return the path of a lease that keeps, for `LEASE_SECONDS`, the files that other processes write for the
    transaction."""
    session = session_of(async_of(catalog))

    async def take() -> str:
        begin = await session.resolve(None)
        lease = await lease_transaction(
            session, transaction_id, begin.version, is_first=True, seconds=LEASE_SECONDS
        )
        lease.leave()
        return lease.path

    return run(take())


async def _delete_lease(catalog: Catalog, path: str) -> None:
    with contextlib.suppress(AlpheusError):  # on failure it runs out
        await (await session_of(async_of(catalog)).storage()).delete(path)


class _Tasks(Travelling):
    """Writes the rows of each task as files of one transaction. The pickled writer carries its id to all tasks."""

    def __init__(self, options: Options, pinned: Pinned, overwrite: bool) -> None:
        self._options = options
        self._pinned = pinned
        self._overwrite = overwrite
        self._transaction_id = pinned.transaction_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        if context is not None and not query_id and _registers_a_table(context):
            raise refused_table()
        storage = open_storage(self._pinned.storage)
        roots = DataRoots(storage)
        try:
            written = run(
                write_rows(
                    roots.of(self._pinned.table.data_root),
                    self._pinned.table.definition,
                    rename_batches(iterator, self._pinned.table.columns),
                    transaction_id=self._transaction_id,
                    identities=RandomIdentities(),
                    catalog_id=self._pinned.catalog_id,
                    checksums=self._pinned.checksums,
                )
            )
        finally:
            run(roots.close())
            run(storage.close())
        return Written(written.segments, self._transaction_id, self._pinned.table.id, query_id or "")

    def _send(self, messages: Sequence[WriterCommitMessage | None], writer: tuple[str, int] | None) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        segments = [segment for message in written for segment in message.segments]
        if not segments and not self._overwrite:
            self._give_up()
            return
        ids = {(message.transaction_id, message.table_id) for message in written}
        if len(ids) > 1:
            raise AssertionError(f"tasks of one batch wrote for several transactions: {ids}")
        transaction_id, table_id = ids.pop() if ids else (self._transaction_id, self._pinned.table.id)
        with (
            self._options.connect() as catalog,
            Transaction(transaction_of_own(async_of(catalog), transaction_id, writer)) as tx,
        ):
            if self._pinned.lease_path:
                run(core_of(tx).take_over_lease(self._pinned.lease_path))
            add = tx.overwrite_segments if self._overwrite else tx.append_segments
            add(self._options.table, segments, table_id)

    def _give_up(self) -> None:
        """Delete the lease of a write without rows. That of a failed write is left, because its commit may arrive."""
        if self._pinned.lease_path:
            with self._options.connect() as catalog:
                run(_delete_lease(catalog, self._pinned.lease_path))


def _registers_a_table(context: TaskContext) -> bool:
    """Return whether a task writes for `saveAsTable` or `CREATE TABLE AS SELECT`, which Spark does not announce.

    Only these run a write within another command. A stream's batches do so, too, but they name their query.
    """
    root = context.getLocalProperty("spark.sql.execution.root.id")
    return root is not None and root != context.getLocalProperty("spark.sql.execution.id")


def rename_batches(
    batches: Iterator[pa.RecordBatch], columns: Sequence[Column]
) -> pa.RecordBatchReader | list[Any]:
    """Return the batches with column names in the table's own case. Spark ignores case in names."""
    first = next(batches, None)
    if first is None:
        return []
    schema = _with_own_names(first.schema, columns)

    def all_of() -> Iterator[pa.RecordBatch]:
        for batch in chain([first], batches):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, all_of())


def _with_own_names(schema: pa.Schema, columns: Sequence[Column]) -> pa.Schema:
    own = {column.name.lower(): column.name for column in columns}
    return pa.schema([field.with_name(own.get(field.name.lower(), field.name)) for field in schema])


def check_fits(schema: pa.Schema, columns: Sequence[Column]) -> None:
    """Raise InvalidInput (`bad_data`) that names a column, if no rows of this schema could be written, whatever their
    values."""
    named_so = _with_own_names(schema, columns)
    try:
        Caster(columns, by_id=False).cast(pa.RecordBatch.from_pylist([], schema=named_so))
    except CastError as error:
        raise bad_data(error) from None
    there = set(named_so.names)
    for column in columns:
        if not column.nullable and column.write_default is None and column.name not in there:
            raise InvalidInput(f"column {column.name!r} is required, but missing", kind="bad_data")


class BatchWriter(_Tasks, DataSourceArrowWriter):
    """`df.write.format("alpheus").mode("append" or "overwrite").save()`: one commit."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._send(messages, None)


class StreamWriter(_Tasks, DataSourceStreamArrowWriter):
    """Writes each batch as one commit, recorded under (query id, batch id). A repeated batch gets the first commit as
    its answer, and its files are left to garbage collection. The query id belongs to the checkpoint."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = [message for message in messages if isinstance(message, Written)]
        if not written and not self._overwrite:
            self._give_up()
            return
        queries = {message.query_id for message in written}
        if len(queries) != 1 or not all(queries):
            raise InvalidInput(
                f"batch {batchId} does not say which query it belongs to, so its repetition could not be recognised",
                kind="not_supported",
                hint="write the stream with SparkCatalog.write_stream",
            )
        self._send(messages, (writer_name(queries.pop()), batchId))
