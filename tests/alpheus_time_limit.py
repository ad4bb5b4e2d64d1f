"""A test that hangs fails by its name, and the next one runs.

pytest-timeout's alarm ends the test: an exception in the main thread, where tests, event loops and Py4J's waiting run.
(Its other method, a thread, ends the whole process.) What the alarm alone leaves open is closed here:

- It raises pytest's own failure, which Hypothesis takes for a failing example: it runs the test again, a hundred times.
  So it raises `Hung`.
- It rings once, and an asyncio task may keep the exception to itself. So it rings again, every `AGAIN_SECONDS`.
- It is turned off when a test fails, before its fixtures are torn down. So it is set anew for them.
- A call of a library that never returns to Python hears no alarm. There `faulthandler_timeout` (pyproject.toml,
  Makefile) prints where the process was, and ends it; pytest-xdist names the test and goes on with the others.

`--timeout=seconds` and PYTEST_TIMEOUT choose another limit, 0 none.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest

SMALL_SECONDS = 600.0
"""A test at small counts, with its fixtures, on a machine that does other work beside it."""
FULL_SECONDS = 4 * 3600.0
"""A lane at full counts: the slowest took an hour."""
AGAIN_SECONDS = 30.0

_settings = pytest.StashKey[Any]()
_runs = pytest.StashKey[bool]()
"""Whether a phase of the test runs, not pytest itself, which an alarm would end as a whole."""


class Hung(BaseException):
    """The time of a test is over. Nothing but pytest is to catch it."""


def set_limit(config: pytest.Config, *, full: bool) -> None:
    """The limit of every test of this run, unless the caller of pytest chose one.

    To be called in `pytest_configure` before pytest-timeout's own. An environment that was made before
    pytest-timeout was a requirement has no limit.
    """
    if config.getoption("timeout", 0) is None and "PYTEST_TIMEOUT" not in os.environ:
        config.option.timeout = FULL_SECONDS if full else SMALL_SECONDS


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Let the alarm ring again and again, and raise `Hung`."""
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
    """A phase in which the alarm may ring."""
    item.stash[_runs] = True
    try:
        return (yield)
    finally:
        item.stash[_runs] = False


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Set the alarm anew: what comes after a failure is teardown, which may hang as well."""
    if isinstance(node, pytest.Item) and _settings in node.stash and not node.config.getoption("usepdb"):
        node.ihook.pytest_timeout_set_timer(item=node, settings=node.stash[_settings])
