"""The default model, whose unembedding is tied to its embedding: against PEFT, and against the trainer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tinkermesh.v1.types_pb2 import AdapterRef

from tests.contract.sampler.adapters import write_adapter
from tests.contract.sampler.client import SamplerClient, start_sampler
from tests.contract.sampler.reference import Reference
from tests.contract.sampler.trained import Trained
from tests.doubles.default_model import default_model_or_skip
from tests.evidence.table import Claim, Measurements
from tests.unit.trainer.rig import layout

PROMPTS = [np.random.default_rng(seed).integers(100, 49_000, 24).tolist() for seed in range(2)]

pytestmark = pytest.mark.engine


async def test_logprobs_equal_pefts_and_the_trainers_on_the_default_model(
    tmp_path: Path, measured: Measurements
) -> None:
    model = default_model_or_skip()
    sampler = start_sampler(model, tmp_path, kv_cache_gib=0.25, max_adapters=2, max_rank=16)
    try:
        write_adapter(model, sampler.store / "a", seed=3, rank=16, scale=0.02)
        trained = Trained.snapshot(model, sampler.store / "trained", layout(8))
        adapter, snapshot = AdapterRef(name="a@1", path="a"), AdapterRef(name="t@1", path="trained")
        async with SamplerClient(sampler.address) as client:
            base = [await client.score(prompt) for prompt in PROMPTS]
            adapted = [await client.score(prompt, adapter) for prompt in PROMPTS]
            scores = np.concatenate([(await client.score(prompt, snapshot))[1:] for prompt in PROMPTS])
            greedy = await client.greedy(PROMPTS[0], 8, adapter)
    finally:
        code = sampler.stop()
    assert code == 0
    expected = np.concatenate([trained.logprobs(prompt) for prompt in PROMPTS])
    measured(
        Claim.SAMPLER,
        "SmolLM2-135M, 46 prompt tokens",
        float(np.abs(scores - expected).max()),
        within=1e-3,
        without_the_adapter=float(np.abs(np.concatenate([score[1:] for score in base]) - expected).max()),
    )
    reference = Reference(model)
    assert max(gap(reference, prompt, score) for prompt, score in zip(PROMPTS, base, strict=True)) <= 1e-3
    merged = Reference(model, sampler.store / "a")
    assert max(gap(merged, prompt, score) for prompt, score in zip(PROMPTS, adapted, strict=True)) <= 1e-3
    assert gap(reference, PROMPTS[0], adapted[0]) > 0.1  # the control
    assert greedy.tokens == merged.greedy(PROMPTS[0], 8)


def gap(reference: Reference, prompt: list[int], scores: np.ndarray) -> float:
    return float(np.abs(reference.logprobs(prompt)[1:] - scores[1:]).max())
