"""A tag tells what its version has: counts of objects, tables and rows, where counting is cheap."""

from __future__ import annotations

import pytest
from upkeep_lake import commit_rows, make_table, tag

from alpheus_journal import format as fmt
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import At
from alpheus_journal.tags import counts
from alpheus_journal.tags.reader import load_tag
from alpheus_journal.testing import Lake


async def counts_at(journal: Journal, at: At) -> tuple[int | None, int | None, int | None]:
    pin = await journal.create_pin(at)
    return pin.object_count, pin.table_count, pin.row_count


async def test_a_small_version_is_counted_from_its_tree_or_from_memory() -> None:
    lake = Lake()
    journal = await make_table(lake)
    version = await commit_rows(lake, journal)
    await commit_rows(lake, journal)
    await lake.commit(journal, lake.table("a", "u"), lake.namespace("b"))
    assert await counts_at(journal, None) == (4, 2, 6)
    assert await counts_at(journal, version) == (2, 1, 3)
    assert await counts_at(journal, 0) == (0, 0, 0)
    state = await journal.load_state()
    assert (len(state), state.table_count) == (4, 2)
    assert await counts_at(journal, None) == (4, 2, 6)
    await tag(lake, journal, "v", version)
    found = await load_tag(journal, "v")
    assert (found.object_count, found.table_count, found.row_count) == (2, 1, 3)
    await tag(lake, journal, "v", journal.head.version)
    found = await load_tag(journal, "v")
    assert (found.object_count, found.table_count, found.row_count) == (5, 2, 6), "the tag is an object, too"


async def test_a_large_version_is_counted_from_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "LEAVES_MAX", 1)
    lake = Lake()
    journal = await make_table(lake, order=4)
    for start in range(0, 40, 10):
        await lake.commit(journal, *[lake.table("a", f"t{number}") for number in range(start, start + 10)])
    version = await commit_rows(lake, journal)
    assert await counts_at(journal, None) == (None, None, None)
    await journal.load_state()
    assert await counts_at(journal, None) == (42, 41, 3)
    await lake.commit(journal, lake.namespace("b"), lake.table("b", "t"))
    await lake.commit(journal, lake.namespace("c"))
    assert await counts_at(journal, version) == (42, 41, None), "later events are undone; rows are not known"
    other = await lake.open()
    await tag(lake, other, "v", version)
    found = await load_tag(other, "v")
    assert (found.object_count, found.table_count, found.row_count) == (None, None, None)


async def test_rows_of_many_tables_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "TABLES_READ_MAX", 1)
    monkeypatch.setattr(counts, "TABLES_IN_MEMORY_MAX", 2)
    lake = Lake()
    journal = await make_table(lake)
    await commit_rows(lake, journal)
    await lake.commit(journal, lake.table("a", "u"))
    assert await counts_at(journal, None) == (3, 2, None)
    await journal.load_state()
    assert await counts_at(journal, None) == (3, 2, 3)
    await lake.commit(journal, lake.table("a", "v"))
    assert await counts_at(journal, None) == (4, 3, None)


async def test_damage_makes_counts_unknown_and_no_pin_fail() -> None:
    lake = Lake()
    journal = await make_table(lake)
    (stored,) = (await journal.load(None, [fmt.table_name("a", "t")])).objects
    assert stored is not None
    await lake.storage.delete(stored.path)
    assert await counts_at(await lake.open(), None) == (2, 1, None)
