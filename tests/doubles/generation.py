"""What the sampler double generates: hashes of (weights, prompt, seed, index)."""

from __future__ import annotations

import numpy as np
from tinkermesh.v1 import types_pb2 as types

from services.common.datum_blocks import Datum, Float32, Int32
from services.sampler.prompt_cells import prompt_query
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
    """Stops at EOS, a stop id or the token that completes a stop text, which stay in the output, or at max_tokens.

    As text, token n is the character with that code point.
    """
    key = arithmetic.residue("sample", f"{weights:x}", body.prompt_tokens, seed + index, body.temperature)
    random = np.random.Generator(np.random.PCG64(key))
    tokens = random.integers(0, VOCABULARY, body.max_tokens).astype(np.int32)
    scores = (-6.0 * random.random(body.max_tokens, dtype=np.float32) - 0.001).astype(np.float32)
    stops = set(body.stop.token_ids) or ({EOS} if not body.stop.disabled else set())
    hits = [int(hit) + 1 for hit in np.flatnonzero(np.isin(tokens, list(stops)))[:1]]
    text = "".join(map(chr, tokens.tolist()))
    hits += [text.index(stop) + len(stop) for stop in body.stop.strings if stop in text]
    end = min(hits, default=len(tokens))
    made = types.SampledSequence(tokens=tokens[:end].tobytes(), logprobs=scores[:end].tobytes(), stopped=bool(hits))
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
    if body.HasField("target_prompt_layout"):
        made.target_prompt_logprobs.layout.CopyFrom(body.target_prompt_layout)
        made.target_prompt_logprobs.logprobs = _cells(weights, body).tobytes()
    if body.prompt_alt_tokens_k:
        made.prompt_alt_tokens.CopyFrom(_draws(weights, body, seed))
    return made


def cell(weights: int, prompt: bytes, row: int, token: int) -> float:
    """The logprob of `token` after the first row + 1 prompt tokens."""
    return -8.0 * (arithmetic.residue("cell", f"{weights:x}", prompt, row, token) % 10_000_019) / 10_000_019 - 0.001


def _cells(weights: int, body: types.SampleBody) -> Float32:
    query = prompt_query(body)
    pairs = zip(query.rows.tolist(), query.tokens.tolist(), strict=True) if query is not None else ()
    return np.array([cell(weights, body.prompt_tokens, row, t) if t >= 0 else 0.0 for row, t in pairs], "<f4")


def _draws(weights: int, body: types.SampleBody, seed: int) -> types.TopkTable:
    rows, k = len(body.prompt_tokens) // 4 - 1, body.prompt_alt_tokens_k
    key = arithmetic.residue("draws", f"{weights:x}", body.prompt_tokens, seed, body.temperature)
    tokens = np.random.Generator(np.random.PCG64(key)).integers(0, VOCABULARY, (rows, k)).astype("<i4")
    scores = [cell(weights, body.prompt_tokens, row, int(t)) for row in range(rows) for t in tokens[row]]
    return types.TopkTable(token_ids=tokens.tobytes(), logprobs=np.array(scores, "<f4").tobytes(), k=k, length=rows)


def _table(tokens: Int32, scores: Float32, k: int) -> types.TopkTable:
    """The token itself first, then its successors one nat apart each."""
    ids = np.where(scores[:, None] == SENTINEL, 0, (tokens[:, None] + np.arange(k)) % VOCABULARY)
    values = np.where(scores[:, None] == SENTINEL, SENTINEL, scores[:, None] - np.arange(k))
    return types.TopkTable(
        token_ids=ids.astype("<i4").tobytes(), logprobs=values.astype("<f4").tobytes(), k=k, length=len(tokens)
    )
