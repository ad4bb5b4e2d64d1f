"""A `SparkCatalog` on Spark Connect over S3, in a process of its own, and the requests that its reads make.

Spark Connect has no JVM in the client's process, so Spark looks up each file of a frame at the store.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from alpheus_test_servers import S3Server
from spark_marks import SPARK_MARKS

pytestmark = [
    *SPARK_MARKS,
    pytest.mark.slow,  # so that `make slow LANE=spark_s3` has this test, too
    pytest.mark.skipif(
        importlib.util.find_spec("grpc_status") is None, reason="grpcio-status is not installed"
    ),
]

DRIVERS = Path(__file__).resolve().parents[2] / "faults" / "drivers"
FILES = (1, 100)


def test_a_lake_on_connect(
    hadoop_aws_jars: list[Path],
    s3_server: S3Server,
    tmp_path: Path,
    lane_count: Callable[[int, int], int],
) -> None:
    if not lane_count(0, 1):
        pytest.skip("starts a server of its own, which takes long: make slow LANE=spark_s3")
    bucket = f"connect-{uuid.uuid4().hex[:12]}"
    with s3_server.client() as s3:
        s3.create_bucket(Bucket=bucket)
    program = Path(__file__).with_name("connect_s3_program.py")
    jars = ",".join(map(str, hadoop_aws_jars))
    done = subprocess.run(
        [sys.executable, program, str(s3_server.port), bucket, jars, *map(str, FILES)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(DRIVERS)},
    )
    *lines, last = done.stdout.splitlines() or [""]
    assert last == "all of it", done.stdout[-2000:] + done.stderr[-6000:]
    told = [json.loads(line) for line in lines if line.startswith("{")]
    for line in told:
        print(line)
    assert [line["files"] for line in told] == [*FILES]
    for line in told:
        files, planned = line["files"], line["plan"]
        assert planned["LIST"] == files, "the clients/GUIDE.md says what a plan asks"
        assert 2 * files <= planned["HEAD"] <= 3 * files
