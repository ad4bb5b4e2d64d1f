"""Imports of Parquet files: folders, patterns, partition folders, types, and resumption after an interruption."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from alpheus_test_servers import S3Server
from click.testing import CliRunner, Result
from deltalake import write_deltalake

import alpheus
from alpheus import cli
from alpheus.errors import AlreadyExists, Expired, InvalidInput, NotFound, Unavailable
from alpheus.importing import copy as transfer
from alpheus.importing.parquet import ParquetSource
from alpheus.importing.results import ImportProgress
from alpheus.importing.schemas import union

StartDaemon = Callable[..., Any]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[alpheus.Catalog]:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("old")
        yield catalog


@pytest.fixture
def file_by_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PART_FILES_MAX", 1)


def put(path: Path, data: Any, **options: Any) -> Path:
    table = data if isinstance(data, pa.Table) else pa.table(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def rows(catalog: alpheus.Catalog, name: str = "old.t", by: str = "id") -> list[dict[str, Any]]:
    return catalog.read(name).sort_by(by).to_pylist()


# --- what comes in ---------------------------------------------------------------------------------


def test_a_folder_becomes_a_table_in_one_commit(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    nested = {
        "id": pa.array([1, 2], pa.int64()),
        "tags": pa.array([["a", None], None], pa.list_(pa.string())),
        "at": pa.array([{"x": 1, "y": None}, None], pa.struct([("x", pa.int32()), ("y", pa.float64())])),
        "map": pa.array([[("k", [1])], None], pa.map_(pa.string(), pa.list_(pa.int64()))),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "kind": pa.array(["a", "b"]).dictionary_encode(),
    }
    put(tmp_path / "src/b/one.parquet", nested)
    put(tmp_path / "src/two.parquet", pa.table(nested).slice(0, 1))
    put(tmp_path / "src/_temporary/half.parquet", {"other": [1]})
    (tmp_path / "src/_SUCCESS").write_bytes(b"")
    (tmp_path / "src/.two.parquet.crc").write_bytes(b"crc")
    before = catalog.version()
    told: list[object] = []
    done = catalog.import_table(
        "old.t",
        tmp_path / "src",
        message="moving in",
        properties={"ticket": "7"},
        on_begin=told.append,
        on_progress=told.append,
    )
    assert catalog.version() == done.version == before + 1
    assert (done.source_files, done.rows, done.files, done.duplicate) == (2, 3, 1, False)
    expected = [*pa.table(nested).to_pylist(), pa.table(nested).slice(0, 1).to_pylist()[0]]
    assert rows(catalog) == sorted(expected, key=lambda row: row["id"])
    entry = next(iter(catalog.log("old.t")))
    said = entry.transaction.properties
    assert (entry.transaction.id, entry.transaction.message) == (done.transaction_id, "moving in")
    assert said["ticket"] == "7"
    assert said["alpheus.import.source"] == str(tmp_path / "src")
    assert (said["alpheus.import.rows"], said["alpheus.import.files"]) == ("3", "2")
    assert told[0] == done.transaction_id
    last = told[-1]
    assert isinstance(last, ImportProgress)
    assert (last.files, last.rows, last.size_bytes) == (2, 3, done.source_size_bytes)
    assert catalog.list_saved() == []
    assert catalog.load_table("old.t").row_count == 3
    assert catalog.admin.check().findings == ()


def test_partition_folders_become_columns_and_partitions(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    put(tmp_path / "src/year=2024/city=S%C3%A3o%2FX%20%25/a.parquet", {"id": [1]})
    put(tmp_path / "src/year=2024/city=__HIVE_DEFAULT_PARTITION__/a.parquet", {"id": [2]})
    put(tmp_path / "src/year=-7/city=007/a.parquet", {"id": [3]})
    catalog.import_table("old.t", tmp_path / "src")
    assert rows(catalog) == [
        {"id": 1, "year": 2024, "city": "São/X %"},
        {"id": 2, "year": 2024, "city": None},
        {"id": 3, "year": -7, "city": "007"},
    ]
    table = catalog.load_table("old.t")
    assert [column.type for column in table.columns] == ["INT8", "INT4", "VARCHAR"]
    assert len(table.definition.partition_spec) == 2
    assert catalog.scan("old.t", where="year = -7").to_arrow().num_rows == 1
    catalog.import_table(
        "old.text",
        tmp_path / "src",
        partition_types={"year": pa.string()},
        partition_by=[],
        sort_by=["id desc"],
    )
    assert catalog.read("old.text").schema.field("year").type == pa.string()
    assert catalog.read("old.text")["id"].to_pylist() == [3, 2, 1]
    assert catalog.load_table("old.text").definition.partition_spec == ()


def test_partition_types_are_given_and_must_fit(tmp_path: Path) -> None:
    put(tmp_path / "src/day=2024-02-30/a.parquet", {"id": [1]})
    with pytest.raises(InvalidInput, match=r"day=2024-02-30/a\.parquet: day='2024-02-30' is not a date32"):
        ParquetSource(str(tmp_path / "src"), {"day": pa.date32()})
    with pytest.raises(InvalidInput, match=r"'hour'.*not a partition key"):
        ParquetSource(str(tmp_path / "src"), {"hour": pa.int32()})
    (tmp_path / "src/day=2024-02-30").rename(tmp_path / "src/day=2024-02-29")
    source = ParquetSource(str(tmp_path / "src"), {"day": pa.date32()})
    assert pa.Table.from_batches(source.batches(0)).to_pylist() == [{"id": 1, "day": dt.date(2024, 2, 29)}]


def test_a_partition_key_in_the_file_must_say_the_same(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    put(tmp_path / "src/day=1/a.parquet", {"id": [1, 2], "day": pa.array([1, 1], pa.int64())})
    put(tmp_path / "src/day=2/a.parquet", {"id": [3]})
    catalog.import_table("old.t", tmp_path / "src")
    assert [(row["id"], row["day"]) for row in rows(catalog)] == [(1, 1), (2, 1), (3, 2)]
    put(tmp_path / "src/day=3/a.parquet", {"id": [4], "day": pa.array([None], pa.int64())})
    with pytest.raises(InvalidInput, match=r"day=3/a\.parquet: column 'day' has values other than 3"):
        catalog.import_table("old.u", tmp_path / "src")
    assert not catalog.table_exists("old.u")
    assert catalog.list_saved() == []


def test_folders_of_different_keys_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "src/day=1/a.parquet", {"id": [1]})
    put(tmp_path / "src/b.parquet", {"id": [1]})
    with pytest.raises(
        InvalidInput, match=r"b\.parquet has partition keys \(\), day=1/a\.parquet has \(day\)"
    ):
        ParquetSource(str(tmp_path / "src"))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a*.parquet", {"a1.parquet"}),
        ("x*/*.parquet", {"x=1/a2.parquet", "x=2/b2.parquet"}),
        ("x=[2-9]", {"x=2/b2.parquet"}),
        ("**/x=1/a?.parquet", {"x=1/a2.parquet"}),
        ("**/c.*", {"odd[1]/c.parquet"}),
        ("odd?/d*", {"odd1/d.parquet"}),
        ("x=1/a2.parquet", {"a2.parquet"}),
        ("odd[1]", {"c.parquet"}),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, found: set[str]) -> None:
    for name in ("a1.parquet", "x=1/a2.parquet", "x=2/b2.parquet", "odd[1]/c.parquet", "odd1/d.parquet"):
        put(tmp_path / name, {"id": [1]})
    source = ParquetSource(str(tmp_path / pattern))
    assert {file.name for file in source.files} == found


def test_files_of_different_columns_are_united_by_name(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    one = pa.table(
        {
            "id": pa.array([1], pa.int16()),
            "n": pa.array([1], pa.int32()),
            "f": pa.array([0.5], pa.float32()),
            "s": pa.array([{"a": 1}], pa.struct([("a", pa.int32())])),
            "l": pa.array([[1]], pa.list_(pa.int16())),
            "none": pa.nulls(1),
        }
    )
    other = pa.table(
        {
            "extra": ["x"],
            "n": pa.array([1 << 40], pa.int64()),
            "id": pa.array([2], pa.int64()),
            "f": pa.array([0.1], pa.float64()),
            "s": pa.array([{"b": "y", "a": 1 << 40}], pa.struct([("b", pa.string()), ("a", pa.int64())])),
            "l": pa.array([[1 << 20]], pa.list_(pa.int32())),
            "none": pa.array([Decimal("1.5")]),
        }
    )
    put(tmp_path / "src/1.parquet", one)
    put(tmp_path / "src/2.parquet", other)
    catalog.import_table("old.t", tmp_path / "src")
    first, second = rows(catalog)
    assert first == {
        "id": 1,
        "n": 1,
        "f": 0.5,
        "s": {"a": 1, "b": None},
        "l": [1],
        "none": None,
        "extra": None,
    }
    assert second == {
        "id": 2, "n": 1 << 40, "f": 0.1, "s": {"a": 1 << 40, "b": "y"}, "l": [1 << 20],
        "none": Decimal("1.5"), "extra": "x",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.int64(), pa.string()),
        (pa.int64(), pa.float64()),
        (pa.date32(), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.binary(2), pa.binary(3)),
        (pa.string(), pa.binary()),
        (pa.list_(pa.int32()), pa.int32()),
        (pa.decimal128(38, 0), pa.decimal128(38, 10)),
        (pa.struct([("x", pa.int32())]), pa.struct([("x", pa.string())])),
    ],
)
def test_columns_of_no_common_type_are_refused_by_both_names(one: pa.DataType, other: pa.DataType) -> None:
    for pair in ((one, other), (other, one)):
        with pytest.raises(InvalidInput, match=r"column 'c.*first\.parquet and last\.parquet"):
            union(
                [
                    ("first.parquet", pa.schema([("c", pair[0])])),
                    ("between.parquet", pa.schema([("c", pair[0])])),
                    ("last.parquet", pa.schema([("c", pair[1])])),
                ]
            )


@pytest.mark.parametrize(
    ("one", "other", "wider"),
    [
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.decimal128(5, 2), pa.decimal128(21, 2)),
        (pa.decimal128(10, 2), pa.decimal128(12, 6), pa.decimal128(14, 6)),
        (pa.null(), pa.bool_(), pa.bool_()),
        (
            pa.map_(pa.string(), pa.int16()),
            pa.map_(pa.string(), pa.int64()),
            pa.map_(pa.string(), pa.int64()),
        ),
    ],
)
def test_wider_types(one: pa.DataType, other: pa.DataType, wider: pa.DataType) -> None:
    for pair in ((one, other), (other, one)):
        schema = union([(str(kind), pa.schema([("c", kind)])) for kind in pair])
        assert schema == pa.schema([("c", wider)])


def test_required_columns_stay_so_where_all_files_have_them(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("n", pa.int64(), False)])
    put(tmp_path / "src/1.parquet", pa.table({"id": [1], "n": [1]}, schema=schema))
    put(tmp_path / "src/2.parquet", pa.table({"id": [2]}, schema=pa.schema([schema.field("id")])))
    catalog.import_table("old.t", tmp_path / "src")
    assert [column.nullable for column in catalog.load_table("old.t").columns] == [False, True]


def test_types_that_native_tables_lack(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    at = dt.datetime(2024, 5, 6, 7, 8, 9, 123456)
    data = pa.table(
        {
            "id": pa.array([1], pa.int8()),
            "u8": pa.array([255], pa.uint8()),
            "u16": pa.array([65535], pa.uint16()),
            "u32": pa.array([(1 << 32) - 1], pa.uint32()),
            "u64": pa.array([(1 << 64) - 1], pa.uint64()),
            "half": pa.array([1.5], pa.float16()),
            "ns": pa.array([at], pa.timestamp("ns")),
            "nsz": pa.array([at], pa.timestamp("ns", "Europe/Berlin")),
            "inner": pa.array([[{"u": 7}]], pa.list_(pa.struct([("u", pa.uint8())]))),
        }
    )
    put(tmp_path / "src/1.parquet", data)
    catalog.import_table("old.t", tmp_path / "src")
    found = catalog.read("old.t")
    assert [str(field.type) for field in found.schema][:8] == [
        "int16", "int16", "int32", "int64", "decimal128(20, 0)", "float", "timestamp[us]", "timestamp[us, tz=UTC]",
    ]  # fmt: skip
    assert found.to_pylist() == [
        {
            "id": 1, "u8": 255, "u16": 65535, "u32": (1 << 32) - 1, "u64": Decimal((1 << 64) - 1), "half": 1.5,
            "ns": at, "nsz": at.replace(tzinfo=dt.UTC), "inner": [{"u": 7}],
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pa.array([1], pa.timestamp("ns")),
            r"1\.parquet: column 'c' holds a value that timestamp cannot hold",
        ),
        (pa.array([1], pa.time64("us")), r"column 'c' has type time64\[us\], which no native table can hold"),
        (pa.nulls(1), "column 'c' has type null"),
        (pa.array([1], pa.duration("us")), "column 'c' has type duration"),
    ],
)
def test_what_would_lose_something_is_refused_by_name(
    catalog: alpheus.Catalog, tmp_path: Path, column: pa.Array, message: str
) -> None:
    put(tmp_path / "src/1.parquet", {"c": column})
    with pytest.raises(InvalidInput, match=message):
        catalog.import_table("old.t", tmp_path / "src")
    assert not catalog.table_exists("old.t")


def test_timestamps_of_int96_are_instants(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    at = [dt.datetime(1900, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]
    data = pa.table({"id": [1, 2], "at": pa.array(at, pa.timestamp("us")), "l": pa.array([at, None])})
    put(tmp_path / "src/1.parquet", data, use_deprecated_int96_timestamps=True, store_schema=False)
    catalog.import_table("old.t", tmp_path / "src")
    zoned = [one.replace(tzinfo=dt.UTC) for one in at]
    assert rows(catalog) == [{"id": 1, "at": zoned[0], "l": zoned}, {"id": 2, "at": zoned[1], "l": None}]


def test_what_is_no_source_is_refused(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    with pytest.raises(NotFound, match="no Parquet files"):
        catalog.import_table("old.t", tmp_path / "src")
    with pytest.raises(NotFound, match="no file or folder at"):
        catalog.import_table("old.t", tmp_path / "gone")
    (tmp_path / "src/notes.txt").write_text("hello")
    with pytest.raises(InvalidInput, match=r"notes\.txt cannot be read"):
        catalog.import_table("old.t", tmp_path / "src")
    for arguments, message in (
        ({"format": "orc"}, "format='orc'"),
        ({"version": 3}, "no versions"),
        ({"path": "s3://key:secret@bucket/x"}, "holds credentials"),
        ({"path": ""}, "not a path"),
        ({"append": True, "partition_by": ["id"]}, "append adds"),
        ({"resume": "x"}, "not a transaction id"),
    ):
        with pytest.raises(InvalidInput, match=message):
            catalog.import_table("old.t", **{"path": tmp_path / "src", **arguments})  # type: ignore[arg-type]


def test_a_folder_of_another_format_is_not_taken_for_its_files(tmp_path: Path) -> None:
    put(tmp_path / "d/a.parquet", {"id": [1]})
    (tmp_path / "d/_delta_log").mkdir()
    put(tmp_path / "i/data/a.parquet", {"id": [1]})
    (tmp_path / "i/metadata").mkdir()
    (tmp_path / "i/metadata/v1.metadata.json").write_text("{}")
    for folder, kind in (("d", "delta"), ("i", "iceberg")):
        with pytest.raises(InvalidInput, match=f"is a table of format {kind}"):
            ParquetSource(str(tmp_path / folder))


def test_append_adds_to_a_table_that_is_there(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    catalog.create_table("old.t", pa.table({"id": [1], "note": ["here"]}), partition_by=["note"])
    put(tmp_path / "src/1.parquet", {"id": pa.array([2], pa.int32())})
    with pytest.raises(AlreadyExists):
        catalog.import_table("old.t", tmp_path / "src")
    done = catalog.import_table("old.t", tmp_path / "src", append=True)
    assert rows(catalog) == [{"id": 1, "note": "here"}, {"id": 2, "note": None}]
    put(tmp_path / "src/1.parquet", {"id": [3], "other": [1]})
    with pytest.raises(InvalidInput, match="column 'other' is not in the table"):
        catalog.import_table("old.t", tmp_path / "src", append=True)
    put(tmp_path / "src/1.parquet", pa.table({"id": pa.array([], pa.int64())}))
    nothing = catalog.import_table("old.t", tmp_path / "src", append=True)
    assert (nothing.transaction_id, nothing.rows, catalog.version()) == ("", 0, done.version + 1)
    assert catalog.list_saved() == []


def test_a_source_without_rows_becomes_an_empty_table(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    put(tmp_path / "src/1.parquet", pa.table({"id": pa.array([], pa.int64())}))
    done = catalog.import_table("old.t", tmp_path / "src")
    assert (done.rows, done.files, catalog.read("old.t").num_rows) == (0, 0, 0)


def test_a_source_that_says_other_numbers_is_refused(
    catalog: alpheus.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "src/1.parquet", {"id": [1, 2]})
    whole = ParquetSource.batches
    monkeypatch.setattr(
        ParquetSource, "batches", lambda self, index: (b.slice(1) for b in whole(self, index))
    )
    with pytest.raises(InvalidInput, match=r"1\.parquet delivered 1 rows, but the source says 2"):
        catalog.import_table("old.t", tmp_path / "src")
    assert not catalog.table_exists("old.t")


# --- once, and resumed after an interruption ---------------------------------------------------------


def sources(tmp_path: Path, count: int = 4) -> Path:
    for number in range(count):
        put(tmp_path / f"src/{number}.parquet", {"id": [number * 2, number * 2 + 1]})
    return tmp_path / "src"


class Stopped(Exception):
    pass


def stop_after(files: int) -> Callable[[ImportProgress], None]:
    def progress(at: ImportProgress) -> None:
        if at.files >= files:
            raise Stopped

    return progress


def interrupted(catalog: alpheus.Catalog, source: Path, files: int, **rest: Any) -> str:
    ids: list[str] = []
    with pytest.raises(Stopped):
        catalog.import_table("old.t", source, on_begin=ids.append, on_progress=stop_after(files), **rest)
    return ids[0]


def data_files(tmp_path: Path) -> set[str]:
    return {str(path) for path in (tmp_path / "lake/data").rglob("*.parquet")}


@pytest.mark.usefixtures("file_by_file")
def test_an_import_goes_on_where_it_stopped(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    source = sources(tmp_path)
    id = interrupted(catalog, source, 2)
    assert not catalog.table_exists("old.t")
    before = data_files(tmp_path)
    assert len(before) == 2
    assert [one.id for one in catalog.list_saved()] == [id]
    done = catalog.import_table("old.t", source, resume=id)
    assert (done.transaction_id, done.rows, done.resumed_files, done.files) == (id, 8, 2, 4)
    assert before < data_files(tmp_path)
    assert len(data_files(tmp_path)) == 4
    assert [row["id"] for row in rows(catalog)] == list(range(8))
    again = catalog.import_table("old.t", source, resume=id)
    assert again.duplicate
    assert (again.version, again.rows, again.files, again.size_bytes) == (done.version, 8, 4, done.size_bytes)
    assert catalog.admin.check().findings == ()


KILLED = """
    import os, signal, sys
    import alpheus
    from alpheus.importing import copy as transfer

    transfer.PART_FILES_MAX = 1
    url, source, files = sys.argv[1:4]

    def progress(at):
        if at.files >= int(files):
            os.kill(os.getpid(), signal.SIGKILL)

    with alpheus.connect(url) as catalog:
        catalog.import_table(
            "old.t", source, key="import/t", partition_by=["id"], on_begin=lambda id: print(id, flush=True),
            on_progress=progress,
        )
"""


@pytest.mark.usefixtures("file_by_file")
@pytest.mark.parametrize("way", ["storage", "daemon"])
def test_an_import_that_was_killed_goes_on_in_another_process(
    way: str, tmp_path: Path, start_daemon: StartDaemon
) -> None:
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("old")
    if way == "daemon":
        url = start_daemon(url).url
    source = sources(tmp_path)
    script = [sys.executable, "-c", textwrap.dedent(KILLED), url, str(source), "3"]
    killed = subprocess.run(script, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    id = killed.stdout.strip()
    copied = data_files(tmp_path)
    assert len(copied) == 6  # three source files, each of two partitions
    with alpheus.connect(url) as catalog:
        assert not catalog.table_exists("old.t")
        done = catalog.import_table("old.t", source, resume=id)
        assert (done.resumed_files, done.rows, done.duplicate) == (3, 8, False)
        assert [row["id"] for row in rows(catalog)] == list(range(8))
        assert copied < data_files(tmp_path)
        assert len(data_files(tmp_path)) == 8
        again = catalog.import_table("old.t", source, key="import/t")
        assert (again.duplicate, again.version, again.transaction_id) == (True, done.version, id)
        assert catalog.version() == done.version
        assert len(data_files(tmp_path)) == 8
        assert next(iter(catalog.log("old.t"))).transaction.key == "import/t"


@pytest.mark.usefixtures("file_by_file")
def test_a_source_that_changed_is_not_gone_on_with(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    source = sources(tmp_path)
    id = interrupted(catalog, source, 2)
    touched = source / "0.parquet"
    info = touched.stat()
    os.utime(touched, ns=(info.st_atime_ns, info.st_mtime_ns + 1))
    with pytest.raises(InvalidInput, match=r"has changed since import .* began: now 4 files") as refused:
        catalog.import_table("old.t", source, resume=id)
    assert refused.value.kind == "source_changed"
    os.utime(touched, ns=(info.st_atime_ns, info.st_mtime_ns))
    put(source / "9.parquet", {"id": [99]})
    with pytest.raises(InvalidInput, match=r"5 files, .* then 4 files"):
        catalog.import_table("old.t", source, resume=id)
    (source / "9.parquet").unlink()
    assert catalog.import_table("old.t", source, resume=id).resumed_files == 2


@pytest.mark.usefixtures("file_by_file")
def test_a_source_that_changes_meanwhile_ends_the_import(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    source = sources(tmp_path)

    def progress(at: ImportProgress) -> None:
        if at.files == 1:
            put(source / "3.parquet", {"id": [70, 80]})

    with pytest.raises(InvalidInput, match=r"3\.parquet has changed since") as refused:
        catalog.import_table("old.t", source, on_progress=progress)
    assert refused.value.kind == "source_changed"
    assert catalog.list_saved() == []
    assert not catalog.table_exists("old.t")


def test_only_the_same_import_is_gone_on_with(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    source = sources(tmp_path)
    id = interrupted(catalog, source, 0, partition_by=["id"])
    for arguments, message in (
        ({"name": "old.u"}, "began with name=old.t"),
        ({"path": tmp_path}, "began with path="),
        ({"format": "delta"}, "began with format=parquet"),
        ({"append": True}, "began with append=False"),
        ({"partition_by": []}, "began with partition_by="),
        ({"sort_by": ["id"]}, "began with sort_by="),
        ({"key": "other"}, "began with key=, not other"),
    ):
        with pytest.raises(InvalidInput, match=message):
            catalog.import_table(**{"name": "old.t", "path": source, "resume": id, **arguments})  # type: ignore[arg-type]
    with catalog.transaction() as tx:
        tx.create_namespace("other")
        saved = tx.save()
    with pytest.raises(InvalidInput, match="is not an import"):
        catalog.import_table("old.t", source, resume=saved)
    done = catalog.import_table("old.t", source, resume=id, partition_by=["id"])
    assert done.files == 8


def marks(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "lake/manifest").rglob("*.arrow"))


@pytest.mark.usefixtures("file_by_file")
def test_marks_that_lie_are_not_believed(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    """Parts with false marks are copied again: torn or empty marks, and marks of other parts or of damaged files."""
    source = sources(tmp_path, 6)
    for number in (4, 5):
        put(source / f"{number}.parquet", {"id": [number * 2, number * 2 + 1, 100 + number]})
    id = interrupted(catalog, source, 6)
    found = marks(tmp_path)
    assert len(found) == 6
    of_two, of_three = [], []
    for mark in found:
        table = pa.ipc.open_file(pa.py_buffer(mark.read_bytes())).read_all()
        (of_two if table["row_count"][0].as_py() == 2 else of_three).append(mark)
    torn, empty, gone, whole = of_two
    torn.write_bytes(torn.read_bytes()[:-100])
    empty.write_bytes(b"")
    table = pa.ipc.open_file(pa.py_buffer(gone.read_bytes())).read_all()
    (tmp_path / "lake" / table["path"][0].as_py()).unlink()
    of_three[0].write_bytes(whole.read_bytes())  # would give some rows twice, and miss others
    table = pa.ipc.open_file(pa.py_buffer(of_three[1].read_bytes())).read_all()
    cut = tmp_path / "lake" / table["path"][0].as_py()
    cut.write_bytes(cut.read_bytes()[:-1])
    done = catalog.import_table("old.t", source, resume=id)
    assert done.resumed_files == 1
    assert [row["id"] for row in rows(catalog)] == [*range(12), 104, 105]
    assert catalog.admin.check().findings == ()


@pytest.mark.usefixtures("file_by_file")
def test_two_that_go_on_with_one_import_commit_it_once(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    source = sources(tmp_path)
    id = interrupted(catalog, source, 1)
    others: list[object] = []

    def progress(at: ImportProgress) -> None:
        if at.files == 2 and not others:
            others.append(None)
            with alpheus.connect(catalog.url) as other:
                others.append(other.import_table("old.t", source, resume=id))

    with pytest.raises(InvalidInput) as refused:
        catalog.import_table("old.t", source, resume=id, on_progress=progress)
    assert refused.value.kind == "id_reused"
    assert [row["id"] for row in rows(catalog)] == list(range(8))
    assert catalog.import_table("old.t", source, resume=id).duplicate
    assert catalog.admin.check().findings == ()


def test_an_answer_that_was_lost_is_found_again(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    """A resumed import finds its lost answer.

    It was killed between the commit and the removal of its saved state.
    """
    source = sources(tmp_path)
    id = interrupted(catalog, source, 0)
    saved = tmp_path / f"lake/def/dtxn/{id}.binpb"
    kept = saved.read_bytes()
    done = catalog.import_table("old.t", source, resume=id)
    saved.write_bytes(kept)
    again = catalog.import_table("old.t", source, resume=id)
    assert (again.duplicate, again.version, again.rows) == (True, done.version, 8)
    assert catalog.list_saved() == []


def expire(catalog: alpheus.Catalog) -> None:
    catalog.update_catalog(set={"k": "a"})
    catalog.admin.expire(older_than=0, keep=1)


@pytest.mark.usefixtures("file_by_file")
def test_an_import_goes_on_after_versions_before_its_begin_expired(
    catalog: alpheus.Catalog, tmp_path: Path
) -> None:
    source = sources(tmp_path)
    id = interrupted(catalog, source, 2)
    expire(catalog)
    with alpheus.connect(catalog.url) as other:
        done = other.import_table("old.t", source, resume=id)
    assert (done.transaction_id, done.rows, done.resumed_files) == (id, 8, 2)


def test_an_import_whose_begin_version_expired_is_not_discarded(
    catalog: alpheus.Catalog, tmp_path: Path
) -> None:
    """Expiry does not see the import, because its file comes back late."""
    source = sources(tmp_path)
    id = interrupted(catalog, source, 2)
    saved = tmp_path / f"lake/def/dtxn/{id}.binpb"
    saved.rename(tmp_path / "aside")
    expire(catalog)
    (tmp_path / "aside").rename(saved)
    with alpheus.connect(catalog.url) as other:
        with pytest.raises(Expired) as caught:
            other.import_table("old.t", source, resume=id)
        assert f"import {id} is still saved" in caught.value.hint
        assert [one.id for one in other.list_saved()] == [id]
        assert other.discard(id).state == "cancelled"
        assert other.import_table("old.t", source).rows == 8


def test_a_source_that_is_away_for_a_moment(
    catalog: alpheus.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sources(tmp_path)
    whole = ParquetSource.batches
    failures = iter([Unavailable("away"), Unavailable("away again")])

    def batches(self: ParquetSource, index: int) -> Iterator[pa.RecordBatch]:
        yield from whole(self, index)
        if index == 2 and (error := next(failures, None)) is not None:
            raise error

    monkeypatch.setattr(ParquetSource, "batches", batches)
    assert catalog.import_table("old.t", source).rows == 8
    assert [row["id"] for row in rows(catalog)] == list(range(8))


@pytest.mark.parametrize(("format", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg.table")])
def test_a_package_that_is_not_installed_is_named(
    catalog: alpheus.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidInput, match="is not installed") as refused:
        catalog.import_table("old.t", tmp_path, format)
    assert refused.value.hint == f'run pip install "alpheus[{format}]"'


def test_a_key_is_answered_after_the_table_is_gone(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    source = sources(tmp_path)
    done = catalog.import_table("old.t", source, key="import/t")
    catalog.drop_table("old.t")
    again = catalog.import_table("old.t", source, key="import/t")
    assert (again.duplicate, again.version) == (True, done.version)
    assert not catalog.table_exists("old.t")
    assert catalog.import_table("old.t", source, key="import/t2").version > done.version


# --- the command line, and object stores -------------------------------------------------------------


def test_the_command(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    for day in (1, 2):
        put(tmp_path / f"src/day=0{day}/1.parquet", {"id": [day], "kind": ["a"]})

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli.cli, ["--catalog", catalog.url, *words])

    plain = run(
        "table", "import", "old.t", str(tmp_path / "src"), "--partition-type", "day:string", "--sort-by", "id"
    )
    assert plain.exit_code == 0, plain.output
    assert plain.stdout.startswith("imported 2 rows from 2 files")
    assert "--resume" in plain.stderr
    table = catalog.load_table("old.t")
    assert (len(table.definition.partition_spec), len(table.definition.sort_order)) == (1, 1)
    assert [row["day"] for row in rows(catalog)] == ["01", "02"]
    words = [
        "--output",
        "json",
        "table",
        "import",
        "old.u",
        str(tmp_path / "src/day=*"),
        "--unpartitioned",
        "--key",
        "k",
    ]
    done = json.loads(run(*words).stdout)
    assert (done["rows"], done["duplicate"], done["format"]) == (2, False, "parquet")
    assert json.loads(run(*words).stdout)["duplicate"] is True
    assert catalog.load_table("old.u").definition.partition_spec == ()
    id = interrupted(catalog, tmp_path / "src", 0, append=True, partition_types={"day": pa.string()})
    words = ["table", "import", "old.t", str(tmp_path / "src"), "--append", "--partition-type", "day:string"]
    again = run("--output", "json", *words, "--resume", id)
    assert json.loads(again.stdout)["transaction_id"] == id
    refused = run(
        "table", "import", "old.v", str(tmp_path / "src"), "--partition-by", "day", "--unpartitioned"
    )
    assert (refused.exit_code, refused.stdout) == (2, "")
    gone = run("table", "import", "old.v", str(tmp_path / "gone"))
    assert (gone.exit_code, gone.stdout) == (1, "")


def test_sources_on_s3(catalog: alpheus.Catalog, s3_server: S3Server) -> None:
    base = s3_server.url().partition("?")[0].rstrip("/")
    prefix = base.removeprefix(f"s3://{s3_server.bucket}/")
    query = f"endpoint_url={s3_server.endpoint}&region={s3_server.region}"
    with s3_server.client() as s3:
        for day in (1, 2):
            content = pa.BufferOutputStream()
            pq.write_table(pa.table({"id": [day]}), content)
            key = f"{prefix}/plain/day={day}/a.parquet"
            s3.put_object(Bucket=s3_server.bucket, Key=key, Body=content.getvalue().to_pybytes())
    done = catalog.import_table("old.t", f"{base}/plain?{query}")
    assert (done.rows, [row["day"] for row in rows(catalog)]) == (2, [1, 2])
    options = {
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": s3_server.region,
    }
    write_deltalake(f"{base}/delta", pa.table({"id": [1, 2]}), storage_options=options)
    assert catalog.import_table("old.delta", f"{base}/delta?{query}", "delta").rows == 2
    with pytest.raises(NotFound):
        catalog.import_table("old.u", f"{base}/gone?{query}")
