"""More models than slots on the real trainer: each ends as it does when nobody takes its slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from services.common.store import resolve
from services.common.tinker_path import parse_tinker_path
from tests.doubles.admin import list_pools
from tests.doubles.mesh import RealMeshProcesses
from tests.doubles.wire_client import WireClient, batch
from tests.mesh.main_path import accepted, adam, create_model, done, saved

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
MODELS, ROUNDS = 12, 3  # on eight slots
TOLERANCE = 1e-3  # of the norm of the update: packed or alone, a gradient is rounded differently


@pytest.fixture
async def client(real_mesh: RealMeshProcesses) -> AsyncIterator[WireClient]:
    client = WireClient([real_mesh.base_url], real_mesh.api_key)
    yield client
    await client.close()


class Job:
    """One model's commands, round by round; those of odd number leave their first window open for a round."""

    def __init__(self, client: WireClient, model: str, number: int) -> None:
        self._client, self._model, self._number, self._seq = client, model, number, 0

    async def round(self, number: int) -> None:
        sent = [
            await self._post(
                "forward_backward", batch(self._model, self._next(), self._seed(number), datums=2, length=12)
            )
        ]
        if not (self._number % 2 and number == 0):
            sent.append(await self._post("optim_step", adam(self._model, self._next(), eps=1e-8)))
        for request in sent:
            answer = await self._client.future(request)
            assert "error" not in answer, answer

    async def save(self) -> str:
        return await saved(self._client, self._model, self._next(), "end")

    async def _post(self, route: str, body: Any) -> str:
        return str((await accepted(self._client, f"/{route}", body))["request_id"])

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _seed(self, number: int) -> int:
        return 1000 * self._number + number


async def job(client: WireClient, session: str, mesh: RealMeshProcesses, number: int) -> Job:
    body = {**create_model(session, number), "base_model": mesh.settings.model_name}
    return Job(client, str((await done(client, "/create_model", body))["model_id"]), number)


async def in_turns(client: WireClient, mesh: RealMeshProcesses) -> list[str]:
    """All models at once, each awaiting its rounds."""
    session = await client.session()
    jobs = [await job(client, session, mesh, number) for number in range(MODELS)]
    for number in range(ROUNDS):
        await asyncio.gather(*(one.round(number) for one in jobs))
    return [await one.save() for one in jobs]


async def alone(client: WireClient, mesh: RealMeshProcesses, number: int, rounds: int = ROUNDS) -> str:
    one = await job(client, await client.session(), mesh, number)
    for at in range(rounds):
        await one.round(at)
    return await one.save()


def weights(store: Path, path: str) -> dict[str, Any]:
    return dict(load_file(resolve(store, parse_tinker_path(path)) / "adapter_model.safetensors"))


def distance(left: dict[str, Any], right: dict[str, Any]) -> float:
    return float(np.sqrt(sum(((left[name] - right[name]) ** 2).sum(dtype="float64") for name in left)))


def pages(mesh: RealMeshProcesses) -> int:
    (pool,) = list_pools(",".join(mesh.mesh.addresses.schedulers))
    return int(pool.recovery.pages_total)


async def test_twelve_models_on_eight_slots_end_as_each_does_alone(
    real_mesh: RealMeshProcesses, client: WireClient
) -> None:
    before, store = pages(real_mesh), real_mesh.settings.store
    ended = [weights(store, path) for path in await in_turns(client, real_mesh)]
    assert pages(real_mesh) - before >= (ROUNDS - 1) * (MODELS - real_mesh.settings.slots)
    solo = [weights(store, await alone(client, real_mesh, number)) for number in range(MODELS)]
    start = weights(store, await alone(client, real_mesh, 0, rounds=0))
    for number, (paged, single) in enumerate(zip(ended, solo, strict=True)):
        update = distance(single, start)
        assert distance(paged, single) <= TOLERANCE * update, f"model {number}"
        assert distance(paged, solo[number - 1]) > 0.1 * update, "another model's weights would pass, too"
