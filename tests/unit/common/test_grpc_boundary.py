"""Errors keep their type across gRPC; a bug answers INTERNAL without its text."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tinkermesh.v1 import sampler_pb2, sampler_pb2_grpc, trainer_pb2, trainer_pb2_grpc

from services.common import errors
from services.common.grpc_channel import open_channel
from services.common.grpc_server import GrpcServer

LEAF_ERRORS = [kind for kind in errors.BY_CODE.values() if not kind.__subclasses__()]


class Failing(sampler_pb2_grpc.SamplerServicer, trainer_pb2_grpc.TrainerServicer):
    error: Exception = errors.InvalidInput("x")

    async def Abort(self, request, context):  # noqa: N802
        raise self.error

    async def Attach(self, request, context):  # noqa: N802
        yield trainer_pb2.OutcomeFrame(payload=b"first")
        raise self.error


@pytest.fixture
async def peer() -> AsyncIterator[tuple[Failing, grpc.aio.Channel]]:
    server, servicer = GrpcServer(["tinkermesh.v1.Sampler"]), Failing()
    sampler_pb2_grpc.add_SamplerServicer_to_server(servicer, server.server)
    trainer_pb2_grpc.add_TrainerServicer_to_server(servicer, server.server)
    port = await server.start("127.0.0.1:0")
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield servicer, channel
    await server.stop(0)


async def unary(channel: grpc.aio.Channel) -> errors.TinkermeshError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await sampler_pb2_grpc.SamplerStub(channel).Abort(sampler_pb2.AbortRequest(), timeout=5)
    return errors.from_rpc_error(caught.value)


@pytest.mark.parametrize("kind", LEAF_ERRORS, ids=lambda k: k.code)
async def test_every_error_keeps_its_type(peer, kind: type[errors.TinkermeshError]) -> None:
    servicer, channel = peer
    servicer.error = kind("names the field")
    back = await unary(channel)
    assert type(back) is kind
    assert back.message == "names the field"


async def test_stream_keeps_type_after_a_message(peer) -> None:
    servicer, channel = peer
    servicer.error = errors.StaleFence("older term")
    stream = trainer_pb2_grpc.TrainerStub(channel).Attach(trainer_pb2.UnitRef(), timeout=5)
    assert (await stream.read()).payload == b"first"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert type(errors.from_rpc_error(caught.value)) is errors.StaleFence


async def test_a_streaming_handler_that_is_a_coroutine_works_such_as_health_watch(peer) -> None:
    _, channel = peer
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=5)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


async def test_a_bug_shows_no_text_SEC_11(peer, caplog: pytest.LogCaptureFixture) -> None:
    servicer, channel = peer
    servicer.error = KeyError("tenant-secret")
    back = await unary(channel)
    assert type(back) is errors.ServerError
    assert "secret" not in back.message
    assert "tenant-secret" in caplog.text


async def test_nobody_there_is_unavailable() -> None:
    async with open_channel("127.0.0.1:1") as channel:
        assert type(await unary(channel)) is errors.Unavailable


def test_client_errors_are_never_5xx_and_402_409_are_never_sent_API_05() -> None:
    for kind in errors.BY_CODE.values():
        assert (kind.http_status >= 500) == (not issubclass(kind, errors.UserError)) or kind is errors.Pending
        assert kind.http_status not in (402, 409)
