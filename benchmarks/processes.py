"""CPU time and memory of the services' processes, children included."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psutil

MEBIBYTE = 1 << 20


def _family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """User and system time so far."""
    return float(sum(p.cpu_times().user + p.cpu_times().system for p in _family(pid)))


def rss_mib(pid: int) -> float:
    """Resident memory; pages shared by parent and children count once per process."""
    return float(sum(p.memory_info().rss for p in _family(pid)) / MEBIBYTE)


def cpu_share(pids: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Percent of one core that each process used during the next `seconds`."""
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    started = time.perf_counter()
    time.sleep(seconds)
    elapsed = time.perf_counter() - started
    return {name: 100.0 * (cpu_seconds(pid) - before[name]) / elapsed for name, pid in pids.items()}


def cpu_during(pids: Mapping[str, int], work: Callable[[], object]) -> dict[str, float]:
    """CPU seconds that each process spent while `work` ran."""
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    work()
    return {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}


@contextmanager
def peak_rss(pids: Mapping[str, int], period: float = 0.2) -> Iterator[dict[str, float]]:
    """Highest resident memory of each process seen inside the block, in MiB, sampled every `period` seconds."""
    peaks = {name: rss_mib(pid) for name, pid in pids.items()}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(period):
            for name, pid in pids.items():
                peaks[name] = max(peaks[name], rss_mib(pid))

    watcher = threading.Thread(target=watch, name="peak-rss", daemon=True)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join(10)
