"""The default model, whose unembedding is tied to its embedding: base and adapter against PEFT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tinkermesh.v1.types_pb2 import AdapterRef

from tests.contract.sampler.adapters import write_adapter
from tests.contract.sampler.client import SamplerClient, start_sampler
from tests.contract.sampler.reference import Reference
from tests.doubles.default_model import default_model_or_skip

PROMPTS = [np.random.default_rng(seed).integers(100, 49_000, 24).tolist() for seed in range(2)]

pytestmark = pytest.mark.engine


async def test_logprobs_equal_peft_on_the_default_model(tmp_path: Path) -> None:
    model = default_model_or_skip()
    sampler = start_sampler(model, tmp_path, kv_cache_gib=0.25, max_adapters=1, max_rank=16)
    try:
        write_adapter(model, sampler.store / "a", seed=3, rank=16, scale=0.02)
        adapter = AdapterRef(name="a@1", path="a")
        async with SamplerClient(sampler.address) as client:
            base = [await client.score(prompt) for prompt in PROMPTS]
            adapted = [await client.score(prompt, adapter) for prompt in PROMPTS]
            greedy = await client.greedy(PROMPTS[0], 8, adapter)
    finally:
        code = sampler.stop()
    assert code == 0
    reference = Reference(model)
    assert max(gap(reference, prompt, score) for prompt, score in zip(PROMPTS, base, strict=True)) <= 1e-3
    merged = Reference(model, sampler.store / "a")
    assert max(gap(merged, prompt, score) for prompt, score in zip(PROMPTS, adapted, strict=True)) <= 1e-3
    assert gap(reference, PROMPTS[0], adapted[0]) > 0.1  # the control
    assert greedy.tokens == merged.greedy(PROMPTS[0], 8)


def gap(reference: Reference, prompt: list[int], scores: np.ndarray) -> float:
    return float(np.abs(reference.logprobs(prompt)[1:] - scores[1:]).max())
