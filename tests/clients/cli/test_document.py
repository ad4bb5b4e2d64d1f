"""Documents of `alpheus apply`: which are refused and where, values in JSON, and column types as text."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus.cli.text import document
from alpheus.cli.text.column_types import parse_column, parse_type
from alpheus.cli.text.json_rows import arrow_rows
from alpheus.errors import InvalidInput
from alpheus_journal.model.type_names import quoted_name, type_text
from alpheus_journal.tables.columns import columns_of_schema


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"operations":\n [}', "standard input: line 2 column 3: "),
        ("", "standard input: line 1 column 1: "),
        ("[]", "standard input is not an object"),
        ("{}", "missing key operations"),
        ('{"operations": [], "extra": 1}', "unknown key 'extra'"),
        ('{"operations": {}}', "standard input.operations: Expected array"),
        ('{"operations": [], "message": 5}', "standard input.message: Expected str"),
        ('{"operations": [], "operations": []}', "the key 'operations' occurs twice"),
        ('{"operations": [NaN]}', "NaN is not valid JSON"),
        ('{"operations": [], "isolation": "serial"}', "standard input.isolation"),
        ('{"operations": [], "id": "x"}', "not a version 7 UUID"),
        ('{"operations": [5]}', "operations[0] is not an object with one key"),
        (
            '{"operations": [{"drop_table": {}, "drop_namespace": {}}]}',
            "operations[0] is not an object with one key",
        ),
        ('{"operations": [{"fry": {}}]}', "operations[0]: there is no operation 'fry'"),
        ('{"operations": [{"drop_table": 5}]}', "operations[0].drop_table is not an object"),
        ('{"operations": [{"drop_table": {"nam": 1}}]}', "operations[0].drop_table: unknown key 'nam'"),
        ('{"operations": [{"drop_table": {"name": 1}}]}', "operations[0].drop_table.name: Expected str"),
        (
            '{"operations": [{"update_table": {"name": "a.b"}}]}',
            "operations[0].update_table: the operation changes nothing",
        ),
        (
            '{"operations": [{"create_table": {"name": "a.b", "columns": [{"name": "x", "type": "int65"}]}}]}',
            "operations[0].create_table.columns[0]: 'int65': there is no type",
        ),
        (
            '{"operations": [{"create_table": {"name": "a.b", "columns": [{"nam": "x"}]}}]}',
            "operations[0].create_table.columns[0]: unknown key 'nam'",
        ),
        (
            '{"operations": [{"create_table": {"name": "a.b", "columns": []}}]}',
            "operations[0].create_table: a table needs at least one column",
        ),
        ("[" * 100_000, "nested too deeply"),
        ("1" * 5000, "standard input: "),
        (b"\xff", "byte 0 is not UTF-8"),
    ],
)
def test_a_wrong_document_is_refused_with_its_place(text: str | bytes, said: str) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(InvalidInput) as caught:
        document.parse_document(data, "standard input")
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("boolean", "1"), ("boolean", "0"), ("boolean", '"true"'), ("int16", "32768"), ("int64", "true"),
        ("int64", "1.0"), ("int64", "9223372036854775808"), ("float", "1e39"), ("double", "1e400"),
        ("double", '"inf"'), ("double", "true"), ("decimal(4,2)", "100"), ("decimal(4,2)", "0.001"),
        ("decimal(4,2)", '"x"'), ("decimal(4,2)", '"NaN"'), ("decimal(4,2)", "1e999999"), ("string", "5"),
        ("string", '"\\ud800"'), ("binary", '"!"'), ("fixed(2)", '"AA=="'), ("date", '"2026-02-30"'),
        ("date", "20260301"), ("timestamp", '"2026-03-01T12:00:00Z"'), ("timestamptz", '"2026-03-01T12:00:00"'),
        ("timestamp", '"2026-03-01T12:00:00.0000001"'), ("list<int64>", "{}"), ("list<int64:required>", "[null]"),
        ("map<string,int64>", "[1]"), ("map<int64,string>", '{"1": "x"}'), ("struct<a:int64>", "[]"),
        ("struct<a:int64>", '{"b": 1}'), ("struct<a:int64:required>", "{}"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_not_changed(kind: str, value: str) -> None:
    schema = pa.schema([pa.field("v", parse_type(kind))])
    rows = document._parse_json(f'[{{"v": {value}}}]'.encode(), "here")
    with pytest.raises(InvalidInput, match=r"place\.rows\[0\]\.v"):
        arrow_rows(rows, schema, "place")


def test_floats_that_are_no_numbers_are_written_as_text() -> None:
    schema = pa.schema([pa.field("v", pa.float64())])
    found = arrow_rows([{"v": "NaN"}, {"v": "-Infinity"}], schema, "here").to_pydict()["v"]
    assert found[0] != found[0]
    assert found[1] == float("-inf")


# --- types as text ---------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
leaves = st.sampled_from(
    [pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
     pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(38, 0), pa.binary(3)]
)  # fmt: skip


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        st.builds(lambda kind, null: pa.list_(pa.field("element", kind, null)), inner, st.booleans()),
        st.builds(
            lambda key, kind, null: pa.map_(key, pa.field("value", kind, null)), leaves, inner, st.booleans()
        ),
        st.lists(
            st.tuples(names, inner, st.booleans()),
            min_size=1,
            max_size=3,
            unique_by=lambda each: each[0].lower(),
        ).map(lambda fields: pa.struct([pa.field(*each) for each in fields])),
    )


@given(names, st.recursive(leaves, nested, max_leaves=6), st.booleans())
def test_a_type_that_was_written_is_read_back(name: str, kind: pa.DataType, nullable: bool) -> None:
    field = pa.field(name, kind, nullable)
    [column] = columns_of_schema(pa.schema([field]))
    required = "" if nullable else ":required"
    again = parse_column(f"{quoted_name(name)}:{type_text(column)}{required}")
    assert columns_of_schema(pa.schema([again])) == (column,)


@given(st.text("abint64,<>():`9 struct", max_size=40))
def test_any_text_is_a_column_or_a_complaint(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        parse_column(text)


@pytest.mark.parametrize(
    "text",
    ["", "a", "a:", ":int", "a:int:maybe", "a:int64 x", "a:decimal", "a:decimal(0,0)", "a:decimal(39,1)",
     "a:decimal(5,6)", "a:fixed(0)", "a:list", "a:list<int", "a:map<int>", "a:struct<>", "a:struct<x>",
     "a:" + "list<" * 40 + "int" + ">" * 40],
)  # fmt: skip
def test_wrong_columns(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_column(text)
