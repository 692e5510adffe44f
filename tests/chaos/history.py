"""A whole history out of one seed: who trains what, and when which process dies.

The plan holds no ids of the mesh: sessions and models get theirs while it is played.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from tests.chaos.seams import catalog

KINDS = ("scheduler", "gateway", "trainer", "sampler", "redis")
PROCESSES = {
    "scheduler": ("scheduler-0", "scheduler-1"),
    "gateway": ("gateway-0", "gateway-1"),
    "trainer": ("trainer",),
    "sampler": ("sampler",),
    "redis": ("redis",),
}


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a model; `seq` is its place, from 1.

    kind   fb | forward | bad (a forward_backward that fails in its turn) | optim | save | load | snapshot
    wait   its outcome is awaited before the next command leaves
    again  it is sent once more after its answer, as after a lost one
    """

    kind: str
    seq: int
    seed: int = 0
    datums: int = 1
    length: int = 6
    name: str = ""
    optimizer: bool = True
    overwrite: bool = False
    samples: int = 0
    wait: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """`source`: index of the model of the same session whose last save it starts from, -1 = a new one."""

    index: int
    tenant: int
    rank: int
    seed: int
    commands: tuple[Command, ...]
    source: int = -1
    burst: int = 1
    unload: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """`signal` hits `victim` `at` seconds after the start, or at the nth passage of `point` in any `holder`.

    `holder` is a kind of process; `victim` "" is the process that reaches the point. `pause`: seconds until
    SIGCONT after a stop.
    """

    signal: str
    victim: str
    at: float = 0.0
    point: str = ""
    holder: str = ""
    nth: int = 1
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class History:
    seed: int
    tenants: int
    models: tuple[ModelPlan, ...]
    faults: tuple[Fault, ...] = field(default=())

    def calm(self) -> History:
        """The same work, undisturbed."""
        return replace(self, faults=())


def make(seed: int, victims: tuple[str, ...] = KINDS, tenants: int = 0) -> History:
    """The history of `seed`; the same for the same `victims` and `tenants` (0 = one to three) for ever."""
    rng = random.Random(f"history {seed}")
    tenants = tenants or rng.randint(1, 3)
    models: list[ModelPlan] = []
    for tenant in range(tenants):
        models += _models(rng, len(models), tenant)
    return History(seed, tenants, tuple(models), _faults(random.Random(f"faults {seed}"), victims))


# ---- work -------------------------------------------------------------------------------------


def _models(rng: random.Random, first: int, tenant: int) -> list[ModelPlan]:
    made = [_model(rng, first + n, tenant) for n in range(rng.randint(1, 2))]
    if rng.random() < 0.3:
        made.append(replace(_model(rng, first + len(made), tenant), source=first, rank=made[0].rank))
    return made


def _model(rng: random.Random, index: int, tenant: int) -> ModelPlan:
    return ModelPlan(
        index=index,
        tenant=tenant,
        rank=rng.choice((2, 4, 8, 16)),
        seed=rng.randrange(1 << 31),
        commands=tuple(_commands(rng)),
        burst=rng.choice((1, 1, 2, 4)),
        unload=rng.random() < 0.3,
    )


def _commands(rng: random.Random) -> list[Command]:
    kinds: list[Command] = []
    saved = ""
    for step in range(rng.randint(3, 7)):
        kinds += [_batch(rng) for _ in range(rng.randint(1, 3))]
        kinds.append(Command("optim", 0, seed=rng.randrange(1 << 31)))
        if rng.random() < 0.25:
            over = saved != "" and rng.random() < 0.5
            saved = saved if over else f"s{step}"
            # Later saves of the name may be on their way at once; the first is there before anything loads it.
            kinds.append(Command("save", 0, name=saved, overwrite=over, wait=not over))
        elif saved and rng.random() < 0.3:
            kinds.append(Command("load", 0, name=saved, optimizer=rng.random() < 0.5))
        if rng.random() < 0.25:
            name = rng.choice(("", f"n{step}"))
            kinds.append(Command("snapshot", 0, seed=rng.randrange(1 << 31), name=name, samples=rng.randint(1, 3)))
    kinds.append(_batch(rng))  # an open window at the end: a save must not hold it
    kinds.append(Command("save", 0, name="end"))
    return [
        replace(one, seq=seq, wait=one.wait or rng.random() < 0.25, again=rng.random() < 0.15)
        for seq, one in enumerate(kinds, start=1)
    ]


def _batch(rng: random.Random) -> Command:
    kind = rng.choices(("fb", "forward", "bad"), (8, 2, 0.5))[0]
    return Command(kind, 0, rng.randrange(1 << 31), datums=rng.randint(1, 5), length=rng.randint(2, 24))


# ---- faults -----------------------------------------------------------------------------------

# What happens in every history: the rest of the catalog is drawn less often.
HOT = {
    "scheduler": (
        *(
            f"redis:{name}:{when}"
            for name in (
                "unit_issue",
                "unit_settle",
                "artifact_settle",
                "train_submit",
                "train_create",
                "train_view",
                "cell_adopt",
                "snapshot_name",
                "sampling_admit",
                "sampling_start",
                "sampling_settle",
                "train_close_session",
                "lease_acquire",
            )
            for when in ("before", "after")
        ),
        *(
            f"{when}:{name}"
            for name in ("execute", "attach", "takeover", "artifact", "sample")
            for when in ("send", "reply")
        ),
        *(f"{when}:Submit" for when in ("serve", "answer")),
    ),
    "gateway": tuple(f"{when}:{name}" for name in ("submit", "create_session") for when in ("send", "reply")),
    "trainer": (
        *(f"{when}:{name}" for name in ("Execute", "AwaitArtifact", "Takeover") for when in ("serve", "answer")),
        *(f"{name}:{when}" for name in ("fsync", "rename", "symlink") for when in ("before", "after")),
    ),
    "sampler": tuple(f"{when}:{name}" for name in ("Sample", "LoadAdapter") for when in ("serve", "answer")),
}
SPREAD_SECONDS = 3.0
STOP_SECONDS = 5.0  # beyond the lease of a term


def _faults(rng: random.Random, victims: tuple[str, ...]) -> tuple[Fault, ...]:
    return tuple(_fault(rng, victims) for _ in range(rng.choices((1, 2, 3, 4), (3, 4, 2, 1))[0]))


def _fault(rng: random.Random, victims: tuple[str, ...]) -> Fault:
    kind = rng.choice(victims)
    victim = rng.choice(PROCESSES[kind])
    stops = rng.random() < 0.12 and kind != "redis"
    made = Fault("stop" if stops else "kill", victim, pause=STOP_SECONDS if stops else 0.0)
    holder = kind if rng.random() < 0.7 else rng.choice(victims)
    if holder not in HOT or rng.random() < 0.4:
        return replace(made, at=rng.uniform(0.1, SPREAD_SECONDS))
    point = rng.choice(HOT[holder] if rng.random() < 0.8 else catalog()[holder])
    return replace(
        made, victim="" if holder == kind else victim, point=point, holder=holder, nth=rng.choice((1, 1, 2, 3, 5, 8))
    )
