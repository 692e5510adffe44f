"""Sample results on the wire: NaN is "not scored" in protobuf and null in JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.wire.v1 import wire_pb2 as wire

from services.common.errors import ContractViolation
from services.gateway.wire.render_prompt import alternatives_json, alternatives_protobuf, cells_json, cells_protobuf

MASK_LOGPROB = -99999.0


def sample_protobuf(result: types.SampleResult) -> bytes:
    """A serialized SampleResponse."""
    response = wire.SampleResponse(
        sequences=[_sequence(sequence) for sequence in result.sequences],
        prompt_cache_hit_tokens=result.prompt_cache_hit_tokens,
    )
    if result.HasField("prompt_logprobs"):
        response.prompt_logprobs = result.prompt_logprobs
    if result.HasField("topk_prompt_logprobs"):
        response.topk_prompt_logprobs.CopyFrom(_topk(result.topk_prompt_logprobs))
    if result.HasField("target_prompt_logprobs"):
        response.target_prompt_logprobs.CopyFrom(cells_protobuf(result.target_prompt_logprobs))
    if result.HasField("prompt_alt_tokens"):
        response.prompt_alt_tokens.CopyFrom(alternatives_protobuf(result.prompt_alt_tokens))
    return response.SerializeToString()


def sample_json(result: types.SampleResult) -> dict[str, Any]:
    """The same values as JSON; absent parts are null."""
    return {
        "type": "sample",
        "sequences": [_sequence_json(sequence) for sequence in result.sequences],
        "prompt_logprobs": _logprobs_json(result.prompt_logprobs) if result.HasField("prompt_logprobs") else None,
        "topk_prompt_logprobs": (
            _topk_json(result.topk_prompt_logprobs) if result.HasField("topk_prompt_logprobs") else None
        ),
        "target_prompt_logprobs": (
            cells_json(result.target_prompt_logprobs) if result.HasField("target_prompt_logprobs") else None
        ),
        "prompt_alt_tokens": (
            alternatives_json(result.prompt_alt_tokens) if result.HasField("prompt_alt_tokens") else None
        ),
        "prompt_cache_hit_tokens": result.prompt_cache_hit_tokens,
    }


def _sequence(sequence: types.SampledSequence) -> wire.SampledSequence:
    _check(sequence)
    reason = wire.STOP_REASON_STOP if sequence.stopped else wire.STOP_REASON_LENGTH
    rendered = wire.SampledSequence(stop_reason=reason, tokens=sequence.tokens, logprobs=sequence.logprobs)
    if sequence.HasField("topk"):
        rendered.topk_sampled_logprobs.CopyFrom(_topk(sequence.topk))
    return rendered


def _check(sequence: types.SampledSequence) -> None:
    if len(sequence.tokens) != len(sequence.logprobs) or len(sequence.tokens) % 4:
        raise ContractViolation("a sampled sequence does not have one logprob per token")


def _topk(table: types.TopkTable) -> wire.TopkLogprobs:
    return wire.TopkLogprobs(token_ids=table.token_ids, logprobs=table.logprobs, k=table.k, length=table.length)


def _sequence_json(sequence: types.SampledSequence) -> dict[str, Any]:
    _check(sequence)
    return {
        "stop_reason": "stop" if sequence.stopped else "length",
        "tokens": np.frombuffer(sequence.tokens, "<i4").tolist(),
        "logprobs": _logprobs_json(sequence.logprobs),
        "topk_logprobs": _topk_json(sequence.topk) if sequence.HasField("topk") else None,
    }


def _logprobs_json(data: bytes) -> list[float | None]:
    return [None if math.isnan(value) else value for value in np.frombuffer(data, "<f4").tolist()]


def _topk_json(table: types.TopkTable) -> list[list[tuple[int, float]] | None]:
    """One list of (token, logprob) per position; null where nothing was scored."""
    tokens = np.frombuffer(table.token_ids, "<i4").reshape(table.length, table.k).tolist()
    logprobs = np.frombuffer(table.logprobs, "<f4").reshape(table.length, table.k).tolist()
    rows = (
        [(token, value) for token, value in zip(*row, strict=True) if value > MASK_LOGPROB]
        for row in zip(tokens, logprobs, strict=True)
    )
    return [row or None for row in rows]
