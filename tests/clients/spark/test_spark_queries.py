"""Queries over tables with a history give the same answers as over plain Parquet files, in Spark and in DuckDB.

They run at the head and at three past versions, over storage and over a daemon. DuckDB alone computes the plain files
from the same input, with its own SQL for each step of the history. No reader and no writer of ours takes part in that.

`make slow LANE=spark_queries` runs twenty times the rows, all flights, and every question at every version over both
ways. It also asks every question of a catalog on S3, with fewer rows (`make slow LANE=spark_s3`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import query_texts
import tpch_like
from pyspark.sql import DataFrame, SparkSession
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.demo import data
from alpheus.spark import SparkCatalog

pytestmark = SPARK_MARKS

SPACES = {
    "tpch": ("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"),
    "nyc": ("flights", "planes", "airlines", "airports", "weather"),
}
TABLES = {table: f"{space}.{table}" for space, tables in SPACES.items() for table in tables}
QUERIES = query_texts.TPCH | query_texts.FLIGHTS
RENAMED = ("c_phone", "o_clerk", "l_comment", "tailnum")
PINS = ("loaded", "evolved", "corrected", "head")
WHERES = {
    "lineitem": "l_shipdate BETWEEN DATE '1994-02-01' AND DATE '1994-11-30' AND l_quantity >= 10.5 AND l_tax <> 0.03",
    "orders": """NOT (o_totalprice < 150000) AND o_orderdate >= DATE '1996-05-01'
        OR {o_clerk} IS NULL AND o_orderdate < '1993-01-01'""",
    "customer": "c_mktsegment IN ('MACHINERY', 'BUILDING') AND (c_acctbal IS NULL OR c_acctbal > -500)",
    "flights": "origin <> 'JFK' AND dep_delay > 30 AND time_hour < TIMESTAMP '2013-02-03 00:00:00Z'",
    "partsupp": "ps_rating > 0.9 AND ps_partkey > 50",
}
"""Conditions that prune files, in words that all three engines understand alike."""


@dataclass(frozen=True)
class Pin:
    """A version, the names of renamed columns in that version, and plain files with its rows."""

    version: int
    names: Mapping[str, str]
    folder: Path

    def sql(self, text: str) -> str:
        return text.format(**self.names)


class Story:
    """A catalog that is changed over both ways in turn, and a model of the catalog in DuckDB."""

    def __init__(
        self, spark: SparkSession, ways: dict[str, SparkCatalog], folder: Path, *, has_all: bool
    ) -> None:
        self.spark = spark
        self.has_all = has_all
        self.ways = ways
        self.folder = folder
        self.model = duckdb.connect()
        self.model.execute("SET TimeZone = 'UTC'")
        self.names = {name: name for name in RENAMED}
        self.pins: dict[str, Pin] = {}
        self._turns = itertools.cycle(ways.values())

    def step(self, change: Callable[[SparkCatalog], object], *statements: str, **given: pa.Table) -> None:
        """Change the catalog over the next way, and the model by `statements`.

        `given` holds the tables that the statements name.
        """
        change(next(self._turns))
        for name, table in given.items():
            self.model.register(name, table)
        for statement in statements:
            self.model.execute(statement)

    def create(self, table: str, change: Callable[[SparkCatalog], object], rows: pa.Table) -> None:
        self.step(change, f"CREATE TABLE {table} AS FROM given", given=rows)

    def append(self, table: str, rows: pa.Table, *, by_spark: bool = False) -> None:
        def change(lake: SparkCatalog) -> None:
            if by_spark and (self.has_all or table == "orders"):
                lake.append(TABLES[table], self.frame(rows))
            else:
                lake.catalog.append(TABLES[table], rows)

        self.step(change, f"INSERT INTO {table} BY NAME FROM given", given=rows)

    def by(self, lake: SparkCatalog) -> Any:
        """Return who makes a change of a kind that Spark makes to another table, too: in a short run the library."""
        return lake if self.has_all else lake.catalog

    def frame(self, rows: pa.Table) -> DataFrame:
        return self.spark.createDataFrame(rows).coalesce(2)

    def rows(self, text: str) -> pa.Table:
        """Return what the model answers."""
        return self.model.sql(text).to_arrow_table()

    def pin(self, label: str) -> None:
        folder = self.folder / label
        folder.mkdir()
        for table in TABLES:
            self.model.execute(f"COPY {table} TO '{folder / table}.parquet'")
        version = next(iter(self.ways.values())).catalog.version()
        self.pins[label] = Pin(version, dict(self.names), folder)


def parts(table: pa.Table, column: str, *shares: float) -> list[pa.Table]:
    """Cut a table at these shares of the range of a column."""
    low, high = pc.min(table[column]).as_py(), pc.max(table[column]).as_py() + 1
    ends = [low, *[low + int((high - low) * share) for share in shares], high]
    values = table[column]
    return [
        table.filter(pc.and_(pc.greater_equal(values, begin), pc.less(values, end)))
        for begin, end in itertools.pairwise(ends)
    ]


def renamed(table: pa.Table, **names: str) -> pa.Table:
    return table.rename_columns([names.get(name, name) for name in table.column_names])


# --- the history -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def story(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    make_lake_url: Callable[[], str],
    start_daemon: Callable[..., Any],
    lane_count: Callable[[int, int], int],
) -> Iterator[Story]:
    folder, url = tmp_path_factory.mktemp("queries"), make_lake_url()
    rows, days = lane_count(1, 20), lane_count(1, 31)
    if not url.startswith("file:"):
        rows, days = 2, 2  # the place of the files says nothing of the number of their rows
    with (
        alpheus.create(url) as direct,
        alpheus.connect(start_daemon(url).url) as remote,
    ):
        ways = {"storage": SparkCatalog(spark, direct), "daemon": SparkCatalog(spark, remote)}
        story = Story(spark, ways, folder, has_all=bool(lane_count(0, 1)))
        tpch = tpch_like.tables(rows / 1000)
        nyc = flights_of(days)
        later = loaded(story, tpch, nyc)
        story.pin("loaded")
        evolved(story, later)
        story.pin("evolved")
        corrected(story, tpch)
        story.pin("corrected")
        compacted(story, later)
        story.pin("head")
        yield story
        story.model.close()


def flights_of(days: int) -> dict[str, pa.Table]:
    """Return the tables of flights, for the first `days` days of each month."""
    found = {name: data.read(name) for name in SPACES["nyc"]}
    for name in ("flights", "weather"):
        table = found[name]
        table = table.filter(pc.less_equal(table["day"], days))
        moments = table["time_hour"].cast(pa.timestamp("us", "UTC"))
        found[name] = table.set_column(table.column_names.index("time_hour"), "time_hour", moments)
    flights = found["flights"]
    for column in ("dep_delay", "arr_delay", "distance"):
        flights = flights.set_column(
            flights.column_names.index(column), column, flights[column].cast(pa.int32())
        )
    return found | {"flights": flights}


def loaded(story: Story, tpch: dict[str, pa.Table], nyc: dict[str, pa.Table]) -> dict[str, list[pa.Table]]:
    """Create and fill the tables, and return the rows that are appended later."""
    story.step(lambda lake: [lake.catalog.create_namespace(space) for space in SPACES])
    for name in ("region", "nation"):
        story.create(
            name, lambda lake, name=name: lake.catalog.create_table(TABLES[name], tpch[name]), tpch[name]
        )
    first, _ = parts(tpch["supplier"], "s_suppkey", 0.75)  # a merge adds the others
    story.create(
        "supplier",
        lambda lake: lake.create_table("tpch.supplier", story.frame(first), sort_by=["s_acctbal desc"]),
        first,
    )
    first, second = parts(tpch["customer"], "c_custkey", 0.5)
    story.create(
        "customer",
        lambda lake: lake.catalog.create_table("tpch.customer", first, partition_by=["c_mktsegment"]),
        first,
    )
    story.append("customer", second, by_spark=True)
    source = story.folder / "part"
    source.mkdir()
    for number, part in enumerate(parts(tpch["part"], "p_partkey", 0.6)):
        pq.write_table(part, source / f"{number}.parquet")
    story.create("part", lambda lake: lake.import_table("tpch.part", source), tpch["part"])
    first, second = parts(tpch["partsupp"], "ps_partkey", 0.3)
    story.create(
        "partsupp",
        lambda lake: lake.catalog.create_table("tpch.partsupp", first, sort_by=["ps_partkey", "ps_suppkey"]),
        first,
    )
    pq.write_table(second, story.folder / "partsupp.parquet")
    story.step(
        lambda lake: lake.append_files("tpch.partsupp", story.folder / "partsupp.parquet"),
        "INSERT INTO partsupp FROM given",
        given=second,
    )
    orders = parts(tpch["orders"], "o_orderkey", 0.4, 0.7, 0.9)
    lineitem = parts(tpch["lineitem"], "l_orderkey", 0.4, 0.7, 0.9)
    for name, rows, key, order in (
        ("orders", orders[0], "year(o_orderdate)", ["o_orderkey"]),
        ("lineitem", lineitem[0], "year(l_shipdate)", ["l_orderkey", "l_linenumber desc"]),
    ):
        story.create(
            name,
            lambda lake, name=name, rows=rows, key=key, order=order: lake.catalog.create_table(
                TABLES[name], rows, partition_by=[key], sort_by=order
            ),
            rows,
        )

    def together(lake: SparkCatalog) -> None:
        with lake.transaction() as tx:
            tx.append("tpch.orders", story.frame(orders[1]))
            tx.append("tpch.lineitem", story.frame(lineitem[1]))

    story.step(
        together,
        "INSERT INTO orders FROM given",
        "INSERT INTO lineitem FROM lines",
        given=orders[1],
        lines=lineitem[1],
    )
    for name in ("airlines", "airports", "planes"):
        story.create(
            name, lambda lake, name=name: lake.catalog.create_table(TABLES[name], nyc[name]), nyc[name]
        )
    story.create(
        "weather",
        lambda lake: lake.catalog.create_table(
            "nyc.weather", nyc["weather"], partition_by=["month(time_hour)"], sort_by=["origin"]
        ),
        nyc["weather"],
    )
    flights = parts(nyc["flights"], "month", 0.4, 0.8)
    story.create(
        "flights",
        lambda lake: lake.catalog.create_table(
            "nyc.flights", flights[0], partition_by=["origin"], sort_by=["time_hour"]
        ),
        flights[0],
    )
    story.append("flights", flights[1], by_spark=True)
    return {"orders": orders[2:], "lineitem": lineitem[2:], "flights": flights[2:]}


def evolved(story: Story, later: dict[str, list[pa.Table]]) -> None:
    """Add, rename, move and widen columns, write rows with and without them, and hide some rows."""
    story.step(
        lambda lake: lake.catalog.update_table(
            "tpch.lineitem",
            add_columns={"l_channel": pa.string()},
            defaults={"l_channel": "web"},
            rename_columns={"l_comment": "l_remark"},
            retype_columns={"l_linenumber": pa.int64(), "l_quantity": pa.decimal128(15, 2)},
        ),
        "ALTER TABLE lineitem ADD COLUMN l_channel VARCHAR DEFAULT 'web'",
        "ALTER TABLE lineitem RENAME COLUMN l_comment TO l_remark",
        "ALTER TABLE lineitem ALTER COLUMN l_linenumber TYPE BIGINT",
        "ALTER TABLE lineitem ALTER COLUMN l_quantity TYPE DECIMAL(15, 2)",
    )
    story.step(
        lambda lake: lake.catalog.update_table(
            "tpch.orders",
            add_columns={"o_rebate": pa.decimal128(10, 2)},
            defaults={"o_rebate": Decimal("1.50")},
            rename_columns={"o_clerk": "o_agent"},
            retype_columns={"o_shippriority": pa.int64()},
        ),
        "ALTER TABLE orders ADD COLUMN o_rebate DECIMAL(10, 2) DEFAULT 1.50",
        "ALTER TABLE orders RENAME COLUMN o_clerk TO o_agent",
        "ALTER TABLE orders ALTER COLUMN o_shippriority TYPE BIGINT",
    )
    story.step(
        lambda lake: lake.catalog.update_table("tpch.customer", rename_columns={"c_phone": "c_contact"}),
        "ALTER TABLE customer RENAME COLUMN c_phone TO c_contact",
    )
    story.step(
        lambda lake: lake.catalog.update_table(
            "tpch.part", retype_columns={"p_weight": pa.float64(), "p_size": pa.int64()}
        ),
        "ALTER TABLE part ALTER COLUMN p_weight TYPE DOUBLE",
        "ALTER TABLE part ALTER COLUMN p_size TYPE BIGINT",
    )
    story.step(
        lambda lake: lake.catalog.update_table(
            "tpch.nation", column_order=["n_name", "n_comment", "n_regionkey", "n_nationkey"]
        ),
        "CREATE OR REPLACE TABLE nation AS SELECT n_name, n_comment, n_regionkey, n_nationkey FROM nation",
    )
    story.step(
        lambda lake: lake.catalog.update_table(
            "nyc.flights",
            add_columns={"cancelled": pa.bool_()},
            defaults={"cancelled": False},
            rename_columns={"tailnum": "tail"},
            retype_columns={"dep_delay": pa.int64(), "arr_delay": pa.int64()},
        ),
        "ALTER TABLE flights ADD COLUMN cancelled BOOLEAN DEFAULT false",
        "ALTER TABLE flights RENAME COLUMN tailnum TO tail",
        "ALTER TABLE flights ALTER COLUMN dep_delay TYPE BIGINT",
        "ALTER TABLE flights ALTER COLUMN arr_delay TYPE BIGINT",
    )
    story.names |= {"c_phone": "c_contact", "o_clerk": "o_agent", "l_comment": "l_remark", "tailnum": "tail"}
    story.append("orders", renamed(later["orders"][0], o_clerk="o_agent"), by_spark=True)
    lines = renamed(later["lineitem"][0], l_comment="l_remark")
    channels = pa.array([("shop", None, "web", "phone")[n % 4] for n in range(lines.num_rows)])
    story.append("lineitem", lines.append_column("l_channel", channels))
    story.append("flights", renamed(later["flights"][0], tailnum="tail"), by_spark=True)
    for name, where in (
        ("lineitem", "l_shipmode = 'FOB' AND l_quantity < 10"),
        ("orders", "o_orderpriority = '5-LOW' AND o_totalprice > 250000 OR o_agent LIKE 'Clerk#0001%'"),
        ("flights", "dep_delay > 150 OR carrier = 'HA' OR dest = 'BQN' AND dep_time IS NULL"),
        ("weather", "precip >= 0.1 AND NOT wind_speed < 5"),
    ):
        story.step(
            lambda lake, name=name, where=where: lake.catalog.delete(TABLES[name], where),
            f"DELETE FROM {name} WHERE {where}",
        )


def corrected(story: Story, tpch: dict[str, pa.Table]) -> None:
    """Update, delete, merge and replace rows, in both modes."""
    spring = "o_orderdate >= DATE '1996-03-01' AND o_orderdate < DATE '1996-05-01'"
    story.step(
        lambda lake: lake.update(
            "tpch.orders",
            {"o_totalprice": "o_totalprice + 10.50", "o_agent": "coalesce(o_agent, 'nobody')"},
            spring,
        ),
        f"""UPDATE orders SET o_totalprice = o_totalprice + 10.50, o_agent = coalesce(o_agent, 'nobody')
            WHERE {spring}""",
    )
    poor = "c_nationkey IS NULL OR c_mktsegment = 'MACHINERY' AND c_custkey > 40"
    story.step(
        lambda lake: lake.catalog.update(
            "tpch.customer", {"c_acctbal": None, "c_comment": "asked"}, poor, "rewrite"
        ),
        f"UPDATE customer SET c_acctbal = NULL, c_comment = 'asked' WHERE {poor}",
    )
    returned = "l_returnflag = 'R' AND l_discount = 0.10"
    story.step(
        lambda lake: lake.delete("tpch.lineitem", returned, mode="rewrite"),
        f"DELETE FROM lineitem WHERE {returned}",
    )
    # A merge updates some rows and adds others. Columns that its source lacks stay, and are NULL in added rows.
    source = parts(tpch["supplier"], "s_suppkey", 0.5)[1].drop_columns(["s_address"])
    source = source.set_column(
        source.column_names.index("s_comment"), "s_comment", pa.nulls(len(source), pa.string())
    )
    columns = [name for name in source.column_names if name != "s_suppkey"]
    story.step(
        lambda lake: lake.merge("tpch.supplier", story.frame(source), "s_suppkey"),
        f"""UPDATE supplier SET {", ".join(f"{name} = given.{name}" for name in columns)}
            FROM given WHERE supplier.s_suppkey = given.s_suppkey""",
        "INSERT INTO supplier BY NAME FROM given WHERE s_suppkey NOT IN (SELECT s_suppkey FROM supplier)",
        given=source,
    )
    gone = parts(tpch["partsupp"].select(["ps_partkey", "ps_suppkey"]), "ps_partkey", 0.1, 0.2)[1]
    story.step(
        lambda lake: lake.catalog.merge(
            "tpch.partsupp", gone, ["ps_partkey", "ps_suppkey"], matched="delete", unmatched="ignore"
        ),
        """DELETE FROM partsupp WHERE EXISTS (SELECT 1 FROM given WHERE given.ps_partkey = partsupp.ps_partkey
            AND given.ps_suppkey = partsupp.ps_suppkey)""",
        given=gone,
    )
    year = story.rows(
        """SELECT * REPLACE (o_totalprice + 1 AS o_totalprice, NULL AS o_rebate) FROM orders
            WHERE year(o_orderdate) = 1993 AND o_orderkey % 5 > 0"""
    )
    year = year.cast(story.rows("FROM orders LIMIT 0").schema)
    story.step(
        lambda lake: lake.overwrite(
            "tpch.orders", story.frame(year), partitions=[{"year(o_orderdate)": "1993"}]
        ),
        "DELETE FROM orders WHERE year(o_orderdate) = 1993",
        "INSERT INTO orders FROM given",
        given=year,
    )
    last = "l_shipdate >= DATE '1998-06-01'"
    lines = story.rows(
        f"SELECT * REPLACE (l_partkey % 7 + 1 AS l_partkey) FROM lineitem WHERE {last} AND l_linenumber < 4"
    )
    story.step(
        lambda lake: lake.catalog.overwrite("tpch.lineitem", lines, where=last),
        f"DELETE FROM lineitem WHERE {last}",
        "INSERT INTO lineitem FROM given",
        given=lines,
    )
    story.step(
        lambda lake: story.by(lake).update("nyc.flights", {"cancelled": True}, "dep_time IS NULL"),
        "UPDATE flights SET cancelled = true WHERE dep_time IS NULL",
    )
    kept = story.rows("FROM flights WHERE origin = 'LGA' AND flight % 10 <> 3")
    story.step(
        lambda lake: story.by(lake).overwrite(
            "nyc.flights", story.frame(kept) if story.has_all else kept, partitions={"origin": ["LGA"]}
        ),
        "DELETE FROM flights WHERE origin = 'LGA'",
        "INSERT INTO flights FROM given",
        given=kept,
    )
    planes = story.rows(
        """SELECT tailnum, 2013 AS year, 'Acme' AS manufacturer, 7::BIGINT AS seats FROM (
            SELECT tailnum FROM planes WHERE year IS NULL UNION ALL SELECT 'N-new' || range FROM range(5))"""
    )
    planes = planes.set_column(1, "year", planes["year"].cast(pa.int64()))
    story.step(
        lambda lake: lake.catalog.merge("nyc.planes", planes, "tailnum", mode="predicate"),
        """UPDATE planes SET year = given.year, manufacturer = given.manufacturer, seats = given.seats
            FROM given WHERE planes.tailnum = given.tailnum""",
        "INSERT INTO planes BY NAME FROM given WHERE tailnum NOT IN (SELECT tailnum FROM planes)",
        given=planes,
    )
    airlines = story.rows("SELECT carrier, upper(name) AS name FROM airlines WHERE carrier <> 'YV'")
    story.step(
        lambda lake: lake.overwrite("nyc.airlines", story.frame(airlines)),
        "CREATE OR REPLACE TABLE airlines AS FROM given",
        given=airlines,
    )


def compacted(story: Story, later: dict[str, list[pa.Table]]) -> None:
    """Compact files, then add and remove rows, drop a column, and drop and restore tables."""
    story.step(lambda lake: lake.compact("tpch.lineitem"))
    story.step(lambda lake: lake.catalog.compact("nyc.flights"))
    story.step(lambda lake: story.by(lake).compact("tpch.orders", target_size=100_000))
    story.step(
        lambda lake: lake.catalog.update_table("tpch.lineitem", defaults={"l_channel": "shop"}),
        "ALTER TABLE lineitem ALTER COLUMN l_channel SET DEFAULT 'shop'",
    )
    story.append("lineitem", renamed(later["lineitem"][1], l_comment="l_remark"), by_spark=True)
    story.append("orders", renamed(later["orders"][1], o_clerk="o_agent"))
    lines = "l_channel = 'shop' AND l_linenumber > 5 OR l_remark IS NULL AND l_quantity BETWEEN 20 AND 30"
    story.step(
        lambda lake: lake.delete("tpch.lineitem", lines),
        f"DELETE FROM lineitem WHERE {lines}",
    )
    story.step(
        lambda lake: lake.catalog.update_table("tpch.orders", drop_columns=["o_comment"]),
        "ALTER TABLE orders DROP COLUMN o_comment",
    )

    def there_and_back(lake: SparkCatalog) -> None:
        before = lake.catalog.version()
        lake.overwrite("tpch.part", lake.read("tpch.part", where="p_size < 3"))
        lake.catalog.restore_table("tpch.part", before)
        lake.catalog.drop_table("tpch.region")
        lake.catalog.undrop("tpch.region")

    story.step(there_and_back)


# --- answers ---------------------------------------------------------------------------------------


class Answer:
    """Column names and types, and sorted rows. Two answers are equal if all of these are.

    Doubles are compared to nine digits, because they are added up in no fixed order.
    """

    def __init__(self, types: list[tuple[str, str]], rows: list[tuple[Any, ...]]) -> None:
        self.types = types
        self.rows = sorted(rows, key=_order)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Answer)
            and self.types == other.types
            and len(self.rows) == len(other.rows)
            and all(
                _alike(mine, its)
                for one, two in zip(self.rows, other.rows, strict=True)
                for mine, its in zip(one, two, strict=True)
            )
        )

    def __repr__(self) -> str:
        return f"{self.types} {len(self.rows)} rows: {self.rows[:50]}"


def _order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    exact = [repr(value) for value in row if not isinstance(value, float)]
    return exact, [math.inf if math.isnan(value) else value for value in row if isinstance(value, float)]


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return type(one) is type(other) and bool(one == other)


def by_spark(df: DataFrame) -> Answer:
    return Answer(df.dtypes, [tuple(row) for row in df.collect()])


def by_duckdb(connection: duckdb.DuckDBPyConnection, text: str) -> Answer:
    found = connection.sql(text)
    types = [(name, str(kind)) for name, kind in zip(found.columns, found.types, strict=True)]
    return Answer(types, found.fetchall())


def asked(spark: SparkSession, texts: Mapping[str, str]) -> dict[str, Answer]:
    return {name: by_spark(spark.sql(text)) for name, text in texts.items()}


def all_rows(table: str) -> str:
    """Return a Spark query that answers alike for two tables only if they have the same rows, each equally often."""
    return f"SELECT '{table}' AS name, count(*) AS n, sum(CAST(xxhash64(*) AS DECIMAL(20, 0))) AS digest FROM {table}"


def unlike(found: Mapping[str, Answer], expected: Mapping[str, Answer]) -> dict[str, tuple[Answer, Answer]]:
    assert found.keys() == expected.keys()
    return {name: (found[name], expected[name]) for name in expected if found[name] != expected[name]}


@contextlib.contextmanager
def plain_views(spark: SparkSession, pin: Pin) -> Iterator[None]:
    for table in TABLES:
        path = pin.folder / f"{table}.parquet"
        # Spark itself would run a job to find the schema.
        schema = spark.createDataFrame(pq.read_schema(path).empty_table()).schema
        spark.read.schema(schema).parquet(str(path)).createOrReplaceTempView(table)
    yield
    for table in TABLES:
        spark.catalog.dropTempView(table)


@contextlib.contextmanager
def plain_in_duckdb(pin: Pin) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table in TABLES:
            connection.execute(f"CREATE VIEW {table} AS FROM '{pin.folder / table}.parquet'")
        yield connection


@pytest.fixture
def ways(story: Story, label: str, lane_count: Callable[[int, int], int]) -> dict[str, SparkCatalog]:
    """Return all ways in slow runs, and otherwise the one way over which this version is read."""
    if lane_count(0, 1):
        return story.ways
    name = ("storage", "daemon")[PINS.index(label) // 2]
    return {name: story.ways[name]}


Chosen = Callable[[Iterable[str], int], list[str]]


@pytest.fixture
def chosen(label: str, lane_count: Callable[[int, int], int]) -> Chosen:
    """Return `chosen(names, step)`, which gives all names in slow runs.

    Otherwise it gives each `step`th, others at each version.
    """
    begin = PINS.index(label)
    return lambda names, step: list(names)[lane_count(begin % step, 0) :: lane_count(step, 1)]


@pytest.mark.parametrize("label", PINS)
def test_spark_answers_as_over_plain_files(
    story: Story,
    ways: dict[str, SparkCatalog],
    label: str,
    chosen: Chosen,
    lane_count: Callable[[int, int], int],
) -> None:
    """A short run asks Spark at the head. In the next test Spark reads at each version, as do DuckDB and Arrow."""
    if label != "head" and not lane_count(0, 1):
        pytest.skip("make slow LANE=spark_queries")
    spark, pin = story.spark, story.pins[label]
    texts = {name: pin.sql(QUERIES[name]) for name in chosen(QUERIES, 24)}
    texts["all rows"] = " UNION ALL ".join(
        all_rows(table) for table in (TABLES if label == "head" else chosen(TABLES, 3))
    )
    with plain_views(spark, pin):
        expected = asked(spark, texts)
        schemas = {table: spark.table(table).dtypes for table in TABLES}
    for lake in ways.values():
        with lake.at(pin.version) as reader:
            views = [view for space in SPACES for view in reader.temp_views(f"{space}.*")]
            assert sorted(views) == sorted(TABLES)
            assert {table: spark.table(table).dtypes for table in TABLES} == schemas
            assert unlike(asked(spark, texts), expected) == {}


@pytest.mark.parametrize("label", PINS)
def test_conditions_of_reads_are_those_of_queries(
    story: Story, ways: dict[str, SparkCatalog], label: str, chosen: Chosen
) -> None:
    """Conditions give the same rows in `read`, where they prune files, as in a query over the plain files.

    Arrow evaluates all conditions, and Spark some.
    """
    pin = story.pins[label]
    by_spark = chosen(WHERES, 8)
    pruned = 0
    with plain_in_duckdb(pin) as connection:
        for table, condition in WHERES.items():
            where = pin.sql(condition)
            expected = connection.sql(f"FROM {table} WHERE {where}").to_arrow_table()
            assert 0 < len(expected) < connection.table(table).shape[0]
            for lake in ways.values():
                scan = lake.catalog.at(pin.version).scan(TABLES[table], where)
                pruned += len(scan.skipped)
                same_rows(connection, scan.to_arrow(), expected)
                if table in by_spark:
                    with lake.at(pin.version) as reader:
                        found = reader.read(TABLES[table], where=where).toArrow()
                    same_rows(connection, found, expected)
    assert pruned >= len(WHERES)


def same_rows(connection: duckdb.DuckDBPyConnection, found: pa.Table, expected: pa.Table) -> None:
    assert found.column_names == expected.column_names
    connection.register("found", found)
    connection.register("expected", expected)
    assert connection.sql("FROM found EXCEPT ALL FROM expected").fetchall() == []
    assert connection.sql("FROM expected EXCEPT ALL FROM found").fetchall() == []


@pytest.mark.parametrize("label", PINS)
def test_arrow_reads_the_rows_that_plain_files_have(story: Story, label: str) -> None:
    pin = story.pins[label]
    with plain_in_duckdb(pin) as connection:
        for table, name in TABLES.items():
            expected = connection.table(table).to_arrow_table()
            for lake in story.ways.values():
                same_rows(connection, lake.catalog.read(name, at=pin.version), expected)


@pytest.mark.parametrize("label", PINS)
def test_duckdb_answers_as_over_plain_files(
    story: Story, ways: dict[str, SparkCatalog], label: str, chosen: Chosen
) -> None:
    """DuckDB answers as over plain files, through relations that stream rows of the catalog, without Spark."""
    pin = story.pins[label]
    texts = {name: pin.sql(QUERIES[name]) for name in chosen(QUERIES, 4)}
    with plain_in_duckdb(pin) as connection:
        expected = {name: by_duckdb(connection, text) for name, text in texts.items()}
    for lake in ways.values():
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            snapshot = lake.catalog.at(pin.version)
            for table, name in TABLES.items():
                snapshot.scan(name).to_duckdb(connection, table)
            found = {name: by_duckdb(connection, text) for name, text in texts.items()}
        assert unlike(found, expected) == {}


def test_the_queries_ask_something(story: Story) -> None:
    """Each query finds rows at each version, and most answers differ from those at the version before.

    Otherwise a reader that gave the head for every version, or nothing, would pass.
    """
    answers: dict[str, dict[str, Answer]] = {}
    for label, pin in story.pins.items():
        with plain_in_duckdb(pin) as connection:
            answers[label] = {name: by_duckdb(connection, pin.sql(text)) for name, text in QUERIES.items()}
        assert [name for name, answer in answers[label].items() if not answer.rows] == []
    for before, after in itertools.pairwise(PINS):
        same = [name for name in QUERIES if answers[before][name] == answers[after][name]]
        assert len(same) < len(QUERIES) / 2, f"{before} and {after}: {same}"


def test_the_catalog_is_whole(story: Story) -> None:
    for lake in story.ways.values():
        assert lake.catalog.admin.check().ok
