"""`SparkCatalog` reads tables with delete predicates, conditions and pruned files as pyarrow does.

The frames are then used in many ways.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.errors import Corrupt, InvalidInput
from alpheus.rows.manifest_files import FileLists
from alpheus.spark import SparkCatalog
from alpheus.spark.tables import scan
from alpheus.sync.portal import run

pytestmark = SPARK_MARKS

NAN = float("nan")


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[SparkCatalog]:
    """Yield a lake in a folder whose name Hadoop could take for a pattern, or for an encoded name."""
    folder = tmp_path / "la[1]ke {a,b} %20é"
    folder.mkdir()
    with alpheus.create(folder.as_uri()) as catalog:
        catalog.create_namespace("s")
        yield SparkCatalog(spark, catalog)


def in_files(lake: SparkCatalog, *parts: list[dict[str, Any]], schema: pa.Schema | None = None) -> None:
    """Create a table of one file for each part."""
    with lake.catalog.transaction() as tx:
        tx.create_table("s.t", schema or pa.Table.from_pylist(parts[0]).schema)
        for part in parts:
            tx.append("s.t", part)


def ids(df: DataFrame) -> list[int]:
    return sorted(row[0] for row in df.select("id").collect())


def scans(df: DataFrame) -> int:
    return str(df._jdf.queryExecution().executedPlan().toString()).count("FileScan parquet")


def rows_of(df: DataFrame) -> list[str]:
    return sorted(str(sorted(row.asDict(recursive=True).items())) for row in df.collect())


def as_arrow_has_it(lake: SparkCatalog, **options: Any) -> list[str]:
    return sorted(str(sorted(row.items())) for row in lake.catalog.read("s.t", **options).to_pylist())


def test_one_frame_queried_in_many_ways(lake: SparkCatalog) -> None:
    """One frame can be queried in many ways. A reader that prunes by pushed-down filters would fail each of them."""
    in_files(lake, *[[{"id": 10 * part + n, "v": part} for n in range(10)] for part in range(4)])
    df = lake.read("s.t", where="id >= 10")
    assert len(df.inputFiles()) == 3
    assert (df.where("id = 12").count(), df.count()) == (1, 30)
    assert ids(df.where("id < 12").union(df.where("id > 37"))) == [10, 11, 38, 39]
    left, right = df.where("id < 20").alias("a"), df.where("id % 10 = 3").alias("b")
    assert left.join(right, f.col("a.id") == f.col("b.id")).count() == 1
    assert left.join(right, f.col("a.v") != f.col("b.v")).count() == 20
    df.createOrReplaceTempView("reads_v")
    for wanted in ((11, 12), (5, 25, 35)):
        found = lake.spark.sql(f"SELECT id FROM reads_v WHERE id IN ({', '.join(map(str, wanted))})")
        assert ids(found) == [number for number in wanted if number >= 10]
    assert scans(lake.read("s.t")) == 1


def test_conditions_mean_what_they_say(lake: SparkCatalog) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 0, "x": 1.0, "k": "a"},
        {"id": 1, "x": NAN, "k": None},
        {"id": 2, "x": None, "k": "b"},
        {"id": 3, "x": -0.0, "k": "A"},
    ]
    in_files(lake, rows[:2], rows[2:])
    wheres = {
        "NOT k = 'a'": [2, 3], "k NOT IN ('a', NULL)": [], "x > 0.5": [0, 1], "x = 0": [3], "x <=> NULL": [2],
        "NOT (x < 5)": [1], "k IS NULL OR x = CAST('NaN' AS DOUBLE)": [1], "FALSE": [],
    }  # fmt: skip
    frames = [lake.read("s.t", where=where).select("id", f.lit(where).alias("w")) for where in wheres]
    together = frames[0]
    for frame in frames[1:]:
        together = together.union(frame)
    found: dict[str, list[int]] = {where: [] for where in wheres}
    for row in together.orderBy("id").collect():
        found[row.w].append(row.id)
    assert found == wheres
    for nothing in (lake.read("s.t", where="FALSE"), lake.read("s.t", where="id > 100", columns=["k", "id"])):
        assert (nothing.count(), len(nothing.inputFiles())) == (0, 0)
    assert nothing.schema.simpleString() == "struct<k:string,id:bigint>"
    with pytest.raises(InvalidInput, match="there is no column"):
        lake.read("s.t", where="nothing = 1")


def test_filters_of_a_frame_find_nan_and_both_zeros(lake: SparkCatalog) -> None:
    """Filters of a frame find NaN and both zeros.

    Spark has NaN above all numbers, and takes -0.0 for 0.0. Statistics of other writers omit NaN, and dictionaries tell
    the zeros apart. A filter of the frame, unlike one of `read`, goes to Parquet unchanged.
    """
    inner = pa.struct([("x", pa.float32()), ("n", pa.int32())])
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("at", inner)])
    values = [[1.0, 2.0, NAN], [-0.0, -0.0], [0.0, 0.0], [5.0, 6.0]]
    rows: list[list[dict[str, Any]]] = [
        [{"id": 10 * n + m, "x": x, "at": {"x": x, "n": n}} for m, x in enumerate(some)]
        for n, some in enumerate(values)
    ]
    in_files(lake, *rows, schema=schema)
    df = lake.read("s.t")
    expected = {
        f"{name} {text}": found
        for name in ("x", "at.x")
        for text, found in {
            "> 7": [2], "= CAST('NaN' AS DOUBLE)": [2], "= 0.0D": [10, 11, 20, 21], "= -0.0D": [10, 11, 20, 21],
            ">= 0.0D AND id < 20": [0, 1, 2, 10, 11],
        }.items()
    }  # fmt: skip
    frames = [df.where(text).select("id", f.lit(text)) for text in expected]
    found: dict[str, list[int]] = {text: [] for text in expected}
    for number, text in functools.reduce(DataFrame.union, frames).orderBy("id").collect():
        found[text].append(number)
    assert found == expected
    pushed = str(df.where("at.n = 3 AND x > 5")._jdf.queryExecution().executedPlan().toString())
    assert "EqualTo(at.n,3)" in pushed
    assert "GreaterThan(x" not in pushed
    # Spark still skips files that have neither.
    plain = lake.read("s.t", where="id >= 30").where("x > 5.5")
    assert "GreaterThan(x,5.5)" in str(plain._jdf.queryExecution().executedPlan().toString())
    assert ids(plain) == [31]


def test_deleted_rows_stay_deleted_under_other_columns(lake: SparkCatalog) -> None:
    """Deleted rows stay deleted after columns are renamed or dropped, also inside structs.

    Rows stay if the predicate is NULL.
    """
    inner = pa.struct([("a", pa.int64()), ("b", pa.int32())])
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("gone", pa.string()),
            ("place", inner),
            ("whole", pa.struct([("z", pa.int64())])),
        ]
    )
    in_files(
        lake,
        [
            {"id": i, "gone": None if i % 4 == 0 else f"g{i}", "place": {"a": i, "b": i}, "whole": {"z": i}}
            for i in range(12)
        ],
        schema=schema,
    )
    catalog = lake.catalog
    catalog.append("s.t", [{"id": 20, "gone": "g1", "place": None, "whole": None}])
    before = catalog.version()
    for where in ("gone = 'g1' OR gone = 'g2'", "place.b = 3", "whole.z = 5", "NOT gone < 'g7' AND id < 9"):
        catalog.delete("s.t", where)
    catalog.append("s.t", [{"id": 21, "gone": "g1", "place": {"a": 3, "b": 3}, "whole": {"z": 5}}])
    left = [0, 4, 6, 8, 9, 10, 11, 21]
    assert ids(lake.read("s.t")) == left
    catalog.update_table("s.t", drop_columns=["gone", "whole", "place.b"], rename_columns={"id": "ID2"})
    catalog.update_table("s.t", add_columns={"gone": pa.string()}, retype_columns={})
    df = lake.read("s.t")
    assert df.columns == ["ID2", "place", "gone"]
    assert sorted((row.ID2, row.gone) for row in df.collect()) == [(number, None) for number in left]
    assert df.schema["place"].dataType.simpleString() == "struct<a:bigint>"
    assert rows_of(df) == as_arrow_has_it(lake)
    assert rows_of(lake.read("s.t", where="id2 > 8 AND place.a < 11")) == as_arrow_has_it(
        lake, where="id2 > 8 AND place.a < 11"
    )
    assert len(ids(lake.read("s.t", at=before))) == 13
    fed = sorted((row["_change_type"], row.ID2) for row in lake.changes("s.t", after=before).collect())
    assert fed == [("delete", number) for number in (1, 2, 3, 5, 7, 20)] + [("insert", 21)]


def test_names_that_other_columns_had(lake: SparkCatalog, lane_count: Callable[[int, int], int]) -> None:
    """Columns can have names that other columns had.

    Spark finds columns by id, but looks up a file's statistics by name, and forgets the ids of structs. A short run
    asks Spark every third condition.
    """

    def row(n: int) -> dict[str, Any]:
        part = {"x": n, "y": 100 + n, "deep": {"q": n, "r": -n}}
        return {
            "id": n,
            "a": n,
            "b": 100 + n,
            "c": n,
            "part": part,
            "l": [{"e": n, "g": None}, None],
            "none": None,
        }

    pair = pa.struct([("e", pa.int64()), ("g", pa.int64())])
    kinds = pa.Table.from_pylist([row(0)]).schema
    kinds = kinds.set(5, pa.field("l", pa.list_(pair))).set(6, pa.field("none", kinds.field("part").type))
    in_files(lake, [row(n) for n in range(3)], [row(n) for n in range(3, 6)], schema=kinds)
    catalog = lake.catalog
    for renames in (
        {"a": "was", "part.x": "was", "part.deep.q": "z", "l.element.e": "was", "none": "former"},
        {"b": "a", "part.y": "x", "part.deep": "low", "l.element.g": "e", "former.deep": "low"},
        {"was": "b", "part.was": "y", "l.element.was": "g", "part": "box"},
    ):
        catalog.update_table("s.t", rename_columns=renames)
    catalog.update_table("s.t", drop_columns=["c", "box.low.r"])
    catalog.update_table("s.t", add_columns={"C": pa.int64(), "box.low.r": pa.string(), "part": pa.int64()})
    new = {"a": 1, "b": 101, "C": 1, "box": {"x": 1, "y": 101, "low": {"z": 1, "r": "r"}}, "part": 1}
    catalog.append("s.t", [{"id": 9, "l": [{"e": 1, "g": 2}], **new}])
    assert rows_of(lake.read("s.t")) == as_arrow_has_it(lake)
    wheres = {
        "a = 101": [1], "b = 4": [4], "a > 50 AND b < 2": [0, 1], "box.x = 102": [2], "box.y IN (0, 5)": [0, 5],
        "c IS NULL": [0, 1, 2, 3, 4, 5], "c = 1": [9], "a = 1 OR b = 1": [1, 9], "box.low.z = 3": [3],
        "box.low.r = 'r'": [9], "part IS NULL AND id > 3": [4, 5], "former.low.q IS NOT NULL": [],
    }  # fmt: skip
    for where, expected in wheres.items():
        assert sorted(catalog.read("s.t", where=where)["id"].to_pylist()) == expected
    for where, expected in list(wheres.items())[:: lane_count(3, 1)]:
        assert ids(lake.read("s.t").where(where)) == expected, where
        assert ids(lake.read("s.t", where=where)) == expected, where
    selected = lake.read("s.t", where="id = 4").selectExpr(
        "box.x", "box.low.z", "box.low.r", "l.g", "former.low"
    )
    assert selected.collect() == [(104, 4, None, [4, None], None)]
    assert ids(lake.changes("s.t").where("a = 101 AND box.y = 1")) == [1]
    lake.update("s.t", {"C": "7"}, "b = 4")
    lake.delete("s.t", "box.x = 100", mode="rewrite")
    lake.delete("s.t", "a = 105")
    lake.merge("s.t", lake.spark.sql("SELECT 102L AS a, 8L AS c"), "a", unmatched="ignore")
    found = {row["id"]: row["C"] for row in catalog.read("s.t").to_pylist()}
    assert found == {1: None, 2: 8, 3: None, 4: 7, 9: 1}
    assert rows_of(lake.read("s.t")) == as_arrow_has_it(lake)


def test_a_data_file_that_is_gone_is_named(lake: SparkCatalog, tmp_path: Path) -> None:
    in_files(lake, [{"id": 1, "v": 1}, {"id": 3, "v": 3}], [{"id": 2, "v": 2}])
    lake.catalog.create_table("s.copy", pa.schema([("id", pa.int64()), ("v", pa.int64())]))
    before = lake.read("s.t")
    foreign = str(tmp_path / "foreign")
    before.write.parquet(foreign)
    other = lake.spark.read.parquet(foreign)
    table = lake.catalog.load_table("s.t").definition
    [victim, _] = FileLists(lake.storage, run).of(table.id, table.segments)
    (tmp_path / "la[1]ke {a,b} %20é" / victim.path).unlink()
    given = lake.spark.sql("SELECT 1L AS id, 5L AS v")

    def in_a_transaction() -> None:
        with lake.transaction() as tx:
            tx.read("s.t")

    attempts: list[Callable[[], object]] = [
        lambda: lake.read("s.t"),
        lambda: lake.at().read("s.t"),
        lambda: lake.at().temp_views("s.*"),
        lambda: lake.changes("s.t"),
        lambda: lake.update("s.t", {"v": "v + 1"}, "TRUE"),
        lambda: lake.delete("s.t", "v < 2", mode="rewrite"),
        lambda: lake.merge("s.t", given, "id"),
        lambda: lake.compact("s.t"),
        in_a_transaction,
    ]
    for attempt in attempts:
        with pytest.raises(Corrupt) as caught:
            attempt()
        assert (caught.value.kind, caught.value.path) == ("corrupt_manifest", victim.path)
        assert caught.value.message == (
            f"table s.t: {victim.path}: the data file is missing, manifest segment {table.segments[0].path} lists it"
        )
    # A verb that runs an earlier frame reports the file, too. A run by Spark alone raises Spark's error.
    with pytest.raises(Corrupt, match=victim.path):
        lake.append("s.copy", before)
    with pytest.raises(Exception, match=f"FILE_NOT_EXIST(?s:.*){victim.path}"):
        before.collect()
    for part in Path(foreign).glob("*.parquet"):
        part.unlink()
    with pytest.raises(Exception, match="FILE_NOT_EXIST") as strange:
        lake.append("s.copy", other)
    assert not isinstance(strange.value, Corrupt)
    assert len(lake.catalog.read("s.copy")) == 0


def test_a_footer_that_is_not_the_committed_one_is_named(lake: SparkCatalog, tmp_path: Path) -> None:
    """After a rename a plan reads a footer. Another file of the same size, rows and statistics has a different one."""
    in_files(lake, [{"id": 1, "v": 1}])
    lake.catalog.append("s.t", [{"id": 1, "v": 1}])
    table = lake.catalog.load_table("s.t").definition
    places = tmp_path / "la[1]ke {a,b} %20é"
    one, other = lake.lists.with_sequences(table.id, table.segments)
    first, second = (places / file.path for file, _ in (one, other))
    contents = first.read_bytes(), second.read_bytes()
    assert len(contents[0]) == len(contents[1])
    for path, data in zip((first, second), reversed(contents), strict=True):
        path.chmod(0o600)
        path.write_bytes(data)
    assert lake.read("s.t").count() == 2, "Spark's own reader compares no checksums"
    lake.catalog.update_table("s.t", rename_columns={"v": "w"})
    with pytest.raises(Corrupt, match="has a footer with the CRC-32") as caught:
        lake.read("s.t")
    assert caught.value.kind == "corrupt_manifest"
    found = {file.path: segment.path for segment, (file, _) in zip(table.segments, (one, other), strict=True)}
    assert caught.value.message.startswith(f"table s.t: {caught.value.path}: ")
    assert caught.value.message.endswith(f"manifest segment {found[caught.value.path]} lists it")
    report = lake.catalog.admin.check(footers=True)
    assert sorted(finding.path for finding in report.findings) == sorted(found)


@pytest.mark.parametrize(("appends", "scanned"), [(1, 2), (3, 4), (6, 2)])
def test_many_delete_predicates(
    lake: SparkCatalog, appends: int, scanned: int, lane_count: Callable[[int, int], int]
) -> None:
    """Many delete predicates need few scans: one for each age of files, or one for all if the ages are many."""
    if appends == 1 and not lane_count(0, 1):
        pytest.skip("make slow LANE=many_delete_predicates")
    schema = pa.schema([("id", pa.int64()), ("v", pa.float64())])
    lake.catalog.create_table("s.t", schema)
    per = 12 // appends
    for part in range(appends):
        with lake.catalog.transaction() as tx:
            for number in range(part * per, (part + 1) * per):
                tx.append("s.t", [{"id": number * 10 + n, "v": n / 2} for n in range(10)])
        lake.catalog.delete("s.t", f"id = {part * per * 10 + 3} OR v = {part % 4}.5")
    for number in range(appends, 12):
        lake.catalog.delete("s.t", f"id IN ({number * 10 + 7}, {number * 10 + 8})")
    lake.catalog.append("s.t", [{"id": 3, "v": 0.5}])
    with mock.patch.object(scan, "GROUPS_MAX", 4):
        df = lake.read("s.t")
        assert scans(df) == scanned
        assert rows_of(df) == as_arrow_has_it(lake)
        where = "id BETWEEN 25 AND 77"
        assert rows_of(lake.read("s.t", where=where)) == as_arrow_has_it(lake, where=where)


def test_readers_views_and_transactions(lake: SparkCatalog) -> None:
    in_files(lake, [{"id": n} for n in range(5)], [{"id": n} for n in range(5, 10)])
    with lake.at() as reader:
        lake.catalog.delete("s.t", "id = 1 OR id >= 5")
        assert reader.temp_views("s.*", where="id < 7") == ["t"]
        assert ids(lake.spark.table("t")) == [0, 1, 2, 3, 4, 5, 6]
        assert ids(reader.read("s.t", where="id > 3")) == [4, 5, 6, 7, 8, 9]
    lake.temp_view("s.t", "reads_t", where="id <> 2")
    assert ids(lake.spark.table("reads_t")) == [0, 3, 4]
    with lake.transaction() as tx:
        tx.catalog.append("s.t", [{"id": 20}, {"id": 21}])
        tx.catalog.delete("s.t", "id = 0 OR id = 21")
        tx.catalog.delete("s.t", "id = 3", mode="rewrite")
        assert ids(tx.read("s.t")) == [2, 4, 20]
        assert ids(tx.read("s.t", where="id > 2")) == [4, 20]
    assert ids(lake.read("s.t")) == [2, 4, 20]


def test_explain_tells_what_is_read_and_why(lake: SparkCatalog) -> None:
    in_files(lake, [{"id": 1}], [{"id": 5}], [{"id": 9}])
    at = lake.catalog.version()
    lake.catalog.delete("s.t", "id BETWEEN 5 AND 6")
    text = lake.explain("s.t", where="id >= 5")
    assert "read 1 of " in text
    assert "where `id` >= 5" in text
    assert lake.explain("s.t", where="id >= 5", at=at).splitlines()[1].startswith("read 2 of 3 files")
    assert lake.explain("s.t", at=at).startswith("all rows\nread 3 of 3 files, 3 of 3 rows")


def test_days_that_the_calendar_left_out(lake: SparkCatalog, lane_count: Callable[[int, int], int]) -> None:
    """Days that the calendar left out, and days before them, are days like any other, in every zone of the session.

    Conditions, filters of a frame and deletes are tried. A short run asks Spark every fifth condition.
    """
    days = [
        dt.date(1000, 2, 28),
        *(dt.date(1582, 10, n) for n in (4, 5, 10, 14, 15, 20)),
        dt.date(1883, 11, 18),
    ]
    moments = [dt.datetime(day.year, day.month, day.day, 0, 30, 1, 7) for day in days]
    schema = pa.schema(
        [("id", pa.int64()), ("d", pa.date32()), ("t", pa.timestamp("us", "UTC")), ("n", pa.timestamp("us"))]
    )
    rows = [
        {"id": number, "d": day, "t": moment.replace(tzinfo=dt.UTC), "n": moment}
        for number, (day, moment) in enumerate(zip(days, moments, strict=True))
    ]
    # Each file gets a row for which no condition is TRUE, so that statistics do not decide the question.
    in_files(lake, *[[row, row | {"id": 100}] for row in rows], schema=schema)
    in_arrow = {
        f"id < 50 AND {condition}": row["id"]
        for row, day, moment in zip(rows, days, moments, strict=True)
        for condition in (f"d = DATE '{day}'", f"t = TIMESTAMP '{moment}Z'", f"n = TIMESTAMP '{moment}'")
    }
    assert {where: lake.catalog.read("s.t", where=where)["id"].to_pylist() for where in in_arrow} == {
        where: [number] for where, number in in_arrow.items()
    }
    df = lake.read("s.t")
    # In a short run one condition of most days, of all types in turn.
    asked = dict(list(in_arrow.items())[:: lane_count(5, 1)])
    for zone in ("America/Los_Angeles", "UTC"):
        lake.spark.conf.set("spark.sql.session.timeZone", zone)
        frames = [lake.read("s.t", where=where).select("id", f.lit(where)) for where in asked]
        for where in asked:
            as_spark_has_it = where.replace("n = TIMESTAMP", "n = TIMESTAMP_NTZ")
            frames.append(df.where(as_spark_has_it).select("id", f.lit(where)))
        found: dict[str, list[int]] = {}
        for number, where in functools.reduce(DataFrame.union, frames).collect():
            found.setdefault(where, []).append(number)
        assert found == {where: [number, number] for where, number in asked.items()}
    gone = lake.delete("s.t", "id < 50 AND d = DATE '1582-10-10'", mode="rewrite")
    assert gone.rows_removed == 1
    lake.delete("s.t", "id < 50 AND d > DATE '1582-10-04' AND d < DATE '1582-10-15'")
    expected = sorted(
        row["id"] for row in rows if not dt.date(1582, 10, 4) < row["d"] < dt.date(1582, 10, 15)
    )
    assert [number for number in ids(lake.read("s.t")) if number < 50] == expected
    assert rows_of(lake.read("s.t", columns=["id", "d", "n"])) == as_arrow_has_it(
        lake, columns=["id", "d", "n"]
    )
    lake.spark.conf.set("spark.sql.datetime.java8API.enabled", "false")
    with pytest.raises(InvalidInput, match="java8API"):
        lake.read("s.t")
    lake.spark.conf.set("spark.sql.datetime.java8API.enabled", "true")
