"""Changing rows: the rows that a reader sees after any interleaving of changes, appends, overwrites, restores,
compactions.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from unittest import mock

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from alpheus_journal.errors import AlpheusError, Conflict, Corrupt, Expired, InvalidInput
from alpheus_journal.execute.rules import row_changes
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed, Finding
from alpheus_journal.model.definition_messages import encode_definition
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.operations import (
    AppendFiles,
    ChangeMode,
    ChangeRows,
    DropTable,
    Read,
    Transaction,
    Undrop,
)
from alpheus_journal.predicate import And, Compare, encode, reference
from alpheus_journal.tables import manifest_merge as segments_module
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.testing import listed, raises
from alpheus_journal.testing.models.tables import (
    ID,
    NAME,
    TAG,
    Author,
    Lakeside,
    Row,
    Where,
    below,
    equals,
    ids_of,
    make_lakeside,
    random_change,
    small_tiers,
)

# --- any interleaving ------------------------------------------------------------------------------


class Done(NamedTuple):
    version: int
    labels: set[str]


def may_conflict(labels: set[str], others: set[str]) -> bool:
    """Return whether the rules allow a conflict. This rough table names the combinations that never conflict."""
    if not others:
        return False
    if labels == {"append"}:
        return "restore" in others
    if labels == {"delete_on_read"}:
        return bool(others - {"append", "overwrite_all", "delete_on_read"})
    if labels == {"compact"}:
        return bool(others - {"append"})
    return not (labels <= {"overwrite_all", "append"} and others == {"compact"})


class History:
    """Concurrent transactions against a naive model: the existing rows, and the versions that each author saw."""

    def __init__(self, side: Lakeside, rng: random.Random) -> None:
        self.side = side
        self.rng = rng
        self.done: list[Done] = []
        self.state: Counter[Row] = Counter()

    async def check_committed(self, author: Author, version: int) -> None:
        self.state = (await author.meant()).applied_to(self.state)
        self.done.append(Done(version, set(author.labels)))

    def concurrent(self, author: Author) -> set[str]:
        found: set[str] = set()
        for one in self.done:
            if one.version > author.begin:
                found |= one.labels
        return found

    async def commit(self, journal: Journal, authors: Sequence[Author]) -> None:
        """Commit the authors as one group, which may become several versions."""
        waiting = list(authors)
        while waiting:
            answers = await journal.commit_group([author.transaction() for author in waiting])
            again = []
            for author, answer in zip(waiting, answers, strict=True):
                if isinstance(answer, Committed):
                    await self.check_committed(author, answer.version)
                elif isinstance(answer, Conflict):
                    assert answer.retryable
                    assert answer.kind in ("rows_changed", "object_changed"), answer
                    assert may_conflict(set(author.labels), self.concurrent(author)), (
                        author.labels, self.concurrent(author), answer,
                    )  # fmt: skip
                elif isinstance(answer, AlpheusError):
                    raise answer
                else:
                    again.append(author)
            waiting = again
        await journal.refresh()
        assert await self.side.now(journal) == self.state


async def run_history(seed: int, rounds: int) -> list[Done]:
    """Run rounds of transactions that begin at the same version or one version apart. They commit in any order and in
    any groups, through two processes."""
    rng = random.Random(seed)
    side = await Lakeside.make(seed=seed)
    other = await side.lake.open()
    history = History(side, rng)
    first = await side.author()
    for _ in range(3):
        await first.append([rng.choice((None, 0, 1, 2, 3, 4)) for _ in range(4)])
    await history.commit(side.journal, [first])
    late: list[Author] = []
    for _ in range(rounds):
        await side.journal.refresh()
        head = side.journal.head.version
        authors = late + [await side.author(max(2, head - rng.choice((0, 0, 0, 1)))) for _ in range(3)]
        for author in authors:
            for _ in range(rng.choice((1, 1, 2))):
                await random_change(rng, author, range(2, author.begin + 1))
        rng.shuffle(authors)
        late = authors[:1] if rng.random() < 0.3 else []
        authors = [author for author in authors[len(late) :] if author.operations]
        while authors:
            count = rng.choice((1, 1, 2, 3))
            await history.commit(rng.choice((side.journal, other)), authors[:count])
            authors = authors[count:]
    await side.sound()
    return history.done


@settings(max_examples=8 if settings().max_examples < 100 else settings().max_examples)
@given(seed=st.integers(0, 1 << 32))
def test_any_interleaving_leaves_the_rows_that_its_authors_meant(seed: int) -> None:
    """The tiers are so small that segments merge all the time."""
    with small_tiers():
        asyncio.run(run_history(seed, 5))


# --- one change at a time --------------------------------------------------------------------------


async def test_a_predicate_hides_what_its_author_saw_and_own_rows() -> None:
    side = await make_lakeside([1, 2], [2, 3])
    author = await side.author()
    await author.append([2, 4])
    await author.delete(equals(2), on_read=True)
    await author.append([2])
    assert sorted(row.id or 0 for row in await author.visible()) == [1, 2, 3, 4]
    committed = await side.journal.commit(author.transaction())
    assert (committed.rows_added, committed.rows_removed) == (3, 3)
    assert await ids_of(side) == [1, 2, 3, 4]
    (predicate,) = (await side.table()).delete_predicates
    assert (predicate.sequence, predicate.committed_sequence) == (3, 4)
    assert (predicate.transaction_id, predicate.moves) == (author.id, False)
    (entry,) = [entry async for entry in side.journal.log(after=committed.version - 1)]
    operation = entry.transaction.actions[1].operation
    assert isinstance(operation, ChangeRows)
    assert (operation.hides_up_to, operation.outputs_sequence) == (3, 0)
    assert [action.type for action in entry.transaction.actions][1] == "TABLE_DELETE"
    await side.sound()


async def test_additions_of_others_stay_unless_own_ones_are_hidden() -> None:
    side = await make_lakeside([1, 2])
    plain, own = await side.author(), await side.author()
    await plain.delete(equals(2), on_read=True)
    await own.append([7])
    await own.delete(equals(7), on_read=True)
    other = await side.author()
    await other.append([2, 9])
    await side.journal.commit(other.transaction())
    await side.journal.commit(plain.transaction())
    assert await ids_of(side) == [1, 2, 9]
    error = await raises(Conflict, side.journal.commit(own.transaction()), kind="rows_changed")
    assert error.retryable
    assert error.transaction_id == other.id
    assert other.id in error.path


async def test_predicates_go_with_the_last_file_that_they_apply_to() -> None:
    side = await make_lakeside([1, 2], [3], [4])
    author = await side.author()
    await author.delete(equals(2), on_read=True)
    await side.journal.commit(author.transaction())
    late = await side.author()
    await late.append([2])
    await side.journal.commit(late.transaction())
    author = await side.author()
    await author.compact(lambda one: one.sequence <= 2)
    committed = await side.journal.commit(author.transaction())
    assert (committed.rows_added, committed.rows_removed) == (0, 0)
    table = await side.table()
    assert len(table.delete_predicates) == 1, "the third file may still be at or below it"
    assert table.row_count == 4
    author = await side.author()
    await author.compact(lambda one: one.sequence == 3)
    await side.journal.commit(author.transaction())
    table = await side.table()
    assert table.delete_predicates == ()
    assert await ids_of(side) == [1, 2, 3, 4]
    await side.sound()


async def test_what_a_compaction_worked_in_is_not_forgotten() -> None:
    """A transaction deleted a row, and a transaction that changes the row had not seen this. Then a compaction removed
    all traces of the row."""
    side = await make_lakeside([1, 5])
    deleting = await side.author()
    await deleting.delete(equals(5), on_read=True)
    append = await side.author()
    await append.append([2])
    await side.journal.commit(append.transaction())
    updating, deleting_too = await side.author(), await side.author()
    await updating.update(equals(5), lambda id: 6, on_read=True)
    await deleting_too.delete(equals(2), on_read=True)
    await side.journal.commit(deleting.transaction())
    compacting = await side.author()
    await compacting.compact(lambda one: True)
    version = (await side.journal.commit(compacting.transaction())).version
    table = await side.table()
    assert table.delete_predicates == ()
    (entry,) = [entry async for entry in side.journal.log(after=version - 1)]
    (action,) = entry.transaction.actions
    assert isinstance(action.operation, ChangeRows)
    assert (action.type, action.operation.outputs_sequence) == ("TABLE_COMPACT", 3)
    assert [segment.sequence for segment in table.segments] == [3]
    for author in (updating, deleting_too):
        await raises(Conflict, side.journal.commit(author.transaction()), kind="rows_changed")
    assert await ids_of(side) == [1, 2]


async def test_restored_and_overwritten_tables_have_the_predicates_of_their_rows() -> None:
    side = await make_lakeside([1, 2])
    author = await side.author()
    await author.delete(equals(2), on_read=True)
    version = (await side.journal.commit(author.transaction())).version
    (predicate,) = (await side.table()).delete_predicates
    author = await side.author()
    await author.overwrite_all([2, 5])
    await side.journal.commit(author.transaction())
    assert (await side.table()).delete_predicates == ()
    assert await ids_of(side) == [2, 5]
    author = await side.author()
    await author.restore(version)
    await side.journal.commit(author.transaction())
    table = await side.table()
    assert table.delete_predicates == (predicate,)
    assert table.sequence == 4
    assert await ids_of(side) == [1]
    alive = side.journal.head.version
    await side.lake.commit(side.journal, DropTable(namespace="a", name="t"))
    undrop = Undrop(
        kind=Kind.TABLE, namespace="a", name="t", version=version, new_namespace="a", new_name="t"
    )
    await side.lake.commit(side.journal, undrop)
    again = await side.table()
    assert (again.delete_predicates, again.sequence) == ((predicate,), 4)
    assert (again.segments, alive) == (table.segments, side.journal.head.version - 2)
    await side.sound()


async def test_several_changes_of_one_table_in_one_version() -> None:
    side = await make_lakeside([1, 2], [3, 4], [5, 6])
    authors = [await side.author() for _ in range(4)]
    await authors[0].delete(equals(1), on_read=False)
    await authors[1].update(equals(3), lambda id: 30, on_read=False)
    await authors[2].delete(equals(6), on_read=False)
    await authors[3].append([7])
    answers = await side.journal.commit_group([author.transaction() for author in authors])
    assert {answer.version for answer in answers if isinstance(answer, Committed)} == {5}
    assert len(answers) == 4
    assert await ids_of(side) == [2, 30, 4, 5, 7]
    await side.sound()


async def test_a_lost_slot_and_a_lost_reply() -> None:
    """A change that loses its slot is executed again on the winner's version. A retry of the same request gets the
    recorded answer."""
    side = await make_lakeside([1, 2], [3, 4])
    stale = await side.lake.open()
    author = await side.author()
    await author.update(equals(3), lambda id: 30, on_read=False)
    other = await side.author()
    await other.delete(equals(1), on_read=False)
    await other.append([9])
    await side.journal.commit(other.transaction())
    transaction = author.transaction()
    committed = await stale.commit(transaction)
    assert committed.version == 5
    for journal in (stale, side.journal, await side.lake.open()):
        again = await journal.commit(transaction)
        assert again.duplicate
        assert (again.version, again.rows_added, again.rows_removed) == (5, 1, 1)
    await side.journal.refresh()
    assert await ids_of(side) == [2, 30, 4, 9]
    await side.sound()


async def test_what_a_serializable_transaction_read() -> None:
    for on_read in (True, False):
        side = await make_lakeside([1, 2], [3])
        reader = await side.author()
        await reader.append([5])
        read = Read(type="TABLE_SELECT", name=NAME)
        other = await side.author()
        await other.delete(equals(1), on_read=on_read)
        await side.journal.commit(other.transaction())
        transaction = reader.transaction(serializable=True, reads=(read,))
        await raises(Conflict, side.journal.commit(transaction), kind="read_changed")
    side = await make_lakeside([1, 2], [3])
    reader = await side.author()
    await reader.append([5])
    other = await side.author()
    await other.compact(lambda one: True)
    await side.journal.commit(other.transaction())
    await side.journal.commit(reader.transaction(serializable=True, reads=(read,)))
    assert await ids_of(side) == [1, 2, 3, 5]


async def test_a_version_that_is_not_durable_yet_is_built_upon() -> None:
    """The segments that the first version makes are still being written when the second version needs them."""
    side = await make_lakeside([1, 2], [3, 4])
    first, second = await side.author(), await side.author()
    await first.delete(equals(1), on_read=False)
    await second.append([5])
    await side.journal.commit(first.transaction())
    third, fourth = await side.author(), await side.author()
    with (
        mock.patch.object(segments_module, "FANOUT", 2),
        mock.patch("alpheus_journal.execute.rules.rows.FANOUT", 2),
    ):
        started = asyncio.Event()
        tasks = []
        committer = side.journal
        await third.append([6])
        await fourth.append([7])
        tasks.append(
            asyncio.create_task(committer.commit_group([second.transaction()], on_publish=started.set))
        )
        await started.wait()
        answers = await committer.commit_group([third.transaction(), fourth.transaction()])
        (told,) = await tasks[0]
    assert isinstance(told, Committed)
    while not all(answers):
        answers = await committer.commit_group([third.transaction(), fourth.transaction()])
    assert all(isinstance(answer, Committed) for answer in answers)
    assert await ids_of(side) == [2, 3, 4, 5, 6, 7]
    await side.sound()


# --- refusals --------------------------------------------------------------------------------------


async def test_changes_that_are_refused() -> None:
    side = await make_lakeside([1, 2], [3])
    author = await side.author()
    table = await side.table()
    listed_files = await side.files(table)
    removed = await author.list_segment(listed_files[:1])
    segments = await author.write_segment(side.new_rows([1]))
    many = await author.write_segment(side.new_rows([1, 2, 3]))
    wrong = msgspec.structs.replace(listed_files[0].file, sequence=1, row_count=3, value_counts={}, null_counts={},
                                    lower_bounds={}, upper_bounds={})  # fmt: skip
    lying = await side.segment([wrong])
    late = await side.segment([msgspec.structs.replace(listed_files[0].file, sequence=2)])
    expression = equals(1).expression
    other_type = encode(Compare(reference(Column(id=1, name="id", type="VARCHAR")), "=", "x"))
    strange = encode(Compare(reference(Column(id=99, name="x", type="INT8")), "=", 1))
    foreign = await side.segment([await side.file(side.lake.identities.uuid7(), side.new_rows([1]))])
    delete, compact, update = ChangeMode.DELETE, ChangeMode.COMPACT, ChangeMode.UPDATE
    cases: list[tuple[ChangeMode, dict[str, object], type[AlpheusError], str]] = [
        (delete, {}, InvalidInput, "bad_argument"),
        (delete, {"segments": segments}, InvalidInput, "bad_data"),
        (delete, {"predicates": (b"no predicate",)}, InvalidInput, "bad_predicate"),
        (delete, {"predicates": (strange,)}, InvalidInput, "bad_predicate"),
        (delete, {"predicates": (other_type,)}, InvalidInput, "bad_predicate"),
        (update, {"predicates": (expression,), "scan": b"\xff"}, InvalidInput, "bad_predicate"),
        (delete, {"predicates": (expression,), "base_sequence": 3}, InvalidInput, "bad_argument"),
        (delete, {"predicates": (expression,), "rows_hidden": -1}, InvalidInput, "bad_argument"),
        (delete, {"predicates": (expression,), "rows_hidden": (1 << 48) + 1}, InvalidInput, "bad_argument"),
        (delete, {"removed": removed, "rows_hidden": 1}, InvalidInput, "bad_argument"),
        (delete, {"removed": removed, "rows_kept": 1 << 64}, InvalidInput, "bad_argument"),
        (delete, {"predicates": (expression,), "table_id": author.id}, InvalidInput, "table_replaced"),
        (delete, {"predicates": (expression,) * 1001}, InvalidInput, "too_many_predicates"),
        (delete, {"predicates": (b"no predicate",) * 1001}, InvalidInput, "too_many_predicates"),
        (delete, {"predicates": (b"x" * (1 << 18), b"x")}, InvalidInput, "too_many_predicates"),
        (compact, {"predicates": (expression,), "removed": removed}, InvalidInput, "bad_argument"),
        (compact, {"segments": segments}, InvalidInput, "bad_argument"),
        (compact, {"segments": many, "removed": removed}, InvalidInput, "bad_data"),
        (delete, {"removed": removed * 2}, InvalidInput, "bad_data"),
        (delete, {"removed": (lying,)}, InvalidInput, "bad_data"),
        (delete, {"removed": (late,), "sources": (table.segments[0].path,)}, InvalidInput, "bad_data"),
        (delete, {"removed": (msgspec.structs.replace(removed[0], row_count=1),)}, InvalidInput, "bad_data"),
        (delete, {"removed": (msgspec.structs.replace(removed[0], sha256=bytes(32)),)}, InvalidInput, "bad_data"),
        (update, {"segments": segments * 2}, InvalidInput, "bad_data"),
        (update, {"segments": (foreign,)}, Expired, "upload_expired"),
        (update, {"segments": segments, "changes": (foreign,)}, Expired, "upload_expired"),
        (delete, {"removed": (foreign,)}, Conflict, "rows_changed"),
    ]  # fmt: skip
    before = side.journal.head.version
    for mode, parts, error, kind in cases:
        fields = {"table_id": side.table_id, "base_sequence": 2} | parts
        operation = ChangeRows(namespace="a", name="t", mode=mode, **fields)  # type: ignore[arg-type]
        transaction = Transaction(id=author.id, begin_version=before, operations=(operation,))
        try:
            await raises(error, side.journal.commit(transaction), kind=kind)
        except AssertionError as failure:
            raise AssertionError(f"{mode} with {parts}") from failure
        assert side.journal.head.version == before
    ice = ChangeRows(
        namespace="a", name="none", table_id=side.table_id, base_sequence=0, mode=delete, removed=removed
    )
    await raises(AlpheusError, side.lake.commit(side.journal, ice), kind="no_table")


def with_rows(file: DataFile, count: int) -> DataFile:
    counts = dict.fromkeys((1, 2), count)
    return msgspec.structs.replace(file, row_count=count, value_counts=counts, null_counts={})


async def test_claimed_rows_never_overflow() -> None:
    """This holds for the rows of a file, of a table, and of ten merged segments."""
    side = await Lakeside.make()
    most = 1 << 48
    flawed = with_rows(await side.file(side.lake.identities.uuid7(), side.new_rows([1])), most + 1)
    await raises(InvalidInput, side.segment([flawed]), kind="bad_data")

    async def append(count: int) -> None:
        id = side.lake.identities.uuid7()
        segment = await side.segment([with_rows(await side.file(id, side.new_rows([1])), count)])
        operation = AppendFiles(namespace="a", name="t", table_id=side.table_id, segments=(segment,))
        begin = side.journal.head.version
        await side.journal.commit(Transaction(id=id, begin_version=begin, operations=(operation,)))

    for count in (most - 10, *[1] * 10):
        await append(count)
    table = await side.table()
    assert table.row_count == most
    assert len(table.segments) < 11
    await raises(InvalidInput, append(1), kind="too_large")
    await side.sound()


async def test_a_delete_with_change_files_meets_what_others_deleted() -> None:
    """A feed would report the rows twice. Without change files the feed reports them once, and both transactions
    commit."""
    for has_changes in (False, True):
        side = await make_lakeside([1, 2], [3])
        author, other = await side.author(), await side.author()
        first = (await side.files(await side.table()))[:1]
        changes = await author.write_segment(side.new_rows([1, 2])) if has_changes else ()
        operation = ChangeRows(
            namespace="a",
            name="t",
            table_id=side.table_id,
            base_sequence=author.base_sequence,
            mode=ChangeMode.DELETE,
            removed=await author.list_segment(first),
            changes=changes,
        )
        await other.delete(equals(1), on_read=True)
        await side.journal.commit(other.transaction())
        commit = side.journal.commit(
            Transaction(id=author.id, begin_version=author.begin, operations=(operation,))
        )
        if has_changes:
            await raises(Conflict, commit, kind="rows_changed")
        else:
            await commit
            assert await ids_of(side) == [3]


async def test_how_many_are_compared() -> None:
    """Within the budgets, files and predicates decide. Above the budgets, rows that were not compared count as a
    conflict."""

    async def outcome(rival: Where, mine: Sequence[Where]) -> bool:
        """Return whether an update by predicates is refused."""
        side = await make_lakeside([1], [2, 4])
        author, other = await side.author(), await side.author()
        await other.delete(rival, on_read=True)
        await side.journal.commit(other.transaction())
        operation = ChangeRows(
            namespace="a",
            name="t",
            table_id=side.table_id,
            base_sequence=author.base_sequence,
            mode=ChangeMode.UPDATE,
            predicates=tuple(one.expression for one in mine),
        )
        transaction = Transaction(id=author.id, begin_version=author.begin, operations=(operation,))
        (answer,) = await side.journal.commit_group([transaction])
        assert answer is not None
        assert isinstance(answer, Committed) or answer.kind == "rows_changed", answer
        return not isinstance(answer, Committed)

    odd = Where(encode(And((Compare(reference(ID), ">", 0), Compare(reference(TAG), "=", "x")))), bool)
    assert await outcome(odd, [equals(2)])
    assert not await outcome(below(1), [equals(2)])
    assert not await outcome(equals(1), [equals(2), equals(7)])
    assert not await outcome(equals(2), [equals(4), equals(7)])
    with mock.patch.object(row_changes, "COMPARED_MAX", 1):
        assert not await outcome(equals(1), [equals(2), equals(7)])  # no file has both values
        assert await outcome(equals(2), [equals(4), equals(7)])  # a file has both values, but no row has both
        assert await outcome(below(3), [equals(2), equals(7)])
    with mock.patch.object(row_changes, "LOOKS_MAX", 9):
        assert await outcome(odd, [equals(7), equals(8)])
    assert not await outcome(odd, [equals(7), equals(8)])
    with mock.patch.object(row_changes, "LOOKS_MAX", 10):
        assert not await outcome(odd, [equals(7), equals(8)])


async def test_additions_of_all_segments_are_counted_together() -> None:
    for limit, is_refused in ((2, False), (1, True)):
        side = await make_lakeside([1])
        author = await side.author()
        await author.update(equals(1), lambda id: id, on_read=False)
        for id in (5, 6):
            other = await side.author()
            await other.append([id])
            await side.journal.commit(other.transaction())
        with mock.patch.object(row_changes, "JUDGED_FILES_MAX", limit):
            if is_refused:
                await raises(Conflict, side.journal.commit(author.transaction()), kind="rows_changed")
            else:
                await side.journal.commit(author.transaction())


async def test_one_transaction_adds_a_file_once() -> None:
    """Two segments may not both list the file, even when the first segment is no longer in the table."""
    side = await make_lakeside([1])
    author = await side.author()
    file = await side.file(author.id, side.new_rows([5]))
    appends = [
        AppendFiles(namespace="a", name="t", table_id=side.table_id, segments=(await side.segment([file]),))
        for _ in range(2)
    ]
    author.operations += appends
    error = await raises(InvalidInput, side.journal.commit(author.transaction()), kind="bad_data")
    assert error.path == file.path


async def test_every_lost_segment_and_data_file_is_named() -> None:
    with (
        mock.patch.object(segments_module, "FANOUT", 3),
        mock.patch("alpheus_journal.execute.rules.rows.FANOUT", 3),
    ):
        side = await make_lakeside([1, 2], [3], [4], [5, 6])
        author = await side.author()
        await author.delete(equals(1), on_read=True)
        await author.update(equals(5), lambda id: 7, on_read=False)
        await side.journal.commit(author.transaction())
    await side.sound()
    storage = side.lake.storage
    for prefix in ("manifest/", "data/"):
        for path in await listed(storage, prefix):
            data = await storage.read(path, size_max=1 << 24)
            await storage.delete(path)
            found = [one async for one in (await side.lake.open()).check() if isinstance(one, Finding)]
            assert path in {one.path for one in found}, path
            await storage.put(path, data)
    await side.sound()


async def test_a_definition_that_lists_other_files_is_named() -> None:
    """The definition has another sequence, fewer predicates, or a missing segment; its sums are right."""
    side = await make_lakeside([1, 2], [3])
    author = await side.author()
    await author.delete(equals(1), on_read=True)
    await author.compact(lambda one: one.sequence == 2)
    await side.journal.commit(author.transaction())
    (stored,) = (await side.journal.load(None, [NAME])).objects
    assert stored is not None
    table = await side.table()
    first = msgspec.structs.replace(table.segments[0], sequence=2)
    for wrong in (
        msgspec.structs.replace(table, segments=(first, *table.segments[1:])),
        msgspec.structs.replace(table, segments=table.segments[1:]),
        msgspec.structs.replace(table, delete_predicates=()),
    ):
        await side.lake.storage.put(stored.path, encode_definition(wrong))
        found = [one async for one in (await side.lake.open()).check() if isinstance(one, Finding)]
        assert stored.path in {one.path for one in found}
    await side.lake.storage.put(stored.path, stored.definition)
    await side.sound()


async def test_a_damaged_segment_stops_what_needs_it_and_nothing_else() -> None:
    side = await make_lakeside(*[[number] for number in range(9)])
    damaged = (await side.table()).segments[4]
    good = await side.lake.storage.read(damaged.path, size_max=1 << 20)
    for number in range(9, 12):  # the first commit merges the ten oldest
        author = await side.author()
        await author.append([number])
        await side.lake.storage.put(damaged.path, good[:-3])
        await (await side.lake.open()).commit(author.transaction())
        await side.lake.storage.put(damaged.path, good)
        await side.journal.refresh()
        assert await ids_of(side) == sorted(range(number + 1), key=str)
    table = await side.table()
    assert damaged in table.segments
    assert len(table.segments) == 3
    author = await side.author()
    await author.delete(equals(4), on_read=False)
    await side.lake.storage.put(damaged.path, good[:-3])
    error = await raises(
        Corrupt, (await side.lake.open()).commit(author.transaction()), kind="corrupt_manifest"
    )
    assert error.path == damaged.path
