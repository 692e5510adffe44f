"""A load that remembers every answer it was given, and the check that each of them still holds."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

import httpx

from tests.doubles.journal import datum_counts, step_counts
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import Body, WireClient, batch
from tests.mesh.main_path import adam, created

DATUMS = 2
IN_FLIGHT = 8
RETRY_SECONDS = 0.05
AGAIN = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class Answered(NamedTuple):
    """A command whose POST was answered 200, and when (unix seconds)."""

    model: str
    seq: int
    request_id: str
    at: float
    is_batch: bool


@dataclass(slots=True)
class Load:
    """forward_backward and optim_step in turns on every model, several in flight, sent again until answered."""

    client: WireClient
    answered: list[Answered] = field(default_factory=list)
    refused: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def models(self, count: int) -> list[str]:
        session = await self.client.session()
        return [await created(self.client, session, number) for number in range(count)]

    async def drive(self, model: str) -> None:
        """Until told to stop, or until the mesh does not know the model any more."""
        waiting: list[asyncio.Task[object]] = []
        seq = 1
        while not self.stopping.is_set():
            odd = seq % 2 == 1
            path, body = ("/forward_backward", batch(model, seq, seed=seq, datums=DATUMS)) if odd else (
                "/optim_step", adam(model, seq)
            )  # fmt: skip
            request_id = await self._post(path, body)
            if request_id is None:
                break
            self.answered.append(Answered(model, seq, request_id, time.time(), odd))
            seq += 1
            waiting.append(asyncio.create_task(self._settled(request_id)))
            if len(waiting) >= IN_FLIGHT:
                await asyncio.wait([waiting.pop(0)], timeout=10.0)
        for task in waiting:
            task.cancel()

    async def _post(self, path: str, body: Body) -> str | None:
        """None once the mesh refuses for good, or the load ends before the POST is answered."""
        while not self.stopping.is_set():
            try:
                answer = await self.client.post(path, body)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code == HTTPStatus.OK:
                return str(answer.json()["request_id"])
            if answer is not None and answer.status_code not in AGAIN:
                return None
            self.refused += 1
            await asyncio.sleep(RETRY_SECONDS)
        return None

    async def _settled(self, request_id: str) -> None:
        """The result has come, or will never come."""
        while not self.stopping.is_set():
            answer = await self.client.post("/retrieve_future", {"request_id": request_id})
            if answer.status_code not in AGAIN:
                return
            await asyncio.sleep(RETRY_SECONDS)


async def forgotten(client: WireClient, answered: list[Answered]) -> list[Answered]:
    """Commands that were answered and are unknown now; all others must have succeeded.

    Behind a forgotten command its model waits for it: those that come later are not asked for.
    """
    lost: list[Answered] = []
    broken: dict[str, int] = {}
    for one in sorted(answered, key=lambda a: (a.model, a.seq)):
        if one.seq > broken.get(one.model, one.seq):
            continue
        try:
            result = await client.future(one.request_id)
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == HTTPStatus.GONE, error.response.text
            lost.append(one)
            broken[one.model] = one.seq
            continue
        assert "error" not in result, (one, result)
    return lost


async def unknown(client: WireClient, answered: list[Answered]) -> list[Answered]:
    """Commands that were answered and are unknown now, whatever became of the others."""
    answers = [await client.post("/retrieve_future", {"request_id": one.request_id}) for one in answered]
    return [one for one, a in zip(answered, answers, strict=True) if a.status_code == HTTPStatus.GONE]


def check_effects(mesh: MeshProcesses, kept: list[Answered]) -> None:
    """Every gradient was added once and every step taken once."""
    datums = datum_counts(mesh.journal())
    steps = step_counts(mesh.journal())
    for one in kept:
        if one.is_batch:
            assert [datums[one.request_id, n] for n in range(DATUMS)] == [1] * DATUMS, one
        else:
            assert steps[one.request_id] == 1, one
