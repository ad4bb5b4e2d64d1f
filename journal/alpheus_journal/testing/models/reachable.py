"""What a catalog reaches, found by marking everything and without any sharing of work: a second implementation that
collection is compared with."""

from __future__ import annotations

from collections.abc import Iterable

from alpheus_journal import format as fmt
from alpheus_journal.clock import uuid7_millis
from alpheus_journal.format import Kind
from alpheus_journal.log.copies import Copy
from alpheus_journal.log.leases import decode_lease
from alpheus_journal.model.action_rows import decode_action, is_read, parse_row
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, Segment, TableDef, TagDef
from alpheus_journal.model.operations import AppendFiles, ChangeRows, OverwriteFiles
from alpheus_journal.storage import Storage
from alpheus_journal.tables.manifest import decode_segment
from alpheus_journal.tree.node import Node, NodeFile, decode_node
from alpheus_pb.v1 import actions_pb2 as pb

_SIZE_MAX = 1 << 28


async def starts_at(storage: Storage, keys: fmt.Keys, version: int | None = None) -> dict[str, int]:
    """Return the starts of tables at a version, by default at the last slot that is filled."""
    if version is None:
        slots = [info.path async for info in storage.list("vn/") if len(info.path) > 20]
        version = max(fmt.parse_version_file(path)[0] for path in slots)
    path = fmt.version_file(version, keys.version_digits)
    data = await storage.read(path, size_max=_SIZE_MAX)
    file = decode_node(data, path, root=True, size_max=fmt.NODE_FILE_SIZE_BYTES_MAX)
    stored = await storage.read(file.catalog_def, size_max=_SIZE_MAX)
    definition = decode_definition(Kind.CATALOG, stored, file.catalog_def)
    assert isinstance(definition, CatalogDef)
    return definition.table_starts


class Reachable:
    """The files that the kept versions, tags and leases of a catalog reach. Not those of saved transactions."""

    def __init__(self, storage: Storage, keys: fmt.Keys) -> None:
        self._storage = storage
        self._keys = keys
        self.files: set[str] = set()
        self._pins: dict[str, set[str]] = {}
        """The tables that pins lack, by the path of the pin."""
        self._starts: dict[str, int] = {}
        self._passed: set[str] = set()
        """The tables whose data files what is being marked does not reach."""

    async def find(self, *, leases: bool = True) -> set[str]:
        """Return their paths, without slots and hints."""
        slots = [info.path async for info in self._storage.list("vn/") if len(info.path) > 20]
        files = {
            fmt.parse_version_file(path)[0]: (await self._node_file(path, root=True), path) for path in slots
        }
        self._starts = await starts_at(self._storage, self._keys)
        for version, (file, path) in files.items():
            if not file.is_tombstone:
                self._passed = {id for id, start in self._starts.items() if version < start}
                await self._mark_root(file)
                await self._mark_actions(file, path)
        await self._mark_pins()
        async for info in self._storage.list("lease/"):
            if leases:
                self.files.add(info.path)
                lease = decode_lease(await self._read(info.path), info.path)
                if lease.transaction_id:
                    await self._mark_uploads(lease.transaction_id)
                await self.find_of_copy(lease.copy)
        return self.files

    async def find_of_copy(self, copy: Copy, lacking: Iterable[str] = ()) -> set[str]:
        """Return the paths of what the copy of a version reaches, such as that of a lease, without the data files of
        the tables `lacking`."""
        self._passed = set(lacking)
        await self._mark(Kind.CATALOG, copy.catalog_def, pins=False)
        await self._mark_node(copy.root, pins=False)
        return self.files

    async def _mark_uploads(self, transaction_id: str) -> None:
        """Mark what a writer with a lease may have uploaded: its folders, and segments from the time of its id on."""
        async for info in self._storage.list("data/"):
            if info.path.split("/")[2:3] == [transaction_id]:
                self.files.add(info.path)
        async for info in self._storage.list("manifest/"):
            if info.modified_at_millis >= uuid7_millis(transaction_id) - 121_000:
                self.files.add(info.path)

    async def find_of(self, slot: str) -> set[str]:
        """Return the paths of what one version reaches, by the path of its slot."""
        file = await self._node_file(slot, root=True)
        await self._mark_root(file)
        await self._mark_actions(file, slot)
        await self._mark_pins()
        return self.files

    async def _mark_pins(self) -> None:
        for path, lacking in sorted(self._pins.items()):  # what pins name themselves keeps nothing
            self.files.add(path)
            self._passed = lacking
            await self._mark_root(await self._node_file(path, root=True), pins=False)
        self._passed = set()

    async def _read(self, path: str) -> bytes:
        return await self._storage.read(path, size_max=_SIZE_MAX)

    async def _node_file(self, path: str, *, root: bool) -> NodeFile:
        return decode_node(await self._read(path), path, root=root, size_max=fmt.NODE_FILE_SIZE_BYTES_MAX)

    async def _mark_root(self, file: NodeFile, *, pins: bool = True) -> None:
        await self._mark(Kind.CATALOG, file.catalog_def, pins=pins)
        await self._mark_node(file.node, pins=pins)

    async def _mark_node(self, node: Node, *, pins: bool) -> None:
        for child in node.children:
            if child:
                self.files.add(child)
                await self._mark_node((await self._node_file(child, root=False)).node, pins=pins)
        for key, path in zip(node.keys, node.values, strict=True):
            await self._mark(self._keys.parse(key).kind, path, pins=pins)

    async def _mark(self, kind: Kind, path: str, *, pins: bool = True) -> None:
        if not path:
            return
        self.files.add(path)
        if kind not in (Kind.TABLE, Kind.TAG):
            return
        definition = decode_definition(kind, await self._read(path), path)
        if isinstance(definition, TagDef) and pins:
            self._pins[definition.pin_path] = set(definition.lacking)
        if isinstance(definition, TableDef):
            for segment in definition.segments:
                await self._mark_segment(segment, definition.id)

    async def _mark_segment(self, segment: Segment, table_id: str) -> None:
        self.files.add(segment.path)
        if table_id in self._passed:
            return
        files = decode_segment(await self._read(segment.path), segment.path, table_id=table_id)
        self.files.update(file.path for file in files)

    async def _mark_actions(self, file: NodeFile, path: str) -> None:
        for _, value in file.actions:
            row = parse_row(value, path)
            message = row.message
            if row.external_path:
                self.files.add(row.external_path)
                message = pb.ActionDef.FromString(await self._read(row.external_path))
            if message.type == pb.TRANSACTION or is_read(message):
                continue
            action = decode_action(message, path)
            for effect in action.effects:
                await self._mark(effect.name.kind, effect.path_before)
                await self._mark(effect.name.kind, effect.path_after)
            operation = action.operation
            if isinstance(operation, AppendFiles | OverwriteFiles | ChangeRows):
                segments = [*operation.segments]
                if isinstance(operation, ChangeRows):
                    segments += [*operation.removed, *operation.changes]
                for segment in segments:
                    await self._mark_segment(segment, operation.table_id)
