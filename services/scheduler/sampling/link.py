"""One life of one sampler as the dispatcher sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, cast

import grpc
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import sampler_pb2_grpc, scheduler_pb2
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import ServerError, TinkermeshError, Unavailable, from_rpc_error, is_typed
from services.common.grpc_channel import open_channel
from services.scheduler.sampling.link_load import LinkLoad
from services.scheduler.sampling.pairing import BOTH
from services.scheduler.sampling.streaming import StreamBounds, bounded, whole

log = logging.getLogger(__name__)

SUSPECT_SECONDS = 1.0
ABORT_SECONDS = 5.0
ANSWER_SECONDS = 5.0
DESCRIBE_SECONDS = 2.0
IN_FLIGHT_PER_RUNNING = 2
RESERVE_PART = 8
GRACE_SECONDS = 5.0
"""Behind the own bound of a stream, which names the stage, comes the transport's."""


class SamplerLink:
    def __init__(
        self,
        registration: scheduler_pb2.RegisterSamplerRequest,
        *,
        load_seconds: float,
        freed: asyncio.Event | None = None,
    ) -> None:
        self.sampler_id = registration.sampler_id
        self.incarnation = registration.incarnation
        self.address = registration.address
        self.role = registration.role or BOTH
        self.kv = registration.kv
        self.max_context = registration.facts.max_context
        self._capacity = max(1, registration.max_running) * IN_FLIGHT_PER_RUNNING
        self.load_now = LinkLoad(freed)
        self._load_seconds = load_seconds
        self._channel = open_channel(registration.address)
        self._stub = sampler_pb2_grpc.SamplerStub(self._channel)
        self._resident: set[str] = set()
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._suspect_until = 0.0
        self._on_probation = False
        self._closed = False
        self.draining = False
        """An operator wants nothing more to be sent to it."""
        self._background: set[asyncio.Task[None]] = set()

    @property
    def named(self) -> str:
        """For texts: which one it is, and which part of the work it does."""
        return f"sampler {self.sampler_id}" if self.role == BOTH else f"{self.role} sampler {self.sampler_id}"

    @property
    def in_flight(self) -> int:
        """Sequences, with those of other replicas as far as the sampler told."""
        return self.load_now.total

    @property
    def capacity(self) -> int:
        """Sequences in flight; one sample at a time until a suspect has answered again."""
        return 1 if self._on_probation else self._capacity

    @property
    def reserve(self) -> int:
        """Sequences beyond its capacity that only reserved requests use; a suspect has none."""
        return 0 if self._on_probation else max(1, self._capacity // RESERVE_PART)

    @property
    def usable(self) -> bool:
        return not self.draining and asyncio.get_running_loop().time() >= self._suspect_until

    @property
    def resident(self) -> set[str]:
        return self._resident

    def suspect(self) -> None:
        """A call found it away; nothing is sent to it for a moment."""
        self._suspect_until = asyncio.get_running_loop().time() + SUSPECT_SECONDS
        self._on_probation = True

    async def load(self, adapter: types.AdapterRef) -> None:
        """Single flight: concurrent first uses share one LoadAdapter.

        Raises the sampler's error, Unavailable when the link is closed meanwhile.
        """
        if adapter.name in self._resident:
            return
        with self._open_or_away():
            await asyncio.shield(self._loading.get(adapter.name) or self._begin_load(adapter))

    async def sample(self, request: pb.SampleRequest, seconds: float) -> types.SampleResult:
        """Raises the sampler's error, ServerError past `seconds`, Unavailable when the link is closed meanwhile."""
        try:
            with self._open_or_away():
                reply: pb.SampleReply = await self._stub.Sample(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                await self.abort(request.request_id)
                raise ServerError(f"sampler {self.sampler_id} did not finish within {seconds:g} s") from error
            raise from_rpc_error(error) from error
        self._on_probation = False
        return reply.result

    async def stream(
        self, request: pb.SampleStreamRequest, bounds: StreamBounds
    ) -> AsyncGenerator[pb.SampleChunk, None]:
        """Chunks until every sequence has finished; leaving early aborts the request at the sampler.

        Raises the sampler's error, Unavailable naming the stage (nothing came in time, the link was closed
        meanwhile), ServerError past the whole bound and where the stream is not whole.
        """
        who, done = self.named, False
        call = self._stub.SampleStream(request, timeout=bounds.whole + GRACE_SECONDS)
        checked = whole(bounded(self._chunks(call), who, bounds), who, max(1, request.sample.body.num_samples))
        try:
            async with aclosing(checked):
                async for chunk in checked:
                    yield chunk
            self._on_probation, done = False, True
        finally:
            if not done:
                call.cancel()
                self._spawn(self.abort(request.sample.request_id))

    async def _chunks(self, call: Any) -> AsyncGenerator[pb.SampleChunk, None]:
        try:
            arriving = aiter(call)
            while True:
                with self._open_or_away():
                    chunk = await anext(arriving, None)
                if chunk is None:
                    return
                yield chunk
        except grpc.aio.AioRpcError as error:
            raise self._told(error) from error

    async def tokenize(self, request: pb.TokenizeRequest, seconds: float) -> bytes:
        """int32 little-endian. Raises the sampler's error, Unavailable past `seconds`."""
        reply: pb.TokenizeReply = await self._ask(self._stub.Tokenize, request, seconds)
        return reply.tokens

    async def pieces(self, tokens: bytes, seconds: float) -> list[bytes]:
        """One per token (int32 little-endian). Raises the sampler's error, Unavailable past `seconds`."""
        reply: pb.PiecesReply = await self._ask(self._stub.Pieces, pb.PiecesRequest(tokens=tokens), seconds)
        return list(reply.pieces)

    def look(self) -> None:
        """Asks the sampler how busy it is, in the background and not too often."""
        if not self._closed and self.load_now.due():
            self._spawn(self._look())

    async def _look(self) -> None:
        own = self.load_now.in_flight
        try:
            told = await self.describe()
        except TinkermeshError:
            return  # what was told last is not believed for long
        self.load_now.told(told.running + told.waiting, own)

    async def describe(self) -> pb.SamplerDescription:
        """Raises its error, Unavailable."""
        told = await self._ask(self._stub.Describe, pb.DescribeSamplerRequest(), DESCRIBE_SECONDS)
        return cast("pb.SamplerDescription", told)

    async def unload(self, name: str) -> bool:
        """False = it was not loaded. Raises InUse, Unavailable."""
        self.forget(name)
        reply: pb.UnloadAdapterReply = await self._ask(self._stub.UnloadAdapter, pb.UnloadAdapterRequest(name=name))
        return reply.was_loaded

    async def abort(self, request_id: str) -> None:
        """A failure is logged: the sampler's own deadline ends what this could not."""
        try:
            await self._stub.Abort(pb.AbortRequest(request_id=request_id), timeout=ABORT_SECONDS)
        except grpc.aio.AioRpcError as error:
            log.warning("sampler %s did not take the abort of %s: %s", self.sampler_id, request_id, error.details())

    async def adapters(self) -> Sequence[pb.LoadedAdapter]:
        """Those resident now, as the sampler says. Raises its error, Unavailable."""
        reply: pb.ListAdaptersReply = await self._ask(self._stub.ListAdapters, pb.ListAdaptersRequest())
        return reply.adapters

    async def tier_status(self) -> pb.TierStatusReply:
        """Raises its error, Unavailable."""
        return cast("pb.TierStatusReply", await self._ask(self._stub.TierStatus, pb.TierStatusRequest()))

    async def invalidate_blocks(self, request: pb.InvalidateBlocksRequest) -> int:
        """Blocks dropped. Raises its error, Unavailable."""
        reply: pb.InvalidateBlocksReply = await self._ask(self._stub.InvalidateBlocks, request)
        return reply.dropped

    async def _ask(self, call: Any, request: Any, seconds: float = ANSWER_SECONDS) -> Any:
        """Raises its error, Unavailable when it is away or past `seconds`."""
        try:
            with self._open_or_away():
                return await call(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise Unavailable(f"{self.named} did not answer within {seconds:g} s") from error
            raise self._told(error) from error

    def forget(self, adapter: str) -> None:
        """The sampler may have evicted it: the next use loads explicitly."""
        self._resident.discard(adapter)

    async def close(self) -> None:
        """Its sampler is gone: calls under way raise Unavailable, so that another one does their work."""
        self._closed = True
        for task in (*self._loading.values(), *self._background):
            task.cancel()
        await self._channel.close(None)

    @contextmanager
    def _open_or_away(self) -> Iterator[None]:
        """A closed channel cancels its calls, and that must not pass for the end of the task that waits for one."""
        if self._closed:
            raise self._gone()
        try:
            yield
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            raise self._gone() from error

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _told(self, error: grpc.aio.AioRpcError) -> TinkermeshError:
        """The sampler's own error. A transport's text names addresses of the mesh: it goes to the log only."""
        typed = from_rpc_error(error)
        if is_typed(error) or not isinstance(typed, Unavailable):
            return typed
        log.warning("%s was lost: %s", self.named, error.details())
        return Unavailable(f"{self.named} was lost")

    def _gone(self) -> Unavailable:
        return Unavailable(f"sampler {self.sampler_id} does not register any more")

    def _begin_load(self, adapter: types.AdapterRef) -> asyncio.Task[None]:
        task = self._loading[adapter.name] = asyncio.create_task(self._load(adapter))
        task.add_done_callback(lambda done: self._loaded(adapter.name, done))
        return task

    async def _load(self, adapter: types.AdapterRef) -> None:
        try:
            await self._stub.LoadAdapter(pb.LoadAdapterRequest(adapter=adapter), timeout=self._load_seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                text = f"sampler {self.sampler_id} did not load {adapter.name} within {self._load_seconds:g} s"
                raise ServerError(text) from error
            raise self._told(error) from error
        self._resident.add(adapter.name)

    def _loaded(self, name: str, done: asyncio.Task[None]) -> None:
        self._loading.pop(name, None)
        if not done.cancelled() and isinstance(done.exception(), TinkermeshError):
            log.info("sampler %s did not load %s: %s", self.sampler_id, name, done.exception())
