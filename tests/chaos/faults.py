"""Lets the faults of a history happen: arms points, strikes at times, wakes what was stopped."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from services.local.child import State
from tests.chaos import points
from tests.chaos.history import PROCESSES, Fault, History
from tests.chaos.mesh import Killable

POLL_SECONDS = 0.05
UP_SECONDS = 60.0


@dataclass(slots=True)
class Happened:
    """What became of one fault; `where` is its point or "time", "" = it never came to it."""

    fault: Fault
    where: str = ""


@dataclass(slots=True)
class Storm:
    mesh: Killable
    history: History
    happened: list[Happened] = field(default_factory=list)
    _stopped: dict[str, float] = field(default_factory=dict)  # process or pid -> when to go on
    _restarts: dict[str, int] = field(default_factory=dict)

    async def rage(self) -> None:
        """Until every timed fault has struck and cancelled: points may be reached at any time."""
        began = time.monotonic()
        self.happened = [Happened(fault) for fault in self.history.faults]
        self._arm()
        try:
            while True:
                for number, one in enumerate(self.happened):
                    if not one.where:
                        self._look(number, one, time.monotonic() - began)
                self._wake(time.monotonic())
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self.mesh.disarm()
            for number, one in enumerate(self.happened):  # what fired since the last look
                if one.fault.point and not one.where:
                    self._look(number, one, 0.0)
            self._wake(float("inf"))

    def _arm(self) -> None:
        armed: dict[str, list[dict[str, Any]]] = {}
        for number, fault in enumerate(self.history.faults):
            if fault.point:
                entry = {"id": self._arm_id(number), "point": fault.point, "nth": fault.nth}
                entry |= {"signal": int(points.SIGNALS[fault.signal]), "victim": self._victim(fault)}
                for process in PROCESSES[fault.holder]:
                    armed.setdefault(process, []).append(entry)
        for process, entries in armed.items():
            points.arm(self.mesh.arms, process, entries)

    def _arm_id(self, number: int) -> str:
        return f"{self.history.seed}-{number}"

    def _victim(self, fault: Fault) -> dict[str, Any] | None:
        return (self.mesh.victim(fault.victim) or {"pid": 0, "start": -1}) if fault.victim else None

    def _look(self, number: int, one: Happened, elapsed: float) -> None:
        fault = one.fault
        if fault.point:
            told = points.fired(self.mesh.arms, self._arm_id(number))
            if told is not None:
                one.where = fault.point
                self._note_stop(fault, str(told.get("pid", "")) if not fault.victim else fault.victim)
        elif elapsed >= fault.at and self.mesh.strike(fault.victim, points.SIGNALS[fault.signal]):
            one.where = "time"
            self._note_stop(fault, fault.victim)

    def _note_stop(self, fault: Fault, who: str) -> None:
        if fault.pause:
            self._stopped[who] = time.monotonic() + fault.pause

    def _wake(self, now: float) -> None:
        for who, until in list(self._stopped.items()):
            if now >= until:
                pid = int(who) if who.isdigit() else self.mesh.pid(who)
                if pid:
                    points.strike(pid, points.CONTINUE)
                del self._stopped[who]


async def everything_up(mesh: Killable) -> list[str]:
    """Waits until every process is ready again; names those that are not in time."""
    deadline = time.monotonic() + UP_SECONDS
    while waiting := [c.spec.name for c in mesh.mesh.supervisor.children if c.state is not State.READY or not c.pid]:
        if time.monotonic() > deadline:
            return waiting
        await asyncio.sleep(POLL_SECONDS)
    return []


def told(happened: list[Happened]) -> str:
    return json.dumps([{"fault": str(one.fault), "where": one.where} for one in happened])
