"""What the front asks of models: ports.ModelBook."""

from __future__ import annotations

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.cells import FIRST_CELL
from services.common.errors import Forbidden, UnknownId
from services.common.ids import parse_model_id
from services.scheduler.dispatch.placement import serving
from services.scheduler.ports import CellTrainer, ModelDirectory, TrainerDirectory
from services.scheduler.store.models import ModelReader, ModelRow
from services.scheduler.store.training import TrainingStore

USER = 1
ACTIVE, PAUSED_CAPACITY = "active", "paused_capacity"
_UNSEATED = ("unseated", "seating", "replaying")


class Models:
    def __init__(
        self,
        store: TrainingStore,
        reader: ModelReader,
        models: ModelDirectory,
        trainers: TrainerDirectory,
        *,
        log_limit_bytes: int,
    ) -> None:
        self._store = store
        self._reader = reader
        self._models = models
        self._trainers = trainers
        self._log_limit = log_limit_bytes

    async def describe(self, model_id: str, tenant_id: str) -> pb.ModelInfo:
        row, pool = await self._row(model_id)
        if row.tenant != tenant_id:
            raise Forbidden(f"model_id {model_id} belongs to another tenant")
        return pb.ModelInfo(
            model_id=model_id,
            state=row.state,
            close_reason=row.reason if row.ending else "",
            layout=row.layout,
            facts=await self._trainers.facts(pool),
            user_metadata_json=row.user_metadata,
            last_request_unix_ms=row.last_request_ms,
        )

    async def _row(self, model_id: str) -> tuple[ModelRow, str]:
        parsed = parse_model_id(model_id)
        pool = await self._models.pool_of_model(parsed.session_id, parsed.model_seq_id)
        row = None if pool is None else await self._reader.row(pool, model_id)
        if row is None or pool is None:
            raise UnknownId(f"model_id {model_id} is not known")
        return row, pool

    async def close_session(self, pool: str, session_id: str, reason: str, *, settle_accepted: bool) -> None:
        await self._store.close_session(pool, session_id, USER, reason, settle=settle_accepted)

    async def queue_state(self, pool: str, model_id: str, seq: int) -> tuple[str, str]:
        row = await self._reader.row(pool, model_id)
        if why := await self._no_trainer(pool, FIRST_CELL if row is None else row.cell):
            return PAUSED_CAPACITY, why
        if row is None:
            return ACTIVE, ""
        if row.state == "creating" and row.slot is None:
            return PAUSED_CAPACITY, "every adapter slot is taken: the model waits for a free one"
        if row.state == "creating":
            return ACTIVE, "the model's slot is being initialised"
        if row.phase in _UNSEATED:
            return PAUSED_CAPACITY, _recovery_reason(row)
        if 0 < self._log_limit <= row.log_bytes and row.barrier_pos > row.base_pos:
            return PAUSED_CAPACITY, f"the model's log is full ({row.log_bytes} bytes): it waits for a durable point"
        if await self._reader.missing(pool, model_id, row.next_seq) and seq > row.next_seq:
            return ACTIVE, f"waiting for seq_id {row.next_seq}, which has not arrived"
        return ACTIVE, f"seq_id {row.next_seq} of this model is next" if seq > row.next_seq else "waiting for its turn"

    async def _no_trainer(self, pool: str, cell: str) -> str:
        """Why all models of the cell wait; "" = they do not."""
        cells = await self._trainers.cells(pool)
        here = cells.get(cell, CellTrainer())
        if here.serving is None and here.drained is not None:
            if serving(cells):
                return "its trainer is being drained: the model moves to another one"
            return "the trainer is being drained; work goes on when it resumes"
        _, broken = await self._store.broken(pool, cell)
        if broken:  # also why there may be no trainer just now
            return f"circuit breaker: {broken}; the trainer restarts"
        return "" if here.serving is not None else "no live trainer: the mesh waits for it to recover"


def _recovery_reason(row: ModelRow) -> str:
    if row.phase == "unseated":
        return "waiting for an adapter slot: the model goes on where it was"
    done, all_of_it = row.applied - row.base_pos, row.log_end - row.base_pos
    return f"recovering: {max(0, done)} of {all_of_it} logged commands replayed"
