"""Reads of rows at one pinned version: what snapshot, transaction and replica share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from alpheus.rows.file_reader import list_files
from alpheus.rows.scan import AsyncScan, Where, check_row_limit, scan_of
from alpheus.session.arguments import Name, parse_name, words
from alpheus.session.reads import Reads
from alpheus.session.session import Session
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.storage import Storage


class PinnedReads(Reads):
    """What is read at one version."""

    _session: Session

    async def read(
        self,
        name: Name,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """The rows of a native table, as one Arrow table; `.to_pandas()` of it is a DataFrame. `where`: text in the SQL
        subset, or a predicate; `columns`: names, in the order wanted. `limit`: so many rows at most, which ones is not
        defined; no more files are read than that takes."""
        return await (await self.scan(name, where, columns, limit)).to_arrow()

    async def scan(
        self,
        name: Name,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> AsyncScan:
        """The same rows, planned and not read yet: to take them whole or batch by batch, to count them, or to see which
        files are pruned, and why."""
        key = parse_name(Kind.TABLE, name)
        version, table = await self._table_at(key)
        return await scan_table(
            self._session, key, table, version, where, columns, limit, storage=self._rows_from()
        )

    def _rows_from(self) -> Storage | None:
        """Where the rows are read; None: where the session reads."""
        return None


async def scan_table(
    session: Session,
    name: ObjectName,
    table: TableDef,
    version: int,
    where: Where | None,
    columns: Sequence[str] | None,
    limit: int | None = None,
    unstored: Callable[[str], bytes | None] | None = None,
    storage: Storage | None = None,
) -> AsyncScan:
    """The rows of a table as it is defined there, planned. `unstored`: as of `list_files`. `storage`: where they are
    read, None: where the session reads. Corrupt (`corrupt_manifest`) for a file that is not on disk as it was."""
    check_row_limit(limit)
    storage = storage or await session.storage()
    scan = scan_of(
        storage,
        table,
        await list_files(storage, table, unstored),
        where=where,
        columns=None if columns is None else words("columns", columns),
        limit=limit,
        version=version,
        name=name.full_name,
    )
    await scan.check_on_disk()
    return scan
