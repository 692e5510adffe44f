"""A decoded body as one request to the scheduler. Raises InvalidInput whose text begins with the field's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinkermesh.v1 import completions_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.datum_blocks import ITEM_BYTES
from services.common.errors import InvalidInput
from services.gateway.openai.bodies import Chat, Completion, Sampling
from services.gateway.openai.prompts import chat_of, prompts_of
from services.gateway.settings import Limits
from services.gateway.validation.numbers import at_least, whole
from services.gateway.validation.sampling import MAX_STOP_CHARACTERS, top_p
from services.gateway.wire.json_body import INT32_MAX

DEFAULT_TOKENS = 16
"""Of a completion without max_tokens, as OpenAI has it."""
MAX_NAME = 1_024
MAX_ECHOED = 1 << 17
"""Token ids of prompts whose text is told: each comes from a sampler as bytes of its own, in one message."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the answer is to hold. `logprobs`: None = none, else how many alternatives of each token."""

    model: str
    per_prompt: int
    logprobs: int | None
    echo: bool
    token_ids: bool
    stream: bool
    usage: bool  # a last event of a stream tells it


def completion(body: Completion, limits: Limits) -> tuple[pb.GenerateRequest, Wish]:
    _neutral("suffix", body.suffix, None, "")
    _neutral("best_of", body.best_of, None, 1, body.n or 1)
    logprobs = None if body.logprobs is None else whole("logprobs", body.logprobs, 0, limits.max_topk_logprobs)
    if body.echo and logprobs is not None:
        raise InvalidInput("echo: logprobs of the prompt are not served here; leave out echo or logprobs")
    request, wish = _request(body, logprobs, limits, echo=bool(body.echo))
    request.prompts.extend(prompts_of(body))
    if len(request.prompts) * wish.per_prompt > limits.max_samples:
        raise InvalidInput(f"prompt: prompts times n are more than {limits.max_samples}; send fewer at once")
    echoed = sum(len(one.tokens) for one in request.prompts) // ITEM_BYTES if wish.echo else 0
    if echoed > MAX_ECHOED:
        raise InvalidInput(f"echo: {echoed} token ids are more than the {MAX_ECHOED} that are made text; leave it out")
    request.with_prompt_pieces = echoed > 0
    if body.max_tokens is None:
        request.default_tokens = DEFAULT_TOKENS
    else:
        request.max_tokens = whole("max_tokens", body.max_tokens, 1, INT32_MAX)
    return request, wish


def chat(body: Chat, limits: Limits) -> tuple[pb.GenerateRequest, Wish]:
    _neutral("response_format", None if body.response_format is None else body.response_format.type, None, "text")
    _neutral("modalities", body.modalities, None, [], ["text"])
    for name in ("functions", "function_call", "audio", "prediction", "web_search_options"):
        _neutral(name, getattr(body, name), None, [])
    _neutral("tool_choice", body.tool_choice, None, "none", "auto")
    request, wish = _request(body, _chat_logprobs(body, limits), limits, echo=False)
    request.prompts.append(chat_of(body))
    name, asked = ("max_completion_tokens", body.max_completion_tokens)
    if asked is None:
        name, asked = "max_tokens", body.max_tokens
    if asked is not None:
        request.max_tokens = whole(name, asked, 1, INT32_MAX)
    return request, wish


def _chat_logprobs(body: Chat, limits: Limits) -> int | None:
    if not body.logprobs:
        _neutral("top_logprobs", body.top_logprobs, None, 0, remedy="it needs logprobs to be true")
        return None
    return whole("top_logprobs", body.top_logprobs or 0, 0, limits.max_topk_logprobs)


def _request(body: Sampling, logprobs: int | None, limits: Limits, *, echo: bool) -> tuple[pb.GenerateRequest, Wish]:
    if not 1 <= len(body.model) <= MAX_NAME:
        raise InvalidInput(f"model: a name has 1 to {MAX_NAME} characters")
    _neutral("presence_penalty", body.presence_penalty, None, 0)
    _neutral("frequency_penalty", body.frequency_penalty, None, 0)
    _neutral("logit_bias", body.logit_bias, None, {})
    if body.stream_options is not None and not body.stream:
        raise InvalidInput("stream_options: they need stream to be true")
    request = pb.GenerateRequest(model=body.model, body=_sample(body, limits), with_pieces=logprobs is not None)
    request.body.topk_sample_logprobs = logprobs or 0
    request.at_the_end = not body.stream
    request.affinity = (body.prompt_cache_key or "")[:MAX_NAME]
    wish = Wish(
        model=body.model,
        per_prompt=request.body.num_samples,
        logprobs=logprobs,
        echo=echo,
        token_ids=bool(body.return_token_ids),
        stream=bool(body.stream),
        usage=body.stream_options is not None and bool(body.stream_options.include_usage),
    )
    return request, wish


def _sample(body: Sampling, limits: Limits) -> types.SampleBody:
    sample = types.SampleBody(
        num_samples=1 if body.n is None else whole("n", body.n, 1, limits.max_samples),
        stop=_stop(body, limits),
        temperature=1.0 if body.temperature is None else at_least("temperature", body.temperature, 0.0),
        top_p=1.0 if body.top_p is None else top_p(body.top_p),
        top_k=_top_k(body.top_k),
    )
    if body.seed is not None:
        sample.seed = body.seed
    return sample


def _neutral(name: str, value: Any, *neutral: Any, remedy: str = "it is not supported here; leave it out") -> None:
    if value not in neutral:
        raise InvalidInput(f"{name}: {remedy}")


def _top_k(value: int | None) -> int:
    """0 and -1 are what other servers take for off."""
    if value is not None and value < -1:
        raise InvalidInput(f"top_k: it must be -1 (off) or at least 1, not {value}")
    return value or -1


def _stop(body: Sampling, limits: Limits) -> types.StopCondition:
    """The end-of-text token stops in any case; an empty list adds nothing."""
    texts = [body.stop] if isinstance(body.stop, str) else body.stop or []
    ids = body.stop_token_ids or []
    if texts and ids:
        raise InvalidInput("stop_token_ids: they cannot be combined with stop; send one of them")
    if len(texts) + len(ids) > limits.max_stops:
        raise InvalidInput(f"stop: at most {limits.max_stops} entries")
    if any(not 1 <= len(text) <= MAX_STOP_CHARACTERS for text in texts):
        raise InvalidInput(f"stop: each text must have 1 to {MAX_STOP_CHARACTERS} characters")
    if any(one < 0 for one in ids):
        raise InvalidInput("stop_token_ids: a token id is outside the vocabulary")
    return types.StopCondition(strings=texts, token_ids=ids)
