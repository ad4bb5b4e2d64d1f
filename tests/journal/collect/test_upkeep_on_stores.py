"""Expiry and collection on real stores, and by the stores' times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from alpheus_test_servers import S3Server
from upkeep_lake import T, check, collect, commit_rows, expire, files_of, make_lake, reachable, tag

from alpheus_journal import format as fmt
from alpheus_journal.collect import collection, expiry
from alpheus_journal.collect.store_time import read_store_time
from alpheus_journal.errors import AlreadyExists, Expired
from alpheus_journal.journal import Journal
from alpheus_journal.log import leases
from alpheus_journal.model.answers import PinObject, Tag
from alpheus_journal.model.expiry_rules import HOUR_MILLIS
from alpheus_journal.model.operations import DropTable, OverwriteFiles, RestoreTable
from alpheus_journal.storage import Storage, open_storage
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.testing import Lake, model_of, raises
from alpheus_journal.testing.simulation.history import canonical

LATER_MILLIS = 10_000


@pytest.fixture(params=["local", "lmdb", "s3", "obstore"])
async def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Storage]:
    """Yield a store whose clock is ahead of its files: all files are some seconds old. A second is the resolution of
    some stores."""

    async def read_later(*given: object) -> int:
        return await read_store_time(*given) + LATER_MILLIS  # type: ignore[arg-type]

    monkeypatch.setattr(collection, "read_store_time", read_later)
    monkeypatch.setattr(expiry, "read_store_time", read_later)
    monkeypatch.setattr(leases, "ID_AHEAD_MILLIS_MAX", 0)
    match request.param:
        case "local":
            store: Storage = await asyncio.to_thread(LocalStorage, str(tmp_path / "lake"), create=True)
        case "lmdb":
            store = await asyncio.to_thread(open_storage, f"lmdb://{tmp_path}/lake", create=True)
        case kind:
            server: S3Server = request.getfixturevalue("s3_server")
            store = open_storage(server.url(client=kind) if kind == "obstore" else server.url())
    yield store
    await store.close()


async def test_a_tag_of_chosen_objects_on_every_store(storage: Storage) -> None:
    lake = Lake(storage)
    journal = await Journal.create(storage, order=3)
    lake.clock, lake.identities = journal._clock, journal._identities  # type: ignore[assignment]
    await lake.commit(journal, lake.namespace("a"), lake.namespace("b"))
    await lake.commit(journal, lake.table("a", "t"), lake.table("b", "t"), lake.table("b", "u"))
    first = await commit_rows(lake, journal)
    await commit_rows(lake, journal, fmt.table_name("b", "t"))
    only = (PinObject("a", "t", first), PinObject("b"))
    await tag(lake, journal, "some", None, only=only, without=(PinObject("b", "t"),))
    held = await model_of(journal, Tag("some"))
    before = canonical(held)
    assert {"table a.t", "namespace b", "table b.u"} <= held.keys()
    assert "table b.t" not in held
    await lake.commit(journal, DropTable(namespace="a", name="t"), DropTable(namespace="b", name="t"))
    await lake.commit(journal, lake.namespace("c"))
    await expire(journal)
    done = await collect(journal, age=0)
    assert done.deleted["data"].files == 1, "of b.t alone"
    await collect(journal, age=0)
    assert await files_of(lake) == await reachable(lake, journal)
    fresh = await Journal.open(storage)
    assert canonical(await model_of(fresh, Tag("some"))) == before
    await check(fresh)
    await fresh.detach()
    await journal.detach()


async def test_upkeep_on_every_store(storage: Storage) -> None:
    lake = Lake(storage)
    journal = await Journal.create(storage)
    lake.clock, lake.identities = journal._clock, journal._identities  # type: ignore[assignment]
    await lake.commit(journal, lake.namespace("a"))
    await lake.commit(journal, lake.table("a", "t"))
    first = await commit_rows(lake, journal)
    await tag(lake, journal, "kept", first)
    before = canonical(await model_of(journal, first))
    await commit_rows(lake, journal, kind=OverwriteFiles)
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    last = (await lake.commit(journal, lake.namespace("b"))).version
    done = await expire(journal)
    assert (done.oldest, done.expired) == (last, last)
    first_round = await collect(journal, age=0)
    assert first_round.deleted["data"].files == 1
    await collect(journal, age=0)
    await expire(journal)
    await collect(journal, age=0)
    assert await files_of(lake) == await reachable(lake, journal)
    assert canonical(await model_of(journal, Tag("kept"))) == before
    fresh = await Journal.open(storage)
    await raises(Expired, model_of(fresh, first))
    await check(fresh)
    await raises(AlreadyExists, Journal.create(storage), kind="catalog_exists")
    await fresh.detach()
    await journal.detach()


async def test_ages_go_by_the_store_whatever_clocks_writers_have() -> None:
    """Row 32 of FAULTS.md: the times that writers give to versions do not matter."""
    lake = make_lake()
    store_millis = lake.clock.millis
    lake.storage._clock = lambda: store_millis  # type: ignore[attr-defined]
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    lake.clock.millis += 48 * HOUR_MILLIS  # a writer a day and more ahead
    for number in range(5):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    assert (await expire(journal, older_than_millis=HOUR_MILLIS)).expired == 0
    lake.clock.millis -= 96 * HOUR_MILLIS
    store_millis += 2 * HOUR_MILLIS
    await lake.commit(journal, lake.namespace("late"))
    done = await expire(journal, older_than_millis=HOUR_MILLIS)
    assert done.oldest == journal.head.version - 1  # it was the head until now
    await check(journal)
    await journal.close()


async def test_a_restore_of_a_version_that_is_about_to_expire() -> None:
    """Row 29: it is copied forward, or refused as a whole."""
    outcomes = set()
    for delay in range(12):
        lake = make_lake(delay)
        journal = await lake.create()
        await lake.commit(journal, lake.namespace("a"))
        await lake.commit(journal, lake.table("a", "t"))
        then = await commit_rows(lake, journal)
        before = (await model_of(journal, then))[str(T)]
        await commit_rows(lake, journal, kind=OverwriteFiles)
        lake.clock.millis += 2 * HOUR_MILLIS
        other = await lake.open()

        async def restore(journal: Journal = other, lake: Lake = lake, then: int = then) -> str:
            try:
                await lake.commit(journal, RestoreTable(namespace="a", name="t", version=then))
            except Expired:
                return "expired"
            return "restored"

        async def wait_and_expire(journal: Journal = journal, delay: int = delay) -> None:
            for _ in range(delay):
                await asyncio.sleep(0)
            await expire(journal)
            await collect(journal)

        outcome, _ = await asyncio.gather(restore(), wait_and_expire())
        outcomes.add(outcome)
        lake.clock.millis += 2 * HOUR_MILLIS
        await expire(journal)
        await collect(journal)
        if outcome == "restored":
            assert (await model_of(journal, journal.head.version))[str(T)] == before
        assert await files_of(lake) == await reachable(lake, journal)
        await check(journal)
    assert outcomes
