"""The bounds of jobs."""

from __future__ import annotations

from dataclasses import dataclass

FLUSH_SECONDS = 1.0
FLUSH_TOKENS = 256
"""So many unsaved tokens of a task are saved without waiting for the second to be over."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Times in seconds unless named otherwise."""

    tasks_per_job: int = 10_000
    jobs_per_tenant: int = 100_000  # that are kept, ended ones too: about 1 KB of Redis and a directory each
    samples_per_task: int = 64
    running_per_pool: int = 16  # tasks at once
    place_seconds: float = 60.0  # of one wait for a sampler with room
    stream_seconds: float = 600.0  # of one attempt
    trouble_seconds: float = 300.0  # without a new token
    losses: int = 3  # samplers, or streams, lost without a new token: the task may be the cause
    keep_ms: int = 7 * 86_400_000  # after its end
    flush_seconds: float = FLUSH_SECONDS
    fair: bool = True
