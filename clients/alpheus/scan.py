"""Reads of native tables: planned once, then taken as Arrow or pandas, whole or batch by batch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from alpheus.file_reader import PARALLEL_READS_MAX, FileReader, ListedFile, read_data_file
from alpheus.plan import Plan, PlannedFile, SkippedFile, plan
from alpheus_journal.errors import InvalidInput
from alpheus_journal.objects import Column, TableDef
from alpheus_journal.predicate import Predicate
from alpheus_journal.storage import Storage, each_of

if TYPE_CHECKING:
    import pandas

READ_AHEAD_BYTES_MAX = 64 << 20
"""Files that a stream of batches holds in memory at once, or one file when it is larger."""

Where = str | Predicate
"""Which rows: text in the SQL subset, or a predicate (`alpheus_journal.predicate`)."""


def predicate_of(where: Where | None, columns: Sequence[Column]) -> Predicate | None:
    """`where` for a table of these columns. Raises InvalidInput (`bad_predicate`)."""
    if where is None:
        return None
    from alpheus.where import as_predicate  # brings a parser, which only text needs

    return as_predicate(where, columns)


def chosen_columns(table: TableDef, names: Sequence[str] | None) -> tuple[Column, ...]:
    if names is None:
        return table.columns
    known = {column.name: column for column in table.columns}
    unknown = [name for name in names if name not in known]
    if isinstance(names, str) or not names or unknown or len(set(names)) != len(names):
        what = (
            f"columns {unknown!r} are not in the table"
            if unknown
            else f"columns={names!r} is no list of columns"
        )
        raise InvalidInput(what, hint=f"it has {', '.join(known)[:500]}; name each once")
    return tuple(known[name] for name in names)


def scan_of(
    storage: Storage,
    table: TableDef,
    files: Sequence[ListedFile],
    *,
    where: Where | None = None,
    columns: Sequence[str] | None = None,
    version: int = 0,
) -> AsyncScan:
    """A scan of a table's files. InvalidInput: `bad_argument` for columns that are not there, `bad_predicate`."""
    wanted = chosen_columns(table, columns)
    planned = plan(table, [(one.file, one.sequence) for one in files], predicate_of(where, table.columns))
    return AsyncScan(storage, planned, wanted, version, files)


class AsyncScan:
    """The rows of a table at one version, planned: which files are read, and which are skipped and why.

    Reads nothing until it is asked, and reads again each time. `schema`: of the rows.
    """

    def __init__(
        self,
        storage: Storage,
        plan: Plan,
        columns: Sequence[Column],
        version: int,
        listed: Sequence[ListedFile] = (),
    ) -> None:
        self._storage = storage
        self._listed = listed
        self._reader = FileReader(plan, columns)
        self.plan = plan
        self.version = version

    @property
    def schema(self) -> pa.Schema:
        return self._reader.schema

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        """The data files that it reads."""
        return self.plan.files

    @property
    def skipped(self) -> tuple[SkippedFile, ...]:
        """The data files that it does not read; `plan.reason` says why."""
        return self.plan.skipped

    def explain(self) -> str:
        """Which files are read, which are skipped, and why."""
        return self.plan.explain()

    def ordered(self) -> AsyncScan:
        """The same rows in the table's sort order (`sort_by` of `create_table`), equal ones in the order of the files.

        Sorted files are merged as they are read, which takes little memory where their ranges differ (`compact` sees to
        that); what does not fit into 256 MiB waits in the temporary folder (`TMPDIR`). InvalidInput for a table without
        a sort order; later Exhausted (`no_space`) when that folder is full.
        """
        from alpheus.ordered import OrderedScan  # which is one itself

        return OrderedScan(self)

    async def count(self) -> int:
        """How many rows: from metadata where that is exact, else the columns that decide are read."""
        found = self.plan.exact_count
        if found is not None:
            return found

        async def count(planned: PlannedFile) -> int:
            if planned.is_whole:
                return planned.file.row_count
            data = await read_data_file(self._storage, planned.file, self._listed)
            return (await asyncio.to_thread(self._reader.count, data, planned))[1]

        return sum(await each_of(self.plan.files, count, PARALLEL_READS_MAX))

    async def to_arrow(self) -> pa.Table:
        """All rows in memory, in the order of the files."""

        async def read(planned: PlannedFile) -> list[pa.RecordBatch]:
            data = await read_data_file(self._storage, planned.file, self._listed)
            return await asyncio.to_thread(lambda: list(self._reader.rows(data, planned)))

        batches = [
            batch for part in await each_of(self.plan.files, read, PARALLEL_READS_MAX) for batch in part
        ]
        return pa.Table.from_batches(batches, schema=self.schema)

    async def to_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows in the order of `to_arrow`, batch by batch. In memory are a few files as they are stored
        (`READ_AHEAD_BYTES_MAX`, or one), and one batch."""
        for some in _windows(self.plan.files):
            stored = await each_of(some, self._stored, PARALLEL_READS_MAX)
            while stored:
                planned, data = stored.pop(0)
                rows = self._reader.rows(data, planned)
                while (batch := await asyncio.to_thread(next, rows, None)) is not None:
                    yield batch

    async def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """All rows in memory. `options`: as of `pyarrow.Table.to_pandas`."""
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

    async def _stored(self, planned: PlannedFile) -> tuple[PlannedFile, bytes]:
        return planned, await read_data_file(self._storage, planned.file, self._listed)


def _windows(files: Sequence[PlannedFile]) -> Iterator[list[PlannedFile]]:
    """Files that may be in memory together, in order."""
    window: list[PlannedFile] = []
    size = 0
    for planned in files:
        if window and (
            len(window) == PARALLEL_READS_MAX or size + planned.file.size_bytes > READ_AHEAD_BYTES_MAX
        ):
            yield window
            window, size = [], 0
        window.append(planned)
        size += planned.file.size_bytes
    if window:
        yield window
