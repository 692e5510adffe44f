"""The audit log's own logger: who asked for what, and what was decided. Never a secret, never content.

Records carry their data as `fields`, which the JSON formatter writes beside the message.
"""

from __future__ import annotations

import logging
import logging.handlers
from pathlib import Path

from services.common.logs import JsonFormatter

AUDIT = logging.getLogger("tinkermesh.audit")

FILES_KEPT = 4


def write_to(path: Path, service: str, max_bytes: int) -> None:
    """Also append audit lines to `path`; at `max_bytes` it is renamed, and the oldest of a few is dropped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=max_bytes, backupCount=FILES_KEPT, encoding="utf-8")
    handler.setFormatter(JsonFormatter(service))
    AUDIT.addHandler(handler)
