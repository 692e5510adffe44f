"""What a soak counts."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.chaos.player import Run

MEBIBYTE = 1 << 20


@dataclass(slots=True)
class Figures:
    """`resumed`: seconds from a kill to the first settled training command that was sent after it, by kind."""

    began: float = field(default_factory=time.monotonic)
    kills: Counter[str] = field(default_factory=Counter)
    commands: int = 0
    samples: int = 0
    histories: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    resumed: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rss: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _open: list[tuple[str, float]] = field(default_factory=list)

    def struck(self, kind: str, *, stopped: bool) -> None:
        name = f"stop {kind}" if stopped else kind
        self.kills[name] += 1
        self._open.append((name, time.monotonic()))

    def settled(self, sent: float) -> None:
        """A training command that was sent at `sent` has its outcome now."""
        now = time.monotonic()
        for kind, at in [one for one in self._open if one[1] < sent]:
            self.resumed[kind].append(now - at)
        self._open = [one for one in self._open if one[1] >= sent]

    def played(self, run: Run) -> None:
        self.histories += 1
        self.commands += sum(len(model.commands) + 1 for model in run.models)
        self.samples += sum(len(done.samples) for model in run.models for done in model.commands)
        for name, count in run.seen.answers.items():
            self.answers[name.rsplit(" ", 1)[1]] += count

    def memory(self, name: str, pid: int) -> None:
        if pid:
            try:
                self.rss[name].append(psutil.Process(pid).memory_info().rss)
            except psutil.NoSuchProcess:
                return

    def report(self, found: int) -> dict[str, Any]:
        """Seconds and MiB."""
        return {
            "seconds": round(time.monotonic() - self.began, 1),
            "violations": found,
            "kills": dict(self.kills),
            "histories": self.histories,
            "commands": self.commands,
            "samples": self.samples,
            "answers": dict(self.answers),
            "resume": {kind: _quantiles(values) for kind, values in self.resumed.items()},
            "memory": {name: _memory(values) for name, values in self.rss.items()},
        }

    def text(self, found: int) -> str:
        told = self.report(found)
        lines = [
            f"ran          {told['seconds']:.0f} s, {self.histories} histories, {self.commands} commands, "
            f"{self.samples} samples",
            f"kills        {self.kills.total()}: " + ", ".join(f"{k} {n}" for k, n in sorted(self.kills.items())),
            "answers      " + ", ".join(f"{name} {count}" for name, count in self.answers.most_common()),
        ]
        lines += [f"resumed      after {kind}: {_said(one)} s" for kind, one in sorted(told["resume"].items())]
        lines += [f"memory       {name}: {_said(one)} MiB" for name, one in sorted(told["memory"].items())]
        return "\n".join([*lines, f"violations   {found}"])


def _said(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {name: round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 2) for name, q in _QUANTILES}


_QUANTILES = (("p50", 0.5), ("p99", 0.99))


def _memory(values: Sequence[int]) -> dict[str, float]:
    """Over the run: the mean of the first and of the last tenth, and the largest."""
    tenth = max(1, len(values) // 10)
    first, last = values[:tenth], values[-tenth:]
    return {
        "first": round(sum(first) / len(first) / MEBIBYTE),
        "last": round(sum(last) / len(last) / MEBIBYTE),
        "max": round(max(values) / MEBIBYTE),
    }
