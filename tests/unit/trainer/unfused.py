"""Qwen3-MoE with each expert as three linear layers, under the names its checkpoints use.

transformers keeps all experts of a layer in two 3-D tensors, which PEFT adapts in another layout
(one A for gate and up). This reference sends every token through every expert and weights the
answers: slow and plain, it shares no step with the engine's sorting.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from peft import PeftModel

from services.trainer.engine import SlotImage
from tests.unit.trainer.reference import load_base, write_adapter


class Expert(torch.nn.Module):
    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        super().__init__()
        gate, up = gate_up.chunk(2)
        self.gate_proj, self.up_proj, self.down_proj = _linear(gate), _linear(up), _linear(down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(torch.nn.ModuleList):
    def forward(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        weights = torch.zeros(x.shape[0], len(self)).scatter(1, chosen, shares)
        return sum(weights[:, i, None] * expert(x) for i, expert in enumerate(self))


def _linear(weight: torch.Tensor) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data.copy_(weight)
    return layer


def load_unfused(directory: Path) -> torch.nn.Module:
    base = load_base(directory)
    for layer in base.model.layers:
        if hasattr(layer.mlp, "experts"):
            fused = layer.mlp.experts
            layer.mlp.experts = Experts(
                Expert(gate_up, down) for gate_up, down in zip(fused.gate_up_proj, fused.down_proj, strict=True)
            )
    base.config.model_type = "unfused"  # or PEFT rewrites the adapter for the fused tensors
    return base


def load_adapter(image: SlotImage, base: Path, directory: Path) -> PeftModel:
    """PEFT on the unfused model; adapter weights trainable."""
    write_adapter(image, base, directory)
    return PeftModel.from_pretrained(load_unfused(base), directory, is_trainable=True).eval()
