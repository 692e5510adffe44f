"""What `tinkermesh status` shows of an overview: pools with their leases, engines, models with slots and queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text
from tinkermesh.v1 import admin_pb2 as pb

from services.local.admin_client import Overview
from services.local.tables import age_text, bytes_text, rows

SILENT_MS = 10_000  # nothing is sent to a trainer or sampler that was not heard of for so long


def overview(seen: Overview, most_models: int = 0) -> RenderableType:
    """`most_models`: the busiest so many are shown, 0 = all."""
    parts: list[RenderableType] = [
        _pools(seen),
        Text(),
        _schedulers(seen),
        Text(),
        _engines(seen),
        Text(),
        _models(seen, most_models),
    ]
    alarms = [Text(text, style="bold red") for pool in seen.pools for text in _alarms(pool)]
    return Group(*parts, *([Text(), *alarms] if alarms else []))


def _pools(seen: Overview) -> RenderableType:
    columns = ("pool", "model", "leader", ">term", ">slots", ">models", ">queued", ">passes", ">fill", ">wait", ">log")
    return rows("pools", (*columns, ">durable points"), [_pool(pool, seen.slots) for pool in seen.pools])


def _pool(pool: pb.AdminPool, slots: Sequence[pb.SlotReport]) -> list[object]:
    states = Counter(slot.state for slot in slots if slot.pool == pool.facts.pool)
    broken = f", {states['quarantined']} quarantined" if states["quarantined"] else ""
    return [
        pool.facts.pool,
        pool.facts.base_model,
        Text(pool.leader) if pool.leader else Text("none", style="bold red"),
        pool.term,
        f"{states['held']} of {states.total()}{broken}",
        pool.models,
        pool.queued_commands,
        pool.packing.passes_total,
        f"{pool.packing.fill_ratio:.0%}",
        age_text(int(pool.packing.queue_wait_ms)),
        bytes_text(pool.recovery.log_bytes),
        pool.recovery.durables_total,
    ]


def _alarms(pool: pb.AdminPool) -> list[str]:
    name, recovery = pool.facts.pool, pool.recovery
    found = []
    if not pool.leader:
        found.append(f"{name}: no scheduler leads this pool; docs/operate.md, Pools")
    if pool.breaker:
        found.append(f"{name}: its trainer gets no work: {pool.breaker}")
    if recovery.replay_mismatches_total:
        found.append(f"{name}: {recovery.replay_mismatches_total} replays came to something else; docs/recovery.md")
    if recovery.durable_failures_total:
        found.append(f"{name}: {recovery.durable_failures_total} durable points failed; is the store full?")
    return found


def _schedulers(seen: Overview) -> RenderableType:
    held = [one for one in seen.leases if one.leader and one.expires_in_ms > 0]
    cells = []
    for replica in seen.replicas:
        mine = [one for one in held if one.leader == replica.replica]
        ends = age_text(min(one.expires_in_ms for one in mine)) if mine else "-"
        leads = ", ".join(one.pool for one in mine) or "-"
        cells.append([replica.replica, _seen(replica.seen_ms_ago), leads, ends, "yes" if replica.sweeps else ""])
    return rows("schedulers", ("replica", ">heard of", "leads", ">lease ends in", "sweeps"), cells)


def _engines(seen: Overview) -> RenderableType:
    trainers = [
        [one.pool, "trainer", one.trainer_id, one.address, _seen(one.seen_ms_ago), _doing(one)] for one in seen.trainers
    ]
    samplers = [
        [one.pool, f"sampler ({one.role})", one.sampler_id, one.address, _seen(one.seen_ms_ago), _sampling(one)]
        for one in seen.samplers
    ]
    return rows("engines", ("pool", "engine", "id", "address", ">heard of", "doing"), trainers + samplers)


def _seen(ms_ago: int) -> Text:
    return Text(f"{age_text(ms_ago)} ago", style="bold red" if ms_ago > SILENT_MS else "")


def _doing(trainer: pb.TrainerReport) -> str:
    if trainer.running_unit:
        return f"unit {trainer.running_unit}{', then drained' if trainer.draining else ''}"
    return "drained" if trainer.draining else "idle"


def _sampling(sampler: pb.SamplerReport) -> str:
    return f"{sampler.in_flight} in flight" if sampler.in_flight else "idle"


def _models(seen: Overview, most: int) -> RenderableType:
    queues = {one.model_id: one for one in seen.queues}
    points = {one.model_id: one for one in seen.durable_points}
    busiest = sorted(seen.models, key=lambda one: -one.depth)
    shown = busiest[:most] if most else busiest
    columns = (
        "pool",
        "model",
        "state",
        ">slot",
        "base",
        ">made",
        ">steps since",
        ">log",
        ">queued",
        ">oldest",
        "waits for",
    )
    cells = [_model(one, queues.get(one.model_id), points.get(one.model_id)) for one in shown]
    found: list[RenderableType] = [rows("models", columns, cells)]
    if not shown:
        found.append(Text("none", style="dim"))
    if len(shown) < len(busiest):
        found.append(Text(f"and {len(busiest) - len(shown)} more", style="dim"))
    return Group(*found)


def _model(model: pb.ModelReport, queue: pb.QueueReport | None, point: pb.DurablePointReport | None) -> list[object]:
    phase = "" if model.phase == "live" or model.state != "open" else f", {model.phase}"
    return [
        model.pool,
        model.model_id,
        f"{model.state}{phase}",
        "-" if model.slot < 0 else model.slot,
        model.base or "-",
        f"{age_text(point.age_ms)} ago" if point is not None and point.age_ms else "-",
        model.steps_since,
        bytes_text(model.log_bytes),
        model.depth,
        age_text(queue.oldest_age_ms) if queue is not None and queue.depth else "-",
        f"seq_id {queue.gap_at}, which has not arrived" if queue is not None and queue.gap_at else "",
    ]
