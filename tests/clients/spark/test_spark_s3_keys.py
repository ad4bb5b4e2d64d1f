"""Spark on a store that encrypts with a key of KMS: which writer names the key, and which one cannot."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from alpheus_test_servers import KMS_KEY, S3Server, reachable
from pyspark.sql import SparkSession
from spark_marks import SPARK_MARKS
from store_proxy import StoreProxy, begins_an_object

import alpheus
from alpheus.errors import InvalidInput
from alpheus.spark import SparkCatalog, doctor

pytestmark = [*SPARK_MARKS, pytest.mark.slow]  # so that `make slow LANE=spark_s3` has these tests, too

KEY = "arn:aws:kms:us-east-1:111122223333:key/1234abcd"
HEADERS = {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": KEY}


def make_bucket(server: S3Server, *, key: str = "") -> str:
    """Make a bucket, whose default encryption is by `key`. Hadoop keeps one way to a bucket in a process."""
    bucket = f"keys-{uuid.uuid4().hex[:12]}"
    with server.client() as s3:
        s3.create_bucket(Bucket=bucket)
        if key:
            rule = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
            rules = [{"ApplyServerSideEncryptionByDefault": rule}]
            s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": rules})
    return bucket


def url_of(bucket: str, endpoint: str, key: str) -> str:
    return f"s3://{bucket}/lake?endpoint_url={quote(endpoint, safe=':/')}&self_test=false&kms_key_id={quote(key)}"


def test_a_key_that_tasks_cannot_name_is_refused(
    hadoop_aws_jars: list[Path], s3_server: S3Server, spark: SparkSession
) -> None:
    """Each object of the library carries the key. pyarrow cannot name it, so Spark's first write is refused before its
    tasks run, and reads pass."""
    bucket = make_bucket(s3_server)
    with StoreProxy(s3_server.port) as store:
        with alpheus.create(url_of(bucket, store.endpoint, KEY)) as catalog:
            catalog.create_namespace("s")
            catalog.create_table("s.t", pa.table({"id": [1]}))
            lake, before = SparkCatalog(spark, catalog), catalog.version()
            with pytest.raises(InvalidInput, match=r"no key of KMS.*pyarrow cannot name the key") as refused:
                lake.append("s.t", spark.range(5))
            assert "default encryption" in refused.value.hint
            assert catalog.version() == before
            assert [row.id for row in lake.read("s.t").collect()] == [1]
            lake.close()
        begun = store.find_requests(begins_an_object)
    of_tasks = [sent for sent in begun if "alpheus" not in sent.headers["user-agent"]]
    assert [sent for sent in of_tasks if "/data/selftest/" not in sent.path] == []
    assert len(of_tasks) == 1, "the look before the first write"
    of_library = [sent for sent in begun if sent not in of_tasks]
    assert {"vn", "def", "data", "lease"} <= {sent.path.split("/")[3] for sent in of_library}
    for sent in of_library:
        assert HEADERS.items() <= dict(sent.headers).items(), sent.path
    settings = {
        name: spark.conf.get(f"fs.s3a.bucket.{bucket}.encryption.{name}") for name in ("algorithm", "key")
    }
    assert settings == {"algorithm": "SSE-KMS", "key": KEY}


@pytest.mark.parametrize("key", [KMS_KEY, ""], ids=["of the bucket", "of no bucket"])
def test_the_default_encryption_of_the_bucket_gives_spark_the_key(
    hadoop_aws_jars: list[Path],
    shared_s3: Callable[[str], S3Server],
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    key: str,
    lane_count: Callable[[int, int], int],
) -> None:
    """A server with keys encrypts each object of each writer with the key, or the first write of Spark is refused."""
    if not lane_count(0, 1):
        pytest.skip("make slow LANE=spark_s3")
    server = reachable(shared_s3("minio"), monkeypatch)
    bucket = make_bucket(server, key=key)
    url = url_of(bucket, server.endpoint, KMS_KEY).replace("&self_test=false", "")
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", pa.table({"id": pa.array([1], pa.int64())}))
        lake = SparkCatalog(spark, catalog, lease=False)
        if not key:
            with pytest.raises(InvalidInput, match=f"no key of KMS, and one of the driver with .*{KMS_KEY}"):
                lake.append("s.t", spark.range(5))
            assert "default encryption" in str(doctor(spark, catalog))
            lake.close()
            return
        lake.append("s.t", spark.range(10, 20))
        lake.merge("s.t", spark.range(15, 25), on="id")
        lake.delete("s.t", "id = 1", mode="rewrite")
        assert sorted(row.id for row in lake.read("s.t").collect()) == [*range(10, 25)]
        assert doctor(spark, catalog).problems == ()
        lake.close()
    with server.client() as s3:
        keys = [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]]
        found = {name: s3.head_object(Bucket=bucket, Key=name).get("SSEKMSKeyId", "") for name in keys}
    assert [name for name in keys if "/data/" in name]
    assert [name for name, told in found.items() if not told.endswith(KMS_KEY)] == []
