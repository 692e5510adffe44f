"""Sends the waiting samples of one pool to its samplers, under one term.

What waits is mirrored here; that a sample runs, and where, is in Redis before the sampler hears
of it, so the next lease holder finds everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from tinkermesh.v1 import types_pb2 as types

from services.common.clock import now_ms
from services.common.errors import StaleFence, TinkermeshError, Unavailable
from services.scheduler import metrics
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.flight import Flight, spot_of
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.outcome import Verdict, server_failure
from services.scheduler.sampling.routing import Request, Router, absence
from services.scheduler.sampling.serving import Retry, Served, attempt, report
from services.scheduler.sampling.spot import Spot
from services.scheduler.sampling.turns import Turns
from services.scheduler.sampling.waiting import Waiting
from services.scheduler.store.sampling import SamplingStore
from services.scheduler.tenancy.records import DEFAULT_WEIGHT, tenant_class
from services.scheduler.waking import wait_at_most

log = logging.getLogger(__name__)

PULL_LIMIT = 512
START_LIMIT = 64
TICK_SECONDS = 1.0
IDLE_SECONDS = 5.0
SETTLE_SECONDS = 2.0

T = TypeVar("T")
Placement = tuple[Waiting, Flight]


class PoolRun:
    def __init__(
        self,
        pool: str,
        term: int,
        store: SamplingStore,
        fleet: Fleet,
        limits: SamplingLimits,
        router: Router,
        wake: asyncio.Event,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._pool = pool
        self._term = term
        self._store = store
        self._fleet = fleet
        self._limits = limits
        self._router = router
        self._wake = wake
        self._weights: Mapping[str, float] = {} if weights is None else weights
        self._turns: Turns[Waiting] = Turns(fair=limits.fair, weights=weights, cost=lambda w: w.sample.sequences)
        self._held: set[str] = set()  # keys that wait or run here
        self._seen_arrival = 0
        self._without_sampler_since = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._calls: dict[str, tuple[asyncio.Task[None], Flight]] = {}  # by request id

    @property
    def waiting(self) -> int:
        """Samples that are not on their way."""
        return len(self._turns)

    async def run(self) -> None:
        """Until cancelled, or until another replica holds the lease."""
        try:
            await self._until_stale()
        finally:
            await self._end()

    def settled(self, request_ids: list[str]) -> None:
        """Ends the calls for samples that were settled elsewhere, such as cancelled ones."""
        for request_id in request_ids:
            task, flight = self._calls.get(request_id, (None, None))
            if task is not None and flight is not None and task not in self._settling:
                task.cancel()  # which aborts legs
                self._fleet.spawn(flight.spot.prompt_link.abort(request_id))

    def look_again(self) -> None:
        """A sample that arrived earlier than what was seen last waits again."""
        self._seen_arrival = 0

    async def _end(self) -> None:
        """Outcomes that are here are written; what still runs is left to the next lease holder."""
        for task in self._tasks - self._settling:
            task.cancel()
        if self._settling:
            await asyncio.wait(self._settling, timeout=SETTLE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _until_stale(self) -> None:
        adopted = False
        while True:
            try:
                if not adopted:
                    await self._adopt()
                    adopted = True
                await self._pull()
                await self._place()
            except StaleFence as error:
                log.info("pool %s: another replica dispatches samples: %s", self._pool, error)
                return
            except Unavailable as error:
                log.warning("pool %s: samples wait: %s", self._pool, error)
            await wait_at_most(self._wake, TICK_SECONDS if len(self._turns) else IDLE_SECONDS)
            self._wake.clear()

    # -- what waits ----------------------------------------------------------------------

    async def _adopt(self) -> None:
        """Samples an earlier lease holder sent out: their sampler answers a repeat from its running call."""
        links = await self._fleet.links(self._pool)
        for sample in await self._store.running(self._pool):
            if sample.key in self._held:
                continue
            spot = spot_of(sample.sampler, links)
            if spot is None:
                await self._store.requeue(self._pool, sample.key)
                continue
            self._held.add(sample.key)
            await self._start([(Waiting(sample, self._now()), Flight(spot, sample.sequences))])

    async def _pull(self) -> None:
        while True:
            found = await self._store.waiting(self._pool, self._seen_arrival, PULL_LIMIT)
            for sample in found:
                self._seen_arrival = sample.arrival
                if sample.key not in self._held:
                    self._held.add(sample.key)
                    self._turns.join(sample.tenant_id, Waiting(sample, self._now()))
            if len(found) < PULL_LIMIT:
                return

    async def _place(self) -> None:
        links = await self._fleet.links(self._pool)
        why = absence(links)
        if not why:
            self._without_sampler_since = 0.0
        elif len(self._turns):
            await self._give_up(why)
        while batch := self._next_batch(links):
            await self._start(batch)

    def _next_batch(self, links: list[SamplerLink]) -> list[Placement]:
        batch: list[Placement] = []
        while len(batch) < START_LIMIT and (waiting := self._turns.peek()) is not None:
            sample = waiting.sample
            request = Request(waiting.adapter_name, sample.sequences, sample.starts)
            spot = self._router.choose(self._pool, request, links)
            if spot is None:
                break
            self._turns.take()
            batch.append((waiting, Flight(spot, sample.sequences)))
        return batch

    async def _give_up(self, why: str) -> None:
        """No sampler, and no pair, can take anything: what has waited too long fails."""
        now = self._now()
        self._without_sampler_since = self._without_sampler_since or now
        bound = self._limits.sampler_wait_seconds
        for waiting in self._turns.all():
            if now - max(self._without_sampler_since, waiting.joined_at) > bound:
                self._turns.remove(waiting)
                text = f"pool {self._pool} had no live sampler for {bound:g} s ({why})"
                await self._settle(waiting, server_failure("dispatch", text))

    # -- what runs -----------------------------------------------------------------------

    async def _start(self, batch: list[Placement]) -> None:
        try:
            pairs = [(waiting.key, flight.link.sampler_id) for waiting, flight in batch]
            commands = await self._store.start(self._pool, self._term, pairs)
        except TinkermeshError:
            for waiting, flight in reversed(batch):  # each goes to the head of its line
                flight.land()
                self._turns.rejoin(waiting.tenant_id, waiting)
            raise
        for (waiting, flight), command in zip(batch, commands, strict=True):
            if command is None:
                flight.land()
                self._held.discard(waiting.key)
            else:
                self._spawn(waiting, flight, command.sample)

    def _spawn(self, waiting: Waiting, flight: Flight, body: types.SampleBody) -> None:
        task = asyncio.create_task(self._serve(waiting, flight, body))
        self._tasks.add(task)
        self._calls[waiting.sample.request_id] = (task, flight)
        task.add_done_callback(lambda done: self._ended(waiting, flight, done))

    def _ended(self, waiting: Waiting, flight: Flight, task: asyncio.Task[None]) -> None:
        flight.land()
        if self._calls.get(waiting.sample.request_id, (None,))[0] is task:
            del self._calls[waiting.sample.request_id]
        if task.cancelled():
            self._held.discard(waiting.key)
        self._done(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._settling.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a sample's task failed", exc_info=error)
        self._wake.set()

    async def _serve(self, waiting: Waiting, flight: Flight, body: types.SampleBody) -> None:
        if not waiting.troubled_since:
            self._count_wait(waiting)
        try:
            outcome = await attempt(waiting, flight, body, self._limits)
        except Exception:  # noqa: BLE001 - a bug must fail this sample, not leave it pending for ever
            log.exception("sample %s failed unexpectedly", waiting.sample.request_id)
            outcome = Served(server_failure("sample", "unexpected error, told in the scheduler's log"), [])
        finally:
            flight.land()
        if isinstance(outcome, Retry):
            await self._again(waiting, flight.spot, outcome)
        else:
            await self._settle_here(waiting, outcome.result, outcome.records)

    def _count_wait(self, waiting: Waiting) -> None:
        name = tenant_class(self._weights.get(waiting.tenant_id, DEFAULT_WEIGHT))
        metrics.waited(self._pool, metrics.SAMPLE, name, (now_ms() - waiting.sample.admitted_ms) / 1000)

    async def _again(self, waiting: Waiting, spot: Spot, retry: Retry) -> None:
        if not await self._persist(lambda: self._store.requeue(self._pool, waiting.key)):
            self._held.discard(waiting.key)  # settled meanwhile, such as cancelled
            return
        metrics.sample_retries.labels(self._pool, retry.verdict.name.lower()).inc()
        if retry.verdict is Verdict.ELSEWHERE:
            waiting.lost_on.add(spot.link.incarnation)
        troubled = waiting.trouble(self._now())
        log.warning("sample on %s at stage %s: %s", spot.sampler_ids, retry.stage, retry.reason)
        if waiting.given_up or troubled > self._limits.sampler_wait_seconds:
            # A transport's own text names addresses of the mesh: it goes to the log only.
            reason = "the sampler was lost" if retry.verdict is Verdict.ELSEWHERE else retry.reason
            text = f"{reason} (tried for {troubled:.0f} s; {len(waiting.lost_on)} samplers lost)"
            await self._settle_here(waiting, server_failure(retry.stage, text))
            return
        if retry.verdict is Verdict.LATER:
            await asyncio.sleep(TICK_SECONDS)
        self._turns.rejoin(waiting.tenant_id, waiting)

    async def _settle_here(
        self, waiting: Waiting, result: types.Result, records: Sequence[types.SequenceRecord] = ()
    ) -> None:
        """In the sample's own task, which from now on is left to its end."""
        if (task := asyncio.current_task()) is not None:
            self._settling.add(task)
        await self._settle(waiting, result, records)

    async def _settle(
        self, waiting: Waiting, result: types.Result, records: Sequence[types.SequenceRecord] = ()
    ) -> None:
        started_ms = now_ms()
        retention_ms = self._limits.retention_ms
        await self._persist(lambda: self._store.settle(self._pool, waiting.key, result, retention_ms, records))
        self._held.discard(waiting.key)
        report(waiting.sample, result, started_ms)
        metrics.sample_settled(self._pool, result, (started_ms - waiting.sample.admitted_ms) / 1000)

    async def _persist(self, write: Callable[[], Awaitable[T]]) -> T:
        """Until Redis takes it; each of these writes may be repeated."""
        while True:
            try:
                return await write()
            except Unavailable as error:
                log.warning("pool %s: an outcome waits for Redis: %s", self._pool, error)
                await asyncio.sleep(TICK_SECONDS)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
