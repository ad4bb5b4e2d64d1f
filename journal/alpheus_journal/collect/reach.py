"""What kept versions, tags, leases and saved transactions reach: the files that a collection must not delete.

A kept version reaches its tree and everything that its recorded actions name, so that its event stays whole. A copy of
a root (a tag's pin, a lease) reaches its tree alone. A tree reaches its nodes, its definitions, the manifest segments
of their tables, and the data files of these. What cannot be read could reach anything, so it raises Corrupt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.collect.candidates import Candidates
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, NotFound
from alpheus_journal.format import Kind, NodePath
from alpheus_journal.log.copies import Copy
from alpheus_journal.log.versions import Log, Root
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


class _Wanted(msgspec.Struct):
    """What a step of the search still has to read."""

    nodes: list[NodePath] = []
    definitions: dict[str, Kind] = {}
    segments: dict[str, tuple[Segment, str, str]] = {}
    """A segment with its table's id and data root, by path."""


class Reach:
    """Finds what is reached, and takes it out of `candidates`. Everything is read once, whoever reaches it first."""

    def __init__(self, log: Log, keys: fmt.Keys, candidates: Candidates) -> None:
        self._log = log
        self._candidates = candidates
        self._reader = Reader(
            log.storage,
            keys,
            node_size_max=log.node_size_max,
            node_cache_bytes=NODE_CACHE_BYTES,
            definition_cache_bytes=DEFINITION_CACHE_BYTES,
        )
        self._seen: set[str] = set()
        """The nodes, definitions and segments that were read or are about to be."""
        self._fresh: list[str] = []
        """What the root that is being added brought into `_seen`."""
        self._by, self._is_copy = VERSIONS, False
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
        """Add kept versions. Skips those that have expired meanwhile: whoever took something over from them did so by a
        pin, a lease or a later version. Raises Corrupt for a root that cannot be read."""
        self._by, self._is_copy = VERSIONS, False
        self._fresh.clear()

        for start in range(0, len(versions), ROOTS_AT_ONCE):
            wanted = _Wanted()
            for root in await self._read_roots(versions[start : start + ROOTS_AT_ONCE]):
                self._add_tree(root.node, root.catalog_def, wanted)
                self._candidates.keep(root.action_files, self._by)
                for transaction in root.transactions:
                    for action in transaction.actions:
                        self._add_action(action, wanted)
            await self._follow(wanted)

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

    async def add_copy(self, copy: Copy, by: str) -> None:
        """Add the tree of a pin or a lease."""
        self._by, self._is_copy = by, True
        self._fresh.clear()
        wanted = _Wanted()
        self._add_tree(copy.root, copy.catalog_def, wanted)
        await self._follow(wanted)

    async def add_root_file(self, path: str, by: str) -> None:
        """Add the tree of a root that is stored as an ordinary node: of an export, or of a saved transaction. Raises
        Corrupt, also where a file is missing."""
        self._by, self._is_copy = by, True
        self._fresh.clear()
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
            self._seen.difference_update(self._fresh)  # who reaches it, too, reads it again
            raise

    # --- what is reached

    def _add_tree(self, root: Node, catalog_def: str, wanted: _Wanted) -> None:
        self._want_definition(fmt.check_definition_pointer(catalog_def, Kind.CATALOG), Kind.CATALOG, wanted)
        self._add_node(root, wanted)

    def _add_node(self, node: Node, wanted: _Wanted) -> None:
        for child in node.children:
            if child and child not in self._seen:
                self._see(child)
                wanted.nodes.append(child)
        for key, path in zip(node.keys, node.values, strict=True):
            if path and path not in self._seen:  # a key of another writer may be deleted
                kind = self._reader.keys.parse(key).kind
                self._want_definition(fmt.check_definition_pointer(path, kind), kind, wanted)

    def _want_definition(self, path: str, kind: Kind, wanted: _Wanted) -> None:
        if path in self._seen:
            return
        self._candidates.keep((path,), self._by)
        if kind is Kind.TAG and self._is_copy:
            return  # the tags of a copy keep nothing; a kept version may still name this one
        self._see(path)
        if kind in (Kind.CATALOG, Kind.TABLE, Kind.TAG, Kind.SUBSCRIPTION):
            wanted.definitions[path] = kind

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
                self._want_segment(segment, operation.table_id, operation.data_root, wanted)

    def _want_segment(self, segment: Segment, table_id: str, root: str, wanted: _Wanted) -> None:
        if segment.path not in self._seen:
            self._see(fmt.check_manifest_pointer(segment.path, table_id))
            self._candidates.keep((segment.path,), self._by)
            wanted.segments[segment.path] = (segment, table_id, root)

    def _add_place(self, table_id: str, root: str) -> None:
        self.places.setdefault(table_id, set()).add(root)

    def _see(self, path: str) -> None:
        self._seen.add(path)
        self._fresh.append(path)

    async def _follow(self, wanted: _Wanted) -> None:
        """Read what is wanted, and what that wants, until nothing is left."""
        while wanted.nodes or wanted.definitions or wanted.segments:
            found = _Wanted()
            for start in range(0, len(wanted.nodes), READ_AT_ONCE):
                part = wanted.nodes[start : start + READ_AT_ONCE]
                for node in (await self._reader.load_nodes(part)).values():
                    self._add_node(node, found)
                    await asyncio.sleep(0)
                self._candidates.keep(part, self._by)
            items = list(wanted.definitions.items())
            for start in range(0, len(items), READ_AT_ONCE):
                await self._read_definitions(dict(items[start : start + READ_AT_ONCE]), found)
            await self._read_segments(list(wanted.segments.values()))
            wanted = found

    async def _read_definitions(self, paths: dict[str, Kind], found: _Wanted) -> None:
        stored = await self._reader.definitions(paths)
        for number, (path, data) in enumerate(stored.items(), 1):
            if number % DECODED_AT_ONCE == 0:
                await asyncio.sleep(0)
            definition = decode_definition(paths[path], data, path)
            if isinstance(definition, TagDef):
                self.tags.setdefault(definition.pin_path, definition)
            elif isinstance(definition, CatalogDef):
                self.exports.update(definition.exported_snapshots.values())
            elif isinstance(definition, SubscriptionDef):
                self.positions.update((definition.position_path, definition.previous_position_path))
            elif isinstance(definition, TableDef) and definition.native:
                self._add_place(definition.id, definition.data_root)
                for segment in definition.segments:
                    self._want_segment(segment, definition.id, definition.data_root, found)

    async def _read_segments(self, segments: Sequence[tuple[Segment, str, str]]) -> None:
        batch: list[tuple[Segment, str, str]] = []
        size = 0
        for item in segments:
            if batch and (
                len(batch) == READ_AT_ONCE or size + item[0].segment_size_bytes > SEGMENTS_SIZE_BYTES_MAX
            ):
                await self._read_segment_batch(batch)
                batch, size = [], 0
            batch.append(item)
            size += item[0].segment_size_bytes
        if batch:
            await self._read_segment_batch(batch)

    async def _read_segment_batch(self, batch: Sequence[tuple[Segment, str, str]]) -> None:
        storage = self._log.storage
        size_max = min(max(item[0].segment_size_bytes for item in batch), fmt.MANIFEST_SIZE_BYTES_MAX)
        try:
            stored = await storage.read_many([item[0].path for item in batch], size_max=size_max)
        except NotFound as error:
            raise Corrupt(
                f"manifest segment {error.path} is missing",
                kind="corrupt_manifest",
                path=error.path,
                hint="restore the file from a copy",
            ) from error
        for segment, table_id, root in batch:
            data = stored[segment.path]
            if len(data) < OFFLOADED_SIZE_BYTES_MIN:
                paths = _list_files(segment, data, table_id)
            else:
                paths = await asyncio.to_thread(_list_files, segment, data, table_id)
            self._candidates.keep(paths, self._by, root)
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
