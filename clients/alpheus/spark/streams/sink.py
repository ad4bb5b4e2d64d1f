"""The writing half of the data source "alpheus": tasks leave files, the driver commits them together."""

from __future__ import annotations

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
from alpheus.rows.cast import Caster, CastError
from alpheus.rows.file_writer import bad_data, write_rows
from alpheus.spark.streams.options import Options, Pinned, refused_table
from alpheus.sync.portal import run
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import AlpheusError, InvalidInput
from alpheus_journal.model.definitions import Column, Segment
from alpheus_journal.model.operations import AppendFiles, ChangeRows, OverwriteFiles
from alpheus_journal.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
"""Spark's name for the id of a streaming query, which belongs to its checkpoint."""


RUN = "spark.jobGroup.id"
"""Spark's name for the group of a thread's jobs, which is new for each start of a streaming query."""


def writer_name(query_id: str) -> str:
    """The name under which tables remember the batches of a query."""
    return f"spark:{query_id}"


def write_once(
    catalog: Catalog, query_id: str, batch_id: int, fn: Callable[[Transaction], object], attempts: int
) -> None:
    """Run `fn(tx)` in the one transaction of a batch, again after a retryable Conflict; once that is committed, by
    whichever try, nothing more happens, and `fn` is not called.

    Which tables a batch writes may differ from try to try, so that the marks of a writer in tables tell too little:
    another try may write none of those that remember the first. The transaction has a retry key, too, which knows the
    batch as a whole for as long as its version is kept. It is asked for before `fn` runs, which might meet its own
    effect (a table that it makes, a name that it takes away) and fail; and after a failure, for a try whose answer was
    lost may have landed meanwhile. What lands later still is told by the commit itself.
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
            core_of(tx).forget_writer()  # no table would remember it
        is_written = True

    if was_written():
        return
    try:
        catalog.retry(attempt, attempts, key=key, writer=(writer, batch_id))
    except Exception as error:
        if is_written and isinstance(error, InvalidInput) and error.kind == "sequence_reused":
            # Of the tables that this try writes some remember the batch, or a later one: it was committed.
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
    """What `SparkCatalog.batch_writer` gives: `fn` in one transaction a batch, once under a query and a name.

    What a query's batch wrote under a name makes everything else that would be written under it a duplicate, whose
    rows would be lost without a word. Within one run of a query that is seen, and refused: nothing but a retry with the
    same frame is the same again. After a restart it can't be told from the batch that comes again, which it mostly is.
    """

    _last: ClassVar[dict[tuple[str, str], tuple[tuple[object, ...], BatchFunction, DataFrame]]] = {}
    """By catalog and writer, what was written last: in which run which batch, by which function, of which frame. Tells
    of this process alone, and grows by the queries that are started in it."""

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
                "the batch does not say which query it is of", hint="use it with writeStream.foreachBatch"
            )
        writer = f"{query}:{self._name}" if self._name else query
        # A run has a session and a group of jobs of its own, but for frames and groups that the program brings in.
        of_batch = (context.getLocalProperty(RUN), batch.sparkSession._jsparkSession.hashCode(), batch_id)
        last = self._last.get((self._catalog.url, writer))
        if last is not None and last[0] == of_batch and not (last[1] is self and last[2] is batch):
            raise InvalidInput(
                f"batch {batch_id} was written before by this query{f' as {self._name!r}' if self._name else ''}: "
                "this would be taken for the same rows once more, and be lost",
                kind="sequence_reused",
                hint="write all in one transaction, or give each batch_writer a name of its own",
            )
        write_once(self._catalog, writer, batch_id, lambda tx: self._fn(tx, batch), self._attempts)
        self._last[self._catalog.url, writer] = of_batch, self, batch


class Written(WriterCommitMessage):
    """What a task left on storage."""

    def __init__(
        self, segments: tuple[Segment, ...], transaction_id: str, table_id: str, query_id: str
    ) -> None:
        self.segments = segments
        self.transaction_id = transaction_id
        self.table_id = table_id
        self.query_id = query_id


class _Tasks:
    """Writes rows of a task as files of one transaction, whose id the writer carries to all tasks."""

    def __init__(self, options: Options, pinned: Pinned, overwrite: bool) -> None:
        self._options = options
        self._pinned = pinned
        self._overwrite = overwrite
        self._transaction_id = RandomIdentities().uuid7()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        if context is not None and not query_id and _registers_a_table(context):
            raise refused_table()
        storage = open_storage(self._pinned.storage)
        try:
            written = run(
                write_rows(
                    storage,
                    self._pinned.table.definition,
                    rename_batches(iterator, self._pinned.table.columns),
                    transaction_id=self._transaction_id,
                    identities=RandomIdentities(),
                    catalog_id=self._pinned.catalog_id,
                )
            )
        finally:
            run(storage.close())
        return Written(written.segments, self._transaction_id, self._pinned.table.id, query_id or "")

    def _send(self, messages: Sequence[WriterCommitMessage | None], writer: tuple[str, int] | None) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        segments = [segment for message in written for segment in message.segments]
        if not segments and not self._overwrite:
            return
        ids = {(message.transaction_id, message.table_id) for message in written}
        if len(ids) > 1:
            raise AssertionError(f"tasks of one batch wrote for several transactions: {ids}")
        transaction_id, table_id = ids.pop() if ids else (None, self._pinned.table.id)
        with (
            self._options.connect() as catalog,
            Transaction(transaction_of_own(async_of(catalog), transaction_id, writer)) as tx,
        ):
            add = tx.overwrite_segments if self._overwrite else tx.append_segments
            add(self._options.table, segments, table_id)


def _registers_a_table(context: TaskContext) -> bool:
    """Whether a task writes for `saveAsTable` or `CREATE TABLE AS SELECT`, of which Spark tells the source nothing.
    These alone run a write within another command; so do a stream's batches, which say what query they are of."""
    root = context.getLocalProperty("spark.sql.execution.root.id")
    return root is not None and root != context.getLocalProperty("spark.sql.execution.id")


def rename_batches(
    batches: Iterator[pa.RecordBatch], columns: Sequence[Column]
) -> pa.RecordBatchReader | list[Any]:
    """Batches under the table's own spelling of names, which Spark does not tell from others."""
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
    """InvalidInput (`bad_data`) naming the column for a frame of this schema whose rows no task could write, whatever
    their values are."""
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
    """Each batch is one commit, recorded under (query id, batch id): a batch that comes again is answered with the
    first commit, and its files are left to collection. The query id belongs to the checkpoint."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = [message for message in messages if isinstance(message, Written)]
        if not written and not self._overwrite:
            return
        queries = {message.query_id for message in written}
        if len(queries) != 1 or not all(queries):
            raise InvalidInput(
                f"batch {batchId} does not say which query it is of, so that nothing could tell it from another",
                kind="not_supported",
                hint="write it with SparkCatalog.write_stream",
            )
        self._send(messages, (writer_name(queries.pop()), batchId))
