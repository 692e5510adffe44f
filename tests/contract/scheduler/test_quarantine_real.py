"""FAIL-05 on the real trainer: a slot that could not be cleared comes back after its repair, as good as new."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.scheduler.real_trainer import real_trainer_mesh
from tests.contract.scheduler.requests import new_session
from tests.doubles.fake_trainer import POOL
from tests.doubles.valkey import ValkeyProcess
from tools.make_tiny_qwen3 import build

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


async def test_a_quarantined_slot_of_the_real_trainer_is_repaired_and_inherits_nothing_FAIL_04_FAIL_05_OPT_02(
    valkey: ValkeyProcess, redis_client: object, tmp_path: Path
) -> None:
    model_dir = build(tmp_path / "tiny-qwen3")
    async with real_trainer_mesh(valkey.url, tmp_path / "mesh", model_dir, slots=1) as mesh:
        model = await mesh.opened(new_session())
        fresh = (await mesh.done(await mesh.batch(model, 1, [12], backward=False))).batch.logprobs
        await mesh.done(await mesh.batch(model, 2, [12]))
        await mesh.done(await mesh.step(model, 3))
        (mesh.hooks / "fail_unload").touch()
        assert "stays out of use until repaired" in (await mesh.failed(await mesh.unload(model))).message
        assert await mesh.slots() == {0: f"quarantine:{model}"}
        session = new_session()
        waiting = await mesh.create(session)
        assert await mesh.state(waiting) == "queued"
        (mesh.hooks / "fail_unload").unlink()
        driver = mesh.replicas[0].training._driver
        await driver._parts.store.repair(POOL, 1)  # what the sweeper does every half minute
        driver.wake(POOL)
        await mesh.done(waiting)
        again = await mesh.done(await mesh.batch(f"{session}:train:0", 1, [12], backward=False))
        assert again.batch.logprobs == fresh
