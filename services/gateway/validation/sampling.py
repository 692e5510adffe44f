"""asample's content against the pool that serves the sampler."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.gateway.settings import Limits
from services.gateway.validation.numbers import above, at_least, whole
from services.gateway.validation.prompt_cells import prompt_cells
from services.gateway.wire import bodies
from services.gateway.wire.batch_json import tokens_of
from services.gateway.wire.json_body import INT32_MAX, INT64_MAX

MAX_STOP_CHARACTERS = 1024


class Sampler(NamedTuple):
    """What a sampling session was made from; model_path "" = the base model."""

    base_model: str
    model_path: str
    facts: types.PoolFacts


def sample(body: bodies.Sample, sampler: Sampler, limits: Limits) -> types.SampleBody:
    """Raises InvalidInput naming the field."""
    _check_target(body, sampler)
    params = body.sampling_params
    prompt = _prompt(body, sampler.facts)
    length = len(prompt) // 4
    whole("num_samples", body.num_samples, 1, limits.max_samples)
    message = types.SampleBody(
        prompt_tokens=prompt,
        num_samples=body.num_samples,
        max_tokens=_max_tokens(params.max_tokens, length, sampler.facts.max_context, scored=bool(body.prompt_logprobs)),
        stop=stop_condition(params.stop, sampler.facts.vocab_size, limits),
        temperature=at_least("temperature", params.temperature, 0.0),
        top_p=top_p(params.top_p),
        top_k=top_k(params.top_k),
        prompt_logprobs=bool(body.prompt_logprobs),
        topk_prompt_logprobs=whole("topk_prompt_logprobs", body.topk_prompt_logprobs, 0, limits.max_topk_logprobs),
        topk_sample_logprobs=whole("topk_sample_logprobs", body.topk_sample_logprobs, 0, limits.max_topk_logprobs),
        record_stability_info=body.record_stability_info,
        prompt_alt_tokens_k=whole("prompt_alt_tokens_k", body.prompt_alt_tokens_k, 0, limits.max_prompt_draws),
    )
    if params.seed is not None:
        message.seed = whole("seed", params.seed, -INT64_MAX - 1, INT64_MAX)
    if body.prompt_logprobs_last_n is not None:
        message.prompt_logprobs_last_n = _last_n(body, length)
    _read_prompt(body, message, length, sampler.facts.vocab_size, limits)
    return message


def _check_target(body: bodies.Sample, sampler: Sampler) -> None:
    if body.model_path is not None and body.model_path != sampler.model_path:
        raise InvalidInput(
            f"model_path {body.model_path[:300]!r} is not what this sampling session was made from "
            f"({sampler.model_path or sampler.base_model}); leave it out or create another session"
        )
    if body.base_model is not None and body.base_model.partition(":")[0] != sampler.base_model:
        raise InvalidInput(f"base_model {body.base_model[:200]!r} is not this session's {sampler.base_model}")


def _last_n(body: bodies.Sample, length: int) -> int:
    if not body.prompt_logprobs:
        raise InvalidInput("prompt_logprobs_last_n needs prompt_logprobs")
    return whole("prompt_logprobs_last_n", body.prompt_logprobs_last_n or 0, 1, max(length - 1, 1))


def _read_prompt(body: bodies.Sample, message: types.SampleBody, length: int, vocab: int, limits: Limits) -> None:
    """What is asked of the distributions along the prompt, within the bound of its size."""
    if (length - 1) * body.prompt_alt_tokens_k > limits.max_prompt_cells:
        raise InvalidInput(
            f"prompt_alt_tokens_k {body.prompt_alt_tokens_k} over {length} tokens exceeds "
            f"the limit of {limits.max_prompt_cells} draws per request"
        )
    if body.target_prompt_logprobs is not None:
        cells = prompt_cells(body.target_prompt_logprobs, length, vocab, limits.max_prompt_cells)
        message.target_prompt_tokens = cells.tokens
        message.target_prompt_layout.CopyFrom(cells.layout)


def _prompt(body: bodies.Sample, facts: types.PoolFacts) -> bytes:
    try:
        tokens = tokens_of(body.prompt)
    except InvalidInput as error:
        raise InvalidInput(f"prompt: {error.message}") from error
    ids = np.frombuffer(tokens, "<i4")
    if ids.size == 0:
        raise InvalidInput("prompt is empty; send at least one token")
    if int(ids.min()) < 0 or int(ids.max()) >= facts.vocab_size:
        position = int(np.flatnonzero((ids < 0) | (ids >= facts.vocab_size))[0])
        raise InvalidInput(f"prompt, position {position}: token {ids[position]} is outside [0, {facts.vocab_size})")
    return tokens


def _max_tokens(asked: int | None, prompt: int, context: int, *, scored: bool) -> int:
    room = context - prompt
    if room == 0 and scored and asked in (None, 1):
        return 1  # a full context may be scored; its one further token means nothing
    if room < 1:
        raise InvalidInput(f"prompt has {prompt} tokens; the context of {context} leaves no room for a new one")
    if asked is None:
        return room
    if asked < 1:
        raise InvalidInput(f"max_tokens must be >= 1, not {asked}")
    if asked > room:
        raise InvalidInput(f"prompt of {prompt} tokens + max_tokens {asked} exceeds the context of {context}")
    return asked


def top_p(value: float) -> float:
    if above("top_p", value, 0.0) > 1.0:
        raise InvalidInput(f"top_p must lie in (0, 1], not {value:g}")
    return value


def top_k(value: int) -> int:
    if value != -1 and not 1 <= value <= INT32_MAX:
        raise InvalidInput(f"top_k must be -1 (off) or lie in [1, {INT32_MAX}], not {value}")
    return value


def stop_condition(stop: str | list[str | int] | None, vocab: int, limits: Limits) -> types.StopCondition:
    """None: the EOS token stops. []: nothing stops. A text, texts or token ids: those stop."""
    if stop is None:
        return types.StopCondition()
    items = [stop] if isinstance(stop, str) else stop
    if not items:
        return types.StopCondition(disabled=True)
    if len(items) > limits.max_stops:
        raise InvalidInput(f"stop has {len(items)} entries, the limit is {limits.max_stops}")
    strings = [item for item in items if isinstance(item, str)]
    tokens = [item for item in items if not isinstance(item, str)]
    if strings and tokens:
        raise InvalidInput("stop mixes texts and token ids; send one kind")
    if any(not 1 <= len(text) <= MAX_STOP_CHARACTERS for text in strings):
        raise InvalidInput(f"each stop text must have 1 to {MAX_STOP_CHARACTERS} characters")
    if any(not 0 <= token < vocab for token in tokens):
        raise InvalidInput(f"each stop token must lie in [0, {vocab})")
    return types.StopCondition(strings=strings, token_ids=tokens)
