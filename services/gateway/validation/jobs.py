"""The content of a job as far as it can be judged without knowing its pool."""

from __future__ import annotations

import numpy as np
from msgspec import UNSET
from tinkermesh.v1 import jobs_pb2 as pb

from services.common.errors import InvalidInput
from services.common.ids import parse_job_id
from services.gateway.settings import Limits
from services.gateway.validation.numbers import at_least, whole
from services.gateway.validation.sampling import stop_condition, top_k, top_p
from services.gateway.wire import job_bodies as bodies
from services.gateway.wire.json_body import INT32_MAX, INT64_MAX

ONE_OF = "give exactly one of prompt, input and continue_from"
_LONGEST_NAME = 200
_LONGEST_ID = 100
_LONGEST_PATH = 1_000
_LONGEST_PROMPT = 2 << 20
"""Bytes: more than any context takes, and less than one message between the services."""


def job_tasks(body: bodies.Job | list[bodies.JobTask], limits: Limits) -> tuple[str, str, list[pb.JobTask]]:
    """(name, base model, tasks). Raises InvalidInput naming the task and the field."""
    if isinstance(body, list):
        return "", "", [_task(f"task {index}: ", one, limits) for index, one in enumerate(body)]
    _short("name", body.name, _LONGEST_NAME)
    _short("base_model", body.base_model, _LONGEST_PATH)
    if body.tasks is None:
        return body.name, body.base_model, [_only(body, limits)]
    if body.prompt is not None or body.input is not None or body.continue_from is not None:
        raise InvalidInput(f"a job has either tasks or the input of its one task; {ONE_OF}, or tasks")
    return body.name, body.base_model, [_task(f"task {i}: ", one, limits) for i, one in enumerate(body.tasks)]


def _only(body: bodies.Job, limits: Limits) -> pb.JobTask:
    """A reference to a job, and to none of its tasks, continues all of them."""
    task = _task("", body, limits)
    reference = body.continue_from
    if reference is not None and reference.task_id is None and reference.index is None:
        task.continue_from.whole_job = True
    return task


def _task(where: str, body: bodies.JobTask, limits: Limits) -> pb.JobTask:
    try:
        return _checked(body, limits)
    except InvalidInput as error:
        raise InvalidInput(f"{where}{error.message}") from error


def _checked(body: bodies.JobTask, limits: Limits) -> pb.JobTask:
    if sum(one is not None for one in (body.prompt, body.input, body.continue_from)) != 1:
        raise InvalidInput(ONE_OF)
    task = pb.JobTask(
        task_id=_short("task_id", body.task_id, _LONGEST_ID),
        n=whole("n", body.n, 1, limits.max_samples),
        stop=stop_condition(body.stop, INT32_MAX, limits),
        top_k=top_k(body.top_k),
    )
    _set_source(task, body, limits)
    if body.max_tokens is not None:
        task.max_tokens = whole("max_tokens", body.max_tokens, 1, INT32_MAX)
    if body.seed is not None:
        task.seed = whole("seed", body.seed, -INT64_MAX - 1, INT64_MAX)
    if body.temperature is not None:
        task.temperature = at_least("temperature", body.temperature, 0.0)
    if body.top_p is not None:
        task.top_p = top_p(body.top_p)
    if body.lora_path is not UNSET:
        task.lora_path = _short("lora_path", str(body.lora_path or ""), _LONGEST_PATH)
    return task


def _set_source(task: pb.JobTask, body: bodies.JobTask, limits: Limits) -> None:
    if body.prompt is not None:
        if not body.prompt:
            raise InvalidInput("prompt is empty; send at least one character")
        if (size := len(body.prompt.encode())) > _LONGEST_PROMPT:
            raise InvalidInput(f"prompt has {size} bytes, the limit is {_LONGEST_PROMPT}")
        task.prompt = body.prompt
    elif body.input is not None:
        task.input = _ids(body.input, limits)
    elif body.continue_from is not None:
        task.continue_from.CopyFrom(_reference(body.continue_from))


def _ids(ids: list[int], limits: Limits) -> bytes:
    if not ids:
        raise InvalidInput("input is empty; send at least one token")
    if len(ids) > limits.max_tokens_per_datum:
        raise InvalidInput(f"input has {len(ids)} tokens, the limit is {limits.max_tokens_per_datum}")
    for position, token in enumerate(ids):
        if not 0 <= token <= INT32_MAX:
            raise InvalidInput(f"input, position {position}: {token} is no token id")
    return np.array(ids, "<i4").tobytes()


def _reference(body: bodies.JobReference) -> pb.JobReference:
    if body.task_id is not None and body.index is not None:
        raise InvalidInput("continue_from: name the task by task_id or by index, not by both")
    parse_job_id(body.job_id)
    reference = pb.JobReference(job_id=body.job_id)
    if body.task_id is not None:
        reference.task_id = _short("continue_from: task_id", body.task_id, _LONGEST_ID)
    if body.index is not None:
        reference.index = whole("continue_from: index", body.index, 0, INT32_MAX)
    if body.sample_index is not None:
        reference.sample_index = whole("continue_from: sample_index", body.sample_index, 0, INT32_MAX)
    return reference


def _short(field: str, text: str, most: int) -> str:
    if len(text) > most:
        raise InvalidInput(f"{field} has {len(text)} characters, the limit is {most}")
    return text
