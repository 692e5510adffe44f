"""How much more memory this process held than at a moment, at most (Linux)."""

from __future__ import annotations

from pathlib import Path

RESET_PEAK = "5"  # proc(5), clear_refs


class PeakMemory:
    """Counts from its making. The kernel's own high-water mark is reset: an earlier test's must not hide this one's."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text(RESET_PEAK)
        self._before = _kib("VmRSS")

    def grown_mib(self) -> float:
        return (_kib("VmHWM") - self._before) / 1024


def _kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise LookupError(field)
