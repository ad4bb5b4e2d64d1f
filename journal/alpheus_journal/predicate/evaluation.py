"""Predicates as stored bytes, and predicates evaluated on rows (FORMAT.md, "Predicates")."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.model.definition_messages import decode_columns, encode_column
from alpheus_journal.model.definitions import Column
from alpheus_journal.predicate.terms import (
    FLOATS,
    INTEGER_RANGES,
    PREDICATE_DEPTH_MAX,
    PREDICATE_SIZE_BYTES_MAX,
    TIMESTAMPS,
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    Value,
    bad_predicate,
    check,
    check_column,
    columns_of,
    decode_value,
    encode_value,
    leaf_paths,
    reference,
)  # fmt: skip
from alpheus_journal.tables.columns import is_bytes, is_text, leaf_arrow_type, plain_type
from alpheus_pb.v1 import objects_pb2 as pb

# --- bytes -----------------------------------------------------------------------------------------

_OPERATORS: dict[str, Any] = {
    "=": pb.Predicate.EQUAL,
    "!=": pb.Predicate.NOT_EQUAL,
    "<": pb.Predicate.LESS,
    "<=": pb.Predicate.LESS_OR_EQUAL,
    ">": pb.Predicate.GREATER,
    ">=": pb.Predicate.GREATER_OR_EQUAL,
    "<=>": pb.Predicate.EQUAL_NULL_SAFE,
}
_OPERATOR_NAMES: dict[int, Any] = {number: op for op, number in _OPERATORS.items()}
_TRUTHS: dict[bool | None, Any] = {None: pb.Predicate.UNKNOWN, False: pb.Predicate.NO, True: pb.Predicate.YES}
_TRUTH_VALUES: dict[int, Constant] = {number: Constant(value) for value, number in _TRUTHS.items()}


def encode(predicate: Predicate) -> bytes:
    """Encode a predicate. Equal predicates give equal bytes.

    Raises InvalidInput (`bad_predicate`) for a predicate that `check` refuses, or that takes more than 64 KiB.
    """
    check(predicate)
    columns = [encode_column(reference(column)) for column in columns_of(predicate)]
    message = pb.Predicate(columns=columns)
    message.term.SetInParent()
    _fill(message.term, predicate)
    data = message.SerializeToString(deterministic=True)
    if len(data) > PREDICATE_SIZE_BYTES_MAX:
        raise bad_predicate(
            f"a predicate takes {len(data)} bytes, at most {PREDICATE_SIZE_BYTES_MAX} are allowed",
            "name fewer values, or a range of values",
        )
    return data


def _fill(message: Any, term: Predicate) -> None:
    match term:
        case Compare(column, op, value):
            message.comparison.column_id = column.id
            message.comparison.operator = _OPERATORS[op]
            message.comparison.value = encode_value(column, value)
        case In(column, values, with_null):
            message.membership.column_id = column.id
            message.membership.values.extend([encode_value(column, value) for value in values])
            message.membership.with_null = with_null
        case IsNull(column):
            message.null_column_id = column.id
        case StartsWith(column, prefix):
            message.prefix.column_id = column.id
            message.prefix.prefix = prefix
        case And(terms) | Or(terms):
            into = message.all if isinstance(term, And) else message.any
            into.SetInParent()
            for inner in terms:
                _fill(into.terms.add(), inner)
        case Not(inner):
            message.negated.SetInParent()
            _fill(message.negated, inner)
        case Constant(value):
            message.constant = _TRUTHS[value]


def decode(data: bytes, path: str = "") -> Predicate:
    """Decode a stored predicate, which then passes `check`. `path` is the file with the bytes, for errors only.

    Raises Corrupt (`corrupt_definition`), or InvalidInput (`newer_format`) for terms that this release does not know.
    """

    def corrupt(reason: str) -> Corrupt:
        where = f" of {path}" if path else ""
        return Corrupt(f"a predicate{where}: {reason}", kind="corrupt_definition", path=path)

    if len(data) > PREDICATE_SIZE_BYTES_MAX:
        raise corrupt(f"it takes {len(data)} bytes, at most {PREDICATE_SIZE_BYTES_MAX} are allowed")
    try:
        message = pb.Predicate.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise corrupt(f"it is not a Predicate message ({error})") from None
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise InvalidInput(
            f"a predicate{f' of {path}' if path else ''} has parts that this release does not know",
            kind="newer_format",
            hint="use a newer release",
            path=path,
        )
    try:
        columns = tuple(reference(column) for column in decode_columns(message.columns))
        for column in columns:
            check_column(column)
        if any(a.id >= b.id for a, b in itertools.pairwise(columns)):
            raise ValueError("its column ids do not ascend")
        predicate = _term(message.term, {column.id: column for column in columns}, 1)
        check(predicate)
    except ValueError as error:
        raise corrupt(str(error)) from None
    except InvalidInput as error:
        raise corrupt(error.message) from None
    return predicate


def _term(message: Any, columns: Mapping[int, Column], depth: int) -> Predicate:
    if depth > PREDICATE_DEPTH_MAX:
        raise ValueError(f"it is nested more than {PREDICATE_DEPTH_MAX} levels deep")

    def column_of(number: int) -> Column:
        column = columns.get(number)
        if column is None:
            raise ValueError(f"a term names column id {number}, which it does not list")
        return column

    kind = message.WhichOneof("kind")
    if kind == "comparison":
        column, op = column_of(message.comparison.column_id), message.comparison.operator
        if op not in _OPERATOR_NAMES:
            raise ValueError(f"it has the operator {op}")
        return Compare(column, _OPERATOR_NAMES[op], decode_value(column, message.comparison.value))
    if kind == "membership":
        column = column_of(message.membership.column_id)
        values = tuple(decode_value(column, data) for data in message.membership.values)
        return In(column, values, message.membership.with_null)
    if kind == "null_column_id":
        return IsNull(column_of(message.null_column_id))
    if kind == "prefix":
        return StartsWith(column_of(message.prefix.column_id), message.prefix.prefix)
    if kind in ("all", "any"):
        terms = tuple(_term(inner, columns, depth + 1) for inner in getattr(message, kind).terms)
        return And(terms) if kind == "all" else Or(terms)
    if kind == "negated":
        return Not(_term(message.negated, columns, depth + 1))
    if kind == "constant" and message.constant in _TRUTH_VALUES:
        return _TRUTH_VALUES[message.constant]
    raise ValueError("a term has no kind")


# --- on rows ---------------------------------------------------------------------------------------

_NULL = pa.NA.cast(pa.bool_())  # `pa.scalar` would import pandas, which takes longer than everything else
Array: TypeAlias = "pa.Array | pa.ChunkedArray"


def absent(column: Column, length: int) -> pa.Array:
    """Return the values of a top-level column in `length` rows of a file without it: its initial default, or NULL.

    The field of a struct has these values where the struct is not NULL.
    """
    kind = leaf_arrow_type(column, column.name)
    if column.initial_default is None:
        return pa.nulls(length, kind)
    value = decode_value(column, column.initial_default)
    if column.type in INTEGER_RANGES and not pa.types.is_integer(kind):
        plain = pa.int32() if column.type == "DATE" else pa.int64()
        return pa.repeat(pa.scalar(value, plain), length).cast(kind)
    return pa.repeat(pa.scalar(value, kind), length)


def leaf_arrays(
    columns: Sequence[Column], batch: pa.RecordBatch | pa.Table, wanted: Iterable[int]
) -> dict[int, Array]:
    """Return arrays by field id for `evaluate`, from rows with the columns `columns` in that order.

    Leaves of structs are NULL where a struct above is NULL. Unknown ids, and ids below lists and maps, are left out.
    """
    rest, found = set(wanted), dict[int, Array]()

    def look(column: Column, array: Array) -> None:
        if column.type == "STRUCT":
            if not rest.isdisjoint(leaf_paths(column.fields)):
                for index, field in enumerate(column.fields):
                    look(field, pc.struct_field(array, [index]))
        elif column.id in rest and not column.children():
            found[column.id] = array

    for index, column in enumerate(columns):
        look(column, batch.column(index))
    return found


def evaluate(predicate: Predicate, columns: Mapping[int, Array], length: int) -> pa.Array:
    """Evaluate the predicate on each of `length` rows. Return booleans, with NULL.

    `columns` must have every column of the predicate, by id (`leaf_arrays`, `absent`). An array may have the column's
    type, or a narrower or wider one, in any encoding.
    """
    operands: dict[int, Array] = {}
    for column in columns_of(predicate):
        assert column.id in columns, f"no rows of column {column.name!r} (id {column.id}) were given"
        operands[column.id] = _operand(column, columns[column.id])
    result = _evaluate(predicate, operands)
    if isinstance(result, pa.Scalar):
        return pa.repeat(result, length)
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if isinstance(result, pa.ChunkedArray):  # without chunks
        result = pa.concat_arrays(result.chunks) if result.num_chunks else pa.nulls(0, pa.bool_())
    assert len(result) == length, f"columns of {len(result)} rows, not {length}"
    return result


def keep(predicate: Predicate, columns: Mapping[int, Array], length: int) -> pa.Array:
    """Return which rows the predicate selects: `evaluate` with FALSE for NULL."""
    return pc.fill_null(evaluate(predicate, columns, length), False)


def _operand(column: Column, array: Array) -> Array:
    """Return the array in one of the few types that kernels compare. Most arrays stay as they are."""
    kind = plain_type(array.type)
    if isinstance(array.type, pa.BaseExtensionType):
        array = (
            pa.chunked_array([chunk.storage for chunk in array.chunks], array.type.storage_type)
            if isinstance(array, pa.ChunkedArray)
            else array.storage
        )
    if array.type != kind:
        array = array.cast(kind) if pa.types.is_dictionary(array.type) else pc.run_end_decode(array)
    if column.type in TIMESTAMPS:
        if pa.types.is_timestamp(kind) and kind.unit != "us":
            array = array.cast(pa.timestamp("us", kind.tz))
        return array.cast(pa.int64())
    if column.type in INTEGER_RANGES:
        if kind == leaf_arrow_type(column, column.name) and not pa.types.is_date32(kind):
            return array
        return array.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    if column.type in FLOATS:
        return array if pa.types.is_float32(kind) and column.type == "FLOAT4" else array.cast(pa.float64())
    if column.type == "DECIMAL":
        scale = int(column.properties["scale"])
        if kind == leaf_arrow_type(column, column.name):
            return array
        if kind.scale != scale:
            return array.cast(pa.decimal256(76, max(scale, kind.scale)))
        return array.cast(pa.decimal128(38, scale))
    if pa.types.is_fixed_size_binary(kind) or (is_bytes(kind) and not pa.types.is_large_binary(kind)):
        return array.cast(pa.binary())
    if is_text(kind) and not pa.types.is_string(kind):
        return array.cast(pa.large_string())
    return array


def _evaluate(term: Predicate, operands: Mapping[int, Array]) -> Any:
    match term:
        case And(terms) | Or(terms):
            whole = isinstance(term, And)
            kernel = pc.and_kleene if whole else pc.or_kleene
            result: Any = None
            for inner in terms:
                value = _evaluate(inner, operands)
                result = value if result is None else kernel(result, value)
            return pa.scalar(whole) if result is None else result
        case Not(inner):
            return pc.invert(_evaluate(inner, operands))
        case Constant(value):
            return pa.scalar(value, pa.bool_())
        case IsNull(column):
            return pc.is_null(operands[column.id])
        case StartsWith(column, prefix):
            return pc.starts_with(operands[column.id], prefix)
        case In(column, values, with_null):
            return _is_in(column, values, with_null, operands[column.id])
        case Compare(column, op, value):
            if column.type in FLOATS:
                return _compare_floats(op, value, operands[column.id])
            return _compare(op, value, operands[column.id])


_KERNELS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def _compare(op: str, value: Any, array: Array) -> Any:
    scalar = pa.scalar(value, array.type)
    if op == "<=>":
        return pc.fill_null(pc.equal(array, scalar), False)
    return _KERNELS[op](array, scalar)


def _compare_floats(op: str, value: Any, array: Array) -> Any:
    """Compare floats with NaN above all numbers. Arrow's NaN is IEEE's, which compares false with everything."""
    if op == "<=>":
        return pc.fill_null(_compare_floats("=", value, array), False)
    nan = pc.is_nan(array)
    if value != value:
        if op in ("=", ">="):
            return nan
        return pc.invert(nan) if op in ("!=", "<") else pc.if_else(pc.is_valid(array), op == "<=", _NULL)
    result = _KERNELS[op](array, pa.scalar(value, array.type))
    return pc.or_(result, nan) if op in (">", ">=") else result


def _is_in(column: Column, values: Sequence[Value], with_null: bool, array: Array) -> Any:
    if not values and not with_null:
        return pa.scalar(False)
    if column.type in FLOATS:
        numbers = [value for value in values if value == value]
        found = pc.is_in(pc.add(array, pa.scalar(0.0, array.type)), pa.array(numbers, array.type))
        if len(numbers) < len(values):
            found = pc.or_(found, pc.fill_null(pc.is_nan(array), False))
    else:
        found = pc.is_in(array, pa.array(values, array.type))
    if with_null:
        return pc.if_else(found, True, _NULL)
    return pc.if_else(pc.is_valid(array), found, _NULL)
