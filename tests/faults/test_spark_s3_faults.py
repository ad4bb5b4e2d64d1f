"""Spark over S3 while the store refuses, delays, cuts and loses requests, and while executors are killed.

A proxy between Spark and a real server makes the faults (`drivers/store_proxy.py`). After each fault the rows are
right, or the verb was refused and nothing was committed. The store may then hold files that nothing lists.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pytest
from alpheus_test_servers import S3Server, default_kind
from cluster_driver import PHASES
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from spark_marks import SPARK_MARKS
from store_proxy import EXPIRED, LIST_REFUSED, SLOW_DOWN, Kind, StoreProxy, is_kind

import alpheus
from alpheus.errors import AlpheusError, Denied, InvalidInput, OutcomeUnknown, Unavailable
from alpheus.spark import SparkCatalog
from alpheus.spark.files import task_writer, writes
from alpheus_journal.testing.proxy import CutUpload, Forward, LoseReply, Request, Truncate, s3_error

pytestmark = [*SPARK_MARKS, pytest.mark.slow]  # all of them belong to the lane spark_s3

BUCKET = f"faults-{uuid.uuid4().hex[:12]}"
"""Hadoop keeps one way to a bucket, so the proxy has a bucket of its own."""

LANE = "make slow LANE=spark_s3"
"""A short run has one scenario of each kind of fault. This lane has all of them."""

S3A = {
    "attempts.maximum": "2",
    "retry.limit": "2",
    "retry.interval": "10ms",
    "retry.throttle.limit": "3",
    "retry.throttle.interval": "10ms",
    "connection.timeout": "20s",
}
"""With S3A's own settings a storm that does not end takes minutes."""

ROWS = 60
DATA_PUT, DATA_GET = is_kind("PUT", "data"), is_kind("GET", "data")
ANY_PUT = is_kind("PUT")
REQUESTS_A_COMMIT_MAX = 12
"""Without the looks at slots: four belong to a commit and four to the writer's lease. Others go by time, so that a slow
machine makes more."""
UNREACHED = "let that process reach the endpoint in the catalog's URL"


class Rig(NamedTuple):
    """A catalog behind the proxy, with the table `s.t` of `ROWS` rows in two files."""

    lake: SparkCatalog
    store: StoreProxy
    server: S3Server
    prefix: str

    def append(self, begin: int = ROWS, parts: int = 2) -> None:
        self.lake.append("s.t", rows(self.lake.spark, begin, begin + ROWS, parts))

    @property
    def version(self) -> int:
        return self.lake.catalog.version()

    def list_files(self) -> dict[str, int]:
        """Return the size of each file that the table lists, by path."""
        table = self.lake.catalog.load_table("s.t").definition
        return {file.path: file.size_bytes for file in self.lake.lists.of(table.id, table.segments)}

    def find_stored(self) -> dict[str, int]:
        """Return the size of each object below data/, by path, without the proxy."""
        with self.server.client() as s3:
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{self.prefix}/data/")
            found = [each for page in pages for each in page.get("Contents", [])]
        return {each["Key"].removeprefix(f"{self.prefix}/"): each["Size"] for each in found}

    def check(self, expected: range) -> dict[str, int]:
        """Check that the table has exactly these rows, and that each listed file is stored whole. Return the size of
        the stored files that the table does not list, by path."""
        self.store.clear()
        ids = [row.id for row in self.lake.read("s.t").select("id").collect()]
        assert sorted(ids) == [*expected]
        assert sorted(self.lake.catalog.read("s.t")["id"].to_pylist()) == [*expected]
        assert self.lake.catalog.admin.check().ok
        stored = self.find_stored()
        for path, size in self.list_files().items():
            assert stored.pop(path, None) == size, f"{path} is listed, and not stored as it is listed"
        return stored


@pytest.fixture(scope="module")
def store(hadoop_aws_jars: list[Path], shared_s3: Callable[[str], S3Server]) -> Iterator[StoreProxy]:
    server = shared_s3(default_kind())
    with server.client() as s3:
        s3.create_bucket(Bucket=BUCKET)
    with StoreProxy(server.port) as store:
        yield store


@pytest.fixture
def rig(store: StoreProxy, s3_server: S3Server, spark: SparkSession) -> Iterator[Rig]:
    store.clear()
    for name, value in S3A.items():
        spark.conf.set(f"fs.s3a.bucket.{BUCKET}.{name}", value)
    prefix = uuid.uuid4().hex
    # The deadline is one of the library's requests. A storm that does not end takes that long.
    url = f"s3://{BUCKET}/{prefix}?endpoint_url={quote(store.endpoint, safe=':/')}&self_test=false&deadline=6"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        lake = SparkCatalog(spark, catalog, lease=False)
        rig = Rig(lake, store, s3_server, prefix)
        first = pa.table({"id": range(ROWS), "k": [f"k{number % 3}" for number in range(ROWS)]})
        catalog.create_table("s.t", first.slice(0, ROWS // 2))
        catalog.append("s.t", first.slice(ROWS // 2))
        store.clear()
        yield rig
        store.clear()
        lake.close()


def rows(spark: SparkSession, begin: int, end: int, parts: int = 2) -> DataFrame:
    return spark.range(begin, end, numPartitions=parts).select(
        "id", f.concat(f.lit("k"), f.col("id") % 3).alias("k")
    )


def show_counts(counts: Counter[Kind]) -> str:
    return ", ".join(f"{verb} {place or '-'} {count}" for (verb, place), count in sorted(counts.items()))


def check_refused(
    rig: Rig,
    act: Callable[[], Any],
    kind: type[AlpheusError] | tuple[type[AlpheusError], ...],
    words: str = "",
) -> AlpheusError:
    """Check that a verb is refused with an error of ours, and that it committed nothing. Return the error."""
    before, listed = rig.version, rig.list_files()
    with pytest.raises(kind, match=words or None) as caught:
        act()
    rig.store.clear()
    assert "\tat " not in caught.value.message
    assert rig.version == before
    assert rig.list_files() == listed
    return caught.value


# --- no listing ------------------------------------------------------------------------------------


def test_no_verb_needs_a_listing(rig: Rig, lane_count: Callable[[int, int], int]) -> None:
    """With every LIST refused each verb on rows passes. None of them asks for a listing or a copy.

    A short run has one verb of each kind: one that adds, reads, changes, rewrites and replaces.
    """
    lake, store, spark = rig.lake, rig.store, rig.lake.spark
    has_all = bool(lane_count(0, 1))
    verbs: dict[str, Counter[Kind]] = {}

    def did(verb: str) -> None:
        verbs[verb] = store.count_kinds()
        store.clear()
        store.always(is_kind("LIST"), LIST_REFUSED)

    did("")
    with alpheus.connect(lake.storage.url) as other:
        assert other.read("s.t").num_rows == ROWS
    did("connect and read by the library")
    rig.append()
    did("append")
    assert lake.read("s.t").count() == 2 * ROWS
    did("read")
    lake.merge("s.t", spark.createDataFrame([(7, "m"), (900, "m")], "id BIGINT, k STRING"), on="id")
    did("merge")
    if has_all:
        assert lake.read("s.t", where="id = 7").collect()[0]["k"] == "m"
        did("where")
        lake.update("s.t", {"k": "'u'"}, "id = 900")
        did("update")
        lake.delete("s.t", "id < 5")
        did("delete")
        lake.delete("s.t", "id BETWEEN 5 AND 6", mode="rewrite")
        did("delete by rewriting")
        lake.overwrite("s.t", spark.createDataFrame([(901, "o")], "id BIGINT, k STRING"), where="id >= 900")
        did("overwrite a part")
    lake.compact("s.t")
    did("compact")
    found = {row.id: row.k for row in lake.read("s.t").collect()}
    lake.overwrite("s.t", rows(spark, 0, ROWS))
    did("overwrite")
    for verb, counts in verbs.items():
        print(f"{verb:32}", show_counts(counts))
    expected = {number: f"k{number % 3}" for number in range(7 if has_all else 0, 2 * ROWS)} | {7: "m"}
    assert found == expected | ({901: "o"} if has_all else {900: "m"})
    for verb, counts in verbs.items():
        asked = {kind for kind in counts if kind.verb in ("LIST", "COPY")}
        assert asked <= ({Kind("LIST", "checkpoint")} if "connect" in verb else set()), verb
    rig.check(range(ROWS))


def test_a_reader_that_lists_is_refused(rig: Rig) -> None:
    """The rule of the last test reaches Spark's own requests: its usual reader of a path fails under it."""
    rig.store.always(is_kind("LIST"), LIST_REFUSED)
    table = rig.lake.catalog.load_table("s.t").definition
    folder = f"s3a://{BUCKET}/{rig.prefix}/data/{table.id}"
    with pytest.raises((Py4JJavaError, PySparkException), match="no program may list"):
        rig.lake.spark.read.option("recursiveFileLookup", "true").parquet(folder).count()
    assert rig.store.count_kinds()["LIST", "data"]


# --- refusals and slow answers -----------------------------------------------------------------------


def test_storms_that_end(rig: Rig) -> None:
    """Bursts of 503 and slow answers cost time, and no rows."""
    put, get, any_get = [SLOW_DOWN] * 2, [SLOW_DOWN] * 2, [SLOW_DOWN] * 2
    rig.store.script(DATA_PUT, *put)
    rig.store.script(is_kind("PUT", "def"), *put)
    rig.store.script(is_kind("PUT", "vn"), SLOW_DOWN)
    rig.append()
    assert rig.store.count_spoiled() == 5
    rig.store.clear()
    rig.store.script(DATA_GET, *get)
    rig.store.script(is_kind("GET", "vn"), *any_get)
    rig.store.always(is_kind("GET"), Forward(latency=0.05))
    rig.store.always(ANY_PUT, Forward(latency=0.05))
    rig.lake.delete("s.t", f"id >= {2 * ROWS - 1}", mode="rewrite")
    assert rig.store.count_spoiled() >= 2
    rig.check(range(2 * ROWS - 1))


def test_a_storm_that_does_not_end(rig: Rig, lane_count: Callable[[int, int], int]) -> None:
    """Writes and reads are refused, and the same verb passes when the storm is over. A short run has the writes."""
    rig.store.script(DATA_PUT, Forward())
    rig.store.always(DATA_PUT, SLOW_DOWN)
    error = check_refused(rig, rig.append, Unavailable, "a task could not store a file")
    assert error.kind == "storage_unavailable"
    assert "repeat the write" in error.hint
    if lane_count(0, 1):
        rig.store.always(DATA_GET, SLOW_DOWN)
        check_refused(rig, lambda: rig.lake.append("s.t", rig.lake.read("s.t")), Unavailable, "SlowDown")
        rig.store.always(is_kind("PUT", "def"), SLOW_DOWN)
        check_refused(
            rig, rig.append, (Unavailable, OutcomeUnknown)
        )  # the latter where a busy machine takes more than 30 s
    rig.append()
    assert rig.check(range(2 * ROWS)), "files of the refused writes"


# --- credentials -------------------------------------------------------------------------------------


def test_a_token_that_expires(rig: Rig, lane_count: Callable[[int, int], int]) -> None:
    """In mid-write, in mid-read and in mid-commit the error says so, and nothing is committed.

    A short run has one verb that reads, and one step of the commit.
    """
    rig.lake.append("s.t", rows(rig.lake.spark, ROWS, 2 * ROWS))
    rig.store.script(DATA_PUT, Forward())
    rig.store.always(DATA_PUT, EXPIRED)
    error = check_refused(
        rig, lambda: rig.append(2 * ROWS), Denied, "a task could not store a file.*ExpiredToken"
    )
    assert "renew the credentials" in error.hint
    spark = rig.lake.spark
    source = spark.createDataFrame([(1, "m")], "id BIGINT, k STRING")
    verbs: list[Callable[[], Any]] = [
        lambda: rig.lake.append("s.t", rig.lake.read("s.t").coalesce(1)),
        lambda: rig.lake.merge("s.t", source, on="id"),
        lambda: rig.lake.compact("s.t"),
    ]
    for verb in verbs[: lane_count(1, len(verbs))]:
        rig.store.clear()
        rig.store.script(DATA_GET, Forward())
        rig.store.always(DATA_GET, EXPIRED)
        error = check_refused(rig, verb, Denied, "could not read a file")
        assert "renew the credentials" in error.hint
    for place in ("vn", "def", "manifest")[: lane_count(1, 3)]:
        rig.store.always(is_kind("PUT", place), EXPIRED)
        check_refused(rig, lambda: rig.append(2 * ROWS), Denied, "(?i)expired")
    rig.append(2 * ROWS)
    assert rig.check(range(3 * ROWS)), "files of the refused writes"


WRONG_CLOCK = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) { return atol(getenv("TEST_CLOCK_SHIFT")); }

int clock_gettime(clockid_t id, struct timespec *found) {
    int done = syscall(SYS_clock_gettime, id, found);
    if (!done && id == CLOCK_REALTIME) found->tv_sec += shift();
    return done;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""
"""A library that shifts the clock of a process by seconds."""


def sent_at_another_time(request: Request) -> bool:
    """Match requests for data whose signature is more than a quarter of an hour old or early, as S3 refuses them."""
    at = request.headers.get("x-amz-date", "")
    if not at or "data" not in request.path:
        return False
    sent = datetime.strptime(at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return abs(datetime.now(UTC) - sent) > timedelta(minutes=15)


@pytest.mark.parametrize("hours", [-30, 5])
def test_a_worker_whose_clock_is_wrong(
    rig: Rig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lane_count: Callable[[int, int], int],
    hours: int,
) -> None:
    """The store refuses what a worker signs at a wrong time. The worker's client learns the time from that answer, and
    no name or path of a file comes from a worker's clock."""
    if not lane_count(0, 1):
        pytest.skip(LANE)
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "clock.c").write_text(WRONG_CLOCK)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", tmp_path / "clock.so", tmp_path / "clock.c"], check=True
    )
    context = rig.lake.spark.sparkContext
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nLD_PRELOAD={tmp_path}/clock.so TEST_CLOCK_SHIFT={hours * 3600} exec {context.pythonExec} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(context, "pythonExec", str(python))

    refused = s3_error(403, "RequestTimeTooSkewed", "The difference between the times is too large.")
    now = {"Date": format_datetime(datetime.now(UTC), usegmt=True)}
    rig.store.always(
        sent_at_another_time, msgspec.structs.replace(refused, headers={**refused.headers, **now})
    )
    rig.append()
    assert rig.store.count_spoiled() > 0, "the workers' clock is not wrong"
    rig.lake.delete("s.t", "id < 3")
    rig.check(range(3, 2 * ROWS))


# --- cut bodies and lost replies ----------------------------------------------------------------------


def test_uploads_and_answers_that_are_cut(rig: Rig, lane_count: Callable[[int, int], int]) -> None:
    """A body that is cut is sent again, or the verb is refused. No table lists a file that is cut short.

    A short run has the bodies that are cut once or twice.
    """
    rig.store.script(DATA_PUT, CutUpload(body_bytes=300), CutUpload())
    rig.append()
    assert rig.store.count_spoiled() == 2
    rig.store.clear()
    rig.store.script(DATA_GET, *[Truncate(body_bytes=100)] * 2)
    rig.append(2 * ROWS)
    assert rig.lake.read("s.t").where("id < 0").count() == 0
    if not lane_count(0, 1):
        assert rig.check(range(3 * ROWS)) == {}
        return
    rig.store.script(DATA_PUT, Forward())
    rig.store.always(DATA_PUT, CutUpload(body_bytes=300))
    check_refused(rig, lambda: rig.append(3 * ROWS), Unavailable, "a task could not store a file")
    rig.append(3 * ROWS)  # S3A keeps small files that it has read, and has read no file of this append
    rig.store.always(DATA_GET, Truncate(body_bytes=100))
    error = check_refused(rig, lambda: rig.lake.append("s.t", rig.lake.read("s.t")), Unavailable)
    assert error.hint == UNREACHED
    assert rig.check(range(4 * ROWS)), "files of the refused writes"


BIG = 12
"""Rows of a megabyte: a file of two parts."""


def big(spark: SparkSession, begin: int) -> DataFrame:
    text = f.concat(f.col("id").cast("string"), f.repeat(f.lit("x"), 1 << 20))
    return spark.range(begin, begin + BIG, numPartitions=1).select("id", text.alias("k"))


def test_an_upload_of_parts(rig: Rig, lane_count: Callable[[int, int], int]) -> None:
    """A large file costs two requests more than its parts. A part that is cut is sent again, or nothing is listed.

    A short run has the part that is sent again.
    """
    store, spark, end = rig.store, rig.lake.spark, ROWS + BIG
    codec = spark.conf.get(writes.CODEC_SETTING)
    spark.conf.set(writes.CODEC_SETTING, "none")
    try:
        store.script(DATA_PUT, Forward(), CutUpload(body_bytes=1 << 20))
        rig.lake.append("s.t", big(spark, ROWS))
        counts, parts = store.count_kinds(), len({r.query for r in store.find_requests(DATA_PUT)})
        assert parts > 1
        assert store.count_spoiled() == 1
        assert counts["PUT", "data"] == parts + 1, "one part was sent twice"
        assert (counts["POST", "data"], counts["HEAD", "data"]) == (2, 1), (
            "begin, end, and the look of the commit"
        )
        if lane_count(0, 1):
            store.clear()
            store.script(DATA_PUT, Forward())
            store.always(DATA_PUT, CutUpload(body_bytes=1 << 20))
            check_refused(rig, lambda: rig.lake.append("s.t", big(spark, end)), Unavailable, "store a file")
    finally:
        spark.conf.set(writes.CODEC_SETTING, codec)
    rig.check(range(end))


def test_lost_replies_double_no_rows(rig: Rig, lane_count: Callable[[int, int], int]) -> None:
    """The server stores a file, and its answer is lost. The task sends the file again or the verb is refused.

    A short run has the file that is sent again.
    """
    rig.store.script(DATA_PUT, *[LoseReply()] * 2)
    rig.store.script(is_kind("PUT", "vn"), LoseReply())
    rig.append()
    assert rig.store.count_spoiled() == 3
    assert rig.check(range(2 * ROWS)) == {}, "a file is sent again under its name"
    if not lane_count(0, 1):
        return
    rig.store.always(DATA_PUT, LoseReply())
    check_refused(rig, lambda: rig.append(2 * ROWS), Unavailable, "a task could not store a file")
    rig.append(2 * ROWS)
    orphans = rig.check(range(3 * ROWS))
    assert orphans, "the server stored files whose tasks failed"


# --- costs ---------------------------------------------------------------------------------------------


def check_costs(counts: Counter[Kind], files: int, commits: int = 1) -> None:
    """Check what committed appends of small files cost. A task puts a file, and the commit looks once whether it is
    stored whole. The commits themselves cost few requests, however many files they list."""
    of_data = {kind.verb: count for kind, count in counts.items() if kind.place == "data"}
    assert of_data == {"PUT": files, "HEAD": files}, "nothing is listed, copied, deleted, or looked at twice"
    others = sum(count for kind, count in counts.items() if kind.place != "data" and kind != ("HEAD", "vn"))
    assert others <= REQUESTS_A_COMMIT_MAX * commits, counts
    assert [kind for kind in counts if kind.verb in ("LIST", "COPY", "DELETE")] == [("DELETE", "lease")]


@pytest.mark.parametrize("parts", [1, 8])
def test_the_requests_of_an_append(rig: Rig, parts: int, lane_count: Callable[[int, int], int]) -> None:
    """The bound is one of several appends: hints are stored after a commit, while the next one runs."""
    if parts == 1 and not lane_count(0, 1):
        pytest.skip(LANE)
    appends = lane_count(2, 4)
    rig.append(parts=parts)  # what this process asks once
    rig.store.clear()
    for number in range(2, 2 + appends):
        rig.append(number * ROWS, parts=parts)
    counts = rig.store.count_kinds()
    print(f"{appends} appends of {parts} files:", show_counts(counts))
    check_costs(counts, appends * parts, appends)
    rig.store.clear()
    assert rig.lake.read("s.t").count() == (2 + appends) * ROWS
    print(f"read of {len(rig.list_files())} files:", show_counts(rig.store.count_kinds()))


# --- executors ----------------------------------------------------------------------------------------

KILLS_FULL = 20
"""The kills in each phase of a slow run, which has other verbs than append, too. A short run has one kill in one phase,
and one executor."""

CLUSTER_DRIVER = Path(__file__).parent / "drivers" / "cluster_driver.py"


@pytest.mark.parametrize("phase", PHASES)
def test_executors_that_are_killed_or_hang(
    hadoop_aws_jars: list[Path],
    s3_server: S3Server,
    tmp_path: Path,
    lane_count: Callable[[int, int], int],
    phase: str,
) -> None:
    """Executors run the tasks of each verb, and are killed in a phase of it (`cluster_driver.PHASES`). Each verb
    commits its rows once, or is refused. No attempt deletes what another one stored. There are two executors, and one
    in a short run."""
    seed = int(os.environ.get("ALPHEUS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"ALPHEUS_SEED={seed}")
    url, kills = s3_server.url(self_test="false"), lane_count(1, KILLS_FULL)
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", pa.schema([("id", pa.int64()), ("k", pa.int64())]))
    jars = ",".join(map(str, hadoop_aws_jars))
    command = [sys.executable, CLUSTER_DRIVER, url, tmp_path, jars, str(kills), str(seed), phase]
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, check=False)
    assert done.returncode == 0, (tmp_path / "log").read_text(errors="replace")[-3000:]
    *told, cost = [json.loads(line) for line in done.stdout.splitlines()]
    for line in [*told, cost]:
        print(line)
    assert [line for line in told if line["wrong"]] == []
    assert Counter(line["phase"] for line in told) == {phase: kills}
    assert all(line["taken"] for line in told), "each kill was made"
    assert [line for line in told if line["told"] != "committed"] == [], "a task that was lost is repeated"
    if phase == "hanging":
        assert told[-1]["orphans"], "two attempts stored a file of the same rows"
    with alpheus.connect(url) as catalog:
        ids = catalog.read("s.t")["id"].to_pylist()
        assert len(ids) == len(set(ids)) == told[-1]["rows"]
        assert catalog.admin.check().ok


# --- a server that dies -----------------------------------------------------------------------------------


def test_a_server_that_is_killed_and_comes_back(
    hadoop_aws_jars: list[Path],
    crash_s3: S3Server,
    spark: SparkSession,
    lane_count: Callable[[int, int], int],
) -> None:
    """The server is killed in the midst of a verb, and started again. The verb commits its rows once, or is refused.
    Each row that was committed before is still there."""
    rounds, bucket = lane_count(1, 30), f"restarts-{uuid.uuid4().hex[:12]}"
    with crash_s3.client() as s3:
        s3.create_bucket(Bucket=bucket)
    for name, value in S3A.items():
        spark.conf.set(f"fs.s3a.bucket.{bucket}.{name}", value)
    seed = int(os.environ.get("ALPHEUS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"ALPHEUS_SEED={seed}")
    chance, told = random.Random(seed), Counter[str]()
    url = f"s3://{bucket}/lake?endpoint_url={quote(crash_s3.endpoint, safe=':/')}&self_test=false&deadline=10"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        lake = SparkCatalog(spark, catalog, lease=False)
        lake.create_table("s.t", rows(spark, 0, ROWS))
        present, begin = set(range(ROWS)), ROWS
        for number in range(rounds):
            added = set(range(begin, begin + ROWS))
            begin += ROWS
            killer = threading.Timer(chance.uniform(0, 3), lambda: (crash_s3.kill(), crash_s3.start()))
            killer.start()
            frame = rows(spark, min(added), max(added) + 1)
            try:
                if number % 3 == 2:
                    lake.merge("s.t", frame, on="id")
                else:
                    lake.append("s.t", frame)
                outcome = "committed"
            except (AlpheusError, PySparkException, Py4JJavaError) as error:
                outcome = type(error).__name__
            killer.join()
            told[outcome] += 1
            found = catalog.read("s.t")["id"].to_pylist()
            assert len(found) == len(set(found))
            if outcome == "committed" or (outcome == OutcomeUnknown.__name__ and added & set(found)):
                present |= added
            assert set(found) == present, outcome
            assert {row.id for row in lake.read("s.t").select("id").collect()} == present
        assert catalog.admin.check().ok
        lake.close()
    print(told)


# --- planted faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 300], ids=["nothing", "a part"])
def test_a_writer_that_passes_over_a_cut_upload_is_caught(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, kept: int, lane_count: Callable[[int, int], int]
) -> None:
    """The commit looks at each file that it lists, and refuses one that is missing or is cut short."""
    if not kept and not lane_count(0, 1):
        pytest.skip(LANE)
    put = task_writer.put_file

    def careless(store: Any, path: str, parts: Iterable[bytes]) -> None:
        whole = [*parts]
        try:
            put(store, path, whole)
        except Exception:
            if kept:
                put(store, path, [b"".join(whole)[:kept]])

    monkeypatch.setattr(task_writer, "put_file", careless)
    rig.store.always(lambda r: DATA_PUT(r) and len(r.body) > 2 * kept, CutUpload(body_bytes=kept))
    with pytest.raises(InvalidInput, match=r"does not exist|has 300 bytes"):
        rig.append()
    rig.check(range(ROWS))


@pytest.mark.usefixtures("only_slow")
def test_a_driver_that_lists_every_attempt_is_caught(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tasks = writes._run_tasks

    def twice(ready: DataFrame, task: task_writer.Task) -> list[Any]:
        return [*run_tasks(ready, task), *run_tasks(ready, task)]

    monkeypatch.setattr(writes, "_run_tasks", twice)
    rig.append()
    with pytest.raises(AssertionError):
        rig.check(range(2 * ROWS))
    rig.store.clear()


@pytest.mark.usefixtures("only_slow")
def test_a_writer_that_looks_at_its_files_is_caught(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    put = task_writer.put_file

    def curious(store: Any, path: str, parts: Iterable[bytes]) -> None:
        put(store, path, parts)
        store.get_file_info(path)

    monkeypatch.setattr(task_writer, "put_file", curious)
    rig.append()
    with pytest.raises(AssertionError, match="looked at twice"):
        check_costs(rig.store.count_kinds(), 2)
    rig.check(range(2 * ROWS))
