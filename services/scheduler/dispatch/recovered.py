"""What the units of recovery come to: seats, replays and durable points. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tinkermesh.v1 import trainer_pb2 as pb

from services.scheduler.core.outcomes import DatumReport, SlotReport, pass_violation, slots_violation
from services.scheduler.core.replay import LOSS_TOLERANCE, NORM_TOLERANCE, divergence
from services.scheduler.core.view import Op
from services.scheduler.dispatch.client import Outcome
from services.scheduler.dispatch.log_entries import NORM_METRIC, SKIPPED_METRIC
from services.scheduler.dispatch.settlement import SERVER, USER, expectations, fault_of, slot_report, split_reports
from services.scheduler.dispatch.units import Prepared
from services.scheduler.store.training import Settlement, UnitItem

_SAVES = (Op.SAVE_WEIGHTS, Op.SAVE_FOR_SAMPLER, Op.SAVE_EXTERNAL)


def recovery_settlements(prepared: Prepared, outcome: Outcome) -> list[Settlement]:
    """One per item, in item order."""
    header = outcome.header
    problem = outcome.problem
    if not problem and header.unit_id not in ("", prepared.unit.unit_id):
        problem = f"outcome of unit {header.unit_id!r}"
    if problem:
        return _failed(prepared, f"trainer broke its contract: {problem}")
    if header.HasField("failure"):
        return _refused(prepared, header)
    if prepared.unit.WhichOneof("work") == "pass":
        return _passes(prepared, outcome)
    return _slots(prepared, header)


def _failed(prepared: Prepared, message: str, cause: str = "") -> list[Settlement]:
    if prepared.items[0].x == "durable":
        return [Settlement("durable_failed", message)]
    shared = "shared" if len({item.m for item in prepared.items}) > 1 else ""
    return [Settlement("seat_failed", message, shared, cause) for _ in prepared.items]


def _refused(prepared: Prepared, header: pb.UnitOutcome) -> list[Settlement]:
    """Nothing took effect. A save that is refused now fails as it would have; the replay goes on."""
    item, failed = prepared.items[0], header.failure
    if item.x == "replay" and item.o in _SAVES:
        return [Settlement("resave_failed", failed.message, str(USER if failed.category == USER else SERVER))]
    return _failed(prepared, failed.message, "user" if failed.category == USER else "")


def _passes(prepared: Prepared, outcome: Outcome) -> list[Settlement]:
    work: pb.PassWork = getattr(prepared.unit, "pass")
    result: pb.PassOutcome = getattr(outcome.header, "pass")
    reports = [DatumReport(d.loss, fault_of(d.failure) if d.HasField("failure") else None) for d in result.datums]
    sizes = [n * k for item in work.items for n, k in zip(item.lengths, item.widths, strict=True)]
    if problem := pass_violation(sizes, reports, len(outcome.payload)):
        return _failed(prepared, f"trainer broke its contract: {problem}")
    split = split_reports(work, sizes, reports, outcome.payload)
    return [_pass_item(item, found) for item, (found, _) in zip(prepared.items, split, strict=True)]


def _pass_item(item: UnitItem, reports: Sequence[DatumReport]) -> Settlement:
    fault = next((report.fault for report in reports if report.fault is not None), None)
    if fault is not None:
        return Settlement("seat_failed", f"a datum that once succeeded failed: {fault.message}")
    return _compared(item, divergence(item.v, sum(report.loss for report in reports), LOSS_TOLERANCE))


def _compared(item: UnitItem, difference: str) -> Settlement:
    if difference:
        return Settlement("diverged", f"{item.o}: {difference}")
    return Settlement("replayed")


def _slots(prepared: Prepared, header: pb.UnitOutcome) -> list[Settlement]:
    reports = [slot_report(slot) for slot in header.slots]
    if problem := slots_violation(expectations(prepared.unit), reports):
        return _failed(prepared, f"trainer broke its contract: {problem}")
    by_slot = {report.slot: report for report in reports}
    return [_slot_item(item, by_slot[item.s]) for item in prepared.items]


def _slot_item(item: UnitItem, report: SlotReport) -> Settlement:
    if item.x == "durable":
        return (
            Settlement("durable_captured")
            if report.fault is None
            else Settlement("durable_failed", report.fault.message)
        )
    if report.fault is not None:
        return Settlement("seat_failed", report.fault.message, "", "user" if report.fault.user else "")
    if item.x == "seat":
        return Settlement("seated", b"", str(report.load_number))
    if item.o in _SAVES:
        return Settlement("recaptured")
    if item.o == Op.OPTIM_STEP:
        return _step_item(item, report)
    return Settlement("replayed")


def _step_item(item: UnitItem, report: SlotReport) -> Settlement:
    skipped = bool(report.metrics.get(SKIPPED_METRIC))
    if skipped != (item.e == 1):
        was, now = ("skipped", "taken") if item.e else ("taken", "skipped")
        return Settlement("diverged", f"{item.o}: a step that was {was} is {now} in the replay")
    return _compared(item, divergence(item.v, report.metrics.get(NORM_METRIC), NORM_TOLERANCE))
