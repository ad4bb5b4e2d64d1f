"""Tags at the head of a catalog: finding one, the nearest one, and pinning a version for one (FORMAT.md)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, Expired, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.log.copies import Copy
from alpheus_journal.log.pins import copy_pin, create_pin, read_pin
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import At, Loaded, Page, Pin, StoredObject
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TagDef
from alpheus_journal.replay.counts import Counts
from alpheus_journal.tree.reader import Reader, Snapshot

LOOKED_AT_MAX = 1000
"""The tags that are looked at for the one to name in an error."""


class Read(Protocol):
    """The reads that this module needs."""

    @property
    def keys(self) -> fmt.Keys: ...

    async def load(self, at: At, names: list[ObjectName]) -> Loaded: ...

    async def list(
        self, at: At, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page: ...


def decode_tag(stored: StoredObject) -> TagDef:
    """Decode the definition of a tag. Raises Corrupt (`corrupt_definition`)."""
    definition = decode_definition(Kind.TAG, stored.definition, stored.path)
    assert isinstance(definition, TagDef)
    return definition


async def load_tag(read: Read, name: str) -> TagDef:
    """Load a tag at the head. Raises NotFound (`no_tag`)."""
    key = fmt.check_object_name(fmt.tag_name(name), read.keys)
    (stored,) = (await read.load(None, [key])).objects
    if stored is None:
        raise NotFound(
            f"there is no {key}",
            kind="no_tag",
            hint="list the tags to see the names, or give a version number or a time such as 2026-03-01T12:00:00Z",
        )
    return decode_tag(stored)


async def list_tags(at: Snapshot) -> AsyncIterator[tuple[str, TagDef]]:
    """Yield the tags of a version with their names, except damaged ones."""
    async for name, stored in at.objects(Kind.TAG):
        with contextlib.suppress(Corrupt):
            if stored.damage is None:
                yield name, decode_tag(stored)


def snapshot_of_pin(reader: Reader, log: Log, path: str, copy: Copy) -> Snapshot:
    """Return the version that a pin holds. Once the pin is gone, the version is an expired one like any other."""

    async def verify(version: int) -> None:
        if not await log.storage.exists(path):
            raise Expired(
                f"version {version} has expired, and its tag was deleted or replaced", version=version
            )

    return Snapshot(reader, copy.version, copy.root, copy.catalog_def, verify)


async def find_pinned(at: Snapshot, log: Log, version: int) -> Snapshot | None:
    """Return an expired version, from the pin of a tag of the version `at`. None when no tag names it. What the pin
    reaches is kept as surely as what `at` itself reaches."""
    async for _, tag in list_tags(at):
        if tag.version == version:
            with contextlib.suppress(Corrupt):  # another tag may name the version, too
                copy = await read_pin(log, tag.pin_path)
                return snapshot_of_pin(at.reader, log, tag.pin_path, copy)
    return None


async def name_nearest_tag(read: Read, head: int, error: Expired, version: int) -> None:
    """Name in the error the tag whose version is nearest to the expired version, if the catalog has tags."""
    with contextlib.suppress(Corrupt):  # the expired version is the answer, whatever the head is like
        nearest: TagDef | None = None
        page = await read.list(head, Kind.TAG, limit=LOOKED_AT_MAX)
        loaded = await read.load(head, [fmt.tag_name(name) for name in page.names])
        for name, stored in zip(page.names, loaded.objects, strict=True):
            assert stored is not None
            tag = decode_tag(stored)
            if nearest is None or abs(tag.version - version) < abs(nearest.version - version):
                nearest = tag
                error.hint = f"{error.hint.partition(';')[0]}; tag {name} names version {tag.version}"


async def pin_version(
    log: Log, version: int, *, count: Callable[[Copy], Awaitable[Counts]], new_id: Callable[[], str]
) -> Pin:
    """Pin a version, and count it; see `Access.create_pin`."""
    path, copy = await create_pin(log, version, new_id=new_id)
    return _answer(path, copy, await count(copy))


async def pin_tag(
    log: Log,
    tag: TagDef,
    load_again: Callable[[], Awaitable[TagDef]],
    *,
    count: Callable[[Copy], Awaitable[Counts]],
    new_id: Callable[[], str],
) -> Pin:
    """Pin the version of a tag, from the tag's own pin where the version has expired. Raises Expired when the tag was
    replaced or deleted meanwhile, because its pin may be deleted by then."""
    try:
        return await pin_version(log, tag.version, count=count, new_id=new_id)
    except Expired:
        path, copy = await copy_pin(log, tag.pin_path, new_id=new_id)
        if await load_again() != tag:
            raise
        return _answer(path, copy, await count(copy))


def _answer(path: str, copy: Copy, counts: Counts) -> Pin:
    return Pin(
        path=path,
        version=copy.version,
        commit_id=copy.commit_id,
        version_created_at_millis=copy.created_at_millis,
        object_count=counts.objects,
        table_count=counts.tables,
        row_count=counts.rows,
    )
