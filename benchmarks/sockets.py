"""TCP connections that clients hold open to a process, watched while something runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

SECONDS = 0.05


def open_connections(pids: Sequence[int], port: int) -> int:
    """Established connections these processes accepted at `port`."""
    found = 0
    for pid in pids:
        connections = psutil.Process(pid).net_connections("tcp")
        found += sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port == port for c in connections)
    return found


@contextmanager
def watched_connections(pids: Sequence[int], port: int) -> Iterator[list[int]]:
    """The list grows by one count every 50 ms until the block ends."""
    counts: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SECONDS):
            counts.append(open_connections(pids, port))

    thread = threading.Thread(target=watch, name="connections", daemon=True)
    thread.start()
    try:
        yield counts
    finally:
        ended.set()
        thread.join()
