"""What the sampler double generates: hashes of (weights, all tokens so far, seed + index)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tinkermesh.v1 import types_pb2 as types

from services.common.datum_blocks import Datum, Float32, Int32
from services.sampler.prompt_cells import prompt_query
from services.sampler.text import TokenText
from tests.doubles import arithmetic
from tests.doubles.tokenizer import END, VOCABULARY, WordTokenizer

EOS = END
SENTINEL = -99999.0
TOKENIZER = WordTokenizer()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a stream is asked for beside the body; `goes_on`: what is held back is told by a decode leg."""

    seam_tokens: int = 0
    goes_on: bool = False


WHOLE = Asked()


def prompt_logprobs(weights: int, prompt: Int32) -> Float32:
    """float32 [len(prompt)], NaN first; bitwise what the trainer double answers for the same weights."""
    scores = np.full(len(prompt), np.nan, np.float32)
    if len(prompt) > 1:
        scores[1:] = arithmetic.logprobs(weights, Datum(prompt[:-1], prompt[1:, None], {}))[:, 0]
    return scores


@dataclass(slots=True)
class Step:
    """One token as it is generated; `finish` and the rest of the text come with the last one."""

    token: int
    logprob: np.float32
    text: str
    finish: str


def steps(weights: int, body: types.SampleBody, seed: int, index: int, asked: Asked = WHOLE) -> Iterator[Step]:
    """Stops at EOS, a stop id or the token that completes a stop text, which stay in the output, or at max_tokens.

    Every token depends on all before it and on nothing else that tells prompt from output: what is generated goes on
    where it was cut off when the prompt ends with it. Temperature 0 ignores the seed.
    """
    ids = np.frombuffer(body.prompt_tokens, "<i4")
    text = TokenText(TOKENIZER, body.stop.strings, ids[len(ids) - asked.seam_tokens :].tolist())
    stops = set() if body.stop.disabled else {EOS, *body.stop.token_ids}
    context, drawn = ids[-3:].tolist(), hashlib.blake2b(_key(weights, body, seed + index), digest_size=16)
    drawn.update(body.prompt_tokens)
    for left in range(body.max_tokens - 1, -1, -1):
        noise = drawn.digest()
        token = _spoken(context, int.from_bytes(noise[:8], "little"))
        context = [*context[-2:], token]
        drawn.update(token.to_bytes(4, "little"))
        told = text.push(token)
        finish = "stop" if token in stops or text.stopped else "" if left else "length"
        if finish and not (asked.goes_on and finish == "length"):
            told += text.flush()
        yield Step(token, _score(noise), told, finish)
        if finish:
            return


def _key(weights: int, body: types.SampleBody, seed: int) -> bytes:
    luck = (seed, body.temperature) if body.temperature else ("greedy",)
    return arithmetic.residue("sample", f"{weights:x}", *luck).to_bytes(16, "little")


def _score(noise: bytes) -> np.float32:
    return np.float32(-6.0 * int.from_bytes(noise[8:], "little") / 2**64 - 0.001)


_LEADS = (0xC3, 0xCC, 0xE4, 0xE6, 0xF0)  # of accents, combining marks, two ranges of CJK, emoji
_FIXED = {(0xF0,): 0x9F, (0xF0, 0x9F): 0x98}


def _spoken(context: Sequence[int], drawn: int) -> int:
    """`drawn` as a token, but that characters are whole: of one that has begun, its next byte."""
    for tail in (tuple(context[-size:]) for size in (3, 2, 1)):
        if tail in _FIXED:
            return _FIXED[tail]
        if _open(tail):
            return 128 + drawn // VOCABULARY % 64
    choice = drawn % VOCABULARY
    return _LEADS[choice % len(_LEADS)] if 128 <= choice < 256 else choice


def _open(tail: tuple[int, ...]) -> bool:
    """The beginning of a character that any byte of 128 to 191 goes on with."""
    if len(tail) == 2:
        return tail[0] in (0xE4, 0xE6) and 128 <= tail[1] < 192
    return tail == (0xF0, 0x9F, 0x98) or (len(tail) == 1 and tail[0] in _LEADS)


def sequence(weights: int, body: types.SampleBody, seed: int, index: int) -> types.SampledSequence:
    """All steps of one."""
    made = list(steps(weights, body, seed, index))
    return types.SampledSequence(
        tokens=np.array([step.token for step in made], "<i4").tobytes(),
        logprobs=np.array([step.logprob for step in made], "<f4").tobytes(),
        stopped=made[-1].finish == "stop",
        topk=topk(made, body.topk_sample_logprobs),
    )


def topk(made: Sequence[Step], k: int) -> types.TopkTable | None:
    if not k:
        return None
    return _table(np.array([step.token for step in made], "<i4"), np.array([step.logprob for step in made], "<f4"), k)


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
