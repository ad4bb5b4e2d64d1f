"""The store of a table whose data files lie at a data root, outside the catalog's prefix (FORMAT.md, "Data roots")."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from alpheus_journal import format as fmt
from alpheus_journal.data_roots import find_overlap
from alpheus_journal.errors import AlreadyExists, Denied, InvalidInput, NotFound
from alpheus_journal.storage import ObjectInfo, OpenUpload, Storage, check_paths, open_storage
from alpheus_journal.storage.posix import LMDB_FILES
from alpheus_journal.urls import redact_url

DATA_FOLDER = "data/"
OWNER_FILE = "data/catalog"
"""The file at a data root that names the catalog to which the root belongs."""
OWNER_SIZE_BYTES_MAX = 1024


async def read_owner(root: Storage) -> str:
    """Return the id of the catalog to which a data root belongs; empty where none has claimed it."""
    try:
        data = await root.read(OWNER_FILE, size_max=OWNER_SIZE_BYTES_MAX)
    except NotFound:
        return ""
    return data.decode("utf-8", "replace").strip() or "?"


async def claim_root(root: Storage, catalog_id: str) -> str:
    """Make a data root belong to a catalog, unless it belongs to one. Return the id of the owner."""
    if owner := await read_owner(root):
        return owner
    with contextlib.suppress(AlreadyExists):  # another process was faster
        await root.create(OWNER_FILE, f"{catalog_id}\n".encode())
    return await read_owner(root)


class RootedStorage(Storage):
    """Data files at a data root, and all other files of the catalog.

    Paths below `data/` are files of the root; every other path is a file of `catalog`. `url` is the root's, because
    callers ask it for the place of data files. The root is opened by its first use. `open_root` may block for a few
    system calls; a coroutine calls it in a thread.
    """

    def __init__(self, catalog: Storage, url: str, open_root: Callable[[], Storage]) -> None:
        self.url = url
        self._catalog = catalog
        self._open_root = open_root
        self._root: Storage | None = None

    @property
    def clock_offset_millis(self) -> int | None:
        return self._catalog.clock_offset_millis

    def _opened(self) -> Storage:
        if self._root is None:
            self._root = self._open_root()
        return self._root

    async def root(self) -> Storage:
        """Return the store of the root alone."""
        return self._opened() if self._root is not None else await asyncio.to_thread(self._opened)

    async def _of(self, path: str) -> Storage:
        """Return the store of a path."""
        if not path.startswith(DATA_FOLDER):
            return self._catalog
        return await self.root()

    async def _split(self, paths: Iterable[str]) -> list[tuple[Storage, list[str]]]:
        """Return the paths of each store, without a store that has none."""
        groups: dict[bool, list[str]] = {}
        for path in paths:
            groups.setdefault(path.startswith(DATA_FOLDER), []).append(path)
        return [(await self._of(group[0]), group) for group in groups.values()]

    async def read(self, path: str, *, size_max: int) -> bytes:
        return await (await self._of(path)).read(path, size_max=size_max)

    async def read_many(self, paths: list[str], *, size_max: int) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for store, group in await self._split(paths):
            found |= await store.read_many(group, size_max=size_max)
        return found

    async def read_part(self, path: str, *, start: int, size: int) -> bytes:
        return await (await self._of(path)).read_part(path, start=start, size=size)

    async def stat(self, path: str) -> ObjectInfo | None:
        return await (await self._of(path)).stat(path)

    async def stat_many(self, paths: Sequence[str]) -> dict[str, ObjectInfo | None]:
        found: dict[str, ObjectInfo | None] = {}
        for store, group in await self._split(paths):
            found |= await store.stat_many(group)
        return found

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in (await self._of(prefix)).list(prefix):
            yield info

    async def create(self, path: str, data: bytes) -> None:
        await (await self._of(path)).create(path, data)

    async def put(self, path: str, data: bytes) -> None:
        await (await self._of(path)).put(path, data)

    async def put_many(self, files: Mapping[str, bytes]) -> None:
        for store, group in await self._split(files):
            await store.put_many({path: files[path] for path in group})

    async def delete(self, path: str) -> None:
        await (await self._of(path)).delete(path)

    async def delete_many(self, paths: Sequence[str]) -> None:
        for store, group in await self._split(check_paths(paths)):
            await store.delete_many(group)

    async def list_uploads(self, prefix: str) -> AsyncIterator[OpenUpload]:
        async for upload in (await self._of(prefix)).list_uploads(prefix):
            yield upload

    async def abort_upload(self, upload: OpenUpload) -> None:
        await (await self._of(upload.path)).abort_upload(upload)

    def uri(self, path: str) -> str:
        return (self._opened() if path.startswith(DATA_FOLDER) else self._catalog).uri(path)

    def local_path(self, path: str) -> str | None:
        return (self._opened() if path.startswith(DATA_FOLDER) else self._catalog).local_path(path)

    async def make_durable(self, paths: Sequence[str]) -> None:
        for store, group in await self._split(paths):
            await store.make_durable(group)

    async def prove(self) -> None:
        await self._catalog.prove()

    async def close(self) -> None:
        """Close the root. The catalog's store stays open."""
        if self._root is not None:
            await self._root.close()
            self._root = None


class DataRoots:
    """The stores of one catalog's tables, by their data roots. Opens each root once; `close` closes the roots."""

    def __init__(self, catalog: Storage) -> None:
        self._catalog = catalog
        self._opened: dict[str, RootedStorage] = {}

    def of(self, url: str) -> Storage:
        """Return the store of tables with this data root: the catalog's own store for an empty root.

        The options of the catalog's URL (endpoint, region, profile) hold for its roots. Nothing is opened yet; the
        first use raises the errors of `open_storage`, and InvalidInput (`bad_data_root`) for another kind of store.
        """
        if not url:
            return self._catalog
        known = self._opened.get(url)
        if known is None:
            query = urlsplit(self._catalog.url).query
            whole = url + (f"?{query}" if query else "")

            def open_root() -> Storage:
                self.check_kind(url)
                return open_storage(whole)

            known = self._opened[url] = RootedStorage(self._catalog, whole, open_root)
        return known

    def all(self) -> Iterator[Storage]:
        """Yield the catalog's store, and the stores of all roots that were asked for."""
        yield self._catalog
        yield from list(self._opened.values())

    def check_kind(self, url: str) -> None:
        """Raise InvalidInput (`bad_data_root`) for a root in another kind of store than the catalog's, or one that
        overlaps the catalog."""
        mine, theirs = urlsplit(self._catalog.url).scheme, urlsplit(url).scheme
        if theirs != ("file" if mine == "lmdb" else mine):
            raise InvalidInput(
                f"the data root {redact_url(url)} is not in the kind of store of the catalog, {mine}://",
                kind="bad_data_root",
                hint="one set of credentials and options must reach the catalog and its data",
            )
        if find_overlap(url, [self._catalog.url]) is not None:
            raise InvalidInput(
                f"the data root {redact_url(url)} overlaps the catalog at {self._catalog.url}",
                kind="bad_data_root",
                hint="choose a place beside the catalog",
            )

    async def check_apart(self, url: str) -> None:
        """Raise InvalidInput (`bad_data_root`) for a root that holds a catalog or lies inside one. That catalog's
        collection would take the data files for its own."""
        store = self.of(url)
        if not isinstance(store, RootedStorage):
            return
        root = await store.root()
        slots = [fmt.version_file(0, digits) for digits in (32, 64)]
        outer = ""
        for files in (*([slot] for slot in slots), LMDB_FILES):
            with contextlib.suppress(Denied):  # credentials limited to the data may not look there
                if all([await root.exists(file) for file in files]):
                    outer = root.url
        outer = outer or await root.enclosing(slots)
        if outer:
            raise InvalidInput(
                f"the data root {redact_url(url)} is at or inside a catalog, {redact_url(outer)}",
                kind="bad_data_root",
                hint="choose a place outside of that catalog: a catalog owns everything below its prefix",
            )

    async def claim(self, url: str, catalog_id: str) -> None:
        """Make a root belong to the catalog. Raises InvalidInput (`bad_data_root`) where it belongs to another one."""
        owner = await claim_root(self.of(url), catalog_id)
        if owner != catalog_id:
            raise InvalidInput(
                f"the data root {redact_url(url)} belongs to the catalog {owner[:80]}, as {OWNER_FILE} there says",
                kind="bad_data_root",
                hint="choose another place; if that catalog is gone for ever, delete the file",
            )

    async def close(self) -> None:
        """Close all roots. Idempotent."""
        while self._opened:
            _, root = self._opened.popitem()
            await root.close()
