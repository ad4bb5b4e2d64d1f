"""Delete files that nothing refers to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from alpheus.sync.portal import run
from alpheus_journal.storage import Storage
from alpheus_journal.urls import redact_url

_log = logging.getLogger(__name__)


def delete_scratch(storage: Storage, paths: Sequence[str]) -> None:
    """Delete files that only this process used. Never raises: a store may forbid deleting, and the work is done.

    Logs a warning with the first path that is left behind. Garbage collection finds files below tables' folders.
    """
    if not paths:
        return
    found = run(_delete_all(storage, paths))
    left = [(path, error) for path, error in zip(paths, found, strict=True) if isinstance(error, Exception)]
    if left:
        path, error = left[0]
        place = redact_url(storage.url)
        _log.warning(
            "%d scratch files are left behind in %s, the first is %s: %s", len(left), place, path, error
        )


async def _delete_all(storage: Storage, paths: Sequence[str]) -> list[BaseException | None]:
    return await asyncio.gather(*(storage.delete(path) for path in paths), return_exceptions=True)
