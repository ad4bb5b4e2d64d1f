"""Evidence, besides the head, of how far a log goes.

The evidence is: files in `checkpoint/`, which name a version and its commit id; `vn/latest`, which names a version
alone; and the slots around the head.

A log whose head was deleted looks like a shorter log, and the next commit would reuse the number of the deleted
version. So opening a catalog looks at all evidence once, and nothing is written where the evidence disagrees
(FORMAT.md, "Versions"). Slots fill in order and stay filled, and stores are strongly consistent. So evidence that
disagrees in the order of these looks is not a race: the log is really damaged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, NotFound, Unavailable
from alpheus_journal.log.index_runs import SIZE_BYTES_MAX, decode_run, last_version
from alpheus_journal.log.versions import Log, Root, made_on_another_error
from alpheus_journal.model.definitions import CatalogDef
from alpheus_journal.model.operations import LostVersion
from alpheus_journal.replay.checkpoint import FOLDER, open_checkpoint, parse_checkpoint_path
from alpheus_journal.storage import ObjectInfo
from alpheus_journal.tree.reader import catalog_def_at

_T = TypeVar("_T")
_U = TypeVar("_U")

LOOKS_MAX = 4
"""The looks at one slot while the storage fails. One failure among forty slots must not keep a catalog closed."""
ACCEPT_HINT = "restore the missing files from a copy, or give these versions up: alpheus repair --accept-head"


class Unlinked(msgspec.Struct, frozen=True):
    """A version that was not made on the version below it: the commit id that it names, and the id of that below."""

    version: int
    made_on: str
    below: str

    def error(self, log: Log) -> Corrupt:
        return made_on_another_error(self.version, log.path(self.version), self.made_on, self.below)


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence around a head that disagrees with it."""

    head: int
    lost: tuple[LostVersion, ...] = ()
    """The missing versions above the head, ascending, whose commit ids a file names."""
    hint: int | None = None
    """The version that `vn/latest` names, if that version is above the head and missing."""
    hole: tuple[int, int] | None = None
    """A free slot, and a taken slot above it."""
    unlinked: Unlinked | None = None
    """The head, if it was not made on the version below."""

    def error(self, log: Log) -> Corrupt | None:
        """Return the gravest reason why nothing may be written, or None when nothing disagrees."""
        if self.hole is not None:
            return hole_error(log, *self.hole)
        if self.unlinked is not None:
            return self.unlinked.error(log)
        if self.lost:
            last = self.lost[-1]
            what = f"version {last.version} was {last.commit_id}"
            return _missing_error(log, self.head, last.version, what, last.known_from)
        if self.hint is not None:
            return _missing_error(log, self.head, self.hint, f"version {self.hint} existed", fmt.LATEST_HINT)
        return None


def hole_error(log: Log, free: int, taken: int) -> Corrupt:
    """Return the error (`history_replaced`) for a slot that is free below a taken slot."""
    return Corrupt(
        f"version {taken} exists but version {free} does not: versions were deleted, or the storage was restored to an"
        " older state while others wrote",
        kind="history_replaced",
        path=log.path(free),
        version=free,
        hint="stop all writers, and restore what is missing from a copy; alpheus repair --dry-run shows what exists",
    )


def unseen_error(log: Log, head: int, version: int, commit_id: str) -> Corrupt:
    """Return the error (`head_missing`) for a version that a session has seen."""
    return Corrupt(
        f"the newest existing version is {head}, but this session has seen version {version} as {commit_id}:"
        " the version was deleted, or the storage was restored to an older state",
        kind="head_missing",
        path=log.path(version),
        version=version,
        hint=f"{ACCEPT_HINT}; then connect again",
    )


def _missing_error(log: Log, head: int, version: int, what: str, known_from: str) -> Corrupt:
    return Corrupt(
        f"the newest existing version is {head}, but {known_from} says that {what}: the version was deleted",
        kind="head_missing",
        path=log.path(version),
        version=version,
        hint=ACCEPT_HINT,
    )


# --- files in checkpoint/ --------------------------------------------------------------------------


def named_version(path: str, digits: int) -> int | None:
    """Return the version in the name of a file of `checkpoint/`; None for other files, and other widths of numbers."""
    parsed = parse_checkpoint_path(path)
    if parsed is not None:
        return parsed[0] if parsed[1] == digits else None
    found = last_version(path)
    return found if path[len(FOLDER) + digits :].startswith("-") else None


async def named_versions(log: Log) -> dict[str, int]:
    """List the files of `checkpoint/`, each with the version in its name."""
    found = {}
    async with contextlib.aclosing(log.storage.list(FOLDER)) as entries:  # type: ignore[type-var]
        async for entry in entries:
            version = named_version(entry.path, log.digits)
            if version is not None:
                found[entry.path] = version
    return found


async def known_version(log: Log, path: str, catalog_id: str) -> LostVersion | None:
    """Read the version and its commit id that a file of `checkpoint/` names. Raises Unavailable.

    Returns None when the file proves nothing: it is missing, damaged, of a later revision, or of another catalog.
    """
    try:
        if parse_checkpoint_path(path) is not None:
            facts = (await open_checkpoint(log.storage, path)).facts
            if (facts.catalog_id, facts.version) != (catalog_id, named_version(path, log.digits)):
                return None
            return LostVersion(version=facts.version, commit_id=facts.commit_id, known_from=path)
        data = await log.storage.read(path, size_max=SIZE_BYTES_MAX)
        run = decode_run(data, path, catalog_id=catalog_id)
        return LostVersion(version=run.last, commit_id=run.commit_id, known_from=path)
    except Unavailable:
        raise
    except AlpheusError:
        return None


async def find_lost(log: Log, catalog_id: str, files: Iterable[tuple[str, int]]) -> tuple[LostVersion, ...]:
    """Read what files of `checkpoint/` say about versions with free slots: each version once, ascending."""
    found: dict[int, LostVersion] = {}
    for path, version in sorted(files):
        if version not in found:
            known = await known_version(log, path, catalog_id)
            if known is not None:
                found[version] = known
    return tuple(found[version] for version in sorted(found))


# --- looking around --------------------------------------------------------------------------------


def probes(head: int) -> list[int]:
    """Return the versions at head ± 2^k."""
    steps = [1 << k for k in range(32)]
    below = [head - step for step in steps if head >= step]
    return below + [head + step for step in steps if head + step < fmt.VERSION_MAX_EXCLUSIVE]


class Clues(msgspec.Struct, frozen=True, kw_only=True):
    """Names of versions, read before the search for the head. So each named version existed before that search."""

    hint: int | None
    """The version that `vn/latest` names."""
    named: Mapping[str, int]
    """The files of `checkpoint/` with their versions; see `named_versions`."""

    def around(self, head: int) -> set[int]:
        """Return the versions to look at for a head."""
        found = {*probes(head), *self.named.values()}
        if self.hint is not None:
            found.add(self.hint)
        return found - {head}


async def read_clues(log: Log) -> Clues:
    """Read the clues in one round of requests. A folder that cannot be listed gives none."""
    hint, named = await gather_all(log.hint(fmt.LATEST_HINT), try_named_versions(log))
    return Clues(hint=hint, named=named)


async def try_named_versions(log: Log) -> Mapping[str, int]:
    """Return `named_versions`, or nothing when the files cannot be listed."""
    try:
        return await named_versions(log)
    except AlpheusError:
        return {}  # a caller without the permission to list may still read


async def find_taken(log: Log, versions: Collection[int]) -> set[int]:
    """Return the versions whose slots are taken: one round of requests, and more if some of the requests fail."""
    paths = {log.path(version): version for version in versions}
    try:
        found = await log.storage.stat_many(list(paths))
    except Unavailable:
        found = dict(await gather_all(*(_stat_patiently(log, path) for path in paths)))
    return {paths[path] for path, info in found.items() if info is not None}


async def _stat_patiently(log: Log, path: str) -> tuple[str, ObjectInfo | None]:
    for _ in range(LOOKS_MAX - 1):
        with contextlib.suppress(Unavailable):
            return path, await log.storage.stat(path)
    return path, await log.storage.stat(path)


async def find_unlinked(log: Log, root: Root) -> Unlinked | None:
    """Check with one request whether a version was made on the version below. Raises Unavailable.

    Returns None if it was, if it does not name its parent, or if the version below cannot be read, which is another
    problem.
    """
    if not root.version or not root.previous_commit_id:
        return None
    try:
        below = await _commit_id(log, root.version - 1)
    except (Corrupt, NotFound):
        return None
    return (
        None if below == root.previous_commit_id else Unlinked(root.version, root.previous_commit_id, below)
    )


async def _commit_id(log: Log, version: int) -> str:
    for _ in range(LOOKS_MAX - 1):
        with contextlib.suppress(Unavailable):
            return await log.commit_id(version)
    return await log.commit_id(version)


async def judge_head(
    log: Log,
    head: int,
    catalog_id: str,
    clues: Clues,
    taken: Collection[int],
    unlinked: Unlinked | None = None,
) -> Around:
    """Find what disagrees with a head. Makes requests only if something disagrees, or if others wrote meanwhile.

    * `taken`: the result of `find_taken` for `clues.around(head)`.
    * `unlinked`: the result of `find_unlinked`.
    """
    around = clues.around(head)
    top = max(taken, default=head)
    reached = head if top <= head else await log.head(head)
    if top > reached:
        return Around(head=reached, hole=(reached + 1, top), unlinked=unlinked)
    free = around - {*taken}
    below = {version for version in free if version < head and log.given_up_range(version) is None}
    if below:
        below -= await find_taken(log, below)  # look again before anything is refused
    if below:
        return Around(head=reached, hole=(max(below), head), unlinked=unlinked)
    missing = {version for version in free if version > reached}
    files = [(path, version) for path, version in clues.named.items() if version in missing]
    return Around(
        head=reached,
        lost=await find_lost(log, catalog_id, files),
        hint=clues.hint if clues.hint in missing else None,
        unlinked=unlinked,
    )


async def root_beyond_given_up(log: Log, free: int, taken: int) -> tuple[Root, CatalogDef] | None:
    """Return the newest version above a hole, with its definition, if a repair gave the hole up.

    The definition records repairs. Returns None otherwise: a process that did not know of the hole may have written
    the version.
    """
    try:
        root = await log.newest(taken)
        definition = await catalog_def_at(log.storage, root.catalog_def, root.version)
    except (Corrupt, NotFound, Expired):
        return None
    if any(one.first <= free <= one.last for one in definition.given_up):
        return root, definition
    return None


async def list_slots(log: Log) -> AsyncIterator[int]:
    """Yield the versions whose slots are taken, in no order."""
    async with contextlib.aclosing(log.storage.list("vn/")) as entries:  # type: ignore[type-var]
        async for entry in entries:
            if entry.path in (fmt.LATEST_HINT, fmt.OLDEST_HINT):
                continue
            with contextlib.suppress(Corrupt):
                version, digits = fmt.parse_version_file(entry.path)
                if digits == log.digits:
                    yield version


async def find_hole(log: Log, head: int) -> tuple[int, int] | None:
    """List all slots to find a free slot that was not given up, and a taken slot above it; None if there is no hole.

    `head` is a version that existed before the listing. Takes one bit of memory for each version.
    """
    listed, top = bytearray((head >> 3) + 1), head
    async for version in list_slots(log):
        if version <= head:
            listed[version >> 3] |= 1 << (version & 7)
        top = max(top, version)
    for version in missing_versions(listed, head):
        if log.given_up_range(version) is None and not await log.exists(
            version
        ):  # asked again, before anything is refused
            return version, top
    if top > head and (reached := await log.head(head)) < top:
        return reached + 1, top
    return None


def missing_versions(listed: bytearray, head: int) -> Iterator[int]:
    """Yield the versions up to a head that a bitmap of versions lacks."""
    for index, bits in enumerate(listed):
        if bits != 0xFF:
            yield from (v for v in range(8 * index, min(8 * index + 8, head + 1)) if not bits >> (v & 7) & 1)


@overload
async def gather_all(first: Awaitable[_T], second: Awaitable[_U], /) -> tuple[_T, _U]: ...
@overload
async def gather_all(*works: Awaitable[_T]) -> Sequence[_T]: ...
async def gather_all(*works: Awaitable[Any]) -> Sequence[Any]:
    """Run all works concurrently to their end, then raise the first error if there is one."""
    found = await asyncio.gather(*works, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return tuple(found)
