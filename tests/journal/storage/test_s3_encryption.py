"""Encryption with a key of KMS that the URL of a store names: which requests of the S3 driver carry the key."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from alpheus_test_servers import S3Server
from store_proxy import begins_an_object

from alpheus_journal.errors import InvalidInput
from alpheus_journal.storage.s3 import MULTIPART_FROM, S3Storage, open_s3
from alpheus_journal.testing import TcpProxy, listed, raises
from alpheus_journal.testing.proxy import Answer, CutBefore, request


@asynccontextmanager
async def open_behind_proxy(server: S3Server, **options: str) -> AsyncIterator[tuple[TcpProxy, S3Storage]]:
    """Open a proxy in front of the server, and a store behind the proxy."""
    async with TcpProxy("127.0.0.1", server.port) as proxy:
        storage = open_s3(server.url(endpoint=proxy.endpoint, **options))
        try:
            yield proxy, storage
        finally:
            await storage.close()


async def test_each_object_is_encrypted_with_the_key_of_the_url(s3_server: S3Server) -> None:
    key = "arn:aws:kms:us-east-1:111122223333:key/1234abcd"
    async with open_behind_proxy(s3_server, kms_key_id=key) as (proxy, storage):
        proxy.script(lambda r: "partNumber=2" in r.query, CutBefore())
        await storage.create("vn/0", b"root")
        await storage.put("data/small", b"x")
        await storage.put("data/large", os.urandom(MULTIPART_FROM + 1))
        await storage.put_many({"def/a": b"a", "def/b": b"b"})
        await storage.publish({"node/a": b"a"}, "vn/1", b"root")
        begun = [record.request for record in proxy.log if begins_an_object(record.request)]
        assert sorted(sent.path.rpartition("/")[2] for sent in begun) == [
            "0",
            "1",
            "a",
            "a",
            "b",
            "large",
            "small",
        ]
        for sent in begun:
            assert sent.headers["x-amz-server-side-encryption"] == "aws:kms"
            assert sent.headers["x-amz-server-side-encryption-aws-kms-key-id"] == key
    async with open_behind_proxy(s3_server) as (proxy, storage):
        await storage.put("data/small", b"x")
        assert not [name for name in proxy.log[0].request.headers if "server-side" in name]


async def test_a_store_that_ignores_the_key_is_refused(s3_server: S3Server) -> None:
    """A server may take the request for encryption, and encrypt nothing."""
    async with open_behind_proxy(s3_server, kms_key_id="alias/lake", self_test="true") as (proxy, storage):
        proxy.script(request("HEAD"), Answer(status=200, headers={"ETag": '"x"', "Content-Length": "9"}))
        error = await raises(InvalidInput, storage.prove())
        assert error.kind == "storage_unsuitable"
        assert "kms_key_id" in error.message
        assert await listed(storage, "") == {}
