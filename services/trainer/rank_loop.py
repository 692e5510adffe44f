"""The main threads: rank 0 takes units from the queue, the others follow its announcements."""

from __future__ import annotations

import contextlib
import queue
import struct
from collections.abc import Callable
from dataclasses import dataclass

from tinkermesh.v1 import trainer_pb2 as pb

from services.trainer.control import Control
from services.trainer.executor import Executed, Executor
from services.trainer.server import Job

IDLE_SECONDS = 30.0
_UNIT, _IDLE, _STOP = b"u", b"i", b"s"
_HEADER = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the loop after the running unit; `error` tells that another thread failed."""

    error: BaseException | None = None


Finished = Callable[[str, Executed], None]
Commands = queue.SimpleQueue[Job | Stop]
"""Its put is reentrant, so a signal handler may use it."""


def lead(
    commands: Commands, executor: Executor, control: Control, finished: Finished, *, idle_seconds: float = IDLE_SECONDS
) -> None:
    """Until a Stop comes; units behind it are left to the next incarnation.

    Raises RanksDiverged, or what the Stop carries.
    """
    while not isinstance(job := _next(commands, control, idle_seconds), Stop):
        control.announce(_pack(job) if control.world > 1 else b"")
        finished(job.unit.unit_id, executor.run(job.unit, job.payload, job.traceparent))
    if job.error is not None:
        raise job.error
    control.announce(_STOP)


def left_behind(commands: Commands) -> list[str]:
    """Ids of the units behind the Stop. To be asked once nothing more is put in."""
    left = []
    with contextlib.suppress(queue.Empty):
        while True:
            if isinstance(job := commands.get_nowait(), Job):
                left.append(job.unit.unit_id)
    return left


def follow(executor: Executor, control: Control) -> None:
    """Until rank 0 says stop. Raises RanksDiverged when it is gone."""
    while (message := control.listen()) != _STOP:
        if message != _IDLE:
            unit, payload = _unpack(message)
            executor.run(unit, payload)


def _next(commands: Commands, control: Control, idle_seconds: float) -> Job | Stop:
    while True:
        try:
            return commands.get(timeout=idle_seconds)
        except queue.Empty:
            control.announce(_IDLE)


def _pack(job: Job) -> bytes:
    unit = job.unit.SerializeToString()
    return b"".join((_UNIT, _HEADER.pack(len(unit)), unit, job.payload))


def _unpack(message: bytes) -> tuple[pb.Unit, bytes]:
    start = len(_UNIT) + _HEADER.size
    (size,) = _HEADER.unpack_from(message, len(_UNIT))
    return pb.Unit.FromString(message[start : start + size]), message[start + size :]
