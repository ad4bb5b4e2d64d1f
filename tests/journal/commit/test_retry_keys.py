"""Retries: retry keys and idempotent writers, which of them applies, and for how long."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from alpheus_journal.errors import AlpheusError, Conflict, Expired, InvalidInput
from alpheus_journal.format import Kind, ObjectName, table_name
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Committed
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TableDef, WriterMark
from alpheus_journal.model.operations import (
    AppendFiles,
    DropTable,
    Operation,
    OverwriteFiles,
    RenameObject,
    RestoreTable,
    Transaction,
    UpdateCatalog,
    UpdateTable,
    Writer,
)
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import InterleavedStorage, Lake, put_rows, raises

T, U = table_name("a", "t"), table_name("a", "u")


class Ponds:
    """A catalog with two tables."""

    def __init__(self, lake: Lake, journal: Journal, ids: dict[ObjectName, str]) -> None:
        self.lake = lake
        self.journal = journal
        self.ids = ids

    @classmethod
    async def make(cls, storage: MemoryStorage | None = None, seed: int = 0) -> Ponds:
        lake = Lake(storage, seed=seed)
        journal = await lake.create()
        tables = [lake.table("a", name) for name in ("t", "u")]
        await lake.commit(journal, lake.namespace("a"), *tables)
        return cls(lake, journal, {table.target: table.table_id for table in tables})

    async def transaction(
        self,
        *names: ObjectName,
        key: str = "",
        writer: tuple[str, int] | None = None,
        overwrite: bool = False,
        also: tuple[Operation, ...] = (),
        begin: int | None = None,
    ) -> Transaction:
        """Return a transaction that adds a new row to each table."""
        id = self.lake.identities.uuid7()
        cls = OverwriteFiles if overwrite else AppendFiles
        operations: list[Operation] = [*also]
        for name in names:
            segment = await put_rows(
                self.lake.storage, self.lake.identities, table_id=self.ids[name], transaction_id=id
            )
            operations.append(
                cls(namespace="a", name=name.name, table_id=self.ids[name], segments=(segment,))
            )
        return Transaction(
            id=id,
            begin_version=self.journal.head.version if begin is None else begin,
            operations=tuple(operations),
            key=key,
            writer=Writer(name=writer[0], sequence=writer[1]) if writer else None,
        )

    async def table(self, name: ObjectName = T) -> TableDef:
        (stored,) = (await self.journal.load(None, [name])).objects
        assert stored is not None
        definition = decode_definition(Kind.TABLE, stored.definition, stored.path)
        assert isinstance(definition, TableDef)
        return definition

    async def sound(self) -> None:
        found = [item async for item in (await self.lake.open()).check()]
        assert isinstance(found[0], CheckSummary), found


@pytest.fixture
async def ponds() -> Ponds:
    return await Ponds.make()


def is_repeat_of(answer: object, first: Committed) -> bool:
    return (
        isinstance(answer, Committed)
        and answer.duplicate
        and (answer.version, answer.transaction_id, answer.token, answer.created_at_millis)
        == (first.version, first.transaction_id, first.token, first.created_at_millis)
    )


# --- key -------------------------------------------------------------------------------------------


async def test_a_commit_is_found_by_its_key() -> None:
    ponds = await Ponds.make()
    assert await ponds.journal.find_commit_of_key("k") is None
    committed = await ponds.journal.commit(await ponds.transaction(T, key="k"))
    await ponds.journal.commit(await ponds.transaction(U))
    other = await ponds.lake.open()
    for journal in (ponds.journal, other):
        assert await journal.find_commit_of_key("k") == msgspec.structs.replace(committed, duplicate=True)
        assert await journal.find_commit_of_key("other") is None
    late = await ponds.journal.commit(await ponds.transaction(T, key="late"))
    found = await other.find_commit_of_key("late")
    assert found == msgspec.structs.replace(late, duplicate=True), "a look begins with the newest version"
    for wrong, words in (("", "must not be empty"), ("k" * 2000, "at most"), ("\ud800", "surrogate")):
        with pytest.raises(InvalidInput, match=words):
            await ponds.journal.find_commit_of_key(wrong)


async def test_the_first_with_a_key_wins_whatever_its_files(ponds: Ponds) -> None:
    first = await ponds.journal.commit(await ponds.transaction(T, key="dag/1"))
    assert not first.duplicate
    for journal in (ponds.journal, await ponds.lake.open()):
        for again in (
            await ponds.transaction(T, key="dag/1"),
            await ponds.transaction(U, key="dag/1", overwrite=True),
            msgspec.structs.replace(await ponds.transaction(T, key="dag/1"), principal="eve", message="m"),
        ):
            answer = await journal.commit(again)
            assert is_repeat_of(answer, first)
            assert answer.rows_added == 1
            assert (await journal.outcome(again.id)).state == "unknown", "nothing of it is recorded"
    assert ponds.journal.head.version == first.version
    assert (await ponds.table()).row_count == 1
    other = await ponds.journal.commit(await ponds.transaction(T, key="dag/2"))
    assert not other.duplicate
    await ponds.sound()


async def test_a_key_beats_conflicts_and_what_has_expired(ponds: Ponds) -> None:
    begin = ponds.journal.head.version
    await ponds.journal.commit(await ponds.transaction(T))
    first = await ponds.journal.commit(await ponds.transaction(T, key="k"))
    again = await ponds.transaction(T, key="k", overwrite=True, begin=begin)
    assert is_repeat_of(await ponds.journal.commit(again), first)
    await ponds.lake.expire(below=first.version)
    assert is_repeat_of(await (await ponds.lake.open()).commit(again), first)
    unkeyed = msgspec.structs.replace(again, key="")
    await raises(Expired, (await ponds.lake.open()).commit(unkeyed))


async def test_a_key_goes_with_its_version(ponds: Ponds) -> None:
    first = await ponds.journal.commit(await ponds.transaction(T, key="k"))
    await ponds.journal.commit(await ponds.transaction(U))
    assert is_repeat_of(await ponds.journal.commit(await ponds.transaction(T, key="k")), first)
    await ponds.lake.expire(below=first.version + 1)
    fresh = await ponds.lake.open()
    anew = await fresh.commit(await ponds.transaction(T, key="k", begin=fresh.head.version))
    assert not anew.duplicate
    assert is_repeat_of(await fresh.commit(await ponds.transaction(T, key="k")), anew)


async def test_a_key_that_won_again_after_its_version_expired(ponds: Ponds) -> None:
    """This process remembers both versions. The first no longer counts, though it is still in memory."""
    first = await ponds.journal.commit(await ponds.transaction(T, key="k"))
    await ponds.journal.commit(await ponds.transaction(U))
    await ponds.lake.expire(below=first.version + 1)
    other = await ponds.lake.open()
    anew = await other.commit(await ponds.transaction(T, key="k", begin=other.head.version))
    assert not anew.duplicate
    await ponds.journal.refresh()
    assert is_repeat_of(await ponds.journal.commit(await ponds.transaction(T, key="k")), anew)
    await ponds.sound()


class CountingStorage(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    async def read(self, path: str, *, size_max: int) -> bytes:
        self.reads[path.split("/")[0]] += 1
        return await super().read(path, size_max=size_max)


async def test_the_roots_are_read_once() -> None:
    storage = CountingStorage()
    ponds = await Ponds.make(storage)
    for number in range(40):
        await ponds.journal.commit(await ponds.transaction(U, key=f"old/{number}"))
    fresh = await ponds.lake.open()
    storage.reads.clear()
    await fresh.commit(await ponds.transaction(T, key="new"))
    assert 40 < storage.reads["vn"] < 50
    storage.reads.clear()
    for number in range(5):
        await fresh.commit(await ponds.transaction(T, key=f"new/{number}"))
        await ponds.journal.refresh()
        await ponds.journal.commit(await ponds.transaction(T, key=f"other/{number}"))
    await fresh.refresh()
    # One read for each version of another journal, and one more by the writer of the next version.
    assert storage.reads["vn"] < 30 + 10
    for number in range(40):
        assert (await fresh.commit(await ponds.transaction(T, key=f"old/{number}"))).duplicate
    for number in range(5):
        assert (await fresh.commit(await ponds.transaction(T, key=f"other/{number}"))).duplicate


async def test_keys_in_versions_that_were_jumped_over_are_found(ponds: Ponds) -> None:
    """A journal that paused while versions expired reads the keys again."""
    sleeper = await ponds.lake.open()
    await sleeper.commit(await ponds.transaction(T, key="before"))
    await ponds.journal.refresh()
    for number in range(4):
        await ponds.journal.commit(await ponds.transaction(U, key=f"k{number}"))
    head = ponds.journal.head.version
    await ponds.lake.expire(below=head - 1)  # k2 and k3 are kept
    await sleeper.refresh()
    for number in range(4):
        answer = await sleeper.commit(await ponds.transaction(T, key=f"k{number}", begin=head))
        assert answer.duplicate == (number >= 2)


async def test_one_key_twice_in_a_group(ponds: Ponds) -> None:
    group = [await ponds.transaction(T, key="k") for _ in range(3)]
    other = await ponds.transaction(T, key="l")
    first, *answers, last = await ponds.journal.commit_group([*group, other])
    assert isinstance(first, Committed)
    assert answers == [None, None]
    assert isinstance(last, Committed)
    for answer in await ponds.journal.commit_group(group[1:]):
        assert is_repeat_of(answer, first)
    assert (await ponds.table()).row_count == 2
    # The first transaction of a group fails: the second gets the key.
    bad = await ponds.transaction(key="m", also=(DropTable(namespace="a", name="none"),))
    good = await ponds.transaction(T, key="m")
    refused, answer = await ponds.journal.commit_group([bad, good])
    assert isinstance(refused, AlpheusError)
    assert isinstance(answer, Committed)
    assert not answer.duplicate


async def test_racing_for_a_key(lane_count: Callable[[int, int], int]) -> None:
    winners = set()
    for seed in range(lane_count(30, 2000)):
        ponds = await Ponds.make(seed=seed)
        journals = [await ponds.lake.open(InterleavedStorage(ponds.lake.storage, seed + n)) for n in range(3)]
        transactions = [await ponds.transaction(T, key="k") for _ in journals]
        answers = await asyncio.gather(
            *(journal.commit(t) for journal, t in zip(journals, transactions, strict=True))
        )
        assert sorted(answer.duplicate for answer in answers) == [False, True, True]
        assert len({(answer.version, answer.transaction_id) for answer in answers}) == 1
        await ponds.journal.refresh()
        assert (await ponds.table()).row_count == 1
        winners.add([answer.duplicate for answer in answers].index(False))
        await ponds.sound()
    assert len(winners) > 1


# --- writer ----------------------------------------------------------------------------------------


async def test_a_stream_that_repeats_itself(ponds: Ponds) -> None:
    journal = ponds.journal
    for sequence in (0, 1, 5, 9):  # gaps are allowed
        first = await journal.commit(await ponds.transaction(T, writer=("s", sequence)))
        assert not first.duplicate
        for reader in (journal, await ponds.lake.open()):
            again = await reader.commit(await ponds.transaction(T, writer=("s", sequence)))
            assert is_repeat_of(again, first)
            assert again.rows_added == 1
        mark = (await ponds.table()).writer_marks["s"]
        assert mark == WriterMark(
            sequence=sequence, transaction_id=first.transaction_id, version=first.version
        )
    older = await journal.commit(await ponds.transaction(T, writer=("s", 3)))
    assert (older.duplicate, older.version, older.rows_added) == (True, first.version, 0)
    assert not (await journal.commit(await ponds.transaction(T, writer=("other", 3)))).duplicate
    assert not (await journal.commit(await ponds.transaction(U, writer=("s", 3)))).duplicate
    assert not (await journal.commit(await ponds.transaction(T))).duplicate
    assert (await ponds.table()).row_count == 6
    assert set((await ponds.table()).writer_marks) == {"s", "other"}
    await ponds.sound()


async def test_a_mark_outlives_the_version_that_it_names(ponds: Ponds) -> None:
    transaction = await ponds.transaction(T, writer=("s", 7))
    first = await ponds.journal.commit(transaction)
    await ponds.journal.commit(await ponds.transaction(U))
    await ponds.lake.expire(below=first.version + 1)
    for again in (await ponds.transaction(T, writer=("s", 7)), transaction):
        answer = await (await ponds.lake.open()).commit(again)
        assert answer.duplicate
        assert (answer.version, answer.transaction_id, answer.token) == (
            first.version, first.transaction_id, first.token,
        )  # fmt: skip
        assert answer.created_at_millis == 0, "which nobody knows any more"
    assert ponds.journal.head.version == first.version + 1


async def test_a_mark_beats_conflicts(ponds: Ponds) -> None:
    begin = ponds.journal.head.version
    first = await ponds.journal.commit(await ponds.transaction(T, writer=("s", 1)))
    again = await ponds.transaction(T, writer=("s", 1), overwrite=True, begin=begin)
    assert is_repeat_of(await ponds.journal.commit(again), first)
    later = await ponds.transaction(T, writer=("s", 2), overwrite=True, begin=begin)
    await raises(Conflict, ponds.journal.commit(later))


async def test_marks_stay_with_the_table(ponds: Ponds) -> None:
    journal = ponds.journal
    first = await journal.commit(await ponds.transaction(T, writer=("s", 4)))
    await ponds.lake.commit(journal, UpdateTable(namespace="a", name="t", set={"k": "v"}))
    await ponds.lake.commit(journal, RestoreTable(namespace="a", name="t", version=1))
    assert is_repeat_of(await journal.commit(await ponds.transaction(T, writer=("s", 4))), first)
    await ponds.lake.commit(
        journal, RenameObject(kind=Kind.TABLE, namespace="a", name="t", new_namespace="a", new_name="n")
    )
    renamed = table_name("a", "n")
    ponds.ids[renamed] = ponds.ids[T]
    assert is_repeat_of(await journal.commit(await ponds.transaction(renamed, writer=("s", 4))), first)
    # Another table under the same name remembers nothing.
    create = ponds.lake.table("a", "n")
    await ponds.lake.commit(journal, DropTable(namespace="a", name="n"), create)
    ponds.ids[renamed] = create.table_id
    assert not (await journal.commit(await ponds.transaction(renamed, writer=("s", 4)))).duplicate
    await ponds.sound()


async def test_a_rename_in_the_transaction_itself_hides_no_mark(ponds: Ponds) -> None:
    journal = ponds.journal
    await journal.commit(await ponds.transaction(T, writer=("s", 4)))
    rename = RenameObject(kind=Kind.TABLE, namespace="a", name="t", new_namespace="a", new_name="n")
    renamed = table_name("a", "n")
    ponds.ids[renamed] = ponds.ids[T]
    repeated = await ponds.transaction(renamed, writer=("s", 4), also=(rename,))
    await raises(InvalidInput, journal.commit(repeated), kind="sequence_reused")
    assert not (
        await journal.commit(await ponds.transaction(renamed, writer=("s", 5), also=(rename,)))
    ).duplicate
    assert (await ponds.table(renamed)).row_count == 2
    await ponds.sound()


async def test_several_tables_remember_together(ponds: Ponds) -> None:
    journal = ponds.journal
    first = await journal.commit(await ponds.transaction(T, U, writer=("s", 1)))
    assert (await ponds.table(T)).writer_marks == (await ponds.table(U)).writer_marks
    assert is_repeat_of(await journal.commit(await ponds.transaction(T, U, writer=("s", 1))), first)
    assert is_repeat_of(await journal.commit(await ponds.transaction(U, writer=("s", 1))), first)
    ahead = await journal.commit(await ponds.transaction(T, writer=("s", 2)))
    error = await raises(
        InvalidInput, journal.commit(await ponds.transaction(T, U, writer=("s", 2))), kind="sequence_reused"
    )
    for text in ("table a.t", "table a.u", ahead.transaction_id, f"version {ahead.version}"):
        assert text in error.message
    both_older = await journal.commit(await ponds.transaction(T, U, writer=("s", 0)))
    assert (both_older.duplicate, both_older.version) == (True, ahead.version)
    assert (await ponds.table(U)).row_count == 1


async def test_one_sequence_twice_in_a_group(ponds: Ponds) -> None:
    group = [await ponds.transaction(T, writer=("s", number)) for number in (1, 1, 2)]
    first, answer, later = await ponds.journal.commit_group(group)
    assert isinstance(first, Committed)
    assert answer is None
    assert isinstance(later, Committed)
    (answer,) = await ponds.journal.commit_group(group[1:2])
    assert isinstance(answer, Committed)
    assert (answer.duplicate, answer.transaction_id) == (True, group[2].id)
    assert (await ponds.table()).row_count == 2


async def test_racing_with_a_sequence(lane_count: Callable[[int, int], int]) -> None:
    for seed in range(lane_count(20, 1000)):
        ponds = await Ponds.make(seed=seed)
        journals = [await ponds.lake.open(InterleavedStorage(ponds.lake.storage, seed + n)) for n in range(2)]
        transactions = [await ponds.transaction(T, writer=("s", 1)) for _ in journals]
        answers = await asyncio.gather(
            *(journal.commit(t) for journal, t in zip(journals, transactions, strict=True))
        )
        assert sorted(answer.duplicate for answer in answers) == [False, True]
        await ponds.journal.refresh()
        assert (await ponds.table()).row_count == 1


# --- all three -------------------------------------------------------------------------------------


async def test_the_id_comes_before_the_key_and_the_key_before_the_writer(ponds: Ponds) -> None:
    journal = ponds.journal
    by_writer = await journal.commit(await ponds.transaction(T, writer=("s", 1)))
    by_key = await journal.commit(await ponds.transaction(T, key="k"))
    mine = await ponds.transaction(T, key="mine", writer=("s", 2))
    by_id = await journal.commit(mine)
    assert is_repeat_of(await journal.commit(mine), by_id)
    both = await ponds.transaction(T, key="k", writer=("s", 1))
    assert is_repeat_of(await journal.commit(both), by_key)
    new_key = await ponds.transaction(T, key="new", writer=("s", 1))
    assert (await journal.commit(new_key)).version == by_id.version, "the table's last of that name"
    assert by_writer.version < by_key.version < by_id.version
    other = msgspec.structs.replace(mine, key="k")
    await raises(InvalidInput, journal.commit(other), kind="id_reused")
    for other in (
        msgspec.structs.replace(mine, writer=None),
        msgspec.structs.replace(mine, writer=Writer(name="s", sequence=3)),
        msgspec.structs.replace(mine, key=""),
    ):
        await raises(InvalidInput, journal.commit(other), kind="id_reused")
    cancelled = await ponds.transaction(T, key="k")
    await journal.outcome(cancelled.id, settle=True)
    await raises(InvalidInput, journal.commit(cancelled), kind="id_cancelled")


@pytest.mark.parametrize(
    "changes",
    [
        {"key": "k" * 1025},
        {"key": "\ud800"},
        {"writer": Writer(name="", sequence=1)},
        {"writer": Writer(name="w" * 257, sequence=1)},
        {"writer": Writer(name="\udfff", sequence=1)},
        {"writer": Writer(name="w", sequence=-1)},
        {"writer": Writer(name="w", sequence=1 << 63)},
        {"writer": Writer(name="w", sequence=1), "operations": (UpdateCatalog(set={"a": "b"}),)},
    ],
)
async def test_keys_and_writers_that_cannot_be(ponds: Ponds, changes: dict[str, object]) -> None:
    transaction = msgspec.structs.replace(await ponds.transaction(T), **changes)
    await raises(InvalidInput, ponds.journal.commit(transaction))


async def test_the_longest_key_and_the_largest_sequence(ponds: Ponds) -> None:
    journal = ponds.journal
    transaction = await ponds.transaction(T, key="k" * 1024, writer=("w" * 256, (1 << 63) - 1))
    first = await journal.commit(transaction)
    (recorded,) = (await (await ponds.lake.open()).event(first.version)).transactions
    assert (recorded.key, recorded.writer) == (transaction.key, transaction.writer)
    assert is_repeat_of(await (await ponds.lake.open()).commit(transaction), first)
