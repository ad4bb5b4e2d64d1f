"""Leases of jobs: an object beside the catalog says which process is calling a job, so that two processes rarely
compute the same run (FORMAT.md, "Pipelines").

Correctness does not depend on leases. A runner that finds another's lease waits. A runner that holds no lease, lost its
lease, or did not see another's lease computes a run in vain at worst, because its commit finds the position moved. So
there are no claims and no epochs, and the object is overwritten without a condition. No two clocks are compared: a
lease has expired when its bytes have not changed for its duration by the watcher's own clock, or when the process that
wrote the bytes has ended on the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from alpheus.sync.portal import run
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, AlreadyExists, Corrupt, NotFound
from alpheus_journal.storage import Storage

HEARTBEATS_PER_LEASE = 3


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a lease's object, as JSON. `started` is the start time of the process in its system's own count,
    so that a later process with the same number is recognized as another one. An empty `started` means not known."""

    holder: str
    machine: str
    process: int
    started: str
    lease_millis: int
    beat: int


class Leases:
    """Takes leases of one pipeline's jobs for one runner. Used by one thread."""

    def __init__(
        self,
        storage: Storage,
        pipeline: str,
        seconds: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        holder: str = "",
    ) -> None:
        self._storage = storage
        self._pipeline = pipeline
        self._seconds = seconds
        self._monotonic = monotonic
        self._heartbeat = Heartbeat(
            holder=holder or str(uuid.uuid4()),
            machine=platform.node(),
            process=os.getpid(),
            started=_process_start(os.getpid()),
            lease_millis=round(seconds * 1000),
            beat=0,
        )
        self._seen: dict[str, tuple[bytes, float]] = {}  # path → its bytes, and since when by our clock

    def take(self, job: str, beside: Callable[[], Coroutine[Any, Any, None]]) -> Lease | None:
        """Take the lease of a job, which the caller ends after the run. Return None when another runner holds the
        lease. `beside` runs while the lease is written, unless another runner was seen to hold it. When it raises, the
        lease is ended."""
        path = fmt.run_lease_path(self._pipeline, job)
        if not self._seconds:
            run(beside())
            return Lease(None)
        found: bytes | None = None
        try:
            found = run(self._storage.read(path, size_max=fmt.RUN_LEASE_SIZE_BYTES_MAX))
        except NotFound:
            pass
        except Corrupt:
            found = b""  # too large to be a heartbeat: it expires when it stays unchanged
        if found is not None and not self._is_over(path, found):
            return None
        return run(self._begin_beside(path, beside, is_free=found is None))

    async def _begin_beside(
        self, path: str, beside: Callable[[], Coroutine[Any, Any, None]], *, is_free: bool
    ) -> Lease | None:
        beginning = asyncio.create_task(self._begin(path, is_free=is_free), name=f"begin {path}")
        try:
            await beside()
        except BaseException:
            with contextlib.suppress(AlpheusError):
                if (lease := await beginning) is not None:
                    await lease.give_up()
            raise
        return await beginning

    async def _begin(self, path: str, *, is_free: bool) -> Lease | None:
        data = msgspec.json.encode(self._heartbeat)
        if is_free:
            try:
                await self._storage.create(path, data)
            except AlreadyExists:
                return None
        else:
            await self._storage.put(path, data)
        self._seen.pop(path, None)
        heartbeats = asyncio.create_task(self._send_heartbeats(path), name=f"lease {path}")
        return Lease(heartbeats, self._storage, path)

    def _is_over(self, path: str, found: bytes) -> bool:
        with contextlib.suppress(msgspec.DecodeError):  # undecodable bytes expire when they stay unchanged
            heartbeat = msgspec.json.decode(found, type=Heartbeat)
            if heartbeat.holder == self._heartbeat.holder or _is_gone(heartbeat):
                return True
        before, since = self._seen.get(path, (None, 0.0))
        if before != found:
            self._seen[path] = (found, self._monotonic())
            return False
        return self._monotonic() - since >= self._seconds

    async def _send_heartbeats(self, path: str) -> None:
        beat = 0
        while True:
            await asyncio.sleep(self._seconds / HEARTBEATS_PER_LEASE)
            beat += 1
            heartbeat = msgspec.structs.replace(self._heartbeat, beat=beat)
            # A missed heartbeat costs at most a run that is computed twice.
            with contextlib.suppress(AlpheusError):
                await self._storage.put(path, msgspec.json.encode(heartbeat))


class Lease:
    """A lease that was taken. Without heartbeats (leases are switched off) it does nothing."""

    def __init__(
        self, heartbeats: asyncio.Task[None] | None, storage: Storage | None = None, path: str = ""
    ) -> None:
        self._heartbeats = heartbeats
        self._storage = storage
        self._path = path

    def end(self) -> None:
        """End the lease, so that another runner can take it immediately. Idempotent."""
        if self._heartbeats is not None:
            run(self.give_up())

    async def give_up(self) -> None:
        """Do what `end` does, on the client's loop."""
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is None:
            return
        assert self._storage is not None
        heartbeats.cancel()
        await asyncio.gather(heartbeats, return_exceptions=True)
        with contextlib.suppress(AlpheusError):  # on failure other runners wait until the lease expires
            await self._storage.delete(self._path)


def _is_gone(heartbeat: Heartbeat) -> bool:
    """Return whether the process ran on this machine and has ended. In doubt the process counts as alive."""
    if heartbeat.machine != platform.node() or not heartbeat.started or not _process_start(os.getpid()):
        return False
    return _process_start(heartbeat.process) != heartbeat.started


def _process_start(process: int) -> str:
    """Return when a process started, in ticks since this machine booted, with the machine's boot id. Return an empty
    text when the process does not exist, or where the system does not say."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            ticks = file.read().rpartition(")")[2].split()[19]
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {ticks}"
    except (OSError, IndexError):
        return ""
