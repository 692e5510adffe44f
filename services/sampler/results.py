"""From generated sequences to the SampleResult that is sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tinkermesh.v1.types_pb2 import SampleBody, SampledSequence, SampleResult, TopkTable

from services.common.datum_blocks import Float32
from services.common.errors import InvalidInput, ServerError, Unavailable
from services.sampler.ports import MASK_LOGPROB, GeneratedSequence, PromptAnswer, SequenceDelta, TopkRows
from services.sampler.prompt_cells import asked_cells

_ANSWERED = ("stop", "length")


def build_result(body: SampleBody, sequences: Sequence[GeneratedSequence]) -> SampleResult:
    """Raises Unavailable for an incomplete sequence: it never counts as a finished sample."""
    for sequence in sequences:
        check_sequence(sequence)
    first = sequences[0]
    result = SampleResult(
        sequences=[_sampled(sequence) for sequence in sequences], prompt_cache_hit_tokens=first.cached_tokens
    )
    skip = _unscored(body)
    if body.prompt_logprobs:
        result.prompt_logprobs = _prompt_scores(first, skip).tobytes()
    if body.topk_prompt_logprobs:
        result.topk_prompt_logprobs.CopyFrom(topk_table(_prompt_rows(first, skip)))
    if asked_cells(body):
        result.target_prompt_logprobs.layout.CopyFrom(body.target_prompt_layout)
        result.target_prompt_logprobs.logprobs = _answer(first).cells.astype("<f4").tobytes()
    if body.prompt_alt_tokens_k:
        result.prompt_alt_tokens.CopyFrom(topk_table(_answer(first).drawn))
    return result


def check_sequence(sequence: GeneratedSequence) -> None:
    _check_finish(sequence.finish)
    _check_lengths(sequence, least=1)
    scored = sequence.prompt_logprobs if sequence.prompt_logprobs is not None else np.zeros(0, np.float32)
    answered = [] if sequence.answer is None else [sequence.answer.cells, sequence.answer.drawn.logprobs]
    _check_finite(sequence.logprobs, scored[1:], *answered)


def check_delta(delta: SequenceDelta) -> None:
    """Raises as check_sequence."""
    if delta.finish:
        _check_finish(delta.finish)
    _check_lengths(delta, least=0)
    _check_finite(delta.logprobs)


def is_cut_off(delta: SequenceDelta) -> bool:
    """Whether the engine ended the sequence without an answer."""
    return bool(delta.finish) and delta.finish not in _ANSWERED


def _check_finish(finish: str) -> None:
    if finish not in _ANSWERED:
        raise Unavailable(f"stage generating: the engine ended a sequence with {finish!r}; retry")


def _check_lengths(made: GeneratedSequence | SequenceDelta, least: int) -> None:
    if len(made.tokens) < least or len(made.tokens) != len(made.logprobs):
        raise ServerError(
            f"stage generating: the engine gave {len(made.tokens)} tokens and {len(made.logprobs)} logprobs"
        )


def _check_finite(*scores: Float32) -> None:
    if not all(np.isfinite(values).all() for values in scores):
        raise InvalidInput("the adapter gives logits that are not finite; sample from an earlier checkpoint")


def _answer(sequence: GeneratedSequence) -> PromptAnswer:
    if sequence.answer is None:
        raise ServerError("stage scoring: the engine did not read the prompt's distributions")
    return sequence.answer


def _sampled(sequence: GeneratedSequence) -> SampledSequence:
    made = SampledSequence(
        tokens=sequence.tokens.astype("<i4").tobytes(),
        logprobs=sequence.logprobs.astype("<f4").tobytes(),
        stopped=sequence.finish == "stop",
    )
    if sequence.topk is not None:
        made.topk.CopyFrom(topk_table(sequence.topk))
    return made


def _unscored(body: SampleBody) -> int:
    """Leading prompt positions whose scores were not asked for."""
    if not body.HasField("prompt_logprobs_last_n"):
        return 0
    return max(0, len(body.prompt_tokens) // 4 - body.prompt_logprobs_last_n)


def _prompt_scores(sequence: GeneratedSequence, skip: int) -> Float32:
    if sequence.prompt_logprobs is None:
        raise ServerError("stage scoring: the engine gave no prompt logprobs")
    scores = sequence.prompt_logprobs.astype("<f4", copy=True)
    scores[:skip] = np.nan
    return scores


def _prompt_rows(sequence: GeneratedSequence, skip: int) -> TopkRows:
    if sequence.prompt_topk is None:
        raise ServerError("stage scoring: the engine gave no prompt alternatives")
    rows = TopkRows(sequence.prompt_topk.token_ids.copy(), sequence.prompt_topk.logprobs.copy())
    rows.token_ids[:skip] = 0
    rows.logprobs[:skip] = MASK_LOGPROB
    return rows


def topk_table(rows: TopkRows, count: int | None = None) -> TopkTable:
    """Of the first `count` rows, or all."""
    token_ids, logprobs = rows.token_ids[:count], rows.logprobs[:count]
    length, k = token_ids.shape
    return TopkTable(
        token_ids=token_ids.astype("<i4").tobytes(),
        logprobs=logprobs.astype("<f4").tobytes(),
        k=k,
        length=length,
    )
