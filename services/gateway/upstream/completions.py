"""Typed calls to the Completions service. Raises errors of services.common.errors only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
from tinkermesh.v1 import completions_pb2 as pb
from tinkermesh.v1.completions_pb2_grpc import CompletionsStub

from services.common.errors import ContractViolation, DecodeInterrupted, Interrupted, Unavailable
from services.gateway.upstream.retry import Retry, typed

START_SECONDS = 45.0
"""Until a scheduler has checked a request and made tokens of its prompts."""
WHOLE_SECONDS = 4 * 3600.0
"""The scheduler's own bounds end a generation long before."""


@dataclass(slots=True)
class Generation:
    """An open stream; `cancel` it in any case."""

    started: pb.GenerateStarted
    call: Any
    told: bool = False

    async def chunks(self) -> AsyncIterator[pb.GeneratedChunk]:
        """Raises the scheduler's error, Interrupted where it went away after the first chunk."""
        try:
            while (event := await _next(self.call)) is not None:
                if event.HasField("chunk"):
                    self.told = True
                    yield event.chunk
        except Unavailable as error:
            if not self.told or isinstance(error, DecodeInterrupted):
                raise
            raise Interrupted(f"the stream broke off: {error.message}") from error

    def cancel(self) -> None:
        """Whatever is left of it is aborted, down to the samplers."""
        self.call.cancel()


class CompletionsClient:
    """On the scheduler's channel."""

    def __init__(self, channel: grpc.aio.Channel, retry: Retry) -> None:
        self._stub: Any = CompletionsStub(channel)
        self._retry = retry

    async def models(self, tenant: str, model: str = "") -> list[pb.CompletionModel]:
        """Raises MissingResource, Forbidden, Unavailable."""
        request = pb.CompletionModelsRequest(tenant_id=tenant, model=model)
        reply = await self._retry.call(lambda timeout: self._stub.Models(request, timeout=timeout), hedged=True)
        return list(reply.models)

    async def generate(self, request: pb.GenerateRequest) -> Generation:
        """Once a scheduler has taken it up; before that another one may be asked.

        Raises InvalidInput, MissingResource, Forbidden, Busy, Unavailable.
        """
        return await self._retry.call(lambda _timeout: self._begun(request))

    async def _begun(self, request: pb.GenerateRequest) -> Generation:
        call = self._stub.Generate(request, timeout=WHOLE_SECONDS)
        try:
            async with asyncio.timeout(START_SECONDS):
                event = await _next(call)
        except TimeoutError as error:
            call.cancel()
            raise ContractViolation(f"stage 'start': no scheduler began within {START_SECONDS:g} s") from error
        except BaseException:  # nothing is handled here: who waited has gone, or the call has failed
            call.cancel()
            raise
        if event is None or not event.HasField("started"):
            call.cancel()
            raise ContractViolation("the scheduler began a completion with something else")
        return Generation(event.started, call)


async def _next(call: Any) -> pb.GenerateEvent | None:
    """None at the end. Raises the scheduler's error."""
    try:
        event = await call.read()
    except grpc.aio.AioRpcError as error:
        raise typed(error) from error
    return event if isinstance(event, pb.GenerateEvent) else None
