"""Traces: spans of requests, commits and calls of the storage, sent to an OTLP collector.

Off unless `--trace-endpoint` is given; then the packages of the extra `tracing` must be installed. Spans follow
the caller's `traceparent` (W3C Trace Context), and nest by context variables, so that a call of the storage is
below the request on whose behalf it is made.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from alpheus_journal.errors import InvalidInput
from alpheus_journal.journal import software_version
from alpheus_journal.urls import hidden_in

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

TRACEPARENT = "traceparent"
"""Metadata keys of W3C Trace Context; the second is passed on as it comes."""
TRACESTATE = "tracestate"

CLOSE_SECONDS_MAX = 1.0
COMPLAINT_SECONDS = 60.0

Attribute = str | int | float | bool


class Span:
    """One piece of work. This one goes nowhere; it is shared by all when tracing is off."""

    def set(self, **attributes: Attribute) -> None:
        """Attributes, named `alpheus.<key>`."""

    def end(self, status: str) -> None:
        """The gRPC status or outcome, "OK" when it went well."""

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_NOWHERE = Span()


class Tracer:
    """Makes spans. This one costs nothing and sends nothing."""

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[Span]:
        return _NOWHERE

    def request(self, method: str, request_id: str, context: Any) -> AbstractContextManager[Span]:
        """The span of a call; `context` is gRPC's, for the caller's metadata."""
        return _NOWHERE

    def past(self, name: str, seconds: float) -> None:
        """A span of what took so long and is over now."""

    def close(self) -> None:
        """Send what is left. Blocks for `CLOSE_SECONDS_MAX` at most."""


class _OpenSpan(Span):
    def __init__(self, span: Any, error_status: Any) -> None:
        self._span = span
        self._error_status = error_status

    def set(self, **attributes: Attribute) -> None:
        for key, value in attributes.items():
            self._span.set_attribute(f"alpheus.{key}", value)

    def end(self, status: str) -> None:
        self._span.set_attribute("alpheus.status", status)
        if status not in ("OK", "CANCELLED"):
            self._span.set_status(self._error_status, status)


class OpenTelemetryTracer(Tracer):
    """Spans of the `opentelemetry` packages, through a provider of its own: nothing global is set."""

    def __init__(self, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "alpheus", "service.version": software_version()}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("alpheus")
        self._propagator = TraceContextTextMapPropagator()
        self._server_kind, self._error = SpanKind.SERVER, StatusCode.ERROR

    def _open(self, name: str, **options: Any) -> AbstractContextManager[Any]:
        # The end of the work says what became of it; an exception's text may hold what is nobody's business.
        return self._tracer.start_as_current_span(
            name, record_exception=False, set_status_on_exception=False, **options
        )

    @contextmanager
    def span(self, name: str, **attributes: Attribute) -> Iterator[Span]:
        with self._open(name) as opened:
            span = _OpenSpan(opened, self._error)
            span.set(**attributes)
            yield span

    @contextmanager
    def request(self, method: str, request_id: str, context: Any) -> Iterator[Span]:
        carrier = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if key in (TRACEPARENT, TRACESTATE) and isinstance(value, str)
        }
        with self._open(method, context=self._propagator.extract(carrier), kind=self._server_kind) as opened:
            opened.set_attribute("rpc.system", "grpc")
            span = _OpenSpan(opened, self._error)
            span.set(request_id=request_id)
            yield span

    def past(self, name: str, seconds: float) -> None:
        now = time.time_ns()
        self._tracer.start_span(name, start_time=now - int(seconds * 1e9)).end(now)

    def close(self) -> None:
        # A collector that is away is tried again for seconds, which the end of a daemon does not have.
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS_MAX)


class _Seldom(logging.Filter):
    """A collector that is away is mentioned once in a while, not for every attempt, and without its password."""

    def __init__(self) -> None:
        super().__init__()
        self._at = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self._at < COMPLAINT_SECONDS:
            return False
        self._at = now
        record.msg, record.args = hidden_in(record.getMessage()), ()  # it names the collector
        return True


def open_tracer(endpoint: str) -> Tracer:
    """A tracer that sends to the collector at `endpoint` in the background; one that does nothing for "".

    Raises InvalidInput (`bad_configuration`) when the packages are not installed. A collector that cannot be
    reached loses spans, and nothing else.
    """
    if not endpoint:
        return Tracer()
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"--trace-endpoint: tracing needs the library {error.name}, which is not installed",
            kind="bad_configuration",
            hint="pip install 'alpheus[tracing]', or leave the setting out",
        ) from None
    logging.getLogger(OTLPSpanExporter.__module__).addFilter(_Seldom())
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"), timeout=5)
    return OpenTelemetryTracer(BatchSpanProcessor(exporter, max_queue_size=4096))
