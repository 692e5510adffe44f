"""The Completions service behind real gRPC, on a real Valkey, over a doubled port to the samplers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import completions_pb2 as pb
from tinkermesh.v1 import completions_pb2_grpc
from tinkermesh.v1 import types_pb2 as types

from services.common.grpc_channel import open_channel
from services.common.grpc_server import GrpcServer
from services.scheduler.front import Front
from services.scheduler.generating.desk import GenerationDesk
from services.scheduler.generating.pieces import TokenPieces
from services.scheduler.generating.run import Parts, Times
from services.scheduler.generating.server import Completions
from services.scheduler.pools import Pools
from services.scheduler.sampling.presence import SamplerPresence
from services.scheduler.sampling.targets import Targets
from services.scheduler.store.functions import Functions
from services.scheduler.store.generations import GenerationStore
from services.scheduler.tenancy.records import Quotas
from tests.contract.scheduler.front.mesh import ALICE, BASE, POOL
from tests.contract.scheduler.generating.fakes import FakeArtifacts, FakeDirectory, FakeGenerations

LEASE_MS = 60_000


@dataclass
class Stage:
    stub: completions_pb2_grpc.CompletionsAsyncStub
    desk: GenerationDesk
    store: GenerationStore
    redis: Redis
    generations: FakeGenerations
    directory: FakeDirectory
    front: Front
    quotas: list[Quotas] = field(default_factory=lambda: [Quotas()])

    def call(self, **fields: Any) -> Any:
        return self.stub.Generate(request(**fields))

    async def events(self, **fields: Any) -> list[pb.GenerateEvent]:
        return [event async for event in self.call(**fields)]

    async def said(self, **fields: Any) -> str:
        return "".join([event.chunk.text for event in await self.events(**fields)])

    async def counted(self, tenant: str = ALICE) -> int:
        """Samples in flight that Redis counts for generations."""
        return int(await cast("Any", self.redis).zcard(f"tm:{{p:{POOL}}}:generations:{tenant}"))


def request(*prompts: pb.Prompt | str, n: int = 1, tenant_id: str = ALICE, **fields: Any) -> pb.GenerateRequest:
    asked = prompts or (fields.pop("prompt", "hello"),)
    body = types.SampleBody(num_samples=n, temperature=1.0, top_p=1.0, top_k=-1, **fields.pop("body", {}))
    made = pb.GenerateRequest(**{"tenant_id": tenant_id, "model": BASE, "body": body, **fields})
    made.prompts.extend(pb.Prompt(text=one) if isinstance(one, str) else one for one in asked)
    return made


@pytest.fixture
async def stage(redis_client: Redis, functions: Functions) -> AsyncIterator[Stage]:
    generations, directory, front = FakeGenerations(), FakeDirectory(), Front()
    store = GenerationStore(functions, lease_ms=LEASE_MS)
    quotas = [Quotas()]
    desk = GenerationDesk(store, lambda tenant: quotas[0])
    anything: Any = directory
    service = Completions(
        parts=Parts(generations, desk, TokenPieces(generations), Times(place=5, stream=30)),
        targets=Targets(cast("Any", FakeArtifacts()), Pools(anything)),
        artifacts=cast("Any", FakeArtifacts()),
        directory=anything,
        presence=SamplerPresence(anything, expected=True),
        front=front,
    )
    server = GrpcServer(["tinkermesh.v1.Completions"])
    completions_pb2_grpc.add_CompletionsServicer_to_server(service, server.server)
    port = await server.start("127.0.0.1:0")
    channel: grpc.aio.Channel = open_channel(f"127.0.0.1:{port}")
    stub: Any = completions_pb2_grpc.CompletionsStub(channel)
    yield Stage(stub, desk, store, redis_client, generations, directory, front, quotas)
    await channel.close()
    await server.stop(0)
