"""Scans: reads of native tables, planned once, whose rows come as Arrow or pandas, whole or batch by batch."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from alpheus.display import Cells, Facts, Shown, columns_table, size_text
from alpheus.rows.file_reader import PARALLEL_READS_MAX, FileReader, ListedFile, check_on_disk, read_data_file
from alpheus.rows.merge_sorted import Merge, ThreadedMerge
from alpheus.rows.partition_sort import Order
from alpheus.rows.plan import Plan, PlannedFile, SkippedFile, plan
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.model.definitions import Column, TableDef
from alpheus_journal.predicate import Predicate
from alpheus_journal.storage import Storage, each_of

if TYPE_CHECKING:
    import pandas
    import polars

READ_AHEAD_BYTES_MAX = 64 << 20
"""Size of the files that a stream of batches holds in memory together, or one file when it is larger."""

Where = str | Predicate
"""A condition: text in the SQL subset, or a predicate (`alpheus_journal.predicate`)."""


def predicate_of(where: Where | None, columns: Sequence[Column]) -> Predicate | None:
    """Return the predicate of `where`, for a table with these columns. Raises InvalidInput (`bad_predicate`)."""
    if where is None:
        return None
    from alpheus.where.conditions import as_predicate  # imports a parser, which only text needs

    return as_predicate(where, columns)


def check_row_limit(limit: int | None) -> None:
    """Check the limit of a read. Raises InvalidInput."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise InvalidInput(
            f"limit={limit!r} is not a number of rows", hint="give a number from 0 up, or None for all rows"
        )


def choose_columns(table: TableDef, names: Sequence[str] | None) -> tuple[Column, ...]:
    if names is None:
        return table.columns
    known = {column.name: column for column in table.columns}
    unknown = [name for name in names if name not in known]
    if isinstance(names, str) or not names or unknown or len(set(names)) != len(names):
        what = (
            f"columns {unknown!r} are not in the table"
            if unknown
            else f"columns={names!r} is not a list of columns"
        )
        raise InvalidInput(what, hint=f"name columns of the table, each once: {', '.join(known)[:500]}")
    return tuple(known[name] for name in names)


def scan_of(
    storage: Storage,
    table: TableDef,
    files: Sequence[ListedFile],
    *,
    where: Where | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    version: int = 0,
    name: str = "",
    verify: Callable[[], Awaitable[object]] | None = None,
) -> AsyncScan:
    """Plan a scan of a table's files. `name` is the table's name for errors, and `limit` the largest number of rows.
    `verify` raises Expired if the version has expired; it is asked when a file cannot be read. Raises InvalidInput:
    `bad_argument` for columns that do not exist, and `bad_predicate`."""
    wanted = choose_columns(table, columns)
    planned = plan(table, [(one.file, one.sequence) for one in files], predicate_of(where, table.columns))
    return AsyncScan(storage, planned, wanted, version, files, name, limit, verify)


@contextlib.asynccontextmanager
async def expired_instead(verify: Callable[[], Awaitable[object]] | None) -> AsyncIterator[None]:
    """Raise Expired instead of Corrupt where `verify` finds that the version has expired: its files may be gone."""
    try:
        yield
    except Corrupt:
        if verify is not None:
            await verify()
        raise


class AsyncScan(Shown):
    """A planned read of a table at one version: which files are read, and which are skipped and why.

    The scan reads nothing until a method asks for rows, and each call reads again. `schema` is the schema of the rows.
    With a limit the scan ends after this number of rows, and may need only some of `files`.
    """

    def __init__(
        self,
        storage: Storage,
        plan: Plan,
        columns: Sequence[Column],
        version: int,
        listed: Sequence[ListedFile] = (),
        name: str = "",
        limit: int | None = None,
        verify: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._storage = storage
        self._verify = verify
        self._limit = limit
        self._listed = listed
        self._name = name
        self._reader = FileReader(plan, columns)
        self.plan = plan
        self.version = version

    def _title(self) -> str:
        files = len(self.plan.files) + len(self.plan.skipped)
        most = "" if self._limit is None else f", at most {self._limit} rows"
        return f"of {self._name or 'a table'} at version {self.version}: {len(self.plan.files)} of {files} files{most}"

    def _facts(self) -> Facts:
        exact = self.plan.exact_count
        return [
            ("where", self.plan.where_text),
            ("rows in the files", f"at most {self.plan.row_count}" if exact is None else exact),
            ("size", size_text(self.plan.size_bytes)),
        ]

    def _cells(self) -> Cells:
        return columns_table(self._reader.columns)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self._reader.schema

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        """The data files that the scan reads."""
        return self.plan.files

    @property
    def skipped(self) -> tuple[SkippedFile, ...]:
        """The data files that the scan does not read; `plan.reason` says why."""
        return self.plan.skipped

    def explain(self) -> str:
        """Say in words which files are read, which are skipped, and why."""
        words = self.plan.explain()
        return words if self._limit is None else f"at most {self._limit} rows of:\n{words}"

    def ordered(self) -> AsyncScan:
        """Return a scan of the same rows in the table's sort order (`sort_by` of `create_table`). Equal rows keep the
        order of the files.

        Sorted files are merged as they are read. This takes little memory where the ranges of the files differ, as they
        do after `compact`. Rows that do not fit into 256 MiB wait in the temporary folder (`TMPDIR`). Raises
        InvalidInput for a table without a sort order; a read raises Exhausted (`no_space`) when that folder is full.
        """
        return OrderedScan(self)

    async def count(self) -> int:
        """Count the rows, from metadata where these are exact, else by reading the columns that the filters need."""
        found, limit = self.plan.exact_count, self._limit
        if found is not None:
            return found if limit is None else min(found, limit)

        async def count(planned: PlannedFile) -> int:
            if planned.is_whole:
                return planned.file.row_count
            data = await self._data(planned)
            return (await asyncio.to_thread(self._reader.count, data, planned))[1]

        if limit is None:
            return sum(await each_of(self.plan.files, count, PARALLEL_READS_MAX))
        counted = start = 0
        while counted < limit and (some := _window(self.plan.files[start:], limit - counted)):
            counted += sum(await each_of(some, count, PARALLEL_READS_MAX))
            start += len(some)
        return min(counted, limit)

    async def to_arrow(self) -> pa.Table:
        """Read all rows into memory, in the order of the files."""
        if self._limit is not None:
            return pa.Table.from_batches([batch async for batch in self.to_batches()], schema=self.schema)

        async def read(planned: PlannedFile) -> list[pa.RecordBatch]:
            data = await self._data(planned)
            return await asyncio.to_thread(lambda: list(self._reader.rows(data, planned)))

        batches = [
            batch for part in await each_of(self.plan.files, read, PARALLEL_READS_MAX) for batch in part
        ]
        return pa.Table.from_batches(batches, schema=self.schema)

    async def to_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over the rows in the order of `to_arrow`, batch by batch. Memory holds one batch and a few files in
        their stored form (`READ_AHEAD_BYTES_MAX`, or one file)."""
        left = self._limit
        if left == 0:
            return
        async with aclosing(self._batches()) as batches:
            async for batch in batches:
                if left is not None and batch.num_rows >= left:
                    yield batch.slice(0, left)
                    return
                left = None if left is None else left - batch.num_rows
                yield batch

    async def _batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows without regard to the limit. Only the read-ahead respects the limit."""
        start, left = 0, self._limit
        while some := _window(self.plan.files[start:], left):
            start += len(some)
            stored = await each_of(some, self._stored, PARALLEL_READS_MAX)
            while stored:
                planned, data = stored.pop(0)
                rows = self._reader.rows(data, planned)
                while (batch := await asyncio.to_thread(next, rows, None)) is not None:
                    yield batch
                    left = None if left is None else left - batch.num_rows

    async def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """Read all rows into a pandas DataFrame. `options` are those of `pyarrow.Table.to_pandas`."""
        if "pandas" not in sys.modules:
            try:
                import pandas  # noqa: F401
            except ImportError:
                raise InvalidInput(
                    "pandas is not installed",
                    kind="not_supported",
                    hint="pip install pandas, or use to_arrow()",
                ) from None
        frame: pandas.DataFrame = (await self.to_arrow()).to_pandas(**options)
        return frame

    async def to_polars(self, **options: Any) -> polars.DataFrame:
        """Read all rows into a polars DataFrame. `options` are those of `polars.from_arrow`. Needs the extra
        `polars`."""
        try:
            module = await asyncio.to_thread(importlib.import_module, "polars")
        except ImportError:
            raise InvalidInput(
                "polars is not installed",
                kind="not_supported",
                hint='pip install "alpheus[polars]", or use to_arrow()',
            ) from None
        frame: polars.DataFrame = module.from_arrow(await self.to_arrow(), **options)
        return frame

    async def check_on_disk(self) -> None:
        """Raise Corrupt (`corrupt_manifest`) for a file on a local disk that is not the one that was committed; see
        `file_reader.check_on_disk`."""
        planned = [planned.file for planned in self.plan.files]
        async with expired_instead(self._verify):
            await asyncio.to_thread(check_on_disk, self._storage, planned, self._listed, self._name)

    async def _data(self, planned: PlannedFile) -> bytes:
        async with expired_instead(self._verify):
            return await read_data_file(self._storage, planned.file, self._listed, self._name)

    async def _stored(self, planned: PlannedFile) -> tuple[PlannedFile, bytes]:
        return planned, await self._data(planned)


def _window(files: Sequence[PlannedFile], limit: int | None) -> list[PlannedFile]:
    """The first files that may be in memory together. With `limit`, it ends before files that may not be needed."""
    window: list[PlannedFile] = []
    size = rows = 0
    for planned in files:
        if window and (
            len(window) == PARALLEL_READS_MAX
            or size + planned.file.size_bytes > READ_AHEAD_BYTES_MAX
            or (limit is not None and rows >= limit)
        ):
            break
        window.append(planned)
        size += planned.file.size_bytes
        rows += planned.file.row_count
    return window


class OrderedScan(AsyncScan):
    """A scan whose rows come in the table's sort order, equal rows in the order of the files.

    NULLs and NaN come where the sort order puts them; text is compared by its bytes. Raises InvalidInput for a table
    without a sort order.
    """

    def __init__(self, scan: AsyncScan) -> None:
        super().__init__(
            scan._storage,
            scan.plan,
            scan._reader.columns,
            scan.version,
            scan._listed,
            scan._name,
            scan._limit,
            scan._verify,
        )
        Order(scan.plan.table)

    def ordered(self) -> OrderedScan:
        return self

    async def to_arrow(self) -> pa.Table:
        """Read all rows into memory, in sort order."""
        return pa.Table.from_batches([batch async for batch in self.to_batches()], schema=self.schema)

    async def _batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows in sort order, batch by batch.

        Memory holds one batch and the data that `MEMORY_BYTES_MAX` bounds; other rows that are needed before the first
        rows are certain wait on disk. The temporary files are deleted when the generator is closed or cancelled, at the
        latest when a running step reaches its next batch. Cancelling waits for this step.
        """
        merge = ThreadedMerge(Merge(self.plan, self._reader.columns))
        try:
            step = await merge.advance(None)
            while step is not None:
                data = None
                if isinstance(step, int):
                    data = await self._data(self.plan.files[step])
                else:
                    yield step
                step = await merge.advance(data)
        finally:
            merge.close()
