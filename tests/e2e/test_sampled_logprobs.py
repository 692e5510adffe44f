"""Logprobs of sampled tokens on real engines: vLLM against the trainer, and against the closed form at 0.7."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from tests.contract.sampler.reference import Reference
from tests.doubles.mesh import RealMeshProcesses
from tests.doubles.sdk_close import close
from tests.evidence.table import Claim, Measurements

tinker = pytest.importorskip("tinker", reason="the SDK is not installed")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

TOLERANCE = 1e-3
SEQUENCES, LENGTH = 32, 40
PROMPT = [17, 300, 45, 6, 211, 480, 92, 130]


@dataclass(frozen=True)
class Trained:
    """A model after a few real steps, its snapshot at a sampler, and PEFT's reading of the same files."""

    training: Any
    sampler: Any
    reference: Reference


@pytest.fixture(scope="module")
def trained(real_mesh: RealMeshProcesses, tiny_model: Path) -> Iterator[Trained]:
    service = tinker.ServiceClient(base_url=real_mesh.base_url, api_key=real_mesh.api_key)
    training = service.create_lora_training_client(base_model=real_mesh.settings.model_name, rank=8, seed=3).result()
    for step in range(3):
        tokens = np.random.default_rng(step).integers(2, 512, 65)
        training.forward_backward([datum(tokens.tolist())], "cross_entropy").result()
        training.optim_step(tinker.types.AdamParams(learning_rate=5e-3, eps=1e-8)).result()
    path = training.save_weights_for_sampler("numbers").result().path
    sampler = service.create_sampling_client(model_path=path).result()
    adapter = real_mesh.settings.store / public_directory(parse_tinker_path(path))
    yield Trained(training, sampler, Reference(tiny_model, adapter))
    close(service)


def datum(tokens: list[int]) -> Any:
    """Scores each token of `tokens` but the first."""
    length = len(tokens) - 1
    tensor = tinker.types.TensorData
    return tinker.types.Datum(
        model_input=tinker.types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tensor(data=np.asarray(tokens[1:], np.int64), dtype="int64", shape=[length]),
            "weights": tensor(data=np.ones(length, np.float32), dtype="float32", shape=[length]),
        },
    )


def sampled(trained: Trained, temperature: float) -> tuple[list[list[int]], np.ndarray]:
    """(sequences, their logprobs [SEQUENCES, LENGTH] as the sampler gave them)."""
    parameters = tinker.types.SamplingParams(max_tokens=LENGTH, temperature=temperature, seed=11, stop=[])
    made = trained.sampler.sample(tinker.types.ModelInput.from_ints(PROMPT), SEQUENCES, parameters).result()
    return [list(one.tokens) for one in made.sequences], np.array([one.logprobs for one in made.sequences])


def trainer_logprobs(trained: Trained, sequences: list[list[int]]) -> np.ndarray:
    output = trained.training.forward([datum(PROMPT + tokens) for tokens in sequences], "cross_entropy").result()
    return np.array([one["logprobs"].to_numpy()[-LENGTH:] for one in output.loss_fn_outputs])


def tempered(reference: Reference, sequences: list[list[int]], temperature: float) -> np.ndarray:
    """log_softmax(logits / T) of transformers with the snapshot merged by PEFT."""
    rows = []
    for tokens in sequences:
        logits = reference.logits(PROMPT + tokens)[len(PROMPT) - 1 : -1].double() / temperature
        rows.append(logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy())
    return np.array(rows)


def mean_gap(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(left - right).mean())


def test_sampler_and_trainer_agree_on_what_was_sampled_at_temperature_1(
    trained: Trained, tiny_model: Path, measured: Measurements
) -> None:
    sequences, logprobs = sampled(trained, 1.0)
    assert logprobs.size >= 1000
    gap = mean_gap(logprobs, trainer_logprobs(trained, sequences))
    base = mean_gap(logprobs, tempered(Reference(tiny_model), sequences, 1.0))
    name = f"{logprobs.size} sampled tokens, mean"
    measured(Claim.SAMPLER, f"{name}, temperature 1", gap, within=TOLERANCE, the_base_model=base)


def test_at_another_temperature_samples_are_scaled_and_training_is_not(
    trained: Trained, measured: Measurements
) -> None:
    sequences, logprobs = sampled(trained, 0.7)
    trainer = trainer_logprobs(trained, sequences)
    scaled = mean_gap(logprobs, tempered(trained.reference, sequences, 0.7))
    plain = mean_gap(trainer, tempered(trained.reference, sequences, 1.0))
    mixed = mean_gap(logprobs, trainer)
    name = f"{logprobs.size} sampled tokens, mean"
    measured(Claim.SAMPLER, f"{name}, temperature 0.7 against the scaled logits", scaled, within=TOLERANCE,
             the_trainer_unscaled=mixed)  # fmt: skip
    measured(Claim.SAMPLER, f"{name}, the trainer against the unscaled logits", plain, within=TOLERANCE,
             the_sampler_scaled=mixed)  # fmt: skip
