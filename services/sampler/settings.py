"""Settings of the sampler, read from TINKERMESH_SAMPLER_<FIELD>."""

from __future__ import annotations

from services.common.engine_settings import EngineSettings
from services.common.errors import InvalidInput
from services.sampler.legs import BOTH, ROLES

MOST_SEEDS = 1 << 32


class Settings(EngineSettings, frozen=True, kw_only=True):
    listen: str = "127.0.0.1:7003"
    sampler_id: str = ""
    """Stable over restarts; "" = sampler-<pool>-<advertised address>."""
    role: str = BOTH
    """both, or one leg of prefill and decode: prefill, decode. A leg loads no adapter within a request."""
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
    max_topk: int = 64
    """Most alternatives per token, in prompt and output."""
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
    engine_log_level: str = "ERROR"
    kv_directory: str = ""
    """Of a role: directory of the tier, in the shared store or node-local memory; all of a pair see the same one."""
    kv_limit_gib: float = 8.0
    """What the tier may hold; a prefill sampler drops the blocks longest unused beyond it."""
    kv_max_age_seconds: float = 3600.0
    """Blocks unused for longer are dropped."""
    kv_wait_seconds: float = 10.0
    """How long a leg waits for its blocks: to be saved, or to be found."""
    kv_strict: bool = True
    """A decode leg whose blocks are not there in time fails, retryably; false = it computes them again."""
    kv_hash_seed: str = ""
    """Whole number below 2^32, the same for every sampler that shares blocks; keys are derived from it."""
    redis_url: str = "redis://127.0.0.1:7000/0"
    """The mesh's Redis, for the tier's catalog; used only with a role."""
    redis_password_file: str = ""

    def check(self) -> Settings:
        """Raises InvalidInput naming the field that cannot be honoured."""
        self.check_counts("block_size", "max_running", "max_batched_tokens", "max_waiting", "max_adapters", "max_rank")
        if not self.kv_cache_gib > 0:
            raise InvalidInput(f"kv_cache_gib must be above 0, not {self.kv_cache_gib}")
        if self.dtype not in ("float32", "bfloat16"):
            raise InvalidInput(f"dtype {self.dtype!r} is not float32 or bfloat16")
        if self.role not in ROLES:
            raise InvalidInput(f"role {self.role!r} is not one of {', '.join(ROLES)}")
        if self.role != BOTH:
            self._check_tier()
        return self

    def _check_tier(self) -> None:
        for field in ("kv_limit_gib", "kv_max_age_seconds", "kv_wait_seconds"):
            if not getattr(self, field) > 0:
                raise InvalidInput(f"{field} must be above 0, not {getattr(self, field)}")
        if not self.kv_directory:
            raise InvalidInput(f"kv_directory is empty; a {self.role} sampler needs the directory of its tier")
        seed = self.kv_hash_seed
        if not (seed.isascii() and seed.isdigit() and int(seed) < MOST_SEEDS):
            raise InvalidInput(
                f"kv_hash_seed is {seed!r}; samplers that share blocks need the same whole number each, "
                f"0 to {MOST_SEEDS - 1}"
            )
