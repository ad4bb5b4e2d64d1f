"""A snapshot: the catalog at one version, with or without a lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from alpheus.closing import AsyncClosing
from alpheus.display import Facts, Shown
from alpheus.models import Table, VersionInfo
from alpheus.session.leases import LeasedVersion
from alpheus.session.pinned_reads import PinnedReads
from alpheus.session.session import Session
from alpheus.session.table_starts import check_not_lacking, starts_at_head
from alpheus_journal.errors import Expired
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import At, Loaded, Page, Pinned
from alpheus_journal.model.table_starts import find_lacking
from alpheus_journal.storage import Storage
from alpheus_journal.urls import redact_url

T = TypeVar("T")


class AsyncSnapshot(Shown, PinnedReads, AsyncClosing):
    """The catalog at one version. It can be read for as long as the version is kept or, with a lease, for as long as
    the lease is held. An asynchronous context manager that gives the lease up."""

    def __init__(
        self, session: Session, at: VersionInfo, lease: LeasedVersion | None = None, reference: At = None
    ) -> None:
        self._session = session
        self._at = at
        self._reference = at.version if reference is None else reference
        self._lease = lease
        self._has_expired = False

    def _title(self) -> str:
        return f"{self.version} of {redact_url(self._session.url)}"

    def _facts(self) -> Facts:
        return snapshot_facts(self._at, self.is_leased)

    async def close(self) -> None:
        """Give the lease up, if the snapshot has one; the snapshot continues without a lease. Idempotent."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.release()

    @property
    def version(self) -> int:
        return self._at.version

    @property
    def info(self) -> VersionInfo:
        """The time of the version, and the token from which events after the version can be followed."""
        return self._at

    @property
    def is_chosen(self) -> bool:
        """Whether the snapshot is of a tag of chosen objects, and shows these alone."""
        return isinstance(self._reference, Pinned) and self._reference.is_chosen

    @property
    def is_leased(self) -> bool:
        """Whether the snapshot has a lease. A lease that has run out counts."""
        return self._lease is not None

    async def has_lost_lease(self) -> bool:
        """Return True when the snapshot's lease has run out. Asks the storage where the lease was not renewed in
        time."""
        try:
            if self._lease is not None:
                await self._lease.check()
        except Expired:
            return True
        return False

    async def _objects(self, names: list[ObjectName]) -> Loaded:
        return await self._read(
            lambda: self._session.load(self._reference, names), lambda lease: lease.load(names)
        )

    async def _page(
        self, version: int | None, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str
    ) -> Page:
        self._session.check_page(kind, namespace, prefix, after)
        return await self._read(
            lambda: self._session.page(
                self._reference, kind, namespace=namespace, prefix=prefix, limit=limit, after=after
            ),
            lambda lease: lease.page(kind, namespace=namespace, prefix=prefix, limit=limit, after=after),
        )

    async def _read(
        self, ask: Callable[[], Awaitable[T]], copied: Callable[[LeasedVersion], Awaitable[T]]
    ) -> T:
        """Ask the catalog. Once the version has expired, ask the lease's copy of the version instead."""
        lease = self._lease
        if lease is None:
            return await ask()
        await lease.check()
        if not self._has_expired:
            try:
                return await ask()
            except Expired:
                self._has_expired = True
        return await copied(lease)

    async def _lacking(self) -> Mapping[str, int]:
        if self._lease is not None:
            return self._lease.lacking
        if isinstance(self._reference, Pinned):
            return dict(self._reference.lacking)
        if self.version >= self._session.seen_version:
            return {}  # no start is above the head
        return find_lacking(await starts_at_head(self._session), self.version)

    def _has_copy(self) -> bool:
        return self._lease is not None or isinstance(self._reference, Pinned)

    def _verifier(self) -> Callable[[], Awaitable[object]] | None:
        if self._lease is not None or not isinstance(self._reference, int):
            return None  # the lease, or the pin of a tag, keeps the files
        return lambda: self._session.resolve(self._reference)

    def _hold(self) -> Callable[[Storage], Storage] | None:
        return None if self._lease is None else self._lease.hold


def reference_of(snapshot: AsyncSnapshot) -> At:
    """Return the reference with which every read of a snapshot asks. For a version that a tag named, it has the pin."""
    return snapshot._reference


async def check_rows(snapshot: AsyncSnapshot, tables: Iterable[Table]) -> None:
    """Check that the data files of tables are kept at a snapshot's version. Raises Expired (`files_expired`)."""
    lacking = await snapshot._lacking()
    for table in tables:
        check_not_lacking(lacking, table.full_name, table.id, snapshot.version)


def snapshot_facts(at: VersionInfo, is_leased: bool) -> Facts:
    return [("version", at.version), ("created", at.created_at), ("lease", "held" if is_leased else "none")]
