"""The gateway as a process: start, stop, shared sockets, secrets, traces."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import httpx
import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from services.gateway.settings import Settings
from tests.contract.gateway.conftest import KEY
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.process import environment, gateway_process
from tests.doubles.eventually import eventually

HEADERS = {"x-api-key": KEY, "content-type": "application/json"}


@pytest.fixture
def own(settings: Settings, tmp_path: Path) -> Settings:
    return msgspec.structs.replace(
        settings, listen="127.0.0.1:0", port_file=str(tmp_path / "port"), long_poll_seconds=20.0
    )


async def post(base: str, path: str, body: Any, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        return await http.post(f"{base}/api/v1/{path}", json=body, headers={**HEADERS, **headers})


@pytest.mark.timeout(60)
async def test_sigterm_answers_open_polls_and_exits_0_MESH_03(
    own: Settings, tmp_path: Path, scheduler: FakeScheduler, model: str
) -> None:
    scheduler.held = True
    async with gateway_process(own, tmp_path) as gateway:
        body = {"model_id": model, "seq_id": 1}
        request_id = (await post(gateway.base_url, "optim_step", body)).json()["request_id"]
        poll = asyncio.create_task(post(gateway.base_url, "retrieve_future", {"request_id": request_id}))
        await eventually(lambda: scheduler.streams.open_polls == 1)
        gateway.process.send_signal(signal.SIGTERM)
        answer = await asyncio.wait_for(poll, 20)
        assert (answer.status_code, answer.json()["type"]) == (408, "try_again")
        assert await asyncio.wait_for(gateway.process.wait(), 20) == 0
        assert "Traceback" not in gateway.log.read_text()


@pytest.mark.timeout(60)
async def test_replicas_share_an_inherited_socket_and_one_may_stop(
    own: Settings, tmp_path: Path, scheduler: FakeScheduler
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        fd = listener.fileno()
        first, second = (
            msgspec.structs.replace(own, listen_fd=fd, port_file=str(tmp_path / name)) for name in ("a", "b")
        )
        async with (
            gateway_process(first, tmp_path, pass_fds=(fd,)) as one,
            gateway_process(second, tmp_path, pass_fds=(fd,)) as two,
        ):
            assert one.port == two.port
            one.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(one.process.wait(), 20) == 0
            for _ in range(20):
                assert (await post(two.base_url, "client/config", {})).status_code == 200


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"pepper_file": "/nonexistent/pepper"}, "pepper file"),
        ({"scheduler": "nonsense"}, "host:port"),
        ({"listen": "nonsense"}, "host:port"),
        ({"listen": "192.0.2.1:1"}, "cannot listen"),
        ({"listen": "127.0.0.1:65536"}, "cannot listen on 127.0.0.1:65536"),
        ({"listen_fd": 999}, "cannot listen on descriptor 999"),
    ],
)
async def test_start_up_errors_end_the_process_with_their_cause(
    own: Settings, tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    settings = msgspec.structs.replace(own, **change)
    with pytest.raises(RuntimeError) as caught:
        async with gateway_process(settings, tmp_path):
            pass
    assert "gateway ended with 0" not in str(caught.value)
    assert text in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.timeout(60)
async def test_missing_settings_are_named() -> None:
    process = await asyncio.create_subprocess_exec(
        os.fspath(Path(os.sys.executable)),  # type: ignore[attr-defined]
        "-m",
        "services.gateway",
        env=environment(),
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"key_file" in errors and b"TINKERMESH_GATEWAY_" in errors


@pytest.mark.timeout(60)
async def test_headers_without_a_key_are_bounded_VAL_14(own: Settings, tmp_path: Path) -> None:
    async with gateway_process(own, tmp_path) as gateway:
        response = await post(gateway.base_url, "get_info", {}, **{"x-large": "a" * 70_000})
        assert (response.status_code, response.json()["error"]) == (431, "too_large")
        assert "Traceback" not in gateway.log.read_text()


@pytest.mark.timeout(60)
async def test_no_key_in_the_log_even_at_debug_level_SEC_02(
    own: Settings, tmp_path: Path, scheduler: FakeScheduler, model: str
) -> None:
    chatty = msgspec.structs.replace(own, log_level="DEBUG")
    async with gateway_process(chatty, tmp_path) as gateway:
        load = {"model_id": model, "seq_id": 1, "path": f"tinker://{model}/weights/x", "optimizer": True}
        await post(gateway.base_url, "load_weights", {**load, "weights_access_token": "tml-SECRET-token"})
        await post(gateway.base_url, "optim_step", {"model_id": model, "seq_id": 2, "x": "tml-SECRET"})
        await post(gateway.base_url, "optim_step", "tml-SECRET")
        await post(gateway.base_url, "get_info", {}, **{"x-api-key": "tml-SECRET-unknown"})
        text = gateway.log.read_text()
    assert text
    assert "SECRET" not in text
    assert not any(b"SECRET" in one.request.SerializeToString() for one in scheduler.submitted)


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.mark.timeout(60)
async def test_post_continues_the_clients_trace_and_the_scheduler_sees_it(
    own: Settings, tmp_path: Path, scheduler: FakeScheduler, model: str
) -> None:
    receiver = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    try:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_INSECURE": "true"}
        async with gateway_process(own, tmp_path, **endpoint) as gateway:
            header = {"traceparent": f"00-{trace}-{parent}-01"}
            await post(gateway.base_url, "optim_step", {"model_id": model, "seq_id": 1}, **header)
            gateway.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(gateway.process.wait(), 15) == 0
    finally:
        server.stop(0)
    spans = [span for span in receiver.spans if span.trace_id.hex() == trace]
    (served,) = [span for span in spans if span.name == "POST /api/v1/optim_step"]
    assert served.parent_span_id.hex() == parent
    attributes = {a.key: a.value.string_value for a in served.attributes}
    assert attributes["tinkermesh.request_id"] == scheduler.last.reply.request_id
    assert scheduler.last.traceparent.split("-")[1] == trace
    (called,) = [span for span in spans if "Submit" in span.name]
    assert called.parent_span_id == served.span_id
