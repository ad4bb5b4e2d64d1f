"""The expiry and the collection that a daemon does by its schedule."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import structlog

from alpheus_daemon import maintenance as maintenance_module
from alpheus_daemon import retention as retention_module
from alpheus_daemon.config import read_config
from alpheus_daemon.main import open_journal, running
from alpheus_daemon.maintenance import Maintenance
from alpheus_daemon.retention import Retention, RetentionUpkeep, Schedule
from alpheus_daemon.telemetry import logs as telemetry
from alpheus_daemon.telemetry.metrics import Metrics
from alpheus_journal.collect.store_time import read_store_time
from alpheus_journal.errors import InvalidInput, Unavailable
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Expiry, Hold
from alpheus_journal.model.expiry_rules import DAY_MILLIS, ExpiryRules
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake

DAY = 86_400
RULES = ExpiryRules(older_than_millis=0, keep_versions=2)
DAILY = Schedule(
    expire_every_seconds=DAY, collect_every_seconds=DAY, rules=RULES, minimum_age_millis=0
)  # fmt: skip


class Store(MemoryStorage):
    """A store that can refuse to delete."""

    is_away = False

    async def delete_many(self, paths: Any) -> None:
        if self.is_away:
            raise Unavailable("the store is away")
        await super().delete_many(paths)


class Kept:
    """A catalog, and the maintenance of one daemon on it, by a clock that the test sets."""

    def __init__(self, lake: Lake, journal: Journal, schedule: Schedule, *, seed: int = 0) -> None:
        self.lake = lake
        self.journal = journal
        self.seconds = 0.0
        self.retention = Retention(journal, journal.commit, clock=lake.clock, principal="daemon")
        self.upkeep = RetentionUpkeep(self.retention, journal, lake.clock)
        self.upkeep.follow(schedule)
        self.maintenance = Maintenance(
            journal, checkpoint_versions=10_000, checkpoint_minutes=10_000, drift_check_seconds=0,
            retention=self.upkeep, monotonic=lambda: self.seconds, randomness=random.Random(seed),
        )  # fmt: skip

    @classmethod
    async def make(cls, schedule: Schedule = DAILY, **options: Any) -> Kept:
        lake = Lake(Store())
        return cls(lake, await lake.create(**options), schedule)

    async def commit(self, count: int) -> None:
        for _ in range(count):
            await self.lake.commit(
                self.journal, self.lake.namespace(f"n{self.journal.head.version}")
            )  # fmt: skip

    async def step(self, seconds: float) -> None:
        """Let time pass, and both jobs work that are due then."""
        self.seconds += seconds
        for _ in range(2):
            await self.maintenance.step()
            await self.maintenance.wait_for_retention()

    @property
    def done(self) -> tuple[int, int]:
        return self.maintenance.expiries.done_count, self.maintenance.collections.done_count


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the log as dicts."""
    for module in (maintenance_module, retention_module):
        monkeypatch.setattr(module, "log", telemetry.logger())
    telemetry.set_level("info")
    with structlog.testing.capture_logs() as entries:
        yield entries


async def test_both_run_in_the_first_hour_and_then_daily(told: Any) -> None:
    kept = await Kept.make()
    await kept.commit(5)
    await kept.step(0)
    assert kept.done == (0, 0)
    await kept.step(1.1 * 3600)
    assert kept.done == (1, 1)
    assert await kept.journal.follower.oldest() == 4
    assert kept.retention.expired_count == 4
    await kept.commit(3)
    await kept.step(0.8 * DAY)
    assert kept.done == (1, 1)
    await kept.step(0.4 * DAY)
    assert kept.done == (2, 2)
    assert await kept.journal.follower.oldest() == kept.retention.oldest_version > 4
    assert kept.retention.succeeded_at_millis["expiry"] == kept.lake.clock.millis
    lines = [entry for entry in told if entry["event"] == "versions_expired"]
    assert [(line["first"], line["oldest_kept"]) for line in lines] == [
        (0, 4),
        (4, kept.retention.oldest_version),
    ]


async def test_nothing_runs_unless_it_is_switched_on() -> None:
    kept = await Kept.make(Schedule(rules=RULES))
    await kept.commit(5)
    await kept.step(400 * DAY)
    assert kept.done == (0, 0)
    assert await kept.journal.follower.oldest() == 0
    kept.upkeep.follow(DAILY)
    await kept.step(DAY)
    assert kept.done == (1, 1)


async def test_daemons_that_start_together_begin_at_different_moments() -> None:
    lake = Lake()
    journal = await lake.create()
    shares = {Kept(lake, journal, DAILY, seed=seed).maintenance._first_share for seed in range(5)}
    assert len(shares) == 5


async def test_a_catalog_of_the_first_revision_is_left_alone(told: Any) -> None:
    kept = await Kept.make(format_revision=1)
    await kept.commit(5)
    await kept.step(2 * 3600)
    assert kept.done == (1, 1)
    assert told == []
    assert await kept.journal.follower.oldest() == 0


async def test_a_failure_is_logged_once_and_tried_again(told: Any) -> None:
    kept = await Kept.make()
    store = kept.lake.storage
    assert isinstance(store, Store)
    left = f"selftest/{kept.lake.identities.uuid4()}/time"
    await store.put(left, b"left behind")
    info = await store.stat(left)
    assert info is not None
    while await read_store_time(store, kept.lake.identities.uuid4) <= info.modified_at_millis:
        pass  # a collection takes files that are older than its begin
    store.is_away = True
    await kept.step(2 * 3600)
    await kept.step(60)
    job = kept.maintenance.collections
    assert (job.done_count, job.failures_count) == (0, 2)
    store.is_away = False
    await kept.step(1000)
    assert job.done_count == 1
    assert kept.retention.deleted_files["scratch"] > 0
    events = [entry["event"] for entry in told]
    assert events.count("collection_failed") == 1
    assert "collection_works_again" in events
    assert "files_collected" in events


async def test_a_slow_pipeline_is_named_once_a_day_and_its_end_is_logged(told: Any) -> None:
    kept = await Kept.make()
    await kept.commit(5)
    waits_since = (await kept.journal.resolve(3)).created_at_millis
    hold = Hold(kind="pipeline", name="p.j", version=2)

    class Held:
        let_go = False

        async def expire(self, rules: ExpiryRules, *, dry_run: bool = False) -> Any:
            held = Hold(kind="pipeline", name="p.j", version=2, let_go=self.let_go)
            yield Expiry(head=5, first=2, wanted=4, oldest=2, holds=(held,))

    held = Held()
    kept.retention._journal = held  # type: ignore[assignment]
    half = ExpiryRules().pipeline_hold_millis // 2
    for moment, warnings in ((half - 1, 0), (half, 1), (half + DAY_MILLIS // 2, 1), (half + DAY_MILLIS, 2)):
        kept.lake.clock.millis = waits_since + moment
        await kept.upkeep.expire()
        lines = [entry for entry in told if entry["event"] == "pipeline_holds_versions"]
        assert len(lines) == warnings, moment
    assert (lines[0]["name"], lines[0]["version"], lines[0]["log_level"]) == ("p.j", hold.version, "warning")
    held.let_go = True
    await kept.upkeep.expire()
    await kept.upkeep.expire()
    assert [entry["name"] for entry in told if entry["event"] == "hold_let_go"] == ["p.j"]


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("expire_every", "daily", "'daily' is not a time"),
        ("expire_every", "1s", "1s is out of range"),
        ("expire_older_than", "", "'' is not a time"),
        ("expire_keep", "0", "Expected `int` >= 1"),
        ("collect_minimum_age", "30m", "30m is out of range"),
    ],
)
def test_wrong_settings_are_refused(setting: str, value: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_config({"url": "/x", setting: value}, {})
    assert caught.value.message.startswith(f"--{setting.replace('_', '-')}: ")
    assert text in caught.value.message


async def test_a_daemon_shows_its_numbers(tmp_path: Path) -> None:
    config = read_config({"url": f"{tmp_path}/lake", "create": True, "listen": "127.0.0.1:0"}, {})
    metrics = Metrics()
    journal = await open_journal(config)
    async with running(config, journal, metrics=metrics):
        text = (await metrics.text()).decode()
    await journal.close()
    assert 'alpheus_collected_files_total{kind="data"} 0.0' in text
    assert 'alpheus_expiry_holds{holder="let_go"} 0.0' in text
    for kind in ("table", "namespace"):
        assert f'alpheus_expiry_holds{{holder="{kind}"}} 0.0' in text
    assert "alpheus_expiry_held_version -1.0" in text
    assert 'alpheus_maintenance_failures_total{job="expiry"} 0.0' in text
