"""Spark over S3 while the store refuses, delays, cuts and loses requests, and while executors are killed.

A proxy between Spark and a real server makes the faults (`drivers/store_proxy.py`). After each fault the rows are
right, or the verb was refused and nothing was committed. The store may then hold files that nothing lists.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
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
from renewal_driver import PARTS as DRIVER_PARTS
from renewal_driver import ROWS as DRIVER_ROWS
from renewal_driver import STEPS
from spark_marks import SPARK_MARKS
from store_proxy import EXPIRED, LIST_REFUSED, SLOW_DOWN, Kind, StoreProxy, is_kind, kind_of

import alpheus
from alpheus.errors import AlpheusError, Denied, Expired, InvalidInput, OutcomeUnknown, Unavailable
from alpheus.spark import SparkCatalog
from alpheus.spark.files import task_writer, writes
from alpheus.transactions import core
from alpheus_journal.collect import collection
from alpheus_journal.collect.store_time import read_store_time
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
    """A task sends two requests more than a large file has parts, and the commit looks at the file once. A part that is
    cut is sent again, or nothing is listed.

    A short run has the part that is sent again.
    """
    store, spark, end = rig.store, rig.lake.spark, ROWS + BIG
    codec = spark.conf.get(writes.CODEC_SETTING)
    spark.conf.set(writes.CODEC_SETTING, "none")
    try:
        store.script(DATA_PUT, Forward(), CutUpload(body_bytes=1 << 20))
        rig.lake.append("s.t", big(spark, ROWS))
        parts = len({r.query for r in store.find_requests(DATA_PUT)})
        assert parts > 1
        assert store.count_spoiled() == 1
        requests = store.find_requests(lambda request: kind_of(request).place == "data")
        of_task = Counter(kind_of(r).verb for r in requests if "alpheus" not in r.headers["user-agent"])
        assert of_task == {"PUT": parts + 1, "POST": 2}, "one part was sent twice; the upload begins and ends"
        of_commit = Counter(kind_of(r).verb for r in requests if "alpheus" in r.headers["user-agent"])
        assert of_commit == {"HEAD": 1}, "the commit looks whether the file is stored whole"
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
    if phase != "folders":  # an executor without folders may fail each attempt
        assert [line for line in told if line["told"] != "committed"] == [], (
            "a task that was lost is repeated"
        )
    if phase == "hanging":
        assert told[-1]["orphans"], "two attempts stored a file of the same rows"
    with alpheus.connect(url) as catalog:
        ids = catalog.read("s.t")["id"].to_pylist()
        assert len(ids) == len(set(ids)) == told[-1]["rows"]
        assert catalog.admin.check().ok


# --- leases of writes ---------------------------------------------------------------------------------------

LEASE_SECONDS = 6.0
LATER_MILLIS = 5_000
MUCH_LATER_MILLIS = 30_000
"""A collection takes files for older than they are, by less or by more than the time for which a lease binds it. It may
not be ahead of the clock by more than a minute."""
LEASE_PUT = is_kind("PUT", "lease")


@pytest.fixture
def brief_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of writes are renewed after two seconds."""
    lease = core.lease_transaction

    async def lease_briefly(*arguments: Any, **options: Any) -> Any:
        return await lease(*arguments, **options, seconds=LEASE_SECONDS)

    monkeypatch.setattr(core, "lease_transaction", lease_briefly)


def read_later(monkeypatch: pytest.MonkeyPatch, millis: int) -> None:
    """Let collections take the store's time for later than it is."""

    async def read(*given: Any) -> int:
        return await read_store_time(*given) + millis

    monkeypatch.setattr(collection, "read_store_time", read)


def wait_in_tasks(monkeypatch: pytest.MonkeyPatch, go: Path) -> None:
    """Let each task wait for the file `go` after it stored its own file."""
    put, awaited = task_writer.put_file, str(go)

    def put_and_wait(store: Any, path: str, parts: Iterable[bytes]) -> None:
        import os
        import time

        put(store, path, parts)
        end = time.monotonic() + 120
        while not os.path.exists(awaited) and time.monotonic() < end:
            time.sleep(0.02)

    monkeypatch.setattr(task_writer, "put_file", put_and_wait)


def collect_in_write(rig: Rig, go: Path, *, renewals: int) -> threading.Thread:
    """Start a thread that waits until a write has stored two files and sent the lease this often. The thread then runs
    a collection, without the proxy, and lets the tasks end."""
    url = rig.server.url(rig.prefix).replace(f"//{rig.server.bucket}/", f"//{BUCKET}/") + "&self_test=false"

    def wait_and_collect() -> None:
        end = time.monotonic() + 100
        while time.monotonic() < end:
            counts = rig.store.count_kinds()
            if counts["PUT", "data"] >= 2 and counts["PUT", "lease"] > renewals:
                break
            time.sleep(0.02)
        with alpheus.connect(url) as other:
            other.admin.collect(minimum_age=0, allow_short=True)
        go.touch()

    thread = threading.Thread(target=wait_and_collect)
    thread.start()
    return thread


@pytest.mark.usefixtures("brief_lease")
def test_renewals_whose_replies_are_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lane_count: Callable[[int, int], int]
) -> None:
    """The store renews a lease, and loses its answers. A collection in the midst of the write keeps its files.

    A long run loses the answers of more renewals, and those of the looks beside them.
    """
    read_later(monkeypatch, LATER_MILLIS)
    wait_in_tasks(monkeypatch, tmp_path / "go")
    lost = lane_count(1, 3)
    rig.store.script(LEASE_PUT, Forward(), *[LoseReply()] * lost)
    if lane_count(0, 1):
        rig.store.script(is_kind("HEAD", "lease"), Forward(), LoseReply(), Forward(), LoseReply())
    thread = collect_in_write(rig, tmp_path / "go", renewals=1 + lost)
    rig.append()
    thread.join()
    assert rig.store.count_spoiled() >= lost
    assert rig.check(range(2 * ROWS)) == {}


@pytest.mark.usefixtures("brief_lease")
def test_a_lease_that_cannot_be_renewed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lane_count: Callable[[int, int], int]
) -> None:
    """The store refuses each renewal until the lease is over. A collection removes the files, and the write is refused
    by name."""
    if not lane_count(0, 1):
        pytest.skip(LANE)
    read_later(monkeypatch, MUCH_LATER_MILLIS)
    wait_in_tasks(monkeypatch, tmp_path / "go")
    rig.store.script(LEASE_PUT, Forward())
    rig.store.always(LEASE_PUT, SLOW_DOWN)
    listed = rig.list_files()
    thread = collect_in_write(rig, tmp_path / "go", renewals=1)
    with pytest.raises(Expired) as refused:
        rig.append()
    thread.join()
    assert refused.value.kind == "upload_expired"
    assert rig.list_files() == listed
    assert rig.check(range(ROWS)) == {}, "the collection removed the files of the write"


RENEWAL_DRIVER = CLUSTER_DRIVER.with_name("renewal_driver.py")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.usefixtures("only_slow")
def test_drivers_that_are_killed_while_they_renew_a_lease(
    hadoop_aws_jars: list[Path],
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    step: str,
) -> None:
    """The application dies in the renewal of the lease of its write (`renewal_driver.STEPS`). No row of it is visible.
    A collection, when the lease is over, removes the lease and the files of the write. Then an application that is not
    killed commits the rows once. There are `KILLS_FULL` kills over all steps."""
    seed = int(os.environ.get("ALPHEUS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"ALPHEUS_SEED={seed}")
    chance, url = random.Random(seed), s3_server.url(self_test="false")
    jars = ",".join(map(str, hadoop_aws_jars))

    def run_driver(step: str) -> int:
        go = tmp_path / "go"
        for path in (go, *tmp_path.glob("stored-*")):
            path.unlink(missing_ok=True)
        environment = os.environ | {
            "TEST_DELAY_SECONDS": f"{chance.choice((0.0001, 0.001, 0.003, 0.01)):.4f}"
        }
        command = [sys.executable, RENEWAL_DRIVER, url, str(tmp_path), jars, step]
        with (tmp_path / "log").open("ab") as log:
            status = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False).returncode
        go.touch()  # tasks that are left end
        return status

    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", pa.schema([("id", pa.int64()), ("k", pa.int64())]))
        for _ in range(KILLS_FULL // len(STEPS)):
            status = run_driver(step)
            assert status in (-signal.SIGKILL, -signal.SIGALRM), (tmp_path / "log").read_text()[-3000:]
            assert catalog.read("s.t").num_rows == 0
            [lease] = catalog.admin.leases()
            assert lease.transaction_id
            with monkeypatch.context() as patch:
                read_later(patch, MUCH_LATER_MILLIS)
                collected = catalog.admin.collect(minimum_age=0, allow_short=True)
            assert collected.deleted["data"].files == DRIVER_PARTS
            assert catalog.admin.leases() == []
        assert run_driver("none") == 0, (tmp_path / "log").read_text()[-3000:]
        assert sorted(catalog.read("s.t")["id"].to_pylist()) == [*range(DRIVER_ROWS)]
        assert catalog.admin.check().ok


# --- local folders ----------------------------------------------------------------------------------------

GONE = "-gone"


class LocalFolders:
    """The folders of the session's blocks and shuffles, and of the files that wait in its tasks (`spark.local.dir`).

    A test removes them by a rename, which neither the JVM nor a worker can follow. In local mode the driver needs them,
    too, so `restore` comes before the next job.
    """

    def __init__(self, places: list[str]) -> None:
        self.places = places

    def restore(self) -> bool:
        """Bring the folders back. Return whether all of them were gone."""
        gone = [place for place in self.places if os.path.exists(place + GONE)]
        for place in gone:
            shutil.rmtree(place, ignore_errors=True)
            os.rename(place + GONE, place)
        return gone == self.places


@pytest.fixture
def local_folders(spark: SparkSession) -> Iterator[LocalFolders]:

    def tell(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"folders": [os.environ["SPARK_LOCAL_DIRS"]]})

    [row] = spark.range(1).coalesce(1).mapInArrow(tell, "folders STRING").collect()
    folders = LocalFolders(row.folders.split(","))
    yield folders
    folders.restore()


def lose_folders(monkeypatch: pytest.MonkeyPatch, places: list[str], moment: str) -> None:
    """Let a task lose its local folders where it opens the file that waits for its upload.

    - `before`: then the folders are gone, and the worker has a folder for temporary files.
    - `beside`: the file is open already.
    - `all`: the folder for temporary files is gone, too.
    """
    open_scratch = task_writer._open_scratch

    def lose() -> None:
        import os  # workers run this function, which travels with them by value

        for place in places:
            if os.path.exists(place):
                os.rename(place, place + "-gone")

    def open_and_lose() -> Any:
        import tempfile

        if moment == "beside":
            found = open_scratch()
            lose()
            return found
        lose()
        before = tempfile.tempdir
        tempfile.tempdir = places[0] if moment == "all" else None
        try:
            return open_scratch()
        finally:
            tempfile.tempdir = before

    monkeypatch.setattr(task_writer, "_open_scratch", open_and_lose)


@pytest.mark.parametrize("moment", ["before", "beside", "all"])
def test_a_task_that_loses_its_local_folders(
    rig: Rig,
    local_folders: LocalFolders,
    monkeypatch: pytest.MonkeyPatch,
    lane_count: Callable[[int, int], int],
    moment: str,
) -> None:
    """A task that still has some folder stores its rows, and a task without one is refused by name."""
    if moment == "beside" and not lane_count(0, 1):
        pytest.skip(LANE)
    spark = rig.lake.spark
    monkeypatch.setattr(writes, "_choose_codec", lambda _: "none")
    lose_folders(monkeypatch, local_folders.places, moment)
    frame, end = big(spark, ROWS), ROWS + BIG
    if moment == "all":
        error = check_refused(
            rig, lambda: rig.lake.append("s.t", frame), Unavailable, "waits on a local disk"
        )
        assert "nothing of it is visible" in error.hint
        end = ROWS
    else:
        rig.lake.append("s.t", frame)
    assert local_folders.restore(), "no fault was made"
    assert rig.check(range(end)) == {}, "no file was stored for rows that are not listed"


def test_a_shuffle_whose_files_are_gone(
    rig: Rig, local_folders: LocalFolders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first task that stored a file removes the folders, with what the other tasks were to read. The write is
    refused, and the files of this task are orphans."""
    put, places, once = task_writer.put_file, local_folders.places, tmp_path / "once"
    once.touch()

    def put_and_remove(store: Any, path: str, parts: Iterable[bytes]) -> None:
        import os

        put(store, path, parts)
        try:
            os.rename(once, f"{once}-taken")
        except FileNotFoundError:
            return
        for place in places:
            os.rename(place, place + "-gone")

    monkeypatch.setattr(task_writer, "put_file", put_and_remove)
    frame = rows(rig.lake.spark, ROWS, 2 * ROWS).repartition(6)
    error = check_refused(rig, lambda: rig.lake.append("s.t", frame), Unavailable, "local disk")
    assert "spark.local.dir" in error.hint
    assert local_folders.restore(), "no fault was made"
    assert rig.check(range(ROWS)), "the file of the first task"


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
