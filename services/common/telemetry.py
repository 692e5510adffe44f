"""Traces by OpenTelemetry. Off (and free) unless the standard variables name an endpoint.

Business code never imports OpenTelemetry: it calls `span`, `current_traceparent` and
`record_span` here. A trace begins at a client's POST, or at a gRPC call that brings a
traceparent; what services tell each other on their own account is never a trace.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

FLUSH_SECONDS = 2.0

_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_UNTRACED = ("/grpc.health.v1.", "/grpc.reflection.", "/grpc.channelz.", "/Register", "/Watch", "/Describe")
_propagator = TraceContextTextMapPropagator()

Attributes = Mapping[str, str | int | float | bool]


class _Exporting:
    """What `configure` started in this process: nothing, or what `shutdown` must end."""

    def __init__(self) -> None:
        self.provider: Any = None
        self.abandon: Callable[[], None] = lambda: None


_exporting = _Exporting()


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether the standard variables ask for traces."""
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    return not off and any(environ.get(name) for name in _ENDPOINT_VARIABLES)


def enabled() -> bool:
    """Whether this process exports traces."""
    return _exporting.provider is not None


def configure(service: str, instance: str) -> None:
    """Start the exporter once per process; a no-op while tracing is off."""
    if enabled() or not wanted(os.environ):
        return
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": f"tinkermesh-{service}", "service.instance.id": instance})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    _exporting.provider, _exporting.abandon = provider, exporter.shutdown


def shutdown() -> None:
    """Flush what is buffered; call last. A collector that is away delays the end by FLUSH_SECONDS at most."""
    if not enabled():
        return
    bound = threading.Timer(FLUSH_SECONDS, _exporting.abandon)
    bound.daemon = True
    bound.start()
    _exporting.provider.shutdown()
    bound.cancel()


def server_interceptors() -> list[Any]:
    if not enabled():
        return []
    from opentelemetry.instrumentation.grpc import aio_server_interceptor

    return [aio_server_interceptor(filter_=_brings_trace)]


def client_interceptors() -> list[Any]:
    if not enabled():
        return []
    from opentelemetry.instrumentation.grpc import aio_client_interceptors

    return list(aio_client_interceptors(filter_=_inside_trace))


def _brings_trace(details: Any) -> bool:
    return _traced(details) and any(key == "traceparent" for key, _ in details.invocation_metadata or ())


def _inside_trace(details: Any) -> bool:
    return trace.get_current_span().get_span_context().is_valid and _traced(details)


def _traced(details: Any) -> bool:
    method = details.method
    name = method.decode() if isinstance(method, bytes) else str(method)
    return not any(part in name for part in _UNTRACED)


def current_traceparent() -> str:
    """W3C traceparent of the current span, "" when there is none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get("traceparent", "")


def current_trace_id() -> str:
    span_context = trace.get_current_span().get_span_context()
    return f"{span_context.trace_id:032x}" if span_context.is_valid else ""


def trace_id_of(traceparent: str) -> str:
    """The trace a stored traceparent belongs to, "" when there is none."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 else ""


def _context(traceparent: str) -> otel_context.Context:
    return _propagator.extract({"traceparent": traceparent})


def _links(traceparents: Sequence[str]) -> list[trace.Link]:
    contexts = (trace.get_current_span(_context(t)).get_span_context() for t in traceparents)
    return [trace.Link(c) for c in contexts if c.is_valid]


@contextmanager
def span(
    name: str, attributes: Attributes | None = None, *, parent: str = "", links: Sequence[str] = ()
) -> Iterator[None]:
    """A span around the block, under `parent` (a traceparent) or the current span; without both there is none."""
    if not enabled():
        yield
        return
    context = _context(parent) if parent else otel_context.get_current()
    if not trace.get_current_span(context).get_span_context().is_valid:
        yield
        return
    tracer = trace.get_tracer("tinkermesh")
    with tracer.start_as_current_span(name, context=context, attributes=dict(attributes or {}), links=_links(links)):
        yield


@contextmanager
def server_span(
    name: str, headers: Mapping[str, str], attributes: Attributes | None = None, *, begin: bool = True
) -> Iterator[None]:
    """A server span around the block, continuing the W3C trace context in `headers` (lower-case names).

    `begin`: without a context there, a trace begins here; else nothing is recorded.
    """
    if not enabled() or not (begin or "traceparent" in headers):
        yield
        return
    carrier = {key: headers[key] for key in ("traceparent", "tracestate") if key in headers}
    tracer = trace.get_tracer("tinkermesh")
    with tracer.start_as_current_span(
        name, context=_propagator.extract(carrier), kind=trace.SpanKind.SERVER, attributes=dict(attributes or {})
    ):
        yield


def annotate(attributes: Attributes) -> None:
    """Attributes that became known only inside the current span."""
    if enabled():
        trace.get_current_span().set_attributes(dict(attributes))


def failed(description: str) -> None:
    """Marks the current span as one that went wrong, though no exception leaves its block."""
    if enabled():
        trace.get_current_span().set_status(trace.StatusCode.ERROR, description)


def record_span(
    name: str, parent: str, start_unix_ms: int, end_unix_ms: int, attributes: Attributes, links: Sequence[str] = ()
) -> None:
    """A span whose start lies in the past, such as the time a command spent in its queue."""
    if not enabled() or not parent:
        return
    tracer = trace.get_tracer("tinkermesh")
    past = tracer.start_span(
        name,
        context=_context(parent),
        start_time=start_unix_ms * 1_000_000,
        attributes=dict(attributes),
        links=_links(links),
    )
    past.end(end_time=end_unix_ms * 1_000_000)
