"""Placements over samplers that do what a test says, spoken to by real gRPC; only the directory is a list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import scheduler_pb2
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.v1.trainer_pb2 import ArtifactMeta

from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.generation import Wanted
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.placing import Placements
from services.scheduler.sampling.routing import Router
from tests.doubles import published
from tests.doubles.fake_trainer import POOL
from tests.doubles.leg_sampler import LegSampler
from tests.doubles.scripted_sampler import ScriptedSampler

TENANT = "tenant-alice"
PROMPT = np.array([5, 6, 7, 8], "<i4").tobytes()
LONG = 60.0


class Directory:
    """fleet.SamplerDirectory: those a test registered."""

    def __init__(self) -> None:
        self.drained: set[str] = set()
        self.registrations: list[scheduler_pb2.RegisterSamplerRequest] = []

    async def samplers(self, pool: str) -> list[scheduler_pb2.RegisterSamplerRequest]:
        return self.registrations

    async def drained_samplers(self, pool: str) -> set[str]:
        return self.drained


class Place:
    """What a test works with; `limits` may be replaced before the first placement."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = Directory()
        self.fleet = Fleet(self.directory, load_seconds=LONG)
        self.limits = SamplingLimits()
        self.router = Router()
        self.samplers: list[ScriptedSampler] = []
        self.legs: dict[str, LegSampler] = {}

    @property
    def placements(self) -> Placements:
        return Placements(self.fleet, self.limits, self.router)

    def bound(self, **seconds: Any) -> None:
        self.limits = replace(self.limits, **seconds)

    async def sampler(self, name: str = "a", **facts: Any) -> ScriptedSampler:
        made = ScriptedSampler(self.root, sampler_id=name)
        await made.start()
        registration = made.registration()
        for field, value in facts.items():
            setattr(registration, field, value)
        self.directory.registrations.append(registration)
        self.samplers.append(made)
        return made

    async def leg(self, role: str, name: str = "", **facts: Any) -> LegSampler:
        """A double that answers as a sampler of that role; `facts`: of its registration, kv_… of its cache."""
        made = LegSampler(self.root, sampler_id=name or role, role=role)
        await made.start()
        registration = made.registration()
        for field, value in facts.items():
            target = registration.kv if field.startswith("kv_") else registration
            setattr(target, field.removeprefix("kv_"), value)
        self.directory.registrations.append(registration)
        self.legs[made.sampler_id] = made
        return made

    def adapter(self, name: str = "v1") -> types.AdapterRef:
        meta = ArtifactMeta(model_id="m", kind="sampler_weights", name=name)
        state = {"weights": "4d", "rank": 4}
        path, _ = published.publish(self.root, f"runs/m/sampler_weights/{name}", meta, state)
        return types.AdapterRef(name=f"m@{name}", path=path)

    async def in_flight(self) -> dict[str, int]:
        return {link.sampler_id: link.load_now.in_flight for link in await self.fleet.links(POOL)}


def wanted(adapter: types.AdapterRef | None = None, sequences: int = 1, **fields: Any) -> Wanted:
    return Wanted(POOL, TENANT, adapter, sequences, fields.pop("prompt", PROMPT), **fields)


def asked(request_id: str = "r", sequences: int = 1, **body: Any) -> pb.SampleStreamRequest:
    made = types.SampleBody(
        **{"prompt_tokens": PROMPT, "num_samples": sequences, "max_tokens": 8, "temperature": 1.0, "top_p": 1.0} | body
    )
    return pb.SampleStreamRequest(sample=pb.SampleRequest(request_id=request_id, body=made))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    yield made
    await made.fleet.close()
    for sampler in (*made.samplers, *made.legs.values()):
        await sampler.stop()
