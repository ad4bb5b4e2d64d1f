"""Leases of writers as clients take them: for imports, saved transactions, and jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from alpheus_test_servers import S3Server

import alpheus
import alpheus.aio
from alpheus.aio import AsyncCatalog, session_of
from alpheus.importing import copy
from alpheus.importing.results import ImportProgress
from alpheus.models import Collection
from alpheus.session.leases import lease_transaction
from alpheus_journal import failpoints
from alpheus_journal.collect import collection
from alpheus_journal.collect.store_time import read_store_time
from alpheus_journal.errors import (
    AlpheusError,
    Conflict,
    Denied,
    Expired,
    InvalidInput,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.operations import Transaction
from alpheus_journal.testing import raises

LATER_MILLIS = 5_000
ROWS = pa.table({"n": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture(params=["local", "lmdb", "s3"])
async def catalog(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncCatalog]:
    """Yield a catalog whose store says that all files are some seconds old."""

    async def read_later(*given: object) -> int:
        return await read_store_time(*given) + LATER_MILLIS  # type: ignore[arg-type]

    monkeypatch.setattr(collection, "read_store_time", read_later)
    match request.param:
        case "local":
            url = f"file://{tmp_path}/lake"
        case "lmdb":
            url = f"lmdb://{tmp_path}/lake"
        case _:
            server: S3Server = request.getfixturevalue("s3_server")
            url = server.url()
    opened = await alpheus.aio.create(url)
    await opened.create_namespace("a")
    await opened.create_table("a.t", ROWS.schema)
    yield opened
    await opened.close()


async def collect(catalog: AsyncCatalog) -> Collection:
    """Collect by the minimum age 0, with something to collect."""
    session = session_of(catalog)
    storage = await session.storage()
    await storage.put(f"node/{session.identities.uuid4()}.arrow", b"left by a writer that was killed")
    done = await catalog.admin.collect(minimum_age=0, allow_short=True)
    assert done.fence_version is not None
    return done


async def paths_of(catalog: AsyncCatalog, prefix: str) -> list[str]:
    storage = await session_of(catalog).storage()
    return [info.path async for info in storage.list(prefix)]


async def make_source(tmp_path: Path, files: int = 3) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(files):
        pq.write_table(ROWS, source / f"{number}.parquet")
    return source


async def import_two_files(catalog: AsyncCatalog, source: Path) -> str:
    """Begin an import that ends after two files as if it were killed. Return the id of its transaction."""
    ids: list[str] = []

    def stop(progress: ImportProgress) -> None:
        if progress.files == 2:
            raise KeyError("killed")

    with pytest.raises(KeyError):
        await catalog.import_table("a.new", str(source), "parquet", on_begin=ids.append, on_progress=stop)
    return ids[0]


async def count_rows(catalog: AsyncCatalog, name: str = "a.t") -> int:
    return (await catalog.read(name)).num_rows


async def test_an_import_passes_collections(
    catalog: AsyncCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection of minimum age 0 runs after each part."""
    monkeypatch.setattr(copy, "PART_SIZE_BYTES", 1)
    source = await make_source(tmp_path)
    loop = asyncio.get_running_loop()
    fences = []

    def collect_now(progress: object) -> None:
        fences.append(asyncio.run_coroutine_threadsafe(collect(catalog), loop).result())

    done = await catalog.import_table("a.new", str(source), "parquet", on_progress=collect_now)
    assert len(fences) >= 3
    assert done.rows == await count_rows(catalog, "a.new") == 9
    assert await paths_of(catalog, "lease/") == []
    assert (await collect(catalog)).deleted["manifest"].files == 3  # the marks
    assert await count_rows(catalog, "a.new") == 9


async def test_a_resumed_import_takes_the_lease_over(
    catalog: AsyncCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "PART_SIZE_BYTES", 1)
    source = await make_source(tmp_path)
    transaction_id = await import_two_files(catalog, source)
    (lease,) = await paths_of(catalog, "lease/")
    await collect(catalog)
    other = await alpheus.aio.connect(catalog.url)
    done = await other.import_table("a.new", str(source), "parquet", resume=transaction_id)
    assert (done.resumed_files, done.rows) == (2, 9)
    assert await count_rows(catalog, "a.new") == 9
    assert await paths_of(catalog, "lease/") == []
    assert lease.startswith("lease/")
    await other.close()


async def test_an_import_whose_lease_is_gone_cannot_go_on(
    catalog: AsyncCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may have been collected. That is said before anything is copied again."""
    monkeypatch.setattr(copy, "PART_SIZE_BYTES", 1)
    source = await make_source(tmp_path)
    transaction_id = await import_two_files(catalog, source)
    (lease,) = await paths_of(catalog, "lease/")
    await (await session_of(catalog).storage()).delete(lease)
    await collect(catalog)
    resumed = catalog.import_table("a.new", str(source), "parquet", resume=transaction_id)
    error = await raises(Expired, resumed, kind="upload_expired")
    assert "discard it and import the source again" in error.hint
    assert await paths_of(catalog, "lease/") == []


async def test_an_import_that_fails_leaves_no_lease(catalog: AsyncCatalog, tmp_path: Path) -> None:
    source = await make_source(tmp_path)

    def create(id: str) -> None:
        asyncio.run_coroutine_threadsafe(catalog.create_table("a.new", ROWS.schema), loop).result()

    loop = asyncio.get_running_loop()
    with pytest.raises(Conflict):
        await catalog.import_table("a.new", str(source), "parquet", on_begin=create)
    assert await paths_of(catalog, "lease/") == []


async def test_a_transaction_passes_a_collection_only_with_a_lease(catalog: AsyncCatalog) -> None:
    async with catalog.transaction() as leased:
        await leased.core.hold_lease()
        await leased.core.hold_lease()  # once
        await leased.append("a.t", ROWS)
        bare = catalog.transaction()
        await bare.__aenter__()
        await bare.append("a.t", ROWS)
        (lease,) = await paths_of(catalog, "lease/")
        await collect(catalog)
        await raises(Expired, bare.commit(), kind="upload_expired")
        (shown,) = await catalog.admin.leases()
        assert (shown.transaction_id, shown.state, f"lease/{shown.id}.arrow") == (leased.id, "held", lease)
        await leased.append("a.t", ROWS)
    assert leased.result is not None
    assert await count_rows(catalog) == 6
    assert await paths_of(catalog, "lease/") == []


async def test_a_lease_that_is_taken_too_late_is_refused(catalog: AsyncCatalog) -> None:
    tx = catalog.transaction()
    await tx.__aenter__()
    await tx.append("a.t", ROWS)
    await collect(catalog)
    await raises(Expired, tx.core.hold_lease(), kind="upload_expired")
    assert await paths_of(catalog, "lease/") == []
    tx.abandon()
    fresh = catalog.transaction()
    await fresh.__aenter__()
    await fresh.core.hold_lease()  # nothing was uploaded yet, so its time does not matter
    fresh.abandon()
    given = catalog.transaction(id=session_of(catalog).identities.uuid7())
    await given.__aenter__()
    await raises(Expired, given.core.hold_lease(), kind="upload_expired")  # it may have run before


async def test_the_end_of_a_transaction_ends_its_lease(catalog: AsyncCatalog) -> None:
    tx = catalog.transaction()
    await tx.__aenter__()
    await tx.core.hold_lease()
    lease = tx.core.lease
    tx.abandon()
    assert lease is not None
    await asyncio.sleep(0)  # `abandon` lets the loop begin with it
    await lease.release()
    assert await paths_of(catalog, "lease/") == []
    async with catalog.transaction() as tx:
        await tx.core.hold_lease()  # and nothing to commit
    assert await paths_of(catalog, "lease/") == []
    tx = catalog.transaction()
    await tx.__aenter__()
    await tx.core.hold_lease()
    await tx.append("a.t", ROWS)
    await catalog.drop_table("a.t")
    await raises(Conflict, tx.commit())
    assert await paths_of(catalog, "lease/") == []


async def test_a_saved_transaction_is_resumed_with_its_lease(catalog: AsyncCatalog) -> None:
    async with catalog.transaction() as tx:
        await tx.core.hold_lease()
        await tx.append("a.t", ROWS)
        await tx.save()
    (lease,) = await paths_of(catalog, "lease/")
    await collect(catalog)
    async with catalog.resume(tx.id) as again:
        assert again.core.lease is not None
        assert again.core.lease.path == lease
        await collect(catalog)
    assert await count_rows(catalog) == 3
    assert await paths_of(catalog, "lease/") == []


async def test_the_lease_is_left_while_the_outcome_is_unknown(
    catalog: AsyncCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(transaction: object) -> None:
        raise OutcomeUnknown("lost", transaction_id=tx.id)

    tx = catalog.transaction()
    await tx.__aenter__()
    await tx.core.hold_lease()
    await tx.append("a.t", ROWS)
    monkeypatch.setattr(session_of(catalog), "commit", lose)
    await raises(OutcomeUnknown, tx.commit())
    assert len(await paths_of(catalog, "lease/")) == 1


@pytest.mark.parametrize("catalog", ["local"], indirect=True)
async def test_a_lease_is_taken_where_the_begin_version_has_expired(catalog: AsyncCatalog) -> None:
    async with await alpheus.aio.connect(catalog.url) as other, other.transaction() as tx:
        await catalog.create_namespace("b")
        await catalog.admin.expire(older_than=0, keep=1)
        await tx.core.hold_lease()
        assert tx.core.lease is not None
        assert tx.core.lease.version == await catalog.version()
        assert len(await paths_of(catalog, "lease/")) == 1


async def test_a_writers_lease_is_renewed(catalog: AsyncCatalog) -> None:
    session = session_of(catalog)
    begin = await session.resolve(None)
    lease = await lease_transaction(
        session, session.identities.uuid7(), begin.version, is_first=True, seconds=1.5
    )
    (before,) = await catalog.admin.leases()
    await asyncio.sleep(2.0)
    (after,) = await catalog.admin.leases()
    assert after.renewed_at > before.renewed_at
    await lease.release()
    await lease.release()
    assert await paths_of(catalog, "lease/") == []


@pytest.mark.parametrize("catalog", ["local"], indirect=True)
@pytest.mark.parametrize("how", ["abandon", "close"])
async def test_a_lease_outlives_its_holder_while_a_commit_is_in_flight(
    catalog: AsyncCatalog, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection that finds the lease gone takes the commit for one that it can see."""
    other = await alpheus.aio.connect(catalog.url)
    sent, answered = asyncio.Event(), asyncio.Event()

    async def wait(transaction: object) -> None:
        sent.set()
        await answered.wait()
        raise OutcomeUnknown("lost", transaction_id=tx.id)

    monkeypatch.setattr(session_of(other), "commit", wait)
    tx = other.transaction()
    await tx.__aenter__()
    await tx.core.hold_lease()
    await tx.append("a.t", ROWS)
    committing = asyncio.create_task(tx.commit())
    await sent.wait()
    if how == "abandon":
        tx.abandon()
        await asyncio.sleep(0.1)
    else:
        await other.close()
    assert len(await paths_of(catalog, "lease/")) == 1
    answered.set()
    await raises(OutcomeUnknown, committing)
    assert len(await paths_of(catalog, "lease/")) == 1
    await other.close()


@pytest.mark.parametrize("catalog", ["local"], indirect=True)
async def test_a_commit_that_loses_its_lease_in_flight_would_lose_its_files(catalog: AsyncCatalog) -> None:
    """A block of work is repeated while a collection commits its fence, and is abandoned while its commit is sent."""
    id = session_of(catalog).identities.uuid7()
    killed = catalog.transaction(id=id)
    await killed.__aenter__()
    await killed.append("a.t", ROWS)
    try:
        fence, fenced = failpoints.arm("commit.staged", "pause"), failpoints.arm("collect.fenced", "pause")
        other = await alpheus.aio.connect(catalog.url)
        collecting = asyncio.create_task(collect(other))
        await fence.wait_for_hit()  # the marks before the fence are made
        tx = catalog.transaction(id=id)
        await tx.__aenter__()
        await tx.core.hold_lease()
        await tx.append("a.t", ROWS)
        fence.release()
        await fenced.wait_for_hit()
        staged = failpoints.arm("commit.staged", "pause")
        committing = asyncio.create_task(tx.commit())
        await staged.wait_for_hit()
        tx.abandon()
        await asyncio.sleep(0.1)
        fenced.release()
        await collecting
        staged.release()
        await committing
    finally:
        failpoints.disarm()
    assert await count_rows(catalog) == 3
    await other.close()


@pytest.mark.parametrize("catalog", ["local"], indirect=True)
async def test_a_process_that_ends_leaves_the_lease_of_a_saved_transaction_to_others(
    catalog: AsyncCatalog,
) -> None:
    async with catalog.transaction() as tx:
        await tx.core.hold_lease()
        await tx.append("a.t", ROWS)
        await tx.save()
    async with catalog.resume(tx.id):
        other = await alpheus.aio.connect(catalog.url)
        await other.resume(tx.id).__aenter__()
        await other.close()
        assert len(await paths_of(catalog, "lease/")) == 1
    assert await paths_of(catalog, "lease/") == []


@pytest.mark.parametrize("catalog", ["local"], indirect=True)
async def test_no_lease_is_held_for_a_transaction_that_ended_meanwhile(catalog: AsyncCatalog) -> None:
    tx = catalog.transaction()
    await tx.__aenter__()
    with failpoints.armed("lease.written", "pause") as written:
        holding = asyncio.create_task(tx.core.hold_lease())
        await written.wait_for_hit()
        tx.abandon()
        written.release()
        error = await raises(InvalidInput, holding)
    assert "is over" in error.message
    assert await paths_of(catalog, "lease/") == []


@pytest.mark.parametrize("catalog", ["local"], indirect=True)
async def test_an_import_that_cannot_be_saved_renews_no_lease(
    catalog: AsyncCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(transaction: object) -> None:
        raise Unavailable("lost")

    source = await make_source(tmp_path)
    monkeypatch.setattr(session_of(catalog), "save_transaction", lose)
    await raises(Unavailable, catalog.import_table("a.new", str(source), "parquet"))
    await asyncio.sleep(0.1)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("renew lease/")]


@pytest.mark.parametrize("catalog", ["local"], indirect=True)
@pytest.mark.parametrize(
    "error", [InvalidInput("no", kind="storage_unreachable"), Denied("no")], ids=["unreachable", "denied"]
)
async def test_a_client_that_cannot_write_the_storage_commits_a_saved_transaction(
    catalog: AsyncCatalog, error: AlpheusError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its daemon can, and reads the lease."""

    async def refuse() -> None:
        raise error

    async with catalog.transaction() as tx:
        await tx.core.hold_lease()
        await tx.append("a.t", ROWS)
        await tx.save()
    await collect(catalog)
    other = await alpheus.aio.connect(catalog.url)
    monkeypatch.setattr(session_of(other), "storage", refuse)
    async with other.resume(tx.id) as again:
        assert again.core.lease is None
    assert await count_rows(catalog) == 3
    await other.close()


@pytest.mark.parametrize("catalog", ["local"], indirect=True)
async def test_a_catalog_that_is_closed_does_not_deny_a_commit_in_doubt(
    catalog: AsyncCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await alpheus.aio.connect(catalog.url)
    access, lost = session_of(other).access, asyncio.Event()
    commit = access.commit

    async def lose(transaction: Transaction) -> Committed:
        await commit(transaction)
        lost.set()
        raise OutcomeUnknown("lost", transaction_id=transaction.id)

    monkeypatch.setattr(access, "commit", lose)
    creating = asyncio.create_task(other.create_namespace("b"))
    await lost.wait()
    await other.close()
    await raises(OutcomeUnknown, creating)
