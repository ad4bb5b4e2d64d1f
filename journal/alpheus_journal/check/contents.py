"""Check the files that nodes name: definitions, manifest segments, data files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pyarrow.compute as pc

from alpheus_journal import format as fmt
from alpheus_journal.check.findings import Findings
from alpheus_journal.errors import AlpheusError, Corrupt, InvalidInput, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.log.copies import Copy
from alpheus_journal.log.pins import read_pin
from alpheus_journal.log.versions import Log, Root
from alpheus_journal.model.answers import Finding, StoredObject
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, Segment, TableDef, TagDef, TagParts
from alpheus_journal.rooted_storage import DataRoots
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import is_content_of
from alpheus_journal.tables.manifest_merge import Content
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.reader import Reader, Snapshot, catalog_def_at


class ContentCheck:
    """Reads each definition, each segment and the size of each data file only once, for all versions."""

    def __init__(
        self,
        reader: Reader,
        findings: Findings,
        data_roots: DataRoots,
        log: Log,
        catalog: Callable[[], Awaitable[CatalogDef]],
        last_loss: Callable[[], Awaitable[int]],
    ) -> None:
        self._reader = reader
        self._log = log
        self._data_roots = data_roots
        self._findings = findings
        self._catalog = catalog
        """Returns the catalog's definition at a head that is looked for now."""
        self._last_loss = last_loss
        """Returns the last version at which a repair gave up a lost head; 0 for none."""
        self._starts: dict[str, int] = {}
        """The starts of tables, as they were when a data file was last missed."""
        self._lost_fence = ""
        """What may explain a missing file whose start a repair gave up."""
        self.definitions: set[str] = set()
        """The paths of definitions that were read."""
        self.brought: set[str] = set()
        """The paths of segments that were checked with the action that added them."""
        self.manifests_count = 0
        self._segments: set[str] = set()
        self._files: set[str] = set()  # data files that were looked for

    async def stored(self, path: str, kind: Kind) -> StoredObject | None:
        if not path:
            return None
        self.definitions.add(path)
        data = await self._reader.definitions({path: kind})
        return StoredObject(path, data[path])

    async def check_head(self, root: Root) -> AsyncIterator[Finding]:
        """Check every definition, manifest segment and data file of the newest version."""
        snapshot = Snapshot(self._reader, root.version, root.node, root.catalog_def)
        try:
            catalog = await self.stored(root.catalog_def, Kind.CATALOG)
            assert catalog is not None
            decode_definition(Kind.CATALOG, catalog.definition, catalog.path)
        except AlpheusError as error:
            yield self._findings.of_error(error, root.version, root.catalog_def)
        try:
            entries = await snapshot.entries()
        except AlpheusError as error:
            yield self._findings.of_error(error, root.version, root.path)
            return
        for key, path in entries:
            await asyncio.sleep(0)
            try:
                name = self._reader.keys.parse(key)
                stored = await self.stored(path, name.kind)
                assert stored is not None
                if name.kind in (
                    Kind.NAMESPACE,
                    Kind.TABLE,
                    Kind.VIEW,
                    Kind.PIPELINE,
                    Kind.SUBSCRIPTION,
                    Kind.TAG,
                ):
                    definition = decode_definition(name.kind, stored.definition, path)
                    if isinstance(definition, TagDef):
                        async for finding in self._check_tag(definition, name, root.version):
                            yield finding
                    if isinstance(definition, TableDef) and definition.native:
                        async for finding in self._check_table(definition, name, root.version):
                            yield finding
            except AlpheusError as error:
                yield self._findings.of_error(error, root.version, path)

    async def _check_tag(self, tag: TagDef, name: ObjectName, version: int) -> AsyncIterator[Finding]:
        copy = await read_pin(self._log, tag.pin_path)
        if (copy.version, copy.commit_id) != (tag.version, tag.commit_id):
            yield self._findings.add(
                "corrupt_node",
                f"the pin {tag.pin_path} of {name} is of version {copy.version} as {copy.commit_id}, not of version"
                f" {tag.version} as {tag.commit_id}",
                tag.pin_path,
                version,
            )
        if copy.is_chosen != tag.is_chosen:
            yield self._findings.add(
                "corrupt_node",
                f"the pin {tag.pin_path} of {name} holds {'chosen' if copy.is_chosen else 'all'} objects, and the tag"
                " says otherwise",
                tag.pin_path,
                version,
            )
        if copy.is_chosen:
            async for finding in self._check_chosen(tag, copy, name, version):
                yield finding

    async def _check_chosen(
        self, tag: TagDef, copy: Copy, name: ObjectName, version: int
    ) -> AsyncIterator[Finding]:
        """Check the tree of a tag of chosen objects, and everything that the tree reaches."""
        order = (await catalog_def_at(self._reader.storage, copy.catalog_def, copy.version)).order
        problems = await tree.run_async(tree.verify(copy.root, order=order), self._reader.load_nodes)
        for problem in problems:
            yield self._findings.add("corrupt_tree", f"the tree of {name}: {problem}", tag.pin_path, version)
        snapshot, parts = Snapshot(self._reader, copy.version, copy.root, copy.catalog_def), TagParts(tag)
        for key, path in await snapshot.entries():
            await asyncio.sleep(0)
            try:
                held = self._reader.keys.parse(key)
                if parts.version_of(held) is None:
                    yield self._findings.add(
                        "corrupt_tree",
                        f"the tree of {name} has {held}, which the tag leaves out",
                        path,
                        version,
                    )
                stored = await self.stored(path, held.kind)
                assert stored is not None
                definition = decode_definition(held.kind, stored.definition, path)
                if isinstance(definition, TableDef) and definition.native:
                    at = -1 if definition.id in tag.lacking else version
                    async for finding in self._check_table(definition, held, at):
                        yield finding
            except AlpheusError as error:
                yield self._findings.of_error(error, version, path)

    async def _check_table(self, table: TableDef, name: ObjectName, version: int) -> AsyncIterator[Finding]:
        for segment in table.segments:
            if segment.path in self.brought:
                continue
            try:
                files = (await self.segment(segment, table.id, name)).files
            except AlpheusError as error:
                yield self._findings.of_error(error, version, segment.path)
                continue
            async for finding in self.check_data_files(files, table.id, table.data_root, name, version):
                yield finding

    async def segment(
        self, segment: Segment, table_id: str, name: ObjectName, *, of_table: bool = True
    ) -> Content:
        """Return the content of a manifest segment. Raises Corrupt when it is missing or differs from `segment`."""

        def corrupt(reason: str) -> Corrupt:
            return Corrupt(
                f"manifest segment {segment.path} of {name} {reason}",
                kind="corrupt_manifest",
                path=segment.path,
            )

        self.manifests_count += segment.path not in self._segments
        self._segments.add(segment.path)
        fmt.check_manifest_pointer(segment.path, table_id)
        try:
            data = await self._reader.storage.read(segment.path, size_max=fmt.MANIFEST_SIZE_BYTES_MAX)
        except NotFound:
            raise corrupt("is not there") from None
        if not is_content_of(segment, data):
            raise corrupt("differs from the size and SHA-256 that the catalog records")
        content = Content.decode(data, segment.path, table_id)
        files = content.files
        claimed = segment.file_count, segment.row_count, segment.size_bytes
        if claimed != (len(files), sum(f.row_count for f in files), sum(f.size_bytes for f in files)):
            raise corrupt("has other totals than the catalog records")
        if of_table:
            found = pc.min_max(content.sequences(segment)).as_py()
            if (found["min"], found["max"]) != (segment.lowest_sequence, segment.sequence):
                raise corrupt(f"has sequences {found['min']} to {found['max']}")
        return content

    async def check_data_files(
        self, files: tuple[DataFile, ...], table_id: str, data_root: str, name: ObjectName, version: int
    ) -> AsyncIterator[Finding]:
        """Look for data files of a table. A data root that cannot be reached is one finding. Below the table's start
        (version -1: in a tag that lacks its files) files may be missing."""
        storage = self._data_roots.of(data_root)
        for file in files:
            if file.path in self._files:
                continue
            try:
                info = await storage.stat(file.path)
            except (InvalidInput, NotFound) as error:  # the root itself
                yield self._findings.of_error(error, version, file.path)
                return
            if info is None and await self._may_lack(table_id, version):
                continue
            self._files.add(file.path)
            if info is None or info.size != file.size_bytes:
                found = (
                    f"is not there{self._lost_fence}"
                    if info is None
                    else f"has {info.size} bytes, not {file.size_bytes}"
                )
                yield self._findings.add(
                    "corrupt_manifest", f"data file {file.path} of {name} {found}", file.path, version
                )

    def lacks(self, table_id: str, version: int) -> bool:
        """Return whether a version is known to be below a table's start."""
        return version < self._starts.get(table_id, 0)

    async def _may_lack(self, table_id: str, version: int) -> bool:
        """Return whether a version may lack data files of a table. A collection may run beside the check."""
        if version < 0 or self.lacks(table_id, version):
            return True
        catalog = await self._catalog()
        self._starts = catalog.table_starts
        if self.lacks(table_id, version):
            return True
        self._lost_fence = (
            ", and a repair gave up later versions: if one of them was made for a collection, the file may have gone by"
            " the table's rules of history"
            if version < await self._last_loss()
            else ""
        )
        return False
