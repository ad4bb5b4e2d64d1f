"""The verbs that change objects beyond their properties, over both ways to a catalog.

They cover renames, cascades, columns, views, Iceberg pointers, restored and dropped objects, retry keys, and saved
transactions.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from both_ways import catalog as catalog
from both_ways import space as space

import alpheus
from alpheus import Catalog
from alpheus.errors import AlpheusError, AlreadyExists, Conflict, Corrupt, InvalidInput, NotFound
from alpheus_pb.v1 import objects_pb2

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "name": ["a", "b", None]})
_numbers = itertools.count(1)


def refused(kind: type[AlpheusError], call: Callable[[], object], *, word: str) -> AlpheusError:
    with pytest.raises(kind) as caught:
        call()
    assert word in f"{caught.value.kind} {caught.value}", caught.value
    return caught.value


# --- names -----------------------------------------------------------------------------------------


def test_a_table_is_renamed_and_stays_the_same(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS)
    before = catalog.load_table(f"{space}.t")
    catalog.create_namespace(f"{space}_new")
    catalog.rename_table(f"{space}.t", (f"{space}_new", "u"))
    assert not catalog.table_exists(f"{space}.t")
    after = catalog.load_table(f"{space}_new.u")
    assert (after.id, after.row_count) == (before.id, 3)
    assert catalog.read(f"{space}_new.u") == ROWS
    catalog.append(f"{space}_new.u", ROWS)
    assert catalog.read(f"{space}_new.u").num_rows == 6
    assert catalog.at(before.version).read(f"{space}.t") == ROWS
    assert next(iter(catalog.log(f"{space}_new.u"))).version == catalog.version()
    assert any(
        action.type == "TABLE_RENAME"
        for entry in catalog.log(f"{space}_new.u")
        for action in entry.transaction.actions
    )


def test_renames_that_cannot_be(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS)
    catalog.create_table(f"{space}.u", ROWS)
    catalog.create_view(f"{space}.v", "SELECT 1")
    refused(AlreadyExists, lambda: catalog.rename_table(f"{space}.t", f"{space}.u"), word="u")
    refused(AlreadyExists, lambda: catalog.rename_table(f"{space}.t", f"{space}.v"), word="v")
    refused(NotFound, lambda: catalog.rename_table(f"{space}.nix", f"{space}.w"), word="nix")
    refused(NotFound, lambda: catalog.rename_table(f"{space}.t", "nowhere.t"), word="nowhere")
    refused(InvalidInput, lambda: catalog.rename_table(f"{space}.t", f"{space}.a*b"), word="'*'")


def test_a_cascade_takes_all_or_nothing(catalog: Catalog, space: str) -> None:
    for name in "tuv":
        catalog.create_table(f"{space}.{name}", ROWS)
    catalog.create_view(f"{space}.w", "SELECT * FROM t", references=[f"{space}.t"])
    version = catalog.version()
    catalog.drop_namespace(space, cascade=True)
    assert catalog.version() == version + 1
    assert not catalog.namespace_exists(space)
    changes = {(change.type, change.kind, change.name) for change in catalog.diff(version)}
    assert changes == {
        ("dropped", "namespace", space),
        *(("dropped", "table", f"{space}.{name}") for name in "tuv"),
        ("dropped", "view", f"{space}.w"),
    }


# --- columns ---------------------------------------------------------------------------------------


def test_columns_change_and_old_rows_are_read_in_the_new_shape(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS)
    catalog.update_table(
        name,
        set={"owner": "ann"},
        add_columns={"note": pa.string()},
        rename_columns={"name": "label"},
        retype_columns={"id": pa.int64()},
        column_order=["label", "id", "note"],
    )
    table = catalog.load_table(name)
    assert table.schema.names == ["label", "id", "note"]
    assert table.properties == {"owner": "ann"}
    catalog.append(name, [{"id": 1 << 40, "label": "z", "note": "n"}])
    assert catalog.read(name).to_pylist() == [
        {"label": "a", "id": 1, "note": None},
        {"label": "b", "id": 2, "note": None},
        {"label": None, "id": 3, "note": None},
        {"label": "z", "id": 1 << 40, "note": "n"},
    ]
    catalog.update_table(name, drop_columns=["label"])
    catalog.update_table(name, add_columns=[pa.field("label", pa.int64())])
    assert {row["label"] for row in catalog.read(name).to_pylist()} == {None}, (
        "another column of the same name"
    )
    assert catalog.at(table.version).read(name).column("label").to_pylist() == ["a", "b", None]


def test_columns_are_added_as_fields_by_name(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, pa.schema([("id", pa.int64()), ("at", pa.struct([("zip", pa.string())]))]))
    catalog.update_table(
        name,
        add_columns={
            "r": pa.field("r", pa.int32(), nullable=False, metadata={"comment": "required"}),
            "at.city": pa.field("city", pa.string()),
            "plain": pa.int16(),
        },
    )
    schema = catalog.load_table(name).schema
    assert schema.names == ["id", "at", "r", "plain"]
    assert schema.field("r").nullable is False
    assert schema.field("r").type == pa.int32()
    assert schema.field("plain").nullable
    assert [field.name for field in schema.field("at").type] == ["zip", "city"]
    for given, named in (
        ({"s": pa.field("t", pa.int32())}, "'t'"),
        ({"at.street": pa.field("at.street", pa.string())}, "'at.street'"),
        ({"s": "int"}, "'int'"),
        ({"": pa.field("", pa.int32())}, "not a name with a type"),
    ):
        with pytest.raises(InvalidInput) as caught:
            catalog.update_table(name, add_columns=given)
        assert caught.value.kind == "bad_schema"
        assert named in caught.value.message
    catalog.append(name, [{"id": 1, "r": 1}])
    with pytest.raises(AlpheusError, match="required"):  # rows exist, and have no value for it
        catalog.update_table(name, add_columns={"q": pa.field("q", pa.int32(), nullable=False)})


def test_names_of_data_are_exact_and_names_in_texts_are_not(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, pa.table({"id": [1, 2], "v": ["a", "b"]}))
    assert catalog.read(name, where="ID = 1").to_pylist() == [{"id": 1, "v": "a"}]
    catalog.update(name, {"v": "V"}, "Id = 2")
    refused: list[Callable[[], object]] = [
        lambda: catalog.append(name, [{"ID": 3}]),
        lambda: catalog.append(name, pa.table({"ID": [3]})),
        lambda: catalog.merge(name, [{"id": 1, "v": "c"}], on="ID"),
        lambda: catalog.update(name, {"V": "x"}, "id = 1"),
        lambda: catalog.read(name, columns=["ID"]),
    ]
    for call in refused:
        with pytest.raises(InvalidInput) as caught:
            call()
        assert "id, v" in caught.value.hint, caught.value


def test_a_column_takes_its_default_where_rows_lack_it(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS, defaults={"name": "nobody"})
    place = pa.struct([pa.field("zip", pa.string())])
    catalog.update_table(
        name,
        add_columns=[
            pa.field("state", pa.string(), nullable=False),
            pa.field("at", pa.date32()),
            pa.field("place", place),
        ],
        defaults={"state": "new", "at": date(2026, 3, 1), "place.zip": "0"},
    )
    catalog.append(name, [{"id": 4}, {"id": 5, "name": None, "state": "done", "at": None, "place": {}}])
    before = {"state": "new", "at": date(2026, 3, 1), "place": None}
    rows = [{"id": n, "name": text, **before} for n, text in ((1, "a"), (2, "b"), (3, None), (4, "nobody"))]
    rows.append({"id": 5, "name": None, "state": "done", "at": None, "place": {"zip": "0"}})
    assert catalog.read(name).to_pylist() == rows
    table = catalog.load_table(name)
    assert table.defaults == {"name": "nobody", "state": "new", "at": date(2026, 3, 1), "place.zip": "0"}
    # Later inserts get other defaults. Earlier rows keep theirs.
    catalog.update_table(name, defaults={"name": None, "state": "open", "place.zip": "1"})
    catalog.append(name, pa.table({"id": pa.array([6], pa.int32()), "place": pa.array([{}], pa.struct([]))}))
    rows.append({"id": 6, "name": None, "state": "open", "at": date(2026, 3, 1), "place": {"zip": "1"}})
    assert catalog.read(name).to_pylist() == rows
    assert catalog.read(name, columns=["state"]).to_pydict() == {"state": [row["state"] for row in rows]}
    catalog.update_table(name, add_columns={"place.city": pa.string()}, defaults={"place.city": "x"})
    assert [row["place"] for row in catalog.read(name, columns=["place"]).to_pylist()] == [
        {**row["place"], "city": "x"} if row["place"] else None for row in rows
    ]
    assert catalog.admin.check(after=catalog.version() - 6).ok


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"defaults": {"none": 1}}, "no column 'none'"),
        ({"defaults": {"ID": 1}}, "no column 'ID'"),
        ({"defaults": {"id": "1"}}, "'id' of type int32 cannot have the default '1' (str)"),
        ({"defaults": {"id": 1 << 31}}, "'id' of type int32 cannot hold the default 2147483648"),
        ({"defaults": {"id": True}}, "'id' of type int32"),
        ({"defaults": [1]}, "defaults"),
        ({"add_columns": {"x": pa.struct({"a": pa.int64()})}, "defaults": {"x": {"a": 1}}}, "'x' of type struct"),
        ({"add_columns": {"x": pa.list_(pa.int64())}, "defaults": {"x.element": 1}}, "'x.element' is inside a list"),
        ({"add_columns": [pa.field("x", pa.int64(), False)], "defaults": {"x": None}}, "'x' is required"),
        ({"add_columns": [pa.field("x", pa.int64(), False)]}, "has rows"),
        ({"add_columns": {"x": pa.string()}, "defaults": {"x": "x" * 2000}}, "2000 bytes"),
    ],
)  # fmt: skip
def test_defaults_that_cannot_be(catalog: Catalog, space: str, changes: dict[str, Any], word: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS)
    before = catalog.version()
    refused(AlpheusError, lambda: catalog.update_table(name, **changes), word=word)
    assert catalog.version() == before


def test_a_table_has_its_partitions_and_order_for_life(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    schema = pa.schema({"id": pa.int64(), "country": pa.string(), "at": pa.timestamp("us", "UTC")})
    catalog.create_table(
        name, schema, partition_by=["country", "day(at)"], sort_by=["id", "at desc nulls first"]
    )
    catalog.update_table(name, rename_columns={"country": "land of origin"})
    table = catalog.load_table(name)
    assert table.partition_by == ("`land of origin`", "day(at)")
    assert table.sort_by == ("id", "at desc nulls first")
    refused(InvalidInput, lambda: catalog.update_table(name, drop_columns=["at"]), word="'at'")
    catalog.append(name, [{"id": 2}, {"id": 1}])
    (planned,) = catalog.scan(name).files
    assert (planned.file.partition, planned.file.sort_order_id) == ({2: None, 3: None}, 1)
    assert catalog.read(name, columns=["id"]).to_pylist() == [{"id": 1}, {"id": 2}]
    catalog.drop_table(name)
    catalog.undrop(name)
    assert catalog.load_table(name).partition_by == table.partition_by
    catalog.create_table(f"{space}.again", schema, partition_by=["country"], sort_by="id", exist_ok=True)
    for wrong in ({"partition_by": ["Country"]}, {"partition_by": ["id", "id"]}, {"sort_by": ["none"]}):
        refused(InvalidInput, lambda: catalog.create_table(f"{space}.no", schema, **wrong), word="bad_schema")  # type: ignore[arg-type]  # noqa: B023
    refused(InvalidInput, lambda: catalog.create_table(f"{space}.no", schema, sort_by=3), word="sort_by")  # type: ignore[arg-type]


def test_nested_columns_are_named_by_path(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    schema = pa.schema(
        [pa.field("at", pa.struct([pa.field("zip", pa.int32()), pa.field("city", pa.string())]))]
    )
    catalog.create_table(name, pa.Table.from_pylist([{"at": {"zip": 1, "city": "x"}}], schema))
    catalog.update_table(
        name,
        add_columns={"at.country": pa.string()},
        retype_columns={"at.zip": pa.int64()},
        rename_columns={"at.city": "town"},
    )
    assert catalog.read(name).to_pylist() == [{"at": {"zip": 1, "town": "x", "country": None}}]


def test_a_column_and_rows_that_use_it_in_one_transaction(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS)
    with catalog.transaction() as tx:
        tx.update_table(name, add_columns={"extra": pa.int64()})
        tx.append(name, [{"id": 9, "name": "i", "extra": 7}])
    assert catalog.read(name).column("extra").to_pylist() == [None, None, None, 7]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"drop_columns": ["nix"]}, "nix"),
        ({"rename_columns": {"id": "NAME"}}, "NAME"),
        ({"retype_columns": {"id": pa.int16()}}, "int16"),
        ({"retype_columns": {"name": pa.int64()}}, "name"),
        ({"add_columns": {"ID": pa.int64()}}, "ID"),
        ({"drop_columns": ["id", "name"]}, "column"),
        ({"nullable_columns": {"name": False}}, "name"),
        ({"add_columns": [pa.field("must", pa.int64(), nullable=False)]}, "must"),
        ({"column_order": ["id"]}, "order"),
        ({"drop_columns": ["id"], "rename_columns": {"id": "x"}}, "id"),
        ({"add_columns": {"nix.x": pa.int64()}}, "nix"),
        ({"add_columns": "x"}, "add_columns"),
        ({"retype_columns": {"id": "long"}}, "long"),
    ],
)
def test_column_changes_that_cannot_be(
    catalog: Catalog, space: str, change: dict[str, Any], word: str
) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS)
    before = catalog.load_table(name)
    refused(AlpheusError, lambda: catalog.update_table(name, **change), word=word)
    assert catalog.load_table(name).columns == before.columns


# --- views -----------------------------------------------------------------------------------------


def test_a_view_lives_and_dies(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS)
    catalog.create_view(
        f"{space}.v",
        "SELECT id FROM t",
        references=[f"{space}.t"],
        schema=pa.schema([pa.field("id", pa.int32())]),
        default_namespace=space,
        properties={"owner": "ann"},
    )
    view = catalog.load_view(f"{space}.v")
    assert (view.sql, view.dialect, view.references) == ("SELECT id FROM t", "spark", (f"{space}.t",))
    assert (view.default_namespace, view.properties) == (space, {"owner": "ann"})
    assert [name.name for name in catalog.list_views(space)] == ["v"]
    catalog.replace_view(f"{space}.v", "SELECT 2", dialect="duckdb")
    replaced = catalog.load_view(f"{space}.v")
    assert (replaced.id, replaced.sql, replaced.references) == (view.id, "SELECT 2", ())
    assert catalog.at(view.version).load_view(f"{space}.v").sql == view.sql
    catalog.rename_view(f"{space}.v", f"{space}.w")
    assert [entry.transaction.actions[0].type for entry in catalog.log(f"{space}.w")] == ["VIEW_RENAME"]
    catalog.drop_view(f"{space}.w")
    assert not catalog.view_exists(f"{space}.w")
    refused(NotFound, lambda: catalog.drop_view(f"{space}.w"), word="no_view")
    refused(AlreadyExists, lambda: catalog.create_view(f"{space}.t", "SELECT 1"), word="t")
    refused(InvalidInput, lambda: catalog.create_view(f"{space}.x", ""), word="empty")


def test_a_bound_view_protects_what_it_reads(catalog: Catalog, space: str) -> None:
    name, view = f"{space}.t", f"{space}.v"
    catalog.create_table(name, ROWS)
    refused(
        NotFound,
        lambda: catalog.create_view(view, "SELECT 1", references=[f"{space}.nix"], schema_binding=True),
        word="nix",
    )
    catalog.create_view(view, "SELECT id FROM t", references=[name], schema_binding=True)
    for call in (
        lambda: catalog.drop_table(name),
        lambda: catalog.rename_table(name, f"{space}.u"),
        lambda: catalog.update_table(name, drop_columns=["id"]),
        lambda: catalog.update_table(name, rename_columns={"id": "key"}),
    ):
        error = refused(AlpheusError, call, word=view)
        assert not isinstance(error, Conflict) or not error.retryable
    catalog.append(name, ROWS)
    catalog.update_table(name, add_columns={"more": pa.int64()}, set={"p": "1"})
    catalog.drop_view(view)
    catalog.drop_table(name)


# --- Iceberg pointers ------------------------------------------------------------------------------


def test_an_iceberg_table_is_a_pointer_that_moves(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    first, second = "s3://b/t/metadata/1.json", "s3://b/t/metadata/2.json"
    catalog.register_table(name, first, {"owner": "ann"})
    table = catalog.load_table(name)
    assert (table.format, table.definition.iceberg_metadata_location) == ("iceberg", first)
    catalog.commit_iceberg(name, second, expected=first)
    moved = catalog.load_table(name).definition
    assert (moved.iceberg_metadata_location, moved.iceberg_previous_metadata_location) == (second, first)
    refused(Conflict, lambda: catalog.commit_iceberg(name, "s3://b/3.json", expected=first), word=second)
    refused(InvalidInput, lambda: catalog.append(name, ROWS), word="not_native")
    refused(InvalidInput, lambda: catalog.register_table(f"{space}.u", ""), word="metadata")
    refused(InvalidInput, lambda: catalog.update_table(name, drop_columns=["x"]), word="Iceberg")
    catalog.create_table(f"{space}.n", ROWS)
    refused(InvalidInput, lambda: catalog.commit_iceberg(f"{space}.n", second, expected=first), word="n")


# --- restored and dropped objects -------------------------------------------------------------------


def test_a_table_is_restored_to_what_it_was(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    old = catalog.create_table(name, ROWS).version
    catalog.update_table(name, drop_columns=["name"], set={"p": "1"})
    catalog.overwrite(name, [{"id": 7}])
    commit = catalog.restore_table(name, old)
    assert (commit.rows_added, commit.rows_removed, commit.files_added) == (3, 1, 0)
    assert catalog.read(name) == ROWS
    assert catalog.load_table(name).properties == {}
    catalog.append(name, [{"id": 8, "name": "h"}])
    assert catalog.read(name).num_rows == 4
    refused(InvalidInput, lambda: catalog.restore_table(name, None), word="version")
    refused(NotFound, lambda: catalog.restore_table(name, old - 1), word="t")
    refused(NotFound, lambda: catalog.restore_table(name, 1_000_000), word="1000000")


def test_dropped_objects_come_back(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS)
    table = catalog.load_table(f"{space}.t")
    catalog.create_view(f"{space}.v", "SELECT 1")
    catalog.drop_table(f"{space}.t")
    catalog.drop_view(f"{space}.v")
    found = catalog.list_dropped(space)
    assert [(one.kind, one.name) for one in found] == [("view", f"{space}.v"), ("table", f"{space}.t")]
    assert found[1].version == found[1].dropped_version - 1
    assert found[0].dropped_at <= datetime.now(UTC)
    assert catalog.list_dropped(space, limit=1) == found[:1]
    catalog.undrop(f"{space}.t")
    assert catalog.load_table(f"{space}.t").id == table.id
    assert catalog.read(f"{space}.t") == ROWS
    catalog.undrop(f"{space}.v", as_name=f"{space}.w")
    assert catalog.load_view(f"{space}.w").sql == "SELECT 1"
    refused(AlreadyExists, lambda: catalog.undrop(f"{space}.t", at=table.version), word="t")
    error = refused(NotFound, lambda: catalog.undrop(f"{space}.never"), word="never")
    assert "list_dropped" in error.hint
    refused(NotFound, lambda: catalog.undrop(f"{space}.v", at=1), word="v")
    refused(InvalidInput, lambda: catalog.undrop(f"{space}.v", as_name="dotless"), word="dotless")


def test_which_of_one_name_comes_back(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS)
    catalog.drop_table(name)
    catalog.create_view(name, "SELECT 1")
    catalog.drop_view(name)
    refused(NotFound, lambda: catalog.undrop(name, at=catalog.version(), kind="table"), word=f"table {name}")
    catalog.undrop(name, as_name=f"{space}.last")
    assert catalog.load_view(f"{space}.last").sql == "SELECT 1"
    catalog.undrop(name, kind="table")
    assert catalog.read(name) == ROWS
    refused(InvalidInput, lambda: catalog.undrop(name, kind="namespace"), word="bad_name")
    refused(InvalidInput, lambda: catalog.undrop(space, kind="table"), word="bad_name")
    refused(InvalidInput, lambda: catalog.undrop(name, kind="tag"), word="tag")


def test_what_a_transaction_itself_dropped_comes_back_in_it(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS)
    catalog.drop_table(name)  # another table of this name, dropped before
    catalog.create_table(name, ROWS)
    id = catalog.load_table(name).id
    with catalog.transaction() as tx:
        tx.drop_table(name)
        tx.undrop(name, as_name=f"{space}.u")
        assert tx.load_table(f"{space}.u").id == id
    assert catalog.read(f"{space}.u") == ROWS
    assert not catalog.table_exists(name)
    with catalog.transaction() as tx:
        tx.drop_namespace(space, cascade=True)
        tx.undrop(space)
    assert [one.name for one in catalog.list_tables(space)] == ["u"]
    with catalog.transaction() as tx:
        tx.create_table(f"{space}.fleeting", ROWS)
        tx.drop_table(f"{space}.fleeting")
        refused(NotFound, lambda: tx.undrop(f"{space}.fleeting"), word="fleeting")
        tx.abandon()


def test_what_was_dropped_after_a_transaction_began_is_too_new_for_it(catalog: Catalog, space: str) -> None:
    with catalog.transaction() as tx:
        catalog.create_table(f"{space}.late", ROWS)
        catalog.drop_table(f"{space}.late")
        refused(InvalidInput, lambda: tx.undrop(f"{space}.late"), word="future_version")
        tx.abandon()


def test_what_was_renamed_and_dropped_at_once_comes_back(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS)
    with catalog.transaction() as tx:
        tx.rename_table(f"{space}.t", f"{space}.u")
        tx.drop_table(f"{space}.u")
    assert [one.name for one in catalog.list_dropped(space)] == [f"{space}.t"]
    catalog.undrop(f"{space}.t")
    assert catalog.read(f"{space}.t") == ROWS


def test_a_namespace_comes_back_with_what_was_in_it(catalog: Catalog, space: str) -> None:
    catalog.update_namespace(space, set={"owner": "ann"})
    for name in "tu":
        catalog.create_table(f"{space}.{name}", ROWS)
    catalog.drop_namespace(space, cascade=True)
    assert [one.kind for one in catalog.list_dropped(space)].count("table") == 2
    catalog.undrop(space)
    assert catalog.load_namespace(space).properties == {"owner": "ann"}
    assert [name.name for name in catalog.list_tables(space)] == ["t", "u"]
    assert catalog.read(f"{space}.u") == ROWS
    catalog.drop_namespace(space, cascade=True)
    catalog.undrop(space, as_name=f"{space}x")
    assert catalog.read(f"{space}x.t") == ROWS


def test_diff_tells_what_differs(catalog: Catalog, space: str) -> None:
    begin = catalog.version()
    assert list(catalog.diff(begin)) == []
    catalog.create_table(f"{space}.t", ROWS)
    [change] = catalog.diff(begin, details=True)
    assert (change.type, change.kind, change.name, change.before) == ("created", "table", f"{space}.t", None)
    assert change.after is not None
    assert change.after["id"] == catalog.load_table(f"{space}.t").id
    [back] = catalog.diff(None, begin)
    assert back.type == "dropped"
    refused(NotFound, lambda: list(catalog.diff(0, 1_000_000)), word="1000000")


# --- isolation and retry keys ----------------------------------------------------------------------


def test_serializable_reads_are_kept_and_checked(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS)
    with catalog.transaction(isolation="serializable") as tx:
        tx.load_table(f"{space}.t")
        assert not tx.table_exists(f"{space}.u")
        tx.list_tables(space, prefix="x")
        tx.read(f"{space}.t", columns=["id"])
        tx.update_namespace(space, set={"p": "1"})
    [entry] = catalog.log(space, after=catalog.version() - 1)
    assert entry.transaction.isolation == "serializable"
    assert [(read.type, read.name, read.details) for read in entry.transaction.reads] == [
        ("TABLE_DESCRIBE", f"{space}.t", {}),
        ("TABLE_EXISTS", f"{space}.u", {}),
        ("NAMESPACE_SHOW_TABLES", space, {"prefix": "x"}),
        ("TABLE_SELECT", f"{space}.t", {"columns": ["id"]}),
    ]

    def with_a_phantom() -> None:
        with catalog.transaction(isolation="serializable") as tx:
            tx.list_tables(space)
            catalog.create_table(f"{space}.phantom", ROWS)
            tx.update_namespace(space, set={"p": "2"})

    conflict = refused(Conflict, with_a_phantom, word=f"{space}.phantom")
    assert isinstance(conflict, Conflict)
    assert conflict.retryable
    with catalog.transaction() as tx:  # at snapshot isolation this is no conflict
        tx.list_tables(space)
        catalog.create_table(f"{space}.other", ROWS)
        tx.update_namespace(space, set={"p": "3"})
    refused(InvalidInput, lambda: catalog.transaction(isolation="chaos"), word="chaos")


def test_the_first_transaction_with_a_key_is_the_one(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS)
    results = []
    for attempt in range(2):
        with catalog.transaction(key=f"{space}/day-1") as tx:
            tx.append(f"{space}.t", [{"id": 10 + attempt, "name": "k"}])
        results.append(tx.result)
    first, second = results
    assert first is not None
    assert second is not None
    assert (first.duplicate, second.duplicate, second.version) == (False, True, first.version)
    assert second.transaction_id == first.transaction_id
    assert catalog.read(f"{space}.t").num_rows == 4
    [entry] = catalog.log(f"{space}.t", after=first.version - 1, until=first.version)
    assert entry.transaction.key == f"{space}/day-1"
    refused(InvalidInput, lambda: catalog.transaction(key=""), word="key")


def test_an_idempotent_writer_goes_forward_only(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS)

    def write(sequence: int) -> bool:
        with catalog.transaction(writer=("loader", sequence)) as tx:
            tx.append(f"{space}.t", [{"id": sequence, "name": "w"}])
        assert tx.result is not None
        return tx.result.duplicate

    assert [write(sequence) for sequence in (0, 1, 1, 0, 5, 4)] == [False, False, True, True, False, True]
    assert catalog.read(f"{space}.t").num_rows == 6
    for wrong in ("x", ("x",), ("", 1), ("x", -1), ("x", True), (1, 1)):
        refused(InvalidInput, lambda wrong=wrong: catalog.transaction(writer=wrong), word="writer")  # type: ignore[misc]


# --- saved transactions ----------------------------------------------------------------------------


def test_a_transaction_is_finished_by_another_process(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS)
    with catalog.transaction(message="two hands", properties={"team": "blue"}) as tx:
        tx.append(f"{space}.t", [{"id": 4, "name": "d"}])
        id = tx.save()
    assert tx.result is None
    assert catalog.read(f"{space}.t").num_rows == 3
    [saved] = [one for one in catalog.list_saved() if one.id == id]
    assert (saved.operations, saved.message, saved.resumable) == (1, "two hands", True)
    program = f"""
import alpheus
with alpheus.connect({catalog.url!r}) as catalog, catalog.resume({id!r}) as tx:
    assert tx.read({f"{space}.t"!r}).num_rows == 4
    tx.append({f"{space}.t"!r}, [{{"id": 5, "name": "e"}}])
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert catalog.read(f"{space}.t").num_rows == 5
    outcome = catalog.outcome(id)
    assert outcome.state == "committed"
    assert outcome.commit is not None
    [entry] = catalog.log(after=outcome.commit.version - 1, until=outcome.commit.version)
    assert (entry.transaction.id, entry.transaction.message) == (id, "two hands")
    assert entry.transaction.properties == {"team": "blue"}
    refused(NotFound, lambda: catalog.resume(id).__enter__(), word="no_transaction")
    assert id not in [one.id for one in catalog.list_saved()]


def test_a_saved_transaction_is_discarded_for_good(catalog: Catalog, space: str) -> None:
    with catalog.transaction() as tx:
        tx.create_table(f"{space}.t", ROWS)
        id = tx.save()
    held = catalog.resume(id)
    with pytest.raises(InvalidInput) as caught, held:
        assert catalog.discard(id).state == "cancelled"
    assert caught.value.kind == "id_cancelled"
    assert not catalog.table_exists(f"{space}.t")
    refused(NotFound, lambda: catalog.discard(id), word="no_transaction")
    refused(InvalidInput, lambda: catalog.resume("nonsense"), word="nonsense")


def test_an_exception_leaves_what_was_saved(catalog: Catalog, space: str) -> None:
    with catalog.transaction() as tx:
        tx.create_table(f"{space}.t", ROWS)
        id = tx.save()
    with pytest.raises(ZeroDivisionError), catalog.resume(id):
        _ = 1 / 0
    with catalog.resume(id) as again:
        pass
    assert again.result is not None
    assert catalog.table_exists(f"{space}.t")


def test_what_was_saved_is_gone_on_with_as_it_was(catalog: Catalog, space: str) -> None:
    """A saved transaction resumes with the same operations, so that every caller that commits it gets one answer."""
    name = f"{space}.t"
    catalog.create_table(name, ROWS)
    with catalog.transaction(isolation="serializable", key=f"{space}/k", message="m") as tx:
        assert tx.read(name).num_rows == 3
        tx.update_table(name, add_columns={"extra": pa.int64()})
        tx.append(name, [{"id": 4, "name": "d", "extra": 7}])
        tx.create_table(f"{space}.u", ROWS)
        tx.rename_table(f"{space}.u", f"{space}.w")
        tx.overwrite(f"{space}.w", ROWS.slice(0, 1))
        tx.create_view(f"{space}.v", "SELECT 1", references=[name], schema_binding=True)
        tx.register_table(f"{space}.i", "s3://b/1.json")
        tx.commit_iceberg(f"{space}.i", "s3://b/2.json", "s3://b/1.json")
        tx.drop_view(f"{space}.v")
        tx.restore_table(name, tx.version)
        operations = tx.operations
        id = tx.save()
        refused(InvalidInput, tx.save, word="over")
        refused(InvalidInput, tx.commit, word="over")
    assert tx.result is None
    with catalog.resume(id) as tx:
        assert tx.operations == operations
        assert [one.name for one in tx.list_tables(space)] == ["i", "t", "w"]
        assert tx.read(f"{space}.w").num_rows == 1
        tx.abandon()
    first, second = catalog.resume(id), catalog.resume(id)
    with first, second:
        pass
    assert first.result is not None
    assert second.result is not None
    assert (second.result.duplicate, first.result.duplicate) == (False, True)
    assert first.result.version == second.result.version
    [entry] = catalog.log(name, after=first.result.version - 1)
    assert (entry.transaction.key, entry.transaction.isolation) == (f"{space}/k", "serializable")
    assert ("TABLE_SELECT", name) in [(read.type, read.name) for read in entry.transaction.reads]


def test_two_that_go_different_ways_with_one_saved_transaction(catalog: Catalog, space: str) -> None:
    with catalog.transaction() as tx:
        tx.create_table(f"{space}.t", ROWS)
        id = tx.save()
    first, second = catalog.resume(id), catalog.resume(id)
    with first, second:
        first.create_table(f"{space}.u", ROWS)
        first.commit()
        second.create_table(f"{space}.w", ROWS)
        error = refused(InvalidInput, second.commit, word="id_reused")
    assert "another process" in error.hint
    assert [one.name for one in catalog.list_tables(space)] == ["t", "u"]
    refused(NotFound, lambda: catalog.discard(id), word="no_transaction")


def test_a_saved_transaction_that_conflicts_stays_until_it_is_discarded(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS)
    with catalog.transaction() as tx:
        tx.update_table(f"{space}.t", set={"p": "1"})
        id = tx.save()
    catalog.update_table(f"{space}.t", set={"p": "2"})

    def go_on() -> None:
        with catalog.resume(id):
            pass

    refused(Conflict, go_on, word=f"{space}.t")
    refused(Conflict, go_on, word=f"{space}.t")
    assert [one.id for one in catalog.list_saved()] == [id]
    assert catalog.discard(id).state == "cancelled"
    refused(NotFound, go_on, word="no_transaction")
    assert catalog.outcome(id).state == "cancelled"


def test_damaged_and_foreign_ones_are_told_and_removed(catalog: Catalog, space: str) -> None:
    with catalog.transaction() as tx:
        tx.create_table(f"{space}.t", ROWS)
        sound = tx.save()
    folder = Path(catalog.storage().url.removeprefix("file://")) / "def" / "dtxn"
    torn, foreign = "01a20062-30a4-73eb-9949-b750ecfa382a", "0f5c7a52-91a5-4d1c-9a53-0d5b3f6a4c11"
    (folder / f"{torn}.binpb").write_bytes(b"\xff")
    message = objects_pb2.DistributedTransactionDef(
        id=foreign,
        beginning_root_node_file_path="vn/" + "1" + 31 * "0",
        running_root_node_file_path=f"node/{foreign}.arrow",
        expire_at_millis=4_000_000_000_000,
    )
    (folder / f"{foreign}.binpb").write_bytes(message.SerializeToString())
    found = {one.id: one for one in catalog.list_saved()}
    assert set(found) >= {sound, torn, foreign}
    assert (found[sound].damage, found[sound].resumable) == ("", True)
    assert torn in found[torn].damage
    assert not found[torn].resumable
    assert (found[foreign].begin_version, found[foreign].resumable, found[foreign].damage) == (1, False, "")
    refused(Corrupt, lambda: catalog.resume(torn).__enter__(), word=torn)
    refused(InvalidInput, lambda: catalog.resume(foreign).__enter__(), word="another writer")
    assert catalog.discard(torn).state == "cancelled"
    assert catalog.discard(foreign).state == "unknown"
    assert catalog.discard(sound).state == "cancelled"
    assert not {torn, foreign, sound} & {one.id for one in catalog.list_saved()}


def test_saved_through_a_daemon_and_finished_on_storage(
    tmp_path: Path, start_daemon: Callable[..., Any]
) -> None:
    storage = f"file://{tmp_path}/lake"
    one, other = start_daemon(storage, "--create"), start_daemon(storage)
    with (
        alpheus.connect(one.url) as through_one,
        alpheus.connect(other.url) as through_other,
        alpheus.connect(storage) as direct,
    ):
        through_one.create_namespace("a")
        with through_one.transaction() as tx:
            tx.create_table("a.t", ROWS)
            id = tx.save()
        with direct.resume(id) as tx:
            tx.append("a.t", ROWS)
            assert tx.save() == id
        ways = [through_one.resume(id), through_other.resume(id), direct.resume(id)]
        for number, way in enumerate(ways):
            way.__enter__()
            way.create_namespace(f"of_{number}")

        def commit(way: alpheus.Transaction) -> object:
            try:
                return way.commit()
            except InvalidInput as error:
                return error.kind

        with ThreadPoolExecutor(len(ways)) as pool:
            results = list(pool.map(commit, ways))
        assert sorted(map(str, results)).count("id_reused") == 2, results
        assert direct.read("a.t").num_rows == 6
        assert direct.version() == through_other.version() == 2
        assert direct.list_saved() == []


def test_too_large_for_a_daemon(catalog: Catalog, space: str) -> None:
    with catalog.transaction() as tx:
        for number in range(80):
            tx.update_namespace(space, set={"k": str(number) + "x" * 60_000})
        refused(InvalidInput, tx.save, word="too_large")
        tx.abandon()
    assert catalog.list_saved() == []
