"""Mixtures of experts: base, adapters and exports against transformers and PEFT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from services.common.errors import ContractViolation
from services.trainer.engine import SlotImage
from services.trainer.megatron.engine import MegatronEngine
from tests.evidence.table import Claim, Measurements
from tests.unit.trainer import reference, unfused
from tests.unit.trainer.rig import (
    ALL,
    CROSS_ENTROPY,
    layout,
    misplaced,
    on_slot,
    randomize,
    supervised,
    whole_vocabulary,
    worst,
)

LENGTHS = (25, 9, 1, 25, 60)
LOGPROB_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-4
LOGIT_TOLERANCE = 1e-3
# Of these two, one mixes sparse and dense layers, the other has all else the other way.
names = pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-moe-plain"])
Engines = Callable[..., MegatronEngine]
Models = Callable[[str], Path]


def _exchange_experts(base: torch.nn.Module, layer: int) -> None:
    fused = base.model.layers[layer].mlp.experts
    for weight in (fused.gate_up_proj, fused.down_proj):
        weight.data[[0, 1]] = weight.data[[1, 0]]


@names
def test_fresh_slot_gives_the_base_models_logprobs_OPT_07(
    name: str, model_dir: Models, engine_for: Engines, measured: Measurements
) -> None:
    engine = engine_for(name, micro_batch_tokens=80)
    engine.init_slot(0, ALL, seed=1)
    datums = [supervised(i, length, width=1 + i % 3) for i, length in enumerate(LENGTHS)]
    results = engine.run_pass(on_slot(0, *datums), CROSS_ENTROPY, backward=False)

    def gap(base: torch.nn.Module) -> float:
        expected = [reference.target_logprobs(base, datum) for datum in datums]
        return max(float(np.abs(r.logprobs - e).max()) for r, e in zip(results, expected, strict=True))

    exact, exchanged, router, fewer = (reference.load_base(model_dir(name)) for _ in range(4))
    _exchange_experts(exchanged, 3)
    for layer in router.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.norm_topk_prob = not layer.mlp.gate.norm_topk_prob
            fewer.model.layers[layer.self_attn.layer_idx].mlp.gate.top_k -= 1
    measured(
        Claim.LOGPROBS,
        f"tiny {name}",
        gap(exact),
        within=LOGPROB_TOLERANCE,
        norm_topk_prob_the_other_way=gap(router),
        an_expert_fewer=gap(fewer),
        two_experts_exchanged=gap(exchanged),
    )


PARTS = {"everything": ALL, "attention": layout(4, mlp=False, unembed=False), "experts": layout(3, attn=False)}


def _experts_exchanged(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    swap = {".experts.0.": ".experts.1.", ".experts.1.": ".experts.0."}

    def other(name: str) -> str:
        part = next((part for part in swap if part in name), "")
        return name.replace(part, swap[part]) if part else name

    return {name: tensors[other(name)] for name in tensors}


@names
@pytest.mark.parametrize("part", PARTS)
def test_gradients_of_all_targets_equal_pefts(
    name: str, part: str, model_dir: Models, engine_for: Engines, tmp_path: Path, measured: Measurements
) -> None:
    """Of several micro-batches, in which not every expert has tokens."""
    engine = engine_for(name, micro_batch_tokens=30)
    image = randomize(engine, 0, PARTS[part], seed=5)
    datums = [supervised(i, length, width=1 + i % 2) for i, length in enumerate(LENGTHS)]
    engine.run_pass(on_slot(0, *datums), CROSS_ENTROPY, backward=True)
    peft = unfused.load_adapter(image, model_dir(name), tmp_path / "adapter")
    expected = reference.gradients(peft, datums, "cross_entropy", {})
    actual = engine.window_gradients(0)
    if part == "attention":
        controls = {"two_layers_exchanged": worst(misplaced(actual), expected)}
    else:
        controls = {"two_experts_exchanged": worst(_experts_exchanged(actual), expected)}
    measured(Claim.GRADIENTS, f"tiny {name}, {part}", worst(actual, expected), within=GRADIENT_TOLERANCE, **controls)


def test_gradients_reach_the_attention_through_the_routers_probabilities(
    model_dir: Models, engine_for: Engines, tmp_path: Path
) -> None:
    """The control of the gradients: without that path they are others."""
    engine = engine_for("qwen3-moe")
    image = randomize(engine, 0, layout(4, mlp=False, unembed=False), seed=5)
    datums = [supervised(1, 40)]
    engine.run_pass(on_slot(0, *datums), CROSS_ENTROPY, backward=True)
    peft = unfused.load_adapter(image, model_dir("qwen3-moe"), tmp_path / "adapter")
    for layer in peft.base_model.model.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_hook(lambda _module, _inputs, out: tuple(one.detach() for one in out))
    cut = reference.gradients(peft, datums, "cross_entropy", {})
    assert worst(engine.window_gradients(0), cut) > 100 * GRADIENT_TOLERANCE


def test_experts_that_no_token_chose_have_no_gradient_whatever_lay_in_the_buffer(engine_for: Engines) -> None:
    engine = engine_for("qwen3-moe")
    randomize(engine, 0, ALL, seed=5)
    for buffer in engine.slots.get(0).buffers:
        buffer.tensor.fill_(float("nan"))
    engine.run_pass(on_slot(0, supervised(1, 1)), CROSS_ENTROPY, backward=True)
    gradients = engine.window_gradients(0)
    chosen = {
        layer: sum(
            bool(gradients[f"base_model.model.model.layers.{layer}.mlp.experts.{e}.down_proj.lora_A.weight"].any())
            for e in range(8)
        )
        for layer in (0, 1, 3)
    }
    assert chosen == {0: 3, 1: 3, 3: 3}
    assert all(value.isfinite().all() for value in gradients.values())


def _pefts_loader(image: SlotImage, base: Path, directory: Path) -> torch.nn.Module:
    """It rewrites the experts' matrices for transformers' fused tensors, and loses dense layers in doing so."""
    return reference.load_adapter(image, base, directory)


@pytest.mark.parametrize(("name", "load"), [("qwen3-moe-sparse", _pefts_loader), ("qwen3-moe", unfused.load_adapter)])
def test_exported_adapter_in_peft_gives_the_engines_logits_SNAP_08(
    name: str,
    load: Callable[[SlotImage, Path, Path], torch.nn.Module],
    model_dir: Models,
    engine_for: Engines,
    tmp_path: Path,
    measured: Measurements,
) -> None:
    engine = engine_for(name)
    image = randomize(engine, 1, layout(5), seed=11)
    tokens = supervised(3, 24).tokens
    scores = engine.run_pass(on_slot(1, whole_vocabulary(tokens)), CROSS_ENTROPY, backward=False)[0].logprobs

    def gap(label: str) -> float:
        peft = load(image, model_dir(name), tmp_path / label)
        with torch.no_grad():
            return float(np.abs(scores - reference.log_softmax(peft, tokens).numpy()).max())

    exact = gap("exact")
    image.weights["base_model.model.model.layers.3.mlp.experts.2.up_proj.lora_B.weight"].mul_(2.0)
    measured(Claim.EXPORT, f"tiny {name}, rank 5", exact, within=LOGIT_TOLERANCE, one_experts_B_doubled=gap("scaled"))


def test_a_pool_that_does_not_train_experts_refuses_them_and_sizes_slots_without_them(engine_for: Engines) -> None:
    everything, rest = engine_for("qwen3-moe"), engine_for("qwen3-moe", train_mlp=False)
    with pytest.raises(ContractViolation, match="train_mlp"):
        rest.init_slot(0, ALL, seed=1)
    rest.init_slot(0, layout(8, mlp=False), seed=1)
    assert rest.slot_memory().slot < everything.slot_memory().slot / 2
    assert rest.slots.get(0).plan.size * 20 * 4 == rest.slot_memory().slot  # rank 8 of 32
