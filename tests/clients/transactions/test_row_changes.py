"""Verbs that change rows: deletes, updates, merges, replacements and compaction, over both ways to a catalog.

`test_row_model` checks the results of any sequence of them.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import threading
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from small_table import SCHEMA, ids, name, refused, rows, space

from alpheus import Catalog
from alpheus.errors import AlpheusError, Conflict, InvalidInput
from alpheus.rows import file_writer
from alpheus.transactions import merge as merging
from alpheus.transactions.row_changes import CHANGE_TYPE
from alpheus_journal.model.operations import ChangeMode, ChangeRows
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import decode_segment

__all__ = ["name", "space"]

REMOTE = {
    "test_a_delete_hides_rows_and_writes_none", "test_a_rewriting_delete_tells_feeds_what_went",
    "test_a_large_update_rewrites", "test_a_merge_updates_and_inserts", "test_partitions_are_replaced",
    "test_compaction_puts_small_files_together", "test_a_conflict_over_rows_is_retryable",
    "test_tables_that_came_back_and_were_renamed",
}  # fmt: skip
"""Tests that run over a daemon in every run. Others do so in slow runs: all client code but the commit is shared."""


class Watched:
    """Keeps the operations that a transaction makes, before they are committed."""

    def __init__(self, catalog: Catalog, verb: Callable[[Any], object]) -> None:
        self.catalog = catalog
        with catalog.transaction() as tx:
            verb(tx)
            self.operations = tx.operations
        self.commit = tx.result

    @property
    def change(self) -> ChangeRows:
        (operation,) = self.operations
        assert isinstance(operation, ChangeRows)
        return operation

    def rows_of_changes(self) -> list[tuple[str, int]]:
        """Return the type and the id of each change."""
        storage, found = self.catalog.storage(), []
        for segment in self.change.changes:
            for file in self.files_of(segment):
                data = asyncio.run(storage.read(file.path, size_max=file.size_bytes))
                table = pq.read_table(pa.BufferReader(data))
                assert table.schema.field("_change_type").metadata[b"PARQUET:field_id"] == b"2147483546"
                found += [(row["_change_type"], row["id"]) for row in table.to_pylist()]
        return sorted(found)

    def files_of(self, segment: Any) -> tuple[DataFile, ...]:
        data = asyncio.run(self.catalog.storage().read(segment.path, size_max=1 << 24))
        return decode_segment(data, segment.path, table_id=self.change.table_id)


# --- delete ----------------------------------------------------------------------------------------


def test_a_delete_hides_rows_and_writes_none(catalog: Catalog, name: str) -> None:
    done = Watched(catalog, lambda tx: tx.delete(name, "id in (3, 15)"))
    assert done.commit is not None
    assert (done.commit.rows_added, done.commit.rows_removed) == (0, 2)
    assert (done.change.segments, done.change.removed, done.change.changes) == ((), (), ())
    assert len(done.change.predicates) == 1
    assert ids(catalog, name) == [id for id in range(20) if id not in (3, 15)]
    assert ids(catalog, name, "id < 5") == [0, 1, 2, 4]


def test_a_file_of_which_all_goes_is_taken_out(catalog: Catalog, name: str) -> None:
    done = Watched(catalog, lambda tx: tx.delete(name, "id < 12"))
    assert sum(segment.row_count for segment in done.change.removed) == 10
    assert done.change.rows_hidden == 2
    assert done.commit is not None
    assert done.commit.rows_removed == 12
    assert catalog.load_table(name).file_count == 1
    done = Watched(catalog, lambda tx: tx.delete(name, "true"))
    assert done.commit is not None
    assert done.commit.rows_removed == 8, "what was deleted before is not counted again"
    assert ids(catalog, name) == []


def test_nothing_to_delete_is_no_commit(catalog: Catalog, name: str) -> None:
    version = catalog.version()
    for where in ("id = 99", "n = 5", "null", "id is null"):
        assert catalog.delete(name, where).transaction_id == ""
    assert catalog.update(name, {"n": 1}, "id = 99").rows_added == 0
    assert catalog.compact(name, target_size=1).version == version
    assert catalog.version() == version


def test_a_rewriting_delete_tells_feeds_what_went(catalog: Catalog, name: str) -> None:
    done = Watched(catalog, lambda tx: tx.delete(name, "id in (3, 15)", mode="rewrite"))
    assert done.change.predicates == ()
    assert done.change.mode is ChangeMode.DELETE
    assert done.rows_of_changes() == [("delete", 3), ("delete", 15)]
    assert ids(catalog, name) == [id for id in range(20) if id not in (3, 15)]
    assert catalog.load_table(name).definition.delete_predicates == ()


def test_rows_that_were_deleted_stay_so_when_columns_go(catalog: Catalog, name: str) -> None:
    catalog.delete(name, "kind = 'a' and n > 50")
    catalog.update_table(name, drop_columns=["kind"], rename_columns={"n": "m"})
    catalog.update_table(name, add_columns={"kind": pa.string()})
    assert ids(catalog, name) == [id for id in range(20) if id % 2 or id <= 5]
    catalog.append(name, [{"id": 20, "m": 500, "kind": "a"}])
    catalog.compact(name)
    assert ids(catalog, name) == [*(id for id in range(20) if id % 2 or id <= 5), 20]
    assert catalog.load_table(name).definition.delete_predicates == ()


def test_a_field_with_a_default_is_deleted_by_rewriting(catalog: Catalog, space: str) -> None:
    """A field with a default is deleted by rewriting.

    Once its struct is dropped, no reader could tell where it was NULL.
    """
    name = f"{space}.s"
    catalog.create_table(name, pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.int32())]))]))
    catalog.append(name, [{"id": 1, "s": {"x": 1}}, {"id": 2, "s": None}])
    catalog.update_table(name, add_columns={"s.y": pa.int32()}, defaults={"s.y": 5})
    refused(InvalidInput, lambda: catalog.delete(name, "s.y = 5"), "bad_predicate", "rewrite")
    catalog.delete(name, "s.y = 5", mode="rewrite")
    assert ids(catalog, name) == [2]


# --- update ----------------------------------------------------------------------------------------


def test_a_small_update_hides_and_adds(catalog: Catalog, name: str) -> None:
    done = Watched(catalog, lambda tx: tx.update(name, {"kind": None, "n": 7}, "id = 3"))
    assert done.commit is not None
    assert (done.commit.rows_added, done.commit.rows_removed) == (1, 1)
    assert done.change.predicates
    assert not done.change.changes
    assert catalog.read(name, where="id = 3").to_pylist() == [{"id": 3, "kind": None, "n": 7}]


def test_rows_are_counted_that_changed(catalog: Catalog, name: str) -> None:
    """Changed rows are counted, but not rows that are only rewritten, nor rows that were deleted before."""
    catalog.delete(name, "id = 0")

    def counts(commit: Any) -> tuple[int, int]:
        return commit.rows_added, commit.rows_removed

    assert counts(catalog.delete(name, "id = 1", mode="rewrite")) == (0, 1)
    assert counts(catalog.update(name, {"n": 1}, "id in (2, 12)", mode="rewrite")) == (2, 2)
    new = [{"id": 3, "n": 1}, {"id": 99}]
    assert counts(catalog.merge(name, new, on="id", mode="rewrite")) == (2, 1)
    assert counts(catalog.merge(name, new, on="id", matched="delete", mode="rewrite")) == (0, 2)
    assert catalog.scan(name).count() == 17


def test_a_large_update_rewrites(catalog: Catalog, name: str) -> None:
    done = Watched(catalog, lambda tx: tx.update(name, {"kind": "z"}, "id in (1, 2, 3)"))
    assert done.change.predicates == ()
    assert done.rows_of_changes() == [
        ("update_postimage", 1), ("update_postimage", 2), ("update_postimage", 3),
        ("update_preimage", 1), ("update_preimage", 2), ("update_preimage", 3),
    ]  # fmt: skip
    found = catalog.read(name, where="id < 10")
    assert found.column("id").to_pylist() == list(range(10)), "in their places"
    assert found.column("kind").to_pylist() == ["a", "z", "z", "z", "a", "b", "a", "b", "a", "b"]


def test_values_may_be_computed_from_the_old_row(catalog: Catalog, name: str) -> None:
    change = {"n": pc.add(pc.field("n"), pc.field("id")), "id": pc.negate(pc.field("id"))}
    catalog.update(name, change, "id >= 18")
    assert catalog.read(name, where="id <= -18").to_pylist() == [
        {"id": -18, "kind": "a", "n": 198},
        {"id": -19, "kind": "b", "n": 209},
    ]


def test_an_update_of_what_it_looks_for_does_not_meet_itself(catalog: Catalog, name: str) -> None:
    for mode in ("predicate", "rewrite"):
        with catalog.transaction() as tx:
            tx.update(name, {"id": pc.field("id") + 1}, "id >= 18", mode=mode)
            tx.update(name, {"id": pc.field("id") - 1}, "id >= 19", mode=mode)
        assert ids(catalog, name) == list(range(20))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ["bad_argument", "changes nothing"]),
        ({"nope": 1}, ["bad_argument", "nope", "kind"]),
        ({"n": "x"}, ["bad_data", "'n'", "int32"]),
        ({"n": 1 << 40}, ["bad_data", "'n'"]),
        ({"kind": 1.5}, ["bad_data", "'kind'", "string"]),
        ({"n": pc.field("kind")}, ["bad_data", "'n'"]),
        ({"n": pc.field("nope")}, ["bad_data", "nope"]),
    ],
)
def test_updates_that_cannot_be(catalog: Catalog, name: str, change: Any, words: list[str]) -> None:
    refused(InvalidInput, lambda: catalog.update(name, change, "id = 1"), *words)
    assert catalog.read(name, where="id = 1").to_pylist() == rows(1, 2)


def test_an_amount_is_computed_with_decimals(catalog: Catalog, space: str) -> None:
    name = f"{space}.amounts"
    catalog.create_table(name, pa.table({"a": pa.array([Decimal("1.50")], pa.decimal128(10, 2))}))
    whole = {"a": pc.field("a") + 1}
    refused(InvalidInput, lambda: catalog.update(name, whole, "true"), "bad_data", "decimal.Decimal")
    other = {"a": pc.field("a").cast(pa.float64()).cast(pa.int32())}
    assert not refused(InvalidInput, lambda: catalog.update(name, other, "true"), "truncated").hint
    catalog.update(name, {"a": pc.field("a") + Decimal(1)}, "true")
    assert catalog.read(name)["a"].to_pylist() == [Decimal("2.50")]


# --- merge -----------------------------------------------------------------------------------------


def test_a_merge_updates_and_inserts(catalog: Catalog, name: str) -> None:
    new = [{"id": 3, "kind": "m", "n": 1}, {"id": 99, "kind": "m", "n": 2}]
    done = Watched(catalog, lambda tx: tx.merge(name, new, on="id"))
    assert done.commit is not None
    assert (done.commit.rows_added, done.commit.rows_removed) == (2, 1)
    assert done.rows_of_changes() == [("insert", 99), ("update_postimage", 3), ("update_preimage", 3)]
    assert catalog.read(name, where="kind = 'm'").to_pylist() == new
    assert len(ids(catalog, name)) == 21


@pytest.mark.parametrize("mode", ["predicate", "rewrite"])
def test_what_a_merge_does_is_chosen(catalog: Catalog, name: str, mode: Any) -> None:
    new = pa.table({"id": pa.array([3, 99], pa.int64()), "n": pa.array([1, 2], pa.int32())})
    catalog.merge(name, new, on=["id"], matched="ignore", mode=mode)
    assert catalog.read(name, where="id in (3, 99)").to_pylist() == [
        {"id": 3, "kind": "b", "n": 30},
        {"id": 99, "kind": None, "n": 2},
    ]
    done = Watched(
        catalog, lambda tx: tx.merge(name, new, on="id", matched="delete", unmatched="ignore", mode=mode)
    )
    assert done.rows_of_changes() == [("delete", 3), ("delete", 99)]
    assert ids(catalog, name, "id in (3, 99)") == []
    version = catalog.version()
    assert catalog.merge(name, new, on="id", unmatched="ignore", mode=mode).version == version


def test_columns_that_the_data_lacks_stay(catalog: Catalog, name: str) -> None:
    catalog.update_table(name, defaults={"kind": "fresh"})
    catalog.merge(name, [{"id": 3, "n": 1}, {"id": 99, "n": 2}], on="id")
    assert catalog.read(name, where="id in (3, 99)").to_pylist() == [
        {"id": 3, "kind": "b", "n": 1},
        {"id": 99, "kind": "fresh", "n": 2},
    ]


@pytest.mark.parametrize("mode", ["predicate", "rewrite"])
def test_columns_that_a_row_leaves_out_stay(catalog: Catalog, space: str, mode: Any) -> None:
    name = f"{space}.m"
    schema = pa.schema([("id", pa.int64()), ("q", pa.int64()), ("l", pa.list_(pa.string()))])
    catalog.create_table(name, schema)
    catalog.update_table(name, defaults={"q": 6})
    catalog.append(name, [{"id": 1, "q": 1, "l": ["a"]}, {"id": 2, "q": 2, "l": ["b"]}, {"id": 3, "q": 3}])
    data = [{"id": 1, "q": 9}, {"id": 2, "l": None}, {"id": 3, "q": None, "l": ["c"]}, {"id": 4}]
    catalog.merge(name, data, on="id", mode=mode)
    found = sorted(catalog.read(name).to_pylist(), key=lambda row: row["id"])
    assert [(row["q"], row["l"]) for row in found] == [(9, ["a"]), (2, None), (None, ["c"]), (6, None)]
    refused(
        InvalidInput, lambda: catalog.merge(name, [{"id": 5}, {"q": 5}], on="id"), "bad_data", "row 1", "'id'"
    )


def test_a_merge_of_no_rows_changes_nothing(catalog: Catalog, name: str) -> None:
    assert Watched(catalog, lambda tx: tx.merge(name, [], on="id")).commit is None
    refused(InvalidInput, lambda: catalog.merge(name, [], on="what"), "bad_argument", "'what'")


def test_a_time_that_python_has_not_is_named(catalog: Catalog, space: str) -> None:
    data = pa.table({"at": pa.array([2**62, 2**62], pa.timestamp("us"))})
    catalog.create_table(f"{space}.f", data.schema)
    refused(InvalidInput, lambda: catalog.merge(f"{space}.f", data, on="at"), "bad_data", str(2**62))


def test_no_time_of_pandas_is_null(catalog: Catalog, space: str) -> None:
    nat = pytest.importorskip("pandas").NaT
    name = f"{space}.n"
    schema = pa.schema([
        ("id", pa.int64()), ("at", pa.timestamp("us")), ("zoned", pa.timestamp("us", "UTC")), ("d", pa.date32()),
        ("l", pa.list_(pa.timestamp("us"))), ("s", pa.struct([("at", pa.date32())])),
        ("m", pa.map_(pa.string(), pa.date32())),
    ])  # fmt: skip
    catalog.create_table(name, schema)
    row = {"id": 1, "at": nat, "zoned": nat, "d": nat, "l": [nat], "s": {"at": nat}, "m": {"a": nat}}
    catalog.append(name, [row])
    expected = {
        "id": 1,
        "at": None,
        "zoned": None,
        "d": None,
        "l": [None],
        "s": {"at": None},
        "m": [("a", None)],
    }
    assert catalog.read(name).to_pylist() == [expected]
    catalog.update(name, {"d": dt.date(2026, 1, 1)}, "true")
    catalog.update(name, {"d": nat}, "true")
    assert catalog.read(name).to_pylist() == [expected]
    refused(InvalidInput, lambda: catalog.append(name, [{"id": nat}]), "bad_data", "'id'")


def test_a_key_that_is_there_twice_is_named(catalog: Catalog, name: str) -> None:
    twice = [*rows(3, 5), {"id": 4, "kind": "x", "n": 0}]
    refused(InvalidInput, lambda: catalog.merge(name, twice, on="id"), "bad_data", "id='4'", "twice")
    double = [{"id": 1, "kind": "x"}, {"id": 1, "kind": "y"}, {"id": 1, "kind": "y"}]
    error = refused(
        InvalidInput, lambda: catalog.merge(name, double, on=["kind", "id"]), "kind='y'", "id='1'"
    )
    assert "'x'" not in error.message
    catalog.merge(name, double[:2], on=["kind", "id"])
    assert ids(catalog, name, "kind in ('x', 'y')") == [1, 1]


def test_null_is_no_key(catalog: Catalog, name: str) -> None:
    unknown = [{"id": None, "kind": "x"}, {"id": None, "kind": "y"}, {"id": 3, "kind": None}]
    catalog.merge(name, unknown, on="id")
    catalog.merge(name, unknown, on="id")
    assert ids(catalog, name) == [None] * 4 + list(range(20))
    catalog.merge(name, unknown, on=["id", "kind"], unmatched="ignore")
    assert len(ids(catalog, name)) == 24


def test_a_merge_of_nothing_but_new_rows(catalog: Catalog, name: str) -> None:
    done = Watched(catalog, lambda tx: tx.merge(name, rows(20, 25), on="id"))
    assert (done.change.predicates, done.change.removed, done.change.changes) == ((), (), ())
    assert done.change.mode is ChangeMode.MERGE, "others that insert the same keys are found out"
    assert ids(catalog, name) == list(range(25))


def test_many_keys_are_merged_by_rewriting(
    catalog: Catalog, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "KEYS_MAX", 2)
    new = [{"id": id, "kind": "m", "n": 0} for id in (1, 12, 13, 40)]
    refused(InvalidInput, lambda: catalog.merge(name, new, on="id", mode="predicate"), "rewrite")
    done = Watched(catalog, lambda tx: tx.merge(name, new, on="id"))
    assert done.change.predicates == ()
    assert ids(catalog, name, "kind = 'm'") == [1, 12, 13, 40]
    assert len(ids(catalog, name)) == 21


def test_files_without_a_key_are_not_read(catalog: Catalog, name: str) -> None:
    (_, second) = catalog.scan(name).files
    asyncio.run(catalog.storage().delete(second.file.path))
    catalog.merge(name, [{"id": 3, "kind": "m", "n": 1}], on="id")
    catalog.delete(name, "id = 4")
    assert ids(catalog, name, "id < 10") == [0, 1, 2, 3, 5, 6, 7, 8, 9]


EARLY = dt.datetime(1969, 1, 1, tzinfo=dt.UTC)
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int2": (pa.int16(), [-3, 4]),
    "float": (pa.float64(), [0.0, math.nan, -math.inf]),
    "text": (pa.string(), ["", "ü", "x" * 200]),
    "bytes": (pa.binary(), [b"", b"\xff"]),
    "fixed": (pa.binary(2), [b"ab", b"cd"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "time": (pa.timestamp("us", "UTC"), [EARLY, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
    "decimal": (pa.decimal128(38, 3), [Decimal("-1.5"), Decimal("9" * 35 + ".999")]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("keys_max", [1000, 0])
def test_keys_of_any_type(
    catalog: Catalog, space: str, kind: str, keys_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "KEYS_MAX", keys_max)
    type_, values = KEYS[kind]
    name = f"{space}.k"
    catalog.create_table(name, pa.schema([("k", type_), ("v", pa.int32())]))
    catalog.append(name, [{"k": value, "v": 1} for value in (*values, None)])
    source = [{"k": -0.0 if value == 0.0 and kind == "float" else value, "v": 2} for value in values]
    catalog.merge(name, source, on="k", unmatched="ignore")
    assert Counter(catalog.read(name).column("v").to_pylist()) == {2: len(values), 1: 1}


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_every_nan_is_one_key(catalog: Catalog, space: str, kind: pa.DataType) -> None:
    """All NaN are one key, although 0 / 0 gives another sign than Python's NaN, and Arrow compares bits."""
    name = f"{space}.k"
    nans = pa.array([math.nan, -math.nan, 1.0], kind)
    assert len(pc.unique(nans)) == 3
    catalog.create_table(name, pa.schema([("k", kind), ("v", pa.int32())]))
    catalog.append(name, pa.table({"k": nans, "v": pa.array([1, 1, 1], pa.int32())}))
    catalog.merge(name, [{"k": math.nan, "v": 2}], on="k")
    assert Counter(catalog.read(name)["v"].to_pylist()) == {2: 2, 1: 1}
    refused(
        InvalidInput,
        lambda: catalog.merge(name, pa.table({"k": nans}), on="k"),
        "bad_data",
        "k='nan'",
        "twice",
    )


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ([{"id": 1}], {"on": []}, ["bad_argument", "on="]),
        ([{"id": 1}], {"on": ["id", "id"]}, ["bad_argument"]),
        ([{"id": 1}], {"on": "nope"}, ["bad_argument", "nope", "kind"]),
        ([{"n": 1}], {"on": "id"}, ["bad_data", "lacks the key 'id'"]),
        ([{"id": 1, "nope": 2}], {"on": "id"}, ["bad_data", "'nope'", "kind"]),
        ([{"id": "x"}], {"on": "id"}, ["bad_data", "'id'"]),
        ([{"id": 1}], {"on": "id", "matched": "replace"}, ["bad_argument", "update, delete, ignore"]),
        ([{"id": 1}], {"on": "id", "unmatched": "delete"}, ["bad_argument", "insert, ignore"]),
        ([{"id": 1}], {"on": "id", "mode": "fast"}, ["bad_argument", "predicate, rewrite"]),
        (7, {"on": "id"}, ["int", "data"]),
    ],
)
def test_merges_that_cannot_be(
    catalog: Catalog, name: str, data: Any, options: dict[str, Any], words: list[str]
) -> None:
    refused(InvalidInput, lambda: catalog.merge(name, data, **options), *words)
    assert ids(catalog, name) == list(range(20))


def test_arrow_scalars_are_values(catalog: Catalog, space: str) -> None:
    name = f"{space}.a"
    schema: list[tuple[str, pa.DataType]] = [
        ("n", pa.int32()), ("s", pa.string()), ("d", pa.date32()), ("p", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")), ("st", pa.struct([("x", pa.int32())])), ("l", pa.list_(pa.int8())),
    ]  # fmt: skip
    columns = [(key, pa.list_(pa.int32()) if key == "l" else type_) for key, type_ in schema]
    catalog.create_table(name, pa.schema(columns))
    catalog.append(name, [{"n": 1}])
    wanted = {
        "n": 5, "s": "z", "d": dt.date(2026, 3, 1), "p": Decimal("1.50"), "st": {"x": 7}, "l": [1, 2],
        "at": dt.datetime(2026, 3, 1, tzinfo=dt.UTC),
    }  # fmt: skip
    catalog.update(name, {key: pa.scalar(wanted[key], type_) for key, type_ in schema}, "true")
    assert catalog.read(name).to_pylist() == [wanted]
    coded = pa.scalar("y", pa.dictionary(pa.int8(), pa.string()))
    catalog.update(name, {"s": coded, "n": pa.scalar(None, pa.int64())}, "true")
    assert catalog.read(name).to_pylist() == [wanted | {"s": "y", "n": None}]


@pytest.mark.parametrize(
    ("set", "words"),
    [
        ({"n": pa.scalar(1 << 40)}, ["bad_data", "'n'"]),
        ({"n": pa.scalar("5")}, ["bad_data", "'5' (str)", "one value for all rows"]),
        ({"n": "n + 1"}, ["bad_data", 'field("n") + 1']),
        ({"n": pa.array([1])}, ["bad_data", "one value for all rows"]),
        ({"at": pa.scalar(0, pa.timestamp("us"))}, ["bad_data", "with a zone"]),
        ({"at": pa.scalar(1, pa.timestamp("ns", "UTC"))}, ["bad_data", "'at'"]),
        ({"at": "2026-03-01"}, ["bad_data", "give a datetime.datetime of microseconds with a zone"]),
        ({"n": pc.field("nope")}, ["bad_data", "nope", "columns: n, at"]),
        (
            {"at": pc.field("at"), "n": pc.field("n") / 0},
            ["'n' cannot be computed: divide by zero", "if_else"],
        ),
        (
            {"at": pc.field("at"), "n": pc.sum(pc.field("n"))},
            ["'n' cannot be", "expressions of one row only"],
        ),
        ({"n": pc.list_flatten(pc.field("n"))}, ["bad_data", "'n' cannot be computed"]),
        ("id = 1", ["bad_argument", "not a dict of columns and values"]),
        ([("n", 1)], ["bad_argument", "not a dict of columns and values"]),
        ({}, ["bad_argument", "changes nothing"]),
    ],
)
def test_values_of_updates_that_cannot_be(catalog: Catalog, space: str, set: Any, words: list[str]) -> None:
    name = f"{space}.u"
    catalog.create_table(name, pa.schema([("n", pa.int32()), ("at", pa.timestamp("us", "UTC"))]))
    catalog.append(name, [{"n": 1}])
    refused(InvalidInput, lambda: catalog.update(name, set, "true"), *words)
    assert catalog.read(name)["n"].to_pylist() == [1]


def test_null_into_a_required_column_is_refused(catalog: Catalog, space: str) -> None:
    name = f"{space}.r"
    catalog.create_table(
        name, pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.int32(), False)])
    )
    catalog.append(name, [{"id": 1, "v": 1}])
    refused(InvalidInput, lambda: catalog.update(name, {"v": None}, "id = 1"), "bad_data", "'v'", "required")
    nothing = pc.if_else(pc.field("v") > 0, pa.scalar(None, pa.int32()), pc.field("v"))
    refused(InvalidInput, lambda: catalog.update(name, {"v": nothing}, "true"), "bad_data", "'v'", "required")
    refused(InvalidInput, lambda: catalog.merge(name, [{"id": 2}], on="id"), "bad_data", "'v'", "required")
    catalog.merge(name, [{"id": 1}], on="id")
    refused(InvalidInput, lambda: catalog.overwrite(name, [{"id": 1, "v": None}], where="id = 1"), "'v'")
    assert catalog.read(name).to_pylist() == [{"id": 1, "v": 1}]


# --- overwrite -------------------------------------------------------------------------------------


def test_some_rows_are_replaced(catalog: Catalog, name: str) -> None:
    done = Watched(catalog, lambda tx: tx.overwrite(name, rows(13, 14), where="id >= 8"))
    assert done.commit is not None
    assert (done.commit.rows_added, done.commit.rows_removed) == (1, 12)
    assert sum(segment.row_count for segment in done.change.removed) == 10
    assert ids(catalog, name) == [*range(8), 13]
    catalog.overwrite(name, [], where="id < 4")
    assert ids(catalog, name) == [*range(4, 8), 13]
    catalog.overwrite(name, rows(0, 1), where="id > 100 or id = 0")
    assert ids(catalog, name) == [0, *range(4, 8), 13]


def test_data_outside_of_where_is_refused(catalog: Catalog, name: str) -> None:
    data = [*rows(8, 10), {"id": 3}, {"id": None}]
    refused(
        InvalidInput, lambda: catalog.overwrite(name, data, where="id >= 8"), "bad_data", "row 2", "`id` >= 8"
    )
    refused(InvalidInput, lambda: catalog.overwrite(name, data[-1:], where="id >= 8"), "bad_data", "row 0")
    assert ids(catalog, name) == list(range(20))


def test_partitions_are_replaced(catalog: Catalog, space: str) -> None:
    name = f"{space}.p"
    schema = pa.schema([("land", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int32())])
    catalog.create_table(name, schema, partition_by=["land", "day(at)"])
    days = [dt.datetime(2026, 3, day, hour, tzinfo=dt.UTC) for day in (1, 2) for hour in (0, 23)]
    old = [{"land": land, "at": day, "v": 0} for land in ("DE", "FR", None) for day in days]
    catalog.append(name, old)
    assert catalog.load_table(name).file_count == 6
    new = [{"land": "DE", "at": days[0], "v": 1}]
    first = {"land": "DE", "day(at)": dt.date(2026, 3, 1)}
    done = Watched(catalog, lambda tx: tx.overwrite(name, new, partitions=[first]))
    assert done.change.predicates == (), "files of it go whole"
    assert catalog.scan(name).count() == 11
    catalog.overwrite(name, [], partitions={"land": [None, "FR"], "at": ["2026-03-01", "2026-03-02"]})
    assert catalog.scan(name).count() == 7
    catalog.overwrite(name, [], partitions=pa.table({"land": ["FR", "DE"]}))
    head = catalog.version()
    none = pa.table({"land": pa.array([], pa.string()), "day(at)": pa.array([], pa.date32())})
    batch = pa.RecordBatch.from_arrays([pa.array([], pa.string())], ["land"])
    for computed in (none, batch):
        catalog.overwrite(name, [], partitions=computed)
        refused(InvalidInput, partial(catalog.overwrite, name, new, partitions=computed), "bad_data", "row 0")
    assert catalog.version() == head, "no partition is none, and nothing is replaced"
    left = catalog.read(name).to_pylist()
    assert {row["land"] for row in left} == {None}
    assert {row["at"].day for row in left} == {2}
    outside = [{"land": "IT", "at": days[0]}]
    refused(InvalidInput, lambda: catalog.overwrite(name, outside, partitions=[first]), "bad_data", "row 0")
    for partitions, words in (
        ([{"v": 1}], ["'v'", "land, day(at)"]),
        ([], ["names no partition", "computed keys"]),
        ({}, ["names no partition"]),
        ({"land": []}, ["names no partition", "computed keys"]),
        (pa.table({"v": pa.array([], pa.int32())}), ["'v'", "land, day(at)"]),
        (pa.table({}), ["names no partition"]),
        ([{}], ["does not name partitions", "a list of dicts"]),
        ("DE", ["does not name partitions"]),
        ({"DE"}, ["does not name partitions"]),
        ({"land": {"a": 1}}, ["is a dict", "a value or a list of values"]),
        ({"land": {"DE"}, "at": ["2026-03-01"]}, ["is a set", "lists of one length"]),
        ({"land": iter("DE")}, ["land=", "a value or a list of values"]),
        ([{"at": "yesterday"}], ["at='yesterday'", "day"]),
        ({"land": ["DE", "FR"], "at": [None]}, ["different lengths: 2 of land, 1 of at"]),
        ({"land": range(2)}, ["cannot be compared with '0' (int)"]),
        ([{"land": 5}], ["land"]),
    ):
        refused(InvalidInput, partial(catalog.overwrite, name, [], partitions=partitions), *words)
    refused(InvalidInput, lambda: catalog.overwrite(name, [], where="v = 1", partitions=[first]), "not both")


@pytest.mark.parametrize(
    "values",
    [2, [2], (2,), {2}, frozenset({2}), range(2, 3), {2: 0}.keys(), pa.array([2]), pa.scalar(2)],
    ids=lambda values: type(values).__name__,
)
def test_values_of_partitions_come_in_many_forms(catalog: Catalog, space: str, values: Any) -> None:
    name = f"{space}.f"
    catalog.create_table(name, pa.schema([("n", pa.int64())]), partition_by=["n"])
    catalog.append(name, [{"n": 1}, {"n": 2}, {"n": 3}])
    catalog.overwrite(name, [], partitions={"n": values})
    assert sorted(catalog.read(name)["n"].to_pylist()) == [1, 3]


@pytest.mark.parametrize(
    ("transform", "value", "count"), [("month", "2026-03", 3), ("year", 2026, 4), ("year", "2026", 4)]
)
def test_partitions_of_months_and_years(
    catalog: Catalog, space: str, transform: str, value: Any, count: int
) -> None:
    days = [
        dt.date(2026, 3, 1),
        dt.date(2026, 3, 15),
        dt.date(2026, 3, 31),
        dt.date(2026, 4, 1),
        dt.date(2025, 12, 31),
    ]
    catalog.create_table(f"{space}.d", pa.schema([("d", pa.date32())]), partition_by=[f"{transform}(d)"])
    catalog.append(f"{space}.d", [{"d": day} for day in days])
    done = catalog.overwrite(f"{space}.d", [], partitions=[{f"{transform}(d)": value}])
    assert (done.rows_removed, catalog.scan(f"{space}.d").count()) == (count, 5 - count)


@pytest.mark.parametrize(
    ("transform", "value"), [("day", "9999-12-31"), ("month", "9999-12"), ("year", 9999)]
)
@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC")], ids=str)
def test_the_last_partition_that_python_can_name(
    catalog: Catalog, space: str, transform: str, value: Any, kind: pa.DataType
) -> None:
    """Rows of the last partition that Python can name can be replaced. Many users put data without an end there."""
    name, key = f"{space}.d", f"{transform}(d)"
    days = pa.array([2932896, 2932530], pa.int32()).cast(pa.date32())  # 9999-12-31, 9998-12-30
    catalog.create_table(name, pa.schema([("d", kind)]), partition_by=[key])
    catalog.append(name, pa.table({"d": days.cast(pa.timestamp("s")).cast(pa.timestamp("us")).cast(kind)}))
    assert catalog.overwrite(name, [], partitions=[{key: value}]).rows_removed == 1


@pytest.mark.parametrize(
    ("transform", "value", "example"),
    [
        ("day", "2026-03", "2026-03-01"), ("day", "2026", "2026-03-01"), ("day", "20260301", "2026-03-01"),
        ("month", "2026", "2026-03"), ("month", "202603", "2026-03"), ("year", "26", "2026"),
    ],
)  # fmt: skip
def test_a_text_that_names_several_partitions_is_refused(
    catalog: Catalog, space: str, transform: str, value: str, example: str
) -> None:
    key = f"{transform}(d)"
    catalog.create_table(f"{space}.d", pa.schema([("d", pa.date32())]), partition_by=[key])
    error = refused(
        InvalidInput,
        lambda: catalog.overwrite(f"{space}.d", [], partitions={key: value}),
        "bad_argument",
        value,
    )
    assert error.hint == f"give a date, or text such as {example!r}"


def test_rows_are_replaced_by_a_field_with_a_default(catalog: Catalog, space: str) -> None:
    name = f"{space}.s"
    catalog.create_table(name, pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.int32())]))]))
    catalog.append(name, [{"id": 1, "s": {"x": 1}}, {"id": 2, "s": None}])
    catalog.update_table(name, add_columns={"s.y": pa.int32()}, defaults={"s.y": 5})
    new = pa.Table.from_pylist([{"id": 3, "s": {"x": 3, "y": 5}}])
    done = Watched(catalog, lambda tx: tx.overwrite(name, new.to_reader(), where="s.y = 5"))
    assert done.change.predicates == ()
    assert sum(segment.row_count for segment in done.change.changes) == 2, "one went, one came"
    assert ids(catalog, name) == [2, 3]


# --- files of partitions, in order -----------------------------------------------------------------


def test_files_lie_in_one_partition_and_are_in_order(
    catalog: Catalog, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is in one partition, and in order.

    If more rows wait than may, the largest groups are written first, and partitions have several files.
    """
    name = f"{space}.o"
    schema = pa.schema([("kind", pa.string()), ("n", pa.int64()), ("pad", pa.string())])
    catalog.create_table(name, schema, partition_by=["kind"], sort_by=["n desc nulls last"])
    numbers = [None if n % 17 == 0 else n * 7919 % 1000 for n in range(2000)]
    data = [{"kind": "abc"[n % 5 % 3], "n": number, "pad": "x" * 50} for n, number in enumerate(numbers)]
    options = (file_writer.write_files.__kwdefaults__ or {}) | {"buffer_size_max": 40_000}
    monkeypatch.setattr(file_writer.write_files, "__kwdefaults__", options)
    monkeypatch.setattr("alpheus.rows.arrow.input_data.SLICE_ROWS_MAX", 100)
    catalog.append(name, data)
    files = catalog.scan(name).files
    assert 3 < len(files) < 40
    storage = catalog.storage()
    found: Counter[Any] = Counter()
    for planned in files:
        file = planned.file
        assert file.sort_order_id == 1
        stored = asyncio.run(storage.read(file.path, size_max=file.size_bytes))
        table = pq.read_table(pa.BufferReader(stored))
        kinds = set(table.column("kind").to_pylist())
        assert len(kinds) == 1
        assert list(file.partition.values()) == [kinds.pop().encode()]
        ordered = table.column("n").to_pylist()
        present = [n for n in ordered if n is not None]
        assert ordered == sorted(present, reverse=True) + [None] * (len(ordered) - len(present))
        found.update((row["kind"], row["n"]) for row in table.to_pylist())
    assert found == Counter((row["kind"], row["n"]) for row in data)


def test_a_table_with_partitions_is_created_and_filled_in_one_commit(catalog: Catalog, space: str) -> None:
    version = catalog.version()
    data = pa.Table.from_pylist(rows(0, 10), SCHEMA)
    catalog.create_table(f"{space}.filled", data, partition_by=["kind"], sort_by=["n desc"])
    assert catalog.version() == version + 1
    files = [one.file for one in catalog.scan(f"{space}.filled").files]
    assert [(file.row_count, file.sort_order_id) for file in files] == [(5, 1), (5, 1)]
    assert ids(catalog, f"{space}.filled") == list(range(10))


# --- compaction ------------------------------------------------------------------------------------


def test_compaction_puts_small_files_together(catalog: Catalog, name: str) -> None:
    for start in range(20, 60, 10):
        catalog.append(name, rows(start, start + 10))
    catalog.delete(name, "id in (3, 33)")
    before = catalog.version()
    plan = catalog.compact(name, dry_run=True)
    assert plan.compacted_count == plan.file_count == 6
    assert "6 files, 60 rows" in plan.explain()
    assert "rows are deleted (2)" in plan.explain()
    assert catalog.version() == before
    done = catalog.compact(name)
    assert (done.rows_added, done.rows_removed) == (0, 0)
    table = catalog.load_table(name)
    assert (table.file_count, table.row_count, table.definition.delete_predicates) == (1, 58, ())
    assert ids(catalog, name) == [id for id in range(60) if id not in (3, 33)]
    assert catalog.compact(name, dry_run=True).groups == ()
    assert catalog.compact(name).version == done.version
    assert ids(catalog.at(before), name) == [id for id in range(60) if id not in (3, 33)]


def test_rows_that_lack_a_struct_of_required_fields_are_written_anew(catalog: Catalog, name: str) -> None:
    fields = pa.struct([pa.field("q", pa.int64(), nullable=False)])
    catalog.update_table(name, add_columns={"st": fields, "many": pa.list_(fields)})
    catalog.update_table(name, add_columns={"many.more": pa.field("more", fields)})
    catalog.append(name, [{"id": 20, "many": [{"q": 1}]}])
    catalog.update_table(name, add_columns={"many.last": pa.field("last", fields)})
    catalog.update(name, {"n": 5}, "id = 3", mode="rewrite")
    catalog.compact(name)
    assert catalog.load_table(name).file_count == 1
    assert catalog.read(name, where="id IN (3, 20)").sort_by("id").to_pylist() == [
        {"id": 3, "kind": "b", "n": 5, "st": None, "many": None},
        {"id": 20, "kind": None, "n": None, "st": None, "many": [{"q": 1, "more": None, "last": None}]},
    ]


def test_compaction_keeps_partitions_and_order(catalog: Catalog, space: str) -> None:
    name = f"{space}.c"
    catalog.create_table(name, SCHEMA, partition_by=["kind"], sort_by=["n"])
    for start in (10, 0):
        catalog.append(name, rows(start, start + 10))
    plan = catalog.compact(name, dry_run=True)
    assert [group.partition for group in plan.groups] == ["kind=a", "kind=b"]
    catalog.compact(name)
    files = catalog.scan(name).files
    assert [one.file.sort_order_id for one in files] == [1, 1]
    found = catalog.read(name, where="kind = 'a'").column("n").to_pylist()
    assert found == sorted(found)
    assert len(found) == 10


def test_a_file_of_which_nothing_is_left_goes(catalog: Catalog, name: str) -> None:
    catalog.delete(name, "kind = 'a'")
    catalog.delete(name, "kind = 'b' and id < 10")
    plan = catalog.compact(name, target_size=1, dry_run=True)
    assert plan.compacted_count == 2
    catalog.compact(name, target_size=1)
    assert catalog.load_table(name).file_count == 1
    catalog.delete(name, "kind = 'b'")
    catalog.compact(name)
    assert catalog.load_table(name).file_count == 0


def test_compaction_does_not_conflict_with_appends_and_deletes(catalog: Catalog, name: str) -> None:
    with catalog.transaction() as tx:
        tx.compact(name)
        catalog.append(name, rows(20, 22))
    assert ids(catalog, name) == list(range(22))
    with catalog.transaction() as tx:
        tx.delete(name, "id = 5")
        catalog.compact(name)
    assert ids(catalog, name) == [id for id in range(22) if id != 5]


@pytest.mark.parametrize("target", [0, -1, "1", True, 1.5])
def test_targets_that_are_none(catalog: Catalog, name: str, target: Any) -> None:
    refused(InvalidInput, lambda: catalog.compact(name, target_size=target), "bad_argument", "target_size")


# --- together, and against each other --------------------------------------------------------------


def test_a_conflict_over_rows_is_retryable(catalog: Catalog, name: str) -> None:
    tx = catalog.transaction().__enter__()
    tx.update(name, {"n": 1}, "id = 3", mode="rewrite")
    catalog.update(name, {"n": 2}, "id = 4", mode="rewrite")
    with pytest.raises(Conflict) as caught:
        tx.commit()
    assert (caught.value.kind, caught.value.retryable) == ("rows_changed", True)

    def upsert(number: int) -> None:
        catalog.retry(lambda tx: tx.merge(name, [{"id": 77, "kind": str(number)}], on="id"), attempts=20)

    threads = [threading.Thread(target=upsert, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids(catalog, name, "id = 77") == [77], "two merges do not both insert a key"


def test_a_reader_does_not_lose_its_rows_when_a_transaction_is_tried_again(
    catalog: Catalog, name: str
) -> None:
    reader = pa.Table.from_pylist(rows(20, 25), SCHEMA).to_reader()

    def work(tx: Any) -> None:
        tx.update(name, {"n": 0}, "id = 3")
        tx.append(name, reader)
        catalog.update(name, {"n": 1}, "id = 3")

    refused(
        InvalidInput, lambda: catalog.retry(work), "bad_data", "read before", "inside the retried function"
    )
    refused(InvalidInput, lambda: catalog.overwrite(name, reader), "bad_data", "read before")
    refused(InvalidInput, lambda: catalog.merge(name, reader, on="id"), "bad_data", "read before")
    assert ids(catalog, name) == list(range(20))


def test_deletes_do_not_conflict(catalog: Catalog, name: str) -> None:
    with catalog.transaction() as tx:
        tx.delete(name, "id = 3")
        catalog.delete(name, "id in (3, 4)")
        catalog.append(name, [{"id": 3}])
    assert ids(catalog, name) == sorted([*(id for id in range(20) if id not in (3, 4)), 3])


def test_all_verbs_on_a_table_that_the_transaction_made_itself(catalog: Catalog, space: str) -> None:
    name = f"{space}.own"
    with catalog.transaction() as tx:
        tx.create_table(name, SCHEMA, partition_by=["kind"])
        tx.append(name, rows(0, 10))
        tx.delete(name, "id = 1")
        tx.update(name, {"n": 5}, "id = 2")
        tx.merge(name, [{"id": 3, "kind": "z"}, {"id": 50, "kind": "z"}], on="id")
        tx.overwrite(name, [{"id": 4, "kind": "q"}], where="id = 4")
        tx.compact(name)
        tx.rename_table(name, f"{space}.other")
        tx.delete(f"{space}.other", "id = 9")
        expected = ids(tx, f"{space}.other")
    assert expected == [0, 2, 3, 4, 5, 6, 7, 8, 50]
    assert ids(catalog, f"{space}.other") == expected
    assert catalog.read(f"{space}.other", where="n = 5 or kind in ('z', 'q')").num_rows == 4


def test_tables_that_came_back_and_were_renamed(catalog: Catalog, name: str, space: str) -> None:
    catalog.delete(name, "id = 0")
    catalog.drop_table(name)
    with catalog.transaction() as tx:
        tx.undrop(name)
        tx.delete(name, "id = 1")
        tx.rename_table(name, f"{space}.u")
        tx.update(f"{space}.u", {"n": 1}, "id = 2")
    assert ids(catalog, f"{space}.u") == list(range(2, 20))
    with catalog.transaction() as tx:
        tx.rename_table(f"{space}.u", f"{space}.v")
        tx.delete(f"{space}.v", "id < 15", mode="rewrite")
        catalog.append(f"{space}.u", [{"id": 99}])
    assert ids(catalog, f"{space}.v") == [15, 16, 17, 18, 19, 99]


def test_serializable_changes_see_no_phantoms(catalog: Catalog, name: str) -> None:
    tx = catalog.transaction(isolation="serializable").__enter__()
    tx.delete(name, "id >= 0")
    catalog.append(name, [{"id": 5}])
    with pytest.raises(Conflict):
        tx.commit()


# --- what every verb refuses -----------------------------------------------------------------------


def test_predicates_that_are_none(catalog: Catalog, name: str) -> None:
    for where in ("nope = 1", "id = 'x'", "id =", "", 7):
        for verb in (
            lambda given=where: catalog.delete(name, given),
            lambda given=where: catalog.update(name, {"n": 1}, given),
            lambda given=where: catalog.overwrite(name, [], where=given),
        ):
            assert refused(InvalidInput, verb).kind == "bad_predicate", where
    refused(InvalidInput, lambda: catalog.delete(name, None), "bad_argument", "where")  # type: ignore[arg-type]
    refused(InvalidInput, lambda: catalog.delete(name, "id = 1", mode="soft"), "bad_argument", "rewrite")  # type: ignore[arg-type]
    assert ids(catalog, name) == list(range(20))


def test_tables_that_are_none(catalog: Catalog, space: str) -> None:
    catalog.register_table(f"{space}.i", "s3://bucket/metadata/1.metadata.json")
    for table, kind in ((f"{space}.i", "not_native"), (f"{space}.nope", "no_table")):
        for verb in (
            lambda given=table: catalog.delete(given, "true"),
            lambda given=table: catalog.update(given, {"n": 1}, "true"),
            lambda given=table: catalog.merge(given, [{"id": 1}], on="id"),
            lambda given=table: catalog.overwrite(given, [], where="true"),
            lambda given=table: catalog.compact(given),
            lambda given=table: catalog.append_files(given, "/x.parquet"),
            lambda given=table: catalog.scan(given),
        ):
            assert refused(AlpheusError, verb).kind == kind


def test_a_table_with_a_column_of_the_feeds_name(catalog: Catalog, space: str) -> None:
    name = f"{space}.f"
    catalog.create_table(name, pa.schema([("id", pa.int64()), (CHANGE_TYPE.name, pa.string())]))
    catalog.append(name, [{"id": 1}, {"id": 2}])
    catalog.delete(name, "id = 1", mode="rewrite")
    assert ids(catalog, name) == [2]
