"""Settings of the sampler, read from TINKERMESH_SAMPLER_<FIELD>."""

from __future__ import annotations

import msgspec

from services.common.errors import InvalidInput


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    model_path: str
    """Directory of the base model, Hugging Face layout with safetensors."""
    store_root: str
    """Root of the shared store; the same directory on trainers, schedulers and samplers."""
    listen: str = "127.0.0.1:7003"
    advertise: str = ""
    """host:port schedulers reach this sampler at; "" = the bound address."""
    port_file: str = ""
    sampler_id: str = ""
    """Stable over restarts; "" = sampler-<pool>-<advertised address>."""
    schedulers: str = ""
    """Comma-separated gRPC targets that are told about this sampler; "" = do not register."""
    pool: str = ""
    base_model: str = ""
    aliases: str = ""
    """Comma-separated further names clients may ask for."""
    max_context: int = 0
    """Tokens of prompt and output; 0 = the model's, at most 2048."""
    dtype: str = "float32"
    """Numbers of the base model: float32 or bfloat16; must be what the pool's trainer registers."""
    kv_cache_gib: float = 0.5
    block_size: int = 32
    max_running: int = 16
    """Sequences in one engine batch; more wait in the engine's queue."""
    max_batched_tokens: int = 512
    """Tokens in one engine step; longer prompts are cut into chunks."""
    max_waiting: int = 8192
    """Sequences accepted and not finished; beyond it Sample answers RESOURCE_EXHAUSTED."""
    max_adapters: int = 8
    """Adapters resident at once."""
    max_rank: int = 32
    max_topk: int = 64
    """Most alternatives per token, in prompt and output."""
    threads: int = 0
    """Compute threads; 0 = torch's choice."""
    load_timeout_seconds: float = 120.0
    place_timeout_seconds: float = 120.0
    """How long a sample waits for a place when every adapter place is in use."""
    sample_timeout_seconds: float = 1800.0
    stall_seconds: float = 180.0
    """An engine that has work and makes no step for this long is dead."""
    orphan_seconds: float = 30.0
    """How long a sample runs on after its last caller has gone away."""
    drain_seconds: float = 10.0
    """How long a stop lets running samples finish."""
    log_level: str = "INFO"
    engine_log_level: str = "ERROR"

    @property
    def scheduler_targets(self) -> list[str]:
        return split_names(self.schedulers)

    def check(self) -> Settings:
        """Raises InvalidInput naming the field that cannot be honoured."""
        for field in ("block_size", "max_running", "max_batched_tokens", "max_waiting", "max_adapters", "max_rank"):
            if getattr(self, field) < 1:
                raise InvalidInput(f"{field} must be at least 1, not {getattr(self, field)}")
        if not self.kv_cache_gib > 0:
            raise InvalidInput(f"kv_cache_gib must be above 0, not {self.kv_cache_gib}")
        if self.dtype not in ("float32", "bfloat16"):
            raise InvalidInput(f"dtype {self.dtype!r} is not float32 or bfloat16")
        return self


def split_names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
