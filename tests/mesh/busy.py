"""A mesh with something to look at: work that runs, waits, misses its predecessor, and has failed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.doubles.admin import samplers, snapshots, trainers
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import Json, WireClient, batch
from tests.mesh.main_path import accepted, adam, base_sampler, created, sample, saved

STARTED_SECONDS = 60.0


@dataclass(slots=True)
class Busy:
    """`with Busy.start(mesh) as busy`: a pass is held in the trainer, a sample in the sampler, until the end."""

    mesh: MeshProcesses
    session: str = ""
    tenant: str = ""
    running: str = ""
    behind_gap: str = ""
    failed: str = ""
    loaded: tuple[str, str] | None = None
    spare: str = ""  # a model of its own session that nothing waits for

    @classmethod
    def start(cls, mesh: MeshProcesses) -> Self:
        made = cls(mesh)
        mesh.inject("trainer", [{"kind": "pass", "action": "hold_before", "times": 0}])
        mesh.inject("sampler", [{"kind": "sample", "action": "hold_before", "times": 0}])
        asyncio.run(made._fill())
        return made

    async def _fill(self) -> None:
        client = WireClient([self.mesh.base_url], self.mesh.api_key)
        self.session = await client.session()
        self.tenant = self.mesh.add_key(self.mesh.api_key)  # known already: answers whose it is
        waiting, gap, bad = [await created(client, self.session, number) for number in range(3)]
        self.spare = await created(client, self.session, 3)
        await saved(client, self.spare, 1, "epoch-1", "save_weights_for_sampler")
        self.failed = await submitted(client, "/optim_step", adam(bad, 1, learning_rate="high"))
        await client.future(self.failed)
        self.running = await submitted(client, "/forward_backward", batch(waiting, 1, seed=1))
        await submitted(client, "/optim_step", adam(waiting, 2))
        self.behind_gap = await submitted(client, "/optim_step", adam(gap, 2))
        await accepted(client, "/asample", sample(await base_sampler(client, self.session), 1, tokens=2))
        await client.close()
        deadline = time.monotonic() + STARTED_SECONDS
        while not all(self._held(engine) for engine in ("trainer", "sampler")):
            assert time.monotonic() < deadline, "the engines never began what holds them"
            await asyncio.sleep(0.02)

    @property
    def adapter(self) -> tuple[str, str]:
        """(name, path) of the version its sampler has loaded."""
        held = [one for sampler in snapshots(self.mesh.scheduler) for one in sampler.snapshots]
        self.loaded = self.loaded or (held[0].name, held[0].path)
        return self.loaded

    def _held(self, engine: str) -> bool:
        if engine == "trainer":
            return any(report.running_unit for report in trainers(self.mesh.scheduler))
        held = any(report.in_flight for report in samplers(self.mesh.scheduler))
        return held and any(sampler.snapshots for sampler in snapshots(self.mesh.scheduler))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for engine in ("trainer", "sampler"):
            self.release(engine)

    def release(self, engine: str) -> None:
        self.mesh.inject(engine, [])


async def submitted(client: WireClient, path: str, body: Json | bytes) -> str:
    """The request's id."""
    return str((await accepted(client, path, body))["request_id"])
