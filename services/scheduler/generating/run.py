"""One request of the Completions service: from its prompts to the chunks of every sequence."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from tinkermesh.v1 import completions_pb2 as pb
from tinkermesh.v1 import sampler_pb2
from tinkermesh.v1 import types_pb2 as types

from services.common import telemetry
from services.common.errors import DecodeInterrupted, Interrupted, TinkermeshError
from services.scheduler.generating import prompts
from services.scheduler.generating.desk import GenerationDesk
from services.scheduler.generating.pieces import TokenPieces
from services.scheduler.sampling.generation import Generation, Generations, Wanted
from services.scheduler.sampling.targets import Target
from services.scheduler.store.generations import Held

Put = Callable[[pb.GenerateEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds. `place`: for room at a sampler. `stream`: until everything is generated."""

    place: float
    stream: float


@dataclass(frozen=True, slots=True)
class Parts:
    """What every run works with."""

    generations: Generations
    desk: GenerationDesk
    pieces: TokenPieces
    times: Times


class Run:
    def __init__(self, parts: Parts, target: Target, request: pb.GenerateRequest, put: Put) -> None:
        self._parts = parts
        self._target = target
        self._request = request
        self._put = put
        self._pool = target.facts.pool
        self._id = uuid.uuid4().hex  # a client's own id could meet another's
        self._sent = False

    async def run(self) -> None:
        """Everything is put when it returns. Raises InvalidInput, Busy, Unavailable, ServerError, Interrupted."""
        request = self._request
        held = Held(self._pool, request.tenant_id, self._id, len(request.prompts))
        async with self._parts.desk.admitted(held):
            with telemetry.span("generation.tokenize", {"prompts": len(request.prompts)}):
                bodies = await self._bodies()
            await self._parts.desk.charge(held, prompts.cost(bodies))
            await self._put(pb.GenerateEvent(started=await self._started(bodies)))
            await _together([self._sequences(index, body) for index, body in enumerate(bodies)])

    async def _bodies(self) -> list[types.SampleBody]:
        found = []
        for prompt in self._request.prompts:
            tokens = await prompts.tokens_of(self._parts.generations, self._pool, prompt)
            found.append(prompts.sample_body(self._request, tokens, self._target.facts))
        return found

    async def _started(self, bodies: list[types.SampleBody]) -> pb.GenerateStarted:
        started = pb.GenerateStarted()
        for body in bodies:
            asked = self._request.with_prompt_pieces
            pieces = await self._parts.pieces.of(self._pool, body.prompt_tokens) if asked else []
            started.prompts.add(tokens=body.prompt_tokens, max_tokens=body.max_tokens, pieces=pieces)
        return started

    async def _sequences(self, index: int, body: types.SampleBody) -> None:
        """All sequences after one prompt."""
        times, affinity = self._parts.times, self._request.affinity
        wanted = Wanted(
            pool=self._pool,
            tenant_id=self._request.tenant_id,
            adapter=self._target.adapter,
            sequences=body.num_samples,
            prompt=body.prompt_tokens,
            affinity=f"{self._request.tenant_id} {affinity}" if affinity else "",
            at_once=not self._request.at_the_end,
        )
        async with self._parts.generations.place(wanted, times.place) as generation:
            try:
                await self._forward(index, body, generation)
            except TinkermeshError as error:
                raise self._interrupted(error, generation) from error

    def _interrupted(self, error: TinkermeshError, generation: Generation) -> TinkermeshError:
        """Once something was put, nobody may repeat this."""
        if not self._sent or isinstance(error, DecodeInterrupted):
            return error
        kind = DecodeInterrupted if len(generation.sampler_ids) > 1 else Interrupted
        return kind(f"the stream broke off: {error.message}")

    async def _forward(self, index: int, body: types.SampleBody, generation: Generation) -> None:
        async with aclosing(generation.stream(self._sample(index, body), self._parts.times.stream)) as chunks:
            async for chunk in chunks:
                event = await self._event(index, chunk)
                self._sent = True
                await self._put(event)

    def _sample(self, index: int, body: types.SampleBody) -> sampler_pb2.SampleStreamRequest:
        return sampler_pb2.SampleStreamRequest(
            sample=sampler_pb2.SampleRequest(
                request_id=f"{self._id}.{index}",
                adapter=self._target.adapter,
                body=body,
                cache_salt=self._request.tenant_id,
            ),
            with_text=True,
        )

    async def _event(self, index: int, chunk: sampler_pb2.SampleChunk) -> pb.GenerateEvent:
        made = pb.GeneratedChunk(
            prompt=index,
            sequence=chunk.sequence,
            tokens=chunk.tokens,
            logprobs=chunk.logprobs,
            topk=chunk.topk if chunk.HasField("topk") else None,
            text=chunk.text,
            finish=chunk.finish,
            cached_tokens=chunk.cached_tokens,
        )
        if self._request.with_pieces:
            made.pieces.extend(await self._parts.pieces.of(self._pool, chunk.tokens))
            made.topk_pieces.extend(await self._parts.pieces.of(self._pool, chunk.topk.token_ids))
        return pb.GenerateEvent(chunk=made)


async def _together(works: list[Awaitable[None]]) -> None:
    """The first failure ends all others and is the one raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
