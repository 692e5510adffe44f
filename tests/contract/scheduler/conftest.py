"""A real Valkey for every contract test of the scheduler, and the training path on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from services.scheduler.store.functions import Functions
from tests.contract.scheduler.kept import Store
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.doubles.valkey import ValkeyProcess, functions, redis_client, valkey, valkey_server

__all__ = ["functions", "redis_client", "valkey", "valkey_server"]


@pytest.fixture
async def mesh(valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path) -> AsyncIterator[Mesh]:
    """One scheduler replica and one trainer double with four slots and a budget of 4,096 tokens."""
    async with running_mesh(valkey.url, tmp_path) as running:
        yield running


@pytest.fixture
async def store(redis_client: Redis, functions: Functions, tmp_path: Path) -> Store:
    """Samples of one tenant in Redis and files, without anything that runs."""
    made = Store(redis_client, functions, tmp_path)
    await made.open()
    return made
