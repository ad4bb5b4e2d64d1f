"""Retries of commits, and what the client reports when it cannot know the outcome.

`Faulty` stands between a session and a real journal in memory. It loses requests before they arrive, or answers after
the requests were applied. Time is a number that only pauses move.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from alpheus.aio import AsyncCatalog
from alpheus.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Exhausted,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus.session.arguments import parse_name, parse_when, texts, words
from alpheus.session.retry import RetryPolicy
from alpheus.session.session import Session
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed, Event, Progress, Tag, Timestamp
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.storage import Storage
from alpheus_journal.storage.memory import MemoryStorage


class Time:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class Faulty:
    """A journal behind a bad connection. Each call uses up one of `faults`, if that names its method.

    A fault is an error. It is raised instead of the call, or, with `after`, once the call was applied.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.faults: list[tuple[str, AlpheusError, bool]] = []
        self.sent: list[Transaction] = []
        self.calls: list[str] = []

    def fail(self, method: str, error: AlpheusError, *, after: bool = False) -> None:
        self.faults.append((method, error, after))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def _call(self, method: str, call: Callable[[], Any]) -> Any:
        self.calls.append(method)
        fault = None
        if self.faults and self.faults[0][0] == method:
            fault = self.faults.pop(0)
            if not fault[2]:
                raise fault[1]
        answer = await call()
        if fault is not None:
            raise fault[1]
        return answer

    async def commit(self, transaction: Transaction) -> Committed:
        self.sent.append(transaction)
        committed: Committed = await self._call("commit", lambda: self._journal.commit(transaction))
        return committed

    async def resolve(self, at: Any) -> Any:
        return await self._call("resolve", lambda: self._journal.resolve(at))

    async def load(self, at: Any, names: Any) -> Any:
        return await self._call("load", lambda: self._journal.load(at, names))

    async def save_transaction(self, transaction: Transaction) -> Any:
        return await self._call("save", lambda: self._journal.save_transaction(transaction))

    async def discard_transaction(self, transaction_id: str) -> Any:
        return await self._call("discard", lambda: self._journal.discard_transaction(transaction_id))

    async def outcome(self, transaction_id: str, **rest: Any) -> Any:
        return await self._call("outcome", lambda: self._journal.outcome(transaction_id, **rest))

    async def events(self, **query: Any) -> AsyncIterator[Event | Progress]:
        """Yield events. A fault breaks the stream after its first item."""
        fault = self.faults.pop(0) if self.faults and self.faults[0][0] == "events" else None
        self.calls.append("events")
        async for item in self._journal.events(**query):
            yield item
            if fault is not None:
                raise fault[1]

    async def log(self, **query: Any) -> AsyncIterator[Any]:
        fault = self.faults.pop(0) if self.faults and self.faults[0][0] == "log" else None
        self.calls.append("log")
        async for item in self._journal.log(**query):
            yield item
            if fault is not None:
                raise fault[1]


def lost() -> OutcomeUnknown:
    return OutcomeUnknown("the reply was lost")


def away() -> Unavailable:
    return Unavailable("nobody answers", kind="daemon_unavailable")


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def faulty() -> AsyncIterator[Faulty]:
    journal = await Journal.create(MemoryStorage())
    yield Faulty(journal)
    await journal.close()


@pytest.fixture
def catalog(faulty: Faulty, time: Time) -> AsyncCatalog:
    async def storage() -> Storage:
        return faulty._journal.storage

    retry_policy = RetryPolicy(10, monotonic=time.monotonic, sleep=time.sleep, jitter=random.Random(1))
    return AsyncCatalog(
        Session(
            faulty,
            url="memory://test",
            principal="tester@here",
            retry_policy=retry_policy,
            identities=RandomIdentities(),
            open_storage=storage,
            outage="daemon_unavailable",
        )
    )


# --- commits that are tried again ------------------------------------------------------------------


async def test_unavailable_is_tried_again_under_the_same_id(
    catalog: AsyncCatalog, faulty: Faulty, time: Time
) -> None:
    faulty.fail("commit", away())
    faulty.fail("commit", away())
    commit = await catalog.create_namespace("n")
    assert len(faulty.sent) == 3
    assert faulty.sent[0] == faulty.sent[1] == faulty.sent[2]
    assert faulty.sent[0].begin_version == 0
    assert commit.transaction_id == faulty.sent[0].id
    assert len(time.pauses) == 2
    assert await catalog.version() == 1


async def test_a_lost_reply_is_asked_for_again(catalog: AsyncCatalog, faulty: Faulty) -> None:
    faulty.fail("commit", lost(), after=True)
    commit = await catalog.create_namespace("n")
    assert faulty.sent[0] == faulty.sent[1]
    assert (commit.version, commit.duplicate) == (1, True)
    assert await catalog.version() == 1


async def test_a_lost_request_is_sent_again(catalog: AsyncCatalog, faulty: Faulty) -> None:
    faulty.fail("commit", lost())
    commit = await catalog.create_namespace("n")
    assert (commit.version, commit.duplicate) == (1, False)


async def test_unavailable_after_the_timeout(catalog: AsyncCatalog, faulty: Faulty, time: Time) -> None:
    for _ in range(1000):
        faulty.fail("commit", away())
    with pytest.raises(Unavailable):
        await catalog.create_namespace("n")
    assert 0 < sum(time.pauses) <= 10
    assert max(time.pauses) <= 2


async def test_one_doubt_makes_the_outcome_unknown(catalog: AsyncCatalog, faulty: Faulty) -> None:
    faulty.fail("commit", lost(), after=True)
    for _ in range(1000):
        faulty.fail("commit", away())
    with pytest.raises(OutcomeUnknown) as caught:
        await catalog.create_namespace("n")
    assert caught.value.transaction_id == faulty.sent[0].id
    faulty.faults.clear()
    outcome = await catalog.outcome(caught.value.transaction_id)
    assert outcome.state == "committed"


async def test_a_refusal_after_a_doubt_is_settled(catalog: AsyncCatalog, faulty: Faulty) -> None:
    # The first send may still be under way in another daemon, so that "it exists already" is no answer yet.
    faulty.fail("commit", lost())
    faulty.fail("commit", AlreadyExists("there is a namespace n already", kind="namespace_exists"))
    with pytest.raises(AlreadyExists):
        await catalog.create_namespace("n")
    assert faulty.calls[-1] == "outcome"
    # The transaction can never commit, whichever daemon holds it.
    with pytest.raises(InvalidInput) as caught:
        await faulty._journal.commit(faulty.sent[0])
    assert caught.value.kind == "id_cancelled"


async def test_a_refusal_after_a_doubt_may_have_been_a_success(catalog: AsyncCatalog, faulty: Faulty) -> None:
    faulty.fail("commit", lost(), after=True)
    faulty.fail("commit", Expired("a tombstone lies between"))
    commit = await catalog.create_namespace("n")
    assert commit.version == 1
    assert await catalog.version() == 1


async def test_settling_that_fails_leaves_the_doubt(catalog: AsyncCatalog, faulty: Faulty) -> None:
    faulty.fail("commit", lost())
    faulty.fail("commit", Conflict("somebody was first"))
    faulty.fail("outcome", Expired("a tombstone lies between"))
    with pytest.raises(OutcomeUnknown) as caught:
        await catalog.create_namespace("n")
    assert caught.value.transaction_id == faulty.sent[0].id


async def test_a_refusal_at_once_is_final(catalog: AsyncCatalog, faulty: Faulty) -> None:
    faulty.fail("commit", Conflict("somebody was first"))
    with pytest.raises(Conflict):
        await catalog.create_namespace("n")
    assert len(faulty.sent) == 1
    assert "outcome" not in faulty.calls


async def test_a_full_queue_is_waited_for(catalog: AsyncCatalog, faulty: Faulty, time: Time) -> None:
    faulty.fail("commit", Exhausted("the queue is full", retry_after=3.0))
    assert (await catalog.create_namespace("n")).version == 1
    assert time.pauses == [3.0]
    faulty.fail("commit", Exhausted("no space", kind="no_space"))
    with pytest.raises(Exhausted):
        await catalog.create_namespace("m")


async def test_a_read_only_store_is_not_waited_for(catalog: AsyncCatalog, faulty: Faulty, time: Time) -> None:
    faulty.fail("commit", Unavailable("a sync failed", kind="storage_read_only"))
    with pytest.raises(Unavailable):
        await catalog.create_namespace("n")
    assert time.pauses == []


async def test_reads_are_tried_again(catalog: AsyncCatalog, faulty: Faulty, time: Time) -> None:
    faulty.fail("resolve", away())
    assert await catalog.version() == 0
    faulty.fail("load", away())
    assert not await catalog.namespace_exists("n")
    assert len(time.pauses) == 2


async def test_the_begin_version_is_fixed_before_the_first_send(
    catalog: AsyncCatalog, faulty: Faulty
) -> None:
    async with catalog.transaction() as tx:
        await tx.create_namespace("mine")
        await catalog.create_namespace("theirs")
        faulty.sent.clear()
        faulty.fail("commit", away())
    assert [sent.begin_version for sent in faulty.sent] == [0, 0]
    assert tx.result is not None
    assert tx.result.version == 2


async def test_a_single_call_asks_for_the_head_only_when_it_is_not_known(
    catalog: AsyncCatalog, faulty: Faulty
) -> None:
    await catalog.create_namespace("n")
    assert faulty.calls == ["resolve", "commit"]
    await catalog.create_namespace("m")
    assert faulty.calls == ["resolve", "commit", "commit"]


async def test_exist_ok_survives_a_race(catalog: AsyncCatalog, faulty: Faulty) -> None:
    faulty.fail("commit", Conflict("created meanwhile", kind="already_exists_now"))
    commit = await catalog.create_namespace("n", exist_ok=True)
    assert commit.transaction_id == ""
    faulty.fail("commit", Conflict("something else", kind="namespace_changed"))
    with pytest.raises(Conflict):
        await catalog.create_namespace("n", exist_ok=True)


# --- the block -------------------------------------------------------------------------------------


async def test_a_transaction_ends_once(catalog: AsyncCatalog, faulty: Faulty) -> None:
    tx = catalog.transaction()
    with pytest.raises(InvalidInput, match="has not begun"):
        await tx.create_namespace("n")
    async with tx:
        await tx.create_namespace("n")
        (operation,) = tx.operations
        assert isinstance(operation, CreateNamespace)
        assert operation.name == "n"
        commit = await tx.commit()
        assert commit == tx.result
    assert len(faulty.sent) == 1
    with pytest.raises(InvalidInput, match="was entered before"):
        await tx.__aenter__()
    with pytest.raises(InvalidInput, match="is over"):
        await tx.load_namespace("n")
    with pytest.raises(InvalidInput, match="is over"):
        await tx.commit()


async def test_abandoning(catalog: AsyncCatalog, faulty: Faulty) -> None:
    async with catalog.transaction() as tx:
        await tx.create_namespace("n")
        tx.abandon()
    assert tx.result is None
    assert faulty.sent == []


async def test_reads_of_a_transaction_stay_at_its_version(catalog: AsyncCatalog) -> None:
    async with catalog.transaction() as tx:
        await catalog.create_namespace("later")
        assert not await tx.namespace_exists("later")
        assert await tx.list_namespaces() == []
        await tx.create_namespace("own")
        assert [found.name for found in await tx.list_namespaces()] == ["own"]
        assert (await tx.load_namespace("own")).version == 0
    assert [found.name for found in await catalog.list_namespaces()] == ["later", "own"]


async def test_a_refused_verb_leaves_the_transaction_as_it_was(catalog: AsyncCatalog) -> None:
    await catalog.create_namespace("there")
    async with catalog.transaction() as tx:
        await tx.create_namespace("n")
        before = tx.operations
        with pytest.raises(AlreadyExists):
            await tx.create_namespace("there")
        assert tx.operations == before
    assert await catalog.namespace_exists("n")


async def test_what_a_transaction_says_of_itself(catalog: AsyncCatalog, faulty: Faulty) -> None:
    async with catalog.transaction(message="why", properties={"k": "v"}) as tx:
        await tx.create_namespace("n")
    (sent,) = faulty.sent
    assert (sent.message, sent.properties, sent.principal) == ("why", {"k": "v"}, "tester@here")
    for wrong in ({"properties": {"k": 1}}, {"properties": "k"}, {"message": 5}):
        with pytest.raises(InvalidInput):
            catalog.transaction(**wrong)


# --- streams that break ----------------------------------------------------------------------------


@pytest.mark.parametrize("follow", [False, True])
async def test_broken_events_go_on_without_gap_or_repeat(
    catalog: AsyncCatalog, faulty: Faulty, time: Time, follow: bool
) -> None:
    for number in range(5):
        await catalog.create_namespace(f"n{number}")
    faulty.fail("events", away())
    faulty.fail("events", Exhausted("too slow", kind="subscriber_too_slow", resume_token="x"))
    events = catalog.events(until=5 if follow else None, follow=follow)
    assert [event.version async for event in events] == [0, 1, 2, 3, 4, 5]
    assert faulty.calls.count("events") == 3
    assert len(time.pauses) == 2


async def test_the_end_of_events_is_the_head_of_the_call(catalog: AsyncCatalog, faulty: Faulty) -> None:
    await catalog.create_namespace("a")
    faulty.fail("events", away())
    seen = []
    async for event in catalog.events():
        seen.append(event.version)
        await catalog.create_namespace(f"n{event.version}")
    assert seen == [0, 1]


async def test_following_outlasts_any_outage(catalog: AsyncCatalog, faulty: Faulty, time: Time) -> None:
    class Down:
        """Fails a hundred times, each time before any item."""

        def __init__(self) -> None:
            self.left = 100

        async def events(self, **query: Any) -> AsyncIterator[Any]:
            if self.left:
                self.left -= 1
                raise away()
            async for item in faulty._journal.events(**query):
                yield item

    down = Down()
    faulty.events = down.events  # type: ignore[method-assign]
    following = catalog.events(follow=True)
    assert (await anext(following)).version == 0
    assert sum(time.pauses) > 100
    down.left = 100
    with pytest.raises(Unavailable):
        await anext(catalog.events())
    await following.aclose()  # type: ignore[attr-defined]


async def test_events_end_with_expired(catalog: AsyncCatalog, faulty: Faulty, time: Time) -> None:
    faulty.fail("events", Expired("history is gone", oldest=7))
    events = catalog.events(follow=True)
    assert (await anext(events)).version == 0
    with pytest.raises(Expired) as caught:
        await anext(events)
    assert caught.value.oldest == 7
    assert time.pauses == []


async def test_a_broken_log_goes_on_without_gap_or_repeat(catalog: AsyncCatalog, faulty: Faulty) -> None:
    for number in range(4):
        await catalog.create_namespace(f"n{number}")
    for _ in range(3):
        faulty.fail("log", away())
    assert [entry.version async for entry in catalog.log()] == [4, 3, 2, 1, 0]
    assert faulty.calls.count("log") == 4


# --- what people write -----------------------------------------------------------------------------


def test_names() -> None:
    assert parse_name(Kind.TABLE, "a.b").full_name == "a.b"
    assert parse_name(Kind.TABLE, "a.b.c") == parse_name(Kind.TABLE, ("a.b", "c"))
    assert parse_name(Kind.TABLE, ("a", "b.c")).name == "b.c"


@given(st.text(), st.text())
def test_a_pair_names_what_it_says(namespace: str, name: str) -> None:
    parsed = parse_name(Kind.TABLE, (namespace, name))
    assert (parsed.namespace, parsed.name) == (namespace, name)


@given(st.text())
def test_any_text_is_a_name_or_refused(text: str) -> None:
    head, dot, tail = text.rpartition(".")
    if not (dot and head and tail):
        with pytest.raises(InvalidInput) as caught:
            parse_name(Kind.TABLE, text)
        assert caught.value.kind == "bad_name"
        return
    parsed = parse_name(Kind.TABLE, text)
    assert (parsed.namespace, parsed.name) == (head, tail)


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9000, 1, 1), timezones=st.just(UTC)))
def test_times_are_cut_to_milliseconds(moment: datetime) -> None:
    at = parse_when(moment)
    assert isinstance(at, Timestamp)
    assert 0 <= moment.timestamp() * 1000 - at.millis < 1.5
    assert parse_when(moment.isoformat()) == at
    assert parse_when(moment.isoformat().replace("+00:00", "Z")) == at


@given(st.integers(0, (1 << 32) - 1))
def test_decimal_text_is_a_version(version: int) -> None:
    assert parse_when(str(version)) == parse_when(version) == version


@given(st.text())
def test_other_text_names_a_tag_or_is_refused(text: str) -> None:
    assume(text != "latest" and not (text.isascii() and text.removeprefix("-").isdecimal()))
    try:
        found = parse_when(text)
    except InvalidInput as error:
        found = error.kind
    assert found in (Tag(text), "bad_version")


@given(st.from_regex(r"\A[0-9]{4}-[0-9]{2}(-[0-9]{2}([T ][0-9:]*)?)?\Z"))
def test_a_time_without_a_zone_is_never_a_tag(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_when(text)
    assert caught.value.kind == "bad_version"


def test_words_and_texts() -> None:
    assert words("x", "one") == ("one",)
    assert words("x", ["a", "b"]) == ("a", "b")
    assert texts("x", None) == {}
    with pytest.raises(InvalidInput):
        words("x", [1])  # type: ignore[list-item]
    with pytest.raises(InvalidInput):
        texts("x", [("a", "b")])  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0, -1, True, "30", float("nan"), float("inf")])
def test_timeouts_that_are_none(timeout: Any) -> None:
    with pytest.raises(InvalidInput):
        RetryPolicy(timeout)


# --- saved transactions ----------------------------------------------------------------------------


async def test_saving_is_tried_again_and_may_be_given_up(catalog: AsyncCatalog, faulty: Faulty) -> None:
    faulty.fail("save", away(), after=True)
    async with catalog.transaction() as tx:
        await tx.create_namespace("n")
        id = await tx.save()
    assert faulty.calls.count("save") == 2
    for _ in range(1000):
        faulty.fail("save", away())
    async with catalog.resume(id) as tx:
        with pytest.raises(Unavailable):
            await tx.save()
        faulty.faults.clear()
        assert await tx.save() == id, "it is as open as it was"
    assert [one.id for one in await catalog.list_saved()] == [id]


async def test_a_discard_whose_reply_is_lost_is_a_discard(catalog: AsyncCatalog, faulty: Faulty) -> None:
    async with catalog.transaction() as tx:
        await tx.create_namespace("n")
        id = await tx.save()
    faulty.fail("discard", away(), after=True)
    assert (await catalog.discard(id)).state == "cancelled"
    assert faulty.calls.count("discard") == 2
    with pytest.raises(NotFound):
        await catalog.discard(id)


async def test_a_commit_is_one_whatever_becomes_of_the_file(catalog: AsyncCatalog, faulty: Faulty) -> None:
    async with catalog.transaction() as tx:
        await tx.create_namespace("n")
        id = await tx.save()
    for _ in range(1000):
        faulty.fail("discard", away())
    async with catalog.resume(id) as tx:
        pass
    faulty.faults.clear()
    assert tx.result is not None
    assert [one.id for one in await catalog.list_saved()] == [id]
    async with catalog.resume(id) as again:
        pass
    assert again.result is not None
    assert (again.result.version, again.result.duplicate) == (tx.result.version, True)
    assert await catalog.list_saved() == []


async def test_a_saved_transaction_within_retry_commits_nothing(catalog: AsyncCatalog) -> None:
    async def put_aside(tx: Any) -> str:
        await tx.create_namespace("n")
        saved: str = await tx.save()
        return saved

    id = await catalog.retry(put_aside)
    assert await catalog.version() == 0
    assert [one.id for one in await catalog.list_saved()] == [id]
    async with catalog.transaction() as tx:
        pass
    assert tx.result is None
    async with catalog.transaction() as tx:
        empty = await tx.save()
    async with catalog.resume(empty) as tx:
        pass
    assert tx.result is None
    assert (await catalog.discard(empty)).state == "cancelled"


async def test_whoever_commits_a_saved_transaction_is_recorded(catalog: AsyncCatalog) -> None:
    async with catalog.transaction(message="half") as tx:
        await tx.create_namespace("n")
        id = await tx.save()
    assert [one.principal for one in await catalog.list_saved()] == ["tester@here"]
    late = catalog.resume(id)
    catalog._session.principal = "bob@there"
    async with catalog.resume(id):
        pass
    [entry] = [entry async for entry in catalog.log(after=0)]
    assert (entry.transaction.principal, entry.transaction.principal_authenticated) == ("bob@there", False)
    with pytest.raises(NotFound, match="no transaction"):
        await late.__aenter__()
