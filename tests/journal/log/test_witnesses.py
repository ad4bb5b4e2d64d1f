"""The versions that a writer looks at again with every version that it writes, and the consequences."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, OutcomeUnknown
from alpheus_journal.journal import Journal
from alpheus_journal.log.witnesses import AGE_SECONDS_MAX, Known, PastHeads
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Call, Fault, FaultyStorage, Lake, listed, raises
from alpheus_journal.testing.latency import LatencyStorage
from alpheus_journal.testing.simulation.loop import SimulatedClock, SimulatedLoop


@pytest.fixture
def lake() -> Lake:
    return Lake()


def path(version: int) -> str:
    return fmt.version_file(version, 32)


# --- heads of the past


@pytest.mark.parametrize("interval", [1.0, 5.0])
def test_heads_of_the_past_are_few_and_close_enough(
    interval: float, lane_count: Callable[[int, int], int]
) -> None:
    """For any moment at which a head was added, at any later time: that head still exists, or a newer head and an older
    head exist, and the older head is at most twice as old."""
    for seed in range(lane_count(3, 60)):
        rng = random.Random(seed)
        heads, now, added = PastHeads(interval), 1000.0, list[float]()
        for version in range(3000):
            now += rng.choice((0.01, 0.3, 1, 2, 7)) if rng.random() < 0.99 else rng.choice((100, 5000))
            if not added or now >= added[-1] + interval:
                added.append(now)
            heads.add(Known(version, "", now))
            if version % 97 and version < 2990:
                continue
            later = now + rng.choice((0, 0.5, 3, 1000))
            kept = [later - head.at for head in heads.at(later)]
            assert len(kept) <= 40
            assert kept == sorted(kept)
            for moment in added:
                age = later - moment
                if age > AGE_SECONDS_MAX or age in kept:
                    continue
                newer = max(other for other in kept if other < age)
                older = min(other for other in kept if other > age)
                assert older <= 2 * newer, f"seed {seed}: {age} between {newer} and {older}"


def test_a_restore_is_noticed_when_its_copy_is_old_enough() -> None:
    """FORMAT.md states this rule for every copy and every restore. The lost versions are between the copy and the begin
    of the restore. A look after the end of the restore meets one of those heads, if the copy is then twice as old as
    the restore's begin."""
    heads, times = PastHeads(1.0), [number * 0.37 for number in range(4000)]
    for version, moment in enumerate(times):
        heads.add(Known(version, "", moment))
    now = times[-1]
    ages = [now - head.at for head in heads.at(now)]
    for began in (0.5, 1, 2, 3.3, 10, 60, 200, 600):  # seconds ago
        for copied in (2.0, 2.5, 3, 10, 100):  # factor
            lost = [age for age in ages if began <= age < began * copied]
            spaced = [moment for moment in times if began + 1 <= now - moment < began * copied]
            assert lost or not spaced, (began, copied, ages)


# --- looks


async def put_back(lake: Lake, version: int) -> None:
    """Restore the store to a copy of an older version."""
    for name in await listed(lake.storage, "vn/"):
        if name not in {path(number) for number in range(version + 1)}:
            await lake.storage.delete(name)


async def grown(lake: Lake, versions: int) -> Journal:
    journal = await lake.create()
    for number in range(versions):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    return journal


@pytest.mark.parametrize("gone", [(7,), (8,), (7, 8), (3, 4, 5, 6, 7, 8)])
async def test_a_version_above_a_hole_is_not_acknowledged(lake: Lake, gone: tuple[int, ...]) -> None:
    journal = await grown(lake, 8)
    known = {version: await journal.follower.log.commit_id(version) for version in gone}
    for version in gone:
        await lake.storage.delete(path(version))
    transaction = lake.transaction(journal, lake.namespace("new"))
    error = await raises(OutcomeUnknown, journal.commit(transaction), kind="history_replaced")
    assert error.transaction_id == transaction.id
    assert error.version == 9
    looked_at = [version for version in gone if version >= 7]
    assert any(f"version {v} was {known[v]} and is not there" in error.message for v in looked_at)
    # The head stays, and nothing more is written or reported: a retry is as unknown as before.
    before = await listed(lake.storage, "")
    assert path(9) in before
    again = await raises(OutcomeUnknown, journal.commit(transaction), kind="history_replaced")
    assert again.transaction_id == transaction.id
    other = lake.transaction(journal, lake.namespace("other"))
    (answer,) = await journal.commit_group([other])
    assert isinstance(answer, Corrupt)
    assert answer.kind == "history_replaced"
    await raises(Corrupt, journal.refresh(), kind="history_replaced")
    assert await listed(lake.storage, "") == before


async def test_another_history_below_is_named_with_both_ids(lake: Lake) -> None:
    """Another history fills the slots below."""
    journal = await grown(lake, 4)
    copy = MemoryStorage()
    for name in await listed(lake.storage, ""):
        await copy.put(name, await lake.storage.read(name, size_max=1 << 20))
    side = Lake(copy, seed=5)
    await put_back(side, 2)
    fork = await side.open()
    for number in range(2):
        await side.commit(fork, side.namespace(f"m{number}"))
    for name in await listed(copy, ""):
        await lake.storage.put(name, await copy.read(name, size_max=1 << 20))
    error = await raises(OutcomeUnknown, lake.commit(journal, lake.namespace("x")), kind="history_replaced")
    theirs = (await journal.follower.log.commit_id(3), await journal.follower.log.commit_id(4))
    assert any(commit_id in error.message for commit_id in theirs)
    assert "was " in error.message


async def test_heads_of_the_past_are_looked_at_before_the_answer() -> None:
    """The newest versions survive, like versions that a restore did not list. Only heads of the past show the hole. The
    first version after the interval looks at these heads, and no version before it."""
    loop = SimulatedLoop(1)

    async def main() -> None:
        lake = Lake(seed=3)
        lake.clock = SimulatedClock(loop)  # type: ignore[assignment]
        journal = await lake.create()
        interval = journal.follower.witnesses.interval_seconds
        assert interval == 5.0
        for number in range(100):
            await lake.commit(journal, lake.namespace(f"n{number}"))
            await asyncio.sleep(0.5)
        await lake.commit(journal, lake.namespace("before"))
        for version in range(60, 95):
            await lake.storage.delete(path(version))
        acknowledged = 0
        began = loop.time()
        error: OutcomeUnknown | None = None
        while error is None:
            try:
                await lake.commit(journal, lake.namespace(f"m{acknowledged}"))
            except OutcomeUnknown as unknown:
                error = unknown
            else:
                acknowledged += 1
                await asyncio.sleep(0.5)
        assert error.kind == "history_replaced"
        assert " is not there" in error.message
        assert 0 < acknowledged <= interval / 0.5
        assert loop.time() - began <= interval + 0.5

    loop.run(main())


async def test_what_differs_for_a_good_reason_is_read_and_taken(lake: Lake) -> None:
    """Files rewritten with the same bytes, tombstones, and damaged files are not taken for another history."""
    journal = await grown(lake, 6)
    for version in (5, 6):
        await lake.storage.put(path(version), await lake.storage.read(path(version), size_max=1 << 20))
    assert (await lake.commit(journal, lake.namespace("a"))).version == 7
    await lake.expire(below=7)
    assert (await lake.commit(journal, lake.namespace("b"))).version == 8
    await lake.storage.put(path(7), b"damaged")
    assert (await lake.commit(journal, lake.namespace("c"))).version == 9


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.ANSWERED_503])
async def test_nothing_is_acknowledged_without_a_look(lake: Lake, fault: Fault) -> None:
    """A failed look is repeated before the answer."""
    await grown(lake, 3)
    failing = 5

    def plan(call: Call) -> Fault | None:
        nonlocal failing
        is_look = call.path in (path(2), path(3)) and started
        if is_look and failing:
            failing -= 1
            return fault
        return None

    started = False
    storage = FaultyStorage(lake.storage, plan, clock=lake.clock)
    journal = await lake.open(storage)
    await lake.commit(journal, lake.namespace("first"))
    started = True
    assert (await lake.commit(journal, lake.namespace("second"))).version == 5
    failing = 10_000
    transaction = lake.transaction(journal, lake.namespace("third"))
    (answer,) = await journal.commit_group([transaction], deadline_seconds=5)
    if isinstance(answer, OutcomeUnknown):
        assert answer.kind != "history_replaced"
    failing = 0
    committed = await journal.commit(transaction)
    assert committed.version == 6


async def test_a_lost_reply_is_settled_with_a_look(lake: Lake) -> None:
    await grown(lake, 3)
    lost = False

    def plan(call: Call) -> Fault | None:
        nonlocal lost
        if call.method == "create" and call.path == path(5) and not lost:
            lost = True
            return Fault.APPLIED_BUT_LOST
        return None

    storage = FaultyStorage(lake.storage, plan, clock=lake.clock)
    journal = await lake.open(storage)
    await lake.commit(journal, lake.namespace("before"))
    await lake.storage.delete(path(3))
    error = await raises(OutcomeUnknown, lake.commit(journal, lake.namespace("x")), kind="history_replaced")
    assert lost
    assert "version 3 was" in error.message


async def test_a_hole_that_was_given_up_is_no_fault(lake: Lake) -> None:
    """Processes that begin above the hole write versions above it. They know only the first version below their own."""
    await grown(lake, 3)
    # This process was opened before the hole, so that opening does not find the hole.
    journal = await lake.open()
    await lake.storage.delete(path(2))
    for version in (4, 5, 6):
        assert (await lake.commit(journal, lake.namespace(f"m{version}"))).version == version


async def test_what_looks_cost_on_an_object_store() -> None:
    """A version costs two requests, in parallel with its root. Heads of the past cost requests every five seconds."""
    loop = SimulatedLoop(2)
    requests: list[Mapping[str, int]] = []
    seconds: list[float] = []

    async def main() -> None:
        lake = Lake(seed=4)
        lake.clock = SimulatedClock(loop)  # type: ignore[assignment]
        await lake.create()
        storage = LatencyStorage(lake.storage, 0.02)
        journal = await lake.open(storage)
        journal.sole_writer = True
        for number in range(8):
            before, began = dict(storage.requests), loop.time()
            await journal.commit(lake.transaction(journal, lake.namespace(f"n{number}")))
            seconds.append(loop.time() - began)
            after = storage.requests
            requests.append({method: after[method] - before.get(method, 0) for method in after})
            await asyncio.sleep(0.1)
        await journal.close()

    loop.run(main())
    for counted, took in list(zip(requests, seconds, strict=True))[2:]:
        assert counted.pop("stat") == 3, "the next slot before, the two below"
        assert {method: count for method, count in counted.items() if count} == {"put": 1, "create": 1}
        assert took <= 3 * 0.02 + 0.001, "the next slot, files, then root and looks together"


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_folder_that_is_swapped_behind_the_slot(tmp_path: Path, is_first: bool) -> None:
    """The first version of a process, too, is not acknowledged when the prefix has become another directory."""
    place, copy = tmp_path / "lake", tmp_path / "copy"
    lake = Lake(await asyncio.to_thread(LocalStorage, str(place), create=True))
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    shutil.copytree(place, copy)
    storage = await asyncio.to_thread(LocalStorage, str(place))
    fresh = await lake.open(storage)
    if not is_first:
        await lake.commit(fresh, lake.namespace("b"))
    publish, head = storage._publish, fresh.head.version

    def swapping(*given: Any) -> Any:
        written = publish(*given)
        place.rename(tmp_path / "old")
        copy.rename(place)
        return written

    storage._publish = swapping  # type: ignore[method-assign]
    error = await raises(OutcomeUnknown, lake.commit(fresh, lake.namespace("c")))
    assert "another directory" in error.message
    assert not (place / path(head + 1)).exists()
    assert (tmp_path / "old" / path(head + 1)).exists()
    # Once the opened directory is back, the version stored there is reported.
    storage._publish = publish  # type: ignore[method-assign]
    place.rename(copy)
    (tmp_path / "old").rename(place)
    assert (await lake.commit(fresh, lake.namespace("d"))).version == head + 2
