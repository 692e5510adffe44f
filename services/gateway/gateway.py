"""Everything a route needs, wired once per process."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from services.common.grpc_channel import open_channel
from services.common.keyring import Keyring, load_pepper
from services.gateway import metrics
from services.gateway.auth import Authenticator
from services.gateway.counters import DroppedInputs
from services.gateway.links import Links
from services.gateway.offload import Offload
from services.gateway.settings import Settings
from services.gateway.tokens import Tokens
from services.gateway.upstream.catalog import CatalogClient
from services.gateway.upstream.completions import CompletionsClient
from services.gateway.upstream.console import ConsoleClient
from services.gateway.upstream.facts import FactsCache
from services.gateway.upstream.jobs import JobsClient
from services.gateway.upstream.keys import KeyAnswers, TenantsClient
from services.gateway.upstream.retry import Retry
from services.gateway.upstream.scheduler import SchedulerClient
from services.gateway.upstream.target import scheduler_target
from services.gateway.upstream.watch import WatchHub

log = logging.getLogger(__name__)

_STOP_SECONDS = 2.0


class Gateway:
    """Must be made inside a running event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.limits = settings.limits
        pepper = load_pepper(Path(settings.pepper_file))
        self._channel = open_channel(scheduler_target(settings.scheduler))
        retry = Retry(settings.rpc_timeout_seconds, settings.retry_seconds)
        self.scheduler = SchedulerClient(self._channel, retry)
        self.catalog = CatalogClient(self._channel, retry)
        self.completions = CompletionsClient(self._channel, retry)
        self.console = ConsoleClient(self._channel, retry)
        self.jobs = JobsClient(self._channel, retry, settings.retry_seconds)
        self.links = Links(pepper)
        self.tenants = TenantsClient(self._channel, retry)
        self.tokens = Tokens(pepper, settings.jwt_lifetime_seconds) if settings.jwt_auth else None
        keyring = Keyring(Path(settings.key_file), pepper)
        self.auth = Authenticator(keyring, pepper, KeyAnswers(self.tenants), self.tokens)
        self.facts = FactsCache(self.scheduler)
        self.hub = WatchHub(self.scheduler)
        self.offload = Offload(settings.decoder_threads, settings.offload_bytes)
        self.dropped = DroppedInputs()
        self._watching: asyncio.Task[None] | None = None
        metrics.watching(lambda: self.hub.open_waits, lambda: self.hub.draining)

    def start(self) -> None:
        self._watching = asyncio.create_task(self.hub.run(), name="watch")
        self._watching.add_done_callback(_report_end)

    def drain(self) -> None:
        """Open long polls answer at once; nothing new is accepted by the server meanwhile."""
        self.hub.drain()

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching}, timeout=_STOP_SECONDS)
        await self._channel.close(grace=None)
        self.offload.close()


def _report_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the watch task ended; long polls answer by time-out only", exc_info=error)
