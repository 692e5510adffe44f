"""Tell every scheduler, every two seconds, that this sampler is here."""

from __future__ import annotations

import asyncio
import logging

import grpc
from tinkermesh.v1.sampler_pb2 import SamplerDescription
from tinkermesh.v1.scheduler_pb2 import RegisterSamplerRequest
from tinkermesh.v1.scheduler_pb2_grpc import RegistryStub

from services.common.errors import InvalidInput, from_rpc_error
from services.common.grpc_channel import open_channel

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 2.0
TIMEOUT_SECONDS = 2.0
_SHORTEST_SECONDS = 0.2


def registration(description: SamplerDescription, address: str) -> RegisterSamplerRequest:
    return RegisterSamplerRequest(
        sampler_id=description.sampler_id,
        incarnation=description.incarnation,
        address=address,
        facts=description.facts,
        role=description.role,
        max_adapters=description.max_adapters,
        max_running=description.max_running,
        kv=description.kv if description.HasField("kv") else None,
    )


async def register_for_ever(target: str, request: RegisterSamplerRequest) -> None:
    """Until cancelled. Raises InvalidInput when the pool has other facts than this sampler."""
    known = False
    async with open_channel(target) as channel:
        stub = RegistryStub(channel)
        while True:
            pause = INTERVAL_SECONDS
            try:
                reply = await stub.RegisterSampler(request, timeout=TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as error:
                known = _lost(target, error, known)
            else:
                if not known:
                    log.info("registered with %s as %s", target, request.address)
                known = True
                pause = min(pause, max(_SHORTEST_SECONDS, reply.renew_after_ms / 1000 or pause))
            await asyncio.sleep(pause)


def _lost(target: str, error: grpc.aio.AioRpcError, known: bool) -> bool:
    cause = from_rpc_error(error)
    if isinstance(cause, InvalidInput):
        raise InvalidInput(f"scheduler {target} refuses this sampler: {cause.message}")
    if known:
        log.warning("scheduler %s is away: %s", target, cause.message)
    else:
        log.debug("scheduler %s is not there yet: %s", target, cause.message)
    return False
