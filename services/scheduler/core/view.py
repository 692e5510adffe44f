"""What the core sees of a pool: plain data, read in one call before each unit is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from services.scheduler.core.seats import RecoveryView


class Op(StrEnum):
    CREATE = "create"
    CREATE_FROM_CHECKPOINT = "create_from_checkpoint"
    FORWARD = "forward"
    FORWARD_BACKWARD = "forward_backward"
    OPTIM_STEP = "optim_step"
    SAVE_WEIGHTS = "save_weights"
    LOAD_WEIGHTS = "load_weights"
    SAVE_FOR_SAMPLER = "save_for_sampler"
    SAVE_EXTERNAL = "save_external"
    UNLOAD_MODEL = "unload_model"
    SAMPLE = "sample"

    @property
    def is_batch(self) -> bool:
        return self in (Op.FORWARD, Op.FORWARD_BACKWARD)

    @property
    def is_create(self) -> bool:
        return self in (Op.CREATE, Op.CREATE_FROM_CHECKPOINT)


@dataclass(frozen=True, slots=True)
class QueuedCommand:
    """An unsettled command. `costs` are tokens per datum (input + 1), of batch ops only."""

    key: str
    op: Op
    seq: int
    arrival: int
    pack_key: str = ""
    costs: tuple[int, ...] = ()
    issued: int = 0  # datums (batch ops) or 0/1 (barriers) already given to a unit
    rejected: bool = False
    group: str = ""  # its unit failed as a whole: only equal labels share a unit until it succeeds

    @property
    def waiting(self) -> bool:
        """Something of it is left to issue."""
        return self.issued < (len(self.costs) if self.op.is_batch else 1)


@dataclass(frozen=True, slots=True)
class ModelQueue:
    """Unsettled commands of one model from the queue's head on, without a gap, in seq order.

    `slot` is None for a model that waits for one; then its only command is the create.
    """

    model_id: str
    tenant: str
    slot: int | None
    load_number: int
    commands: tuple[QueuedCommand, ...]
    window_rejected: int = 0  # forward_backward requests of the open window that failed

    def run(self) -> Iterator[QueuedCommand]:
        """The leading batch ops: up to the first barrier or rejected command."""
        for command in self.commands:
            if not command.op.is_batch or command.rejected:
                return
            yield command

    def barrier(self) -> QueuedCommand | None:
        """The barrier that may start now: the head, nothing before it unsettled."""
        head = self.commands[0] if self.commands else None
        if head is None or head.op.is_batch or head.rejected or not head.waiting:
            return None
        return head


@dataclass(frozen=True, slots=True)
class Clock:
    """Fairness clock, in tokens per unit of weight: `finish` of each tenant, `virtual` of the pool."""

    virtual: float = 0.0
    finish: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadyView:
    """`dirty_slots` await their unload; `free_slots` are sorted."""

    models: tuple[ModelQueue, ...]
    free_slots: tuple[int, ...] = ()
    dirty_slots: tuple[int, ...] = ()
    clock: Clock = field(default_factory=Clock)
    recovery: RecoveryView = field(default_factory=RecoveryView)
