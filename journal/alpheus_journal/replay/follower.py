"""Following the log: the newest version known here, the versions of other writers, and a window of events.

A process has one follower for each catalog. The follower probes the next slot. It reads each version that it finds,
compares the version with the one before (structural diff), and accepts versions in order. The committer hands in this
process's own versions. Accepting is synchronous and happens once for each version, whoever brings it first.

The class is long because accepting moves the head, the window, the state and the waiters in one step.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Coroutine, Iterator, Sequence
from typing import Any, TypeVar, cast

import msgspec

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.clock import retrieve_error
from alpheus_journal.conflicts.facets import Facet, disregarded_facet
from alpheus_journal.conflicts.rules import Stakes, event_facets
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.format import Kind
from alpheus_journal.log.index import Index
from alpheus_journal.log.index_runs import key_term
from alpheus_journal.log.times import resets_times
from alpheus_journal.log.versions import Log, Root, check_follows
from alpheus_journal.log.witnesses import Witnesses, replaced_error
from alpheus_journal.model.answers import Event, StoredObject, make_token
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, TimeMark, VersionRange, merge_ranges
from alpheus_journal.model.operations import RecordedTransaction, given_up_in
from alpheus_journal.replay import evidence
from alpheus_journal.replay.evidence import Around
from alpheus_journal.replay.history import with_definitions
from alpheus_journal.replay.loader import Replay
from alpheus_journal.replay.state import Head, State, VersionRecord, event_of
from alpheus_journal.rooted_storage import DataRoots
from alpheus_journal.tree.node import EMPTY, Node
from alpheus_journal.tree.reader import Reader, Snapshot

_T = TypeVar("_T")

WINDOW_VERSIONS_MAX = 10_000
WINDOW_WEIGHT_MAX = 250_000
"""The total weight of the window's events. One unit takes 1 KB of memory or a little more."""
WEIGHED_SIZE_BYTES = 64

ROOTS_READ_AT_ONCE = 16
"""The roots that a search through many versions reads concurrently."""

CATCH_UP_VERSIONS = 8
"""The versions that a follower reads concurrently when it is more than one version behind."""
CATCH_UP_WEIGHT_MAX = 2_000
"""After a version whose event weighs more than this, the follower reads the next version alone, which may be as
large."""

OWN_PATIENCE_SECONDS = 1.0
HEAD_VERIFIED_SECONDS = 5.0
"""The interval at which probes that find nothing new verify that the head is still in its slot."""


async def _gather_until_failure(works: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run all works concurrently, and return the results before the first failure.

    Raises the error of the first work. Also raises any error that is not an Exception, such as a cancellation.
    """
    if len(works) == 1:
        return [await works[0]]
    done = await asyncio.gather(*works, return_exceptions=True)
    results: list[_T] = []
    for result in done:
        if isinstance(result, BaseException):
            if not results or not isinstance(result, Exception):
                raise result
            break
        results.append(result)
    return results


class ProbeCounts:
    """Counts requests for the newest head, by whether they probed the storage."""

    def __init__(self) -> None:
        self.started = 0
        self.shared = 0  # joined the probe of an earlier caller, which had not begun yet
        self.stale = 0  # no probe: the reader accepts a head that is a moment old
        self.sole = 0  # no probe: this process is the only writer


class Follower:
    """Follows the log of one catalog (see the module). Not safe for use from several threads."""

    def __init__(self, log: Log, reader: Reader, catalog_id: str, root: Root, definition: CatalogDef) -> None:
        self.log = log
        self.reader = reader
        self.catalog_id = catalog_id
        self.definition = definition
        self.data_roots = DataRoots(log.storage)
        """The stores of data files outside the catalog's prefix."""
        self.state: State | None = None
        self.replay = Replay(self)
        """Loads the state into memory, stores it as checkpoints, and keeps the symbol list."""
        self._revision = definition.format_revision  # of the newest version read; it never goes down
        self.head = self._head_of(root)
        self.witnesses = Witnesses(log)
        """The files that are checked whenever this process writes."""
        self.witnesses.accepted(root.version, root.commit_id)
        self._window: OrderedDict[int, Event] = OrderedDict()
        self._weight = 0
        self._facets: dict[int, tuple[Facet, ...]] = {}  # of the window's events
        self._by_facet: dict[
            Facet, list[int]
        ] = {}  # of the window's events: versions that have it, ascending
        self.index = Index(log, catalog_id, root.version)
        """The index of transaction ids and keys of all versions up to the head."""
        self._waiters: set[asyncio.Future[None]] = set()
        self._own: tuple[int, asyncio.Future[None]] | None = None
        self._catalog = (
            root.catalog_def,
            definition,
        )  # the last definition of the catalog that was read, by its path
        self._own_commit_id = ""  # of the last version published here, whether or not its outcome is known
        self.accepted_count = 0
        """The versions accepted since this follower was opened."""
        self.foreign_count = 0
        """The accepted versions that other processes wrote."""
        self._probing: asyncio.Task[None] | None = None
        self._wanted: dict[asyncio.Future[None], None] = {}  # the callers whose probe has not begun
        self._wanted_by = contextvars.Context()  # the context of the first of these callers
        self.probes = ProbeCounts()
        self._fresh_at = -math.inf  # the loop's time at which the known head was last the newest version
        self._verified_at: float | None = None  # by the loop's time; None: not since the head's root was read
        self.damage: Corrupt | None = None
        """The reason why the head cannot be read. The log was opened at an older version, and nothing is written."""
        self.around: Around | None = None
        """The findings of the last look around the head. None means that no look has taken place."""
        self._replaced: tuple[str, int] | None = None  # why history differs, and the version

    def _head_of(self, root: Root) -> Head:
        return Head(
            version=root.version,
            created_at_millis=root.created_at_millis,
            commit_id=root.commit_id,
            token=make_token(self.catalog_id, root.version, root.commit_id),
            root=root.node,
            catalog_def=root.catalog_def,
            revision=self._revision_of(root),
        )

    def _revision_of(self, root: Root) -> int:
        """Return the revision of a version. Other software does not record it, and keeps what it found."""
        self._revision = max(self._revision, root.revision)
        return self._revision

    # --- moving forward

    async def refresh(self) -> Head:
        """Return the head, found by a probe that starts after this call. Concurrent callers share probes.

        A shared probe outlives a caller that is cancelled. Raises any error of reading a version. The head then
        stays at the last version that could be read.
        """
        if self._wanted:
            self.probes.shared += 1
        else:
            self.probes.started += 1
            self._wanted_by = contextvars.copy_context()
            if self._probing is None:
                self._start_probe()
        # Each caller has its own future, so that cancelling one caller does not affect the others.
        found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted[found] = None
        try:
            await found
        except asyncio.CancelledError:
            self._wanted.pop(found, None)
            raise
        return self.head

    def _start_probe(self) -> None:
        # The probe runs in the context of the first caller, whose request id its logs and traces carry.
        self._probing = asyncio.get_running_loop().create_task(self._probe(), context=self._wanted_by)
        self._probing.add_done_callback(retrieve_error)

    async def _probe(self) -> None:
        """Probe for all callers that wait when the probe begins. Later callers get the next probe."""
        served, self._wanted = self._wanted, {}
        try:
            await self._advance()
        except asyncio.CancelledError:  # the loop ends
            for found in (*served, *self._wanted):
                found.cancel()
            self._wanted = {}
            raise  # no caller awaits this task
        except BaseException as error:
            for found in served:
                if not found.done():
                    found.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for found in served:
                if not found.done():
                    found.set_result(None)
        finally:
            self._probing = None
            if self._wanted:
                self._start_probe()

    async def _advance(self) -> None:
        self.check_history()
        is_verified = False
        at_once = 1
        while True:
            version = self.head.version + 1
            began = asyncio.get_running_loop().time()
            if not await self.log.exists(version):
                now = asyncio.get_running_loop().time()
                self._fresh_at = max(self._fresh_at, began)
                if self._verified_at is None:
                    self._verified_at = now
                elif now > self._verified_at + HEAD_VERIFIED_SECONDS:
                    await self.verify_head()
                return
            if await self._await_own(version) or self.head.version >= version:
                continue
            try:
                await self.take(version, 1 if self._is_own(version) else at_once, verify=not is_verified)
                is_verified = True
            except Expired:
                await self._jump()
            except Corrupt as error:
                if error.kind == "history_replaced":
                    if not self.is_replaced:  # of another catalog
                        self.end_history(error.message, version)
                    raise
                if not await self._head_has_expired():
                    raise
                await self._jump()  # the files of the head, with which the next version is compared, are gone
            taken = self.head.version - version + 1
            at_once = min(2 * at_once, CATCH_UP_VERSIONS) if taken >= at_once else max(taken, 1)
            newest = self._window.get(self.head.version)
            if newest is not None and _weight(newest) > CATCH_UP_WEIGHT_MAX:
                at_once = 1

    async def _head_has_expired(self) -> bool:
        try:
            await self.log.read(self.head.version, bare=True)
        except Expired:
            return True
        except AlpheusError:
            return False
        return False

    def is_fresh(self, seconds: float) -> bool:
        """Return whether the known head was the newest version at some moment within the last `seconds`."""
        return asyncio.get_running_loop().time() - self._fresh_at < seconds

    def is_fresh_since(self, moment: float) -> bool:
        """Return whether the known head was the newest version at `moment` (the loop's time) or later."""
        return self._fresh_at >= moment

    @property
    def is_replaced(self) -> bool:
        """Whether the stored history was found to differ from the known one."""
        return self._replaced is not None

    def check_history(self) -> None:
        """Raise Corrupt (`history_replaced`) once the stored history was found to differ from the known one."""
        if self._replaced:
            message, version = self._replaced
            raise Corrupt(
                message,
                kind="history_replaced",
                path=self.log.path(version),
                version=version,
                hint="stop all writers, find out what was restored, then start again; nothing more was written",
            )

    async def verify_head(self) -> None:
        """Verify that the slot of the head still holds the known head; raise as `check_history` otherwise.

        A store that was restored to an older state is refused from then on, even if others wrote to it since: its
        slots would continue another history.
        """
        head = self.head
        self._verified_at = asyncio.get_running_loop().time()
        try:
            found = await self.log.commit_id(head.version)
        except NotFound:
            found = "not there"
        except Corrupt:
            return  # damage is not a sign of another history; readers of the version get the error
        if found != head.commit_id:
            self.end_history(replaced_error(head.version, head.commit_id, found).message, head.version)
        self.check_history()

    def end_history(self, message: str, version: int) -> None:
        """Refuse everything from now on, because `version` shows that the stored history is not the known one."""
        self._replaced = (message, version)
        self._wake()

    def _check_follows(self, root: Root, below: str) -> None:
        """End this process's history when a version was not made on the version below it."""
        try:
            check_follows(root, below)
        except Corrupt as error:
            self.end_history(error.message, root.version)
        self.check_history()

    @property
    def doubt(self) -> Corrupt | None:
        """The reason why nothing may be written although the head can be read; None when the last look found none.

        The kind is `head_missing`, or `history_replaced` for a hole in the log.
        """
        return None if self.around is None else self.around.error(self.log)

    @property
    def is_in_doubt(self) -> bool:
        """Whether `check_writable` would look again or refuse."""
        return self.damage is not None or self.doubt is not None

    async def check_writable(self) -> None:
        """Raise Corrupt when nothing may be written.

        That is so when the head was damaged when the log was opened, and while there is a doubt about the head. A
        doubtful head is looked at again first, because it may have been repaired. Also raises as `check_history`.
        """
        self.check_history()
        if self.damage is not None:
            raise Corrupt(
                f"the head is damaged, so nothing is written: {self.damage.message}",
                kind=self.damage.kind,
                path=self.damage.path,
                version=self.damage.version,
                hint=self.damage.hint
                or f"restore {self.damage.path} from a copy, or see alpheus repair --dry-run; then open it again",
            )
        if self.around is not None and self.around.hole is not None:
            await self._look_at_hole(*self.around.hole)
        elif self.doubt is not None:
            await self.look_around()
        doubt = self.doubt
        if doubt is not None:
            raise doubt

    async def look_at_slots(self) -> None:
        """List all slots once, to find holes that a look at head ± 2^k can miss. A hole sets `doubt`."""
        head = self.head.version
        hole = await evidence.find_hole(self.log, head)
        if hole is not None:
            self.around = Around(head=head, hole=hole)

    async def _look_at_hole(self, free: int, taken: int) -> None:
        """Look whether a hole was filled or given up by a repair. Only a listing can show that no other hole exists."""
        await self.refresh()
        if free > self.head.version:
            above = await evidence.root_beyond_given_up(self.log, free, taken)
            if above is not None:
                await self._jump(above[0], above[1])
        if self.log.given_up_range(free) is not None or await self.log.exists(free):
            await self.look_around()
            if self.doubt is None:
                await self.look_at_slots()

    async def look_around(self) -> Around:
        """Look for evidence of versions that are missing. Raises any error of the requests."""
        clues = await evidence.read_clues(self.log)
        head = (await self.refresh()).version
        taken = await evidence.find_taken(self.log, clues.around(head))
        unlinked = None
        if head < self.window_start:  # otherwise accepting the head compared it with the version below
            unlinked = await evidence.find_unlinked(self.log, await self.root(head))
        self.around = await evidence.judge_head(self.log, head, self.catalog_id, clues, taken, unlinked)
        return self.around

    @contextlib.contextmanager
    def publishing(self, version: int, commit_id: str = "") -> Iterator[None]:
        """Mark that this process's committer publishes `version`, and accepts it if it wins, within this context."""
        self._own_commit_id = commit_id
        self._own = (version, asyncio.get_running_loop().create_future())
        try:
            yield
        finally:
            self._own[1].set_result(None)
            self._own = None

    async def _await_own(self, version: int) -> bool:
        """Wait for the committer of this process if it is publishing `version`; whether the version was accepted.

        A slot that fills while this process publishes to it most likely holds this process's root, so the probe does
        not read the root back. Return False when another process's root is stored, or when accepting takes too long.
        """
        if self._own is not None and self._own[0] == version:
            await asyncio.wait([self._own[1]], timeout=OWN_PATIENCE_SECONDS)
        return self.head.version >= version

    def _is_own(self, version: int) -> bool:
        """Return whether this process is publishing `version`."""
        return self._own is not None and self._own[0] == version

    async def take(self, version: int, count: int = 1, *, verify: bool = False) -> None:
        """Read and accept `version`, which must exist and follow the head, and up to `count` - 1 versions after it.
        With `verify`, verify the head meanwhile; nothing is accepted when its slot does not hold it (`verify_head`).

        Reading several versions takes as many rounds of requests as reading one. A follower that reads versions one by
        one never catches up with a writer whose requests are as fast. Does nothing when `version` was accepted
        meanwhile.
        """
        head = self.head
        if version != head.version + 1:
            return
        reading = _gather_until_failure([self.log.read(number) for number in range(version, version + count)])
        if verify:
            verified, read = await asyncio.gather(self.verify_head(), reading, return_exceptions=True)
            for failure in (verified, read):
                if isinstance(failure, BaseException):
                    raise failure
            roots = cast("list[Root]", read)
        else:
            roots = await reading
        before = [(head.root, head.catalog_def), *((root.node, root.catalog_def) for root in roots)]
        records = await _gather_until_failure(
            [self.record_of(root, *before) for root, before in zip(roots, before, strict=False)]
        )
        while True:
            had_state = self.state is not None
            definitions = [dict[str, StoredObject]() for _ in records]
            if had_state:
                definitions = await _gather_until_failure([self.definitions_of(record) for record in records])
            if had_state or self.state is None:
                break  # otherwise the state was loaded meanwhile, and the definitions are needed
        for root, record, stored in zip(roots, records, definitions, strict=False):
            await failpoints.reached("follower.replay_step")
            if root.version > version:
                await asyncio.sleep(0)
                if self._is_own(root.version):
                    return  # the committer accepts its own version, and the next probe continues
            if root.version != self.head.version + 1 or had_state != (self.state is not None):
                return
            self._check_follows(root, self.head.commit_id)
            self.accept(self._head_of(root), record, stored)
            if root.commit_id != self._own_commit_id:  # an own version arrives here when its reply was lost
                self.foreign_count += 1
            await failpoints.reached("follower.accepted")

    async def _jump(self, root: Root | None = None, definition: CatalogDef | None = None) -> None:
        """Continue at the newest version, because the versions after the head cannot be read any more.

        Either they expired before this process read them, or a repair gave them up and continued at `root`. Their
        events are lost; callers that ask for one get an error.
        """
        if definition is None:
            root = await self.log.newest(self.head.version + 1)
        assert root is not None
        if root.version <= self.head.version:
            return
        if definition is None:
            self._check_follows(root, await self.log.commit_id(root.version - 1))
        else:
            self.log.bind_definition(definition, root)
            self._catalog = root.catalog_def, definition
        self.state = None
        self.replay.jumped()
        self.head = self._head_of(root)
        self.witnesses.jumped()
        self.witnesses.accepted(root.version, root.commit_id)
        self.accepted_count += 1
        self.foreign_count += 1
        self._window.clear()
        self._by_facet.clear()
        self._facets.clear()
        self.index.jumped(self.head.version)
        self._weight = 0
        self._wake()
        await self.replay.restore()

    async def record_of(self, root: Root, before: Node, catalog_def_before: str) -> VersionRecord:
        """Compare a version with the one before, and return its record."""
        changes = await self.reader.diff(before, root.node)
        return VersionRecord(
            version=root.version,
            commit_id=root.commit_id,
            created_at_millis=root.created_at_millis,
            transactions=root.transactions,
            changes=tuple(changes),
            catalog_def_before=catalog_def_before,
            catalog_def_after=root.catalog_def,
        )

    async def definitions_of(self, record: VersionRecord) -> dict[str, StoredObject]:
        """Read the definitions that a record adds, damaged ones included. Only a state needs these definitions."""
        paths = {
            after: self.reader.keys.parse(key).kind for key, _, after in record.changes if after is not None
        }
        if record.catalog_def_after != record.catalog_def_before:
            paths[record.catalog_def_after] = Kind.CATALOG
        return await self.reader.stored(paths)

    def accept(
        self,
        head: Head,
        record: VersionRecord,
        definitions: dict[str, StoredObject],
        facets: Collection[Facet] | None = None,
    ) -> Event | None:
        """Make the next version the head, move state and window, and wake the waiters.

        Returns None when the version was accepted already. `facets` are those of the event, where they are known.
        Raises Corrupt, and changes nothing, when the record does not continue the state. A state that differs from
        its tree is dropped instead (`Replay.invalidate`).
        """
        if head.version <= self.head.version:
            return None
        if head.version != self.head.version + 1:
            raise AssertionError(f"version {head.version} accepted after {self.head.version}")
        goes_back = head.created_at_millis < self.head.created_at_millis
        if goes_back and not self._foreign(head) and not resets_times(record.transactions):
            raise Corrupt(
                f"version {head.version} was created before version {self.head.version}",
                kind="corrupt_history",
                version=head.version,
            )
        event = None
        if self.state is not None:
            try:
                event = self.state.apply(record, definitions)
            except Corrupt as error:
                if error.kind != "state_drift":
                    raise
                self.replay.invalidate(error.message)
        if event is None:
            event = event_of(record, self.reader.keys, self.catalog_id)
        self.head = head
        self.log.given_up = merge_ranges([*self.log.given_up, *given_up_in(record.transactions)])
        self.witnesses.accepted(head.version, head.commit_id)
        self.replay.accepted(record)
        self.accepted_count += 1
        self._remember(event, event_facets(event) if facets is None else facets)
        self._wake()
        return event

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _foreign(self, head: Head) -> bool:
        return head.commit_id.startswith("sha256-")

    def _remember(self, event: Event, facets: Collection[Facet]) -> None:
        self._window[event.version] = event
        self._weight += _weight(event)
        self._facets[event.version] = tuple(facets)
        for facet in facets:
            self._by_facet.setdefault(facet, []).append(event.version)
        self.index.accepted(event.version, event.transactions)
        while len(self._window) > WINDOW_VERSIONS_MAX or (
            self._weight > WINDOW_WEIGHT_MAX and len(self._window) > 1
        ):
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        version, old = self._window.popitem(last=False)
        self._weight -= _weight(old)
        for facet in self._facets.pop(version):
            versions = self._by_facet[facet]
            assert versions[0] == version
            del versions[0]
            if not versions:
                del self._by_facet[facet]

    async def wait_beyond(self, version: int) -> None:
        """Return once the head is above `version`. Does not move the head itself."""
        while self.head.version <= version:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    # --- reading

    async def head_at(self, version: int) -> Head:
        """Return the head that a version was. Raises what `root` raises."""
        if version == self.head.version:
            return self.head
        root = await self.root(version)
        return msgspec.structs.replace(self._head_of(root), revision=root.revision or self.head.revision)

    async def snapshot(self, version: int | None = None) -> Snapshot:
        """Return a snapshot of a version; None means the known head.

        Raises NotFound for a version above the head, and Expired for a tombstone.
        """
        if version is None or version == self.head.version:
            return Snapshot(self.reader, self.head.version, self.head.root, self.head.catalog_def, self.root)
        if version > self.head.version:
            raise fmt.version_not_there(version, self.head.version)
        root = await self.root(version)
        return Snapshot(self.reader, version, root.node, root.catalog_def, self.root)

    async def root(self, version: int) -> Root:
        """Read the root of a version at or below the head. Expired carries the oldest version that is kept."""
        try:
            return await self.log.read(version)
        except Expired as error:
            error.oldest = await self.oldest()
            error.hint = f"the oldest version that is kept is {error.oldest}"
            raise
        except NotFound as error:
            if self.log.given_up_range(version) is not None:
                raise self.log.given_up_error(version) from None
            path = self.log.path(version)
            raise Corrupt(
                f"version {version} is below the head and not there",
                kind="corrupt_history",
                path=path,
                version=version,
                hint=f"restore {path} from a copy",
            ) from error

    async def oldest(self) -> int:
        """Find the oldest version that is not a tombstone.

        Tombstones are the lowest versions without a gap, so halving finds the version. A correct hint saves the
        search. The version is above the known head if that one has expired, too.
        """
        hint = await self.log.hint(fmt.OLDEST_HINT)
        high = self.head.version
        if hint is not None and hint <= high and await self._is_kept(hint):
            if hint == 0 or not await self._is_kept(hint - 1):
                return hint
            high = hint
        if await self._is_kept(0):
            return 0
        found = await self._first_kept(0, high)
        if found == self.head.version and not await self._is_kept(found):
            low, high = found, found
            while not await self._is_kept(high):
                low, high = high + 1, 2 * high + 1
            found = await self._first_kept(low, high)
        return found

    async def _first_kept(self, low: int, high: int) -> int:
        """Find, by halving, the first version in a range that is not a tombstone. Without one return `high`."""
        while low < high:
            middle = (low + high) // 2
            if await self._is_kept(middle):
                high = middle
            else:
                low = middle + 1
        return low

    async def _is_kept(self, version: int) -> bool:
        try:
            await self.log.read(version)
        except Expired:
            return False
        except (Corrupt, NotFound):
            return True  # a damaged or lost version is not a tombstone; its readers get the error
        return True

    async def event(self, version: int, *, details: bool = False) -> Event:
        """Return the event of a version at or below the head, from the window or from storage.

        Version 0 has one change: the catalog was created. Raises Corrupt, and Expired when the version has expired or
        the version before, which the difference needs.
        """
        event = self._window.get(version)
        if event is None:
            if version > self.head.version:
                raise fmt.version_not_there(version, self.head.version)
            root = await self.root(version)
            if version == 0:
                record = await self.record_of(root, EMPTY, "")
            else:
                previous = await self.root(version - 1)
                check_follows(root, previous.commit_id)
                record = await self.record_of(root, previous.node, previous.catalog_def)
            event = event_of(record, self.reader.keys, self.catalog_id)
        if not details:
            return event
        changes = await with_definitions(self.reader, event.changes)
        return msgspec.structs.replace(event, changes=tuple(changes))

    async def recorded_event(self, version: int) -> Event:
        """Return the event of a version, possibly without its changes; see `event`.

        The changes may be absent where the root itself records what the version did. So the version before need not
        be kept.
        """
        event = self._window.get(version)
        if event is not None:
            return event
        root = await self.root(version)
        known = [action.operation for recorded in root.transactions for action in recorded.actions]
        if not root.transactions or None in known:
            return await self.event(version)
        return Event(
            version=version,
            created_at_millis=root.created_at_millis,
            token=make_token(self.catalog_id, version, root.commit_id),
            transactions=root.transactions,
            changes=(),
        )

    async def recorded_events(self, versions: Sequence[int]) -> list[Event | Expired]:
        """Return `recorded_event` of each version, or its Expired error, for at most `ROOTS_READ_AT_ONCE` versions.

        Raises the first error that is not Expired.
        """
        assert len(versions) <= ROOTS_READ_AT_ONCE

        async def one(version: int) -> Event | AlpheusError:
            try:
                return await self.recorded_event(version)
            except AlpheusError as error:
                return error

        if all(version in self._window for version in versions):
            return [self._window[version] for version in versions]
        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(one(version)) for version in versions]
        found: list[Event | Expired] = []
        for task in reading:
            event = task.result()
            if isinstance(event, AlpheusError) and not isinstance(event, Expired):
                raise event
            found.append(event)
        return found

    def known_event(self, version: int) -> Event | None:
        """Return the event of a version if the window holds it."""
        return self._window.get(version)

    async def verify_token(self, catalog_id: str, version: int, commit_id: str) -> None:
        """Raise InvalidInput (`bad_token`) when a token belongs to another catalog or another history."""
        if catalog_id != self.catalog_id:
            raise InvalidInput(
                f"the token is of catalog {catalog_id}, this is {self.catalog_id}", kind="bad_token"
            )
        if version > self.head.version:
            await self.refresh()
        if self.log.given_up_range(version) is not None:
            raise self.log.given_up_error(version)
        if version > self.head.version:
            raise InvalidInput(
                f"the token is of version {version}, but the newest version is {self.head.version}:"
                " the history was replaced",
                kind="bad_token",
                hint="start again from a snapshot",
            )
        known = self._window.get(version)
        expected = known.token if known else make_token(catalog_id, version, await self._commit_id(version))
        if expected != make_token(catalog_id, version, commit_id):
            raise InvalidInput(
                f"version {version} of this catalog is not the one that the token names: the history was replaced",
                kind="bad_token",
                hint="start again from a snapshot",
            )
        await self._verify_successor(version, commit_id)

    async def _verify_successor(self, version: int, commit_id: str) -> None:
        """Raise Corrupt (`history_replaced`) when the head does not descend from a version.

        The check uses what memory knows and at most one request, for the link of the next version. So it may miss a
        replaced history.
        """
        if version >= self.window_start - 1:
            return  # accepting a version compared it with the version below
        if self.log.given_up_range(version + 1) is not None:
            return  # the link is lost
        unlinked = None if self.around is None else self.around.unlinked
        if (
            unlinked is not None
            and version < unlinked.version
            and self.log.given_up_range(unlinked.version - 1) is None
        ):
            raise unlinked.error(self.log)
        with contextlib.suppress(Expired):
            check_follows(await self.root(version + 1), commit_id)

    async def verify_session(self, catalog_id: str, version: int, commit_id: str) -> None:
        """Verify the token of a version that the caller has seen; see `verify_token`.

        Raises Corrupt (`head_missing`) when the version does not exist any more. So a session that saw the version
        does not write another version with the same number.
        """
        if catalog_id == self.catalog_id and version > self.head.version:
            await self.refresh()
            if version > self.head.version:
                raise evidence.unseen_error(self.log, self.head.version, version, commit_id)
        await self.verify_token(catalog_id, version, commit_id)

    async def _commit_id(self, version: int) -> str:
        return self.head.commit_id if version == self.head.version else await self.log.commit_id(version)

    def find_concerning(self, stakes: Stakes) -> Sequence[int]:
        """Return the versions after a transaction's begin version that may concern it, ascending.

        No other version concerns the transaction. Versions of the window that do not concern it cost nothing.
        Versions before the window are all included.
        """
        begin = stakes.transaction.begin_version
        found: set[int] = set()
        for facet in self._by_facet.keys() & stakes.sought:
            versions = self._by_facet[facet]
            found.update(versions[bisect_right(versions, begin) :])
        return [*range(begin + 1, self.window_start), *sorted(found)]

    def find_disregarding(self, transaction_id: str, since: int) -> Sequence[int]:
        """Return the versions after `since` that may have a fence which disregards a transaction's lease, ascending.
        Versions before the window are all included."""
        known = self._by_facet.get(disregarded_facet(transaction_id), [])
        return [*range(since + 1, self.window_start), *known[bisect_right(known, since) :]]

    @property
    def window_start(self) -> int:
        """The first version whose event is in memory, as are the events of all versions after it."""
        return next(iter(self._window), self.head.version + 1)

    async def find_by_key(self, key: str) -> tuple[int, RecordedTransaction] | None:
        """Find the last kept transaction with an idempotency key, and its version.

        A version that a repair gave up does not count: its key went with it, although its root may still be stored.
        Raises Corrupt for a root that no index covers and that cannot be read, because that root may hold the key.
        """
        found = self.index.versions([key_term(key)], 0, self.head.version)
        async with contextlib.aclosing(found) as versions:
            async for version in versions:
                if self.log.given_up_range(version) is not None:
                    continue
                event = self._window.get(version)
                try:
                    transactions = event.transactions if event else (await self.root(version)).transactions
                except Expired:
                    return None  # lower versions have expired, too; a key expires with its version
                for recorded in transactions:
                    if recorded.key == key:
                        return version, recorded
                self.index.collided()
        return None

    async def time_marks(self) -> tuple[TimeMark, ...]:
        """Return the versions up to the head at which the order of times restarts."""
        return (await self.catalog_definition(self.head.catalog_def, self.reader)).time_marks

    async def catalog_definition(self, path: str, reader: Reader) -> CatalogDef:
        """Return the catalog's definition at a path; the last one is kept. Raises Corrupt."""
        if self._catalog[0] != path:
            data = await reader.definitions({path: Kind.CATALOG})
            definition = decode_definition(Kind.CATALOG, data[path], path)
            assert isinstance(definition, CatalogDef)
            self._catalog = path, definition
        return self._catalog[1]

    def known_before(self, millis: int) -> int | None:
        """Return the oldest version of the window if it was created before a time; earlier versions are older still."""
        event = next(iter(self._window.values()), None)
        if event is not None and event.transactions and event.created_at_millis < millis:
            return event.version
        return None

    async def find_cut(self, low: int, made_at_millis: int) -> Expired | None:
        """Find the tombstone, or the versions given up by a repair, that hide a part of [low, head].

        Returns None when all versions of that range that can hold a transaction made at `made_at_millis` or later are
        kept. Raises any error of reading a root except Expired.
        """
        for given_up in reversed(self.log.given_up):
            if given_up.last < low:
                break
            try:
                above = await self.root(given_up.last + 1)  # created later than the versions below
            except Expired:
                break
            if not made_at_millis or above.is_foreign or above.created_at_millis >= made_at_millis:
                return self._given_up(given_up)
        if low in self._window or await self._is_kept(low):
            return None
        version = oldest = await self.oldest()
        while made_at_millis and version <= self.head.version:
            try:
                root = await self.log.read(version)
            except Expired:
                break
            if not root.is_foreign:
                if root.created_at_millis < made_at_millis:
                    return None
                break
            version += 1  # times of foreign writers prove nothing
        return Expired(
            f"version {oldest - 1} has expired",
            oldest=oldest,
            version=oldest - 1,
            path=self.log.path(oldest - 1),
            hint=f"the oldest version that is kept is {oldest}",
        )

    def _given_up(self, versions: VersionRange) -> Expired:
        what = "was" if versions.first == versions.last else "were"
        return Expired(
            f"{versions} {what} given up by a repair",
            oldest=versions.last + 1,
            version=versions.last,
            path=self.log.path(versions.last),
            hint="read what came after; what these versions did is not known any more",
        )

    # --- the whole catalog in memory

    async def load_state(self) -> State:
        """Load the head into memory, from a checkpoint or by a scan of its tree.

        From then on every accepted version is applied to the state.
        """
        return await self.replay.load()


def _weight(event: Event) -> int:
    """Weigh an event by its content, not by the number of its actions.

    One action may set ten thousand properties, each of which is indexed.
    """
    actions = sum(len(t.actions) for t in event.transactions)
    return (
        1
        + len(event.changes)
        + actions
        + len(msgspec.msgpack.encode(event.transactions)) // WEIGHED_SIZE_BYTES
    )
