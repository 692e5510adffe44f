"""The Admin service: look at everything, drain and resume trainers, evict models, put lost requests back."""

from __future__ import annotations

from itertools import accumulate, repeat
from operator import itemgetter

from tinkermesh.v1 import admin_pb2 as pb
from tinkermesh.v1 import admin_pb2_grpc
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Gone, UnknownId
from services.common.grpc_boundary import Context
from services.common.ids import parse_request_id
from services.scheduler.admin_reports import (
    MODEL_FIELDS,
    PENDING_STATES,
    cursor_of,
    future_report,
    head_of,
    model_report,
    packing_report,
    place_of,
    recovery_report,
    request_report,
    sampler_report,
    session_report,
    slot_report,
)
from services.scheduler.directory import VALID_MS
from services.scheduler.explanations import Explainer
from services.scheduler.operations.changes import Changes
from services.scheduler.operations.durable_points import DurablePointList
from services.scheduler.operations.engines import Engines
from services.scheduler.operations.gc import GcPlan
from services.scheduler.operations.leases import Leases
from services.scheduler.operations.paging import LARGEST_LIMIT, arrivals_cursor, arrivals_of, bounded, page_of
from services.scheduler.operations.snapshots import SnapshotList
from services.scheduler.operations.tiers import TierList
from services.scheduler.results import Results
from services.scheduler.sampling.pairing import problems
from services.scheduler.store.overview import Overview, Row
from services.scheduler.store.registry import RegistryStore
from services.scheduler.store.sampling import SamplingStore
from services.scheduler.store.sessions import SessionStore

DEFAULT_LIMIT = 100


class Admin(admin_pb2_grpc.AdminServicer):
    def __init__(
        self,
        *,
        overview: Overview,
        registry: RegistryStore,
        sessions: SessionStore,
        samples: SamplingStore,
        results: Results,
        explainer: Explainer,
        changes: Changes,
        leases: Leases,
        durable_points: DurablePointList,
        snapshots: SnapshotList,
        engines: Engines,
        tiers: TierList,
        gc: GcPlan,
    ) -> None:
        self._overview = overview
        self._registry = registry
        self._sessions = sessions
        self._samples = samples
        self._results = results
        self._explainer = explainer
        self._changes = changes
        self._leases = leases
        self._durable_points = durable_points
        self._snapshots = snapshots
        self._engines = engines
        self._tiers = tiers
        self._gc = gc

    async def ListPools(self, request: pb.AdminListPoolsRequest, context: Context) -> pb.AdminListPoolsReply:
        return pb.AdminListPoolsReply(pools=[await self._pool(pool) for pool in await self._registry.pools()])

    async def ListTrainers(self, request: pb.ListTrainersRequest, context: Context) -> pb.ListTrainersReply:
        reply = pb.ListTrainersReply()
        for pool in await self._pools(request.pool):
            running = await self._overview.running_units(pool)
            for member in await self._registry.members(pool, "trainers"):
                reply.trainers.add(
                    pool=pool,
                    trainer_id=member.member_id,
                    incarnation=member.incarnation,
                    address=member.trainer().address,
                    seen_ms_ago=member.seen_ms_ago,
                    draining=member.draining,
                    running_unit=" ".join(unit for unit, whose in running if whose == member.incarnation),
                    cell=member.cell,
                    models=len(await self._overview.models_of(pool, member.cell)),
                )
        return reply

    async def ListSamplers(self, request: pb.ListSamplersRequest, context: Context) -> pb.ListSamplersReply:
        reply = pb.ListSamplersReply()
        for pool in await self._pools(request.pool):
            counts = await self._samples.running_counts(pool)
            members = await self._registry.members(pool, "samplers")
            unpaired = problems([member.sampler() for member in members if member.seen_ms_ago <= VALID_MS])
            reply.samplers.extend(sampler_report(pool, member, counts, unpaired) for member in members)
        return reply

    async def ListSlots(self, request: pb.ListSlotsRequest, context: Context) -> pb.ListSlotsReply:
        reply = pb.ListSlotsReply()
        for pool in await self._pools(request.pool):
            slots = [
                slot_report(pool, cell, int(slot), holder)
                for cell in await self._overview.cells(pool)
                for slot, holder in (await self._overview.slots(pool, cell)).items()
            ]
            models = await self._overview.models(pool, [slot.model_id for slot in slots], ("tenant",))
            for slot, model in zip(slots, models, strict=True):
                slot.tenant_id = model["tenant"]
            reply.slots.extend(sorted(slots, key=lambda slot: (slot.cell, slot.slot)))
        return reply

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsReply:
        pools = await self._pools(request.pool)
        page, cursor = await page_of(pools, self._overview.live_models, request.cursor, bounded(request.limit))
        reply = pb.ListModelsReply(next_cursor=cursor)
        for pool in dict.fromkeys(pool for pool, _ in page):
            model_ids = [model_id for named, model_id in page if named == pool]
            rows = await self._overview.models(pool, model_ids, MODEL_FIELDS)
            depths = await self._overview.depths(pool, model_ids)
            for model_id, row, depth in zip(model_ids, rows, depths, strict=True):
                reply.models.append(model_report(pool, model_id, row, depth))
        return reply

    async def ListQueues(self, request: pb.ListQueuesRequest, context: Context) -> pb.ListQueuesReply:
        pools = await self._pools(request.pool)
        page, cursor = await page_of(pools, self._overview.busy_models, request.cursor, bounded(request.limit))
        now_ms = await self._overview.now_ms()
        queues = [await self._queue(pool, model_id, now_ms) for pool, model_id in page]
        return pb.ListQueuesReply(queues=queues, next_cursor=cursor)

    async def ListSessions(self, request: pb.ListSessionsRequest, context: Context) -> pb.ListSessionsReply:
        """Looks at LARGEST_LIMIT sessions at most; of one tenant it may answer a short page and a cursor."""
        now_ms = await self._overview.now_ms()
        limit, looked, place = min(bounded(request.limit, DEFAULT_LIMIT), LARGEST_LIMIT), 0, place_of(request.cursor)
        reply = pb.ListSessionsReply()
        while looked < LARGEST_LIMIT and len(reply.sessions) < limit:
            page = await self._sessions.page(place, limit - len(reply.sessions))
            rows = await self._sessions.rows([found.session_id for found in page])
            reply.sessions.extend(
                session_report(row, models, now_ms) for row, models in rows if request.tenant_id in ("", row.tenant_id)
            )
            if not page:
                return reply
            place, looked = page[-1], looked + len(page)
        reply.next_cursor = cursor_of(place)
        return reply

    async def ListFutures(self, request: pb.ListFuturesRequest, context: Context) -> pb.ListFuturesReply:
        now_ms = await self._overview.now_ms()
        limit, shown = bounded(request.limit, DEFAULT_LIMIT), arrivals_of(request.cursor)
        state = {"issued": "running"}.get(request.state, request.state)
        found: list[tuple[int, str, Row]] = []
        more = False
        for pool in await self._pools(request.pool):
            rows = await self._overview.requests(pool, state, limit, shown.get(pool, 0))
            more = more or len(rows) == limit
            # Within a pool the order of arrival stands, whatever its clock did.
            times = accumulate((int(row["admitted_ms"] or 0) for row in rows), max)
            found.extend(zip(times, repeat(pool), rows, strict=False))
        found.sort(key=itemgetter(0))
        page = found[:limit]
        shown |= {pool: int(row["arrival"] or 0) for _, pool, row in page}
        reply = pb.ListFuturesReply(futures=[future_report(row, now_ms) for _, _, row in page])
        reply.next_cursor = arrivals_cursor(shown) if page and (more or len(found) > limit) else ""
        return reply

    async def InspectRequest(self, request: pb.InspectRequestRequest, context: Context) -> pb.RequestReport:
        parsed = parse_request_id(request.request_id)
        row = await self._overview.request(parsed.pool, parsed.key)
        if not row["request_id"]:
            raise UnknownId(f"request_id {request.request_id} is not known")
        trainers = {
            member.incarnation: member.member_id for member in await self._registry.members(parsed.pool, "trainers")
        }
        report = request_report(row, await self._overview.now_ms(), trainers)
        if row["state"] in PENDING_STATES:
            report.queue_state, report.queue_state_reason = await self._explainer.explain(parsed, head_of(row))
        if row["state"] == "failed":
            report.failure.CopyFrom(await self._failure(row["request_id"], row["tenant"]))
        return report

    async def DrainTrainer(self, request: pb.DrainTrainerRequest, context: Context) -> pb.DrainTrainerReply:
        await self._changes.drain(request.pool, request.trainer_id, context.peer(), on=True)
        return pb.DrainTrainerReply()

    async def ResumeTrainer(self, request: pb.ResumeTrainerRequest, context: Context) -> pb.ResumeTrainerReply:
        await self._changes.drain(request.pool, request.trainer_id, context.peer(), on=False)
        return pb.ResumeTrainerReply()

    async def EvictModel(self, request: pb.EvictModelRequest, context: Context) -> pb.EvictModelReply:
        return pb.EvictModelReply(state=await self._changes.evict(request, context.peer()))

    async def RequeueRequest(self, request: pb.RequeueRequestRequest, context: Context) -> pb.RequeueRequestReply:
        return pb.RequeueRequestReply(requests=await self._changes.requeue(request.request_id, context.peer()))

    async def ListLeases(self, request: pb.ListLeasesRequest, context: Context) -> pb.ListLeasesReply:
        return await self._leases.report(request)

    async def ListDurablePoints(
        self, request: pb.ListDurablePointsRequest, context: Context
    ) -> pb.ListDurablePointsReply:
        return await self._durable_points.report(await self._pools(request.pool), request)

    async def ListSnapshots(self, request: pb.ListSnapshotsRequest, context: Context) -> pb.ListSnapshotsReply:
        return await self._snapshots.report(await self._pools(request.pool))

    async def ListEngines(self, request: pb.ListEnginesRequest, context: Context) -> pb.ListEnginesReply:
        return pb.ListEnginesReply(engines=await self._engines.report(await self._pools(request.pool)))

    async def LoadAdapter(self, request: pb.AdminLoadAdapterRequest, context: Context) -> pb.AdminLoadAdapterReply:
        return pb.AdminLoadAdapterReply(samplers=await self._engines.load(request, context.peer()))

    async def UnloadAdapter(
        self, request: pb.AdminUnloadAdapterRequest, context: Context
    ) -> pb.AdminUnloadAdapterReply:
        return pb.AdminUnloadAdapterReply(samplers=await self._engines.unload(request, context.peer()))

    async def DrainSampler(self, request: pb.DrainSamplerRequest, context: Context) -> pb.DrainSamplerReply:
        await self._changes.drain_sampler(request.pool, request.sampler_id, context.peer(), on=True)
        return pb.DrainSamplerReply()

    async def ResumeSampler(self, request: pb.ResumeSamplerRequest, context: Context) -> pb.ResumeSamplerReply:
        await self._changes.drain_sampler(request.pool, request.sampler_id, context.peer(), on=False)
        return pb.ResumeSamplerReply()

    async def ListTiers(self, request: pb.ListTiersRequest, context: Context) -> pb.ListTiersReply:
        return pb.ListTiersReply(tiers=await self._tiers.report(await self._pools(request.pool)))

    async def InvalidateBlocks(
        self, request: pb.AdminInvalidateBlocksRequest, context: Context
    ) -> pb.AdminInvalidateBlocksReply:
        return await self._tiers.invalidate(await self._pools(request.pool), request, context.peer())

    async def DryRunGc(self, request: pb.DryRunGcRequest, context: Context) -> pb.DryRunGcReply:
        return await self._gc.report(await self._pools(request.pool), request)

    async def _pools(self, pool: str) -> list[str]:
        """Raises UnknownId."""
        known = await self._registry.pools()
        if pool and pool not in known:
            raise UnknownId(f"pool {pool!r} is not known; there are: {', '.join(known) or 'none'}")
        return [pool] if pool else known

    async def _pool(self, pool: str) -> pb.AdminPool:
        facts = await self._registry.facts(pool)
        lease, counters = await self._overview.lease(pool), await self._overview.counters(pool)
        cells = await self._overview.cells(pool)
        slots = [await self._overview.slots(pool, cell) for cell in cells]
        held = sum(1 for holders in slots for holder in holders.values() if holder)
        unseated, recovering = await self._overview.recovery(pool)
        expired = int(lease.get("expires_ms", 0)) <= await self._overview.now_ms()
        return pb.AdminPool(
            facts=facts or types.PoolFacts(pool=pool),
            term=int(lease.get("term", 0)),
            leader="" if expired else lease.get("replica", ""),
            models=held + unseated + await self._overview.waiting_creates(pool),
            queued_commands=sum(await self._overview.depths(pool, await self._overview.busy_models(pool))),
            units_total=int(counters.get("units_total", 0)),
            datums_total=int(counters.get("datums_total", 0)),
            shared_units_total=int(counters.get("shared_units_total", 0)),
            breaker=await self._overview.breaker(pool),
            recovery=recovery_report(counters, unseated, recovering),
            packing=packing_report(counters, facts.unit_token_budget if facts else 0),
        )

    async def _queue(self, pool: str, model_id: str, now_ms: int) -> pb.QueueReport:
        model = (await self._overview.models(pool, [model_id], ("tenant", "next_seq")))[0]
        waiting, rows = await self._overview.queued(pool, model_id)
        next_seq = int(model["next_seq"] or 0)
        oldest = min((int(row["admitted_ms"]) for row in rows if row["admitted_ms"]), default=now_ms)
        return pb.QueueReport(
            pool=pool,
            model_id=model_id,
            tenant_id=model["tenant"],
            depth=len(waiting),
            oldest_age_ms=now_ms - oldest,
            next_seq_id=next_seq,
            gap_at=next_seq if waiting and next_seq not in waiting else 0,
        )

    async def _failure(self, request_id: str, tenant_id: str) -> types.Failure:
        try:
            return types.Result.FromString(await self._results.whole(request_id, tenant_id)).failure
        except Gone:
            return types.Failure(message="the result has expired")
