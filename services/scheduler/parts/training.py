"""The training path put together from the ground and from what sampling gives it."""

from __future__ import annotations

from services.scheduler.core.seating import Paging
from services.scheduler.dispatch.training import Training
from services.scheduler.dispatch.training_parts import TrainingParts
from services.scheduler.parts.ground import Ground, ms
from services.scheduler.parts.jobs import JobParts
from services.scheduler.parts.sampling import SamplingParts
from services.scheduler.settings import Settings
from services.scheduler.store.training import RecoveryLimits


def make_training(ground: Ground, sampling: SamplingParts, jobs: JobParts) -> Training:
    """Raises InvalidInput when the pepper cannot be read."""
    settings = ground.settings
    parts = TrainingParts(
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
        leader_tasks=[*sampling.leader_tasks, *jobs.leader_tasks],
        gap_timeout_seconds=settings.gap_timeout_seconds,
        retention_seconds=settings.retention_seconds,
        fair=settings.fair,
        weights=ground.book.weights,
        quotas=ground.book.quotas,
        recovery=recovery_limits(settings),
        paging=Paging(settings.paging, ms(settings.page_idle_seconds), ms(settings.page_after_seconds)),
        lease_ttl_ms=ms(settings.term_lease_seconds),
    )
    return Training(parts)


def recovery_limits(settings: Settings) -> RecoveryLimits:
    """A log is never full before a durable point is due: nothing would ever make room then."""
    limit = max(settings.log_limit_mib, settings.durable_log_mib) if settings.log_limit_mib else 0
    return RecoveryLimits(
        durable_every_steps=settings.durable_every_steps,
        durable_log_bytes=settings.durable_log_mib << 20,
        durable_idle_ms=ms(settings.durable_idle_seconds),
        poison_deaths=settings.poison_deaths,
        log_limit_bytes=limit << 20,
        cell_lost_ms=ms(settings.cell_lost_seconds),
    )
