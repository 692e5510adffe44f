"""`python -m services.sampler`: settings from TINKERMESH_SAMPLER_*; exit 0 after SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from tinkermesh.v1.types_pb2 import PoolFacts

from services.common.metrics_server import serving
from services.common.process import service_main
from services.sampler.metrics import SAMPLER
from services.sampler.process import StartableEngine, serve
from services.sampler.settings import Settings


def vllm_engine(settings: Settings, facts: PoolFacts) -> StartableEngine:
    # Imported only now: vLLM reads the environment at its first import.
    from services.sampler.engine import environment

    environment.prepare(settings.threads)
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
    )
    if config.stats:
        SAMPLER.add_source(VllmMetrics())
    return VllmEngine(config, settings.stall_seconds)


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
