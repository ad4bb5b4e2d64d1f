"""A group from judging to its answers: observers, the turns of processes, and the answers when a group fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from alpheus_journal.commit.committer import Observer
from alpheus_journal.errors import AlpheusError, InvalidInput, OutcomeUnknown, Unavailable
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.operations import DropNamespace
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Call, Fault, FaultyStorage, Lake, listed, no_faults
from alpheus_journal.testing.latency import LatencyStorage
from alpheus_journal.testing.simulation.loop import SimulatedClock, SimulatedLoop

SECONDS = 0.02
"""The seconds that one request takes."""


class Seen(Observer):
    """Record every call to an observer, with the time of the simulated loop."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.times: dict[str, list[float]] = {}
        self.groups: list[tuple[int, int]] = []
        self.counts: dict[str, int] = {}

    def now(self) -> float:
        return self._loop.time()

    def on_duration(self, stage: str, seconds: float) -> None:
        self.times.setdefault(stage, []).append(round(seconds, 6))

    def on_group(self, members_count: int, root_size_bytes: int) -> None:
        self.groups.append((members_count, root_size_bytes))

    def on_events(self, what: str, count: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + count


class Rig:
    """A journal on a slow store in simulated time, with an observer, and a second journal directly on the store."""

    lake: Lake
    memory: MemoryStorage
    faulty: FaultyStorage
    journal: Journal
    other: Journal
    seen: Seen

    @classmethod
    async def make(cls, loop: SimulatedLoop) -> Rig:
        self = cls()
        self.lake = Lake()
        self.memory = MemoryStorage()
        self.lake.storage = self.memory
        self.lake.clock = SimulatedClock(loop)  # type: ignore[assignment]
        self.faulty = FaultyStorage(self.memory, no_faults)
        self.other = await self.lake.create(order=3)
        # The first commit uses the group's own answers: a fault in committing shows immediately.
        first = self.lake.transaction(self.other, *(self.lake.namespace(name) for name in "abcde"))
        (answer,) = await self.other.commit_group([first])
        assert isinstance(answer, Committed)
        self.journal = await self.lake.open(LatencyStorage(self.faulty, SECONDS))
        await self.journal.load_state()
        self.seen = Seen(loop)
        self.journal.observe_commits(self.seen)
        return self

    def roots(self) -> list[str]:
        """Return the slots that the journal sent a root to."""
        return [record.call.path for record in self.faulty.log if record.call.method == "create"]

    async def contend(self) -> None:
        """Make the journal give way before its next version: other processes have written, and this journal too."""
        for number in range(4):
            await self.lake.commit(self.other, self.lake.namespace(f"theirs{number}"))
            await self.journal.refresh()
        for number in range(4):
            await self.lake.commit(self.journal, self.lake.namespace(f"ours{number}"))
        self.seen.times.clear()


def run(main: Callable[[SimulatedLoop], Awaitable[None]], seed: int = 1) -> None:
    loop = SimulatedLoop(seed)

    async def whole() -> None:
        await main(loop)

    loop.run(whole())


def told(answers: list[Committed | AlpheusError | None]) -> list[object]:
    """Return for each answer its version, the kind of its error, or None."""
    return [a.version if isinstance(a, Committed) else a.kind if a is not None else None for a in answers]


# --- observers -------------------------------------------------------------------------------------


def test_an_observer_is_told_how_long_each_stage_took_and_how_large_the_group_was() -> None:
    async def main(loop: SimulatedLoop) -> None:
        rig = await Rig.make(loop)
        group = [rig.lake.transaction(rig.journal, rig.lake.namespace(name)) for name in ("x", "y", "z")]
        began = loop.time()
        assert told(await rig.journal.commit_group(group)) == [2, 2, 2]
        assert loop.time() - began == pytest.approx(2 * SECONDS)
        assert rig.seen.times == {
            "execute": [0.0],
            "encode": [0.0],
            "upload": [SECONDS],
            "turn": [0.0],
            "root": [SECONDS],
        }
        root = await rig.memory.stat(rig.journal.follower.log.path(2))
        assert root is not None
        assert rig.seen.groups == [(3, root.size)]
        assert rig.seen.counts == {}

    run(main)


def test_an_observer_is_told_of_members_of_which_nobody_knows_whether_they_are_committed() -> None:
    async def main(loop: SimulatedLoop) -> None:
        rig = await Rig.make(loop)

        def lose(call: Call) -> Fault | None:
            return Fault.NOT_APPLIED_BUT_UNKNOWN if call.method == "create" else None

        rig.faulty.plan = lose
        group = [rig.lake.transaction(rig.journal, rig.lake.namespace(name)) for name in ("x", "y")]
        answers = await rig.journal.commit_group(group, deadline_seconds=3)
        assert [type(answer) for answer in answers] == [OutcomeUnknown] * 2
        assert rig.seen.counts == {"unknown": 2}
        assert rig.seen.groups == []
        assert "root" not in rig.seen.times
        rig.faulty.plan = no_faults
        assert told(await rig.journal.commit_group(group)) == [2, 2]

    run(main)


def test_an_observer_is_told_of_a_slot_that_was_lost_to_another_process() -> None:
    async def main(loop: SimulatedLoop) -> None:
        rig = await Rig.make(loop)
        mine = rig.lake.transaction(rig.journal, rig.lake.namespace("mine"))
        committing = asyncio.ensure_future(rig.journal.commit_group([mine]))
        await asyncio.sleep(SECONDS * 1.5)  # its files are stored, its root is being sent
        await rig.lake.commit(rig.other, rig.lake.namespace("theirs"))
        assert told(await committing) == [None]
        assert rig.seen.counts == {"lost_slot": 1}
        assert rig.seen.groups == []
        assert told(await rig.journal.commit_group([mine])) == [3]

    run(main)


def test_an_observer_is_told_what_became_of_a_version_that_was_staged_ahead() -> None:
    async def main(loop: SimulatedLoop) -> None:
        rig = await Rig.make(loop)
        for is_lost in (False, True):
            rig.seen.counts.clear()
            one, two = [
                rig.lake.transaction(rig.journal, rig.lake.namespace(f"{name}{is_lost}")) for name in "xy"
            ]
            is_sent = asyncio.Event()
            first = asyncio.ensure_future(rig.journal.commit_group([one], on_publish=is_sent.set))
            await is_sent.wait()
            second = asyncio.ensure_future(rig.journal.commit_group([two]))
            if is_lost:
                await rig.lake.commit(rig.other, rig.lake.namespace("theirs"))
            answers = told([*await first, *await second])
            assert answers == ([None, None] if is_lost else [2, 3])
            expected = {"staged_ahead": 1} | ({"dropped_ahead": 1, "lost_slot": 1} if is_lost else {})
            assert rig.seen.counts == expected
            await rig.other.refresh()

    run(main)


def test_a_transaction_that_began_at_a_later_version_is_judged_once_on_that_version() -> None:
    """The client has read from a process that is ahead of this process."""

    async def main(loop: SimulatedLoop) -> None:
        rig = await Rig.make(loop)
        await rig.lake.commit(rig.other, rig.lake.namespace("theirs"))
        mine = rig.lake.transaction(rig.other, rig.lake.table("theirs", "t"))
        assert mine.begin_version > rig.journal.head.version
        assert told(await rig.journal.commit_group([mine])) == [3]
        assert rig.seen.times["execute"] == [0.0]

    run(main)


# --- turns of processes ----------------------------------------------------------------------------


def test_a_version_whose_head_moves_while_it_waits_for_its_turn_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("alpheus_journal.commit.contention.CONTENDED_TURNS", 50.0)

    async def main(loop: SimulatedLoop) -> None:
        rig = await Rig.make(loop)
        await rig.contend()
        mine = rig.lake.transaction(rig.journal, rig.lake.namespace("mine"))
        before = rig.roots()
        committing = asyncio.ensure_future(rig.journal.commit_group([mine]))
        await asyncio.sleep(SECONDS * 2)  # its files are stored
        await rig.lake.commit(rig.other, rig.lake.namespace("theirs"))
        theirs = await rig.journal.refresh()
        assert not committing.done()
        assert told(await committing) == [None]
        assert rig.seen.times["turn"][-1] > 3 * SECONDS
        assert rig.seen.counts == {"lost_slot": 1}
        assert rig.roots() == before, "its root was not sent"
        rig.journal.sole_writer = True  # the journal waits no more
        assert told(await rig.journal.commit_group([mine])) == [theirs.version + 1]

    run(main)


@pytest.mark.parametrize("way", ["patient", "sole_writer", "hurried"])
def test_nobody_waits_for_turns_who_is_alone_or_about_to_end(way: str) -> None:
    async def main(loop: SimulatedLoop) -> None:
        rig = await Rig.make(loop)
        await rig.contend()
        mine = rig.lake.transaction(rig.journal, rig.lake.namespace("mine"))
        if way == "sole_writer":
            rig.journal.sole_writer = True
        began = loop.time()
        committing = asyncio.ensure_future(rig.journal.commit_group([mine]))
        if way == "hurried":
            await asyncio.sleep(SECONDS * 1.1)  # the commit waits
            rig.journal.stop_yielding()
        assert told(await committing) == [rig.other.head.version + 5]
        took = loop.time() - began
        if way == "patient":
            assert took > 3 * SECONDS
        else:
            assert took < 2.2 * SECONDS

    run(main)


# --- when the group fails as a whole ---------------------------------------------------------------


@pytest.mark.parametrize("is_replayed", [False, True])
def test_who_was_committed_before_is_told_so_when_the_rest_of_the_group_fails(is_replayed: bool) -> None:
    """Reading the tree fails after the group was judged. The committed member gets its version, and every other member
    gets an error."""

    async def main(loop: SimulatedLoop) -> None:
        rig = await Rig.make(loop)
        journal = await rig.lake.open(rig.faulty)
        if is_replayed:
            await journal.load_state()
        done = rig.lake.transaction(journal, rig.lake.namespace("done"))
        assert told(await journal.commit_group([done])) == [2]
        group = [done] + [rig.lake.transaction(journal, DropNamespace(name=name)) for name in ("a", "none")]
        group += [rig.lake.transaction(journal, rig.lake.namespace(name)) for name in ("x", "y")]
        rig.faulty.plan = lambda call: Fault.FAIL_BEFORE if call.method != "create" else None
        answers = await journal.commit_group(group)
        assert told(answers[:1]) == [2]
        for answer in answers[1:]:
            assert isinstance(answer, Unavailable)
        assert len({id(answer) for answer in answers}) == len(answers), "each has an error of its own"
        assert journal.is_settled
        rig.faulty.plan = no_faults
        assert told(await journal.commit_group(group)) == [2, 3, "no_namespace", 3, 3]

    run(main)


def test_nobody_is_refused_on_a_version_of_which_it_cannot_be_seen_whether_it_is_the_newest() -> None:
    """The version was staged ahead. The version before it is won, and then the store says nothing of later versions. So
    no member is refused."""

    async def main(loop: SimulatedLoop) -> None:
        rig = await Rig.make(loop)
        one, two = [rig.lake.transaction(rig.journal, rig.lake.namespace(name)) for name in "xy"]
        refused = rig.lake.transaction(rig.journal, DropNamespace(name="nowhere"))
        is_sent = asyncio.Event()
        first = asyncio.ensure_future(rig.journal.commit_group([one], on_publish=is_sent.set))
        await is_sent.wait()

        def fail_above(call: Call) -> Fault | None:
            return Fault.FAIL_BEFORE if rig.journal.head.version == 2 and call.method != "put" else None

        rig.faulty.plan = fail_above
        second = asyncio.ensure_future(rig.journal.commit_group([refused, two]))
        assert told(await first) == [2]
        assert told(await second) == [None, None]
        rig.faulty.plan = no_faults
        assert told(await rig.journal.commit_group([refused, two])) == ["no_namespace", 3]

    run(main)


class Unsuitable(FaultyStorage):
    """A store whose experiments show that it breaks the promises of `create`."""

    async def prove(self) -> None:
        raise InvalidInput("two writers created one file", kind="storage_unsuitable")


async def test_nothing_is_written_to_a_store_that_breaks_its_promises() -> None:
    lake = Lake()
    await lake.create()
    journal = await lake.open(Unsuitable(lake.storage, no_faults))
    files = await listed(lake.storage, "")
    group = [lake.transaction(journal, lake.namespace(name)) for name in "xy"]
    assert told(await journal.commit_group(group)) == ["storage_unsuitable"] * 2
    assert await listed(lake.storage, "") == files
    assert journal.head.version == 0


class Ahead(Observer):
    """Record where, and by how much, the head was in the future."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, int]] = []

    def on_time_ahead(self, where: str, version: int, ahead_millis: int) -> None:
        self.found.append((where, version, ahead_millis))


async def test_an_observer_is_told_when_a_version_is_staged_on_one_from_the_future() -> None:
    """The observer gets the distance, and only for a version that is published. Once the time has come it gets
    nothing."""
    lake = Lake()
    journal = await lake.create(order=16, node_file_size_max=32_768)
    journal.observe_commits(seen := Ahead())
    now = lake.clock.millis
    await lake.commit(journal, lake.namespace("a"))
    assert seen.found == []
    lake.clock.millis = now + 600_000
    ahead = (await lake.commit(journal, lake.namespace("b"))).created_at_millis - now
    assert seen.found == []
    lake.clock.millis = now
    too_large = lake.transaction(journal, *(lake.namespace(f"n{number:03}") for number in range(300)))
    assert told(await journal.commit_group([too_large])) == ["too_large"]
    assert seen.found == []
    await lake.commit(journal, lake.namespace("c"))
    ((where, version, millis),) = seen.found
    assert (where, version) == (lake.storage.url, 2)
    assert ahead - 10_000 <= millis <= ahead
    lake.clock.millis = now + 700_000
    await lake.commit(journal, lake.namespace("d"))
    assert len(seen.found) == 1
