"""Whether the parts answer, and what the scheduler says of the mesh."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from tinkermesh.v1 import admin_pb2 as pb

from services.common.errors import TinkermeshError, Unauthenticated
from services.common.findings import Finding, error, note, ok, warning
from services.common.grpc_channel import blocking_channel
from services.common.probe import status_of
from services.local.admin_client import AdminClient, Overview
from services.local.gateway_client import GatewayClient
from services.local.status_view import SILENT_MS

SERVING = "SERVING"
GATEWAY_SECONDS = 15.0


def schedulers(addresses: Sequence[str], *, ours: bool) -> Iterator[Finding]:
    """Each of them, and the mesh as the first that answers sees it."""
    answering = []
    for address in addresses:
        yield (found := _serves("scheduler", address, ours=ours))
        if found.level == "ok":
            answering.append(address)
    if answering:
        yield from _mesh(answering[0])


def engine(address: str) -> Finding:
    return _serves("engine", address, ours=True)


def _serves(what: str, address: str, *, ours: bool) -> Finding:
    try:
        status = asyncio.run(status_of(address))
    except TinkermeshError as wrong:  # broken TLS settings have a finding of their own
        status = wrong.message
    if status == SERVING:
        return ok(what, f"{address} serves")
    logs = "its log is under logs/ of the state directory" if ours else "see its log, the address, the NetworkPolicies"
    hint = f"start it: {logs}; with mutual TLS this command needs the TINKERMESH_TLS_* variables too"
    return error(what, f"{address} does not serve: {status[:200]}", hint)


def _mesh(address: str) -> Iterator[Finding]:
    try:
        with blocking_channel(address) as channel:
            seen = AdminClient(channel).overview()
    except TinkermeshError as wrong:
        yield error(
            "mesh", f"{address}: {wrong.message}", "see the scheduler's log: it answers and cannot read its state"
        )
        return
    if not seen.pools:
        yield warning("pools", "no trainer has registered yet", "start one, with this scheduler in its `schedulers`")
    for pool in seen.pools:
        problems = [*_pool(pool), *_engines(pool, seen)]
        yield from problems or [ok(f"pool {pool.facts.pool}", f"{pool.facts.base_model}, led by {pool.leader}")]


def _pool(pool: pb.AdminPool) -> Iterator[Finding]:
    name, recovery = f"pool {pool.facts.pool}", pool.recovery
    if not pool.leader:
        remedy = "one takes the lease within seconds: if this stays, schedulers do not reach Redis; see their logs"
        yield warning(name, "no scheduler leads it", remedy)
    if pool.breaker:
        yield error(name, f"its trainer gets no work: {pool.breaker}", "see the trainer's log and restart it")
    if recovery.replay_mismatches_total:
        text = f"{recovery.replay_mismatches_total} replays came to something else than before"
        yield error(
            name, text, "stop using the models named in the scheduler's log; docs/recovery.md says what it means"
        )
    if recovery.durable_failures_total:
        text = f"{recovery.durable_failures_total} durable points failed since the pool exists"
        yield note(name, text, "if the number grows: see the trainer's log, and the room in the store")


def _engines(pool: pb.AdminPool, seen: Overview) -> Iterator[Finding]:
    name = f"pool {pool.facts.pool}"
    alive = [one for one in seen.trainers if one.pool == pool.facts.pool and one.seen_ms_ago <= SILENT_MS]
    if not alive:
        yield error(name, "no live trainer: training waits", "start its trainer, or see why its log says it ended")
    elif all(one.draining for one in alive):
        yield warning(name, "its trainer is drained: training waits", "Admin/ResumeTrainer (docs/operate.md)")
    yield from _samplers(name, [one for one in seen.samplers if one.pool == pool.facts.pool])
    broken = [slot.slot for slot in seen.slots if slot.pool == pool.facts.pool and slot.state == "quarantined"]
    if broken:
        remedy = "their unload is repeated by itself; if they stay, restart the trainer: models come back by themselves"
        yield warning(name, f"slots {', '.join(map(str, broken))} are quarantined", remedy)


def _samplers(name: str, samplers: list[pb.SamplerReport]) -> Iterator[Finding]:
    alive = [one for one in samplers if one.seen_ms_ago <= SILENT_MS]
    if not alive:
        yield note(name, "no live sampler: samples wait or are refused", "start one where clients are to sample")
    elif all(one.draining for one in alive):
        yield warning(name, "all its samplers are drained: samples wait", "Admin/ResumeSampler (docs/operate.md)")
    for one in alive:
        if one.unpaired:
            remedy = "start a partner with the same model, settings and tier: prefill and decode samplers work in pairs"
            yield warning(name, f"{one.role} sampler {one.sampler_id} has no partner: {one.unpaired}", remedy)


def gateway(base_url: str, key: str) -> Iterator[Finding]:
    """Whether it answers, and to this key."""
    try:
        client = GatewayClient(base_url, key, GATEWAY_SECONDS)
        client.get("healthz")
    except TinkermeshError as wrong:
        yield error(
            "gateway", wrong.message, "start it; is the address what clients use, with the right scheme and port?"
        )
        return
    yield ok("gateway", f"{base_url} is up")
    if key:
        yield _key(client)
    else:
        yield note("key", "not tried", "set TINKER_API_KEY to see whether a client's key is good")
    client.close()


def _key(client: GatewayClient) -> Finding:
    try:
        models = client.get("get_server_capabilities")["supported_models"]
    except Unauthenticated as wrong:
        remedy = "tinkermesh keys create makes one; if all keys are refused, the gateway has another pepper than before"
        return error("key", f"refused: {wrong.message}", remedy)
    except TinkermeshError as wrong:
        remedy = "the gateway is up and its schedulers are not: see above, and TINKERMESH_GATEWAY_SCHEDULER"
        return error("gateway", f"cannot serve: {wrong.message}", remedy)
    return ok("key", f"good; models: {', '.join(sorted(one['model_name'] for one in models)) or 'none yet'}")
