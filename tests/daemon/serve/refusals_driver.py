"""A daemon without the collector of cycles, so that garbage of refused requests stays and can be counted.

The script prints the daemon's address. It answers each line on standard input with its memory in bytes. When the input
ends, it prints how many objects of each type were in reference cycles.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections import Counter

import psutil

from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_daemon.telemetry import logs as telemetry
from alpheus_journal.journal import Journal
from alpheus_journal.storage.memory import MemoryStorage


def left_in_cycles() -> dict[str, int]:
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    return Counter(type(item).__name__ for item in gc.garbage)


async def main() -> None:
    telemetry.configure("error")
    journal = await Journal.create(MemoryStorage())
    await journal.load_state()
    gc.collect()
    gc.disable()
    async with running(Config(url="memory://x", listen="127.0.0.1:0"), journal) as address:
        print(address, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(psutil.Process().memory_info().rss, flush=True)
        print(json.dumps(left_in_cycles()), flush=True)
    await journal.close()


if __name__ == "__main__":
    asyncio.run(main())
