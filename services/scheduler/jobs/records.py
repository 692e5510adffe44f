"""What lies in the files of a job. Every field that came later has a default, so older files load."""

from __future__ import annotations

import base64
from typing import Literal

import msgspec
from tinkermesh.v1 import types_pb2 as types

TOKEN_BYTES = 4


class Stop(msgspec.Struct, frozen=True, omit_defaults=True):
    disabled: bool = False
    strings: list[str] = []
    token_ids: list[int] = []


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task continues: so many tokens of its source as it stood then."""

    job_id: str = ""
    task_id: str = ""
    index: int = 0
    sample_index: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    source_state: str = ""


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of tasks.jsonl. Its input is `prompt`, or in its file `input_<index>.json`, or `input` here.

    `error`: why it failed before it could be queued. `input` is base64 of int32 little-endian ids.
    """

    task_id: str = ""
    prompt: str | None = None
    input: str | None = None
    origin: Origin | None = None
    n: int = 1
    max_tokens: int | None = None
    seed: int | None = None
    stop: Stop = Stop()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    lora_path: str | None = None
    adapter_name: str = ""
    adapter_path: str = ""
    error: str = ""

    @property
    def ids(self) -> bytes | None:
        """int32 little-endian, None when they are not in this line."""
        return None if self.input is None else base64.b64decode(self.input)

    @property
    def adapter(self) -> types.AdapterRef | None:
        return types.AdapterRef(name=self.adapter_name, path=self.adapter_path) if self.adapter_name else None


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """job.json. `tasks` and `state`: written by releases that had no tasks.jsonl."""

    job_id: str
    tenant_id: str
    base_model: str = ""
    name: str = ""
    created_unix_ms: int = 0
    count: int = 0
    fingerprint: str = ""
    tasks: list[Task] = []
    state: str = ""


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """input_<index>.json: what a task's text came out as, or what a continuation was composed of."""

    ids: list[int]
    origin: Origin | None = None


class Segment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens that one attempt generated, behind `start` earlier ones."""

    start: int
    tokens: int
    samplers: list[str] = []


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True):
    continued_from: Origin | None = None
    segments: list[Segment] = []


class Sample(msgspec.Struct, frozen=True):
    """One sequence; logprobs one-to-one with ids. `finish_reason`: stop, length, cancelled or error."""

    output_text: str = ""
    output_ids: list[int] = []
    output_token_logprobs: list[float] = []
    finish_reason: str = ""
    sample_index: int = 0
    provenance: Provenance = Provenance()


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    total_tokens: int = 0


class Failure(msgspec.Struct, frozen=True):
    message: str
    category: Literal["user", "server"] = "server"


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """result_<index>.<term>.json, and what the results route answers.

    A task with one sample has its fields here, one with several has them in `samples`.
    """

    task_id: str = ""
    index: int = 0
    state: str = ""
    output_text: str | None = None
    output_ids: list[int] | None = None
    output_token_logprobs: list[float] | None = None
    finish_reason: str | None = None
    samples: list[Sample] | None = None
    usage: Usage | None = None
    provenance: Provenance | None = None
    error: Failure | None = None

    def outputs(self) -> list[list[int]]:
        """The generated ids of each sample."""
        if self.samples is not None:
            return [sample.output_ids for sample in self.samples]
        return [self.output_ids or []]


def task_name(task: Task, index: int) -> str:
    return task.task_id or f"task-{index}"


def result_of(task: Task, index: int, state: str, samples: list[Sample], usage: Usage, error: Failure | None) -> Result:
    """The one shape of a settled task, whatever became of it."""
    common = {"task_id": task_name(task, index), "index": index, "state": state, "usage": usage, "error": error}
    if task.n > 1:
        return Result(**common, samples=samples)  # type: ignore[arg-type]
    one = samples[0] if samples else Sample()
    return Result(
        **common,  # type: ignore[arg-type]
        output_text=one.output_text,
        output_ids=one.output_ids,
        output_token_logprobs=one.output_token_logprobs,
        finish_reason=one.finish_reason or None,
        provenance=one.provenance if one.provenance != Provenance() else None,
    )
