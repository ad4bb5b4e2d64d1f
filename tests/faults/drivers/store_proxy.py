"""A fault proxy in front of an S3 server, which Spark's JVM and its Python workers reach while the test waits for them.

    with StoreProxy(server.port) as store:
        store.refuse(is_kind("LIST"), s3_error(403, "AccessDenied"))
        ...
        assert store.count_kinds()["LIST", "data"] == 0

`alpheus_journal.testing.TcpProxy` does the work, in a thread with a loop of its own.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple
from urllib.parse import parse_qs

from alpheus_journal.testing import TcpProxy
from alpheus_journal.testing.proxy import Action, Forward, Match, Request, s3_error

LIST_REFUSED = s3_error(403, "AccessDenied", "no program may list")
EXPIRED = s3_error(400, "ExpiredToken", "The provided token has expired.")
SLOW_DOWN = s3_error(503, "SlowDown", "Please reduce your request rate.")


class Kind(NamedTuple):
    """The kind of a request.

    - `verb`: GET, HEAD, PUT, COPY, DELETE, LIST or POST. A part of an upload is a PUT, and its begin and end are POST.
    - `place`: the first folder below the catalog's prefix, such as "data", "def" or "vn"; empty for none of those.
    """

    verb: str
    place: str


_PLACES = re.compile(r"(?:^|/)(data|def|vn|node|manifest|action|dtxn|lease|checkpoint|index)(?:/|$)")


def kind_of(request: Request) -> Kind:
    verb, path = request.method, request.path
    query = parse_qs(request.query, keep_blank_values=True)
    has_key = "/" in path.strip("/")
    if verb == "GET" and ("list-type" in query or "prefix" in query or "uploads" in query or not has_key):
        verb, path = "LIST", query.get("prefix", [""])[0]
    elif verb == "PUT" and "x-amz-copy-source" in request.headers:
        verb = "COPY"
    found = _PLACES.search(path)
    return Kind(verb, found[1] if found else "")


def is_kind(verb: str, place: str = "") -> Match:
    """Match requests of a kind; an empty place means any."""

    def match(request: Request) -> bool:
        found = kind_of(request)
        return found.verb == verb and place in ("", found.place)

    return match


def begins_an_object(request: Request) -> bool:
    """Match requests that begin an object: a PUT, or the begin of an upload in parts."""
    query = parse_qs(request.query, keep_blank_values=True)
    if request.method == "PUT":
        return "partNumber" not in query and "/" in request.path.strip("/")
    return request.method == "POST" and "uploads" in query


class StoreProxy:
    """The proxy (see the module). Rules hold for requests that arrive after the call which makes them."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(),), daemon=True
        )

    def __enter__(self) -> StoreProxy:
        self._thread.start()
        assert self._ready.wait(30), "the proxy does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        async with TcpProxy("127.0.0.1", self._target) as self._proxy:
            self.endpoint = self._proxy.endpoint
            self._ready.set()
            await self._stop.wait()

    def _call(self, act: Callable[[], None]) -> None:
        async def do_act() -> None:
            act()

        asyncio.run_coroutine_threadsafe(do_act(), self._loop).result(30)

    # -- rules

    def always(self, match: Match, action: Action) -> None:
        """Apply an action to every matching request, until `clear`."""
        self._call(lambda: self._proxy.always(match, action))

    def script(self, match: Match, *actions: Action) -> None:
        """Apply these actions to the next matching requests, one to each, in order. Earlier rules take precedence."""
        self._call(lambda: self._proxy.script(match, *actions))

    def clear(self) -> None:
        """Drop all rules, and forget all requests."""

        def act() -> None:
            self._proxy.clear()
            self._proxy.log.clear()

        self._call(act)

    # -- what came

    def measure_cpu(self) -> float:
        """Return the CPU seconds that the proxy has taken."""
        assert self._thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    def find_requests(self, match: Match | None = None) -> list[Request]:
        """Return the requests since `clear`, or those of them that match."""
        return [record.request for record in list(self._proxy.log) if match is None or match(record.request)]

    def count_spoiled(self) -> int:
        """Return the number of requests since `clear` that a rule met."""
        return sum(not isinstance(record.action, Forward) for record in list(self._proxy.log))

    def count_kinds(self) -> Counter[Kind]:
        """Return the number of requests of each kind since `clear`."""
        return Counter(kind_of(request) for request in self.find_requests())
