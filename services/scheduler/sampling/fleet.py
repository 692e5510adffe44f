"""The samplers of all pools this replica talks to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Protocol, TypeVar

from tinkermesh.v1 import scheduler_pb2
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import TinkermeshError, Unavailable
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.pairing import problems
from services.scheduler.waking import wait_at_most

log = logging.getLogger(__name__)

LOAD_SECONDS = 120.0

T = TypeVar("T")


class SamplerDirectory(Protocol):
    async def samplers(self, pool: str) -> list[scheduler_pb2.RegisterSamplerRequest]:
        """The live samplers of `pool`."""
        ...

    async def drained_samplers(self, pool: str) -> Collection[str]:
        """Ids of those that get nothing more."""
        ...


class Fleet:
    def __init__(self, directory: SamplerDirectory, *, load_seconds: float = LOAD_SECONDS) -> None:
        self._directory = directory
        self._load_seconds = load_seconds
        self._links: dict[str, dict[tuple[str, str], SamplerLink]] = {}
        self._freed = asyncio.Event()
        self._unpaired: dict[str, dict[str, str]] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def links(self, pool: str) -> list[SamplerLink]:
        """One link per live incarnation; links of the dead are closed."""
        live = {(r.sampler_id, r.incarnation): r for r in await self._directory.samplers(pool)}
        held = self._links.setdefault(pool, {})
        for identity in [identity for identity in held if identity not in live]:
            self.spawn(held.pop(identity).close())
        for identity, registration in live.items():
            if identity not in held:
                held[identity] = SamplerLink(registration, load_seconds=self._load_seconds, freed=self._freed)
        drained = await self._directory.drained_samplers(pool)
        for link in held.values():
            link.draining = link.sampler_id in drained
            link.look()
        self._tell_unpaired(pool, list(held.values()))
        return list(held.values())

    def _tell_unpaired(self, pool: str, links: list[SamplerLink]) -> None:
        found = problems(links)
        if found != self._unpaired.get(pool, {}):
            self._unpaired[pool] = found
            for sampler_id, why in found.items():
                log.warning("pool %s: sampler %s has no partner: %s", pool, sampler_id, why)

    async def change(self, seconds: float) -> None:
        """Until a sampler got room here, at most `seconds`; nothing that happens after the call began is missed."""
        self._freed.clear()
        await wait_at_most(self._freed, seconds)

    async def push(self, pool: str, adapter: types.AdapterRef) -> None:
        """Asks every live sampler of `pool` to load a freshly published version, in the background.

        A failure is only logged: the first sample loads it then.
        """
        try:
            links = await self.links(pool)
        except TinkermeshError as error:
            log.warning("snapshot %s is not pushed: %s", adapter.name, error)
            return
        for link in links:
            self.spawn(self._push(link, adapter))

    async def any_answer(
        self, pool: str, stage: str, seconds: float, ask: Callable[[SamplerLink, float], Awaitable[T]]
    ) -> T:
        """What any of them knows: the least busy one is asked first, another one when that is away.

        Raises what the asked one raises, Unavailable naming the stage when all are away.
        """
        end = asyncio.get_running_loop().time() + seconds
        why = "there is none"
        for link in sorted(await self.links(pool), key=lambda link: (not link.usable, link.in_flight)):
            left = end - asyncio.get_running_loop().time()
            try:
                return await ask(link, max(left, 0.0))
            except Unavailable as error:
                link.suspect()
                why = error.message
        raise Unavailable(f"stage {stage!r}: no sampler of pool {pool} answered: {why}")

    async def abort(self, pool: str, sampler_id: str, request_id: str) -> None:
        for link in await self.links(pool):
            if link.sampler_id == sampler_id:
                self.spawn(link.abort(request_id))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        for task in list(self._background):
            task.cancel()
        for held in self._links.values():
            for link in held.values():
                await link.close()
        self._links.clear()

    async def _push(self, link: SamplerLink, adapter: types.AdapterRef) -> None:
        try:
            await link.load(adapter)
        except TinkermeshError as error:
            log.warning("push of %s to sampler %s failed: %s", adapter.name, link.sampler_id, error)
