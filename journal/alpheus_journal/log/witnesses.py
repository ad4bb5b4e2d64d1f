"""Send a version to its slot, and notice that the store was put back to an older state (FORMAT.md, "A store that was
put back").

With each version that it writes, the process checks the slots of the two versions below and, at intervals, the slots of
past heads, before any client learns that the version was committed. A check compares the tags of the slots' files
(`ObjectInfo.tag`). Where a tag differs, as after a move of the catalog, or is unknown, the slot is read and its commit
id compared.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from alpheus_journal.errors import AlpheusError, Corrupt, NotFound, Unavailable
from alpheus_journal.log.versions import Log

INTERVAL_SECONDS_LOCAL = 1.0
INTERVAL_SECONDS = 5.0
"""The time between two checks of past heads, while commits continue."""
AGE_SECONDS_MAX = 65_536
VERSIONS_BELOW = 2
_RECENT_MAX = 8


class Known(msgspec.Struct):
    """A version that this process accepted or wrote. `at` is the time of the event loop then."""

    version: int
    commit_id: str
    at: float
    tag: str = ""
    """The tag of the slot's file when the commit id was known to be stored there; empty when unknown."""


class PastHeads:
    """Past heads, thinned out. For each dropped head there is a kept newer head, and a kept older head that is at most
    twice as old as that newer one. The class is pure: times are passed as numbers, in seconds."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval = interval_seconds
        self._heads: list[Known] = []  # the newest first

    def add(self, head: Known) -> None:
        """Add the newest version, unless the previous kept head is younger than the interval."""
        if not self._heads or head.at >= self._heads[0].at + self._interval:
            self._heads.insert(0, head)
            self._heads = self._thin_out(head.at)

    def _thin_out(self, now: float) -> list[Known]:
        kept = self._heads[:1]
        for head, older in zip(self._heads[1:], self._heads[2:], strict=False):
            if now - older.at > 2 * (now - kept[-1].at):
                kept.append(head)
        if len(self._heads) > 1:
            kept.append(self._heads[-1])
        while len(kept) > 1 and now - kept[-2].at > AGE_SECONDS_MAX:
            kept.pop()
        return kept

    def at(self, now: float) -> Sequence[Known]:
        """Return the heads to be checked now."""
        return tuple(self._thin_out(now))

    def clear(self) -> None:
        self._heads.clear()


class Witnesses:
    """The versions that one process checks (see the module). Their number does not grow with the catalog."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.interval_seconds = INTERVAL_SECONDS_LOCAL if log.storage.publishes_at_once else INTERVAL_SECONDS
        self._recent: OrderedDict[int, Known] = OrderedDict()
        self._past = PastHeads(self.interval_seconds)
        self._looked_at: float | None = None  # when past heads were last checked
        self._own = ("", "")  # commit id and tag of the version that was published last

    def accepted(self, version: int, commit_id: str) -> None:
        """Note that a version became the head here. Nothing is known about versions below the first one: they may have
        been missing for long, and given up by a repair. Opening the catalog checks them."""
        known = Known(version, commit_id, _now(), self._own[1] if commit_id == self._own[0] else "")
        self._recent[version] = known
        if len(self._recent) > _RECENT_MAX:
            self._recent.popitem(last=False)
        self._past.add(known)

    def jumped(self) -> None:
        """Note that versions were skipped, so that nothing is known about lower versions any more."""
        self._recent.clear()
        self._past.clear()

    def _due(self, version: int, now: float) -> dict[str, Known]:
        """Return the versions to check when `version` is written, by path."""
        below = [self._recent.get(number) for number in range(version - VERSIONS_BELOW, version)]
        due = [known for known in below if known is not None]
        if self._is_time(now):
            due += [known for known in self._past.at(now) if known.version < version]
        return {self._log.path(known.version): known for known in due}

    def _is_time(self, now: float) -> bool:
        return self._looked_at is None or now >= self._looked_at + self.interval_seconds

    async def publish(
        self, files: Mapping[str, bytes], slot: str, root: bytes, *, version: int, commit_id: str
    ) -> AlpheusError | None:
        """Store a version and check the due slots. Return None when the slot is filled and all checked slots are
        unchanged.

        A returned error means that the slot is filled. Corrupt (`history_replaced`) means that the store was put back;
        any other error means that a due slot could not be checked. Raises the errors of `Storage.publish`.
        """
        now = _now()
        due = self._due(version, now)
        # Slots without a tag are read concurrently with the publish, so that no client waits longer. Slots that are
        # checked repeatedly are looked up first and read later, so that no tag of a later file is remembered.
        reading = {
            path: asyncio.ensure_future(self._read(known))
            for path, known in due.items()
            if not known.tag and known.version >= version - VERSIONS_BELOW
        }
        try:
            seen = [path for path in due if path not in reading]
            found = await self._log.storage.publish_looking(files, slot, root, seen)
            self._own = (commit_id, found.get(slot) or "")
            return await self._judge(due, found, reading, now)
        finally:
            for task in reading.values():
                task.cancel()
            await asyncio.gather(*reading.values(), return_exceptions=True)

    async def look(self, version: int) -> AlpheusError | None:
        """Check the due slots like `publish`, for a version that is already stored."""
        now = _now()
        due = self._due(version, now)
        try:
            stats = await self._log.storage.stat_many(list(due))
        except AlpheusError as error:
            return error
        found = {path: None if info is None else info.tag for path, info in stats.items()}
        return await self._judge(due, found, {}, now)

    async def _judge(
        self,
        due: Mapping[str, Known],
        found: Mapping[str, str | None],
        reading: Mapping[str, asyncio.Future[AlpheusError | None]],
        now: float,
    ) -> AlpheusError | None:
        asked = [path for path in due if path not in reading]
        unseen = [path for path in asked if path not in found]
        other = [path for path in asked if path in found and (found[path] or "?") != due[path].tag]
        problems = [*await asyncio.gather(*(self._read(due[path]) for path in other)), *await _all(reading)]
        replaced = [problem for problem in problems if problem and problem.kind == "history_replaced"]
        if replaced:
            return replaced[0]
        for path, problem in zip(other, problems, strict=False):
            if problem is None:
                due[path].tag = found[path] or ""
        if unseen:
            return Unavailable(f"{unseen[0]} could not be checked", path=unseen[0])
        failed = [problem for problem in problems if problem is not None]
        if failed:
            return failed[0]
        if self._is_time(now):
            self._looked_at = now
        return None

    async def _read(self, known: Known) -> AlpheusError | None:
        """Compare a slot with the known version. Return the error when the slot holds another version or cannot be
        read."""
        try:
            found = await self._log.commit_id(known.version)
        except NotFound:
            found = "not there"
        except Corrupt:
            return None  # damage is not checked here: readers of the version find it
        except AlpheusError as error:
            return error
        return None if found == known.commit_id else replaced_error(known.version, known.commit_id, found)


def replaced_error(version: int, known: str, found: str) -> Corrupt:
    """Build the error for a store that was put back to an older state."""
    return Corrupt(
        f"version {version} was {known} and is {found}: the storage was put back to an older state",
        kind="history_replaced",
        version=version,
    )


async def _all(
    reading: Mapping[str, asyncio.Future[AlpheusError | None]],
) -> Iterable[AlpheusError | None]:
    return await asyncio.gather(*reading.values())


def _now() -> float:
    return asyncio.get_running_loop().time()
