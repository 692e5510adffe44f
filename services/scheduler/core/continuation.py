"""How a task is made from an earlier one: which one is meant, what is inherited, its first tokens. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

SHOWN = 20
"""Candidates that a refusal lists."""


class BadReference(Exception):
    """A reference that names nothing, or more than one thing; the text lists the candidates."""


@dataclass(frozen=True, slots=True)
class Reference:
    """`task_id` "" and `index` None = not given, as `sample_index` None."""

    task_id: str = ""
    index: int | None = None
    sample_index: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """None = left out by who asks; a value counts, whatever it is."""

    temperature: float | None = None
    top_p: float | None = None
    lora_path: str | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a task samples with; `lora_path` "" = the base model."""

    temperature: float = 1.0
    top_p: float = 1.0
    lora_path: str = ""


def chosen(asked: Choice, source: Sampling | None = None) -> Sampling:
    """What is given explicitly wins, also 0 and the base model; the rest is the source's, or the default."""
    held = source or Sampling()
    return Sampling(
        temperature=held.temperature if asked.temperature is None else asked.temperature,
        top_p=held.top_p if asked.top_p is None else asked.top_p,
        lora_path=held.lora_path if asked.lora_path is None else asked.lora_path,
    )


def find_task(reference: Reference, job_id: str, task_ids: Sequence[str]) -> int:
    """The index of the task that is meant. Raises BadReference listing the candidates."""
    count = len(task_ids)
    if reference.index is not None:
        if reference.index >= count:
            raise BadReference(f"index {reference.index} is not in {job_id}, which has {_tasks(task_ids)}")
        return reference.index
    if reference.task_id:
        found = [index for index, name in enumerate(task_ids) if name == reference.task_id]
        if len(found) != 1:
            raise BadReference(f"task_id {reference.task_id[:100]!r} is not in {job_id}, which has {_tasks(task_ids)}")
        return found[0]
    if count != 1:
        raise BadReference(f"{job_id} has several tasks: name one by task_id or index; it has {_tasks(task_ids)}")
    return 0


def find_sample(reference: Reference, task: str, samples: int) -> int:
    """The sample that is meant. Raises BadReference listing the candidates."""
    known = f"{task} has sample_index 0 to {samples - 1}" if samples > 1 else f"{task} has sample_index 0 only"
    if reference.sample_index is None:
        if samples > 1:
            raise BadReference(f"{task} has several samples: give a sample_index; {known}")
        return 0
    if reference.sample_index >= samples:
        raise BadReference(f"sample_index {reference.sample_index} does not exist: {known}")
    return reference.sample_index


def composed(source_input: bytes, source_output: bytes) -> bytes:
    """int32 little-endian ids of the source's input and then of what it generated: nothing is decoded on the way."""
    return source_input + source_output


def segment_seed(seed: int, sample: int, already: int) -> int:
    """The seed of a sample that goes on after `already` tokens: its own at the beginning.

    An engine starts its random numbers anew for each request, so going on with the same seed would draw the
    numbers of the first tokens again.
    """
    if already == 0:
        return seed + sample
    digest = hashlib.blake2b(f"{seed}:{sample}:{already}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def room(context: int, prompt: int, max_tokens: int | None) -> int:
    """Tokens that may be generated. Raises ValueError with the text to show when they do not fit."""
    left = context - prompt
    if left < 1:
        raise ValueError(f"the input of {prompt} tokens leaves no room in the context of {context}")
    if max_tokens is None:
        return left
    if max_tokens > left:
        raise ValueError(
            f"input of {prompt} tokens + max_tokens {max_tokens} exceeds the context of {context}; "
            f"ask for at most {left}"
        )
    return max_tokens


def _tasks(task_ids: Sequence[str]) -> str:
    shown = ", ".join(f"{index} ({name[:60]!r})" for index, name in enumerate(task_ids[:SHOWN]))
    more = f" and {len(task_ids) - SHOWN} more" if len(task_ids) > SHOWN else ""
    return f"{shown}{more}"
