"""The event loop of the synchronous client in its own thread, and streams that are read through the loop."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Generic, TypeVar, cast

from alpheus.closing import Closing
from alpheus_journal.errors import InvalidInput

T = TypeVar("T")


class _Call(Generic[T]):
    """One coroutine on the loop. All methods except the constructor run in the loop's thread."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    async def run(self) -> T:
        if self._is_cancelled:
            self._coroutine.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._coroutine

    def cancel(self) -> None:
        """Cancel the coroutine, even before it begins. A coroutine that has ended is not affected."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


class BackgroundLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="alpheus", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine and return its result. An interrupt of the waiting thread (Ctrl-C) cancels the
        coroutine."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise AssertionError("the synchronous client was called from its own event loop")
        call = _Call(coroutine)
        try:
            return asyncio.run_coroutine_threadsafe(call.run(), self._loop).result()
        except BaseException:
            # Cancel the call, not the future: an interrupt may come before this code has a reference to the future.
            self._loop.call_soon_threadsafe(call.cancel)
            raise

    def stop(self) -> None:
        """Cancel all running coroutines, and end the thread."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._wind_up(), self._loop)
        self._thread.join(timeout=5)

    async def _wind_up(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        self._loop.stop()


_lock = threading.Lock()
_loop: BackgroundLoop | None = None


def background_loop() -> BackgroundLoop:
    """Return the loop of this process. A forked child gets its own."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = BackgroundLoop()
            atexit.register(_loop.stop)
        return _loop


_inherited: list[BackgroundLoop] = []


def _forget_loop() -> None:
    # Runs in a forked child: the thread was not copied, and another thread may have held the lock.
    global _loop, _lock
    if _loop is not None:
        atexit.unregister(_loop.stop)
        # Keep a reference: freeing the loop would end its tasks and their calls, and gRPC crashes without its threads.
        # A program that is started with a `preexec_fn`, such as Spark's JVM, also runs this.
        _inherited.append(_loop)
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_loop)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the asynchronous client to its end, from synchronous code."""
    return background_loop().run(coroutine)


_END: Any = object()


class Iteration(Iterator[T], Closing):
    """A stream that is read one value at a time. Only the transport fetches values ahead, into its buffer.

    `close`, the end of a `with` block, or deleting the last reference to the stream frees its resources at the other
    end.
    """

    def __init__(self, source: AsyncIterator[T]) -> None:
        self._source = source
        # After an interrupt, `__next__` may still be ending when `close` is called, and a generator refuses both
        # concurrently.
        self._turn = asyncio.Lock()
        self._pid = os.getpid()

    def __iter__(self) -> Iteration[T]:
        return self

    def __next__(self) -> T:
        if self._pid != os.getpid():
            raise InvalidInput(
                "a stream cannot be used in a forked process", hint="open the stream again in this process"
            )
        value = run(self._anext())
        if value is _END:
            raise StopIteration
        return value

    async def _anext(self) -> T:
        async with self._turn:
            return await anext(self._source, _END)

    def close(self) -> None:
        """End the stream. Further calls do nothing."""
        if self._pid == os.getpid():
            run(self._aclose())

    async def _aclose(self) -> None:
        async with self._turn:
            await cast(Any, self._source).aclose()
