"""``python -m services.common.probe HOST:PORT``: a container's health command; exit 0 when the server says SERVING."""

from __future__ import annotations

import asyncio
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.grpc_channel import open_channel

SECONDS = 4.0


async def status_of(address: str) -> str:
    """SERVING, NOT_SERVING, or why it does not answer."""
    async with open_channel(address) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m services.common.probe HOST:PORT\n")
        return 2
    status = asyncio.run(status_of(arguments[0]))
    sys.stderr.write(f"{arguments[0]} {status}\n")
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
