"""Named tokens and draws along a prompt on the real engine, against transformers in float32."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from tinkermesh.v1.types_pb2 import AdapterRef, CellLayout, SampleBody

from tests.contract.sampler.client import SamplerClient, body, rows
from tests.contract.sampler.reference import Reference

pytestmark = pytest.mark.engine

TOLERANCE = 1e-3
CHI_SQUARE = 55.0  # 15 degrees of freedom: once in 500,000 positions
PROMPT = [17, 300, 45, 6, 211, 480, 92, 130, 77]
LONG = np.random.default_rng(8).integers(2, 512, 1300).tolist()


def asking(prompt: list[int], tokens: np.ndarray, **fields: object) -> SampleBody:
    """tokens int [len(prompt) - 1, K], -1 = skip."""
    made = body(prompt, **fields)
    made.target_prompt_tokens = tokens.astype("<i4").tobytes()
    made.target_prompt_layout.CopyFrom(CellLayout(rows=tokens.shape[0], width=tokens.shape[1]))
    return made


async def cells(client: SamplerClient, request: SampleBody, adapter: AdapterRef | None = None) -> np.ndarray:
    result = await client.result(request, adapter)
    assert result.target_prompt_logprobs.layout == request.target_prompt_layout
    return np.frombuffer(result.target_prompt_logprobs.logprobs, "<f4")


def expected(reference: Reference, prompt: list[int], tokens: np.ndarray) -> np.ndarray:
    scores = reference.logits(prompt).log_softmax(-1)[:-1]
    picked = scores.gather(1, torch.tensor(np.maximum(tokens, 0))).numpy()
    return np.where(tokens < 0, 0.0, picked).ravel()


@pytest.mark.parametrize("prompt", [PROMPT, LONG], ids=["one chunk", "three chunks"])
async def test_named_tokens_have_the_logprobs_of_transformers_and_skipped_ones_zero(
    client: SamplerClient, adapter_a: AdapterRef, reference_a: Reference, base_reference: Reference, prompt: list[int]
) -> None:
    tokens = np.random.default_rng(1).integers(-1, 512, (len(prompt) - 1, 3))
    tokens[:, 0] = -1
    made = await cells(client, asking(prompt, tokens, temperature=0.5), adapter_a)
    gap = np.abs(made - expected(reference_a, prompt, tokens)).max()
    control = np.abs(made - expected(base_reference, prompt, tokens)).max()
    print(f"{tokens.size} cells: max |diff| {gap:.2e} (another adapter's: {control:.2f})")
    assert gap <= TOLERANCE < 0.05 < control
    assert (made.reshape(tokens.shape)[:, 0] == 0).all()


async def test_a_sparse_query_answers_its_cells_in_its_own_layout(
    client: SamplerClient, base_reference: Reference
) -> None:
    request = body(PROMPT)
    request.target_prompt_tokens = np.asarray([9, 400, 3], "<i4").tobytes()
    request.target_prompt_layout.CopyFrom(
        CellLayout(
            rows=8,
            width=5,
            sparse=True,
            crow_indices=np.asarray([0, 0, 0, 1, 1, 1, 1, 1, 3], "<i4").tobytes(),
            col_indices=np.asarray([4, 0, 2], "<i4").tobytes(),
        )
    )
    scores = base_reference.logits(PROMPT).log_softmax(-1)
    made = await cells(client, request)
    assert np.abs(made - [float(scores[2, 9]), float(scores[7, 400]), float(scores[7, 3])]).max() <= TOLERANCE


async def test_queries_of_several_adapters_in_one_batch_do_not_mix_ADD_06(
    client: SamplerClient,
    adapter_a: AdapterRef,
    adapter_b: AdapterRef,
    base_reference: Reference,
    reference_a: Reference,
    reference_b: Reference,
) -> None:
    prompts = [np.random.default_rng(n).integers(2, 512, 200 + 150 * n).tolist() for n in range(6)]
    tables = [np.random.default_rng(9 + n).integers(0, 512, (len(p) - 1, 2)) for n, p in enumerate(prompts)]
    targets = [(None, base_reference), (adapter_a, reference_a), (adapter_b, reference_b)] * 2
    made = await asyncio.gather(
        *(cells(client, asking(p, t), adapter) for p, t, (adapter, _) in zip(prompts, tables, targets, strict=True))
    )
    for prompt, table, (_, reference), values in zip(prompts, tables, targets, made, strict=True):
        assert np.abs(values - expected(reference, prompt, table)).max() <= TOLERANCE


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_draws_follow_the_tempered_distribution_and_carry_the_models_own_logprobs(
    client: SamplerClient, base_reference: Reference, temperature: float
) -> None:
    k, repetitions = 64, 12
    request = body(PROMPT, temperature=temperature, prompt_alt_tokens_k=k)
    results = await asyncio.gather(*(client.result(request) for _ in range(repetitions)))
    drawn = [rows(result.prompt_alt_tokens) for result in results]
    tokens = np.concatenate([ids for ids, _ in drawn], axis=1)
    logprobs = np.concatenate([values for _, values in drawn], axis=1)
    assert tokens.shape == (len(PROMPT) - 1, k * repetitions)
    raw = base_reference.logits(PROMPT)[:-1]
    own = raw.log_softmax(-1).gather(1, torch.tensor(tokens.astype(np.int64))).numpy()
    assert np.abs(logprobs - own).max() <= TOLERANCE
    mass = (raw.double() / temperature).softmax(-1).numpy()
    worst = max(misfit(tokens[row], mass[row]) for row in range(len(mass)))
    control = misfit(tokens[0], mass[3])  # another position's distribution
    print(f"temperature {temperature}: chi square {worst:.0f} at most (of another position: {control:.0f})")
    assert worst < CHI_SQUARE < 4 * CHI_SQUARE < control


def misfit(tokens: np.ndarray, mass: np.ndarray) -> float:
    """Pearson's chi square of `tokens` against `mass`, over 16 classes of nearly equal mass."""
    order = np.argsort(mass)
    group_of = np.empty(len(mass), int)
    group_of[order] = np.minimum((mass[order].cumsum() * 16).astype(int), 15)
    wanted = np.bincount(group_of, mass, 16) * len(tokens)
    used = wanted > 0  # one token may weigh more than a class
    return float(((np.bincount(group_of[tokens], minlength=16) - wanted)[used] ** 2 / wanted[used]).sum())


async def test_draws_repeat_with_a_seed_and_are_greedy_at_temperature_zero(
    client: SamplerClient, base_reference: Reference
) -> None:
    seeded = body(LONG, seed=5, prompt_alt_tokens_k=2)
    first, again = [rows((await client.result(seeded)).prompt_alt_tokens)[0] for _ in range(2)]
    assert (first == again).all()
    assert (first[:, 0] != first[:, 1]).any()
    greedy = body(PROMPT, temperature=0.0, prompt_alt_tokens_k=2)
    best = base_reference.logits(PROMPT)[:-1].argmax(-1).numpy()
    assert (rows((await client.result(greedy)).prompt_alt_tokens)[0] == best[:, None]).all()


async def test_a_prompt_of_one_token_has_no_row_to_draw_in(client: SamplerClient) -> None:
    result = await client.result(body([9], prompt_alt_tokens_k=3))
    assert result.prompt_alt_tokens.length == 0 and result.prompt_alt_tokens.k == 3
