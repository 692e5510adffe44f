"""From a SampleBody to the sequences the engine generates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tinkermesh.v1.sampler_pb2 import LEG_DECODE, LEG_PREFILL, LEG_WHOLE
from tinkermesh.v1.types_pb2 import PoolFacts, SampleBody

from services.common.errors import InvalidInput
from services.sampler.kv_connector.leg import Part
from services.sampler.ports import EngineAdapter, SequenceRequest
from services.sampler.prompt_cells import asked_cells, check_cells, prompt_query

_SEED_MASK = (1 << 63) - 1
_PARTS: dict[int, Part] = {LEG_PREFILL: Part.PREFILL, LEG_DECODE: Part.DECODE}


@dataclass(frozen=True, slots=True)
class Limits:
    vocab_size: int
    max_context: int
    max_topk: int
    max_cells: int = 1 << 17
    """Cells of one table over a prompt: named tokens, or draws."""

    @classmethod
    def of(cls, facts: PoolFacts, max_topk: int) -> Limits:
        return cls(facts.vocab_size, facts.max_context, max_topk)


def plan_sequences(
    request_id: str,
    body: SampleBody,
    adapter: EngineAdapter | None,
    limits: Limits,
    cache_salt: str = "",
    leg: int = LEG_WHOLE,
) -> list[SequenceRequest]:
    """n independent sequences with seeds s, s+1, …; only the first scores the prompt.

    Raises InvalidInput naming the field.
    """
    check_body(body, limits)
    prompt = np.frombuffer(body.prompt_tokens, "<i4").tolist()
    query = prompt_query(body)
    return [
        SequenceRequest(
            sequence_id=f"{request_id}/{index}",
            adapter=adapter,
            prompt=prompt,
            max_tokens=min(body.max_tokens, max(1, limits.max_context - len(prompt))),
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            seed=(body.seed + index) & _SEED_MASK if body.HasField("seed") else None,
            stop_strings=tuple(body.stop.strings),
            stop_token_ids=tuple(body.stop.token_ids),
            ignore_eos=body.stop.disabled,
            topk=body.topk_sample_logprobs,
            prompt_topk=_prompt_topk(body) if index == 0 else None,
            cache_salt=cache_salt,
            query=query if index == 0 else None,
            leg=_PARTS.get(leg),
        )
        for index in range(body.num_samples)
    ]


def _prompt_topk(body: SampleBody) -> int | None:
    scored = body.prompt_logprobs or body.topk_prompt_logprobs or asked_cells(body) or body.prompt_alt_tokens_k
    return body.topk_prompt_logprobs if scored else None


def check_body(body: SampleBody, limits: Limits) -> None:
    """Raises InvalidInput naming the field."""
    _check_prompt(body.prompt_tokens, limits)
    if body.num_samples < 1:
        raise InvalidInput("num_samples must be at least 1")
    if body.max_tokens < 1:
        raise InvalidInput("max_tokens must be at least 1")
    _check_distribution(body)
    _check_stop(body, limits)
    for field in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        if (value := getattr(body, field)) > limits.max_topk:
            raise InvalidInput(f"{field} is {value}; this sampler answers at most {limits.max_topk}")
    check_cells(body, limits.vocab_size, limits.max_cells)


def _check_prompt(tokens: bytes, limits: Limits) -> None:
    if not tokens or len(tokens) % 4:
        raise InvalidInput(f"prompt_tokens has {len(tokens)} bytes; it must hold one or more int32 tokens")
    prompt = np.frombuffer(tokens, "<i4")
    if len(prompt) > limits.max_context:
        raise InvalidInput(f"the prompt has {len(prompt)} tokens; this model takes at most {limits.max_context}")
    outside = np.flatnonzero((prompt < 0) | (prompt >= limits.vocab_size))
    if len(outside):
        index = int(outside[0])
        raise InvalidInput(
            f"prompt token {prompt[index]} at position {index} is outside the vocabulary of {limits.vocab_size}"
        )


def _check_distribution(body: SampleBody) -> None:
    if not (math.isfinite(body.temperature) and body.temperature >= 0):
        raise InvalidInput(f"temperature is {body.temperature}; it must be a number of at least 0")
    if not 0 < body.top_p <= 1:
        raise InvalidInput(f"top_p is {body.top_p}; it must be above 0 and at most 1")
    if body.top_k != -1 and body.top_k < 1:
        raise InvalidInput(f"top_k is {body.top_k}; it must be -1 (off) or at least 1")


def _check_stop(body: SampleBody, limits: Limits) -> None:
    stop = body.stop
    if bool(stop.strings) + bool(stop.token_ids) + stop.disabled > 1:
        raise InvalidInput("stop mixes strings, token ids and []; use one of them")
    if any(not text for text in stop.strings):
        raise InvalidInput("stop holds an empty string")
    for token in stop.token_ids:
        if token >= limits.vocab_size:
            raise InvalidInput(f"stop token {token} is outside the vocabulary of {limits.vocab_size}")
