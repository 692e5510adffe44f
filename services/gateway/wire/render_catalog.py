"""Training runs, checkpoints and sessions as the SDK's models want them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from tinkermesh.v1 import catalog_pb2
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.tinker_path import EXTERNAL_WEIGHTS, SAMPLER_WEIGHTS, WEIGHTS
from services.gateway.wire.queries import Window

_TYPES = {WEIGHTS: "training", SAMPLER_WEIGHTS: "sampler", EXTERNAL_WEIGHTS: "external"}


def cursor(window: Window, total: int) -> dict[str, int]:
    return {"offset": window.offset, "limit": window.limit, "total_count": total}


def checkpoint_of_old_sdk(info: pb.CheckpointInfo) -> dict[str, Any]:
    """SDK 0.26.2 knows two types and refuses any other; an export holds what a sampler's snapshot holds."""
    shown = checkpoint(info)
    return shown | {"checkpoint_type": "sampler"} if shown["checkpoint_type"] == "external" else shown


def training_run(run: pb.TrainingRun) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "training_run_id": run.training_run_id,
        "base_model": run.base_model,
        "model_owner": run.tenant_id,
        "is_lora": True,
        "lora_rank": run.layout.rank,
        "corrupted": run.corrupted,
        "last_request_time": time_text(run.last_request_unix_ms),
        "user_metadata": _metadata(run.user_metadata_json),
    }
    for name in ("last_checkpoint", "last_sampler_checkpoint"):
        answer[name] = checkpoint(getattr(run, name)) if run.HasField(name) else None
    return answer


def checkpoint(info: pb.CheckpointInfo) -> dict[str, Any]:
    return {
        "checkpoint_id": info.checkpoint_id,
        "checkpoint_type": _TYPES[info.checkpoint_id.partition("/")[0]],
        "time": time_text(info.created_unix_ms),
        "tinker_path": info.path,
        "size_bytes": info.size_bytes,
        "public": info.public,
        "user_metadata": _metadata(info.user_metadata_json),
        "expires_at": time_text(info.expires_unix_ms) if info.expires_unix_ms else None,
    }


def session_summary(summary: catalog_pb2.SessionSummary) -> dict[str, Any]:
    return {
        "session_id": summary.session_id,
        "created_at": time_text(summary.created_unix_ms),
        "owner": summary.tenant_id,
        "project_id": summary.project_id,
        "status": _status(summary),
        "checkpoints_count": summary.checkpoints_count,
        "checkpoint_storage_bytes": summary.checkpoint_bytes,
        "display_name": summary.display_name or None,
        "user_metadata": _metadata(summary.user_metadata_json),
    }


def session(summary: catalog_pb2.SessionSummary) -> dict[str, Any]:
    return {
        "training_run_ids": list(summary.training_run_ids),
        "sampler_ids": list(summary.sampling_session_ids),
        "user_metadata": _metadata(summary.user_metadata_json),
        "display_name": summary.display_name or None,
    }


def time_text(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat()


def _status(summary: catalog_pb2.SessionSummary) -> dict[str, Any] | None:
    """None: it neither finished nor is it known to be running (its heartbeats stopped)."""
    if summary.status == "active":
        return {"type": "active"}
    if summary.status != "finished":
        return None
    reason = {"type": summary.finish_reason or "success"}
    return {"type": "client_finished", "reason": reason, "detail": summary.finish_detail or None}


def _metadata(text: str) -> Any:
    return msgspec.json.decode(text) if text else None
