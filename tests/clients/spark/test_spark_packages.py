"""`alpheus.spark.packages`, the script that downloads its jars, and Spark on an S3 server with these jars."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alpheus_test_servers import ROOT, S3Server
from spark_marks import SPARK_MARKS

from alpheus.errors import InvalidInput
from alpheus.spark import Jar, packages
from alpheus.spark.jars import HADOOP, LOCK, ROOTS, read_lock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK_MARKS


# -- packages and the lock


@pytest.mark.parametrize("version", HADOOP)
def test_coordinates_settings_and_recipe_agree_with_the_lock(version: str) -> None:
    found = packages(f"{version}.1")
    assert (found.spark_version, found.scheme) == (f"{version}.1", "s3")
    assert found.jars == read_lock().jars[found.hadoop_version]
    assert {*found.coordinates} <= {jar.coordinate for jar in found.jars}
    assert [coordinate.rpartition(":")[0] for coordinate in found.coordinates] == [*ROOTS]
    assert found.coordinates[0] == f"org.apache.hadoop:hadoop-aws:{found.hadoop_version}"
    assert found.settings["spark.jars.packages"].split(",") == [*found.coordinates]
    assert found.settings["spark.jars.excludes"].split(",")[0] == "software.amazon.awssdk:bundle"
    adds = re.findall(r"^ADD .*--checksum=sha256:(\S+) \$MAVEN/(\S+) /jars/$", found.recipe, re.MULTILINE)
    assert adds == [(jar.sha256, jar.path) for jar in found.jars]
    assert packages(version).jars == found.jars


def test_the_lock_is_well_formed() -> None:
    """Each version of Hadoop has one section. All modules of the SDK in a section have one version."""
    sections = re.findall(r"^\[(.+)\]$", LOCK.read_text(), re.MULTILINE)
    assert sections == sorted({*HADOOP.values()})
    for jars in read_lock().jars.values():
        coordinates = [jar.coordinate for jar in jars]
        assert coordinates == sorted({*coordinates})
        assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in jars)
        versions = {c.rpartition(":")[2] for c in coordinates if c.startswith("software.amazon.awssdk:")}
        assert len(versions) == 1, versions
        assert not any(":bundle:" in coordinate for coordinate in coordinates)


def test_the_default_is_the_installed_pyspark_and_its_hadoop() -> None:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    (client,) = (Path(spec.origin).parent / "jars").glob("hadoop-client-api-*.jar")
    assert client.stem == f"hadoop-client-api-{packages().hadoop_version}"


@pytest.mark.parametrize("version", ["3.5.1", "4.0.1", "4.30.0", "5.0.0", "4", "spark"])
def test_an_unknown_version_is_refused(version: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(f"Spark {version}")) as caught:
        packages(version)
    assert caught.value.kind == "not_supported"
    assert all(known in caught.value.hint for known in HADOOP)


@pytest.mark.parametrize(("scheme", "reason"), [("az", "ABFS"), ("gs", "Google"), ("hdfs", "hdfs://")])
def test_an_unknown_scheme_is_refused(scheme: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"{scheme}://.*") as caught:
        packages(scheme=scheme)
    assert caught.value.kind == "not_supported"
    assert reason in str(caught.value)
    assert "s3" in caught.value.hint


def test_a_jar_knows_its_file_and_path() -> None:
    jar = Jar(coordinate="org.apache.hadoop:hadoop-aws:3.5.0", sha256="00")
    assert jar.name == "hadoop-aws-3.5.0.jar"
    assert jar.path == "org/apache/hadoop/hadoop-aws/3.5.0/hadoop-aws-3.5.0.jar"


def test_packages_needs_no_pyspark() -> None:
    """`packages` is called before Spark exists, so it imports nothing of PySpark."""
    code = "import sys, alpheus.spark as s; s.packages('4.3'); sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- .ci/hadoop-aws


class Downloads:
    """A copy of the script in a folder of its own, with a repository of two small jars."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "repository"
        self.cache = folder / ".cache" / "hadoop-aws"
        self.lock = folder / LOCK.relative_to(ROOT)
        self.script = folder / ".ci" / "hadoop-aws"
        self.jars = [
            Jar(coordinate=f"org.example:{name}:1.0", sha256=hashlib.sha256(name.encode()).hexdigest())
            for name in ("first", "second")
        ]
        self.lock.parent.mkdir(parents=True)
        self.script.parent.mkdir()
        shutil.copy(ROOT / ".ci" / "hadoop-aws", self.script)
        lines = [f"{jar.coordinate} {jar.sha256}" for jar in self.jars]
        self.lock.write_text("\n".join(["# jars", "repository file:///nowhere", "[1.0]", *lines, ""]))
        for jar in self.jars:
            self.publish(jar, jar.name.partition("-")[0])

    def publish(self, jar: Jar, content: str) -> None:
        path = self.repository / jar.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run the script. Return its status and its error text."""
        environment = os.environ | {"PYTHON": sys.executable, "ALPHEUS_MAVEN": f"file://{self.repository}"}
        done = subprocess.run(
            [self.script, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.cache)) for path in self.cache.rglob("*") if path.is_file())


@pytest.fixture
def downloads(tmp_path: Path) -> Downloads:
    return Downloads(tmp_path)


def test_the_script_downloads_what_is_missing(downloads: Downloads) -> None:
    assert downloads.run() == (0, "")
    assert downloads.files() == ["1.0/first-1.0.jar", "1.0/second-1.0.jar"]
    kept = downloads.cache / "1.0" / "first-1.0.jar"
    before = kept.stat()
    (downloads.cache / "1.0" / "second-1.0.jar").unlink()
    assert downloads.run("1.0") == (0, "")
    assert len(downloads.files()) == 2
    assert (kept.stat().st_ino, kept.stat().st_mode & 0o777) == (before.st_ino, 0o644)


def test_the_script_refuses_another_file(downloads: Downloads) -> None:
    downloads.publish(downloads.jars[1], "another")
    status, text = downloads.run()
    assert status == 1
    assert "second-1.0.jar" in text
    assert f"{downloads.repository}/{downloads.jars[1].path}" in text
    assert downloads.jars[1].sha256 in text
    assert "1.0/second-1.0.jar" not in downloads.files()


def test_the_script_names_what_it_cannot_download(downloads: Downloads) -> None:
    shutil.rmtree(downloads.repository)
    status, text = downloads.run()
    assert status == 1
    assert "first-1.0.jar could not be downloaded from file://" in text
    assert len(text.splitlines()) == 1
    status, text = downloads.run("2.0")
    assert status == 1
    assert "no Hadoop 2.0, only 1.0" in text


# -- Spark with the jars


def point_bucket(spark: SparkSession, server: S3Server, bucket: str) -> None:
    """Set how the running session reaches one bucket. Other buckets keep their settings."""
    settings = {
        "endpoint": server.endpoint,
        "endpoint.region": server.region,
        "path.style.access": "true",
        "aws.credentials.provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
        "attempts.maximum": "2",
    }
    for name, value in settings.items():
        spark.conf.set(f"fs.s3a.bucket.{bucket}.{name}", value)


def test_plain_spark_writes_and_reads_parquet_on_s3(
    hadoop_aws_jars: list[Path], s3_server: S3Server, spark: SparkSession, tmp_path: Path
) -> None:
    """A running session reaches S3 by the settings of one bucket, and still reads local files."""
    point_bucket(spark, s3_server, s3_server.bucket)
    url = f"s3a://{s3_server.bucket}/spark-packages-{os.getpid()}"
    spark.range(100).repartition(2).write.parquet(url)
    spark.read.parquet(url).write.parquet(str(tmp_path / "local"))
    assert spark.read.parquet(str(tmp_path / "local")).agg({"id": "sum"}).collect()[0][0] == 4950
    with s3_server.client() as s3:
        listed = s3.list_objects_v2(Bucket=s3_server.bucket, Prefix=url.rpartition("/")[2])
    assert sum(entry["Key"].endswith(".parquet") for entry in listed["Contents"]) == 2
