"""Existing Parquet files become rows of a table: unchanged, rewritten, or refused, over both ways to a catalog."""

from __future__ import annotations

import asyncio
import datetime as dt
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_table import SCHEMA, ids, name, refused, rows, space

from alpheus import Catalog
from alpheus.errors import AlpheusError, InvalidInput, NotFound
from alpheus.transactions import append_files as adopting
from alpheus_journal.tables.columns import columns_of_schema, schema_of_columns, strip_field_ids

__all__ = ["name", "space"]

REMOTE = {"test_files_of_the_transactions_own_folder_are_taken"}
"""Tests that run over a daemon in every run. Others do so in slow runs: all client code but the commit is shared."""


def parquet(path: Path, data: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> str:
    pq.write_table(pa.Table.from_pylist(data, schema), path)
    return str(path)


def test_files_are_copied_by_name(catalog: Catalog, name: str, tmp_path: Path) -> None:
    other = pa.schema([("n", pa.int16()), ("id", pa.int32())])
    paths: list[str | Path] = [parquet(tmp_path / "a.parquet", rows(20, 25)), tmp_path / "b.parquet"]
    parquet(tmp_path / "b.parquet", rows(25, 27), other)
    done = catalog.append_files(name, paths)
    assert (done.rows_added, done.rows_removed, done.files_added) == (
        7,
        0,
        1,
    )  # one new file has the rows of both
    for path in paths:
        Path(path).unlink()
    assert ids(catalog, name) == list(range(27))
    assert catalog.read(name, where="id = 26").to_pylist() == [{"id": 26, "kind": None, "n": 260}]


def test_files_with_the_tables_ids_are_copied_as_they_are(
    catalog: Catalog, name: str, tmp_path: Path
) -> None:
    schema = schema_of_columns(columns_of_schema(SCHEMA))
    path = parquet(tmp_path / "a.parquet", rows(20, 25), schema)
    catalog.append_files(name, f"file://{path}")
    copy = next(one.file for one in catalog.scan(name, where="id = 20").files)
    assert asyncio.run(catalog.storage().read(copy.path, size_max=1 << 20)) == Path(path).read_bytes()
    assert ids(catalog, name, "id >= 20") == list(range(20, 25))
    # the schema of another table
    wrong = pa.schema([schema.field(0).with_name("n"), schema.field(2).with_name("id")])
    swapped = parquet(tmp_path / "b.parquet", [{"id": 30, "n": 300}], wrong)
    catalog.append_files(name, swapped)
    assert catalog.read(name, where="id = 30").to_pylist() == [{"id": 30, "kind": None, "n": 300}], "by name"


def test_files_of_the_table_itself_go_by_id_under_old_names(
    catalog: Catalog, name: str, tmp_path: Path
) -> None:
    """Files of the table itself are matched by id under their old names, and are rewritten.

    Readers look up a file's statistics under the names of the file's schema.
    """
    before = {one.file.path for one in catalog.scan(name).files}
    file = next(one.file for one in catalog.scan(name, where="id = 3").files)
    path = tmp_path / "old.parquet"
    path.write_bytes(asyncio.run(catalog.storage().read(file.path, size_max=1 << 20)))
    catalog.update_table(name, rename_columns={"kind": "n2", "n": "kind"})
    catalog.update_table(name, add_columns={"n": pa.int64()}, defaults={"n": 7})
    numbers = pq.read_table(path)["id"].to_pylist()
    there = catalog.read(name).to_pylist()
    again = [row for row in there if row["id"] in numbers]
    assert {"id": 3, "n2": "b", "kind": 30, "n": 7} in again
    catalog.append_files(name, path)
    assert sorted(catalog.read(name).to_pylist(), key=str) == sorted(there + again, key=str)
    for one in catalog.scan(name).files:
        if one.file.path not in before:
            data = asyncio.run(catalog.storage().read(one.file.path, size_max=1 << 20))
            assert pq.read_schema(pa.BufferReader(data)).names == ["id", "n2", "kind", "n"]
    # A file without ids is matched by name, like any other file, though it says that it is of this table.
    bare = pq.read_table(path)
    plain = strip_field_ids(bare.schema).with_metadata(bare.schema.metadata)
    pq.write_table(bare.select(["id", "n"]).cast(pa.schema([plain.field("id"), plain.field("n")])), path)
    catalog.delete(name, "true")
    catalog.append_files(name, path)
    assert catalog.read(name, where="id = 3", columns=["n", "kind"]).to_pylist() == [{"n": 30, "kind": None}]


def test_ids_below_lists_and_maps_are_compared(catalog: Catalog, space: str, tmp_path: Path) -> None:
    def numbered(name: str, kind: pa.DataType, id: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(id)})

    plain = pa.struct([("a", pa.int32()), ("b", pa.int32())])
    name = f"{space}.l"
    catalog.create_table(name, pa.schema([("l", pa.list_(plain)), ("m", pa.map_(pa.string(), plain))]))
    listed, mapped = catalog.load_table(name).columns
    assert listed.element is not None
    assert mapped.value is not None
    for swapped in ("l", "m"):
        kinds = {}
        for place, element in (("l", listed.element), ("m", mapped.value)):
            first, second = element.fields[:: -1 if place == swapped else 1]
            fields = [numbered("a", pa.int32(), first.id), numbered("b", pa.int32(), second.id)]
            kinds[place] = pa.struct(fields)
        schema = pa.schema([
            numbered("l", pa.list_(pa.field("element", kinds["l"])), listed.id),
            numbered("m", pa.map_(pa.string(), kinds["m"]), mapped.id),
        ])  # fmt: skip
        row = {"l": [{"a": 1, "b": 2}], "m": [("x", {"a": 1, "b": 2})]}
        catalog.append_files(name, parquet(tmp_path / f"{swapped}.parquet", [row], schema))
        assert catalog.read(name).to_pylist() == [row]
        catalog.delete(name, "true")


def test_files_without_a_column_take_the_default_of_inserts(
    catalog: Catalog, name: str, tmp_path: Path
) -> None:
    columns = catalog.load_table(name).columns
    path = parquet(tmp_path / "a.parquet", [{"id": 30}], schema_of_columns(columns[:1]))
    catalog.update_table(name, defaults={"n": 7})
    catalog.append_files(name, path)
    assert catalog.read(name, where="id = 30").to_pylist() == [{"id": 30, "kind": None, "n": 7}]


def test_timestamps_of_int96_are_instants(catalog: Catalog, space: str, tmp_path: Path) -> None:
    """Timestamps of INT96 are instants, as in imports. Nanoseconds would wrap around in the year 2262."""
    times = pa.array([253402214400000000, -62135596800000000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"at": times}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    catalog.create_table(f"{space}.at", pa.schema([("at", times.type)]))
    catalog.append_files(f"{space}.at", tmp_path / "a.parquet")
    assert catalog.read(f"{space}.at")["at"].combine_chunks() == times


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_file_that_changes_while_it_is_read_is_refused(
    catalog: Catalog, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    schema = schema_of_columns(columns_of_schema(SCHEMA))
    path = parquet(tmp_path / "a.parquet", rows(20, 25), schema)
    look = adopting._find_source

    def found(path: str) -> Any:
        seen = look(path)
        if is_gone:
            Path(path).unlink()
        else:
            parquet(Path(path), rows(20, 26), schema)
        return seen

    monkeypatch.setattr(adopting, "_find_source", found)
    words = ["bad_data", "cannot be read"] if is_gone else ["source_changed"]
    refused(InvalidInput, partial(catalog.append_files, name, path), path, *words)
    assert ids(catalog, name) == list(range(20))


def test_files_of_partitioned_tables_are_split(catalog: Catalog, space: str, tmp_path: Path) -> None:
    name = f"{space}.p"
    catalog.create_table(name, SCHEMA, partition_by=["kind"], sort_by=["n"])
    catalog.append_files(name, [parquet(tmp_path / "a.parquet", rows(0, 6))])
    assert [one.file.row_count for one in catalog.scan(name).files] == [3, 3]
    assert ids(catalog, name) == list(range(6))


def test_files_of_the_transactions_own_folder_are_taken(catalog: Catalog, name: str) -> None:
    table = catalog.load_table(name)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows(20, 22), schema_of_columns(table.columns)), sink)
    with catalog.transaction() as tx:
        path = f"data/{table.id}/{tx.id}/00000000-0000-4000-8000-000000000001/mine.parquet"
        asyncio.run(catalog.storage().put(path, sink.getvalue().to_pybytes()))
        tx.append_files(name, path)
    assert path in [one.file.path for one in catalog.scan(name).files]
    assert ids(catalog, name) == list(range(22))
    refused(InvalidInput, lambda: catalog.append_files(name, path), "bad_argument", "absolute path")
    catalog.update_table(name, rename_columns={"n": "m"})
    with catalog.transaction() as tx:
        path = f"data/{table.id}/{tx.id}/00000000-0000-4000-8000-000000000001/mine.parquet"
        asyncio.run(catalog.storage().put(path, sink.getvalue().to_pybytes()))
        refused(InvalidInput, lambda: tx.append_files(name, path), "bad_data", "but other names")
        tx.abandon()


def test_files_that_cannot_be_taken(catalog: Catalog, name: str, tmp_path: Path) -> None:
    good = parquet(tmp_path / "good.parquet", rows(20, 22))
    (tmp_path / "text.parquet").write_text("no parquet")
    wrong = parquet(tmp_path / "wrong.parquet", [{"id": "x"}], pa.schema([("id", pa.string())]))
    extra = parquet(tmp_path / "extra.parquet", [{"more": 1}], pa.schema([("more", pa.int64())]))
    cases: list[tuple[Any, type[AlpheusError], list[str]]] = [
        (str(tmp_path / "nope.parquet"), NotFound, ["no_file", "nope.parquet"]),
        (str(tmp_path), InvalidInput, ["is not a file"]),
        (str(tmp_path / "text.parquet"), InvalidInput, ["bad_data", "text.parquet"]),
        (wrong, InvalidInput, ["bad_data", "wrong.parquet", "'id'"]),
        (extra, InvalidInput, ["bad_data", "extra.parquet", "'more'"]),
        ("relative.parquet", InvalidInput, ["bad_argument", "absolute path"]),
        ("../../etc/passwd", InvalidInput, ["bad_argument"]),
        ("ftp://host/x.parquet", InvalidInput, ["bad_argument", "ftp"]),
        ([], InvalidInput, ["bad_argument", "at least one path"]),
        ([good, good], InvalidInput, ["bad_argument", "twice"]),
        (7, InvalidInput, ["bad_argument", "7"]),
    ]
    for paths, kind, words in cases:
        many = [good, paths] if isinstance(paths, str) else paths
        refused(kind, partial(catalog.append_files, name, many), *words)
    assert ids(catalog, name) == list(range(20)), "all or none"


def test_files_of_another_calendar_are_refused(catalog: Catalog, name: str, tmp_path: Path) -> None:
    """Files of another calendar are refused.

    Spark adjusts old days of such files and other readers do not, so that one file would have two contents.
    """
    new, old, midst = dt.date(1582, 10, 15), dt.date(1582, 10, 4), dt.datetime(1899, 12, 31)
    table = f"{name}_days"
    schema = pa.schema([("id", pa.int64()), ("d", pa.date32()), ("at", pa.timestamp("us"))])
    catalog.create_table(table, schema)
    legacy = {"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyDateTime": ""}
    files: list[tuple[dict[str, str], dict[str, Any], str]] = [
        ({"org.apache.spark.version": "2.4.8"}, {"d": old}, "column d"),
        ({"org.apache.spark.version": "2.4.8"}, {"d": new, "at": midst}, "column at"),
        (legacy, {"d": old}, "column d"),
        ({"org.apache.spark.version": "2.4.8"}, {"d": new, "at": dt.datetime(1950, 1, 1)}, ""),
        (legacy, {"d": None}, ""),
        ({"org.apache.spark.version": "4.1.0"}, {"d": old, "at": midst}, ""),
        ({}, {"d": old, "at": midst}, ""),
    ]
    added = 0
    for number, (told, row, wrong) in enumerate(files):
        marked = schema.with_metadata(told)
        path = parquet(tmp_path / f"{number}.parquet", [{"id": number, **row}], marked)
        if wrong:
            with pytest.raises(InvalidInput, match=f"{wrong} may hold .* another calendar") as caught:
                catalog.append_files(table, path)
            assert (caught.value.kind, "append the frame" in caught.value.hint) == ("bad_data", True)
            with pytest.raises(InvalidInput, match=wrong):
                catalog.import_table(f"{table}_{number}", path)
        else:
            catalog.append_files(table, path)
            added += 1
    bare = tmp_path / "bare.parquet"
    found = pa.Table.from_pylist([{"id": 1, "d": new}], schema.with_metadata(legacy))
    pq.write_table(found, bare, write_statistics=False)
    with pytest.raises(InvalidInput, match="another calendar"):
        catalog.append_files(table, bare)
    assert len(catalog.read(table)) == added
