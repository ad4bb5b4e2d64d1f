"""Fan-out: streams are complete, ordered and without gaps at any pace of commits, readers and storage."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from event_source import Source, token

from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_daemon.serve.watch import (
    MADE_AT_ONCE,
    MESSAGE_KEPT_BYTES_MAX,
    MESSAGES_KEPT,
    WOKEN_AT_ONCE,
    Delivery,
    Hub,
)
from alpheus_journal.errors import (
    Exhausted,
    Expired,
    InvalidInput,
    Unavailable,
)
from alpheus_journal.format import CATALOG, Kind, ObjectName, table_name
from alpheus_journal.journal import Journal
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import Change, Event, make_token
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.model.operations import Action, RecordedTransaction, UpdateCatalog
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake
from alpheus_journal.wire.messages import EventsQuery, decode_event
from alpheus_pb.v1 import service_pb2 as pb
from alpheus_pb.v1 import service_pb2_grpc


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
    """Return the versions of a stream that ends."""
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


@pytest.mark.parametrize(("until", "last"), [(5, 5), (6, 6), (7, 7), (99, 7), (None, 7)])
async def test_a_stream_without_follow_waits_for_no_version_that_is_not_there(
    until: int | None, last: int
) -> None:
    """The stream ends at the head, whether `until` is above the real head or above the head that the daemon knew."""
    source = Source(5)
    source.hidden = 2
    async with hub_of(source) as hub:
        assert await versions_of(hub, EventsQuery(after=3, until=until)) == list(range(4, last + 1))
        assert source.probes == (0 if until == 5 else 1)


async def test_the_only_writer_does_not_probe() -> None:
    source = Source(5)
    async with hub_of(source, sole_writer=True) as hub:
        assert await versions_of(hub, EventsQuery(after=3)) == [4, 5]
        assert source.probes == 0


async def test_gap_free_under_racing_commits() -> None:
    """Ten subscribers at ten positions see every version once and in order, despite bursts of commits and slow
    storage."""
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


class MixedSource(Source):
    """Each version changes a table of `even` and one of `odd`."""

    async def event(self, version: int, *, details: bool = False) -> Event:
        event = await super().event(version, details=details)
        (change,) = event.changes
        both = tuple(msgspec.structs.replace(change, name=table_name(of, "t")) for of in ("even", "odd"))
        return msgspec.structs.replace(event, changes=both)


@pytest.mark.parametrize("details", [False, True])
async def test_a_filtered_follower_is_sent_the_changes_that_match_and_no_others(details: bool) -> None:
    """Filtered followers get only matching changes, whichever filter reads an event first."""
    filters: dict[str, EventFilter] = {
        "even": EventFilter(namespaces=frozenset({"even"})),
        "odd": EventFilter(namespaces=frozenset({"odd"})),
        "all": EventFilter(),
        "both": EventFilter(namespaces=frozenset({"even", "odd"})),
    }
    for order in (list(filters), list(reversed(filters))):
        source = MixedSource()
        async with hub_of(source) as hub:
            streams = {
                name: hub.stream(EventsQuery(after=0, follow=True, filter=filters[name], details=details))
                for name in order
            }
            for stream in streams.values():
                assert (await anext(stream)).version == 0
            source.commit(2)
            for name, stream in streams.items():
                told = [
                    [change.name.namespace for change in each.changes]
                    for each in events_of(await anext(stream))
                ]
                assert told == [["even", "odd"] if name in ("all", "both") else [name]] * 2, name
                await stream.aclose()
            assert hub.counts.encoded == 6, (
                "two versions, and who takes all by a filter shares with who has none"
            )


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
            # Only a cursor waits for the stalled subscriber: the next message starts at the place where it stopped.
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


async def test_other_bounds_hold_from_the_next_message_on() -> None:
    source = Source(60)
    source.definition = b"x" * 1000
    bounds: dict[str, Any] = {
        "subscribers_max": 1,
        "batch_count_max": 5,
        "batch_bytes_max": 2500,
        "scan_count_max": 7,
        "ring_bytes_max": 3000,
        "heartbeat_seconds": 0.001,
    }
    nothing = EventFilter(names=frozenset({"no.such"}))
    async with hub_of(source) as hub, aclosing(hub.stream(EventsQuery(after=0))) as there:
        assert len(events_of(await anext(there))) == 10
        assert hub.ring_bytes > 3000
        hub.configure(**bounds)
        assert hub.ring_bytes <= 3000, "at once"
        with pytest.raises(Exhausted):
            await versions_of(hub, EventsQuery(after=0))
        assert len(events_of(await anext(there))) == 5
        hub.configure(**{**bounds, "subscribers_max": 2})
        async with aclosing(hub.stream(EventsQuery(after=0, filter=nothing))) as other:
            assert (await anext(other)).version == 7
        async with aclosing(hub.stream(EventsQuery(after=0, details=True))) as other:
            assert len(events_of(await anext(other))) == 2
        async with aclosing(hub.stream(EventsQuery(after=60, follow=True))) as other:
            for _ in range(2):  # idle: the second message is a heartbeat
                assert (await anext(other)).version == 60


async def test_a_hub_looks_for_others_once_it_is_told_of_them() -> None:
    source = Source(5)
    source.hidden = 2
    async with hub_of(source, sole_writer=True) as hub:
        assert await versions_of(hub, EventsQuery(after=3)) == [4, 5]
        hub.look_for_others()
        assert await versions_of(hub, EventsQuery(after=3)) == [4, 5, 6, 7]


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
    monkeypatch.setattr("alpheus_journal.wire.messages.REPLY_BYTES_MAX", 5000)
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


# --- sharing and its cost --------------------------------------------------------------------------


async def test_subscribers_of_one_filter_get_the_same_bytes() -> None:
    """Events and messages are encoded once for all subscribers with the same filter and position."""
    source = Source(0)
    odd = EventFilter(namespaces=frozenset({"odd"}))
    async with hub_of(source) as hub:
        queries = [
            EventsQuery(after=0, until=9, follow=True, filter=f)
            for f in (EventFilter(), odd)
            for _ in range(20)
        ]
        streams = [hub.stream(query) for query in queries]
        for stream in streams:
            await anext(stream)  # each starts at the head
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        source.commit(9)
        messages = [delivery.message for delivery in await asyncio.gather(*waiting)]
        assert len({id(message) for message in messages}) == 2
        assert hub.counts.encoded == 9, "what matches whole is encoded once for all filters"
        assert hub.counts.shared_messages == 38
        for stream in streams:
            await stream.aclose()


async def test_a_backlog_comes_in_few_messages() -> None:
    source = Source(0)
    async with hub_of(source, batch_count_max=256, scan_count_max=1000) as hub:
        async with aclosing(hub.stream(EventsQuery(after=0, until=1000, follow=True))) as stream:
            await anext(stream)
            source.commit(1000)
            sizes = [delivery.events_count async for delivery in stream]
        assert sizes == [256, 256, 256, 232]
        assert (hub.counts.coalesced_messages, hub.counts.coalesced_events) == (4, 1000)


async def test_one_who_ends_earlier_is_not_sent_what_others_get() -> None:
    source = Source(5)
    async with hub_of(source) as hub, aclosing(hub.stream(EventsQuery(after=0, follow=True))) as other:
        assert (await anext(other)).version == 5
        assert await versions_of(hub, EventsQuery(after=0, until=3)) == [1, 2, 3]
        assert await versions_of(hub, EventsQuery(after=0, until=4)) == [1, 2, 3, 4]
        source.commit(2)
        assert await versions_of(hub, EventsQuery(after=0)) == list(range(1, 8))


async def test_stalled_subscribers_cost_no_work_and_no_memory() -> None:
    """Fault 48: 100 of 1,000 subscribers read nothing, and the others get every event, each encoded once."""
    source = Source(0)
    source.definition = b"x" * 500
    async with hub_of(source, subscribers_max=1000, ring_bytes_max=50_000) as hub:
        query = EventsQuery(after=0, until=20, follow=True, details=True)
        stalled = [hub.stream(query) for _ in range(100)]
        for stream in stalled:
            await anext(stream)
        readers = [asyncio.create_task(versions_of(hub, query)) for _ in range(900)]
        while hub.counts.messages < 1000:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for version in range(1, 21):
            source.commit()
            while hub.counts.messages < 1000 + 900 * version:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert all(versions == list(range(1, 21)) for versions in await asyncio.gather(*readers))
        assert hub.counts.messages == 1000 + 900 * 20, (
            "one message an event and reader, and none for the stalled"
        )
        assert hub.counts.encoded == 20
        assert hub.ring_bytes <= 50_000
        kept = [d for kind in [*hub._kinds.values(), *hub._whole.values()] for d in kind.messages.values()]
        assert len(kept) <= MESSAGES_KEPT
        assert (hub.current_count, hub.lag_versions_max) == (0, 20)
        for stream in stalled:
            await stream.aclose()


@pytest.mark.parametrize(("behind", "shared"), [(MESSAGES_KEPT, MESSAGES_KEPT), (MESSAGES_KEPT + 1, 0)])
async def test_messages_are_shared_by_who_is_so_far_behind(behind: int, shared: int) -> None:
    """The hub shares its last messages with other subscribers. A subscriber that is further behind shares none."""
    source = Source(20)
    async with hub_of(source, batch_count_max=1) as hub:
        query = EventsQuery(after=0, follow=True)
        async with aclosing(hub.stream(query)) as first, aclosing(hub.stream(query)) as second:
            ahead = [await anext(first)]
            await anext(second)  # from now on there are two subscribers
            ahead += [await anext(first) for _ in range(behind)]
            counted = hub.counts.shared_messages
            follows = [await anext(second) for _ in range(behind)]
            assert (
                [d.version for d in follows] == [d.version for d in ahead[1:]] == list(range(2, behind + 2))
            )
            assert [d.message for d in follows] == [d.message for d in ahead[1:]]
            assert hub.counts.shared_messages - counted == shared
            assert hub.counts.encoded == behind + 1


async def test_events_that_were_made_leave_no_locks_behind() -> None:
    """The lock that waiters of one event share is dropped with the last waiter, whether the event was encoded or
    not."""

    def locks() -> int:
        return sum(type(thing) is asyncio.Lock for thing in gc.get_objects())

    source = Source(30)
    source.turns = 2
    async with hub_of(source) as hub:
        before = locks()
        queries = [EventsQuery(after=0, until=30) for _ in range(3)]
        assert (
            await asyncio.gather(*(versions_of(hub, query) for query in queries)) == [list(range(1, 31))] * 3
        )
        source.oldest = 5
        odd = EventFilter(namespaces=frozenset({"odd"}))
        with pytest.raises(Expired):
            await versions_of(hub, EventsQuery(after=0, until=30, filter=odd))
        gc.collect()
        assert locks() <= before


async def test_waking_many_gives_way() -> None:
    """Other commits and reads run before the last of a thousand woken subscribers is served."""
    source = Source(0)
    async with hub_of(source, subscribers_max=1000) as hub:
        streams = [hub.stream(EventsQuery(after=0, follow=True)) for _ in range(1000)]
        for stream in streams:
            await anext(stream)
        served = 0

        async def read(stream: Any) -> None:
            nonlocal served
            await anext(stream)
            served += 1

        tasks = [asyncio.create_task(read(stream)) for stream in streams]
        await asyncio.sleep(0)
        source.commit()
        steps = []
        while served < 1000:
            await asyncio.sleep(0)
            steps.append(served)
        assert max(after - before for before, after in itertools.pairwise([0, *steps])) <= 2 * WOKEN_AT_ONCE
        await asyncio.gather(*tasks)
        for stream in streams:
            await stream.aclose()


async def test_making_many_events_gives_way_and_waits_for_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(20 * MADE_AT_ONCE)
    others_turns = 0

    async def count() -> None:
        nonlocal others_turns
        while True:
            others_turns += 1
            await asyncio.sleep(0)

    def refuse(*_: Any) -> None:
        raise AssertionError("a timer was set")

    async with hub_of(source, batch_count_max=1000, scan_count_max=1000) as hub:
        counting = asyncio.create_task(count())
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", refuse)
        assert len(await versions_of(hub, EventsQuery(after=0, until=20 * MADE_AT_ONCE))) == 20 * MADE_AT_ONCE
        monkeypatch.undo()
        counting.cancel()
    assert 20 <= others_turns < 40, "once in so many events, no oftener"


async def test_what_is_known_of_the_subscribers() -> None:
    source = Source(100)
    async with hub_of(source, batch_count_max=10) as hub:
        streams = [hub.stream(EventsQuery(after=after, follow=True)) for after in (100, 95, 20)]
        for stream in streams:
            await anext(stream)
        assert (hub.subscribers_count, hub.current_count, hub.catching_up_count) == (3, 2, 1)
        assert hub.lag_versions_max == 70
        for stream in streams:
            await stream.aclose()
        assert hub.lag_versions_max == 0


async def test_who_gets_all_with_his_next_message_is_not_behind() -> None:
    source = Source(100)
    async with hub_of(source, batch_count_max=10) as hub:
        streams = [hub.stream(EventsQuery(after=after, follow=True)) for after in (80, 79)]
        assert [(await anext(stream)).version for stream in streams] == [90, 89]
        assert (hub.current_count, hub.catching_up_count, hub.lag_versions_max) == (1, 1, 11)
        assert [(await anext(stream)).version for stream in streams] == [100, 99]
        assert (hub.current_count, hub.catching_up_count, hub.lag_versions_max) == (2, 0, 1)
        for stream in streams:
            await stream.aclose()


@pytest.mark.parametrize(("subscribers", "size_bytes"), [(1, 10), (2, MESSAGE_KEPT_BYTES_MAX)])
async def test_no_message_is_kept_for_nobody_nor_one_that_is_large(subscribers: int, size_bytes: int) -> None:
    source = Source(3)
    source.definition = b"x" * size_bytes
    async with hub_of(source, batch_count_max=1, ring_bytes_max=0) as hub:
        query = EventsQuery(after=0, follow=True, details=True)
        streams = [hub.stream(query) for _ in range(subscribers)]
        for stream in streams:
            assert [(await anext(stream)).version for _ in range(3)] == [1, 2, 3]
            if subscribers == 1:
                await stream.aclose()
        assert await versions_of(hub, EventsQuery(after=0, details=True)) == [1, 2, 3]
        assert hub.counts.shared_messages == 0
        assert hub.counts.encoded == 3 * (subscribers + 1)
        for stream in streams:
            await stream.aclose()


async def test_what_those_of_one_filter_share_goes_with_the_last_of_them() -> None:
    source = Source(9)
    odd = EventFilter(namespaces=frozenset({"odd"}))
    async with hub_of(source, batch_count_max=1) as hub:
        query = EventsQuery(after=0, follow=True, filter=odd)
        for _ in range(2):
            counted = hub.counts.shared_messages
            streams = [hub.stream(query) for _ in range(2)]
            for stream in streams:
                await anext(stream)
            versions = [[(await anext(stream)).version for _ in range(3)] for stream in streams]
            assert versions[0] == versions[1]
            assert hub.counts.shared_messages - counted == 3, "with each other, with nobody before them"
            await streams[0].aclose()
            assert len(hub._kinds) == 1
            await streams[1].aclose()
            assert not hub._kinds


async def test_an_idle_subscriber_that_leaves_is_waited_for_no_more() -> None:
    """The hub forgets a cancelled subscriber immediately, although its heartbeat is due only an hour later."""
    async with hub_of(Source(3), heartbeat_seconds=3600.0) as hub:
        stream = hub.stream(EventsQuery(after=3, follow=True))
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        assert len(hub._waiting) == 1
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not hub._waiting


async def test_heartbeats_of_many_have_one_timer() -> None:
    source = Source(3)
    async with hub_of(source, heartbeat_seconds=0.02) as hub:
        streams = [hub.stream(EventsQuery(after=3, follow=True)) for _ in range(50)]
        for stream in streams:
            await anext(stream)
        marks = await asyncio.gather(*(anext(stream) for stream in streams))
        assert {(mark.version, mark.events_count) for mark in marks} == {(3, 0)}
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        for one in waiting[:25]:  # a cancelled subscriber does not stop the heartbeats of the others
            one.cancel()
        assert len(await asyncio.gather(*waiting, return_exceptions=True)) == 50
        for stream in streams:
            await stream.aclose()
        assert not hub._waiting


# --- filters ---------------------------------------------------------------------------------------


def recorded(*actions: tuple[str, ObjectName], known: bool = True) -> RecordedTransaction:
    return RecordedTransaction(
        id="t", operations_digest=b"", principal="", principal_authenticated=False, message="", properties={},
        serializable=False, branch="", begin_version=0, committed_at_millis=0,
        actions=tuple(
            Action(type=type, name=name, operation=UpdateCatalog(set={"a": "b"}) if known else None)
            for type, name in actions
        ),
    )  # fmt: skip


ORDERS, LINES, VIEW = (
    table_name("sales", "orders"),
    table_name("sales", "lines"),
    ObjectName(Kind.VIEW, "hr", "v"),
)


def changed(*names: ObjectName, transactions: tuple[RecordedTransaction, ...] = ()) -> Event:
    changes = tuple(Change(name=name, type="updated", path_before="a", path_after="b") for name in names)
    return Event(version=1, created_at_millis=1, token=token(1), transactions=transactions, changes=changes)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, [ORDERS, LINES, VIEW]),
        ({"name_patterns": {"sales.*"}}, [ORDERS, LINES]),
        ({"name_patterns": {"*.orders", "hr.?"}}, [ORDERS, VIEW]),
        ({"name_patterns": {"sales.o"}}, None),
        ({"name_patterns": {"SALES.*"}}, None),
        ({"name_patterns": {"s[a]les.*"}}, None),
        ({"name_patterns": {"hr.*"}, "names": {"sales.lines"}}, [LINES, VIEW]),
        ({"name_patterns": {"*"}, "kinds": {Kind.VIEW}}, [VIEW]),
        ({"actions": {"TABLE_INSERT"}}, [ORDERS]),
        ({"actions": {"TABLE_INSERT", "VIEW_REPLACE"}}, [ORDERS, VIEW]),
        ({"actions": {"TABLE_INSERT"}, "namespaces": {"hr"}}, None),
        ({"actions": {"TABLE_DROP"}}, None),
        ({"actions": {"TABLE_DROP"}, "also": {VIEW}}, [VIEW]),
        ({"names": {"x.y"}, "also": {LINES}}, [LINES]),
    ],
)
def test_filters(parts: dict[str, set[Any]], expected: list[ObjectName] | None) -> None:
    transactions = (
        recorded(("TABLE_INSERT", ORDERS), ("TABLE_ALTER", LINES)),
        recorded(("VIEW_REPLACE", VIEW)),
    )
    found = EventFilter(**{key: frozenset(value) for key, value in parts.items()}).select(  # type: ignore[arg-type]
        changed(ORDERS, LINES, VIEW, transactions=transactions)
    )
    assert (found and [change.name for change in found.changes]) == expected
    assert found is None or found.transactions == transactions


def test_actions_that_are_not_recorded_may_be_any() -> None:
    """A filter on actions passes matching changes of a version whose writer recorded no actions or unknown ones."""
    inserts = EventFilter(actions=frozenset({"TABLE_INSERT"}), namespaces=frozenset({"sales"}))
    assert inserts.select(changed(ORDERS, VIEW)) == changed(ORDERS)
    newer = (recorded(("UNKNOWN_999", VIEW), known=False),)
    assert inserts.select(changed(ORDERS, VIEW, transactions=newer)) == changed(ORDERS, transactions=newer)


def test_an_action_without_a_change_is_told() -> None:
    cancels = EventFilter(actions=frozenset({"TRANSACTION_CANCEL"}))
    event = changed(transactions=(recorded(("TRANSACTION_CANCEL", CATALOG)),))
    assert cancels.select(event) == event
    assert EventFilter(names=frozenset({"a.b"})).select(event) is None


def test_nobodys_pattern_holds_up_the_others() -> None:
    """A pattern with exponential backtracking is matched quickly."""
    hostile = EventFilter(name_patterns=frozenset({"*a" * 1000 + "b"}))
    assert not hostile.matches(table_name("a" * 500, "a" * 500))


# --- through a journal: rows of the fault matrix ---------------------------------------------------


async def log_of(hub: Hub, query: EventsQuery) -> list[int]:
    found: list[int] = []
    async for delivery in hub.stream(query):
        found += [event.version for event in pb.EventsResponse.FromString(delivery.message).events]
    return found


async def resumed(journal: Journal, hub: Hub | None, after: int | str | None) -> list[int]:
    """Return the versions of the events after a position, read through a hub or directly from storage."""
    if hub is not None:
        return await log_of(hub, EventsQuery(after=after))
    return [event.version async for event in journal.events(after=after) if isinstance(event, Event)]


async def expired_lake() -> Lake:
    """Return a catalog with versions 0 to 9, of which versions 0 to 4 have expired."""
    lake = Lake()
    journal = await lake.create()
    for name in "abcdefghi":
        await lake.commit(journal, lake.namespace(name))
    await lake.expire(below=5)
    return lake


async def test_fault_45_resuming_at_the_edge_of_what_has_expired() -> None:
    """A stream resumes after the oldest kept version, and an older position is refused by version and by token."""
    lake = await expired_lake()
    for way in ("storage", "daemon"):
        journal = await lake.open()
        async with hub_of(journal) as hub:  # type: ignore[arg-type]

            async def read(
                after: int | str | None, way: str = way, hub: Hub = hub, journal: Journal = journal
            ) -> list[int]:
                if way == "daemon":
                    return await log_of(hub, EventsQuery(after=after))
                return [e.version async for e in journal.events(after=after) if isinstance(e, Event)]

            assert await read(None) == [6, 7, 8, 9]
            assert await read(5) == [6, 7, 8, 9]
            token_of_5 = (await journal.resolve(5)).token
            assert await read(token_of_5) == [6, 7, 8, 9]
            assert await read(9) == []
            log = await Log.open(lake.storage)
            token_of_4 = make_token(journal.catalog_id, 4, await log.commit_id(4))
            for after in (4, 0, -1, token_of_4):
                with pytest.raises(Expired) as caught:
                    await read(after)
                assert caught.value.oldest == 5
            with pytest.raises(InvalidInput) as bad:
                await read(make_token(journal.catalog_id, 4, "another"))
            assert bad.value.kind == "bad_token"


async def test_fault_46_a_daemon_that_lags_catches_up_before_it_answers() -> None:
    """A daemon that lags looks for the version of a token before it answers, and does not refuse the token."""
    lake = Lake()
    behind = await lake.create()
    ahead = await lake.open()
    for name in "abc":
        await lake.commit(ahead, lake.namespace(name))
    assert behind.head.version == 0
    async with hub_of(behind) as hub:  # type: ignore[arg-type]
        token_of_2 = (await ahead.resolve(2)).token
        assert await log_of(hub, EventsQuery(after=token_of_2)) == [3]
    late = await lake.open()
    await lake.commit(ahead, lake.namespace("d"))
    async with hub_of(late) as hub:  # type: ignore[arg-type]
        assert await log_of(hub, EventsQuery(after=4)) == []
        assert late.head.version == 4


async def test_fault_47_a_version_that_is_not_there_yet() -> None:
    """A position above the head or of another history is refused, and no older event is sent."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    stranger = await Lake(seed=9).create()
    async with hub_of(journal) as hub:  # type: ignore[arg-type]
        for after, kind in [
            (2, "future_version"),
            (make_token(journal.catalog_id, 2, "c"), "bad_token"),
            (make_token(journal.catalog_id, 1, "c"), "bad_token"),
            (stranger.head.token, "bad_token"),
            ("nonsense", "bad_token"),
        ]:
            with pytest.raises(InvalidInput) as caught:
                await log_of(hub, EventsQuery(after=after, follow=True))
            assert caught.value.kind == kind


class Relay:
    """A proxy for a daemon that can go silent. Connections stay open and no bytes pass, as after a power loss of the
    host."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._passing = asyncio.Event()
        self._passing.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server.close()

    def vanish(self) -> None:
        self._passing.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_daemon = await asyncio.open_connection(self._host, self._port)
        for source, target in ((reader, to_daemon[1]), (to_daemon[0], writer)):
            self._tasks.add(asyncio.create_task(self._pump(source, target)))

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._passing.wait()
                target.write(data)
        finally:
            target.close()


async def test_fault_44_a_subscriber_whose_host_vanishes_is_freed() -> None:
    """The daemon frees the place of a subscriber that answers no ping, although no event is sent to it."""
    usual = Config(url="memory://x")
    assert usual.keepalive_seconds + usual.keepalive_timeout_seconds <= 40
    journal = await Journal.create(MemoryStorage())
    config = Config(
        url="memory://x",
        listen="127.0.0.1:0",
        subscribers_max=1,
        keepalive_seconds=1,
        keepalive_timeout_seconds=1,
        subscriber_write_timeout_seconds=600,
        subscriber_heartbeat_seconds=600,
    )
    request = pb.EventsRequest(after_version=0, follow=True)
    async with (
        running(config, journal) as address,
        Relay(address) as relay,
        grpc.aio.insecure_channel(relay.address) as lost,
        grpc.aio.insecure_channel(address) as other,
    ):
        first = service_pb2_grpc.CatalogStub(lost).Events(request)
        assert (await first.read()).progress_version == 0
        relay.vanish()
        refused = 0
        while True:
            second = service_pb2_grpc.CatalogStub(other).Events(request)
            try:
                assert (await second.read()).progress_version == 0
                break
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # noqa: PT017
                refused += 1
                await asyncio.sleep(0.1)
        assert refused, "it held its place while it was not known to be gone"
        second.cancel()
        first.cancel()
    await journal.close()
