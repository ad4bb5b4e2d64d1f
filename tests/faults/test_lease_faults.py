"""Readers are killed where they take, renew or release a lease: no other process is harmed, and the lease expires."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from alpheus_journal import failpoints
from alpheus_journal.errors import Expired
from alpheus_journal.failpoints import POINTS
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.log.copies import snapshot_of
from alpheus_journal.log.leases import leases_in, take
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import CheckSummary
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.testing import Lake, raises

LEASES = sorted(name for name in POINTS if name.startswith("lease."))

READER = """
import sys
import alpheus
with alpheus.connect(sys.argv[1]) as catalog:
    with catalog.at(1, lease=1) as reader:
        while sys.argv[2] == "lease.renew":  # until the first renewal
            reader.list_namespaces()
"""


async def lake_with_versions(storage: LocalStorage) -> tuple[Lake, Journal]:
    lake = Lake(storage)
    journal = await lake.create(order=3)
    await lake.commit(journal, *(lake.namespace(f"n{number}") for number in range(5)))
    await lake.commit(journal, lake.namespace("later"))
    return lake, journal


@pytest.mark.parametrize("point", LEASES)
async def test_killed_at_every_point_of_a_lease(point: str, tmp_path: Path) -> None:
    storage = await asyncio.to_thread(LocalStorage, str(tmp_path / "lake"), create=True)
    lake, journal = await lake_with_versions(storage)

    def run() -> int:
        return subprocess.run(
            [sys.executable, "-c", READER, storage.url, point],
            env=os.environ | {failpoints.VARIABLE: f"{point}=kill"},
            check=False,
        ).returncode

    assert await asyncio.to_thread(run) == -9
    (left,) = [found async for found in leases_in(storage)]
    assert left.lease is not None
    assert left.lease.copy.version == 1
    (summary,) = [item async for item in journal.check()]
    assert isinstance(summary, CheckSummary)
    await lake.expire(below=2)
    snapshot = await snapshot_of(left.lease.copy, storage, journal.keys)
    assert list((await snapshot.names(Kind.NAMESPACE)).names) == [f"n{number}" for number in range(5)]
    (again,) = [found async for found in leases_in(storage)]
    assert again.binds_until_millis == left.binds_until_millis, "nobody renews it"
    held = await take(Log(storage, 32), 2, new_id=lake.identities.uuid4)
    await held.release()
    await raises(Expired, take(Log(storage, 32), 1, new_id=lake.identities.uuid4))
    await journal.close()
