"""Predicates on rows of native tables (FORMAT.md, "Predicates"): stored, written as SQL, on rows, on whole files.

Their terms and how they are made are `alpheus_journal.predicate.terms`, whose names are here as well.
"""

from __future__ import annotations

import bisect
import enum
import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.model.definition_messages import decode_columns, encode_column
from alpheus_journal.model.definitions import Column
from alpheus_journal.predicate.sql import SqlWriter, text
from alpheus_journal.predicate.terms import (
    FALSE,
    FLOATS,
    INTEGER_RANGES,
    NAN,
    NULL,
    PREDICATE_DEPTH_MAX,
    PREDICATE_NODES_MAX,
    PREDICATE_SIZE_BYTES_MAX,
    TIMESTAMPS,
    TRUE,
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Leaf,
    Not,
    Operator,
    Or,
    Path,
    Predicate,
    StartsWith,
    Value,
    all_of,
    any_of,
    ascending,
    bad_predicate,
    check,
    check_column,
    columns_of,
    compare,
    decode_value,
    encode_value,
    leaf_paths,
    mirrored,
    one_of,
    rebind,
    reference,
    starts_with,
    walk,
)  # fmt: skip
from alpheus_journal.tables.columns import is_bytes, is_text, leaf_arrow_type, plain_type
from alpheus_journal.tables.data_file import DataFile
from alpheus_pb.v1 import objects_pb2 as pb

__all__ = [
    "FALSE", "FLOATS", "INTEGER_RANGES", "NAN", "NULL", "TIMESTAMPS",
    "PREDICATE_DEPTH_MAX", "PREDICATE_NODES_MAX", "PREDICATE_SIZE_BYTES_MAX", "TRUE", "And",
    "Compare", "Constant", "In", "IsNull", "Leaf", "Not", "Operator", "Or", "Path", "Predicate", "StartsWith",
    "Value", "Verdict", "absent", "all_of", "any_of", "ascending", "check", "columns_of", "compare", "decode",
    "decode_value", "encode", "encode_value", "evaluate", "explain", "judge", "judge_of", "keep", "leaf_arrays",
    "leaf_paths", "mirrored", "one_of", "rebind", "reference", "starts_with", "text", "walk",
]  # fmt: skip

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
    """Deterministic. Raises InvalidInput (`bad_predicate`) for what `check` refuses, and above 64 KiB."""
    check(predicate)
    columns = [encode_column(reference(column)) for column in columns_of(predicate)]
    message = pb.Predicate(columns=columns)
    message.term.SetInParent()
    _fill(message.term, predicate)
    data = message.SerializeToString(deterministic=True)
    if len(data) > PREDICATE_SIZE_BYTES_MAX:
        raise bad_predicate(
            f"a predicate takes {len(data)} bytes, {PREDICATE_SIZE_BYTES_MAX} at most",
            "name fewer values, or a range of them",
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
    """The predicate of stored bytes; it passes `check`. `path`, of the file that holds them, is for errors only.

    Raises Corrupt (`corrupt_definition`), InvalidInput (`newer_format`) for terms that this release does not know.
    """

    def corrupt(reason: str) -> Corrupt:
        where = f" of {path}" if path else ""
        return Corrupt(f"a predicate{where}: {reason}", kind="corrupt_definition", path=path)

    if len(data) > PREDICATE_SIZE_BYTES_MAX:
        raise corrupt(f"{len(data)} bytes, {PREDICATE_SIZE_BYTES_MAX} at most")
    try:
        message = pb.Predicate.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise corrupt(f"no Predicate message ({error})") from None
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

_NULL = pa.NA.cast(pa.bool_())  # `pa.scalar` would import pandas, which takes longer than all else
Array: TypeAlias = "pa.Array | pa.ChunkedArray"


def absent(column: Column, length: int) -> pa.Array:
    """What `length` rows of a file without this top-level column have: its initial default, or NULL. For the field of
    a struct it holds where the struct is not NULL."""
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
    """Arrays by field id, as `evaluate` takes them, of rows with the columns `columns` in that order. Leaves of structs
    are NULL where a struct above is. Ids that are not there, or lie below lists and maps, are left out."""
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
    """The predicate on each of `length` rows: booleans, with NULL.

    `columns` has every column of the predicate, by id (`leaf_arrays`, `absent`), of its type, a narrower or a wider
    one, in any encoding.
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
    if isinstance(result, pa.ChunkedArray):  # of no chunks
        result = pa.concat_arrays(result.chunks) if result.num_chunks else pa.nulls(0, pa.bool_())
    assert len(result) == length, f"columns of {len(result)} rows, not {length}"
    return result


def keep(predicate: Predicate, columns: Mapping[int, Array], length: int) -> pa.Array:
    """Which rows are meant: `evaluate` with FALSE for NULL."""
    return pc.fill_null(evaluate(predicate, columns, length), False)


def _operand(column: Column, array: Array) -> Array:
    """The array in one of few types that kernels compare: as it is, mostly."""
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
    """Arrow has IEEE's NaN, which is less, greater and equal to nothing."""
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


# --- on whole files --------------------------------------------------------------------------------


class Verdict(enum.Enum):
    """What is known of all rows of a file."""

    NEVER = "never"  # TRUE on no row; of a file without rows, too
    MAYBE = "maybe"
    ALWAYS = "always"  # TRUE on every row


# What a term may be on the rows of a file: a set of outcomes, as bits.
_T, _F, _N = 1, 2, 4
_ALL = _T | _F | _N
_Judge = Callable[[DataFile], int]


def _pairs(outcome: Callable[[int, int], int]) -> list[list[int]]:
    """Of two sets of outcomes the set of what each pair comes to."""
    singles = (_T, _F, _N)
    return [
        [_union(outcome(x, y) for x in singles if a & x for y in singles if b & y) for b in range(8)]
        for a in range(8)
    ]


def _union(outcomes: Iterable[int]) -> int:
    result = 0
    for outcome in outcomes:
        result |= outcome
    return result


_AND = _pairs(lambda x, y: _F if _F in (x, y) else _N if _N in (x, y) else _T)
_OR = _pairs(lambda x, y: _T if _T in (x, y) else _N if _N in (x, y) else _F)
_NOT = [(a & _N) | (_F if a & _T else 0) | (_T if a & _F else 0) for a in range(8)]


def judge(predicate: Predicate, file: DataFile) -> Verdict:
    """What the statistics of the file say of the predicate on its rows. Sound: NEVER and ALWAYS hold for every row,
    whatever is not known, and however wide the bounds are. For many files take `judge_of`."""
    return judge_of(predicate)(file)


def judge_of(predicate: Predicate) -> Callable[[DataFile], Verdict]:
    """`judge` of one predicate, made ready once for many files."""
    outcomes = _outcomes_of(predicate)

    def verdict(file: DataFile) -> Verdict:
        mask = outcomes(file) if file.row_count else 0
        return Verdict.NEVER if not mask & _T else Verdict.ALWAYS if mask == _T else Verdict.MAYBE

    return verdict


def _outcomes_of(term: Predicate) -> _Judge:
    match term:
        case And(terms) | Or(terms):
            whole = isinstance(term, And)
            table, start, last = (_AND, _T, _F) if whole else (_OR, _F, _T)
            return _combined([_outcomes_of(inner) for inner in terms], table, start, last)
        case Not(inner):
            judged = _outcomes_of(inner)
            return lambda file: _NOT[judged(file)]
        case Constant(value):
            mask = _N if value is None else _T if value else _F
            return lambda file: mask
        case IsNull(column):
            return _of_column(column, _T, lambda lower, upper: _F, _F)
        case StartsWith(column, prefix):
            return _of_column(column, _N, _of_prefix(prefix.encode()), 0)
        case In(column, values, with_null):
            if not values and not with_null:
                return lambda file: _F
            miss = _N if with_null else _F
            nan = _T if any(value != value for value in values) else miss
            return _of_column(column, _N, _of_values(_comparable(column, values), miss), nan)
        case Compare(column, op, value):
            null = _F if op == "<=>" else _N
            return _of_column(column, null, *_of_comparison(column, op, value))


def _combined(parts: Sequence[_Judge], table: list[list[int]], start: int, last: int) -> _Judge:
    def outcomes(file: DataFile) -> int:
        mask = start
        for part in parts:
            mask = table[mask][part(file)]
            if mask == last:
                break
        return mask

    return outcomes


_OfRange = Callable[[Any, Any], int]
"""The outcomes of values from a lower to an upper bound, both inclusive, None without one; NaN is not among them."""


def _of_column(column: Column, null: int, of_range: _OfRange, nan: int) -> _Judge:
    """`null`, `nan`: the outcomes of those. Values are compared as `_bound` has them."""
    number, floats = column.id, column.type in FLOATS
    bound = _bound(column)
    missing = null
    if column.initial_default is not None:  # NULL all the same, in a struct that is NULL
        value = decode_value(column, column.initial_default)
        if value != value:
            missing |= nan
        else:
            [default] = _comparable(column, [value])
            missing |= of_range(default, default)

    def outcomes(file: DataFile) -> int:
        count = file.value_counts.get(number)
        if count is None:
            return missing
        if count != file.row_count:  # of no leaf outside lists
            return null | nan | of_range(None, None)
        nulls = file.null_counts.get(number)
        nans = file.nan_counts.get(number) if floats else 0
        mask = 0 if nulls == 0 else null
        if nans != 0:
            mask |= nan
        if nulls is not None and nans is not None and nulls + nans >= count:
            return mask
        if nulls == count:
            return null
        lower, upper = file.lower_bounds.get(number), file.upper_bounds.get(number)
        return mask | of_range(
            None if lower is None else bound(lower), None if upper is None else bound(upper)
        )

    return outcomes


def _bound(column: Column) -> Callable[[bytes], Any]:
    """How stored bounds of the column, of narrower and wider types too, become what `_comparable` makes of values.
    None for what is no bound: not known."""
    if column.type in ("VARCHAR", "BINARY", "FIXED"):
        return lambda data: data
    if column.type in FLOATS:
        return _float_bound
    order: Any = "big" if column.type == "DECIMAL" else "little"
    return lambda data: int.from_bytes(data, order, signed=True) if data else None


def _float_bound(data: bytes) -> float | None:
    if len(data) not in (4, 8):
        return None
    number: float = struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
    return None if number != number else number


def _comparable(column: Column, values: Iterable[Value]) -> list[Any]:
    """Ascending, without NaN: bytes for text, the unscaled integer for decimals."""
    numbers = [value for value in values if value == value]
    if column.type == "VARCHAR":
        return sorted(value.encode() for value in numbers if isinstance(value, str))
    if column.type == "DECIMAL":
        return sorted(int.from_bytes(encode_value(column, value), "big", signed=True) for value in numbers)
    ordered: Any = numbers
    return sorted(ordered)


def _of_prefix(prefix: bytes) -> _OfRange:
    size = len(prefix)

    def outcomes(lower: bytes | None, upper: bytes | None) -> int:
        low, high = (lower or b"")[:size], None if upper is None else upper[:size]
        if low > prefix or (high is not None and high < prefix):
            return _F
        return _T if low == prefix == high or not size else _T | _F

    return outcomes


def _of_values(values: list[Any], miss: int) -> _OfRange:
    def outcomes(lower: Any, upper: Any) -> int:
        place = 0 if lower is None else bisect.bisect_left(values, lower)
        if place == len(values) or (upper is not None and values[place] > upper):
            return miss
        return _T if lower is not None and lower == upper else _T | miss

    return outcomes


def _of_comparison(column: Column, op: str, value: Value) -> tuple[_OfRange, int]:
    """And the outcome of NaN."""
    if value != value:  # numbers are below it
        of_numbers = _T if op in ("!=", "<", "<=") else _F
        return lambda lower, upper: of_numbers, _T if op in ("=", "<=>", "<=", ">=") else _F
    [it] = _comparable(column, [value])
    nan = _T if op in ("!=", ">", ">=") else _F
    if op in ("=", "<=>"):
        return _of_values([it], _F), nan
    if op == "!=":
        equal = _of_values([it], _F)
        return lambda lower, upper: _NOT[equal(lower, upper)], nan

    def below(lower: Any, upper: Any) -> int:  # it < value
        mask = _T if lower is None or lower < it else 0
        return mask | (_F if upper is None or upper >= it else 0)

    def at_most(lower: Any, upper: Any) -> int:
        mask = _T if lower is None or lower <= it else 0
        return mask | (_F if upper is None or upper > it else 0)

    if op in ("<", ">="):
        return (below if op == "<" else lambda lower, upper: _NOT[below(lower, upper)]), nan
    return (at_most if op == "<=" else lambda lower, upper: _NOT[at_most(lower, upper)]), nan


def explain(predicate: Predicate, file: DataFile, names: Mapping[int, Path] | None = None) -> str:
    """Why the file is judged as it is: the verdict, the first term that decides it, what is known of its columns."""
    if not file.row_count:
        return "never: the file has no rows"
    verdict = judge(predicate, file)
    term = predicate
    while isinstance(term, And | Or) and term.terms:
        # One term makes an AND untrue and an OR true. What is neither has a part that is neither.
        decides = verdict is (Verdict.NEVER if isinstance(term, And) else Verdict.ALWAYS)
        if not decides and verdict is not Verdict.MAYBE and len(term.terms) > 1:
            break
        term = next(inner for inner in term.terms if judge(inner, file) is verdict)
    columns = columns_of(term)
    known = [_known(column, file) for column in columns[:_EXPLAINED_MAX]]
    if len(columns) > _EXPLAINED_MAX:
        known.append("and more")
    written = text(term, names)
    if len(written) > _EXPLAINED_SIZE:
        written = written[:_EXPLAINED_SIZE] + "..."
    return "; ".join([f"{verdict.value}: {written}", *known])


_EXPLAINED_MAX = 3
_EXPLAINED_SIZE = 200


def _known(column: Column, file: DataFile) -> str:
    number, name = column.id, column.name
    count, nulls = file.value_counts.get(number), file.null_counts.get(number)
    if count is None:
        if column.initial_default is None:
            return f"the file has no {name}, so it is NULL"
        return f"the file has no {name}, so it is {_literal(column, column.initial_default)}"
    if nulls == count:
        return f"all {count} values of {name} are NULL"
    parts = []
    for what, bounds in (("at least", file.lower_bounds), ("at most", file.upper_bounds)):
        if number in bounds:
            parts.append(f"{what} {_literal(column, bounds[number])}")
    known = f"values of {name} are {' and '.join(parts)}" if parts else f"no bounds of {name} are known"
    known += ", NULLs unknown" if nulls is None else f", {nulls} NULLs" if nulls else ""
    nans = file.nan_counts.get(number) if column.type in FLOATS else 0
    return known + (", NaNs unknown" if nans is None else f", {nans} NaNs" if nans else "")


def _literal(column: Column, data: bytes) -> str:
    try:
        return SqlWriter().literal(column, decode_value(column, data))
    except InvalidInput:  # a bound of a wider type, in a file that came after the predicate
        return f"X'{data.hex().upper()}'"
