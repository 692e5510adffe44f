"""One scheduler replica: starts, serves until it is told to stop, ends in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from tinkermesh.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    catalog_pb2,
    catalog_pb2_grpc,
    completions_pb2,
    completions_pb2_grpc,
    console_pb2,
    console_pb2_grpc,
    jobs_pb2,
    jobs_pb2_grpc,
    scheduler_pb2,
    scheduler_pb2_grpc,
    tenants_pb2,
    tenants_pb2_grpc,
)

from services.common.errors import Unavailable
from services.common.grpc_server import GrpcServer
from services.common.process import write_port
from services.common.redis_url import parse_redis_url
from services.scheduler import metrics
from services.scheduler.parts.assembly import Assembly, Parts
from services.scheduler.parts.ground import Ground
from services.scheduler.redis_keeper import RedisKeeper
from services.scheduler.settings import Settings
from services.scheduler.store.connection import Redis, connect
from services.scheduler.store.functions import Functions
from services.scheduler.store.notices import Notices
from services.scheduler.store_room import StoreRoom

log = logging.getLogger(__name__)

REDIS_WAIT_SECONDS = 30.0
RETRY_SECONDS = 0.2
CLOSE_SECONDS = 2.0
CANCEL_SECONDS = 0.5
CANCEL_ATTEMPTS = 10


class App:
    """`start`, then `wait` for a stop or the first failure, then `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._redis: Redis = connect(settings.redis_url, password_file=settings.redis_password_file)
        self._notices = Notices(self._redis)
        self._functions = Functions(self._redis)
        self._keeper = RedisKeeper(self._redis, self._functions, settings, self._notices)
        self._parts: Parts | None = None
        self._server = GrpcServer([service.full_name for service in _services()])
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0

    async def start(self) -> int:
        """Serving when it returns; answers the bound port. Raises InvalidInput, Unavailable, RuntimeError."""
        settings = self._settings
        await self._reach_redis()
        parts = self._parts = Assembly(Ground(settings, self._redis, self._functions, self._notices)).parts()
        self._run(self._notices.run(), "notices")
        async with asyncio.timeout(REDIS_WAIT_SECONDS):
            await self._notices.subscribed.wait()
        self._run(self._keeper.run(), "Redis keeper")
        self._run(parts.memory.run(), "memory")
        self._run(StoreRoom(Path(settings.store_root)).run(), "store room")
        metrics.watching(lambda: parts.watches.streams, lambda: parts.watches.open_waits)
        await parts.book.refresh()
        self._run(parts.book.run(), "tenants")
        self._run(parts.watches.run(), "watches")
        self._run(parts.deliveries.run(), "deliveries")
        self._run(parts.sweeper.run(), "sweeper")
        self._run(parts.catalog_sweeper.run(), "catalog sweeper")
        self._run(parts.generation_desk.run(), "generations")
        self._run(parts.training.run(), "training")
        scheduler_pb2_grpc.add_SchedulerServicer_to_server(parts.scheduler, self._server.server)
        scheduler_pb2_grpc.add_RegistryServicer_to_server(parts.registry, self._server.server)
        catalog_pb2_grpc.add_CatalogServicer_to_server(parts.catalog, self._server.server)
        completions_pb2_grpc.add_CompletionsServicer_to_server(parts.completions, self._server.server)
        console_pb2_grpc.add_ConsoleServicer_to_server(parts.console, self._server.server)
        admin_pb2_grpc.add_AdminServicer_to_server(parts.admin, self._server.server)
        tenants_pb2_grpc.add_TenantsServicer_to_server(parts.tenants, self._server.server)
        jobs_pb2_grpc.add_JobsServicer_to_server(parts.jobs, self._server.server)
        self.port = await self._server.start(settings.listen)
        write_port(settings.port_file, self.port)
        log.info("replica %s serves at port %d", settings.replica, self.port)
        return self.port

    async def wait(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises what a background task raised."""
        stopping = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([stopping, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Admission ends, running units finish, leases are released, streams end, connections close."""
        if self._parts is not None:
            self._parts.front.stop_admission()
            await self._server.set_serving(False)
            await self._parts.training.stop()
            self._parts.watches.end_all()
            self._parts.job_progress.end_all()
            await self._server.stop(CLOSE_SECONDS)
            await self._parts.fleet.close()
        await _end(self._tasks)
        await self._keeper.leave()
        await self._redis.aclose()

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _reach_redis(self) -> None:
        deadline = asyncio.get_running_loop().time() + REDIS_WAIT_SECONDS
        while True:
            try:
                return await self._keeper.prepare()
            except Unavailable as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise Unavailable(f"{error} (redis_url: {parse_redis_url(self._settings.redis_url)})") from error
            await asyncio.sleep(RETRY_SECONDS)


async def run(settings: Settings) -> None:
    """Until SIGTERM or SIGINT. The first failure is the one raised."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    app = App(settings)
    try:
        await app.start()
        await app.wait(stop)
    except BaseException:
        await _stop_quietly(app)
        raise
    await app.stop()


async def _stop_quietly(app: App) -> None:
    try:
        await app.stop()
    except Exception:  # noqa: BLE001 - must not hide the failure that ends the process
        log.exception("closing after a failure failed too")


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancels until the tasks have ended: a cancellation can be lost inside a client library's call."""
    pending = set(tasks)
    for _ in range(CANCEL_ATTEMPTS):
        for task in pending:
            task.cancel()
        if pending:
            _, pending = await asyncio.wait(pending, timeout=CANCEL_SECONDS)
    for task in pending:
        log.error("task %s does not end", task.get_name())


def _services() -> Sequence[ServiceDescriptor]:
    scheduler = scheduler_pb2.DESCRIPTOR.services_by_name
    operators = [admin_pb2.DESCRIPTOR.services_by_name["Admin"], tenants_pb2.DESCRIPTOR.services_by_name["Tenants"]]
    catalog = catalog_pb2.DESCRIPTOR.services_by_name["Catalog"]
    completions = completions_pb2.DESCRIPTOR.services_by_name["Completions"]
    console = console_pb2.DESCRIPTOR.services_by_name["Console"]
    jobs = jobs_pb2.DESCRIPTOR.services_by_name["Jobs"]
    return [scheduler["Scheduler"], scheduler["Registry"], catalog, completions, console, jobs, *operators]
