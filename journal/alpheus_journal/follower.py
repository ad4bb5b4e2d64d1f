"""Following the log: the newest version known here, the versions that others write, and a window of events.

One follower a process and catalog. It probes the next slot; what it finds it reads, compares with the version
before (structural diff), and accepts in order. Own commits are handed in by the committer. Accepting is
synchronous and happens once a version, whoever brings it first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.access import Event, StoredObject, make_token
from alpheus_journal.actions import Transaction
from alpheus_journal.conflicts import Facet, event_facets, sought_facets
from alpheus_journal.errors import Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.format import Key, Kind
from alpheus_journal.log import Log, Root
from alpheus_journal.node import EMPTY, Node
from alpheus_journal.objects import CatalogDef
from alpheus_journal.snapshot import Reader, Snapshot
from alpheus_journal.state import State, VersionRecord, event_of

WINDOW_VERSIONS_MAX = 10_000
WINDOW_WEIGHT_MAX = 200_000
"""Changes and actions together that the window holds at most: its bound in memory."""

OWN_PATIENCE_SECONDS = 1.0


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The newest version known to this process."""

    version: int
    created_at_millis: int
    commit_id: str
    token: str
    root: Node
    catalog_def: str


class Follower:
    """See the module. Not for use from several threads."""

    def __init__(self, log: Log, reader: Reader, catalog_id: str, root: Root, definition: CatalogDef) -> None:
        self.log = log
        self.reader = reader
        self.catalog_id = catalog_id
        self.definition = definition
        self.state: State | None = None
        self.head = self._head_of(root)
        self._window: OrderedDict[int, Event] = OrderedDict()
        self._weight = 0
        self._newest: dict[Facet, int] = {}  # of the window's events: the last version that has a facet
        self._waiters: set[asyncio.Future[None]] = set()
        self._own: tuple[int, asyncio.Future[None]] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._next_probe: asyncio.Task[None] | None = None

    def _head_of(self, root: Root) -> Head:
        return Head(
            version=root.version,
            created_at_millis=root.created_at_millis,
            commit_id=root.commit_id,
            token=make_token(self.catalog_id, root.version, root.commit_id),
            root=root.node,
            catalog_def=root.catalog_def,
        )

    # --- moving forward

    async def refresh(self) -> Head:
        """The head, found by a probe that starts after this call. Concurrent callers share probes.

        A shared probe outlives a caller that is cancelled. Raises what reading a version raises; the head then
        stays where the log could be read.
        """
        running = self._probe
        if running is None or running.done():
            self._probe = task = asyncio.ensure_future(self._advance())
        else:
            # The running probe began before this call: the one after it serves everyone who waits now.
            if self._next_probe is None or self._next_probe.done():
                self._next_probe = asyncio.ensure_future(self._advance_after(running))
            task = self._next_probe
        await asyncio.shield(task)
        return self.head

    async def _advance_after(self, running: asyncio.Task[None]) -> None:
        await asyncio.wait([running])
        self._probe = asyncio.current_task()
        self._next_probe = None
        await self._advance()

    async def _advance(self) -> None:
        while True:
            version = self.head.version + 1
            if not await self.log.exists(version):
                return
            if await self._accepted_own(version):
                continue
            try:
                await self.take(version)
            except Expired:
                await self._jump()

    @contextlib.contextmanager
    def publishing(self, version: int) -> Iterator[None]:
        """While the committer of this process publishes `version` and accepts it when it won."""
        self._own = (version, asyncio.get_running_loop().create_future())
        try:
            yield
        finally:
            self._own[1].set_result(None)
            self._own = None

    async def _accepted_own(self, version: int) -> bool:
        """A slot that fills up while this process publishes to it holds most likely its own root, which is about
        to be accepted: nobody reads it back. False: it is another's, or takes too long."""
        if self._own is not None and self._own[0] == version:
            await asyncio.wait([self._own[1]], timeout=OWN_PATIENCE_SECONDS)
        return self.head.version >= version

    async def take(self, version: int) -> None:
        """Read and accept the version after the head, which must be there. Nothing when it was accepted meanwhile."""
        head = self.head
        if version <= head.version:
            return
        root = await self.log.read(version)
        record = await self._record(root, head.root, head.catalog_def)
        while True:
            had_state = self.state is not None
            definitions = await self._definitions(record) if had_state else {}
            if had_state or self.state is None:
                break  # else the catalog was replayed meanwhile, and the definitions are needed after all
        if version == self.head.version + 1:
            self.accept(self._head_of(root), record, definitions)

    async def _jump(self) -> None:
        """Versions after the head expired before this process read them: go on at the newest one. Their events
        are gone; whoever asks for one is told Expired."""
        root = await self.log.read(await self.log.head(self.head.version + 1))
        if root.version <= self.head.version:
            return
        keep_state = self.state is not None
        self.state = None
        self.head = self._head_of(root)
        self._window.clear()
        self._newest.clear()
        self._weight = 0
        self._wake()
        if keep_state:
            await self.load_state()

    async def _record(self, root: Root, before: Node, catalog_def_before: str) -> VersionRecord:
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

    async def _definitions(self, record: VersionRecord) -> dict[str, bytes]:
        """Bytes of the definitions that a record adds; only needed with a state to keep."""
        paths = {
            after: self.reader.keys.parse(key).kind for key, _, after in record.changes if after is not None
        }
        if record.catalog_def_after != record.catalog_def_before:
            paths[record.catalog_def_after] = Kind.CATALOG
        return await self.reader.definitions(paths)

    def accept(self, head: Head, record: VersionRecord, definitions: dict[str, bytes]) -> Event | None:
        """Make the next version the head: state, window, waiters. None when it was accepted already.

        Raises Corrupt, and stays, when the state says that the record does not continue it.
        """
        if head.version <= self.head.version:
            return None
        if head.version != self.head.version + 1:
            raise AssertionError(f"version {head.version} accepted after {self.head.version}")
        if head.created_at_millis < self.head.created_at_millis and not self._foreign(head):
            raise Corrupt(
                f"version {head.version} was created before version {self.head.version}",
                kind="corrupt_history",
                version=head.version,
            )
        if self.state is not None:
            event = self.state.apply(record, definitions)
        else:
            event = event_of(record, self.reader.keys, self.catalog_id)
        self.head = head
        self._remember(event)
        self._wake()
        return event

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _foreign(self, head: Head) -> bool:
        return head.commit_id.startswith("sha256-")

    def _remember(self, event: Event) -> None:
        self._window[event.version] = event
        self._weight += _weight(event)
        self._newest.update((facet, event.version) for facet in event_facets(event))
        while len(self._window) > WINDOW_VERSIONS_MAX or (
            self._weight > WINDOW_WEIGHT_MAX and len(self._window) > 1
        ):
            version, old = self._window.popitem(last=False)
            self._weight -= _weight(old)
            for facet in event_facets(old):
                if self._newest.get(facet) == version:
                    del self._newest[facet]

    async def wait_beyond(self, version: int) -> None:
        """Return once the head is above `version`. Moves nothing by itself."""
        while self.head.version <= version:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    # --- reading

    async def snapshot(self, version: int | None = None) -> Snapshot:
        """A version as a snapshot; None: the head as known. NotFound above the head, Expired for a tombstone."""
        if version is None or version == self.head.version:
            return Snapshot(self.reader, self.head.version, self.head.root, self.head.catalog_def)
        if version > self.head.version:
            raise fmt.version_not_there(version, self.head.version)
        root = await self.root(version)
        return Snapshot(self.reader, version, root.node, root.catalog_def)

    async def root(self, version: int) -> Root:
        """The root of a version at or below the head. Expired carries the oldest version that is kept."""
        try:
            return await self.log.read(version)
        except Expired as error:
            error.oldest = await self.oldest()
            error.hint = f"the oldest version that is kept is {error.oldest}"
            raise
        except NotFound as error:
            path = self.log.path(version)
            raise Corrupt(
                f"version {version} is below the head and not there",
                kind="corrupt_history",
                path=path,
                version=version,
                hint=f"restore {path} from a copy",
            ) from error

    async def oldest(self) -> int:
        """The oldest version that is no tombstone. Tombstones are the lowest versions without a gap, so
        halving finds it; the hint saves the search where it is right."""
        hint = await self.log.hint(fmt.OLDEST_HINT)
        low, high = 0, self.head.version
        if hint is not None and hint <= high and await self._kept(hint):
            if hint == 0 or not await self._kept(hint - 1):
                return hint
            high = hint
        while low < high:
            middle = (low + high) // 2
            if await self._kept(middle):
                high = middle
            else:
                low = middle + 1
        return low

    async def _kept(self, version: int) -> bool:
        try:
            await self.log.read(version)
        except Expired:
            return False
        except (Corrupt, NotFound):
            return True  # damaged or lost by force: no tombstone, and whoever reads it is told
        return True

    async def event(self, version: int, *, details: bool = False) -> Event:
        """The event of a version at or below the head, from the window or from storage.

        Version 0 is one change: the catalog created. Raises Expired when it, or the version before it
        that tells the difference, is gone; Corrupt.
        """
        event = self._window.get(version)
        if event is None:
            if version > self.head.version:
                raise fmt.version_not_there(version, self.head.version)
            root = await self.root(version)
            if version == 0:
                record = await self._record(root, EMPTY, "")
            else:
                previous = await self.root(version - 1)
                record = await self._record(root, previous.node, previous.catalog_def)
            event = event_of(record, self.reader.keys, self.catalog_id)
        return await self._detailed(event) if details else event

    async def _detailed(self, event: Event) -> Event:
        paths = {
            path: change.name.kind
            for change in event.changes
            for path in (change.path_before, change.path_after)
            if path
        }
        data = await self.reader.definitions(paths)
        changes = tuple(
            msgspec.structs.replace(
                change,
                definition_before=data[change.path_before] if change.path_before else None,
                definition_after=data[change.path_after] if change.path_after else None,
            )
            for change in event.changes
        )
        return msgspec.structs.replace(event, changes=changes)

    def known_event(self, version: int) -> Event | None:
        """The event of a version if the window holds it."""
        return self._window.get(version)

    async def verify_token(self, catalog_id: str, version: int, commit_id: str) -> None:
        """Raises InvalidInput (`bad_token`) when a token belongs to another catalog or another history."""
        if catalog_id != self.catalog_id:
            raise InvalidInput(
                f"the token is of catalog {catalog_id}, this is {self.catalog_id}", kind="bad_token"
            )
        if version > self.head.version:
            await self.refresh()
        if version > self.head.version:
            raise InvalidInput(
                f"the token is of version {version}; this catalog has {self.head.version}: its history was replaced",
                kind="bad_token",
                hint="start again from a snapshot",
            )
        known = self._window.get(version)
        expected = known.token if known else make_token(catalog_id, version, await self._commit_id(version))
        if expected != make_token(catalog_id, version, commit_id):
            raise InvalidInput(
                f"version {version} of this catalog is not the one that the token names: its history was replaced",
                kind="bad_token",
                hint="start again from a snapshot",
            )

    async def _commit_id(self, version: int) -> str:
        return self.head.commit_id if version == self.head.version else await self.log.commit_id(version)

    def concerns(self, transaction: Transaction) -> bool:
        """Whether a version after its begin version may concern a transaction. False is certain and needs no
        look at those versions; True also when the window does not reach back so far."""
        begin = transaction.begin_version
        if begin >= self.head.version:
            return False
        if begin + 1 not in self._window:
            return True
        return any(self._newest.get(facet, -1) > begin for facet in sought_facets(transaction))

    # --- the whole catalog in memory

    async def load_state(self) -> State:
        """Scan the tree of the head into memory; from then on every accepted version is applied to it."""
        head = self.head
        snapshot = Snapshot(self.reader, head.version, head.root, head.catalog_def)
        entries = await snapshot.entries()
        kinds = {path: self.reader.keys.parse(key).kind for key, path in entries}
        stored: list[tuple[Key, StoredObject]] = []
        for start in range(0, len(entries), 1024):
            part = entries[start : start + 1024]
            data = await self.reader.definitions({path: kinds[path] for _, path in part})
            stored.extend((key, StoredObject(path, data[path])) for key, path in part)
        (catalog,) = await snapshot.load([fmt.CATALOG])
        assert catalog is not None
        state = State(
            keys=self.reader.keys,
            catalog_id=self.catalog_id,
            version=head.version,
            created_at_millis=head.created_at_millis,
            catalog=catalog,
            entries=stored,
        )
        while state.version < self.head.version:
            # Others committed during the scan. Catching up ends; scanning again might never.
            try:
                before = await self.root(state.version)
                root = await self.root(state.version + 1)
            except Expired:
                return await self.load_state()
            record = await self._record(root, before.node, before.catalog_def)
            state.apply(record, await self._definitions(record))
        self.state = state
        return state


def _weight(event: Event) -> int:
    return 1 + len(event.changes) + sum(len(t.actions) for t in event.transactions)
