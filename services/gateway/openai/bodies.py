"""Bodies of /completions and /chat/completions. docs/openai.md lists the fields and what becomes of them.

What would change the answer and is not supported here is refused unless it is neutral (`checks.py`);
what never changes it is read and dropped.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from services.gateway.wire.json_body import INT32_MAX, INT64_MAX

Seed = Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
Small = Annotated[int, Meta(ge=-INT32_MAX - 1, le=INT32_MAX)]
NOTHING = Raw(b"null")


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both bodies have."""

    model: str
    max_tokens: Small | None = None
    n: Small | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Small | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Small] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    # Neutral values only.
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    # Dropped.
    metadata: Raw = NOTHING
    store: Raw = NOTHING
    service_tier: Raw = NOTHING
    safety_identifier: Raw = NOTHING
    prompt_cache_retention: Raw = NOTHING


class Completion(Sampling):
    prompt: Raw
    logprobs: Small | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    best_of: Small | None = None  # neutral values only
    suffix: str | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    type: str


class Chat(Sampling):
    messages: list[dict[str, Any]]
    max_completion_tokens: Small | None = None
    logprobs: bool | None = None
    top_logprobs: Small | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Neutral values only.
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    # Dropped.
    parallel_tool_calls: Raw = NOTHING
    reasoning_effort: Raw = NOTHING
    verbosity: Raw = NOTHING


FIELDS = frozenset(Completion.__struct_encode_fields__) | frozenset(Chat.__struct_encode_fields__)
