"""Read one version of the tree from storage, through caches that are never stale.

Nodes and definitions are immutable and have random names, so a cache by path needs no validation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, NotFound
from alpheus_journal.format import Key, Kind, NodePath, ObjectName
from alpheus_journal.model.answers import Damage, Page, StoredObject
from alpheus_journal.model.definition_messages import decode_definition, is_message
from alpheus_journal.model.definitions import CatalogDef
from alpheus_journal.storage import Storage
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import Node, NodeFile, decode_node

DECODED_AT_ONCE = 4
PAGE_SIZE_DEFAULT = 1_000
PAGE_SIZE_MAX = 10_000
NODE_CACHE_BYTES_DEFAULT = 128 << 20
DEFINITION_CACHE_BYTES_DEFAULT = 64 << 20

Value = TypeVar("Value")
KeyChange = tuple[Key, str | None, str | None]
"""Key, definition path before, definition path after; None means absent."""


async def catalog_def_at(storage: Storage, path: str, version: int) -> CatalogDef:
    """Read the catalog definition that a version names. Raises Corrupt (`corrupt_definition`)."""
    try:
        data = await storage.read(path, size_max=fmt.DEFINITION_SIZE_BYTES_MAX)
    except NotFound:
        raise Corrupt(
            f"the catalog definition {path} of version {version} is missing",
            kind="corrupt_definition",
            path=path,
            version=version,
        ) from None
    definition = decode_definition(Kind.CATALOG, data, path)
    assert isinstance(definition, CatalogDef)
    return definition


class SizedCache(Generic[Value]):
    """A cache bounded by bytes. The least recently used entry is dropped first."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.size = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[str, tuple[Value, int]] = OrderedDict()

    def get(self, path: str) -> Value | None:
        entry = self._entries.get(path)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(path)
        return entry[0]

    def set(self, path: str, value: Value, size: int) -> None:
        old = self._entries.pop(path, None)
        if old is not None:
            self.size -= old[1]
        self._entries[path] = (value, size)
        self.size += size
        self.resize(self.size_max)

    def resize(self, size_max: int) -> None:
        """Keep at most `size_max` bytes from now on. The last value stays, whatever its size."""
        self.size_max = size_max
        while self.size > size_max and len(self._entries) > 1:
            self.size -= self._entries.popitem(last=False)[1][1]


def node_size(node: Node) -> int:
    """Estimate how many bytes a node takes in memory."""
    return (
        200
        + 120 * len(node.keys)
        + sum(map(len, node.keys))
        + sum(map(len, node.values))
        + 100 * len(node.children)
    )


def page_size(limit: int) -> int:
    """Return the number of names in a page when the caller asks for `limit`; 0 means the default."""
    return min(limit or PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)


def names_of(keys: fmt.Keys, kind: Kind, namespace: str, found: Iterable[Key]) -> list[str]:
    """Return the last names of the keys that belong to `kind` and, for tables and views, to `namespace`."""
    parsed = [keys.parse(key) for key in found]
    if kind is Kind.NAMESPACE:
        return [name.namespace for name in parsed]
    return [name.name for name in parsed if name.namespace == namespace]


def page_of(version: int, found: Sequence[str], size: int) -> Page:
    """Build the page of the first `size` names. `found` may hold several ordered runs, and a name twice (once for each
    padding). One name more than `size` means that another page follows."""
    width = max(map(len, found), default=0)
    names = sorted(set(found), key=lambda name: name.ljust(width))  # as keys sort, which are padded
    return Page(version=version, names=tuple(names[:size]), more=len(names) > size)


class Reader:
    """Fetches nodes and definitions of one catalog. All versions share a reader.

    `on_node` is called with every child node that is read from storage.
    """

    def __init__(
        self,
        storage: Storage,
        keys: fmt.Keys,
        *,
        node_size_max: int,
        node_cache_bytes: int = NODE_CACHE_BYTES_DEFAULT,
        definition_cache_bytes: int = DEFINITION_CACHE_BYTES_DEFAULT,
        on_node: Callable[[NodePath, NodeFile], None] | None = None,
    ) -> None:
        self.storage = storage
        self.keys = keys
        self.node_size_max = node_size_max
        self.nodes: SizedCache[Node] = SizedCache(node_cache_bytes)
        self._definitions: SizedCache[bytes] = SizedCache(definition_cache_bytes)
        self.caches: dict[str, SizedCache[Any]] = {"nodes": self.nodes, "definitions": self._definitions}
        self._on_node = on_node

    async def load_nodes(self, paths: Sequence[NodePath]) -> Mapping[NodePath, Node]:
        """Return nodes by path. Raises Corrupt for a dangling pointer or a damaged file."""
        found: dict[NodePath, Node] = {}
        missing: list[NodePath] = []
        for path in paths:
            node = self.nodes.get(path)
            if node is None:
                missing.append(fmt.check_node_pointer(path))
            else:
                found[path] = node
        if missing:
            fetched = await self._read_many(missing, self.node_size_max, "a node")
            for number, path in enumerate(missing, 1):
                file = decode_node(fetched[path], path, root=False, size_max=self.node_size_max)
                if number % DECODED_AT_ONCE == 0:
                    await asyncio.sleep(0)  # a node takes half a millisecond, and commits wait meanwhile
                if self._on_node is not None:
                    self._on_node(path, file)
                self.remember_node(path, file.node)
                found[path] = file.node
        return found

    def remember_node(self, path: NodePath, node: Node) -> None:
        self.nodes.set(path, node, node_size(node))

    def remember_definition(self, path: str, data: bytes) -> None:
        self._definitions.set(path, data, len(data) + 200)

    async def definitions(self, paths: Mapping[str, Kind]) -> dict[str, bytes]:
        """Return the stored bytes of definitions by path. Raises Corrupt for a dangling pointer."""
        found: dict[str, bytes] = {}
        missing: list[str] = []
        for path, kind in paths.items():
            data = self._definitions.get(path)
            if data is None:
                missing.append(fmt.check_definition_pointer(path, kind))
            else:
                found[path] = data
        if missing:
            fetched = await self._read_many(missing, fmt.DEFINITION_SIZE_BYTES_MAX, "a definition")
            for path, data in fetched.items():
                if is_message(paths[path], data):  # a damaged file is read again: it may be repaired by then
                    self.remember_definition(path, data)
            found.update(fetched)
        return found

    async def stored(self, paths: Mapping[str, Kind]) -> dict[str, StoredObject]:
        """Return definitions by path, like `definitions`, except that a missing or impossible definition comes with its
        damage and does not affect the others."""
        try:
            data = await self.definitions(paths)
        except Corrupt as error:
            if len(paths) == 1:
                (path,) = paths
                return {path: StoredObject(path, b"", Damage(error.kind, error.message, error.hint))}
            half = len(paths) // 2
            items = list(paths.items())
            return await self.stored(dict(items[:half])) | await self.stored(dict(items[half:]))
        return {path: StoredObject(path, found) for path, found in data.items()}

    async def _read_many(self, paths: Sequence[str], size_max: int, what: str) -> dict[str, bytes]:
        try:
            return await self.storage.read_many(list(paths), size_max=size_max)
        except NotFound as error:
            raise Corrupt(
                f"the catalog points at {what} that is missing: {error.path or error.message}",
                kind="corrupt_tree" if what == "a node" else "corrupt_definition",
                path=error.path,
                hint="restore the file from a copy; earlier versions may still be readable",
            ) from error

    async def diff(self, before: Node, after: Node) -> list[KeyChange]:
        """Return the structural diff with keys in order. Reads only nodes that differ."""
        return await tree.run_async(tree.diff(before, after), self.load_nodes)

    async def find(self, root: Node, names: Sequence[ObjectName]) -> dict[ObjectName, tuple[Key, str]]:
        """Find key and definition path of those names that exist. Names outside ASCII are looked up under both paddings
        (FORMAT.md, "Dialects")."""
        wanted: dict[Key, ObjectName] = {}
        other = self.keys.other_padding()
        for name in names:
            if not name.full_name.isascii():
                wanted[other.key(name)] = name
        for name in names:
            wanted[self.keys.key(name)] = name
        found = await tree.run_async(tree.find(root, wanted), self.load_nodes)
        await self.rule_out_utf16_order(root, [key for key in wanted if key not in found])
        answer: dict[ObjectName, tuple[Key, str]] = {}
        for key, path in found.items():
            name = wanted[key]
            if name not in answer or key == self.keys.key(name):
                answer[name] = (key, path)
        return answer

    async def rule_out_utf16_order(self, root: Node, keys: Sequence[Key]) -> None:
        """Raise Corrupt when a tree of the Java SDK has its nodes in UTF-16 order and `keys` have other places there.
        Reads nodes only where a key has characters that sort differently in UTF-16 order."""
        if self.keys.version_digits == 64 and root.children:
            odd = [key for key in keys if tree.sorts_otherwise_in_utf16(key)]
            if odd:
                await tree.run_async(tree.probe_utf16_order(root, odd), self.load_nodes)


class _Reading:
    """Surrounds the reading of a snapshot. Files that are missing because the version has expired make Expired; every
    other Corrupt error names the version."""

    __slots__ = ("_snapshot",)

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    async def __aenter__(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Corrupt):
            await self._snapshot.check_kept()
            if error.version is None:
                error.version = self._snapshot.version


class Snapshot:
    """One version of the catalog, read from the tree. Every Corrupt error names the version.

    `verify` raises Expired when the version has expired. It is asked when a file of the version cannot be read, because
    the files of expired versions are collected.
    """

    def __init__(
        self,
        reader: Reader,
        version: int,
        root: Node,
        catalog_def: str,
        verify: Callable[[int], Awaitable[object]] | None = None,
        *,
        is_chosen: bool = False,
    ) -> None:
        self.is_chosen = is_chosen
        """The tree holds chosen objects of the version, not all."""
        self.reader = reader
        self.version = version
        self.root = root
        self.catalog_def = catalog_def
        self.verify = verify
        self._reading = _Reading(self)

    async def check_kept(self) -> None:
        """Raise Expired if the version has expired."""
        if self.verify is not None:
            with contextlib.suppress(Corrupt):
                await self.verify(self.version)

    async def load(self, names: Sequence[ObjectName]) -> tuple[StoredObject | None, ...]:
        """Return objects in the order of `names`, including damaged ones; None where no such object exists."""
        return tuple(stored for _, stored in await self.load_with_keys(names))

    async def load_with_keys(
        self, names: Sequence[ObjectName]
    ) -> list[tuple[Key | None, StoredObject | None]]:
        """Return the objects of `load`, each with the key under which it is stored."""
        async with self._reading:
            found = await self.reader.find(
                self.root, [name for name in names if name.kind is not Kind.CATALOG]
            )
            paths = {path: name.kind for name, (_, path) in found.items()}
            if any(name.kind is Kind.CATALOG for name in names):
                paths[self.catalog_def] = Kind.CATALOG
            data = await self.reader.stored(paths)
            if any(stored.damage is not None for stored in data.values()):
                await self.check_kept()
        answers: list[tuple[Key | None, StoredObject | None]] = []
        for name in names:
            if name.kind is Kind.CATALOG:
                answers.append((None, data[self.catalog_def]))
            elif name in found:
                key, path = found[name]
                answers.append((key, data[path]))
            else:
                answers.append((None, None))
        return answers

    async def names(
        self, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page:
        """Return a page of names in key order. Does not check that the namespace exists."""
        size = page_size(limit)
        found: list[str] = []
        for low, high in self.reader.keys.ranges(kind, namespace, prefix, after):
            count = len(found) + size
            while len(found) <= count:
                keys = await self._scan(low, high, size + 1)
                found += names_of(self.reader.keys, kind, namespace, keys)
                if len(keys) <= size:
                    break
                low = Key(keys[-1] + "\0")
        return page_of(self.version, found, size)

    async def objects(self, kind: Kind) -> AsyncIterator[tuple[str, StoredObject]]:
        """Yield all objects of a kind that lies in no namespace, with their names, in key order; damaged ones too."""
        after, more = "", True
        while more:
            page = await self.names(kind, after=after)
            loaded = await self.load([ObjectName(kind, "", name) for name in page.names])
            for name, stored in zip(page.names, loaded, strict=True):
                if stored is not None:
                    yield name, stored
            after, more = (page.names[-1], page.more) if page.names else ("", False)

    async def _scan(self, low: Key, high: Key, limit: int) -> list[Key]:
        async with self._reading:
            await self.reader.rule_out_utf16_order(self.root, [low, high])
        return [key for key, _ in await self.rows(low, high, limit)]

    async def rows(self, low: Key, high: Key, limit: int) -> list[tuple[Key, str]]:
        """Return the first `limit` keys of the half-open range with their definition paths, in key order."""
        async with self._reading:
            return await tree.run_async(tree.scan(self.root, low, high, limit=limit), self.reader.load_nodes)

    async def created_or_changed_since(
        self, before: Snapshot, kinds: frozenset[Kind]
    ) -> AsyncIterator[tuple[ObjectName, StoredObject]]:
        """Yield objects of this version that did not exist at the earlier version `before`, or had another definition,
        including damaged ones."""
        async with self._reading:
            changes = await self.reader.diff(before.root, self.root)
        found = [(self.reader.keys.parse(key), path) for key, _, path in changes if path is not None]
        found = [(name, path) for name, path in found if name.kind in kinds]
        for start in range(0, len(found), PAGE_SIZE_DEFAULT):
            part = found[start : start + PAGE_SIZE_DEFAULT]
            async with self._reading:
                data = await self.reader.stored({path: name.kind for name, path in part})
            for name, path in part:
                yield name, data[path]

    async def entries(self) -> list[tuple[Key, str]]:
        """Return every key with its definition path, in order."""
        async with self._reading:
            steps = tree.scan(self.root, Key(""), Key(chr(0x10FFFF)))
            return await tree.run_async(steps, self.reader.load_nodes)
