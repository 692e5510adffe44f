"""The PEFT face of an adapter directory: what vLLM, PEFT and transformers read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.trainer.engine import Layout

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_SUFFIXES = (".lora_A.weight", ".lora_B.weight")


def target_modules(names: Iterable[str]) -> list[str]:
    """Last part of each adapted module's name: ``q_proj``, ``lm_head`` …"""
    modules = {name.removesuffix(suffix) for name in names for suffix in _SUFFIXES if name.endswith(suffix)}
    return sorted({module.rsplit(".", 1)[-1] for module in modules})


def adapter_config(layout: Layout, names: Iterable[str], base_model: str) -> dict[str, Any]:
    """adapter_config.json of a plain LoRA: no dropout, no bias, scale alpha / rank."""
    alpha = int(layout.alpha) if float(layout.alpha).is_integer() else layout.alpha
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "inference_mode": True,
        "r": layout.rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "target_modules": target_modules(names),
        "use_dora": False,
        "use_rslora": False,
    }
