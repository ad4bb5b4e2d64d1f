"""Find the versions that may hold a transaction id or a retry key, without reading all versions.

The index consists of parts, each of which covers a range of versions without a gap: stored runs, opened when a search
reaches their range; runs in memory, of versions that were accepted or read; and the versions accepted last. A search
goes from new to old, and reads the roots of versions that no part covers. A part only proposes versions, and the root
decides. A covered version that is not proposed certainly does not match (FORMAT.md, "Index of ids and keys").

The module is long because searching and writing runs share the parts and the rules for dropping them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence

import msgspec

from alpheus_journal import failpoints
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, NotFound, Unavailable
from alpheus_journal.log.index_runs import (
    FOLDER,
    SIZE_BYTES_MAX,
    Fingerprint,
    Gathering,
    Part,
    Run,
    clip_run,
    decode_run,
    encode_run,
    fingerprint,
    gaps,
    last_version,
    merge_runs,
    older_to_merge,
    run_error,
    run_path,
    superfluous_runs,
    terms,
)
from alpheus_journal.log.versions import Log, Root
from alpheus_journal.mmap_file import map_file, nameless_copy, open_plain
from alpheus_journal.model.operations import RecordedTransaction
from alpheus_journal.storage import Storage, each_of

ROOTS_READ_AT_ONCE = 16
"""Roots that a search reads concurrently where no part covers."""
ROOTS_INDEXED_AT_ONCE = 4
"""Roots that the writer of runs reads concurrently; it has time."""

PAUSE_SECONDS_MAX = 0.1

MEMORY_ENTRIES_MAX = 1 << 20
"""Entries in memory that are not stored: 16 bytes each, and at most 200 bytes each for the newest. Above this limit the
oldest are dropped, and a stored run or the roots must be read again for them."""
SEALED_ENTRIES = 8192
"""The number of entries gathered in a dict before they are sorted."""
SORTED_ENTRIES_MAX = 1 << 16
"""The most entries that are sorted in one step in the event loop, which takes some milliseconds."""
GATHERINGS_MAX = 4

PIECE_VERSIONS_MAX = 20_000
PIECE_ENTRIES_MAX = 1 << 20
"""The most versions and entries of one new run. A stop loses the work on one run."""

VANISHED_MAX = 3
MAPPED_SIZE_BYTES = 1 << 20
"""Smaller files are held in memory instead of being mapped."""

_NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""A link, a folder or a socket is at the path of the file."""


class Counts(msgspec.Struct):
    """Counts since this process opened the catalog."""

    searches: int = 0
    roots_read: int = 0  # by searches and for runs, because no part covered their versions
    collisions: int = 0  # versions that were proposed and did not hold the term
    runs_refused: int = 0
    runs_written: int = 0
    bytes_written: int = 0
    runs_deleted: int = 0


class Index:
    """The index of one follower, which reports every accepted version to it (see the module)."""

    def __init__(
        self,
        log: Log,
        catalog_id: str,
        head_version: int,
        *,
        fingerprint: Fingerprint = fingerprint,
        memory_entries_max: int = MEMORY_ENTRIES_MAX,
    ) -> None:
        self._log = log
        self._catalog_id = catalog_id
        self._fingerprint = fingerprint
        self._memory_entries_max = memory_entries_max
        self.cache_dir = ""
        """The folder for nameless copies of stored runs that cannot be mapped in place. Empty means the system's."""
        self._fresh = Gathering(head_version + 1)
        self._gatherings: list[Gathering] = []
        self._memory: list[Run] = []
        self._stored: dict[str, Run] = {}  # by path
        self._unopened: dict[str, int] = {}  # listed, path to last version
        self._spare: set[str] = set()  # stored runs that another run covers
        self._untrue: dict[
            str, AlpheusError
        ] = {}  # runs that are whole, but lack an entry that `check` found
        self._listed = False  # False before the first listing, and when a listed run has vanished
        self._bottom: int | None = (
            None  # the lowest version from which all versions up to the head are covered; None: to be computed
        )
        self._opening = asyncio.Lock()
        self._writing = asyncio.Lock()
        self.refused: dict[str, AlpheusError] = {}
        """Stored runs of the last listing that are not used, and why. Under the folder's path: why the listing
        failed."""
        self.counts = Counts()
        self.on_refused: Callable[[str, AlpheusError], None] = lambda path, error: None
        """Called with the path of each unusable stored run, and the error."""

    # --- what is known

    @property
    def head_version(self) -> int:
        return self._fresh.last

    @property
    def runs_count(self) -> int:
        """The number of open stored runs."""
        return len(self._stored)

    @property
    def entries_count(self) -> int:
        """The number of entries in open stored runs."""
        return sum(len(run) for run in self._stored.values())

    @property
    def memory_entries_count(self) -> int:
        """The number of entries in memory that are not stored, as far as this process knows."""
        return len(self._fresh) + sum(map(len, self._gatherings)) + sum(map(len, self._memory))

    @property
    def stored_version(self) -> int:
        """The newest version that an open run covers, or -1."""
        return max((run.last for run in self._stored.values()), default=-1)

    def accepted(self, version: int, transactions: Iterable[RecordedTransaction]) -> None:
        """Note that a version is the head now. Costs one hash for each term, and memory within the bound."""
        if version != self._fresh.last + 1:
            self.jumped(version - 1)
        self._fresh.add(version, map(self._fingerprint, terms(transactions)))
        if len(self._fresh) >= SEALED_ENTRIES:
            self._seal_fresh()

    def jumped(self, head_version: int) -> None:
        """Note that the versions up to `head_version` were skipped, so that nothing is known about them."""
        self._seal_fresh()
        self._fresh = Gathering(head_version + 1)
        self._bottom = None

    def collided(self) -> None:
        """Count a proposed version that does not hold the term."""
        self.counts.collisions += 1

    def _seal_fresh(self) -> None:
        if self._fresh.last >= self._fresh.first:
            run = self._fresh.run()
            self._fresh = Gathering(run.last + 1)
            self._keep(run)

    def _keep(self, run: Run) -> None:
        """Keep a run in memory, merged with its neighbours while that is fast. Drop the oldest parts above the
        bound."""
        while True:
            near = [
                other
                for other in self._memory
                if (other.last == run.first - 1 or other.first == run.last + 1)
                and len(other) + len(run) <= SORTED_ENTRIES_MAX
                and len(other) <= 2 * (len(run) + 1)
            ]
            if not near:
                break
            self._memory.remove(near[0])
            run = merge_runs([run, near[0]])
        self._memory.append(run)
        self._memory.sort(key=lambda run: run.last)
        while self.memory_entries_count > self._memory_entries_max and (self._memory or self._gatherings):
            kept: list[Run | Gathering] = [*self._memory, *self._gatherings]
            self._forget(min(kept, key=lambda part: part.last))
        self._bottom = None

    def _forget(self, gone: Run | Gathering) -> None:
        self._memory = [run for run in self._memory if run is not gone]
        self._gatherings = [one for one in self._gatherings if one is not gone]
        if gone is self._fresh:
            self._fresh = Gathering(self._fresh.last + 1)
        self._bottom = None

    def _gather(self, version: int, fingerprints: Iterable[int]) -> None:
        """Keep the terms of a root that was read, unless its version is known. Callers skip this when memory is full,
        because newer versions are needed more often."""
        known: list[Run | Gathering] = [*self._gatherings, *self._memory]
        if any(part.first <= version <= part.last for part in known):
            return
        for gathering in self._gatherings:
            if version in (gathering.first - 1, gathering.last + 1):
                break
        else:
            gathering = Gathering(version)
            self._gatherings.append(gathering)
        gathering.add(version, fingerprints)
        full = [one for one in self._gatherings if len(one) >= SEALED_ENTRIES]
        if len(self._gatherings) > GATHERINGS_MAX:
            full.append(self._gatherings[0])
        for one in dict.fromkeys(full):
            self._gatherings.remove(one)
            self._keep(one.run())
        self._bottom = None

    # --- searching

    def _parts(self) -> Iterator[Run | Gathering]:
        yield self._fresh
        yield from self._gatherings
        yield from self._memory
        yield from self._stored.values()

    def _floor(self, position: int) -> int | None:
        """Return the lowest version such that all versions from it to `position` are covered, or None when `position`
        is not covered."""
        if self._bottom is None:
            self._bottom = self.head_version + 1
            self._bottom = self._reach(self.head_version)
        if self._bottom <= position:
            return self._bottom
        floor = self._reach(position)
        return floor if floor <= position else None

    def _reach(self, position: int) -> int:
        floor = position + 1
        while True:
            below = floor - 1
            lower = min((p.first for p in self._parts() if p.first <= below <= p.last), default=floor)
            if lower == floor:
                return floor
            floor = lower

    def _find_proposed(self, wanted: Sequence[int], low: int, high: int) -> list[int]:
        """Return the versions of [low, high] that any part proposes, newest first."""
        return sorted(
            {
                version
                for part in self._parts()
                if part.first <= high and part.last >= low
                for number in wanted
                for version in part.find(number)
                if low <= version <= high
            },
            reverse=True,
        )

    async def versions(
        self, sought: Sequence[str], low: int, high: int, *, made_at_millis: int = 0, reads: bool = True
    ) -> AsyncGenerator[int, None]:
        """Yield the versions of [low, high] that may hold one of the terms, newest first. No other kept version holds
        one.

        The search ends at an expired version, and at a version of this software that was made before `made_at_millis`.
        Without `reads`, versions that no part covers are skipped and may hold a term. Missing versions that a repair
        gave up are always skipped. Raises Corrupt for any other root that must be read and cannot be. `high` is not
        above the head.
        """
        self.counts.searches += 1
        if any(isinstance(error, Unavailable) for error in self.refused.values()):
            self._listed = False
        wanted = [self._fingerprint(term) for term in sought]
        position, at_once, has_looked = high, 0, False
        while position >= low:
            floor = self._floor(position)
            if floor is not None:
                for version in self._find_proposed(wanted, max(low, floor), position):
                    yield version
                position, at_once = floor - 1, 0
                continue
            bottom = self._uncovered_from(position)
            if not has_looked and (not self._listed or position - max(bottom, low) > ROOTS_READ_AT_ONCE):
                has_looked = True
                await self._look()
            reaching = max((last for last in self._unopened.values() if last >= position), default=-1)
            if made_at_millis and (reaching == position or not at_once):
                at_once = (
                    0  # one root that a run covers may end the search, and then the run need not be fetched
                )
            elif reaching >= position and await self._open_at(position):
                continue
            bottom = self._uncovered_from(position)
            if not reads:
                position = bottom - 1
                continue
            at_once = min(2 * at_once or (1 if made_at_millis else ROOTS_READ_AT_ONCE), ROOTS_READ_AT_ONCE)
            bottom = max(bottom, low, position - at_once + 1)
            for version, root in await self._read(range(position, bottom - 1, -1), ROOTS_READ_AT_ONCE):
                if isinstance(root, Expired):
                    return
                if isinstance(root, AlpheusError):
                    raise root
                if root is None:
                    continue
                if not set(sought).isdisjoint(terms(root.transactions)):
                    yield version
                if root.transactions and root.created_at_millis < made_at_millis:
                    return
            position = bottom - 1

    def _uncovered_from(self, position: int) -> int:
        """The lowest version down to which nothing covers what `position` does not, opened or not."""
        lasts = [part.last for part in self._parts() if part.last < position]
        lasts += [last for last in self._unopened.values() if last < position]
        return max(lasts, default=-1) + 1

    async def _read(
        self, versions: Sequence[int], at_once: int
    ) -> list[tuple[int, Root | AlpheusError | None]]:
        """The roots of versions that follow one another, and what kept one from being read; None: it was given up, and
        is not there."""

        async def one(version: int) -> Root | AlpheusError | None:
            try:
                return await self._log.read(version)
            except NotFound as error:
                if self._log.given_up_range(version) is not None:
                    return None
                return Corrupt(
                    f"version {version} is below the head and missing",
                    kind="corrupt_history",
                    path=self._log.path(version),
                    version=version,
                    hint=error.hint,
                )
            except AlpheusError as error:
                return error

        roots = await each_of(versions, one, at_once)
        self.counts.roots_read += len(roots)
        has_room = self.memory_entries_count < self._memory_entries_max
        for version, root in zip(versions, roots, strict=True):
            if has_room and isinstance(root, Root):
                self._gather(version, map(self._fingerprint, terms(root.transactions)))
        return list(zip(versions, roots, strict=True))

    # --- stored runs

    async def _look(self) -> None:
        """List the stored runs again, because there may be new ones."""
        async with self._opening:
            await self._list()

    async def _open_at(self, position: int) -> bool:
        """Open stored runs that may cover an uncovered version. Return whether a part covers the version now."""
        async with self._opening:
            for _ in range(VANISHED_MAX):
                for path in sorted(self._unopened, key=lambda path: (self._unopened[path], path)):
                    if self._floor(position) is not None:
                        return True
                    if self._unopened.get(path, -1) >= position:
                        await self._open(path)
                if self._floor(position) is not None or self._listed:
                    break
                await self._list()  # a run was deleted since the listing, so another run covers its range
            return self._floor(position) is not None

    async def _list(self) -> set[str]:
        """List the stored runs. Open runs stay open, even when their files were deleted."""
        listed: dict[str, int] = {}
        self.refused.clear()
        try:
            async with contextlib.aclosing(self._log.storage.list(FOLDER)) as entries:  # type: ignore[type-var]
                async for entry in entries:
                    last = last_version(entry.path)
                    if last is not None:
                        listed[entry.path] = last
        except AlpheusError as error:  # searches then read roots
            self.refused[FOLDER] = error
        self._unopened = {path: last for path, last in listed.items() if path not in self._stored}
        self._spare &= listed.keys()
        for path in self._spare:
            del self._unopened[path]
        for path in self._untrue.keys() & self._unopened.keys():
            del self._unopened[path]
            self.refused[path] = self._untrue[path]
        self._listed = True
        await failpoints.reached("index.listed")
        return set(listed)

    async def _open(self, path: str) -> bool:
        """Open a stored run. Return whether it belongs to this history and is used from now on; `refused` holds the
        error otherwise."""
        try:
            data = await _map_run(self._log.storage, path, self.cache_dir)
            run = await asyncio.to_thread(decode_run, data, path, catalog_id=self._catalog_id)
            await self._verify(run, path)
        except NotFound:
            del self._unopened[path]
            self._listed = False
            return False
        except AlpheusError as error:
            del self._unopened[path]
            self._refuse(path, error)
            return False
        del self._unopened[path]
        self._stored[path] = run
        for spare in superfluous_runs(self._stored, 0):
            del self._stored[spare]
            self._spare.add(spare)
        self._memory = [part for part in self._memory if not run.first <= part.first <= part.last <= run.last]
        self._gatherings = [
            part for part in self._gatherings if not run.first <= part.first <= part.last <= run.last
        ]
        self._bottom = None
        return True

    def _refuse(self, path: str, error: AlpheusError) -> None:
        self.refused[path] = error
        self.counts.runs_refused += 1
        self.on_refused(path, error)

    async def _verify(self, run: Run, path: str) -> None:
        """Raise Corrupt (`corrupt_index`) when the slot of the run's last version does not hold what the run says:
        another history was written there, or the run is incomplete. Raise Corrupt (`head_missing`) when the slot is
        free: such a run is kept, because it may be the only record of lost versions."""
        transactions: tuple[RecordedTransaction, ...] = ()
        try:
            root = await self._log.read(run.last)
        except Expired:
            commit_id = await self._log.commit_id(run.last)
        except NotFound:
            raise Corrupt(
                f"index run {path}: version {run.last} is missing",
                kind="head_missing",
                path=path,
                version=run.last,
                hint="run alpheus repair --dry-run to see what is missing",
            ) from None
        else:
            commit_id, transactions = root.commit_id, root.transactions
        if commit_id != run.commit_id:
            raise run_error(path, f"version {run.last} is {commit_id}, not {run.commit_id}")
        lacks = self._find_lacking(run, run.last, transactions)
        if lacks:
            raise run_error(path, f"it lacks {lacks} of version {run.last}")

    def _find_lacking(
        self, part: Run | Gathering, version: int, transactions: Iterable[RecordedTransaction]
    ) -> str:
        """Return a term of a covered version for which the part does not propose the version, or an empty text."""
        for term in terms(transactions):
            if version not in part.find(self._fingerprint(term)):
                return term
        return ""

    async def check(self, version: int) -> str:
        """Compare what the index knows about one version with the version's root. Return an empty text, or a
        description of the difference. Wrong parts are not used any more. Raises the errors of reading a root."""
        transactions = (await self._log.read(version)).transactions
        found = ""
        for part in list(self._parts()):
            lacks = part.first <= version <= part.last and self._find_lacking(part, version, transactions)
            if not lacks:
                continue
            found = f"version {version} has {lacks}, which the index lacks"
            for path, run in list(self._stored.items()):
                if run is part:
                    del self._stored[path]
                    self._untrue[path] = run_error(path, f"it lacks {lacks} of version {version}")
                    self._refuse(path, self._untrue[path])
            self._forget(part)
        return found

    # --- writing runs

    async def write(self, *, oldest: int, new_id: Callable[[], str]) -> int:
        """Store runs of all versions from `oldest` to the head that no stored run covers. Return how many were written.

        Then delete unneeded runs: runs that others cover, runs of expired versions only, and damaged runs. A version
        that cannot be read is skipped, and the first such error is raised at the end. Runs that are stored stay when
        this call is cancelled or the storage fails. Raises Unavailable when the storage fails, also when it cannot be
        listed.
        """
        failure: AlpheusError | None = None
        unreadable: list[Part] = []
        before, futile = self.counts.runs_written, 0
        async with self._writing:
            await self._open_all()
            head = self.head_version
            while missing := gaps([*self._stored.values(), *unreadable], oldest, head):
                piece, error = await self._piece(missing[0])
                if piece is not None:
                    await self._store(piece, new_id())
                    futile += bool(gaps(self._stored.values(), piece.first, piece.last))
                    if futile == VANISHED_MAX:
                        raise Unavailable(
                            f"index runs of the versions from {piece.first} to {piece.last} vanish as soon as they"
                            " are stored",
                            hint="find out which program deletes files in checkpoint/",
                        )
                if error is not None:
                    if not isinstance(error, Corrupt):
                        raise error
                    bad = missing[0].first if piece is None else piece.last + 1
                    unreadable.append(Part(bad, bad))
                    failure = failure or error
            await self._tidy(oldest)
        if failure is not None:
            raise failure
        return self.counts.runs_written - before

    async def _open_all(self) -> None:
        async with self._opening:
            for _ in range(VANISHED_MAX):
                listed = await self._list()
                if FOLDER not in self.refused:
                    # A run whose file was deleted is stored again, unless another run covers it.
                    self._memory += [self._stored.pop(path) for path in self._stored.keys() - listed]
                for path in sorted(self._unopened):
                    await self._open(path)
                if self._listed:
                    break
        for error in self.refused.values():
            if isinstance(error, Unavailable):
                raise error  # otherwise the range of that run would be written again

    async def _piece(self, gap: Part) -> tuple[Run | None, AlpheusError | None]:
        """Make a run from the lower end of a gap: from memory where it covers the versions, else from roots. The run
        ends at the bounds of a piece, or before a version that cannot be read; then return the error too."""
        parts: list[Run] = []
        reading: Gathering | None = None
        error: AlpheusError | None = None
        loop = asyncio.get_running_loop()
        self._seal_fresh()
        position, high = gap.first, min(gap.last, gap.first + PIECE_VERSIONS_MAX - 1)
        while position <= high and error is None and sum(map(len, parts)) < PIECE_ENTRIES_MAX:
            known = next((p for p in self._memory if p.first <= position <= p.last), None)
            if known is not None:
                if reading is not None:
                    parts.append(reading.run())
                    reading = None
                end = min(known.last, high)
                parts.append(clip_run(known, position, end))
                position = end + 1
                await asyncio.sleep(0)
                continue
            if reading is None:  # not `or`: a gathering without entries is falsy and covers versions too
                reading = Gathering(position)
            end = min(high, position + ROOTS_INDEXED_AT_ONCE - 1)
            began = loop.time()
            for version, root in await self._read(range(position, end + 1), ROOTS_INDEXED_AT_ONCE):
                if isinstance(root, AlpheusError) and not isinstance(root, Expired):
                    error = root
                    break
                told = root.transactions if isinstance(root, Root) else ()
                reading.add(version, map(self._fingerprint, terms(told)))
                position = version + 1
            await asyncio.sleep(
                min(loop.time() - began, PAUSE_SECONDS_MAX)
            )  # leave half of the time to other tasks
            if len(reading) >= SORTED_ENTRIES_MAX:
                parts.append(reading.run())
                reading = None
        if reading is not None and reading.last >= reading.first:
            parts.append(reading.run())
        return (await asyncio.to_thread(merge_runs, parts) if parts else None), error

    async def _store(self, piece: Run, uuid4: str) -> None:
        older: list[Run] = []  # newest first, one below the other
        position = piece.first - 1
        while below := [run for run in self._stored.values() if run.first <= position <= run.last]:
            older.append(min(below, key=lambda run: run.first))
            position = older[-1].first - 1
        count = older_to_merge([len(run) for run in reversed(older)], len(piece))
        run = await asyncio.to_thread(merge_runs, [piece, *older[:count]]) if count else piece
        commit_id = await self._log.commit_id(run.last)
        data = await asyncio.to_thread(encode_run, run, catalog_id=self._catalog_id, commit_id=commit_id)
        path = run_path(run.last, self._log.digits, uuid4)
        await failpoints.reached("index.put")
        await self._log.storage.put(path, data)
        await failpoints.reached("index.written")
        self.counts.runs_written += 1
        self.counts.bytes_written += len(data)
        async with self._opening:
            self._unopened[path] = run.last
            if not await self._open(path) and path in self.refused:
                raise self.refused[path]
        if path not in self._stored:
            await self._open_all()  # another process stored a larger run, and deleted this one

    async def _tidy(self, oldest: int) -> None:
        gone = self._spare | superfluous_runs(self._stored, oldest)
        gone |= {path for path, error in self.refused.items() if error.kind == "corrupt_index"}
        for path in sorted(gone):
            await failpoints.reached("index.drop")
            await self._log.storage.delete(path)
            self.counts.runs_deleted += 1
            self._stored.pop(path, None)
            self._spare.discard(path)
            self.refused.pop(path, None)
            self._untrue.pop(path, None)
        self._bottom = None


async def _map_run(storage: Storage, path: str, cache_dir: str) -> bytes | memoryview:
    """Return the bytes of a run. A small run is read into memory. A large run is mapped: from the store when its files
    are on this machine, else from a copy without a name."""
    local = storage.local_path(path)
    try:
        if local is not None:
            return await asyncio.to_thread(_map_local, local)
        data = await storage.read(path, size_max=SIZE_BYTES_MAX)
        if len(data) < MAPPED_SIZE_BYTES:
            return data
        return await asyncio.to_thread(_map_copy, data, cache_dir)
    except OSError as error:
        if local is not None and isinstance(error, FileNotFoundError):
            raise NotFound(f"there is no file {path}", kind="no_file", path=path) from None
        if error.errno in _NO_FILE:
            raise run_error(path, str(error)) from error
        # A problem of this machine says nothing about the run, and a refused run would be deleted.
        raise Unavailable(
            f"index run {path} cannot be opened here: {error}",
            path=path,
            hint="check the limits, the memory and the cache_dir of this process",
        ) from error


def _map_local(local: str) -> bytes | memoryview:
    with open_plain(local) as file:
        size = os.fstat(file.fileno()).st_size
        if size < MAPPED_SIZE_BYTES or size > SIZE_BYTES_MAX:
            return file.read(SIZE_BYTES_MAX + 1)
        return memoryview(map_file(file))


def _map_copy(data: bytes, cache_dir: str) -> memoryview:
    with nameless_copy(data, cache_dir) as file:
        return memoryview(map_file(file))
