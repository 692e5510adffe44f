"""One attempt to generate what is left of a task, through the port of everything that is sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import ServerError
from services.common.ids import JobId
from services.scheduler.core.continuation import segment_seed
from services.scheduler.jobs.limits import JobLimits
from services.scheduler.jobs.output import TaskOutput
from services.scheduler.jobs.records import Task
from services.scheduler.sampling.fleet import SamplerDirectory
from services.scheduler.sampling.generation import Generations, Wanted


@dataclass(frozen=True, slots=True)
class Work:
    """A task ready to run. `ids`: int32 little-endian. `max_tokens` of one sample."""

    job: JobId
    index: int
    tenant_id: str
    task: Task
    ids: bytes
    max_tokens: int


class Attempt:
    """`lives`: incarnations of the samplers that have had (some of) it. `grown` is called after each chunk."""

    def __init__(
        self,
        generations: Generations,
        samplers: SamplerDirectory,
        limits: JobLimits,
        work: Work,
        output: TaskOutput,
        name: str,
        grown: Callable[[], None],
    ) -> None:
        self._generations = generations
        self._samplers = samplers
        self._limits = limits
        self._work = work
        self._output = output
        self._name = name
        self._grown = grown
        self.lives: set[str] = set()

    async def run(self) -> None:
        """All samples that are left, each to its end. Raises the first failure once every one has ended."""
        left = self._output.unfinished(self._work.max_tokens)
        if self._output.tokens == 0 and left:
            await self._stream(left, self._request(left, 0, b""))
            return
        requests = [(number, self._continued(number)) for number in left]
        ends = await asyncio.gather(*(self._stream([n], r) for n, r in requests), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    def _continued(self, number: int) -> pb.SampleStreamRequest:
        sample = self._output.samples[number]
        return self._request([number], sample.tokens, sample.ids)

    def _request(self, numbers: Sequence[int], already: int, ids: bytes) -> pb.SampleStreamRequest:
        task, work = self._work.task, self._work
        body = types.SampleBody(
            prompt_tokens=work.ids + ids,
            num_samples=len(numbers),
            max_tokens=work.max_tokens - already,
            stop=types.StopCondition(
                disabled=task.stop.disabled, strings=task.stop.strings, token_ids=task.stop.token_ids
            ),
            temperature=task.temperature,
            top_p=task.top_p,
            top_k=task.top_k,
        )
        if task.seed is not None:
            body.seed = segment_seed(task.seed, numbers[0], already)
        sample = pb.SampleRequest(
            request_id=f"{self._name}.{numbers[0]}", adapter=task.adapter, body=body, cache_salt=work.tenant_id
        )
        return pb.SampleStreamRequest(sample=sample, with_text=True, seam_tokens=already)

    async def _stream(self, numbers: Sequence[int], request: pb.SampleStreamRequest) -> None:
        body = request.sample.body
        wanted = Wanted(
            self._work.job.pool,
            self._work.tenant_id,
            self._work.task.adapter,
            len(numbers),
            body.prompt_tokens,
            batch=True,
        )
        async with self._generations.place(wanted, self._limits.place_seconds) as generation:
            live = await self._samplers.samplers(self._work.job.pool)
            self.lives.update(one.incarnation for one in live if one.sampler_id in generation.sampler_ids)
            for number in numbers:
                self._output.begin(number, generation.sampler_ids)
            async with aclosing(generation.stream(request, self._limits.stream_seconds)) as chunks:
                async for chunk in chunks:
                    self._take(numbers, chunk)
        if cut := [number for number in numbers if not self._output.samples[number].finish]:
            raise ServerError(f"the stream ended before sequence {cut[0]} did")

    def _take(self, numbers: Sequence[int], chunk: pb.SampleChunk) -> None:
        if chunk.sequence >= len(numbers):
            raise ServerError(f"the sampler sent sequence {chunk.sequence} of {len(numbers)}")
        self._output.take(numbers[chunk.sequence], chunk)
        self._grown()
