"""The fault proxy, on small servers: its effect on requests is the one that its actions name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from alpheus_journal.testing import TcpProxy
from alpheus_journal.testing.proxy import (
    Action,
    Answer,
    Blackhole,
    CutBefore,
    CutUpload,
    Damage,
    Forward,
    Hold,
    LoseReply,
    Truncate,
    Twice,
    request,
    s3_error,
)


class Counting:
    """An HTTP server that answers `<number> <method> <path>`. It answers `/chunked` in chunks, and closes the
    connection after `/last`."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.arrived = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
                method, path, _ = head.split(" ", 2)
                self.seen.append(await reader.readexactly(length))
                self.arrived.set()
                text = f"{len(self.seen)} {method} {path}".encode()
                if path == "/chunked":
                    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text)
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
                elif path == "/last":
                    writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + text)
                    break
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text))
                    writer.write(b"" if method == "HEAD" else text)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every piece in capitals, without HTTP."""
    while piece := await reader.read(1000):
        writer.write(piece.upper())
    writer.close()


@asynccontextmanager
async def proxied(*, raw: bool = False) -> AsyncIterator[tuple[TcpProxy, Counting]]:
    counting = Counting()
    server = await asyncio.start_server(shout if raw else counting.serve, "127.0.0.1", 0)
    async with server, TcpProxy("127.0.0.1", server.sockets[0].getsockname()[1], raw=raw) as proxy:
        yield proxy, counting


class Client:
    def __init__(self, proxy: TcpProxy) -> None:
        self.proxy = proxy

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def ask(self, method: str = "GET", path: str = "/x", body: bytes = b"") -> tuple[int, bytes]:
        self.writer.write(f"{method} {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
        return int(head.split(" ")[1]), b"" if method == "HEAD" else await self.reader.readexactly(length)


async def test_requests_pass_over_one_connection() -> None:
    async with proxied() as (proxy, counting), Client(proxy) as client:
        assert await client.ask("PUT", "/a%20b?c=d", b"body") == (200, b"1 PUT /a%20b?c=d")
        assert await client.ask("HEAD") == (200, b"")
        assert await client.ask() == (200, b"3 GET /x")
        first = proxy.log[0].request
        assert (first.method, first.path, first.query, first.body) == ("PUT", "/a b", "c=d", b"body")
        assert (proxy.count(), proxy.count(request("GET")), proxy.connection_count) == (3, 1, 1)
        assert counting.seen == [b"body", b"", b""]


async def test_bodies_without_a_length() -> None:
    async with proxied() as (proxy, _):
        async with Client(proxy) as client:
            client.writer.write(b"GET /chunked HTTP/1.1\r\n\r\n")
            assert b"1 GET /chunked" in await client.reader.readuntil(b"0\r\n\r\n")
            client.writer.write(b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: x\r\n\r\n")
            await proxy.arrived(request("POST"))
            assert proxy.log[1].request.body == b"0\r\nT: x\r\n\r\n"
        async with Client(proxy) as client:
            client.writer.write(b"GET /last HTTP/1.1\r\n\r\n")
            await client.reader.readuntil(b"GET /last")


@pytest.mark.parametrize(
    ("action", "delivered"),
    [
        (CutBefore(), 0),
        (LoseReply(), 1),
        (Hold(), 0),
        (Truncate(body_bytes=3), 1),
        (Truncate(body_bytes=0), 1),
    ],
    ids=str,
)
async def test_a_request_that_breaks_off(action: Action, delivered: int) -> None:
    async with proxied() as (proxy, counting):
        proxy.script(request(), action)
        async with Client(proxy) as client:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)) as caught:
                await client.ask()
        if isinstance(action, Truncate) and isinstance(caught.value, asyncio.IncompleteReadError):
            assert caught.value.partial == b"1 G"[: action.body_bytes]
        assert len(counting.seen) == delivered
        async with Client(proxy) as client:
            assert (await client.ask())[0] == 200


@pytest.mark.parametrize("accepts", [True, False])
async def test_a_body_is_sent_to_a_server_that_asks_for_it(accepts: bool) -> None:
    """The server of this test reads a body only after it asked for the body, as servers do that refuse an upload."""
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                assert head.startswith(b"PUT /x "), head
                if accepts:
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    bodies.append(await reader.readexactly(4))
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % (200 if accepts else 403))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    put = b"PUT /x HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    async with (
        server,
        TcpProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy,
        Client(proxy) as client,
    ):
        for _ in range(2):
            client.writer.write(put)
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.writer.write(b"body")
            answer = await client.reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200" if accepts else b"HTTP/1.1 403")
    assert bodies == [b"body"] * 2 * accepts


async def test_an_upload_that_breaks_off() -> None:
    async with proxied() as (proxy, counting):
        proxy.script(request("PUT"), CutUpload(body_bytes=3))
        async with Client(proxy) as client:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.ask("PUT", "/x", b"12345")
        async with Client(proxy) as client:
            assert await client.ask("PUT", "/x", b"67") == (200, b"1 PUT /x")
        assert counting.seen == [b"67"]


@pytest.mark.parametrize(
    ("action", "delivered"), [(Blackhole(), 0), (LoseReply(hang=True), 1), (Hold(hang=True), 0)]
)
async def test_a_request_that_is_never_answered(action: Action, delivered: int) -> None:
    async with proxied() as (proxy, counting), Client(proxy) as client:
        proxy.script(request(), action)
        asking = asyncio.ensure_future(client.ask())
        await proxy.arrived(request())
        if delivered:
            await counting.arrived.wait()
        await proxy.cut()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asking
        assert len(counting.seen) == delivered


async def test_answers_that_the_server_did_not_give() -> None:
    async with proxied() as (proxy, counting), Client(proxy) as client:
        proxy.script(request(), s3_error(503, "SlowDown", "later", Extra="1"), Twice(), Damage())
        status, body = await client.ask()
        assert status == 503
        assert b"<Code>SlowDown</Code><Message>later</Message><Extra>1</Extra>" in body
        assert counting.seen == []
        assert await client.ask() == (200, b"2 GET /x")
        assert await client.ask() == (200, b"3 GET /y")  # x with its last bit flipped
        proxy.script(request(), Answer(status=409, headers={"X": "y"}, applied=True))
        assert await client.ask("HEAD") == (409, b"")
        assert len(counting.seen) == 4


async def test_held_requests_are_delivered_in_order_after_the_client_is_gone() -> None:
    async with proxied() as (proxy, counting):
        proxy.always(request("PUT"), Hold())
        for number in range(3):
            async with Client(proxy) as client:
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await client.ask("PUT", "/x", b"%d" % number)
        proxy.clear()
        assert [held.body for held in proxy.held] == [b"0", b"1", b"2"]
        assert [held.status for held in await proxy.release(1)] == [200]
        assert len(await proxy.release()) == 2
        assert counting.seen == [b"0", b"1", b"2"]
        assert proxy.held == ()


async def test_earlier_rules_go_first_and_each_is_used_up() -> None:
    async with proxied() as (proxy, _), Client(proxy) as client:
        proxy.script(request(path="/a"), Answer(status=201), Answer(status=202))
        proxy.always(request(), Answer(status=500))
        assert [(await client.ask(path=path))[0] for path in ("/a", "/b", "/a", "/a")] == [201, 500, 202, 500]


async def test_a_slow_answer_comes_in_pieces() -> None:
    counting = Counting()
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    server = await asyncio.start_server(counting.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, TcpProxy("127.0.0.1", port, sleep=sleep) as proxy, Client(proxy) as client:
        proxy.script(request(), Forward(latency=7, bytes_per_second=200))
        assert await client.ask() == (200, b"1 GET /x")
        size = len(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n1 GET /x")
        assert slept == [7] + [0.05] * -(-size // 10)


async def test_other_protocols_pass_in_pieces_that_rules_see() -> None:
    async with proxied(raw=True) as (proxy, _):
        proxy.script(request(body=b"secret"), LoseReply())
        proxy.script(request(body=b"stop"), CutBefore())
        async with Client(proxy) as client:
            client.writer.write(b"hello")
            assert await client.reader.readexactly(5) == b"HELLO"
            client.writer.write(b"a secret")
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.reader.readexactly(1)
        async with Client(proxy) as client:
            client.writer.write(b"stop")
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.reader.readexactly(1)
        assert [record.request.body for record in proxy.log] == [b"hello", b"a secret", b"stop"]
