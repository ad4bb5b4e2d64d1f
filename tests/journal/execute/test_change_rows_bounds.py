"""Changing rows in large numbers: refusals, work in threads, and limits of the work done for other transactions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.commit import base as base_module
from alpheus_journal.commit import manifest_cache as segment_reader
from alpheus_journal.errors import AlpheusError, InvalidInput
from alpheus_journal.execute import execute as operations
from alpheus_journal.execute.rules import row_changes
from alpheus_journal.execute.rules import rows as row_operations
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import Segment, TableDef
from alpheus_journal.model.operations import (
    AppendFiles,
    ChangeMode,
    ChangeRows,
    CreateTable,
    DropTable,
    Operation,
    RenameObject,
    Transaction,
    Undrop,
)
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.tables import manifest_merge as segments_module
from alpheus_journal.testing import raises
from alpheus_journal.testing.models.tables import (
    NAME,
    Author,
    Lakeside,
    Row,
    below,
    equals,
    ids_of,
    make_lakeside,
)

# --- the base sequence -----------------------------------------------------------------------------


def hiding(side: Lakeside, base_sequence: int, **options: Any) -> ChangeRows:
    side.meanings[equals(1).expression] = equals(1).matches
    return ChangeRows(
        namespace="a",
        name="t",
        table_id=side.table_id,
        base_sequence=base_sequence,
        mode=ChangeMode.DELETE,
        predicates=(equals(1).expression,),
        **options,
    )


async def test_nobody_saw_what_came_after_the_begin_version() -> None:
    side = await make_lakeside([1], [2])
    begin = side.journal.head.version
    other = await side.author()
    await other.append([1])
    await side.journal.commit(other.transaction())

    def claims(sequence: int) -> Transaction:
        id = side.lake.identities.uuid7()
        return Transaction(id=id, begin_version=begin, operations=(hiding(side, sequence),))

    error = await raises(InvalidInput, side.journal.commit(claims(3)), kind="bad_argument")
    assert f"above 2, which the table had at version {begin}" in error.message
    assert error.version == begin
    await side.journal.commit(claims(2))
    # A lower base sequence is accepted: the predicate then applies to fewer segments.
    await side.journal.commit(claims(0))
    table = await side.table()
    assert [predicate.sequence for predicate in table.delete_predicates] == [2]


@pytest.mark.parametrize("walked", [1_000, 0])
async def test_the_begin_version_is_known_from_memory_or_from_its_tree(
    walked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_module, "EVENTS_WALKED_MAX", walked)
    side = await make_lakeside([1], [2])
    begin = side.journal.head.version
    for _ in range(2):
        other = await side.author()
        await other.append([1])
        await side.journal.commit(other.transaction())
    fresh = await side.lake.open()
    for journal in (side.journal, fresh):
        id = side.lake.identities.uuid7()
        claim = Transaction(id=id, begin_version=begin, operations=(hiding(side, 3),))
        error = await raises(InvalidInput, journal.commit(claim), kind="bad_argument")
        assert f"above 2, which the table had at version {begin}" in error.message


async def test_a_base_sequence_at_the_newest_version_is_judged_too() -> None:
    side = await make_lakeside([1])
    author = await side.author()
    await author.append([5])
    first = author.operations[0]
    operations = (first, hiding(side, 2))
    transaction = Transaction(id=author.id, begin_version=author.begin, operations=operations)
    await raises(InvalidInput, side.journal.commit(transaction), kind="bad_argument")
    await side.journal.commit(msgspec.structs.replace(transaction, operations=(first, hiding(side, 1))))


async def test_what_was_renamed_or_brought_back_by_the_transaction_is_not_judged_by_its_name() -> None:
    """At the begin version the name belonged to another table, or to the same table with fewer rows."""
    side = await make_lakeside([1], [2])
    id = side.lake.identities.uuid7()
    other = CreateTable(
        namespace="a",
        name="u",
        table_id=side.lake.identities.uuid4(),
        columns=(await side.table()).columns,
    )
    await side.lake.commit(side.journal, other)  # its sequence is 0
    rename = RenameObject(kind=Kind.TABLE, namespace="a", name="t", new_namespace="a", new_name="u")
    begin = side.journal.head.version
    changed = msgspec.structs.replace(hiding(side, 2), name="u")
    operations: tuple[Operation, ...] = (DropTable(namespace="a", name="u"), rename, changed)
    await side.journal.commit(Transaction(id=id, begin_version=begin, operations=operations))
    await side.lake.commit(side.journal, msgspec.structs.replace(rename, name="u", new_name="t"))
    assert [predicate.sequence for predicate in (await side.table()).delete_predicates] == [2]

    begin = side.journal.head.version
    author = await side.author()
    await author.append([3])
    back = Undrop(kind=Kind.TABLE, namespace="a", name="t", new_namespace="a", new_name="t", version=begin)
    sequence = (await side.table()).sequence
    operations = (
        *author.operations,
        DropTable(namespace="a", name="t"),
        back,
        hiding(side, sequence + 1),
    )
    await side.journal.commit(Transaction(id=author.id, begin_version=begin, operations=operations))
    assert [predicate.sequence for predicate in (await side.table()).delete_predicates] == [2, sequence + 1]


# --- how much is rewritten -------------------------------------------------------------------------


async def wide(files: int) -> Lakeside:
    """Return a lake whose table has one segment of `files` files."""
    side = await Lakeside.make()
    author = await side.author()
    await author.append(range(files), files)
    await side.journal.commit(author.transaction())
    return side


async def removing(side: Lakeside, *ids: int) -> Author:
    """Return an author with one delete operation for each id."""
    author = await side.author()
    for id in ids:
        await author.delete(equals(id), on_read=False)
    return author


async def test_segments_that_are_made_anew_have_a_bound_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    side = await wide(20)
    (segment,) = (await side.table()).segments
    size = segment.segment_size_bytes
    monkeypatch.setattr(fmt, "DEFINITIONS_SIZE_BYTES_MAX", size)  # it does not bound rewritten segments
    await side.journal.commit((await removing(side, 1, 2)).transaction())
    author = await removing(side, 3, 4, 5)
    monkeypatch.setattr(fmt, "SEGMENTS_MADE_SIZE_BYTES_MAX", 2 * size)
    error = await raises(InvalidInput, side.journal.commit(author.transaction()), kind="too_large")
    assert "rewrites manifest segments of" in error.message
    assert "table a.t" in error.message
    assert "in one operation" in error.hint
    author = await side.author()
    await author.delete(below(10), on_read=False)
    await side.journal.commit(author.transaction())
    assert await ids_of(side) == list(range(10, 20))


async def test_what_a_group_makes_anew_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    side = await wide(20)
    (segment,) = (await side.table()).segments
    monkeypatch.setattr(fmt, "SEGMENTS_MADE_SIZE_BYTES_MAX", segment.segment_size_bytes * 3 // 2)
    both = [(await removing(side, id)).transaction() for id in (1, 2)]
    first, second = await side.journal.commit_group(both)
    assert isinstance(first, Committed)
    assert second is None, "left for the next group"
    (again,) = await side.journal.commit_group(both[1:])
    assert isinstance(again, Committed)


async def test_nobody_merges_without_end_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next transaction merges the small segments of some, not all, of many tables."""
    side = await Lakeside.make()
    ids = [side.table_id, side.lake.identities.uuid4()]
    other = CreateTable(namespace="a", name="u", table_id=ids[1], columns=(await side.table()).columns)
    await side.lake.commit(side.journal, other)

    async def append() -> None:
        id, appends = side.lake.identities.uuid7(), []
        for name, side.table_id in zip("tu", ids, strict=True):
            segment = await side.segment([await side.file(id, [Row(1, "x")])])
            appends.append(AppendFiles(namespace="a", name=name, table_id=side.table_id, segments=(segment,)))
        begin = side.journal.head.version
        await side.journal.commit(Transaction(id=id, begin_version=begin, operations=tuple(appends)))

    async def counts() -> list[int]:
        names = [NAME, fmt.table_name("a", "u")]
        objects = (await side.journal.load(side.journal.head.version, names)).objects
        tables = [
            operations.decode_as(n, o, operations.TableDef) for n, o in zip(names, objects, strict=True)
        ]  # type: ignore[attr-defined,arg-type]
        return [len(table.segments) for table in tables]

    monkeypatch.setattr(row_operations, "MERGED_SIZE_BYTES_MAX", 1)
    for _ in range(segments_module.FANOUT):
        await append()
    assert await counts() == [1, segments_module.FANOUT]
    await append()
    assert await counts() == [2, 2]


# --- reads -----------------------------------------------------------------------------------------


class Counted(MemoryStorage):
    """Count the requests for manifest segments."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[int] = []

    async def read_many(self, paths: Sequence[str], *, size_max: int) -> dict[str, bytes]:
        count = sum(path.startswith("manifest/") for path in paths)
        if count:
            self.requests.append(count)
        return await super().read_many(paths, size_max=size_max)


async def test_what_many_tables_merge_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without segments in memory reads them in one request, and executes each operation once."""
    monkeypatch.setattr(segments_module, "FANOUT", 3)
    monkeypatch.setattr(row_operations, "FANOUT", 3)
    storage = Counted()
    side = await Lakeside.make(storage)
    names = [f"t{number}" for number in range(5)]
    columns = (await side.table()).columns
    creates = [
        CreateTable(namespace="a", name=name, table_id=side.lake.identities.uuid4(), columns=columns)
        for name in names
    ]
    await side.lake.commit(side.journal, *creates)

    async def append(journal: Journal) -> None:
        id, appends = side.lake.identities.uuid7(), []
        for create in creates:
            side.table_id = create.table_id
            segment = await side.segment([await side.file(id, [Row(1, "x")])])
            operation = AppendFiles(
                namespace="a", name=create.name, table_id=create.table_id, segments=(segment,)
            )
            appends.append(operation)
        begin = journal.head.version
        await journal.commit(Transaction(id=id, begin_version=begin, operations=tuple(appends)))

    await append(side.journal)
    await append(side.journal)
    fresh = await side.lake.open()
    executions = 0
    real = operations.EXECUTE_RULES[AppendFiles].run.run

    def counting(*args: Any) -> Any:
        nonlocal executions
        executions += 1
        return real(*args)

    rule = operations.EXECUTE_RULES[AppendFiles]
    monkeypatch.setitem(
        operations.EXECUTE_RULES, AppendFiles, rule._replace(run=operations.Stepwise(counting))
    )
    storage.requests.clear()
    await append(fresh)
    assert storage.requests == [5, 10], "what comes, and what is merged"
    assert executions == 5
    tables = await fresh.load(fresh.head.version, [fmt.table_name("a", name) for name in names])
    for stored in tables.objects:
        assert stored is not None
        definition = decode_definition(Kind.TABLE, stored.definition, stored.path)
        assert isinstance(definition, TableDef)
        assert len(definition.segments) == 1


# --- work in threads -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_much", [False, True])
async def test_much_is_looked_at_in_a_thread(is_much: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads judge rivals, check incoming segments, and rewrite segments."""
    threads: dict[str, set[bool]] = {}

    def noted(module: object, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def note(*args: Any, **options: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread() is threading.main_thread())
            return real(*args, **options)

        monkeypatch.setattr(module, name, note)

    noted(row_changes, "judge_of")
    noted(row_changes, "remove_files")
    noted(row_operations, "merge_due_segments")
    noted(row_operations, "check_segment")
    noted(segment_reader, "open_segment")
    if is_much:
        for module in (operations, segment_reader):
            monkeypatch.setattr(module, "OFFLOADED_SIZE_BYTES_MIN", 1)
    monkeypatch.setattr(segments_module, "FANOUT", 2)
    monkeypatch.setattr(row_operations, "FANOUT", 2)
    side = await make_lakeside([1], [2])
    author = await side.author()
    await author.update(equals(1), lambda id: 7, on_read=False)
    other = await side.author()
    await other.append([5])
    await side.journal.commit(other.transaction())
    fresh = await side.lake.open()
    threads.clear()
    await fresh.commit(author.transaction())
    assert sorted(row.id or 0 for row in await side.now(fresh)) == [2, 5, 7]
    noted_names = ("judge_of", "remove_files", "merge_due_segments", "check_segment", "open_segment")
    assert threads == {name: {not is_much} for name in noted_names}


# --- numbers ---------------------------------------------------------------------------------------

NUMBERS = (-1, 1 << 48, 1 << 63, 1 << 64, 1 << 80)


@pytest.mark.parametrize("number", NUMBERS)
async def test_numbers_that_cannot_be_are_refused(number: int) -> None:
    """An impossible number in a request commits nothing, and the catalog stays usable."""
    side = await make_lakeside([1], [2])
    author = await side.author()
    await author.change(ChangeMode.MERGE, equals(1), side.new_rows([5]), on_read=True)
    (good,) = author.operations
    assert isinstance(good, ChangeRows)
    change = (await author.write_segment([Row(1, "x")]))[0]
    good = msgspec.structs.replace(good, changes=(change,))
    begin = side.journal.head.version

    async def asked(**options: Any) -> AlpheusError | Committed | None:
        operation = msgspec.structs.replace(good, **options)
        transaction = Transaction(id=author.id, begin_version=begin, operations=(operation,))
        (answer,) = await side.journal.commit_group([transaction])
        return answer

    for field in ("base_sequence", "rows_hidden", "rows_kept", "rows_dead"):
        if (field, number) != ("rows_hidden", 1 << 48):
            assert isinstance(await asked(**{field: number}), InvalidInput), field
    fields = [field for field in Segment.__struct_fields__ if field not in ("path", "sha256")]
    for which in ("segments", "changes"):
        (segment,) = getattr(good, which)
        for field in fields:
            if number == 1 << 48 and field.endswith("sequence"):
                continue  # the field means nothing there
            wrong = msgspec.structs.replace(segment, **{field: number})
            answer = await asked(**{which: (wrong,)})
            if isinstance(answer, Committed):
                pytest.fail(f"{which}: {field}={number} was taken")
            assert isinstance(answer, InvalidInput), (which, field)
    assert side.journal.head.version == begin
    assert isinstance(await asked(), Committed)
    await side.sound()
