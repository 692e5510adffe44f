"""What a sampler's answer or error means for the sample."""

from __future__ import annotations

from enum import Enum, auto

from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Busy, ServerError, StaleFence, TinkermeshError, Unavailable, UserError

ITEM_BYTES = 4


class Verdict(Enum):
    FAIL = auto()  # final
    ELSEWHERE = auto()  # the sampler is away: another one may do it
    LATER = auto()  # no room for the adapter now


def verdict(error: TinkermeshError) -> Verdict:
    if isinstance(error, (Unavailable, StaleFence)):
        return Verdict.ELSEWHERE
    if isinstance(error, Busy):
        return Verdict.LATER
    return Verdict.FAIL


def failure(category: types.FailureCategory.ValueType, message: str) -> types.Result:
    return types.Result(failure=types.Failure(category=category, message=message))


def user_failure(message: str) -> types.Result:
    return failure(types.FAILURE_CATEGORY_USER, message)


def server_failure(stage: str, message: str) -> types.Result:
    return failure(types.FAILURE_CATEGORY_SERVER, f"sampling failed at stage {stage!r}: {message}; send it again")


def of_error(stage: str, error: TinkermeshError) -> types.Result:
    if isinstance(error, UserError):
        return user_failure(error.message)
    return server_failure(stage, error.message)


def checked(sample: types.SampleResult, body: types.SampleBody) -> types.Result:
    """The result as it may be settled: every sequence is there, no token lacks its logprob, no part is missing.

    Raises ServerError naming what the sampler left out.
    """
    if len(sample.sequences) != body.num_samples:
        raise ServerError(f"the sampler answered {len(sample.sequences)} of {body.num_samples} sequences")
    for index, sequence in enumerate(sample.sequences):
        if not sequence.tokens or len(sequence.tokens) % ITEM_BYTES:
            raise ServerError(f"sequence {index} has no whole token")
        if len(sequence.logprobs) != len(sequence.tokens):
            raise ServerError(
                f"sequence {index} has {len(sequence.tokens)} token bytes, {len(sequence.logprobs)} of logprobs"
            )
    _check_prompt(sample, body)
    return types.Result(sample=sample)


def _check_prompt(sample: types.SampleResult, body: types.SampleBody) -> None:
    length = len(body.prompt_tokens) // ITEM_BYTES
    found = {
        "prompt_logprobs": (len(sample.prompt_logprobs), length * body.prompt_logprobs),
        "topk_prompt_logprobs": (len(sample.topk_prompt_logprobs.logprobs), length * body.topk_prompt_logprobs),
        "target_prompt_logprobs": (
            len(sample.target_prompt_logprobs.logprobs),
            len(body.target_prompt_tokens) // ITEM_BYTES,
        ),
        "prompt_alt_tokens": (len(sample.prompt_alt_tokens.logprobs), (length - 1) * body.prompt_alt_tokens_k),
    }
    for name, (size, wanted) in found.items():
        if size != ITEM_BYTES * wanted:
            raise ServerError(f"{name} has {size // ITEM_BYTES} values, {wanted} were asked for")
