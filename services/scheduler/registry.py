"""The Registry service: how trainers and samplers join a pool and stay in it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from google.protobuf import json_format
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import scheduler_pb2_grpc
from tinkermesh.v1 import types_pb2 as types

from services.common.cells import FIRST_CELL, is_cell_name
from services.common.errors import InvalidInput, Unavailable, UnknownId
from services.common.grpc_boundary import Context
from services.scheduler.directory import Directory
from services.scheduler.pool_facts import (
    check_agreement,
    check_context,
    check_equal,
    check_facts,
    provisional,
    trainable,
)
from services.scheduler.store.registry import Kind, RegistryStore

log = logging.getLogger(__name__)

RENEW_AFTER_MS = 2_000
FACT_ATTEMPTS = 5

Registration = pb.RegisterTrainerRequest | pb.RegisterSamplerRequest
Decide = Callable[[types.PoolFacts | None], Awaitable[types.PoolFacts]]


class Registry(scheduler_pb2_grpc.RegistryServicer):
    """A registration that disagrees with its pool is refused; the pool goes on as it is."""

    def __init__(self, store: RegistryStore, directory: Directory) -> None:
        self._store = store
        self._directory = directory

    async def RegisterTrainer(self, request: pb.RegisterTrainerRequest, context: Context) -> pb.RegisterReply:
        _check_member("trainer_id", request.trainer_id, request)
        cell = request.cell or FIRST_CELL
        if not is_cell_name(cell):
            raise InvalidInput(f"cell: {cell[:80]!r} is not the name of a cell (a-z 0-9 -, at most 63)")
        if await self._known(request.facts.pool) != request.facts:
            await self._agree(request.facts.pool, lambda pool: self._trainer_facts(pool, request))
        return await self._renew("trainers", request.trainer_id, request, cell)

    async def RegisterSampler(self, request: pb.RegisterSamplerRequest, context: Context) -> pb.RegisterReply:
        _check_member("sampler_id", request.sampler_id, request)
        await self._agree(request.facts.pool, lambda pool: self._sampler_facts(pool, request))
        return await self._renew("samplers", request.sampler_id, request)

    async def _known(self, pool: str) -> types.PoolFacts | None:
        try:
            return await self._directory.facts(pool)
        except UnknownId:
            return None

    async def _agree(self, pool: str, decide: Decide) -> None:
        """Writes what `decide` makes of the pool's facts, unless that is what they are."""
        current = await self._known(pool)
        for _ in range(FACT_ATTEMPTS):
            wanted = await decide(current)
            if wanted == current:
                return
            replaced = await self._store.replace_facts(pool, current, wanted)
            self._directory.refresh(pool)
            if replaced:
                return
            current = await self._store.facts(pool)
        raise Unavailable(f"pool {pool}: its facts keep changing; register again")

    async def _trainer_facts(
        self, current: types.PoolFacts | None, request: pb.RegisterTrainerRequest
    ) -> types.PoolFacts:
        """The trainer's own facts, as long as no other live trainer states different ones."""
        who = f"trainer {request.trainer_id}"
        if current is None:
            return request.facts
        check_agreement(current, request.facts, who)
        others = await self._directory.live(request.facts.pool, "trainers")
        if trainable(current) and any(member.member_id != request.trainer_id for member in others):
            check_equal(current, request.facts, who)
        return request.facts

    async def _sampler_facts(
        self, current: types.PoolFacts | None, request: pb.RegisterSamplerRequest
    ) -> types.PoolFacts:
        who = f"sampler {request.sampler_id}"
        if current is None:
            return provisional(request.facts)
        check_agreement(current, request.facts, who)
        check_context(current, request.facts, who)
        return current

    async def _renew(self, kind: Kind, member_id: str, request: Registration, cell: str = "") -> pb.RegisterReply:
        text = json_format.MessageToJson(request, indent=None)
        fresh = await self._store.renew(request.facts.pool, kind, member_id, request.incarnation, text, cell)
        if fresh:
            self._directory.refresh(request.facts.pool)
            log.info("%s %s joined pool %s at %s", kind[:-1], member_id, request.facts.pool, request.address)
        return pb.RegisterReply(renew_after_ms=RENEW_AFTER_MS)


def _check_member(field: str, member_id: str, request: Registration) -> None:
    for name, value in ((field, member_id), ("incarnation", request.incarnation), ("address", request.address)):
        if not value:
            raise InvalidInput(f"{name}: missing; a registration names its id, incarnation and address")
    check_facts(request.facts)
