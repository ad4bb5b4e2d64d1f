"""Clients of a simulated process that hold leases: readers, whose version must stay readable after it has expired, and
writers, whose uploads must outlast collections until their commit.

A process that is paused or killed renews nothing, so its leases run out.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable

from alpheus_journal import format as fmt
from alpheus_journal.clock import Identities
from alpheus_journal.errors import AlpheusError, Expired, OutcomeUnknown, Unavailable
from alpheus_journal.journal import Journal
from alpheus_journal.log import leases
from alpheus_journal.log.leases import HeldLease
from alpheus_journal.log.versions import Log
from alpheus_journal.model.table_starts import find_lacking
from alpheus_journal.storage import Storage
from alpheus_journal.testing.models.reachable import Reachable, starts_at
from alpheus_journal.testing.simulation.loop import Audit

READER_PAUSE_SECONDS_MAX = 6.0
LEASE_MILLIS = (leases.LEASE_MILLIS_MIN, 4_000, 30_000)
WRITER_RATE = 0.3
"""The share of transactions with a lease."""
_BACK_MAX = 4


class Leaseholders:
    """Takes and holds the leases of one process, over its network.

    `random` is of its own, so that the requests of a seed do not change with the leases. `counts` has "readers",
    "writers", "lost" (leases that ran out while they were held), and "kept" (looks at an expired version, all of whose
    files were there because of a lease).
    """

    def __init__(
        self,
        rng: random.Random,
        network: Storage,
        audit: Audit,
        keys: fmt.Keys,
        identities: Identities,
        counts: Counter[str],
        must_be_gone: Callable[[int, AlpheusError], None],
    ) -> None:
        self._rng = rng
        self._network = network
        self._audit = audit
        self._keys = keys
        self._identities = identities
        self._counts = counts
        self._must_be_gone = must_be_gone
        self._group: asyncio.TaskGroup | None = None
        self.is_over = False

    async def run(self, journal: Journal) -> None:
        """Take leases of readers, one after the other, and renew those of writers, until `is_over`."""
        async with asyncio.TaskGroup() as self._group:
            while not self.is_over:
                await asyncio.sleep(self._rng.random() * READER_PAUSE_SECONDS_MAX)
                version = max(0, journal.head.version - self._rng.randrange(_BACK_MAX + 1))
                held = await self._take(version, "")
                if held is not None:
                    self._counts["readers"] += 1
                    await self._look(held)
                    with contextlib.suppress(AlpheusError):
                        await held.release()

    async def lease_writer(self, transaction_id: str, version: int) -> str:
        """Take a lease for a transaction, at random, and renew it for some time. Return its path, or nothing."""
        if self._group is None or self._rng.random() >= WRITER_RATE:
            return ""
        held = await self._take(version, transaction_id)
        if held is None:
            return ""
        self._counts["writers"] += 1
        self._group.create_task(self._renew(held, self._rng.choice((0, 2, 20))))
        return held.path

    async def _take(self, version: int, transaction_id: str) -> HeldLease | None:
        loop = asyncio.get_running_loop()
        try:
            return await leases.take(
                Log(self._network, self._keys.version_digits),
                version,
                new_id=self._identities.uuid4,
                lease_millis=self._rng.choice(LEASE_MILLIS),
                monotonic=loop.time,
                transaction_id=transaction_id,
            )
        except (Unavailable, OutcomeUnknown):
            return None
        except Expired as error:
            self._must_be_gone(version, error)
            return None

    async def _renew(self, held: HeldLease, times: int) -> bool:
        """Renew a lease in time, unless the process is paused or the network fails. Return whether it is held."""
        for _ in range(times):
            await asyncio.sleep(held.seconds / leases.RENEWALS_IN_LEASE)
            if self.is_over:
                break
            try:
                await held.renew()
            except Expired:
                self._counts["lost"] += 1
                return False
            except (Unavailable, OutcomeUnknown):
                continue
        return True

    async def _look(self, held: HeldLease) -> None:
        """Hold a reader's lease for some time, and check at each look that every file of its version is there, but for
        data files of tables whose starts were above it when the lease was durable."""
        lacking = find_lacking(await starts_at(self._audit, self._keys), held.lease.copy.version)
        for _ in range(self._rng.choice((1, 2, 6))):
            if not await self._renew(held, 1) or self.is_over:
                return
            if held.is_doubtful:
                continue  # its holder would have to ask the store
            copy = held.lease.copy
            reached = await Reachable(self._audit, self._keys).find_of_copy(copy, lacking)
            missing = [path for path in sorted(reached) if await self._audit.stat(path) is None]
            assert not missing, f"version {copy.version} is leased by {held.path}, and has lost {missing}"
            self._counts["kept"] += copy.version < self._audit.expired
