"""Distributed transactions that the Java SDK saved are listed and removed, and never resumed. Versions without
recorded actions are compared with each other to find the past changes of a catalog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import alpheus
from alpheus.errors import InvalidInput, NotFound
from alpheus_journal import format as fmt
from alpheus_journal.commit.saved_transactions import decode_stored
from alpheus_journal.errors import Expired
from alpheus_journal.journal import Journal
from alpheus_journal.model.operations import Transaction
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import FakeClock, Lake, raises

KEYS = ("dtxn_saved", "dtxn_second")


@pytest.fixture
def expected(goldens: Any) -> dict[str, dict[str, Any]]:
    """Return the saved transactions by id."""
    found = (goldens["g5-dtxn"].expected[key] for key in KEYS)
    return {one["id"]: one for one in found}


async def opened(storage: MemoryStorage, at_millis: int) -> Journal:
    clock = FakeClock()
    clock.millis = at_millis
    return await Journal.open(storage, clock=clock)


async def test_they_are_listed_with_the_version_that_they_began_at(
    goldens: Any, in_memory: Any, expected: dict[str, dict[str, Any]]
) -> None:
    journal = await Journal.open(await in_memory(goldens["g5-dtxn"]))
    found = {one.transaction.id: one async for one in journal.saved_transactions()}
    assert found.keys() == expected.keys()
    for id, one in found.items():
        wanted = expected[id]
        assert (one.resumable, one.damage, one.operation_count) == (False, "", 0)
        assert one.transaction.begin_version == 2, wanted["beginning_root_before_saving"]
        assert one.transaction.serializable == (wanted["isolation_level"] == "SERIALIZABLE")
        assert (one.began_at_millis, one.expire_at_millis) == (
            wanted["began_at_millis"],
            wanted["expire_at_millis"],
        )


async def test_they_cannot_be_gone_on_with(
    goldens: Any, in_memory: Any, expected: dict[str, dict[str, Any]]
) -> None:
    storage = await in_memory(goldens["g5-dtxn"])
    for id, one in expected.items():
        journal = await opened(storage, one["expire_at_millis"] - 1)
        error = await raises(InvalidInput, journal.load_transaction(id), kind="not_supported")
        assert "another writer" in str(error)
        assert one["def_path"] == error.path
        late = await opened(storage, one["expire_at_millis"])
        await raises(Expired, late.load_transaction(id), kind="transaction_expired")


async def test_one_whose_running_root_is_gone_is_still_listed_and_removed(
    goldens: Any, in_memory: Any, expected: dict[str, dict[str, Any]]
) -> None:
    storage = await in_memory(goldens["g5-dtxn"])
    id, other = sorted(expected)
    stored = decode_stored(
        await storage.read(expected[id]["def_path"], size_max=1 << 20), expected[id]["def_path"]
    )
    await storage.delete(stored.running_root)
    journal = await Journal.open(storage)
    found = {one.transaction.id: one async for one in journal.saved_transactions()}
    assert stored.running_root in found[id].damage
    assert found[other].damage == ""
    assert (await journal.discard_transaction(id)).state == "unknown"
    assert [one.transaction.id async for one in journal.saved_transactions()] == [other]


def test_as_a_client_meets_them(
    goldens: Any, on_disk: Callable[[Any], Path], expected: dict[str, dict[str, Any]]
) -> None:
    folder = on_disk(goldens["g5-dtxn"])
    with alpheus.connect(f"file://{folder}") as catalog:
        head = catalog.version()
        assert [(one.id, one.begin_version, one.resumable) for one in catalog.list_saved()] == [
            (id, 2, False) for id in expected
        ]
        for id, one in expected.items():
            with pytest.raises((InvalidInput, Expired), match=id):  # which error depends on today's date
                catalog.resume(id).__enter__()
            assert catalog.discard(id).state == "unknown", "its writer's versions name no transactions"
            assert not (folder / one["def_path"]).exists()
            with pytest.raises(NotFound, match="no transaction"):
                catalog.discard(id)
        assert catalog.list_saved() == []
        assert catalog.version() == head, "nobody is told of what nobody here could commit"


async def test_the_past_of_a_catalog_without_actions(goldens: Any, in_memory: Any) -> None:
    golden = goldens["g1-small"]
    journal = await Journal.open(await in_memory(golden))
    first, last = golden.objects(0), golden.objects(golden.head)
    found = {change.name: change async for change in journal.diff(0, None, details=True)}
    assert found.pop(fmt.CATALOG, None) is None
    wanted = {name for name in first.keys() | last.keys() if first.get(name) != last.get(name)}
    assert found.keys() == wanted
    assert all(change.definition_after for change in found.values())
    [gone] = [one async for one in journal.dropped()]
    assert (gone.name, gone.version, gone.transaction_id) == (fmt.namespace_name("tmp"), 14, "")
    assert gone.name in golden.objects(14)
    assert gone.name not in golden.objects(15)


async def test_ours_is_saved_beside_theirs(
    goldens: Any, in_memory: Any, expected: dict[str, dict[str, Any]]
) -> None:
    """A transaction is saved on top of another writer's version, in its dialect."""
    lake = Lake(await in_memory(goldens["g5-dtxn"]))
    lake.clock.millis = max(one["began_at_millis"] for one in expected.values()) + 1000
    journal = await lake.open()
    transaction = Transaction(
        id=lake.identities.uuid7(), begin_version=2, operations=(lake.table("a", "ours"),)
    )
    await journal.save_transaction(transaction)
    found = {one.transaction.id: one.resumable async for one in journal.saved_transactions()}
    assert found == {transaction.id: True} | dict.fromkeys(expected, False)
    loaded = (await journal.load_transaction(transaction.id)).transaction
    assert (await journal.commit(loaded)).version == 3
    assert (await journal.discard_transaction(transaction.id)).state == "committed"
