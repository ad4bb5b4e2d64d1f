"""Delete files that nothing refers to."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from alpheus.sync.portal import run
from alpheus_journal.storage import Storage, each_of
from alpheus_journal.urls import redact_url

_log = logging.getLogger(__name__)
AT_ONCE = 32


def delete_scratch(storage: Storage, paths: Sequence[str]) -> None:
    """Delete files that only this process used. Never raises: a store may forbid deleting, and the work is done.

    Logs a warning with the first path that is left behind. Garbage collection finds files below tables' folders.
    """
    if not paths:
        return

    async def try_delete(path: str) -> Exception | None:
        try:
            await storage.delete(path)
        except Exception as error:
            return error
        return None

    found = run(each_of(paths, try_delete, AT_ONCE))
    left = [(path, error) for path, error in zip(paths, found, strict=True) if error is not None]
    if left:
        path, error = left[0]
        place = redact_url(storage.url)
        _log.warning(
            "%d scratch files are left behind in %s, the first is %s: %s", len(left), place, path, error
        )
