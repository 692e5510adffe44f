from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinkermesh.v1.types_pb2 import SampleBody, StopCondition

from services.common.errors import InvalidInput, NotSupported
from services.sampler.ports import EngineAdapter
from services.sampler.sampling_plan import Limits, plan_sequences

LIMITS = Limits(vocab_size=100, max_context=50, max_topk=20)


def body(**fields: object) -> SampleBody:
    made = SampleBody(
        prompt_tokens=np.asarray([1, 2, 3], "<i4").tobytes(),
        num_samples=1,
        max_tokens=10,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
    )
    for name, value in fields.items():
        if isinstance(value, StopCondition):
            getattr(made, name).CopyFrom(value)
        else:
            setattr(made, name, value)
    return made


def plan(made: SampleBody, adapter: EngineAdapter | None = None) -> list:
    return plan_sequences("r", made, adapter, LIMITS)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 8))
def test_seeds_follow_each_other_and_stay_in_range_SAMP_07(seed: int, count: int) -> None:
    seeds = [sequence.seed for sequence in plan(body(seed=seed, num_samples=count))]
    assert seeds == [(seed + index) % 2**63 for index in range(count)]
    assert len(set(seeds)) == count


def test_without_a_seed_the_engine_draws() -> None:
    assert {sequence.seed for sequence in plan(body(num_samples=3))} == {None}


def test_only_the_first_sequence_scores_the_prompt() -> None:
    assert [s.prompt_topk for s in plan(body(num_samples=3, prompt_logprobs=True))] == [0, None, None]
    assert [s.prompt_topk for s in plan(body(num_samples=2, topk_prompt_logprobs=5))] == [5, None]
    assert [s.prompt_topk for s in plan(body(num_samples=2))] == [None, None]


def test_output_is_bounded_by_the_context() -> None:
    prompt = np.ones(48, "<i4").tobytes()
    assert plan(body(prompt_tokens=prompt, max_tokens=40))[0].max_tokens == 2
    full = np.ones(50, "<i4").tobytes()
    assert plan(body(prompt_tokens=full, max_tokens=40))[0].max_tokens == 1


def test_stops_are_passed_on() -> None:
    assert plan(body(stop=StopCondition(strings=["a", "b"])))[0].stop_strings == ("a", "b")
    assert plan(body(stop=StopCondition(token_ids=[4])))[0].stop_token_ids == (4,)
    assert plan(body(stop=StopCondition(disabled=True)))[0].ignore_eos
    assert not plan(body())[0].ignore_eos


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"prompt_tokens": b"abc"}, "prompt_tokens"),
        ({"prompt_tokens": np.asarray([5, -1], "<i4").tobytes()}, "position 1"),
        ({"prompt_tokens": np.ones(51, "<i4").tobytes()}, "51 tokens"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"topk_sample_logprobs": 21}, "topk_sample_logprobs"),
        ({"stop": StopCondition(strings=["a"], token_ids=[1])}, "mixes"),
        ({"stop": StopCondition(strings=["a"], disabled=True)}, "mixes"),
        ({"stop": StopCondition(strings=[""])}, "empty"),
        ({"stop": StopCondition(token_ids=[100])}, "stop token 100"),
    ],
)
def test_bad_fields_are_named_VAL_17(fields: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        plan(body(**fields))


@pytest.mark.parametrize("fields", [{"target_prompt_tokens": b"12345678"}, {"prompt_alt_tokens_k": 3}])
def test_what_is_not_offered_is_refused_by_name(fields: dict[str, object]) -> None:
    with pytest.raises(NotSupported, match=next(iter(fields))):
        plan(body(**fields))
