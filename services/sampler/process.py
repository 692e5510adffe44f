"""The sampler's process: engine, service, registration, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tinkermesh.v1 import sampler_pb2_grpc as pb_grpc
from tinkermesh.v1.types_pb2 import PoolFacts

from services.common.grpc_server import GrpcServer
from services.common.model_facts import model_facts
from services.common.process import write_port
from services.sampler import metrics
from services.sampler.adapter_files import AdapterFiles
from services.sampler.adapter_table import AdapterTable
from services.sampler.kv_facts import kv_facts
from services.sampler.ports import Engine
from services.sampler.registration import register_for_ever, registration
from services.sampler.runs import SampleRuns
from services.sampler.sampling import Sampling
from services.sampler.sampling_plan import Limits
from services.sampler.server import SERVICE, SamplerServicer, describe
from services.sampler.settings import Settings
from services.sampler.tensor_shapes import base_linear_shapes
from services.sampler.tier_desk import TierDesk
from services.sampler.tokenizing import Tokenizing

log = logging.getLogger(__name__)

ENGINE_STOP_SECONDS = 10.0
CLOSE_SECONDS = 1.0


class StartableEngine(Engine, Protocol):
    async def start(self) -> None:
        """Raises what keeps the engine from starting."""
        ...

    async def stop(self, timeout_seconds: float) -> bool:
        """False when it did not end in time."""
        ...


EngineFactory = Callable[[Settings, PoolFacts], StartableEngine]


async def serve(settings: Settings, make_engine: EngineFactory) -> None:
    """Until SIGTERM or SIGINT. Raises the cause of any other end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    facts = await asyncio.to_thread(model_facts, settings, settings.dtype)
    engine = make_engine(settings, facts)
    patience = 0.0  # what has not come up cannot end in order: it only cleans up
    try:
        if await _started(engine, stop):
            patience = ENGINE_STOP_SECONDS
            await SamplerProcess(settings, engine, facts).serve(stop)
    finally:
        if not await engine.stop(patience) and patience:
            log.error("the engine did not stop within %g s", patience)


async def _started(engine: StartableEngine, stop: asyncio.Event) -> bool:
    """False when the stop signal came first: a start cannot be cancelled, but left alone."""
    starting = asyncio.create_task(engine.start())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not starting.done():
        starting.cancel()
        return False
    starting.result()
    return True


class SamplerProcess:
    """The service around a started engine."""

    def __init__(self, settings: Settings, engine: Engine, facts: PoolFacts) -> None:
        self._settings = settings
        self._engine = engine
        self._facts = facts
        self._adapters = _adapter_table(engine, settings)
        adapters = self._adapters
        metrics.watching(
            adapters.states, lambda: adapters.seekers, settings.max_adapters, engine.counts, settings.max_running
        )
        sampling = Sampling(
            engine,
            self._adapters,
            Limits.of(facts, settings.max_topk),
            max_waiting=settings.max_waiting,
            timeout_seconds=settings.sample_timeout_seconds,
            role=settings.role,
        )
        self._runs = SampleRuns(sampling, settings.orphan_seconds)
        self._tokenizing = Tokenizing(engine.tokenizer, facts.max_context)
        self._server = GrpcServer([SERVICE])

    async def serve(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises EngineDead, or InvalidInput when the pool refuses this sampler."""
        address = await self._start()
        watched: list[asyncio.Task[Any]] = [asyncio.create_task(self._raise_when_dead())]
        for target in self._settings.scheduler_targets:
            request = registration(self._description, address)
            watched.append(asyncio.create_task(register_for_ever(target, request)))
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([stopped, *watched], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (stopped, *watched):
                task.cancel()
            await self._end()

    async def _start(self) -> str:
        """The advertised address; serving when it returns."""
        settings = self._settings
        incarnation = uuid.uuid4().hex
        engine = self._engine.description
        kv = await asyncio.to_thread(kv_facts, settings, self._facts, engine)
        self._description = describe(incarnation, self._facts, settings, engine, kv)
        tier = TierDesk(self._engine.tier, kv, settings.role)
        self._servicer = SamplerServicer(
            self._description, self._engine, self._adapters, self._runs, self._tokenizing, tier
        )
        pb_grpc.add_SamplerServicer_to_server(self._servicer, self._server.server)
        port = await self._server.start(settings.listen)
        address = settings.advertised(port)
        if not self._description.sampler_id:
            self._description.sampler_id = f"sampler-{self._facts.pool}-{address}"
        write_port(settings.port_file, port)
        log.info("serving pool %s at %s", self._facts.pool, address)
        return address

    async def _raise_when_dead(self) -> None:
        raise await self._engine.wait_dead()

    async def _end(self) -> None:
        """No new samples, running ones finish or are aborted, then the port closes."""
        self._servicer.stopping = True
        await self._server.set_serving(False)
        await self._runs.drain(self._settings.drain_seconds)
        await self._server.stop(CLOSE_SECONDS)
        self._tokenizing.close()


def _adapter_table(engine: Engine, settings: Settings) -> AdapterTable:
    return AdapterTable(
        engine,
        AdapterFiles(base_linear_shapes(Path(settings.model_path)), settings.max_rank),
        Path(settings.store_root),
        settings.max_adapters,
        role=settings.role,
        load_timeout_seconds=settings.load_timeout_seconds,
        place_timeout_seconds=settings.place_timeout_seconds,
    )
