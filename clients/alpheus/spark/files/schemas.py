"""Converts between Spark's types and a table's columns, and fits data frames to a table.

Column ids are in field metadata, where Spark's Parquet reader and writer look for field ids. Spark writes no ids for
list elements and for keys and values of maps. These are read by position in files, so nothing is lost
(`alpheus_journal.tables.parquet_footer.data_file_of_footer`).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column, PartitionField, SortField, walk_columns
from alpheus_journal.model.type_names import type_text
from alpheus_journal.tables.columns import columns_of_schema, decode_default, python_value

FIELD_ID = "parquet.field.id"
_MARK = "alpheus.column.id"

_TO_SPARK: dict[str, t.DataType] = {
    "BOOLEAN": t.BooleanType(),
    "INT2": t.ShortType(),
    "INT4": t.IntegerType(),
    "INT8": t.LongType(),
    "FLOAT4": t.FloatType(),
    "FLOAT8": t.DoubleType(),
    "VARCHAR": t.StringType(),
    "BINARY": t.BinaryType(),
    "FIXED": t.BinaryType(),
    "DATE": t.DateType(),
    "TIMESTAMP6": t.TimestampNTZType(),
    "TIMESTAMPTZ6": t.TimestampType(),
}

_TO_ARROW: dict[type[t.DataType], pa.DataType] = {
    t.BooleanType: pa.bool_(),
    t.ShortType: pa.int16(),
    t.IntegerType: pa.int32(),
    t.LongType: pa.int64(),
    t.FloatType: pa.float32(),
    t.DoubleType: pa.float64(),
    t.StringType: pa.string(),
    t.BinaryType: pa.binary(),
    t.DateType: pa.date32(),
    t.TimestampNTZType: pa.timestamp("us"),
    t.TimestampType: pa.timestamp("us", "UTC"),
}
_NO_LENGTH = "declare it STRING: tables do not keep a length of texts"
_INSTEAD: dict[type[t.DataType], str] = {
    t.ByteType: "declare it SMALLINT, the smallest integer, or cast it",
    t.CharType: _NO_LENGTH,
    t.VarcharType: _NO_LENGTH,
}


# --- from a table to Spark -------------------------------------------------------------------------


def spark_schema(columns: Sequence[Column], *, nullable: bool = False) -> t.StructType:
    """Return the schema with which Spark reads and writes a table's files. Column ids are in the fields' metadata.

    With `nullable` every column may be NULL, like all columns that Spark reads from files.
    """
    return t.StructType([_field(column, nullable) for column in columns])


def _field(column: Column, nullable: bool) -> t.StructField:
    kind = _spark_type(column, nullable)
    return t.StructField(column.name, kind, nullable or column.nullable, {FIELD_ID: column.id})


def _spark_type(column: Column, nullable: bool) -> t.DataType:
    if column.type == "STRUCT":
        return spark_schema(column.fields, nullable=nullable)
    if column.type == "LIST" and column.element is not None:
        return t.ArrayType(_spark_type(column.element, nullable), nullable or column.element.nullable)
    if column.type == "MAP" and column.key is not None and column.value is not None:
        return t.MapType(
            _spark_type(column.key, nullable),
            _spark_type(column.value, nullable),
            nullable or column.value.nullable,
        )
    if column.type == "DECIMAL":
        return t.DecimalType(int(column.properties["precision"]), int(column.properties["scale"]))
    if column.type not in _TO_SPARK:
        raise InvalidInput(
            f"column {column.name!r} has type {type_text(column)}, which this release does not read in Spark",
            kind="not_supported",
        )
    return _TO_SPARK[column.type]


# --- from Spark to a table -------------------------------------------------------------------------


def columns_of(schema: t.StructType) -> tuple[Column, ...]:
    """Return the columns of a new table. Raises InvalidInput (`bad_schema`) that names a column of an unsupported type.

    As in the library with Arrow's types, no type is replaced by another: TINYINT, CHAR(n), VARCHAR(n) and texts with a
    collation are refused. Comments and other metadata are not kept.
    """
    return columns_of_schema(pa.schema([_arrow_field(field, field.name) for field in schema.fields]))


_NESTED = (t.StructType, t.ArrayType, t.MapType)


def schema_of_frame(df: DataFrame) -> t.StructType:
    """Return the frame's schema for a new table, with nested columns and everything in them nullable. A frame's NOT
    NULL inside nested columns reflects how the frame was computed, and could not be verified in files of other
    frames."""
    return t.StructType(
        [
            t.StructField(
                field.name,
                _as_nullable(field.dataType),
                field.nullable or isinstance(field.dataType, _NESTED),
            )
            for field in df.schema.fields
        ]
    )


def _as_nullable(kind: t.DataType) -> t.DataType:
    if isinstance(kind, t.StructType):
        return t.StructType(
            [t.StructField(field.name, _as_nullable(field.dataType)) for field in kind.fields]
        )
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_as_nullable(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(_as_nullable(kind.keyType), _as_nullable(kind.valueType))
    return kind


def _arrow_field(field: t.StructField, path: str) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType, path), field.nullable)


def _arrow_type(kind: t.DataType, path: str) -> pa.DataType:
    if isinstance(kind, t.StructType):
        return pa.struct([_arrow_field(field, f"{path}.{field.name}") for field in kind.fields])
    if isinstance(kind, t.ArrayType):
        element = _arrow_type(kind.elementType, f"{path}.element")
        return pa.list_(pa.field("element", element, kind.containsNull))
    if isinstance(kind, t.MapType):
        value = pa.field("value", _arrow_type(kind.valueType, f"{path}.value"), kind.valueContainsNull)
        return pa.map_(_arrow_type(kind.keyType, f"{path}.key"), value)
    if isinstance(kind, t.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, t.StringType) and not kind.isUTF8BinaryCollation():
        raise InvalidInput(
            f"column {path!r} has texts of collation {kind.collation}, which tables do not keep",
            kind="bad_schema",
            hint="declare it STRING, or cast it to STRING: tables compare texts by their characters",
        )
    found = _TO_ARROW.get(type(kind))
    if found is None:
        raise InvalidInput(
            f"column {path!r} has type {kind.simpleString()}, which tables do not support",
            kind="bad_schema",
            hint=_INSTEAD.get(type(kind), "cast it, for example to string or bigint"),
        )
    return found


# --- defaults --------------------------------------------------------------------------------------


def default_sql(column: Column, data: bytes) -> str:
    """Return a stored default as a Spark expression of the column's type. The expression does not depend on the
    session's settings for time zones, escapes and literals. Raises what `columns.decode_default` does."""
    value = decode_default(column, data)
    kind = _spark_type(column, True).simpleString()
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, str):
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    if isinstance(value, float) and math.isinf(value):
        return f"CAST('{'-' if value < 0 else ''}Infinity' AS {kind})"
    if column.type == "DATE":
        return f"DATE '{python_value(column, value).isoformat()}'"
    if column.type in ("TIMESTAMP6", "TIMESTAMPTZ6"):
        name = "TIMESTAMP_NTZ" if column.type == "TIMESTAMP6" else "TIMESTAMP_LTZ"
        return f"{name} '{python_value(column, value).isoformat(sep=' ')}'"
    return f"CAST('{value}' AS {kind})"


def adapt_scan(
    df: DataFrame, columns: Sequence[Column], absent: Collection[int], unsure: Collection[int]
) -> DataFrame:
    """Adapt a scan of `columns`. The columns with ids in `absent`, which the files lack, get their initial default. And
    filters by the floats with ids in `unsure` no longer reach Parquet.

    Spark's own EXISTS_DEFAULT does less: it ignores fields of structs, and its vectorized reader does not support
    bytes. Spark's filters by such floats would skip rows. The minimum and maximum of other writers leave out NaN, which
    Spark sorts above all numbers, and in a dictionary -0.0 is not 0.0. Filters do not pass through an expression.
    """
    selected = []
    for column, field in zip(columns, df.schema.fields, strict=True):
        value = f.col(quoted(column.name))
        own = _adapt_value(column, value, absent, unsure)
        value = value if own is None else own
        for path, inner in _leaves(column.fields, ""):
            own = _adapt_value(inner, f.col(f"{quoted(column.name)}.{path}"), absent, unsure)
            value = value if own is None else value.withField(path, own)
        selected.append(value.alias(field.name, metadata=field.metadata))
    return df.select(*selected)


def _adapt_value(
    column: Column, value: SparkColumn, absent: Collection[int], unsure: Collection[int]
) -> SparkColumn | None:
    """Return the column's adapted value, or None when it stays as it is."""
    if column.id in absent and column.initial_default is not None:
        return _nullable_value(column, column.initial_default)
    return f.nanvl(value, value) if column.id in unsure else None


def _nullable_value(column: Column, data: bytes) -> SparkColumn:
    """Return a default as a nullable expression, as the schema of a scan has all columns. If it were NOT NULL in a
    struct, Spark would rely on that even where the struct is NULL."""
    return f.expr(f"IF(false, NULL, {default_sql(column, data)})")


def _leaves(columns: Sequence[Column], prefix: str) -> Iterator[tuple[str, Column]]:
    """Yield the columns inside structs that are not structs themselves, with their quoted paths."""
    for column in columns:
        if column.fields:
            yield from _leaves(column.fields, f"{prefix}{quoted(column.name)}.")
        else:
            yield prefix + quoted(column.name), column


def _with_write_defaults(df: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return `df` with the columns that it lacks and that have a write default."""
    own = {field.name.lower(): field for field in df.schema.fields}
    for column in columns:
        field = own.get(column.name.lower())
        if field is None and column.write_default is not None:
            df = df.withColumn(column.name, f.expr(default_sql(column, column.write_default)))
        elif field is not None and isinstance(field.dataType, t.StructType):
            value = f.col(quoted(field.name))
            missing = list(_find_missing_defaults(field.dataType, column.fields, ""))
            for path, sql in missing:
                value = value.withField(path, f.expr(sql))
            if missing:
                df = df.withColumn(field.name, value)
    return df


def _find_missing_defaults(
    own: t.StructType, columns: Sequence[Column], prefix: str
) -> Iterator[tuple[str, str]]:
    """Yield quoted paths of the fields that a struct lacks, with their defaults."""
    found = {field.name.lower(): field for field in own.fields}
    for column in columns:
        field = found.get(column.name.lower())
        if field is None and column.write_default is not None:
            yield prefix + quoted(column.name), default_sql(column, column.write_default)
        elif field is not None and isinstance(field.dataType, t.StructType):
            yield from _find_missing_defaults(field.dataType, column.fields, f"{prefix}{quoted(field.name)}.")


# --- partitions and orders -------------------------------------------------------------------------


_DAY_MICROS = 86_400_000_000


def partition_key(spec: Sequence[PartitionField], columns: Sequence[Column]) -> SparkColumn:
    """Return a digest of a row's partition, which is never NULL."""
    by_id = {column.id: column for column in columns}
    parts = [_partition_text(field, by_id[field.column_id]) for field in spec]
    # Hexadecimal text is never "null" and contains no "/".
    digits = [f.coalesce(f.hex(part), f.lit("null")) for part in parts]
    return f.coalesce(f.sha2(f.concat_ws("/", *digits).cast("binary"), 256), f.lit(""))


def _partition_text(field: PartitionField, column: Column) -> SparkColumn:
    """Return a text or bytes that is different for each value of a partition key, in UTC whatever the session's time
    zone. NULL stays NULL."""
    name = quoted(column.name)
    if field.transform == "IDENTITY":
        if column.type == "BINARY":
            return f.col(name)
        return (f.unix_micros(f.col(name)) if column.type == "TIMESTAMPTZ6" else f.col(name)).cast("string")
    day = f.col(name).cast("date")
    if column.type == "TIMESTAMPTZ6":
        micros = f"unix_micros({name})"
        floored = f"{micros} DIV {_DAY_MICROS}L - IF({micros} % {_DAY_MICROS}L < 0, 1, 0)"
        day = f.expr(f"date_from_unix_date(CAST({floored} AS INT))")
    found = {"DAY": day, "MONTH": f.trunc(day, "month"), "YEAR": f.year(day)}[field.transform]
    return found.cast("string")


def order_of(order: Sequence[SortField], columns: Sequence[Column]) -> list[SparkColumn]:
    """Return a table's sort order, for `sortWithinPartitions`."""
    by_id = {column.id: column for column in columns}
    found = []
    for field in order:
        value = f.col(quoted(by_id[field.column_id].name))
        if field.descending:
            found.append(value.desc_nulls_last() if field.nulls_last else value.desc_nulls_first())
        else:
            found.append(value.asc_nulls_last() if field.nulls_last else value.asc_nulls_first())
    return found


# --- fitting a data frame --------------------------------------------------------------------------


def fit_frame(df: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return `df` with exactly these columns, in their order, with their names and types, and with field ids.

    Columns are found by name without case, as in Spark. Missing columns get their default, or NULL. Types may be
    widened where no value changes. Raises InvalidInput (`bad_data`) that names a column which the table lacks, which is
    given twice, which is required but missing, or which has another type. Nothing has run then. NULLs in a required
    column are found when the files are written.
    """
    if df.isStreaming:
        raise InvalidInput("the data frame is a stream", kind="bad_data", hint="write it from foreachBatch")
    check_fits(df.schema, columns)
    df = _with_write_defaults(df, columns)
    schema = _file_schema(columns, df.schema)
    # Spark's optimizer drops a projection that only changes metadata, and an alias with the metadata that the column
    # below already has. Hence the mark, which no column has. Ids of nested columns are lost where Spark merges two
    # types that differ in nullability; a cast sets the ids in any case. Other columns have no nested ids, and already
    # have their type. Casting them, too, would cost dozens of calls of the JVM a write.
    return df.to(schema).select(
        *[
            (
                f.col(quoted(field.name)).cast(field.dataType)
                if _is_nested(field)
                else f.col(quoted(field.name))
            ).alias(field.name, metadata=field.metadata | {_MARK: field.metadata[FIELD_ID]})
            for field in schema.fields
        ]
    )


NOT_UTF8 = re.compile(r"column '[^\n]*' has a text that is not UTF-8")
"""The message with which a frame of `check_texts` fails."""


def check_texts(df: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return `df` so that it fails when it runs and one of its texts is not UTF-8. Raises what `fit_frame` does.

    Spark accepts any bytes as a text, from a cast or from a file in another encoding, and writes files that no other
    reader could read.
    """
    if df.isStreaming:
        return df  # `fit_frame` refuses it
    check_fits(df.schema, columns)
    if not any(_has_texts(field.dataType) for field in df.schema.fields):
        return df
    return df.select(*[_check_texts_of(field) for field in df.schema.fields])


def _check_texts_of(field: t.StructField) -> SparkColumn:
    """Return the column of a field with its texts checked. In the projection that costs a third of a filter."""
    value = f.col(quoted(field.name))
    if not _has_texts(field.dataType):
        return value
    # Spark moves a projection below an OFFSET, to rows that the frame does not have, unless the projection uses the
    # partition id. The id is only computed where a text is wrong, so it costs nothing.
    wrong = _is_wrong_text(value, field.dataType) & (f.spark_partition_id() >= 0)
    checked = f.when(wrong, f.raise_error(f.lit(f"column {field.name!r} has a text that is not UTF-8")))
    checked = checked.otherwise(value)
    if not field.nullable:
        checked = f.coalesce(checked, value)  # Spark believes that an error may be NULL
    return checked.alias(field.name, metadata=field.metadata)


def _has_texts(kind: t.DataType) -> bool:
    if isinstance(kind, t.StructType):
        return any(_has_texts(field.dataType) for field in kind.fields)
    if isinstance(kind, t.ArrayType):
        return _has_texts(kind.elementType)
    if isinstance(kind, t.MapType):
        return _has_texts(kind.keyType) or _has_texts(kind.valueType)
    return isinstance(kind, _TEXTS)


def _is_wrong_text(value: SparkColumn, kind: t.DataType) -> SparkColumn:
    """Return an expression that is TRUE where a value is or contains a text that is not UTF-8, otherwise FALSE or
    NULL."""
    if isinstance(kind, t.ArrayType):
        element = kind.elementType
        return f.exists(value, lambda one: _is_wrong_text(one, element))
    if isinstance(kind, t.StructType):
        inner = [(value.getField(field.name), field.dataType) for field in kind.fields]
    elif isinstance(kind, t.MapType):
        inner = [(f.map_keys(value), t.ArrayType(kind.keyType))]
        inner.append((f.map_values(value), t.ArrayType(kind.valueType)))
    else:
        return ~f.is_valid_utf8(value)
    return functools.reduce(
        SparkColumn.__or__, [_is_wrong_text(one, of) for one, of in inner if _has_texts(of)]
    )


def check_fits(schema: t.StructType, columns: Sequence[Column]) -> None:
    """Raise what `fit_frame` does for a frame of this schema."""
    _check_fields(schema.fields, columns, "")


def _is_nested(field: t.StructField) -> bool:
    return isinstance(field.dataType, t.StructType | t.ArrayType | t.MapType)


def _file_schema(columns: Sequence[Column], own: t.DataType | None) -> t.StructType:
    """Return the table's schema for a frame of type `own`. A column is NOT NULL where table and frame both say so,
    because Spark casts no type to a stricter one. Tasks refuse NULLs in the table's other required columns."""
    found = {field.name.lower(): field for field in own.fields} if isinstance(own, t.StructType) else {}
    fields = []
    for column in columns:
        have = found.get(column.name.lower())
        kind = _file_type(column, have.dataType if have else None)
        nullable = column.nullable or have is None or have.nullable
        fields.append(t.StructField(column.name, kind, nullable, {FIELD_ID: column.id}))
    return t.StructType(fields)


def _file_type(column: Column, own: t.DataType | None) -> t.DataType:
    if column.type == "STRUCT":
        return _file_schema(column.fields, own)
    if isinstance(own, t.ArrayType) and column.element is not None:
        element = _file_type(column.element, own.elementType)
        return t.ArrayType(element, column.element.nullable or own.containsNull)
    if isinstance(own, t.MapType) and column.key is not None and column.value is not None:
        key, value = _file_type(column.key, own.keyType), _file_type(column.value, own.valueType)
        return t.MapType(key, value, column.value.nullable or own.valueContainsNull)
    return _spark_type(column, True)


def quoted(name: str) -> str:
    """Return a column or view name quoted for Spark's parser."""
    return "`" + name.replace("`", "``") + "`"


def _bad_column(path: str, reason: str, hint: str = "") -> InvalidInput:
    return InvalidInput(f"column {path!r} {reason}", kind="bad_data", hint=hint)


def _check_fields(fields: Iterable[t.StructField], columns: Sequence[Column], prefix: str) -> None:
    found: dict[str, t.StructField] = {}
    for field in fields:
        if field.name.lower() in found:
            raise _bad_column(prefix + field.name, "appears twice")
        found[field.name.lower()] = field
    for column in columns:
        own = found.pop(column.name.lower(), None)
        if own is not None:
            _check_type(own.dataType, column, prefix + column.name)
        elif not column.nullable and column.write_default is None:
            raise _bad_column(prefix + column.name, "is required, but missing")
        for nested in walk_columns([column]):
            if nested.type == "FIXED":
                raise InvalidInput(
                    f"column {prefix + column.name!r} has binary values of fixed length, which Spark does not write",
                    kind="not_supported",
                    hint="write the table with pyarrow, or declare the column binary",
                )
    for field in found.values():
        names = ", ".join(column.name for column in columns)
        raise _bad_column(prefix + field.name, "is not in the table", f"the table has {names[:500]}")


def _check_type(kind: t.DataType, column: Column, path: str) -> None:
    if isinstance(kind, t.NullType):
        return None
    if isinstance(kind, t.StructType) and column.type == "STRUCT":
        return _check_fields(kind.fields, column.fields, path + ".")
    if isinstance(kind, t.ArrayType) and column.element is not None:
        return _check_type(kind.elementType, column.element, f"{path}.element")
    if isinstance(kind, t.MapType) and column.key is not None and column.value is not None:
        _check_type(kind.keyType, column.key, f"{path}.key")
        return _check_type(kind.valueType, column.value, f"{path}.value")
    if column.children() or not widens(kind, _spark_type(column, True)):
        want = _spark_type(column, True).simpleString()
        raise _bad_column(path, f"has type {kind.simpleString()}, the table has {want}", f"cast it to {want}")
    return None


_INTEGERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_DIGITS = {t.ByteType: 3, t.ShortType: 5, t.IntegerType: 10, t.LongType: 20}
_TEXTS = (t.StringType, t.CharType, t.VarcharType)


def widens(have: t.DataType, want: t.DataType) -> bool:
    """Return whether every value of the leaf type `have` is the same value in the type `want`."""
    if isinstance(have, _TEXTS) and isinstance(want, _TEXTS):
        return True
    if isinstance(have, t.DecimalType) and isinstance(want, t.DecimalType):
        return want.scale >= have.scale and want.precision - want.scale >= have.precision - have.scale
    if isinstance(have, _INTEGERS):
        if isinstance(want, _INTEGERS):
            return _INTEGERS.index(type(have)) <= _INTEGERS.index(type(want))
        if isinstance(want, t.DecimalType):
            return want.precision - want.scale >= _DIGITS[type(have)]
        narrow = (t.ByteType, t.ShortType)
        return (isinstance(want, t.DoubleType) and not isinstance(have, t.LongType)) or (
            isinstance(want, t.FloatType) and isinstance(have, narrow)
        )
    if isinstance(have, t.FloatType):
        return isinstance(want, t.FloatType | t.DoubleType)
    return type(have) is type(want)
