"""A real OTLP receiver over gRPC: what the services export, as a collector would see it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc

WAIT_SECONDS = 30.0
REQUEST_SPANS = ("gateway: POST /", "gateway: GET /", "gateway: DELETE /")


@dataclass(frozen=True, slots=True)
class Span:
    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str  # "" = a root
    links: tuple[tuple[str, str], ...]  # trace id, span id
    attributes: dict[str, Any]
    start_ns: int
    end_ns: int
    failed: bool

    def __str__(self) -> str:
        return f"{self.service}: {self.name}"


class Receiver(pb_grpc.TraceServiceServicer):
    """`with Receiver() as receiver: ... receiver.wait(lambda spans: ...)`."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.spans: list[Span] = []
        self.raw: list[bytes] = []
        self._changed = threading.Condition()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        pb_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"{host}:0")

    @property
    def environment(self) -> dict[str, str]:
        """What a service needs to export here soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}", "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def Export(self, request: Any, context: Any) -> Any:
        with self._changed:
            self.raw.append(request.SerializeToString())
            self.spans.extend(_spans(request))
            self._changed.notify_all()
        return pb.ExportTraceServiceResponse()

    def trace(self, trace_id: str) -> list[Span]:
        with self._changed:
            return [span for span in self.spans if span.trace_id == trace_id]

    def wait(self, found: Callable[[list[Span]], bool], seconds: float = WAIT_SECONDS) -> list[Span]:
        """All spans, once `found` says they suffice. Raises AssertionError with their names."""
        with self._changed:
            if not self._changed.wait_for(lambda: found(self.spans), seconds):
                names = sorted({str(span) for span in self.spans})
                raise AssertionError(f"not found in {seconds:g} s among {len(self.spans)} spans: {names}")
            return list(self.spans)

    def wait_trace(self, trace_id: str, *names: str) -> list[Span]:
        """The spans of one trace, once all these (``service: name``) and the request's own span above them are there.

        Services export when they please: the gateway's part may come last.
        """

        def complete(spans: list[Span]) -> bool:
            mine = [span for span in spans if span.trace_id == trace_id]
            above = tops(mine)
            whole = len(above) == 1 and str(above[0]).startswith(REQUEST_SPANS)
            return whole and set(names) <= {str(span) for span in mine}

        self.wait(complete)
        return self.trace(trace_id)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(0.5).wait(5)


def chain(spans: list[Span], span: Span) -> list[str]:
    """`span` and its ancestors, as ``service: name``, the outermost last."""
    by_id = {one.span_id: one for one in spans}
    found = [span]
    while found[-1].parent_id in by_id:
        found.append(by_id[found[-1].parent_id])
    return [str(one) for one in found]


def tops(spans: list[Span]) -> list[Span]:
    """Those whose parent is not among them."""
    known = {span.span_id for span in spans}
    return [span for span in spans if span.parent_id not in known]


def _spans(request: Any) -> Iterator[Span]:
    for group in request.resource_spans:
        service = next(a.value.string_value for a in group.resource.attributes if a.key == "service.name")
        for scope in group.scope_spans:
            for span in scope.spans:
                yield Span(
                    service=service.removeprefix("tinkermesh-"),
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    attributes={a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes},
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    failed=span.status.code == 2,
                )
