"""Distributed transactions, and questions about the past, through the journal."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.commit.executor import OPERATIONS_AT_ONCE_MAX
from alpheus_journal.commit.saved_transactions import SAVED_SIZE_BYTES_MAX, decode_stored
from alpheus_journal.errors import Conflict, Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.execute.execute import OPERATIONS_MAX, execute_async
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Change, Committed, Dropped, SavedTransaction, Timestamp
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.operations import (
    AddColumn,
    CreateTable,
    CreateView,
    DropNamespace,
    DropTable,
    DropView,
    Operation,
    OverwriteFiles,
    Read,
    RenameObject,
    Transaction,
    Undrop,
    UpdateNamespace,
    UpdateTable,
    Writer,
)
from alpheus_journal.testing import Lake, raises
from alpheus_journal.tree.node import decode_node
from alpheus_journal.workspace.context import Context, Executed
from alpheus_journal.workspace.workspace import Workspace
from alpheus_pb.v1 import objects_pb2


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
    await lake.commit(other, UpdateNamespace(name="a", set={"p": "1"}))  # begin is not the newest version
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
    assert stored.beginning_root == journal.follower.log.path(1)
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


async def test_one_damaged_file_hides_no_other(lake: Lake) -> None:
    journal = await start(lake)
    sound, torn = (
        Transaction(id=lake.identities.uuid7(), begin_version=1, operations=(table(lake, name),))
        for name in "yz"
    )
    for transaction in (sound, torn):
        await journal.save_transaction(transaction)
    path = fmt.dtxn_path(torn.id)
    data = await lake.storage.read(path, size_max=SAVED_SIZE_BYTES_MAX)
    await lake.storage.put(path, data[:-1])
    await lake.storage.put("def/dtxn/notes.txt", b"not ours")
    huge = fmt.dtxn_path(lake.identities.uuid7())
    await lake.storage.put(huge, bytes(SAVED_SIZE_BYTES_MAX + 1))
    found = {one.transaction.id: one async for one in journal.saved_transactions()}
    assert (found.pop(sound.id).damage, len(found)) == ("", 3)
    assert all(one.damage and not one.resumable for one in found.values())
    assert path in found[torn.id].damage
    assert "notes.txt" in found["notes.txt"].damage
    assert (await journal.discard_transaction(torn.id)).state == "cancelled"
    await raises(InvalidInput, journal.commit(torn), kind="id_cancelled")
    assert not await lake.storage.exists(path)


async def test_where_it_began_is_gone(lake: Lake) -> None:
    """A transaction whose begin version has expired can be removed, and never commits."""
    journal = await start(lake)
    transaction = Transaction(id=lake.identities.uuid7(), begin_version=1, operations=(table(lake, "y"),))
    await journal.save_transaction(transaction)
    for number in range(3):
        await lake.commit(journal, UpdateNamespace(name="a", set={"n": str(number)}))
    await lake.expire(below=4)
    journal = await lake.open()
    loaded = await journal.load_transaction(transaction.id)
    for call in (journal.commit(loaded.transaction), journal.save_transaction(loaded.transaction)):
        error = await raises(Expired, call)
        assert error.oldest == 4  # type: ignore[attr-defined]
    assert [one.transaction.id async for one in journal.saved_transactions()] == [transaction.id]
    await raises(Expired, journal.discard_transaction(transaction.id))
    assert not await lake.storage.exists(fmt.dtxn_path(transaction.id))
    assert [event.transactions[0].cancels async for event in journal.events(after=4)] == [transaction.id]  # type: ignore[union-attr]
    await raises(NotFound, journal.discard_transaction(transaction.id), kind="no_transaction")


async def test_everything_that_it_says_of_itself_is_kept(lake: Lake) -> None:
    journal = await start(lake)
    create = table(lake, "y")
    transaction = Transaction(
        id=lake.identities.uuid7(),
        begin_version=1,
        operations=(
            create,
            OverwriteFiles(namespace="a", name="y", table_id=create.table_id, segments=()),
            UpdateTable(
                namespace="a",
                name="x",
                add_columns=(AddColumn(parent="", column=Column(id=2, name="d", type="INT8")),),
            ),
        ),
        principal="ann",
        message="all",
        properties={"team": "blue"},
        serializable=True,
        reads=(
            Read(type="TABLE_SELECT", name=fmt.table_name("a", "x"), columns=("c",)),
            Read(type="NAMESPACE_SHOW_TABLES", name=fmt.namespace_name("a"), prefix="y"),
        ),
        key="nightly/1",
        writer=Writer(name="loader", sequence=7),
    )
    await journal.save_transaction(transaction)
    assert (await journal.load_transaction(transaction.id)).transaction == transaction
    [listed] = [one.transaction async for one in journal.saved_transactions()]
    assert listed == msgspec.structs.replace(transaction, operations=(), reads=())
    await lake.commit(journal, table(lake, "y2"))  # a phantom in the transaction's listing
    loaded = (await journal.load_transaction(transaction.id)).transaction
    await raises(Conflict, journal.commit(loaded), kind="read_changed")


async def test_a_file_cannot_vouch_for_who_wrote_it(lake: Lake) -> None:
    journal = await start(lake)
    forged = Transaction(
        id=lake.identities.uuid7(),
        begin_version=1,
        operations=(table(lake, "y"),),
        principal="root",
        principal_authenticated=True,
    )
    await journal.save_transaction(forged)
    loaded = (await journal.load_transaction(forged.id)).transaction
    assert (loaded.principal, loaded.principal_authenticated) == ("root", False)
    [listed] = [one async for one in journal.saved_transactions()]
    assert not listed.transaction.principal_authenticated


async def test_what_no_commit_would_take_is_not_saved_either(lake: Lake) -> None:
    journal = await start(lake)

    def of(*operations: Operation, **more: Any) -> Transaction:
        return Transaction(id=lake.identities.uuid7(), begin_version=1, operations=operations, **more)

    many = [UpdateNamespace(name="a", set={"n": str(number)}) for number in range(OPERATIONS_MAX + 1)]
    await raises(InvalidInput, journal.save_transaction(of(*many)), kind="too_large")
    long = [UpdateNamespace(name="a", set={"k": str(n) + "x" * 60_000}) for n in range(80)]
    error = await raises(InvalidInput, journal.save_transaction(of(*long)), kind="too_large")
    assert str(SAVED_SIZE_BYTES_MAX) in str(error)
    await raises(InvalidInput, journal.save_transaction(of(many[0], key="k" * 2000)), kind="too_large")
    unmarked = of(many[0], writer=Writer(name="loader", sequence=1))
    await raises(InvalidInput, journal.save_transaction(unmarked))
    assert [saved async for saved in journal.saved_transactions()] == []


async def test_saving_many_at_once_leaves_others_their_turns(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of operations executed in one turn of the event loop is bounded, however many transactions are
    saved."""
    journal = await start(lake)
    turn = 0
    executed: Counter[int] = Counter()

    async def executing(workspace: Workspace, operation: Operation, context: Context) -> Executed:
        executed[turn] += 1
        return await execute_async(workspace, operation, context)

    monkeypatch.setattr("alpheus_journal.commit.executor.execute_async", executing)
    made = [
        [UpdateNamespace(name="a", set={"n": f"{number} {one}"}) for number in range(200)] for one in range(8)
    ]
    saving = asyncio.gather(
        *[
            journal.save_transaction(
                Transaction(id=lake.identities.uuid7(), begin_version=1, operations=tuple(one))
            )
            for one in made
        ]
    )
    while not saving.done():
        turn += 1
        await asyncio.sleep(0)
    await saving
    assert executed.total() == 8 * 200
    assert max(executed.values()) <= OPERATIONS_AT_ONCE_MAX


async def test_times_outside_all_years_are_refused(lake: Lake) -> None:
    journal = await start(lake)
    id = lake.identities.uuid7()
    root = fmt.node_path(lake.identities.uuid4())
    for times in ({"expire_at_millis": 1 << 62}, {"began_at_millis": 1 << 63}):
        message = objects_pb2.DistributedTransactionDef(
            id=id, beginning_root_node_file_path=root, running_root_node_file_path=root, **times
        )
        await lake.storage.put(fmt.dtxn_path(id), message.SerializeToString())
        await raises(Corrupt, journal.load_transaction(id), kind="corrupt_definition")


async def test_one_of_many_that_go_on_with_it_wins(lake: Lake) -> None:
    journal = await start(lake)
    first = Transaction(id=lake.identities.uuid7(), begin_version=1, operations=(table(lake, "y"),))
    await journal.save_transaction(first)
    journals = [await lake.open() for _ in range(4)]
    loaded = [(await one.load_transaction(first.id)).transaction for one in journals]
    wanted = [
        msgspec.structs.replace(one, operations=(*one.operations, table(lake, f"of_{number}")))
        for number, one in enumerate(loaded)
    ]
    results = await asyncio.gather(
        *(one.commit(transaction) for one, transaction in zip(journals, wanted, strict=True)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, Committed) for result in results) == 1, results
    assert [error.kind for error in results if isinstance(error, InvalidInput)] == ["id_reused"] * 3
    assert (await journal.refresh()).version == 2


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


async def test_what_was_renamed_and_dropped_at_once_is_told_by_its_old_name(lake: Lake) -> None:
    journal = await start(lake)
    rename = RenameObject(kind=Kind.TABLE, namespace="a", name="x", new_namespace="a", new_name="z")
    await lake.commit(journal, rename, DropTable(namespace="a", name="z"))
    assert await dropped(journal) == [("table a.x", 1, 2)]
    undrop = Undrop(kind=Kind.TABLE, namespace="a", name="x", version=1, new_namespace="a", new_name="x")
    await lake.commit(journal, undrop)
    assert await dropped(journal) == []
    cascade = DropNamespace(name="a", cascade=True)
    await lake.commit(journal, rename, table(lake, "x"), cascade)
    assert await dropped(journal) == [("namespace a", 3, 4), ("table a.x", 3, 4)], (
        "the new x lived in no version"
    )


async def test_an_object_that_came_and_went_more_than_once(lake: Lake) -> None:
    journal = await start(lake)
    drop = DropTable(namespace="a", name="x")
    await lake.commit(journal, drop, table(lake, "x"), drop)
    assert await dropped(journal) == [("table a.x", 1, 2)]
    await lake.commit(
        journal,
        CreateView(namespace="a", name="x", view_id=lake.identities.uuid4(), sql="SELECT 1", dialect="spark"),
    )
    await lake.commit(journal, DropView(namespace="a", name="x"))
    assert await dropped(journal) == [("view a.x", 3, 4), ("table a.x", 1, 2)], "a name is of a kind"
    assert await dropped(journal, name=fmt.table_name("a", "x")) == [("table a.x", 1, 2)]


async def test_diff_by_time_and_left_early(lake: Lake) -> None:
    journal = await start(lake)
    before = Timestamp(lake.clock.millis)
    lake.clock.millis += 1000
    await lake.commit(journal, table(lake, "y"), table(lake, "z"))
    assert len([change async for change in journal.diff(before, Timestamp(lake.clock.millis))]) == 2
    stream = journal.diff(before, None)
    assert (await anext(stream)).name == fmt.table_name("a", "y")
    await stream.aclose()  # type: ignore[attr-defined]
    with pytest.raises(NotFound, match="no version is as old"):
        _ = [change async for change in journal.diff(Timestamp(0), None)]
    await lake.expire(below=2)
    with pytest.raises(Expired):
        _ = [change async for change in (await lake.open()).diff(1, None)]
