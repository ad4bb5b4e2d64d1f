"""Predicates against a row-by-row statement of their meaning: on rows, on whole files, as bytes."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.model.definitions import Column
from alpheus_journal.predicate import (
    FALSE,
    NAN,
    NULL,
    TRUE,
    And,
    Compare,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    Verdict,
    absent,
    all_of,
    any_of,
    check,
    columns_of,
    compare,
    decode,
    encode,
    encode_value,
    evaluate,
    explain,
    judge,
    judge_of,
    keep,
    leaf_arrays,
    leaf_paths,
    one_of,
    rebind,
    reference,
    starts_with,
    text,
    walk,
)  # fmt: skip
from alpheus_journal.tables.columns import schema_of_columns
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.parquet_footer import data_file_of_footer
from alpheus_journal.testing.models.predicates import (
    COLUMNS,
    array_of,
    file_of,
    random_predicate,
    random_rows,
    random_value,
    truth,
)  # fmt: skip
from alpheus_pb.v1 import objects_pb2 as pb

BOOLEAN, INT2, INT4, INT8, FLOAT4, FLOAT8, DECIMAL, _, TEXT, BINARY, FIXED, DATE, TIME, TIMETZ = COLUMNS
RANDOM = st.builds(random.Random, st.integers(0, 1 << 32))


def arrays_of(columns: Any, rows: Any) -> dict[int, pa.Array]:
    return {column.id: array_of(column, rows) for column in columns}


def a_file(rows: int = 10, **known: Any) -> DataFile:
    return DataFile(path="data/x", row_count=rows, size_bytes=1, **known)


def bounded(
    column: Column, low: Any, high: Any, *, rows: int = 10, nulls: int | None = 0, nans: int | None = 0
) -> DataFile:
    return a_file(
        rows,
        value_counts={column.id: rows},
        null_counts={} if nulls is None else {column.id: nulls},
        nan_counts={} if nans is None else {column.id: nans},
        lower_bounds={} if low is None else {column.id: encode_value(column, low)},
        upper_bounds={} if high is None else {column.id: encode_value(column, high)},
    )


# --- against the meaning ---------------------------------------------------------------------------


@given(RANDOM)
def test_rows_are_judged_as_one_by_one(rng: random.Random) -> None:
    rows = random_rows(rng)
    arrays = arrays_of(COLUMNS, rows)
    for _ in range(10):
        predicate = random_predicate(rng)
        found = evaluate(predicate, arrays, len(rows))
        assert found.type == pa.bool_()
        assert found.to_pylist() == [truth(predicate, row) for row in rows], text(predicate)
        assert keep(predicate, arrays, len(rows)).to_pylist() == [
            truth(predicate, row) is True for row in rows
        ]


@given(RANDOM)
def test_a_file_is_never_judged_wrong(rng: random.Random) -> None:
    for _ in range(10):
        columns = rng.sample(COLUMNS, 3)
        rows = random_rows(rng, columns, rng.choice((0, 1, 1, 2, 5)))
        file = file_of(rng, columns, rows)
        predicate = random_predicate(rng, columns, 2)
        outcomes = {truth(predicate, row) for row in rows}
        verdict = judge(predicate, file)
        if verdict is Verdict.NEVER:
            assert True not in outcomes, (text(predicate), file, rows)
        elif verdict is Verdict.ALWAYS:
            assert outcomes == {True}, (text(predicate), file, rows)
        assert explain(predicate, file).startswith(verdict.value)


@given(RANDOM)
def test_bytes_come_back(rng: random.Random) -> None:
    for _ in range(10):
        predicate = random_predicate(rng, depth=4)
        check(predicate)
        assert decode(encode(predicate)) == predicate
        assert encode(decode(encode(predicate))) == encode(predicate)


@given(RANDOM)
def test_a_value_of_no_exact_place_is_compared_exactly(rng: random.Random) -> None:
    """`compare` with any number agrees with the comparison of Python's exact numbers."""
    column = rng.choice((INT2, INT4, INT8, DECIMAL, FLOAT4))
    value: Any = rng.choice(
        (
            rng.uniform(-4, 4), Decimal(rng.randint(-4000, 4000)) / 1000, 1 << rng.randrange(70), math.inf, -math.inf,
            NAN, -(1 << rng.randrange(70)), random_value(rng, column), Decimal("1e-99999"), Decimal("-1e-99999"),
        )
    )  # fmt: skip
    if isinstance(value, Decimal) and column is FLOAT4:
        value = float(value)
    rows = random_rows(rng, [column], 20)
    exact = [
        {column.id: None if (v := row[column.id]) is None else v if v != v else Decimal(v)}
        for row in rows  # type: ignore[arg-type]
    ]
    right = value if value != value or value in (math.inf, -math.inf) else Decimal(value)
    for op in ("=", "!=", "<", "<=", ">", ">=", "<=>"):
        predicate = compare(column, op, value)  # type: ignore[arg-type]
        check(predicate)
        want = [truth(Compare(column, op, right), row) for row in exact]  # type: ignore[arg-type]
        assert evaluate(predicate, arrays_of([column], rows), len(rows)).to_pylist() == want, (op, value)
    several = one_of(column, [value, 1, None])
    want = [truth(In(column, (right, Decimal(1)), with_null=True), row) for row in exact]
    assert evaluate(several, arrays_of([column], rows), len(rows)).to_pylist() == want


# --- rows ------------------------------------------------------------------------------------------


def test_floats_are_ordered_as_spark_orders_them() -> None:
    values = {FLOAT8.id: pa.array([-0.0, 0.0, math.nan, math.inf, None])}

    def rows(predicate: Predicate) -> list[bool | None]:
        found: list[bool | None] = evaluate(predicate, values, 5).to_pylist()
        return found

    assert rows(compare(FLOAT8, "=", 0.0)) == [True, True, False, False, None]
    assert rows(compare(FLOAT8, ">", math.inf)) == [False, False, True, False, None]
    assert rows(compare(FLOAT8, "=", math.nan)) == [False, False, True, False, None]
    assert rows(compare(FLOAT8, "<=", math.nan)) == [True, True, True, True, None]
    assert rows(compare(FLOAT8, "!=", 0)) == [False, False, True, True, None]
    assert rows(one_of(FLOAT8, [-0.0, math.nan])) == [True, True, True, False, None]
    assert rows(Not(compare(FLOAT8, "<", 5))) == [False, False, True, True, None]
    assert rows(compare(FLOAT8, "<=>", math.nan)) == [False, False, True, False, False]


def test_rows_of_other_encodings_and_widths() -> None:
    def rows(predicate: Predicate, array: Any) -> list[bool | None]:
        [column] = columns_of(predicate)
        found: list[bool | None] = evaluate(predicate, {column.id: array}, len(array)).to_pylist()
        return found

    narrow, wide = pa.array([1, None, 3], pa.int8()), pa.array([1, None, 1 << 40])
    assert rows(compare(INT8, ">", 1 << 33), narrow) == [False, None, False]
    assert rows(compare(INT4, ">", 1), wide) == [False, None, True]
    assert rows(one_of(INT4, [1]), wide) == [True, None, False]
    assert rows(compare(INT4, "=", 3), narrow.dictionary_encode()) == [False, None, True]
    assert rows(compare(INT4, "=", 3), pa.chunked_array([[3], [], [4, None]])) == [True, False, None]
    assert rows(compare(INT4, "=", 3), pa.chunked_array([], pa.int32())) == []
    assert rows(compare(INT4, "=", 3), pa.RunEndEncodedArray.from_arrays([2, 3], narrow[1:])) == [
        None,
        None,
        True,
    ]
    singles = pa.array([0.1, 2.5], pa.float32())
    assert rows(compare(FLOAT8, "=", 0.1), singles) == [False, False]
    assert rows(compare(FLOAT4, ">", 0.1), singles.cast(pa.float64())) == [True, True]
    assert rows(compare(FLOAT4, "=", 2.5), singles.cast(pa.float64())) == [False, True]
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        texts = pa.array(["é", "z", None]).cast(kind)
        assert rows(compare(TEXT, ">", "z"), texts) == [True, False, None], kind
        assert rows(one_of(TEXT, ["é"]), texts) == [True, False, None]
        assert rows(starts_with(TEXT, "é"), texts) == [True, False, None]
    for kind in (pa.large_binary(), pa.binary_view(), pa.binary(1)):
        octets = pa.array([b"\x80", b"a", None], pa.binary()).cast(kind)
        assert rows(compare(BINARY, ">", b"a"), octets) == [True, False, None], kind
        assert rows(one_of(BINARY, [b"\x80", b""]), octets) == [True, False, None]
    for kind in (pa.decimal128(3, 1), pa.decimal256(60, 2), pa.decimal128(38, 3), pa.decimal32(4, 2)):
        decimals = pa.array([Decimal("1.5"), Decimal("-1.5"), None]).cast(kind)
        assert rows(compare(DECIMAL, ">=", Decimal("1.5")), decimals) == [True, False, None], kind
        assert rows(one_of(DECIMAL, [Decimal("1.50")]), decimals) == [True, False, None]
    for kind in (pa.timestamp("s"), pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us")):
        assert rows(compare(TIME, ">=", 1_000_000), pa.array([1, 0, None]).cast(pa.timestamp("s")).cast(kind)) == [
            True, False, None,
        ]  # fmt: skip


def test_leaves_of_structs_are_null_where_the_struct_is() -> None:
    inner = Column(id=3, name="b", type="INT4")
    columns = (
        Column(
            id=1, name="a", type="STRUCT", fields=(Column(id=2, name="t", type="STRUCT", fields=(inner,)),)
        ),
        Column(id=4, name="l", type="LIST", element=Column(id=5, name="element", type="INT4")),
    )
    table = pa.table(
        {"a": [{"t": {"b": 1}}, {"t": None}, None, {"t": {"b": None}}], "l": [[1], None, [], [2]]}
    )
    found = leaf_arrays(columns, table, [3, 5, 99])
    assert list(found) == [3]
    assert evaluate(compare(inner, "=", 1), found, 4).to_pylist() == [True, None, None, None]
    assert evaluate(IsNull(inner), found, 4).to_pylist() == [False, True, True, True]
    assert leaf_paths(columns) == {3: ("a", "t", "b")}


def test_a_column_that_was_not_given_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="c3"):
        evaluate(compare(INT4, "=", 1), {}, 1)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.type)
def test_a_default_stands_for_an_absent_column(column: Column) -> None:
    rng = random.Random(5)
    assert absent(column, 2).null_count == 2
    for _ in range(20):
        value = random_value(rng, column)
        with_default = msgspec.structs.replace(column, initial_default=encode_value(column, value))
        array = absent(with_default, 2)
        equal = Compare(with_default, "=", NAN if value != value else value)
        assert evaluate(equal, {column.id: array}, 2).to_pylist() == [True, True]
        assert judge(equal, a_file()) is Verdict.MAYBE  # NULL, in a struct that is NULL
        assert judge(Not(equal), a_file()) is Verdict.NEVER
        assert decode(encode(equal)) == equal
        assert "so it is" in explain(equal, a_file())


# --- building predicates ---------------------------------------------------------------------------


def test_values_are_given_as_python_has_them() -> None:
    assert compare(DATE, "=", date(1970, 1, 2)) == Compare(DATE, "=", 1)
    assert compare(TIME, "=", datetime(1970, 1, 1, 0, 0, 1)) == Compare(TIME, "=", 1_000_000)
    assert compare(TIMETZ, "<", datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == Compare(
        TIMETZ, "<", 0
    )
    assert compare(TIMETZ, "<", date(1969, 12, 31)) == Compare(TIMETZ, "<", -86_400_000_000)
    assert compare(INT4, "=", None) == NULL
    assert compare(INT4, "<=>", None) == IsNull(INT4)
    assert compare(INT4, "<=>", 1.5) == FALSE
    assert one_of(INT4, [np.int64(2), np.int8(1)]) == In(INT4, (1, 2))
    assert compare(TIME, "<", pd.Timestamp("1970-01-01 00:00:01")) == Compare(TIME, "<", 1_000_000)
    assert one_of(INT4, []) == In(INT4, ())
    assert one_of(INT4, [2, 1, 2, 1.0]) == In(INT4, (1, 2))
    assert one_of(TEXT, ["é", "z", "\U0001f600", "\uffff"]) == In(TEXT, ("z", "é", "\uffff", "\U0001f600"))
    assert all_of() == TRUE
    assert any_of() == FALSE
    assert all_of(IsNull(INT4)) == IsNull(INT4)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (INT4, "5"), (INT4, True), (INT4, date(2020, 1, 1)), (TEXT, 5), (TEXT, b"x"), (TEXT, "\ud800"), (BOOLEAN, 1),
        (BINARY, "x"), (DATE, datetime(2020, 1, 1)), (TIME, datetime(2020, 1, 1, tzinfo=UTC)), (DATE, True),
        (TIMETZ, datetime(2020, 1, 1)), (FLOAT8, 10**400), (FLOAT8, Decimal("1e400")), (FLOAT4, "x"), (TIME, 1.5),
        (DECIMAL, Decimal("1." + "1" * 2000)), (TIME, pd.Timestamp("2020-01-01 00:00:00.000000001")),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(column: Column, value: object) -> None:
    for make in (lambda: compare(column, "<", value), lambda: one_of(column, [value])):
        with pytest.raises(InvalidInput) as caught:
            make()
        assert caught.value.kind == "bad_predicate"
        assert repr(column.name) in caught.value.message


def test_what_is_no_leaf_is_refused() -> None:
    for column in (
        Column(id=1, name="a", type="STRUCT", fields=(INT4,)),
        Column(id=1, name="a", type="LIST", element=INT4),
        Column(id=1, name="a", type="INT4", element=INT4),
    ):
        with pytest.raises(InvalidInput, match="no predicate can name it"):
            compare(column, "=", 1)


def test_a_predicate_is_bound_to_wider_types() -> None:
    predicate = And((compare(INT4, "<", 5), Not(Or((one_of(FLOAT4, [0.5]), IsNull(TEXT), NULL)))))
    wide = Column(id=INT4.id, name="renamed", type="INT8", properties={"comment": "x"}, write_default=b"1")
    struct = Column(id=99, name="s", type="STRUCT", fields=(msgspec.structs.replace(FLOAT4, type="FLOAT8"),))
    bound = rebind(predicate, [wide, struct])
    check(bound)
    by_id = {column.id: column for column in columns_of(bound)}
    assert by_id == {INT4.id: reference(wide), FLOAT4.id: struct.fields[0], TEXT.id: TEXT}
    assert by_id[INT4.id].properties == {}
    assert text(bound, {INT4.id: "i", FLOAT4.id: ("s", "f")}).startswith("`i` < 5 AND (NOT (")
    assert len(list(walk(bound))) == 7


@pytest.mark.parametrize(
    ("predicate", "reason"),
    [
        (Compare(INT4, "=", 1 << 31), "cannot hold"), (Compare(INT4, "=", True), "cannot hold"),
        (Compare(FLOAT4, "=", 0.1), "cannot hold"), (Compare(DECIMAL, "=", Decimal("0.001")), "cannot hold"),
        (Compare(INT4, "~", 1), "operator"), (In(INT4, (2, 1)), "ascend"), (In(INT4, (1, 1)), "ascend"),  # type: ignore[arg-type]
        (In(FLOAT8, (NAN, 1.0)), "ascend"), (StartsWith(INT4, "x"), "no prefix"),
        (And((IsNull(INT4), IsNull(msgspec.structs.replace(INT4, type="INT8")))), "two forms"),
        (In(INT8, tuple(range(10_001))), "terms and values"), (In(TEXT, ("x" * 70_000,)), "bytes"),
        (IsNull(msgspec.structs.replace(INT4, id=0)), "field id"),
        (IsNull(Column(id=1, name="d", type="DECIMAL")), "precision"),
        (IsNull(Column(id=1, name="d", type="TIME6")), "TIME6"),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused(predicate: Predicate, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        encode(predicate)
    assert caught.value.kind == "bad_predicate"


def test_depth_is_bounded_on_both_sides() -> None:
    deep: Predicate = TRUE
    for _ in range(31):
        deep = Not(deep)
    assert decode(encode(deep)) == deep
    with pytest.raises(InvalidInput, match="32 levels"):
        encode(Not(deep))
    message = pb.Predicate()
    term = message.term
    for _ in range(40):
        term = term.negated
    term.constant = pb.Predicate.YES
    with pytest.raises(Corrupt, match="32 levels"):
        decode(message.SerializeToString())


def test_damaged_bytes_are_refused_and_newer_ones_told_apart() -> None:
    good = encode(And((compare(INT4, "=", 1), compare(TEXT, "=", "x"))))
    for bad in (b"", b"\xff", good[:-1], good + b"\x00", b"\x12\x00", b"x" * 70_000):
        with pytest.raises(Corrupt) as caught:
            decode(bad, "def/x")
        assert caught.value.kind == "corrupt_definition"
        assert caught.value.path == "def/x"
    message = pb.Predicate.FromString(good)
    message.term.all.terms[0].comparison.value = b"\x01"
    with pytest.raises(Corrupt, match="bound of 1 bytes"):
        decode(message.SerializeToString())
    newer = good + b"\xa2\x06\x01x"
    with pytest.raises(InvalidInput) as refused:
        decode(newer)
    assert refused.value.kind == "newer_format"


# --- files -----------------------------------------------------------------------------------------

NEVER, MAYBE, ALWAYS = Verdict.NEVER, Verdict.MAYBE, Verdict.ALWAYS


@pytest.mark.parametrize(
    ("predicate", "file", "verdict"),
    [
        (compare(INT4, ">", 5), bounded(INT4, 1, 5), NEVER), (compare(INT4, ">=", 1), bounded(INT4, 1, 5), ALWAYS),
        (compare(INT4, ">", 4), bounded(INT4, 1, 5), MAYBE),
        (compare(INT4, ">=", 1), bounded(INT4, 1, 5, nulls=1), MAYBE),
        (compare(INT4, ">=", 1), bounded(INT4, 1, 5, nulls=None), MAYBE),
        (Not(compare(INT4, ">=", 1)), bounded(INT4, 1, 5, nulls=None), NEVER),
        (compare(INT4, "!=", 3), bounded(INT4, 3, 3), NEVER), (compare(INT4, "!=", 3), bounded(INT4, 4, None), ALWAYS),
        (IsNull(INT4), bounded(INT4, None, None, nulls=10), ALWAYS), (IsNull(INT4), bounded(INT4, 1, 2), NEVER),
        (compare(INT4, "=", 1), bounded(INT4, None, None, nulls=10), NEVER),
        (Not(compare(INT4, "=", 1)), bounded(INT4, None, None, nulls=10), NEVER),
        (compare(INT4, "=", 1), a_file(), NEVER), (IsNull(INT4), a_file(), ALWAYS), (TRUE, a_file(rows=0), NEVER),
        (TRUE, a_file(), ALWAYS), (NULL, a_file(), NEVER), (Not(NULL), a_file(), NEVER),
        (one_of(INT4, [1, 9]), bounded(INT4, 2, 8), NEVER), (one_of(INT4, [1, 5, 9]), bounded(INT4, 2, 8), MAYBE),
        (one_of(INT4, [5]), bounded(INT4, 5, 5), ALWAYS), (Not(one_of(INT4, [1, None])), bounded(INT4, 2, 8), NEVER),
        (Not(one_of(INT4, [1])), bounded(INT4, 2, 8), ALWAYS), (one_of(INT4, []), bounded(INT4, 2, 8), NEVER),
        (compare(FLOAT8, ">", 50), bounded(FLOAT8, 1.0, 9.0), NEVER),
        (compare(FLOAT8, ">", 50), bounded(FLOAT8, 1.0, 9.0, nans=1), MAYBE),
        (compare(FLOAT8, ">", 50), bounded(FLOAT8, 1.0, 9.0, nans=None), MAYBE),
        (compare(FLOAT8, "<", 50), bounded(FLOAT8, 1.0, 9.0, nans=None), MAYBE),
        (compare(FLOAT8, ">", 50), bounded(FLOAT8, None, None, nans=10), ALWAYS),
        (compare(FLOAT8, "=", NAN), bounded(FLOAT8, 1.0, 9.0), NEVER),
        (compare(FLOAT8, "<=", NAN), bounded(FLOAT8, 1.0, 9.0, nans=None), ALWAYS),
        (compare(FLOAT8, "=", 0.0), bounded(FLOAT8, -0.0, -0.0), ALWAYS),
        (starts_with(TEXT, "ab"), bounded(TEXT, "b", "c"), NEVER),
        (starts_with(TEXT, "ab"), bounded(TEXT, "aa", "ac"), MAYBE),
        (starts_with(TEXT, "ab"), bounded(TEXT, "ab", "abz"), ALWAYS),
        (starts_with(TEXT, "ab"), bounded(TEXT, "ab", None), MAYBE),
        (starts_with(TEXT, ""), bounded(TEXT, None, None), ALWAYS),
        (compare(DECIMAL, ">", Decimal("0.10")), bounded(DECIMAL, Decimal("-1"), Decimal("0.10")), NEVER),
        (And((compare(INT4, "=", 1), compare(TEXT, "=", "x"))), bounded(INT4, 2, 3), NEVER),
        (Or((compare(INT4, "<", 9), compare(TEXT, "=", "x"))), bounded(INT4, 2, 3), ALWAYS),
    ],
)  # fmt: skip
def test_verdicts(predicate: Predicate, file: DataFile, verdict: Verdict) -> None:
    assert judge(predicate, file) is verdict


def test_bounds_of_narrower_and_wider_types_hold() -> None:
    narrow, wide = bounded(INT4, 1, 5), bounded(INT8, 1 << 40, 1 << 41)
    assert judge(compare(INT8, ">", 5), msgspec.structs.replace(
        narrow, value_counts={4: 10}, null_counts={4: 0}, lower_bounds={4: narrow.lower_bounds[3]},
        upper_bounds={4: narrow.upper_bounds[3]})) is NEVER  # fmt: skip
    later = msgspec.structs.replace(
        wide, value_counts={3: 10}, null_counts={3: 0}, lower_bounds={3: wide.lower_bounds[4]},
        upper_bounds={3: wide.upper_bounds[4]})  # fmt: skip
    assert judge(compare(INT4, ">", 5), later) is ALWAYS
    assert "X'" in explain(compare(INT4, ">", 5), later)
    single = bounded(FLOAT4, 0.5, 2.5)
    assert judge(compare(FLOAT8, ">", 2.5), msgspec.structs.replace(
        single, value_counts={6: 10}, null_counts={6: 0}, nan_counts={6: 0}, lower_bounds={6: single.lower_bounds[5]},
        upper_bounds={6: single.upper_bounds[5]})) is NEVER  # fmt: skip


@pytest.mark.parametrize("bound", [b"", b"\x00", b"\x00\x00\xc0\x7f"])
def test_bounds_that_are_none_are_not_known(bound: bytes) -> None:
    file = a_file(value_counts={6: 10}, null_counts={6: 0}, nan_counts={6: 0}, lower_bounds={6: bound})
    assert judge(compare(FLOAT8, "<", 5), file) is MAYBE
    assert "at least" in explain(compare(FLOAT8, "<", 5), file)


def test_what_parquet_says_of_a_real_file_is_enough() -> None:
    rng = random.Random(7)
    ids = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(3)]
    path = f"data/{'/'.join(ids)}/f.parquet"
    for _ in range(8):
        rows = random_rows(rng, COLUMNS, 6)
        sink = pa.BufferOutputStream()
        arrays = [array_of(column, rows) for column in COLUMNS]
        pq.write_table(pa.table(arrays, schema=schema_of_columns(COLUMNS)), sink)
        data = sink.getvalue()
        metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
        file = data_file_of_footer(path, data.size, metadata, COLUMNS)
        seen = set()
        for _ in range(300):
            predicate = random_predicate(rng, depth=1)
            outcomes = {truth(predicate, row) for row in rows}
            verdict = judge(predicate, file)
            seen.add(verdict)
            assert verdict is not NEVER or True not in outcomes, (text(predicate), rows)
            assert verdict is not ALWAYS or outcomes == {True}, (text(predicate), rows)
        assert seen == set(Verdict)


def test_the_term_that_decides_is_named() -> None:
    predicate = And((compare(TEXT, ">", "a"), Or((compare(INT4, ">", 5), compare(INT4, "=", 0)))))
    file = bounded(INT4, 1, 5)
    assert explain(predicate, file) == "never: `c9` > 'a'; the file has no c9, so it is NULL"
    with_text = bounded(TEXT, "b", "c")
    both = a_file(
        value_counts=file.value_counts | with_text.value_counts,
        null_counts=file.null_counts,
        lower_bounds=file.lower_bounds | with_text.lower_bounds,
        upper_bounds=file.upper_bounds | with_text.upper_bounds,
    )
    assert explain(predicate, both, {INT4.id: ("s", "i")}) == (
        "never: `s`.`i` > 5 OR `s`.`i` = 0; values of c3 are at least 1 and at most 5"
    )
    assert (
        explain(compare(TEXT, ">", "b"), both)
        == "maybe: `c9` > 'b'; values of c9 are at least 'b' and at most 'c', NULLs unknown"
    )
    assert explain(TRUE, a_file(rows=0)) == "never: the file has no rows"
    assert explain(IsNull(INT4), bounded(INT4, None, None, nulls=10)).endswith("all 10 values of c3 are NULL")


def test_one_judge_serves_many_files() -> None:
    judged = judge_of(compare(INT4, ">", 5))
    assert [judged(bounded(INT4, low, low + 3)) for low in (1, 4, 9)] == [NEVER, MAYBE, ALWAYS]
    binary = judge_of(compare(BINARY, "=", b"\xff"))
    assert [binary(bounded(BINARY, low, None)) for low in (b"\x80", b"\xff\x00")] == [MAYBE, NEVER]
    assert judge(compare(FIXED, "<", b"ab"), bounded(FIXED, b"ab", b"zz")) is NEVER
    assert judge(compare(INT2, "<", -5), bounded(INT2, -5, 7)) is NEVER
