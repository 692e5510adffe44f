"""What the sampler double generates: hashes of (weights, prompt, seed, index)."""

from __future__ import annotations

import numpy as np
from tinkermesh.v1 import types_pb2 as types

from services.common.datum_blocks import Datum, Float32, Int32
from tests.doubles import arithmetic

VOCABULARY = 512
EOS = 0
SENTINEL = -99999.0


def prompt_logprobs(weights: int, prompt: Int32) -> Float32:
    """float32 [len(prompt)], NaN first; bitwise what the trainer double answers for the same weights."""
    scores = np.full(len(prompt), np.nan, np.float32)
    if len(prompt) > 1:
        scores[1:] = arithmetic.logprobs(weights, Datum(prompt[:-1], prompt[1:, None], {}))[:, 0]
    return scores


def sequence(weights: int, body: types.SampleBody, seed: int, index: int) -> types.SampledSequence:
    """Stops at EOS or a stop id, which stays in the output, or at max_tokens."""
    key = arithmetic.residue("sample", f"{weights:x}", body.prompt_tokens, seed + index, body.temperature)
    random = np.random.Generator(np.random.PCG64(key))
    tokens = random.integers(0, VOCABULARY, body.max_tokens).astype(np.int32)
    scores = (-6.0 * random.random(body.max_tokens, dtype=np.float32) - 0.001).astype(np.float32)
    stops = set(body.stop.token_ids) or ({EOS} if not body.stop.disabled else set())
    hits = np.flatnonzero(np.isin(tokens, list(stops)))
    end = int(hits[0]) + 1 if len(hits) else len(tokens)
    made = types.SampledSequence(
        tokens=tokens[:end].tobytes(), logprobs=scores[:end].tobytes(), stopped=bool(len(hits))
    )
    if body.topk_sample_logprobs:
        made.topk.CopyFrom(_table(tokens[:end], scores[:end], body.topk_sample_logprobs))
    return made


def result(weights: int, body: types.SampleBody, seed: int) -> types.SampleResult:
    prompt = np.frombuffer(body.prompt_tokens, "<i4")
    made = types.SampleResult(sequences=[sequence(weights, body, seed, n) for n in range(body.num_samples)])
    scores = prompt_logprobs(weights, prompt)
    if body.HasField("prompt_logprobs_last_n"):
        scores[: max(0, len(scores) - body.prompt_logprobs_last_n)] = np.nan
    if body.prompt_logprobs:
        made.prompt_logprobs = scores.tobytes()
    if body.topk_prompt_logprobs:
        table = _table(prompt, np.nan_to_num(scores, nan=SENTINEL), body.topk_prompt_logprobs)
        made.topk_prompt_logprobs.CopyFrom(table)
    return made


def _table(tokens: Int32, scores: Float32, k: int) -> types.TopkTable:
    """The token itself first, then its successors one nat apart each."""
    ids = (tokens[:, None] + np.arange(k)) % VOCABULARY
    values = np.where(scores[:, None] == SENTINEL, SENTINEL, scores[:, None] - np.arange(k))
    return types.TopkTable(
        token_ids=ids.astype("<i4").tobytes(), logprobs=values.astype("<f4").tobytes(), k=k, length=len(tokens)
    )
