"""The real trainer is killed, or has too few slots: shared passes are formed again, and no bit changes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from services.scheduler.core.seating import Paging
from services.scheduler.store.training import RecoveryLimits
from tests.contract.scheduler.real_trainer import RealTrainerMesh
from tests.contract.scheduler.recovering import counter, live
from tests.contract.scheduler.requests import new_session
from tests.doubles.valkey import ValkeyProcess
from tools.make_tiny_qwen3 import build

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ROUNDS, MODELS = 3, 3
LENGTHS = [9, 14, 11]


async def make(mesh: RealTrainerMesh, count: int) -> list[str]:
    return [await made(mesh, seed) for seed in range(count)]


async def made(mesh: RealTrainerMesh, seed: int) -> str:
    session = new_session()
    await mesh.done(await mesh.create(session, seed=seed))
    return f"{session}:train:0"


async def files(mesh: RealTrainerMesh, model: str, seq: int) -> dict[str, Any]:
    """Checksums of a model's weights and moments."""
    path = (await mesh.done(await mesh.command(model, seq, save_weights={"name": "end"}))).save.path
    meta = json.loads((mesh.root / public_directory(parse_tinker_path(path)) / "meta.json").read_bytes())
    return {name: meta["files"][name] for name in ("adapter_model.safetensors", "optimizer.safetensors")}


async def shared_round(mesh: RealTrainerMesh, models: list[str], number: int) -> None:
    """One pass with the datums of all models, one merged step."""
    async with mesh.held():
        batches = [await mesh.batch(m, 2 * number - 1, LENGTHS, salt=1000 * n) for n, m in enumerate(models)]
    for request in batches:
        await mesh.done(request)
    if number < ROUNDS:
        await steps(mesh, models, number)


async def steps(mesh: RealTrainerMesh, models: list[str], number: int) -> None:
    for request in [await mesh.step(model, 2 * number) for model in models]:
        await mesh.done(request)


async def kill(mesh: RealTrainerMesh) -> None:
    """kill -9, and a new process in its place."""
    assert mesh.process is not None
    mesh.process.kill()
    await mesh.start_trainer()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return build(tmp_path / "tiny-qwen3")


async def test_shared_passes_are_formed_again_bit_by_bit_GAP_02_GAP_11(
    valkey: ValkeyProcess, tmp_path: Path, tiny: Path
) -> None:
    mesh = RealTrainerMesh(valkey.url, make_root(tmp_path), tiny)
    mesh.options = {"recovery": RecoveryLimits(durable_every_steps=2)}
    try:
        await mesh.start()
        results = []
        for killed in (False, True):
            models = await make(mesh, MODELS)
            for number in range(1, ROUNDS + 1):
                await shared_round(mesh, models, number)
            if killed:
                began = time.monotonic()
                await kill(mesh)
                up = time.monotonic()
                await adopted(mesh, models)
                print(f"restart {up - began:.1f} s, restored in {time.monotonic() - up:.1f} s")
            await steps(mesh, models, ROUNDS)
            results.append([await files(mesh, model, 2 * ROUNDS + 1) for model in models])
            for model in models:
                await mesh.done(await mesh.unload(model))
        assert results[0] == results[1]
        assert len({json.dumps(found) for found in results[0]}) == MODELS
        assert await counter(mesh, "replay_mismatches_total") == 0
    finally:
        await mesh.stop()


async def adopted(mesh: RealTrainerMesh, models: list[str]) -> None:
    incarnation = mesh.directory.registration
    assert incarnation is not None
    mesh.trainer.incarnation = incarnation.incarnation  # what `live` compares with
    await live(mesh, *models)


async def test_four_models_on_two_slots_each_as_if_it_were_alone(
    valkey: ValkeyProcess, tmp_path: Path, tiny: Path
) -> None:
    mesh = RealTrainerMesh(valkey.url, make_root(tmp_path), tiny, slots=2)
    mesh.options = {"paging": Paging(on=True, idle_ms=0, after_ms=500)}
    try:
        await mesh.start()
        alone = []
        for seed in range(4):
            model = await made(mesh, seed)
            for number in (1, 2):
                await one(mesh, model, number)
            alone.append(await files(mesh, model, 5))
            await mesh.done(await mesh.unload(model))
        models, before, began = await make(mesh, 4), await counter(mesh, "pages_total"), time.monotonic()
        for number in (1, 2):
            for model in models:  # each comes back with an open window
                await mesh.done(await mesh.batch(model, 2 * number - 1, LENGTHS, salt=number))
            for model in models:
                await mesh.done(await mesh.step(model, 2 * number))
        pages = await counter(mesh, "pages_total") - before
        print(f"{pages} switches, {1000 * (time.monotonic() - began) / pages:.0f} ms each with the work between them")
        assert [await files(mesh, model, 5) for model in models] == alone
        assert pages >= 12
    finally:
        await mesh.stop()


async def one(mesh: RealTrainerMesh, model: str, number: int) -> None:
    await mesh.done(await mesh.batch(model, 2 * number - 1, LENGTHS, salt=number))
    await mesh.done(await mesh.step(model, 2 * number))


def make_root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    root.mkdir()
    return root
