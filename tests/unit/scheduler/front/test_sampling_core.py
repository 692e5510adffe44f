"""Turns and verdicts: the pure parts of sample dispatch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Busy, InvalidInput, MissingResource, ServerError, Unavailable
from services.scheduler.sampling.adapters import adapter_ref
from services.scheduler.sampling.outcome import Verdict, checked, of_error, verdict
from services.scheduler.sampling.turns import Turns


def test_tenants_take_turns_and_keep_their_own_order() -> None:
    turns: Turns[str] = Turns()
    for item in ("a1", "a2", "a3", "b1"):
        turns.join(item[0], item)
    assert [turns.take() for _ in range(4)] == ["a1", "b1", "a2", "a3"]
    assert len(turns) == 0
    assert turns.peek() is None
    with pytest.raises(IndexError):
        turns.take()


def test_without_fairness_arrival_decides() -> None:
    turns: Turns[str] = Turns(fair=False)
    for item in ("a1", "a2", "b1"):
        turns.join(item[0], item)
    assert [turns.take() for _ in range(3)] == ["a1", "a2", "b1"]


def test_what_comes_back_is_first_of_its_tenant() -> None:
    turns: Turns[str] = Turns()
    turns.join("a", "a2")
    turns.rejoin("a", "a1")
    turns.join("b", "b1")
    turns.remove("b1")
    assert turns.all() == ["a1", "a2"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unavailable("away"), Verdict.ELSEWHERE),
        (Busy("no room"), Verdict.LATER),
        (InvalidInput("top_k"), Verdict.FAIL),
        (ServerError("broken"), Verdict.FAIL),
    ],
)
def test_an_error_decides_where_the_sample_goes(error: Exception, expected: Verdict) -> None:
    assert verdict(error) is expected  # type: ignore[arg-type]


def test_failure_names_its_category_and_stage_SAMP_10() -> None:
    user = of_error("load adapter", MissingResource("snapshot is deleted")).failure
    assert (user.category, user.message) == (types.FAILURE_CATEGORY_USER, "snapshot is deleted")
    server = of_error("sample", ServerError("engine died")).failure
    assert server.category == types.FAILURE_CATEGORY_SERVER
    assert "'sample'" in server.message


def _sample(tokens: int, logprobs: int, sequences: int = 1) -> types.SampleResult:
    one = types.SampledSequence(
        tokens=np.zeros(tokens, "<i4").tobytes(), logprobs=np.zeros(logprobs, "<f4").tobytes(), stopped=True
    )
    return types.SampleResult(sequences=[one] * sequences)


def test_incomplete_answers_are_no_success_SAMP_06_SAMP_09() -> None:
    assert checked(_sample(3, 3), _asked()).HasField("sample")
    for wrong, asked in ((_sample(3, 3), 2), (_sample(0, 0), 1), (_sample(3, 2), 1)):
        with pytest.raises(ServerError):
            checked(wrong, _asked(num_samples=asked))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"prompt_logprobs": True}, "prompt_logprobs has 0 values, 3 were asked for"),
        ({"topk_prompt_logprobs": 2}, "topk_prompt_logprobs has 0 values, 6"),
        ({"target_prompt_tokens": bytes(16)}, "target_prompt_logprobs has 0 values, 4"),
        ({"prompt_alt_tokens_k": 5}, "prompt_alt_tokens has 0 values, 10"),
    ],
)
def test_a_part_that_was_asked_for_may_not_be_missing_SAMP_06(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ServerError, match=text):
        checked(_sample(3, 3), _asked(**fields))


def _asked(**fields: Any) -> types.SampleBody:
    return types.SampleBody(**{"prompt_tokens": bytes(12), "num_samples": 1, **fields})


def test_versions_never_share_a_name() -> None:
    first = adapter_ref("s:train:0", "runs/s:train:0/sampler_weights/_version_a_" + "1" * 32)
    second = adapter_ref("s:train:0", "runs/s:train:0/sampler_weights/_version_a_" + "2" * 32)
    assert first.name == "s:train:0@a_" + "1" * 32
    assert first.name != second.name
