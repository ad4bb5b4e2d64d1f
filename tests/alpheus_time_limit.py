"""A test that hangs fails under its own name, and the next test runs.

pytest-timeout's alarm ends the test. It raises an exception in the main thread, where tests, event loops and Py4J's
waiting run. (Its other method, a thread, ends the whole process.) This module closes the gaps that the alarm leaves:

- The alarm raises pytest's own failure. Hypothesis takes this failure for a failing example, and runs the test a
  hundred times more. So this module raises `Hung`.
- The alarm rings once, and an asyncio task may swallow the exception. So it rings again, every `AGAIN_SECONDS`.
- pytest-timeout turns the alarm off when a test fails, before the fixtures are torn down. So it is set again.
- A library call that never returns to Python hears no alarm. Then `faulthandler_timeout` (pyproject.toml, Makefile)
  prints the stacks of the process and ends it. pytest-xdist names the test and continues with the others.

`--timeout=seconds` and PYTEST_TIMEOUT set another limit. 0 means none.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest

SMALL_SECONDS = 600.0
"""For a test at small counts, with its fixtures, on a machine that does other work too."""
FULL_SECONDS = 4 * 3600.0
"""For a lane at full counts: the slowest took an hour."""
AGAIN_SECONDS = 30.0

_settings = pytest.StashKey[Any]()
_runs = pytest.StashKey[bool]()
"""Whether a phase of the test runs. Outside of such a phase an alarm would end the whole pytest run."""


class Hung(BaseException):
    """The time of a test is over. Only pytest may catch this exception."""


def set_limit(config: pytest.Config, *, full: bool) -> None:
    """Set the limit of every test of this run, unless the caller of pytest chose a limit.

    Call it in `pytest_configure` before pytest-timeout's own hook. In an environment without pytest-timeout tests have
    no limit.
    """
    if config.getoption("timeout", 0) is None and "PYTEST_TIMEOUT" not in os.environ:
        config.option.timeout = FULL_SECONDS if full else SMALL_SECONDS


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Make the alarm ring repeatedly, and raise `Hung`."""
    item.stash[_settings] = settings
    result = yield
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    ring = signal.getsignal(signal.SIGALRM)
    if left and callable(ring):

        def ring_for_pytest_alone(number: int, frame: FrameType | None) -> None:
            if not item.stash.get(_runs, False):
                return
            try:
                ring(number, frame)  # prints the stacks of the other threads
            except pytest.fail.Exception as error:
                raise Hung(error.msg) from None

        signal.signal(signal.SIGALRM, ring_for_pytest_alone)
        signal.setitimer(signal.ITIMER_REAL, left, AGAIN_SECONDS)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _heard(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _heard(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _heard(item))


def _heard(item: pytest.Item) -> Generator[None, object, object]:
    """Run one phase of a test; the alarm may ring in it."""
    item.stash[_runs] = True
    try:
        return (yield)
    finally:
        item.stash[_runs] = False


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Set the alarm again after a failure: the teardown that follows may hang too."""
    if isinstance(node, pytest.Item) and _settings in node.stash and not node.config.getoption("usepdb"):
        node.ihook.pytest_timeout_set_timer(item=node, settings=node.stash[_settings])
