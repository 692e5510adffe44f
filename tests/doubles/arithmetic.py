"""Integer 'training': what the trainer double computes instead of tensors.

A slot is three residues modulo a Mersenne prime. Every gradient is a hash of (weights, exact
datum bytes, loss), a window is their modular sum, an optimizer step hashes window and moments
into the weights. So packing order inside a window changes nothing, while a lost, doubled or
misplaced datum or step changes every later bit, and two runs can be compared for equality.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace

import numpy as np
from tinkermesh.v1 import types_pb2 as types

from services.common.datum_blocks import Datum, Float32, encode

MODULUS = 2**127 - 1


@dataclass(slots=True)
class SlotWeights:
    """weights, moments and window are residues in [0, MODULUS)."""

    layout: types.AdapterLayout = field(default_factory=types.AdapterLayout)
    weights: int = 0
    moments: int = 0
    step: int = 0
    window: int = 0
    window_datums: int = 0

    def copy(self) -> SlotWeights:
        return replace(self)

    def state(self, *, moments: bool) -> dict[str, object]:
        """What a checkpoint holds: never the open window."""
        kept = {"moments": f"{self.moments:x}", "step": self.step} if moments else {}
        return {"weights": f"{self.weights:x}", "rank": self.layout.rank, **kept}


def residue(*parts: bytes | str | float) -> int:
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little") % MODULUS


def fresh(layout: types.AdapterLayout, seed: int) -> SlotWeights:
    return SlotWeights(layout=layout, weights=residue("init", seed, layout.SerializeToString(deterministic=True)))


def restored(layout: types.AdapterLayout, state: dict[str, object], *, optimizer: bool) -> SlotWeights:
    """Raises KeyError or ValueError when `state` is not what `SlotWeights.state` makes."""
    slot = SlotWeights(layout=layout, weights=int(str(state["weights"]), 16))
    if optimizer:
        slot.moments, slot.step = int(str(state["moments"]), 16), int(str(state["step"]))
    return slot


def logprobs(weights: int, datum: Datum) -> Float32:
    """float32 [L, K] in (-8, 0), fixed by the weights, the tokens and the targets."""
    key = residue("logprobs", f"{weights:x}", encode([Datum(datum.tokens, datum.targets, {})], []))
    noise = np.random.Generator(np.random.PCG64(key)).random(datum.targets.shape, dtype=np.float32)
    return (-8.0 * noise - 0.001).astype(np.float32)


def loss(datum: Datum, scores: Float32) -> float:
    """Sum of -logprob * weight (cross_entropy) or -logprob * advantage, in float64."""
    factor = datum.fields.get("weights", datum.fields.get("advantages"))
    weighted = scores.astype(np.float64) if factor is None else scores.astype(np.float64) * factor
    return float(-math.fsum(weighted.ravel().tolist()))


def accumulate(slot: SlotWeights, datum: Datum, config: types.LossConfig) -> None:
    fields = sorted(datum.fields)
    canonical = config.SerializeToString(deterministic=True)
    gradient = residue("gradient", f"{slot.weights:x}", encode([datum], fields), ",".join(fields), canonical)
    slot.window = (slot.window + gradient) % MODULUS
    slot.window_datums += 1


def optim_step(slot: SlotWeights, adam: types.AdamParams) -> dict[str, float]:
    """Folds the window into moments and weights, empties it; answers metrics."""
    norm = float(slot.window % 1_000_003) / 1000.0
    slot.moments = (3 * slot.moments + slot.window) % MODULUS
    slot.step += 1
    canonical = adam.SerializeToString(deterministic=True)
    slot.weights = (slot.weights + residue("step", f"{slot.moments:x}", slot.step, canonical)) % MODULUS
    metrics = {"grad_norm": norm, "window_datums": float(slot.window_datums)}
    slot.window, slot.window_datums = 0, 0
    return metrics


def skip_step(slot: SlotWeights, _adam: types.AdamParams) -> dict[str, float]:
    """What a step comes to whose gradient is not finite: the window is gone, nothing else moves."""
    slot.window, slot.window_datums = 0, 0
    return {"skipped_nonfinite": 1.0}
