"""A small engine with real state: seeded weights, windows, Adam; numbers that depend on all of it.

TINKERMESH_STUB_FAULTS=FILE   JSON {"method", "rank", "error", "times"}; read at every call
TINKERMESH_STUB_GATE=FILE     a pass waits until FILE exists (bounded)
"""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from services.trainer.engine import (
    Adam,
    DatumResult,
    EngineSpec,
    Layout,
    Loss,
    SlotDatum,
    SlotImage,
    SlotMemory,
    StepResult,
)

HIDDEN, INNER, VOCABULARY = 8, 16, 32
PREFIX = "base_model.model."
MODULES = {
    "train_attn": [
        ("model.layers.0.self_attn.q_proj", HIDDEN, HIDDEN),
        ("model.layers.0.self_attn.o_proj", HIDDEN, HIDDEN),
    ],
    "train_mlp": [("model.layers.0.mlp.up_proj", HIDDEN, INNER)],
    "train_unembed": [("lm_head", HIDDEN, VOCABULARY)],
}
GATE_SECONDS = 30.0

Tensors = dict[str, torch.Tensor]


@dataclass
class StubSlot:
    layout: Layout | None = None
    weights: Tensors = field(default_factory=dict)
    averages: Tensors = field(default_factory=dict)
    squares: Tensors = field(default_factory=dict)
    window: Tensors = field(default_factory=dict)
    step: int = 0


class StubEngine:
    """Hooks for tests in the same process: `passes` counts, `gate` holds a pass back."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.slots = [StubSlot() for _ in range(spec.slots)]
        self.passes = 0
        self.calls: list[str] = []
        self.started = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.broken: dict[str, Exception] = {}

    def init_slot(self, slot: int, layout: Layout, seed: int) -> None:
        self._enter("init_slot")
        generator = torch.Generator().manual_seed(seed)
        weights = {
            name: torch.randn(shape, generator=generator) if ".lora_A." in name else torch.zeros(shape)
            for name, shape in self.expected_shapes(layout).items()
        }
        self.slots[slot] = StubSlot(layout, weights)

    def clear_slot(self, slot: int) -> None:
        self._enter("clear_slot")
        self.slots[slot] = StubSlot()

    def run_pass(self, datums: Sequence[SlotDatum], loss: Loss, *, backward: bool) -> list[DatumResult]:
        self.passes += 1
        self.started.set()
        if not self.gate.wait(GATE_SECONDS):
            raise TimeoutError("gate")
        _wait_for_gate_file()
        self._enter("run_pass")
        results = [self._score(item, loss) for item in datums]
        if backward:
            for item, result in zip(datums, results, strict=True):
                if not result.failure:
                    self._accumulate(item, result)
        return results

    def optim_steps(self, steps: Sequence[tuple[int, Adam]]) -> dict[int, StepResult]:
        self._enter("optim_steps")
        return {slot: self._step(self.slots[slot], adam) for slot, adam in steps}

    def discard_window(self, slot: int) -> None:
        self._enter("discard_window")
        self.slots[slot].window = {}

    def capture(self, slot: int, *, moments: bool) -> SlotImage:
        self._enter("capture")
        held = self.slots[slot]
        assert held.layout is not None
        image = SlotImage(held.layout, _copy(held.weights), step=held.step if moments else 0)
        if moments:
            image.exp_avg, image.exp_avg_sq = _copy(held.averages), _copy(held.squares)
        return image

    def expected_shapes(self, layout: Layout) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for flag, modules in MODULES.items():
            for module, inputs, outputs in modules if getattr(layout, flag) else ():
                shapes[f"{PREFIX}{module}.lora_A.weight"] = (layout.rank, inputs)
                shapes[f"{PREFIX}{module}.lora_B.weight"] = (outputs, layout.rank)
        return shapes

    def restore(self, slot: int, image: SlotImage) -> None:
        self._enter("restore")
        self.slots[slot] = StubSlot(
            image.layout, _copy(image.weights), _copy(image.exp_avg), _copy(image.exp_avg_sq), {}, image.step
        )

    def pass_peaks(self, lengths: Sequence[int]) -> list[int]:
        return []

    def free_memory(self) -> int:
        return 0

    def slot_memory(self) -> SlotMemory:
        return SlotMemory()

    def window_open(self, slot: int) -> bool:
        return bool(self.slots[slot].window)

    def slot_digest(self, slot: int) -> str:
        held, digest = self.slots[slot], hashlib.blake2b(digest_size=16)
        for tensors in (held.weights, held.averages, held.squares, held.window):
            for name in sorted(tensors):
                digest.update(name.encode() + tensors[name].numpy().tobytes())
        digest.update(str(held.step).encode())
        return digest.hexdigest()

    def _score(self, item: SlotDatum, loss: Loss) -> DatumResult:
        datum, weights = item.datum, self.slots[item.slot].weights
        scale = sum(float(t.double().sum()) for t in weights.values())
        logprobs = np.float32(-1e-3) * (datum.targets + datum.tokens[:, None] + np.float32(scale)).astype(np.float32)
        value = (
            float(-(logprobs * datum.fields["weights"]).sum()) if "weights" in datum.fields else float(-logprobs.sum())
        )
        return DatumResult(value, logprobs, "" if np.isfinite(value) else "loss is not finite")

    def _accumulate(self, item: SlotDatum, result: DatumResult) -> None:
        held = self.slots[item.slot]
        for name, weight in held.weights.items():
            gradient = weight * 1e-2 + result.loss
            held.window[name] = held.window.get(name, torch.zeros_like(weight)) + gradient

    def _step(self, held: StubSlot, adam: Adam) -> StepResult:
        window, held.window = held.window, {}
        norm = float(sum(float((g.double() ** 2).sum()) for g in window.values())) ** 0.5
        if not np.isfinite(norm):
            return StepResult({"grad_norm": norm, "skipped_nonfinite": 1.0})
        held.step += 1
        for name, weight in held.weights.items():
            gradient = window.get(name, torch.zeros_like(weight))
            first = held.averages.get(name, torch.zeros_like(weight)) * adam.beta1 + (1 - adam.beta1) * gradient
            second = held.squares.get(name, torch.zeros_like(weight)) * adam.beta2 + (1 - adam.beta2) * gradient**2
            held.averages[name], held.squares[name] = first, second
            corrected = first / (1 - adam.beta1**held.step)
            root = (second / (1 - adam.beta2**held.step)).sqrt() + adam.eps
            held.weights[name] = weight - adam.learning_rate * corrected / root
        return StepResult({"grad_norm": norm})

    def _enter(self, method: str) -> None:
        self.calls.append(method)
        if method in self.broken:
            raise self.broken[method]
        _raise_injected(method)


def build(spec: EngineSpec) -> StubEngine:
    return StubEngine(spec)


def _copy(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _raise_injected(method: str) -> None:
    path = os.environ.get("TINKERMESH_STUB_FAULTS")
    if not path or not Path(path).is_file():
        return
    fault = json.loads(Path(path).read_text())
    if fault["method"] == method and fault["rank"] in (_rank(), "all"):
        if fault["error"] == "exit":
            os._exit(9)
        raise getattr(builtins, fault["error"])("injected")


def _wait_for_gate_file() -> None:
    gate = os.environ.get("TINKERMESH_STUB_GATE")
    deadline = time.monotonic() + GATE_SECONDS
    while gate and not Path(gate).exists():
        if time.monotonic() > deadline:
            raise TimeoutError("gate file")
        time.sleep(0.01)
