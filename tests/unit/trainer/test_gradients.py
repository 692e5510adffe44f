"""Adapter gradients and exported adapters against PEFT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from services.common.datum_blocks import Datum
from services.trainer.engine import Loss, SlotImage
from services.trainer.losses import LOSSES
from services.trainer.megatron.engine import EngineConfig, MegatronEngine
from tests.evidence.table import Claim, Measurements
from tests.unit.trainer import reference
from tests.unit.trainer.models import BUILDERS
from tests.unit.trainer.rig import (
    ALL,
    CROSS_ENTROPY,
    layout,
    misplaced,
    on_slot,
    policy,
    randomize,
    supervised,
    whole_vocabulary,
    worst,
)

LENGTHS = (25, 9, 25, 40)
GRADIENT_TOLERANCE = 1e-4
LOGIT_TOLERANCE = 1e-3


def _datums(engine: MegatronEngine, loss: str) -> list[Datum]:
    plain = [supervised(i, length, width=1 + i % 2) for i, length in enumerate(LENGTHS)]
    if loss == "cross_entropy":
        return plain
    narrow = [supervised(i, length) for i, length in enumerate(LENGTHS)]
    scores = engine.run_pass(on_slot(0, *narrow), CROSS_ENTROPY, backward=False)
    return [policy(i, length, scores[i].logprobs) for i, length in enumerate(LENGTHS)]


def check_gradients(
    measured: Measurements, subject: str, actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> None:
    measured(
        Claim.GRADIENTS,
        subject,
        worst(actual, expected),
        within=GRADIENT_TOLERANCE,
        two_layers_exchanged=worst(misplaced(actual), expected),
    )


# The losses differ only in dL/dlogprob: one model is enough for those beside cross-entropy.
CASES = [(name, "cross_entropy") for name in BUILDERS] + [("qwen3", loss) for loss in LOSSES if loss != "cross_entropy"]


@pytest.mark.parametrize(("name", "loss"), CASES)
def test_gradients_of_all_targets_equal_pefts(
    name: str,
    loss: str,
    model_dir: Callable[[str], Path],
    engine_for: Callable[..., MegatronEngine],
    tmp_path: Path,
    measured: Measurements,
) -> None:
    engine = engine_for(name, micro_batch_tokens=60, logits_memory_bytes=64 * 512)
    image = randomize(engine, 0, ALL, seed=5)
    datums = _datums(engine, loss)
    results = engine.run_pass(on_slot(0, *datums), Loss(loss, {}), backward=True)
    peft = reference.load_adapter(image, model_dir(name), tmp_path / "adapter")
    expected = reference.gradients(peft, datums, loss, {})
    assert len(expected) == 2 * (7 * engine.facts.layers + 1)
    check_gradients(measured, f"tiny {name}, {loss}", engine.window_gradients(0), expected)
    for datum, result in zip(datums, results, strict=True):
        assert result.loss == pytest.approx(
            float(reference.loss_of(peft, datum, loss, {}).detach()), rel=1e-4, abs=1e-4
        )


PARTS = {
    "attention": layout(4, mlp=False, unembed=False),
    "MLP and unembedding": layout(3, attn=False),
    "attention and unembedding": layout(5, mlp=False),
}


@pytest.mark.parametrize("part", PARTS)
def test_partial_layouts_train_only_their_targets(
    part: str, engine: MegatronEngine, model_dir: Callable[[str], Path], tmp_path: Path, measured: Measurements
) -> None:
    shape = PARTS[part]
    image = randomize(engine, 0, shape, seed=6)
    datums = [supervised(1, 30), supervised(2, 11)]
    engine.run_pass(on_slot(0, *datums), CROSS_ENTROPY, backward=True)
    peft = reference.load_adapter(image, model_dir("qwen3"), tmp_path / "adapter")
    expected = reference.gradients(peft, datums, "cross_entropy", {})
    check_gradients(measured, f"tiny qwen3, {part} alone", engine.window_gradients(0), expected)


def test_unembedding_alone_is_trained_alone(
    engine: MegatronEngine, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    image = randomize(engine, 0, layout(5, attn=False, mlp=False), seed=6)
    datums = [supervised(1, 30), supervised(2, 11)]
    engine.run_pass(on_slot(0, *datums), CROSS_ENTROPY, backward=True)
    peft = reference.load_adapter(image, model_dir("qwen3"), tmp_path / "adapter")
    expected = reference.gradients(peft, datums, "cross_entropy", {})
    assert len(expected) == 2
    assert worst(engine.window_gradients(0), expected) <= GRADIENT_TOLERANCE


@pytest.mark.parametrize("name", ["qwen3", "llama-tied"])
def test_exported_adapter_in_peft_gives_the_engines_logits_SNAP_08(
    name: str,
    model_dir: Callable[[str], Path],
    engine_for: Callable[..., MegatronEngine],
    tmp_path: Path,
    measured: Measurements,
) -> None:
    engine = engine_for(name)
    images = {slot: randomize(engine, slot, layout(rank), seed=10 + slot) for slot, rank in ((0, 8), (2, 5))}
    tokens = supervised(3, 24).tokens
    scores = {
        slot: engine.run_pass(on_slot(slot, whole_vocabulary(tokens)), CROSS_ENTROPY, backward=False)[0].logprobs
        for slot in images
    }

    def gap(slot: int, image: SlotImage, label: str) -> float:
        peft = reference.load_adapter(image, model_dir(name), tmp_path / label)
        with torch.no_grad():
            return float(np.abs(scores[slot] - reference.log_softmax(peft, tokens).numpy()).max())

    exact = [gap(slot, images[slot], f"slot-{slot}") for slot in images]
    assert (np.argmax(scores[0], axis=-1) != np.argmax(scores[2], axis=-1)).any()
    swapped = gap(0, images[2], "swapped")
    images[0].weights["base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"].mul_(1.05)
    measured(
        Claim.EXPORT,
        f"tiny {name}, ranks 8 and 5",
        max(exact),
        within=LOGIT_TOLERANCE,
        the_other_adapter=swapped,
        one_B_off_by_a_twentieth=gap(0, images[0], "scaled"),
    )


@pytest.mark.engine
def test_default_models_gradients_and_export_equal_pefts(
    default_model: Path, tmp_path: Path, measured: Measurements
) -> None:
    engine = MegatronEngine(EngineConfig(default_model))
    image = randomize(engine, 0, layout(4), seed=5, scale=0.02)
    datums = [supervised(i, length, vocab=engine.facts.vocab) for i, length in enumerate((30, 12))]
    everything = whole_vocabulary(datums[1].tokens, engine.facts.vocab)
    scores = engine.run_pass(on_slot(0, everything), CROSS_ENTROPY, backward=False)[0].logprobs
    engine.run_pass(on_slot(0, *datums), CROSS_ENTROPY, backward=True)
    peft = reference.load_adapter(image, default_model, tmp_path / "adapter")
    expected = reference.gradients(peft, datums, "cross_entropy", {})
    check_gradients(measured, "SmolLM2-135M, cross_entropy", engine.window_gradients(0), expected)

    def gap() -> float:
        return float(np.abs(scores - reference.log_softmax(peft, everything.tokens).detach().numpy()).max())

    exact = gap()
    with peft.disable_adapter():
        measured(Claim.EXPORT, "SmolLM2-135M, rank 4", exact, within=LOGIT_TOLERANCE, without_the_adapter=gap())
