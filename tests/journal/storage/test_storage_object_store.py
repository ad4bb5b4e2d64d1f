"""obstore's driver on a real S3 server, on Azurite, and on a stand-in for Google Cloud Storage: the contract, the
meaning of each failure on the wire, and the rules for URLs.

No package registry offers an emulator of Google Cloud Storage that accepts the requests of this library. So `XmlStore`
answers them here. This shows only that the driver sends what the service's documents ask for.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email.utils
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import xml.sax.saxutils
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from alpheus_test_servers import S3Server
from hypothesis import given
from hypothesis import strategies as st
from obstore.exceptions import GenericError

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
from alpheus_journal.storage import Storage, folders_above, is_path, open_storage
from alpheus_journal.storage.object_store import MULTIPART_SIZE_MIN, ObjectStorage
from alpheus_journal.storage.object_url import Place, parse_url
from alpheus_journal.storage.suitability import SCRATCH_FOLDER, forget_proofs
from alpheus_journal.testing import FakeClock, StorageContract, listed, raises
from alpheus_journal.testing.contract import ODD_PATHS, SIZE_MAX

ROOT = Path(__file__).resolve().parents[3]

# --- a store that speaks the common part of S3 and Google Cloud Storage, and fails on demand


class Request(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


RESET, CLOSE, HANG, APPLY_THEN_RESET = b"reset", b"close", b"hang", b"apply then reset"


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def refusal(status: int, code: str) -> bytes:
    return answer(status, f"<Error><Code>{code}</Code><Message>told so</Message></Error>".encode())


class XmlStore:
    """Objects of one bucket. Each request takes one of `faults`, from the left; None is a request that works.

    A fault is a whole answer in bytes, or one of RESET, CLOSE, HANG, APPLY_THEN_RESET.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.faults: deque[bytes | None] = deque()
        self.always: Callable[[Request], bytes | None] = lambda request: None
        self.requests: list[Request] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self.server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the last step of the transports

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = first.split(" ")
            request = Request(method, target, headers, body)
            self.requests.append(request)
            fault = self.faults.popleft() if self.faults else self.always(request)
            if fault == HANG:
                await asyncio.sleep(3600)
            if fault in (RESET, APPLY_THEN_RESET):
                if fault == APPLY_THEN_RESET:
                    self._apply(request)
                return
            if fault == CLOSE:
                writer.close()
                await writer.wait_closed()
                return
            writer.write(fault if fault is not None else self._apply(request))
            await writer.drain()
            if fault is not None and b"Connection: close" in fault:
                writer.close()
                await writer.wait_closed()
                return

    def _apply(self, request: Request) -> bytes:
        parts = urlsplit(request.target)
        key = unquote(parts.path).removeprefix("/bkt").removeprefix("/")
        query = parse_qs(parts.query)
        date = "Wed, 21 Oct 2015 07:28:00 GMT"
        match request.method:
            case "GET" if "list-type" in query:
                return self._list(query.get("prefix", [""])[0], query.get("continuation-token", [""])[0])
            case "GET" | "HEAD" if key not in self.objects:
                return refusal(404, "NoSuchKey") if request.method == "GET" else answer(404)
            case "GET":
                return answer(200, self.objects[key], Last_Modified=date, **self._tags_of(key))
            case "HEAD":
                whole = answer(200, self.objects[key], Last_Modified=date, **self._tags_of(key))
                return whole[: len(whole) - len(self.objects[key])]
            case "PUT":
                is_conditional = (
                    request.headers.get("if-none-match") == "*"
                    or request.headers.get("x-goog-if-generation-match") == "0"
                )
                if is_conditional and key in self.objects:
                    return refusal(412, "PreconditionFailed")
                self.objects[key] = request.body
                self.tags[key] = {"ETag": '"e"', "x_goog_generation": str(len(self.requests))}
                return answer(200, **self._tags_of(key))
            case "DELETE":
                return answer(204) if self.objects.pop(key, None) is not None else refusal(404, "NoSuchKey")
        return refusal(400, "NotUnderstood")

    def _tags_of(self, key: str) -> dict[str, str]:
        return self.tags.get(key, {"ETag": '"e"'})  # a test put this object here itself

    def _list(self, prefix: str, after: str) -> bytes:
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        page, more = keys[:1000], len(keys) > 1000
        entries = "".join(
            f"<Contents><Key>{xml.sax.saxutils.escape(key)}</Key><Size>{len(self.objects[key])}</Size>"
            '<LastModified>2015-10-21T07:28:00.000Z</LastModified><ETag>"e"</ETag></Contents>'
            for key in page
        )
        token = (
            f"<NextContinuationToken>{xml.sax.saxutils.escape(page[-1])}</NextContinuationToken>"
            if more
            else ""
        )
        text = (
            f"<ListBucketResult><Name>bkt</Name><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>"
        )
        return answer(200, text.encode())


@pytest.fixture
async def store() -> AsyncIterator[XmlStore]:
    server = XmlStore()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's credentials and endpoints. Each store runs its self-test again."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    forget_proofs()


def s3_of(store: XmlStore, prefix: str = "lake", **options: str) -> ObjectStorage:
    """Return an unsigned store whose waiting takes no time."""
    given = {"client": "obstore", "endpoint_url": store.endpoint, "anonymous": "true", "self_test": "false"}
    query = "&".join(f"{name}={value}" for name, value in (given | options).items())
    return ObjectStorage(parse_url(f"s3://bkt/{prefix}?{query}"), clock=FakeClock(), jitter=lambda: 0.5)


# --- the contract


class TestS3(StorageContract):
    @pytest.fixture(autouse=True)
    def _server(self, s3_server: S3Server) -> None:
        self.server = s3_server

    async def make(self) -> Storage:
        return open_storage(self.server.url(client="obstore"))


class TestGoogle(StorageContract):
    @pytest.fixture(autouse=True)
    def _server(self, store: XmlStore) -> None:
        self.endpoint = store.endpoint

    async def make(self) -> Storage:
        return open_storage(f"gs://bkt/a lake?endpoint_url={self.endpoint}&anonymous=true")


AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own key, which is the same everywhere."""


def make_container(endpoint: str, name: str) -> None:
    """Make a container: the library cannot do this."""
    date = email.utils.formatdate(usegmt=True)
    signed = (
        f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:2021-08-06\n"
        f"/devstoreaccount1/devstoreaccount1/{name}\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(AZURE_KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": "2021-08-06",
        "Authorization": f"SharedKey devstoreaccount1:{base64.b64encode(digest).decode()}",
    }
    url = f"{endpoint}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of an emulator with the container `cont`."""
    program = ROOT / ".cache" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists() or shutil.which("node") is None:
        pytest.skip("Azurite is not installed, so az:// was not tried: .ci/azurite")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    data = tmp_path_factory.mktemp("azurite")
    options = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    process = subprocess.Popen(
        [program, "--blobPort", str(port), *options], cwd=data, stdout=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            assert process.poll() is None, "Azurite ended"
            assert time.monotonic() < end, "Azurite does not listen"
            time.sleep(0.05)
        endpoint = f"http://127.0.0.1:{port}/devstoreaccount1"
        make_container(endpoint, "cont")
        yield endpoint
    finally:
        process.terminate()
        process.wait()


class TestAzure(StorageContract):
    @pytest.fixture(autouse=True)
    def _server(self, azurite: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
        self.endpoint = azurite

    async def make(self) -> Storage:
        prefix = f"lakes/{RandomIdentities().uuid4()}"
        return open_storage(f"az://cont/{prefix}?account=devstoreaccount1&endpoint_url={self.endpoint}")

    async def test_odd_paths_are_taken(self) -> None:
        """A store takes every odd path except a backslash. Azure turns a backslash into a slash, so such a file can be
        read, but its listed name differs."""
        async with self._store() as storage:
            files = {path: path.encode() for path in ODD_PATHS}
            for path, data in files.items():
                await storage.create(path, data)
            assert await storage.read_many(list(files), size_max=SIZE_MAX) == files
            assert set(await listed(storage, "")) == {path.replace("\\", "/") for path in files}

    async def test_a_whole_catalog(self) -> None:
        async with self._store() as storage:
            journal = await Journal.create(storage)
            await commit(journal, "a")
            assert journal.head.version == 1
            assert set(await listed(storage, SCRATCH_FOLDER)) == set()
        missing = open_storage(f"az://none/x?account=devstoreaccount1&endpoint_url={self.endpoint}")
        await raises(NotFound, Journal.create(missing), kind="no_bucket")
        await raises(NotFound, Journal.open(missing), kind="no_bucket")

    async def test_a_wrong_key_is_denied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"another").decode())
        async with self._store() as storage:
            error = await raises(Denied, storage.create("vn/0", b"x"))
            assert "Storage Blob Data Contributor" in error.hint


async def commit(journal: Journal, name: str) -> None:
    identities = RandomIdentities()
    await journal.commit(
        Transaction(
            id=identities.uuid7(),
            begin_version=journal.head.version,
            operations=(CreateNamespace(name=name, namespace_id=identities.uuid4()),),
            principal="test",
        )
    )


# --- a whole catalog on S3


async def test_a_whole_catalog_on_s3(s3_server: S3Server) -> None:
    url = s3_server.url(client="obstore")
    journal = await Journal.create(open_storage(url))
    await commit(journal, "a")
    await journal.close()
    journal = await Journal.open(open_storage(url))
    assert journal.head.version == 1
    assert set(await listed(journal.storage, SCRATCH_FOLDER)) == set()
    await journal.close()


async def test_large_puts_go_in_parts(s3_server: S3Server) -> None:
    storage = open_storage(s3_server.url(client="obstore"))
    data = os.urandom(MULTIPART_SIZE_MIN) + b"and a little more"
    await storage.put("data/t/x/w/large.parquet", data)
    assert await storage.read("data/t/x/w/large.parquet", size_max=SIZE_MAX) == data
    await storage.close()


def test_several_event_loops(s3_server: S3Server) -> None:
    """Loops run one after the other and in parallel. Each loop waits for its own free connections."""
    storage = open_storage(s3_server.url(client="obstore", max_connections="2"))
    files = {f"node/{number}": b"%d" % number for number in range(20)}
    asyncio.run(storage.put_many(files))
    with ThreadPoolExecutor(4) as threads:
        reading = [
            threads.submit(lambda: asyncio.run(storage.read_many(list(files), size_max=9))) for _ in range(8)
        ]
        assert all(future.result() == files for future in reading)


async def test_a_missing_bucket(s3_server: S3Server) -> None:
    url = s3_server.url(client="obstore").replace(s3_server.bucket, "no-such-bucket")
    for call in (
        lambda storage: Journal.open(storage),
        lambda storage: Journal.create(storage),
        lambda storage: storage.create("vn/0", b""),
        lambda storage: storage.put("vn/0", b""),
        lambda storage: storage.read("vn/0", size_max=9),
        lambda storage: listed(storage, ""),
    ):
        error = await raises(NotFound, call(open_storage(url)), kind="no_bucket")
        assert "no-such-bucket" in str(error)


# --- single requests, and the meaning of their failures


async def test_create_is_one_conditional_request(store: XmlStore) -> None:
    s3 = s3_of(store)
    await s3.create("vn/000", b"root")
    google = open_storage(f"gs://bkt/lake?endpoint_url={store.endpoint}&anonymous=true")
    await raises(AlreadyExists, google.create("vn/000", b"other"), kind="slot_taken")
    assert [request.headers.get("if-none-match") for request in store.requests] == ["*", None]
    assert [request.headers.get("x-goog-if-generation-match") for request in store.requests] == [None, "0"]
    assert store.objects == {"lake/vn/000": b"root"}


CREATE_FAILURES: list[tuple[bytes, type[AlpheusError], str]] = [
    (refusal(412, "PreconditionFailed"), AlreadyExists, "slot_taken"),
    (answer(304), AlreadyExists, "slot_taken"),
    (refusal(409, "ConditionalRequestConflict"), OutcomeUnknown, ""),
    (refusal(500, "InternalError"), OutcomeUnknown, ""),
    (refusal(503, "SlowDown"), OutcomeUnknown, ""),
    (refusal(408, "RequestTimeout"), OutcomeUnknown, ""),
    (refusal(425, "TooEarly"), OutcomeUnknown, ""),
    (refusal(507, "InsufficientStorage"), Exhausted, "no_space"),
    (refusal(413, "EntityTooLarge"), InvalidInput, "too_large"),
    (refusal(400, "RequestTimeout"), OutcomeUnknown, ""),
    (RESET, OutcomeUnknown, ""),
    (CLOSE, OutcomeUnknown, ""),
    (APPLY_THEN_RESET, OutcomeUnknown, ""),
    (HANG, OutcomeUnknown, ""),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", OutcomeUnknown, ""),  # no ETag
    (b"nonsense\r\n\r\nConnection: close", OutcomeUnknown, ""),
    (refusal(429, "TooManyRequests"), Unavailable, "storage_unavailable"),
    (refusal(403, "AccessDenied"), Denied, "denied"),
    (refusal(401, "Unauthorized"), Denied, "denied"),
    (refusal(400, "ExpiredToken"), Denied, "denied"),
    (refusal(404, "NoSuchBucket"), NotFound, "no_bucket"),
    (refusal(301, "PermanentRedirect"), InvalidInput, "bad_url"),
    (refusal(400, "InvalidBucketName"), InvalidInput, "bad_url"),
    (refusal(501, "NotImplemented"), InvalidInput, "storage_unsuitable"),
]


@pytest.mark.parametrize(
    ("fault", "expected", "kind"), CREATE_FAILURES, ids=[str(row[0][:40]) for row in CREATE_FAILURES]
)
async def test_create_fails(store: XmlStore, fault: bytes, expected: type[AlpheusError], kind: str) -> None:
    storage = s3_of(store, connect_timeout="5", read_timeout="0.4")
    store.faults.append(fault)
    error = await raises(expected, storage.create("vn/000", b"root"), kind=kind)
    assert type(error) is expected
    assert ("there is no bucket bkt" if kind == "no_bucket" else "vn/000") in str(error)
    assert error.hint or kind == "too_large" or expected in (AlreadyExists, OutcomeUnknown, Unavailable)
    assert len(store.requests) == 1, "it was sent again"
    assert list(store.objects) == (["lake/vn/000"] if fault == APPLY_THEN_RESET else [])


async def test_a_store_that_cannot_be_reached(store: XmlStore) -> None:
    await store.stop()
    storage = s3_of(store)
    await raises(Unavailable, storage.create("vn/000", b""))
    await raises(Unavailable, storage.put("vn/latest", b"0"))
    error = await raises(Unavailable, storage.read("vn/latest", size_max=9))
    assert "Connection refused" in str(error)
    await raises(Unavailable, listed(s3_of(store, deadline="0.1"), ""))


PASSING = [refusal(503, "SlowDown"), refusal(409, "OperationAborted"), refusal(429, "TooMany"), RESET]


@pytest.mark.parametrize("fault", PASSING, ids=["503", "409", "429", "reset"])
async def test_reads_and_fresh_puts_are_sent_again(store: XmlStore, fault: bytes) -> None:
    storage = s3_of(store)
    store.objects["lake/node/a"] = b"a"
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: storage.read("node/a", size_max=9),
        lambda: storage.stat("node/a"),
        lambda: storage.put("node/b", b"b"),
        lambda: storage.put_many({"node/c": b"c"}),
        lambda: storage.delete("node/b"),
    ]
    for call in calls:
        store.requests.clear()
        store.faults.extend([fault, fault])
        await call()
        assert len(store.requests) == 3
    assert store.objects == {"lake/node/a": b"a", "lake/node/c": b"c"}


async def test_a_cut_answer_is_read_again(store: XmlStore) -> None:
    storage = s3_of(store)
    store.objects["lake/node/a"] = b"whole"
    cut = answer(200, b"who", ETag='"e"', Connection="close").replace(
        b"Content-Length: 3", b"Content-Length: 5"
    )
    store.faults.append(cut)
    assert await storage.read("node/a", size_max=9) == b"whole"
    assert len(store.requests) == 2
    store.always = lambda request: cut
    await raises(Unavailable, storage.read("node/a", size_max=9))


async def test_the_size_is_known_before_the_bytes(store: XmlStore) -> None:
    storage = s3_of(store)
    endless = b'HTTP/1.1 200 OK\r\nContent-Length: 9000000000\r\nETag: "e"\r\n\r\n'
    store.faults.append(endless)  # no byte of it is ever sent
    await raises(Corrupt, storage.read("node/a", size_max=9), kind="corrupt_node")


async def test_after_the_deadline(store: XmlStore) -> None:
    clock = FakeClock()
    storage = ObjectStorage(parse_url(s3_of(store).url), clock=clock, jitter=lambda: 1.0)
    begun = clock.now_millis()
    store.always = lambda request: refusal(503, "SlowDown")
    await raises(Unavailable, storage.read("node/a", size_max=9))
    assert 25_000 <= clock.now_millis() - begun <= 30_000
    await raises(OutcomeUnknown, storage.put("node/a", b"a"))
    await raises(Unavailable, storage.publish({"node/a": b"a"}, "vn/000", b"root"))
    assert not [request for request in store.requests if "vn/000" in request.target], "the slot was tried"
    # A write that may have been applied stays in doubt, whatever the last attempt answers.
    store.faults.append(refusal(500, "InternalError"))
    store.always = lambda request: refusal(429, "TooMany")
    await raises(OutcomeUnknown, storage.put("node/a", b"a"))
    await raises(Unavailable, storage.put("node/a", b"a"))


async def test_an_overwriting_put_is_not_sent_twice(store: XmlStore) -> None:
    storage = s3_of(store)
    for fault in (RESET, refusal(500, "InternalError")):
        store.requests.clear()
        store.faults.append(fault)
        await raises(OutcomeUnknown, storage.put("vn/latest", b"7"))
        assert len(store.requests) == 1
    store.faults.append(refusal(429, "TooMany"))  # certainly not applied
    await storage.put("vn/latest", b"8")
    assert store.objects == {"lake/vn/latest": b"8"}


async def test_listing_goes_on_after_a_failure(store: XmlStore) -> None:
    storage = s3_of(store, deadline="5")
    store.objects = {f"lake/node/{number:05}": b"" for number in range(2500)}
    store.faults.extend([None, refusal(503, "SlowDown")])
    assert len(await listed(storage, "node/")) == 2500


async def test_foreign_keys_in_a_listing(store: XmlStore) -> None:
    storage = s3_of(store)
    store.objects = {"lake/": b"", "lake/node/a": b"a", "lakes/node/b": b"", "other": b""}
    assert set(await listed(storage, "")) == {"node/a"}
    store.objects["lake/node//x"] = b""
    error = await raises(Corrupt, listed(storage, ""))
    assert "client=aiobotocore" in error.hint
    assert await storage.read("node/a", size_max=9) == b"a"


async def test_deleting(store: XmlStore) -> None:
    storage = s3_of(store)
    await storage.delete("never/there")
    store.faults.append(refusal(404, "NoSuchBucket"))
    await raises(NotFound, storage.delete("never/there"), kind="no_bucket")
    store.faults.append(refusal(403, "AccessDenied"))
    error = await raises(Denied, storage.delete("node/a"))
    assert "DeleteObject" in error.hint


async def test_many_requests_are_bounded(store: XmlStore) -> None:
    storage = s3_of(store, max_connections="5", connect_timeout="60", read_timeout="300")
    store.always = lambda request: HANG
    tasks = [
        asyncio.ensure_future(storage.read_many([f"node/{n}", f"node/{n}x"], size_max=9)) for n in range(20)
    ]
    async with asyncio.timeout(10):
        while len(store.requests) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0)
    for _ in range(500):
        await asyncio.sleep(0)
    assert len(store.requests) == 5
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_long_keys(store: XmlStore) -> None:
    storage = s3_of(store)
    path = "def/table/" + "ü" * 510
    assert await storage.stat(path) is None
    await raises(NotFound, storage.read(path, size_max=9), kind="no_file")
    await storage.delete(path)
    await raises(InvalidInput, storage.create(path, b""))
    await raises(InvalidInput, storage.put(path, b""))
    assert store.requests == []


async def test_after_close(store: XmlStore) -> None:
    storage = s3_of(store)
    await storage.close()
    await raises(Unavailable, storage.read("node/a", size_max=9), kind="shutting_down")
    await raises(Unavailable, storage.create("node/a", b""), kind="shutting_down")
    await raises(Unavailable, listed(storage, ""), kind="shutting_down")
    assert store.requests == []


async def test_an_answer_cannot_pass_for_no_answer(store: XmlStore) -> None:
    """An error's text holds the store's own words. No such text turns a write in doubt into a certain outcome."""
    storage = s3_of(store)
    for words in (
        "\n  kind: Connect,\n",
        "inner: BareRedirect",
        "Server returned non-2xx status code: 412 Precondition Failed",
        "Error performing PUT http://169.254.169.254/latest/api/token in 1ms",
        "<Code>NoSuchBucket</Code>",
    ):
        store.faults.append(answer(500, words.encode()))
        await raises(OutcomeUnknown, storage.create("vn/000", b""))


@given(st.text(max_size=200), st.sampled_from(["create", "write", "delete"]))
def test_what_cannot_be_read_is_in_doubt(text: str, action: str) -> None:
    """Without a status, and without a failed connection, a write may have been applied."""
    storage = ObjectStorage(parse_url("s3://bkt/x?client=obstore"))
    error = storage._error(GenericError(text), action, "vn/0", is_write=True)
    known = ("status code", "kind: Connect", "BareRedirect", "<Code>", "Error performing")
    assert isinstance(error, OutcomeUnknown) or any(word in text for word in known)
    assert isinstance(storage._error(GenericError(text), "read", "vn/0", is_write=False), Unavailable) or any(
        word in text for word in known
    )


# --- credentials


@pytest.mark.parametrize("url", ["s3://bkt/lake?client=obstore", "gs://bkt/lake", "az://cont/lake?account=a"])
async def test_no_credentials(url: str, store: XmlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service that gives a machine its role does not answer, so no request was sent to the store."""
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", "http://127.0.0.1:9/token")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_ROOT", "127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:9")
    joint = "&" if "?" in url else "?"
    storage = open_storage(f"{url}{joint}endpoint_url={store.endpoint}&connect_timeout=0.5")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: storage.create("vn/0", b""),
        lambda: storage.read("vn/0", size_max=9),
        lambda: listed(storage, ""),
    ]
    for call in calls:
        error = await raises(Denied, call(), kind="no_credentials")
        assert "set A" in error.hint or "set GOOGLE_APPLICATION_CREDENTIALS" in error.hint
    assert store.requests == []


async def test_reading_needs_no_permission_to_write(store: XmlStore) -> None:
    journal = await Journal.create(s3_of(store))
    await journal.close()
    store.always = lambda request: (
        refusal(403, "AccessDenied") if request.method in ("PUT", "DELETE") else None
    )
    for self_test in ("true", "false"):
        reader = await Journal.open(s3_of(store, self_test=self_test))
        assert (await reader.info()).version == 0
        error = await raises(Denied, commit(reader, "a"))
        assert "s3:PutObject" in str(error) or "allow writing" in error.hint
        assert reader.head.version == 0
        await reader.close()
    assert not [
        request
        for request in store.requests
        if "if-none-match" in request.headers and "/vn/1" in request.target
    ]


async def test_secrets_are_not_in_errors(store: XmlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKCANARY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2023&sig=canary")
    for url in ("s3://bkt/lake?client=obstore", "az://bkt/lake?account=a"):
        storage = open_storage(f"{url}&endpoint_url={store.endpoint}")
        store.faults.append(refusal(400, "Odd"))
        error = await raises(AlpheusError, storage.create("vn/0", b""))
        assert "canary" not in str(error).lower()
        assert "canary" not in repr(error.__dict__).lower()


# --- URLs


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3://bkt/x?client=obstore&colour=red", "'colour' is unknown"),
        ("s3://bkt/x?client=obstore&profile=me", "no profiles"),
        ("s3://bkt/x?client=obstore&region=eu&region=us", "twice"),
        ("s3://bkt/x?client=obstore&region=", "region must be"),
        ("s3://bkt/x?client=obstore&path_style=yes", "true or false"),
        ("s3://bkt/x?client=obstore&deadline=soon", "a number from 0 to 600"),
        ("s3://bkt/x?client=obstore&deadline=601", "a number from 0 to 600"),
        ("s3://bkt/x?client=obstore&endpoint_url=localhost:9000", "http://host:port"),
        ("s3://bkt/x?client=obstore&endpoint_url=http://u:canary@h", "without a password"),
        ("s3://bkt/x?client=obstore&endpoint_url=http://h:99999", "http://host:port"),
        ("s3://bkt/x?client=obstore&endpoint_url=http://h:port", "http://host:port"),
        ("gs://bkt/x?endpoint_url=http://h%20h", "http://host:port"),
        ("s3://bkt/x?client=obstore&aws_secret_access_key=canary", "a secret into the URL"),
        ("s3://bkt/x?client=obstore&Signature=canary", "a secret into the URL"),
        ("s3://key:canary@bkt/x?client=obstore", "user or password"),
        ("s3://bkt/a//b?client=obstore", "is not a prefix"),
        ("s3://bkt/a/../b?client=obstore", "is not a prefix"),
        ("s3://bkt/x?client=obstore#part", "fragment"),
        ("s3:///x?client=obstore", "is not a bucket name"),
        ("gs://bkt/x?region=eu", "'region' is unknown"),
        ("gs://bkt/x?client=obstore", "'client' is unknown"),
        ("az://cont/x", "account=name"),
        ("az://cont/x?account=a&sas=canary", "a secret into the URL"),
    ],
)
def test_urls_that_are_refused(url: str, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_storage(url)
    assert caught.value.kind == "bad_url"
    assert told in str(caught.value)
    assert caught.value.hint
    assert "canary" not in str(caught.value)


def test_settings_that_the_library_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/at-all.json")
    with pytest.raises(InvalidInput) as caught:
        open_storage("gs://bkt/lake")
    assert caught.value.kind == "bad_url"


@pytest.mark.parametrize(
    ("given", "normal", "uri"),
    [
        ("s3://bkt?client=obstore", "s3://bkt?client=obstore", "s3://bkt/data/a%20b"),
        (
            "s3://bkt/a lake/?region=eu-west-1&client=obstore",
            "s3://bkt/a%20lake?client=obstore&region=eu-west-1",
            "s3://bkt/a%20lake/data/a%20b",
        ),
        ("gs://bkt/x/y", "gs://bkt/x/y", "gs://bkt/x/y/data/a%20b"),
        (
            "az://cont/x?account=acc",
            "az://cont/x?account=acc",
            "abfss://cont@acc.dfs.core.windows.net/x/data/a%20b",
        ),
    ],
)
def test_one_place_has_one_url(given: str, normal: str, uri: str) -> None:
    storage = open_storage(given)
    assert storage.url == normal
    assert open_storage(normal).url == normal
    assert storage.uri("data/a b") == uri


@given(
    st.sampled_from(["s3", "gs", "az"]),
    st.text(max_size=30).filter(is_path) | st.just(""),
    st.dictionaries(st.sampled_from(["self_test", "anonymous"]), st.sampled_from(["true", "false"])),
)
def test_a_url_is_read_as_it_was_written(scheme: str, prefix: str, options: dict[str, str]) -> None:
    own = {"s3": {"client": "obstore"}, "gs": {}, "az": {"account": "acc"}}[scheme]
    place = Place(scheme=scheme, bucket="bkt", prefix=prefix, options=own | options)
    again = parse_url(place.url(prefix))
    assert (again.bucket, again.prefix, again.options) == ("bkt", prefix, own | options)


def test_the_account_of_the_environment_is_part_of_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")
    assert open_storage("az://cont/x").url == "az://cont/x?account=acc"


async def test_virtual_hosts(store: XmlStore) -> None:
    endpoint = store.endpoint.replace("127.0.0.1", "localhost")
    storage = s3_of(store, endpoint_url=endpoint, path_style="false")
    # bkt.localhost is this machine (RFC 6761), if the resolver follows the RFC
    with contextlib.suppress(Unavailable):
        await storage.create("vn/0", b"x")
        assert store.requests[0].headers["host"].startswith("bkt.localhost:")
        assert store.requests[0].target == "/lake/vn/0"


# --- the end of the process

ONE_REQUEST = """
import asyncio, sys
from alpheus_journal.storage import open_storage

async def main():
    await open_storage(sys.argv[1]).create(f"node/{sys.argv[2]}", b"x")

asyncio.run(main())
"""


async def test_a_process_ends_in_order_after_its_last_request(
    store: XmlStore, lane_count: Callable[[int, int], int]
) -> None:
    """Without the pause at the end about one process in ten aborts."""
    for number in range(lane_count(3, 100)):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ONE_REQUEST, s3_of(store).url, str(number)
        )
        assert await process.wait() == 0
    assert len(store.objects) == len(store.requests)


# --- catalogs inside catalogs


async def test_a_catalog_inside_another(store: XmlStore) -> None:
    await (await Journal.create(s3_of(store, "x"))).close()
    for prefix in ("x/y", "x/y/z"):
        error = await raises(InvalidInput, Journal.create(s3_of(store, prefix)), kind="nested_catalog")
        assert "s3://bkt/x?" in str(error)
    await (await Journal.create(s3_of(store, "xy"))).close()
    await (await Journal.create(s3_of(store, "z/x"))).close()
    error = await raises(InvalidInput, Journal.create(s3_of(store, "z")), kind="nested_catalog")
    assert "in the folder x" in str(error)
    error = await raises(InvalidInput, Journal.create(s3_of(store, "")), kind="nested_catalog")


def test_folders_above() -> None:
    assert list(folders_above("a/b/c")) == ["a/b/", "a/", ""]
    assert list(folders_above("a")) == [""]
    assert list(folders_above("")) == []


@pytest.mark.parametrize("client", ["aiobotocore", "obstore"])
async def test_a_catalog_inside_another_on_s3(s3_server: S3Server, client: str) -> None:
    outer = s3_server.url(client=client)
    inner = outer.replace("?", "/y/z?")
    await (await Journal.create(open_storage(outer))).close()
    storage = open_storage(inner)
    error = await raises(InvalidInput, Journal.create(storage), kind="nested_catalog")
    assert outer.partition("?")[0] + "?" in str(error)
    await storage.close()


async def test_who_may_not_look_around_may_create(store: XmlStore) -> None:
    await (await Journal.create(s3_of(store, "x"))).close()
    own = "/bkt/x/y/"
    store.always = lambda request: (
        None
        if request.target.startswith(own) or "list-type" in request.target
        else refusal(403, "AccessDenied")
    )
    await (await Journal.create(s3_of(store, "x/y"))).close()
