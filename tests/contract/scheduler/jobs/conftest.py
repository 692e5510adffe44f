from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from services.scheduler.store.functions import Functions
from tests.contract.scheduler.jobs.rig import JobRig


@pytest.fixture
async def idle(redis_client: Redis, functions: Functions, tmp_path: Path) -> AsyncIterator[JobRig]:
    """Nobody runs jobs yet."""
    rig = JobRig(redis_client, functions, tmp_path)
    yield rig
    await rig.stop()


@pytest.fixture
async def jobs(idle: JobRig) -> JobRig:
    await idle.start()
    return idle
