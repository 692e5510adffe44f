"""Spans of a sample join the trace of the RPC that brought it; the process runs a double of the engine."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1.types_pb2 import AdapterRef

from tests.contract.sampler.client import ROOT, SamplerClient
from tests.unit.sampler.doubles import write_adapter, write_model
from tests.unit.sampler.test_sampling_plan import body

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


class Collector(otlp_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: list = []

    async def Export(self, request, context):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return otlp.ExportTraceServiceResponse()


async def test_load_and_generation_are_spans_of_the_callers_trace_GAP_18(tmp_path: Path) -> None:
    collector, server = Collector(), grpc.aio.server()
    otlp_grpc.add_TraceServiceServicer_to_server(collector, server)
    otlp_port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    write_adapter(tmp_path / "store" / "m")
    settings = {
        "MODEL_PATH": write_model(tmp_path / "model"),
        "STORE_ROOT": tmp_path / "store",
        "LISTEN": "127.0.0.1:0",
        "PORT_FILE": tmp_path / "port",
    }
    environment = {
        **os.environ,
        **{f"TINKERMESH_SAMPLER_{name}": str(value) for name, value in settings.items()},
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{otlp_port}",
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.unit.sampler.double_process", env=environment, cwd=ROOT
    )
    try:
        async with asyncio.timeout(60):
            while not (tmp_path / "port").exists():
                await asyncio.sleep(0.02)
        async with SamplerClient(f"127.0.0.1:{(tmp_path / 'port').read_text().strip()}") as client:
            request = pb.SampleRequest(
                request_id="r", adapter=AdapterRef(name="m@1", path="m"), body=body(num_samples=2, max_tokens=3)
            )
            metadata = (("traceparent", f"00-{TRACE}-{CALLER}-01"),)
            await client.stub.Sample(request, timeout=30, metadata=metadata)
            request.request_id = "streamed"
            streamed = client.stub.SampleStream(
                pb.SampleStreamRequest(sample=request),
                timeout=30,
                metadata=(("traceparent", f"00-{TRACE[::-1]}-{CALLER}-01"),),
            )
            assert len([chunk async for chunk in streamed]) == 6
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await server.stop(0.1)
    spans = {span.name: span for span in collector.spans if span.trace_id.hex() == TRACE}
    rpc = next(span for name, span in spans.items() if name.endswith("Sample"))
    assert rpc.parent_span_id.hex() == CALLER
    sample = spans["sampler.sample"]
    assert sample.parent_span_id == rpc.span_id
    assert spans["sampler.load_adapter"].parent_span_id == spans["sampler.generate"].parent_span_id == sample.span_id
    assert attributes(sample)["adapter"] == "m@1"
    assert attributes(spans["sampler.generate"])["output_tokens"] == 6
    told = {span.name: span for span in collector.spans if span.trace_id.hex() == TRACE[::-1]}
    assert told["sampler.first_token"].parent_span_id == told["sampler.sample"].span_id
    first, whole = told["sampler.first_token"], told["sampler.generate"]
    assert first.start_time_unix_nano == whole.start_time_unix_nano
    assert first.end_time_unix_nano <= whole.end_time_unix_nano
    assert attributes(told["sampler.sample"])["leg"] == "LEG_WHOLE"


def attributes(span) -> dict[str, object]:
    return {item.key: item.value.string_value or item.value.int_value for item in span.attributes}
