"""Failpoints: the effects of arming, and no effect while disarmed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from alpheus_journal import failpoints
from alpheus_journal.errors import InvalidInput
from alpheus_journal.failpoints import FailpointError, armed, hit, reached

POINT = "commit.staged"


async def test_off_nothing_happens() -> None:
    hit(POINT)
    await reached(POINT)
    hit("no such point: nobody looks")


async def test_raise_at_the_nth_hit() -> None:
    with armed(POINT, "raise@2") as point:
        hit(POINT)
        with pytest.raises(FailpointError, match=POINT):
            await reached(POINT)
        hit(POINT)
        hit("log.slot_get")
        assert point.hits == 3
    hit(POINT)


async def test_a_coroutine_pauses_and_the_loop_goes_on() -> None:
    with armed(POINT, "pause") as point:
        task = asyncio.ensure_future(reached(POINT))
        await point.wait_for_hit()
        assert not task.done()
        point.release()
        await task
        await reached(POINT)  # a released failpoint stays released
    assert point.hits == 2


async def test_a_thread_pauses() -> None:
    with armed("local.link", "pause@1") as point:
        thread = threading.Thread(target=hit, args=("local.link",))
        thread.start()
        await point.wait_for_hit()
        assert thread.is_alive()
    await asyncio.to_thread(thread.join)  # disarming releases the thread


async def test_sleep_and_count() -> None:
    with armed(POINT, "sleep:1") as point:
        await reached(POINT)
        await asyncio.to_thread(hit, POINT)
        assert point.hits == 2
    with armed(POINT, "count") as point:
        await reached(POINT)
        assert point.hits == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("commit.stagd=kill", "commit.stagd"),
        ("commit.staged=die", "kill, raise"),
        ("commit.staged", "is not an action"),
        ("commit.staged=sleep", "sleep:MILLISECONDS"),
        ("commit.staged=kill@0", "n-th hit"),
    ],
)
def test_what_is_not_known_is_said(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as raised:
        failpoints.arm_all(f"log.slot_get=count; {text}")
    assert raised.value.kind == "bad_configuration"
    failpoints.disarm()


def test_several_at_once() -> None:
    failpoints.arm_all(" log.slot_get=raise ;; hint.put=sleep:0@4;")
    try:
        with pytest.raises(FailpointError):
            hit("log.slot_get")
        hit("hint.put")
    finally:
        failpoints.disarm()
