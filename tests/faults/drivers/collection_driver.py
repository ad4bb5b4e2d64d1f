"""A process that expires versions and collects files of a catalog on a local disk, again and again, until it is killed.

    collection_driver.py FOLDER ROUNDS

`test_collection_kills.py` arms failpoints in its environment.
"""

from __future__ import annotations

import asyncio
import sys

from alpheus_journal.collect import expiry
from alpheus_journal.errors import Conflict, Exhausted, Expired, Unavailable
from alpheus_journal.journal import Journal
from alpheus_journal.log import leases
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.storage.local import LocalStorage

MINIMUM_AGE_MILLIS = 50
"""Longer than the resolution of a file system's times."""


async def keep_up(journal: Journal) -> None:
    async for _ in journal.expire(ExpiryRules(older_than_millis=0, keep_versions=3, pipeline_hold_millis=0)):
        pass
    async for _ in journal.collect(minimum_age_millis=MINIMUM_AGE_MILLIS):
        pass


async def main(folder: str, rounds: int) -> None:
    journal = await Journal.open(LocalStorage(folder))
    for _ in range(rounds):
        try:
            await keep_up(journal)
        except (Conflict, Exhausted, Expired, Unavailable):
            continue


if __name__ == "__main__":
    expiry.TOMBSTONES_AT_ONCE = 2
    leases.ID_AHEAD_MILLIS_MAX = 0  # ids and files have one clock here
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
