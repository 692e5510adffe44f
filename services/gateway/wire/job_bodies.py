"""Bodies of the jobs routes: our own protocol, one shape for a task wherever it stands."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from services.gateway.wire.json_body import Body, Counter


class JobReference(Body):
    job_id: str
    task_id: str | None = None
    index: Counter | None = None
    sample_index: Counter | None = None


class JobTask(Body):
    """`lora_path` null is the base model; left out, it is inherited."""

    prompt: str | None = None
    input: list[int] | None = None
    continue_from: JobReference | None = None
    task_id: str = ""
    n: int = 1
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str | int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = -1
    lora_path: str | UnsetType | None = UNSET


class Job(JobTask):
    """A job of `tasks`, or of the one task whose fields stand here."""

    name: str = ""
    base_model: str = ""
    tasks: list[JobTask] | None = None
