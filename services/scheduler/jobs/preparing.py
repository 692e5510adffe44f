"""From a task's line to the tokens it begins with, and the checks that need no sampler."""

from __future__ import annotations

import numpy as np
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import ContractViolation, InvalidInput
from services.common.ids import JobId
from services.scheduler.core.continuation import room
from services.scheduler.jobs.atomic import in_job_store
from services.scheduler.jobs.attempt import Work
from services.scheduler.jobs.files import JobFiles, Place
from services.scheduler.jobs.records import Input, Task
from services.scheduler.sampling.generation import Generations

TOKENIZE_SECONDS = 30.0


async def input_ids(files: JobFiles, generations: Generations, place: Place, index: int, task: Task) -> bytes:
    """int32 little-endian. A text's come from the pool's own tokenizer, once: they are kept beside the task.

    Raises InvalidInput, Unavailable, ContractViolation.
    """
    if (given := task.ids) is not None:
        return given
    kept = await in_job_store(files.input, place, index)
    if kept is not None:
        return np.array(kept.ids, "<i4").tobytes()
    if task.prompt is None:
        raise ContractViolation(f"task {index}: its input is missing in the shared store")
    ids = await tokenized(generations, place.pool, task.prompt)
    await in_job_store(files.put_input, place, index, Input(np.frombuffer(ids, "<i4").tolist()))
    return ids


async def tokenized(generations: Generations, pool: str, text: str) -> bytes:
    """As the engine itself would: with the special tokens its tokenizer begins a text with."""
    request = pb.TokenizeRequest(text=text, add_special_tokens=True)
    return await generations.tokenize(pool, request, TOKENIZE_SECONDS)


def work_of(job: JobId, index: int, tenant_id: str, task: Task, ids: bytes, facts: types.PoolFacts) -> Work:
    """Raises InvalidInput: before anything is dispatched."""
    check_ids(ids, facts, index)
    try:
        max_tokens = room(facts.max_context, len(ids) // 4, task.max_tokens)
    except ValueError as error:
        raise InvalidInput(f"task {index}: {error}") from error
    return Work(job, index, tenant_id, task, ids, max_tokens)


def check_ids(ids: bytes, facts: types.PoolFacts, index: int) -> None:
    """Raises InvalidInput naming the first id that is none."""
    found = np.frombuffer(ids, "<i4")
    if not found.size:
        raise InvalidInput(f"task {index}: its input has no token")
    wrong = np.flatnonzero((found < 0) | (found >= facts.vocab_size))
    if wrong.size:
        at = int(wrong[0])
        raise InvalidInput(f"task {index}: input, position {at}: token {found[at]} is outside [0, {facts.vocab_size})")
