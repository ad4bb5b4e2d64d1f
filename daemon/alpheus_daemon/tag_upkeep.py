"""Tags that a daemon makes by its rules, and tags that it deletes: those whose time is over, and those above `keep`.

Several daemons may do this on one catalog. Of two that make one tag one succeeds, and a tag that a person replaced
meanwhile is not deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import msgspec

from alpheus_daemon.tag_rules import PROPERTY, Rule
from alpheus_daemon.telemetry.logs import logger
from alpheus_journal import format as fmt
from alpheus_journal.clock import Clock, Identities
from alpheus_journal.errors import AlreadyExists, Conflict, Corrupt, Expired, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import At, Committed, Loaded, Page, Pin, Timestamp, VersionInfo
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, TagDef
from alpheus_journal.model.operations import CreateTag, DropTag, Operation, Transaction
from alpheus_journal.replay.state import Head
from alpheus_journal.tags.reader import decode_tag

log = logger()

DROPPED_AT_ONCE = 1000
_EPOCH = datetime.fromtimestamp(0, UTC)


class Tagged(Protocol):
    """The part of the journal that the upkeep of tags needs."""

    @property
    def head(self) -> Head: ...

    async def resolve(self, at: At) -> VersionInfo: ...

    async def load(self, at: At, names: list[ObjectName]) -> Loaded: ...

    async def list(
        self, at: At, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page: ...

    async def create_pin(self, at: At) -> Pin: ...


class _Found(msgspec.Struct, frozen=True):
    name: str
    definition: TagDef


class TagUpkeep:
    """The upkeep of tags in one daemon. `commit` sends a transaction through the daemon's writer."""

    def __init__(
        self,
        journal: Tagged,
        commit: Callable[[Transaction], Awaitable[Committed]],
        clock: Clock,
        identities: Identities,
        *,
        principal: str,
    ) -> None:
        self._journal = journal
        self._commit = commit
        self._clock = clock
        self._identities = identities
        self._principal = principal
        self._rules: tuple[Rule, ...] = ()
        self.made_count = 0
        self.deleted_count = 0
        self._tags: tuple[int, tuple[_Found, ...]] = (-1, ())

    def follow(self, rules: tuple[Rule, ...]) -> None:
        """Make and delete tags by these rules from now on. Tags of a rule that is gone stay."""
        self._rules = rules

    async def work(self) -> None:
        """Delete the tags whose time is over, then make and delete tags by each rule.

        Reads no storage while nothing is due and memory holds the catalog. Raises the errors of commits, except those
        that say that another process was faster.
        """
        version = self._journal.head.version
        now = self._clock.now_millis()
        over = [tag for tag in await self._find(version) if 0 < tag.definition.expire_at_millis <= now]
        for start in range(0, len(over), DROPPED_AT_ONCE):
            await self._drop(over[start : start + DROPPED_AT_ONCE], version, "their time is over")
        for rule in self._rules:
            await self._make_due(rule, now)

    async def _make_due(self, rule: Rule, now_millis: int) -> None:
        version = self._journal.head.version
        mine = sorted(
            (
                tag
                for tag in await self._find(version)
                if tag.definition.properties.get(PROPERTY) == rule.kind and rule.has_made(tag.name)
            ),
            key=lambda tag: tag.name,
        )
        now = _EPOCH + timedelta(milliseconds=now_millis)
        due = list(rule.due(now, mine[-1].name if mine else ""))
        made = 0
        for name, moment in reversed(due):
            made += await self._make(rule, name, moment)
        superfluous = mine[: max(len(mine) + made - rule.keep, 0)] if rule.keep else []
        if superfluous:
            await self._drop(superfluous, version, f"{rule.kind} keeps {rule.keep}")

    async def _make(self, rule: Rule, name: str, moment: datetime) -> bool:
        """Make the tag of one period. Return whether this call made it."""
        if not await self._has_tags():
            return False
        begin = self._journal.head.version
        (there,) = (await self._journal.load(begin, [fmt.tag_name(name)])).objects
        if there is not None:
            return False  # a person's, or a damaged one: a pin for it would be for nothing
        try:
            found = await self._journal.resolve(Timestamp((moment - _EPOCH) // timedelta(milliseconds=1)))
            pin = await self._journal.create_pin(found.version)
            create = CreateTag(
                name=name,
                tag_id=self._identities.uuid4(),
                **pin.tag_fields,
                properties={PROPERTY: rule.kind},
            )
            await self._send([create], begin)
        except (NotFound, Expired):
            return False  # the catalog is younger than the period, or its versions of that time have expired
        except (AlreadyExists, Conflict):
            return False  # another process made the tag
        self.made_count += 1
        log.info("tag_made", tag=name, version=pin.version)
        return True

    async def _drop(self, tags: Sequence[_Found], begin: int, reason: str) -> None:
        """Delete tags in one transaction, or one by one where another process changed one of them meanwhile."""
        drops = [DropTag(name=tag.name, expected_pin_path=tag.definition.pin_path) for tag in tags]
        try:
            await self._send(drops, begin)
        except (NotFound, Conflict):
            if len(tags) == 1:
                return
            for tag in tags:
                await self._drop([tag], begin, reason)
            return
        self.deleted_count += len(tags)
        log.info("tags_deleted", tags=[tag.name for tag in tags[:20]], tags_count=len(tags), why=reason)

    async def _send(self, operations: Sequence[Operation], begin: int) -> None:
        await self._commit(
            Transaction(
                id=self._identities.uuid7(),
                begin_version=begin,
                operations=tuple(operations),
                principal=self._principal,
                message="tags",
            )
        )

    async def _has_tags(self) -> bool:
        """Return whether the catalog's revision has tags."""
        (stored,) = (await self._journal.load(self._journal.head.version, [fmt.CATALOG])).objects
        assert stored is not None
        definition = decode_definition(Kind.CATALOG, stored.definition, stored.path)
        assert isinstance(definition, CatalogDef)
        return definition.format_revision >= 2

    async def _load(self, version: int, keys: list[ObjectName]) -> list[_Found]:
        """Load tags, without those that are damaged: only a person can decide about them."""
        try:
            loaded = await self._journal.load(version, keys)
            found = []
            for key, stored in zip(keys, loaded.objects, strict=True):
                assert stored is not None
                found.append(_Found(key.name, decode_tag(stored)))
            return found
        except Corrupt:
            if len(keys) == 1:
                return []
            return [tag for key in keys for tag in await self._load(version, [key])]

    async def _find(self, version: int) -> tuple[_Found, ...]:
        """Return the tags of a version, which are remembered as long as it is the head."""
        if self._tags[0] == version:
            return self._tags[1]
        found: list[_Found] = []
        page = await self._journal.list(version, Kind.TAG)
        while page.names:
            keys = [fmt.tag_name(name) for name in page.names]
            found += await self._load(version, keys)
            if not page.more:
                break
            page = await self._journal.list(version, Kind.TAG, after=page.names[-1])
        self._tags = (version, tuple(found))
        return self._tags[1]
