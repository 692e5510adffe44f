"""Whether a directory holds an adapter that the engine can serve.

Checked before the engine sees it: an adapter that turns out to be bad while a batch is
being scheduled would take the whole engine down.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.common.errors import InvalidInput, MissingResource
from services.sampler.tensor_shapes import TensorEntry, read_shapes

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
_EXPERT = ".experts."
_DTYPES = ("F32", "BF16", "F16")
# PEFT features that change what the tensors mean and that the engine does not implement.
_REFUSED = (
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "alora_invocation_tokens",
    "use_bdlora",
    "use_qalora",
)


class AdapterFiles:
    """The check for one base model; `linear` is base_linear_shapes of its directory."""

    def __init__(self, linear: Mapping[str, tuple[int, int]], max_rank: int) -> None:
        self._linear = linear
        self._max_rank = max_rank

    def check(self, directory: Path) -> None:
        """Raises MissingResource (no such adapter) or InvalidInput (what is wrong with it)."""
        for file in (CONFIG_FILE, WEIGHTS_FILE):
            if not (directory / file).is_file():
                raise MissingResource(f"adapter {directory.name} has no {file}; save it again")
        try:
            rank = self._check_config(directory / CONFIG_FILE)
            self._check_tensors(read_shapes(directory / WEIGHTS_FILE), rank)
        except InvalidInput as error:
            raise InvalidInput(f"adapter {directory.name} cannot be served: {error.message}") from error

    def _check_config(self, path: Path) -> int:
        config = _read_object(path)
        if str(config.get("peft_type", "")).upper() != "LORA":
            raise InvalidInput(f"peft_type is {config.get('peft_type')!r}, not LORA")
        rank = config.get("r")
        if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= self._max_rank:
            raise InvalidInput(f"r is {rank!r}; this sampler serves ranks 1 to {self._max_rank}")
        alpha = config.get("lora_alpha")
        if not isinstance(alpha, int | float) or not math.isfinite(alpha) or alpha <= 0:
            raise InvalidInput(f"lora_alpha is {alpha!r}, not a positive number")
        if config.get("bias", "none") != "none":
            raise InvalidInput("it trains biases, which is not supported")
        for key in _REFUSED:
            if config.get(key):
                raise InvalidInput(f"{key} is set, which is not supported")
        return rank

    def _check_tensors(self, tensors: Mapping[str, TensorEntry], rank: int) -> None:
        sides: dict[str, set[str]] = {}
        for name, entry in tensors.items():
            match = _TENSOR.fullmatch(name)
            if match is not None and _EXPERT in match["module"]:
                raise InvalidInput("it adapts experts, which samplers do not serve; train without train_mlp")
            if match is None or not self._adaptable(match["module"]):
                raise InvalidInput(f"tensor {name[:200]!r} belongs to no matrix this model can adapt")
            self._check_tensor(name, entry, match["module"], match["side"], rank)
            sides.setdefault(match["module"], set()).add(match["side"])
        if not sides:
            raise InvalidInput(f"{WEIGHTS_FILE} holds no tensors")
        for module, found in sides.items():
            if len(found) != 2:
                raise InvalidInput(f"{module} has lora_{next(iter(found))} without its counterpart")

    def _adaptable(self, module: str) -> bool:
        return module in self._linear and module.rsplit(".", 1)[-1] in TARGET_MODULES

    def _check_tensor(self, name: str, entry: TensorEntry, module: str, side: str, rank: int) -> None:
        out_features, in_features = self._linear[module]
        expected = (rank, in_features) if side == "A" else (out_features, rank)
        if entry.shape != expected:
            raise InvalidInput(f"tensor {name} has shape {entry.shape}, this model needs {expected}")
        if entry.dtype not in _DTYPES:
            raise InvalidInput(f"tensor {name} is {entry.dtype}, not one of {', '.join(_DTYPES)}")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{path.name} is not a JSON object")
    return value
