"""The calls that run: how many, and what their requests take."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from alpheus_journal.errors import AlpheusError, Exhausted, InvalidInput

BUSY_SECONDS = 0.5
"""Who is refused because too much runs is told to come again after so long."""


class Calls:
    """The calls that run now, so that the end can wait for them and for nothing else; and their bounds.

    Bytes are what decoding the requests may take (`weights`); until that is known, those that came. `one_bytes_max`:
    of one request.
    """

    def __init__(self, *, count_max: int, bytes_max: int, one_bytes_max: int) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.one_bytes_max = one_bytes_max
        self._count = 0
        self._bytes = 0
        self._none = asyncio.Event()
        self._none.set()
        self._ended = -math.inf  # monotonic seconds, when the last one did

    @property
    def count(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """Of their requests together."""
        return self._bytes

    def check(self, size_bytes: int) -> None:
        """Refuse the call of `size_bytes` that just began when there are too many, or when it is too large by itself.
        Up to that one alone may be of any size."""
        if size_bytes > self.one_bytes_max:
            raise InvalidInput(
                f"the request would take some {size_bytes} bytes decoded, {self.one_bytes_max} at most",
                kind="too_large",
                hint="send fewer operations or names at a time, or raise --request-bytes-max",
            )
        if self._count > self.count_max:
            raise Exhausted(
                f"{self._count - 1} requests run already",
                kind="too_many_requests",
                retry_after=BUSY_SECONDS,
                hint="ask again later, or raise --requests-max",
            )
        if self._bytes > self.bytes_max and self._bytes > size_bytes:
            raise Exhausted(
                f"the requests that run take {self._bytes - size_bytes} bytes decoded already",
                kind="too_many_requests",
                retry_after=BUSY_SECONDS,
                hint="ask again later, or raise --requests-bytes-max",
            )

    def begin(self, size_bytes: int) -> None:
        """One call runs, until `end`."""
        self._count += 1
        self._bytes += size_bytes
        self._none.clear()

    def grow(self, before_bytes: int, after_bytes: int) -> None:
        """A call that runs turns out to take more. Refused as by `check`, it counts as before."""
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
        """Return when none has run for `seconds`, or after `patience_seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                await self._none.wait()
                while not self._none.is_set() or self._ended + seconds > time.monotonic():
                    await asyncio.sleep(max(self._ended + seconds - time.monotonic(), 0))
                    await self._none.wait()
