"""Write deadlines of event streams, and the poller that looks for versions of other writers."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from event_source import Head, Source

from alpheus_daemon.serve.deadlines import WriteDeadlines
from alpheus_daemon.serve.watch import (
    Poller,
)
from alpheus_daemon.telemetry import logs as telemetry
from alpheus_journal.errors import (
    Unavailable,
)
from alpheus_journal.testing.simulation.loop import SimulatedLoop

# --- deadlines -------------------------------------------------------------------------------------


async def test_deadlines_end_what_takes_too_long() -> None:
    deadlines = WriteDeadlines(0.01)
    never = asyncio.Event()

    async def wait() -> None:
        await never.wait()

    results = await asyncio.gather(*(deadlines.within(wait()) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(result, TimeoutError) for result in results)
    await deadlines.within(asyncio.sleep(0))
    assert not deadlines._waits
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_deadlines_end_others_while_one_takes_its_time_to_end() -> None:
    deadlines = WriteDeadlines(0.01)
    never, others_ended = asyncio.Event(), asyncio.Event()

    async def clean_up() -> None:
        try:
            await never.wait()
        finally:
            await others_ended.wait()

    slow = asyncio.create_task(deadlines.within(clean_up()))
    await asyncio.sleep(0.005)
    # Their deadline is later: when it ends, the first one has expired and its work still runs.
    others = [asyncio.create_task(deadlines.within(asyncio.sleep(3600))) for _ in range(3)]
    results = await asyncio.gather(*others, return_exceptions=True)
    assert all(isinstance(result, TimeoutError) for result in results)
    assert not slow.done()
    others_ended.set()
    with pytest.raises(TimeoutError):
        await slow


async def test_deadlines_leave_other_cancellations_alone() -> None:
    deadlines = WriteDeadlines(3600)
    never = asyncio.Event()

    async def wait() -> None:
        await never.wait()

    one, two = asyncio.create_task(deadlines.within(wait())), asyncio.create_task(deadlines.within(wait()))
    await asyncio.sleep(0)
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    deadlines.configure(0)  # deadlines end almost immediately now
    with pytest.raises(TimeoutError):
        await two
    with pytest.raises(TimeoutError):
        await deadlines.within(wait())


@pytest.mark.parametrize(("seconds", "ends"), [(5.0, 6.0), (20.0, 10.0), (9.0, 10.0), (8.0, 9.0)])
def test_a_shorter_time_holds_for_those_who_wait_and_a_longer_one_for_those_who_come(
    seconds: float, ends: float
) -> None:
    """A write starts at moment 0 with ten seconds, and the time limit changes at moment 1."""
    loop = SimulatedLoop(0)
    found: list[float] = []

    async def main() -> None:
        deadlines = WriteDeadlines(10.0)
        began = loop.time()

        async def wait() -> None:
            with pytest.raises(TimeoutError):
                await deadlines.within(asyncio.sleep(3600))
            found.append(loop.time() - began)

        first = asyncio.ensure_future(wait())
        await asyncio.sleep(1)
        deadlines.configure(seconds)
        assert deadlines.seconds == seconds
        await asyncio.gather(first, wait())

    loop.run(main())
    assert found == [pytest.approx(moment) for moment in sorted([ends, 1 + seconds])]


# --- the poller ------------------------------------------------------------------------------------


async def test_the_poller_hurries_while_versions_come() -> None:
    source = Source(0)
    poller = Poller(source, interval_min_seconds=0.05, interval_max_seconds=1.0)
    waits = [0.05]
    for _ in range(12):
        waits.append(await poller.step(waits[-1]))
    assert waits == sorted(waits)
    assert waits[-1] == 1.0
    source.hidden = 3
    assert await poller.step(1.0) == 0.05
    assert source.head.version == 3


@pytest.mark.parametrize("error", [Unavailable("storage is away"), RuntimeError("a bug")])
async def test_the_poller_outlives_failures(error: Exception) -> None:
    telemetry.configure("info")  # by default structlog reads the source files of a traceback
    source = Source(0)
    poller = Poller(source, interval_min_seconds=0.05, interval_max_seconds=1.0)
    source.broken = error
    assert await poller.step(0.05) == 1.0
    source.broken, source.hidden = None, 1
    assert await poller.step(1.0) == 0.05
    assert source.head.version == 1


@pytest.mark.parametrize("error", [None, Unavailable("away")], ids=["idle", "failing"])
def test_pollers_that_start_together_do_not_probe_together(error: Exception | None) -> None:
    """Each poller waits for its interval plus or minus a random fifth, and the interval grows to its maximum."""

    def moments(seed: int) -> list[float]:
        loop = SimulatedLoop(0)
        source, found = Source(0), list[float]()
        source.broken = error
        refresh = source.refresh

        async def noted() -> Head:
            found.append(loop.time())
            return await refresh()

        source.refresh = noted  # type: ignore[method-assign]
        poller = Poller(
            source, interval_min_seconds=1.0, interval_max_seconds=3.0, randomness=random.Random(seed)
        )

        async def main() -> None:
            running = asyncio.ensure_future(poller.run())
            await asyncio.sleep(60)
            running.cancel()

        loop.run(main())
        return found

    one, again, other = moments(1), moments(1), moments(2)
    assert one == again != other
    waits = [after - before for before, after in itertools.pairwise(one)]
    intervals = [3.0] * len(waits) if error else [1.5, 2.25, *[3.0] * (len(waits) - 2)]
    assert all(0.8 * i <= wait <= 1.2 * i for i, wait in zip(intervals, waits, strict=True))
    assert len(set(waits)) > 10
    assert min(waits[3:]) < 2.9 < 3.1 < max(waits)
