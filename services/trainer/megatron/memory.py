"""What a pass takes; and memory that a pass has freed stays with the process for the next pass.

By default glibc hands large freed blocks back to the kernel, and the next pass takes them anew:
a pass over 2,048 tokens of a 135M model then faults in 1.1 GB page by page, 3 to 4 % of its time.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = 2**31 - 1


_RESET_PEAK = "5"  # proc(5), clear_refs
_PROCESS = Path("/proc/self")
_CGROUP_FILES = (  # limit, use, and the part of the use that is files' pages nobody needs
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
_CGROUP = Path("/sys/fs/cgroup")


class PeakMemory:
    """The most memory this process held at once since this was made, beyond what it held then."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.known = True
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)
            return
        try:
            (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
            self._before = _status("VmRSS")
        except (OSError, LookupError):  # another system, or a sandbox that hides it
            self.known = False

    def grown(self) -> int:
        """Bytes."""
        if self._device.type == "cuda":
            return max(0, torch.cuda.max_memory_allocated(self._device) - self._before)
        return max(0, _status("VmHWM") - self._before)


def free_memory(device: torch.device) -> int:
    """Bytes of the device, or of this machine within this process's control group; 0 = unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        available = _kib(Path("/proc/meminfo"), "MemAvailable")
    except (OSError, LookupError):
        return 0
    return min(available, *(cgroup_room(_CGROUP, *names) for names in _CGROUP_FILES))


def cgroup_room(root: Path, limit: str, used: str, cached: str) -> int:
    """Bytes this control group may still take; a model read at the start fills it with pages it gives up at once."""
    try:
        free = int((root / limit).read_text()) - int((root / used).read_text())
        stat = (root / limit).with_name("memory.stat").read_text().split()
        return max(0, free + int(dict(zip(stat[::2], stat[1::2], strict=True)).get(cached, 0)))
    except (OSError, ValueError):  # no such group, or "max"
        return sys.maxsize


def _status(field: str) -> int:
    return _kib(_PROCESS / "status", field)


def _kib(file: Path, field: str) -> int:
    """Bytes of a line ``<field>: <n> kB``. Raises OSError, LookupError."""
    for line in file.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def keep_freed_memory() -> None:
    """Process-wide and idempotent; does nothing where the C library has no mallopt."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
