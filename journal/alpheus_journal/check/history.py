"""Check that the history is whole: slots, links between versions, hints and leases."""

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
        """Return why a version was not made on the version below it, which may be a tombstone.

        None means that it was, as far as the root says and the version below can be read.
        """
        if (
            not root.version
            or not root.previous_commit_id
            or self._follower.log.given_up_range(root.version - 1)
        ):
            return None
        try:
            below = previous.commit_id if previous else await self._follower.log.commit_id(root.version - 1)
        except (Corrupt, NotFound):
            return None  # the check of that version reports this
        try:
            check_follows(root, below)
        except Corrupt as error:
            return error
        return None

    async def check_slots(self, head: int, lowest: int) -> AsyncIterator[Finding]:
        """Check that no filled slot is above a free one. Otherwise a deleted slot passes for the end of the history and
        is written again."""
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
            if version >= lowest or log.given_up_range(version) is not None:
                continue  # the versions from `lowest` on were read
            if not await log.exists(version):
                yield self._add_hole(version, version, head)
        free = head + 1
        for version in sorted(above):
            # Looked for after the listing, which may miss slots that were written meanwhile.
            if version > free and not await log.exists(free):
                yield self._add_hole(free, version - 1, max(above))
            free = version + 1

    def _add_hole(self, first: int, last: int, top: int) -> Finding:
        what = f"version {first} is" if first == last else f"versions {first} to {last} are"
        return self._findings.add(
            "corrupt_history",
            f"version {top} exists, but {what} missing: a file was deleted, or the storage was restored",
            self._follower.log.path(first),
            first,
        )

    async def check_lost(self, head: int, clues: Clues) -> AsyncIterator[Finding]:
        """Check that no file names a version above the head."""
        log = self._follower.log
        around = {version for version in clues.around(head) if version > head}
        free = around - await evidence.find_taken(log, around)
        files = [(path, version) for path, version in clues.named.items() if version in free]
        for lost in await evidence.find_lost(log, self._follower.catalog_id, files):
            yield self._findings.add(
                "head_missing",
                f"{lost.known_from} knows version {lost.version} as {lost.commit_id}, which is missing;"
                f" the newest version is {head}",
                lost.known_from,
                lost.version,
            )
        if clues.hint is not None and clues.hint in free:
            yield self._findings.add(
                "head_missing",
                f"{fmt.LATEST_HINT} names version {clues.hint}, which is missing; the newest version is {head}",
                fmt.LATEST_HINT,
                clues.hint,
            )

    async def check_leases(self, head: int) -> AsyncIterator[Finding]:
        """Check that every lease can be read and is on a version of this history.

        Otherwise a lease keeps a collector from deleting anything, or protects an unknown version.
        """
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
                    commit_id = "missing"
                except Corrupt:
                    continue  # the check of that version reports this
                if commit_id != copy.commit_id:
                    yield self._findings.add(
                        "corrupt_history",
                        f"the lease {found.path} is on version {copy.version} as {copy.commit_id}, but that version is"
                        f" {commit_id}: the storage was restored to an older state",
                        found.path,
                        copy.version,
                    )
