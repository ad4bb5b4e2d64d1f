"""Rows are put into partitions and into order. No row is lost, and each is in its place."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from alpheus.rows.partition_sort import partition_and_sort
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.tables.columns import columns_of_schema
from alpheus_journal.tables.partitions import (
    decode_value,
    parse_partition_by,
    parse_sort_by,
    partition_arrays,
)

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "n": (pa.int64(), list(range(300))),
    "bool": (pa.bool_(), [True, False, None]),
    "int": (pa.int16(), [1, -2, None]),
    "float": (pa.float64(), [math.nan, -0.0, 0.0, 1.5, math.inf, -math.inf, None]),
    "text": (pa.string(), ["a", "ü", "x" * 100, "", None]),
    "bytes": (pa.binary(), [b"a", b"", None]),
    "fixed": (pa.binary(3), [b"abc", b"abd", None]),
    "date": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2020, 2, 2), dt.date(1, 1, 1), None]),
    "time": (pa.timestamp("us"), [dt.datetime(1950, 1, 1, 3), dt.datetime(2020, 2, 2), None]),
    "zoned": (pa.timestamp("us", "UTC"), [dt.datetime(1950, 1, 1, 3), dt.datetime(2020, 2, 2), None]),
    "decimal": (pa.decimal128(10, 2), [Decimal("-1.25"), Decimal("3.00"), Decimal("99999999.99"), None]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
COLUMNS = columns_of_schema(SCHEMA)
_random = random.Random(1)
BATCH = pa.RecordBatch.from_pylist(
    [
        {name: n if name == "n" else _random.choice(values) for name, (_, values) in VALUES.items()}
        for n in range(300)
    ],
    SCHEMA,
)


def batches() -> list[pa.RecordBatch]:
    return [BATCH.slice(0, 100), BATCH.slice(100, 1), BATCH.slice(101)]


@pytest.mark.parametrize("buffer", [0, 2_000, 1 << 30])
@pytest.mark.parametrize(
    "key",
    ["bool", "int", "text", "bytes", "fixed", "date", "decimal", "time", "day(time)", "month(zoned)", "year(date)"],
)  # fmt: skip
def test_runs_lie_in_one_partition(key: str, buffer: int) -> None:
    spec = parse_partition_by([key] if key == "int" else [key, "int"], COLUMNS)
    table = TableDef(id="t", columns=COLUMNS, partition_spec=spec)
    numbers: list[int] = []
    partitions: Counter[tuple[bytes | None, ...]] = Counter()
    for run in partition_and_sort(table, iter(batches()), buffer):
        partitions[tuple(run.partition.values())] += 1
        for batch in run.batches:
            numbers += batch.column("n").to_pylist()
            for field, array in zip(spec, partition_arrays(spec, COLUMNS, batch), strict=True):
                (value,) = array.unique()
                stored = run.partition[field.column_id]
                assert (stored is None) == (not value.is_valid)
                column = next(column for column in COLUMNS if column.id == field.column_id)
                if stored is not None:
                    plain = value.value if hasattr(value, "value") else value.as_py()
                    assert decode_value(field, column, stored) == plain
    assert sorted(numbers) == list(range(300))
    if buffer > 1 << 20:
        assert set(partitions.values()) == {1}


def rank(value: Any) -> Any:
    return (1, 0) if value != value else (0, value)


@pytest.mark.parametrize("last", ["", " nulls first", " nulls last"])
@pytest.mark.parametrize("direction", ["", " desc"])
@pytest.mark.parametrize("key", [name for name in VALUES if name != "n"])
def test_runs_are_in_order(key: str, direction: str, last: str) -> None:
    order = parse_sort_by([key + direction + last, "n desc"], COLUMNS)
    table = TableDef(id="t", columns=COLUMNS, sort_order=order)
    (run,) = partition_and_sort(table, iter(batches()))
    assert run.is_sorted
    rows = [row for batch in run.batches for row in batch.to_pylist()]
    field = order[0]
    expected = BATCH.to_pylist()
    expected.sort(key=lambda row: -row["n"])
    present = [row for row in expected if row[key] is not None]
    absent = [row for row in expected if row[key] is None]
    present.sort(key=lambda row: rank(row[key]), reverse=field.descending)
    wanted = present + absent if field.nulls_last else absent + present
    assert [row["n"] for row in rows] == [row["n"] for row in wanted]


def test_rows_without_partitions_and_order_pass_through() -> None:
    table = TableDef(id="t", columns=COLUMNS)
    (run,) = partition_and_sort(table, iter(batches()))
    assert (run.partition, run.is_sorted) == ({}, False)
    assert [batch.num_rows for batch in run.batches] == [100, 1, 199]


def test_decimals_of_many_digits_are_keys() -> None:
    value = Decimal("-123456789012345678901234567890123456.78")
    schema = pa.schema([("d", pa.decimal128(38, 2))])
    columns = columns_of_schema(schema)
    table = TableDef(id="t", columns=columns, partition_spec=parse_partition_by(["d"], columns))
    (run,) = partition_and_sort(table, iter([pa.RecordBatch.from_pylist([{"d": value}], schema)]))
    (key,) = run.partition.values()
    assert key is not None
    assert int.from_bytes(key, "big", signed=True) == int(str(value).replace(".", ""))


def test_no_rows_are_no_runs() -> None:
    table = TableDef(id="t", columns=COLUMNS, sort_order=parse_sort_by(["n"], COLUMNS))
    assert list(partition_and_sort(table, iter([]))) == []
    assert list(partition_and_sort(table, iter([BATCH.slice(0, 0)]))) == []
