"""Tells the scheduler, again and again, that this trainer is there and what it offers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence

import grpc
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import scheduler_pb2_grpc as pb_grpc

from services.common.errors import InvalidInput, StaleFence, from_rpc_error
from services.common.grpc_channel import open_channel
from services.trainer.fence import refused

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 2.0
FIRST_RETRY_SECONDS = 0.2
DEADLINE_SECONDS = 5.0


async def keep_registered(targets: Sequence[str], request: pb.RegisterTrainerRequest) -> None:
    """Until cancelled. One scheduler replica is enough; the next is tried when one fails.

    Raises InvalidInput when the pool has other facts than this trainer, StaleFence when another
    incarnation drives it since this one did: trying again would not help.
    """
    backoff = FIRST_RETRY_SECONDS
    for target in itertools.cycle(targets):
        if await _renew_until_lost(target, request):
            backoff = FIRST_RETRY_SECONDS
        await asyncio.sleep(backoff)
        backoff = min(2 * backoff, INTERVAL_SECONDS)


async def _renew_until_lost(target: str, request: pb.RegisterTrainerRequest) -> bool:
    """Whether the scheduler knew this trainer before it went away. Raises InvalidInput when it refuses it."""
    known = False
    async with open_channel(target) as channel:
        stub = pb_grpc.RegistryStub(channel)
        while True:
            try:
                reply = await stub.RegisterTrainer(request, timeout=DEADLINE_SECONDS)
            except grpc.aio.AioRpcError as error:
                _report(target, error, request.incarnation, was_known=known)
                return known
            if not known:
                log.info("registered with %s as %s of pool %s", target, request.trainer_id, request.facts.pool)
            known = True
            await asyncio.sleep(min(INTERVAL_SECONDS, reply.renew_after_ms / 1000 or INTERVAL_SECONDS))


def _report(target: str, rpc_error: grpc.aio.AioRpcError, incarnation: str, *, was_known: bool) -> None:
    error = from_rpc_error(rpc_error)
    if isinstance(error, StaleFence):
        refused("registration", error.message, term=0, incarnation=incarnation)
        raise error
    if isinstance(error, InvalidInput):
        raise InvalidInput(f"scheduler {target} refuses this trainer: {error.message}")
    if was_known:
        log.warning("registration with %s lost: %s", target, error.message)
    else:
        log.info("registration with %s failed: %s; trying again", target, error.message)
