"""What the journal needs of a store.

A store maps relative paths to immutable byte strings (two hints aside) under one prefix. All that safety
rests on is `create`: of several writers of one path exactly one succeeds, and a created file is whole and
durable before anybody can see it. Drivers inherit `Storage`; `alpheus_journal.testing.StorageContract` is the
test suite that each of them must pass whole.
"""

from __future__ import annotations

import abc
import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
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
"""No store takes a file of this size; for who reads one whole, however large."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """One stored file: path below the prefix, size in bytes, modification time in epoch milliseconds by
    the store's own clock."""

    path: str
    size: int
    modified_at_millis: int
    tag: str = ""
    """Of `stat`: text that another file in its place does not have, to be compared with nothing but itself. The same
    content may get another one when it is written again. Empty: the store cannot tell."""


class Storage(abc.ABC):
    """One prefix of a store.

    Paths are relative, `/` separated, without empty, `.` or `..` segments; drivers refuse others with
    InvalidInput and never leave the prefix whatever they are given.

    Every method raises `Unavailable` when the store cannot be reached or refuses for now (nothing was
    applied), and lets cancellation through: a cancelled write may or may not have been applied.
    """

    url: str
    """The URL that opens this store again; never holds secrets."""

    publishes_at_once: bool = False
    """`publish` takes files and root in one step, so that sending the files before gains nothing."""

    @property
    def clock_offset_millis(self) -> int | None:
        """The store's clock less this machine's, as far as its last answer tells: of what fits, the value nearest to 0.
        None: not known, or one clock. A writer that is far off writes nothing (FORMAT.md, "Committing")."""
        return None

    # -- reading

    @abc.abstractmethod
    async def read(self, path: str, *, size_max: int) -> bytes:
        """The whole file. NotFound when it is not there; Corrupt when it is larger than `size_max`,
        which is found out before the bytes are taken into memory."""

    async def read_many(self, paths: list[str], *, size_max: int) -> dict[str, bytes]:
        """Several files at once, each as `read`. Drivers overlap or batch the requests.

        The first failure is raised; the order of reading is not defined.
        """
        return {path: await self.read(path, size_max=size_max) for path in paths}

    async def read_part(self, path: str, *, start: int, size: int) -> bytes:
        """`size` bytes, at least one, of a file from `start` on. Drivers fetch no more than these.

        NotFound when it is not there; Corrupt when it ends before, which is no reason to look again: files are
        complete when they appear.
        """
        data = await self.read(path, size_max=FILE_SIZE_BYTES_MAX)
        return check_part(path, data[start : start + size], size)

    @abc.abstractmethod
    async def stat(self, path: str) -> ObjectInfo | None:
        """Size and time of a file; None when it is not there. Sees every create that was acknowledged."""

    async def stat_many(self, paths: Sequence[str]) -> dict[str, ObjectInfo | None]:
        """Several files at once, each as `stat`. Drivers overlap or batch the requests; the first failure is raised."""
        return {path: await self.stat(path) for path in paths}

    async def exists(self, path: str) -> bool:
        return await self.stat(path) is not None

    @abc.abstractmethod
    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """All files whose path begins with `prefix` (any text, not only a folder), in no order. Files
        written meanwhile may be missing; staging files are never listed, nor is a foreign file whose
        name is no path of this interface. Close the iterator (`aclose`) when leaving it early."""

    # -- writing

    @abc.abstractmethod
    async def create(self, path: str, data: bytes) -> None:
        """Put-if-absent: make `data` the file at `path`, whole and durable, or change nothing.

        Raises AlreadyExists (`slot_taken`) when the path is taken, even by equal bytes; OutcomeUnknown
        when it cannot tell whether it was applied: then the same call again settles it. Of racing
        creators exactly one succeeds. One attempt: no hidden retry.
        """

    @abc.abstractmethod
    async def put(self, path: str, data: bytes) -> None:
        """Write `data` at `path`, replacing what is there in one step: a reader sees the old or the new
        file, whole. Durable when it returns. After OutcomeUnknown the same call again is harmless."""

    async def put_many(self, files: Mapping[str, bytes]) -> None:
        """Several `put`s of fresh names; all are durable when it returns. Drivers overlap or batch."""
        for path, data in files.items():
            await self.put(path, data)

    async def publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        """One commit: every file of `files` durable under its fresh name, then `create(slot, root)`.

        Drivers may do it in one hop, but never let the slot appear before the files are durable. Raises as
        `create`: when it is unknown whether a file was stored the slot was not tried, so that is
        Unavailable. The files may remain when the slot was not taken.
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
        """`publish`, and a look at other files while the slot is filled or after that: `ObjectInfo.tag` of each, None
        for one that is not there. Of the slot's own file, too, where that costs nothing.

        Takes no round trip more than `publish`. The slot is filled when it returns: what could not be looked at is left
        out. Raises as `publish`.
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
        """Remove a file; nothing happens when it is not there."""

    # -- data files

    @abc.abstractmethod
    def uri(self, path: str) -> str:
        """The address under which other programs (Spark, Arrow) find the file: `file:///abs/path`, special
        characters of the prefix percent-encoded (Hadoop's `Path(String)` wants them decoded).

        InvalidInput when other processes cannot reach this store (`memory`).
        """

    def local_path(self, path: str) -> str | None:
        """Where a file lies on this machine, to be mapped; None: not as a file of its own. It may be gone."""
        return None

    async def make_durable(self, paths: Sequence[str]) -> None:
        """Files that another program wrote whole under `uri` survive a power cut when it returns.

        Nothing to do where a store acknowledges durable files only; a directory syncs them. Raises NotFound
        (`no_file`) for a file that is not there.
        """
        return

    async def enclosing(self, paths: Sequence[str]) -> str:
        """The URL of the nearest folder above the prefix in which one of `paths` is a file; empty: there is none, or
        none that can be looked into."""
        return ""

    async def prove(self) -> None:
        """Show by experiment, in a scratch folder of the prefix, that the store keeps what `create` promises.

        Once a process and store; stores that cannot break it do nothing. Called before the first write. Raises
        InvalidInput (`storage_unsuitable`) that names what the store does wrong.
        """
        return

    async def close(self) -> None:
        """Release connections and descriptors. Idempotent."""
        return


_FORBIDDEN = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_FOREIGN_NAMES = "def/"
"""Below it lie files of the Java SDK, whose names hold whatever people put into them, a backslash too."""


def check_path(path: str) -> str:
    """`path`, when it is a relative path that stays below any prefix; InvalidInput else.

    No empty, `.` or `..` segment, no control character, no lone surrogate; a backslash only below `def/`
    (FORMAT.md, "What the Java SDK writes").
    """
    if not is_path(path):
        raise InvalidInput(f"{path[:200]!r} is no path below the catalog prefix", kind="bad_argument")
    return path


def is_path(path: str) -> bool:
    """Whether `check_path` lets it through."""
    return not (
        not path
        or ("\\" in path and not path.startswith(_FOREIGN_NAMES))
        or any(segment in ("", ".", "..") for segment in path.split("/"))
        or _FORBIDDEN.search(path) is not None
    )


def check_prefix(prefix: str) -> str:
    """`prefix`, when paths can begin with it: empty, or a folder with its slash, then any text."""
    folder, slash, _ = prefix.rpartition("/")
    if (slash and not is_path(folder)) or _FORBIDDEN.search(prefix) is not None:
        raise InvalidInput(f"{prefix[:200]!r} begins no path below the catalog prefix", kind="bad_argument")
    return prefix


def folders_above(prefix: str) -> Iterator[str]:
    """The folders around a prefix, innermost first, each with its slash: of `a/b/c` they are `a/b/`, `a/` and the
    whole bucket, which is empty. An empty prefix has none."""
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
    """Corrupt, its kind after the folder of the file: `node/x.arrow takes 9 bytes, 8 at most`."""
    return Corrupt(
        f"{path} {reason}", kind=_CORRUPT_KINDS.get(path.split("/", 1)[0], "corrupt_node"), path=path
    )


def check_size(path: str, size: int, size_max: int) -> None:
    """Corrupt when a file is larger than its reader takes."""
    if size > size_max:
        raise unreadable(path, f"takes {size} bytes, {size_max} at most")


def check_part(path: str, data: bytes, size: int) -> bytes:
    """`data`, which shall be `size` bytes of a file: Corrupt when the file ended before."""
    if len(data) != size:
        raise unreadable(path, f"ends {size - len(data)} bytes before a part of it that was asked for")
    return data


def file_not_there(path: str, url: str) -> NotFound:
    return NotFound(
        f"there is no file {path} in {url}",
        kind="no_file",
        hint="what points at it is damaged, or it was removed by hand",
        path=path,
    )


def slot_taken(path: str) -> AlreadyExists:
    return AlreadyExists(f"{path} is taken", kind="slot_taken", path=path)


def files_not_stored(slot: str, error: OutcomeUnknown) -> Unavailable:
    """What `publish` raises for an unknown outcome before it tried the slot."""
    return Unavailable(
        f"the files of {slot} may not be stored, so it was left alone: {error.message}", path=slot
    )


async def each_of(
    items: Collection[_Item], work: Callable[[_Item], Awaitable[_Result]], at_once: int
) -> list[_Result]:
    """`work` of every item, `at_once` at a time, results in the order of `items`. The first failure ends all and is
    raised."""
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
