"""From a plan of the core to the unit the trainer runs, and the items it will settle."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from tinkermesh.v1 import trainer_pb2 as pb

from services.scheduler.core.plans import BarrierStep, OptimPlan, PackedItem, PassPlan
from services.scheduler.core.view import Op
from services.scheduler.store.commands import StoredCommand
from services.scheduler.store.training import UnitItem


@dataclass(frozen=True, slots=True)
class Prepared:
    """A unit ready to be issued; `keys` are its requests in item order, the seed first in `seed`."""

    unit: pb.Unit
    items: tuple[UnitItem, ...]
    seed: str = ""

    @property
    def keys(self) -> list[str]:
        return [item.k for item in self.items if item.k]


def new_unit(term: int, incarnation: str) -> pb.Unit:
    return pb.Unit(term=term, incarnation=incarnation, unit_id=secrets.token_hex(12))


def pass_unit(unit: pb.Unit, plan: PassPlan, stored: Mapping[str, StoredCommand]) -> Prepared:
    """A packed pass; its payload is gathered item by item."""
    first = stored[plan.items[0].command.key].command.batch
    work = pb.PassWork(backward=first.backward, loss=first.loss, fields=first.table.fields)
    for item in plan.items:
        queue, command = item.queue, stored[item.command.key]
        work.items.append(pass_item(command, queue.slot or 0, queue.load_number, item.first, item.count))
    getattr(unit, "pass").CopyFrom(work)  # a keyword in Python
    oldest = min(plan.items, key=lambda item: item.command.arrival)
    return Prepared(unit, tuple(_batch_item(item) for item in plan.items), oldest.command.key)


def pass_item(stored: StoredCommand, slot: int, load_number: int, first: int, count: int) -> pb.PassItem:
    table, end = stored.command.batch.table, first + count
    return pb.PassItem(
        request_id=stored.request_id,
        slot=slot,
        load_number=load_number,
        first_datum=first,
        lengths=table.lengths[first:end],
        widths=table.widths[first:end],
        columns=[index - first for index in table.columns if first <= index < end],
    )


def _batch_item(item: PackedItem) -> UnitItem:
    return UnitItem(
        m=item.queue.model_id,
        s=item.queue.slot or 0,
        o=item.command.op.value,
        k=item.command.key,
        f=item.first,
        n=item.count,
        t=item.cost,
        g=item.command.group,
    )


def optim_unit(unit: pb.Unit, plan: OptimPlan, stored: Mapping[str, StoredCommand]) -> Prepared:
    for step in plan.steps:
        command = stored[step.command.key]
        unit.optim.steps.append(
            pb.SlotStep(
                slot=step.queue.slot or 0,
                load_number=step.queue.load_number,
                adam=command.command.optim_step.adam,
                request_id=command.request_id,
            )
        )
    oldest = min(plan.steps, key=lambda step: step.command.arrival)
    items = tuple(barrier_item(step, step.queue.slot or 0) for step in plan.steps)
    return Prepared(unit, items, oldest.command.key)


def barrier_item(step: BarrierStep, slot: int, path: str = "") -> UnitItem:
    return UnitItem(
        m=step.queue.model_id,
        s=slot,
        o=step.command.op.value,
        k=step.command.key,
        c=int(step.command.op.is_create),
        w=step.queue.window_rejected if step.command.op is Op.OPTIM_STEP else 0,
        p=path,
        g=step.command.group,
    )


def unload_unit(unit: pb.Unit, slot: int, model_id: str) -> Prepared:
    unit.unload.slot = slot
    return Prepared(unit, (UnitItem(m=model_id, s=slot),))
