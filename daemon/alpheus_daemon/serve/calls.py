"""The running calls: their number, and the memory that their requests take."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from alpheus_journal.errors import AlpheusError, Exhausted, InvalidInput

BUSY_SECONDS = 0.5
"""The time after which callers are asked to retry when too many calls run."""


class Calls:
    """The running calls and their bounds. The end of the daemon waits for these calls, and for nothing else.

    A call counts with the bytes that decoding its request may take (`request_weights`). Until the weight is known, it
    counts with the bytes of the request. `one_bytes_max` bounds a single request.
    """

    def __init__(self, *, count_max: int, bytes_max: int, one_bytes_max: int) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.one_bytes_max = one_bytes_max
        self._count = 0
        self._bytes = 0
        self._none = asyncio.Event()
        self._none.set()
        self._ended = -math.inf  # when the last call ended, in monotonic seconds

    @property
    def count(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """The bytes of all their requests."""
        return self._bytes

    def check(self, size_bytes: int) -> None:
        """Refuse the call of `size_bytes` that just began, if it is too large or if too many calls run.

        A call that runs alone is bounded only by `one_bytes_max`. Raises InvalidInput (`too_large`) and Exhausted
        (`too_many_requests`).
        """
        if size_bytes > self.one_bytes_max:
            raise InvalidInput(
                f"the request would take some {size_bytes} bytes when decoded; the limit is {self.one_bytes_max}",
                kind="too_large",
                hint="send fewer operations or names at a time, or raise --request-bytes-max",
            )
        if self._count > self.count_max:
            raise Exhausted(
                f"{self._count - 1} requests are running already",
                kind="too_many_requests",
                retry_after=BUSY_SECONDS,
                hint="ask again later, or raise --requests-max",
            )
        if self._bytes > self.bytes_max and self._bytes > size_bytes:
            raise Exhausted(
                f"the running requests take {self._bytes - size_bytes} bytes when decoded already",
                kind="too_many_requests",
                retry_after=BUSY_SECONDS,
                hint="ask again later, or raise --requests-bytes-max",
            )

    def begin(self, size_bytes: int) -> None:
        """Count one call as running, until `end`."""
        self._count += 1
        self._bytes += size_bytes
        self._none.clear()

    def grow(self, before_bytes: int, after_bytes: int) -> None:
        """Change the size of a running call. If `check` refuses the new size, the call counts as before."""
        self._bytes += after_bytes - before_bytes
        try:
            self.check(after_bytes)
        except AlpheusError:
            self._bytes += before_bytes - after_bytes
            raise

    def end(self, size_bytes: int) -> None:
        self._count -= 1
        self._bytes -= size_bytes
        self._ended = time.monotonic()
        if not self._count:
            self._none.set()

    @contextmanager
    def running(self, size_bytes: int) -> Iterator[None]:
        self.begin(size_bytes)
        try:
            yield
        finally:
            self.end(size_bytes)

    async def wait_quiet(self, seconds: float, *, patience_seconds: float) -> None:
        """Return when no call has run for `seconds`, or after `patience_seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                await self._none.wait()
                while not self._none.is_set() or self._ended + seconds > time.monotonic():
                    await asyncio.sleep(max(self._ended + seconds - time.monotonic(), 0))
                    await self._none.wait()
