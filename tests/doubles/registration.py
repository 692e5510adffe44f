"""The two-second registration every trainer and sampler keeps up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import scheduler_pb2_grpc as pb_grpc

from services.common.grpc_channel import open_channel

log = logging.getLogger(__name__)
INTERVAL_SECONDS = 2.0


def scheduler_target(addresses: str) -> str:
    """A gRPC target that tries every one of the comma-separated host:port addresses."""
    return f"ipv4:{addresses}" if "," in addresses else addresses


async def register_for_ever(addresses: str, request: pb.RegisterTrainerRequest | pb.RegisterSamplerRequest) -> None:
    """Until cancelled; a failed attempt is logged and repeated at the next turn."""
    async with open_channel(scheduler_target(addresses)) as channel:
        stub = pb_grpc.RegistryStub(channel)
        call: Callable[..., Awaitable[pb.RegisterReply]] = (
            stub.RegisterTrainer if isinstance(request, pb.RegisterTrainerRequest) else stub.RegisterSampler
        )
        while True:
            pause = INTERVAL_SECONDS
            try:
                reply = await call(request, timeout=2.0)
                pause = min(pause, reply.renew_after_ms / 1000 or pause)
            except grpc.aio.AioRpcError as error:
                log.warning("registration failed: %s %s", error.code().name, error.details())
                pause = 0.2
            await asyncio.sleep(pause)
