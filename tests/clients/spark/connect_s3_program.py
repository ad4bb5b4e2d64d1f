"""Use a catalog on S3 over Spark Connect. `test_spark_s3_connect.py` runs this program in a process of its own.

python connect_s3_program.py PORT BUCKET JARS FILES...

A proxy in front of the server at PORT counts requests. For each number of FILES the program reads a table of so many
files, and prints a line of JSON: the requests of the plan and of the read by kind, and the seconds of both.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from store_proxy import StoreProxy

import alpheus
from alpheus.spark import SparkCatalog
from alpheus.spark.files.file_scan import LISTING_SETTING
from alpheus.spark.java import use_java

port, bucket, jars, *counts = sys.argv[1:]
use_java()
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def count_kinds(store: StoreProxy) -> dict[str, int]:
    """Return the requests for data files since the last call by verb, and all others."""
    found: dict[str, int] = {}
    for (verb, place), count in sorted(store.count_kinds().items()):
        name = verb if place == "data" else "other"
        found[name] = found.get(name, 0) + count
    store.clear()
    return found


def read(store: StoreProxy, lake: SparkCatalog, files: int) -> None:
    """Read a table of so many files, each with two rows."""
    name = f"s.t{files}"
    rows = pa.table({"id": range(2 * files), "k": [number // 2 for number in range(2 * files)]})
    lake.catalog.create_table(name, rows, partition_by=["k"])
    store.clear()
    started = time.monotonic()
    df = lake.read(name)
    assert df.columns == ["id", "k"]
    planned, requests = time.monotonic() - started, count_kinds(store)
    found = sorted((row["id"], row["k"]) for row in df.collect())
    assert found == [(number, number // 2) for number in range(2 * files)]
    line = {
        "files": files,
        "plan": requests,
        "read": count_kinds(store),
        "plan_seconds": round(planned, 2),
        "seconds": round(time.monotonic() - started, 2),
    }
    print(json.dumps(line), flush=True)


def change(lake: SparkCatalog) -> None:
    """Try the verbs, and compare the rows as Spark and the library read them."""
    spark = lake.spark
    lake.create_table("s.t", spark.range(0, 20, numPartitions=2).selectExpr("id", "'a' AS x"))
    lake.append("s.t", spark.createDataFrame([(20, "b")], "id BIGINT, x STRING"))
    lake.update("s.t", {"x": "'p'"}, "id = 2")
    lake.merge("s.t", spark.createDataFrame([(3, "y"), (21, "z")], "id BIGINT, x STRING"), on="id")
    lake.delete("s.t", "id = 1")
    lake.compact("s.t")
    expected = {number: "a" for number in range(20) if number != 1} | {2: "p", 3: "y", 20: "b", 21: "z"}
    assert {row["id"]: row["x"] for row in lake.read("s.t").collect()} == expected
    assert {row["id"]: row["x"] for row in lake.catalog.read("s.t").to_pylist()} == expected
    assert [row["x"] for row in lake.read("s.t", where="id = 20").collect()] == ["b"]


with StoreProxy(int(port)) as store:
    settings = {"spark.jars": jars, "spark.driver.memory": "1g", "spark.ui.enabled": "false"}
    builder: Any = SparkSession.builder.remote("local[2]")
    spark: Any = builder.config(map=settings).getOrCreate()
    with alpheus.create(f"s3://{bucket}/connect?endpoint_url={store.endpoint}") as catalog:
        catalog.create_namespace("s")
        lake = SparkCatalog(spark, catalog, lease=False)
        assert int(spark.conf.get(LISTING_SETTING)) == 32, "executors list the files of large tables"
        change(lake)
        for files in counts:
            read(store, lake, int(files))
        assert catalog.admin.check().ok
        lake.close()
    spark.stop()
print("all of it")
