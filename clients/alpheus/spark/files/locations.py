"""Where Spark finds the files of a storage: as Hadoop's file systems call them, and as Arrow's do in tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import environ
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from alpheus_journal.errors import InvalidInput
from alpheus_journal.storage import Storage

if TYPE_CHECKING:
    from alpheus_journal.storage.s3 import S3Url
    from alpheus_journal.storage.s3_client import Bucket

_GLOB = frozenset("*?[]{}\\,^")


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session is one of Spark Connect, which has no JVM in this process."""
    return getattr(spark, "_jsparkSession", None) is None


def hadoop_version(spark: SparkSession) -> str:
    """Return the version of Hadoop in Spark's JVM; empty with Spark Connect."""
    if is_connect(spark):
        return ""
    jvm: Any = spark._jvm
    return str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())


def is_local(storage: Storage) -> bool:
    """Return whether the files of the storage are files of a disk that this machine and all workers see."""
    return storage.uri("data").startswith("file:")


def hadoop_path(storage: Storage, path: str, *, glob: bool) -> str:
    """Return the file or folder as Spark takes it: decoded, and with `glob` escaped for Spark's pattern matching.

    Raises InvalidInput (`not_supported`) for a storage that Spark cannot reach.
    """
    scheme, _, rest = storage.uri(path).partition("://")
    if scheme not in _HADOOP_SCHEMES:
        raise InvalidInput(
            f"the catalog's data is stored in {storage.url}, which Spark cannot reach in this release",
            kind="not_supported",
            hint="Spark reads catalogs at file:// and s3://; use the library, or move the catalog",
        )
    plain = unquote(rest)
    if glob:
        plain = "".join(f"\\{character}" if character in _GLOB else character for character in plain)
    return f"{_HADOOP_SCHEMES[scheme]}://{plain}"


def spark_path(spark: SparkSession, storage: Storage, path: str) -> str:
    """Return the file as scans of this session take it. Only `file_index` takes it without patterns (`hadoop_path`)."""
    return hadoop_path(storage, path, glob=is_local(storage) or is_connect(spark))


_HADOOP_SCHEMES = {"file": "file", "s3": "s3a"}


def s3_url_of(storage: Storage) -> S3Url:
    """Return the parsed URL of a storage on S3. Raises InvalidInput for the driver obstore (`not_supported`)."""
    from alpheus_journal.storage.s3 import S3Url

    if "obstore" in parse_qs(urlsplit(storage.url).query).get("client", []):
        raise InvalidInput(
            f"Spark cannot reach {storage.url}",
            kind="not_supported",
            hint="leave client=obstore out of the URL",
        )
    return S3Url.parse(storage.url)


def bucket_of(storage: Storage) -> Bucket:
    """Return the bucket of a storage on S3, with the endpoint and the region that the library uses.

    Raises InvalidInput for the driver obstore (`not_supported`), and for an unknown profile (`bad_configuration`).
    """
    # From the extra `s3`, which catalogs on local disks do not need.
    import botocore.exceptions
    import botocore.session
    from botocore.configprovider import ConfiguredEndpointProvider

    bucket = s3_url_of(storage).bucket
    session = botocore.session.Session(profile=bucket.profile or None)
    try:
        profile = session.get_scoped_config()
    except botocore.exceptions.ProfileNotFound as error:
        hint = "add the profile to ~/.aws/config, or correct the catalog's URL"
        raise InvalidInput(str(error)[:200], kind="bad_configuration", hint=hint) from None
    endpoint = bucket.endpoint_url
    if not endpoint and not session.get_config_variable("ignore_configured_endpoint_urls"):
        found = ConfiguredEndpointProvider(
            full_config=session.full_config, scoped_config=profile, client_name="s3"
        ).provide()
        endpoint = found or ""
    region = bucket.region or session.get_config_variable("region") or environ.get("AWS_REGION", "us-east-1")
    style = bool(endpoint) if bucket.path_style is None else bucket.path_style
    return msgspec.structs.replace(bucket, endpoint_url=endpoint, region=region, path_style=style)


def refuse_static_token(storage: Storage, what: str) -> None:
    """Raise InvalidInput (`bad_configuration`) where the driver has a session token that nobody renews.

    `what` runs for long, and fails when the token ends. Spark's S3A and pyarrow read the token once. Credentials of
    another kind are renewed by whoever uses them.
    """
    if is_local(storage):
        return
    import botocore.credentials
    import botocore.session

    bucket = bucket_of(storage)
    if bucket.anonymous:
        return
    found = botocore.session.Session(profile=bucket.profile or None).get_credentials()
    if found is None or isinstance(found, botocore.credentials.RefreshableCredentials) or not found.token:
        return
    raise InvalidInput(
        f"{what} would fail when the AWS session token of this process ends: nobody renews a token from {found.method}",
        kind="bad_configuration",
        hint="use a role (instance, container, web identity) or long-lived keys; a short job may use the token",
    )


def task_place(storage: Storage, folder: str) -> tuple[str, Mapping[str, Any] | None, str]:
    """Return where tasks write: the folder as Arrow names it, the arguments of Arrow's S3FileSystem (None for local
    disks), and the AWS profile (empty for the default chain)."""
    if is_local(storage):
        return hadoop_path(storage, folder.rstrip("/"), glob=False).removeprefix("file://") + "/", None, ""
    bucket = bucket_of(storage)
    arguments: dict[str, Any] = {
        "anonymous": bucket.anonymous,
        "region": bucket.region,
        "background_writes": False,
        "allow_delayed_open": True,
        "connect_timeout": bucket.connect_timeout,
        "request_timeout": bucket.read_timeout,
    }
    if bucket.endpoint_url:
        parts = urlsplit(bucket.endpoint_url)
        arguments |= {"scheme": parts.scheme, "endpoint_override": parts.netloc + parts.path.rstrip("/")}
        arguments["force_virtual_addressing"] = not bucket.path_style
    return unquote(storage.uri(folder.rstrip("/"))).removeprefix("s3://") + "/", arguments, bucket.profile


_used: dict[str, dict[str, str]] = {}
"""The settings with which this process reaches each bucket. Hadoop keeps one connection a bucket and JVM, with the
settings of its first use."""


def set_up_store(spark: SparkSession, storage: Storage) -> None:
    """Tell Spark how to reach a storage. Settings hold names, never secrets, and belong to one bucket.

    Raises InvalidInput: `not_supported` for a storage that Spark cannot reach, and `bad_configuration` where the jars
    of S3 are missing, or this process already reaches the bucket in another way.
    """
    hadoop_path(storage, "data", glob=False)
    if is_local(storage):
        return
    bucket = bucket_of(storage)
    _check_profile(bucket)
    settings = {
        "aws.credentials.provider": _provider_of(bucket),
        "auth.profile.name": bucket.profile or "default",
        "endpoint": bucket.endpoint_url,
        "endpoint.region": bucket.region,
        "path.style.access": "true" if bucket.path_style else "false",
        "connection.ssl.enabled": str(not bucket.endpoint_url.startswith("http:")).lower(),
    }
    if bucket.kms_key_id:  # for what a program of the user writes there: Alpheus writes nothing by S3A
        settings |= {"encryption.algorithm": "SSE-KMS", "encryption.key": bucket.kms_key_id}
    _check_jars(spark)
    used = _used.setdefault(bucket.name, settings)
    for name in {**used, **settings}:
        found, wanted = used.get(name, ""), settings.get(name, "")
        if found != wanted:
            raise InvalidInput(
                f"Spark reaches the bucket with fs.s3a.{name}={found[:200]}, but {storage.url} needs {wanted}",
                kind="bad_configuration",
                hint="reach a bucket in one way in one Spark application; use another application for the other way",
            )
    for name, value in settings.items():
        spark.conf.set(f"fs.s3a.bucket.{bucket.name}.{name}", value)


def _check_profile(bucket: Bucket) -> None:
    """Raise InvalidInput (`bad_configuration`) where S3A does not find the profile of the URL: Hadoop's provider reads
    the file of credentials, and never `~/.aws/config`."""
    if not bucket.profile or bucket.anonymous:
        return
    from botocore.configloader import raw_config_parse
    from botocore.exceptions import ConfigNotFound

    path = environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    try:
        found = raw_config_parse(path)
    except ConfigNotFound:
        found = {}
    if bucket.profile not in found:
        raise InvalidInput(
            f"the profile {bucket.profile} is not in {path}, the one file where S3A looks for profiles",
            kind="bad_configuration",
            hint="write its section into that file, too (credential_process is read there), or leave the profile out of"
            " the URL and set AWS_PROFILE for the driver and the executors",
        )


def _check_jars(spark: SparkSession) -> None:
    """Raise InvalidInput (`bad_configuration`) unless the JVM has the classes of s3a://."""
    if is_connect(spark):
        return
    jvm: Any = spark._jvm
    context: Any = spark._jsc
    try:
        found = jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass("s3a", context.hadoopConfiguration())
    except Py4JError as error:
        raise InvalidInput(
            "Spark has no jars for catalogs on S3 (hadoop-aws and modules of the AWS SDK)",
            kind="bad_configuration",
            hint="start the session with the settings of alpheus.spark.packages().settings",
        ) from error
    source = found.getProtectionDomain().getCodeSource()
    jar = "" if source is None else str(source.getLocation().toString())
    version = re.search(r"hadoop-aws-(\d[\w.-]*)\.jar", jar)
    hadoop = hadoop_version(spark)
    if version is not None and version[1] != hadoop:
        raise InvalidInput(
            f"Spark has Hadoop {hadoop}, but hadoop-aws {version[1]}, which fails in the middle of a job",
            kind="bad_configuration",
            hint="use the jars of alpheus.spark.packages()",
        )


def _provider_of(bucket: Bucket) -> str:
    """Return the class that gives S3A the credentials that the library takes."""
    if bucket.anonymous:
        return "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    if bucket.profile:
        return "org.apache.hadoop.fs.s3a.auth.ProfileAWSCredentialsProvider"
    return "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
