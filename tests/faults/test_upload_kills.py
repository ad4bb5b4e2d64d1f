"""Writers that are killed in an upload to S3, and collections that are killed while they abort such uploads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pyarrow as pa
import pytest
from alpheus_test_servers import S3Server

import alpheus
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.collect.open_uploads import ABORTED_AT_ONCE
from alpheus_journal.failpoints import VARIABLE

IDENTITIES = RandomIdentities()
WRITER = """
import sys, time
from pyarrow.fs import S3FileSystem
address, endpoint = sys.argv[1:]
store = S3FileSystem(endpoint_override=endpoint, scheme="http")
with store.open_output_stream(address) as file:
    file.write(bytes(12 << 20))
    file.flush()
    print("begun", flush=True)
    time.sleep(600)
"""


def collect(url: str, *options: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    words = [
        "--catalog",
        url,
        "collect",
        "--minimum-age",
        "0s",
        "--allow-short",
        "--output",
        "json",
        *options,
    ]
    return subprocess.run(
        [sys.executable, "-m", "alpheus", *words],
        env=os.environ | {VARIABLE: failpoint}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def place(s3_server: S3Server) -> tuple[str, str, str]:
    """A catalog with a table: its URL, bucket and prefix, and the id of the table."""
    url = s3_server.url(self_test="false")
    with alpheus.connect(url, create=True) as catalog:
        catalog.create_namespace("a")
        table = catalog.create_table("a.t", pa.table({"id": [1]}))
        id = catalog.load_table("a.t").id
        assert table is not None
    return url, url.partition("?")[0].removeprefix("s3://"), id


def data_path(table_id: str) -> str:
    return f"data/{table_id}/{IDENTITIES.uuid7()}/{IDENTITIES.uuid4()}/part-0.parquet"


def list_open(s3: Any, address: str) -> list[str]:
    bucket, _, prefix = address.partition("/")
    found = s3.list_multipart_uploads(Bucket=bucket, Prefix=f"{prefix}/")
    return [upload["Key"] for upload in found.get("Uploads", [])]


@pytest.mark.usefixtures("only_slow")
def test_the_upload_of_a_killed_writer_is_aborted(place: tuple[str, str, str], s3_server: S3Server) -> None:
    """The writer is Arrow's, as in Spark's Python workers."""
    url, address, table_id = place
    path = f"{address}/{data_path(table_id)}"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, path, s3_server.endpoint], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    with writer.stdout:
        assert writer.stdout.readline() == "begun\n"
        writer.kill()
        writer.wait()
    with s3_server.client() as s3:
        assert list_open(s3, address) == [path.partition("/")[2]]
        time.sleep(2)  # until it is older than no time, by a clock of whole seconds
        plan = json.loads(collect(url, "--dry-run").stdout)
        assert plan["uploads"]["abandoned"] == 1
        assert len(list_open(s3, address)) == 1
        done = json.loads(collect(url, "--yes").stdout)
        assert done["uploads"] == {"abandoned": 1, "aborted": 1, "kept": 0, "young": 0, "skipped": []}
        assert list_open(s3, address) == []


@pytest.mark.usefixtures("only_slow")
def test_a_collection_is_killed_between_batches_of_aborts(
    place: tuple[str, str, str], s3_server: S3Server
) -> None:
    url, address, table_id = place
    bucket, _, prefix = address.partition("/")
    count = ABORTED_AT_ONCE + 7
    with s3_server.client() as s3:
        for _ in range(count):
            s3.create_multipart_upload(Bucket=bucket, Key=f"{prefix}/{data_path(table_id)}")
        time.sleep(2)
        killed = collect(url, "--yes", failpoint="collect.aborting=kill@2")
        assert killed.returncode == -9, killed.stderr
        assert len(list_open(s3, address)) == 7
        done = collect(url, "--yes")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["uploads"]["aborted"] == 7
        assert list_open(s3, address) == []
        assert collect(url, "--yes").returncode == 99
