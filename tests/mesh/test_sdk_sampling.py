"""Everything SDK 0.38 can ask of a sampler, unmodified, against the doubled engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.doubles import generation
from tests.doubles.fake_sampler import BASE_WEIGHTS
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.sdk_close import close
from tests.doubles.sdk_datums import supervised
from tests.doubles.tokenizer import text_of

tinker = pytest.importorskip("tinker", reason="the SDK is not installed")
pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]

PROMPT = [5, 9, 200, 31, 7, 8]
RAW = np.asarray(PROMPT, "<i4").tobytes()
CONTEXT = 2048


@pytest.fixture(scope="module")
def service(mesh: MeshProcesses) -> Iterator[Any]:
    client = tinker.ServiceClient(base_url=mesh.base_url, api_key=mesh.api_key)
    yield client
    close(client)


@pytest.fixture(scope="module")
def sampler(service: Any) -> Any:
    return service.create_sampling_client(base_model=BASE_MODEL).result()


def prompt(tokens: list[int] = PROMPT) -> Any:
    return tinker.types.ModelInput.from_ints(tokens)


def params(**values: Any) -> Any:
    return tinker.types.SamplingParams(**{"max_tokens": 4, **values})


def expected(tokens: np.ndarray) -> np.ndarray:
    """tokens [rows, K]: what the double answers for the base model, 0 where -1."""
    cells = [[generation.cell(BASE_WEIGHTS, RAW, row, int(t)) if t >= 0 else 0.0 for t in line]
             for row, line in enumerate(tokens)]  # fmt: skip
    return np.asarray(cells, np.float32)


def test_target_prompt_logprobs_dense_come_back_in_their_shape(sampler: Any) -> None:
    ids = torch.tensor([[1, -1], [511, 3], [-1, -1], [7, 7], [0, 2]])
    target = tinker.types.TensorData.from_torch(ids)
    answer = sampler.sample(prompt(), 1, params(), target_prompt_logprobs=target).result().target_prompt_logprobs
    assert tuple(answer.shape) == (5, 2) and answer.dtype == "float32"
    assert np.array_equal(answer.to_torch().numpy(), expected(ids.numpy()))


def test_target_prompt_logprobs_sparse_stay_sparse(sampler: Any) -> None:
    ids = torch.full((5, 40), -1, dtype=torch.int64)
    ids[1, 3], ids[4, 0], ids[4, 39] = 400, 0, 5
    target = tinker.types.TensorData.from_torch_sparse(ids, pad_value=-1)
    answer = sampler.sample(prompt(), 1, params(), target_prompt_logprobs=target).result().target_prompt_logprobs
    assert list(answer.sparse_crow_indices) == [0, 0, 1, 1, 1, 3]
    assert list(answer.sparse_col_indices) == [3, 0, 39]
    assert np.array_equal(answer.to_torch().numpy(), expected(ids.numpy()))


def test_prompt_alt_tokens_have_k_draws_per_position(sampler: Any) -> None:
    made = sampler.sample(prompt(), 2, params(seed=4), prompt_alt_tokens_k=3).result()
    tokens, logprobs = made.prompt_alt_tokens.tokens, made.prompt_alt_tokens.logprobs
    assert tuple(tokens.shape) == tuple(logprobs.shape) == (5, 3)
    assert tokens.dtype == "int64"
    assert np.array_equal(logprobs.to_torch().numpy(), expected(tokens.to_torch().numpy()))


def test_topk_logprobs_of_prompt_and_samples_have_their_rows(sampler: Any) -> None:
    made = sampler.sample(
        prompt(), 2, params(), include_prompt_logprobs=True, topk_prompt_logprobs=3, topk_sample_logprobs=2
    ).result()
    assert made.topk_prompt_logprobs[0] is None
    assert [len(row) for row in made.topk_prompt_logprobs[1:]] == [3] * 5
    assert [row[0][0] for row in made.topk_prompt_logprobs[1:]] == PROMPT[1:]
    for sequence in made.sequences:
        assert len(sequence.topk_logprobs) == len(sequence.tokens)
        assert [row[0][0] for row in sequence.topk_logprobs] == list(sequence.tokens)


def test_prompt_logprobs_last_n_hides_the_earlier_ones(sampler: Any) -> None:
    whole = sampler.compute_logprobs(prompt()).result()
    last = sampler.compute_logprobs(prompt(), prompt_logprobs_last_n=2).result()
    assert whole[0] is None and None not in whole[1:]
    assert last == [None] * 4 + whole[4:]


def test_seeds_repeat_and_n_samples_differ_SAMP_07(sampler: Any) -> None:
    def tokens(**values: Any) -> list[list[int]]:
        made = sampler.sample(prompt(), 3, params(max_tokens=12, **values)).result()
        assert len({s.sequence_id for s in made.sequences}) == 3
        return [list(s.tokens) for s in made.sequences]

    assert tokens(seed=3) == tokens(seed=3)
    assert len({tuple(t) for t in tokens(seed=3) + tokens(seed=9)}) == 6
    assert tokens() != tokens()


def test_without_max_tokens_the_context_is_filled_when_nothing_stops(sampler: Any) -> None:
    made = sampler.sample(prompt(), 1, tinker.types.SamplingParams(stop=[])).result().sequences[0]
    assert len(made.tokens) == CONTEXT - len(PROMPT)
    assert str(made.stop_reason) == "length"
    assert generation.EOS in made.tokens


def test_a_text_that_spans_tokens_stops_the_sample_and_stays_in_it_once(sampler: Any) -> None:
    free = list(sampler.sample(prompt(), 1, params(max_tokens=30, seed=1, stop=[])).result().sequences[0].tokens)
    end = next(n for n in range(13, 30) if "\ufffd" not in text_of(free[n - 3 : n]))
    stop = text_of(free[end - 3 : end])
    assert stop not in text_of(free[: end - 1])
    made = sampler.sample(prompt(), 1, params(max_tokens=30, seed=1, stop=["never", stop])).result().sequences[0]
    assert list(made.tokens) == free[:end]
    assert str(made.stop_reason) == "stop" and len(made.logprobs) == end


def test_a_full_context_is_scored_and_a_longer_one_refused_by_name_VAL_07(sampler: Any) -> None:
    scores = sampler.compute_logprobs(prompt([3] * CONTEXT)).result()
    assert len(scores) == CONTEXT and None not in scores[1:]
    with pytest.raises(tinker.RequestFailedError, match=f"prompt has {CONTEXT + 1} tokens; the context of {CONTEXT}"):
        sampler.compute_logprobs(prompt([3] * (CONTEXT + 1))).result()
    with pytest.raises(tinker.RequestFailedError, match="exceeds the context"):
        sampler.sample(prompt(), 1, params(max_tokens=CONTEXT)).result()


def test_refused_content_names_the_field_and_the_next_sample_works_VAL_17(sampler: Any) -> None:
    rows = tinker.types.TensorData.from_torch(torch.ones((9, 1), dtype=torch.int64))
    with pytest.raises(tinker.RequestFailedError, match="target_prompt_logprobs: shape"):
        sampler.sample(prompt(), 1, params(), target_prompt_logprobs=rows).result()
    with pytest.raises(tinker.RequestFailedError, match="prompt_alt_tokens_k must lie in"):
        sampler.sample(prompt(), 1, params(), prompt_alt_tokens_k=65).result()
    assert len(sampler.sample(prompt(), 1, params(stop=[])).result().sequences[0].tokens) == 4


def test_an_inflight_sampler_is_pinned_to_its_snapshot(service: Any) -> None:
    training = service.create_lora_training_client(base_model=BASE_MODEL, rank=8, seed=5).result()
    first = training.save_weights_and_get_sampling_client(kind="inflight").result()
    before = first.compute_logprobs(prompt()).result()
    training.forward_backward([supervised(PROMPT)], "cross_entropy").result()
    training.optim_step(tinker.types.AdamParams(learning_rate=1e-2)).result()
    second = training.save_weights_and_get_sampling_client(kind="inflight").result()
    assert second.compute_logprobs(prompt()).result() != before
    assert first.compute_logprobs(prompt()).result() == before


def test_stability_info_may_be_recorded_and_sequence_ids_stay_the_same(service: Any) -> None:
    recording = service.create_sampling_client(base_model=BASE_MODEL, record_stability_info=True).result()
    made = recording.sample(prompt(), 2, params()).result()
    session = recording._sampling_session_id
    assert [s.sequence_id for s in made.sequences] == [f"{session}.0.0", f"{session}.0.1"]


def test_samples_go_on_while_the_trainer_is_busy_SAMP_11(mesh: MeshProcesses, service: Any, sampler: Any) -> None:
    training = service.create_lora_training_client(base_model=BASE_MODEL, rank=4, seed=6).result()
    mesh.inject("trainer", [{"kind": "pass", "action": "hold_before", "times": 0}])
    held = training.forward_backward([supervised(PROMPT)], "cross_entropy")
    for _ in range(3):
        assert sampler.sample(prompt(), 1, params()).result().sequences
    assert not held.future().done()
    mesh.inject("trainer", [])
    assert held.result().metrics
