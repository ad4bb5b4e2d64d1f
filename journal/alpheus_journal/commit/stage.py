"""Stage a version: encode the members of a group as nodes and a root. Nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.clock import Clock, Identities
from alpheus_journal.commit.base import Base, without_blocking
from alpheus_journal.commit.judge import Judged
from alpheus_journal.commit.staged import Staged
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import Key, Kind, NodePath, ObjectName
from alpheus_journal.log.times import next_time
from alpheus_journal.log.version_bytes import encode_root, run_aside, written_size_max
from alpheus_journal.log.versions import root_rows
from alpheus_journal.model.answers import make_token
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.state import Head, VersionRecord
from alpheus_journal.storage.suitability import check_clock
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import Node, encode_node


class _Changes(msgspec.Struct):
    """The members' changes of the tree. Keys are as stored."""

    after: dict[Key, str | None]
    """The definition paths of changed objects in this version; None for a dropped object."""
    assumed: dict[Key, str | None]
    """The definition paths that the members found before, of every object that they looked at."""
    catalog_def: str
    """The path of the catalog's definition."""


class Stager:
    """Stages versions for one process and catalog."""

    def __init__(self, follower: Follower, clock: Clock, identities: Identities) -> None:
        self._follower = follower
        self._clock = clock
        self._identities = identities
        self._storage = follower.log.storage
        self._keys = follower.reader.keys

    async def stage(self, judged: Judged) -> Staged:
        """Encode the version that the members make. Drops later members from `judged` until the rest fits.

        Raises InvalidInput (`too_large`) when the first member alone does not fit. Raises Corrupt (`state_drift`)
        when the objects that the members found differ from those in the tree.
        """
        now = self._clock.now_millis()
        await check_clock(self._storage, self._follower.log.path(judged.base.version))
        members = judged.members
        while True:
            try:
                return await self.encode(judged, now)
            except InvalidInput as error:
                if error.kind != "too_large":
                    raise
                if len(members) == 1:
                    raise InvalidInput(
                        f"transaction {members[0].recorded.id} does not fit into one version: {error.message}",
                        kind="too_large",
                        hint="split the transaction into several ones",
                    ) from None
                del members[len(members) // 2 :]

    async def encode(self, judged: Judged, now_millis: int) -> Staged:
        """Encode the version. Raises InvalidInput (`too_large`) when its bytes do not fit into one version."""
        base, members = judged.base, tuple(judged.members)
        head = base.head
        version = head.version + 1
        asked = [a.operation for m in members for a in m.recorded.actions if a.operation is not None]
        created_at = next_time(head.created_at_millis, now_millis, asked)
        changes = await self._collect_changes(judged)
        before = await tree.run_async(tree.find(head.root, changes.assumed), base.reader.load_nodes)
        self._check_memory(base, changes.assumed, before)
        applied = await tree.run_async(
            tree.apply(
                head.root,
                changes.after,
                order=self._follower.definition.order,
                new_path=lambda: fmt.node_path(self._identities.uuid4()),
            ),
            base.reader.load_nodes,
        )
        files = {path: data for member in members for path, data in member.uploads.items()}
        definitions = {path: data for path, data in files.items() if path.startswith("def/")}
        _check_external_actions(files)
        revision = _revision_of(head, changes.catalog_def, files)
        files.update(self._encode_nodes(applied.created, created_at, revision))
        commit_id = self._identities.uuid4()
        await asyncio.sleep(0)
        root = await self._encode_root(
            judged, applied.root, changes.catalog_def, created_at, commit_id, revision
        )
        return Staged(
            head=Head(
                version=version,
                created_at_millis=created_at,
                commit_id=commit_id,
                token=make_token(self._follower.catalog_id, version, commit_id),
                root=applied.root,
                catalog_def=changes.catalog_def,
                revision=revision,
            ),
            parent_commit_id=head.commit_id,
            record=VersionRecord(
                version=version,
                commit_id=commit_id,
                created_at_millis=created_at,
                transactions=tuple(member.recorded for member in members),
                changes=tuple(
                    (key, before.get(key), after)
                    for key, after in sorted(changes.after.items())
                    if before.get(key) != after
                ),
                catalog_def_before=head.catalog_def,
                catalog_def_after=changes.catalog_def,
            ),
            definitions=definitions,
            nodes=applied.created,
            files=files,
            slot=self._follower.log.path(version),
            root=root,
            members=members,
            made={made.segment.path: made.content for member in members for made in member.made},
        )

    def _encode_nodes(
        self, created: Mapping[NodePath, Node], created_at: int, revision: int
    ) -> dict[str, bytes]:
        definition, digits = self._follower.definition, self._follower.log.digits
        return {
            path: encode_node(
                node,
                order=definition.order,
                created_at_millis=created_at,
                size_max=written_size_max(definition.node_file_size_max, digits),
                digits=digits,
                system={fmt.ROW_CHECKSUM: ""} if revision >= 2 else None,
            )
            for path, node in created.items()
        }

    async def _encode_root(
        self,
        judged: Judged,
        root: Node,
        catalog_def: str,
        created_at: int,
        commit_id: str,
        revision: int,
    ) -> bytes:
        head, log, definition = judged.base.head, self._follower.log, self._follower.definition
        actions = [(key, data) for member in judged.members for key, data in member.rows]
        return await run_aside(
            len(actions),
            encode_root,
            root,
            actions,
            order=definition.order,
            created_at_millis=created_at,
            size_max=written_size_max(definition.node_file_size_max, log.digits),
            digits=log.digits,
            system=root_rows(
                head.version + 1,
                catalog_def=catalog_def,
                catalog_id=self._follower.catalog_id,
                commit_id=commit_id,
                revision=revision,
                previous=(log.path(head.version), head.commit_id),
            ),
        )

    async def _collect_changes(self, judged: Judged) -> _Changes:
        """Collect the members' changes, and the state of every object of the base that was looked at.

        An object whose key another writer padded in another way keeps its key.
        """
        changes = await self._key_changes(judged)
        async for name, stored in without_blocking(list(judged.found.objects())):
            if name.kind is Kind.CATALOG or not name.full_name.isascii():
                continue
            # A name in another writer's definition may be invalid, and then its key may be another object's key.
            if stored is not None or _may_exist(name, self._keys):
                changes.assumed.setdefault(self._keys.key(name), None if stored is None else stored.path)
        return changes

    async def _key_changes(self, judged: Judged) -> _Changes:
        """Return, by key, the definition path that the members leave and the one that they found first."""
        base = judged.base
        final: dict[ObjectName, str | None] = {}
        first: dict[ObjectName, str | None] = {}
        catalog_def = base.head.catalog_def
        for member in judged.members:
            for action in member.recorded.actions:
                for effect in action.effects:
                    if effect.name.kind is not Kind.CATALOG:
                        final[effect.name] = effect.path_after or None
                        first.setdefault(effect.name, effect.path_before or None)
                    elif effect.path_after:
                        catalog_def = effect.path_after
        foreign = [name for name in final if not name.full_name.isascii()]
        stored = await base.reader.find(base.head.root, foreign) if foreign else {}
        changes = _Changes({}, {}, catalog_def)
        async for name, path in without_blocking(list(final.items())):
            key = stored[name][0] if name in stored else self._keys.key(name)
            changes.after[key], changes.assumed[key] = path, first[name]
        return changes

    def _check_memory(self, base: Base, assumed: Mapping[Key, str | None], there: Mapping[Key, str]) -> None:
        """Refuse to write when an object that was looked at differs from the tree: no later version could remove the
        difference from the history. Raises Corrupt (`state_drift`), and stops using memory if memory was the source."""
        for key, path in assumed.items():
            if there.get(key) != path:
                what = f"{self._keys.parse(key)} is {there.get(key)} in the tree of version {base.version},"
                what += f" in memory {path}"
                if self._follower.state is not None:
                    self._follower.replay.invalidate(what)
                raise Corrupt(
                    f"nothing was written: {what}",
                    kind="state_drift",
                    version=base.version,
                    hint="run alpheus check and report its findings",
                )


def _revision_of(head: Head, catalog_def: str, files: Mapping[str, bytes]) -> int:
    """Return the revision of the version above `head`: that of its catalog definition, which `files` holds if it is
    new."""
    if catalog_def == head.catalog_def:
        return head.revision
    definition = decode_definition(Kind.CATALOG, files[catalog_def], catalog_def)
    assert isinstance(definition, CatalogDef)
    return definition.format_revision


def _check_external_actions(files: Mapping[str, bytes]) -> None:
    external = sum(len(data) for path, data in files.items() if path.startswith("action/"))
    if external > fmt.EXTERNAL_ACTIONS_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"the actions take {external} bytes outside the root,"
            f" at most {fmt.EXTERNAL_ACTIONS_SIZE_BYTES_MAX} are allowed",
            kind="too_large",
        )


def _may_exist(name: ObjectName, keys: fmt.Keys) -> bool:
    try:
        fmt.check_object_name(name, keys)
    except InvalidInput:
        return False
    return True
