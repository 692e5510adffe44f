"""`python -m services.sampler`: settings from TINKERMESH_SAMPLER_*; exit 0 after SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from tinkermesh.v1.types_pb2 import PoolFacts

from services.common import logs, telemetry
from services.common.settings import from_environment
from services.sampler.process import StartableEngine, serve
from services.sampler.settings import Settings

log = logging.getLogger("services.sampler")


def vllm_engine(settings: Settings, facts: PoolFacts) -> StartableEngine:
    # Imported only now: vLLM reads the environment at its first import.
    from services.sampler.engine import environment

    environment.prepare(settings.threads)
    logging.getLogger("vllm").setLevel(settings.engine_log_level)
    from services.sampler.engine.config import EngineConfig
    from services.sampler.engine.vllm_engine import VllmEngine

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
    )
    return VllmEngine(config, settings.stall_seconds)


def main() -> int:
    logs.configure("sampler")
    try:
        settings = from_environment(Settings, "sampler", os.environ).check()
        logging.getLogger().setLevel(settings.log_level)
        telemetry.configure("sampler", settings.sampler_id or str(os.getpid()))
        asyncio.run(serve(settings, vllm_engine))
    except Exception as error:  # noqa: BLE001 - the process boundary
        log.exception("the sampler ends: %s", error)
        return 1
    finally:
        telemetry.shutdown()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # An engine thread that hangs in native code must not keep the process alive.
    os._exit(code)
