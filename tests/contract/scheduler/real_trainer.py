"""The scheduler's rig with the real trainer, in a process of its own, in place of the double."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from tinkermesh.v1 import scheduler_pb2, trainer_pb2
from tinkermesh.v1 import trainer_pb2_grpc as pb_grpc

from services.trainer.settings import Settings
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh
from tests.contract.trainer import hooked_engine
from tests.contract.trainer.trainer_process import TrainerProcess
from tests.doubles.fake_trainer import BASE_MODEL, POOL

START_SECONDS = 240.0
"""On a busy machine the imports alone have taken longer than a minute and a half."""
HOOKED = f"{hooked_engine.__name__}:build"


class RealTrainerMesh(Mesh):
    """`hooks` is what tests.contract.trainer.hooked_engine documents."""

    def __init__(self, url: str, root: Path, model: Path, **changes: Any) -> None:
        super().__init__(url, root)
        self.hooks = root / "hooks"
        self.hooks.mkdir()
        fields: dict[str, Any] = {
            "model_path": str(model),
            "store_root": str(root),
            "listen": "127.0.0.1:0",
            "port_file": str(root / "trainer.port"),
            "pool": POOL,
            "base_model": BASE_MODEL,
            "slots": 8,
            "engine": HOOKED,
            "threads": 1,
        }
        self.settings = Settings(**{**fields, **changes})
        self.process: TrainerProcess | None = None
        self.models: dict[int, str] = {}

    async def start_trainer(self) -> None:
        variables = {hooked_engine.VARIABLE: str(self.hooks)}
        self.process = TrainerProcess(self.settings, **variables)
        address = await self.process.address(START_SECONDS)
        async with grpc.aio.insecure_channel(address) as channel:
            told = await pb_grpc.TrainerStub(channel).Describe(trainer_pb2.DescribeTrainerRequest(), timeout=20)
        self.facts.CopyFrom(told.facts)
        self.directory.registration = scheduler_pb2.RegisterTrainerRequest(
            trainer_id=told.trainer_id, incarnation=told.incarnation, address=address, facts=told.facts
        )

    @property
    def incarnation(self) -> str:
        """The life of the trainer that serves the pool now."""
        return self.directory.registration.incarnation if self.directory.registration is not None else ""

    async def stop(self) -> None:
        await super().stop()
        if self.process is not None:
            self.process.kill()

    def noted(self) -> list[tuple[int, str]]:
        """(datums, done | failed) of every pass."""
        file = self.hooks / "passes"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(count), went) for count, went in (line.split() for line in lines)]

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """What is submitted inside piles up behind a forward pass of a model of its own."""
        blocker = await self.opened(new_session(), tenant="tenant-blocker")
        hold, reached = self.hooks / "hold", self.hooks / "reached"
        reached.unlink(missing_ok=True)
        hold.touch()
        blocking = await self.batch(blocker, 1, [1], backward=False, tenant="tenant-blocker")
        await self.until(reached.exists)
        yield
        hold.unlink()
        await self.done(blocking)
        await self.done(await self.unload(blocker, tenant="tenant-blocker"))


@contextlib.asynccontextmanager
async def real_trainer_mesh(url: str, root: Path, model: Path, **changes: Any) -> AsyncIterator[RealTrainerMesh]:
    root.mkdir(exist_ok=True)
    mesh = RealTrainerMesh(url, root, model, **changes)
    try:
        await mesh.start()
        yield mesh
    except BaseException:
        if mesh.process is not None:
            mesh.process.kill()
            print(mesh.process.log())
        raise
    finally:
        await mesh.stop()
