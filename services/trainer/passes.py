"""From a packed pass as it travels to what the engine runs, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1.types_pb2 import Failure

from services.common.datum_blocks import Datum, block_bytes, decode
from services.common.errors import ContractViolation
from services.trainer.engine import DatumResult, Loss, SlotDatum
from services.trainer.failures import RanksDiverged, user_failure
from services.trainer.memory_limit import MemoryEstimate
from services.trainer.slot_table import SlotTable


@dataclass(frozen=True, slots=True)
class PassLimits:
    vocab_size: int
    max_context: int
    memory: MemoryEstimate | None = None


@dataclass(slots=True)
class PreparedPass:
    """`datums` are the runnable ones in unit order; `refused` maps a datum's unit index to why."""

    count: int
    loss: Loss
    backward: bool
    datums: list[SlotDatum] = field(default_factory=list)
    refused: dict[int, Failure] = field(default_factory=dict)

    @property
    def slots(self) -> list[int]:
        return sorted({datum.slot for datum in self.datums})


def prepare(work: pb.PassWork, payload: bytes, table: SlotTable, limits: PassLimits) -> PreparedPass:
    """Checks the composition and each datum; a bad datum is refused alone.

    Raises ContractViolation when the unit itself is wrong, InvalidInput when its payload is.
    """
    _check_items(work.items, table)
    if work.loss.texts:
        raise ContractViolation(f"loss config {sorted(work.loss.texts)} holds texts; no loss of this trainer reads one")
    datums = list(_datums(work, payload))
    prepared = PreparedPass(len(datums), Loss(work.loss.loss_fn, dict(work.loss.numbers)), work.backward)
    for index, (slot, datum) in enumerate(datums):
        if problem := _problem(datum, limits):
            prepared.refused[index] = user_failure(problem)
        else:
            prepared.datums.append(SlotDatum(slot, datum))
    return prepared


def _check_items(items: Sequence[pb.PassItem], table: SlotTable) -> None:
    slots = [item.slot for item in items]
    if slots != sorted(slots):
        raise ContractViolation("items of a pass are not sorted by slot")
    for item in items:
        table.held(item.slot, item.load_number)
        if len(item.lengths) != len(item.widths) or not all(item.lengths) or not all(item.widths):
            raise ContractViolation(
                f"item of request {item.request_id}: every datum needs a length and a width above 0"
            )


def _datums(work: pb.PassWork, payload: bytes) -> Iterator[tuple[int, Datum]]:
    start, view, fields = 0, memoryview(payload), list(work.fields)
    for item in work.items:
        size = sum(block_bytes(n, k, len(fields)) for n, k in zip(item.lengths, item.widths, strict=True))
        for datum in decode(view[start : start + size], item.lengths, item.widths, fields):
            yield item.slot, datum
        start += size
    if start != len(payload):
        raise ContractViolation(f"payload has {len(payload)} bytes, the items of the pass say {start}")


def _problem(datum: Datum, limits: PassLimits) -> str:
    if datum.length > limits.max_context:
        return f"datum has {datum.length} tokens; this pool takes up to {limits.max_context}"
    if limits.memory is not None and (problem := limits.memory.problem(datum.length)):
        return problem
    for name, ids in (("model_input", datum.tokens), ("target_tokens", datum.targets)):
        if int(ids.min()) < 0 or int(ids.max()) >= limits.vocab_size:
            return f"{name}: a token id is outside 0..{limits.vocab_size - 1}"
    return ""


def assemble(prepared: PreparedPass, results: Sequence[DatumResult]) -> tuple[pb.PassOutcome, bytes]:
    """Outcomes in unit order and their logprobs, float32, one after the other.

    Raises RanksDiverged when the engine's answer does not fit the pass it has already applied.
    """
    if len(results) != len(prepared.datums):
        raise RanksDiverged(f"the engine answered {len(results)} of {len(prepared.datums)} datums")
    outcome, parts = pb.PassOutcome(), []
    answered = zip(prepared.datums, results, strict=True)
    for index in range(prepared.count):
        if index in prepared.refused:
            outcome.datums.add(failure=prepared.refused[index])
            continue
        slot_datum, result = next(answered)
        if result.failure:
            outcome.datums.add(failure=user_failure(result.failure))
            continue
        if result.logprobs.shape != slot_datum.datum.targets.shape:
            raise RanksDiverged(f"the engine's logprobs have shape {result.logprobs.shape} for datum {index}")
        outcome.datums.add(loss=result.loss)
        parts.append(np.ascontiguousarray(result.logprobs, dtype="<f4").tobytes())
    return outcome, b"".join(parts)
