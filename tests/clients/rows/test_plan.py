"""Plans: which files are read, what remains to be done with each file, and why other files are skipped."""

from __future__ import annotations

import random

import msgspec
import pytest

from alpheus.rows.plan import plan, predicates_at
from alpheus_journal.errors import Corrupt
from alpheus_journal.model.definitions import Column, DeletePredicate, PartitionField, TableDef
from alpheus_journal.predicate import IsNull, Predicate, all_of, any_of, compare, encode, one_of
from alpheus_journal.tables.columns import encode_bound
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.testing.models.predicates import (
    COLUMNS,
    file_of,
    random_predicate,
    random_rows,
    random_value,
)

ID = Column(id=1, name="id", type="INT8")
NAME = Column(id=2, name="name", type="VARCHAR")


def file(number: int, low: int, high: int, *, rows: int = 10, name: str = "", nulls: int = 0) -> DataFile:
    """Return a file of ids from low to high. `name` is its partition, if given."""
    counts = {1: rows, 2: rows} if name else {1: rows}
    bounds = {1: (encode_bound(ID, low), encode_bound(ID, high))}
    return DataFile(
        path=f"data/t/x/w/{number}.parquet",
        row_count=rows,
        size_bytes=100,
        value_counts=counts,
        null_counts={1: nulls},
        lower_bounds={key: bound[0] for key, bound in bounds.items()},
        upper_bounds={key: bound[1] for key, bound in bounds.items()},
        partition={2: name.encode()} if name else {},
    )


def table(*predicates: tuple[int, Predicate], spec: tuple[PartitionField, ...] = ()) -> TableDef:
    return TableDef(
        id="t",
        columns=(ID, NAME),
        next_column_id=3,
        sequence=100,
        partition_spec=spec,
        delete_predicates=tuple(
            DeletePredicate(
                sequence=sequence,
                expression=encode(predicate),
                transaction_id="x",
                committed_sequence=sequence + 1,
            )
            for sequence, predicate in predicates
        ),
    )


def paths(files: object) -> list[int]:
    return [int(one.file.path.split("/")[-1].split(".")[0]) for one in files]  # type: ignore[attr-defined]


def test_files_without_a_row_that_is_meant_are_skipped() -> None:
    files = [(file(n, n * 10, n * 10 + 9), 1) for n in range(5)]
    made = plan(table(), files, all_of(compare(ID, ">=", 15), compare(ID, "<", 40)))
    assert paths(made.files) == [1, 2, 3]
    assert [one.is_filtered for one in made.files] == [True, False, False]
    assert paths(made.skipped) == [0, 4]
    assert made.reason(made.skipped[0]) == "never: `id` >= 15; values of id are at least 0 and at most 9"
    assert made.exact_count is None
    assert plan(table(), files, compare(ID, ">=", 20)).exact_count == 30
    assert plan(table(), files).exact_count == 50


def test_a_predicate_goes_with_the_files_at_or_below_it_that_it_may_match() -> None:
    under, over = (10, compare(ID, "<", 15)), (20, one_of(ID, [31, 45]))
    files = [(file(n, n * 10, n * 10 + 9), sequence) for n in range(5) for sequence in (10, 11, 21)]
    made = plan(table(under, over), files)
    left = {(int(one.file.path.split("/")[-1][0]), one.sequence): len(one.predicates) for one in made.files}
    assert left == {
        (0, 11): 0, (0, 21): 0, (1, 10): 1, (1, 11): 0, (1, 21): 0, (2, 10): 0, (2, 11): 0, (2, 21): 0,
        (3, 10): 1, (3, 11): 1, (3, 21): 0, (4, 10): 1, (4, 11): 1, (4, 21): 0,
    }  # fmt: skip
    (hidden,) = made.skipped
    assert (hidden.sequence, hidden.hidden_by) == (10, under[1])
    assert "all its rows are deleted: always: `id` < 15" in made.reason(hidden)
    assert predicates_at(made.table, 10) == (under[1], over[1])
    assert predicates_at(made.table, 11) == (over[1],)
    assert predicates_at(made.table, 21) == ()


def test_groups_are_of_files_of_which_the_same_is_left_to_do() -> None:
    files = [(file(n, n * 10, n * 10 + 9), 1 + n % 2) for n in range(4)]
    made = plan(table((1, one_of(ID, [1, 22]))), files, compare(ID, ">", 4))
    groups = {(len(group.predicates), group.is_filtered): paths(group.files) for group in made.groups}
    assert groups == {(1, True): [0], (0, False): [1, 3], (1, False): [2]}
    assert sum(len(group.files) for group in made.groups) == len(made.files)


def test_files_without_rows_are_not_read() -> None:
    made = plan(table(), [(file(1, 0, 0, rows=0), 1)])
    assert (made.files, made.exact_count) == ((), 0)
    assert made.reason(made.skipped[0]) == "it has no rows"


def test_values_of_partitions_are_exact_where_bounds_are_cut() -> None:
    spec = (PartitionField(2),)
    long = "x" * 100
    one, other = file(1, 0, 9, name=long + "a"), file(2, 0, 9, name=long + "b")
    made = plan(table(spec=spec), [(one, 1), (other, 1)], compare(NAME, "=", long + "a"))
    assert paths(made.files) == [1]
    assert not made.files[0].is_filtered
    assert made.files[0].file == one, "statistics that plans sharpen do not leak"
    hidden = plan(table((1, compare(NAME, "=", long + "b")), spec=spec), [(one, 1), (other, 1)])
    assert paths(hidden.files) == [1]
    assert not hidden.files[0].predicates


def test_what_is_not_known_is_read() -> None:
    bare = DataFile(path="data/t/x/w/1.parquet", row_count=5, size_bytes=9, value_counts={1: 5})
    made = plan(table((1, IsNull(ID))), [(bare, 1)], compare(ID, "=", 3))
    assert made.files[0].is_filtered
    assert made.files[0].predicates == (IsNull(ID),)
    missing = DataFile(path="data/t/x/w/2.parquet", row_count=5, size_bytes=9)
    assert plan(table((1, IsNull(ID))), [(missing, 1)]).files == ()


def test_a_predicate_that_is_none_is_corrupt() -> None:
    broken = DeletePredicate(sequence=1, expression=b"\xff\xff", transaction_id="x", committed_sequence=2)
    definition = TableDef(id="t", columns=(ID,), sequence=2, delete_predicates=(broken,))
    with pytest.raises(Corrupt):
        plan(definition, [(file(1, 0, 1), 1)])


def test_a_plan_explains_itself() -> None:
    files = [(file(n, n * 10, n * 10 + 9), 1) for n in range(4)]
    made = plan(table((1, compare(ID, "=", 25))), files, compare(ID, ">=", 15))
    assert made.explain().splitlines() == [
        "where `id` >= 15",
        "read 3 of 4 files, 30 of 40 rows in them, 300 of 400 bytes",
        "the result has at most 30 rows; only a read counts those that are deleted or filtered",
        "read data/t/x/w/1.parquet: rows where `id` >= 15",
        "read data/t/x/w/2.parquet: all rows, without those deleted where `id` = 25",
        "read data/t/x/w/3.parquet: all rows",
        "skip data/t/x/w/0.parquet: never: `id` >= 15; values of id are at least 0 and at most 9",
    ]
    assert made.explain(lines_max=1).splitlines()[3:] == [
        "read data/t/x/w/1.parquet: rows where `id` >= 15",
        "and 3 more files",
    ]
    certain = plan(table((1, compare(ID, "=", 25))), files, compare(ID, ">=", 30)).explain().splitlines()
    assert certain[1:3] == [
        "read 1 of 4 files, 10 of 40 rows in them, 100 of 400 bytes",
        "the result has 10 rows",
    ]


def test_many_predicates_leave_what_each_alone_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many predicates leave what each alone leaves, whether they are looked up by values or judged one by one."""
    rng = random.Random(5)

    def term() -> Predicate:
        low = rng.randrange(-20, 220)
        return rng.choice(
            [
                one_of(ID, [low, low + rng.randrange(20)]),
                compare(ID, "=", low),
                compare(ID, "<", low - 150),
                IsNull(ID),
                all_of(compare(NAME, "=", "x"), compare(ID, "=", low)),
                any_of(compare(ID, "=", low), compare(ID, "=", low + 7)),
                any_of(compare(ID, "=", low), compare(NAME, "=", "y")),
                one_of(NAME, ["a", "z"]),
                compare(ID, "=", 1 << 40),
            ]
        )

    definition = table(*((rng.randrange(1, 9), term()) for _ in range(200)))
    files = [
        (
            file(n, n, n + rng.randrange(30), nulls=rng.choice([0, 0, 3]), name=rng.choice(["", "", "x"])),
            n % 10,
        )
        for n in range(200)
    ]
    files.append((DataFile(path="data/t/x/w/900.parquet", row_count=5, size_bytes=9, value_counts={1: 5}), 1))
    made = plan(definition, files)
    monkeypatch.setattr("alpheus.rows.plan.INDEXED_MIN", 1000)
    assert plan(definition, files) == made
    assert {len(one.predicates) for one in made.files} > {0, 1, 2}


@pytest.mark.parametrize("seed", range(12))
def test_an_index_of_predicates_leaves_out_only_what_judging_rules_out(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    columns = rng.sample(COLUMNS, 3)

    def term() -> Predicate:
        if rng.random() < 0.3:
            return random_predicate(rng, columns)
        column = rng.choice(columns)
        low, high = (random_value(rng, column) for _ in range(2))
        if rng.random() < 0.3:
            # These are more values than are looked through.
            return one_of(column, [random_value(rng, column) for _ in range(80)])
        return all_of(
            compare(column, rng.choice([">", ">=", "="]), low),
            compare(column, rng.choice(["<", "<=", "!="]), high),
            random_predicate(rng, columns, 1),
        )

    definition = msgspec.structs.replace(
        table(*((rng.randrange(1, 9), term()) for _ in range(60))), columns=tuple(columns)
    )
    files = []
    for number in range(60):
        found = file_of(rng, columns, random_rows(rng, columns, rng.choice([1, 1, 2, 3, 20])))
        if rng.random() < 0.1:  # counts of a leaf that was once below a list say nothing about rows
            counts = {column: count + 1 for column, count in found.value_counts.items()}
            found = msgspec.structs.replace(found, value_counts=counts)
        files.append(
            (msgspec.structs.replace(found, path=f"data/t/x/w/{number}.parquet"), rng.randrange(1, 9))
        )
    where = term()
    made = plan(definition, files, where), plan(definition, files)
    assert any(len(one.predicates) < 30 for one in made[1].files)
    monkeypatch.setattr("alpheus.rows.plan.INDEXED_MIN", 1000)
    assert (plan(definition, files, where), plan(definition, files)) == made


def test_of_ten_thousand_files_only_those_that_may_match_are_left() -> None:
    files = [(file(n, n * 10, n * 10 + 9), n % 100) for n in range(10_000)]
    made = plan(
        table((50, compare(ID, "<", 1000)), (30, one_of(ID, range(90_000, 91_000, 10)))),
        files,
        compare(ID, "<", 50_000),
    )
    expected_hidden = sum(1 for n in range(100) if n % 100 <= 50)
    assert len(made.files) == 5_000 - expected_hidden
    assert all(not one.predicates and not one.is_filtered for one in made.files)
    assert made.exact_count == 10 * len(made.files)
