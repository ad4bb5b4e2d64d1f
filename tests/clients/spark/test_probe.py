"""A look at a session and a catalog names each fault, before the first write and for `alpheus spark doctor`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from alpheus_test_servers import S3Server
from click.testing import CliRunner
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.cli import cli
from alpheus.errors import Denied, InvalidInput, Unavailable
from alpheus.spark import SparkCatalog, doctor, session
from alpheus.spark.files import probe as probing
from alpheus.spark.files.probe import Report, probe, probe_once
from alpheus_journal.storage import Storage

pytestmark = SPARK_MARKS

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


@pytest.mark.usefixtures("only_slow")  # the first write meets the same endpoint
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
    whole = probing._look_at

    def count_look(*arguments: Any, **options: Any) -> Any:
        looks.append(1)
        return whole(*arguments, **options)

    monkeypatch.setattr(probing, "_look_at", count_look)
    monkeypatch.setattr(probing, "_passed", set())
    with monkeypatch.context() as patch:
        change_place(patch, leave)
        for _ in range(2):
            with pytest.raises(Unavailable, match="this worker cannot read"):
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
    monkeypatch.setattr(probing, "_passed", set())
    with pytest.raises(Denied, match="AccessDenied"):
        probe_once(spark, bucket)


def test_a_session_without_jars_is_told_by_the_doctor(
    spark: SparkSession, bucket: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: SparkSession) -> None:
        raise InvalidInput("Spark has no jars", kind="bad_configuration", hint="take them")

    monkeypatch.setattr("alpheus.spark.files.locations._check_jars", refuse)
    assert only_problem(doctor(spark, bucket.url)) == "Spark has no jars -> take them"


class Failing:
    """A session whose jobs end with an error of Spark, as when workers lack a module."""

    def __init__(self, spark: SparkSession, error: Exception) -> None:
        self._spark = spark
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def range(self, *arguments: Any) -> Any:
        raise self._error


TRACE = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 403, in main
    import pyarrow
ModuleNotFoundError: No module named 'pyarrow'
"""


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (
            PySparkException(TRACE),
            "ModuleNotFoundError: No module named 'pyarrow'",
            "the Python of the driver",
        ),
        (
            Py4JError("Job aborted\n\tat X.scala:301\nCaused by: (Status Code: 403)"),
            "Job aborted",
            "allow that",
        ),
        (Py4JError("Job aborted\n\tat X.scala:403\n[CONNECT_INVALID]"), "Job aborted", "read the logs"),
        (Py4JError("AWS Error UNKNOWN (HTTP status 301): bucket is located in 'x'"), "AWS", "?region=NAME"),
        (Py4JError("ExpiredToken at s3://u:canary@b/x"), "ExpiredToken", "renew the credentials"),
    ],
)
def test_an_error_of_a_job_is_told(
    spark: SparkSession, disk: Storage, error: Exception, message: str, hint: str
) -> None:
    report = probe(Failing(spark, error), disk)  # type: ignore[arg-type]
    [problem] = report.problems
    assert problem.message.startswith(message)
    assert hint in problem.hint
    assert "canary" not in str(report)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Return a function that calls `session` and returns the settings that Spark would start with."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "jars").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)

    def of(**arguments: Any) -> dict[str, str]:
        found: dict[str, str] = {}

        def note(builder: Any, key: str, value: str) -> Any:
            found[key] = value
            return builder

        monkeypatch.setattr("pyspark.sql.SparkSession.Builder.config", note)
        monkeypatch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", lambda _: None)
        session(**arguments)
        return found

    return of


def test_a_session_for_a_catalog_on_s3_gets_its_jars(
    settings: Callable[..., dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "s3://bucket/lake"
    name = "spark.jars.packages"
    assert name not in settings(catalog="file:///lake")
    assert "hadoop-aws" in settings(catalog=url, settings={"spark.jars": "mine.jar"})[name]
    assert name not in settings(catalog=url, settings={"spark.jars": "hadoop-aws-3.5.0.jar"})
    kafka = settings(catalog=url, settings={name: "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"})[name]
    assert kafka.startswith("org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0,org.apache.hadoop:hadoop-aws:")
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.write_text(f"# packages\n{name}  a:b:1\nspark.master yarn\n")
    assert settings(catalog=url)[name].startswith("a:b:1,org.apache.hadoop:hadoop-aws:")
    defaults.write_text(f"{name}=org.apache.hadoop:hadoop-aws:3.5.0\n")
    assert name not in settings(catalog=url)
    defaults.unlink()
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages a:b:1 pyspark-shell")
    assert name not in settings(catalog=url)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    (tmp_path / "jars" / "hadoop-aws-3.5.0.jar").touch()
    assert name not in settings(catalog=url)


def test_only_a_session_of_one_machine_listens_on_it_alone(settings: Callable[..., dict[str, str]]) -> None:
    name = "spark.driver.host"
    assert settings()[name] == "127.0.0.1"
    assert settings(settings={"spark.master": "local[4]"})["spark.master"] == "local[4]"
    assert name not in settings(settings={"spark.master": "spark://host:7077"})


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
