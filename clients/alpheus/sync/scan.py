"""Scans for synchronous code, and for DuckDB."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from alpheus.display import Cells, Facts, Shown
from alpheus.rows.plan import Plan, PlannedFile, SkippedFile
from alpheus.rows.scan import AsyncScan, Where
from alpheus.session.arguments import Name
from alpheus.session.pinned_reads import PinnedReads
from alpheus.sync.portal import Iteration, run
from alpheus.sync.reads import SyncReads
from alpheus_journal.errors import InvalidInput

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars


class Scan(Shown):
    """A planned read of a table at one version: which files are read, which are skipped, and why.

    A scan reads nothing until rows are requested, and reads again for each request. Anything that supports Arrow's
    stream protocol accepts a scan: `pyarrow.table(scan)`, `polars.from_arrow(scan)`, `duckdb.sql("from scan")`.
    """

    def __init__(self, core: AsyncScan) -> None:
        self._scan = core

    def _title(self) -> str:
        return self._scan._title()

    def _facts(self) -> Facts:
        return self._scan._facts()

    def _cells(self) -> Cells:
        return self._scan._cells()

    @property
    def version(self) -> int:
        return self._scan.version

    @property
    def plan(self) -> Plan:
        return self._scan.plan

    def ordered(self) -> Scan:
        """Return a scan of the same rows in the table's sort order (`sort_by` of `create_table`). Equal rows keep the
        order of the files.

        Sorted files are merged as they are read. The merge takes little memory where the ranges of the files differ, as
        they do after `compact`. Rows that do not fit into 256 MiB are kept in the temporary folder (`TMPDIR`). Raises
        InvalidInput for a table without a sort order. Reading raises Exhausted (`no_space`) when the folder is full.
        """
        return Scan(self._scan.ordered())

    def to_batches(self) -> pa.RecordBatchReader:
        """Return a reader that yields the rows batch by batch, in the order of `to_arrow`. The reader holds a few files
        as they are stored, and one batch, in memory."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None, name: str | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return a relation of the rows. With `name`, also make a view of that name in the connection, by default
        DuckDB's default connection.

        Every query streams the rows again. The `where` of the scan prunes files; filters of the query itself apply
        after reading. Needs the extra `duckdb`.
        """
        try:
            import duckdb
        except ImportError:
            raise InvalidInput(
                "duckdb is not installed", kind="not_supported", hint='pip install "alpheus[duckdb]"'
            ) from None
        connection = connection if connection is not None else duckdb.default_connection()
        if name is not None:
            connection.register(name, self)
            return connection.table(name)
        return connection.from_arrow(self)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_batches().__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        # A generator: a stream that is opened for its schema alone reads nothing.
        with Iteration(self._scan.to_batches()) as batches:
            yield from batches

    # -- generated from AsyncScan by `python -m alpheus.sync`

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self._scan.schema

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        """The data files that the scan reads."""
        return self._scan.files

    @property
    def skipped(self) -> tuple[SkippedFile, ...]:
        """The data files that the scan does not read; `plan.reason` says why."""
        return self._scan.skipped

    def explain(self) -> str:
        """Say in words which files are read, which are skipped, and why."""
        return self._scan.explain()

    def count(self) -> int:
        """Count the rows, from metadata where these are exact, else by reading the columns that the filters need."""
        return run(self._scan.count())

    def to_arrow(self) -> pa.Table:
        """Read all rows into memory, in the order of the files."""
        return run(self._scan.to_arrow())

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """Read all rows into a pandas DataFrame. `options` are those of `pyarrow.Table.to_pandas`."""
        return run(self._scan.to_pandas(**options))

    def to_polars(self, **options: Any) -> polars.DataFrame:
        """Read all rows into a polars DataFrame. `options` are those of `polars.from_arrow`. Needs the extra
        `polars`."""
        return run(self._scan.to_polars(**options))


class SyncPinnedReads(SyncReads):
    """Reads at one version; see `alpheus.session.pinned_reads.PinnedReads`."""

    @abc.abstractmethod
    def _reads(self) -> PinnedReads: ...

    # -- generated from PinnedReads by `python -m alpheus.sync`

    def read(
        self,
        name: Name,
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
        return run(self._reads().read(name, where, columns, limit))

    def scan(
        self,
        name: Name,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Scan:
        """Plan to read the same rows as `read`, without reading them yet. The scan gives the rows whole or batch by
        batch, counts them, or shows which files are pruned, and why."""
        return Scan(run(self._reads().scan(name, where, columns, limit)))
