"""The port between the trainer's service half and its numeric half (services/trainer/megatron).

Every method runs in the main thread of every rank with equal arguments; results are equal on
all ranks unless said otherwise. All tensors are float32 on the CPU at this seam.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from services.common.datum_blocks import Datum


@dataclass(frozen=True, slots=True)
class Layout:
    rank: int
    alpha: float
    train_attn: bool
    train_mlp: bool
    train_unembed: bool


@dataclass(frozen=True, slots=True)
class Loss:
    """`config` holds only the keys the loss reads, defaults filled in."""

    name: str
    config: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SlotDatum:
    slot: int
    datum: Datum


@dataclass(frozen=True, slots=True)
class DatumResult:
    """loss: raw sum over positions; logprobs float32 [L, K]; `failure` set: contributed nothing."""

    loss: float
    logprobs: npt.NDArray[np.float32]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Adam:
    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip_norm: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """metrics: grad_norm (pre-clip, this slot only) and, when it was skipped, skipped_nonfinite = 1.

    `failure` set: only this slot's step failed, its state is unknown.
    """

    metrics: Mapping[str, float]
    failure: str = ""


@dataclass(slots=True)
class SlotImage:
    """A copy of one slot in the canonical, TP-independent PEFT layout.

    Names are PEFT's (``base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`` …,
    ``base_model.model.lm_head.lora_A.weight``); A is [r, in], B is [out, r], trimmed to the rank; any strides.
    `exp_avg` and `exp_avg_sq` are Adam's moments under the same names; empty = weights only. `step`
    counts the optimizer steps behind them.
    """

    layout: Layout
    weights: dict[str, torch.Tensor]
    exp_avg: dict[str, torch.Tensor] = field(default_factory=dict)
    exp_avg_sq: dict[str, torch.Tensor] = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True, slots=True)
class SlotMemory:
    """Bytes of this rank's memory: `slot` of one slot with everything in use, `image` of one capture with moments.

    `image` is 0 where captures lie in another memory than slots, or on another rank. `lazy`: slots take it from the
    machine that everything runs on, and only as they fill.
    """

    slot: int = 0
    image: int = 0
    lazy: bool = False


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What a factory ``build_engine(spec) -> Engine`` needs; called once on every rank.

    torch.distributed is initialised already when the world has more than one rank
    (world = tensor_parallel * data_parallel); a world of one is left to the factory.
    """

    model_path: Path
    slots: int
    max_rank: int
    alpha: float
    micro_batch_tokens: int
    max_context: int
    tensor_parallel: int = 1
    data_parallel: int = 1
    train_mlp: bool = True


class Engine(Protocol):
    """N adapter slots over one frozen base."""

    def init_slot(self, slot: int, layout: Layout, seed: int) -> None:
        """A fresh adapter (A Kaiming-uniform as PEFT, B zero, seeded), no moments, empty window."""
        ...

    def clear_slot(self, slot: int) -> None:
        """Weights, gradients and optimizer state of the slot are gone everywhere."""
        ...

    def run_pass(self, datums: Sequence[SlotDatum], loss: Loss, *, backward: bool) -> list[DatumResult]:
        """One packed pass; `datums` are sorted by slot and carry exactly the loss's fields.

        With `backward`, gradients of all datums without `failure` are added to their slots'
        windows. If it raises, every window is bitwise what it was before.
        """
        ...

    def optim_steps(self, steps: Sequence[tuple[int, Adam]]) -> dict[int, StepResult]:
        """One optimizer step per slot, sorted by slot; consumes the slots' windows."""
        ...

    def discard_window(self, slot: int) -> None:
        """The slot's window is empty; weights, moments and clock stay."""
        ...

    def capture(self, slot: int, *, moments: bool) -> SlotImage:
        """A copy; complete on rank 0 (other ranks may answer an image without tensors)."""
        ...

    def expected_shapes(self, layout: Layout) -> dict[str, tuple[int, ...]]:
        """Name -> full (TP-independent) shape of every weight an image of `layout` must hold."""
        ...

    def restore(self, slot: int, image: SlotImage) -> None:
        """Assign a validated image; without moments Adam starts fresh. Clears the window."""
        ...

    def pass_peaks(self, lengths: Sequence[int]) -> list[int]:
        """Bytes that a backward pass over one datum of each length takes at its peak, beyond what is held now.

        `lengths` increase; every slot must be empty and is so afterwards. Empty = it cannot be told here.
        """
        ...

    def free_memory(self) -> int:
        """Bytes this rank's device could still give to passes; 0 = it cannot be told."""
        ...

    def slot_memory(self) -> SlotMemory:
        """Of an adapter of the largest rank and of all that the pool trains: weights, open window, a pass, moments."""
        ...

    def window_open(self, slot: int) -> bool: ...

    def slot_digest(self, slot: int) -> str:
        """Hex digest over this rank's weights, moments and window of the slot (tests, admin)."""
        ...
