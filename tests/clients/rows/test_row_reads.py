"""Reading rows: pruned, streamed, counted, and as pandas or DuckDB, over both ways to a catalog."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import alpheus
from alpheus import Catalog, aio
from alpheus.catalog import core_of
from alpheus.errors import Corrupt, InvalidInput, NotFound
from alpheus.rows import encoder, file_writer
from alpheus.rows import scan as scan_module
from alpheus_journal import format
from alpheus_journal.clock import make_uuid7
from alpheus_journal.predicate import Verdict, all_of, compare, judge
from alpheus_journal.storage import each_of
from alpheus_journal.tables.columns import columns_of_schema, schema_of_columns
from alpheus_journal.tables.parquet_footer import data_file_of_footer, row_group_files

TABLE = "00000000-0000-4000-8000-000000000001"
_numbers = itertools.count(1)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("at", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("many", pa.list_(pa.int32())),
    ]
)


REMOTE = {
    "test_rows_by_predicate", "test_old_versions_by_the_columns_that_they_had", "test_scans_tell_what_they_read",
    "test_transactions_read_what_they_wrote", "test_without_await_and_with_it",
}  # fmt: skip
"""Tests that run over a daemon in every run. Others do so in slow runs: all client code but the commit is shared."""


@pytest.fixture
def name(catalog: Catalog) -> str:
    """Create a table with three files of ten rows each (ids 0 to 29), and return its name."""
    space = f"s{next(_numbers)}"
    catalog.create_namespace(space)
    table = f"{space}.t"
    catalog.create_table(table, SCHEMA)
    for start in (0, 10, 20):
        catalog.append(table, rows(start, start + 10))
    return table


def rows(start: int, end: int) -> list[dict[str, Any]]:
    return [
        {"id": n, "name": f"n{n:02}", "at": {"x": n % 3, "y": None} if n % 2 else None, "many": [n]}
        for n in range(start, end)
    ]


def ids(table: pa.Table) -> list[int]:
    found: list[int] = table.column("id").to_pylist()
    return found


def test_rows_by_predicate(catalog: Catalog, name: str) -> None:
    assert ids(catalog.read(name, where="id >= 8 and id < 12")) == [8, 9, 10, 11]
    assert ids(catalog.read(name, where="at.x = 1 and id < 10")) == [1, 7]
    assert ids(catalog.read(name, where="not (at.x = 1) and id < 10")) == [3, 5, 9]
    assert ids(catalog.read(name, where="at.x is null and id < 5")) == [0, 2, 4]
    assert ids(catalog.read(name, where="name like 'n2%' and id <> 25")) == [
        20,
        21,
        22,
        23,
        24,
        26,
        27,
        28,
        29,
    ]
    assert catalog.read(name, where="null").num_rows == 0


def test_columns_that_only_the_predicate_needs_are_not_given(catalog: Catalog, name: str) -> None:
    found = catalog.read(name, where="id = 3", columns=["many", "name"])
    assert found.to_pylist() == [{"many": [3], "name": "n03"}]
    assert catalog.read(name, where="id = 3").schema == SCHEMA


def test_a_predicate_as_a_value(catalog: Catalog, name: str) -> None:
    id, *_ = catalog.load_table(name).columns
    assert ids(catalog.read(name, where=all_of(compare(id, ">", 3), compare(id, "<=", 5)))) == [4, 5]


def test_old_versions_by_the_columns_that_they_had(catalog: Catalog, name: str) -> None:
    before = catalog.version()
    catalog.update_table(name, rename_columns={"name": "title"}, drop_columns=["many"])
    catalog.append(name, [{"id": 30, "title": "new"}])
    assert ids(catalog.read(name, where="title >= 'n28'")) == [28, 29, 30]
    assert ids(catalog.read(name, at=before, where="name >= 'n28'")) == [28, 29]
    assert ids(catalog.at(before).read(name, "name >= 'n28'")) == [28, 29]
    with pytest.raises(InvalidInput) as caught:
        catalog.read(name, where="name = 'n28'")
    assert caught.value.kind == "bad_predicate"
    assert "title" in f"{caught.value.message} {caught.value.hint}"


def test_added_columns_have_their_default_in_predicates(catalog: Catalog, name: str) -> None:
    catalog.update_table(
        name, add_columns={"n": pa.int32(), "at.z": pa.int32()}, defaults={"n": 7, "at.z": 9}
    )
    catalog.append(name, [{"id": 30, "n": 8, "at": {"x": 0, "z": 1}}, {"id": 31, "n": None}])
    assert catalog.scan(name, where="n = 7").count() == 30
    assert ids(catalog.read(name, where="n = 7 and id > 27")) == [28, 29]
    assert ids(catalog.read(name, where="at.z = 9 and id < 6")) == [1, 3, 5]
    assert ids(catalog.read(name, where="at.z is null and id < 6")) == [0, 2, 4]
    assert ids(catalog.read(name, where="at.z = 1")) == [30]
    assert ids(catalog.read(name, where="n is null")) == [31]


def test_scans_tell_what_they_read(catalog: Catalog, name: str) -> None:
    scan = catalog.scan(name, where="id >= 15", columns=["id"])
    assert scan.version == catalog.version()
    assert len(scan.files) == 2
    assert len(scan.skipped) == 1
    assert scan.schema == pa.schema([("id", pa.int64())])
    lines = scan.explain().splitlines()
    assert lines[0] == "where `id` >= 15"
    assert lines[1].startswith("read 2 of 3 files, 20 of 30 rows")
    assert "values of id are at least 0 and at most 9" in lines[-1]
    assert scan.count() == 15
    assert catalog.scan(name).count() == 30
    catalog.append(name, rows(30, 40))
    assert scan.count() == 15, "pinned"


def test_scans_are_pinned_snapshots_too(catalog: Catalog, name: str) -> None:
    snapshot = catalog.at(catalog.version())
    catalog.delete(name, "id < 25")
    assert snapshot.scan(name).count() == 30
    assert catalog.scan(name).count() == 5
    with catalog.replica() as copy:
        copy.wait_for(catalog.version())
        assert copy.scan(name, "id > 27").count() == 2
        assert ids(copy.read(name, "id > 27")) == [28, 29]


def test_batches_are_the_rows_in_order(catalog: Catalog, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "READ_AHEAD_BYTES_MAX", 1)
    scan = catalog.scan(name, where="id <> 10")
    reader = scan.to_batches()
    assert reader.schema == SCHEMA
    assert (
        pa.Table.from_batches(reader, schema=SCHEMA)
        == scan.to_arrow()
        == catalog.read(name, where="id <> 10")
    )
    with scan.to_batches() as reader:
        assert next(iter(reader)).num_rows == 10  # leaves the reader early


def test_a_stream_holds_few_files(catalog: Catalog, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    real = each_of

    async def counted(items: Any, work: Any, at_once: int) -> Any:
        held.append(len(items))
        return await real(items, work, at_once)

    monkeypatch.setattr(scan_module, "each_of", counted)
    size = max(one.file.size_bytes for one in catalog.scan(name).files)
    monkeypatch.setattr(scan_module, "READ_AHEAD_BYTES_MAX", 2 * size + 1)
    scan = catalog.scan(name)
    held.clear()
    assert sum(batch.num_rows for batch in scan.to_batches()) == 30
    assert held == [2, 1]


def test_pandas_and_arrow_streams(catalog: Catalog, name: str) -> None:
    scan = catalog.scan(name, where="id < 3", columns=["id", "name"])
    assert scan.to_pandas().to_dict("list") == {"id": [0, 1, 2], "name": ["n00", "n01", "n02"]}
    assert catalog.read(name, where="id < 3").to_pandas()["id"].tolist() == [0, 1, 2]
    assert pa.table(scan) == scan.to_arrow()
    catalog.create_table(f"{name}_copy", scan.schema)
    catalog.append(f"{name}_copy", scan)
    assert ids(catalog.read(f"{name}_copy")) == [0, 1, 2]


def test_duckdb_reads_each_query_anew(catalog: Catalog, name: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        relation = catalog.scan(name, where="id >= 5").to_duckdb(connection, "t")
        assert relation.aggregate("count(*)").fetchall() == [(25,)]
        for _ in range(2):
            assert connection.sql("select sum(id) from t where name < 'n10'").fetchall() == [(35,)]
        alone = catalog.scan(name, columns=["id"]).to_duckdb(connection)
        assert alone.filter("id > 27").fetchall() == [(28,), (29,)]
        del relation, alone


def test_without_duckdb_the_way_out_is_named(
    catalog: Catalog, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(InvalidInput) as caught:
        catalog.scan(name).to_duckdb()
    assert caught.value.kind == "not_supported"
    assert "alpheus[duckdb]" in caught.value.hint


def test_transactions_read_what_they_wrote(catalog: Catalog, name: str) -> None:
    with catalog.transaction() as tx:
        tx.delete(name, "id < 28")
        tx.append(name, [{"id": 28}])
        assert ids(tx.read(name, columns=["id"])) == [28, 29, 28]
        assert tx.scan(name, "id = 28").count() == 2
        tx.delete(name, "id = 28", mode="rewrite")
        assert ids(tx.read(name)) == [29]
        tx.update(name, {"name": "last"}, "true")
        assert tx.read(name, columns=["id", "name"]).to_pylist() == [{"id": 29, "name": "last"}]
        assert catalog.scan(name).count() == 30
    assert catalog.read(name, columns=["id", "name"]).to_pylist() == [{"id": 29, "name": "last"}]


def test_serializable_reads_name_the_columns_that_they_depend_on(catalog: Catalog, name: str) -> None:
    with catalog.transaction(isolation="serializable") as tx:
        tx.read(name, where="at.x = 1", columns=["id"])
        reads = core_of(tx).transaction().reads
        tx.abandon()
    assert [read.columns for read in reads if read.type == "TABLE_SELECT"] == [("id", "at")]


def test_without_await_and_with_it(catalog: Catalog, name: str) -> None:
    async def read() -> list[Any]:
        async with await aio.connect(catalog.url) as other:
            scan = await other.scan(name, where="id >= 28")
            streamed = [batch.num_rows async for batch in scan.to_batches()]
            whole = await other.read(name, where="id >= 28")
            frame = await scan.to_pandas()
            return [streamed, ids(whole), await scan.count(), list(frame["id"])]

    assert asyncio.run(read()) == [[2], [28, 29], 2, [28, 29]]


# --- rows that cannot be read ----------------------------------------------------------------------


def test_what_is_asked_wrongly_is_named(catalog: Catalog, name: str) -> None:
    for where, word in (
        ("nope = 1", "nope"),
        ("id = 'x'", "id"),
        ("id = ", ""),
        ("many = 1", "many"),
        ("upper(name) = 'A'", ""),
    ):
        with pytest.raises(InvalidInput) as caught:
            catalog.read(name, where=where)
        assert caught.value.kind == "bad_predicate", where
        assert word in caught.value.message, where
    with pytest.raises(InvalidInput):
        catalog.scan(name, columns=["id", "nope"])
    with pytest.raises(NotFound):
        catalog.scan(f"{name}x")


def test_a_file_that_vanished_is_named(catalog: Catalog, name: str) -> None:
    scan = catalog.scan(name)
    path = scan.files[1].file.path
    storage = catalog.storage()
    asyncio.run(storage.delete(path))
    for read in (scan.to_arrow, scan.to_pandas, lambda: list(scan.to_batches())):
        with pytest.raises(Corrupt) as caught:
            read()
        assert caught.value.path == path
        assert "manifest/" in caught.value.message
    assert scan.count() == 30  # counted from metadata
    assert ids(catalog.read(name, where="id < 10")) == list(range(10)), "a file that is skipped is not missed"


# --- row groups ------------------------------------------------------------------------------------


def test_row_groups_without_a_row_that_is_meant_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "ROW_GROUP_ROWS_MAX", 10)
    monkeypatch.setattr(file_writer, "PIECE_SIZE_BYTES_MAX", 1 << 20)
    with alpheus.create(f"file://{tmp_path}/lake") as lake:
        lake.create_namespace("a")
        lake.create_table("a.t", SCHEMA)
        lake.append("a.t", pa.Table.from_batches([
            pa.RecordBatch.from_pylist(rows(start, start + 10), SCHEMA) for start in range(0, 100, 10)
        ]))  # fmt: skip
        (planned,) = lake.scan("a.t").files
        place = lake.storage().local_path(planned.file.path)
        metadata = pq.read_metadata(place)
        assert metadata.num_row_groups == 10
        id, *_ = lake.load_table("a.t").columns
        groups = row_group_files(planned.file, metadata, [id])
        verdicts = [judge(compare(id, ">=", 35), group) for group in groups]
        assert verdicts == [Verdict.NEVER] * 3 + [Verdict.MAYBE] + [Verdict.ALWAYS] * 6
        read: list[list[int]] = []
        real = pq.ParquetFile.iter_batches

        def watched(self: Any, **options: Any) -> Any:
            read.append(options["row_groups"])
            return real(self, **options)

        monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
        assert ids(lake.read("a.t", where="id >= 35")) == list(range(35, 100))
        assert read == [[3], [4, 5, 6, 7, 8, 9]]
        lake.delete("a.t", "id < 20 or id = 77")
        read.clear()
        assert ids(lake.read("a.t", where="id < 80")) == [*range(20, 77), 78, 79]
        assert [number for numbers in read for number in numbers] == [2, 3, 4, 5, 6, 7]


def test_statistics_of_row_groups_are_found_by_field_id() -> None:
    schema = pa.schema([
        ("l", pa.list_(pa.struct([("a", pa.int32()), ("b", pa.int32())]))),
        ("s", pa.struct([("m", pa.map_(pa.string(), pa.int32())), ("d", pa.decimal128(5, 2))])),
        ("t", pa.timestamp("us")),
    ])  # fmt: skip
    columns = columns_of_schema(schema)
    sink = pa.BufferOutputStream()
    data = [
        {"l": [{"a": 1, "b": 2}], "s": {"m": [("k", 1)], "d": Decimal(n)}, "t": dt.datetime(2020, 1, 1 + n)}
        for n in range(6)
    ]
    pq.write_table(pa.Table.from_pylist(data, schema_of_columns(columns)), sink, row_group_size=2)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    path = format.data_folder(TABLE, make_uuid7(1_000, 1), TABLE) + "p.parquet"
    file = data_file_of_footer(path, sink.getvalue().size, metadata, columns)
    decimal, time = columns[1].fields[1], columns[2]
    groups = row_group_files(file, metadata, [decimal, time])
    assert [group.row_count for group in groups] == [2, 2, 2]
    assert [judge(compare(decimal, "<", Decimal("2.5")), group).value for group in groups] == [
        "always",
        "maybe",
        "never",
    ]
    assert [judge(compare(time, "=", dt.datetime(2020, 1, 6)), group).value for group in groups] == [
        "never",
        "never",
        "maybe",
    ]
