"""Fan-out: whole, ordered, gap-free streams whatever the pace of commits, readers and storage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest

from alpheus_daemon.watch import Delivery, Hub, Poller
from alpheus_journal.access import Change, Event, EventFilter, make_token, parse_token
from alpheus_journal.errors import (
    Exhausted,
    Expired,
    InvalidInput,
    Unavailable,
)
from alpheus_journal.format import Kind, table_name
from alpheus_journal.wire import EventsQuery, decode_event
from alpheus_pb.v1 import service_pb2 as pb


class Head(msgspec.Struct, frozen=True):
    version: int
    token: str


def token(version: int) -> str:
    return make_token("cat", version, f"c{version}")


class Source:
    """A log in memory. Version n changes one table, of namespace `even` or `odd`.

    `turns`: how often reading an event lets others run, as storage does.
    """

    def __init__(self, version: int = 0) -> None:
        self.head = Head(version, token(version))
        self.oldest = 0
        self.turns = 0
        self.hidden = 0  # versions of other writers that a refresh finds
        self.reads: list[int] = []
        self.probes = 0
        self.broken: Exception | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.definition = b"d"

    def commit(self, count: int = 1) -> None:
        version = self.head.version + count
        self.head = Head(version, token(version))
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def refresh(self) -> Head:
        self.probes += 1
        if self.broken is not None:
            raise self.broken
        if self.hidden:
            count, self.hidden = self.hidden, 0
            self.commit(count)
        return self.head

    def check_history(self) -> None:
        return

    async def wait_beyond(self, version: int) -> None:
        while self.head.version <= version:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def event(self, version: int, *, details: bool = False) -> Event:
        assert 0 <= version <= self.head.version, "an event beyond the head was asked for"
        self.reads.append(version)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if version < self.oldest:
            raise Expired(f"version {version} is gone", oldest=self.oldest)
        change = Change(
            name=table_name("odd" if version % 2 else "even", "t"),
            type="updated",
            path_before="a",
            path_after="b",
            definition_after=self.definition if details else None,
        )
        return Event(
            version=version,
            created_at_millis=version,
            token=token(version),
            transactions=(),
            changes=(change,),
        )

    async def verify_after(self, after: int | str | None) -> int:
        if after is None:
            return self.oldest - 1
        version = parse_token(after)[1] if isinstance(after, str) else after
        if version > self.head.version:
            raise InvalidInput(f"version {version} is above the head", kind="future_version")
        return version


@asynccontextmanager
async def hub_of(source: Source, **settings: Any) -> AsyncIterator[Hub]:
    bounds: dict[str, Any] = {
        "subscribers_max": 100,
        "batch_count_max": 10,
        "batch_bytes_max": 1 << 20,
        "scan_count_max": 50,
        "ring_bytes_max": 1 << 20,
        "heartbeat_seconds": 3600.0,
    }
    hub = Hub(source, **{**bounds, **settings})
    running = asyncio.create_task(hub.run())
    try:
        yield hub
    finally:
        running.cancel()
        await asyncio.wait([running])
        assert hub.subscribers_count == 0, "a stream was not cleaned up"


def events_of(delivery: Delivery) -> list[Event]:
    response = pb.EventsResponse.FromString(delivery.message)
    assert response.progress_version == delivery.version
    assert response.progress_token == delivery.token == token(delivery.version)
    return [decode_event(message) for message in response.events]


async def versions_of(hub: Hub, query: EventsQuery) -> list[int]:
    """The versions of a stream that ends."""
    seen: list[int] = []
    reached = -2
    async for delivery in hub.stream(query):
        events = [event.version for event in events_of(delivery)]
        assert delivery.version >= max([reached, *events])
        reached = delivery.version
        seen += events
    return seen


async def test_a_stream_without_follow_ends_at_the_head_of_the_call() -> None:
    source = Source(5)
    source.hidden = 2
    async with hub_of(source) as hub:
        assert await versions_of(hub, EventsQuery()) == [0, 1, 2, 3, 4, 5, 6, 7]
        assert await versions_of(hub, EventsQuery(after=3, until=5)) == [4, 5]
        assert await versions_of(hub, EventsQuery(after=7)) == []


async def test_the_only_writer_does_not_probe() -> None:
    source = Source(5)
    async with hub_of(source, sole_writer=True) as hub:
        assert await versions_of(hub, EventsQuery(after=3)) == [4, 5]
        assert source.probes == 0


async def test_gap_free_under_racing_commits() -> None:
    """Ten subscribers from ten places, commits in bursts, slow storage: all see every version once, in order."""
    random_source = random.Random(7)
    source = Source(20)
    source.turns = 2
    last = 400
    async with hub_of(source, ring_bytes_max=5000) as hub:
        queries = [EventsQuery(after=n * 2, until=last, follow=True) for n in range(10)]
        tasks = [asyncio.create_task(versions_of(hub, query)) for query in queries]
        while source.head.version < last:
            source.commit(min(random_source.randint(1, 5), last - source.head.version))
            for _ in range(random_source.randint(0, 6)):
                await asyncio.sleep(0)
        for query, task in zip(queries, tasks, strict=True):
            assert isinstance(query.after, int)
            assert await task == list(range(query.after + 1, last + 1))
        assert hub.ring_bytes <= 5000


async def test_any_delivery_can_be_resumed_after() -> None:
    source = Source(30)
    async with hub_of(source, batch_count_max=7, scan_count_max=9) as hub:
        odd = EventFilter(namespaces=frozenset({"odd"}))
        expected = list(range(1, 31, 2))
        async with aclosing(hub.stream(EventsQuery(filter=odd))) as stream:
            seen: list[int] = []
            async for delivery in stream:
                seen += [event.version for event in events_of(delivery)]
                rest = await versions_of(hub, EventsQuery(after=delivery.token, filter=odd))
                assert seen + rest == expected
        assert seen == expected


async def test_followers_are_woken_by_commits() -> None:
    source = Source(3)
    async with hub_of(source) as hub, aclosing(hub.stream(EventsQuery(after=3, follow=True))) as stream:
        first = await anext(stream)
        assert events_of(first) == []
        assert first.version == 3, "a stream that begins at the head says so at once"
        for version in (4, 5):
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            assert not waiting.done()
            source.commit()
            assert [event.version for event in events_of(await waiting)] == [version]


async def test_a_filter_leaves_progress_marks() -> None:
    source = Source(120)
    nothing = EventFilter(names=frozenset({"no.such"}))
    async with hub_of(source, scan_count_max=50) as hub:
        marks = [delivery async for delivery in hub.stream(EventsQuery(filter=nothing))]
        assert [delivery.version for delivery in marks] == [49, 99, 120]
        assert all(events_of(delivery) == [] for delivery in marks)


async def test_a_filter_selects_changes() -> None:
    source = Source(6)
    async with hub_of(source) as hub:
        even = EventFilter(namespaces=frozenset({"even"}), kinds=frozenset({Kind.TABLE}))
        assert await versions_of(hub, EventsQuery(filter=even)) == [0, 2, 4, 6]
        views = EventFilter(kinds=frozenset({Kind.VIEW}))
        assert await versions_of(hub, EventsQuery(filter=views)) == []


async def test_idle_streams_have_a_heartbeat() -> None:
    source = Source(3)
    async with (
        hub_of(source, heartbeat_seconds=0.001) as hub,
        aclosing(hub.stream(EventsQuery(after=3, follow=True))) as stream,
    ):
        for _ in range(3):
            delivery = await anext(stream)
            assert (delivery.version, events_of(delivery)) == (3, [])


async def test_details_are_their_own_encoding() -> None:
    source = Source(1)
    async with hub_of(source) as hub:
        for details in (True, False, True):
            async for delivery in hub.stream(EventsQuery(after=0, details=details)):
                (event,) = events_of(delivery)
                assert event.changes[0].definition_after == (b"d" if details else None)


async def test_an_event_is_read_and_encoded_once_for_all() -> None:
    source = Source(0)
    source.turns = 5
    async with hub_of(source) as hub:
        tasks = [
            asyncio.create_task(versions_of(hub, EventsQuery(after=0, until=3, follow=True)))
            for _ in range(50)
        ]
        await asyncio.sleep(0)
        source.commit(3)
        assert await asyncio.gather(*tasks) == [[1, 2, 3]] * 50
        assert sorted(source.reads) == [1, 2, 3]


async def test_one_reader_giving_up_does_not_harm_those_who_wait_with_it() -> None:
    source = Source(1)
    source.turns = 50
    async with hub_of(source) as hub:
        one, two = (
            asyncio.create_task(versions_of(hub, EventsQuery(after=0, until=1))) for _ in range(2)
        )  # fmt: skip
        while not source.reads:  # noqa: ASYNC110
            await asyncio.sleep(0)
        one.cancel()
        assert await two == [1]


async def test_a_reader_that_stops_costs_one_message_and_delays_nobody() -> None:
    source = Source(0)
    source.definition = b"x" * 1000
    async with hub_of(source, ring_bytes_max=20_000, batch_bytes_max=4000) as hub:
        query = EventsQuery(after=0, until=500, follow=True, details=True)
        async with aclosing(hub.stream(query)) as stalled:
            await anext(stalled)
            reader = asyncio.create_task(versions_of(hub, query))
            while source.head.version < 500:
                source.commit()
                await asyncio.sleep(0)
            assert await reader == list(range(1, 501))
            assert hub.ring_bytes <= 20_000
            # What waits for the stalled one is a cursor: the next message starts where it stopped.
            delivery = await anext(stalled)
            assert len(delivery.message) <= 4000 + 100
            assert events_of(delivery)[0].version == 1


async def test_messages_are_bounded_by_count_and_bytes() -> None:
    source = Source(25)
    source.definition = b"x" * 1000
    async with hub_of(source, batch_count_max=10) as hub:
        sizes = [len(events_of(d)) async for d in hub.stream(EventsQuery(after=0))]
        assert sizes == [10, 10, 5]
    async with hub_of(source, batch_bytes_max=2500) as hub:
        sizes = [len(events_of(d)) async for d in hub.stream(EventsQuery(after=0, details=True))]
        assert sizes == [2] * 12 + [1]
    async with hub_of(source, batch_bytes_max=10, ring_bytes_max=0) as hub:
        sizes = [len(events_of(d)) async for d in hub.stream(EventsQuery(after=20))]
        assert sizes == [1] * 5, "one event may pass the bound"


async def test_history_that_goes_while_it_is_read_is_said() -> None:
    source = Source(30)
    async with hub_of(source, batch_count_max=5) as hub, aclosing(hub.stream(EventsQuery())) as stream:
        assert (await anext(stream)).version == 4
        source.oldest = 20
        with pytest.raises(Expired) as caught:
            await anext(stream)
        assert caught.value.oldest == 20


async def test_errors_before_the_first_message() -> None:
    async with hub_of(Source(3)) as hub:
        with pytest.raises(InvalidInput) as caught:
            await versions_of(hub, EventsQuery(after=4))
        assert caught.value.kind == "future_version"


async def test_an_event_that_no_message_holds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpheus_journal.wire.REPLY_BYTES_MAX", 5000)
    source = Source(2)
    source.definition = b"x" * 2000
    async with hub_of(source) as hub:
        assert await versions_of(hub, EventsQuery(after=0)) == [1, 2]
        with pytest.raises(InvalidInput) as caught:
            await versions_of(hub, EventsQuery(after=0, details=True))
        assert (caught.value.kind, caught.value.version) == ("too_large", 1)


async def test_subscribers_are_counted_and_bounded() -> None:
    source = Source(1)
    async with hub_of(source, subscribers_max=1) as hub:
        async with aclosing(hub.stream(EventsQuery(after=1, follow=True))) as stream:
            await anext(stream)
            with pytest.raises(Exhausted) as caught:
                await versions_of(hub, EventsQuery())
            assert caught.value.kind == "too_many_subscribers"
        assert await versions_of(hub, EventsQuery()) == [0, 1]


async def test_closing_ends_streams_idle_or_busy() -> None:
    source = Source(100)
    async with (
        hub_of(source) as hub,
        aclosing(hub.stream(EventsQuery(after=100, follow=True))) as idle,
        aclosing(hub.stream(EventsQuery(follow=True))) as busy,
    ):
        await anext(idle)
        await anext(busy)
        waiting = asyncio.ensure_future(anext(idle))
        await asyncio.sleep(0)
        hub.close()
        for ended in (waiting, anext(busy)):
            with pytest.raises(Unavailable) as caught:
                await ended
            assert caught.value.kind == "shutting_down"


# --- the poller ------------------------------------------------------------------------------------


async def test_the_poller_hurries_while_versions_come() -> None:
    source = Source(0)
    poller = Poller(source, interval_min_seconds=0.05, interval_max_seconds=1.0)
    waits = [0.05]
    for _ in range(12):
        waits.append(await poller.step(waits[-1]))
    assert waits == sorted(waits)
    assert waits[-1] == 1.0
    source.hidden = 3
    assert await poller.step(1.0) == 0.05
    assert source.head.version == 3


@pytest.mark.parametrize("error", [Unavailable("storage is away"), RuntimeError("a bug")])
async def test_the_poller_outlives_failures(error: Exception) -> None:
    source = Source(0)
    poller = Poller(source, interval_min_seconds=0.05, interval_max_seconds=1.0)
    source.broken = error
    assert await poller.step(0.05) == 1.0
    source.broken, source.hidden = None, 1
    assert await poller.step(1.0) == 0.05
    assert source.head.version == 1
