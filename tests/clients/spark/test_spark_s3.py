"""Catalogs on S3, through Spark: each verb over a real server, with what it asks the server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from alpheus_test_servers import S3Server
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.errors import InvalidInput
from alpheus.spark import SparkCatalog
from alpheus.spark.files.locations import bucket_of, refuse_static_token, set_up_store, task_place
from alpheus_journal.storage import open_storage

pytestmark = [*SPARK_MARKS, pytest.mark.slow]  # so that `make slow LANE=spark_s3` has these tests, too

ROWS = 200
LANE = "make slow LANE=spark_s3"


@pytest.fixture
def lake(hadoop_aws_jars: list[Path], s3_server: S3Server, spark: SparkSession) -> Iterator[SparkCatalog]:
    with alpheus.create(s3_server.url()) as catalog:
        catalog.create_namespace("s")
        lake = SparkCatalog(spark, catalog)
        yield lake
        lake.close()


def frame(spark: SparkSession, begin: int = 0, end: int = ROWS) -> DataFrame:
    number = f.col("id")
    return spark.range(begin, end, numPartitions=2).select(
        "id",
        f.when(number % 10 > 0, f.concat(f.lit("k"), number % 3)).alias("k"),
        f.struct((number * 2).cast("int").alias("a"), f.array(number.cast("double")).alias("l")).alias("st"),
    )


def rows_of(lake: SparkCatalog, name: str = "s.t") -> list[dict[str, Any]]:
    """Return the rows as Spark reads them, after a check that the library reads the same rows."""
    mine = sorted(
        (row.asDict(recursive=True) for row in lake.read(name).collect()), key=lambda row: row["id"]
    )
    arrow = sorted(lake.catalog.read(name).to_pylist(), key=lambda row: row["id"])
    assert mine == arrow
    return mine


def test_each_verb(lake: SparkCatalog, lane_count: Callable[[int, int], int]) -> None:
    """Each verb does on S3 what it does on a local disk. A short run looks at the rows after the changes, and leaves
    the verbs out that test_spark_s3_faults runs: append, merge and compact."""
    spark = lake.spark
    has_all = bool(lane_count(0, 1))
    lake.create_table("s.t", frame(spark), partition_by=["k"], sort_by=["id desc"])
    model = {row["id"]: row["k"] for row in frame(spark).collect()}
    assert len(model) == ROWS

    def same(*, always: bool = True) -> None:
        if always or has_all:
            assert {row["id"]: row["k"] for row in rows_of(lake)} == model

    if has_all:
        same()
        lake.append("s.t", frame(spark, ROWS, ROWS + 20))
        model |= {row["id"]: row["k"] for row in frame(spark, ROWS, ROWS + 20).collect()}
        same()
    lake.delete("s.t", "id < 5")
    lake.delete("s.t", "id BETWEEN 5 AND 9", mode="rewrite")
    model = {key: value for key, value in model.items() if key > 9}
    same(always=False)
    lake.update("s.t", {"k": "'new'"}, "id = 12")
    model[12] = "new"
    same(always=False)
    if has_all:
        lake.merge("s.t", spark.createDataFrame([(13, "m"), (900, "m")], "id BIGINT, k STRING"), on="id")
        model |= {13: "m", 900: "m"}
        same()
    lake.overwrite("s.t", spark.createDataFrame([(901, "m")], "id BIGINT, k STRING"), where="id >= 900")
    model = {key: value for key, value in model.items() if key < 900} | {901: "m"}
    same()
    if has_all:
        lake.compact("s.t")
        same()
    assert lake.read("s.t", where="id = 12").collect()[0]["k"] == "new"
    lake.catalog.update_table("s.t", rename_columns={"k": "kind"})
    assert {row["kind"] for row in lake.read("s.t", where="kind = 'm'").collect()} == {"m"}
    assert lake.catalog.admin.check().ok


def test_a_table_is_planned_without_a_listing(lake: SparkCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan asks the store for no footer, unless columns were changed: then for one of each older schema, once."""
    spark = lake.spark
    lake.create_table("s.t", frame(spark))
    asked: list[str] = []
    part = type(lake.storage).read_part

    async def read_part(storage: Any, path: str, **where: int) -> bytes:
        asked.append(path)
        return await part(storage, path, **where)

    monkeypatch.setattr(type(lake.storage), "read_part", read_part)
    for _ in range(2):
        lake.append("s.t", frame(spark).repartition(8))
    df = lake.read("s.t")
    assert len(df.inputFiles()) > 10
    assert asked == []
    assert df.count() == 3 * ROWS
    lake.catalog.update_table("s.t", rename_columns={"k": "kind"})
    for _ in range(2):
        renamed = lake.read("s.t", where="kind IS NULL")
    assert len(asked) == 1
    assert renamed.count() == 3 * len(range(0, ROWS, 10))


@pytest.mark.usefixtures("only_slow")  # test_spark_foreign_writes has all statements, over a disk
def test_no_statement_writes_into_a_frame(lake: SparkCatalog) -> None:
    spark = lake.spark
    lake.create_table("s.t", frame(spark).select("id"))
    before = rows_of(lake)
    lake.read("s.t").createOrReplaceTempView("s3_view")
    with pytest.raises(Exception, match="UNSUPPORTED_INSERT"):
        spark.sql("INSERT OVERWRITE s3_view VALUES (1)")
    spark.catalog.dropTempView("s3_view")
    assert rows_of(lake) == before


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.sql.hive.manageFilesourcePartitions", "false"),
        ("spark.sql.hive.filesourcePartitionFileCacheSize", "0"),
    ],
    ids=["usual", "unmanaged", "no cache"],
)
def test_a_lost_file_is_named(
    lake: SparkCatalog,
    s3_server: S3Server,
    setting: str,
    value: str,
    lane_count: Callable[[int, int], int],
) -> None:
    """A file that the store lost is an error that names the file. It never means fewer rows, whatever the session keeps
    of listings."""
    if "filesource" in setting.lower() and not lane_count(0, 1):
        pytest.skip(LANE)
    before = lake.spark.conf.get(setting)
    lake.spark.conf.set(setting, value)
    try:
        lose_a_file(lake, s3_server)
    finally:
        lake.spark.conf.set(setting, before)


def test_refreshing_a_view_never_loses_rows(lake: SparkCatalog) -> None:
    """Spark would list the files of a view anew. It cannot, and the view keeps its files."""
    lake.create_table("s.t", frame(lake.spark))
    kept = lake.read("s.t")
    kept.createOrReplaceTempView("refreshed")
    for statement in ("REFRESH TABLE refreshed", "REFRESH s3a://bucket/"):
        with contextlib.suppress(PySparkException, Py4JError):
            lake.spark.sql(statement).collect()
        assert kept.count() == ROWS
        assert lake.spark.table("refreshed").count() == ROWS
    lake.spark.catalog.refreshByPath(lake.storage.url.replace("s3://", "s3a://").partition("?")[0])
    assert lake.spark.table("refreshed").count() == kept.count() == ROWS


def lose_a_file(lake: SparkCatalog, s3_server: S3Server) -> None:
    lake.create_table("s.t", frame(lake.spark))
    table = lake.catalog.load_table("s.t").definition
    [first, *_] = lake.lists.of(table.id, table.segments)
    key = unquote(lake.storage.uri(first.path)).removeprefix(f"s3://{s3_server.bucket}/")
    with s3_server.client() as s3:
        s3.delete_object(Bucket=s3_server.bucket, Key=key)
    with pytest.raises(Exception, match=first.path.rpartition("/")[2]):
        lake.read("s.t").count()


@pytest.mark.parametrize("rows", [1, 40_000], ids=["shorter", "longer"])
def test_a_file_of_another_size_is_found(
    lake: SparkCatalog, s3_server: S3Server, rows: int, lane_count: Callable[[int, int], int]
) -> None:
    """A check of footers names a file that another program stored at the path. A plan does not look at files, and Spark
    takes a file's size from the store. So a read fails where the file lacks the ids of the table's columns."""
    if rows == 1 and not lane_count(0, 1):
        pytest.skip(LANE)
    lake.create_table("s.t", frame(lake.spark))
    table = lake.catalog.load_table("s.t").definition
    [first, *_] = lake.lists.of(table.id, table.segments)
    key = unquote(lake.storage.uri(first.path)).removeprefix(f"s3://{s3_server.bucket}/")
    other = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [*range(rows)]}), other)
    with s3_server.client() as s3:
        s3.put_object(Bucket=s3_server.bucket, Key=key, Body=other.getvalue().to_pybytes())
    found = lake.catalog.admin.check(footers=True)
    assert [each.path for each in found.findings if each.path] == [first.path]
    with pytest.raises(Exception, match=r"(?i)field ids"):
        lake.read("s.t").collect()


def test_a_bucket_is_reached_in_one_way(lake: SparkCatalog, s3_server: S3Server) -> None:
    """Hadoop keeps the settings of a bucket's first use, so another way to the bucket is refused."""
    elsewhere = s3_server.url(endpoint=s3_server.endpoint.replace("127.0.0.1", "localhost"))
    with alpheus.create(elsewhere) as other:
        with pytest.raises(InvalidInput, match=r"endpoint=http://127.*needs http://localhost") as caught:
            SparkCatalog(lake.spark, other)
        assert caught.value.kind == "bad_configuration"


def test_credentials_never_reach_spark(lake: SparkCatalog, s3_server: S3Server) -> None:
    """Settings and plans hold names of providers, never keys."""
    lake.create_table("s.t", frame(lake.spark))
    df = lake.read("s.t", where="id > 3")
    shown = [f"{key}={value}" for key, value in lake.spark.conf.getAll.items()]
    shown.append(df._jdf.queryExecution().toString())
    for secret in (s3_server.access_key, s3_server.secret_key):
        assert not [text for text in shown if secret in text]
    provider = lake.spark.conf.get(f"fs.s3a.bucket.{s3_server.bucket}.aws.credentials.provider")
    assert provider.endswith("DefaultCredentialsProvider")


def test_a_pipeline_commits_its_outputs(lake: SparkCatalog) -> None:
    """A pipeline on S3 works each version in once."""
    from alpheus.pipeline import Pipeline, appends

    lake.catalog.create_table("s.in", pa.schema([("id", pa.int64())]))
    lake.catalog.create_table("s.out", pa.schema([("id", pa.int64())]))
    pipeline = Pipeline("on_s3", retries=0, backoff=0)

    @pipeline.job(inputs={"new": appends("s.in")}, outputs=["s.out"])
    def copy(run: Any) -> None:
        run.append("s.out", run.read("new").select("id"))

    for begin in (0, 10):
        lake.catalog.append("s.in", [{"id": number} for number in range(begin, begin + 10)])
        [result] = pipeline.run(lake)
        assert result.state == "committed", result
    assert sorted(lake.catalog.read("s.out")["id"].to_pylist()) == list(range(20))


@pytest.mark.parametrize("url", ["s3://bkt/x?client=obstore", "s3://bkt/x?profile=no-such-profile"])
def test_what_spark_cannot_reach_is_refused(lake: SparkCatalog, url: str) -> None:
    storage = open_storage(url)
    with pytest.raises(InvalidInput, match=r"obstore|no-such-profile"):
        set_up_store(lake.spark, storage)


@pytest.mark.parametrize("url", ["gs://bkt/x", "az://container/x?account=name"])
def test_stores_of_other_clouds_are_refused_by_name(spark: SparkSession, url: str) -> None:
    with pytest.raises(InvalidInput, match=f"stored in {url[:2]}://.*which Spark cannot reach") as refused:
        set_up_store(spark, open_storage(url))
    assert refused.value.kind == "not_supported"
    assert "file:// and s3://" in refused.value.hint


def test_a_profile_that_s3a_does_not_find_is_refused(
    hadoop_aws_jars: list[Path], spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hadoop's provider reads the file of credentials. The library reads `~/.aws/config`, too."""
    (tmp_path / "config").write_text("[profile lake]\nrole_arn = x\ncredential_source = Environment\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    storage = open_storage("s3://profile-bucket/lake?region=eu-central-1&profile=lake")
    with pytest.raises(InvalidInput, match=r"the profile lake is not in .*credentials") as refused:
        set_up_store(spark, storage)
    assert "credential_process" in refused.value.hint
    (tmp_path / "credentials").write_text("[lake]\ncredential_process = /bin/false\n")
    set_up_store(spark, storage)


def test_a_configured_endpoint_is_used_by_all(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An endpoint of the AWS configuration holds for the library, for tasks and for Spark."""
    (tmp_path / "config").write_text("[default]\nendpoint_url = http://minio.example:9000\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    bucket = bucket_of(open_storage("s3://bkt/x"))
    assert (bucket.endpoint_url, bucket.path_style) == ("http://minio.example:9000", True)
    place, arguments, _ = task_place(open_storage("s3://bkt/a%20b"), "data/t/")
    assert place == "bkt/a b/data/t/"
    assert arguments is not None
    assert (arguments["scheme"], arguments["endpoint_override"]) == ("http", "minio.example:9000")


def test_a_token_that_nobody_renews_is_refused_for_long_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    storage = open_storage("s3://bucket/lake?region=eu-central-1")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CREDENTIAL_EXPIRATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    refuse_static_token(storage, "this pipeline")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary-token")
    with pytest.raises(InvalidInput, match="this pipeline would fail when the AWS session token") as caught:
        refuse_static_token(storage, "this pipeline")
    assert "canary" not in f"{caught.value!r}{caught.value.hint}"
    refuse_static_token(open_storage("s3://bucket/lake?region=eu-central-1&anonymous=true"), "this pipeline")
    refuse_static_token(open_storage(f"file://{tmp_path}"), "this pipeline")
    # A profile whose program makes new credentials is renewed.
    config = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    program = tmp_path / "renew"
    program.write_text(
        "#!/bin/sh\n"
        'echo \'{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "B", "SessionToken": "C",'
        ' "Expiration": "2999-01-01T00:00:00Z"}\'\n'
    )
    program.chmod(0o755)
    config.write_text(f"[profile renewed]\ncredential_process = {program}\n")
    refuse_static_token(open_storage("s3://bucket/lake?region=eu-central-1&profile=renewed"), "this pipeline")
