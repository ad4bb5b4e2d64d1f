"""Leases of writers: a transaction that lasts longer than the minimum age of collections keeps what it has uploaded."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from upkeep_lake import (
    T,
    append,
    check,
    collect,
    commit_rows,
    expire,
    files_of,
    make_lake,
    make_table,
    reachable,
)

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.clock import make_uuid7
from alpheus_journal.errors import Expired, InvalidInput
from alpheus_journal.journal import Journal
from alpheus_journal.log import leases
from alpheus_journal.log.leases import HeldLease
from alpheus_journal.model.answers import Collection, Committed
from alpheus_journal.model.expiry_rules import HOUR_MILLIS
from alpheus_journal.model.operations import (
    DISREGARDED_MAX,
    AppendFiles,
    ChangeMode,
    ChangeRows,
    FenceCollection,
    Operation,
    Transaction,
)
from alpheus_journal.testing import Lake, put_rows, raises

LEASE_MILLIS = 600_000


class Writer:
    """A transaction that appends rows under a lease."""

    def __init__(self, lake: Lake, journal: Journal) -> None:
        self._lake = lake
        self._journal = journal
        self.transaction = lake.transaction(journal)
        self.held: HeldLease | None = None
        self.operations: list[Operation] = []

    async def take_lease(self, **fields: object) -> Writer:
        self.held = await leases.take(
            self._journal.follower.log,
            self.transaction.begin_version,
            new_id=self._lake.identities.uuid4,
            lease_millis=LEASE_MILLIS,
            transaction_id=self.transaction.id,
            monotonic=lambda: self._lake.clock.millis / 1000,
            **fields,  # type: ignore[arg-type]
        )
        self.transaction = msgspec.structs.replace(self.transaction, lease_path=self.held.path)
        return self

    async def upload(self) -> Writer:
        self.operations.append(await append(self._lake, self._journal, T, id=self.transaction.id))
        return self

    def whole(self, **fields: object) -> Transaction:
        return msgspec.structs.replace(self.transaction, operations=tuple(self.operations), **fields)

    async def commit(self, journal: Journal | None = None) -> int:
        return (await (journal or self._journal).commit(self.whole())).version

    async def renew(self) -> None:
        assert self.held is not None
        await self.held.renew()

    async def count_files(self) -> int:
        id = self.transaction.id
        return len([info async for info in self._lake.storage.list("data/") if f"/{id}/" in info.path])


async def later(lake: Lake, millis: int = LEASE_MILLIS // 2, *writers: Writer) -> None:
    lake.clock.millis += millis
    for writer in writers:
        await writer.renew()


async def fence(lake: Lake, journal: Journal, age: int = 0) -> Collection:
    """Collect, with something to collect besides."""
    await lake.storage.put(f"node/{lake.identities.uuid4()}.arrow", b"left by a writer that was killed")
    lake.clock.millis += 1
    done = await collect(journal, age=age)
    assert done.fence_version is not None
    return done


async def disregarded_in(journal: Journal, version: int) -> tuple[str, ...]:
    (recorded,) = (await journal.follower.recorded_event(version)).transactions
    return recorded.disregards


async def test_commit_of_a_writer_with_a_lease_passes_fences() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    leased = await (await Writer(lake, journal).take_lease()).upload()
    bare = await Writer(lake, journal).upload()
    await later(lake, LEASE_MILLIS // 2, leased)
    done = await fence(lake, journal)
    assert done.kept_by["leases"].files >= 3  # data file, segment, lease
    assert await disregarded_in(journal, journal.head.version) == ()
    assert (await leased.count_files(), await bare.count_files()) == (1, 0)
    await raises(Expired, bare.commit(), kind="upload_expired")
    await leased.upload()  # more files, after the fence
    for _ in range(3):
        await later(lake, LEASE_MILLIS // 2, leased)
        await fence(lake, journal)
    other = await lake.open()
    assert await leased.commit(other) == other.head.version
    assert await leased.count_files() == 2
    assert leased.held is not None
    await leased.held.release()
    await fence(lake, journal)
    assert await leased.count_files() == 2
    await check(journal)
    assert await files_of(lake) == await reachable(lake, journal)
    await journal.close()
    await other.close()


async def test_files_of_a_killed_writer_go_when_its_lease_has_run_out() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    await later(lake, 2 * LEASE_MILLIS - 1)
    done = await fence(lake, journal)
    # A millisecond passes in `fence`: the lease has run out, and the fence names its transaction.
    assert await disregarded_in(journal, done.fence_version or 0) == (writer.transaction.id,)
    assert await writer.count_files() == 0
    assert [info async for info in lake.storage.list("lease/")] == []
    assert await files_of(lake) == await reachable(lake, journal)
    await journal.close()


async def test_a_lease_keeps_files_until_a_fence_disregards_it() -> None:
    """One millisecond earlier nothing happens. Later the lease has run out, but no fence has said so."""
    lake = make_lake()
    journal = await make_table(lake)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    await later(lake, 2 * LEASE_MILLIS - 2)
    done = await fence(lake, journal)
    assert await disregarded_in(journal, done.fence_version or 0) == ()
    lake.clock.millis += HOUR_MILLIS  # paused
    assert await writer.commit() == journal.head.version
    await writer.renew()  # which is no use any more, and no error
    assert await writer.count_files() == 1
    await check(journal)
    await journal.close()


async def test_a_writer_that_was_paused_past_its_lease_is_refused() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    await commit_rows(lake, journal)
    before = await reachable(lake, journal)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    await later(lake, 3 * LEASE_MILLIS)
    with failpoints.armed("collect.fenced", "pause@1") as fenced:
        collecting = asyncio.ensure_future(fence(lake, journal))
        await fenced.wait_for_hit()
        await writer.renew()  # it goes on, and its lease seems alive again
        error = await raises(Expired, writer.commit(await lake.open()), kind="upload_expired")
        assert "it had run out" in error.message
        fenced.release()
        await collecting
    assert await writer.count_files() == 0
    await raises(Expired, writer.renew(), kind="lease_expired")  # the collection has deleted the file
    error = await raises(Expired, writer.commit(), kind="upload_expired")
    assert "is gone" in error.message
    assert before <= await files_of(lake)
    await check(journal)
    await journal.close()


async def test_a_lease_that_is_renewed_during_a_collection_counts() -> None:
    """It had not run out before the fence, and it has when the leases are read again."""
    lake = make_lake()
    journal = await make_table(lake)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    await later(lake, LEASE_MILLIS)
    with failpoints.armed("collect.fenced", "pause@1") as fenced:
        collecting = asyncio.ensure_future(fence(lake, journal))
        await fenced.wait_for_hit()
        lake.clock.millis += 2 * LEASE_MILLIS
        fenced.release()
        await collecting
    assert await writer.count_files() == 1
    await writer.commit()
    await check(journal)
    await journal.close()


async def test_a_commit_between_the_marks_of_a_collection_keeps_its_files() -> None:
    """The writer deletes its lease between the reading of the slots and the second reading of the leases."""
    lake = make_lake()
    journal = await make_table(lake)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    await later(lake, LEASE_MILLIS // 2, writer)
    other = await lake.open()
    with failpoints.armed("collect.fenced", "pause@1") as fenced:
        collecting = asyncio.ensure_future(fence(lake, journal))
        await fenced.wait_for_hit()
        await writer.commit(other)
        assert writer.held is not None
        await writer.held.release()
        fenced.release()
        await collecting
    assert await writer.count_files() == 1
    await check(journal)
    await journal.close()
    await other.close()


async def test_a_second_lease_of_a_transaction_is_enough() -> None:
    """A fence disregards a transaction only when all its leases have run out."""
    lake = make_lake()
    journal = await make_table(lake)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    first = writer.held
    await writer.take_lease()
    for _ in range(5):
        await later(lake, LEASE_MILLIS // 2, writer)
    done = await fence(lake, journal)
    assert await disregarded_in(journal, done.fence_version or 0) == ()
    assert first is not None
    assert await lake.storage.exists(first.path)
    await writer.commit()
    await check(journal)
    await journal.close()


async def test_only_a_lease_of_the_transaction_counts() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    other = await Writer(lake, journal).take_lease()
    reader = await leases.take(
        journal.follower.log, journal.head.version, new_id=lake.identities.uuid4, lease_millis=LEASE_MILLIS
    )
    await later(lake, LEASE_MILLIS // 2, writer)
    await fence(lake, journal)
    damaged = fmt.lease_path(lake.identities.uuid4())
    await lake.storage.put(damaged, b"no lease")
    assert other.held is not None
    for path, why in [
        (other.held.path, f"is of transaction {other.transaction.id}"),
        (reader.path, "is a reader's"),
        (damaged, "corrupt"),
        (fmt.lease_path(lake.identities.uuid4()), "is gone"),
        ("", "has to begin two minutes after"),
    ]:
        asked = journal.commit(writer.whole(lease_path=path))
        error = await raises(Expired, asked, kind="upload_expired")
        assert why in error.message or why == "corrupt"
    await raises(InvalidInput, journal.commit(writer.whole(lease_path="pin/x")), kind="bad_argument")
    await lake.storage.delete(damaged)
    assert await writer.commit() == journal.head.version
    await journal.close()


async def test_a_transaction_that_a_later_lease_should_save() -> None:
    """The lease was taken after a fence that was too late for it: a fence that names no such lease is passed, so the
    writer must look at the head itself (`lease_transaction`). What the journal sees is the begin version."""
    lake = make_lake()
    journal = await make_table(lake)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    await later(lake, 3 * LEASE_MILLIS)
    done = await fence(lake, journal)
    assert await disregarded_in(journal, done.fence_version or 0) == (writer.transaction.id,)
    writer.transaction = msgspec.structs.replace(writer.transaction, begin_version=journal.head.version)
    error = await raises(
        Expired, writer.commit(), kind="upload_expired"
    )  # it began above the fence, its lease below
    assert "is gone" in error.message
    assert writer.held is not None
    await lake.storage.put(writer.held.path, leases.encode_lease(writer.held.lease))
    error = await raises(Expired, writer.commit(), kind="upload_expired")
    assert f"version {done.fence_version} was made for a collection" in error.message
    await journal.close()


async def test_a_lease_of_an_expired_version_still_counts() -> None:
    """Not if a version after it has expired: that may have been a fence that disregards the transaction."""
    lake = make_lake()
    journal = await make_table(lake)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    lake.clock.millis += 1
    await lake.commit(journal, lake.namespace("b"))
    lake.clock.millis += 1
    await expire(journal, keep=1)
    await fence(lake, journal)
    writer.transaction = msgspec.structs.replace(writer.transaction, begin_version=journal.head.version)
    assert (
        await writer.commit() == journal.head.version
    )  # the fence is kept, as is all above the lease's version
    late = await (await Writer(lake, journal).take_lease()).upload()
    for name in "cd":
        await lake.commit(journal, lake.namespace(name))
        lake.clock.millis += 1
    await expire(journal, keep=1)
    await fence(lake, journal)
    late.transaction = msgspec.structs.replace(late.transaction, begin_version=journal.head.version)
    error = await raises(Expired, late.commit(await lake.open()), kind="upload_expired")
    assert "expired" in error.message
    await journal.close()


async def test_a_lease_keeps_change_files_and_segments_of_removed_files() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    await commit_rows(lake, journal)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    (added,) = writer.operations
    assert isinstance(added, AppendFiles)
    changes = await put_rows(
        lake.storage,
        lake.identities,
        table_id=added.table_id,
        transaction_id=writer.transaction.id,
        row_count=1,
    )
    writer.operations = [
        ChangeRows(
            namespace="a",
            name="t",
            table_id=added.table_id,
            base_sequence=1,
            mode=ChangeMode.DELETE,
            segments=added.segments,
            changes=(changes,),
        )
    ]
    await later(lake, LEASE_MILLIS // 2, writer)
    await fence(lake, journal)
    assert await writer.count_files() == 2
    await journal.close()


async def test_segments_from_before_the_transaction_are_collected() -> None:
    """Segments tell no owner, so all younger ones stay, but no older ones."""
    lake = make_lake()
    journal = await make_table(lake)
    old = f"manifest/{lake.identities.uuid4()}/{lake.identities.uuid4()}.arrow"
    await lake.storage.put(old, b"old")
    lake.clock.millis += 200_000
    writer = await (await Writer(lake, journal).take_lease()).upload()
    young = fmt.manifest_path(old.split("/")[1], lake.identities.uuid4())
    await lake.storage.put(young, b"young")
    await later(lake, LEASE_MILLIS // 2, writer)
    await fence(lake, journal)
    assert (await lake.storage.exists(old), await lake.storage.exists(young)) == (False, True)
    await writer.commit()
    await journal.close()


async def test_a_commit_on_a_staged_fence_waits() -> None:
    """Whether a fence that is being published disregards it is judged when the fence is durable."""
    lake = make_lake()
    journal = await make_table(lake)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    await later(lake, 3 * LEASE_MILLIS)
    operation = FenceCollection(cutoff_millis=lake.clock.millis, disregarded=(writer.transaction.id,))
    fencing = msgspec.structs.replace(lake.transaction(journal), operations=(operation,))
    committer = journal._committer
    with failpoints.armed("commit.root_answered", "pause@1") as published:
        first = asyncio.ensure_future(committer.commit_group([fencing]))
        await published.wait_for_hit()
        with failpoints.armed("commit.ahead_ready", "pause@1") as ready:
            second = asyncio.ensure_future(committer.commit_group([writer.whole()]))
            await ready.wait_for_hit()
            published.release()
            (done,) = await first
            ready.release()
            (nothing,) = await second
    assert isinstance(done, Committed)
    assert nothing is None  # not judged
    (refused,) = await committer.commit_group([writer.whole()])
    assert isinstance(refused, Expired)
    await journal.close()


async def test_a_fence_and_the_commit_that_it_disregards_in_one_version() -> None:
    """The collection reads that version after its fence, so the commit is safe."""
    lake = make_lake()
    journal = await make_table(lake)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    await later(lake, 3 * LEASE_MILLIS)
    operation = FenceCollection(cutoff_millis=lake.clock.millis, disregarded=(writer.transaction.id,))
    fencing = msgspec.structs.replace(lake.transaction(journal), operations=(operation,))
    answers = await journal._committer.commit_group([fencing, writer.whole()])
    assert {answer.version for answer in answers if isinstance(answer, Committed)} == {journal.head.version}
    await check(journal)
    await journal.close()


@pytest.mark.parametrize("given", [("x",), ("",)])
async def test_a_fence_names_transactions_by_ids(given: tuple[str, ...]) -> None:
    lake = make_lake()
    journal = await make_table(lake)
    await raises(InvalidInput, lake.commit(journal, FenceCollection(cutoff_millis=1, disregarded=given)))
    many = tuple(lake.identities.uuid7() for _ in range(DISREGARDED_MAX + 1))
    await raises(InvalidInput, lake.commit(journal, FenceCollection(cutoff_millis=1, disregarded=many)))
    await lake.commit(journal, FenceCollection(cutoff_millis=1, disregarded=many[1:]))
    await journal.close()


async def test_saved_transactions_name_their_lease() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    writer = await (await Writer(lake, journal).take_lease()).upload()
    await journal.save_transaction(writer.whole())
    saved = await journal.load_transaction(writer.transaction.id)
    assert writer.held is not None
    assert saved.transaction.lease_path == writer.held.path
    writer.held.leave()
    await raises(Expired, writer.renew(), kind="lease_expired")
    taken = await leases.take_over(lake.storage, writer.held.path, writer.transaction.id)
    assert taken is not None
    assert await leases.take_over(lake.storage, writer.held.path, lake.identities.uuid7()) is None
    await taken.renew()
    await taken.release()
    assert await leases.take_over(lake.storage, writer.held.path, writer.transaction.id) is None
    await journal.close()


async def test_a_lease_keeps_no_segment_that_is_older_than_the_id_of_its_transaction() -> None:
    """The clock that made the id was an hour ahead. A collection may delete the segment once it has read the slots."""
    lake = make_lake()
    journal = await make_table(lake)
    writer = Writer(lake, journal)
    ahead = make_uuid7(lake.clock.millis + HOUR_MILLIS, 1)
    writer.transaction = msgspec.structs.replace(writer.transaction, id=ahead)
    await (await writer.take_lease()).upload()
    await later(lake, 2 * HOUR_MILLIS, writer)
    with failpoints.armed("collect.marked", "pause") as marked:
        collecting = asyncio.create_task(fence(lake, journal))
        await marked.wait_for_hit()
        other = await lake.open()
        error = await raises(Expired, writer.commit(other), kind="upload_expired")
        assert "clock" in error.hint
        marked.release()
        assert (await collecting).deleted["manifest"].files == 1
    await check(journal)
    await journal.close()
    await other.close()
