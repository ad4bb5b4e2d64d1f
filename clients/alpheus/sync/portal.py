"""The event loop of the synchronous client, in a thread, and streams read through it."""

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
    """One coroutine on the loop. All but the constructor runs in the loop's thread."""

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
        """Cancel the coroutine, whether it runs or has yet to begin; one that ended stays as it is."""
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
        """Wait for a coroutine. An interrupt of the waiting thread (Ctrl-C) cancels it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise AssertionError("the synchronous client was called from its own event loop")
        call = _Call(coroutine)
        try:
            return asyncio.run_coroutine_threadsafe(call.run(), self._loop).result()
        except BaseException:
            # An interrupt may come before the future above has a name, so the call is cancelled, and not the future.
            self._loop.call_soon_threadsafe(call.cancel)
            raise

    def stop(self) -> None:
        """Cancel what still runs, and end the thread."""
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
    """The loop of this process; a forked child gets its own."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = BackgroundLoop()
            atexit.register(_loop.stop)
        return _loop


_inherited: list[BackgroundLoop] = []


def _forget_loop() -> None:
    # In a forked child: the thread was not copied, the lock may have been held.
    global _loop, _lock
    if _loop is not None:
        atexit.unregister(_loop.stop)
        # Kept: letting go of it would end its tasks and their calls, and gRPC without its threads crashes. A program
        # that is started with a `preexec_fn`, as Spark's JVM is, passes through here, too.
        _inherited.append(_loop)
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_loop)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the asynchronous client to its end, from synchronous code."""
    return background_loop().run(coroutine)


_END: Any = object()


class Iteration(Iterator[T], Closing):
    """A stream read one value at a time: nothing is fetched ahead of what the transport buffers.

    `close` (or the end of a `with` block) frees what it holds at the other end; so does letting go of it.
    """

    def __init__(self, source: AsyncIterator[T]) -> None:
        self._source = source
        # An interrupted `__next__` is still winding up when `close` comes; a generator refuses both at once.
        self._turn = asyncio.Lock()
        self._pid = os.getpid()

    def __iter__(self) -> Iteration[T]:
        return self

    def __next__(self) -> T:
        if self._pid != os.getpid():
            raise InvalidInput("a stream does not live on in a forked process", hint="start it again there")
        value = run(self._anext())
        if value is _END:
            raise StopIteration
        return value

    async def _anext(self) -> T:
        async with self._turn:
            return await anext(self._source, _END)

    def close(self) -> None:
        """Idempotent."""
        if self._pid == os.getpid():
            run(self._aclose())

    async def _aclose(self) -> None:
        async with self._turn:
            await cast(Any, self._source).aclose()
