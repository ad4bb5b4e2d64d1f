"""Administration of a catalog: checks, checkpoints, leases, subscriptions, the symbol list."""

from __future__ import annotations

import msgspec

from alpheus.admin.data_check import compare_files
from alpheus.admin.symbols import AsyncSymbols, checkpoint
from alpheus.events.events import check, parse_bound
from alpheus.events.subscriptions import AsyncSubscriptions
from alpheus.models import Checkpoint, CheckReport, Lease, Upgraded
from alpheus.session.leases import list_leases
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.model.operations import UpgradeCatalog


class AsyncAdmin:
    """Administration of a catalog: checks, checkpoints, leases, subscriptions, the symbol list."""

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
        """Store what a daemon holds in memory, so that its next start maps a file instead of reading the tree. With
        `verify`, compare the memory with the tree first, however large the tree is."""
        return await checkpoint(self._session, verify)

    async def check(
        self, after: int | None = None, footers: bool = False, values: bool = False
    ) -> CheckReport:
        """Verify every invariant of the stored catalog. With `after`, check only versions above it.

        By default the check of a data file covers only its existence and size.

        - `footers`: also read the Parquet footer of each data file of the head, and compare it with the manifest: rows,
          columns, NULLs and bounds.
        - `values`: also read the whole files. This finds damaged pages: by checksums where the writer stored them, as
          this library and Spark do, otherwise only if a page cannot be decoded. It also finds wrong counts of NULLs and
          NaNs and wrong bounds. Of values in lists and maps it only checks that they can be read.

        Neither finds a file that was replaced by another with the same size, footer and statistics. This client reads
        the files itself, with a daemon or without, and raises InvalidInput (`storage_unreachable`) when it cannot.
        """
        if footers or values:
            await self._session.storage()  # fail here rather than after the long part
        report = await check(self._session, parse_bound("after", after))
        if not (footers or values):
            return report
        known = frozenset(finding.path for finding in report.findings)
        compared = await compare_files(self._session, values=values, known=known)
        return msgspec.structs.replace(
            report, findings=(*report.findings, *compared.findings), files=compared.files
        )

    async def upgrade(self, dry_run: bool = False) -> Upgraded:
        """Take the catalog to the newest revision of its format that this program knows.

        From the commit on, programs of earlier releases refuse the catalog, to read and to write, with the error
        `newer_format`: upgrade them first. No stored file is rewritten, and no catalog goes back. Repeating the call is
        safe. Through a daemon, the daemon must know the revision, too. With `dry_run` nothing is committed.
        """
        info = await self._session.info()
        before = info.definition.format_revision
        newest = fmt.FORMAT_REVISION
        if dry_run or before >= newest:
            return Upgraded(before=before, revision=max(before, newest))
        commit = await self._session.commit_operation(UpgradeCatalog(revision=newest), info.version)
        return Upgraded(before=before, revision=newest, commit=commit)

    async def leases(self) -> list[Lease]:
        """Return the leases of readers, by version, including expired and damaged ones."""
        return await list_leases(self._session)
