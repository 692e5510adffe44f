"""What the supervisor knows of a child process before it exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path


class Stage(IntEnum):
    """Start order; a stage starts when the one before is ready."""

    STATE = 0
    CONTROL = 1
    ENGINES = 2  # trainer, sampler and gateway come up side by side


class StopRank(IntEnum):
    """Stop order: no new work first, the state last."""

    GATEWAY = 0
    SCHEDULER = 1
    TRAINER = 2
    SAMPLER = 3
    REDIS = 4


class Readiness(IntEnum):
    REDIS_PING = 0
    GRPC_HEALTH = 1
    PORT_FILE = 2


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """`environment` is added to the supervisor's own; `inherit` are descriptors kept open."""

    name: str
    command: tuple[str, ...]
    address: str
    stage: Stage
    stop_rank: StopRank
    readiness: Readiness
    log_file: Path
    port_file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    inherit: tuple[int, ...] = ()
    ready_seconds: float = 60.0
    stop_seconds: float = 15.0
