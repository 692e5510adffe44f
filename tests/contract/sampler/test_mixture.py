"""A mixture of experts in both engines: base, attention and unembedding adapters; adapters of experts are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import grpc
import numpy as np
import pytest
from tinkermesh.v1.types_pb2 import AdapterRef

from tests.contract.sampler.client import SamplerClient, SamplerProcess, body, start_sampler
from tests.contract.sampler.trained import Trained
from tests.evidence.table import Claim, Measurements
from tests.unit.trainer import reference
from tests.unit.trainer.rig import layout, randomize
from tools.make_tiny_qwen3_moe import build

pytestmark = pytest.mark.engine
TOLERANCE = 1e-3
PATH = "runs/trained@1/sampler_weights/_version_trained"


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SamplerProcess]:
    model = build(tmp_path_factory.mktemp("model") / "tiny-qwen3-moe")
    running = start_sampler(model, tmp_path_factory.mktemp("sampler"), max_adapters=2)
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


@pytest.fixture
async def mixture_client(mixture: SamplerProcess) -> AsyncIterator[SamplerClient]:
    async with SamplerClient(mixture.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def trained(mixture: SamplerProcess) -> Trained:
    return Trained.snapshot(mixture.model, mixture.store / PATH, layout(8, mlp=False))


async def test_prompts_and_samples_are_scored_as_the_trainer_does_SNAP_08(
    mixture_client: SamplerClient, trained: Trained, measured: Measurements
) -> None:
    adapter = AdapterRef(name="trained@1", path=PATH)
    prompt = np.random.default_rng(1).integers(2, 512, 200).tolist()
    expected = trained.logprobs(prompt)
    measured(
        Claim.SAMPLER,
        "tiny qwen3-moe, 199 prompt tokens",
        float(np.abs((await mixture_client.score(prompt, adapter))[1:] - expected).max()),
        within=TOLERANCE,
        without_the_adapter=float(np.abs((await mixture_client.score(prompt))[1:] - expected).max()),
    )
    (made,) = await mixture_client.sample(body(prompt, max_tokens=100, seed=5), adapter)
    sampled = trained.logprobs(prompt + made.tokens)[len(prompt) - 1 :]
    measured(
        Claim.SAMPLER,
        "tiny qwen3-moe, 100 sampled tokens",
        float(np.abs(made.logprobs - sampled).max()),
        within=TOLERANCE,
        one_token_later=float(np.abs(made.logprobs[1:] - sampled[:-1]).max()),
    )
    assert len(set(made.tokens)) > 10, "not one token again and again"


async def test_greedy_tokens_are_the_trainers_most_likely(mixture_client: SamplerClient, trained: Trained) -> None:
    adapter = AdapterRef(name="trained@1", path=PATH)
    prompt = np.random.default_rng(3).integers(2, 512, 40).tolist()
    (made,) = await mixture_client.sample(body(prompt, max_tokens=24, temperature=0.0), adapter)
    rows = trained.vocabulary(prompt + made.tokens[:-1])[len(prompt) - 1 :]
    assert rows.argmax(-1).tolist() == made.tokens
    (base,) = await mixture_client.sample(body(prompt, max_tokens=24, temperature=0.0))
    assert base.tokens != made.tokens


async def test_an_adapter_of_experts_is_refused_before_the_engine_sees_it(
    mixture: SamplerProcess, mixture_client: SamplerClient, trained: Trained
) -> None:
    path = "runs/experts@1/sampler_weights/_version_experts"
    image = randomize(trained.engine, 0, layout(4), seed=3)
    reference.write_adapter(image, mixture.model, mixture.store / path)
    with pytest.raises(grpc.aio.AioRpcError, match="adapts experts"):
        await mixture_client.score([5, 6, 7], AdapterRef(name="experts@1", path=path))
    assert (await mixture_client.score([5, 6, 7])).shape == (3,)
