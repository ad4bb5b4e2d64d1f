"""A TCP proxy in front of a real server, which loses, delays, holds, doubles and forges messages on demand.

    async with TcpProxy("127.0.0.1", 9000) as proxy:
        proxy.script(request(method="PUT", path="/vn/"), LoseReply())
        ...                                     # the next such request is applied, and its answer lost
        assert proxy.count(request(method="PUT", path="/vn/")) == 2

The proxy understands HTTP/1.1: a rule sees whole requests, and an action is taken for each. With `raw=True` everything
else (gRPC, TLS) passes unchanged. A "request" is then the data that arrives from the client in one piece. It is in
`body`, so that a rule can search it for bytes. An answer is the data that the server sends until it pauses.

The proxy runs in the event loop of its `async with` block. It waits only where an action names seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from urllib.parse import unquote, urlsplit

import msgspec

HEAD_SIZE_MAX = 1 << 20
PIECE = 64 << 10
PAUSE_SECONDS = 0.2
"""A raw answer ends when the server has been silent for this long."""


class Request(msgspec.Struct, frozen=True):
    """One request as the client sent it.

    `path` is decoded and has no query. `number` counts requests from 0 over all connections, and `connection` counts
    connections. In raw mode `method` is empty and `body` the piece of data.
    """

    number: int
    connection: int
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    head: bytes
    body: bytes


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """The treatment of a request."""


class Forward(Action, frozen=True, kw_only=True):
    """Passes the request on after `latency` seconds, and the answer back at no more than `bytes_per_second`."""

    latency: float = 0.0
    bytes_per_second: float = 0.0


class CutBefore(Action, frozen=True, kw_only=True):
    """Drops the request and resets the client's connection."""


class CutUpload(Action, frozen=True, kw_only=True):
    """Sends the server the request's head and some bytes of its body, and then resets both connections."""

    body_bytes: int = 0


class LoseReply(Action, frozen=True, kw_only=True):
    """Lets the server apply the request, and drops the answer.

    The client's connection is reset, or with `hang` stays open without an answer.
    """

    hang: bool = False


class Blackhole(Action, frozen=True, kw_only=True):
    """Drops the request, and leaves the client's connection open."""


class Hold(Action, frozen=True, kw_only=True):
    """Keeps the request until `release`, and delivers it then, even if the client is gone.

    The client's connection is reset immediately, or with `hang` stays open.
    """

    hang: bool = False


class Twice(Action, frozen=True, kw_only=True):
    """Delivers the request twice. The client gets the second answer."""


class Truncate(Action, frozen=True, kw_only=True):
    """Ends the answer by a reset after some bytes of its body."""

    body_bytes: int = 0


class Damage(Action, frozen=True, kw_only=True):
    """Flips one bit of the answer's body."""


class Answer(Action, frozen=True, kw_only=True):
    """Answers in the server's place. With `applied` the server gets the request, and its answer is dropped."""

    status: int = 503
    body: bytes = b""
    headers: Mapping[str, str] = {}
    applied: bool = False


Match = Callable[[Request], bool]


def s3_error(status: int, code: str, message: str = "", **more: str) -> Answer:
    """Return a refusal in the words of S3."""
    fields = "".join(
        f"<{name}>{text}</{name}>" for name, text in {"Code": code, "Message": message, **more}.items()
    )
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error>{fields}</Error>'
    return Answer(status=status, body=body.encode(), headers={"Content-Type": "application/xml"})


def request(method: str = "", path: str = "", body: bytes = b"") -> Match:
    """Match requests of a method whose path and body contain these texts. Empty means any."""
    return lambda found: (
        (not method or found.method == method) and path in found.path and (not body or body in found.body)
    )


class Record(msgspec.Struct, frozen=True):
    """A line of the log: a request and its action."""

    request: Request
    action: Action


class Delivery(msgspec.Struct, frozen=True):
    """A request that `release` delivered, with the status of the server's answer (0 in raw mode)."""

    request: Request
    status: int


class TcpProxy:
    """The proxy (see the module). It listens at `port`; `endpoint` is its URL, `log` its log of requests."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        raw: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.log: list[Record] = []
        self.connection_count = 0
        self._target = (host, port)
        self._raw = raw
        self._sleep = sleep
        self._rules: list[tuple[Match, list[Action], Action | None]] = []
        self._held: list[Request] = []
        self._clients: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None

    # -- rules

    def script(self, match: Match, *actions: Action) -> None:
        """Apply these actions to the next matching requests, one to each, in order. Earlier rules take precedence."""
        self._rules.append((match, list(actions), None))

    def always(self, match: Match, action: Action) -> None:
        """Apply an action to every matching request, until `clear`."""
        self._rules.append((match, [], action))

    def clear(self) -> None:
        """Drop all rules. Held requests stay held."""
        self._rules.clear()

    def count(self, match: Match | None = None) -> int:
        """Return the number of requests that have arrived, or of those that match."""
        return sum(match is None or match(record.request) for record in self.log)

    @property
    def held(self) -> tuple[Request, ...]:
        return tuple(self._held)

    async def arrived(self, match: Match, count: int = 1) -> None:
        """Wait until `count` matching requests have arrived."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.count(match) >= count)

    async def release(self, count: int | None = None) -> list[Delivery]:
        """Deliver held requests, oldest first, each over its own connection, and wait for their answers."""
        delivered = []
        for _ in range(len(self._held) if count is None else count):
            held = self._held.pop(0)
            async with self._to_server() as server:
                delivered.append(Delivery(held, _status(await self._exchange(server, held))))
        return delivered

    async def cut(self) -> None:
        """Reset every client's connection."""
        tasks = list(self._clients.items())
        for writer, task in tasks:
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)

    # -- running

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_SIZE_MAX)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients[writer] = task
        number, self.connection_count = self.connection_count, self.connection_count + 1
        try:
            await (self._raw_connection if self._raw else self._http_connection)(number, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()  # one side closed the connection, or the test ends
        finally:
            del self._clients[writer]
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _record(self, found: Request) -> Action:
        action: Action = Forward()
        for match, once, always in self._rules:
            if (once or always is not None) and match(found):
                action = once.pop(0) if once else always or action
                break
        async with self._changed:
            self.log.append(Record(found, action))
            self._changed.notify_all()
        return action

    # -- HTTP/1.1

    async def _http_connection(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a client's connection by one connection to the server, so that state by connection stays right."""
        async with self._to_server() as server:
            while (found := await self._next_request(number, reader, writer)) is not None:
                if not await self._act(found, await self._record(found), server, writer):
                    return

    async def _next_request(
        self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Request | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return None
        line, headers = _parse_head(head)
        method, target, _ = line.split(" ", 2)
        if "expect" in headers:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(reader, headers, method)
        place = urlsplit(target)
        path, query = unquote(place.path), place.query
        return Request(len(self.log), connection, method, path, query, headers, head, body)

    async def _act(
        self, found: Request, action: Action, server: _Connecting, writer: asyncio.StreamWriter
    ) -> bool:
        """Treat one request, and return whether the connection continues."""
        match action:
            case Forward(latency=latency, bytes_per_second=rate):
                await self._wait(latency)
                await self._send_slowly(writer, await self._exchange(server, found), rate)
                return True
            case Twice():
                await self._exchange(server, found)
                await _send(writer, await self._exchange(server, found))
                return True
            case Answer():
                if action.applied:
                    await self._exchange(server, found)
                await _send(writer, _render_answer(action, found.method))
                return True
            case Damage():
                head, body = await self._exchange(server, found)
                await _send(writer, (head, body[:-1] + bytes([body[-1] ^ 1]) if body else body))
                return True
            case Truncate(body_bytes=kept):
                head, body = await self._exchange(server, found)
                await _send(writer, (head, body[:kept]))
            case CutUpload(body_bytes=kept):
                _, to_server = await server.get()
                to_server.write(found.head + found.body[:kept])
                await to_server.drain()
                to_server.transport.abort()
            case LoseReply(hang=hang):
                await self._exchange(server, found)
                await _hang(hang)
            case Hold(hang=hang):
                self._held.append(found)
                await _hang(hang)
            case Blackhole():
                await _hang(True)
        writer.transport.abort()
        return False

    async def _wait(self, seconds: float) -> None:
        if seconds:
            await self._sleep(seconds)

    async def _send_slowly(
        self, writer: asyncio.StreamWriter, answer: tuple[bytes, bytes], rate: float
    ) -> None:
        if not rate:
            return await _send(writer, answer)
        data = b"".join(answer)
        step = max(1, int(rate / 20))
        for start in range(0, len(data), step):
            await self._sleep(step / rate)
            await _send(writer, (data[start : start + step], b""))
        return None

    async def _exchange(self, server: _Connecting, found: Request) -> tuple[bytes, bytes]:
        reader, writer = await server.get()
        if not found.method:
            writer.write(found.body)
            await writer.drain()
            return b"", await _burst(reader)
        # A server that refuses such a request reads no body: bytes of a body would be its next request.
        waits = "expect" in found.headers
        writer.write(found.head if waits else found.head + found.body)
        await writer.drain()
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            line, headers = _parse_head(head)
            status = int(line.split(" ", 2)[1])
            if status >= 200:
                break
            if waits:
                waits = False
                writer.write(found.body)
                await writer.drain()
        has_body = found.method != "HEAD" and status not in (204, 304)
        body = await _body(reader, headers, "") if has_body else b""
        if "chunked" in found.headers.get("transfer-encoding", "").lower():
            # versitygw may leave the end of such a body unread, and take it for the next request.
            await server.drop()
        return head, body

    # -- everything else

    async def _raw_connection(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with self._to_server() as server:
            from_server, to_server = await server.get()
            back = asyncio.create_task(_pump(from_server, writer))
            try:
                while piece := await reader.read(PIECE):
                    found = Request(len(self.log), number, "", "", "", {}, b"", piece)
                    match await self._record(found):
                        case Forward(latency=latency):
                            await self._wait(latency)
                            to_server.write(piece)
                            await to_server.drain()
                        case LoseReply(hang=hang):
                            back.cancel()
                            await asyncio.gather(back, return_exceptions=True)
                            to_server.write(piece)
                            await _burst(from_server)
                            await _hang(hang)
                            return writer.transport.abort()
                        case Blackhole():
                            await _hang(True)
                        case CutBefore():
                            return writer.transport.abort()
                        case action:
                            raise AssertionError(f"{type(action).__name__} is for HTTP/1.1")
            finally:
                back.cancel()
                await asyncio.gather(back, return_exceptions=True)
        return None

    def _to_server(self) -> _Connecting:
        return _Connecting(self._target)


class _Connecting:
    """A connection to the server, made when first needed, and again after the server closed it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> _Connecting:
        return self

    async def get(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._open is not None and self._open[0].at_eof():
            await self.drop()
        if self._open is None:
            host, port = self._target
            self._open = await asyncio.open_connection(host, port, limit=HEAD_SIZE_MAX)
        return self._open

    async def drop(self) -> None:
        if self._open is not None:
            _, writer = self._open
            self._open = None
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drop()


def _parse_head(head: bytes) -> tuple[str, dict[str, str]]:
    """Return the first line, and the headers by their lower-case names."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return first, headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str], method: str) -> bytes:
    """Return the body as it was sent, including the framing of chunks."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        pieces = []
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            pieces += [line, await reader.readexactly(size + 2) if size else b""]
            if not size:
                while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
                    pieces.append(trailer)
                return b"".join([*pieces, b"\r\n"])
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    return b"" if method else await reader.read()  # an answer without a length lasts until the end


def _status(answer: tuple[bytes, bytes]) -> int:
    head = answer[0]
    return int(head.split(b" ", 2)[1]) if head else 0


def _render_answer(action: Answer, method: str) -> tuple[bytes, bytes]:
    headers = {"Content-Length": str(len(action.body)), **action.headers}
    lines = [f"HTTP/1.1 {action.status} Canned", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1"), b"" if method == "HEAD" else action.body


async def _send(writer: asyncio.StreamWriter, answer: tuple[bytes, bytes]) -> None:
    writer.write(b"".join(answer))
    await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    writer.transport.abort()


async def _burst(reader: asyncio.StreamReader) -> bytes:
    """Return the data that arrives until there is a pause."""
    pieces = [await reader.read(PIECE)]
    with contextlib.suppress(TimeoutError):
        while pieces[-1]:
            async with asyncio.timeout(PAUSE_SECONDS):
                pieces.append(await reader.read(PIECE))
    return b"".join(pieces)


async def _hang(forever: bool) -> None:
    """Wait until the proxy cuts the connection or ends, which cancels this task."""
    if forever:
        await asyncio.get_running_loop().create_future()
