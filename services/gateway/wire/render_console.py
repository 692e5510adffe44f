"""What the console's page reads. Times are milliseconds since 1970; what is not known is null."""

from __future__ import annotations

from typing import Any

from tinkermesh.v1 import console_pb2 as pb


def runs(reply: pb.ListConsoleRunsReply) -> dict[str, Any]:
    return {
        "runs": [run(one) for one in reply.runs],
        "total": reply.total_count,
        "searched": reply.searched_count or None,
        "known": reply.known_count,
    }


def run(one: pb.ConsoleRun) -> dict[str, Any]:
    return {
        "run_id": one.run_id,
        "name": one.name,
        "base_model": one.base_model,
        "rank": one.rank,
        "project_id": one.project_id,
        "created": one.created_unix_ms,
        "last_request": one.last_request_unix_ms,
        "state": one.state,
        "close_reason": one.close_reason,
        "steps": one.steps,
        "last": point(one.last) if one.HasField("last") else None,
        "queued": one.queued,
        "waits_for_slot": one.waits_for_slot,
    }


def point(one: pb.CurvePoint) -> dict[str, Any]:
    return {
        "step": one.step,
        "time": one.unix_ms,
        "loss": one.loss_sum / one.positions if one.positions else None,
        "loss_sum": one.loss_sum if one.positions else None,
        "positions": one.positions,
        "learning_rate": one.learning_rate if one.HasField("learning_rate") else None,
        "grad_norm": one.grad_norm if one.HasField("grad_norm") else None,
    }


def details(reply: pb.ConsoleRunDetails) -> dict[str, Any]:
    return {
        "run": run(reply.run),
        "points": [point(one) for one in reply.points],
        "stride": reply.stride,
        "user_metadata": reply.user_metadata_json,
        "last_checkpoint": reply.last_checkpoint,
        "last_sampler_checkpoint": reply.last_sampler_checkpoint,
    }


def state(reply: pb.ConsoleState) -> dict[str, Any]:
    return {
        "now": reply.now_unix_ms,
        "pools": [_pool(one) for one in reply.pools],
        "queues": [_queue(one) for one in reply.queues],
        "failures": [_failure(one) for one in reply.failures],
    }


def _pool(one: pb.ConsolePool) -> dict[str, Any]:
    return {
        "base_model": one.base_model,
        "trainers": one.trainers,
        "trainers_draining": one.trainers_draining,
        "paused": one.paused,
        "slots": {
            "free": one.slots_free,
            "yours": one.slots_yours,
            "others": one.slots_others,
            "unusable": one.slots_unusable,
        },
        "models_without_slot": one.models_without_slot,
        "models_restoring": one.models_restoring,
        "commands": {"yours": one.commands_yours, "all": one.commands_all},
        "samples": {"yours": one.samples_yours, "waiting": one.samples_waiting, "running": one.samples_running},
        "samplers": [{"role": s.role, "count": s.count, "in_flight": s.in_flight} for s in one.samplers],
    }


def _queue(one: pb.ConsoleQueue) -> dict[str, Any]:
    return {
        "run_id": one.run_id,
        "depth": one.depth,
        "oldest_ms": one.oldest_ms,
        "waits_for_seq": one.waits_for_seq if one.misses_command else None,
    }


def _failure(one: pb.ConsoleFailure) -> dict[str, Any]:
    return {
        "time": one.unix_ms,
        "request_id": one.request_id,
        "op": one.op,
        "parent": one.parent,
        "cause": one.cause,
        "category": "user" if one.user else "server",
        "times": one.times,
    }
