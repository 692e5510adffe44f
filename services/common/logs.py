"""Structured logs: one JSON object per line, with the ids bound to the current task.

Bound names are request_id, model_id, tenant_id, unit_id; the trace id is added while tracing.
A line about another request than the current task's binds that request's own trace_id. A record
may carry more of its own: ``extra={"fields": {...}}``.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from services.common.telemetry import current_trace_id

_bound: ContextVar[dict[str, str] | None] = ContextVar("tinkermesh_log_ids", default=None)


@contextmanager
def bind(**ids: str) -> Iterator[None]:
    """Add `ids` to every record logged inside the block; empty ones are left out."""
    known = {name: value for name, value in ids.items() if value}
    token = _bound.set({**(_bound.get() or {}), **known})
    try:
        yield
    finally:
        _bound.reset(token)


class JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **(_bound.get() or {}),
            **getattr(record, "fields", {}),
        }
        if trace_id := current_trace_id():
            entry.setdefault("trace_id", trace_id)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(service: str, level: str = "INFO") -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
