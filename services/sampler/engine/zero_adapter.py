"""The base model as an adapter: all zeros, with an engine id of its own.

On a CPU vLLM's LoRA operations give a row without an adapter the delta of the last buffer,
so no request may go without one.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from services.sampler.adapter_files import CONFIG_FILE, WEIGHTS_FILE
from services.sampler.ports import EngineAdapter
from services.sampler.tensor_shapes import base_linear_shapes

BASE_ENGINE_ID = 1
# Matrices an adapter lacks are zero in its buffers; these two make every kind of layer take part.
_MODULES = ("model.layers.0.self_attn.q_proj", "lm_head")


def base_adapter(directory: Path) -> EngineAdapter:
    return EngineAdapter("base", BASE_ENGINE_ID, directory)


def write_zero_adapter(model: Path, directory: Path) -> None:
    """A rank-1 PEFT directory of zeros for the base model in `model`."""
    shapes = base_linear_shapes(model)
    tensors: dict[str, np.ndarray] = {}
    for module in _MODULES:
        out_features, in_features = shapes[module]
        tensors[f"base_model.model.{module}.lora_A.weight"] = np.zeros((1, in_features), np.float32)
        tensors[f"base_model.model.{module}.lora_B.weight"] = np.zeros((out_features, 1), np.float32)
    directory.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "bias": "none", "target_modules": ["q_proj", "lm_head"]}
    (directory / CONFIG_FILE).write_text(json.dumps(config))
    save_file(tensors, directory / WEIGHTS_FILE)
