"""Traces by OpenTelemetry, for the server, the router and the model server.

Without an OTLP endpoint tracing is off and OpenTelemetry is not imported. Spans are sent in the
background and dropped if the collector is slow, so no request waits for a trace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

Attributes = Mapping[str, str | int | float]

FLUSH_MS = 2000  # for the last spans at the end of the process


@dataclass(frozen=True, slots=True)
class Tracing:
    """Makes this process's spans."""

    tracer: Tracer
    provider: TracerProvider

    def serve(self, name: str, headers: Mapping[str, str], start_ns: int) -> Traced:
        """A request that this process serves, part of its caller's trace if `headers` has a
        `traceparent` (W3C Trace Context). Times are nanoseconds since 1970."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        context = extract({key.lower(): value for key, value in headers.items()})
        span = self.tracer.start_span(name, context, kind=SpanKind.SERVER, start_time=start_ns)
        return Traced(self.tracer, span)

    def close(self) -> None:
        """Sends the remaining spans, at the end of the process."""
        self.provider.force_flush(FLUSH_MS)


@dataclass(frozen=True, slots=True)
class Traced:
    """An open span."""

    tracer: Tracer
    span: Span

    def begin(self, name: str, start_ns: int, **options: Any) -> Traced:
        """Begins a child span. `options`: as of OpenTelemetry's `start_span`."""
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self.span)
        span = self.tracer.start_span(name, context, start_time=start_ns, **options)
        return Traced(self.tracer, span)

    def part(self, name: str, start_ns: int, end_ns: int) -> None:
        """Adds a child span that has ended."""
        self.begin(name, start_ns).end(end_ns, {})

    @contextmanager
    def call(self, name: str, attributes: Attributes) -> Iterator[dict[str, str]]:
        """A call to another process; returns the headers with which it continues the trace."""
        from opentelemetry.trace import SpanKind

        calling = self.begin(name, time.time_ns(), kind=SpanKind.CLIENT, attributes=attributes)
        try:
            yield calling.headers
        except BaseException as error:
            calling.end(time.time_ns(), {}, error=f"{type(error).__name__}: {error}")
            raise
        calling.end(time.time_ns(), {})

    @property
    def headers(self) -> dict[str, str]:
        """`traceparent` and, if there is one, `tracestate`."""
        from opentelemetry.propagate import inject
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        inject(carrier, set_span_in_context(self.span))
        return carrier

    def end(self, end_ns: int, attributes: Attributes, *, error: str | None = None) -> None:
        from opentelemetry.trace import Status, StatusCode

        self.span.set_attributes(dict(attributes))
        if error is not None:
            self.span.set_status(Status(StatusCode.ERROR, error))
        self.span.end(end_ns)


def start_tracing(endpoint: str | None, service: str) -> Tracing | None:
    """For `--otlp-endpoint` and `--otlp-service-name`; None without an endpoint. Call it in the
    process that makes the spans, since threads do not survive a fork."""
    if endpoint is None:
        return None
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    exporter = OTLPSpanExporter(endpoint, insecure=not endpoint.startswith("https://"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider.get_tracer("effective-batching"), provider)
