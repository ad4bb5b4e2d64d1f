"""Group commit without faults: members that depend on each other, ids, cancellations, and members that do not fit."""

from __future__ import annotations

import asyncio
import hashlib
from bisect import bisect_left
from collections.abc import Callable

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.commit.committer import Answer
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Expired,
    InvalidInput,
    NotEmpty,
    NotFound,
)
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Committed, StoredObject
from alpheus_journal.model.definition_messages import encode_definition
from alpheus_journal.model.definitions import Column, Definition, NamespaceDef
from alpheus_journal.model.operations import (
    AddColumn,
    AppendFiles,
    CancelTransaction,
    CreateNamespace,
    CreateTable,
    DropNamespace,
    DropTable,
    Operation,
    OverwriteFiles,
    Read,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import (
    FakeClock,
    InterleavedStorage,
    Lake,
    SeededIdentities,
    listed,
    model_of,
    put_rows,
    raises,
)
from alpheus_journal.testing.latency import LatencyStorage
from alpheus_journal.tree.node import decode_node
from alpheus_journal.workspace.workspace import (
    RECENT_DEFINITION_SIZE_BYTES_MAX,
    Workspace,
    recent_definitions,
)


@pytest.fixture
def lake() -> Lake:
    return Lake()


async def sound(lake: Lake) -> None:
    found = [item async for item in (await lake.open()).check()]
    assert isinstance(found[0], CheckSummary), found


def told(answers: list[Answer]) -> list[object]:
    """Return for each answer its version, the kind of its error, or None."""
    return [
        a.version if isinstance(a, Committed) else a.kind if isinstance(a, AlpheusError) else None
        for a in answers
    ]


async def test_a_failing_member_fails_alone(lake: Lake) -> None:
    journal = await lake.create()
    group = [
        lake.transaction(journal, operation)
        for operation in (
            lake.namespace("a"),
            DropNamespace(name="none"),
            lake.namespace("b d"),
            lake.table("nowhere", "t"),
            lake.namespace("c"),
        )
    ]
    assert told(await journal.commit_group(group)) == [1, "no_namespace", "bad_name", "no_namespace", 1]
    entries = [entry async for entry in journal.log(after=0)]
    assert [entry.transaction.id for entry in reversed(entries)] == [group[0].id, group[4].id]
    await sound(lake)


async def test_an_empty_group_and_one_that_fails_whole_write_nothing(lake: Lake) -> None:
    journal = await lake.create()
    before = await listed(lake.storage, "")
    assert await journal.commit_group([]) == []
    assert told(await journal.commit_group([lake.transaction(journal, DropNamespace(name="x"))])) == [
        "no_namespace"
    ]
    assert await listed(lake.storage, "") == before


async def test_a_refusal_that_rests_on_unpublished_members_waits(lake: Lake) -> None:
    journal = await lake.create()
    first, second = (lake.transaction(journal, lake.namespace("a")) for _ in range(2))
    third = lake.transaction(journal, lake.table("a", "t"))
    # The second would succeed if the first were lost. The third needs the first, and commits with it.
    assert told(await journal.commit_group([first, second, third])) == [1, None, 1]
    assert told(await journal.commit_group([second])) == ["already_exists_now"]
    # The same namespace exists durably now, so the refusal is durable immediately.
    late = lake.transaction(journal, lake.namespace("a"))
    assert told(await journal.commit_group([late, lake.transaction(journal, lake.namespace("b"))])) == [
        "namespace_exists", 2,
    ]  # fmt: skip
    await sound(lake)


async def test_members_that_touch_one_object(lake: Lake) -> None:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    group = [
        lake.transaction(journal, UpdateNamespace(name="a", set={"k": str(number)})) for number in range(3)
    ]
    assert told(await journal.commit_group(group)) == [2, None, None]
    answers = await journal.commit_group(group[1:])
    assert told(answers) == ["object_changed"] * 2
    for answer in answers:
        assert isinstance(answer, Conflict)
        assert answer.retryable
        assert (answer.transaction_id, answer.version) == (group[0].id, 2)
    await sound(lake)


async def test_a_namespace_dropped_beside_creations_in_it(lake: Lake) -> None:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    drop = lake.transaction(journal, DropNamespace(name="a"))
    create = lake.transaction(journal, lake.table("a", "t"))
    assert told(await journal.commit_group([create, drop])) == [2, None]
    assert told(await journal.commit_group([drop])) == ["namespace_changed"]
    await raises(NotEmpty, lake.commit(journal, DropNamespace(name="a")))
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    drop = lake.transaction(journal, DropNamespace(name="a"))
    create = lake.transaction(journal, lake.table("a", "t"))
    assert told(await journal.commit_group([drop, create])) == [4, None]
    (answer,) = await journal.commit_group([create])
    assert isinstance(answer, Conflict)
    assert (answer.kind, answer.retryable) == ("namespace_changed", False)
    await sound(lake)


async def test_members_that_empty_a_namespace_together_leave_nobody_behind(lake: Lake) -> None:
    """The drops of earlier members must not hide children that no member drops."""
    for left in (0, 1):
        lake = Lake()
        journal = await lake.create()
        names = [f"t{number:04}" for number in range(1300)]
        await lake.commit(journal, lake.namespace("a"), *(lake.table("a", name) for name in names))
        gone = names if not left else names[:-1]
        group = [
            lake.transaction(journal, *(DropTable(namespace="a", name=name) for name in some))
            for some in (gone[:700], gone[700:])
        ]
        group.append(lake.transaction(journal, DropNamespace(name="a")))
        answers = told(await journal.commit_group(group))
        assert answers == [2, 2, "namespace_not_empty" if left else None] or answers == [2, 2, 2]
        assert (answers[2] == 2) == (not left)
        await sound(lake)


async def test_one_id_twice_in_a_group(lake: Lake) -> None:
    journal = await lake.create()
    transaction = lake.transaction(journal, lake.namespace("a"))
    assert told(await journal.commit_group([transaction, transaction])) == [1, None]
    (answer,) = await journal.commit_group([transaction])
    assert isinstance(answer, Committed)
    assert (answer.version, answer.duplicate) == (1, True)


async def test_one_id_twice_in_a_group_that_would_not_conflict_with_itself(lake: Lake) -> None:
    """A repeated id or key in one group waits, and the first transaction answers it."""
    journal = await lake.create()
    once = lake.transaction(journal, UpdateCatalog(set={"p": "1"}))
    keyed = [
        msgspec.structs.replace(lake.transaction(journal, UpdateCatalog(set={"q": "1"})), key="k")
        for _ in range(2)
    ]
    other = lake.transaction(journal, UpdateCatalog(set={"r": "1"}))
    answers = await journal.commit_group([once, keyed[0], once, keyed[1], other])
    assert told(answers) == [1, 1, None, None, 1]
    again = await journal.commit_group([once, keyed[1]])
    assert told(again) == [1, 1]
    assert [answer.duplicate for answer in again if isinstance(answer, Committed)] == [True, True]
    assert [answer.transaction_id for answer in again if isinstance(answer, Committed)] == [
        once.id,
        keyed[0].id,
    ]
    (event,) = [await journal.event(version) for version in range(1, journal.head.version + 1)]
    assert [recorded.id for recorded in event.transactions] == [once.id, keyed[0].id, other.id]
    await sound(lake)


async def test_a_recorded_time_is_between_those_of_its_version_and_the_one_before(lake: Lake) -> None:
    """This holds whatever the writer's clock shows."""
    journal = await lake.create()
    for number, moved in enumerate((0, 3_600_000, -50_000, 1000, -1, 0)):
        before = journal.head
        lake.clock.millis += moved
        now = lake.clock.millis
        committed = await journal.commit(lake.transaction(journal, lake.namespace(f"n{number}")))
        event = await journal.event(committed.version)
        (recorded,) = event.transactions
        assert before.created_at_millis <= recorded.committed_at_millis <= event.created_at_millis
        assert recorded.committed_at_millis >= now
        assert event.created_at_millis == committed.created_at_millis
    await sound(lake)


async def test_an_id_used_again(lake: Lake) -> None:
    journal = await lake.create()
    transaction = lake.transaction(journal, lake.namespace("a"))
    first = await journal.commit(transaction)
    for other in (
        Transaction(id=transaction.id, begin_version=0, operations=(lake.namespace("b"),)),
        Transaction(
            id=transaction.id, begin_version=0, operations=(*transaction.operations, lake.namespace("b"))
        ),
        Transaction(
            id=transaction.id,
            begin_version=0,
            operations=transaction.operations,
            principal="eve",
            principal_authenticated=True,
        ),
        Transaction(id=transaction.id, begin_version=0, operations=transaction.operations, key="k"),
        Transaction(id=transaction.id, begin_version=0, operations=transaction.operations, serializable=True),
    ):
        error = await raises(InvalidInput, journal.commit(other), kind="id_reused")
        assert transaction.id in str(error)
    claimed = Transaction(
        id=transaction.id, begin_version=0, operations=transaction.operations, principal="another host"
    )
    for same in (transaction, claimed):
        again = await (await lake.open()).commit(same)
        assert again.duplicate
        assert (again.version, again.token, again.created_at_millis) == (
            first.version, first.token, first.created_at_millis,
        )  # fmt: skip
    assert journal.head.version == 1


async def test_a_begin_version_above_the_head(lake: Lake) -> None:
    journal, other = await lake.create(), await lake.open()
    transaction = lake.transaction(journal, lake.namespace("a"), begin=1)
    assert told(await journal.commit_group([transaction])) == ["future_version"]
    await lake.commit(other, lake.namespace("b"))
    assert told(await journal.commit_group([transaction])) == [2]
    await raises(InvalidInput, journal.commit(lake.transaction(journal, lake.namespace("c"), begin=-1)))


async def test_malformed_transactions(lake: Lake) -> None:
    journal = await lake.create()
    operation = lake.namespace("a")
    read = Read(type="CATALOG_DESCRIBE", name=fmt.CATALOG)
    good = lake.identities.uuid7()
    for transaction in (
        Transaction(id="x", begin_version=0, operations=(operation,)),
        Transaction(id=lake.identities.uuid4(), begin_version=0, operations=(operation,)),
        Transaction(id=good.upper(), begin_version=0, operations=(operation,)),
        Transaction(id=good, begin_version=0, operations=()),
        Transaction(id=good, begin_version=0, operations=(operation,) * 10_001),
        Transaction(id=good, begin_version=0, operations=(operation,), reads=(read,)),
        Transaction(id=good, begin_version=0, operations=(), reads=(read,), serializable=True),
        Transaction(id=good, begin_version=0, operations=(operation,), message="m" * 70_000),
        Transaction(id=good, begin_version=0, operations=(operation,), principal="\ud800"),
        Transaction(id=good, begin_version=0, operations=(operation,), properties={"": "x"}),
        Transaction(id=good, begin_version=0, operations=(operation,), properties={"k": "\udfff"}),
    ):
        await raises(InvalidInput, journal.commit(transaction))
    assert (await lake.open()).head.version == 0


# --- cancelling ------------------------------------------------------------------------------------


async def test_cancelled_ids(lake: Lake) -> None:
    journal = await lake.create()
    transaction = lake.transaction(journal, lake.namespace("a"))
    assert (await journal.outcome(transaction.id)).state == "unknown"
    assert (await journal.outcome(transaction.id, settle=True)).state == "cancelled"
    for reader in (journal, await lake.open()):
        assert (await reader.outcome(transaction.id)).state == "cancelled"
        assert (await reader.outcome(transaction.id, settle=True)).state == "cancelled"
        error = await raises(InvalidInput, reader.commit(transaction), kind="id_cancelled")
        assert error.version == 1
    assert journal.head.version == 1
    committed = await lake.commit(journal, lake.namespace("a"))
    found = await journal.outcome(committed.transaction_id, settle=True)
    assert found.state == "committed"
    assert found.commit is not None
    assert found.commit.version == 2
    assert (await journal.outcome(committed.transaction_id, since=2)).state == "unknown"
    for bad in ("x", "", lake.identities.uuid7().upper()):
        await raises(InvalidInput, journal.outcome(bad))
    await raises(InvalidInput, journal.outcome(committed.transaction_id, since=-1))
    await sound(lake)


async def test_a_transaction_and_its_cancellation_in_one_group(lake: Lake) -> None:
    for order in (1, -1):
        lake = Lake()
        journal = await lake.create()
        transaction = lake.transaction(journal, lake.namespace("a"))
        cancel = lake.transaction(journal, CancelTransaction(transaction_id=transaction.id))
        group = [transaction, cancel][::order]
        assert told(await journal.commit_group(group)) == [1, None]
        (answer,) = await journal.commit_group(group[1:])
        if order == 1:
            assert isinstance(answer, Conflict)
            assert not answer.retryable
        else:
            assert isinstance(answer, InvalidInput)
            assert answer.kind == "id_cancelled"


async def test_settling_races_with_the_commit(lane_count: Callable[[int, int], int]) -> None:
    states = set()
    for seed in range(lane_count(25, 2000)):
        lake = Lake(seed=seed)
        await lake.create()
        writer = await lake.open(InterleavedStorage(lake.storage, seed))
        settler = await lake.open(InterleavedStorage(lake.storage, seed + 1))
        transaction = lake.transaction(writer, lake.namespace("a"))
        answer, *outcomes = await asyncio.gather(
            writer.commit(transaction),
            settler.outcome(transaction.id, since=0, settle=True),
            (await lake.open(InterleavedStorage(lake.storage, seed + 2))).outcome(
                transaction.id, settle=True
            ),
            return_exceptions=True,
        )
        state = "committed" if isinstance(answer, Committed) else "cancelled"
        states.add(state)
        assert isinstance(answer, Committed | InvalidInput), answer
        assert [getattr(outcome, "state", outcome) for outcome in outcomes] == [state] * 2
        assert ("namespace a" in await model_of(await lake.open())) == (state == "committed")
        await sound(lake)
    assert states == {"committed", "cancelled"}


async def test_settling_across_expired_versions_is_honest(lake: Lake) -> None:
    """The transaction may be in an expired version. It will not commit from now on, but no reader can say more."""
    journal = await lake.create()
    transaction = lake.transaction(journal, lake.namespace("a"))
    await journal.commit(transaction)
    await lake.commit(journal, lake.namespace("b"))
    await lake.expire(below=2)
    fresh = await lake.open()
    assert (await fresh.outcome(transaction.id)).state == "unknown"
    for settler in (fresh, await lake.open()):
        error = await raises(Expired, settler.outcome(transaction.id, since=0, settle=True))
        assert transaction.id in str(error)
        assert error.oldest == 2
    assert fresh.head.version == 3, "the cancellation was committed, once"
    assert (await fresh.outcome(transaction.id, since=2, settle=True)).state == "cancelled"
    # Cancelled from then on. Whether the transaction had committed before is unknown.
    assert (await fresh.outcome(transaction.id)).state == "unknown"


async def test_a_cancellation_that_came_too_late_hides_nothing(lake: Lake) -> None:
    """Any client may send a cancellation. The one of the two that comes first in the log holds."""
    journal = await lake.create()
    transaction = lake.transaction(journal, lake.namespace("a"))
    await journal.commit(transaction)
    await lake.commit(journal, CancelTransaction(transaction_id=transaction.id))
    for settle in (False, True):
        found = await (await lake.open()).outcome(transaction.id, settle=settle)
        assert found.state == "committed"
        assert found.commit is not None
        assert found.commit.version == 1
    assert journal.head.version == 2


async def test_the_oldest_kept_version_tells_its_outcome(lake: Lake) -> None:
    """A version names its own transactions; no version below it is needed."""
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    transaction = lake.transaction(journal, lake.namespace("b"))
    await journal.commit(transaction)
    await lake.expire(below=2)
    fresh = await lake.open()
    assert (await fresh.outcome(transaction.id)).state == "committed"
    assert (await fresh.commit(transaction)).duplicate
    unseen = await raises(
        Expired, fresh.commit(lake.transaction(fresh, lake.namespace("c"), begin=0)), kind="version_expired"
    )
    assert unseen.oldest == 2
    again = msgspec.structs.replace(transaction, begin_version=0)
    assert (await fresh.commit(again)).duplicate, "found in what is kept, though something below is gone"


# --- sizes -----------------------------------------------------------------------------------------


async def test_a_group_larger_than_a_root_is_split(lake: Lake) -> None:
    journal = await lake.create(order=16, node_file_size_max=32_768)
    waiting = [lake.transaction(journal, lake.namespace(f"n{number:03}")) for number in range(200)]
    versions = []
    while waiting:
        answers = await journal.commit_group(waiting)
        assert isinstance(answers[0], Committed), "the first always goes"
        versions.append(sum(isinstance(answer, Committed) for answer in answers))
        waiting = [t for t, answer in zip(waiting, answers, strict=True) if answer is None]
    assert sum(versions) == 200
    assert len(versions) > 1
    for info in [
        *(await listed(lake.storage, "vn/")).values(),
        *(await listed(lake.storage, "node/")).values(),
    ]:
        assert info.size <= 32_768
    assert len((await journal.list(None, Kind.NAMESPACE)).names) == 200
    await sound(lake)


async def test_a_transaction_that_never_fits(lake: Lake) -> None:
    journal = await lake.create(order=16, node_file_size_max=32_768)
    large = lake.transaction(journal, *(lake.namespace(f"n{number:03}") for number in range(300)))
    small = lake.transaction(journal, lake.namespace("small"))
    error = await raises(InvalidInput, journal.commit(large), kind="too_large")
    assert large.id in str(error)
    assert "split" in error.hint
    assert journal.head.version == 0
    answers = await journal.commit_group([small, large])
    assert told(answers) == [1, None]
    assert told(await journal.commit_group([large])) == ["too_large"]
    await sound(lake)


async def test_definitions_of_one_version_are_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fmt, "DEFINITIONS_SIZE_BYTES_MAX", 2_000)
    journal = await lake.create()
    over_and_over = [UpdateCatalog(set={"k": str(number)}) for number in range(200)]
    error = await raises(
        InvalidInput, journal.commit(lake.transaction(journal, *over_and_over)), kind="too_large"
    )
    assert "split" in error.hint
    waiting = [lake.transaction(journal, lake.namespace(f"n{number}", p="x" * 400)) for number in range(9)]
    counts = []
    while waiting:
        answers = await journal.commit_group(waiting)
        counts.append(sum(isinstance(answer, Committed) for answer in answers))
        waiting = [t for t, answer in zip(waiting, answers, strict=True) if answer is None]
    assert sum(counts) == 9
    assert 1 < max(counts) < 5
    await sound(lake)


async def test_operations_on_large_definitions_give_way(lake: Lake) -> None:
    journal = await lake.create()

    async def turns_of(name: str, text: str) -> int:
        await lake.commit(journal, lake.namespace(name, p=text))
        turns = 0

        async def live() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        living = asyncio.create_task(live())
        await lake.commit(journal, *(UpdateNamespace(name=name, set={"q": str(n)}) for n in range(64)))
        living.cancel()
        return turns

    assert await turns_of("large", "x" * 65_536) > await turns_of("small", "") + 50


# --- native tables ---------------------------------------------------------------------------------


async def table_of(lake: Lake, **options: object) -> tuple[Journal, str]:
    journal = await lake.create(**options)
    create = lake.table("a", "t")
    await lake.commit(journal, lake.namespace("a"), create)
    return journal, create.table_id


async def rows(lake: Lake, table_id: str, id: str, count: int, *, overwrite: bool = False) -> Operation:
    segment = await put_rows(
        lake.storage, lake.identities, table_id=table_id, transaction_id=id, row_count=count
    )
    kind = OverwriteFiles if overwrite else AppendFiles
    return kind(namespace="a", name="t", table_id=table_id, segments=(segment,))


async def test_append_and_overwrite(lake: Lake) -> None:
    journal, table_id = await table_of(lake)
    for number, (count, overwrite, removed) in enumerate(((3, False, 0), (4, False, 0), (5, True, 7))):
        id = lake.identities.uuid7()
        transaction = Transaction(
            id=id,
            begin_version=1 + number,
            operations=(await rows(lake, table_id, id, count, overwrite=overwrite),),
        )
        for duplicate in (False, True):
            committed = await journal.commit(transaction)
            assert (committed.rows_added, committed.rows_removed) == (count, removed)
            assert committed.duplicate == duplicate
    empty = OverwriteFiles(namespace="a", name="t", table_id=table_id, segments=())
    committed = await lake.commit(journal, empty)
    assert (committed.rows_added, committed.rows_removed) == (0, 5)
    await sound(lake)


async def test_many_segments_are_read_in_batches(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are bounded by count and by size. A segment too large for any batch is read alone. The last segment is
    checked like the first."""
    journal, table_id = await table_of(lake)
    calls: list[int] = []

    async def read_many(paths: list[str], *, size_max: int) -> dict[str, bytes]:
        calls.append(len(paths))
        return {path: await lake.storage.read(path, size_max=size_max) for path in paths}

    monkeypatch.setattr(lake.storage, "read_many", read_many)
    for size, batches in ((16 << 20, [32, 8]), (1, [1] * 40)):
        monkeypatch.setattr("alpheus_journal.commit.manifest_cache.SEGMENTS_AT_ONCE_BYTES_MAX", size)
        id = lake.identities.uuid7()
        operations = []
        for number in range(40):
            operation = await rows(lake, table_id, id, 1 + number)
            assert isinstance(operation, AppendFiles)
            operations.append(operation)
        (last,) = operations[-1].segments
        lie = AppendFiles(
            namespace="a",
            name="t",
            table_id=table_id,
            segments=(msgspec.structs.replace(last, sha256=bytes(32)),),
        )
        version = journal.head.version
        wrong = Transaction(id=id, begin_version=version, operations=(*operations[:-1], lie))
        error = await raises(InvalidInput, journal.commit(wrong), kind="bad_data")
        assert last.path in error.message
        assert journal.head.version == version
        calls.clear()
        committed = await journal.commit(
            Transaction(id=id, begin_version=version, operations=tuple(operations))
        )
        assert committed.rows_added == sum(range(1, 41))
        assert calls == batches


async def test_files_that_are_not_as_announced(lake: Lake) -> None:
    journal, table_id = await table_of(lake)
    before = journal.head.version

    async def refused(operation: Operation, id: str, error: type[AlpheusError], kind: str) -> AlpheusError:
        transaction = Transaction(id=id, begin_version=before, operations=(operation,))
        raised = await raises(error, journal.commit(transaction), kind=kind)
        assert journal.head.version == before
        return raised

    id = lake.identities.uuid7()
    operation = await rows(lake, table_id, id, 2)
    assert isinstance(operation, AppendFiles)
    (segment,) = operation.segments
    data = await lake.storage.read(segment.path, size_max=1 << 20)
    (data_path,) = await listed(lake.storage, "data/")
    content = await lake.storage.read(data_path, size_max=1 << 20)
    for damaged in (data[:-1], data[:100], b"", data[:50] + bytes([data[50] ^ 1]) + data[51:]):
        await lake.storage.put(segment.path, damaged)
        error = await refused(operation, id, InvalidInput, "bad_data")
        assert error.path == segment.path
    await lake.storage.delete(segment.path)
    error = await refused(operation, id, InvalidInput, "bad_data")
    assert segment.path in str(error)
    assert error.hint
    await lake.storage.put(segment.path, data)
    await lake.storage.put(data_path, content[:-1])
    error = await refused(operation, id, InvalidInput, "bad_data")
    assert error.path == data_path
    await lake.storage.delete(data_path)
    error = await refused(operation, id, InvalidInput, "bad_data")
    assert data_path in str(error)
    await lake.storage.put(data_path, content)
    stolen = lake.identities.uuid7()
    await refused(operation, stolen, Expired, "upload_expired")
    other = AppendFiles(
        namespace="a", name="t", table_id=lake.identities.uuid4(), segments=operation.segments
    )
    await refused(other, id, InvalidInput, "bad_data")
    none = AppendFiles(namespace="a", name="t", table_id=table_id, segments=())
    await refused(none, id, InvalidInput, "bad_argument")
    twice = AppendFiles(namespace="a", name="t", table_id=table_id, segments=operation.segments * 2)
    await refused(twice, id, InvalidInput, "bad_data")
    assert (await journal.commit(Transaction(id=id, begin_version=1, operations=(operation,)))).version == 2


async def test_files_of_a_table_that_was_replaced(lake: Lake) -> None:
    journal, table_id = await table_of(lake)
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    await lake.commit(journal, lake.table("a", "t"))
    id = lake.identities.uuid7()
    operation = await rows(lake, table_id, id, 2)
    transaction = Transaction(id=id, begin_version=3, operations=(operation,))
    error = await raises(InvalidInput, journal.commit(transaction), kind="table_replaced")
    assert error.hint
    stale = Transaction(id=id, begin_version=1, operations=(operation,))
    conflict = await raises(Conflict, journal.commit(stale), kind="object_changed")
    assert not conflict.retryable


async def test_nothing_of_a_refused_transaction_is_visible(lake: Lake) -> None:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    before = await model_of(journal)
    for last, error in (
        (lake.namespace("a"), AlreadyExists),
        (DropNamespace(name="none"), NotFound),
        (lake.table("none", "t"), NotFound),
        (UpdateCatalog(), InvalidInput),
        (CreateNamespace(name="c", namespace_id="no uuid"), InvalidInput),
    ):
        transaction = lake.transaction(journal, lake.namespace("b"), lake.table("b", "t"), last)
        await raises(error, journal.commit(transaction))
        assert await model_of(await lake.open()) == before
    assert isinstance(lake.storage, MemoryStorage)
    assert (await journal.resolve(None)).version == 1
    assert fmt.LATEST_HINT not in [info.path for info in (await listed(lake.storage, "node/")).values()]


# --- recorded bytes --------------------------------------------------------------------------------


class StillClock(FakeClock):
    """A clock that no waiting moves, and on which no waiting ends."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        (1, "4469e7c9201c1e1c9d59f53ce30f0c423c9add4fda9538fab2559bc6a5cd01cf"),
        (2, "8f37b012d6d9782ff0ae890b58e6495c0b3be0995e05fd60a130ab5527cc40e9"),
    ],
)
async def test_recorded_bytes_stay_as_they_are(revision: int, expected: str) -> None:
    """Roots are compared by their rows (the file around them is Arrow's), definitions by their bytes."""
    lake = Lake()
    lake.clock = StillClock()
    lake.identities = SeededIdentities(7, lake.clock)
    journal = await lake.create(format_revision=revision)
    await lake.commit(journal, lake.namespace("sales", owner="me"))
    value = Column(id=4, name="value", type="STRUCT", fields=(Column(id=5, name="f", type="INT4"),))
    key = Column(id=3, name="key", type="VARCHAR", nullable=False)
    decimal = {"precision": "9", "scale": "2"}
    columns = (
        Column(id=1, name="n", type="DECIMAL", nullable=False, properties=decimal),
        Column(id=2, name="m", type="MAP", key=key, value=value),
        Column(id=6, name="l", type="LIST", element=Column(id=7, name="element", type="DATE")),
    )
    orders = CreateTable(
        namespace="sales",
        name="orders",
        table_id=lake.identities.uuid4(),
        columns=columns,
        properties={"b": "2", "a": "1"},
    )
    update = UpdateTable(
        namespace="sales",
        name="orders",
        set={"c": "3"},
        unset=("a",),
        add_columns=(AddColumn(column=Column(id=0, name="x", type="INT8")),),
        rename_columns={"n": "p"},
        column_order=("x", "p", "m", "l"),
    )
    nullable = UpdateTable(namespace="sales", name="ü", nullable_columns={"c": True}, set={"k": "ä"})
    groups = (
        [[orders], [lake.table("sales", "ü"), UpdateNamespace(name="sales", set={"k": "v"})]],
        [[update], [nullable]],
    )
    for version, group in enumerate(groups, 2):
        transactions = [lake.transaction(journal, *operations) for operations in group]
        assert told(await journal.commit_group(transactions)) == [version, version]
    digest = hashlib.sha256()
    for path in await listed(lake.storage, ""):
        data = await lake.storage.read(path, size_max=1 << 20)
        if path.startswith("vn/"):
            if not path[3:].isdigit():
                continue  # a hint
            file = decode_node(data, path, root=True, size_max=1 << 20)
            # Later releases added three rows. Without these rows every byte stays the same.
            for row in (fmt.ROW_PREVIOUS_COMMIT_ID, fmt.ROW_CATALOG_ID, fmt.ROW_CHECKSUM):
                assert (file.system.pop(row, None) is None) is (
                    file.version == 0 and row == fmt.ROW_PREVIOUS_COMMIT_ID
                )
            data = repr(file).encode()
        digest.update(path.encode() + data)
    assert digest.hexdigest() == expected


@pytest.mark.parametrize("damaged", [0, 1])
async def test_what_cannot_be_read_harms_whom_it_concerns(lake: Lake, damaged: int) -> None:
    journal = await lake.create(order=3)
    names = [f"n{number:02}" for number in range(20)]
    await lake.commit(journal, *map(lake.namespace, names))
    pair = (names[0], names[-1])
    key = journal.keys.key(fmt.namespace_name(pair[damaged]))
    node, path = journal.head.root, ""
    while key not in node.keys:
        path = node.children[bisect_left(node.keys, key)]
        node = decode_node(
            await lake.storage.read(path, size_max=1 << 20), path, root=False, size_max=1 << 20
        ).node
    await lake.storage.put(path, b"no node")
    journal = await lake.open()
    group = [lake.transaction(journal, UpdateNamespace(name=name, set={"k": "v"})) for name in pair]
    answers = told(await journal.commit_group(group))
    assert answers[damaged] == "corrupt_node"
    assert answers[1 - damaged] == 2


async def test_a_definition_that_was_written_is_known_by_its_bytes() -> None:
    recent = recent_definitions()
    name = fmt.namespace_name("n")

    def seen(path: str, data: bytes) -> Definition:
        return Workspace(recent=recent).definition(name, StoredObject(path, data))

    definition = NamespaceDef(id="x", properties={"k": "v"})
    path, data = "def/ns/x.binpb", encode_definition(definition)
    assert seen(path, data) == definition
    assert seen(path, data) is not definition
    Workspace(recent=recent).fork().remember_written(StoredObject(path, data), definition)
    assert seen(path, data) is definition
    other = NamespaceDef(id="y")
    assert seen(path, encode_definition(other)) == other, "other bytes in that place"
    large = NamespaceDef(id="x", properties={"k": "v" * RECENT_DEFINITION_SIZE_BYTES_MAX})
    Workspace(recent=recent).remember_written(StoredObject("def/ns/z.binpb", encode_definition(large)), large)
    assert seen("def/ns/z.binpb", encode_definition(large)) is not large


async def test_a_refusal_knows_all_versions_that_there_are(lake: Lake) -> None:
    """A process that is behind answers a retry from the version that another process has committed."""
    writer = await lake.create()
    behind = await lake.open()
    await lake.commit(writer, lake.namespace("a"))
    retry = lake.transaction(behind, lake.table("a", "t"))
    assert (await writer.commit(retry)).version == 2
    assert behind.head.version == 0
    assert told(await behind.commit_group([retry, lake.transaction(behind, lake.namespace("b"))])) == [2, 3]


async def test_a_refusal_costs_one_look_at_the_head_and_none_where_nobody_else_writes() -> None:
    lake = Lake(counted := LatencyStorage(MemoryStorage(), 0.0))
    journal = await lake.create()
    sole = await lake.open()
    sole.sole_writer = True
    for writer, looks in ((journal, 1), (sole, 0)):
        before = counted.requests.get("stat", 0)
        group = [lake.transaction(writer, DropNamespace(name=name)) for name in ("x", "y")]
        assert told(await writer.commit_group(group)) == ["no_namespace"] * 2
        assert counted.requests.get("stat", 0) - before == looks
