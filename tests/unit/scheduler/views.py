"""Short ways to build what the core chooses from."""

from __future__ import annotations

from services.scheduler.core.view import Clock, ModelQueue, Op, QueuedCommand, ReadyView


def batch(
    arrival: int,
    costs: tuple[int, ...] = (4,),
    *,
    seq: int = 1,
    pack: str = "ce",
    issued: int = 0,
    rejected: bool = False,
    group: str = "",
    op: Op = Op.FORWARD_BACKWARD,
) -> QueuedCommand:
    return QueuedCommand(f"k{arrival}", op, seq, arrival, pack, costs, issued, rejected, group)


def barrier(arrival: int, op: Op = Op.OPTIM_STEP, *, seq: int = 1, issued: int = 0, group: str = "") -> QueuedCommand:
    return QueuedCommand(f"k{arrival}", op, seq, arrival, issued=issued, group=group)


def queue(slot: int | None, *commands: QueuedCommand, tenant: str = "") -> ModelQueue:
    """One model per slot; each its own tenant unless named."""
    name = f"model{commands[0].arrival if slot is None else slot}"
    return ModelQueue(name, tenant or f"tenant-{name}", slot, 1, commands)


def view(
    *queues: ModelQueue, free: tuple[int, ...] = (), dirty: tuple[int, ...] = (), clock: Clock | None = None
) -> ReadyView:
    return ReadyView(queues, free, dirty, clock or Clock())
