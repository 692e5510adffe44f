"""From a unit's outcome to what each of its items settles as. Pure: the whole outcome is checked first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common import stable_reinforce
from services.scheduler.core import failure
from services.scheduler.core.failure import Reach
from services.scheduler.core.isolation import next_groups
from services.scheduler.core.outcomes import (
    LOGPROB_BYTES,
    DatumReport,
    Fault,
    SlotExpectation,
    SlotReport,
    pass_violation,
    slots_violation,
)
from services.scheduler.core.view import Op
from services.scheduler.dispatch.client import Outcome
from services.scheduler.dispatch.log_entries import (
    NORM_METRIC,
    base_entry,
    load_entry,
    pass_entries,
    save_entry,
    step_entry,
)
from services.scheduler.dispatch.units import Prepared
from services.scheduler.store.training import Settlement, UnitItem

USER, SERVER = types.FAILURE_CATEGORY_USER, types.FAILURE_CATEGORY_SERVER
_NEW_LOADS = ("init", "load", "unload")


def settlements(prepared: Prepared, outcome: Outcome) -> list[Settlement]:
    """One per item, in item order."""
    unit, header = prepared.unit, outcome.header
    if outcome.problem:
        return _violated(prepared, outcome.problem)
    if header.unit_id not in ("", unit.unit_id):
        return _violated(prepared, f"outcome of unit {header.unit_id!r}")
    if header.HasField("failure"):
        return _unit_failed(prepared, header.failure)
    if unit.WhichOneof("work") == "pass":
        return _pass_settlements(prepared, outcome)
    return _slot_settlements(prepared, header)


def fault_of(message: types.Failure) -> Fault:
    return Fault(message.message, user=message.category == USER)


def _category(fault: Fault) -> str:
    return str(USER if fault.user else SERVER)


def _failed(fault: Fault, reach: Reach, log: bytes = b"") -> Settlement:
    return Settlement("fail", fault.message, _category(fault), reach.value, log)


def _unit_failed(prepared: Prepared, message: types.Failure) -> list[Settlement]:
    """Nothing of the unit took effect: its items try again in other company, a lone one has failed."""
    items, fault = prepared.items, fault_of(message)
    if not prepared.keys:
        return [Settlement("quarantine", fault.message) for _ in items]
    transient = message.transient and not items[0].c  # a create's slot is taken with its unit
    if groups := next_groups(prepared.unit.unit_id, [item.g for item in items], transient=transient):
        return [Settlement("again", group) for group in groups]
    return [_failed(fault, failure.of_unit(Op(item.o), violation=False)) for item in items]


def _violated(prepared: Prepared, problem: str) -> list[Settlement]:
    fault = Fault(f"trainer broke its contract: {problem}")
    return [
        _failed(fault, failure.of_unit(Op(item.o), violation=True))
        if item.k
        else Settlement("quarantine", fault.message)
        for item in prepared.items
    ]


# ---- passes -------------------------------------------------------------------------------


def _pass_settlements(prepared: Prepared, outcome: Outcome) -> list[Settlement]:
    work: pb.PassWork = getattr(prepared.unit, "pass")
    result: pb.PassOutcome = getattr(outcome.header, "pass")
    reports = [DatumReport(d.loss, fault_of(d.failure) if d.HasField("failure") else None) for d in result.datums]
    sizes = [n * k for item in work.items for n, k in zip(item.lengths, item.widths, strict=True)]
    if problem := pass_violation(sizes, reports, len(outcome.payload)):
        return _violated(prepared, problem)
    split = list(split_reports(work, sizes, reports, outcome.payload))
    return [
        _item_settlement(item, packed, reports, logprobs, work)
        for item, packed, (reports, logprobs) in zip(prepared.items, work.items, split, strict=True)
    ]


def split_reports(
    work: pb.PassWork, sizes: Sequence[int], reports: Sequence[DatumReport], payload: bytes
) -> Iterator[tuple[Sequence[DatumReport], bytes]]:
    """Each item's reports and its bytes of logprobs; failed datums have none."""
    datum = start = 0
    for item in work.items:
        stop = datum + len(item.lengths)
        alive = (s for s, r in zip(sizes[datum:stop], reports[datum:stop], strict=True) if r.fault is None)
        end = start + LOGPROB_BYTES * sum(alive)
        yield reports[datum:stop], payload[start:end]
        datum, start = stop, end


def _item_settlement(
    item: UnitItem, packed: pb.PassItem, reports: Sequence[DatumReport], logprobs: bytes, work: pb.PassWork
) -> Settlement:
    log = pass_entries(packed, reports, len(work.fields)) if work.backward else b""
    for index, report in enumerate(reports):
        if report.fault is not None:
            fault = Fault(f"datum {packed.first_datum + index}: {report.fault.message}", report.fault.user)
            return _failed(fault, failure.of_datum(Op(item.o), user=fault.user), log)
    losses = [report.loss for report in reports]
    total = sum(losses)
    part = types.BatchResult(
        loss_sum=total,
        datum_losses=losses,
        lengths=packed.lengths,
        widths=packed.widths,
        columns=packed.columns,
    )
    part.logprobs = logprobs
    part.metrics["loss:sum"] = total
    if work.loss.loss_fn == stable_reinforce.NAME:  # the vendor's objective is not published: say which one this is
        part.metrics[stable_reinforce.OBJECTIVE_METRIC] = total
    return Settlement("part", part.SerializeToString(), repr(total), str(sum(packed.lengths)), log)


# ---- slots --------------------------------------------------------------------------------


def _slot_settlements(prepared: Prepared, header: pb.UnitOutcome) -> list[Settlement]:
    reports = [slot_report(slot) for slot in header.slots]
    if problem := slots_violation(expectations(prepared.unit), reports):
        return _violated(prepared, problem)
    by_slot = {slot.slot: (slot, report) for slot, report in zip(header.slots, reports, strict=True)}
    return [_slot_settlement(prepared.unit, item, *by_slot[item.s]) for item in prepared.items]


def slot_report(slot: pb.SlotOutcome) -> SlotReport:
    fault = fault_of(slot.failure) if slot.HasField("failure") else None
    return SlotReport(slot.slot, slot.load_number, dict(slot.metrics), fault, slot.request_id)


def expectations(unit: pb.Unit) -> list[SlotExpectation]:
    kind = str(unit.WhichOneof("work"))
    if kind == "optim":
        return [SlotExpectation(step.slot, step.load_number, step.request_id) for step in unit.optim.steps]
    work = getattr(unit, kind)
    return [SlotExpectation(work.slot, None if kind in _NEW_LOADS else work.load_number)]


def _slot_settlement(unit: pb.Unit, item: UnitItem, slot: pb.SlotOutcome, report: SlotReport) -> Settlement:
    if not item.k:
        return Settlement("unloaded") if report.fault is None else Settlement("quarantine", report.fault.message)
    op = Op(item.o)
    if report.fault is not None:
        return _failed(report.fault, failure.of_slot(op, assignment_began=slot.assignment_began))
    if op is Op.OPTIM_STEP:
        return _stepped(unit, item, report)
    if op in (Op.SAVE_WEIGHTS, Op.SAVE_FOR_SAMPLER, Op.SAVE_EXTERNAL):
        return Settlement("captured", artifact_name(unit), log=save_entry())
    return _loaded(unit, item, slot.load_number)


def _stepped(unit: pb.Unit, item: UnitItem, report: SlotReport) -> Settlement:
    rate = next(step.adam.learning_rate for step in unit.optim.steps if step.slot == report.slot)
    norm = repr(report.metrics[NORM_METRIC]) if NORM_METRIC in report.metrics else ""
    return Settlement("done", _optim_result(report, item.w), repr(rate), norm, step_entry(report.metrics))


def _optim_result(report: SlotReport, window_rejected: int) -> bytes:
    result = types.Result()
    result.optim_step.metrics.update(report.metrics)
    if window_rejected:
        result.optim_step.metrics["window_rejected_requests"] = float(window_rejected)
    result.optim_step.SetInParent()
    return result.SerializeToString()


def _loaded(unit: pb.Unit, item: UnitItem, load_number: int) -> Settlement:
    layout = unit.init.layout if unit.HasField("init") else unit.load.layout
    result = types.Result(model=types.ModelResult(model_id=item.m, path=item.p))
    log = base_entry(unit, item.k) if item.c else load_entry(unit.load)
    return Settlement("loaded", result.SerializeToString(), str(load_number), layout.SerializeToString(), log)


def artifact_name(unit: pb.Unit) -> str:
    """Name of what a save or snapshot unit writes."""
    return unit.save.meta.name if unit.HasField("save") else unit.snapshot.meta.name
