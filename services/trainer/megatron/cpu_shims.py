"""What Megatron-Core asks of CUDA without need, answered for a process without a GPU.

Megatron-Core names torch.cuda in places that a forward and backward pass on the CPU reaches.
Each shim below answers exactly one of them; on a machine with CUDA nothing is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.tensor_parallel import random as megatron_random


class _CpuRngTracker:
    """Dropout is off, so a fork of the generator is the generator."""

    @contextmanager
    def fork(self, name: str = "") -> Iterator[None]:
        yield

    def get_states(self) -> dict[str, Any]:
        return {}


def apply() -> None:
    """Idempotent; does nothing when CUDA is available."""
    if torch.cuda.is_available():
        return
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    megatron_random._CUDA_RNG_STATE_TRACKER = _CpuRngTracker()
    megatron_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
