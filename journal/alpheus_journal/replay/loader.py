"""The catalog in memory: loading it, keeping it right, and storing it as checkpoints.

Long work runs in threads or between other work, and its result is swapped in one step, so readers never see a gap. A
`Replay` belongs to one follower and to that follower's event loop.

The class is long because loading, merging, checkpoints and comparisons all swap the same state and symbol list.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, NotFound, Unavailable
from alpheus_journal.format import Key, Kind, ObjectName
from alpheus_journal.log.versions import Log, Root, check_follows
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.replay.checkpoint import (
    REASONS,
    Facts,
    Opened,
    Skipped,
    checkpoint_path,
    drop_old,
    list_checkpoints,
    newest_checkpoint,
    open_checkpoint,
    write_checkpoint,
)
from alpheus_journal.replay.flat import Flat, FlatBuilder, KeyRows, column_of, groups, join_columns, pack
from alpheus_journal.replay.state import Head, State, VersionRecord
from alpheus_journal.replay.symbols import (
    JOURNAL_MAX_DEFAULT,
    Comparison,
    Drift,
    Gathering,
    SymbolPage,
    SymbolQuery,
    Symbols,
)
from alpheus_journal.replay.verification import Verification
from alpheus_journal.storage import each_of
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import Node
from alpheus_journal.tree.reader import Reader, Snapshot

CHECKPOINTS_KEPT_DEFAULT = 3
VERIFIED_OBJECTS_MAX = 20_000
"""A state of at most this many objects is compared with the tree before its checkpoint is written."""
SCAN_ROWS = 8192
DEFINITIONS_AT_ONCE = 1024
ROOTS_AT_ONCE = 16
VANISHED_MAX = 3
"""Attempts at a checkpoint when other processes delete each one before it is opened."""
SAMPLE_ROWS = 64
SAMPLE_MAX = 100_000

_LAST = Key(chr(0x10FFFF))


class _Vanished(NotFound):
    """A checkpoint was deleted immediately after it was written."""


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that this process wrote for the head, or had already written for the same version."""

    version: int
    path: str
    objects: int
    size_bytes: int
    created_at_millis: int
    deleted: int
    """The number of old checkpoints that were deleted."""


class SymbolsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of the symbol list in memory."""

    version: int
    symbols: int
    journal_length: int
    compactions: int
    failures: int
    last_failure: str


class Counts(msgspec.Struct):
    """Since this process opened the catalog."""

    loads_from_checkpoint: int = 0
    loads_from_tree: int = 0
    reloads: int = 0
    merges: int = 0
    merge_failures: int = 0
    checkpoints_written: int = 0
    checkpoint_failures: int = 0
    drift_checks: int = 0
    drifts: int = 0  # objects that differed, in all checks
    verifications: int = 0  # times that the whole content of a checkpoint was compared and agreed
    invalidations: int = 0  # times that memory was found to differ and was dropped
    skipped: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(REASONS, 0))


class Followed(Protocol):
    """The part of a follower that `Replay` needs. The follower holds the state."""

    log: Log
    reader: Reader
    catalog_id: str
    head: Head
    state: State | None

    async def refresh(self) -> Head: ...

    async def snapshot(self, version: int | None = None) -> Snapshot: ...

    async def root(self, version: int) -> Root: ...

    async def record_of(self, root: Root, before: Node, catalog_def_before: str) -> VersionRecord: ...

    async def definitions_of(self, record: VersionRecord) -> dict[str, StoredObject]: ...

    async def check_writable(self) -> None: ...


class Replay:
    """The memory of one follower (see the module).

    Public attributes may be set before the first use, and read at any time. `new_id` returns a fresh uuid4 as text,
    `now_millis` epoch milliseconds.
    """

    def __init__(self, follower: Followed) -> None:
        self._follower = follower
        self.new_id: Callable[[], str] | None = None
        self.now_millis: Callable[[], int] = lambda: 0
        self.checkpoints_kept = CHECKPOINTS_KEPT_DEFAULT
        self.symbol_journal_max = JOURNAL_MAX_DEFAULT
        self.cache_dir = ""
        """The folder of mapped copies of remote checkpoints. Empty means the system's folder for temporary files."""
        self.symbols: Symbols | None = None
        self.counts = Counts()
        self.skipped: list[Skipped] = []
        """The checkpoints that the last load passed over, with the reasons."""
        self.last_checkpoint: CheckpointInfo | None = None
        self.last_drift: Drift | None = None
        self.invalid_reason = ""
        """The difference that was found between memory and the tree. While this is set, reads go to the tree."""
        self.lost = ""
        """The reason why the state in memory was lost. While this is set, reads go to the tree."""
        self.lacks_checkpoint = False
        """Whether all checkpoints were deleted and this process has written none since."""
        self.serves_unverified = False
        """Whether reads may use a checkpoint's content before it is compared with the tree. The owner then has to call
        `verify` soon. Otherwise reads go to the tree until `verify` has finished."""
        self.unverified_since_millis = 0
        """The time at which memory was loaded from a checkpoint that is not compared yet. 0 when all is verified."""
        self.generation = 0
        """Grows whenever memory is dropped or put in place, as its content may change for a known version."""
        self.last_failure = ""
        """The reason why the last merge in the background failed. Empty means that it succeeded."""
        self._is_wanted = False  # whether the state was in memory once, so that it is to come back
        self._rebasing = asyncio.Lock()
        self._compacting = asyncio.Lock()
        self._merge_due = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rng: random.Random | None = None
        self._verification: Verification | None = None

    # --- numbers

    @property
    def objects_count(self) -> int:
        state = self._follower.state
        return 0 if state is None else len(state)

    @property
    def overlay_count(self) -> int:
        state = self._follower.state
        return 0 if state is None else state.overlay_count

    @property
    def base_size_bytes(self) -> int:
        """The size of the flat table, whether or not it is mapped."""
        state = self._follower.state
        return 0 if state is None else state.flat.size_bytes

    @property
    def symbol_journal_length(self) -> int:
        return 0 if self.symbols is None else self.symbols.journal_length

    @property
    def symbol_compactions(self) -> int:
        return 0 if self.symbols is None else self.symbols.compactions

    @property
    def symbol_compaction_failures(self) -> int:
        return 0 if self.symbols is None else self.symbols.failures

    def _draw(self) -> random.Random:
        # Seeded by the identities, which a simulation decides. Created when first needed.
        if self._rng is None:
            self._rng = random.Random(self.new_id() if self.new_id else None)
        return self._rng

    # --- loading

    async def load(self, *, from_tree: bool = False) -> State:
        """Load the head's state, and put it in place together with its symbol list.

        The state comes from the newest usable checkpoint and the changes since its version, or from a scan of the
        tree. Raises Corrupt for a tree that cannot be read. A damaged definition harms its object alone.
        """
        follower = self._follower
        from_tree = from_tree or bool(self.invalid_reason)  # checkpoints may have the same mistake as memory
        while True:
            head = follower.head
            try:
                opened = None if from_tree else await self._open_newest(head)
                try:
                    state = None if opened is None else await self._from_checkpoint(opened, head)
                except Corrupt:  # perhaps of the checkpoint's own tree; the scan reads the head's tree
                    state = None
                if state is None:
                    state = await self._from_tree(head, opened.flat if opened else None)
                await self._catch_up(state, head)
            except Expired:
                # Versions that were needed expired meanwhile. The head never expires.
                from_tree = True
                continue
            except Corrupt as error:
                if error.kind != "state_drift":
                    if not await self._has_expired(head):
                        raise
                    # The process slept so long that the files of the head that it knew were collected.
                    await follower.refresh()
                    continue
                if from_tree:
                    raise
                self.invalidate(error.message)  # a later version shows that the checkpoint is wrong
                from_tree = True
                continue
            if self.invalid_reason and not from_tree:
                from_tree = True  # invalidated meanwhile
                continue
            if opened is not None:
                self.counts.loads_from_checkpoint += 1
            else:
                self.counts.loads_from_tree += 1
            self._install(state, is_verified=opened is None)
            return state

    async def _has_expired(self, head: Head) -> bool:
        try:
            await self._follower.root(head.version)
        except Expired:
            return True
        except Corrupt:
            pass
        return False

    async def _open_newest(self, head: Head) -> Opened | None:
        follower = self._follower
        try:
            opened, self.skipped = await newest_checkpoint(
                follower.log.storage,
                follower.log,
                follower.reader,
                catalog_id=follower.catalog_id,
                head_version=head.version,
                head_commit_id=head.commit_id,
                draw=self._draw,
                cache_dir=self.cache_dir,
            )
        except AlpheusError as error:
            # A folder that cannot be listed costs only time. The scan meets any real problem.
            self.skipped = [Skipped(path="checkpoint/", reason="unreadable", message=error.message)]
            opened = None
        for skipped in self.skipped:
            self.counts.skipped[skipped.reason] += 1
        return opened

    async def _from_checkpoint(self, opened: Opened, head: Head) -> State | None:
        """Make the head's state by one structural diff. Return None when the checkpoint's version has expired."""
        follower, facts, flat = self._follower, opened.facts, opened.flat
        changes: dict[Key, str | None] = {}
        if facts.version != head.version:
            try:
                root = await follower.log.read(facts.version)
            except Expired:
                return None
            changes = {key: after for key, _, after in await follower.reader.diff(root.node, head.root)}
        for row in flat.missing:
            changes.setdefault(flat.keys.key(row), flat.path(row))
        stored = await self._definitions((key, path) for key, path in changes.items() if path is not None)
        # A renamed object keeps its definition, which was read again because paths are not keys here.
        return State(
            keys=follower.reader.keys,
            catalog_id=follower.catalog_id,
            version=head.version,
            created_at_millis=head.created_at_millis,
            catalog=await self._catalog(head),
            entries=[(key, None if path is None else stored[path]) for key, path in changes.items()],
            flat=flat,
            trusts_checkpoint=True,
        )

    async def _catalog(self, head: Head) -> StoredObject:
        """Read the catalog's definition, never from a checkpoint: its limits apply to all names."""
        return (await self._follower.reader.stored({head.catalog_def: Kind.CATALOG}))[head.catalog_def]

    async def _definitions(self, entries: Iterable[tuple[Key, str]]) -> dict[str, StoredObject]:
        keys = self._follower.reader.keys
        kinds = [(path, keys.parse(key).kind) for key, path in entries]
        stored: dict[str, StoredObject] = {}
        for start in range(0, len(kinds), DEFINITIONS_AT_ONCE):
            stored |= await self._follower.reader.stored(dict(kinds[start : start + DEFINITIONS_AT_ONCE]))
        return stored

    async def _from_tree(self, head: Head, known: Flat | None = None) -> State:
        """Make the head's state by a scan.

        `known` is a table of any version. Its definitions are not read again, as a definition never changes under
        its path.
        """
        follower = self._follower
        snapshot = Snapshot(follower.reader, head.version, head.root, head.catalog_def)
        builder = FlatBuilder()
        damaged: list[tuple[Key, StoredObject]] = []
        low = Key("")
        while True:
            rows = await snapshot.rows(low, _LAST, SCAN_ROWS)
            for start in range(0, len(rows), DEFINITIONS_AT_ONCE):
                part = rows[start : start + DEFINITIONS_AT_ONCE]
                found = {} if known is None else _known(known, part)
                found |= await self._definitions((key, path) for key, path in part if path not in found)
                builder.extend((pack(key), found[path]) for key, path in part)
                damaged += [(key, found[path]) for key, path in part if found[path].damage]
            if len(rows) < SCAN_ROWS:
                break
            low = Key(rows[-1][0] + "\0")
        return State(
            keys=follower.reader.keys,
            catalog_id=follower.catalog_id,
            version=head.version,
            created_at_millis=head.created_at_millis,
            catalog=await self._catalog(head),
            entries=damaged,
            flat=await asyncio.to_thread(builder.build),
            trusts_checkpoint=known is not None,
        )

    async def _catch_up(self, state: State, head: Head) -> None:
        """Apply the versions accepted since `head`, several roots at a time.

        Catching up ends even while others write; scanning again might never end.
        """
        follower = self._follower
        node, catalog_def, below = head.root, head.catalog_def, head.commit_id
        while state.version < follower.head.version:
            end = min(follower.head.version, state.version + ROOTS_AT_ONCE)
            roots: list[Root] = await each_of(range(state.version + 1, end + 1), follower.root, ROOTS_AT_ONCE)
            for root in roots:
                check_follows(root, below)
                record = await follower.record_of(root, node, catalog_def)
                state.apply(record, await follower.definitions_of(record))
                node, catalog_def, below = root.node, root.catalog_def, root.commit_id

    def _install(self, state: State, *, is_verified: bool) -> None:
        self._follower.state = state
        self._verification = None
        if not is_verified:
            reader = self._follower.reader
            self._verification = Verification(reader, state, self._draw(), self._head_of)
        self.unverified_since_millis = 0 if is_verified else max(self.now_millis(), 1)
        self._is_wanted, self.lost = True, ""
        self.generation += 1
        self._put_in_place(state.flat.keys, state.version, state.presence())

    def _head_of(self, state: State) -> Head | None:
        return self._follower.head if self._follower.state is state else None

    # --- moving on

    def accepted(self, record: VersionRecord) -> None:
        """Move the symbol list by one version, which the state has applied already."""
        symbols, state = self.symbols, self._follower.state
        if symbols is not None:
            symbols.apply(record.version, record.changes)
            if symbols.wants_compaction:
                self._begin("compaction", self._compact_quietly)
        if state is not None and state.wants_merge and state.overlay_count > self._merge_due:
            self._begin("merge", self._merge_quietly)

    def jumped(self) -> None:
        """Drop the symbol list after the head jumped past versions that cannot be read any more."""
        self.symbols = self._verification = None
        self.unverified_since_millis = 0
        if self._is_wanted:
            self.lost = "versions expired before they were read"

    async def restore(self) -> None:
        """Load a state that is lost. An error stays in `lost`, for `rebuild` or the next load; reads need no memory."""
        if self.lost and not self.invalid_reason:
            try:
                await self.load()
            except AlpheusError as error:
                self.lost = f"{self.lost}, and loading failed: {error.message}"

    def _begin(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        running = self._tasks.get(name)
        if running is None or running.done():
            self._tasks[name] = asyncio.ensure_future(work())

    async def close(self) -> None:
        """End the background work. Idempotent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _compact_quietly(self) -> None:
        try:
            await self.compact()
        except AlpheusError:
            return  # the list counts the failure, and its `last_failure` has the reason

    async def _merge_quietly(self) -> None:
        state = self._follower.state
        try:
            async with self._rebasing:
                await self._merge()
        except Exception as error:
            # The overlay only grows. The merge is tried again when the overlay has doubled.
            self.counts.merge_failures += 1
            self.last_failure = f"{type(error).__name__}: {error}"
            self._merge_due = 2 * state.overlay_count if state is not None else 0
        else:
            self.last_failure, self._merge_due = "", 0

    async def _merge(self) -> None:
        """Merge the overlay into a new base in memory."""
        state = self._follower.state
        if state is None:
            return
        base, changes = state.flat, state.overlay()
        flat = await asyncio.to_thread(base.merged, changes)
        self._rebase(state, base, flat, changes)
        self.counts.merges += 1

    def _rebase(
        self, state: State, base: Flat, flat: Flat, changes: list[tuple[bytes, StoredObject | None]]
    ) -> None:
        """Swap in the new base, unless the state was replaced meanwhile."""
        if self._follower.state is not state or state.flat is not base:
            return
        state.rebase(flat, changes)
        # The state knows how the list differs from the new base. The list itself may have been compacted since the
        # work began, and then its base has entries that the new base lacks.
        if self.symbols is not None and self.symbols.version == state.version:
            self.symbols.share(flat.keys, state.presence())

    # --- checkpoints

    async def checkpoint(self, *, verify: bool = False) -> CheckpointInfo:
        """Store the head's state as a checkpoint, map the file in place of the base, and delete old checkpoints.

        The state is loaded if there is none. It is first compared with the tree: a small state always, a large one
        with `verify`. Raises Corrupt (`state_drift`) when memory and tree differ; nothing was written then.
        """
        async with self._rebasing:
            try:
                for _ in range(VANISHED_MAX - 1):
                    try:
                        return await self._checkpoint(verify)
                    except _Vanished:  # other processes deleted it as an old one
                        await self._follower.refresh()
                return await self._checkpoint(verify)
            except BaseException:
                self.counts.checkpoint_failures += 1
                raise

    async def _checkpoint(self, verify: bool) -> CheckpointInfo:
        follower = self._follower
        storage = follower.log.storage
        await follower.check_writable()
        if self.invalid_reason:
            await self._rebuild_memory()  # otherwise a wrong checkpoint might stay beside the new one
        last = self.last_checkpoint
        if last is not None and last.version == follower.head.version and await storage.exists(last.path):
            return last
        state = follower.state
        if state is None:  # an empty one is false
            state = await self.load()
        await self.verify()
        if follower.state is not state:
            raise self._drift_error(
                follower.head.version, self.invalid_reason or "the state was replaced meanwhile"
            )
        head, frozen = follower.head, state.copy()
        assert frozen.version == head.version, "head and state move together"
        if verify or len(frozen) <= VERIFIED_OBJECTS_MAX:
            drift = await self._compare(head, frozen, None)
            if drift.differences:
                self.invalidate(drift.text())
                raise self._drift_error(head.version, drift.text())
        return await self._store(state, frozen, head)

    async def _store(self, state: State, frozen: State, head: Head) -> CheckpointInfo:
        follower = self._follower
        storage, log = follower.log.storage, follower.log
        changes = frozen.overlay()
        flat = await asyncio.to_thread(frozen.flat.merged, changes) if changes else frozen.flat
        assert self.new_id is not None, "a writer has identities"
        path = checkpoint_path(head.version, log.digits, self.new_id())
        catalog = frozen.get(fmt.CATALOG)
        assert catalog is not None
        facts = Facts(
            catalog_id=follower.catalog_id,
            version=head.version,
            commit_id=head.commit_id,
            created_at_millis=self.now_millis(),
            version_created_at_millis=head.created_at_millis,
            catalog_def=catalog.path,
            catalog_def_bytes=None if catalog.damage else catalog.definition,
            objects=len(flat),
        )
        size = await write_checkpoint(storage, path, flat, facts)
        del flat
        try:
            opened = await open_checkpoint(storage, path, self.cache_dir)
        except NotFound as error:
            raise _Vanished(
                f"{path} was deleted immediately after it was written", kind=error.kind, path=path
            ) from error
        except AlpheusError:
            # The error would occur again at every attempt, and files must not accumulate.
            with suppress(AlpheusError):
                await storage.delete(path)
            raise
        self._rebase(state, frozen.flat, opened.flat, changes)
        self.counts.checkpoints_written += 1
        self.lacks_checkpoint = False
        self.last_checkpoint = CheckpointInfo(
            version=head.version,
            path=path,
            objects=facts.objects,
            size_bytes=size,
            created_at_millis=facts.created_at_millis,
            deleted=0,
        )
        dropped = await drop_old(storage, log, below=head.version, kept=self.checkpoints_kept, own=path)
        self.last_checkpoint = msgspec.structs.replace(self.last_checkpoint, deleted=len(dropped))
        return self.last_checkpoint

    def _drift_error(self, version: int, what: str) -> Corrupt:
        return Corrupt(
            f"memory and the tree of version {version} differ: {what}",
            kind="state_drift",
            version=version,
            hint="nothing was written, and from now on the tree is read; please report this",
        )

    # --- the symbol list

    async def list_symbols(
        self,
        version: int,
        query: SymbolQuery,
        read_tree: Callable[[], Awaitable[Snapshot]],
        *,
        from_tree: bool = False,
    ) -> SymbolPage:
        """Return a page of the symbols of a version: from memory if it reaches back that far, else from the tree, which
        `read_tree` opens. With `from_tree`, memory is not asked."""
        query.check()
        is_held = self.symbols is not None and not self._is_withheld and not from_tree
        view = self.symbols.view(version) if self.symbols is not None and is_held else None
        if view is not None:
            return await asyncio.to_thread(view.list, query) if query.pattern else view.list(query)
        follower = self._follower
        snapshot = await read_tree()
        gathering = Gathering(query, follower.reader.keys)
        size = min(SCAN_ROWS, query.size + 1)
        for low, high in query.ranges(follower.reader.keys):
            await follower.reader.rule_out_utf16_order(snapshot.root, [low, high])
            while not gathering.is_over:
                rows = await snapshot.rows(low, high, size)
                keys = KeyRows(column_of(pack(key) for key, _ in rows))
                gathering.add(groups(follower.reader.keys, keys, [(0, len(rows))]))
                if len(rows) < size:
                    break
                low = Key(rows[-1][0] + "\0")
        return gathering.page(version)

    async def _load_symbols(self, *, fresh: bool = False) -> Symbols:
        """Return the list in memory; make it by a scan of keys if there is none, or if it has to be `fresh`."""
        follower = self._follower
        if self.symbols is not None and not fresh:
            return self.symbols
        head, columns, low = follower.head, [], Key("")
        snapshot = Snapshot(follower.reader, head.version, head.root, head.catalog_def)
        while True:
            rows = await snapshot.rows(low, _LAST, SCAN_ROWS)
            columns.append(column_of(pack(key) for key, _ in rows))
            if len(rows) < SCAN_ROWS:
                break
            low = Key(rows[-1][0] + "\0")
        keys = await asyncio.to_thread(lambda: KeyRows(join_columns(columns)))
        changes: dict[bytes, bool] = {}
        while head.version < follower.head.version:
            newest = follower.head
            for key, _, after in await follower.reader.diff(head.root, newest.root):
                changes[pack(key)] = after is not None
            head = newest
        self._put_in_place(keys, head.version, changes.items())
        assert self.symbols is not None
        return self.symbols

    def _put_in_place(self, keys: KeyRows, version: int, changes: Iterable[tuple[bytes, bool]]) -> None:
        before = self.symbols
        self.symbols = Symbols(
            self._follower.reader.keys,
            keys,
            version,
            changes=changes,
            journal_max=self.symbol_journal_max,
            jitter=lambda: self._draw().uniform(-1, 1),
        )
        if before is not None:
            self.symbols.succeed(before)

    async def reload(self) -> SymbolsInfo:
        """Load the list, and the state if there ever was one, from the tree of the head, and swap them in.

        With a state, all checkpoints are deleted, as by `rebuild`: the caller doubts memory, which may have come from
        a checkpoint. If reloading fails or is cancelled before the swap, the old list and state stay.
        """
        async with self._rebasing:
            found = self.counts.invalidations
            if self._is_wanted:
                await self.load(from_tree=True)
                await self._delete_checkpoints()
            else:
                await self._load_symbols(fresh=True)
            self._clear_invalid_reason(found)
        self.counts.reloads += 1
        return _info(await self._load_symbols())

    async def compact(self) -> SymbolsInfo:
        """Make a new base of the list now. Raises Unavailable on failure; the list stays correct."""
        async with self._compacting:
            symbols = await self._load_symbols()
            done = symbols.compaction()
            try:
                rows = await asyncio.to_thread(done.run)
            except Exception as error:
                symbols.failed(f"{type(error).__name__}: {error}")
                raise Unavailable(
                    f"the symbol list was not compacted: {symbols.last_failure}",
                    hint="try again later; the list stays correct, and grows until a compaction succeeds",
                ) from error
            symbols.adopt(done, rows)
            return _info(symbols)

    # --- content that came from checkpoints

    @property
    def is_unverified(self) -> bool:
        """Whether memory came from a checkpoint that is not yet compared as a whole with the tree."""
        return self._verification is not None

    @property
    def _is_withheld(self) -> bool:
        return self.is_unverified and not self.serves_unverified

    @property
    def readable(self) -> State | None:
        """The state, if reads may be answered from it."""
        return None if self._is_withheld else self._follower.state

    @property
    def verified(self) -> State | None:
        """The state, if its keys and paths are known to equal those of the tree."""
        return None if self.is_unverified else self._follower.state

    async def verify(self, reads_max: int | None = None) -> None:
        """Compare memory that came from a checkpoint with the tree: all keys and paths, and a sample of definitions.

        Memory that differs is dropped (`invalidate`). Does nothing if nothing came from a checkpoint, or if everything
        was compared before. `reads_max` stops the comparison after about that many nodes and definitions; the next
        call continues there. Raises any error of reading; the caller has to call again then.
        """
        verification = self._verification
        if verification is None:
            return
        what = await verification.resume(reads_max)
        if self._verification is not verification:
            return  # memory was replaced meanwhile
        if what:
            self.counts.drifts += verification.differences
            self.invalidate(what)
        elif verification.is_done:
            self.counts.verifications += 1
            self._verification, self.unverified_since_millis = None, 0

    async def load_certain(
        self, state: State, names: Sequence[ObjectName]
    ) -> Sequence[StoredObject | None] | None:
        """Return objects of a state that a commit may build on.

        Definitions that came from a checkpoint are first compared with their files. Returns None when the caller has
        to read the tree: keys are not compared yet, or a definition differs and memory was dropped.
        """
        if self.is_unverified:
            return None
        held = state.load(names)
        unverified = set(state.names_from_checkpoint(names))
        if not unverified:
            return held
        known = {
            stored.path: (name, stored)
            for name, stored in zip(names, held, strict=True)
            if name in unverified and stored is not None and stored.damage is None
        }
        read = await self._follower.reader.stored({path: name.kind for path, (name, _) in known.items()})
        for path, (name, stored) in known.items():
            if read[path].damage is None and read[path].definition != stored.definition:
                self.invalidate(f"memory has another definition of {name} than {path}")
                return None
        return held

    def invalidate(self, what: str) -> None:
        """Drop memory, which was found to differ from the tree as `what` says.

        From now on every version is read from its tree. `rebuild` or the next load brings the state back.
        """
        self.counts.invalidations += 1
        self.generation += 1
        self.invalid_reason = what
        self._follower.state = self.symbols = self._verification = None
        self.unverified_since_millis = 0

    @property
    def needs_rebuild(self) -> bool:
        """Whether memory was dropped or lost, and is not back yet."""
        return bool(self.invalid_reason or self.lost)

    async def rebuild(self) -> None:
        """Bring memory back after `invalidate`: load the tree, and delete all checkpoints.

        Checkpoints may have the same mistake as memory, and they only save time. A state that was merely lost is
        loaded. Raises any error of reading and deleting; the caller has to try again then.
        """
        async with self._rebasing:
            if self.invalid_reason:
                await self._rebuild_memory()
            elif self.lost:
                await self.load()

    async def _rebuild_memory(self) -> None:
        found = self.counts.invalidations
        if self._follower.state is None:  # otherwise only deleting failed before
            await self.load(from_tree=True)
        await self._delete_checkpoints()
        self._clear_invalid_reason(found)

    async def _delete_checkpoints(self) -> None:
        await self._follower.check_writable()  # checkpoints may be the only evidence of lost versions
        storage, log = self._follower.log.storage, self._follower.log
        self.last_checkpoint, self.lacks_checkpoint = None, True
        for path in await list_checkpoints(storage, log, self._follower.head.version):
            with suppress(NotFound):  # other processes may delete the same checkpoints
                await storage.delete(path)

    def _clear_invalid_reason(self, found: int) -> None:
        """Clear the reason after `found` invalidations were dealt with, unless memory was invalidated again since."""
        if self.counts.invalidations == found:
            self.invalid_reason = ""

    async def check(self, sample: int | None = None) -> Drift:
        """Compare memory with the tree of the same version. Memory that differs is dropped (`invalidate`).

        Without `sample` everything is compared. With it, the first range of keys is compared, `sample` random ranges
        that begin at a key of memory, and as many that begin at a leaf of the tree.
        """
        symbols = await self._load_symbols()
        head, state = self._follower.head, self._follower.state
        drift = await self._compare(head, None if state is None else state.copy(), sample)
        if drift.differences and self._follower.state is state and self.symbols is symbols:
            self.invalidate(drift.text())  # otherwise memory was replaced meanwhile
        return drift

    async def _compare(self, head: Head, state: State | None, sample: int | None) -> Drift:
        follower = self._follower
        symbols = self.symbols.view(head.version) if self.symbols is not None else None
        snapshot = Snapshot(follower.reader, head.version, head.root, head.catalog_def)
        of_state, of_symbols = Comparison(follower.reader.keys), Comparison(follower.reader.keys)
        starts = [Key("")]
        rows = SCAN_ROWS
        if sample is not None:
            base = state.flat.keys if state is not None else symbols.rows if symbols is not None else None
            if base is not None and len(base):
                picked = (self._draw().randrange(len(base)) for _ in range(sample))
                starts += [base.key(row) for row in picked]
            leaves = tree.random_leaves(head.root, self._draw(), sample)
            starts += [
                leaf.items[0][0]
                for leaf in await tree.run_async(leaves, follower.reader.load_nodes)
                if leaf.items
            ]
            rows = SAMPLE_ROWS
        for start in starts:
            low = start
            while True:
                truth = await snapshot.rows(low, _LAST, rows)
                high = Key(truth[-1][0] + "\0") if len(truth) == rows else None
                if state is not None:
                    of_state.add(truth, state.between(low, high))
                if symbols is not None:
                    of_symbols.add(truth, [(key, None) for key in symbols.between(low, high)])
                if high is None or sample is not None:
                    break
                low = high
        drifts = [found.drift(head.version, sampled=sample is not None) for found in (of_state, of_symbols)]
        drift = (
            drifts[0]
            if drifts[0].differences or (state is not None and not drifts[1].differences)
            else drifts[1]
        )
        self.counts.drift_checks += 1
        self.counts.drifts += drift.differences
        self.last_drift = drift
        return drift


def _info(symbols: Symbols) -> SymbolsInfo:
    view = symbols.view()
    assert view is not None
    return SymbolsInfo(
        version=symbols.version,
        symbols=len(view),
        journal_length=symbols.journal_length,
        compactions=symbols.compactions,
        failures=symbols.failures,
        last_failure=symbols.last_failure,
    )


def _known(known: Flat, part: Iterable[tuple[Key, str]]) -> dict[str, StoredObject]:
    """Return the objects of some entries that a table holds under the same path."""
    found: dict[str, StoredObject] = {}
    missing = set(known.missing) if known.definitions.array.null_count else set()
    for key, path in part:
        row = known.keys.find(pack(key))
        if row >= 0 and row not in missing and known.path(row) == path:
            found[path] = known.stored(row)
    return found
