"""A store in one LMDB file, for one machine. A commit costs one transaction and its sync.

`lmdb:///abs/path` is a directory that holds LMDB's own `data.mdb` and `lock.mdb`. Everything below `data/` is a plain
file in that directory, because Spark and other programs read and write those files by `uri`. Plain files go through
the local driver, with its staging folder beside them. All other paths are keys in LMDB.

- Each write is one LMDB transaction, also `publish`: all its files and the slot appear together, durable. LMDB
  shows a transaction to readers only after the sync.
- A key is the path in UTF-8. The key of a path that is too long for LMDB is the path's beginning, a zero byte (no path
  holds one) and the SHA-256 of the whole path. The value holds the time of writing, the path where the key does not,
  and the content.
- The map grows by doubling, while no transaction of this process is open. When another process has grown the file
  beyond this process's map, this process adopts the larger size.
- LMDB forbids one process to open a file twice, so stores of one process share an environment, found by inode. A
  forked child must open its own.
- Processes on one machine may share the file; processes on other machines may not. A network file system is refused.

After a sync or write error it is unknown what is stored: the write is OutcomeUnknown and the process writes no more
(`storage_read_only`), as in the local driver. Disk space is allocated before each transaction, so a full disk means
that nothing was applied.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import struct
import time
import weakref
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec

from alpheus_journal.errors import (
    InvalidInput,
    Unavailable,
)
from alpheus_journal.storage.interface import (
    ObjectInfo,
    Storage,
    check_path,
    check_prefix,
    check_size,
    file_not_there,
    slot_taken,
    split_items,
    unreadable,
)
from alpheus_journal.storage.lmdb_environment import Environment, check_own
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.urls import redact_url

_P = ParamSpec("_P")
_T = TypeVar("_T")

READ_THREADS = 4
LIST_BATCH = 1000
DELETE_BATCH = 256
PATH_SIZE_BYTES_MAX = 4096
DATA_FOLDER = "data/"

_KEY_SIZE = 511  # what LMDB is built with everywhere
_KEY_BEGINNING = _KEY_SIZE - 33
_HEADER = struct.Struct("<qH")


def open_lmdb(url: str, *, create: bool = False) -> LmdbStorage:
    """Open the store behind `lmdb:///abs/path`. Blocks for a few system calls.

    `create` makes a missing directory and file. Raises InvalidInput (`bad_url`; `storage_unsuitable` on a network
    file system), NotFound (`no_catalog`), NotEmpty for a directory that holds other files, Denied, and Corrupt for a
    file that is not an LMDB file or was cut.
    """
    parts = urlsplit(url)
    if parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise InvalidInput(
            f"{redact_url(url)!r} is not an LMDB URL",
            kind="bad_url",
            hint="write three slashes and no options: lmdb:///abs/path",
        )
    return LmdbStorage(unquote(parts.path), create=create)


class LmdbStorage(Storage):
    """A directory with an LMDB file (see the module). `clock` returns the time of writing in epoch milliseconds.

    Reads run in READ_THREADS threads of the store, writes in one thread. A cancelled write that has begun runs to its
    end.
    """

    publishes_at_once = True

    def __init__(self, path: str, create: bool = False, *, clock: Callable[[], int] | None = None) -> None:
        if "\0" in path:
            raise InvalidInput(
                f"{path!r} is not a directory", kind="bad_url", hint="give a URL such as lmdb:///abs/path"
            )
        path = os.path.abspath(path)
        self.url = "lmdb://" + quote(path)
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        if create and os.path.isdir(path):
            check_own(path, self.url)
        self._files = LocalStorage(path, create=create)
        self._environment = Environment.take(path, self.url, create=create)
        # Also releases the environment when `close` is never called.
        self._release = weakref.finalize(self, self._environment.drop)
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="alpheus-lmdb-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="alpheus-lmdb-write")
        self._pid = os.getpid()
        self._closed = False

    # -- reading

    async def read(self, path: str, *, size_max: int) -> bytes:
        if _is_data(check_path(path)):
            return await self._files.read(path, size_max=size_max)
        return (await self._run(self._readers, self._read_all, [path], size_max))[path]

    async def read_many(self, paths: Iterable[str], *, size_max: int) -> dict[str, bytes]:
        inside, outside = _split_paths(paths)
        found = await self._run(self._readers, self._read_all, inside, size_max)
        if outside:
            found |= await self._files.read_many(outside, size_max=size_max)
        return found

    async def read_part(self, path: str, *, start: int, size: int) -> bytes:
        if _is_data(check_path(path)):
            return await self._files.read_part(path, start=start, size=size)
        return await super().read_part(path, start=start, size=size)

    async def stat(self, path: str) -> ObjectInfo | None:
        if _is_data(check_path(path)):
            return await self._files.stat(path)
        return await self._run(self._readers, self._stat, path)

    async def stat_many(self, paths: Iterable[str]) -> dict[str, ObjectInfo | None]:
        inside, outside = _split_paths(paths)
        found = await self._run(self._readers, lambda: {path: self._stat(path) for path in inside})
        return found | await self._files.stat_many(outside)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        after: bytes | None = None
        while True:
            batch, after = await self._run(self._readers, self._list, prefix, after)
            for info in batch:
                yield info
            if after is None:
                break
        if prefix.startswith(DATA_FOLDER) or DATA_FOLDER.startswith(prefix):
            below = prefix if prefix.startswith(DATA_FOLDER) else DATA_FOLDER
            async with contextlib.aclosing(self._files.list(below)) as entries:  # type: ignore[type-var]
                async for info in entries:
                    yield info

    # -- writing

    async def create(self, path: str, data: bytes) -> None:
        if _is_data(check_path(path)):
            await self._files.create(path, data)
            return
        await self._run(self._writer, self._publish, {}, path, data)

    async def put(self, path: str, data: bytes) -> None:
        await self.put_many({path: data})

    async def put_many(self, files: Mapping[str, bytes]) -> None:
        inside, outside = _split_paths(files)
        if outside:
            await self._files.put_many({path: files[path] for path in outside})
        if inside:
            await self._run(self._writer, self._put_all, {path: files[path] for path in inside})

    async def put_in_order(self, files: Mapping[str, bytes]) -> None:
        if _split_paths(files)[1]:
            await super().put_in_order(files)
        else:
            await self.put_many(files)  # in one transaction

    async def publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        inside, outside = _split_paths(files)
        if outside or _is_data(check_path(slot)):
            await super().publish(files, slot, root)
            return
        await self._run(self._writer, self._publish, {path: files[path] for path in inside}, slot, root)

    async def publish_looking(
        self, files: Mapping[str, bytes], slot: str, root: bytes, beside: Sequence[str]
    ) -> dict[str, str | None]:
        """Publish as the interface says; the tags are read in the same transaction."""
        inside, outside = _split_paths(files)
        if outside or any(_is_data(check_path(path)) for path in (slot, *beside)):
            return await super().publish_looking(files, slot, root, beside)
        fresh = {path: files[path] for path in inside}
        return await self._run(self._writer, self._publish, fresh, slot, root, beside)

    async def delete(self, path: str) -> None:
        if _is_data(check_path(path)):
            await self._files.delete(path)
        else:
            await self._run(self._writer, self._delete_all, [path])

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Remove files. Each transaction removes up to DELETE_BATCH keys, so that other writers need not wait long."""
        inside, outside = _split_paths(dict.fromkeys(paths))
        if outside:
            await self._files.delete_many(outside)
        for batch in split_items(sorted(inside), DELETE_BATCH):
            await self._run(self._writer, self._delete_all, batch)

    # -- data files

    def uri(self, path: str) -> str:
        if not _is_data(check_path(path)):
            raise InvalidInput(
                f"{path} is stored inside the LMDB file of {self.url}; other programs cannot read it",
                kind="storage_unreachable",
                hint="ask only for paths below data/, which are files",
            )
        return self._files.uri(path)

    async def make_durable(self, paths: Sequence[str]) -> None:
        inside, outside = _split_paths(paths)
        for path in inside:
            if not await self.exists(path):
                raise file_not_there(path, self.url)
        await self._files.make_durable(outside)

    async def enclosing(self, paths: Sequence[str]) -> str:
        return await self._files.enclosing(paths)

    async def close(self) -> None:
        """Wait for running jobs and release everything. Later calls raise Unavailable."""
        self._closed = True
        for pool in (self._readers, self._writer):
            await asyncio.get_running_loop().run_in_executor(None, pool.shutdown)
        await self._files.close()
        self._release()

    async def _run(
        self, pool: ThreadPoolExecutor, job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        if self._closed:
            raise Unavailable(f"{self.url} was closed", kind="shutting_down")
        if os.getpid() != self._pid:
            raise Unavailable(
                f"{self.url} was opened by process {self._pid}, from which this process was forked",
                kind="shutting_down",
                hint="open the store again in this process",
            )
        return await asyncio.get_running_loop().run_in_executor(pool, lambda: job(*args, **kwargs))

    # -- jobs, in threads

    def _read_all(self, paths: Sequence[str], size_max: int) -> dict[str, bytes]:
        def job(transaction: Any) -> dict[str, bytes]:
            found = {}
            for path in paths:
                value = transaction.get(_key_of(path))
                if value is None:
                    raise file_not_there(path, self.url)
                _, start = _parse_header(value, path)
                check_size(path, len(value) - start, size_max)
                found[path] = bytes(value[start:])
            return found

        return self._environment.read(job, paths[0] if paths else "")

    def _stat(self, path: str) -> ObjectInfo | None:
        def job(transaction: Any) -> ObjectInfo | None:
            value = transaction.get(_key_of(path))
            if value is None:
                return None
            return msgspec.structs.replace(_info_of(path, value), tag=_tag_of(value))

        return self._environment.read(job, path)

    def _list(self, prefix: str, after: bytes | None) -> tuple[tuple[ObjectInfo, ...], bytes | None]:
        """Return a batch of files and the last key of the batch, after which the listing resumes. The key is None after
        the last batch."""
        beginning = prefix.encode()[:_KEY_BEGINNING]

        def job(transaction: Any) -> tuple[tuple[ObjectInfo, ...], bytes | None]:
            batch: list[ObjectInfo] = []
            cursor = transaction.cursor()
            more = cursor.set_range(beginning if after is None else after)
            if more and after is not None and bytes(cursor.key()) == after:
                more = cursor.next()
            while more:
                key, value = bytes(cursor.key()), cursor.value()
                if not key.startswith(beginning):
                    break
                path = _path_of(key, value)
                if path.startswith(prefix):
                    batch.append(_info_of(path, value))
                if len(batch) >= LIST_BATCH:
                    return tuple(batch), key
                more = cursor.next()
            return tuple(batch), None

        return self._environment.read(job, prefix)

    def _publish(
        self, files: Mapping[str, bytes], slot: str, root: bytes, beside: Sequence[str] = ()
    ) -> dict[str, str | None]:
        found: dict[str, str | None] = {slot: None}
        values = {_key_of(path): self._encode_value(path, data) for path, data in files.items()}
        taken = self._encode_value(slot, root)

        def job(transaction: Any) -> None:
            # The slot first, so that a writer that finds it filled has written nothing.
            if not transaction.put(_key_of(slot), taken, overwrite=False):
                raise slot_taken(slot)
            for key, value in values.items():
                transaction.put(key, value)
            for path in beside:
                value = transaction.get(_key_of(path))
                found[path] = None if value is None else _tag_of(value)

        self._environment.write(job, slot, [len(taken), *map(len, values.values())])
        found[slot] = _tag_of(memoryview(taken))
        return found

    def _put_all(self, files: Mapping[str, bytes]) -> None:
        values = {_key_of(path): self._encode_value(path, data) for path, data in files.items()}

        def job(transaction: Any) -> None:
            for key, value in values.items():
                transaction.put(key, value)

        self._environment.write(job, next(iter(files)), map(len, values.values()))

    def _delete_all(self, paths: Sequence[str]) -> None:
        keys = [_key_of(path) for path in paths]

        def job(transaction: Any) -> None:
            for key in keys:
                transaction.delete(key)

        # Pages that a deletion changes are written anew. The room around a transaction is enough for one deletion.
        self._environment.write(job, paths[0], [0] * len(keys) if len(keys) > 1 else ())

    def _encode_value(self, path: str, data: bytes) -> bytes:
        encoded = path.encode()
        if len(encoded) > PATH_SIZE_BYTES_MAX:
            raise InvalidInput(
                f"{path[:100]!r}... takes {len(encoded)} bytes, {PATH_SIZE_BYTES_MAX} at most", path=path
            )
        stored = encoded if len(encoded) > _KEY_SIZE else b""
        return b"".join((_HEADER.pack(self._clock(), len(stored)), stored, data))


# --- keys and values -------------------------------------------------------------------------------


def _key_of(path: str) -> bytes:
    key = path.encode()
    if len(key) <= _KEY_SIZE:
        return key
    return key[:_KEY_BEGINNING] + b"\0" + hashlib.sha256(key).digest()


def _parse_header(value: memoryview, path: str) -> tuple[int, int]:
    """Return the time of writing in epoch milliseconds, and the offset of the content."""
    if len(value) >= _HEADER.size:
        millis, path_size = _HEADER.unpack_from(value)
        if _HEADER.size + path_size <= len(value):
            return millis, _HEADER.size + path_size
    raise unreadable(path, "has no valid header in the LMDB file")


def _path_of(key: bytes, value: memoryview) -> str:
    if b"\0" not in key:
        return key.decode("utf-8", "replace")
    _, start = _parse_header(value, repr(key))
    return bytes(value[_HEADER.size : start]).decode("utf-8", "replace")


def _tag_of(value: memoryview) -> str:
    return f"{len(value)}-{zlib.crc32(value)}"


def _info_of(path: str, value: memoryview) -> ObjectInfo:
    millis, start = _parse_header(value, path)
    return ObjectInfo(path, len(value) - start, millis)


def _is_data(path: str) -> bool:
    return path.startswith(DATA_FOLDER)


def _split_paths(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split paths into keys of the LMDB file and plain files."""
    checked = [check_path(path) for path in paths]
    return [path for path in checked if not _is_data(path)], [path for path in checked if _is_data(path)]
