"""What a look at a session and a catalog finds, before the first write and for `alpheus spark doctor`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from alpheus_test_servers import S3Server
from click.testing import CliRunner
from pyspark.sql import SparkSession

import alpheus
from alpheus.cli import cli
from alpheus.errors import Denied, InvalidInput
from alpheus.spark import SparkCatalog, doctor, session
from alpheus.spark.files import probe as probing
from alpheus.spark.files.probe import Report, probe, probe_once
from alpheus.spark.jars import HADOOP
from alpheus_journal.storage import Storage

Place = tuple[str, Mapping[str, Any] | None, str]


@pytest.fixture
def disk(spark: SparkSession, tmp_path: Path) -> Iterator[Storage]:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        lake = SparkCatalog(spark, catalog)
        yield lake.storage
        lake.close()


@pytest.fixture
def bucket(hadoop_aws_jars: list[Path], s3_server: S3Server, spark: SparkSession) -> Iterator[Storage]:
    with alpheus.create(s3_server.url()) as catalog:
        lake = SparkCatalog(spark, catalog)
        yield lake.storage
        lake.close()


def change_place(patch: pytest.MonkeyPatch, change: Callable[[Place], Place]) -> None:
    """Let tasks go to another place than the driver, as on machines that are set up in another way."""
    right = probing.task_place
    patch.setattr(probing, "task_place", lambda *arguments: change(right(*arguments)))


def only_problem(report: Report) -> str:
    [problem] = report.problems
    return f"{problem.message} -> {problem.hint}"


def test_a_disk_that_all_see_passes_and_keeps_nothing(
    spark: SparkSession, disk: Storage, tmp_path: Path
) -> None:
    report = probe(spark, disk)
    assert report.problems == ()
    assert report.executors == len(report.workers) == 1
    assert report.workers[0].alpheus == alpheus.__version__
    assert report.workers[0].clock_offset_seconds == 0
    assert [path for path in (tmp_path / "lake" / "data").rglob("*") if path.is_file()] == []
    assert str(report).splitlines()[-1] == "all is well"


def test_a_disk_that_workers_do_not_share_is_told(
    spark: SparkSession, disk: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_place(monkeypatch, lambda place: (f"{tmp_path}/elsewhere/", *place[1:]))
    assert "a disk that the driver and all workers share" in only_problem(probe(spark, disk))
    assert not (tmp_path / "elsewhere").exists(), "a worker makes no folder of its own"


def test_workers_that_see_a_copy_are_told(
    spark: SparkSession, disk: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(place: Place) -> Place:
        shutil.copytree(place[0], tmp_path / "copy")
        return f"{tmp_path}/copy/", *place[1:]

    change_place(monkeypatch, copy)
    assert "the driver does not see what this worker stored" in only_problem(probe(spark, disk))


def test_a_bucket_that_all_see_passes_and_keeps_nothing(
    spark: SparkSession, bucket: Storage, s3_server: S3Server
) -> None:
    assert probe(spark, bucket).problems == ()
    with s3_server.client() as s3:
        found = s3.list_objects_v2(Bucket=s3_server.bucket).get("Contents", [])
    assert [each["Key"] for each in found if "selftest" in each["Key"]] == []


def leave(place: Place) -> Place:
    """Return a place at an endpoint where nobody answers."""
    return place[0], {**(place[1] or {}), "endpoint_override": "127.0.0.1:9"}, place[2]


def test_an_endpoint_that_workers_do_not_reach_is_told(
    spark: SparkSession, bucket: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_place(monkeypatch, leave)
    assert "let that process reach the endpoint" in only_problem(probe(spark, bucket))


def test_another_bucket_is_told(
    spark: SparkSession, bucket: Storage, monkeypatch: pytest.MonkeyPatch, s3_server: S3Server
) -> None:
    change_place(
        monkeypatch, lambda place: (place[0].replace(s3_server.bucket, "no-such-bucket", 1), *place[1:])
    )
    assert "cannot read what the driver stored" in only_problem(probe(spark, bucket))


def test_the_first_write_looks_once(
    spark: SparkSession, bucket: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    whole = probing.probe

    def counted(*arguments: Any, **options: Any) -> Report:
        looks.append(1)
        return whole(*arguments, **options)

    monkeypatch.setattr(probing, "probe", counted)
    monkeypatch.setattr(probing, "_passed", set())
    with monkeypatch.context() as patch:
        change_place(patch, leave)
        for _ in range(2):
            with pytest.raises(InvalidInput, match="this worker cannot read"):
                probe_once(spark, bucket)
    assert len(looks) == 2, "what failed is tried again"
    probe_once(spark, bucket)
    probe_once(spark, bucket)
    assert len(looks) == 3


def test_the_driver_without_rights_is_told(
    spark: SparkSession, bucket: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(path: str, data: bytes) -> None:
        raise Denied(f"{path}: AccessDenied")

    monkeypatch.setattr(bucket, "create", refuse)
    report = probe(spark, bucket)
    assert "allow that process to read and write below data/" in only_problem(report)
    assert report.problems[0].where == "driver"


def test_a_session_without_jars_is_told_by_the_doctor(
    spark: SparkSession, bucket: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: SparkSession) -> None:
        raise InvalidInput("Spark has no jars", kind="bad_configuration", hint="take them")

    monkeypatch.setattr("alpheus.spark.files.locations._check_jars", refuse)
    assert only_problem(doctor(spark, bucket.url)) == "Spark has no jars -> take them"


def test_a_session_for_a_catalog_on_s3_gets_its_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the settings are looked at: a session that runs is returned unchanged."""
    found: dict[str, str] = {}

    def note(builder: Any, key: str, value: str) -> Any:
        found[key] = value
        return builder

    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.config", note)
    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", lambda _: None)
    session(catalog="file:///lake")
    assert "spark.jars.packages" not in found
    session(catalog="s3://bucket/lake", settings={"spark.jars": "mine.jar"})
    assert "spark.jars.packages" not in found
    session(catalog="s3://bucket/lake")
    assert any(f"hadoop-aws:{version}" in found["spark.jars.packages"] for version in HADOOP.values())


def test_the_command_prints_the_report(
    spark: SparkSession, disk: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # the session is that of all tests

    def call(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["spark", *words, "--catalog", disk.url])
        return result.exit_code, result.stdout

    status, text = call("doctor", "--conf", "spark.app.name=doctor")
    assert (status, text.splitlines()[-1]) == (0, "all is well")
    change_place(monkeypatch, lambda place: (f"{tmp_path}/elsewhere/", *place[1:]))
    status, text = call("doctor", "--output", "json")
    assert status == 1
    [problem] = json.loads(text)["problems"]
    assert "all workers share" in problem["hint"]
    assert call("doctor", "--conf", "a=1", "--conf", "a=2")[0] == 2


def test_the_command_prints_the_jars() -> None:
    runner = CliRunner()
    text = runner.invoke(cli, ["spark", "packages", "--spark-version", "4.3"]).stdout
    assert text.split()[::2] == ["--packages", "--exclude-packages"]
    assert text.split()[1].startswith("org.apache.hadoop:hadoop-aws:3.5.0,")
    assert (
        "ADD --chmod=644 --checksum=sha256:" in runner.invoke(cli, ["spark", "packages", "--recipe"]).stdout
    )
    refused = runner.invoke(cli, ["spark", "packages", "--spark-version", "2.4"])
    assert refused.exit_code != 0
