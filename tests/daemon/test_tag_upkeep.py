"""Tags that a daemon makes by its rules, and tags that it deletes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from alpheus_daemon.config import read_config
from alpheus_daemon.main import open_journal, running
from alpheus_daemon.maintenance import Maintenance
from alpheus_daemon.tag_rules import PROPERTY, parse_rules
from alpheus_daemon.tag_upkeep import TagUpkeep
from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Tag
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TagDef
from alpheus_journal.model.operations import CreateTag, ReplaceTag
from alpheus_journal.testing import Lake, listed

HOUR = 3_600_000
START = int(datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()) * 1000


class Kept:
    """A catalog whose clock stands at noon, and the upkeep of one daemon on it."""

    def __init__(self, lake: Lake, journal: Journal) -> None:
        self.lake = lake
        self.journal = journal
        self.upkeep = self.of(journal)

    def of(self, journal: Journal) -> TagUpkeep:
        return TagUpkeep(journal, journal.commit, self.lake.clock, self.lake.identities, principal="daemon")

    @classmethod
    async def make(cls, rules: str = "", **options: Any) -> Kept:
        lake = Lake()
        lake.clock.millis = START
        journal = await lake.create(**options)
        kept = cls(lake, journal)
        kept.upkeep.follow(parse_rules(rules))
        return kept

    async def commit(self) -> int:
        number = self.journal.head.version
        return (await self.lake.commit(self.journal, self.lake.namespace(f"n{number}"))).version

    async def let_pass(self, hours: int) -> None:
        """Let time pass by hours, with a commit in the middle of each and the daemon's work at its end."""
        for _ in range(hours):
            self.lake.clock.millis += HOUR // 2
            await self.commit()
            self.lake.clock.millis += HOUR // 2
            await self.upkeep.work()

    async def tags(self) -> dict[str, int]:
        names = (await self.journal.list(None, Kind.TAG)).names
        return {name: (await self.journal.resolve(Tag(name))).version for name in names}

    async def tag(self, name: str) -> TagDef:
        (stored,) = (await self.journal.load(None, [fmt.tag_name(name)])).objects
        assert stored is not None
        found = decode_definition(Kind.TAG, stored.definition, stored.path)
        assert isinstance(found, TagDef)
        return found

    async def create(self, name: str, **fields: Any) -> None:
        pin = await self.journal.create_pin(None)
        operation = CreateTag(
            name=name,
            tag_id=self.lake.identities.uuid4(),
            **pin.tag_fields,
            **fields,
        )
        await self.lake.commit(self.journal, operation)


async def test_each_hour_has_its_tag_and_the_oldest_go() -> None:
    kept = await Kept.make("hourly keep=3")
    await kept.let_pass(5)
    tags = await kept.tags()
    assert list(tags) == ["hourly-2026-11-23T14", "hourly-2026-11-23T15", "hourly-2026-11-23T16"]
    for name, version in tags.items():
        hour = START + (int(name[-2:]) - 12) * HOUR
        made_at = (await kept.journal.resolve(version)).created_at_millis
        later_at = (await kept.journal.resolve(version + 1)).created_at_millis
        assert hour <= made_at < hour + HOUR <= later_at, "the last version of its hour"
    definition = await kept.tag("hourly-2026-11-23T16")
    assert definition.creator == "daemon"
    assert definition.properties == {PROPERTY: "hourly"}
    assert (kept.upkeep.made_count, kept.upkeep.deleted_count) == (5, 2)


async def test_a_rule_of_cron_makes_and_deletes_its_tags() -> None:
    kept = await Kept.make("x cron='0 */2 * * *' keep=2; hourly keep=1")
    await kept.let_pass(1)
    await kept.let_pass(7)
    tags = await kept.tags()
    assert [name for name in tags if name.startswith("x-")] == ["x-2026-11-23T1800", "x-2026-11-23T2000"]
    assert (await kept.tag("x-2026-11-23T2000")).properties == {PROPERTY: "x"}


async def test_nothing_is_written_while_nothing_is_due() -> None:
    kept = await Kept.make("hourly; daily keep=2")
    await kept.journal.load_state()
    await kept.let_pass(1)
    head, puts = kept.journal.head.version, len(await listed(kept.lake.storage, ""))
    for _ in range(3):
        kept.lake.clock.millis += 60_000
        await kept.upkeep.work()
    assert kept.journal.head.version == head
    assert len(await listed(kept.lake.storage, "")) == puts


async def test_tags_that_a_daemon_missed_name_the_versions_of_their_time() -> None:
    kept = await Kept.make("hourly")
    await kept.let_pass(1)
    expected = {}
    for hour in range(13, 16):  # the daemon is down
        kept.lake.clock.millis += HOUR // 2
        expected[f"hourly-2026-11-23T{hour}"] = await kept.commit()
        kept.lake.clock.millis += HOUR // 2
    await kept.upkeep.work()
    tags = await kept.tags()
    assert list(tags)[1:] == list(expected)
    assert {name: tags[name] for name in expected} == expected


async def test_a_catalog_younger_than_the_period_gets_no_tag() -> None:
    kept = await Kept.make("daily; weekly; monthly")
    await kept.upkeep.work()
    assert not await kept.tags()
    kept.lake.clock.millis += 12 * HOUR
    await kept.upkeep.work()
    assert list(await kept.tags()) == ["daily-2026-11-23"]


async def test_tags_of_people_stay() -> None:
    """A rule deletes the tags that it made, under the names that it gave."""
    kept = await Kept.make("hourly keep=1")
    await kept.create("hourly-2020-01-01T00")
    await kept.create("release", properties={PROPERTY: "hourly"})
    await kept.let_pass(3)
    assert list(await kept.tags()) == ["hourly-2020-01-01T00", "hourly-2026-11-23T14", "release"]


async def test_tags_go_when_their_time_is_over() -> None:
    kept = await Kept.make()
    await kept.create("soon", expire_at_millis=START + HOUR)
    await kept.create("late", expire_at_millis=START + 9 * HOUR)
    await kept.create("never")
    await kept.upkeep.work()
    assert len(await kept.tags()) == 3
    kept.lake.clock.millis = START + HOUR
    await kept.upkeep.work()
    assert list(await kept.tags()) == ["late", "never"]


async def test_a_tag_that_is_replaced_meanwhile_is_not_deleted() -> None:
    """A person gives the tag more time while the daemon is about to delete it and another one."""
    kept = await Kept.make()
    await kept.create("mine", expire_at_millis=START + HOUR)
    await kept.create("other", expire_at_millis=START + HOUR)
    daemon = await kept.lake.open()
    upkeep = kept.of(daemon)
    pin = await kept.journal.create_pin(None)
    replace = ReplaceTag(
        name="mine",
        **pin.tag_fields,
    )
    await kept.lake.commit(kept.journal, replace)  # the daemon has not seen it yet
    kept.lake.clock.millis = START + 2 * HOUR
    await upkeep.work()
    await kept.journal.refresh()
    assert list(await kept.tags()) == ["mine"]


async def test_two_daemons_make_one_tag() -> None:
    kept = await Kept.make("hourly")
    other = kept.of(await kept.lake.open())
    other.follow(parse_rules("hourly"))
    await kept.commit()
    kept.lake.clock.millis += HOUR
    await asyncio.gather(kept.upkeep.work(), other.work())
    await kept.journal.refresh()
    assert list(await kept.tags()) == ["hourly-2026-11-23T12"]
    assert kept.upkeep.made_count + other.made_count == 1


async def test_a_damaged_tag_hinders_no_other() -> None:
    kept = await Kept.make("hourly")
    await kept.create("broken")
    await kept.create("soon", expire_at_millis=START + HOUR // 2)
    loaded = (await kept.journal.load(None, [fmt.tag_name("broken")])).objects[0]
    assert loaded is not None
    await kept.lake.storage.delete(loaded.path)
    journal = await kept.lake.open()
    kept = Kept(kept.lake, journal)
    kept.upkeep.follow(parse_rules("hourly"))
    kept.lake.clock.millis += HOUR
    await kept.upkeep.work()
    assert list((await journal.list(None, Kind.TAG)).names) == ["broken", "hourly-2026-11-23T12"]


async def test_a_catalog_of_revision_1_gets_no_tags() -> None:
    kept = await Kept.make("hourly", format_revision=1)
    await kept.let_pass(2)
    assert not await kept.tags()
    assert not await listed(kept.lake.storage, "pin/")


async def test_a_daemon_follows_its_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting reaches the daemon's own writer."""
    monkeypatch.setattr("alpheus_daemon.maintenance.TAGS_SECONDS", 0.0)
    monkeypatch.setattr("alpheus_daemon.maintenance.TICK_SECONDS", 0.01)
    settings = {"url": f"{tmp_path}/lake", "create": True, "listen": "127.0.0.1:0", "tag_rules": "hourly"}
    config = read_config(settings, {})
    journal = await open_journal(config)
    seen = asyncio.get_running_loop().create_future()

    async def see_the_rules(self: TagUpkeep) -> None:
        if not seen.done():
            seen.set_result([rule.kind for rule in self._rules])

    monkeypatch.setattr(TagUpkeep, "work", see_the_rules)
    async with running(config, journal), asyncio.timeout(60):
        assert await seen == ["hourly"]
    await journal.close()
    with pytest.raises(InvalidInput, match=r"--tag-rules: tag rules: 'nightly'"):
        read_config({"url": "/x", "tag_rules": "nightly"}, {})


async def test_maintenance_counts_the_upkeep_of_tags() -> None:
    kept = await Kept.make("hourly")
    await kept.journal.load_state()
    maintenance = Maintenance(
        kept.journal, checkpoint_versions=100, checkpoint_minutes=15, drift_check_seconds=0, tags=kept.upkeep,
        monotonic=lambda: kept.lake.clock.millis / 1000,
    )  # fmt: skip
    await kept.commit()
    kept.lake.clock.millis += HOUR
    await maintenance.step()
    assert list(await kept.tags()) == ["hourly-2026-11-23T12"]
    assert {job.name: job.done_count for job in maintenance.jobs}["tags"] == 1


async def test_a_tag_that_a_person_replaced_keeps_its_name_and_costs_nothing() -> None:
    """It has no property of the rule any more, so its period seems to lack a tag."""
    kept = await Kept.make("hourly keep=1")
    await kept.let_pass(2)
    (name,) = await kept.tags()
    pin = await kept.journal.create_pin(None)
    await kept.lake.commit(kept.journal, ReplaceTag(name=name, **pin.tag_fields))
    head, files = kept.journal.head.version, len(await listed(kept.lake.storage, ""))
    for _ in range(3):
        kept.lake.clock.millis += 60_000
        await kept.upkeep.work()
    assert kept.journal.head.version == head
    assert len(await listed(kept.lake.storage, "")) == files, "no pin that no tag names"
    await kept.let_pass(2)
    assert name in await kept.tags(), "it is not the rule's"
