"""The trainer's numeric half: adapter slots over a frozen Megatron-Core base.

Imports Megatron only when an engine is built, so the service half starts without it.
"""

from __future__ import annotations

import warnings

import torch.distributed as dist

from services.trainer.engine import Engine, EngineSpec


def build_engine(spec: EngineSpec) -> Engine:
    """The factory behind the trainer's `engine` setting; called once on every rank's main thread."""
    with warnings.catch_warnings():
        # Megatron warns at import that optional GPU packages are absent; they are by design.
        warnings.simplefilter("ignore", UserWarning)
        from services.trainer.megatron.engine import EngineConfig, MegatronEngine

        joined = dist.is_initialized()
        config = EngineConfig(
            model_dir=spec.model_path,
            slots=spec.slots,
            max_rank=spec.max_rank,
            micro_batch_tokens=spec.micro_batch_tokens,
            tensor_parallel=spec.tensor_parallel,
            data_parallel=spec.data_parallel,
            train_mlp=spec.train_mlp,
        )
        return MegatronEngine(config, dist.get_rank() if joined else 0, dist.get_world_size() if joined else 1)
