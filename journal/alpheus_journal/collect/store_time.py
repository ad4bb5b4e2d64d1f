"""The time by the store's clock, by which the ages of files are judged."""

from __future__ import annotations

from collections.abc import Callable

from alpheus_journal.errors import Unavailable
from alpheus_journal.storage import Storage


async def read_store_time(storage: Storage, new_id: Callable[[], str]) -> int:
    """Write a scratch file, and return its modification time in epoch milliseconds. A store that gives whole seconds
    rounds this time as it rounds the times of other files."""
    path = f"selftest/{new_id()}/time"
    await storage.put(path, b"time")
    try:
        info = await storage.stat(path)
    finally:
        await storage.delete(path)
    if info is None:
        raise Unavailable(f"{storage.url}: a file that was just written is missing", path=path)
    return info.modified_at_millis
