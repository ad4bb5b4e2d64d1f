"""The S3 driver on real servers: the contract, and the words of its errors. A proxy in front of a server makes the
failures that no server makes on demand.
"""

from __future__ import annotations

import asyncio
import email.utils
import itertools
import os
import random
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from alpheus_test_servers import S3Server, Start, default_kind, reachable

from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Corrupt,
    Denied,
    Exhausted,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.journal import Journal
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.storage import Storage, open_storage
from alpheus_journal.storage.s3 import MULTIPART_FROM, PART_SIZE, S3Storage, S3Url, open_s3
from alpheus_journal.testing import StorageContract, TcpProxy, listed, raises
from alpheus_journal.testing.proxy import (
    Answer,
    Blackhole,
    CutBefore,
    Damage,
    Forward,
    LoseReply,
    Match,
    Truncate,
    request,
    s3_error,
)

FULL = os.environ.get("ALPHEUS_SLOW") == "1"
KINDS = (
    [pytest.param(kind, marks=pytest.mark.slow) for kind in ("ministack", "versitygw")]
    if FULL
    else [default_kind()]
)


@pytest.mark.parametrize("kind", KINDS)
class TestS3(StorageContract):
    @pytest.fixture(autouse=True)
    def _server(
        self, kind: str, shared_s3: Callable[[str], S3Server], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.server = reachable(shared_s3(kind), monkeypatch)

    async def make(self) -> Storage:
        return open_s3(self.server.url())


def namespace(journal: Journal, name: str) -> Transaction:
    identities = RandomIdentities()
    return Transaction(
        id=identities.uuid7(),
        begin_version=journal.head.version,
        operations=(CreateNamespace(name=name, namespace_id=identities.uuid4()),),
        principal="test",
    )


class Waits:
    """The driver's clock and pauses: only the driver's own waiting moves the time, and requests take no time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.seconds += seconds

    def options(self) -> dict[str, Any]:
        return {"monotonic": lambda: self.seconds, "sleep": self.sleep, "jitter": random.Random(1)}


@asynccontextmanager
async def proxied(server: S3Server, **options: str) -> AsyncIterator[tuple[TcpProxy, S3Storage, Waits]]:
    """Open a proxy in front of the server, a store behind the proxy, and the store's clock. The store makes about 4
    attempts."""
    waits = Waits()
    async with TcpProxy("127.0.0.1", server.port) as proxy:
        url = server.url(endpoint=proxy.endpoint, **({"deadline": "0.5", "read_timeout": "0.5"} | options))
        storage = S3Storage(S3Url.parse(url), **waits.options())
        try:
            yield proxy, storage, waits
        finally:
            await storage.close()


# -- the URL


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket",
        "s3://bucket/lake",
        "s3://my.bucket-1/a/b%20c/%C3%9F?region=eu-central-1",
        "s3://bucket/lake?endpoint_url=http://127.0.0.1:9000",
        "s3://bucket/lake?endpoint_url=https://minio.example&path_style=false&profile=me&anonymous=true",
        "s3://bucket/lake?path_style=true&connect_timeout=0.5&read_timeout=7&deadline=90&max_connections=4",
        "s3://bucket/lake?kms_key_id=arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab",
    ],
)
def test_a_url_that_is_normal_stays_as_it_is(url: str) -> None:
    assert open_storage(url).url == url


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/lake/", "s3://bucket/lake"),
        ("s3://bucket/lake?client=aiobotocore&deadline=30&anonymous=false", "s3://bucket/lake"),
        (
            "s3://bucket/lake?path_style=true&endpoint_url=http%3A%2F%2Fhost%3A9000%2F&region=",
            "s3://bucket/lake?endpoint_url=http://host:9000",
        ),
        (
            "S3://bucket/%6Cake//?endpoint_url=http://HOST:9000",
            "s3://bucket/lake?endpoint_url=http://host:9000",
        ),
        ("s3://bucket/a+b%2Fc", "s3://bucket/a%2Bb/c"),
        (
            "s3://bucket/lake?endpoint_url=http://%5B::1%5D:9000",
            "s3://bucket/lake?endpoint_url=http://[::1]:9000",
        ),
    ],
)
def test_equal_urls_become_one(url: str, normal: str) -> None:
    assert open_s3(url).url == normal
    assert open_s3(normal).url == normal


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/lake?regoin=x", "'regoin'"),
        ("s3://bucket/lake?region=a&region=b", "twice"),
        ("s3://bucket/lake?region=A%20B", "region"),
        ("s3://bucket/lake?endpoint_url=minio:9000", "endpoint_url"),
        ("s3://bucket/lake?endpoint_url=http://user:pw@minio:9000", "endpoint_url"),
        ("s3://bucket/lake?endpoint_url=http://minio:99999", "endpoint_url"),
        ("s3://bucket/lake?endpoint_url=http://minio:port", "endpoint_url"),
        ("s3://bucket/lake?endpoint_url=http://mi%20nio:9000", "endpoint_url"),
        ("s3://bucket/lake?endpoint_url=http://[::1:9000", "endpoint_url"),
        ("s3://bucket/lake?endpoint_url=http://minio:9000/below", "endpoint_url"),
        ("s3://bucket/lake?path_style=yes", "path_style"),
        ("s3://bucket/lake?anonymous=", "anonymous"),
        ("s3://bucket/lake?deadline=1e9", "deadline"),
        ("s3://bucket/lake?read_timeout=-1", "read_timeout"),
        ("s3://bucket/lake?max_connections=0", "max_connections"),
        ("s3://bucket/lake?client=boto3", "client"),
        ("s3://bucket/lake?kms_key_id=a%20b", "kms_key_id"),
        ("s3://bucket/lake?kms_key_id=x&client=obstore", "kms_key_id"),
        ("s3://bucket/a//b", "prefix"),
        ("s3://bucket/a/../b", "prefix"),
        ("s3://bucket/lake#x", "prefix"),
        ("s3:///lake", "bucket"),
        ("s3://b_/lake", "bucket"),
        ("s3://arn:aws:s3:::x/lake", "bucket"),
        ("s3://lake--usw2-az1--x-s3/lake", "directory bucket"),
    ],
)
def test_a_wrong_url_is_refused_by_name(url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        open_storage(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIACANARY:c4n4ry@bucket/lake",
        "s3://bucket/lake?aws_access_key_id=AKIACANARY",
        "s3://bucket/lake?aws_secret_access_key=c4n4ry",
        "s3://bucket/lake?session_token=c4n4ry",
        "s3://bucket/lake?X-Amz-Signature=c4n4ry",
    ],
)
def test_a_secret_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput, match="holds") as caught:
        open_storage(url)
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
    assert "c4n4ry" not in str(caught.value).lower()
    assert "CANARY" not in str(caught.value)


def test_uri_names_the_key() -> None:
    storage = open_s3("s3://bucket/a%20lake?region=eu-central-1")
    assert storage.uri("data/t/p=1+%.parquet") == "s3://bucket/a%20lake/data/t/p%3D1%2B%25.parquet"
    assert open_s3("s3://bucket").uri("vn/0") == "s3://bucket/vn/0"


# -- requests and connections


async def test_a_pooled_connection_serves_many_requests(s3_server: S3Server) -> None:
    async with proxied(s3_server) as (proxy, storage, _):
        for number in range(20):
            await storage.create(f"vn/{number}", b"x")
            await storage.read(f"vn/{number}", size_max=1)
            await storage.stat(f"vn/{number}")
        assert (proxy.count(), proxy.connection_count) == (60, 1)
        # an expect header would cost each body a round trip
        assert not any("expect" in record.request.headers for record in proxy.log)


async def test_no_more_connections_than_allowed(s3_server: S3Server) -> None:
    async with proxied(s3_server, max_connections="3") as (proxy, storage, _):
        files = {f"node/{number}": b"%d" % number for number in range(40)}
        await storage.put_many(files)
        assert await storage.read_many(list(files), size_max=9) == files
        assert 1 < proxy.connection_count <= 3


async def test_a_connection_that_was_closed_while_idle_hides_no_repetition(s3_server: S3Server) -> None:
    """aiohttp would send the PUT again by itself, and the second PUT would find the slot taken."""
    async with proxied(s3_server) as (proxy, storage, _):
        await storage.create("vn/0", b"0")
        proxy.script(request("PUT", "/vn/1"), LoseReply())
        await raises(OutcomeUnknown, storage.create("vn/1", b"1"))
        assert proxy.count(request("PUT", "/vn/1")) == 1
        await storage.read("vn/1", size_max=1)
        proxy.script(request("PUT", "/vn/2"), CutBefore())
        await raises(OutcomeUnknown, storage.create("vn/2", b"2"))
        assert proxy.count(request("PUT", "/vn/2")) == 1
        await storage.create("vn/2", b"2")


@pytest.mark.parametrize(
    "action",
    [
        LoseReply(), CutBefore(), Blackhole(), s3_error(500, "InternalError"), s3_error(503, "SlowDown"),
        Answer(status=502, body=b"<html>"), Answer(status=504), s3_error(409, "ConditionalRequestConflict"),
        Answer(status=429), s3_error(400, "RequestTimeout"), Answer(status=200),
        s3_error(503, "ServiceUnavailable") , Answer(status=500, applied=True),
    ],
    ids=str,
)  # fmt: skip
async def test_a_create_in_doubt_is_one_request_and_says_so(s3_server: S3Server, action: Any) -> None:
    async with proxied(s3_server) as (proxy, storage, waits):
        proxy.always(request("PUT"), action)
        error = await raises(OutcomeUnknown, storage.create("vn/0", b"root"))
        assert error.path == "vn/0"
        assert s3_server.bucket in error.message
        assert (proxy.count(), waits.pauses) == (1, [])
        proxy.clear()
        try:
            await storage.create("vn/0", b"root")
        except AlreadyExists:
            assert isinstance(action, LoseReply) or (isinstance(action, Answer) and action.applied)
        assert await storage.read("vn/0", size_max=4) == b"root"


@pytest.mark.parametrize(
    ("action", "expected", "kind"),
    [
        (s3_error(403, "AccessDenied"), Denied, "denied"),
        (s3_error(404, "NoSuchBucket"), NotFound, "no_bucket"),
        (s3_error(400, "InvalidRequest"), InvalidInput, "bad_argument"),
        (s3_error(501, "NotImplemented"), InvalidInput, "storage_unsuitable"),
        (s3_error(400, "BadDigest"), Unavailable, "storage_unavailable"),
        (s3_error(507, "XMinioStorageFull"), Exhausted, "no_space"),
        (s3_error(412, "PreconditionFailed"), AlreadyExists, "slot_taken"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_create_that_was_refused_was_not_applied(
    s3_server: S3Server, action: Answer, expected: type[AlpheusError], kind: str
) -> None:
    async with proxied(s3_server) as (proxy, storage, _):
        proxy.script(request("PUT"), action)
        await raises(expected, storage.create("vn/0", b"root"), kind=kind)
        assert proxy.count() == 1
        await storage.create("vn/0", b"root")


async def test_a_connection_refused_applied_nothing(s3_server: S3Server) -> None:
    async with TcpProxy("127.0.0.1", s3_server.port) as proxy:
        url = s3_server.url(endpoint=proxy.endpoint, deadline="0.5")
    waits = Waits()
    storage = S3Storage(S3Url.parse(url), **waits.options())
    try:
        error = await raises(Unavailable, storage.create("vn/0", b""))
        assert "endpoint_url" in error.hint
        assert waits.pauses == []
        await raises(Unavailable, storage.put("vn/0", b""))  # none of several attempts was in doubt
        assert len(waits.pauses) > 2
    finally:
        await storage.close()


@pytest.mark.parametrize(
    "action",
    [CutBefore(), Blackhole(), s3_error(503, "SlowDown"), s3_error(500, "InternalError"), Answer(status=502)],
    ids=str,
)
async def test_what_may_be_repeated_is_repeated(s3_server: S3Server, action: Any) -> None:
    async with proxied(s3_server, deadline="5") as (proxy, storage, waits):
        for call in (
            lambda: storage.put("node/a", b"a"),
            lambda: storage.read("node/a", size_max=1),
            lambda: storage.stat("node/a"),
            lambda: listed(storage, "node/"),
            lambda: storage.delete("node/a"),
        ):
            before = proxy.count()
            proxy.script(request(), action)
            await call()
            assert proxy.count() == before + 2
            assert len(waits.pauses) == 1
            waits.pauses.clear()


async def test_pauses_grow_until_the_deadline(s3_server: S3Server) -> None:
    async with proxied(s3_server, deadline="20") as (proxy, storage, waits):
        proxy.always(request(), s3_error(503, "SlowDown"))
        error = await raises(Unavailable, storage.read("node/a", size_max=1))
        assert "SlowDown" in error.message
        assert proxy.count() == len(waits.pauses) + 1
        assert 15 < sum(waits.pauses) < 20
        assert all(0.025 <= pause <= 3 for pause in waits.pauses)
        assert waits.pauses[-1] > 10 * waits.pauses[0]


async def test_a_put_of_which_one_attempt_is_in_doubt(s3_server: S3Server) -> None:
    async with proxied(s3_server) as (proxy, storage, _):
        proxy.script(request("PUT"), LoseReply())
        proxy.always(request("PUT"), s3_error(400, "BadDigest"))
        await raises(OutcomeUnknown, storage.put("node/a", b"a"))
        error = await raises(Unavailable, storage.publish({"node/b": b"b"}, "vn/0", b""))
        assert "left alone" not in error.message  # damaged on the way each time: certainly not stored
        proxy.always(request("PUT"), LoseReply())
        proxy.clear()
        proxy.always(request("PUT", "/node/"), LoseReply())
        error = await raises(Unavailable, storage.publish({"node/c": b"c"}, "vn/0", b""))
        assert "vn/0 was not written" in error.message
        assert proxy.count(request("PUT", "/vn/")) == 0


# -- bytes


async def test_a_damaged_or_cut_answer_is_read_again(s3_server: S3Server) -> None:
    data = os.urandom(300_000)
    async with proxied(s3_server, deadline="5") as (proxy, storage, waits):
        await storage.put("node/a", data)
        for action in (Truncate(body_bytes=0), Truncate(body_bytes=200_000), Damage()):
            proxy.script(request("GET"), action)
            assert await storage.read("node/a", size_max=300_000) == data
        assert len(waits.pauses) == 3
        proxy.always(request("GET"), Damage())
        error = await raises(Unavailable, storage.read("node/a", size_max=300_000))
        assert "damaged" in error.message


async def test_the_cap_is_found_out_before_the_bytes_are_taken(s3_server: S3Server) -> None:
    async with proxied(s3_server) as (proxy, storage, _):
        await storage.put("node/a", bytes(4 << 20))
        # At this speed the whole answer would take a minute, and the test's read timeout is 0.3 s.
        proxy.always(request("GET"), Forward(bytes_per_second=64 << 10))
        error = await raises(Corrupt, storage.read("node/a", size_max=1000))
        assert "4194304" in error.message
        proxy.clear()
        no_length = Answer(status=200, body=b"x" * 5000, headers={"ETag": '"x"', "Connection": "close"})
        proxy.script(request("GET"), no_length)
        await raises(Corrupt, storage.read("node/a", size_max=1000))


async def test_large_files_go_in_parts_and_appear_whole(s3_server: S3Server) -> None:
    data = os.urandom(MULTIPART_FROM + 1)
    async with proxied(s3_server, deadline="5", read_timeout="10") as (proxy, storage, _):
        proxy.script(lambda r: "partNumber=2" in r.query, CutBefore(), s3_error(503, "SlowDown"))
        await storage.put("data/large", data)
        assert await storage.read("data/large", size_max=len(data)) == data
        assert proxy.count(lambda r: "partNumber=" in r.query) == -(-len(data) // PART_SIZE) + 2
        info = await storage.stat("data/large")
        assert info is not None
        assert info.size == len(data)


@pytest.mark.parametrize(
    "action",
    [LoseReply(), CutBefore(), s3_error(500, "InternalError"), s3_error(404, "NoSuchUpload")],
    ids=str,
)
async def test_a_completion_whose_answer_is_lost_is_begun_anew(s3_server: S3Server, action: Any) -> None:
    data = os.urandom(MULTIPART_FROM + 1)
    async with proxied(s3_server, deadline="5", read_timeout="10") as (proxy, storage, _):
        proxy.script(lambda r: r.method == "POST" and "uploadId=" in r.query, action)
        await storage.put("data/large", data)
        assert await storage.read("data/large", size_max=len(data)) == data
        prefix = storage.uri("data/large").removeprefix(f"s3://{s3_server.bucket}/")
    with s3_server.client() as s3:
        assert not s3.list_multipart_uploads(Bucket=s3_server.bucket, Prefix=prefix).get("Uploads")


async def test_an_upload_that_is_aborted_between_its_parts_is_begun_anew_at_once(s3_server: S3Server) -> None:
    """Another try to send the part is of no use."""
    data = os.urandom(MULTIPART_FROM + 1)
    uploads: list[str] = []

    def is_of_first(seen: Any) -> bool:
        if "partNumber=" not in seen.query:
            return False
        uploads.append(seen.query.partition("uploadId=")[2])
        return uploads[-1] == uploads[0]

    async with proxied(s3_server, deadline="5", read_timeout="10") as (proxy, storage, waits):
        proxy.always(is_of_first, s3_error(404, "NoSuchUpload"))
        await storage.put("data/large", data)
        assert await storage.read("data/large", size_max=len(data)) == data
        assert len(waits.pauses) == 1
        assert uploads.count(uploads[0]) <= -(-len(data) // PART_SIZE)


async def test_parts_that_were_sent_for_nothing_are_removed(s3_server: S3Server) -> None:
    """Parts are removed more than once: a part that is being sent when the upload is given up may arrive later."""
    second: Match = lambda r: "partNumber=2" in r.query  # noqa: E731
    async with proxied(s3_server, read_timeout="10", max_connections="1") as (proxy, storage, _):
        proxy.script(second, s3_error(403, "AccessDenied"), Blackhole())
        await raises(Denied, storage.put("data/large", bytes(MULTIPART_FROM + 1)))
        task = asyncio.ensure_future(storage.put("data/large", bytes(MULTIPART_FROM + 1)))
        await proxy.arrived(second, 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await storage.stat("data/large") is None
        prefix = storage.uri("data/large").removeprefix(f"s3://{s3_server.bucket}/")
    with s3_server.client() as s3:
        assert not s3.list_multipart_uploads(Bucket=s3_server.bucket, Prefix=prefix).get("Uploads")


async def test_foreign_names_are_not_listed(s3_server: S3Server) -> None:
    storage = open_s3(s3_server.url("foreign"))
    try:
        with s3_server.client() as s3:
            for key in ("foreign/node/a", "foreign/folder/", "foreigner/b"):
                s3.put_object(Bucket=s3_server.bucket, Key=key, Body=b"")
        assert set(await listed(storage, "")) == {"node/a"}
    finally:
        await storage.close()


async def test_a_listing_that_goes_in_circles_ends(s3_server: S3Server) -> None:
    page = "<ListBucketResult><IsTruncated>true</IsTruncated>{}</ListBucketResult>"
    for rest in ("", "<NextContinuationToken>same</NextContinuationToken>"):
        async with proxied(s3_server) as (proxy, storage, _):
            proxy.always(request("GET"), Answer(status=200, body=page.format(rest).encode()))
            await raises(InvalidInput, listed(storage, ""), kind="storage_unsuitable")


# -- the words of errors


async def every_error(storage: Storage) -> dict[str, AlpheusError]:
    """Return the error of each method; every method must raise one."""
    calls = {
        "read": lambda: storage.read("vn/0", size_max=1),
        "stat": lambda: storage.stat("vn/0"),
        "list": lambda: listed(storage, ""),
        "create": lambda: storage.create("vn/0", b""),
        "put": lambda: storage.put("vn/0", b""),
        "delete": lambda: storage.delete("vn/0"),
    }
    errors = {}
    for name, call in calls.items():
        try:
            errors[name] = await raises(AlpheusError, call())
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        assert name in errors[name].message or "opening" in errors[name].message
    return errors


async def test_a_missing_bucket(s3_server: S3Server) -> None:
    storage = open_s3(s3_server.url().replace(f"//{s3_server.bucket}/", "//no-such-bucket/") + "&deadline=1")
    try:
        for call in (
            lambda: listed(storage, ""),
            lambda: storage.create("vn/0", b""),
            lambda: storage.put("vn/0", b""),
            lambda: storage.read("vn/0", size_max=1),
        ):
            error = await raises(NotFound, call(), kind="no_bucket")
            assert "no-such-bucket" in error.message
            assert error.hint
    finally:
        await storage.close()


async def test_no_credentials(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    storage = open_s3(s3_server.url())
    try:
        for error in (await every_error(storage)).values():
            assert isinstance(error, Denied)
            assert error.kind == "no_credentials"
            assert "AWS_ACCESS_KEY_ID" in error.hint
        reachable(s3_server, monkeypatch)
        await storage.create("vn/0", b"")  # the driver looks for them again
    finally:
        await storage.close()


async def test_a_profile_that_is_not_there(s3_server: S3Server) -> None:
    storage = open_s3(s3_server.url(profile="nobody"))
    error = await raises(InvalidInput, storage.read("vn/0", size_max=1), kind="bad_configuration")
    assert "nobody" in error.message
    await storage.close()


async def test_anonymous_requests_are_not_signed(s3_server: S3Server) -> None:
    async with proxied(s3_server, anonymous="true") as (proxy, storage, _):
        proxy.always(request(), s3_error(403, "AccessDenied"))
        assert all(isinstance(error, Denied) for error in (await every_error(storage)).values())
        assert not any("authorization" in record.request.headers for record in proxy.log)


async def test_wrong_keys_and_wrong_region_are_named(
    start_s3: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = reachable(start_s3("versitygw", region="eu-central-1"), monkeypatch)
    storage = open_s3(server.url(region="us-west-2"))
    for error in (await every_error(storage)).values():
        assert isinstance(error, InvalidInput)
        assert error.kind == "bad_url"
    assert "region" in error.hint
    await storage.close()
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        storage = open_s3(server.url())
        for error in (await every_error(storage)).values():
            assert isinstance(error, Denied), error
            assert "secret key" in error.hint
        await storage.close()
        patch.setenv("AWS_ACCESS_KEY_ID", "AKNOBODY")
        storage = open_s3(server.url())
        # This server answers a HEAD with an unknown key with 404, as if the file were absent (STORAGE.md, "Providers").
        for call in (
            lambda: listed(storage, ""),
            lambda: storage.read("vn/0", size_max=1),
            lambda: storage.create("vn/0", b""),
        ):
            assert "access key" in (await raises(Denied, call())).hint
        await storage.close()


@pytest.mark.parametrize(
    "answer",
    [
        s3_error(400, "AuthorizationHeaderMalformed", "the region is wrong", Region="eu-north-1"),
        Answer(status=301, headers={"x-amz-bucket-region": "eu-north-1"}),
        Answer(status=400, headers={"x-amz-bucket-region": "eu-north-1"}),
    ],
    ids=str,
)
async def test_the_right_region_is_named_and_nothing_is_sent_there(
    s3_server: S3Server, answer: Answer
) -> None:
    async with proxied(s3_server, region="us-east-1") as (proxy, storage, _):
        proxy.always(request(), answer)
        for error in (await every_error(storage)).values():
            assert isinstance(error, InvalidInput)
            assert error.kind == "bad_url"
            assert "region=eu-north-1" in error.hint
        assert proxy.count() == 7  # one each; a GET explains the HEAD's error


async def test_the_own_region_in_an_answer_is_no_reproach(s3_server: S3Server) -> None:
    """AWS puts the bucket's region into many answers. Here the environment names the region, not the URL."""
    async with proxied(s3_server) as (proxy, storage, _):
        refusal = s3_error(400, "InvalidRequest")
        own = msgspec.structs.replace(refusal, headers={"x-amz-bucket-region": s3_server.region})
        proxy.always(request(), own)
        error = await raises(InvalidInput, storage.create("vn/0", b""), kind="bad_argument")
        assert "InvalidRequest" in error.message


async def test_a_reader_may_not_write(start_s3: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = reachable(start_s3("versitygw"), monkeypatch)
    writer = open_s3(server.url("lake"))
    await writer.create("vn/0", b"0")
    await writer.close()
    server.stop()
    server.start("--readonly")
    storage = open_s3(server.url("lake"))
    assert await storage.read("vn/0", size_max=1) == b"0"
    for call, right in (
        (lambda: storage.create("vn/1", b""), "s3:PutObject"),
        (lambda: storage.put("vn/1", b""), "s3:PutObject"),
        (lambda: storage.delete("vn/0"), "s3:DeleteObject"),
        (lambda: storage.delete_many(["vn/0"]), "s3:DeleteObject"),
    ):
        error = await raises(Denied, call())
        assert right in error.hint
    assert set(await listed(storage, "")) == {"vn/0"}
    await storage.close()


async def test_403_for_an_absent_file_is_explained(s3_server: S3Server) -> None:
    async with proxied(s3_server) as (proxy, storage, _):
        proxy.always(request("HEAD"), Answer(status=403))
        proxy.always(request("GET"), s3_error(403, "AccessDenied"))
        for call in (lambda: storage.stat("vn/0"), lambda: storage.read("vn/0", size_max=1)):
            error = await raises(Denied, call())
            assert "s3:ListBucket" in error.hint


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired"])
async def test_expired_credentials(s3_server: S3Server, code: str) -> None:
    async with proxied(s3_server) as (proxy, storage, _):
        proxy.always(request("HEAD"), Answer(status=400))
        proxy.always(request(), s3_error(400, code))
        for error in (await every_error(storage)).values():
            assert isinstance(error, Denied)
            assert "expired" in error.message


async def test_a_clock_that_is_hours_off(s3_server: S3Server) -> None:
    async with proxied(s3_server) as (proxy, storage, _):
        await storage.create("vn/0", b"")
        assert storage.clock_offset_millis is not None
        assert abs(storage.clock_offset_millis) < 60_000
        date = email.utils.formatdate(4_102_444_800, usegmt=True)
        # A HEAD's answer has no body, and this GET's answer is empty too: the date shows the difference.
        proxy.always(request("HEAD"), Answer(status=403, headers={"Date": date}))
        proxy.always(request("GET", "/vn/"), Answer(status=403, headers={"Date": date}))
        proxy.always(request(), s3_error(403, "RequestTimeTooSkewed"))
        for error in (await every_error(storage)).values():
            assert isinstance(error, InvalidInput)
            assert error.kind == "clock_skew"
            assert "set the clock" in error.hint


def now_off_by(seconds: float) -> Callable[[], float]:
    return lambda: time.time() + seconds


@pytest.mark.parametrize("seconds", [7200, -7200, 120, -120] if FULL else [7200, -120])
async def test_nothing_is_written_by_a_clock_that_is_off(s3_server: S3Server, seconds: int) -> None:
    url = s3_server.url()
    await (await Journal.create(open_storage(url))).close()
    storage = S3Storage(S3Url.parse(url), now=now_off_by(seconds))
    journal = await Journal.open(storage)
    assert storage.clock_offset_millis is not None
    assert abs(storage.clock_offset_millis + seconds * 1000) < 5_000
    before = await listed(storage, "")
    error = await raises(InvalidInput, journal.commit(namespace(journal, "a")), kind="clock_skew")
    assert ("ahead of" if seconds > 0 else "behind") in error.message
    assert await listed(storage, "") == before
    await journal.close()
    elsewhere = S3Storage(S3Url.parse(s3_server.url()), now=now_off_by(seconds))
    await raises(InvalidInput, Journal.create(elsewhere), kind="clock_skew")
    assert await listed(elsewhere, "") == {}
    await elsewhere.close()


async def test_a_clock_that_is_set_right_is_noticed(s3_server: S3Server) -> None:
    """No request is made in between: the answer from before the clock was set must not count."""
    offset = 0.0
    storage = S3Storage(S3Url.parse(s3_server.url()), now=lambda: time.time() + offset)
    journal = await Journal.create(storage)
    offset = 3600.0
    await raises(InvalidInput, journal.commit(namespace(journal, "a")), kind="clock_skew")
    offset = 0.0
    assert (await journal.commit(namespace(journal, "a"))).version == 1
    await journal.close()


async def test_a_machine_that_slept_asks_again_before_it_refuses(s3_server: S3Server) -> None:
    """The steady clock stands still during sleep, so the offset learned before is an hour wrong."""
    slept = 0.0
    storage = S3Storage(S3Url.parse(s3_server.url()), monotonic=lambda: time.monotonic() - slept)
    journal = await Journal.create(storage)
    slept = 3600.0
    assert storage.clock_offset_millis is not None
    assert storage.clock_offset_millis < -3_590_000
    assert (await journal.commit(namespace(journal, "a"))).version == 1
    await journal.close()


async def test_a_slow_answer_is_no_clock_that_is_off(s3_server: S3Server) -> None:
    """A process that was stopped while an answer was on its way gets an old time."""
    moments = itertools.count(0, 300)
    storage = S3Storage(
        S3Url.parse(s3_server.url(deadline="600")),
        now=lambda: time.time(),
        monotonic=lambda: float(next(moments)),
    )
    assert await storage.stat("vn/0") is None
    client = storage._client
    assert client._their_start is not None
    low, high = client._their_start
    assert high - low >= 300
    client._monotonic = lambda: 0.0
    at = time.time()
    client._now = lambda: at
    for stopped in (0.0, 300.0):
        client._their_start = (at - stopped, at + 1)
        assert storage.clock_offset_millis == 0
    client._their_start = (at - 300, at - 200)
    assert storage.clock_offset_millis == -200_000
    await storage.close()


async def test_many_looks_at_once(s3_server: S3Server) -> None:
    async with proxied(s3_server, max_connections="8") as (proxy, storage, _):
        paths = [f"data/t/x/w/{number}.parquet" for number in range(40)]
        await storage.put(paths[7], b"seven")
        found = await storage.stat_many(paths)
        assert [path for path, info in found.items() if info is not None] == [paths[7]]
        assert proxy.count(request("HEAD")) == 40
        assert 1 < proxy.connection_count <= 8


def test_a_program_that_never_closes_ends_in_silence(s3_server: S3Server) -> None:
    program = """if True:
        import asyncio, sys
        from alpheus_journal.storage import open_storage

        async def main():
            global storage
            storage = open_storage(sys.argv[1])
            await storage.put("vn/0", b"0")
            await storage.read_many(["vn/0"] * 8, size_max=1)

        asyncio.run(main())
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, s3_server.url()],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


async def test_another_program_answers(s3_server: S3Server) -> None:
    async with proxied(s3_server) as (proxy, storage, _):
        html = {"Content-Type": "text/html"}
        for status in (200, 404):
            proxy.clear()
            proxy.always(
                request(), Answer(status=status, body=b"<html><body>hello</body></html>", headers=html)
            )
            error = await raises(InvalidInput, listed(storage, ""), kind="bad_url")
            assert "endpoint_url" in error.hint
        proxy.clear()
        proxy.always(request(), Answer(status=200, body=b"hello", headers=html))
        await raises(InvalidInput, storage.read("vn/0", size_max=100), kind="bad_url")
        await raises(InvalidInput, storage.stat("vn/0"), kind="bad_url")
        await raises(OutcomeUnknown, storage.create("vn/0", b""))


async def test_tls_where_there_is_none(s3_server: S3Server) -> None:
    storage = open_s3(s3_server.url(endpoint=s3_server.endpoint.replace("http:", "https:"), deadline="0"))
    for error in (await every_error(storage)).values():
        assert isinstance(error, Unavailable)  # a create too: no byte was sent
        assert "TLS" in error.message
    await storage.close()


SELF_SIGNED = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg7gibylSsQY3XIFCE
ozpEOIWctir8H+MQOij92Hvn9a6hRANCAATwzGyQemQz/0D9x9UJJf4L11upGyy6
lh+Qrf+vyki8vUXZ+HvIz3njl/i0Um7Z4GCDQgd7fUmJd0PdFN3rc/34
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBkDCCATagAwIBAgIUclHMuCSklVpRZ546k4ma5eeLeTAwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTIyNTg1MloYDzIxMjYxMDI4
MjI1ODUyWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATwzGyQemQz/0D9x9UJJf4L11upGyy6lh+Qrf+vyki8vUXZ+HvIz3nj
l/i0Um7Z4GCDQgd7fUmJd0PdFN3rc/34o2QwYjAdBgNVHQ4EFgQUtQZgzdmyLwcI
2u2xbzH5jX50O8IwHwYDVR0jBBgwFoAUtQZgzdmyLwcI2u2xbzH5jX50O8IwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0gAMEUC
IArmooS5NPUdhACNbI0ucxbHbQLv+duLhucR8LtQyGGQAiEAjiILrN1um1qBmcLf
UfBOr6npTIJiwEDGwW5ber/bP1Y=
-----END CERTIFICATE-----
"""


async def test_a_certificate_that_nobody_signed(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "self-signed.pem"
    bundle.write_text(SELF_SIGNED)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(bundle)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0, ssl=context)
    async with server:
        url = s3_server.url(endpoint=f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        storage = open_s3(url)
        for error in (await every_error(storage)).values():
            assert isinstance(error, InvalidInput)
            assert "AWS_CA_BUNDLE" in error.hint
        await storage.close()
        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
        storage = open_s3(url)
        await raises(Denied, storage.read("vn/0", size_max=1))
        await storage.close()


async def test_a_host_that_is_not_there(s3_server: S3Server) -> None:
    storage = open_s3(s3_server.url(endpoint="http://no-such-host.invalid", deadline="0"))
    for error in (await every_error(storage)).values():
        assert isinstance(error, Unavailable)
        assert "no-such-host.invalid" in error.message
    await storage.close()


CANARY = "c4n4ry/Zq+0123456789"


async def test_no_secret_is_in_any_message(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's answer repeats everything that it was sent, as some servers do when they debug."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKCANARY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"token-{CANARY}")
    async with proxied(s3_server) as (proxy, storage, _):
        proxy.script(request("GET"), s3_error(403, "AccessDenied"))
        await raises(Denied, storage.read("vn/0", size_max=1))
        sent = proxy.log[0].request
        echoes = [
            sent.head.decode(),
            sent.headers["authorization"],
            f"wrong: {CANARY}",
            f"key AKCANARY, token-{CANARY}",
        ]
        signature = sent.headers["authorization"].rpartition("=")[2]
        texts = []
        for echo in echoes:
            for status, code in (
                (403, "AccessDenied"),
                (400, echo),
                (503, "SlowDown"),
                (500, "InternalError"),
            ):
                proxy.clear()
                proxy.always(request(), s3_error(status, code, echo))
                errors = (await every_error(storage)).values()
                texts += [f"{error!r} {error} {error.__dict__} {error.__cause__!r}" for error in errors]
        for secret in (CANARY, "AKCANARY", signature, "AWS4-HMAC"):
            assert not [text for text in texts if secret in text], secret
        proxy.clear()
        proxy.always(
            request(), s3_error(403, "AccessDenied", "User: arn:aws:iam::1:user/ann is not authorized")
        )
        assert "user/ann" in (await raises(Denied, listed(storage, ""))).message


# -- credentials that change


@pytest.fixture
def rotating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> Callable[..., Path]:
    """Return `rotating(*minutes)`, which makes a profile `rotating`. A process gives the profile the keys AKROUND1, 2,
    … Each key is valid for the given minutes; then the process fails. The returned file holds a letter for each call.
    Opening a store makes two calls: botocore immediately renews a key that ends within 15 minutes."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    calls, script, config = tmp_path / "calls", tmp_path / "credentials.py", tmp_path / "config"
    config.write_text(f"[profile rotating]\ncredential_process = {sys.executable} {script}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))

    def write(*minutes: int) -> Path:
        script.write_text(
            "import datetime, json, pathlib\n"
            f"calls = pathlib.Path({str(calls)!r})\n"
            "calls.open('a').write('x')\n"
            "number = len(calls.read_text())\n"
            f"minutes = {minutes}[number - 1]\n"
            "end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=minutes)\n"
            f"print(json.dumps({{'Version': 1, 'AccessKeyId': f'AKROUND{{number}}', 'SecretAccessKey': {CANARY!r},"
            " 'SessionToken': f'token{number}', 'Expiration': end.isoformat()}))\n"
        )
        return calls

    return write


def key_used(proxy: TcpProxy, number: int = -1) -> str:
    headers = proxy.log[number].request.headers
    key = headers["authorization"].partition("Credential=")[2][:8]
    assert headers["x-amz-security-token"] == f"token{key[-1]}"
    return key


async def test_credentials_that_end_now_are_renewed_first(
    s3_server: S3Server, rotating: Callable[..., Path]
) -> None:
    calls = rotating(5, 5, 600)
    async with proxied(s3_server, profile="rotating", read_timeout="20") as (proxy, storage, _):
        proxy.always(request(), s3_error(403, "AccessDenied"))
        await asyncio.gather(*(raises(Denied, storage.create(f"vn/{number}", b"")) for number in range(8)))
        assert {key_used(proxy, number) for number in range(8)} == {"AKROUND3"}
        assert calls.read_text() == "xxx"


async def test_credentials_that_end_soon_are_renewed_meanwhile(
    s3_server: S3Server, rotating: Callable[..., Path]
) -> None:
    rotating(12, 12, 600)
    async with proxied(s3_server, profile="rotating", read_timeout="20") as (proxy, storage, _):
        proxy.always(request(), s3_error(403, "AccessDenied"))
        await raises(Denied, storage.create("vn/0", b""))
        assert key_used(proxy) == "AKROUND2"
        while key_used(proxy) != "AKROUND3":
            await raises(Denied, storage.create("vn/0", b""))


async def test_a_renewal_that_fails(s3_server: S3Server, rotating: Callable[..., Path]) -> None:
    calls = rotating(12, 12)
    async with proxied(s3_server, profile="rotating", read_timeout="20") as (proxy, storage, _):
        proxy.always(request(), s3_error(403, "AccessDenied"))
        while len(calls.read_text() if calls.exists() else "") < 3:
            await raises(Denied, storage.create("vn/0", b""))
        for _ in range(3):
            await raises(Denied, storage.create("vn/0", b""))  # the old keys are still valid
        assert key_used(proxy) == "AKROUND2"
        assert calls.read_text() == "xxx"  # and the driver does not ask again immediately
    calls.unlink()
    rotating(5, 5)
    async with proxied(s3_server, profile="rotating", read_timeout="20") as (proxy, storage, _):
        error = await raises(Unavailable, storage.create("vn/0", b""))
        assert "credentials" in error.message
        assert proxy.count() == 0


# -- several event loops


def test_each_event_loop_has_its_own_connections(s3_server: S3Server) -> None:
    storage = open_s3(s3_server.url())
    ready, done = threading.Event(), threading.Event()
    found: list[bytes] = []

    async def other() -> None:
        await storage.put("node/other", b"other")
        ready.set()
        await asyncio.to_thread(done.wait)
        found.append(await storage.read("node/main", size_max=9))

    async def main() -> None:
        await storage.put("node/main", b"main")
        assert await storage.read("node/other", size_max=9) == b"other"
        done.set()
        await asyncio.to_thread(thread.join)
        await storage.close()
        await storage.close()
        assert await storage.read("node/main", size_max=9) == b"main"  # a closed store still works
        await storage.close()

    async def run_other() -> None:
        await other()
        await storage.close()

    thread = threading.Thread(target=asyncio.run, args=(run_other(),))
    thread.start()
    ready.wait()
    asyncio.run(main())
    assert found == [b"main"]
