"""A mesh with something to look at: work that runs, waits, misses its predecessor, and has failed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.doubles.admin import samplers, trainers
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import Json, WireClient, batch

LORA = {"rank": 8, "seed": 4, "train_unembed": True, "train_mlp": True, "train_attn": True}
STARTED_SECONDS = 20.0


@dataclass(slots=True)
class Busy:
    """`with Busy.start(mesh) as busy`: a pass is held in the trainer, a sample in the sampler, until the end."""

    mesh: MeshProcesses
    session: str = ""
    tenant: str = ""
    running: str = ""
    behind_gap: str = ""
    failed: str = ""

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
        self.failed = await self.post(client, "/optim_step", adam(bad, 1, learning_rate="high"))
        await client.future(self.failed)
        self.running = await self.post(client, "/forward_backward", batch(waiting, 1, seed=1))
        await self.post(client, "/optim_step", adam(waiting, 2))
        self.behind_gap = await self.post(client, "/optim_step", adam(gap, 2))
        await self._sample(client)
        await client.close()
        deadline = time.monotonic() + STARTED_SECONDS
        while not all(self._held(engine) for engine in ("trainer", "sampler")):
            assert time.monotonic() < deadline, "the engines never began what holds them"
            await asyncio.sleep(0.02)

    def _held(self, engine: str) -> bool:
        if engine == "trainer":
            return any(report.running_unit for report in trainers(self.mesh.scheduler))
        return any(report.in_flight for report in samplers(self.mesh.scheduler))

    async def _sample(self, client: WireClient) -> None:
        opened = {"session_id": self.session, "sampling_session_seq_id": 0, "base_model": BASE_MODEL}
        sampler = (await client.post("/create_sampling_session", opened)).json()["sampling_session_id"]
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
        sample = {"sampling_session_id": sampler, "seq_id": 1, "num_samples": 1, "prompt": prompt}
        await self.post(client, "/asample", {**sample, "sampling_params": {"max_tokens": 2, "temperature": 1.0}})

    async def post(self, client: WireClient, path: str, body: Json | bytes) -> str:
        answer = await client.post(path, body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["request_id"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for engine in ("trainer", "sampler"):
            self.release(engine)

    def release(self, engine: str) -> None:
        self.mesh.inject(engine, [])


async def created(client: WireClient, session: str, number: int) -> str:
    body = {"session_id": session, "model_seq_id": number, "base_model": BASE_MODEL, "lora_config": LORA}
    made = await client.post("/create_model", body)
    return str((await client.future(made.json()["request_id"]))["model_id"])


def adam(model: str, seq_id: int, **parameters: object) -> Json:
    return {"model_id": model, "seq_id": seq_id, "adam_params": {"learning_rate": 1e-3, **parameters}}
