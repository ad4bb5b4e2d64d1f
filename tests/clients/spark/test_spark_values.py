"""Spark and pyarrow see the same values in the same tables, over storage and a daemon, in every session."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lake_folder import folder_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.errors import Conflict, InvalidInput
from alpheus.rows.manifest_files import FileLists
from alpheus.spark import SparkCatalog
from alpheus.spark.files import schemas
from alpheus.sync.portal import run
from alpheus_journal.tables.parquet_footer import chunk_start

pytestmark = SPARK_MARKS


@pytest.fixture
def lake(spark: SparkSession, lake_url: str) -> Iterator[SparkCatalog]:
    with alpheus.create(lake_url) as catalog:
        catalog.create_namespace("sales")
        yield SparkCatalog(spark, catalog)


@contextlib.contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        assert before is not None
        spark.conf.set(name, before)


def shown(table: pa.Table, schema: pa.Schema) -> list[str]:
    """Return rows in order as text, where NaN equals NaN and the two zeros differ."""
    plain = pa.Table.from_batches(table.to_batches(), table.schema).cast(schema).sort_by("row")
    return [repr(row) for row in plain.to_pylist()]


# --- the same random tables, written by one and read by the other ----------------------------------

MICROS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.just("x" * 5000)


def decimals(precision: int, scale: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    bound = 10**precision - 1
    whole = st.integers(-bound, bound)
    return pa.decimal128(precision, scale), whole.map(
        lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale))
    )


def integers(kind: pa.DataType, bits: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    return kind, st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    integers(pa.int16(), 16),
    integers(pa.int32(), 32),
    integers(pa.int64(), 64),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    decimals(9, 2),
    decimals(18, 18),
    decimals(38, 10),
    (pa.string(), TEXT),
    (pa.binary(), st.binary(max_size=8) | st.just(b"\xff" * 5000)),
    (pa.date32(), MICROS.map(dt.datetime.date)),
    (pa.timestamp("us"), MICROS),
    (pa.timestamp("us", "UTC"), MICROS.map(lambda moment: moment.replace(tzinfo=dt.UTC))),
]

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def deeper(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    lists = inner.map(lambda t: (pa.list_(t[0]), st.lists(st.none() | t[1], max_size=3)))
    maps = inner.map(
        lambda t: (
            pa.map_(pa.string(), t[0]),
            st.dictionaries(TEXT, st.none() | t[1], max_size=2).map(lambda d: list(d.items())),
        )
    )
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda ts: (
            pa.struct([pa.field(f"F{n} ä", t[0]) for n, t in enumerate(ts)]),
            st.fixed_dictionaries({f"F{n} ä": st.none() | t[1] for n, t in enumerate(ts)}),
        )
    )
    return lists | maps | structs


TYPES = st.recursive(st.sampled_from(LEAVES), deeper, max_leaves=4)
NAMES = ["Col", "a.b", "we`ird", "x y,;{}()=", "ünï", "_metadata", "select", "0"]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw a table with a column `row` that numbers its rows."""
    columns: list[tuple[Typed, bool]] = []
    for _ in range(draw(st.integers(1, len(NAMES)))):
        kind = draw(TYPES)
        columns.append((kind, draw(st.booleans())))
    fields = [pa.field("row", pa.int32(), nullable=False)]
    fields += [pa.field(NAMES[n], t[0], nullable) for n, (t, nullable) in enumerate(columns)]
    rows = [
        {"row": number}
        | {
            NAMES[n]: draw(st.none() | values if nullable else values)
            for n, ((_, values), nullable) in enumerate(columns)
        }
        for number in range(draw(st.integers(0, 5)))
    ]
    return pa.Table.from_pylist(rows, pa.schema(fields))


@pytest.fixture
def two_ways(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, start_daemon: Callable[..., Any]
) -> Iterator[list[SparkCatalog]]:
    """Yield one catalog, opened on its storage and through a daemon."""
    url = f"file://{tmp_path_factory.mktemp('values')}/lake"
    alpheus.create(url).close()
    with alpheus.connect(url) as plain, alpheus.connect(start_daemon(url).url) as remote:
        plain.create_namespace("sales")
        yield [SparkCatalog(spark, plain), SparkCatalog(spark, remote)]


@settings(
    max_examples=max(3, settings.default.max_examples // 10 if settings.default else 0),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=tables(), zone=st.sampled_from(["UTC", "America/New_York", "Asia/Kolkata"]), first=st.booleans())
def test_random_tables_are_the_same_to_both(
    two_ways: list[SparkCatalog], spark: SparkSession, data: pa.Table, zone: str, first: bool
) -> None:
    one, other = two_ways if first else reversed(two_ways)
    for name in ("sales.arrow", "sales.spark"):
        if one.catalog.table_exists(name):
            one.catalog.drop_table(name)
    with setting(spark, "spark.sql.session.timeZone", zone):
        one.catalog.create_table("sales.arrow", data)
        schema = one.catalog.read("sales.arrow").schema
        expected = [repr(row) for row in data.cast(schema).to_pylist()]
        in_spark = other.read("sales.arrow")
        assert shown(in_spark.toArrow(), schema) == expected
        other.catalog.create_table("sales.spark", data.schema)
        other.append("sales.spark", in_spark)
        assert shown(one.catalog.read("sales.spark"), schema) == expected
        assert shown(one.read("sales.spark").toArrow(), schema) == expected
        assert one.catalog.read("sales.arrow").num_rows == other.catalog.read("sales.spark").num_rows


DEFAULTS: dict[str, tuple[pa.DataType, Any]] = {
    "flag": (pa.bool_(), False),
    "small": (pa.int16(), -32768),
    "long": (pa.int64(), -(1 << 63)),
    "single": (pa.float32(), 0.10000000149011612),
    "double": (pa.float64(), -math.inf),
    "price": (pa.decimal128(38, 2), Decimal("-123456789012345678901234567890123456.78")),
    "te`xt": (pa.string(), 'it\'s\n\\ "é" 🙂'),
    "empty": (pa.string(), ""),
    "raw": (pa.binary(), b"\x00\xff"),
    "day": (pa.date32(), dt.date(1, 1, 1)),
    "at": (pa.timestamp("us"), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "seen": (pa.timestamp("us", "UTC"), dt.datetime(1, 1, 2, 0, 0, 0, 1, tzinfo=dt.UTC)),
}


def test_defaults_are_the_same_to_both(two_ways: list[SparkCatalog], spark: SparkSession) -> None:
    """Spark and pyarrow give the same defaults to rows from before a column and to rows that omit it."""
    lake, other = two_ways
    place = pa.struct(
        [pa.field("zip", pa.string()), pa.field("in.ner", pa.struct([pa.field("x", pa.int32())]))]
    )
    old = [{"row": 0, "place": {"zip": "a", "in.ner": {"x": 1}}}, {"row": 1, "place": None}]
    old.append({"row": 2, "place": {"zip": None, "in.ner": None}})
    catalog = lake.catalog
    catalog.create_table("sales.t", pa.Table.from_pylist(old, pa.schema({"row": pa.int32(), "place": place})))
    fields = [pa.field(name, kind, name != "long") for name, (kind, _) in DEFAULTS.items()]
    catalog.update_table(
        "sales.t", add_columns=fields, defaults={name: value for name, (_, value) in DEFAULTS.items()}
    )
    catalog.update_table(
        "sales.t",
        add_columns={"place.flag": pa.bool_(), "place.in.ner.raw": pa.binary()},
        defaults={"place.flag": True, "place.in.ner.raw": b"r"},
    )
    schema = catalog.read("sales.t").schema

    def same() -> list[str]:
        expected = shown(catalog.read("sales.t"), schema)
        assert shown(other.read("sales.t").toArrow(), schema) == expected
        return expected

    with setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        same()
        with setting(spark, "spark.sql.parquet.enableVectorizedReader", "false"):
            same()
        with (
            setting(spark, "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing", "true"),
            pytest.raises(InvalidInput, match="returnNullStructIfAllFieldsMissing=true"),
        ):  # reads would lose the defaults of structs
            lake.read("sales.t")
        df = lake.read("sales.t")
        assert df.schema == lake.read("sales.t").schema
        assert [
            df.where(condition).count()
            for condition in ("small = -32768", "small IS NULL", "empty = '' AND row = 1", "raw = X'00ff'",
                              "place.flag", "place.`in.ner`.raw IS NULL", "day > DATE '1000-01-01'")
        ] == [3, 0, 1, 3, 2, 2, 0]  # fmt: skip
        # An insert that omits the columns.
        lake.append(
            "sales.t", spark.sql("SELECT 3 AS row, named_struct('ZIP', 'b', 'in.ner', NULL) AS Place")
        )
        lake.append("sales.t", spark.sql("SELECT 4 AS row"))
        catalog.append("sales.t", [{"row": 5}, {"row": 6, "place": {"in.ner": {}}, "small": None}])
        rows = same()
        assert lake.read("sales.t").where("small = -32768 AND `te``xt` LIKE 'it%'").count() == 6
        assert lake.read("sales.t").where("place.flag").count() == 4
        assert lake.read("sales.t").where("small IS NULL").count() == 1
        # Later inserts get other defaults. Existing rows keep theirs.
        catalog.update_table("sales.t", defaults={"small": 7, "place.flag": False, "day": None})
        lake.append("sales.t", spark.sql("SELECT 7 AS row, named_struct('zip', 'b') AS place"))
        assert same()[: len(rows)] == rows
        last = lake.read("sales.t").where("row = 7").select("small", "day", "long", "place.flag").first()
        assert last is not None
        assert tuple(last) == (7, None, -(1 << 63), False)


def test_lists_and_maps_of_nothing_but_nulls(two_ways: list[SparkCatalog]) -> None:
    one = two_ways[0]
    schema = pa.schema(
        [
            ("shorts", pa.list_(pa.int16())),
            ("doubles", pa.list_(pa.float64())),
            ("texts", pa.list_(pa.string())),
            ("decimals", pa.list_(pa.decimal128(20, 2))),
            ("values", pa.map_(pa.string(), pa.int64())),
            ("inner", pa.list_(pa.struct([("x", pa.int32())]))),
        ]
    )
    row = {
        "shorts": [None], "doubles": [None, None], "texts": [None], "decimals": [None], "values": [("k", None)],
        "inner": [{"x": None}],
    }  # fmt: skip
    one.catalog.create_table("sales.nulls", pa.Table.from_pylist([row, row], schema))
    one.catalog.create_table("sales.copied", schema)
    one.append("sales.copied", one.read("sales.nulls"))
    assert one.catalog.read("sales.copied").to_pylist() == one.catalog.read("sales.nulls").to_pylist()
    assert one.read("sales.nulls").count() == 2


# --- what Spark can get wrong ----------------------------------------------------------------------


@pytest.mark.usefixtures("only_slow")
def test_frames_made_from_one_read_do_not_share_filters(lake: SparkCatalog, spark: SparkSession) -> None:
    """Frames that are made from one read do not share filters.

    The table has more files than Spark lists by itself, and predicates that leave different files.
    """
    lake.create_table("sales.orders", spark.range(0, 350, 1, 35))
    df = lake.read("sales.orders")
    low, high = df.where("id < 10"), df.where("id >= 340")
    assert (low.count(), df.count(), high.count(), df.count()) == (10, 350, 10, 350)
    assert low.union(high).count() == 20
    assert low.alias("a").join(high.alias("b"), f.expr("a.id + 340 = b.id")).count() == 10
    assert df.where("not (id < 10)").count() == 340
    df.createOrReplaceTempView("shared")
    assert spark.sql("SELECT * FROM shared WHERE id BETWEEN 5 AND 6").count() == 2
    assert spark.sql("SELECT * FROM shared WHERE id = 5 OR id = 345").count() == 2
    assert spark.catalog.dropTempView("shared")


def test_a_frame_outlives_changes_of_the_session(lake: SparkCatalog, spark: SparkSession) -> None:
    """A frame keeps its settings, although the session's settings change before the frame runs."""
    ancient = {"day": dt.date(1, 1, 1), "local": dt.datetime(1, 1, 1), "Name": "n", "part": {"in": 1}}
    lake.create_table("sales.orders", "day DATE, local TIMESTAMP_NTZ, called STRING, part STRUCT<was: INT>")
    row = ancient | {"called": "n", "part": {"was": 1}}
    lake.catalog.append("sales.orders", [{name: row[name] for name in ("day", "local", "called", "part")}])
    lake.append("sales.orders", lake.read("sales.orders"))
    lake.catalog.update_table("sales.orders", rename_columns={"called": "Name", "part.was": "in"})
    df = lake.read("sales.orders")
    for name, value in {
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.fieldId.read.enabled": "false",
        "spark.sql.parquet.fieldId.read.ignoreMissing": "true",
        "spark.sql.caseSensitive": "true",
        "spark.sql.parquet.enableVectorizedReader": "false",
    }.items():
        with setting(spark, name, value):
            again = df.select("*")  # a frame that ran keeps its plan
            assert [row.asDict(recursive=True) for row in again.collect()] == [ancient, ancient], name
    table = lake.catalog.load_table("sales.orders").definition
    [victim, _] = FileLists(lake.storage, run).of(table.id, table.segments)
    (folder_of(lake.storage.url) / victim.path).unlink()
    for name in ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles"):
        with setting(spark, name, "true"), pytest.raises(Exception, match="FILE_NOT_EXIST"):
            df.select("*").collect()


@pytest.mark.parametrize(
    "query",
    [
        """SELECT id, CASE WHEN id > 0 THEN named_struct(
            'a', id, 'b', named_struct('c', id, 'd', array(named_struct('e', id)))) END AS x FROM range(3)""",
        "SELECT l.id, x FROM range(4) l LEFT JOIN (SELECT id, struct(id, array(id)) AS x FROM range(2)) USING (id)",
        "SELECT id, filter(array(id), n -> n > 1) AS x, map_filter(map('k', id), (k, n) -> n > 1) AS y FROM range(3)",
    ],
)
def test_nested_values_that_a_frame_calls_not_null(
    query: str, lake: SparkCatalog, spark: SparkSession
) -> None:
    """Nested values that a frame calls NOT NULL can be stored.

    Spark calls parts of NULL structs and of empty lists NOT NULL, and files have entries for them.
    """
    df = spark.sql(query)
    lake.create_table("sales.loose", df)
    strict = pa.schema([pa.field(field.name, field.type) for field in df.limit(0).toArrow().schema])
    lake.catalog.create_table("sales.strict", strict)
    for name in ("sales.loose", "sales.strict"):
        lake.append(name, df)
    lake.append("sales.loose", lake.read("sales.loose"))
    expected = sorted(map(str, df.collect()))
    assert sorted(map(str, lake.read("sales.strict").collect())) == expected
    assert sorted(map(str, lake.read("sales.loose").collect())) == sorted(expected * 4)
    assert lake.catalog.read("sales.loose").num_rows == len(expected) * 4


def test_required_columns_of_values_without_bounds(lake: SparkCatalog, spark: SparkSession) -> None:
    """Required columns may hold long texts and NaN, which have no bounds in a footer.

    The columns still have no NULL.
    """
    lake.create_table("sales.orders", "text STRING NOT NULL, raw BINARY NOT NULL, number DOUBLE NOT NULL")
    names = "text STRING, raw BINARY, number DOUBLE"
    long = "\U0010ffff" * 3000
    rows: list[Any] = [("x" * 5000, b"\xff" * 5000, math.nan), (long, b"", -0.0)]
    lake.append("sales.orders", spark.createDataFrame(rows, names))
    df = lake.read("sales.orders")
    for text, raw, _ in rows:
        assert df.where(f.col("text") == text).where(f.col("raw") == f.lit(raw)).count() == 1
    assert df.where("number = 0 OR isnan(number)").count() == 2
    head = lake.catalog.version()
    for column, row in {"raw": ("x" * 5000, None, 0.0), "number": ("", b"", None)}.items():
        with pytest.raises(InvalidInput, match=f"'{column}' is required, but holds NULL"):
            lake.append("sales.orders", spark.createDataFrame([*rows, row], names))
    assert lake.catalog.version() == head
    assert lake.read("sales.orders").count() == lake.catalog.read("sales.orders").num_rows == 2


def test_null_is_as_sql_has_it(lake: SparkCatalog, spark: SparkSession) -> None:
    lake.create_table("sales.orders", "id BIGINT, n INT")
    lake.append("sales.orders", spark.createDataFrame([(1, 1), (2, None), (3, 3)], "id BIGINT, n INT"))
    lake.append("sales.orders", spark.sql("SELECT 4L AS id"))
    df = lake.read("sales.orders")
    counts = {
        "n = 1": 1, "NOT (n = 1)": 1, "NOT coalesce(n = 1, false)": 3, "n IS NULL": 2, "n <=> NULL": 2,
        "n IN (1, NULL)": 1, "n NOT IN (1, NULL)": 0,
    }  # fmt: skip
    assert {where: df.where(where).count() for where in counts} == counts


# --- refusals --------------------------------------------------------------------------------------


def test_a_stream_and_a_table_that_went_away_are_refused(lake: SparkCatalog, spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    lake.create_table("sales.orders", stream.schema)
    head = lake.catalog.version()
    for write in (lake.append, lake.overwrite):
        with pytest.raises(InvalidInput, match="the data frame is a stream"):
            write("sales.orders", stream)
    with pytest.raises(InvalidInput, match="the data frame is a stream"):
        lake.create_table("sales.other", stream)
    assert lake.catalog.version() == head

    still = spark.createDataFrame([], stream.schema).union(spark.sql("SELECT current_timestamp(), 1L"))
    with pytest.raises(Conflict, match=r"drop table sales\.orders"), lake.transaction() as tx:  # noqa: PT012
        tx.append("sales.orders", still)
        lake.catalog.drop_table("sales.orders")
        lake.create_table("sales.orders", stream.schema)
    assert lake.catalog.load_table("sales.orders").file_count == 0


# --- types and names, by the rules of the library ---------------------------------------------------


def test_texts_are_utf8(lake: SparkCatalog, spark: SparkSession) -> None:
    """Texts must be UTF-8.

    Spark takes any bytes for a text, and no other reader could read a table with one such value.
    """
    good = {
        "t": "'ü'", "l": "array('é', NULL)", "m": "map('k', 'v')", "p": "'p'", "n": "array(1)",
        "s": "named_struct('a.b', named_struct('c', '🙂'))",
    }  # fmt: skip
    wrong = "CAST(X'61FF' AS STRING)"
    bad = {
        "t": wrong, "l": f"array('a', {wrong})", "m": f"map({wrong}, 'v')", "p": wrong,
        "s": f"named_struct('a.b', named_struct('c', {wrong}))",
    }  # fmt: skip

    def frame(values: Mapping[str, str]) -> DataFrame:
        return spark.sql(f"SELECT 1 AS id, {', '.join(f'{sql} AS {name}' for name, sql in values.items())}")

    every = frame(good)
    for name, sql in bad.items():
        every = every.union(frame(good | {name: sql}))
    kinds = {
        field.name: field.dataType for field in every.schema.fields if schemas._has_texts(field.dataType)
    }
    assert list(kinds) == ["t", "l", "m", "p", "s"]
    told = every.select(*[schemas._is_wrong_text(f.col(name), kind) for name, kind in kinds.items()])
    places = [[place for place, is_wrong in enumerate(row) if is_wrong] for row in told.collect()]
    assert sorted(places) == [[], [0], [1], [2], [3], [4]]

    lake.create_table("sales.t", frame(good), partition_by=["p"])
    df = frame(good | {"t": wrong})
    with pytest.raises(InvalidInput, match="column 't' has a text that is not UTF-8") as caught:
        lake.merge("sales.t", df, on="id")
    assert (caught.value.kind, "make_valid_utf8" in caught.value.hint) == ("bad_data", True)
    with pytest.raises(InvalidInput, match="column 'p' has a text"):
        lake.update("sales.t", {"p": wrong}, "TRUE")
    # Rows that the frame leaves out are not checked.
    both = df.union(frame(good)).coalesce(1)
    lake.append("sales.t", both.where("is_valid_utf8(t)"))
    lake.append("sales.t", both.offset(1))
    assert lake.catalog.read("sales.t", columns=["t"]).to_pylist() == [{"t": "ü"}] * 3
    both = both.withColumn("t", f.nullif("t", "p"))
    checked = schemas.check_texts(both, lake.catalog.load_table("sales.t").columns)
    assert checked.schema == both.schema
    assert {field.nullable for field in checked.schema.fields} == {False, True}


def test_no_collation_is_taken_for_another(lake: SparkCatalog, spark: SparkSession) -> None:
    df = spark.sql("SELECT p COLLATE UTF8_LCASE AS p, v FROM VALUES ('a', 1), ('A', 2) AS t(p, v)")
    for schema in (df, "p STRING COLLATE UTF8_LCASE"):
        with pytest.raises(InvalidInput, match="collation UTF8_LCASE"):
            lake.create_table("sales.t", schema)
    lake.create_table("sales.t", "p STRING, v INT", partition_by=["p"])
    lake.append("sales.t", df)
    lake.overwrite("sales.t", spark.sql("SELECT 'a' AS p, 3 AS v"), partitions=df.select("p"))
    assert lake.catalog.read("sales.t").to_pylist() == [{"p": "a", "v": 3}]


def test_settings_of_hadoop_lose_no_file(lake: SparkCatalog, spark: SparkSession) -> None:
    """Settings of Hadoop for other tables lose no file.

    One setting names files like marks, and the other filters paths.
    """
    spark.conf.set("mapreduce.output.basename", "_x")
    try:
        lake.create_table("sales.t", spark.range(3))
    finally:
        spark.conf.unset("mapreduce.output.basename")
    assert lake.catalog.read("sales.t").num_rows == 3
    name, hadoop = "mapreduce.input.pathFilter.class", spark.sparkContext._jsc.hadoopConfiguration()
    for place in (spark.conf, hadoop):
        place.set(name, "some.Filter")
        try:
            with pytest.raises(InvalidInput, match=f"{name}=some.Filter"):
                lake.read("sales.t")
        finally:
            place.unset(name)
    assert lake.read("sales.t").count() == 3


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        ("TINYINT", "SMALLINT"),
        ("CHAR(3)", "STRING"),
        ("VARCHAR(3)", "STRING"),
        ("ARRAY<TINYINT>", "SMALLINT"),
        ("STRUCT<b: VARCHAR(3)>", "STRING"),
        ("MAP<STRING, TINYINT>", "SMALLINT"),
    ],
)
def test_no_type_is_taken_for_another(lake: SparkCatalog, kind: str, instead: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        lake.create_table("sales.t", f"a {kind}")
    assert caught.value.kind == "bad_schema"
    assert instead in caught.value.hint
    assert not lake.catalog.table_exists("sales.t")


def test_bytes_of_a_frame_go_into_a_wider_column_only(spark: SparkSession, lake: SparkCatalog) -> None:
    df = spark.sql("SELECT CAST(1 AS TINYINT) AS a")
    with pytest.raises(InvalidInput) as caught:
        lake.create_table("sales.t", df)
    assert (caught.value.kind, "SMALLINT" in caught.value.hint) == ("bad_schema", True)
    lake.create_table("sales.t", "a SMALLINT")
    lake.append("sales.t", df)
    assert lake.catalog.read("sales.t").to_pylist() == [{"a": 1}]


def test_names_are_found_as_spark_finds_them(spark: SparkSession, lake: SparkCatalog) -> None:
    lake.create_table("sales.t", "id BIGINT, v STRING")
    lake.append("sales.t", spark.sql("SELECT 1 AS ID, 'a' AS V"))
    lake.merge("sales.t", spark.sql("SELECT 1 AS Id, 'b' AS v UNION ALL SELECT 2, 'c'"), on="ID")
    lake.update("sales.t", {"V": "upper(V)"}, where="ID = 2")
    table = lake.catalog.read("sales.t", where="ID > 0").sort_by("id")
    assert table.to_pylist() == [{"id": 1, "v": "b"}, {"id": 2, "v": "C"}]


def test_what_spark_writes_agrees_with_its_manifest(spark: SparkSession, lake: SparkCatalog) -> None:
    """`check(values=True)` reads Spark's statistics and page checksums; a flipped bit in a page is found."""
    rows = spark.sql(
        "SELECT id, CAST(id % 3 AS STRING) AS k, DATE '2026-01-30' + CAST(id AS INT) AS d,"
        " IF(id = 4, NULL, repeat('x', 90)) AS t, CAST(id AS DECIMAL(20, 3)) AS m,"
        " IF(id = 2, DOUBLE('NaN'), DOUBLE(id)) AS f, array(id, NULL) AS l, map('k', id) AS p,"
        " named_struct('a', id, 'b', TIMESTAMP '2026-01-01 00:00:00') AS s FROM range(10)"
    )
    lake.create_table("sales.t", rows.schema, partition_by=["k", "month(d)"])
    lake.append("sales.t", rows)
    report = lake.catalog.admin.check(values=True)
    assert report.findings == ()
    assert report.files >= 5
    path = max(folder_of(lake.catalog.url).rglob("data/**/*.parquet"))
    data, first = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(0).column(0)
    data[chunk_start(first) + first.total_compressed_size - 1] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    assert lake.catalog.admin.check(footers=True).ok
    (found,) = lake.catalog.admin.check(values=True).findings
    assert found.path.endswith(path.name)
    assert "has pages that cannot be read" in found.message
