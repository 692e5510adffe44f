"""The training path put together from the ground and from what sampling gives it."""

from __future__ import annotations

from services.scheduler.dispatch.training import Training
from services.scheduler.parts.ground import Ground, ms
from services.scheduler.parts.sampling import SamplingParts


def make_training(ground: Ground, sampling: SamplingParts) -> Training:
    """Raises InvalidInput when the pepper cannot be read."""
    settings = ground.settings
    return Training(
        redis=ground.redis,
        functions=ground.functions,
        replica=settings.replica,
        directory=ground.directory,
        sessions=ground.session_directory,
        snapshots=sampling.snapshots,
        artifacts=ground.artifacts,
        sequences=ground.sequences,
        notices=ground.notices,
        store_root=ground.store_root,
        pepper=ground.pepper,
        leader_tasks=sampling.leader_tasks,
        gap_timeout_seconds=settings.gap_timeout_seconds,
        retention_seconds=settings.retention_seconds,
        fair=settings.fair,
        weights=ground.book.weights,
        quotas=ground.book.quotas,
        lease_ttl_ms=ms(settings.term_lease_seconds),
    )
