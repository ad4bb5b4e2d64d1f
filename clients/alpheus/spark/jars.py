"""The jars that Spark needs besides its own before it reads and writes a scheme of storage.

`hadoop_aws.lock` beside this module lists the jars of each version of Hadoop. PySpark is not imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from alpheus_journal.errors import InvalidInput

LOCK = Path(__file__).with_name("hadoop_aws.lock")

HADOOP = {"4.1": "3.4.2", "4.2": "3.5.0", "4.3": "3.5.0"}
"""The version of Hadoop that each version of PySpark brings. hadoop-aws must have the same version."""

ROOTS = (
    "org.apache.hadoop:hadoop-aws",
    "software.amazon.awssdk:s3",
    "software.amazon.awssdk:s3-transfer-manager",
    "software.amazon.awssdk:sts",
    "software.amazon.awssdk:apache-client",
    "software.amazon.awssdk:netty-nio-client",
)
"""The jars that bring all others of the lock as their dependencies."""

EXCLUDES = (
    "software.amazon.awssdk:bundle",
    "org.wildfly.openssl:wildfly-openssl",
    "io.netty:*",
    "org.apache.httpcomponents:*",
    "commons-logging:commons-logging",
    "commons-codec:commons-codec",
    "org.slf4j:slf4j-api",
)
"""Dependencies that are left out: the clients of all services of AWS (hundreds of MB), an encryption library that
hadoop-aws uses on request only, and libraries that PySpark brings."""

UNSUPPORTED = {
    "az": "Alpheus was not tested with Hadoop's driver for Azure (ABFS)",
    "gs": "Alpheus was not tested with Hadoop's driver for Google Cloud Storage",
}


class Jar(msgspec.Struct, frozen=True, kw_only=True):
    """One jar of a Maven repository. `coordinate` is group:artifact:version, and `sha256` is in hex."""

    coordinate: str
    sha256: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.rpartition("/")[2]

    @property
    def path(self) -> str:
        """The path of the file below the address of a repository."""
        group, artifact, version = self.coordinate.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar"


class Packages(msgspec.Struct, frozen=True, kw_only=True):
    """The jars for one version of Spark and one scheme.

    `coordinates` and `excludes` are for Spark's own download, see `settings`. `jars` has every jar that Spark then
    needs, for an image or a folder. `recipe` has the lines of a Dockerfile that put these jars into an image.
    """

    spark_version: str
    hadoop_version: str
    scheme: str
    coordinates: tuple[str, ...]
    excludes: tuple[str, ...]
    jars: tuple[Jar, ...]
    recipe: str

    @property
    def settings(self) -> dict[str, str]:
        """The settings with which a new Spark session downloads the jars from Maven Central when it starts."""
        return {
            "spark.jars.packages": ",".join(self.coordinates),
            "spark.jars.excludes": ",".join(self.excludes),
        }


class Lock(msgspec.Struct, frozen=True):
    """The content of the lock file. `jars` has the jars of each version of Hadoop."""

    repository: str
    jars: dict[str, tuple[Jar, ...]]


def packages(spark_version: str | None = None, scheme: str = "s3") -> Packages:
    """Return the jars with which this version of Spark reads and writes a scheme of storage.

    `spark_version` is a version like 4.3 or 4.3.0; None means the installed PySpark. Raises InvalidInput
    (`not_supported`) that names the supported versions or schemes, and when PySpark is not installed.
    """
    if scheme != "s3":
        reason = f": {UNSUPPORTED[scheme]}" if scheme in UNSUPPORTED else ""
        raise InvalidInput(
            f"no jars are known with which Spark reads {scheme}://{reason}",
            kind="not_supported",
            hint="the supported scheme is s3",
        )
    version = spark_version or installed_version()
    hadoop = HADOOP.get(".".join(version.split(".")[:2]))
    if hadoop is None:
        raise InvalidInput(
            f"no jars are known for Spark {version}",
            kind="not_supported",
            hint=f"the supported versions are {', '.join(HADOOP)}",
        )
    lock = read_lock()
    jars = lock.jars[hadoop]
    versions = {jar.coordinate.rpartition(":")[0]: jar.coordinate for jar in jars}
    return Packages(
        spark_version=version,
        hadoop_version=hadoop,
        scheme=scheme,
        coordinates=tuple(versions[root] for root in ROOTS),
        excludes=EXCLUDES,
        jars=jars,
        recipe=recipe_of(lock.repository, jars),
    )


def add_packages(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a new session needs besides `settings` to download the jars for catalogs on S3.

    The result is empty where hadoop-aws is already in Spark's folder of jars, in its defaults or in `settings`, and for
    a version of Spark that is not known here. Packages of others are kept.
    """
    home = Path(os.environ.get("SPARK_HOME") or _pyspark_home())
    defaults = _read_defaults(Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf")
    asked = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if any("hadoop-aws" in text for text in (asked, *defaults.values(), *settings.values())):
        return {}
    if "--packages" in asked or any((home / "jars").glob("hadoop-aws-*.jar")):
        return {}
    try:
        own = packages().settings
    except InvalidInput:
        return {}
    known = defaults | dict(settings)
    return {name: ",".join(filter(None, (known.get(name, ""), value))) for name, value in own.items()}


def _pyspark_home() -> Path:
    """Return the folder of the installed PySpark, without importing it. A missing PySpark has no jars."""
    found = importlib.util.find_spec("pyspark")
    return Path(found.origin).parent if found is not None and found.origin else Path()


def _read_defaults(path: Path) -> dict[str, str]:
    """Return the settings in a spark-defaults.conf; empty when it cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (
        re.split(r"[\s=:]+", line.strip(), maxsplit=1) for line in lines if not line.strip().startswith("#")
    )
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def installed_version() -> str:
    """Return the version of the installed PySpark. Raises InvalidInput (`not_supported`) without PySpark."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise InvalidInput(
            "PySpark is not installed, so the version of Spark must be given",
            kind="not_supported",
            hint=f"the supported versions are {', '.join(HADOOP)}",
        ) from None


@cache
def read_lock() -> Lock:
    """Read the lock file. A section begins with the version of Hadoop in brackets."""
    repository = hadoop = ""
    jars: dict[str, tuple[Jar, ...]] = {}
    for line in LOCK.read_text().splitlines():
        if line.startswith("["):
            hadoop = line.strip("[]")
            jars[hadoop] = ()
        elif line.startswith("repository "):
            repository = line.split()[1]
        elif line and not line.startswith("#"):
            coordinate, sha256 = line.split()
            jars[hadoop] += (Jar(coordinate=coordinate, sha256=sha256),)
    return Lock(repository, jars)


def recipe_of(repository: str, jars: tuple[Jar, ...]) -> str:
    """Return lines of a Dockerfile: a stage that downloads the jars, and a line that copies them into an image.

    A file that ADD downloads can only be read by root, so the lines change its mode.
    """
    adds = [f"ADD --chmod=644 --checksum=sha256:{jar.sha256} $MAVEN/{jar.path} /jars/" for jar in jars]
    return "\n".join(
        [
            "# syntax=docker/dockerfile:1",
            "FROM scratch AS hadoop-aws",
            f"ARG MAVEN={repository}",
            *adds,
            "",
            "# In the stage of the job. Where pip installed PySpark, its jars are in site-packages/pyspark/jars.",
            "COPY --from=hadoop-aws /jars/ /opt/spark/jars/",
            "",
        ]
    )
