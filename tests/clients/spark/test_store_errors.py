"""Texts of Spark's errors whose cause is the store, and the errors of ours that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from alpheus.errors import Denied, InvalidInput, Unavailable
from alpheus.spark.files.store_errors import error_of
from alpheus_journal.storage import open_storage

S3 = open_storage("s3://bkt/lake?region=eu-central-1")
TASK = (
    "Traceback (most recent call last):\n  File x.py\nalpheus.spark.files.task_writer.StoreError: OSError: "
)
READ = "Encountered error in s3a://bkt/lake/data/x.parquet.\n\tat org.apache.spark.Scan(Scan.scala:403)\n"
SDK = (
    READ
    + "Caused by: java.io.IOException: Server error accessing s3://bkt/lake/x\n\tat software.Get(Get.java:1)\n"
)
S3A = READ + "Caused by: org.apache.hadoop.fs.s3a."


@pytest.mark.parametrize(
    ("told", "kind", "message"),
    [
        (TASK + "AWS Error UNKNOWN: Unable to parse ExceptionName: ExpiredToken", Denied, "ExpiredToken"),
        (TASK + "AWS Error ACCESS_DENIED during PutObject operation", Denied, "a task could not store a file"),
        (TASK + "AWS Error REQUEST_TIME_TOO_SKEWED (HTTP status 403)", InvalidInput, "TOO_SKEWED"),
        (TASK + "AWS Error INVALID_ACCESS_KEY_ID during PutObject operation: does not exist", Denied, "ACCESS_KEY"),
        (TASK + "AWS Error SLOW_DOWN (HTTP status 503)", Unavailable, "SLOW_DOWN"),
        (TASK + "AWS Error NO_SUCH_BUCKET", InvalidInput, "NO_SUCH_BUCKET"),
        (TASK + "No space left on device", Unavailable, "No space left"),
        (S3A + "AWSBadRequestException: getFileStatus on s3a://bkt/lake/x: (Status 400)", Denied, "getFileStatus"),
        (S3A + "AWSServiceThrottledException: open: SlowDown (Status Code: 503)", Unavailable, "open: SlowDown"),
        (SDK + "Caused by: software.S3Exception: The token has expired.\n\t... 1 more", Denied, "S3Exception: The"),
        (SDK + "Caused by: org.ConnectionClosedException: Premature end", Unavailable, "Premature end"),
    ],
)  # fmt: skip
def test_the_store_is_the_cause(told: str, kind: type[Exception], message: str) -> None:
    found = error_of(S3, told)
    assert type(found) is kind
    assert message in found.message
    assert "scala" not in found.message
    assert "\t" not in found.message
    assert found.hint


def test_a_folder_of_spark_that_is_gone_is_named(tmp_path: Path) -> None:
    lost = "/tmp/blockmgr-0f0e8c5b-2d63-4d43-9a3b-2f1f0a9b7c11/0c/shuffle_0_1_0.data"
    told = (
        f"{READ}\tat x.X(X.scala:1)\nCaused by: java.nio.file.NoSuchFileException: {lost}\n\tat x.Y(Y.java:2)"
    )
    for storage in (S3, open_storage(f"file://{tmp_path}")):
        found = error_of(storage, told)
        assert isinstance(found, Unavailable)
        assert found.message == f"Spark lost files on a local disk: java.nio.file.NoSuchFileException: {lost}"
        assert "spark.local.dir" in found.hint


def test_a_busy_store_is_not_called_unreachable() -> None:
    for told in (
        TASK + "AWS Error SLOW_DOWN",
        S3A + "AWSServiceThrottledException: SlowDown (Status Code: 503)",
    ):
        found = error_of(S3, told)
        assert isinstance(found, Unavailable)
        assert "repeat the write or the read later" in found.hint


@pytest.mark.parametrize(
    "told",
    [
        READ + "Caused by: java.lang.ArithmeticException: divide by zero",
        S3A.replace("bkt/lake", "other/lake") + "AWSBadRequestException: getFileStatus on s3a://other/x",
        "SocketTimeout in a function of the user",
    ],
)
def test_something_else_is_the_cause(told: str) -> None:
    assert error_of(S3, told) is None


def test_a_disk_has_no_such_errors(tmp_path: Path) -> None:
    disk = open_storage(f"file://{tmp_path}")
    assert error_of(disk, S3A + "AWSBadRequestException: x") is None
    assert isinstance(error_of(disk, TASK + "AWS Error ACCESS_DENIED"), Denied)
