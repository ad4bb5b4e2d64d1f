"""Leases of readers: the file, its times, the race with expiry and collection, and the leases of other readers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput, NotFound, Unavailable
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.log import copies, leases
from alpheus_journal.log.leases import (
    Copy,
    Found,
    HeldLease,
    Lease,
    decode_lease,
    encode_lease,
    leases_in,
    take,
)
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import CheckSummary, Finding
from alpheus_journal.storage import ObjectInfo, Storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import (
    FITTING,
    FakeClock,
    Fault,
    FaultyStorage,
    Lake,
    listed,
    no_faults,
    raises,
    scripted,
)
from alpheus_journal.tree.node import EMPTY, decode_node, encode_node, encode_tombstone

MINUTE = 60_000


class Time:
    """The store's clock and the holder's own clock."""

    def __init__(self) -> None:
        self.store = FakeClock()
        self.own = 0.0

    def pass_(self, millis: int) -> None:
        self.store.millis += millis
        self.own += millis / 1000


async def leased_lake(digits: int = 32) -> tuple[Lake, Time, Journal, Log]:
    """Make three versions. Version 1 has inner nodes that version 2 does not share, and version 3 is the head."""
    time = Time()
    lake = Lake(MemoryStorage(clock=time.store.now_millis))
    journal = await lake.create(order=3, version_digits=digits)
    await lake.commit(journal, *(lake.namespace(f"n{number}") for number in range(8)))
    await lake.commit(journal, lake.namespace("later"), lake.table("n0", "t"))
    await lake.commit(journal, *(lake.namespace(f"m{number}") for number in range(8)))
    return lake, time, journal, await Log.open(lake.storage)


async def take_one(lake: Lake, time: Time, log: Log, version: int = 1, millis: int = MINUTE) -> HeldLease:
    return await take(
        log,
        version,
        new_id=lake.identities.uuid4,
        lease_millis=millis,
        holder="ana",
        monotonic=lambda: time.own,
    )


async def names_at(journal: Journal, version: int) -> list[str]:
    return list((await journal.list(version, Kind.NAMESPACE)).names)


async def all_found(storage: Storage) -> list[Found]:
    return [found async for found in leases_in(storage)]


# --- the file --------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [32, 64])
async def test_what_a_lease_holds_is_what_is_read_back(digits: int) -> None:
    lake, time, journal, log = await leased_lake(digits)
    held = await take_one(lake, time, log)
    (path,) = await listed(lake.storage, "lease/")
    assert path == held.path == fmt.check_lease_path(path)
    root = await log.read(1)
    data = await lake.storage.read(path, size_max=1 << 20)
    assert decode_lease(data, path) == held.lease
    copy = held.lease.copy
    assert (copy.version, copy.commit_id, copy.root) == (1, root.commit_id, root.node)
    assert (copy.catalog_def, copy.created_at_millis) == (root.catalog_def, root.created_at_millis)
    assert decode_node(data, path, root=True, size_max=1 << 20).actions == ()
    snapshot = await copies.snapshot_of(copy, lake.storage, journal.keys)
    assert list((await snapshot.names(Kind.NAMESPACE)).names) == await names_at(journal, 1)


async def test_a_version_of_another_writer_keeps_its_identity() -> None:
    lake, time, _, log = await leased_lake()
    root = await log.read(3)
    foreign = encode_node(
        root.node,
        order=3,
        created_at_millis=root.created_at_millis + 1,
        size_max=1 << 20,
        system={fmt.ROW_CATALOG_DEF: root.catalog_def, fmt.ROW_PREVIOUS_ROOT: log.path(3)},
    )
    await lake.storage.create(log.path(4), foreign)
    held = await take_one(lake, time, log, 4)
    assert held.lease.copy.commit_id == (await log.read(4)).commit_id
    assert held.lease.copy.commit_id.startswith("sha256-")
    (found,) = await all_found(lake.storage)
    assert found.lease == held.lease


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lease_millis": 999}, "0.999 s"),
        ({"lease_millis": 86_400_001}, "86400 s|8.64"),
        ({"holder": "x" * 1025}, "1024 bytes"),
        ({"holder": "\ud800"}, "1024 bytes"),
    ],
)
async def test_what_would_not_be_read_back_is_not_written(changes: dict[str, object], reason: str) -> None:
    lake, time, _, log = await leased_lake()
    lease = msgspec.structs.replace((await take_one(lake, time, log)).lease, **changes)
    with pytest.raises(InvalidInput, match=reason):
        encode_lease(lease)


async def test_what_is_no_lease_is_refused() -> None:
    lake, time, _, log = await leased_lake()
    held = await take_one(lake, time, log)
    copy = held.lease.copy
    transaction_id = lake.identities.uuid7()
    rows = {
        fmt.ROW_CATALOG_DEF: copy.catalog_def,
        fmt.ROW_COMMIT_ID: copy.commit_id,
        fmt.ROW_VERSION: "1",
        fmt.ROW_FORMAT_REVISION: "1",
        fmt.ROW_LEASE_MILLIS: "60000",
        fmt.ROW_LEASE_HOLDER: "ana",
    }

    def encoded(changes: dict[str, str | None], actions: list[tuple[str, str]] | None = None) -> bytes:
        system = {row: value for row, value in (rows | changes).items() if value is not None}
        return encode_node(
            copy.root, order=3, created_at_millis=5, size_max=1 << 20, system=system, actions=actions or []
        )

    assert decode_lease(encoded({}), "x").holder == "ana"
    assert decode_lease(encoded({fmt.ROW_LEASE_HOLDER: None}), "x").holder == ""
    assert (
        decode_lease(encoded({fmt.ROW_LEASE_TRANSACTION: transaction_id}), "x").transaction_id
        == transaction_id
    )
    wrong = [
        encoded({fmt.ROW_LEASE_MILLIS: None}),
        encoded({fmt.ROW_LEASE_MILLIS: "0060000"}),
        encoded({fmt.ROW_LEASE_MILLIS: "999"}),
        encoded({fmt.ROW_LEASE_MILLIS: "86400001"}),
        encoded({fmt.ROW_LEASE_MILLIS: "9" * 40}),
        encoded({fmt.ROW_VERSION: None}),
        encoded({fmt.ROW_COMMIT_ID: None}),
        encoded({fmt.ROW_LEASE_HOLDER: "x" * 1025}),
        encoded({fmt.ROW_LEASE_TRANSACTION: "x"}),
        encoded({}, [("catalog_def", "AAAA")]),
        encode_tombstone(commit_id="c", catalog_id="k", expired_at_millis=5, version=1),
        await lake.storage.read(log.path(1), size_max=1 << 20),
        await lake.storage.read(next(iter(copy.root.children)), size_max=1 << 20),
        b"",
    ]
    for data in wrong:
        with pytest.raises(Corrupt) as caught:
            decode_lease(data, "lease/x")
        assert caught.value.path == "lease/x"


# --- taking a lease while versions expire ----------------------------------------------------------


async def test_a_version_that_expires_under_its_lease_is_read_from_the_copy() -> None:
    lake, time, journal, log = await leased_lake()
    before = await names_at(journal, 1)
    held = await take_one(lake, time, log)
    await lake.expire(below=3)
    await raises(Expired, journal.list(1, Kind.NAMESPACE))
    snapshot = await copies.snapshot_of(held.lease.copy, lake.storage, journal.keys)
    assert list((await snapshot.names(Kind.NAMESPACE)).names) == before
    loaded = await snapshot.load([fmt.namespace_name(name) for name in before])
    assert all(stored is not None and stored.damage is None for stored in loaded)
    time.pass_(MINUTE - 1)
    await held.renew()  # renewing does not read the slot
    await held.release()
    assert not await listed(lake.storage, "lease/")


async def test_a_version_that_expired_first_is_not_leased() -> None:
    lake, time, _, log = await leased_lake()
    await lake.expire(below=2)
    await raises(Expired, take_one(lake, time, log))
    await raises(NotFound, take_one(lake, time, log, 9), kind="no_version")
    assert not await listed(lake.storage, "lease/")


async def test_a_version_that_expires_while_it_is_leased() -> None:
    """The version expires between the copy and the second look: the copy may have come too late for a collector."""
    lake, time, _, log = await leased_lake()
    with failpoints.armed("lease.written", "pause") as written:
        taking = asyncio.ensure_future(take_one(lake, time, log))
        await written.wait_for_hit()
        assert len(await listed(lake.storage, "lease/")) == 1
        await lake.expire(below=2)
        written.release()
        await raises(Expired, taking)
    assert not await listed(lake.storage, "lease/")


async def test_a_store_that_is_put_back_meanwhile() -> None:
    lake, time, _, log = await leased_lake()
    root = await log.read(3)
    with failpoints.armed("lease.written", "pause") as written:
        taking = asyncio.ensure_future(take_one(lake, time, log, 3))
        await written.wait_for_hit()
        other = encode_node(
            root.node,
            order=3,
            created_at_millis=root.created_at_millis,
            size_max=1 << 20,
            system={
                fmt.ROW_CATALOG_DEF: root.catalog_def,
                fmt.ROW_PREVIOUS_ROOT: log.path(2),
                fmt.ROW_COMMIT_ID: lake.identities.uuid4(),
                fmt.ROW_VERSION: "3",
                fmt.ROW_FORMAT_REVISION: "1",
            },
        )
        await lake.storage.put(log.path(3), other)
        written.release()
        await raises(Corrupt, taking, kind="history_replaced")
    assert not await listed(lake.storage, "lease/")


class Turns(Storage):
    """A store in which each call waits for its turn."""

    def __init__(self, inner: Storage, turn: Callable[[], Awaitable[None]]) -> None:
        self.inner, self.url, self._turn = inner, inner.url, turn

    async def read(self, path: str, *, size_max: int) -> bytes:
        await self._turn()
        return await self.inner.read(path, size_max=size_max)

    async def stat(self, path: str) -> ObjectInfo | None:
        await self._turn()
        return await self.inner.stat(path)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        await self._turn()
        async for info in self.inner.list(prefix):
            yield info

    async def create(self, path: str, data: bytes) -> None:
        raise AssertionError

    async def put(self, path: str, data: bytes) -> None:
        await self._turn()
        await self.inner.put(path, data)

    async def delete(self, path: str) -> None:
        await self._turn()
        await self.inner.delete(path)

    def uri(self, path: str) -> str:
        raise AssertionError


Actor = Callable[[Storage], Awaitable[object]]


async def played(inner: Storage, actors: list[Actor], schedule: tuple[int, ...]) -> list[object]:
    """Run the actors' calls one at a time in the order of `schedule`, then the remaining calls. Return the actors'
    results or errors."""
    waiting: dict[int, asyncio.Future[None]] = {}

    def turn_of(number: int) -> Callable[[], Awaitable[None]]:
        async def turn() -> None:
            waiting[number] = asyncio.get_running_loop().create_future()
            await waiting[number]

        return turn

    tasks = [
        asyncio.ensure_future(actor(Turns(inner, turn_of(number)))) for number, actor in enumerate(actors)
    ]

    async def until_all_wait() -> None:
        while any(not task.done() and number not in waiting for number, task in enumerate(tasks)):  # noqa: ASYNC110
            await asyncio.sleep(0)

    for number in itertools.chain(schedule, *([each] * 20 for each in range(len(actors)))):
        await until_all_wait()
        if number in waiting:
            waiting.pop(number).set_result(None)
            await asyncio.sleep(0)
    return await asyncio.gather(*tasks, return_exceptions=True)


def schedules(calls: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield every order of the given number of calls of each actor."""

    def walk(left: tuple[int, ...], so_far: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if not any(left):
            yield so_far
        for number, count in enumerate(left):
            if count:
                yield from walk((*left[:number], count - 1, *left[number + 1 :]), (*so_far, number))

    yield from walk(tuple(calls), ())


@pytest.mark.parametrize("variant", ["as specified", "looks before it writes", "leases before slots"])
async def test_every_order_of_reader_expirer_and_collector(variant: str) -> None:
    """A reader whose lease holds finds every node, in whatever order the three actors work. Each of the two wrong
    variants loses a node in some order."""
    lake, time, _, log = await leased_lake()
    assert isinstance(lake.storage, MemoryStorage)
    kept = dict(lake.storage._files)
    root = await log.read(1)
    gone = {node for node in root.node.children if node not in (await log.read(2)).node.children}
    assert gone
    tombstone = encode_tombstone(
        commit_id=root.commit_id, catalog_id=root.catalog_id, expired_at_millis=5, version=1
    )

    async def looking_first(storage: Storage) -> None:
        found = await Log(storage, 32).read(1, bare=True)
        copy = Copy(
            version=1,
            commit_id=found.commit_id,
            created_at_millis=1,
            catalog_def=found.catalog_def,
            root=found.node,
        )
        data = encode_lease(Lease(copy=copy, lease_millis=MINUTE))
        await storage.put(fmt.lease_path(lake.identities.uuid4()), data)

    async def reader(storage: Storage) -> bool:
        try:
            if variant == "looks before it writes":
                await looking_first(storage)
            else:
                await take(Log(storage, 32), 1, new_id=lake.identities.uuid4, monotonic=lambda: time.own)
        except Expired:
            return False
        return True

    async def expirer(storage: Storage) -> None:
        await storage.put(log.path(1), tombstone)

    async def reached_by_slot(storage: Storage) -> set[str]:
        try:
            return set((await Log(storage, 32).read(1, bare=True)).node.children)
        except Expired:
            return set()

    async def reached_by_leases(storage: Storage) -> set[str]:
        return {
            node
            for found in await all_found(storage)
            if time.store.millis < found.binds_until_millis and found.lease is not None
            for node in found.lease.copy.root.children
        }

    async def collector(storage: Storage) -> None:
        steps = [reached_by_slot, reached_by_leases]
        if variant == "leases before slots":
            steps.reverse()
        reached = set().union(*[await step(storage) for step in steps])
        for node in sorted(gone - reached)[:1]:  # one lost node is enough to show the fault
            await storage.delete(node)

    lost = held = deleted = 0
    for schedule in schedules([2 if variant == "looks before it writes" else 4, 1, 4]):
        lake.storage._files = dict(kept)
        holds, _, collected = await played(lake.storage, [reader, expirer, collector], schedule)
        assert collected is None, collected
        assert isinstance(holds, bool), holds
        is_whole = all(node in lake.storage._files for node in gone)
        held += holds
        deleted += not is_whole
        lost += holds and not is_whole
    assert held
    assert deleted
    assert bool(lost) == (variant != "as specified")


# --- times -----------------------------------------------------------------------------------------


async def test_renewed_in_time_it_lives_for_ever() -> None:
    lake, time, _, log = await leased_lake()
    held = await take_one(lake, time, log)
    for _ in range(50):
        assert not held.is_due
        time.pass_(MINUTE - 1)
        assert held.is_due
        assert not held.is_doubtful
        await held.renew()
    (found,) = await all_found(lake.storage)
    assert found.renewed_at_millis == time.store.millis
    assert found.runs_out_at_millis == time.store.millis + MINUTE
    assert found.binds_until_millis == time.store.millis + 2 * MINUTE


async def assert_over(lake: Lake, held: HeldLease, reason: str = "it was not renewed for 60 s") -> None:
    for _ in range(2):
        error = await raises(Expired, held.renew(), kind="lease_expired")
        assert f"version 1 ran out: {reason}" in str(error)
    assert held.is_over
    assert held.is_doubtful
    assert not await listed(lake.storage, "lease/")
    await held.release()


async def test_renewed_too_late_by_the_stores_clock() -> None:
    lake, time, _, log = await leased_lake()
    held = await take_one(lake, time, log)
    time.store.millis += MINUTE + 999
    await held.renew()  # the store's rounded times allow that the renewal was in time
    time.store.millis += MINUTE + 1000
    assert not held.is_doubtful, "the own clock stood still"
    await assert_over(lake, held)


async def test_renewed_too_late_by_the_own_clock() -> None:
    """The store's clock was set back meanwhile."""
    lake, time, _, log = await leased_lake()
    held = await take_one(lake, time, log)
    time.store.millis -= 3600_000
    time.own += MINUTE / 1000
    assert held.is_doubtful
    await assert_over(lake, held)


class Rounding(Storage):
    """A store that reports whole seconds. It may take time before it dates a file, and again before the file exists."""

    def __init__(self, time: Time, rounding: str, per_second: int = 1000) -> None:
        self.url = "rounding://"
        self._time, self._rounding, self._unit = time, rounding, per_second
        self.files: dict[str, tuple[int, bytes]] = {}
        self.takes = (0, 0)
        """Milliseconds before a put is dated, and from then until the file exists."""
        self.landed: list[int] = []

    async def put(self, path: str, data: bytes) -> None:
        before, after = self.takes
        self._time.pass_(before)
        up = {"down": 0, "nearest": self._unit // 2, "up": self._unit - 1}[self._rounding]
        dated = (self._time.store.millis + up) // self._unit * self._unit
        self._time.pass_(after)
        self.files[path] = (dated, data)
        self.landed.append(self._time.store.millis)

    async def stat(self, path: str) -> ObjectInfo | None:
        found = self.files.get(path)
        return None if found is None else ObjectInfo(path, len(found[1]), found[0])

    async def delete(self, path: str) -> None:
        self.files.pop(path, None)

    async def read(self, path: str, *, size_max: int) -> bytes:
        return self.files[path][1]

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for path, (dated, data) in list(self.files.items()):
            yield ObjectInfo(path, len(data), dated)

    async def create(self, path: str, data: bytes) -> None:
        raise AssertionError

    def uri(self, path: str) -> str:
        raise AssertionError


NAME = "3ce0216c-e674-4772-b2c7-53574d99d19c"
NOTHING = Copy(
    version=1, commit_id=NAME, created_at_millis=1, catalog_def=f"def/catalog/{NAME}.binpb", root=EMPTY
)


async def hold(store: Rounding, time: Time, millis: int, *, has_clock: bool = True) -> HeldLease:
    lease = Lease(copy=NOTHING, lease_millis=millis)
    monotonic = (lambda: time.own) if has_clock else (lambda: 0.0)
    held = HeldLease(store, fmt.lease_path(NAME), lease, encode_lease(lease), monotonic)
    await held.begin()
    return held


ROUNDINGS = st.sampled_from(["down", "nearest", "up"])
UNITS = st.sampled_from([1, 1000])
LENGTHS = st.sampled_from([1000, 1001, 1500, 1999, 2000, 3000, 60_000])


@given(
    ROUNDINGS, UNITS, LENGTHS, st.integers(0, 999), st.lists(st.floats(0, 1, exclude_max=True), max_size=20)
)
def test_renewed_in_time_it_lives_however_times_are_rounded(
    rounding: str, unit: int, length: int, phase: int, shares: list[float]
) -> None:
    async def live() -> None:
        time = Time()
        time.pass_(phase)
        held = await hold(Rounding(time, rounding, unit), time, length)
        for share in shares:
            time.pass_(int(length * share))
            await held.renew()

    asyncio.run(live())


@settings(max_examples=600)
@given(
    ROUNDINGS,
    UNITS,
    st.integers(leases.LEASE_MILLIS_MIN, 2500),
    st.integers(0, 999),
    st.tuples(st.integers(0, 999), st.integers(0, 4000)),
    st.tuples(st.integers(0, 2500), st.integers(0, 1500), st.integers(0, 4000)),
    st.booleans(),
)
def test_no_write_counts_that_came_after_a_collector_took_it_for_over(
    rounding: str, unit: int, length: int, phase: int, first: tuple[int, int], second: tuple[int, int, int],
    has_clock: bool,
) -> None:  # fmt: skip
    """`first` and `second` give the delays of two writes, before the write is dated and until its file exists. `second`
    begins with the time without a renewal. The collector looks just before the second file exists. Without a clock of
    the holder, a file exists as soon as it is dated."""

    async def live() -> None:
        time = Time()
        time.pass_(phase)
        store = Rounding(time, rounding, unit)
        store.takes = (first[0], has_clock * first[1])
        held = await hold(store, time, length, has_clock=has_clock)
        (found,) = [one async for one in leases_in(store)]
        time.pass_(second[0])
        store.takes = (second[1], has_clock * second[2])
        with contextlib.suppress(Expired):
            await held.renew()
            assert store.landed[-1] < found.binds_until_millis

    asyncio.run(live())


async def test_a_second_is_enough_where_times_are_whole_seconds() -> None:
    time = Time()
    time.pass_(600)
    held = await hold(Rounding(time, "down"), time, 1000)
    for _ in range(30):
        time.pass_(333)
        await held.renew()


async def test_a_write_that_was_dated_in_time_and_came_too_late() -> None:
    """A disk dates a file when it is written. Making the file durable and naming it took minutes more."""
    time = Time()
    store = Rounding(time, "down", 1)
    held = await hold(store, time, MINUTE)
    (found,) = [one async for one in leases_in(store)]
    time.pass_(20_000)
    store.takes = (0, 2 * MINUTE)
    await raises(Expired, held.renew(), kind="lease_expired")
    assert store.landed[-1] > found.binds_until_millis


@pytest.mark.parametrize("late", [False, True])
async def test_the_bounds_of_a_renewal_are_met_to_the_millisecond(late: bool) -> None:
    async def renewed(pause: int, takes: tuple[int, int] = (0, 0), *, has_clock: bool = True) -> None:
        time = Time()
        store = Rounding(time, "down", 1)
        held = await hold(store, time, MINUTE, has_clock=has_clock)
        time.pass_(pause)
        store.takes = takes
        if late:
            await raises(Expired, held.renew(), kind="lease_expired")
            assert not store.files
        else:
            await held.renew()
            assert store.files

    # Where only the store's clock counts: the length of the lease, and one resolution more.
    await renewed(MINUTE + 1000 - (not late), has_clock=False)
    await renewed(30_000, (MINUTE // 2 + 1000 - (not late), 0), has_clock=False)
    # By the holder's own clock, from the end of one write to the beginning of the next: the length.
    await renewed(MINUTE - (not late))
    # By the holder's own clock, from the beginning of one write to the end of the next: less than the time that it
    # binds.
    await renewed(20_000, (0, 2 * MINUTE - 1000 - 20_000 - (not late)))


def test_how_long_a_lease_binds() -> None:
    for millis, binds in ((1000, 3000), (1999, 3999), (2000, 4000), (MINUTE, 2 * MINUTE)):
        assert leases.binding_millis(millis) == binds


async def test_a_lease_that_somebody_removed() -> None:
    """A collector removed the lease as expired, by a clock that this holder does not know."""
    lake, time, _, log = await leased_lake()
    held = await take_one(lake, time, log)
    await lake.storage.delete(held.path)
    await assert_over(lake, held, "another program removed it")


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.APPLIED_BUT_LOST, Fault.NOT_APPLIED_BUT_UNKNOWN])
async def test_a_renewal_that_fails_may_come_later(fault: Fault) -> None:
    """A renewal that was stored counts, even if its answer was lost. A renewal that was not stored does not count."""
    lake, time, _, _log = await leased_lake()
    store = FaultyStorage(lake.storage)
    held = await take_one(lake, time, Log(store, 32))
    for seconds in (30, 29):
        time.pass_(seconds * 1000)
        store.plan = scripted({len(store.log) + 1: fault})  # after the first look
        await raises(AlpheusError, held.renew())
        assert not held.is_over
        store.plan = no_faults
    await held.renew()
    time.pass_(40_000)
    store.plan = scripted({len(store.log) + 1: fault})  # after the first look
    await raises(AlpheusError, held.renew())
    store.plan = no_faults
    time.pass_(40_000)
    assert held.is_doubtful, "the last write that it knows of is 80 s ago"
    if fault is Fault.APPLIED_BUT_LOST:
        await held.renew()
        assert not held.is_doubtful
    else:
        await raises(Expired, held.renew(), kind="lease_expired")


async def test_every_fault_of_every_call_while_it_is_taken() -> None:
    """The lease holds, or the call raises one of our errors. Any file left behind expires."""
    calls = 4
    for number, fault in itertools.product(range(calls), [*Fault]):
        lake, time, _, log = await leased_lake()
        store = FaultyStorage(lake.storage)
        method = ["read", "put", "stat", "read"][number]
        if fault not in FITTING[method] or fault is Fault.STALE_404:
            continue
        store.plan = scripted({number: fault})
        try:
            held = await take_one(lake, time, Log(store, log.digits))
        except AlpheusError:
            left = await all_found(lake.storage)
            assert len(left) <= 1, (number, fault)
        else:
            (found,) = await all_found(lake.storage)
            assert found.path == held.path
            assert store.log[number].call.method == method


async def test_one_that_cannot_be_deleted_runs_out_by_itself() -> None:
    lake, time, _, _log = await leased_lake()
    store = FaultyStorage(lake.storage)
    held = await take_one(lake, time, Log(store, 32))
    store.plan = scripted({len(store.log): Fault.FAIL_BEFORE})
    await held.release()
    assert held.is_over
    await raises(Expired, held.renew(), kind="lease_expired")
    assert len(await listed(lake.storage, "lease/")) == 1


# --- writes in progress when the lease is given up -------------------------------------------------


class Gate(FaultyStorage):
    """Hold the calls of one method back. Cancelling a caller does not cancel a call that was sent."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.method = ""
        self.arrived = asyncio.Event()
        self.opened = asyncio.Event()
        self.counts = {"put": 0, "delete": 0}
        self._sent: set[asyncio.Task[None]] = set()

    async def _pass(self, method: str, call: Awaitable[None]) -> None:
        async def send() -> None:
            if self.method == method:
                self.arrived.set()
                await self.opened.wait()
            await call
            self.counts[method] += 1

        sent = asyncio.ensure_future(send())
        self._sent.add(sent)
        await asyncio.shield(sent)

    async def put(self, path: str, data: bytes) -> None:
        await self._pass("put", self.inner.put(path, data))

    async def delete(self, path: str) -> None:
        await self._pass("delete", self.inner.delete(path))

    async def settled(self) -> None:
        self.opened.set()
        await asyncio.wait(self._sent)


async def cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_no_write_lands_after_it_is_given_up() -> None:
    """This holds while a renewal waits for its write, and after the renewal was cancelled."""
    for is_cancelled in (False, True):
        lake, time, _, log = await leased_lake()
        gate = Gate(lake.storage)
        held = await take_one(lake, time, Log(gate, log.digits))
        gate.method = "put"
        renewing = asyncio.ensure_future(held.renew())
        await gate.arrived.wait()
        if is_cancelled:
            await cancelled(renewing)
        releasing = asyncio.ensure_future(held.release())
        await turns()
        assert held.is_over
        assert not releasing.done()
        await gate.settled()
        await releasing
        if not is_cancelled:
            assert "was given up" in str(await raises(Expired, renewing))
        assert not await listed(lake.storage, "lease/")
        assert not held.has_run_out
        assert gate.counts == {"put": 2, "delete": 1}


async def test_a_renewal_that_is_cancelled_is_waited_for_by_the_next() -> None:
    lake, time, _, log = await leased_lake()
    gate = Gate(lake.storage)
    held = await take_one(lake, time, Log(gate, log.digits))
    gate.method = "put"
    renewing = asyncio.ensure_future(held.renew())
    await gate.arrived.wait()
    await cancelled(renewing)
    again = asyncio.ensure_future(held.renew())
    await turns()
    assert not again.done()
    await gate.settled()
    await again
    assert gate.counts["put"] == 3
    assert not held.is_over


async def test_taking_one_that_is_cancelled_leaves_nothing() -> None:
    lake, time, _, log = await leased_lake()
    gate = Gate(lake.storage)
    gate.method = "put"
    taking = asyncio.ensure_future(take_one(lake, time, Log(gate, log.digits)))
    await gate.arrived.wait()
    taking.cancel()
    await turns()
    assert not taking.done()
    await gate.settled()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert not await listed(lake.storage, "lease/")


async def test_a_write_that_does_not_end_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process renews the file that the write leaves behind."""
    monkeypatch.setattr(leases, "REMOVAL_SECONDS_MAX", 0.0)
    lake, time, _, log = await leased_lake()
    gate = Gate(lake.storage)
    held = await take_one(lake, time, Log(gate, log.digits))
    gate.method = "put"
    renewing = asyncio.ensure_future(held.renew())
    await gate.arrived.wait()
    await cancelled(renewing)
    await held.release()
    await held.release()
    await gate.settled()
    (left,) = await all_found(lake.storage)
    assert left.binds_until_millis == time.store.millis + 2 * MINUTE
    await raises(Expired, held.renew(), kind="lease_expired")


class Trying(FaultyStorage):
    """A driver that retries a put until it is cancelled."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.trying = asyncio.Event()
        self.works = asyncio.Event()
        self.works.set()
        self.given_up = 0

    async def put(self, path: str, data: bytes) -> None:
        self.trying.set()
        try:
            await self.works.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        await self.inner.put(path, data)


async def test_a_write_that_is_tried_again_is_stopped_when_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "REMOVAL_SECONDS_MAX", 0.0)
    lake, time, _, log = await leased_lake()
    store = Trying(lake.storage)
    held = await take_one(lake, time, Log(store, log.digits))
    before = await all_found(lake.storage)
    store.works.clear()
    store.trying.clear()
    renewing = asyncio.ensure_future(held.renew())
    await store.trying.wait()
    time.pass_(10_000)
    await cancelled(renewing)
    await held.release()
    await turns()
    assert store.given_up == 1
    store.works.set()
    await turns()
    assert await all_found(lake.storage) == before, "no write of it comes after its release"


async def test_who_looks_while_it_is_given_up_is_told() -> None:
    for is_cancelled in (False, True):
        lake, time, _, log = await leased_lake()
        gate = Gate(lake.storage)
        held = await take_one(lake, time, Log(gate, log.digits))
        time.pass_(2 * MINUTE)
        gate.method = "delete"
        renewing = asyncio.ensure_future(held.renew())
        await gate.arrived.wait()
        assert held.has_run_out
        if is_cancelled:
            await cancelled(renewing)
        assert held.has_run_out
        await raises(Expired, held.renew(), kind="lease_expired")
        await gate.settled()
        await asyncio.wait([renewing])
        await held.release()
        assert not await listed(lake.storage, "lease/")
        assert gate.counts["delete"] == 1 + is_cancelled, "what was cancelled is done again"


# --- leases of other readers -----------------------------------------------------------------------


async def test_what_is_found_of_others() -> None:
    lake, time, _, log = await leased_lake()
    first = await take_one(lake, time, log, 1)
    time.pass_(500)
    second = await take_one(lake, time, log, 3, 5000)
    torn, odd = fmt.lease_path(lake.identities.uuid4()), "lease/x.arrow"
    await lake.storage.put(torn, b"torn")
    await lake.storage.put(odd, b"")
    found = {one.path: one for one in await all_found(lake.storage)}
    assert found.keys() == {first.path, second.path, torn, odd}
    assert found[first.path].lease == first.lease
    assert found[second.path].runs_out_at_millis == time.store.millis + 5000
    for path in (torn, odd):
        assert found[path].lease is None
        assert found[path].damage is not None
        assert found[path].binds_until_millis == time.store.millis + 2 * 86_400_000


async def test_one_that_is_released_while_it_is_looked_at() -> None:
    lake, time, _, log = await leased_lake()
    held = await take_one(lake, time, log)
    found = leases_in(FaultyStorage(lake.storage, scripted({1: Fault.STALE_404})))
    assert [one async for one in found] == []
    await raises(Unavailable, anext(leases_in(FaultyStorage(lake.storage, scripted({1: Fault.FAIL_BEFORE})))))
    await held.release()


async def test_many_are_found() -> None:
    lake, time, _, log = await leased_lake()
    paths = {(await take_one(lake, time, log)).path for _ in range(2 * leases.READ_AT_ONCE + 1)}
    assert {one.path for one in await all_found(lake.storage)} == paths


async def test_a_newer_format_binds_as_what_cannot_be_read() -> None:
    lake, time, _, log = await leased_lake()
    held = await take_one(lake, time, log)
    copy = held.lease.copy
    newer = encode_node(
        copy.root,
        order=3,
        created_at_millis=5,
        size_max=1 << 20,
        system={fmt.ROW_CATALOG_DEF: copy.catalog_def, fmt.ROW_FORMAT_REVISION: str(fmt.FORMAT_REVISION + 1)},
    )
    await lake.storage.put(held.path, newer)
    (found,) = await all_found(lake.storage)
    assert found.lease is None
    assert found.damage is not None
    assert "newer" in found.damage.message


async def findings(journal: Journal) -> list[Finding]:
    found = [item async for item in journal.check()]
    assert isinstance(found[-1], CheckSummary)
    return [item for item in found if isinstance(item, Finding)]


async def test_check_looks_at_leases() -> None:
    lake, time, journal, log = await leased_lake()
    held = await take_one(lake, time, log)
    assert await findings(journal) == []
    await lake.expire(below=2)
    assert await findings(journal) == [], "it lives by its copy, and the tombstone has its commit id"
    data = await lake.storage.read(held.path, size_max=1 << 20)
    await lake.storage.put(held.path, data[:-1])
    (torn,) = await findings(journal)
    assert (torn.kind, torn.path) == ("corrupt_node", held.path)
    for changes in ({"version": 99}, {"commit_id": lake.identities.uuid4()}):
        copy = msgspec.structs.replace(held.lease.copy, **changes)
        await lake.storage.put(held.path, encode_lease(msgspec.structs.replace(held.lease, copy=copy)))
        (other,) = await findings(journal)
        assert (other.kind, other.path) == ("corrupt_history", held.path)
        assert "restored to an older state" in other.message
