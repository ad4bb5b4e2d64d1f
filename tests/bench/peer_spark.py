"""The driver program of bench_delta.py: a Spark session with one of two systems for tables.

    peer_spark.py alpheus DAEMON_ADDRESS DIRECTORY JARS
    peer_spark.py delta TABLES DIRECTORY JARS [S3_ENDPOINT]

TABLES is the folder of Delta's tables, or with S3_ENDPOINT a place s3a://... . JARS are paths with commas between. The
program runs in the environment of .ci/delta, with this project's packages on PYTHONPATH. Both systems have the same
session, except for the settings that their manuals require. For commands and answers see `measured.answer_commands`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pyspark
from measured import answer_commands
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from alpheus.spark import SparkCatalog, session

LOOK_SECONDS = 0.002
"""The interval at which a peer's folder is checked for a version."""
ARRIVAL_SECONDS_MAX = 30.0


class Lake(Protocol):
    """The measured operations, by means of one system. Versions are the system's own numbers."""

    def create(self, name: str, df: DataFrame) -> None: ...

    def append(self, name: str, df: DataFrame) -> None: ...

    def merge(self, name: str, df: DataFrame) -> None: ...

    def version(self, name: str) -> int: ...

    def read(self, name: str, version: int | None = None) -> DataFrame: ...

    def stream(self, source: str, target: str, checkpoint: str) -> StreamingQuery: ...

    def arrivals(self, target: str) -> Callable[[], None]:
        """Return a function. Each call of it waits for the next version of the table from now on."""


class Alpheus:
    def __init__(self, spark: SparkSession, address: str) -> None:
        import alpheus

        self._catalog = alpheus.connect(f"grpc://{address}")
        self._catalog.create_namespace("bench", exist_ok=True)
        self._lake = SparkCatalog(spark, self._catalog)

    def create(self, name: str, df: DataFrame) -> None:
        self._lake.create_table(f"bench.{name}", df)

    def append(self, name: str, df: DataFrame) -> None:
        self._lake.append(f"bench.{name}", df)

    def merge(self, name: str, df: DataFrame) -> None:
        self._lake.merge(f"bench.{name}", df, on="id")

    def version(self, name: str) -> int:
        return self._catalog.version()

    def read(self, name: str, version: int | None = None) -> DataFrame:
        return self._lake.read(f"bench.{name}", at=version)

    def stream(self, source: str, target: str, checkpoint: str) -> StreamingQuery:
        return self._lake.write_stream(f"bench.{target}", self._lake.stream(f"bench.{source}"), checkpoint)

    def arrivals(self, target: str) -> Callable[[], None]:
        names = f"bench.{target}"
        events = iter(self._catalog.events(after=self._catalog.version(), names=names, follow=True))

        def wait() -> None:
            next(events)

        return wait


class Delta:
    def __init__(self, spark: SparkSession, tables: str) -> None:
        self._spark, self._tables = spark, tables

    def _path(self, name: str) -> str:
        return f"{self._tables}/{name}"

    def create(self, name: str, df: DataFrame) -> None:
        writer = df.write.format("delta")
        if name.endswith("_vectors"):
            writer = writer.option("delta.enableDeletionVectors", "true")
        writer.save(self._path(name))

    def append(self, name: str, df: DataFrame) -> None:
        df.write.format("delta").mode("append").save(self._path(name))

    def merge(self, name: str, df: DataFrame) -> None:
        from delta.tables import DeltaTable

        table = DeltaTable.forPath(self._spark, self._path(name)).alias("t")
        merged = table.merge(df.alias("s"), "t.id = s.id").whenMatchedUpdateAll().whenNotMatchedInsertAll()
        merged.execute()

    def version(self, name: str) -> int:
        from delta.tables import DeltaTable

        return int(DeltaTable.forPath(self._spark, self._path(name)).history(1).collect()[0]["version"])

    def read(self, name: str, version: int | None = None) -> DataFrame:
        reader = self._spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(self._path(name))

    def stream(self, source: str, target: str, checkpoint: str) -> StreamingQuery:
        rows = self._spark.readStream.format("delta").load(self._path(source))
        writer = rows.writeStream.format("delta").option("checkpointLocation", checkpoint)
        return writer.start(self._path(target))

    def arrivals(self, target: str) -> Callable[[], None]:
        log, number = Path(self._path(target)) / "_delta_log", self.version(target)

        def wait() -> None:
            nonlocal number
            number += 1
            deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
            while not (log / f"{number:020d}.json").exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"version {number} of {target} did not come")
                time.sleep(LOOK_SECONDS)

        return wait


class Driver:
    """Executes commands: {"do": name of a method, and its arguments}."""

    def __init__(self, spark: SparkSession, lake: Lake, directory: Path) -> None:
        self._spark, self._lake, self._directory = spark, lake, directory
        self._query: StreamingQuery | None = None
        self._sent = 0

    def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self, command.pop("do"))(**command) or {}
        return answer

    def about(self) -> dict[str, Any]:
        return {"pyspark": pyspark.__version__, "pid": os.getpid()}

    def create(self, name: str, rows: int, files: int) -> None:
        self._lake.create(name, self._rows(0, rows, files))

    def append(self, name: str, rows: int, count: int) -> dict[str, Any]:
        """Return the seconds of each of `count` appends of `rows` rows, in one file each."""
        spent = []
        for _ in range(count):
            df = self._rows(self._sent, rows, 1)
            self._sent += rows
            spent.append(_seconds(lambda df=df: self._lake.append(name, df)))
        return {"seconds": spent}

    def merge(self, name: str, rows: int, every: int, number: int) -> dict[str, Any]:
        """Change one row in `every` of a table of `rows` rows."""
        keys = self._spark.range(number, rows, every, 2).selectExpr(
            "id", "-1L AS customer", f"{number}.5D AS v", "'new' AS note"
        )
        return {"seconds": [_seconds(lambda: self._lake.merge(name, keys))]}

    def version(self, name: str) -> dict[str, Any]:
        return {"version": self._lake.version(name)}

    def total(self, name: str, version: int | None) -> dict[str, Any]:
        """Read one column at a version: make the frame and run the query."""
        found: list[Any] = []

        def read() -> None:
            df = self._lake.read(name, version)
            found.extend(df.agg(f.count("*"), f.sum("v"), f.sum("customer")).collect())

        return {"seconds": [_seconds(read)], "rows": found[0][0], "sums": [found[0][1], found[0][2]]}

    def stream(self, name: str, target: str, count: int, warm_up: int) -> dict[str, Any]:
        """Return the seconds from the answer of an append to the arrival of its row downstream, one after the other."""
        wait = self._lake.arrivals(target)
        query = self._lake.stream(name, target, (self._directory / f"checkpoint-{target}").as_uri())
        spent = []
        try:
            wait()  # for the rows that the source already had
            for _ in range(count + warm_up):
                with ThreadPoolExecutor(1) as watcher:
                    arrival = watcher.submit(lambda: (wait(), time.perf_counter())[1])
                    self._lake.append(name, self._rows(self._sent, 1, 1))
                    written = time.perf_counter()
                    spent.append(arrival.result() - written)
                self._sent += 1
        finally:
            query.stop()
        return {"seconds": spent[warm_up:]}

    def _rows(self, first: int, count: int, files: int) -> DataFrame:
        made = self._spark.range(first, first + count, 1, files)
        return made.selectExpr(
            "id", "id % 10007 AS customer", "pmod(hash(id), 1000000) / 100.0D AS v",
            "concat('order ', hex(xxhash64(id))) AS note",
        )  # fmt: skip


def _seconds(operation: Callable[[], object]) -> float:
    started = time.perf_counter()
    operation()
    return time.perf_counter() - started


def main(system: str, place: str, directory: Path, jars: str, endpoint: str = "") -> int:
    settings = {"spark.local.dir": str(directory / "spark")}
    if jars:
        settings["spark.jars"] = jars
    if system == "delta":
        settings |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
        if endpoint:  # the credentials come from the environment, as Alpheus' do
            settings |= {
                "spark.hadoop.fs.s3a.endpoint": endpoint,
                "spark.hadoop.fs.s3a.endpoint.region": os.environ["AWS_DEFAULT_REGION"],
                "spark.hadoop.fs.s3a.path.style.access": "true",
                "spark.hadoop.fs.s3a.aws.credentials.provider": (
                    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
                ),
            }
    spark = session(f"bench {system}", settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    lake: Lake = Alpheus(spark, place) if system == "alpheus" else Delta(spark, place)
    return answer_commands(Driver(spark, lake, directory).handle)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:]))
