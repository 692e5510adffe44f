"""What the core sees of models without a live slot: the log to replay, who seeks a seat, who holds one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One effect on a model's slot, as its log holds it.

    `op` as core.view.Op. `unit` had the pool's `number` and carried `models` models. `value`: the loss
    sum of a pass or the gradient norm of a step, as text, "" = not recorded.
    """

    position: int
    op: str
    key: str
    unit: str
    number: int
    models: int = 1
    first: int = 0
    count: int = 1
    value: str = ""
    skipped: bool = False
    directory: str = ""
    optimizer: bool = False


@dataclass(frozen=True, slots=True)
class ReplayQueue:
    """A model whose slot holds its base; `entries` are those of the unit that comes next in its log.

    `waits`: something accepted waits for it. `alone`: a replay of it failed among others.
    """

    model_id: str
    tenant: str
    slot: int
    load_number: int
    entries: tuple[LogEntry, ...]
    waits: bool = False
    alone: bool = False

    @property
    def number(self) -> int:
        return self.entries[0].number


@dataclass(frozen=True, slots=True)
class Seeker:
    """An unseated model; `home` is the slot it held last."""

    model_id: str
    since_ms: int
    home: int | None = None


@dataclass(frozen=True, slots=True)
class Seated:
    """A live model no unit carries now. `idle_since_ms` is None when it has a command to run.

    `uncovered`: a durable point would cover something; `capturing`: one is under way.
    """

    model_id: str
    slot: int
    load_number: int
    idle_since_ms: int | None
    seated_ms: int
    uncovered: bool = False
    capturing: bool = False


@dataclass(frozen=True, slots=True)
class Due:
    """A live model whose durable point is due."""

    model_id: str
    slot: int
    load_number: int


@dataclass(frozen=True, slots=True)
class RecoveryView:
    """`seekers` by age. `lost`: the idle unseated model to seat next. `seated` is told only when no slot is
    free and somebody wants one. `create_since_ms`: since when the oldest create waits for a slot.
    """

    recovering: tuple[ReplayQueue, ...] = ()
    seekers: tuple[Seeker, ...] = ()
    due: tuple[Due, ...] = ()
    lost: tuple[Seeker, ...] = ()
    unseated: int = 0
    seated: tuple[Seated, ...] = ()
    create_since_ms: int | None = None
    now_ms: int = 0
