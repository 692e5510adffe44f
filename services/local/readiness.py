"""Whether a child answers; each probe takes at most a second."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.grpc_channel import open_channel
from services.local.spec import ChildSpec, Readiness

PROBE_SECONDS = 1.0


async def is_ready(spec: ChildSpec) -> bool:
    if spec.readiness is Readiness.REDIS_PING:
        return await _redis_answers(spec.address)
    if spec.port_file is not None and not spec.port_file.exists():
        return False
    return spec.readiness is Readiness.PORT_FILE or await _grpc_serves(spec.address)


async def _redis_answers(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection(host, int(port))
            with contextlib.closing(writer):
                writer.write(b"PING\r\n")
                answer = await reader.readline()
            return answer.startswith(b"+PONG")
    return False


async def _grpc_serves(address: str) -> bool:
    async with open_channel(address) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=PROBE_SECONDS
            )
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
