"""Numbers about the daemon, in their own registry, and the small HTTP server that shows them.

There are two kinds of numbers. Histograms and counters are fed where something happens. Numbers that a part knows
anyway are *sampled*: a callable returns the number in the event loop when a client asks, so that no number is read
while it changes. Only the text is made in a thread. Names begin with `alpheus_` and end in their unit. Labels have
few values, none of which a caller chooses. `deploy/OPERATIONS.md` explains every name.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from alpheus_daemon.config import parse_listen
from alpheus_daemon.telemetry.logs import logger
from alpheus_journal.errors import Unavailable

log = logger()

LATENCY_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

COMMIT_EVENTS = ("lost_slot", "staged_ahead", "dropped_ahead", "requeued", "conflict", "unknown")
COMMIT_CALLS = ("unary", "stream")
OVERLOAD_KINDS = ("queue_full", "too_many_requests")
"""The kinds of refusals that mean overload."""

CONNECTIONS_MAX = 32
"""The connections of the HTTP server. One more cuts off the one that has taken longest to send its request."""
HEAD_SECONDS_MAX = 2.0
"""The time from the connection to the end of the request's head."""
REQUEST_SECONDS_MAX = 5.0
"""The time from the connection to the end of the answer."""
REQUEST_BYTES_MAX = 8192

_PROCESS = ProcessCollector(registry=None)
"""CPU, memory, open files. Made at import because making it reads a file, which must not happen in an event loop."""

Read = Callable[[], float | Mapping[str, float]]
"""A number, or numbers by the value of one label."""


class _Sampled(msgspec.Struct, frozen=True):
    name: str
    explanation: str
    read: Read
    label: str
    is_counter: bool


class _Sample(Collector):
    """The numbers of the last sampling."""

    def __init__(self) -> None:
        self.families: list[Metric] = []

    def collect(self) -> Iterator[Metric]:
        return iter(self.families)


class Metrics:
    """All numbers of one daemon. Feeding a number costs a few microseconds. Nothing is sent unasked."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._sampled: dict[str, _Sampled] = {}
        self._read = _Sample()
        self.registry.register(self._read)
        self.registry.register(_PROCESS)
        self._request_seconds = Histogram(
            "alpheus_request_seconds",
            "Duration of calls by method and gRPC status; streams count from begin to end.",
            ("method", "status"),
            buckets=LATENCY_SECONDS,
            registry=self.registry,
        )
        self._storage_seconds = Histogram(
            "alpheus_storage_request_seconds",
            "Duration of calls to the storage driver by operation and outcome.",
            ("operation", "outcome"),
            buckets=LATENCY_SECONDS,
            registry=self.registry,
        )
        self._lag_seconds = Histogram(
            "alpheus_event_loop_lag_seconds",
            "How late the event loop ran a timer, sampled twice a second.",
            buckets=LAG_SECONDS,
            registry=self.registry,
        )
        self._stage_seconds = Histogram(
            "alpheus_commit_stage_seconds",
            "Durations of stages of groups (execute, encode, upload, turn, root) and of transactions (queue, total).",
            ("stage",),
            buckets=LATENCY_SECONDS,
            registry=self.registry,
        )
        self._group_count = Histogram(
            "alpheus_commit_group_transactions",
            "Transactions in one version.",
            buckets=COUNTS,
            registry=self.registry,
        )
        self._commit_events = Counter(
            "alpheus_commit_events_total",
            "Events of groups: lost_slot, staged_ahead, dropped_ahead. Of transactions: requeued, conflict, unknown.",
            ("event",),
            registry=self.registry,
        )
        self._commit_refusals = Counter(
            "alpheus_commit_refusals_total",
            "Commits answered by an error, by the kind of the error and the call (unary, stream).",
            ("kind", "call"),
            registry=self.registry,
        )
        # Finding a child by its labels costs more than feeding the child.
        self._requests: dict[tuple[str, str], Histogram] = {}
        self._storage: dict[tuple[str, str], Histogram] = {}
        self._stages: dict[str, Histogram] = {}
        self._show_zeros()

    def _show_zeros(self) -> None:
        """Start the series that alarms watch at 0, because an alarm on growth misses a series that begins above 0."""
        for event in COMMIT_EVENTS:
            self._commit_events.labels(event)
        for kind, call in itertools.product(OVERLOAD_KINDS, COMMIT_CALLS):
            self._commit_refusals.labels(kind, call)
        self._stages["total"] = self._stage_seconds.labels("total")

    # --- feeding

    def request(self, method: str, status: str, seconds: float) -> None:
        child = self._requests.get((method, status))
        if child is None:
            child = self._requests[method, status] = self._request_seconds.labels(method, status)
        child.observe(seconds)

    def storage(self, operation: str, outcome: str, seconds: float) -> None:
        child = self._storage.get((operation, outcome))
        if child is None:
            child = self._storage[operation, outcome] = self._storage_seconds.labels(operation, outcome)
        child.observe(seconds)

    def lag(self, seconds: float) -> None:
        self._lag_seconds.observe(seconds)

    def commit_stage(self, stage: str, seconds: float) -> None:
        child = self._stages.get(stage)
        if child is None:
            child = self._stages[stage] = self._stage_seconds.labels(stage)
        child.observe(seconds)

    def commit_group(self, members_count: int) -> None:
        self._group_count.observe(members_count)

    def commit_event(self, event: str, count: int) -> None:
        self._commit_events.labels(event).inc(count)

    def commit_refused(self, kind: str, call: str) -> None:
        """Count a refused commit by the `kind` of its error and by `call`, one of `COMMIT_CALLS`."""
        self._commit_refusals.labels(kind, call).inc()

    # --- sampled numbers

    def gauge(self, name: str, explanation: str, read: Read, *, label: str = "") -> None:
        """Register a number that goes up and down. Registering a name again replaces its callable."""
        self._sampled[name] = _Sampled(name, explanation, read, label, False)

    def counter(self, name: str, explanation: str, read: Read, *, label: str = "") -> None:
        """Register a number that only grows. `name` ends in `_total`."""
        assert name.endswith("_total"), name
        self._sampled[name] = _Sampled(name, explanation, read, label, True)

    def sample(self) -> None:
        """Sample every registered number, in the event loop. Takes some ten microseconds."""
        families: list[Metric] = []
        for reading in self._sampled.values():
            kind = CounterMetricFamily if reading.is_counter else GaugeMetricFamily
            family = kind(
                reading.name, reading.explanation, labels=[reading.label] if reading.label else None
            )
            try:
                value = reading.read()
            except Exception:
                log.exception("metric_failed", metric=reading.name)
                continue
            for key, number in value.items() if isinstance(value, Mapping) else [("", value)]:
                family.add_metric([key] if reading.label else [], number)
            families.append(family)
        self._read.families = families

    def names(self) -> set[str]:
        """Return the names of all sampled metrics, as in the text (histograms without suffixes such as `_bucket`).

        Reads files.
        """
        return {
            metric.name + ("_total" if metric.type == "counter" else "") for metric in self.registry.collect()
        }

    def labels(self) -> dict[str, tuple[str, ...]]:
        """Return the label names of each of our metrics."""
        fed = (self._request_seconds, self._storage_seconds, self._lag_seconds, self._stage_seconds)
        found = {family._name: family._labelnames for family in (*fed, self._group_count)}
        for counter in (self._commit_events, self._commit_refusals):
            found[f"{counter._name}_total"] = counter._labelnames
        read = {name: (item.label,) if item.label else () for name, item in self._sampled.items()}
        return {**found, **read}

    async def text(self) -> bytes:
        """Return all numbers in the text format of Prometheus, version 0.0.4."""
        self.sample()
        return await asyncio.to_thread(generate_latest, self.registry)


# --- the HTTP server -------------------------------------------------------------------------------


class Health(msgspec.Struct):
    """The health of the daemon: whether it answers requests, and the text for /healthz."""

    is_serving: bool = False
    text: str = "starting"


class _Exposition:
    """Answers one request on each connection: GET /metrics or GET /healthz."""

    def __init__(self, metrics: Metrics, health: Health) -> None:
        self._metrics = metrics
        self._health = health
        # Connections, the oldest first. A client that asks immediately is served before it is the oldest.
        self._silent: dict[asyncio.StreamWriter, None] = {}
        self._answered: dict[asyncio.StreamWriter, None] = {}

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._silent) + len(self._answered) >= CONNECTIONS_MAX:
            slowest = next(iter(self._silent or self._answered))
            self._forget(slowest)
            slowest.transport.abort()
        self._silent[writer] = None
        try:
            with suppress(TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(REQUEST_SECONDS_MAX):
                    async with asyncio.timeout(HEAD_SECONDS_MAX):
                        head = await reader.readuntil(b"\r\n\r\n")
                    if self._silent.pop(writer, self) is self:
                        return  # another connection cut this one off
                    self._answered[writer] = None
                    writer.write(await self._answer(head))
                    await writer.drain()
        except asyncio.CancelledError:
            # The daemon ends. No task awaits this one, and asyncio 3.11 logs a cancelled task as an error.
            return
        finally:
            self._forget(writer)
            writer.close()

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._silent.pop(writer, None)
        self._answered.pop(writer, None)

    async def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        path = words[1].partition("?")[0] if len(words) == 3 else ""
        kind = "text/plain; charset=utf-8"
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            status, body = "400 Bad Request", b"send one HTTP/1.1 request\n"
        elif words[0] not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", b"GET only\n"
        elif path == "/metrics":
            status, body, kind = "200 OK", await self._metrics.text(), CONTENT_TYPE_PLAIN_0_0_4
        elif path == "/healthz":
            status = "200 OK" if self._health.is_serving else "503 Service Unavailable"
            body = (self._health.text + "\n").encode()
        else:
            status, body = "404 Not Found", b"/metrics or /healthz\n"
        lines = (f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}")
        answer = "\r\n".join([*lines, "Connection: close", "", ""]).encode()
        return answer if words[0] == "HEAD" else answer + body


@asynccontextmanager
async def expose(listen: str, metrics: Metrics, health: Health) -> AsyncIterator[str]:
    """Serve `metrics` and `health` on `listen`, and yield `host:port`; yield "" when `listen` is empty.

    Raises Unavailable (`daemon_unavailable`) when the address is taken.
    """
    if not listen:
        yield ""
        return
    host, port = parse_listen(listen, "--metrics-listen")
    exposition = _Exposition(metrics, health)
    try:
        server = await asyncio.start_server(
            exposition.connected, host.strip("[]"), port, limit=REQUEST_BYTES_MAX
        )
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {listen} for metrics: {error.strerror or error}",
            kind="daemon_unavailable",
            hint="choose another with --metrics-listen; port 0 takes any free one",
        ) from None
    try:
        yield f"{host}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
