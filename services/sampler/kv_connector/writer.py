"""One thread that writes blocks and enters them in the catalog, in the order the engine gave them."""

from __future__ import annotations

import errno
import logging
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from services.common.errors import CacheNotReady, Unavailable
from services.sampler import kv_metrics
from services.sampler.kv_connector.block_store import BlockStore
from services.sampler.kv_connector.catalog import Catalog, CatalogAway
from services.sampler.kv_connector.ledger import SaveLedger

log = logging.getLogger(__name__)

MOST_PENDING_BYTES = 512 << 20
_BATCH = 256


class Block(NamedTuple):
    sequence_id: str
    key: str
    payload: bytes


class BlockWriter:
    """`written` hears, in the writer's thread, how many bytes a batch added."""

    def __init__(self, store: BlockStore, catalog: Catalog, ledger: SaveLedger, written: Callable[[int], None]) -> None:
        self._store = store
        self._catalog = catalog
        self._ledger = ledger
        self._written = written
        self._queue: queue.SimpleQueue[Block | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._thread = threading.Thread(target=self._run, name="kv-writer", daemon=True)

    @property
    def pending(self) -> int:
        """Bytes."""
        return self._pending

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        self._queue.put(None)
        self._thread.join(timeout_seconds)

    def put(self, block: Block) -> None:
        """Returns at once: in the engine's thread. Beyond the bound the block's leg fails instead."""
        with self._lock:
            if self._pending + len(block.payload) > MOST_PENDING_BYTES:
                self._fail(block, CacheNotReady(f"stage kv save: {self._pending >> 20} MiB wait to be written; retry"))
                return
            self._pending += len(block.payload)
        self._queue.put(block)

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, more = self._batch(first)
            try:
                with kv_metrics.save_batch():
                    self._save(batch)
            except Exception:  # noqa: BLE001 - the thread's boundary: legs that wait for these hear of it by their bound
                log.exception("stage kv save: %d blocks are lost", len(batch))
            with self._lock:
                self._pending -= sum(len(block.payload) for block in batch)
            if not more:
                return

    def _batch(self, first: Block) -> tuple[list[Block], bool]:
        """What waits already, and whether the thread goes on."""
        batch = [first]
        while len(batch) < _BATCH:
            try:
                block = self._queue.get_nowait()
            except queue.Empty:
                break
            if block is None:
                return batch, False
            batch.append(block)
        return batch, True

    def _save(self, batch: list[Block]) -> None:
        done = [(block, size) for block in batch if (size := self._write(block)) is not None]
        self._written(sum(size for _, size in done))
        try:
            self._catalog.add({block.key: None for block, _ in done})
        except CatalogAway as away:
            for block, _ in done:
                self._fail(block, away)
            return
        for block, size in done:
            kv_metrics.saved("saved" if size else "known")
            self._ledger.published(block.sequence_id, block.key)

    def _write(self, block: Block) -> int | None:
        """Bytes added; None when it failed."""
        try:
            return self._store.write(block.key, block.payload)
        except OSError as error:
            cause = "the tier's disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
            self._fail(block, CacheNotReady(f"stage kv save: block {block.key[:16]} is not written: {cause}; retry"))
            return None

    def _fail(self, block: Block, cause: Unavailable) -> None:
        kv_metrics.saved("failed")
        log.warning("%s", cause.message)
        self._ledger.failed(block.sequence_id, cause)
