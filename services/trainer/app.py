"""Wires one trainer process: ranks, engine, executor, and on rank 0 the service around them."""

from __future__ import annotations

import importlib
import logging
import os
import queue
import signal
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
from tinkermesh.v1.types_pb2 import PoolFacts

from services.common.cells import cell_suffix
from services.common.errors import InvalidInput, StaleFence, Unavailable
from services.common.metrics_server import serving
from services.common.publication_fence import PublicationFence
from services.trainer import facts as pool
from services.trainer import metrics
from services.trainer.artifacts import ArtifactWriter
from services.trainer.checkpoint import Origin
from services.trainer.engine import Engine, EngineSpec
from services.trainer.executor import Executed, Executor
from services.trainer.failures import RanksDiverged
from services.trainer.fence import Fence, refused
from services.trainer.memory_limit import MemoryEstimate, measure
from services.trainer.passes import PassLimits
from services.trainer.rank_loop import Commands, Stop, follow, lead, left_behind
from services.trainer.ranks import Ranks, join
from services.trainer.records import UnitRecords
from services.trainer.server import Identity, TrainerService
from services.trainer.service_thread import ServiceThread
from services.trainer.settings import MEBIBYTE, Settings
from services.trainer.slot_commands import SlotCommands
from services.trainer.slot_table import SlotTable

log = logging.getLogger(__name__)

DEATH_SECONDS = 10.0


def run(settings: Settings) -> None:
    """Serves until SIGTERM. Raises what ended it otherwise."""
    settings.check()
    facts = pool.pool_facts(settings)
    Path(settings.store_root).mkdir(parents=True, exist_ok=True)
    _limit_threads(settings)
    commands: Commands = queue.SimpleQueue()
    ranks = join(settings)
    if ranks.control.rank == 0:
        _stop_on_signals(commands)
    else:
        _ignore_signals()
    try:
        engine = build_engine(settings, facts)
        memory = measure(
            engine,
            ranks.control,
            facts.max_context,
            settings.memory_limit_mib,
            slots=settings.slots,
            pending=settings.max_pending_artifacts,
        )
        _state_memory(facts, memory, settings)
        if ranks.control.rank == 0:
            with serving("trainer", settings, metrics.TRAINER):
                Leader(settings, facts, engine, ranks, commands, memory).run()
        else:
            follow(_executor(settings, facts, engine, ranks, None, memory), ranks.control)
    except BaseException:
        ranks.kill()
        raise
    ranks.leave()


def _limit_threads(settings: Settings) -> None:
    """Ranks on one machine share its cores unless told otherwise."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    elif settings.world > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // settings.world))


def build_engine(settings: Settings, facts: PoolFacts) -> Engine:
    """Raises InvalidInput when `engine` names no factory."""
    module_name, _, function_name = settings.engine.partition(":")
    try:
        factory: Callable[[EngineSpec], Engine] = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"engine {settings.engine!r} is not module:function: {error}") from error
    spec = EngineSpec(
        model_path=Path(settings.model_path),
        slots=settings.slots,
        max_rank=settings.max_rank,
        alpha=settings.alpha,
        micro_batch_tokens=settings.micro_batch_tokens,
        max_context=facts.max_context,
        tensor_parallel=settings.tp,
        data_parallel=settings.dp,
        train_mlp=facts.train_mlp,
    )
    return factory(spec)


def _state_memory(facts: PoolFacts, memory: MemoryEstimate | None, settings: Settings) -> None:
    """A limit that the context already keeps is none."""
    if memory is None:
        return
    if memory.max_tokens < facts.max_context:
        facts.max_datum_tokens = memory.max_tokens
        facts.pass_memory_bytes = memory.limit
        facts.pass_bytes_per_token = memory.bytes_per_token
    if memory.max_tokens < settings.micro_batch_tokens:
        log.warning(
            "micro_batch_tokens is %d, and memory is enough for about %d tokens at once: lower it",
            settings.micro_batch_tokens,
            memory.max_tokens,
        )


def _executor(
    settings: Settings,
    facts: PoolFacts,
    engine: Engine,
    ranks: Ranks,
    writer: ArtifactWriter | None,
    memory: MemoryEstimate | None,
) -> Executor:
    commands = SlotCommands(
        engine=engine,
        table=SlotTable(settings.slots),
        control=ranks.control,
        store_root=Path(settings.store_root),
        base_model=facts.base_model,
        max_rank=settings.max_rank,
    )
    return Executor(commands, PassLimits(facts.vocab_size, facts.max_context, memory), writer)


class Leader:
    """Rank 0: the service in its thread, the writer in its thread, the units in this one."""

    def __init__(
        self,
        settings: Settings,
        facts: PoolFacts,
        engine: Engine,
        ranks: Ranks,
        commands: Commands,
        memory: MemoryEstimate | None = None,
    ) -> None:
        self._settings = settings
        self._ranks = ranks
        self._commands = commands
        self._fence = Fence(uuid.uuid4().hex)
        self._publications = PublicationFence(
            Path(settings.store_root), facts.pool, self._fence.incarnation, settings.cell
        )
        self._records = UnitRecords()
        self._thread = ServiceThread(self._failed)
        self._writer = ArtifactWriter(
            Path(settings.store_root),
            Origin(settings.tp, settings.dp),
            lambda unit_id, artifact: self._thread.post(self._records.publish, unit_id, artifact),
            self._failed,
            pending=settings.max_pending_artifacts,
            grace_seconds=settings.version_grace_seconds,
            fence=self._publications,
        )
        self._executor = _executor(settings, facts, engine, ranks, self._writer, memory)
        table, writer = self._executor.commands.table, self._writer
        metrics.watching(table.states, table.unclean, lambda: writer.waiting, settings.max_pending_artifacts)
        if torch.cuda.is_available():
            metrics.watching_device(torch.cuda.memory_allocated, torch.cuda.memory_reserved)
        name = settings.trainer_id or f"trainer-{facts.pool}{cell_suffix(settings.cell, '-')}"
        self._identity = Identity(name, facts, ranks.control.world)
        self._service = TrainerService(
            self._identity,
            self._fence,
            self._records,
            self._executor.commands.table,
            commands.put,
            self._raise_publication_fence,
            lambda reason: self._failed(Unavailable(reason)),
            max_unit_bytes=settings.max_unit_mib * MEBIBYTE,
        )

    def run(self) -> None:
        self._writer.start()
        address = self._thread.start(self._settings, self._service, self._identity, self._fence.incarnation)
        self._ranks.watch(self._rank_died)
        log.info(
            "trainer %s (incarnation %s) serves at %s", self._identity.trainer_id, self._fence.incarnation, address
        )
        try:
            lead(self._commands, self._executor, self._ranks.control, self._finished)
        except BaseException:
            self._shut_down_after_failure()
            raise
        self._shut_down()

    def _raise_publication_fence(self, token: int) -> None:
        try:
            self._publications.raise_to(token)
        except StaleFence as error:
            fence = self._fence
            refused("Takeover", error.message, term=fence.term, incarnation=fence.incarnation)
            if superseded := self._publications.superseded:
                self._failed(StaleFence(superseded))
            raise

    def _finished(self, unit_id: str, executed: Executed) -> None:
        self._thread.post(self._records.finish, unit_id, executed.outcome, executed.payload)

    def _failed(self, error: BaseException) -> None:
        """A thread of this process ended by an error: so does the process."""
        self._commands.put(Stop(error))

    def _rank_died(self, reason: str) -> None:
        self._commands.put(Stop(RanksDiverged(reason)))
        # The main thread may be inside a collective that never returns.
        last = threading.Timer(DEATH_SECONDS, _end_process, [reason])
        last.daemon = True
        last.start()

    def _shut_down_after_failure(self) -> None:
        try:
            self._shut_down()
        except Exception:  # noqa: BLE001 - the failure that ends the process must not be hidden
            log.exception("the stop after a failure was not clean")

    def _shut_down(self) -> None:
        """Captured saves are published while their waiters can still hear of it."""
        self._thread.post(self._service.stop_admission)
        self._thread.leave()
        self._thread.post(self._records.leave, left_behind(self._commands))  # nothing is admitted any more
        flushed = self._writer.stop(self._settings.drain_seconds)
        self._thread.stop()
        if not flushed:
            raise Unavailable(f"saves were not written within {self._settings.drain_seconds} s")


def _end_process(reason: str) -> None:
    log.critical("%s and the main thread does not return; this incarnation ends", reason)
    os._exit(1)


def _stop_on_signals(commands: Commands) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        commands.put(Stop())

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _ignore_signals() -> None:
    """Rank 0 decides when the others stop."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
