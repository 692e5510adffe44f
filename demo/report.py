"""What the demo shows when it is done: where the time went, and the loss curve as a picture."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table


@dataclass(slots=True)
class Clock:
    """Seconds by stage, and (step, loss) of training batches and probe set."""

    seconds: dict[str, float] = field(default_factory=dict)
    train: list[tuple[int, float]] = field(default_factory=list)
    probe: list[tuple[int, float]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - began


def time_table(clock: Clock) -> Table:
    table = Table("where the time went", "seconds", "share")
    total = time.monotonic() - clock.began
    other = max(0.0, total - sum(clock.seconds.values()))
    for stage, seconds in [*clock.seconds.items(), ("everything else", other), ("total", total)]:
        table.add_row(stage, f"{seconds:.1f}", f"{seconds / total:.0%}")
    return table


def probe_text(clock: Clock) -> str:
    first, last = clock.probe[0][1], clock.probe[-1][1]
    return f"probe set   mean NLL per answer token {first:.3f} -> {last:.3f} ({last / first:.0%} of the start)"


def draw_losses(file: Path, clock: Clock) -> Path:
    """Writes the loss curve as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(*zip(*clock.train, strict=True), label="training batch", color="tab:blue", alpha=0.6)
    axes.plot(*zip(*clock.probe, strict=True), label="probe set (held out)", color="tab:orange", marker="o")
    axes.axhline(clock.probe[0][1] / 2, color="grey", linestyle=":", label="half of the start")
    axes.set(xlabel="optimizer step", ylabel="mean NLL per answer token", ylim=(0, None))
    axes.legend()
    figure.savefig(file, dpi=120)
    return file
