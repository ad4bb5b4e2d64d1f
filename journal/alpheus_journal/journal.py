"""A catalog on storage, opened by this process: the `Access` that needs no daemon, and the one that a daemon serves.

The module is long because it has one method for each method of `Access`; most of them pass the call to a room below.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version

import msgspec

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.check.catalog import check_catalog
from alpheus_journal.clock import Clock, Identities, RandomIdentities, SystemClock
from alpheus_journal.collect.collection import collect
from alpheus_journal.collect.expiry import expire
from alpheus_journal.commit.committer import (
    Answer,
    Committer,
    Observer,
)
from alpheus_journal.commit.idempotency import cancelled_outcome, check_key, perhaps_expired_error
from alpheus_journal.commit.saved_transactions import SavedTransactions, check_transaction_id
from alpheus_journal.conflicts.rules import recorded_of_changes
from alpheus_journal.create_catalog import create_catalog, name_limits
from alpheus_journal.errors import (
    Conflict,
    Corrupt,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.execute.rules.subscriptions import superseded_error
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.log.index import Index
from alpheus_journal.log.times import check_not_future, is_ahead, version_at, version_back
from alpheus_journal.model.answers import (
    LATEST,
    At,
    Back,
    CatalogInfo,
    Change,
    CheckSummary,
    Collection,
    Committed,
    Dropped,
    Event,
    Expiry,
    Finding,
    Latest,
    Loaded,
    LogEntry,
    Outcome,
    Page,
    Pin,
    Pinned,
    PinObject,
    Position,
    Progress,
    SavedTransaction,
    SnapshotPart,
    StoredObject,
    Tag,
    Timestamp,
    VersionInfo,
    make_token,
    parse_token,
)
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, SubscriptionDef
from alpheus_journal.model.event_filter import EVERYTHING, EventFilter
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.model.operations import CancelTransaction, RecordedTransaction, Repair, Transaction
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.history import changes_between, dropped_objects
from alpheus_journal.replay.loader import SAMPLE_MAX, CheckpointInfo, SymbolsInfo
from alpheus_journal.replay.opening import open_log
from alpheus_journal.replay.snapshot_parts import LiveReading
from alpheus_journal.replay.state import Head, State
from alpheus_journal.replay.symbols import Drift, SymbolPage, SymbolQuery
from alpheus_journal.storage import Storage
from alpheus_journal.tags.pinning import Pinning
from alpheus_journal.tags.reader import load_tag, name_nearest_tag, version_of_tag
from alpheus_journal.tree.reader import Snapshot
from alpheus_journal.wire import positions as subscriptions
from alpheus_journal.workspace.checks import no_namespace, not_there

COMMIT_TIMEOUT_SECONDS_DEFAULT = 30.0
HINT_INTERVAL_SECONDS = 1.0
PROGRESS_VERSIONS_MAX = 1000
"""The versions without a match after which an event stream reports its progress."""
POLL_DELAY_MIN_SECONDS = 0.02
POLL_DELAY_MAX_SECONDS = 0.5
SESSIONS_KNOWN_MAX = 1000


@cache
def software_version() -> str:
    try:
        return package_version("alpheus")
    except PackageNotFoundError:
        return "unknown"


software_version()  # reads files now, because an event loop must not wait for them later


class Journal:
    """One catalog on one store. Make a journal by `create` or `open`, and `close` it.

    All methods belong to one event loop; a journal must not be used from several threads. Set `sole_writer` before the
    first use when no other process writes the catalog, so that the head is known without looking.
    """

    sole_writer = False

    def __init__(self, follower: Follower, clock: Clock, identities: Identities) -> None:
        self.follower = follower
        """The knowledge of the stored history: head, slots, caches, counts."""
        self.replay = follower.replay
        """The catalog in memory: its settings and counts, its verification and its rebuilding."""
        self._clock = clock
        self._identities = identities
        self._committer = Committer(follower, clock, identities)
        self._commit_lock = asyncio.Lock()
        self._hint_version = follower.head.version
        self._hint_task: asyncio.Task[None] | None = None
        self._has_news = False  # this process has committed since it wrote a hint
        self._sessions: dict[str, None] = {}  # recently verified tokens, the oldest first
        self._pinning = Pinning(self, follower, self._version_of, new_id=identities.uuid4)
        self._saved = SavedTransactions(
            follower, clock, identities, self._begin_head, self._committer.preview
        )
        self.replay.new_id, self.replay.now_millis = identities.uuid4, clock.now_millis

    # --- create and open

    @classmethod
    async def create(
        cls,
        storage: Storage,
        *,
        order: int = fmt.ORDER_DEFAULT,
        version_digits: int = 32,
        properties: Mapping[str, str] | None = None,
        node_file_size_max: int = fmt.NODE_FILE_SIZE_BYTES_DEFAULT,
        name_size_max: int | Mapping[Kind, int] = fmt.NAME_SIZE_BYTES_DEFAULT,
        txn_ttl_millis: int = fmt.TXN_TTL_MILLIS_DEFAULT,
        serializable_default: bool = False,
        format_revision: int = fmt.FORMAT_REVISION,
        principal: str = "",
        clock: Clock | None = None,
        identities: Identities | None = None,
    ) -> Journal:
        """Create version 0 of a new catalog, and open it. Of concurrent creators one succeeds.

        `name_size_max` is the limit of names in bytes, of all kinds or by kind (namespaces, tables, views).

        Raises AlreadyExists (`catalog_exists`), and NotEmpty (`directory_not_empty`) when other files are below the
        prefix. Raises InvalidInput for limits that do not fit together, for a place inside or around another catalog
        (`nested_catalog`), and for a store that cannot hold a catalog (`storage_unsuitable`).
        """
        clock = clock or SystemClock()
        identities = identities or RandomIdentities(clock)
        definition = CatalogDef(
            id=identities.uuid4(),
            order=order,
            node_file_size_max=node_file_size_max,
            properties=dict(properties or {}),
            txn_ttl_millis=txn_ttl_millis,
            serializable_default=serializable_default,
            format_revision=format_revision,
            **name_limits(name_size_max),
        )
        await create_catalog(storage, definition, version_digits, principal, clock, identities)
        return await cls.open(storage, clock=clock, identities=identities)

    @classmethod
    async def open(
        cls,
        storage: Storage,
        *,
        clock: Clock | None = None,
        identities: Identities | None = None,
        past_damage: bool = False,
        known: int | None = None,
    ) -> Journal:
        """Open an existing catalog at its head.

        `past_damage` also opens a catalog whose head cannot be read. Older versions can then be read, reads of the head
        fail, and nothing is written (`damage`). Raises NotFound (`no_catalog`), Corrupt, and InvalidInput
        (`two_histories`, `newer_format`). See `doubt`.
        """
        clock = clock or SystemClock()
        identities = identities or RandomIdentities(clock)
        return cls(await open_log(storage, past_damage=past_damage, known=known), clock, identities)

    async def close(self) -> None:
        """Write the pending hint, and close the store. Idempotent."""
        await self.detach()
        await self._write_hint()
        await self.follower.data_roots.close()
        await self.storage.close()

    async def detach(self) -> None:
        """End the background work of this object. The store stays open, and no further hint is written. Idempotent."""
        task, self._hint_task = self._hint_task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.replay.close()

    # --- state

    @property
    def head(self) -> Head:
        """The newest version known to this process. `refresh` looks for newer ones."""
        return self.follower.head

    @property
    def state(self) -> State | None:
        return self.follower.state

    @property
    def keys(self) -> fmt.Keys:
        return self.follower.reader.keys

    @property
    def index(self) -> Index:
        """The index of transaction ids and retry keys."""
        return self.follower.index

    @property
    def doubt(self) -> Corrupt | None:
        """The reason why nothing may be written: a sign of missing versions. None when the last check saw none."""
        return self.follower.doubt

    @property
    def damage(self) -> Corrupt | None:
        """The reason why the head could not be read, when the catalog was opened past its damage."""
        return self.follower.damage

    async def write_index(self) -> int:
        """Store index runs for all kept versions without one, and delete runs that are no longer needed.

        Return the number of written runs. Raises the errors of `Index.write`.
        """
        # Entries in memory are stored under the commit id that the slot has now, so both must be of one history.
        await self.follower.verify_head()
        await self.follower.check_writable()  # otherwise a run that proves a loss could be deleted
        return await self.index.write(oldest=await self.follower.oldest(), new_id=self._identities.uuid4)

    @property
    def storage(self) -> Storage:
        return self.follower.log.storage

    @property
    def catalog_id(self) -> str:
        return self.follower.catalog_id

    async def refresh(self) -> Head:
        """Find the head by a probe of the next slot that starts after this call. Concurrent calls share a probe."""
        return await self.follower.refresh()

    def check_history(self) -> None:
        """Raise Corrupt (`history_replaced`) if a probe has found that the storage was restored to an older state."""
        self.follower.check_history()

    async def load_state(self) -> State:
        """Replay the catalog into memory. From then on memory answers reads of the head."""
        return await self.follower.load_state()

    async def checkpoint(self, *, verify: bool = False) -> CheckpointInfo:
        """Store the state of the head, which the next process opens by a memory map; see `Replay.checkpoint`."""
        if self.state is None:
            await self.refresh()
        return await self.replay.checkpoint(verify=verify)

    async def symbols(self, at: At, query: SymbolQuery) -> SymbolPage:
        if isinstance(at, Tag):
            at = (await self.resolve(at)).reference
        version, is_chosen = await self._version_of(at), isinstance(at, Pinned) and at.is_chosen
        return await self.replay.list_symbols(version, query, lambda: self._snapshot(at), from_tree=is_chosen)

    async def reload_symbols(self) -> SymbolsInfo:
        with contextlib.suppress(Corrupt):  # a version that does not fit memory may still fit the tree
            await self.refresh()
        self.check_history()
        return await self.replay.reload()

    async def look_for_others(self) -> None:
        """Look for versions of other processes. A sole writer should do so now and then, because its reads do not."""
        if self.sole_writer:
            await self.follower.refresh()

    async def compact_symbols(self) -> SymbolsInfo:
        return await self.replay.compact()

    async def check_symbols(self, *, sample: int | None = None) -> Drift:
        """Compare memory with the tree. Memory that differs is no longer used; see `Replay.invalidate`.

        Raises InvalidInput for a sample out of range.
        """
        if sample is not None and not 1 <= sample <= SAMPLE_MAX:
            raise InvalidInput(f"a sample must have 1 to {SAMPLE_MAX} ranges, not {sample}")
        return await self.replay.check(sample)

    async def wait_beyond(self, version: int) -> None:
        """Wait until the head known to this process is above `version`."""
        await self.follower.wait_beyond(version)

    async def info(self) -> CatalogInfo:
        head = await self.latest()
        (stored,) = (await self.load(head.version, [fmt.CATALOG])).objects
        assert stored is not None
        definition = decode_definition(Kind.CATALOG, stored.definition, stored.path)
        assert isinstance(definition, CatalogDef)
        return CatalogInfo(
            catalog_id=self.catalog_id,
            storage_url=self.storage.url,
            version_digits=self.keys.version_digits,
            definition=definition,
            version=head.version,
            oldest_version=await self.follower.oldest(),
            token=head.token,
            software_version=software_version(),
            unverified_since_millis=self.replay.unverified_since_millis,
            head_ahead_millis=self.head_ahead_millis,
        )

    @property
    def head_ahead_millis(self) -> int:
        """The milliseconds by which the head's time is ahead of this machine's clock; 0 up to 60 s."""
        created, now = self.head.created_at_millis, self._clock.now_millis()
        return created - now if is_ahead(created, now) else 0

    # --- read

    async def latest(self, at: Latest = LATEST) -> Head:
        """Return the head, as fresh as `at` demands.

        It is the newest version known here when a probe is recent enough, or when no other process writes. Otherwise a
        probe that starts now finds it. It is never older than the session token: a process that lags behind the token
        catches up first. Raises InvalidInput (`bad_token`) for a token of another history, and Corrupt
        (`history_replaced`).
        """
        staleness = at.staleness_millis
        if self.sole_writer:
            self.follower.probes.sole += 1
            self.check_history()
        elif staleness is not None and self.follower.is_fresh(staleness / 1000):
            self.follower.probes.stale += 1
            self.check_history()
        else:
            await self.refresh()
        if at.session_token and at.session_token != self.head.token:
            await self._verify_session(at.session_token)
        return self.head

    async def _verify_session(self, token: str) -> None:
        if token in self._sessions:
            return  # a verified version never changes, and the head never goes back
        await self.follower.verify_session(*parse_token(token))
        self._sessions[token] = None
        if len(self._sessions) > SESSIONS_KNOWN_MAX:
            del self._sessions[next(iter(self._sessions))]

    @property
    def events_held_count(self) -> int:
        """The number of versions up to the head whose events are in memory."""
        return self.head.version + 1 - self.follower.window_start

    @property
    def memory_generation(self) -> int:
        """A number that changes when earlier answers from memory, at the same version, may have been wrong."""
        return self.replay.generation

    def changed_names(self, version: int) -> Iterable[ObjectName] | None:
        """Return the names that a recent version changed, or None when they are not known without reading."""
        event = self.follower.known_event(version)
        return None if event is None else [change.name for change in event.changes]

    async def resolve(self, at: At) -> VersionInfo:
        if isinstance(at, Tag):
            return version_of_tag(self.catalog_id, await load_tag(self, at.name))
        version = await self._version_of(at)
        head = self.head
        if version == head.version:
            return VersionInfo(
                version=head.version, created_at_millis=head.created_at_millis, token=head.token
            )
        try:
            root = await self.follower.root(version)
        except Expired as error:
            await name_nearest_tag(self, self.head.version, error, version)
            raise
        return VersionInfo(
            version=version,
            created_at_millis=root.created_at_millis,
            token=make_token(self.catalog_id, version, root.commit_id),
        )

    async def _version_of(self, at: At) -> int:
        """Return the version that a reference means. It is not above the head known when this returns."""
        if at is None or isinstance(at, Latest):
            return (await self.latest(at or LATEST)).version
        if isinstance(at, Timestamp):
            return await self._version_at(at.millis)
        if isinstance(at, Back):
            return await version_back(at.count, (await self.latest()).version, self.follower.oldest)
        if isinstance(at, Tag):
            return (await load_tag(self, at.name)).version
        version = at.version if isinstance(at, Pinned) else at
        await self._head_for(version)
        return version

    async def _snapshot(self, at: At) -> Snapshot:
        """Return the tree of one version. A version that has expired is read from the pin of the tag that named it, and
        a tag of chosen objects always."""
        if isinstance(at, Tag):
            at = (await self.resolve(at)).reference
        version = await self._version_of(at)
        if isinstance(at, Pinned) and at.is_chosen:
            return await self._pinning.open(at)
        try:
            return await self.follower.snapshot(version)
        except Expired as error:
            # Without its pin the version has expired like any other: the tag was deleted.
            if not isinstance(at, Pinned) or not await self._pinning.exists(at):
                await name_nearest_tag(self, self.head.version, error, version)
                raise
        return await self._pinning.open(at)

    async def _head_for(self, at: int | None) -> Head:
        """Return the head. Looks for a newer one when `at` is None or above the known head."""
        if at is not None and at < 0:
            raise InvalidInput(f"version {at} is negative", kind="bad_version")
        self.check_history()
        if at is None:
            return await self.latest()
        if at > self.head.version:
            await self.refresh()
        if at > self.head.version:
            raise fmt.version_not_there(at, self.head.version)
        return self.head

    async def _version_at(self, millis: int) -> int:
        """Return the last version created at or before a time."""
        try:
            head = await self.latest()
        except Corrupt:
            head = self.head  # the newest version that can be read
            if self.damage is None or millis >= head.created_at_millis:
                raise
        check_not_future(millis, head.version, head.created_at_millis, self._clock.now_millis())
        if millis >= head.created_at_millis:
            return head.version

        async def created_at(version: int) -> int:
            return (await self.follower.root(kept_below(version))).created_at_millis

        marks, kept_below = await self.follower.time_marks(), self.follower.log.kept_below
        oldest = await self.follower.oldest()
        return kept_below(await version_at(millis, marks, oldest, head.version, created_at))

    async def _view(self, at: At) -> Snapshot | State:
        """Return a reader of one version: memory for a replayed head, else the tree."""
        if isinstance(at, Tag):
            at = (await self.resolve(at)).reference
        version = await self._version_of(at)
        state = self.replay.readable
        is_chosen = isinstance(at, Pinned) and at.is_chosen
        if state is not None and state.version == version and not is_chosen:
            return state
        return await self._snapshot(at if isinstance(at, Pinned) else version)

    def _token_of(self, at: At, version: int) -> str:
        """Return the token of an answer. Only an answer at the head carries one."""
        wanted = at is None or isinstance(at, Latest)
        return self.head.token if wanted and version == self.head.version else ""

    async def load(self, at: At, names: list[ObjectName]) -> Loaded:
        version, token, found = await self._find(at, names)
        for stored in found:
            error = stored.error() if stored is not None else None
            if error is not None:
                error.version = version
                raise error
        return Loaded(version=version, objects=tuple(found), token=token)

    async def _find(
        self, at: At, names: Sequence[ObjectName]
    ) -> tuple[int, str, Sequence[StoredObject | None]]:
        """Return the version, the token and the objects, like `load`, but with damaged objects instead of an error."""
        for name in names:
            fmt.check_object_name(name, self.keys)
        view = await self._view(at)
        version, token = view.version, self._token_of(at, view.version)
        return version, token, view.load(names) if isinstance(view, State) else await view.load(names)

    async def list(
        self, at: At, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page:
        if kind is Kind.CATALOG:
            raise InvalidInput("the catalog cannot be listed: there is only one")
        if limit < 0:
            raise InvalidInput(f"a limit of {limit} is negative")
        for text in (prefix, after):
            if text:  # the text is part of a name, so the rules for names apply
                fmt.check_known_name(text, self.keys, kind)
        view = await self._view(at)
        token = self._token_of(at, view.version)
        if kind in (Kind.TABLE, Kind.VIEW):
            parent = fmt.check_object_name(fmt.namespace_name(namespace), self.keys)
            found = view.load([parent]) if isinstance(view, State) else await view.load([parent])
            if found[0] is None:
                raise no_namespace(parent)
        page = view.names(kind, namespace=namespace, prefix=prefix, limit=limit, after=after)
        page = page if isinstance(page, Page) else await page
        return msgspec.structs.replace(page, token=token) if token else page

    async def snapshot(
        self, at: At, *, namespaces: frozenset[str] = frozenset()
    ) -> AsyncIterator[SnapshotPart]:
        for namespace in namespaces:
            fmt.check_object_name(fmt.namespace_name(namespace), self.keys)
        snapshot = await self._snapshot(at)
        if snapshot.is_chosen:
            raise InvalidInput(
                f"version {snapshot.version} is named by a tag of chosen objects, from which no copy of the catalog can"
                " begin",
                kind="bad_version",
                hint="begin at a version, or at a tag of all objects",
            )
        info = await self.resolve(snapshot.version)
        part = SnapshotPart(
            version=info.version, created_at_millis=info.created_at_millis, token=info.token, objects=()
        )
        yield part
        reading = LiveReading(snapshot, lambda: self.replay.verified, namespaces)
        try:
            async with contextlib.aclosing(reading.parts()) as parts:
                async for objects in parts:
                    if any(live.stored.damage is not None for live in objects):
                        await self.follower.root(info.version)
                    yield msgspec.structs.replace(part, objects=objects)
        except Corrupt:
            await self.follower.root(
                info.version
            )  # raises Expired if the version's files may have been collected
            raise

    # --- commit

    async def commit(
        self, transaction: Transaction, *, timeout_seconds: float = COMMIT_TIMEOUT_SECONDS_DEFAULT
    ) -> Committed:
        """Commit one transaction as a version of its own; see `Access.commit`.

        After a lost slot the transaction is executed again, until it commits or is refused. `timeout_seconds` bounds
        the settling of an unknown outcome, also that of an earlier commit. Raises Unavailable when an earlier commit
        is still unsettled.
        """
        async with self._commit_lock:
            asked = asyncio.get_running_loop().time()
            try:
                await self.refresh()
            except Corrupt as error:
                if error.kind != "history_replaced":
                    raise  # otherwise the group's answer reports it, with the fate of an earlier attempt
            while True:
                (answer,) = await self.commit_group(
                    [transaction], deadline_seconds=timeout_seconds, since=asked
                )
                if isinstance(answer, Committed):
                    await failpoints.reached("journal.ack")
                    return answer
                if answer is not None:
                    raise answer
                if not self.is_settled:
                    raise Unavailable(
                        "it is not known yet whether an earlier commit of this process was written, so transaction"
                        f" {transaction.id} was not sent",
                        hint="send the same transaction again when the storage is reachable",
                    )

    async def commit_repair(self, repair: Repair, *, principal: str = "") -> Committed:
        """Record a repair that a person accepted, as a version above the head.

        Only `alpheus_journal.repair` may call this, because it writes although the head is in doubt. Raises the errors
        of `commit`.
        """
        self._committer.may_repair = True
        try:
            return await self.commit(
                Transaction(
                    id=self._identities.uuid7(),
                    begin_version=self.head.version,
                    operations=(repair,),
                    principal=principal,
                    message="alpheus repair",
                )
            )
        finally:
            self._committer.may_repair = False

    async def commit_group(
        self,
        transactions: Sequence[Transaction],
        *,
        deadline_seconds: float | None = None,
        on_publish: Callable[[], None] | None = None,
        since: float | None = None,
    ) -> builtins.list[Answer]:
        """Publish at most one version; see `Committer.commit_group`.

        At most two calls may run at once, where the second one is staged ahead, and none beside `commit`.
        """
        answers = await self._committer.commit_group(
            transactions,
            deadline_seconds=deadline_seconds,
            on_publish=on_publish,
            since=since,
            sole_writer=self.sole_writer,
        )
        if self.head.version > self._hint_version:
            self._has_news = True
            if self._hint_task is None:
                self._hint_task = asyncio.ensure_future(self._hint_later())
        return answers

    def stop_yielding(self) -> None:
        """End the waits of commits for the turns of other processes, because this process is about to end."""
        self._committer.stop_yielding()

    def observe_commits(self, observer: Observer) -> None:
        """Report the timings and counts of each commit to `observer`."""
        self._committer.observer = observer

    @property
    def is_settled(self) -> bool:
        """False while the outcome of a published version is unknown. The next `commit_group` settles it."""
        return self._committer.is_settled

    async def _hint_later(self) -> None:
        """Write the hint after an interval, and again as long as this process commits meanwhile."""
        try:
            while self._has_news:
                await self._clock.sleep(HINT_INTERVAL_SECONDS)
                self._has_news = False
                writing = asyncio.ensure_future(self._write_hint())
                try:
                    await asyncio.shield(writing)
                except asyncio.CancelledError:
                    await writing  # a thread of the store may be writing, and must not overwrite a later hint
                    raise
        finally:
            self._hint_task = None

    async def _write_hint(self) -> None:
        version = self.head.version
        if version > self._hint_version and not self.follower.is_replaced and self.doubt is None:
            self._hint_version = version
            await failpoints.reached("hint.put")
            await self.follower.log.write_latest(version)
            await failpoints.reached("hint.written")

    # --- the log

    async def verify_after(self, after: int | str | None) -> int:
        """Return the exclusive start of an event stream, where -1 means before version 0.

        Raises InvalidInput (`bad_token`, `future_version`), and Expired when the next version's event has expired.
        """
        if after is None:
            await self.refresh()
            oldest = await self.follower.oldest()
            return oldest if oldest else -1
        if isinstance(after, str):
            catalog_id, version, commit_id = parse_token(after)
            await self.follower.verify_token(catalog_id, version, commit_id)
            if version < self.head.version:
                await self.event(version + 1)
            return version
        if after < -1:
            raise InvalidInput(f"version {after} is negative", kind="bad_version")
        if after > self.head.version:
            await self.refresh()
        if after > self.head.version:
            raise InvalidInput(
                f"there is no version {after} yet; the newest is {self.head.version}", kind="future_version"
            )
        if after < self.head.version:
            await self.event(after + 1)
        return after

    async def event(self, version: int, *, details: bool = False) -> Event:
        """Return the event of one version. `details` adds the definitions before and after."""
        return await self.follower.event(version, details=details)

    async def events(
        self,
        *,
        after: int | str | None = None,
        until: int | None = None,
        follow: bool = False,
        filter: EventFilter = EVERYTHING,
        details: bool = False,
    ) -> AsyncIterator[Event | Progress]:
        cursor = await self.verify_after(after)
        if until is None and not follow:
            until = (await self.refresh()).version
        delay = POLL_DELAY_MIN_SECONDS
        reported = cursor
        while until is None or cursor < until:
            if cursor >= self.head.version and not (
                follow and self.follower.is_fresh(POLL_DELAY_MIN_SECONDS)
            ):
                await self.refresh()
            if cursor < self.head.version:
                delay = POLL_DELAY_MIN_SECONDS
                event = await self.event(cursor + 1)
                cursor = event.version
                selected = filter.select(event)
                if selected is not None:
                    if details:
                        selected = filter.select(await self.event(cursor, details=True)) or selected
                    reported = cursor
                    yield selected
                elif cursor in (self.head.version, until) or cursor - reported >= PROGRESS_VERSIONS_MAX:
                    reported = cursor
                    yield Progress(version=cursor, token=event.token)
                continue
            if not follow:
                # `until` is above the head, and all events up to the head were delivered.
                break
            try:
                await asyncio.wait_for(self.wait_beyond(cursor), delay)
            except TimeoutError:
                delay = min(delay * 1.5, POLL_DELAY_MAX_SECONDS)
        if reported < cursor:
            yield Progress(version=cursor, token=(await self.event(cursor)).token)

    async def log(
        self, *, name: ObjectName | None = None, after: int | None = None, until: int | None = None
    ) -> AsyncIterator[LogEntry]:
        if after is not None and after < -1:
            raise InvalidInput(f"version {after} is negative", kind="bad_version")
        head = await self._head_for(until)
        start = head.version if until is None else until
        oldest = await self.follower.oldest()
        if after is not None and after + 1 < oldest:
            raise Expired(
                f"version {after + 1} has expired; the oldest that is kept is {oldest}", oldest=oldest
            )
        end = oldest if after is None else after + 1
        for version in range(start, end - 1, -1):
            try:
                created_at, transactions = await self._transactions(version)
            except Expired:
                if after is not None:
                    raise
                return  # another writer's oldest version, or expired since the call: the end of the kept history
            for transaction in reversed(transactions):
                if name is None or transaction.touches(name):
                    yield LogEntry(version=version, created_at_millis=created_at, transaction=transaction)

    async def _transactions(self, version: int) -> tuple[int, tuple[RecordedTransaction, ...]]:
        event = self.follower.known_event(version)
        if self.follower.log.given_up_range(version) is not None:
            return 0, ()  # the head has nothing of a version that was given up, as far as is known
        if event is None:
            root = await self.follower.root(version)
            if not root.is_foreign:
                return root.created_at_millis, root.transactions
            event = await self.event(version)
        return event.created_at_millis, event.transactions or (recorded_of_changes(event),)

    async def outcome(
        self, transaction_id: str, *, since: int | None = None, settle: bool = False, certain: bool = False
    ) -> Outcome:
        if settle:
            return await self.settle(transaction_id, since=since, commit=self.commit)
        _check_outcome_of(transaction_id, since)
        head = await self.refresh()
        found, gap = await self._search(transaction_id, since, head.version)
        if certain and gap is not None:
            raise perhaps_expired_error(transaction_id, gap)
        # A cancelled transaction cannot commit later, but it may have committed earlier, in an expired version.
        return Outcome(state="unknown") if found.state == "cancelled" and gap is not None else found

    async def find_commit_of_key(self, key: str) -> Committed | None:
        check_key(key)
        await self.refresh()
        return await self._committer.retries.find_commit_of_key(key)

    async def settle(
        self,
        transaction_id: str,
        *,
        since: int | None,
        commit: Callable[[Transaction], Awaitable[Committed]],
    ) -> Outcome:
        """Make the outcome of a transaction final, with a cancellation that goes through `commit`.

        The outcome is committed when a commit comes before any cancellation. Otherwise the transaction is cancelled,
        by an earlier call or by this one. Raises Expired when a version that may have it has expired. It is cancelled
        even then, and cannot commit any more.
        """
        _check_outcome_of(transaction_id, since)
        while True:
            # Find the head first, then search: a later commit of the transaction conflicts with the cancellation.
            head = await self.refresh()
            found, gap = await self._search(transaction_id, since, head.version)
            if found.state == "committed":
                return found
            if found.state == "unknown":
                cancel = Transaction(
                    id=self._identities.uuid7(),
                    begin_version=head.version,
                    operations=(CancelTransaction(transaction_id=transaction_id),),
                    message=f"settle transaction {transaction_id}",
                )
                try:
                    await commit(cancel)
                except Conflict:
                    continue  # the transaction has committed meanwhile, so the search finds it
            return cancelled_outcome(transaction_id, gap)

    async def _search(
        self, transaction_id: str, since: int | None, until: int
    ) -> tuple[Outcome, Expired | None]:
        """Return what the kept versions say, and the tombstone that cut the search short."""
        retries = self._committer.retries
        seen = await retries.find_id(transaction_id, since, until)
        if seen.recorded is not None and seen.event is not None:
            commit = await retries.recorded_answer(seen.recorded, seen.event)
            begin = seen.recorded.begin_version
            return Outcome(state="committed", commit=commit, begin_version=begin), None
        return Outcome(state="unknown" if seen.cancelled is None else "cancelled"), seen.gap

    async def diff(self, before: At, after: At, *, details: bool = False) -> AsyncIterator[Change]:
        first, last = await self._snapshot(before), await self._snapshot(after)
        changes = changes_between(self.follower.reader, first, last, details=details)
        try:
            async with contextlib.aclosing(changes):  # type: ignore[type-var]
                async for change in changes:
                    yield change
        except Corrupt:
            await first.check_kept()
            await last.check_kept()
            raise

    async def dropped(
        self, *, namespace: str | None = None, name: ObjectName | None = None, version: int | None = None
    ) -> AsyncIterator[Dropped]:
        if name is not None:
            fmt.check_object_name(name, self.keys)
        if namespace is not None:
            fmt.check_object_name(fmt.namespace_name(namespace), self.keys)
        last = (await self.refresh()).version if version is None else (await self.resolve(version)).version

        async def load(names: builtins.list[ObjectName]) -> Sequence[StoredObject | None]:
            return (await self._find(last, names))[2]

        found = dropped_objects(
            range(last, await self.follower.oldest(), -1),
            self._transactions,
            load,
            namespace=namespace,
            name=name,
        )
        with contextlib.suppress(
            Expired
        ):  # expired since the call, or by another writer: the kept history ends
            async with contextlib.aclosing(found):  # type: ignore[type-var]
                async for dropped in found:
                    yield dropped

    # --- distributed transactions

    async def save_transaction(self, transaction: Transaction) -> SavedTransaction:
        return await self._saved.save(transaction)

    async def load_transaction(self, transaction_id: str) -> SavedTransaction:
        return await self._saved.load(transaction_id)

    def saved_transactions(self) -> AsyncIterator[SavedTransaction]:
        return self._saved.list_all()

    async def discard_transaction(
        self, transaction_id: str, *, settle: Callable[[int | None], Awaitable[Outcome]] | None = None
    ) -> Outcome:
        """Discard a saved transaction; see `Access.discard_transaction`.

        `settle` makes the outcome final from a begin version on. Pass it where commits do not go through `commit` of
        this object; the default is `outcome` with `settle`.
        """

        async def settle_here(since: int | None) -> Outcome:
            return await self.outcome(transaction_id, since=since, settle=True)

        return await self._saved.discard(transaction_id, settle or settle_here)

    async def _begin_head(self, version: int) -> Head:
        """Return the head that a version was, for a transaction that began at it."""
        await self._head_for(version)
        return await self.follower.head_at(version)

    # --- pins

    async def create_pin(
        self, at: At, *, only: Sequence[PinObject] | None = None, without: Sequence[PinObject] = ()
    ) -> Pin:
        return await self._pinning.create(at, only, without)

    # --- subscriptions

    async def position(self, path: str) -> Position | None:
        _check_position_path(path)
        try:
            data = await self.storage.read(path, size_max=subscriptions.POSITION_SIZE_BYTES_MAX)
        except NotFound:
            return None
        return subscriptions.decode_position(data, path)

    async def acknowledge(self, name: str, path: str, position: Position) -> None:
        _check_position_path(path)
        data = subscriptions.encode_position(position)
        entry = fmt.subscription_name(name)
        (stored,) = (await self.load(None, [entry])).objects
        if stored is None:
            raise not_there(entry)
        definition = decode_definition(Kind.SUBSCRIPTION, stored.definition, stored.path)
        assert isinstance(definition, SubscriptionDef)
        if (definition.id, definition.epoch, definition.position_path) != (
            position.subscription_id,
            position.epoch,
            path,
        ):
            raise superseded_error(name, definition, mine=f"acknowledge events of {entry}")
        await self.storage.put(path, data)
        if position.beat == 1 and definition.previous_position_path:
            # This epoch's start includes the position of the epoch before. A file that stays only costs its bytes.
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                await self.storage.delete(definition.previous_position_path)

    # --- expiry and collection

    def expire(self, rules: ExpiryRules, *, dry_run: bool = False) -> AsyncIterator[Expiry]:
        return expire(self.follower, rules, new_id=self._identities.uuid4, dry_run=dry_run)

    def collect(
        self,
        *,
        minimum_age_millis: int,
        dry_run: bool = False,
        commit: Callable[[Transaction], Awaitable[Committed]] | None = None,
    ) -> AsyncIterator[Collection]:
        """Collect unreferenced files; see `Access.collect`. `commit` commits the fence; the default is `commit` of this
        object."""
        return collect(
            self.follower,
            commit or self.commit,
            self._identities,
            minimum_age_millis=minimum_age_millis,
            dry_run=dry_run,
        )

    def check(self, *, after: int | None = None) -> AsyncIterator[Finding | CheckSummary]:
        return check_catalog(self.follower, after=after)


def _check_position_path(path: str) -> None:
    try:
        fmt.check_position_pointer(path)
    except Corrupt as error:
        raise InvalidInput(error.message) from None


def _check_outcome_of(transaction_id: str, since: int | None) -> None:
    check_transaction_id(transaction_id)
    if since is not None and since < 0:
        raise InvalidInput(f"version {since} is negative", kind="bad_version")
