"""Units of recovery: a slot is filled with a base, a logged unit is formed again, a durable point is captured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinkermesh.v1 import trainer_pb2 as pb

from services.common.clock import now_ms
from services.common.keyring import ownership_mac
from services.common.store import durable_directory
from services.common.tinker_path import DURABLE
from services.scheduler.core.plans import DurablePlan, RecoveryPlan, ReplayPlan, ReplayStep, SeatPlan
from services.scheduler.core.view import Op
from services.scheduler.dispatch.slot_units import SlotUnits, init_slot
from services.scheduler.dispatch.units import Prepared, pass_item
from services.scheduler.store.commands import CommandCache, StoredCommand
from services.scheduler.store.models import ModelReader, ModelRow
from services.scheduler.store.training import UnitItem


class Unrestorable(Exception):
    """What is stored of `model_id` does not bring it back."""

    def __init__(self, model_id: str, message: str) -> None:
        super().__init__(message)
        self.model_id = model_id
        self.message = message


@dataclass(frozen=True, slots=True)
class RecoveryUnits:
    models: ModelReader
    commands: CommandCache
    slot_units: SlotUnits
    pepper: bytes

    async def build(
        self, pool: str, unit: pb.Unit, plan: RecoveryPlan, stored: Mapping[str, StoredCommand]
    ) -> Prepared:
        """`stored`: the commands of a replay. Raises Unrestorable, Unavailable."""
        if isinstance(plan, DurablePlan):
            return self._durable(pool, unit, plan, await self._row(pool, plan.model_id))
        unit.replay = True
        if isinstance(plan, SeatPlan):
            return await self._seat(pool, unit, plan)
        for step in plan.steps:
            if step.entry.key not in stored:
                raise Unrestorable(step.queue.model_id, f"the command of log position {step.entry.position} is lost")
        return await self._replay(pool, unit, plan, stored)

    async def _row(self, pool: str, model_id: str) -> ModelRow:
        row = await self.models.row(pool, model_id)
        if row is None or not row.base:
            raise Unrestorable(model_id, "nothing is stored that it could start from")
        return row

    # ---- seats -----------------------------------------------------------------------------

    async def _seat(self, pool: str, unit: pb.Unit, plan: SeatPlan) -> Prepared:
        row = await self._row(pool, plan.model_id)
        if row.base["kind"] == "init":
            key = str(row.base["key"])
            create = (await self.commands.get(pool, [key])).get(key)
            if create is None:
                raise Unrestorable(plan.model_id, "the command that made it is lost")
            init_slot(unit, plan.slot, create, row)
        else:
            unit.load.slot, unit.load.model_id = plan.slot, plan.model_id
            unit.load.layout.CopyFrom(row.layout)
            unit.load.directory = str(row.base["directory"])
            unit.load.optimizer = bool(row.base.get("optimizer", True))
        return Prepared(unit, (UnitItem(m=plan.model_id, s=plan.slot, o="seat", x="seat"),))

    # ---- replays ---------------------------------------------------------------------------

    async def _replay(
        self, pool: str, unit: pb.Unit, plan: ReplayPlan, stored: Mapping[str, StoredCommand]
    ) -> Prepared:
        op = Op(plan.steps[0].entry.op)
        if op.is_batch:
            _pass(unit, plan, stored)
        elif op is Op.OPTIM_STEP:
            unit.optim.steps.extend(_slot_step(step, stored[step.entry.key]) for step in plan.steps)
        elif op is Op.LOAD_WEIGHTS:
            await self._load(pool, unit, plan.steps[0])
        else:
            step = plan.steps[0]
            await self.slot_units.save_again(
                pool, unit, step.queue.slot, step.queue.load_number, stored[step.entry.key]
            )
        return Prepared(unit, _items(plan))

    async def _load(self, pool: str, unit: pb.Unit, step: ReplayStep) -> None:
        row = await self._row(pool, step.queue.model_id)
        unit.load.CopyFrom(
            pb.LoadSlotWork(
                slot=step.queue.slot,
                model_id=step.queue.model_id,
                layout=row.layout,
                directory=step.entry.directory,
                optimizer=step.entry.optimizer,
                into_loaded=True,
                load_number=step.queue.load_number,
            )
        )

    # ---- durable points --------------------------------------------------------------------

    def _durable(self, pool: str, unit: pb.Unit, plan: DurablePlan, row: ModelRow) -> Prepared:
        name = unit.unit_id  # never used twice
        meta = pb.ArtifactMeta(
            tenant_id=row.tenant,
            ownership_mac=ownership_mac(self.pepper, row.tenant, row.model_id, DURABLE, name),
            model_id=row.model_id,
            kind=DURABLE,
            name=name,
            base_model=row.base_model,
            layout=row.layout,
            created_unix_ms=now_ms(),
        )
        directory = durable_directory(pool, row.model_id, name)
        unit.save.CopyFrom(
            pb.SaveSlotWork(slot=plan.slot, load_number=plan.load_number, meta=meta, directory=directory)
        )
        return Prepared(unit, (UnitItem(m=row.model_id, s=plan.slot, o="durable", x="durable"),))


def _pass(unit: pb.Unit, plan: ReplayPlan, stored: Mapping[str, StoredCommand]) -> None:
    first = stored[plan.steps[0].entry.key].command.batch
    work = pb.PassWork(backward=True, loss=first.loss, fields=first.table.fields)
    for step in plan.steps:
        queue, entry = step.queue, step.entry
        command = stored[entry.key]
        if entry.first + entry.count > len(command.command.batch.table.lengths):
            raise Unrestorable(queue.model_id, f"the datums of log position {entry.position} are lost")
        work.items.append(pass_item(command, queue.slot, queue.load_number, entry.first, entry.count))
    getattr(unit, "pass").CopyFrom(work)


def _slot_step(step: ReplayStep, stored: StoredCommand) -> pb.SlotStep:
    return pb.SlotStep(
        slot=step.queue.slot,
        load_number=step.queue.load_number,
        adam=stored.command.optim_step.adam,
        request_id=stored.request_id,
        skip=step.entry.skipped,
    )


def _items(plan: ReplayPlan) -> tuple[UnitItem, ...]:
    seen: dict[str, int] = {}
    items = []
    for step in plan.steps:
        queue, entry = step.queue, step.entry
        place = seen[queue.model_id] = seen.get(queue.model_id, -1) + 1
        items.append(
            UnitItem(
                m=queue.model_id,
                s=queue.slot,
                o=entry.op,
                k=entry.key,
                f=entry.first,
                n=entry.count,
                x="replay",
                q=entry.position,
                z=place,
                v=entry.value,
                e=int(entry.skipped),
            )
        )
    return tuple(items)
