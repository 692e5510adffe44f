"""A doubled engine's server: it serves, and keeps up the registration every two seconds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import grpc
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import scheduler_pb2_grpc as pb_grpc

from services.common.errors import StaleFence, from_rpc_error
from services.common.grpc_channel import open_channel
from services.common.grpc_server import GrpcServer

log = logging.getLogger(__name__)
INTERVAL_SECONDS = 2.0
Registration = pb.RegisterTrainerRequest | pb.RegisterSamplerRequest


class RegisteredServer:
    """Base of the doubles: `registration` says who this is, `add_to` attaches its servicer."""

    def __init__(self, service: str) -> None:
        self.address = ""
        self._server = GrpcServer([service])
        self._registering: asyncio.Task[None] | None = None
        self.superseded = asyncio.Event()
        """Set when another incarnation has taken this one's place: a process ends then."""

    def registration(self) -> Registration:
        raise NotImplementedError

    def add_to(self, server: grpc.aio.Server) -> None:
        raise NotImplementedError

    async def start(self, listen: str = "127.0.0.1:0", scheduler: str = "") -> str:
        """Answers the bound host:port; registers when `scheduler` names addresses."""
        self.add_to(self._server.server)
        port = await self._server.start(listen)
        self.address = f"{listen.rsplit(':', 1)[0]}:{port}"
        if scheduler:
            self._registering = asyncio.create_task(self._register(scheduler))
        return self.address

    async def _register(self, scheduler: str) -> None:
        try:
            await register_for_ever(scheduler, self.registration())
        except StaleFence as error:
            log.warning("refused: registration: %s", error.message)
            self.supersede(error.message)

    def supersede(self, reason: str) -> None:
        log.critical("the engine ends: %s", reason)
        self.superseded.set()

    async def fall_silent(self) -> None:
        """As a machine that is gone: it registers no more, calls to it stay open."""
        if self._registering is not None:
            self._registering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._registering

    async def stop(self) -> None:
        await self.fall_silent()
        await self._server.stop(0.2)


def scheduler_target(addresses: str) -> str:
    """A gRPC target that tries every one of the comma-separated host:port addresses."""
    return f"ipv4:{addresses}" if "," in addresses else addresses


async def register_for_ever(addresses: str, request: Registration) -> None:
    """Until cancelled; a failed attempt is logged and repeated at the next turn. Raises StaleFence when superseded."""
    async with open_channel(scheduler_target(addresses)) as channel:
        stub = pb_grpc.RegistryStub(channel)
        call: Callable[..., Awaitable[pb.RegisterReply]] = (
            stub.RegisterTrainer if isinstance(request, pb.RegisterTrainerRequest) else stub.RegisterSampler
        )
        while True:
            pause = INTERVAL_SECONDS
            try:
                reply = await call(request, timeout=2.0)
                pause = min(pause, reply.renew_after_ms / 1000 or pause)
            except grpc.aio.AioRpcError as error:
                if isinstance(typed := from_rpc_error(error), StaleFence):
                    raise typed from error
                log.warning("registration failed: %s %s", error.code().name, error.details())
                pause = 0.2
            await asyncio.sleep(pause)
