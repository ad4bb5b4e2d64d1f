"""Distributed transactions and questions to the past, through the journal."""

from __future__ import annotations

import asyncio

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.access import Change, Dropped, SavedTransaction
from alpheus_journal.actions import (
    CreateTable,
    DropNamespace,
    DropTable,
    RenameObject,
    Transaction,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.distributed import SAVED_SIZE_BYTES_MAX, decode_stored
from alpheus_journal.errors import Conflict, Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.node import decode_node
from alpheus_journal.testing import Lake, raises


@pytest.fixture
async def lake() -> Lake:
    return Lake()


async def start(lake: Lake) -> Journal:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"), lake.table("a", "x"))
    return journal


def table(lake: Lake, name: str) -> CreateTable:
    return lake.table("a", name)


async def dropped(journal: Journal, **only: object) -> list[tuple[str, int, int]]:
    return [
        (str(one.name), one.version, one.dropped_version)
        async for one in journal.dropped(**only)  # type: ignore[arg-type]
    ]


# --- distributed transactions ----------------------------------------------------------------------


async def test_saved_then_loaded_and_committed_elsewhere(lake: Lake) -> None:
    journal = await start(lake)
    transaction = Transaction(
        id=lake.identities.uuid7(),
        begin_version=1,
        operations=(table(lake, "y"),),
        message="two hands",
        properties={"team": "blue"},
    )
    saved = await journal.save_transaction(transaction)
    assert saved.expire_at_millis - saved.began_at_millis == fmt.TXN_TTL_MILLIS_DEFAULT

    other = await lake.open()
    await lake.commit(other, UpdateNamespace(name="a", set={"p": "1"}))  # it need not be the newest version
    loaded = await other.load_transaction(transaction.id)
    assert loaded == saved
    committed = await other.commit(loaded.transaction)
    assert (committed.version, committed.duplicate) == (3, False)
    again = await journal.commit(transaction)
    assert (again.version, again.duplicate) == (3, True), "the other process is told"
    assert (await journal.outcome(transaction.id)).state == "committed"
    assert (await other.discard_transaction(transaction.id)).state == "committed"
    await raises(NotFound, other.load_transaction(transaction.id), kind="no_transaction")


async def test_the_second_of_two_that_go_different_ways_is_told(lake: Lake) -> None:
    journal = await start(lake)
    first = Transaction(id=lake.identities.uuid7(), begin_version=1, operations=(table(lake, "y"),))
    await journal.save_transaction(first)
    other = await lake.open()
    second = (await other.load_transaction(first.id)).transaction
    second = Transaction(id=second.id, begin_version=1, operations=(*second.operations, table(lake, "z")))
    results = await asyncio.gather(journal.commit(first), other.commit(second), return_exceptions=True)
    refused = [result for result in results if isinstance(result, BaseException)]
    assert [error.kind for error in refused if isinstance(error, InvalidInput)] == ["id_reused"], results
    head = await journal.refresh()
    assert head.version == 2


async def test_the_last_save_wins(lake: Lake) -> None:
    journal = await start(lake)
    empty = Transaction(id=lake.identities.uuid7(), begin_version=1, operations=())
    await journal.save_transaction(empty)
    assert (await journal.load_transaction(empty.id)).operation_count == 0
    fuller = Transaction(id=empty.id, begin_version=1, operations=(table(lake, "y"),))
    await journal.save_transaction(fuller)
    assert (await journal.load_transaction(empty.id)).transaction == fuller
    assert [saved.operation_count async for saved in journal.saved_transactions()] == [1]


async def test_what_cannot_be_done_is_not_saved(lake: Lake) -> None:
    journal = await start(lake)
    wrong = Transaction(id=lake.identities.uuid7(), begin_version=1, operations=(table(lake, "x"),))
    with pytest.raises(Exception, match="there is a table"):
        await journal.save_transaction(wrong)
    future = Transaction(id=lake.identities.uuid7(), begin_version=7, operations=())
    await raises(NotFound, journal.save_transaction(future), kind="no_version")
    assert [saved async for saved in journal.saved_transactions()] == []


async def test_discarding_is_final(lake: Lake) -> None:
    journal = await start(lake)
    transaction = Transaction(id=lake.identities.uuid7(), begin_version=1, operations=(table(lake, "y"),))
    await journal.save_transaction(transaction)
    other = await lake.open()
    held = (await other.load_transaction(transaction.id)).transaction
    assert (await journal.discard_transaction(transaction.id)).state == "cancelled"
    await raises(InvalidInput, other.commit(held), kind="id_cancelled")
    assert not await lake.storage.exists(fmt.dtxn_path(transaction.id))


async def test_it_expires(lake: Lake) -> None:
    journal = await start(lake)
    transaction = Transaction(id=lake.identities.uuid7(), begin_version=1, operations=(table(lake, "y"),))
    saved = await journal.save_transaction(transaction)
    lake.clock.millis = saved.expire_at_millis - 1
    assert (await journal.load_transaction(transaction.id)) == saved
    lake.clock.millis += 1
    for call in (journal.load_transaction(transaction.id), journal.save_transaction(transaction)):
        error = await raises(Expired, call, kind="transaction_expired")
        assert transaction.id in str(error)
    assert [one.expire_at_millis async for one in journal.saved_transactions()] == [saved.expire_at_millis]
    assert (await journal.discard_transaction(transaction.id)).state == "cancelled"


async def test_the_running_root_is_what_would_be_committed(lake: Lake) -> None:
    journal = await start(lake)
    transaction = Transaction(id=lake.identities.uuid7(), begin_version=1, operations=(table(lake, "y"),))
    await journal.save_transaction(transaction)
    path = fmt.dtxn_path(transaction.id)
    stored = decode_stored(await lake.storage.read(path, size_max=SAVED_SIZE_BYTES_MAX), path)
    assert stored.beginning_root == journal._follower.log.path(1)
    data = await lake.storage.read(stored.running_root, size_max=1 << 20)
    root = decode_node(data, stored.running_root, root=True, size_max=1 << 20)
    names = [journal.keys.parse(key) for key in root.node.keys]
    assert [str(name) for name in names] == ["namespace a", "table a.x", "table a.y"]
    assert (await journal.refresh()).version == 1, "saving publishes nothing"


async def test_damaged_files_are_refused(lake: Lake) -> None:
    journal = await start(lake)
    transaction = Transaction(id=lake.identities.uuid7(), begin_version=1, operations=(table(lake, "y"),))
    await journal.save_transaction(transaction)
    path = fmt.dtxn_path(transaction.id)
    data = await lake.storage.read(path, size_max=SAVED_SIZE_BYTES_MAX)
    other_id = lake.identities.uuid7()
    await lake.storage.put(fmt.dtxn_path(other_id), data)
    error = await raises(Corrupt, journal.load_transaction(other_id), kind="corrupt_definition")
    assert fmt.dtxn_path(other_id) in str(error)
    for damaged in (b"", data[:-1], b"\xff" + data, data.replace(b"vn/", b"vm/")):
        await lake.storage.put(path, damaged)
        await raises(Corrupt, journal.load_transaction(transaction.id), kind="corrupt_definition")
    await raises(InvalidInput, journal.load_transaction("../x"))


async def test_a_conflict_is_found_when_it_commits(lake: Lake) -> None:
    journal = await start(lake)
    operation = UpdateTable(namespace="a", name="x", set={"p": "mine"})
    transaction = Transaction(id=lake.identities.uuid7(), begin_version=1, operations=(operation,))
    await journal.save_transaction(transaction)
    await lake.commit(journal, UpdateTable(namespace="a", name="x", set={"p": "theirs"}))
    loaded: SavedTransaction = await journal.load_transaction(transaction.id)
    await raises(Conflict, journal.commit(loaded.transaction))


# --- the past --------------------------------------------------------------------------------------


async def test_diff_of_two_versions_both_ways(lake: Lake) -> None:
    journal = await start(lake)
    await lake.commit(journal, UpdateNamespace(name="a", set={"p": "1"}))
    await lake.commit(journal, table(lake, "y"), DropTable(namespace="a", name="x"))
    forth = [change async for change in journal.diff(1, None, details=True)]
    assert [(change.type, str(change.name)) for change in forth] == [
        ("updated", "namespace a"),
        ("dropped", "table a.x"),
        ("created", "table a.y"),
    ]
    assert all((change.definition_before is None) == (change.type == "created") for change in forth)
    back = [change async for change in journal.diff(None, 1, details=True)]
    opposite = {"created": "dropped", "dropped": "created", "updated": "updated"}
    assert back == [
        Change(
            name=change.name,
            type=opposite[change.type],  # type: ignore[arg-type]
            path_before=change.path_after,
            path_after=change.path_before,
            definition_before=change.definition_after,
            definition_after=change.definition_before,
        )
        for change in forth
    ]
    assert [change async for change in journal.diff(2, 2)] == []
    with pytest.raises(NotFound, match="no version 9"):
        _ = [change async for change in journal.diff(1, 9)]


async def test_dropped_objects_are_listed_newest_first(lake: Lake) -> None:
    journal = await start(lake)
    await lake.commit(journal, table(lake, "y"), lake.namespace("b"))
    await lake.commit(journal, DropTable(namespace="a", name="x"))
    await lake.commit(journal, DropNamespace(name="b"))
    await lake.commit(journal, DropTable(namespace="a", name="y"), table(lake, "x"))
    assert await dropped(journal) == [("table a.y", 4, 5), ("namespace b", 3, 4)], "a.x is there again"
    assert await dropped(journal, namespace="a") == [("table a.y", 4, 5)]
    assert await dropped(journal, name=fmt.namespace_name("b")) == [("namespace b", 3, 4)]
    found: list[Dropped] = [one async for one in journal.dropped(namespace="b")]
    assert [one.name.kind for one in found] == [Kind.NAMESPACE]
    await lake.commit(journal, DropTable(namespace="a", name="x"))
    assert await dropped(journal, namespace="a") == [("table a.x", 5, 6), ("table a.y", 4, 5)]


async def test_what_lived_in_no_version_was_not_dropped(lake: Lake) -> None:
    journal = await start(lake)
    await lake.commit(journal, table(lake, "y"), DropTable(namespace="a", name="y"))
    assert await dropped(journal) == []
    await lake.expire(below=2)
    assert await dropped(await lake.open()) == []


async def test_a_rename_drops_nothing(lake: Lake) -> None:
    journal = await start(lake)
    rename = RenameObject(kind=Kind.TABLE, namespace="a", name="x", new_namespace="a", new_name="z")
    await lake.commit(journal, rename)
    assert await dropped(journal) == []
