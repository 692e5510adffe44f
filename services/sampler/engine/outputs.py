"""vLLM's outputs of a request as arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from vllm.logprobs import FlatLogprobs
from vllm.outputs import RequestOutput

from services.common.datum_blocks import Float32
from services.common.errors import ServerError
from services.sampler.engine.prompt_reading import Reading
from services.sampler.ports import MASK_LOGPROB, GeneratedSequence, SequenceDelta, SequenceRequest, TopkRows


class Finished(NamedTuple):
    """An output, with what was read of the prompt once it is the last one."""

    output: RequestOutput
    reading: Reading | None


def sequence_delta(request: SequenceRequest, output: RequestOutput) -> SequenceDelta:
    completion = output.outputs[0]
    scores = _flat(completion.logprobs, "logprobs")
    return SequenceDelta(
        tokens=np.asarray(completion.token_ids, np.int32),
        logprobs=chosen(scores),
        finish=str(completion.finish_reason) if output.finished else "",
        topk=alternatives(scores, request.topk) if request.topk else None,
        cached_tokens=output.num_cached_tokens or 0,
    )


def generated_sequence(request: SequenceRequest, finished: Finished) -> GeneratedSequence:
    output, reading = finished
    completion = output.outputs[0]
    scores = _flat(completion.logprobs, "logprobs")
    k = request.prompt_topk
    prompt_scores = None if k is None else _flat(output.prompt_logprobs, "prompt_logprobs")
    return GeneratedSequence(
        tokens=np.asarray(completion.token_ids, np.int32),
        logprobs=chosen(scores),
        finish=str(completion.finish_reason),
        topk=alternatives(scores, request.topk) if request.topk else None,
        prompt_logprobs=None if prompt_scores is None else chosen(prompt_scores),
        prompt_topk=alternatives(prompt_scores, k) if prompt_scores is not None and k else None,
        cached_tokens=output.num_cached_tokens or 0,
        answer=None if reading is None else reading.answer,
    )


def _flat(value: object, what: str) -> FlatLogprobs:
    if not isinstance(value, FlatLogprobs):
        raise ServerError(f"stage generating: the engine gave no {what}")
    return value


def chosen(scores: FlatLogprobs) -> Float32:
    """float32 [L]: the token's own logprob, which comes first at each position; NaN without one."""
    starts = np.asarray(scores.start_indices, np.int64)
    empty = starts == np.asarray(scores.end_indices, np.int64)
    values = np.append(np.asarray(scores.logprobs, np.float32), np.float32(np.nan))
    picked: Float32 = values[np.where(empty, len(values) - 1, starts)]
    return picked


def alternatives(scores: FlatLogprobs, k: int) -> TopkRows:
    """The k best per position; a masked or missing one is (0, MASK_LOGPROB)."""
    rows = TopkRows(np.zeros((len(scores), k), np.int32), np.full((len(scores), k), MASK_LOGPROB, np.float32))
    for position, (start, end) in enumerate(zip(scores.start_indices, scores.end_indices, strict=True)):
        values = np.asarray(scores.logprobs[start + 1 : end], np.float32)[:k]
        tokens = np.asarray(scores.token_ids[start + 1 : end], np.int32)[:k]
        kept = np.flatnonzero(values > -np.inf)
        rows.logprobs[position, : len(kept)] = values[kept]
        rows.token_ids[position, : len(kept)] = tokens[kept]
    return rows
