"""Datums, adapters and comparisons for the engine's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from services.common.datum_blocks import Datum
from services.trainer.engine import Adam, Layout, Loss, SlotDatum, SlotImage
from services.trainer.megatron.engine import MegatronEngine

ALL = Layout(rank=8, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=True)
CROSS_ENTROPY = Loss("cross_entropy", {})
ADAM = Adam(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.01, grad_clip_norm=0.0)


def layout(rank: int, *, attn: bool = True, mlp: bool = True, unembed: bool = True, alpha: float = 32.0) -> Layout:
    return Layout(rank, alpha, attn, mlp, unembed)


def supervised(seed: int, length: int, vocab: int = 512, width: int = 1, scale: float = 1.0) -> Datum:
    """A cross-entropy datum with weights of both signs around `scale`, some of them zero."""
    rng = np.random.default_rng(seed)
    weights = (rng.normal(1.0, 0.5, (length, width)) * scale).astype(np.float32)
    weights[rng.random((length, width)) < 0.2] = 0.0
    return Datum(
        rng.integers(0, vocab, length).astype(np.int32),
        rng.integers(0, vocab, (length, width)).astype(np.int32),
        {"weights": weights},
    )


def policy(seed: int, length: int, logprobs: np.ndarray, scale: float = 1.0) -> Datum:
    """A policy-gradient datum over supervised(seed)'s tokens; q scatters around `logprobs`.

    It carries what any such loss reads; its first quarter is the prompt.
    """
    base = supervised(seed, length)
    rng = np.random.default_rng(seed + 1)
    advantages = (rng.normal(0.0, 1.0, (length, 1)) * scale).astype(np.float32)
    advantages[: length // 4] = 0.0
    q = (logprobs + rng.normal(0.0, 0.3, logprobs.shape)).astype(np.float32)
    q[: length // 4] = -99999.0
    raw = (q - np.float32(0.1)).astype(np.float32)
    raw[: length // 4] = np.nan
    mask = (advantages != 0).astype(np.float32)
    fields = {"logprobs": q, "advantages": advantages, "sequence_ratio_mask": mask, "raw_logprobs": raw}
    return Datum(base.tokens, base.targets, fields)


def whole_vocabulary(tokens: np.ndarray, vocab: int = 512) -> Datum:
    """Asks for the log-probability of every token at every position."""
    targets = np.tile(np.arange(vocab, dtype=np.int32), (len(tokens), 1))
    return Datum(tokens, targets, {"weights": np.zeros(targets.shape, np.float32)})


def randomize(engine: MegatronEngine, slot: int, shape: Layout, seed: int, scale: float = 0.05) -> SlotImage:
    """Puts an adapter with non-zero B into the slot and returns its image."""
    engine.init_slot(slot, shape, seed)
    image = engine.capture(slot, moments=False)
    generator = torch.Generator().manual_seed(seed)
    for name, value in image.weights.items():
        if name.endswith("lora_B.weight"):
            value.normal_(0.0, scale, generator=generator)
    engine.restore(slot, image)
    return image


def on_slot(slot: int, *datums: Datum) -> list[SlotDatum]:
    return [SlotDatum(slot, datum) for datum in datums]


def scaled(datum: Datum, factor: float) -> Datum:
    return replace(datum, fields={name: value * np.float32(factor) for name, value in datum.fields.items()})


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of `expected`."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30))


def worst(actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """Largest relative difference over all tensors; their names must agree."""
    assert set(actual) == set(expected)
    return max(relative(actual[name], expected[name]) for name in expected)


def misplaced(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Layers 0 and 1 exchanged: what a comparison per parameter must notice."""

    def other(name: str) -> str:
        swap = {"layers.0.": "layers.1.", "layers.1.": "layers.0."}
        part = next((part for part in swap if part in name), "")
        return name.replace(part, swap[part]) if part else name

    return {name: tensors[other(name)] for name in tensors}


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    return set(left) == set(right) and all(torch.equal(left[name], right[name]) for name in left)


def digests(engine: MegatronEngine, slots: Sequence[int]) -> dict[int, str]:
    return {slot: engine.slot_digest(slot) for slot in slots}
