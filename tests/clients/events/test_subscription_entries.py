"""Durable subscriptions as entries of a catalog: what a consumer may say of one, where it begins, and what is shown."""

from __future__ import annotations

from typing import Any

from memory_sessions import session_on

from alpheus.events.events import filter_of
from alpheus.events.subscriptions import AsyncSubscriptions
from alpheus_journal.format import Kind
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.testing import Lake


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


async def test_the_filter_that_a_user_gives() -> None:
    found = filter_of("a", ["a.*", ("b", "x*"), "c.d"], ["table"], ["table_insert"])
    assert found == EventFilter(
        namespaces=frozenset({"a"}),
        names=frozenset({"b.x*", "c.d"}),
        name_patterns=frozenset({"a.*"}),
        kinds=frozenset({Kind.TABLE}),
        actions=frozenset({"TABLE_INSERT"}),
    )
