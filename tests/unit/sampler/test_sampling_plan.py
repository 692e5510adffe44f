from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinkermesh.v1.types_pb2 import CellLayout, SampleBody, StopCondition

from services.common.errors import InvalidInput
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
        if isinstance(value, StopCondition | CellLayout):
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


def cells(tokens: list[int], **layout: object) -> dict[str, object]:
    values = np.asarray(tokens, "<i4").tobytes()
    return {"target_prompt_tokens": values, "target_prompt_layout": CellLayout(**layout)}


def indices(*values: int) -> bytes:
    return np.asarray(values, "<i4").tobytes()


def test_a_dense_query_names_each_cell_by_its_row() -> None:
    query = plan(body(**cells([7, -1, 8, 9], rows=2, width=2)))[0].query
    assert query.rows.tolist() == [0, 0, 1, 1]
    assert query.tokens.tolist() == [7, -1, 8, 9]


def test_a_sparse_query_names_only_its_cells_and_only_in_the_first_sequence() -> None:
    layout = {"rows": 2, "width": 9, "sparse": True, "crow_indices": indices(0, 0, 2), "col_indices": indices(3, 8)}
    sequences = plan(body(num_samples=2, **cells([7, 8], **layout)))
    assert sequences[0].query.rows.tolist() == [1, 1]
    assert sequences[0].prompt_topk == 0
    assert sequences[1].query is None and sequences[1].prompt_topk is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (cells([7, 8], rows=2, width=2), "2 values"),
        (cells([7, 8, 9], rows=3, width=1), "3 rows"),
        (cells([7], rows=2, width=1 << 31), "1 values"),
        (cells([7, 100], rows=2, width=1), "vocabulary"),
        (cells([7, -2], rows=2, width=1), "vocabulary"),
        (cells([1] * 40, rows=2, width=20), "more than 30"),
        (cells([7], rows=2, width=1, sparse=True, crow_indices=indices(0, 1), col_indices=indices(0)), "crow"),
        (cells([7], rows=2, width=1, sparse=True, crow_indices=indices(0, 2, 1), col_indices=indices(0)), "crow"),
        ({"target_prompt_tokens": indices(1)}, "no layout"),
        ({"prompt_alt_tokens_k": 16}, "32 draws"),
        ({"prompt_alt_tokens_k": 21}, "prompt_alt_tokens_k"),
    ],
)
def test_cells_are_bounded_before_anything_is_allocated_VAL_17(fields: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        plan_sequences("r", body(**fields), None, Limits(100, 50, 20, max_cells=30))
