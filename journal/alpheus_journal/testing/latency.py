"""A slow store: each request waits for the same time, and concurrent requests wait together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from alpheus_journal.storage import ObjectInfo, Storage, check_paths, each_of, split_items

T = TypeVar("T")

DELETE_BATCH = 1000
"""The number of files that one request removes, as on S3."""


class LatencyStorage(Storage):
    """A store in front of `inner` whose requests take `seconds` more, as with an object store.

    Requests for many files go in groups of `at_once`. `requests` counts requests by method.
    """

    def __init__(
        self,
        inner: Storage,
        seconds: float,
        *,
        at_once: int = 64,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.inner = inner
        self.url = inner.url
        self.requests: dict[str, int] = {}
        self._seconds = seconds
        self._at_once = at_once
        self._sleep = sleep

    async def _call(self, method: str, call: Callable[[], Awaitable[T]]) -> T:
        self.requests[method] = self.requests.get(method, 0) + 1
        await self._sleep(self._seconds)
        return await call()

    async def read(self, path: str, *, size_max: int) -> bytes:
        return await self._call("read", lambda: self.inner.read(path, size_max=size_max))

    async def read_many(self, paths: list[str], *, size_max: int) -> dict[str, bytes]:
        found = await each_of(paths, lambda path: self.read(path, size_max=size_max), self._at_once)
        return dict(zip(paths, found, strict=True))

    async def stat(self, path: str) -> ObjectInfo | None:
        return await self._call("stat", lambda: self.inner.stat(path))

    async def stat_many(self, paths: Sequence[str]) -> dict[str, ObjectInfo | None]:
        found = await each_of(list(paths), self.stat, self._at_once)
        return dict(zip(paths, found, strict=True))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        await self._sleep(self._seconds)
        async for info in self.inner.list(prefix):
            yield info

    async def create(self, path: str, data: bytes) -> None:
        await self._call("create", lambda: self.inner.create(path, data))

    async def publish_looking(
        self, files: Mapping[str, bytes], slot: str, root: bytes, beside: Sequence[str]
    ) -> dict[str, str | None]:
        await self.put_many(files)
        creating = self._call("create", lambda: self.inner.publish_looking({}, slot, root, []))
        own, found = await self._while_looking(creating, beside)
        return found | own

    async def put(self, path: str, data: bytes) -> None:
        await self._call("put", lambda: self.inner.put(path, data))

    async def put_many(self, files: Mapping[str, bytes]) -> None:
        await each_of(list(files.items()), lambda file: self.put(*file), self._at_once)

    async def delete(self, path: str) -> None:
        await self._call("delete", lambda: self.inner.delete(path))

    async def delete_many(self, paths: Sequence[str]) -> None:
        async def delete(batch: Sequence[str]) -> None:
            await self._call("delete_many", lambda: self.inner.delete_many(batch))

        await each_of(split_items(check_paths(paths), DELETE_BATCH), delete, self._at_once)

    def uri(self, path: str) -> str:
        return self.inner.uri(path)

    async def close(self) -> None:
        await self.inner.close()
