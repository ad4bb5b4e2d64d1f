"""Expiry and collection over a daemon: one at a time, counted, and with the fence through the daemon's queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from alpheus.session.remote import RemoteAccess
from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_daemon.retention import Retention
from alpheus_daemon.telemetry.metrics import Metrics
from alpheus_journal.errors import Exhausted, InvalidInput
from alpheus_journal.model.answers import Collection, Committed, Expiry, FileTotals, Hold, UploadTotals
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.model.operations import Transaction
from alpheus_journal.testing import Lake

RULES = ExpiryRules(older_than_millis=0, keep_versions=1)


class Staged:
    """A journal whose expiry and collection yield what a test wants."""

    def __init__(self, *, expiries: list[Expiry] | None = None, collections: list[Collection] | None = None):
        self.expiries = expiries or []
        self.collections = collections or []
        self.is_closed = False

    async def expire(self, rules: ExpiryRules, *, dry_run: bool = False) -> AsyncIterator[Expiry]:
        try:
            for each in self.expiries:
                yield each
        finally:
            self.is_closed = True

    async def collect(self, **arguments: object) -> AsyncIterator[Collection]:
        for each in self.collections:
            yield each


async def commit(transaction: Transaction) -> Committed:
    raise AssertionError("nothing is committed here")


async def test_a_second_one_is_refused_and_the_first_goes_on() -> None:
    steps = [Expiry(head=9, first=0, wanted=8, oldest=8, expired=done) for done in (0, 4, 8)]
    staged = Staged(expiries=steps)
    retention = Retention(staged, commit)  # type: ignore[arg-type]
    async with aclosing(retention.expire(RULES)) as first:
        await anext(first)
        for second in (retention.expire(RULES), retention.collect(minimum_age_millis=0, dry_run=True)):
            with pytest.raises(Exhausted, match="an expiry is running in this daemon already") as caught:
                await anext(second)
            assert caught.value.kind == "already_running"
            assert caught.value.hint
        assert [step.expired async for step in first] == [4, 8]
    assert retention.expired_count == 8
    assert retention.oldest_version == 8
    assert [step.expired async for step in retention.expire(RULES)] == [0, 4, 8]


async def test_a_caller_that_leaves_makes_room() -> None:
    staged = Staged(expiries=[Expiry(head=9, first=0, wanted=8, oldest=8)] * 2)
    retention = Retention(staged, commit)  # type: ignore[arg-type]
    async with aclosing(retention.expire(RULES)) as first:
        await anext(first)
    assert staged.is_closed
    assert len([step async for step in retention.collect(minimum_age_millis=0)]) == 0


async def test_what_is_let_go_counts_once() -> None:
    hold = Hold(kind="pipeline", name="p.j", version=2, let_go=True)
    retention = Retention(
        Staged(expiries=[Expiry(head=9, first=0, wanted=8, oldest=8, holds=(hold,))]), commit
    )  # type: ignore[arg-type]
    for _ in range(2):
        assert [step async for step in retention.expire(RULES)]
    assert retention.let_go_count == 1
    assert retention.holds == (hold,)


async def test_deleted_files_are_counted_by_kind_and_dry_runs_are_not() -> None:
    def step(files: int) -> Collection:
        deleted = {"data": FileTotals(files=files, size_bytes=10 * files)} if files else {}
        kept = {"tag a": FileTotals(files=1, size_bytes=5), "tag b": FileTotals(files=1, size_bytes=6)}
        uploads = UploadTotals(abandoned=9, aborted=2 * files)
        return Collection(cutoff_millis=1, deleted=deleted, kept_by=kept, uploads=uploads)

    retention = Retention(Staged(collections=[step(0), step(3), step(7)]), commit)  # type: ignore[arg-type]
    assert len([one async for one in retention.collect(minimum_age_millis=0, dry_run=True)]) == 3
    assert retention.deleted_files["data"] == 0
    assert len([one async for one in retention.collect(minimum_age_millis=0)]) == 3
    assert (retention.deleted_files["data"], retention.deleted_bytes["data"]) == (7, 70)
    assert retention.aborted_uploads_count == 14
    assert retention.kept_bytes == {"tags": 11}
    assert retention.succeeded_at_millis["collection"] > 0


async def test_a_daemon_expires_and_collects_over_grpc() -> None:
    lake = Lake()
    journal = await lake.create()
    for number in range(4):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await lake.storage.put(f"selftest/{lake.identities.uuid4()}/time", b"left behind")
    config, metrics = Config(url="memory://", listen="127.0.0.1:0"), Metrics()
    async with running(config, journal, metrics=metrics) as address:
        access = RemoteAccess(f"grpc://{address}", timeout=10)
        try:
            await access.info()
            plan = [step async for step in access.expire(RULES, dry_run=True)]
            assert [(step.first, step.oldest, step.expired) for step in plan] == [(0, 4, 0)]
            done = [step async for step in access.expire(RULES)]
            assert done[-1].expired == 4
            head = journal.head.version
            found = [step async for step in access.collect(minimum_age_millis=0)]
            assert found[-1].fence_version == head + 1 == journal.head.version
            assert found[-1].deleted == found[-1].unreferenced
            assert found[-1].deleted_count > 0
            (entry,) = [entry async for entry in access.log(after=head)]
            assert entry.transaction.principal, "the daemon is the one who collects"
            with pytest.raises(InvalidInput, match="cannot keep 0 versions"):
                assert not [step async for step in access.expire(ExpiryRules(keep_versions=0))]
        finally:
            await access.close()
