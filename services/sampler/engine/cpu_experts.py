"""On a CPU, a mixture's experts run on vLLM's CPU kernels although adapters are served.

vLLM takes its Triton kernels for experts as soon as adapters are on, because those can carry them,
and on a CPU they are not there. Adapters of experts are refused (adapter_files.py), so the
experts need no such kernels.
"""

from __future__ import annotations

from typing import Any

from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as methods
from vllm.platforms import current_platform

_select = methods.select_unquantized_moe_backend


def enable() -> None:
    """Called before the engine is built; does nothing on other devices."""
    if current_platform.is_cpu():
        methods.select_unquantized_moe_backend = _select_without_adapters


def _select_without_adapters(moe_config: Any) -> Any:
    moe_config.is_lora_enabled = False
    return _select(moe_config)
