"""A tenant's model, and the catalog as a gateway calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinkermesh.v1 import catalog_pb2 as cat
from tinkermesh.v1 import catalog_pb2_grpc
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from tests.contract.scheduler.front.mesh import (
    ALICE,
    FrontMesh,
    Replica,
    command,
    create_request,
    result,
    session,
)


class Owner:
    """Alice's model, and the catalog as a gateway calls it."""

    def __init__(self, mesh: FrontMesh, replica: Replica) -> None:
        self.mesh, self.replica = mesh, replica
        self.catalog = catalog_pb2_grpc.CatalogStub(replica.channel)
        self.model, self.session, self.seq = "", "", 0

    async def start(self) -> Owner:
        self.session = await session(self.replica)
        reply = await self.replica.scheduler.Submit(create_request(self.session))
        await result(self.replica, reply.request_id)
        self.model = reply.model_id
        return self

    async def done(self, **body: Any) -> types.SaveResult:
        self.seq += 1
        reply = await self.replica.scheduler.Submit(command(self.model, self.seq, types.Command(**body)))
        answer = await result(self.replica, reply.request_id)
        assert answer.HasField("save"), answer
        return answer.save

    async def save(self, name: str, ttl: int | None = None, *, overwrite: bool = False, metadata: str = "") -> str:
        body = types.SaveWeightsBody(name=name, ttl_seconds=ttl, overwrite=overwrite, user_metadata_json=metadata)
        return (await self.done(save_weights=body)).path

    async def export(self, name: str) -> types.SaveResult:
        return await self.done(save_external=types.SaveExternalBody(name=name))

    async def listed(self, run: str = "", tenant: str = ALICE) -> list[pb.CheckpointInfo]:
        request = cat.ListCheckpointsRequest(tenant_id=tenant, training_run_id=run, limit=100)
        parts = [part async for part in self.catalog.ListCheckpoints(request)]
        found = [one for part in parts for one in part.checkpoints]
        assert parts[-1].total_count == len(found)
        return found

    async def names(self) -> set[str]:
        return {one.checkpoint_id for one in await self.listed()}

    async def info(self, path: str, tenant: str = ALICE) -> pb.WeightsInfo:
        return await self.replica.scheduler.GetWeightsInfo(pb.GetWeightsInfoRequest(tenant_id=tenant, path=path))

    async def ttl(self, path: str, seconds: int | None, tenant: str = ALICE) -> None:
        await self.catalog.SetCheckpointTtl(
            cat.SetCheckpointTtlRequest(tenant_id=tenant, path=path, ttl_seconds=seconds)
        )

    async def publish(self, path: str, public: bool = True, tenant: str = ALICE) -> None:
        await self.catalog.SetCheckpointPublic(
            cat.SetCheckpointPublicRequest(tenant_id=tenant, path=path, public=public)
        )

    async def copy(self, path: str, tenant: str = ALICE, **fields: Any) -> str:
        request = cat.CopyCheckpointRequest(tenant_id=tenant, source_path=path, **fields)
        return (await self.catalog.CopyCheckpoint(request)).path

    def files(self, path: str) -> list[Path]:
        public = self.mesh.store_root / public_directory(parse_tinker_path(path))
        return sorted([*public.parent.glob(public.name), *public.parent.glob(f"*_{public.name}_*")])
