"""A simulated world for asyncio programs: one seed decides everything, and the same seed repeats the same run.

    loop = SimulatedLoop(seed)
    loop.run(main())

Time is virtual: when nothing can run, the clock jumps to the next timer. The seed decides which of the ready callbacks
runs next, so races that a real loop hardly ever shows are ordinary here. There are no threads: `asyncio.to_thread` runs
its function immediately, and other executors are refused.

A `Process` is a group of tasks that die together. A killed process never runs again, not even a `finally`. A paused
process stops, together with its timers, for as long as the seed says. A `Network` carries the calls of a process to a
shared store: requests and replies take time, get lost, come twice, or arrive long after their sender died. `Audit`
watches the store itself. `loop.trace` is a digest of every step. Equal seeds have equal traces in any Python process.
The module is long because loop, processes and network share one clock, one order of events and one trace.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import hashlib
import heapq
import random
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, OutcomeUnknown, Unavailable
from alpheus_journal.storage import ObjectInfo, Storage, check_paths, slot_taken
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing.faults import WRITES, Call, Fault, Plan, no_faults
from alpheus_journal.tree.node import decode_node

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_Context = contextvars.Context

STEPS_MAX = 1_000_000
"""A run with more steps is in an endless loop. A run of a catalog takes some 100,000."""


class Process:
    """Tasks that live, pause and die together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.parked: list[asyncio.Handle] = []


_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class _Future(asyncio.Future[Any]):
    """A future whose hash is its order of creation, so that sets of futures have the same order in every run."""

    def __init__(self, *, loop: SimulatedLoop) -> None:
        super().__init__(loop=loop)
        self._number = loop.next_number()

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    def __init__(
        self, coro: Any, *, loop: SimulatedLoop, name: str | None = None, context: _Context | None = None
    ) -> None:
        self._number = loop.next_number()
        self.owner = (context or contextvars.copy_context()).get(_process)
        super().__init__(coro, loop=loop, name=name or f"task-{self._number}", context=context)

    def __hash__(self) -> int:
        return self._number


class Stuck(AssertionError):
    """Nothing can run any more, because every task waits for another."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of the world (see the module). Each loop runs once."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.steps = 0
        self._now = 0.0
        self._ready: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_number = 0
        self._number = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._tasks: list[_Task] = []
        self._processes: list[Process] = []
        self._running = False
        self._closed = False
        self._broken: BaseException | None = None
        self.failures: list[dict[str, Any]] = []
        """The errors of tasks that no task awaits."""

    # --- running

    def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run `main` to its end, then cancel all other tasks. Raises the errors of `main`."""
        randomness, hooks = random.getstate(), sys.get_asyncgen_hooks()
        collecting = gc.isenabled()
        gc.disable()  # a collection at a random time would finalise generators at that time
        random.seed(self.random.getrandbits(64))  # for code that uses the module's global generator
        sys.set_asyncgen_hooks(firstiter=lambda _: None, finalizer=self._finalise)
        asyncio._set_running_loop(self)
        self._running = True
        try:
            task: _Task = self.create_task(main)
            self._run_until(task)
            return task.result()  # type: ignore[no-any-return]
        finally:
            self._end()
            self._running, self._closed = False, True
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            random.setstate(randomness)
            if collecting:
                gc.enable()

    def _run_until(self, task: asyncio.Task[Any]) -> None:
        while not task.done():
            self._step()
            if self._broken is not None:
                raise self._broken
            if self.steps > STEPS_MAX:
                raise Stuck(f"{self.steps} steps and no end")

    def _step(self) -> None:
        while not self._ready:
            if not self._timers:
                waiting = [repr(task) for task in self._tasks if not task.done()]
                raise Stuck("nothing can run: " + "\n".join(waiting))
            self._now = max(self._now, self._timers[0][0])
            while self._timers and self._timers[0][0] <= self._now:
                self._offer(heapq.heappop(self._timers)[2])
        ready = self._ready
        choice = self.random.randrange(len(ready)) if len(ready) > 1 else 0
        ready[choice], ready[-1] = ready[-1], ready[choice]
        handle = ready.pop()
        if handle.cancelled():
            return
        owner = handle._context.get(_process)  # type: ignore[attr-defined]
        if owner is not None and (owner.is_paused or not owner.is_alive):
            owner.parked.append(handle)
            return
        self.steps += 1
        self._digest.update(b"%d/%d@%d" % (choice, len(ready), int(self._now * 1e6)))
        handle._run()

    def _offer(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)

    def _end(self) -> None:
        """Cancel all remaining tasks, also those of dead processes, so that nothing waits for a collection."""
        for _ in range(100):
            left = [task for task in self._tasks if not task.done()]
            if not left:
                break
            for process in self._processes:
                self._ready.extend(process.parked)  # dead tasks cannot end without their wakeups
                process.parked.clear()
            for task in left:
                task.cancel()
            for _ in range(100_000):
                if not self._ready:
                    break
                handle = self._ready.pop()
                if not handle.cancelled():
                    handle._run()
        self._ready.clear()
        self._timers.clear()

    def _finalise(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.create_task(generator.aclose())

    # --- processes

    def start(self, process: Process, main: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a coroutine and the tasks that it starts as part of a process. `run` raises its errors."""
        context = contextvars.copy_context()
        context.run(_process.set, process)
        if process not in self._processes:
            self._processes.append(process)
        task = self.create_task(main, context=context)
        task.add_done_callback(self.must_succeed)
        return task

    def must_succeed(self, task: asyncio.Task[Any]) -> None:
        """Let `run` raise the errors of a task that no task awaits. To be used as a callback."""
        if not task.cancelled() and task.exception() is not None and self._broken is None:
            self._broken = task.exception()

    def kill(self, process: Process) -> None:
        """Stop a process for ever. Requests that it has sent still travel."""
        self.note(f"kill {process.name}")
        process.is_alive = False

    def pause(self, process: Process, seconds: float) -> None:
        """Pause a process. Events that it waited for happen immediately when it continues."""
        self.note(f"pause {process.name}")
        process.is_paused = True

        def resume() -> None:
            process.is_paused = False
            if process.is_alive:
                self._ready.extend(process.parked)
                process.parked.clear()

        outside = contextvars.copy_context()
        outside.run(_process.set, None)
        self.call_later(seconds, resume, context=outside)

    def note(self, text: str) -> None:
        """Add a text to the trace."""
        self._digest.update(text.encode())

    @property
    def trace(self) -> str:
        return self._digest.hexdigest()

    # --- what asyncio asks of a loop

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: _Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: _Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: _Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_number += 1
        heapq.heappush(self._timers, (when, self._timer_number, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return  # the timer is skipped when its time comes

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: _Context | None = None) -> _Task:
        task = _Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) > 4096:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        if executor is not None:
            raise RuntimeError("a simulation has no threads")
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_soon_threadsafe(self, *args: object, **kwargs: object) -> asyncio.Handle:
        raise RuntimeError("a simulation has no threads")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        owner = getattr(context.get("future"), "owner", None)
        if owner is None or owner.is_alive:  # tasks of dead processes retrieve no errors
            self.failures.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed


class SimulatedClock:
    """The wall clock of one process. It runs with the loop's time, and can be wrong."""

    def __init__(self, loop: SimulatedLoop, begin_millis: int = 1_800_000_000_000) -> None:
        self._loop = loop
        self._begin = begin_millis
        self._frozen: int | None = None
        self.offset_millis = 0

    def now_millis(self) -> int:
        if self._frozen is not None:
            return self._frozen
        return self._begin + self.offset_millis + int(self._loop.time() * 1000)

    def freeze(self) -> None:
        """Stop the clock at the current time."""
        self._frozen = self.now_millis()

    def set_right(self) -> None:
        self._frozen, self.offset_millis = None, 0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Weather(msgspec.Struct, frozen=True):
    """The behaviour of a network. Probabilities are for one call, times in seconds."""

    fault_rate: float = 0.05
    fast_seconds: float = 0.02
    late_rate: float = 0.02
    late_seconds_max: float = 60.0
    timeout_seconds: float = 2.0


class Network(Storage):
    """The connection of one process to a store. Every call is a request and a reply that travel independently.

    Requests still travel after their caller was killed, paused or cancelled. When a reply takes longer than the
    time-out, a writer gets OutcomeUnknown and a reader Unavailable; the request may still arrive. `plan` decides
    which calls are refused, lost or doubled.
    """

    def __init__(self, loop: SimulatedLoop, store: Storage, weather: Weather, plan: Plan = no_faults) -> None:
        self.inner = store
        self.url = store.url
        self.plan = plan
        self.weather = weather
        self.calls = 0
        self._loop = loop
        self._outside = contextvars.copy_context()
        self._outside.run(_process.set, None)
        self._travelling: set[asyncio.Task[None]] = set()

    async def arrived(self) -> None:
        """Return when all requests and replies that are travelling have arrived."""
        if self._travelling:
            await asyncio.wait(set(self._travelling))

    def _seconds(self) -> float:
        rng, weather = self._loop.random, self.weather
        if rng.random() < weather.late_rate:
            return rng.random() * weather.late_seconds_max
        return rng.random() * weather.fast_seconds

    async def _call(self, method: str, path: str, operation: Callable[[], Awaitable[_T]]) -> _T:
        call = Call(method, path, self.calls)
        self.calls += 1
        fault = self.plan(call)
        self._loop.note(f"{method} {path} {fault}")
        reply: asyncio.Future[_T] = self._loop.create_future()
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())
        travel = self._loop.create_task(self._travel(call, fault, operation, reply), context=self._outside)
        self._travelling.add(travel)
        travel.add_done_callback(self._travelling.discard)
        try:
            async with asyncio.timeout(self.weather.timeout_seconds):
                return await reply
        except TimeoutError:
            raise _lost(call) from None

    async def _travel(
        self,
        call: Call,
        fault: Fault | None,
        operation: Callable[[], Awaitable[_T]],
        reply: asyncio.Future[_T],
    ) -> None:
        await asyncio.sleep(self._seconds())
        match fault:
            case Fault.FAIL_BEFORE:
                return _settle(reply, Unavailable(f"simulated: {call}", path=call.path))
            case Fault.NOT_APPLIED_BUT_UNKNOWN | Fault.ANSWERED_409 | Fault.ANSWERED_503:
                return _settle(reply, _lost(call))
            case Fault.ANSWERED_412:
                return _settle(reply, slot_taken(call.path))
            case Fault.APPLIED_LATE:
                await asyncio.sleep(self._loop.random.random() * self.weather.late_seconds_max)
        result = await _outcome(operation)
        if fault is Fault.DUPLICATE_APPLY:
            await asyncio.sleep(self._seconds())
            result = await _outcome(operation)
        await asyncio.sleep(self._seconds())
        if fault is Fault.APPLIED_BUT_LOST:
            return _settle(reply, _lost(call))
        return _settle(reply, result)

    async def read(self, path: str, *, size_max: int) -> bytes:
        return await self._call("read", path, lambda: self.inner.read(path, size_max=size_max))

    async def read_many(self, paths: list[str], *, size_max: int) -> dict[str, bytes]:
        contents = await _together([self.read(path, size_max=size_max) for path in paths])
        return dict(zip(paths, contents, strict=True))

    async def stat(self, path: str) -> ObjectInfo | None:
        return await self._call("stat", path, lambda: self.inner.stat(path))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async def whole() -> list_[ObjectInfo]:
            return [info async for info in self.inner.list(prefix)]

        for info in await self._call("list", prefix, whole):
            yield info

    async def create(self, path: str, data: bytes) -> None:
        await self._call("create", path, lambda: self.inner.create(path, data))

    async def put(self, path: str, data: bytes) -> None:
        await self._call("put", path, lambda: self.inner.put(path, data))

    async def put_many(self, files: Mapping[str, bytes]) -> None:
        await _together([self.put(path, data) for path, data in files.items()])

    async def delete(self, path: str) -> None:
        await self._call("delete", path, lambda: self.inner.delete(path))

    async def delete_many(self, paths: Sequence[str]) -> None:
        await _together([self.delete(path) for path in check_paths(paths)])

    def uri(self, path: str) -> str:
        return self.inner.uri(path)


list_ = list  # `Network.list` hides the type inside its class


def _lost(call: Call) -> AlpheusError:
    text = f"simulated: no reply to {call}"
    return (OutcomeUnknown if call.method in WRITES else Unavailable)(text, path=call.path)


async def _outcome(operation: Callable[[], Awaitable[_T]]) -> _T | Exception:
    try:
        return await operation()
    except Exception as error:  # for the caller, which may be gone
        return error


def _settle(reply: asyncio.Future[_T], result: _T | Exception) -> None:
    if reply.done():
        return  # the caller has given up
    if isinstance(result, Exception):
        reply.set_exception(result)
    else:
        reply.set_result(result)


async def _together(calls: list_[Coroutine[Any, Any, _T]]) -> list_[_T]:
    """Run all calls to their end, then raise the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


class Audit(Storage):
    """Watches all writes directly in front of a store, and reports forbidden ones.

    `violations` has the forbidden writes: a slot filled twice, a tombstone of another version or above a version that
    is kept, an immutable file written with other bytes, a slot deleted.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.url = inner.url
        self.slots: dict[str, bytes] = {}
        """Every slot that was ever filled, in the order in which they were filled."""
        self.violations: list[str] = []
        self.expired = 0
        """The versions below this one have tombstones."""
        self.deleted: dict[str, int] = {}
        """The paths that were deleted, and `expired` at the first deletion of each."""
        self.deleted_below: dict[str, int] = {}
        """The head at the first deletion of each path."""
        self._expired_before: list[int] = []  # for each slot in order: `expired` when it was filled
        self._written: dict[str, bytes] = {}

    def expired_before(self, version: int) -> int:
        """Return the value of `expired` when a version was written."""
        return self._expired_before[version]

    async def archive(self) -> Storage:
        """Return a store with everything that was ever written, without expired versions."""
        archive = MemoryStorage()
        await archive.put_many(self._written)
        for path, root in self.slots.items():
            await archive.create(path, root)
        return archive

    async def read(self, path: str, *, size_max: int) -> bytes:
        return await self.inner.read(path, size_max=size_max)

    async def stat(self, path: str) -> ObjectInfo | None:
        return await self.inner.stat(path)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self.inner.list(prefix):
            yield info

    async def create(self, path: str, data: bytes) -> None:
        await self.inner.create(path, data)
        if path in self.slots:
            self.violations.append(f"{path} was filled twice")
        self.slots[path] = data
        self._expired_before.append(self.expired)

    async def put(self, path: str, data: bytes) -> None:
        if path in self.slots:
            self._bury(path, data)
        elif not path.startswith("vn/") and self._written.setdefault(path, data) != data:
            self.violations.append(f"{path} was written with other bytes")
        await self.inner.put(path, data)

    def _bury(self, path: str, data: bytes) -> None:
        """Judge what replaces a slot: only a tombstone of the lowest kept version, or of a lower one, may."""
        version = list(self.slots).index(path)
        if version > self.expired or not _is_tombstone_of(path, self.slots[path], data):
            self.violations.append(f"{path} was overwritten while {self.expired} is kept")
        self.expired = max(self.expired, version + 1)

    async def delete(self, path: str) -> None:
        if path.startswith("vn/") and path not in (fmt.LATEST_HINT, fmt.OLDEST_HINT):
            self.violations.append(f"{path} was deleted")
        self.deleted.setdefault(path, self.expired)
        self.deleted_below.setdefault(path, len(self.slots) - 1)
        await self.inner.delete(path)

    async def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            await self.delete(path)

    def uri(self, path: str) -> str:
        return self.inner.uri(path)


def _is_tombstone_of(path: str, root: bytes, data: bytes) -> bool:
    try:
        before = decode_node(root, path, root=True, size_max=len(root))
        after = decode_node(data, path, root=True, size_max=len(data))
    except Corrupt:
        return False
    return after.is_tombstone and after.commit_id == before.commit_id


class LaxStorage(Storage):
    """A store whose `create` overwrites existing files. No catalog survives on it. For self-tests."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.url = inner.url

    async def read(self, path: str, *, size_max: int) -> bytes:
        return await self.inner.read(path, size_max=size_max)

    async def stat(self, path: str) -> ObjectInfo | None:
        return await self.inner.stat(path)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self.inner.list(prefix):
            yield info

    async def create(self, path: str, data: bytes) -> None:
        await self.inner.put(path, data)

    async def put(self, path: str, data: bytes) -> None:
        await self.inner.put(path, data)

    async def delete(self, path: str) -> None:
        await self.inner.delete(path)

    async def delete_many(self, paths: Sequence[str]) -> None:
        await self.inner.delete_many(paths)

    def uri(self, path: str) -> str:
        return self.inner.uri(path)
