"""Spark evaluates predicates as Arrow does over Parquet files, to whose row groups Spark pushes conditions down."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from alpheus.where.engine_sql import spark_sql
from alpheus_journal.predicate import (
    NAN,
    Not,
    Predicate,
    compare,
    evaluate,
    leaf_paths,
    one_of,
    starts_with,
)  # fmt: skip
from alpheus_journal.testing.models.predicates import (
    COLUMNS,
    a_column,
    random_predicate,
    random_rows,
    table_of,
)

pytestmark = [
    # Warnings of PySpark itself, at every session and worker.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NAMES = leaf_paths(COLUMNS)
FLOATS = (a_column(5, "FLOAT4"), a_column(6, "FLOAT8"))


def frame(spark: SparkSession, table: pa.Table, place: Path) -> DataFrame:
    """Write a Parquet file with several row groups, pages, dictionaries and statistics, and return its frame."""
    pq.write_table(table.append_column("n", pa.array(range(table.num_rows))), place, row_group_size=7)
    return spark.read.parquet(str(place))


def check_all(data: DataFrame, table: pa.Table, columns: Any, predicates: list[Predicate]) -> None:
    """Check each predicate's values on each row in one job.

    Check the selected rows in another job, with a scan for each.
    """
    arrays = {column.id: table.column(column.name) for column in columns}
    wanted = [evaluate(predicate, arrays, table.num_rows).to_pylist() for predicate in predicates]
    written = [spark_sql(predicate, NAMES) for predicate in predicates]
    seen = (
        data.select("n", *(f.expr(sql).alias(f"p{k}") for k, sql in enumerate(written)))
        .orderBy("n")
        .collect()
    )
    for k, want in enumerate(wanted):
        assert [row[k + 1] for row in seen] == want, written[k]
    kept = None
    for k, sql in enumerate(written):
        part = data.where(sql).select(f.lit(k).alias("k"), "n")
        kept = part if kept is None else kept.unionAll(part)
    assert kept is not None
    found: dict[int, set[int]] = {}
    for row in kept.collect():
        found.setdefault(row["k"], set()).add(row["n"])
    for k, want in enumerate(wanted):
        assert found.get(k, set()) == {n for n, value in enumerate(want) if value}, written[k]


def test_spark_agrees_with_arrow(
    spark: SparkSession, tmp_path: Path, lane_count: Callable[[int, int], int]
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for seed in range(lane_count(1, 40)):
            rng = random.Random(seed)
            rows = random_rows(rng, count=40)
            table = table_of(COLUMNS, rows)
            predicates = [random_predicate(rng, depth=2) for _ in range(lane_count(6, 30))]
            check_all(frame(spark, table, tmp_path / f"{seed}.parquet"), table, COLUMNS, predicates)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_spark_finds_nan_and_both_zeros_in_files_that_hide_them(
    spark: SparkSession, tmp_path: Path, lane_count: Callable[[int, int], int]
) -> None:
    """Spark finds NaN and both zeros in files that hide them.

    A row group's minimum and maximum omit NaN, and a dictionary tells -0.0 from 0.0.
    """
    groups = (
        [1.0, 2.0, math.nan],
        [-0.0] * 3,
        [0.0] * 3,
        [math.nan] * 3,
        [None, 5.0, -0.0],
        [-5.0, 1.5, 1.5],
    )
    values = [value for group in groups for value in group]
    place = tmp_path / "floats.parquet"
    kinds = (pa.float32(), pa.float64())
    table = pa.table({c.name: pa.array(values, kind) for c, kind in zip(FLOATS, kinds, strict=True)})
    pq.write_table(table.append_column("n", pa.array(range(len(values)))), place, row_group_size=3)
    column = FLOATS[1]
    predicates: list[Predicate] = [
        compare(column, ">", 100.0), Not(compare(column, "<=", 100.0)), compare(column, "!=", 1.5),
        compare(column, ">=", 0.0), compare(column, "=", 0.0), Not(compare(column, "<", 0.0)),
        compare(column, "=", NAN), one_of(column, [0.0, NAN]), one_of(column, range(20)),
    ]  # fmt: skip
    if lane_count(0, 1):
        for column in FLOATS:
            for op in ("=", "!=", "<", "<=", ">", ">=", "<=>"):
                for value in (0.0, 1.5, 100.0, NAN):
                    predicates += [compare(column, op, value), Not(compare(column, op, value))]  # type: ignore[arg-type]
            predicates += [Not(one_of(column, [0.0])), Not(one_of(column, range(20)))]
    check_all(spark.read.parquet(str(place)), table, FLOATS, predicates)


def test_simple_conditions_reach_the_parquet_reader(spark: SparkSession, tmp_path: Path) -> None:
    data = frame(spark, table_of(COLUMNS, random_rows(random.Random(1))), tmp_path / "f.parquet")
    by_id = {column.id: column for column in COLUMNS}
    for predicate, wanted in (
        (compare(by_id[2], "<=", 5), "LessThanOrEqual(c2,5)"), (compare(by_id[3], ">", 5), "GreaterThan(c3,5)"),
        (compare(by_id[4], "=", 7), "EqualTo(c4,7)"), (compare(by_id[6], "<", 7), "LessThan(c6,7.0)"),
        (compare(by_id[7], "<", 1), "LessThan(c7,1.00)"), (compare(by_id[9], "=", "it's"), "EqualTo(c9,it's)"),
        (one_of(by_id[3], [1, 2]), "In(c3, [1,2])"), (starts_with(by_id[9], "a"), "StringStartsWith(c9,a)"),
        (compare(by_id[12], ">=", 20_000), "GreaterThanOrEqual(c12,2024-10-04)"),
        (compare(by_id[13], "<", 10**15), "LessThan(c13,"), (compare(by_id[14], "<", 10**15), "LessThan(c14,"),
    ):  # fmt: skip
        plan = data.where(spark_sql(predicate, NAMES))._jdf.queryExecution().executedPlan().toString()
        assert wanted in plan[plan.index("PushedFilters") :], plan
