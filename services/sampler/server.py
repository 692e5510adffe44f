"""The Sampler service over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import sampler_pb2_grpc as pb_grpc
from tinkermesh.v1.types_pb2 import AdapterRef, PoolFacts

from services.common.errors import Unavailable
from services.common.grpc_boundary import Context
from services.sampler.adapter_table import AdapterTable
from services.sampler.ports import Engine
from services.sampler.runs import SampleRuns
from services.sampler.settings import Settings
from services.sampler.tier_desk import TierDesk
from services.sampler.tokenizing import Tokenizing

SERVICE = pb.DESCRIPTOR.services_by_name["Sampler"].full_name


class SamplerServicer(pb_grpc.SamplerServicer):
    def __init__(
        self,
        description: pb.SamplerDescription,
        engine: Engine,
        adapters: AdapterTable,
        runs: SampleRuns,
        tokenizing: Tokenizing,
        tier: TierDesk,
    ) -> None:
        self._description = description
        self._engine = engine
        self._adapters = adapters
        self._runs = runs
        self._tokenizing = tokenizing
        self._tier = tier
        self.stopping = False

    async def Describe(self, request: pb.DescribeSamplerRequest, context: Context) -> pb.SamplerDescription:
        answer = pb.SamplerDescription()
        answer.CopyFrom(self._description)
        answer.running, answer.waiting = self._engine.counts()
        return answer

    async def LoadAdapter(self, request: pb.LoadAdapterRequest, context: Context) -> pb.LoadAdapterReply:
        known, seconds = await self._adapters.load(request.adapter.name, request.adapter.path)
        return pb.LoadAdapterReply(already_loaded=known, load_seconds=seconds)

    async def UnloadAdapter(self, request: pb.UnloadAdapterRequest, context: Context) -> pb.UnloadAdapterReply:
        return pb.UnloadAdapterReply(was_loaded=await self._adapters.unload(request.name))

    async def ListAdapters(self, request: pb.ListAdaptersRequest, context: Context) -> pb.ListAdaptersReply:
        return pb.ListAdaptersReply(
            adapters=[
                pb.LoadedAdapter(
                    adapter=AdapterRef(name=resident.adapter.name, path=resident.path),
                    engine_id=resident.adapter.engine_id,
                    in_use=resident.in_use,
                    loads=loads,
                )
                for resident, loads in self._adapters.residents()
            ]
        )

    async def Sample(self, request: pb.SampleRequest, context: Context) -> pb.SampleReply:
        self._check_serving()
        return pb.SampleReply(result=await self._runs.result(request))

    async def SampleStream(self, request: pb.SampleStreamRequest, context: Context) -> AsyncIterator[pb.SampleChunk]:
        self._check_serving()
        async with aclosing(self._runs.chunks(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeReply:
        return pb.TokenizeReply(tokens=await self._tokenizing.tokens(request))

    async def Pieces(self, request: pb.PiecesRequest, context: Context) -> pb.PiecesReply:
        return pb.PiecesReply(pieces=await self._tokenizing.pieces(request.tokens))

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortReply:
        return pb.AbortReply(was_running=self._runs.abort(request.request_id))

    async def TierStatus(self, request: pb.TierStatusRequest, context: Context) -> pb.TierStatusReply:
        return await self._tier.status()

    async def InvalidateBlocks(self, request: pb.InvalidateBlocksRequest, context: Context) -> pb.InvalidateBlocksReply:
        return pb.InvalidateBlocksReply(dropped=await self._tier.invalidate(request))

    def _check_serving(self) -> None:
        if self.stopping:
            raise Unavailable("this sampler is stopping; sample at another one")


def describe(
    incarnation: str, facts: PoolFacts, settings: Settings, engine: str, kv: pb.KvFacts | None
) -> pb.SamplerDescription:
    return pb.SamplerDescription(
        sampler_id=settings.sampler_id,
        incarnation=incarnation,
        facts=facts,
        role=settings.role,
        max_adapters=settings.max_adapters,
        max_running=settings.max_running,
        engine=engine,
        kv=kv,
    )
