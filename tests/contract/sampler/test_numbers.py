"""Logprobs and tokens against transformers + PEFT in float32, alone and in shared batches."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from tinkermesh.v1.types_pb2 import AdapterRef

from tests.contract.sampler.client import SamplerClient, body, rows
from tests.contract.sampler.conftest import MAX_ADAPTERS, AdapterMaker
from tests.contract.sampler.reference import Reference

pytestmark = pytest.mark.engine

PROMPT = [17, 300, 45, 6, 211, 480, 92, 130, 7, 55, 350, 21]
TOLERANCE = 1e-3


def prompt_of(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(2, 512, length).tolist()


def gap(left: np.ndarray, right: np.ndarray) -> float:
    """Largest difference after position 0, which must be NaN on both sides."""
    assert np.isnan(left[0]) and np.isnan(right[0])
    assert len(left) == len(right)
    return float(np.abs(left[1:] - right[1:]).max())


async def test_base_prompt_logprobs_equal_transformers(client: SamplerClient, base_reference: Reference) -> None:
    assert gap(await client.score(PROMPT), base_reference.logprobs(PROMPT)) <= TOLERANCE


async def test_adapter_prompt_logprobs_equal_peft_and_not_the_base(
    client: SamplerClient, adapter_a: AdapterRef, reference_a: Reference, base_reference: Reference
) -> None:
    scores = await client.score(PROMPT, adapter_a)
    assert gap(scores, reference_a.logprobs(PROMPT)) <= TOLERANCE
    assert gap(scores, base_reference.logprobs(PROMPT)) > 100 * TOLERANCE  # the control


async def test_sampled_logprobs_equal_peft(
    client: SamplerClient, adapter_a: AdapterRef, reference_a: Reference
) -> None:
    (made,) = await client.sample(body(PROMPT, max_tokens=24, seed=7), adapter_a)
    expected = reference_a.logprobs(PROMPT + made.tokens)[len(PROMPT) :]
    assert float(np.abs(made.logprobs - expected).max()) <= TOLERANCE


async def test_greedy_tokens_equal_the_argmax_of_the_merged_model_SNAP_08(
    client: SamplerClient, adapter_b: AdapterRef, reference_b: Reference
) -> None:
    made = await client.greedy(PROMPT, 24, adapter_b)
    assert made.tokens == reference_b.greedy(PROMPT, 24)


async def test_mixed_batch_of_base_and_two_adapters_equals_each_alone_ADD_06(
    client: SamplerClient, make_adapter: AdapterMaker, adapter_a: AdapterRef, adapter_b: AdapterRef
) -> None:
    # Every place is taken: a base row that went without an adapter would get the last one's delta.
    others = [make_adapter(f"filler-{seed}@1", seed=seed) for seed in range(90, 88 + MAX_ADAPTERS)]
    for adapter in (adapter_a, adapter_b, *others):
        await client.load(adapter)
    assert len(await client.loaded()) == MAX_ADAPTERS
    users: list[AdapterRef | None] = [None, adapter_a, adapter_b, None, adapter_b, adapter_a]
    prompts = [prompt_of(20 + 3 * index, index) for index in range(len(users))]
    alone = [await client.greedy(prompt, 32, user) for prompt, user in zip(prompts, users, strict=True)]
    mixed = await asyncio.gather(
        *(client.greedy(prompt, 32, user) for prompt, user in zip(prompts, users, strict=True))
    )
    for solo, shared in zip(alone, mixed, strict=True):
        assert shared.tokens == solo.tokens
        assert float(np.abs(shared.logprobs - solo.logprobs).max()) <= 1e-4
    swapped = await client.greedy(prompts[1], 32, adapter_b)  # the control: a's prompt under b
    assert swapped.tokens != alone[1].tokens


async def test_prompt_logprobs_with_unembedding_adapters_in_a_shared_batch_ADD_06(
    client: SamplerClient,
    adapter_a: AdapterRef,
    adapter_b: AdapterRef,
    base_reference: Reference,
    reference_a: Reference,
    reference_b: Reference,
) -> None:
    users = [(adapter_a, reference_a), (adapter_b, reference_b), (None, base_reference)] * 3
    prompts = [prompt_of(2 + index, 50 + index) for index in range(len(users))]
    await client.score(PROMPT, adapter_a)
    await client.score(PROMPT, adapter_b)
    busy = asyncio.create_task(client.sample(body(PROMPT, max_tokens=60, num_samples=3), adapter_a))
    await client.until_running(3)
    scores = await asyncio.gather(
        *(client.score(prompt, adapter) for prompt, (adapter, _) in zip(prompts, users, strict=True))
    )
    await busy
    for score, prompt, (_, reference) in zip(scores, prompts, users, strict=True):
        assert gap(score, reference.logprobs(prompt)) <= TOLERANCE
    assert gap(scores[6], reference_b.logprobs(prompts[6])) > 100 * TOLERANCE  # the control: a's prompt under b


async def test_long_prompts_are_scored_across_chunks(
    client: SamplerClient, adapter_a: AdapterRef, reference_a: Reference
) -> None:
    prompts = [prompt_of(700, 1), prompt_of(700, 2)]
    scores = await asyncio.gather(*(client.score(prompt, adapter_a) for prompt in prompts))
    for score, prompt in zip(scores, prompts, strict=True):
        assert gap(score, reference_a.logprobs(prompt)) <= TOLERANCE


async def test_a_prompt_of_the_whole_context_is_scored(client: SamplerClient, base_reference: Reference) -> None:
    prompt = prompt_of(2048, 3)
    assert gap(await client.score(prompt), base_reference.logprobs(prompt)) <= TOLERANCE


async def test_tempered_top_k_top_p_logprobs_equal_the_closed_form_while_the_prompt_stays_raw(
    client: SamplerClient, base_reference: Reference
) -> None:
    settings = {"temperature": 0.7, "top_k": 40, "top_p": 0.8, "seed": 11}
    request = body(PROMPT, max_tokens=16, prompt_logprobs=True, topk_sample_logprobs=60, **settings)
    result = await client.result(request)
    tokens = np.frombuffer(result.sequences[0].tokens, "<i4").tolist()
    logprobs = np.frombuffer(result.sequences[0].logprobs, "<f4")
    ids, alternatives = rows(result.sequences[0].topk)
    logits = base_reference.logits(PROMPT + tokens)[len(PROMPT) - 1 : -1]
    for step in range(len(tokens)):
        expected = tempered(logits[step], 0.7, 40, 0.8)
        assert abs(logprobs[step] - float(expected[tokens[step]])) <= TOLERANCE
        kept = int(torch.isfinite(expected).sum())
        assert (alternatives[step, :kept] > -100).all()
        assert (alternatives[step, kept:] == -99999.0).all()
        assert (ids[step, kept:] == 0).all()
        assert np.allclose(alternatives[step, :kept], expected[torch.tensor(ids[step, :kept])], atol=TOLERANCE)
    prompt_scores = np.frombuffer(result.prompt_logprobs, "<f4")
    assert gap(prompt_scores, base_reference.logprobs(PROMPT)) <= TOLERANCE
    raw = base_reference.logprobs(PROMPT + tokens)[len(PROMPT) :]
    assert float(np.abs(logprobs - raw).max()) > 0.1  # the control: untempered numbers differ


def tempered(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Closed form: log-softmax over the kept tokens of logits / T; -inf for masked ones."""
    scaled = logits.double() / temperature
    kept = scaled >= scaled.topk(top_k).values[-1]
    scaled = torch.where(kept, scaled, -torch.inf)
    order = scaled.argsort(descending=True)
    mass = scaled.softmax(-1)[order].cumsum(-1)
    inside = mass - scaled.softmax(-1)[order] < top_p
    scaled = torch.where(torch.zeros_like(kept).scatter(0, order, inside), scaled, -torch.inf)
    return scaled.log_softmax(-1)


@pytest.mark.parametrize("temperature", [5.0, 0.05, 0.002])
async def test_extreme_temperatures_are_honoured_exactly(
    client: SamplerClient, base_reference: Reference, temperature: float
) -> None:
    (made,) = await client.sample(body(PROMPT, max_tokens=12, temperature=temperature, seed=3))
    logits = base_reference.logits(PROMPT + made.tokens)[len(PROMPT) - 1 : -1].double() / temperature
    expected = logits.log_softmax(-1).gather(1, torch.tensor(made.tokens)[:, None])[:, 0].numpy()
    assert float(np.abs(made.logprobs - expected).max()) <= TOLERANCE / min(temperature, 1.0)


async def test_greedy_logprobs_are_those_of_the_untempered_distribution(
    client: SamplerClient, base_reference: Reference
) -> None:
    made = await client.greedy(PROMPT, 8)
    expected = base_reference.logprobs(PROMPT + made.tokens)[len(PROMPT) :]
    assert float(np.abs(made.logprobs - expected).max()) <= TOLERANCE


async def test_topk_prompt_logprobs_are_best_first_with_a_masked_first_row_LOSS_12(
    client: SamplerClient, adapter_a: AdapterRef, reference_a: Reference
) -> None:
    result = await client.result(body(PROMPT, prompt_logprobs=True, topk_prompt_logprobs=5), adapter_a)
    ids, logprobs = rows(result.topk_prompt_logprobs)
    assert ids.shape == (len(PROMPT), 5)
    assert (ids[0] == 0).all() and (logprobs[0] == -99999.0).all()
    expected = reference_a.logits(PROMPT).log_softmax(-1)[:-1].topk(5)
    assert (ids[1:] == expected.indices.numpy()).all()
    assert float(np.abs(logprobs[1:] - expected.values.numpy()).max()) <= TOLERANCE


async def test_prompt_logprobs_last_n_hides_the_earlier_ones(client: SamplerClient) -> None:
    result = await client.result(body(PROMPT, prompt_logprobs=True, topk_prompt_logprobs=2, prompt_logprobs_last_n=3))
    scores = np.frombuffer(result.prompt_logprobs, "<f4")
    assert np.isnan(scores[:-3]).all() and np.isfinite(scores[-3:]).all()
    assert (rows(result.topk_prompt_logprobs)[1][:-3] == -99999.0).all()


async def test_a_prompt_of_one_token_has_one_unscored_position_LOSS_12(client: SamplerClient) -> None:
    scores = await client.score([9])
    assert len(scores) == 1 and np.isnan(scores[0])
