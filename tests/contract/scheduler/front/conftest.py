"""A scheduler's front on a real Valkey, with the trainer and sampler doubles where a test wants them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from services.common.keyring import load_pepper
from tests.contract.scheduler.front.mesh import FrontMesh, Replica
from tests.contract.scheduler.front.owner import Owner
from tests.doubles.eventually import eventually
from tests.doubles.fake_sampler import FakeSampler
from tests.doubles.fake_trainer import FakeTrainer
from tests.doubles.valkey import ValkeyProcess


@pytest.fixture
async def mesh(valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path) -> AsyncIterator[FrontMesh]:
    root = tmp_path / "store"
    root.mkdir()
    load_pepper(tmp_path / "pepper", create=True)
    mesh = FrontMesh(valkey.url, root, tmp_path / "pepper")
    yield mesh
    await mesh.stop()


@pytest.fixture
async def replica(mesh: FrontMesh) -> Replica:
    return await mesh.replica()


StartSampler = Callable[..., Awaitable[FakeSampler]]
StartTrainer = Callable[..., Awaitable[FakeTrainer]]


@pytest.fixture
async def start_sampler(mesh: FrontMesh) -> StartSampler:
    """Starts a sampler double and waits until the pool counts it as live."""

    async def start(**options: object) -> FakeSampler:
        sampler = FakeSampler(mesh.store_root, **options)  # type: ignore[arg-type]
        await sampler.start(scheduler=mesh.addresses)
        mesh.closers.append(sampler.stop)
        await _registered(mesh, "samplers", sampler.sampler_id)
        return sampler

    return start


@pytest.fixture
async def start_trainer(mesh: FrontMesh) -> StartTrainer:
    async def start(**options: object) -> FakeTrainer:
        trainer = FakeTrainer(mesh.store_root, **options)  # type: ignore[arg-type]
        await trainer.start(scheduler=mesh.addresses)
        mesh.closers.append(trainer.stop)
        await _registered(mesh, "trainers", trainer.trainer_id)
        return trainer

    return start


@pytest.fixture
async def owner(mesh: FrontMesh, replica: Replica, start_trainer: StartTrainer) -> Owner:
    await start_trainer()
    return await Owner(mesh, replica).start()


async def _registered(mesh: FrontMesh, kind: str, member_id: str) -> None:
    from tinkermesh.v1 import admin_pb2

    async def seen() -> bool:
        admin = mesh.replicas[0].admin
        if kind == "samplers":
            reply = await admin.ListSamplers(admin_pb2.ListSamplersRequest())
            return any(s.sampler_id == member_id for s in reply.samplers)
        reply = await admin.ListTrainers(admin_pb2.ListTrainersRequest())
        return any(t.trainer_id == member_id for t in reply.trainers)

    await eventually(seen)
