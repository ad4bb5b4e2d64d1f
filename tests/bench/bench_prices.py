"""The requests that work costs on S3, and their price.

    make bench BENCH=prices
    make bench BENCH=prices ARGS="--idle-seconds 300 --files 1000"

A proxy in front of a real S3 server counts the requests of an idle daemon, of lone commits, and of appends and scans by
Spark. Prices are AWS' list prices of S3 Standard in us-east-1: 0.005 USD for 1,000 PUT, COPY, POST and LIST requests,
0.0004 USD for 1,000 GET and HEAD requests; DELETE is free. Storage and transfer are not counted. Counts are the same on
any machine, except those of the idle daemon, which are scaled to a day.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "faults" / "drivers")]

import alpheus_test_servers as servers  # noqa: E402
from fleet import Daemon  # noqa: E402
from store_proxy import Kind, StoreProxy  # noqa: E402

import alpheus  # noqa: E402
from alpheus.spark import SparkCatalog, session  # noqa: E402

USD = {"PUT": 5e-6, "COPY": 5e-6, "POST": 5e-6, "LIST": 5e-6, "GET": 4e-7, "HEAD": 4e-7, "DELETE": 0.0}
"""The price of one request."""
SETTLE_SECONDS = 15
"""A daemon that just started writes hints and reads ahead."""
DAY_SECONDS = 86_400
COMMITS = 20
ROWS_A_FILE = 50


def sum_price(counts: Counter[Kind]) -> float:
    return sum(USD[kind.verb] * count for kind, count in counts.items())


def show(what: str, counts: Counter[Kind], times: float = 1.0) -> None:
    """Print one line: the requests of one piece of work, of which `counts` holds 1/`times`."""
    by_verb = Counter[str]()
    for kind, count in counts.items():
        by_verb[kind.verb] += count
    requests = ", ".join(f"{verb} {count * times:,.1f}" for verb, count in sorted(by_verb.items())) or "none"
    print(f"| {what} | {requests} | {sum_price(counts) * times:.6f} |", flush=True)


def count_commits(store: StoreProxy, catalog: alpheus.Catalog, what: str) -> None:
    catalog.create_namespace("warm")
    store.clear()
    for number in range(COMMITS):
        catalog.update_namespace("warm", set={"n": str(number)})
    show(what, store.count_kinds(), 1 / COMMITS)
    catalog.drop_namespace("warm")


def count_spark(store: StoreProxy, url: str, files: int) -> None:
    jars = servers.find_jars()
    if not jars:
        print(f"left out: {servers.NO_JARS}")
        return
    settings = {"spark.jars": ",".join(map(str, jars)), "spark.master": "local[2]"}
    spark = session("prices", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    with alpheus.connect(url) as catalog, contextlib.closing(SparkCatalog(spark, catalog)) as lake:
        catalog.create_namespace("s")

        def rows(parts: int) -> object:
            frame = spark.range(0, parts * ROWS_A_FILE, numPartitions=parts)
            return frame.selectExpr("id", "id % 7 AS k", "concat('row ', id) AS name")

        lake.create_table("s.t", rows(1))  # type: ignore[arg-type]
        for parts in (1, 100):
            store.clear()
            lake.append("s.t", rows(parts))  # type: ignore[arg-type]
            show(f"append of {parts} files by Spark", store.count_kinds())
        lake.create_table("s.many", rows(files))  # type: ignore[arg-type]
        store.clear()
        frame = lake.read("s.many")
        frame.explain()
        show(f"plan of a scan of {files:,} files by Spark", store.count_kinds())
        store.clear()
        assert frame.agg({"id": "sum", "name": "max"}).collect()
        show(f"scan of {files:,} files, planned before", store.count_kinds())
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--idle-seconds", type=float, default=60.0, help="how long the idle daemon is watched"
    )
    parser.add_argument("--files", type=int, default=1000, help="the files of the table that is scanned")
    options = parser.parse_args()
    if options.idle_seconds <= 0 or options.files <= 0:
        parser.error("--idle-seconds and --files must be above 0")
    os.environ.update(servers.ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder:
        if failure := servers.install():
            sys.exit(f"{servers.NOT_INSTALLED}: {failure}")
        server = servers.S3Server(servers.default_kind(), Path(folder))
        try:
            with StoreProxy(server.port) as store:
                url = f"s3://{server.bucket}/prices?endpoint_url={quote(store.endpoint, safe=':/')}"
                print("| work | requests | USD |\n| --- | --- | --- |")
                with alpheus.create(url) as catalog:
                    show("create a catalog, with the test of the store", store.count_kinds())
                    count_commits(store, catalog, "a lone commit by the library")
                daemon = Daemon("prices", url, Path(folder) / "daemon")
                daemon.start()
                try:
                    with alpheus.connect(f"grpc://{daemon.address}") as catalog:
                        count_commits(store, catalog, "a lone commit through a daemon")
                    time.sleep(SETTLE_SECONDS)
                    store.clear()
                    time.sleep(options.idle_seconds)
                    show("an idle daemon, a day", store.count_kinds(), DAY_SECONDS / options.idle_seconds)
                finally:
                    daemon.end()
                count_spark(store, url, options.files)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
