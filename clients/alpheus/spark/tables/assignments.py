"""What an update sets: the expressions of a user, checked and computed as Spark's own UPDATE does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from alpheus.models import EPOCH
from alpheus.spark.tables.schemas import quoted, spark_schema
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column

SHOWN_MAX = 300


def read_assignments(set: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, SparkColumn]:
    """By the columns' own names."""
    if not isinstance(set, Mapping) or not set:
        raise InvalidInput(
            f"set={set!r} says nothing", hint="""as in {"status": "'paid'", "total": "price * quantity"}"""
        )
    names = {column.name.lower(): column.name for column in columns}
    found: dict[str, SparkColumn] = {}
    for name, value in set.items():
        own = names.get(name.lower()) if isinstance(name, str) else None
        if own is None or own in found:
            raise InvalidInput(
                f"set: column {name!r} is {'there twice' if own else 'not in the table'}",
                hint=f"it has {', '.join(names.values())[:500]}; of a struct give the whole value",
            )
        found[own] = _column_expression(own, value)
    return found


_EXAMPLE = (
    """an expression of Spark's SQL, as in "n + 1" or "'paid'", a Spark column, or a plain value of Python"""
)


def _column_expression(name: str, value: object) -> SparkColumn:
    if isinstance(value, SparkColumn):
        return value
    try:
        return f.expr(value) if isinstance(value, str) else _literal(value)
    except (PySparkException, AttributeError, TypeError) as error:  # of Py4J, for what it knows no type of
        reason = (
            spark_reason(error)
            if isinstance(value, str)
            else f"{type(value).__name__} is no value for a column"
        )
        raise InvalidInput(f"set: column {name!r}: {reason}", hint=_EXAMPLE) from error


def _literal(value: object) -> SparkColumn:
    """As Spark's own, but for dates and times: those go through Java's calendar there, which is another one before
    1582, and times without a zone become moments in the zone of this process."""
    if isinstance(value, list):
        return f.array(*[_literal(one) for one in value]) if value else f.lit(value)
    if not isinstance(value, date) or value != value:  # a datetime is a date; pandas has one that is none
        return f.lit(value)
    if not isinstance(value, datetime):
        return f.expr(f"DATE '{value.isoformat()}'")
    if value.tzinfo is None:
        return f.expr(f"TIMESTAMP_NTZ '{datetime.isoformat(value, sep=' ')}'")
    return f.timestamp_micros(f.lit((value - EPOCH) // timedelta(microseconds=1)).cast("bigint"))


def check_assignments(
    none: DataFrame, assigned: Mapping[str, SparkColumn], columns: Sequence[Column]
) -> None:
    """`none`: a frame with the table's columns, which is not run.

    Raises InvalidInput naming the column for an expression that Spark does not understand, and for one that is not a
    value of each row, computed of that row alone: in a projection it would give more rows, or fewer. Nothing runs."""
    first: Exception | None = None
    try:
        if not _find_beside_projections(
            none.select(*[value.alias(name) for name, value in assigned.items()])
        ):
            return
    except PySparkException as error:
        first = error
    for name, value in assigned.items():
        try:
            beside = _find_beside_projections(none.select(value.alias(name)))
        except PySparkException as error:
            raise _bad_expression(name, error, columns) from error
        if beside:
            raise InvalidInput(
                f"set: column {name!r} is not computed of each row alone: it has {beside}",
                hint=f"join or group rows into a DataFrame that gives each key its {name!r}, and merge it by key",
            )
    raise _bad_expression(", ".join(assigned), first, columns) from first


_BESIDE = {
    "Aggregate": "an aggregate",
    "Expand": "a window of time",
    "Filter": "a window of time",
    "Generate": "a function that gives several rows or none, as explode does",
    "Window": "a window function",
}


def _find_beside_projections(df: DataFrame) -> str:
    """What Spark put under a projection of a leaf, or into it, and is no projection; empty: nothing."""
    java = getattr(df, "_jdf", None)
    if java is None:  # Spark Connect tells no plan: rows are counted when they are written
        _ = df.schema
        return ""
    node = java.queryExecution().analyzed()
    while True:
        if not node.subqueries().isEmpty():
            return "a subquery"
        if node.children().isEmpty():
            return ""
        if node.nodeName() != "Project":
            return _BESIDE.get(node.nodeName(), f"what Spark calls {node.nodeName()}")
        node = node.children().apply(0)


def _bad_expression(name: str, error: Exception | None, columns: Sequence[Column]) -> InvalidInput:
    hint = _EXAMPLE
    if "[UNRESOLVED_COLUMN" in str(error):
        hint = (
            f"it has {', '.join(column.name for column in columns)[:500]}; text stands between single quotes,"
            """ as in "'paid'\""""
        )
    return InvalidInput(f"set: column {name!r}: {spark_reason(error)}", hint=hint)


DATA_EXCEPTION = "22"
"""How SQL states begin of values that cannot be computed: divided by zero, out of range, no number, no date."""


def spark_reason(error: Exception | None) -> str:
    """Spark's own words, without its plan."""
    lines = str(error).strip().splitlines()
    return re.sub(r" SQLSTATE: .*", "", lines[0])[:SHOWN_MAX] if lines else type(error).__name__


def name_columns(assigned: Mapping[str, SparkColumn]) -> str:
    names = ", ".join(map(repr, assigned))
    return f"column {names}" if len(assigned) == 1 else f"one of the columns {names}"[:SHOWN_MAX]


def assign_columns(
    df: DataFrame, assigned: Mapping[str, SparkColumn], columns: Iterable[Column]
) -> DataFrame:
    """Rows with new values. As Spark's own UPDATE does, a number becomes one of the column's type, and an error where
    it does not fit there."""
    changed = df.select(
        *[
            assigned[column.name].alias(column.name)
            if column.name in assigned
            else f.col(quoted(column.name))
            for column in columns
        ]
    )
    is_strict = (df.sparkSession.conf.get("spark.sql.ansi.enabled") or "").lower() == "true"
    wanted = spark_schema(tuple(columns), nullable=True)
    for field in wanted.fields:
        have = changed.schema[field.name].dataType
        if (
            is_strict  # else a number that does not fit would become another one
            and field.name in assigned
            and isinstance(have, t.NumericType)
            and isinstance(field.dataType, t.NumericType)
            and have != field.dataType
        ):
            changed = changed.withColumn(field.name, f.col(quoted(field.name)).cast(field.dataType))
    return changed
