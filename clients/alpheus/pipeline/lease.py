"""Who calls a job right now: an object beside the catalog, so that two processes rarely compute the same (FORMAT.md,
"Pipelines").

Nothing rests on it. Whoever runs into a lease waits a while, and whoever has none, lost it, or never saw that of
another computes a step for nothing at worst: its commit finds the position moved. So there are no claims and no
epochs, the object is overwritten without a condition, and no two clocks are compared: a lease is over when its bytes
have not changed for its duration by the watcher's own clock, or when the process that wrote them is gone from the
same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
import uuid
from collections.abc import Callable

import msgspec

from alpheus.sync.portal import run
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, AlreadyExists, Corrupt, NotFound
from alpheus_journal.storage import Storage

HEARTBEATS_PER_LEASE = 3


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """What a lease's object holds, as JSON. `started`: of the process, as its system counts, so that another process
    under the same number is told apart; empty: not known."""

    holder: str
    machine: str
    process: int
    started: str
    lease_millis: int
    beat: int


class Leases:
    """Leases of one pipeline's jobs on behalf of one runner. Used by one thread."""

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
        self._seen: dict[str, tuple[bytes, float]] = {}  # path → what lay there, and since when by our clock

    def take(self, job: str) -> Lease | None:
        """The lease of a job, to be ended after the run; None when somebody else has it."""
        path = fmt.run_lease_path(self._pipeline, job)
        if not self._seconds:
            return Lease(None)
        found: bytes | None = None
        try:
            found = run(self._storage.read(path, size_max=fmt.RUN_LEASE_SIZE_BYTES_MAX))
        except NotFound:
            pass
        except Corrupt:
            found = b""  # too large; no sign of life, and it grows old as others do
        if found is not None and not self._is_over(path, found):
            return None
        heartbeats = run(self._begin(path, is_free=found is None))
        if heartbeats is None:
            return None
        self._seen.pop(path, None)
        return Lease(heartbeats, self._storage, path)

    async def _begin(self, path: str, *, is_free: bool) -> asyncio.Task[None] | None:
        data = msgspec.json.encode(self._heartbeat)
        if is_free:
            try:
                await self._storage.create(path, data)
            except AlreadyExists:
                return None
        else:
            await self._storage.put(path, data)
        return asyncio.create_task(self._send_heartbeats(path), name=f"lease {path}")

    def _is_over(self, path: str, found: bytes) -> bool:
        with contextlib.suppress(msgspec.DecodeError):  # else it is over when it has grown old
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
            # A heartbeat that is not given costs a step that is computed twice.
            with contextlib.suppress(AlpheusError):
                await self._storage.put(path, msgspec.json.encode(heartbeat))


class Lease:
    """A lease that was taken; without a path there is nothing to it."""

    def __init__(
        self, heartbeats: asyncio.Task[None] | None, storage: Storage | None = None, path: str = ""
    ) -> None:
        self._heartbeats = heartbeats
        self._storage = storage
        self._path = path

    def end(self) -> None:
        """Let the next one in at once. Idempotent."""
        if self._heartbeats is not None:
            run(self._end(self._heartbeats))
            self._heartbeats = None

    async def _end(self, heartbeats: asyncio.Task[None]) -> None:
        assert self._storage is not None
        heartbeats.cancel()
        await asyncio.gather(heartbeats, return_exceptions=True)
        with contextlib.suppress(AlpheusError):  # then others wait until it is old
            await self._storage.delete(self._path)


def _is_gone(heartbeat: Heartbeat) -> bool:
    """Whether its process ran on this machine and does no more. In doubt it lives."""
    if heartbeat.machine != platform.node() or not heartbeat.started or not _process_start(os.getpid()):
        return False
    return _process_start(heartbeat.process) != heartbeat.started


def _process_start(process: int) -> str:
    """When a process started, in ticks since this machine did, with the machine's own start; empty when it is not
    there, or where the system does not tell."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            ticks = file.read().rpartition(")")[2].split()[19]
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {ticks}"
    except (OSError, IndexError):
        return ""
