"""Durable subscriptions as entries of a catalog: their terms, where they begin, and how they are shown."""

from __future__ import annotations

import math
from typing import Any, cast

import msgspec
import pytest
from memory_sessions import consumer, session_on

from alpheus.errors import AlpheusError, AlreadyExists, Conflict, Expired, InvalidInput, NotFound
from alpheus.events.events import filter_of
from alpheus.events.subscriptions import (
    AsyncSubscriptions,
    SubscriptionTerms,
    check_same,
    load_entry,
    open_entry,
    terms_of,
)
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.execute.rules.subscriptions import LEASE_MILLIS_MAX, LEASE_MILLIS_MIN
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed, make_token
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.model.operations import Transaction
from alpheus_journal.testing import Lake, raises

EVERYTHING: dict[str, Any] = {
    "namespaces": ("hr", "sales"),
    "names": ("hr.people", "sales.lines"),
    "name_patterns": ("a.*", "b.?"),
    "kinds": (Kind.TABLE, Kind.VIEW),
    "actions": ("TABLE_DROP", "TABLE_INSERT"),
    "details": True,
    "lease_millis": 9000,
}
"""A subscription with all terms set. Each set is sorted, as it is stored."""


def everything_said() -> SubscriptionTerms:
    """Return all terms as users write them, in another order."""
    return terms_of(
        namespaces=["sales", "hr"],
        names=["sales.lines", "b.?", ("hr", "people"), "a.*"],
        kinds=["view", "table"],
        actions=["table_insert", "TABLE_DROP"],
        details=True,
        after=None,
        lease=9,
    )


def terms(**said: Any) -> SubscriptionTerms:
    return terms_of(
        **(dict.fromkeys(("namespaces", "names", "kinds", "actions", "details", "after", "lease")) | said)
    )


class Interrupted:
    """An `Access` that counts commits, and runs something else before each commit."""

    def __init__(self, journal: Journal) -> None:
        self._inner = journal
        self.commits_count = 0
        self.before: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, transaction: Transaction) -> Committed:
        self.commits_count += 1
        if self.before:
            await self.before.pop(0)()
        return await self._inner.commit(transaction)


async def interrupted(lake: Lake) -> tuple[Interrupted, Session]:
    journal = await lake.create()
    session = session_on(journal, lake)
    access = Interrupted(journal)
    session.access = cast(Any, access)
    return access, session


# --- terms of a subscription -----------------------------------------------------------------------


def test_what_a_consumer_says_is_sorted_and_what_it_leaves_out_is_none() -> None:
    assert everything_said() == SubscriptionTerms(**EVERYTHING)
    assert terms() == SubscriptionTerms()
    for part in ("namespaces", "kinds", "actions"):
        assert terms(**{part: ()}) == SubscriptionTerms(**{part: ()}), "nothing was said, and that was said"
    assert terms(names=()) == SubscriptionTerms(names=(), name_patterns=())
    assert terms(details=False) == SubscriptionTerms(details=False)
    assert terms(after=7).after == 7
    assert terms(after="latest").after == "latest"


@pytest.mark.parametrize("millis", [LEASE_MILLIS_MIN, LEASE_MILLIS_MIN + 1, 30_000, LEASE_MILLIS_MAX])
def test_a_lease_within_its_bounds_is_taken(millis: int) -> None:
    assert terms(lease=millis / 1000).lease_millis == millis


@pytest.mark.parametrize(
    "lease",
    [(LEASE_MILLIS_MIN - 1) / 1000, (LEASE_MILLIS_MAX + 1) / 1000, 0, -5, math.nan, math.inf, True, "9"],
)
def test_another_lease_is_refused_with_the_bounds(lease: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{LEASE_MILLIS_MIN / 1000:g} to {LEASE_MILLIS_MAX / 1000:g}"):
        terms(lease=lease)


@pytest.mark.parametrize("details", [1, 0, "yes"])
def test_details_are_said_with_a_truth_value(details: Any) -> None:
    with pytest.raises(InvalidInput, match="details="):
        terms(details=details)


async def test_an_entry_is_stored_as_it_was_said() -> None:
    lake = Lake()
    session = session_on(await lake.create(), lake)
    await open_entry(session, "mail", everything_said())
    version, stored = await load_entry(session, "mail")
    assert version == 1
    assert {field: getattr(stored, field) for field in EVERYTHING} == EVERYTHING
    assert (stored.holder, stored.epoch, stored.next_version, stored.token) == ("", 0, 0, "")
    await open_entry(session, "plain", terms())
    _, plain = await load_entry(session, "plain")
    nothing = dict.fromkeys(EVERYTHING, ()) | {"details": False, "lease_millis": 30_000}
    assert {field: getattr(plain, field) for field in EVERYTHING} == nothing
    assert plain.id != stored.id
    shown = await AsyncSubscriptions(session).load("mail")
    assert (shown.id, shown.lease_seconds) == (stored.id, 9.0)
    assert shown.names == ("a.*", "b.?", "hr.people", "sales.lines"), "patterns too"


async def test_who_says_nothing_or_the_same_consumes_what_is_there() -> None:
    lake = Lake()
    session = session_on(await lake.create(), lake)
    made = await open_entry(session, "mail", everything_said())
    for said in (terms(), everything_said(), terms(details=True), terms(kinds=["view", "table"])):
        assert await open_entry(session, "mail", said) == made
    assert session.access.head.version == 1, "nothing was written"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"namespaces": "hr"}, "namespaces ['hr', 'sales'] | ['hr']"),
        (
            {"names": ["hr.people", "a.*", "b.?"]},
            "names ['hr.people', 'sales.lines'] | ['hr.people']",
        ),
        (
            {"names": ["hr.people", "sales.lines", "a.*"]},
            "name patterns ['a.*', 'b.?'] | ['a.*']",
        ),
        ({"kinds": "table"}, "kinds ['table', 'view'] | ['table']"),
        ({"actions": ()}, "actions ['TABLE_DROP', 'TABLE_INSERT'] | []"),
        ({"details": False}, "details True | False"),
        ({"lease": 10}, "lease millis 9000 | 10000"),
    ],
)
async def test_who_says_something_else_is_told_what(said: dict[str, Any], told: str) -> None:
    lake = Lake()
    session = session_on(await lake.create(), lake)
    there = await open_entry(session, "mail", everything_said())
    with pytest.raises(InvalidInput) as caught:
        check_same("mail", there, terms(**said))
    there_with, asked_for = told.split(" | ")
    assert "subscription mail " in caught.value.message
    assert there_with in caught.value.message
    assert caught.value.message.endswith(asked_for)
    assert (
        await raises(InvalidInput, open_entry(session, "mail", terms(**said)))
    ).message == caught.value.message


@pytest.mark.parametrize("name", ["a*b", "", "a b", "\ud800", "x" * 101])
async def test_a_name_that_no_subscription_may_have_is_refused_before_anything_is_sent(name: str) -> None:
    access, session = await interrupted(Lake())
    with pytest.raises(InvalidInput) as caught:
        await AsyncSubscriptions(session).create(name)
    assert caught.value.kind == "bad_name"
    assert access.commits_count == 0


# --- concurrent subscribers ------------------------------------------------------------------------


async def test_two_that_subscribe_at_once_share_one_entry() -> None:
    lake = Lake()
    access, session = await interrupted(lake)
    rival = session_on(await lake.open(), lake, 1)
    access.before = [lambda: open_entry(rival, "mail", everything_said())]
    found = await open_entry(session, "mail", terms())
    assert access.commits_count == 1
    assert found == (await load_entry(rival, "mail"))[1]
    access.before = [lambda: open_entry(rival, "other", everything_said())]
    await raises(InvalidInput, open_entry(session, "other", terms(details=False)))


@pytest.mark.parametrize(
    "refusal",
    [
        Conflict("another", transaction_id="", kind="subscription_claimed"),
        Expired("gone", oldest=3),
        InvalidInput("wrong"),
    ],
    ids=lambda error: error.kind,
)
async def test_what_else_refuses_a_new_entry_is_told(refusal: AlpheusError) -> None:
    access, session = await interrupted(Lake())

    async def refuse() -> None:
        raise refusal

    access.before = [refuse]
    with pytest.raises(type(refusal)) as caught:
        await open_entry(session, "mail", terms())
    assert caught.value.kind == refusal.kind
    assert access.commits_count == 1


# --- where a subscription begins -------------------------------------------------------------------


async def begun(session: Session, after: Any) -> tuple[int, str]:
    await AsyncSubscriptions(session).create("mail", after=after)
    _, stored = await load_entry(session, "mail")
    await AsyncSubscriptions(session).delete("mail")
    return stored.next_version, stored.token


async def test_an_entry_begins_after_the_position_that_is_said() -> None:
    lake = Lake()
    journal = await lake.create()
    for name in "abc":
        await lake.commit(journal, lake.namespace(name))
    session = session_on(journal, lake)
    tokens = [(await journal.resolve(version)).token for version in range(4)]
    assert await begun(session, None) == (0, ""), "with the first version"
    for version in range(4):
        assert await begun(session, version) == (version + 1, "")
        assert await begun(session, str(version)) == (version + 1, "")
        assert await begun(session, tokens[version]) == (version + 1, tokens[version])
    head = journal.head
    assert await begun(session, "latest") == (head.version + 1, head.token)
    for wrong, kind in [
        (journal.head.version + 1, "future_version"),
        (make_token(journal.catalog_id, 2, "another"), "bad_token"),
        (make_token(journal.catalog_id, 99, "another"), "bad_token"),
        ("soon", "bad_token"),
        (-1, "bad_version"),
    ]:
        assert (await raises(InvalidInput, begun(session, wrong))).kind == kind


async def test_where_history_has_expired_an_entry_begins_with_the_first_event_that_is_kept() -> None:
    lake = Lake()
    journal = await lake.create()
    for name in "abcd":
        await lake.commit(journal, lake.namespace(name))
    expired = [(await journal.resolve(version)).token for version in range(3)]
    await lake.expire(below=3)
    session = session_on(await lake.open(), lake)
    assert await begun(session, None) == (4, ""), "that of version 3 went with version 2"
    assert await begun(session, 3) == (4, "")
    for after in (2, 0, expired[2]):
        assert (await raises(Expired, begun(session, after))).oldest == 3


@pytest.mark.parametrize("after", [0, 2, "token", "latest"])
async def test_a_reset_goes_back_or_forth_and_ends_the_turn(after: Any) -> None:
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    entries = AsyncSubscriptions(session)
    mail = consumer(session, after="latest")
    await mail.wait_active()
    for name in "abc":
        await lake.commit(journal, lake.namespace(name))
    token = (await journal.resolve(1)).token
    head = journal.head
    await entries.reset("mail", token if after == "token" else after)
    _, stored = await load_entry(session, "mail")
    expected = {0: (1, ""), 2: (3, ""), "token": (2, token), "latest": (head.version + 1, head.token)}
    assert (stored.next_version, stored.token) == expected[after]
    assert (stored.holder, stored.epoch) == ("", 2)
    with pytest.raises(Conflict, match="reset"):
        await mail._write()
    await mail.close()
    async with consumer(session_on(journal, lake, 1)) as following:
        await following.wait_active()
        assert following.position == stored.next_version - 1


# --- how a subscription is shown -------------------------------------------------------------------


async def test_an_entry_is_shown_with_who_has_the_turn_until_it_leaves() -> None:
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    entries = AsyncSubscriptions(session)
    mail = consumer(session, kinds="namespace")
    await mail.wait_active()
    shown = await entries.load("mail")
    assert (shown.name, shown.holder, shown.epoch, shown.position) == ("mail", mail.holder, 1, None)
    assert shown.version == journal.head.version
    await lake.commit(journal, lake.namespace("a"))
    event = await anext(mail)
    await mail.acknowledge(event)
    (listed,) = await entries.list()
    assert (listed.holder, listed.position, listed.version) == (
        mail.holder,
        event.version,
        journal.head.version,
    )
    await mail.close()
    assert ((await entries.load("mail")).holder, (await entries.list())[0].holder) == ("", "")
    assert (await entries.load("mail")).position == event.version


async def test_what_is_not_there_is_said_with_the_way_to_make_it() -> None:
    lake = Lake()
    session = session_on(await lake.create(), lake)
    entries = AsyncSubscriptions(session)
    for missing in (entries.load("mail"), entries.delete("mail"), entries.reset("mail", 0)):
        error = await raises(NotFound, missing)
        assert error.kind == "no_subscription"
        assert "alpheus subscription create mail" in error.hint
    await entries.create("mail")
    assert (await raises(AlreadyExists, entries.create("mail"))).kind == "subscription_exists"
    await entries.delete("mail")
    assert await entries.list() == []
    key = fmt.subscription_name("mail")
    assert (await session.load(None, [key])).objects == (None,)


async def test_a_list_of_several_pages() -> None:
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    entries = AsyncSubscriptions(session)
    made = [f"m{number}" for number in range(5)] + ["other"]
    for name in made:
        await entries.create(name)
    asked: list[tuple[int | None, str]] = []
    whole = session.page

    async def paged(version: int | None, *args: Any, **kwargs: Any) -> Any:
        asked.append((version, kwargs["after"]))
        return await whole(version, *args, **kwargs | {"limit": 2})

    session.page = paged  # type: ignore[method-assign]
    assert [each.name for each in await entries.list()] == made
    head = journal.head.version
    assert asked == [(None, ""), (head, "m1"), (head, "m3")], "all pages at one version"
    assert [each.name for each in await entries.list("m")] == made[:5]


async def test_a_page_that_says_more_and_names_none_is_the_last_one() -> None:
    lake = Lake()
    session = session_on(await lake.create(), lake)
    entries = AsyncSubscriptions(session)
    await entries.create("mail")
    whole = session.page

    async def paged(*args: Any, **kwargs: Any) -> Any:
        return msgspec.structs.replace(await whole(*args, **kwargs), more=True)

    session.page = paged  # type: ignore[method-assign]
    assert [each.name for each in await entries.list()] == ["mail"]
    assert await entries.list("other") == []


async def test_the_filter_that_a_user_gives() -> None:
    found = filter_of("a", ["a.*", ("b", "x*"), "c.d"], ["table"], ["table_insert"])
    assert found == EventFilter(
        namespaces=frozenset({"a"}),
        names=frozenset({"b.x*", "c.d"}),
        name_patterns=frozenset({"a.*"}),
        kinds=frozenset({Kind.TABLE}),
        actions=frozenset({"TABLE_INSERT"}),
    )
