"""Jobs as the routes answer them."""

from __future__ import annotations

from typing import Any

from tinkermesh.v1 import jobs_pb2 as pb

from services.gateway.wire.render_catalog import time_text


def job(found: pb.Job) -> dict[str, Any]:
    return {
        "job_id": found.job_id,
        "name": found.name,
        "base_model": found.base_model,
        "state": found.state,
        "tasks": {
            "total": found.tasks,
            "queued": found.queued,
            "running": found.running,
            "done": found.done,
            "failed": found.failed,
            "cancelled": found.cancelled,
        },
        "usage": {"prompt_tokens": found.prompt_tokens, "completion_tokens": found.output_tokens},
        "created_at": time_text(found.created_unix_ms),
        "started_at": _time(found.started_unix_ms),
        "ended_at": _time(found.ended_unix_ms),
        "expires_at": _time(found.expires_unix_ms),
    }


def _time(unix_ms: int) -> str | None:
    return time_text(unix_ms) if unix_ms else None
