"""A consumer of a durable subscription in one process: its turns, its signs of life, and its acknowledgements."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest
from memory_sessions import consumer, session_on

from alpheus.errors import (
    AlpheusError,
    Conflict,
    Corrupt,
    Exhausted,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus.events.consumer import AsyncSubscription
from alpheus.events.subscriptions import AsyncSubscriptions, terms_of
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Position
from alpheus_journal.testing import Lake


async def last_of(mail: AsyncSubscription) -> None:
    """Read the subscription until it ends."""
    async for _ in mail:
        pass


async def test_a_cancelled_reader_loses_nothing() -> None:
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    async with consumer(session, after="latest", kinds="namespace") as mail:
        await mail.wait_active()
        for number in range(30):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001 * (number % 3)):
                    event = await anext(mail)
                    raise AssertionError(f"version {event.version} came from nowhere")
        await lake.commit(journal, lake.namespace("a"))
        await lake.commit(journal, lake.namespace("b"))
        seen = []
        while len(seen) < 2:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.002):
                    seen.append((await anext(mail)).version)
        assert seen == [journal.head.version - 1, journal.head.version]


class Gate:
    """An `Access` that holds acknowledgements back until `open` is set."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def acknowledge(self, *values: Any) -> None:
        self.reached.set()
        await self.open.wait()
        await self._inner.acknowledge(*values)


def gated(journal: Journal, lake: Lake, seed: int = 0) -> tuple[Gate, AsyncSubscription]:
    session = session_on(journal, lake, seed)
    gate = Gate(journal)
    session.access = cast(Any, gate)
    return gate, consumer(session, after=0)


async def test_a_turn_that_is_cancelled_while_it_begins() -> None:
    """A consumer that is cancelled between its claim and its first sign of life keeps the claim, or gives it back."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    gate, mail = gated(journal, lake)
    waiting = asyncio.ensure_future(anext(mail))
    await gate.reached.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    gate.open.set()
    assert (await anext(mail)).version == 1
    assert mail.epoch == 1
    await mail.close()

    gate, other = gated(journal, lake, 1)
    waiting = asyncio.ensure_future(anext(other))
    await gate.reached.wait()
    closing = asyncio.ensure_future(other.close())
    await asyncio.sleep(0)
    gate.open.set()
    await closing
    with pytest.raises(InvalidInput, match="was closed"):
        await waiting
    assert other._sign_task is None
    shown = await AsyncSubscriptions(session_on(journal, lake, 2)).load("mail")
    assert (shown.holder, shown.epoch) == ("", 2)


async def test_a_turn_that_is_lost_before_it_begins() -> None:
    """A consumer whose first sign of life shows that another consumer was faster stands by again."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    gate, mail = gated(journal, lake)
    entries = AsyncSubscriptions(session_on(journal, lake, 1))
    waiting = asyncio.ensure_future(anext(mail))
    await gate.reached.wait()
    await entries.reset("mail", 0)
    gate.open.set()
    assert (await waiting).version == 1
    assert mail.epoch == 3
    await mail.close()


async def test_an_event_that_cannot_be_read_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    await lake.commit(journal, lake.namespace("b"))
    first = journal.head.version - 1
    async with consumer(session_on(journal, lake), after=first - 1) as mail:

        def damaged(event: Any) -> Any:
            raise Corrupt(f"version {event.version}", kind="corrupt_definition")

        with monkeypatch.context() as patched:
            patched.setattr("alpheus.events.consumer.event_of", damaged)
            for _ in range(2):
                with pytest.raises(Corrupt, match=f"version {first}"):
                    await anext(mail)
        assert (await anext(mail)).version == first


async def test_what_does_not_match_counts_as_done() -> None:
    """Events that do not match count as done.

    While no event is open, the position follows the log, so that history can expire.
    """
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    await AsyncSubscriptions(session).create("mail", names="a", after="latest")
    mail = consumer(session)
    await mail.wait_active()
    for index in range(20):
        await lake.commit(journal, lake.namespace(f"n{index}"))
    await lake.commit(journal, lake.namespace("a"))
    event = await anext(mail)
    await lake.commit(journal, lake.namespace("z"))
    waiting = asyncio.ensure_future(anext(mail))
    while mail._reached[0] <= journal.head.version:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await mail._write()
    assert mail.position is not None
    assert mail.position < event.version, "an event that is open holds the position"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await mail.acknowledge(event)
    assert mail.position == journal.head.version
    await mail.close()
    assert (await AsyncSubscriptions(session).load("mail")).position == journal.head.version


async def test_history_that_is_gone_is_said_with_a_way_on() -> None:
    lake = Lake()
    journal = await lake.create()
    await AsyncSubscriptions(session_on(journal, lake)).create("mail")
    for name in "abcd":
        await lake.commit(journal, lake.namespace(name))
    await lake.expire(below=3)
    journal = await lake.open()
    session = session_on(journal, lake, 1)
    async with consumer(session) as mail:
        with pytest.raises(Expired) as caught:
            await anext(mail)
        assert caught.value.oldest == 3
        assert "reset('mail', after=3)" in caught.value.hint
        with pytest.raises(Expired):
            await anext(mail)
    await AsyncSubscriptions(session).reset("mail", 3)
    async with consumer(session, "mail") as mail:
        assert (await anext(mail)).version == 4
    with pytest.raises(Expired):
        await AsyncSubscriptions(session).reset("mail", 1)


async def test_a_subscription_of_the_same_name_is_another() -> None:
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    entries = AsyncSubscriptions(session)
    await entries.create("mail")
    mail = consumer(session)
    await anext(mail)
    await entries.delete("mail")
    await entries.create("mail")
    with pytest.raises(NotFound, match="created later"):
        await last_of(mail)
    await mail.close()


async def test_files_of_earlier_turns_go() -> None:
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    for _ in range(5):
        async with consumer(session) as mail:
            await mail.wait_active()
    left = [info.path async for info in lake.storage.list("sub/")]
    assert len(left) == 1


class Heart:
    """Controls the sleeping, the clock and the acknowledgements of a consumer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.now = 0.0
        self.pauses: list[float] = []
        self.asleep = asyncio.Event()
        self._go_on = asyncio.Event()
        self.written: list[Position] = []
        self.failures: list[AlpheusError] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._go_on.clear()
        self.asleep.set()
        await self._go_on.wait()
        self.now += seconds

    async def acknowledge(self, name: str, path: str, position: Position) -> None:
        if self.failures:
            raise self.failures.pop(0)
        await self._inner.acknowledge(name, path, position)
        self.written.append(position)

    async def beat(self) -> None:
        """Wake the consumer, and wait until it sleeps again."""
        await self.asleep.wait()
        self.asleep.clear()
        self._go_on.set()
        await self.asleep.wait()


@contextlib.asynccontextmanager
async def beating(
    lake: Lake, *, lease: float = 12.0
) -> AsyncIterator[tuple[Journal, Heart, AsyncSubscription]]:
    """Yield a consumer that holds the turn. Its lease needs a sign of life every four seconds."""
    journal = await lake.create()
    session = session_on(journal, lake)
    heart = Heart(journal)
    session.access = cast(Any, heart)
    call = session.call

    async def call_once(what: str, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Call once for acknowledgements, as if the time for retries were over."""
        return await (attempt() if what == "acknowledge" else call(what, attempt))

    session.call = call_once  # type: ignore[method-assign]
    terms = terms_of(None, None, "namespace", None, None, 0, lease)
    mail = AsyncSubscription(session, "mail", terms, monotonic=lambda: heart.now, sleep=heart.sleep)
    await mail.wait_active()
    try:
        yield journal, heart, mail
    finally:
        await mail.close()


async def test_a_consumer_that_left_gives_no_more_signs() -> None:
    lake = Lake()
    async with beating(lake) as (_, heart, mail):
        await heart.beat()
        signs = mail._sign_task
        assert signs is not None
        await mail.close()
        assert signs.cancelled()
        assert heart.written[-1].released
        said = len(heart.written)
        heart._go_on.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(heart.written) == said, "a sign after its release would take the turn from the next one"
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert "signs of mail" not in names


@pytest.mark.parametrize(
    "outage",
    [Unavailable("away"), Exhausted("full"), OutcomeUnknown("lost", transaction_id="")],
    ids=lambda error: error.kind,
)
async def test_an_outage_during_a_sign_costs_no_turn(outage: AlpheusError) -> None:
    """A sign of life that an outage prevented is sent again after a quarter of the pause.

    Later signs keep the normal pace.
    """
    lake = Lake()
    async with beating(lake) as (journal, heart, mail):
        await heart.beat()
        assert heart.pauses == [4.0, 4.0]
        heart.failures = [outage]
        await heart.beat()
        await heart.beat()
        await heart.beat()
        assert heart.pauses == [4.0, 4.0, 1.0, 4.0, 4.0]
        assert [position.beat for position in heart.written] == [1, 2, 4, 5]
        await lake.commit(journal, lake.namespace("a"))
        event = await anext(mail)
        await mail.acknowledge(event)
        assert mail.position == event.version


async def test_a_sign_that_is_refused_ends_the_turn() -> None:
    lake = Lake()
    async with beating(lake) as (_, heart, mail):
        signs = mail._sign_task
        assert signs is not None
        heart.failures = [Conflict("another has it", transaction_id="", kind="subscription_claimed")]
        await heart.asleep.wait()
        heart._go_on.set()
        await signs
        for _ in range(2):
            with pytest.raises(Conflict, match="another has it"):
                await anext(mail)


async def test_an_acknowledgement_is_a_sign() -> None:
    lake = Lake()
    async with beating(lake) as (journal, heart, mail):
        await heart.asleep.wait()
        await lake.commit(journal, lake.namespace("a"))
        event = await anext(mail)
        heart.now = 3.0
        await mail.acknowledge(event)
        said = len(heart.written)
        heart.now = 0.0  # the consumer's sleep adds its four seconds to this
        await heart.beat()
        assert (len(heart.written), heart.pauses[-1]) == (said, 3.0), "four less the one since"
        await heart.beat()
        assert (len(heart.written), heart.pauses[-1]) == (said + 1, 4.0)


async def test_acknowledging_an_older_event_takes_nothing_back() -> None:
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    mail = consumer(session, kinds="namespace", after="latest")
    await mail.wait_active()
    for name in "abc":
        await lake.commit(journal, lake.namespace(name))
    first, second, third = [await anext(mail) for _ in range(3)]
    await mail.acknowledge(second)
    assert mail.position == second.version
    await mail.acknowledge(first)
    assert mail.position == second.version
    await mail._write()  # a sign of life carries the position
    await mail.close()
    shown = await AsyncSubscriptions(session).load("mail")
    assert shown.position == second.version
    async with consumer(session_on(journal, lake, 1)) as following:
        assert (await anext(following)).version == third.version


class Feed:
    """An `Access` whose event streams end with an error at a version.

    It counts the streams that are open and that were opened.
    """

    def __init__(self, inner: Any, version: int, error: AlpheusError) -> None:
        self._inner = inner
        self._version = version
        self._error = error
        self.opened_count = self.open_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def events(self, **asked: Any) -> AsyncIterator[Any]:
        self.opened_count += 1
        self.open_count += 1
        try:
            async for item in self._inner.events(**asked):
                if item.version == self._version:
                    raise self._error
                yield item
        finally:
            self.open_count -= 1


def tasks_of_consumers() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("signs of")]


@pytest.mark.parametrize(
    "error",
    [
        Corrupt("damaged", kind="corrupt_node"),
        InvalidInput("the event takes too many bytes", kind="too_large"),
        Expired("gone", oldest=7, hint="read it earlier"),
    ],
    ids=lambda error: error.kind,
)
async def test_a_stream_that_fails_ends_the_turn_and_leaves_nothing_behind(error: AlpheusError) -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    await lake.commit(journal, lake.namespace("b"))
    session = session_on(journal, lake)
    feed = Feed(journal, 2, error)
    session.access = cast(Any, feed)
    mail = consumer(session, after=0)
    first = await anext(mail)
    assert (first.version, feed.open_count, tasks_of_consumers()) == (1, 1, ["signs of mail"])
    opened_count = feed.opened_count
    with pytest.raises(type(error)) as caught:
        await anext(mail)
    assert caught.value.kind == error.kind
    assert feed.open_count == 0
    assert tasks_of_consumers() == [], "before anybody closes it"
    if isinstance(error, Expired):
        assert "admin.subscriptions.reset('mail', after=7)" in error.hint
    for again in (anext(mail), mail.wait_active(), mail.acknowledge(first)):
        with pytest.raises(type(error)) as caught:
            await again
        assert caught.value is error
    assert feed.opened_count == opened_count
    await mail.close()
    shown = await AsyncSubscriptions(session_on(journal, lake, 1)).load("mail")
    assert shown.holder == mail.holder, "a turn that failed is not given back: its lease runs out"


async def test_each_acknowledgement_moves_the_position_and_is_stored() -> None:
    lake = Lake()
    async with beating(lake) as (journal, heart, mail):
        for name in "abc":
            await lake.commit(journal, lake.namespace(name))
        for _ in range(3):
            event = await anext(mail)
            await mail.acknowledge(event)
            assert mail.position == event.version
            assert (heart.written[-1].next_version, heart.written[-1].token) == (
                event.version + 1,
                event.token,
            )
        assert event.version == journal.head.version


async def test_only_what_was_delivered_can_be_acknowledged() -> None:
    lake = Lake()
    async with beating(lake) as (journal, heart, mail):
        await lake.commit(journal, lake.namespace("a"))
        await lake.commit(journal, lake.namespace("b"))
        event = await anext(mail)
        said = len(heart.written)
        later = msgspec.structs.replace(event, version=event.version + 1)
        for wrong in (event.version, str(event.version), None, later, (event.version,)):
            with pytest.raises(InvalidInput, match="subscription mail did not deliver"):
                await mail.acknowledge(cast(Any, wrong))
        assert (len(heart.written), mail.position) == (said, 0)
        await mail.acknowledge(event)
        assert mail.position == event.version
        await mail.acknowledge(event)
        assert [position.next_version for position in heart.written[said:]] == [event.version + 1], "once"


async def test_who_stands_by_looks_at_the_pace_of_the_lease_and_takes_over_when_it_has_run_out() -> None:
    """Everything that the holder writes is a sign of life.

    A waiting consumer takes over a whole lease after the last sign.
    """
    lake = Lake()
    async with beating(lake) as (journal, _, holder):
        await lake.commit(journal, lake.namespace("a"))
        event = await anext(holder)
        waits: list[float] = []
        now = 0.0

        async def sleep(seconds: float) -> None:
            nonlocal now
            if other.epoch:
                await asyncio.Event().wait()  # its own signs of life, after it has the turn
            waits.append(seconds)
            now += seconds
            if len(waits) == 4:
                await holder.acknowledge(event)

        said = terms_of(None, None, None, None, None, None, None)
        other = AsyncSubscription(
            session_on(journal, lake, 1), "mail", said, monotonic=lambda: now, sleep=sleep
        )
        assert (other.epoch, other.position) == (0, None)
        await other.wait_active()
        assert waits == [2.0] * 10, "four, and six after the sign"
        assert (other.epoch, other.position) == (2, event.version)
        with pytest.raises(Conflict) as caught:
            await holder._write()
        assert caught.value.kind == "subscription_claimed"
        assert other.holder in caught.value.message
        await other.close()
