"""The simulated world: virtual time, one run for each seed, processes that die and pause, a network that loses
messages.
"""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from alpheus_journal.errors import AlreadyExists, OutcomeUnknown, Unavailable
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Fault
from alpheus_journal.testing.simulation.loop import (
    Network,
    Process,
    SimulatedClock,
    SimulatedLoop,
    Stuck,
    Weather,
)


def test_time_passes_only_when_nothing_can_run() -> None:
    loop = SimulatedLoop(1)

    async def main() -> list[float]:
        times = [loop.time()]
        await asyncio.gather(asyncio.sleep(86_400), asyncio.sleep(3_600))
        times.append(loop.time())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        times.append(loop.time())
        return times

    assert loop.run(main()) == [0.0, 86_400.0, 86_405.0]


def order_of(seed: int) -> tuple[list[int], str]:
    loop = SimulatedLoop(seed)
    order: list[int] = []

    async def one(number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        order.append(number)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(one(number))

    loop.run(main())
    return order, loop.trace


def test_a_seed_is_an_order() -> None:
    assert order_of(1) == order_of(1)
    assert len({order_of(seed)[1] for seed in range(50)}) == 50
    assert len({tuple(order_of(seed)[0]) for seed in range(50)}) > 40


def test_sets_of_tasks_and_futures_are_walked_in_one_order() -> None:
    def run() -> list[str]:
        loop = SimulatedLoop(3)

        async def main() -> list[str]:
            tasks = {asyncio.ensure_future(asyncio.sleep(n)) for n in range(20)}
            futures = {loop.create_future() for _ in range(20)}
            await asyncio.wait(tasks)
            return [task.get_name() for task in tasks] + [str(hash(future)) for future in futures]

        return loop.run(main())

    assert run() == run()


def test_there_are_no_threads() -> None:
    loop = SimulatedLoop(1)

    async def main() -> int:
        with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="no threads"):
            await loop.run_in_executor(pool, lambda: 1)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 7)

    assert loop.run(main()) == 7


def test_who_waits_for_nothing_is_named() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="main"):
        SimulatedLoop(1).run(main())


def test_the_random_module_is_seeded_and_given_back() -> None:
    async def main() -> float:
        return random.random()

    random.seed(5)
    before = random.getstate()
    assert SimulatedLoop(1).run(main()) == SimulatedLoop(1).run(main()) != SimulatedLoop(2).run(main())
    assert random.getstate() == before


def test_the_dead_run_no_more_not_even_to_clean_up() -> None:
    loop = SimulatedLoop(1)
    seen: list[str] = []

    async def live() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append("alive")
        finally:
            seen.append("cleaned up")

    async def main() -> None:
        process = Process("p")
        loop.start(process, live())
        await asyncio.sleep(3.5)
        loop.kill(process)
        await asyncio.sleep(10)
        assert seen == ["alive"] * 3

    loop.run(main())
    assert seen[-1] == "cleaned up"  # when the world has ended, so that the interpreter can free it


def test_a_paused_process_stands_still_with_its_timers() -> None:
    loop = SimulatedLoop(1)
    times: list[float] = []

    async def live() -> None:
        for _ in range(4):
            await asyncio.sleep(1)
            times.append(loop.time())

    async def main() -> None:
        process = Process("p")
        task = loop.start(process, live())
        await asyncio.sleep(1.5)
        loop.pause(process, 100)
        await task

    loop.run(main())
    assert times == [1.0, 101.5, 102.5, 103.5]


def test_what_a_process_raises_ends_the_run() -> None:
    loop = SimulatedLoop(1)

    async def live() -> None:
        await asyncio.sleep(1)
        raise ValueError("lost")

    async def main() -> None:
        loop.start(Process("p"), live())
        await asyncio.sleep(100)

    with pytest.raises(ValueError, match="lost"):
        loop.run(main())
    assert loop.time() < 2


def test_clocks_that_are_wrong() -> None:
    loop = SimulatedLoop(1)
    clock = SimulatedClock(loop, begin_millis=1000)

    async def main() -> list[int]:
        times = [clock.now_millis()]
        await clock.sleep(2)
        times.append(clock.now_millis())
        clock.freeze()
        await clock.sleep(2)
        times.append(clock.now_millis())
        clock.set_right()
        clock.offset_millis = -500
        times.append(clock.now_millis())
        return times

    assert loop.run(main()) == [1000, 3000, 3000, 4500]


def network_of(
    loop: SimulatedLoop, store: MemoryStorage, fault: Fault | None, weather: Weather | None = None
) -> Network:
    return Network(loop, store, weather or Weather(late_rate=0), lambda call: fault)


@pytest.mark.parametrize(
    ("fault", "answer", "applied"),
    [
        (None, None, True),
        (Fault.FAIL_BEFORE, Unavailable, False),
        (Fault.APPLIED_BUT_LOST, OutcomeUnknown, True),
        (Fault.NOT_APPLIED_BUT_UNKNOWN, OutcomeUnknown, False),
        (Fault.ANSWERED_409, OutcomeUnknown, False),
        (Fault.ANSWERED_412, AlreadyExists, False),
        (Fault.ANSWERED_503, OutcomeUnknown, False),
        (Fault.DUPLICATE_APPLY, AlreadyExists, True),
    ],
)
def test_faults_of_the_network(fault: Fault | None, answer: type[Exception] | None, applied: bool) -> None:
    loop, store = SimulatedLoop(1), MemoryStorage()

    async def main() -> None:
        network = network_of(loop, store, fault)
        if answer is None:
            await network.create("vn/0", b"x")
        else:
            with pytest.raises(answer):
                await network.create("vn/0", b"x")
        await network.arrived()
        assert await store.exists("vn/0") is applied

    loop.run(main())


def test_a_late_request_arrives_after_its_sender_died() -> None:
    loop, store = SimulatedLoop(1), MemoryStorage()
    weather = Weather(late_rate=1.0, late_seconds_max=50, timeout_seconds=0.001)

    async def main() -> None:
        network = network_of(loop, store, None, weather)
        process = Process("p")
        task = loop.start(process, network.create("vn/0", b"x"))
        await asyncio.sleep(0)
        loop.kill(process)
        await asyncio.sleep(200)
        assert not task.done()
        assert await store.exists("vn/0")

    loop.run(main())


def test_a_caller_that_gives_up_hears_that_it_is_unknown() -> None:
    loop, store = SimulatedLoop(2), MemoryStorage()
    weather = Weather(late_rate=1.0, late_seconds_max=50, timeout_seconds=0.1)

    async def main() -> None:
        network = network_of(loop, store, None, weather)
        with pytest.raises(OutcomeUnknown):
            await network.put("a", b"x")
        with pytest.raises(Unavailable):
            await network.read("a", size_max=1)
        await network.arrived()
        assert await store.read("a", size_max=1) == b"x"
        assert loop.time() > 0.2

    loop.run(main())
