"""Administration of a catalog: checks, checkpoints, leases, subscriptions, the symbol list."""

from __future__ import annotations

import msgspec

from alpheus.admin.data_check import compare_files
from alpheus.admin.symbols import AsyncSymbols, checkpoint
from alpheus.events.events import check, parse_bound
from alpheus.events.subscriptions import AsyncSubscriptions
from alpheus.models import Checkpoint, CheckReport, Lease
from alpheus.session.leases import list_leases
from alpheus.session.session import Session


class AsyncAdmin:
    """Administration of a catalog."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def subscriptions(self) -> AsyncSubscriptions:
        """Durable subscriptions: `list`, `load`, `create`, `delete`, `reset`."""
        return AsyncSubscriptions(self._session)

    @property
    def symbols(self) -> AsyncSymbols:
        """The list of all live objects' names: `list`, `reload`, `check`, `compact`."""
        return AsyncSymbols(self._session)

    async def checkpoint(self, verify: bool = False) -> Checkpoint:
        """Store what a daemon holds in memory, so that the next start maps it instead of reading the tree. `verify`:
        compare it with the tree first, however large it is."""
        return await checkpoint(self._session, verify)

    async def check(
        self, after: int | None = None, footers: bool = False, values: bool = False
    ) -> CheckReport:
        """Verify every invariant of the stored catalog; `after`: only of versions above it.

        Of a data file it asks only whether it is there and how large it is. `footers`: of each one of the head the
        Parquet footer is read, too, and compared with what the manifest says of rows, columns, NULLs and bounds.
        `values`: the whole file is read as well, so that damaged pages are found (by their checksums, where who wrote
        the file put some in, as this library and Spark do; else as far as they cannot be decoded), and NULLs, NaNs and
        bounds that are not those of the values; of what lies in lists and maps only that it can be read. Neither finds
        a file that was exchanged for another one of the same size, footer and statistics. This client reads the files
        itself, through a daemon or without: InvalidInput (`storage_unreachable`) when it cannot.
        """
        if footers or values:
            await self._session.storage()  # before the long part
        report = await check(self._session, parse_bound("after", after))
        if not (footers or values):
            return report
        known = frozenset(finding.path for finding in report.findings)
        compared = await compare_files(self._session, values=values, known=known)
        return msgspec.structs.replace(
            report, findings=(*report.findings, *compared.findings), files=compared.files
        )

    async def leases(self) -> list[Lease]:
        """What readers hold, by version: leases that ran out and damaged ones too."""
        return await list_leases(self._session)
