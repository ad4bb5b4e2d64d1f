"""The contract of a store, as the journal needs it.

A store maps relative paths under one prefix to byte strings, which never change except for two hint files.
Safety rests on `create` alone: of several writers of one path exactly one succeeds, and a created file is whole
and durable before any reader can see it. Drivers inherit `Storage` and must pass the whole test suite
`alpheus_journal.testing.StorageContract`.
"""

from __future__ import annotations

import abc
import asyncio
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TypeVar

import msgspec

from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Corrupt,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


FILE_SIZE_BYTES_MAX = 1 << 48
"""No store accepts a file of this size. Callers that read a file of any size pass it as `size_max`."""
DELETES_AT_ONCE = 32
"""The number of files that the default of `delete_many` removes concurrently."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """One stored file: its path below the prefix, its size in bytes, and its modification time in epoch
    milliseconds by the store's own clock."""

    path: str
    size: int
    modified_at_millis: int
    tag: str = ""
    """From `stat`: a text that differs when another file takes this file's place. Compare tags of one path only.
    Writing the same content again may change the tag. An empty tag means that the store has none."""


class OpenUpload(msgspec.Struct, frozen=True):
    """An upload in parts that was begun and has not ended. No file shows it, and its parts take space.

    `initiated_at_millis` is in epoch milliseconds by the store's own clock, None where the store does not tell it.
    """

    path: str
    upload_id: str
    initiated_at_millis: int | None


class Storage(abc.ABC):
    """One prefix of a store.

    Paths are relative, `/` separated, without empty, `.` or `..` segments. Drivers refuse any other path with
    InvalidInput and never leave the prefix.

    Every method raises `Unavailable` when the store cannot be reached or refuses for now; nothing was applied then.
    Every method can be cancelled; a cancelled write may or may not have been applied.
    """

    url: str
    """The URL that opens this store again; never holds secrets."""

    publishes_at_once: bool = False
    """Whether `publish` stores files and root in one step, so that sending the files earlier gains nothing."""

    @property
    def clock_offset_millis(self) -> int | None:
        """The store's clock minus this machine's clock. The store's last answer bounds the offset; this is the value
        within the bounds that is nearest to 0. None means that the offset is unknown, or that both have one clock.
        A writer whose clock is far off writes nothing (FORMAT.md, "Committing")."""
        return None

    # -- reading

    @abc.abstractmethod
    async def read(self, path: str, *, size_max: int) -> bytes:
        """Read a whole file. Raises NotFound for a missing file, and Corrupt for a file larger than `size_max`;
        the size is checked before the bytes are taken into memory."""

    async def read_many(self, paths: list[str], *, size_max: int) -> dict[str, bytes]:
        """Read several files, each as `read` does. Drivers overlap or batch the requests.

        Raises the first failure. The order of reading is not defined.
        """
        return {path: await self.read(path, size_max=size_max) for path in paths}

    async def read_part(self, path: str, *, start: int, size: int) -> bytes:
        """Read `size` bytes (at least one) of a file, beginning at `start`. Drivers fetch no other bytes.

        Raises NotFound for a missing file, and Corrupt for a file that ends earlier. Reading again does not help
        then, because files are complete when they appear.
        """
        data = await self.read(path, size_max=FILE_SIZE_BYTES_MAX)
        return check_part(path, data[start : start + size], size)

    @abc.abstractmethod
    async def stat(self, path: str) -> ObjectInfo | None:
        """Return size and time of a file, or None when the file is missing. Sees every acknowledged create."""

    async def stat_many(self, paths: Sequence[str]) -> dict[str, ObjectInfo | None]:
        """Look up several files, each as `stat` does. Drivers overlap or batch the requests. Raises the first
        failure."""
        return {path: await self.stat(path) for path in paths}

    async def exists(self, path: str) -> bool:
        return await self.stat(path) is not None

    @abc.abstractmethod
    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """List all files whose path begins with `prefix` (any text, not only a folder), in no order.

        Files written during the listing may be missing. Staging files are never listed, nor are foreign files whose
        name `check_path` refuses. A caller that leaves the iteration early closes the iterator (`aclose`).
        """

    # -- writing

    @abc.abstractmethod
    async def create(self, path: str, data: bytes) -> None:
        """Put-if-absent: make `data` the file at `path`, whole and durable, or change nothing.

        Raises AlreadyExists (`slot_taken`) when the path is taken, even by equal bytes. Raises OutcomeUnknown when
        the driver cannot tell whether the write was applied; repeating the same call settles the outcome. Of racing
        creators exactly one succeeds. The driver makes one attempt, without a hidden retry.
        """

    @abc.abstractmethod
    async def put(self, path: str, data: bytes) -> None:
        """Write `data` at `path`, and replace an existing file in one step: a reader sees the old or the new file,
        whole. The file is durable on return. After OutcomeUnknown the same call may be repeated without harm."""

    async def put_many(self, files: Mapping[str, bytes]) -> None:
        """Put several files under fresh names. All are durable on return. Drivers overlap or batch the requests."""
        for path, data in files.items():
            await self.put(path, data)

    async def put_in_order(self, files: Mapping[str, bytes]) -> None:
        """Put several files, each as `put` does, in their order: whoever finds one of them finds the earlier ones, too,
        also after a power cut. All are durable on return. Drivers sync several together where they can."""
        for path, data in files.items():
            await self.put(path, data)

    async def publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        """Publish one commit: make every file of `files` durable under its fresh name, then `create(slot, root)`.

        Drivers may do both in one step, but the slot never appears before the files are durable. Raises the errors of
        `create`. When the outcome of storing a file is unknown, the slot is not tried and the error is Unavailable.
        The files may remain when the slot was not filled.
        """
        await self._put_before(files, slot)
        await self.create(slot, root)

    async def _put_before(self, files: Mapping[str, bytes], slot: str) -> None:
        try:
            await self.put_many(files)
        except OutcomeUnknown as error:
            raise files_not_stored(slot, error) from error

    async def publish_looking(
        self, files: Mapping[str, bytes], slot: str, root: bytes, beside: Sequence[str]
    ) -> dict[str, str | None]:
        """Publish as `publish` does, and look up the files `beside` while the slot is filled or later.

        Return the `ObjectInfo.tag` of each file in `beside`, None for a missing file; where it costs nothing, also the
        tag of the slot's own file. The slot is filled on return; files that could not be looked up are left out.
        Takes no more round trips than `publish`, and raises the same errors.
        """
        publishing = self.publish(files, slot, root)
        if self.publishes_at_once:
            await publishing
            return await self._tags(beside)
        return (await self._while_looking(publishing, beside))[1]

    async def _while_looking(
        self, publishing: Awaitable[_Result], beside: Sequence[str]
    ) -> tuple[_Result, dict[str, str | None]]:
        looking = asyncio.ensure_future(self._tags(beside))
        try:
            result = await publishing
            return result, await looking
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _tags(self, paths: Sequence[str]) -> dict[str, str | None]:
        if not paths:
            return {}
        try:
            found = await self.stat_many(paths)
        except AlpheusError:
            return {}
        return {path: None if info is None else info.tag for path, info in found.items()}

    @abc.abstractmethod
    async def delete(self, path: str) -> None:
        """Remove a file. A missing file is not an error."""

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Remove several files. Missing files are not errors. Drivers overlap or batch the requests.

        A bad path is refused before any file is removed. Any other failure is the first one that occurs. After an
        error some of the files may be removed already; the call may be repeated. Pass thousands of paths at once, not
        millions: checking a thousand paths takes milliseconds of the event loop.
        """
        await each_of(check_paths(paths), self.delete, DELETES_AT_ONCE)

    # -- uploads in parts

    async def list_uploads(self, prefix: str) -> AsyncIterator[OpenUpload]:
        """List the open uploads of files whose path begins with `prefix`, in no order. Drivers of stores without such
        uploads, or whose library cannot list them, list none.

        Raises Denied for a missing permission, which the hint names, and InvalidInput where the server cannot list
        uploads; both may come after some uploads. A caller that leaves the iteration early closes the iterator.
        """
        check_prefix(prefix)
        none: tuple[OpenUpload, ...] = ()
        for upload in none:
            yield upload

    async def abort_upload(self, upload: OpenUpload) -> None:
        """End an upload and remove its parts. An upload that has ended is no error, and its file stays. Raises Denied,
        as `list_uploads` does."""
        check_path(upload.path)

    # -- data files

    @abc.abstractmethod
    def uri(self, path: str) -> str:
        """Return the address under which other programs (Spark, Arrow) find the file, such as `file:///abs/path`.

        Special characters of the prefix are percent-encoded; Hadoop's `Path(String)` wants them decoded. Raises
        InvalidInput when other processes cannot reach this store (`memory`).
        """

    def local_path(self, path: str) -> str | None:
        """Return the absolute path of a file that this machine can map into memory, or None when the store keeps no
        such file. The file may be missing."""
        return None

    async def make_durable(self, paths: Sequence[str]) -> None:
        """Make files durable that another program wrote whole under `uri`: on return they survive a power cut.

        A directory syncs the files. Stores that acknowledge only durable files do nothing. Raises NotFound
        (`no_file`) for a missing file.
        """
        return

    async def enclosing(self, paths: Sequence[str]) -> str:
        """Return the URL of the nearest folder above the prefix that holds one of `paths` as a file. Return an empty
        text when no such folder exists or may be read."""
        return ""

    async def prove(self) -> None:
        """Test in a scratch folder of the prefix whether the store keeps the promise of `create`.

        Called before the first write, once for each process and store. Drivers of stores that cannot break the
        promise do nothing. Raises InvalidInput (`storage_unsuitable`), which names the fault of the store.
        """
        return

    async def close(self) -> None:
        """Release connections and descriptors. Idempotent."""
        return


_FORBIDDEN = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_FOREIGN_NAMES = "def/"
"""The folder of files whose names the Java SDK takes from users; such a name may hold a backslash."""


def check_path(path: str) -> str:
    """Return `path` when it is a relative path that stays below any prefix, else raise InvalidInput.

    A path has no empty, `.` or `..` segment, no control character and no lone surrogate. A backslash may occur
    only below `def/` (FORMAT.md, "What the Java SDK writes").
    """
    if not is_path(path):
        raise InvalidInput(f"{path[:200]!r} is not a path below the catalog prefix", kind="bad_argument")
    return path


def check_paths(paths: Iterable[str]) -> list[str]:
    """Return each of the paths once, in their order. Raises InvalidInput when `check_path` refuses any of them."""
    return list(dict.fromkeys(check_path(path) for path in paths))


def is_path(path: str) -> bool:
    """Return whether `check_path` accepts `path`."""
    return not (
        not path
        or ("\\" in path and not path.startswith(_FOREIGN_NAMES))
        or any(segment in ("", ".", "..") for segment in path.split("/"))
        or _FORBIDDEN.search(path) is not None
    )


def check_prefix(prefix: str) -> str:
    """Return `prefix` when a path can begin with it: an optional folder with its slash, then any text. Raises
    InvalidInput."""
    folder, slash, _ = prefix.rpartition("/")
    if (slash and not is_path(folder)) or _FORBIDDEN.search(prefix) is not None:
        raise InvalidInput(
            f"no path below the catalog prefix can begin with {prefix[:200]!r}", kind="bad_argument"
        )
    return prefix


def folders_above(prefix: str) -> Iterator[str]:
    """Yield the folders around a prefix, innermost first, each with its slash. For `a/b/c` they are `a/b/`, `a/` and
    the empty text, which is the whole bucket. An empty prefix has none."""
    while prefix:
        prefix = prefix.rpartition("/")[0]
        yield f"{prefix}/" if prefix else ""


_CORRUPT_KINDS = {
    "def": "corrupt_definition",
    "action": "corrupt_action",
    "manifest": "corrupt_manifest",
    "data": "corrupt_manifest",
    "sub": "corrupt_history",
}


def unreadable(path: str, reason: str) -> Corrupt:
    """Build a Corrupt error such as `node/x.arrow takes 9 bytes, 8 at most`; the file's folder decides the kind."""
    return Corrupt(
        f"{path} {reason}", kind=_CORRUPT_KINDS.get(path.split("/", 1)[0], "corrupt_node"), path=path
    )


def check_size(path: str, size: int, size_max: int) -> None:
    """Raise Corrupt when a file is larger than its reader allows."""
    if size > size_max:
        raise unreadable(path, f"takes {size} bytes, {size_max} at most")


def check_part(path: str, data: bytes, size: int) -> bytes:
    """Return `data`, a part of a file, when it has `size` bytes. Raise Corrupt when the file ended earlier."""
    if len(data) != size:
        raise unreadable(path, f"ends {size - len(data)} bytes before the end of the requested part")
    return data


def file_not_there(path: str, url: str) -> NotFound:
    return NotFound(
        f"there is no file {path} in {url}",
        kind="no_file",
        hint="check whether the file was removed by hand; otherwise the entry that names it is damaged",
        path=path,
    )


def slot_taken(path: str) -> AlreadyExists:
    return AlreadyExists(f"{path} is taken", kind="slot_taken", path=path)


def files_not_stored(slot: str, error: OutcomeUnknown) -> Unavailable:
    """Build the error of `publish` for an unknown outcome before it tried the slot."""
    return Unavailable(
        f"{slot} was not written, because its files may not be stored: {error.message}", path=slot
    )


def split_items(items: Sequence[_Item], size: int) -> list[Sequence[_Item]]:
    """Split items into groups of `size`, in their order. The last group may be smaller."""
    return [items[start : start + size] for start in range(0, len(items), size)]


async def each_of(
    items: Collection[_Item], work: Callable[[_Item], Awaitable[_Result]], at_once: int
) -> list[_Result]:
    """Run `work` on every item, at most `at_once` concurrently, and return the results in the order of `items`. The
    first failure cancels the rest and is raised."""
    queue = iter(enumerate(items))
    results: dict[int, _Result] = {}

    async def worker() -> None:
        for index, item in queue:
            results[index] = await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(items))):
                group.create_task(worker())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [results[index] for index in range(len(items))]
