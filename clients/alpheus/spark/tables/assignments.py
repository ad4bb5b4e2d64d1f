"""The assignments of an update: a user's expressions, checked, and computed as by Spark's own UPDATE."""

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
from alpheus.spark.files.schemas import quoted, spark_schema
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column

SHOWN_MAX = 300


def read_assignments(set: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, SparkColumn]:
    """Return the assignments by the columns' own names. Raises InvalidInput."""
    if not isinstance(set, Mapping) or not set:
        raise InvalidInput(
            f"set={set!r} sets no column",
            hint="""give columns and expressions, as in {"status": "'paid'", "total": "price * quantity"}""",
        )
    names = {column.name.lower(): column.name for column in columns}
    found: dict[str, SparkColumn] = {}
    for name, value in set.items():
        own = names.get(name.lower()) if isinstance(name, str) else None
        if own is None or own in found:
            raise InvalidInput(
                f"set: column {name!r} {'appears twice' if own else 'is not in the table'}",
                hint=f"the table has {', '.join(names.values())[:500]}; set a struct as a whole",
            )
        found[own] = _column_expression(own, value)
    return found


_EXAMPLE = """give an expression in Spark's SQL, as in "n + 1" or "'paid'", a Spark column, or a plain Python value"""


def _column_expression(name: str, value: object) -> SparkColumn:
    if isinstance(value, SparkColumn):
        return value
    try:
        return f.expr(value) if isinstance(value, str) else _literal(value)
    except (PySparkException, AttributeError, TypeError) as error:  # of Py4J, for what it knows no type of
        reason = (
            spark_reason(error)
            if isinstance(value, str)
            else f"{type(value).__name__} is not a value for a column"
        )
        raise InvalidInput(f"set: column {name!r}: {reason}", hint=_EXAMPLE) from error


def _literal(value: object) -> SparkColumn:
    """Return a literal as `f.lit` does, except for dates and times. `f.lit` converts these through Java's calendar,
    which differs before 1582, and takes times without a zone for moments in the zone of this process."""
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
    """Raise InvalidInput that names the column of a bad expression. Nothing runs.

    Bad are expressions that Spark does not understand, and those that are not one value per row, computed from that row
    alone: in a projection they would return more rows, or fewer. `none` is a frame with the table's columns.
    """
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
                f"set: column {name!r} is not computed from each row alone: it has {beside}",
                hint=f"join or group rows into a DataFrame that has {name!r} for each key, and merge it by key",
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
    """Return what the plan contains besides projections of a leaf, or "" for nothing."""
    java = getattr(df, "_jdf", None)
    if java is None:  # Spark Connect does not expose plans; rows are counted when they are written
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
            f"the table has {', '.join(column.name for column in columns)[:500]}; put text in single quotes,"
            """ as in "'paid'\""""
        )
    return InvalidInput(f"set: column {name!r}: {spark_reason(error)}", hint=hint)


DATA_EXCEPTION = "22"
"""The SQL states of values that cannot be computed begin with this: division by zero, out of range, not a number."""


def spark_reason(error: Exception | None) -> str:
    """Return the first line of Spark's own message, without its plan."""
    lines = str(error).strip().splitlines()
    return re.sub(r" SQLSTATE: .*", "", lines[0])[:SHOWN_MAX] if lines else type(error).__name__


def name_columns(assigned: Mapping[str, SparkColumn]) -> str:
    names = ", ".join(map(repr, assigned))
    return f"column {names}" if len(assigned) == 1 else f"one of the columns {names}"[:SHOWN_MAX]


def assign_columns(
    df: DataFrame, assigned: Mapping[str, SparkColumn], columns: Iterable[Column]
) -> DataFrame:
    """Return the rows with their new values. As in Spark's own UPDATE, numbers are cast to the column's type, and a
    number that does not fit is an error."""
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
            is_strict  # otherwise a number that does not fit would become another number
            and field.name in assigned
            and isinstance(have, t.NumericType)
            and isinstance(field.dataType, t.NumericType)
            and have != field.dataType
        ):
            changed = changed.withColumn(field.name, f.col(quoted(field.name)).cast(field.dataType))
    return changed
