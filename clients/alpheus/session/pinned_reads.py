"""Reads of rows at one pinned version, shared by snapshot, transaction and replica."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import pyarrow as pa

from alpheus.rows.file_reader import list_files
from alpheus.rows.scan import AsyncScan, Where, check_row_limit, expired_instead, scan_of
from alpheus.session.arguments import Name, parse_name, words
from alpheus.session.reads import Reads
from alpheus.session.session import Session
from alpheus.session.table_starts import check_files_kept, check_not_lacking
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.storage import Storage


class PinnedReads(Reads):
    """The reading verbs at one pinned version."""

    _session: Session

    async def read(
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
        return await (await self.scan(name, where, columns, limit)).to_arrow()

    async def scan(
        self,
        name: Name,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> AsyncScan:
        """Plan to read the same rows as `read`, without reading them yet. The scan gives the rows whole or batch by
        batch, counts them, or shows which files are pruned, and why."""
        key = parse_name(Kind.TABLE, name)
        version, table = await self._table_at(key)
        check_not_lacking(await self._lacking(), key.full_name, table.id, version)
        return await scan_table(
            self._session,
            key,
            table,
            version,
            where,
            columns,
            limit,
            hold=self._hold(),
            verify=self._verifier(),
            has_copy=self._has_copy(),
        )

    async def _lacking(self) -> Mapping[str, int]:
        """Return the tables whose data files may have been deleted at this version, by their ids, with their starts."""
        return {}

    def _has_copy(self) -> bool:
        """Return whether a lease or a pin keeps the files that `_lacking` does not name."""
        return False

    def _verifier(self) -> Callable[[], Awaitable[object]] | None:
        """Return what raises Expired once the version has expired and its files may be gone."""
        return None

    def _hold(self) -> Callable[[Storage], Storage] | None:
        """Return what makes of a storage the one from which rows are read; see `scan_table`."""
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
    hold: Callable[[Storage], Storage] | None = None,
    verify: Callable[[], Awaitable[object]] | None = None,
    has_copy: bool = False,
) -> AsyncScan:
    """Plan to read the rows of the table that `table` defines. Raises Corrupt (`corrupt_manifest`) for a file on a
    local disk that is not the one that was committed.

    - `unstored`: see `list_files`.
    - `hold`: makes of a storage the one from which rows are read, as the holder of a lease reads it.
    - `verify`: see `scan_of`.
    - `has_copy`: a lease or a pin keeps the files. Otherwise a missing file may be one that the table's rules let go,
      and then the read raises Expired (`files_expired`).
    """
    check_row_limit(limit)

    async def verify_all() -> None:
        if verify is not None:
            await verify()
        if not has_copy:
            await check_files_kept(session, name.full_name, table.id, version)

    storage = await session.data_storage(table)
    if hold is not None:
        storage = hold(storage)
    async with expired_instead(verify_all):
        files = await list_files(storage, table, unstored)
    scan = scan_of(
        storage,
        table,
        files,
        where=where,
        columns=None if columns is None else words("columns", columns),
        limit=limit,
        version=version,
        name=name.full_name,
        verify=verify_all,
    )
    await scan.check_on_disk()
    return scan
