"""The batches in which tasks get rows: by a number of rows, and by bytes for frames with large rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.spark import SparkCatalog
from alpheus.spark.files import batches, writes

pytestmark = SPARK_MARKS

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def limits(spark: SparkSession) -> tuple[str, str]:
    return str(spark.conf.get(BYTES)), str(spark.conf.get(ROWS))


def test_a_large_row_runs_the_frame_again_in_small_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[bool, tuple[str, str]]] = []
    collect = writes._collect

    def note(ready: object, task: object, *, by_bytes: bool) -> list[object]:
        with batches.limit_batches(spark, by_bytes=by_bytes):
            ran.append((by_bytes, limits(spark)))
        return collect(ready, task, by_bytes=by_bytes)  # type: ignore[arg-type]

    monkeypatch.setattr(writes, "_collect", note)
    with alpheus.create(tmp_path.as_uri()) as catalog:
        catalog.create_namespace("s")
        lake = SparkCatalog(spark, catalog)
        own = limits(spark)
        small = spark.range(3).selectExpr(
            "id", "named_struct('t', cast(null as string), 'b', binary('b')) AS s"
        )
        lake.create_table("s.rows", small.schema)
        lake.append("s.rows", small)
        unlimited = (str((1 << 31) - 1), str(batches.ROWS_MAX))
        assert ran == [(False, unlimited)]

        size = batches.ROW_SIZE_BYTES_MAX
        text = f"if(id = 1, repeat('é', {size // 2} + 1), cast(null as string))"
        large = spark.range(3).selectExpr("id", f"named_struct('t', {text}, 'b', binary('b')) AS s")
        ran.clear()
        assert lake.append("s.rows", large).rows_added == 3
        assert ran == [(False, unlimited), (True, own)]
        assert lake.read("s.rows").agg(f.sum(f.length("s.t")), f.count("*")).collect() == [(size // 2 + 1, 6)]

        ran.clear()
        lake.append("s.rows", small)
        assert ran == [(True, own)], "the table is known to have large rows"
        assert limits(spark) == own
        lake.close()


@pytest.mark.parametrize(
    ("column", "is_told"),
    [
        ("1 AS c", True),
        ("cast('a' AS binary) AS c", True),
        ("named_struct('a', 1.5BD, 'b', named_struct('c', 'd', 'e', current_date())) AS c", True),
        ("array(1) AS c", False),
        ("named_struct('a', array('b')) AS c", False),
        ("map('a', 1) AS c", False),
    ],
)
def test_the_size_of_a_row(spark: SparkSession, column: str, is_told: bool) -> None:
    schema = spark.range(1).selectExpr(column).schema
    assert (batches.row_size(schema) is not None) == is_told


def test_many_columns_are_large_by_their_number(spark: SparkSession) -> None:
    many = spark.range(1).selectExpr(*(f"id AS c{number}" for number in range(201)))
    assert batches.row_size(many.schema) is None
    assert batches.row_size(many.select(*many.columns[:200]).schema) is not None


def test_a_write_that_needs_small_batches_gives_them_to_the_writes_beside_it(spark: SparkSession) -> None:
    own = limits(spark)
    with batches.limit_batches(spark, by_bytes=False):
        assert limits(spark) != own
        with batches.limit_batches(spark, by_bytes=True):
            assert limits(spark) == own
            with batches.limit_batches(spark, by_bytes=False):
                assert limits(spark) == own
        assert limits(spark) == (str((1 << 31) - 1), str(batches.ROWS_MAX))
    assert limits(spark) == own
    fewer = "512"
    spark.conf.set(ROWS, fewer)
    try:
        with batches.limit_batches(spark, by_bytes=False):
            assert limits(spark)[1] == fewer, "fewer rows than ours are kept"
    finally:
        spark.conf.unset(ROWS)
    assert limits(spark) == own
