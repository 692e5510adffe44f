"""Commands through admission, Redis, the core, a real gRPC trainer double, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.contract.scheduler.rig import Mesh, new_session, running_mesh
from tests.doubles.valkey import ValkeyProcess


@pytest.fixture
async def mesh(valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path) -> AsyncIterator[Mesh]:
    async with running_mesh(valkey.url, tmp_path) as running:
        yield running


async def test_a_model_trains_and_saves(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    batch, step = await mesh.batch(model, 1, [2, 9, 4]), await mesh.step(model, 2)
    save = await mesh.save(model, 3)
    result = (await mesh.done(batch)).batch
    assert list(result.lengths) == [2, 9, 4]
    assert len(result.logprobs) == 4 * 15
    assert "grad_norm" in (await mesh.done(step)).optim_step.metrics
    assert (await mesh.done(save)).save.path == f"tinker://{model}/weights/checkpoint-000003"
