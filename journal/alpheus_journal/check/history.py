"""Slots, links between versions, hints and leases: whether the history is whole."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from alpheus_journal import format as fmt
from alpheus_journal.check.findings import Findings
from alpheus_journal.errors import AlpheusError, Corrupt, NotFound
from alpheus_journal.log.leases import leases_in
from alpheus_journal.log.versions import Root, check_follows
from alpheus_journal.model.answers import Finding
from alpheus_journal.replay import evidence
from alpheus_journal.replay.evidence import Clues
from alpheus_journal.replay.follower import Follower


class HistoryCheck:
    def __init__(self, follower: Follower, findings: Findings) -> None:
        self._follower = follower
        self._findings = findings

    async def broken_link(self, root: Root, previous: Root | None) -> AlpheusError | None:
        """Why the version was not made on the one below it, which may be a tombstone; None: it was, as far as it says
        and as that one can be read."""
        if not root.version or not root.previous_commit_id or self._follower.log.gave_up(root.version - 1):
            return None
        try:
            below = previous.commit_id if previous else await self._follower.log.commit_id(root.version - 1)
        except (Corrupt, NotFound):
            return None  # found with that version
        try:
            check_follows(root, below)
        except Corrupt as error:
            return error
        return None

    async def check_slots(self, head: int, lowest: int) -> AsyncIterator[Finding]:
        """No slot lies above a free one: else a deleted slot passes for the end of history, and is written again."""
        log, above, listed = self._follower.log, set[int](), bytearray((head >> 3) + 1)
        async with contextlib.aclosing(log.storage.list("vn/")) as entries:  # type: ignore[type-var]
            async for entry in entries:
                if entry.path in (fmt.LATEST_HINT, fmt.OLDEST_HINT):
                    continue
                try:
                    version, digits = fmt.parse_version_file(entry.path)
                except Corrupt as error:
                    yield self._findings.of_error(error, head, entry.path)
                    continue
                if digits == log.digits and version > head:
                    above.add(version)
                elif digits == log.digits:
                    listed[version >> 3] |= 1 << (version & 7)
        for version in evidence.missing_versions(listed, head):
            if version >= lowest or log.gave_up(version) is not None:
                continue  # those after it were read
            if not await log.exists(version):
                yield self._add_hole(version, version, head)
        free = head + 1
        for version in sorted(above):
            # Asked after the listing, which may miss what was written meanwhile.
            if version > free and not await log.exists(free):
                yield self._add_hole(free, version - 1, max(above))
            free = version + 1

    def _add_hole(self, first: int, last: int, top: int) -> Finding:
        what = f"version {first} is" if first == last else f"versions {first} to {last} are"
        return self._findings.add(
            "corrupt_history",
            f"version {top} is there and {what} not: somebody deleted them, or the storage was put back",
            self._follower.log.path(first),
            first,
        )

    async def check_lost(self, head: int, clues: Clues) -> AsyncIterator[Finding]:
        """Nothing tells of a version above the head."""
        log = self._follower.log
        around = {version for version in clues.around(head) if version > head}
        free = around - await evidence.find_taken(log, around)
        files = [(path, version) for path, version in clues.named.items() if version in free]
        for lost in await evidence.find_lost(log, self._follower.catalog_id, files):
            yield self._findings.add(
                "head_missing",
                f"{lost.known_from} knows version {lost.version} as {lost.commit_id}, which is not there;"
                f" the newest is {head}",
                lost.known_from,
                lost.version,
            )
        if clues.hint is not None and clues.hint in free:
            yield self._findings.add(
                "head_missing",
                f"{fmt.LATEST_HINT} names version {clues.hint}, which is not there; the newest is {head}",
                fmt.LATEST_HINT,
                clues.hint,
            )

    async def check_leases(self, head: int) -> AsyncIterator[Finding]:
        """Every lease can be read, and is of a version of this history: else it keeps a collector from deleting
        anything, or keeps what nobody knows."""
        async with contextlib.aclosing(leases_in(self._follower.log.storage)) as leases:  # type: ignore[type-var]
            async for found in leases:
                if found.lease is None:
                    assert found.damage is not None
                    yield self._findings.of_error(found.damage, head, found.path)
                    continue
                copy = found.lease.copy
                try:
                    commit_id = await self._follower.log.commit_id(copy.version)
                except NotFound:
                    commit_id = "not there"
                except Corrupt:
                    continue  # of the version, and found with it
                if commit_id != copy.commit_id:
                    yield self._findings.add(
                        "corrupt_history",
                        f"the lease {found.path} is on version {copy.version} as {copy.commit_id}, which is"
                        f" {commit_id}: the storage was put back to an older state",
                        found.path,
                        copy.version,
                    )
