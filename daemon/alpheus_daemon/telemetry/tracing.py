"""Traces: spans of requests, commits and calls of the storage, sent to an OTLP collector.

Tracing is off unless `--trace-endpoint` is given, which needs the packages of the extra `tracing`. Spans continue the
caller's `traceparent` (W3C Trace Context). They nest by context variables, so a call to the storage is below the
request that makes it.
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
from alpheus_journal.urls import redact_text

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

TRACEPARENT = "traceparent"
"""The metadata keys of W3C Trace Context. The second is passed on unchanged."""
TRACESTATE = "tracestate"

CLOSE_SECONDS_MAX = 1.0
COMPLAINT_SECONDS = 60.0

Attribute = str | int | float | bool


class Span:
    """One piece of work. The base class records nothing; one instance serves all spans while tracing is off."""

    def set(self, **attributes: Attribute) -> None:
        """Set attributes, named `alpheus.<key>`."""

    def end(self, status: str) -> None:
        """Set the gRPC status or outcome, "OK" for success."""

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_NOWHERE = Span()


class Tracer:
    """Makes spans. The base class costs nothing and sends nothing."""

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[Span]:
        return _NOWHERE

    def request(self, method: str, request_id: str, context: Any) -> AbstractContextManager[Span]:
        """Return the span of a call. gRPC's `context` has the caller's metadata."""
        return _NOWHERE

    def past(self, name: str, seconds: float) -> None:
        """Record a span of `seconds` that ends now."""

    def close(self) -> None:
        """Send the remaining spans. Blocks for at most `CLOSE_SECONDS_MAX`."""


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
    """Makes spans of the `opentelemetry` packages, through its own provider. Nothing global is set."""

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
        # `end` sets the outcome. The text of an exception may hold private data, so it is not recorded.
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
        # Retries to an unreachable collector take seconds, which the end of a daemon does not have.
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS_MAX)


class _Seldom(logging.Filter):
    """Limits log lines about an unreachable collector to one in `COMPLAINT_SECONDS`, and hides its password."""

    def __init__(self) -> None:
        super().__init__()
        self._at = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self._at < COMPLAINT_SECONDS:
            return False
        self._at = now
        record.msg, record.args = redact_text(record.getMessage()), ()  # the message names the collector
        return True


def open_tracer(endpoint: str) -> Tracer:
    """Return a tracer that sends to the collector at `endpoint` in the background, or for "" one that does nothing.

    Raises InvalidInput (`bad_configuration`) when the packages are not installed. An unreachable collector only loses
    spans.
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
