"""The two legs of one request under prefill/decode disaggregation: pure.

The prefill leg is the request with max_tokens 1, for all sequences at once: they share one pass over the prompt. Each
sequence's decode leg goes on from the prompt and that token, so that its first step computes one position.
"""

from __future__ import annotations

from hashlib import blake2b

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

SEED_MASK = (1 << 63) - 1


def is_whole(body: types.SampleBody) -> bool:
    """Such a request has no decode leg: one token, or something about the whole prompt, which a sampler that computes
    it answers alone."""
    return body.max_tokens <= 1 or asks_about_prompt(body)


def asks_about_prompt(body: types.SampleBody) -> bool:
    return bool(
        body.prompt_logprobs
        or body.topk_prompt_logprobs
        or body.prompt_alt_tokens_k
        or body.HasField("target_prompt_layout")
    )


def prefill_leg(request: pb.SampleStreamRequest, attempt: int) -> pb.SampleStreamRequest:
    """Everything that decides what the first token is stays as it was asked for."""
    leg = pb.SampleStreamRequest()
    leg.CopyFrom(request)
    leg.sample.request_id = f"{request.sample.request_id}.p{attempt}"
    leg.sample.leg = pb.LEG_PREFILL
    leg.sample.body.max_tokens = 1
    return leg


def decode_leg(request: pb.SampleStreamRequest, attempt: int, sequence: int, token: bytes) -> pb.SampleStreamRequest:
    """`token`: int32 little-endian, the prefill leg's. Its id names the token: whoever repeats the flow after this
    process joins a leg that goes on from the same one, and no other."""
    leg = pb.SampleStreamRequest()
    leg.CopyFrom(request)
    number = int.from_bytes(token, "little")
    leg.sample.request_id = f"{request.sample.request_id}.d{attempt}.{sequence}.{number}"
    leg.sample.leg = pb.LEG_DECODE
    body = leg.sample.body
    body.prompt_tokens += token
    body.num_samples = 1
    body.max_tokens -= 1
    if body.HasField("seed"):
        body.seed = decode_seed(body.seed + sequence)
    leg.seam_tokens += 1
    return leg


def decode_seed(seed: int) -> int:
    """A sampler draws the first token of a request with the first numbers its seed gives. With the same seed the
    decode leg would draw its first token with the numbers that drew the prefill leg's, and depend on it. So it has
    another one, which depends on nothing but the seed: a repeat gives the same sequence, though not the one that a
    single sampler would have drawn.
    """
    return int.from_bytes(blake2b(f"decode {seed & SEED_MASK}".encode(), digest_size=8).digest(), "little") & SEED_MASK
