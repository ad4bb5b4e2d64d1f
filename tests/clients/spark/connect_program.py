"""Try a `SparkCatalog` on Spark Connect. `test_spark_connect.py` runs this program in a process of its own.

python connect_program.py FOLDER
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import alpheus
from alpheus.errors import InvalidInput
from alpheus.spark import SparkCatalog
from alpheus.spark.java import use_java

use_java()
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
spark: Any = SparkSession.builder.remote("local[1]").getOrCreate()
folder = Path(sys.argv[1])
catalog = alpheus.create((folder / "lake").as_uri())
catalog.create_namespace("s")
catalog.create_table("s.t", pa.table({"id": [1, 2], "x": ["a", "b"]}))
lake = SparkCatalog(spark, catalog)
assert lake.is_up()


def ids(name: str = "s.t") -> list[int]:
    found = sorted(row["id"] for row in lake.read(name).collect())
    assert found == sorted(catalog.read(name)["id"].to_pylist())
    return found


def stored() -> dict[Path, str]:
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*.parquet")
        if path.is_file()
    }


def refused(text: str) -> None:
    before = stored()
    with pytest.raises(PySparkException):
        spark.sql(text).collect()
    assert stored() == before, text


given = spark.createDataFrame([(9, "x")], "id BIGINT, x STRING")
assert ids() == [1, 2]

# A view of a table of one file.
view = lake.temp_view("s.t")
assert spark.sql(f"SELECT count(*) AS n FROM {view}").collect()[0]["n"] == 2
for statement in (
    f"INSERT OVERWRITE {view} VALUES (9, 'x')",
    f"INSERT INTO {view} VALUES (9, 'x')",
    f"TRUNCATE TABLE {view}",
    f"DELETE FROM {view} WHERE id = 1",
):
    refused(statement)
before = stored()
with pytest.raises(PySparkException):
    given.write.insertInto(view, overwrite=True)
assert stored() == before

# Verbs.
lake.append("s.t", given)
lake.update("s.t", {"x": "'p'"}, "id = 2")
lake.merge("s.t", spark.createDataFrame([(9, "y"), (10, "z")], "id BIGINT, x STRING"), on="id")
lake.delete("s.t", "id = 1")
assert ids() == [2, 9, 10]
assert lake.changes("s.t").count() > 4
lake.create_table("s.c", given)
lake.compact("s.t")
lake.overwrite("s.c", spark.createDataFrame([(5, "q")], "id BIGINT, x STRING"))
assert (ids(), ids("s.c")) == ([2, 9, 10], [5])

# The data source.
source = {**lake.source_options(), "table": "s.c"}
given.write.format("alpheus").options(**source).mode("append").save()
assert sorted(row["id"] for row in spark.read.format("alpheus").options(**source).load().collect()) == [5, 9]
new = lake.stream("s.t").writeStream.format("alpheus").options(**source)
new.option("checkpointLocation", str(folder / "checkpoint")).trigger(
    availableNow=True
).start().awaitTermination()
assert ids("s.c") == [2, 5, 9, 9, 10]
with pytest.raises(PySparkException, match="register a table in Spark's own catalog"):
    given.write.format("alpheus").options(**source).saveAsTable("registered")
assert not spark.catalog.tableExists("registered")
with pytest.raises(InvalidInput, match="Spark Connect runs the function of a batch in another process"):
    lake.write_stream("s.c", lake.stream("s.t"), str(folder / "other"))
assert catalog.admin.check().ok
lake.close()
spark.stop()
print("all of it")
