"""Versions with wrong times: a writer whose clock is in the future, the writers after it, and the repair."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from alpheus_journal.clock import SystemClock, make_uuid7
from alpheus_journal.errors import AlpheusError, Expired, InvalidInput, NotFound
from alpheus_journal.journal import Journal
from alpheus_journal.log.leases import ID_AHEAD_MILLIS_MAX
from alpheus_journal.log.times import epochs, version_at
from alpheus_journal.model.answers import CheckSummary, Timestamp
from alpheus_journal.model.definitions import TimeMark
from alpheus_journal.model.operations import AppendFiles, FenceCollection, Repair, Transaction
from alpheus_journal.repair import Asked, carry_out, plan, survey
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.storage.posix import Syscalls
from alpheus_journal.testing import Lake, put_rows, raises

DAY = 24 * 3600 * 1000
AHEAD = 400 * DAY


async def found(millis: int, times: list[int], marks: list[int], oldest: int = 0) -> int | type[AlpheusError]:
    async def created_at(version: int) -> int:
        assert version >= oldest
        return times[version]

    try:
        made = [TimeMark(version=version, up_to_millis=max(times[:version])) for version in marks]
        return await version_at(millis, made, oldest, len(times) - 1, created_at)
    except AlpheusError as error:
        return type(error)


async def test_a_time_is_found_in_the_newest_count_that_has_it(
    lane_count: Callable[[int, int], int],
) -> None:
    """A search of every version finds the same, for random clocks, marks and expiry."""
    rng = random.Random(5)
    for _ in range(lane_count(300, 20_000)):
        times, marks, now = [], [], 1000
        for version in range(rng.randrange(1, 30)):
            if version and rng.random() < 0.1:
                marks.append(version)
                now = rng.randrange(900, 1400)
            now += rng.choice((0, 0, 1, 5, 100))
            times.append(now)
        oldest = rng.randrange(len(times)) if rng.random() < 0.3 else 0
        for _ in range(10):
            millis = rng.randrange(850, 2000)
            expected: int | type[AlpheusError] = Expired if oldest else NotFound
            for first, last in epochs([TimeMark(version=v, up_to_millis=0) for v in marks], len(times) - 1):
                fitting = [v for v in range(max(first, oldest), last + 1) if times[v] <= millis]
                if fitting:
                    expected = fitting[-1]
                    break
            assert await found(millis, times, marks, oldest) == expected


async def sound(journal: Journal) -> None:
    findings = [item async for item in journal.check() if not isinstance(item, CheckSummary)]
    assert findings == []


async def times_of(journal: Journal) -> list[int]:
    return [(await journal.resolve(version)).created_at_millis for version in range(journal.head.version + 1)]


async def ahead() -> tuple[Lake, Journal, Journal, int]:
    """Make versions 0 to 3 by a right clock, 4 by a clock that is 400 days ahead, and 5 to 24 by the right clock.
    Return the lake, its journal, another process's journal with the catalog in memory, and the right time."""
    lake = Lake()
    lake.storage = MemoryStorage(clock=lake.clock.now_millis)
    journal = await lake.create()
    for number in range(3):
        lake.clock.millis += 1000
        await lake.commit(journal, lake.namespace(f"n{number}"))
    follower = await lake.open()
    await follower.load_state()
    right = lake.clock.millis
    lake.clock.millis = right + AHEAD
    await lake.commit(journal, lake.namespace("far"))
    lake.clock.millis = right
    for number in range(20):
        lake.clock.millis = right + 1000 * number
        await lake.commit(journal, lake.namespace(f"later{number}"))
    return lake, journal, follower, lake.clock.millis


async def repaired(lake: Lake) -> int | None:
    made = plan(await survey(lake.storage, clock=lake.clock), Asked(times=True))
    assert made.is_complete
    done = await carry_out(lake.storage, made, clock=lake.clock, identities=lake.identities)
    return done.version


async def test_many_go_on_after_a_writer_from_the_future() -> None:
    lake, journal, follower, right = await ahead()
    times = await times_of(journal)
    assert times[:4] == sorted(set(times[:4]))
    assert times[3] < right
    assert times[4] > right + AHEAD - DAY
    assert times[4:] == [times[4] + number for number in range(21)]
    assert journal.head_ahead_millis == times[-1] - lake.clock.millis
    assert (await journal.info()).head_ahead_millis == times[-1] - lake.clock.millis
    assert (await follower.refresh()).version == 24
    await sound(journal)
    # Time travel follows the recorded times: right times are found, and later versions are in the future.
    assert (await journal.resolve(Timestamp(times[2] - 1))).version == 1
    assert (await journal.resolve(Timestamp(right))).version == 3


async def test_a_repair_forgets_the_cutoff_of_a_wrong_clock() -> None:
    """A collection under a clock that is ahead would refuse every upload until that time."""
    lake, journal, _, right = await ahead()
    table = lake.table("a", "t")
    await lake.commit(journal, lake.namespace("a"), table)
    lake.clock.millis = right + DAY
    await lake.commit(journal, FenceCollection(cutoff_millis=right + DAY // 2))
    lake.clock.millis = right

    async def append() -> int:
        transaction = lake.transaction(journal)
        segment = await put_rows(
            lake.storage, lake.identities, table_id=table.table_id, transaction_id=transaction.id
        )
        operation = AppendFiles(namespace="a", name="t", table_id=table.table_id, segments=(segment,))
        return (
            await journal.commit(
                Transaction(
                    id=transaction.id, begin_version=transaction.begin_version, operations=(operation,)
                )
            )
        ).version

    await raises(Expired, append(), kind="upload_expired")
    assert await repaired(lake) is not None
    await journal.refresh()
    cutoff = (await journal.info()).definition.collected_before_millis
    assert right <= cutoff <= lake.clock.millis, "no later than the repair"
    await raises(Expired, append(), kind="upload_expired")
    lake.clock.millis += 2 * ID_AHEAD_MILLIS_MAX
    assert await append() == journal.head.version


async def test_a_repair_of_times_keeps_a_cutoff_that_has_passed() -> None:
    """A collection may still be deleting by it."""
    lake, journal, _, right = await ahead()
    lake.clock.millis = right
    await lake.commit(journal, FenceCollection(cutoff_millis=right - DAY))
    assert await repaired(lake) is not None
    await journal.refresh()
    assert (await journal.info()).definition.collected_before_millis == right - DAY


async def test_times_count_anew_from_a_repair_on() -> None:
    lake, journal, follower, right = await ahead()
    before = await times_of(journal)
    assert await repaired(lake) == 25
    assert (await journal.refresh()).version == 25
    (recorded,) = (await journal.follower.root(25)).transactions
    assert recorded.actions[0].operation == Repair(head_version=24, times_up_to_millis=before[-1])
    assert [action.type for action in recorded.actions] == ["REPAIR"]
    for number in range(5):
        lake.clock.millis += 5000
        await lake.commit(journal, lake.namespace(f"after{number}"))
    times = await times_of(journal)
    assert times[:25] == before
    assert times[25:] == sorted(set(times[25:]))
    assert right <= times[25]
    assert times[30] < right + DAY
    assert journal.head_ahead_millis == 0
    for reader in (journal, follower, await lake.open()):
        assert (await reader.resolve(Timestamp(times[30]))).version == 30
        assert (await reader.resolve(Timestamp(times[27] - 1))).version == 26
        assert (await reader.resolve(Timestamp(times[25]))).version == 25
        assert (await reader.resolve(Timestamp(times[25] - 1))).version == 3
        assert (await reader.resolve(Timestamp(before[1]))).version == 1
        await raises(NotFound, reader.resolve(Timestamp(before[0] - 1)), kind="no_version")
    assert follower.state is not None
    assert follower.state.version == 30
    await sound(journal)
    # A second repair adds its marks to the first ones.
    lake.clock.millis += 2 * AHEAD
    await lake.commit(journal, lake.namespace("far-again"))
    lake.clock.millis -= 2 * AHEAD
    assert await repaired(lake) == 32
    head = await journal.refresh()
    assert [mark.version for mark in await journal.follower.time_marks()] == [25, 32]
    assert (await journal.resolve(Timestamp(head.created_at_millis))).version == 32
    assert (await journal.resolve(Timestamp(times[27] - 1))).version == 26
    await lake.expire(below=28)
    late = await lake.open()
    assert (await late.resolve(Timestamp(times[29]))).version == 29
    error = await raises(Expired, late.resolve(Timestamp(times[27] - 1)))
    assert error.oldest == 28
    await sound(late)


async def test_nothing_to_repair_where_times_are_right() -> None:
    lake = Lake()
    await lake.create()
    made = plan(await survey(lake.storage, clock=lake.clock), Asked(times=True))
    assert (made.problems, made.steps) == ((), ())


async def test_times_that_went_on_in_the_future_may_be_right() -> None:
    """This machine's clock is wrong instead: the repair shows the evidence for that."""
    lake = Lake()
    journal = await lake.create()
    for day in range(10):
        lake.clock.millis += DAY
        await lake.commit(journal, lake.namespace(f"day{day}"))
    lake.clock.millis -= 5 * DAY + 1
    (problem,) = plan(await survey(lake.storage, clock=lake.clock), Asked(times=True)).problems
    assert "Versions 6 to 10 have times in the future that span 4 days, 0:00:0" in problem.message
    lake, _, _, _ = await ahead()
    (problem,) = plan(await survey(lake.storage, clock=lake.clock), Asked(times=True)).problems
    assert "went on" not in problem.message


async def test_a_repair_of_times_says_what_it_needs() -> None:
    lake, journal, _, _ = await ahead()
    made = plan(await survey(lake.storage, clock=lake.clock), Asked())
    (problem,) = made.problems
    assert (problem.kind, problem.version, problem.mended_by) == ("clock_skew", 24, "alpheus repair --times")
    assert ", 399 days, 23:59:" in problem.message
    assert made.steps == ()
    # Another process has written since, so the repair writes nothing: the times would change that process's version.
    made = plan(await survey(lake.storage, clock=lake.clock), Asked(times=True))
    await lake.commit(journal, lake.namespace("between"))
    await raises(
        InvalidInput,
        carry_out(lake.storage, made, clock=lake.clock, identities=lake.identities),
    )
    assert (await journal.refresh()).version == 25
    assert await journal.follower.time_marks() == ()


async def test_ids_are_found_whatever_the_times_say() -> None:
    """Ids of a client from the future are found before and after times restart, and so are ids with right times."""
    lake, journal, _, right = await ahead()
    far_id = (await journal.follower.root(4)).transactions[0].id
    near_id = (await journal.follower.root(2)).transactions[0].id
    late_id = (await journal.follower.root(20)).transactions[0].id
    await repaired(lake)
    for millis in (right + 10_000, right + AHEAD + 10 * DAY):
        lake.clock.millis = millis
        fresh = await lake.open()
        for number in range(3):
            await lake.commit(fresh, lake.namespace(f"at{millis}n{number}"))
        for again in (await lake.open(), fresh):
            for id, version in ((far_id, 4), (near_id, 2), (late_id, 20)):
                outcome = await again.outcome(id, certain=True)
                assert outcome.commit is not None
                assert outcome.commit.version == version
            unknown = make_uuid7(lake.clock.millis, 77)
            assert (await again.outcome(unknown, certain=True)).state == "unknown"


async def test_a_client_with_a_clock_in_the_future_is_refused_by_others() -> None:
    lake = Lake()
    journal = await lake.create()
    transaction = lake.transaction(journal, lake.namespace("a"))
    fields = {name: getattr(transaction, name) for name in transaction.__struct_fields__}
    fields["id"] = make_uuid7(lake.clock.millis + AHEAD, 1)
    await raises(InvalidInput, journal.commit(Transaction(**fields)), kind="clock_skew")


class ServersClock(Syscalls):
    """A network file system, whose files get their times from the server's clock."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.ahead_seconds = 0
        self.stall_seconds = self.stalled_seconds = 0

    def time_nanos(self) -> int:
        return super().time_nanos() + self.stalled_seconds * 10**9

    def fsync(self, fd: int, path: str) -> None:
        super().fsync(fd, path)
        self.stalled_seconds += self.stall_seconds

    def file_system_kind(self, fd: int) -> str:
        return self.kind

    def fstat(self, fd: int) -> os.stat_result:
        info = os.fstat(fd)
        fields = {name: getattr(info, name) for name in dir(info) if name.startswith("st_")}
        fields["st_mtime_ns"] += (self.ahead_seconds + self.stalled_seconds) * 10**9
        return os.stat_result(tuple(info), fields)


@pytest.mark.parametrize("kind", ["nfs4", "ext4"])
def test_a_file_server_tells_whose_clock_is_off(tmp_path: Path, kind: str) -> None:
    system = ServersClock(kind)
    storage = LocalStorage(str(tmp_path / "lake"), create=True, system=system)

    async def go() -> None:
        lake = Lake(storage)
        lake.clock.millis = SystemClock().now_millis()
        journal = await lake.create()
        system.ahead_seconds = -59
        await lake.commit(journal, lake.namespace("a"))
        for ahead_seconds in (-400 * 86400, 400 * 86400):
            system.ahead_seconds = ahead_seconds
            if kind == "ext4":  # the disk uses this machine's clock
                await lake.commit(journal, lake.namespace(f"b{abs(ahead_seconds) + (ahead_seconds > 0)}"))
                continue
            error = await raises(InvalidInput, lake.commit(journal, lake.namespace("b")), kind="clock_skew")
            assert f"{400 * 86400 - 1}" in error.message or f"{400 * 86400}" in error.message
            assert (await journal.refresh()).version == 1
        system.ahead_seconds = 0
        await lake.commit(journal, lake.namespace("c"))
        await sound(journal)
        await journal.close()

    asyncio.run(go())


def test_a_file_server_that_stalls_is_not_taken_for_a_wrong_clock(tmp_path: Path) -> None:
    system = ServersClock("nfs4")
    storage = LocalStorage(str(tmp_path / "lake"), create=True, system=system)

    async def go() -> None:
        lake = Lake(storage)
        lake.clock.millis = SystemClock().now_millis()
        journal = await lake.create()
        system.stall_seconds = 3600
        await lake.commit(journal, lake.namespace("a"))
        assert system.stalled_seconds >= 3600
        await journal.close()

    asyncio.run(go())
