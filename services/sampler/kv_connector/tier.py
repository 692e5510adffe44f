"""The tier as one sampler uses it: legs wait here for their blocks, the engine's thread takes and gives them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from services.common.errors import CacheNotReady, Unavailable
from services.common.telemetry import span
from services.sampler import kv_metrics
from services.sampler.kv_connector.block_file import BadBlock
from services.sampler.kv_connector.block_store import BlockStore
from services.sampler.kv_connector.catalog import Catalog, CatalogAway
from services.sampler.kv_connector.janitor import Janitor
from services.sampler.kv_connector.ledger import SaveLedger
from services.sampler.kv_connector.staging import Staging
from services.sampler.kv_connector.writer import Block, BlockWriter
from services.sampler.ports import TierUsage

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0
FETCHERS = 8
GRACE_SECONDS = 2.0
"""Behind a leg's own bound, which says what is missing, comes one for a disk that does not answer."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25


@dataclass(frozen=True, slots=True)
class TierBounds:
    limit_bytes: int
    max_age_seconds: float
    wait_seconds: float
    """The longest a leg waits for its blocks: to be saved, or to be fetched."""
    strict: bool
    """A leg whose blocks are missing fails, instead of leaving it to the decode leg to compute them again."""
    collects: bool
    """Whether this sampler keeps the tier within its bounds: those that save do."""


class KvTier:
    """Legs wait in the event loop, the engine's thread copies blocks; start, stop and operators' calls are any's."""

    def __init__(self, store: BlockStore, catalog: Catalog, bounds: TierBounds) -> None:
        self._store = store
        self._catalog = catalog
        self._bounds = bounds
        self._janitor = Janitor(
            store,
            catalog,
            limit_bytes=bounds.limit_bytes,
            max_age_seconds=bounds.max_age_seconds,
            collects=bounds.collects,
        )
        self._ledger = SaveLedger()
        self._writer = BlockWriter(store, catalog, self._ledger, self._janitor.grew)
        self._staging = Staging()
        self._fetchers = ThreadPoolExecutor(FETCHERS, "kv-fetch")
        self._failures: dict[str, list[Unavailable]] = {}  # of decode legs under way, told by the engine's thread

    @property
    def idle(self) -> bool:
        """No leg waits, nothing is held for one, nothing is to be written."""
        return not (self._ledger.waiting or self._failures or self._staging.size or self._writer.pending)

    def start(self) -> None:
        """Raises OSError where the directory cannot be made."""
        self._store.prepare()
        kv_metrics.watching(self._bounds.limit_bytes, lambda: self._writer.pending)
        self._janitor.start()
        self._writer.start()

    def stop(self) -> None:
        self._writer.stop(STOP_SECONDS)
        self._janitor.stop(STOP_SECONDS)
        self._fetchers.shutdown(wait=False, cancel_futures=True)
        self._catalog.close()

    # ---- a leg's wait, in the event loop ------------------------------------------------

    @asynccontextmanager
    async def saving(self, sequence_id: str, keys: Sequence[str]) -> AsyncIterator[None]:
        """Around a prefill leg; leaves when all `keys` are in the catalog. Raises Unavailable naming the stage."""
        done = asyncio.wrap_future(self._ledger.expect(sequence_id, keys))
        try:
            yield
            await self._saved_or_left(sequence_id, done, len(keys))
        finally:
            done.cancel()
            self._ledger.forget(sequence_id)

    async def _saved_or_left(self, sequence_id: str, done: asyncio.Future[None], blocks: int) -> None:
        """Without `strict` what is not saved is left to the decode leg's engine."""
        try:
            with kv_metrics.waiting("save"), span("sampler.kv_save", {"blocks": blocks}):
                await self._until_saved(sequence_id, done)
        except Unavailable as failure:
            if self._bounds.strict:
                raise
            log.warning("%s: the decode leg's engine computes what is missing", failure.message)

    async def _until_saved(self, sequence_id: str, done: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(self._bounds.wait_seconds):
                await done
        except TimeoutError:
            missing = self._ledger.missing(sequence_id)
            first = f"; the first is {missing[0][:16]}" if missing else ""
            raise CacheNotReady(
                f"stage kv save: {len(missing)} blocks of the prompt are not in the tier "
                f"after {self._bounds.wait_seconds:g} s{first}; retry"
            ) from None

    @asynccontextmanager
    async def fetched(self, sequence_id: str, keys: Sequence[str], held: int = 0) -> AsyncIterator[None]:
        """Around a decode leg, with the blocks of `keys` at hand but for the first `held`, which the engine has.

        Raises Unavailable naming the stage.
        """
        self._staging.open(sequence_id)
        failures: list[Unavailable] = []
        self._failures[sequence_id] = failures
        try:
            with kv_metrics.waiting("transfer"), span("sampler.kv_fetch", {"blocks": len(keys)}):
                await self._fetch_or_leave(sequence_id, keys, held)
            yield
            if failures and self._bounds.strict:
                raise failures[0]
        finally:
            self._failures.pop(sequence_id, None)
            self._staging.release(sequence_id)

    async def _fetch_or_leave(self, sequence_id: str, keys: Sequence[str], held: int) -> None:
        """Without `strict` what is not there in time is left to the engine."""
        try:
            async with asyncio.timeout(self._bounds.wait_seconds + GRACE_SECONDS):
                failure = await self._fetch_in_time(sequence_id, keys, held)
        except TimeoutError:
            failure = CacheNotReady(
                f"stage kv transfer: the tier did not answer in {self._bounds.wait_seconds:g} s; retry"
            )
        if failure is None:
            return
        if self._bounds.strict:
            raise failure
        log.warning("%s: the engine computes what is missing", failure.message)

    async def _fetch_in_time(self, sequence_id: str, keys: Sequence[str], held: int) -> Unavailable | None:
        """None when everything is at hand."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self._bounds.wait_seconds, _FIRST_PAUSE
        while True:
            failure = await loop.run_in_executor(self._fetchers, self._fetch, sequence_id, keys, held)
            if failure is None:
                return None
            if failure.final or loop.time() + pause > deadline:
                for cause in failure.waited_for:
                    _count(cause)
                return failure.error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _fetch(self, sequence_id: str, keys: Sequence[str], held: int) -> _Failure | None:
        """Stages what is there. None when that is everything."""
        wanted = [key for key in keys[held:] if not self._staging.join(sequence_id, key)]
        try:
            absent = self._catalog.missing(wanted)
        except CatalogAway as away:
            return _Failure(away, final=False)
        skipped = set(absent)
        there = [key for key in wanted if key not in skipped]
        failures = [failure for key in there if (failure := self._stage(sequence_id, key)) is not None]
        if final := next((failure for failure in failures if failure.final), None):
            return final
        if not absent and not failures:
            return None
        error = failures[0].error if failures else self._missing(absent[0], keys.index(absent[0]), len(keys))
        causes = tuple(cause for failure in failures for cause in failure.waited_for)
        return _Failure(error, final=False, waited_for=causes + ("missing",) * len(absent))

    def _stage(self, sequence_id: str, key: str) -> _Failure | None:
        try:
            self._staging.put(sequence_id, key, self._store.read(key))
        except BadBlock as bad:
            if bad.is_wrong:
                return _Failure(self._refused(key, bad), final=True)
            return _Failure(_refusal(key, bad), final=False, waited_for=(bad.cause,))
        kv_metrics.loaded(again=False)
        return None

    def _missing(self, key: str, index: int, count: int) -> Unavailable:
        return CacheNotReady(
            f"stage kv transfer: block {key[:16]} ({index + 1} of {count} of the prompt) is not in the tier "
            f"after {self._bounds.wait_seconds:g} s; retry the prefill leg"
        )

    def _refused(self, key: str, bad: BadBlock) -> Unavailable:
        """One that is there and wrong is gone from the directory already; the catalog forgets it too."""
        _count(bad.cause)
        if bad.is_wrong:
            log.error("block %s is dropped: %s", key[:16], bad)
            with suppress(CatalogAway):
                self._catalog.remove([key])
        return _refusal(key, bad)

    # ---- in the engine's thread ---------------------------------------------------------

    def save(self, sequence_id: str, key: str, payload: bytes) -> None:
        self._writer.put(Block(sequence_id, key, payload))

    def available(self, key: str) -> bool:
        return self._staging.get(key) is not None

    def block(self, key: str) -> memoryview:
        """Fetched before, or read now: after a preemption. Raises BadBlock."""
        staged = self._staging.get(key)
        if staged is not None:
            return staged
        payload = self._store.read(key)
        kv_metrics.loaded(again=True)
        return payload

    def loaded(self, sequence_id: str) -> None:
        self._staging.release(sequence_id)

    def load_failed(self, sequence_id: str, key: str, cause: BadBlock) -> None:
        self._failures.get(sequence_id, []).append(self._refused(key, cause))

    # ---- operators ----------------------------------------------------------------------

    def usage(self) -> TierUsage:
        """Reads the directory: not in the event loop."""
        sizes = [entry.size for entry in self._store.entries()]
        try:
            catalogued: int | None = self._catalog.count()
        except CatalogAway:
            catalogued = None
        return TierUsage(len(sizes), sum(sizes), self._bounds.limit_bytes, catalogued, self._writer.pending)

    def invalidate(self, keys: Sequence[str] | None) -> int:
        """Blocks that are gone now; None = all. Raises CatalogAway, and then has dropped nothing."""
        chosen = [entry.key for entry in self._store.entries()] if keys is None else list(keys)
        self._catalog.remove(chosen)
        for key in chosen:
            self._staging.drop(key)
        dropped = sum(self._store.drop(key) for key in chosen)
        kv_metrics.collected("asked", dropped)
        return dropped


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Unavailable
    final: bool
    """Waiting does not mend it."""
    waited_for: tuple[str, ...] = ()
    """Of each block that may still come, why it is not at hand: counted once, when its leg waits no longer."""


def _count(cause: str) -> None:
    if cause == "missing":
        kv_metrics.missed()
    else:
        kv_metrics.refused(cause)


def _refusal(key: str, bad: BadBlock) -> Unavailable:
    return CacheNotReady(f"stage kv transfer: block {key[:16]} is refused: {bad}; retry the prefill leg")
