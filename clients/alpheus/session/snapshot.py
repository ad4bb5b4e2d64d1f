"""The catalog at one version, with a lease or without."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from alpheus.closing import AsyncClosing
from alpheus.display import Facts, Shown
from alpheus.models import VersionInfo
from alpheus.session.leases import LeasedVersion
from alpheus.session.pinned_reads import PinnedReads
from alpheus.session.session import Session
from alpheus_journal.errors import Expired
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import Loaded, Page
from alpheus_journal.storage import Storage
from alpheus_journal.urls import shown

T = TypeVar("T")


class AsyncSnapshot(Shown, PinnedReads, AsyncClosing):
    """The catalog at one version, for as long as that version is kept; with a lease for as long as it is held. An
    asynchronous context manager, which gives the lease up."""

    def __init__(self, session: Session, at: VersionInfo, lease: LeasedVersion | None = None) -> None:
        self._session = session
        self._at = at
        self._lease = lease
        self._has_expired = False

    def _title(self) -> str:
        return f"{self.version} of {shown(self._session.url)}"

    def _facts(self) -> Facts:
        return snapshot_facts(self._at, self.is_leased)

    async def close(self) -> None:
        """Give the lease up, if there is one: from then on it is a snapshot without. Idempotent."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.release()

    @property
    def version(self) -> int:
        return self._at.version

    @property
    def info(self) -> VersionInfo:
        """When the version was created, and the token to follow events after it."""
        return self._at

    @property
    def is_leased(self) -> bool:
        """Whether it holds a lease, run out or not."""
        return self._lease is not None

    async def has_lost_lease(self) -> bool:
        """Whether it held a lease that ran out. Looked up on the storage where it was not renewed in time."""
        try:
            if self._lease is not None:
                await self._lease.check()
        except Expired:
            return True
        return False

    async def _objects(self, names: list[ObjectName]) -> Loaded:
        return await self._read(
            lambda: self._session.load(self.version, names), lambda lease: lease.load(names)
        )

    async def _page(
        self, version: int | None, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str
    ) -> Page:
        self._session.check_page(kind, namespace, prefix, after)
        return await self._read(
            lambda: self._session.page(
                self.version, kind, namespace=namespace, prefix=prefix, limit=limit, after=after
            ),
            lambda lease: lease.page(kind, namespace=namespace, prefix=prefix, limit=limit, after=after),
        )

    async def _read(
        self, ask: Callable[[], Awaitable[T]], copied: Callable[[LeasedVersion], Awaitable[T]]
    ) -> T:
        """What the catalog answers; once the version has expired, what the lease's copy of it says."""
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

    def _rows_from(self) -> Storage | None:
        return None if self._lease is None else self._lease.storage


def snapshot_facts(at: VersionInfo, is_leased: bool) -> Facts:
    return [("version", at.version), ("created", at.created_at), ("lease", "held" if is_leased else "none")]
