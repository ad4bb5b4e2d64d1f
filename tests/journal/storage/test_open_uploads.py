"""Open uploads on S3: they are listed page by page and aborted one by one, and what cannot be done is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import unquote

import pytest
from alpheus_test_servers import S3Server, has_versitygw, reachable

from alpheus_journal.errors import Denied, InvalidInput, Unavailable
from alpheus_journal.rooted_storage import RootedStorage
from alpheus_journal.storage import OpenUpload, Storage, open_storage
from alpheus_journal.storage.s3 import S3Storage
from alpheus_journal.testing import TcpProxy, raises
from alpheus_journal.testing.proxy import Answer, CutBefore, LoseReply, Match, s3_error

KINDS = ["ministack", "versitygw"] if has_versitygw() else ["ministack"]
LISTING: Match = lambda r: r.method == "GET" and "uploads" in r.query  # noqa: E731
ABORT: Match = lambda r: r.method == "DELETE" and "uploadId=" in r.query  # noqa: E731


@pytest.fixture(params=KINDS)
def server(
    request: pytest.FixtureRequest, shared_s3: Callable[[str], S3Server], monkeypatch: pytest.MonkeyPatch
) -> S3Server:
    return reachable(shared_s3(request.param), monkeypatch)


@pytest.fixture
def s3(server: S3Server) -> Iterator[Any]:
    with server.client() as client:
        yield client


@asynccontextmanager
async def opened(server: S3Server, **options: str) -> AsyncIterator[tuple[S3Storage, TcpProxy]]:
    async with TcpProxy("127.0.0.1", server.port) as proxy:
        storage = open_storage(server.url(endpoint=proxy.endpoint, **({"deadline": "2"} | options)))
        assert isinstance(storage, S3Storage)
        try:
            yield storage, proxy
        finally:
            await storage.close()


def begin(s3: Any, storage: Storage, path: str, *, parts: int = 0) -> str:
    """Begin an upload as a writer does that is killed then, and return its id."""
    bucket, _, key = unquote(storage.uri(path)).removeprefix("s3://").partition("/")
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    for number in range(1, parts + 1):
        s3.upload_part(Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=b"part")
    return str(upload_id)


async def uploads_of(storage: Storage, prefix: str = "data/") -> list[OpenUpload]:
    async with aclosing(storage.list_uploads(prefix)) as found:  # type: ignore[type-var]
        return [upload async for upload in found]


async def test_open_uploads_are_listed_and_aborted(server: S3Server, s3: Any) -> None:
    async with opened(server) as (storage, _):
        before = time.time() * 1000
        ids = {path: begin(s3, storage, path, parts=2) for path in ("data/a/x", "data/a/y ü&<", "manifest/m")}
        begin(s3, storage, "data/a/x")
        sibling = open_storage(storage.url.replace("?", "2?"))
        begin(s3, sibling, "data/a/x")
        found = await uploads_of(storage)
        assert sorted(upload.path for upload in found) == ["data/a/x", "data/a/x", "data/a/y ü&<"]
        assert ids["data/a/x"] in {upload.upload_id for upload in found}
        for upload in found:
            assert upload.initiated_at_millis is not None
            assert -2000 < upload.initiated_at_millis - before < 60_000
        for upload in found:
            await storage.abort_upload(upload)
            await storage.abort_upload(upload)
        assert await uploads_of(storage) == []
        assert [upload.path for upload in await uploads_of(storage, "manifest/")] == ["manifest/m"]
        assert len(await uploads_of(sibling)) == 1
        await sibling.close()


async def test_a_completed_file_outlives_the_abort_of_its_upload(server: S3Server, s3: Any) -> None:
    async with opened(server) as (storage, _):
        path = "data/a/x"
        upload_id = begin(s3, storage, path, parts=1)
        (upload,) = await uploads_of(storage)
        bucket, _, key = storage.uri(path).removeprefix("s3://").partition("/")
        (part,) = s3.list_parts(Bucket=bucket, Key=key, UploadId=upload_id)["Parts"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        s3.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id, MultipartUpload=parts)
        assert await uploads_of(storage) == []
        await storage.abort_upload(upload)
        assert await storage.read(path, size_max=100) == b"part"


@pytest.mark.parametrize("keys", ["many keys", "one key"])
async def test_a_long_list_comes_page_by_page(
    server: S3Server, s3: Any, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """versitygw knows no markers of uploads: of one key it lists one page."""
    async with opened(server) as (storage, proxy):
        paths = [f"data/a/{number if keys == 'many keys' else 0}" for number in range(7)]
        ids = {begin(s3, storage, path) for path in paths}
        await uploads_of(storage)
        client = (await storage._client._connect_here()).client
        whole = client.list_multipart_uploads

        async def list_two(**where: Any) -> Any:
            return await whole(**where, MaxUploads=2)

        monkeypatch.setattr(client, "list_multipart_uploads", list_two)
        proxy.log.clear()
        found = await uploads_of(storage)
        assert len({upload.upload_id for upload in found}) == len(found)
        if server.kind == "versitygw" and keys == "one key":
            assert len(found) == 2
        else:
            assert {upload.upload_id for upload in found} == ids
            assert proxy.count(LISTING) >= 4


def page(*uploads: tuple[str, str, str], next: tuple[str, str] = ("", ""), truncated: bool = False) -> Answer:
    """Forge an answer. Each upload has key, id and time."""
    entries = "".join(
        f"<Upload><Key>{key}</Key><UploadId>{id}</UploadId>{time and f'<Initiated>{time}</Initiated>'}</Upload>"
        for key, id, time in uploads
    )
    body = (
        f"<ListMultipartUploadsResult><IsTruncated>{str(truncated).lower()}</IsTruncated>"
        f"<NextKeyMarker>{next[0]}</NextKeyMarker><NextUploadIdMarker>{next[1]}</NextUploadIdMarker>{entries}"
        "</ListMultipartUploadsResult>"
    )
    return Answer(status=200, body=body.encode(), headers={"Content-Type": "application/xml"})


async def test_foreign_keys_and_times_that_are_missing(s3_server: S3Server) -> None:
    async with opened(s3_server) as (storage, proxy):
        prefix = storage.uri("x").removeprefix(f"s3://{s3_server.bucket}/")[:-1]
        then = "2026-01-02T03:04:05.000Z"
        proxy.script(
            LISTING,
            page(
                ("data/a/sibling", "1", then), (f"{prefix}2/data/a/x", "2", then), (f"{prefix}data/../x", "3", then),
                (f"{prefix}data/a/no-time", "4", ""), (f"{prefix}data/a/year-1", "5", "0001-01-01T00:00:00Z"),
                (f"{prefix}data/a/x", "6", then), (f"{prefix}data/a/no-id", "", then),
                (f"{prefix}manifest/m", "7", then),
            ),
        )  # fmt: skip
        assert await uploads_of(storage) == [
            OpenUpload("data/a/no-time", "4", None),
            OpenUpload("data/a/year-1", "5", None),
            OpenUpload("data/a/x", "6", 1_767_323_045_000),
        ]


@pytest.mark.parametrize(
    ("answers", "error", "text"),
    [
        ([s3_error(403, "AccessDenied")], Denied, "allow s3:ListBucketMultipartUploads on the bucket"),
        ([s3_error(501, "NotImplemented")], InvalidInput, "does not know this request"),
        ([s3_error(405, "MethodNotAllowed")], InvalidInput, "does not know this request"),
        ([s3_error(400, "InvalidArgument")], InvalidInput, "does not know this request"),
        ([Answer(status=200, body=b"<html></html>")], InvalidInput, "does not"),
        ([Answer(status=200, body=b"hello")] * 20, Unavailable, "list uploads"),
        ([page(("k", "i", "yesterday"))], InvalidInput, "does not know this request"),
        ([page(("k", "i", "9" * 20))], InvalidInput, "does not know this request"),
        ([page(truncated=True)], InvalidInput, "cannot be continued"),
        ([page(truncated=True, next=("k", "i"))] * 2, InvalidInput, "cannot be continued"),
        ([page(truncated=True, next=(k, k)) for k in "aba"], InvalidInput, "cannot be continued"),
        ([s3_error(503, "SlowDown")] * 20, Unavailable, "SlowDown"),
    ],
)
async def test_what_cannot_be_listed_is_an_error_that_says_why(
    s3_server: S3Server, answers: list[Answer], error: type[Exception], text: str
) -> None:
    async with opened(s3_server, deadline="0.3") as (storage, proxy):
        proxy.script(LISTING, *answers)
        with pytest.raises(error) as failure:
            await uploads_of(storage)
        assert text in f"{failure.value.message} {failure.value.hint}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("action", [CutBefore(), LoseReply(), s3_error(503, "SlowDown")], ids=str)
async def test_listing_and_abort_are_repeated(s3_server: S3Server, action: Any) -> None:
    async with opened(s3_server) as (storage, proxy):
        with s3_server.client() as s3:
            await asyncio.to_thread(begin, s3, storage, "data/a/x")
        proxy.script(LISTING, action)
        (upload,) = await uploads_of(storage)
        proxy.script(ABORT, action)
        await storage.abort_upload(upload)
        assert proxy.count(ABORT) == 2
        assert await uploads_of(storage) == []


async def test_what_cannot_be_aborted_is_an_error_that_says_why(s3_server: S3Server) -> None:
    upload = OpenUpload("data/a/x", "some-id", 1)
    async with opened(s3_server) as (storage, proxy):
        proxy.script(ABORT, s3_error(403, "AccessDenied"), s3_error(501, "NotImplemented"))
        error = await raises(Denied, storage.abort_upload(upload))
        assert "s3:AbortMultipartUpload" in error.hint
        await raises(InvalidInput, storage.abort_upload(upload), kind="not_supported")


async def test_uploads_of_data_roots_are_those_below_data(s3_server: S3Server) -> None:
    async with opened(s3_server) as (catalog, _), opened(s3_server) as (root, _):
        rooted = RootedStorage(catalog, root.url, lambda: root)
        with s3_server.client() as s3:
            begin(s3, catalog, "data/a/catalog")
            begin(s3, catalog, "manifest/a/catalog")
            begin(s3, root, "data/a/root")
        (upload,) = await uploads_of(rooted)
        assert upload.path == "data/a/root"
        assert [one.path for one in await uploads_of(rooted, "manifest/")] == ["manifest/a/catalog"]
        await rooted.abort_upload(upload)
        assert await uploads_of(root) == []
        assert len(await uploads_of(catalog)) == 1
