"""The Completions service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from tinkermesh.v1 import completions_pb2 as pb
from tinkermesh.v1 import completions_pb2_grpc, types_pb2

from services.common import logs, telemetry
from services.common.errors import InvalidInput
from services.common.grpc_boundary import Context
from services.scheduler import metrics
from services.scheduler.artifacts import Artifacts
from services.scheduler.directory import Directory
from services.scheduler.front import Front
from services.scheduler.generating.channel import Channel
from services.scheduler.generating.names import target_of
from services.scheduler.generating.run import Parts, Put, Run
from services.scheduler.sampling.pairing import whole
from services.scheduler.sampling.presence import SamplerPresence
from services.scheduler.sampling.targets import Target, Targets

log = logging.getLogger(__name__)

CANCEL_SECONDS = 0.5
ROOM = 64
"""Events that wait for a client that reads slowly; then its samplers wait, too."""
MAX_SEQUENCES = 1_024
"""Of one request, whatever a gateway lets pass."""


class Completions(completions_pb2_grpc.CompletionsServicer):
    def __init__(
        self,
        *,
        parts: Parts,
        targets: Targets,
        artifacts: Artifacts,
        directory: Directory,
        presence: SamplerPresence,
        front: Front,
    ) -> None:
        self._parts = parts
        self._targets = targets
        self._artifacts = artifacts
        self._directory = directory
        self._presence = presence
        self._front = front
        self._ending: set[asyncio.Task[None]] = set()

    async def Models(self, request: pb.CompletionModelsRequest, context: Context) -> pb.CompletionModels:
        self._front.seen()
        if request.model:
            target = await target_of(self._targets, request.tenant_id, request.model)
            return pb.CompletionModels(models=[await self._described(request, target)])
        pools = [facts for facts in await self._directory.pools() if await self._directory.live(facts.pool, "samplers")]
        return pb.CompletionModels(models=[_base(facts, facts.base_model) for facts in pools])

    async def _described(self, request: pb.CompletionModelsRequest, target: Target) -> pb.CompletionModel:
        model = _base(target.facts, request.model)
        if target.path is not None:
            found = await self._artifacts.find(str(target.path), request.tenant_id, "")
            model.created_unix_ms, model.base_model = found.meta.created_unix_ms, target.facts.base_model
        return model

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateEvent]:
        self._front.admit()
        channel: Channel[pb.GenerateEvent] = Channel(ROOM)
        work = asyncio.create_task(self._generate(request, channel.put))
        work.add_done_callback(lambda _: _finished(work, channel))
        ends: Any = context.add_done_callback  # a class in the stubs, a callable to grpc
        ends(lambda _: self._end(work))  # the client has gone: nothing is left running
        async for event in channel.items():
            yield event
        await work

    def _end(self, work: asyncio.Task[None]) -> None:
        if not work.done():
            ending = asyncio.create_task(_ended(work))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _generate(self, request: pb.GenerateRequest, put: Put) -> None:
        with logs.bind(completion_id=request.completion_id, tenant_id=request.tenant_id):
            target = await self._target(request)
            attributes = {"pool": target.facts.pool, "adapter": "snapshot" if target.adapter else "base"}
            with telemetry.span("generation", attributes), metrics.generation(target.facts.pool) as noted:
                await Run(self._parts, target, request, _noting(put, noted)).run()
            log.info("generation: done")

    async def _target(self, request: pb.GenerateRequest) -> Target:
        """Raises MissingResource, Forbidden, InvalidInput."""
        _check(request)
        target = await target_of(self._targets, request.tenant_id, request.model)
        await self._presence.check(target.facts.pool, "model")
        await self._check_disaggregated(request, target.facts.pool)
        return target

    async def _check_disaggregated(self, request: pb.GenerateRequest, pool: str) -> None:
        """Raises InvalidInput where a prefill and a decode sampler would have to share one flow."""
        if len(request.prompts) == 1 and request.body.num_samples == 1:
            return
        samplers = await self._directory.samplers(pool)
        if len(whole(samplers)) == len(samplers):
            return
        field = "prompt" if len(request.prompts) > 1 else "n"
        asked = "one prompt" if len(request.prompts) > 1 else "n=1"
        raise InvalidInput(
            f"{field}: this model is served by prefill and decode samplers, which take {asked} a request"
        )


def _finished(work: asyncio.Task[None], channel: Channel[pb.GenerateEvent]) -> None:
    """Where the client has gone, nobody awaits it."""
    channel.close()
    if not work.cancelled():
        work.exception()


async def _ended(work: asyncio.Task[None]) -> None:
    """A cancellation can be lost inside a client library's call; then the next one is not."""
    while not work.done():
        work.cancel()
        await asyncio.wait({work}, timeout=CANCEL_SECONDS)


def _noting(put: Put, noted: metrics.Generating) -> Put:
    async def told(event: pb.GenerateEvent) -> None:
        if event.HasField("chunk"):
            noted.chunk()
        await put(event)

    return told


def _check(request: pb.GenerateRequest) -> None:
    """Raises InvalidInput."""
    if not request.prompts:
        raise InvalidInput("prompt: send at least one")
    if not 1 <= len(request.prompts) * request.body.num_samples <= MAX_SEQUENCES:
        raise InvalidInput(f"n: prompts times n must lie in [1, {MAX_SEQUENCES}]")


def _base(facts: types_pb2.PoolFacts, name: str) -> pb.CompletionModel:
    return pb.CompletionModel(id=name, max_context=facts.max_context)
