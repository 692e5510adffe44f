"""The bounds of sampling."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    sample_seconds: float = 600.0  # of one Sample call
    sampler_wait_seconds: float = 300.0  # without a sampler that can take it
    first_token_seconds: float = 180.0  # from a request to its first chunk: the engine's queue and the prompt
    next_token_seconds: float = 60.0  # between two chunks
    flow_retries: int = 1  # of what broke before anything of it reached its caller
    retention_ms: int = 86_400_000
    fair: bool = True
