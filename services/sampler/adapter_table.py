"""Which adapters are in the engine, who uses them, and which one leaves for the next.

An adapter version is one directory, one name and, for each time it is loaded, one engine id
that is never used again. Concurrent first uses share one load. An adapter with queued or
running requests is never evicted: those who find every place taken wait in turn, and the
least recently used adapter takes no new requests until its running ones have finished.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.common.errors import AdapterNotLoaded, Busy, InUse, InvalidInput, MissingResource, Unavailable
from services.common.store import contained
from services.sampler import metrics
from services.sampler.adapter_files import AdapterFiles
from services.sampler.legs import BOTH, not_loaded
from services.sampler.ports import Engine, EngineAdapter
from services.sampler.residents import Resident, Seeker, State

log = logging.getLogger(__name__)

FIRST_ENGINE_ID = 2  # 1 is the base model's
_MAX_LOAD_COUNTS = 4096


class AdapterTable:
    def __init__(
        self,
        engine: Engine,
        files: AdapterFiles,
        store_root: Path,
        max_adapters: int,
        *,
        role: str = BOTH,
        load_timeout_seconds: float = 120.0,
        place_timeout_seconds: float = 120.0,
    ) -> None:
        self._engine = engine
        self._files = files
        self._root = store_root
        self._places = max_adapters
        self._role = role
        self._load_timeout = load_timeout_seconds
        self._place_timeout = place_timeout_seconds
        self._residents: OrderedDict[str, Resident] = OrderedDict()  # least recently used first
        self._seekers: OrderedDict[str, Seeker] = OrderedDict()  # in order of arrival
        self._loads: OrderedDict[str, int] = OrderedDict()
        self._next_id = FIRST_ENGINE_ID
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def use(self, name: str, path: str) -> AsyncIterator[EngineAdapter]:
        """The adapter, loaded and pinned inside the block; waits for a place if it must.

        As one leg of prefill and decode nothing is loaded or waited for here: an adapter that is not ready is refused.
        Raises MissingResource, InvalidInput (the directory), AdapterNotLoaded, Busy (no place in time).
        """
        resident = self._residents.get(name)
        if self._role != BOTH and (resident is None or resident.state is not State.READY):
            raise AdapterNotLoaded(not_loaded(name, path, self._role))
        resident = await self._pin(name, path, wait=self._role == BOTH)
        try:
            await self._until_ready(resident)
            yield resident.adapter
        finally:
            self._unpin(resident)

    async def load(self, name: str, path: str) -> tuple[bool, float]:
        """(was already loaded, seconds). Raises as `use`, but Busy at once without a place."""
        started = time.monotonic()
        known = name in self._residents and self._residents[name].state is State.READY
        resident = await self._pin(name, path, wait=False)
        try:
            await self._until_ready(resident)
        finally:
            self._unpin(resident)
        return known, time.monotonic() - started

    async def unload(self, name: str) -> bool:
        """False when it was not loaded. Raises InUse while it has queued or running requests."""
        resident = self._residents.get(name)
        if resident is None:
            return False
        if resident.in_use or resident.state is State.LOADING:
            raise InUse(
                f"adapter {name} has {resident.in_use} queued or running requests; unload it when they are done"
            )
        self._leave(name, resident, asked=True)
        if resident.gone is not None:
            await asyncio.shield(resident.gone)
        return True

    def residents(self) -> list[tuple[Resident, int]]:
        """Loaded or loading adapters, least recently used first, with their loads since start."""
        return [(resident, self._loads.get(name, 0)) for name, resident in self._residents.items()]

    def states(self) -> dict[str, int]:
        """Adapters that have a place, by state; from any thread."""
        return Counter(resident.state.name.lower() for resident in list(self._residents.values()))

    @property
    def seekers(self) -> int:
        return len(self._seekers)

    # ---- pinning ------------------------------------------------------------------------

    async def _pin(self, name: str, path: str, *, wait: bool) -> Resident:
        directory = self._directory(name, path)
        resident = self._residents.get(name)
        if self._bound(name) not in (None, directory):
            raise InvalidInput(f"adapter {name} is bound to another directory than {path[:300]!r}")
        if resident is not None and resident.state in (State.LOADING, State.READY):
            self._residents.move_to_end(name)
            resident.in_use += 1
            return resident
        if not wait and not self._has_place():
            raise Busy(f"adapter {name}: all {self._places} places are held by adapters in use; retry later")
        return await self._seek(name, path, directory)

    def _bound(self, name: str) -> Path | None:
        """The directory that has or waits for a place under `name`."""
        if name in self._residents:
            return self._residents[name].adapter.directory
        return self._seekers[name].directory if name in self._seekers else None

    def _unpin(self, resident: Resident) -> None:
        resident.in_use -= 1
        if not resident.in_use:
            self._rebalance()

    def _directory(self, name: str, path: str) -> Path:
        if not name:
            raise InvalidInput("adapter.name is empty")
        directory = contained(self._root, path)
        if not directory.is_dir():
            remedy = "save it again with save_weights_for_sampler and make a sampler of what that answers"
            raise MissingResource(f"adapter {name} has no files any more: it was deleted or expired; {remedy}")
        return directory

    async def _until_ready(self, resident: Resident) -> None:
        try:
            async with asyncio.timeout(self._load_timeout):
                await asyncio.shield(resident.ready)
        except TimeoutError:
            raise Unavailable(
                f"adapter {resident.adapter.name}: stage loading took more than {self._load_timeout:g} s"
            ) from None

    # ---- places -------------------------------------------------------------------------

    def _has_place(self) -> bool:
        idle = sum(r.state is State.READY and not r.in_use for r in self._residents.values())
        leaving = sum(r.state is State.LEAVING for r in self._residents.values())
        return self._places - len(self._residents) + idle + leaving > len(self._seekers)

    async def _seek(self, name: str, path: str, directory: Path) -> Resident:
        """Waits until `name` has a place; the resident is pinned for the caller by the grant."""
        seeker = self._seekers.setdefault(name, Seeker(directory, path))
        seeker.requests += 1
        self._rebalance()
        try:
            async with asyncio.timeout(self._place_timeout):
                return await asyncio.shield(seeker.turn)
        except TimeoutError:
            self._give_up(name, seeker)
        except asyncio.CancelledError:
            self._give_up(name, seeker)
            raise
        raise Busy(
            f"adapter {name}: stage waiting for a place took more than {self._place_timeout:g} s; "
            f"all {self._places} are in use; retry later or raise max_adapters"
        )

    def _give_up(self, name: str, seeker: Seeker) -> None:
        if seeker.turn.done():  # granted meanwhile
            self._unpin(seeker.turn.result())
            return
        seeker.requests -= 1
        if not seeker.requests:
            del self._seekers[name]
            self._rebalance()

    def _rebalance(self) -> None:
        """Give free places to the seekers and let as many adapters drain as still wait."""
        self._grant()
        wanted = len(self._seekers)
        going = sum(r.state in (State.DRAINING, State.LEAVING) for r in self._residents.values())
        if wanted > going:
            self._drain(wanted - going)
        elif wanted < going:
            self._undrain(going - wanted)
        for name, resident in list(self._residents.items()):
            if resident.state is State.DRAINING and not resident.in_use:
                self._leave(name, resident)

    def _grant(self) -> None:
        for name, seeker in list(self._seekers.items()):
            if name not in self._residents and len(self._residents) < self._places:
                self._start_load(name, seeker)
            resident = self._residents.get(name)
            if resident is not None and resident.state in (State.LOADING, State.READY):
                del self._seekers[name]
                resident.in_use += seeker.requests
                seeker.turn.set_result(resident)

    def _drain(self, count: int) -> None:
        ready = [r for r in self._residents.values() if r.state is State.READY]
        ready.sort(key=lambda resident: resident.in_use > 0)  # idle ones first, each by last use
        for resident in ready[:count]:
            resident.state = State.DRAINING

    def _undrain(self, count: int) -> None:
        draining = [r for r in reversed(self._residents.values()) if r.state is State.DRAINING]
        for resident in draining[:count]:
            resident.state = State.READY
        if draining:
            self._grant()

    # ---- loading and leaving ------------------------------------------------------------

    def _start_load(self, name: str, seeker: Seeker) -> None:
        resident = Resident(EngineAdapter(name, self._next_id, seeker.directory), seeker.path)
        self._next_id += 1
        self._residents[name] = resident
        self._keep(asyncio.create_task(self._load(name, resident)))

    async def _load(self, name: str, resident: Resident) -> None:
        try:
            with metrics.adapter_load():
                await asyncio.to_thread(self._files.check, resident.adapter.directory)
                await self._engine.add_adapter(resident.adapter)
        except Exception as error:  # noqa: BLE001 - delivered to everyone who waits for this load
            self._forget(name, resident)
            resident.ready.set_exception(error)
            resident.ready.exception()  # seen, also when nobody waits any more
            return
        resident.state = State.READY
        self._count_load(name)
        resident.ready.set_result(None)
        log.info("adapter %s loaded as engine id %d", name, resident.adapter.engine_id)
        self._rebalance()

    def _leave(self, name: str, resident: Resident, *, asked: bool = False) -> None:
        if resident.state is State.LEAVING:
            return
        metrics.evicted(asked=asked)
        resident.state = State.LEAVING
        resident.gone = asyncio.create_task(self._remove(name, resident))
        self._keep(resident.gone)

    async def _remove(self, name: str, resident: Resident) -> None:
        try:
            await self._engine.remove_adapter(resident.adapter)
            log.info("adapter %s unloaded", name)
        except Unavailable as error:
            log.warning("adapter %s could not be unloaded: %s", name, error)
        finally:
            self._forget(name, resident)

    def _forget(self, name: str, resident: Resident) -> None:
        if self._residents.get(name) is resident:
            del self._residents[name]
        self._rebalance()

    def _count_load(self, name: str) -> None:
        self._loads[name] = self._loads.pop(name, 0) + 1
        if len(self._loads) > _MAX_LOAD_COUNTS:
            self._loads.popitem(last=False)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
