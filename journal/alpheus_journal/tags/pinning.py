"""Pins for tags: made of a version, of another tag's version, or of chosen objects; counted, and opened again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.errors import Expired, InvalidInput, NotFound
from alpheus_journal.format import Kind, NodePath
from alpheus_journal.log.copies import Copy, copy_of, verify_kept
from alpheus_journal.log.pins import put_pin, read_pin
from alpheus_journal.log.times import time_text
from alpheus_journal.log.version_bytes import written_size_max
from alpheus_journal.model.answers import At, Pin, Pinned, PinObject, Tag
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, TableDef, TagDef, TagObject
from alpheus_journal.model.table_starts import find_lacking
from alpheus_journal.replay.follower import Follower
from alpheus_journal.tags.chosen import ChosenTree, Source, choose
from alpheus_journal.tags.counts import Counts, count_entries, count_version
from alpheus_journal.tags.reader import Read, answer_pin, load_tag, pin_tag, pin_version, snapshot_of_pin
from alpheus_journal.tree.node import encode_node
from alpheus_journal.tree.reader import Snapshot

TABLES_AT_ONCE = 100
"""The definitions that are read together to find the ids of chosen tables."""


class Pinning:
    """Makes and opens pins for one process. `version_of` finds the version of a reference."""

    def __init__(
        self,
        read: Read,
        follower: Follower,
        version_of: Callable[[At], Awaitable[int]],
        *,
        new_id: Callable[[], str],
    ) -> None:
        self._read = read
        self._follower = follower
        self._version_of = version_of
        self._new_id = new_id

    # --- open

    async def exists(self, at: Pinned) -> bool:
        return await self._follower.log.storage.exists(fmt.check_pin_pointer(at.pin_path))

    async def open(self, at: Pinned) -> Snapshot:
        """Return the version of a pin, or what the pin has of it. Raises Expired for a pin of chosen objects that is
        gone, and InvalidInput (`bad_version`) for the pin of another version."""
        follower = self._follower
        if at.is_chosen and not await self.exists(at):
            raise Expired(
                f"the tag of chosen objects of version {at.version} was deleted or replaced",
                version=at.version,
            )
        copy = await read_pin(follower.log, at.pin_path)
        if copy.version != at.version or copy.is_chosen != at.is_chosen:
            raise InvalidInput(
                f"the pin {at.pin_path} is of version {copy.version}, not of version {at.version}"
                if copy.version != at.version
                else f"the pin {at.pin_path} is not of {'chosen' if at.is_chosen else 'all'} objects",
                kind="bad_version",
            )
        return snapshot_of_pin(follower.reader, follower.log, at.pin_path, copy)

    # --- create

    async def create(self, at: At, only: Sequence[PinObject] | None, without: Sequence[PinObject]) -> Pin:
        """Pin a version, or chosen objects; see `Access.create_pin`."""
        log = self._follower.log
        if isinstance(at, Pinned) and at.is_chosen:  # its version has what the tag leaves out
            raise InvalidInput("a tag of chosen objects is tagged again by its name", kind="bad_version")
        if only is not None or without:
            return await self._create_chosen(at, only, without)
        if isinstance(at, Tag):
            again = partial(load_tag, self._read, at.name)
            tag = await again()
            pin = await pin_tag(log, tag, again, count=self._count, new_id=self._new_id)
            return msgspec.structs.replace(
                pin, lacking=await self._lacking_of_tag(at.name, tag, await self._starts())
            )
        pin = await pin_version(log, await self._version_of(at), count=self._count, new_id=self._new_id)
        return msgspec.structs.replace(pin, lacking=find_lacking(await self._starts(), pin.version))

    async def _starts(self) -> dict[str, int]:
        """Return the starts of tables at a head that is looked for now that the pin is durable. A collection that
        raises a start later finds the pin."""
        await failpoints.reached("pin.starts")
        head = await self._follower.refresh()
        definition = await self._follower.catalog_definition(head.catalog_def, self._follower.reader)
        return definition.table_starts

    async def _lacking_of_tag(self, name: str, tag: TagDef, starts: Mapping[str, int]) -> dict[str, int]:
        """Return what a new pin of a tag's version may lack. It is what the tag lacks, if the tag still exists: its pin
        has kept the rest."""
        with contextlib.suppress(NotFound):
            if await load_tag(self._read, name) == tag:
                return dict(tag.lacking)
        if tag.is_chosen:
            raise Expired(f"tag {name} was replaced or deleted meanwhile", version=tag.version)
        return find_lacking(starts, tag.version)

    async def _count(self, copy: Copy) -> Counts:
        """Count what a pinned version has, where that is cheap."""
        return await self._count_snapshot(
            Snapshot(self._follower.reader, copy.version, copy.root, copy.catalog_def)
        )

    async def _count_snapshot(self, snapshot: Snapshot) -> Counts:
        follower = self._follower
        state = None if snapshot.is_chosen else follower.replay.verified
        return await count_version(snapshot, state, follower.known_event)

    async def _create_chosen(
        self, at: At, only: Sequence[PinObject] | None, without: Sequence[PinObject]
    ) -> Pin:
        """Pin chosen objects. Their nodes are stored before the pin, and the pin before the versions that they come
        from are looked at again (FORMAT.md, "Tags of chosen objects")."""
        follower, log = self._follower, self._follower.log
        for what, given in (("only", only), ("without", without)):
            _check_count(what, given)
        base = await self._source(at)
        sources = {at: base, None: base}
        wanted: dict[TagObject, Source] = {}
        for each in only or ():
            if each.at not in sources:
                sources[each.at] = await self._source(each.at)
            asked = TagObject(each.namespace, each.name)
            if wanted.setdefault(asked, sources[each.at]) is not sources[each.at]:
                raise InvalidInput(
                    f"only= names {asked.full_name} at two versions",
                    hint="a tag holds one state of each object: name it once",
                )
        catalog = await follower.catalog_definition(base.copy.catalog_def, follower.reader)
        made = await choose(
            base,
            wanted,
            list(dict.fromkeys(TagObject(each.namespace, each.name) for each in without)),
            order=catalog.order,
            new_path=lambda: NodePath(fmt.node_path(self._new_id())),
        )
        stored_at = await self._put_nodes(made, base.copy, catalog)
        await failpoints.reached("pin.nodes")
        copy = msgspec.structs.replace(base.copy, root=made.applied.root, is_chosen=True)

        async def verify() -> None:
            for source in {id(source): source for source in sources.values()}.values():
                await source.verify()
            await self._check_fences(stored_at)

        path = await put_pin(log, copy, verify, new_id=self._new_id)
        lacking = await self._lacking_of_chosen(base, wanted, made)
        counts = await self._count_chosen(base, made)
        return msgspec.structs.replace(
            answer_pin(path, copy, counts), chosen=made.chosen, left_out=made.left_out, lacking=lacking
        )

    async def _lacking_of_chosen(
        self, base: Source, wanted: Mapping[TagObject, Source], made: ChosenTree
    ) -> dict[str, int]:
        """Return the tables of a chosen tree that lack data files, each by the version that it was chosen from."""
        starts = await self._starts()
        if made.entries is None:
            return await base.lacking_of(starts)
        lacking_of = {id(source): await source.lacking_of(starts) for source in wanted.values()}
        if not any(lacking_of.values()):
            return {}
        found: dict[str, int] = {}
        keys = self._follower.reader.keys
        named = [(keys.parse(key), path) for key, path in made.entries]
        tables = [(name, path) for name, path in named if name.kind is Kind.TABLE]
        for start in range(0, len(tables), TABLES_AT_ONCE):
            part = tables[start : start + TABLES_AT_ONCE]
            stored = await self._follower.reader.definitions(
                dict.fromkeys((path for _, path in part), Kind.TABLE)
            )
            for name, path in part:
                source = wanted.get(TagObject(name.namespace, name.name)) or wanted[TagObject(name.namespace)]
                definition = decode_definition(Kind.TABLE, stored[path], path)
                assert isinstance(definition, TableDef)
                lost = lacking_of[id(source)].get(definition.id)
                if lost is not None:
                    found[definition.id] = lost
            await asyncio.sleep(0)
        return found

    async def _source(self, at: At) -> Source:
        """Open a version to choose objects from: its slot, or the pin of the tag that names it."""
        follower, log = self._follower, self._follower.log
        tag: TagDef | None = None
        if isinstance(at, Tag):
            name = at.name
            tag = await load_tag(self._read, name)
        version = tag.version if tag is not None else await self._version_of(at)
        if tag is None or not tag.is_chosen:
            try:
                copy = copy_of(await log.read(version, bare=True))
            except Expired:
                if tag is None:
                    raise
            else:
                snapshot = Snapshot(follower.reader, version, copy.root, copy.catalog_def, follower.root)
                return Source(
                    copy=copy,
                    snapshot=snapshot,
                    verify=partial(verify_kept, log, copy),
                    lacking_of=partial(self._lacking_at, at, tag, version),
                    tag=tag,
                )
        assert tag is not None
        found = tag

        async def verify() -> None:
            if await load_tag(self._read, name) != found:
                raise Expired(f"tag {name} was replaced or deleted meanwhile", version=found.version)

        copy = await read_pin(log, tag.pin_path)
        snapshot = snapshot_of_pin(follower.reader, log, tag.pin_path, copy)
        lacking_of = partial(self._lacking_at, at, tag, version)
        return Source(copy=copy, snapshot=snapshot, verify=verify, lacking_of=lacking_of, tag=tag)

    async def _lacking_at(
        self, at: At, tag: TagDef | None, version: int, starts: Mapping[str, int]
    ) -> dict[str, int]:
        if tag is not None and isinstance(at, Tag):
            return await self._lacking_of_tag(at.name, tag, starts)
        return find_lacking(starts, version)

    async def _put_nodes(self, made: ChosenTree, copy: Copy, catalog: CatalogDef) -> int | None:
        """Store the new nodes of a tree. Return a time by the store's clock at or before all of their times; None
        without new nodes."""
        log = self._follower.log
        files: dict[str, bytes] = {
            path: encode_node(
                node,
                order=catalog.order,
                created_at_millis=copy.created_at_millis,
                size_max=written_size_max(catalog.node_file_size_max, log.digits),
                digits=log.digits,
                system={fmt.ROW_CHECKSUM: ""},
            )
            for path, node in made.applied.created.items()
        }
        if not files:
            return None
        first = next(iter(files))
        await log.storage.put(first, files.pop(first))
        info = await log.storage.stat(first)
        if info is None:
            raise Expired(f"the node {first} was deleted meanwhile", kind="upload_expired")
        if files:
            await log.storage.put_many(files)
        return info.modified_at_millis

    async def _check_fences(self, stored_at_millis: int | None) -> None:
        """Check that no collection whose fence is committed may have deleted the new nodes. Later fences find the pin,
        or refuse the tag."""
        if stored_at_millis is None:
            return
        follower = self._follower
        head = await follower.refresh()
        definition = await follower.catalog_definition(head.catalog_def, follower.reader)
        if stored_at_millis < definition.collected_before_millis:
            collected_before = time_text(definition.collected_before_millis)
            raise Expired(
                "the nodes of the tag are too old: unreferenced files from before"
                f" {collected_before} have been collected",
                kind="upload_expired",
                hint="make the tag again; where that takes so long, collect with a longer minimum age",
            )

    async def _count_chosen(self, base: Source, made: ChosenTree) -> Counts:
        if made.entries is not None:
            return await count_entries(base.snapshot.reader, made.entries)
        counts, keys = await self._count_snapshot(base.snapshot), base.snapshot.reader.keys
        if counts.objects is None or counts.tables is None:
            return Counts()
        tables = sum(keys.parse(key).kind is Kind.TABLE for key in made.taken)
        return Counts(objects=counts.objects - len(made.taken), tables=counts.tables - tables)


def _check_count(what: str, given: Sequence[PinObject] | None) -> None:
    if given is None:
        return
    if what == "only" and not given:
        raise InvalidInput("only= is empty", hint="leave only= out to tag all objects")
    if len(given) > fmt.TAG_OBJECTS_MAX:
        raise InvalidInput(
            f"{what}= names {len(given)} objects, at most {fmt.TAG_OBJECTS_MAX} are allowed",
            kind="too_large",
            hint="name whole namespaces",
        )
