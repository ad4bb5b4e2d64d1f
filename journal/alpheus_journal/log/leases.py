"""Leases of readers and writers: a copy of a version's root that is valid for a time by the store's clock (FORMAT.md,
"Leases").

A reader that needs its version longer than the version may be kept writes such a copy, and only then checks whether the
version still exists. The files that the copy reaches are kept until the lease has run out. A reader without a lease, or
with a lost one, may miss deleted files and then gets Expired. No reader ever gets wrong content.

A writer's lease names its transaction. It keeps the files that the transaction uploads before its commit, until a fence
names the transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.clock import retrieve_error, uuid7_millis
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput, NotFound, Unavailable
from alpheus_journal.log.copies import Copy, copy_in, copy_of, verify_kept
from alpheus_journal.log.pins import read_pin
from alpheus_journal.log.versions import Log
from alpheus_journal.storage import Storage, each_of
from alpheus_journal.tree.node import decode_node, encode_node

LEASE_MILLIS_DEFAULT = 600_000
LEASE_MILLIS_MIN = 1_000
LEASE_MILLIS_MAX = 86_400_000
HOLDER_SIZE_BYTES_MAX = 1024
RENEWALS_IN_LEASE = 3
"""The number of times that a holder renews during the duration of one lease."""
RESOLUTION_MILLIS = 1_000
"""The resolution of a store's times: some stores have whole seconds, rounded up or down."""
REMOVAL_SECONDS_MAX = 5.0
"""The longest time that a holder tries to remove a lease that it gives up, before it leaves the lease to run out."""
READ_AT_ONCE = 16
ID_AHEAD_MILLIS_MAX = 2 * fmt.CLOCK_SKEW_MILLIS_MAX
"""The time in an id is at most this far ahead of the store's clock: the clock that made it may be a minute ahead of the
writer's, which may be a minute ahead of the store's."""

_DECIMAL = re.compile(r"[1-9]\d{0,15}")


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a lease's file. `holder` is an unverified text for people. `transaction_id` is empty in the lease
    of a reader."""

    copy: Copy
    lease_millis: int
    holder: str = ""
    transaction_id: str = ""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A file below `lease/`, with either its `lease` or its `damage`. Times are the store's."""

    path: str
    renewed_at_millis: int
    lease: Lease | None = None
    damage: Corrupt | None = None

    @property
    def runs_out_at_millis(self) -> int:
        """The time from which the holder may get Expired."""
        return self.renewed_at_millis + (self.lease.lease_millis if self.lease else LEASE_MILLIS_MAX)

    @property
    def binds_until_millis(self) -> int:
        """The time until which files that the lease reaches are not deleted, by the store's clock when the leases were
        listed. While the lease cannot be read, no file at all is deleted. After this time the lease's file may be
        deleted too."""
        lasts = self.lease.lease_millis if self.lease else LEASE_MILLIS_MAX
        return self.renewed_at_millis + binding_millis(lasts)


def is_too_old(transaction_id: str, cutoff_millis: int) -> bool:
    """Return whether files of a transaction may be older than the cutoff of a collection, which may delete them then
    unless a lease keeps them."""
    return cutoff_millis > 0 and uuid7_millis(transaction_id) < cutoff_millis + ID_AHEAD_MILLIS_MAX


def segments_kept_since(transaction_id: str) -> int:
    """Return the time by the store since when a lease of the transaction keeps all manifest segments. Their names tell
    no owner; the transaction's own are younger, unless a clock was far ahead when the id was made."""
    return uuid7_millis(transaction_id) - ID_AHEAD_MILLIS_MAX - RESOLUTION_MILLIS


def binding_millis(lease_millis: int) -> int:
    """Return how long a lease binds collectors after its file was modified: longer than its holder regards it as
    held."""
    return lease_millis + max(lease_millis, 2 * RESOLUTION_MILLIS)


# --- the file --------------------------------------------------------------------------------------


def encode_lease(lease: Lease) -> bytes:
    """Encode the file of a lease. Raises InvalidInput for a lease that `decode_lease` would refuse."""
    if not LEASE_MILLIS_MIN <= lease.lease_millis <= LEASE_MILLIS_MAX:
        raise InvalidInput(
            f"a lease cannot last {lease.lease_millis / 1000:g} s",
            hint=f"give {LEASE_MILLIS_MIN // 1000} to {LEASE_MILLIS_MAX // 1000:,} seconds",
        )
    if len(lease.holder.encode("utf-8", "surrogatepass")) > HOLDER_SIZE_BYTES_MAX or fmt.has_surrogate(
        lease.holder
    ):
        raise InvalidInput(
            f"the holder {lease.holder[:80]!r} is not a text of at most {HOLDER_SIZE_BYTES_MAX} bytes"
        )
    copy = lease.copy
    return encode_node(
        copy.root,
        order=len(copy.root.keys) + 1,  # without padding, because the node belongs to no tree
        created_at_millis=copy.created_at_millis,
        size_max=fmt.NODE_FILE_SIZE_BYTES_MAX,
        system={
            fmt.ROW_CATALOG_DEF: copy.catalog_def,
            fmt.ROW_COMMIT_ID: copy.commit_id,
            fmt.ROW_VERSION: str(copy.version),
            fmt.ROW_FORMAT_REVISION: "1",  # a lease has the same form in every revision
            fmt.ROW_LEASE_MILLIS: str(lease.lease_millis),
            fmt.ROW_LEASE_HOLDER: lease.holder,
            **({fmt.ROW_LEASE_TRANSACTION: lease.transaction_id} if lease.transaction_id else {}),
        },
    )


def decode_lease(data: bytes, path: str) -> Lease:
    """Decode the file of a lease. Raises Corrupt (`corrupt_node`) and InvalidInput (`newer_format`)."""
    file = decode_node(data, path, root=True, size_max=fmt.NODE_FILE_SIZE_BYTES_MAX)
    text, holder = file.system.get(fmt.ROW_LEASE_MILLIS, ""), file.system.get(fmt.ROW_LEASE_HOLDER, "")
    transaction_id = file.system.get(fmt.ROW_LEASE_TRANSACTION, "")

    def refuse(reason: str) -> Corrupt:
        return Corrupt(f"{path} is not a lease: {reason}", kind="corrupt_node", path=path)

    copy = copy_in(file, path, "a lease")
    if _DECIMAL.fullmatch(text) is None or not LEASE_MILLIS_MIN <= int(text) <= LEASE_MILLIS_MAX:
        raise refuse(f"it lasts {text[:40]!r} ms")
    if len(holder.encode()) > HOLDER_SIZE_BYTES_MAX:
        raise refuse("its holder's name is too long")
    if transaction_id and not fmt.is_uuid(transaction_id):
        raise refuse(f"it names the transaction {transaction_id[:40]!r}")
    return Lease(copy=copy, lease_millis=int(text), holder=holder, transaction_id=transaction_id)


# --- holding one -----------------------------------------------------------------------------------


def seconds_since_boot() -> float:
    """Return a clock that only goes forward and, where the system has such a clock, includes the machine's sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class HeldLease:
    """A lease that this process took by `take` or `take_over`. The lease of a reader stays valid only while `renew` is
    called in time. The lease of a writer stays valid until a fence names its transaction, and `renew` prevents that.

    The store's clock decides: between two renewals at most the lease's duration may pass on it. This machine's clock
    says when to renew, and when a write took too long for the store's time to be trusted. An object belongs to one
    event loop. `renew` must not be called concurrently; `release` may be called at any time.
    """

    def __init__(
        self, storage: Storage, path: str, lease: Lease, data: bytes, monotonic: Callable[[], float]
    ) -> None:
        self._storage = storage
        self.path = path
        self.lease = lease
        self._data = data
        self._monotonic = monotonic
        # Begin and end of the last write that is known to be stored, and the begin of the last attempt:
        self._began = self._ended = self._tried = monotonic()
        self._modified_at_millis = 0
        self._putting: asyncio.Task[None] | None = None
        self._was_removed = False
        self._is_removed = False  # true also after a failed removal
        self.has_run_out = False
        self.is_released = False

    @property
    def is_over(self) -> bool:
        """Whether the lease has run out or was released."""
        return self.has_run_out or self.is_released

    @property
    def seconds(self) -> float:
        return self.lease.lease_millis / 1000

    @property
    def is_due(self) -> bool:
        """Whether it is time to renew the lease."""
        return self._monotonic() - self._began >= self.seconds / RENEWALS_IN_LEASE

    @property
    def is_doubtful(self) -> bool:
        """Whether the lease may have run out. Only a renewal shows whether it has."""
        return self.is_over or self._monotonic() - self._began >= self.seconds

    async def _write(self) -> tuple[int | None, float]:
        """Write the file. Return its modification time by the store (None when the file is deleted already), and the
        time by this machine's clock when that was known."""
        assert self._putting is None
        self._tried = self._monotonic()
        # Cancelling the caller does not take back a request that was sent. So the write continues, and a later delete
        # or write of the file waits for it, so that the earlier write cannot take effect afterwards.
        putting = self._putting = asyncio.create_task(
            self._storage.put(self.path, self._data), name=f"write {self.path}"
        )
        putting.add_done_callback(retrieve_error)
        await asyncio.wait([putting])
        self._putting = None
        putting.result()
        info = await self._storage.stat(self.path)
        return None if info is None else info.modified_at_millis, self._monotonic()

    async def _settle(self) -> None:
        """Wait for a write whose caller was cancelled. The next `stat` shows its outcome."""
        putting = self._putting
        if putting is not None:
            await asyncio.wait([putting])
            self._putting = None

    def _accept(self, modified_at_millis: int, ended: float) -> None:
        """Note that the last attempted write is stored."""
        self._modified_at_millis = modified_at_millis
        self._began, self._ended = self._tried, ended

    async def begin(self) -> None:
        modified, ended = await self._write()
        if modified is None:
            raise Unavailable(f"{self.path} was written and has disappeared", path=self.path)
        self._accept(modified, ended)

    async def renew(self) -> None:
        """Rewrite the file. Raises Expired (`lease_expired`) when the lease has run out, which is then given up, or
        when it is released during the call. After any other error the lease is unchanged, and the next renewal may
        come in time. A writer's lease runs out only when its file is missing: a collection may have passed it then."""
        self._check_held()
        await failpoints.reached("lease.renew")
        await self._settle()
        info = await self._storage.stat(self.path)
        looked = self._monotonic()
        self._check_held()
        if info is None or not self._continues(info.modified_at_millis, looked):
            await self._give_up(info is None)
        elif info.modified_at_millis != self._modified_at_millis:  # by a write whose answer was lost
            self._accept(info.modified_at_millis, looked)
        pause = self._monotonic() - self._ended
        modified, ended = await self._write()
        self._check_held()
        if modified is None or not (self._is_of_writer or pause < self.seconds):
            await self._give_up(modified is None)
        elif not self._continues(modified, ended):
            await self._give_up(False)
        else:
            self._accept(modified, ended)

    def _continues(self, modified_at_millis: int, ended: float) -> bool:
        """Return whether a write came while the previous write still bound every collector. `modified_at_millis` is its
        time by the store, and at `ended`, by this machine's clock, it was stored.

        Each of the two store times may be wrong by the store's resolution. By the first rule a write in time is never
        called late, and an accepted write is at most two resolutions late. Some stores report when a write began, not
        when it was stored; the second rule bounds that difference.
        """
        lasts = self.lease.lease_millis
        return self._is_of_writer or (
            modified_at_millis - self._modified_at_millis < lasts + RESOLUTION_MILLIS
            and (ended - self._began) * 1000 < binding_millis(lasts) - RESOLUTION_MILLIS
        )

    @property
    def _is_of_writer(self) -> bool:
        return bool(self.lease.transaction_id)

    def _check_held(self) -> None:
        if self.is_over:
            raise self.expired()

    async def _give_up(self, was_removed: bool) -> None:
        # Set before the first await, so that readers get Expired during the deletion and after a cancellation.
        self._was_removed = was_removed
        self.has_run_out = True
        await self._remove()
        raise self.expired()

    def expired(self) -> Expired:
        """Build the error for a reader after the end of the lease."""
        version = self.lease.copy.version
        reason = f"it was not renewed for {self.seconds:g} s"
        if self._was_removed:
            reason = "another program removed it"
        elif not self.has_run_out:
            reason = "it was given up"
        return Expired(
            f"the lease on version {version} ran out: {reason}, and files of the version may be deleted",
            kind="lease_expired",
            version=version,
            path=self.path,
            hint="restart with a new reader; a longer lease outlasts longer pauses and outages",
        )

    def leave(self) -> None:
        """Begin no further write of the lease, and leave its file to run out or to be taken over. Idempotent."""
        self.is_released = self._is_removed = True

    async def release(self) -> None:
        """Give up the lease: from this call on no write of it begins. When the file cannot be deleted now, the lease
        runs out by itself. Idempotent. Call it again when it was cancelled."""
        self.is_released = True
        await self._remove()

    async def _remove(self) -> None:
        if self._is_removed:
            return
        await failpoints.reached("lease.release")
        limit = asyncio.timeout(REMOVAL_SECONDS_MAX)
        try:
            async with limit:
                await self._settle()
                await self._storage.delete(self.path)
        except AlpheusError:
            pass
        except TimeoutError:
            if not limit.expired():
                raise
            if self._putting is not None:
                self._putting.cancel()  # stop further attempts of the write
        self._is_removed = True


class Pinned(msgspec.Struct, frozen=True):
    """Another source for a lease on a version that has expired: the pin of a tag. `verify` raises Expired when, at the
    head, no tag names the pin any more. With `is_chosen`, the pin has a tree of its own, and is always the source."""

    pin_path: str
    verify: Callable[[], Awaitable[None]]
    is_chosen: bool = False


async def take(
    log: Log,
    version: int,
    *,
    new_id: Callable[[], str],
    lease_millis: int = LEASE_MILLIS_DEFAULT,
    holder: str = "",
    monotonic: Callable[[], float] = seconds_since_boot,
    pinned: Pinned | None = None,
    transaction_id: str = "",
    known: Copy | None = None,
) -> HeldLease:
    """Take a lease on a version. The version, or the tag of `pinned`, is known to exist at a moment after the lease was
    stored, so the files that the lease reaches are kept from then on. `transaction_id` makes it the lease of a writer.
    `known` is a copy of the version from this process's memory: the version is then read only after the lease is
    stored.

    Raises Expired for an expired version, NotFound (`no_version`), Corrupt, and the errors of `Storage.put` when the
    store cannot be written: Denied, Unavailable (`storage_read_only`). After an error no lease is left, or one that
    runs out.
    """
    if pinned is not None and pinned.is_chosen:
        copy = await read_pin(log, pinned.pin_path)
    elif known is not None and pinned is None:
        copy = known
    else:
        try:
            copy = copy_of(await log.read(version, bare=True))
            pinned = None
        except Expired:
            if pinned is None:
                raise
            copy = await read_pin(log, pinned.pin_path)
    lease = Lease(copy=copy, lease_millis=lease_millis, holder=holder, transaction_id=transaction_id)
    held = HeldLease(log.storage, fmt.lease_path(new_id()), lease, encode_lease(lease), monotonic)
    try:
        await held.begin()
        await failpoints.reached("lease.written")
        # Look again only now: a tombstone that comes after the copy does no harm, and an earlier one is seen here.
        await (verify_kept(log, copy) if pinned is None else pinned.verify())
    except BaseException:
        await held.release()
        raise
    return held


async def read_lease(storage: Storage, path: str) -> Lease:
    """Read a lease. Raises NotFound, and Corrupt for a damaged one and for a path of another form."""
    data = await storage.read(fmt.check_lease_path(path), size_max=fmt.NODE_FILE_SIZE_BYTES_MAX)
    return decode_lease(data, path)


async def take_over(
    storage: Storage,
    path: str,
    transaction_id: str,
    *,
    monotonic: Callable[[], float] = seconds_since_boot,
) -> HeldLease | None:
    """Renew the lease that an earlier process of the transaction left, and hold it. Return None when the file is
    missing or is no lease of the transaction."""
    try:
        lease = await read_lease(storage, path)
    except (NotFound, Corrupt):
        return None
    if lease.transaction_id != transaction_id:
        return None
    held = HeldLease(storage, path, lease, encode_lease(lease), monotonic)
    await held.begin()
    return held


# --- looking at all of them ------------------------------------------------------------------------


async def leases_in(storage: Storage) -> AsyncIterator[Found]:
    """Yield every lease in no order, including damaged leases and leases that ran out. A lease released during the
    call may be missing.

    A collector can rely on the times: the time of renewal is listed before the file is read, so a lease binds at least
    as long as `Found` says.
    """
    listed = []
    async with contextlib.aclosing(storage.list(fmt.LEASE_FOLDER)) as entries:  # type: ignore[type-var]
        async for entry in entries:
            listed.append((entry.path, entry.modified_at_millis))

    async def read(entry: tuple[str, int]) -> Found | None:
        path, renewed_at = entry
        try:
            fmt.check_lease_path(path)
            data = await storage.read(path, size_max=fmt.NODE_FILE_SIZE_BYTES_MAX)
            return Found(path=path, renewed_at_millis=renewed_at, lease=decode_lease(data, path))
        except NotFound:
            return None
        except Corrupt as error:
            return Found(path=path, renewed_at_millis=renewed_at, damage=error)
        except (
            InvalidInput
        ) as error:  # a later revision of the format, so the files that it reaches are unknown
            damage = Corrupt(f"{path}: {error.message}", kind="corrupt_node", path=path, hint=error.hint)
            return Found(path=path, renewed_at_millis=renewed_at, damage=damage)

    for start in range(0, len(listed), READ_AT_ONCE):
        for found in await each_of(listed[start : start + READ_AT_ONCE], read, READ_AT_ONCE):
            if found is not None:
                yield found
