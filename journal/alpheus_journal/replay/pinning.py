"""Pins for tags: made of a version or of another tag's version, and counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from alpheus_journal.log.copies import Copy
from alpheus_journal.model.answers import At, Pin, Tag
from alpheus_journal.replay.counts import Counts, count_version
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.tags import Read, load_tag, pin_tag, pin_version
from alpheus_journal.tree.reader import Snapshot


class Pinning:
    """Makes pins for one process. `version_of` finds the version of a reference."""

    def __init__(
        self,
        read: Read,
        follower: Follower,
        version_of: Callable[[At], Awaitable[int]],
        *,
        new_id: Callable[[], str],
    ) -> None:
        self._read = read
        self._follower = follower
        self._version_of = version_of
        self._new_id = new_id

    async def create(self, at: At) -> Pin:
        """Pin a version; see `Access.create_pin`."""
        log = self._follower.log
        if isinstance(at, Tag):
            again = partial(load_tag, self._read, at.name)
            return await pin_tag(log, await again(), again, count=self._count, new_id=self._new_id)
        return await pin_version(log, await self._version_of(at), count=self._count, new_id=self._new_id)

    async def _count(self, copy: Copy) -> Counts:
        """Count what a pinned version has, where that is cheap."""
        follower = self._follower
        snapshot = Snapshot(follower.reader, copy.version, copy.root, copy.catalog_def)
        return await count_version(snapshot, follower.replay.verified, follower.known_event)
