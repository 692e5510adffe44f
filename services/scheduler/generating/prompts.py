"""A request's prompts as token ids, and what may be generated after each."""

from __future__ import annotations

import numpy as np
from tinkermesh.v1 import completions_pb2 as pb
from tinkermesh.v1 import sampler_pb2
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import ContextExceeded, InvalidInput
from services.scheduler.sampling.generation import Generations

TOKENIZE_SECONDS = 30.0
ITEM_BYTES = 4
_NAMES = {"text": "prompt", "chat_json": "messages"}


async def tokens_of(generations: Generations, pool: str, prompt: pb.Prompt) -> bytes:
    """int32 little-endian, by the tokenizer and the chat template of the pool's samplers.

    Raises InvalidInput, Unavailable.
    """
    if prompt.HasField("tokens"):
        return prompt.tokens
    if prompt.HasField("chat_json"):
        asked = sampler_pb2.TokenizeRequest(chat_json=prompt.chat_json)
    else:
        asked = sampler_pb2.TokenizeRequest(text=prompt.text, add_special_tokens=prompt.add_special_tokens)
    try:
        return await generations.tokenize(pool, asked, TOKENIZE_SECONDS)
    except InvalidInput as error:
        raise InvalidInput(_by_the_clients_names(error.message)) from error


def _by_the_clients_names(message: str) -> str:
    """A sampler says `text` and `chat_json` of what the client calls otherwise."""
    name, _, rest = message.partition(" ")
    return f"{_NAMES[name]}: it {rest}" if name in _NAMES else message


def sample_body(request: pb.GenerateRequest, tokens: bytes, facts: types.PoolFacts) -> types.SampleBody:
    """What is sampled after `tokens`. Raises InvalidInput, ContextExceeded."""
    field = "messages" if request.prompts[0].WhichOneof("input") == "chat_json" else "prompt"
    ids = np.frombuffer(tokens, "<i4")
    if not ids.size:
        raise InvalidInput(f"{field}: it has no tokens; send at least one")
    if int(ids.min()) < 0 or int(ids.max()) >= facts.vocab_size:
        outside = int(np.flatnonzero((ids < 0) | (ids >= facts.vocab_size))[0])
        raise InvalidInput(f"{field}: token {ids[outside]} at position {outside} is outside [0, {facts.vocab_size})")
    body = types.SampleBody()
    body.CopyFrom(request.body)
    body.prompt_tokens = tokens
    body.max_tokens = _max_tokens(request, field, ids.size, facts.max_context)
    return body


def _max_tokens(request: pb.GenerateRequest, field: str, prompt: int, context: int) -> int:
    room = context - prompt
    if room < 1:
        raise ContextExceeded(f"{field}: it has {prompt} tokens; the context of {context} leaves no room for a new one")
    if request.HasField("max_tokens"):
        if request.max_tokens > room:
            raise ContextExceeded(
                f"max_tokens: {request.max_tokens} after a prompt of {prompt} tokens exceed the context of {context}"
            )
        return request.max_tokens
    return min(room, request.default_tokens) if request.HasField("default_tokens") else room


def cost(bodies: list[types.SampleBody]) -> int:
    """Tokens they may take at most: each prompt once, and every sequence in full."""
    return sum(len(body.prompt_tokens) // ITEM_BYTES + body.num_samples * body.max_tokens for body in bodies)
