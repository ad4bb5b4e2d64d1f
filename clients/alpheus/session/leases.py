"""Leases of this client's readers: taken, renewed while they are read, given up (FORMAT.md, "Leases").

The client takes them itself, on the storage where it reads data files, with a daemon or without: a lease lives as long
as its reader, and daemons come and go.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings
from collections.abc import AsyncIterator, Callable

from alpheus.models import Lease, time_of
from alpheus.session.session import Session
from alpheus_journal.clock import SystemClock
from alpheus_journal.errors import AlpheusError, Denied, Expired, InvalidInput, NotFound, Unavailable
from alpheus_journal.format import LEASE_FOLDER, Kind, ObjectName, namespace_name
from alpheus_journal.log import leases
from alpheus_journal.log.leases import Held
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import Loaded, Page
from alpheus_journal.storage import ObjectInfo, Storage
from alpheus_journal.tree.reader import Snapshot
from alpheus_journal.workspace.checks import no_namespace

Wanted = bool | float | None
"""Whether a reader shall have a lease. False: none. True: one that lives for ten minutes after it was last renewed, or
so many seconds: else the reader is refused. None: as True, but where the store cannot be written without one, and a
warning says so once."""


class Unleased(UserWarning):
    """A reader has no lease: once the version that it reads has expired and is collected, it is told Expired."""


def lease_millis(wanted: Wanted) -> int:
    """How long a lease lasts that was asked for; 0: none was. Raises InvalidInput."""
    if wanted is False:
        return 0
    if wanted is None or wanted is True:
        return leases.LEASE_MILLIS_DEFAULT
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        raise InvalidInput(f"lease={wanted!r}: True, False, None or a number of seconds is needed")
    low, high = leases.LEASE_MILLIS_MIN / 1000, leases.LEASE_MILLIS_MAX / 1000
    if not low <= wanted <= high:
        raise InvalidInput(f"lease={wanted!r}: {low:g} to {high:g} seconds")
    return round(wanted * 1000)


class Leasing:
    """The leases of one session. `monotonic`: as of `leases.take`."""

    def __init__(
        self,
        session: Session,
        *,
        monotonic: Callable[[], float] = leases.seconds_since_boot,
    ) -> None:
        self._session = session
        self._monotonic = monotonic
        self._has_warned = False

    async def take(self, version: int, wanted: Wanted) -> LeasedVersion | None:
        """A lease on a version; None: none is wanted, or with `wanted` None there can be none.

        Raises InvalidInput (as well when the session is closed meanwhile), Expired, Corrupt, and while the store is not
        reachable Unavailable; with `wanted` other than None also what keeps it from being written: Denied, Unavailable
        (`storage_read_only`), InvalidInput (`storage_unreachable`).
        """
        if wanted is False:
            return None
        millis = lease_millis(wanted)
        session = self._session
        holder = f"{session.principal} process {os.getpid()}"
        try:
            storage = await session.storage()
            log = Log(storage, session.keys.version_digits)
            held = await session.call(
                "take a lease",
                lambda: leases.take(
                    log,
                    version,
                    new_id=session.identities.uuid4,
                    lease_millis=millis,
                    holder=_cut_holder(holder),
                    monotonic=self._monotonic,
                ),
            )
        except (Denied, Unavailable, InvalidInput) as error:
            if wanted is not None or not _is_unwritable(error):
                raise
            self._warn(error)
            return None
        try:
            session.check_open()  # else nobody would be there to give it up
        except InvalidInput:
            await held.release()
            raise
        return LeasedVersion(session, storage, held)

    def _warn(self, error: AlpheusError) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"readers of {self._session.url} have no lease: {error.message}. When a version that they read expires"
                " they may be told so in the middle (lease=False: no lease, and no warning)",
                Unleased,
                stacklevel=2,
            )


def _cut_holder(holder: str) -> str:
    return holder.encode("utf-8", "replace")[: leases.HOLDER_SIZE_BYTES_MAX].decode("utf-8", "ignore")


def _is_unwritable(error: AlpheusError) -> bool:
    return isinstance(error, Denied) or error.kind in ("storage_read_only", "storage_unreachable")


class LeasedVersion:
    """A version that is held, and how it is read once its slot has expired. Ended by `release`, or with the session."""

    def __init__(self, session: Session, storage: Storage, held: Held) -> None:
        self._session = session
        self._storage = storage
        self._held = held
        self._turn = asyncio.Lock()
        self._snapshot: Snapshot | None = None
        session.join(self.release)
        self._renewing = asyncio.create_task(self._renew(), name=f"renew {held.path}")

    @property
    def version(self) -> int:
        return self._held.lease.copy.version

    @property
    def storage(self) -> Storage:
        """The storage as who holds the lease sees it: a file that is gone because it ran out is Expired."""
        return _HeldStorage(self._storage, self)

    async def _renew(self) -> None:
        """Until it is released, or lost. What fails is tried again after a moment."""
        failures = 0
        while not self._held.is_over:
            share = self._held.seconds / leases.RENEWALS_IN_LEASE
            pause = min(share, self._session.retry_policy.pause(failures)) if failures else share
            await asyncio.sleep(pause)
            try:
                async with self._turn:
                    if self._held.is_due:
                        await self._held.renew()
            except Expired:
                return  # whoever reads next is told
            except AlpheusError:
                failures += 1
            else:
                failures = 0

    async def check(self, *, surely: bool = False) -> None:
        """Raises Expired (`lease_expired`) when it ran out. Costs nothing while it was renewed in time; `surely`: ask
        the store in any case."""
        held = self._held
        if not held.is_over and (surely or held.is_doubtful):
            async with self._turn:
                if not held.is_over and (surely or held.is_doubtful):
                    with contextlib.suppress(Expired):  # told below, if that is why
                        await held.renew()
        if held.has_run_out:
            raise held.expired()
        # Released: from then on it is a reader as those without.

    async def release(self) -> None:
        """Nothing renews it from this call on. Idempotent; what was cancelled is done at the latest when the session
        is closed."""
        self._renewing.cancel()
        await self._held.release()
        await asyncio.wait([self._renewing])
        self._session.leave(self.release)

    # -- reading from the copy

    async def _open_copy(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = await self._session.call(
                "read a leased version",
                lambda: leases.snapshot_of(self._held.lease.copy, self.storage, self._session.keys),
            )
        return self._snapshot

    async def load(self, names: list[ObjectName]) -> Loaded:
        """As `Access.load` of the version, from the copy."""
        copied = await self._open_copy()
        found = await self._session.call("load", lambda: copied.load(names))
        for stored in found:
            error = stored.error() if stored is not None else None
            if error is not None:
                await self.check(surely=True)  # what is lost may be lost for that
                error.version = self.version
                raise error
        return Loaded(version=self.version, objects=tuple(found))

    async def page(self, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str) -> Page:
        """As `Access.list` of the version, from the copy."""
        copied = await self._open_copy()
        if kind in (Kind.TABLE, Kind.VIEW):
            parent = namespace_name(namespace)
            if (await self.load([parent])).objects[0] is None:
                raise no_namespace(parent)
        return await self._session.call(
            "list",
            lambda: copied.names(kind, namespace=namespace, prefix=prefix, limit=limit, after=after),
        )


async def list_leases(session: Session) -> list[Lease]:
    """Of all readers, by version; with a daemon too they are read from the storage."""
    storage = await session.storage()

    async def attempt() -> list[leases.Found]:
        return [found async for found in leases.leases_in(storage)]

    found = await session.call("list leases", attempt)
    now = SystemClock().now_millis() + (storage.clock_offset_millis or 0)
    return sorted(
        (_lease_of(one, now) for one in found), key=lambda one: (one.version, one.renewed_at, one.id)
    )


def _lease_of(found: leases.Found, now_millis: int) -> Lease:
    lease = found.lease
    is_over = now_millis >= found.runs_out_at_millis
    return Lease(
        id=found.path.removeprefix(LEASE_FOLDER).removesuffix(".arrow"),
        version=-1 if lease is None else lease.copy.version,
        holder="" if lease is None else lease.holder,
        state="damaged" if lease is None else "over" if is_over else "held",
        renewed_at=time_of(found.renewed_at_millis),
        runs_out_at=time_of(found.runs_out_at_millis),
        binds_until=time_of(found.binds_until_millis),
        damage="" if found.damage is None else found.damage.message,
    )


class _HeldStorage(Storage):
    """A storage as the holder of a lease reads it. What is not there is looked at twice: whoever lost the lease is told
    so, and not that the catalog is damaged."""

    def __init__(self, inner: Storage, lease: LeasedVersion) -> None:
        self._inner = inner
        self._lease = lease
        self.url = inner.url

    async def read(self, path: str, *, size_max: int) -> bytes:
        await self._lease.check()
        try:
            return await self._inner.read(path, size_max=size_max)
        except NotFound:
            await self._lease.check(surely=True)
            raise

    async def read_many(self, paths: list[str], *, size_max: int) -> dict[str, bytes]:
        await self._lease.check()
        try:
            return await self._inner.read_many(paths, size_max=size_max)
        except NotFound:
            await self._lease.check(surely=True)
            raise

    async def read_part(self, path: str, *, start: int, size: int) -> bytes:
        await self._lease.check()
        try:
            return await self._inner.read_part(path, start=start, size=size)
        except NotFound:
            await self._lease.check(surely=True)
            raise

    async def stat(self, path: str) -> ObjectInfo | None:
        return await self._inner.stat(path)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._inner.list(prefix)

    def uri(self, path: str) -> str:
        return self._inner.uri(path)

    def local_path(self, path: str) -> str | None:
        return self._inner.local_path(path)

    async def create(self, path: str, data: bytes) -> None:
        raise AssertionError("a reader writes nothing")

    async def put(self, path: str, data: bytes) -> None:
        raise AssertionError("a reader writes nothing")

    async def delete(self, path: str) -> None:
        raise AssertionError("a reader writes nothing")
