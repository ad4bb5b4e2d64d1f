"""How a process that commits notices that its store was put back to an older state (FORMAT.md, "A store that was put
back").

With each version that it writes it looks at the slots of the two versions below, and once in a while at those of heads
of the past, before anybody is told that the version was committed. A look compares what tells a stored file from
others (`ObjectInfo.tag`); where that differs, as after a move of the catalog, or is not known, the slot is read and
its commit id compared.
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
"""Between two looks at heads of the past, while commits go on."""
AGE_SECONDS_MAX = 65_536
VERSIONS_BELOW = 2
_RECENT_MAX = 8


class Known(msgspec.Struct):
    """A version that this process accepted or wrote, `at` which moment of its loop's time."""

    version: int
    commit_id: str
    at: float
    tag: str = ""
    """What tells its slot's file from others, as it was when its commit id was known to be there; empty: not known."""


class PastHeads:
    """Heads of the past, so thinned out that there are few, and that of any that was left out one is there which is
    newer, and one which is older and at most twice as old as that. Pure: moments come in as numbers, in seconds."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval = interval_seconds
        self._heads: list[Known] = []  # the newest first

    def add(self, head: Known) -> None:
        """The newest version there is; left out when the one before is not older by the interval."""
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
        """Those that are to be looked at now."""
        return tuple(self._thin_out(now))

    def clear(self) -> None:
        self._heads.clear()


class Witnesses:
    """See the module. What it holds does not grow with the catalog."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.interval_seconds = INTERVAL_SECONDS_LOCAL if log.storage.publishes_at_once else INTERVAL_SECONDS
        self._recent: OrderedDict[int, Known] = OrderedDict()
        self._past = PastHeads(self.interval_seconds)
        self._looked_at: float | None = None  # when heads of the past were looked at the last time
        self._own = ("", "")  # commit id and tag of the version that was published last

    def accepted(self, version: int, commit_id: str) -> None:
        """A version became the head here. Of those below the first one nothing is known: they may be missing for
        long, and given up by a repair. Opening looks at them."""
        known = Known(version, commit_id, _now(), self._own[1] if commit_id == self._own[0] else "")
        self._recent[version] = known
        if len(self._recent) > _RECENT_MAX:
            self._recent.popitem(last=False)
        self._past.add(known)

    def jumped(self) -> None:
        """Versions were left out: nothing is known of those below any more."""
        self._recent.clear()
        self._past.clear()

    def _due(self, version: int, now: float) -> dict[str, Known]:
        """What to look at when a version is written, by path."""
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
        """Store a version, and look: None when its slot is filled and all that was looked at is as it was.

        Corrupt (`history_replaced`): the slot is filled, and the store was put back; another error: it is filled, and
        what had to be looked at could not be. Raises what `Storage.publish` raises.
        """
        now = _now()
        due = self._due(version, now)
        # Read at once, so that nobody waits longer; what is looked at more often is looked at first and read after
        # that, so that what is remembered of its file is not that of a later one.
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
        """As `publish`, of a version that is stored already."""
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
            return Unavailable(f"{unseen[0]} could not be looked at", path=unseen[0])
        failed = [problem for problem in problems if problem is not None]
        if failed:
            return failed[0]
        if self._is_time(now):
            self._looked_at = now
        return None

    async def _read(self, known: Known) -> AlpheusError | None:
        """Why the version in its slot is not the one that is known, or cannot be read now."""
        try:
            found = await self._log.commit_id(known.version)
        except NotFound:
            found = "not there"
        except Corrupt:
            return None  # damage is another matter: whoever reads the version is told
        except AlpheusError as error:
            return error
        return None if found == known.commit_id else replaced_error(known.version, known.commit_id, found)


def replaced_error(version: int, known: str, found: str) -> Corrupt:
    """What tells that the store was put back."""
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
