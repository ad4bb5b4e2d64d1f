"""`where` texts: what they mean, what is refused, and that DuckDB agrees with Arrow on what predicates say."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from duckdb_sql import duckdb_sql
from hypothesis import given
from hypothesis import strategies as st

from alpheus.rows.scan import predicate_of
from alpheus.where.conditions import as_predicate, parse
from alpheus.where.engine_sql import spark_sql
from alpheus_journal.errors import InvalidInput
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
    compare,
    evaluate,
    leaf_paths,
    one_of,
    starts_with,
    text,
    walk,
)  # fmt: skip
from alpheus_journal.testing.models.predicates import (
    COLUMNS,
    a_column,
    array_of,
    random_predicate,
    random_rows,
    table_of,
    truth,
)  # fmt: skip

RANDOM = st.builds(random.Random, st.integers(0, 1 << 32))
NAMES = leaf_paths(COLUMNS)

I = a_column(1, "INT4")  # noqa: E741
REAL = a_column(2, "FLOAT4")
PRICE = a_column(3, "DECIMAL", precision=5, scale=2)
NAME = a_column(4, "VARCHAR")
AT = a_column(5, "TIMESTAMPTZ6")
LOCAL = a_column(6, "TIMESTAMP6")
DAY = a_column(7, "DATE")
FLAG = a_column(8, "BOOLEAN")
RAW = a_column(9, "BINARY")
DEEP = Column(id=21, name="X y", type="INT8")
LIST = Column(id=22, name="list", type="LIST", element=Column(id=23, name="element", type="INT4"))
STRUCT = Column(id=20, name="St", type="STRUCT", fields=(DEEP, LIST))
TABLE = (I, REAL, PRICE, NAME, AT, LOCAL, DAY, FLAG, RAW, STRUCT)
PATHS = leaf_paths(TABLE)
IS_1 = compare(I, "=", 1)
DAY_MICROS = 86_400_000_000


@pytest.mark.parametrize(
    ("where", "predicate"),
    [
        ("c1 = 1", IS_1), ("C1 == 1", IS_1), ("1 = c1", IS_1), ("(c1) = (1)", IS_1), ('"c1" = 1L', IS_1),
        ("`c1` = CAST(1 AS BIGINT) -- so", IS_1), ("5 < c1", compare(I, ">", 5)),
        ("5 >= c1", compare(I, "<=", 5)),
        ("c1 <> -5", compare(I, "!=", -5)), ("c1 != - -5", compare(I, "!=", 5)),
        ("c1 <=> 1", compare(I, "<=>", 1)),
        ("c1 <=> NULL", IsNull(I)), ("c1 = NULL", NULL), ("c1 IS DISTINCT FROM 1", Not(compare(I, "<=>", 1))),
        ("c1 IS NOT DISTINCT FROM 1", compare(I, "<=>", 1)), ("c1 IS NULL", IsNull(I)),
        ("c1 is not null", Not(IsNull(I))),
        ("c1 > 1.5", compare(I, ">=", 2)), ("c1 = 1.0", IS_1), ("c1 = 1e0", IS_1),
        ("c1 = 1.5", And((IsNull(I), NULL))), ("c1 < 3000000000", Or((Not(IsNull(I)), NULL))),
        ("c1 IN (2, 1, 1.5, NULL)", In(I, (1, 2), True)), ("c1 NOT IN (1)", Not(In(I, (1,)))),
        ("c1 BETWEEN 1 AND 3", And((compare(I, ">=", 1), compare(I, "<=", 3)))),
        ("c1 NOT BETWEEN 1 AND 3 AND c8", And((Not(parse("c1 between 1 and 3", TABLE)), compare(FLAG, "=", True)))),
        ("c8", compare(FLAG, "=", True)), ("NOT c8", Not(compare(FLAG, "=", True))),
        ("c8 = FALSE", compare(FLAG, "=", False)),
        ("TRUE", TRUE), ("FALSE OR NULL", Or((FALSE, NULL))), ("NOT c1 = 1", Not(IS_1)),
        ("! c1 = 1", Not(IS_1)),
        ("c1 = 1 OR c8 AND c8", Or((IS_1, And((compare(FLAG, "=", True),) * 2)))),
        ("(c1 = 1 OR c8) AND c8", And((Or((IS_1, compare(FLAG, "=", True))), compare(FLAG, "=", True)))),
        ("c1 = 1 AND (c1 = 1 AND c1 = 1)", And((IS_1, And((IS_1, IS_1))))),
        ("c1 = 1 AND c1 = 1 AND c1 = 1", And((IS_1,) * 3)),
        ("c2 = 0.1", And((IsNull(REAL), NULL))), ("c2 > 0.1", compare(REAL, ">", 0.1)),
        ("c2 = 1.5D", compare(REAL, "=", 1.5)),
        ("c2 = CAST('NaN' AS DOUBLE)", compare(REAL, "=", NAN)),
        ("c2 < CAST('-Infinity' AS FLOAT)", compare(REAL, "<", -math.inf)),
        ("c2 = -0.0", compare(REAL, "=", 0.0)), ("c3 = 1.5", compare(PRICE, "=", Decimal("1.5"))),
        ("c3 = 1.5BD", compare(PRICE, "=", Decimal("1.5"))),
        ("c3 < 1.005", compare(PRICE, "<=", Decimal("1.00"))),
        ("c3 < 1e99999", Or((Not(IsNull(PRICE)), NULL))), ("c4 = 'it''s'", compare(NAME, "=", "it's")),
        ("c4 > ''", compare(NAME, ">", "")),
        (r"c4 = r'a\b'", compare(NAME, "=", "a\\b")), ("c4 = 'é -- /* x'", compare(NAME, "=", "é -- /* x")),
        ("c4 LIKE 'ab%'", starts_with(NAME, "ab")), ("c4 NOT LIKE 'ab%'", Not(starts_with(NAME, "ab"))),
        ("c4 LIKE '%'", starts_with(NAME, "")), ("startswith(c4, 'a_%')", starts_with(NAME, "a_%")),
        ("c4 = CAST(X'C3A9' AS STRING)", compare(NAME, "=", "é")),
        ("c9 >= X'00ff'", compare(RAW, ">=", b"\x00\xff")),
        ("st.`x Y` = 5", compare(DEEP, "=", 5)), ('"St"."X y" = 5', compare(DEEP, "=", 5)),
        ("c7 = '1970-01-02'", compare(DAY, "=", 1)), ("c7 = DATE '1969-12-31'", compare(DAY, "=", -1)),
        ("c7 < CAST('1970-1-2' AS DATE)", compare(DAY, "<", 1)),
        ("c7 = '+5881580-07-11'", compare(DAY, "=", (1 << 31) - 1)),
        ("c6 = '1970-01-02'", compare(LOCAL, "=", DAY_MICROS)),
        ("c6 = DATE '1970-01-02'", compare(LOCAL, "=", DAY_MICROS)),
        ("c6 = TIMESTAMP '1970-01-01T00:01'", compare(LOCAL, "=", 60_000_000)),
        ("c6 = TIMESTAMP_NTZ '1970-01-01 00:00:00.5'", compare(LOCAL, "=", 500_000)),
        ("c5 = '1970-01-01 01:00:00+01:00'", compare(AT, "=", 0)),
        ("c5 = '1969-12-31 23:00:00 -01'", compare(AT, "=", 0)),
        ("c5 = TIMESTAMP '1970-01-01 00:00:00.000001Z'", compare(AT, "=", 1)),
        ("c5 = TIMESTAMP_LTZ '1970-01-01'", compare(AT, "=", 0)),
        ("c5 > '+294247-01-10 04:00:54.775807Z'", compare(AT, ">", (1 << 63) - 1)),
        ("c5 > '+300000-01-01'", And((IsNull(AT), NULL))),
    ],
)  # fmt: skip
def test_texts_mean_what_sql_means(where: str, predicate: Predicate) -> None:
    assert parse(where, TABLE) == predicate
    assert parse(text(predicate, PATHS), TABLE) == predicate


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("", "empty"), (" -- x", "empty"), ("c1", "alone is not a condition"), ("c1 = ", "not a condition"),
        ("c1 = 1 c1", "not a condition"),
        ("c1 = 1; c8", "one condition"), ("select 1", "not a condition"),
        ("zz = 1", "no column 'zz' at line 1, column 1"),
        ("c1 = 1 AND\n  zz = 1", "no column 'zz' at line 2, column 3"), ("st.zz = 1", "no column 'st.zz'"),
        ('c4 = "x"', "does not compare"), ("c1 = '5'", "not a number"), ("c1 = TRUE", r"\(bool\) at line"),
        ("c4 = 5", "not a text"),
        ("c8 = 1", "not a value"), ("c7 = 5", "not a value"), ("c6 = 1.5", "not a value"), ("c9 = 'x'", "not a value"),
        ("c9 = X'F'", "half|not a condition"),
        ("c1 = c1", "does not compare"), ("1 = 1", "does not compare"), ("c1 + 1 = 2", "does not compare"),
        ("upper(c4) = 'x'", "does not compare"),
        ("c1 < 5 < 6", "does not compare"), ("c1 IS NULL IS NULL", "not in the subset"),
        ("c1 IS TRUE", "not in the subset"),
        ("c1 IN ()", "no values"), ("c1 IN (SELECT 1)", "not in the subset"), ("c1 IN (c1)", "not a value"),
        ("EXISTS (SELECT 1)", "not in the subset"), ("c1 BETWEEN SYMMETRIC 3 AND 1", "not in the subset"),
        ("c4 LIKE 'a%b'", "prefix"), ("c4 LIKE 'ab'", "prefix"), ("c4 LIKE 'a_%'", "prefix"),
        (r"c4 LIKE r'a\%%'", "prefix"),
        ("c4 LIKE 'a%' ESCAPE '!'", "not in the subset"), ("c4 ILIKE 'a%'", "not in the subset"),
        ("c1 LIKE '1%'", "only text"),
        ("c4 RLIKE 'a'", "not in the subset"), (r"c4 = 'a\b'", "backslash"),
        (r"c4 = 'a\' OR c4 = 'b'", "backslash"),
        ("c4 = 'a' 'b'", "not a text"), ("c4 = 'x' COLLATE utf8_lcase", "not a text"),
        ("c4 = CAST(X'FF' AS STRING)", "not a text"),
        ("c1::bigint = 5", "does not compare"), ("c1 = CAST(1.7 AS INT)", "change the number"),
        ("c2 = 1.1F", "change the number"),
        ("c3 = CAST('1.55' AS DECIMAL(2, 1))", "change the number"),
        ("c1 = CAST(70000 AS SMALLINT)", "change the number"),
        ("c2 = 1e400", "range of doubles"), ("c2 = 1e400D", "range of doubles"),
        ("c1 = 1e9999999", "not a number"),
        ("c1 = " + "9" * 500, "not a number"), ("c7 = '2026-02-29'", "calendar"),
        ("c7 = '2026-13-01'", "calendar"), ("c7 = '2026-3'", "not a date"),
        ("c7 = TIMESTAMP '2026-01-01'", "not a value"), ("c6 = '2026-01-01 00:00:00Z'", "zone"),
        ("c6 = TIMESTAMP_LTZ '2026-01-01'", "not a value"),
        ("c5 = TIMESTAMP_NTZ '2026-01-01'", "not a value"), ("c5 = '2026-01-01 24:00'", "time of the day"),
        ("c5 = '2026-01-01 00:00:00.1234567'", "not a time"),
        ("c5 = '2026-01-01 00:00 Europe/Berlin'", "not a time"),
        ("c5 = '2026-01-01 00:00:00+19:00'", "zone between"), ("c5 = now()", "not a value"),
        ("St = 1", "struct<"), ("st.list = 1", "list<"),
        ("st.list.element = 1", "list or map"), ("st.list[0] = 1", "does not compare"),
        ("c1 = :x", "not a value"), ("c1 = ?", "not a value"),
        ("{{c1}} = 1", "does not compare"), ("c1 = 1 OR (" * 200 + "c8" + ")" * 200, "nested"),
        ("NOT " * 5000 + "c8", "nested"),
        ("(" * 5000 + "c8" + ")" * 5000, "nested"), ("c1 = " + "- " * 5000 + "1", "nested"),
        ("NOT (" * 40 + "c8" + ")" * 40, "32 levels|nested too deep"),
        ("c1 IN (" + "1," * 11_000 + "1)", None), ("c1 = 1 OR " * 6_000 + "c1 = 1", None),
        ("x" * 70_000, "65536"),
        ("c1." * 5000 + "c1 = 1", "nested|no column"), ("CASE WHEN " * 3000, "nested|not a condition"),
    ],
)  # fmt: skip
def test_what_is_outside_the_subset_is_refused(where: str, reason: str | None) -> None:
    if reason is None:  # large, but a predicate
        parse(where, TABLE)
        return
    with pytest.raises(InvalidInput, match=reason) as caught:
        parse(where, TABLE)
    assert caught.value.kind == "bad_predicate"


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        ('c4 = "a"', "write text between single quotes: 'a'"),
        ('"it\'s" <> c4', "write text between single quotes: 'it''s'"),
        ("c4 = a", "write text between single quotes: 'a'"),
        ('c4 = ("c4")', "write text between single quotes: 'c4'"),
        ('c4 LIKE "a%"', "write text between single quotes: 'a%'"),
        ('c4 IN ("a")', "write text between single quotes: 'a'"),
        ("c4 = 'a", "write text between single quotes, and double a quote inside"),
        ("c1 = c2", "not with another column"),
        ("upper(c4) = 'A'", "without functions and arithmetic"),
        ("c1 = 1_000", "there is no column '1_000': use the table's columns:"),
        ("c7 = today", "'today'"),
        ("c2 = nan", "CAST('nan' AS DOUBLE)"),
        ("c2 = 'NaN'", "CAST('NaN' AS DOUBLE)"),
        ("c1 = '1'", "write a number without quotes"),
        ("c8 = 1", "TRUE or FALSE"),
        ("c1 = :x", "no parameters"),
        ("c4 = ?", "no parameters"),
        ("c1 = 1 && c8", "write AND"),
        ("c1 = 1 || c8", "write OR"),
        ("c4 IS 'a'", "write = to compare with a value"),
        ("c1 IS TRUE", "write = to compare with a value"),
        ("c4 LIKE 'a'", "write = for the text itself"),
        ("c4 ILIKE 'a%'", "distinguishes upper and lower case"),
        ("1", "write TRUE for all rows"),
        ("t.c1 = 1", "name columns without their table: c1; use the table's columns:"),
        ("st.list = 1", "lists and maps"),
    ],
)
def test_what_was_meant_is_hinted_at(where: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(where, TABLE)
    assert hint in caught.value.hint, caught.value


def test_an_unknown_column_is_told_the_known_ones() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse('c4 = 1 OR "x" = c4', TABLE)
    assert "no column" not in caught.value.message  # the error about a number for a text comes first
    with pytest.raises(InvalidInput) as caught:
        parse('"x" = 5', TABLE)
    assert (
        caught.value.hint
        == "write text between single quotes; use the table's columns: c1, c2, c3, c4, c5, c6, c7, c8, c9, St.X y"
    )


def test_the_names_of_operators_and_types_are_columns_too() -> None:
    names = (
        "date",
        "timestamp",
        "order",
        "select",
        "end",
        "x",
        "interval",
        "left",
        "true",
        "a`b",
        'q"',
        "a.b",
        "r",
        "é",
    )
    columns = [Column(id=n, name=name, type="INT4") for n, name in enumerate(names, 1)]
    for column in columns:
        predicate = one_of(column, [1, 2])
        assert parse(text(predicate), columns) == predicate
    assert parse("date = 1 AND timestamp = 2", columns) == And(
        (compare(columns[0], "=", 1), compare(columns[1], "=", 2))
    )


def test_predicates_are_taken_as_they_are() -> None:
    assert as_predicate(None, TABLE) is None
    assert as_predicate("c1 = 1", TABLE) == IS_1
    wider = [Column(id=1, name="renamed", type="INT8")]
    assert as_predicate(IS_1, wider) == compare(wider[0], "=", 1)
    with pytest.raises(InvalidInput, match=r"no column 'c1' \(id 1\).*use the table's columns: c2"):
        as_predicate(IS_1, [REAL])
    with pytest.raises(InvalidInput, match="cannot hold"):
        as_predicate(Compare(I, "=", 1 << 40), TABLE)


_AND, _OR, _NOT, _COMPARE = (cast(Any, one) for one in (And, Or, Not, Compare))


@pytest.mark.parametrize(
    "where",
    [
        pc.field("c1") == 1, True, 1, b"c1 = 1", ["c1 = 1"], {"c1": 1}, Compare, _AND(("c1 = 1",)), _NOT(None),
        _OR((IS_1, pc.field("c1") == 1)), _AND(None), _COMPARE("c1", "=", 1), _AND((_NOT(_OR((IS_1, "c1 = 1"))),)),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_predicate_is_refused(where: Any) -> None:
    for ask in (as_predicate, predicate_of):
        with pytest.raises(InvalidInput, match=r"^where=.*(neither text nor|is not) a predicate") as caught:
            ask(where, TABLE)
        assert caught.value.kind == "bad_predicate"
        assert "as text" in caught.value.hint


@given(RANDOM)
def test_canonical_text_comes_back(rng: random.Random) -> None:
    for _ in range(5):
        predicate = random_predicate(rng)
        if predicate != FALSE:
            assert parse(text(predicate), COLUMNS) == predicate


def kind_of_refusal(where: str) -> str:
    """Return the kind of the refusal, or "" for a predicate. Any other error is raised."""
    try:
        parse(where, COLUMNS)
    except InvalidInput as error:
        return error.kind
    return ""


@given(st.text(max_size=80))
def test_any_text_is_a_predicate_or_refused(where: str) -> None:
    assert kind_of_refusal(where) in ("", "bad_predicate")


@given(RANDOM)
def test_a_changed_text_is_a_predicate_or_refused(rng: random.Random) -> None:
    pieces = [
        "(",
        ")",
        "'",
        "NOT ",
        " AND ",
        "c1",
        " = ",
        "1",
        "`",
        '"',
        "--",
        "/*",
        "IN",
        "NULL",
        ".",
        "CAST(",
        "DATE ",
        "\\",
        ";",
        "[",
        "{{",
    ]
    for _ in range(5):
        where = text(random_predicate(rng))
        for _ in range(rng.randrange(1, 4)):
            start = rng.randrange(len(where) + 1)
            where = where[:start] + rng.choice(pieces) + where[start + rng.randrange(6) :]
        assert kind_of_refusal(where) in ("", "bad_predicate")


# --- DuckDB ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'America/New_York'")
        yield connection


def asked(duck: duckdb.DuckDBPyConnection, predicate: Predicate, source: str) -> tuple[list[Any], list[Any]]:
    """Return the value of the predicate on each row, and the rows that the predicate selects."""
    sql = duckdb_sql(predicate, NAMES)
    rows = duck.execute(f"SELECT n, ({sql}) FROM {source} ORDER BY n").fetchall()
    kept = duck.execute(f"SELECT n FROM {source} WHERE {sql} ORDER BY n").fetchall()
    return [value for _, value in rows], [n for (n,) in kept]


def too_early(term: Compare | In) -> bool:
    first = {"DATE": -(1 << 31), "TIMESTAMP6": -(1 << 63), "TIMESTAMPTZ6": -(1 << 63)}.get(term.column.type)
    return first in (term.values if isinstance(term, In) else (term.value,))


@given(rng=RANDOM)
def test_duckdb_agrees_with_arrow(rng: random.Random, duck: duckdb.DuckDBPyConnection) -> None:
    """DuckDB agrees with Arrow over Arrow data, to which DuckDB pushes its conditions down."""
    rows = random_rows(rng)
    table = table_of(COLUMNS, rows).append_column("n", pa.array(range(len(rows))))
    arrays = {column.id: array_of(column, rows) for column in COLUMNS}
    duck.register("rows", table)
    for _ in range(8):
        predicate = random_predicate(rng)
        if any(isinstance(term, Compare | In) and too_early(term) for term in walk(predicate)):
            with pytest.raises(InvalidInput, match="so early"):
                duckdb_sql(predicate, NAMES)
            continue
        seen, kept = asked(duck, predicate, "rows")
        want = evaluate(predicate, arrays, len(rows)).to_pylist()
        assert seen == want == [truth(predicate, row) for row in rows], duckdb_sql(predicate, NAMES)
        assert kept == [n for n, value in enumerate(want) if value], duckdb_sql(predicate, NAMES)


def test_duckdb_agrees_on_parquet_files_that_hide_nan(
    duck: duckdb.DuckDBPyConnection, tmp_path: Any, lane_count: Callable[[int, int], int]
) -> None:
    """DuckDB agrees on Parquet files that hide NaN. Their minimum and maximum omit NaN, and give zero only one sign."""
    column = a_column(6, "FLOAT8")
    for values in ([1.0, 2.0, math.nan], [-0.0], [0.0], [math.nan], [-0.0, 5.0, None]):
        place = tmp_path / "f.parquet"
        pq.write_table(pa.table({"c6": pa.array(values, pa.float64()), "n": range(len(values))}), place)
        for op in ("=", "!=", "<", "<=", ">", ">=", "<=>"):
            for value in (0.0, NAN, 1.5, 2.0, 100.0)[: lane_count(2, 5)]:
                for predicate in (
                    compare(column, op, value),
                    Not(compare(column, op, value)),
                    one_of(column, [value]),
                ):  # type: ignore[arg-type]
                    _, kept = asked(duck, predicate, f"'{place}'")
                    rows = [{6: NAN if v is not None and v != v else v} for v in values]
                    assert kept == [n for n, row in enumerate(rows) if truth(predicate, row)], (
                        values,
                        text(predicate),
                    )


def test_engines_are_given_whole_paths() -> None:
    predicate = compare(DEEP, "<=>", 5)
    assert spark_sql(predicate, PATHS) == "`St`.`X y` <=> 5L"
    assert duckdb_sql(predicate, PATHS) == '("St")."X y" IS NOT DISTINCT FROM CAST(5 AS BIGINT)'
    assert spark_sql(compare(NAME, "=", "${x}"), {4: "a`b"}) == "`a``b` = CAST(X'247B787D' AS STRING)"
    assert duckdb_sql(IsNull(NAME), {4: 'a"b'}) == '"a""b" IS NULL'
    with pytest.raises(InvalidInput, match="no timestamp so early"):
        duckdb_sql(compare(AT, ">", -(1 << 63)), PATHS)
