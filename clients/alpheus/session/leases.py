"""Leases of this client's readers and writers: take them, renew them while they are in use, give them up (FORMAT.md,
"Leases").

The client takes leases itself, on the storage where it reads data files, with or without a daemon, because a lease must
last as long as its reader, and a daemon may stop earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings
from collections.abc import AsyncIterator, Callable, Mapping

from alpheus.models import Lease, time_of
from alpheus.session.session import Session
from alpheus.session.table_starts import lacking_of_copy
from alpheus_journal.clock import SystemClock
from alpheus_journal.errors import AlpheusError, Denied, Expired, InvalidInput, NotFound, Unavailable
from alpheus_journal.format import CATALOG, LEASE_FOLDER, Kind, ObjectName, namespace_name
from alpheus_journal.log import copies, leases
from alpheus_journal.log.leases import HeldLease
from alpheus_journal.log.times import time_text
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import Loaded, Page, Tag, VersionInfo
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef
from alpheus_journal.storage import ObjectInfo, Storage
from alpheus_journal.tree.reader import Snapshot
from alpheus_journal.workspace.checks import no_namespace

Wanted = bool | float | None
"""Whether a reader needs a lease. False means no lease. True means a lease that lasts for ten minutes after its last
renewal, and a number means a lease that lasts for this number of seconds; without the lease the reader is refused. None
means the same as True where the store can be written; elsewhere the reader has no lease, and one warning says so."""


class Unleased(UserWarning):
    """A reader has no lease. When its version expires and the files are collected, its reads raise Expired."""


def lease_millis(wanted: Wanted) -> int:
    """The duration of the wanted lease in milliseconds; 0 means no lease. Raises InvalidInput."""
    if wanted is False:
        return 0
    if wanted is None or wanted is True:
        return leases.LEASE_MILLIS_DEFAULT
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        raise InvalidInput(
            f"lease={wanted!r} is not a lease", hint="give True, False, None or a number of seconds"
        )
    low, high = leases.LEASE_MILLIS_MIN / 1000, leases.LEASE_MILLIS_MAX / 1000
    if not low <= wanted <= high:
        raise InvalidInput(f"lease={wanted!r} is out of range", hint=f"give {low:g} to {high:g} seconds")
    return round(wanted * 1000)


class Leasing:
    """Takes the leases of one session. `monotonic` is that of `leases.take`."""

    def __init__(
        self,
        session: Session,
        *,
        monotonic: Callable[[], float] = leases.seconds_since_boot,
    ) -> None:
        self._session = session
        self._monotonic = monotonic
        self._has_warned = False

    async def take(self, at: VersionInfo, wanted: Wanted, tag: Tag | None = None) -> LeasedVersion | None:
        """Take a lease on a version, which `tag` may name. Return None when no lease is wanted, and when `wanted` is
        None and the store cannot be written.

        Raises Expired, Corrupt, InvalidInput (also when the session is closed meanwhile), and Unavailable while the
        store is unreachable. Unless `wanted` is None, a store that cannot be written raises Denied, Unavailable
        (`storage_read_only`) or InvalidInput (`storage_unreachable`).
        """
        if wanted is False:
            return None
        millis = lease_millis(wanted)
        session = self._session
        holder = f"{session.principal} process {os.getpid()}"
        try:
            storage = await session.storage()
            log = Log(storage, session.keys.version_digits)

            async def verify_tag() -> None:
                assert tag is not None
                with contextlib.suppress(NotFound):
                    if (await session.resolve(tag)).pin_path == at.pin_path:
                        return
                raise Expired(
                    f"version {at.version} has expired, and tag {tag.name} was replaced or deleted",
                    version=at.version,
                )

            pinned = None if tag is None else leases.Pinned(at.pin_path, verify_tag, at.is_chosen)
            held = await session.call(
                "take a lease",
                lambda: leases.take(
                    log,
                    at.version,
                    pinned=pinned,
                    new_id=session.identities.uuid4,
                    lease_millis=millis,
                    holder=_cut_holder(holder),
                    monotonic=self._monotonic,
                    known=session.recall_copy(at.version),
                ),
            )
        except (Denied, Unavailable, InvalidInput) as error:
            if wanted is not None or not is_unwritable(error):
                raise
            self._warn(error)
            return None
        try:
            lacking = await lacking_of_copy(session, at, tag)
            session.check_open()  # a closed session would never give the lease up
        except BaseException:
            await held.release()
            raise
        return LeasedVersion(session, storage, held, lacking)

    def _warn(self, error: AlpheusError) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"readers of {self._session.url} have no lease: {error.message}. When the version that a reader uses"
                " expires, its next read may fail (pass lease=False to use no lease and get no warning)",
                Unleased,
                stacklevel=2,
            )


def _cut_holder(holder: str) -> str:
    return holder.encode("utf-8", "replace")[: leases.HOLDER_SIZE_BYTES_MAX].decode("utf-8", "ignore")


def is_unwritable(error: AlpheusError) -> bool:
    """Return whether an error says that this client may not write the catalog's storage."""
    return isinstance(error, Denied) or error.kind in ("storage_read_only", "storage_unreachable")


class LeasedVersion:
    """A version with a lease, and the reads of it after its slot has expired. `release` ends the lease, as does the end
    of the session."""

    def __init__(
        self, session: Session, storage: Storage, held: HeldLease, lacking: Mapping[str, int]
    ) -> None:
        self._session = session
        self._storage = storage
        self.lacking = lacking
        """The tables whose data files may have been deleted before the lease was durable, with their starts."""
        self._held = held
        self._turn = asyncio.Lock()
        self._snapshot: Snapshot | None = None
        session.join(self.release)
        self._renewing = _start_renewing(session, held, self._turn)

    @property
    def version(self) -> int:
        return self._held.lease.copy.version

    def hold(self, storage: Storage) -> Storage:
        """Return a storage as the holder of the lease reads it. When the lease ran out and a file was deleted, the read
        of this file raises Expired."""
        return _HeldStorage(storage, self)

    async def check(self, *, surely: bool = False) -> None:
        """Raise Expired (`lease_expired`) when the lease ran out. The check asks the store when the lease was not
        renewed in time; with `surely` it asks the store in any case."""
        held = self._held
        if not held.is_over and (surely or held.is_doubtful):
            async with self._turn:
                if not held.is_over and (surely or held.is_doubtful):
                    with contextlib.suppress(Expired):  # raised below when the lease ran out
                        await held.renew()
        if held.has_run_out:
            raise held.expired()
        # A released lease raises nothing: its reader continues as one without a lease.

    async def release(self) -> None:
        """Give the lease up; it is not renewed from this call on. Idempotent. When this call is cancelled, the close of
        the session completes it."""
        self._renewing.cancel()
        await self._held.release()
        await asyncio.wait([self._renewing])
        self._session.leave(self.release)

    # -- reading from the copy

    async def _open_copy(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = await self._session.call(
                "read a leased version",
                lambda: copies.snapshot_of(
                    self._held.lease.copy, self.hold(self._storage), self._session.keys
                ),
            )
        return self._snapshot

    async def load(self, names: list[ObjectName]) -> Loaded:
        """Load definitions of the version from the lease's copy; see `Access.load`."""
        copied = await self._open_copy()
        found = await self._session.call("load", lambda: copied.load(names))
        for stored in found:
            error = stored.error() if stored is not None else None
            if error is not None:
                await self.check(surely=True)  # the damage may come from a lease that ran out
                error.version = self.version
                raise error
        return Loaded(version=self.version, objects=tuple(found))

    async def page(self, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str) -> Page:
        """List names of the version from the lease's copy; see `Access.list`."""
        copied = await self._open_copy()
        if kind in (Kind.TABLE, Kind.VIEW):
            parent = namespace_name(namespace)
            if (await self.load([parent])).objects[0] is None:
                raise no_namespace(parent)
        return await self._session.call(
            "list",
            lambda: copied.names(kind, namespace=namespace, prefix=prefix, limit=limit, after=after),
        )


class WriterLease:
    """Keeps the files of one transaction until its commit (FORMAT.md, "Leases of writers"). `release` ends the lease
    and deletes its file; `leave` leaves the file. The end of the session does one or the other (`must_stay`). An object
    belongs to one event loop."""

    def __init__(self, session: Session, held: HeldLease, *, must_stay: bool = False) -> None:
        self.must_stay = must_stay
        """Whether the file outlives an end without an outcome: a commit that was sent may still succeed, or another
        process may hold the lease."""
        self._session = session
        self._held = held
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._ending: asyncio.Task[None] | None = None
        session.join(self.end)
        self._renewing = _start_renewing(session, held, asyncio.Lock())

    @property
    def path(self) -> str:
        return self._held.path

    @property
    def version(self) -> int:
        """The version of which the lease is a copy."""
        return self._held.lease.copy.version

    def leave(self) -> None:
        """Stop renewing the lease. Its file stays: the transaction may commit yet, perhaps by another process."""
        self._renewing.cancel()
        self._held.leave()
        self._session.leave(self.end)

    async def release(self) -> None:
        """Delete the lease, because the transaction has committed, or never can. Idempotent."""
        self._renewing.cancel()
        await self._held.release()
        self._session.leave(self.end)

    async def end(self) -> None:
        """End the lease of a transaction that was given up. Its file goes, unless it must stay. Idempotent."""
        if self.must_stay:
            self.leave()
        else:
            await self.release()

    def end_soon(self) -> None:
        """End the lease in the background. May be called from any thread. Does nothing in a forked process."""

        def start() -> None:
            self._ending = asyncio.create_task(self.end(), name=f"end {self.path}")

        if self._pid == os.getpid() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(start)


async def lease_transaction(
    session: Session,
    transaction_id: str,
    version: int,
    *,
    is_first: bool,
    seconds: float = leases.LEASE_MILLIS_DEFAULT / 1000,
) -> WriterLease:
    """Take a lease that keeps the files of a transaction. `version` is its begin version or a later one. `is_first`
    says that no process has uploaded a file of the transaction yet.

    Raises Expired, also when a collection may be about to delete earlier files of the transaction (`upload_expired`),
    and the errors of a store that cannot be written. No lease is left after an error.
    """
    storage = await session.storage()
    held = await session.call(
        "take a lease",
        lambda: leases.take(
            Log(storage, session.keys.version_digits),
            version,
            new_id=session.identities.uuid4,
            lease_millis=round(seconds * 1000),
            holder=_cut_holder(f"{session.principal} process {os.getpid()}"),
            transaction_id=transaction_id,
            known=session.recall_copy(version),
        ),
    )
    try:
        if not is_first:
            await _check_uncollected(session, transaction_id)
        session.check_open()
    except BaseException:
        await held.release()
        raise
    return WriterLease(session, held)


async def take_over_lease(session: Session, transaction_id: str, path: str) -> WriterLease | None:
    """Hold the lease that another process left with the transaction that it saved. Return None when it is gone.

    Raises the errors of a store that cannot be written; see `is_unwritable`.
    """
    storage = await session.storage()
    held = await session.call("take over a lease", lambda: leases.take_over(storage, path, transaction_id))
    return None if held is None else WriterLease(session, held, must_stay=True)


async def _check_uncollected(session: Session, transaction_id: str) -> None:
    """Raise Expired (`upload_expired`) if a collection up to the head may delete files of the transaction."""
    (stored,) = (await session.load(None, [CATALOG])).objects
    assert stored is not None
    definition = decode_definition(Kind.CATALOG, stored.definition, stored.path)
    assert isinstance(definition, CatalogDef)
    cutoff = definition.collected_before_millis
    if leases.is_too_old(transaction_id, cutoff):
        raise Expired(
            f"transaction {transaction_id} is too old to upload files: unreferenced files from before"
            f" {time_text(cutoff)} have been collected, perhaps its own",
            kind="upload_expired",
            hint="begin a new transaction, and write its files again",
        )


def _start_renewing(session: Session, held: HeldLease, turn: asyncio.Lock) -> asyncio.Task[None]:
    return asyncio.create_task(_renew(session, held, turn), name=f"renew {held.path}")


async def _renew(session: Session, held: HeldLease, turn: asyncio.Lock) -> None:
    """Renew a lease until it is released or lost. A renewal that fails is retried after a pause."""
    failures = 0
    while not held.is_over:
        share = held.seconds / leases.RENEWALS_IN_LEASE
        pause = min(share, session.retry_policy.pause(failures)) if failures else share
        await asyncio.sleep(pause)
        try:
            async with turn:
                if held.is_due:
                    await held.renew()
        except Expired:
            return  # the next read, or the commit, raises it
        except AlpheusError:
            failures += 1
        else:
            failures = 0


async def list_leases(session: Session) -> list[Lease]:
    """List the leases of all readers and writers, by version. They are read from the storage, also with a daemon."""
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
        transaction_id="" if lease is None else lease.transaction_id,
        state="damaged" if lease is None else "over" if is_over else "held",
        renewed_at=time_of(found.renewed_at_millis),
        runs_out_at=time_of(found.runs_out_at_millis),
        binds_until=time_of(found.binds_until_millis),
        damage="" if found.damage is None else found.damage.message,
    )


class _HeldStorage(Storage):
    """A storage as the holder of a lease reads it. When a file is missing the lease is checked, so that a reader that
    lost its lease gets this error, instead of one about a damaged catalog."""

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
