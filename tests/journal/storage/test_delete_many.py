"""Files removed together: what each driver sends, what its failures mean, and what stores in front of others do."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from alpheus_test_servers import S3Server

from alpheus_journal.errors import (
    AlpheusError,
    Denied,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.rooted_storage import RootedStorage
from alpheus_journal.storage import Storage, open_storage
from alpheus_journal.storage.lmdb import DELETE_BATCH, LmdbStorage
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import (
    FakeFileSystem,
    Fault,
    FaultyStorage,
    InterleavedStorage,
    listed,
    raises,
    scripted,
)
from alpheus_journal.testing.latency import LatencyStorage
from alpheus_journal.testing.proxy import (
    Action,
    Answer,
    Blackhole,
    CutBefore,
    LoseReply,
    Request,
    TcpProxy,
    request,
    s3_error,
)
from alpheus_journal.testing.simulation.loop import Audit, LaxStorage

together = request("POST")
singly = request("DELETE")
CLIENTS = ("aiobotocore", "obstore")


@asynccontextmanager
async def proxied(server: S3Server, **options: str) -> AsyncIterator[tuple[TcpProxy, Storage]]:
    """Open a proxy in front of the server, and a store behind the proxy that makes about 4 attempts."""
    async with TcpProxy("127.0.0.1", server.port) as proxy:
        url = server.url(endpoint=proxy.endpoint, **({"deadline": "0.5", "read_timeout": "0.5"} | options))
        storage = open_storage(url)
        try:
            yield proxy, storage
        finally:
            await storage.close()


def deleted(*errors: tuple[str, str]) -> Answer:
    """Return the answer to a DeleteObjects that failed for some keys: pairs of key and code."""
    entries = "".join(
        f"<Error><Key>{key}</Key><Code>{code}</Code><Message>told so</Message></Error>"
        for key, code in errors
    )
    return Answer(
        status=200, body=f"<DeleteResult>{entries}</DeleteResult>".encode(), headers={"Content-Type": "xml"}
    )


def key_of(storage: Storage, path: str) -> str:
    """Return the key of a file whose name needs no quotes."""
    return storage.uri(path).removeprefix("s3://").partition("/")[2]


def keys_in(found: Request) -> list[str]:
    return re.findall(r"<Key>([^<]*)</Key>", found.body.decode())


# -- S3


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_thousand_files_take_one_request(s3_server: S3Server, client: str) -> None:
    async with proxied(s3_server, client=client, deadline="30", read_timeout="30") as (proxy, storage):
        paths = [f"node/{number}.arrow" for number in range(2001)]
        await storage.put_many(dict.fromkeys([*paths[:3], paths[-1], "node/kept"], b"x"))
        await storage.delete_many([])
        assert proxy.count(together) == 0
        await storage.delete_many([*paths, *paths])
        assert set(await listed(storage, "")) == {"node/kept"}
        sent = [record.request for record in proxy.log if record.request.method == "POST"]
        assert sorted(len(keys_in(one)) for one in sent) == [1, 1000, 1000]
        assert proxy.count(singly) == 0
        for one in sent:
            digest = hashlib.md5(one.body, usedforsecurity=False).digest()
            assert one.headers["content-md5"] == base64.b64encode(digest).decode()
            if client == "aiobotocore":
                assert b"<Quiet>true</Quiet>" in one.body
                assert not [name for name in one.headers if name.startswith("x-amz-checksum")]
                assert "content-md5" in one.headers["authorization"], "the checksum is signed"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "action",
    [
        LoseReply(), CutBefore(), Blackhole(), s3_error(503, "SlowDown"), s3_error(500, "InternalError"),
        Answer(status=500, applied=True), s3_error(429, "TooManyRequests"),
    ],
    ids=str,
)  # fmt: skip
async def test_a_lost_reply_is_asked_for_again(s3_server: S3Server, client: str, action: Action) -> None:
    async with proxied(s3_server, client=client, deadline="20") as (proxy, storage):
        await storage.put_many(dict.fromkeys(["node/a", "node/b", "node/c"], b"x"))
        proxy.script(together, action)
        await storage.delete_many(["node/a", "node/b", "node/none"])
        assert set(await listed(storage, "")) == {"node/c"}
        # obstore does not know what became of a request without an answer, and asks for each file.
        assert proxy.count(together) + proxy.count(singly) in (2, 4)


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_outage_ends_in_doubt(s3_server: S3Server, client: str) -> None:
    async with proxied(s3_server, client=client) as (proxy, storage):
        await storage.put_many(dict.fromkeys(["node/a", "node/b"], b"x"))
        proxy.always(together, LoseReply())
        proxy.always(singly, LoseReply())
        await raises(OutcomeUnknown, storage.delete_many(["node/a", "node/b"]))
        proxy.clear()
        await storage.delete_many(["node/a", "node/b"])
        assert await listed(storage, "") == {}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "refusal",
    [
        s3_error(501, "NotImplemented"), s3_error(405, "MethodNotAllowed"), Answer(status=405), Answer(status=501),
        s3_error(400, "NotImplemented", "requested a function that is not implemented"),
        s3_error(400, "InvalidArgument", "Invalid argument."),
    ],
    ids=str,
)  # fmt: skip
async def test_a_store_without_the_request_gets_one_for_each_file(
    s3_server: S3Server, client: str, refusal: Answer
) -> None:
    """Google's S3 answers 400 with one of the last two codes."""
    async with proxied(s3_server, client=client, deadline="20", read_timeout="20") as (proxy, storage):
        proxy.always(together, refusal)
        paths = [f"node/{number}" for number in range(40)]
        await storage.put_many(dict.fromkeys([*paths, "node/kept"], b"x"))
        await storage.delete_many([*paths[:20], "node/none"])
        await storage.delete_many(paths[20:])
        assert set(await listed(storage, "")) == {"node/kept"}
        assert (proxy.count(together), proxy.count(singly)) == (1, 41)


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_store_that_calls_a_missing_file_an_error(s3_server: S3Server, client: str) -> None:
    """Google answers 404 to the deletion of a missing file."""
    async with proxied(s3_server, client=client) as (proxy, storage):
        proxy.always(together, s3_error(400, "NotImplemented"))
        proxy.always(singly, s3_error(404, "NoSuchKey"))
        await storage.delete("node/a")
        await storage.delete_many(["node/a", "node/b"])
        proxy.clear()
        proxy.always(singly, s3_error(404, "NoSuchBucket"))
        await raises(NotFound, storage.delete("node/a"), kind="no_bucket")


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_file_that_may_not_be_removed(s3_server: S3Server, client: str) -> None:
    async with proxied(s3_server, client=client) as (proxy, storage):
        await storage.put_many(dict.fromkeys(["node/a", "node/locked"], b"x"))
        locked = key_of(storage, "node/locked")
        proxy.always(together, deleted((locked, "AccessDenied")))
        proxy.always(request("DELETE", "locked"), s3_error(403, "AccessDenied", "told so"))
        error = await raises(Denied, storage.delete_many(["node/a", "node/locked"]), kind="denied")
        assert error.path == "node/locked"
        assert "told so" in error.message
        assert "s3:DeleteObject" in error.hint
        proxy.clear()
        proxy.always(together, s3_error(403, "AccessDenied"))
        proxy.always(singly, s3_error(403, "AccessDenied"))
        assert "s3:DeleteObject" in (await raises(Denied, storage.delete_many(["node/a"]))).hint
        proxy.clear()
        proxy.always(together, s3_error(404, "NoSuchBucket"))
        proxy.always(singly, s3_error(404, "NoSuchBucket"))
        await raises(NotFound, storage.delete_many(["node/a"]), kind="no_bucket")


async def test_only_files_that_remain_are_tried_again(s3_server: S3Server) -> None:
    async with proxied(s3_server, deadline="20") as (proxy, storage):
        paths = ["node/a", "node/b", "node/c", "node/d"]
        a, b, c, d = (key_of(storage, path) for path in paths)
        await storage.put_many(dict.fromkeys(paths, b"x"))
        proxy.script(
            together,
            deleted((b, "SlowDown"), (c, "InternalError"), (d, "NoSuchKey")),
            deleted((b, "ServiceUnavailable")),
        )
        await storage.delete_many(paths)
        sent = [keys_in(record.request) for record in proxy.log if record.request.method == "POST"]
        assert sent == [[a, b, c, d], [b, c], [b]]
        assert set(await listed(storage, "")) == {"node/a", "node/c", "node/d"}, "these answers were forged"
        assert proxy.count(singly) == 0


async def test_an_error_about_an_unknown_name_frees_no_file(s3_server: S3Server) -> None:
    async with proxied(s3_server, deadline="20") as (proxy, storage):
        await storage.put_many(dict.fromkeys(["node/a", "node/b"], b"x"))
        proxy.script(together, deleted(("another", "InternalError")))
        await storage.delete_many(["node/a", "node/b"])
        assert proxy.count(together) == 2
        assert await listed(storage, "") == {}
        proxy.always(together, deleted(("another", "AccessDenied")))
        await raises(Denied, storage.delete_many(["node/a", "node/b"]))


async def test_the_failure_that_lasts_is_told(s3_server: S3Server) -> None:
    async with proxied(s3_server) as (proxy, storage):
        paths = ["node/a", "node/b", "node/c"]
        a, b, c = (key_of(storage, path) for path in paths)
        proxy.always(together, deleted((a, "SlowDown"), (b, "BadDigest"), (c, "InvalidObjectState")))
        error = await raises(InvalidInput, storage.delete_many(paths), kind="storage_unsuitable")
        assert error.path == "node/c"
        proxy.clear()
        proxy.always(together, deleted((b, "BadDigest"), (a, "InternalError")))
        assert (await raises(OutcomeUnknown, storage.delete_many(paths))).path == "node/a"
        proxy.clear()
        proxy.always(together, deleted((b, "BadDigest")))
        assert (await raises(Unavailable, storage.delete_many(paths))).path == "node/b"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=200),
        Answer(status=200, body=b"hello"),
        Answer(status=200, body=b"<html><body>hello</body></html>"),
        s3_error(200, "InternalError"),
    ],
    ids=str,
)
async def test_an_answer_of_another_program_is_no_success(s3_server: S3Server, answer: Answer) -> None:
    async with proxied(s3_server) as (proxy, storage):
        await storage.put("node/a", b"x")
        proxy.always(together, answer)
        await raises(OutcomeUnknown, storage.delete_many(["node/a", "node/b"]))


async def test_names_that_no_xml_can_hold(s3_server: S3Server) -> None:
    async with proxied(s3_server, deadline="20", read_timeout="20") as (proxy, storage):
        odd = ["node/\uffff", "node/x\ufffe"]
        await storage.put_many(dict.fromkeys([*odd, "node/a"], b"x"))
        await storage.delete_many([*odd, "node/a"])
        assert not [path for path in (*odd, "node/a") if await storage.exists(path)]
        assert (proxy.count(together), proxy.count(singly)) == (1, 2)


@pytest.mark.parametrize("client", CLIENTS)
async def test_names_longer_than_any_key(s3_server: S3Server, client: str) -> None:
    async with proxied(s3_server, client=client) as (proxy, storage):
        await storage.put("node/a", b"x")
        await storage.delete_many(["def/table/" + "ü" * 510])
        assert (proxy.count(together), proxy.count(singly)) == (0, 0)
        await storage.delete_many(["def/table/" + "ü" * 510, "node/a"])
        assert await listed(storage, "") == {}


# -- LMDB


async def test_a_transaction_removes_a_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await asyncio.to_thread(LmdbStorage, str(tmp_path / "lake"), True)
    paths = [f"node/{number}.arrow" for number in range(2 * DELETE_BATCH + 1)]
    await storage.put_many(dict.fromkeys([*paths, "data/t/x/w/a", "data/t/x/w/b"], b"x" * 2000))
    transactions: list[str] = []
    write = storage._environment.write

    def counted(job: Any, path: str, *rest: Any) -> None:
        transactions.append(path)
        write(job, path, *rest)

    monkeypatch.setattr(storage._environment, "write", counted)
    await storage.delete_many([*paths[:-1], "data/t/x/w/a", paths[-1], "node/none", paths[0]])
    assert len(transactions) == 3
    assert set(await listed(storage, "")) == {"data/t/x/w/b"}
    await storage.close()


# -- a directory


def test_a_directory_without_threads_waits_for_nothing() -> None:
    """After a power cut each file is whole or gone, and no other file is hit."""
    system = FakeFileSystem()
    storage = LocalStorage("/lake", create=True, system=system, threads=0)

    def now(call: Coroutine[Any, Any, None]) -> None:
        with pytest.raises(StopIteration):
            call.send(None)

    paths = ["data/t/a", "data/t/b", "data/u/c"]
    now(storage.put_many(dict.fromkeys([*paths, "data/t/kept"], b"x")))
    system.settle()
    now(storage.delete_many([*paths, "data/none/x"]))
    left = [
        {path for path in [*paths, "data/t/kept"] if f"/lake/{path}" in dict(found)}
        for found in system.survivors()
    ]
    assert len(left) == 8, "no deletion is synced"
    assert all("data/t/kept" in found for found in left)
    assert all(
        content == b"x"
        for found in system.survivors()
        for path, content in found
        if path.startswith("/lake/data/t/")
    )


# -- stores in front of others


async def test_the_default_refuses_first_and_overlaps() -> None:
    class Slow(InterleavedStorage):
        at_once = most = 0

        async def delete(self, path: str) -> None:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            await super().delete(path)
            self.at_once -= 1

    inner = MemoryStorage()
    storage = Slow(inner, seed=1)
    paths = [f"node/{number}" for number in range(100)]
    await inner.put_many(dict.fromkeys([*paths, "node/kept"], b""))
    await raises(InvalidInput, storage.delete_many([*paths, "a//b"]), kind="bad_argument")
    assert len(await listed(inner, "")) == 101
    await storage.delete_many(paths)
    assert set(await listed(inner, "")) == {"node/kept"}
    assert 2 < storage.most <= 32


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault.FAIL_BEFORE, Unavailable),
        (Fault.APPLIED_BUT_LOST, OutcomeUnknown),
        (Fault.NOT_APPLIED_BUT_UNKNOWN, OutcomeUnknown),
        (Fault.ANSWERED_503, OutcomeUnknown),
    ],
)
async def test_each_deletion_can_be_hit(fault: Fault, expected: type[AlpheusError]) -> None:
    paths = ["node/a", "node/b", "node/c"]
    for number, hit in enumerate(paths):
        storage = FaultyStorage(MemoryStorage(), scripted({number: fault}))
        await storage.inner.put_many(dict.fromkeys(paths, b""))
        error = await raises(expected, storage.delete_many(paths))
        assert error.path == hit
        assert {record.call.method for record in storage.log} == {"delete"}
        await storage.delete_many(paths)
        assert await listed(storage.inner, "") == {}


async def test_deletions_go_to_the_store_of_their_files() -> None:
    catalog, root = MemoryStorage(), MemoryStorage()
    storage = RootedStorage(catalog, "memory://root", lambda: root)
    for store in (catalog, root):
        await store.put_many(dict.fromkeys(["data/t/a", "data/t/b", "node/a", "node/b"], b""))
    await raises(InvalidInput, storage.delete_many(["data/t/a", "node/a", "../x"]), kind="bad_argument")
    assert len(await listed(root, "")) == len(await listed(catalog, "")) == 4
    await storage.delete_many(["data/t/a", "node/a", "data/t/none"])
    assert set(await listed(root, "")) == {"data/t/b", "node/a", "node/b"}
    assert set(await listed(catalog, "")) == {"data/t/a", "data/t/b", "node/b"}
    await storage.delete_many([])


async def test_a_slow_store_counts_requests_of_a_thousand_files() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    storage = LatencyStorage(MemoryStorage(), 0.1, sleep=sleep)
    await storage.inner.put_many(dict.fromkeys([f"node/{number}" for number in range(1500)], b""))
    await storage.delete_many([f"node/{number}" for number in range(1500)])
    assert storage.requests == {"delete_many": 2}
    assert waits == [0.1, 0.1]
    assert await listed(storage.inner, "") == {}


async def test_an_audit_reports_each_deletion_of_a_slot() -> None:
    inner = MemoryStorage()
    audit = Audit(LaxStorage(inner))
    await inner.put_many({"vn/0": b"", "node/a": b"", "node/b": b""})
    await audit.delete_many(["vn/0", "node/a"])
    assert audit.violations == ["vn/0 was deleted"]
    assert set(await listed(inner, "")) == {"node/b"}
