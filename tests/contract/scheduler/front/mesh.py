"""Scheduler replicas in the test's own loop, on a real Valkey, spoken to by real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
from tinkermesh.v1 import admin_pb2, admin_pb2_grpc, scheduler_pb2_grpc, tenants_pb2_grpc
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import TinkermeshError, from_rpc_error
from services.common.grpc_channel import open_channel
from services.common.keyring import load_pepper
from services.scheduler.app import App
from services.scheduler.settings import Settings
from tests.doubles.eventually import SOON, eventually
from tests.doubles.fake_sampler import sampler_facts

POOL = "double"
BASE = "tinkermesh/double"
ALICE, BOB = "tenant-alice", "tenant-bob"


@asynccontextmanager
async def refused(kind: type[TinkermeshError], *words: str) -> AsyncIterator[None]:
    """The block must fail with this typed error, its text naming `words`."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        typed = from_rpc_error(error)
        assert type(typed) is kind, f"{type(typed).__name__}: {typed}"
        for word in words:
            assert word in typed.message, typed.message
        return
    raise AssertionError(f"was not refused with {kind.__name__}")


class Replica:
    """One scheduler with its stubs."""

    def __init__(self, app: App, name: str, port: int) -> None:
        self.app = app
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self.channel = open_channel(self.address)
        self.scheduler = scheduler_pb2_grpc.SchedulerStub(self.channel)
        self.registry = scheduler_pb2_grpc.RegistryStub(self.channel)
        self.admin = admin_pb2_grpc.AdminStub(self.channel)
        self.tenants = tenants_pb2_grpc.TenantsStub(self.channel)

    async def stop(self) -> None:
        await self.channel.close(None)
        await self.app.stop()


@dataclass
class FrontMesh:
    redis_url: str
    store_root: Path
    pepper_file: Path
    replicas: list[Replica] = field(default_factory=list)
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    _started: int = 0

    @property
    def pepper(self) -> bytes:
        return load_pepper(self.pepper_file)

    async def replica(self, **settings: float | str | bool) -> Replica:
        name = f"replica-{self._started}"
        self._started += 1
        app = App(
            Settings(
                store_root=str(self.store_root),
                pepper_file=str(self.pepper_file),
                redis_url=self.redis_url,
                listen="127.0.0.1:0",
                replica=name,
                **settings,  # type: ignore[arg-type]
            )
        )
        replica = Replica(app, name, await app.start())
        self.replicas.append(replica)
        return replica

    async def stop(self) -> None:
        for close in reversed(self.closers):
            await close()
        for replica in self.replicas:
            await replica.stop()

    @property
    def addresses(self) -> str:
        return ",".join(replica.address for replica in self.replicas)

    async def leader(self) -> Replica:
        """The replica that holds the pool's lease; either may get it, so a test that stops one must ask."""

        async def found() -> Replica | None:
            pools = (await self.replicas[0].admin.ListPools(admin_pb2.AdminListPoolsRequest())).pools
            names = [pool.leader for pool in pools if pool.facts.pool == POOL]
            return next((replica for replica in self.replicas if replica.name in names), None)

        leader = await eventually(found)
        assert leader is not None
        return leader


async def session(replica: Replica, tenant: str = ALICE, key: str = "") -> str:
    request = pb.CreateSessionRequest(tenant_id=tenant, idempotency_key=key, sdk_version="0.38.0")
    return (await replica.scheduler.CreateSession(request)).session_id


async def base_sampler(replica: Replica, session_id: str, seq: int = 0, tenant: str = ALICE) -> str:
    request = pb.CreateSamplingSessionRequest(
        tenant_id=tenant, session_id=session_id, sampling_session_seq_id=seq, base_model=BASE
    )
    return (await replica.scheduler.CreateSamplingSession(request)).sampling_session_id


def sample_request(
    sampling_session_id: str, seq: int, *, tenant: str = ALICE, n: int = 1, tokens: int = 4, print_: bytes = b""
) -> pb.SubmitRequest:
    body = types.SampleBody(
        prompt_tokens=np.array([1, 2, 3], "<i4").tobytes(), num_samples=n, max_tokens=tokens, temperature=1.0, top_p=1.0
    )
    body.top_k = -1
    return pb.SubmitRequest(
        tenant_id=tenant,
        sample=pb.SampleKey(sampling_session_id=sampling_session_id, seq_id=seq),
        fingerprint=print_ or bytes(16),
        command=types.Command(sample=body),
    )


def create_request(session_id: str, seq: int = 0, *, tenant: str = ALICE, base: str = BASE) -> pb.SubmitRequest:
    layout = types.AdapterLayout(rank=4, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=True)
    return pb.SubmitRequest(
        tenant_id=tenant,
        create=pb.CreateKey(session_id=session_id, model_seq_id=seq),
        fingerprint=bytes(16),
        command=types.Command(create_model=types.CreateModelBody(base_model=base, layout=layout)),
    )


def save_for_sampler(model_id: str, seq: int, *, tenant: str = ALICE, name: str = "", key: int = 0) -> pb.SubmitRequest:
    body = types.SaveForSamplerBody(name=name)
    if not name:
        body.sampling_session_seq_id = key
    return command(model_id, seq, types.Command(save_for_sampler=body), tenant=tenant)


def command(model_id: str, seq: int, body: types.Command, *, tenant: str = ALICE) -> pb.SubmitRequest:
    return pb.SubmitRequest(
        tenant_id=tenant, model=pb.ModelKey(model_id=model_id, seq_id=seq), fingerprint=bytes(16), command=body
    )


async def result(replica: Replica, request_id: str, tenant: str = ALICE, seconds: float = SOON) -> types.Result:
    """Waits for the settlement as a gateway does."""
    async with watching(replica) as watch:
        await watch.add(request_id, tenant=tenant)
        event = await watch.next(seconds)
        assert event.state == pb.WATCH_STATE_SETTLED, event
        if event.HasField("result"):
            return event.result
        return types.Result.FromString(await whole(replica, request_id, tenant))


async def whole(replica: Replica, request_id: str, tenant: str = ALICE) -> bytes:
    call = replica.scheduler.GetResult(pb.GetResultRequest(tenant_id=tenant, request_id=request_id))
    return b"".join([frame.data async for frame in call])


class Watching:
    def __init__(self, call: grpc.aio.StreamStreamCall) -> None:  # type: ignore[type-arg]
        self._call = call

    async def send(self, request: pb.WatchRequest) -> None:
        await self._call.write(request)

    async def add(self, *request_ids: str, tenant: str = ALICE) -> None:
        await self.send(pb.WatchRequest(add=[pb.WatchItem(tenant_id=tenant, request_id=r) for r in request_ids]))

    async def next(self, seconds: float = SOON) -> pb.WatchEvent:
        async with asyncio.timeout(seconds):
            event = await self._call.read()
        assert isinstance(event, pb.WatchEvent), "the stream ended"
        return event


@asynccontextmanager
async def watching(replica: Replica) -> AsyncIterator[Watching]:
    call = replica.scheduler.Watch()
    try:
        yield Watching(call)
    finally:
        call.cancel()


async def unserved_pool(replica: Replica) -> None:
    """A pool that exists although nobody serves it: a sampler registered once."""
    facts = sampler_facts()
    assert facts.base_model == BASE
    await replica.registry.RegisterSampler(
        pb.RegisterSamplerRequest(
            sampler_id="once", incarnation="1", address="127.0.0.1:1", facts=facts, role="both", max_running=1
        )
    )


async def new_model(replica: Replica, session_id: str, seq: int = 0) -> str:
    reply = await replica.scheduler.Submit(create_request(session_id, seq))
    made = await result(replica, reply.request_id)
    assert made.model.model_id == reply.model_id == f"{session_id}:train:{seq}", made
    return reply.model_id


async def saved(replica: Replica, model_id: str, seq: int, name: str) -> str:
    body = types.Command(save_weights=types.SaveWeightsBody(name=name))
    reply = await replica.scheduler.Submit(command(model_id, seq, body))
    return (await result(replica, reply.request_id)).save.path
