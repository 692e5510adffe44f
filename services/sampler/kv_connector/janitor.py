"""Keeps directory and catalog of a tier in step, and the tier within its bounds."""

from __future__ import annotations

import logging
import threading
import time
from typing import Literal

from services.sampler import kv_metrics
from services.sampler.kv_connector.block_store import BlockStore, Entry
from services.sampler.kv_connector.catalog import Catalog, CatalogAway

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 2.0
LOWER_TO = 0.9
"""A tier beyond its bound is lowered to this part of it, so that not every save collects."""


class Janitor:
    """A thread; `collects` is false for samplers that save nothing: they only tell a new Redis what is there."""

    def __init__(
        self, store: BlockStore, catalog: Catalog, *, limit_bytes: int, max_age_seconds: float, collects: bool
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._limit = limit_bytes
        self._max_age = max_age_seconds
        self._collects = collects
        self._grown = 0
        self._bytes = 0
        self._told = True
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="kv-janitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout_seconds)

    def grew(self, size: int) -> None:
        """By `size` bytes since the directory was read; beyond the bound it is collected now."""
        self._grown += size
        if self._bytes + self._grown > self._limit:
            self._wake.set()

    def round(self) -> None:
        """Republish where Redis has forgotten, collect what is too old or too much."""
        entries = list(self._store.entries())
        self._republish(entries)
        dropped = self._collect(entries) if self._collects else set()
        left = [entry for entry in entries if entry.key not in dropped]
        self._bytes, self._grown = sum(entry.size for entry in left), 0
        kv_metrics.usage(len(left), self._bytes)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.round()
            except Exception:  # noqa: BLE001 - the thread's boundary: the next round tries again
                log.exception("stage kv tier: a round of upkeep failed")
            self._wake.wait(INTERVAL_SECONDS)
            self._wake.clear()

    def _republish(self, entries: list[Entry]) -> None:
        try:
            if self._catalog.is_whole():
                return
            self._catalog.add(entry.key for entry in entries)
            self._catalog.mark_whole()
        except CatalogAway as away:
            if self._told:
                log.warning("%s", away.message)
            self._told = False
            return
        self._told = True
        kv_metrics.republished()
        log.info("the catalog has the tier's %d blocks again", len(entries))

    def _collect(self, entries: list[Entry]) -> set[str]:
        oldest = sorted(entries, key=lambda entry: entry.used)
        horizon = time.time() - self._max_age
        old = [entry for entry in oldest if entry.used < horizon]
        rest = oldest[len(old) :]
        much = _beyond(rest, self._limit, int(self._limit * LOWER_TO))
        self._drop("age", old)
        self._drop("size", much)
        return {entry.key for entry in (*old, *much)}

    def _drop(self, why: Literal["age", "size"], entries: list[Entry]) -> None:
        """From the catalog first: what it names should be there."""
        if not entries:
            return
        try:
            self._catalog.remove(entry.key for entry in entries)
        except CatalogAway as away:
            log.warning("%s", away.message)
        for entry in entries:
            self._store.drop(entry.key)
        kv_metrics.collected(why, len(entries))


def _beyond(oldest_first: list[Entry], limit: int, lower_to: int) -> list[Entry]:
    """The oldest that have to go, once all together are above `limit`."""
    size = sum(entry.size for entry in oldest_first)
    if size <= limit:
        return []
    going = []
    for entry in oldest_first:
        if size <= lower_to:
            break
        size -= entry.size
        going.append(entry)
    return going
