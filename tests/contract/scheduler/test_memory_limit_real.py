"""A datum that memory is not enough for is refused in its turn; the real trainer lives on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contract.scheduler.real_trainer import RealTrainerMesh, real_trainer_mesh
from tests.contract.scheduler.requests import new_session
from tests.doubles.valkey import ValkeyProcess
from tools.make_tiny_qwen3 import build

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def long_model(root: Path) -> Path:
    """The tiny model with rotary positions for any of these datums."""
    directory = build(root / "tiny-qwen3")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 65_536}))
    return directory


def process_id(mesh: RealTrainerMesh) -> int:
    assert mesh.process is not None
    assert mesh.process.process.poll() is None
    return mesh.process.process.pid


async def test_a_50_000_token_datum_on_a_small_pool_is_refused_and_the_pool_lives_FAIL_13_FAIL_15(
    valkey: ValkeyProcess, redis_client: object, tmp_path: Path
) -> None:
    """Context is not the reason here: it is large. The ordered refusal names estimate and limit."""
    model_dir = long_model(tmp_path)
    settings = {"max_context": 65_536, "memory_limit_mib": 48, "micro_batch_tokens": 1024, "unit_token_budget": 4096}
    async with real_trainer_mesh(valkey.url, tmp_path / "mesh", model_dir, **settings) as mesh:
        pid, limit = process_id(mesh), mesh.facts.max_datum_tokens
        assert 512 < limit < 50_000
        model, other = await mesh.opened(new_session()), await mesh.opened(new_session(), tenant="tenant-b")
        huge = await mesh.batch(model, 1, [9, 50_000])
        step = await mesh.step(model, 2)
        failure = await mesh.failed(huge)
        assert failure.category == 1
        assert "datum 1: datum has 50000 tokens: its pass would take about" in failure.message
        assert f"48 MiB for it; send datums of up to {limit} tokens" in failure.message
        assert (await mesh.done(step)).optim_step.metrics["window_rejected_requests"] == 1
        await mesh.done(await mesh.batch(model, 3, [7]))
        await mesh.done(await mesh.batch(other, 1, [7], tenant="tenant-b"))
        await mesh.done(await mesh.batch(other, 2, [min(limit, 5000)], tenant="tenant-b"))  # beyond the unit's budget
        assert process_id(mesh) == pid


async def test_a_datum_beyond_the_units_budget_runs_alone_PACK_03(
    valkey: ValkeyProcess, redis_client: object, tmp_path: Path
) -> None:
    model_dir = long_model(tmp_path)
    settings = {"max_context": 8192, "unit_token_budget": 1024, "micro_batch_tokens": 512}
    async with real_trainer_mesh(valkey.url, tmp_path / "mesh", model_dir, **settings) as mesh:
        assert mesh.facts.max_datum_tokens == 0  # the machine's memory is enough for the whole context
        model, other = await mesh.opened(new_session()), await mesh.opened(new_session(), tenant="tenant-b")
        async with mesh.held():
            long = await mesh.batch(model, 1, [3000, 20])
            short = await mesh.batch(other, 1, [9], tenant="tenant-b")
        await mesh.done(long)
        await mesh.done(short)
        assert [count for count, _ in mesh.noted()[-2:]] == [1, 2]
