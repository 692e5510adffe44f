"""Spans of a unit join the trace of the RPC that brought it, across the trainer's threads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from tinkermesh.v1 import trainer_pb2 as pb

from tests.contract.trainer.harness import collect, connected, stub_settings, unit_frames
from tests.contract.trainer.trainer_process import WAIT_SECONDS, TrainerProcess

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Collector(otlp_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: list[object] = []

    async def Export(self, request, context):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return otlp.ExportTraceServiceResponse()


async def test_spans_of_execute_capture_and_publish_join_the_callers_trace_GAP_18(tmp_path: Path):
    collector, server = Collector(), grpc.aio.server()
    otlp_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_INSECURE": "true"}
    trainer = TrainerProcess(stub_settings(tmp_path, threads=1), **environment)
    try:
        async with connected(await trainer.address()) as client:
            await client.done(client.units.init(0))
            save = client.units.save(0, "a")
            call = client.stub.Execute(
                unit_frames(save, b""), timeout=WAIT_SECONDS, metadata=(("traceparent", TRACEPARENT),)
            )
            await collect(call)
            await client.stub.AwaitArtifact(
                pb.UnitRef(term=1, incarnation=client.units.incarnation, unit_id=save.unit_id), timeout=WAIT_SECONDS
            )
        assert await trainer.terminate() == 0
    finally:
        trainer.kill()
        await server.stop(0.1)
    await asyncio.sleep(0)
    mine = {span.name: span for span in collector.spans if span.trace_id.hex() == TRACE}
    assert {"trainer.save", "trainer.capture", "trainer.publish"} <= set(mine), trainer.log()
    rpc = next(span for name, span in mine.items() if name.endswith("Execute"))
    assert rpc.parent_span_id.hex() == "b7ad6b7169203331"
    assert mine["trainer.save"].parent_span_id == mine["trainer.publish"].parent_span_id == rpc.span_id
    assert mine["trainer.capture"].parent_span_id == mine["trainer.save"].span_id
