"""What a sample with record_stability_info leaves behind for the losses that read it."""

from __future__ import annotations

import asyncio

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import ServerError
from services.scheduler.sampling.link import SamplerLink

ITEM_BYTES = 4
_NAN = b"\x00\x00\xc0\x7f"


async def records(
    link: SamplerLink, request: pb.SampleRequest, result: types.SampleResult, seconds: float
) -> list[types.SequenceRecord]:
    """One per sequence, or none when nobody asked. Raises the sampler's error."""
    if not request.body.record_stability_info:
        return []
    if _is_untempered(request.body):
        raw = [b""] * len(result.sequences)
    else:
        scoring = [_raw(link, request, index, one, seconds) for index, one in enumerate(result.sequences)]
        raw = list(await asyncio.gather(*scoring))
    return [
        types.SequenceRecord(
            tenant_id=request.cache_salt, tokens=one.tokens, logprobs=one.logprobs, raw_logprobs=untempered
        )
        for one, untempered in zip(result.sequences, raw, strict=True)
    ]


def _is_untempered(body: types.SampleBody) -> bool:
    """The distribution sampled from is the model's own."""
    return body.temperature == 1.0 and body.top_p == 1.0 and body.top_k < 1


async def _raw(
    link: SamplerLink, request: pb.SampleRequest, index: int, sequence: types.SampledSequence, seconds: float
) -> bytes:
    """The untempered log-probability of each sampled token: the sequence is scored as a prompt.

    A prompt must leave room for a token, so in a sequence that fills the context the last one stays unknown.
    """
    prompt = request.body.prompt_tokens + sequence.tokens
    room = len(prompt) // ITEM_BYTES < link.max_context
    body = types.SampleBody(
        prompt_tokens=prompt if room else prompt[:-ITEM_BYTES],
        num_samples=1,
        max_tokens=1,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        prompt_logprobs=True,
    )
    scoring = pb.SampleRequest(request_id=f"{request.request_id}.raw{index}", body=body, cache_salt=request.cache_salt)
    if request.HasField("adapter"):
        scoring.adapter.CopyFrom(request.adapter)
    scored = await link.sample(scoring, seconds)
    if len(scored.prompt_logprobs) != len(body.prompt_tokens):
        raise ServerError(f"the sampler scored {len(scored.prompt_logprobs)} bytes of {len(body.prompt_tokens)}")
    return scored.prompt_logprobs[len(request.body.prompt_tokens) :] + (b"" if room else _NAN)
