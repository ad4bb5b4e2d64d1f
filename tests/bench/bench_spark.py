"""The overhead of the catalog in Spark: scans, appends, a stream of small appends and long lists of files.

    make bench BENCH=spark                                    everything, about fifteen minutes, 4 GiB of disk
    make bench BENCH=spark ARGS="--only scan --rounds 3"      scan, append, stream, files
    make bench BENCH=spark ARGS="--small"                     a short run with a hundredth of the rows

Each part is compared with Spark's own Parquet in the same session. One driver runs with `local[2]`, and the daemon is a
separate process with fsync on. All files are on one local disk, in the page cache. After warm-up rounds, a round runs
every arm once in random order, and ratios are of medians. CPU is that of this process, the JVM and the daemon together.
The session has the settings of a SparkCatalog for Spark alone too. One of them lists up to 100,000 files without a job,
which makes Spark alone faster than its default. The plot of the stream is written to tests/bench/stream_cost.svg.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyspark
from log_plot import log_plot
from peers import alpheus_daemon
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from spark_cost import HEADINGS, Meter, compare, load, machine, verdict

import alpheus
from alpheus.models import Table
from alpheus.spark import SparkCatalog, session
from alpheus.sync.portal import run
from alpheus_journal import format as fmt
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.model.definitions import Segment
from alpheus_journal.tables.columns import encode_bound
from alpheus_journal.tables.manifest import segment_of

HERE = Path(__file__).resolve().parent
SCAN_RATIO_MAX, APPEND_RATIO_MAX, FRAME_SECONDS_MAX = 1.15, 1.2, 2.0
FLAT_MAX = 1.2
"""The most that the median of a stream's last hundred appends may be, relative to the first hundred."""
FILES, SCAN_ROWS, APPEND_ROWS = 64, 1 << 24, 1 << 22
STREAM_BATCHES, STREAM_WARM_UP, WINDOW = 1_000, 60, 100
MANY_FILES, SEGMENT_FILES = 10_000, 1_000
SINK = "Spark's Parquet sink"

COLUMNS = (
    "id",
    "id % 100003 AS customer",
    "(pmod(hash(id), 1000000) / 100.0D) AS v",
    "elt(1 + pmod(hash(id, 1), 5), 'AT', 'DE', 'FR', 'PL', 'SE') AS country",
    "timestamp_micros(1700000000000000 + id * 1000) AS at",
    "concat('order ', hex(xxhash64(id))) AS note",
    "pmod(hash(id, 2), 3) = 0 AS paid",
)


class Bench(NamedTuple):
    """The objects that a part works with."""

    lake: SparkCatalog
    directory: Path
    meter: Meter
    rounds: int
    warm_up: int
    scale: int
    sink_batches: int
    plot: Path

    @property
    def spark(self) -> SparkSession:
        return self.lake.spark


def rows(spark: SparkSession, count: int, parts: int) -> DataFrame:
    """Return rows of seven columns, 76 bytes a row in Parquet. Ids ascend from one part to the next."""
    return spark.range(0, count, 1, parts).selectExpr(*COLUMNS)


def to_nowhere(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


# --- scans -----------------------------------------------------------------------------------------


def scan(bench: Bench) -> bool:
    lake, spark, count = bench.lake, bench.spark, SCAN_ROWS // bench.scale
    lake.create_table("bench.scan", rows(spark, count, FILES))
    whole = lake.read("bench.scan")
    paths, schema = whole.inputFiles(), whole.schema
    size = sum(Path(path.removeprefix("file://")).stat().st_size for path in paths)
    print(f"\n{len(paths)} files, {count:,} rows, {size / 1e9:.2f} GB; {load()}\n{HEADINGS}")
    low = count // 2 + 1_000
    one = f"id BETWEEN {low} AND {low + 4_999}"
    queries: dict[str, tuple[Callable[[DataFrame], object], str | None]] = {
        "count": (lambda df: df.count(), None),
        "one column": (lambda df: df.agg(f.sum("v")).collect(), None),
        "5,000 rows in one file": (lambda df: df.agg(f.count("*"), f.sum("v")).collect(), one),
        "all columns": (to_nowhere, None),
    }
    results = []
    for what, (query, where) in queries.items():
        costs = compare(
            what,
            {
                "Spark alone": lambda q=query, w=where: q(filtered(spark.read.parquet(*paths), w)),
                "Spark alone, given the schema": lambda q=query, w=where: q(
                    filtered(spark.read.schema(schema).parquet(*paths), w)
                ),
                "Alpheus": lambda q=query, w=where: q(lake.read("bench.scan", where=w)),
            },
            rounds=bench.rounds,
            warm_up=bench.warm_up,
            meter=bench.meter,
        )
        results.append((what, costs))
    print(f"{load()}")
    met = [
        verdict(f"scan, {what}", costs["Alpheus"], costs["Spark alone"], SCAN_RATIO_MAX)
        for what, costs in results
    ]
    return all(met)


def filtered(df: DataFrame, where: str | None) -> DataFrame:
    return df if where is None else df.where(where)


# --- appends ---------------------------------------------------------------------------------------


def append(bench: Bench) -> bool:
    lake, count = bench.lake, APPEND_ROWS // bench.scale
    df = rows(bench.spark, count, 4)
    lake.create_table("bench.append", df.schema)
    bare = bench.directory / "bare"

    def clean() -> None:
        shutil.rmtree(bare, ignore_errors=True)
        shutil.rmtree(bench.directory / "alpheus" / "catalog" / "data" / table.id, ignore_errors=True)

    table = lake.catalog.load_table("bench.append")
    print(f"\nappends of {count:,} rows in 4 files; {load()}\n{HEADINGS}")
    costs = compare(
        "append",
        {
            "Spark alone": lambda: df.write.parquet(bare.as_uri()),
            "Spark alone, files synced": lambda: synced(df, bare),
            "Alpheus": lambda: lake.append("bench.append", df),
        },
        rounds=bench.rounds,
        warm_up=min(bench.warm_up, 2),
        meter=bench.meter,
        after=clean,
    )
    print(f"{load()}")
    return verdict(f"append of {count:,} rows", costs["Alpheus"], costs["Spark alone"], APPEND_RATIO_MAX)


def synced(df: DataFrame, folder: Path) -> None:
    """Do the least that a commit that survives a power cut needs."""
    df.write.parquet(folder.as_uri())
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


# --- a stream of small appends ---------------------------------------------------------------------


def stream(bench: Bench) -> bool:
    """Compare a stream into a table with Spark's own sink, which also writes each batch once: Parquet files and
    their log."""
    lake, spark = bench.lake, bench.spark
    batches = max(STREAM_BATCHES // bench.scale, 40)
    window = min(WINDOW, batches // 4)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(batches + 100))

    def ours(count: int) -> list[dict[str, Any]]:
        name = f"bench.stream{count}"
        lake.create_table(name, "value BIGINT, timestamp TIMESTAMP")
        checkpoint = (bench.directory / f"checkpoint{count}").as_uri()
        return progress_of(
            lake.write_stream(name, source(spark), checkpoint, {"processingTime": "0 seconds"}), count
        )

    def bare(count: int) -> list[dict[str, Any]]:
        target = bench.directory / f"stream{count}"
        writer = source(spark).writeStream.format("parquet").trigger(processingTime="0 seconds")
        writer = writer.option("checkpointLocation", f"{target.as_uri()}-checkpoint")
        return progress_of(writer.start(target.as_uri()), count)

    spent: dict[str, list[float]] = {}
    cpu: dict[str, float] = {}
    counts = {"Alpheus": batches, SINK: min(batches, bench.sink_batches)}
    print(f"\n{batches:,} small appends by a stream, one after the other; {load()}")
    for name, arm in (("Alpheus", ours), (SINK, bare)):
        count = counts[name]
        arm(min(STREAM_WARM_UP, batches // 2))
        found: list[dict[str, Any]] = []
        cost = bench.meter.measure(lambda arm=arm, count=count, found=found: found.extend(arm(count)))
        spent[name] = [batch["durationMs"]["addBatch"] for batch in found]
        whole = [batch["durationMs"]["triggerExecution"] for batch in found]
        cpu[name] = cost.cpu / count * 1e3
        print(
            f"{name:22} append p50 {statistics.median(spent[name]):4.0f} ms, the whole batch"
            f" {statistics.median(whole):4.0f} ms, CPU {cpu[name]:4.0f} ms;"
            f" first {window} p50 {statistics.median(spent[name][:window]):4.0f} ms,"
            f" last {window} p50 {statistics.median(spent[name][-window:]):4.0f} ms; {load()}"
        )
    mine, theirs = spent.values()
    print(
        f"append, Alpheus : {SINK}: {statistics.median(mine) / statistics.median(theirs):.2f}x of the"
        f" time, {cpu['Alpheus'] / cpu[SINK]:.2f}x of the CPU of a batch"
    )
    draw(bench.plot, spent, batches)
    growth = statistics.median(mine[-window:]) / statistics.median(mine[:window])
    met = growth <= FLAT_MAX
    print(
        f"{batches:,} small appends by a stream: the last {window} take {growth:.2f}x of the first {window}"
        f"   at most {FLAT_MAX:g}x: {'met' if met else 'MISSED'}"
    )
    return met


def source(spark: SparkSession) -> DataFrame:
    """Return a stream of batches of 100 rows, as fast as they are taken."""
    made = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).option("numPartitions", 1)
    return made.load().select("value", "timestamp")


def progress_of(query: StreamingQuery, count: int) -> list[dict[str, Any]]:
    """Return the progress of the query's first `count` batches, and end the query then."""
    try:
        while (last := query.lastProgress) is None or last["batchId"] < count - 1:
            if query.exception() is not None:
                raise SystemExit(f"the stream ended: {query.exception()}")
            time.sleep(0.05)
        found = {batch["batchId"]: batch for batch in query.recentProgress}
    finally:
        query.stop()
    return [found[number] for number in range(count)]


def draw(target: Path, spent: dict[str, list[float]], batches: int) -> None:
    edges = [edge for edge in (10, 20, 50, 100, 200, 500, 1_000) if edge <= batches]
    spans = list(zip((0, *edges), edges, strict=False))
    target.write_text(
        log_plot(
            {
                name: [
                    (end, statistics.median(values[start:end])) for start, end in spans if end <= len(values)
                ]
                for name, values in spent.items()
            },
            title="What a small append of a stream takes, by how many came before",
            subtitle=f"medians since the point before; {machine()}; {load()}",
            x_label="appends",
            y_label="milliseconds",
        )
    )
    print(f"plot: {target}")


# --- long lists of files ---------------------------------------------------------------------------


def files(bench: Bench) -> bool:
    lake, spark, count = bench.lake, bench.spark, MANY_FILES // bench.scale
    table = many_files(bench, count)
    where = f"id = {count // 2 * 10 + 5}"
    paths = lake.read("bench.files").inputFiles()
    assert len(paths) == count, "hard links are files"
    print(f"\na table of {count:,} files: making a frame of it; {load()}\n{HEADINGS}")
    costs = compare(
        "frame",
        {
            "Spark alone": lambda: spark.read.parquet(*paths),
            "Alpheus": lambda: lake.read("bench.files"),
            "Alpheus, nothing known before": lambda: SparkCatalog(spark, lake.catalog).read("bench.files"),
            "Alpheus, pruned to one": lambda: lake.read("bench.files", where=where),
        },
        rounds=bench.rounds,
        warm_up=bench.warm_up,
        meter=bench.meter,
    )
    assert lake.read("bench.files", where=where).count() == 1
    assert lake.read("bench.files").count() == table.row_count
    found = costs["Alpheus, nothing known before"].median
    met = found.wall <= FRAME_SECONDS_MAX
    print(
        f"{load()}\nplan and frame of {count:,} files: {found.wall:.2f} s, {found.cpu:.2f} s of CPU"
        f"   at most {FRAME_SECONDS_MAX:g} s: {'met' if met else 'MISSED'}"
    )
    return met


def many_files(bench: Bench, count: int) -> Table:
    """Make a table of `count` files of ten rows with different bounds. The files are hard links to one file, whose
    own ids are those of the file in the middle."""
    lake, spark, middle = bench.lake, bench.spark, count // 2 * 10
    one = spark.range(middle, middle + 10, 1, 1).selectExpr(*COLUMNS)
    lake.create_table("bench.files", one.schema)
    storage = lake.storage
    with lake.transaction() as tx:
        table = tx.catalog.load_table("bench.files")
        [first] = tx.stage(table.definition, one).files
        folder = fmt.data_folder(table.id, tx.id, RandomIdentities().uuid4())
        root = bench.directory / "alpheus" / "catalog"
        (root / folder).mkdir(parents=True)
        column = next(column for column in table.definition.columns if column.name == "id")
        found = []
        for place in range(count):
            path = f"{folder}part-{place:05d}.parquet"
            os.link(root / first.path, root / path)
            low, high = encode_bound(column, place * 10), encode_bound(column, place * 10 + 9)
            found.append(
                msgspec.structs.replace(
                    first,
                    path=path,
                    lower_bounds={**first.lower_bounds, column.id: low},
                    upper_bounds={**first.upper_bounds, column.id: high},
                )
            )
        segments: list[Segment] = []
        for start in range(0, count, SEGMENT_FILES):
            path = fmt.manifest_path(table.id, RandomIdentities().uuid7())
            content, segment = segment_of(
                found[start : start + SEGMENT_FILES], path=path, table_id=table.id, schema_id=0
            )
            run(storage.put(path, content))
            segments.append(segment)
        tx.catalog.append_segments("bench.files", segments, table.id)
    return lake.catalog.load_table("bench.files")


PARTS: dict[str, Callable[[Bench], bool]] = {"scan": scan, "append": append, "stream": stream, "files": files}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=3, help="rounds before those that count")
    parser.add_argument("--sink-batches", type=int, default=STREAM_BATCHES, help="of Spark's own sink")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--directory", help="where the catalog lies; a temporary directory by default")
    parser.add_argument("--plot", type=Path, default=HERE / "stream_cost.svg")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # daemon and JVM end with this process
    print(
        f"{machine()}, PySpark {pyspark.__version__}, local[2]; daemon, driver and Spark share them; {load()}"
    )
    ok = True
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        with (
            alpheus_daemon(directory / "alpheus") as daemon,
            alpheus.connect(f"grpc://{daemon.address}") as catalog,
        ):
            catalog.create_namespace("bench")
            spark = session("bench", settings={"spark.local.dir": str(directory / "spark")})
            spark.sparkContext.setLogLevel("OFF")
            bench = Bench(
                lake=SparkCatalog(spark, catalog), directory=directory, meter=Meter(), rounds=options.rounds,
                warm_up=options.warm_up, scale=100 if options.small else 1,
                sink_batches=options.sink_batches, plot=options.plot,
            )  # fmt: skip
            for part in options.only.split(","):
                ok &= PARTS[part](bench)
            spark.stop()
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
