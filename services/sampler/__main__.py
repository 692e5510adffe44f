"""`python -m services.sampler`: settings from TINKERMESH_SAMPLER_*; exit 0 after SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tinkermesh.v1.types_pb2 import PoolFacts

from services.common.metrics_server import serving
from services.common.process import service_main
from services.common.redis_url import parse_redis_url
from services.sampler.kv_connector.scope import tier_id
from services.sampler.kv_connector.tier import TierBounds
from services.sampler.legs import BOTH, PREFILL
from services.sampler.metrics import SAMPLER
from services.sampler.process import StartableEngine, serve
from services.sampler.settings import Settings

if TYPE_CHECKING:
    from services.sampler.engine.kv_legs import KvConfig


def vllm_engine(settings: Settings, facts: PoolFacts) -> StartableEngine:
    # Imported only now: vLLM reads the environment at its first import.
    from services.sampler.engine import environment

    environment.prepare(settings.threads, settings.kv_hash_seed)
    logging.getLogger("vllm").setLevel(settings.engine_log_level)
    from services.sampler.engine.config import EngineConfig
    from services.sampler.engine.vllm_engine import VllmEngine
    from services.sampler.engine.vllm_metrics import VllmMetrics

    config = EngineConfig(
        model=Path(settings.model_path),
        dtype=settings.dtype,
        max_context=facts.max_context,
        kv_cache_bytes=int(settings.kv_cache_gib * (1 << 30)),
        block_size=settings.block_size,
        max_running=settings.max_running,
        max_batched_tokens=settings.max_batched_tokens,
        max_adapters=settings.max_adapters,
        max_rank=settings.max_rank,
        max_topk=settings.max_topk,
        stats=bool(settings.metrics_listen),
        kv=kv_config(settings, facts) if settings.role != BOTH else None,
    )
    if config.stats:
        SAMPLER.add_source(VllmMetrics())
    return VllmEngine(config, settings.stall_seconds)


def kv_config(settings: Settings, facts: PoolFacts) -> KvConfig:
    from services.sampler.engine.kv_legs import KvConfig

    directory = Path(settings.kv_directory)
    return KvConfig(
        directory=directory,
        tier=tier_id(directory),
        bounds=TierBounds(
            limit_bytes=int(settings.kv_limit_gib * (1 << 30)),
            max_age_seconds=settings.kv_max_age_seconds,
            wait_seconds=settings.kv_wait_seconds,
            strict=settings.kv_strict,
            collects=settings.role == PREFILL,
        ),
        redis=parse_redis_url(settings.redis_url, settings.redis_password_file),
        pool=facts.pool,
        hash_seed=settings.kv_hash_seed,
        model_fingerprint=facts.model_fingerprint,
        store_root=Path(settings.store_root),
    )


def run(settings: Settings) -> None:
    with serving("sampler", settings, SAMPLER):
        asyncio.run(serve(settings.check(), vllm_engine))


def main() -> int:
    return service_main("sampler", Settings, lambda settings: settings.sampler_id or str(os.getpid()), run)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # An engine thread that hangs in native code must not keep the process alive.
    os._exit(code)
