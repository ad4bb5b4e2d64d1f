"""Imports of Delta and Iceberg tables, which the packages of those formats write here."""

from __future__ import annotations

import datetime as dt
import json
import struct
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyroaring import BitMap

import alpheus
from alpheus.errors import InvalidInput, NotFound
from alpheus.importing import copy as transfer
from alpheus.importing.delta import DeltaSource
from alpheus.importing.iceberg import IcebergSource

DAY = dt.date(2024, 2, 29)
AT = dt.datetime(2024, 2, 29, 12, 30, 0, 123456)
ZONED = AT.replace(tzinfo=dt.UTC)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[alpheus.Catalog]:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("old")
        yield catalog


def rows(catalog: alpheus.Catalog, name: str = "old.t") -> list[dict[str, Any]]:
    return catalog.read(name).sort_by("id").to_pylist()


# --- Delta -----------------------------------------------------------------------------------------


def delta(path: Path, data: dict[str, Any] | pa.Table, **options: Any) -> DeltaTable:
    write_deltalake(str(path), pa.table(data), **options)
    return DeltaTable(str(path))


def log_entry(path: Path, version: int, **entries: Any) -> None:
    lines = [json.dumps({kind: value}) for kind, value in entries.items() if value is not None]
    (path / f"_delta_log/{version:020}.json").write_text(
        "\n".join([*lines, '{"commitInfo":{"timestamp":1}}'])
    )


def log_lines(path: Path, version: int, kind: str) -> list[dict[str, Any]]:
    text = (path / f"_delta_log/{version:020}.json").read_text()
    return [entry[kind] for entry in map(json.loads, text.splitlines()) if kind in entry]


def test_a_delta_table_with_partitions_and_later_columns(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    path = tmp_path / "delta"
    delta(
        path,
        {
            "id": [1, 2, 3],
            "name": ["a", "b/ %x", None],
            "day": [DAY] * 3,
            "at": pa.array([AT] * 3, pa.timestamp("us", "UTC")),
            "plain": pa.array([AT] * 3, pa.timestamp("us")),
            "small": pa.array([1, 2, 3], pa.int8()),
            "s": [{"x": [1]}, {"x": None}, None],
        },
        partition_by=["name", "day"],
    )
    delta(
        path,
        {"id": [4], "name": ["a"], "day": [DAY], "new": pa.array([7], pa.int32())},
        mode="append",
        schema_mode="merge",
    )
    done = catalog.import_table("old.t", path, "delta")
    assert (done.source_version, done.source_files, done.rows) == ("1", 4, 4)
    first, second, third, fourth = rows(catalog)
    assert first == {
        "id": 1, "name": "a", "day": DAY, "at": ZONED, "plain": AT, "small": 1, "s": {"x": [1]}, "new": None
    }  # fmt: skip
    assert (second["name"], third["name"], third["s"]) == ("b/ %x", None, None)
    assert (fourth["name"], fourth["new"], fourth["at"]) == ("a", 7, None)
    assert catalog.read("old.t").schema.field("small").type == pa.int16()
    spec = catalog.load_table("old.t").definition.partition_spec
    assert len(spec) == 2
    earlier = catalog.import_table("old.first", path, "delta", version=0)
    assert (earlier.source_version, earlier.rows) == ("0", 3)
    assert "new" not in catalog.read("old.first").column_names
    said = next(iter(catalog.log("old.first"))).transaction.properties
    assert (said["alpheus.import.format"], said["alpheus.import.version"]) == ("delta", "0")


def test_partition_values_of_a_delta_table_have_their_types(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    data = {
        "id": [1, 2],
        "at": pa.array([AT, None], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "flag": [True, None],
        "half": [0.5, None],
        "small": pa.array([-3, None], pa.int16()),
        "raw": pa.array([b"x", None]),
    }
    keys = ["at", "price", "flag", "half", "small"]
    delta(tmp_path / "delta", data, partition_by=keys)
    catalog.import_table("old.t", tmp_path / "delta", "delta")
    first, second = rows(catalog)
    assert first == {key: values[0] for key, values in data.items()} | {
        "at": ZONED, "price": Decimal("1.50"), "small": -3, "raw": b"x"
    }  # fmt: skip
    assert second == dict.fromkeys(data) | {"id": 2}
    spec = catalog.load_table("old.t").definition.partition_spec
    assert len(spec) == 4  # a native table has no partitions by floating point


def test_a_delta_table_without_files(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("k", pa.string())])
    DeltaTable.create(str(tmp_path / "delta"), schema, partition_by=["k"])
    assert catalog.import_table("old.t", tmp_path / "delta", "delta").rows == 0
    table = catalog.load_table("old.t")
    assert ([column.nullable for column in table.columns], len(table.definition.partition_spec)) == (
        [False, True],
        1,
    )


@pytest.mark.parametrize("name", ["a b", "a#b", "é+"])
def test_names_of_folders_are_taken_as_they_are(tmp_path: Path, name: str) -> None:
    delta(tmp_path / "delta", {"id": [1], "k": ["x y"]}, partition_by=["k"])
    (tmp_path / "delta").rename(tmp_path / name)
    for path in (str(tmp_path / name), (tmp_path / name).as_uri()):
        source = DeltaSource(path)
        assert pa.Table.from_batches(source.batches(0)).to_pylist() == [{"id": 1, "k": "x y"}]


def test_a_delta_import_stays_at_its_version(
    catalog: alpheus.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "PART_FILES_MAX", 1)
    path = tmp_path / "delta"
    for number in range(3):
        delta(path, {"id": [number]}, mode="append")
    ids: list[str] = []

    def progress(at: Any) -> None:
        if at.files == 1:
            raise KeyError("stop")

    with pytest.raises(KeyError):
        catalog.import_table("old.t", path, "delta", on_begin=ids.append, on_progress=progress)
    delta(path, {"id": [9]}, mode="append")
    with pytest.raises(InvalidInput, match="began with version=2, not 3"):
        catalog.import_table("old.t", path, "delta", version=3, resume=ids[0])
    done = catalog.import_table("old.t", path, "delta", resume=ids[0])
    assert (done.source_version, done.rows, done.resumed_files) == ("2", 3, 1)
    assert [row["id"] for row in rows(catalog)] == [0, 1, 2]


def test_spark_has_the_same(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    from alpheus.spark.catalog import SparkCatalog

    delta(tmp_path / "delta", {"id": [1]})
    delta(tmp_path / "delta", {"id": [2]}, mode="append")
    lake = SparkCatalog.__new__(SparkCatalog)  # without a session, which this test does not need
    lake.catalog = catalog
    done = lake.import_table("old.t", tmp_path / "delta", "delta", version=0, sort_by=["id"])
    assert (done.source_version, done.rows) == ("0", 1)


def test_deleted_rows_of_a_delta_table_stay_away(catalog: alpheus.Catalog, tmp_path: Path) -> None:
    path = tmp_path / "a b é"
    features = {"delta.enableDeletionVectors": "true"}
    delta(path, {"id": list(range(10)), "c": ["a b/%"] * 10}, configuration=features, partition_by=["c"])
    (add,) = log_lines(path, 0, "add")
    vector = struct.pack("<IQI", 1681511377, 1, 0) + BitMap([1, 4]).serialize()
    there = {"storageType": "i", "pathOrInlineDv": z85(vector), "sizeInBytes": len(vector), "cardinality": 2}
    gone = {key: add[key] for key in ("path", "dataChange", "partitionValues", "size")} | {
        "deletionTimestamp": 1
    }
    log_entry(path, 1, remove=gone, add=add | {"deletionVector": there})
    done = catalog.import_table("old.t", path, "delta")
    assert (done.rows, done.source_files) == (8, 1)
    assert [row["id"] for row in rows(catalog)] == [0, 2, 3, 5, 6, 7, 8, 9]
    assert catalog.import_table("old.before", path, "delta", version=0).rows == 10


def z85(data: bytes) -> str:
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    data += b"\0" * (-len(data) % 4)
    numbers = [int.from_bytes(data[start : start + 4], "big") for start in range(0, len(data), 4)]
    return "".join(letters[number // 85**place % 85] for number in numbers for place in (4, 3, 2, 1, 0))


@pytest.mark.parametrize("protocol", [(2, 5, None), (3, 7, ["columnMapping"]), (3, 7, ["fromTheFuture"])])
def test_what_a_delta_table_needs_that_is_not_read_is_named(
    tmp_path: Path, protocol: tuple[int, int, list[str] | None]
) -> None:
    path = tmp_path / "delta"
    delta(path, {"id": [1]})
    (metadata,) = log_lines(path, 0, "metaData")
    reader, writer, features = protocol
    if features != ["fromTheFuture"]:
        metadata["configuration"] = {"delta.columnMapping.mode": "name"}
        schema = json.loads(metadata["schemaString"])
        schema["fields"][0]["metadata"] = {
            "delta.columnMapping.id": 1,
            "delta.columnMapping.physicalName": "col-1",
        }
        metadata["schemaString"] = json.dumps(schema)
    asked: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    if features:
        asked |= {"readerFeatures": features, "writerFeatures": features}
    log_entry(path, 1, protocol=asked, metaData=metadata)
    with pytest.raises(
        InvalidInput, match="(?i)fromTheFuture" if features == ["fromTheFuture"] else "columnMapping"
    ):
        DeltaSource(str(path))


def test_a_delta_file_that_is_not_what_the_log_says(tmp_path: Path) -> None:
    path = tmp_path / "delta"
    table = delta(path, {"id": [1, 2]})
    (file,) = (Path(uri) for uri in table.file_uris())
    kept = file.read_bytes()
    pq.write_table(pa.table({"id": [1]}), file)
    with pytest.raises(InvalidInput, match="has 1 rows, but the table's log says 2"):
        DeltaSource(str(path))
    pq.write_table(pa.table({"ID": [1, 2]}), file)
    with pytest.raises(InvalidInput, match="has a column 'ID', but the table has 'id'"):
        DeltaSource(str(path))
    file.write_bytes(kept)
    source = DeltaSource(str(path))
    file.write_bytes(kept + b" ")
    with pytest.raises(InvalidInput, match="bytes, not") as refused:
        list(source.batches(0))
    assert refused.value.kind == "source_changed"
    file.unlink()
    with pytest.raises(InvalidInput, match="was deleted"):
        DeltaSource(str(path))


def test_a_binary_partition_column_of_a_delta_table_is_refused(tmp_path: Path) -> None:
    delta(tmp_path / "delta", {"id": [1], "key": [b"ab"]}, partition_by=["key"])
    with pytest.raises(InvalidInput, match="'key' has type binary") as caught:
        DeltaSource(str(tmp_path / "delta"))
    assert caught.value.kind == "not_supported"


def test_what_is_no_delta_table(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        DeltaSource(str(tmp_path))
    assert 'format="parquet"' in caught.value.hint
    delta(tmp_path / "delta", {"id": [1]})
    with pytest.raises(InvalidInput, match="with % in its path"):
        DeltaSource(str(tmp_path / "del%74a"))
    with pytest.raises(NotFound, match="no version 7; the newest is 0"):
        DeltaSource(str(tmp_path / "delta"), "7")
    with pytest.raises(InvalidInput, match="not a version of a Delta table"):
        DeltaSource(str(tmp_path / "delta"), "main")


# --- Iceberg ---------------------------------------------------------------------------------------

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "kind", StringType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "uid", UUIDType()),
    NestedField(
        5, "items", ListType(6, StructType(NestedField(7, "x", IntegerType())), element_required=False)
    ),
    NestedField(8, "price", DecimalType(10, 2)),
    NestedField(9, "code", FixedType(3)),
    NestedField(10, "day", DateType()),
    NestedField(11, "map", MapType(12, StringType(), 13, FloatType(), value_required=False)),
)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryCatalog]:
    with InMemoryCatalog("memory", warehouse=f"file://{tmp_path_factory.mktemp('ware house')}") as catalog:
        catalog.create_namespace("a")
        yield catalog


def filled(table: Any, records: list[dict[str, Any]]) -> None:
    table.append(
        pa.Table.from_pylist(records, schema=schema_to_pyarrow(table.schema(), include_field_ids=False))
    )


def record(id: int) -> dict[str, Any]:
    return {
        "id": id, "kind": "ab"[id % 2], "at": ZONED, "uid": uuid.UUID(int=id).bytes, "items": [{"x": id}, None],
        "price": Decimal("1.50"), "code": b"abc", "day": DAY, "map": [("k", 0.5)],
    }  # fmt: skip


@pytest.fixture(scope="module")
def grown(warehouse: InMemoryCatalog) -> Any:
    """Create a table of six rows. Later it gets other names and types, one new row, and one row less."""
    fields = [
        PartitionField(2, 1000, IdentityTransform(), "kind"),
        PartitionField(10, 1001, IdentityTransform(), "day"),
    ]
    table = warehouse.create_table("a.grown", SCHEMA, partition_spec=PartitionSpec(*fields))
    filled(table, [record(id) for id in range(6)])
    with table.update_schema() as update:
        update.add_column("new", IntegerType())
        update.rename_column("price", "cost")
        update.update_column(("items", "element", "x"), LongType())
        update.update_column(("map", "value"), DoubleType())
        update.add_column(("items", "element", "y"), StringType())
        update.move_first("kind")
    filled(table, [{"id": 100, "new": 1}])
    table.delete("id = 3")
    return table


def test_an_iceberg_table_that_changed_its_columns(catalog: alpheus.Catalog, grown: Any) -> None:
    done = catalog.import_table("old.t", grown.metadata_location, "iceberg")
    assert (done.source_files, done.rows) == (3, 6)
    assert done.source_version == str(grown.current_snapshot().snapshot_id)
    found = rows(catalog)
    assert [row["id"] for row in found] == [0, 1, 2, 4, 5, 100]
    assert found[1] == {
        "kind": "b", "id": 1, "at": ZONED, "uid": uuid.UUID(int=1).bytes, "items": [{"x": 1, "y": None}, None],
        "cost": Decimal("1.50"), "code": b"abc", "day": DAY, "map": [("k", 0.5)], "new": None,
    }  # fmt: skip
    nothing = dict.fromkeys(found[1])
    assert found[-1] == nothing | {"id": 100, "new": 1, "items": []}  # pyiceberg writes no NULL lists
    table = catalog.load_table("old.t")
    assert [(column.name, column.nullable) for column in table.columns][:2] == [("kind", True), ("id", False)]
    assert len(table.definition.partition_spec) == 2


def test_an_iceberg_snapshot_by_id_and_the_newest_metadata_of_a_folder(
    catalog: alpheus.Catalog, grown: Any
) -> None:
    folder = grown.location()
    first = grown.history()[0].snapshot_id
    done = catalog.import_table("old.first", folder, "iceberg", version=first, partition_by=["day(at)"])
    assert (done.rows, done.source, done.source_version) == (6, grown.metadata_location, str(first))
    assert "price" in catalog.read("old.first").column_names
    now = IcebergSource(folder, "main")
    assert (now.version, sum(file.rows for file in now.files)) == (
        str(grown.current_snapshot().snapshot_id),
        6,
    )
    with pytest.raises(NotFound, match="no snapshot '5'"):
        IcebergSource(folder, "5")
    metadata = Path(grown.metadata_location.removeprefix("file://"))
    number = metadata.name.partition("-")[0]
    twin = metadata.with_name(f"{number}-{uuid.uuid4()}.metadata.json")
    twin.write_bytes(metadata.read_bytes())
    try:
        with pytest.raises(InvalidInput, match="several newest metadata files"):
            IcebergSource(folder)
    finally:
        twin.unlink()
    with pytest.raises(NotFound, match="no Iceberg metadata"):
        IcebergSource(str(metadata.parent))


def test_positional_deletes_of_an_iceberg_table_are_applied(
    catalog: alpheus.Catalog, warehouse: InMemoryCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = warehouse.create_table("a.positions", Schema(NestedField(1, "id", LongType())))
    filled(table, [{"id": id} for id in range(10)])
    (path,) = (task.file.file_path for task in table.scan().plan_files())

    def with_deletes(*positions: int) -> None:
        deletes = tmp_path / f"deletes-{len(positions)}.parquet"
        content = pa.table({"file_path": [path] * len(positions), "pos": pa.array(positions, pa.int64())})
        pq.write_table(content, deletes)
        entry = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES, file_path=f"file://{deletes}",
            file_format=FileFormat.PARQUET, record_count=len(positions), file_size_in_bytes=1,
        )  # fmt: skip
        whole = DataScan.plan_files

        def planned(self: DataScan) -> Any:
            tasks = list(whole(self))
            for task in tasks:
                task.delete_files = {entry}
            return tasks

        monkeypatch.setattr(DataScan, "plan_files", planned)

    with_deletes(0, 3, 3, 9)
    done = catalog.import_table("old.t", table.metadata_location, "iceberg")
    assert (done.rows, [row["id"] for row in rows(catalog)]) == (7, [1, 2, 4, 5, 6, 7, 8])
    monkeypatch.undo()
    with_deletes(10)
    with pytest.raises(InvalidInput, match="deletes of rows that do not exist"):
        IcebergSource(table.metadata_location)


def test_what_an_iceberg_table_needs_that_is_not_read_is_named(
    warehouse: InMemoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = warehouse.create_table("a.timed", Schema(NestedField(1, "t", TimeType())))
    with pytest.raises(InvalidInput, match="column 't' has type time64"):
        IcebergSource(timed.metadata_location)
    table = warehouse.create_table("a.plain", Schema(NestedField(1, "id", LongType())))
    empty = IcebergSource(table.metadata_location)
    assert (empty.files, empty.version, empty.schema) == ((), "", pa.schema([("id", pa.int64())]))
    filled(table, [{"id": 1}])
    location = table.metadata_location
    plan = DataScan.plan_files

    def refused(self: DataScan) -> Any:
        raise ValueError("PyIceberg does not yet support equality deletes: ...")

    monkeypatch.setattr(DataScan, "plan_files", refused)
    with pytest.raises(InvalidInput, match="equality deletes"):
        IcebergSource(location)

    def other(self: DataScan) -> Any:
        tasks = list(plan(self))
        tasks[0].file._data[2] = FileFormat.AVRO
        return tasks

    monkeypatch.setattr(DataScan, "plan_files", other)
    with pytest.raises(InvalidInput, match="of format AVRO"):
        IcebergSource(location)


def test_partitions_of_an_iceberg_table_that_native_ones_have_too(warehouse: InMemoryCatalog) -> None:
    spec = PartitionSpec(
        PartitionField(3, 1000, DayTransform(), "at_day"),
        PartitionField(1, 1001, BucketTransform(4), "bucket"),
        PartitionField(2, 1002, IdentityTransform(), "kind"),
        PartitionField(7, 1003, IdentityTransform(), "x"),
    )
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "kind", StringType()),
        NestedField(3, "at", TimestamptzType()),
        NestedField(4, "s", StructType(NestedField(7, "x", IntegerType()))),
    )
    table = warehouse.create_table("a.keys", schema, partition_spec=spec)
    assert IcebergSource(table.metadata_location).partition_by == ("day(`at`)", "`kind`")


def test_iceberg_files_of_other_writers(
    catalog: alpheus.Catalog, warehouse: InMemoryCatalog, tmp_path: Path
) -> None:
    """Files without field ids are read by the name mapping.

    A partition column that they lack comes from the partition.
    """
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "kind", StringType()),
        NestedField(
            3,
            "s",
            StructType(
                NestedField(4, "x", LongType()),
                NestedField(
                    5, "l", ListType(6, StructType(NestedField(7, "y", LongType())), element_required=False)
                ),
            ),
        ),
    )
    table = warehouse.create_table("a.foreign", schema)
    path = tmp_path / "one.parquet"
    pq.write_table(
        pa.table({"id": [1, 2], "kind": ["a", None], "s": [{"x": 5, "l": None}, {"x": 6, "l": [{"y": 1}]}]}),
        path,
    )
    table.add_files([f"file://{path}"])
    with table.update_schema() as update:
        update.rename_column("kind", "sort")
    catalog.import_table("old.t", table.metadata_location, "iceberg")
    assert rows(catalog) == [
        {"id": 1, "sort": "a", "s": {"x": 5, "l": None}}, {"id": 2, "sort": None, "s": {"x": 6, "l": [{"y": 1}]}},
    ]  # fmt: skip
    source = IcebergSource(table.metadata_location)
    source._mapping = None
    with pytest.raises(InvalidInput, match="no field ids, and the table has no name mapping"):
        list(source.batches(0))


def test_a_partition_value_stands_for_a_column_that_files_lack(warehouse: InMemoryCatalog) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", DateType()))
    table = warehouse.create_table("a.lacking", schema, partition_spec=spec)
    filled(table, [{"id": 1, "day": DAY}])
    (task,) = table.scan().plan_files()
    file = Path(task.file.file_path.removeprefix("file://"))
    whole = pq.read_table(file)
    pq.write_table(whole.select(["id"]), file)
    source = IcebergSource(table.metadata_location)
    assert pa.Table.from_batches(source.batches(0)).to_pylist() == [{"id": 1, "day": DAY}]
