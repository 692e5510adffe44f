"""From what a client asks to the tasks of a job: references are followed once, here, and written down."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import msgspec
import numpy as np
from tinkermesh.v1 import jobs_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput, TinkermeshError, Unavailable
from services.common.ids import JobId
from services.scheduler.core.continuation import Choice, Reference, Sampling, chosen, composed
from services.scheduler.jobs.adapters import Adapters
from services.scheduler.jobs.preparing import work_of
from services.scheduler.jobs.records import Input, Stop, Task, task_name
from services.scheduler.jobs.sources import Source, Sources, SourceSample

Made = tuple[Task, Input | None]


class Expansion:
    """A task whose content is wrong is made all the same, with the text it failed by: its siblings go on."""

    def __init__(self, job: JobId, sources: Sources, adapters: Adapters, facts: types.PoolFacts) -> None:
        self._job = job
        self._sources = sources
        self._adapters = adapters
        self._facts = facts

    async def tasks(self, asked: list[pb.JobTask]) -> AsyncIterator[Made]:
        """In order. Raises InvalidInput, MissingResource for a reference that names nothing; Unavailable."""
        for index, one in enumerate(asked):
            if one.WhichOneof("source") != "continue_from":
                yield await self._plain(one, index)
                continue
            source = await self._sources.get(one.continue_from.job_id)
            if one.continue_from.whole_job:
                async for made in self._whole(one, source):
                    yield made
            else:
                yield await self._continued(one, index, source, *source.find(_reference(one.continue_from)))

    async def _whole(self, asked: pb.JobTask, source: Source) -> AsyncIterator[Made]:
        sample = asked.continue_from.sample_index if asked.continue_from.HasField("sample_index") else None
        found = [source.find(Reference(index=index, sample_index=sample)) for index in range(source.count)]
        for index, number in found:
            yield await self._continued(asked, index, source, index, number)

    async def _plain(self, asked: pb.JobTask, index: int) -> Made:
        given = asked.input if asked.WhichOneof("source") == "input" else None
        task = _task(asked, asked.task_id)
        if asked.WhichOneof("source") == "prompt":
            task = _with(task, prompt=asked.prompt)
        if given is not None:
            task = _with(task, input=base64.b64encode(given).decode())
        return await self._checked(asked, index, task, given, None), None

    async def _continued(self, asked: pb.JobTask, index: int, source: Source, at: int, number: int) -> Made:
        """Its input is composed now and kept, so it does not depend on its source any more."""
        try:
            sample = await source.sample(at, number)
        except Unavailable:
            raise
        except TinkermeshError as error:
            return _with(_task(asked, asked.task_id), error=error.message), None
        name = asked.task_id or (sample.origin.task_id if asked.continue_from.whole_job else "")
        ids = composed(sample.input, sample.output)
        task = await self._checked(asked, index, _task(asked, name), ids, sample)
        return task, Input(np.frombuffer(ids, "<i4").tolist(), sample.origin)

    async def _checked(
        self, asked: pb.JobTask, index: int, task: Task, ids: bytes | None, source: SourceSample | None
    ) -> Task:
        """With what it samples with; failed by what can be said before it runs."""
        held = source.task if source is not None else None
        inherited = Sampling(held.temperature, held.top_p, held.lora_path or "") if held is not None else None
        choice = chosen(_choice(asked), inherited)
        try:
            task = _with(task, temperature=choice.temperature, top_p=choice.top_p, lora_path=choice.lora_path or None)
            adapter = await self._adapter(asked, choice, held)
            task = _with(task, adapter_name=adapter.name, adapter_path=adapter.path)
            if ids is not None:
                work_of(self._job, index, "", task, ids, self._facts)
        except Unavailable:
            raise
        except TinkermeshError as error:
            return _with(task, error=error.message)
        return task

    async def _adapter(self, asked: pb.JobTask, choice: Sampling, held: Task | None) -> types.AdapterRef:
        """An inherited one is the version its source ran with, if its tenant may still use it."""
        if not choice.lora_path:
            return types.AdapterRef()
        adapter = await self._adapters.resolve(choice.lora_path)
        if held is not None and not asked.HasField("lora_path") and held.adapter is not None:
            return held.adapter
        return adapter


def check_names(made: list[str]) -> None:
    """Raises InvalidInput when two tasks have one id."""
    seen: set[str] = set()
    for name in made:
        if name in seen:
            raise InvalidInput(f"task_id: {name[:100]!r} is given to two tasks; use each once")
        seen.add(name)


def named(made: Made, index: int) -> str:
    return task_name(made[0], index)


def _reference(asked: pb.JobReference) -> Reference:
    return Reference(
        task_id=asked.task_id,
        index=asked.index if asked.WhichOneof("task") == "index" else None,
        sample_index=asked.sample_index if asked.HasField("sample_index") else None,
    )


def _choice(asked: pb.JobTask) -> Choice:
    return Choice(
        temperature=asked.temperature if asked.HasField("temperature") else None,
        top_p=asked.top_p if asked.HasField("top_p") else None,
        lora_path=asked.lora_path if asked.HasField("lora_path") else None,
    )


def _task(asked: pb.JobTask, task_id: str) -> Task:
    stop = asked.stop
    return Task(
        task_id=task_id,
        n=asked.n or 1,
        max_tokens=asked.max_tokens if asked.HasField("max_tokens") else None,
        seed=asked.seed if asked.HasField("seed") else None,
        stop=Stop(stop.disabled, list(stop.strings), list(stop.token_ids)),
        top_k=asked.top_k or -1,
    )


def _with(task: Task, **changes: object) -> Task:
    return msgspec.structs.replace(task, **changes)
