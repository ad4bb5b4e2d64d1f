"""A soak of all parts for a minute, or ten minutes in the slow lane. See soak_driver.py for the load and the checks.

The judges themselves are tested too: errors are planted into the records of a small run, and the judges must find them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet import (
    IDENTITIES,
    SHARED,
    Daemon,
    Ledger,
    Sample,
    Subscriber,
    Writer,
    judge,
    library,
    lives_of,
    rests_of,
)
from soak_driver import LONG_SECONDS, Turns, soak

from alpheus.aio import create
from alpheus_journal.model.answers import Event
from alpheus_journal.model.operations import CreateNamespace
from alpheus_journal.testing import Called


async def test_soak(tmp_path: Path, lane_count: Callable[[int, int], int]) -> None:
    seconds, seed = lane_count(5, 600), random.randrange(1 << 30)
    print(f"python tests/faults/drivers/soak_driver.py --seed {seed} --seconds {seconds}")
    run = await soak(tmp_path, seed, seconds)
    print(*run.lines, sep="\n")
    assert run.comparer.compared > 5
    assert run.comparer.listed > 5
    assert run.ledger.failovers
    assert all(turns.done >= run.last for turns in run.turns)
    assert any(turns.killed for turns in run.turns)
    if seconds >= LONG_SECONDS:
        assert all(turns.killed for turns in run.turns), "in seconds chance may pass over one of two"
        # Else no life would be checked against the strict bound of memory.
        assert len(run.full_lives) >= len(run.daemons), "no life went on for long after its window was full"


# --- the judges


async def small_run(url: str) -> tuple[Ledger, list[Subscriber], int]:
    """Run two clients of the library, one after the other, and a subscriber that sees every version."""
    journals, ledger = [await library(url) for _ in range(2)], Ledger()
    first, second = (
        Writer(name, [journal], ledger, random.Random(1))
        for name, journal in zip("ab", journals, strict=True)
    )
    for client in (first, second, first):
        name = SHARED if client is second else f"{client.name}{client.seen}"
        await client.commit(CreateNamespace(name=name, namespace_id=IDENTITIES.uuid4()))
    await second.commit(CreateNamespace(name="a0", namespace_id=IDENTITIES.uuid4()))  # it exists: refused
    subscriber = Subscriber([], random.Random(1))
    async for event in journals[0].events():
        if isinstance(event, Event):
            subscriber.seen.append((event.version, event.token, tuple(t.id for t in event.transactions)))
    for journal in journals:
        await journal.close()
    return ledger, [subscriber], 3


def _elsewhere(ledger: Ledger, subscriber: Subscriber) -> None:
    next(iter(ledger.asked.values())).version = 2


def _lost(ledger: Ledger, subscriber: Subscriber) -> None:
    asked = next(iter(ledger.asked.values()))
    del ledger.asked[asked.transaction.id]
    ledger.asked[IDENTITIES.uuid7()] = asked


def _refused_and_there(ledger: Ledger, subscriber: Subscriber) -> None:
    next(iter(ledger.asked.values())).is_refused = True


def _never_answered(ledger: Ledger, subscriber: Subscriber) -> None:
    next(asked for asked in ledger.asked.values() if asked.is_refused).is_refused = False


def _back_in_time(ledger: Ledger, subscriber: Subscriber) -> None:
    began = max(asked.returned for asked in ledger.asked.values() if asked.version) + 1
    ledger.reads.append(
        Called(client="c", is_commit=False, argument=None, invoked=began, returned=began + 1, version=1)
    )


def _event_left_out(ledger: Ledger, subscriber: Subscriber) -> None:
    del subscriber.seen[1]


def _event_twice(ledger: Ledger, subscriber: Subscriber) -> None:
    subscriber.seen.insert(1, subscriber.seen[1])


def _stopped_early(ledger: Ledger, subscriber: Subscriber) -> None:
    del subscriber.seen[-1]


LIES = [
    _elsewhere, _lost, _refused_and_there, _never_answered, _back_in_time, _event_left_out, _event_twice,
    _stopped_early,
]  # fmt: skip


@pytest.mark.parametrize("lie", [None, *LIES])
async def test_planted_lies_are_found(
    lie: Callable[[Ledger, Subscriber], None] | None, tmp_path: Path
) -> None:
    url = (tmp_path / "lake").as_uri()
    catalog = await create(url)
    await catalog.close()
    ledger, subscribers, last = await small_run(url)
    if lie is None:
        assert len(await judge(url, ledger, subscribers, last)) == 4
        return
    lie(ledger, subscribers[0])
    with pytest.raises(AssertionError):
        await judge(url, ledger, subscribers, last)


Turn = tuple[float, int, int]
GOOD: tuple[list[Turn], list[Turn]] = (
    [(0, 1, 1), (0, 1, 2), (0, 1, 3), (0, 2, 3), (0, 2, 4)],
    [(0, 1, 2), (0, 2, 4)],
)


@pytest.mark.parametrize(
    ("delivered", "acknowledged"),
    [
        ([*GOOD[0][:1], *GOOD[0][2:]], GOOD[1]),  # 2 was skipped in its turn
        (GOOD[0][:-1], GOOD[1][:1]),  # 4 never came
        ([*GOOD[0], (0, 2, 4)], GOOD[1]),  # twice in one turn
        ([*GOOD[0][:3], (0, 2, 2), *GOOD[0][3:]], GOOD[1]),  # 2 was acknowledged
        ([*GOOD[0], (0, 2, 5)], GOOD[1]),  # 5 does not match
    ],
)
def test_turns_that_must_not_be(delivered: list[Turn], acknowledged: list[Turn]) -> None:
    for good in (True, False):
        turns = Turns("t", frozenset())
        turns.delivered, turns.acknowledged = GOOD if good else (delivered, acknowledged)
        if good:
            turns.judge([1, 2, 3, 4], 4)
            continue
        with pytest.raises(AssertionError):
            turns.judge([1, 2, 3, 4], 4)


@pytest.mark.parametrize("kib", [0, 64])
def test_a_leak_is_measured(tmp_path: Path, kib: int) -> None:
    """A leak of a page for each version is measured, and a single jump of the allocator does not count."""
    daemon = Daemon("d", "file:///nowhere", tmp_path)
    jumps = [20 << 20 if number == 50 else 0 for number in range(100)]
    daemon.lives = [
        [Sample(number / 2, number, (kib << 10) * number + jumps[number], 30, 40) for number in range(100)]
    ]
    (life,) = lives_of(daemon, 10)
    assert life.kib_a_version == pytest.approx(kib)
    assert life.mib_a_minute == pytest.approx(kib * 120 / 1024)
    assert not lives_of(daemon, 60)
    (rest,) = rests_of(daemon, 60, 10)
    assert rest.versions == 38
    assert rest.kib_a_version == pytest.approx(kib)
    assert not rests_of(daemon, 90, 10)
