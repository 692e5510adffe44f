"""The event loop of rank 0's gRPC server, in a thread of its own beside the computing main thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tinkermesh.v1 import scheduler_pb2
from tinkermesh.v1 import trainer_pb2_grpc as pb_grpc

from services.common.errors import ServerError
from services.common.grpc_server import GrpcServer
from services.common.process import write_port
from services.trainer.registration import keep_registered
from services.trainer.server import SERVICE, Identity, TrainerService
from services.trainer.settings import Settings

log = logging.getLogger(__name__)
T = TypeVar("T")

CALL_SECONDS = 30.0
GRACE_SECONDS = 2.0


class ServiceThread:
    """Owns the loop. `failed` hears of an error that ended it."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="grpc", daemon=True)
        self._server: GrpcServer | None = None
        self._registration: asyncio.Task[None] | None = None

    def start(self, settings: Settings, service: TrainerService, identity: Identity, incarnation: str) -> str:
        """Serves and registers; answers the address schedulers reach this trainer at."""
        self._thread.start()
        return self._call(self._open(settings, service, identity, incarnation))

    def post(self, action: Callable[..., None], *arguments: object) -> None:
        """Runs `action` in the loop, from any thread."""
        self._loop.call_soon_threadsafe(action, *arguments)

    def leave(self) -> None:
        """Stops registering and turns the health check; calls under way go on."""
        self._call(self._withdraw())

    def stop(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: the main thread must hear of it
            self._failed(error)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)

    async def _open(self, settings: Settings, service: TrainerService, identity: Identity, incarnation: str) -> str:
        self._server = GrpcServer([SERVICE])
        pb_grpc.add_TrainerServicer_to_server(service, self._server.server)
        port = await self._server.start(settings.listen)
        address = settings.advertised(port)
        if settings.scheduler_targets:
            request = scheduler_pb2.RegisterTrainerRequest(
                trainer_id=identity.trainer_id,
                incarnation=incarnation,
                address=address,
                facts=identity.facts,
                cell=settings.cell,
            )
            self._registration = asyncio.create_task(keep_registered(settings.scheduler_targets, request))
            self._registration.add_done_callback(self._registration_ended)
        write_port(settings.port_file, port)
        return address

    async def _withdraw(self) -> None:
        if self._registration is not None:
            self._registration.cancel()
        if self._server is not None:
            await self._server.set_serving(False)

    async def _close(self) -> None:
        if self._server is not None:
            await self._server.stop(GRACE_SECONDS)

    def _registration_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failed(task.exception() or ServerError("registration ended by itself"))
