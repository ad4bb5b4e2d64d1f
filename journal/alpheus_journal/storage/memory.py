"""A store in the memory of this process: for tests, simulations and throwaway catalogs.

No method waits for anything, so a seeded event loop repeats a run over this store step by step.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote

import msgspec

from alpheus_journal.errors import InvalidInput
from alpheus_journal.storage.interface import (
    ObjectInfo,
    Storage,
    check_path,
    check_paths,
    check_prefix,
    check_size,
    file_not_there,
    slot_taken,
)


def _now_millis() -> int:
    return time.time_ns() // 1_000_000


class _Entry(msgspec.Struct, frozen=True):
    data: bytes
    modified_at_millis: int


class MemoryStorage(Storage):
    """A dict of files. "Durable" means that a file lives as long as this object.

    `MemoryStorage(...)` makes a separate store that no URL opens. `MemoryStorage.named(name)` returns the only store
    of that name in this process; `memory://name` opens it, and it lives as long as the process. `clock` returns the
    store's time in epoch milliseconds. `close` keeps the content.

    Threads may share a store, because each method is one atomic operation on the dict in CPython.
    """

    _stores: ClassVar[dict[str, MemoryStorage]] = {}

    def __init__(self, *, name: str = "unnamed", clock: Callable[[], int] = _now_millis) -> None:
        self.url = f"memory://{quote(name)}"
        self._clock = clock
        self._files: dict[str, _Entry] = {}

    @classmethod
    def named(cls, name: str) -> MemoryStorage:
        """Return the process-wide store of that name; the first call makes it."""
        if not name:
            raise InvalidInput("a memory store needs a name", kind="bad_url", hint="memory://name")
        return cls._stores.setdefault(name, cls(name=name))

    @classmethod
    def forget(cls, name: str) -> None:
        """Remove a named store from the process, so that its name is free. Holders of the store may still use it."""
        cls._stores.pop(name, None)

    async def read(self, path: str, *, size_max: int) -> bytes:
        entry = self._files.get(check_path(path))
        if entry is None:
            raise file_not_there(path, self.url)
        check_size(path, len(entry.data), size_max)
        return entry.data

    async def stat(self, path: str) -> ObjectInfo | None:
        entry = self._files.get(check_path(path))
        if entry is None:
            return None
        return msgspec.structs.replace(_info(path, entry), tag=_tag(entry.data))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        # A copy: files may come and go between two steps of the iteration.
        for path, entry in sorted(self._files.items()):
            if path.startswith(prefix):
                yield _info(path, entry)

    async def create(self, path: str, data: bytes) -> None:
        entry = self._entry(data)
        if self._files.setdefault(check_path(path), entry) is not entry:
            raise slot_taken(path)

    async def publish_looking(
        self, files: Mapping[str, bytes], slot: str, root: bytes, beside: Sequence[str]
    ) -> dict[str, str | None]:
        await self.publish(files, slot, root)
        return await self._tags(beside) | {slot: _tag(root)}

    async def put(self, path: str, data: bytes) -> None:
        self._files[check_path(path)] = self._entry(data)

    async def delete(self, path: str) -> None:
        self._files.pop(check_path(path), None)

    async def delete_many(self, paths: Sequence[str]) -> None:
        for path in check_paths(paths):
            await self.delete(path)

    def uri(self, path: str) -> str:
        raise InvalidInput(
            f"{self.url} is in the memory of one process; no other program can read {check_path(path)}",
            kind="storage_unreachable",
            hint="use a catalog at a file:// URL with Spark",
        )

    def _entry(self, data: bytes) -> _Entry:
        return _Entry(bytes(data), self._clock())


def _tag(data: bytes) -> str:
    return f"{len(data)}-{zlib.crc32(data)}"


def _info(path: str, entry: _Entry) -> ObjectInfo:
    return ObjectInfo(path, len(entry.data), entry.modified_at_millis)
