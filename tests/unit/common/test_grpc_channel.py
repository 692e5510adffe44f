"""Channels of one process to one address have nothing to do with each other."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from services.common import grpc_channel
from tests.doubles.valkey import free_port

SERVING = health_pb2.HealthCheckResponse.SERVING


async def failures_and_first_answer(port: int) -> tuple[list[grpc.StatusCode], int]:
    """A channel finds nobody at `port` again and again; then a server starts there, and another channel asks once."""
    address = f"127.0.0.1:{port}"
    async with grpc_channel.open_channel(address) as old:
        failed = [await code_of(old) for _ in range(5)]
        server = grpc.aio.server()
        health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        await health.set("", SERVING)
        server.add_insecure_port(address)
        await server.start()
        try:
            async with grpc_channel.open_channel(address) as new:
                return failed, await status(new)
        finally:
            await server.stop(None)


async def code_of(channel: grpc.aio.Channel) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as told:
        await status(channel)
    return told.value.code()


async def status(channel: grpc.aio.Channel) -> int:
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    return int(answer.status)


async def test_who_starts_at_a_dead_ones_address_is_reached_at_once() -> None:
    failed, answer = await failures_and_first_answer(free_port())
    assert set(failed) == {grpc.StatusCode.UNAVAILABLE}
    assert answer == SERVING


async def test_with_shared_connections_it_would_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = [option for option in grpc_channel.CHANNEL_OPTIONS if "subchannel" not in option[0]]
    monkeypatch.setattr(grpc_channel, "CHANNEL_OPTIONS", shared)
    with pytest.raises(grpc.aio.AioRpcError, match="Connection refused|UNAVAILABLE"):
        await failures_and_first_answer(free_port())
