"""Tags at the head of a catalog: finding one, the nearest one, and pinning a version for one (FORMAT.md)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, Expired, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.log.copies import Copy
from alpheus_journal.log.pins import copy_pin, create_pin, read_pin
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import At, Loaded, Page, Pin, StoredObject, VersionInfo, make_token
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TagDef, TagParts
from alpheus_journal.tags.counts import Counts
from alpheus_journal.tree.node import Node
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


def version_of_tag(catalog_id: str, tag: TagDef) -> VersionInfo:
    """Return the version that a tag names."""
    return VersionInfo(
        version=tag.version,
        created_at_millis=tag.version_created_at_millis,
        token=make_token(catalog_id, tag.version, tag.commit_id),
        pin_path=tag.pin_path,
        is_chosen=tag.is_chosen,
        lacking=tag.lacking,
    )


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

    return Snapshot(reader, copy.version, copy.root, copy.catalog_def, verify, is_chosen=copy.is_chosen)


async def find_pinned(at: Snapshot, log: Log, version: int, name: ObjectName) -> Snapshot | None:
    """Return an expired version, from the pin of a tag of the version `at`. None when no tag names the version, or only
    tags of chosen objects without `name`. What the pin reaches is kept as surely as what `at` itself reaches.

    From a tag of chosen objects the snapshot holds what the tag has of that version, `name` among it: of a namespace,
    everything. It raises Expired for other names.
    """
    partly: list[TagDef] = []
    async for _, tag in list_tags(at):
        if tag.is_chosen:
            if _holds(tag, version, name):
                partly.append(tag)
        elif tag.version == version:
            with contextlib.suppress(Corrupt):  # another tag may name the version, too
                copy = await read_pin(log, tag.pin_path)
                return snapshot_of_pin(at.reader, log, tag.pin_path, copy)
    for tag in partly:
        with contextlib.suppress(Corrupt):
            copy = await read_pin(log, tag.pin_path)
            return await PartOfVersion.of(snapshot_of_pin(at.reader, log, tag.pin_path, copy), tag, version)
    return None


def _holds(tag: TagDef, version: int, name: ObjectName) -> bool:
    """Return whether a tag of chosen objects has an object as of a version, and of a namespace everything."""
    if tag.version_of(name) != version:
        return False
    return name.kind is not Kind.NAMESPACE or tag.holds_all_of(name.namespace)


class PartOfVersion(Snapshot):
    """Reads what a tag of chosen objects has of one version. Raises Expired for what it does not have."""

    tag: TagDef

    @classmethod
    async def of(cls, pinned: Snapshot, tag: TagDef, version: int) -> PartOfVersion:
        root = pinned.root
        if any(chosen.version != version for chosen in tag.chosen):
            # Objects of other versions would pass for objects of this one.
            keys, parts = pinned.reader.keys, TagParts(tag)
            entries = [
                (k, path) for k, path in await pinned.entries() if parts.version_of(keys.parse(k)) == version
            ]
            keys_, values = [k for k, _ in entries], [path for _, path in entries]
            root = Node(tuple(keys_), tuple(values), ())
        part = cls(pinned.reader, version, root, pinned.catalog_def, pinned.verify, is_chosen=True)
        part.tag = tag
        return part

    def _check(self, name: ObjectName) -> None:
        if not _holds(self.tag, self.version, name):
            raise Expired(
                f"version {self.version} has expired, and the tag that has parts of it does not have {name}",
                version=self.version,
            )

    async def load_with_keys(
        self, names: Sequence[ObjectName]
    ) -> list[tuple[fmt.Key | None, StoredObject | None]]:
        for name in names:
            self._check(name)
        return await super().load_with_keys(names)

    async def names(
        self, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page:
        self._check(fmt.namespace_name(namespace))
        return await super().names(kind, namespace=namespace, prefix=prefix, limit=limit, after=after)


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
                held = "holds chosen objects as of" if tag.is_chosen else "names"
                error.hint = f"{error.hint.partition(';')[0]}; tag {name} {held} version {tag.version}"


async def pin_version(
    log: Log, version: int, *, count: Callable[[Copy], Awaitable[Counts]], new_id: Callable[[], str]
) -> Pin:
    """Pin a version, and count it; see `Access.create_pin`."""
    path, copy = await create_pin(log, version, new_id=new_id)
    return answer_pin(path, copy, await count(copy))


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
    if not tag.is_chosen:
        with contextlib.suppress(Expired):
            return await pin_version(log, tag.version, count=count, new_id=new_id)
    path, copy = await copy_pin(log, tag.pin_path, new_id=new_id)
    if await load_again() != tag:
        raise Expired(
            f"version {tag.version} has expired, and its tag was replaced or deleted meanwhile",
            version=tag.version,
        )
    counts = Counts(objects=tag.object_count, tables=tag.table_count, rows=tag.row_count)
    return msgspec.structs.replace(answer_pin(path, copy, counts), chosen=tag.chosen, left_out=tag.left_out)


def answer_pin(path: str, copy: Copy, counts: Counts) -> Pin:
    """Return what is told of a new pin of a version."""
    return Pin(
        path=path,
        version=copy.version,
        commit_id=copy.commit_id,
        version_created_at_millis=copy.created_at_millis,
        object_count=counts.objects,
        table_count=counts.tables,
        row_count=counts.rows,
    )
