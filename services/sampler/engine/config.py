"""The sampler's settings as vLLM's engine arguments."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from vllm.engine.arg_utils import EngineArgs

from services.common.errors import InvalidInput
from services.sampler.adapter_files import TARGET_MODULES
from services.sampler.engine.kv_legs import KvConfig

_ALLOWED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    model: Path
    dtype: str
    max_context: int
    kv_cache_bytes: int
    block_size: int
    max_running: int
    max_batched_tokens: int
    max_adapters: int
    max_rank: int
    max_topk: int
    stats: bool = False
    """Whether the engine keeps its own metrics."""
    kv: KvConfig | None = None
    """Only of a sampler whose role is prefill or decode."""


def engine_rank(rank: int) -> int:
    """The smallest rank vLLM has buffers for that holds `rank`."""
    for allowed in _ALLOWED_RANKS:
        if rank <= allowed:
            return allowed
    raise InvalidInput(f"max_rank {rank} is above {_ALLOWED_RANKS[-1]}, the highest the engine serves")


def engine_args(config: EngineConfig) -> EngineArgs:
    # One place more than adapters: the base model is an adapter of zeros. As many buffers as
    # known adapters, so vLLM never evicts one by itself and reads it again while scheduling.
    places = config.max_adapters + 1
    return EngineArgs(
        model=str(config.model),
        skip_tokenizer_init=False,
        dtype=config.dtype,
        # Unseeded samples must not repeat after a restart.
        seed=secrets.randbits(31),
        enforce_eager=True,
        block_size=config.block_size,
        kv_cache_memory_bytes=config.kv_cache_bytes,
        enable_prefix_caching=True,
        max_model_len=config.max_context + 1,
        max_num_seqs=config.max_running,
        max_num_batched_tokens=max(config.max_batched_tokens, config.max_running),
        enable_lora=True,
        max_loras=places,
        max_cpu_loras=places,
        max_lora_rank=engine_rank(config.max_rank),
        lora_target_modules=list(TARGET_MODULES),
        # Of the distribution sampled from; prompts are scored without sampling, hence raw.
        logprobs_mode="processed_logprobs",
        max_logprobs=max(config.max_topk, 1),
        distributed_executor_backend="uni",
        generation_config=str(config.model),
        disable_log_stats=not config.stats,
        use_tqdm_on_load=False,
        **(config.kv.engine_args() if config.kv is not None else {}),
    )
