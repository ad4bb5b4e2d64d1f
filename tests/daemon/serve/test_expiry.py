"""Deadlines of queued work, on a loop whose clock only the test moves, and callers that leave without affecting
others."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from alpheus_daemon.config import Config
from alpheus_daemon.serve.deadlines import TICK_SECONDS, Deadlines
from alpheus_daemon.serve.server import Server
from alpheus_daemon.serve.service import CatalogService
from alpheus_daemon.serve.watch import Hub
from alpheus_daemon.serve.writer import Writer
from alpheus_journal.errors import InvalidInput, Unavailable
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.testing import Lake


class Item:
    def __init__(self, name: str, told: list[str]) -> None:
        self.name = name
        self.told = told

    def expire(self) -> None:
        self.told.append(self.name)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

    async def pass_by(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(3):
            await asyncio.sleep(0)


async def test_each_expires_at_its_time_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, expiries, told = Clock(monkeypatch), Deadlines(), list[str]()
    for name, seconds in (("late", 30), ("soon", 5), ("middle", 10), ("at once", 0)):
        expiries.add(Item(name, told), seconds)
    await clock.pass_by(0)
    assert told == ["at once"]
    await clock.pass_by(4.9)
    assert told == ["at once"]
    await clock.pass_by(0.2)
    assert told == ["at once", "soon"]
    await clock.pass_by(5)
    await clock.pass_by(20)
    assert told == ["at once", "soon", "middle", "late"]
    assert len(expiries) == 0


async def test_one_that_raises_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, expiries, told = Clock(monkeypatch), Deadlines(), list[str]()

    class Broken(Item):
        def expire(self) -> None:
            raise RuntimeError(self.name)

    raised: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
    expiries.add(Broken("broken", told), 5)
    expiries.add(Item("with it", told), 5)
    expiries.add(Item("later", told), 10)
    await clock.pass_by(5.1)
    await clock.pass_by(1)
    assert told == ["with it"]
    await clock.pass_by(5)
    assert told == ["with it", "later"]
    assert [str(error) for error in raised] == ["broken"]


async def test_what_is_discarded_does_not_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, expiries, told = Clock(monkeypatch), Deadlines(), list[str]()
    gone, kept = Item("gone", told), Item("kept", told)
    expiries.add(gone, 5)
    expiries.add(kept, 8)
    expiries.discard(gone)
    expiries.discard(gone)
    await clock.pass_by(6)
    assert told == []
    await clock.pass_by(6)
    assert told == ["kept"]


async def test_one_that_comes_later_may_expire_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, expiries, told = Clock(monkeypatch), Deadlines(), list[str]()
    expiries.add(Item("first", told), 60)
    await clock.pass_by(1)
    expiries.add(Item("second", told), 1)
    await clock.pass_by(1)
    assert told == ["second"]


async def test_many_that_expire_one_after_the_other_are_looked_through_a_tick_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, expiries, told = Clock(monkeypatch), Deadlines(), list[str]()
    sweeps = 0
    sweep = expiries._sweep

    def counted() -> None:
        nonlocal sweeps
        sweeps += 1
        sweep()

    monkeypatch.setattr(expiries, "_sweep", counted)
    for number in range(100):
        expiries.add(Item(str(number), told), 1 + number * TICK_SECONDS / 100)
    await clock.pass_by(1)
    while len(told) < 100:
        await clock.pass_by(TICK_SECONDS / 50)
    assert told == [str(number) for number in range(100)]
    assert sweeps <= 3


def transaction(number: int) -> Transaction:
    return Transaction(
        id=f"01920000-0000-7000-8000-{number:012d}",
        begin_version=0,
        operations=(CreateNamespace(name="a", namespace_id="x"),),
    )


class Held:
    """A journal that holds its one group until the test sets the answer."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.answer: asyncio.Future[Committed | InvalidInput] = asyncio.get_running_loop().create_future()

    async def commit_group(self, transactions: Any, **_: Any) -> list[Committed | InvalidInput]:
        self.entered.set()
        return [await self.answer for _ in transactions]


def writer_on(journal: Held, timeout_seconds: float = 60.0) -> Writer:
    return Writer(
        journal, group_count_max=10, group_bytes_max=1000, queue_count_max=10, queue_bytes_max=1000,
        timeout_seconds=timeout_seconds, ahead_count_min=0,
    )  # fmt: skip


async def test_callers_of_one_transaction_expire_and_leave_each_for_himself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    writer = writer_on(Held())  # it has not started: all members are queued
    first = asyncio.create_task(writer.submit(transaction(1)))
    await clock.pass_by(30)
    second = asyncio.create_task(writer.submit(transaction(1)))
    await clock.pass_by(1)
    first.cancel()
    await clock.pass_by(30)
    assert first.cancelled()
    assert not second.done(), "its own time is not over, and it still waits"
    assert writer.queue_count == 1
    await clock.pass_by(30)
    with pytest.raises(Unavailable, match="it was not applied"):
        await second
    assert writer.queue_count == 0


async def test_an_error_that_its_caller_does_not_hear_is_no_lost_one() -> None:
    lost: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    journal = Held()
    writer = writer_on(journal)
    ticket = writer.enqueue(transaction(1))
    running = asyncio.create_task(writer.run())
    await journal.entered.wait()
    journal.answer.set_result(InvalidInput("no"))
    writer.close()
    await running
    assert ticket.answer.done()
    ticket.leave()
    del ticket
    gc.collect()
    assert lost == []


async def test_a_cancelled_reader_takes_nothing_from_those_who_share_its_probe() -> None:
    lost: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    lake = Lake()
    journal = await lake.create()
    gate, error = asyncio.Event(), Unavailable("away")

    async def exists(path: str) -> bool:
        await gate.wait()
        asyncio.get_running_loop().call_soon(readers[1].cancel)  # after the error, before it runs
        raise error

    lake.storage.exists = exists  # type: ignore[method-assign]
    readers = [asyncio.create_task(journal.refresh()) for _ in range(3)]
    await asyncio.sleep(0)
    readers[0].cancel()
    gate.set()
    answers = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(answer) for answer in answers[:2]] == [asyncio.CancelledError] * 2
    assert answers[2:] == [error]
    del lake.storage.exists
    assert (await journal.refresh()).version == 0, "the one after an error begins anew"
    readers.clear()
    answers.clear()
    gc.collect()
    assert lost == []


async def test_no_method_is_waited_for_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service registers no method with gRPC, which would search all registered methods at every call."""
    registered: list[object] = []
    register: Callable[..., None] = lambda *what: registered.append(what)  # noqa: E731
    monkeypatch.setattr(grpc.aio.Server, "add_registered_method_handlers", register)
    journal = await Lake().create()
    hub = Hub(
        journal, subscribers_max=1, batch_count_max=1, batch_bytes_max=1, scan_count_max=1, ring_bytes_max=1,
        heartbeat_seconds=1.0,
    )  # fmt: skip
    service = CatalogService(journal, writer_on(Held()), hub, write_timeout_seconds=1, lookup_bytes_max=1)
    Server(service, Config(url="memory://x"))
    assert registered == []
