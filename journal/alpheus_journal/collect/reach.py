"""What kept versions, tags, leases and saved transactions reach: the files that a collection must not delete.

A kept version reaches its tree and everything that its recorded actions name, so that its event stays whole. A copy of
a root (a tag's pin, a lease) reaches its tree alone. A tree reaches its nodes, its definitions, the manifest segments
of their tables, and the data files of these. What cannot be read could reach anything, so it raises Corrupt.

A version below a table's start does not reach the table's data files (FORMAT.md, "Starts of tables"), nor does the pin
of a tag that says so. The tables that a root passes over are a mask (`Levels`). Everything is read once for each mask
that adds tables, and the newest version comes first, so that the versions below add none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.collect.candidates import Candidates
from alpheus_journal.collect.table_starts import Levels
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, NotFound
from alpheus_journal.format import Kind, NodePath
from alpheus_journal.log.copies import Copy
from alpheus_journal.log.versions import Log, Root
from alpheus_journal.model.answers import FileTotals
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, Segment, SubscriptionDef, TableDef, TagDef
from alpheus_journal.model.operations import Action, AppendFiles, ChangeRows, OverwriteFiles
from alpheus_journal.tables.manifest import is_content_of, list_paths
from alpheus_journal.tree.node import Node, decode_node
from alpheus_journal.tree.reader import Reader
from alpheus_journal.workspace.context import OFFLOADED_SIZE_BYTES_MIN

READ_AT_ONCE = 32
DECODED_AT_ONCE = 4
"""Other work of the event loop has its turn after so many definitions."""
ROOTS_AT_ONCE = 16
NODE_CACHE_BYTES = 8 << 20
DEFINITION_CACHE_BYTES = 1 << 20
"""Each node and definition is read once, so a cache would only take memory."""
VERSIONS = "versions"
"""The name under which `Candidates` counts what kept versions reach."""
SEGMENTS_SIZE_BYTES_MAX = 32 << 20
"""Bytes of manifest segments that are read together. One segment is always allowed."""


class Listing(msgspec.Struct, frozen=True):
    """A manifest segment, with its table's id and data root."""

    segment: Segment
    table_id: str
    root: str


class _Wanted(msgspec.Struct):
    """What a step of the search still has to read: each with the mask of the tables that it passes over."""

    nodes: dict[NodePath, int] = {}
    definitions: dict[str, tuple[Kind, int]] = {}
    segments: dict[str, Listing] = {}


class Reach:
    """Finds what is reached, and takes it out of `candidates`. Everything is read once, whoever reaches it first."""

    def __init__(self, log: Log, keys: fmt.Keys, candidates: Candidates) -> None:
        self.levels = Levels({})
        self._log = log
        self._candidates = candidates
        self._reader = Reader(
            log.storage,
            keys,
            node_size_max=log.node_size_max,
            node_cache_bytes=NODE_CACHE_BYTES,
            definition_cache_bytes=DEFINITION_CACHE_BYTES,
        )
        self._seen: dict[str, int] = {}
        """The nodes, definitions and segments that were read or are about to be, each with the tables that were passed
        over by all that reached it."""
        self._passed: dict[str, Listing] = {}
        """The segments whose data files nothing has reached yet."""
        self._fresh: list[tuple[str, int | None]] = []
        """What the root that is being added brought into `_seen`, with the mask before."""
        self._taken: dict[str, Listing] = {}
        """What the root that is being added took out of `_passed`."""
        self._by, self._is_copy, self._mask = VERSIONS, False, 0
        self.tags: dict[str, TagDef] = {}
        """The tags of kept versions, by the path of their pins."""
        self.positions: set[str] = set()
        """The files that subscriptions name."""
        self.exports: set[str] = set()
        """The copied roots that another writer's exports name."""
        self.places: dict[str, set[str]] = {}
        """The data roots of the tables that are reached, by their ids; the prefix is the empty root. A table has one
        place for life, so a second one would be damage, and then neither place may lose the table's files."""

    # --- who reaches

    async def add_versions(self, versions: Sequence[int]) -> None:
        """Add kept versions, the last first. Skips those that have expired meanwhile: a pin, a lease or a later version
        keeps what was taken over from them. Raises Corrupt for a root that cannot be read."""
        self._begin(VERSIONS, False, 0)
        downwards = sorted(versions, reverse=True)
        for start in range(0, len(downwards), ROOTS_AT_ONCE):
            wanted = _Wanted()
            for root in await self._read_roots(downwards[start : start + ROOTS_AT_ONCE]):
                self._mask = self.levels.mask_of(root.version)
                self._add_tree(root.node, root.catalog_def, wanted)
                self._candidates.keep(root.action_files, self._by)
                for transaction in root.transactions:
                    for action in transaction.actions:
                        self._add_action(action, wanted)
            await self._follow(wanted)

    def _begin(self, by: str, is_copy: bool, mask: int) -> None:
        self._by, self._is_copy, self._mask = by, is_copy, mask
        self._fresh.clear()
        self._taken.clear()

    async def _read_roots(self, versions: Sequence[int]) -> list[Root]:
        """Read the roots of those versions that are kept."""
        found = []
        for version, root in zip(versions, await self._log.read_many(versions), strict=True):
            if isinstance(root, Expired):
                continue
            if isinstance(root, NotFound) and self._log.given_up_range(version) is not None:
                continue
            if isinstance(root, AlpheusError):
                raise root
            found.append(root)
        return found

    async def add_copy(self, copy: Copy, by: str, lacking: Iterable[str] = ()) -> None:
        """Add the tree of a pin or a lease, without the data files of the tables `lacking`."""
        self._begin(by, True, self.levels.mask_of_tables(lacking))
        wanted = _Wanted()
        self._add_tree(copy.root, copy.catalog_def, wanted)
        await self._follow(wanted)

    async def add_root_file(self, path: str, by: str) -> None:
        """Add the tree of a root that is stored as an ordinary node: of an export, or of a saved transaction. Raises
        Corrupt, also where a file is missing."""
        self._begin(by, True, 0)
        self._candidates.keep((fmt.check_root_pointer(path),), by)
        try:
            data = await self._log.storage.read(path, size_max=self._log.node_size_max)
        except NotFound:
            raise Corrupt(f"the root {path} is missing", kind="corrupt_node", path=path) from None
        file = decode_node(data, path, root=True, size_max=self._log.node_size_max)
        wanted = _Wanted()
        try:
            self._add_tree(file.node, file.catalog_def, wanted)
            await self._follow(wanted)
        except Corrupt:
            self._undo()  # who reaches it, too, reads it again
            raise

    # --- what is reached

    def _add_tree(self, root: Node, catalog_def: str, wanted: _Wanted) -> None:
        self._want_definition(fmt.check_definition_pointer(catalog_def, Kind.CATALOG), Kind.CATALOG, wanted)
        self._add_node(root, self._mask, wanted)

    def _add_node(self, node: Node, mask: int, wanted: _Wanted) -> None:
        for child in node.children:
            if child and not self._covers(child, mask):
                self._see(child, mask)
                wanted.nodes[child] = wanted.nodes.get(child, mask) & mask
        for key, path in zip(node.keys, node.values, strict=True):
            if path and not self._covers(path, mask):  # a key of another writer may be deleted
                kind = self._reader.keys.parse(key).kind
                self._want_definition(fmt.check_definition_pointer(path, kind), kind, wanted, mask)

    def _covers(self, path: str, mask: int) -> bool:
        """Return whether a file was read for all tables that a mask does not pass over."""
        seen = self._seen.get(path)
        return seen is not None and not seen & ~mask

    def _want_definition(self, path: str, kind: Kind, wanted: _Wanted, mask: int | None = None) -> None:
        mask = self._mask if mask is None else mask
        if self._covers(path, mask):
            return
        self._candidates.keep((path,), self._by)
        if kind is Kind.TAG and self._is_copy:
            return  # the tags of a copy keep nothing; a kept version may still name this one
        self._see(path, mask)
        if kind in (Kind.CATALOG, Kind.TABLE, Kind.TAG, Kind.SUBSCRIPTION):
            _, asked = wanted.definitions.get(path, (kind, mask))
            wanted.definitions[path] = kind, asked & mask

    def _add_action(self, action: Action, wanted: _Wanted) -> None:
        for effect in action.effects:
            for path in (effect.path_before, effect.path_after):
                if path:
                    fmt.check_definition_pointer(path, effect.name.kind)
                    self._want_definition(path, effect.name.kind, wanted)
        operation = action.operation
        if isinstance(operation, AppendFiles | OverwriteFiles | ChangeRows):
            self._add_place(operation.table_id, operation.data_root)
            segments = [*operation.segments]
            if isinstance(operation, ChangeRows):
                segments += [*operation.removed, *operation.changes]
            for segment in segments:
                self._want_segment(
                    Listing(segment, operation.table_id, operation.data_root), self._mask, wanted
                )

    def _want_segment(self, listing: Listing, mask: int, wanted: _Wanted) -> None:
        path, table_id = listing.segment.path, listing.table_id
        # Of a segment only its own table counts, so that a mask of other tables reads nothing again.
        mask &= self.levels.mask_of_tables([table_id])
        if self._covers(path, mask):
            return
        self._see(fmt.check_manifest_pointer(path, table_id), mask)
        self._candidates.keep((path,), self._by)
        if mask:
            self._passed[path] = listing
            return
        wanted.segments[path] = listing
        if path in self._passed:
            self._taken[path] = self._passed.pop(path)

    def _add_place(self, table_id: str, root: str) -> None:
        self.places.setdefault(table_id, set()).add(root)

    def _see(self, path: str, mask: int) -> None:
        before = self._seen.get(path)
        self._seen[path] = mask if before is None else before & mask
        self._fresh.append((path, before))

    def _undo(self) -> None:
        for path, before in reversed(self._fresh):
            if before is None:
                del self._seen[path]
                self._passed.pop(path, None)
            else:
                self._seen[path] = before
        self._passed.update(self._taken)

    async def _follow(self, wanted: _Wanted) -> None:
        """Read what is wanted, and what that wants, until nothing is left."""
        while wanted.nodes or wanted.definitions or wanted.segments:
            found = _Wanted()
            paths = list(wanted.nodes)
            for start in range(0, len(paths), READ_AT_ONCE):
                part = paths[start : start + READ_AT_ONCE]
                for path, node in (await self._reader.load_nodes(part)).items():
                    self._add_node(node, wanted.nodes[path], found)
                    await asyncio.sleep(0)
                self._candidates.keep(part, self._by)
            items = list(wanted.definitions.items())
            for start in range(0, len(items), READ_AT_ONCE):
                await self._read_definitions(dict(items[start : start + READ_AT_ONCE]), found)
            await self._read_segments(list(wanted.segments.values()))
            wanted = found

    async def _read_definitions(self, wanted: dict[str, tuple[Kind, int]], found: _Wanted) -> None:
        paths = {path: kind for path, (kind, _) in wanted.items()}
        stored = await self._reader.definitions(paths)
        for number, (path, data) in enumerate(stored.items(), 1):
            if number % DECODED_AT_ONCE == 0:
                await asyncio.sleep(0)
            definition = decode_definition(paths[path], data, path)
            if isinstance(definition, TagDef):
                self._add_tag(definition)
            elif isinstance(definition, CatalogDef):
                self.exports.update(definition.exported_snapshots.values())
            elif isinstance(definition, SubscriptionDef):
                self.positions.update((definition.position_path, definition.previous_position_path))
            elif isinstance(definition, TableDef) and definition.native:
                self._add_place(definition.id, definition.data_root)
                for segment in definition.segments:
                    listing = Listing(segment, definition.id, definition.data_root)
                    self._want_segment(listing, wanted[path][1], found)

    def _add_tag(self, tag: TagDef) -> None:
        """Note a tag. Where two tags name one pin, the pin lacks only what both lack."""
        known = self.tags.get(tag.pin_path)
        if known is not None:
            both = known.lacking.keys() & tag.lacking.keys()
            tag = msgspec.structs.replace(known, lacking={id: known.lacking[id] for id in both})
        self.tags[tag.pin_path] = tag

    async def _read_segments(self, segments: Sequence[Listing]) -> None:
        async for listing, paths in self._list_files(segments):
            self._candidates.keep(paths, self._by, listing.root)

    async def find_earlier(self) -> dict[str, FileTotals]:
        """Return how many files are left that are listed only below their tables' starts, by table id. Call it when
        everything is added. Raises Corrupt for a segment that cannot be read."""
        found: dict[str, FileTotals] = {}
        async for listing, paths in self._list_files(list(self._passed.values())):
            left = self._candidates.note(paths, listing.root)
            before = found.get(listing.table_id, FileTotals())
            found[listing.table_id] = FileTotals(
                files=before.files + left.files, size_bytes=before.size_bytes + left.size_bytes
            )
        return {table_id: totals for table_id, totals in found.items() if totals.files}

    async def keep_passed(self, table_ids: Collection[str]) -> None:
        """Add the data files of tables at all versions, because their starts do not rise. Raises Corrupt."""
        kept = {path: one for path, one in self._passed.items() if one.table_id in table_ids}
        self._by = VERSIONS
        await self._read_segments(list(kept.values()))
        for path in kept:
            del self._passed[path]

    async def _list_files(self, segments: Sequence[Listing]) -> AsyncIterator[tuple[Listing, list[str]]]:
        """Yield segments with their data files. Raises Corrupt."""
        batch: list[Listing] = []
        size = 0
        for item in segments:
            if batch and (
                len(batch) == READ_AT_ONCE or size + item.segment.segment_size_bytes > SEGMENTS_SIZE_BYTES_MAX
            ):
                async for listed in self._list_batch(batch):
                    yield listed
                batch, size = [], 0
            batch.append(item)
            size += item.segment.segment_size_bytes
        if batch:
            async for listed in self._list_batch(batch):
                yield listed

    async def _list_batch(self, batch: Sequence[Listing]) -> AsyncIterator[tuple[Listing, list[str]]]:
        storage = self._log.storage
        size_max = min(max(item.segment.segment_size_bytes for item in batch), fmt.MANIFEST_SIZE_BYTES_MAX)
        try:
            stored = await storage.read_many([item.segment.path for item in batch], size_max=size_max)
        except NotFound as error:
            raise Corrupt(
                f"manifest segment {error.path} is missing",
                kind="corrupt_manifest",
                path=error.path,
                hint="restore the file from a copy",
            ) from error
        for item in batch:
            data = stored[item.segment.path]
            if len(data) < OFFLOADED_SIZE_BYTES_MIN:
                paths = _list_files(item.segment, data, item.table_id)
            else:
                paths = await asyncio.to_thread(_list_files, item.segment, data, item.table_id)
            yield item, paths
            await asyncio.sleep(0)


def _list_files(segment: Segment, data: bytes, table_id: str) -> list[str]:
    """Return the data files of a segment. Raises Corrupt."""
    if not is_content_of(segment, data):
        raise Corrupt(
            f"manifest segment {segment.path} differs from the size and SHA-256 that the catalog records",
            kind="corrupt_manifest",
            path=segment.path,
            hint="restore the file from a copy",
        )
    return list_paths(data, segment.path, table_id=table_id)
