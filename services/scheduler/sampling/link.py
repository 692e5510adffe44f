"""One life of one sampler as the dispatcher sees it."""

from __future__ import annotations

import asyncio
import logging

import grpc
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import sampler_pb2_grpc, scheduler_pb2
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import ServerError, TinkermeshError, from_rpc_error
from services.common.grpc_channel import open_channel

log = logging.getLogger(__name__)

SUSPECT_SECONDS = 1.0
ABORT_SECONDS = 5.0
IN_FLIGHT_PER_RUNNING = 2


class SamplerLink:
    def __init__(self, registration: scheduler_pb2.RegisterSamplerRequest, *, load_seconds: float) -> None:
        self.sampler_id = registration.sampler_id
        self.incarnation = registration.incarnation
        self.address = registration.address
        self.max_context = registration.facts.max_context
        self._capacity = max(1, registration.max_running) * IN_FLIGHT_PER_RUNNING
        self.in_flight = 0
        self._load_seconds = load_seconds
        self._channel = open_channel(registration.address)
        self._stub = sampler_pb2_grpc.SamplerStub(self._channel)
        self._resident: set[str] = set()
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._suspect_until = 0.0
        self._on_probation = False

    @property
    def capacity(self) -> int:
        """Sequences in flight; one sample at a time until a suspect has answered again."""
        return 1 if self._on_probation else self._capacity

    @property
    def usable(self) -> bool:
        return asyncio.get_running_loop().time() >= self._suspect_until

    @property
    def resident(self) -> set[str]:
        return self._resident

    def suspect(self) -> None:
        """A call found it away; nothing is sent to it for a moment."""
        self._suspect_until = asyncio.get_running_loop().time() + SUSPECT_SECONDS
        self._on_probation = True

    async def load(self, adapter: types.AdapterRef) -> None:
        """Single flight: concurrent first uses share one LoadAdapter. Raises the sampler's error."""
        if adapter.name in self._resident:
            return
        task = self._loading.get(adapter.name)
        if task is None:
            task = self._loading[adapter.name] = asyncio.create_task(self._load(adapter))
            task.add_done_callback(lambda done: self._loaded(adapter.name, done))
        await asyncio.shield(task)

    async def sample(self, request: pb.SampleRequest, seconds: float) -> types.SampleResult:
        """Raises the sampler's error, or ServerError past `seconds`."""
        try:
            reply: pb.SampleReply = await self._stub.Sample(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                await self.abort(request.request_id)
                raise ServerError(f"sampler {self.sampler_id} did not finish within {seconds:g} s") from error
            raise from_rpc_error(error) from error
        self._on_probation = False
        return reply.result

    async def abort(self, request_id: str) -> None:
        """A failure is logged: the sampler's own deadline ends what this could not."""
        try:
            await self._stub.Abort(pb.AbortRequest(request_id=request_id), timeout=ABORT_SECONDS)
        except grpc.aio.AioRpcError as error:
            log.warning("sampler %s did not take the abort of %s: %s", self.sampler_id, request_id, error.details())

    def forget(self, adapter: str) -> None:
        """The sampler may have evicted it: the next use loads explicitly."""
        self._resident.discard(adapter)

    async def close(self) -> None:
        for task in self._loading.values():
            task.cancel()
        await self._channel.close(None)

    async def _load(self, adapter: types.AdapterRef) -> None:
        try:
            await self._stub.LoadAdapter(pb.LoadAdapterRequest(adapter=adapter), timeout=self._load_seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                text = f"sampler {self.sampler_id} did not load {adapter.name} within {self._load_seconds:g} s"
                raise ServerError(text) from error
            raise from_rpc_error(error) from error
        self._resident.add(adapter.name)

    def _loaded(self, name: str, done: asyncio.Task[None]) -> None:
        self._loading.pop(name, None)
        if not done.cancelled() and isinstance(done.exception(), TinkermeshError):
            log.info("sampler %s did not load %s: %s", self.sampler_id, name, done.exception())
