"""Frames over exact lists of files, which Spark's own file index takes from a cache that is filled here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.java_gateway import JavaPackage
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from spark_marks import SPARK_MARKS

from alpheus.spark.files import file_index
from alpheus_journal.errors import InvalidInput

pytestmark = SPARK_MARKS

SCHEMA = t.StructType([t.StructField("id", t.LongType())])


def write(folder: Path, name: str, *ids: int) -> tuple[str, int]:
    """Write a Parquet file, and return it as the index takes it: path and size in bytes."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": [*ids]}), path)
    return f"file://{path}", path.stat().st_size


def read(spark: SparkSession, *files: tuple[str, int]) -> DataFrame:
    return file_index.read_listed(spark, files, SCHEMA, {}).select("*")


def ids_of(df: DataFrame) -> list[int]:
    return sorted(row.id for row in df.collect())


def test_files_of_any_name_are_read(spark: SparkSession, tmp_path: Path) -> None:
    names = [
        "a b.parquet",
        "100%.parquet",
        "50%20.parquet",
        "день=1/x.parquet",
        "n" * 240,
        "[a]{b}?*.parquet",
    ]
    files = [write(tmp_path, name, place) for place, name in enumerate(names)]
    assert ids_of(read(spark, *files)) == [*range(len(names))]
    assert ids_of(read(spark, *files[1:3])) == [1, 2]


def test_lists_in_one_folder_stay_apart(spark: SparkSession, tmp_path: Path) -> None:
    """Spark compares indexes by their roots alone, and reads equal ones once."""
    one, two, three = (write(tmp_path, f"{number}.parquet", number) for number in (1, 2, 3))
    first, second = read(spark, one, two), read(spark, two, three)
    assert ids_of(first.union(second)) == [1, 2, 2, 3]
    assert ids_of(first.join(second, "id")) == [2]
    cached = first.cache()
    assert ids_of(cached) == [1, 2]
    assert ids_of(read(spark, one, three)) == [1, 3], "another list must not be read from the cached frame"
    cached.unpersist()
    assert first.sameSemantics(read(spark, two, one)), "the same files in another order are the same rows"


def test_the_calls_of_a_plan_do_not_grow_with_its_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = spark._jvm._gateway_client  # type: ignore[union-attr]
    send = client.send_command
    calls = 0

    def count(*args: object, **options: object) -> object:
        nonlocal calls
        calls += not str(args[0]).startswith("m\nd")  # Python lets go of an object at any time
        return send(*args, **options)

    def plan(number: int) -> int:
        nonlocal calls
        calls = 0
        read(spark, *((f"file://{tmp_path}/{place}.parquet", 1 << 33) for place in range(number)))
        return calls

    plan(1)
    monkeypatch.setattr(client, "send_command", count)
    assert plan(1) == plan(2_000) > 0


def test_a_file_named_twice_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    file = write(tmp_path, "one.parquet", 1)
    with pytest.raises(InvalidInput, match="other files than the catalog"):
        read(spark, file, file)


class Moved:
    """The JVM of a Spark in which one class has another place, or its constructor has one more argument."""

    def __init__(self, view: Any, name: str, *, is_gone: bool) -> None:
        self._view = view
        self._name = name
        self._is_gone = is_gone

    def __getattr__(self, name: str) -> Any:
        if name == self._name and self._is_gone:
            return self._view.a_package_that_spark_lacks
        found = getattr(self._view, name)
        if name == self._name:
            return lambda *arguments: found(*arguments, None)
        return Moved(found, self._name, is_gone=self._is_gone) if isinstance(found, JavaPackage) else found


@pytest.mark.parametrize(
    ("name", "is_gone"),
    [
        ("SharedInMemoryCache", True),
        ("SharedInMemoryCache", False),
        ("InMemoryFileIndex", True),
        ("InMemoryFileIndex", False),
        ("HadoopFsRelation", True),
        ("HadoopFsRelation", False),
        ("ParquetFileFormat", True),
        ("LogicalRelation$", True),
        ("Dataset", True),
    ],
)
def test_a_spark_that_moved_its_classes_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_gone: bool
) -> None:
    file = write(tmp_path, "one.parquet", 1)
    monkeypatch.setattr(spark, "_jvm", Moved(spark._jvm, name, is_gone=is_gone))
    with pytest.raises(InvalidInput, match=f"Spark {spark.version} does not take a list of files") as caught:
        read(spark, file)
    assert (caught.value.kind, caught.value.hint) == (
        "not_supported",
        "use PySpark 4.1 to 4.3 for catalogs on object storage",
    )
    assert "\n" not in caught.value.message
    monkeypatch.undo()
    assert ids_of(read(spark, file)) == [1]
