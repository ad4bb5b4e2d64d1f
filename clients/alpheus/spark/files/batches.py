"""The size of the Arrow batches in which Spark hands rows to the tasks of a write.

Spark ends a batch at a number of rows, or at a number of bytes. Counting the bytes costs the JVM as much as all other
work on a row. So batches end at a number of rows here, and the frame itself looks at the size of each row, in
generated code, which costs little. A frame with a large row fails, and is then run again with a limit in bytes.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Iterator

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

LARGE_ROW = "Alpheus runs this frame again in smaller batches, because a row is large"
"""The message of the error by which a task refuses a large row. Logs of Spark show it."""
ROWS_MAX = 2_048
"""The number of rows of a batch without a limit in bytes."""
ROW_SIZE_BYTES_MAX = 16_384
"""The bytes of texts and binary values of one row, in such a batch."""
_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NO_LIMIT = str((1 << 31) - 1)

_FIXED = (
    t.BooleanType,
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.FloatType,
    t.DoubleType,
    t.DecimalType,
    t.DateType,
    t.TimestampType,
    t.TimestampNTZType,
)
_COLUMNS_MAX = 200
"""With more columns, rows are large by their number."""


def row_size(schema: t.StructType) -> Column | None:
    """Return the bytes of texts and binary values in a row, as an expression. None means that rows may be large
    otherwise: lists and maps tell no size, and there may be many columns."""
    sizes: list[Column] = []
    count = 0

    def add(kind: t.DataType, value: Column) -> bool:
        nonlocal count
        count += 1
        if isinstance(kind, t.StructType):
            return all(add(field.dataType, value.getField(field.name)) for field in kind.fields)
        if isinstance(kind, t.StringType | t.BinaryType):
            sizes.append(f.coalesce(f.octet_length(value), f.lit(0)).cast("bigint"))
            return True
        return isinstance(kind, _FIXED)

    if not all(add(field.dataType, f.col(field.name)) for field in schema.fields) or count > _COLUMNS_MAX:
        return None
    return functools.reduce(operator.add, sizes, f.lit(0).cast("bigint"))


def refuse_large_rows(df: DataFrame, size: Column) -> DataFrame:
    """Return the frame, whose run fails with LARGE_ROW at a row of more than ROW_SIZE_BYTES_MAX."""
    first = df.schema.fields[0]
    refusal = f.raise_error(f.lit(LARGE_ROW)).cast(first.dataType)
    checked = f.when(size > ROW_SIZE_BYTES_MAX, refusal).otherwise(f.col(first.name))
    return df.select(checked.alias(first.name), *df.columns[1:])


# --- the session -------------------------------------------------------------------------------------


class _Writes:
    """The writes that run in one session now, and the session's own limits while any of them runs."""

    def __init__(self) -> None:
        self.count = 0
        self.by_bytes = 0
        self.before: dict[str, str | None] = {}


_turn = threading.Lock()
_writes: dict[int, _Writes] = {}  # by session


@contextlib.contextmanager
def limit_batches(spark: SparkSession, *, by_bytes: bool) -> Iterator[None]:
    """Run a write with batches of ROWS_MAX rows, or with `by_bytes` by the session's own limits (`file_scan.SETTINGS`).
    Spark reads the limits from the session when it begins to run a frame, so writes beside one that needs a limit in
    bytes have that limit, too."""
    with _turn:
        writes = _writes.setdefault(id(spark), _Writes())
        if not writes.count:
            writes.before = {name: spark.conf.get(name, None) for name in (_BYTES_SETTING, _ROWS_SETTING)}
        writes.count += 1
        writes.by_bytes += by_bytes
        _set_limits(spark, writes)
    try:
        yield
    finally:
        with _turn:
            writes.count -= 1
            writes.by_bytes -= by_bytes
            if not writes.count:
                del _writes[id(spark)]
            _set_limits(spark, writes)


def _set_limits(spark: SparkSession, writes: _Writes) -> None:
    limits = dict(writes.before)
    if writes.count and not writes.by_bytes:
        own = int(limits[_ROWS_SETTING] or 0)
        limits = {_BYTES_SETTING: _NO_LIMIT, _ROWS_SETTING: str(min(own, ROWS_MAX) if own > 0 else ROWS_MAX)}
    for name, value in limits.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
