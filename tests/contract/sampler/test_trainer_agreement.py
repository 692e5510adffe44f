"""One snapshot in both engines: vLLM's log-probabilities are the trainer's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tinkermesh.v1.types_pb2 import AdapterRef

from tests.contract.sampler.client import SamplerClient, SamplerProcess, body
from tests.contract.sampler.trained import Trained
from tests.evidence.table import Claim, Measurements
from tests.unit.trainer.rig import layout

pytestmark = pytest.mark.engine
TOLERANCE = 1e-3
PATH = "runs/trained@1/sampler_weights/_version_trained"


@pytest.fixture(scope="module")
def trained(sampler: SamplerProcess, tiny_model: Path) -> Trained:
    return Trained.snapshot(tiny_model, sampler.store / PATH, layout(8))


async def test_prompts_and_samples_are_scored_alike_SNAP_08(
    client: SamplerClient, trained: Trained, measured: Measurements
) -> None:
    adapter = AdapterRef(name="trained@1", path=PATH)
    prompts = [np.random.default_rng(seed).integers(2, 512, length).tolist() for seed, length in ((1, 40), (2, 400))]
    gaps, controls = [], []
    for prompt in prompts:
        expected = trained.logprobs(prompt)
        gaps.append(np.abs((await client.score(prompt, adapter))[1:] - expected).max())
        controls.append(np.abs((await client.score(prompt))[1:] - expected).max())
    measured(
        Claim.SAMPLER,
        "tiny qwen3, 438 prompt tokens",
        float(max(gaps)),
        within=TOLERANCE,
        without_the_adapter=float(min(controls)),
    )
    (made,) = await client.sample(body(prompts[0], max_tokens=100, seed=5), adapter)
    sampled = trained.logprobs(prompts[0] + made.tokens)[len(prompts[0]) - 1 :]
    measured(
        Claim.SAMPLER,
        "tiny qwen3, 100 sampled tokens",
        float(np.abs(made.logprobs - sampled).max()),
        within=TOLERANCE,
        one_token_later=float(np.abs(made.logprobs[1:] - sampled[:-1]).max()),
    )
    assert len(set(made.tokens)) > 10, "not one token again and again"
