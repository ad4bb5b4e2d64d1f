"""The library and Spark's tasks write the same files: each field of manifest entries, footers, and what readers see."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.spark import SparkCatalog
from alpheus_journal.tables.checksums import with_checksums
from alpheus_journal.tables.data_file import DataFile

pytestmark = SPARK_MARKS

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("small", pa.int16()),
        ("ratio", pa.float32()),
        ("exact", pa.float64()),
        ("low", pa.decimal128(9, 2)),
        ("middle", pa.decimal128(18, 4)),
        ("high", pa.decimal128(38, 10)),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("parts", pa.list_(pa.struct([("c", pa.string()), ("d", pa.float64())]))),
        ("attributes", pa.map_(pa.string(), pa.int32())),
        ("place", pa.struct([("lat", pa.float64()), ("inner", pa.struct([("n", pa.int32())]))])),
    ]
)
WAYS = {
    "plain": ([], []),
    "sorted": ([], ["name", "id"]),
    "partitioned": (["small"], []),
    "by text": (["name"], ["id"]),
    "both": (["flag", "day(at)"], ["exact", "id"]),
}


def maybe(rng: random.Random, make: Callable[[], Any]) -> Any:
    return None if rng.random() < 0.2 else make()


def row(rng: random.Random, id: int) -> dict[str, Any]:
    """Return a row with NULLs, NaN, zeros of both signs, days before 1582 and texts of several planes."""
    floats = (0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.25)
    texts = ("", "a", "Straße", "日本", "\U0001f600", "a" * 40, "a" * 40 + "b", "\uffff")
    day = dt.date(rng.choice((1, 1500, 1582, 1970, 9999)), rng.randint(1, 12), rng.randint(1, 28))
    moment = dt.datetime(2024, 1, rng.randint(1, 3), rng.randrange(24), 0, 0, rng.randrange(1_000_000))
    number = rng.randint(-(10**7), 10**7)
    keys = {f"k{place}": place for place in range(rng.randrange(3))}
    return {
        "id": id,
        "flag": maybe(rng, lambda: rng.random() < 0.5),
        "small": maybe(rng, lambda: rng.randrange(3)),
        "ratio": maybe(rng, lambda: rng.choice(floats)),
        "exact": maybe(rng, lambda: rng.choice(floats)),
        "low": maybe(rng, lambda: Decimal(number // 10).scaleb(-2)),
        "middle": maybe(rng, lambda: Decimal(number * 10**9).scaleb(-4)),
        "high": maybe(rng, lambda: Decimal(number * 10**28).scaleb(-10)),
        "name": maybe(rng, lambda: rng.choice(texts)),
        "raw": maybe(rng, lambda: rng.randbytes(rng.randrange(20))),
        "day": maybe(rng, lambda: day),
        "at": maybe(rng, lambda: moment.replace(tzinfo=dt.UTC)),
        "local": maybe(rng, lambda: moment),
        "tags": maybe(rng, lambda: [maybe(rng, lambda: rng.choice(texts)) for _ in range(rng.randrange(3))]),
        "parts": maybe(
            rng,
            lambda: [
                maybe(
                    rng, lambda: {"c": maybe(rng, lambda: "c"), "d": maybe(rng, lambda: rng.choice(floats))}
                )
                for _ in range(rng.randrange(3))
            ],
        ),
        "attributes": maybe(rng, lambda: [(key, rng.choice((None, value))) for key, value in keys.items()]),
        "place": maybe(
            rng,
            lambda: {"lat": maybe(rng, lambda: rng.choice(floats)), "inner": maybe(rng, lambda: {"n": 1})},
        ),
    }


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[SparkCatalog]:
    codec = "spark.sql.parquet.compression.codec"
    before = spark.conf.get(codec)
    spark.conf.set(codec, "zstd")  # that of the library
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("s")
        yield SparkCatalog(spark, catalog)
    spark.conf.set(codec, before or "snappy")


def files_of(lake: SparkCatalog, name: str) -> list[DataFile]:
    table = lake.catalog.load_table(name).definition
    return sorted(
        lake.lists.of(table.id, table.segments),
        key=lambda file: (sorted(map(str, file.partition.items())), file.path),
    )


def place(lake: SparkCatalog, file: DataFile) -> str:
    return unquote(lake.storage.uri(file.path)).removeprefix("file://")


def entry(file: DataFile) -> dict[str, Any]:
    """Return a manifest entry without what differs between two writes of the same rows: its path, and the sizes and
    offsets that the ids in a footer change, and the checksums of all this."""
    found = msgspec.structs.asdict(file)
    for name in ("path", "size_bytes", "sequence", "added_version", "crc32", "footer_crc32"):
        del found[name]
    return found


@pytest.mark.parametrize("way", WAYS)
def test_both_write_the_same_files(
    lake: SparkCatalog, way: str, lane_count: Callable[[int, int], int]
) -> None:
    if way in ("plain", "partitioned") and not lane_count(0, 1):
        pytest.skip("others are sorted or partitioned, too: make slow LANE=both_writers")
    partition_by, sort_by = WAYS[way]
    for seed in range(lane_count(1, 15)):
        rng = random.Random(f"{way} {seed}")
        rows = [row(rng, id) for id in range(rng.choice((1, 40, 300)))]
        data = pa.Table.from_pylist(rows, SCHEMA)
        names = f"s.library{seed}", f"s.spark{seed}"
        for name in names:
            lake.catalog.create_table(name, SCHEMA, partition_by=partition_by, sort_by=sort_by)
        lake.catalog.append(names[0], data)
        schema = lake.read(names[1]).schema
        schema["id"].nullable = False
        lake.append(names[1], lake.spark.createDataFrame(data, schema).coalesce(1))
        ours, theirs = (files_of(lake, name) for name in names)
        assert len(ours) == len(theirs), seed
        for one, other in zip(ours, theirs, strict=True):
            for field, value in entry(one).items():
                assert value == getattr(other, field), (seed, field)
            for file in (one, other):
                assert file.crc32 is not None
                assert file == with_checksums(file, Path(place(lake, file)).read_bytes())
        for one, other in zip(ours, theirs, strict=True):
            first, second = pq.ParquetFile(place(lake, one)), pq.ParquetFile(place(lake, other))
            assert first.schema_arrow.equals(second.schema_arrow, check_metadata=False)
            schemas = [str(file.schema).partition("\n")[2] for file in (first, second)]
            assert schemas[0] == schemas[1], "physical types, field ids, no INT96"
            assert first.read().to_pylist().__repr__() == second.read().to_pylist().__repr__(), (
                "rows and their order"
            )
            groups = [file.metadata.row_group(0).to_dict()["columns"] for file in (first, second)]
            for a, b in zip(*groups, strict=True):
                assert {**a, "file_offset": 0} == {**b, "file_offset": 0}
        sql = "SELECT * REPLACE (CAST(raw AS VARCHAR) AS raw) FROM read_parquet($files) ORDER BY id"
        in_duckdb = [
            duckdb.execute(sql, {"files": [place(lake, f) for f in each]}).fetchall()
            for each in (ours, theirs)
        ]
        assert repr(in_duckdb[0]) == repr(in_duckdb[1])
        in_spark = [lake.read(name).orderBy("id").collect() for name in names]
        assert repr(in_spark[0]) == repr(in_spark[1])


def test_footers_tell_whose_file_it_is(lake: SparkCatalog) -> None:
    lake.create_table("s.t", lake.spark.range(3))
    lake.catalog.append("s.t", [{"id": 4}])
    lake.delete("s.t", "id = 1", mode="rewrite")
    found = [pq.read_metadata(place(lake, file)).metadata for file in files_of(lake, "s.t")]
    table = lake.catalog.load_table("s.t").definition
    assert len(found) > 1
    for footer in found:
        assert footer[b"alpheus.catalog_id"] == lake.catalog.info().catalog_id.encode()
        assert footer[b"alpheus.table_id"] == table.id.encode()
        assert footer[b"alpheus.schema_id"] == str(table.schema_id).encode()
        assert footer[b"alpheus.transaction_id"]
