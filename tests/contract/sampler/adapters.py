"""Random PEFT adapters for the tests, written without any of the product's code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
EVERYTHING = (*ATTENTION, *MLP, "lm_head")


def linear_shapes(model: Path) -> dict[str, torch.Size]:
    """Module -> (out, in) of every adaptable matrix."""
    weights = load_file(model / "model.safetensors")
    shapes = {
        name.removesuffix(".weight"): weight.shape
        for name, weight in weights.items()
        if name.split(".")[-2] in EVERYTHING
    }
    shapes.setdefault("lm_head", weights["model.embed_tokens.weight"].shape)
    return shapes


def write_adapter(
    model: Path,
    directory: Path,
    *,
    seed: int,
    rank: int = 8,
    alpha: float = 32.0,
    targets: Sequence[str] = EVERYTHING,
    scale: float = 0.05,
) -> Path:
    """A PEFT directory whose deltas are large enough to change every logit visibly."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for module, (out_features, in_features) in linear_shapes(model).items():
        if module.split(".")[-1] not in targets:
            continue
        prefix = f"base_model.model.{module}"
        tensors[f"{prefix}.lora_A.weight"] = scale * torch.randn(rank, in_features, generator=generator)
        tensors[f"{prefix}.lora_B.weight"] = scale * torch.randn(out_features, rank, generator=generator)
    directory.mkdir(parents=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(targets),
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory
