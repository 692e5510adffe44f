"""Losses and layouts on real engines: what vLLM sampled and recorded, Megatron trains on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tinker

from tests.doubles.mesh import RealMeshProcesses
from tests.doubles.sdk_close import close
from tests.doubles.sdk_datums import datum, reinforced, supervised

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

PROMPT = [5, 9, 200, 31, 7, 8]
TOLERANCE = 2e-3
PARTS = ("train_attn", "train_mlp", "train_unembed")


@pytest.fixture
def service(real_mesh: RealMeshProcesses) -> Iterator[Any]:
    """Closed after each test: the mesh has eight slots for all tests together."""
    client = tinker.ServiceClient(base_url=real_mesh.base_url, api_key=real_mesh.api_key)
    yield client
    close(client)


def trained(service: Any, mesh: RealMeshProcesses, **layout: bool) -> Any:
    """An adapter some steps away from its base, of a seed of its own."""
    training = service.create_lora_training_client(
        base_model=mesh.settings.model_name, rank=8, seed=17, **layout
    ).result()
    tokens = np.random.default_rng(4).integers(1, 512, 24)
    for _ in range(4):
        training.forward_backward([supervised(tokens[:-1], tokens[1:])], "cross_entropy")
        training.optim_step(tinker.types.AdamParams(learning_rate=1e-2)).result()
    return training


def sample(training: Any, count: int, **options: Any) -> list[Any]:
    sampler = training.save_weights_and_get_sampling_client(record_stability_info=True)
    sampler = sampler.result() if hasattr(sampler, "result") else sampler
    parameters = tinker.types.SamplingParams(stop=[], **options)
    return list(sampler.sample(tinker.types.ModelInput.from_ints(PROMPT), count, parameters).result().sequences)


def test_stable_reinforce_reads_the_samplers_records_at_a_temperature_ADD_07(
    service: Any, real_mesh: RealMeshProcesses
) -> None:
    training = trained(service, real_mesh)
    sequences = sample(training, 4, max_tokens=12, temperature=0.7, seed=5)
    advantages = (1.0, -2.0, 0.5, 1.5)
    data = [reinforced(PROMPT, one, a) for one, a in zip(sequences, advantages, strict=True)]
    without = training.forward(data, "stable_reinforce", {"kl_coeff": 0.0}).result()
    expected, tempered_gap = 0.0, 0.0
    for one, a, output in zip(sequences, advantages, without.loss_fn_outputs, strict=True):
        scores = np.array(output["logprobs"].data)[len(PROMPT) - 1 :]
        for lp, q in zip(scores, one.logprobs, strict=True):
            expected += -min(math.exp(lp - q), 2.0) * a * lp
            tempered_gap += 0.5 * (lp - q) ** 2
    assert without.metrics["loss:sum"] == pytest.approx(expected, rel=1e-3)
    # The same weights sampled and score now: only the untempered record makes the KL term vanish.
    with_kl = training.forward(data, "stable_reinforce", {"kl_coeff": 1.0}).result()
    assert abs(with_kl.metrics["loss:sum"] - without.metrics["loss:sum"]) < 0.01
    assert tempered_gap > 1.0
    training.forward_backward(data, "stable_reinforce").result()
    assert training.optim_step(tinker.types.AdamParams(learning_rate=1e-2)).result().metrics["grad_norm"] > 0
    moved = training.forward(data, "stable_reinforce", {"kl_coeff": 1.0}).result()
    still = training.forward(data, "stable_reinforce", {"kl_coeff": 0.0}).result()
    assert moved.metrics["loss:sum"] - still.metrics["loss:sum"] > 0.05


@pytest.mark.parametrize("loss", ["stable_reinforce", "gspo"])
def test_reward_rises_on_an_easy_task(service: Any, real_mesh: RealMeshProcesses, loss: str) -> None:
    """Rewarded: tokens below 128, a quarter of the vocabulary."""
    training = service.create_lora_training_client(base_model=real_mesh.settings.model_name, rank=8, seed=3).result()
    rewards = []
    for step in range(6):
        sequences = sample(training, 16, max_tokens=6, seed=100 * step)
        scores = np.array([np.mean(np.asarray(one.tokens) < 128) for one in sequences])
        rewards.append(float(scores.mean()))
        data = [reinforced(PROMPT, one, float(a)) for one, a in zip(sequences, scores - scores.mean(), strict=True)]
        if loss == "gspo":
            data = [masked(one) for one in data]
        training.forward_backward(data, loss)
        training.optim_step(tinker.types.AdamParams(learning_rate=2e-2)).result()
    print(loss, rewards)
    assert np.mean(rewards[-2:]) > rewards[0] + 0.2


def masked(one: Any) -> Any:
    inputs = dict(one.loss_fn_inputs)
    length = len(inputs["target_tokens"].data)
    inputs["sequence_ratio_mask"] = (np.arange(length) >= len(PROMPT) - 1).astype(np.float32)
    return tinker.types.Datum(model_input=one.model_input, loss_fn_inputs=inputs)


def test_the_teachers_top_tokens_become_matrix_targets(service: Any, real_mesh: RealMeshProcesses) -> None:
    """Off-policy distillation as the cookbook does it: top-k of a prompt, (N, K) cross-entropy."""
    torch = pytest.importorskip("torch")
    teacher = service.create_sampling_client(base_model=real_mesh.settings.model_name)
    teacher = teacher.result() if hasattr(teacher, "result") else teacher
    tokens = [int(t) for t in np.random.default_rng(8).integers(1, 512, 16)]
    parameters = tinker.types.SamplingParams(max_tokens=1)
    asked = tinker.types.ModelInput.from_ints(tokens)
    answer = teacher.sample(asked, 1, parameters, include_prompt_logprobs=True, topk_prompt_logprobs=5).result()
    rows = [row[:5] for row in answer.topk_prompt_logprobs[1:]]
    targets = torch.tensor([[token for token, _ in row] for row in rows])
    scores = np.array([[score for _, score in row] for row in rows], np.float32)
    student = service.create_lora_training_client(base_model=real_mesh.settings.model_name, rank=8, seed=4).result()
    weights = torch.from_numpy(np.exp(scores))
    weights[::3] = 0.0  # prompt positions: sparse rows
    one = datum(tokens[:-1], target_tokens=targets, weights=weights)
    output = student.forward([one], "cross_entropy").result()
    answered = output.loss_fn_outputs[0]["logprobs"].to_torch().numpy()
    assert answered.shape == (15, 5)
    assert np.abs(answered - scores).max() <= TOLERANCE  # a fresh student is the teacher
    assert output.metrics["loss:sum"] == pytest.approx(-float((answered * weights.numpy()).sum()), rel=1e-4)


@pytest.mark.parametrize("on", [("train_attn",), ("train_mlp",), ("train_unembed",), ("train_attn", "train_mlp")])
def test_an_adapter_of_some_parts_is_trained_exported_and_sampled_as_such_VAL_15(
    service: Any, real_mesh: RealMeshProcesses, on: tuple[str, ...]
) -> None:
    training = trained(service, real_mesh, **{part: part in on for part in PARTS})
    path = training.save_weights_for_sampler("parts").result().path
    run, kind, name = path.removeprefix("tinker://").split("/")
    config = json.loads((real_mesh.settings.store / "runs" / run / kind / name / "adapter_config.json").read_text())
    modules = {
        "train_attn": {"q_proj", "k_proj", "v_proj", "o_proj"},
        "train_mlp": {"gate_proj", "up_proj", "down_proj"},
        "train_unembed": {"lm_head"},
    }
    assert set(config["target_modules"]) == set().union(*(modules[part] for part in on))
    sampler = service.create_sampling_client(model_path=path)
    sampler = sampler.result() if hasattr(sampler, "result") else sampler
    base = service.create_sampling_client(base_model=real_mesh.settings.model_name)
    base = base.result() if hasattr(base, "result") else base
    prompt = tinker.types.ModelInput.from_ints(PROMPT)
    scored, plain = (np.array(client.compute_logprobs(prompt).result()[1:]) for client in (sampler, base))
    output = training.forward([supervised(PROMPT[:-1], np.array(PROMPT[1:]))], "cross_entropy").result()
    trainer = np.array(output.loss_fn_outputs[0]["logprobs"].data)
    assert np.abs(scored - trainer).max() <= TOLERANCE
    assert np.abs(plain - trainer).max() > 5 * TOLERANCE
