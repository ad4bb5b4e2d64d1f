"""Retries of calls: for how long, and with which pauses."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from alpheus_journal.errors import AlpheusError, Exhausted, InvalidInput, OutcomeUnknown, Unavailable


class RetryPolicy:
    """For how many seconds a call is retried, and the pauses between attempts (exponential, with jitter).

    Clock, sleep and randomness are arguments, so that tests control them.
    """

    def __init__(
        self,
        timeout: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 1e9:
            raise InvalidInput(
                f"timeout={timeout!r} is not a positive number", hint="give a number of seconds above 0"
            )
        self.timeout = float(timeout)
        self._monotonic = monotonic
        self._sleep = sleep
        self._random = jitter or random.Random()

    def now(self) -> float:
        """Seconds on the clock that bounds the calls."""
        return self._monotonic()

    def start(self) -> Retry:
        return Retry(self)

    def pause(self, failures: int) -> float:
        """Seconds to wait after this number of failures in a row, which is one or more."""
        return min(2.0, 0.05 * 2.0 ** min(failures - 1, 10)) * self._random.uniform(0.5, 1.0)


class Retry:
    """The attempts of one call: the time that is left, and the wait before the next attempt."""

    def __init__(self, retry_policy: RetryPolicy) -> None:
        self._policy = retry_policy
        self._deadline = retry_policy._monotonic() + retry_policy.timeout
        self._failures = 0
        self._fresh = False  # the timeout restarts with the next failure

    @property
    def remaining(self) -> float:
        return max(0.0, self._deadline - self._policy._monotonic())

    def note_progress(self) -> None:
        """Record that a stream made progress: the timeout restarts with the next failure."""
        self._failures = 0
        self._fresh = True

    async def wait_to_retry(self, error: AlpheusError, *, forever: bool = False) -> bool:
        """Wait, and return True, when the call may succeed later and time is left. Otherwise return False
        immediately. With `forever` the time that is left does not matter."""
        if error.kind in ("storage_read_only", "history_replaced") or not isinstance(
            error, Unavailable | Exhausted | OutcomeUnknown
        ):
            return False
        if self._fresh:
            self._fresh = False
            self._deadline = self._policy._monotonic() + self._policy.timeout
        self._failures += 1
        pause = self._policy.pause(self._failures)
        if isinstance(error, Exhausted):
            if error.retry_after is None and error.kind != "subscriber_too_slow":
                return False
            pause = max(pause, error.retry_after or 0.0)
        if not forever and pause >= self.remaining:
            return False
        await self._policy._sleep(pause)
        return True
